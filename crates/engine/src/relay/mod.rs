//! Moving bytes between the two sockets of a parked connection, with buffers of the worker that
//! are given back when drained. It must not know rules, tasks or the log.

use std::borrow::Cow;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;

use eyelet_record::{PAYLOAD_BYTES_MAX, SLOT_BYTES};
use eyelet_sys::pipe::Pipe;
use eyelet_sys::socket;

use crate::lot::{CLIENT, READ, Ready, Side, UPSTREAM, WRITE};
use eyelet_telemetry::info::{End, Outcome, Parked};

pub mod splice;
pub mod terminate;
mod watched;

/// TLS records sealed at once: 256 KiB of payload, which stays in a core's own cache.
const SLOTS: usize = 16;
/// Bytes read at once.
const INPUT_BYTES: usize = SLOTS * SLOT_BYTES;
/// Bytes that one direction may move in one wake, so that a bulk transfer leaves the others
/// their turn.
const SHARE_BYTES: usize = 1 << 20;
/// Empty pipes kept for the next bulk transfer, two descriptors each.
const PIPES_KEPT: usize = 16;
/// Bytes read at once when memory is short: the payload of a record, which fits a send buffer
/// that is empty (net.ipv4.tcp_wmem begins with 16 KiB, doubled for the kernel's own use).
const TIGHT_BYTES: usize = 16 << 10;
/// Pipes lent to slow receivers: each holds kernel memory and two descriptors. Beyond them bulk
/// is copied.
pub const PIPES_MAX: usize = 64;
/// What a pipe holds: as much as a wake may move.
const PIPE_BYTES: usize = SHARE_BYTES;

/// The buffers of a worker, lent to one connection at a time.
pub struct Buffers {
    /// What was read.
    pub input: Box<[u8]>,
    /// TLS records on their way out.
    pub output: Box<[u8]>,
    /// The most that may be read for one connection at once, now. `None`: only what can be
    /// written on at once.
    pub piece: Option<usize>,
    pipes: Vec<Pipe>,
    /// Pipes that are not here: those that slow receivers hold.
    pipes_lent: usize,
}

impl Default for Buffers {
    /// Buffers whose pages are not touched yet.
    fn default() -> Self {
        // Zeroed by the kernel page by page: an edge that never moves bulk never holds them.
        Self {
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            output: vec![0; SLOTS * SLOT_BYTES].into_boxed_slice(),
            piece: None,
            pipes: Vec::new(),
            pipes_lent: 0,
        }
    }
}

impl Buffers {
    fn pipe(&mut self) -> Option<Pipe> {
        if self.pipes_lent == PIPES_MAX {
            return None;
        }
        let pipe = self.pipes.pop().or_else(|| Pipe::new(PIPE_BYTES).ok())?;
        self.pipes_lent += 1;
        Some(pipe)
    }

    /// Notes that a connection ended with a pipe that was not empty.
    pub fn lost_pipe(&mut self) {
        self.pipes_lent -= 1;
    }

    fn give_back(&mut self, pipe: Pipe) {
        self.pipes_lent -= 1;
        if self.pipes.len() < PIPES_KEPT {
            self.pipes.push(pipe);
        }
    }
}

/// How a parked connection's bytes are moved.
pub enum Relay {
    /// Untouched.
    Splice(splice::Spliced),
    /// TLS towards the client, plain towards the upstream.
    Terminate(terminate::Terminated),
}

impl Relay {
    /// The flow of either kind.
    pub fn flow(&mut self) -> &mut Flow {
        match self {
            Self::Splice(spliced) => &mut spliced.flow,
            Self::Terminate(terminated) => &mut terminated.flow,
        }
    }

    /// Bytes of memory that it holds beside its slot.
    pub fn held_bytes(&mut self) -> usize {
        let name = match self {
            Self::Splice(spliced) => spliced.name_bytes(),
            Self::Terminate(_) => 0,
        };
        name + self.flow().held_bytes()
    }
}

/// What a connection holds between two wakes beside its keys: nothing, unless a peer is slow.
#[derive(Default)]
pub struct Flow {
    pending: Option<Box<Pending>>,
    flags: u16,
    /// The tick since which the beginning of a record or of a watched flight is held.
    begun_since: Option<NonZeroU32>,
}

/// The client's stream has ended, and everything of it was read.
const CLIENT_ENDED: u16 = 1;
/// The upstream's stream has ended, and everything of it was read.
const UPSTREAM_ENDED: u16 = 1 << 1;
/// The end was passed on to the upstream.
const UPSTREAM_TOLD: u16 = 1 << 2;
/// The end was passed on to the client.
const CLIENT_TOLD: u16 = 1 << 3;
/// The upstream's end came first.
const UPSTREAM_FIRST: u16 = 1 << 4;
/// The client's stream ended without close_notify.
const TRUNCATED: u16 = 1 << 5;
/// Much is coming from the client.
const BULK_UP: u16 = 1 << 6;
/// Much is coming from the upstream.
const BULK_DOWN: u16 = 1 << 7;
/// The last bytes that moved went to the upstream: it may be about to answer.
const ASKED: u16 = 1 << 8;
/// What the client sends behind its hello is watched.
const WATCH_UP: u16 = 1 << 9;
/// What the server sends first is watched.
const WATCH_DOWN: u16 = 1 << 10;
/// A server that chooses TLS compression is not passed on.
const FORBID_COMPRESSION: u16 = 1 << 11;
/// The client's FIN was read: nothing can follow.
const CLIENT_FIN: u16 = 1 << 12;
/// It holds what came before it is served, and is one of those that make room.
const WAITS: u16 = 1 << 13;
/// The upstream's socket has not TCP_NODELAY yet: it was written once.
const WRITTEN_ONCE: u16 = 1 << 14;

/// It is in the queue of those that hold bytes: see [`Flow::holds_since`].
const QUEUED: u16 = 1 << 15;

/// Bytes that were read and could not be written yet, or not be opened yet.
#[derive(Default)]
pub struct Pending {
    /// For the upstream.
    pub to_upstream: Held,
    /// For the client: sealed, where TLS ends here.
    pub to_client: Held,
    /// The beginning of a TLS record.
    pub partial: Vec<u8>,
    /// A PROXY header for an upstream that is dialled later.
    pub preface: Vec<u8>,
    /// The part of a watched flight that has come.
    pub watching: Option<Box<watched::Watching>>,
}

/// The same of a connection whose upstream was not dialled.
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
}

/// Bytes held for one socket, in memory or in a pipe.
#[derive(Default)]
pub struct Held {
    bytes: Vec<u8>,
    sent: usize,
    pipe: Option<(Pipe, usize)>,
    /// The tick since which there are bytes in memory that the socket has not taken.
    since: Option<NonZeroU32>,
}

impl Held {
    fn is_empty(&self) -> bool {
        self.is_sent() && self.pipe.is_none()
    }

    /// Whether the bytes in memory are sent; those in the pipe come behind them.
    fn is_sent(&self) -> bool {
        self.sent == self.bytes.len()
    }
}

impl Flow {
    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    fn pending(&mut self) -> &mut Pending {
        self.pending.get_or_insert_default()
    }

    fn held(&mut self, to: Side) -> Option<&mut Held> {
        let pending = self.pending.as_mut()?;
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

    /// Notes that the upstream was sent its first bytes by the dial, but for these.
    pub fn begin(&mut self, unsent: &[u8]) {
        self.flags |= WRITTEN_ONCE;
        self.hold(UPSTREAM, unsent);
    }

    /// Keeps what an upstream that is not dialled yet is sent before the client's first byte.
    pub fn hold_preface(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.pending().preface = bytes;
        }
    }

    /// Gives that back when the upstream is there.
    pub fn preface_first(&mut self) {
        if let Some(pending) = &mut self.pending {
            let mut first = std::mem::take(&mut pending.preface);
            first.extend_from_slice(&pending.to_upstream.bytes[pending.to_upstream.sent..]);
            pending.to_upstream = Held { bytes: first, ..Held::default() };
        }
    }

    /// Holds the beginning of a TLS record until the rest has come.
    pub fn hold_partial(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.pending().partial = bytes.to_vec();
        }
    }

    /// What a task needs that takes the connection over.
    pub fn into_rest(self) -> Rest {
        self.pending.map_or_else(Rest::default, |pending| Rest {
            partial: pending.partial,
            to_upstream: pending.to_upstream.bytes,
            to_client: pending.to_client.bytes[pending.to_client.sent..].to_vec(),
            preface: pending.preface,
        })
    }

    /// Bytes of memory held.
    pub fn held_bytes(&self) -> usize {
        self.pending.as_ref().map_or(0, |pending| {
            size_of::<Pending>()
                + pending.to_client.bytes.capacity()
                + pending.to_upstream.bytes.capacity()
                + pending.partial.capacity()
                + pending.preface.capacity()
                + pending.watching.as_ref().map_or(0, |watching| watching.held_bytes())
        })
    }

    /// Notes what it holds in memory for a peer at tick `now`, after each wake. Gives the tick
    /// since which the slowest peer has not taken what is held for it.
    pub fn note_holding(&mut self, now: u32) -> Option<u32> {
        let now = NonZeroU32::MIN.saturating_add(now);
        let note = |holds: bool, since: &mut Option<NonZeroU32>| {
            *since = holds.then(|| since.unwrap_or(now));
        };
        let Some(pending) = &mut self.pending else {
            self.begun_since = None;
            return None;
        };
        for held in [&mut pending.to_client, &mut pending.to_upstream] {
            note(!held.is_sent(), &mut held.since);
        }
        let is_held_back = pending.watching.as_ref().is_some_and(|watching| watching.holds());
        let has_begun = !pending.partial.is_empty() || is_held_back;
        note(has_begun, &mut self.begun_since);
        self.holds_since()
    }

    /// The same without noting anything.
    pub fn holds_since(&self) -> Option<u32> {
        let pending = self.pending.as_ref()?;
        let all = [pending.to_client.since, pending.to_upstream.since, self.begun_since];
        all.into_iter().flatten().min().map(|since| since.get() - 1)
    }

    /// Whether it was not queued as one that holds bytes; it is from now on.
    pub fn begins_to_hold(&mut self) -> bool {
        let was = self.has(QUEUED);
        self.flags |= QUEUED;
        !was
    }

    /// Notes that it is not queued any more.
    pub fn leaves_queue(&mut self) {
        self.flags &= !QUEUED;
    }

    /// Pipes that are not empty, of both directions.
    pub fn pipes(&self) -> usize {
        self.pending.as_ref().map_or(0, |pending| {
            let held = [&pending.to_client, &pending.to_upstream];
            held.into_iter().filter(|held| held.pipe.is_some()).count()
        })
    }

    /// Whether nothing is on its way.
    pub fn is_quiet(&self) -> bool {
        self.pending.as_ref().is_none_or(|pending| {
            pending.to_client.is_empty()
                && pending.to_upstream.is_empty()
                && pending.partial.is_empty()
        })
    }

    /// Whether anything of a request has come that is not on its way to an upstream. What the
    /// client leaves unread of our own is no request.
    fn has_begun(&self) -> bool {
        self.pending
            .as_ref()
            .is_some_and(|pending| !pending.to_upstream.is_empty() || !pending.partial.is_empty())
    }

    /// Whether the upstream was told something and has not answered yet.
    pub fn is_asked(&self) -> bool {
        self.has(ASKED)
    }

    /// Notes that it rests before it is served; whether it holds something from now on that makes
    /// it one of those that make room.
    pub fn begins_to_wait(&mut self) -> bool {
        let (did, does) = (self.has(WAITS), self.has_begun());
        self.flags = if does { self.flags | WAITS } else { self.flags & !WAITS };
        does && !did
    }

    /// Whether it is one of those.
    pub fn waits(&self) -> bool {
        self.has(WAITS) && self.has_begun()
    }

    fn note_moved(&mut self, to: Side) {
        if to == CLIENT {
            self.flags &= !ASKED;
        } else {
            self.flags |= ASKED;
        }
    }

    fn note_end(&mut self, from: Side) {
        if from == CLIENT {
            self.flags |= CLIENT_ENDED;
        } else {
            if !self.has(CLIENT_ENDED) {
                self.flags |= UPSTREAM_FIRST;
            }
            self.flags |= UPSTREAM_ENDED;
        }
    }

    fn note_fin(&mut self) {
        self.flags |= CLIENT_FIN;
        self.note_end(CLIENT);
    }

    fn drop_empty(&mut self) {
        if let Some(pending) = &self.pending
            && pending.to_client.is_empty()
            && pending.to_upstream.is_empty()
            && pending.partial.is_empty()
            && pending.preface.is_empty()
            && pending.watching.is_none()
        {
            self.pending = None;
        }
    }

    /// Why it ended, in the access line's words, once both directions have.
    fn end_reason(&self) -> &'static str {
        match (self.has(UPSTREAM_FIRST), self.has(TRUNCATED)) {
            (true, _) => "upstream closed",
            (false, true) => "client closed without close_notify",
            (false, false) => "client closed",
        }
    }
}

/// The two sockets of a connection and what is known of their readiness.
pub struct Sockets<'a> {
    /// The client's.
    pub client: BorrowedFd<'a>,
    /// The upstream's, where one was dialled.
    pub upstream: Option<BorrowedFd<'a>>,
    /// Edges not used up yet.
    pub ready: &'a mut Ready,
}

/// What came of a wake.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// Everything that could be moved was: back to rest.
    Rest,
    /// There is more, but others have their turn first.
    Again,
    /// There may be more, but memory is short and what was written last is not sent yet.
    Later,
    /// The client's first bytes are here: dial the upstream.
    Dial,
    /// Both directions have ended.
    Closed(End),
    /// The same, but the client may still send what nobody reads: a reset that answers it must
    /// not overtake what the client was sent last.
    Linger(End),
    /// A side was reset, or has failed: reset the other.
    Reset(End),
    /// The client was sent an alert: let it be read. What it had sent so far was cut.
    Cut(End),
}

/// A side's socket failed.
#[derive(Debug)]
struct Failed {
    side: Side,
    error: io::Error,
}

impl Failed {
    fn reason(&self) -> Cow<'static, str> {
        let client = self.side == CLIENT;
        match self.error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe if client => {
                "client reset".into()
            }
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => "upstream reset".into(),
            _ if client => format!("client: {}", self.error).into(),
            _ => format!("upstream: {}", self.error).into(),
        }
    }
}

/// Moves what can be moved. `story` counts the bytes.
pub fn run(
    relay: &mut Relay,
    sockets: &mut Sockets<'_>,
    story: &mut Parked,
    buffers: &mut Buffers,
) -> Progress {
    match relay {
        Relay::Splice(spliced) => splice::run(spliced, sockets, story, buffers),
        Relay::Terminate(terminated) => terminate::run(terminated, sockets, story, buffers),
    }
}

impl Sockets<'_> {
    fn socket(&self, side: Side) -> Option<BorrowedFd<'_>> {
        match side {
            CLIENT => Some(self.client),
            _ => self.upstream,
        }
    }

    /// Reads, and notes what the result says of readiness. `None`: nothing there now.
    fn recv(&mut self, from: Side, buffer: &mut [u8]) -> Result<Option<usize>, Failed> {
        let Some(socket) = self.socket(from) else { return Ok(None) };
        let read = socket::recv(socket, buffer);
        self.note_read(from, read, buffer.len())
    }

    /// A read that filled less than it could has emptied the socket: the next edge will tell of
    /// more (epoll(7)). Unless the peer has ended its stream: that edge has come already.
    fn note_read(
        &mut self,
        from: Side,
        read: io::Result<usize>,
        room: usize,
    ) -> Result<Option<usize>, Failed> {
        match read {
            Ok(read) => {
                if read < room && !self.ready.any(from, eyelet_sys::epoll::ENDED) {
                    self.ready.clear(from, READ);
                }
                Ok(Some(read))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.ready.clear(from, READ);
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(Failed { side: from, error }),
        }
    }

    /// Writes; how much was taken, 0 where the socket is full.
    fn send(&mut self, to: Side, bytes: &[u8]) -> Result<usize, Failed> {
        let Some(socket) = self.socket(to) else { return Ok(0) };
        let sent = socket::send(socket, bytes);
        self.note_write(to, sent)
    }

    /// Before the second write to an upstream, which would wait until the first is acknowledged.
    fn no_delay(&self, flow: &mut Flow, to: Side) {
        if to == UPSTREAM
            && flow.has(WRITTEN_ONCE)
            && let Some(upstream) = self.upstream
        {
            flow.flags &= !WRITTEN_ONCE;
            // Where it cannot be set the write is late, not lost.
            let _ = socket::no_delay(upstream);
        }
    }

    fn note_write(&mut self, to: Side, sent: io::Result<usize>) -> Result<usize, Failed> {
        match sent {
            Ok(sent) => Ok(sent),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.ready.clear(to, WRITE);
                Ok(0)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(Failed { side: to, error }),
        }
    }

    /// Writes what is held for a side; whether nothing is left.
    fn flush(&mut self, flow: &mut Flow, to: Side, buffers: &mut Buffers) -> Result<bool, Failed> {
        if flow.held(to).is_some() {
            self.no_delay(flow, to);
        }
        while let Some(held) = flow.held(to) {
            if self.socket(to).is_none() || !self.ready.any(to, WRITE) {
                return Ok(false);
            }
            if !held.is_sent() {
                held.sent += self.send(to, &held.bytes[held.sent..])?;
                if held.is_sent() {
                    (held.bytes, held.sent, held.since) = (Vec::new(), 0, None);
                }
            } else if let Some((pipe, left)) = held.pipe.take() {
                let emptied = match self.socket(to) {
                    Some(socket) => pipe.empty(socket, left),
                    None => return Ok(false),
                };
                let left = left - self.note_write(to, emptied)?;
                match left {
                    0 => buffers.give_back(pipe),
                    _ => held.pipe = Some((pipe, left)),
                }
            }
        }
        flow.drop_empty();
        Ok(true)
    }

    /// How much may be read now for bytes that go to `to`; `None` where they might have to be held
    /// and there is no memory for that.
    fn room(&self, to: Side, buffers: &Buffers) -> Option<usize> {
        buffers.piece.or_else(|| {
            // An upstream that is not dialled yet gets one record at most.
            let unsent = self.socket(to).map_or(0, |socket| socket::unsent(socket).unwrap_or(1));
            (unsent == 0).then_some(TIGHT_BYTES)
        })
    }

    /// Passes the end of one direction on, once everything before it is written.
    fn tell_end(&mut self, flow: &mut Flow, to: Side) -> Result<(), Failed> {
        let (ended, told) = match to {
            CLIENT => (UPSTREAM_ENDED, CLIENT_TOLD),
            _ => (CLIENT_ENDED, UPSTREAM_TOLD),
        };
        if !flow.has(ended) || flow.has(told) || flow.held(to).is_some() {
            return Ok(());
        }
        flow.flags |= told;
        // Where the other direction has ended too the close that follows says it.
        if flow.flags & (CLIENT_TOLD | UPSTREAM_TOLD) == CLIENT_TOLD | UPSTREAM_TOLD {
            return Ok(());
        }
        let Some(socket) = self.socket(to) else { return Ok(()) };
        match socket::shutdown_write(socket) {
            // It is gone already: its reset or its end will be read.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            Err(error) => Err(Failed { side: to, error }),
            Ok(()) => Ok(()),
        }
    }
}

/// What to do after both directions were tried.
fn conclude(flow: &mut Flow, up: More, down: More, outcome: Outcome) -> Progress {
    flow.drop_empty();
    if flow.has(CLIENT_TOLD) && flow.has(UPSTREAM_TOLD) {
        return Progress::Closed(End { outcome, reason: flow.end_reason().into() });
    }
    match (up, down) {
        (More::Again, _) | (_, More::Again) => Progress::Again,
        (More::Later, _) | (_, More::Later) => Progress::Later,
        (More::No, More::No) => Progress::Rest,
    }
}

/// Whether one direction has more to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum More {
    /// Its share of the turn is used up.
    Again,
    /// See [`Progress::Later`].
    Later,
    /// Until the next event, no.
    No,
}

/// Payload of one TLS record.
const PAYLOAD: usize = PAYLOAD_BYTES_MAX;
const _: () = assert!(UPSTREAM == 1 && CLIENT == 0);
