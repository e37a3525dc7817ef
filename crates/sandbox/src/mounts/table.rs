//! The mounts that a process sees, and the places at which one process finds a path of another.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The file of the mounts of a process, in its folder of /proc (proc(5)).
pub(super) const FILE: &str = "mountinfo";

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mounted {
    /// The place at which it is mounted.
    pub(super) path: PathBuf,
    /// The number of its file system.
    device: Vec<u8>,
    /// The folder or file of its file system that is mounted there.
    root: PathBuf,
    /// The kind of its file system.
    pub(super) kind: Vec<u8>,
}

/// Reads the mounts of a process from its folder of /proc, in the order of lookups: a mount follows
/// those that it covers.
///
/// # Errors
/// The kernel's.
pub(super) fn read(process: &Path) -> io::Result<Vec<Mounted>> {
    Ok(fs::read(process.join(FILE))?.split(|byte| *byte == b'\n').filter_map(mounted).collect())
}

/// The mount in a line.
fn mounted(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|byte| *byte == b' ');
    // Its number and its parent's, its device, its root, its path, its options, others, a dash.
    let (device, root, path) = (fields.nth(2)?, fields.next()?, fields.next()?);
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    Some(Mounted {
        path: unescaped(path),
        device: device.to_vec(),
        root: unescaped(root),
        kind: kind.to_vec(),
    })
}

/// Decodes a path of the kernel's, in which spaces and some other bytes are a backslash and three
/// octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let number =
            digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(number.unwrap_or(*first));
        rest = if number.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    OsString::from_vec(bytes).into()
}

/// The places at which `ours` has what is at `path` for a process with the mounts `theirs`.
pub(super) fn places(path: &Path, theirs: &[Mounted], ours: &[Mounted]) -> Vec<PathBuf> {
    let depth = |mount: &&Mounted| mount.path.components().count();
    // Of several at one place the last one covers the others.
    let mounts = theirs.iter().filter(|mount| path.starts_with(&mount.path));
    let Some(mount) = mounts.max_by_key(depth) else { return Vec::new() };
    let Ok(below) = path.strip_prefix(&mount.path) else { return Vec::new() };
    let inner = joined(&mount.root, below);
    let same = ours.iter().filter(|our| our.device == mount.device);
    same.filter_map(|our| Some(joined(&our.path, inner.strip_prefix(&our.root).ok()?))).collect()
}

/// A path below another one. An empty one is that itself, without a slash at its end.
fn joined(path: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() { path.to_owned() } else { path.join(below) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lines: &[&str]) -> Vec<Mounted> {
        lines.iter().filter_map(|line| mounted(line.as_bytes())).collect()
    }

    #[test]
    fn a_line_is_read_with_bytes_that_the_kernel_has_escaped() {
        let line =
            "35 27 0:31 /a\\040b /srv/a\\040\\134c rw,relatime shared:1 master:2 - proc x rw";
        let [mount] = &*table(&[line]) else { panic!("no mount") };
        assert_eq!(mount.path, Path::new("/srv/a \\c"));
        assert_eq!((mount.root.as_path(), &*mount.kind), (Path::new("/a b"), &b"proc"[..]));
        assert_eq!(unescaped(b"/a\\9\\40"), Path::new("/a\\9\\40"));
        assert_eq!(table(&["", "1 2 0:1 / /", "1 2 0:1 / / rw -"]), []);
    }

    #[test]
    fn a_path_of_another_table_is_found_in_ours() {
        let ours = table(&[
            "1 0 8:1 / / rw - ext4 a rw",
            "2 1 8:1 /srv/data /data rw - ext4 a rw",
            "3 1 0:9 / /run rw - tmpfs a rw",
        ]);
        let theirs = table(&["1 0 0:7 / / rw - overlay a rw", "2 1 8:1 /srv /vol rw - ext4 a rw"]);
        let found = |path: &str, theirs: &[Mounted]| places(Path::new(path), theirs, &ours);
        assert_eq!(found("/vol/x", &theirs), [Path::new("/srv/x")]);
        assert_eq!(found("/vol/data/x", &theirs), ["/srv/data/x", "/data/x"].map(Path::new));
        assert_eq!(found("/tmp/x", &theirs), [] as [&Path; 0]);
        assert_eq!(found("/run/x", &ours), [Path::new("/run/x")]);
        assert_eq!(found("/data", &ours), ["/srv/data", "/data"].map(Path::new));
    }
}
