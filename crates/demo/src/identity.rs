//! The demo's folder, its certificate authority, and the certificate of its origin.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use eyelet_config::LocalSettings;
use eyelet_local_ca::{Authority, LEAF_LIFETIME, LeafKey, LocalCaError, SubjectName};
use eyelet_sys::process;

/// The name of the page, which is terminated.
pub const APP_NAME: &str = "app.localhost";
/// The name of the origin, which is spliced.
pub const ORIGIN_NAME: &str = "origin.localhost";
/// A name without a rule.
pub const NOBODY_NAME: &str = "nobody.localhost";
/// The name that the crowd's connections ask for.
pub const CROWD_NAME: &str = "crowd.localhost";
/// A name that the origin has no certificate for.
pub const FALSE_NAME: &str = "bank.example";

/// Names to try: one suffices, unless another folder has the same name.
const FOLDER_TRIES: u32 = 8;

/// A temporary folder that only its owner may enter. Dropping it removes it and its files.
#[derive(Debug)]
pub(crate) struct TemporaryFolder {
    path: PathBuf,
}

impl TemporaryFolder {
    /// Makes `eyelet-demo-…` in the system's temporary folder, mode 0700. The name is short,
    /// because people type it.
    ///
    /// # Errors
    /// The system's error, e.g. that the disk is full. An existing folder is never reused: another
    /// user could have made it.
    pub(crate) fn create() -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for attempt in 0..FOLDER_TRIES {
            let random = process::random::<3>().unwrap_or([0, 0, attempt as u8]);
            let [a, b, c] = random;
            let path = std::env::temp_dir().join(format!("eyelet-demo-{a:02x}{b:02x}{c:02x}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file in this folder, mode 0600, and returns its path.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn write(&self, name: &str, text: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(text.as_bytes())?;
        Ok(path)
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // The system's own cleaning removes what stays.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A certificate and its key for a TLS server.
#[derive(Debug)]
pub(crate) struct Identity {
    /// The certificate alone: the client has the authority's.
    pub(crate) certificate: CertificateDer<'static>,
    /// Its key, PKCS#8.
    pub(crate) key: PrivateKeyDer<'static>,
}

/// Makes the demo's own authority (ECDSA P-256), so that no store has to trust what a demo signs,
/// and the origin's certificate. The origin's key is not written: the edge never reads it.
///
/// # Errors
/// A disk that cannot be written to, or a key that could not be made.
pub(crate) fn make(folder: &TemporaryFolder) -> Result<(Authority, Identity), LocalCaError> {
    let settings = LocalSettings { folder: Some(folder.path().join("ca")), ..Default::default() };
    let authority = Authority::open(&settings)?;
    let (name, key) = (SubjectName::Dns(ORIGIN_NAME.into()), LeafKey::generate()?);
    let leaf = authority.sign(&[name], &key, LEAF_LIFETIME, SystemTime::now())?;
    Ok((authority, Identity { certificate: leaf.certificate, key: key.der().clone_key() }))
}
