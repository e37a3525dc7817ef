//! Client certificates: a check that rustls omits of the chain that a client sends, and an error of
//! its signature.

use std::sync::Arc;

use eyelet_pki::crl::Revocations;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DistinguishedName, Error, InvalidMessage, PeerMisbehaved};
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::provider::verifies_signatures;
use crate::verify::revoked::check_revoked;

/// Refuses a chain with an empty certificate. RFC 5246 section 7.4.2 (`ASN.1Cert<1..2^24-1>`) and
/// RFC 8446 section 4.4.2 (`cert_data<1..2^24-1>`) forbid them. rustls decodes one, and ignores it
/// unless it is part of the path.
#[derive(Debug)]
struct Strict {
    verifier: Arc<dyn ClientCertVerifier>,
    /// Revoked certificates are refused, too.
    revocations: Option<Arc<Revocations>>,
}

/// Wraps `verifier`, which then sees only chains without empty certificates.
pub fn strict(
    verifier: Arc<dyn ClientCertVerifier>,
    revocations: Option<Arc<Revocations>>,
) -> Arc<dyn ClientCertVerifier> {
    Arc::new(Strict { verifier, revocations })
}

impl ClientCertVerifier for Strict {
    fn offer_client_auth(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if end_entity.is_empty() || intermediates.iter().any(|certificate| certificate.is_empty()) {
            return Err(InvalidMessage::IllegalEmptyValue.into());
        }
        let verified = self.verifier.verify_client_cert(end_entity, intermediates, now)?;
        check_revoked(self.revocations.as_deref(), end_entity, intermediates, now)?;
        Ok(verified)
    }

    verifies_signatures!(own_fault);
}

/// A scheme that does not fit the key breaks TLS, so its alert is `illegal_parameter` (RFC 8446
/// section 4.4.3, RFC 5246 section 7.4.8).
fn own_fault(error: Error) -> Error {
    match error {
        Error::InvalidCertificate(
            CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. },
        ) => PeerMisbehaved::SignedKxWithWrongAlgorithm.into(),
        other => other,
    }
}
