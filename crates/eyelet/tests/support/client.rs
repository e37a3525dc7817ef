//! The tests' own clients: raw sockets that tell FIN from RST, and rustls.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::crypto::aws_lc_rs;
use rustls::{CipherSuite, ClientConfig, ClientConnection, StreamOwned, SupportedProtocolVersion};

use super::edge::connect;
use super::pki::{Leaf, Pki};

/// The end of a stream of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Fin,
    Rst,
    Open,
}

/// Reads to the end, or until the deadline: what came, and how it ended.
pub fn ending(stream: &mut TcpStream, deadline: Duration) -> (Vec<u8>, End) {
    let until = Instant::now() + deadline;
    let (mut got, mut piece) = (Vec::new(), [0; 16 * 1024]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return (got, End::Open);
        }
        stream.set_read_timeout(Some(left)).unwrap();
        match stream.read(&mut piece) {
            Ok(0) => return (got, End::Fin),
            Ok(length) => got.extend_from_slice(&piece[..length]),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return (got, End::Rst),
            Err(e) => panic!("neither FIN nor RST: {e}"),
        }
    }
}

/// The fatal alert that ends these bytes, when they are nothing but a plaintext alert record.
pub fn alert_of(bytes: &[u8]) -> Option<u8> {
    match bytes {
        [0x15, 3, _, 0, 2, 2, code] => Some(*code),
        _ => None,
    }
}

/// Closes with a reset (SO_LINGER 0).
pub fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

/// Closes so that the FIN goes out now. Dropping alone may send it later: a child process of
/// another test has a copy of each descriptor until it executes its program, on a busy machine for
/// long.
pub fn close(stream: TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

/// A TLS client's stream.
pub type Tls = StreamOwned<ClientConnection, TcpStream>;

/// The TLS versions of an offer.
pub type Versions = &'static [&'static SupportedProtocolVersion];
pub const TLS13: Versions = &[&rustls::version::TLS13];
pub const TLS12: Versions = &[&rustls::version::TLS12];

/// The offer of a rustls client.
pub struct Offer<'a> {
    pub pki: &'a Pki,
    pub versions: Versions,
    pub suite: Option<CipherSuite>,
    pub alpn: &'a [&'a str],
    pub certificate: Option<&'a Leaf>,
}

impl<'a> Offer<'a> {
    /// TLS 1.3 and 1.2, everything else as rustls has it.
    pub fn new(pki: &'a Pki) -> Self {
        Self { pki, versions: rustls::ALL_VERSIONS, suite: None, alpn: &[], certificate: None }
    }

    pub fn config(&self) -> Arc<ClientConfig> {
        let mut provider = aws_lc_rs::default_provider();
        if let Some(suite) = self.suite {
            provider.cipher_suites.retain(|s| s.suite() == suite);
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_root_certificates(self.pki.roots());
        let mut config = match self.certificate {
            Some(leaf) => builder
                .with_client_auth_cert(vec![leaf.certificate.clone()], leaf.key.clone_key())
                .unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// Connects and finishes the handshake.
    pub fn try_connect(&self, address: SocketAddr, name: &str) -> io::Result<Tls> {
        handshake(self.config(), connect(address), name)
    }

    /// Connects, where it must work.
    pub fn connect(&self, address: SocketAddr, name: &str) -> Tls {
        self.try_connect(address, name).unwrap()
    }
}

/// A handshake on a socket that is open already.
pub fn handshake(config: Arc<ClientConfig>, socket: TcpStream, name: &str) -> io::Result<Tls> {
    let name = name.to_owned().try_into().unwrap();
    let mut tls = Tls::new(ClientConnection::new(config, name).unwrap(), socket);
    while tls.conn.is_handshaking() {
        tls.conn.complete_io(&mut tls.sock)?;
    }
    Ok(tls)
}

/// Sends and waits until the same came back.
pub fn echo(tls: &mut (impl Read + Write), text: &[u8]) {
    tls.write_all(text).unwrap();
    tls.flush().unwrap();
    let mut back = vec![0; text.len()];
    tls.read_exact(&mut back).unwrap();
    assert!(back == text, "the echo of {} bytes differs", text.len());
}

/// The alert that a TLS error carries, if the peer sent one.
pub fn alert_in(error: &io::Error) -> Option<u8> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::AlertReceived(alert) => Some(u8::from(*alert)),
        _ => None,
    }
}
