//! Requests of clients without TLS to an upstream with it. The client's URLs begin with
//! `http://` and name this port. The upstream's begin with `https://` and name the upstream. Fields
//! that have whole URLs are translated, both ways.
//!
//! A web page can send requests to a port of its reader's machine. It may say the page's own name,
//! for an attacker can have that name lead to 127.0.0.1 (DNS rebinding), so only hosts that cannot
//! be an attacker's are served. A request is refused, too, if the browser says that a page of
//! another site has made it.

use bytes::Bytes;
use eyelet_config::{Originate, is_loopback_host};
use eyelet_resting::origin::RestingOrigin;
use eyelet_telemetry::reason::Reason;
use http::header::{
    CONTENT_LOCATION, HeaderMap, HeaderName, HeaderValue, LOCATION, ORIGIN, REFERER,
};
use http::uri::Authority;
use http::{Method, StatusCode, request, response};

use super::page::text_page;
use eyelet_http1::head::Length;

/// Fields of a request with one URL. WebDAV has the second (RFC 4918 section 10.3).
const OF_REQUEST: [HeaderName; 3] = [REFERER, HeaderName::from_static("destination"), ORIGIN];
/// WebDAV's conditions name resources in angle brackets (RFC 4918 section 10.4).
const IF: HeaderName = HeaderName::from_static("if");
/// Fields of a response with one URL.
const OF_RESPONSE: [HeaderName; 2] = [LOCATION, CONTENT_LOCATION];
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The client's and the upstream's name for the same origin.
pub struct Translation<'a> {
    /// By the authority of the request.
    client: Origin<'a>,
    upstream: Origin<'a>,
}

/// The beginning of a URL.
struct Origin<'a> {
    scheme: &'static str,
    authority: &'a str,
    /// The port that such a URL may leave out.
    port: &'static str,
}

/// Checks a request, and turns its URLs into the upstream's.
///
/// # Errors
/// A web page of another site has sent it.
pub fn begin<'a>(
    originate: &'a Originate,
    asked: &'a Authority,
    request: &mut request::Parts,
) -> Result<Translation<'a>, Reason> {
    if is_of_other_site(originate, &request.headers) {
        return Err(Reason::Misdirected("a page of another site".into()));
    }
    let translation = Translation::between(asked.as_str(), &originate.authority);
    translation.to_upstream(&mut request.headers);
    Ok(translation)
}

/// Turns the URLs of a response into the client's.
pub fn to_client(translation: Option<&Translation<'_>>, headers: &mut HeaderMap) {
    let Some(translation) = translation else { return };
    let (from, to) = (&translation.upstream, &translation.client);
    for (_, value) in headers.iter_mut().filter(|(name, _)| OF_RESPONSE.contains(name)) {
        replace(value, |url| translate(url, from, to));
    }
}

/// True if a request for this host is served: no page of an attacker can have it as its own.
pub fn is_own(originate: &Originate, asked: &Authority) -> bool {
    let host = asked.host();
    let upstream = originate.authority.parse::<Authority>();
    is_loopback_host(host)
        || upstream.is_ok_and(|upstream| upstream.host().eq_ignore_ascii_case(host))
        || is_listed(originate, host)
}

fn is_listed(originate: &Originate, host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let bare = bare.strip_suffix('.').unwrap_or(bare);
    originate.hosts.iter().any(|listed| listed.eq_ignore_ascii_case(bare))
}

/// True if a browser says so, by fetch metadata or by an origin that is not served here.
fn is_of_other_site(originate: &Originate, headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    let is_foreign = |origin: &HeaderValue| {
        let authority = origin.to_str().ok().and_then(|text| text.strip_prefix("http://"));
        let authority = authority.and_then(|text| text.parse::<Authority>().ok());
        authority.is_none_or(|authority| !is_own(originate, &authority))
    };
    sites.any(|site| site.as_bytes() == b"cross-site")
        || headers.get_all(ORIGIN).iter().any(is_foreign)
}

impl<'a> Translation<'a> {
    /// The translation of the response to a request that rested.
    pub fn of_rested(origin: &'a RestingOrigin) -> Self {
        Self::between(&origin.client, &origin.upstream)
    }

    fn between(client: &'a str, upstream: &'a str) -> Self {
        Self {
            client: Origin { scheme: "http://", authority: client, port: ":80" },
            upstream: Origin { scheme: "https://", authority: upstream, port: ":443" },
        }
    }

    /// True if its request may rest.
    pub fn may_rest(&self) -> bool {
        [&self.client, &self.upstream].iter().all(|origin| RestingOrigin::takes(origin.authority))
    }

    /// Returns what rests of it.
    pub fn rest(&self) -> RestingOrigin {
        let [client, upstream] = [&self.client, &self.upstream].map(|of| of.authority.into());
        RestingOrigin { client, upstream }
    }
}

impl Translation<'_> {
    /// Host and port of the upstream, for its Host field.
    pub fn authority(&self) -> &str {
        self.upstream.authority
    }

    /// A field may have several lines: each is translated.
    fn to_upstream(&self, headers: &mut HeaderMap) {
        let (from, to) = (&self.client, &self.upstream);
        for (name, value) in headers.iter_mut() {
            if OF_REQUEST.contains(name) {
                replace(value, |url| translate(url, from, to));
            } else if *name == IF {
                replace(value, |conditions| translate_bracketed(conditions, from, to));
            }
        }
    }
}

impl Origin<'_> {
    /// Returns what follows the origin in a URL, if the URL has this origin. A port that the scheme
    /// implies may be there or not.
    fn rest_of<'a>(&self, url: &'a str) -> Option<&'a str> {
        let (scheme, rest) = url.split_at_checked(self.scheme.len())?;
        let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let bare = |authority| str::strip_suffix(authority, self.port).unwrap_or(authority);
        let is_same = scheme.eq_ignore_ascii_case(self.scheme)
            && bare(authority).eq_ignore_ascii_case(bare(self.authority));
        is_same.then_some(rest)
    }
}

/// Replaces a value by what is made of it, if something is.
fn replace(value: &mut HeaderValue, made: impl FnOnce(&str) -> Option<String>) {
    let made = value.to_str().ok().and_then(made);
    if let Some(made) = made.and_then(|made| HeaderValue::try_from(made).ok()) {
        *value = made;
    }
}

/// A URL with another origin. `None`: it does not have the first one, and stays.
fn translate(url: &str, from: &Origin<'_>, to: &Origin<'_>) -> Option<String> {
    Some(format!("{}{}{}", to.scheme, to.authority, from.rest_of(url)?))
}

/// Translates each URL in angle brackets.
fn translate_bracketed(text: &str, from: &Origin<'_>, to: &Origin<'_>) -> Option<String> {
    let mut parts = text.split('<');
    let mut translated = parts.next()?.to_owned();
    for part in parts {
        let (url, rest) = part.split_at(part.find('>').unwrap_or(0));
        translated.push('<');
        translated.push_str(&translate(url, from, to).unwrap_or_else(|| url.to_owned()));
        translated.push_str(rest);
    }
    Some(translated)
}

/// The page for a request that has no response of an upstream. Its reader runs the client, or
/// Eyelet itself, so it says why.
pub fn page(
    originate: &Originate,
    (status, method): (StatusCode, &Method),
    reason: &Reason,
) -> (response::Parts, Length, Bytes) {
    let phrase = status.canonical_reason().unwrap_or("Error");
    let text = match reason {
        Reason::Misdirected(what) => format!(
            "This port serves requests for localhost and loopback addresses, not for {what}.\n\
             `hosts` of its originate rule adds names. Web pages of other sites are never served."
        ),
        other => format!("https://{}: {other}", originate.authority),
    };
    text_page(status, method, format!("{} {phrase}\n\n{text}\n", status.as_u16()).into())
}

#[cfg(test)]
mod tests;
