//! The certificates that a revocation list is for: all of its authority, or those of its
//! issuingDistributionPoint (RFC 5280 section 5.2.5).

use std::cell::LazyCell;

use x509_parser::extensions::{DistributionPointName, GeneralName, ParsedExtension};
use x509_parser::parse_x509_certificate;

use super::der::{Der, SEQUENCE};

/// `[0]`, constructed: the name of a distribution point, and in it the full one.
const NAME: u8 = 0xa0;
/// `[6] IA5String`: a URI among general names.
const URI: u8 = 0x86;
/// `[1] BOOLEAN`: onlyContainsUserCerts.
const ONLY_USERS: u8 = 0x81;
/// `[2] BOOLEAN`: onlyContainsCACerts.
const ONLY_AUTHORITIES: u8 = 0x82;

/// The certificates of its authority that a list is for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Scope {
    holders: Holders,
    /// The URIs of its distribution point. A certificate must name one of them. `None`: none need.
    points: Option<Box<[Box<str>]>>,
}

/// The holders of the certificates that a list is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Holders {
    #[default]
    All,
    /// Not authorities.
    Users,
    Authorities,
}

impl Scope {
    /// Reads an issuingDistributionPoint. webpki has checked it: it is for no reason alone, for no
    /// attribute certificates and for no other authority's, and has a full name.
    ///
    /// # Errors
    /// Says why the list can be used for no certificate.
    pub(super) fn of_extension(der: &[u8]) -> Result<Self, &'static str> {
        let scope = Self::read(der)
            .ok_or("no certificate can be in the scope of its issuingDistributionPoint")?;
        match scope.points.as_deref() {
            // RFC 5280 section 4.2.1.13 allows the name of a folder in place of a URI.
            Some([]) => {
                Err("its issuingDistributionPoint has no URI, and Eyelet compares only these")
            }
            _ => Ok(scope),
        }
    }

    fn read(der: &[u8]) -> Option<Self> {
        let mut fields = Der(Der(der).take(SEQUENCE)?.value);
        let mut names = Der(Der(fields.take(NAME)?.value).take(NAME)?.value);
        let mut points = Vec::new();
        while let Some(name) = names.next() {
            if name.tag == URI {
                points.push(std::str::from_utf8(name.value).ok()?.into());
            }
        }
        let mut holders = Holders::All;
        while let Some(field) = fields.next() {
            holders = match (field.tag, field.value, holders) {
                (_, [0], _) => holders,
                (ONLY_USERS, _, Holders::All) => Holders::Users,
                (ONLY_AUTHORITIES, _, Holders::All) => Holders::Authorities,
                _ => return None,
            };
        }
        Some(Self { holders, points: Some(points.into()) })
    }

    /// True if it is for a certificate: the leaf of a chain, or one of its authorities, which names
    /// these distribution points.
    pub(super) fn covers<F: FnOnce() -> Vec<String>>(
        &self,
        is_leaf: bool,
        points: &LazyCell<Vec<String>, F>,
    ) -> bool {
        let is_holder = match self.holders {
            Holders::All => true,
            Holders::Users => is_leaf,
            Holders::Authorities => !is_leaf,
        };
        let is_named =
            |own: &[Box<str>]| points.iter().any(|point| own.iter().any(|own| **own == **point));
        is_holder && self.points.as_deref().is_none_or(is_named)
    }
}

/// The URIs at which a certificate says that its whole list is, by its own authority.
pub(super) fn distribution_points(certificate: &[u8]) -> Vec<String> {
    let Ok((_, parsed)) = parse_x509_certificate(certificate) else { return Vec::new() };
    let mut uris = Vec::new();
    for extension in parsed.extensions() {
        let ParsedExtension::CRLDistributionPoints(points) = extension.parsed_extension() else {
            continue;
        };
        for point in points.iter() {
            // Of another authority, or for some reasons only.
            if point.crl_issuer.is_some() || point.reasons.is_some() {
                continue;
            }
            let Some(DistributionPointName::FullName(names)) = &point.distribution_point else {
                continue;
            };
            uris.extend(names.iter().filter_map(|name| match name {
                GeneralName::URI(uri) => Some((*uri).to_owned()),
                _ => None,
            }));
        }
    }
    uris
}
