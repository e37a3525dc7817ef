//! Certificates that are made after those of origins: the same names, dates, kind and uses of key,
//! signed by an authority of the operator. One whose issuer is not trusted is signed by an
//! authority that nobody trusts, so that a client sees the fault that the origin has.

use eyelet_config::Permitted;
use ipnet::{Ipv4Net, Ipv6Net};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyUsagePurpose, SanType,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;
use x509_parser::public_key::PublicKey;

use crate::LocalCaError;
use crate::authority::{library, permitted_by, serial};
use crate::leaf::{COMMON_NAME_BYTES_MAX, LeafKey};

/// The name of the authority that nobody trusts. A browser shows it.
const UNTRUSTED_NAME: &str = "Eyelet: the issuer of the origin's certificate is not trusted";

/// By their bits (RFC 5280 section 4.2.1.3).
const KEY_USAGES: [KeyUsagePurpose; 9] = [
    KeyUsagePurpose::DigitalSignature,
    KeyUsagePurpose::ContentCommitment,
    KeyUsagePurpose::KeyEncipherment,
    KeyUsagePurpose::DataEncipherment,
    KeyUsagePurpose::KeyAgreement,
    KeyUsagePurpose::KeyCertSign,
    KeyUsagePurpose::CrlSign,
    KeyUsagePurpose::EncipherOnly,
    KeyUsagePurpose::DecipherOnly,
];

/// An authority that signs what it is shown.
pub struct MintAuthority {
    issuer: Issuer<'static, LeafKey>,
    is_root: bool,
    /// The names that clients take from it. `None`: any.
    permitted: Option<Permitted>,
}

/// The kind of key that a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// ECDSA, and whatever else is small.
    Ecdsa,
    /// RSA. A client may support no other.
    Rsa,
}

impl MintAuthority {
    /// An authority from its certificate and its key.
    ///
    /// # Errors
    /// [`LocalCaError::Library`], also if what it signs would not name it as the issuer.
    pub fn new(
        certificate: &CertificateDer<'_>,
        key: &PrivateKeyDer<'_>,
    ) -> Result<Self, LocalCaError> {
        let (_, parsed) = parse_x509_certificate(certificate).map_err(library)?;
        let is_root = parsed.subject() == parsed.issuer();
        let key = LeafKey::parse(key)?;
        let issuer = Issuer::from_ca_cert_der(certificate, key).map_err(library)?;
        // The library writes the name anew, and clients compare its bytes (RFC 5280 section 7.1).
        let sample = CertificateParams::default().signed_by(issuer.key(), &issuer);
        let sample = sample.map_err(library)?;
        let (_, sample) = parse_x509_certificate(sample.der()).map_err(library)?;
        if sample.issuer().as_raw() != parsed.subject().as_raw() {
            return Err(library("the authority's subject cannot be written again as it is"));
        }
        let permitted = permitted(&parsed)?;
        Ok(Self { issuer, is_root, permitted })
    }

    /// An authority that nobody trusts: its certificate is dropped, and its key never leaves this
    /// process.
    ///
    /// # Errors
    /// [`LocalCaError::Library`].
    pub fn untrusted() -> Result<Self, LocalCaError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, UNTRUSTED_NAME);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = LeafKey::generate()?;
        Ok(Self { issuer: Issuer::new(params, key), is_root: true, permitted: None })
    }

    /// True if it signed itself: then clients have its certificate, or do not trust it.
    pub const fn is_root(&self) -> bool {
        self.is_root
    }

    /// A certificate for this key with the names and the dates of an origin's certificate, valid or
    /// not. Names that the authority may not sign are left out: clients refuse a certificate with
    /// one of them (RFC 5280 section 6.1.4).
    ///
    /// # Errors
    /// [`LocalCaError::NoName`] if it may sign none of them, which not every client looks at.
    /// [`LocalCaError::Library`] if the origin's certificate cannot be parsed, or the library
    /// fails.
    pub fn mint(
        &self,
        origin: &CertificateDer<'_>,
        key: &LeafKey,
    ) -> Result<CertificateDer<'static>, LocalCaError> {
        let (_, parsed) = parse_x509_certificate(origin).map_err(library)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = alternative_names(&parsed);
        if let Some(permitted) = &self.permitted {
            params.subject_alt_names = cut(&params.subject_alt_names, permitted);
            if params.subject_alt_names.is_empty() {
                return Err(LocalCaError::NoName);
            }
        }
        let may_sign = |name: &str| {
            let permitted = self.permitted.as_ref();
            permitted.is_none_or(|permitted| permitted.has_name(&name.to_ascii_lowercase()))
        };
        let common = parsed.subject().iter_common_name().next();
        if let Some(common) = common.and_then(|name| name.as_str().ok())
            && may_sign(common)
            && (1..=COMMON_NAME_BYTES_MAX).contains(&common.len())
        {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        params.key_usages = key_usages(&parsed);
        // Said even where the origin does not: no client may take it for an authority's.
        params.is_ca = IsCa::ExplicitNoCa;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial()?);
        params.not_before = parsed.validity().not_before.to_datetime();
        params.not_after = parsed.validity().not_after.to_datetime();
        let signed = params.signed_by(key, &self.issuer).map_err(library)?;
        Ok(signed.der().clone())
    }
}

impl KeyKind {
    /// The kind of key of a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let parsed = parse_x509_certificate(certificate);
        let is_rsa = parsed
            .is_ok_and(|(_, parsed)| matches!(parsed.public_key().parsed(), Ok(PublicKey::RSA(_))));
        if is_rsa { Self::Rsa } else { Self::Ecdsa }
    }
}

/// Returns the usages of the key: clients refuse a server whose key may not sign. Without
/// keyCertSign, which only an authority's certificate may have (RFC 5280 4.2.1.9). If an origin's
/// has nothing else, cRLSign stands for it, with which clients refuse a server, too.
fn key_usages(parsed: &X509Certificate<'_>) -> Vec<KeyUsagePurpose> {
    let Ok(Some(extension)) = parsed.key_usage() else {
        return vec![KeyUsagePurpose::DigitalSignature];
    };
    let flags = extension.value.flags;
    let usages = KEY_USAGES.into_iter().zip(0..).filter(|(_, bit)| flags >> bit & 1 == 1);
    let is_kept = |usage: &KeyUsagePurpose| *usage != KeyUsagePurpose::KeyCertSign;
    let kept: Vec<_> = usages.map(|(usage, _)| usage).filter(is_kept).collect();
    if kept.is_empty() { vec![KeyUsagePurpose::CrlSign] } else { kept }
}

/// The names and addresses that clients take from an authority. `None`: it has no constraint on
/// names.
fn permitted(authority: &X509Certificate<'_>) -> Result<Option<Permitted>, LocalCaError> {
    let constraints = authority.name_constraints().map_err(library)?.map(|found| found.value);
    let Some(trees) = constraints.and_then(|found| found.permitted_subtrees.as_ref()) else {
        return Ok(None);
    };
    let mut permitted = permitted_by(trees.iter().map(|tree| &tree.base));
    if permitted.nets.is_empty() && constraints.is_some_and(|it| it.excluded_subtrees.is_none()) {
        // Nothing is said of addresses.
        permitted.nets = vec![Ipv4Net::default().into(), Ipv6Net::default().into()];
    }
    Ok(Some(permitted).filter(|permitted| !permitted.names.is_empty()))
}

/// Leaves out the names beyond these. Of a `*.` that has some of them, those stay.
fn cut(names: &[SanType], permitted: &Permitted) -> Vec<SanType> {
    let mut kept = Vec::new();
    for name in names {
        let lower = match name {
            SanType::DnsName(name) => name.as_str().to_ascii_lowercase(),
            SanType::IpAddress(ip) => {
                kept.extend(permitted.has_address(*ip).then(|| name.clone()));
                continue;
            }
            _ => continue,
        };
        if permitted.has_name(&lower) {
            kept.push(name.clone());
        } else if let Some(parent) = lower.strip_prefix("*.") {
            let own = permitted
                .names
                .iter()
                .filter(|own| own.split_once('.').is_some_and(|(_, above)| above == parent));
            kept.extend(
                own.filter_map(|own| own.to_string().try_into().ok().map(SanType::DnsName)),
            );
        }
    }
    kept
}

/// The DNS names and the addresses. A client looks at no others, so others are left out.
fn alternative_names(parsed: &X509Certificate<'_>) -> Vec<SanType> {
    let Ok(Some(extension)) = parsed.subject_alternative_name() else { return Vec::new() };
    let names = extension.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => (*name).try_into().ok().map(SanType::DnsName),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => Some(SanType::IpAddress((*bytes.first_chunk::<4>()?).into())),
            16 => Some(SanType::IpAddress((*bytes.first_chunk::<16>()?).into())),
            _ => None,
        },
        _ => None,
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rcgen::{KeyPair, PKCS_RSA_SHA256, RsaKeySize, date_time_ymd};

    use super::*;

    fn origin(key: &KeyPair, names: &[&str]) -> CertificateDer<'static> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "origin");
        params.not_before = date_time_ymd(2019, 2, 3);
        params.not_after = date_time_ymd(2020, 4, 5);
        params.self_signed(key).unwrap().der().clone()
    }

    #[test]
    fn names_and_dates_are_those_of_the_origin_whatever_they_are() {
        let (own, key) = (MintAuthority::untrusted().unwrap(), LeafKey::generate().unwrap());
        let names = ["*.a.example", "a.example", "192.0.2.1", "2001:db8::1"];
        for names in [&names[..], &[]] {
            let origin = origin(&KeyPair::generate().unwrap(), names);
            let minted = own.mint(&origin, &key).unwrap();
            let (_, origin) = parse_x509_certificate(&origin).unwrap();
            let (_, parsed) = parse_x509_certificate(&minted).unwrap();
            assert_eq!(parsed.validity(), origin.validity());
            assert_eq!(parsed.subject(), origin.subject());
            let names = |of: &X509Certificate<'_>| {
                let found = of.subject_alternative_name().unwrap();
                found.map(|found| format!("{:?}", found.value.general_names))
            };
            assert_eq!(names(&parsed), names(&origin));
            assert!(parsed.issuer().to_string().contains("is not trusted"));
            assert_ne!(parsed.raw_serial(), origin.raw_serial());
        }
        assert!(own.mint(&CertificateDer::from(vec![0x30, 0]), &key).is_err());
    }

    #[test]
    fn an_authority_whose_subject_would_change_signs_nothing() {
        let key = KeyPair::generate().unwrap();
        let der = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let authority = |parts: &[(&[u64], &str)]| {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name = DistinguishedName::new();
            for (kind, value) in parts {
                params.distinguished_name.push(DnType::CustomDnType(kind.to_vec()), *value);
            }
            params.self_signed(&key).unwrap().der().to_vec()
        };
        // OU and O differ in one byte, and the library writes no kind twice.
        let (one, other) = (&[2, 5, 4, 10], &[2, 5, 4, 11]);
        let mut twice = authority(&[(one, "example"), (other, "corp")]);
        assert!(MintAuthority::new(&twice.clone().into(), &der).is_ok());
        for at in 0..twice.len() - 3 {
            if twice[at..at + 3] == [0x55, 4, 11] {
                twice[at + 2] = 10;
            }
        }
        let failed = MintAuthority::new(&twice.into(), &der).err().unwrap().to_string();
        assert!(failed.contains("cannot be written again"), "{failed}");
    }

    #[test]
    fn names_that_the_authority_may_not_sign_are_left_out() {
        let names = ["a.example", "www.b.example"].map(str::to_owned);
        let run = crate::run_authority(Some(&names)).unwrap();
        let (own, key) =
            (MintAuthority::new(&run.certificate, &run.key).unwrap(), LeafKey::generate().unwrap());
        for (origin_names, kept) in [
            (&["c.example", "A.example", "x.a.example", "192.0.2.1"][..], "A.example x.a.example"),
            (&["*.a.example", "*.example"], "*.a.example a.example"),
            (&["*.b.example", "b.example"], "www.b.example"),
        ] {
            let origin = origin(&KeyPair::generate().unwrap(), origin_names);
            let minted = own.mint(&origin, &key).unwrap();
            let (_, parsed) = parse_x509_certificate(&minted).unwrap();
            let found = parsed.subject_alternative_name().unwrap().unwrap();
            let names = found.value.general_names.iter().map(|name| match name {
                GeneralName::DNSName(name) => *name,
                _ => "other",
            });
            assert_eq!(names.collect::<Vec<_>>().join(" "), kept);
        }
        for origin_names in [&["c.example", "*.c.example", "192.0.2.1"][..], &[]] {
            let origin = origin(&KeyPair::generate().unwrap(), origin_names);
            assert!(matches!(own.mint(&origin, &key), Err(LocalCaError::NoName)));
        }
        assert!(!format!("{run:?}").contains(&format!("{:?}", run.key.secret_der())));
    }

    #[test]
    fn the_uses_of_the_key_are_those_of_the_origin() {
        let (own, key) = (MintAuthority::untrusted().unwrap(), LeafKey::generate().unwrap());
        let shown = |usages: &[KeyUsagePurpose]| {
            let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
            params.key_usages = usages.to_vec();
            let origin = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            let minted = own.mint(origin.der(), &key).unwrap();
            let (_, parsed) = parse_x509_certificate(&minted).unwrap();
            let basic = parsed.basic_constraints().unwrap().map(|found| found.value.ca);
            assert_eq!(basic, Some(false), "{usages:?}");
            let found = parsed.key_usage().unwrap().unwrap();
            found.value.flags
        };
        let bit = |of: KeyUsagePurpose| {
            1 << KEY_USAGES.into_iter().position(|usage| usage == of).unwrap()
        };
        for usage in KEY_USAGES {
            let is_authority = usage == KeyUsagePurpose::KeyCertSign;
            let wanted = if is_authority { KeyUsagePurpose::CrlSign } else { usage };
            assert_eq!(shown(std::slice::from_ref(&usage)), bit(wanted), "{usage:?}");
        }
        let all = (1 << KEY_USAGES.len()) - 1;
        assert_eq!(shown(&KEY_USAGES), all & !bit(KeyUsagePurpose::KeyCertSign));
        assert_eq!(shown(&[]), 1, "the origin says nothing");
    }

    #[test]
    fn the_kind_of_key_is_that_of_the_origin() {
        let rsa = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
        assert_eq!(KeyKind::of(&origin(&rsa, &[])), KeyKind::Rsa);
        assert_eq!(KeyKind::of(&origin(&KeyPair::generate().unwrap(), &[])), KeyKind::Ecdsa);
        let (own, key) = (MintAuthority::untrusted().unwrap(), LeafKey::generate_rsa().unwrap());
        assert_eq!(KeyKind::of(&own.mint(&origin(&rsa, &[]), &key).unwrap()), KeyKind::Rsa);
    }
}
