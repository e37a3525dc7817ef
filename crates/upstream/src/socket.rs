//! A connection to an upstream as a byte stream, plain or with TLS.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use eyelet_engine::worker::Worker;
use eyelet_sys::socket;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

use super::plain::Plain;
use super::tls_info::tls_info;
use eyelet_memory::budget::{UPSTREAM_BYTES, UPSTREAM_TLS_BYTES};
use eyelet_telemetry::upstream::OpenExchange;
use eyelet_telemetry::upstream_tls::UpstreamTlsInfo;

/// Most bytes read at once from a TLS connection.
const OPENED_BYTES_MAX: usize = 16 << 10;

/// The socket of a connection.
pub enum Socket {
    /// TCP, or a Unix socket.
    Plain(Plain),
    /// TLS, verified.
    Tls(Box<TlsStream<Plain>>),
}

impl Socket {
    /// Bytes that the other machine has not acknowledged.
    pub fn unsent(&self) -> usize {
        match self {
            Self::Plain(plain) => plain.unsent(),
            Self::Tls(tls) => tls.get_ref().0.unsent(),
        }
    }
}

/// Counts a descriptor as long as it lives, and the connection at the address of its upstream.
pub struct Descriptor(pub Rc<Worker>, Option<OpenExchange>);

impl Descriptor {
    /// Counts one, for a connection to one of several addresses also there.
    pub fn new(worker: &Rc<Worker>, address: Option<OpenExchange>) -> Self {
        worker.process.descriptors.fetch_add(1, Relaxed);
        Self(worker.clone(), address)
    }
}

impl Descriptor {
    /// Takes the count at the address out of it: it goes on without the descriptor.
    pub fn take_address(&mut self) -> Option<OpenExchange> {
        self.1.take()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.0.process.descriptors.fetch_sub(1, Relaxed);
        self.1.take();
    }
}

impl Socket {
    /// Bytes of memory that it holds.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Plain(_) => UPSTREAM_BYTES,
            Self::Tls(_) => UPSTREAM_TLS_BYTES,
        }
    }

    /// What it has agreed on, if it is by TLS.
    pub fn tls_info(&self) -> Option<Arc<UpstreamTlsInfo>> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(tls) => tls_info(tls.get_ref().1).map(Arc::new),
        }
    }

    /// Drops the waker of the task that used it.
    pub fn rest(&self) {
        match self {
            Self::Plain(socket) => socket.rest(),
            Self::Tls(socket) => socket.get_ref().0.rest(),
        }
    }

    /// Whether a write would be sent at once, as far as can be seen.
    pub fn takes(&self) -> bool {
        let unsent = match self {
            Self::Plain(socket) => socket::unsent(socket),
            Self::Tls(socket) => socket::unsent(socket.get_ref().0),
        };
        unsent.is_ok_and(|unsent| unsent == 0)
    }

    /// Whether nothing has arrived: neither a byte nor an end. With `look` the kernel is asked,
    /// even if epoll has reported nothing.
    pub fn is_silent(&mut self, look: bool) -> bool {
        match self {
            Self::Plain(socket) => socket.is_silent(look),
            // A TLS record may arrive at any time: a ticket or the end.
            Self::Tls(socket) => {
                let plain = socket.get_ref().0;
                if look && !plain.has_event() && !plain.is_silent(true) {
                    // It is not read before its event. Mostly it is the end.
                    return false;
                }
                let mut byte = [0; 1];
                let mut task = Context::from_waker(std::task::Waker::noop());
                let mut piece = ReadBuf::new(&mut byte);
                Pin::new(socket).poll_read(&mut task, &mut piece).is_pending()
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
        self.poll_recv_by(task, max, |read| into.extend_from_slice(read))
    }

    /// Reads at most `max` bytes and lends them. Returns how many; 0 is the end.
    pub fn poll_recv_by(
        &mut self,
        task: &mut Context<'_>,
        max: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_recv_by(task, max, take),
            Self::Tls(socket) => {
                let mut room = [MaybeUninit::uninit(); OPENED_BYTES_MAX];
                let mut read = ReadBuf::uninit(&mut room[..max.min(OPENED_BYTES_MAX)]);
                ready!(Pin::new(socket).poll_read(task, &mut read))?;
                take(read.filled());
                Poll::Ready(Ok(read.filled().len()))
            }
        }
    }
}

/// The alert that an upstream has sent. An error of rustls comes within that of the socket.
pub fn alert(error: &io::Error) -> Option<u8> {
    match error.get_ref()?.downcast_ref()? {
        rustls::Error::AlertReceived(alert) => Some((*alert).into()),
        _ => None,
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
            Self::Tls(socket) => Pin::new(socket).poll_read(task, buffer),
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
            Self::Tls(socket) => Pin::new(socket).poll_write(task, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(task, slices),
            Self::Tls(socket) => Pin::new(socket).poll_write_vectored(task, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(socket) => Pin::new(socket).poll_flush(task),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(task),
            Self::Tls(socket) => Pin::new(socket).poll_shutdown(task),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::future::Future;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::pin::pin;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::task::Waker;

    use eyelet_engine::worker::Worker;
    use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection};
    use rustls_pki_types::ServerName;
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::testing::{connected, look, worker};

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
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut server = ServerConnection::new(Arc::new(config)).unwrap();
        let (mut stream, plain) = connected(worker);
        let name = ServerName::try_from("app.test").unwrap();
        let mut connect = pin!(TlsConnector::from(Arc::new(client)).connect(name, plain));
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
}
