//! UDP sockets that do not block: those that clients ask, and those connected to upstreams. Reading
//! and writing them in batches is the library's (`quinn-udp`).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendFlags, SocketType, sockopt};

use crate::socket::{FLAGS, family};
use crate::transparent::set_option;

/// Bytes of a listening socket's receive buffer. It holds what comes while its worker does other
/// things for 10 ms at 3 Gbit/s. The kernel caps it at `net.core.rmem_max`.
const LISTENER_BUFFER_BYTES: usize = 4 << 20;

/// A UDP socket bound to `address`, of this IP version alone. Several share the port
/// (SO_REUSEPORT): the kernel chooses one by both addresses of a datagram. With `transparent` it
/// also receives what TPROXY delivers for other hosts, and may answer from their addresses.
///
/// # Errors
/// The kernel's.
pub fn bind_shared(address: SocketAddr, transparent: bool) -> io::Result<OwnedFd> {
    let fd = rustix::net::socket_with(family(address.ip()), SocketType::DGRAM, FLAGS, None)?;
    sockopt::set_socket_reuseport(&fd, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    if transparent {
        crate::transparent::set_transparent(&fd, address.is_ipv6())?;
    }
    // Smaller, it drops more; nothing is wrong.
    let _ = sockopt::set_socket_recv_buffer_size(&fd, LISTENER_BUFFER_BYTES);
    rustix::net::bind(&fd, &address)?;
    Ok(fd)
}

/// A UDP socket that sends to `to` and receives from there only. An ICMP error that says that
/// nobody listens there ends its next call with `ConnectionRefused`. It sends from `source`, if
/// there is one, which may be an address of another host.
///
/// # Errors
/// The kernel's.
pub fn connect(to: SocketAddr, source: Option<IpAddr>) -> io::Result<OwnedFd> {
    let fd = rustix::net::socket_with(family(to.ip()), SocketType::DGRAM, FLAGS, None)?;
    if let Some(source) = source {
        crate::transparent::bind_to_client(&fd, source)?;
    }
    prepare_connected(&fd, to.is_ipv6())?;
    rustix::net::connect(&fd, &to)?;
    Ok(fd)
}

/// Has the kernel tell ECN, give several datagrams at once (UDP_GRO) and never cut one
/// (IP_PMTUDISC_PROBE). The library would also ask for addresses and times, which each datagram
/// then pays for: this socket's are known, and nobody reads the times.
fn prepare_connected(fd: &OwnedFd, is_ipv6: bool) -> io::Result<()> {
    set_option(fd, libc::SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
    if is_ipv6 {
        set_option(fd, libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
        set_option(fd, libc::SOL_IPV6, libc::IPV6_DONTFRAG, 1)?;
        set_option(fd, libc::SOL_IPV6, libc::IPV6_RECVTCLASS, 1)?;
    } else {
        set_option(fd, libc::SOL_IP, libc::IP_RECVTOS, 1)?;
    }
    // Without it each datagram comes alone (before Linux 5.0).
    let _ = set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
    Ok(())
}

/// Sends one datagram on a connected socket.
///
/// # Errors
/// The kernel's.
pub fn send(socket: impl AsFd, datagram: &[u8]) -> io::Result<()> {
    rustix::net::send(socket, datagram, SendFlags::empty())?;
    Ok(())
}

/// The address that a UDP socket is connected to.
///
/// # Errors
/// It is another kind of socket, or not connected.
pub fn peer(socket: impl AsFd) -> io::Result<SocketAddr> {
    if sockopt::socket_protocol(&socket)? != Some(rustix::net::ipproto::UDP) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let peer = rustix::net::getpeername(socket)?.and_then(|peer| SocketAddr::try_from(peer).ok());
    peer.ok_or_else(|| io::ErrorKind::NotConnected.into())
}

/// The number that the kernel gives to an open socket. It is the same in all processes.
///
/// # Errors
/// It is no socket.
pub fn cookie(socket: impl AsFd) -> io::Result<u64> {
    Ok(sockopt::socket_cookie(socket)?)
}

/// A descriptor that is never ready. It stands where a connection has its client's socket, while
/// the client's datagrams come by a socket that many clients share.
///
/// # Errors
/// The kernel's.
pub fn never_ready() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::UdpSocket;

    use super::*;
    use crate::epoll::{Epoll, Events};
    use crate::socket::local_address;

    #[test]
    fn two_sockets_share_a_port_and_each_client_has_one() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let one = bind_shared(address.parse().unwrap(), false).unwrap();
            let at = local_address(&one).unwrap();
            let sockets = [one, bind_shared(at, false).unwrap()].map(UdpSocket::from);
            let mut received = [0; 2];
            for _ in 0..64 {
                let client = UdpSocket::bind(address).unwrap();
                client.send_to(b"a", at).unwrap();
                client.send_to(b"b", at).unwrap();
                let counts = sockets
                    .each_ref()
                    .map(|socket| (0..3).filter(|_| socket.recv_from(&mut [0; 8]).is_ok()).count());
                assert!(counts == [2, 0] || counts == [0, 2], "{counts:?}");
                received = [received[0] + counts[0], received[1] + counts[1]];
            }
            assert!(received.iter().all(|count| *count > 0), "{received:?}");
        }
    }

    #[test]
    fn a_connected_socket_hears_of_its_peer_alone() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = server.local_addr().unwrap();
        let socket = UdpSocket::from(connect(at, None).unwrap());
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        server.send_to(b"y", socket.local_addr().unwrap()).unwrap();
        let mut byte = [0; 8];
        assert_eq!(socket.recv(&mut byte).unwrap(), 1);
        assert_eq!(byte[0], b'y');
        drop(server);
        socket.send(b"z").unwrap();
        let refused = socket.recv(&mut byte).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_socket_is_known_in_all_processes() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = server.local_addr().unwrap();
        let socket = connect(at, None).unwrap();
        let copy = socket.try_clone().unwrap();
        assert_eq!(peer(&copy).unwrap(), at);
        assert_eq!(cookie(&socket).unwrap(), cookie(&copy).unwrap());
        assert_ne!(cookie(&socket).unwrap(), cookie(&server).unwrap());
        let stream = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(stream.local_addr().unwrap()).unwrap();
        for other in [server.into(), stream.into(), never_ready().unwrap()] {
            let other: OwnedFd = other;
            assert!(peer(&other).is_err());
        }
        assert!(cookie(never_ready().unwrap()).is_err());
    }

    #[test]
    fn what_is_never_ready_can_be_registered() {
        let (epoll, never) = (Epoll::new().unwrap(), never_ready().unwrap());
        epoll.add_stream(&never, 1, false).unwrap();
        let mut events = Events::with_capacity(4);
        epoll.poll(&mut events).unwrap();
        assert!(events.is_empty());
    }
}
