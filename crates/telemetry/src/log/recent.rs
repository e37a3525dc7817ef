//! The newest access lines, for who watches the edge. They are kept only while somebody does.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

/// Lines that are kept until they are taken: a page shows no more of a second.
const LINES_MAX: usize = 200;
/// Their bytes. A line has about 600, and the longest about 30 KiB.
const BYTES_MAX: usize = 128 << 10;

/// Access lines, oldest first.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RecentLines {
    /// The newest ones, as the log has them.
    pub lines: VecDeque<String>,
    /// The number of lines that were written beside them and are not kept.
    pub dropped: u64,
    bytes: usize,
}

static IS_WATCHED: AtomicBool = AtomicBool::new(false);
static RECENT: Mutex<Option<RecentLines>> = Mutex::new(None);

/// The lines since the last call. From now on lines are kept, until [`forget`].
pub fn take() -> RecentLines {
    IS_WATCHED.store(true, Relaxed);
    RECENT.lock().replace(RecentLines::default()).unwrap_or_default()
}

/// Keeps no lines any more.
pub fn forget() {
    IS_WATCHED.store(false, Relaxed);
    *RECENT.lock() = None;
}

/// A batch is written. The log's thread calls this; workers do not wait for it.
pub(super) fn note(text: &[u8], lines: u64) {
    if IS_WATCHED.load(Relaxed)
        && let Some(recent) = &mut *RECENT.lock()
    {
        recent.add(text, lines);
    }
}

impl RecentLines {
    fn add(&mut self, text: &[u8], lines: u64) {
        let count = usize::try_from(lines).unwrap_or(usize::MAX);
        let skipped = count.saturating_sub(LINES_MAX);
        self.dropped += skipped as u64;
        for line in text.split_inclusive(|byte| *byte == b'\n').skip(skipped) {
            let line = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line));
            let line = without_colours(&line);
            self.bytes += line.len();
            self.lines.push_back(line);
        }
        while self.lines.len() > LINES_MAX || self.bytes > BYTES_MAX {
            let Some(line) = self.lines.pop_front() else { break };
            self.bytes -= line.len();
            self.dropped += 1;
        }
    }
}

/// A page is no terminal. The log's text has no other escape than those of its own colours.
fn without_colours(line: &str) -> String {
    let mut pieces = line.split("\x1b[");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let end = piece.find(|letter: char| !letter.is_ascii_digit() && letter != ';');
        let behind = end.and_then(|end| piece[end..].strip_prefix('m'));
        plain.push_str(behind.unwrap_or(piece));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_before_somebody_watches_and_after() {
        note(b"before\n", 1);
        assert_eq!(take(), RecentLines::default());
        note(b"line\n", 1);
        assert_eq!(take().lines, ["line"]);
        note(b"line\n", 1);
        forget();
        note(b"after\n", 1);
        assert_eq!(take(), RecentLines::default());
        forget();
    }

    #[test]
    fn colours_are_left_out() {
        let mut recent = RecentLines::default();
        recent.add(b"12:00 \x1b[32mspliced   \x1b[0m \x1b[1;31ma\x1b[m \x1b[2J [0m\n", 1);
        assert_eq!(recent.lines, ["12:00 spliced    a 2J [0m"]);
    }

    #[test]
    fn the_newest_lines_are_kept_and_the_others_counted() {
        let mut recent = RecentLines::default();
        recent.add(b"one\ntwo\n", 2);
        assert_eq!((&recent.lines[1][..], recent.dropped), ("two", 0));
        let many = "line\n".repeat(LINES_MAX + 50);
        recent.add(many.as_bytes(), LINES_MAX as u64 + 50);
        assert_eq!((recent.lines.len(), recent.dropped), (LINES_MAX, 52));
        let long = format!("{}\n", "x".repeat(BYTES_MAX / 2 + 1));
        recent.add(long.as_bytes(), 1);
        recent.add(long.as_bytes(), 1);
        assert_eq!((recent.lines.len(), recent.bytes), (1, BYTES_MAX / 2 + 1));
        assert_eq!(recent.dropped, 52 + LINES_MAX as u64 + 1);
    }
}
