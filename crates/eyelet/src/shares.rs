//! What many parked connections have in common, once each, in chunks of its own: what lives for
//! hours must not lie strewn among what lives for a handshake, where each piece of it would keep a
//! page. It must not know what is shared.

use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZeroU32;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::budget::{Account, Budget, Counted};
use crate::slab::Slab;

/// Where a value is, for those who share it: its place in the slab, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(NonZeroU32);

impl Place {
    fn of(index: u32) -> Self {
        // A slab of 2^32 - 1 entries would be larger than any memory.
        Self(NonZeroU32::MIN.saturating_add(index))
    }

    fn index(self) -> u32 {
        self.0.get() - 1
    }
}

/// A value that may hold memory beside itself.
pub trait Heap {
    /// Bytes on the heap that it holds.
    fn heap_bytes(&self) -> usize;
}

/// Values, each with the number of those who share it. Counted once, by what each value takes in
/// its slot and on the heap.
pub struct Shares<T> {
    values: Slab<Shared<T>>,
    /// By the hash of what is in each place.
    places: HashTable<Place>,
    /// Keyed: names are chosen by peers.
    hasher: RandomState,
    counted: Counted,
    bytes: usize,
}

struct Shared<T> {
    sharers: u32,
    value: T,
}

impl<T: Eq + Hash + Heap> Shares<T> {
    /// A value's slot with its generation, and its place in a table that is half full.
    const SLOT_BYTES: usize = size_of::<Option<Shared<T>>>() + 4 + 2 * (size_of::<Place>() + 1);

    /// No value yet.
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self {
            values: Slab::default(),
            places: HashTable::new(),
            hasher: RandomState::default(),
            counted: Counted::of(budget, Account::Texts, 0),
            bytes: 0,
        }
    }

    /// Whether nobody shares anything.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The place of an equal value, or of this one from now on; [`Shares::give`] gives it up.
    pub fn share(&mut self, value: T) -> Place {
        let Self { values, places, hasher, .. } = self;
        let hash = hasher.hash_one(&value);
        let is_equal =
            |place: &Place| values.get(place.index()).is_some_and(|shared| shared.value == value);
        if let Some(place) = places.find(hash, is_equal).copied() {
            if let Some(shared) = values.at(place.index()) {
                shared.sharers += 1;
            }
            return place;
        }
        let bytes = Self::SLOT_BYTES + value.heap_bytes();
        let place = Place::of(values.insert(Shared { sharers: 1, value }).index);
        places.insert_unique(hash, place, |place| hash_at(values, hasher, *place));
        self.count(self.bytes + bytes);
        place
    }

    /// The value in a place that was not given up.
    pub fn get(&self, place: Place) -> Option<&T> {
        self.values.get(place.index()).map(|shared| &shared.value)
    }

    /// Gives a place up; the value goes with the last who shared it.
    pub fn give(&mut self, place: Place) {
        let Self { values, places, hasher, .. } = self;
        let Some(shared) = values.at(place.index()) else { return };
        shared.sharers -= 1;
        if shared.sharers > 0 {
            return;
        }
        let bytes = Self::SLOT_BYTES + shared.value.heap_bytes();
        let hash = hasher.hash_one(&shared.value);
        if let Ok(found) = places.find_entry(hash, |other| *other == place) {
            found.remove();
        }
        if let Some(key) = values.key_at(place.index()) {
            values.remove(key);
        }
        // A table that held a burst's names would keep its size for life.
        if places.len() * 4 < places.capacity() {
            places.shrink_to(places.len() * 2, |place| hash_at(values, hasher, *place));
        }
        self.count(self.bytes - bytes);
    }

    fn count(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.counted.set(bytes);
    }
}

fn hash_at<T: Hash>(values: &Slab<Shared<T>>, hasher: &RandomState, place: Place) -> u64 {
    values.get(place.index()).map_or(0, |shared| hasher.hash_one(&shared.value))
}

/// Bytes of a name that are kept in place. Names of hosts are mostly shorter.
const SHORT_BYTES: usize = 46;

/// A name in 48 bytes, without memory of its own unless it is a long one.
#[derive(Clone, Debug)]
pub enum Name {
    /// So many bytes of these.
    Short(u8, [u8; SHORT_BYTES]),
    /// More than would fit.
    Long(Box<str>),
}

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        match self {
            // It was text when it was put there.
            Self::Short(len, bytes) => bytes
                .get(..usize::from(*len))
                .and_then(|name| std::str::from_utf8(name).ok())
                .unwrap_or_default(),
            Self::Long(name) => name,
        }
    }
}

impl Heap for Name {
    fn heap_bytes(&self) -> usize {
        match self {
            Self::Short(..) => 0,
            Self::Long(name) => name.len(),
        }
    }
}

impl From<Box<str>> for Name {
    fn from(name: Box<str>) -> Self {
        let mut bytes = [0; SHORT_BYTES];
        match bytes.get_mut(..name.len()) {
            Some(room) => {
                room.copy_from_slice(name.as_bytes());
                Self::Short(name.len() as u8, bytes)
            }
            None => Self::Long(name),
        }
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Heap for usize {
        fn heap_bytes(&self) -> usize {
            100
        }
    }

    #[test]
    fn a_value_is_there_once_and_as_long_as_one_shares_it() {
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let mut shares = Shares::new(&budget);
        let places: Vec<Place> = (0..5_000_usize).map(|n| shares.share(n % 2_500)).collect();
        let counted = budget.used();
        assert!((2_500 * (100 + 16)..2_500 * (100 + 64)).contains(&counted), "{counted}");
        assert_eq!(places[..2_500], places[2_500..]);
        for (n, place) in places.iter().enumerate().take(2_500) {
            shares.give(*place);
            assert_eq!(shares.get(*place), Some(&n), "another has it still");
        }
        for place in &places[2_500..] {
            shares.give(*place);
        }
        assert!(shares.is_empty() && shares.places.is_empty() && budget.used() == 0);
        assert!(shares.places.capacity() < 100, "{}", shares.places.capacity());
    }

    #[test]
    fn a_name_comes_back_whatever_its_length() {
        assert_eq!((size_of::<Name>(), size_of::<Option<Name>>()), (48, 48));
        for len in [0, 1, SHORT_BYTES, SHORT_BYTES + 1, 253] {
            let text: Box<str> = "n".repeat(len).into();
            let name = Name::from(text.clone());
            assert_eq!(name.as_str(), &*text);
            assert_eq!(matches!(name, Name::Short(..)), len <= SHORT_BYTES);
        }
    }
}
