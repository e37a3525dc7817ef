//! The demo's own certificate authority: a folder that goes away, and the PEM files in it.
//! Must not know of sockets, of the edge, or of what is printed.

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

/// The name of the demo's origin, reached by splice.
pub const ORIGIN_NAME: &str = "origin.demo.test";
/// The name of the demo's web application, reached by terminate.
pub const APP_NAME: &str = "app.demo.test";

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Certificates live as long as a demo may run: nobody leaves one running for a month.
const LIFE_DAYS: u32 = 30;
/// Names tried before giving up: one suffices unless another process made the same folder in
/// the same nanosecond.
const FOLDER_TRIES: u32 = 8;

/// A temporary folder that only its owner may enter; removed with all it holds when dropped.
#[derive(Debug)]
pub struct TemporaryFolder {
    path: PathBuf,
}

impl TemporaryFolder {
    /// Makes `eyelet-demo-…` in the system's temporary folder, mode 0700.
    ///
    /// # Errors
    /// What the system says, e.g. that the disk is full. An existing folder is never reused:
    /// another user could have made it.
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

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file of this folder, mode 0600, and gives its path.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self, name: &str, text: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(text.as_bytes())?;
        Ok(path)
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // Nobody is left to tell; the system's own cleaning takes what stays.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A certificate and its key, as a TLS server wants them.
#[derive(Debug)]
pub struct Identity {
    /// The certificate alone: the authority is known to the client.
    pub certificate: CertificateDer<'static>,
    /// Its key, PKCS#8.
    pub key: PrivateKeyDer<'static>,
}

/// What the edge and curl read of them.
#[derive(Debug)]
pub struct DemoCertificates {
    /// What a client trusts (PEM).
    pub ca: PathBuf,
    /// The application's certificate, for the edge's terminate rule (PEM).
    pub app_certificate: PathBuf,
    /// Its key (PEM, PKCS#8).
    pub app_key: PathBuf,
}

/// Makes the authority and both certificates (ECDSA P-256), and writes what others read. The
/// origin's is its own: the edge never sees it.
///
/// # Errors
/// A disk that cannot be written, or (as `Other`) a key that could not be made.
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

/// Valid from yesterday, so that a client whose clock is behind accepts it too.
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
