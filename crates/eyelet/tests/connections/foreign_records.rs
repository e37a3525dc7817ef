//! Records that no client sends, in each phase of a connection. Each has its alert, and a reason
//! that blames the client.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::handshake::{Front, record};
use crate::support::client::{Offer, TLS12, TLS13, Versions, alert_in, echo};
use crate::support::{SOON, alert_of, ending};

const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;

/// The header of a record, which alone says that it is too long.
const OVERLONG: [u8; 5] = [23, 3, 3, 0x48, 1];

/// The bytes that are sent, by name.
fn foreign() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("a CCS with another byte", record(20, &[2])),
        ("a CCS of two bytes", record(20, &[1, 1])),
        ("an empty CCS", record(20, &[])),
        ("a CCS", record(20, &[1])),
        ("an overlong record", OVERLONG.to_vec()),
        ("type 99", record(99, b"what")),
        ("version 0x0505", [&[23, 5, 5, 0, 32][..], &[7; 32]].concat()),
        ("an empty handshake record", record(22, &[])),
        ("an alert of one byte", record(21, &[2])),
        ("an alert of another level", record(21, &[7, 40])),
    ]
}

/// Text in the reason of a client's fault, and never of one of the edge.
fn blames_client(front: &Front, socket: &TcpStream, what: &str) {
    let line = front.edge.line_of(socket.local_addr().unwrap());
    let reason = line["reason"].as_str().unwrap();
    for ours in ["unexpected error", "internal", "closed without close_notify"] {
        assert!(!reason.contains(ours), "{what}: {line}");
    }
}

#[test]
fn in_the_place_of_a_hello() {
    let front = Front::new();
    for (what, bytes) in foreign() {
        let mut socket = front.edge.connect();
        socket.write_all(&bytes).unwrap();
        let (got, _) = ending(&mut socket, SOON);
        let alert = alert_of(&got);
        assert!(matches!(alert, Some(UNEXPECTED_MESSAGE | DECODE_ERROR)), "{what}: {alert:?}");
        blames_client(&front, &socket, what);
    }
    front.still_serves();
}

#[test]
fn in_the_place_of_the_second_flight() {
    let front = Front::new();
    for (what, bytes) in foreign() {
        for versions in [TLS12, TLS13] {
            let is_compatible = what == "a CCS" && versions == TLS13;
            if is_compatible {
                // RFC 8446 appendix D.4.
                continue;
            }
            let alert = front.alert_for(versions, &bytes);
            let expected = match what {
                "an overlong record" => &[RECORD_OVERFLOW][..],
                _ => &[UNEXPECTED_MESSAGE, DECODE_ERROR, ILLEGAL_PARAMETER],
            };
            assert!(expected.contains(&alert), "{what}: {alert}");
        }
    }
    front.still_serves();
}

#[test]
fn after_the_handshake() {
    let front = Front::new();
    for (what, bytes) in foreign() {
        for versions in [TLS12, TLS13] {
            let (alert, socket) = after(&front, versions, &bytes);
            let tls12 = versions == TLS12;
            let expected = match what {
                "an overlong record" => RECORD_OVERFLOW,
                "version 0x0505" if tls12 => PROTOCOL_VERSION,
                "version 0x0505" => BAD_RECORD_MAC,
                // It is sealed in TLS 1.2.
                "an empty handshake record" | "an alert of one byte" if tls12 => BAD_RECORD_MAC,
                "an alert of another level" if tls12 => BAD_RECORD_MAC,
                _ => UNEXPECTED_MESSAGE,
            };
            assert_eq!(alert, Some(expected), "{what}, TLS 1.2: {tls12}");
            blames_client(&front, &socket, what);
        }
    }
    front.still_serves();
}

/// The alert for these bytes on a connection that is parked.
fn after(front: &Front, versions: Versions, bytes: &[u8]) -> (Option<u8>, TcpStream) {
    let offer = Offer { versions, ..Offer::new(&front.pki) };
    let mut client = offer.connect(front.edge.address(), "app.test");
    echo(&mut client, b"parked");
    client.sock.write_all(bytes).unwrap();
    let error = client.read(&mut [0]).unwrap_err();
    (alert_in(&error), client.sock)
}
