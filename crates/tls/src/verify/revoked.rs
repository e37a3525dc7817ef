//! Revocation lists in handshakes: they are read, and checked after rustls has verified a chain.
//! rustls' own check hashes a whole list in each handshake.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use eyelet_pki::certificate;
use eyelet_pki::crl::{RevocationFault, Revocations};
use eyelet_sys::file::Stamp;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::{CertificateError, Error};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::error::TlsError;
use crate::provider::verifies_signatures;
use crate::verify::pinned::PinningVerifier;

/// Reads lists of the authorities in `ca`. Says in the log what they are.
///
/// # Errors
/// If a file cannot be used.
pub fn revocations(
    files: &[PathBuf],
    ca: Option<&Path>,
    accepts_expired: bool,
) -> Result<(Option<Arc<Revocations>>, Vec<Stamp>), TlsError> {
    if files.is_empty() {
        return Ok((None, Vec::new()));
    }
    let authorities = ca.map_or(Ok(Vec::new()), certificate::chain)?;
    let (read, stamps) = Revocations::read(files, &authorities, accepts_expired)?;
    let first = files.first().map(|file| file.display().to_string()).unwrap_or_default();
    let (entries, until) = (read.entries(), read.soonest_expiry().unwrap_or(0));
    let until = certificate::date(until);
    tracing::info!("revocation lists, {first} first: {entries} certificates, good until {until}");
    let (expired, revoked) = (read.expired(SystemTime::now()), read.revoked_authorities());
    for warning in expired.into_iter().chain(revoked) {
        tracing::warn!("{first}: {warning}");
    }
    Ok((Some(Arc::new(read)), stamps))
}

/// Checks a chain that is verified.
///
/// # Errors
/// rustls' error for a chain that does not pass.
pub fn check_revoked(
    revocations: Option<&Revocations>,
    leaf: &CertificateDer<'_>,
    others: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<(), Error> {
    let Some(revocations) = revocations else { return Ok(()) };
    let fault = revocations.check(leaf, others, now).err();
    fault.map_or(Ok(()), |fault| Err(Error::InvalidCertificate(of_fault(fault))))
}

fn of_fault(fault: RevocationFault) -> CertificateError {
    match fault {
        RevocationFault::Revoked => CertificateError::Revoked,
        RevocationFault::Unknown => CertificateError::UnknownRevocationStatus,
        RevocationFault::Expired => CertificateError::ExpiredRevocationList,
        RevocationFault::Malformed => CertificateError::BadEncoding,
    }
}

/// A verifier of servers by revocation lists, too.
#[derive(Debug)]
pub struct ServerVerifier {
    /// Verifies the chain.
    pub verifier: PinningVerifier,
    pub revocations: Option<Arc<Revocations>>,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.verifier.verify_server_cert(end_entity, intermediates, server, ocsp, now)?;
        check_revoked(self.revocations.as_deref(), end_entity, intermediates, now)?;
        Ok(verified)
    }

    verifies_signatures!(std::convert::identity);
}
