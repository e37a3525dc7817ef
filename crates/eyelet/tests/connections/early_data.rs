//! Early data that nobody asked for: the client holds another server's ticket (RFC 8446 section
//! 4.2.10). It is skipped, with and without a HelloRetryRequest.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{default_provider, kx_group};
use rustls::{ClientConfig, ClientConnection};

use crate::handshake::{Front, alert_to, other_server, record, stream};
use crate::support::client::{Offer, echo};
use crate::support::{Tls, noise};

const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;

/// Bytes that TLS 1.3 adds to a record's content: its type and a tag.
const SEALED_BYTES: usize = 1 + 16;

/// A client with a ticket of `other`, whose hello announces early data.
fn config(front: &Front, other: SocketAddr, is_retried: bool) -> Arc<ClientConfig> {
    let mut provider = default_provider();
    // The hello has a share of X25519, as the other server wants it. The edge asks for the group
    // that the client prefers.
    provider.kx_groups = match is_retried {
        true => vec![kx_group::X25519MLKEM768, kx_group::X25519],
        false => vec![kx_group::X25519],
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(front.pki.roots())
        .with_no_client_auth();
    config.enable_early_data = true;
    let config = Arc::new(config);
    // The ticket comes before the greeting.
    stream(&config, other).read_exact(&mut [0]).unwrap();
    config
}

/// A server of X25519 alone.
fn other(front: &Front) -> SocketAddr {
    other_server(
        &front.pki,
        CryptoProvider { kx_groups: vec![kx_group::X25519], ..default_provider() },
    )
}

/// A client that has sent its first hello, and behind it records with so much early data each.
fn early(front: &Front, config: Arc<ClientConfig>, contents: &[usize]) -> Tls {
    let mut client = ClientConnection::new(config, "app.test".try_into().unwrap()).unwrap();
    let mut flight = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut flight).unwrap();
    }
    assert!(client.early_data().is_some(), "no early data is announced");
    // The edge has no key for it, so it may be anything.
    let early = contents.iter().map(|length| record(23, &noise(length + SEALED_BYTES, 7)));
    flight.extend(early.flatten());
    let mut socket = front.edge.connect();
    socket.write_all(&flight).unwrap();
    Tls::new(client, socket)
}

#[test]
fn early_data_is_skipped_up_to_its_limit() {
    let front = Front::new();
    let other = other(&front);
    for is_retried in [true, false] {
        for contents in [
            &[][..],
            &[0],
            &[1],
            &[16_359],
            &[16_360],
            &[16_367],
            &[16_368],
            &[16_384],
            &[8_192; 2],
            &[1_024; 16],
            &[64; 256],
            &[16_383, 1],
        ] {
            let mut client = early(&front, config(&front, other, is_retried), contents);
            echo(&mut client, b"behind it");
            assert!(!client.conn.is_early_data_accepted());
            let kind = client.conn.handshake_kind().unwrap();
            let was_retried = kind == rustls::HandshakeKind::FullWithHelloRetryRequest;
            assert_eq!(was_retried, is_retried, "{contents:?}");
        }
    }
    front.still_serves();
}

#[test]
fn more_early_data_has_its_alert() {
    let front = Front::new();
    let other = other(&front);
    for (is_retried, too_much) in [(false, BAD_RECORD_MAC), (true, UNEXPECTED_MESSAGE)] {
        let config = config(&front, other, is_retried);
        for contents in [&[16_384, 16_384][..], &[4_096; 5], &[16_000, 1_000], &[0; 300]] {
            // A ticket is used once.
            stream(&config, other).read_exact(&mut [0]).unwrap();
            let mut client = early(&front, config.clone(), contents);
            let address = client.sock.local_addr().unwrap();
            let alert = alert_to(&mut client.conn, &mut client.sock);
            assert_eq!(alert, too_much, "{is_retried} {contents:?}");
            let line = front.edge.line_of(address);
            let reason = line["reason"].as_str().unwrap();
            assert!(reason.starts_with("handshake: "), "{line}");
            assert!(!reason.contains("unexpected error"), "{line}");
        }
    }
    front.still_serves();
}

/// A record that is longer than any may be is early data nowhere.
#[test]
fn an_overlong_record_is_no_early_data() {
    let front = Front::new();
    let other = other(&front);
    let mut client = early(&front, config(&front, other, false), &[16_384 + 240]);
    assert_eq!(alert_to(&mut client.conn, &mut client.sock), RECORD_OVERFLOW);
    front.still_serves();
}

/// A client that goes on with the tickets that it gets here.
#[test]
fn the_next_connection_resumes() {
    let front = Front::new();
    let mut config = Arc::unwrap_or_clone(Offer::new(&front.pki).config());
    config.enable_early_data = true;
    let config = Arc::new(config);
    for _ in 0..2 {
        let mut client = stream(&config, front.edge.address());
        echo(&mut client, b"no early data");
        assert!(client.conn.early_data().is_none());
    }
}
