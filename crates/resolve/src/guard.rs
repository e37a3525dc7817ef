//! Addresses that a client, or who names a destination in a PROXY header, may not make us dial:
//! internal ones, and our own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use eyelet_sys::interfaces;
use ipnet::IpNet;

/// True if a client's name must not lead to this address: one that is not on the public Internet,
/// or our own.
pub fn is_guarded(ip: IpAddr, allow: &[IpNet]) -> bool {
    let ip = ip.to_canonical();
    let guarded = is_special(ip) || interfaces::is_local(ip);
    guarded && !allow.iter().any(|net| net.contains(&ip))
}

/// Returns the reason why a client's name must not lead to an address.
pub fn fault(ip: IpAddr) -> String {
    format!("{ip} is an internal address that upstream_allow does not list")
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
                    || is_special_v6(ip)
            }
        },
    }
}

/// Azure's host, which has credentials and DNS for the virtual machine that asks. It is a public
/// address that leads nowhere else. Other clouds have such hosts at link-local, shared (RFC 6598)
/// or unique local addresses.
const AZURE_HOST: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

fn is_special_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    ip.is_loopback()
        || ip.is_private()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_broadcast()
        || a == 0
        // Shared address space (RFC 6598), IETF protocol assignments (RFC 6890), benchmarking
        // (RFC 2544), documentation (RFC 5737), 6to4 relays (RFC 7526), and the reserved class E.
        || (a == 100 && b & 0xc0 == 64)
        || matches!((a, b, c), (192, 0, 0 | 2) | (198, 18 | 19, _))
        || matches!((a, b, c), (198, 51, 100) | (203, 0, 113) | (192, 88, 99))
        || a >= 240
        || ip == AZURE_HOST
}

/// Other addresses that are not on the public Internet: IPv4-compatible (RFC 4291), IPv4-translated
/// (RFC 2765: `::ffff:0:a.b.c.d`), local NAT64 (RFC 8215), discard (RFC 6666), Teredo (RFC 4380),
/// benchmarking (RFC 5180), documentation (RFC 3849 and 9637), segment routing (RFC 9602) and
/// site-local ones (RFC 3879).
fn is_special_v6(ip: Ipv6Addr) -> bool {
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => true,
        [0x64, 0xff9b, 1, ..] | [0x100, 0, 0, 0, ..] => true,
        [0x2001, 0 | 0xdb8, ..] | [0x2001, 2, 0, ..] | [0x3fff, 0..=0xfff, ..] => true,
        [0x5f00, ..] => true,
        [first, ..] => first & 0xffc0 == 0xfec0,
    }
}

/// The IPv4 address inside a NAT64 (RFC 6052) or 6to4 (RFC 3056) address.
fn embedded_v4(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let octets = ip.octets();
    match octets {
        [0x00, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] => Some([a, b, c, d].into()),
        [0x20, 0x02, a, b, c, d, ..] => Some([a, b, c, d].into()),
        _ => None,
    }
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
            "192.0.0.192",
            "198.18.0.1",
            "203.0.113.9",
            "fec0::1",
            "64:ff9b:1::a9fe:a9fe",
            "2001:db8::1",
            "::7f00:1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "192.88.99.1",
            "168.63.129.16",
            "::ffff:168.63.129.16",
            "100.100.100.200",
            "fd00:ec2::254",
            "::ffff:0.0.0.0",
            "::ffff:169.254.169.254",
            "64:ff9b::",
            "2002:a00:1::",
            "::ffff:0:8.8.8.8",
            "::ffff:0:7f00:1",
            "2001:2::1",
            "3fff::1",
            "3fff:fff::1",
            "5f00::1",
        ] {
            assert!(guarded(ip), "{ip}");
        }
        for ip in [
            "8.8.8.8",
            "172.15.0.1",
            "100.63.255.255",
            "192.88.98.1",
            "168.63.129.17",
            "2001:4860:4860::8888",
            "2001:2:1::1",
            "3fff:1000::1",
            "5eff::1",
        ] {
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
