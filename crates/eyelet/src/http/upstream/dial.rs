//! Dials an upstream: names, addresses, TLS, and which version of HTTP is spoken then.
//! It must not know whose request it is for.

use std::future::Future;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use eyelet_sys::socket;
use http::StatusCode;
use http::uri::Scheme;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::plain::Plain;
use super::{one, two};
use crate::http::roots::Spoken;
use crate::resolver;
use crate::worker::{Edge, Worker};
use eyelet_config::{Host, HttpAddress, HttpUpstream, UpstreamHttp2, UpstreamTls};
use eyelet_memory::budget::{UPSTREAM_BYTES, UPSTREAM_TLS_BYTES};

/// How often an upstream that is not there is dialled again while it is waited for.
const WAIT_STEP: Duration = Duration::from_millis(100);
/// What a TLS connection is read by at once.
const OPENED_BYTES_MAX: usize = 16 << 10;
/// What a TLS connection holds of what it sends.
const SEALED_BYTES_MAX: usize = 16 << 10;
/// Connection Attempt Delay (RFC 8305 section 8), and addresses of one name that are tried.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
const ATTEMPTS_MAX: usize = 7;

/// A new connection.
pub enum Dialled {
    /// It speaks HTTP/1.1, for one request at a time.
    One(Box<one::Connection>),
    /// It speaks HTTP/2.
    Two(Rc<two::Connection>),
}

/// What is sent and received on.
pub enum Socket {
    /// TCP, or a Unix socket.
    Plain(Plain),
    /// Verified.
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

/// A descriptor that is counted as long as it lives.
pub struct Descriptor(pub Arc<Edge>);

impl Descriptor {
    fn new(edge: &Arc<Edge>) -> Self {
        edge.process.descriptors.fetch_add(1, Relaxed);
        Self(edge.clone())
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.0.process.descriptors.fetch_sub(1, Relaxed);
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub struct DialFailure {
    /// Whom we dialled.
    pub name: Arc<str>,
    /// Why not.
    pub reason: String,
    /// The answer that says so.
    pub status: StatusCode,
}

/// What may be spoken on a new connection. A connection that is to switch protocols speaks
/// HTTP/1.1: HTTP/2 has no 101.
pub fn spoken(to: &HttpUpstream, by_one: bool) -> Spoken {
    match (to.http2, &to.tls) {
        _ if by_one => Spoken::One,
        (UpstreamHttp2::Off, _) | (UpstreamHttp2::Alpn, None) => Spoken::One,
        (UpstreamHttp2::Alpn, Some(_)) => Spoken::Either,
        (UpstreamHttp2::On, _) => Spoken::Two,
    }
}

/// Dials, and goes on dialling until `patience` ends. `preface` goes before all else, TLS too.
pub async fn dial(
    worker: &Rc<Worker>,
    to: &HttpUpstream,
    spoken: Spoken,
    patience: Instant,
    preface: &[u8],
) -> Result<Dialled, DialFailure> {
    loop {
        let failure = match dial_once(worker, to, spoken, preface).await {
            Ok(dialled) => return Ok(dialled),
            Err(failure) => failure,
        };
        if Instant::now() >= patience || worker.is_draining() {
            return Err(failure);
        }
        sleep(WAIT_STEP).await;
    }
}

async fn dial_once(
    worker: &Rc<Worker>,
    to: &HttpUpstream,
    spoken: Spoken,
    preface: &[u8],
) -> Result<Dialled, DialFailure> {
    let wait = worker.edge.config.limits.connect_timeout;
    let mut name: Arc<str> = to.address.to_string().into();
    let begun = async {
        let (socket, http2) = connect(worker, to, spoken, preface, &mut name).await?;
        let descriptor = Descriptor::new(&worker.edge);
        if !http2 {
            let connection = one::Connection::new(socket, name.clone(), descriptor);
            return Ok(Dialled::One(Box::new(connection)));
        }
        let scheme = if to.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
        let begun = two::Connection::begin(socket, name.clone(), scheme, descriptor);
        begun.await.map(Dialled::Two).map_err(|error| (error, StatusCode::BAD_GATEWAY))
    };
    let (reason, status) = match timeout(wait, begun).await {
        Ok(Ok(dialled)) => return Ok(dialled),
        Ok(Err(failure)) => failure,
        Err(_) => ("connect_timeout".into(), StatusCode::GATEWAY_TIMEOUT),
    };
    Err(DialFailure { name, reason, status })
}

/// A socket on which HTTP may begin, and whether it is HTTP/2.
async fn connect(
    worker: &Rc<Worker>,
    to: &HttpUpstream,
    spoken: Spoken,
    preface: &[u8],
    name: &mut Arc<str>,
) -> Result<(Socket, bool), (String, StatusCode)> {
    let by_knowledge = spoken == Spoken::Two;
    let unreachable = |reason: String| (reason, StatusCode::SERVICE_UNAVAILABLE);
    let text = |error: io::Error| unreachable(error.to_string());
    let host_port = match &to.address {
        HttpAddress::Unix(path) => {
            let mut unix = UnixStream::connect(path).await.map_err(text)?;
            unix.write_all(preface).await.map_err(text)?;
            let plain = unix.into_std().and_then(|unix| Plain::new(worker.engine(), unix.into()));
            return Ok((Socket::Plain(plain.map_err(text)?), by_knowledge));
        }
        HttpAddress::Tcp(host_port) => host_port,
    };
    let found: Vec<IpAddr> = match &host_port.host {
        Host::Ip(ip) => vec![*ip],
        Host::Name(name) => {
            let found = resolver::addresses(worker, None, name).await;
            found.map_err(|error| unreachable(format!("DNS: {error}")))?
        }
    };
    let addresses = found.into_iter().map(|ip| SocketAddr::new(ip, host_port.port));
    let dialled = connect_any(addresses.take(ATTEMPTS_MAX).collect()).await;
    let (address, mut tcp) = dialled.map_err(text)?;
    *name = address.to_string().into();
    // A relay's writes are the client's: without this a small one would wait for an answer.
    tcp.set_nodelay(true).map_err(text)?;
    tcp.write_all(preface).await.map_err(text)?;
    let plain =
        tcp.into_std().and_then(|tcp| Plain::new(worker.engine(), tcp.into())).map_err(text)?;
    let Some(tls) = &to.tls else { return Ok((Socket::Plain(plain), by_knowledge)) };
    let begun = secure(worker, tls, spoken, plain).await;
    begun.map_err(|reason| unreachable(format!("TLS: {reason}")))
}

async fn secure(
    worker: &Worker,
    tls: &UpstreamTls,
    spoken: Spoken,
    plain: Plain,
) -> Result<(Socket, bool), String> {
    let config = worker.edge.upstream_tls.of(tls, spoken).ok_or("no configuration")?;
    let server = ServerName::try_from(tls.name.clone()).map_err(|error| error.to_string())?;
    let bounded = |tls: &mut rustls::ClientConnection| tls.set_buffer_limit(Some(SEALED_BYTES_MAX));
    let connected = TlsConnector::from(config).connect_with(server, plain, bounded).await;
    let stream = connected.map_err(|error| error.to_string())?;
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    if spoken == Spoken::Two && !http2 {
        return Err("h2 was not chosen".into());
    }
    Ok((Socket::Tls(Box::new(stream)), http2))
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

impl Socket {
    /// What it holds, in bytes of memory.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Plain(_) => UPSTREAM_BYTES,
            Self::Tls(_) => UPSTREAM_TLS_BYTES,
        }
    }

    /// Forgets the task that used it.
    pub fn rest(&self) {
        match self {
            Self::Plain(socket) => socket.rest(),
            Self::Tls(socket) => socket.get_ref().0.rest(),
        }
    }

    /// Whether what is written now goes out at once, as far as can be seen.
    pub fn takes(&self) -> bool {
        let unsent = match self {
            Self::Plain(socket) => socket::unsent(socket),
            Self::Tls(socket) => socket::unsent(socket.get_ref().0),
        };
        unsent.is_ok_and(|unsent| unsent == 0)
    }

    /// Whether nothing has come on it: neither a byte nor an end. With `look` the kernel is asked
    /// also where epoll has told of nothing.
    pub fn is_silent(&mut self, look: bool) -> bool {
        match self {
            Self::Plain(socket) => socket.is_silent(look),
            // A TLS record may come at any time, a ticket or the end.
            Self::Tls(socket) => {
                let plain = socket.get_ref().0;
                if look && !plain.has_event() && !plain.is_silent(true) {
                    // It would not be read before its event. Mostly it is the end.
                    return false;
                }
                let mut byte = [0; 1];
                let mut task = Context::from_waker(std::task::Waker::noop());
                let mut piece = ReadBuf::new(&mut byte);
                Pin::new(socket).poll_read(&mut task, &mut piece).is_pending()
            }
        }
    }

    /// Reads at most `max` bytes and appends them; how many came. 0 is the end.
    pub fn poll_recv(
        &mut self,
        task: &mut Context<'_>,
        into: &mut BytesMut,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_recv(task, into, max),
            Self::Tls(socket) => {
                let mut room = [MaybeUninit::uninit(); OPENED_BYTES_MAX];
                let mut read = ReadBuf::uninit(&mut room[..max.min(OPENED_BYTES_MAX)]);
                ready!(Pin::new(socket).poll_read(task, &mut read))?;
                into.extend_from_slice(read.filled());
                Poll::Ready(Ok(read.filled().len()))
            }
        }
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
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::task::Waker;

    use eyelet_engine::worker::Worker;
    use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection};

    use super::super::plain::tests::{connected, look, worker};
    use super::*;

    /// Moves what the server's session has to send and to read now.
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

    /// A connection whose handshake is done, and whose tickets were read.
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

    /// Records that were not read yet may hold the end, so a look does not call them silence.
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
