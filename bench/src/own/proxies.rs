//! The simplest proxies on tokio. They are a yardstick, so they must not be tuned.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::listen;

/// TLS with one certificate and stateless tickets.
pub fn acceptor(certificate: &Path, key: &Path) -> io::Result<TlsAcceptor> {
    acceptor_of(certificate, key, rustls::ALL_VERSIONS)
}

/// TLS of these versions, likewise.
pub fn acceptor_of(
    certificate: &Path,
    key: &Path,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> io::Result<TlsAcceptor> {
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let chain = chain.map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(io::Error::other)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(io::Error::other)?;
    config.ticketer = aws_lc_rs::Ticketer::new().map_err(io::Error::other)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Terminates TLS, and holds one upstream connection for each client.
pub async fn terminate(
    address: SocketAddr,
    acceptor: TlsAcceptor,
    upstream: SocketAddr,
) -> io::Result<()> {
    let listener = listen::listen(address)?;
    loop {
        let (stream, acceptor) = (listen::accept(&listener).await?, acceptor.clone());
        tokio::spawn(async move {
            let mut client = acceptor.accept(stream).await?;
            let mut server = TcpStream::connect(upstream).await?;
            server.set_nodelay(true)?;
            copy_bidirectional(&mut client, &mut server).await
        });
    }
}

/// Joins each client with the next upstream, without reading the bytes.
pub async fn splice(address: SocketAddr, upstreams: &[SocketAddr]) -> io::Result<()> {
    let listener = listen::listen(address)?;
    for upstream in upstreams.iter().copied().cycle() {
        let mut client = listen::accept(&listener).await?;
        tokio::spawn(async move {
            let mut server = TcpStream::connect(upstream).await?;
            server.set_nodelay(true)?;
            copy_bidirectional(&mut client, &mut server).await
        });
    }
    Ok(())
}
