//! The states of one direction of a connection: open, ended by its peer, and its end passed on.
//! It must not know bytes or sockets.

/// What comes from one peer and goes to the other. `E`: how that peer ends its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction<E> {
    /// More may come.
    Open(Mode),
    /// The peer has ended its stream, and all of it was read. The end follows what is held.
    Ended(E),
    /// The end was passed on.
    Passed(E),
}

/// How the bytes of an open direction are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// By read and write: few come at once.
    Copy,
    /// By splice(2) where nothing has to be seen: many come.
    Bulk,
    /// As [`Mode::Copy`], and the first flight is inspected.
    Inspect {
        /// A server that chooses TLS compression is not passed on.
        forbid_compression: bool,
    },
}

/// How a client has ended its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientEnd {
    /// By close_notify. A FIN was not read, so that more bytes may follow, which nobody reads.
    CloseNotify,
    /// By a FIN: nothing can follow.
    Fin,
    /// By a FIN where TLS asks for a close_notify before.
    Truncated,
}

/// When an upstream has ended its stream: always by a FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpstreamEnd {
    /// Before the client.
    First,
    /// After the client, or there was no upstream.
    Second,
}

impl<E> Default for Direction<E> {
    fn default() -> Self {
        Self::Open(Mode::Copy)
    }
}

impl<E: Copy> Direction<E> {
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    pub(super) fn mode(&mut self) -> Option<&mut Mode> {
        match self {
            Self::Open(mode) => Some(mode),
            Self::Ended(_) | Self::Passed(_) => None,
        }
    }

    /// Ends the stream, unless it has ended already.
    pub(super) fn end(&mut self, how: E) {
        if self.is_open() {
            *self = Self::Ended(how);
        }
    }

    /// Whether the end is still to be passed on.
    pub(super) fn is_end_due(&self) -> bool {
        matches!(self, Self::Ended(_))
    }

    /// Notes that the end was passed on.
    pub(super) fn pass_end(&mut self) {
        if let Self::Ended(how) = *self {
            *self = Self::Passed(how);
        }
    }

    pub(super) fn is_passed(&self) -> bool {
        matches!(self, Self::Passed(_))
    }

    /// How the stream ended, if it did.
    pub(super) fn how_ended(&self) -> Option<E> {
        match *self {
            Self::Open(_) => None,
            Self::Ended(how) | Self::Passed(how) => Some(how),
        }
    }
}
