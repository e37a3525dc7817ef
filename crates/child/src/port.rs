//! A free port for an application: one that no outgoing connection can take before it.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// The lowest port that is tried: below are ports that people choose.
const PORT_MIN: u16 = 20_000;
/// The kernel's range of ports for outgoing connections, if it does not tell (ip-sysctl).
const OUTGOING_MIN: u16 = 32_768;
/// Ports that are tried: more taken ones in a row mean that all are.
const TRIES: u16 = 100;

/// A port that nobody listens on, below those of outgoing connections. Any connection of this
/// machine could take one of those before the application does. And a dial to such a port, while
/// nobody listens there, may choose it as its own source and so connect to itself.
///
/// # Errors
/// If none can be bound.
pub fn free_port() -> io::Result<u16> {
    let outgoing = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    let lowest = outgoing.as_deref().and_then(|range| range.split_whitespace().next());
    let end = lowest.and_then(|lowest| lowest.parse().ok()).unwrap_or(OUTGOING_MIN);
    let count = u16::saturating_sub(end, PORT_MIN);
    if count > 0 {
        // Two of them that start together shall not try the same ports.
        let start = (RandomState::new().hash_one(std::process::id()) % u64::from(count)) as u16;
        let tried = (0..TRIES.min(count)).map(|n| PORT_MIN + start.wrapping_add(n) % count);
        if let Some(port) = tried.into_iter().find(|port| bind(*port).is_ok()) {
            return Ok(port);
        }
    }
    bind(0)
}

fn bind(port: u16) -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_can_be_bound() -> io::Result<()> {
        let port = free_port()?;
        let held = bind(port)?;
        assert_eq!(port, held);
        assert_ne!(port, 0);
        Ok(())
    }
}
