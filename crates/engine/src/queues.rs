//! The queues that say who makes room first: positions in them, the newest of which counts.
//! It must not know when room is needed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use eyelet_memory::slab::Key;

/// A place in the queue of those that make room. A connection that comes back has a new one, and
/// the older ones count no more: its age is counted from when it was last there.
#[derive(Clone, Copy)]
pub struct Place {
    pub(crate) key: Key,
    /// [`Entry::place`], as it was then.
    pub(crate) place: u16,
}

/// Such a queue: the oldest first, and some that do not count any more.
#[derive(Default)]
pub struct Queue {
    pub(crate) places: RefCell<VecDeque<Place>>,
    /// How many counted when it was last tidied.
    pub(crate) kept: Cell<usize>,
}

/// Gives a connection a place behind all others.
pub fn queue(queue: &Queue, key: Key, place: &mut u16) {
    *place = place.wrapping_add(1);
    queue.places.borrow_mut().push_back(Place { key, place: *place });
}

/// A parked connection that holds bytes for a peer.
pub struct Holder {
    pub(crate) key: Key,
    /// The tick since which it did, when it was queued. Later where the peer took them meanwhile.
    pub(crate) since: u32,
}
