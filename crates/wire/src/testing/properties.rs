//! Properties that hold for any bytes, as functions that panic otherwise. The property tests of
//! this crate and the fuzz targets call the same ones.

use super::records;
use crate::connect::{CONNECT_HEAD_BYTES_MAX, ConnectPeek, ConnectReader};
use crate::hello::{Hello, HelloReader, Peek, Sni};
use crate::ja4::{JA4_LEN, ja4};
use crate::proxy::{self, ProxyPeek};
use crate::record::RecordHeader;
use crate::server_hello::{ServerHelloReader, ServerPeek};
use crate::socks::{self, SocksPeek};
use crate::traceparent::{TRACEPARENT_BYTES, TraceParent};
use std::format;
use std::string::String;
use std::vec::Vec;

/// The program's default limit on a hello.
pub const LIMIT: usize = 1 << 16;

/// Everything an answer says, except for its length on the wire.
pub fn answer(peek: &Peek<'_>) -> String {
    match peek {
        Peek::Hello(hello) => said(hello),
        other => format!("{other:?}"),
    }
}

fn said(hello: &Hello<'_>) -> String {
    let lists = [
        hello.versions().collect::<Vec<_>>(),
        hello.cipher_suites().collect(),
        hello.groups().collect(),
        hello.key_share_groups().collect(),
        hello.signature_algorithms().collect(),
        hello.extensions().collect(),
    ];
    let flags = [
        hello.has_ech(),
        hello.has_session_ticket(),
        hello.has_psk(),
        hello.has_early_data(),
        hello.offers_compression(),
    ];
    let alpn = hello.alpn().collect::<Vec<_>>();
    let fixed = (hello.legacy_version(), hello.version_max(), hello.random());
    let session_id_len = hello.session_id_len();
    format!("{:?} {alpn:?} {lists:x?} {flags:?} {fixed:?} {session_id_len}", hello.sni())
}

/// The answer if `raw` arrives in segments that end at the rising positions `ends`. Checks that
/// each "at least" was true, and that the answer does not change once it is given.
pub fn fed(raw: &[u8], ends: impl IntoIterator<Item = usize>) -> String {
    let mut reader = HelloReader::new(LIMIT);
    let mut not_before = 0;
    let mut given = None;
    for end in ends.into_iter().chain([raw.len()]) {
        let peek = reader.feed(&raw[..end]);
        match (&peek, &given) {
            (Peek::NeedMore { at_least }, None) => {
                assert!(*at_least > 0);
                not_before = end + at_least;
            }
            (_, None) => {
                if let Peek::Hello(hello) = &peek {
                    assert!(end >= not_before, "a hello at {end}, promised from {not_before}");
                    assert!(hello.raw_len() <= end);
                }
                given = Some(answer(&peek));
            }
            (_, Some(given)) if end == raw.len() => assert_eq!(answer(&peek), *given),
            (peek, Some(given)) => assert!(!matches!(peek, Peek::NeedMore { .. }), "{given}"),
        }
    }
    given.unwrap_or_else(|| "NeedMore".into())
}

/// Cutting `raw` into segments does not change the answer, and cutting a hello into records does
/// not change what it says. Each byte of `cuts` is a length; 0 counts as 1.
pub fn cuts_do_not_matter(raw: &[u8], cuts: &[u8]) {
    let lens = cuts.iter().map(|&len| usize::from(len.max(1)));
    let ends = lens.clone().scan(0, |end, len| {
        *end += len;
        (*end <= raw.len()).then_some(*end)
    });
    let whole = fed(raw, []);
    assert_eq!(fed(raw, ends), whole);
    assert_eq!(fed(raw, 0..raw.len()), whole);
    let Peek::Hello(hello) = HelloReader::new(LIMIT).feed(raw) else { return };
    let fingerprint = ja4(&hello, |text| [text.len() as u8; 32]);
    assert_eq!(fingerprint.as_str().len(), JA4_LEN);
    if let Sni::Name(name) = hello.sni() {
        assert!(name.bytes().all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase()));
    }
    let stream = stream(&raw[..hello.raw_len()]);
    let recut = records(&stream, &lens.collect::<Vec<_>>());
    assert_eq!(fed(&recut, []), whole);
}

/// The payloads of these records.
fn stream(mut raw: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    while let Some((header, rest)) = RecordHeader::split(raw) {
        let (payload, later) = rest.split_at(usize::from(header.len));
        stream.extend(payload);
        raw = later;
    }
    stream
}

/// A ServerHello reads the same in one piece and byte by byte, and ends where it says.
pub fn server_hello_is_stable(raw: &[u8]) {
    let whole = ServerHelloReader::new().feed(raw);
    let mut reader = ServerHelloReader::new();
    let mut not_before = 0;
    for end in 0..=raw.len() {
        match reader.feed(&raw[..end]) {
            ServerPeek::NeedMore { at_least } => {
                assert!(at_least > 0 && end < raw.len() || whole == reader.feed(raw));
                not_before = end + at_least;
            }
            given => {
                assert_eq!(given, whole);
                if let ServerPeek::ServerHello(_) = given {
                    assert!(end >= not_before, "at {end}, promised from {not_before}");
                }
                return;
            }
        }
    }
}

/// A PROXY header reads the same in one piece and byte by byte, and ends where it says.
pub fn proxy_header_is_stable(raw: &[u8]) {
    let whole = proxy::read(raw);
    let mut not_before = 0;
    for end in 0..=raw.len() {
        match proxy::read(&raw[..end]) {
            ProxyPeek::NeedMore { at_least } => {
                assert!(at_least > 0);
                not_before = end + at_least;
            }
            given => {
                assert_eq!(given, whole);
                if let ProxyPeek::Header(header) = given {
                    assert_eq!(header.len, end, "needed no more than the header");
                    assert!(end >= not_before, "at {end}, promised from {not_before}");
                    written_is_read(header.command);
                }
                return;
            }
        }
    }
    assert!(matches!(whole, ProxyPeek::NeedMore { .. }));
}

/// A CONNECT request reads the same in one piece and byte by byte, and ends where it says. Its
/// target can be written and read back.
pub fn connect_is_stable(raw: &[u8]) {
    let whole = ConnectReader::new().feed(raw);
    let mut reader = ConnectReader::new();
    for end in 0..=raw.len() {
        match reader.feed(&raw[..end]) {
            ConnectPeek::NeedMore => assert!(end < CONNECT_HEAD_BYTES_MAX),
            ConnectPeek::Connect(connect) => {
                assert_eq!(ConnectPeek::Connect(connect), whole);
                assert_eq!(connect.len, end, "needed no more than the head");
                let target = connect.target;
                let again = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
                let read = ConnectReader::new().feed(again.as_bytes());
                let ConnectPeek::Connect(read) = read else { panic!("{again}: {read:?}") };
                assert_eq!(read.target, target);
                return;
            }
            given => return assert_eq!(given, whole),
        }
    }
    assert_eq!(whole, ConnectPeek::NeedMore);
}

/// Each message of SOCKS reads the same in one piece and byte by byte, ends where it says, and is
/// bounded. A target can be written and read back.
pub fn socks_is_stable(raw: &[u8]) {
    socks_message_is_stable(raw, socks::read_greeting);
    socks_message_is_stable(raw, socks::read_credentials);
    socks_message_is_stable(raw, socks::read_request);
    if let SocksPeek::Read { message: target, .. } = socks::read_request(raw) {
        let again = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        let read = ConnectReader::new().feed(again.as_bytes());
        let ConnectPeek::Connect(read) = read else { panic!("{again}: {read:?}") };
        assert_eq!(read.target, target);
    }
}

fn socks_message_is_stable<'a, T: PartialEq + std::fmt::Debug>(
    raw: &'a [u8],
    read: impl Fn(&'a [u8]) -> SocksPeek<T>,
) {
    let whole = read(raw);
    for end in 0..=raw.len() {
        match read(&raw[..end]) {
            SocksPeek::NeedMore => assert!(end < socks::MESSAGE_BYTES_MAX),
            given => {
                if let SocksPeek::Read { len, .. } = given {
                    assert_eq!(len, end, "needed no more than the message");
                }
                return assert_eq!(given, whole);
            }
        }
    }
    assert_eq!(whole, SocksPeek::NeedMore);
}

fn written_is_read(command: proxy::Command) {
    let mut out = [0; proxy::V2_WRITTEN_BYTES_MAX];
    let len = proxy::write_v2(&mut out, command, &proxy::Tlvs::default()).unwrap();
    let expected = ProxyPeek::Header(proxy::ProxyHeader { len, command });
    assert_eq!(proxy::read(&out[..len]), expected);
}

/// A field that is read says what is written again, but for its version, unknown flags, and what a
/// higher version has behind them. One that is not read breaks the grammar somewhere.
pub fn traceparent_is_exact(value: &[u8]) {
    let is_hex = |part: &[u8]| part.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let parts: Vec<&[u8]> = value.splitn(5, |byte| *byte == b'-').collect();
    let is_valid = match &parts[..] {
        [version, trace_id, span_id, flags, more @ ..] => {
            [2, 32, 16, 2] == [version.len(), trace_id.len(), span_id.len(), flags.len()]
                && [version, trace_id, span_id, flags].iter().all(|part| is_hex(part))
                && **version != *b"ff"
                && (**version != *b"00" || more.is_empty())
                && [trace_id, span_id].iter().all(|id| id.iter().any(|digit| *digit != b'0'))
        }
        _ => false,
    };
    let read = TraceParent::parse(value);
    assert_eq!(read.is_some(), is_valid);
    if let Some(read) = read {
        let written = read.to_bytes();
        assert_eq!(written[2..TRACEPARENT_BYTES - 2], value[2..TRACEPARENT_BYTES - 2]);
        assert_eq!(TraceParent::parse(&written), Some(read));
    }
}
