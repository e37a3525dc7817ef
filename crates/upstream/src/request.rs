//! A request to an upstream, and why it may get no response.

use eyelet_compress::{Coding, request as request_body};
use http::header::ACCEPT_ENCODING;
use http::{Method, StatusCode, request, response};

use eyelet_http1::fault::ResponseFault;
use eyelet_http1::fields::ForwardedFields;
use eyelet_http1::head::Length;
use eyelet_telemetry::reason::{Detail, Reason, Shed};

/// A request to an upstream.
#[derive(Clone, Copy)]
pub struct UpstreamRequest<'a> {
    /// Method, target and fields.
    pub parts: &'a request::Parts,
    /// The authority of the request.
    pub host: &'a str,
    /// The codings that its body may have on its way.
    pub body: BodyCodings<'a>,
    /// The fields about the client.
    pub forwarded: &'a ForwardedFields,
    /// The length of its body.
    pub length: Length,
    /// True if the client accepts trailers (RFC 9110 10.1.4).
    pub trailers: bool,
    /// True if it may be repeated if a kept connection turns out to be dead.
    pub again: bool,
    /// True if it needs HTTP/1.1: it asks for another protocol, or the upstream requires it.
    pub needs_http1: bool,
    /// True if a field has a secret: it stays in this process, and goes to the upstreams of its
    /// rule only.
    pub carries_secret: bool,
}

/// The response's head that is asked for.
#[derive(Clone, Copy)]
pub struct HeadAsked<'a> {
    /// The request's method.
    pub method: &'a Method,
    /// True if it may come as lines: none of its fields must be known, but for those that decide if
    /// it passes unchanged.
    pub may_be_lines: bool,
}

/// The codings that the body of a request may have on its way.
#[derive(Clone, Copy, Default)]
pub struct BodyCodings<'a> {
    /// The request with a coded body, for an upstream that accepts it.
    pub coded: Option<&'a request::Parts>,
    /// The coding from which the client's body is decoded. The request's fields are those of the
    /// decoded one.
    pub decoded_from: Option<Coding>,
}

impl<'a> UpstreamRequest<'a> {
    /// A request without a body, for either version of HTTP. It is not repeated.
    pub fn without_body(
        parts: &'a request::Parts,
        host: &'a str,
        forwarded: &'a ForwardedFields,
    ) -> Self {
        Self {
            parts,
            host,
            body: BodyCodings::default(),
            forwarded,
            length: Length::Empty,
            trailers: false,
            again: false,
            needs_http1: false,
            carries_secret: false,
        }
    }

    /// The request for a connection whose upstream says this.
    pub fn parts_for(&self, said: CodedBodies) -> &request::Parts {
        self.body.coded.filter(|_| said == CodedBodies::Accepted).unwrap_or(self.parts)
    }
}

/// The word of a connection's upstream about coded bodies. It is not remembered beyond the
/// connection: the next one may be of a server that does not decode, and stores what it gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CodedBodies {
    /// Nothing.
    #[default]
    Unsaid,
    /// Its last response accepts them.
    Accepted,
    /// It has refused one.
    Refused,
}

impl CodedBodies {
    /// Its state after another response. `was_coded` is whether its request had a coded body.
    pub fn after(self, response: &response::Parts, was_coded: bool) -> Self {
        let is_refusal = match response.status {
            // Without the field it refuses the type (RFC 7694 section 3).
            StatusCode::UNSUPPORTED_MEDIA_TYPE => response.headers.contains_key(ACCEPT_ENCODING),
            // A coded body has no known length.
            StatusCode::LENGTH_REQUIRED => true,
            _ => false,
        };
        let is_refusal = was_coded && is_refusal;
        match request_body::is_accepted(&response.headers) {
            _ if is_refusal || self == Self::Refused => Self::Refused,
            true => Self::Accepted,
            false => Self::Unsaid,
        }
    }
}

/// The reason why there is no response.
#[derive(Debug)]
pub enum NoAnswer {
    /// It sent a TLS alert before the first byte of a response. By TLS 1.3 a client certificate is
    /// refused after the handshake (RFC 8446 section 4.4.2.4).
    Alert(u8),
    /// It broke the protocol.
    Broken(Reason),
    /// It was closed before the first byte of a response.
    Dead,
    /// The response is malformed.
    Fault(ResponseFault),
    /// Memory is too short for the response's head.
    NoRoom,
    /// It requires HTTP/1.1, and has done nothing else (RFC 9113 section 7).
    Http1Wanted,
    /// It says that it has not processed the request.
    Unread,
}

impl From<NoAnswer> for Reason {
    fn from(why: NoAnswer) -> Self {
        match why {
            NoAnswer::Alert(alert) => Self::UpstreamAlert(alert),
            NoAnswer::Broken(reason) => reason,
            NoAnswer::Dead => Self::Response(Detail::of(ResponseFault::Unbegun)),
            NoAnswer::Fault(fault) => Self::Response(Detail::of(fault)),
            NoAnswer::NoRoom => Self::Shed(Shed::ResponseHead),
            NoAnswer::Http1Wanted => Self::UpstreamWantsHttp1,
            NoAnswer::Unread => Self::UpstreamUnread,
        }
    }
}

/// The upstream takes no more of the request; the response says why.
pub struct Closed;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_refused_coding_is_not_sent_again() {
        use CodedBodies::{Accepted, Refused, Unsaid};
        for (before, status, accepts, was_coded, after) in [
            (Unsaid, 200, Some("zstd"), false, Accepted),
            (Accepted, 200, None, false, Unsaid),
            (Accepted, 200, Some("zstd"), true, Accepted),
            // A coding is refused.
            (Accepted, 415, Some("zstd"), true, Refused),
            (Accepted, 415, Some("gzip"), true, Refused),
            (Accepted, 411, Some("zstd"), true, Refused),
            // The type is refused, or a body that was not coded.
            (Accepted, 415, None, true, Unsaid),
            (Accepted, 415, Some("zstd"), false, Accepted),
            (Accepted, 411, Some("zstd"), false, Accepted),
            // It stays refused, whatever comes later.
            (Refused, 200, Some("zstd"), false, Refused),
            (Refused, 200, None, false, Refused),
        ] {
            let mut response = http::Response::builder().status(status);
            if let Some(accepts) = accepts {
                response = response.header(ACCEPT_ENCODING, accepts);
            }
            let (response, ()) = response.body(()).unwrap().into_parts();
            assert_eq!(
                before.after(&response, was_coded),
                after,
                "{before:?} {status} {accepts:?}"
            );
        }
    }
}
