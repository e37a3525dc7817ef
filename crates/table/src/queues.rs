//! The queues that decide which connection is shed first. A connection may have several positions;
//! only the newest counts.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use eyelet_memory::slab::Key;

/// A queue is tidied when it has doubled, but not below this many positions (12 KiB).
pub const STALE_MAX: usize = 1024;

/// A position in a shed queue. A connection that comes back gets a new one, and its older ones are
/// stale: its age counts from when it last came.
#[derive(Clone, Copy)]
pub struct ShedPosition {
    pub key: Key,
    /// The position of its slot, as it was then.
    pub position: u16,
}

/// A shed queue, oldest first. Some positions are stale.
#[derive(Default)]
pub struct ShedQueue {
    pub positions: RefCell<VecDeque<ShedPosition>>,
    /// Positions that were left when it was last tidied.
    pub kept: Cell<usize>,
}

/// Puts a connection at the end of a queue.
pub fn queue(queue: &ShedQueue, key: Key, position: &mut u16) {
    *position = position.wrapping_add(1);
    queue.positions.borrow_mut().push_back(ShedPosition { key, position: *position });
}

/// A parked connection that holds nothing for a peer, as the search for such ones has found it.
pub struct IdlePosition {
    pub key: Key,
    /// Its deadline then: one that moved meanwhile was not idle.
    pub due: u32,
    pub kind: IdleKind,
}

/// Those of the first kind end first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IdleKind {
    /// It has a state of the program, and is settled: its deadline says since when it is idle.
    StateSettled,
    /// It has a state of the program, and was parked just now.
    StateNew,
    /// Without a state, or with streams that are served. It ends for others only where the
    /// configuration allows that.
    Plain,
}

/// A parked connection that holds bytes for a peer.
pub struct Holder {
    pub key: Key,
    /// The tick since which it did, when it was queued. Later if the peer took them meanwhile.
    pub since: u32,
}

/// Parked connections that hold bytes for a peer, longest first. Some positions are stale.
#[derive(Default)]
pub struct Holders {
    pub positions: VecDeque<Holder>,
    /// The number of holders when it was last tidied.
    kept: usize,
}

impl Holders {
    /// Once the queue has doubled, keeps only those for which `holds` is true. Each is so looked at
    /// twice at most, and the queue is never longer than twice the holders, or [`STALE_MAX`].
    pub fn tidy(&mut self, holds: impl FnMut(&Holder) -> bool) {
        self.kept = self.kept.min(self.positions.len());
        if self.positions.len() >= STALE_MAX.max(2 * self.kept) {
            self.positions.retain(holds);
            self.kept = self.positions.len();
        }
        // The memory of a flood's queue is not kept for ever.
        let room = 2 * self.positions.len().max(STALE_MAX);
        if self.positions.capacity() > 2 * room {
            self.positions.shrink_to(room);
        }
    }
}
