//! The terminal: raw and on its other screen while the view is open, and as it was afterwards,
//! whatever ends the view: a key, a signal, an error or a panic.

use std::env;
use std::io::{self, Write};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crossterm::style::{Attribute, Color, SetAttribute, SetForegroundColor};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, execute, queue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use signal_hook::flag;

use crate::frame::{FrameLine, Look, Size};

/// Bytes of keys that are read at once: a person presses one.
const KEYS_BYTES: usize = 64;
/// The longest wait for a key. A signal that comes just before a wait is seen after it.
const STEP: Duration = Duration::from_millis(250);

/// The wish of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPress {
    /// End.
    Quit,
    /// Sort connections by the other thing.
    Sort,
    /// Draw again: the terminal has another size.
    Redraw,
}

/// Columns and lines of the terminal, if there is one.
pub fn size() -> Option<Size> {
    let (columns, rows) = terminal::size().ok()?;
    Some(Size { columns: columns.into(), rows: rows.into() })
}

/// The terminal while the view is open. Dropping it gives the terminal back.
pub struct Screen<W: Write> {
    out: W,
    has_colors: bool,
    stop: Arc<AtomicBool>,
    resized: Arc<AtomicBool>,
}

impl<W: Write> Screen<W> {
    /// Takes the terminal.
    ///
    /// # Errors
    /// The terminal's.
    pub fn open(out: W) -> io::Result<Self> {
        let (stop, resized) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            flag::register(signal, stop.clone())?;
        }
        flag::register(SIGWINCH, resized.clone())?;
        // The message of a panic belongs on the user's screen, not on the one that goes away.
        let earlier = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            give_back(&mut io::stdout());
            earlier(info);
        }));
        // Any value but an empty one: no-color.org.
        let has_colors = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mut screen = Self { out, has_colors, stop, resized };
        terminal::enable_raw_mode()?;
        execute!(screen.out, EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    /// Draws a frame over the earlier one, in one write and without a flicker.
    ///
    /// # Errors
    /// The terminal's.
    pub fn draw(&mut self, lines: &[FrameLine], size: Size) -> io::Result<()> {
        let frame = rendered(lines, size, self.has_colors)?;
        self.out.write_all(&frame)?;
        self.out.flush()
    }

    /// Waits for a key, or for the time to be over (`None`).
    ///
    /// # Errors
    /// The terminal's; `Quit` if it is gone.
    pub fn wait(&self, time: Duration) -> io::Result<Option<KeyPress>> {
        let end = Instant::now() + time;
        loop {
            if self.stop.load(Relaxed) {
                return Ok(Some(KeyPress::Quit));
            }
            if self.resized.swap(false, Relaxed) {
                return Ok(Some(KeyPress::Redraw));
            }
            let left = end.saturating_duration_since(Instant::now()).min(STEP);
            if left.is_zero() {
                return Ok(None);
            }
            if is_readable(left)? {
                let mut bytes = [0; KEYS_BYTES];
                let more = rustix::io::read(rustix::stdio::stdin(), &mut bytes)?;
                match key(&bytes[..more]) {
                    None => {}
                    some => return Ok(some),
                }
            }
        }
    }
}

/// A frame as bytes. What was there before is cleared ahead of a line's text: behind a line of
/// full width the cursor still stands on the last column, and clearing would take that away.
fn rendered(lines: &[FrameLine], size: Size, has_colors: bool) -> io::Result<Vec<u8>> {
    let mut frame = Vec::new();
    let to_row = |row: usize| cursor::MoveTo(0, u16::try_from(row).unwrap_or(u16::MAX));
    for (row, line) in lines.iter().enumerate() {
        queue!(frame, to_row(row), Clear(ClearType::UntilNewLine))?;
        match line.look {
            Look::Plain => {}
            Look::Head => queue!(frame, SetAttribute(Attribute::Reverse))?,
            Look::Warning if has_colors => {
                queue!(frame, SetForegroundColor(Color::Red), SetAttribute(Attribute::Bold))?;
            }
            Look::Warning => queue!(frame, SetAttribute(Attribute::Bold))?,
        }
        frame.extend_from_slice(line.text.as_bytes());
        queue!(frame, SetAttribute(Attribute::Reset))?;
    }
    if lines.len() < size.rows {
        queue!(frame, to_row(lines.len()), Clear(ClearType::FromCursorDown))?;
    }
    Ok(frame)
}

fn is_readable(wait: Duration) -> io::Result<bool> {
    let stdin = rustix::stdio::stdin();
    let mut descriptors = [PollFd::new(&stdin, PollFlags::IN)];
    let wait = Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    };
    match poll(&mut descriptors, Some(&wait)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the meaning of these bytes of the terminal. In raw mode Ctrl-C is a byte. An end is a
/// quit.
fn key(bytes: &[u8]) -> Option<KeyPress> {
    match bytes {
        [] | [b'q' | b'Q' | 3 | 4, ..] => Some(KeyPress::Quit),
        [b'p' | b'P' | b's' | b'S', ..] => Some(KeyPress::Sort),
        // The arrows, as terminals send them: up, down, right, left.
        [0x1b, b'[' | b'O', b'A'..=b'D', ..] => Some(KeyPress::Sort),
        _ => None,
    }
}

/// Gives the terminal back. Errors are left: there is nothing else to try.
fn give_back(out: &mut impl Write) {
    let _ = execute!(out, SetAttribute(Attribute::Reset), cursor::Show, LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}

impl<W: Write> Drop for Screen<W> {
    fn drop(&mut self) {
        give_back(&mut self.out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::SortOrder;
    use crate::figures::tests::sample;
    use crate::frame;

    #[test]
    fn nothing_is_cleared_behind_a_text_that_may_fill_its_line() {
        for (lines_max, clears_below) in [(24, false), (40, true)] {
            let size = Size { columns: 80, rows: 24 };
            let lines = frame::draw(&sample(), size, SortOrder::Age, None);
            let size = Size { rows: lines_max, ..size };
            let frame = String::from_utf8(rendered(&lines, size, true).unwrap()).unwrap();
            assert_eq!(frame.matches("\x1b[K").count(), lines.len());
            // Each clearing follows a move to the first column.
            let is_first = |at: usize| frame[..at].ends_with(";1H");
            assert!(frame.match_indices("\x1b[K").all(|(at, _)| is_first(at)), "{frame:?}");
            assert!(frame.match_indices("\x1b[J").all(|(at, _)| is_first(at)), "{frame:?}");
            assert_eq!(frame.contains("\x1b[J"), clears_below);
        }
    }

    #[test]
    fn keys() {
        for (bytes, wants) in [
            (&b"q"[..], Some(KeyPress::Quit)),
            (b"\x03", Some(KeyPress::Quit)),
            (b"", Some(KeyPress::Quit)),
            (b"p", Some(KeyPress::Sort)),
            (b"\x1b[A", Some(KeyPress::Sort)),
            (b"\x1bOD", Some(KeyPress::Sort)),
            (b"\x1b", None),
            (b"x", None),
            (b"\x1b[5~", None),
        ] {
            assert_eq!(key(bytes), wants, "{bytes:?}");
        }
    }
}
