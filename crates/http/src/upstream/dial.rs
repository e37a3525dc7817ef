//! Dials an upstream: names, addresses, TLS, and the version of HTTP.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use http::uri::Scheme;
use rustls_pki_types::ServerName;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::plain::Plain;
use super::socket::{Descriptor, Socket};
use super::{one, two};
use eyelet_config::{Host, HttpAddress, HttpUpstream, UpstreamHttp2, UpstreamTls};
use eyelet_engine::worker::Worker;
use eyelet_resolve::dialled;
use eyelet_resolve::names::Names;
use eyelet_telemetry::reason::{Detail, Limit, Peer, Reason};
use eyelet_tls::client::{ClientConfigs, Spoken};

/// Time between dials to an upstream that is down, while requests wait for it.
const WAIT_STEP: Duration = Duration::from_millis(100);
/// Most bytes that a TLS connection holds of what it sends.
const SEALED_BYTES_MAX: usize = 16 << 10;
/// Connection Attempt Delay (RFC 8305 section 8), and most addresses of one name that are tried.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
const ATTEMPTS_MAX: usize = 7;

/// What dials upstreams for a worker.
pub struct Dialler {
    /// The worker, which registers the sockets.
    pub engine: Rc<Worker>,
    /// Looks names up.
    pub names: Rc<Names>,
    /// TLS configurations for https:// upstreams.
    pub tls: Arc<ClientConfigs>,
    /// How long one attempt may take, TLS included.
    pub connect_timeout: Duration,
}

/// A new connection.
pub enum Dialled {
    /// It speaks HTTP/1.1, for one request at a time.
    One(Box<one::Connection>),
    /// It speaks HTTP/2.
    Two(Rc<two::Connection>),
}

/// Why there is no connection.
#[derive(Debug)]
pub struct DialFailure {
    /// The address that was dialled.
    pub name: Arc<str>,
    /// Why there is none.
    pub reason: Reason,
}

/// The versions of HTTP to offer on a new connection. A connection that will switch protocols needs
/// HTTP/1.1: HTTP/2 has no 101.
pub fn spoken(to: &HttpUpstream, by_one: bool) -> Spoken {
    match (to.http2, &to.tls) {
        _ if by_one => Spoken::One,
        (UpstreamHttp2::Off, _) | (UpstreamHttp2::Alpn, None) => Spoken::One,
        (UpstreamHttp2::Alpn, Some(_)) => Spoken::Either,
        (UpstreamHttp2::On, _) => Spoken::Two,
    }
}

/// Dials, repeatedly until `patience` ends. `preface` is sent first, before TLS.
pub async fn dial(
    dialler: &Dialler,
    to: &HttpUpstream,
    spoken: Spoken,
    patience: Instant,
    preface: &[u8],
) -> Result<Dialled, DialFailure> {
    loop {
        let failure = match dial_once(dialler, to, spoken, preface).await {
            Ok(dialled) => return Ok(dialled),
            Err(failure) => failure,
        };
        if Instant::now() >= patience || dialler.engine.is_draining() {
            return Err(failure);
        }
        sleep(WAIT_STEP).await;
    }
}

async fn dial_once(
    dialler: &Dialler,
    to: &HttpUpstream,
    spoken: Spoken,
    preface: &[u8],
) -> Result<Dialled, DialFailure> {
    let wait = dialler.connect_timeout;
    let mut name: Arc<str> = to.address.to_string().into();
    let begun = async {
        let (socket, http2) = connect(dialler, to, spoken, preface, &mut name).await?;
        let descriptor = Descriptor::new(&dialler.engine.process);
        if !http2 {
            let connection = one::Connection::new(socket, name.clone(), descriptor);
            return Ok(Dialled::One(Box::new(connection)));
        }
        let scheme = if to.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
        let begun = two::Connection::begin(socket, name.clone(), scheme, descriptor);
        begun.await.map(Dialled::Two)
    };
    let reason = match timeout(wait, begun).await {
        Ok(Ok(dialled)) => return Ok(dialled),
        Ok(Err(failure)) => failure,
        Err(_) => Reason::Timeout(Limit::Connect, None),
    };
    Err(DialFailure { name, reason })
}

/// A socket on which HTTP may begin, and whether it speaks HTTP/2.
async fn connect(
    dialler: &Dialler,
    to: &HttpUpstream,
    spoken: Spoken,
    preface: &[u8],
    name: &mut Arc<str>,
) -> Result<(Socket, bool), Reason> {
    let by_knowledge = spoken == Spoken::Two;
    let failed = |error: io::Error| Reason::Io(Peer::Upstream, (&error).into());
    let host_port = match &to.address {
        HttpAddress::Unix(path) => {
            let mut unix = UnixStream::connect(path).await.map_err(failed)?;
            unix.write_all(preface).await.map_err(failed)?;
            let plain = unix.into_std().and_then(|unix| Plain::new(&dialler.engine, unix.into()));
            return Ok((Socket::Plain(plain.map_err(failed)?), by_knowledge));
        }
        HttpAddress::Tcp(host_port) => host_port,
    };
    let found: Vec<IpAddr> = match &host_port.host {
        Host::Ip(ip) => vec![*ip],
        Host::Name(name) => {
            let found = dialled::addresses(&dialler.names, None, name).await;
            found.map_err(|error| Reason::Dns(Detail::of(error)))?
        }
    };
    let addresses = found.into_iter().map(|ip| SocketAddr::new(ip, host_port.port));
    let dialled = connect_any(addresses.take(ATTEMPTS_MAX).collect()).await;
    let (address, mut tcp) = dialled?;
    *name = address.to_string().into();
    // A relay's writes are the client's: without this a small one would wait for an
    // acknowledgement.
    tcp.set_nodelay(true).map_err(failed)?;
    tcp.write_all(preface).await.map_err(failed)?;
    let plain =
        tcp.into_std().and_then(|tcp| Plain::new(&dialler.engine, tcp.into())).map_err(failed)?;
    let Some(tls) = &to.tls else { return Ok((Socket::Plain(plain), by_knowledge)) };
    let begun = secure(dialler, tls, spoken, plain).await;
    begun.map_err(|error| Reason::UpstreamTls(Detail::of(error)))
}

async fn secure(
    dialler: &Dialler,
    tls: &UpstreamTls,
    spoken: Spoken,
    plain: Plain,
) -> Result<(Socket, bool), String> {
    let config = dialler.tls.of(tls, spoken).ok_or("no configuration")?;
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

/// Tries the addresses in turn: the next one when the last has failed or after [`ATTEMPT_DELAY`].
/// The first that connects wins (RFC 8305).
async fn connect_any(addresses: Vec<SocketAddr>) -> Result<(SocketAddr, TcpStream), Reason> {
    let mut waiting = addresses.into_iter();
    let mut attempts = Vec::new();
    let mut last = Reason::NoAddress;
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
                last = Reason::Io(Peer::Upstream, (&error).into());
            }
        }
    }
}

async fn attempt(address: SocketAddr) -> io::Result<(SocketAddr, TcpStream)> {
    TcpStream::connect(address).await.map(|connected| (address, connected))
}
