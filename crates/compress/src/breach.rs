//! The BREACH rule: where an attacker's page may have made the request, and the response may hold
//! a secret beside what that page wrote, length must not depend on content. Must not know codings.

use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE, HOST, HeaderName, ORIGIN, REFERER};

/// Why a response must not be compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Breach {
    /// Credentials, and `Sec-Fetch-Site` says that another site made the request, or another
    /// origin of the same site.
    OtherOrigin,
    /// Credentials, and `Origin` or `Referer` names another origin.
    ForeignReferer,
    /// Cookies, and nothing that says who made the request.
    UnknownOrigin,
}

/// `host` is the authority that the request was made to, as in Host or `:authority`. The scheme
/// is https: an http page's origin is another origin.
#[must_use]
pub fn breach(headers: &HeaderMap, host: &str) -> Option<Breach> {
    let cookies = headers.contains_key(COOKIE);
    if !cookies && !headers.contains_key(AUTHORIZATION) {
        return None;
    }
    let mut sites = headers.get_all(&SEC_FETCH_SITE).iter();
    if let Some(site) = sites.next() {
        // `none` is a person's own doing: an address typed, a bookmark. A word that is not known
        // here, or two of them, tells nothing good.
        let own = matches!(site.as_bytes(), b"same-origin" | b"none") && sites.next().is_none();
        return (!own).then_some(Breach::OtherOrigin);
    }
    match named_origin(headers) {
        Named::Nothing => cookies.then_some(Breach::UnknownOrigin),
        Named::Unreadable => Some(Breach::ForeignReferer),
        Named::Authority(authority) => {
            (!same_authority(authority, host)).then_some(Breach::ForeignReferer)
        }
    }
}

enum Named<'a> {
    Nothing,
    /// More than one, `null`, another scheme than https.
    Unreadable,
    Authority(&'a str),
}

/// Origin before Referer: the one cannot be left out of a cross-origin request by its page.
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

/// Compared without case and without the default port.
pub(crate) fn same_authority(a: &str, b: &str) -> bool {
    let bare = |authority: &str| {
        let lower = authority.to_ascii_lowercase();
        lower.strip_suffix(":443").map(str::to_owned).unwrap_or(lower)
    };
    !a.is_empty() && bare(a) == bare(b)
}

/// The authority that a request was made to: of its target, else of its one Host.
#[must_use]
pub fn authority<'a>(uri: &'a http::Uri, headers: &'a HeaderMap) -> &'a str {
    let of_host = || headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    uri.authority().map_or_else(of_host, http::uri::Authority::as_str)
}

pub(crate) const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_rule_as_a_table() {
        use Breach::{ForeignReferer, OtherOrigin, UnknownOrigin};
        let (cookie, authorization) = (("cookie", "s=1"), ("authorization", "Basic x"));
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
            (&[cookie], Some(UnknownOrigin)),
            (&[authorization], None),
            (&[cookie, authorization], Some(UnknownOrigin)),
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
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(HeaderName::from_static(name), value.parse().unwrap());
            }
            assert_eq!(breach(&headers, "app.example"), found, "{fields:?}");
        }
    }
}
