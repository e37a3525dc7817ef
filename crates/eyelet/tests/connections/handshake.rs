//! Faulty TLS handshakes: each gets the alert that its RFC names, and the edge goes on. The clients
//! are rustls with extra bytes, and raw hellos.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::sign::{CertifiedKey, Signer, SigningKey, SingleCertAndKey};
use rustls::{
    ClientConfig, ClientConnection, ServerConfig, ServerConnection, SignatureAlgorithm,
    SignatureScheme, StreamOwned,
};

use crate::support::client::{Offer, TLS12, TLS13, Versions, alert_in, echo};
use crate::support::edge::connect;
use crate::support::pki::Kind;
use crate::support::{
    Edge, End, Hello, Pki, SOON, Tls, Upstream, alert_of, ending, noise, records,
};

const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const HANDSHAKE_FAILURE: u8 = 40;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const DECRYPT_ERROR: u8 = 51;
const PROTOCOL_VERSION: u8 = 70;
const MISSING_EXTENSION: u8 = 109;
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// An edge that terminates app.test in front of an echo.
pub struct Front {
    pub edge: Edge,
    _upstream: Upstream,
    pub pki: Pki,
}

impl Front {
    pub fn new() -> Self {
        Self::with("")
    }

    /// With more keys in the rule.
    fn with(more: &str) -> Self {
        let (pki, upstream) = (Pki::new(), Upstream::echo());
        let rule = pki.terminate(&format!("tcp://{}", upstream.address), more);
        let edge = Edge::start(&pki.folder, &rule);
        Self { edge, _upstream: upstream, pki }
    }

    /// The alert that a client gets for these bytes in the place of its second flight.
    pub fn alert_for(&self, versions: Versions, slipped_in: &[u8]) -> u8 {
        let config = Offer { versions, ..Offer::new(&self.pki) }.config();
        let mut client = ClientConnection::new(config, "app.test".try_into().unwrap()).unwrap();
        let mut socket = self.edge.connect();
        let address = socket.local_addr().unwrap();
        client.write_tls(&mut socket).unwrap();
        // In TLS 1.3 its compatible ChangeCipherSpec is ready before its Finished.
        while !client.wants_write() || (versions == TLS13 && client.is_handshaking()) {
            assert_ne!(client.read_tls(&mut socket).unwrap(), 0);
            client.process_new_packets().unwrap();
        }
        socket.write_all(slipped_in).unwrap();
        let alert = loop {
            assert_ne!(client.read_tls(&mut socket).unwrap(), 0, "no alert for {slipped_in:x?}");
            match client.process_new_packets() {
                Ok(_) => {}
                Err(rustls::Error::AlertReceived(alert)) => break u8::from(alert),
                Err(error) => panic!("{error} for {slipped_in:x?}"),
            }
        };
        assert_eq!(ending(&mut socket, SOON), (Vec::new(), End::Fin));
        let line = self.edge.line_of(address);
        let reason = line["reason"].as_str().unwrap();
        assert!(reason.starts_with("handshake: "), "{line}");
        assert!(!reason.contains("unexpected error"), "blames the edge: {line}");
        alert
    }

    /// Returns the answer to a raw hello, to the end.
    fn answer(&self, hello: &[u8]) -> Vec<u8> {
        let mut socket = self.edge.connect();
        socket.write_all(hello).unwrap();
        ending(&mut socket, SOON).0
    }

    pub fn still_serves(&self) {
        let mut client = Offer::new(&self.pki).connect(self.edge.address(), "app.test");
        echo(&mut client, b"still there");
        let log = self.edge.log();
        assert!(!log.contains("panicked"), "{log}");
    }
}

/// The alert that ends a handshake, as a rustls client reads it.
pub fn alert_to(client: &mut ClientConnection, socket: &mut TcpStream) -> u8 {
    loop {
        assert_ne!(client.read_tls(socket).unwrap(), 0, "no alert");
        match client.process_new_packets() {
            Ok(_) => {}
            Err(rustls::Error::AlertReceived(alert)) => return u8::from(alert),
            Err(error) => panic!("{error}"),
        }
    }
}

pub fn record(kind: u8, fragment: &[u8]) -> Vec<u8> {
    let length = u16::try_from(fragment.len()).unwrap().to_be_bytes();
    [&[kind, 3, 3], &length[..], fragment].concat()
}

/// rustls has no alert for it, and must not be asked for one: that was a panic.
#[test]
fn a_message_is_not_interleaved() {
    let front = Front::new();
    let key_exchange = [16, 0, 0, 33, 32, 1, 2, 3, 4, 5];
    let slipped_in = [record(22, &key_exchange), record(23, b"x")].concat();
    assert_eq!(front.alert_for(TLS12, &slipped_in), UNEXPECTED_MESSAGE);
    front.still_serves();
}

#[test]
fn a_malformed_message_has_its_alert() {
    let front = Front::new();
    for key_exchange in [&[16, 0, 0, 0][..], &[16, 0, 0, 3, 32, 1, 2], &[16, 0xff, 0xff, 0xff]] {
        assert_eq!(front.alert_for(TLS12, &record(22, key_exchange)), DECODE_ERROR);
    }
    front.still_serves();
}

#[test]
fn a_record_that_must_not_come_has_its_alert() {
    let front = Front::new();
    for versions in [TLS12, TLS13] {
        for (kind, fragment) in
            [(24, &[1][..]), (0, &[]), (255, &[1, 2]), (20, &[2]), (20, &[]), (20, &[1, 1])]
        {
            let alert = front.alert_for(versions, &record(kind, fragment));
            assert_eq!(alert, UNEXPECTED_MESSAGE, "type {kind}: {fragment:?}");
        }
    }
    // What is not sealed, once we have sealed.
    assert_eq!(front.alert_for(TLS13, &record(22, &[20, 0, 0, 0])), UNEXPECTED_MESSAGE);
    front.still_serves();
}

#[test]
fn a_record_that_is_too_long_has_its_alert() {
    let front = Front::new();
    assert_eq!(front.alert_for(TLS13, &[23, 3, 3, 0x41, 0x01]), RECORD_OVERFLOW);
    assert_eq!(front.alert_for(TLS12, &[22, 3, 3, 0x48, 0x01]), RECORD_OVERFLOW);
    front.still_serves();
}

#[test]
fn a_tls13_hello_must_have_its_extensions() {
    let front = Front::new();
    for kind in [10, 13, 51] {
        let answer = front.answer(&Hello::named("app.test").without(kind).bytes());
        assert_eq!(alert_of(&answer), Some(MISSING_EXTENSION), "extension {kind}: {answer:x?}");
    }
    front.still_serves();
}

/// Without supported_versions a version that nobody knows is TLS 1.2 (RFC 8446 section 4.2.1).
#[test]
fn a_version_to_come_is_answered_with_tls12() {
    let front = Front::new();
    for version in [[4, 0], [0xff, 0xff]] {
        let mut message = Hello::named("app.test").without(43).message();
        message[4..6].copy_from_slice(&version);
        let mut socket = front.edge.connect();
        socket.write_all(&records(&message, &[])).unwrap();
        let mut server_hello = [0; 11];
        socket.read_exact(&mut server_hello).unwrap();
        assert!(
            matches!(server_hello, [22, 3, 3, _, _, 2, _, _, _, 3, 3]),
            "{server_hello:x?} for {version:x?}"
        );
    }
    front.still_serves();
}

/// RFC 8446 appendix D.5, whatever supported_versions says.
#[test]
fn an_ssl30_hello_is_of_no_version() {
    let front = Front::new();
    for hello in [Hello::named("app.test"), Hello::named("app.test").tls12()] {
        let mut message = hello.message();
        message[4..6].copy_from_slice(&[3, 0]);
        let answer = front.answer(&records(&message, &[]));
        assert_eq!(alert_of(&answer), Some(PROTOCOL_VERSION), "{answer:x?}");
    }
    front.still_serves();
}

/// RFC 8446 section 4.2.11: `opaque PskBinderEntry<32..255>`.
#[test]
fn a_binder_must_have_the_length_of_a_hash() {
    let front = Front::new();
    for length in [0, 31] {
        let binders = [&[0, length + 1, length][..], &vec![7; usize::from(length)]].concat();
        let offer = [&[0, 7, 0, 1, 7, 0, 0, 0, 0][..], &binders].concat();
        let answer = front.answer(&Hello::named("app.test").extension(41, &offer).bytes());
        assert_eq!(alert_of(&answer), Some(DECODE_ERROR), "{answer:x?}");
    }
    front.still_serves();
}

/// rustls decodes extensions that we have no use for: docs/conformance.md has them.
#[test]
fn rustls_decodes_extensions_that_nobody_uses() {
    let front = Front::new();
    for (kind, body, alert) in [
        (58, &[1][..], DECODE_ERROR),
        (0xfd00, &[0], DECODE_ERROR),
        (27, &[4, 0, 2, 0, 2], ILLEGAL_PARAMETER),
    ] {
        let answer = front.answer(&Hello::named("app.test").extension(kind, body).bytes());
        assert_eq!(alert_of(&answer), Some(alert), "extension {kind}: {answer:x?}");
    }
    front.still_serves();
}

/// A handshake that cannot be done ends by an alert alone, before any ServerHello.
#[test]
fn nothing_in_common_is_told_at_once() {
    let front = Front::with("alpn_select = [\"h2\"]");
    let named = || Hello::named("app.test");
    let schemes = |scheme: [u8; 2]| [&[0, 2][..], &scheme].concat();
    let unfit = |scheme| named().without(13).extension(13, &schemes(scheme));
    let other_protocol = |hello: Hello| hello.extension(16, b"\0\x05\x04http");
    let (ed25519, p384) = ([8, 7], [5, 3]);
    for (what, hello, alert) in [
        ("ALPN, TLS 1.3", other_protocol(named()), NO_APPLICATION_PROTOCOL),
        ("ALPN, TLS 1.2", other_protocol(named()).tls12(), NO_APPLICATION_PROTOCOL),
        ("another kind of key, TLS 1.3", unfit(ed25519), HANDSHAKE_FAILURE),
        ("another kind of key, TLS 1.2", unfit(ed25519).tls12(), HANDSHAKE_FAILURE),
        ("another curve, TLS 1.3", unfit(p384), HANDSHAKE_FAILURE),
        ("another curve, TLS 1.2", unfit(p384).tls12(), HANDSHAKE_FAILURE),
    ] {
        let mut socket = front.edge.connect();
        let address = socket.local_addr().unwrap();
        socket.write_all(&hello.bytes()).unwrap();
        assert_eq!(ending(&mut socket, SOON).0, [21, 3, 3, 0, 2, 2, alert], "{what}");
        let line = front.edge.line_of(address);
        let reason = line["reason"].as_str().unwrap();
        assert!(reason.starts_with("handshake: "), "{what}: {line}");
        assert!(!reason.contains("unexpected error"), "{what} blames the edge: {line}");
    }
    front.still_serves();
}

/// A signer that says another scheme than it signs with.
#[derive(Debug)]
struct Liar(Arc<dyn SigningKey>, SignatureScheme);

#[derive(Debug)]
struct Lie(Box<dyn Signer>, SignatureScheme);

impl SigningKey for Liar {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        Some(Box::new(Lie(self.0.choose_scheme(offered)?, self.1)))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.algorithm()
    }
}

impl Signer for Lie {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        self.0.sign(message)
    }

    fn scheme(&self) -> SignatureScheme {
        self.1
    }
}

/// RFC 8446 section 4.4.3, RFC 5246 section 7.4.8: the scheme of a CertificateVerify fits the key.
#[test]
fn a_scheme_that_does_not_fit_the_key() {
    let front = Front::with("client_ca = \"ca.pem\"");
    let leaf = front.pki.client("client");
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&leaf.key).unwrap();
    for versions in [TLS12, TLS13] {
        for (scheme, expected) in [
            (SignatureScheme::RSA_PSS_SHA256, ILLEGAL_PARAMETER),
            (SignatureScheme::ED25519, ILLEGAL_PARAMETER),
            // TLS 1.2 leaves the curve open (RFC 5246 section 7.4.1.4.1).
            (
                SignatureScheme::ECDSA_NISTP384_SHA384,
                [DECRYPT_ERROR, ILLEGAL_PARAMETER][usize::from(versions == TLS13)],
            ),
            (SignatureScheme::from(0x0909), ILLEGAL_PARAMETER),
        ] {
            let mut config = Arc::unwrap_or_clone(
                Offer { versions, certificate: Some(&leaf), ..Offer::new(&front.pki) }.config(),
            );
            let liar = Arc::new(Liar(key.clone(), scheme));
            let certified = CertifiedKey::new(vec![leaf.certificate.clone()], liar);
            config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certified));
            let mut client = stream(&Arc::new(config), front.edge.address());
            let address = client.sock.local_addr().unwrap();
            let error = client.write_all(b"x").and_then(|()| client.read_exact(&mut [0]));
            assert_eq!(alert_in(&error.unwrap_err()), Some(expected), "{scheme:?} {versions:?}");
            let line = front.edge.line_of(address);
            assert!(line["reason"].as_str().unwrap().starts_with("handshake: "), "{line}");
        }
    }
}

/// RFC 5246 section 7.4.2, RFC 8446 section 4.4.2: no certificate of a chain is empty.
#[test]
fn a_chain_has_no_empty_certificate() {
    let (pki, upstream) = (Pki::new(), Upstream::echo());
    let rule = pki.terminate(&format!("tcp://{}", upstream.address), "client_ca = \"ca.pem\"");
    let edge = Edge::start(&pki.folder, &rule);
    let leaf = pki.client("client");
    let mut offer = Offer { certificate: Some(&leaf), ..Offer::new(&pki) };
    echo(&mut offer.connect(edge.address(), "app.test"), b"a chain of one");
    for versions in [TLS12, TLS13] {
        offer.versions = versions;
        let mut config = Arc::unwrap_or_clone(offer.config());
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&leaf.key).unwrap();
        let chain = vec![leaf.certificate.clone(), Vec::new().into()];
        config.client_auth_cert_resolver =
            Arc::new(SingleCertAndKey::from(CertifiedKey::new(chain, key)));
        let name = "app.test".try_into().unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut socket = edge.connect();
        while client.is_handshaking() || client.wants_write() {
            while client.wants_write() {
                client.write_tls(&mut socket).unwrap();
            }
            if !client.is_handshaking() {
                break;
            }
            assert_ne!(client.read_tls(&mut socket).unwrap(), 0);
            if let Err(error) = client.process_new_packets() {
                assert_eq!(versions.len(), 1);
                assert_eq!(error, rustls::Error::AlertReceived(DECODE_ERROR.into()));
                break;
            }
        }
        if client.is_handshaking() {
            continue;
        }
        assert_eq!(alert_to(&mut client, &mut socket), DECODE_ERROR);
    }
}

/// RFC 8446 section 5.2: a record that does not decrypt is `bad_record_mac`, also within a message,
/// and where announced early data is no longer skipped.
#[test]
fn a_finished_whose_second_record_does_not_decrypt() {
    let front = Front::new();
    let other = other_server(&front.pki, default_provider());
    for has_early_data in [false, true] {
        let mut config = Arc::unwrap_or_clone(Offer::new(&front.pki).config());
        config.enable_early_data = true;
        // The shortest that rustls takes: a Finished is cut in two.
        config.max_fragment_size = Some(32);
        let config = Arc::new(config);
        if has_early_data {
            stream(&config, other).read_exact(&mut [0]).unwrap();
        }
        let name = "app.test".try_into().unwrap();
        let mut client = ClientConnection::new(config, name).unwrap();
        let mut socket = front.edge.connect();
        if has_early_data {
            client.early_data().unwrap().write_all(b"early").unwrap();
        }
        while client.wants_write() {
            client.write_tls(&mut socket).unwrap();
        }
        while client.is_handshaking() {
            assert_ne!(client.read_tls(&mut socket).unwrap(), 0);
            client.process_new_packets().unwrap();
        }
        let mut flight = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut flight).unwrap();
        }
        *flight.last_mut().unwrap() ^= 1;
        socket.write_all(&flight).unwrap();
        let alert = alert_to(&mut client, &mut socket);
        assert_eq!(alert, BAD_RECORD_MAC, "early data: {has_early_data}");
    }
    front.still_serves();
}

/// A client that holds another server's ticket sends early data for that one (RFC 8446 section
/// 4.2.10): up to 2^14 bytes are skipped, however they are cut.
#[test]
fn early_data_for_another_server_is_skipped() {
    let front = Front::new();
    let other = other_server(&front.pki, default_provider());
    for cuts in [&[4096][..], &[8000], &[4000, 4000], &[16_000], &[1000; 16]] {
        let mut config = Arc::unwrap_or_clone(Offer::new(&front.pki).config());
        config.enable_early_data = true;
        let config = Arc::new(config);
        let mut told = stream(&config, other);
        // The ticket comes before the greeting.
        told.read_exact(&mut [0]).unwrap();

        let mut client = stream(&config, front.edge.address());
        for &length in cuts {
            client.conn.early_data().unwrap().write_all(&noise(length, 7)).unwrap();
        }
        echo(&mut client, b"behind it");
        assert!(!client.conn.is_early_data_accepted());
    }
    front.still_serves();
}

pub fn stream(config: &Arc<ClientConfig>, address: SocketAddr) -> Tls {
    let client = ClientConnection::new(config.clone(), "app.test".try_into().unwrap()).unwrap();
    Tls::new(client, connect(address))
}

/// Another server of that name, which takes early data and greets each client with a byte.
pub fn other_server(pki: &Pki, provider: CryptoProvider) -> SocketAddr {
    let leaf = pki.server("other", &["app.test"], Kind::P256);
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.certificate], leaf.key)
        .unwrap();
    config.max_early_data_size = 1 << 14;
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for socket in listener.incoming() {
            greet(config.clone(), socket.unwrap());
        }
    });
    address
}

fn greet(config: Arc<ServerConfig>, socket: TcpStream) {
    let mut server = StreamOwned::new(ServerConnection::new(config).unwrap(), socket);
    let _ = server.write_all(b"!");
    let _ = server.flush();
}
