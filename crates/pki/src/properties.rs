//! Properties of files of certificates and of revocation lists, for any bytes. The fuzz targets
//! `certificate` and `crl` and the tests of this crate assert them.

// A broken property is a finding of the test or the fuzz target that asked for it.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use rustls_pki_types::{CertificateDer, UnixTime};

use crate::certificate::{CertificateFiles, EXPIRY_WARNING, check_key, describe, load, names};
use crate::crl::Revocations;

/// A file gives the same result each time. Either certificate and key can be used, or the error
/// names the file.
///
/// # Panics
///
/// If that does not hold.
pub fn file_is_read_or_refused(bytes: &[u8]) {
    let file = scratch();
    std::fs::write(&file, bytes).unwrap();
    let files = CertificateFiles { certificate: file.clone(), key: file.clone() };
    let text = |result: &Result<_, _>| result.as_ref().map(drop).map_err(ToString::to_string);
    let loaded = load(&files);
    assert_eq!(text(&loaded), text(&load(&files)), "the same file, another result");
    let certified = match loaded {
        Ok(pair) => pair.certified,
        Err(why) => return assert!(why.to_string().contains(file.to_str().unwrap()), "{why}"),
    };
    check_key(&file).unwrap();
    assert!(!certified.cert.is_empty());
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    for certificate in &certified.cert {
        let Some(description) = describe(certificate) else {
            assert!(names(certificate).is_empty());
            continue;
        };
        for name in &description.names {
            assert!(!name.contains(|c: char| c.is_ascii_uppercase()), "{name:?}");
            assert!(description.covers(name), "{name:?}");
        }
        // A certificate that ends before it begins is never valid.
        let soon = 1_700_000_000 + EXPIRY_WARNING.as_secs().cast_signed();
        let is_valid = description.not_before <= 1_700_000_000 && soon <= description.not_after;
        assert_eq!(description.dates_fault(now).is_none(), is_valid, "{description:?}");
    }
}

/// A file for this process.
fn scratch() -> PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    let name = || format!("eyelet-certificate-{}.pem", std::process::id());
    FILE.get_or_init(|| std::env::temp_dir().join(name())).clone()
}

/// A list that no authority has signed is refused, and a certificate that no list covers does not
/// pass.
///
/// # Panics
///
/// If that does not hold.
pub fn nothing_passes_unsigned(bytes: &[u8]) {
    let refused = Revocations::parse(bytes, &[], true).err();
    assert!(refused.is_some(), "nobody has signed it");
    assert_eq!(refused, Revocations::parse(bytes, &[], true).err(), "the same bytes");
    let (leaf, now) = (CertificateDer::from(bytes), Duration::from_secs(1_700_000_000));
    let known = Revocations::default();
    assert!(known.check(&leaf, &[], UnixTime::since_unix_epoch(now)).is_err(), "no list covers it");
}
