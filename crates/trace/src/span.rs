//! The record of an exchange: the span of its client's request, and that of the request to its
//! upstream. A flow of QUIC that was refused has one span.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use eyelet_telemetry::info::Outcome;
use eyelet_wire::traceparent::{SpanId, TraceId};

/// Bytes of a method in a span. `UPDATEREDIRECTREF`, the longest registered one, has 17.
pub const METHOD_BYTES_MAX: usize = 32;
/// Bytes of a path in a span. What is longer is cut: a queue of them must stay small.
pub const PATH_BYTES_MAX: usize = 1024;
/// Bytes of a host in a span. No host name is longer (RFC 1035 section 2.3.4).
pub const HOST_BYTES_MAX: usize = 255;

/// An exchange that is over.
#[derive(Clone, Debug)]
pub struct ExchangeSpans {
    pub trace_id: TraceId,
    /// The span of the client's request.
    pub span_id: SpanId,
    /// The client's own span, if it named one.
    pub parent: Option<SpanId>,
    /// The time at which the request's head was read.
    pub began: SystemTime,
    /// The time until the last byte of the response.
    pub duration: Duration,
    pub method: Box<str>,
    /// The path without its query.
    pub path: Box<str>,
    /// The host that the client asked for, and its port if it named one.
    pub host: Option<Box<str>>,
    /// True if the client spoke TLS.
    pub is_tls: bool,
    /// `1.0`, `1.1` or `2`.
    pub version: &'static str,
    /// The client's address.
    pub client: SocketAddr,
    /// True if it is a flow of QUIC that did not pass. Nobody has read a request of it.
    pub is_quic: bool,
    /// The status that the client got.
    pub status: Option<u16>,
    /// The outcome of the exchange.
    pub outcome: Outcome,
    /// The reason of its end, without what differs from one to another.
    pub reason: &'static str,
    /// The class of the reason, if the exchange failed.
    pub failure: Option<&'static str>,
    pub rule: Option<Box<str>>,
    /// The connection's id.
    pub connection: u64,
    /// The request to the upstream, if there was one.
    pub upstream: Option<UpstreamSpan>,
}

/// The request to an upstream.
#[derive(Clone, Debug)]
pub struct UpstreamSpan {
    /// The span. It is the parent of those that the upstream begins.
    pub span_id: SpanId,
    /// From the beginning of the exchange until an upstream was looked for.
    pub after: Duration,
    /// From then until the head of its response, or the end.
    pub duration: Duration,
    /// The address of the last one that was asked.
    pub name: Option<Arc<str>>,
    /// The status of its response.
    pub status: Option<u16>,
    /// The number of times that the request was sent again.
    pub resends: u32,
}

impl ExchangeSpans {
    /// Returns the number of its spans.
    pub fn count(&self) -> u64 {
        1 + u64::from(self.upstream.is_some())
    }

    /// Bytes of memory behind it. The upstream's name is the upstream's.
    pub fn text_bytes(&self) -> usize {
        let len = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        self.method.len() + self.path.len() + len(&self.host) + len(&self.rule)
    }
}

/// The beginning of a text, cut between characters.
pub fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}
