//! The trace of one exchange: its place in it, what the upstream is told, and its spans at the end.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use eyelet_telemetry::info::{ConnectionInfo, End};
use eyelet_telemetry::request::TraceIds;
use eyelet_trace::span::{
    ExchangeSpans, HOST_BYTES_MAX, METHOD_BYTES_MAX, PATH_BYTES_MAX, UpstreamSpan, cut,
};
use eyelet_trace::tracer::{TracePlace, Tracer, new_id};
use eyelet_wire::traceparent::{SpanId, TraceParent};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Version, request};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

pub struct ExchangeTrace {
    tracer: Arc<Tracer>,
    place: TracePlace,
    /// What its spans say, if they are recorded.
    recorded: Option<Recorded>,
}

/// What is known of a recorded exchange while it lasts.
struct Recorded {
    began: SystemTime,
    clock: Instant,
    method: Box<str>,
    path: Box<str>,
    host: Option<Box<str>>,
    version: &'static str,
    asked: Option<Asked>,
}

/// The end of an exchange.
pub struct EndedExchange<'a> {
    pub info: &'a ConnectionInfo,
    /// How it ended.
    pub end: &'a End,
    /// Whether the client got no whole response of the upstream.
    pub failed: bool,
    /// The status that the client got.
    pub status: Option<u16>,
    /// The upstream that was asked last.
    pub upstream: Option<&'a Arc<str>>,
}

/// A request to the upstream.
struct Asked {
    span_id: SpanId,
    after: Duration,
    /// When its response's head came, and the status.
    answered: Option<(Duration, u16)>,
    times: u32,
}

impl ExchangeTrace {
    /// The trace of a request. It goes on where the request says so, and begins here otherwise.
    pub fn begin(tracer: &Arc<Tracer>, request: &request::Parts, is_trusted: bool) -> Self {
        let place = tracer.place(parent(&request.headers), is_trusted);
        let is_recorded = place.own.is_sampled && tracer.is_sending();
        let recorded = is_recorded.then(|| Recorded {
            began: SystemTime::now(),
            clock: Instant::now(),
            method: cut(request.method.as_str(), METHOD_BYTES_MAX).into(),
            path: cut(request.uri.path(), PATH_BYTES_MAX).into(),
            host: request.uri.authority().map(|host| cut(host.as_str(), HOST_BYTES_MAX).into()),
            version: version(request.version),
            asked: None,
        });
        Self { tracer: tracer.clone(), place, recorded }
    }

    /// Whether it has spans.
    pub fn is_recorded(&self) -> bool {
        self.recorded.is_some()
    }

    /// The ids for the access log.
    pub fn ids(&self) -> TraceIds {
        let TraceParent { trace_id, span_id, .. } = self.place.own;
        TraceIds { trace_id, span_id }
    }

    /// Begins the request to the upstream. `told` are its fields, if the upstream is told of the
    /// trace. Its parent is the span of the request to it, where that is recorded.
    pub fn ask(&mut self, told: Option<&mut HeaderMap>) {
        let mut own = self.place.own;
        if let Some(recorded) = &mut self.recorded {
            let (span_id, after) = (new_id(), recorded.clock.elapsed());
            recorded.asked = Some(Asked { span_id, after, answered: None, times: 0 });
            own.span_id = span_id;
        }
        let Some(headers) = told else { return };
        if self.place.parent.is_none() {
            // It belongs to a trace that is not gone on with (section 4.3).
            headers.remove(TRACESTATE);
        }
        if let Ok(value) = HeaderValue::from_bytes(&own.to_bytes()) {
            headers.insert(TRACEPARENT, value);
        }
    }

    /// Counts that an upstream is sent the request.
    pub fn note_sent(&mut self) {
        if let Some(asked) = self.recorded.as_mut().and_then(|all| all.asked.as_mut()) {
            asked.times += 1;
        }
    }

    /// Notes the head of the upstream's response.
    pub fn note_answered(&mut self, status: u16) {
        let Some(recorded) = &mut self.recorded else { return };
        let now = recorded.clock.elapsed();
        if let Some(asked) = &mut recorded.asked {
            asked.answered = Some((now, status));
        }
    }

    /// Has the spans sent, if they are recorded.
    pub fn end(&self, ended: &EndedExchange<'_>) {
        let Some(recorded) = &self.recorded else { return };
        let EndedExchange { info, end, failed, status, upstream } = *ended;
        let (duration, decided) = (recorded.clock.elapsed(), &info.decided);
        self.tracer.send(ExchangeSpans {
            trace_id: self.place.own.trace_id,
            span_id: self.place.own.span_id,
            parent: self.place.parent,
            began: recorded.began,
            duration,
            method: recorded.method.clone(),
            path: recorded.path.clone(),
            host: recorded.host.clone(),
            is_tls: decided.tls_version.is_some(),
            version: recorded.version,
            client: info.client,
            status,
            outcome: end.outcome,
            reason: end.reason.summary(),
            failure: failed.then(|| end.reason.class().name()),
            rule: decided.rule.map(|rule| decided.labels.rule(rule).into()),
            connection: info.id,
            upstream: recorded.upstream(duration, upstream),
        });
    }
}

impl Recorded {
    fn upstream(&self, elapsed: Duration, name: Option<&Arc<str>>) -> Option<UpstreamSpan> {
        let Asked { span_id, after, answered, times } = *self.asked.as_ref()?;
        let (until, status) = answered.map_or((elapsed, None), |(at, code)| (at, Some(code)));
        Some(UpstreamSpan {
            span_id,
            after,
            duration: until.saturating_sub(after),
            name: name.cloned(),
            status,
            resends: times.saturating_sub(1),
        })
    }
}

/// What the request says of its trace. A field that is there twice is invalid.
fn parent(headers: &HeaderMap) -> Option<TraceParent> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let parent = TraceParent::parse(values.next()?.as_bytes())?;
    values.next().is_none().then_some(parent)
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}
