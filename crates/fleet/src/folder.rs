//! A folder as the store of the processes of one machine, or of machines that share a file system
//! on which link(2) is atomic.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use eyelet_sys::file::OwnFolder;

use crate::{StoreError, VALUE_BYTES_MAX};

/// Bytes before the value: when it ends, in seconds since 1970.
const END_BYTES: usize = 8;
/// Most bytes of a file.
const FILE_BYTES_MAX: u64 = (END_BYTES + VALUE_BYTES_MAX) as u64;
/// Most files that one write looks through for those that have ended.
const SWEEP_MAX: usize = 1024;

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
        let beside = format!("{name}.{:016x}", u64::from_be_bytes(random));
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

/// Removes values that have ended, and files that a crash left behind. A value that another process
/// stores in the place of one that has ended is lost if that happens between these two calls: a
/// lock is then taken twice, and a certificate is ordered once more.
fn sweep(folder: &OwnFolder) -> Result<(), StoreError> {
    for name in folder.names()?.iter().take(SWEEP_MAX) {
        if matches!(read(folder, name), Ok(None)) {
            folder.remove(name)?;
        }
    }
    Ok(())
}

fn now_secs() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()
}
