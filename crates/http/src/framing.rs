//! Which fields frame a message, are for the next hop alone, or say who asked; fields as lists and
//! as lines.  It must not know where a message ends.

use bytes::BytesMut;
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Names of fields for the next hop alone, in any case.
pub fn is_hop_by_hop(name: &[u8]) -> bool {
    let expected: &[u8] = match name.len() {
        2 => b"te",
        5 => b"proxy",
        7 => b"upgrade",
        10 => return is_any(name, [b"connection", b"keep-alive"]),
        14 => b"http2-settings",
        16 => b"proxy-connection",
        17 => b"transfer-encoding",
        _ => return false,
    };
    name.eq_ignore_ascii_case(expected)
}

fn is_any(name: &[u8], known: [&[u8; 10]; 2]) -> bool {
    known.iter().any(|known| name.eq_ignore_ascii_case(*known))
}

/// What frames or routes a message, changes how it is read or by whom, or says who asked, has no
/// place behind it (RFC 9110 6.5.1): who reads it there may have acted on its head already.
pub fn is_trailer(name: &HeaderName) -> bool {
    use http::header::*;
    const CONDITIONS: [HeaderName; 5] =
        [IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE];
    const OF_RESPONSES: [HeaderName; 7] =
        [AGE, DATE, EXPIRES, LOCATION, RETRY_AFTER, VARY, WWW_AUTHENTICATE];
    ![
        AUTHORIZATION,
        CACHE_CONTROL,
        CONTENT_ENCODING,
        CONTENT_LENGTH,
        CONTENT_RANGE,
        CONTENT_TYPE,
        COOKIE,
        EXPECT,
        HOST,
        MAX_FORWARDS,
        PRAGMA,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        RANGE,
        SET_COOKIE,
        TRAILER,
        VIA,
    ]
    .contains(name)
        && !CONDITIONS.contains(name)
        && !OF_RESPONSES.contains(name)
        && !is_hop_by_hop(name.as_str().as_bytes())
        && !is_framing_alias(name.as_str().as_bytes())
        && !speaks_of_others(name, false)
}

/// Whether applications may take a name for one that frames the message: CGI and what follows it
/// (RFC 3875 4.1.18) write `-` and `_` alike.
pub fn is_framing_alias(name: &[u8]) -> bool {
    let is_alias = |field: &[u8]| {
        let mut pairs = name.iter().zip(field);
        pairs.all(|(byte, of)| byte.eq_ignore_ascii_case(of) || (*byte, *of) == (b'_', b'-'))
    };
    let looks = match name.len() {
        14 => is_alias(b"content-length"),
        17 => is_alias(b"transfer-encoding"),
        _ => false,
    };
    looks && name.contains(&b'_')
}

/// Whether a list field has an element, compared without case.
pub fn lists(headers: &HeaderMap, name: &HeaderName, element: &str) -> bool {
    headers.get_all(name).iter().any(|value| {
        let mut elements = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        elements.any(|found| found.eq_ignore_ascii_case(element.as_bytes()))
    })
}

/// Writes field lines.
pub fn write_fields<'a>(
    fields: impl IntoIterator<Item = (&'a HeaderName, &'a HeaderValue)>,
    out: &mut BytesMut,
) {
    for (name, value) in fields {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// Applications read `X_Forwarded_For` as the other one, so it is never let through.
pub fn speaks_of_others(name: &HeaderName, trusted: bool) -> bool {
    let name = name.as_str();
    if name.contains('_') {
        let dashed = name.replace('_', "-");
        return is_about_others(&dashed);
    }
    !trusted && is_about_others(name)
}

fn is_about_others(name: &str) -> bool {
    name == "forwarded" || name == "x-real-ip" || name.starts_with("x-forwarded-")
}
