//! Fields that many connections have in common, such as those of one version of a browser. What
//! keeps many exported tables may store such a field once.

use std::ops::Range;

use super::decoder::{LiteralField, read_literal};
use super::{huffman, static_table};

/// The places of common fields in the block of an exported table. A field whose name is taken from
/// another one of the table is none: few are long.
pub(crate) fn common_entries(block: &[u8]) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let (mut at, mut scratch) = (0, Vec::new());
    while let Ok(Some((literal, used))) = read_literal(block.get(at..).unwrap_or_default(), 6) {
        if is_common(name_of(&literal, &mut scratch)) {
            places.push(at..at + used);
        }
        at += used;
    }
    places
}

/// The name of a field. It is empty where another entry of the table has it.
fn name_of<'a>(literal: &LiteralField<'a>, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    if literal.index > 0 {
        return static_table::entry(literal.index).map_or(&[], |(name, _)| name);
    }
    if !literal.name.is_huffman {
        return literal.name.bytes;
    }
    scratch.clear();
    match huffman::decode(literal.name.bytes, scratch) {
        Ok(()) => scratch,
        Err(_) => &[],
    }
}

/// Names whose values are those of a program, a site or a server. Credentials are not among them,
/// nor is any name that is not known: its value may be a secret, and is likely to be another one on
/// each connection.
fn is_common(name: &[u8]) -> bool {
    is_of_client(name) || is_of_server(name)
}

fn is_of_client(name: &[u8]) -> bool {
    matches!(
        name,
        b":authority"
            | b"accept"
            | b"accept-charset"
            | b"accept-encoding"
            | b"accept-language"
            | b"cache-control"
            | b"content-type"
            | b"dnt"
            | b"grpc-accept-encoding"
            | b"origin"
            | b"pragma"
            | b"priority"
            | b"sec-ch-ua"
            | b"sec-ch-ua-arch"
            | b"sec-ch-ua-bitness"
            | b"sec-ch-ua-full-version"
            | b"sec-ch-ua-full-version-list"
            | b"sec-ch-ua-mobile"
            | b"sec-ch-ua-model"
            | b"sec-ch-ua-platform"
            | b"sec-ch-ua-platform-version"
            | b"sec-fetch-dest"
            | b"sec-fetch-mode"
            | b"sec-fetch-site"
            | b"sec-fetch-user"
            | b"sec-gpc"
            | b"te"
            | b"upgrade-insecure-requests"
            | b"user-agent"
            | b"x-requested-with"
    )
}

fn is_of_server(name: &[u8]) -> bool {
    matches!(
        name,
        b"accept-ch"
            | b"accept-ranges"
            | b"access-control-allow-credentials"
            | b"access-control-allow-headers"
            | b"access-control-allow-methods"
            | b"access-control-allow-origin"
            | b"access-control-expose-headers"
            | b"access-control-max-age"
            | b"alt-svc"
            | b"content-encoding"
            | b"content-language"
            | b"content-security-policy"
            | b"cross-origin-embedder-policy"
            | b"cross-origin-opener-policy"
            | b"cross-origin-resource-policy"
            | b"permissions-policy"
            | b"referrer-policy"
            | b"server"
            | b"strict-transport-security"
            | b"timing-allow-origin"
            | b"vary"
            | b"via"
            | b"x-content-type-options"
            | b"x-dns-prefetch-control"
            | b"x-frame-options"
            | b"x-powered-by"
            | b"x-xss-protection"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpack::{HeaderField, HpackEncoder};

    #[test]
    fn only_common_fields_are_found() {
        let fields = [
            ("user-agent", "curl/8.14.1", true),
            ("cookie", "session=7f3b2c1d9e8a4f6b8c0d2e4f", false),
            ("sec-ch-ua-platform", "\"Linux\"", true),
            ("x-api-key", "a secret of this client", false),
            // Its name is in the entry two before it.
            ("sec-ch-ua-platform", "\"macOS\"", false),
            ("vary", "accept-encoding", true),
        ];
        let (mut encoder, mut found) = (HpackEncoder::new(), Vec::new());
        for (name, value, is_common) in fields {
            let mut before = Vec::new();
            encoder.export(&mut before);
            encoder.encode(HeaderField::new(name.as_bytes(), value.as_bytes()), &mut Vec::new());
            let mut after = Vec::new();
            encoder.export(&mut after);
            assert!(after.starts_with(&before) && after.len() > before.len(), "{name}");
            found.extend(is_common.then_some(before.len()..after.len()));
        }
        let mut block = Vec::new();
        encoder.export(&mut block);
        assert_eq!(common_entries(&block), found);
        assert!(common_entries(&[0x80, 0xff]).is_empty());
    }
}
