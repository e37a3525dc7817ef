//! A socket to an upstream as a byte stream for one task at a time. It stays in the worker's epoll
//! for its life.

use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use eyelet_sys::memory::long_rc::LongRc;
use eyelet_sys::socket;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;

use eyelet_engine::ready::{READ, WRITE};
use eyelet_engine::worker::Registration;
use eyelet_engine::worker::Worker;
use eyelet_http1::spare_heads::append;
use eyelet_resolve::connect::Connected;

/// A connected socket. A clone is the same socket: see [`Plain::read_now`] and
/// [`Plain::write_now`].
#[derive(Clone)]
pub struct Plain(LongRc<Registered>);

struct Registered {
    registration: Registration,
    socket: OwnedFd,
    /// True if a write has failed by a reset or the like. The end that is read then is none.
    has_failed: Cell<bool>,
}

impl Registered {
    fn note_write(&self, sent: &io::Result<usize>) {
        if sent.as_ref().is_err_and(socket::has_lost_rest) {
            self.has_failed.set(true);
        }
    }
}

impl Plain {
    /// Takes a connected socket, and registers it if it is not registered yet.
    pub fn new(worker: &Rc<Worker>, connected: Connected<Registration>) -> io::Result<Self> {
        let Connected { socket, registration, .. } = connected;
        let registration = match registration {
            Some(registration) => registration,
            None => Registration::new(worker, &socket)?,
        };
        let has_failed = Cell::new(false);
        Ok(Self(LongRc::new(Registered { registration, socket, has_failed })))
    }

    /// Has the first read ask the kernel, and not wait for an event.
    pub fn expect_read(&self) {
        self.0.registration.socket_state.expect_read();
    }

    /// Returns the socket alone, without its registration. An error if it has clones, or if a write
    /// has failed: the next owner could not know.
    pub fn into_socket(self) -> io::Result<OwnedFd> {
        let Some(Registered { registration, socket, has_failed }) = self.0.into_inner() else {
            return Err(io::ErrorKind::ResourceBusy.into());
        };
        if has_failed.get() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        registration.end(socket)
    }

    /// Reads at most `max` bytes through the worker's buffer and appends them. Returns how many. 0
    /// is the end.
    pub fn poll_recv(
        &self,
        task: &mut Context<'_>,
        into: &mut BytesMut,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_recv_by(task, max, |read| append(into, read))
    }

    /// Forgets the task that waited for it.
    pub fn rest(&self) {
        self.0.registration.socket_state.forget();
    }

    /// Bytes that the other machine has not acknowledged; 0 for a Unix socket, whose process is on
    /// this machine and cannot vanish unnoticed.
    pub fn unsent(&self) -> usize {
        let is_tcp = socket::local_address(&self.0.socket).is_ok();
        if is_tcp { socket::unsent(&self.0.socket).unwrap_or(0) } else { 0 }
    }

    /// True if epoll has reported an event that was not read.
    pub fn has_event(&self) -> bool {
        self.0.registration.socket_state.is_ready(READ)
    }

    /// True if nothing has arrived, neither a byte nor an end. With `look` the kernel is asked even
    /// if epoll has reported nothing.
    pub fn is_silent(&self, look: bool) -> bool {
        let mut byte = [0; 1];
        !look && !self.has_event()
            || socket::peek(&self.0.socket, &mut byte)
                .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Reads at most `max` bytes into the worker's buffer, and lends them. Returns how many. 0 is
    /// the end.
    pub fn poll_recv_by(
        &self,
        task: &mut Context<'_>,
        max: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        self.poll_read_by(task, |socket| {
            let room = &mut self.0.registration.worker.buffers.borrow_mut().input;
            let max = max.min(room.len());
            let read = socket::recv(socket, &mut room[..max])?;
            take(&room[..read]);
            Ok((read, read < max))
        })
    }

    /// Reads at most `max` bytes into the worker's buffer, behind bytes that are `held`, and lends
    /// both, to be changed in place. Returns how many were read. 0 is the end.
    pub fn poll_recv_behind(
        &self,
        task: &mut Context<'_>,
        held: &[u8],
        max: usize,
        mut open: impl FnMut(&mut [u8]),
    ) -> Poll<io::Result<usize>> {
        self.poll_read_by(task, |socket| {
            let room = &mut self.0.registration.worker.buffers.borrow_mut().input;
            let Some(left) = room.len().checked_sub(held.len()) else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            let max = max.min(left);
            let read = socket::recv(socket, &mut room[held.len()..][..max])?;
            room[..held.len()].copy_from_slice(held);
            open(&mut room[..held.len() + read]);
            Ok((read, read < max))
        })
    }

    /// Reads into several buffers. Returns how many bytes. 0 is the end.
    pub fn poll_recv_vectored(
        &self,
        task: &mut Context<'_>,
        slices: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_read_by(task, |socket| {
            let max = slices.iter().map(|slice| slice.len()).sum();
            let read = socket::recv_vectored(socket, slices)?;
            Ok((read, read < max))
        })
    }

    /// Waits until the socket may be readable.
    pub fn poll_readable(&self, task: &mut Context<'_>) -> Poll<()> {
        self.0.registration.socket_state.poll_ready(task, READ)
    }

    /// Reads into several buffers what is there, for a task that does not wait for the socket.
    /// `None`: its stream has ended, or the socket has failed. Nothing is left if
    /// [`Plain::has_event`] is `false` then.
    pub fn read_now(&self, slices: &mut [IoSliceMut<'_>]) -> Option<usize> {
        let state = &self.0.registration.socket_state;
        while state.is_ready(READ) {
            match socket::recv_vectored(&self.0.socket, slices) {
                Ok(0) => return None,
                Ok(read) => {
                    if read < slices.iter().map(|slice| slice.len()).sum() {
                        state.all_read();
                    }
                    return Some(read);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => state.clear(READ),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        Some(0)
    }

    /// Writes what the socket takes at once, for a task that does not wait for it. Returns how many
    /// bytes. The socket's own task finds an error when it writes.
    pub fn write_now(&self, bytes: &[u8]) -> usize {
        let state = &self.0.registration.socket_state;
        while state.is_ready(WRITE) {
            match socket::send(&self.0.socket, bytes) {
                Ok(sent) => return sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => state.clear(WRITE),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                failed => {
                    self.0.note_write(&failed);
                    return 0;
                }
            }
        }
        0
    }

    /// Reads once the socket may be readable. `read` also returns whether it had more room.
    fn poll_read_by(
        &self,
        task: &mut Context<'_>,
        mut read: impl FnMut(&OwnedFd) -> io::Result<(usize, bool)>,
    ) -> Poll<io::Result<usize>> {
        let share = ready!(coop::poll_proceed(task));
        loop {
            ready!(self.0.registration.socket_state.poll_ready(task, READ));
            match read(&self.0.socket) {
                Ok((0, _)) if self.0.has_failed.get() => {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                Ok((read, had_room)) => {
                    if had_room {
                        self.0.registration.socket_state.all_read();
                    }
                    share.made_progress();
                    return Poll::Ready(Ok(read));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.0.registration.socket_state.clear(READ);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsFd for Plain {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
    }
}

impl AsyncRead for Plain {
    fn poll_read(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let max = buffer.remaining();
        self.poll_recv_by(task, max, |read| buffer.put_slice(read)).map_ok(drop)
    }
}

impl AsyncWrite for Plain {
    fn poll_write(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(task, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let share = ready!(coop::poll_proceed(task));
        loop {
            ready!(self.0.registration.socket_state.poll_ready(task, WRITE));
            let sent = match slices {
                // The kernel's check of a vector costs a fiftieth of a small request.
                [only] => socket::send(&self.0.socket, only),
                slices => socket::send_vectored(&self.0.socket, slices),
            };
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.0.registration.socket_state.clear(WRITE);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => {
                    self.0.note_write(&sent);
                    share.made_progress();
                    return Poll::Ready(sent);
                }
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match socket::shutdown_write(&self.0.socket) {
            // The peer closed first.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            done => Poll::Ready(done),
        }
    }
}

/// Sockets of an event loop that does not run.
#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::task::Waker;

    use super::*;
    use crate::testing::{connected, look, worker};

    /// A kept connection whose upstream has sent bytes or closed must not get a request, even
    /// before the event loop has seen the event.
    #[test]
    fn what_came_before_its_event_is_seen_by_a_look() {
        let says = |upstream: &mut UnixStream| upstream.write_all(b"a byte").unwrap();
        let ends = |upstream: &mut UnixStream| {
            upstream.shutdown(Shutdown::Write).unwrap();
        };
        for (name, acts) in [("a byte", says as fn(&mut UnixStream)), ("an end", ends)] {
            let worker = worker();
            let (mut upstream, socket) = connected(&worker);
            assert!(socket.is_silent(false) && socket.is_silent(true), "{name}: nothing came");
            acts(&mut upstream);
            assert!(socket.is_silent(false), "{name}: epoll has told nothing");
            assert!(!socket.is_silent(true), "{name}: the kernel was asked");
            look(&worker);
            assert!(!socket.is_silent(false), "{name}: its event was noted");
            assert!(!socket.is_silent(true), "{name}: both");
        }
    }

    /// A failed write takes the reset, and the kernel's next read returns the end. Behind a FIN all
    /// has come.
    #[test]
    fn an_end_behind_a_failed_write_is_one_only_after_a_fin() {
        type Writes = fn(&mut Plain, &mut Context<'_>);
        let by_task: Writes = |socket, task| {
            let sent = Pin::new(socket).poll_write(task, b"more");
            assert!(matches!(sent, Poll::Ready(Err(_))), "{sent:?}");
        };
        let at_once: Writes = |socket, _| assert_eq!(socket.write_now(b"more"), 0);
        for (writes, has_ended) in
            [(by_task, false), (at_once, false), (by_task, true), (at_once, true)]
        {
            let worker = worker();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let edge = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            edge.set_nonblocking(true).unwrap();
            let (mut upstream, _) = listener.accept().unwrap();
            let mut socket = Plain::new(&worker, Connected::new(None, edge.into())).unwrap();
            upstream.write_all(b"half").unwrap();
            if has_ended {
                upstream.shutdown(Shutdown::Write).unwrap();
            }
            socket::reset_on_close(&upstream).unwrap();
            drop(upstream);
            while socket::is_connected(&socket) {
                std::thread::yield_now();
            }
            let mut task = Context::from_waker(Waker::noop());
            writes(&mut socket, &mut task);
            socket.expect_read();
            let mut read = BytesMut::new();
            assert!(matches!(socket.poll_recv(&mut task, &mut read, 4), Poll::Ready(Ok(4))));
            let end = socket.poll_recv(&mut task, &mut read, 4).map_err(|error| error.kind());
            let expected = if has_ended { Ok(0) } else { Err(io::ErrorKind::ConnectionReset) };
            assert_eq!(end, Poll::Ready(expected));
            assert_eq!(socket.into_socket().is_ok(), has_ended, "it may not rest");
        }
    }

    /// An event says that bytes may be there. Once they are read, the socket is silent again.
    #[test]
    fn what_was_read_is_no_noise() {
        let worker = worker();
        let (mut upstream, socket) = connected(&worker);
        upstream.write_all(b"a byte").unwrap();
        look(&worker);
        let mut task = Context::from_waker(Waker::noop());
        let mut read = BytesMut::new();
        assert!(matches!(socket.poll_recv(&mut task, &mut read, 6), Poll::Ready(Ok(6))));
        assert!(socket.has_event(), "a read of all that was asked for may have left some");
        assert!(socket.is_silent(false) && socket.is_silent(true));
    }
}
