//! Dials an upstream: names, addresses, TLS, and the version of HTTP.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls_pki_types::ServerName;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::plain::Plain;
use super::socket::tls::{ShakeError, shake};
use super::socket::{Descriptor, Socket};
use super::{http1, http2};
use eyelet_balance::sources::SourceAddresses;
use eyelet_config::{HttpAddress, HttpUpstream, UpstreamHttp2, UpstreamTls};
use eyelet_engine::worker::Worker;
use eyelet_resolve::connect::{Balanced, DialOptions};
use eyelet_resolve::dial::{DialTarget, Guard, dial as dial_target, no_descriptor};
use eyelet_resolve::names::Names;
use eyelet_sys::memory::long_rc::LongRc;
use eyelet_telemetry::info::ConnectionInfo;
use eyelet_telemetry::reason::{Detail, Limit, Peer, Reason};
use eyelet_telemetry::upstream::OpenExchange;
use eyelet_tls::client::{ClientConfigs, Spoken};
use eyelet_tls::client_handshake::ClientHandshakeFault;

/// The dialler of upstreams for a worker.
pub struct Dialler {
    /// The worker, which registers the sockets.
    pub engine: Rc<Worker>,
    /// Looks names up.
    pub names: Rc<Names>,
    /// TLS configurations for https:// upstreams.
    pub tls: Arc<ClientConfigs>,
    /// The time that the attempts for one request may take, TLS included.
    pub connect_timeout: Duration,
}

/// The time that one dial may take, and the health of the addresses.
#[derive(Clone, Copy)]
pub struct DialTerms<'a> {
    /// The versions of HTTP to offer, see [`spoken`].
    pub spoken: Spoken,
    /// Bytes that are sent first, before TLS: a PROXY header, or nothing.
    pub preface: &'a [u8],
    /// TLS included.
    pub wait: Duration,
    /// For an upstream whose health is known.
    pub balanced: Option<Balanced<'a>>,
    /// The addresses of this host to dial from. `None`: the kernel chooses one.
    pub sources: Option<&'a SourceAddresses>,
    /// True if the request may leave before an upstream that has chosen HTTP/2 has spoken. It must
    /// do no harm twice, and no other upstream could take it.
    pub is_early: bool,
}

/// A new connection.
pub enum Dialled {
    /// It speaks HTTP/1.1, for one request at a time.
    Http1(Box<http1::Http1Connection>),
    /// It speaks HTTP/2.
    Http2(LongRc<http2::Http2Connection>),
}

/// The reason why there is no connection.
#[derive(Debug)]
pub struct DialFailure {
    /// The address that was dialled.
    pub name: Arc<str>,
    /// The reason why there is none.
    pub reason: Reason,
}

/// The versions of HTTP to offer on a new connection. A connection that will switch protocols needs
/// HTTP/1.1: HTTP/2 has no 101.
pub fn spoken(to: &HttpUpstream, needs_http1: bool) -> Spoken {
    match (to.http2, &to.tls) {
        _ if needs_http1 => Spoken::Http1,
        (UpstreamHttp2::Off, _) | (UpstreamHttp2::Alpn, None) => Spoken::Http1,
        (UpstreamHttp2::Alpn, Some(_)) => Spoken::Either,
        (UpstreamHttp2::On, _) => Spoken::Http2,
    }
}

/// Dials once for a request of the client that `info` describes, and notes how long it took.
pub async fn dial(
    dialler: &Dialler,
    to: &HttpUpstream,
    terms: DialTerms<'_>,
    info: &ConnectionInfo,
) -> Result<Dialled, DialFailure> {
    let engine = &dialler.engine;
    let began = engine.begins();
    let dialled = dial_unmeasured(dialler, to, terms, info).await?;
    engine.ends(&engine.counters.connects, began);
    Ok(dialled)
}

/// Dials once, for a request or for a check.
pub(crate) async fn dial_unmeasured(
    dialler: &Dialler,
    to: &HttpUpstream,
    terms: DialTerms<'_>,
    info: &ConnectionInfo,
) -> Result<Dialled, DialFailure> {
    let mut address = None;
    let name = |address: Option<SocketAddr>| -> Arc<str> {
        shared(address.map_or_else(|| to.address.to_string(), |address| address.to_string()))
    };
    let engine = &dialler.engine;
    let lacks_descriptor = Cell::new(false);
    let begun = async {
        let dial =
            OneDial { dialler, to, terms: &terms, info, lacks_descriptor: &lacks_descriptor };
        let (socket, http2, open) = dial.connect(&mut address).await?;
        let descriptor = Descriptor::new(engine, open);
        let dialled = address.map(|address| (address.ip().to_canonical(), Instant::now()));
        let name = name(address);
        if !http2 {
            let mut connection = http1::Http1Connection::new(socket, name, descriptor);
            connection.dialled = dialled;
            return Ok(Dialled::Http1(Box::new(connection)));
        }
        let early = terms.is_early.then_some(terms.wait);
        let begun = http2::Http2Connection::begin(socket, name, descriptor, early);
        let connection = begun.await?;
        connection.dialled.set(dialled);
        Ok(Dialled::Http2(connection))
    };
    let reason = match timeout(terms.wait, begun).await {
        Ok(Ok(dialled)) => return Ok(dialled),
        Ok(Err(failure)) => failure,
        Err(_) if lacks_descriptor.get() => no_descriptor(),
        Err(_) => Reason::Timeout(Limit::Connect, None),
    };
    Err(DialFailure { name: name(address), reason })
}

thread_local! {
    /// The name of the last connection: most connections are to few addresses.
    static LAST: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// A connection's name. It has the memory of the last one's if that is the same.
fn shared(name: String) -> Arc<str> {
    LAST.with_borrow_mut(|last| {
        last.take_if(|last| **last != *name);
        last.get_or_insert_with(|| name.into()).clone()
    })
}

/// A dial of an upstream for a client.
struct OneDial<'a> {
    dialler: &'a Dialler,
    to: &'a HttpUpstream,
    terms: &'a DialTerms<'a>,
    info: &'a ConnectionInfo,
    /// See [`DialOptions::lacks_descriptor`].
    lacks_descriptor: &'a Cell<bool>,
}

impl OneDial<'_> {
    /// A socket on which HTTP may begin, and whether it speaks HTTP/2. Counts it at its `address`,
    /// which is also set if the dial fails later.
    async fn connect(
        self,
        address: &mut Option<SocketAddr>,
    ) -> Result<(Socket, bool, Vec<OpenExchange>), Reason> {
        let Self { dialler, to, info, terms, lacks_descriptor } = self;
        let DialTerms { spoken, preface, balanced, sources, .. } = *terms;
        let by_knowledge = spoken == Spoken::Http2;
        let failed = |error: io::Error| Reason::Io(Peer::Upstream, (&error).into());
        let target = match &to.address {
            HttpAddress::Unix(path) => DialTarget::Unix(path),
            HttpAddress::Tcp(host_port) => match &to.chosen {
                None => DialTarget::Configured(host_port),
                Some(allow) => DialTarget::chosen(host_port, Guard { allow }),
            },
            // The route has put the connection's own destination in its place.
            HttpAddress::Destination => return Err(Reason::NoDestination),
        };
        // A relay's writes are the client's: with first bytes a small one would wait for an answer.
        let balanced_to = balanced.as_ref();
        let lacks_descriptor = Some(lacks_descriptor);
        let options = DialOptions {
            balanced: balanced_to,
            sources,
            lacks_descriptor,
            ..DialOptions::default()
        };
        let dialled = dial_target(&dialler.names, &dialler.engine, info, &target, &options).await;
        let mut connected = dialled.map_err(|undialled| undialled.end.reason)?;
        let mut open: Vec<OpenExchange> = connected.source.take().into_iter().collect();
        *address = connected.address;
        if let Some(address) = connected.address {
            let counters = balanced.and_then(|balanced| balanced.member.address_counters(address));
            open.extend(counters.as_ref().map(OpenExchange::new));
        }
        let mut plain = Plain::new(&dialler.engine, connected).map_err(failed)?;
        plain.write_all(preface).await.map_err(failed)?;
        let Some(tls) = &to.tls else { return Ok((Socket::Plain(plain), by_knowledge, open)) };
        let (socket, http2) = secure(dialler, tls, spoken, plain).await?;
        Ok((socket, http2, open))
    }
}

async fn secure(
    dialler: &Dialler,
    tls: &UpstreamTls,
    spoken: Spoken,
    plain: Plain,
) -> Result<(Socket, bool), Reason> {
    let config = dialler.tls.of(tls, spoken).ok_or_else(|| tls_failed("no configuration"))?;
    let server = ServerName::try_from(tls.name.clone()).map_err(tls_failed)?;
    let stream = shake(config, server, plain).await.map_err(|error| shake_failed(&error))?;
    let http2 = stream.info().is_some_and(|info| info.alpn.as_deref() == Some("h2"));
    if spoken == Spoken::Http2 && !http2 {
        return Err(tls_failed("h2 was not chosen"));
    }
    Ok((Socket::Tls(Box::new(stream)), http2))
}

fn tls_failed(why: impl std::fmt::Display) -> Reason {
    Reason::UpstreamTls(Detail::of(why))
}

/// Returns the reason why a handshake failed.
fn shake_failed(error: &ShakeError) -> Reason {
    match error {
        ShakeError::Fault(ClientHandshakeFault::Alert(alert)) => Reason::UpstreamAlert(*alert),
        ShakeError::Fault(ClientHandshakeFault::NoTls) => Reason::UpstreamNotTls,
        ShakeError::Fault(fault @ ClientHandshakeFault::Certificate(_)) => {
            Reason::UpstreamUntrusted(Detail::of(fault))
        }
        other => tls_failed(other),
    }
}
