//! Certificates and keys: from PEM files to rustls' signing keys, and the contents of a
//! certificate.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{Error as TlsError, InconsistentKeys};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem};
use thiserror::Error;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;
use zeroize::Zeroizing;

use eyelet_sys::file::{Stamp, read_stamped_text};
use eyelet_sys::process;

use crate::pem::Pem;

/// A certificate chain and its key, both PEM. Paths are absolute or relative to the working
/// directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CertificateFiles {
    /// The chain, leaf first.
    pub certificate: PathBuf,
    /// The key: PKCS#8, SEC1 or PKCS#1.
    pub key: PathBuf,
}

/// The reason why a certificate cannot be used, with the file's name and what to do about it.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read {}: {why}{}", file.display(), access_hint(file, why))]
    Unreadable {
        file: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// A PEM section is broken.
    #[error("{}: broken PEM: {why}", file.display())]
    Pem {
        file: PathBuf,
        /// The place and the kind of the fault.
        why: pem::Error,
    },
    /// The file contains no certificate.
    #[error("{} has no certificate; expected \"-----BEGIN CERTIFICATE-----\"{}", file.display(),
        if *holds_key { ", and it holds a key: are `certificate` and `key` swapped?" } else { "" })]
    NoCertificate {
        file: PathBuf,
        /// True if it contains a key instead.
        holds_key: bool,
    },
    /// The certificate is not X.509.
    #[error("{}: the first certificate cannot be parsed: {why}", file.display())]
    BadCertificate {
        file: PathBuf,
        /// The fault of it.
        why: String,
    },
    /// The certificate is larger than TLS libraries accept.
    #[error("{}: the first certificate has {bytes} bytes; expected at most {LEAF_BYTES_MAX}, \
        which is what rustls reads: spread its names over several certificates", file.display())]
    LargeLeaf {
        file: PathBuf,
        /// The certificate's length.
        bytes: usize,
    },
    /// The file contains no key.
    #[error("{} has no private key; expected PKCS#8, SEC1 or PKCS#1 in PEM", file.display())]
    NoKey { file: PathBuf },
    /// The key is encrypted with a passphrase.
    #[error("the key in {file} is encrypted; decrypt it: openssl pkey -in {file} -out plain.key",
        file = file.display())]
    EncryptedKey { file: PathBuf },
    /// The key is of an unsupported kind, or damaged.
    #[error("{}: not a key that can sign: expected RSA of 2048 to 8192 bits, ECDSA on P-256, \
        P-384 or P-521, or Ed25519", file.display())]
    BadKey { file: PathBuf },
    /// It is to sign others, and cannot.
    #[error("{}: {fault}", file.display())]
    Authority {
        /// The file of the certificate.
        file: PathBuf,
        /// The reason.
        fault: AuthorityFault,
    },
    /// The key does not belong to the certificate.
    #[error("the key in {} does not fit the certificate in {}; expected the key that it was \
        issued for", key.display(), certificate.display())]
    Mismatch {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
}

/// The contents of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// DNS names, lower-case, `*.` as written.
    pub names: Vec<String>,
    /// Seconds since 1970.
    pub not_before: i64,
    /// Seconds since 1970.
    pub not_after: i64,
}

/// A chain and its key that belong together.
#[derive(Debug)]
pub struct Pair {
    /// Both, ready to sign.
    pub certified: CertifiedKey,
    /// The key alone.
    pub key: Zeroizing<PrivateKeyDer<'static>>,
    /// The versions of the two files.
    pub stamps: [Stamp; 2],
}

/// Reads a chain and its key.
///
/// # Errors
/// If a file cannot be read or used, or the key does not belong to the certificate.
pub fn load(files: &CertificateFiles) -> Result<Pair, CertificateError> {
    // A link above both files may lead to another pair from the one to the other, as Kubernetes
    // replaces a secret. So a fault of the first reading counts only if the second one has it too.
    load_once(files).or_else(|_| load_once(files))
}

fn load_once(files: &CertificateFiles) -> Result<Pair, CertificateError> {
    let (chain, of_chain) = stamped_chain(&files.certificate)?;
    check_leaf(files, &chain)?;
    let (key, of_key) = key(&files.key)?;
    pair(files, chain, key, [of_chain, of_key])
}

/// Reads a chain and its key from one text, whose name is `file` in errors.
///
/// # Errors
/// If the text cannot be used, or the key does not belong to the certificate.
pub fn load_text(file: &Path, text: &[u8]) -> Result<Pair, CertificateError> {
    let files = CertificateFiles { certificate: file.to_owned(), key: file.to_owned() };
    let chain = chain_of(file, text)?;
    let key = key_of(file, text)?;
    pair(&files, chain, key, [Stamp::default(); 2])
}

/// Takes a chain and its key in DER, whose name is `from` in errors.
///
/// # Errors
/// If one of them cannot be used, or the key does not belong to the certificate.
pub fn of_der(
    from: &Path,
    chain: Vec<CertificateDer<'static>>,
    key: Zeroizing<PrivateKeyDer<'static>>,
) -> Result<Pair, CertificateError> {
    let files = CertificateFiles { certificate: from.to_owned(), key: from.to_owned() };
    check_leaf(&files, &chain)?;
    pair(&files, chain, key, [Stamp::default(); 2])
}

fn check_leaf(
    files: &CertificateFiles,
    chain: &[CertificateDer<'_>],
) -> Result<(), CertificateError> {
    match chain.first().map(|leaf| leaf.len()).filter(|len| *len > LEAF_BYTES_MAX) {
        Some(bytes) => Err(CertificateError::LargeLeaf { file: files.certificate.clone(), bytes }),
        None => Ok(()),
    }
}

fn pair(
    files: &CertificateFiles,
    chain: Vec<CertificateDer<'static>>,
    key: Zeroizing<PrivateKeyDer<'static>>,
    stamps: [Stamp; 2],
) -> Result<Pair, CertificateError> {
    let signing = signing_key(&key).ok_or(CertificateError::BadKey { file: files.key.clone() })?;
    let certified = CertifiedKey::new(chain, signing);
    match certified.keys_match() {
        // `Unknown`: this kind of key does not reveal its public half, so it cannot be compared.
        Ok(()) | Err(TlsError::InconsistentKeys(InconsistentKeys::Unknown)) => {
            Ok(Pair { certified, key, stamps })
        }
        Err(TlsError::InconsistentKeys(_)) => Err(CertificateError::Mismatch {
            certificate: files.certificate.clone(),
            key: files.key.clone(),
        }),
        Err(why) => Err(CertificateError::BadCertificate {
            file: files.certificate.clone(),
            why: why.to_string(),
        }),
    }
}

/// The key in the form that signs; `None` if it is of an unsupported kind, or damaged.
pub fn signing_key(key: &PrivateKeyDer<'_>) -> Option<Arc<dyn SigningKey>> {
    any_supported_type(key).ok()
}

/// Reads the certificates of a PEM file: a chain, or the authorities of `client_ca`.
///
/// # Errors
/// If the file cannot be read, is not PEM, or has no certificate.
pub fn chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    stamped_chain(file).map(|(chain, _)| chain)
}

/// Loads as [`chain`], with the version of the file.
///
/// # Errors
/// As [`chain`].
pub fn stamped_chain(
    file: &Path,
) -> Result<(Vec<CertificateDer<'static>>, Stamp), CertificateError> {
    let (text, stamp) = stamped(file)?;
    Ok((chain_of(file, &text)?, stamp))
}

fn chain_of(file: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let text = Pem::new(text);
    let certificates =
        text.certificates().map_err(|why| CertificateError::Pem { file: file.to_owned(), why })?;
    if certificates.is_empty() {
        let holds_key = text.key().is_ok();
        return Err(CertificateError::NoCertificate { file: file.to_owned(), holds_key });
    }
    Ok(certificates)
}

/// The names and dates of a certificate; `None` if it is not X.509.
pub fn describe(certificate: &CertificateDer<'_>) -> Option<Description> {
    let (_, parsed) = parse_x509_certificate(certificate).ok()?;
    let alternatives = parsed.subject_alternative_name().ok().flatten();
    let names = alternatives.iter().flat_map(|names| &names.value.general_names);
    let dns = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    Some(Description {
        names: dns.collect(),
        not_before: parsed.validity().not_before.timestamp(),
        not_after: parsed.validity().not_after.timestamp(),
    })
}

/// Returns what says of which type the key of a certificate is: clients take some types only. The
/// algorithm, with its parameters, such as the curve.
pub fn key_type(certificate: &CertificateDer<'_>) -> Option<(String, Vec<u8>)> {
    let (_, parsed) = parse_x509_certificate(certificate).ok()?;
    let algorithm = &parsed.public_key().algorithm;
    let parameters = algorithm.parameters.as_ref().map_or(&[][..], |value| value.data);
    Some((algorithm.algorithm.to_id_string(), parameters.to_vec()))
}

/// The reason why a certificate cannot sign others, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AuthorityFault {
    /// It is not X.509.
    #[error("the certificate cannot be parsed")]
    Unreadable,
    /// It is that of a server, or of a client.
    #[error(
        "not the certificate of an authority: it needs basicConstraints CA:TRUE, and keyCertSign \
         if it has keyUsage. To make one: openssl req -x509 -newkey ec -pkeyopt \
         ec_paramgen_curve:P-256 -nodes -days 365 -subj '/CN=Our inspection' -keyout mint.key \
         -out mint.pem"
    )]
    NoAuthority,
    /// It is not valid now.
    #[error("the authority {0}: make another one, and have clients trust that")]
    Dates(String),
    /// A certificate that it signs would have another issuer.
    #[error(
        "the authority's subject has one kind of attribute twice, as in DC=corp, DC=example, or \
         two in one part: make another one with a plain subject, such as CN=Our inspection"
    )]
    Subject,
    /// A certificate that it signs would have no issuer (RFC 5280 section 4.1.2.4).
    #[error(
        "the authority's subject is empty, and clients take no certificate without an issuer: \
         make another one with a subject, such as CN=Our inspection"
    )]
    NoSubject,
    /// Others than the owner may read the key.
    #[error(
        "the authority's key must be readable by its owner only (mode {mode:o}): chmod go= {}",
        file.display()
    )]
    OpenKey {
        /// The mode of the file.
        mode: u32,
        /// The file of the key.
        file: PathBuf,
    },
    /// It cannot sign.
    #[error("{0}")]
    Unusable(String),
}

/// Checks that nobody but its owner may read the key of an authority, by the mode of its file.
///
/// # Errors
/// [`AuthorityFault::OpenKey`].
pub fn check_key_mode(file: &Path, mode: u32) -> Result<(), AuthorityFault> {
    if mode & ALL_BUT_OWNER == 0 {
        return Ok(());
    }
    Err(AuthorityFault::OpenKey { mode: mode & 0o777, file: file.to_owned() })
}

/// Checks that a certificate may sign others, whatever its dates.
pub fn check_authority(certificate: &CertificateDer<'_>) -> Result<(), AuthorityFault> {
    let (_, parsed) =
        parse_x509_certificate(certificate).map_err(|_| AuthorityFault::Unreadable)?;
    let usage = parsed.key_usage().map_err(|_| AuthorityFault::Unreadable)?;
    if !parsed.is_ca() || usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
        return Err(AuthorityFault::NoAuthority);
    }
    if parsed.subject().iter().next().is_none() {
        return Err(AuthorityFault::NoSubject);
    }
    // The library that signs writes each kind of attribute once, and one in each part.
    let mut kinds = Vec::new();
    for part in parsed.subject().iter() {
        let mut attributes = part.iter().map(|attribute| attribute.attr_type());
        match (attributes.next(), attributes.next()) {
            (Some(kind), None) if !kinds.contains(&kind) => kinds.push(kind),
            _ => return Err(AuthorityFault::Subject),
        }
    }
    Ok(())
}

/// Checks that an authority is valid now.
///
/// # Errors
/// [`AuthorityFault::Unreadable`] and [`AuthorityFault::Dates`].
pub fn check_authority_dates(
    certificate: &CertificateDer<'_>,
    now: SystemTime,
) -> Result<(), AuthorityFault> {
    let description = describe(certificate).ok_or(AuthorityFault::Unreadable)?;
    description.invalid_now(now).map_or(Ok(()), |why| Err(AuthorityFault::Dates(why)))
}

/// The DNS names of a certificate, lower-case. Empty if it is not X.509. The subject's common name
/// does not count (RFC 9525 section 2).
pub fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    describe(certificate).map_or_else(Vec::new, |description| description.names)
}

impl Description {
    /// Describes the fault of its dates at `now`, or within [`EXPIRY_WARNING`] from then, for a
    /// warning.
    pub fn dates_fault(&self, now: SystemTime) -> Option<String> {
        let soon = unix_secs(now.checked_add(EXPIRY_WARNING)?);
        let ends_soon = || format!("expires on {}", date(self.not_after));
        self.invalid_now(now).or_else(|| (soon > self.not_after).then(ends_soon))
    }

    fn invalid_now(&self, now: SystemTime) -> Option<String> {
        let now = unix_secs(now);
        let fault = if now > self.not_after {
            format!("expired on {}", date(self.not_after))
        } else if now < self.not_before {
            format!("is not valid before {}", date(self.not_before))
        } else {
            return None;
        };
        // The certificate may be right and the clock wrong.
        Some(format!("{fault}; this machine's clock says {}", date(now)))
    }

    /// True if a client that asks for `name` accepts it. `name` may itself be `*.suffix`, which the
    /// same wildcard covers. A wildcard does not cover names with more labels; operators know that,
    /// so there is no warning.
    pub fn covers(&self, name: &str) -> bool {
        let parent = name.split_once('.').map(|(_, parent)| parent);
        self.names.iter().any(|own| {
            own == name || own.strip_prefix("*.").is_some_and(|suffix| Some(suffix) == parent)
        })
    }
}

/// Checks that a file has a private key.
///
/// # Errors
/// [`CertificateError`] of the file.
pub fn check_key(file: &Path) -> Result<(), CertificateError> {
    key(file).map(drop)
}

fn key(file: &Path) -> Result<(Zeroizing<PrivateKeyDer<'static>>, Stamp), CertificateError> {
    let (text, stamp) = stamped(file)?;
    Ok((key_of(file, &text)?, stamp))
}

fn key_of(file: &Path, text: &[u8]) -> Result<Zeroizing<PrivateKeyDer<'static>>, CertificateError> {
    Pem::new(text).key().map_err(|why| match why {
        // The header lines of an encrypted traditional key (RFC 1421) are not base64, so it does
        // not parse at all.
        _ if is_encrypted(text) => CertificateError::EncryptedKey { file: file.to_owned() },
        pem::Error::NoItemsFound => CertificateError::NoKey { file: file.to_owned() },
        why => CertificateError::Pem { file: file.to_owned(), why },
    })
}

fn is_encrypted(text: &[u8]) -> bool {
    let has = |marker: &[u8]| text.windows(marker.len()).any(|window| window == marker);
    has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED")
}

/// Reads a PEM file. Opening it never blocks: it must be a regular file of at most 4 MiB. The text
/// may contain a key, so it is wiped when dropped.
fn stamped(file: &Path) -> Result<(Zeroizing<Vec<u8>>, Stamp), CertificateError> {
    read_stamped_text(file, FILE_BYTES_MAX)
        .map(|(text, stamp)| (Zeroizing::new(text), stamp))
        .map_err(|why| CertificateError::Unreadable { file: file.to_owned(), why })
}

/// Says how this process comes to read a file that its user may not read. Empty for other faults.
pub fn access_hint(file: &Path, why: &io::Error) -> String {
    match why.kind() {
        io::ErrorKind::PermissionDenied => format!(
            " for user {}: `install -m 640 -g {} {} DIR` copies it for the group of this process, \
             or run as its owner",
            process::user(),
            process::group(),
            file.display()
        ),
        _ => String::new(),
    }
}

fn unix_secs(time: SystemTime) -> i64 {
    let secs = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    i64::try_from(secs).unwrap_or(i64::MAX)
}

/// A time in seconds since 1970, as RFC 3339 writes it.
pub fn date(seconds: impl TryInto<u64>) -> String {
    let seconds = seconds.try_into().unwrap_or(0).min(YEAR_9999_END);
    let since = Duration::from_secs(seconds);
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + since).to_string()
}

/// The time before its end from which a certificate is warned of. Clients of ACME renew one that
/// lasts 90 days when it has 30 left, so at 14 its renewal has failed for two weeks.
pub const EXPIRY_WARNING: Duration = Duration::from_hours(14 * 24);

/// Most bytes of DER: webpki reads lengths of at most two bytes (`TWO_BYTE_DER_SIZE`), with four
/// bytes before them.
const LEAF_BYTES_MAX: usize = 0xffff + 4;

/// Mode bits: anybody but the owner may do anything.
const ALL_BUT_OWNER: u32 = 0o077;

/// Most bytes of a PEM file. All of the web's CA certificates together have less than 300 kB.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Seconds since 1970: the last second with a four-digit year, which X.509 and RFC 3339 require.
const YEAR_9999_END: u64 = 253_402_300_799;
