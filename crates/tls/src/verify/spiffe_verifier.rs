//! Verifies clients and upstreams by their SPIFFE ids (X509-SVID section 5): a chain to the bundle
//! of the trust domain that the certificate names, and an id that the rule takes.

use std::net::Ipv4Addr;
use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, DistinguishedName, Error, OtherError, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use eyelet_pki::spiffe::id::{SpiffeId, SpiffePattern, TrustDomain};
use eyelet_pki::spiffe::svid::{self, SvidFault};

use crate::provider::verifies_signatures;
use crate::verify::client_chain;
use crate::workload::{Bundle, Workload};

/// The reason why a peer's certificate is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpiffePeerFault {
    #[error("no X.509-SVID: {0}")]
    NoSvid(SvidFault),
    #[error("there is no bundle of the trust domain {0}")]
    NoBundle(TrustDomain),
    #[error("the rule does not take {0}")]
    NotTaken(SpiffeId),
}

impl From<SpiffePeerFault> for Error {
    fn from(fault: SpiffePeerFault) -> Self {
        CertificateError::Other(OtherError(Arc::new(fault))).into()
    }
}

/// Verifies peers with one of these ids, by the newest bundles.
#[derive(Clone, Debug)]
pub struct SpiffeVerifier {
    workload: Arc<Workload>,
    ids: Arc<[SpiffePattern]>,
}

/// Shows the newest certificate of this workload to an upstream that asks for one.
#[derive(Debug)]
pub(crate) struct ShowsSvid(pub(crate) Arc<Workload>);

impl SpiffeVerifier {
    pub(crate) fn new(workload: &Arc<Workload>, ids: &[SpiffePattern]) -> Self {
        Self { workload: workload.clone(), ids: ids.into() }
    }

    /// The verifier of a rule's clients. Revocation lists come with the bundles.
    pub(crate) fn of_clients(&self) -> Arc<dyn ClientCertVerifier> {
        client_chain::strict(Arc::new(self.clone()), None)
    }

    /// The ids as they are written.
    pub(crate) fn names(&self) -> String {
        let names: Vec<String> = self.ids.iter().map(SpiffePattern::to_string).collect();
        names.join(" ")
    }

    /// Stands for the ids and the newest bundles of their trust domains, as [`Workload::number`].
    pub(crate) fn number(&self) -> u64 {
        self.workload.number(&self.ids)
    }

    /// The bundle for a peer, which `verify` uses. The id counts only after that.
    fn verify<T>(
        &self,
        leaf: &CertificateDer<'_>,
        verify: impl FnOnce(Bundle) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let id = svid::id(leaf).map_err(SpiffePeerFault::NoSvid)?;
        let domain = id.trust_domain();
        let bundle = self.workload.bundle(&domain);
        let verified = verify(bundle.ok_or(SpiffePeerFault::NoBundle(domain))?)?;
        if !self.ids.iter().any(|pattern| pattern.takes(&id)) {
            return Err(SpiffePeerFault::NotTaken(id).into());
        }
        Ok(verified)
    }
}

impl ClientCertVerifier for SpiffeVerifier {
    /// No client chooses its certificate by the names of authorities.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(end_entity, |bundle| {
            bundle.client.verify_client_cert(end_entity, intermediates, now)
        })
    }

    verifies_signatures!(std::convert::identity);
}

impl ServerCertVerifier for SpiffeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // webpki verifies the chain before the name, which an X.509-SVID need not have.
        let any = ServerName::from(Ipv4Addr::UNSPECIFIED);
        self.verify(end_entity, |bundle| {
            let verifier = bundle.server;
            match verifier.verify_server_cert(end_entity, intermediates, &any, ocsp_response, now) {
                Err(Error::InvalidCertificate(
                    CertificateError::NotValidForName
                    | CertificateError::NotValidForNameContext { .. },
                )) => Ok(ServerCertVerified::assertion()),
                verified => verified,
            }
        })
    }

    verifies_signatures!(std::convert::identity);
}

impl ResolvesClientCert for ShowsSvid {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let certified = self.0.certificates().ok()?.first()?.certified()?;
        certified.key.choose_scheme(schemes).is_some().then_some(certified)
    }

    fn has_certs(&self) -> bool {
        true
    }
}
