//! Namespaces of Linux: a process moves into ones of its own, and forks the first process of its
//! process namespace. It must have one thread only.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{Pid, Signal, getegid, geteuid, getppid, set_parent_process_death_signal};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Moves this process into namespaces of its own for users, the network, mounts, IPC and the host's
/// name, and its next child into one for processes. Users are mapped by [`map_users`].
///
/// # Errors
/// The kernel's. `PermissionDenied` and `ENOSPC` mean that this machine forbids user namespaces.
pub fn enter() -> io::Result<()> {
    let flags = UnshareFlags::NEWUSER
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWPID;
    // SAFETY: unshare_unsafe is unsafe for CLONE_FILES alone, which is not asked for.
    Ok(unsafe { unshare_unsafe(flags) }?)
}

/// Maps the users of the namespace that a child has entered: root maps all that it has itself, any
/// other user maps itself alone, each to the same number.
///
/// # Errors
/// The kernel's.
pub fn map_users(child: u32) -> io::Result<()> {
    let of_child = |name: &str| format!("/proc/{child}/{name}");
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        for map in ["uid_map", "gid_map"] {
            let own = fs::read_to_string(Path::new("/proc/self").join(map))?;
            fs::write(of_child(map), same(&own))?;
        }
        return Ok(());
    }
    // Without it the kernel takes no map of groups from a user without rights (user_namespaces(7)).
    fs::write(of_child("setgroups"), "deny")?;
    fs::write(of_child("uid_map"), format!("{0} {0} 1", user.as_raw()))?;
    fs::write(of_child("gid_map"), format!("{0} {0} 1", group.as_raw()))
}

/// A map to the same numbers of all that a map has.
fn same(map: &str) -> String {
    let mut same = String::new();
    for line in map.lines() {
        let mut fields = line.split_whitespace();
        if let (Some(first), Some(_), Some(count)) = (fields.next(), fields.next(), fields.next()) {
            same.push_str(&format!("{first} {first} {count}\n"));
        }
    }
    same
}

/// Has the kernel kill this process when its parent ends.
///
/// # Errors
/// The kernel's.
pub fn end_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Forks. Returns the child's number in the parent, and `None` in the child, which the kernel kills
/// when its parent ends.
///
/// # Errors
/// The kernel's, and `Other` if this process has several threads: the child would have one of them,
/// and locks that the others held.
pub fn fork() -> io::Result<Option<u32>> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a process of several threads does not fork"));
    }
    let parent = rustix::process::getpid();
    // SAFETY: this process has one thread, as was looked at just now, so that the child's memory is
    // whole and no lock in it is held.
    match unsafe { libc::fork() } {
        0 => {
            end_with_parent()?;
            // Its parent is in another process namespace, or it is the parent's no more.
            match getppid() {
                Some(is) if is != parent && is != Pid::INIT => {
                    Err(io::ErrorKind::NotConnected.into())
                }
                _ => Ok(None),
            }
        }
        -1 => Err(io::Error::last_os_error()),
        child => Ok(Some(child.unsigned_abs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_of_a_container_is_kept() {
        let map = "         0     100000      65536\n     70000          5          1\n";
        assert_eq!(same(map), "0 0 65536\n70000 70000 1\n");
        assert_eq!(same(""), "");
    }
}
