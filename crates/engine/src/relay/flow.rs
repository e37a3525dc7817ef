//! What a connection holds between two wakes: nothing, unless a peer is slow or a stream has ended.
//! It must not know how bytes are read or written.

use std::num::NonZeroU32;

use super::buffers::LentPipe;
use super::watching::Watching;
use crate::ready::{CLIENT, Side, UPSTREAM};

/// What a connection holds between two wakes beside its keys: nothing, unless a peer is slow.
#[derive(Default)]
pub struct Flow {
    pub(super) pending: Option<Box<Pending>>,
    pub(super) flags: u16,
    /// The tick since which the beginning of a record or of a watched flight is held.
    pub(super) begun_since: Option<NonZeroU32>,
}

/// The client's stream has ended, and everything of it was read.
pub(super) const CLIENT_ENDED: u16 = 1;
/// The upstream's stream has ended, and everything of it was read.
pub(super) const UPSTREAM_ENDED: u16 = 1 << 1;
/// The end was passed on to the upstream.
pub(super) const UPSTREAM_TOLD: u16 = 1 << 2;
/// The end was passed on to the client.
pub(super) const CLIENT_TOLD: u16 = 1 << 3;
/// The upstream's end came first.
pub(super) const UPSTREAM_FIRST: u16 = 1 << 4;
/// The client's stream ended without close_notify.
pub(super) const TRUNCATED: u16 = 1 << 5;
/// Much is coming from the client.
pub(super) const BULK_UP: u16 = 1 << 6;
/// Much is coming from the upstream.
pub(super) const BULK_DOWN: u16 = 1 << 7;
/// The last bytes that moved went to the upstream: it may be about to answer.
pub(super) const ASKED: u16 = 1 << 8;
/// What the client sends behind its hello is watched.
pub(super) const WATCH_UP: u16 = 1 << 9;
/// What the server sends first is watched.
pub(super) const WATCH_DOWN: u16 = 1 << 10;
/// A server that chooses TLS compression is not passed on.
pub(super) const FORBID_COMPRESSION: u16 = 1 << 11;
/// The client's FIN was read: nothing can follow.
pub(super) const CLIENT_FIN: u16 = 1 << 12;
/// It holds what came before it is served, and is one of those that make room.
pub(super) const WAITS: u16 = 1 << 13;
/// The upstream's socket has not TCP_NODELAY yet: it was written once.
pub(super) const WRITTEN_ONCE: u16 = 1 << 14;

/// It is in the queue of those that hold bytes: see [`Flow::holds_since`].
pub(super) const QUEUED: u16 = 1 << 15;

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
    pub watching: Option<Box<Watching>>,
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
    pub(super) bytes: Vec<u8>,
    pub(super) sent: usize,
    pub(super) pipe: Option<(LentPipe, usize)>,
    /// The tick since which there are bytes in memory that the socket has not taken.
    pub(super) since: Option<NonZeroU32>,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.is_sent() && self.pipe.is_none()
    }

    /// Whether the bytes in memory are sent; those in the pipe come behind them.
    pub(super) fn is_sent(&self) -> bool {
        self.sent == self.bytes.len()
    }
}

impl Flow {
    pub(super) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn pending(&mut self) -> &mut Pending {
        self.pending.get_or_insert_default()
    }

    pub(super) fn held(&mut self, to: Side) -> Option<&mut Held> {
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

    /// Whether nothing is on its way.
    pub fn is_quiet(&self) -> bool {
        self.pending.as_ref().is_none_or(|pending| {
            pending.to_client.is_empty()
                && pending.to_upstream.is_empty()
                && pending.partial.is_empty()
                && !pending.watching.as_ref().is_some_and(|watching| watching.holds())
        })
    }

    /// Whether anything of a request has come that is not on its way to an upstream. What the
    /// client leaves unread of our own is no request.
    pub(super) fn has_begun(&self) -> bool {
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

    pub(super) fn note_moved(&mut self, to: Side) {
        if to == CLIENT {
            self.flags &= !ASKED;
        } else {
            self.flags |= ASKED;
        }
    }

    pub(super) fn note_end(&mut self, from: Side) {
        if from == CLIENT {
            self.flags |= CLIENT_ENDED;
        } else {
            if !self.has(CLIENT_ENDED) {
                self.flags |= UPSTREAM_FIRST;
            }
            self.flags |= UPSTREAM_ENDED;
        }
    }

    pub(super) fn note_fin(&mut self) {
        self.flags |= CLIENT_FIN;
        self.note_end(CLIENT);
    }

    pub(super) fn drop_empty(&mut self) {
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
    pub(super) fn end_reason(&self) -> &'static str {
        match (self.has(UPSTREAM_FIRST), self.has(TRUNCATED)) {
            (true, _) => "upstream closed",
            (false, true) => "client closed without close_notify",
            (false, false) => "client closed",
        }
    }
}
