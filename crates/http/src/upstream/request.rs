//! What an upstream is asked, and why it may not answer.
//! It must not know which version of HTTP it speaks.

use http::request;

use crate::fault::ResponseFault;
use crate::fields::ForwardedFields;
use crate::head::Length;
use eyelet_telemetry::reason::Reason;

/// A request as an upstream is asked it.
#[derive(Clone, Copy)]
pub struct UpstreamRequest<'a> {
    /// Method, target and fields.
    pub parts: &'a request::Parts,
    /// The authority that is asked for.
    pub host: &'a str,
    /// What is said of who asks.
    pub forwarded: &'a ForwardedFields,
    /// Of its body.
    pub length: Length,
    /// Whether the client takes trailers (RFC 9110 10.1.4).
    pub trailers: bool,
    /// Whether it may be asked once more if a connection that was kept turns out to be dead.
    pub again: bool,
    /// Whether it must go by HTTP/1.1: it asks for another protocol, or the upstream wants that.
    pub by_one: bool,
}

/// Why there is no response.
#[derive(Debug)]
pub enum NoAnswer {
    /// It broke the protocol.
    Broken(Reason),
    /// It was closed before the first byte of a response.
    Dead,
    /// The response is none.
    Fault(ResponseFault),
    /// Memory is too short for the response's head.
    NoRoom,
    /// It wants to be asked by HTTP/1.1, and has done nothing else (RFC 9113 section 7).
    OneWanted,
    /// It says that it has not looked at the request.
    Unread,
}
