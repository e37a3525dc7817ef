//! Speaks with a service manager such as systemd: what it is told (sd_notify(3)), is given to keep,
//! and passes (sd_listen_fds(3)). Without one nothing happens.

use std::env;
use std::io::{self, ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, sendmsg, sockopt,
};
use sd_notify::NotifyState;

use crate::channel::{DESCRIPTORS_MAX, FLIGHT_STEP, timed};

/// The name of what this program gives the manager to keep.
pub const STORE_NAME: &str = "eyelet-connections";
/// The name of the socket that shows whether the manager keeps descriptors.
const PROBE_NAME: &str = "eyelet-probe";
/// The time that the manager may take to close what it does not keep, after it has read the
/// message: systemd closes some descriptors on a thread of its own.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);
/// The time that the manager may take to accept a message, or to answer that it has taken all of
/// them. It does nothing else for long, but the machine may be busy.
const MANAGER_TIMEOUT: Duration = Duration::from_secs(10);

/// The process is ready: it serves, or a reload is over.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// A reload has begun.
pub fn reloading() {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now]);
    }
}

/// The process ends.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// This process is the main one of the service from now on.
pub fn main_process(pid: u32) {
    tell(&[NotifyState::MainPid(pid)]);
}

fn tell(state: &[NotifyState<'_>]) {
    // A manager that does not listen is no reason to fail. It has timeouts of its own.
    let _ = sd_notify::notify(state);
}

/// Returns the number of descriptors that the manager keeps for this service, as `$FDSTORE` says:
/// systemd 254 and later sets it where the unit has `FileDescriptorStoreMax=`. A unit may also set
/// it by itself, so [`keeps`] asks the manager. `None`: it keeps none, or nobody says so.
pub fn kept_max() -> Option<usize> {
    env::var_os("NOTIFY_SOCKET")?;
    env::var("FDSTORE").ok()?.parse().ok().filter(|max| *max > 0)
}

/// True if the manager keeps descriptors that this process gives it: it gets one end of a socket
/// pair, and the other end shows whether it closes that. It has forgotten it when this returns.
///
/// # Errors
/// `TimedOut`, or the kernel's.
pub fn keeps() -> io::Result<bool> {
    let (ours, theirs) = UnixStream::pair()?;
    send(&format!("FDSTORE=1\nFDNAME={PROBE_NAME}\nFDPOLL=0\n"), &[theirs.as_fd()])?;
    drop(theirs);
    barrier()?;
    if is_closed(&ours, CLOSE_TIMEOUT)? {
        return Ok(false);
    }
    send(&format!("FDSTOREREMOVE=1\nFDNAME={PROBE_NAME}\n"), &[])?;
    if is_closed(&ours, MANAGER_TIMEOUT)? { Ok(true) } else { Err(ErrorKind::TimedOut.into()) }
}

/// Gives the manager descriptors to keep until the next start of the service, in this order, under
/// [`STORE_NAME`]. The manager has them when this returns.
///
/// # Errors
/// `TimedOut`, or the kernel's. The manager may have some of the descriptors then.
pub fn keep(descriptors: &[OwnedFd]) -> io::Result<()> {
    // Without FDPOLL=0 it would drop a socket whose peer has gone, which may still hold bytes.
    let state = format!("FDSTORE=1\nFDNAME={STORE_NAME}\nFDPOLL=0\n");
    for descriptors in descriptors.chunks(DESCRIPTORS_MAX) {
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        send(&state, &descriptors)?;
    }
    barrier()
}

/// Has the manager forget what it keeps for this service. It has forgotten it when this returns.
///
/// # Errors
/// `TimedOut`, or the kernel's. The manager may still have it then.
pub fn forget() -> io::Result<()> {
    send(&format!("FDSTOREREMOVE=1\nFDNAME={STORE_NAME}\n"), &[])?;
    barrier()
}

/// Waits until the manager has taken all messages until now: it then closes the descriptor that
/// comes with this one.
fn barrier() -> io::Result<()> {
    let (ours, theirs) = UnixStream::pair()?;
    send("BARRIER=1", &[theirs.as_fd()])?;
    drop(theirs);
    if is_closed(&ours, MANAGER_TIMEOUT)? { Ok(()) } else { Err(ErrorKind::TimedOut.into()) }
}

/// True if the other end of a socket is closed within this time.
fn is_closed(mut socket: &UnixStream, within: Duration) -> io::Result<bool> {
    let end = Instant::now() + within;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(&mut [0]).map_err(timed) {
            Ok(0) => return Ok(true),
            Ok(_) => return Err(ErrorKind::InvalidData.into()),
            Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Sends a message, within [`MANAGER_TIMEOUT`]. The library has no limit.
fn send(state: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let path = env::var_os("NOTIFY_SOCKET").ok_or(ErrorKind::NotConnected)?;
    // A name that begins with @ is no file but an abstract name (unix(7)).
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_write_timeout(Some(MANAGER_TIMEOUT))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let end = Instant::now() + MANAGER_TIMEOUT;
    loop {
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let message = [IoSlice::new(state.as_bytes())];
        match sendmsg(&socket, &message, &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            // Until the manager has received what is on its way.
            Err(Errno::TOOMANYREFS) if Instant::now() < end => thread::park_timeout(FLIGHT_STEP),
            Err(error) => return Err(timed(error.into())),
        }
    }
}

/// The descriptors that the manager has passed to this process at its start.
#[derive(Debug, Default)]
pub struct PassedDescriptors {
    /// The descriptors that an earlier process of the service gave it to [`keep`].
    pub kept: Vec<OwnedFd>,
    /// The others: its listening sockets, each with its name.
    pub others: Vec<(String, OwnedFd)>,
}

/// Returns the descriptors that the manager has passed. Call it once, at the start.
///
/// # Errors
/// If the manager's variables cannot be read.
pub fn passed() -> io::Result<PassedDescriptors> {
    let mut passed = PassedDescriptors::default();
    for (descriptor, name) in sd_notify::listen_fds_with_names()? {
        // SAFETY: the manager has passed these numbers to this process, and nothing else owns them:
        // the caller asks once. Each was open a moment ago, or `listen_fds` would have failed.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        if name == PROBE_NAME {
            // A process that died while it asked has left it.
            drop(descriptor);
        } else if name == STORE_NAME {
            passed.kept.push(descriptor);
        } else {
            passed.others.push((name, descriptor));
        }
    }
    Ok(passed)
}

/// True if a socket is for datagrams.
pub fn has_datagrams(socket: &OwnedFd) -> bool {
    sockopt::socket_type(socket).is_ok_and(|kind| kind == SocketType::DGRAM)
}

/// Prepares a socket of the manager for datagrams.
///
/// # Errors
/// The kernel's.
pub fn prepare_datagrams(socket: &OwnedFd) -> io::Result<()> {
    rustix::io::ioctl_fionbio(socket, true).map_err(Into::into)
}

/// Prepares a socket of the manager (socket activation), with what accepted sockets inherit: see
/// [`crate::socket::bind`].
///
/// # Errors
/// If it is no listening TCP socket.
pub fn prepare(socket: &OwnedFd, keepalive_idle: Duration) -> io::Result<()> {
    let error = |why| Err(io::Error::new(ErrorKind::InvalidInput, why));
    if !sockopt::socket_acceptconn(socket).is_ok_and(|listens| listens) {
        return error("it does not listen");
    }
    crate::socket::local_address(socket)?;
    rustix::io::ioctl_fionbio(socket, true)?;
    crate::socket::no_delay(socket)?;
    crate::socket::keepalive(socket, keepalive_idle)
}
