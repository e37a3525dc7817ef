//! Writes the program's log lines to standard error. A bounded queue leads to a thread of its own,
//! so a stuck reader blocks nothing else. Lines of one kind are rate-limited.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::Targets;

/// Its thread, in the words of those who say that it has ended.
pub const THREAD: &str = "the thread `diagnostics`";

/// Lines that wait for a slow reader.
const LINES_MAX: usize = 256;
/// Bytes of a line: with [`LINES_MAX`] the queue is below 1 MiB.
const LINE_BYTES_MAX: usize = 4 << 10;
/// Warnings and errors of one kind in one [`WINDOW`]: enough to see what goes wrong, too few to
/// fill a disk.
const LINES_A_KIND: u32 = 20;
/// The time for which lines are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// The time for which the process waits at its end for the reader, and for this thread on a machine
/// under load: the last lines are the summary of a sandbox.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// The crates whose messages are logged without EYELET_LOG: this program's. Libraries log what
/// peers do, so they are left out.
const PROGRAM: &str = "eyelet";

/// The place in the source that logs a line, as `tracing` names it.
type Kind = &'static str;

/// Takes lines from any thread without waiting.
#[derive(Clone)]
struct Lines(Arc<Mutex<State>>);

struct State {
    /// None once the process ends.
    queue: Option<SyncSender<Box<[u8]>>>,
    /// One count for each place in the source that has warned. Their number is fixed.
    kinds: HashMap<Kind, Count>,
    /// Lines dropped because the queue was full.
    lost: u64,
}

/// The lines of one kind since the window began.
struct Count {
    began: Instant,
    written: u32,
    left_out: u64,
}

/// Owns the thread that writes.
pub struct Diagnostics {
    lines: Lines,
    /// Disconnected when the thread has ended.
    done: Receiver<()>,
}

/// Starts the thread that writes everything that is logged, and every panic. Without EYELET_LOG
/// only what is at least so grave is logged.
///
/// # Errors
/// The thread cannot be started, or standard error is closed.
pub fn start(level: Level) -> io::Result<Diagnostics> {
    // A descriptor of its own: a write that is stuck must not hold the lock of std's stderr.
    start_to(level, File::from(io::stderr().as_fd().try_clone_to_owned()?))
}

/// Starts with another output. Each call of its `write` has whole lines.
///
/// # Errors
/// The thread cannot be started.
pub fn start_to(level: Level, out: impl Write + Send + 'static) -> io::Result<Diagnostics> {
    let diagnostics = Diagnostics::new(out)?;
    let wanted = std::env::var_os(FILTER);
    let read = wanted.as_deref().and_then(|wanted| wanted.to_str()?.parse().ok());
    let is_unread = wanted.is_some() && read.is_none();
    let filter = read.unwrap_or_else(|| Targets::new().with_target(PROGRAM, level));
    // Only a second call fails, and the first one's lines go on.
    let printer = Printer { lines: diagnostics.lines.clone(), filter };
    let _ = tracing::subscriber::set_global_default(printer);
    if is_unread {
        tracing::warn!(
            "{FILTER} cannot be read and does not count; expected a level, or one for each target, \
             as in \"debug\" or \"eyelet=debug,rustls=info\""
        );
    }
    let lines = diagnostics.lines.clone();
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let mut text = format!("thread '{}' {panic}\n", thread.name().unwrap_or("?"));
        // Captures only if RUST_BACKTRACE asks for it.
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            text += &backtrace.to_string();
        }
        lines.push(Some(PANIC), &text);
    }));
    Ok(diagnostics)
}

/// The variable that says what is logged.
pub const FILTER: &str = "EYELET_LOG";
/// The kind of all panics.
const PANIC: Kind = "a panic";

impl Diagnostics {
    fn new(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (queue, waiting) = sync_channel(LINES_MAX);
        let state = State { queue: Some(queue), kinds: HashMap::new(), lost: 0 };
        let lines = Lines(Arc::new(Mutex::new(state)));
        let (ends, done) = sync_channel(0);
        let all = lines.clone();
        std::thread::Builder::new().name("diagnostics".into()).spawn(move || {
            all.write_all(out, &waiting);
            drop(ends);
        })?;
        Ok(Self { lines, done })
    }

    /// Writes a line unchanged.
    pub fn line(&self, text: &str) {
        if self.has_died() {
            // Nobody else writes any more, and this line says so.
            let _ = writeln!(io::stderr(), "{text}");
            return;
        }
        self.lines.push(None, &format!("{text}\n"));
    }

    /// True if the thread has ended before [`Diagnostics::finish`], which only a failure causes.
    pub fn has_died(&self) -> bool {
        matches!(self.done.try_recv(), Err(TryRecvError::Disconnected))
    }

    /// Waits until all lines are written, `FINISH_TIMEOUT` at most.
    pub fn finish(self) {
        self.lines.0.lock().queue = None;
        // Either the thread has ended, or it is stuck and ends with the process.
        let _ = self.done.recv_timeout(FINISH_TIMEOUT);
    }
}

impl Lines {
    /// Gives a line to the thread, unless there were too many of its kind.
    fn push(&self, kind: Option<Kind>, text: &str) {
        let mut state = self.0.lock();
        if kind.is_some_and(|kind| !state.allows(kind, Instant::now())) {
            return;
        }
        let line = match text.get(..text.floor_char_boundary(LINE_BYTES_MAX)) {
            Some(start) if start.len() < text.len() => format!("{start}\n"),
            _ => text.to_owned(),
        };
        let sent = state.queue.as_ref().map(|queue| queue.try_send(line.into_bytes().into()));
        if !matches!(sent, Some(Ok(()))) {
            state.lost += 1;
        }
    }

    /// Writes lines until the queue is closed, and counts of the lines left out in between.
    fn write_all(&self, mut out: impl Write, waiting: &Receiver<Box<[u8]>>) {
        loop {
            // If standard error cannot be written to, the failure cannot be reported anywhere.
            match waiting.recv_timeout(WINDOW) {
                Ok(line) => _ = out.write_all(&line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let notice = self.0.lock().take_left_out(None);
                    let _ = out.write_all(notice.as_bytes());
                    return;
                }
            }
            let notice = self.0.lock().take_left_out(Some(Instant::now()));
            let _ = out.write_all(notice.as_bytes());
        }
    }
}

impl State {
    /// Counts a line. Returns whether to write it.
    fn allows(&mut self, kind: Kind, now: Instant) -> bool {
        let new = Count { began: now, written: 0, left_out: 0 };
        let count = self.kinds.entry(kind).or_insert(new);
        // The thread reports the lines left out in the last window, and resets the count.
        if count.left_out == 0 && now.duration_since(count.began) >= WINDOW {
            (count.began, count.written) = (now, 0);
        }
        let allowed = count.written < LINES_A_KIND;
        if allowed {
            count.written += 1;
        } else {
            count.left_out += 1;
        }
        allowed
    }

    /// Text on lines that were lost, and on lines left out in windows that have ended by `now`;
    /// without `now`, in all windows.
    fn take_left_out(&mut self, now: Option<Instant>) -> String {
        let mut notice = String::new();
        let lost = std::mem::take(&mut self.lost);
        if lost > 0 {
            notice += &format!("{lost} lines are lost: standard error was not read\n");
        }
        for (kind, count) in &mut self.kinds {
            let over = now.is_none_or(|now| now.duration_since(count.began) >= WINDOW);
            if count.left_out > 0 && over {
                let left_out = std::mem::take(&mut count.left_out);
                notice += &format!("{left_out} more lines of the kind of {kind} are left out\n");
                (count.began, count.written) = (now.unwrap_or(count.began), 0);
            }
        }
        notice
    }
}

/// Makes a line of each event. Spans are not kept: this program has none, and the library's
/// registry for them takes 32 KiB.
struct Printer {
    lines: Lines,
    filter: Targets,
}

impl Subscriber for Printer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.filter.would_enable(metadata.target(), metadata.level())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.filter.iter().map(|(_, level)| level).chain(self.filter.default_level()).max()
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let time = humantime::format_rfc3339_micros(SystemTime::now());
        let mut line = Line(format!("{time} {:>5}", metadata.level()));
        event.record(&mut line);
        line.0.push('\n');
        // Limits only events that a peer may cause. The operator causes the rest.
        let is_limited = *metadata.level() <= Level::WARN;
        self.lines.push(is_limited.then(|| metadata.name()), &line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // It is not enabled, so nobody enters it.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The text of an event: its message, and other fields as `name=value`.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = match field.name() {
            "message" => format!(" {value:?}"),
            name => format!(" {name}={value:?}"),
        };
        // What a peer sent must not move the cursor of the operator's terminal.
        for char in text.chars() {
            match char {
                '\n' | '\t' => self.0.push(char),
                char if char.is_control() => self.0.extend(char.escape_default()),
                char => self.0.push(char),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used)]

    use std::io::Read;

    use super::*;

    /// A fault of ours in the thread that writes.
    struct Faulty;

    impl Write for Faulty {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            panic!("a fault of the test");
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_thread_that_has_ended_is_noticed() {
        let diagnostics = Diagnostics::new(Faulty).unwrap();
        assert!(!diagnostics.has_died());
        diagnostics.line("a line");
        let end = Instant::now() + Duration::from_secs(60);
        while !diagnostics.has_died() && Instant::now() < end {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        assert!(diagnostics.has_died());
        // It has nobody to wait for.
        diagnostics.finish();
    }

    #[test]
    fn a_reader_that_is_stuck_stops_nobody_and_learns_what_is_lost() {
        let (mut reader, writer) = io::pipe().unwrap();
        let diagnostics = Diagnostics::new(writer).unwrap();
        // A pipe holds 64 KiB, the queue 1 MiB at most: this would never end if it waited.
        let line = "x".repeat(LINE_BYTES_MAX - 1);
        for _ in 0..2 * LINES_MAX {
            diagnostics.line(&line);
        }
        let read = std::thread::spawn(move || {
            let mut all = String::new();
            reader.read_to_string(&mut all).unwrap();
            all
        });
        diagnostics.finish();
        let all = read.join().unwrap();
        let whole = all.lines().filter(|read| *read == line).count();
        let notice: Vec<&str> = all.lines().filter(|read| *read != line).collect();
        assert!((LINES_MAX..2 * LINES_MAX).contains(&whole), "{whole}");
        let lost: usize = notice
            .iter()
            .map(|line| line.split(' ').next().unwrap().parse::<usize>().unwrap())
            .sum();
        assert_eq!(whole + lost, 2 * LINES_MAX, "{notice:?}");
    }

    #[test]
    fn a_line_has_time_level_and_text_without_control_characters() {
        let (queue, waiting) = sync_channel(LINES_MAX);
        let state = State { queue: Some(queue), kinds: HashMap::new(), lost: 0 };
        let filter = "eyelet=info,quiet=error,loud".parse().unwrap();
        let printer = Printer { lines: Lines(Arc::new(Mutex::new(state))), filter };
        assert_eq!(printer.max_level_hint(), Some(LevelFilter::TRACE));
        tracing::subscriber::with_default(printer, || {
            tracing::info!(target: "eyelet_downstream::client::io", "a \x1b[2J name\nof two lines");
            tracing::warn!(target: "eyelet", count = 3, "with a field");
            tracing::debug!(target: "eyelet", "below its level");
            tracing::warn!(target: "quiet", "below its level");
            tracing::warn!(target: "h2", "not asked for");
            tracing::trace!(target: "loud", "all of it");
        });
        let lines: Vec<String> =
            waiting.try_iter().map(|line| String::from_utf8(line.into()).unwrap()).collect();
        let (times, texts): (Vec<_>, Vec<_>) =
            lines.iter().map(|line| line.split_at("2026-11-23T03:22:13.680051Z".len())).unzip();
        times.iter().for_each(|time| _ = humantime::parse_rfc3339(time).unwrap());
        let expected = [
            "  INFO a \\u{1b}[2J name\nof two lines\n",
            "  WARN with a field count=3\n",
            " TRACE all of it\n",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn lines_of_one_kind_are_limited_and_those_left_out_are_counted() {
        let (queue, waiting) = sync_channel(LINES_MAX);
        let state = State { queue: Some(queue), kinds: HashMap::new(), lost: 0 };
        let lines = Lines(Arc::new(Mutex::new(state)));
        for _ in 0..50 {
            lines.push(Some("one"), "one\n");
            lines.push(None, "free\n");
        }
        lines.push(Some("other"), "other\n");
        let all: Vec<Box<[u8]>> = waiting.try_iter().collect();
        let count = |text: &[u8]| all.iter().filter(|line| &***line == text).count();
        assert_eq!([count(b"one\n"), count(b"free\n"), count(b"other\n")], [20, 50, 1]);
        let mut state = lines.0.lock();
        assert_eq!(state.take_left_out(Some(Instant::now())), "", "the window is not over");
        let later = Instant::now() + WINDOW;
        let notice = "30 more lines of the kind of one are left out\n";
        assert_eq!(state.take_left_out(Some(later)), notice);
        assert!(state.allows("one", later), "a new window");
    }
}
