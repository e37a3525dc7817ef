//! HTTPS origins at all addresses of loopback: each name has a certificate of its own.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use tokio_rustls::TlsAcceptor;

use super::backend;
use crate::lab::{NAMES, host_name};

/// Serves the backend's HTTP for the names of the load tools, with certificates that this
/// authority signs.
pub async fn serve(address: SocketAddr, certificate: &Path, key: &Path) -> io::Result<()> {
    let provider = rustls::crypto::CryptoProvider {
        // What the robots offer too: every server does the same cryptography.
        kx_groups: vec![aws_lc_rs::kx_group::X25519, aws_lc_rs::kx_group::SECP256R1],
        ..aws_lc_rs::default_provider()
    };
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Sites::signed_by(certificate, key)?));
    config.ticketer = aws_lc_rs::Ticketer::new().map_err(io::Error::other)?;
    backend::tls(address, TlsAcceptor::from(Arc::new(config))).await
}

/// The certificates by their names.
#[derive(Debug)]
struct Sites(HashMap<String, Arc<CertifiedKey>>);

impl Sites {
    fn signed_by(certificate: &Path, key: &Path) -> io::Result<Self> {
        let (certificate, key) =
            (std::fs::read_to_string(certificate)?, PrivateKeyDer::from_pem_file(key));
        let key = KeyPair::try_from(&key.map_err(io::Error::other)?).map_err(io::Error::other)?;
        let issuer = Issuer::from_ca_cert_pem(&certificate, key).map_err(io::Error::other)?;
        let own = KeyPair::generate().map_err(io::Error::other)?;
        let der = PrivateKeyDer::try_from(own.serialize_der()).map_err(io::Error::other)?;
        let signing = aws_lc_rs::sign::any_supported_type(&der).map_err(io::Error::other)?;
        let site = |name: String| {
            let params = CertificateParams::new(vec![name.clone()])?;
            let signed = params.signed_by(&own, &issuer)?;
            let certified = CertifiedKey::new(vec![signed.der().clone()], Arc::clone(&signing));
            Ok::<_, rcgen::Error>((name, Arc::new(certified)))
        };
        let sites: Result<_, _> = (0..NAMES).map(|i| site(host_name(i))).collect();
        Ok(Self(sites.map_err(io::Error::other)?))
    }
}

impl ResolvesServerCert for Sites {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let first = host_name(0);
        // Squid does not always know the name.
        self.0.get(hello.server_name().unwrap_or(&first)).cloned()
    }
}
