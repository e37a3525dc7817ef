//! Dialling an upstream: a name's addresses, if a client may be led there, to one connected socket
//! (RFC 8305). It must not know how names are looked up, or what will be sent.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use eyelet_sys::epoll::{FAILED, WRITABLE};
use eyelet_sys::{interfaces, socket, transparent};
use ipnet::IpNet;

use crate::active::{Active, Stop};
use crate::intercept;
use eyelet_config::{Host, HostPort};
use eyelet_engine::ready::{SIDES, Side, UPSTREAM};
use eyelet_resolve::dialled;
use eyelet_resolve::guard::is_guarded;
use eyelet_resolve::loops::Trace;
use eyelet_telemetry::info::{ConnectionInfo, End, Outcome, Upstream};
use eyelet_telemetry::reason::{Detail, Guarded, Limit, Peer, Reason, Shed, Stage, When};

/// Connection Attempt Delay (RFC 8305 section 8).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Addresses of one name that are tried: as many as an entry has sides for.
const ATTEMPTS_MAX: usize = (SIDES - UPSTREAM) as usize;
/// How often a Unix socket whose backlog is full is tried again, and a dial for which there was no
/// descriptor.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// A name was not resolved in time.
const SLOW_DNS: Reason = Reason::Timeout(Limit::Connect, Some(When::During(Stage::Dns)));

/// Whom to dial.
#[derive(Debug)]
pub enum Target<'a> {
    /// The destination of an intercepted connection.
    Address(SocketAddr),
    /// An address that the client chose freely.
    Chosen(SocketAddr, Guard<'a>),
    /// What the administrator wrote.
    Configured(&'a HostPort),
    /// A name that the client chose.
    Named(HostPort, Guard<'a>),
    /// A Unix socket.
    Unix(&'a Path),
}

/// What a client's name may not resolve to.
#[derive(Clone, Copy, Debug)]
pub struct Guard<'a> {
    /// Networks that are allowed although they are guarded.
    pub allow: &'a [IpNet],
}

/// How an upstream is dialled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner<'a> {
    /// From this address, which need not be this host's.
    pub source: Option<IpAddr>,
    /// What is written as soon as it can be. TCP_NODELAY is then left to who writes the next: the
    /// first bytes are sent at once anyway, and many connections have no others.
    pub first: &'a [u8],
    /// The first bytes go with the SYN; there are some.
    pub fast_open: bool,
    /// How it is known if it comes back.
    pub trace: Trace<'a>,
}

/// Dials and makes the connected socket the connection's upstream. The info names who was
/// dialled, also when nobody answered.
pub async fn dial(
    active: &Active,
    info: &mut ConnectionInfo,
    target: &Target<'_>,
) -> Result<(), End> {
    dial_so(active, info, target, &mut Manner::default()).await.map(drop)
}

/// The same in another manner than the usual one; how many of the first bytes were taken.
pub async fn dial_so(
    active: &Active,
    info: &mut ConnectionInfo,
    target: &Target<'_>,
    manner: &mut Manner<'_>,
) -> Result<usize, End> {
    active.due_in(active.worker.snapshot.config.limits.connect_timeout);
    let (one, found);
    // What most connections do not need is boxed, so that their tasks stay small.
    let addresses = match target {
        Target::Unix(path) => {
            let name = format!("unix:{}", path.display());
            info.decided.upstream = Some(Upstream::Name(name.into()));
            return Box::pin(dial_unix(active, path)).await.map(|()| 0).map_err(failed);
        }
        Target::Address(address) => std::slice::from_ref(address),
        Target::Chosen(address, guard) => {
            info.decided.upstream = Some(Upstream::Address(*address));
            check_guard(&address.ip().to_string(), &[address.ip()], *guard)?;
            std::slice::from_ref(address)
        }
        Target::Configured(HostPort { host: Host::Ip(ip), port }) => {
            one = SocketAddr::new(*ip, *port);
            std::slice::from_ref(&one)
        }
        Target::Configured(host_port) => {
            found = Box::pin(resolve(active, info, host_port, None)).await?;
            &found
        }
        Target::Named(host_port, guard) => {
            found = Box::pin(resolve(active, info, host_port, Some(*guard))).await?;
            &found
        }
    };
    let configured = matches!(target, Target::Configured(_));
    for address in addresses {
        if intercept::check_loop(active, info, *address, configured)? {
            manner.trace = Trace::Ends;
        }
    }
    let dialled = match addresses {
        [] => Err(End::failed(Reason::NoAddress)),
        _ if is_of_other_family(addresses, manner) => Err(End::failed(Reason::MixedFamilies)),
        [address] => dial_one(active, *address, manner).await.map_err(failed),
        // By fast open the first of them would seem to answer, whether it does or not.
        _ => Box::pin(dial_any(active, addresses, manner)).await.map_err(failed),
    };
    match dialled {
        Ok((address, sent)) => {
            info.decided.upstream = Some(Upstream::Address(address));
            Ok(sent)
        }
        Err(end) => {
            // Of several addresses the last reason is told, and the first address for them all.
            if let Some(address) = addresses.first() {
                info.decided.upstream = Some(Upstream::Address(*address));
            }
            Err(end)
        }
    }
}

/// Whether no address can be dialled from the client's.
fn is_of_other_family(addresses: &[SocketAddr], manner: &Manner<'_>) -> bool {
    manner
        .source
        .is_some_and(|client| addresses.iter().all(|address| address.is_ipv4() != client.is_ipv4()))
}

fn failed(stop: Stop) -> End {
    let when = When::During(Stage::Dial);
    End::failed(match stop {
        Stop::Drained => Reason::Drained(Some(when)),
        Stop::Shed => Reason::Shed(Shed::Unfinished(when)),
        Stop::Late => Reason::Timeout(Limit::Connect, None),
        Stop::Io(error) => Reason::Io(Peer::Upstream, (&error).into()),
        Stop::Unwatched(error) => Reason::Unwatched((&error).into()),
    })
}

async fn resolve(
    active: &Active,
    info: &mut ConnectionInfo,
    host_port: &HostPort,
    guard: Option<Guard<'_>>,
) -> Result<Vec<SocketAddr>, End> {
    let port = host_port.port;
    let name = match &host_port.host {
        // What the administrator wrote as an address is not a client's lie.
        Host::Ip(ip) => return Ok(vec![SocketAddr::new(*ip, port)]),
        Host::Name(name) => name,
    };
    info.decided.upstream = Some(Upstream::Name(format!("{name}:{port}").into()));
    let wait = active.worker.snapshot.config.limits.connect_timeout;
    let asker = guard.map(|_| info.client.ip());
    let lookup = dialled::addresses(&active.worker.names, asker, name);
    let mut found = match tokio::time::timeout(wait, lookup).await {
        Err(_) => return Err(End::failed(SLOW_DNS)),
        Ok(Err(error)) => return Err(End::failed(Reason::Dns(Detail::of(error)))),
        Ok(Ok(found)) => found,
    };
    // What is not tried need not be looked at: a name may have thousands.
    found.truncate(ATTEMPTS_MAX);
    if let Some(guard) = guard {
        check_guard(name, &found, guard)?;
    }
    Ok(found.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
}

/// One guarded address is enough: a name that mixes them is the rebinding attack.
fn check_guard(name: &str, found: &[IpAddr], guard: Guard<'_>) -> Result<(), End> {
    let Some(ip) = found.iter().find(|ip| is_guarded(**ip, guard.allow)) else { return Ok(()) };
    let name = (name != ip.to_string()).then(|| name.into());
    let reason = Reason::Guarded(Box::new(Guarded { ip: *ip, name }));
    Err(End { outcome: Outcome::Refused, reason })
}

/// The address of a CONNECT's host that rules are asked about, and that is then the only one to
/// be dialled: the first to which there is a route.
///
/// # Errors
/// Why there is none.
pub async fn destination(
    active: &Active,
    info: &ConnectionInfo,
    host_port: &HostPort,
) -> Result<SocketAddr, Reason> {
    let name = match &host_port.host {
        Host::Ip(ip) => return Ok(SocketAddr::new(*ip, host_port.port)),
        Host::Name(name) => name,
    };
    let wait = active.worker.snapshot.config.limits.connect_timeout;
    active.due_in(wait);
    let lookup = dialled::addresses(&active.worker.names, Some(info.client.ip()), name);
    let found = match tokio::time::timeout(wait, lookup).await {
        Err(_) => return Err(SLOW_DNS),
        Ok(found) => found.map_err(|error| Reason::Dns(Detail::of(error)))?,
    };
    let routed = found.iter().take(ATTEMPTS_MAX).find(|ip| interfaces::has_route(**ip));
    let ip = routed.or(found.first()).ok_or(Reason::NoAddress)?;
    Ok(SocketAddr::new(*ip, host_port.port))
}

async fn dial_unix(active: &Active, path: &Path) -> Result<(), Stop> {
    loop {
        match socket::connect_unix(path) {
            Ok(upstream) => {
                active.set_connected(upstream);
                return Ok(());
            }
            // The backlog is full, and no edge will tell when it is not: the deadline bounds it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                active.in_time()?;
                tokio::time::sleep(RETRY_DELAY).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

async fn dial_one(
    active: &Active,
    address: SocketAddr,
    manner: &Manner<'_>,
) -> Result<(SocketAddr, usize), Stop> {
    let (upstream, at_once) = loop {
        match start(active, address, manner) {
            // Others will give descriptors back, and no edge will tell: the deadline bounds it.
            Err(error) if is_out_of_descriptors(&error) => {
                active.in_time()?;
                Box::pin(tokio::time::sleep(RETRY_DELAY)).await;
            }
            started => break started?,
        }
    };
    // Within this host the handshake is over when the connect returns.
    if (at_once || address.ip().is_loopback())
        && let Some(sent) = send_first(&upstream, manner.first)?
    {
        active.set_connected(upstream);
        return Ok((address, sent));
    }
    active.watch_attempt(&upstream, UPSTREAM)?;
    active.ready(&[UPSTREAM], WRITABLE).await?;
    if active.has(UPSTREAM, FAILED) {
        socket::pending_error(&upstream)?;
    }
    let sent = send_first(&upstream, manner.first)?;
    active.set_upstream(upstream, UPSTREAM)?;
    Ok((address, sent.unwrap_or(0)))
}

/// Writes the first bytes, as many as the socket takes. `None`: it is not connected yet.
fn send_first(upstream: &OwnedFd, first: &[u8]) -> io::Result<Option<usize>> {
    if first.is_empty() {
        return Ok(socket::is_connected(upstream).then_some(0));
    }
    match socket::send(upstream, first) {
        Ok(sent) => Ok(Some(sent)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            // It was there. That it has gone is for the relay, which passes a reset on.
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Ok(Some(0)),
            _ => Err(error),
        },
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(EMFILE | ENFILE))
}

fn start(active: &Active, address: SocketAddr, manner: &Manner<'_>) -> io::Result<(OwnedFd, bool)> {
    let upstream = socket::tcp(address)?;
    if manner.first.is_empty() {
        socket::no_delay(&upstream)?;
    } else {
        socket::ack_with_first(&upstream)?;
    }
    if manner.fast_open {
        socket::fast_open(&upstream)?;
    }
    if let Some(client) = manner.source {
        if client.is_ipv4() != address.is_ipv4() {
            return Err(io::Error::other("it is not of the client's address family"));
        }
        transparent::bind_to_client(&upstream, client)?;
    }
    let at_once = socket::connect(&upstream, address)?;
    active.worker.snapshot.names.loops.dialled(&upstream, address, manner.trace);
    Ok((upstream, at_once))
}

/// Tries the addresses in turn, a new one each time the last has failed or
/// [`ATTEMPT_DELAY`] has passed; the first that connects wins.
async fn dial_any(
    active: &Active,
    addresses: &[SocketAddr],
    manner: &Manner<'_>,
) -> Result<(SocketAddr, usize), Stop> {
    let mut waiting = addresses.iter().copied().take(ATTEMPTS_MAX).zip(UPSTREAM..);
    let manner = &Manner { fast_open: false, ..*manner };
    let mut attempts: Vec<(Side, SocketAddr, OwnedFd)> = Vec::new();
    let mut last = io::Error::from(io::ErrorKind::NotConnected);
    loop {
        let mut exhausted = false;
        match waiting.next() {
            None => exhausted = true,
            Some((address, side)) => match attempt(active, address, manner, side) {
                Ok(upstream) => attempts.push((side, address, upstream)),
                Err(error) => last = error,
            },
        }
        if attempts.is_empty() {
            if exhausted {
                return Err(last.into());
            }
            continue;
        }
        let sides: Vec<Side> = attempts.iter().map(|(side, ..)| *side).collect();
        let ready = active.ready(&sides, WRITABLE);
        if exhausted {
            ready.await?;
        } else if let Ok(ready) = tokio::time::timeout(ATTEMPT_DELAY, ready).await {
            ready?;
        }
        if let Some(won) = settle(active, &mut attempts, &mut last) {
            let (side, address, upstream) = won;
            let sent = send_first(&upstream, manner.first)?;
            active.set_upstream(upstream, side)?;
            return Ok((address, sent.unwrap_or(0)));
        }
    }
}

fn attempt(
    active: &Active,
    address: SocketAddr,
    manner: &Manner<'_>,
    side: Side,
) -> io::Result<OwnedFd> {
    let (upstream, _) = start(active, address, manner)?;
    active.watch_attempt(&upstream, side)?;
    Ok(upstream)
}

/// Drops the attempts that have failed and takes the first that has connected.
fn settle(
    active: &Active,
    attempts: &mut Vec<(Side, SocketAddr, OwnedFd)>,
    last: &mut io::Error,
) -> Option<(Side, SocketAddr, OwnedFd)> {
    let mut at = 0;
    while let Some((side, _, upstream)) = attempts.get(at) {
        if !active.has(*side, WRITABLE) {
            at += 1;
            continue;
        }
        match socket::pending_error(upstream) {
            Ok(()) => return Some(attempts.swap_remove(at)),
            Err(error) => {
                *last = error;
                attempts.remove(at);
            }
        }
    }
    None
}
