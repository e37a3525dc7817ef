//! Properties of revocation lists, and of certificates that are looked up in them, for any bytes.

use std::time::Duration;

use eyelet_pki::crl::Revocations;
use rustls_pki_types::{CertificateDer, UnixTime};

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
