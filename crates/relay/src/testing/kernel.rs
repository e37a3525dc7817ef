//! The simulator's version of the calls on the edge's sockets: the kernel's own on Unix socket
//! pairs, with short writes, and with TCP's resets, which Unix sockets lack. Any other socket than
//! those of [`pair`] has the kernel's own calls: all crates of a test program have this version.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

/// One socket of the edge, as its peer controls and sees it.
#[derive(Debug, Default)]
pub struct Link {
    /// The peer has reset the connection. The edge reads the earlier bytes first.
    is_reset: Cell<bool>,
    /// The edge has asked for a reset instead of a FIN at its close.
    is_cut: Cell<bool>,
    /// Bytes that the socket accepts until its peer reads. `None`: as many as the kernel accepts.
    room: Cell<Option<usize>>,
}

impl Link {
    /// The peer resets. It closes its socket after this call.
    pub fn reset(&self) {
        self.is_reset.set(true);
    }

    /// True if the end that the peer reads is a reset.
    pub fn is_cut(&self) -> bool {
        self.is_cut.get()
    }

    /// Sets how many bytes the socket accepts from now on. Only a peer that is about to read may
    /// call this: epoll reports new room when the peer has read (epoll(7)).
    pub fn set_room(&self, room: Option<usize>) {
        self.room.set(room);
    }

    fn take_room(&self, wanted: usize) -> std::io::Result<usize> {
        match self.room.get() {
            Some(0) => Err(std::io::ErrorKind::WouldBlock.into()),
            Some(room) => Ok(room.min(wanted)),
            None => Ok(wanted),
        }
    }

    /// Notes what was sent. After a reset the first call fails by it, be it a write or a read.
    fn sent(&self, sent: std::io::Result<usize>) -> std::io::Result<usize> {
        match sent {
            Ok(sent) => self.room.update(|room| room.map(|room| room.saturating_sub(sent))),
            Err(_) if self.is_reset.take() => {
                return Err(std::io::ErrorKind::ConnectionReset.into());
            }
            Err(_) => {}
        }
        sent
    }
}

thread_local! {
    /// Links by descriptor. A reused number gets a new link.
    static LINKS: RefCell<HashMap<RawFd, Rc<Link>>> = RefCell::default();
}

fn link(fd: impl AsFd) -> Option<Rc<Link>> {
    LINKS.with_borrow(|links| links.get(&fd.as_fd().as_raw_fd()).cloned())
}

/// A socket for the edge, its link, and the peer's end.
pub fn pair() -> (OwnedFd, Rc<Link>, OwnedFd) {
    let (edge, peer) = eyelet_sys::socket::pair().expect("descriptors for a socket pair");
    let link = Rc::<Link>::default();
    LINKS.with_borrow_mut(|links| links.insert(edge.as_raw_fd(), link.clone()));
    (edge, link, peer)
}

/// A second descriptor of a socket, as another process would receive it.
pub fn copy(socket: impl AsFd) -> OwnedFd {
    let copy = socket.as_fd().try_clone_to_owned().expect("a descriptor");
    let link = link(socket);
    LINKS.with_borrow_mut(|links| match link {
        Some(link) => _ = links.insert(copy.as_raw_fd(), link),
        None => _ = links.remove(&copy.as_raw_fd()),
    });
    copy
}

/// Replaces `eyelet_sys::socket`.
pub mod socket {
    use std::io::{self, IoSliceMut};
    use std::os::fd::AsFd;

    pub use eyelet_sys::socket::{has_lost_rest, is_connected, is_readable, keepalive};
    pub use eyelet_sys::socket::{local_address, no_delay, peek, peer_cgroup};
    pub use eyelet_sys::socket::{shutdown_write, unsent};

    use super::link;

    pub fn recv(fd: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
        or_reset(&fd, eyelet_sys::socket::recv(&fd, buffer))
    }

    pub fn recv_vectored(fd: impl AsFd, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        or_reset(&fd, eyelet_sys::socket::recv_vectored(&fd, buffers))
    }

    pub fn send(fd: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
        let Some(link) = link(&fd) else { return eyelet_sys::socket::send(fd, bytes) };
        let room = link.take_room(bytes.len())?;
        link.sent(eyelet_sys::socket::send(fd, &bytes[..room]))
    }

    pub fn reset_on_close(fd: impl AsFd) -> io::Result<()> {
        if let Some(link) = link(&fd) {
            link.is_cut.set(true);
        }
        eyelet_sys::socket::reset_on_close(fd)
    }

    /// After the last bytes of a peer that has reset, a read fails once and then returns the end.
    pub(super) fn or_reset(fd: impl AsFd, read: io::Result<usize>) -> io::Result<usize> {
        match link(fd) {
            Some(link) if matches!(read, Ok(0)) && link.is_reset.take() => {
                Err(io::ErrorKind::ConnectionReset.into())
            }
            _ => read,
        }
    }
}

/// Replaces `eyelet_sys::pipe`.
pub mod pipe {
    use std::io;
    use std::os::fd::AsFd;

    use super::{link, socket};

    #[derive(Debug)]
    pub struct Pipe(eyelet_sys::pipe::Pipe);

    impl Pipe {
        pub fn new(capacity: usize) -> io::Result<Self> {
            eyelet_sys::pipe::Pipe::new(capacity).map(Self)
        }

        pub fn fill(&self, from: impl AsFd, len: usize) -> io::Result<usize> {
            socket::or_reset(&from, self.0.fill(&from, len))
        }

        pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
            self.0.read(into)
        }

        pub fn empty(&self, to: impl AsFd, len: usize) -> io::Result<usize> {
            let Some(link) = link(&to) else { return self.0.empty(to, len) };
            let room = link.take_room(len)?;
            link.sent(self.0.empty(to, room))
        }
    }
}
