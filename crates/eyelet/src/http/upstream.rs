//! A connection to an upstream that speaks HTTP/1.1: dialled, written, read.
//! It must not know whose request it carries.

use std::future::Future;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use eyelet_sys::socket;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::io::Queue;
use crate::budget::{Counted, UPSTREAM_BYTES, UPSTREAM_TLS_BYTES};
use crate::config::{Host, HttpAddress, HttpUpstream};
use crate::worker::{Edge, Worker};

/// Bytes read at once.
const READ_BYTES: usize = 16 << 10;
/// The same while memory is short, unless the client takes more at once: a head, mostly.
const TIGHT_BYTES: usize = 4 << 10;
/// What a TLS connection holds of what it sends.
const SEALED_BYTES_MAX: usize = 16 << 10;
/// Pieces given to one vectored write.
const SLICES: usize = 16;
/// How often an upstream that is not there is dialled again while it is waited for.
const WAIT_STEP: Duration = Duration::from_millis(100);
/// Connection Attempt Delay (RFC 8305 section 8), and addresses of one name that are tried.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
const ATTEMPTS_MAX: usize = 7;

/// A connection.
pub struct Upstream {
    /// Received and not taken yet.
    pub received: BytesMut,
    /// Whether it has carried a request before.
    pub reused: bool,
    /// Who was dialled.
    pub name: Arc<str>,
    socket: Socket,
    counted: Counted,
    // Counted as long as it lives.
    descriptor: Descriptor,
}

enum Socket {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl Socket {
    fn bytes(&self) -> usize {
        match self {
            Self::Tcp(_) | Self::Unix(_) => UPSTREAM_BYTES,
            Self::Tls(_) => UPSTREAM_TLS_BYTES,
        }
    }
}

struct Descriptor(Arc<Edge>);

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.0.descriptors.fetch_sub(1, Relaxed);
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub struct DialFailure {
    /// Whom we dialled.
    pub name: Arc<str>,
    /// Why not.
    pub reason: String,
    /// It did not answer in time.
    pub late: bool,
}

/// Dials, and goes on dialling as long as the rule waits for its upstream.
pub async fn dial(worker: &Worker, to: &HttpUpstream) -> Result<Upstream, DialFailure> {
    let patience = Instant::now() + to.wait;
    loop {
        let failure = match dial_once(worker, to).await {
            Ok(upstream) => return Ok(upstream),
            Err(failure) => failure,
        };
        if Instant::now() >= patience || worker.is_draining() {
            return Err(failure);
        }
        sleep(WAIT_STEP).await;
    }
}

async fn dial_once(worker: &Worker, to: &HttpUpstream) -> Result<Upstream, DialFailure> {
    let wait = worker.edge.config.limits.connect_timeout;
    let mut name: Arc<str> = to.address.to_string().into();
    let dialled = match timeout(wait, connect(worker, to, &mut name)).await {
        Ok(dialled) => dialled.map_err(|reason| (reason, false)),
        Err(_) => Err(("connect_timeout".into(), true)),
    };
    match dialled {
        Ok(socket) => {
            worker.edge.descriptors.fetch_add(1, Relaxed);
            let descriptor = Descriptor(worker.edge.clone());
            let counted = Counted::new(&worker.edge.budget, socket.bytes());
            let received = BytesMut::new();
            Ok(Upstream { received, reused: false, name, socket, counted, descriptor })
        }
        Err((reason, late)) => Err(DialFailure { name, reason, late }),
    }
}

async fn connect(
    worker: &Worker,
    to: &HttpUpstream,
    name: &mut Arc<str>,
) -> Result<Socket, String> {
    let text = |error: io::Error| error.to_string();
    let host_port = match &to.address {
        HttpAddress::Unix(path) => {
            return UnixStream::connect(path).await.map(Socket::Unix).map_err(text);
        }
        HttpAddress::Tcp(host_port) => host_port,
    };
    let found: Vec<IpAddr> = match &host_port.host {
        Host::Ip(ip) => vec![*ip],
        Host::Name(name) => {
            let found = worker.resolver.addresses(name, false).await;
            found.map_err(|error| format!("DNS: {error}"))?
        }
    };
    let addresses = found.into_iter().map(|ip| SocketAddr::new(ip, host_port.port));
    let (address, tcp) = connect_any(addresses.take(ATTEMPTS_MAX).collect()).await.map_err(text)?;
    *name = address.to_string().into();
    // A relay's writes are the client's: without this a small one would wait for an answer.
    tcp.set_nodelay(true).map_err(text)?;
    let Some(tls) = &to.tls else { return Ok(Socket::Tcp(tcp)) };
    let config = worker.edge.upstream_tls.of(tls).ok_or("no TLS configuration")?;
    let server = ServerName::try_from(tls.name.clone()).map_err(|error| error.to_string())?;
    let bounded = |tls: &mut rustls::ClientConnection| tls.set_buffer_limit(Some(SEALED_BYTES_MAX));
    let connected = TlsConnector::from(config).connect_with(server, tcp, bounded).await;
    connected.map(|tls| Socket::Tls(Box::new(tls))).map_err(|error| format!("TLS: {error}"))
}

/// Tries the addresses in turn, a new one each time the last has failed or [`ATTEMPT_DELAY`] has
/// passed; the first that connects wins (RFC 8305).
async fn connect_any(addresses: Vec<SocketAddr>) -> io::Result<(SocketAddr, TcpStream)> {
    let mut waiting = addresses.into_iter();
    let mut attempts = Vec::new();
    let mut last = io::Error::other("the name has no address");
    loop {
        match waiting.next() {
            Some(address) => attempts.push(Box::pin(attempt(address))),
            None if attempts.is_empty() => return Err(last),
            None => {}
        }
        let mut delay = pin!(sleep(ATTEMPT_DELAY));
        let settled = std::future::poll_fn(|task| {
            for (at, attempt) in attempts.iter_mut().enumerate() {
                if let Poll::Ready(done) = attempt.as_mut().poll(task) {
                    return Poll::Ready(Some((at, done)));
                }
            }
            match waiting.len() {
                0 => Poll::Pending,
                _ => delay.as_mut().poll(task).map(|()| None),
            }
        });
        match settled.await {
            None => {}
            Some((_, Ok(connected))) => return Ok(connected),
            Some((at, Err(error))) => {
                drop(attempts.remove(at));
                last = error;
            }
        }
    }
}

async fn attempt(address: SocketAddr) -> io::Result<(SocketAddr, TcpStream)> {
    TcpStream::connect(address).await.map(|connected| (address, connected))
}

impl Upstream {
    /// Reads into `received`; how many bytes came. 0 is the end.
    ///
    /// Through the stack, so that a connection holds what it received and no more.
    pub fn poll_fill(&mut self, task: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let max = match self.descriptor.0.budget.piece() {
            Some(_) => READ_BYTES,
            None => TIGHT_BYTES,
        };
        self.poll_fill_by(task, max)
    }

    /// The same for at most `max` bytes.
    pub fn poll_fill_by(&mut self, task: &mut Context<'_>, max: usize) -> Poll<io::Result<usize>> {
        let mut room = [MaybeUninit::uninit(); READ_BYTES];
        let mut read = ReadBuf::uninit(&mut room[..max.clamp(1, READ_BYTES)]);
        ready!(match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_read(task, &mut read),
            Socket::Tls(socket) => Pin::new(socket).poll_read(task, &mut read),
            Socket::Unix(socket) => Pin::new(socket).poll_read(task, &mut read),
        })?;
        self.received.extend_from_slice(read.filled());
        let read = read.filled().len();
        self.recount();
        Poll::Ready(Ok(read))
    }

    /// Counts what it holds, also after it was taken.
    pub fn recount(&mut self) {
        let beyond = self.received.len().saturating_sub(TIGHT_BYTES);
        self.counted.set(self.socket.bytes() + beyond);
    }

    /// Whether what is written now goes out at once, as far as can be seen.
    pub fn takes(&self) -> bool {
        let unsent = match &self.socket {
            Socket::Tcp(socket) => socket::unsent(socket),
            Socket::Tls(socket) => socket::unsent(socket.get_ref().0),
            Socket::Unix(socket) => socket::unsent(socket),
        };
        unsent.is_ok_and(|unsent| unsent == 0)
    }

    /// Gives its buffer back, for it may be kept for a while.
    pub fn rest(&mut self) {
        self.received = BytesMut::new();
        self.counted.set(self.socket.bytes());
    }

    /// Writes all of a queue.
    pub fn poll_send(&mut self, task: &mut Context<'_>, queue: &mut Queue) -> Poll<io::Result<()>> {
        while !queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = queue.slices(&mut slices);
            let slices = &slices[..count];
            let written = match &mut self.socket {
                Socket::Tcp(socket) => Pin::new(socket).poll_write_vectored(task, slices),
                Socket::Tls(socket) => Pin::new(socket).poll_write_vectored(task, slices),
                Socket::Unix(socket) => Pin::new(socket).poll_write_vectored(task, slices),
            };
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => queue.advance(written),
            }
        }
        match &mut self.socket {
            Socket::Tls(socket) => Pin::new(socket).poll_flush(task),
            Socket::Tcp(_) | Socket::Unix(_) => Poll::Ready(Ok(())),
        }
    }

    /// Whether an idle connection is still as it was left: open, and silent.
    pub fn is_fresh(&mut self) -> bool {
        let mut byte = [0; 1];
        let read = match &mut self.socket {
            Socket::Tcp(socket) => socket.try_read(&mut byte),
            Socket::Unix(socket) => socket.try_read(&mut byte),
            // A TLS record may come at any time, a ticket or the end.
            Socket::Tls(socket) => {
                let mut task = Context::from_waker(std::task::Waker::noop());
                let mut piece = BytesMut::with_capacity(1);
                return pin!(socket.read_buf(&mut piece)).poll(&mut task).is_pending();
            }
        };
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// The socket alone, for a pair in the lot. `None`: it speaks TLS.
    pub fn into_socket(self) -> Option<io::Result<OwnedFd>> {
        match self.socket {
            Socket::Tcp(socket) => Some(socket.into_std().map(OwnedFd::from)),
            Socket::Unix(socket) => Some(socket.into_std().map(OwnedFd::from)),
            Socket::Tls(_) => None,
        }
    }

    /// Whether [`Upstream::into_socket`] gives one.
    pub fn is_plain(&self) -> bool {
        !matches!(self.socket, Socket::Tls(_))
    }

    /// Tells the upstream that nothing more will come.
    pub fn poll_shutdown(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_shutdown(task),
            Socket::Tls(socket) => Pin::new(socket).poll_shutdown(task),
            Socket::Unix(socket) => Pin::new(socket).poll_shutdown(task),
        }
    }
}
