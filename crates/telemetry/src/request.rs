//! The facts of a request and of its response's coding for the access log.

use eyelet_wire::traceparent::{SpanId, TraceId};
use serde::Serialize;

use crate::held::HeldInfo;
use crate::info::Outcome;
use crate::upstream_tls::UpstreamTlsInfo;

/// The facts of a request for a log entry.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RequestInfo<'a> {
    pub method: &'a str,
    /// The path with its query.
    pub path: &'a str,
    /// The status that the client got. `None` if it got none.
    pub status: Option<u16>,
    /// Milliseconds to the response's head, from the request's last byte, or from the end of its
    /// head if the upstream was faster.
    pub upstream_ms: Option<u64>,
    /// The upstream that was asked. A connection's requests may go to different upstreams.
    #[serde(skip)]
    pub upstream: Option<&'a str>,
    /// The agreement of the connection to it, if that is by TLS.
    #[serde(skip)]
    pub upstream_tls: Option<&'a UpstreamTlsInfo>,
    /// The coding of the response's body.
    #[serde(skip)]
    pub coded: Coded,
    /// Its place in its trace, if it is traced.
    #[serde(skip)]
    pub trace: Option<TraceIds>,
    /// The decision about it, if it was held.
    #[serde(skip)]
    pub held: Option<HeldInfo>,
    /// The names of the rules in shadow that take it, and what they would have done.
    #[serde(skip)]
    pub shadow: &'a [(Box<str>, Outcome)],
}

/// The place of a request in its trace.
#[derive(Clone, Copy, Debug)]
pub struct TraceIds {
    pub trace_id: TraceId,
    /// The span of this request.
    pub span_id: SpanId,
}

/// The facts of a response's coding for a log entry.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coded {
    /// Content-Encoding, if it is ours.
    pub coding: Option<&'static str>,
    /// Bytes of the body from the upstream.
    pub bytes_identity: u64,
    /// Bytes of the body to the client.
    pub bytes_sent: u64,
    /// The reason why nothing was coded.
    pub why_not: Option<&'static str>,
}
