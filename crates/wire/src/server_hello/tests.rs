//! ServerHellos as servers send them, with each fault, and cut in all ways.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::testing::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

fn peek(raw: &[u8]) -> ServerPeek {
    ServerHelloReader::new().feed(raw)
}

fn chosen(raw: &[u8]) -> ServerHello {
    match peek(raw) {
        ServerPeek::ServerHello(hello) => hello,
        other => panic!("no ServerHello: {other:?}"),
    }
}

fn body(random: [u8; 32], extensions: &[Vec<u8>]) -> Vec<u8> {
    let start = [u16s(&[0x0303]), random.to_vec(), vec8([5; 32]), u16s(&[0x1301]), vec![0]];
    [start.concat(), vec16(extensions.concat())].concat()
}

fn tls13() -> Vec<u8> {
    let share = [u16s(&[29]), vec16([7; 32])].concat();
    message(SERVER_HELLO, body([6; 32], &[ext(51, share), ext(43, [3, 4])]))
}

#[test]
fn tls13_is_what_supported_versions_says() {
    let raw = [record(tls13()), typed_record(20, [1]), typed_record(23, [0; 40])].concat();
    let hello = chosen(&raw);
    assert_eq!((hello.version, hello.legacy_version), (0x0304, 0x0303));
    assert_eq!((hello.cipher_suite, hello.compression_method), (0x1301, 0));
    assert_eq!(hello.raw_len, record(tls13()).len());
    assert!(!hello.is_hello_retry_request());
}

#[test]
fn tls12_shares_its_record_with_the_certificate() {
    let mut body = body([6; 32], &[]);
    body.truncate(body.len() - 2);
    let at = body.len() - 1;
    body[at] = 1;
    let raw = record([message(SERVER_HELLO, &body), message(11, [0; 900])].concat());
    // The certificate need not have arrived.
    for len in [5 + 4 + body.len(), raw.len()] {
        let hello = chosen(&raw[..len]);
        assert_eq!((hello.version, hello.compression_method), (0x0303, 1));
        assert_eq!(hello.raw_len, raw.len());
    }
    assert!(matches!(peek(&raw[..8 + body.len()]), ServerPeek::NeedMore { at_least: 1 }));
}

#[test]
fn a_retry_is_known_by_its_random() {
    let body = body(HELLO_RETRY_REQUEST_RANDOM, &[ext(43, [3, 4]), ext(51, [0, 23])]);
    assert!(chosen(&record(message(SERVER_HELLO, body))).is_hello_retry_request());
}

#[test]
fn the_second_flight_may_begin_with_a_compatibility_record() {
    let raw = [typed_record(20, [1]), record(tls13())].concat();
    let raw = [&[20, 3, 3], &raw[3..]].concat();
    assert_eq!(chosen(&raw).raw_len, raw.len());
    for len in 0..raw.len() {
        assert!(matches!(peek(&raw[..len]), ServerPeek::NeedMore { .. }), "{len}");
    }
}

#[test]
fn other_answers() {
    let fault = |at, why| ServerPeek::Malformed(Malformed { at, why });
    let cases: &[(&[u8], ServerPeek)] = &[
        (&[21, 3, 3, 0, 2, 2, 40], ServerPeek::Alert { description: 40, raw_len: 7 }),
        (
            &[20, 3, 3, 0, 1, 1, 21, 3, 3, 0, 2, 1, 112],
            ServerPeek::Alert { description: 112, raw_len: 13 },
        ),
        (&[21, 3, 3, 0, 2, 2], ServerPeek::NeedMore { at_least: 1 }),
        (&[21, 3, 3, 0, 3, 2, 40, 0], fault(0, Fault::Trailing(Field::Alert))),
        (&[21, 3, 3, 0, 1], fault(0, Fault::Truncated(Field::Alert))),
        (&[21, 2], fault(0, Fault::RecordVersion(2))),
        (b"HTTP/1.1 400", ServerPeek::NotTls(b'H')),
        (&[23, 3, 3], ServerPeek::NotTls(23)),
        (&[20, 3, 3, 0, 1, 2], fault(0, Fault::RecordType(20))),
        (&[20, 3, 3, 0, 1, 1, 23], fault(0, Fault::RecordType(23))),
        (&[22, 2], fault(0, Fault::RecordVersion(2))),
        (&[22, 3, 3, 0, 0], fault(0, Fault::EmptyRecord)),
        (&[22, 3, 3, 0x40, 1], fault(0, Fault::RecordOverflow { len: 0x4001 })),
        (&[22, 3, 3, 0, 9, 1], fault(0, Fault::MessageType(1))),
        (&[22, 3, 3, 0, 9, 2, 1, 0, 0], fault(1, Fault::TooLong { message_bytes: 0x10004 })),
    ];
    for (raw, expected) in cases {
        assert_eq!(peek(raw), *expected, "{raw:x?}");
    }
}

#[test]
fn faults_have_their_places() {
    let whole = body([6; 32], &[ext(43, [3, 4])]);
    let cut = |len: usize| record(message(SERVER_HELLO, &whole[..len]));
    let with = |extensions: &[Vec<u8>]| record(message(SERVER_HELLO, body([6; 32], extensions)));
    let cases = [
        ("no random", cut(2), 6, Fault::Truncated(Field::Random)),
        ("no suite", cut(67), 71, Fault::Truncated(Field::CipherSuites)),
        ("no compression", cut(69), 73, Fault::Truncated(Field::CompressionMethods)),
        ("half a length", cut(71), 74, Fault::Truncated(Field::Extensions)),
        ("version cut", with(&[ext(43, [3])]), 80, Fault::Truncated(Field::Extension(43))),
        (
            "version and more",
            with(&[ext(43, [3, 4, 0])]),
            82,
            Fault::Trailing(Field::Extension(43)),
        ),
        ("twice", with(&[ext(9, []), ext(9, [])]), 80, Fault::DuplicateExtension(9)),
    ];
    for (what, raw, at, why) in cases {
        assert_eq!(peek(&raw), ServerPeek::Malformed(Malformed { at, why }), "{what}");
    }
}

#[test]
fn every_cut_into_two_segments_two_records_and_one_byte_records() {
    let whole = record(tls13());
    let expected = chosen(&whole);
    for cut in 0..whole.len() {
        let mut reader = ServerHelloReader::new();
        assert!(matches!(reader.feed(&whole[..cut]), ServerPeek::NeedMore { .. }), "{cut}");
        assert_eq!(reader.feed(&whole), ServerPeek::ServerHello(expected), "{cut}");
    }
    for cut in 1..tls13().len() {
        let raw = records(&tls13(), &[cut]);
        assert_eq!(chosen(&raw), ServerHello { raw_len: raw.len(), ..expected });
    }
    let raw = records(&tls13(), &vec![1; tls13().len()]);
    let mut reader = ServerHelloReader::new();
    for len in 0..raw.len() {
        assert!(matches!(reader.feed(&raw[..len]), ServerPeek::NeedMore { .. }), "{len}");
    }
    assert_eq!(
        reader.feed(&raw),
        ServerPeek::ServerHello(ServerHello { raw_len: raw.len(), ..expected })
    );
}

proptest! {
    #[test]
    fn any_cut_of_any_bytes_gives_the_same_answer(
        at in any::<prop::sample::Index>(),
        to in any::<u8>(),
        sizes in prop::collection::vec(1_usize..40, 0..8),
    ) {
        let mut raw = records(&tls13(), &sizes);
        let at = at.index(raw.len());
        raw[at] = to;
        let whole = peek(&raw);
        let mut reader = ServerHelloReader::new();
        let given = (0..=raw.len()).map(|len| reader.feed(&raw[..len]))
            .find(|answer| !matches!(answer, ServerPeek::NeedMore { .. }));
        match given {
            Some(given) => prop_assert_eq!(given, whole),
            None => {
                let waits = matches!(whole, ServerPeek::NeedMore { .. });
                prop_assert!(waits);
            }
        }
    }
}
