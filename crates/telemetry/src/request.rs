//! What is told of a request on a connection.
//! It must not know which version of HTTP it came by.

use serde::Serialize;

/// What the access line tells of a request.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RequestInfo<'a> {
    /// The method.
    pub method: &'a str,
    /// The path with its query.
    pub path: &'a str,
    /// The status that the client got; none if it got none.
    pub status: Option<u16>,
    /// From the request's last byte, or its head's where the upstream was faster, to the
    /// response's head.
    pub upstream_ms: Option<u64>,
    /// Who was asked. A connection's requests may go to different upstreams.
    #[serde(skip)]
    pub upstream: Option<&'a str>,
    /// What became of the response's body.
    #[serde(skip)]
    pub coded: Coded,
}

/// What the access line tells of a response's coding.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coded {
    /// Content-Encoding, if it is ours.
    pub coding: Option<&'static str>,
    /// Bytes of the body as the upstream sent it.
    pub bytes_identity: u64,
    /// Bytes of the body as the client was sent it.
    pub bytes_sent: u64,
    /// Why nothing was coded.
    pub why_not: Option<&'static str>,
}
