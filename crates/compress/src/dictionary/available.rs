//! Available-Dictionary (RFC 9842 section 2.2): the one dictionary that a client says it has.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use super::Hash;

/// The hash in the field. `None` if the field is absent, occurs twice, or is not one byte sequence
/// of 32 bytes.
pub fn available(headers: &HeaderMap) -> Option<Hash> {
    let mut lines = headers.get_all(&AVAILABLE_DICTIONARY).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    let item = line.to_str().ok()?.trim_matches(' ');
    // A structured item (RFC 9651 section 3.3.5): `:` base64 `:`, then parameters, which we ignore.
    let (encoded, after) = item.strip_prefix(':')?.split_once(':')?;
    if !after.is_empty() && !after.starts_with(';') {
        return None;
    }
    let decoded = STANDARD.decode(encoded).ok()?;
    decoded.try_into().ok().map(Hash)
}

/// The field for a dictionary that we have (section 2.2).
pub fn field(hash: Hash) -> Option<HeaderValue> {
    HeaderValue::from_str(&format!(":{}:", STANDARD.encode(hash.0))).ok()
}

/// Echoed by the client from `id` in Use-As-Dictionary. We decide by the hash alone.
pub const DICTIONARY_ID: HeaderName = HeaderName::from_static("dictionary-id");
/// The request's field.
pub const AVAILABLE_DICTIONARY: HeaderName = HeaderName::from_static("available-dictionary");

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn one_byte_sequence_of_32_bytes() {
        let hash = Hash([
            0xA5, 0x91, 0xA6, 0xD4, 0x0B, 0xF4, 0x20, 0x40, 0x4A, 0x01, 0x17, 0x33, 0xCF, 0xB7,
            0xB1, 0x90, 0xD6, 0x2C, 0x65, 0xBF, 0x0B, 0xCD, 0xA3, 0x2B, 0x57, 0xB2, 0x77, 0xD9,
            0xAD, 0x9F, 0x14, 0x6E,
        ]);
        let good = "pZGm1Av0IEBKARczz7exkNYsZb8LzaMrV7J32a2fFG4=";
        for (lines, found) in [
            (&[&*format!(":{good}:")][..], Some(hash)),
            (&[&format!(" :{good}: ")], Some(hash)),
            (&[&format!(":{good}:;x=1")], Some(hash)),
            (&[&format!(":{good}:, :{good}:")], None),
            (&[&format!(":{good}:"), &format!(":{good}:")], None),
            (&[good], None),
            (&[&format!("\"{good}\"")], None),
            (&[&format!(":{}:", good.trim_end_matches('='))], None),
            (&[":AAAA:"], None),
            (&["::"], None),
            (&[":"], None),
            (&[""], None),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(AVAILABLE_DICTIONARY, line.parse().unwrap());
            }
            assert_eq!(available(&headers), found, "{lines:?}");
        }
    }
}
