//! A bounded table of evidence that all workers share, and the flights that fill it: one a key.
//! It must not know what evidence is, or how it is gathered.

use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Parts with a lock each. A lock is held for a look-up, some 100 ns; with as many parts as a
/// large machine has cores two workers seldom want the same one.
const SHARDS: usize = 64;
/// Flights of one part: 4,096 in all. Beyond, evidence cannot be had, and fails closed.
const FLIGHTS_MAX: usize = 64;
/// What an entry costs beyond its value: slot, index entry and the allocations' heads.
const ENTRY_BYTES: usize = 160;

/// A table of at most so many bytes; what was not looked at for longest goes first, roughly.
pub struct Cache<K, V> {
    shards: Box<[Mutex<Shard<K, V>>]>,
    hasher: RandomState,
}

struct Shard<K, V> {
    /// By hash. Of two keys with one hash (2^-64) the later has the place.
    index: HashMap<u64, usize, BuildHasherDefault<AsItIs>>,
    slots: Vec<Slot<K, V>>,
    /// Where the next search for something to drop begins.
    hand: usize,
    bytes: usize,
    bytes_max: usize,
    flights: HashMap<u64, (K, watch::Receiver<Option<V>>)>,
}

struct Slot<K, V> {
    hash: u64,
    key: K,
    value: V,
    bytes: usize,
    /// Looked at since the hand last passed.
    used: bool,
}

/// The keys of an index are hashes already, with a secret that nobody else has.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0 << 8 | u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// A flight that this caller is to make, or whose outcome it waits for.
pub enum Flight<K: Eq, V> {
    /// The caller's own. Dropping the first half ends it.
    Mine(Landing<K, V>, watch::Receiver<Option<V>>),
    /// Somebody else's.
    Shared(watch::Receiver<Option<V>>),
    /// There are too many.
    Busy,
}

/// The duty to end a flight.
pub struct Landing<K: Eq, V> {
    cache: Arc<Cache<K, V>>,
    hash: u64,
    key: K,
    sender: watch::Sender<Option<V>>,
}

impl<K: Eq + Clone, V: Clone> Cache<K, V> {
    /// A table of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        let shard = || {
            Mutex::new(Shard {
                index: HashMap::default(),
                slots: Vec::new(),
                hand: 0,
                bytes: 0,
                bytes_max: bytes_max / SHARDS,
                flights: HashMap::new(),
            })
        };
        Self { shards: (0..SHARDS).map(|_| shard()).collect(), hasher: RandomState::new() }
    }

    /// The hash of a key, by whatever parts of it the caller has at hand: always the same ones.
    pub fn hash(&self, key: impl Hash) -> u64 {
        self.hasher.hash_one(key)
    }

    /// What `read` makes of the entry. It runs under the lock: it must be short.
    pub fn read<R>(
        &self,
        hash: u64,
        is_key: impl Fn(&K) -> bool,
        read: impl FnOnce(&V) -> R,
    ) -> Option<R> {
        let mut shard = self.shard(hash);
        let at = *shard.index.get(&hash)?;
        let slot = shard.slots.get_mut(at).filter(|slot| is_key(&slot.key))?;
        slot.used = true;
        Some(read(&slot.value))
    }

    /// Keeps a value of so many bytes, and drops others for it.
    pub fn keep(&self, hash: u64, key: K, value: V, bytes: usize) {
        let bytes = bytes + ENTRY_BYTES;
        let mut shard = self.shard(hash);
        shard.drop_entry(hash);
        if bytes > shard.bytes_max {
            return;
        }
        while shard.bytes + bytes > shard.bytes_max {
            shard.drop_one();
        }
        let at = shard.slots.len();
        shard.slots.push(Slot { hash, key, value, bytes, used: false });
        shard.index.insert(hash, at);
        shard.bytes += bytes;
    }

    /// The flight for a key, if there is one.
    pub fn flight(&self, hash: u64, key: &K) -> Option<watch::Receiver<Option<V>>> {
        let shard = self.shard(hash);
        let (_, receiver) = shard.flights.get(&hash).filter(|(known, _)| known == key)?;
        Some(receiver.clone())
    }

    /// Joins the flight for a key, or begins it.
    pub fn join(self: &Arc<Self>, hash: u64, key: &K) -> Flight<K, V> {
        let mut shard = self.shard(hash);
        match shard.flights.get(&hash) {
            Some((known, receiver)) if known == key => return Flight::Shared(receiver.clone()),
            Some(_) => return Flight::Busy,
            None if shard.flights.len() >= FLIGHTS_MAX => return Flight::Busy,
            None => {}
        }
        let (sender, receiver) = watch::channel(None);
        shard.flights.insert(hash, (key.clone(), receiver.clone()));
        let landing = Landing { cache: self.clone(), hash, key: key.clone(), sender };
        Flight::Mine(landing, receiver)
    }

    /// Entries, and the bytes they take.
    pub fn size(&self) -> (usize, usize) {
        let shards = self.shards.iter().map(|shard| lock(shard));
        shards.fold((0, 0), |(n, bytes), shard| (n + shard.slots.len(), bytes + shard.bytes))
    }
}

impl<K, V> Cache<K, V> {
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, V>> {
        // The upper bits: a hash table inside uses the lower ones.
        lock(&self.shards[(hash >> 32) as usize % SHARDS])
    }
}

fn lock<T>(shard: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under the lock is left half done.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K, V> Shard<K, V> {
    /// Drops the first entry from the hand on that was not looked at since it last passed.
    fn drop_one(&mut self) {
        while let Some(slot) = self.slots.get_mut(self.hand) {
            if !std::mem::replace(&mut slot.used, false) {
                let hash = slot.hash;
                self.drop_entry(hash);
                // The last entry, the newest, has its place now: it is not the next to go.
                self.hand = (self.hand + 1) % self.slots.len().max(1);
                return;
            }
            self.hand = (self.hand + 1) % self.slots.len();
        }
        self.hand = 0;
        if self.slots.is_empty() {
            self.bytes = 0;
        }
    }

    fn drop_entry(&mut self, hash: u64) {
        let Some(at) = self.index.remove(&hash) else { return };
        let dropped = self.slots.swap_remove(at);
        self.bytes -= dropped.bytes;
        if let Some(moved) = self.slots.get(at) {
            self.index.insert(moved.hash, at);
        }
        if self.hand >= self.slots.len() {
            self.hand = 0;
        }
    }
}

impl<K: Eq + Clone, V: Clone> Landing<K, V> {
    /// Tells who waits what is known so far.
    pub fn tell(&self, value: V) {
        self.sender.send_replace(Some(value));
    }

    /// Keeps the value, tells it, and ends the flight.
    pub fn land(self, value: V, bytes: usize) {
        self.cache.keep(self.hash, self.key.clone(), value.clone(), bytes);
        self.tell(value);
    }
}

impl<K: Eq, V> Drop for Landing<K, V> {
    fn drop(&mut self) {
        self.cache.shard(self.hash).flights.remove(&self.hash);
    }
}

/// Waits until a flight has told something that is enough, or has ended.
pub async fn outcome<V: Clone>(
    mut flight: watch::Receiver<Option<V>>,
    is_enough: impl Fn(&V) -> bool,
) -> Option<V> {
    let wait = flight.wait_for(|told| told.as_ref().is_some_and(&is_enough));
    if let Ok(told) = wait.await {
        return told.clone();
    }
    // It ended: what it told last is all there will be.
    flight.borrow().clone()
}

/// Runs a flight beside the connection that asked first: others wait for it too.
pub fn fly(flight: impl Future<Output = ()> + 'static) {
    tokio::task::spawn_local(flight);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn cache(entries: usize) -> Arc<Cache<u32, u32>> {
        Arc::new(Cache::new(SHARDS * entries * (ENTRY_BYTES + 40)))
    }

    fn read(cache: &Cache<u32, u32>, key: u32) -> Option<u32> {
        cache.read(cache.hash(key), |known| *known == key, |value| *value)
    }

    #[test]
    fn a_table_stays_within_its_bytes_whatever_comes() {
        let cache = cache(8);
        for key in 0..100_000 {
            cache.keep(cache.hash(key), key, key + 1, 40);
            assert_eq!(read(&cache, key), Some(key + 1));
        }
        let (entries, bytes) = cache.size();
        assert!(entries <= 8 * SHARDS && entries > 4 * SHARDS, "{entries}");
        assert_eq!(bytes, entries * (ENTRY_BYTES + 40));
        cache.keep(cache.hash(7_u32), 7, 7, 1 << 20);
        assert_eq!(read(&cache, 7), None, "larger than the table");
        // The same key again takes no second place.
        let before = cache.size();
        for _ in 0..100 {
            cache.keep(cache.hash(99_999_u32), 99_999, 1, 40);
        }
        assert_eq!(cache.size(), before);
    }

    #[test]
    fn what_is_looked_at_stays() {
        let cache = cache(16);
        cache.keep(cache.hash(0_u32), 0, 1, 40);
        for key in 1..10_000 {
            cache.keep(cache.hash(key), key, 1, 40);
            assert_eq!(read(&cache, 0), Some(1), "after {key}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn one_flight_a_key_and_a_bound_on_all() {
        let cache = cache(8);
        let hash = cache.hash(1_u32);
        let Flight::Mine(landing, mine) = cache.join(hash, &1) else { unreachable!() };
        let Flight::Shared(shared) = cache.join(hash, &1) else { unreachable!() };
        landing.tell(3);
        landing.land(4, 40);
        assert_eq!(outcome(shared, |value| *value == 4).await, Some(4));
        assert_eq!(outcome(mine, |value| *value == 9).await, Some(4), "all there will be");
        assert_eq!(read(&cache, 1), Some(4));
        let flights: Vec<_> = (0..100_000_u32)
            .map(|key| cache.join(cache.hash(key), &key))
            .filter(|flight| matches!(flight, Flight::Mine(..)))
            .collect();
        assert_eq!(flights.len(), SHARDS * FLIGHTS_MAX);
        drop(flights);
        assert!(matches!(cache.join(hash, &1), Flight::Mine(..)), "all have ended");
    }
}
