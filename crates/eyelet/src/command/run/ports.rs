//! The addresses that `run`, `proxy` and `demo` listen on: the first free ones of those that people
//! expect.

use std::collections::HashSet;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use eyelet_child::Endpoint;
use eyelet_config::is_loopback_name;

use eyelet_edge::snapshot::listen::ListenError;

/// The port of https, and the one of users without the right to that.
pub(crate) const HTTPS: [u16; 2] = [443, 8443];
/// The port of http. It has no second one: few people type 8080 to be redirected, and many
/// applications want it.
const HTTP: u16 = 80;
/// The number of ports from 8443 on that are tried.
const TRIES: u16 = 20;

/// A port that somebody else has, and the one that was chosen instead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenPort {
    pub(crate) taken: u16,
    pub(crate) chosen: u16,
}

impl Display for TakenPort {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "port {} is taken; listening on {}", self.taken, self.chosen)
    }
}

/// The addresses to listen at.
pub(super) struct Ports {
    pub(super) https: Vec<SocketAddr>,
    /// Plain requests to port 80 of these may be redirected. Empty: of none.
    pub(super) http: Vec<IpAddr>,
}

impl Ports {
    /// `listen`, or free ports that fit the names. `kept` are the applications' own. `say` is
    /// called for a port that is taken.
    pub(super) fn choose(
        listen: Option<SocketAddr>,
        names: &[&str],
        kept: &[u16],
        mut say: impl FnMut(TakenPort),
    ) -> Result<Self, ListenError> {
        if let Some(address) = listen {
            return Ok(Self { https: vec![address], http: Vec::new() });
        }
        let ips: [IpAddr; 2] = match names.iter().all(|name| is_loopback_name(name)) {
            true => [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            false => [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
        };
        let https = first_free(&ips, &HTTPS, kept, &mut say)?;
        // https://NAME/ leads to port 443, and so does http://NAME/.
        let redirects = https.first().is_some_and(|first| first.port() == HTTPS[0]);
        let http = if redirects && !kept.contains(&HTTP) { ips.to_vec() } else { Vec::new() };
        Ok(Self { https, http })
    }
}

/// Returns the addresses to listen at when others reach this machine by `ip`: that one, and
/// loopback. Plain requests are not redirected.
pub(super) fn for_network(
    ip: IpAddr,
    kept: &[u16],
    mut say: impl FnMut(TakenPort),
) -> Result<Ports, ListenError> {
    let ips = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), ip];
    Ok(Ports { https: first_free(&ips, &HTTPS, kept, &mut say)?, http: Vec::new() })
}

/// Returns the addresses of plain http for these; none, if the port is taken. Nobody is told then:
/// it is for convenience.
pub(super) fn free_http(ips: &[IpAddr]) -> Vec<SocketAddr> {
    bound(ips, HTTP).unwrap_or_default()
}

/// The port of an upstream of this machine, as the command line has it.
pub(super) fn own_port(upstream: &str) -> Option<u16> {
    let address = upstream.split_once("://").map_or(upstream, |(_, rest)| rest);
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let is_own = match ip {
        Ok(ip) => {
            let all = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
            eyelet_child::takes(all, SocketAddr::new(ip, port))
        }
        Err(_) => is_loopback_name(host),
    };
    is_own.then_some(port)
}

/// The first of these ports, or of those that follow the last one, that is free on all addresses
/// and not among `kept`.
pub(crate) fn first_free(
    ips: &[IpAddr],
    ports: &[u16],
    kept: &[u16],
    say: &mut impl FnMut(TakenPort),
) -> Result<Vec<SocketAddr>, ListenError> {
    let (last_port, first) = (ports.last().copied().unwrap_or(0), ports.first());
    let tried = ports.iter().copied().chain((last_port..).skip(1).take(TRIES.into()));
    let (mut taken, mut failed) = (None, io::Error::from(io::ErrorKind::AddrInUse));
    for port in tried.filter(|port| !kept.contains(port)) {
        match bound(ips, port) {
            Ok(bound) => {
                if let Some(taken) = taken {
                    say(TakenPort { taken, chosen: port });
                }
                return Ok(bound);
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::AddrInUse {
                    taken = taken.or(Some(port));
                }
                failed = error;
            }
        }
    }
    let port = first.copied().unwrap_or(0);
    let ip = ips.first().copied().unwrap_or(Ipv4Addr::LOCALHOST.into());
    Err(ListenError { address: SocketAddr::new(ip, port).into(), error: failed })
}

/// These addresses with a port that is free on all that this machine has.
pub(crate) fn bound(ips: &[IpAddr], port: u16) -> io::Result<Vec<SocketAddr>> {
    let mut bound = Vec::new();
    let mut missing = None;
    for ip in ips {
        let address = SocketAddr::new(*ip, port);
        match TcpListener::bind(address) {
            Ok(_) => bound.push(address),
            // Without IPv6 there is no ::1, and maybe no such socket at all.
            Err(error) if is_absent(&error) => missing = Some(error),
            Err(error) => return Err(error),
        }
    }
    match missing {
        Some(error) if bound.is_empty() => Err(error),
        _ => Ok(bound),
    }
}

fn is_absent(error: &io::Error) -> bool {
    let unsupported = Some(eyelet_sys::Errno::AFNOSUPPORT.raw_os_error());
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == unsupported
}

/// The process that listens on this port.
pub(crate) fn holder(port: u16) -> Option<u32> {
    let is_port = |endpoint: &Endpoint| match endpoint {
        Endpoint::Tcp(address) => {
            let ip = address.ip().to_canonical();
            address.port() == port && (ip.is_unspecified() || ip == IpAddr::from([127, 0, 0, 1]))
        }
        Endpoint::Unix(_) => false,
    };
    let listening = eyelet_child::listening().into_iter();
    let sockets: HashSet<u64> =
        listening.filter(|(_, endpoint)| is_port(endpoint)).map(|(number, _)| number).collect();
    eyelet_child::holders(&sockets).first().copied()
}

/// The port that the application is to have, if nobody listens on it.
pub(super) fn check_free(port: u16) -> Result<u16, String> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Ok(port),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Err(format!("the command's port {port} is taken; `ss -ltnp` shows by whom"))
        }
        Err(error) => Err(format!("the command cannot listen on port {port}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 192.0.2.1 is no machine's (RFC 5737).
    #[test]
    fn ports_of_applications_on_this_machine() {
        for (upstream, expected) in [
            ("127.0.0.1:8080", Some(8080)),
            ("http://127.0.0.2:8080", Some(8080)),
            ("tcp://0.0.0.0:6379", Some(6379)),
            ("https://localhost:8443", Some(8443)),
            ("api.localhost:8443", Some(8443)),
            ("192.0.2.1:8080", None),
            ("app.test:8080", None),
            ("unix:/run/localhost:80", None),
            ("127.0.0.1", None),
        ] {
            assert_eq!(own_port(upstream), expected, "{upstream}");
        }
        if TcpListener::bind("[::1]:0").is_ok() {
            assert_eq!(own_port("http://[::1]:8080"), Some(8080));
        }
    }
}
