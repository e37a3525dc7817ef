//! Unix sockets at which somebody listens outside, by the paths at which a command would find them:
//! the kernel has no list of these. It has the paths by which the sockets of each network were
//! bound, as the processes that bound them saw it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::table::{self, Mounted};

/// The folder of processes.
const PROCESSES: &str = "/proc";
/// This process.
const SELF: &str = "/proc/self";
/// The Unix sockets of a process' network, in its folder of /proc (proc(5)).
const SOCKETS: &str = "net/unix";
/// The mount namespace of a process. Other users' cannot be told apart.
const MOUNT_NAMESPACE: &str = "ns/mnt";
/// The folder in which a process works.
const WORKING_FOLDER: &str = "cwd";
/// The title of the first column of that file.
const TITLE: &[u8] = b"Num ";
/// Columns before the path in a line of [`SOCKETS`].
const COLUMNS: usize = 7;

/// A network, and the mounts of the processes in it.
struct Network {
    /// Paths by which its sockets were bound.
    paths: Vec<PathBuf>,
    tables: Vec<Vec<Mounted>>,
    /// The mount namespaces whose tables these are; `None` is one that nobody here may name.
    seen: BTreeSet<Option<u64>>,
}

/// Finds them. A socket that was renamed, as OpenSSH does, is among all sockets of that folder. It
/// must be called before this process leaves its network.
///
/// # Errors
/// The kernel's: without its lists they cannot be covered.
pub(crate) fn outer_sockets() -> io::Result<Vec<PathBuf>> {
    let ours = table::read(Path::new(SELF))?;
    let (mut networks, mut folders) = (BTreeMap::new(), BTreeSet::new());
    note(Path::new(SELF), &mut networks, &mut folders)?;
    for process in fs::read_dir(PROCESSES)?.flatten() {
        if process.file_name().as_bytes().first().is_some_and(u8::is_ascii_digit) {
            // It may have ended, and some may hide from other users what they are.
            let _ = note(&process.path(), &mut networks, &mut folders);
        }
    }
    let mut paths = BTreeSet::new();
    for Network { paths: bound, tables, .. } in networks.values() {
        let (whole, relative): (Vec<&PathBuf>, _) = bound.iter().partition(|it| it.is_absolute());
        for table in tables {
            paths.extend(whole.iter().flat_map(|path| table::places(path, table, &ours)));
        }
        paths.extend(folders.iter().flat_map(|at| relative.iter().map(move |it| at.join(it))));
    }
    // Something else may have taken the place of a socket that was bound.
    let (mut found, gone): (BTreeSet<_>, BTreeSet<_>) =
        paths.into_iter().partition(|it| is_socket(it));
    let folders: BTreeSet<&Path> = gone.iter().filter_map(|path| path.parent()).collect();
    for folder in folders {
        // One that this user cannot read may still be entered: its sockets have names to guess.
        let Ok(entries) = fs::read_dir(folder) else { continue };
        found.extend(entries.flatten().map(|entry| entry.path()).filter(|path| is_socket(path)));
    }
    // A container has sockets of its host as mounts.
    found.extend(ours.into_iter().map(|mount| mount.path).filter(|path| is_socket(path)));
    Ok(found.into_iter().collect())
}

/// Notes the working folder of a process, and its network and mounts if they are not noted yet. The
/// argument is its folder in /proc.
fn note(
    process: &Path,
    networks: &mut BTreeMap<u64, Network>,
    folders: &mut BTreeSet<PathBuf>,
) -> io::Result<()> {
    if let Ok(folder) = fs::read_link(process.join(WORKING_FOLDER)) {
        folders.insert(folder);
    }
    // The kernel makes this file anew for each network.
    let list = process.join(SOCKETS);
    let number = fs::metadata(&list)?.ino();
    let network = match networks.entry(number) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => {
            let list = fs::read(&list)?;
            let paths = list.split(|byte| *byte == b'\n').filter_map(path_of).collect();
            new.insert(Network { paths, tables: Vec::new(), seen: BTreeSet::new() })
        }
    };
    let namespace = fs::metadata(process.join(MOUNT_NAMESPACE)).ok().map(|found| found.ino());
    if !network.seen.contains(&namespace) {
        // A process that ends meanwhile leaves it to the next one there.
        network.tables.push(table::read(process)?);
        network.seen.insert(namespace);
    }
    Ok(())
}

/// The path in a line of [`SOCKETS`], if its socket has one. Abstract names begin with `@`. The
/// first line has titles.
fn path_of(line: &[u8]) -> Option<PathBuf> {
    let mut rest = line;
    if line.starts_with(TITLE) {
        return None;
    }
    for _ in 0..COLUMNS {
        let end = rest.trim_ascii_start().iter().position(|byte| *byte == b' ')?;
        rest = rest.trim_ascii_start().get(end..)?;
    }
    let path =
        rest.strip_prefix(b" ").filter(|path| !path.is_empty() && !path.starts_with(b"@"))?;
    Some(OsStr::from_bytes(path).into())
}

fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
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
            (" 12 a.sock", Some("a.sock")),
            (" 12  a.sock", Some(" a.sock")),
            ("    12 @name /tmp", None),
            ("    12 @/tmp/x", None),
            ("    12 ", None),
            ("    12", None),
        ] {
            let found = path_of(format!("{begin} {end}").as_bytes());
            assert_eq!(found, path.map(PathBuf::from), "{end}");
        }
        let title = b"Num       RefCount Protocol Flags    Type St Inode Path";
        assert_eq!(path_of(title), None);
    }
}
