//! Sockets that are told of TCP connections which the kernel of this network namespace refuses,
//! because nobody listens at their port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{self, AddressFamily, RecvFlags, SocketFlags, SocketType, eth};

/// The protocol TCP in a header of IP.
const TCP: u8 = 6;
/// The flags of the answer to a first segment at a closed port, whose number is zero (RFC 9293
/// section 3.10.7.1): RST and ACK.
const REFUSES: u8 = 0x14;
/// Bytes of the fixed header of IPv6. The kernel adds none.
const V6_BYTES: usize = 40;
/// Bytes of a packet that are read: the longest header of IPv4, and one of TCP.
const PACKET_BYTES: usize = 80;

/// Bytes that wait to be read: some thousand refusals, of which the kernel counts all that is
/// allocated for them.
const BUFFER_BYTES: usize = 4 << 20;

/// Opens one for each version of IP. This process must have the right to see its namespace's
/// packets.
///
/// # Errors
/// The kernel's: it may have been built without such sockets.
pub fn open() -> io::Result<[OwnedFd; 2]> {
    let [v4, v6] = [(eth::IP, &OF_V4[..]), (eth::IPV6, &OF_V6[..])].map(|(protocol, filter)| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::DGRAM;
        let socket = net::socket_with(AddressFamily::PACKET, kind, flags, Some(protocol))?;
        attach(&socket, filter)?;
        // The kernel has a most, and takes what is above for that.
        let _ = net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES);
        io::Result::Ok(socket)
    });
    Ok([v4?, v6?])
}

/// The place of the next connection that was refused. `None`: there are no more for now.
pub fn next(socket: impl AsFd) -> Option<SocketAddr> {
    loop {
        let mut packet = [0; PACKET_BYTES];
        let received = net::recv(&socket, &mut packet, RecvFlags::DONTWAIT);
        let (_, len) = match received {
            Ok(received) => received,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return None,
        };
        if let Some(place) = packet.get(..len).and_then(refused) {
            return Some(place);
        }
    }
}

/// The place of a refusal that is in a packet: it is the packet's sender.
fn refused(packet: &[u8]) -> Option<SocketAddr> {
    let (ip, tcp): (IpAddr, &[u8]) = match packet.first()? >> 4 {
        4 => {
            let address: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
            let header = usize::from(packet.first()? & 0xf) * 4;
            (Ipv4Addr::from(address).into(), packet.get(header..)?)
        }
        6 => {
            let address: [u8; 16] = packet.get(8..24)?.try_into().ok()?;
            (Ipv6Addr::from(address).into(), packet.get(V6_BYTES..)?)
        }
        _ => return None,
    };
    let port = u16::from_be_bytes(tcp.get(..2)?.try_into().ok()?);
    Some(SocketAddr::new(ip, port))
}

/// Loads the byte at a place. This and what follows are the steps of a filter (linux/filter.h).
const fn byte(at: u32) -> libc::sock_filter {
    step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, at, (0, 0))
}

/// Loads four bytes at a place.
const fn four(at: u32) -> libc::sock_filter {
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, (0, 0))
}

/// Loads the byte at a place behind the header of IPv4.
const fn byte_behind(at: u32) -> libc::sock_filter {
    step(libc::BPF_LD | libc::BPF_B | libc::BPF_IND, at, (0, 0))
}

/// Loads four bytes at a place behind the header of IPv4.
const fn four_behind(at: u32) -> libc::sock_filter {
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_IND, at, (0, 0))
}

/// Takes the length of the header of IPv4.
const fn header_of_v4() -> libc::sock_filter {
    step(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, (0, 0))
}

/// Compares what was loaded. `skips` are the steps to skip if it is equal, and if not.
const fn is(value: u32, skips: (u8, u8)) -> libc::sock_filter {
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, skips)
}

/// Ends, and passes so many bytes of the packet on. None: it is dropped.
const fn end(bytes: usize) -> libc::sock_filter {
    step(libc::BPF_RET | libc::BPF_K, bytes as u32, (0, 0))
}

const fn step(code: u32, k: u32, (jt, jf): (u8, u8)) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// The filter for IPv4: refusals that do not come from loopback, where the command's own programs
/// look for each other.
const OF_V4: [libc::sock_filter; 11] = [
    byte(9),
    is(TCP as u32, (0, 8)),
    header_of_v4(),
    byte_behind(13),
    is(REFUSES as u32, (0, 5)),
    four_behind(4),
    is(0, (0, 3)),
    byte(12),
    is(127, (1, 0)),
    end(PACKET_BYTES),
    end(0),
];

/// The filter for IPv6, in which the sender `::1` is compared by four bytes at a time.
const OF_V6: [libc::sock_filter; 16] = [
    byte(6),
    is(TCP as u32, (0, 13)),
    byte(V6_BYTES as u32 + 13),
    is(REFUSES as u32, (0, 11)),
    four(V6_BYTES as u32 + 4),
    is(0, (0, 9)),
    four(8),
    is(0, (0, 6)),
    four(12),
    is(0, (0, 4)),
    four(16),
    is(0, (0, 2)),
    four(20),
    is(1, (1, 0)),
    end(PACKET_BYTES),
    end(0),
];

/// Lets a socket have the packets only that this filter takes.
fn attach(socket: &OwnedFd, filter: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(io::Error::other)?,
        filter: filter.as_ptr().cast_mut(),
    };
    let len = size_of_val(&program) as libc::socklen_t;
    // SAFETY: the descriptor is borrowed and thus open. The kernel reads `len` bytes of the program
    // and as many steps as that says, all of which live until it returns; it copies them, writes to
    // none, and keeps no pointer.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            len,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_of_a_refusal_is_its_place() {
        let tcp = [&[0, 22, 0x90, 0][..], &[0; 16]].concat();
        let v4 = [&[0x46; 1][..], &[0; 11], &[192, 0, 2, 1], &[0; 8], &tcp].concat();
        assert_eq!(refused(&v4), Some(([192, 0, 2, 1], 22).into()));
        let mut v6 = [&[0x60; 1][..], &[0; 39], &tcp].concat();
        v6[8..24].copy_from_slice(&Ipv6Addr::LOCALHOST.octets());
        assert_eq!(refused(&v6), Some((Ipv6Addr::LOCALHOST, 22).into()));
        for len in 0..v6.len().min(V6_BYTES + 2) {
            assert_eq!(refused(&v6[..len]), None, "{len}");
        }
        assert_eq!(refused(&[0x4f; 61]), None);
        assert_eq!(refused(&[0; 80]), None);
    }

    /// Sockets of the Unix domain take filters, too, and their datagrams may be any packets.
    #[test]
    fn the_filters_take_refusals_of_others_than_loopback() {
        let [v4, v6] = [&OF_V4[..], &OF_V6[..]].map(|filter| {
            let (sender, receiver) = std::os::unix::net::UnixDatagram::pair().unwrap();
            receiver.set_nonblocking(true).unwrap();
            let receiver = OwnedFd::from(receiver);
            attach(&receiver, filter).unwrap();
            (sender, receiver)
        });
        let packet = |from: IpAddr, protocol: u8, number: u8, flags: u8| {
            let tcp = [&[0, 22, 0, 9, 0, 0, 0, number, 0, 0, 0, 1, 0x50, flags][..], &[0; 6]];
            let ip = match from {
                IpAddr::V4(from) => {
                    let fixed = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0];
                    [&fixed[..], &from.octets(), &[192, 0, 2, 9]].concat()
                }
                IpAddr::V6(from) => {
                    let fixed = [0x60, 0, 0, 0, 0, 20, protocol, 64];
                    [&fixed[..], &from.octets(), &[0x20; 16]].concat()
                }
            };
            [ip, tcp.concat()].concat()
        };
        for (from, is_taken) in [
            ("192.0.2.1", true),
            ("126.0.0.1", true),
            ("127.0.0.1", false),
            ("127.9.0.1", false),
            ("2001:db8::1", true),
            ("::2", true),
            ("::", true),
            ("::1:0:1", true),
            ("0:1::1", true),
            ("fe80::1", true),
            ("::1", false),
        ] {
            let from: IpAddr = from.parse().unwrap();
            let (sender, receiver) = if from.is_ipv4() { &v4 } else { &v6 };
            for other in [(17, 0, REFUSES), (TCP, 1, REFUSES), (TCP, 0, 4)] {
                sender.send(&packet(from, other.0, other.1, other.2)).unwrap();
            }
            sender.send(&packet(from, TCP, 0, REFUSES)).unwrap();
            assert_eq!(next(receiver), is_taken.then_some((from, 22).into()), "{from}");
            assert_eq!(next(receiver), None, "{from}");
        }
    }
}
