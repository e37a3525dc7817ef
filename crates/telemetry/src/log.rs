//! The access line: one JSON object a connection, formatted by the worker, written by one thread
//! through a bounded queue. It must not know how a connection came to its end.

mod line;
mod queue;

use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use eyelet_sys::file::{LogFile, open_log};

use crate::counters::{self, Counters};
use crate::info::Measured;
use crate::info::{Decided, End};
use crate::request::RequestInfo;
use eyelet_config::{Access, Config};
use eyelet_memory::budget::{Account, Budget, CountedBuffer};
use line::{Line, Opening};
use queue::{Batch, Drain, Fill};

/// How long the end of the process waits for the log's reader.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);
/// A worker hands its lines over when it holds this many bytes, or at the next tick.
const BATCH_BYTES: usize = 16 << 10;
/// Lines that wait for a slow reader: 16 MiB, about 40,000 lines.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// The part of `memory_max` that they may take, so that a log that stalls leaves the rest to
/// connections.
const QUEUE_PART: usize = 16;
/// Room for the line with which it comes to hold them; a longer one makes room for itself.
const LAST_LINE_BYTES: usize = 2 << 10;

/// Where a worker's lines go.
pub struct Log {
    queue: Option<Fill>,
    batch: CountedBuffer,
    lines: u64,
    opening: Opening,
    counters: Arc<Counters>,
}

impl Log {
    /// Has lines show the wall clock's time where it is so many milliseconds ahead of the clock
    /// that connections are measured by, or behind it.
    pub fn follow(&mut self, ahead_ms: i64) {
        self.opening.ahead_ms = ahead_ms;
    }

    /// Whether anybody reads the lines.
    pub fn is_on(&self) -> bool {
        self.queue.is_some()
    }

    /// Formats the line of a connection that has ended, or of a request on one.
    pub fn line(
        &mut self,
        decided: &Decided,
        measured: &Measured,
        end: &End,
        http: Option<&RequestInfo>,
    ) {
        if self.queue.is_none() {
            return;
        }
        if self.batch.capacity() == 0 {
            self.batch.edit(|batch| batch.reserve_exact(BATCH_BYTES + LAST_LINE_BYTES));
        }
        let line = Line { decided, measured, end, http };
        self.batch.edit(|batch| line.write(batch, &mut self.opening));
        self.lines += 1;
        if self.batch.len() >= BATCH_BYTES {
            self.flush();
        }
    }

    /// Writes to another log from now on.
    pub fn write_to(&mut self, lines: Lines) {
        self.flush();
        self.queue = lines.0;
    }

    /// Hands the batch to the writer.
    pub fn flush(&mut self) {
        let Some(queue) = &self.queue else { return };
        if self.batch.is_empty() {
            return;
        }
        let mut batch = self.batch.take();
        // What waits is bounded by its length, so its capacity must be like that.
        if batch.len() < BATCH_BYTES {
            batch.shrink_to_fit();
        }
        let lines = std::mem::take(&mut self.lines);
        if !queue.push(Batch { text: batch, lines }) {
            self.counters.lines_lost.add(lines);
        }
    }
}

/// Where lines go; none where the log is off.
#[derive(Clone)]
pub struct Lines(Option<Fill>);

/// The thread that writes access lines; it ends when every worker's [`Log`] is gone.
pub struct Writer {
    access: Access,
    /// The file that is written to.
    opened: Option<FileId>,
    queue: Option<Fill>,
    thread: Option<JoinHandle<()>>,
    budget: Arc<Budget>,
    /// The thread's.
    counters: Arc<Counters>,
}

impl Writer {
    /// Opens what `config.log.access` names and starts the thread.
    pub fn start(config: &Config, budget: &Arc<Budget>) -> io::Result<Self> {
        let (budget, counters) = (budget.clone(), counters::register());
        let access = config.log.access.clone();
        let (out, opened): (Box<dyn Write + Send>, _) = match &access {
            Access::Off => {
                let (opened, queue, thread) = (None, None, None);
                return Ok(Self { access, opened, queue, thread, budget, counters });
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
        let thread = std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || write_all(out, drain, &counted))?;
        Ok(Self { access, opened, queue: Some(queue), thread: Some(thread), budget, counters })
    }

    /// Opens the log of a new configuration. `None`: it is the one that is open. A file that was
    /// renamed is another one, as those who rotate logs expect.
    pub fn reopen(&self, config: &Config) -> io::Result<Option<Self>> {
        let is_open = self.access == config.log.access
            && match &self.access {
                Access::Off | Access::Stdout => true,
                Access::File(path) => {
                    let there = std::fs::metadata(path).ok();
                    self.opened.is_some() && self.opened == there.as_ref().map(FileId::of)
                }
            };
        if is_open { Ok(None) } else { Self::start(config, &self.budget).map(Some) }
    }

    /// Where its lines come from.
    pub fn lines(&self) -> Lines {
        Lines(self.queue.clone())
    }

    /// The log of one worker.
    pub fn log(&self, counters: Arc<Counters>) -> Log {
        Log {
            queue: self.queue.clone(),
            batch: CountedBuffer::of(&self.budget, Account::Log),
            lines: 0,
            opening: Opening::default(),
            counters,
        }
    }

    /// Waits until every line is written, a second at most: a reader that is stuck must
    /// not keep the process. The workers' logs must be gone.
    pub fn finish(self) {
        // What fills the queue from here ends with the `map`.
        let waiting = self.queue.map(|queue| queue.drain());
        let (Some(thread), Some(waiting)) = (self.thread, waiting) else { return };
        let end = Instant::now() + FINISH_TIMEOUT;
        while !thread.is_finished() && Instant::now() < end {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        if !thread.is_finished() {
            // The reader may have got some lines of the batch that is being written.
            let lines = waiting.unwritten_lines();
            self.counters.lines_lost.add(lines);
            tracing::error!("the access log's reader is stuck: up to {lines} lines are lost");
        }
    }
}

/// Which file it is, whatever its name.
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
        tracing::warn!("nobody reads the access log {path}: its lines wait, and some are lost");
    }
    Ok(file)
}

fn write_all(mut out: Box<dyn Write + Send>, batches: Drain, counters: &Counters) {
    let mut failed = false;
    for Batch { text, lines } in batches {
        let written = out.write_all(&text).and_then(|()| out.flush());
        if let Err(error) = written {
            counters.lines_lost.add(lines);
            if !std::mem::replace(&mut failed, true) {
                tracing::error!("cannot write the access log: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_wait_have_no_more_room_than_they_need() {
        let (queue, mut drain) = queue::queue(QUEUE_BYTES_MAX);
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let mut log = Log {
            queue: Some(queue),
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
