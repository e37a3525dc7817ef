//! Binds the admin socket. A Unix socket replaces the one at its path in one step, so that an
//! upgrade leaves no moment without one.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket};

/// Connections that wait in the kernel until one of ours is done.
const BACKLOG: u32 = 128;

/// A bound socket.
pub(crate) enum Listening {
    Unix(UnixSocketListener),
    Tcp(TcpListener),
}

/// A listening Unix socket, and the file that goes with it.
pub(crate) struct UnixSocketListener {
    pub(crate) listener: UnixListener,
    file: SocketFile,
}

/// The file of a Unix socket. It is removed with this value, unless another process has replaced
/// it.
struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

/// Device and inode of a file.
pub(crate) type Identity = (u64, u64);

impl Listening {
    /// The file that it has put at its path, if it has one.
    pub(crate) fn file(&self) -> Option<Identity> {
        match self {
            Self::Unix(unix) => Some(unix.file.identity),
            Self::Tcp(_) => None,
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if is_there(&self.path, self.identity) {
            // Who connects finds the file gone, or a socket that refuses.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// True if this file is at the path, and no other one.
pub(crate) fn is_there(path: &Path, file: Identity) -> bool {
    identity(path).is_ok_and(|found| found == file)
}

fn identity(path: &Path) -> io::Result<Identity> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Binds a Unix socket. Call it within a tokio runtime.
pub(crate) fn bind_unix(path: &Path, mode: u32) -> io::Result<Listening> {
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "there is a file that is no socket",
            ));
        }
        Ok(_) | Err(_) => {}
    }
    let mut first = path.as_os_str().to_owned();
    first.push(format!(".{}", std::process::id()));
    let first = PathBuf::from(first);
    // It has our process id: a process with the same one has left it.
    let _ = fs::remove_file(&first);
    let socket = UnixSocket::new_stream()?;
    socket.bind(&first)?;
    let listened = (|| {
        // Nobody can connect before `listen`, so nobody connects by a wider mode.
        fs::set_permissions(&first, fs::Permissions::from_mode(mode))?;
        let identity = identity(&first)?;
        let listener = socket.listen(BACKLOG)?;
        fs::rename(&first, path)?;
        let file = SocketFile { path: path.to_owned(), identity };
        Ok(Listening::Unix(UnixSocketListener { listener, file }))
    })();
    if listened.is_err() {
        let _ = fs::remove_file(&first);
    }
    listened
}

/// Binds an address. Call it within a tokio runtime.
pub(crate) fn bind_tcp(address: SocketAddr) -> io::Result<Listening> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // An earlier process' connections may still be in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(Listening::Tcp(socket.listen(BACKLOG)?))
}
