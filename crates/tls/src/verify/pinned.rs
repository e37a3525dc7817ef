//! Verifies servers by authorities, and takes a server's certificate that itself stands in
//! `upstream_ca`: that of a development server is mostly its own authority's.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::provider::{PROVIDER, verifies_signatures};

/// webpki's fault of a certificate that may sign others. Its dates are checked before, and neither
/// its signature nor its names.
pub(crate) const IS_AUTHORITY: &str = "CaUsedAsEndEntity";

/// Authorities' certificates that are taken for a server's, too, byte for byte.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Pinned(Box<[CertificateDer<'static>]>);

/// A verifier of servers by authorities and pinned certificates.
#[derive(Debug)]
pub struct PinningVerifier {
    verifier: Arc<WebPkiServerVerifier>,
    pinned: Arc<Pinned>,
}

impl Pinned {
    /// Pins the certificates of a file. Its operator trusts them for every name: their keys could
    /// sign others. That does not hold of those with name constraints, and nobody meant the
    /// system's.
    pub(crate) fn of(
        mut file: Vec<CertificateDer<'static>>,
        system: &[CertificateDer<'_>],
    ) -> Self {
        file.retain(|certificate| !system.contains(certificate) && is_free(certificate));
        Self(file.into())
    }
}

/// True if a certificate can be a root, for all names.
fn is_free(certificate: &CertificateDer<'static>) -> bool {
    let mut own = RootCertStore::empty();
    let is_read = own.add(certificate.clone()).is_ok();
    is_read && own.roots.iter().all(|root| root.name_constraints.is_none())
}

impl PinningVerifier {
    /// Verifies by these.
    ///
    /// # Errors
    /// If rustls refuses the authorities.
    pub(crate) fn new(roots: Arc<RootCertStore>, pinned: Arc<Pinned>) -> Result<Self, Error> {
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, PROVIDER.clone());
        let verifier = verifier.build().map_err(|error| Error::General(error.to_string()))?;
        Ok(Self { verifier, pinned })
    }

    /// True if it takes these certificates for servers'.
    pub(crate) fn pins(&self, pinned: &Pinned) -> bool {
        *self.pinned == *pinned
    }
}

impl ServerCertVerifier for PinningVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.verifier.verify_server_cert(end_entity, intermediates, server, ocsp, now);
        match &verified {
            Err(Error::InvalidCertificate(CertificateError::Other(fault)))
                if fault.to_string() == IS_AUTHORITY && self.pinned.0.contains(end_entity) =>
            {
                let certificate = ParsedCertificate::try_from(end_entity)?;
                rustls::client::verify_server_name(&certificate, server)?;
                Ok(ServerCertVerified::assertion())
            }
            _ => verified,
        }
    }

    verifies_signatures!(std::convert::identity);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, CustomExtension, DnType, GeneralSubtree, IsCa,
        KeyPair, NameConstraints,
    };

    /// An authority's certificate for a name, which differs from another in its serial number.
    fn authority(
        key: &KeyPair,
        serial: u64,
        name: &str,
        permitted: Option<&str>,
    ) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "An authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.serial_number = Some(serial.into());
        params.name_constraints = permitted.map(|name| NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::DnsName(name.to_owned())],
            excluded_subtrees: Vec::new(),
        });
        params.self_signed(key).unwrap().der().clone()
    }

    /// The fault of a server `app.example`, by the roots of a file on a system.
    fn fault(
        shown: &CertificateDer<'static>,
        file: &[&CertificateDer<'static>],
        system: &[CertificateDer<'static>],
    ) -> Option<String> {
        let mut roots = RootCertStore::empty();
        let file: Vec<_> = file.iter().map(|certificate| (*certificate).clone()).collect();
        file.iter().for_each(|certificate| roots.add(certificate.clone()).unwrap());
        let pinned = Arc::new(Pinned::of(file, system));
        let verifier = PinningVerifier::new(Arc::new(roots), pinned).unwrap();
        let name = ServerName::try_from("app.example").unwrap();
        let verified = verifier.verify_server_cert(shown, &[], &name, &[], UnixTime::now());
        verified.err().map(|fault| fault.to_string())
    }

    #[test]
    fn a_certificate_of_the_file_alone_is_taken_for_a_servers() {
        let key = KeyPair::generate().unwrap();
        let own = authority(&key, 1, "app.example", None);
        let other = authority(&KeyPair::generate().unwrap(), 1, "other.example", None);
        assert_eq!(fault(&own, &[&own], &[]), None);
        assert_eq!(fault(&own, &[&other, &own], std::slice::from_ref(&other)), None);
        let is_refused = |fault: Option<String>| fault.is_some_and(|it| it.contains(IS_AUTHORITY));
        // The same subject and key, so the same root to webpki.
        let alike = authority(&key, 2, "app.example", None);
        assert!(is_refused(fault(&alike, &[&own], &[])));
        assert!(is_refused(fault(&own, &[&other], &[])));
        // A root of the system, also in a file with others.
        assert!(is_refused(fault(&own, &[&own, &other], std::slice::from_ref(&own))));
        assert!(fault(&other, &[&other], &[]).unwrap().contains("not valid for name"));
    }

    #[test]
    fn a_root_with_name_constraints_is_no_server() {
        let key = KeyPair::generate().unwrap();
        let root = authority(&key, 1, "app.example", Some("inside.example"));
        // Whoever has its key makes one for any name.
        let made = authority(&key, 2, "app.example", Some("inside.example"));
        let inside = authority(&key, 3, "app.example", Some("app.example"));
        for (shown, file) in [(&root, &root), (&made, &root), (&inside, &inside)] {
            assert!(fault(shown, &[file], &[]).unwrap().contains(IS_AUTHORITY));
        }
        // 2.5.29.30 that cannot be read, or that constrains nothing.
        for bytes in [vec![0x30, 0], vec![0xff]] {
            let mut params = CertificateParams::new(vec!["app.example".to_owned()]).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.custom_extensions =
                vec![CustomExtension::from_oid_content(&[2, 5, 29, 30], bytes)];
            let odd = params.self_signed(&key).unwrap().der().clone();
            assert!(!is_free(&odd));
        }
    }
}
