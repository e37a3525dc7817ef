//! A flow on its way to another process: out of any worker, its sockets registered nowhere.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use eyelet_flows::moving::MovingFlow;
use eyelet_telemetry::info::ConnectionInfo;

use crate::guard::DatagramGuard;

/// A flow that moves.
pub struct QuicMove {
    /// The cookie of the listening socket that its client has asked.
    pub via: u64,
    pub info: ConnectionInfo,
    pub is_from_client: bool,
    pub may_change_address: bool,
    pub flow: MovingFlow<MovingPassage>,
}

/// The state of one of its addresses.
pub struct MovingPassage {
    pub socket: Arc<OwnedFd>,
    pub to: SocketAddr,
    pub guard: MovingGuard,
    pub begins_anew: bool,
}

/// The check of a client's datagrams.
pub enum MovingGuard {
    /// None: no hello can be read, and the rules have asked for none.
    Free,
    /// Nothing passes any more that may have a hello.
    HelloIsOver,
    /// The program's, and its form for another process.
    Reads(Box<dyn DatagramGuard>, Vec<u8>),
}

impl QuicMove {
    /// True if its server has answered.
    pub fn is_answered(&self) -> bool {
        self.flow.addresses.iter().any(|address| address.is_answered)
    }
}
