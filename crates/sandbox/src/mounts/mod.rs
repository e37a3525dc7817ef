//! Files of a namespace: what leads out beside the network is covered. Nothing is copied, and the
//! command's other files are the user's own.

mod devices;
mod outer;
mod table;

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use eyelet_sys::confine::mount::{MountLimits, limit};
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind,
    mount_bind_recursive, mount_change, move_mount, open_tree,
};

use crate::message::ConfinedPlan;
use crate::step::{ConfineStep, EMPTY, SandboxError};

use self::table::Mounted;

pub(crate) use self::outer::outer_sockets;

/// Bytes of each of them at most, as the system's own have by default: half of memory.
const EMPTY_OPTIONS: &std::ffi::CStr = c"mode=1777,size=50%";
/// The folder of the kernel's devices, in which root writes what changes the whole machine.
const SYSTEM: &str = "/sys";
/// Folders of it that are empty, because it is a request to read some of their files, and because
/// the kernel mounts more there when somebody looks.
const EMPTY_SYSTEM: [&str; 2] = ["/sys/kernel/debug", "/sys/kernel/tracing"];
/// The folder of processes, in which root does, too.
const PROCESSES: &str = "/proc";
/// File systems through which the kernel is asked and told things. At another place than usual
/// they are covered.
const OF_THE_KERNEL: [&str; 21] = [
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "mqueue",
    "nfsd",
    "proc",
    "pstore",
    "resctrl",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "smackfs",
    "sysfs",
    "tracefs",
];
/// Folders of the user's home that hold keys and nothing else. The first is shown if the
/// list has the port of SSH.
const KEYS: [&str; 2] = [".ssh", ".gnupg/private-keys-v1.d"];
/// The folder of keys in that of GnuPG.
const GNUPG: &str = "private-keys-v1.d";
/// The users of this system (passwd(5)).
const USERS: &str = "/etc/passwd";
/// The columns before a user's home in a line of it.
const HOME_COLUMN: usize = 5;
/// The port of SSH.
const SSH: u16 = 22;
/// The setting for the number of cgroup namespaces inside: none. A process that has made one could
/// mount the cgroup of the edge, and stop or end all processes in it.
const CGROUP_NAMESPACES: (&str, &str) = ("/proc/sys/user/max_cgroup_namespaces", "0");
/// The resolver's configuration. Each address answers, so it is that of loopback.
const RESOLV_CONF: (&str, &str) = ("/etc/resolv.conf", "nameserver 127.0.0.1\n");
/// The names that need no resolver. Those of the host would lead past the stand-ins.
const HOSTS: (&str, &str) = ("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n");
/// The name of this host (proc(5)).
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// Covers what leads out: in the mount namespace of this process, which it has just entered.
pub(crate) fn cover(plan: &ConfinedPlan, sockets: &[PathBuf]) -> Result<(), SandboxError> {
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
    // An empty path would be the begin of each.
    let runtime = runtime.filter(|path| path.is_absolute());
    let emptied: Vec<&Path> = EMPTY.iter().map(Path::new).chain(runtime.as_deref()).collect();
    let replaced = [RESOLV_CONF, HOSTS].map(|(path, text)| (fs::canonicalize(path).ok(), text));
    let mounts = table::read(&Path::new(PROCESSES).join("self"));
    let mounts = mounts.map_err(at(Path::new(PROCESSES)))?;
    let files = plan.hidden.iter().cloned().chain(keys(plan));
    // A file may be at several places.
    let files: Vec<PathBuf> = files.flat_map(|it| table::places(&it, &mounts, &mounts)).collect();
    devices::cover().map_err(at(Path::new(devices::FOLDER)))?;
    for path in files.iter().chain(sockets).map(PathBuf::as_path).chain(of_the_kernel(&mounts)) {
        hide(path).map_err(at(path))?;
    }
    // With what is hidden in it.
    let kept = Kept::of(&folder, &emptied).map_err(at(&folder))?;
    let system = Path::new(SYSTEM);
    make_read_only(system).map_err(at(system))?;
    for path in EMPTY_SYSTEM.iter().map(Path::new).chain(emptied) {
        empty(path).map_err(at(path))?;
    }
    for (number, (path, text)) in replaced.into_iter().enumerate() {
        if let Some(path) = path {
            replace(number, &path, text).map_err(at(&path))?;
        }
    }
    kept.put_back(&folder).map_err(at(&folder))
}

/// The places at which file systems of the kernel are mounted, beside those below the folders that
/// are for them.
fn of_the_kernel(mounts: &[Mounted]) -> impl Iterator<Item = &Path> {
    let usual = [PROCESSES, SYSTEM, devices::FOLDER];
    let others = mounts.iter().filter(move |mount| {
        OF_THE_KERNEL.iter().any(|kind| kind.as_bytes() == mount.kind)
            && !usual.iter().any(|folder| mount.path.starts_with(folder))
    });
    others.map(|mount| mount.path.as_path())
}

/// The folders of keys that the command has no use for.
fn keys(plan: &ConfinedPlan) -> impl Iterator<Item = PathBuf> {
    let has_ssh = plan.ports.contains(&SSH);
    let below = move |home: PathBuf| {
        KEYS.iter().skip(usize::from(has_ssh)).map(move |folder| home.join(folder))
    };
    let gnupg = std::env::var_os("GNUPGHOME").map(|home| Path::new(&home).join(GNUPG));
    // One that is not there holds no key.
    homes().into_iter().flat_map(below).chain(gnupg).filter_map(|it| fs::canonicalize(it).ok())
}

/// The home that the command is told, and those of all users: it may have been told another one.
fn homes() -> Vec<PathBuf> {
    let told = std::env::var_os("HOME").map(PathBuf::from);
    // A system without this file has no users to look for.
    let users = fs::read_to_string(USERS).unwrap_or_default();
    let homes = users.lines().filter_map(|line| line.split(':').nth(HOME_COLUMN));
    told.into_iter().chain(homes.map(PathBuf::from)).filter(|home| home.is_absolute()).collect()
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
        // An emptied folder in another one is gone, too: /run usually has that of XDG_RUNTIME_DIR.
        fs::create_dir_all(folder)?;
        if let Some(tree) = self.0 {
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            move_mount(&tree, "", CWD, folder, flags)?;
        }
        // The one that was covered is another folder.
        std::env::set_current_dir(folder)
    }
}

/// Covers a file by an empty one, or a folder by an empty folder.
fn hide(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => empty(path),
        Ok(_) => match mount_bind("/dev/null", path) {
            // Its owner has removed it just now.
            Err(rustix::io::Errno::NOENT) => Ok(()),
            bound => Ok(bound?),
        },
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

/// Makes a folder or a file read-only, with all that is mounted below. All at once: some of it may
/// be where this user cannot look.
fn make_read_only(path: &Path) -> io::Result<()> {
    mount_bind_recursive(path, path)?;
    limit(path, MountLimits { is_read_only: true, has_programs: false })
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
    let folder = std::env::current_dir()?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", PROCESSES, "proc", flags, None)?;
    match fs::write(CGROUP_NAMESPACES.0, CGROUP_NAMESPACES.1) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        // A kernel without it has no cgroups.
        _ => {}
    }
    for entry in fs::read_dir(PROCESSES)? {
        let (entry, is_writable) = (entry?, |mode: u32| mode & 0o222 != 0);
        let kind = entry.file_type()?;
        let is_process = entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        if is_process || kind.is_symlink() {
            continue;
        }
        if kind.is_dir() || is_writable(entry.metadata()?.permissions().mode()) {
            make_read_only(&entry.path())?;
        }
    }
    // If it is in /proc, the one that was covered is another folder.
    std::env::set_current_dir(folder)
}
