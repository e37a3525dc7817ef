//! Fields between HTTP/2 and the maps of the `http` crate.

use bytes::Bytes;
use eyelet_h2::hpack::HeaderField;
use eyelet_h2::{FieldSpan, HeaderFields, TextSpan};
use eyelet_http1::head::spare_fields;
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Texts of a head that may have spare capacity. Most heads are smaller.
const SPARE_TEXT_BYTES: usize = 1 << 10;

/// Fields as a map, which shares their texts. `None` if the map cannot hold one of them.
pub fn map(fields: HeaderFields) -> Option<HeaderMap> {
    map_of(&share(fields.text), &fields.fields)
}

/// The text of fields as memory that values share.
pub fn share(mut text: Vec<u8>) -> Bytes {
    if text.capacity() > text.len() + SPARE_TEXT_BYTES {
        // Each value keeps the whole buffer.
        text.shrink_to_fit();
    }
    text.into()
}

/// Fields of a text that was shared, as a map.
pub fn map_of(text: &Bytes, fields: &[FieldSpan]) -> Option<HeaderMap> {
    let mut map = spare_fields(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.of(text)).ok()?;
        let mut value = HeaderValue::from_maybe_shared(slice(text, field.value)).ok()?;
        value.set_sensitive(field.sensitive);
        map.try_append(name, value).ok()?;
    }
    Some(map)
}

/// A part of a text that was shared.
pub fn slice(text: &Bytes, span: TextSpan) -> Bytes {
    text.slice_ref(span.of(text))
}

/// Fields of a map.
pub fn header_fields(headers: &HeaderMap) -> impl Iterator<Item = HeaderField<'_>> {
    headers.iter().map(field)
}

/// A field of a map.
pub fn field<'a>((name, value): (&'a HeaderName, &'a HeaderValue)) -> HeaderField<'a> {
    let name = name.as_str().as_bytes();
    HeaderField { name, value: value.as_bytes(), sensitive: value.is_sensitive() }
}
