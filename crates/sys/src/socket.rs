//! Non-blocking stream sockets: listen, accept, connect, read, write, close. Errors are the
//! kernel's.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketAddrUnix, SocketFlags,
    SocketType, sockopt,
};

use crate::process::cgroup_of;

pub mod datagram;

pub(crate) const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Options of a listening socket.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// Share the port with other sockets that set this, too (SO_REUSEPORT).
    pub reuse_port: bool,
    /// Idle time after which the kernel probes an accepted connection.
    pub keepalive_idle: Duration,
    /// Accept connections to other hosts that TPROXY delivers here.
    pub transparent: bool,
    /// Accept a connection only when its client has sent something or has been silent for so long
    /// (TCP_DEFER_ACCEPT). Rounded up to the sum of the kernel's retransmission times.
    pub defer: Option<Duration>,
}

/// A socket bound to `address`, not yet listening.
///
/// TCP_NODELAY and SO_KEEPALIVE are set here because accepted sockets inherit them in Linux. This
/// saves two calls a connection.
pub fn bind(address: SocketAddr, how: Listen) -> io::Result<OwnedFd> {
    let family = family(address.ip());
    let fd = rustix::net::socket_with(family, SocketType::STREAM, FLAGS, None)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if how.reuse_port {
        sockopt::set_socket_reuseport(&fd, true)?;
    }
    if address.is_ipv6() {
        // One address family per listener: 0.0.0.0 and [::] may both be configured.
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    if how.transparent {
        crate::transparent::set_transparent(&fd, address.is_ipv6())?;
    }
    sockopt::set_tcp_nodelay(&fd, true)?;
    keepalive(&fd, how.keepalive_idle)?;
    if let Some(silence) = how.defer {
        defer_accept(&fd, silence)?;
    }
    rustix::net::bind(&fd, &address)?;
    Ok(fd)
}

/// A UDP socket bound to `address`, of this IP version alone. It may answer from addresses that are
/// local by a route only.
///
/// # Errors
/// The kernel's.
pub fn bind_udp(address: SocketAddr) -> io::Result<OwnedFd> {
    let fd = rustix::net::socket_with(family(address.ip()), SocketType::DGRAM, FLAGS, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    match address.is_ipv6() {
        true => sockopt::set_ipv6_freebind(&fd, true)?,
        false => sockopt::set_ip_freebind(&fd, true)?,
    }
    rustix::net::bind(&fd, &address)?;
    Ok(fd)
}

/// Sets how long a listener waits for a client that says nothing: see [`Listen::defer`].
pub fn defer_accept(fd: impl AsFd, silence: Duration) -> io::Result<()> {
    let secs = silence.as_secs().max(1).try_into().unwrap_or(libc::c_int::MAX);
    set_option(fd, libc::TCP_DEFER_ACCEPT, secs)
}

/// Starts to listen on a bound socket.
pub fn listen(fd: impl AsFd, backlog: i32) -> io::Result<()> {
    Ok(rustix::net::listen(fd, backlog)?)
}

/// Stops to listen, for all processes that hold the socket: its port refuses connections from now
/// on. Connections in its queue are reset. [`listen`] starts again. A Unix socket could not start
/// again, so it goes on to queue connections until it is closed: see
/// [`crate::socket_file::SocketFile::put_aside`].
pub fn stop_listening(fd: impl AsFd) -> io::Result<()> {
    if sockopt::socket_domain(&fd)? == AddressFamily::UNIX {
        return Ok(());
    }
    Ok(rustix::net::shutdown(fd, Shutdown::Read)?)
}

/// Makes the kernel probe a connection that has been idle for `idle`.
pub fn keepalive(fd: impl AsFd, idle: Duration) -> io::Result<()> {
    let fd = fd.as_fd();
    sockopt::set_socket_keepalive(fd, true)?;
    Ok(sockopt::set_tcp_keepidle(fd, idle)?)
}

/// The peer that connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketPeer {
    /// By TCP, from this address.
    Inet(SocketAddr),
    /// By a Unix socket: the user and the process that connected.
    Local {
        /// The user.
        uid: u32,
        /// The process; 0 if it is of another PID namespace.
        pid: u32,
    },
}

/// Accepts a connection. Returns its socket and its peer.
pub fn accept(listener: impl AsFd) -> io::Result<(OwnedFd, SocketPeer)> {
    let (fd, peer) = rustix::net::acceptfrom_with(listener, FLAGS)?;
    // Linux returns the peer of every accepted TCP socket, even of one that was reset meanwhile.
    let peer = peer_at(&fd, peer)?;
    Ok((fd, peer))
}

/// Returns the peer at the other end of an accepted socket. `None`: it is not connected any more.
pub fn peer(fd: impl AsFd) -> Option<SocketPeer> {
    peer_at(&fd, rustix::net::getpeername(&fd).ok()?).ok()
}

fn peer_at(fd: impl AsFd, address: Option<SocketAddrAny>) -> io::Result<SocketPeer> {
    match address.and_then(inet) {
        Some(address) => Ok(SocketPeer::Inet(address)),
        None => local_peer(fd),
    }
}

/// Returns the peer that connected to a Unix socket. rustix has no value for the process 0 of
/// another namespace.
fn local_peer(fd: impl AsFd) -> io::Result<SocketPeer> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_val(&who) as libc::socklen_t;
    // SAFETY: the descriptor is borrowed and thus open. The kernel writes at most `len` bytes,
    // which is the structure's size, and keeps no pointer.
    let result = unsafe {
        let (who, len) = ((&raw mut who).cast(), &raw mut len);
        let fd = fd.as_fd().as_raw_fd();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, who, len)
    };
    match result {
        0 => Ok(SocketPeer::Local { uid: who.uid, pid: who.pid.cast_unsigned() }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The cgroup of the process that connected to a Unix socket, which has this number. `None`: it has
/// ended, or has none. Linux before 6.5 cannot say if its number is another's by now.
pub fn peer_cgroup(fd: impl AsFd, pid: u32) -> Option<String> {
    let mut process: RawFd = -1;
    let mut len = size_of_val(&process) as libc::socklen_t;
    // SAFETY: the descriptor is borrowed and thus open. The kernel writes at most `len` bytes,
    // which is the number's size, and keeps no pointer.
    let result = unsafe {
        let (process, len) = ((&raw mut process).cast(), &raw mut len);
        let fd = fd.as_fd().as_raw_fd();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERPIDFD, process, len)
    };
    if result != 0 {
        let is_unknown =
            Errno::from_io_error(&io::Error::last_os_error()) == Some(Errno::NOPROTOOPT);
        return if is_unknown { cgroup_of(pid) } else { None };
    }
    // SAFETY: the kernel has just made this descriptor, so nobody else owns it.
    let process = unsafe { OwnedFd::from_raw_fd(process) };
    let cgroup = cgroup_of(pid)?;
    // It is readable once its process has ended (pidfd_open(2)). Before that its number is its own.
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    (poll(&mut ended, Some(&at_once)) == Ok(0)).then_some(cgroup)
}

/// The address of this end.
pub fn local_address(fd: impl AsFd) -> io::Result<SocketAddr> {
    Ok(inet(rustix::net::getsockname(fd)?).ok_or(Errno::AFNOSUPPORT)?)
}

/// True if `descriptor` is, at this moment, a TCP socket of this process from `from` to `to` that
/// has received no byte. The number may be closed by now, or another socket.
pub fn is_fresh_dial(descriptor: RawFd, from: SocketAddr, to: SocketAddr) -> bool {
    is_named(descriptor, libc::getsockname, from)
        && is_named(descriptor, libc::getpeername, to)
        && bytes_received(descriptor) == 0
}

type NameCall =
    unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn is_named(descriptor: RawFd, call: NameCall, name: SocketAddr) -> bool {
    let mut storage = std::mem::MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to a storage of that size, and it writes `len`.
    // For a number that is no open socket it returns an error.
    let result = unsafe { call(descriptor, storage.as_mut_ptr().cast(), &raw mut len) };
    let len = len.min(size_of::<libc::sockaddr_storage>() as libc::socklen_t);
    if result != 0 || len == 0 {
        return false;
    }
    // SAFETY: every byte of the storage is initialized, and the first `len` are the kernel's
    // address.
    let address = unsafe { SocketAddrAny::read(storage.as_ptr().cast(), len) };
    inet(address) == Some(unmapped(name))
}

/// Bytes that a TCP socket has received in all; 0 if the kernel does not say.
fn bytes_received(descriptor: RawFd) -> u64 {
    /// Offset of `tcpi_bytes_received` in `struct tcp_info` (linux/tcp.h, since Linux 4.1). The
    /// libc crate's structure is too old for it.
    const AT: usize = 128;
    let mut info = [0_u8; AT + 8];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to a buffer of that length, and it writes
    // `len`. For a number that is no TCP socket it returns an error.
    unsafe {
        let info = info.as_mut_ptr().cast();
        libc::getsockopt(descriptor, libc::IPPROTO_TCP, libc::TCP_INFO, info, &raw mut len);
    }
    info[AT..].first_chunk().copied().map_or(0, u64::from_ne_bytes)
}

fn inet(address: SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(address).ok().map(unmapped)
}

/// Turns an IPv4-mapped IPv6 address into the IPv4 address.
fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

pub(crate) fn family(ip: IpAddr) -> AddressFamily {
    match ip {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    }
}

/// A TCP socket for one connect. Options that only some connections need are set later: see
/// [`keepalive`] and [`no_delay`].
pub fn tcp(to: SocketAddr) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(family(to.ip()), SocketType::STREAM, FLAGS, None)?)
}

/// Delays the acknowledgement that ends a connect until the first bytes are written, which then go
/// in the same segment (tcp(7), TCP_QUICKACK). This saves a packet and a wake-up of the peer's
/// process. Without a write the kernel sends it after its delay, at least 40 ms.
pub fn ack_with_first(fd: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_quickack(fd, false)?)
}

/// Sends every write at once (TCP_NODELAY): the application has chosen a relay's writes.
pub fn no_delay(fd: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_nodelay(fd, true)?)
}

/// Delays a TCP connect until the first bytes are written, which then go with the SYN (RFC 7413).
/// This works if `to` has given this host a cookie before. Otherwise it is an ordinary connect,
/// which asks for a cookie.
pub fn fast_open(fd: impl AsFd) -> io::Result<()> {
    set_option(fd, libc::TCP_FASTOPEN_CONNECT, 1)
}

/// Starts to connect. The socket becomes writable when the connect has ended; [`pending_error`]
/// then returns a failure. Returns whether it can be written at once, because the connect is
/// delayed: see [`fast_open`].
pub fn connect(fd: impl AsFd, to: SocketAddr) -> io::Result<bool> {
    match rustix::net::connect(fd, &to) {
        Ok(()) => Ok(true),
        Err(Errno::INPROGRESS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// True if a connect has succeeded. `false`: it has failed, or is still under way.
pub fn is_connected(fd: impl AsFd) -> bool {
    rustix::net::getpeername(fd).is_ok()
}

/// A Unix stream socket connected to `path`. Unlike TCP it connects at once or fails; `WouldBlock`
/// means that the listener's backlog is full.
pub fn connect_unix(path: &Path) -> io::Result<OwnedFd> {
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

/// A pair of connected Unix stream sockets.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?)
}

/// Returns and clears the pending error of a socket.
pub fn pending_error(fd: impl AsFd) -> io::Result<()> {
    Ok(sockopt::socket_error(fd)??)
}

/// Reads into `buffer`. 0 is the end of the stream.
pub fn recv(fd: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(fd, buffer, RecvFlags::empty()).map(|(read, _)| read)?)
}

/// Reads into `buffer` and leaves the bytes in the socket. 0 is the end of the stream. An error
/// does not stay: see [`is_readable`].
pub fn peek(fd: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(fd, buffer, RecvFlags::PEEK).map(|(read, _)| read)?)
}

/// True if a read would not wait: there are bytes, an end, or an error. The error stays for that
/// read, while a [`peek`] takes it, and the read would find the end of a whole stream.
pub fn is_readable(fd: impl AsFd) -> io::Result<bool> {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&at_once))? > 0)
}

/// Reads into several buffers, in order. 0 is the end of the stream.
pub fn recv_vectored(fd: impl AsFd, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    Ok(rustix::io::readv(fd, buffers)?)
}

/// Writes from `bytes`. Returns how many the socket accepted. A closed peer is an error, never a
/// signal.
pub fn send(fd: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    match rustix::net::send(fd, bytes, SendFlags::NOSIGNAL) {
        // The delayed connect has started without these bytes: see `fast_open`.
        Err(Errno::INPROGRESS) => Err(io::ErrorKind::WouldBlock.into()),
        sent => Ok(sent?),
    }
}

/// Writes from several buffers, in order. Returns how many bytes the socket accepted.
pub fn send_vectored(fd: impl AsFd, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
    let mut none = rustix::net::SendAncillaryBuffer::default();
    Ok(rustix::net::sendmsg(fd, buffers, &mut none, SendFlags::NOSIGNAL)?)
}

/// True if a write failed by the peer's reset: no later call returns that error, and a read finds
/// the end of a whole stream. A write behind the peer's FIN fails by EPIPE, and all before that FIN
/// has come.
pub fn has_lost_rest(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset
}

/// Sends a FIN: no more bytes will be written.
pub fn shutdown_write(fd: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(fd, Shutdown::Write)?)
}

/// Makes the next close a reset instead of a FIN.
pub fn reset_on_close(fd: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(fd, Some(Duration::ZERO))?)
}

/// Bytes that were written but not acknowledged by the peer yet (tcp(7), SIOCOUTQ).
pub fn unsent(fd: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open for the length of the call, and TIOCOUTQ writes one int.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(bytes.max(0) as usize) }
}

/// Number of packets that the kernel has dropped at a listening socket (SO_MEMINFO). It wraps
/// around. A full queue drops those of new connections, and [`full_queue_drops`] tells such drops
/// from others: the reset of a half-open connection counts here, too (`tcp_v4_rcv`).
pub fn drops(listener: impl AsFd) -> io::Result<u32> {
    let mut counts = [0_u32; MEMINFO_COUNTS];
    let mut len = size_of_val(&counts) as libc::socklen_t;
    // SAFETY: the descriptor is borrowed and thus open. The kernel writes at most `len` bytes,
    // which is the array's size, and keeps no pointer.
    let result = unsafe {
        let (counts, len) = ((&raw mut counts).cast(), &raw mut len);
        let fd = listener.as_fd().as_raw_fd();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, counts, len)
    };
    if result == 0 { Ok(counts[MEMINFO_DROPS]) } else { Err(io::Error::last_os_error()) }
}

/// Number of packets of new connections that the kernel has dropped at full listen queues. It
/// counts those of all listeners in this network namespace.
pub fn full_queue_drops() -> io::Result<u64> {
    let counts = std::fs::read_to_string("/proc/self/net/netstat")?;
    parse_full_queue_drops(&counts).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse_full_queue_drops(netstat: &str) -> Option<u64> {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, counts) = (lines.next()?, lines.next()?);
    let counts = names.split(' ').zip(counts.split(' '));
    let of_queues = counts.filter(|(name, _)| FULL_QUEUE_COUNTS.contains(name));
    of_queues.map(|(_, count)| count.parse::<u64>().ok()).sum()
}

/// The queue of connections to accept, and that of half-open ones where there are no SYN cookies.
const FULL_QUEUE_COUNTS: [&str; 2] = ["ListenOverflows", "TCPReqQFullDrop"];

/// Number of counts in SO_MEMINFO (linux/sock_diag.h, SK_MEMINFO_VARS), and the index of the drops.
const MEMINFO_COUNTS: usize = 9;
const MEMINFO_DROPS: usize = 8;

fn set_option(fd: impl AsFd, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the descriptor is borrowed and thus open, and the kernel reads `len` bytes of an
    // integer of just that size before it returns; it keeps no pointer.
    let result = unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(fd.as_fd().as_raw_fd(), libc::IPPROTO_TCP, option, value, len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn full_queues_are_among_the_counts_of_the_namespace() {
        let text = "TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPReqQFullDrop\n\
                    TcpExt: 1 20 300 4000\nIpExt: InNoRoutes\nIpExt: 7\n";
        assert_eq!(parse_full_queue_drops(text), Some(4020));
        for text in ["", "TcpExt: ListenOverflows\n", "TcpExt: ListenOverflows\nTcpExt: x\n"] {
            assert_eq!(parse_full_queue_drops(text), None, "{text}");
        }
        assert!(full_queue_drops().is_ok());
    }

    /// Says that a program is missing, also to a run in which none may be.
    fn skip(why: &str) {
        use std::io::Write;
        eprintln!("skipped: {why}");
        if let Some(log) = std::env::var_os("EYELET_SKIP_LOG") {
            let log = std::fs::OpenOptions::new().create(true).append(true).open(log);
            writeln!(log.unwrap(), "skipped: {why}").unwrap();
        }
    }

    #[test]
    fn the_number_of_a_process_that_has_ended_has_no_cgroup() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let own = std::process::id();
        let _ours = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(peer_cgroup(&accepted, own), cgroup_of(own));
        let connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])";
        let mut python = std::process::Command::new("python3");
        let Ok(ended) = python.args(["-c", connect]).arg(&path).status() else {
            return skip("the_number_of_a_process_that_has_ended_has_no_cgroup: no python3");
        };
        assert!(ended.success());
        let (accepted, _) = listener.accept().unwrap();
        // As if this process had got its number since.
        assert_eq!(peer_cgroup(&accepted, own), None);
    }

    #[test]
    fn drops_are_counted_at_their_own_listener() {
        let how = Listen {
            reuse_port: false,
            keepalive_idle: Duration::from_secs(60),
            transparent: false,
            defer: None,
        };
        let [full, other] = [(), ()].map(|()| {
            let fd = bind(([127, 0, 0, 1], 0).into(), how).unwrap();
            listen(&fd, 1).unwrap();
            fd
        });
        let address = local_address(&full).unwrap();
        let mut open = Vec::new();
        // Two fit the queue, and the next ones time out.
        for _ in 0..100 {
            open.extend(TcpStream::connect_timeout(&address, Duration::from_millis(20)));
            if drops(&full).unwrap() > 0 {
                break;
            }
        }
        assert!(drops(&full).unwrap() > 0);
        assert_eq!(drops(&other).unwrap(), 0);
    }

    /// A dial is recognized by both its ends while it is open and has received nothing, never by
    /// its number alone.
    #[test]
    fn a_dial_is_fresh_until_it_is_sent_something_or_is_closed() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let to = listener.local_addr().unwrap();
            let [dial, other] = [(); 2].map(|()| TcpStream::connect(to).unwrap());
            let (mut accepted, _) = listener.accept().unwrap();
            let [from, others] = [&dial, &other].map(|dial| dial.local_addr().unwrap());
            let number = dial.as_raw_fd();
            assert!(is_fresh_dial(number, from, to));
            assert!(!is_fresh_dial(number, others, to));
            assert!(!is_fresh_dial(number, from, others));
            assert!(!is_fresh_dial(listener.as_raw_fd(), to, from));
            accepted.write_all(b"x").unwrap();
            dial.peek(&mut [0]).unwrap();
            assert!(!is_fresh_dial(number, from, to), "its other end has sent something");
            assert!(is_fresh_dial(other.as_raw_fd(), others, to));
        }
        let any = "127.0.0.1:1".parse().unwrap();
        assert!(!is_fresh_dial(-1, any, any));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(!is_fresh_dial(file.as_raw_fd(), any, any));
    }
}
