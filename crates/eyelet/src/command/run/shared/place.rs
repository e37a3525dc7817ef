//! The place of a shared edge: its socket in the user's runtime folder, and the lock by which only
//! one process at a time starts it or ends it.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use eyelet_sys::file::OwnFolder;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

use eyelet_process::control;
use eyelet_process::diagnostics;
use eyelet_process::upgrade::own_program;

/// The argument by which the program becomes a shared edge.
pub(crate) const COMMAND: &str = "shared-edge";
/// The time for which the lock may be held: an edge that ends drains for a second.
const LOCK_TIMEOUT: Duration = Duration::from_secs(15);
const LOCK_STEP: Duration = Duration::from_millis(20);
/// The variables that an edge gets: they are of the user, not of a project.
const PASSED: [&str; 4] = ["HOME", "USER", "PATH", diagnostics::FILTER];
/// The prefix of the variables with the user's folders, which pass, too.
const PASSED_PREFIX: &[u8] = b"XDG_";
/// Most entries of the runtime folder that are looked at.
const ENTRIES_MAX: usize = 4096;

/// The files of a shared edge. There is one edge for each authority, and names under `localhost`
/// have another one than those that all machines may reach.
#[derive(Clone, Debug)]
pub(super) struct Place {
    socket: PathBuf,
}

impl Place {
    /// The place of the edge for this authority.
    pub(super) fn new(authority: &Path, is_loopback: bool) -> io::Result<Self> {
        let folder = control::own_folder();
        // Who can write to it could answer in the edge's place.
        OwnFolder::open(&folder).map_err(at(&folder))?;
        let scope = if is_loopback { "loopback" } else { "all" };
        let name = format!(
            "shared.{}.{scope}.sock",
            control::digest_name(authority.as_os_str().as_bytes())
        );
        Ok(Self { socket: folder.join(name) })
    }

    /// The places of all edges of this user.
    pub(super) fn all() -> Vec<Self> {
        let folder = control::own_folder();
        if OwnFolder::open(&folder).is_err() {
            return Vec::new();
        }
        let entries = fs::read_dir(&folder).into_iter().flatten().take(ENTRIES_MAX).flatten();
        let is_socket = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("shared.") && name.ends_with(".sock")
        };
        let mut sockets: Vec<PathBuf> =
            entries.map(|entry| entry.path()).filter(is_socket).collect();
        sockets.sort();
        sockets.into_iter().map(|socket| Self { socket }).collect()
    }

    /// Connects to the edge. `None`: there is none.
    pub(super) async fn connect(&self) -> io::Result<Option<UnixStream>> {
        match UnixStream::connect(&self.socket).await {
            Ok(stream) => Ok(Some(stream)),
            Err(error) => match error.kind() {
                ErrorKind::NotFound | ErrorKind::ConnectionRefused => Ok(None),
                _ => Err(at(&self.socket)(error)),
            },
        }
    }

    /// Takes the lock. It is released when the file is closed.
    pub(super) async fn lock(&self) -> io::Result<File> {
        let end = Instant::now() + LOCK_TIMEOUT;
        loop {
            match self.try_lock()? {
                Some(lock) => return Ok(lock),
                None if Instant::now() >= end => return Err(ErrorKind::TimedOut.into()),
                None => sleep(LOCK_STEP).await,
            }
        }
    }

    /// Takes the lock if no other process has it.
    pub(super) fn try_lock(&self) -> io::Result<Option<File>> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600);
        let path = self.socket.with_extension("lock");
        let file = file.open(&path).map_err(at(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Starts an edge here, as a process that outlives this one. Call it with the lock.
    pub(super) fn start(&self) -> io::Result<()> {
        self.remove()?;
        let listener = UnixListener::bind(&self.socket).map_err(at(&self.socket))?;
        fs::set_permissions(&self.socket, fs::Permissions::from_mode(0o600))?;
        let mut command = Command::new(own_program());
        command.arg(COMMAND).arg(&self.socket).current_dir("/");
        // It serves other projects, too: what one has in its environment is not theirs.
        command.env_clear().envs(std::env::vars_os().filter(|(name, _)| is_passed(name)));
        command.stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(drop).inspect_err(|_| _ = self.remove())
    }

    /// Removes the socket. Call it with the lock.
    pub(super) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.socket) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The place with this socket.
    pub(super) fn of_socket(socket: PathBuf) -> Self {
        Self { socket }
    }
}

/// Names the file or folder of an error.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn is_passed(variable: &OsStr) -> bool {
    PASSED.iter().any(|passed| variable == *passed)
        || variable.as_bytes().starts_with(PASSED_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_has_none_of_a_projects_variables() {
        for (variable, expected) in [
            ("HOME", true),
            ("XDG_RUNTIME_DIR", true),
            ("EYELET_LOG", true),
            ("EYELET_URL", false),
            ("HOMER", false),
            ("DATABASE_URL", false),
        ] {
            assert_eq!(is_passed(OsStr::new(variable)), expected, "{variable}");
        }
    }
}
