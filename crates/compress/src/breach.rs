//! The BREACH rule: if an attacker's page may have made the request, and the response may contain a
//! secret next to the page's input, then its length must not depend on its content.

use http::header::{
    ACCEPT_LANGUAGE, AUTHORIZATION, CACHE_CONTROL, COOKIE, HOST, HeaderName, ORIGIN, REFERER,
    SET_COOKIE, USER_AGENT, VARY,
};
use http::{HeaderMap, HeaderValue};

use crate::fields::{are_readable, has_directive, lists};

/// The reason why a response must not be compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Breach {
    /// Credentials, and `Sec-Fetch-Site` names another site, or another origin of the same site.
    OtherOrigin,
    /// Credentials, and `Origin` or `Referer` names another origin.
    ForeignReferer,
    /// Credentials, a browser, and no field that says who made the request.
    UnknownOrigin,
}

/// The other pages whose requests may get compressed responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Allowed {
    /// Other origins of the same site: no attacker controls a subdomain.
    pub same_site: bool,
    /// Links on other sites that open a page in its own tab.
    pub navigations: bool,
}

/// Returns the reason why a response must not be compressed, if there is one. `host` is the
/// authority of the request, from Host or `:authority`. The scheme is https: an http page is
/// another origin.
pub fn breach(headers: &HeaderMap, host: &str, allowed: Allowed) -> Option<Breach> {
    if !has_credentials(headers) {
        return None;
    }
    let mut sites = headers.get_all(&SEC_FETCH_SITE).iter();
    if let Some(site) = sites.next() {
        let own = match site.as_bytes() {
            // `none`: a person typed the address or used a bookmark.
            b"same-origin" | b"none" => true,
            b"same-site" => allowed.same_site || allowed.navigations && navigates(headers),
            b"cross-site" => allowed.navigations && navigates(headers),
            // An unknown word counts as another site.
            _ => false,
        };
        return (!own || sites.next().is_some()).then_some(Breach::OtherOrigin);
    }
    match named_origin(headers) {
        Named::Nothing => is_browser(headers).then_some(Breach::UnknownOrigin),
        Named::Unreadable => Some(Breach::ForeignReferer),
        Named::Authority(authority) => {
            (!same_authority(authority, host)).then_some(Breach::ForeignReferer)
        }
    }
}

/// True if the upstream says that every client may get the response: then it contains no client's
/// secret.
pub fn is_for_all(response: &HeaderMap) -> bool {
    let forbids = |directive| has_directive(response, &CACHE_CONTROL, directive);
    let varies = ["*", "cookie", "authorization"].iter().any(|by| lists(response, &VARY, by));
    // Quoted text is no directive: `private="set-cookie, public"`.
    let lines = response.get_all(CACHE_CONTROL).iter().map(HeaderValue::as_bytes);
    let is_quoted = lines.into_iter().any(|line| line.contains(&b'"'));
    lists(response, &CACHE_CONTROL, "public")
        && !forbids("private")
        && !forbids("no-store")
        && !is_quoted
        && are_readable(response, &CACHE_CONTROL)
        && are_readable(response, &VARY)
        && !varies
        && !response.contains_key(SET_COOKIE)
}

/// Credentials that a browser adds by itself, whoever made the page. It never adds a bearer token,
/// which the page must know already (RFC 6750). An empty cookie is no credential.
fn has_credentials(headers: &HeaderMap) -> bool {
    let cookie = |value: &HeaderValue| !value.as_bytes().trim_ascii().is_empty();
    let is_bearer = |value: &HeaderValue| {
        let scheme = value.as_bytes().split(|byte| *byte == b' ').next().unwrap_or_default();
        scheme.eq_ignore_ascii_case(b"bearer")
    };
    headers.get_all(COOKIE).iter().any(cookie)
        || headers.get_all(AUTHORIZATION).iter().any(|value| !is_bearer(value))
}

/// True if the request opens a page in its own tab. In a frame it would be as invisible as an
/// image.
fn navigates(headers: &HeaderMap) -> bool {
    let only = |name: HeaderName, wanted: &str| {
        let mut values = headers.get_all(name).iter();
        let first = values.next().is_some_and(|value| value.as_bytes() == wanted.as_bytes());
        first && values.next().is_none()
    };
    only(SEC_FETCH_MODE, "navigate") && only(SEC_FETCH_DEST, "document")
}

/// True if a browser may have made a request without fetch metadata, as browsers before 2023 do. A
/// page cannot set User-Agent across origins. It can set Accept-Language, also to `*`, so that
/// field only counts for unknown user agents.
pub(crate) fn is_browser(headers: &HeaderMap) -> bool {
    let agent = |value: &HeaderValue| {
        let agent = value.as_bytes();
        agent.starts_with(b"Mozilla/") || agent.starts_with(b"Opera/")
    };
    let speaks = |value: &HeaderValue| !matches!(value.as_bytes().trim_ascii(), b"" | b"*");
    headers.get_all(USER_AGENT).iter().any(agent)
        || headers.get_all(ACCEPT_LANGUAGE).iter().any(speaks)
}

enum Named<'a> {
    Nothing,
    /// More than one, `null`, or another scheme than https.
    Unreadable,
    Authority(&'a str),
}

/// Origin before Referer: a page cannot suppress Origin in its cross-origin requests.
fn named_origin(headers: &HeaderMap) -> Named<'_> {
    let Some(name) = [ORIGIN, REFERER].into_iter().find(|name| headers.contains_key(name)) else {
        return Named::Nothing;
    };
    let mut values = headers.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Named::Unreadable };
    let text = value.to_str().unwrap_or_default();
    let Some(after) = text.strip_prefix("https://") else { return Named::Unreadable };
    let end = after.find(['/', '?', '#']).unwrap_or(after.len());
    Named::Authority(after.get(..end).unwrap_or_default())
}

/// Compares without case and without the default port.
pub(crate) fn same_authority(a: &str, b: &str) -> bool {
    let bare = |authority: &str| {
        let lower = authority.to_ascii_lowercase();
        lower.strip_suffix(":443").map(str::to_owned).unwrap_or(lower)
    };
    !a.is_empty() && bare(a) == bare(b)
}

/// The authority of a request: from its target, else from its only Host.
pub fn authority<'a>(uri: &'a http::Uri, headers: &'a HeaderMap) -> &'a str {
    let of_host = || headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    uri.authority().map_or_else(of_host, http::uri::Authority::as_str)
}

pub(crate) const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_rule_as_a_table() {
        use Breach::{ForeignReferer, OtherOrigin, UnknownOrigin};
        let (cookie, authorization) = (("cookie", "s=1"), ("authorization", "Basic x"));
        let bearer = ("authorization", "bearer t");
        let (browser, opera) = (("user-agent", "Mozilla/5.0 (X11)"), ("user-agent", "Opera/9.80"));
        let french = ("accept-language", "fr");
        let (navigate, document) = (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"));
        let site = |value| ("sec-fetch-site", value);
        for (fields, found) in [
            (&[][..], None),
            (&[site("cross-site")], None),
            (&[("origin", "https://evil.example")], None),
            (&[cookie, site("cross-site")], Some(OtherOrigin)),
            (&[cookie, site("same-site")], Some(OtherOrigin)),
            (&[cookie, site("same-origin")], None),
            (&[cookie, site("none")], None),
            (&[cookie, site("")], Some(OtherOrigin)),
            (&[cookie, site("same-origin"), site("cross-site")], Some(OtherOrigin)),
            (&[cookie, site("Same-Origin")], Some(OtherOrigin)),
            (&[authorization, site("cross-site")], Some(OtherOrigin)),
            (&[authorization, site("same-origin")], None),
            (&[cookie, browser], Some(UnknownOrigin)),
            (&[cookie, opera], Some(UnknownOrigin)),
            (&[cookie, french], Some(UnknownOrigin)),
            (&[authorization, browser], Some(UnknownOrigin)),
            (&[authorization], None),
            // Not browsers.
            (&[cookie], None),
            (&[cookie, ("user-agent", "curl/8.5.0"), ("accept", "*/*")], None),
            (&[cookie, ("accept-language", "*"), ("sec-fetch-mode", "cors")], None),
            // No credentials, or none that a browser adds by itself.
            (&[("cookie", ""), browser], None),
            (&[("cookie", " "), site("cross-site")], None),
            (&[("cookie", ""), cookie, site("cross-site")], Some(OtherOrigin)),
            (&[bearer, site("same-site"), ("origin", "https://www.example")], None),
            (&[bearer, browser], None),
            (&[bearer, cookie, site("cross-site")], Some(OtherOrigin)),
            (&[("authorization", "Bearerx"), site("cross-site")], Some(OtherOrigin)),
            (&[cookie, site("cross-site"), navigate, document], Some(OtherOrigin)),
            (&[cookie, ("origin", "https://app.example")], None),
            (&[cookie, ("origin", "https://APP.example:443")], None),
            (&[cookie, ("origin", "http://app.example")], Some(ForeignReferer)),
            (&[cookie, ("origin", "https://app.example:8443")], Some(ForeignReferer)),
            (&[cookie, ("origin", "null")], Some(ForeignReferer)),
            (&[cookie, ("origin", "https://evil.example")], Some(ForeignReferer)),
            (&[authorization, ("origin", "https://evil.example")], Some(ForeignReferer)),
            (&[cookie, ("referer", "https://app.example/page?q=1")], None),
            (&[cookie, ("referer", "https://app.example")], None),
            (&[cookie, ("referer", "https://app.example.evil/")], Some(ForeignReferer)),
            (&[cookie, ("referer", "https://app.example@evil/")], Some(ForeignReferer)),
            (&[cookie, ("referer", "/page")], Some(ForeignReferer)),
            (
                &[cookie, ("origin", "https://evil.example"), ("referer", "https://app.example/")],
                Some(ForeignReferer),
            ),
            (&[cookie, site("same-origin"), ("origin", "https://evil.example")], None),
        ] {
            assert_eq!(judged(fields, Allowed::default()), found, "{fields:?}");
        }
    }

    #[test]
    fn a_rule_allows_no_more_than_it_says() {
        let same_site = Allowed { same_site: true, ..Allowed::default() };
        let navigations = Allowed { navigations: true, ..Allowed::default() };
        let page = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        let frame = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
        let image = [("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "image")];
        for (site, made, by_same_site, by_navigations) in [
            ("same-site", image, true, false),
            ("same-site", frame, true, false),
            ("same-site", page, true, true),
            ("cross-site", image, false, false),
            ("cross-site", frame, false, false),
            ("cross-site", page, false, true),
            ("elsewhere", page, false, false),
        ] {
            let [mode, destination] = made;
            let fields = [("cookie", "s=1"), ("sec-fetch-site", site), mode, destination];
            for (allowed, open) in [(same_site, by_same_site), (navigations, by_navigations)] {
                let found = judged(&fields, allowed);
                assert_eq!(found, (!open).then_some(Breach::OtherOrigin), "{fields:?}");
            }
            let twice = [&fields[..], &[("sec-fetch-site", site)]].concat();
            assert!(judged(&twice, same_site).is_some(), "{twice:?}");
            let twice = [&fields[..], &[destination]].concat();
            assert!(judged(&twice, navigations).is_some(), "{twice:?}");
        }
        let foreign = [("cookie", "s=1"), ("origin", "https://www.example")];
        assert_eq!(judged(&foreign, same_site), Some(Breach::ForeignReferer));
    }

    #[test]
    fn only_public_responses_hold_no_secret() {
        let cached = |value| ("cache-control", value);
        for (fields, expected) in [
            (&[][..], false),
            (&[cached("max-age=600")], false),
            (&[cached("public")], true),
            (&[cached("max-age=31536000, Public , immutable"), ("vary", "accept-encoding")], true),
            (&[cached("public"), cached("private")], false),
            (&[cached("public, no-store")], false),
            (&[cached("public, private=\"x\"")], false),
            (&[cached("public, private=set-cookie")], false),
            (&[cached("public, Private = set-cookie")], false),
            (&[cached("public"), cached("private\u{e9}")], false),
            (&[cached("public"), ("vary", "\u{e9}, cookie")], false),
            (&[cached("public"), ("set-cookie", "s=1")], false),
            (&[cached("public"), ("vary", "accept-encoding, Cookie")], false),
            (&[cached("public"), ("vary", "*")], false),
        ] {
            assert_eq!(is_for_all(&read(fields)), expected, "{fields:?}");
        }
    }

    fn judged(fields: &[(&'static str, &'static str)], allowed: Allowed) -> Option<Breach> {
        breach(&read(fields), "app.example", allowed)
    }

    fn read(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            headers.append(HeaderName::from_static(name), value);
        }
        headers
    }
}
