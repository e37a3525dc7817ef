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
use eyelet_telemetry::reason::Reason;
use http::header::{
    CONTENT_LOCATION, HeaderMap, HeaderName, HeaderValue, LOCATION, ORIGIN, REFERER,
};
use http::uri::Authority;
use http::{Method, StatusCode, request, response};

use super::head::Length;
use super::page::text_page;

/// Fields of a request with one URL. WebDAV has the second (RFC 4918 section 10.3).
const OF_REQUEST: [HeaderName; 3] = [REFERER, HeaderName::from_static("destination"), ORIGIN];
/// WebDAV's conditions name resources in angle brackets (RFC 4918 section 10.4).
const IF: HeaderName = HeaderName::from_static("if");
/// Fields of a response with one URL.
const OF_RESPONSE: [HeaderName; 2] = [LOCATION, CONTENT_LOCATION];
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The client's and the upstream's name for the same origin.
pub struct Translation<'a> {
    /// `http://` and the authority of the request.
    client: String,
    /// `https://` and the upstream's authority.
    upstream: String,
    authority: &'a str,
}

/// Checks a request, and turns its URLs into the upstream's. `None`: the rule does not begin TLS.
///
/// # Errors
/// A web page of another site has sent it.
pub fn begin<'a>(
    originate: Option<&'a Originate>,
    asked: &Authority,
    request: &mut request::Parts,
) -> Result<Option<Translation<'a>>, Reason> {
    let Some(originate) = originate else { return Ok(None) };
    if is_of_other_site(originate, &request.headers) {
        return Err(Reason::Misdirected("a page of another site".into()));
    }
    let translation = Translation {
        client: format!("http://{asked}"),
        upstream: format!("https://{}", originate.authority),
        authority: &originate.authority,
    };
    translation.to_upstream(&mut request.headers);
    Ok(Some(translation))
}

/// Turns the URLs of a response into the client's.
pub fn to_client(translation: Option<&Translation<'_>>, headers: &mut HeaderMap) {
    let Some(translation) = translation else { return };
    for name in &OF_RESPONSE {
        translate(headers, name, (&translation.upstream, &translation.client));
    }
}

/// Whether a request for this host is served: no page of an attacker can have it as its own.
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

/// Whether a browser says so, by fetch metadata or by an origin that is not served here.
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

impl Translation<'_> {
    /// Host and port of the upstream, for its Host field.
    pub fn authority(&self) -> &str {
        self.authority
    }

    fn to_upstream(&self, headers: &mut HeaderMap) {
        for name in &OF_REQUEST {
            translate(headers, name, (&self.client, &self.upstream));
        }
        let Some(conditions) = headers.get(IF).and_then(|value| value.to_str().ok()) else {
            return;
        };
        let (from, to) = (format!("<{}/", self.client), format!("<{}/", self.upstream));
        if let Ok(translated) = HeaderValue::from_str(&conditions.replace(&from, &to)) {
            headers.insert(IF, translated);
        }
    }
}

/// Replaces the origin of the URL in a field. One of another origin stays.
fn translate(headers: &mut HeaderMap, name: &HeaderName, (from, to): (&str, &str)) {
    let Some(url) = headers.get(name).and_then(|value| value.to_str().ok()) else { return };
    let Some((origin, rest)) = url.split_at_checked(from.len()) else { return };
    if !origin.eq_ignore_ascii_case(from) || !(rest.is_empty() || rest.starts_with(['/', '?', '#']))
    {
        return;
    }
    if let Ok(translated) = HeaderValue::from_str(&format!("{to}{rest}")) {
        headers.insert(name, translated);
    }
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
