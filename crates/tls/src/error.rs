//! The reason why a configuration of rustls, or a certificate, cannot be made. Each error names its
//! file.

use std::io;
use std::sync::Arc;

use eyelet_local_ca::LocalCaError;
use eyelet_pki::certificate::{AuthorityFault, CertificateError};
use eyelet_pki::crl::CrlError;

use crate::local::LocalError;

/// The reason why a configuration could not be made. It names the file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate or its key.
    #[error("{0}")]
    Certificate(#[from] CertificateError),
    /// The file of CA certificates for client certificates.
    #[error("client_ca {path}: {reason}")]
    ClientCa {
        /// The file.
        path: String,
        /// The fault in it.
        reason: String,
    },
    /// The file of CA certificates for upstreams.
    #[error("upstream_ca {path}: {reason}")]
    UpstreamCa {
        /// The file.
        path: String,
        /// The fault in it.
        reason: String,
    },
    /// The authority of a rule that mints cannot sign.
    #[error("mint_ca {path}: {fault}")]
    MintAuthority {
        /// The file.
        path: String,
        /// The fault in it.
        fault: AuthorityFault,
    },
    /// A revocation list cannot be used.
    #[error("{0}")]
    Revocation(#[from] CrlError),
    /// The local certificate authority cannot sign.
    #[error("{0}")]
    Local(LocalCaError),
    /// The rule lists no names, and the name is not one of this machine.
    #[error("no rule lists this name")]
    Unlisted,
    /// The certificates of a rule could not be read, for this reason.
    #[error("{0}")]
    Unread(Arc<str>),
    /// rustls refuses the configuration.
    #[error("{0}")]
    Rustls(#[from] rustls::Error),
}

impl From<LocalError> for TlsError {
    fn from(error: LocalError) -> Self {
        match error {
            LocalError::Authority(error) => Self::Local(error),
            LocalError::Unlisted => Self::Unlisted,
        }
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        Self::other(error)
    }
}
