//! CA certificates that judge resolvers, and the servers which Eyelet asks for evidence. Their
//! file may change.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest;
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;

use eyelet_pki::certificate::{self, CertificateError};
use eyelet_pki::pem::Pem;
use eyelet_sys::file::Stamp;

/// The files with the CA certificates that systems trust, in the order in which we look: Debian,
/// Fedora, SUSE, Alpine.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The reason why there are no roots to trust.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// The file cannot be used.
    #[error("{0}")]
    File(#[from] CertificateError),
    /// None of the system's files was found.
    #[error(
        "no CA certificates at {}; install ca-certificates, or name a file by `ca`",
        SYSTEM_ROOTS.join(", ")
    )]
    NoSystem,
    /// No certificate in the file can be a root.
    #[error("{file}: none of the certificates can be a root")]
    NoRoot { file: String },
    /// rustls refuses them.
    #[error("roots: {0}")]
    Rustls(String),
}

/// The roots of a file, as it was read last.
pub struct EvidenceRoots {
    file: PathBuf,
    current: Mutex<Current>,
}

struct Current {
    store: Arc<RootCertStore>,
    stamp: Stamp,
}

impl EvidenceRoots {
    /// Reads the roots of `[evidence] ca`, or the system's.
    ///
    /// # Errors
    /// If there are none.
    pub fn new(ca: Option<&Path>) -> Result<Self, RootsError> {
        let file = ca.or(system_roots()).ok_or(RootsError::NoSystem)?.to_owned();
        let current = Mutex::new(read(&file)?);
        Ok(Self { file, current })
    }

    pub fn store(&self) -> Arc<RootCertStore> {
        self.current.lock().store.clone()
    }

    /// The file that has them.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Reads the file again if it has changed. Returns whether the roots were replaced; `None`: the
    /// file was not read.
    pub fn refresh(&self) -> Option<Result<bool, RootsError>> {
        let known = self.current.lock().stamp;
        if known.is_same(Stamp::at(&self.file)) {
            return None;
        }
        Some(read(&self.file).map(|read| {
            let mut current = self.current.lock();
            current.stamp = read.stamp;
            let differs = current.store.roots != read.store.roots;
            if differs {
                current.store = read.store;
            }
            differs
        }))
    }
}

/// Reads a file of which each certificate must be a root. Returns these, too.
///
/// # Errors
/// The reason, if it cannot be read or one of them cannot be a root.
pub(crate) fn all_of(
    file: &Path,
) -> Result<(RootCertStore, Vec<CertificateDer<'static>>, Stamp), String> {
    let mut roots = RootCertStore::empty();
    let (chain, stamp) = certificate::stamped_chain(file).map_err(|error| error.to_string())?;
    for certificate in &chain {
        roots.add(certificate.clone()).map_err(|error| error.to_string())?;
    }
    Ok((roots, chain, stamp))
}

/// Joins the certificates in these PEM texts that can be roots. Those of a system need not all.
pub fn usable(texts: &[String]) -> String {
    let sections = texts.iter().flat_map(|text| text.split_inclusive("-----END CERTIFICATE-----"));
    let is_root = |section: &&str| {
        let read = Pem::new(section.as_bytes()).certificate();
        read.is_ok_and(|certificate| RootCertStore::empty().add(certificate).is_ok())
    };
    sections.filter(is_root).flat_map(|section| [section, "\n"]).collect()
}

/// Stands for the certificates of a set, also in another process: equal numbers mean equal
/// certificates. Never 0.
pub(crate) fn number_of(roots: &RootCertStore) -> u64 {
    number_of_parts(roots.roots.iter().flat_map(|root| {
        let constraints = root.name_constraints.as_ref().map_or(&[][..], |bytes| &bytes[..]);
        [&root.subject[..], &root.subject_public_key_info[..], constraints]
    }))
}

/// Returns the number of any parts. 64 bits of a digest suffice: the operator chooses them.
pub(crate) fn number_of_parts(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> u64 {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        let part = part.as_ref();
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let digest = context.finish();
    let number = digest.as_ref().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    // 0 stands for no authorities.
    number.max(1)
}

/// The certificates of [`system_roots`]. Empty, if they cannot be read.
pub(crate) fn system_certificates() -> Vec<CertificateDer<'static>> {
    system_roots().and_then(|file| certificate::chain(file).ok()).unwrap_or_default()
}

/// The file of the CA certificates that this system trusts.
pub fn system_roots() -> Option<&'static Path> {
    SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.exists())
}

fn read(file: &Path) -> Result<Current, RootsError> {
    let mut roots = RootCertStore::empty();
    let (chain, stamp) = certificate::stamped_chain(file)?;
    // A system's list may contain certificates that are too old to be parsed: the others count.
    let (added, _) = roots.add_parsable_certificates(chain);
    if added == 0 {
        return Err(RootsError::NoRoot { file: file.display().to_string() });
    }
    Ok(Current { store: Arc::new(roots), stamp })
}
