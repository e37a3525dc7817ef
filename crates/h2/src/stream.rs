//! One stream: how far its two directions are (RFC 9113 section 5.1). A stream that has ended has
//! no value.

use crate::priority::Priority;
use crate::window::{ReceiveWindow, SendWindow};

/// Streams whose memory a connection without any keeps. A burst of fewer does not grow it anew.
/// A parked connection keeps none.
const STREAMS_KEPT: usize = 16;

/// The kind of a request, as far as its response depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// HEAD: the response has no body, whatever its `content-length`.
    Head,
    /// CONNECT, extended or not: what follows a success has no length.
    Connect,
    /// Any other.
    Other,
}

/// The part that we still send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// A server's final head.
    Head,
    /// Data, and trailers.
    Body,
    /// Nothing.
    Ended,
}

/// The part that the peer still sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiving {
    /// A server's final head. The request says what its length means.
    Head { request: RequestKind },
    /// Data, and trailers. `left`: what is missing to the `content-length`.
    Body { left: Option<u64> },
    /// Nothing.
    Ended,
}

/// A stream.
#[derive(Debug)]
pub(crate) struct H2Stream {
    pub(crate) id: u32,
    pub(crate) sending: Sending,
    pub(crate) receiving: Receiving,
    pub(crate) send_window: SendWindow,
    pub(crate) receive_window: ReceiveWindow,
    pub(crate) priority: Priority,
    /// True if the caller has data for it.
    pub(crate) wants_to_send: bool,
    /// True if it counts as dropped, however it ends.
    pub(crate) is_drop: bool,
}

/// An open stream, as its user knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenStream {
    /// Its identifier.
    pub id: u32,
    /// The peer has ended its side.
    pub has_peer_ended: bool,
    /// Our final head is sent.
    pub has_begun: bool,
    /// We have ended our side.
    pub has_ended: bool,
    /// The peer's final head has not arrived.
    pub awaits_head: bool,
}

impl OpenStream {
    pub(crate) fn of(stream: &H2Stream) -> Self {
        Self {
            id: stream.id,
            has_peer_ended: stream.receiving == Receiving::Ended,
            has_begun: stream.sending != Sending::Head,
            has_ended: stream.sending == Sending::Ended,
            awaits_head: matches!(stream.receiving, Receiving::Head { .. }),
        }
    }
}

impl H2Stream {
    /// True if both directions have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.sending == Sending::Ended && self.receiving == Receiving::Ended
    }
}

/// The streams that have not ended, by their identifiers.
#[derive(Debug, Default)]
pub(crate) struct H2Streams {
    all: Vec<H2Stream>,
}

impl H2Streams {
    /// Streams with ascending identifiers.
    pub(crate) fn new(all: Vec<H2Stream>) -> Self {
        Self { all }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn find(&mut self, id: u32) -> Option<&mut H2Stream> {
        let at = self.all.binary_search_by_key(&id, |stream| stream.id).ok()?;
        self.all.get_mut(at)
    }

    /// Adds a stream with an identifier above all others.
    pub(crate) fn push(&mut self, stream: H2Stream) {
        self.all.push(stream);
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<H2Stream> {
        let at = self.all.binary_search_by_key(&id, |stream| stream.id).ok()?;
        let stream = self.all.remove(at);
        if self.all.is_empty() && self.all.capacity() > STREAMS_KEPT {
            self.all = Vec::new();
        }
        Some(stream)
    }

    /// Gives up the room for further streams.
    pub(crate) fn shrink(&mut self) {
        self.all.shrink_to_fit();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &H2Stream> {
        self.all.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut H2Stream> {
        self.all.iter_mut()
    }

    /// Drops the streams above an identifier.
    pub(crate) fn drop_above(&mut self, last: u32) {
        self.all.retain(|stream| stream.id <= last);
    }
}
