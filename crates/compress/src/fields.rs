//! Header fields that several decisions read: elements of lists, numbers, and digests of the body.

use http::header::{HeaderMap, HeaderName};

/// Fields with a digest of the bytes as the upstream sends them. A static: a constant would be made
/// anew for each message.
pub(crate) static DIGESTS: [HeaderName; 4] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("repr-digest"),
];

/// Reads a decimal number, without a sign. A number that does not fit becomes the greatest that
/// does: a recipient may limit what it supports (RFC 9110 section 7.6.2, RFC 9111 section 1.2.2).
pub fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| match digit {
        b'0'..=b'9' => Some(number.saturating_mul(10).saturating_add(u64::from(digit - b'0'))),
        _ => None,
    })
}

/// True if each line of a field is text. An unreadable line may contain anything.
pub(crate) fn are_readable(headers: &HeaderMap, field: &HeaderName) -> bool {
    headers.get_all(field).iter().all(|line| line.to_str().is_ok())
}

/// True if a field of directives contains this one, with or without an argument (RFC 9111 5.2).
pub(crate) fn has_directive(headers: &HeaderMap, field: &HeaderName, name: &str) -> bool {
    headers.get_all(field).iter().filter_map(|line| line.to_str().ok()).any(|line| {
        let names = line.split(',').map(|found| found.split('=').next().unwrap_or_default());
        names.into_iter().any(|found| found.trim_matches([' ', '\t']).eq_ignore_ascii_case(name))
    })
}

/// True if a list-valued field contains an element, compared without case. Other elements need not
/// be text.
pub fn lists(headers: &HeaderMap, field: &HeaderName, element: &str) -> bool {
    headers.get_all(field).iter().any(|line| has_element(line.as_bytes(), element))
}

/// True if one line of a list-valued field has an element.
pub fn has_element(line: &[u8], element: &str) -> bool {
    let mut elements = line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    elements.any(|found| found.eq_ignore_ascii_case(element.as_bytes()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::CACHE_CONTROL;

    use super::*;

    /// A directive beside bytes that are no text is still a directive.
    #[test]
    fn elements_are_found_beside_any_others() {
        for (line, expected) in [
            (&b"no-transform"[..], true),
            (b"max-age=1 ,\t No-Transform ", true),
            (b"x=\"\xe9\", no-transform", true),
            (b"no-transformer", false),
            (b"x=no-transform", false),
            (b"", false),
        ] {
            let line = HeaderValue::from_bytes(line);
            let headers = line.into_iter().map(|line| (CACHE_CONTROL, line)).collect();
            assert_eq!(lists(&headers, &CACHE_CONTROL, "no-transform"), expected, "{headers:?}");
        }
    }
}
