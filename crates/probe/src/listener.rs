//! Finds the process of this machine that listens at an address, from /proc.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener};

use eyelet_child::Endpoint;

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
    let fits = eyelet_child::listening().into_iter().filter_map(|(number, endpoint)| {
        let Endpoint::Tcp(bound) = endpoint else { return None };
        let fit = takes(bound.ip(), address.ip()).filter(|_| bound.port() == address.port());
        Some((fit?, number))
    });
    let found: Vec<(Fit, u64)> = fits.collect();
    let best = found.iter().map(|(fit, _)| *fit).max();
    let sockets = found.iter().filter(|(fit, _)| Some(*fit) == best).map(|(_, number)| *number);
    let holders = eyelet_child::holders(&sockets.collect());
    first(holders, eyelet_child::parent)
        .ok_or("no process of this machine, or of this user, listens there; --pid names one")
}

/// True if a process of this machine may answer at this address: it is this machine's, or private,
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

/// Returns one of these processes that none of the others started.
fn first(mut holders: BTreeSet<u32>, parent: impl Fn(u32) -> Option<u32>) -> Option<u32> {
    if holders.len() > 1 {
        holders.remove(&INIT);
    }
    let is_root = |pid: &&u32| parent(**pid).is_none_or(|it| !holders.contains(&it));
    holders.iter().find(is_root).copied()
}

/// The fit of a listening socket to an address. The kernel prefers the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// `[::]`, for an IPv4 address.
    OtherFamily,
    /// `0.0.0.0` or `[::]`, of the same family.
    AnyAddress,
    /// This very address.
    Exact,
}

/// Says how closely the address `bound` of a socket fits connections to `ip`, if it does.
fn takes(bound: IpAddr, ip: IpAddr) -> Option<Fit> {
    let (bound, ip) = (bound.to_canonical(), ip.to_canonical());
    match bound.is_unspecified() {
        _ if bound == ip => Some(Fit::Exact),
        true if bound.is_ipv4() == ip.is_ipv4() => Some(Fit::AnyAddress),
        true if ip.is_ipv4() => Some(Fit::OtherFamily),
        _ => None,
    }
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

    #[test]
    fn addresses_of_both_families_are_compared() {
        for (bound, ip, fit) in [
            ("127.0.0.1", "127.0.0.1", Some(Fit::Exact)),
            ("127.0.0.1", "::ffff:127.0.0.1", Some(Fit::Exact)),
            ("127.0.0.1", "127.0.0.2", None),
            ("0.0.0.0", "127.0.0.1", Some(Fit::AnyAddress)),
            ("0.0.0.0", "::1", None),
            ("::1", "::1", Some(Fit::Exact)),
            ("::1", "::2", None),
            ("::1", "127.0.0.1", None),
            ("::ffff:127.0.0.1", "127.0.0.1", Some(Fit::Exact)),
            ("::", "::1", Some(Fit::AnyAddress)),
            ("::", "127.0.0.1", Some(Fit::OtherFamily)),
        ] {
            assert_eq!(takes(bound.parse().unwrap(), ip.parse().unwrap()), fit, "{bound} {ip}");
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
