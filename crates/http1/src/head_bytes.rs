//! Bytes of memory that a head takes while its message is served.

use http::Uri;
use http::header::HeaderMap;

/// Bytes of a field in the `http` crate's map: hash, name, value and links take 104 bytes, its
/// index at most 8. The capacity counts, because the map grows by doubling.
const FIELD_BYTES: usize = 112;
/// Bytes of another value of the same name: value and two links take 72 bytes, in a vector that
/// grows by doubling.
const EXTRA_VALUE_BYTES: usize = 144;
/// The number of copies of the texts of a request's head:
const HEAD_COPIES: usize = 3;

/// Bytes that a request's head takes while it is served. On HTTP/2's wire it may have a thousandth.
pub fn request_bytes(fields: &HeaderMap, uri: &Uri) -> usize {
    let target = uri.path_and_query().map_or(0, |path| path.as_str().len());
    map_bytes(fields) + HEAD_COPIES * (text_bytes(fields) + target)
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
