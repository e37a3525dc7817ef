//! A chunked slab: values never move, growth never copies, and empty chunks other than the first
//! are freed.

/// Slots per chunk. A chunk of the connection table is then about 240 KiB, which the allocator
/// mostly maps separately (`sys::memory`). So long-lived slots and the memory of handshakes do not
/// share pages, and neither keeps the other's. A chunk of half the size often fitted into a hole
/// that a burst had left in the heap. Its pages are touched only as slots are used. Miri takes half
/// a minute to fill three of them, and finds the same in small ones of more than one word.
const CHUNK: usize = if cfg!(miri) { 128 } else { 1024 };
const WORDS: usize = CHUNK / 64;

/// Chunks that [`Slab::has_hole`] looks at. The first that is not full nearly always has one.
const CHUNKS_LOOKED_AT: usize = 4;

/// Generations wrap here, so that a key fits an epoll token beside index and side.
const GENERATIONS: u32 = 1 << 24;

/// Names one value for its life. A later value in the same slot has another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The slot.
    pub index: u32,
    /// Counts the values of that slot, modulo 2^24.
    pub generation: u32,
}

struct Chunk<T> {
    /// Bit i of word w is set if slot 64w + i is free.
    free: [u64; WORDS],
    used: usize,
    /// Generations of `slots`, as many as those.
    generations: Vec<u32>,
    /// Neither is ever reallocated: the capacity is [`CHUNK`] from the start. Slots beyond the
    /// length were never used, and their pages were never touched.
    slots: Vec<Option<T>>,
}

impl<T> Chunk<T> {
    fn new() -> Self {
        Self {
            free: [u64::MAX; WORDS],
            used: 0,
            generations: Vec::with_capacity(CHUNK),
            slots: Vec::with_capacity(CHUNK),
        }
    }

    /// Bytes of itself and of the slots that were ever used. The pages of the others were never
    /// touched.
    fn held_bytes(&self) -> usize {
        size_of::<Self>() + self.slots.len() * (size_of::<u32>() + size_of::<Option<T>>())
    }

    /// Puts a value into the lowest free slot. The caller knows that there is one.
    fn insert(&mut self, value: T, generation: u32) -> usize {
        let word = self.free.iter().position(|free| *free != 0).unwrap_or(0);
        let slot = word * 64 + self.free[word].trailing_zeros() as usize;
        self.free[word] &= !(1 << (slot % 64));
        self.used += 1;
        // The lowest free slot is at most `self.slots.len()`.
        match self.slots.get_mut(slot) {
            Some(free) => {
                *free = Some(value);
                self.generations[slot] = generation;
            }
            None => {
                self.slots.push(Some(value));
                self.generations.push(generation);
            }
        }
        slot
    }

    fn remove(&mut self, slot: usize) -> Option<T> {
        let value = self.slots.get_mut(slot)?.take()?;
        self.free[slot / 64] |= 1 << (slot % 64);
        self.used -= 1;
        Some(value)
    }
}

/// The slab.
pub struct Slab<T> {
    chunks: Vec<Option<Box<Chunk<T>>>>,
    /// No chunk below this one has a free slot.
    first_free: usize,
    len: usize,
    generation: u32,
    held_bytes: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), first_free: 0, len: 0, generation: 0, held_bytes: 0 }
    }
}

impl<T> Slab<T> {
    /// True if it holds no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory that its chunks hold, for slots that are in use or were used once.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// True if a slot is free that was used before: the next value then takes no more memory.
    pub fn has_hole(&self) -> bool {
        let free = self.chunks.iter().skip(self.first_free).flatten();
        free.take(CHUNKS_LOOKED_AT).any(|chunk| chunk.used < chunk.slots.len())
    }

    /// Puts a value into the lowest free slot, so that chunks at the end can become empty.
    pub fn insert(&mut self, value: T) -> Key {
        while let Some(Some(chunk)) = self.chunks.get(self.first_free)
            && chunk.used == CHUNK
        {
            self.first_free += 1;
        }
        if self.first_free == self.chunks.len() {
            self.chunks.push(None);
        }
        self.generation = (self.generation + 1) % GENERATIONS;
        let place = &mut self.chunks[self.first_free];
        let before = place.as_ref().map_or(0, |chunk| chunk.held_bytes());
        let chunk = place.get_or_insert_with(|| Box::new(Chunk::new()));
        let slot = chunk.insert(value, self.generation);
        self.held_bytes += chunk.held_bytes() - before;
        self.len += 1;
        Key { index: (self.first_free * CHUNK + slot) as u32, generation: self.generation }
    }

    /// The value of this key, if it is still there.
    pub fn slot(&mut self, key: Key) -> Option<&mut T> {
        let slot = key.index as usize % CHUNK;
        let chunk = self.chunks.get_mut(key.index as usize / CHUNK)?.as_mut()?;
        if chunk.generations.get(slot) != Some(&key.generation) {
            return None;
        }
        chunk.slots.get_mut(slot)?.as_mut()
    }

    /// The value in this slot, of any generation.
    pub fn get(&self, index: u32) -> Option<&T> {
        let chunk = self.chunks.get(index as usize / CHUNK)?.as_ref()?;
        chunk.slots.get(index as usize % CHUNK)?.as_ref()
    }

    /// The value in this slot, of any generation, mutable.
    pub fn at(&mut self, index: u32) -> Option<&mut T> {
        let chunk = self.chunks.get_mut(index as usize / CHUNK)?.as_mut()?;
        chunk.slots.get_mut(index as usize % CHUNK)?.as_mut()
    }

    /// Number of slots, in use or not.
    pub fn slots(&self) -> u32 {
        (self.chunks.len() * CHUNK) as u32
    }

    /// The key of the value in this slot.
    pub fn key_at(&self, index: u32) -> Option<Key> {
        let chunk = self.chunks.get(index as usize / CHUNK)?.as_ref()?;
        let slot = index as usize % CHUNK;
        chunk.slots.get(slot)?.as_ref()?;
        Some(Key { index, generation: chunk.generations[slot] })
    }

    /// Removes a value.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        self.slot(key)?;
        let place = key.index as usize / CHUNK;
        let chunk = self.chunks[place].as_mut()?;
        let value = chunk.remove(key.index as usize % CHUNK)?;
        self.len -= 1;
        self.first_free = self.first_free.min(place);
        // The first chunk stays: a single value that comes and goes would map and unmap it.
        if chunk.used == 0 && place > 0 {
            self.held_bytes -= chunk.held_bytes();
            self.chunks[place] = None;
            while let Some(None) = self.chunks.last() {
                self.chunks.pop();
            }
        }
        Some(value)
    }

    /// All keys, by slot.
    pub fn keys(&self) -> Vec<Key> {
        (0..(self.chunks.len() * CHUNK) as u32).filter_map(|index| self.key_at(index)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_old_key_does_not_reach_the_new_value_of_its_slot() {
        let mut slab = Slab::default();
        let old = slab.insert("old");
        assert_eq!(slab.remove(old), Some("old"));
        let new = slab.insert("new");
        assert_eq!(old.index, new.index);
        assert_eq!(slab.slot(old), None);
        assert_eq!(slab.slot(new).copied(), Some("new"));
    }

    #[test]
    fn empty_chunks_are_given_back() {
        let mut slab = Slab::default();
        let keys: Vec<Key> = (0..10 * CHUNK).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.chunks.len(), 10);
        for key in &keys[CHUNK..] {
            slab.remove(*key).unwrap();
        }
        assert_eq!((slab.chunks.len(), slab.len), (1, CHUNK));
        assert_eq!(slab.keys(), keys[..CHUNK]);
    }

    #[test]
    fn memory_is_freed_by_the_chunk_and_not_by_the_slot() {
        let mut slab = Slab::default();
        let slot = size_of::<u32>() + size_of::<Option<u64>>();
        let chunk = |slots: usize| size_of::<Chunk<u64>>() + slots * slot;
        assert_eq!(slab.held_bytes(), 0);
        let keys: Vec<Key> = (0..2 * CHUNK + 5).map(|n| slab.insert(n as u64)).collect();
        let all = 2 * chunk(CHUNK) + chunk(5);
        assert_eq!(slab.held_bytes(), all);
        for key in &keys[1..2 * CHUNK - 1] {
            slab.remove(*key).unwrap();
        }
        assert_eq!(slab.held_bytes(), all, "one value keeps its chunk");
        slab.insert(0);
        assert_eq!(slab.held_bytes(), all, "a slot that was used before");
        slab.remove(keys[2 * CHUNK - 1]).unwrap();
        keys[2 * CHUNK..].iter().for_each(|key| _ = slab.remove(*key).unwrap());
        assert_eq!(slab.held_bytes(), chunk(CHUNK));
    }

    #[test]
    fn a_hole_is_filled_before_the_slab_grows() {
        let mut slab = Slab::default();
        let keys: Vec<Key> = (0..3 * CHUNK).map(|n| slab.insert(n)).collect();
        assert!(!slab.has_hole());
        for key in &keys[CHUNK..2 * CHUNK - 1] {
            slab.remove(*key).unwrap();
        }
        assert!(slab.has_hole());
        let held = slab.held_bytes();
        assert_eq!(slab.insert(0).index as usize, CHUNK);
        assert_eq!(slab.held_bytes(), held);
    }
}
