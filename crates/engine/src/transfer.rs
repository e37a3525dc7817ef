//! What workers and the thread that speaks to the other process say to each other while connections
//! move from one process to another.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use eyelet_sys::channel::DESCRIPTORS_MAX;
use eyelet_telemetry::counters::Counters;
use tokio::sync::mpsc::{self, channel};
use tokio::sync::oneshot;
use zeroize::Zeroizing;

/// Descriptors of one batch: those of one message.
pub const BATCH_DESCRIPTORS_MAX: usize = DESCRIPTORS_MAX;
/// A batch with more bytes of state than this takes no more connections. An idle connection has
/// some hundred bytes, one with a slow peer some hundred KiB.
pub const BATCH_BYTES: usize = 4 << 20;
/// What a worker can have in the queue: one batch, and the notes that all has passed and that it
/// has left.
const LEAVING_MAX: usize = 3;

/// Parked connections on their way to another process.
pub struct ConnectionBatch {
    /// Their states, which are secret.
    pub states: Zeroizing<Vec<u8>>,
    /// Their sockets, in the order of the states.
    pub sockets: Vec<OwnedFd>,
}

/// What a worker of the earlier process says.
pub enum Leaving {
    /// The worker with this index has detached these connections. It keeps a copy, which nobody
    /// touches, and waits for the [`BatchAnswer`].
    Batch {
        /// The worker.
        worker: usize,
        /// How many connections these are.
        connections: usize,
        /// The connections.
        batch: ConnectionBatch,
    },
    /// Everything that was parked has left, or the other process takes no more. What is still
    /// active follows when it is parked.
    Passed,
    /// This worker has no connection left, or drains what it has. It waits for
    /// [`BatchAnswer::Over`], unless it drains.
    Left,
}

/// What became of a worker's batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchAnswer {
    /// The other process owns the connections. This process never touches them again.
    Committed,
    /// The other process cannot read them, and has dropped them.
    Refused,
    /// All workers have left: the worker ends.
    Over,
}

/// How a worker leaves: what it gets with [`Order::HandOver`](crate::worker::Order::HandOver).
pub struct Departure {
    /// The listening sockets that the other process accepts from now.
    pub kept: Arc<[Arc<OwnedFd>]>,
    /// Where its batches go. It has one on the way at most.
    pub batches: SyncSender<Leaving>,
    /// Their answers. The end of this queue means that the other process is dead: the worker takes
    /// its batch back and serves on.
    pub answers: mpsc::Receiver<BatchAnswer>,
    /// How long what is active may take, at most `drain_timeout`.
    pub active_max: Duration,
}

/// How so many workers leave, where their answers go, and where they are heard.
pub fn departures(
    workers: usize,
    kept: &Arc<[Arc<OwnedFd>]>,
    active_max: Duration,
) -> (Vec<Departure>, Vec<mpsc::Sender<BatchAnswer>>, Receiver<Leaving>) {
    let (batches, leaving) = sync_channel(LEAVING_MAX * workers);
    let each = (0..workers).map(|_| {
        let (answer, answers) = channel(1);
        let (kept, batches) = (kept.clone(), batches.clone());
        (Departure { kept, batches, answers, active_max }, answer)
    });
    let (departures, answers) = each.unzip();
    (departures, answers, leaving)
}

/// Has all workers give up what they have, until they have left. `keep` gets each batch; it returns
/// whether it has room for it. Returns how many connections it has kept, and whether it had no room
/// for others, which end.
///
/// # Errors
/// The error of `keep`, or `TimedOut`. Workers then take back what they have not given up.
pub fn collect(
    departures: (Vec<mpsc::Sender<BatchAnswer>>, Receiver<Leaving>),
    end: Instant,
    mut keep: impl FnMut(&ConnectionBatch) -> io::Result<bool>,
) -> io::Result<(usize, bool)> {
    let (answers, leaving) = departures;
    let (mut kept, mut is_full, mut active) = (0, false, answers.len());
    while active > 0 {
        match leaving.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Leaving::Batch { worker, connections, batch }) => {
                let answer = if keep(&batch)? {
                    kept += connections;
                    BatchAnswer::Committed
                } else {
                    is_full = true;
                    BatchAnswer::Refused
                };
                if let Some(worker) = answers.get(worker) {
                    // The worker waits for it, or it has ended.
                    let _ = worker.try_send(answer);
                }
            }
            Ok(Leaving::Passed) => {}
            Ok(Leaving::Left) => active -= 1,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => return Err(ErrorKind::TimedOut.into()),
        }
    }
    for worker in &answers {
        // One that drains does not wait for it.
        let _ = worker.try_send(BatchAnswer::Over);
    }
    Ok((kept, is_full))
}

/// Where connections of an earlier process arrive: for each worker a queue and its counters.
pub type Arrivals = Vec<(mpsc::Sender<Arrival>, Arc<Counters>)>;
/// How many connections a worker has read, and what has it serve them. Otherwise why they cannot be
/// read.
pub type ReadBatch = Result<(usize, oneshot::Sender<()>), String>;

/// Has the worker with the fewest connections read a batch, within this time.
///
/// # Errors
/// If no worker is left, or it is too slow.
pub fn arrive(
    workers: &Arrivals,
    batch: ConnectionBatch,
    within: Duration,
) -> io::Result<ReadBatch> {
    let least = workers.iter().min_by_key(|(_, counters)| counters.connections.value());
    let (read, is_read) = sync_channel(1);
    let (commit, committed) = oneshot::channel();
    let sent = least.map(|(worker, _)| worker.blocking_send(Arrival { batch, read, committed }));
    if !matches!(sent, Some(Ok(()))) {
        return Err(ErrorKind::BrokenPipe.into());
    }
    match is_read.recv_timeout(within) {
        Ok(read) => Ok(read.map(|connections| (connections, commit))),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            Err(ErrorKind::TimedOut.into())
        }
    }
}

/// A batch that arrives in a worker of the new process.
pub struct Arrival {
    /// The connections.
    pub batch: ConnectionBatch,
    /// Gets the number of the connections, or the reason if they cannot be read.
    pub read: SyncSender<Result<usize, String>>,
    /// Says that the other process has given the connections up. They must not be touched before.
    pub committed: oneshot::Receiver<()>,
}
