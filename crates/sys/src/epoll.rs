//! One epoll instance, edge-triggered. A descriptor is registered once for its whole life.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{Timespec, epoll};

/// An epoll descriptor.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

/// A descriptor's report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The token given at registration.
    pub token: u64,
    /// Bits of [`READABLE`], [`WRITABLE`], [`ENDED`] and [`FAILED`].
    pub ready: u8,
}

/// Bytes, an end of stream or an error can be read.
pub const READABLE: u8 = 1;
/// Bytes can be written, or a connect has ended.
pub const WRITABLE: u8 = 2;
/// The peer has sent its FIN, or a reset: a read will reach the end (EPOLLRDHUP, EPOLLHUP).
pub const ENDED: u8 = 4;
/// The socket has an error pending, or both halves are closed (EPOLLERR, EPOLLHUP).
pub const FAILED: u8 = 8;

/// Space for the events of one wait, reused by the next.
pub struct Events {
    list: Vec<epoll::Event>,
}

impl Events {
    /// Space for `capacity` events.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { list: Vec::with_capacity(capacity) }
    }

    /// The events of the last wait.
    pub fn iter(&self) -> impl Iterator<Item = Event> {
        self.list.iter().map(|event| Event { token: event.data.u64(), ready: bits(event.flags) })
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// True if the last wait filled the space, so that more may be waiting.
    pub fn is_full(&self) -> bool {
        self.list.len() == self.list.capacity()
    }
}

fn bits(flags: epoll::EventFlags) -> u8 {
    let mut ready = 0;
    if flags.intersects(epoll::EventFlags::IN) {
        ready |= READABLE;
    }
    if flags.intersects(epoll::EventFlags::OUT) {
        ready |= WRITABLE;
    }
    if flags.intersects(epoll::EventFlags::RDHUP) {
        ready |= READABLE | ENDED;
    }
    // An error or a hang-up ends a wait for either direction: the next call reports it.
    if flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP) {
        ready |= READABLE | WRITABLE | ENDED | FAILED;
    }
    ready
}

fn stream(room: bool) -> epoll::EventFlags {
    let read = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
    if room { read | epoll::EventFlags::OUT } else { read }
}

impl Epoll {
    /// A new instance.
    pub fn new() -> io::Result<Self> {
        Ok(Self { fd: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Registers a stream socket, edge-triggered, for reading, and with `room` also for writing.
    /// The registration ends when the descriptor is closed.
    pub fn add_stream(&self, fd: impl AsFd, token: u64, room: bool) -> io::Result<()> {
        Ok(epoll::add(&self.fd, fd, epoll::EventData::new_u64(token), stream(room))?)
    }

    /// Registers a listening socket, level-triggered: connections that are not accepted are
    /// reported again.
    pub fn add_listener(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.fd, fd, data, epoll::EventFlags::IN)?)
    }

    /// Removes a descriptor without closing it.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.fd, fd)?)
    }

    /// Changes a registration, also its token. The kernel then reports the present state, so that
    /// no edge is lost.
    pub fn change_stream(&self, fd: impl AsFd, token: u64, room: bool) -> io::Result<()> {
        Ok(epoll::modify(&self.fd, fd, epoll::EventData::new_u64(token), stream(room))?)
    }

    /// Fetches the events that are ready now, without waiting.
    pub fn poll(&self, events: &mut Events) -> io::Result<()> {
        events.list.clear();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.fd, rustix::buffer::spare_capacity(&mut events.list), Some(&now)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
