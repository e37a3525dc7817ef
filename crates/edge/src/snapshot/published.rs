//! Passes the newest configuration from the thread that reloads to the workers.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use eyelet_engine::departure::Departure;
use eyelet_engine::worker::{ListenerSocket, Update};
use eyelet_sys::socket::datagram;
use eyelet_telemetry::log::Lines;

use crate::snapshot::Snapshot;
use crate::snapshot::listen::Bound;

/// The newest configuration, and the generation that each worker serves by. The lock is taken only
/// at a reload.
pub struct Published {
    latest: Mutex<Publication>,
    served: Box<[AtomicU64]>,
    /// The departure of each worker for the process that replaces this one. Each takes its own.
    departures: Mutex<Vec<Option<Departure>>>,
    first_id: AtomicU64,
}

/// The message of a reload to all workers.
struct Publication {
    snapshot: Arc<Snapshot>,
    listeners: Arc<[Bound]>,
    lines: Lines,
}

/// The message of a reload to one worker.
pub struct SnapshotUpdate {
    /// The configuration.
    pub snapshot: Arc<Snapshot>,
    /// The output of its access lines.
    pub lines: Lines,
    listeners: Arc<[Bound]>,
    workers: usize,
}

impl SnapshotUpdate {
    /// The changes for a worker's event loop.
    pub fn of_worker(&self, worker: usize) -> Update {
        Update {
            settings: self.snapshot.settings,
            sockets: sockets(&self.listeners, worker, self.workers),
        }
    }
}

impl Published {
    /// The first configuration, by which this many workers serve.
    pub fn new(
        snapshot: Arc<Snapshot>,
        listeners: Arc<[Bound]>,
        lines: Lines,
        workers: usize,
    ) -> Self {
        let served = (0..workers).map(|_| AtomicU64::new(0)).collect();
        let latest = Mutex::new(Publication { snapshot, listeners, lines });
        Self { latest, served, departures: Mutex::default(), first_id: AtomicU64::new(1) }
    }

    /// Makes a configuration the newest.
    pub fn publish(&self, snapshot: Arc<Snapshot>, listeners: Arc<[Bound]>, lines: Lines) {
        let earlier = {
            let mut latest = self.latest.lock();
            std::mem::replace(&mut *latest, Publication { snapshot, listeners, lines })
        };
        // This may be the last reference to the earlier configuration, and freeing it takes time.
        drop(earlier);
    }

    /// Lets the listening sockets go that it does not keep. Each closes once its worker has let it
    /// go, too.
    pub fn let_listeners_go(&self, keeps: impl Fn(&Bound) -> bool) {
        let listeners = self.listeners();
        let kept = listeners.iter().filter(|bound| keeps(bound)).cloned().collect();
        self.latest.lock().listeners = kept;
    }

    /// The newest configuration.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.latest.lock().snapshot.clone()
    }

    pub fn listeners(&self) -> Arc<[Bound]> {
        self.latest.lock().listeners.clone()
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.served.len()
    }

    /// The newest configuration, if it is newer than `generation`.
    pub fn newer_than(&self, generation: u64) -> Option<SnapshotUpdate> {
        let latest = self.latest.lock();
        if latest.snapshot.generation <= generation {
            return None;
        }
        let Publication { snapshot, listeners, lines } = &*latest;
        let (snapshot, listeners, lines) = (snapshot.clone(), listeners.clone(), lines.clone());
        Some(SnapshotUpdate { snapshot, lines, listeners, workers: self.served.len() })
    }

    /// Notes that a worker serves by a configuration.
    pub fn note_served(&self, worker: usize, generation: u64) {
        if let Some(served) = self.served.get(worker) {
            served.store(generation, Relaxed);
        }
    }

    /// True if all workers serve by this configuration, or by a newer one.
    pub fn is_served(&self, generation: u64) -> bool {
        self.served.iter().all(|served| served.load(Relaxed) >= generation)
    }

    /// Sets the number of the first connection, before the workers serve.
    pub fn set_first_id(&self, id: u64) {
        self.first_id.store(id, Relaxed);
    }

    /// The number of the first connection of each worker.
    pub fn first_id(&self) -> u64 {
        self.first_id.load(Relaxed)
    }

    /// Lets each worker leave.
    pub fn depart(&self, departures: Vec<Departure>) {
        *self.departures.lock() = departures.into_iter().map(Some).collect();
    }

    /// Takes the departure of this worker.
    pub fn departure(&self, worker: usize) -> Option<Departure> {
        self.departures.lock().get_mut(worker)?.take()
    }
}

/// The worker that reads the listening UDP socket of this cookie, of so many workers.
pub fn worker_of_flows(listeners: &[Bound], cookie: u64, workers: usize) -> Option<usize> {
    let reading = listeners.iter().filter(|bound| bound.reads_datagrams());
    let mut sockets = reading.flat_map(|bound| bound.sockets.iter().enumerate());
    let is_it = |socket: &Arc<OwnedFd>| datagram::cookie(socket).is_ok_and(|it| it == cookie);
    let (nth, _) = sockets.find(|(_, socket)| is_it(socket))?;
    nth.checked_rem(workers)
}

/// One worker's sockets, of so many workers.
pub fn sockets(listeners: &[Bound], worker: usize, workers: usize) -> Vec<ListenerSocket> {
    // Those of datagrams are behind all others, each at the address of its listener.
    let of_address = |bound: &Bound| {
        let same = listeners.iter().position(|other| other.address == bound.address);
        same.unwrap_or_default() as u16
    };
    let of_worker = (0..).zip(listeners).flat_map(|(listener, bound)| {
        let sockets = bound.sockets.iter().skip(worker).step_by(workers);
        let (reads, of) = (bound.reads_datagrams(), of_address(bound));
        sockets.map(move |socket| match reads {
            false => ListenerSocket::new(listener, socket.clone()),
            true => ListenerSocket::of_datagrams(of, socket.clone()),
        })
    });
    of_worker.collect()
}
