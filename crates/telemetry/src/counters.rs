//! Counters of the process. Each worker counts in its own cells, which are added up on request.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::evidence::Evidence;
use crate::reason::{Class, Party, Reason};
use crate::request::Coded;
use crate::text_counts::TextCounts;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The cells of one worker. Only that worker writes them.
        #[derive(Debug, Default)]
        #[repr(align(64))]
        pub struct Counters {
            $($(#[$doc])* pub $name: Cell,)*
            /// Connections that ended, in the order of [`Class::ALL`].
            pub ended: [Cell; Class::ALL.len()],
            /// Connections that were refused or failed, by [`Reason::summary`].
            pub reasons: TextCounts,
            /// Handshakes with clients, by the group of their key exchange.
            pub groups: TextCounts,
            /// Responses whose body was not coded, by the cause.
            pub not_coded: TextCounts,
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
    /// Responses that were coded here.
    coded,
    /// Bytes of their bodies from the upstream.
    coded_bytes_identity,
    /// Bytes of their bodies to the client.
    coded_bytes_sent,
    /// Nanoseconds that workers have spent in coders.
    coding_ns,
    /// Connections open now.
    connections,
    /// Names that evidence has proved to be those of the destination.
    names_proved,
    /// Names that evidence has proved false.
    names_false,
    /// Names about which evidence that was asked for says nothing.
    names_unknown,
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

    /// Counts what evidence says about a name.
    pub fn evidence(&self, evidence: &Evidence) {
        let by_certificate = evidence.certificate().map(|shown| shown.fault.is_none());
        let says = [evidence.dns_agrees(), by_certificate];
        let cell = if says.contains(&Some(true)) {
            &self.names_proved
        } else if says.contains(&Some(false)) {
            &self.names_false
        } else {
            &self.names_unknown
        };
        cell.up();
    }

    /// Counts a response by how its body was coded.
    pub fn response(&self, coded: &Coded) {
        if coded.coding.is_some() {
            self.coded.up();
            self.coded_bytes_identity.add(coded.bytes_identity);
            self.coded_bytes_sent.add(coded.bytes_sent);
        } else if let Some(why_not) = coded.why_not {
            self.not_coded.up(why_not);
        }
    }

    /// Counts the reason of a connection that did not end as connections do.
    pub fn fault(&self, reason: &Reason) {
        let class = reason.class();
        let is_usual = matches!(class, Class::Closed | Class::Drained | Class::Ended | Class::Left);
        // Nobody is to blame for the end of an idle connection.
        if !is_usual && reason.whose() != Party::Nobody {
            self.reasons.up(reason.summary());
        }
    }
}

/// Adds up texts of all workers, those that occurred most first.
pub fn texts(of: impl Fn(&Counters) -> &TextCounts) -> Vec<(&'static str, u64)> {
    let mut sums = BTreeMap::new();
    for cells in WORKERS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        of(cells).each(|text, count| *sums.entry(text).or_default() += count);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, count)| Reverse(*count));
    sums
}

static WORKERS: Mutex<Vec<Arc<Counters>>> = Mutex::new(Vec::new());

/// The summary that the process logs when it ends.
impl std::fmt::Display for CounterValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} accepted: {} spliced, {} terminated, {} refused, {} failed, {} left, {} shed; \
             accepting paused {} times, the kernel dropped {}, {} access lines lost; \
             {} files replaced, {} times a file that changed could not be used",
            self.accepted,
            self.spliced,
            self.terminated,
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
