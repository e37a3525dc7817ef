//! Takes a server's certificate that is itself among the roots: that of a development server is
//! mostly its own authority's.

use rustls::client::danger::ServerCertVerified;
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName};

/// webpki's fault of a certificate that may sign others. Its dates are checked before.
pub(crate) const IS_AUTHORITY: &str = "CaUsedAsEndEntity";

/// Takes a certificate after this fault, if it is a root. Who has its key could sign any other.
///
/// # Errors
/// The fault, or that it is for another name.
pub(crate) fn take_root(
    fault: Error,
    (certificate, server): (&CertificateDer<'_>, &ServerName<'_>),
    roots: &RootCertStore,
) -> Result<ServerCertVerified, Error> {
    match &fault {
        Error::InvalidCertificate(CertificateError::Other(other))
            if other.to_string() == IS_AUTHORITY && is_root(certificate, roots) =>
        {
            let certificate = ParsedCertificate::try_from(certificate)?;
            rustls::client::verify_server_name(&certificate, server)?;
            Ok(ServerCertVerified::assertion())
        }
        _ => Err(fault),
    }
}

fn is_root(certificate: &CertificateDer<'_>, roots: &RootCertStore) -> bool {
    let mut own = RootCertStore::empty();
    let is_read = own.add(certificate.clone().into_owned()).is_ok();
    is_read && own.roots.iter().all(|own| roots.roots.contains(own))
}
