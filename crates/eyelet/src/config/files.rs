//! Looks into the files that a configuration names: that they are there, and for `check` that
//! certificates can be used, fit their keys and their rule. Knows nothing of a rule's action.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use eyelet_policy::NamePattern;

use super::reader::{Report, Text};
use super::{CertificateFiles, Depth};
use crate::certificate::{self, CertificateError, Description};

/// What is known of files: each is looked into once, however many rules name it.
pub(super) struct Files {
    /// Relative paths begin here.
    folder: PathBuf,
    depth: Depth,
    now: SystemTime,
    present: HashMap<PathBuf, Result<(), String>>,
    pairs: HashMap<CertificateFiles, Result<Option<Description>, Fault>>,
    authorities: HashMap<PathBuf, Result<(), String>>,
}

/// Why a pair cannot be used.
#[derive(Clone)]
struct Fault {
    message: String,
    of_key: bool,
}

impl Files {
    pub(super) fn new(folder: &Path, depth: Depth, now: SystemTime) -> Self {
        Self {
            folder: folder.to_owned(),
            depth,
            now,
            present: HashMap::new(),
            pairs: HashMap::new(),
            authorities: HashMap::new(),
        }
    }

    /// A certificate and its key, for a rule that takes `names`.
    pub(super) fn check_pair(
        &mut self,
        report: &mut Report<'_>,
        certificate: Text<'_>,
        key: Text<'_>,
        names: &[&NamePattern],
    ) {
        let files = CertificateFiles {
            certificate: self.folder.join(certificate.text),
            key: self.folder.join(key.text),
        };
        let certificate_is_there = self.check_present(report, certificate.at, &files.certificate);
        let key_is_there = self.check_present(report, key.at, &files.key);
        if self.depth == Depth::Files || !certificate_is_there || !key_is_there {
            return;
        }
        let loaded = self.pairs.entry(files.clone()).or_insert_with(|| load(&files));
        match loaded {
            Err(fault) => {
                let at = if fault.of_key { key.at } else { certificate.at };
                report.error(at, fault.message.clone());
                if !fault.of_key {
                    // The certificate hides whether its key can be read.
                    report.keep(key.at, certificate::check_key(&files.key));
                }
            }
            Ok(Some(description)) => {
                warn_of(report, certificate, description, names, self.now);
            }
            Ok(None) => {}
        }
    }

    /// The authorities of client certificates.
    pub(super) fn check_authorities(&mut self, report: &mut Report<'_>, text: Text<'_>) -> PathBuf {
        let path = self.folder.join(text.text);
        if self.check_present(report, text.at, &path) && self.depth == Depth::Full {
            let read = self.authorities.entry(path.clone());
            let read = read.or_insert_with(|| {
                certificate::chain(&path).map(|_| ()).map_err(|why| why.to_string())
            });
            report.keep(text.at, read.clone());
        }
        path
    }

    fn check_present(&mut self, report: &mut Report<'_>, at: usize, path: &Path) -> bool {
        let known = match self.present.get(path) {
            Some(known) => known.clone(),
            None => {
                let opened = open(path);
                self.present.insert(path.to_owned(), opened.clone());
                opened
            }
        };
        report.keep(at, known).is_some()
    }
}

fn open(path: &Path) -> Result<(), String> {
    let fault = |why: &dyn std::fmt::Display| format!("cannot read {}: {why}", path.display());
    let file = File::open(path).map_err(|why| fault(&why))?;
    let kind = file.metadata().map_err(|why| fault(&why))?;
    if kind.is_dir() { Err(fault(&"it is a directory; expected a PEM file")) } else { Ok(()) }
}

fn load(files: &CertificateFiles) -> Result<Option<Description>, Fault> {
    let certified = certificate::load(files).map_err(|why| {
        let of_key = match &why {
            CertificateError::Unreadable { file, .. }
            | CertificateError::TooLarge { file }
            | CertificateError::Pem { file, .. } => *file == files.key,
            CertificateError::NoKey { .. }
            | CertificateError::EncryptedKey { .. }
            | CertificateError::BadKey { .. }
            | CertificateError::Mismatch { .. } => true,
            CertificateError::NoCertificate { .. } | CertificateError::BadCertificate { .. } => {
                false
            }
        };
        Fault { message: why.to_string(), of_key }
    })?;
    Ok(certified.cert.first().and_then(certificate::describe))
}

fn warn_of(
    report: &mut Report<'_>,
    certificate: Text<'_>,
    description: &Description,
    names: &[&NamePattern],
    now: SystemTime,
) {
    if let Some(fault) = description.dates_fault(now) {
        report.warning(certificate.at, format!("the certificate {fault}"));
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
    report.warning(certificate.at, message);
}

fn shown(names: &[String]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMES_SHOWN).map(String::as_str).collect();
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Names that a warning lists.
const NAMES_SHOWN: usize = 5;
