//! The dictionary store's folder: one file per version, delta and trained dictionary. A file is
//! written completely or not at all, and read only if its checksum is right.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use eyelet_compress::dictionary::Hash;
use eyelet_compress::dictionary::pattern::Pattern;
use eyelet_compress::dictionary::store::{Delta, Step, Version};
use eyelet_sys::file::OwnFolder;

use super::stored::{self, FILE_BYTES_MAX, Found};
use super::trained::Trained;

/// Suffix of a file that is being written.
const BESIDE: &str = ".new";
/// Suffix of a version.
const VERSION: &str = ".version";

/// A folder of our own. Clients get its contents, so no other user may write to it.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    own: Arc<OwnFolder>,
}

impl Folder {
    /// Opens the folder. Creates it if it is missing, readable by this user only, because it
    /// contains responses.
    ///
    /// # Errors
    /// If it cannot be created, or another user may write to it.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), own: Arc::new(OwnFolder::open(path)?) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn save_version(&self, version: &Version) -> io::Result<()> {
        self.write(&stored::version_name(version.hash), &stored::encode_version(version)?)
    }

    pub(super) fn save_delta(&self, step: Step, delta: &Delta) -> io::Result<()> {
        self.write(&stored::delta_name(step), &stored::encode_delta(step, delta)?)
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
        self.write(&name, &stored::encode_trained(rule, pattern, content)?)?;
        Ok(self.path.join(name))
    }

    pub(super) fn remove_version(&self, hash: Hash) {
        self.remove(&stored::version_name(hash));
    }

    pub(super) fn remove_delta(&self, step: Step) {
        self.remove(&stored::delta_name(step));
    }

    /// Reads the undamaged versions and deltas one by one, versions first. Removes other files of
    /// the store, whose content can be made again.
    pub(super) fn load(&self) -> io::Result<impl Iterator<Item = Found> + '_> {
        let is_ours =
            |name: &String| [VERSION, ".dcz", ".dcb", BESIDE].iter().any(|end| name.ends_with(end));
        let mut names = self.own.names()?;
        names.retain(is_ours);
        names.sort_by_key(|name| !name.ends_with(VERSION));
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
    pub(super) fn trained_names(&self) -> Vec<String> {
        let mut names = self.own.names().unwrap_or_default();
        names.retain(|name| name.ends_with(".trained"));
        names.sort_unstable();
        names
    }

    /// Writes under another name first, then renames: after a crash there is the old file or none.
    fn write(&self, name: &str, encoded: &[u8]) -> io::Result<()> {
        self.own.write(name, &format!("{name}{BESIDE}"), encoded)
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
