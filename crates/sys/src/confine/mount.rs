//! Limits of mounts, which rustix does not set.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Limits of a mount. With any of them no file there is a device, and none gives rights to
/// who executes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountLimits {
    /// Nobody may write.
    pub is_read_only: bool,
    /// Programs there may be executed.
    pub has_programs: bool,
}

/// Sets the limits of the mount at this path and of all that are below it.
///
/// # Errors
/// The kernel's, before Linux 5.12.
pub fn limit(path: &Path, limits: MountLimits) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut set = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    if limits.is_read_only {
        set |= libc::MOUNT_ATTR_RDONLY;
    }
    if !limits.has_programs {
        set |= libc::MOUNT_ATTR_NOEXEC;
    }
    let attributes = libc::mount_attr { attr_set: set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the path ends with a zero byte, the structure has the size that is given, and the
    // kernel reads both and keeps neither.
    let result = unsafe {
        let attributes = &raw const attributes;
        let size = size_of::<libc::mount_attr>();
        let call = libc::SYS_mount_setattr;
        libc::syscall(call, libc::AT_FDCWD, path.as_ptr(), libc::AT_RECURSIVE, attributes, size)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
