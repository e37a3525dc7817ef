//! Heads between the types of HTTP and the fields of HTTP/2: requests to upstreams, and their
//! responses.

use eyelet_h2::hpack::HeaderField;
use eyelet_h2::{HeaderFields, MessageHead};
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, StatusCode, Version, response};

use super::request::{CodedBodies, UpstreamRequest};
use eyelet_http1::fault::ResponseFault;
use eyelet_http1::head::{Length, RESPONSE_FIELDS_MAX, content_length, has_no_body};
use eyelet_multiplex::fields::{self, field};

/// A request's head, for an upstream that has `said` this of coded bodies. The scheme is that of
/// the connection to the upstream; the client's is in X-Forwarded-Proto.
pub fn request_fields<'a>(
    upstream_request: &'a UpstreamRequest<'_>,
    said: CodedBodies,
    scheme: &'a str,
) -> impl Iterator<Item = HeaderField<'a>> {
    let UpstreamRequest { host, forwarded, trailers, .. } = upstream_request;
    let parts = upstream_request.parts_for(said);
    let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let pseudo = [
        (":method", parts.method.as_str()),
        (":scheme", scheme),
        (":authority", host),
        (":path", path),
    ];
    let pseudo = pseudo.map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
    let fields = parts.headers.iter().filter(|(name, _)| *name != header::TRANSFER_ENCODING);
    let forwarded = forwarded.fields.iter().map(|(name, value)| field((name, value)));
    let te = trailers.then(|| HeaderField::new(b"te", b"trailers"));
    pseudo.into_iter().chain(fields.map(field)).chain(forwarded).chain(te)
}

pub fn response_parts(head: MessageHead) -> Result<response::Parts, ResponseFault> {
    if head.fields.fields.len() > RESPONSE_FIELDS_MAX {
        return Err(ResponseFault::TooMany);
    }
    let (mut parts, ()) = http::Response::new(()).into_parts();
    parts.status = StatusCode::from_u16(head.status).map_err(|_| ResponseFault::Line)?;
    parts.version = Version::HTTP_2;
    parts.headers = header_map(head.fields)?;
    Ok(parts)
}

/// Fields as a map. The values share the memory of the text.
pub fn header_map(fields: HeaderFields) -> Result<HeaderMap, ResponseFault> {
    fields::map(fields).ok_or(ResponseFault::Field)
}

/// The length of a response's body. HTTP/2's state checks the data against it. `is_last`: the
/// response has ended with its head.
pub fn length(
    head: &mut response::Parts,
    is_last: bool,
    method: &Method,
) -> Result<Length, ResponseFault> {
    let known = content_length(&head.headers).map_err(|_| ResponseFault::Length)?;
    if *method == Method::HEAD || has_no_body(head.status) {
        return Ok(Length::Empty);
    }
    match known {
        None if is_last => {
            // HTTP/1.1 has no other way to say that there is no body.
            head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
            Ok(Length::Empty)
        }
        _ if is_last => Ok(Length::Empty),
        Some(known) => Ok(Length::Known(known)),
        None => Ok(Length::Chunked),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use http::Request;

    use super::*;

    #[test]
    fn a_field_with_a_secret_is_never_indexed() {
        let mut secret = HeaderValue::from_static("secret");
        secret.set_sensitive(true);
        let request = Request::get("https://a.test/").header("x-vendor-key", secret);
        let (parts, ()) = request.header("x-other", "open").body(()).unwrap().into_parts();
        let forwarded = std::rc::Rc::default();
        let asked = UpstreamRequest::without_body(&parts, "a.test", &forwarded);
        let asked = UpstreamRequest { carries_secret: true, ..asked };
        let fields = request_fields(&asked, CodedBodies::Unsaid, "https");
        let never: Vec<&[u8]> =
            fields.filter(|field| field.sensitive).map(|field| field.name).collect();
        assert_eq!(never, [b"x-vendor-key"]);
    }
}
