//! The devices of a command: those that hold nothing, and terminals of its own. Disks, the kernel's
//! memory and the terminals of others are not there, which matters most for root.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use eyelet_sys::confine::mount::{MountLimits, limit};
use rustix::fs::CWD;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount, move_mount, open_tree};

/// The folder of devices.
pub(super) const FOLDER: &str = "/dev";
/// Devices that are kept.
const KEPT: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Links, and where they lead.
const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// Terminals that are opened here are seen here only.
const TERMINALS: &std::ffi::CStr = c"newinstance,ptmxmode=0666,mode=0620";
/// Memory that processes share, as the system's own: at most half of memory.
const SHARED_MEMORY: &std::ffi::CStr = c"mode=1777,size=50%";

/// Covers the folder of devices by one with these alone. Files elsewhere are no devices: root may
/// own some, as in the folder of another system.
///
/// # Errors
/// The kernel's.
pub(super) fn cover() -> io::Result<()> {
    let folder = Path::new(FOLDER);
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mut kept: Vec<(&str, OwnedFd)> = Vec::new();
    for name in KEPT {
        // A container may have no terminal.
        if folder.join(name).exists() {
            kept.push((name, open_tree(CWD, folder.join(name), clone)?));
        }
    }
    // Those that are kept are not among the mounts at this moment.
    limit(Path::new("/"), MountLimits { is_read_only: false, has_programs: true })?;
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("tmpfs", folder, "tmpfs", flags | MountFlags::NODEV, Some(c"mode=0755"))?;
    for (name, device) in kept {
        fs::write(folder.join(name), "")?;
        let from_itself = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&device, "", CWD, folder.join(name), from_itself)?;
    }
    for (name, to) in LINKS {
        symlink(to, folder.join(name))?;
    }
    let (terminals, shared) = (folder.join("pts"), folder.join("shm"));
    fs::create_dir(&terminals)?;
    mount("devpts", &terminals, "devpts", flags, Some(TERMINALS))?;
    fs::create_dir(&shared)?;
    mount("tmpfs", &shared, "tmpfs", flags | MountFlags::NODEV, Some(SHARED_MEMORY))?;
    Ok(())
}
