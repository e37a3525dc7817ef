//! Which process of this machine listens at an address, from /proc.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use crate::procfs;

/// The state of a listening socket in /proc/net/tcp (TCP_LISTEN).
const TCP_LISTEN: &str = "0A";

/// The process that starts all others. By socket activation it holds their listening sockets.
const INIT: u32 = 1;

/// The process that listens at this address: of several, the one that started the others.
///
/// # Errors
/// Why there is none.
pub fn process(address: SocketAddr) -> Result<u32, &'static str> {
    if !is_of_this_machine(address) {
        return Err("the address is not one of this machine; --pid names a process");
    }
    let found: Vec<(Fit, String)> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| sockets(&table, address))
        .collect();
    let best = found.iter().map(|(fit, _)| *fit).max();
    let sockets = found.into_iter().filter(|(fit, _)| Some(*fit) == best).map(|(_, name)| name);
    let sockets: BTreeSet<String> = sockets.collect();
    let holders = procfs::processes().filter(|pid| holds(*pid, &sockets)).collect();
    first(holders, procfs::parent)
        .ok_or("no process of this machine, or of this user, listens there; --pid names one")
}

/// Whether a process of this machine may answer at this address: it is this machine's, or private,
/// such as a container's. Another machine of the own network may have a private one, too; nobody
/// on the internet has one (RFC 1918, RFC 4193).
pub fn may_be_served_here(address: SocketAddr) -> bool {
    let is_private = match address.ip().to_canonical() {
        IpAddr::V4(ip) => ip.is_private(),
        IpAddr::V6(ip) => ip.is_unique_local(),
    };
    is_private || is_of_this_machine(address)
}

/// A local listener may have a stranger's port. Only an address of this machine can be bound.
fn is_of_this_machine(address: SocketAddr) -> bool {
    let mut any_port = address;
    any_port.set_port(0);
    TcpListener::bind(any_port).is_ok()
}

/// Of these processes, one that none of the others started.
fn first(mut holders: BTreeSet<u32>, parent: impl Fn(u32) -> Option<u32>) -> Option<u32> {
    if holders.len() > 1 {
        holders.remove(&INIT);
    }
    let is_root = |pid: &&u32| parent(**pid).is_none_or(|it| !holders.contains(&it));
    holders.iter().find(is_root).copied()
}

/// The listening sockets of a table that take connections to this address, as links name them.
fn sockets(table: &str, address: SocketAddr) -> Vec<(Fit, String)> {
    let port = format!(":{:04X}", address.port());
    let socket = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next()?.strip_suffix(&port)?;
        let listens = fields.nth(1)? == TCP_LISTEN;
        let fit = takes(local, address.ip()).filter(|_| listens)?;
        fields.nth(5).map(|number| (fit, format!("socket:[{number}]")))
    };
    table.lines().filter_map(socket).collect()
}

/// How well a listening socket fits an address. The kernel prefers the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// `[::]`, for an IPv4 address.
    OtherFamily,
    /// `0.0.0.0` or `[::]`, of the same family.
    AnyAddress,
    /// This very address.
    Exact,
}

/// Whether, and how well, a socket at this local address takes connections to `ip`.
fn takes(local: &str, ip: IpAddr) -> Option<Fit> {
    let ip = ip.to_canonical();
    let found = listens_at(local)?;
    match found.is_unspecified() {
        _ if found == ip => Some(Fit::Exact),
        true if found.is_ipv4() == ip.is_ipv4() => Some(Fit::AnyAddress),
        true if ip.is_ipv4() => Some(Fit::OtherFamily),
        _ => None,
    }
}

/// An address of /proc/net/tcp or tcp6: words of 32 bits, in the byte order of the machine.
fn listens_at(local: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = local.get(at * 8..at * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    match local.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let bytes = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            let bytes = <[u8; 16]>::try_from(bytes).ok()?;
            Some(IpAddr::from(Ipv6Addr::from(bytes)).to_canonical())
        }
        _ => None,
    }
}

fn holds(pid: u32, sockets: &BTreeSet<String>) -> bool {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut names = links.filter_map(|link| fs::read_link(link.path()).ok());
    names.any(|name| name.to_str().is_some_and(|name| sockets.contains(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(process(address), Ok(std::process::id()));
        drop(listener);
        assert!(process(address).is_err());
    }

    /// 192.0.2.1 and 2001:db8::1 are for documentation (RFC 5737, RFC 3849).
    #[test]
    fn a_listener_here_is_not_the_server_of_a_stranger() {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        for stranger in ["192.0.2.1", "2001:db8::1"] {
            let found = process(SocketAddr::new(stranger.parse().unwrap(), port));
            assert!(found.is_err_and(|why| why.contains("not one of this machine")), "{stranger}");
        }
    }

    #[test]
    fn containers_have_addresses_of_this_machine_or_private_ones() {
        for (ip, is_near) in [
            ("127.0.0.1", true),
            ("::ffff:127.0.0.1", true),
            ("172.17.0.2", true),
            ("::ffff:192.168.1.2", true),
            ("fd00::2", true),
            ("172.32.0.2", false),
            ("192.0.2.1", false),
            ("2001:db8::1", false),
        ] {
            let address = SocketAddr::new(ip.parse().unwrap(), 443);
            assert_eq!(may_be_served_here(address), is_near, "{ip}");
        }
    }

    /// The words are as a machine of little endian writes them.
    #[test]
    #[cfg(target_endian = "little")]
    fn addresses_of_both_families_are_compared() {
        let loopback = "00000000000000000000000001000000";
        let any = "00000000000000000000000000000000";
        for (local, ip, fit) in [
            ("0100007F", "127.0.0.1", Some(Fit::Exact)),
            ("0100007F", "::ffff:127.0.0.1", Some(Fit::Exact)),
            ("0100007F", "127.0.0.2", None),
            ("00000000", "127.0.0.1", Some(Fit::AnyAddress)),
            ("00000000", "::1", None),
            (loopback, "::1", Some(Fit::Exact)),
            (loopback, "::2", None),
            (loopback, "127.0.0.1", None),
            ("0000000000000000FFFF00000100007F", "127.0.0.1", Some(Fit::Exact)),
            (any, "::1", Some(Fit::AnyAddress)),
            (any, "127.0.0.1", Some(Fit::OtherFamily)),
            ("0100", "127.0.0.1", None),
        ] {
            assert_eq!(takes(local, ip.parse().unwrap()), fit, "{local} {ip}");
        }
    }

    #[test]
    fn process_1_is_left_out_if_another_holds_the_socket() {
        let parent = |pid| Some(if pid == 12 { 11 } else { 1 });
        assert_eq!(first([1, 11, 12].into(), parent), Some(11));
        assert_eq!(first([1].into(), |_| Some(0)), Some(1));
        assert_eq!(first([].into(), parent), None);
    }
}
