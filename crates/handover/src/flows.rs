//! The message of flows that move to another process: version 11 of the format. It has no secret.
//! crates/handover/README.md describes it.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use eyelet_flows::id::FlowId;
use eyelet_flows::moving::{FlowAddress, MovingFlow};
use eyelet_flows::peer::Peer;
use eyelet_flows::table::{ADDRESSES_MAX, FlowTraffic};
use eyelet_sys::socket::datagram;
use eyelet_telemetry::export::{InfoFault, InfoV1};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::guard::DatagramGuard;
use crate::quic_move::{MovingGuard, MovingPassage, QuicMove};

/// The version of a message of flows.
pub const VERSION_FLOWS: u16 = 11;
/// Most datagrams that a flow can have moved one way, so that no sum overflows.
const DATAGRAMS_MAX: u64 = 1 << 62;
/// Bytes of a flow in a message and in the worker, about, beside the state of its guard.
const FLOW_BYTES: usize = 512;

/// The fault of a message of flows that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FlowImportError {
    /// Its process is newer, or it is no message.
    #[error("flows have version {VERSION_FLOWS}, and not {0}")]
    Version(u16),
    /// It ends in the middle of a value, or a value is not possible.
    #[error("the message is cut or malformed")]
    Malformed,
    /// Bytes follow its last value.
    #[error("{0} bytes follow the message")]
    Trailing(usize),
    /// It says less or more sockets than there are.
    #[error("it has {expected} sockets, and {got} have come")]
    Sockets {
        /// Those that it says.
        expected: usize,
        /// Those that have come.
        got: usize,
    },
    /// A socket is no UDP socket that is connected.
    #[error("a socket is not a connected UDP socket")]
    Socket,
    /// A connection id is too long.
    #[error("a connection id is too long")]
    Id,
    /// A flow has no address, or more than [`ADDRESSES_MAX`].
    #[error("a flow has {0} addresses")]
    Addresses(usize),
    /// A flow has moved more datagrams than any can.
    #[error("a count of datagrams is too great")]
    Count,
    /// A flow's info is not possible.
    #[error("a flow's info cannot be read: {0}")]
    Info(#[from] InfoFault),
}

impl From<postcard::Error> for FlowImportError {
    fn from(_: postcard::Error) -> Self {
        Self::Malformed
    }
}

/// Flows of QUIC on their way to another process: one message. The other process answers nothing.
/// In an upgrade the worker keeps copies until that process needs this one no more.
pub struct FlowBatch {
    /// The message.
    pub body: Vec<u8>,
    /// Its sockets.
    pub sockets: Vec<Arc<OwnedFd>>,
    /// The number of its flows.
    pub flows: usize,
}

/// Flows that a message brings.
pub struct FlowsRead {
    /// Those that can be read.
    pub flows: Vec<QuicMove>,
    /// The number of the others.
    pub unread: usize,
    /// The fault of the first of the others.
    pub fault: Option<FlowImportError>,
}

/// Flows of one listening socket.
#[derive(Deserialize, Serialize)]
struct QuicFlowsV11<'a> {
    /// The socket's cookie.
    via: u64,
    #[serde(borrow)]
    flows: Vec<QuicFlowV11<'a>>,
}

/// [`QuicMove`].
#[derive(Deserialize, Serialize)]
struct QuicFlowV11<'a> {
    /// Its bytes are those of the flow.
    #[serde(borrow)]
    info: InfoV1<'a>,
    /// Datagrams to the upstream, and to the client.
    datagrams: (u64, u64),
    first_id: &'a [u8],
    #[serde(borrow)]
    server_id: Option<&'a [u8]>,
    is_from_client: bool,
    may_change_address: bool,
    #[serde(borrow)]
    addresses: Vec<FlowAddressV11<'a>>,
}

/// One address of its client. The upstream is that of its socket.
#[derive(Deserialize, Serialize)]
struct FlowAddressV11<'a> {
    client: SocketAddr,
    /// The zone of a link-local client.
    scope: u32,
    local: SocketAddr,
    is_answered: bool,
    begins_anew: bool,
    idle_ms: u64,
    #[serde(borrow)]
    guard: GuardV11<'a>,
}

/// [`MovingGuard`].
#[derive(Deserialize, Serialize)]
enum GuardV11<'a> {
    Free,
    HelloIsOver,
    Reads(&'a [u8]),
}

/// The bytes that a flow takes here, and in a message, about.
pub fn flow_bytes(moving: &QuicMove) -> usize {
    let guards = moving.flow.addresses.iter().map(|address| match &address.payload.guard {
        MovingGuard::Reads(_, form) => form.len(),
        MovingGuard::Free | MovingGuard::HelloIsOver => 0,
    });
    FLOW_BYTES + guards.sum::<usize>()
}

/// The message of these flows, which are of one listening socket. `None`: there are none.
pub fn encode(moving: &[QuicMove], now_ms: u64) -> Option<FlowBatch> {
    let via = moving.first()?.via;
    let flows = moving.iter().map(|moving| QuicFlowV11::new(moving, now_ms)).collect();
    let bytes = VERSION_FLOWS.to_be_bytes().to_vec();
    // Nothing of it can fail to be written.
    let body = postcard::to_extend(&QuicFlowsV11 { via, flows }, bytes).ok()?;
    let addresses = moving.iter().flat_map(|moving| &moving.flow.addresses);
    let sockets = addresses.map(|address| address.payload.socket.clone()).collect();
    Some(FlowBatch { body, sockets, flows: moving.len() })
}

/// The cookie of the listening socket whose flows a message has.
///
/// # Errors
/// [`FlowImportError`].
pub fn via(body: &[u8]) -> Result<u64, FlowImportError> {
    Ok(postcard::take_from_bytes(versioned(body)?)?.0)
}

fn versioned(body: &[u8]) -> Result<&[u8], FlowImportError> {
    let (version, rest) = body.split_first_chunk().ok_or(FlowImportError::Malformed)?;
    match u16::from_be_bytes(*version) {
        VERSION_FLOWS => Ok(rest),
        other => Err(FlowImportError::Version(other)),
    }
}

/// The flows of a message and its sockets. `import` reads the form of a guard: without one that it
/// reads, no datagram passes that may have a hello. A flow that cannot be read is left out.
///
/// # Errors
/// The message has no flows that could be told apart: all but [`FlowImportError::Socket`],
/// [`FlowImportError::Id`], [`FlowImportError::Addresses`], [`FlowImportError::Count`] and
/// [`FlowImportError::Info`].
pub fn decode(
    body: &[u8],
    sockets: Vec<OwnedFd>,
    now_ms: u64,
    import: impl Fn(&[u8]) -> Option<Box<dyn DatagramGuard>>,
) -> Result<FlowsRead, FlowImportError> {
    let (message, behind): (QuicFlowsV11<'_>, _) = postcard::take_from_bytes(versioned(body)?)?;
    if !behind.is_empty() {
        return Err(FlowImportError::Trailing(behind.len()));
    }
    let expected = message.flows.iter().map(|flow| flow.addresses.len()).sum();
    if expected != sockets.len() {
        return Err(FlowImportError::Sockets { expected, got: sockets.len() });
    }
    let mut sockets = sockets.into_iter();
    let mut read = FlowsRead { flows: Vec::new(), unread: 0, fault: None };
    for flow in &message.flows {
        // Also those of one that cannot be read, so that the next one has its own.
        let own: Vec<OwnedFd> = sockets.by_ref().take(flow.addresses.len()).collect();
        match flow.moving(message.via, &mut own.into_iter(), now_ms, &import) {
            Ok(moving) => read.flows.push(moving),
            Err(fault) => {
                read.unread += 1;
                read.fault.get_or_insert(fault);
            }
        }
    }
    Ok(read)
}

impl<'a> QuicFlowV11<'a> {
    fn new(moving: &'a QuicMove, now_ms: u64) -> Self {
        let MovingFlow { first_id, server_id, moved, addresses } = &moving.flow;
        let mut info = InfoV1::new(&moving.info, now_ms);
        info.bytes_to_upstream = moved.bytes_to_upstream;
        info.bytes_to_client = moved.bytes_to_client;
        Self {
            info,
            datagrams: (moved.datagrams_to_upstream, moved.datagrams_to_client),
            first_id: first_id.as_bytes(),
            server_id: server_id.as_ref().map(FlowId::as_bytes),
            is_from_client: moving.is_from_client,
            may_change_address: moving.may_change_address,
            addresses: addresses.iter().map(|it| FlowAddressV11::new(it, now_ms)).collect(),
        }
    }

    fn moving(
        &self,
        via: u64,
        sockets: &mut impl Iterator<Item = OwnedFd>,
        now_ms: u64,
        import: &impl Fn(&[u8]) -> Option<Box<dyn DatagramGuard>>,
    ) -> Result<QuicMove, FlowImportError> {
        if !(1..=ADDRESSES_MAX).contains(&self.addresses.len()) {
            return Err(FlowImportError::Addresses(self.addresses.len()));
        }
        let (datagrams_to_upstream, datagrams_to_client) = self.datagrams;
        if datagrams_to_upstream.max(datagrams_to_client) > DATAGRAMS_MAX {
            return Err(FlowImportError::Count);
        }
        let id = |id: &[u8]| FlowId::new(id).ok_or(FlowImportError::Id);
        let info = self.info.info(now_ms)?;
        let moved = FlowTraffic {
            bytes_to_upstream: info.bytes_to_upstream,
            bytes_to_client: info.bytes_to_client,
            datagrams_to_upstream,
            datagrams_to_client,
        };
        let addresses = self.addresses.iter();
        let addresses = addresses.map(|address| address.moving(sockets.next(), now_ms, import));
        let flow = MovingFlow {
            first_id: id(self.first_id)?,
            server_id: self.server_id.map(id).transpose()?,
            moved,
            addresses: addresses.collect::<Result<_, _>>()?,
        };
        let (is_from_client, may_change_address) = (self.is_from_client, self.may_change_address);
        Ok(QuicMove { via, info, is_from_client, may_change_address, flow })
    }
}

impl<'a> FlowAddressV11<'a> {
    fn new(address: &'a FlowAddress<MovingPassage>, now_ms: u64) -> Self {
        let FlowAddress { peer, is_answered, since_ms, payload } = address;
        let client = peer.client();
        Self {
            client,
            scope: match client {
                SocketAddr::V6(client) => client.scope_id(),
                SocketAddr::V4(_) => 0,
            },
            local: peer.local(),
            is_answered: *is_answered,
            begins_anew: payload.begins_anew,
            idle_ms: now_ms.saturating_sub(*since_ms),
            guard: match &payload.guard {
                MovingGuard::Free => GuardV11::Free,
                MovingGuard::HelloIsOver => GuardV11::HelloIsOver,
                MovingGuard::Reads(_, form) => GuardV11::Reads(form),
            },
        }
    }

    fn moving(
        &self,
        socket: Option<OwnedFd>,
        now_ms: u64,
        import: &impl Fn(&[u8]) -> Option<Box<dyn DatagramGuard>>,
    ) -> Result<FlowAddress<MovingPassage>, FlowImportError> {
        let socket = socket.ok_or(FlowImportError::Socket)?;
        let to = datagram::peer(&socket).map_err(|_| FlowImportError::Socket)?;
        let mut client = self.client;
        if let SocketAddr::V6(client) = &mut client {
            client.set_scope_id(self.scope);
        }
        let guard = match self.guard {
            GuardV11::Free => MovingGuard::Free,
            GuardV11::HelloIsOver => MovingGuard::HelloIsOver,
            GuardV11::Reads(form) => match import(form) {
                Some(guard) => MovingGuard::Reads(guard, form.to_vec()),
                None => MovingGuard::HelloIsOver,
            },
        };
        let socket = Arc::new(socket);
        Ok(FlowAddress {
            peer: Peer::new(client, self.local),
            is_answered: self.is_answered,
            since_ms: now_ms.saturating_sub(self.idle_ms),
            payload: MovingPassage { socket, to, guard, begins_anew: self.begins_anew },
        })
    }
}

#[cfg(test)]
mod tests;
