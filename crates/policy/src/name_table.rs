//! A table of names that is small for a million of them, and the look-up of a name's suffixes.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::iter;

use foldhash::fast::RandomState;

/// Distinct texts, numbered in the order of insertion: an open-addressing hash table of numbers
/// into one list. The texts lie one after the other. A name costs its own bytes and 12 more.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameTable {
    text: String,
    /// The end of each name in `text`. A name begins where the previous one ends.
    ends: Vec<u32>,
    /// Numbers of names, each in the first free bucket from the one that its hash gives. At least
    /// half of them are `FREE`, so a missing name takes 2.5 probes on average.
    places: Vec<u32>,
    /// Keyed, because strangers choose the names that are looked up: they cannot find names with
    /// long probe sequences. The administrator chooses the names in the table.
    hasher: RandomState,
}

impl NameTable {
    /// The number of a name. It is added if it is new.
    pub(crate) fn insert(&mut self, name: &str) -> u32 {
        if self.places.len() < (self.ends.len() + 1) * PLACES_A_NAME {
            self.resize(self.places.len() * 2 + PLACES_A_NAME);
        }
        let place = self.place_of(name);
        match self.places.get_mut(place) {
            Some(number) if *number == FREE => {
                *number = index_u32(self.ends.len());
                self.text.push_str(name);
                self.ends.push(index_u32(self.text.len()));
                *number
            }
            Some(number) => *number,
            // Unreachable: half of the buckets are free.
            None => FREE,
        }
    }

    /// Gives back the memory for further names.
    pub(crate) fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
        if self.places.len() > self.ends.len() * PLACES_A_NAME {
            self.resize(self.ends.len() * PLACES_A_NAME);
        }
    }

    fn resize(&mut self, places: usize) {
        self.places = vec![FREE; places];
        for number in 0..index_u32(self.ends.len()) {
            let place = self.place_of(self.name(number));
            if let Some(place) = self.places.get_mut(place) {
                *place = number;
            }
        }
    }

    /// The number of a name that is in the table.
    #[inline]
    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        self.places.get(self.place_of(name)).copied().filter(|number| *number != FREE)
    }

    /// A name by its number; empty if there is no such name.
    pub(crate) fn name(&self, number: u32) -> &str {
        let (start, end) = self.range(number);
        self.text.get(start..end).unwrap_or_default()
    }

    fn range(&self, number: u32) -> (usize, usize) {
        let number = number as usize;
        let start = number.checked_sub(1).and_then(|before| self.ends.get(before));
        let end = self.ends.get(number).copied().unwrap_or_default();
        (start.copied().unwrap_or_default() as usize, end as usize)
    }

    /// Compares bytes, which needs no check of character boundaries.
    #[inline]
    fn is(&self, number: u32, name: &str) -> bool {
        let (start, end) = self.range(number);
        self.text.as_bytes().get(start..end) == Some(name.as_bytes())
    }

    /// The number of names.
    pub(crate) const fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bucket of a name, or the free one where it would be. The search ends, because half of
    /// the buckets are free.
    #[inline]
    fn place_of(&self, name: &str) -> usize {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(name.as_bytes());
        let hash = hasher.finish();
        // The high half of the product: even over any number of buckets.
        let first = (u128::from(hash) * self.places.len() as u128) >> 64;
        let mut place = first as usize;
        for _ in 0..=self.places.len() {
            match self.places.get(place) {
                Some(&FREE) => break,
                Some(&number) if self.is(number, name) => break,
                Some(_) => place += 1,
                None => place = 0,
            }
        }
        place
    }

    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.text.capacity() + (self.ends.capacity() + self.places.capacity()) * size_of::<u32>()
    }
}

/// The numbers of labels that some suffixes have: bit n for n labels.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Depths(u128);

impl Depths {
    /// Adds a suffix, without its first dot.
    pub(crate) fn add(&mut self, suffix: &str) {
        // A name has at most 127 labels, a suffix of one at most 126.
        self.0 |= 1_u128.checked_shl(labels(suffix)).unwrap_or(0);
    }

    /// True if there is no suffix.
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The offsets of the dots of `name` after which a suffix with such a number of labels begins,
    /// the last dot first: so the shortest suffix comes first.
    #[inline]
    pub(crate) fn dots(self, name: &str) -> impl Iterator<Item = usize> {
        let (mut rest, mut depths) = (name.as_bytes(), self.0);
        iter::from_fn(move || {
            // Without a bit above the lowest, all longer suffixes are unlisted.
            while depths > 1 {
                let dot = rest.iter().rposition(|byte| *byte == b'.')?;
                (rest, depths) = (&rest[..dot], depths >> 1);
                if depths & 1 == 1 {
                    return Some(dot);
                }
            }
            None
        })
    }
}

/// Labels of a name that is not empty: 253 bytes hold at most 127.
fn labels(name: &str) -> u32 {
    name.bytes().fold(1, |labels, byte| labels + u32::from(byte == b'.'))
}

/// A number as the tables store it. No list needs more than 32 bits.
pub(crate) fn index_u32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// The distinct items, and for each item the index of its equal.
pub(crate) fn distinct<T: Copy + Eq + Hash>(items: impl Iterator<Item = T>) -> (Vec<T>, Vec<u32>) {
    let (mut all, mut known) = (Vec::new(), HashMap::new());
    let ids = items.map(|item| {
        *known.entry(item).or_insert_with(|| {
            all.push(item);
            index_u32(all.len() - 1)
        })
    });
    let ids = ids.collect();
    (all, ids)
}

/// A free bucket: no name has this number.
const FREE: u32 = u32::MAX;

/// Buckets for each name. More would need fewer probes, but cost 4 bytes each.
const PLACES_A_NAME: usize = 2;
