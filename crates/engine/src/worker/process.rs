//! Shared by all workers: limits, listening sockets, orders, and the process's own state.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use eyelet_memory::budget::Budget;
use eyelet_sys::socket;

/// Limits that the configuration sets for the event loop. A reload may change them.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a connection may move no byte.
    pub idle_timeout: Duration,
    /// The time that one with a state of the program may: [`crate::relay::Flow::keep_state`].
    pub state_idle_timeout: Duration,
    /// The time that an exchange that rests may: [`crate::relay::Flow::keep_exchange`].
    pub exchange_timeout: Duration,
    /// True if idle connections are ended for new ones when memory is short.
    pub shed_idle: bool,
    /// How long a drain waits for busy connections.
    pub drain_timeout: Duration,
    /// Connections allowed at once: the least of configuration, memory and descriptors.
    pub connections_max: usize,
    /// Descriptors that connections may hold.
    pub descriptors_max: usize,
    /// True if somebody may ask for a list of connections: [`crate::listing`].
    pub may_list: bool,
}

/// Orders of the process to its workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Serve by the configuration that the process was started with.
    #[default]
    Serve,
    /// Serve by the newest one, which has this generation: [`crate::worker::Program::update`] gives
    /// it.
    Reload(u64),
    /// Accept nothing yet: the process that this one replaces still serves.
    Hold,
    /// Leave: the process that replaces this one accepts from now on and gets the connections.
    /// [`crate::worker::Program::departure`] says how.
    HandOver,
    /// The process that replaces this one needs it no more: let the listening sockets go. What is
    /// left goes on until it ends.
    Settled,
    /// End: accept no more, and let the connections end.
    Drain,
}

/// A listening socket of one worker.
pub struct ListenerSocket {
    /// Index of the listener in the configuration.
    pub listener: u16,
    /// The socket. The process has it too, for the next reload.
    pub socket: Arc<OwnedFd>,
    /// The kernel's count of dropped packets at the last look.
    drops: u32,
}

impl ListenerSocket {
    /// A listening socket. Another process may have had it before: what was dropped then is not
    /// counted again.
    pub fn new(listener: u16, socket: Arc<OwnedFd>) -> Self {
        let drops = socket::drops(&socket).unwrap_or(0);
        Self { listener, socket, drops }
    }

    /// Returns how many packets the kernel has dropped since the last look.
    pub(crate) fn take_drops(&mut self) -> u32 {
        let now = socket::drops(&self.socket).unwrap_or(self.drops);
        now.wrapping_sub(std::mem::replace(&mut self.drops, now))
    }
}

/// Changes of a reload to the event loop.
pub struct Update {
    /// Its bounds.
    pub settings: Settings,
    /// Where it listens from now on, those before included that stay.
    pub sockets: Vec<ListenerSocket>,
}

/// State that the workers of a process share.
#[derive(Debug)]
pub struct Process {
    /// Connections open now, in all workers.
    pub open: AtomicUsize,
    /// Memory that connections hold, in all workers.
    pub budget: Arc<Budget>,
    /// Descriptors that connections hold now, in all workers.
    pub descriptors: AtomicUsize,
    /// The number of workers.
    pub workers: AtomicUsize,
}

impl Process {
    /// No connection yet.
    pub const fn new(budget: Arc<Budget>) -> Self {
        let [open, descriptors, workers] = [const { AtomicUsize::new(0) }; 3];
        Self { open, budget, descriptors, workers }
    }
}
