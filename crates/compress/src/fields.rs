//! What several decisions read in header fields: elements of lists, and digests of the body.
//! It must not know what is decided by them.

use http::header::{HeaderMap, HeaderName};

/// Fields with a digest of the bytes as the upstream sends them.
pub(crate) const DIGESTS: [HeaderName; 4] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("repr-digest"),
];

/// Whether a list-valued field has an element, compared without case.
#[must_use]
pub fn lists(headers: &HeaderMap, field: &HeaderName, element: &str) -> bool {
    headers.get_all(field).iter().filter_map(|line| line.to_str().ok()).any(|line| {
        line.split(',').any(|found| found.trim_matches([' ', '\t']).eq_ignore_ascii_case(element))
    })
}
