//! The span of a flow that does not pass. One that passes has none: its requests are not read.

use std::time::{Duration, SystemTime};

use eyelet_telemetry::info::{ConnectionInfo, End, Outcome};
use eyelet_trace::span::ExchangeSpans;

use crate::snapshot::edge::Edge;

/// Has the span of a refused or failed flow sent, if it is to be recorded.
pub(super) fn refusal(edge: &Edge, info: &ConnectionInfo, end: &End) {
    let tracer = edge.snapshot.http.trace.as_ref();
    let Some(tracer) = tracer.filter(|tracer| tracer.is_sending()) else { return };
    let place = tracer.place(None, false);
    if !place.own.is_sampled {
        return;
    }
    let began = SystemTime::UNIX_EPOCH + Duration::from_nanos(info.started_unix_ns);
    let decided = &info.decided;
    tracer.send(ExchangeSpans {
        trace_id: place.own.trace_id,
        span_id: place.own.span_id,
        parent: None,
        began,
        duration: began.elapsed().unwrap_or_default(),
        method: Box::default(),
        path: Box::default(),
        host: decided.sni.clone(),
        is_tls: true,
        version: "",
        client: info.client,
        is_quic: true,
        status: None,
        outcome: end.outcome,
        reason: end.reason.summary(),
        failure: (end.outcome == Outcome::Failed).then(|| end.reason.class().name()),
        rule: decided.rule.map(|rule| decided.labels.rule(rule).into()),
        connection: info.id,
        upstream: None,
    });
}
