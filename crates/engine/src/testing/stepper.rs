//! Steps a worker by hand: iterations, ticks of a clock that does not run, and the end.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use eyelet_memory::budget::{Account, Budget};
use eyelet_sys::epoll::Events;

use crate::iteration::accept::{Accepted, Accepting};
use crate::shedding::drain;
use crate::worker::Worker;
use eyelet_table::timer_wheel::TICK_MS;

/// Events of one iteration: more than a simulation has sockets.
const EVENTS: usize = 64;

const ACCOUNTS: [Account; 7] = [
    Account::Connections,
    Account::Received,
    Account::Relayed,
    Account::Texts,
    Account::Log,
    Account::Http,
    Account::Compression,
];

/// A worker without listeners that moves only when it is told to.
pub struct Stepper {
    pub worker: Rc<Worker>,
    events: Events,
    accepting: Accepting,
    now: Duration,
}

impl Stepper {
    pub fn new(worker: Rc<Worker>) -> Self {
        let (events, accepting) = (Events::with_capacity(EVENTS), Accepting::new(Vec::new()));
        Self { worker, events, accepting, now: Duration::ZERO }
    }

    /// A client connects, and its connection begins, as `accept` would have it.
    pub fn open(&mut self, client: OwnedFd, peer: SocketAddr) {
        self.worker.process.open.fetch_add(1, Relaxed);
        self.worker.uses_descriptors(2);
        self.accepting.waiting.push(Accepted { listener: 0, client, peer });
        self.worker.begin_all(&mut self.accepting);
    }

    /// One iteration of the event loop. The tasks that it wakes run later.
    pub fn iterate(&mut self) {
        self.worker.iteration(&mut self.events, &mut self.accepting).unwrap();
    }

    /// Moves the clock.
    pub fn tick(&mut self, ticks: u64) {
        self.now += Duration::from_millis(ticks * TICK_MS);
        self.worker.tick(&mut self.accepting, self.now);
    }

    /// A drain begins.
    pub fn drain(&self) {
        drain::begin(&self.worker);
    }

    /// The end of a drain's time: whatever is left ends now, or in its task.
    pub fn cut(&self) {
        self.worker.ending.is_cutting.set(true);
        let keys = self.worker.table.borrow().keys();
        drain::cut(&self.worker, &keys);
    }

    /// Takes the worker out.
    pub fn into_worker(self) -> Rc<Worker> {
        self.worker
    }
}

/// Panics unless the worker holds nothing.
pub fn check_worker(worker: Rc<Worker>) {
    assert!(worker.table.borrow().is_empty(), "a connection stays");
    assert_eq!(worker.process.open.load(Relaxed), 0, "connections");
    assert_eq!(worker.process.descriptors.load(Relaxed), 0, "descriptors");
    assert_eq!(worker.counters.connections.value(), 0, "connections");
    assert_eq!(worker.counters.parked.value(), 0, "parked connections");
    assert_eq!(worker.counters.parked_bytes.value(), 0, "bytes of parked connections");
    assert_eq!(worker.buffers.borrow().pipes_lent(), 0, "pipes");
    assert!(worker.shared.borrow().is_empty(), "texts of parked connections");
    assert!(worker.shedding.sources.is_empty(), "sources of parked connections");
    assert_eq!(Rc::strong_count(&worker), 1, "the worker is kept");
}

/// Panics unless all memory was given back. The worker is gone.
pub fn check_budget(budget: &Arc<Budget>) {
    for account in ACCOUNTS {
        assert_eq!(budget.used_by(account), 0, "{account:?}");
    }
}
