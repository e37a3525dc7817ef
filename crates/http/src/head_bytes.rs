//! Bytes of memory that a head takes, and that a decoded block of HPACK may take.

use http::Uri;
use http::header::HeaderMap;

/// Bytes of a field in the `http` crate's map: hash, name, value and links take 104 bytes, its
/// index at most 8. The capacity counts, because the map grows by doubling.
const FIELD_BYTES: usize = 112;
/// Bytes of another value of the same name: value and two links take 72 bytes, in a vector that
/// grows by doubling.
const EXTRA_VALUE_BYTES: usize = 144;
/// Bytes that a field counts besides its name and value (RFC 9113 6.5.2).
const LISTED_BYTES_MIN: usize = 32;
/// The longest field that a single byte may name: the size of the table by default (RFC 7541 4.2).
const TABLE_BYTES: usize = 4 << 10;
/// How often the texts of a request's head exist: in its fields, and in the upstream's copy, whose
/// buffer grows by doubling.
const HEAD_COPIES: usize = 3;

/// Bytes that a request's head takes while it is served. On HTTP/2's wire it may have a thousandth.
pub fn request_bytes(fields: &HeaderMap, uri: &Uri) -> usize {
    let target = uri.path_and_query().map_or(0, |path| path.as_str().len());
    map_bytes(fields) + HEAD_COPIES * (text_bytes(fields) + target)
}

/// Most bytes of memory for a decoded header block of HTTP/2. The block has `block_bytes` on the
/// wire. Each field has at least one byte there, and the library counts it as at least 32 bytes of
/// a head (RFC 9113 6.5.2). The map has room for up to twice its fields, because it grows by
/// doubling.
pub fn decoded(block_bytes: usize, head_bytes_max: usize) -> usize {
    let fields = block_bytes.min(head_bytes_max / LISTED_BYTES_MIN);
    let texts = block_bytes.saturating_mul(TABLE_BYTES).min(head_bytes_max);
    fields * 2 * FIELD_BYTES + texts
}

/// Bytes of a map of fields without their texts.
pub fn map_bytes(fields: &HeaderMap) -> usize {
    let extra = fields.len() - fields.keys_len();
    fields.capacity() * FIELD_BYTES + extra * EXTRA_VALUE_BYTES
}

/// Bytes of names and values, as if none were shared.
pub fn text_bytes(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use http::header::{HeaderName, HeaderValue};

    use super::*;

    /// The count for a block is no less than its decoded size.
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
