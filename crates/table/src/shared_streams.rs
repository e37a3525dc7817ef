//! Streams on which exchanges of parked connections rest: they are of upstream connections that
//! other clients share, so no socket of theirs is here. The program keeps them as it likes. The
//! table owns that, so that they end with their connection, and a worker counts them.

use std::any::Any;
use std::collections::HashMap;

use eyelet_memory::budget::UPSTREAM_RESTING_BYTES;
use eyelet_sys::memory::blocks::LongBox;
use foldhash::fast::RandomState;

/// The streams of one connection, as the program keeps them: in pages for what lives long.
pub type KeptStreams = LongBox<dyn Any>;

struct Entry {
    count: u32,
    /// True if something has come for one of them.
    is_called: bool,
    kept: KeptStreams,
}

/// Bytes of one connection's entry, where the map is half full.
pub const SHARED_BYTES: usize = 2 * (size_of::<(u32, Entry)>() + 1);

/// Bytes that so many streams of one connection take, here and where they count themselves.
pub fn shared_bytes(count: usize) -> usize {
    if count == 0 { 0 } else { SHARED_BYTES + count * UPSTREAM_RESTING_BYTES }
}

/// The streams of a worker's parked connections, by the indexes of their slots.
#[derive(Default)]
pub(crate) struct SharedStreams {
    all: HashMap<u32, Entry, RandomState>,
}

impl SharedStreams {
    /// Bytes of all entries. The streams count themselves.
    pub(crate) fn bytes(&self) -> usize {
        self.all.len() * SHARED_BYTES
    }

    /// Streams of a slot.
    pub(crate) fn count(&self, index: u32) -> usize {
        // Most workers have none, and each connection that ends comes here.
        if self.all.is_empty() {
            return 0;
        }
        self.all.get(&index).map_or(0, |entry| entry.count as usize)
    }

    /// True if something has come for one of them.
    pub(crate) fn is_called(&self, index: u32) -> bool {
        !self.all.is_empty() && self.all.get(&index).is_some_and(|entry| entry.is_called)
    }

    /// Notes that something has come for one of a slot's. Returns whether it has some.
    pub(crate) fn call(&mut self, index: u32) -> bool {
        self.all.get_mut(&index).map(|entry| entry.is_called = true).is_some()
    }

    /// Adds those of a slot that has none.
    pub(crate) fn insert(&mut self, index: u32, count: u32, kept: KeptStreams) {
        self.all.insert(index, Entry { count, is_called: false, kept });
    }

    /// Returns those of a slot, as the program keeps them.
    pub(crate) fn kept(&self, index: u32) -> Option<&KeptStreams> {
        self.all.get(&index).map(|entry| &entry.kept)
    }

    /// Takes those of a slot.
    pub(crate) fn remove(&mut self, index: u32) -> Option<KeptStreams> {
        if self.all.is_empty() {
            return None;
        }
        let removed = self.all.remove(&index)?;
        // What a burst had is not kept.
        if self.all.len() < self.all.capacity() / 4 {
            self.all.shrink_to_fit();
        }
        Some(removed.kept)
    }
}
