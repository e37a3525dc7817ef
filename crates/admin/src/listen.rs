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
    _file: SocketFile,
}

/// The file of a Unix socket. It is removed with this value, unless another process has replaced
/// it.
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // Who connects finds the file gone, or a socket that refuses.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
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
        Ok(Listening::Unix(UnixSocketListener { listener, _file: file }))
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
