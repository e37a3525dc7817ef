//! The dictionary store's folder: a file a version, a delta, a trained dictionary; written whole
//! or not at all, and believed only with its checksum. It must not know what is kept in memory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest;
use bytes::Bytes;
use eyelet_compress::Coding;
use eyelet_compress::dictionary::pattern::Pattern;
use eyelet_compress::dictionary::store::{Delta, Family, Step, Version};
use eyelet_compress::dictionary::{DICTIONARY_BYTES_MAX, Hash};
use eyelet_sys::file::OwnFolder;
use serde::{Deserialize, Serialize};

use super::coder::hash;
use super::trained::Trained;

/// A folder of our own: what is in it is offered to clients, so nobody else may write to it.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    path: PathBuf,
    own: Arc<OwnFolder>,
}

/// What a file says before its content.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Head {
    Version { rule: Box<str>, origin: Box<str>, pattern: Box<str>, path: Box<str>, seen: u64 },
    Delta { level: u8 },
    Trained { rule: Box<str>, pattern: Box<str> },
}

/// What was found in the folder.
pub(super) enum Found {
    Version(Version),
    Delta(Step, Delta),
}

impl Folder {
    /// Makes the folder where it is missing, readable by nobody else: responses are in it.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), own: Arc::new(OwnFolder::open(path)?) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn save_version(&self, version: &Version) -> io::Result<()> {
        let family = &version.family;
        let head = Head::Version {
            rule: family.rule.clone(),
            origin: family.origin.clone(),
            pattern: family.pattern.as_str().into(),
            path: version.path.clone(),
            seen: version.seen,
        };
        self.write(&version_name(version.hash), &head, &version.body)
    }

    pub(super) fn save_delta(&self, step: Step, delta: &Delta) -> io::Result<()> {
        self.write(&delta_name(step), &Head::Delta { level: delta.level }, &delta.coded)
    }

    pub(super) fn save_trained(
        &self,
        rule: &str,
        pattern: &Pattern,
        content: &[u8],
    ) -> io::Result<PathBuf> {
        let name = format!("{}.trained", hash(content));
        let head = Head::Trained { rule: rule.into(), pattern: pattern.as_str().into() };
        self.write(&name, &head, content)?;
        Ok(self.path.join(name))
    }

    pub(super) fn remove_version(&self, hash: Hash) {
        self.remove(&version_name(hash));
    }

    pub(super) fn remove_delta(&self, step: Step) {
        self.remove(&delta_name(step));
    }

    /// Versions and deltas that are whole. What is not, goes: it could only be made again.
    pub(super) fn load(&self) -> io::Result<Vec<Found>> {
        let mut all = Vec::new();
        for name in self.own.names()? {
            let is_ours =
                [".version", ".dcz", ".dcb", BESIDE].iter().any(|end| name.ends_with(end));
            if !is_ours {
                continue;
            }
            match self.read(&name).and_then(|(head, content)| found(&name, head, content)) {
                Some(found) => all.push(found),
                None => {
                    tracing::warn!(
                        "{}: not a whole file; removed",
                        self.path.join(&name).display()
                    );
                    self.remove(&name);
                }
            }
        }
        Ok(all)
    }

    /// Trained dictionaries that are whole. Others are left: people put them there.
    pub(super) fn load_trained(&self) -> io::Result<Vec<Trained>> {
        let mut all = Vec::new();
        for name in self.own.names()?.iter().filter(|name| name.ends_with(".trained")) {
            let trained = self.read(name).and_then(|(head, content)| match head {
                Head::Trained { rule, pattern } => {
                    Trained::new(&rule, Pattern::new(&pattern).ok()?, content)
                }
                Head::Version { .. } | Head::Delta { .. } => None,
            });
            match trained {
                Some(trained) => all.push(trained),
                None => tracing::warn!("{}: no dictionary", self.path.join(name).display()),
            }
        }
        all.sort_by_key(|trained| trained.hash);
        Ok(all)
    }

    /// Names of trained dictionaries: what changes when one comes or goes.
    pub(super) fn trained_names(&self) -> Vec<String> {
        let mut names = self.own.names().unwrap_or_default();
        names.retain(|name| name.ends_with(".trained"));
        names.sort_unstable();
        names
    }

    /// Beside its place first, then there by renaming: a crash leaves the old file or none.
    fn write(&self, name: &str, head: &Head, content: &[u8]) -> io::Result<()> {
        let encoded = encode(head, content).map_err(io::Error::other)?;
        self.own.write(name, &format!("{name}{BESIDE}"), &encoded)
    }

    fn read(&self, name: &str) -> Option<(Head, Bytes)> {
        decode(Bytes::from(self.own.read(name, FILE_BYTES_MAX).ok()?))
    }

    fn remove(&self, name: &str) {
        if let Err(error) = self.own.remove(name) {
            tracing::warn!("{}: cannot be removed: {error}", self.path.join(name).display());
        }
    }
}

fn version_name(hash: Hash) -> String {
    format!("{hash}.version")
}

fn delta_name(step: Step) -> String {
    format!("{}-{}.{}", step.from, step.to, step.coding.name())
}

fn found(name: &str, head: Head, content: Bytes) -> Option<Found> {
    match head {
        Head::Version { rule, origin, pattern, path, seen } => {
            let hash = Hash::from_hex(name.strip_suffix(".version")?)?;
            if hash != super::coder::hash(&content) {
                return None;
            }
            let family = Family { rule, origin, pattern: Pattern::new(&pattern).ok()? };
            Some(Found::Version(Version { hash, family, path, body: content, seen }))
        }
        Head::Delta { level } => {
            let (ends, coding) = name.split_once('.')?;
            let coding = match coding {
                "dcz" => Coding::Dcz,
                "dcb" => Coding::Dcb,
                _ => return None,
            };
            let (from, to) = ends.split_once('-')?;
            let step = Step { from: Hash::from_hex(from)?, to: Hash::from_hex(to)?, coding };
            Some(Found::Delta(step, Delta { coded: content, level }))
        }
        Head::Trained { .. } => None,
    }
}

/// Magic, length of the head, head as JSON, content, SHA-256 of all that.
fn encode(head: &Head, content: &[u8]) -> Result<Vec<u8>, String> {
    let head = serde_json::to_vec(head).map_err(|error| error.to_string())?;
    let length = u32::try_from(head.len()).map_err(|error| error.to_string())?;
    let mut encoded = Vec::with_capacity(MAGIC.len() + 4 + head.len() + content.len() + SUM);
    encoded.extend_from_slice(MAGIC);
    encoded.extend_from_slice(&length.to_le_bytes());
    encoded.extend_from_slice(&head);
    encoded.extend_from_slice(content);
    let sum = digest::digest(&digest::SHA256, &encoded);
    encoded.extend_from_slice(sum.as_ref());
    Ok(encoded)
}

fn decode(encoded: Bytes) -> Option<(Head, Bytes)> {
    let end = encoded.len().checked_sub(SUM)?;
    let sum = digest::digest(&digest::SHA256, encoded.get(..end)?);
    if sum.as_ref() != encoded.get(end..)? {
        return None;
    }
    let after = encoded.get(..end)?.strip_prefix(MAGIC)?;
    let (length, after) = after.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let head = serde_json::from_slice(after.get(..length)?).ok()?;
    let from = MAGIC.len() + 4 + length;
    Some((head, encoded.slice(from..end)))
}

/// How the name of a file ends that is not written yet.
const BESIDE: &str = ".new";
const MAGIC: &[u8] = b"EYELETD1";
/// Bytes of SHA-256.
const SUM: usize = 32;
/// Bytes: the largest dictionary and its head.
const FILE_BYTES_MAX: u64 = DICTIONARY_BYTES_MAX as u64 + (64 << 10);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_file_is_believed_whole_or_not_at_all() {
        let head = Head::Delta { level: 11 };
        let encoded = encode(&head, b"content").unwrap();
        let (_, content) = decode(Bytes::from(encoded.clone())).unwrap();
        assert_eq!(content, &b"content"[..]);
        for at in 0..encoded.len() {
            let mut broken = encoded.clone();
            broken[at] ^= 1;
            assert!(decode(Bytes::from(broken)).is_none(), "byte {at}");
            assert!(decode(Bytes::copy_from_slice(&encoded[..at])).is_none(), "cut at {at}");
        }
    }
}
