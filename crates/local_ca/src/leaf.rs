//! The certificates that the authority signs: of servers, for names and addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use eyelet_config::Permitted;
use eyelet_policy::NamePattern;
use ipnet::IpNet;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair,
    KeyUsagePurpose, PKCS_RSA_SHA256, PublicKeyData, RsaKeySize, SanType, SignatureAlgorithm,
    SigningKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::{Zeroize, Zeroizing};

use crate::authority::{BACKDATED, library, serial, unix_secs};
use crate::{Authority, LocalCaError};

/// The time for which a certificate is valid that is signed on the spot. It is signed anew long
/// before.
pub const LEAF_LIFETIME: Duration = Duration::from_hours(30 * 24);
/// Bytes of a common name (RFC 5280 appendix A.1, ub-common-name).
pub(crate) const COMMON_NAME_BYTES_MAX: usize = 64;

/// A name that a certificate is for. It displays as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectName {
    /// A DNS name in lower case, perhaps with `*.` in front.
    Dns(Box<str>),
    Address(IpAddr),
}

/// The reason why a text is no name of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a name of a server; expected \"app.localhost\", \"*.app.test\" or an address")]
pub struct SubjectNameFault;

impl FromStr for SubjectName {
    type Err = SubjectNameFault;

    fn from_str(text: &str) -> Result<Self, SubjectNameFault> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        match text.parse() {
            Ok(NamePattern::Absent) | Err(_) => Err(SubjectNameFault),
            Ok(pattern) => Ok(Self::Dns(pattern.to_string().into())),
        }
    }
}

impl fmt::Display for SubjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// A key of a server, or of an authority. Several certificates may be for one.
pub struct LeafKey(KeyPair);

impl LeafKey {
    /// Makes one of ECDSA P-256.
    ///
    /// # Errors
    /// [`LocalCaError::Library`].
    pub fn generate() -> Result<Self, LocalCaError> {
        KeyPair::generate().map(Self).map_err(library)
    }

    /// Makes one of RSA with 2048 bits. It takes a tenth of a second or so.
    ///
    /// # Errors
    /// [`LocalCaError::Library`].
    pub fn generate_rsa() -> Result<Self, LocalCaError> {
        let made = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048);
        made.map(Self).map_err(library)
    }

    pub(crate) fn parse(key: &PrivateKeyDer<'_>) -> Result<Self, LocalCaError> {
        KeyPair::try_from(key).map(Self).map_err(library)
    }

    /// The key in PKCS#8.
    pub fn der(&self) -> Zeroizing<PrivateKeyDer<'static>> {
        Zeroizing::new(PrivatePkcs8KeyDer::from(self.0.serialize_der()).into())
    }

    /// The key as PEM.
    pub fn pem(&self) -> Zeroizing<String> {
        Zeroizing::new(self.0.serialize_pem())
    }
}

impl PublicKeyData for LeafKey {
    fn der_bytes(&self) -> &[u8] {
        self.0.der_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.0.algorithm()
    }
}

impl SigningKey for LeafKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.0.sign(message)
    }
}

/// The library wipes a key only when it is told to.
impl Drop for LeafKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// A certificate that the authority signed.
pub struct SignedLeaf {
    pub certificate: CertificateDer<'static>,
    pub pem: String,
    /// Its last second.
    pub end: SystemTime,
}

impl Authority {
    /// Signs a certificate of a server for these names. It is valid for `lifetime` from `now`, but
    /// not longer than the authority.
    ///
    /// # Errors
    /// If the authority is not valid now, may not sign a name, or the library fails.
    pub fn sign(
        &self,
        names: &[SubjectName],
        key: &LeafKey,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<SignedLeaf, LocalCaError> {
        self.check_dates(now)?;
        self.check_names(names)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let first = names.first().map(ToString::to_string).unwrap_or_default();
        let fits = !first.is_empty() && first.len() <= COMMON_NAME_BYTES_MAX;
        let common = if fits { &first } else { "Eyelet local certificate" };
        params.distinguished_name.push(DnType::CommonName, common);
        let alternatives = names.iter().map(|name| match name {
            SubjectName::Dns(name) => {
                name.to_string().try_into().map(SanType::DnsName).map_err(library)
            }
            SubjectName::Address(address) => Ok(SanType::IpAddress(*address)),
        });
        params.subject_alt_names = alternatives.collect::<Result<_, _>>()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial()?);
        // Within the authority's dates, or chains do not verify.
        let (start, end) = self.validity;
        let at = |secs| SystemTime::UNIX_EPOCH + Duration::from_secs(secs);
        let end = at(unix_secs(now + lifetime).min(end));
        params.not_before = at(unix_secs(now - BACKDATED).max(start)).into();
        params.not_after = end.into();
        let signed = params.signed_by(key, &self.issuer).map_err(library)?;
        Ok(SignedLeaf { certificate: signed.der().clone(), pem: signed.pem(), end })
    }

    /// Checks that it may sign all that `wanted` permits.
    ///
    /// # Errors
    /// [`LocalCaError::NotPermitted`].
    pub fn check_permits(&self, wanted: &Permitted) -> Result<(), LocalCaError> {
        let Some(permitted) = &self.permitted else { return Ok(()) };
        let names = wanted.names.iter().filter(|name| !permitted.has_name(name));
        let lacks = |net: &&IpNet| !permitted.nets.iter().any(|own| own.contains(*net));
        let nets = wanted.nets.iter().filter(lacks);
        let refused = names.map(ToString::to_string).chain(nets.map(ToString::to_string));
        self.refuse(permitted, refused.collect())
    }

    /// Checks that it may sign a name.
    ///
    /// # Errors
    /// [`LocalCaError::NotPermitted`].
    pub fn check_name(&self, name: &SubjectName) -> Result<(), LocalCaError> {
        self.check_names(std::slice::from_ref(name))
    }

    /// Checks that it may sign all of these names.
    ///
    /// # Errors
    /// [`LocalCaError::NotPermitted`], with all that it may not sign.
    pub fn check_names(&self, names: &[SubjectName]) -> Result<(), LocalCaError> {
        let Some(permitted) = &self.permitted else { return Ok(()) };
        let is_refused = |name: &&SubjectName| match name {
            SubjectName::Dns(name) => !permitted.has_name(name),
            SubjectName::Address(address) => !permitted.has_address(*address),
        };
        let refused = names.iter().filter(is_refused).map(ToString::to_string);
        self.refuse(permitted, refused.collect())
    }

    fn refuse(&self, permitted: &Permitted, names: Vec<String>) -> Result<(), LocalCaError> {
        if names.is_empty() {
            return Ok(());
        }
        let folder = self.folder.clone();
        Err(LocalCaError::NotPermitted { folder, permitted: permitted.clone(), names })
    }
}
