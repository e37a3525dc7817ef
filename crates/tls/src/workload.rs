//! The last message of the SPIFFE Workload API: the certificate of this workload, and the bundles
//! that verify others. A thread replaces it as a whole; handshakes only read.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};

use eyelet_pki::certificate::{Description, Pair};
use eyelet_pki::spiffe::id::{SpiffeId, SpiffePattern, TrustDomain};
use eyelet_pki::spiffe::svid::{self, SvidFault};

use crate::certificates::{CertificateMaker, Certificates};
use crate::provider::PROVIDER;
use crate::roots;
use crate::tickets::SourceId;

/// The newest message, shared by all configurations of a process.
#[derive(Default)]
pub struct Workload {
    newest: RwLock<Option<Arc<WorkloadIdentity>>>,
}

/// A message of the Workload API, ready for handshakes.
pub struct WorkloadIdentity {
    id: SpiffeId,
    certificates: Arc<Certificates>,
    /// The time at which the certificate expires, in seconds since 1970.
    not_after: i64,
    bundles: HashMap<TrustDomain, Bundle>,
}

/// The authorities of a trust domain, in the forms that verify clients and servers.
#[derive(Clone)]
pub(crate) struct Bundle {
    pub(crate) client: Arc<dyn ClientCertVerifier>,
    pub(crate) server: Arc<WebPkiServerVerifier>,
    /// Stands for its authorities, also in another process.
    number: u64,
}

/// The parts of a message, parsed.
pub struct WorkloadParts {
    /// The id of this workload.
    pub id: SpiffeId,
    /// Its certificate and its key.
    pub pair: Pair,
    /// The authorities of trust domains. Each domain is once among them.
    pub bundles: Vec<(TrustDomain, Vec<CertificateDer<'static>>)>,
    /// Lists of revoked certificates.
    pub crls: Vec<CertificateRevocationListDer<'static>>,
}

/// The reason why a message cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadFault {
    #[error("the certificate of {0} is no X.509-SVID: {1}")]
    Svid(SpiffeId, SvidFault),
    #[error("the certificate of {0} says that it is {1}")]
    OtherId(SpiffeId, SpiffeId),
    #[error("the bundle of {0} has no certificate that can be a root")]
    NoRoot(TrustDomain),
    #[error("rustls refuses the bundle of {0}: {1}")]
    Rustls(TrustDomain, String),
}

/// The reason why a handshake has no certificate of the Workload API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SvidLack {
    /// It has sent none.
    NotSent,
    /// The last one has expired.
    Expired,
}

impl Workload {
    /// Replaces what was there. Returns whether it differs.
    pub fn replace(&self, identity: WorkloadIdentity) -> bool {
        let before = self.newest.write().replace(Arc::new(identity));
        let now = self.newest.read().clone();
        match (before, now) {
            (Some(before), Some(now)) => !before.is_same(&now),
            _ => true,
        }
    }

    /// Forgets everything: the Workload API has taken it back, or is not asked any more.
    pub fn clear(&self) {
        *self.newest.write() = None;
    }

    /// The certificate of this workload.
    ///
    /// # Errors
    /// [`SvidLack`].
    pub fn certificates(&self) -> Result<Arc<Certificates>, SvidLack> {
        let newest = self.newest.read();
        let identity = newest.as_ref().ok_or(SvidLack::NotSent)?;
        match i64::try_from(UnixTime::now().as_secs()) {
            Ok(now) if now <= identity.not_after => Ok(identity.certificates.clone()),
            _ => Err(SvidLack::Expired),
        }
    }

    /// The id of this workload, and what its certificate says. `None`: none was sent.
    pub fn describe(&self) -> Option<(SpiffeId, Option<Description>)> {
        let identity = self.newest.read().clone()?;
        let described = identity.certificates.first().and_then(|leaf| leaf.describe());
        Some((identity.id.clone(), described))
    }

    /// The authorities of a trust domain.
    pub(crate) fn bundle(&self, domain: &TrustDomain) -> Option<Bundle> {
        self.newest.read().as_ref()?.bundles.get(domain).cloned()
    }

    /// Stands for these patterns and the authorities of their trust domains, also in another
    /// process. Never 0.
    pub(crate) fn number(&self, ids: &[SpiffePattern]) -> u64 {
        let newest = self.newest.read().clone();
        let number = |domain: &TrustDomain| Some(newest.as_ref()?.bundles.get(domain)?.number);
        let parts = ids.iter().flat_map(|pattern| {
            let number = number(&pattern.trust_domain()).unwrap_or(0);
            [pattern.to_string().into_bytes(), number.to_be_bytes().to_vec()]
        });
        roots::number_of_parts(parts)
    }
}

impl fmt::Debug for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Workload")
    }
}

impl WorkloadIdentity {
    /// Checks a message.
    ///
    /// # Errors
    /// [`WorkloadFault`].
    pub fn new(parts: WorkloadParts, maker: &CertificateMaker) -> Result<Self, WorkloadFault> {
        let WorkloadParts { id, pair, bundles, crls } = parts;
        let leaf = pair.certified.cert.first().map_or(&[][..], |leaf| leaf);
        let said = svid::id(&CertificateDer::from(leaf))
            .map_err(|fault| WorkloadFault::Svid(id.clone(), fault))?;
        if said != id {
            return Err(WorkloadFault::OtherId(id, said));
        }
        let bundle = |(domain, certificates): (TrustDomain, Vec<_>)| {
            let bundle = Bundle::new(&domain, certificates, &crls)?;
            Ok((domain, bundle))
        };
        let bundles = bundles.into_iter().map(bundle).collect::<Result<_, WorkloadFault>>()?;
        let certificates = maker.make(pair, SourceId::new(id.as_str().as_bytes()));
        // The leaf was parsed, so it has a date.
        let not_after = certificates.first().and_then(|leaf| leaf.expiry()).unwrap_or(0);
        Ok(Self { id, certificates, not_after, bundles })
    }

    pub fn id(&self) -> &SpiffeId {
        &self.id
    }

    /// Returns the time at which its certificate expires, in seconds since 1970.
    pub fn not_after(&self) -> i64 {
        self.not_after
    }

    /// The number of trust domains whose workloads it verifies.
    pub fn bundles_len(&self) -> usize {
        self.bundles.len()
    }

    fn is_same(&self, other: &Self) -> bool {
        let chain = |of: &Self| -> Vec<Vec<u8>> {
            let chain = of.certificates.iter().flat_map(|one| one.chain());
            chain.map(|certificate| certificate.to_vec()).collect()
        };
        let numbers = |of: &Self| {
            let numbers = of.bundles.iter().map(|(domain, bundle)| (domain.clone(), bundle.number));
            numbers.collect::<HashMap<_, _>>()
        };
        chain(self) == chain(other) && numbers(self) == numbers(other)
    }
}

impl Bundle {
    fn new(
        domain: &TrustDomain,
        certificates: Vec<CertificateDer<'static>>,
        crls: &[CertificateRevocationListDer<'static>],
    ) -> Result<Self, WorkloadFault> {
        let mut store = RootCertStore::empty();
        // What is no root here verifies nobody.
        if store.add_parsable_certificates(certificates).0 == 0 {
            return Err(WorkloadFault::NoRoot(domain.clone()));
        }
        let number = roots::number_of(&store);
        let store = Arc::new(store);
        let refused = |error: String| WorkloadFault::Rustls(domain.clone(), error);
        let client = WebPkiClientVerifier::builder_with_provider(store.clone(), PROVIDER.clone())
            .with_crls(crls.iter().cloned())
            .allow_unknown_revocation_status();
        let server = WebPkiServerVerifier::builder_with_provider(store, PROVIDER.clone())
            .with_crls(crls.iter().cloned())
            .allow_unknown_revocation_status();
        Ok(Self {
            client: client.build().map_err(|error| refused(error.to_string()))?,
            server: server.build().map_err(|error| refused(error.to_string()))?,
            number,
        })
    }
}
