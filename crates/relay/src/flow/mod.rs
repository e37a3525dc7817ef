//! The state of a connection between two wakes: nothing, unless a peer is slow or a stream has
//! ended.

pub(crate) mod direction;
pub mod export;
pub(crate) mod frames;
mod inspected;
pub(crate) mod partial_flight;
mod websocket;

use std::num::NonZeroU32;

use crate::buffers::LentPipe;
use crate::ready::{CLIENT, Side, UPSTREAM};
use direction::{ClientEnd, Direction, Mode, UpstreamEnd};
use eyelet_memory::packed::PackedBytes;
use eyelet_memory::wiped::WipedBytes;
use eyelet_sys::memory::blocks::{LongBox, LongLived};
use eyelet_telemetry::reason::Reason;
use frames::WebSocketFrames;
use partial_flight::PartialFlight;

/// The state of a connection between two wakes, besides its keys.
#[derive(Default)]
pub struct Flow {
    kept: Option<LongBox<Kept>>,
    /// From the client to the upstream.
    pub(crate) up: Direction<ClientEnd>,
    /// From the upstream to the client.
    pub(crate) down: Direction<UpstreamEnd>,
    /// The last bytes moved to the upstream: it may be about to answer.
    is_asked: bool,
    /// The upstream was written once, and its socket has no TCP_NODELAY yet.
    pub(crate) is_written_once: bool,
    /// The queue in which it has a position.
    queued: Queued,
    /// The kind of its bytes.
    pub(crate) kind: FlowKind,
}

/// The kind of the bytes, as far as it decides how the connection ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FlowKind {
    /// Any.
    #[default]
    Bytes,
    /// A WebSocket, whose frames are followed.
    WebSocket,
    /// Streams, some of which rest with upstreams of their own: they are being served.
    Streams,
}

/// The queues of those that may end when memory is short. Only a connection without an upstream is
/// half-open, and only one with an upstream holds bytes for a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Queued {
    #[default]
    No,
    /// It holds an unserved request, or part of one.
    HalfOpen,
    /// It holds bytes: see [`Flow::holds_since`].
    Holding,
}

/// The parts that are in memory for a connection. Few have both, and most have neither.
#[derive(Default)]
struct Kept {
    /// Bytes in transit.
    pending: Option<Box<Pending>>,
    /// The part that the program keeps.
    program: Option<ProgramState>,
}

/// The part of a parked connection that the program keeps.
enum ProgramState {
    /// The state of a connection without an upstream, between two requests.
    Idle(PackedBytes),
    /// An exchange that rests: its upstream is beside it. It may hold secrets.
    Exchange(WipedBytes),
}

/// The exchanges that rest on a parked connection, as the program keeps them.
pub enum KeptExchanges<'a> {
    /// An exchange: [`Flow::keep_exchange`].
    Exchange(&'a [u8]),
    /// Streams, some of which have upstreams of their own: [`Flow::keep_state`]. There may be none
    /// where the program is asked for its last bytes.
    Streams(&'a PackedBytes),
}

/// Bytes that were read but cannot be written, or opened, yet.
#[derive(Default)]
pub struct Pending {
    pub to_upstream: Held,
    /// For the client; sealed if TLS ends here.
    pub to_client: Held,
    /// The beginning of a TLS record.
    pub(crate) partial: Partial,
    /// A PROXY header for an upstream that is dialled later.
    pub preface: Vec<u8>,
    /// The received part of a flight under inspection.
    pub partial_flight: Option<Box<PartialFlight>>,
    /// The places in a WebSocket's frames.
    pub(crate) frames: WebSocketFrames,
}

/// The beginning of a TLS record.
#[derive(Default)]
pub(crate) struct Partial {
    pub(crate) bytes: Vec<u8>,
    /// The tick since which the beginning of a record is held.
    pub(crate) since: Option<NonZeroU32>,
}

/// The state of a connection whose upstream was never dialled.
#[derive(Default)]
pub struct Rest {
    /// The beginning of a TLS record.
    pub partial: Vec<u8>,
    /// The client's first bytes.
    pub to_upstream: Vec<u8>,
    /// Sealed, for the client.
    pub to_client: Vec<u8>,
    /// A PROXY header for the upstream.
    pub preface: Vec<u8>,
    /// See [`Flow::keep_state`].
    pub state: Option<PackedBytes>,
    /// See [`Flow::keep_exchange`].
    pub exchange: Option<WipedBytes>,
}

/// Bytes held for one socket, in memory or in a pipe.
#[derive(Default)]
pub struct Held {
    pub(crate) bytes: Vec<u8>,
    pub(crate) sent: usize,
    pub(crate) pipe: Option<(LentPipe, usize)>,
    /// The tick since which bytes in memory wait for the socket.
    pub(crate) since: Option<NonZeroU32>,
}

impl Held {
    pub(crate) fn is_empty(&self) -> bool {
        self.is_sent() && self.pipe.is_none()
    }

    /// True if the bytes in memory are sent. Those in the pipe follow them.
    pub(crate) fn is_sent(&self) -> bool {
        self.sent == self.bytes.len()
    }
}

impl Flow {
    /// True if a side's stream is open.
    pub(crate) fn is_open(&self, from: Side) -> bool {
        match from {
            CLIENT => self.up.is_open(),
            _ => self.down.is_open(),
        }
    }

    /// The way in which a side's bytes are moved. `None`: its stream has ended.
    pub(crate) fn mode(&mut self, from: Side) -> Option<&mut Mode> {
        match from {
            CLIENT => self.up.mode(),
            _ => self.down.mode(),
        }
    }

    fn kept(&mut self) -> &mut Kept {
        self.kept.get_or_insert_with(|| LongBox::new_in(Kept::default(), LongLived))
    }

    pub(crate) fn pending(&mut self) -> &mut Pending {
        self.kept().pending.get_or_insert_default()
    }

    /// Bytes in transit, if there are any.
    pub(crate) fn transit(&self) -> Option<&Pending> {
        self.kept.as_ref()?.pending.as_deref()
    }

    pub(crate) fn transit_mut(&mut self) -> Option<&mut Pending> {
        self.kept.as_mut()?.pending.as_deref_mut()
    }

    pub(crate) fn set_transit(&mut self, pending: Pending) {
        self.kept().pending = Some(Box::new(pending));
    }

    /// Keeps what the program needs when the client's next bytes come. The connection has no
    /// upstream.
    pub fn keep_state(&mut self, state: PackedBytes) {
        self.kept().program = Some(ProgramState::Idle(state));
    }

    /// Keeps an exchange that rests. The next byte of either side, or its deadline, has the program
    /// go on with it.
    pub fn keep_exchange(&mut self, exchange: &[u8]) {
        self.kept().program = Some(ProgramState::Exchange(WipedBytes::from(exchange)));
    }

    /// Notes whether the connection has streams that rest with upstreams of their own. An exchange
    /// of HTTP/1.1 may rest on a shared stream, and is none of them.
    pub fn set_has_streams(&mut self, has: bool) {
        match has && self.exchange().is_none() {
            true => self.kind = FlowKind::Streams,
            false if self.has_streams() => self.kind = FlowKind::Bytes,
            false => {}
        }
    }

    /// True if it has streams that rest with upstreams of their own.
    pub fn has_streams(&self) -> bool {
        self.kind == FlowKind::Streams
    }

    /// True if the program keeps a state and no stream of it is served: HTTP/2 between requests.
    pub fn is_between_requests(&self) -> bool {
        self.state().is_some() && !self.has_streams()
    }

    /// The part that the program keeps.
    pub fn state(&self) -> Option<&PackedBytes> {
        match self.kept.as_ref()?.program.as_ref()? {
            ProgramState::Idle(state) => Some(state),
            ProgramState::Exchange(_) => None,
        }
    }

    /// Returns the same, to be changed in place.
    pub fn state_mut(&mut self) -> Option<&mut PackedBytes> {
        match self.kept.as_mut()?.program.as_mut()? {
            ProgramState::Idle(state) => Some(state),
            ProgramState::Exchange(_) => None,
        }
    }

    /// The exchange that rests.
    pub fn exchange(&self) -> Option<&[u8]> {
        match self.kept.as_ref()?.program.as_ref()? {
            ProgramState::Idle(_) => None,
            ProgramState::Exchange(exchange) => Some(exchange),
        }
    }

    /// The exchanges that rest, if there are some.
    pub fn resting(&self) -> Option<KeptExchanges<'_>> {
        self.kept_by_program().filter(|_| !self.is_between_requests())
    }

    /// All that the program keeps.
    pub fn kept_by_program(&self) -> Option<KeptExchanges<'_>> {
        Some(match self.kept.as_ref()?.program.as_ref()? {
            ProgramState::Idle(state) => KeptExchanges::Streams(state),
            ProgramState::Exchange(exchange) => KeptExchanges::Exchange(exchange),
        })
    }

    /// Answers the bytes that wait for an upstream, in place of one. `answer` gets what the program
    /// keeps up to its first shared piece, and returns how many bytes are answered. Returns whether
    /// none is left.
    pub(crate) fn answer(&mut self, answer: impl FnOnce(&mut [u8], &[u8]) -> usize) -> bool {
        let Some(Kept { program: Some(ProgramState::Idle(state)), pending: Some(pending) }) =
            self.kept.as_deref_mut()
        else {
            return false;
        };
        let held = &mut pending.to_upstream;
        if held.sent > 0 || held.pipe.is_some() {
            return false;
        }
        let answered = answer(state.first_mut(), &held.bytes).min(held.bytes.len());
        held.bytes.drain(..answered);
        if held.bytes.is_empty() {
            held.bytes = Vec::new();
        }
        held.bytes.is_empty()
    }

    pub(crate) fn held(&mut self, to: Side) -> Option<&mut Held> {
        let pending = self.transit_mut()?;
        let held = match to {
            CLIENT => &mut pending.to_client,
            _ => &mut pending.to_upstream,
        };
        (!held.is_empty()).then_some(held)
    }

    /// Holds bytes for a side until it can be written.
    pub fn hold(&mut self, to: Side, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let pending = self.pending();
        let held = match to {
            CLIENT => &mut pending.to_client,
            _ => &mut pending.to_upstream,
        };
        held.bytes.extend_from_slice(bytes);
    }

    /// Notes that the dial has sent the upstream its first bytes, except for `unsent`.
    pub fn begin(&mut self, unsent: &[u8]) {
        self.is_written_once = true;
        self.hold(UPSTREAM, unsent);
    }

    /// Keeps what an upstream will be sent before the client's first byte, once it is dialled.
    pub fn hold_preface(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.pending().preface = bytes;
        }
    }

    /// Puts that preface before the client's bytes, when the upstream is dialled.
    pub fn preface_first(&mut self) {
        if let Some(pending) = self.transit_mut() {
            let mut first = std::mem::take(&mut pending.preface);
            first.extend_from_slice(&pending.to_upstream.bytes[pending.to_upstream.sent..]);
            pending.to_upstream = Held { bytes: first, ..Held::default() };
        }
    }

    /// Holds the beginning of a TLS record until the rest has arrived.
    pub fn hold_partial(&mut self, bytes: &[u8]) {
        self.hold_partial_since(bytes, None);
    }

    pub(crate) fn hold_partial_since(&mut self, bytes: &[u8], since: Option<NonZeroU32>) {
        if !bytes.is_empty() {
            self.pending().partial = Partial { bytes: bytes.to_vec(), since };
        }
    }

    /// Takes the held beginning of a record, to continue it.
    pub(crate) fn take_partial(&mut self) -> Partial {
        self.transit_mut().map(|pending| std::mem::take(&mut pending.partial)).unwrap_or_default()
    }

    /// Returns what a task needs to take the connection over.
    pub fn into_rest(self) -> Rest {
        let Some(kept) = self.kept else { return Rest::default() };
        let Kept { pending, program } = LongBox::into_inner(kept);
        let (state, exchange) = match program {
            Some(ProgramState::Idle(state)) => (Some(state), None),
            Some(ProgramState::Exchange(exchange)) => (None, Some(exchange)),
            None => (None, None),
        };
        let pending = pending.map(|pending| *pending).unwrap_or_default();
        Rest {
            partial: pending.partial.bytes,
            to_upstream: pending.to_upstream.bytes,
            to_client: pending.to_client.bytes[pending.to_client.sent..].to_vec(),
            preface: pending.preface,
            state,
            exchange,
        }
    }

    /// Bytes of memory that hold what the program keeps.
    pub fn program_bytes(&self) -> usize {
        let Some(kept) = &self.kept else { return 0 };
        let program = match &kept.program {
            Some(ProgramState::Idle(state)) => state.held_bytes(),
            Some(ProgramState::Exchange(exchange)) => exchange.len(),
            // It was made for bytes in transit.
            None => return 0,
        };
        size_of::<Kept>() + program
    }

    /// Bytes of memory held.
    pub fn held_bytes(&self) -> usize {
        let Some(kept) = &self.kept else { return 0 };
        let program = self.program_bytes().max(size_of::<Kept>());
        let transit = kept.pending.as_ref().map_or(0, |pending| {
            size_of::<Pending>()
                + pending.to_client.bytes.capacity()
                + pending.to_upstream.bytes.capacity()
                + pending.partial.bytes.capacity()
                + pending.preface.capacity()
                + pending
                    .partial_flight
                    .as_ref()
                    .map_or(0, |partial_flight| partial_flight.held_bytes())
        });
        program + transit
    }

    /// Its state's part of the bytes of shared pieces. The budget counts them with the pieces.
    pub fn shared_bytes(&self) -> usize {
        self.state().map_or(0, PackedBytes::shared_bytes)
    }

    /// To be called after each wake, at tick `now`. Returns the tick since which the slowest peer
    /// has not taken the bytes that are held for it.
    pub fn note_holding(&mut self, now: u32) -> Option<u32> {
        let now = NonZeroU32::MIN.saturating_add(now);
        let note = |holds: bool, since: &mut Option<NonZeroU32>| {
            *since = holds.then(|| since.unwrap_or(now));
        };
        let pending = self.transit_mut()?;
        for held in [&mut pending.to_client, &mut pending.to_upstream] {
            note(!held.is_sent(), &mut held.since);
        }
        note(!pending.partial.bytes.is_empty(), &mut pending.partial.since);
        if let Some(partial_flight) = &mut pending.partial_flight {
            note(partial_flight.holds(), &mut partial_flight.since);
        }
        self.holds_since()
    }

    /// Returns that tick, and changes nothing.
    pub fn holds_since(&self) -> Option<u32> {
        let pending = self.transit()?;
        let flight =
            pending.partial_flight.as_ref().and_then(|partial_flight| partial_flight.since);
        let begun = pending.partial.since;
        let all = [pending.to_client.since, pending.to_upstream.since, begun, flight];
        all.into_iter().flatten().min().map(|since| since.get() - 1)
    }

    /// Marks it as queued among those that hold bytes. Returns whether it was not queued before.
    pub fn begins_to_hold(&mut self) -> bool {
        std::mem::replace(&mut self.queued, Queued::Holding) != Queued::Holding
    }

    /// Notes that it is not queued any more.
    pub fn leaves_queue(&mut self) {
        if self.queued == Queued::Holding {
            self.queued = Queued::No;
        }
    }

    /// True if an exchange may rest in it: both streams are open, and bytes are in transit at most
    /// to the client.
    pub fn may_rest(&self) -> bool {
        self.up.is_open() && self.down.is_open() && !self.is_websocket() && !self.has_begun()
    }

    /// Bytes in memory that the client has not taken.
    pub fn untaken(&self) -> usize {
        self.transit().map_or(0, |pending| pending.to_client.bytes.len() - pending.to_client.sent)
    }

    /// True if no bytes are in transit.
    pub fn is_quiet(&self) -> bool {
        self.transit().is_none_or(|pending| {
            pending.to_client.is_empty()
                && pending.to_upstream.is_empty()
                && pending.partial.bytes.is_empty()
                && !pending
                    .partial_flight
                    .as_ref()
                    .is_some_and(|partial_flight| partial_flight.holds())
        })
    }

    /// True if any part of a request has arrived that is not on its way to an upstream. Our own
    /// bytes that the client does not read do not count.
    pub(crate) fn has_begun(&self) -> bool {
        self.transit().is_some_and(|pending| {
            !pending.to_upstream.is_empty() || !pending.partial.bytes.is_empty()
        })
    }

    /// True if the upstream was sent something and has not answered yet.
    pub fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Notes whether it was, for a flow that comes from another process.
    pub(crate) fn set_asked(&mut self, is_asked: bool) {
        self.is_asked = is_asked;
    }

    /// Notes that it is parked before it is served. Returns whether it now becomes half-open,
    /// because it holds part of a request.
    pub fn begins_to_wait(&mut self) -> bool {
        let does = self.has_begun() && !self.has_streams();
        let now = if does { Queued::HalfOpen } else { Queued::No };
        let did = std::mem::replace(&mut self.queued, now) == Queued::HalfOpen;
        does && !did
    }

    /// True if it is half-open.
    pub fn waits(&self) -> bool {
        self.queued == Queued::HalfOpen && self.has_begun()
    }

    pub(crate) fn note_moved(&mut self, to: Side) {
        self.is_asked = to == UPSTREAM;
    }

    /// Notes that a side has ended its stream by a FIN.
    pub(crate) fn note_fin(&mut self, from: Side) {
        match from {
            CLIENT => self.up.end(ClientEnd::Fin),
            _ => self.note_upstream_end(),
        }
    }

    pub(crate) fn note_upstream_end(&mut self) {
        let is_first = self.up.is_open();
        self.down.end(if is_first { UpstreamEnd::First } else { UpstreamEnd::Second });
    }

    /// True if the end of the stream to a side is still to be passed on.
    pub(crate) fn is_end_due(&self, to: Side) -> bool {
        match to {
            CLIENT => self.down.is_end_due(),
            _ => self.up.is_end_due(),
        }
    }

    /// Notes that this end was passed on.
    pub(crate) fn pass_end(&mut self, to: Side) {
        match to {
            CLIENT => self.down.pass_end(),
            _ => self.up.pass_end(),
        }
    }

    /// True if both ends were passed on.
    pub(crate) fn is_over(&self) -> bool {
        self.up.is_end_passed() && self.down.is_end_passed()
    }

    /// True if the client may still send bytes that are never read.
    pub(crate) fn may_client_send(&self) -> bool {
        matches!(self.up.how_ended(), None | Some(ClientEnd::CloseNotify))
    }

    pub(crate) fn drop_empty(&mut self) {
        if let Some(kept) = &mut self.kept
            && let Some(pending) = &kept.pending
            && pending.to_client.is_empty()
            && pending.to_upstream.is_empty()
            && pending.partial.bytes.is_empty()
            && pending.preface.is_empty()
            && pending.partial_flight.is_none()
            && pending.frames.are_between()
        {
            kept.pending = None;
            if kept.program.is_none() {
                self.kept = None;
            }
        }
    }

    /// Returns the reason why the connection ended, once both directions have.
    pub(crate) fn end_reason(&self) -> Reason {
        match (self.down.how_ended(), self.up.how_ended()) {
            (Some(UpstreamEnd::First), _) => Reason::UpstreamClosed,
            (_, Some(ClientEnd::Truncated)) => Reason::Truncated,
            _ => Reason::ClientClosed(None),
        }
    }
}
