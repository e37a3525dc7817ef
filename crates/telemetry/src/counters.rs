//! Counters of the process. Each worker counts in its own cells, which are added up on request.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::reason::Class;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The cells of one worker. Only that worker writes them.
        #[derive(Debug, Default)]
        #[repr(align(64))]
        pub struct Counters {
            $($(#[$doc])* pub $name: Cell,)*
            /// Connections that ended, in the order of [`Class::ALL`].
            pub ended: [Cell; Class::ALL.len()],
        }

        /// The sum over all workers of this process.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterValues {
            $($(#[$doc])* pub $name: u64,)*
            /// Connections that ended, in the order of [`Class::ALL`].
            pub ended: [u64; Class::ALL.len()],
        }

        /// Adds up the cells of all workers.
        pub fn snapshot() -> CounterValues {
            let mut sum = CounterValues::default();
            for cells in WORKERS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                $(sum.$name = sum.$name.wrapping_add(cells.$name.0.load(Relaxed));)*
                for (sum, cell) in sum.ended.iter_mut().zip(&cells.ended) {
                    *sum = sum.wrapping_add(cell.value());
                }
            }
            sum
        }
    };
}

counters! {
    /// Certificates that an ACME server has issued.
    acme_issued,
    /// Orders at an ACME server that failed.
    acme_failures,
    /// Connections accepted since the start.
    accepted,
    /// Times that accepting paused: at the connection limit or out of descriptors.
    accept_pauses,
    /// Bytes that ended connections had written to their clients.
    bytes_to_client,
    /// Bytes that ended connections had written to their upstreams.
    bytes_to_upstream,
    /// Connections open now.
    connections,
    /// Handshakes with clients that failed, or that the client left.
    handshakes_failed,
    /// Full handshakes with clients by TLS 1.2.
    handshakes_tls12_full,
    /// Handshakes by TLS 1.2 that resumed a session.
    handshakes_tls12_resumed,
    /// Full handshakes with clients by TLS 1.3.
    handshakes_tls13_full,
    /// Handshakes by TLS 1.3 that resumed a session.
    handshakes_tls13_resumed,
    /// Log entries lost because their reader was too slow.
    lines_lost,
    /// Connections that the kernel dropped at this process's listeners because a queue was full.
    listen_drops,
    /// Connections in the clear whose requests went on by TLS.
    originated,
    /// Connections parked now.
    parked,
    /// Bytes that parked connections hold in this process.
    parked_bytes,
    /// Connections redirected to https://.
    redirected,
    /// Connections refused by a rule or for lack of one.
    refused,
    /// Connections that were ended, or not accepted, because memory was short.
    shed,
    /// Times that a file that changed could not be used. Each fault counts once.
    sources_refused,
    /// Times that the new contents of a file replaced what was read from it before.
    sources_replaced,
    /// Connections spliced.
    spliced,
    /// Times that the store of the fleet could not be used.
    store_failures,
    /// Connections terminated.
    terminated,
    /// Connections that ended before their rule's action began.
    failed,
    /// The same, because the client left.
    left,
}

impl Counters {
    /// Counts a handshake that a client has completed.
    pub fn handshake(&self, is_tls13: bool, is_resumed: bool) {
        let cell = match (is_tls13, is_resumed) {
            (false, false) => &self.handshakes_tls12_full,
            (false, true) => &self.handshakes_tls12_resumed,
            (true, false) => &self.handshakes_tls13_full,
            (true, true) => &self.handshakes_tls13_resumed,
        };
        cell.up();
    }
}

static WORKERS: Mutex<Vec<Arc<Counters>>> = Mutex::new(Vec::new());

/// The summary that the process logs when it ends.
impl std::fmt::Display for CounterValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} accepted: {} spliced, {} terminated, {} originated, {} refused, {} failed, \
             {} left, {} shed; \
             accepting paused {} times, the kernel dropped {}, {} access lines lost; \
             {} files replaced, {} times a file that changed could not be used",
            self.accepted,
            self.spliced,
            self.terminated,
            self.originated,
            self.refused,
            self.failed,
            self.left,
            self.shed,
            self.accept_pauses,
            self.listen_drops,
            self.lines_lost,
            self.sources_replaced,
            self.sources_refused,
        )?;
        if self.store_failures > 0 {
            write!(f, ", the store of the fleet failed {} times", self.store_failures)?;
        }
        match (self.acme_issued, self.acme_failures) {
            (0, 0) => Ok(()),
            (issued, failed) => write!(f, "; {issued} certificates issued, {failed} orders failed"),
        }
    }
}

/// The cells of a new worker.
pub fn register() -> Arc<Counters> {
    let cells = Arc::new(Counters::default());
    WORKERS.lock().unwrap_or_else(PoisonError::into_inner).push(cells.clone());
    cells
}

/// A number that one thread writes and others read: no read-modify-write is needed.
#[derive(Debug, Default)]
pub struct Cell(AtomicU64);

impl Cell {
    /// Adds one.
    pub fn up(&self) {
        self.add(1);
    }

    /// Subtracts one.
    pub fn down(&self) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(1), Relaxed);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Sets the number.
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// The number.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
