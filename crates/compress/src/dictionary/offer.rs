//! Decides which responses become dictionaries and which requests may be answered with one, and
//! writes the fields that say so (RFC 9842 sections 2.1, 6.2 and 9.3.3).

use http::header::{
    ACCEPT_ENCODING, ACCESS_CONTROL_ALLOW_ORIGIN, AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING,
    CONTENT_TYPE, EXPIRES, HeaderName, LAST_MODIFIED, LINK, ORIGIN, SET_COOKIE,
};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::pattern::Pattern;
use super::{DICTIONARY_BYTES_MAX, Hash};
use crate::breach::SEC_FETCH_SITE;
use crate::eligible::ResponseHead;
use crate::eligible::{LENGTH_MIN, LENGTH_MIN_TRAINED};
use crate::fields::{are_readable, has_directive, lists};
use crate::validators::{varies_by, vary};

/// A rule's terms for the responses that may become dictionaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// A dictionary is of one file, so short ones are worth it too.
    pub is_file: bool,
    /// All clients that may see a response get the same one, whatever their credentials.
    pub is_shared: bool,
}

impl Terms {
    /// The shortest body in bytes that may be coded with such a dictionary.
    pub const fn length_min(self) -> u64 {
        if self.is_file { LENGTH_MIN_TRAINED } else { LENGTH_MIN }
    }
}

/// True if a response may be stored and used as a dictionary for other clients.
pub fn may_become(terms: Terms, request: &HeaderMap, response: ResponseHead<'_>) -> bool {
    let ResponseHead { status, headers: response, length } = response;
    let credentials = !terms.is_shared && request.contains_key(AUTHORIZATION);
    let personal = credentials || is_personal(response);
    let stale = ["no-cache", "max-age=0"].into_iter().any(|d| lists(response, &CACHE_CONTROL, d))
        || cache_has(response, "no-cache=");
    // A client may use it only while it is fresh (section 2.2.1).
    let fresh = cache_has(response, "max-age=")
        || response.contains_key(EXPIRES)
        || response.contains_key(LAST_MODIFIED);
    let lengths = terms.length_min()..=DICTIONARY_BYTES_MAX as u64;
    let fits = length.is_none_or(|length| lengths.contains(&length));
    status == StatusCode::OK && !personal && !stale && fresh && fits && !is_difference(response)
}

/// True if a response to a request without credentials may be a training sample for a dictionary
/// that everybody gets. It need not be fresh, because it is not stored itself.
pub fn may_be_sample(status: StatusCode, response: &HeaderMap) -> bool {
    status == StatusCode::OK && !is_personal(response)
}

fn is_personal(response: &HeaderMap) -> bool {
    let cache = |directive: &str| has_directive(response, &CACHE_CONTROL, directive);
    !are_readable(response, &CACHE_CONTROL)
        || response.contains_key(SET_COOKIE)
        || response.contains_key(CONTENT_ENCODING)
        || ["private", "no-store", "no-transform"].into_iter().any(cache)
        || ["*", "cookie", "authorization"].into_iter().any(|name| varies_by(response, name))
}

/// True if the body is itself the difference to an earlier version, which is no version: Subversion
/// answers `svn update` so.
fn is_difference(response: &HeaderMap) -> bool {
    response.get(CONTENT_TYPE).is_some_and(|kind| {
        kind.as_bytes().to_ascii_lowercase().starts_with(b"application/vnd.svn-svndiff")
    })
}

fn cache_has(headers: &HeaderMap, start: &str) -> bool {
    headers.get_all(CACHE_CONTROL).iter().filter_map(|line| line.to_str().ok()).any(|line| {
        line.split(',').any(|directive| {
            let directive = directive.trim_matches([' ', '\t']);
            directive.get(..start.len()).is_some_and(|from| from.eq_ignore_ascii_case(start))
        })
    })
}

/// The server's check of section 9.3.3: a page must not learn another origin's response from the
/// length that a dictionary gives it.
pub fn may_use(request: &HeaderMap, response: &HeaderMap) -> bool {
    let one = |name: &HeaderName| -> Result<Option<&HeaderValue>, ()> {
        let mut values = request.get_all(name).iter();
        let first = values.next();
        if values.next().is_some() { Err(()) } else { Ok(first) }
    };
    let (Ok(site), Ok(mode), Ok(origin)) =
        (one(&SEC_FETCH_SITE), one(&SEC_FETCH_MODE), one(&ORIGIN))
    else {
        return false;
    };
    if site.is_none_or(|site| site == "same-origin") {
        return true;
    }
    match mode.map(HeaderValue::as_bytes) {
        None | Some(b"navigate" | b"same-origin") => true,
        Some(b"cors") => response.get(ACCESS_CONTROL_ALLOW_ORIGIN).is_some_and(|allowed| {
            allowed == "*" || origin.is_some_and(|origin| origin == allowed)
        }),
        _ => false,
    }
}

/// Adds `Use-As-Dictionary` to a response that matches a rule's pattern.
pub fn offer(headers: &mut HeaderMap, pattern: &Pattern) {
    // A pattern contains no quotation mark or backslash, so it needs no escapes.
    if let Ok(value) = HeaderValue::from_str(&format!("match=\"{pattern}\"")) {
        headers.insert(USE_AS_DICTIONARY, value);
    }
}

/// Adds a `Link` to a dictionary that is fetched separately (section 3).
pub fn link(headers: &mut HeaderMap, path: &str) {
    if let Ok(value) = HeaderValue::from_str(&format!("<{path}>; rel=\"compression-dictionary\"")) {
        headers.append(LINK, value);
    }
}

/// Adds the fields that a cache must distinguish to Vary (section 6.2).
pub fn vary_by_dictionary(headers: &mut HeaderMap) {
    vary(headers, &[ACCEPT_ENCODING, super::available::AVAILABLE_DICTIONARY]);
}

/// The path at which Eyelet itself serves a trained dictionary.
pub fn own_path(hash: Hash) -> String {
    format!("{OWN_PATH}{hash}")
}

/// The hash in such a path.
pub fn of_own_path(path: &str) -> Option<Hash> {
    Hash::from_hex(path.strip_prefix(OWN_PATH)?)
}

const OWN_PATH: &str = "/.well-known/eyelet/dictionary/";

/// The response's field.
pub const USE_AS_DICTIONARY: HeaderName = HeaderName::from_static("use-as-dictionary");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn head(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn only_public_fresh_responses_become_dictionaries() {
        let fresh = ("cache-control", "public, max-age=600");
        for (request, status, response, length, may) in [
            (&[][..], 200, &[fresh][..], None, true),
            (&[("cookie", "a=b")], 200, &[fresh], Some(600), true),
            (&[], 200, &[("last-modified", "Mon, 01 Jan 2024 00:00:00 GMT")], None, true),
            (&[], 200, &[], None, false),
            (&[], 404, &[fresh], None, false),
            (&[], 206, &[fresh], None, false),
            (&[("authorization", "x")], 200, &[fresh], None, false),
            (&[], 200, &[fresh, ("set-cookie", "a=b")], None, false),
            (&[], 200, &[fresh, ("vary", "*")], None, false),
            (&[], 200, &[fresh, ("vary", "Accept, Cookie")], None, false),
            (&[], 200, &[fresh, ("vary", "Accept-Encoding")], None, true),
            (&[], 200, &[fresh, ("content-encoding", "gzip")], None, false),
            (&[], 200, &[("cache-control", "Private, max-age=9")], None, false),
            (&[], 200, &[("cache-control", "private=\"x\", max-age=9")], None, false),
            (&[], 200, &[fresh, ("cache-control", "no-store")], None, false),
            (&[], 200, &[("cache-control", "max-age=0")], None, false),
            (&[], 200, &[fresh], Some(10), false),
            (&[], 200, &[fresh], Some(1 << 30), false),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let terms = Terms::default();
            let found = may_become(
                terms,
                &head(request),
                ResponseHead { status, headers: &head(response), length },
            );
            assert_eq!(found, may, "{request:?} {response:?}");
        }
    }

    #[test]
    fn a_file_may_be_short_and_shared() {
        let fresh = ("cache-control", "max-age=604800");
        let (file, shared) =
            (Terms { is_file: true, is_shared: false }, Terms { is_file: true, is_shared: true });
        let with = [("authorization", "Basic dTpw")];
        let private = [("cache-control", "private, max-age=9")];
        let svndiff = [fresh, ("content-type", "application/vnd.svn-svndiff")];
        for (terms, request, response, length, may) in [
            (file, &[][..], &[fresh][..], 128, true),
            (file, &[], &[fresh], 127, false),
            (Terms::default(), &[], &[fresh], 511, false),
            (file, &with, &[fresh], 600, false),
            (shared, &with, &[fresh], 600, true),
            (shared, &with, &private, 600, false),
            (shared, &[], &svndiff, 600, false),
        ] {
            let (request, response) = (head(request), head(response));
            let found = may_become(
                terms,
                &request,
                ResponseHead { status: StatusCode::OK, headers: &response, length: Some(length) },
            );
            assert_eq!(found, may, "{terms:?} {request:?} {response:?} {length}");
        }
    }

    #[test]
    fn the_check_of_section_9_3_3() {
        let site = |value| ("sec-fetch-site", value);
        let mode = |value| ("sec-fetch-mode", value);
        let acao = |value| ("access-control-allow-origin", value);
        let origin = ("origin", "https://a.example");
        for (request, response, may) in [
            (&[][..], &[][..], true),
            (&[site("same-origin"), mode("no-cors")], &[], true),
            (&[site("cross-site"), mode("navigate")], &[], true),
            (&[site("cross-site")], &[], true),
            (&[site("cross-site"), mode("no-cors")], &[], false),
            (&[site("none"), mode("websocket")], &[], false),
            (&[site("cross-site"), mode("cors"), origin], &[acao("*")], true),
            (&[site("same-site"), mode("cors"), origin], &[acao("https://a.example")], true),
            (&[site("cross-site"), mode("cors"), origin], &[acao("https://b.example")], false),
            (&[site("cross-site"), mode("cors"), origin], &[], false),
            (&[site("cross-site"), mode("cors")], &[acao("null")], false),
            (&[site("same-origin"), site("cross-site")], &[], false),
        ] {
            assert_eq!(may_use(&head(request), &head(response)), may, "{request:?} {response:?}");
        }
    }
}
