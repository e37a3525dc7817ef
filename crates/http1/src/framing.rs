//! The fields that frame a message, those for the next hop only, and those about the client; fields
//! as lists and as lines.

use bytes::BytesMut;
use http::StatusCode;
use http::header::{HeaderName, HeaderValue};
use memchr::memchr;

/// True if a name, in any case, is a field for the next hop only.
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

/// True if a field may be a trailer. Fields that frame or route a message, change its reading, or
/// authenticate it may not (RFC 9110 6.5.1): the recipient may have acted on the head already.
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

/// True if applications may take a name for one that frames the message: CGI and its successors
/// (RFC 3875 4.1.18) do not distinguish `-` and `_`.
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

/// Writes a response's first line.
pub fn write_status_line(status: StatusCode, out: &mut BytesMut) {
    if status == StatusCode::OK {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    } else {
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(status.as_str().as_bytes());
        out.extend_from_slice(b" ");
        out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
        out.extend_from_slice(b"\r\n");
    }
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

/// True if a field about the client must be dropped. Applications read `X_Forwarded_For` like
/// `X-Forwarded-For`, so it is always dropped.
pub fn speaks_of_others(name: &HeaderName, trusted: bool) -> bool {
    let name = name.as_str();
    // Names of fields about the client begin so. Most others are told by that alone.
    if !name.starts_with(['c', 'f', 'x']) {
        return false;
    }
    if memchr(b'_', name.as_bytes()).is_some() {
        let dashed = name.replace('_', "-");
        return is_about_others(&dashed);
    }
    !trusted && is_about_others(name)
}

fn is_about_others(name: &str) -> bool {
    matches!(name, "forwarded" | "x-real-ip")
        || name.starts_with("x-forwarded-")
        // RFC 9440 section 2.4: who ends TLS removes what its clients say of certificates.
        || matches!(name, "client-cert" | "client-cert-chain")
}
