//! Tells from the very first bytes that a connection does not speak TLS, and what it speaks, for
//! the log line and the answer. It must not know the records that follow.

use super::Peek;
use crate::record::{HANDSHAKE, VERSION_MAJOR};
use core::fmt;

/// Why the first bytes are not a TLS handshake record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTls {
    /// An HTTP/1 request line, or the HTTP/2 preface.
    Http,
    /// An SSH identification string (RFC 4253 4.2).
    Ssh,
    /// An SSLv2 CLIENT-HELLO, also when it offers SSL 3.0 or TLS (RFC 5246 E.2, forbidden by
    /// RFC 6176).
    SslV2,
    /// A PROXY protocol header, v1 or v2, where none is expected.
    ProxyHeader,
    /// The first byte is not the content type of a handshake.
    RecordType(u8),
    /// A handshake record by its first byte, whose major version is not 3.
    RecordVersion(u8),
}

/// How protocols other than TLS begin. At most 8 bytes each: a client that sent so many and
/// waits has said enough.
const PREFIXES: &[(&[u8], NotTls)] = &[
    (b"GET ", NotTls::Http),
    (b"POST ", NotTls::Http),
    (b"HEAD ", NotTls::Http),
    (b"PUT ", NotTls::Http),
    (b"OPTIONS ", NotTls::Http),
    (b"CONNECT ", NotTls::Http),
    (b"DELETE ", NotTls::Http),
    (b"PATCH ", NotTls::Http),
    (b"TRACE ", NotTls::Http),
    (b"PRI * ", NotTls::Http),
    (b"SSH-", NotTls::Ssh),
    (b"PROXY ", NotTls::ProxyHeader),
    (b"\r\n\r\n\0\r\n", NotTls::ProxyHeader),
];

/// `Some` unless `raw` starts like a TLS handshake record, in as much of it as there is.
#[inline]
pub(super) fn classify<'a>(raw: &[u8]) -> Option<Peek<'a>> {
    match raw {
        [HANDSHAKE, VERSION_MAJOR, ..] | [HANDSHAKE] | [] => None,
        [HANDSHAKE, major, ..] => Some(Peek::NotTls(NotTls::RecordVersion(*major))),
        [0x80..=0xff, ..] => Some(ssl_v2(raw)),
        [first, ..] => Some(by_prefix(raw).unwrap_or(Peek::NotTls(NotTls::RecordType(*first)))),
    }
}

/// An SSLv2 record: length with the high bit set (2 bytes), CLIENT-HELLO (1), version (2), of
/// which the major byte is 0 for SSL 2.0 and 3 for what came after.
fn ssl_v2<'a>(raw: &[u8]) -> Peek<'a> {
    match raw {
        [_] | [_, _] | [_, _, 1] => Peek::NeedMore { at_least: 4 - raw.len() },
        [_, _, 1, 0 | 3, ..] => Peek::NotTls(NotTls::SslV2),
        _ => Peek::NotTls(NotTls::RecordType(raw[0])),
    }
}

fn by_prefix<'a>(raw: &[u8]) -> Option<Peek<'a>> {
    if let Some((_, what)) = PREFIXES.iter().find(|(prefix, _)| raw.starts_with(prefix)) {
        return Some(Peek::NotTls(*what));
    }
    let undecided = PREFIXES.iter().filter(|(prefix, _)| prefix.starts_with(raw));
    let at_least = undecided.map(|(prefix, _)| prefix.len() - raw.len()).min()?;
    Some(Peek::NeedMore { at_least })
}

impl fmt::Display for NotTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http => f.write_str("plain HTTP"),
            Self::Ssh => f.write_str("SSH"),
            Self::SslV2 => f.write_str("SSLv2 hello"),
            Self::ProxyHeader => f.write_str("PROXY protocol header"),
            Self::RecordType(first) => write!(f, "first byte {first:#04x}"),
            Self::RecordVersion(major) => write!(f, "record of major version {major}"),
        }
    }
}

impl core::error::Error for NotTls {}
