//! A connection to an upstream as a byte stream, plain or with TLS.

pub mod tls;

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use bytes::BytesMut;
use eyelet_engine::worker::Worker;
use eyelet_sys::socket;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::plain::Plain;
use eyelet_http1::spare_heads::append;
use eyelet_memory::budget::{Counted, UPSTREAM_BYTES, UPSTREAM_TLS_BYTES};
use eyelet_resolve::connect::Connected;
use eyelet_telemetry::upstream::OpenExchange;
use eyelet_telemetry::upstream_tls::UpstreamTlsInfo;
use tls::{RestingTls, TlsFailure, TlsSocket};

/// The socket of a connection.
pub enum Socket {
    /// TCP, or a Unix socket.
    Plain(Plain),
    /// TLS, verified.
    Tls(Box<TlsSocket>),
}

impl Socket {
    /// Bytes that the other machine has not acknowledged.
    pub fn unsent(&self) -> usize {
        match self {
            Self::Plain(plain) => plain.unsent(),
            Self::Tls(tls) => tls.plain().unsent(),
        }
    }
}

/// Counts a descriptor as long as it lives, and the connection where it counts: at the address of
/// its upstream, and for an exchange that rested also at the upstream.
pub struct Descriptor(pub Rc<Worker>, Vec<OpenExchange>);

impl Descriptor {
    /// Counts one, for a connection that counts `open`.
    pub fn new(worker: &Rc<Worker>, open: impl IntoIterator<Item = OpenExchange>) -> Self {
        worker.process.descriptors.fetch_add(1, Relaxed);
        Self(worker.clone(), open.into_iter().collect())
    }
}

impl Descriptor {
    /// Takes out of it where the connection counts: that goes on without the descriptor.
    pub fn take_open(&mut self) -> Vec<OpenExchange> {
        std::mem::take(&mut self.1)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.0.process.descriptors.fetch_sub(1, Relaxed);
    }
}

/// The socket of a connection that a task drives, and what counts it. The task has it; who takes it
/// out has the connection leave the task.
pub struct DrivenSocket {
    /// The socket.
    pub socket: Socket,
    /// False once a write has failed.
    pub is_writable: bool,
    /// The counts of its descriptor and its memory.
    pub held: (Descriptor, Counted),
}

impl Socket {
    /// Bytes of memory that it holds.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Plain(_) => UPSTREAM_BYTES,
            Self::Tls(_) => UPSTREAM_TLS_BYTES,
        }
    }

    /// The terms that it has agreed on, if it is by TLS.
    pub fn tls_info(&self) -> Option<Arc<UpstreamTlsInfo>> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(tls) => tls.info().cloned(),
        }
    }

    /// True if it may leave its worker: both directions are open, and all that has come is taken
    /// and sent.
    pub fn may_leave(&self) -> bool {
        match self {
            Self::Plain(_) => true,
            Self::Tls(tls) => tls.may_rest(false),
        }
    }

    /// Takes it apart, if it may leave. The socket is registered nowhere then.
    ///
    /// # Errors
    /// The kernel's.
    pub fn into_resting(self) -> io::Result<(OwnedFd, Option<RestingTls>)> {
        match self {
            Self::Plain(plain) => Ok((plain.into_socket()?, None)),
            Self::Tls(tls) => tls.into_resting().map(|(socket, tls)| (socket, Some(tls))),
        }
    }

    /// The socket that has left a worker, in another one. What waits in it is read at once.
    ///
    /// # Errors
    /// The kernel's.
    pub fn resumed(
        worker: &Rc<Worker>,
        socket: OwnedFd,
        tls: Option<RestingTls>,
    ) -> io::Result<Self> {
        let connected = Connected::new(None, socket);
        let plain = Plain::new(worker, connected)?;
        plain.expect_read();
        Ok(match tls {
            None => Self::Plain(plain),
            Some(tls) => Self::Tls(Box::new(TlsSocket::resumed(plain, tls))),
        })
    }

    /// Drops the waker of the task that used it.
    pub fn rest(&mut self) {
        match self {
            Self::Plain(socket) => socket.rest(),
            Self::Tls(socket) => socket.rest(),
        }
    }

    /// True if the kernel would send a write at once, as far as it shows.
    pub fn takes(&self) -> bool {
        let (plain, is_sent) = match self {
            Self::Plain(socket) => (socket, true),
            Self::Tls(socket) => (socket.plain(), socket.is_sent()),
        };
        is_sent && socket::unsent(plain).is_ok_and(|unsent| unsent == 0)
    }

    /// True if nothing has arrived: neither a byte nor an end. With `look` the kernel is asked,
    /// even if epoll has reported nothing.
    pub fn is_silent(&mut self, look: bool) -> bool {
        match self {
            Self::Plain(socket) => socket.is_silent(look),
            // A TLS record may arrive at any time: a ticket or the end.
            Self::Tls(socket) => {
                let plain = socket.plain();
                if look && !plain.has_event() && !plain.is_silent(true) {
                    // It is not read before its event. Mostly it is the end.
                    return false;
                }
                let mut task = Context::from_waker(std::task::Waker::noop());
                socket.poll_recv_by(&mut task, 1, |_| ()).is_pending()
            }
        }
    }

    /// Reads at most `max` bytes and appends them. Returns how many; 0 is the end.
    pub fn poll_recv(
        &mut self,
        task: &mut Context<'_>,
        into: &mut BytesMut,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_recv_by(task, max, |read| append(into, read))
    }

    /// Reads at most `max` bytes and lends them. Returns how many; 0 is the end.
    pub fn poll_recv_by(
        &mut self,
        task: &mut Context<'_>,
        max: usize,
        take: impl FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_recv_by(task, max, take),
            Self::Tls(socket) => socket.poll_recv_by(task, max, take),
        }
    }
}

/// The alert that an upstream has sent. It comes within an error of the socket.
pub fn alert(error: &io::Error) -> Option<u8> {
    match error.get_ref()?.downcast_ref()? {
        TlsFailure::Alert(alert) => Some(*alert),
        TlsFailure::Fault(_) => None,
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(task, buffer),
            Self::Tls(socket) => {
                let max = buffer.remaining();
                socket.poll_recv_by(task, max, |read| buffer.put_slice(read)).map_ok(drop)
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(task, bytes),
            Self::Tls(socket) => socket.poll_write_vectored(task, &[IoSlice::new(bytes)]),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(task, slices),
            Self::Tls(socket) => socket.poll_write_vectored(task, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(socket) => socket.poll_flush(task),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(task),
            Self::Tls(socket) => socket.poll_shutdown(task),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::pin::pin;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::task::Waker;

    use eyelet_engine::worker::Worker;
    use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection};
    use rustls_pki_types::ServerName;

    use super::*;
    use crate::testing::{connected, look, worker};
    use eyelet_tls::client::give_secrets;
    use tls::shake;

    /// Lets the server's session send and read all that it can now.
    fn serve(server: &mut ServerConnection, stream: &mut UnixStream) {
        while server.wants_write() {
            server.write_tls(stream).unwrap();
        }
        while server.read_tls(stream).is_ok() {
            server.process_new_packets().unwrap();
        }
        while server.wants_write() {
            server.write_tls(stream).unwrap();
        }
    }

    /// A connection after its handshake, whose tickets were read.
    fn shaken(worker: &Rc<Worker>) -> (ServerConnection, UnixStream, Socket) {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let issued = rcgen::generate_simple_self_signed(["app.test".to_owned()]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(issued.cert.der().clone()).unwrap();
        let key = rustls_pki_types::PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der());
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![issued.cert.der().clone()], key.into())
            .unwrap();
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        give_secrets(&mut client);
        let mut server = ServerConnection::new(Arc::new(config)).unwrap();
        let (mut stream, plain) = connected(worker);
        let name = ServerName::try_from("app.test").unwrap();
        let mut connect = pin!(shake(Arc::new(client), name, plain));
        let mut task = Context::from_waker(Waker::noop());
        // A handshake takes three flights, and tickets one more.
        let tls = (0..8).find_map(|_| {
            look(worker);
            let polled = connect.as_mut().poll(&mut task);
            serve(&mut server, &mut stream);
            match polled {
                Poll::Ready(tls) => Some(tls.unwrap()),
                Poll::Pending => None,
            }
        });
        let mut socket = Socket::Tls(Box::new(tls.unwrap()));
        look(worker);
        assert!(socket.is_silent(false), "a ticket is no response");
        (server, stream, socket)
    }

    /// Unread records may contain the end, so they do not count as silence.
    #[test]
    fn an_end_by_tls_is_seen_before_its_event() {
        let worker = worker();
        let (mut server, mut stream, mut socket) = shaken(&worker);
        assert!(socket.is_silent(true), "nothing came");
        server.send_close_notify();
        serve(&mut server, &mut stream);
        assert!(socket.is_silent(false), "epoll has told nothing");
        assert!(!socket.is_silent(true), "the kernel was asked");
        look(&worker);
        assert!(!socket.is_silent(false), "its event was noted");

        let (mut server, mut stream, mut socket) = shaken(&worker);
        server.writer().write_all(b"an answer to nothing").unwrap();
        serve(&mut server, &mut stream);
        assert!(!socket.is_silent(true), "the kernel was asked");
        look(&worker);
        assert!(!socket.is_silent(true), "its event was noted");
    }
    /// A connection that rested goes on both ways, by another generation of keys too. More than is
    /// wanted at once stays, and then it may not rest.
    #[test]
    fn tls_rests_and_goes_on() {
        let worker = worker();
        let (mut server, mut stream, socket) = shaken(&worker);
        let Socket::Tls(mut tls) = socket else { unreachable!() };
        let mut task = Context::from_waker(Waker::noop());
        for round in 0..3 {
            assert!(tls.may_rest(false));
            let (socket, resting) = tls.into_resting().unwrap();
            let connected = Connected::new(None, socket);
            let plain = Plain::new(&worker, connected).unwrap();
            plain.expect_read();
            *tls = TlsSocket::resumed(plain, resting);
            if round > 0 {
                server.refresh_traffic_keys().unwrap();
            }
            server.writer().write_all(b"hello").unwrap();
            serve(&mut server, &mut stream);
            for part in [&b"hel"[..], b"lo"] {
                let mut read = Vec::new();
                let polled = tls.poll_recv_by(&mut task, 3, |bytes| read.extend_from_slice(bytes));
                assert!(matches!(polled, Poll::Ready(Ok(len)) if len == part.len()), "{polled:?}");
                assert_eq!((&read[..], tls.may_rest(false)), (part, part == b"lo"));
            }
            let sent =
                tls.poll_write_vectored(&mut task, &[b"h", b"i"].map(|text| IoSlice::new(text)));
            assert!(matches!(sent, Poll::Ready(Ok(2))), "{sent:?}");
            serve(&mut server, &mut stream);
            let mut said = [0; 2];
            server.reader().read_exact(&mut said).unwrap();
            assert_eq!(&said, b"hi");
        }
    }

    /// Data before a record that nobody has sealed is taken first.
    #[test]
    fn a_bad_record_ends_a_connection_by_an_alert() {
        let worker = worker();
        let (mut server, mut stream, mut socket) = shaken(&worker);
        server.writer().write_all(b"hello").unwrap();
        serve(&mut server, &mut stream);
        stream.write_all(b"\x17\x03\x03\x00\x20").unwrap();
        stream.write_all(&[7; 32]).unwrap();
        look(&worker);
        let (mut task, mut read) = (Context::from_waker(Waker::noop()), BytesMut::new());
        let polled = socket.poll_recv(&mut task, &mut read, 100);
        assert!(matches!(polled, Poll::Ready(Ok(5))), "{polled:?}");
        for _ in 0..2 {
            let Poll::Ready(Err(error)) = socket.poll_recv(&mut task, &mut read, 100) else {
                unreachable!()
            };
            assert_eq!(alert(&error), None);
            assert!(error.to_string().contains("authentication"), "{error}");
        }
        while server.read_tls(&mut stream).is_ok_and(|read| read > 0) {}
        let heard = server.process_new_packets().unwrap_err();
        assert_eq!(heard, rustls::Error::AlertReceived(rustls::AlertDescription::BadRecordMac));
    }
}
