//! Bodies of requests: those that an edge codes for an upstream that accepts it, and those that it
//! decodes for an application.

use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    ORIGIN, TRAILER, TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::accept::{AcceptedCodings, Coding};
use crate::breach::{self, Allowed};
use crate::eligible::{ContentKind, content_kind};
use crate::fields::{DIGESTS, lists};

/// The codings of requests that Eyelet decodes, as a response says it (RFC 9110 section 12.5.3).
pub const ACCEPTED: HeaderValue = HeaderValue::from_static("zstd, br, gzip");
/// Shortest body in bytes that is coded. A shorter one leaves with its head in one packet or two,
/// coded or not.
pub const BODY_BYTES_MIN: u64 = 1 << 10;
/// The type of a form.
const FORM: &[u8] = b"application/x-www-form-urlencoded";
/// Bytes that any body may decode to: a page of zeros costs an application no more than one that
/// came uncoded.
const DECODED_BYTES_FREE: u64 = 16 << 20;
/// Most decoded bytes for one coded byte of a longer body. Logs and JSON have 10 to 50. Apache's
/// mod_deflate has the same limit.
const RATIO_MAX: u64 = 200;
/// Fields that sign the message. What they cover may be the coded bytes or their length.
const SIGNATURES: [HeaderName; 2] =
    [HeaderName::from_static("signature"), HeaderName::from_static("signature-input")];

/// True if a response says that its server accepts zstd in requests. Without the field it says
/// nothing.
pub fn is_accepted(response: &HeaderMap) -> bool {
    let lines = response.get_all(ACCEPT_ENCODING).iter().filter_map(|line| line.to_str().ok());
    let mut names = lines.flat_map(|line| line.split(',')).filter_map(|one| one.split(';').next());
    // Whoever says `*` may not know zstd.
    names.any(|name| name.trim().eq_ignore_ascii_case(Coding::Zstd.name()))
        && AcceptedCodings::read(response).takes(Coding::Zstd)
}

/// True if the body of a request may be coded. `length` is `None` if it is not known.
///
/// The length of a coded body reveals what is in it. A browser sends bodies as often as a page
/// likes, with text that a page or a link has chosen, so its bodies stay uncoded. A form is often a
/// password beside such text.
pub fn may_code(request: &HeaderMap, length: Option<u64>, host: &str) -> bool {
    let has = |name: &HeaderName| request.contains_key(name);
    length.is_none_or(|length| length >= BODY_BYTES_MIN)
        && content_kind(request) == ContentKind::Compressible
        && !is_form(request)
        && ![CONTENT_ENCODING, CONTENT_RANGE, TRAILER].iter().any(has)
        && !is_bound_to_bytes(request)
        && !breach::is_browser(request)
        && !has_field_of_browsers(request)
        && breach::breach(request, host, Allowed::default()).is_none()
}

/// True if there is a field that only browsers send. A page of the same origin may hold text of
/// strangers, too.
fn has_field_of_browsers(request: &HeaderMap) -> bool {
    request.keys().any(|name| *name == ORIGIN || name.as_str().starts_with("sec-fetch-"))
}

fn is_form(request: &HeaderMap) -> bool {
    let is_form = |kind: &HeaderValue| {
        let essence = kind.as_bytes().get(..FORM.len());
        essence.is_some_and(|essence| essence.eq_ignore_ascii_case(FORM))
    };
    request.get(CONTENT_TYPE).is_some_and(is_form)
}

/// Turns a request's head into that of its coded form.
pub fn code(request: &mut HeaderMap) {
    without_length(request);
    request.insert(CONTENT_ENCODING, HeaderValue::from_static(Coding::Zstd.name()));
}

/// The coding of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestBody {
    /// Not at all, or its bytes must stay as they are.
    AsIs,
    /// It can be decoded.
    Coded(Coding),
    /// By a coding that Eyelet does not know, or by several.
    Unknown,
}

/// Returns the coding of a request's body.
pub fn coding(request: &HeaderMap) -> RequestBody {
    let mut lines = request.get_all(CONTENT_ENCODING).iter();
    let Some(line) = lines.next() else { return RequestBody::AsIs };
    // Content-Digest covers the coded bytes (RFC 9530 section 2).
    if is_bound_to_bytes(request) || request.contains_key(CONTENT_RANGE) {
        return RequestBody::AsIs;
    }
    let name = line.to_str().unwrap_or("?").trim();
    let of_name = match name {
        // RFC 9110 section 8.4.1.3: the same coding.
        _ if name.eq_ignore_ascii_case("x-gzip") => Some(Coding::Gzip),
        _ => Coding::of_name(name).filter(|coding| !coding.is_of_dictionary()),
    };
    match (of_name, lines.next()) {
        (Some(coding), None) => RequestBody::Coded(coding),
        (None, None) if name.is_empty() || name.eq_ignore_ascii_case("identity") => {
            RequestBody::AsIs
        }
        _ => RequestBody::Unknown,
    }
}

/// Turns a request's head into that of its decoded form.
pub fn decode(request: &mut HeaderMap) {
    without_length(request);
    request.remove(CONTENT_ENCODING);
}

/// True if so many decoded bytes of so few coded ones are made to wear out who takes them.
pub fn is_bomb(coded: u64, decoded: u64) -> bool {
    decoded > DECODED_BYTES_FREE && decoded / RATIO_MAX > coded
}

/// True if a coded body comes near to the limit of [`is_bomb`], so that its rest should be sent
/// uncoded.
pub fn nears_bomb(coded: u64, decoded: u64) -> bool {
    decoded > DECODED_BYTES_FREE / 2 && decoded / (RATIO_MAX / 2) > coded
}

/// Frames a body of unknown length in HTTP/1.1. HTTP/2 leaves the field out.
fn without_length(request: &mut HeaderMap) {
    request.remove(CONTENT_LENGTH);
    request.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
}

/// True if a field speaks of the bytes as they are sent.
fn is_bound_to_bytes(request: &HeaderMap) -> bool {
    DIGESTS.iter().chain(&SIGNATURES).any(|name| request.contains_key(name))
        || lists(request, &CACHE_CONTROL, "no-transform")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::properties::fields_are_consistent;

    fn read(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let fields = fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        fields.collect()
    }

    #[test]
    fn only_bodies_of_programs_are_coded() {
        let json = ("content-type", "application/json");
        for (fields, length, expected) in [
            (&[json][..], Some(BODY_BYTES_MIN), true),
            (&[json], None, true),
            (&[json], Some(BODY_BYTES_MIN - 1), false),
            (&[json, ("user-agent", "curl/8.0")], None, true),
            (&[json, ("authorization", "Basic eA==")], None, true),
            (&[json, ("user-agent", "Mozilla/5.0")], None, false),
            (&[json, ("accept-language", "de")], None, false),
            (&[json, ("cookie", "a=b"), ("sec-fetch-site", "same-site")], None, false),
            (&[json, ("sec-fetch-site", "same-origin")], None, false),
            (&[json, ("sec-fetch-mode", "cors")], None, false),
            (&[json, ("origin", "https://a.example")], None, false),
            (&[json, ("cookie", "a=b"), ("referer", "https://b.example/")], None, false),
            (&[("content-type", "text/xml; charset=utf-8")], None, true),
            (&[("content-type", "application/x-www-form-urlencoded")], None, false),
            (&[("content-type", "multipart/form-data; boundary=a")], None, false),
            (&[("content-type", "image/png")], None, false),
            (&[("content-type", "text/event-stream")], None, false),
            (&[("content-type", "application/grpc")], None, false),
            (&[], None, false),
            (&[json, ("content-encoding", "gzip")], None, false),
            (&[json, ("content-range", "bytes 0-9/10")], None, false),
            (&[json, ("content-digest", "sha-256=:x:")], None, false),
            (&[json, ("content-md5", "x")], None, false),
            (&[json, ("trailer", "content-digest")], None, false),
            (&[json, ("signature-input", "a=()")], None, false),
            (&[json, ("cache-control", "no-transform")], None, false),
        ] {
            assert_eq!(may_code(&read(fields), length, "a.example"), expected, "{fields:?}");
        }
    }

    #[test]
    fn what_is_known_is_decoded_and_what_is_bound_is_not() {
        let of = |line| ("content-encoding", line);
        for (fields, expected) in [
            (&[][..], RequestBody::AsIs),
            (&[of("zstd")], RequestBody::Coded(Coding::Zstd)),
            (&[of(" BR ")], RequestBody::Coded(Coding::Br)),
            (&[of("gzip")], RequestBody::Coded(Coding::Gzip)),
            (&[of("X-Gzip")], RequestBody::Coded(Coding::Gzip)),
            (&[of("identity")], RequestBody::AsIs),
            (&[of("")], RequestBody::AsIs),
            (&[of("deflate")], RequestBody::Unknown),
            (&[of("dcz")], RequestBody::Unknown),
            (&[of("gzip, zstd")], RequestBody::Unknown),
            (&[of("gzip"), of("zstd")], RequestBody::Unknown),
            (&[of("zstd"), ("content-digest", "sha-256=:x:")], RequestBody::AsIs),
            (&[of("zstd"), ("cache-control", "no-transform")], RequestBody::AsIs),
            (&[of("zstd"), ("content-range", "bytes 0-9/10")], RequestBody::AsIs),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, HeaderValue::from_static(value));
            }
            assert_eq!(coding(&headers), expected, "{fields:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_fields(data in "((gzip|zstd|dcz|identity)?(, *)?(text/xml)?[ -~]{0,9}\n){0,9}") {
            fields_are_consistent(data.as_bytes());
        }
    }

    /// The ways of the property: a body that is coded, and one that is decoded.
    #[test]
    fn fields_of_all_kinds_are_consistent() {
        assert!(may_code(&read(&[("content-type", "text/xml")]), None, "a.example"));
        for data in ["\x01\ntext/xml", "gzip\ntext/xml", "zstd", "zstd\n\n\n\n\ngzip", "dcb", ""] {
            fields_are_consistent(data.as_bytes());
        }
    }

    #[test]
    fn an_offer_names_zstd() {
        for (line, expected) in [
            ("zstd, br, gzip", true),
            ("*", false),
            ("ZSTD;q=0.5", true),
            ("gzip, deflate", false),
            ("zstd;q=0", false),
            ("", false),
        ] {
            assert_eq!(is_accepted(&read(&[("accept-encoding", line)])), expected, "{line}");
        }
        assert!(!is_accepted(&HeaderMap::new()));
    }
}
