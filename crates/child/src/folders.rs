//! Watches folders with all folders in them for changes of files, and waits until it is quiet.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use eyelet_sys::inotify::{self, Change, Inotify, WaitEnder};

/// Most folders that are watched: a project without its dependencies has some hundreds. The kernel
/// needs about 1 KiB for each.
const FOLDERS_MAX: usize = 4096;
/// The time from the last change until an application is started again: an editor writes several
/// files.
const QUIET: Duration = Duration::from_millis(200);
/// The time from the first change until then, even if changes go on.
const QUIET_MAX: Duration = Duration::from_secs(2);
/// Folders with files that tools write, and that nobody edits.
const SKIPPED: [&str; 4] = ["__pycache__", "node_modules", "target", "venv"];
/// Ends of names of files that editors and interpreters write beside a source.
const SKIPPED_ENDS: [&str; 5] = ["~", ".pyc", ".swp", ".swx", ".tmp"];
/// Longest wait between two events; waiting then begins again.
const WAIT: Duration = Duration::from_hours(1);

/// The reason why an application cannot be supervised.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// The system refuses it.
    #[error("cannot watch {}: {error}{}", folder.display(), inotify::hint(error))]
    Unwatchable {
        folder: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// There are too many.
    #[error("cannot watch {}: it has more than {FOLDERS_MAX} folders; name one inside",
        .0.display())]
    TooMany(PathBuf),
    /// The system has no thread for it.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Watched folders.
pub(crate) struct Folders {
    inotify: Inotify,
    roots: Vec<PathBuf>,
}

impl Folders {
    /// Watches these folders and the folders in them.
    pub(crate) fn new(roots: &[PathBuf]) -> Result<Self, SuperviseError> {
        let refused = |error| SuperviseError::Unwatchable {
            folder: roots.first().cloned().unwrap_or_default(),
            error,
        };
        let inotify = Inotify::new().map_err(refused)?;
        let folders = Self { inotify, roots: roots.to_vec() };
        folders.follow()?;
        Ok(folders)
    }

    pub(crate) fn ender(&self) -> WaitEnder {
        self.inotify.ender()
    }

    /// Waits for changes and until it is quiet again. Calls `ends` after each wait; once it is
    /// true, returns `false`.
    pub(crate) fn wait(&self, ends: impl Fn() -> bool) -> io::Result<bool> {
        let mut changed: Option<(Instant, Instant)> = None;
        loop {
            let due = changed.map(|(first, last)| (last + QUIET).min(first + QUIET_MAX));
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                // Folders that are new are watched from now on. Those that cannot be are not.
                let _ = self.follow();
                return Ok(true);
            }
            let mut is_change = false;
            self.inotify.wait(left.unwrap_or(WAIT), |change| {
                is_change |= match change {
                    Change::Name(_, name, _) => !is_skipped(name),
                    Change::Unknown => true,
                };
            })?;
            if ends() {
                return Ok(false);
            }
            if is_change {
                let now = Instant::now();
                changed = Some((changed.map_or(now, |(first, _)| first), now));
            }
        }
    }

    /// Watches all folders that are there now. Watching one again does nothing.
    fn follow(&self) -> Result<(), SuperviseError> {
        let mut left = self.roots.clone();
        let mut watched = 0;
        while let Some(folder) = left.pop() {
            watched += 1;
            if watched > FOLDERS_MAX {
                let root = self.roots.iter().find(|root| folder.starts_with(root));
                return Err(SuperviseError::TooMany(root.unwrap_or(&folder).clone()));
            }
            match self.inotify.watch(&folder) {
                Ok(_) => left.extend(inside(&folder)),
                // It has gone since it was seen.
                Err(_) if !self.roots.contains(&folder) => {}
                Err(error) => return Err(SuperviseError::Unwatchable { folder, error }),
            }
        }
        Ok(())
    }
}

/// The folders in a folder, without links: those may lead in a circle.
fn inside(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let wanted = folders.filter(|entry| !is_skipped(&entry.file_name()));
    wanted.take(FOLDERS_MAX + 1).map(|entry| entry.path()).collect()
}

/// True if a name is hidden, or is one that tools write.
fn is_skipped(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with('.')
        || SKIPPED.contains(&&*name)
        || SKIPPED_ENDS.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_count_and_what_tools_write_does_not() {
        for (name, skipped) in [
            ("server.js", false),
            ("app.py", false),
            ("templates", false),
            (".git", true),
            (".server.js.swp", true),
            ("server.js~", true),
            ("app.cpython-311.pyc", true),
            ("node_modules", true),
        ] {
            assert_eq!(is_skipped(OsStr::new(name)), skipped, "{name}");
        }
    }

    #[test]
    fn changes_deep_inside_are_seen_also_in_new_folders() -> io::Result<()> {
        let root = tempfile::tempdir()?;
        let deep = root.path().join("a/b");
        fs::create_dir_all(&deep)?;
        let folders = Folders::new(&[root.path().to_owned()]).map_err(io::Error::other)?;
        fs::write(deep.join("file"), "1")?;
        assert!(folders.wait(|| false)?);
        let newer = deep.join("c");
        fs::create_dir(&newer)?;
        assert!(folders.wait(|| false)?);
        fs::write(newer.join("file"), "1")?;
        assert!(folders.wait(|| false)?);
        folders.ender().end();
        assert!(!folders.wait(|| true)?);
        let gone = Folders::new(&[root.path().join("gone")]);
        assert!(matches!(gone, Err(SuperviseError::Unwatchable { .. })));
        Ok(())
    }
}
