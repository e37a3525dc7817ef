//! The SPIFFE id of a certificate (X509-SVID): exactly one URI, and nothing that an authority has.

use rustls_pki_types::CertificateDer;
use thiserror::Error;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use crate::spiffe::id::{SpiffeId, SpiffeIdFault};

/// The reason why a certificate is no X.509-SVID of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SvidFault {
    #[error("it cannot be parsed")]
    Unreadable,
    /// X509-SVID section 2: "exactly one URI SAN".
    #[error("it has {0} URIs; an X.509-SVID has one")]
    Uris(usize),
    #[error("its URI is no SPIFFE id: {0}")]
    Id(SpiffeIdFault),
    /// X509-SVID section 5.2.
    #[error("it is an authority's own, and not one of a workload")]
    Authority,
}

/// The SPIFFE id of a workload's certificate.
///
/// # Errors
/// [`SvidFault`], if it is none.
pub fn id(certificate: &CertificateDer<'_>) -> Result<SpiffeId, SvidFault> {
    let parsed = parse_x509_certificate(certificate);
    let Ok((_, parsed)) = parsed else { return Err(SvidFault::Unreadable) };
    let names = parsed.subject_alternative_name().map_err(|_| SvidFault::Unreadable)?;
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let uris = names.filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let uris: Vec<&str> = uris.collect();
    let [uri] = uris[..] else { return Err(SvidFault::Uris(uris.len())) };
    let id = uri.parse().map_err(SvidFault::Id)?;
    let usage = parsed.key_usage().map_err(|_| SvidFault::Unreadable)?;
    let signs = usage.is_some_and(|usage| usage.value.key_cert_sign() || usage.value.crl_sign());
    if parsed.is_ca() || signs {
        return Err(SvidFault::Authority);
    }
    Ok(id)
}
