//! The files of control sockets: their folders and names, and the processes behind them.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use eyelet_sys::process;

/// The folder of the sockets if the user has no runtime folder. systemd makes it for a service with
/// `RuntimeDirectory=eyelet`.
const SYSTEM_FOLDER: &str = "/run/eyelet";
/// Most files of a folder that are examined.
const ENTRIES_MAX: usize = 4096;
/// Bytes of a file's digest in the socket's name.
const NAME_BYTES: usize = 8;

/// The processes that serve a file, or any, each with the folder of its socket.
pub(super) fn search(
    names: Option<&[String; 2]>,
) -> Result<Vec<(PathBuf, u32, UnixStream)>, String> {
    let mut found: Vec<(PathBuf, u32, UnixStream)> = Vec::new();
    for folder in [own_folder(), SYSTEM_FOLDER.into()] {
        if found.iter().all(|(known, _, _)| *known != folder) {
            found
                .extend(live(&folder, names)?.into_iter().map(|(pid, s)| (folder.clone(), pid, s)));
        }
    }
    Ok(found)
}

/// The processes behind a file's sockets in one folder.
fn live(folder: &Path, names: Option<&[String; 2]>) -> Result<Vec<(u32, UnixStream)>, String> {
    let Ok(metadata) = fs::metadata(folder) else { return Ok(Vec::new()) };
    // The owner of the folder could answer in the process's place.
    if ![process::user(), 0].contains(&metadata.uid()) && process::user() != 0 {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for path in entries(folder) {
        let Some((known, pid)) = parts(&path) else { continue };
        let is_named =
            |names: &[String; 2]| known.iter().zip(names).any(|(known, name)| known == name);
        if !names.is_none_or(is_named) {
            continue;
        }
        match UnixStream::connect(&path) {
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
pub(super) fn remove_dead(folder: &Path) {
    let is_dead = |path: &Path| {
        let is_socket =
            || fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
        parts(path).is_some_and(|(_, pid)| {
            !Path::new("/proc").join(pid.to_string()).exists() && is_socket()
        })
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

/// The parts of `REAL.GIVEN.PID.sock`: [`names`] and the process.
fn parts(path: &Path) -> Option<([&str; 2], u32)> {
    let mut parts = path.file_name()?.to_str()?.strip_suffix(".sock")?.split('.');
    let names = [parts.next()?, parts.next()?];
    let is_digest =
        |name: &&str| name.len() == 2 * NAME_BYTES && name.bytes().all(|b| b.is_ascii_hexdigit());
    let pid = parts.next()?.parse().ok()?;
    (parts.next().is_none() && names.iter().all(is_digest)).then_some((names, pid))
}

/// The names of a configuration file. The real path is one for all links to it; the absolute path
/// as given stays when a link on the way is switched.
pub(super) fn names(file: &Path) -> io::Result<[String; 2]> {
    Ok([name(&file.canonicalize()?), name(&std::path::absolute(file)?)])
}

pub(super) fn name(path: &Path) -> String {
    digest_name(path.as_os_str().as_bytes())
}

/// A file's name for what belongs to these bytes.
pub fn digest_name(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    let mut name = String::new();
    // Writing into a string cannot fail.
    digest.as_ref().iter().take(NAME_BYTES).for_each(|byte| _ = write!(name, "{byte:02x}"));
    name
}

/// The folder of this user's sockets.
pub fn own_folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        // The XDG base directory specification: a relative path is to be ignored.
        Some(folder) if Path::new(&folder).is_absolute() => PathBuf::from(folder).join("eyelet"),
        _ => SYSTEM_FOLDER.into(),
    }
}
