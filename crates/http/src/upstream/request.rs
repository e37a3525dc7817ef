//! A request to an upstream, and why it may get no response.

use http::request;

use crate::fault::ResponseFault;
use crate::fields::ForwardedFields;
use crate::head::Length;
use eyelet_telemetry::reason::Reason;

/// A request to an upstream.
#[derive(Clone, Copy)]
pub struct UpstreamRequest<'a> {
    /// Method, target and fields.
    pub parts: &'a request::Parts,
    /// The authority of the request.
    pub host: &'a str,
    /// The fields about the client.
    pub forwarded: &'a ForwardedFields,
    /// The length of its body.
    pub length: Length,
    /// Whether the client accepts trailers (RFC 9110 10.1.4).
    pub trailers: bool,
    /// Whether it may be repeated if a kept connection turns out to be dead.
    pub again: bool,
    /// Whether it needs HTTP/1.1: it asks for another protocol, or the upstream requires it.
    pub by_one: bool,
}

/// Why there is no response.
#[derive(Debug)]
pub enum NoAnswer {
    /// It broke the protocol.
    Broken(Reason),
    /// It was closed before the first byte of a response.
    Dead,
    /// The response is malformed.
    Fault(ResponseFault),
    /// Memory is too short for the response's head.
    NoRoom,
    /// It requires HTTP/1.1, and has done nothing else (RFC 9113 section 7).
    OneWanted,
    /// It says that it has not processed the request.
    Unread,
}

/// The upstream takes no more of the request; the response says why.
pub struct Closed;
