//! The addresses that `run`, `proxy` and `demo` listen on: the first free ones of those that people
//! expect.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use crate::listen::ListenError;

/// The ports of https and http, and the ones of users without the right to those.
pub(super) const HTTPS: [u16; 2] = [443, 8443];
const HTTP: [u16; 2] = [80, 8080];
/// How many ports from 8443 and from 8080 on are tried.
const TRIES: u16 = 20;

/// Where to listen.
pub(super) struct Ports {
    pub(super) https: Vec<SocketAddr>,
    /// Plain requests to these are redirected. Empty: none.
    pub(super) http: Vec<SocketAddr>,
}

impl Ports {
    /// `listen`, or free ports that fit the names. `say` is called for a port that is taken.
    pub(super) fn choose(
        listen: Option<SocketAddr>,
        names: &[&str],
        mut say: impl FnMut(&str),
    ) -> Result<Self, ListenError> {
        if let Some(address) = listen {
            return Ok(Self { https: vec![address], http: Vec::new() });
        }
        let is_local =
            names.iter().all(|name| *name == "localhost" || name.ends_with(".localhost"));
        let ips: [IpAddr; 2] = match is_local {
            true => [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            false => [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
        };
        let https = first_free(&ips, &HTTPS, &mut say)?;
        // Plain http is for convenience: nobody is told about a port that is not to be had.
        let first = https.first().map_or(0, SocketAddr::port);
        let plain = if first == HTTPS[0] { &HTTP[..1] } else { &HTTP[1..] };
        let http = first_free(&ips, plain, &mut |_: &str| ()).unwrap_or_default();
        Ok(Self { https, http })
    }
}

/// The first of these ports, or of those that follow the last one, that is free on all addresses.
pub(crate) fn first_free(
    ips: &[IpAddr],
    ports: &[u16],
    say: &mut impl FnMut(&str),
) -> Result<Vec<SocketAddr>, ListenError> {
    let (last_port, first) = (ports.last().copied().unwrap_or(0), ports.first());
    let next = if last_port < 1024 { 0 } else { TRIES };
    let tried = ports.iter().copied().chain((last_port..).skip(1).take(next.into()));
    let (mut taken, mut failed) = (None, io::Error::from(io::ErrorKind::AddrInUse));
    for port in tried {
        match bound(ips, port) {
            Ok(bound) => {
                if let Some(taken) = taken {
                    say(&format!("port {taken} is taken; listening on {port}"));
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

/// The port that the application is to have, if nobody listens on it.
pub(super) fn check_free(port: u16) -> Result<u16, ListenError> {
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    let bound = TcpListener::bind(address);
    bound.map(|_| port).map_err(|error| ListenError { address: address.into(), error })
}
