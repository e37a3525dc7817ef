//! The control socket. `eyelet reload FILE` uses it to find the process that serves FILE. A request
//! is one line; the answer is a status and lines.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use eyelet_sys::file::OwnFolder;
use eyelet_sys::process;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use crate::reload::ReloadOutcome;

/// The folder of the sockets if the user has no runtime folder. systemd makes it for a service with
/// `RuntimeDirectory=eyelet`.
const SYSTEM_FOLDER: &str = "/run/eyelet";
/// The one request.
const RELOAD: &[u8] = b"reload\n";
/// How long a client of the socket may take to send its request, and to read the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the answer may take: time to check a large configuration and to start serving by it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes of an answer: more than all mistakes that are printed.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// Requests that wait while one is answered. More wait in the socket's queue.
const REQUESTS_MAX: usize = 1;
/// Most files of a folder that are examined.
const ENTRIES_MAX: usize = 4096;
/// Bytes of a file's digest in the socket's name.
const NAME_BYTES: usize = 8;

/// An open control socket. Dropping it removes its file.
pub struct Control {
    path: PathBuf,
    requests: Receiver<ReloadRequest>,
}

/// A permitted client that asks for a reload.
pub struct ReloadRequest(UnixStream);

impl Control {
    /// Opens the socket of the process that serves `file`. Call it within a tokio runtime.
    ///
    /// # Errors
    /// If there is no folder that only this user can write to.
    pub fn open(file: &Path) -> io::Result<Self> {
        let folder = own_folder();
        // The folder must be ours: a user who can write to it could answer in our place.
        OwnFolder::open(&folder)?;
        remove_dead(&folder);
        let path = folder.join(format!("{}.{}.sock", name(file)?, std::process::id()));
        let listener = UnixListener::bind(&path)?;
        let (sender, requests) = channel(REQUESTS_MAX);
        let control = Self { path, requests };
        fs::set_permissions(&control.path, fs::Permissions::from_mode(0o600))?;
        tokio::spawn(accept(listener, sender));
        Ok(control)
    }

    /// The next request.
    pub async fn next(&mut self) -> Option<ReloadRequest> {
        self.requests.recv().await
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Clients find the socket by its file. A client that is connected already gets no answer.
        let _ = fs::remove_file(&self.path);
    }
}

impl ReloadRequest {
    /// Answers the request. A client that does not read loses its answer.
    pub async fn answer(mut self, outcome: &ReloadOutcome) {
        let text = format!("{}\n{}", outcome.code, outcome.text);
        let _ = timeout(REQUEST_TIMEOUT, self.0.write_all(text.as_bytes())).await;
    }
}

async fn accept(listener: UnixListener, requests: Sender<ReloadRequest>) {
    while let Ok((stream, _)) = listener.accept().await {
        let user = stream.peer_cred().map(|peer| peer.uid());
        if !user.as_ref().is_ok_and(|user| may_ask(*user)) {
            tracing::warn!("control socket: user {user:?} is not allowed to connect");
            continue;
        }
        let Ok(Ok(request)) = timeout(REQUEST_TIMEOUT, read(stream)).await else { continue };
        if requests.send(request).await.is_err() {
            return;
        }
    }
}

/// Whether this user may ask: the user of the process, or root.
fn may_ask(user: u32) -> bool {
    user == process::user() || user == 0
}

async fn read(mut stream: UnixStream) -> io::Result<ReloadRequest> {
    let mut said = [0; RELOAD.len()];
    stream.read_exact(&mut said).await?;
    if said == *RELOAD { Ok(ReloadRequest(stream)) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Asks the process that serves `file` for a reload, and prints what it says.
pub fn reload(file: &Path) -> ExitCode {
    let outcome = match ask(file) {
        Ok(outcome) => outcome,
        Err(why) => ReloadOutcome::failed(format_args!("eyelet: {why}")),
    };
    // If an output is closed, the exit code still gives the result.
    let _ = match outcome.code {
        0 => io::stdout().write_all(outcome.text.as_bytes()),
        _ => io::stderr().write_all(outcome.text.as_bytes()),
    };
    ExitCode::from(outcome.code)
}

fn ask(file: &Path) -> Result<ReloadOutcome, String> {
    let shown = file.display();
    let name = name(file).map_err(|error| format!("{shown}: {error}"))?;
    let mut found = Vec::new();
    for folder in [own_folder(), SYSTEM_FOLDER.into()] {
        if found.iter().all(|(known, _, _): &(PathBuf, u32, _)| *known != folder) {
            found
                .extend(live(&folder, &name)?.into_iter().map(|(pid, s)| (folder.clone(), pid, s)));
        }
    }
    match found.len() {
        0 => Err(format!("no process of this user serves {shown}")),
        1 => found.pop().map_or(Err(String::new()), |(_, pid, stream)| {
            converse(stream).map_err(|error| format!("process {pid}: {error}"))
        }),
        _ => {
            let pids: Vec<String> = found.iter().map(|(_, pid, _)| pid.to_string()).collect();
            let pids = pids.join(", ");
            Err(format!("more than one process serves {shown} ({pids}): send SIGHUP to one"))
        }
    }
}

fn converse(mut stream: StdStream) -> io::Result<ReloadOutcome> {
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(RELOAD)?;
    let mut said = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut said)?;
    let (code, text) = said.split_once('\n').ok_or(io::ErrorKind::UnexpectedEof)?;
    let code = code.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(ReloadOutcome { code, text: text.to_owned() })
}

/// The processes behind a file's sockets in one folder.
fn live(folder: &Path, name: &str) -> Result<Vec<(u32, StdStream)>, String> {
    let Ok(metadata) = fs::metadata(folder) else { return Ok(Vec::new()) };
    // The owner of the folder could answer in the process's place.
    if ![process::user(), 0].contains(&metadata.uid()) && process::user() != 0 {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for path in entries(folder) {
        let Some(pid) = pid_of(&path, name) else { continue };
        match StdStream::connect(&path) {
            Ok(stream) => found.push((pid, stream)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(format!("process {pid} is another user's: {error}"));
            }
            // The process has ended without removing its socket.
            Err(_) => {}
        }
    }
    Ok(found)
}

/// Removes the sockets of processes that were killed. A socket that refuses a connection may also
/// belong to a process that has not begun to listen.
fn remove_dead(folder: &Path) {
    let is_dead = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let pid = name.strip_suffix(".sock").and_then(|name| name.rsplit_once('.'));
        pid.is_some_and(|(_, pid)| !Path::new("/proc").join(pid).exists())
    };
    for path in entries(folder) {
        if is_dead(&path) {
            // Another process may have removed it.
            let _ = fs::remove_file(&path);
        }
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().take(ENTRIES_MAX);
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// `NAME.PID.sock`.
fn pid_of(path: &Path, name: &str) -> Option<u32> {
    let rest = path.file_name()?.to_str()?.strip_prefix(name)?;
    rest.strip_prefix('.')?.strip_suffix(".sock")?.parse().ok()
}

/// The name of a configuration's sockets. It is the same for every path to the file.
fn name(file: &Path) -> io::Result<String> {
    let path = file.canonicalize()?;
    let digest = digest(&SHA256, path.as_os_str().as_bytes());
    let mut name = String::new();
    // Writing into a string cannot fail.
    digest.as_ref().iter().take(NAME_BYTES).for_each(|byte| _ = write!(name, "{byte:02x}"));
    Ok(name)
}

fn own_folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder).join("eyelet"),
        _ => SYSTEM_FOLDER.into(),
    }
}
