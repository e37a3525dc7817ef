//! Which process of this machine listens at an address, from /proc.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use crate::procfs;

/// The state of a listening socket in /proc/net/tcp (TCP_LISTEN).
const TCP_LISTEN: &str = "0A";

/// The process that listens at this address: of several, the one that started the others.
pub fn process(address: SocketAddr) -> Option<u32> {
    let sockets: BTreeSet<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| sockets(&table, address))
        .collect();
    let holders: BTreeSet<u32> = procfs::processes().filter(|pid| holds(*pid, &sockets)).collect();
    let is_root = |pid: &&u32| procfs::parent(**pid).is_none_or(|it| !holders.contains(&it));
    holders.iter().find(is_root).copied()
}

/// The listening sockets of a table that take connections to this address, as links name them.
fn sockets(table: &str, address: SocketAddr) -> Vec<String> {
    let port = format!(":{:04X}", address.port());
    let socket = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next()?.strip_suffix(&port)?;
        let listens = fields.nth(1)? == TCP_LISTEN && takes(local, address);
        listens.then(|| fields.nth(5).map(|number| format!("socket:[{number}]")))?
    };
    table.lines().filter_map(socket).collect()
}

/// Whether a socket at this local address takes connections to `address`. Of IPv6 only the port is
/// compared.
fn takes(local: &str, address: SocketAddr) -> bool {
    let four = (local.len() == 8).then(|| u32::from_str_radix(local, 16).ok()).flatten();
    let Some(four) = four.map(|word| Ipv4Addr::from(word.to_ne_bytes())) else { return true };
    four.is_unspecified() || address.ip().to_canonical() == four
}

fn holds(pid: u32, sockets: &BTreeSet<String>) -> bool {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut names = links.filter_map(|link| fs::read_link(link.path()).ok());
    names.any(|name| name.to_str().is_some_and(|name| sockets.contains(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn this_process_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(process(address), Some(std::process::id()));
        drop(listener);
        assert_eq!(process(address), None);
    }
}
