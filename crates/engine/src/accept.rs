//! Taking in what listeners have, as much as there is room for.
//! It must not know what becomes of a connection.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use eyelet_sys::socket;

use crate::ready::Token;
use crate::worker::{ListenerSocket, Settings, Worker};

/// Connections that the kernel holds while accepting is busy; it caps this at
/// net.core.somaxconn.
pub const BACKLOG: i32 = 65_535;
/// Idle time after which the kernel probes a connection: below the five minutes after which
/// common NATs forget one.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(240);
/// Connections accepted in one turn, so that a flood of new ones does not starve the others.
pub const ACCEPTS: usize = 64;

/// How long a worker takes in what its listeners' queues hold when it drains, at most. New
/// connections may come as fast as they are taken in, so a count alone is no bound on the time.
pub const LAST_ACCEPT_TIME: Duration = Duration::from_millis(500);
/// How often up to [`ACCEPTS`] are taken in for the last time: a queue of [`BACKLOG`].
const LAST_ACCEPTS: usize = BACKLOG as usize / ACCEPTS + 1;

const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
const EPROTO: i32 = 71;
const ECONNABORTED: i32 = 103;

/// What a worker takes in, and how far it is with that.
pub struct Accepting {
    /// Where it listens. A position that an epoll token names is never another socket's while that
    /// one is registered; `None`: free.
    pub sockets: Vec<Option<ListenerSocket>>,
    /// Whether at the limit or out of descriptors; looked at again each tick.
    pub paused: bool,
    /// Taken in and not begun yet, at most [`ACCEPTS`] of each listener.
    pub waiting: Vec<Accepted>,
    /// How many are taken in without a look whether there are so many, which is the dearer call
    /// where there are not: it makes a socket first.
    pub guess: usize,
}

/// A connection that was taken in.
pub struct Accepted {
    /// Index of the listener.
    pub listener: u16,
    /// Its socket.
    pub client: OwnedFd,
    /// Who connected.
    pub peer: SocketAddr,
}

impl Accepting {
    /// Nothing taken in yet.
    pub fn new(sockets: Vec<ListenerSocket>) -> Self {
        let sockets = sockets.into_iter().map(Some).collect();
        Self { sockets, paused: false, waiting: Vec::new(), guess: 1 }
    }
}

impl Worker {
    /// Takes in what waits, as far as guessed; whether more may wait. Nobody else will tell: the
    /// listener is level-triggered, but what the runtime sees of it is an edge.
    pub fn accept(&self, accepting: &mut Accepting, index: u16) -> bool {
        for n in 0..accepting.guess {
            if self.is_full() {
                self.pause(accepting, "at its connection limit");
                return false;
            }
            let Some(Some(from)) = accepting.sockets.get(usize::from(index)) else { return false };
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
                    // The client was gone before it was accepted.
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
        let Settings { connections_max, descriptors_max, .. } = self.settings.get();
        self.process.open.load(Relaxed) >= connections_max
            || self.process.descriptors.load(Relaxed) + 2 > descriptors_max
    }

    fn pause(&self, accepting: &mut Accepting, why: &str) {
        if std::mem::replace(&mut accepting.paused, true) {
            return;
        }
        self.counters.accept_pauses.up();
        let open = self.process.open.load(Relaxed);
        tracing::warn!("accepting pauses: {why}, {open} connections are open");
        for from in accepting.sockets.iter().flatten() {
            // It was registered at the start; if it is not any more there is nothing to pause.
            let _ = self.table.borrow().epoll.remove(&from.socket);
        }
    }

    /// Goes on when there is room again.
    pub fn resume(&self, accepting: &mut Accepting) {
        if accepting.paused && !self.is_full() {
            accepting.paused = false;
            let pauses = self.counters.accept_pauses.value();
            tracing::warn!("accepting resumes (worker {}, pause {pauses})", self.index);
            if let Err(error) = self.listen(accepting) {
                tracing::error!("cannot accept connections any more: {error}");
            }
        }
    }

    /// Takes in what is queued, because a close would reset it, and closes the listeners. What
    /// comes between the last look and the close is reset all the same, and so is what there is
    /// no room for, or no time until `end`.
    pub fn accept_last(self: &Rc<Self>, accepting: &mut Accepting, end: Instant) {
        self.count_drops(accepting);
        for index in 0..accepting.sockets.len() {
            self.accept_rest(accepting, index as u16, end);
        }
        accepting.sockets.clear();
        // No listener is left that could accept again.
        accepting.paused = false;
    }

    /// Takes in what one listener's queue holds.
    fn accept_rest(self: &Rc<Self>, accepting: &mut Accepting, index: u16, end: Instant) {
        accepting.guess = ACCEPTS;
        // A queue is not longer than the backlog, and new connections may come as fast.
        for _ in 0..LAST_ACCEPTS {
            let may_be_more = self.accept(accepting, index);
            self.begin_all(accepting);
            if !may_be_more || Instant::now() >= end {
                break;
            }
        }
    }

    /// Closes the listeners that are not among `wanted`. First it takes in what they have queued,
    /// as [`Worker::accept_last`] does.
    pub(crate) fn unlisten(
        self: &Rc<Self>,
        accepting: &mut Accepting,
        wanted: &[ListenerSocket],
        end: Instant,
    ) {
        self.count_drops(accepting);
        for index in 0..accepting.sockets.len() {
            let Some(Some(known)) = accepting.sockets.get(index) else { continue };
            if wanted.iter().any(|wanted| Arc::ptr_eq(&wanted.socket, &known.socket)) {
                continue;
            }
            self.accept_rest(accepting, index as u16, end);
            let removed = accepting.sockets.get_mut(index).and_then(Option::take);
            if let Some(removed) = removed.filter(|_| !accepting.paused) {
                // The process may hold the socket for a moment longer. One that is not registered
                // tells of nothing anyway.
                let _ = self.table.borrow().epoll.remove(&removed.socket);
            }
        }
    }

    /// Listens at those of `wanted` that are new, and has the others known by their new index.
    pub(crate) fn relisten(&self, accepting: &mut Accepting, wanted: Vec<ListenerSocket>) {
        for new in wanted {
            let known = accepting.sockets.iter_mut().flatten();
            let mut same = known.filter(|known| Arc::ptr_eq(&known.socket, &new.socket));
            if let Some(same) = same.next() {
                same.listener = new.listener;
                continue;
            }
            let free = accepting.sockets.iter().position(Option::is_none);
            let index = free.unwrap_or(accepting.sockets.len());
            if !accepting.paused
                && let Err(error) = self.listen_at(index, &new)
            {
                tracing::error!("cannot accept connections at a new listener: {error}");
            }
            match accepting.sockets.get_mut(index) {
                Some(place) => *place = Some(new),
                None => accepting.sockets.push(Some(new)),
            }
        }
    }

    /// Adds to the counters what the kernel has dropped at this worker's listeners.
    pub fn count_drops(&self, accepting: &mut Accepting) {
        for listener in accepting.sockets.iter_mut().flatten() {
            let now = socket::drops(&listener.socket).unwrap_or(listener.drops);
            let new = now.wrapping_sub(std::mem::replace(&mut listener.drops, now));
            if new > 0 {
                self.counters.listen_drops.add(new.into());
            }
        }
    }

    /// Has the kernel tell of the listeners.
    pub fn listen(&self, accepting: &Accepting) -> io::Result<()> {
        for (index, from) in accepting.sockets.iter().enumerate() {
            if let Some(from) = from {
                self.listen_at(index, from)?;
            }
        }
        Ok(())
    }

    fn listen_at(&self, index: usize, from: &ListenerSocket) -> io::Result<()> {
        let token = Token::Listener(index as u16).encode();
        self.table.borrow().epoll.add_listener(&from.socket, token)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpStream;

    use eyelet_sys::socket::Listen;

    use super::*;
    use crate::shed::tests::worker;

    fn socket() -> Arc<OwnedFd> {
        let how = Listen {
            reuse_port: false,
            keepalive_idle: KEEPALIVE_IDLE,
            transparent: false,
            defer: None,
        };
        let socket = socket::bind(SocketAddr::from(([127, 0, 0, 1], 0)), how).unwrap();
        socket::listen(&socket, BACKLOG).unwrap();
        Arc::new(socket)
    }

    /// One listener stays under another index, one goes, one comes.
    #[test]
    fn a_listener_that_goes_gives_what_it_has_queued() {
        let [stays, goes, comes] = [socket(), socket(), socket()];
        let address = |socket: &Arc<OwnedFd>| socket::local_address(socket).unwrap();
        let left = address(&goes);
        let at = |listener, socket: &Arc<OwnedFd>| ListenerSocket {
            listener,
            socket: socket.clone(),
            drops: 0,
        };
        let worker = worker();
        let mut accepting = Accepting::new(vec![at(0, &goes), at(1, &stays)]);
        worker.listen(&accepting).unwrap();
        let queued: Vec<_> = (0..3).map(|_| TcpStream::connect(left).unwrap()).collect();
        let wanted = vec![at(0, &stays), at(1, &comes)];
        let end = Instant::now() + Duration::from_secs(600);
        worker.unlisten(&mut accepting, &wanted, end);
        assert_eq!(worker.counters.accepted.value(), queued.len() as u64);
        worker.relisten(&mut accepting, wanted);
        drop(goes);
        assert!(TcpStream::connect(left).is_err(), "nobody listens any more");
        let indexes = |accepting: &Accepting| -> Vec<_> {
            let sockets = accepting.sockets.iter().flatten();
            sockets.map(|from| (from.listener, address(&from.socket))).collect()
        };
        assert_eq!(indexes(&accepting), [(1, address(&comes)), (0, address(&stays))]);
        for socket in [&stays, &comes] {
            let _client = TcpStream::connect(address(socket)).unwrap();
            let place = accepting.sockets.iter().position(|known| {
                known.as_ref().is_some_and(|known| Arc::ptr_eq(&known.socket, socket))
            });
            accepting.guess = 1;
            worker.accept(&mut accepting, place.unwrap() as u16);
            assert_eq!(accepting.waiting.drain(..).count(), 1);
        }
    }

    /// A queue is taken in to its end while there is time, and behind that one batch at most: new
    /// connections may come as fast as they are taken in.
    #[test]
    fn the_last_look_at_a_queue_ends_with_its_time() {
        const QUEUED: usize = 3 * ACCEPTS;
        let now = Instant::now();
        for (end, expected) in [(now, ACCEPTS), (now + Duration::from_secs(600), QUEUED)] {
            let socket = socket();
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
