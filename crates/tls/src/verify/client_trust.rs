//! The verifiers of a rule's clients: authorities with their revocation lists, or the bundles of
//! trust domains.

use std::sync::Arc;

use eyelet_config::{RuleList, Terminate};
use rustls::server::danger::ClientCertVerifier;

use crate::error::TlsError;
use crate::tickets::SourceId;
use crate::verify::authorities::{Authorities, ClientFiles};
use crate::verify::spiffe_verifier::SpiffeVerifier;
use crate::workload::Workload;

/// The verifier of a rule's clients.
#[derive(Clone)]
pub enum ClientTrust {
    /// Those of `client_ca`, with the lists of `client_crl`.
    Authorities(Arc<Authorities>),
    /// The newest bundles, for the ids of `client_spiffe`.
    Spiffe(SpiffeVerifier),
}

impl ClientTrust {
    /// Reads what a rule names. `None`: it asks for no certificate.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn read(
        rule: &Terminate,
        workload: &Arc<Workload>,
        known: &[Arc<Authorities>],
    ) -> Result<Option<Self>, TlsError> {
        if let Some(files) = ClientFiles::of(rule) {
            return Ok(Some(Self::Authorities(Authorities::read(&files, known)?)));
        }
        let ids = &rule.client_spiffe;
        Ok((!ids.is_empty()).then(|| Self::Spiffe(SpiffeVerifier::new(workload, ids))))
    }

    /// The authorities, if they come from files.
    pub fn authorities(&self) -> Option<&Arc<Authorities>> {
        match self {
            Self::Authorities(authorities) => Some(authorities),
            Self::Spiffe(_) => None,
        }
    }

    /// Stands for who verifies now, also in the next process. Never 0.
    pub fn number(&self) -> u64 {
        match self {
            Self::Authorities(authorities) => authorities.number(),
            Self::Spiffe(verifier) => verifier.number(),
        }
    }

    /// Stands for what the rule says, in tickets.
    pub fn source(&self, rules: &RuleList) -> SourceId {
        match self {
            Self::Authorities(authorities) => SourceId::of(rules, &authorities.files().ca),
            Self::Spiffe(verifier) => SourceId::new(verifier.names().as_bytes()),
        }
    }

    /// True if both verify clients in the same way.
    pub fn is_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Authorities(one), Self::Authorities(other)) => one.are_as(other),
            (Self::Spiffe(one), Self::Spiffe(other)) => one.names() == other.names(),
            (Self::Authorities(_), Self::Spiffe(_)) | (Self::Spiffe(_), Self::Authorities(_)) => {
                false
            }
        }
    }

    /// The verifier for handshakes.
    ///
    /// # Errors
    /// If rustls refuses the authorities.
    pub fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        match self {
            Self::Authorities(authorities) => authorities.verifier(),
            Self::Spiffe(verifier) => Ok(verifier.of_clients()),
        }
    }
}
