//! What many parked connections have in common, once each, in chunks of its own: what lives for
//! hours must not lie strewn among what lives for a handshake, where each piece of it would keep a
//! page. It must not know what is shared.

use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZeroU32;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

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

/// Values, each with the number of those who share it.
pub struct Shares<T> {
    values: Slab<Counted<T>>,
    /// By the hash of what is in each place.
    places: HashTable<Place>,
    /// Keyed: names are chosen by peers.
    hasher: RandomState,
}

struct Counted<T> {
    sharers: u32,
    value: T,
}

impl<T> Default for Shares<T> {
    fn default() -> Self {
        Self { values: Slab::default(), places: HashTable::new(), hasher: RandomState::default() }
    }
}

impl<T: Eq + Hash> Shares<T> {
    /// Whether nobody shares anything.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The place of an equal value, or of this one from now on; [`Shares::give`] gives it up.
    pub fn share(&mut self, value: T) -> Place {
        let Self { values, places, hasher } = self;
        let hash = hasher.hash_one(&value);
        let is_equal =
            |place: &Place| values.get(place.index()).is_some_and(|counted| counted.value == value);
        if let Some(place) = places.find(hash, is_equal).copied() {
            if let Some(counted) = values.at(place.index()) {
                counted.sharers += 1;
            }
            return place;
        }
        let place = Place::of(values.insert(Counted { sharers: 1, value }).index);
        places.insert_unique(hash, place, |place| hash_at(values, hasher, *place));
        place
    }

    /// The value in a place that was not given up.
    pub fn get(&self, place: Place) -> Option<&T> {
        self.values.get(place.index()).map(|counted| &counted.value)
    }

    /// Gives a place up; the value goes with the last who shared it.
    pub fn give(&mut self, place: Place) {
        let Self { values, places, hasher } = self;
        let Some(counted) = values.at(place.index()) else { return };
        counted.sharers -= 1;
        if counted.sharers > 0 {
            return;
        }
        let hash = hasher.hash_one(&counted.value);
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
    }
}

fn hash_at<T: Hash>(values: &Slab<Counted<T>>, hasher: &RandomState, place: Place) -> u64 {
    values.get(place.index()).map_or(0, |counted| hasher.hash_one(&counted.value))
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

    #[test]
    fn a_value_is_there_once_and_as_long_as_one_shares_it() {
        let mut shares = Shares::default();
        let places: Vec<Place> = (0..5_000).map(|n| shares.share(n % 2_500)).collect();
        assert_eq!(places[..2_500], places[2_500..]);
        for (n, place) in places.iter().enumerate().take(2_500) {
            shares.give(*place);
            assert_eq!(shares.get(*place), Some(&n), "another has it still");
        }
        for place in &places[2_500..] {
            shares.give(*place);
        }
        assert!(shares.is_empty() && shares.places.is_empty());
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
