//! The newest configuration, on its way from the thread that reloads to the workers.
//! It must not know what a worker does with it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use eyelet_engine::worker::{ListenerSocket, Update};
use eyelet_telemetry::log::Lines;

use crate::listen::Bound;
use crate::snapshot::Snapshot;

/// The newest configuration, and which one each worker serves by. Its lock is taken at a reload
/// and at no other time.
pub struct Published {
    newest: Mutex<Newest>,
    served: Box<[AtomicU64]>,
}

/// What a reload gives to workers.
struct Newest {
    snapshot: Arc<Snapshot>,
    listeners: Arc<[Bound]>,
    lines: Lines,
}

/// The same for one worker.
pub struct News {
    /// The configuration.
    pub snapshot: Arc<Snapshot>,
    /// Where its access lines go.
    pub lines: Lines,
    listeners: Arc<[Bound]>,
}

impl News {
    /// What changes in the event loop of a worker.
    pub fn update(&self, worker: usize) -> Update {
        Update { settings: self.snapshot.settings, sockets: sockets(&self.listeners, worker) }
    }
}

impl Published {
    /// The configuration of the start, which so many workers serve by.
    pub fn new(
        snapshot: Arc<Snapshot>,
        listeners: Arc<[Bound]>,
        lines: Lines,
        workers: usize,
    ) -> Self {
        let served = (0..workers).map(|_| AtomicU64::new(snapshot.generation)).collect();
        Self { newest: Mutex::new(Newest { snapshot, listeners, lines }), served }
    }

    /// Makes a configuration the newest.
    pub fn publish(&self, snapshot: Arc<Snapshot>, listeners: Arc<[Bound]>, lines: Lines) {
        let earlier = {
            let mut newest = self.newest();
            std::mem::replace(&mut *newest, Newest { snapshot, listeners, lines })
        };
        // It may be the last one to hold the earlier configuration, which takes a while to free.
        drop(earlier);
    }

    /// The newest configuration.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.newest().snapshot.clone()
    }

    /// Its listeners.
    pub fn listeners(&self) -> Arc<[Bound]> {
        self.newest().listeners.clone()
    }

    /// The newest configuration, if it is newer than `generation`.
    pub fn news(&self, generation: u64) -> Option<News> {
        let newest = self.newest();
        if newest.snapshot.generation <= generation {
            return None;
        }
        let Newest { snapshot, listeners, lines } = &*newest;
        let (snapshot, listeners, lines) = (snapshot.clone(), listeners.clone(), lines.clone());
        Some(News { snapshot, lines, listeners })
    }

    /// Notes that a worker serves by a configuration.
    pub fn note_served(&self, worker: usize, generation: u64) {
        if let Some(served) = self.served.get(worker) {
            served.store(generation, Relaxed);
        }
    }

    /// Whether all workers serve by this configuration, or by a newer one.
    pub fn is_served(&self, generation: u64) -> bool {
        self.served.iter().all(|served| served.load(Relaxed) >= generation)
    }

    fn newest(&self) -> MutexGuard<'_, Newest> {
        // Each value is whole: it is replaced in one step.
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One worker's sockets.
pub fn sockets(listeners: &[Bound], worker: usize) -> Vec<ListenerSocket> {
    let of_worker = (0..).zip(listeners).filter_map(|(listener, bound)| {
        let socket = bound.sockets.get(worker)?.clone();
        Some(ListenerSocket { listener, socket, drops: 0 })
    });
    of_worker.collect()
}
