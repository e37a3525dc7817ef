//! Which addresses belong to this host, and where it has routes to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// True if `ip` is an address of this host.
///
/// The kernel answers by a bind, which works for its own addresses only (ip(7)), unless
/// net.ipv4.ip_nonlocal_bind allows all. So no list can be stale. If the kernel cannot be asked,
/// the answer is yes, because callers want to keep clients away from our addresses.
pub fn is_local(ip: IpAddr) -> bool {
    match UdpSocket::bind((ip, 0)) {
        Ok(_) => true,
        Err(error) => !matches!(
            error.kind(),
            std::io::ErrorKind::AddrNotAvailable | std::io::ErrorKind::InvalidInput
        ),
    }
}

/// True if this host has a route to `ip`. Sends nothing: connecting a datagram socket only sets its
/// peer.
pub fn has_route(ip: IpAddr) -> bool {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    UdpSocket::bind((any, 0)).is_ok_and(|socket| socket.connect((ip, DISCARD_PORT)).is_ok())
}

/// The address from which this host dials others of its network: that of its default route. Sends
/// nothing, as [`has_route`].
pub fn own_address() -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((ELSEWHERE, DISCARD_PORT)).ok()?;
    match socket.local_addr().ok()?.ip() {
        IpAddr::V4(ip) if !ip.is_unspecified() && !ip.is_loopback() => Some(ip),
        _ => None,
    }
}

/// An address of no machine (RFC 5737).
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The discard service's port; any other would do.
const DISCARD_PORT: u16 = 9;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn there_is_a_route_to_this_host() {
        assert!(has_route("127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn loopback_is_local_and_a_documentation_address_is_not() {
        assert!(is_local("127.0.0.1".parse().unwrap()));
        assert!(!is_local("192.0.2.1".parse().unwrap()));
    }
}
