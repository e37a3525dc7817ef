//! Files of a namespace: what leads out beside the network is covered. Nothing is copied, and the
//! command's other files are the user's own.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind,
    mount_bind_recursive, mount_change, mount_remount, move_mount, open_tree,
};

use crate::devices;
use crate::step::{ConfineStep, EMPTY, SandboxError};

/// Bytes of each of them at most, as the system's own have by default: half of memory.
const EMPTY_OPTIONS: &std::ffi::CStr = c"mode=1777,size=50%";
/// The folder of the kernel's devices, in which root writes what changes the whole machine.
const SYSTEM: &str = "/sys";
/// Parts of /proc in which root does.
const READ_ONLY_PROC: [&str; 7] = [
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/irq",
    "/proc/bus",
    "/proc/fs",
    "/proc/acpi",
    "/proc/scsi",
];
/// The mounts that a process sees (proc(5)).
const MOUNTS: &str = "/proc/self/mountinfo";
/// The place of a mount's path among the fields of its line (proc(5)).
const MOUNT_PATH_FIELD: usize = 4;
/// The resolver's configuration. Each address answers, so it is that of loopback.
const RESOLV_CONF: (&str, &str) = ("/etc/resolv.conf", "nameserver 127.0.0.1\n");
/// The names that need no resolver. Those of the host would lead past the placeholders.
const HOSTS: (&str, &str) = ("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n");
/// The name of this host (proc(5)).
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
/// The kernel's list of Unix sockets of a network namespace (proc(5)).
const UNIX_SOCKETS: &str = "/proc/net/unix";

/// Paths of Unix sockets at which somebody listens outside: those that were bound in this network,
/// and those that are mounted, as a container has its host's. The kernel keeps the path that a
/// socket was bound by: one that has another name since, as OpenSSH gives its own, is among all
/// sockets of that folder. It must be called before the process leaves that network.
///
/// # Errors
/// The kernel's: without its lists they cannot be covered.
pub(crate) fn outer_sockets() -> io::Result<Vec<PathBuf>> {
    let (list, mounts) = (fs::read_to_string(UNIX_SOCKETS)?, fs::read_to_string(MOUNTS)?);
    let mounted = mounts.lines().filter_map(path_of_mount).map(PathBuf::from);
    let mut paths: Vec<PathBuf> = list.lines().filter_map(path_of_socket).chain(mounted).collect();
    paths.sort();
    paths.dedup();
    // Something else may have taken the place of a socket that was bound.
    let (mut found, gone): (Vec<_>, Vec<_>) = paths.into_iter().partition(|path| is_socket(path));
    let mut folders: Vec<&Path> = gone.iter().filter_map(|path| path.parent()).collect();
    folders.dedup();
    for folder in folders {
        // One that this user cannot read may still be entered: its sockets have names to guess.
        let Ok(entries) = fs::read_dir(folder) else { continue };
        found.extend(entries.flatten().map(|entry| entry.path()).filter(|path| is_socket(path)));
    }
    found.sort();
    found.dedup();
    Ok(found)
}

fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// The path in a line of [`MOUNTS`].
fn path_of_mount(line: &str) -> Option<&str> {
    line.split(' ').nth(MOUNT_PATH_FIELD)
}

/// The path in a line of [`UNIX_SOCKETS`], its last column. Abstract names begin with `@`.
fn path_of_socket(line: &str) -> Option<PathBuf> {
    let at = line.find(" /")?;
    let is_abstract = line.find(" @").is_some_and(|name| name < at);
    (!is_abstract).then(|| line.get(at + 1..).map(PathBuf::from)).flatten()
}

/// Covers what leads out: in the mount namespace of this process, which it has just entered.
pub(crate) fn cover(hidden: &[PathBuf], sockets: &[PathBuf]) -> Result<(), SandboxError> {
    let at = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| SandboxError::about(ConfineStep::Files, path)(error)
    };
    let root = Path::new("/");
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(|error| at(root)(error.into()))?;
    // What is not there leads nowhere.
    let folder = std::env::current_dir().map_err(at(Path::new(".")))?;
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let emptied: Vec<&Path> = EMPTY.iter().map(Path::new).chain(runtime.as_deref()).collect();
    let replaced = [RESOLV_CONF, HOSTS].map(|(path, text)| (fs::canonicalize(path).ok(), text));
    for path in hidden {
        hide(path).map_err(at(path))?;
    }
    for path in sockets {
        hide(path).map_err(at(path))?;
    }
    // With what is hidden in it.
    let kept = Kept::of(&folder, &emptied).map_err(at(&folder))?;
    make_read_only(Path::new(SYSTEM)).map_err(at(Path::new(SYSTEM)))?;
    for path in &emptied {
        empty(path).map_err(at(path))?;
    }
    devices::cover().map_err(at(Path::new(devices::FOLDER)))?;
    for (number, (path, text)) in replaced.into_iter().enumerate() {
        if let Some(path) = path {
            replace(number, &path, text).map_err(at(&path))?;
        }
    }
    kept.put_back(&folder).map_err(at(&folder))
}

/// A folder in one that is covered, which the command works in.
struct Kept(Option<OwnedFd>);

impl Kept {
    fn of(folder: &Path, emptied: &[&Path]) -> io::Result<Self> {
        // Below an emptied folder it would be hidden with that. Such a folder itself is not kept.
        let is_below = emptied.iter().any(|parent| folder.starts_with(parent));
        if !is_below || emptied.contains(&folder) {
            return Ok(Self(None));
        }
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE;
        Ok(Self(Some(open_tree(CWD, folder, flags)?)))
    }

    fn put_back(self, folder: &Path) -> io::Result<()> {
        if let Some(tree) = self.0 {
            fs::create_dir_all(folder)?;
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            move_mount(&tree, "", CWD, folder, flags)?;
        }
        // The one that was covered is another folder.
        std::env::set_current_dir(folder)
    }
}

/// Covers a file by an empty one, or a folder by an empty folder.
fn hide(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => empty(path),
        Ok(_) => Ok(mount_bind("/dev/null", path)?),
        Err(error) if is_absent(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Covers a folder by an empty one, in which everybody may write.
fn empty(path: &Path) -> io::Result<()> {
    match fs::canonicalize(path) {
        Ok(path) => {
            let flags = MountFlags::NOSUID | MountFlags::NODEV;
            Ok(mount("tmpfs", &path, "tmpfs", flags, Some(EMPTY_OPTIONS))?)
        }
        Err(error) if is_absent(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// True if the command cannot reach it either.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied
    )
}

/// Makes a folder or a file read-only, with all that is mounted below.
fn make_read_only(path: &Path) -> io::Result<()> {
    mount_bind_recursive(path, path)?;
    let mounts = fs::read_to_string(MOUNTS)?;
    let mounted = mounts.lines().filter_map(path_of_mount);
    let flags = MountFlags::BIND
        | MountFlags::RDONLY
        | MountFlags::NOSUID
        | MountFlags::NODEV
        | MountFlags::NOEXEC;
    for mounted in mounted.map(Path::new).filter(|mounted| mounted.starts_with(path)) {
        mount_remount(mounted, flags, "")?;
    }
    Ok(())
}

/// Gives a file another text: by its place among those that are replaced.
fn replace(number: usize, path: &Path, text: &str) -> io::Result<()> {
    let text = match (number, fs::read_to_string(HOST_NAME)) {
        (1, Ok(name)) => format!("{text}127.0.1.1 {name}"),
        _ => text.to_owned(),
    };
    if !path.exists() {
        // It was in a folder that is empty now.
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        return fs::write(path, text);
    }
    let own = format!("/run/{number}");
    fs::write(&own, text)?;
    mount_bind(&own, path)?;
    fs::remove_file(own)
}

/// Shows the processes of this process namespace only, and lets nobody change the kernel.
///
/// # Errors
/// The kernel's. It forbids this where parts of /proc are covered.
pub(crate) fn mount_proc() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None)?;
    for path in READ_ONLY_PROC.map(Path::new) {
        if path.exists() {
            make_read_only(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_sockets_are_told_from_abstract_names() {
        let begin = "0000000000000000: 00000002 00000000 00010000 0001 01";
        for (end, path) in [
            ("  1234 /run/a b.sock", Some("/run/a b.sock")),
            ("42584766 /srv/x @y", Some("/srv/x @y")),
            ("    12 @name /tmp", None),
            ("    12 @/tmp/x", None),
            ("    12", None),
        ] {
            let found = path_of_socket(&format!("{begin} {end}"));
            assert_eq!(found, path.map(PathBuf::from), "{end}");
        }
    }
}
