//! Bytes of memory that a head takes, and that a block of HPACK may come to.
//! It must not know whether there is room.

use http::Uri;
use http::header::HeaderMap;

/// A field in the map of the `http` crate: hash, name, value and links make 104 bytes, and its
/// index at most 8. The capacity is counted, for the map grows by doubling.
const FIELD_BYTES: usize = 112;
/// Another value of a name that is there: value and two links make 72 bytes, in a vector that
/// grows by doubling.
const EXTRA_VALUE_BYTES: usize = 144;
/// What a field counts for beyond its name and value (RFC 9113 6.5.2).
const LISTED_BYTES_MIN: usize = 32;
/// The longest field that one byte may name: the table is as long by default (RFC 7541 4.2).
const TABLE_BYTES: usize = 4 << 10;
/// How often the texts of a request's head are here: in its fields, and as the upstream is sent
/// them, in a buffer that grows by doubling.
const HEAD_COPIES: usize = 3;

/// Bytes that a request's head takes while it is served. On HTTP/2's wire it may be a thousandth.
pub fn request_bytes(fields: &HeaderMap, uri: &Uri) -> usize {
    let target = uri.path_and_query().map_or(0, |path| path.as_str().len());
    map_bytes(fields) + HEAD_COPIES * (text_bytes(fields) + target)
}

/// The most that a block of so many bytes on HTTP/2's wire takes when it is decoded. A field has at
/// least one byte there, and counts for at least 32 of what the library takes as a head (RFC 9113
/// 6.5.2). The map has room for twice as many fields as are in it, as it grows by doubling.
pub fn decoded(block_bytes: usize, head_bytes_max: usize) -> usize {
    let fields = block_bytes.min(head_bytes_max / LISTED_BYTES_MIN);
    let texts = block_bytes.saturating_mul(TABLE_BYTES).min(head_bytes_max);
    fields * 2 * FIELD_BYTES + texts
}

/// Bytes of a map of fields beside their texts.
pub fn map_bytes(fields: &HeaderMap) -> usize {
    let extra = fields.len() - fields.keys_len();
    fields.capacity() * FIELD_BYTES + extra * EXTRA_VALUE_BYTES
}

/// Bytes of names and values, as if they were shared with nothing.
pub fn text_bytes(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use http::header::{HeaderName, HeaderValue};

    use super::*;

    /// What is counted for a block is no less than what becomes of it.
    #[test]
    fn trailers_take_no_more_than_is_counted() {
        let mut fields = HeaderMap::new();
        for n in 0..1_700 {
            let name = HeaderName::try_from(format!("x{n}")).unwrap();
            fields.insert(name, HeaderValue::from_static(""));
        }
        let taken = map_bytes(&fields) + text_bytes(&fields);
        assert!(taken <= decoded(1_700 * 8, 64 << 10), "{taken}");
        // One byte may name the longest field of the table.
        assert!(decoded(15, 64 << 10) >= 15 * (4 << 10));
        assert!(decoded(1 << 20, 64 << 10) <= 1 << 20);
    }
}
