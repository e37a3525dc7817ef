//! A connection's slot, and who moves its bytes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::Waker;

use crate::timer_wheel::{Linked, Links};
use eyelet_memory::budget::ACTIVE_BYTES;
use eyelet_relay::Relay;
use eyelet_relay::ready::{CLIENT, Ready, Side};
use eyelet_telemetry::info::Parked;
use eyelet_telemetry::listing::Seen;

/// A connection's slot. Its size is what an idle connection costs; see `park::tests`.
pub struct Slot {
    /// The client's socket.
    pub client: OwnedFd,
    /// The upstream's socket, if any.
    pub upstream: Option<OwnedFd>,
    /// Reported readiness that is not used up.
    pub ready: Ready,
    /// A bit for each side that is registered in epoll.
    pub(crate) registered: u8,
    /// A bit for each of them that is also registered for writability.
    pub(crate) watched_for_room: u8,
    /// Sequence number of its newest position in the shed queues. Older positions are stale.
    pub position: u16,
    pub(crate) links: Links,
    /// The one who moves its bytes, with its state.
    pub state: SlotState,
}

/// The one who moves a connection's bytes, with its state.
pub enum SlotState {
    /// Its future owns it: the connection is being peeked at, decided, dialled or served.
    Active {
        /// The event that resumes it.
        waits: Waits,
        /// Its deadline has passed. A new deadline undoes that.
        is_late: bool,
        /// The reason of its end, whatever its deadline.
        end: Option<EndCause>,
        /// The phase of its life.
        phase: Phase,
        /// The data that a list shows of it. `None`: nobody may ask.
        seen: Option<Seen>,
    },
    /// The event loop, at an event: the usual state.
    Parked {
        /// The facts for its log entry.
        info: Parked,
        /// The relay that moves its bytes.
        relay: Relay,
    },
    /// It is logged and its last bytes are sent. What the client still sends is read and dropped,
    /// so that a reset does not overtake the alert (RFC 1122 4.2.2.13).
    Lingering,
}

/// A connection's future between two waits.
pub type Waiting = Pin<Box<dyn Future<Output = ()>>>;

/// The ways to resume an active connection when its wait is over.
pub enum Waits {
    /// It does not wait.
    No,
    /// Its future, which waits only for its own sockets and its deadline. It needs no task: most
    /// connections wait only so.
    Here(Waiting),
    /// A task.
    Task(Waker),
}

/// A half-open connection that has sent more than this of an unfinished message is shed before
/// smaller ones, however new it is. A hello with two post-quantum key shares and ECH takes about 4
/// KiB, a certificate chain with RSA keys 5 KiB.
pub const LARGE_BYTES: usize = 8 << 10;

/// The phase of an active connection. It decides in which order connections are shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its handshake, or the head of its request, is unfinished.
    HalfOpen,
    /// Half-open, and it has sent more than [`LARGE_BYTES`] of an unfinished message.
    Large,
    /// HTTP/2 without a stream.
    Idle,
    /// It is being served.
    Busy,
}

impl Linked for Slot {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Waits {
    /// The wait is over: wakes the task, or returns the future to be resumed.
    pub fn over(&mut self) -> Option<Waiting> {
        match self {
            Self::No => None,
            Self::Here(_) => match std::mem::replace(self, Self::No) {
                Self::Here(future) => Some(future),
                _ => None,
            },
            // It stays: cloning it for each wait would cost more than one wake in vain.
            Self::Task(waker) => {
                waker.wake_by_ref();
                None
            }
        }
    }
}

/// The reason of an active connection's end. A later variant replaces an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndCause {
    /// The drain has come to it: it ends once its exchange permits.
    Drained,
    /// An operator has ended it.
    Ended,
    /// Its memory was given to others.
    Shed,
}

impl SlotState {
    /// An active connection whose future does not wait yet.
    pub fn active(phase: Phase) -> Self {
        Self::Active { waits: Waits::No, is_late: false, end: None, phase, seen: None }
    }
}

impl Slot {
    /// An accepted connection.
    pub(crate) fn accepted(client: OwnedFd, ready: Ready) -> Self {
        Self {
            client,
            upstream: None,
            ready,
            registered: 0,
            watched_for_room: 0,
            position: 0,
            links: Links::default(),
            state: SlotState::active(Phase::HalfOpen),
        }
    }

    /// The socket of one side.
    pub fn socket(&self, side: Side) -> Option<BorrowedFd<'_>> {
        match side {
            CLIENT => Some(self.client.as_fd()),
            _ => self.upstream.as_ref().map(AsFd::as_fd),
        }
    }

    /// Bytes that the slot's connection counts in the budget besides the slot. A connection that is
    /// being shed has given them back already.
    pub fn active_bytes(&self) -> usize {
        match self.state {
            SlotState::Active { end, .. } if end != Some(EndCause::Shed) => ACTIVE_BYTES,
            _ => 0,
        }
    }

    /// Descriptors that the connection holds, or may be about to take.
    pub fn descriptors(&self) -> usize {
        match self.state {
            SlotState::Active { .. } => 2,
            SlotState::Parked { .. } | SlotState::Lingering => {
                1 + usize::from(self.upstream.is_some())
            }
        }
    }
}
