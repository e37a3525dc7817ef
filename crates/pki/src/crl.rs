//! Reads certificate revocation lists (RFC 5280 section 5), PEM or DER, into sorted serial numbers
//! of 20 bytes each, and says if a certificate is on one.

mod der;
mod scope;

use std::cell::LazyCell;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use eyelet_sys::file::{Stamp, read_stamped_text};
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, TrustAnchor, UnixTime};
use webpki::{BorrowedCertRevocationList, CertRevocationList, anchor_from_trusted_cert};
use x509_parser::asn1_rs::FromDer;
use x509_parser::time::ASN1Time;

use crate::certificate;
use crate::pem::Pem;
use der::{BIT_STRING, Der, INTEGER, OBJECT_IDENTIFIER, SEQUENCE, VERSION};
use scope::{Scope, distribution_points};

/// Most bytes of a file: about 3 million entries. It is in memory while it is read.
const FILE_BYTES_MAX: u64 = 128 << 20;
/// Most bytes of a serial number (RFC 5280 section 4.1.2.2).
const SERIAL_BYTES: usize = 20;

/// Bytes of the modulus of an RSA key whose signatures the TLS library verifies: 2048 to 8192 bits,
/// and a zero before them.
const RSA_BYTES: RangeInclusive<usize> = 256..=1025;

type Serial = [u8; SERIAL_BYTES];

/// The lists of a rule.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Revocations {
    lists: Vec<RevocationList>,
    /// The authorities that are on a list themselves, or that one of these has signed. A client may
    /// leave them out of its chain.
    revoked: Vec<TrustAnchor<'static>>,
    /// True if a list counts that has expired.
    accepts_expired: bool,
}

/// The part of a list that is kept. Its authority has signed it.
#[derive(Debug, PartialEq, Eq)]
struct RevocationList {
    /// The distinguished name of the authority, in DER without its tag.
    issuer: Box<[u8]>,
    /// The certificates that it is for.
    scope: Scope,
    next_update: u64,
    /// Sorted.
    serials: Box<[Serial]>,
}

/// The reason why a file of lists cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CrlError {
    /// It cannot be read.
    #[error("cannot read {}: {why}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The kernel's reason.
        why: std::io::Error,
    },
    /// A list in it cannot be used.
    #[error("{}: {fault}", file.display())]
    Unusable {
        /// The file.
        file: PathBuf,
        /// The reason.
        fault: CrlFault,
    },
}

/// The reason why a list cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CrlFault {
    /// The file has none.
    #[error("no revocation list in it; expected PEM (\"X509 CRL\") or DER")]
    None,
    /// It is no list, or one that Eyelet does not have.
    #[error("this revocation list cannot be used: {0}")]
    Malformed(String),
    /// It is of a kind that Eyelet does not have. RFC 5280 section 5.2: it must not be used.
    #[error("{0}: expected the whole list of an authority, or of a distribution point")]
    Unsupported(&'static str),
    /// Its authority is not there.
    #[error("its issuer is not among the authorities: add the certificate that has signed it")]
    NoIssuer,
    /// None of the authorities of this name has signed it.
    #[error("its signature is not its issuer's")]
    Signature,
}

/// The reason why a certificate does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevocationFault {
    /// It is on a list.
    Revoked,
    /// Its authority has no list.
    Unknown,
    /// All lists of its authority have expired.
    Expired,
    /// It cannot be parsed.
    Malformed,
}

impl Revocations {
    /// Reads files. Each list must be signed by one of the authorities.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn read(
        files: &[PathBuf],
        authorities: &[CertificateDer<'_>],
        accepts_expired: bool,
    ) -> Result<(Self, Vec<Stamp>), CrlError> {
        let (mut lists, mut stamps) = (Vec::new(), Vec::with_capacity(files.len()));
        let anchors: Vec<_> = anchors(authorities).collect();
        for file in files {
            let unreadable = |why| CrlError::Unreadable { file: file.clone(), why };
            let (bytes, stamp) = read_stamped_text(file, FILE_BYTES_MAX).map_err(unreadable)?;
            let unusable = |fault| CrlError::Unusable { file: file.clone(), fault };
            lists.extend(of_bytes(&bytes, &anchors).map_err(unusable)?);
            stamps.push(stamp);
        }
        Ok((Self::new(lists, authorities, accepts_expired), stamps))
    }

    /// Reads the bytes of one file.
    ///
    /// # Errors
    /// Why a list in them cannot be used.
    pub fn parse(
        bytes: &[u8],
        authorities: &[CertificateDer<'_>],
        accepts_expired: bool,
    ) -> Result<Self, CrlFault> {
        let anchors: Vec<_> = anchors(authorities).collect();
        Ok(Self::new(of_bytes(bytes, &anchors)?, authorities, accepts_expired))
    }

    fn new(
        lists: Vec<RevocationList>,
        authorities: &[CertificateDer<'_>],
        accepts_expired: bool,
    ) -> Self {
        let mut known = Self { lists, revoked: Vec::new(), accepts_expired };
        let parsed = authorities.iter().filter_map(|certificate| {
            let anchor = anchor_from_trusted_cert(certificate).ok()?;
            Some((certificate, Parts::of(certificate)?, anchor))
        });
        let mut left: Vec<_> = parsed.collect();
        // Each round but the last takes one out at least.
        loop {
            let (revoked, others): (Vec<_>, Vec<_>) = left
                .into_iter()
                .partition(|(certificate, parts, _)| known.is_revoked(certificate, parts));
            if revoked.is_empty() {
                return known;
            }
            known.revoked.extend(revoked.into_iter().map(|(_, _, anchor)| anchor.to_owned()));
            left = others;
        }
    }

    /// Says if a certificate is on a list, or if a revoked authority has signed it.
    fn is_revoked(&self, certificate: &CertificateDer<'_>, parts: &Parts<'_>) -> bool {
        let mut named = self.revoked.iter().filter(|anchor| *anchor.subject == *parts.issuer);
        // Also on a list that is for others: an authority uses a number once.
        let is_listed = |serial| self.lists.iter().any(|list| list.revokes(parts.issuer, &serial));
        serial(parts.serial).is_some_and(is_listed)
            || named.any(|anchor| is_signed_by(certificate, anchor) != Some(false))
    }

    /// Checks a chain whose signatures are verified: each certificate of it, but for an
    /// authority's own that it has signed itself.
    ///
    /// # Errors
    /// Why one of them does not pass.
    pub fn check(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), RevocationFault> {
        for (number, certificate) in [leaf].into_iter().chain(others).enumerate() {
            let is_leaf = number == 0;
            let parts = Parts::of(certificate).ok_or(RevocationFault::Malformed)?;
            match self.check_one(certificate, &parts, is_leaf, now) {
                // An authority's own needs no list, but may be on one (RFC 5280 section 3.2).
                Err(RevocationFault::Unknown | RevocationFault::Expired)
                    if !is_leaf && parts.issuer == parts.subject => {}
                checked => checked?,
            }
        }
        Ok(())
    }

    fn check_one(
        &self,
        certificate: &CertificateDer<'_>,
        parts: &Parts<'_>,
        is_leaf: bool,
        now: UnixTime,
    ) -> Result<(), RevocationFault> {
        if serial(parts.serial).is_none() {
            return Err(RevocationFault::Malformed);
        }
        if self.is_revoked(certificate, parts) {
            return Err(RevocationFault::Revoked);
        }
        let points = LazyCell::new(|| distribution_points(certificate));
        let (mut is_known, mut is_fresh) = (false, false);
        for list in self.lists.iter().filter(|list| *list.issuer == *parts.issuer) {
            if !list.scope.covers(is_leaf, &points) {
                continue;
            }
            is_known = true;
            is_fresh |= list.next_update >= now.as_secs();
        }
        match (is_known, is_fresh || self.accepts_expired) {
            (true, true) => Ok(()),
            (true, false) => Err(RevocationFault::Expired),
            (false, _) => Err(RevocationFault::Unknown),
        }
    }

    /// Number of certificates on the lists.
    pub fn entries(&self) -> usize {
        self.lists.iter().map(|list| list.serials.len()).sum()
    }

    /// Returns the time at which the first of the lists expires, in seconds since 1970.
    pub fn soonest_expiry(&self) -> Option<u64> {
        self.lists.iter().map(|list| list.next_update).min()
    }

    /// Says that a list has expired, and what follows. `None`: none has.
    pub fn expired(&self, now: SystemTime) -> Option<String> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        let expired = self.soonest_expiry().filter(|expiry| *expiry < now)?;
        let follows = match self.accepts_expired {
            true => "it counts by `crl_expired = \"accept\"`",
            false => "certificates of its authority are refused",
        };
        Some(format!("a revocation list has expired at {}: {follows}", certificate::date(expired)))
    }

    /// Says that authorities are on a list, or below one that is, and what follows. `None`: none.
    pub fn revoked_authorities(&self) -> Option<String> {
        let number = self.revoked.len();
        (number > 0).then(|| {
            format!(
                "{number} of the authorities {} on a list, or below one that is: certificates that \
                 they have signed are refused",
                if number == 1 { "is" } else { "are" }
            )
        })
    }
}

impl RevocationList {
    fn revokes(&self, issuer: &[u8], serial: &Serial) -> bool {
        *self.issuer == *issuer && self.serials.binary_search(serial).is_ok()
    }
}

/// The authorities of a file of certificates.
fn anchors<'a>(chain: &'a [CertificateDer<'_>]) -> impl Iterator<Item = TrustAnchor<'a>> {
    chain.iter().filter_map(|certificate| anchor_from_trusted_cert(certificate).ok())
}

/// Reads `files` as a rule with `client_ca` or `upstream_ca` would: what is wrong, or a warning.
pub fn check_files(
    files: &[PathBuf],
    ca: Option<&Path>,
    accepts_expired: bool,
) -> Result<Option<String>, String> {
    // A mistake in `ca` is reported at its own key.
    let Some(chain) = ca.and_then(|ca| certificate::chain(ca).ok()) else { return Ok(None) };
    let read = Revocations::read(files, &chain, accepts_expired);
    let (read, _) = read.map_err(|error| error.to_string())?;
    Ok(read.expired(SystemTime::now()).or_else(|| read.revoked_authorities()))
}

fn of_bytes(
    bytes: &[u8],
    authorities: &[TrustAnchor<'_>],
) -> Result<Vec<RevocationList>, CrlFault> {
    if bytes.first() == Some(&SEQUENCE) {
        return Ok(vec![list(bytes, authorities)?]);
    }
    let pem = Pem::new(bytes);
    let sections = CertificateRevocationListDer::pem_slice_iter(pem.as_slice());
    let lists: Result<Vec<_>, _> = sections
        .map(|section| {
            let der = section.map_err(|why| CrlFault::Malformed(why.to_string()))?;
            list(&der, authorities)
        })
        .collect();
    lists.and_then(|lists| if lists.is_empty() { Err(CrlFault::None) } else { Ok(lists) })
}

fn list(der: &[u8], authorities: &[TrustAnchor<'_>]) -> Result<RevocationList, CrlFault> {
    let parsed = BorrowedCertRevocationList::from_der(der).map_err(of_webpki)?;
    let mut serials = Vec::new();
    for entry in &parsed {
        let entry = entry.map_err(of_webpki)?;
        serials.push(serial(entry.serial_number).ok_or_else(|| malformed("a long serial"))?);
    }
    serials.sort_unstable();
    serials.dedup();
    let parsed = CertRevocationList::from(parsed);
    let scope = match parsed.issuing_distribution_point() {
        None => Scope::default(),
        Some(extension) => Scope::of_extension(extension).map_err(CrlFault::Unsupported)?,
    };
    let issuer = parsed.issuer();
    let next_update = next_update(der).ok_or_else(|| malformed("no nextUpdate"))?;
    let mut named = authorities.iter().filter(|anchor| *anchor.subject == *issuer).peekable();
    if named.peek().is_none() {
        return Err(CrlFault::NoIssuer);
    }
    if !named.any(|anchor| is_signed_by(der, anchor).unwrap_or(false)) {
        return Err(CrlFault::Signature);
    }
    Ok(RevocationList { issuer: issuer.into(), scope, next_update, serials: serials.into() })
}

fn malformed(why: &str) -> CrlFault {
    CrlFault::Malformed(why.to_owned())
}

/// Says what webpki refuses: a list that it does not understand is no proof that a certificate is
/// good.
fn of_webpki(error: webpki::Error) -> CrlFault {
    use webpki::Error;
    CrlFault::Unsupported(match error {
        Error::UnsupportedDeltaCrl => "it is a delta, which has only the changes of another list",
        Error::UnsupportedIndirectCrl => "it is an indirect list, of several authorities",
        Error::UnsupportedRevocationReasonsPartitioning => "it is for some reasons only",
        Error::UnsupportedCrlIssuingDistributionPoint => {
            "its issuingDistributionPoint has no full name"
        }
        Error::UnsupportedCriticalExtension => "it has a critical extension that is not known",
        Error::BadDer | Error::BadDerTime | Error::TrailingData(_) => {
            return malformed("it is cut, has bytes behind its end, or is not DER");
        }
        other => return CrlFault::Malformed(format!("{other:?}")),
    })
}

/// A serial number to the right of its place. Leading zeros mean nothing.
fn serial(bytes: &[u8]) -> Option<Serial> {
    let significant = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
    let bytes = &bytes[significant..];
    let mut serial = [0; SERIAL_BYTES];
    serial.get_mut(SERIAL_BYTES.checked_sub(bytes.len())?..)?.copy_from_slice(bytes);
    Some(serial)
}

/// Says if an authority has signed a list, or a certificate. `None`: it has no such structure, or a
/// signature or a key of a kind that is not known here.
fn is_signed_by(der: &[u8], anchor: &TrustAnchor<'_>) -> Option<bool> {
    let mut whole = Der(Der(der).take(SEQUENCE)?.value);
    let (signed, algorithm) = (whole.take(SEQUENCE)?, whole.take(SEQUENCE)?);
    let signature = bits(whole.take(BIT_STRING)?.value)?;
    let mut key = Der(&anchor.subject_public_key_info);
    let (key_algorithm, key) = (key.take(SEQUENCE)?.value, key.take(BIT_STRING)?.value);
    let all = aws_lc_rs::default_provider().signature_verification_algorithms.all.iter();
    let known: Vec<_> = all.filter(|known| *known.signature_alg_id() == *algorithm.value).collect();
    let key = bits(key)?;
    let mut usable =
        known.iter().filter(|known| *known.public_key_alg_id() == *key_algorithm).peekable();
    let is_usable = usable.peek().is_some() && has_usable_length(key);
    if usable.any(|known| known.verify_signature(key, signed.whole, signature).is_ok()) {
        return Some(true);
    }
    let mut kinds = known.iter().filter_map(|known| key_kind(&known.public_key_alg_id()));
    let may_fit = known.is_empty() || kinds.any(|kind| Some(kind) == key_kind(key_algorithm));
    (is_usable || !may_fit).then_some(false)
}

/// The kind of a public key: its identifier without the last arc, so that the two identifiers of
/// RSA keys (RFC 4055) are one, and all curves.
fn key_kind(algorithm: &[u8]) -> Option<Vec<u8>> {
    let identifier = Der(algorithm).take(OBJECT_IDENTIFIER)?.value;
    identifier.split_last().map(|(_, kind)| kind.to_vec())
}

/// False for an RSA key whose signatures the TLS library does not verify. A key of another kind is
/// no sequence of numbers.
fn has_usable_length(key: &[u8]) -> bool {
    let modulus = Der(key).take(SEQUENCE).and_then(|key| Der(key.value).take(INTEGER));
    modulus.is_none_or(|modulus| RSA_BYTES.contains(&modulus.value.len()))
}

fn next_update(der: &[u8]) -> Option<u64> {
    let mut list = Der(Der(Der(der).take(SEQUENCE)?.value).take(SEQUENCE)?.value);
    list.take(INTEGER)?;
    list.take(SEQUENCE)?;
    list.take(SEQUENCE)?;
    list.next()?;
    let (_, time) = ASN1Time::from_der(list.next()?.whole).ok()?;
    u64::try_from(time.timestamp()).ok()
}

/// The parts of a certificate that lists are about, in DER without their tags.
struct Parts<'a> {
    serial: &'a [u8],
    issuer: &'a [u8],
    subject: &'a [u8],
}

impl<'a> Parts<'a> {
    fn of(certificate: &'a [u8]) -> Option<Self> {
        let mut signed = Der(Der(Der(certificate).take(SEQUENCE)?.value).take(SEQUENCE)?.value);
        let mut first = signed.next()?;
        if first.tag == VERSION {
            first = signed.next()?;
        }
        let serial = if first.tag == INTEGER { first.value } else { return None };
        signed.take(SEQUENCE)?;
        let issuer = signed.take(SEQUENCE)?.value;
        signed.take(SEQUENCE)?;
        Some(Self { serial, issuer, subject: signed.take(SEQUENCE)?.value })
    }
}

/// The bytes of a bit string of whole bytes.
fn bits(value: &[u8]) -> Option<&[u8]> {
    value.split_first().and_then(|(unused, bytes)| (*unused == 0).then_some(bytes))
}

#[cfg(test)]
mod tests;
