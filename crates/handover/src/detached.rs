//! A parked connection as a value outside of any worker.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use eyelet_hold::HeldStreams;
use eyelet_memory::budget::Counted;
use eyelet_memory::packed::PackedBytes;
use eyelet_telemetry::info::{ConnectionInfo, NS_PER_MS};

use crate::links::StreamRef;
use crate::rest::IdleState;
use eyelet_relay::{KeptExchanges, Relay};

/// The time that a decoded connection counts from until a worker's clock is known: 278 years, more
/// than any age. In nanoseconds it fits twice.
pub const IMPORT_UNIX_MS: u64 = 1 << 43;
const _: () = assert!(IMPORT_UNIX_MS.checked_mul(NS_PER_MS).is_some());

/// A parked connection outside of any worker. It owns its sockets: dropping it closes them.
///
/// Its TLS secrets are wiped when it is dropped, and Debug shows none of it. `R` is a share of the
/// limits of a process.
pub struct MovedConnection<R> {
    pub client: Arc<OwnedFd>,
    pub upstream: Option<Arc<OwnedFd>>,
    /// The further upstream sockets. The program's state says what each is for.
    pub further: Vec<Arc<OwnedFd>>,
    /// The streams of its exchanges on links of its group.
    pub streams: Vec<StreamRef>,
    /// The places of its held streams, in their order. Another process finds them anew.
    pub holds: HeldStreams,
    pub info: ConnectionInfo,
    pub relay: Relay,
    pub rest: IdleState,
    /// The clock that `info` counts by.
    pub clock: DetachedClock,
    /// The memory that it holds, as long as a budget knows it.
    pub counted: Option<Counted>,
    /// The room for it in the worker that is to place it, if that is settled.
    pub room: Option<R>,
}

/// The clock by which a detached connection's times are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum DetachedClock {
    /// The clock of the worker that it left, which showed this time then.
    Worker { left_unix_ms: u64 },
    /// One that shows [`IMPORT_UNIX_MS`].
    Import,
}

impl<R> fmt::Debug for MovedConnection<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MovedConnection").field("id", &self.info.id).finish_non_exhaustive()
    }
}

impl<R> MovedConnection<R> {
    /// Its id, as in the access log.
    pub fn id(&self) -> u64 {
        self.info.id
    }

    /// The state that the program keeps: [`eyelet_relay::Flow::keep_state`].
    pub fn state(&self) -> Option<&PackedBytes> {
        self.relay.served_flow()?.state()
    }

    /// The exchange that rests: [`eyelet_relay::Flow::keep_exchange`].
    pub fn exchange(&self) -> Option<&[u8]> {
        self.relay.served_flow()?.exchange()
    }

    /// The exchanges that rest on it, or its state without any.
    pub fn kept(&self) -> Option<KeptExchanges<'_>> {
        let exchange = self.exchange().map(KeptExchanges::Exchange);
        exchange.or_else(|| self.state().map(KeptExchanges::Streams))
    }

    /// True if another process has written it.
    pub fn is_imported(&self) -> bool {
        self.clock == DetachedClock::Import
    }

    /// Ends the reservation of its room.
    pub fn give_room(&mut self) {
        (self.room, self.counted) = (None, None);
    }

    /// Bytes of memory that count for it while no worker has it.
    pub fn held_bytes(&mut self) -> usize {
        self.relay.held_bytes() + self.info.decided.client_certificate_bytes()
    }

    /// Its sockets, in the order in which [`MovedConnection::decode`] expects them: the client's,
    /// then the upstream's if there is one, or the further ones.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.shared_sockets().map(|socket| socket.as_fd())
    }

    /// The number of its further upstream sockets.
    pub fn further_count(&self) -> usize {
        self.further.len()
    }

    /// The sockets for another thread, which must drop them before the connection is attached.
    pub fn shared_sockets(&self) -> impl Iterator<Item = &Arc<OwnedFd>> {
        std::iter::once(&self.client).chain(&self.upstream).chain(&self.further)
    }

    /// True if it takes bytes along that are not sent, or not opened, yet.
    pub fn holds_bytes(&self) -> bool {
        let flow = match &self.relay {
            Relay::Cleartext(flow) => flow,
            Relay::Held(_) => return true,
            Relay::Splice(spliced) => &spliced.flow,
            Relay::Terminate(terminated) => &terminated.flow,
        };
        !flow.is_quiet()
    }
}
