//! The demo's certificate authority: a temporary folder, and the PEM files in it.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// The name of the demo's origin, which is spliced.
pub const ORIGIN_NAME: &str = "origin.demo.test";
/// The name of the demo's web application, which is terminated.
pub const APP_NAME: &str = "app.demo.test";

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Days that certificates are valid: longer than a demo runs.
const LIFE_DAYS: u32 = 30;
/// Names to try: one suffices, unless another process made the same folder in the same nanosecond.
const FOLDER_TRIES: u32 = 8;

/// A temporary folder that only its owner may enter. Dropping it removes it and its files.
#[derive(Debug)]
pub struct TemporaryFolder {
    path: PathBuf,
}

impl TemporaryFolder {
    /// Makes `eyelet-demo-…` in the system's temporary folder, mode 0700.
    ///
    /// # Errors
    /// The system's error, e.g. that the disk is full. An existing folder is never reused: another
    /// user could have made it.
    pub fn create() -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..FOLDER_TRIES {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let name = format!("eyelet-demo-{}-{:x}", std::process::id(), since.as_nanos());
            let path = std::env::temp_dir().join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// The path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file in this folder, mode 0600, and returns its path.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&self, name: &str, text: &str) -> io::Result<PathBuf> {
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
pub struct Identity {
    /// The certificate alone: the client has the authority's.
    pub certificate: CertificateDer<'static>,
    /// Its key, PKCS#8.
    pub key: PrivateKeyDer<'static>,
}

/// The files for the edge and curl.
#[derive(Debug)]
pub struct DemoCertificates {
    /// The authority that a client trusts (PEM).
    pub ca: PathBuf,
    /// The application's certificate, for the edge's terminate rule (PEM).
    pub app_certificate: PathBuf,
    /// Its key (PEM, PKCS#8).
    pub app_key: PathBuf,
}

/// Makes the authority and both certificates (ECDSA P-256), and writes the files. The origin's key
/// is not written: the edge never reads it.
///
/// # Errors
/// A disk that cannot be written to, or (as `Other`) a key that could not be made.
pub fn make(folder: &TemporaryFolder) -> io::Result<(DemoCertificates, Identity)> {
    let ca_key = KeyPair::generate().map_err(io::Error::other)?;
    let ca_params = authority()?;
    let ca = ca_params.self_signed(&ca_key).map_err(io::Error::other)?;
    let issuer = Issuer::new(ca_params, ca_key);

    let (app, app_key) = leaf(&[APP_NAME, "localhost", "127.0.0.1"], &issuer)?;
    let (origin, origin_key) = leaf(&[ORIGIN_NAME], &issuer)?;
    let origin_key = PrivatePkcs8KeyDer::from(origin_key.serialize_der());
    let files = DemoCertificates {
        ca: folder.write("ca.pem", &ca.pem())?,
        app_certificate: folder.write("app.pem", &app.pem())?,
        app_key: folder.write("app.key", &app_key.serialize_pem())?,
    };
    let origin = Identity { certificate: origin.der().clone(), key: origin_key.into() };
    Ok((files, origin))
}

fn authority() -> io::Result<CertificateParams> {
    let mut params = dated(&[])?;
    params.distinguished_name.push(DnType::CommonName, "Eyelet demo authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn leaf(names: &[&str], issuer: &Issuer<'_, KeyPair>) -> io::Result<(rcgen::Certificate, KeyPair)> {
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let mut params = dated(names)?;
    params.distinguished_name.push(DnType::CommonName, names[0]);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, issuer).map_err(io::Error::other)?;
    Ok((certificate, key))
}

/// Valid from yesterday, so that a client with a slow clock accepts it.
fn dated(names: &[&str]) -> io::Result<CertificateParams> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).map_err(io::Error::other)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = rcgen::date_time_ymd(1970, 1, 1) + since_epoch;
    params.not_before = now - DAY;
    params.not_after = now + DAY * LIFE_DAYS;
    Ok(params)
}
