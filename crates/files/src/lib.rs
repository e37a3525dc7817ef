//! Checks the files that a configuration names. They must exist; for `check`, certificates must be
//! usable and fit their keys and rules. The files of a proxy's users are read here, too.

#![allow(missing_docs)] // only the workspace uses it

pub mod users;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use eyelet_policy::NamePattern;
use eyelet_sys::file::{read_text, regular_mode};

use eyelet_document::reader::{Place, Text};
use eyelet_pki::certificate::{self, CertificateError, CertificateFiles, Description};
use eyelet_pki::crl;

/// The depth to which the files are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Only that they are there: `serve` reads them next, and `explain` does not need them.
    Files,
    /// The checks of `Files`, for the run of a sandbox: its rules mint by an authority of its own.
    Run,
    /// Certificates are read, and compared with their keys and with the names of their rules.
    Full,
}

/// The results so far: each file is checked once, however many rules name it.
pub struct Files {
    /// Paths are relative to this folder.
    folder: PathBuf,
    depth: Depth,
    now: SystemTime,
    /// The mode of each file.
    present: HashMap<PathBuf, Result<u32, Unreadable>>,
    pairs: HashMap<CertificateFiles, Result<Option<Description>, Fault>>,
    /// Pairs that are in use already.
    unchanged: Option<UnchangedPairs>,
    authorities: HashMap<PathBuf, Result<(), String>>,
}

/// Describes the certificate of a pair that is in use, if its files have not changed since they
/// were read: a reload does not read thousands of them again.
pub type UnchangedPairs = Box<dyn Fn(&CertificateFiles) -> Option<Description>>;

/// The reason why a file cannot be used.
#[derive(Clone)]
struct Unreadable {
    message: String,
    /// There is none.
    is_absent: bool,
}

/// The reason why a pair cannot be used.
#[derive(Clone)]
struct Fault {
    message: String,
    of_key: bool,
}

impl Files {
    /// True if rules mint by the authority of a run.
    pub fn is_of_run(&self) -> bool {
        self.depth == Depth::Run
    }

    pub fn new(
        folder: &Path,
        depth: Depth,
        now: SystemTime,
        unchanged: Option<UnchangedPairs>,
    ) -> Self {
        Self {
            folder: folder.to_owned(),
            depth,
            now,
            present: HashMap::new(),
            pairs: HashMap::new(),
            unchanged,
            authorities: HashMap::new(),
        }
    }

    /// Checks a certificate and its key, for a rule that takes `names`. Returns whether there is
    /// neither file.
    pub fn check_pair(
        &mut self,
        certificate: Text<'_>,
        key: Text<'_>,
        names: &[&NamePattern],
    ) -> bool {
        let files = self.pair(certificate, key);
        let certificate_mode = self.check_present(certificate.at, &files.certificate);
        let holds_no_key = || {
            let checked = certificate::check_key(&files.key);
            matches!(checked, Err(CertificateError::NoKey { .. }))
        };
        let key_mode = match self.check_present(key.at, &files.key) {
            // The file holds a certificate in place of a key: an error of its own. Others may read
            // a certificate.
            Some(mode) if mode & OTHERS != 0 && holds_no_key() => Some(mode),
            Some(_) => self.check_private(key.at, &files.key, "key"),
            None => None,
        };
        if self.depth != Depth::Full || certificate_mode.is_none() || key_mode.is_none() {
            return self.is_absent(&files.certificate) && self.is_absent(&files.key);
        }
        let loaded = self.pairs.entry(files.clone()).or_insert_with(|| {
            let known = self.unchanged.as_ref().and_then(|unchanged| unchanged(&files));
            known.map_or_else(|| load(&files), |known| Ok(Some(known)))
        });
        match loaded {
            Err(fault) => {
                let at = if fault.of_key { key.at } else { certificate.at };
                at.error(fault.message.clone());
                if !fault.of_key {
                    // The certificate failed first, so the key was not checked yet.
                    key.at.keep(certificate::check_key(&files.key));
                }
            }
            Ok(Some(description)) => warn_of(certificate, description, names, self.now),
            Ok(None) => {}
        }
        false
    }

    /// Warns of certificates of a set that no client gets: one before has a key of the same type,
    /// and a client gets the first that it takes.
    pub fn check_key_types(&self, set: &[Text<'_>]) {
        if self.depth != Depth::Full || set.len() < 2 {
            return;
        }
        let key_type = |text: &Text<'_>| {
            let chain = certificate::chain(&self.folder.join(text.text)).ok()?;
            certificate::key_type(chain.first()?)
        };
        let mut known = HashMap::new();
        for text in set {
            // One that cannot be read has its error.
            let Some(of_key) = key_type(text) else { continue };
            match known.entry(of_key) {
                Entry::Vacant(place) => _ = place.insert(text.text),
                Entry::Occupied(first) if *first.get() == text.text => {
                    text.at.warning(format!("{} is in the list twice", text.text));
                }
                Entry::Occupied(first) => text.at.warning(format!(
                    "no client gets {}: the key of {} is of the same type, and it comes first",
                    text.text,
                    first.get()
                )),
            }
        }
    }

    /// Checks the certificate and the key of an authority that signs for rules. Whoever has this
    /// key can pretend to be any server to those who trust it, so nobody else may read it.
    pub fn check_signing_pair(&mut self, certificate: Text<'_>, key: Text<'_>) {
        let files = self.pair(certificate, key);
        let is_there = self.check_present(certificate.at, &files.certificate).is_some();
        let Some(mode) = self.check_present(key.at, &files.key) else { return };
        key.at.keep(certificate::check_key_mode(&files.key, mode));
        if self.depth != Depth::Full || !is_there {
            return;
        }
        match certificate::load(&files) {
            Err(why) => key.at.error(why.to_string()),
            Ok(pair) => {
                let leaf = pair.certified.cert.first();
                let fault = leaf.map(certificate::check_authority);
                if let Some(Err(fault)) = fault {
                    let path = files.certificate.display();
                    certificate.at.error(format!("{path}: {fault}"));
                }
                // Other rules must not stay down for it: the rule that mints refuses then.
                if let Some(description) = leaf.and_then(certificate::describe) {
                    warn_of(certificate, &description, &[], self.now);
                }
            }
        }
    }

    /// The path of a file with a secret, which `read` reads.
    pub fn check_secret<T>(
        &mut self,
        text: Text<'_>,
        read: impl FnOnce(&Path) -> Result<T, String>,
    ) -> PathBuf {
        let path = self.path(text.text);
        if self.check_private(text.at, &path, "secret").is_some() {
            text.at.keep(read(&path));
        }
        path
    }

    /// The files of a certificate and its key.
    pub fn pair(&self, certificate: Text<'_>, key: Text<'_>) -> CertificateFiles {
        CertificateFiles { certificate: self.path(certificate.text), key: self.path(key.text) }
    }

    /// A path of the configuration.
    pub fn path(&self, text: &str) -> PathBuf {
        self.folder.join(text)
    }

    /// Checks the file of CA certificates for client certificates.
    pub fn check_authorities(&mut self, text: Text<'_>) -> PathBuf {
        let path = self.path(text.text);
        if self.check_present(text.at, &path).is_some() && self.depth == Depth::Full {
            let read = self.authorities.entry(path.clone());
            let read = read.or_insert_with(|| {
                certificate::chain(&path).map(|_| ()).map_err(|why| why.to_string())
            });
            text.at.keep(read.clone());
        }
        path
    }

    /// Checks a file of revocation lists of the authorities in `ca`.
    pub fn check_crl(
        &mut self,
        text: Text<'_>,
        ca: Option<&Path>,
        accepts_expired: bool,
    ) -> PathBuf {
        let path = self.path(text.text);
        if self.check_present(text.at, &path).is_some() && self.depth == Depth::Full {
            let checked = crl::check_files(std::slice::from_ref(&path), ca, accepts_expired);
            if let Some(Some(warning)) = text.at.keep(checked) {
                text.at.warning(warning);
            }
        }
        path
    }

    /// Warns of a file that other users may read.
    fn check_private(&mut self, at: Place<'_>, path: &Path, what: &str) -> Option<u32> {
        let mode = self.check_present(at, path)?;
        if mode & OTHERS != 0 {
            let (mode, path) = (mode & 0o777, path.display());
            let message =
                format!("others may read or write the {what} (mode {mode:o}): chmod o= {path}");
            at.warning(message);
        }
        Some(mode)
    }

    fn check_present(&mut self, at: Place<'_>, path: &Path) -> Option<u32> {
        let known = match self.present.get(path) {
            Some(known) => known.clone(),
            None => {
                let mode = mode(path);
                self.present.insert(path.to_owned(), mode.clone());
                mode
            }
        };
        at.keep(known.map_err(|why| why.message))
    }

    /// True if there is no such file, as far as was checked.
    fn is_absent(&self, path: &Path) -> bool {
        matches!(self.present.get(path), Some(Err(Unreadable { is_absent: true, .. })))
    }
}

fn mode(path: &Path) -> Result<u32, Unreadable> {
    regular_mode(path).map_err(|why| Unreadable {
        message: format!(
            "cannot read {}: {why}{}",
            path.display(),
            certificate::access_hint(path, &why)
        ),
        is_absent: why.kind() == ErrorKind::NotFound,
    })
}

fn load(files: &CertificateFiles) -> Result<Option<Description>, Fault> {
    let pair = certificate::load(files).map_err(|why| {
        let of_key = match &why {
            CertificateError::Unreadable { file, .. } | CertificateError::Pem { file, .. } => {
                *file == files.key
            }
            CertificateError::NoKey { .. }
            | CertificateError::EncryptedKey { .. }
            | CertificateError::BadKey { .. }
            | CertificateError::Mismatch { .. } => true,
            CertificateError::NoCertificate { .. }
            | CertificateError::BadCertificate { .. }
            | CertificateError::Authority { .. }
            | CertificateError::LargeLeaf { .. } => false,
        };
        Fault { message: why.to_string(), of_key }
    })?;
    Ok(pair.certified.cert.first().and_then(certificate::describe))
}

/// Reads a text that the configuration names.
///
/// # Errors
/// That it cannot be read.
pub fn text(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    read_text(path, bytes_max).map_err(|why| format!("cannot read {}: {why}", path.display()))
}

/// Reads a configuration file.
pub fn read(path: &Path) -> Result<String, String> {
    let bytes = read_text(path, FILE_BYTES_MAX).map_err(|why| format!("cannot be read: {why}"))?;
    String::from_utf8(bytes).map_err(|why| {
        let at = why.utf8_error().valid_up_to();
        format!("is not UTF-8, which TOML is: byte {at} cannot be read")
    })
}

fn warn_of(
    certificate: Text<'_>,
    description: &Description,
    names: &[&NamePattern],
    now: SystemTime,
) {
    if let Some(fault) = description.dates_fault(now) {
        certificate.at.warning(format!("the certificate in {} {fault}", certificate.text));
    }
    let listed = names.iter().filter(|name| ***name != NamePattern::Absent);
    let uncovered: Vec<String> =
        listed.map(|name| name.to_string()).filter(|name| !description.covers(name)).collect();
    if uncovered.is_empty() {
        return;
    }
    let own = match description.names.as_slice() {
        [] => "it has no DNS name".to_owned(),
        own => format!("it is for {}", shown(own)),
    };
    let message = format!("the certificate does not cover {}; {own}", shown(&uncovered));
    certificate.at.warning(message);
}

fn shown(names: &[String]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMES_SHOWN).map(String::as_str).collect();
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Most bytes of a file: 100,000 rules with a name each take about 10 MB.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Mode bits: users other than the owner and the group may read or write.
const OTHERS: u32 = 0o006;

/// Most names that a warning lists.
const NAMES_SHOWN: usize = 5;
