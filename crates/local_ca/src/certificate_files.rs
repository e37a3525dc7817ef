//! `eyelet cert`: a certificate and its key as files for another program.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::authority::random_hex;
use crate::{Authority, LeafKey, LocalCaError, SubjectName};

/// Mode of a certificate, which is public.
const PUBLIC: u32 = 0o644;
/// Mode of a key.
const PRIVATE: u32 = 0o600;

/// Writes NAME.pem (the chain) and NAME.key into a folder, by the first name. Files of an earlier
/// call are replaced, each at once. Returns both paths.
///
/// # Errors
/// As [`Authority::sign`], and if a file cannot be written.
pub fn write_files(
    authority: &Authority,
    names: &[SubjectName],
    lifetime: Duration,
    folder: &Path,
) -> Result<[PathBuf; 2], LocalCaError> {
    let key = LeafKey::generate()?;
    let leaf = authority.sign(names, &key, lifetime, SystemTime::now())?;
    let stem = names.first().map(ToString::to_string).unwrap_or_default().replace('*', "_");
    let [certificate, private] = ["pem", "key"].map(|end| folder.join(format!("{stem}.{end}")));
    replace(&private, PRIVATE, key.pem().as_bytes())?;
    replace(&certificate, PUBLIC, leaf.pem.as_bytes())?;
    Ok([certificate, private])
}

/// Writes a file beside, and renames it. After a failure nothing is left beside.
fn replace(path: &Path, mode: u32, content: &[u8]) -> Result<(), LocalCaError> {
    let at = |why| LocalCaError::NotWritten { path: path.to_owned(), why };
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", random_hex()?));
    let beside = PathBuf::from(beside);
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|why| {
        // The first error says more than an error of the clean-up.
        let _ = fs::remove_file(&beside);
        at(why)
    })
}
