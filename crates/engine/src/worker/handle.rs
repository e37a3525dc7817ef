//! The handle of an active connection: the waits on its sockets, each bounded by its deadline.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use eyelet_hold::HeldStreams;
use eyelet_sys::epoll::ENDED;
use eyelet_sys::transparent;

use crate::ready::{CLIENT, READ, Side, WRITE};
use crate::socket;
use crate::worker::Handle;
use eyelet_memory::budget::{CountedBuffer, HELLO_BYTES};
use eyelet_table::{
    EndCause, FurtherSocket, KeptStreams, LARGE_BYTES, Phase, SlotState, Waits, open_sockets,
};
use eyelet_telemetry::info::ConnectionInfo;
use eyelet_telemetry::listing::State;
use eyelet_telemetry::reason::{Limit, Reason, Shed, When};

/// The reason why a wait ended before its event.
#[derive(Debug)]
pub enum WaitError {
    /// The process drains, and this connection was not done in time.
    Drained,
    /// Memory is short, and this was the oldest unfinished connection.
    Shed,
    /// An operator has ended the connection.
    Ended,
    /// The deadline passed.
    Late,
    /// The socket failed.
    Io(io::Error),
    /// The kernel registers no more descriptors.
    Unregistered(io::Error),
}

impl From<io::Error> for WaitError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Handle {
    /// Sets the deadline of all waits from now on, also after an earlier deadline has passed.
    pub fn due_in(&self, wait: Duration) {
        self.worker.table.borrow_mut().due_in(self.key, wait);
    }

    /// Notes what a list of connections shows of this one.
    pub fn note_state(&self, state: State, info: &ConnectionInfo) {
        self.worker.note_state(self.key, state, info);
    }

    /// Notes that its upstream is connected, and since [`State::Dialling`] the dial has waited.
    pub fn connected(&self) {
        self.worker.connected(self.key);
    }

    /// Notes that its upstream is connected, and that the dial has not waited. It is counted as
    /// 0 s.
    pub fn connected_at_once(&self) {
        self.worker.connected_at_once();
    }

    /// Has a list show the bytes beside those of `info` while requests are served: to the upstream
    /// and to the client.
    pub fn count_live(
        &self,
        info: &ConnectionInfo,
        live: (&Rc<std::cell::Cell<u64>>, &Rc<std::cell::Cell<u64>>),
    ) {
        self.worker.count_live(self.key, info, live);
    }

    /// Waits until any of `bits` is reported on one of `sides`. With no side it waits for the
    /// deadline alone.
    pub async fn ready(&self, sides: &[Side], bits: u8) -> Result<(), WaitError> {
        poll_fn(|task| self.poll_ready(task, sides, bits)).await
    }

    /// [`Self::ready`] as a poll function.
    pub fn poll_ready(
        &self,
        task: &mut Context<'_>,
        sides: &[Side],
        bits: u8,
    ) -> Poll<Result<(), WaitError>> {
        let mut table = self.worker.table.borrow_mut();
        let Some(slot) = table.slot(self.key) else { return Poll::Ready(Err(WaitError::Late)) };
        if sides.iter().any(|side| slot.ready.any(*side, bits)) {
            return Poll::Ready(Ok(()));
        }
        match &mut slot.state {
            SlotState::Active { waits, is_late, end, .. } => {
                if let Some(over) = self.over(*is_late, *end) {
                    return Poll::Ready(Err(over));
                }
                match waits {
                    Waits::Task(known) if known.will_wake(task.waker()) => {}
                    // Not stored: the event loop stores the future itself and polls it again.
                    _ if task.waker().will_wake(&self.worker.counting_waker) => *waits = Waits::No,
                    _ => *waits = Waits::Task(task.waker().clone()),
                }
                match table.register(self.key) {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(WaitError::Unregistered(error))),
                }
            }
            _ => Poll::Ready(Err(WaitError::Late)),
        }
    }

    /// True if any of `bits` was reported on a side and is not used up.
    pub fn has(&self, side: Side, bits: u8) -> bool {
        let mut table = self.worker.table.borrow_mut();
        table.slot(self.key).is_some_and(|slot| slot.ready.any(side, bits))
    }

    /// Fails once the deadline has passed. For waits on anything but the connection's sockets.
    pub fn in_time(&self) -> Result<(), WaitError> {
        let mut table = self.worker.table.borrow_mut();
        match table.slot(self.key).map(|slot| &slot.state) {
            Some(SlotState::Active { is_late, end, .. }) => {
                self.over(*is_late, *end).map_or(Ok(()), Err)
            }
            _ => Err(WaitError::Late),
        }
    }

    /// True if the drain has come to this connection, or an operator has ended it. A task that
    /// waits is woken then.
    pub fn is_to_end(&self) -> bool {
        self.why_end().is_some()
    }

    /// Returns the reason of its end, if it is to end.
    pub fn why_end(&self) -> Option<Reason> {
        if !self.worker.is_draining() && !self.worker.ending.has_operator_ended.get() {
            return None;
        }
        let mut table = self.worker.table.borrow_mut();
        match table.slot(self.key).map(|slot| &slot.state) {
            Some(SlotState::Active { end: Some(EndCause::Ended), .. }) => Some(Reason::Ended),
            Some(SlotState::Active { end: Some(EndCause::Drained), .. }) => {
                Some(Reason::Drained(None))
            }
            _ => self.worker.is_cutting().then_some(Reason::Drained(None)),
        }
    }

    /// Returns the reason why no wait of the connection goes on, if none does. After shedding, its
    /// memory belongs to others, and no new deadline undoes that.
    fn over(&self, is_late: bool, end: Option<EndCause>) -> Option<WaitError> {
        match end {
            Some(EndCause::Shed) => Some(WaitError::Shed),
            Some(EndCause::Ended) => Some(WaitError::Ended),
            Some(EndCause::Drained) | None if !is_late => None,
            Some(EndCause::Drained) | None if self.worker.is_cutting() => Some(WaitError::Drained),
            Some(EndCause::Drained) | None => Some(WaitError::Late),
        }
    }

    /// Reads from the client, at most `max` bytes, and appends them. 0 is the end of its stream.
    ///
    /// It reads into the worker's buffer first, so that a connection holds no more than it
    /// received.
    pub async fn recv(&self, into: &mut CountedBuffer, max: usize) -> Result<usize, WaitError> {
        self.recv_from(CLIENT, into, max).await
    }

    /// Reads from either side.
    pub async fn recv_from(
        &self,
        side: Side,
        into: &mut CountedBuffer,
        max: usize,
    ) -> Result<usize, WaitError> {
        loop {
            self.ready(&[side], READ).await?;
            if into.len() > LARGE_BYTES {
                self.worker.enters(self.key, Phase::Large);
            }
            // Bytes beyond an active connection's share need room, as a new connection does.
            if into.len() > HELLO_BYTES && !self.worker.relieve(max) {
                return Err(WaitError::Shed);
            }
            // While memory is short, what a client sends after its handshake stays in the kernel.
            let max = match self.worker.process.budget.piece() {
                Some(_) => max,
                None => max.min(HELLO_BYTES),
            };
            if let Some(read) = self.recv_into(side, into, max)? {
                return Ok(read);
            }
        }
    }

    /// Reads what is there now, by the worker's buffer, and appends it. `None` if nothing is,
    /// `Some(0)` at the end of the stream.
    pub fn recv_into(
        &self,
        side: Side,
        into: &mut CountedBuffer,
        max: usize,
    ) -> io::Result<Option<usize>> {
        let buffers = &mut *self.worker.buffers.borrow_mut();
        let limit = max.min(buffers.input.len());
        let Some(read) = self.recv_now(side, &mut buffers.input[..limit])? else { return Ok(None) };
        // `Vec` would double its capacity, and hold up to twice what arrived.
        into.edit(|bytes| {
            bytes.reserve_exact(read);
            bytes.extend_from_slice(&buffers.input[..read]);
        });
        Ok(Some(read))
    }

    /// Makes the client's end a reset. Call it before the handle is dropped.
    pub fn reset_client(&self) {
        if let Some(slot) = self.worker.table.borrow_mut().slot(self.key) {
            // Without a reset the socket is still closed.
            let _ = socket::reset_on_close(&slot.client);
        }
    }

    /// Sends the client a FIN: nothing more is written to it.
    pub fn end_client(&self) -> io::Result<()> {
        let mut table = self.worker.table.borrow_mut();
        let slot = table.slot(self.key).ok_or(io::ErrorKind::NotConnected)?;
        socket::shutdown_write(&slot.client)
    }

    /// Waits until the client has sent something or has ended its stream. Its bytes stay in the
    /// socket.
    pub async fn first_byte(&self) -> Result<(), WaitError> {
        loop {
            self.ready(&[CLIENT], READ).await?;
            let mut table = self.worker.table.borrow_mut();
            let Some(slot) = table.slot(self.key) else { return Err(WaitError::Late) };
            match socket::peek(&slot.client, &mut [0]) {
                Ok(_) => return Ok(()),
                // It counted as readable when it was accepted.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    slot.ready.clear(CLIENT, READ);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads from a side. `None` if nothing is there now, `Some(0)` at the end of its stream.
    pub fn recv_now(&self, side: Side, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut table = self.worker.table.borrow_mut();
        let slot = table.slot(self.key).ok_or(io::ErrorKind::NotConnected)?;
        let from = slot.socket(side).ok_or(io::ErrorKind::NotConnected)?;
        match socket::recv(from, buffer) {
            Ok(read) => {
                if read < buffer.len() && !slot.ready.any(side, ENDED) {
                    slot.ready.clear(side, READ);
                }
                Ok(Some(read))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                slot.ready.clear(side, READ);
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends every write to the upstream at once.
    pub fn no_delay(&self) {
        let mut table = self.worker.table.borrow_mut();
        if let Some(upstream) = table.slot(self.key).and_then(|slot| slot.upstream.as_ref()) {
            // If it cannot be set, writes are late but not lost.
            let _ = socket::no_delay(upstream);
        }
    }

    /// Writes all of `bytes` to a side.
    pub async fn send_all(&self, side: Side, mut bytes: &[u8]) -> Result<(), WaitError> {
        // Tries first: a socket is writable before epoll has reported anything.
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

    /// Writes what the socket accepts now. Returns how many bytes that was.
    pub fn send(&self, side: Side, bytes: &[u8]) -> io::Result<usize> {
        let mut table = self.worker.table.borrow_mut();
        let slot = table.slot(self.key).ok_or(io::ErrorKind::NotConnected)?;
        let to = slot.socket(side).ok_or(io::ErrorKind::NotConnected)?;
        let sent = socket::send(to, bytes);
        if let Err(error) = &sent
            && error.kind() == io::ErrorKind::WouldBlock
        {
            slot.ready.clear(side, WRITE);
        }
        sent
    }

    /// The address that the client dialled.
    pub fn local_address(&self) -> Option<SocketAddr> {
        let mut table = self.worker.table.borrow_mut();
        let slot = table.slot(self.key)?;
        socket::local_address(&slot.client).ok()
    }

    /// The cgroup of the client's process, which has this number, at a Unix socket.
    pub fn client_cgroup(&self, pid: u32) -> Option<String> {
        let mut table = self.worker.table.borrow_mut();
        socket::peer_cgroup(&table.slot(self.key)?.client, pid)
    }

    /// True if the client has not reset its connection yet.
    pub fn is_connected(&self) -> bool {
        let mut table = self.worker.table.borrow_mut();
        table.slot(self.key).is_some_and(|slot| socket::is_connected(&slot.client))
    }

    /// The address that the client dialled before the kernel redirected it here (connection
    /// tracking).
    pub fn original_destination(&self, listener: IpAddr) -> Option<SocketAddr> {
        let mut table = self.worker.table.borrow_mut();
        let slot = table.slot(self.key)?;
        transparent::original_destination(&slot.client, listener).ok()
    }

    /// Registers a socket that is connecting, as a side of this connection.
    pub fn register_attempt(&self, socket: impl AsFd, side: Side) -> io::Result<()> {
        self.worker.table.borrow_mut().register_attempt(self.key, socket, side)
    }

    /// Makes the socket that was registered as this side the upstream.
    pub fn set_upstream(&self, socket: OwnedFd, side: Side) -> io::Result<()> {
        self.worker.table.borrow_mut().set_upstream(self.key, socket, side)
    }

    /// Takes the upstream's socket, which is then registered nowhere.
    pub fn take_upstream(&self) -> Option<OwnedFd> {
        self.worker.table.borrow_mut().take_upstream(self.key)
    }

    /// Gives the connection further upstream sockets, which are registered nowhere, before it is
    /// parked. It wakes when one of them has something to be read. Each is known by its place.
    ///
    /// # Errors
    /// The sockets: they are more than a connection may have, earlier ones were not taken, the
    /// connection has an upstream to which its bytes pass, or it has ended.
    pub fn give_sockets(&self, sockets: Vec<OwnedFd>) -> Result<(), Vec<OwnedFd>> {
        let count = sockets.len().cast_signed();
        self.worker.table.borrow_mut().give_further(self.key, sockets)?;
        self.worker.uses_descriptors(count);
        Ok(())
    }

    /// Takes the further sockets, in the order in which they were given. They are registered
    /// nowhere any more, so that each reports its readiness anew where it is registered next.
    pub fn take_sockets(&self) -> Vec<FurtherSocket> {
        let taken = self.worker.table.borrow_mut().take_further(self.key);
        self.worker.uses_descriptors(-open_sockets(&taken).cast_signed());
        taken
    }

    /// The number of places of further sockets.
    pub fn socket_places(&self) -> usize {
        self.worker.table.borrow().further_count(self.key)
    }

    /// The places of further sockets that have something to be read. They stay watched while its
    /// task runs, which wakes for them.
    pub fn ready_sockets(&self) -> Vec<usize> {
        self.worker.table.borrow().further_ready(self.key).collect()
    }

    /// Forgets that a further socket has something to be read, which nobody wants. It is reported
    /// again where the socket is registered anew.
    pub fn forget_ready(&self, nth: usize) {
        self.worker.table.borrow_mut().forget_further_ready(self.key, nth);
    }

    /// Takes a further socket, which is then registered nowhere. Its place stays free for it.
    pub fn take_socket(&self, nth: usize) -> Option<OwnedFd> {
        let taken = self.worker.table.borrow_mut().take_further_at(self.key, nth)?;
        self.worker.uses_descriptors(-1);
        Some(taken)
    }

    /// Puts a further socket back at its place.
    ///
    /// # Errors
    /// The socket: the place is not free, or there is none.
    pub fn put_socket(&self, nth: usize, socket: OwnedFd) -> Result<(), OwnedFd> {
        self.worker.table.borrow_mut().put_further_at(self.key, nth, socket)?;
        self.worker.uses_descriptors(1);
        Ok(())
    }

    /// Gives the connection so many shared streams, as the program keeps them, before it is parked.
    /// It wakes when [`Handle::parked_waker`] is called. They are dropped when it ends.
    pub fn give_streams(&self, count: u32, kept: KeptStreams) {
        let over = self.worker.table.borrow_mut().give_streams(self.key, count, kept);
        // Their end may come back to the table.
        drop(over);
    }

    /// Takes the shared streams.
    pub fn take_streams(&self) -> Option<KeptStreams> {
        self.worker.table.borrow_mut().take_streams(self.key)
    }

    /// Gives the connection the places of its held streams before it is parked. It wakes when one
    /// of them has its verdict. They are dropped when it ends.
    pub fn give_holds(&self, holds: HeldStreams) {
        self.worker.table.borrow_mut().give_holds(self.key, holds);
    }

    /// Takes the places of its held streams, in the order in which they were given.
    pub fn take_holds(&self) -> HeldStreams {
        self.worker.table.borrow_mut().take_holds(self.key)
    }

    /// Makes a socket that connected at once the upstream.
    pub fn set_connected(&self, socket: OwnedFd) {
        self.worker.table.borrow_mut().set_connected(self.key, socket);
    }
}

impl WaitError {
    /// The reason for the access log when a connection ends so while it waits for its client.
    /// `limit` is what its deadline stood for.
    pub fn reason(&self, limit: Limit, when: When) -> Reason {
        match self {
            Self::Drained => Reason::Drained(Some(when)),
            Self::Ended => Reason::Ended,
            Self::Shed => Reason::Shed(Shed::Unfinished(when)),
            Self::Late => Reason::Timeout(limit, Some(when)),
            Self::Unregistered(error) => Reason::Unregistered(error.into()),
            Self::Io(error) => Reason::client_io(error, Some(when)),
        }
    }
}
