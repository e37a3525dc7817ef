//! The dynamic table (RFC 7541 section 2.3.2): what one direction's encoder has inserted. The texts
//! of all entries are in one buffer.

use std::collections::VecDeque;
use std::fmt;

/// Bytes that each entry counts besides its texts (RFC 7541 section 4.1).
pub(crate) const ENTRY_BYTES: usize = 32;
/// The largest table of either direction: the size that HTTP/2 begins with (RFC 9113 6.5.2). A
/// peer may allow more, which is not used, and no more is announced.
pub const TABLE_BYTES_MAX: u16 = 4096;

/// An entry. Its texts are behind each other in the buffer.
#[derive(Clone, Copy, Debug)]
struct TableEntry {
    at: u32,
    name_len: u16,
    value_len: u16,
}

impl TableEntry {
    fn size(self) -> usize {
        usize::from(self.name_len) + usize::from(self.value_len) + ENTRY_BYTES
    }

    fn texts(self, bytes: &[u8]) -> (&[u8], &[u8]) {
        let name_end = self.at as usize + usize::from(self.name_len);
        let name = bytes.get(self.at as usize..name_end);
        let value = bytes.get(name_end..name_end + usize::from(self.value_len));
        (name.unwrap_or_default(), value.unwrap_or_default())
    }
}

/// The table. `size <= size_max <= TABLE_BYTES_MAX`.
pub(crate) struct DynamicTable {
    /// The oldest first.
    entries: VecDeque<TableEntry>,
    /// The texts. Those before the oldest entry's are of evicted entries.
    bytes: Vec<u8>,
    size: usize,
    size_max: u16,
}

/// The texts may be secrets.
impl fmt::Debug for DynamicTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamicTable")
            .field("entries", &self.entries.len())
            .field("size", &self.size)
            .field("size_max", &self.size_max)
            .finish()
    }
}

impl DynamicTable {
    pub(crate) fn new(size_max: u16) -> Self {
        let size_max = size_max.min(TABLE_BYTES_MAX);
        Self { entries: VecDeque::new(), bytes: Vec::new(), size: 0, size_max }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of memory of its texts.
    #[cfg(test)]
    pub(crate) fn held_texts(&self) -> usize {
        self.bytes.capacity()
    }

    pub(crate) fn size_max(&self) -> u16 {
        self.size_max
    }

    /// The entry at an index, counted from 0, the newest first.
    pub(crate) fn entry(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let place = self.entries.len().checked_sub(index + 1)?;
        Some(self.entries.get(place)?.texts(&self.bytes))
    }

    /// The index of an entry with this name and value, or else of one with this name, and whether
    /// the value is equal too.
    pub(crate) fn find(&self, name: &[u8], value: &[u8]) -> Option<(usize, bool)> {
        let mut named = None;
        for (index, entry) in self.entries.iter().rev().enumerate() {
            if usize::from(entry.name_len) != name.len() {
                continue;
            }
            let (its_name, its_value) = entry.texts(&self.bytes);
            if its_name == name {
                if its_value == value {
                    return Some((index, true));
                }
                named.get_or_insert((index, false));
            }
        }
        named
    }

    /// Inserts an entry and evicts old ones. One that is larger than the table empties it (RFC 7541
    /// section 4.4).
    pub(crate) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + ENTRY_BYTES;
        self.evict(usize::from(self.size_max).saturating_sub(size));
        // Both lengths are below `size_max`, so they fit.
        let lens = (u16::try_from(name.len()), u16::try_from(value.len()));
        let (true, (Ok(name_len), Ok(value_len))) = (size <= usize::from(self.size_max), lens)
        else {
            return;
        };
        self.make_room(name.len() + value.len());
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.entries.push_back(TableEntry { at, name_len, value_len });
        self.size += size;
    }

    /// Changes the largest size and evicts what does not fit.
    pub(crate) fn set_size_max(&mut self, size_max: u16) {
        self.size_max = size_max.min(TABLE_BYTES_MAX);
        self.evict(usize::from(self.size_max));
    }

    fn evict(&mut self, size_max: usize) {
        while self.size > size_max
            && let Some(oldest) = self.entries.pop_front()
        {
            self.size -= oldest.size();
        }
    }

    /// Moves the texts to the front if the buffer would grow, and frees evicted ones. What is left
    /// fits into the table with `more`, so the buffer never has more bytes than the largest table,
    /// whose size is a power of two.
    fn make_room(&mut self, more: usize) {
        if self.bytes.len() + more <= self.bytes.capacity() {
            return;
        }
        let first = self.entries.front().map_or(self.bytes.len(), |oldest| oldest.at as usize);
        self.bytes.drain(..first);
        for entry in &mut self.entries {
            entry.at -= first as u32;
        }
        let whole = (self.bytes.len() + more).next_power_of_two();
        self.bytes.reserve_exact(whole - self.bytes.len());
    }
}
