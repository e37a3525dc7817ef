//! The TLS of the demo's own clients: they trust the demo's authority alone.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use eyelet_tls::client::roots_config;

/// The time for which a client of the demo waits for one thing. It is on the same machine, which
/// may be busy.
pub(crate) const CLIENT_TIMEOUT: Duration = Duration::from_secs(20);

/// A client that verifies the server by this authority and speaks HTTP/1.1. It does not resume.
///
/// # Errors
/// The file cannot be read, or rustls cannot use its certificate.
pub(crate) fn connector(authority: &Path) -> io::Result<TlsConnector> {
    let (config, _) = roots_config(Some(authority))?;
    let mut config = ClientConfig::clone(&config);
    config.resumption = Resumption::disabled();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Shakes hands over an existing connection.
///
/// # Errors
/// A socket's error, or rustls', which has the alert.
pub(crate) async fn shake_hands(
    connector: &TlsConnector,
    name: &str,
    stream: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    in_time(connector.connect(name, stream)).await
}

/// Waits for [`CLIENT_TIMEOUT`] at most.
///
/// # Errors
/// The future's, or `TimedOut`.
pub(crate) async fn in_time<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(CLIENT_TIMEOUT, future).await?
}
