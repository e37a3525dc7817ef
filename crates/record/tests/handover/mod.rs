//! From rustls' unbuffered handshake to a `Session`, as the program does it: one TLS record at a
//! time until WriteTraffic, secrets from the key log, and the remaining bytes stay ciphertext.

use std::io::Read;
use std::sync::{Arc, Mutex};

use eyelet_record::{HEADER_BYTES, Role, Session, Suite, Version};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, ConnectionTrafficSecrets, ExtractedSecrets,
    KeyLog, RootCertStore, ServerConfig, ServerConnection, SupportedCipherSuite,
};

/// The six suites, as rustls and as this crate name them.
pub const SUITES: [(CipherSuite, Version, Suite); 6] = [
    (CipherSuite::TLS13_AES_128_GCM_SHA256, Version::Tls13, Suite::Aes128Gcm),
    (CipherSuite::TLS13_AES_256_GCM_SHA384, Version::Tls13, Suite::Aes256Gcm),
    (CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, Version::Tls13, Suite::ChaCha20Poly1305),
    (CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, Version::Tls12, Suite::Aes128Gcm),
    (CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, Version::Tls12, Suite::Aes256Gcm),
    (
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        Version::Tls12,
        Suite::ChaCha20Poly1305,
    ),
];

/// A connection after its handshake: our end, and rustls as the peer.
pub struct Connected {
    pub session: Session,
    pub peer: rustls::Connection,
    /// Ciphertext that rustls sent beyond the handshake.
    pub leftover: Vec<u8>,
}

/// The two application traffic secrets of generation 0, from the key log.
#[derive(Debug, Default)]
struct Secrets {
    client: Mutex<Vec<u8>>,
    server: Mutex<Vec<u8>>,
}

impl KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        match label {
            "CLIENT_TRAFFIC_SECRET_0" => *self.client.lock().unwrap() = secret.to_vec(),
            "SERVER_TRAFFIC_SECRET_0" => *self.server.lock().unwrap() = secret.to_vec(),
            _ => {}
        }
    }
}

/// Does a handshake with rustls, which takes the other role.
pub fn connect(role: Role, suite: CipherSuite) -> Connected {
    let secrets = Arc::new(Secrets::default());
    let (mut client, mut server) = configs(suite);
    match role {
        Role::Server => {
            server.key_log = secrets.clone();
            server.enable_secret_extraction = true;
            let ours = UnbufferedServerConnection::new(Arc::new(server)).unwrap();
            let peer = ClientConnection::new(Arc::new(client), name()).unwrap();
            handshake(Ours::Server(ours), peer.into(), &secrets)
        }
        Role::Client => {
            client.key_log = secrets.clone();
            client.enable_secret_extraction = true;
            let ours = UnbufferedClientConnection::new(Arc::new(client), name()).unwrap();
            let peer = ServerConnection::new(Arc::new(server)).unwrap();
            handshake(Ours::Client(ours), peer.into(), &secrets)
        }
    }
}

fn name() -> ServerName<'static> {
    "localhost".try_into().unwrap()
}

/// Configurations of both ends with a single cipher suite.
fn configs(suite: CipherSuite) -> (ClientConfig, ServerConfig) {
    let only = |known: &SupportedCipherSuite| known.suite() == suite;
    let known = aws_lc_rs::ALL_CIPHER_SUITES.iter().copied().find(only).unwrap();
    let provider = CryptoProvider { cipher_suites: vec![known], ..aws_lc_rs::default_provider() };
    let provider = Arc::new(provider);

    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate: CertificateDer<'static> = identity.cert.der().clone();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(identity.signing_key.serialize_der()));
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();

    let versions = [known.version()];
    let client = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    (client, server)
}

enum Ours {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// The next need of our end of the handshake.
enum Step {
    Again,
    NeedRecord,
    Done,
}

impl Ours {
    fn step(&mut self, incoming: &mut Vec<u8>, outgoing: &mut Vec<u8>) -> Step {
        let (discard, step) = match self {
            Ours::Server(ours) => server_step(ours.process_tls_records(incoming), outgoing),
            Ours::Client(ours) => client_step(ours.process_tls_records(incoming), outgoing),
        };
        incoming.drain(..discard);
        step
    }

    fn secrets(self) -> ExtractedSecrets {
        match self {
            Ours::Server(ours) => ours.dangerous_into_kernel_connection().unwrap().0,
            Ours::Client(ours) => ours.dangerous_into_kernel_connection().unwrap().0,
        }
    }
}

fn server_step(
    status: UnbufferedStatus<'_, '_, ServerConnectionData>,
    outgoing: &mut Vec<u8>,
) -> (usize, Step) {
    (status.discard, step(status.state.unwrap(), outgoing))
}

fn client_step(
    status: UnbufferedStatus<'_, '_, ClientConnectionData>,
    outgoing: &mut Vec<u8>,
) -> (usize, Step) {
    (status.discard, step(status.state.unwrap(), outgoing))
}

fn step<Data>(state: ConnectionState<'_, '_, Data>, outgoing: &mut Vec<u8>) -> Step {
    match state {
        ConnectionState::EncodeTlsData(mut encode) => {
            let mut buffer = [0; 1 << 14];
            let len = encode.encode(&mut buffer).unwrap();
            outgoing.extend_from_slice(&buffer[..len]);
            Step::Again
        }
        ConnectionState::TransmitTlsData(transmit) => {
            transmit.done();
            Step::Again
        }
        ConnectionState::BlockedHandshake => Step::NeedRecord,
        ConnectionState::WriteTraffic(_) => Step::Done,
        other => panic!("{other:?} in a handshake"),
    }
}

fn handshake(mut ours: Ours, mut peer: rustls::Connection, secrets: &Secrets) -> Connected {
    let role = match ours {
        Ours::Server(_) => Role::Server,
        Ours::Client(_) => Role::Client,
    };
    let (mut wire, mut incoming, mut outgoing) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        match ours.step(&mut incoming, &mut outgoing) {
            Step::Again => continue,
            Step::Done => break,
            Step::NeedRecord => {}
        }
        deliver(&mut peer, &outgoing);
        outgoing.clear();
        while peer.wants_write() {
            peer.write_tls(&mut wire).unwrap();
        }
        // One record at a time: rustls must not read records that are ours.
        let len = HEADER_BYTES + usize::from(u16::from_be_bytes([wire[3], wire[4]]));
        incoming.extend(wire.drain(..len));
    }
    assert!(incoming.is_empty());
    deliver(&mut peer, &outgoing);
    while peer.wants_write() {
        peer.write_tls(&mut wire).unwrap();
    }
    assert!(!peer.is_handshaking());
    Connected { session: take_over(role, ours.secrets(), secrets), peer, leftover: wire }
}

/// Passes ciphertext to a rustls connection, and returns the plaintext.
pub fn deliver(peer: &mut rustls::Connection, mut ciphertext: &[u8]) -> Vec<u8> {
    let mut plaintext = Vec::new();
    while !ciphertext.is_empty() {
        peer.read_tls(&mut ciphertext).unwrap();
        peer.process_new_packets().unwrap();
        // rustls accepts no more ciphertext while plaintext waits. WouldBlock ends the plaintext.
        let _ = peer.reader().read_to_end(&mut plaintext);
    }
    plaintext
}

fn take_over(role: Role, extracted: ExtractedSecrets, secrets: &Secrets) -> Session {
    let (rx_seq, rx) = extracted.rx;
    let (tx_seq, tx) = extracted.tx;
    let (suite, rx_key, rx_iv) = parts(&rx);
    let (_, tx_key, tx_iv) = parts(&tx);
    let client = secrets.client.lock().unwrap();
    let server = secrets.server.lock().unwrap();
    let session = if client.is_empty() {
        Session::tls12(role, suite, rx_key, rx_iv, tx_key, tx_iv, rx_seq, tx_seq)
    } else {
        Session::tls13(role, suite, &client, &server, rx_seq, tx_seq)
    };
    let session = session.unwrap();
    // The key log's secrets are in use: no KeyUpdate happened before the handover.
    assert!(session.has_keys((rx_key, rx_iv), (tx_key, tx_iv)));
    session
}

fn parts(secrets: &ConnectionTrafficSecrets) -> (Suite, &[u8], &[u8]) {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => {
            (Suite::Aes128Gcm, key.as_ref(), iv.as_ref())
        }
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => {
            (Suite::Aes256Gcm, key.as_ref(), iv.as_ref())
        }
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            (Suite::ChaCha20Poly1305, key.as_ref(), iv.as_ref())
        }
        _ => panic!("a suite that rustls did not have"),
    }
}
