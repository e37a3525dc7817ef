//! What workers and the thread that speaks to the other process say to each other while connections
//! move from one process to another.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use eyelet_sys::channel::DESCRIPTORS_MAX;
use tokio::sync::mpsc;
use zeroize::Zeroizing;

/// Descriptors of one batch: those of one message.
pub const BATCH_DESCRIPTORS_MAX: usize = DESCRIPTORS_MAX;
/// A batch with more bytes of state than this takes no more connections. An idle connection has
/// some hundred bytes, one with a slow peer some hundred KiB.
pub const BATCH_BYTES: usize = 4 << 20;

/// Parked connections that another process has sent.
pub struct ConnectionBatch {
    /// Their states, which are secret.
    pub states: Zeroizing<Vec<u8>>,
    /// Their sockets, in the order of the states.
    pub sockets: Vec<OwnedFd>,
}

/// Parked connections on their way to another process.
pub struct LeavingBatch {
    /// Their states, which are secret.
    pub states: Zeroizing<Vec<u8>>,
    /// Their sockets, in the order of the states. The worker has them too: duplicates would need
    /// free descriptors, and an upgrade must work where none is left.
    pub sockets: Vec<Arc<OwnedFd>>,
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
        batch: LeavingBatch,
    },
    /// Everything that was parked has left, or the other process takes no more. What is still
    /// active follows when it is parked.
    Passed,
    /// This worker has no connection left, or drains what it has. It waits for
    /// [`BatchAnswer::Over`], unless it drains.
    Left,
}

/// What became of a worker's batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchAnswer {
    /// The other process owns the connections, except for those with these indexes, which it has
    /// dropped. This process never touches the others again.
    Committed {
        /// In ascending order.
        refused: Vec<usize>,
    },
    /// The other process takes none of them, and no others.
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
    /// Most descriptors of a batch: as many as the other process keeps free for one.
    pub descriptors_max: usize,
    /// Their answers. The end of this queue means that the other process is dead: the worker takes
    /// its batch back and serves on.
    pub answers: mpsc::Receiver<BatchAnswer>,
}
