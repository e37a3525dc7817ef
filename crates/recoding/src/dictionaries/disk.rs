//! The dictionary store's folder: one file per version, delta and trained dictionary. A file is
//! written completely or not at all, and read only if its checksum is right.

use std::cmp::Reverse;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use eyelet_compress::dictionary::Hash;
use eyelet_compress::dictionary::learned::{Learned, LearnedOrigin};
use eyelet_compress::dictionary::pattern::Pattern;
use eyelet_compress::dictionary::store::{Delta, Step, StoredVersion};
use eyelet_sys::file::OwnFolder;

use super::stored::{self, FILE_BYTES_MAX, Found};
use super::trained::Trained;

/// Suffix of a file that is being written.
const BESIDE: &str = ".new";
/// Suffix of a version.
const VERSION: &str = ".version";
/// Suffix of a dictionary that this edge has learned as a client.
const LEARNED: &str = ".learned";

/// The folder that the configuration names. It is made when there is something to put into it.
#[derive(Debug)]
pub(crate) struct FolderAt {
    path: Option<PathBuf>,
    /// `None` in it: it cannot be used.
    opened: OnceLock<Option<DictionaryFolder>>,
}

impl FolderAt {
    pub(crate) fn new(path: Option<&Path>) -> Self {
        Self { path: path.map(Path::to_owned), opened: OnceLock::new() }
    }

    /// True if the configuration names one.
    pub(crate) fn is_named(&self) -> bool {
        self.path.is_some()
    }

    pub(crate) fn exists(&self) -> bool {
        self.path.as_deref().is_some_and(Path::is_dir)
    }

    /// The open folder, which is made if it is missing. One that cannot be used is a warning.
    pub(crate) fn open(&self) -> Option<&DictionaryFolder> {
        let open = || {
            let path = self.path.as_deref()?;
            let opened = DictionaryFolder::open(path);
            let warn = |error: &io::Error| {
                tracing::warn!("{}: {error}: dictionaries stay in memory only", path.display());
            };
            opened.inspect_err(warn).ok()
        };
        self.opened.get_or_init(open).as_ref()
    }

    /// The folder, if it is open.
    pub(crate) fn get(&self) -> Option<&DictionaryFolder> {
        self.opened.get()?.as_ref()
    }
}

/// A folder of our own. Clients get its contents, so no other user may write to it.
#[derive(Clone, Debug)]
pub struct DictionaryFolder {
    path: PathBuf,
    own: Arc<OwnFolder>,
    /// True if the last write failed: while none succeeds, a full disk is one line in the log.
    is_failing: Arc<AtomicBool>,
}

impl DictionaryFolder {
    /// Opens the folder. Creates it if it is missing, readable by this user only, because it
    /// contains responses.
    ///
    /// # Errors
    /// If it cannot be created, or another user may write to it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let own = Arc::new(OwnFolder::open(path)?);
        Ok(Self { path: path.to_owned(), own, is_failing: Arc::default() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn save_version(&self, version: &StoredVersion) -> bool {
        self.write(&stored::version_name(version.hash), stored::encode_version(version))
    }

    pub(crate) fn save_delta(&self, step: Step, delta: &Delta) -> bool {
        self.write(&stored::delta_name(step), stored::encode_delta(step, delta))
    }

    /// Writes a trained dictionary for a rule. Returns its path.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save_trained(
        &self,
        rule: &str,
        pattern: &Pattern,
        content: &[u8],
    ) -> io::Result<PathBuf> {
        let name = stored::trained_name(content);
        let encoded = stored::encode_trained(rule, pattern, content)?;
        self.own.write(&name, &format!("{name}{BESIDE}"), &encoded)?;
        Ok(self.path.join(name))
    }

    pub(crate) fn save_learned(&self, origin: &LearnedOrigin, learned: &Learned) -> bool {
        self.write(&stored::learned_name(learned.file), stored::encode_learned(origin, learned))
    }

    pub(crate) fn remove_learned(&self, file: Hash) {
        self.remove(&stored::learned_name(file));
    }

    pub(crate) fn remove_version(&self, hash: Hash) {
        self.remove(&stored::version_name(hash));
    }

    pub(crate) fn remove_delta(&self, step: Step) {
        self.remove(&stored::delta_name(step));
    }

    /// Reads the undamaged versions, deltas and learned dictionaries one by one: versions first,
    /// and of what was learned the oldest first. Removes other files of the store, whose content
    /// can be made again.
    pub(crate) fn load(&self) -> io::Result<impl Iterator<Item = Found> + '_> {
        let ours = [VERSION, ".dcz", ".dcb", LEARNED, BESIDE];
        let mut names = self.own.names()?;
        names.retain(|name| ours.iter().any(|end| name.ends_with(end)));
        names.sort_by_cached_key(|name| {
            let age = if name.ends_with(LEARNED) { self.own.age(name).ok() } else { None };
            (!name.ends_with(VERSION), age.map(Reverse))
        });
        Ok(names.into_iter().filter_map(|name| {
            let found = self.read(&name).and_then(|file| stored::decode(&name, file));
            if found.is_none() {
                tracing::warn!("{}: incomplete file; removed", self.path.join(&name).display());
                self.remove(&name);
            }
            found
        }))
    }

    /// Reads the undamaged trained dictionaries. Others are left, because people put them there.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn load_trained(&self) -> io::Result<Vec<Trained>> {
        let mut all = Vec::new();
        for name in self.own.names()?.iter().filter(|name| name.ends_with(".trained")) {
            let trained = self
                .read(name)
                .and_then(stored::decode_trained)
                .and_then(|file| Trained::new(&file.rule, file.pattern, file.content));
            match trained {
                Some(trained) => all.push(trained),
                None => tracing::warn!("{}: not a dictionary", self.path.join(name).display()),
            }
        }
        all.sort_by_key(|trained| trained.hash);
        Ok(all)
    }

    /// The names of trained dictionaries, which change when one is added or removed.
    pub(crate) fn trained_names(&self) -> Vec<String> {
        let mut names = self.own.names().unwrap_or_default();
        names.retain(|name| name.ends_with(".trained"));
        names.sort_unstable();
        names
    }

    /// Writes under another name first, then renames: after a crash of the program there is the old
    /// file or none. A power failure may damage it, which its checksum shows: to sync a thousand
    /// files of a tree would keep others from the disk for seconds. Returns whether it is written.
    fn write(&self, name: &str, encoded: io::Result<Vec<u8>>) -> bool {
        let write =
            |bytes: Vec<u8>| self.own.write_unsynced(name, &format!("{name}{BESIDE}"), &bytes);
        let written = encoded.and_then(write);
        let was_failing = self.is_failing.swap(written.is_err(), Relaxed);
        if let Err(error) = &written
            && !was_failing
        {
            let path = self.path.display();
            tracing::warn!("{path}: {error}: new dictionaries stay in memory only");
        }
        written.is_ok()
    }

    fn read(&self, name: &str) -> Option<Bytes> {
        self.own.read(name, FILE_BYTES_MAX).ok().map(Bytes::from)
    }

    fn remove(&self, name: &str) {
        if let Err(error) = self.own.remove(name) {
            tracing::warn!("{}: cannot be removed: {error}", self.path.join(name).display());
        }
    }
}
