//! The states of one direction of a connection: open, ended by its peer, end passed on. They are as
//! they are in the form for another process (crates/handover/README.md): another one goes last.

use serde::{Deserialize, Serialize};

/// The stream from one peer to the other. `E` is how that peer may end it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Direction<E> {
    /// More may come.
    Open(Mode),
    /// The peer has ended its stream, and all of it was read. The end follows the held bytes.
    Ended(E),
    /// The end was passed on.
    EndPassed(E),
}

/// The way in which the bytes of an open direction are moved.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Mode {
    /// By read and write, for few bytes at once.
    Copy,
    /// By splice(2), for many bytes that need no inspection.
    Bulk,
    /// The bytes are copied; the first flight is inspected.
    Inspect {
        /// A server that chooses TLS compression is not passed on.
        forbid_compression: bool,
    },
}

/// The client's way to end its stream.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum ClientEnd {
    /// By close_notify, without a FIN so far. More bytes may follow, which are never read.
    CloseNotify,
    /// By a FIN: nothing can follow.
    Fin,
    /// By a FIN without the close_notify that TLS requires.
    Truncated,
}

/// The moment at which an upstream has ended its stream. It always does so by a FIN.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum UpstreamEnd {
    /// Before the client.
    First,
    /// After the client, or without ever being dialled.
    Second,
}

impl<E> Default for Direction<E> {
    fn default() -> Self {
        Self::Open(Mode::Copy)
    }
}

impl<E: Copy> Direction<E> {
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    pub(crate) fn mode(&mut self) -> Option<&mut Mode> {
        match self {
            Self::Open(mode) => Some(mode),
            Self::Ended(_) | Self::EndPassed(_) => None,
        }
    }

    /// Ends the stream, unless it has ended already.
    pub(crate) fn end(&mut self, how: E) {
        if self.is_open() {
            *self = Self::Ended(how);
        }
    }

    /// True if the end is still to be passed on.
    pub(crate) fn is_end_due(&self) -> bool {
        matches!(self, Self::Ended(_))
    }

    /// Notes that the end was passed on.
    pub(crate) fn pass_end(&mut self) {
        if let Self::Ended(how) = *self {
            *self = Self::EndPassed(how);
        }
    }

    pub(crate) fn is_end_passed(&self) -> bool {
        matches!(self, Self::EndPassed(_))
    }

    /// Returns the way in which the stream ended, if it did.
    pub(crate) fn how_ended(&self) -> Option<E> {
        match *self {
            Self::Open(_) => None,
            Self::Ended(how) | Self::EndPassed(how) => Some(how),
        }
    }
}
