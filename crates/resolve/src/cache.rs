//! A bounded cache that all workers share, with single flights that fill it: one task gathers a
//! value, and all who ask for the same key wait for it.

use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use quick_cache::{Equivalent, OptionsBuilder, Weighter, sync};
use tokio::sync::watch;

/// Shards with a lock each. A lock is held for a look-up, some 100 ns. There are as many shards as
/// a large machine has cores, so two workers seldom want the same one.
const SHARDS: usize = 64;
/// Most flights at once. Beyond that evidence is unknown, and fails closed.
const SINGLE_FLIGHTS_MAX: usize = 4096;
/// Bytes of an entry besides its value: slot, index entry and the allocations' headers.
const ENTRY_BYTES: usize = 160;
/// The part of a table that is kept for entries that were read again. Entries that nobody reads
/// replace each other in the rest, so a flood of new names leaves this part alone. It also bounds
/// one entry: a larger one than this part of a shard is not kept.
const HOT_PART: f64 = 0.9;

/// A cache of a limited size in bytes. Entries that are never read are dropped first.
pub struct Cache<K, V> {
    /// Made at the first entry: the shards take 11 KiB, and many processes gather no evidence.
    entries: OnceLock<Entries<K, V>>,
    bytes_max: usize,
    flights: Mutex<SingleFlights<K, V>>,
    hasher: RandomState,
}

type Entries<K, V> = sync::Cache<Keyed<K>, Weighted<V>, Bytes, RandomState>;

/// By the key's hash: the key, and the channel for the result.
type SingleFlights<K, V> = HashMap<u64, (K, watch::Receiver<Option<V>>)>;

/// A key with its hash. The caller may have computed the hash from parts of a key.
#[derive(Clone, PartialEq, Eq)]
struct Keyed<K> {
    hash: u64,
    key: K,
}

impl<K> Hash for Keyed<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Finds an entry from the parts of a key, without building the key.
struct Probe<F> {
    hash: u64,
    is_key: F,
}

impl<F> Hash for Probe<F> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl<K, F: Fn(&K) -> bool> Equivalent<Keyed<K>> for Probe<F> {
    fn equivalent(&self, known: &Keyed<K>) -> bool {
        self.hash == known.hash && (self.is_key)(&known.key)
    }
}

#[derive(Clone)]
struct Weighted<V> {
    value: V,
    bytes: usize,
}

#[derive(Clone)]
struct Bytes;

impl<K, V> Weighter<Keyed<K>, Weighted<V>> for Bytes {
    fn weight(&self, _: &Keyed<K>, kept: &Weighted<V>) -> u64 {
        kept.bytes as u64
    }
}

/// The caller's part in a flight.
pub enum SingleFlight<K: Eq, V> {
    /// The caller is the leader and must gather the value. Dropping the first field ends the
    /// flight.
    Mine(Leader<K, V>, watch::Receiver<Option<V>>),
    /// Another caller leads; wait for its result.
    Shared(watch::Receiver<Option<V>>),
    /// There are too many flights.
    Busy,
}

/// Leads a flight: it must publish the result.
pub struct Leader<K: Eq, V> {
    cache: Arc<Cache<K, V>>,
    hash: u64,
    key: K,
    sender: watch::Sender<Option<V>>,
}

impl<K: Eq + Clone, V: Clone> Cache<K, V> {
    /// A cache of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        let (entries, flights) = (OnceLock::new(), Mutex::default());
        Self { entries, bytes_max, flights, hasher: RandomState::default() }
    }

    fn empty(&self) -> Entries<K, V> {
        let bytes_max = self.bytes_max;
        let options = OptionsBuilder::new()
            .shards(SHARDS)
            .estimated_items_capacity(bytes_max / ENTRY_BYTES)
            .weight_capacity((bytes_max / SHARDS * SHARDS) as u64)
            .hot_allocation(HOT_PART)
            // Ghost keys of dropped entries would take memory that the weights do not count.
            .ghost_allocation(0.0)
            .build()
            .unwrap_or_else(|_| unreachable!("both capacities are set"));
        let lifecycle = sync::DefaultLifecycle::default();
        sync::Cache::with_options(options, Bytes, self.hasher.clone(), lifecycle)
    }

    /// The hash of a key, from the parts that the caller has. The parts must always be the same
    /// ones.
    pub fn hash(&self, key: impl Hash) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Calls `read` on the entry and returns its result.
    pub fn read<R>(
        &self,
        hash: u64,
        is_key: impl Fn(&K) -> bool,
        read: impl FnOnce(&V) -> R,
    ) -> Option<R> {
        let kept = self.entries.get()?.get(&Probe { hash, is_key })?;
        Some(read(&kept.value))
    }

    /// Stores a value of `bytes` bytes, and drops others for it.
    pub fn keep(&self, hash: u64, key: K, value: V, bytes: usize) {
        let bytes = bytes + ENTRY_BYTES;
        let entries = self.entries.get_or_init(|| self.empty());
        entries.insert(Keyed { hash, key }, Weighted { value, bytes });
    }

    /// The entries at this moment.
    pub fn entries(&self) -> impl Iterator<Item = (K, V)> {
        let all = self.entries.get().into_iter().flat_map(Entries::iter);
        all.map(|(keyed, kept)| (keyed.key, kept.value))
    }

    /// The running flight for a key, if any.
    pub fn flight(&self, hash: u64, key: &K) -> Option<watch::Receiver<Option<V>>> {
        let flights = self.flights.lock();
        let (_, receiver) = flights.get(&hash).filter(|(known, _)| known == key)?;
        Some(receiver.clone())
    }

    /// Joins the flight for a key, or starts it.
    pub fn join(self: &Arc<Self>, hash: u64, key: &K) -> SingleFlight<K, V> {
        let mut flights = self.flights.lock();
        match flights.get(&hash) {
            Some((known, receiver)) if known == key => {
                return SingleFlight::Shared(receiver.clone());
            }
            Some(_) => return SingleFlight::Busy,
            None if flights.len() >= SINGLE_FLIGHTS_MAX => return SingleFlight::Busy,
            None => {}
        }
        let (sender, receiver) = watch::channel(None);
        flights.insert(hash, (key.clone(), receiver.clone()));
        let leader = Leader { cache: self.clone(), hash, key: key.clone(), sender };
        SingleFlight::Mine(leader, receiver)
    }

    /// The number of entries, and their bytes.
    pub fn size(&self) -> (usize, usize) {
        self.entries.get().map_or((0, 0), |all| (all.len(), all.weight() as usize))
    }
}

impl<K, V> Cache<K, V> {}

impl<K: Eq + Clone, V: Clone> Leader<K, V> {
    /// The value that is stored, from the flight before.
    pub fn before(&self) -> Option<V> {
        self.cache.read(self.hash, |known| *known == self.key, V::clone)
    }

    /// Publishes what is known so far to those who wait.
    pub fn publish(&self, value: V) {
        self.sender.send_replace(Some(value));
    }

    /// Stores the value, publishes it, and ends the flight.
    pub fn land(self, value: V, bytes: usize) {
        self.cache.keep(self.hash, self.key.clone(), value.clone(), bytes);
        self.publish(value);
    }

    /// Ends the flight, then says why to those who wait. Who asks again, as soon as it knows,
    /// finds no flight that has ended already.
    pub fn give_up(self, value: V) {
        let sender = self.sender.clone();
        drop(self);
        sender.send_replace(Some(value));
    }
}

impl<K: Eq, V> Drop for Leader<K, V> {
    fn drop(&mut self) {
        self.cache.flights.lock().remove(&self.hash);
    }
}

/// Waits until a flight has published a value that is enough, or has ended.
pub async fn outcome<V: Clone>(
    mut flight: watch::Receiver<Option<V>>,
    is_enough: impl Fn(&V) -> bool,
) -> Option<V> {
    let wait = flight.wait_for(|outcome| outcome.as_ref().is_some_and(&is_enough));
    if let Ok(outcome) = wait.await {
        return outcome.clone();
    }
    // It ended: its last value is final.
    flight.borrow().clone()
}

/// Runs a flight in a task of its own, because others wait for it, too.
pub fn spawn(flight: impl Future<Output = ()> + 'static) {
    tokio::task::spawn_local(flight);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::pin::pin;
    use std::task::{Context, Poll, Wake, Waker};

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
        assert_eq!((read(&cache, 0), cache.size()), (None, (0, 0)));
        assert!(cache.entries.get().is_none(), "shards are made for the first entry");
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
    fn an_entry_that_is_read_stays() {
        let cache = cache(16);
        cache.keep(cache.hash(0_u32), 0, 1, 40);
        for key in 1..10_000 {
            cache.keep(cache.hash(key), key, 1, 40);
            assert_eq!(read(&cache, 0), Some(1), "after {key}");
        }
    }

    #[test]
    fn a_flood_of_new_names_leaves_entries_that_were_read_again() {
        let cache = cache(16);
        cache.keep(cache.hash(0_u32), 0, 1, 40);
        assert_eq!(read(&cache, 0), Some(1));
        for key in 1..10_000 {
            cache.keep(cache.hash(key), key, 1, 40);
        }
        assert_eq!(read(&cache, 0), Some(1));
    }

    #[test]
    fn one_entry_may_take_most_of_a_shard() {
        let cache = cache(8);
        let shard = 8 * (ENTRY_BYTES + 40);
        cache.keep(cache.hash(1_u32), 1, 1, shard * 3 / 4 - ENTRY_BYTES);
        assert_eq!(read(&cache, 1), Some(1));
    }

    #[test]
    fn two_keys_with_one_hash_are_two_entries() {
        let cache = cache(16);
        cache.keep(5, 1, 10, 40);
        cache.keep(5, 2, 20, 40);
        let of = |key| cache.read(5, |known| *known == key, |value| *value);
        assert_eq!((of(1), of(2), of(3)), (Some(10), Some(20), None));
        assert_eq!(cache.size().0, 2);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn one_flight_per_key_and_a_limit_on_all() {
        let cache = cache(8);
        let hash = cache.hash(1_u32);
        let SingleFlight::Mine(leader, mine) = cache.join(hash, &1) else { unreachable!() };
        let SingleFlight::Shared(shared) = cache.join(hash, &1) else { unreachable!() };
        leader.publish(3);
        leader.land(4, 40);
        assert_eq!(outcome(shared, |value| *value == 4).await, Some(4));
        assert_eq!(outcome(mine, |value| *value == 9).await, Some(4), "its last value");
        assert_eq!(read(&cache, 1), Some(4));
        let flights: Vec<_> = (0..100_000_u32)
            .map(|key| cache.join(cache.hash(key), &key))
            .filter(|flight| matches!(flight, SingleFlight::Mine(..)))
            .collect();
        assert_eq!(flights.len(), SINGLE_FLIGHTS_MAX);
        drop(flights);
        assert!(matches!(cache.join(hash, &1), SingleFlight::Mine(..)), "all have ended");
    }

    /// Begins another flight as soon as it is woken, as a task on another worker may.
    struct AsksAgain {
        cache: Arc<Cache<u32, u32>>,
        begun: Mutex<Option<SingleFlight<u32, u32>>>,
    }

    impl Wake for AsksAgain {
        fn wake(self: Arc<Self>) {
            let hash = self.cache.hash(1_u32);
            *self.begun.lock() = Some(self.cache.join(hash, &1));
        }
    }

    #[test]
    fn who_hears_that_a_flight_was_given_up_begins_another_one() {
        let cache = cache(8);
        let hash = cache.hash(1_u32);
        let SingleFlight::Mine(leader, flight) = cache.join(hash, &1) else { unreachable!() };
        let asks_again = Arc::new(AsksAgain { cache: cache.clone(), begun: Mutex::default() });
        let waker = Waker::from(asks_again.clone());
        let mut outcome = pin!(outcome(flight, |_| true));
        let mut context = Context::from_waker(&waker);
        assert_eq!(outcome.as_mut().poll(&mut context), Poll::Pending);
        leader.give_up(7);
        assert_eq!(outcome.as_mut().poll(&mut context), Poll::Ready(Some(7)));
        assert_eq!(read(&cache, 1), None);
        let begun = asks_again.begun.lock().take();
        assert!(matches!(begun, Some(SingleFlight::Mine(..))));
        assert!(cache.flight(hash, &1).is_some(), "the end of the first one is not its end");
    }
}
