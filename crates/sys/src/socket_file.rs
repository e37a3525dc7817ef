//! The file of a listening Unix socket: bound, told apart from others at its path, and removed.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use crate::socket::{FLAGS, connect_unix};

/// Device and inode of a file.
pub type Identity = (u64, u64);

/// The file of a Unix socket. If it is this process's, it is removed with this value, unless
/// another process has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: Identity,
    is_own: AtomicBool,
}

impl SocketFile {
    /// The file at a path, which is this process's.
    ///
    /// # Errors
    /// If there is none.
    pub fn own(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.into(), identity: identity(path)?, is_own: AtomicBool::new(true) })
    }

    /// A file of another process, which stays that one's until [`SocketFile::set_own`].
    pub fn of_other(path: &Path, identity: Identity) -> Self {
        Self { path: path.into(), identity, is_own: AtomicBool::new(false) }
    }

    /// Says whose the file is: its process removes it at the end.
    pub fn set_own(&self, is_own: bool) {
        self.is_own.store(is_own, Relaxed);
    }

    /// Which file it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether it is at its path, so that who connects there reaches its socket.
    pub fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|found| found == self.identity)
    }

    /// Sets its permissions.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        fs::set_permissions(&self.path, Permissions::from_mode(mode))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_own.load(Relaxed) && self.is_there() {
            // Who connects finds the file gone, or a socket that refuses.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<Identity> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Fails if there is a file that is no socket.
fn check_is_socket(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket"))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// A Unix socket bound to a path, not yet listening, with these permissions. A socket that nobody
/// listens on any more is replaced.
///
/// # Errors
/// The kernel's; `AddrInUse` if a process listens there.
pub fn bind(path: &Path, mode: u32) -> io::Result<(OwnedFd, SocketFile)> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    let address = SocketAddrUnix::new(path)?;
    if rustix::net::bind(&socket, &address) == Err(rustix::io::Errno::ADDRINUSE) {
        check_is_socket(path)?;
        match connect_unix(path) {
            // Who left it has ended without removing it.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path)?;
            }
            _ => return Err(io::ErrorKind::AddrInUse.into()),
        }
        rustix::net::bind(&socket, &address)?;
    }
    let file = SocketFile::own(path)?;
    // Nobody can connect before `listen`, so nobody connects by a wider mode.
    file.set_mode(mode)?;
    Ok((socket, file))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::socket::{SocketPeer, accept, listen};

    fn bound(path: &Path) -> io::Result<(OwnedFd, SocketFile)> {
        let (socket, file) = bind(path, 0o600)?;
        listen(&socket, 8)?;
        Ok((socket, file))
    }

    #[test]
    fn a_file_is_replaced_only_where_nobody_listens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let (socket, file) = bound(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(bound(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // As after the end of a process by a signal.
        file.set_own(false);
        drop((socket, file));
        assert!(path.exists());
        let (_socket, file) = bound(&path).unwrap();
        // Another process may have replaced it by now.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(!file.is_there());
        drop(file);
        assert!(path.exists());
        assert_eq!(bound(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn the_kernel_says_who_connected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let (socket, file) = bound(&path).unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        let (_, peer) = accept(&socket).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(peer, SocketPeer::Local { uid, pid: std::process::id() });
        drop(file);
        assert!(!path.exists());
    }
}
