//! The JA4 fingerprint of a hello. Clients are many and their kinds are few: what was hashed
//! lately is not hashed again. It must not know what a fingerprint is good for.

use std::cell::RefCell;

use aws_lc_rs::digest::{self, SHA256};
use eyelet_wire::hello::Hello;
use eyelet_wire::ja4::{Hash, Ja4, ja4_by_lists, list_hash};

/// Lists that are remembered; a kind of client has two. A power of two.
const PLACES: usize = 64;
/// Longer lists are hashed each time.
const LIST_LEN_MAX: usize = 48;

thread_local! {
    static SEEN: RefCell<Seen> = const { RefCell::new(Seen { places: Vec::new() }) };
}

/// The fingerprint of a hello.
pub fn ja4(hello: &Hello<'_>) -> Ja4 {
    SEEN.with_borrow_mut(|seen| ja4_by_lists(hello, |list| seen.hash(list)))
}

fn hashed(list: &[u16]) -> Hash {
    list_hash(list, |text| {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest::digest(&SHA256, text).as_ref());
        hash
    })
}

/// Hashes of the lists that were seen last, each list in the one place that it can have.
struct Seen {
    /// None until the first hello, then all, some 7 KiB: a burst's heap is not strewn with them.
    places: Vec<Place>,
}

#[derive(Clone, Copy)]
struct Place {
    list: [u16; LIST_LEN_MAX],
    /// No list is empty, so none is found where this is 0.
    len: u8,
    hash: Hash,
}

impl Seen {
    fn hash(&mut self, list: &[u16]) -> Hash {
        if self.places.is_empty() {
            self.places = vec![Place { list: [0; LIST_LEN_MAX], len: 0, hash: [0; 12] }; PLACES];
        }
        let Some(place) = self.places.get_mut(place_of(list)) else { return hashed(list) };
        // The whole list is compared: another of the same place is another client.
        if place.list.get(..usize::from(place.len)) == Some(list) {
            return place.hash;
        }
        let hash = hashed(list);
        if let Some(room) = place.list.get_mut(..list.len()) {
            room.copy_from_slice(list);
            (place.len, place.hash) = (list.len() as u8, hash);
        }
        hash
    }
}

fn place_of(list: &[u16]) -> usize {
    let sum =
        list.iter().fold(0_u32, |sum, value| sum.wrapping_mul(31).wrapping_add((*value).into()));
    // 2^32 over the golden ratio: the upper bits depend on all the lower ones.
    (sum.wrapping_mul(0x9e37_79b9) >> (u32::BITS - PLACES.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_its_own_hash_whoever_had_its_place() {
        let mut seen = Seen { places: Vec::new() };
        // More lists than places, of every length that is remembered and of some that are not.
        let lists: Vec<Vec<u16>> =
            (0..300).map(|n: u16| (0..=n % 60).map(|i| i * 7 + n + 1).collect()).collect();
        for list in lists.iter().chain(&lists).chain(lists.iter().rev()) {
            for _ in 0..2 {
                assert_eq!(seen.hash(list), hashed(list));
            }
        }
        let taken = seen.places.iter().filter(|place| place.len > 0).count();
        assert!(taken > PLACES / 2, "{taken} of {PLACES}");
    }

    #[test]
    fn the_beginning_of_a_list_is_another_list() {
        let mut seen = Seen { places: Vec::new() };
        // Zeros in front do not change the place.
        for list in [&[0, 0, 5][..], &[0, 5], &[5], &[0, 5]] {
            assert_eq!(place_of(list), place_of(&[5]));
            assert_eq!(seen.hash(list), hashed(list));
        }
    }
}
