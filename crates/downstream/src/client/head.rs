//! Heads between HTTP/2 and the types of the `http` crate.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use eyelet_h2::hpack::HeaderField;
use eyelet_h2::{FieldSpan, MessageHead};
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::{Authority, Parts, PathAndQuery, Scheme};
use http::{Method, Request, Uri, Version, request, response};

use eyelet_http1::fault::RequestFault;
use eyelet_http1::fields;
use eyelet_http1::head::{
    Length, METHOD_BYTES_MAX, TARGET_BYTES_MAX, read_authority, read_shared_authority,
};
use eyelet_multiplex::fields::{header_fields, map_of, share, slice};

/// The port of an authority without one (RFC 9110 4.2.2).
const HTTPS_PORT: u16 = 443;

/// The extension that marks an extended CONNECT for a WebSocket.
#[derive(Clone, Copy)]
struct WebSocketAsked;

/// True if a CONNECT asks for a WebSocket (RFC 8441 section 5).
pub fn asks_for_websocket(request: &request::Parts) -> bool {
    request.method == Method::CONNECT && request.extensions.get::<WebSocketAsked>().is_some()
}

/// Turns an extended CONNECT into the GET that an HTTP/1.1 upstream knows (RFC 6455 4.1). Returns
/// the protocol to ask for. `None`: it asks for no WebSocket.
pub fn to_websocket_get(request: &mut request::Parts) -> Option<HeaderValue> {
    if !asks_for_websocket(request) {
        return None;
    }
    let mut nonce = [0; 16];
    aws_lc_rs::rand::fill(&mut nonce).ok()?;
    let key = STANDARD.encode(nonce);
    request.method = Method::GET;
    request.headers.insert(header::SEC_WEBSOCKET_KEY, HeaderValue::from_str(&key).ok()?);
    Some(HeaderValue::from_static("websocket"))
}

/// A request as it is served.
pub struct AskedRequest {
    /// Its head. A faulty one has only what could be read.
    pub parts: request::Parts,
    /// The end of its body.
    pub length: Length,
    /// The reason why it is refused, if it is.
    pub fault: Option<RequestFault>,
}

/// Turns a head into a request, which takes its texts. `is_last`: it has no body.
pub fn read_request(head: &mut MessageHead, is_last: bool) -> AskedRequest {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.version = Version::HTTP_2;
    let length = match head.length {
        _ if is_last => Length::Empty,
        Some(bytes) => Length::Known(bytes),
        None => Length::Chunked,
    };
    let fault = fill(&mut parts, head).err();
    // The messages of a WebSocket are no body of the request.
    let length = if asks_for_websocket(&parts) { Length::Empty } else { length };
    AskedRequest { parts, length, fault }
}

fn fill(parts: &mut request::Parts, head: &mut MessageHead) -> Result<(), RequestFault> {
    // The access line has the beginning of a method that is refused.
    let known = head.method().get(..METHOD_BYTES_MAX).unwrap_or(head.method());
    parts.method = Method::from_bytes(known).unwrap_or_default();
    let is_method_too_long = known.len() < head.method().len();
    if head.protocol() == Some(b"websocket") {
        parts.extensions.insert(WebSocketAsked);
    }
    let is_web = |scheme: &[u8]| {
        [&b"https"[..], b"http"].iter().any(|known| scheme.eq_ignore_ascii_case(known))
    };
    let has_scheme = head.scheme().is_some_and(is_web);
    let (path, authority) = (head.path_span().unwrap_or_default(), head.authority_span());
    let is_too_long = path.len as usize > TARGET_BYTES_MAX;
    let is_too_large = head.is_too_large;
    // The target, the authority and the values of fields share one memory.
    let text = share(std::mem::take(&mut head.fields.text));
    let target = PathAndQuery::from_maybe_shared(slice(&text, path));
    let authority = authority.map(|authority| slice(&text, authority));
    let fields = (&text, &head.fields.fields[..]);
    let read = || read_head(parts, fields, authority);
    let authority = match if is_too_large { Err(RequestFault::TooLong) } else { read() } {
        Ok(_) if is_method_too_long => Err(RequestFault::Line),
        Ok(_) if !has_scheme => Err(RequestFault::Target),
        Ok(_) if is_too_long => Err(RequestFault::TargetTooLong),
        authority => authority,
    };
    match (authority, target) {
        (Ok(authority), Ok(target)) => {
            let mut uri = Parts::default();
            uri.path_and_query = Some(target);
            (uri.scheme, uri.authority) = (Some(Scheme::HTTPS), Some(authority));
            parts.uri = Uri::from_parts(uri).map_err(|_| RequestFault::Target)?;
            Ok(())
        }
        (Ok(_), Err(_)) => Err(RequestFault::Target),
        (Err(fault), target) => {
            // The access line has the path also of a request that is refused.
            parts.uri = target.map(Uri::from).unwrap_or_default();
            Err(fault)
        }
    }
}

/// Reads a head's fields. Returns the authority.
fn read_head(
    parts: &mut request::Parts,
    (text, fields): (&Bytes, &[FieldSpan]),
    authority: Option<Bytes>,
) -> Result<Authority, RequestFault> {
    if parts.method == Method::CONNECT && !asks_for_websocket(parts) {
        return Err(RequestFault::Connect);
    }
    let authority = authority.map(read_shared_authority);
    parts.headers = map_of(text, fields).ok_or(RequestFault::TooMany)?;
    fields::check_two(&parts.headers)?;
    authority_of(authority.transpose()?, &parts.headers)
}

/// The authority of a request: that of its target, or else Host. If both exist they must agree
/// (RFC 9113 8.3.1).
fn authority_of(given: Option<Authority>, headers: &HeaderMap) -> Result<Authority, RequestFault> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (host, None) => host.map(|host| read_authority(host.as_bytes())).transpose()?,
        _ => return Err(RequestFault::Host),
    };
    match (given, host) {
        (Some(given), Some(host)) if !is_same(&given, &host) => Err(RequestFault::Host),
        (Some(authority), _) | (None, Some(authority)) => Ok(authority),
        (None, None) => Err(RequestFault::Host),
    }
}

/// True if two authorities are equal: every client here uses https (RFC 9110 4.2.2).
fn is_same(one: &Authority, other: &Authority) -> bool {
    let port = |authority: &Authority| authority.port_u16().unwrap_or(HTTPS_PORT);
    one.host().eq_ignore_ascii_case(other.host()) && port(one) == port(other)
}

/// The fields of a response's head.
pub fn response_fields(head: &response::Parts) -> impl Iterator<Item = HeaderField<'_>> {
    let status = HeaderField::new(b":status", head.status.as_str().as_bytes());
    std::iter::once(status).chain(header_fields(&head.headers))
}
