//! A cheap TLS client that offers the same few algorithms to every server. It verifies no
//! certificate.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{
    ClientConfig, DigitallySignedStruct, HandshakeKind, SignatureScheme, SupportedProtocolVersion,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Duplex;
use crate::lab::host_name;

/// Options of the client's handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandshakeOptions {
    /// TLS 1.2 instead of 1.3.
    pub tls12: bool,
    /// Keep tickets and resume with them.
    pub resume: bool,
    /// Offer HTTP/2 alone.
    pub http2: bool,
}

/// A client configuration with X25519 and AES-128-GCM only, so that every server does the same
/// cryptography. TLS 1.2 also has P-256: without it OpenSSL refuses an ECDSA certificate.
pub fn config(handshake: HandshakeOptions) -> Arc<ClientConfig> {
    let (kx, suite) =
        (aws_lc_rs::kx_group::X25519, aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256);
    let (groups, suites, version): (_, _, &'static SupportedProtocolVersion) = match handshake.tls12
    {
        true => (
            vec![kx, aws_lc_rs::kx_group::SECP256R1],
            vec![aws_lc_rs::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256],
            &rustls::version::TLS12,
        ),
        false => (vec![kx], vec![suite], &rustls::version::TLS13),
    };
    let provider = CryptoProvider {
        cipher_suites: suites,
        kx_groups: groups,
        ..aws_lc_rs::default_provider()
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[version])
        .expect("suite and version fit")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(BelieveAny))
        .with_no_client_auth();
    config.resumption = match handshake.resume {
        true => Resumption::in_memory_sessions(TICKETS),
        false => Resumption::disabled(),
    };
    if handshake.http2 {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    Arc::new(config)
}

/// Connects from the i-th source address and shakes hands, with the i-th name of `names` as SNI.
pub async fn open(
    config: &Arc<ClientConfig>,
    target: SocketAddr,
    i: usize,
    names: usize,
) -> io::Result<TlsStream<TcpStream>> {
    over(config, &host_name(i % names.max(1)), super::connect(target, i).await?).await
}

/// Shakes hands over an existing connection.
pub async fn over<S: Duplex>(
    config: &Arc<ClientConfig>,
    name: &str,
    stream: S,
) -> io::Result<TlsStream<S>> {
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(Arc::clone(config)).connect(name, stream).await
}

/// Sends a KeyUpdate with the next bytes, and requests the peer's (RFC 8446 section 4.6.3).
pub fn update_keys(stream: &mut TlsStream<TcpStream>) -> io::Result<()> {
    stream.get_mut().1.refresh_traffic_keys().map_err(io::Error::other)
}

/// True if the session was resumed.
pub fn resumed(stream: &TlsStream<TcpStream>) -> bool {
    stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed)
}

/// Verifies neither chain nor signature: this measures the server, not the client.
#[derive(Debug)]
struct BelieveAny;

impl ServerCertVerifier for BelieveAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Tickets kept. A server sends two a handshake, and the next handshake uses one.
const TICKETS: usize = 8;
