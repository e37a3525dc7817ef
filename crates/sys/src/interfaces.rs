//! The addresses of this host, its routes, and the number of its local ports.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::ops::RangeInclusive;

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

/// The number of local ports for one source and one destination (ip(7), `ip_local_port_range`),
/// without those that are reserved. `None`: the kernel cannot be asked.
pub fn local_ports() -> Option<usize> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let reserved = fs::read_to_string("/proc/sys/net/ipv4/ip_local_reserved_ports").ok()?;
    count(&range, &reserved)
}

fn count(range: &str, reserved: &str) -> Option<usize> {
    let mut ends = range.split_whitespace().map(str::parse::<u16>);
    let range = ends.next()?.ok()?..=ends.next()?.ok()?;
    let mut all = size(&range);
    for part in reserved.trim().split(',').filter(|part| !part.is_empty()) {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (low, high) = (low.trim().parse::<u16>().ok()?, high.trim().parse::<u16>().ok()?);
        all -= size(&(low.max(*range.start())..=high.min(*range.end()))).min(all);
    }
    Some(all)
}

fn size(range: &RangeInclusive<u16>) -> usize {
    (usize::from(*range.end()) + 1).saturating_sub(range.start().to_owned().into())
}

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

    #[test]
    fn reserved_ports_are_no_local_ports() {
        for (range, reserved, expected) in [
            ("32768\t60999\n", "\n", Some(28_232)),
            ("1024 2023\n", "", Some(1_000)),
            ("1024 2023\n", "80,1024,1030-1039,2020-3000\n", Some(985)),
            ("1024 65535\n", "1024-65535\n", Some(0)),
            ("1024\n", "", None),
            ("", "", None),
            ("a b\n", "", None),
            ("1024 2023\n", "x\n", None),
            ("1024 99999\n", "", None),
        ] {
            assert_eq!(count(range, reserved), expected, "{range:?} {reserved:?}");
        }
        assert!(local_ports().is_some_and(|ports| ports > 0));
    }
}
