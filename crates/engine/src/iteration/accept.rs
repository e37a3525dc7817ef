//! Accepting connections, as many as there is room for.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use eyelet_sys::{Errno, socket};

use crate::ready::Token;
use crate::worker::source;
use crate::worker::{ListenerSocket, Settings, Worker};

/// Connections that the kernel queues while accepting is busy. It caps this at net.core.somaxconn.
pub const BACKLOG: i32 = 65_535;
/// Connections accepted per listener in one iteration, so that a flood of new ones does not starve
/// the others.
pub const ACCEPTS: usize = 64;

/// The time for which a draining worker accepts the connections in its listeners' queues. New
/// connections may come as fast as they are accepted, so a count alone does not bound the time.
pub const LAST_ACCEPT_TIME: Duration = Duration::from_millis(500);
/// Batches of [`ACCEPTS`] in that last round: a queue of [`BACKLOG`].
const LAST_ACCEPTS: usize = BACKLOG as usize / ACCEPTS + 1;

/// The listeners of a worker and the connections that were accepted but not begun.
pub struct Accepting {
    /// The listening sockets. A position that an epoll token names is never another socket's while
    /// that one is registered; `None`: free.
    pub sockets: Vec<Option<ListenerSocket>>,
    /// True if accepting pauses, at the connection limit or out of descriptors. Checked at each
    /// tick.
    pub paused: bool,
    /// Accepted and not begun yet, at most [`ACCEPTS`] of each listener.
    pub waiting: Vec<Accepted>,
    /// Predicted batch size. Overshooting costs one failed accept4, which is not cheap: the kernel
    /// makes a socket first.
    pub guess: usize,
    /// The kernel's count of drops by full queues at the last look.
    full_queue_drops: u64,
}

/// A connection that was accepted.
pub struct Accepted {
    /// Index of the listener.
    pub listener: u16,
    /// Its socket.
    pub client: OwnedFd,
    /// The peer that connected.
    pub peer: SocketAddr,
}

/// The limit that leaves no room for another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// This many connections are open. The line at the start says which setting that is.
    Connections(usize),
    /// All these descriptors are held by connections, or kept for those that dial.
    Descriptors(usize),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connections(max) => write!(f, "at the limit of connections, {max}"),
            Self::Descriptors(max) => {
                write!(f, "all {max} descriptors for connections are in use (raise LimitNOFILE=)")
            }
        }
    }
}

impl Accepting {
    /// Nothing accepted yet.
    pub fn new(sockets: Vec<ListenerSocket>) -> Self {
        let sockets = sockets.into_iter().map(Some).collect();
        // Where it cannot be read, no drop is known to be of a full queue.
        let full_queue_drops = socket::full_queue_drops().unwrap_or(0);
        Self { sockets, paused: false, waiting: Vec::new(), guess: 1, full_queue_drops }
    }
}

impl Worker {
    /// Accepts up to the predicted number. Returns whether more may be queued. The caller must then
    /// come back: the listener is level-triggered in epoll, but the runtime sees epoll as edges.
    pub fn accept(&self, accepting: &mut Accepting, index: u16) -> bool {
        for n in 0..accepting.guess {
            if let Some(limit) = self.reached() {
                self.pause(accepting, &limit);
                return false;
            }
            let Some(Some(from)) = accepting.sockets.get(usize::from(index)) else { return false };
            let listener = from.listener;
            match socket::accept(&from.socket) {
                Ok((client, peer)) => {
                    let peer = source::address(peer);
                    self.process.open.fetch_add(1, Relaxed);
                    self.uses_descriptors(2);
                    accepting.waiting.push(Accepted { listener, client, peer });
                }
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => {
                        accepting.guess = n.max(1);
                        return false;
                    }
                    // The client left before it was accepted.
                    Some(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => {}
                    // A worker that leaves has ended listening for all that share the socket, and
                    // this one is about to leave, too.
                    Some(Errno::INVAL) => {
                        // An error means that it is not registered, which is the aim.
                        let _ = self.table.borrow().epoll.remove(&from.socket);
                        return false;
                    }
                    _ => {
                        self.pause(accepting, &error);
                        return false;
                    }
                },
            }
        }
        true
    }

    /// True if an eighth of the descriptors is free. With less, what is only kept for later leaves
    /// them to new connections.
    pub fn has_plenty_descriptors(&self) -> bool {
        let max = self.settings.get().descriptors_max;
        self.process.descriptors.load(Relaxed) <= max - max / 8
    }

    /// The limit that leaves no room for another connection.
    fn reached(&self) -> Option<Limit> {
        let Settings { connections_max, descriptors_max, .. } = self.settings.get();
        if self.process.descriptors.load(Relaxed) + 2 > descriptors_max {
            return Some(Limit::Descriptors(descriptors_max));
        }
        let is_full = self.process.open.load(Relaxed) >= connections_max;
        is_full.then_some(Limit::Connections(connections_max))
    }

    fn pause(&self, accepting: &mut Accepting, why: &dyn fmt::Display) {
        if std::mem::replace(&mut accepting.paused, true) {
            return;
        }
        self.counters.accept_pauses.up();
        let open = self.process.open.load(Relaxed);
        tracing::warn!("accepting pauses: {why}; {open} connections are open");
        for from in accepting.sockets.iter().flatten() {
            // An error means that it is not registered, which is the aim.
            let _ = self.table.borrow().epoll.remove(&from.socket);
        }
    }

    /// Accepts again when there is room.
    pub fn resume(&self, accepting: &mut Accepting) {
        if accepting.paused && self.reached().is_none() {
            accepting.paused = false;
            let pauses = self.counters.accept_pauses.value();
            tracing::warn!("accepting resumes (worker {}, pauses so far: {pauses})", self.index);
            if let Err(error) = self.listen(accepting) {
                tracing::error!("cannot accept connections any more: {error}; restart Eyelet");
            }
        }
    }

    /// Accepts what is queued, because closing a listener resets it, and closes the listeners.
    /// These are still reset: connections that arrive after the last accept, those without room,
    /// and those that are queued at `end`.
    pub fn accept_last(self: &Rc<Self>, accepting: &mut Accepting, end: Instant) {
        self.count_drops(accepting);
        for index in 0..accepting.sockets.len() {
            self.accept_rest(accepting, index as u16, end);
        }
        accepting.sockets.clear();
        // No listener is left to resume.
        accepting.paused = false;
    }

    /// Accepts what one listener's queue holds.
    fn accept_rest(self: &Rc<Self>, accepting: &mut Accepting, index: u16, end: Instant) {
        accepting.guess = ACCEPTS;
        // Bounded by the backlog: new connections may come as fast as they are accepted.
        for _ in 0..LAST_ACCEPTS {
            let may_be_more = self.accept(accepting, index);
            self.begin_all(accepting);
            if !may_be_more || Instant::now() >= end {
                break;
            }
        }
    }

    /// Closes the listeners that are not among `wanted`. First it accepts what they have queued, as
    /// [`Worker::accept_last`] does.
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
                // The process may hold the socket for a moment longer. An error means that it is
                // not registered, which is the aim.
                let _ = self.table.borrow().epoll.remove(&removed.socket);
            }
        }
    }

    /// Stops accepting. What the sockets in `kept` have queued is left to the process that accepts
    /// from them now. From the others it accepts what is queued, and closes them to new
    /// connections. With `moves_flows` flows of QUIC are ready to leave. Returns all of them for
    /// [`Worker::come_back`].
    pub(crate) fn leave(
        self: &Rc<Self>,
        accepting: &mut Accepting,
        (kept, moves_flows): (&[Arc<OwnedFd>], bool),
        end: Instant,
    ) -> Vec<ListenerSocket> {
        let is_kept = |socket: &Arc<OwnedFd>| kept.iter().any(|kept| Arc::ptr_eq(kept, socket));
        self.count_drops(accepting);
        for index in 0..accepting.sockets.len() {
            let known = accepting.sockets.get(index).and_then(Option::as_ref);
            if known.is_some_and(|known| !is_kept(&known.socket)) {
                self.accept_rest(accepting, index as u16, end);
            }
        }
        let mut left: Vec<ListenerSocket> = accepting.sockets.drain(..).flatten().collect();
        for left in &left {
            // The other process holds the socket too, so closing it would leave it registered. An
            // error means that it is not registered, which is the aim.
            let _ = self.table.borrow().epoll.remove(&left.socket);
            if !is_kept(&left.socket) {
                let _ = socket::stop_listening(&left.socket);
            }
        }
        accepting.paused = false;
        left.extend(self.leave_datagrams(kept, moves_flows));
        left
    }

    /// Accepts again from the sockets that [`Worker::leave`] returned.
    pub(crate) fn come_back(&self, accepting: &mut Accepting, left: Vec<ListenerSocket>) {
        let (datagram_sockets, left): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|socket| socket.is_datagrams);
        self.listen_datagrams(&datagram_sockets);
        for left in &left {
            if let Err(error) = socket::listen(&left.socket, BACKLOG) {
                tracing::error!("clients of a listener cannot connect: {error}; restart Eyelet");
            }
        }
        self.relisten(accepting, left);
    }

    /// Listens on the sockets of `wanted` that are new, and gives the others their new index.
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
                tracing::error!(
                    "cannot accept connections at a new listener: {error}; reload again"
                );
            }
            match accepting.sockets.get_mut(index) {
                Some(position) => *position = Some(new),
                None => accepting.sockets.push(Some(new)),
            }
        }
    }

    /// Adds what full queues have dropped at this worker's listeners to the counters.
    pub fn count_drops(&self, accepting: &mut Accepting) {
        if accepting.sockets.is_empty() {
            return;
        }
        let listeners = accepting.sockets.iter_mut().flatten();
        let dropped: u64 = listeners.map(|listener| u64::from(listener.take_drops())).sum();
        // A listener counts drops of any cause. Full queues are counted for all listeners of the
        // namespace. Each bounds what full queues have dropped here.
        let now = socket::full_queue_drops().unwrap_or(accepting.full_queue_drops);
        let before = std::mem::replace(&mut accepting.full_queue_drops, now);
        let by_full_queues = dropped.min(now.saturating_sub(before));
        if by_full_queues > 0 {
            self.counters.listen_drops.add(by_full_queues);
        }
    }

    /// Registers the listeners in epoll.
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
    use crate::park::KEEPALIVE_IDLE;
    use crate::testing::worker;

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
        let at = |listener, socket: &Arc<OwnedFd>| ListenerSocket::new(listener, socket.clone());
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
            let position = accepting.sockets.iter().position(|known| {
                known.as_ref().is_some_and(|known| Arc::ptr_eq(&known.socket, socket))
            });
            accepting.guess = 1;
            worker.accept(&mut accepting, position.unwrap() as u16);
            assert_eq!(accepting.waiting.drain(..).count(), 1);
        }
    }

    /// The socket of a listener that the next process lacks, shared by two workers.
    #[test]
    fn a_shared_socket_that_another_worker_has_shut_down_is_no_failure() {
        let shared = socket();
        let worker = worker();
        let listener = ListenerSocket::new(0, shared.clone());
        let mut accepting = Accepting::new(vec![listener]);
        worker.listen(&accepting).unwrap();
        socket::stop_listening(&shared).unwrap();
        assert!(!worker.accept(&mut accepting, 0));
        assert!(!accepting.paused);
        assert_eq!(worker.counters.accept_pauses.value(), 0);
        let left = worker.leave(&mut accepting, (&[], false), Instant::now());
        worker.come_back(&mut accepting, left);
        let _client = TcpStream::connect(socket::local_address(&shared).unwrap()).unwrap();
        accepting.guess = 1;
        worker.accept(&mut accepting, 0);
        assert_eq!(accepting.waiting.len(), 1);
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
            let listener = ListenerSocket::new(0, socket);
            let mut accepting = Accepting::new(vec![listener]);
            worker.accept_last(&mut accepting, end);
            assert_eq!(worker.counters.accepted.value(), expected as u64);
            assert!(accepting.sockets.is_empty(), "the listener is closed");
            assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
            drop(clients);
        }
    }
}
