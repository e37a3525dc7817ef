//! The addresses of this host, as its interfaces have them now.
//! It must not decide what an address of ours means.

use std::net::{IpAddr, UdpSocket};

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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn loopback_is_ours_and_a_documentation_address_is_not() {
        assert!(is_local("127.0.0.1".parse().unwrap()));
        assert!(!is_local("192.0.2.1".parse().unwrap()));
    }
}
