//! Changes the fields of messages that are passed on: removes hop-by-hop fields (RFC 9110 7.6.1),
//! and describes the client to the upstream (RFC 7239).

use std::cell::OnceCell;
use std::fmt;
use std::io::Write;
use std::net::IpAddr;
use std::ops::Range;
use std::rc::Rc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use eyelet_compress::fields::{lists, number};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode, Version, request, response};
use memchr::memchr;
use zeroize::Zeroizing;

use super::fault::RequestFault;
use super::framing::{self, is_framing_alias, speaks_of_others, write_fields};
use super::head::{FIELDS_MAX, FieldRole, FieldRoles, Length};
use super::head_bytes::request_bytes;
use super::spare_heads::spare_head;

/// The description of the client for the upstream. The values are parts of one text.
pub struct Requester {
    via: &'static str,
    text: Bytes,
    client: Range<usize>,
    host: Range<usize>,
    /// The certificate of the client, as a field's value.
    certificate: Option<HeaderValue>,
    forwarded: ForwardedFields,
}

/// The fields with this description. They are the same for each request of a client to a host.
pub type ForwardedFields = Rc<Forwarded>;

/// Fields about a client.
#[derive(Default)]
pub struct Forwarded {
    /// Their names and values.
    pub fields: Vec<(HeaderName, HeaderValue)>,
    /// Their lines, once they were written. `None`: they are for one request, or long.
    lines: Option<OnceCell<BytesMut>>,
}

impl Forwarded {
    /// Fields for one request.
    fn once(fields: Vec<(HeaderName, HeaderValue)>) -> Self {
        Self { fields, lines: None }
    }

    fn write(&self, out: &mut BytesMut) {
        let fields = || self.fields.iter().map(|(name, value)| (name, value));
        let Some(lines) = &self.lines else { return write_fields(fields(), out) };
        out.extend_from_slice(lines.get_or_init(|| {
            let mut lines = BytesMut::new();
            write_fields(fields(), &mut lines);
            lines
        }));
    }
}

impl Requester {
    /// A client at this address, with requests for this authority in this version. `certificate` is
    /// the client's in DER, if the upstream is told.
    pub fn new(client: IpAddr, host: &str, version: Version, certificate: Option<&[u8]>) -> Self {
        let mut text = Vec::with_capacity(64 + host.len());
        text.extend_from_slice(b"for=");
        let client = match client {
            IpAddr::V4(ip) => write_part(&mut text, format_args!("{ip}")),
            IpAddr::V6(ip) => {
                // RFC 7239 section 6: an IPv6 address needs brackets, and therefore quotes.
                text.extend_from_slice(b"\"[");
                let client = write_part(&mut text, format_args!("{ip}"));
                text.extend_from_slice(b"]\"");
                client
            }
        };
        text.extend_from_slice(b";host=\"");
        let host = write_part(&mut text, format_args!("{host}"));
        text.extend_from_slice(b"\";proto=https");
        let (via, forwarded) = (via(version), Rc::default());
        let (text, certificate) = (text.into(), certificate.and_then(byte_sequence));
        let mut requester = Self { via, text, client, host, certificate, forwarded };
        let fields = requester.forwarded_with(&mut HeaderMap::new());
        // A certificate has up to 64 KiB.
        let lines = requester.certificate.is_none().then(OnceCell::new);
        requester.forwarded = Forwarded { fields, lines }.into();
        requester
    }

    /// True if it is for this authority and this version.
    pub fn asks_for(&self, host: &str, version: Version) -> bool {
        self.text[self.host.clone()] == *host.as_bytes() && self.via == via(version)
    }

    /// Removes a request's fields about the client that are not trusted. Returns the fields for the
    /// upstream.
    pub fn identify(&self, headers: &mut HeaderMap, trusted: bool) -> ForwardedFields {
        // With a certificate of its own, also a trusted client does not speak of others'.
        let is_replaced = |name: &HeaderName| {
            self.certificate.is_some() && [&CLIENT_CERT, &CLIENT_CERT_CHAIN].contains(&name)
        };
        let is_spoken = |name: &HeaderName| speaks_of_others(name, trusted) || is_replaced(name);
        // Most requests have none.
        if headers.keys().any(is_spoken) {
            let spoken = headers.keys().filter(|name| is_spoken(name)).cloned();
            for name in spoken.collect::<Vec<HeaderName>>() {
                headers.remove(name);
            }
        }
        match trusted {
            true => Forwarded::once(self.forwarded_with(headers)).into(),
            false => self.forwarded.clone(),
        }
    }

    fn forwarded_with(&self, headers: &mut HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
        let client = self.text.slice(self.client.clone());
        let mut forwarded = vec![(header::VIA, HeaderValue::from_static(self.via))];
        for (name, element) in [(header::FORWARDED, self.text.clone()), (X_FORWARDED_FOR, client)] {
            if let Some(list) = take_list(headers, &name, element) {
                forwarded.push((name, list));
            }
        }
        let host = self.text.slice(self.host.clone());
        if !headers.contains_key(&X_FORWARDED_HOST)
            && let Ok(host) = HeaderValue::from_maybe_shared(host)
        {
            forwarded.push((X_FORWARDED_HOST, host));
        }
        if !headers.contains_key(&X_FORWARDED_PROTO) {
            forwarded.push((X_FORWARDED_PROTO, HeaderValue::from_static("https")));
        }
        if let Some(certificate) = &self.certificate {
            forwarded.push((CLIENT_CERT, certificate.clone()));
        }
        forwarded
    }
}

/// Bytes as an item of a structured field (RFC 9651 section 3.3.5). RFC 9440 section 2.1 wants
/// certificates so. rustls reads no longer ones than 64 KiB.
fn byte_sequence(bytes: &[u8]) -> Option<HeaderValue> {
    HeaderValue::from_maybe_shared(Bytes::from(format!(":{}:", STANDARD.encode(bytes)))).ok()
}

/// The only field that a proxy adds for an upstream that its client chose (RFC 9110 7.6.3).
pub fn via_alone(version: Version) -> ForwardedFields {
    Forwarded::once(vec![(header::VIA, HeaderValue::from_static(via(version)))]).into()
}

fn via(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0 eyelet",
        Version::HTTP_2 => "2.0 eyelet",
        _ => "1.1 eyelet",
    }
}

const CLIENT_CERT: HeaderName = HeaderName::from_static("client-cert");
const CLIENT_CERT_CHAIN: HeaderName = HeaderName::from_static("client-cert-chain");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
/// The upstream's field on how long it keeps a connection.
pub const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// An end-to-end field, but always removed: CGI turns it into `HTTP_PROXY`, and libraries in the
/// application then use that proxy (httpoxy, CVE-2016-5385).
const PROXY: HeaderName = HeaderName::from_static("proxy");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// A static: a constant would be created for each message.
static HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HTTP2_SETTINGS,
    KEEP_ALIVE,
    PROXY,
    PROXY_CONNECTION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The protocol that a request may switch to, if it asks for one. It must be HTTP/1.1 without a
/// body: readers differ on a body before a switch.
pub fn upgrade(request: &request::Parts, length: Length) -> Option<HeaderValue> {
    let protocol = request.headers.get(header::UPGRADE)?;
    let asked = request.version == Version::HTTP_11
        && matches!(length, Length::Empty | Length::Known(0))
        && lists(&request.headers, &header::CONNECTION, "upgrade")
        // RFC 7540's h2c would give the client a second protocol that our reader does not check.
        && !lists(&request.headers, &header::UPGRADE, "h2c");
    asked.then(|| protocol.clone())
}

/// The protocol that a 101 switches to, if the request asked for it (RFC 9110 7.8).
pub fn chosen(asked: &HeaderValue, response: &response::Parts) -> Option<HeaderValue> {
    let mut said = response.headers.get_all(header::UPGRADE).iter();
    let (Some(chosen), None) = (said.next(), said.next()) else { return None };
    let asked = asked.to_str().ok()?;
    let name = chosen.to_str().ok()?.trim();
    let known = asked.split(',').any(|one| one.trim().eq_ignore_ascii_case(name));
    known.then(|| chosen.clone())
}

/// True if an OPTIONS request ends here, because it may go no further (RFC 9110 7.6.2). If it may,
/// its hop limit is reduced by one.
pub fn ends_here(request: &mut request::Parts) -> bool {
    if request.method != Method::OPTIONS {
        return false;
    }
    let hops = request.headers.get(header::MAX_FORWARDS);
    match hops.and_then(|hops| number(hops.as_bytes())) {
        None => false,
        Some(0) => true,
        Some(hops) => {
            request.headers.insert(header::MAX_FORWARDS, (hops - 1).into());
            false
        }
    }
}

/// Turns a client's request with such fields into the upstream's.
pub fn to_upstream(
    request: &mut request::Parts,
    length: Length,
    upgrade: Option<HeaderValue>,
    roles: FieldRoles,
) {
    let headers = &mut request.headers;
    if roles.may_have_hop_by_hop() {
        drop_hop_by_hop(headers);
    }
    if roles.may_have(FieldRole::Host) {
        headers.remove(header::HOST);
    }
    if roles.may_have(FieldRole::ContentLength) {
        headers.remove(header::CONTENT_LENGTH);
    }
    if request.version == Version::HTTP_10 {
        // RFC 9110 10.1.1: an HTTP/1.0 client does not wait for 100.
        headers.remove(header::EXPECT);
    }
    if roles.may_have(FieldRole::Cookie) {
        join_cookies(headers);
    }
    match length {
        // RFC 9110 8.6: a request whose method usually has a body states that it has none. Some
        // servers require it.
        Length::Empty if matches!(request.method, Method::POST | Method::PUT | Method::PATCH) => {
            headers.insert(header::CONTENT_LENGTH, 0.into());
        }
        Length::Empty | Length::UntilClose => {}
        Length::Known(bytes) => _ = headers.insert(header::CONTENT_LENGTH, bytes.into()),
        Length::Chunked => {
            headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
    }
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
}

/// Appends a part and returns its range.
fn write_part(out: &mut Vec<u8>, part: fmt::Arguments<'_>) -> Range<usize> {
    let from = out.len();
    // Writing to a vector cannot fail.
    let _ = out.write_fmt(part);
    from..out.len()
}

/// Takes a list field out of `headers` and returns it with one more element.
fn take_list(headers: &mut HeaderMap, name: &HeaderName, element: Bytes) -> Option<HeaderValue> {
    let mut before = headers.get_all(name).iter().filter(|value| value.to_str().is_ok());
    let list = match before.next() {
        None => HeaderValue::from_maybe_shared(element),
        Some(first) => {
            let before = [first].into_iter().chain(before).map(HeaderValue::as_bytes);
            let before = before.filter(|value| !value.is_empty());
            let all: Vec<&[u8]> = before.chain([&element[..]]).collect();
            HeaderValue::from_bytes(&all.join(&b", "[..]))
        }
    };
    let list = list.ok()?;
    headers.remove(name);
    Some(list)
}

/// HTTP/2 may split a cookie into several fields; HTTP/1.1 has one (RFC 9113 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    const SEPARATOR: &[u8] = b"; ";
    let mut values = headers.get_all(header::COOKIE).iter();
    if values.next().is_none() || values.next().is_none() {
        return;
    }
    let values: Vec<&HeaderValue> = headers.get_all(header::COOKIE).iter().collect();
    // One of them may have a secret: it stays one that is never indexed, and its memory is wiped
    // when the last clone of the field is dropped. A text that grows would leave copies.
    let is_sensitive = values.iter().any(|value| value.is_sensitive());
    let bytes = values.iter().map(|value| SEPARATOR.len() + value.len()).sum();
    let mut joined = Zeroizing::new(Vec::with_capacity(bytes));
    for (nth, value) in values.into_iter().enumerate() {
        if nth > 0 {
            joined.extend_from_slice(SEPARATOR);
        }
        joined.extend_from_slice(value.as_bytes());
    }
    if let Ok(mut joined) = HeaderValue::from_maybe_shared(Bytes::from_owner(joined)) {
        joined.set_sensitive(is_sensitive);
        headers.insert(header::COOKIE, joined);
    }
}

/// Removes from a response with such fields what is not for the client: hop-by-hop fields, and a
/// length where no body follows.
pub fn to_client(response: &mut response::Parts, roles: FieldRoles) {
    if roles.may_have_hop_by_hop() {
        drop_from_response(response);
    }
    // RFC 9110 8.6: these responses have no Content-Length.
    if response.status.is_informational() || response.status == StatusCode::NO_CONTENT {
        response.headers.remove(header::CONTENT_LENGTH);
    }
}

/// Removes hop-by-hop fields from a response.
fn drop_from_response(response: &mut response::Parts) {
    // RFC 9110 15.5.22: a 426 names the protocols that it requires.
    let headers = &mut response.headers;
    let wanted: Vec<HeaderValue> = match response.status {
        StatusCode::UPGRADE_REQUIRED => headers.get_all(header::UPGRADE).iter().cloned().collect(),
        _ => Vec::new(),
    };
    drop_hop_by_hop(headers);
    for wanted in wanted {
        headers.append(header::UPGRADE, wanted);
    }
}

/// Removes hop-by-hop fields. Most messages have none of them or `Connection` alone, and looking
/// each up would hash each.
fn drop_hop_by_hop(headers: &mut HeaderMap) {
    let of_it = |name: &&HeaderName| is_hop_by_hop(name);
    let Some(first) = headers.keys().find(of_it).cloned() else { return };
    let has_more = headers.keys().filter(of_it).nth(1).is_some();
    if headers.contains_key(header::CONNECTION) {
        let values = headers.get_all(header::CONNECTION).iter();
        let named: Vec<HeaderName> = values
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
            .map(<[u8]>::trim_ascii)
            // `close` is no field, and hop-by-hop fields are removed in any case.
            .filter(|name| !name.eq_ignore_ascii_case(b"close") && !framing::is_hop_by_hop(name))
            .filter_map(|name| HeaderName::from_bytes(name).ok())
            // Content-Length frames the message, so it must stay.
            .filter(|name| *name != header::CONTENT_LENGTH)
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    if !has_more {
        headers.remove(first);
        return;
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Checks of a request's fields that `h2` does not make. A name that is no token is
/// malformed, and so is a value that begins or ends with white space (RFC 9113 8.2.1). HTTP/1.1
/// would read them differently.
pub fn check_two(headers: &HeaderMap) -> Result<(), RequestFault> {
    // A split cookie becomes one field (RFC 9113 8.2.3).
    if headers.len() > FIELDS_MAX {
        let pieces = headers.get_all(header::COOKIE).iter().count();
        if headers.len() - pieces.saturating_sub(1) > FIELDS_MAX {
            return Err(RequestFault::TooMany);
        }
    }
    for (name, value) in headers {
        let name = name.as_str().as_bytes();
        // `"` is the only non-token character that the type accepts.
        if memchr(b'"', name).is_some() || is_framing_alias(name) || !is_trimmed(value) {
            return Err(RequestFault::Field);
        }
    }
    Ok(())
}

/// False if it begins or ends with white space. In HTTP/2 that is malformed (RFC 9113 8.2.1), and
/// HTTP/1.1 would read a different value.
fn is_trimmed(value: &HeaderValue) -> bool {
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let value = value.as_bytes();
    !blank(value.first()) && !blank(value.last())
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    framing::is_hop_by_hop(name.as_str().as_bytes())
}

/// Writes a request's head for the upstream. If it `has_secret`, its buffer has room for all of it
/// at once: one that grows leaves copies.
pub fn write_request(
    request: &request::Parts,
    host: &str,
    forwarded: &ForwardedFields,
    has_secret: bool,
) -> BytesMut {
    let mut out = spare_head();
    if has_secret {
        // Beside these texts the line, `host` and the last line end have fewer than 32 bytes.
        let line =
            |(name, value): &(HeaderName, HeaderValue)| name.as_str().len() + value.len() + 4;
        let ours: usize = forwarded.fields.iter().map(line).sum();
        let fields = ours + request_bytes(&request.headers, &request.uri);
        out.reserve(request.method.as_str().len() + host.len() + fields + 32);
    }
    let capacity = out.capacity();
    out.extend_from_slice(request.method.as_str().as_bytes());
    out.extend_from_slice(b" ");
    let path = request.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\nhost: ");
    out.extend_from_slice(host.as_bytes());
    out.extend_from_slice(b"\r\n");
    write_fields(&request.headers, &mut out);
    forwarded.write(&mut out);
    out.extend_from_slice(b"\r\n");
    debug_assert!(!has_secret || out.capacity() == capacity, "it grew");
    out
}

#[cfg(test)]
mod tests;
