//! The trace of one exchange: its place in it, what the upstream is told, and its spans at the end.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use eyelet_resting::trace::{MICROS_MAX, RestingAsked, RestingSpans, RestingTrace, VERSIONS};
use eyelet_telemetry::info::{ConnectionInfo, End};
use eyelet_telemetry::request::TraceIds;
use eyelet_trace::span::{
    ExchangeSpans, HOST_BYTES_MAX, METHOD_BYTES_MAX, PATH_BYTES_MAX, UpstreamSpan, cut,
};
use eyelet_trace::tracer::{TracePlace, Tracer, new_id};
use eyelet_wire::traceparent::{SpanId, TraceParent};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Version, request};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

pub struct ExchangeTrace {
    /// `None`: it rested, and the configuration has no traces any more.
    tracer: Option<Arc<Tracer>>,
    place: TracePlace,
    /// The facts that its spans say, if they are recorded.
    recorded: Option<Recorded>,
}

/// The facts of a recorded exchange while it lasts.
struct Recorded {
    began: SystemTime,
    clock: Instant,
    method: Box<str>,
    path: Box<str>,
    host: Option<Box<str>>,
    version: &'static str,
    asked: Option<Asked>,
}

/// The facts of the exchange, which has this method and path.
fn recorded(spans: RestingSpans, method: Option<&Method>, path: Option<&PathAndQuery>) -> Recorded {
    let RestingSpans { began_unix_us, host, version, asked } = spans;
    let began = SystemTime::UNIX_EPOCH + Duration::from_micros(began_unix_us);
    // Another process has another clock, so the system's counts until now.
    let elapsed = began.elapsed().unwrap_or_default();
    let method = method.map_or("", Method::as_str);
    Recorded {
        began,
        clock: Instant::now().checked_sub(elapsed).unwrap_or_else(Instant::now),
        method: cut(method, METHOD_BYTES_MAX).into(),
        path: cut(path.map_or("", PathAndQuery::path), PATH_BYTES_MAX).into(),
        host,
        version: VERSIONS.get(usize::from(version)).copied().unwrap_or_default(),
        asked: asked.map(|asked| Asked {
            span_id: asked.span_id,
            after: Duration::from_micros(asked.after_us),
            answered: asked.answered.map(|(us, code)| (Duration::from_micros(us), code)),
            times: asked.times,
        }),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(MICROS_MAX).min(MICROS_MAX)
}

/// The end of an exchange.
pub struct EndedExchange<'a> {
    pub info: &'a ConnectionInfo,
    /// The way in which it ended.
    pub end: &'a End,
    /// True if the client got no whole response of the upstream.
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
    /// The time at which its response's head came, and the status.
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
        Self { tracer: Some(tracer.clone()), place, recorded }
    }

    /// The trace of an exchange that rested, which has this method and path.
    pub fn resumed(
        tracer: Option<&Arc<Tracer>>,
        resting: RestingTrace,
        (method, path): (Option<&Method>, Option<&PathAndQuery>),
    ) -> Self {
        let RestingTrace { trace_id, span_id, is_sampled, parent, recorded } = resting;
        let own = TraceParent { trace_id, span_id, is_sampled };
        let recorded = recorded.map(|recorded| self::recorded(recorded, method, path));
        Self { tracer: tracer.cloned(), place: TracePlace { own, parent }, recorded }
    }

    /// Its value while its exchange rests.
    pub fn rest(&self) -> RestingTrace {
        let TraceParent { trace_id, span_id, is_sampled } = self.place.own;
        let recorded = self.recorded.as_ref().map(Recorded::rest);
        RestingTrace { trace_id, span_id, is_sampled, parent: self.place.parent, recorded }
    }

    /// True if it has spans.
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
        let (Some(tracer), Some(recorded)) = (&self.tracer, &self.recorded) else { return };
        let EndedExchange { info, end, failed, status, upstream } = *ended;
        let (duration, decided) = (recorded.clock.elapsed(), &info.decided);
        tracer.send(ExchangeSpans {
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
            is_quic: false,
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
    fn rest(&self) -> RestingSpans {
        let version = VERSIONS.iter().position(|known| *known == self.version);
        let began = self.began.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        RestingSpans {
            began_unix_us: micros(began),
            host: self.host.clone(),
            version: version.and_then(|place| u8::try_from(place).ok()).unwrap_or_default(),
            asked: self.asked.as_ref().map(|asked| RestingAsked {
                span_id: asked.span_id,
                after_us: micros(asked.after),
                answered: asked.answered.map(|(after, code)| (micros(after), code)),
                times: asked.times,
            }),
        }
    }

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

/// Returns what the request says of its trace. A field that is there twice is invalid.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn trace() -> RestingTrace {
        let asked = RestingAsked {
            span_id: [3; 8],
            after_us: 1_200,
            answered: Some((45_000, 200)),
            times: 1,
        };
        let recorded = RestingSpans {
            began_unix_us: 1_700_000_000_000_000,
            host: Some("app.test".into()),
            version: 1,
            asked: Some(asked),
        };
        RestingTrace {
            trace_id: [1; 16],
            span_id: [2; 8],
            is_sampled: true,
            parent: Some([4; 8]),
            recorded: Some(recorded),
        }
    }

    /// Behind a rest it says what it said before, and its duration counts from the same beginning.
    #[test]
    fn a_trace_that_rested_is_the_same() {
        let method = Method::GET;
        let path = PathAndQuery::from_static("/events?topic=news");
        let asked = (Some(&method), Some(&path));
        let resumed = ExchangeTrace::resumed(None, trace(), asked);
        assert_eq!(resumed.rest(), trace());
        let recorded = resumed.recorded.unwrap();
        assert_eq!((&*recorded.method, &*recorded.path), ("GET", "/events"));
        assert!(recorded.clock.elapsed() > Duration::from_secs(60));
        assert_eq!(recorded.upstream(Duration::from_secs(1), None).unwrap().resends, 0);
    }

    #[test]
    fn what_no_trace_has_is_not_possible() {
        assert!(trace().is_possible());
        let changes: [fn(&mut RestingTrace); 5] = [
            |trace| trace.trace_id = [0; 16],
            |trace| trace.span_id = [0; 8],
            |trace| trace.recorded.as_mut().unwrap().version = 3,
            |trace| trace.recorded.as_mut().unwrap().began_unix_us = MICROS_MAX + 1,
            |trace| {
                let host = "h".repeat(HOST_BYTES_MAX + 1);
                trace.recorded.as_mut().unwrap().host = Some(host.into());
            },
        ];
        for (nth, change) in changes.into_iter().enumerate() {
            let mut trace = trace();
            change(&mut trace);
            assert!(!trace.is_possible(), "{nth}");
        }
    }
}
