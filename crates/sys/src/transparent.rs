//! Sockets of intercepted connections: their original destinations, and sockets bound to addresses
//! of other hosts.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::sockopt;

/// The destination of a connection before REDIRECT or DNAT (netfilter), as connection tracking
/// knows it. `listener` tells the address family. An error if the connection is not tracked; the
/// socket's own address if it was not redirected.
pub fn original_destination(fd: impl AsFd, listener: IpAddr) -> io::Result<SocketAddr> {
    Ok(match listener {
        IpAddr::V4(_) => sockopt::ip_original_dst(fd)?.into(),
        IpAddr::V6(_) => sockopt::ipv6_original_dst(fd)?.into(),
    })
}

/// Lets a socket accept connections to addresses of other hosts, or be bound to one.
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
/// The port is chosen at connect, so one address has 28,000 ports for each destination.
///
/// # Errors
/// As for [`set_transparent`], and if socket and address are of different families.
pub fn bind_to_client(fd: impl AsFd, client: IpAddr) -> io::Result<()> {
    let fd = fd.as_fd();
    set_transparent(fd, client.is_ipv6())?;
    set_flag(fd, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT)?;
    Ok(rustix::net::bind(fd, &SocketAddr::new(client, 0))?)
}

/// Binds a new TCP socket to an address of this host. The port is chosen at connect, so that the
/// address has all local ports for each destination (ip(7), IP_BIND_ADDRESS_NO_PORT).
///
/// # Errors
/// `AddrNotAvailable` if it is no address of this host; and if socket and address are of different
/// families.
pub fn bind_to_source(fd: impl AsFd, source: IpAddr) -> io::Result<()> {
    let fd = fd.as_fd();
    set_flag(fd, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT)?;
    Ok(rustix::net::bind(fd, &SocketAddr::new(source, 0))?)
}

fn set_flag(fd: impl AsFd, level: libc::c_int, option: libc::c_int) -> io::Result<()> {
    set_option(fd, level, option, 1)
}

/// Sets an option of a socket that is an integer.
pub(crate) fn set_option(
    fd: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the descriptor is borrowed and thus open, and the kernel reads `len` bytes of an
    // integer of just that size before it returns; it keeps no pointer.
    let result = unsafe {
        libc::setsockopt(fd.as_fd().as_raw_fd(), level, option, (&raw const value).cast(), len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Root may set it, another user may not. A broken call would give another error.
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
