//! The state of a worker's flows of QUIC: their table, listening sockets and buffer. `flows/` has
//! what becomes of their datagrams.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use eyelet_flows::table::{Flows, QuicFlow};
use eyelet_flows::unanswered::UnansweredFlows;
use eyelet_memory::budget::{Account, Budget, Counted};
use eyelet_memory::slab::Key;
use eyelet_sys::socket;
use eyelet_sys::socket::datagram;
use eyelet_telemetry::info::Parked;
use quinn_udp::UdpSocketState;

use eyelet_handover::flows::flow_bytes;
use eyelet_handover::guard::DatagramGuard;
use eyelet_handover::quic_move::QuicMove;

/// Datagrams that one system call reads: each may be up to 64 that the kernel has put together.
pub(crate) const BATCH: usize = 4;
/// Bytes of one of them: an IP packet has no more, nor have 64 datagrams in one (UDP_GRO).
pub(crate) const BUFFER_BYTES: usize = 1 << 16;

/// The way of a flow that passes.
pub struct FlowPass {
    /// The upstream's address.
    pub to: SocketAddr,
    /// True if the upstream sees the client's address.
    pub is_from_client: bool,
    /// False if the client may move to another port only: rules ask for its address.
    pub may_change_address: bool,
    /// `None`: no hello can be read, and the rules have asked for none.
    pub guard: Option<Box<dyn DatagramGuard>>,
    /// The number of waiting datagrams that the guard has seen.
    pub seen: usize,
}

/// A listening UDP socket of a worker. It stays open as long as a flow answers by it.
pub(crate) struct DatagramSocket {
    /// Index of its listener in the configuration.
    pub listener: Cell<u16>,
    pub socket: Arc<OwnedFd>,
    pub state: UdpSocketState,
    pub address: SocketAddr,
    /// The kernel's number of it: [`eyelet_sys::socket::datagram::cookie`].
    pub cookie: u64,
    /// False once its listener is gone: it begins nothing new.
    pub is_listening: Cell<bool>,
    /// True once it is registered.
    pub is_read: Cell<bool>,
}

/// The state of a flow beside the table.
pub(crate) struct Passage {
    /// The socket that its client has asked.
    pub via: Rc<DatagramSocket>,
    /// The slot of the task that decides it.
    pub task: Option<Key>,
    /// Its upstream.
    pub upstream: Option<(OwnedFd, SocketAddr)>,
    /// Its access line. Of several addresses of a flow one has it.
    pub info: Option<Parked>,
    pub guard: Option<Box<dyn DatagramGuard>>,
    /// True once its client has the handshake's keys, and so no Initial keys any more (RFC 9001
    /// section 4.9.1): a packet that may have a hello is not from it.
    pub hello_is_over: bool,
    /// True if its upstream sees the client's address.
    pub is_from_client: bool,
    /// See [`FlowPass`].
    pub may_change_address: bool,
    /// True if its server has asked its client to begin anew.
    pub begins_anew: bool,
}

/// The flows of a worker.
pub(crate) struct WorkerFlows {
    pub table: RefCell<Flows<Passage>>,
    /// Listening sockets, by the index in their epoll tokens.
    pub sockets: RefCell<Vec<Option<Rc<DatagramSocket>>>>,
    /// Lent while datagrams are read. Made at the first read.
    pub buffer: RefCell<Vec<u8>>,
    /// True if a listening socket is not read, because the flows of an earlier process are still to
    /// come.
    pub awaits: Cell<bool>,
    /// Flows that are still to leave for another process, and those that it was given.
    pub leaving: RefCell<LeavingFlows>,
}

/// Flows on their way to another process.
pub(crate) struct LeavingFlows {
    /// Those that leave next, the last one first. True: the other process takes it.
    pub left: Vec<(Key, bool)>,
    /// Those that the other process was given. They come back if it dies.
    given: Vec<QuicMove>,
    counted: Counted,
}

impl LeavingFlows {
    fn new(budget: &Arc<Budget>) -> Self {
        let counted = Counted::of(budget, Account::Flows, 0);
        Self { left: Vec::new(), given: Vec::new(), counted }
    }

    /// Adds flows that the other process is given.
    pub fn give(&mut self, flows: Vec<QuicMove>) {
        self.counted.set(self.counted.bytes() + flows.iter().map(bytes).sum::<usize>());
        self.given.extend(flows);
    }

    /// Takes flows back that were given, by their order.
    pub fn take_back(&mut self, range: Range<usize>) -> Vec<QuicMove> {
        let taken: Vec<QuicMove> = self.given.drain(range).collect();
        self.counted.set(self.counted.bytes() - taken.iter().map(bytes).sum::<usize>());
        taken
    }

    /// Takes all flows back that were given.
    pub fn take_all(&mut self) -> Vec<QuicMove> {
        self.counted.set(0);
        std::mem::take(&mut self.given)
    }

    /// The number of flows that the other process was given.
    pub fn given(&self) -> usize {
        self.given.len()
    }
}

/// Bytes of a copy of a flow.
fn bytes(moving: &QuicMove) -> usize {
    size_of::<QuicMove>() + flow_bytes(moving)
}

impl Passage {
    pub fn new(via: &Rc<DatagramSocket>) -> Self {
        Self {
            via: via.clone(),
            task: None,
            upstream: None,
            info: None,
            guard: None,
            hello_is_over: false,
            is_from_client: false,
            may_change_address: false,
            begins_anew: false,
        }
    }
}

impl WorkerFlows {
    pub fn new(budget: &Arc<Budget>, unanswered: &Arc<UnansweredFlows>) -> Self {
        Self {
            table: RefCell::new(Flows::new(budget, unanswered)),
            sockets: RefCell::default(),
            buffer: RefCell::default(),
            awaits: Cell::default(),
            leaving: RefCell::new(LeavingFlows::new(budget)),
        }
    }

    /// True if no datagram waits or passes.
    pub fn is_idle(&self) -> bool {
        self.table.borrow().open() == 0
    }

    /// Lends the buffer, for [`BATCH`] reads at once.
    pub fn take_buffer(&self) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut *self.buffer.borrow_mut());
        buffer.resize(BATCH * BUFFER_BYTES, 0);
        buffer
    }
}

impl DatagramSocket {
    pub fn new(listener: u16, socket: &Arc<OwnedFd>) -> io::Result<Self> {
        Ok(Self {
            listener: Cell::new(listener),
            socket: socket.clone(),
            state: UdpSocketState::new((&**socket).into())?,
            address: socket::local_address(socket)?,
            cookie: datagram::cookie(socket)?,
            is_listening: Cell::new(true),
            is_read: Cell::new(false),
        })
    }
}

/// A flow beside its socket in the kernel: the slot, its generation, two entries in tables that are
/// half full.
const _: () = assert!(size_of::<Option<QuicFlow<Passage>>>() + 4 + 2 * 2 * 5 <= 400);
