//! Bytes from someone without the key: none may be taken for the peer's, and no input may cause a
//! panic or an endless loop.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use eyelet_record::{
    HEADER_BYTES, Incoming, Keys, Opened, RECORD_BYTES_MAX, RecordFault, Role, SLOT_BYTES, Session,
    Suite, Version, Whose,
};
use proptest::prelude::*;

const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
const VERSIONS: [Version; 2] = [Version::Tls12, Version::Tls13];

fn session(role: Role, version: Version, suite: Suite) -> Session {
    let secrets: [[u8; 48]; 2] = [[0xc1; 48], [0x5e; 48]];
    let [client, server] = &secrets;
    let session = match (version, suite) {
        (Version::Tls13, Suite::Aes256Gcm) => Session::tls13(role, suite, client, server, 0, 0),
        (Version::Tls13, _) => Session::tls13(role, suite, &client[..32], &server[..32], 0, 0),
        (Version::Tls12, _) => {
            let len = if suite == Suite::Aes128Gcm { 16 } else { 32 };
            let (rx, tx) = if role == Role::Server { (client, server) } else { (server, client) };
            Session::tls12(role, suite, &rx[..len], &rx[..12], &tx[..len], &tx[..12], 0, 0)
        }
    };
    session.unwrap()
}

fn record(version: Version, suite: Suite, payload: &[u8]) -> Vec<u8> {
    let mut peer = session(Role::Client, version, suite);
    let mut slot = vec![0; SLOT_BYTES];
    slot[peer.prefix_len()..][..payload.len()].copy_from_slice(payload);
    let len = peer.seal(&mut Keys::new(), &mut slot, payload.len()).unwrap();
    slot.truncate(len);
    slot
}

/// Flips every bit. After the header the tag covers every bit. In the header, type and length are
/// checked before any key is used. TLS 1.2's version is checked; TLS 1.3's is covered by the tag.
#[test]
fn every_flipped_bit_is_noticed() {
    for version in VERSIONS {
        for suite in SUITES {
            let genuine = record(version, suite, b"GET /secret HTTP/1.1\r\n\r\n");
            for bit in 0..genuine.len() * 8 {
                let mut forged = genuine.clone();
                forged[bit / 8] ^= 1 << (bit % 8);
                // The forged length may be longer: fill up, so that it is not just incomplete.
                forged.resize(RECORD_BYTES_MAX, 0);
                let mut ours = session(Role::Server, version, suite);
                let fault = ours.open(&mut Keys::new(), &mut forged).unwrap_err();
                match bit / 8 {
                    0 => assert!(
                        matches!(fault, RecordFault::RecordType(_) | RecordFault::BadRecordMac),
                        "{fault}"
                    ),
                    1 | 2 if version == Version::Tls12 => {
                        assert!(matches!(fault, RecordFault::RecordVersion(_)), "{fault}");
                    }
                    3 | 4 => assert!(
                        matches!(fault, RecordFault::RecordOverflow | RecordFault::BadRecordMac),
                        "{fault}"
                    ),
                    _ => assert_eq!(fault, RecordFault::BadRecordMac),
                }
            }
        }
    }
}

/// A record that is replayed, left out, swapped with the next, or sent back to its sender.
#[test]
fn records_out_of_order() {
    for version in VERSIONS {
        for suite in SUITES {
            let first = record(version, suite, b"first");
            let mut ours = session(Role::Server, version, suite);
            let mut keys = Keys::new();
            let opened = ours.open(&mut keys, &mut first.clone()).unwrap();
            assert!(matches!(opened, Opened::Record { what: Incoming::Data(_), .. }));
            let replayed = ours.open(&mut keys, &mut first.clone());
            assert_eq!(replayed, Err(RecordFault::BadRecordMac));

            let mut sender = session(Role::Client, version, suite);
            let reflected = sender.open(&mut Keys::new(), &mut first.clone());
            assert_eq!(reflected, Err(RecordFault::BadRecordMac));
        }
    }
}

fn feed(session: &mut Session, input: &mut [u8]) -> Result<usize, RecordFault> {
    let (mut keys, mut at) = (Keys::new(), 0);
    loop {
        let rest = &mut input[at..];
        let rest_len = rest.len();
        match session.open(&mut keys, rest)? {
            Opened::NeedMore { at_least } => {
                assert!(at_least > rest_len && at_least <= RECORD_BYTES_MAX);
                return Ok(at);
            }
            Opened::Record { consumed, what } => {
                assert!((1..=rest_len).contains(&consumed));
                assert!(!matches!(what, Incoming::Data(ref data) if data.end > consumed));
                at += consumed;
            }
        }
    }
}

/// Records of any type, version and content, some with a plausible header.
fn stranger() -> impl Strategy<Value = Vec<u8>> {
    let content_type = prop_oneof![4 => Just(23_u8), 2 => 20..25_u8, 1 => any::<u8>()];
    let version = prop_oneof![4 => Just([3, 3]), 1 => any::<[u8; 2]>()];
    let fragment = prop::collection::vec(any::<u8>(), 0..400);
    let record = (content_type, version, fragment).prop_map(|(content_type, version, fragment)| {
        let [hi, lo] = (fragment.len() as u16).to_be_bytes();
        [&[content_type, version[0], version[1], hi, lo][..], &fragment].concat()
    });
    prop_oneof![
        4 => prop::collection::vec(record, 1..4).prop_map(|records| records.concat()),
        1 => prop::collection::vec(any::<u8>(), 0..2000),
    ]
}

/// No file of failing seeds: the smallest failing input is printed.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn a_stranger_is_never_believed(
        mut input in stranger(),
        version in 0..2_usize,
        suite in 0..3_usize,
        role in prop_oneof![Just(Role::Server), Just(Role::Client)],
    ) {
        let mut ours = session(role, VERSIONS[version], SUITES[suite]);
        match feed(&mut ours, &mut input) {
            Ok(consumed) => {
                prop_assert_eq!(consumed, 0);
                prop_assert!(input.len() < HEADER_BYTES || !ours.read_closed());
            }
            Err(fault) => {
                prop_assert_eq!(fault.whose(), Whose::Peer);
                prop_assert!(ours.open(&mut Keys::new(), &mut input).is_err());
            }
        }
    }

    /// Genuine records, then a stranger's bytes. No byte of the stranger is accepted.
    #[test]
    fn a_stranger_among_genuine_records(
        input in stranger(),
        version in 0..2_usize,
        suite in 0..3_usize,
        payload in prop::collection::vec(any::<u8>(), 1..300),
    ) {
        let (version, suite) = (VERSIONS[version], SUITES[suite]);
        let genuine = record(version, suite, &payload);
        let mut stream = [&genuine[..], &input].concat();
        let mut ours = session(Role::Server, version, suite);
        if let Ok(consumed) = feed(&mut ours, &mut stream) {
            prop_assert_eq!(consumed, genuine.len());
        }
        let at = ours.prefix_len();
        prop_assert_eq!(&stream[at..at + payload.len()], &payload[..]);
    }
}
