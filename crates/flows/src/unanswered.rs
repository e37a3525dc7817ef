//! Flows that no server has answered, of all tables of a process: counted in all, and for each
//! network of clients.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use eyelet_memory::budget::{Account, Budget, Counted};
use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::peer::Network;

/// Flows of a process that no server has answered. At 3,000 new ones a second each may wait as long
/// as [`ANSWER_MS`](crate::table::ANSWER_MS) lets it; a flood shortens that for all.
pub const UNANSWERED_MAX: usize = 8_192;
/// Those of one client network. A household or an office begins fewer at once, and one network
/// takes 1/32 of all.
pub const UNANSWERED_OF_NETWORK_MAX: u16 = 256;
/// Parts of the networks, each with a lock: workers seldom wait for each other.
const PARTS: usize = 16;

/// The counts, which all tables of a process share.
#[derive(Debug)]
pub struct UnansweredFlows {
    all: AtomicUsize,
    parts: [Mutex<Networks>; PARTS],
    /// Keyed: clients choose their addresses.
    hasher: RandomState,
}

#[derive(Debug)]
struct Networks {
    counts: HashMap<Network, u16, RandomState>,
    counted: Counted,
}

impl UnansweredFlows {
    /// No flow.
    pub fn new(budget: &Arc<Budget>) -> Self {
        let networks = |_| {
            let counted = Counted::of(budget, Account::Flows, 0);
            Mutex::new(Networks { counts: HashMap::default(), counted })
        };
        let parts = std::array::from_fn(networks);
        Self { all: AtomicUsize::new(0), parts, hasher: RandomState::default() }
    }

    /// The number of all.
    pub fn all(&self) -> usize {
        self.all.load(Relaxed)
    }

    /// True if another one must wait for the end of one.
    pub fn is_full(&self) -> bool {
        self.all() >= UNANSWERED_MAX
    }

    /// True if a network has as many as it may have.
    pub fn is_full_of(&self, network: Network) -> bool {
        let networks = self.part(network).lock();
        networks.counts.get(&network).is_some_and(|count| *count >= UNANSWERED_OF_NETWORK_MAX)
    }

    /// Counts a flow of a network. Returns false if the network has as many as it may have.
    pub(crate) fn add(&self, network: Network) -> bool {
        let mut networks = self.part(network).lock();
        let count = networks.counts.entry(network).or_default();
        if *count >= UNANSWERED_OF_NETWORK_MAX {
            return false;
        }
        *count += 1;
        networks.count();
        self.all.fetch_add(1, Relaxed);
        true
    }

    /// A flow of a network is answered, or has ended.
    pub(crate) fn remove(&self, network: Network) {
        let mut networks = self.part(network).lock();
        let Some(count) = networks.counts.get_mut(&network) else { return };
        *count -= 1;
        if *count == 0 {
            networks.counts.remove(&network);
            if networks.counts.is_empty() {
                networks.counts = HashMap::default();
            }
        }
        networks.count();
        self.all.fetch_sub(1, Relaxed);
    }

    fn part(&self, network: Network) -> &Mutex<Networks> {
        &self.parts[self.hasher.hash_one(network) as usize % PARTS]
    }
}

impl Networks {
    fn count(&mut self) {
        // An entry and its control byte (hashbrown).
        let bytes = self.counts.capacity() * (size_of::<(Network, u16)>() + 1);
        self.counted.set(bytes);
    }
}
