//! The addresses of this host, as its interfaces have them now.
//! It must not decide what an address of ours means.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Whether `ip` is an address of this host.
///
/// The kernel is asked by a bind, which it grants for its own addresses only (ip(7), but with
/// net.ipv4.ip_nonlocal_bind, where it grants it for all): no list goes stale. Where it cannot
/// be asked the answer is yes: who asks wants to keep clients out.
pub fn is_local(ip: IpAddr) -> bool {
    match UdpSocket::bind((ip, 0)) {
        Ok(_) => true,
        Err(error) => !matches!(
            error.kind(),
            std::io::ErrorKind::AddrNotAvailable | std::io::ErrorKind::InvalidInput
        ),
    }
}

/// Whether this host has a route to `ip`. Sends nothing: a datagram socket is only told its peer.
pub fn has_route(ip: IpAddr) -> bool {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    UdpSocket::bind((any, 0)).is_ok_and(|socket| socket.connect((ip, DISCARD_PORT)).is_ok())
}

/// The port of the discard service: any would do.
const DISCARD_PORT: u16 = 9;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn there_is_a_route_to_ourselves() {
        assert!(has_route("127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn loopback_is_ours_and_a_documentation_address_is_not() {
        assert!(is_local("127.0.0.1".parse().unwrap()));
        assert!(!is_local("192.0.2.1".parse().unwrap()));
    }
}
