//! Tables for the hello reader: real clients' hellos, other protocols, each fault, and cuts that do
//! not change the answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// Those without miri ask rustls or SHA-256, whose C it does not run.
#[cfg(not(miri))]
mod clients;
#[cfg(not(miri))]
mod cuts;
#[cfg(not(miri))]
mod faults;
mod names;
#[cfg(not(miri))]
mod rustls;

use super::*;
use crate::testing::properties::{LIMIT, answer};
use crate::testing::*;
use std::format;
use std::vec::Vec;

pub(super) fn peek(raw: &[u8]) -> Peek<'_> {
    HelloReader::new(LIMIT).feed(raw)
}

pub(super) fn hello(raw: &[u8]) -> Hello<'_> {
    match peek(raw) {
        Peek::Hello(hello) => hello,
        other => panic!("no hello: {other:?}"),
    }
}

pub(super) fn sni_of(raw: &[u8]) -> Sni<'_> {
    hello(raw).sni().clone()
}

#[test]
fn a_browsers_hello_is_read_whole() {
    let raw = browser().raw();
    let hello = hello(&raw);
    assert_eq!(hello.raw_len(), raw.len());
    assert_eq!(*hello.sni(), Sni::Name("www.browser.test".into()));
    assert_eq!(hello.alpn().map(|p| format!("{p}")).collect::<Vec<_>>(), ["h2", "http/1.1"]);
    assert_eq!(hello.versions().collect::<Vec<_>>(), [0x6a6a, 0x0304, 0x0303]);
    assert_eq!(hello.version_max(), 0x0304);
    assert_eq!(hello.legacy_version(), 0x0303);
    assert_eq!(hello.groups().collect::<Vec<_>>(), [0xaaaa, 0x11ec, 29, 23, 24]);
    assert_eq!(hello.key_share_groups().collect::<Vec<_>>(), [0xaaaa, 0x11ec, 29]);
    assert_eq!(hello.cipher_suites().count(), 16);
    assert_eq!(hello.signature_algorithms().next(), Some(0x0403));
    assert_eq!(hello.extensions().count(), 17);
    assert_eq!(hello.random(), [0x42; 32]);
    assert_eq!(hello.session_id_len(), 32);
    assert!(hello.has_ech() && !hello.offers_compression());
    assert!(!hello.has_session_ticket() && !hello.has_psk() && !hello.has_early_data());
    let alpn = b"\x02h2\x08http/1.1";
    let named = HelloFacts::named(Some("www.browser.test"));
    assert_eq!(HelloFacts::from(&hello), HelloFacts { alpn, ech: true, ..named });
}

#[test]
fn rules_see_a_name_its_absence_and_its_fault() {
    let facts = |raw: &[u8]| {
        let hello = hello(raw);
        let facts = HelloFacts::from(&hello);
        (facts.host_name().map(std::string::String::from), facts.name == HelloName::Absent)
    };
    assert_eq!(facts(&Spec::with(&[sni("A.example")]).raw()), (Some("a.example".into()), false));
    assert_eq!(facts(&Spec::with(&[]).raw()), (None, true));
    assert_eq!(facts(&Spec::with(&[sni("a..example")]).raw()), (None, false));
    assert_eq!(protocol_names(b"\x01a\x03bc").count(), 1, "the second is cut");
}

#[test]
fn resumption_and_early_data_are_seen() {
    let raw = Spec::with(&[ext(35, [1, 2, 3]), ext(42, []), any_ext(41)]).raw();
    let hello = hello(&raw);
    assert!(hello.has_session_ticket() && hello.has_psk() && hello.has_early_data());
    assert_eq!(*hello.sni(), Sni::Absent);
}

#[test]
fn offered_compression_is_seen() {
    let raw = Spec { compression_methods: [1, 0].to_vec(), ..Spec::default() }.raw();
    assert!(hello(&raw).offers_compression() && HelloFacts::from(&hello(&raw)).compression);
    assert_eq!(hello(&raw).compression_methods().collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn version_max_counts_known_versions_only() {
    let cases: &[(u16, Option<&[u16]>, u16)] = &[
        (0x0303, None, 0x0303),
        (0x0301, None, 0x0301),
        // RFC 8446 4.2.1: without the extension, TLS 1.2 or prior.
        (0x0304, None, 0x0303),
        (0x0400, None, 0x0303),
        (0xffff, None, 0x0303),
        (0x0200, None, 0),
        (0xfefd, None, 0),
        (0x0303, Some(&[0x0304, 0x0303]), 0x0304),
        (0x0303, Some(&[0x3a3a, 0x0302]), 0x0302),
        (0x0303, Some(&[0x7f1c, 0x0303]), 0x0303),
        (0x0303, Some(&[0xfafa]), 0),
    ];
    for &(legacy_version, offered, expected) in cases {
        let extensions = offered.map(versions).into_iter().collect();
        let raw = Spec { legacy_version, extensions, ..Spec::default() }.raw();
        assert_eq!(hello(&raw).version_max(), expected, "{legacy_version:x} {offered:x?}");
    }
    let raw = Spec { legacy_version: 0x0302, extensions: Vec::new(), ..Spec::default() }.raw();
    assert_eq!(hello(&raw).versions().collect::<Vec<_>>(), [0x0302]);
}

#[test]
fn a_hello_may_have_no_extensions_at_all() {
    let mut body = Spec::with(&[]).body();
    body.truncate(body.len() - 2);
    let raw = record(message(1, body));
    assert_eq!(sni_of(&raw), Sni::Absent);
    assert_eq!(hello(&raw).extensions().count(), 0);
    assert_eq!(hello(&raw).alpn().count(), 0);
}

#[test]
fn bytes_after_the_hello_are_not_read() {
    let raw = Spec::default().raw();
    for garbage in [&b"\x17\x03\x03\x00\x05early"[..], b"garbage", b"\x16\x03\x01\xff\xff"] {
        let longer = [&raw, garbage].concat();
        assert_eq!(answer(&peek(&longer)), answer(&peek(&raw)));
        assert_eq!(hello(&longer).raw_len(), raw.len());
    }
}

#[test]
fn other_protocols_are_known_by_their_first_bytes() {
    let cases: &[(&[u8], NotTls)] = &[
        (b"GET / HTTP/1.1\r\n", NotTls::Http),
        (b"POST /", NotTls::Http),
        (b"HEAD ", NotTls::Http),
        (b"PUT /x", NotTls::Http),
        (b"OPTIONS *", NotTls::Http),
        (b"CONNECT a:443 HTTP/1.1", NotTls::Http),
        (b"DELETE /", NotTls::Http),
        (b"PATCH /", NotTls::Http),
        (b"TRACE /", NotTls::Http),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", NotTls::Http),
        (b"SSH-2.0-OpenSSH_9.6\r\n", NotTls::Ssh),
        (b"PROXY TCP4 ", NotTls::ProxyHeader),
        (b"\r\n\r\n\0\r\nQUIT\n", NotTls::ProxyHeader),
        (&[0x80, 0x2e, 1, 0, 2, 0, 0x15], NotTls::SslV2),
        (&[0x80, 0x67, 1, 3, 3, 0, 0x4e], NotTls::SslV2),
        (&[0x80, 0x67, 2, 3], NotTls::RecordType(0x80)),
        (&[0xff, 0, 1, 9], NotTls::RecordType(0xff)),
        (&[20, 3, 3, 0, 1, 1], NotTls::RecordType(20)),
        (&[21, 3, 3, 0, 2, 2, 40], NotTls::RecordType(21)),
        (&[23], NotTls::RecordType(23)),
        (&[0], NotTls::RecordType(0)),
        (b"GOT ", NotTls::RecordType(b'G')),
        (b"PROPFIND /", NotTls::RecordType(b'P')),
        (&[22, 2], NotTls::RecordVersion(2)),
        (&[22, 0xfe, 0xfd], NotTls::RecordVersion(0xfe)),
    ];
    for (raw, expected) in cases {
        let decided = (1..=raw.len()).find_map(|len| match peek(&raw[..len]) {
            Peek::NeedMore { .. } => None,
            Peek::NotTls(what) => Some((len, what)),
            other => panic!("{raw:x?}: {other:?}"),
        });
        let (len, what) = decided.unwrap();
        assert_eq!(what, *expected, "{raw:x?}");
        assert!(len <= 8, "{raw:x?} took {len} bytes");
        // A decision does not change.
        assert!(matches!(peek(raw), Peek::NotTls(what) if what == *expected), "{raw:x?}");
    }
}

#[test]
fn nothing_is_not_an_answer() {
    assert!(matches!(peek(&[]), Peek::NeedMore { at_least: 9 }));
    assert!(matches!(peek(b"GE"), Peek::NeedMore { at_least: 2 }));
    assert!(matches!(peek(&[0x80]), Peek::NeedMore { at_least: 3 }));
    assert!(matches!(peek(&[22, 3, 1]), Peek::NeedMore { at_least: 6 }));
}

#[test]
fn sizes_stay_small() {
    // A connection that waits for its hello holds the reader.
    assert!(size_of::<HelloReader>() <= 48, "{}", size_of::<HelloReader>());
    assert!(size_of::<Peek<'_>>() <= 160, "{}", size_of::<Peek<'_>>());
    assert!(size_of::<Malformed>() <= 12, "{}", size_of::<Malformed>());
}
