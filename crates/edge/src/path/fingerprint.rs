//! The JA4 fingerprint of a hello. There are few kinds of clients, so recent hashes are cached.

use std::cell::RefCell;

use aws_lc_rs::digest::{self, SHA256};
use eyelet_wire::hello::Hello;
use eyelet_wire::ja4::{HashPrefix, Ja4, ja4_by_lists, list_hash};

/// Lists in the cache; each kind of client has two. A power of two.
const CACHE_LISTS: usize = 64;
/// Longer lists are hashed each time.
const LIST_LEN_MAX: usize = 48;

thread_local! {
    static SEEN: RefCell<Seen> = const { RefCell::new(Seen { cache: Vec::new() }) };
}

/// The fingerprint of a hello.
pub fn ja4(hello: &Hello<'_>) -> Ja4 {
    SEEN.with_borrow_mut(|seen| ja4_by_lists(hello, |list| seen.hash(list)))
}

fn hashed(list: &[u16]) -> HashPrefix {
    list_hash(list, |text| {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest::digest(&SHA256, text).as_ref());
        hash
    })
}

/// Direct-mapped cache of the hashes of recent lists.
struct Seen {
    /// Empty until the first hello, then filled at once (about 7 KiB): single allocations would be
    /// scattered over a burst's heap.
    cache: Vec<CachedList>,
}

#[derive(Clone, Copy)]
struct CachedList {
    list: [u16; LIST_LEN_MAX],
    /// 0 is an empty slot: no list is empty.
    len: u8,
    hash: HashPrefix,
}

impl Seen {
    fn hash(&mut self, list: &[u16]) -> HashPrefix {
        if self.cache.is_empty() {
            self.cache =
                vec![CachedList { list: [0; LIST_LEN_MAX], len: 0, hash: [0; 12] }; CACHE_LISTS];
        }
        let Some(cached) = self.cache.get_mut(cell_of(list)) else { return hashed(list) };
        // The whole list is compared: different lists can share a slot.
        if cached.list.get(..usize::from(cached.len)) == Some(list) {
            return cached.hash;
        }
        let hash = hashed(list);
        if let Some(room) = cached.list.get_mut(..list.len()) {
            room.copy_from_slice(list);
            (cached.len, cached.hash) = (list.len() as u8, hash);
        }
        hash
    }
}

fn cell_of(list: &[u16]) -> usize {
    let sum =
        list.iter().fold(0_u32, |sum, value| sum.wrapping_mul(31).wrapping_add((*value).into()));
    // 2^32 divided by the golden ratio: the upper bits depend on all lower ones.
    (sum.wrapping_mul(0x9e37_79b9) >> (u32::BITS - CACHE_LISTS.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_its_own_hash_whoever_had_its_place() {
        let mut seen = Seen { cache: Vec::new() };
        // More lists than slots, of cached lengths and of longer ones.
        let lists: Vec<Vec<u16>> =
            (0..300).map(|n: u16| (0..=n % 60).map(|i| i * 7 + n + 1).collect()).collect();
        for list in lists.iter().chain(&lists).chain(lists.iter().rev()) {
            for _ in 0..2 {
                assert_eq!(seen.hash(list), hashed(list));
            }
        }
        let taken = seen.cache.iter().filter(|cached| cached.len > 0).count();
        assert!(taken > CACHE_LISTS / 2, "{taken} of {CACHE_LISTS}");
    }

    #[test]
    fn the_beginning_of_a_list_is_another_list() {
        let mut seen = Seen { cache: Vec::new() };
        // Leading zeros do not change the slot.
        for list in [&[0, 0, 5][..], &[0, 5], &[5], &[0, 5]] {
            assert_eq!(cell_of(list), cell_of(&[5]));
            assert_eq!(seen.hash(list), hashed(list));
        }
    }
}
