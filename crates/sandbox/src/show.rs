//! Files that the command is shown, in a folder of their own in which nobody can write.

use std::fs;
use std::io;
use std::path::Path;

use rustix::mount::{MountFlags, mount, mount_remount};

use crate::message::ShownFile;

/// The folder, below one that is empty at the start.
pub(crate) const FOLDER: &str = "/run/eyelet";
const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Shows them, in the mount namespace of this process. They are in memory only.
pub(crate) fn show(files: &[ShownFile]) -> io::Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    fs::create_dir_all(FOLDER)?;
    mount("tmpfs", FOLDER, "tmpfs", FLAGS, Some(c"mode=755"))?;
    for file in files {
        fs::write(Path::new(FOLDER).join(&file.name), &file.content)?;
    }
    Ok(mount_remount(FOLDER, FLAGS | MountFlags::BIND | MountFlags::RDONLY, "")?)
}
