//! What a service manager such as systemd is told (sd_notify(3)) and gives (sd_listen_fds(3)).
//! Without one nothing happens.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::net::sockopt;
use sd_notify::NotifyState;

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

/// Another process is the main one of the service from now on.
pub fn main_process(pid: u32) {
    tell(&[NotifyState::MainPid(pid)]);
}

fn tell(state: &[NotifyState<'_>]) {
    // A manager that does not listen is no reason to fail. It has timeouts of its own.
    let _ = sd_notify::notify(state);
}

/// The listening TCP sockets that the manager has passed (socket activation), with what accepted
/// sockets inherit: see [`crate::socket::bind`]. Call it once, at the start.
///
/// # Errors
/// If the manager's variables cannot be read, or a descriptor is no listening TCP socket.
pub fn listening_sockets(keepalive_idle: std::time::Duration) -> io::Result<Vec<OwnedFd>> {
    let mut sockets = Vec::new();
    for descriptor in sd_notify::listen_fds()? {
        // SAFETY: the manager has passed these numbers to this process, and nothing else owns them:
        // the caller asks once. Each was open a moment ago, or `listen_fds` would have failed.
        let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
        if !sockopt::socket_acceptconn(&socket)? {
            let why = format!("descriptor {descriptor} does not listen");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        crate::socket::local_address(&socket)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        crate::socket::no_delay(&socket)?;
        crate::socket::keepalive(&socket, keepalive_idle)?;
        sockets.push(socket);
    }
    Ok(sockets)
}
