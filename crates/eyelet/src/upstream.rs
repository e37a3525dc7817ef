//! Finding and dialling an upstream: names to addresses, addresses to one connected socket
//! (RFC 8305). It must not know what will be sent.

use std::cell::OnceCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use eyelet_sys::epoll::{FAILED, WRITABLE};
use eyelet_sys::{interfaces, socket};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use ipnet::IpNet;

use crate::active::{Active, Stop};
use crate::config::{Dns, Host, HostPort};
use crate::lot::{SIDES, Side, UPSTREAM};
use crate::story::{End, Story};

/// Connection Attempt Delay (RFC 8305 section 8).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Addresses of one name that are tried: as many as an entry has sides for.
const ATTEMPTS_MAX: usize = (SIDES - UPSTREAM) as usize;
/// How often a Unix socket whose backlog is full is tried again.
const BACKLOG_DELAY: Duration = Duration::from_millis(20);

/// Whom to dial.
#[derive(Debug)]
pub enum Target<'a> {
    /// An address that the client named: the destination.
    Address(SocketAddr),
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

/// The resolver of a worker, made at the first name.
pub struct Resolver {
    dns: Dns,
    made: OnceCell<TokioResolver>,
}

impl Resolver {
    /// A resolver for `dns`; nothing is read yet.
    pub fn new(dns: &Dns) -> Self {
        Self { dns: dns.clone(), made: OnceCell::new() }
    }

    fn resolver(&self) -> Result<&TokioResolver, String> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let builder = if self.dns.servers.is_empty() {
            TokioResolver::builder_tokio().map_err(|error| error.to_string())?
        } else {
            let servers = self.dns.servers.iter().map(|server| {
                let mut config = NameServerConfig::udp_and_tcp(server.ip());
                for connection in &mut config.connections {
                    connection.port = server.port();
                }
                config
            });
            let config = ResolverConfig::from_name_servers(servers.collect());
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        };
        let made = builder.build().map_err(|error| error.to_string())?;
        Ok(self.made.get_or_init(|| made))
    }

    /// The addresses of a name, IPv6 and IPv4 in turn (RFC 8305 section 4).
    pub async fn addresses(&self, name: &str, absolute: bool) -> Result<Vec<IpAddr>, String> {
        // A client's name is a whole one: the search list of this host must not complete it.
        let asked = if absolute { format!("{name}.") } else { name.to_owned() };
        let found = self.resolver()?.lookup_ip(asked).await.map_err(|error| error.to_string())?;
        let (v6, v4): (Vec<IpAddr>, Vec<IpAddr>) = found.iter().partition(IpAddr::is_ipv6);
        let mut turns = Vec::with_capacity(v6.len() + v4.len());
        let (mut v6, mut v4) = (v6.into_iter(), v4.into_iter());
        loop {
            match (v6.next(), v4.next()) {
                (None, None) => return Ok(turns),
                (six, four) => turns.extend(six.into_iter().chain(four)),
            }
        }
    }
}

/// Dials and makes the connected socket the connection's upstream. The story names who was
/// dialled, also when nobody answered.
pub async fn dial(active: &Active, story: &mut Story, target: &Target<'_>) -> Result<(), End> {
    active.due_in(active.worker.edge.config.limits.connect_timeout);
    let addresses = match target {
        Target::Unix(path) => {
            story.decided.upstream = Some(format!("unix:{}", path.display()).into());
            return dial_unix(active, path).await.map_err(failed);
        }
        Target::Address(address) => vec![*address],
        Target::Configured(host_port) => resolve(active, story, host_port, None).await?,
        Target::Named(host_port, guard) => resolve(active, story, host_port, Some(*guard)).await?,
    };
    let dialled = match &addresses[..] {
        [] => Err(io::Error::other("the name has no address").into()),
        [address] => dial_one(active, *address).await,
        _ => dial_any(active, &addresses).await,
    };
    match dialled {
        Ok(address) => {
            story.decided.upstream = Some(address.to_string().into());
            Ok(())
        }
        Err(stop) => {
            story.decided.upstream.get_or_insert_with(|| addresses[0].to_string().into());
            Err(failed(stop))
        }
    }
}

fn failed(stop: Stop) -> End {
    End::failed(match stop {
        Stop::Drained => "drained while dialling the upstream".into(),
        Stop::Late => "upstream: connect_timeout".into(),
        Stop::Io(error) => format!("upstream: {error}"),
    })
}

async fn resolve(
    active: &Active,
    story: &mut Story,
    host_port: &HostPort,
    guard: Option<Guard<'_>>,
) -> Result<Vec<SocketAddr>, End> {
    let port = host_port.port;
    let name = match &host_port.host {
        // What the administrator wrote as an address is not a client's lie.
        Host::Ip(ip) => return Ok(vec![SocketAddr::new(*ip, port)]),
        Host::Name(name) => name,
    };
    story.decided.upstream = Some(format!("{name}:{port}").into());
    let wait = active.worker.edge.config.limits.connect_timeout;
    let lookup = active.worker.resolver.addresses(name, guard.is_some());
    let found = match tokio::time::timeout(wait, lookup).await {
        Err(_) => return Err(End::failed("upstream: connect_timeout in DNS")),
        Ok(Err(error)) => return Err(End::failed(format!("upstream: DNS: {error}"))),
        Ok(Ok(found)) => found,
    };
    if let Some(guard) = guard
        && let Some(ip) = found.iter().find(|ip| is_guarded(**ip, guard.allow))
    {
        // One guarded address is enough: a name that mixes them is the rebinding attack.
        let reason = format!("upstream: {name} resolves to {ip}, which upstream_allow lacks");
        return Err(End { outcome: crate::story::Outcome::Refused, reason: reason.into() });
    }
    Ok(found.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
}

/// Whether a client's name may not lead here: what is not on the public Internet, and ourselves.
fn is_guarded(ip: IpAddr, allow: &[IpNet]) -> bool {
    let ip = ip.to_canonical();
    let guarded = is_special(ip) || interfaces::is_local(ip);
    guarded && !allow.iter().any(|net| net.contains(&ip))
}

fn is_special(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_special_v4(ip),
        IpAddr::V6(ip) => match embedded_v4(ip) {
            Some(v4) => is_special_v4(v4),
            None => {
                ip.is_loopback()
                    || ip.is_unspecified()
                    || ip.is_multicast()
                    || ip.is_unique_local()
                    || ip.is_unicast_link_local()
            }
        },
    }
}

fn is_special_v4(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    ip.is_loopback()
        || ip.is_private()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_broadcast()
        || a == 0
        // Shared address space (RFC 6598) and the reserved class E.
        || (a == 100 && b & 0xc0 == 64)
        || a >= 240
}

/// The IPv4 address behind NAT64 (RFC 6052) and 6to4 (RFC 3056) ones.
fn embedded_v4(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let octets = ip.octets();
    match octets {
        [0x00, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] => Some([a, b, c, d].into()),
        [0x20, 0x02, a, b, c, d, ..] => Some([a, b, c, d].into()),
        _ => None,
    }
}

async fn dial_unix(active: &Active, path: &Path) -> Result<(), Stop> {
    loop {
        match socket::connect_unix(path) {
            Ok(upstream) => {
                active.register(&upstream, UPSTREAM)?;
                return Ok(active.set_upstream(upstream, UPSTREAM)?);
            }
            // The backlog is full, and no edge will tell when it is not: the deadline bounds it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                active.in_time()?;
                tokio::time::sleep(BACKLOG_DELAY).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

async fn dial_one(active: &Active, address: SocketAddr) -> Result<SocketAddr, Stop> {
    let upstream = start(active, address, UPSTREAM)?;
    active.ready(&[UPSTREAM], WRITABLE).await?;
    if active.has(UPSTREAM, FAILED) {
        socket::pending_error(&upstream)?;
    }
    active.set_upstream(upstream, UPSTREAM)?;
    Ok(address)
}

fn start(active: &Active, address: SocketAddr, side: Side) -> io::Result<OwnedFd> {
    let upstream = socket::tcp(address)?;
    socket::connect(&upstream, address)?;
    active.register(&upstream, side)?;
    Ok(upstream)
}

/// Tries the addresses in turn, a new one each time the last has failed or
/// [`ATTEMPT_DELAY`] has passed; the first that connects wins.
async fn dial_any(active: &Active, addresses: &[SocketAddr]) -> Result<SocketAddr, Stop> {
    let mut waiting = addresses.iter().copied().take(ATTEMPTS_MAX).zip(UPSTREAM..);
    let mut attempts: Vec<(Side, SocketAddr, OwnedFd)> = Vec::new();
    let mut last = io::Error::from(io::ErrorKind::NotConnected);
    loop {
        let mut exhausted = false;
        match waiting.next() {
            None => exhausted = true,
            Some((address, side)) => match start(active, address, side) {
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
            active.set_upstream(upstream, side)?;
            return Ok(address);
        }
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_clients_name_may_lead_to_the_public_internet_only() {
        let guarded = |ip: &str| is_guarded(ip.parse().unwrap(), &[]);
        for ip in [
            "127.0.0.1",
            "127.8.9.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "0.1.2.3",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
        ] {
            assert!(guarded(ip), "{ip}");
        }
        for ip in ["8.8.8.8", "172.15.0.1", "100.63.255.255", "2001:4860:4860::8888"] {
            assert!(!guarded(ip), "{ip}");
        }
    }

    #[test]
    fn upstream_allow_lets_its_networks_through_and_no_others() {
        let allow = ["127.0.0.0/8".parse().unwrap()];
        assert!(!is_guarded("127.0.0.1".parse().unwrap(), &allow));
        assert!(!is_guarded("::ffff:127.0.0.1".parse().unwrap(), &allow));
        assert!(is_guarded("10.0.0.1".parse().unwrap(), &allow));
    }
}
