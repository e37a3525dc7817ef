//! Streams on which exchanges of parked connections rest: they are of upstream connections that
//! other clients share, so no socket of theirs is here. The program keeps them as it likes. The
//! table owns that, so that they end with their connection, and a worker counts them.

use std::any::Any;
use std::collections::HashMap;

use eyelet_memory::budget::UPSTREAM_RESTING_BYTES;
use eyelet_memory::slab::Key;
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
pub const SHARED_BYTES: usize = 2 * (size_of::<(Key, Entry)>() + 1);

/// Bytes that so many streams of one connection take, here and where they count themselves.
pub fn shared_bytes(count: usize) -> usize {
    if count == 0 { 0 } else { SHARED_BYTES + count * UPSTREAM_RESTING_BYTES }
}

/// The streams of a worker's parked connections, by their keys.
#[derive(Default)]
pub(crate) struct SharedStreams {
    all: HashMap<Key, Entry, RandomState>,
}

impl SharedStreams {
    /// Bytes of all entries. The streams count themselves.
    pub(crate) fn bytes(&self) -> usize {
        self.all.len() * SHARED_BYTES
    }

    /// Streams of a connection.
    pub(crate) fn count(&self, key: Key) -> usize {
        // Most workers have none, and each connection that ends comes here.
        if self.all.is_empty() {
            return 0;
        }
        self.all.get(&key).map_or(0, |entry| entry.count as usize)
    }

    /// True if something has come for one of them.
    pub(crate) fn is_called(&self, key: Key) -> bool {
        !self.all.is_empty() && self.all.get(&key).is_some_and(|entry| entry.is_called)
    }

    /// Notes that something has come for one of a connection's. Returns whether it has some.
    pub(crate) fn call(&mut self, key: Key) -> bool {
        self.all.get_mut(&key).map(|entry| entry.is_called = true).is_some()
    }

    /// Adds those of a connection. Returns those that it had.
    pub(crate) fn insert(
        &mut self,
        key: Key,
        count: u32,
        kept: KeptStreams,
    ) -> Option<KeptStreams> {
        self.all.insert(key, Entry { count, is_called: false, kept }).map(|earlier| earlier.kept)
    }

    /// Returns those of a connection, as the program keeps them.
    pub(crate) fn kept(&self, key: Key) -> Option<&KeptStreams> {
        self.all.get(&key).map(|entry| &entry.kept)
    }

    /// Takes those of a connection.
    pub(crate) fn remove(&mut self, key: Key) -> Option<KeptStreams> {
        if self.all.is_empty() {
            return None;
        }
        let removed = self.all.remove(&key)?;
        // What a burst had is not kept.
        if self.all.len() < self.all.capacity() / 4 {
            self.all.shrink_to_fit();
        }
        Some(removed.kept)
    }
}
