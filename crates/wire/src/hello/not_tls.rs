//! Tells from the first bytes that a connection does not speak TLS, and which protocol it speaks,
//! for the log and the answer.

use super::peek::{NotTls, Peek};
use crate::record::{HANDSHAKE, VERSION_MAJOR};

/// The beginnings of other protocols. At most 8 bytes each: the first 8 bytes of a client must
/// decide.
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

/// The answer, unless `raw` starts like a TLS handshake record as far as it goes.
#[inline]
pub(super) fn classify<'a>(raw: &[u8]) -> Option<Peek<'a>> {
    match raw {
        [HANDSHAKE, VERSION_MAJOR, ..] | [HANDSHAKE] | [] => None,
        [HANDSHAKE, major, ..] => Some(Peek::NotTls(NotTls::RecordVersion(*major))),
        [0x80..=0xff, ..] => Some(ssl_v2(raw)),
        [first, ..] => Some(by_prefix(raw).unwrap_or(Peek::NotTls(NotTls::RecordType(*first)))),
    }
}

/// An SSLv2 record: length with the high bit set (2 bytes), CLIENT-HELLO (1), version (2). The
/// version's major byte is 0 for SSL 2.0 and 3 for later versions.
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

impl core::error::Error for NotTls {}
