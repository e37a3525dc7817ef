//! A batch of spans as the JSON of OTLP/HTTP, <https://opentelemetry.io/docs/specs/otlp/>. Ids are
//! in hexadecimal digits, 64-bit numbers are texts, and enumerations are numbers.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use eyelet_wire::local_peer::LocalPeer;
use eyelet_wire::traceparent::hex;
use serde::Serialize;

use crate::span::{ExchangeSpans, UpstreamSpan};

/// The methods that may be an attribute (OpenTelemetry's conventions for HTTP). Any other is the
/// client's to choose, and would be a new value each time.
const METHODS: [&str; 10] =
    ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"];
const METHOD_OTHER: &str = "_OTHER";

/// `Span.flags`: recorded, and that the next bit is known.
const FLAGS: u32 = 0x101;
/// `Span.flags`: the parent is of another process.
const FLAG_REMOTE: u32 = 0x200;
/// `SpanKind`.
const KIND_SERVER: u8 = 2;
const KIND_CLIENT: u8 = 3;
/// `StatusCode.STATUS_CODE_ERROR`.
const STATUS_ERROR: u8 = 2;

/// The body of a request to the collector.
pub fn encode(batch: &[ExchangeSpans], service_name: &str) -> Vec<u8> {
    let mut spans = Vec::with_capacity(2 * batch.len());
    for exchange in batch {
        spans.push(server_span(exchange));
        spans.extend(exchange.upstream.as_ref().map(|upstream| client_span(exchange, upstream)));
    }
    let attributes = vec![
        text("service.name", service_name),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("telemetry.sdk.language", "rust"),
        text("telemetry.sdk.name", "eyelet"),
    ];
    let scope = Scope { name: "eyelet", version: env!("CARGO_PKG_VERSION") };
    let resource = Resource { attributes };
    let request = ExportRequest {
        resource_spans: [ResourceSpans { resource, scope_spans: [ScopeSpans { scope, spans }] }],
    };
    // Numbers and texts always have a JSON form.
    let mut body = serde_json::to_vec(&request).unwrap_or_default();
    // It waits as long as the collector is down.
    body.shrink_to_fit();
    body
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ExportRequest<'a> {
    resource_spans: [ResourceSpans<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans<'a> {
    resource: Resource<'a>,
    scope_spans: [ScopeSpans<'a>; 1],
}

#[derive(Serialize)]
struct Resource<'a> {
    attributes: Vec<Attribute<'a>>,
}

#[derive(Serialize)]
struct ScopeSpans<'a> {
    scope: Scope,
    spans: Vec<Span<'a>>,
}

#[derive(Serialize)]
struct Scope {
    name: &'static str,
    version: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Span<'a> {
    trace_id: String,
    span_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_span_id: Option<String>,
    flags: u32,
    name: &'a str,
    kind: u8,
    start_time_unix_nano: String,
    end_time_unix_nano: String,
    attributes: Vec<Attribute<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

#[derive(Serialize)]
struct Status {
    code: u8,
}

#[derive(Serialize)]
struct Attribute<'a> {
    key: &'static str,
    value: AttributeValue<'a>,
}

#[derive(Serialize)]
enum AttributeValue<'a> {
    #[serde(rename = "stringValue")]
    Text(Cow<'a, str>),
    #[serde(rename = "intValue")]
    Number(String),
}

fn text<'a>(key: &'static str, value: impl Into<Cow<'a, str>>) -> Attribute<'a> {
    Attribute { key, value: AttributeValue::Text(value.into()) }
}

fn number(key: &'static str, value: impl Into<u64>) -> Attribute<'static> {
    Attribute { key, value: AttributeValue::Number(value.into().to_string()) }
}

/// The client's request, by OpenTelemetry's conventions for HTTP servers.
fn server_span(exchange: &ExchangeSpans) -> Span<'_> {
    let mut attributes = match exchange.is_quic {
        true => vec![text("network.transport", "quic")],
        false => vec![
            text("url.path", &*exchange.path),
            text("url.scheme", if exchange.is_tls { "https" } else { "http" }),
            text("network.protocol.version", exchange.version),
        ],
    };
    attributes.extend([
        text("eyelet.outcome", exchange.outcome.name()),
        text("eyelet.reason", exchange.reason),
        text("eyelet.connection", connection_id(exchange.connection)),
    ]);
    match LocalPeer::of(exchange.client.ip()) {
        // Its socket has no port.
        Some(peer) => attributes.push(text("client.address", peer.to_string())),
        None => {
            let address = exchange.client.ip().to_canonical();
            attributes.push(text("client.address", address.to_string()));
            attributes.push(number("client.port", exchange.client.port()));
        }
    }
    attributes.extend(exchange.rule.as_deref().map(|rule| text("eyelet.rule", rule)));
    if let Some(host) = &exchange.host {
        let (address, port) = split(host);
        attributes.push(text("server.address", address));
        attributes.extend(port.map(|port| number("server.port", port)));
    }
    // A client that went away is nobody's error.
    let failure = exchange.failure.filter(|class| *class != "left");
    let mut span = span(exchange, &exchange.began, exchange.duration, attributes);
    span.span_id = id::<16>(&exchange.span_id);
    span.parent_span_id = exchange.parent.as_ref().map(|parent| id::<16>(parent));
    span.flags |= exchange.parent.map_or(0, |_| FLAG_REMOTE);
    span.kind = KIND_SERVER;
    end(span, exchange.status, 500, failure)
}

/// The request to the upstream, by the conventions for HTTP clients.
fn client_span<'a>(exchange: &'a ExchangeSpans, upstream: &'a UpstreamSpan) -> Span<'a> {
    let mut attributes = Vec::with_capacity(6);
    if let Some(name) = &upstream.name {
        let (address, port) = split(name);
        attributes.push(text("server.address", address));
        attributes.extend(port.map(|port| number("server.port", port)));
    }
    if upstream.resends > 0 {
        attributes.push(number("http.request.resend_count", upstream.resends));
    }
    let began = exchange.began + upstream.after;
    // If the upstream sent no response, its span failed by the same error as the exchange.
    let failure = exchange.failure.filter(|_| upstream.status.is_none());
    let mut span = span(exchange, &began, upstream.duration, attributes);
    span.span_id = id::<16>(&upstream.span_id);
    span.parent_span_id = Some(id::<16>(&exchange.span_id));
    span.kind = KIND_CLIENT;
    end(span, upstream.status, 400, failure)
}

fn span<'a>(
    exchange: &'a ExchangeSpans,
    began: &SystemTime,
    duration: Duration,
    mut attributes: Vec<Attribute<'a>>,
) -> Span<'a> {
    let known = METHODS.iter().find(|known| ***known == *exchange.method);
    if !exchange.is_quic {
        attributes.push(text("http.request.method", known.copied().unwrap_or(METHOD_OTHER)));
        if known.is_none() {
            attributes.push(text("http.request.method_original", &*exchange.method));
        }
    }
    let start = began.duration_since(UNIX_EPOCH).unwrap_or_default();
    Span {
        trace_id: id::<32>(&exchange.trace_id),
        span_id: String::new(),
        parent_span_id: None,
        flags: FLAGS,
        // The conventions: the method alone, where no template of the path is known.
        name: if exchange.is_quic { "QUIC" } else { known.copied().unwrap_or("HTTP") },
        kind: KIND_SERVER,
        start_time_unix_nano: start.as_nanos().to_string(),
        end_time_unix_nano: (start + duration).as_nanos().to_string(),
        attributes,
        status: None,
    }
}

/// Adds the status of the response, and the error if it is one: a status from `error_from` on, or
/// the failure of the exchange.
fn end<'a>(
    mut span: Span<'a>,
    status: Option<u16>,
    error_from: u16,
    failure: Option<&'static str>,
) -> Span<'a> {
    span.attributes.extend(status.map(|code| number("http.response.status_code", code)));
    let by_status = status.filter(|code| *code >= error_from);
    let error = match (failure, by_status) {
        (Some(class), _) => Some(text("error.type", class)),
        (None, Some(code)) => Some(text("error.type", code.to_string())),
        (None, None) => None,
    };
    if let Some(error) = error {
        span.attributes.push(error);
        span.status = Some(Status { code: STATUS_ERROR });
    }
    span
}

fn id<const N: usize>(id: &[u8]) -> String {
    hex::<N>(id).iter().map(|digit| char::from(*digit)).collect()
}

/// Writes the id as the access log does.
fn connection_id(id: u64) -> String {
    format!("{}-{}", id >> 48, id & ((1 << 48) - 1))
}

/// An address or a name, and its port. A Unix socket has none.
fn split(name: &str) -> (&str, Option<u16>) {
    if name.starts_with("unix:") {
        return (name, None);
    }
    let split = name.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
    let (address, port) = split.map_or((name, None), |(name, port)| (name, port.parse().ok()));
    (address.trim_start_matches('[').trim_end_matches(']'), port)
}

#[cfg(test)]
mod tests;
