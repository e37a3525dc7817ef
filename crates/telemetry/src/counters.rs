//! Counters of the process. Each worker counts in its own cells, which are added up on request.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::cell::Cell;
use crate::histogram::{Histogram, HistogramValues};
use crate::listing::State;
use crate::listing::streams::{STREAM_KINDS, StreamCounts};
use crate::reason::Class;
use crate::text_counts::TextCounts;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The cells of one worker. Only that worker writes them.
        #[derive(Debug, Default)]
        #[repr(align(64))]
        pub struct Counters {
            /// Connections that were refused or failed, by the summaries of their reasons.
            pub reasons: TextCounts,
            /// Handshakes with clients, by the group of their key exchange.
            pub groups: TextCounts,
            /// Responses whose body was not coded, by the cause.
            pub not_coded: TextCounts,
            $($(#[$doc])* pub $name: Cell,)*
            /// Connections that ended, in the order of [`Class::ALL`].
            pub ended: [Cell; Class::ALL.len()],
            /// Requests and streams that tasks serve now, by kind.
            pub serving_streams: [Cell; STREAM_KINDS],
            /// Requests and streams that rest now, by kind.
            pub resting_streams: [Cell; STREAM_KINDS],
            /// Times from accept to the rules' verdict.
            pub decisions: Histogram,
            /// Times in which facts were fetched that the rules asked for.
            pub evidence: Histogram,
            /// Handshakes that clients completed, by [`handshake_kind`].
            pub completed: [Cell; HANDSHAKE_KINDS],
            /// Times of handshakes that clients completed, by [`handshake_kind`].
            pub handshakes: [Histogram; HANDSHAKE_KINDS],
            /// Times in which upstreams were connected to.
            pub connects: Histogram,
        }

        /// The sum over all workers of this process.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterValues {
            $($(#[$doc])* pub $name: u64,)*
            /// Connections that ended, in the order of [`Class::ALL`].
            pub ended: [u64; Class::ALL.len()],
            /// Requests and streams that tasks serve now, by kind.
            pub serving_streams: [u64; STREAM_KINDS],
            /// Requests and streams that rest now, by kind.
            pub resting_streams: [u64; STREAM_KINDS],
            /// Times from accept to the rules' verdict.
            pub decisions: HistogramValues,
            /// Times in which facts were fetched that the rules asked for.
            pub evidence: HistogramValues,
            /// Handshakes that clients completed, by [`handshake_kind`].
            pub completed: [u64; HANDSHAKE_KINDS],
            /// Times of handshakes that clients completed, by [`handshake_kind`].
            pub handshakes: [HistogramValues; HANDSHAKE_KINDS],
            /// Times in which upstreams were connected to.
            pub connects: HistogramValues,
        }

        /// Adds up the cells of all workers.
        pub fn snapshot() -> CounterValues {
            let mut sum = CounterValues::default();
            for cells in WORKERS.lock().iter() {
                $(sum.$name = sum.$name.wrapping_add(cells.$name.value());)*
                add_up(&mut sum.ended, &cells.ended);
                add_up(&mut sum.completed, &cells.completed);
                add_up(&mut sum.serving_streams, &cells.serving_streams);
                add_up(&mut sum.resting_streams, &cells.resting_streams);
                cells.decisions.add_to(&mut sum.decisions);
                cells.evidence.add_to(&mut sum.evidence);
                cells.connects.add_to(&mut sum.connects);
                for (sum, cells) in sum.handshakes.iter_mut().zip(&cells.handshakes) {
                    cells.add_to(sum);
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
    /// Connections that came from another process.
    taken_over,
    /// Connections that left for another process.
    handed_over,
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
    /// Active connections for which a fact is being fetched now.
    deciding,
    /// Active connections whose upstream is being dialled now.
    dialling,
    /// Active connections whose handshake is under way now.
    handshaking,
    /// Handshakes with clients that failed, or that the client left.
    handshakes_failed,
    /// Connections whose name evidence has proved to be one of the destination.
    evidence_agrees,
    /// Connections whose name no evidence proves, and some contradicts.
    evidence_disagrees,
    /// Connections about whose name evidence that was asked for says nothing.
    evidence_unknown,
    /// Connections that are logged and only send their last bytes now.
    lingering,
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
    /// Requests refused because a placeholder of a secret stood where no secret may.
    placeholders_refused,
    /// Connections redirected to https://.
    redirected,
    /// Connections refused by a rule or for lack of one.
    refused,
    /// Bytes of parked connections on which requests or streams rest.
    resting_bytes,
    /// Their number.
    resting_connections,
    /// Requests of clients that are over.
    requests,
    /// Those that failed, and whose client is not the cause.
    requests_failed,
    /// Requests in which secrets took the places of their placeholders.
    secrets_filled,
    /// Responses refused because they showed a secret.
    secrets_reflected,
    /// Active connections whose requests are being served now.
    serving,
    /// Connections that were ended, or not accepted, because memory was short.
    shed,
    /// Times that a file that changed could not be used. Each fault counts once.
    sources_refused,
    /// Times that the new contents of a file replaced what was read from it before.
    sources_replaced,
    /// Spans of traces that the collector did not take, or that found the queue full.
    spans_lost,
    /// Spans that the collector took.
    spans_sent,
    /// Connections spliced.
    spliced,
    /// Times that the store of the fleet could not be used.
    store_failures,
    /// Connections terminated.
    terminated,
    /// Flows of QUIC now, one for each address of a client.
    flows,
    /// Flows of QUIC that began.
    flows_begun,
    /// Flows that were refused.
    flows_refused,
    /// Flows that could not begin: too many were unanswered, or there was no room.
    flows_not_begun,
    /// Times that a client of a flow had another address.
    flow_moves,
    /// Datagrams that were dropped: of no flow, or without room to wait.
    flow_datagrams_dropped,
    /// Connections that ended before their rule's action began.
    failed,
    /// Connections that ended before their rule's action began, because the client left.
    left,
}

fn add_up(sums: &mut [u64], cells: &[Cell]) {
    for (sum, cell) in sums.iter_mut().zip(cells) {
        *sum = sum.wrapping_add(cell.value());
    }
}

/// Kinds of handshakes: two versions, each full or resumed.
pub const HANDSHAKE_KINDS: usize = 4;

/// The place of a handshake's kind among [`HANDSHAKE_KINDS`].
pub const fn handshake_kind(is_tls13: bool, is_resumed: bool) -> usize {
    match (is_tls13, is_resumed) {
        (false, false) => 0,
        (false, true) => 1,
        (true, false) => 2,
        (true, true) => 3,
    }
}

impl Counters {
    /// The cell of the active connections in this state. `None`: what no other state counts is
    /// peeking, and parked ones have a cell of their own.
    pub fn of_state(&self, state: State) -> Option<&Cell> {
        match state {
            State::Peeking | State::Held | State::Moving | State::Parked => None,
            State::Deciding => Some(&self.deciding),
            State::Handshaking => Some(&self.handshaking),
            State::Dialling => Some(&self.dialling),
            State::Serving => Some(&self.serving),
        }
    }
}

/// Shows the cells of each worker.
pub(crate) fn each_worker(note: impl FnMut(&Arc<Counters>)) {
    WORKERS.lock().iter().for_each(note);
}

static WORKERS: Mutex<Vec<Arc<Counters>>> = Mutex::new(Vec::new());

impl CounterValues {
    /// All requests and streams that are under way: served, or at rest.
    pub fn streams(&self) -> StreamCounts {
        let mut streams = StreamCounts::from(self.serving_streams);
        streams.add_all(&self.resting_streams.into());
        streams
    }

    /// The open connections by state, in the order of their lives. The sum is
    /// [`Self::connections`]: what no other state counts is peeking. Numbers change while they are
    /// read, so that a state may have a connection too many for a moment.
    pub fn by_state(&self) -> [(&'static str, u64); 7] {
        let counted = [
            ("deciding", self.deciding),
            ("handshaking", self.handshaking),
            ("dialling", self.dialling),
            ("serving", self.serving),
            ("parked", self.parked),
            ("lingering", self.lingering),
        ];
        let mut left = self.connections;
        let [deciding, handshaking, dialling, serving, parked, lingering] =
            counted.map(|(name, count)| {
                let count = count.min(left);
                left -= count;
                (name, count)
            });
        [("peeking", left), deciding, handshaking, dialling, serving, parked, lingering]
    }
}

/// The summary that the process logs when it ends.
impl std::fmt::Display for CounterValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} accepted", self.accepted)?;
        let moved = [(self.taken_over, "taken over"), (self.handed_over, "handed over")];
        for (count, moved) in moved.iter().filter(|(count, _)| *count > 0) {
            write!(f, ", {count} {moved}")?;
        }
        write!(
            f,
            ": {} spliced, {} terminated, {} originated, {} refused, {} failed, \
             {} left, {} shed; {} drained; \
             accepting paused {} times, the kernel dropped {}, {} access lines lost; \
             {} files replaced, {} times a file that changed could not be used",
            self.spliced,
            self.terminated,
            self.originated,
            self.refused,
            self.failed,
            self.left,
            self.shed,
            self.ended[Class::Drained as usize],
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
    WORKERS.lock().push(cells.clone());
    cells
}
