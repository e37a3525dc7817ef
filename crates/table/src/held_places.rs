//! The places of held streams of parked connections: each stream waits there for its verdict. A
//! connection without any takes no memory here.

use std::collections::HashMap;

use eyelet_hold::{HeldStreams, HoldPlace};
use eyelet_memory::slab::Key;
use foldhash::fast::RandomState;

/// Bytes of one connection's entry, where the map is half full.
const ENTRY_BYTES: usize = 2 * (size_of::<(Key, HeldStreams)>() + 1);

/// Bytes that the places of so many held streams of one connection take.
pub fn held_bytes(count: usize) -> usize {
    if count == 0 { 0 } else { ENTRY_BYTES + count * size_of::<Option<HoldPlace>>() }
}

/// The places of a worker's parked connections, by their keys.
#[derive(Default)]
pub(crate) struct HeldPlaces {
    all: HashMap<Key, HeldStreams, RandomState>,
    /// The sum of [`held_bytes`].
    bytes: usize,
}

impl HeldPlaces {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The places of a connection, in their order.
    pub(crate) fn of(&self, key: Key) -> &[Option<HoldPlace>] {
        // Most workers have none, and each connection that ends comes here.
        if self.all.is_empty() {
            return &[];
        }
        self.all.get(&key).map(Vec::as_slice).unwrap_or_default()
    }

    /// The places of all connections.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Option<HoldPlace>> {
        self.all.values_mut().flatten()
    }

    /// The connections for whose places `is` is true.
    pub(crate) fn keys(&self, is: impl Fn(&[Option<HoldPlace>]) -> bool) -> Vec<Key> {
        self.all.iter().filter(|(_, places)| is(places)).map(|(key, _)| *key).collect()
    }

    /// Adds the places of a connection, instead of those that it has.
    pub(crate) fn insert(&mut self, key: Key, mut places: HeldStreams) {
        if !places.is_empty() {
            places.shrink_to_fit();
            self.bytes += held_bytes(places.len());
            let earlier = self.all.insert(key, places).unwrap_or_default();
            self.bytes -= held_bytes(earlier.len());
        }
    }

    /// Takes those of a connection.
    pub(crate) fn remove(&mut self, key: Key) -> HeldStreams {
        if self.all.is_empty() {
            return Vec::new();
        }
        let removed = self.all.remove(&key).unwrap_or_default();
        self.bytes -= held_bytes(removed.len());
        // What a burst had is not kept.
        if self.all.len() < self.all.capacity() / 4 {
            self.all.shrink_to_fit();
        }
        removed
    }
}
