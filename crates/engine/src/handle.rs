//! An active connection: what its future may await on its sockets, each wait bounded by the
//! connection's deadline. It must not know TLS or rules.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll};
use std::time::Duration;

use eyelet_sys::epoll::ENDED;
use eyelet_sys::transparent;

use crate::connection_table::{LARGE_BYTES, Phase, Role, Waits};
use crate::ready::{CLIENT, READ, Side, WRITE};
use crate::socket;
use crate::worker::Handle;
use eyelet_memory::budget::{CountedBuffer, HELLO_BYTES};
use eyelet_telemetry::reason::{Limit, Reason, Shed, When};

/// Why a wait ended without what was waited for.
#[derive(Debug)]
pub enum Stop {
    /// The process is going, and this connection was not done in time.
    Drained,
    /// Memory is short, and this is the oldest connection that is not done yet.
    Shed,
    /// The deadline passed.
    Late,
    /// The socket failed.
    Io(io::Error),
    /// The kernel takes no more descriptors to watch.
    Unwatched(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Handle {
    /// Bounds all waits from now on, also after a deadline that has passed.
    pub fn due_in(&self, wait: Duration) {
        let mut table = self.worker.table.borrow_mut();
        table.due_in(self.key, wait);
        if let Some(Role::Active { late, shed, .. }) =
            table.entry(self.key).map(|entry| &mut entry.role)
        {
            // Memory was given to others already: no deadline brings it back.
            *late = *shed;
        }
    }

    /// Waits for an edge of any of `bits` on a side, or on any side where it is `None`.
    pub async fn ready(&self, sides: &[Side], bits: u8) -> Result<(), Stop> {
        poll_fn(|task| self.poll_ready(task, sides, bits)).await
    }

    /// The same as a poll. Without a side it waits for the deadline alone.
    pub fn poll_ready(
        &self,
        task: &mut Context<'_>,
        sides: &[Side],
        bits: u8,
    ) -> Poll<Result<(), Stop>> {
        let mut table = self.worker.table.borrow_mut();
        let Some(entry) = table.entry(self.key) else { return Poll::Ready(Err(Stop::Late)) };
        if sides.iter().any(|side| entry.ready.any(*side, bits)) {
            return Poll::Ready(Ok(()));
        }
        match &mut entry.role {
            Role::Active { late: true, shed, .. } => Poll::Ready(Err(self.why_late(*shed))),
            Role::Active { waits, .. } => {
                match waits {
                    Waits::Task(known) if known.will_wake(task.waker()) => {}
                    // Not kept: who polls with it comes back, as long as nobody else keeps it.
                    _ if task.waker().will_wake(&self.worker.nobody) => *waits = Waits::No,
                    _ => *waits = Waits::Task(task.waker().clone()),
                }
                match table.watch(self.key) {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(Stop::Unwatched(error))),
                }
            }
            _ => Poll::Ready(Err(Stop::Late)),
        }
    }

    /// Whether any of `bits` was seen on a side and is not used up.
    pub fn has(&self, side: Side, bits: u8) -> bool {
        let mut table = self.worker.table.borrow_mut();
        table.entry(self.key).is_some_and(|entry| entry.ready.any(side, bits))
    }

    /// Fails once the deadline has passed, for waits on what is no socket of ours.
    pub fn in_time(&self) -> Result<(), Stop> {
        let mut table = self.worker.table.borrow_mut();
        match table.entry(self.key).map(|entry| &entry.role) {
            Some(Role::Active { late: false, .. }) => Ok(()),
            Some(Role::Active { shed, .. }) => Err(self.why_late(*shed)),
            _ => Err(Stop::Late),
        }
    }

    fn why_late(&self, shed: bool) -> Stop {
        match (shed, self.worker.is_cutting.get()) {
            (true, _) => Stop::Shed,
            (false, true) => Stop::Drained,
            (false, false) => Stop::Late,
        }
    }

    /// Reads what the client has sent, at most `max` bytes, and appends it. 0 is its end.
    ///
    /// Through the worker's buffer, so that a connection holds what it received and no more.
    pub async fn recv(&self, into: &mut CountedBuffer, max: usize) -> Result<usize, Stop> {
        loop {
            self.ready(&[CLIENT], READ).await?;
            if into.len() > LARGE_BYTES {
                self.worker.enters(self.key, Phase::Large);
            }
            // What is beyond the share of an active connection needs room as a new one does.
            if into.len() > HELLO_BYTES && !self.worker.relieve(max) {
                return Err(Stop::Shed);
            }
            let buffers = &mut *self.worker.buffers.borrow_mut();
            // While memory is short what a client sends behind its handshake is left where it is.
            let max = match self.worker.process.budget.piece() {
                Some(_) => max,
                None => max.min(HELLO_BYTES),
            };
            let limit = max.min(buffers.input.len());
            if let Some(read) = self.recv_now(&mut buffers.input[..limit])? {
                // Doubling would hold up to twice what came.
                into.edit(|bytes| {
                    bytes.reserve_exact(read);
                    bytes.extend_from_slice(&buffers.input[..read]);
                });
                return Ok(read);
            }
        }
    }

    /// Reads what the client has sent; `None` if there is nothing now. `Some(0)` is its end.
    pub fn recv_now(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut table = self.worker.table.borrow_mut();
        let entry = table.entry(self.key).ok_or(io::ErrorKind::NotConnected)?;
        match socket::recv(&entry.client, buffer) {
            Ok(read) => {
                if read < buffer.len() && !entry.ready.any(CLIENT, ENDED) {
                    entry.ready.clear(CLIENT, READ);
                }
                Ok(Some(read))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                entry.ready.clear(CLIENT, READ);
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes all of `bytes` to a side.
    pub async fn send_all(&self, side: Side, mut bytes: &[u8]) -> Result<(), Stop> {
        // A socket can be written before its first edge was seen: try, then wait.
        while !bytes.is_empty() {
            match self.send(side, bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.ready(&[side], WRITE).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes what the socket takes now.
    pub fn send(&self, side: Side, bytes: &[u8]) -> io::Result<usize> {
        let mut table = self.worker.table.borrow_mut();
        let entry = table.entry(self.key).ok_or(io::ErrorKind::NotConnected)?;
        let to = entry.socket(side).ok_or(io::ErrorKind::NotConnected)?;
        let sent = socket::send(to, bytes);
        if let Err(error) = &sent
            && error.kind() == io::ErrorKind::WouldBlock
        {
            entry.ready.clear(side, WRITE);
        }
        sent
    }

    /// The address that the client dialled.
    pub fn local_address(&self) -> Option<SocketAddr> {
        let mut table = self.worker.table.borrow_mut();
        let entry = table.entry(self.key)?;
        socket::local_address(&entry.client).ok()
    }

    /// Whether the client has not reset its connection yet.
    pub fn is_connected(&self) -> bool {
        let mut table = self.worker.table.borrow_mut();
        table.entry(self.key).is_some_and(|entry| socket::is_connected(&entry.client))
    }

    /// The address that the client dialled before it was redirected here, as the kernel tracks it.
    pub fn original_destination(&self, listener: IpAddr) -> Option<SocketAddr> {
        let mut table = self.worker.table.borrow_mut();
        let entry = table.entry(self.key)?;
        transparent::original_destination(&entry.client, listener).ok()
    }

    /// Has the end of a connect told, as a side of this connection.
    pub fn watch_attempt(&self, socket: impl AsFd, side: Side) -> io::Result<()> {
        self.worker.table.borrow_mut().watch_attempt(self.key, socket, side)
    }

    /// Makes a socket the upstream whose connect was told as this side.
    pub fn set_upstream(&self, socket: OwnedFd, side: Side) -> io::Result<()> {
        self.worker.table.borrow_mut().set_upstream(self.key, socket, side)
    }

    /// Makes a socket the upstream that was connected at once.
    pub fn set_connected(&self, socket: OwnedFd) {
        self.worker.table.borrow_mut().set_connected(self.key, socket);
    }
}

impl Stop {
    /// Why a connection ended that stopped so, waiting for its client. `limit` is what its
    /// deadline stood for.
    pub fn reason(&self, limit: Limit, when: When) -> Reason {
        match self {
            Self::Drained => Reason::Drained(Some(when)),
            Self::Shed => Reason::Shed(Shed::Unfinished(when)),
            Self::Late => Reason::Timeout(limit, Some(when)),
            Self::Unwatched(error) => Reason::Unwatched(error.into()),
            Self::Io(error) => Reason::client_io(error, Some(when)),
        }
    }
}
