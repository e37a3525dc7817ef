//! Accepting connections, as many as there is room for.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use eyelet_sys::socket;

use crate::ready::Token;
use crate::worker::Worker;

/// Connections that the kernel queues while accepting is busy. It caps this at net.core.somaxconn.
pub const BACKLOG: i32 = 65_535;
/// Idle time after which the kernel probes a connection: below the five minutes after which
/// common NATs forget one.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(240);
/// Connections accepted per listener in one iteration, so that a flood of new ones does not starve
/// the others.
pub const ACCEPTS: usize = 64;

/// How long a draining worker accepts what its listeners' queues hold. New connections may come as
/// fast as they are accepted, so a count alone does not bound the time.
pub const LAST_ACCEPT_TIME: Duration = Duration::from_millis(500);
/// Batches of [`ACCEPTS`] in that last round: a queue of [`BACKLOG`].
const LAST_ACCEPTS: usize = BACKLOG as usize / ACCEPTS + 1;

const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
const EPROTO: i32 = 71;
const ECONNABORTED: i32 = 103;

/// A listening socket of one worker.
pub struct ListenerSocket {
    /// Index of the listener in the configuration.
    pub listener: u16,
    /// The socket.
    pub socket: OwnedFd,
    /// The kernel's count of dropped connections at the last look.
    pub drops: u32,
}

/// The listeners of a worker and the connections that were accepted but not begun.
pub struct Accepting {
    /// The listening sockets.
    pub sockets: Vec<ListenerSocket>,
    /// Whether accepting pauses, at the connection limit or out of descriptors. Checked at each
    /// tick.
    pub paused: bool,
    /// Accepted and not begun yet, at most [`ACCEPTS`] of each listener.
    pub waiting: Vec<Accepted>,
    /// Predicted batch size. Overshooting costs one failed accept4, which is not cheap: the kernel
    /// makes a socket first.
    pub guess: usize,
}

/// A connection that was accepted.
pub struct Accepted {
    /// Index of the listener.
    pub listener: u16,
    /// Its socket.
    pub client: OwnedFd,
    /// Who connected.
    pub peer: SocketAddr,
}

impl Accepting {
    /// Nothing accepted yet.
    pub fn new(sockets: Vec<ListenerSocket>) -> Self {
        Self { sockets, paused: false, waiting: Vec::new(), guess: 1 }
    }
}

impl Worker {
    /// Accepts up to the predicted number. Returns whether more may be queued. The caller must then
    /// come back: the listener is level-triggered in epoll, but the runtime sees epoll as edges.
    pub fn accept(&self, accepting: &mut Accepting, index: u16) -> bool {
        for n in 0..accepting.guess {
            if self.is_full() {
                self.pause(accepting, "at its connection limit");
                return false;
            }
            let Some(from) = accepting.sockets.get(usize::from(index)) else { return false };
            let listener = from.listener;
            match socket::accept(&from.socket) {
                Ok((client, peer)) => {
                    self.process.open.fetch_add(1, Relaxed);
                    self.uses_descriptors(2);
                    accepting.waiting.push(Accepted { listener, client, peer });
                }
                Err(error) => match error.raw_os_error() {
                    Some(EAGAIN) => {
                        accepting.guess = n.max(1);
                        return false;
                    }
                    // The client left before it was accepted.
                    Some(ECONNABORTED | EINTR | EPROTO) => {}
                    Some(EMFILE | ENFILE) => {
                        self.pause(accepting, "out of descriptors");
                        return false;
                    }
                    _ => {
                        self.pause(accepting, "failing to accept");
                        return false;
                    }
                },
            }
        }
        true
    }

    fn is_full(&self) -> bool {
        self.process.open.load(Relaxed) >= self.process.connections_max
            || self.process.descriptors.load(Relaxed) + 2 > self.process.descriptors_max
    }

    fn pause(&self, accepting: &mut Accepting, why: &str) {
        if std::mem::replace(&mut accepting.paused, true) {
            return;
        }
        self.counters.accept_pauses.up();
        let open = self.process.open.load(Relaxed);
        tracing::warn!("accepting pauses: {why}; {open} connections are open");
        for from in &accepting.sockets {
            // An error means that it is not registered, which is the aim.
            let _ = self.table.borrow().epoll.remove(&from.socket);
        }
    }

    /// Accepts again when there is room.
    pub fn resume(&self, accepting: &mut Accepting) {
        if accepting.paused && !self.is_full() {
            accepting.paused = false;
            let pauses = self.counters.accept_pauses.value();
            tracing::warn!("accepting resumes (worker {}, pause {pauses})", self.index);
            if let Err(error) = self.listen(&accepting.sockets) {
                tracing::error!("cannot accept connections any more: {error}");
            }
        }
    }

    /// Accepts what is queued, because closing a listener resets it, and closes the listeners.
    /// These are still reset: connections that arrive after the last accept, those for which there
    /// is no room, and those that are queued at `end`.
    pub fn accept_last(self: &Rc<Self>, accepting: &mut Accepting, end: Instant) {
        self.count_drops(accepting);
        for index in 0..accepting.sockets.len() {
            accepting.guess = ACCEPTS;
            // Bounded by the backlog: new connections may come as fast as they are accepted.
            for _ in 0..LAST_ACCEPTS {
                let may_be_more = self.accept(accepting, index as u16);
                self.begin_all(accepting);
                if !may_be_more || Instant::now() >= end {
                    break;
                }
            }
        }
        accepting.sockets.clear();
        // No listener is left to resume.
        accepting.paused = false;
    }

    /// Adds the kernel's drops at this worker's listeners to the counters.
    pub fn count_drops(&self, accepting: &mut Accepting) {
        for listener in &mut accepting.sockets {
            let now = socket::drops(&listener.socket).unwrap_or(listener.drops);
            let new = now.wrapping_sub(std::mem::replace(&mut listener.drops, now));
            if new > 0 {
                self.counters.listen_drops.add(new.into());
            }
        }
    }

    /// Registers the listeners in epoll.
    pub fn listen(&self, sockets: &[ListenerSocket]) -> io::Result<()> {
        for (index, from) in sockets.iter().enumerate() {
            let token = Token::Listener(index as u16).encode();
            self.table.borrow().epoll.add_listener(&from.socket, token)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpStream;

    use eyelet_sys::socket::Listen;

    use super::*;
    use crate::shed::tests::worker;

    /// The queue is accepted to its end while there is time, and after that at most one more batch:
    /// new connections may come as fast as they are accepted.
    #[test]
    fn the_last_accept_ends_with_its_time() {
        const QUEUED: usize = 3 * ACCEPTS;
        let how = || Listen {
            reuse_port: false,
            keepalive_idle: KEEPALIVE_IDLE,
            transparent: false,
            defer: None,
        };
        let now = Instant::now();
        for (end, expected) in [(now, ACCEPTS), (now + Duration::from_secs(600), QUEUED)] {
            let socket = socket::bind(SocketAddr::from(([127, 0, 0, 1], 0)), how()).unwrap();
            socket::listen(&socket, BACKLOG).unwrap();
            let address = socket::local_address(&socket).unwrap();
            let clients: Vec<_> =
                (0..QUEUED).map(|_| TcpStream::connect(address).unwrap()).collect();
            let worker = worker();
            let listener = ListenerSocket { listener: 0, socket, drops: 0 };
            let mut accepting = Accepting::new(vec![listener]);
            worker.accept_last(&mut accepting, end);
            assert_eq!(worker.counters.accepted.value(), expected as u64);
            assert!(accepting.sockets.is_empty(), "the listener is closed");
            assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
            drop(clients);
        }
    }
}
