//! Every other fault, with its name and its place.

use super::*;
use crate::alert::AlertDescription;
use crate::testing::differential::same_name_as_rustls;
use std::vec;

fn malformed(raw: &[u8]) -> Malformed {
    match peek(raw) {
        Peek::Malformed(malformed) => malformed,
        other => panic!("not malformed: {other:?}"),
    }
}

/// Offset of the extensions' length in the message that `Spec` builds by default: header 4, version
/// 2, random 32, session id 33, suites 6, compression 2.
const EXTENSIONS_AT: u32 = 79;
/// Offset of the first extension's body.
const BODY_AT: u32 = EXTENSIONS_AT + 6;

#[test]
fn an_impossible_record_is_refused_by_its_header_alone() {
    let cases: &[(&[u8], Fault)] = &[
        (&[22, 3, 1, 0xff, 0xff], Fault::RecordOverflow { len: 0xffff }),
        (&[22, 3, 1, 0x40, 0x01], Fault::RecordOverflow { len: 0x4001 }),
        (&[22, 3, 1, 0, 0], Fault::EmptyRecord),
    ];
    for (raw, why) in cases {
        assert_eq!(malformed(raw), Malformed { at: 0, why: *why });
    }
    assert!(matches!(peek(&[22, 3, 1, 0x40, 0x00]), Peek::NeedMore { .. }));
}

#[test]
fn what_interrupts_the_message_is_refused_at_once() {
    let message = Spec::default().message();
    let first = record(&message[..10]);
    let cases: &[(&[u8], Fault)] = &[
        (&[20], Fault::RecordType(20)),
        (&[21, 3, 3, 0, 2], Fault::RecordType(21)),
        (&[23, 3, 3], Fault::RecordType(23)),
        (&[22, 2], Fault::RecordVersion(2)),
        (&[22, 3, 3, 0, 0], Fault::EmptyRecord),
        (&[22, 3, 3, 0x80, 0], Fault::RecordOverflow { len: 0x8000 }),
    ];
    for (second, why) in cases {
        let raw = [&first, *second].concat();
        assert_eq!(malformed(&raw), Malformed { at: 10, why: *why });
    }
}

#[test]
fn other_handshake_messages_are_refused() {
    for message_type in [0, 2, 11, 20, 24, 254] {
        let why = Fault::MessageType(message_type);
        // Known from its first byte.
        assert_eq!(malformed(&[22, 3, 1, 1, 0, message_type]), Malformed { at: 0, why });
        assert_eq!(why.alert(), AlertDescription::UnexpectedMessage);
    }
}

#[test]
fn the_limit_counts_the_message_with_its_header() {
    let message = Spec::default().message();
    let raw = records(&message, &[1; 4]);
    let mut exact = HelloReader::new(message.len());
    assert!(matches!(exact.feed(&raw), Peek::Hello(_)));
    let mut short = HelloReader::new(message.len() - 1);
    let why = Fault::TooLong { message_bytes: message.len() as u32 };
    // Known when the fourth byte of the message has arrived, after four one-byte records.
    for len in 0..24 {
        assert!(matches!(short.feed(&raw[..len]), Peek::NeedMore { .. }), "{len}");
    }
    assert!(matches!(short.feed(&raw[..24]), Peek::Malformed(m) if m.why == why));
    assert_eq!(raw_bytes_max(message.len()), records(&message, &vec![1; message.len()]).len());
}

#[test]
fn a_hello_of_64_kib_is_read() {
    let padding = LIMIT - Spec::with(&[ext(21, [])]).message().len();
    let spec = Spec::with(&[ext(21, vec![0; padding])]);
    assert_eq!(spec.message().len(), LIMIT);
    let raw = records(&spec.message(), &[]);
    assert_eq!(hello(&raw).raw_len(), LIMIT + 4 * 5);
    let raw = records(&spec.message(), &vec![1; LIMIT]);
    assert_eq!(hello(&raw).raw_len(), raw_bytes_max(LIMIT));
}

#[test]
fn nothing_may_share_the_last_record() {
    let message = Spec::default().message();
    let raw = record([&message[..], &[1]].concat());
    let expected = Malformed { at: message.len() as u32, why: Fault::NotAligned };
    assert_eq!(malformed(&raw), expected);
    // The record's length says so before its last byte arrives.
    assert_eq!(malformed(&raw[..9]), expected);
}

#[test]
fn each_fault_of_the_fixed_part_has_its_place() {
    let body = Spec::default().body();
    let cut = |len: usize| record(message(1, &body[..len]));
    let put = |at: usize, bytes: &[u8]| {
        let mut body = body.clone();
        body[at..at + bytes.len()].copy_from_slice(bytes);
        record(message(1, body))
    };
    // Offsets in the body: version 0, random 2, session id 34, suites 67, compression 73,
    // extensions 75; in the stream 4 more.
    let cases = [
        ("no version", cut(1), 4, Fault::Truncated(Field::LegacyVersion)),
        ("half a random", cut(20), 6, Fault::Truncated(Field::Random)),
        ("no session id", cut(34), 38, Fault::Truncated(Field::SessionId)),
        ("session id of 33", put(34, &[33]), 38, Fault::SessionIdTooLong(33)),
        ("session id cut", cut(50), 39, Fault::Truncated(Field::SessionId)),
        ("no suites", put(67, &[0, 0]), 73, Fault::Empty(Field::CipherSuites)),
        ("half a suite", put(67, &[0, 3]), 75, Fault::Truncated(Field::CipherSuites)),
        ("suites over the end", put(67, &[9, 9]), 73, Fault::Truncated(Field::CipherSuites)),
        ("no compression", put(73, &[0]), 78, Fault::Empty(Field::CompressionMethods)),
        ("compression cut", cut(73), 77, Fault::Truncated(Field::CompressionMethods)),
        ("half a length", cut(76), 79, Fault::Truncated(Field::Extensions)),
        ("extensions cut", cut(body.len() - 1), 81, Fault::Truncated(Field::Extensions)),
        (
            "trailing byte",
            record(message(1, [&body[..], &[0]].concat())),
            4 + body.len() as u32,
            Fault::Trailing(Field::Extensions),
        ),
    ];
    for (what, raw, at, why) in cases {
        assert_eq!(malformed(&raw), Malformed { at, why }, "{what}");
        assert_eq!(why.alert(), AlertDescription::DecodeError, "{what}");
    }
}

#[test]
fn the_list_of_extensions_is_framed() {
    let with = |list: &[u8]| Spec::with(&[list.to_vec()]).raw();
    let start = EXTENSIONS_AT + 2;
    let cases = [
        ("half a type", with(&[0]), start, Fault::Truncated(Field::Extensions)),
        ("no length", with(&[0, 9, 0]), start + 2, Fault::Truncated(Field::Extension(9))),
        ("over the end", with(&[0, 9, 0, 1]), BODY_AT, Fault::Truncated(Field::Extension(9))),
        (
            "twice",
            with(&[ext(0x7777, []), ext(0x7777, [1])].concat()),
            start + 4,
            Fault::DuplicateExtension(0x7777),
        ),
        (
            "GREASE twice",
            with(&[ext(0x1a1a, []), ext(0x1a1a, [])].concat()),
            start + 4,
            Fault::DuplicateExtension(0x1a1a),
        ),
        ("key not last", with(&[any_ext(41), ext(21, [])].concat()), start, Fault::PskNotLast),
    ];
    for (what, raw, at, why) in cases {
        assert_eq!(malformed(&raw), Malformed { at, why }, "{what}");
    }
}

#[test]
fn as_many_extensions_as_fit_are_read_in_linear_time() {
    let types = (0x4000..0x7000).map(|extension_type| ext(extension_type, []));
    let spec = Spec::with(&types.collect::<Vec<_>>());
    assert_eq!(hello(&records(&spec.message(), &[])).extensions().count(), 0x3000);
}

/// Malformed bodies of each extension that TLS stacks decode.
#[test]
fn each_extension_has_its_form() {
    let empty = |t| Fault::Empty(Field::Extension(t));
    let truncated = |t| Fault::Truncated(Field::Extension(t));
    let trailing = |t| Fault::Trailing(Field::Extension(t));
    let cases: Vec<(u16, Vec<u8>, Fault)> = vec![
        (5, vec![], truncated(5)),
        (5, vec![1, 0, 0, 0], truncated(5)),
        (5, vec![1, 0, 2, 0, 9, 0, 0], truncated(5)),
        (5, vec![1, 0, 0, 0, 0, 0], trailing(5)),
        (10, vec![0, 0], empty(10)),
        (10, vec![0, 3, 0, 29, 0], truncated(10)),
        (10, vec![0, 2, 0, 29, 0], trailing(10)),
        (11, vec![0], empty(11)),
        (13, vec![0, 0], empty(13)),
        (13, vec![0, 4, 4, 3], truncated(13)),
        (16, vec![0, 0], empty(16)),
        (16, vec![0, 1, 0], empty(16)),
        (16, vec![0, 3, 3, b'h', b'2'], truncated(16)),
        (16, vec![0, 3, 2, b'h', b'2', 0], trailing(16)),
        (19, vec![0], empty(19)),
        (20, vec![1, 0, 0], trailing(20)),
        (23, vec![0], trailing(23)),
        (27, vec![1, 2], truncated(27)),
        (41, vec![0, 0, 0, 0], empty(41)),
        (41, vec![0, 7, 0, 1, 7, 0, 0, 0, 0], truncated(41)),
        (41, offered_psk(&[0]), Fault::BinderTooShort),
        (41, offered_psk(&[31; 32]), Fault::BinderTooShort),
        (42, vec![0], trailing(42)),
        (43, vec![0], empty(43)),
        (43, vec![3, 3, 4, 3], truncated(43)),
        (43, vec![2, 3, 4, 0], trailing(43)),
        (44, vec![0, 0], empty(44)),
        (45, vec![0], empty(45)),
        (47, vec![0, 2, 0, 0], empty(47)),
        (51, vec![0, 4, 0, 29, 0, 0], empty(51)),
        (51, vec![0, 5, 0, 29, 0, 2, 7], truncated(51)),
        (51, vec![0, 0, 0], trailing(51)),
        (0xfe0d, vec![], truncated(0xfe0d)),
        (0xfe0d, vec![2], Fault::EchType(2)),
        (0xfe0d, vec![1, 0], trailing(0xfe0d)),
        (0xfe0d, vec![0, 0, 1, 0, 1, 7, 0, 0, 0, 0], empty(0xfe0d)),
        (0xff01, vec![], truncated(0xff01)),
        (0xff01, vec![0, 0], trailing(0xff01)),
    ];
    for (extension_type, body, why) in cases {
        let raw = Spec::with(&[ext(extension_type, &body)]).raw();
        assert_eq!(malformed(&raw).why, why, "{extension_type} {body:x?}");
        assert!(malformed(&raw).at >= BODY_AT, "{extension_type} {body:x?}");
    }
}

/// One identity and this list of binders.
fn offered_psk(binders: &[u8]) -> Vec<u8> {
    [vec![0, 7, 0, 1, 7, 0, 0, 0, 0], vec16(binders)].concat()
}

/// rustls decodes these and refuses them. Other servers ignore them, and the hello may be for one
/// of those.
#[test]
fn extensions_that_servers_ignore_may_hold_anything() {
    for extension in [ext(58, [1]), ext(58, [1, 1, 1]), ext(0xfd00, [0]), ext(0xfd00, [1, 2, 3])] {
        let raw = Spec::with(&[sni("host.test"), extension]).raw();
        assert_eq!(sni_of(&raw), Sni::Name("host.test".into()));
        same_name_as_rustls(&raw);
    }
}

#[test]
fn a_hello_over_the_limit_gets_no_decode_error() {
    let why = Fault::TooLong { message_bytes: 1 << 17 };
    assert_eq!(why.alert(), AlertDescription::HandshakeFailure);
}

#[test]
fn the_smallest_form_of_each_extension_is_well_formed() {
    for extension_type in (0..60).chain([0x1a1a, 0x4469, 0xfd00, 0xfe0d, 0xff01, 0xffa5]) {
        let raw = Spec::with(&[any_ext(extension_type)]).raw();
        assert_eq!(hello(&raw).extensions().collect::<Vec<_>>(), [extension_type]);
    }
    // An empty list of key shares asks for a retry.
    assert_eq!(hello(&Spec::with(&[ext(51, [0, 0])]).raw()).key_share_groups().count(), 0);
    // A status type other than OCSP, ECH of the inner type.
    for extension in [ext(5, [9, 9, 9]), ext(0xfe0d, [1])] {
        assert_eq!(hello(&Spec::with(&[extension]).raw()).extensions().count(), 1);
    }
}

/// More types than any client sends, and more than the short list holds.
#[test]
fn many_extensions_are_read_and_a_duplicate_among_them_is_found() {
    let many: Vec<Vec<u8>> = (0..200_u16).map(|n| ext(0x4000 + n, [1])).collect();
    let named = [many.clone(), vec![sni("host.test"), versions(&[0x0304])]].concat();
    let raw = Spec::with(&named).raw();
    assert_eq!(sni_of(&raw), Sni::Name("host.test".into()));
    assert_eq!((hello(&raw).version_max(), hello(&raw).extensions().count()), (0x0304, 202));
    for first in [0, 15, 16, 17, 199] {
        let twice = [named.clone(), vec![many[first].clone()]].concat();
        let raw = Spec::with(&twice).raw();
        let Peek::Malformed(malformed) = peek(&raw) else { panic!("{first} comes twice") };
        assert_eq!(malformed.why, Fault::DuplicateExtension(0x4000 + first as u16));
    }
}
