//! The file of a listening Unix socket: bound, told apart from others at its path, and removed.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use crate::socket::{FLAGS, connect_unix};

/// Permissions in a file's mode, without its type.
const MODE_BITS: u32 = 0o7777;

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

    /// Returns the identity of the file.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// True if it is at its path, so that who connects there reaches its socket.
    pub fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|found| found == self.identity)
    }

    /// Sets its permissions, if they are others. The file is opened first, so that no other file
    /// at the path is changed, and none that a link there leads to.
    ///
    /// # Errors
    /// The kernel's; `NotFound` if another file is at its path.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
            .open(&self.path)?;
        let found = file.metadata()?;
        if !found.file_type().is_socket() || (found.dev(), found.ino()) != self.identity {
            return Err(io::ErrorKind::NotFound.into());
        }
        if found.mode() & MODE_BITS == mode {
            return Ok(());
        }
        // Such a descriptor has no fchmod(2), and its name leads to the file itself (open(2)).
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::set_permissions(name, Permissions::from_mode(mode))
    }

    /// Takes it away from its path until [`SocketFile::put_back`]: nobody can connect meanwhile.
    /// Its socket goes on to listen.
    ///
    /// # Errors
    /// The kernel's.
    pub fn put_aside(&self) -> io::Result<()> {
        match self.is_own.load(Relaxed) && self.is_there() {
            true => fs::rename(&self.path, self.aside()),
            false => Ok(()),
        }
    }

    /// Puts it back to its path, if it was put aside. Another file that is there now stays.
    ///
    /// # Errors
    /// The kernel's.
    pub fn put_back(&self) -> io::Result<()> {
        if !self.is_aside() {
            return Ok(());
        }
        fs::hard_link(self.aside(), &self.path)?;
        fs::remove_file(self.aside())
    }

    /// Removes it if it was put aside: its listener does not come back.
    pub fn remove_aside(&self) {
        if self.is_aside() {
            let _ = fs::remove_file(self.aside());
        }
    }

    /// Returns the path at which it is put aside: beside its own, under a name that no other socket
    /// has.
    fn aside(&self) -> PathBuf {
        let mut aside = self.path.clone().into_os_string();
        aside.push(format!(".{}", self.identity.1));
        aside.into()
    }

    fn is_aside(&self) -> bool {
        identity(&self.aside()).is_ok_and(|found| found == self.identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.is_own.load(Relaxed) {
            return;
        }
        // Who connects finds the file gone, or a socket that refuses.
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
        self.remove_aside();
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
    // Linux makes the file with the socket's own mode, less the umask (unix_bind).
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
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
    // The umask may have taken some of it.
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
    fn a_mode_is_the_sockets_alone() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["a.sock", "other"].map(|name| folder.path().join(name));
        // Wider than what a umask leaves.
        let (_socket, file) = bind(&path, 0o666).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o666);
        file.set_mode(0o600).unwrap();
        assert_eq!(mode(&path), 0o600);
        fs::write(&other, "").unwrap();
        fs::set_permissions(&other, Permissions::from_mode(0o640)).unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert_eq!(file.set_mode(0o666).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(mode(&other), 0o640, "a link is not followed");
    }

    #[test]
    fn a_file_that_is_put_aside_leads_nobody_to_its_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let (socket, file) = bound(&path).unwrap();
        file.put_aside().unwrap();
        assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        file.put_back().unwrap();
        assert!(file.is_there() && !file.is_aside());
        let _client = UnixStream::connect(&path).unwrap();
        accept(&socket).unwrap();
        file.put_aside().unwrap();
        // Another process is there by now.
        let (_other, other) = bound(&path).unwrap();
        assert!(file.put_back().is_err() && other.is_there());
        drop(file);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left aside");
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
