//! Sockets of intercepted connections: where a client meant to go, and sockets that take the
//! addresses of others. Knows nothing of how connections came to be intercepted.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::sockopt;

/// Where a connection that was redirected here (REDIRECT or DNAT in netfilter) was meant to go,
/// as connection tracking remembers it: `listener` says of which family. An error where nothing
/// is tracked; the socket's own address where it was not redirected.
pub fn original_destination(fd: impl AsFd, listener: IpAddr) -> io::Result<SocketAddr> {
    Ok(match listener {
        IpAddr::V4(_) => sockopt::ip_original_dst(fd)?.into(),
        IpAddr::V6(_) => sockopt::ipv6_original_dst(fd)?.into(),
    })
}

/// Has a socket accept connections to, or be bound to, addresses that are not this host's.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_ADMIN.
pub fn set_transparent(fd: impl AsFd, is_ipv6: bool) -> io::Result<()> {
    if is_ipv6 {
        set_flag(fd, libc::SOL_IPV6, libc::IPV6_TRANSPARENT)
    } else {
        set_flag(fd, libc::SOL_IP, libc::IP_TRANSPARENT)
    }
}

/// Binds a new TCP socket to `client`, an address of another host, so that the upstream sees it.
/// The port is chosen at connect, so that one address has 28,000 of them for each destination.
///
/// # Errors
/// As for [`set_transparent`], and where socket and address are of different families.
pub fn bind_to_client(fd: impl AsFd, client: IpAddr) -> io::Result<()> {
    let fd = fd.as_fd();
    set_transparent(fd, client.is_ipv6())?;
    set_flag(fd, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT)?;
    Ok(rustix::net::bind(fd, &SocketAddr::new(client, 0))?)
}

fn set_flag(fd: impl AsFd, level: libc::c_int, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    let len = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the descriptor is borrowed and thus open, and the kernel reads `len` bytes of an
    // integer of just that size before it returns; it keeps no pointer.
    let result = unsafe {
        libc::setsockopt(fd.as_fd().as_raw_fd(), level, option, (&raw const on).cast(), len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// As root it is granted, as somebody else it is not; a broken call would be an odd error.
    #[test]
    fn the_option_exists_for_both_families() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let is_ipv6 = listener.local_addr().unwrap().is_ipv6();
            if let Err(error) = set_transparent(&listener, is_ipv6) {
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            }
        }
    }

    #[test]
    fn a_connection_that_was_not_redirected_has_its_own_destination_or_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        let _client = TcpStream::connect(here).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let destination = original_destination(&accepted, here.ip());
        assert!(
            destination.is_ok_and(|d| d == here)
                || original_destination(&accepted, here.ip()).is_err()
        );
    }
}
