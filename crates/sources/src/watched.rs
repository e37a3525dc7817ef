//! The folders by which a path reaches its file: those on the way, and those of links on the way.
//! A change of any name on the way may lead the path to another file.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use eyelet_sys::inotify::{self, Change, Contents, Inotify, WaitEnder, WatchedFolder};

use crate::partial::{PARTIAL_MAX, PartialFiles};

/// Most links that one path may lead through, as in the kernel (MAXSYMLINKS).
const LINKS_MAX: usize = 40;
/// The rest after events that change nothing: another program may write a file in a watched folder
/// without end.
const PAUSE: Duration = Duration::from_millis(10);

/// The folders of paths, watched.
#[derive(Default)]
pub struct Watched {
    /// `None`: the system gives none for now.
    inotify: Option<Inotify>,
    folders: HashMap<WatchedFolder, PathBuf>,
    /// Digests of the names in folders that are on the way of a path: 50,000 certificates have
    /// 100,000 of them.
    names: HashSet<u64>,
    /// Those of `names` that somebody writes and has not closed, and since when.
    written: HashMap<u64, Instant>,
    /// The paths that led to them at the last [`Watched::follow`].
    partial: PartialFiles,
    hasher: RandomState,
}

/// The reason why not everything is watched.
#[derive(Debug)]
pub struct WatchFault {
    /// The first folder that cannot be watched. `None`: none can.
    folder: Option<PathBuf>,
    error: io::Error,
}

impl fmt::Display for WatchFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, error } = self;
        match folder {
            Some(folder) => {
                write!(f, "the folder {} cannot be watched: {error}", folder.display())?
            }
            None => write!(f, "no folder can be watched, because inotify fails: {error}")?,
        }
        f.write_str(inotify::hint(error))
    }
}

/// One pass over all paths.
struct Walk<'a> {
    watched: &'a Watched,
    inotify: &'a Inotify,
    names: HashSet<u64>,
    /// By its real path. `None`: it cannot be watched.
    folders: HashMap<PathBuf, Option<WatchedFolder>>,
    /// Those in which each write to a file is noted.
    written_in: HashSet<PathBuf>,
    /// The real paths of folders that were followed, by the path as it was given.
    followed: HashMap<PathBuf, Option<PathBuf>>,
    partial: PartialFiles,
    fault: Option<WatchFault>,
}

impl Watched {
    /// Ends a wait. `None`: unparking the thread does.
    pub fn ender(&self) -> Option<WaitEnder> {
        self.inotify.as_ref().map(Inotify::ender)
    }

    /// The paths whose files were being written at the last [`Watched::follow`].
    pub fn partial(&self) -> &PartialFiles {
        &self.partial
    }

    /// Returns the time at which the next file that is still being written is read nevertheless.
    pub fn next_overdue(&self, now: Instant) -> Option<Instant> {
        let overdue = self.written.values().map(|since| *since + PARTIAL_MAX);
        overdue.filter(|at| *at > now).min()
    }

    /// Watches the way of each of these paths as it is now, and nothing else. A folder that is
    /// missing is noticed when it appears.
    ///
    /// # Errors
    /// Why a folder that exists cannot be watched. All others are, unless the system gives no
    /// inotify: it is asked again at the next call.
    pub fn follow<P: AsRef<Path>>(
        &mut self,
        paths: impl Iterator<Item = P>,
    ) -> Result<(), WatchFault> {
        let inotify = match self.inotify.take().map_or_else(Inotify::new, Ok) {
            Ok(inotify) => inotify,
            Err(error) => {
                self.forget_all();
                return Err(WatchFault { folder: None, error });
            }
        };
        let mut walk = Walk {
            watched: self,
            inotify: &inotify,
            names: HashSet::with_capacity(self.names.len()),
            folders: HashMap::new(),
            written_in: HashSet::new(),
            followed: HashMap::new(),
            partial: PartialFiles::default(),
            fault: None,
        };
        for path in paths {
            let path = path.as_ref();
            let Ok(absolute) = std::path::absolute(path) else { continue };
            let file = walk.follow(&absolute, LINKS_MAX);
            if let Some(since) = file.and_then(|file| walk.watch_writes(&file)) {
                walk.partial.add(path.to_owned(), since);
            }
        }
        let Walk { names, folders, partial, fault, .. } = walk;
        let numbered = |(path, number): (_, Option<_>)| number.map(|number| (number, path));
        let folders: HashMap<_, _> = folders.into_iter().filter_map(numbered).collect();
        for gone in self.folders.keys().filter(|known| !folders.contains_key(known)) {
            inotify.forget(*gone);
        }
        self.written.retain(|digest, _| names.contains(digest));
        (self.folders, self.names, self.partial) = (folders, names, partial);
        self.inotify = Some(inotify);
        fault.map_or(Ok(()), Err)
    }

    /// Waits for a change on the way of a path, at most this long. Returns whether one came.
    ///
    /// # Errors
    /// If inotify fails. Nothing is watched until the next [`Watched::follow`].
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, WatchFault> {
        let Some(inotify) = &self.inotify else {
            thread::park_timeout(timeout);
            return Ok(false);
        };
        let Self { folders, names, written, hasher, .. } = self;
        let (mut is_event, mut is_changed) = (false, false);
        let waited = inotify.wait(timeout, |change| {
            is_event = true;
            let Change::Name(folder, name, contents) = change else {
                is_changed = true;
                return;
            };
            let digest = hasher.hash_one((folder, name));
            if !names.contains(&digest) {
                return;
            }
            is_changed |= contents != Contents::Partial;
            let file = folders.get(&folder).map(|folder| folder.join(name));
            match contents {
                Contents::Whole => _ = written.remove(&digest),
                Contents::Unsaid => {}
                Contents::New if !file.is_some_and(|file| is_empty(&file)) => {}
                Contents::New | Contents::Partial => {
                    written.entry(digest).or_insert_with(Instant::now);
                }
            }
        });
        if let Err(error) = waited {
            self.inotify = None;
            self.forget_all();
            return Err(WatchFault { folder: None, error });
        }
        if is_event && !is_changed {
            thread::sleep(PAUSE);
        }
        Ok(is_changed)
    }

    /// The numbers of folders are worth nothing without their inotify.
    fn forget_all(&mut self) {
        self.folders.clear();
        self.written.clear();
        self.partial = PartialFiles::default();
    }

    fn digest(&self, folder: WatchedFolder, name: &OsStr) -> u64 {
        self.hasher.hash_one((folder, name))
    }
}

/// True if this is a file without contents. Its writer may have created it and not written yet.
fn is_empty(file: &Path) -> bool {
    std::fs::symlink_metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
}

impl Walk<'_> {
    /// Has each write to a file noted. Returns since when somebody writes it and has not closed it.
    fn watch_writes(&mut self, file: &Path) -> Option<Instant> {
        let (folder, name) = (file.parent()?, file.file_name()?);
        let number = (*self.folders.get(folder)?)?;
        if !self.written_in.contains(folder) {
            // If this fails, the folder is gone, and the folder above says so.
            let _ = self.inotify.watch_writes(folder);
            self.written_in.insert(folder.to_owned());
        }
        self.watched.written.get(&self.watched.digest(number, name)).copied()
    }

    /// Follows a path through at most so many links. Gives the path without links, also if it leads
    /// to nothing.
    fn follow(&mut self, path: &Path, links: usize) -> Option<PathBuf> {
        let parent = path.parent();
        match (path.components().next_back()?, parent) {
            (Component::RootDir, _) => Some(path.to_owned()),
            (Component::Normal(name), Some(parent)) => {
                let folder = self.follow_folder(parent, links)?;
                self.note(&folder, name);
                let at = folder.join(name);
                match std::fs::read_link(&at) {
                    Ok(target) => self.follow(&folder.join(target), links.checked_sub(1)?),
                    // It is no link, or there is nothing.
                    Err(_) => Some(at),
                }
            }
            (Component::ParentDir, Some(parent)) => {
                let folder = self.follow_folder(parent, links)?;
                Some(folder.parent().unwrap_or(&folder).to_owned())
            }
            (_, Some(parent)) => self.follow_folder(parent, links),
            (_, None) => None,
        }
    }

    fn follow_folder(&mut self, path: &Path, links: usize) -> Option<PathBuf> {
        if let Some(known) = self.followed.get(path) {
            return known.clone();
        }
        let folder = self.follow(path, links);
        self.followed.insert(path.to_owned(), folder.clone());
        folder
    }

    /// Notes that a name in a folder is on the way.
    fn note(&mut self, folder: &Path, name: &OsStr) {
        let number = match self.folders.get(folder) {
            Some(known) => *known,
            None => {
                let number = match self.inotify.watch(folder) {
                    Ok(number) => Some(number),
                    Err(error) => {
                        // A missing folder is noticed by its name in the folder above.
                        if error.kind() != io::ErrorKind::NotFound {
                            let folder = Some(folder.to_owned());
                            self.fault.get_or_insert(WatchFault { folder, error });
                        }
                        None
                    }
                };
                self.folders.insert(folder.to_owned(), number);
                number
            }
        };
        if let Some(number) = number {
            self.names.insert(self.watched.digest(number, name));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::partial::Reading;

    const SOON: Duration = Duration::from_secs(60);

    fn folder(name: &str) -> PathBuf {
        let name = format!("eyelet-sources-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn is_noticed(watched: &mut Watched) -> bool {
        let end = Instant::now() + SOON;
        while Instant::now() < end {
            if watched.wait(SOON).unwrap() {
                return true;
            }
        }
        false
    }

    /// No event waits.
    fn is_quiet(watched: &mut Watched) -> bool {
        !watched.wait(Duration::ZERO).unwrap()
    }

    /// A Kubernetes secret: file -> ..data/file, ..data -> ..one, and ..data is replaced.
    #[test]
    fn a_link_on_the_way_that_is_swapped_is_noticed() {
        let folder = folder("swap");
        for version in ["..one", "..two"] {
            fs::create_dir(folder.join(version)).unwrap();
            fs::write(folder.join(version).join("file"), version).unwrap();
        }
        symlink("..one", folder.join("..data")).unwrap();
        symlink("..data/file", folder.join("file")).unwrap();
        // Also through a link from elsewhere, and with dots in the path.
        fs::create_dir(folder.join("etc")).unwrap();
        symlink(&folder, folder.join("etc/mount")).unwrap();
        for path in ["file", "etc/../file", "etc/mount/file"] {
            let mut watched = Watched::default();
            watched.follow([folder.join(path)].iter()).unwrap();
            fs::write(folder.join("other"), "").unwrap();
            assert!(is_quiet(&mut watched), "{path}: nothing on its way has changed");
            symlink("..two", folder.join("..new")).unwrap();
            fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
            assert!(is_noticed(&mut watched), "{path}");
            // The new way is another one.
            watched.follow([folder.join(path)].iter()).unwrap();
            while watched.wait(Duration::ZERO).unwrap() {}
            fs::write(folder.join("..one/file"), "nobody looks here").unwrap();
            assert!(is_quiet(&mut watched), "{path}");
            fs::write(folder.join("..two/file"), "new").unwrap();
            assert!(is_noticed(&mut watched), "{path}");
            fs::remove_file(folder.join("..data")).unwrap();
            symlink("..one", folder.join("..data")).unwrap();
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_that_goes_and_comes_again_is_noticed() {
        let folder = folder("comes");
        let (inner, file) = (folder.join("a/b"), folder.join("a/b/file"));
        let mut watched = Watched::default();
        // It is missing from the beginning, with its parent.
        watched.follow([&file].into_iter()).unwrap();
        for _ in 0..2 {
            fs::create_dir(folder.join("a")).unwrap();
            assert!(is_noticed(&mut watched));
            watched.follow([&file].into_iter()).unwrap();
            fs::create_dir(&inner).unwrap();
            assert!(is_noticed(&mut watched));
            watched.follow([&file].into_iter()).unwrap();
            fs::write(&file, "").unwrap();
            assert!(is_noticed(&mut watched));
            fs::remove_dir_all(folder.join("a")).unwrap();
            assert!(is_noticed(&mut watched));
            watched.follow([&file].into_iter()).unwrap();
            while watched.wait(Duration::ZERO).unwrap() {}
        }
        fs::remove_dir_all(folder).unwrap();
    }

    /// By whatever links a path leads to it.
    #[test]
    fn a_file_is_partial_from_its_first_write_to_its_close() {
        let _starts = crate::command::STARTS.lock();
        let folder = folder("partial");
        let (path, other) = (folder.join("mount/list"), folder.join("other"));
        fs::create_dir(folder.join("in")).unwrap();
        symlink("in", folder.join("mount")).unwrap();
        fs::write(folder.join("in/file"), "old").unwrap();
        symlink("file", folder.join("in/list")).unwrap();
        let mut watched = Watched::default();
        let mut reading = |after| {
            while watched.wait(Duration::ZERO).unwrap() {}
            watched.follow([&path, &other].into_iter()).unwrap();
            let now = Instant::now();
            assert_eq!(watched.partial().reading(&other, now), Reading::Whole);
            let overdue = watched.next_overdue(now);
            let reading = watched.partial().reading(&path, now + after);
            assert_eq!(overdue.is_some(), reading != Reading::Whole);
            reading
        };
        let mut is_partial = || {
            let readings = [Duration::ZERO, PARTIAL_MAX].map(&mut reading);
            assert!(
                [[Reading::Whole; 2], [Reading::Waits, Reading::Overdue]].contains(&readings),
                "{readings:?}"
            );
            readings[0] == Reading::Waits
        };
        assert!(!is_partial());
        for _ in 0..2 {
            // It is truncated, and nothing is written yet.
            let mut file = fs::File::create(folder.join("in/file")).unwrap();
            assert!(is_partial(), "truncated");
            file.write_all(b"one\n").unwrap();
            assert!(is_partial(), "cut");
            file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
            assert!(is_partial(), "its mode says nothing of its contents");
            file.write_all(b"two\n").unwrap();
            drop(file);
            assert!(!is_partial(), "closed");
            // Another takes its place.
            let file = fs::File::create(folder.join("in/file")).unwrap();
            assert!(is_partial());
            fs::write(folder.join("in/new"), "three").unwrap();
            fs::rename(folder.join("in/new"), folder.join("in/file")).unwrap();
            assert!(!is_partial(), "renamed");
            drop(file);
            // It is made anew, and nothing is written yet.
            fs::remove_file(folder.join("in/file")).unwrap();
            assert!(!is_partial(), "missing");
            let file = fs::File::create(folder.join("in/file")).unwrap();
            assert!(is_partial(), "made");
            drop(file);
            assert!(!is_partial(), "empty, and closed");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn links_in_a_circle_end() {
        let folder = folder("circle");
        symlink("two", folder.join("one")).unwrap();
        symlink("one", folder.join("two")).unwrap();
        let mut watched = Watched::default();
        watched.follow([folder.join("one")].iter()).unwrap();
        fs::remove_file(folder.join("two")).unwrap();
        assert!(is_noticed(&mut watched));
        fs::remove_dir_all(folder).unwrap();
    }
}
