//! The counts of one of several upstreams: open exchanges, exchanges sent to it, and failures.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use eyelet_memory::interner::Heap;

/// The counters of one upstream, or of one address of its name. All workers share them.
#[derive(Debug, Default)]
pub struct UpstreamCounters {
    /// Connections or exchanges that are open at it now.
    pub open: AtomicU64,
    /// Connections or exchanges that it was given.
    pub chosen: AtomicU64,
    /// Dials, and requests without a response, that failed.
    pub failures: AtomicU64,
    /// Active checks that failed.
    pub check_failures: AtomicU64,
    /// Times that it went down.
    pub downs: AtomicU64,
    /// True if it is down now.
    pub is_down: AtomicBool,
}

impl UpstreamCounters {
    /// A connection or an exchange begins.
    pub fn opened(&self) {
        self.open.fetch_add(1, Relaxed);
        self.chosen.fetch_add(1, Relaxed);
    }

    /// It has ended.
    pub fn closed(&self) {
        self.open.fetch_sub(1, Relaxed);
    }
}

/// An exchange at an upstream. It counts until it is dropped.
#[derive(Debug)]
pub struct OpenExchange(Arc<UpstreamCounters>);

impl OpenExchange {
    pub fn new(counters: &Arc<UpstreamCounters>) -> Self {
        counters.opened();
        Self(counters.clone())
    }
}

impl Drop for OpenExchange {
    fn drop(&mut self) {
        self.0.closed();
    }
}

/// The counters of a connection until it ends. Connections to one upstream share this value, so
/// that it costs a parked connection nothing. The end of a connection therefore calls
/// [`CountedAt::closed`]: there is no guard for each.
#[derive(Clone, Debug)]
pub struct CountedAt(Box<[Arc<UpstreamCounters>]>);

impl CountedAt {
    /// Counts a connection at an upstream, and at the address of its name that was dialled.
    pub fn opened(counters: impl IntoIterator<Item = Arc<UpstreamCounters>>) -> Self {
        let counted: Box<[_]> = counters.into_iter().collect();
        counted.iter().for_each(|counters| counters.opened());
        Self(counted)
    }

    /// Counts a connection that another process dialled. `None`: it counts nowhere. Nobody chose
    /// its upstream here.
    pub fn taken_over(counters: Vec<Arc<UpstreamCounters>>) -> Option<Self> {
        counters.iter().for_each(|counters| _ = counters.open.fetch_add(1, Relaxed));
        (!counters.is_empty()).then(|| Self(counters.into()))
    }

    /// Counts on for exchanges that rest with their connection. `None`: they count nowhere.
    pub fn resting(exchanges: Vec<OpenExchange>) -> Option<Self> {
        // Each count is taken over before its guard gives it back.
        let counters = exchanges.iter().map(|exchange| {
            exchange.0.open.fetch_add(1, Relaxed);
            exchange.0.clone()
        });
        let counted: Box<[_]> = counters.collect();
        (!counted.is_empty()).then_some(Self(counted))
    }

    /// The exchanges of a connection that rests no more: they count until they are dropped.
    pub fn resumed(self) -> Vec<OpenExchange> {
        self.0.into_iter().map(OpenExchange).collect()
    }

    /// Returns the counters of a connection that counts at `counted` and at these, too.
    pub fn joined(counted: Option<Self>, open: Vec<OpenExchange>) -> Option<Self> {
        let mut all = counted.map(Self::resumed).unwrap_or_default();
        all.extend(open);
        Self::resting(all)
    }

    /// The connection has ended.
    pub fn closed(&self) {
        self.0.iter().for_each(|counters| counters.closed());
    }
}

impl Heap for CountedAt {
    fn heap_bytes(&self) -> usize {
        size_of_val(&self.0[..])
    }
}

/// Equal are those that count at the same place.
impl PartialEq for CountedAt {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self.0.iter().zip(&other.0).all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

impl Eq for CountedAt {}

impl Hash for CountedAt {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.iter().for_each(|counters| Arc::as_ptr(counters).hash(state));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_open_is_counted_until_it_ends() {
        let [one, other] = [Arc::<UpstreamCounters>::default(), Arc::default()];
        let exchange = OpenExchange::new(&one);
        let pair = CountedAt::opened([one.clone(), other.clone()]);
        assert_eq!((one.open.load(Relaxed), other.open.load(Relaxed)), (2, 1));
        let same = CountedAt(Box::new([one.clone(), other.clone()]));
        assert_eq!(pair, same);
        assert_ne!(pair, CountedAt(Box::new([one.clone()])));
        pair.closed();
        drop(exchange);
        assert_eq!((one.open.load(Relaxed), other.open.load(Relaxed)), (0, 0));
        assert_eq!((one.chosen.load(Relaxed), other.chosen.load(Relaxed)), (2, 1));
    }

    #[test]
    fn what_another_process_dialled_is_open_and_was_not_chosen() {
        let one = Arc::<UpstreamCounters>::default();
        let taken_over = CountedAt::taken_over(vec![one.clone()]).unwrap();
        assert_eq!((one.open.load(Relaxed), one.chosen.load(Relaxed)), (1, 0));
        taken_over.closed();
        assert_eq!(one.open.load(Relaxed), 0);
        assert_eq!(CountedAt::taken_over(Vec::new()), None);
    }

    #[test]
    fn an_exchange_that_rests_is_open_and_is_chosen_once() {
        let [one, other] = [Arc::<UpstreamCounters>::default(), Arc::default()];
        assert_eq!(CountedAt::resting(Vec::new()), None);
        let open = [&one, &other].map(OpenExchange::new).into();
        let resting = CountedAt::resting(open).unwrap();
        assert_eq!((one.open.load(Relaxed), other.open.load(Relaxed)), (1, 1));
        let open = resting.resumed();
        assert_eq!((one.open.load(Relaxed), other.open.load(Relaxed)), (1, 1));
        let joined = CountedAt::joined(CountedAt::resting(open), vec![OpenExchange::new(&other)]);
        assert_eq!((one.open.load(Relaxed), other.open.load(Relaxed)), (1, 2));
        let open = joined.unwrap().resumed();
        drop(open);
        assert_eq!((one.open.load(Relaxed), other.open.load(Relaxed)), (0, 0));
        assert_eq!((one.chosen.load(Relaxed), other.chosen.load(Relaxed)), (1, 2));
        assert_eq!(CountedAt::joined(None, Vec::new()), None);
    }
}
