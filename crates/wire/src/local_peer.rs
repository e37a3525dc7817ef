//! The process at the other end of a Unix socket, in the form of a client's address: whatever
//! counts, shares or hands over clients has one form for all of them.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The first 32 bits of such an address. It is a multicast address of one interface: RFC 4291
/// section 2.7 forbids it as a source, and Linux drops such packets, so no peer by TCP has it.
const PREFIX: u32 = 0xff01_0000;

/// The peer that connected to a Unix socket, as the kernel says it (SO_PEERCRED).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPeer {
    /// The user.
    pub uid: u32,
    /// The process that connected; 0 if it is of another PID namespace.
    pub pid: u32,
}

impl LocalPeer {
    /// The address for this peer. The user is in its first half: all processes of a user are one
    /// source, as all addresses of an IPv6 /64 are.
    pub fn address(self) -> SocketAddr {
        let first = u64::from(PREFIX) << 32 | u64::from(self.uid);
        let ip = u128::from(first) << 64 | u128::from(self.pid);
        SocketAddr::new(Ipv6Addr::from_bits(ip).into(), 0)
    }

    /// The peer of such an address.
    pub fn of(ip: IpAddr) -> Option<Self> {
        let IpAddr::V6(ip) = ip else { return None };
        let [first, uid, none, pid] = [96, 64, 32, 0].map(|shift| (ip.to_bits() >> shift) as u32);
        (first == PREFIX && none == 0).then_some(Self { uid, pid })
    }

    /// Reads the text that [`fmt::Display`] writes.
    pub fn read(text: &str) -> Option<Self> {
        let (uid, pid) = text.strip_prefix("unix:uid=")?.split_once(",pid=")?;
        let peer = Self { uid: uid.parse().ok()?, pid: pid.parse().ok()? };
        Some(peer)
    }

    /// The user alone, to count by.
    pub const fn user(self) -> LocalUser {
        LocalUser(self.uid)
    }
}

/// The host of an address: an IPv4 address, or an IPv6 /64, within which a host chooses its
/// addresses freely (RFC 8981). That of a [`LocalPeer`] is its user.
pub fn host_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) >> 64 << 64).into(),
        four @ IpAddr::V4(_) => four,
    }
}

impl fmt::Display for LocalPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix:uid={},pid={}", self.uid, self.pid)
    }
}

/// A user of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalUser(u32);

impl fmt::Display for LocalUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix:uid={}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_peer_comes_back_from_its_address() {
        for (uid, pid) in [(0, 0), (1000, 4242), (u32::MAX, u32::MAX)] {
            let peer = LocalPeer { uid, pid };
            assert_eq!(LocalPeer::of(peer.address().ip()), Some(peer));
            assert_eq!(LocalPeer::read(&peer.to_string()), Some(peer));
        }
        let shown = LocalPeer { uid: 1000, pid: 7 };
        assert_eq!(shown.to_string(), "unix:uid=1000,pid=7");
        assert_eq!(shown.user().to_string(), "unix:uid=1000");
    }

    #[test]
    fn no_other_text_is_a_peers() {
        for text in ["", "unix:/run/a.sock", "unix:uid=1", "unix:uid=,pid=1", "unix:uid=1,pid=x"] {
            assert_eq!(LocalPeer::read(text), None, "{text}");
        }
    }

    #[test]
    fn no_other_address_is_a_peers() {
        for text in ["127.0.0.1", "::1", "ff02::1", "ff01:1::", "2001:db8::1", "::ffff:0.0.0.1"] {
            let ip: IpAddr = text.parse().unwrap_or(Ipv6Addr::LOCALHOST.into());
            assert_eq!(LocalPeer::of(ip), None, "{text}");
        }
    }
}
