//! A folder as the store of the processes of one machine, or of machines that share a file system
//! on which link(2) is atomic.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use eyelet_sys::file::OwnFolder;

use crate::sealed;
use crate::{StoreError, VALUE_BYTES_MAX};

/// Bytes before the value: when it ends, in seconds since 1970.
const END_BYTES: usize = 8;
/// Most bytes of a file.
const FILE_BYTES_MAX: u64 = (END_BYTES + VALUE_BYTES_MAX) as u64;
/// Most files that one write looks through for those that have ended.
const SWEEP_MAX: usize = 1024;

/// Hexadecimal digits of 64 random bits.
const RANDOM_DIGITS: usize = 16;
/// No process writes a file for so long.
const BESIDE_AGE_MAX: Duration = Duration::from_secs(3600);

/// A value is a file. It is written completely under a name of its own, and then linked.
pub struct FolderStore {
    path: PathBuf,
}

impl FolderStore {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        read(&OwnFolder::open(&self.path)?, name)
    }

    pub fn put_if_absent(
        &self,
        name: &str,
        sealed: &[u8],
        lifetime: Duration,
    ) -> Result<(), StoreError> {
        let (folder, beside, content) = self.prepare(name, sealed, lifetime)?;
        // The sweep may not have reached it.
        if folder.read(name, FILE_BYTES_MAX).is_ok_and(|content| has_ended(&content)) {
            folder.remove(name)?;
        }
        folder.create(name, &beside, &content)?;
        Ok(())
    }

    pub fn put(&self, name: &str, sealed: &[u8], lifetime: Duration) -> Result<(), StoreError> {
        let (folder, beside, content) = self.prepare(name, sealed, lifetime)?;
        Ok(folder.write(name, &beside, &content)?)
    }

    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        Ok(OwnFolder::open(&self.path)?.remove(name)?)
    }

    /// The folder, a name to write under at first, and what is written.
    fn prepare(
        &self,
        name: &str,
        sealed: &[u8],
        lifetime: Duration,
    ) -> Result<(OwnFolder, String, Vec<u8>), StoreError> {
        // Opened each time: it may be on a disk that comes and goes.
        let folder = OwnFolder::open(&self.path)?;
        sweep(&folder)?;
        let end = now_secs().saturating_add(lifetime.as_secs());
        let content = [&end.to_be_bytes()[..], sealed].concat();
        // Random, because processes in containers may share a folder and a process id.
        let mut random = [0; 8];
        aws_lc_rs::rand::fill(&mut random).map_err(|_| StoreError::Value("no randomness"))?;
        let random = u64::from_be_bytes(random);
        let beside = format!("{name}.{random:0RANDOM_DIGITS$x}");
        Ok((folder, beside, content))
    }
}

fn read(folder: &OwnFolder, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
    let content = match folder.read(name, FILE_BYTES_MAX) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        content => content?,
    };
    let (end, sealed) =
        content.split_first_chunk().ok_or(StoreError::Value("a file in it is cut"))?;
    Ok((now_secs() < u64::from_be_bytes(*end)).then(|| sealed.to_vec()))
}

/// Removes values that have ended, and what a crash left behind of a value. A file that is not
/// certainly one of these stays. Between these two calls another process may store a value in the
/// place of one that has ended. It is then lost: a lock is taken twice, and a certificate is
/// ordered once more.
fn sweep(folder: &OwnFolder) -> Result<(), StoreError> {
    for name in folder.names()?.iter().take(SWEEP_MAX) {
        let (value, beside) = match name.split_once('.') {
            Some((value, beside)) => (value, Some(beside)),
            None => (name.as_str(), None),
        };
        if !is_value_name(value) || !beside.is_none_or(is_random) {
            continue;
        }
        let is_garbage = match folder.read(name, FILE_BYTES_MAX) {
            Ok(content) if has_ended(&content) => true,
            // Another process may be writing it now, and gives it its name before its age is asked.
            Ok(_) => beside.is_some() && folder.age(name).is_ok_and(|age| age > BESIDE_AGE_MAX),
            Err(_) => false,
        };
        if is_garbage {
            folder.remove(name)?;
        }
    }
    Ok(())
}

/// True if a file holds a value that has ended.
fn has_ended(content: &[u8]) -> bool {
    content.split_first_chunk().is_some_and(|(end, value)| {
        sealed::is_sealed(value) && u64::from_be_bytes(*end) <= now_secs()
    })
}

/// True if a value may have this name: words of small letters and digits, joined by hyphens.
fn is_value_name(name: &str) -> bool {
    let is_word = |word: &str| {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        !word.is_empty() && word.bytes().all(is_plain)
    };
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.contains('-')
        && name.split('-').all(is_word)
}

/// True if this ends the name of a file that is being written.
fn is_random(end: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    end.len() == RANDOM_DIGITS && end.bytes().all(is_hex)
}

fn now_secs() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()
}
