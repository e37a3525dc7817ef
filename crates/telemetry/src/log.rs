//! The access log: one JSON object per connection or request. Workers format entries; one thread
//! writes them through a bounded queue.

pub mod failed;
mod line;
mod queue;
pub mod read;
pub mod recent;
mod text;

use std::fs::{File, Metadata};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use eyelet_sys::file::{LogFile, open_log};

use crate::counters::{self, Counters};
use crate::info::Measured;
use crate::info::{ConnectionInfo, Decided, End, Outcome};
use crate::request::RequestInfo;
use eyelet_config::{Access, Config, LogFormat, LogSettings};
use eyelet_memory::budget::{Account, Budget, CountedBuffer};
use line::{Line, Opening};
use queue::{Batch, Drain, Fill};
use text::Colour;

/// The time for which the process waits for the log's reader when it ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of lines at which a worker flushes its batch; otherwise it does so at the next tick.
const BATCH_BYTES: usize = 16 << 10;
/// Most bytes of lines that wait for a slow reader: 16 MiB, about 40,000 lines.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// The part of `memory_max` that these may take, so that a stalled log leaves the rest to
/// connections.
const QUEUE_PART: usize = 16;
/// Extra room for the line that completes a batch. A longer line makes the batch grow.
const LAST_LINE_BYTES: usize = 2 << 10;

/// The log of one worker.
pub struct Log {
    queue: Option<Fill>,
    style: Style,
    batch: CountedBuffer,
    lines: u64,
    opening: Opening,
    counters: Arc<Counters>,
}

impl Log {
    /// Tells how many milliseconds the wall clock is ahead of the steady clock (negative: behind).
    /// Lines show the wall clock's time.
    pub fn follow(&mut self, ahead_ms: i64) {
        self.opening.ahead_ms = ahead_ms;
    }

    /// True if the log is written at all.
    pub fn is_on(&self) -> bool {
        self.queue.is_some()
    }

    /// Formats the line of a connection that has ended, or of a request.
    pub fn line(
        &mut self,
        decided: &Decided,
        measured: &Measured,
        end: &End,
        http: Option<&RequestInfo<'_>>,
    ) {
        let (outcome, reason) = (end.outcome, Some(&end.reason));
        self.push(&Line { decided, measured, outcome, reason, http });
    }

    /// Formats the line of a connection that was decided and goes on.
    pub fn decided(&mut self, info: &ConnectionInfo, outcome: Outcome, now_unix_ms: u64) {
        let (decided, measured) = (&info.decided, &info.measured(now_unix_ms));
        self.push(&Line { decided, measured, outcome, reason: None, http: None });
        // Whoever watches for it must not wait for a batch.
        self.flush();
    }

    fn push(&mut self, line: &Line<'_>) {
        if self.queue.is_none() {
            return;
        }
        if self.batch.capacity() == 0 {
            self.batch.edit(|batch| batch.reserve_exact(BATCH_BYTES + LAST_LINE_BYTES));
        }
        let opening = &mut self.opening;
        self.batch.edit(|batch| match self.style {
            Style::Json => line.write(batch, opening),
            Style::Text(colour) => text::write(line, batch, opening, colour),
        });
        self.lines += 1;
        if self.batch.len() >= BATCH_BYTES {
            self.flush();
        }
    }

    /// Writes to another log from now on.
    pub fn write_to(&mut self, lines: Lines) {
        self.flush();
        (self.queue, self.style) = (lines.queue, lines.style);
    }

    /// Passes the batch to the writer.
    pub fn flush(&mut self) {
        let Some(queue) = &self.queue else { return };
        if self.batch.is_empty() {
            return;
        }
        let mut batch = self.batch.take();
        // The queue's limit counts lengths, so the capacity must be close to the length.
        if batch.len() < BATCH_BYTES {
            batch.shrink_to_fit();
        }
        let lines = std::mem::take(&mut self.lines);
        if !queue.push(Batch { text: batch, lines }) {
            self.counters.lines_lost.add(lines);
        }
    }
}

#[cfg(feature = "testing")]
impl Log {
    /// A log without a thread, and what is read of it once the log is dropped.
    pub fn captured(budget: &Arc<Budget>) -> (Self, impl Iterator<Item = CountedBuffer> + use<>) {
        let (fill, drain) = queue::queue(QUEUE_BYTES_MAX);
        let log = Self {
            queue: Some(fill),
            style: Style::Json,
            batch: CountedBuffer::of(budget, Account::Log),
            lines: 0,
            opening: Opening::default(),
            counters: Arc::default(),
        };
        (log, drain.map(|batch| batch.text))
    }
}

/// The queue of lines, and their style.
#[derive(Clone)]
pub struct Lines {
    /// `None` if the log is off.
    queue: Option<Fill>,
    style: Style,
}

/// The style of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Json,
    Text(Colour),
}

impl Style {
    fn of(log: &LogSettings) -> Self {
        // https://no-color.org: present and not empty.
        let is_plain = || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        match (log.format, &log.access) {
            (LogFormat::Json, _) => Self::Json,
            (LogFormat::Text, Access::Stdout) if io::stdout().is_terminal() && !is_plain() => {
                Self::Text(Colour::On)
            }
            (LogFormat::Text, _) => Self::Text(Colour::Off),
        }
    }
}

/// A thread, and a channel that is disconnected when it has ended.
type WriterThread = (JoinHandle<()>, Receiver<()>);

fn start_thread(body: impl FnOnce() + Send + 'static) -> io::Result<WriterThread> {
    let (ends, ended) = sync_channel(1);
    let body = move || {
        let _ends = ends;
        body();
    };
    Ok((std::thread::Builder::new().name("access-log".into()).spawn(body)?, ended))
}

/// The thread that writes the access log. It ends when every worker's [`Log`] is dropped.
pub struct Writer {
    settings: LogSettings,
    style: Style,
    /// The file that is written to.
    opened: Option<FileId>,
    queue: Option<Fill>,
    thread: Option<WriterThread>,
    budget: Arc<Budget>,
    /// The thread's own counters.
    counters: Arc<Counters>,
}

impl Writer {
    /// Opens the file of `config.log.access` and starts the thread.
    pub fn start(config: &Config, budget: &Arc<Budget>) -> io::Result<Self> {
        let (budget, counters) = (budget.clone(), counters::register());
        let (settings, style) = (config.log.clone(), Style::of(&config.log));
        let (out, opened): (Box<dyn Write + Send>, _) = match &settings.access {
            Access::Off => {
                let (opened, queue, thread) = (None, None, None);
                return Ok(Self { settings, style, opened, queue, thread, budget, counters });
            }
            Access::Stdout => (Box::new(io::stdout()), None),
            Access::File(path) => {
                let file = open(path)?;
                let opened = FileId::of(&file.metadata()?);
                (Box::new(file), Some(opened))
            }
        };
        let queue_bytes_max = (config.limits.memory_max / QUEUE_PART).min(QUEUE_BYTES_MAX);
        let (queue, drain) = queue::queue(queue_bytes_max);
        let counted = counters.clone();
        let thread = start_thread(move || write_all(out, drain, &counted))?;
        let (queue, thread) = (Some(queue), Some(thread));
        Ok(Self { settings, style, opened, queue, thread, budget, counters })
    }

    /// Opens the log of a new configuration. `None`: it is the one that is open. A file that was
    /// renamed is another one, as those who rotate logs expect.
    pub fn reopen(&self, config: &Config) -> io::Result<Option<Self>> {
        let (own, new) = (&self.settings, &config.log);
        let is_open = (&own.access, own.format) == (&new.access, new.format)
            && match &own.access {
                Access::Off | Access::Stdout => true,
                Access::File(path) => {
                    let there = std::fs::metadata(path).ok();
                    self.opened.is_some() && self.opened == there.as_ref().map(FileId::of)
                }
            };
        if is_open { Ok(None) } else { Self::start(config, &self.budget).map(Some) }
    }

    /// True if another file has the name of the one that is written to, as those who rotate logs
    /// make it.
    pub fn was_renamed(&self) -> bool {
        let (Access::File(path), Some(opened)) = (&self.settings.access, self.opened) else {
            return false;
        };
        std::fs::metadata(path).is_ok_and(|there| FileId::of(&there) != opened)
    }

    /// Returns the queue of its lines.
    pub fn lines(&self) -> Lines {
        Lines { queue: self.queue.clone(), style: self.style }
    }

    /// The log of one worker.
    pub fn log(&self, counters: Arc<Counters>) -> Log {
        Log {
            queue: self.queue.clone(),
            style: self.style,
            batch: CountedBuffer::of(&self.budget, Account::Log),
            lines: 0,
            opening: Opening::default(),
            counters,
        }
    }

    /// True if the thread has ended, which only a failure causes: its queue is open here.
    pub fn has_died(&self) -> bool {
        self.thread.as_ref().is_some_and(|(thread, _)| thread.is_finished())
    }

    /// Waits until every line is written, at most a second: a stuck reader must not delay the end
    /// of the process. All workers' logs must have been dropped.
    pub fn finish(self) {
        // `map` drops the sender that is here, so that the queue can end.
        let waiting = self.queue.map(|queue| queue.drain());
        let (Some((_, ended)), Some(waiting)) = (self.thread, waiting) else { return };
        let cause = match ended.recv_timeout(FINISH_TIMEOUT) {
            Err(RecvTimeoutError::Timeout) => "the access log's reader is stuck",
            // Lines that wait are left only where it ended by a failure.
            _ => "the access log's thread has ended",
        };
        // Some lines of the batch that was being written may have been read.
        let lines = waiting.unwritten_lines();
        if lines > 0 {
            self.counters.lines_lost.add(lines);
            tracing::error!("{cause}: up to {lines} lines are lost");
        }
    }
}

/// The identity of a file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let LogFile { file, is_unread } = open_log(path)?;
    if is_unread {
        let path = path.display();
        tracing::warn!("the access log {path} has no reader: lines wait, and some may be lost");
    }
    Ok(file)
}

fn write_all(out: Box<dyn Write + Send>, batches: Drain, counters: &Counters) {
    let mut out = Output { out, lost: None, is_mid_line: false };
    for batch in batches {
        recent::note(&batch.text, batch.lines);
        out.write(&batch, counters);
    }
}

/// The output of the lines. A disk that is full may have room again.
struct Output<W> {
    out: W,
    /// Lines lost since writing failed.
    lost: Option<u64>,
    /// True if the last bytes that were written are the beginning of a line.
    is_mid_line: bool,
}

impl<W: Write> Output<W> {
    /// Writes a batch, or loses the lines that cannot be written whole.
    fn write(&mut self, batch: &Batch, counters: &Counters) {
        let mut written = 0;
        match self.try_write(&batch.text, &mut written) {
            Ok(()) => {
                if let Some(lost) = self.lost.take() {
                    tracing::warn!("the access log is written again; {lost} lines are lost");
                }
            }
            Err(error) => {
                let whole = batch.text[..written].iter().filter(|byte| **byte == b'\n').count();
                let lost = batch.lines.saturating_sub(whole as u64);
                counters.lines_lost.add(lost);
                if self.lost.is_none() {
                    tracing::error!("cannot write the access log: {error}; lines are lost");
                }
                *self.lost.get_or_insert(0) += lost;
            }
        }
    }

    fn try_write(&mut self, text: &[u8], written: &mut usize) -> io::Result<()> {
        if self.is_mid_line {
            // The next line must not become a part of the one that was cut.
            self.out.write_all(b"\n")?;
            self.is_mid_line = false;
        }
        while *written < text.len() {
            match self.out.write(&text[*written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => *written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            self.is_mid_line = text[..*written].last().is_some_and(|last| *last != b'\n');
        }
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used)]

    use std::time::Instant;

    use super::*;

    /// A disk with so much room.
    struct Disk {
        text: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room - self.text.len());
            self.text.extend_from_slice(&bytes[..count]);
            match count {
                0 => Err(io::ErrorKind::StorageFull.into()),
                count => Ok(count),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_was_cut_spoils_no_other() {
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let batch = |text: &[u8], lines| {
            let mut counted = CountedBuffer::of(&budget, Account::Log);
            counted.edit(|bytes| bytes.extend_from_slice(text));
            Batch { text: counted, lines }
        };
        for (room, expected, lost) in [
            (0, "e\nf\n", 4),
            (2, "a\ne\nf\n", 3),
            (3, "a\nb\ne\nf\n", 3),
            (4, "a\nb\ne\nf\n", 2),
            (8, "a\nb\nc\nd\ne\nf\n", 0),
        ] {
            let counters = Counters::default();
            let disk = Disk { text: Vec::new(), room };
            let mut out = Output { out: disk, lost: None, is_mid_line: false };
            out.write(&batch(b"a\nb\n", 2), &counters);
            out.write(&batch(b"c\nd\n", 2), &counters);
            out.out.room = 100;
            out.write(&batch(b"e\nf\n", 2), &counters);
            assert_eq!(String::from_utf8_lossy(&out.out.text), expected, "{room}");
            assert_eq!(counters.lines_lost.value(), lost, "{room}");
        }
    }

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
    fn a_thread_that_has_ended_is_noticed_and_its_lines_are_counted() {
        let text = "[[listener]]\naddress = \"127.0.0.1:0\"\n[log]\naccess = \"off\"\n";
        let (file, depth) = (Path::new("edge.toml"), eyelet_config::Depth::Files);
        let now = std::time::SystemTime::now();
        let config = eyelet_config::parse(file, text, depth, now).unwrap().config;
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let mut writer = Writer::start(&config, &budget).unwrap();
        assert!(!writer.has_died(), "there is none to end");
        let (queue, drain) = queue::queue(QUEUE_BYTES_MAX);
        let body = move || write_all(Box::new(Faulty), drain, &Counters::default());
        writer.thread = Some(start_thread(body).unwrap());
        writer.queue = Some(queue);
        let mut log = writer.log(Arc::default());
        assert!(!writer.has_died());
        log.batch.extend_from_slice(b"a line\n");
        log.lines = 1;
        log.flush();
        let end = Instant::now() + Duration::from_secs(60);
        while !writer.has_died() && Instant::now() < end {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        assert!(writer.has_died());
        // The queue takes them until it is full.
        log.batch.extend_from_slice(b"a line\nanother\n");
        log.lines = 2;
        log.flush();
        drop(log);
        let counters = writer.counters.clone();
        writer.finish();
        assert_eq!(counters.lines_lost.value(), 3);
    }

    #[test]
    fn lines_that_wait_have_no_more_room_than_they_need() {
        let (queue, mut drain) = queue::queue(QUEUE_BYTES_MAX);
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let mut log = Log {
            queue: Some(queue),
            style: Style::Json,
            batch: CountedBuffer::of(&budget, Account::Log),
            lines: 1,
            opening: Opening::default(),
            counters: Arc::default(),
        };
        log.batch.edit(|batch| {
            batch.reserve_exact(BATCH_BYTES + LAST_LINE_BYTES);
            batch.extend([b'a'; 500]);
        });
        log.flush();
        let room = drain.next().map(|batch| (batch.text.len(), batch.text.capacity()));
        assert!(room.is_some_and(|(len, room)| len == 500 && room < 2 * len), "{room:?}");
    }
}
