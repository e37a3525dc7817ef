//! The document of one second: all that the page shows, except for what is asked for by itself.

use eyelet_telemetry::causes;
use eyelet_telemetry::counters::{self, CounterValues};
use eyelet_telemetry::log::recent::RecentLines;
use serde_json::{Value, json};

use crate::routes::{Answers, Document};

/// Rules, and upstreams, that are listed at most. `/rules` and `/upstreams` have all.
pub const LISTED_MAX: usize = 50;

/// `None`: the process ends.
pub(crate) fn document(
    answers: &dyn Answers,
    unix_seconds: f64,
    recent: RecentLines,
) -> Option<Value> {
    let counted = counters::snapshot();
    let upstreams = answers.document(Document::Upstreams)?["upstreams"].take();
    let down = count(&upstreams, |upstream| upstream["up"] == false);
    Some(json!({
        "unix_seconds": unix_seconds,
        "status": answers.document(Document::Status)?,
        "memory": answers.document(Document::Memory)?,
        "held": answers.document(Document::Held)?,
        "parked_bytes": counted.parked_bytes,
        "counts": counts(&counted),
        "reasons": texts("reason", causes::texts(|of| &of.reasons)),
        "handshakes": handshakes(&counted),
        "rules": answers.document(Document::BusiestRules)?,
        "upstreams": {
            "all": upstreams.as_array().map(Vec::len),
            "down": down,
            "listed": listed(upstreams),
        },
        "evidence": {
            "agrees": counted.evidence_agrees,
            "disagrees": counted.evidence_disagrees,
            "unknown": counted.evidence_unknown,
        },
        "compression": {
            "responses": counted.coded,
            "bytes_identity": counted.coded_bytes_identity,
            "bytes_sent": counted.coded_bytes_sent,
            "cpu_seconds": counted.coding_ns as f64 / 1e9,
            "left_alone": texts("why", causes::texts(|of| &of.not_coded)),
        },
        "log": { "lines": recent.lines, "dropped": recent.dropped },
    }))
}

fn counts(counted: &CounterValues) -> Value {
    json!({
        "accepted": counted.accepted,
        "requests": counted.requests,
        "failed_requests": counted.requests_failed,
        "spliced": counted.spliced,
        "terminated": counted.terminated,
        "originated": counted.originated,
        "redirected": counted.redirected,
        "refused": counted.refused,
        "failed": counted.failed,
        "left": counted.left,
        "shed": counted.shed,
        "accept_pauses": counted.accept_pauses,
        "kernel_dropped": counted.listen_drops,
        "lost_log_lines": counted.lines_lost,
        "source_failures": counted.sources_refused,
        "fleet_store_failures": counted.store_failures,
        "acme_failures": counted.acme_failures,
        "ended_bytes_to_client": counted.bytes_to_client,
        "ended_bytes_to_upstream": counted.bytes_to_upstream,
    })
}

fn handshakes(counted: &CounterValues) -> Value {
    let [tls12_full, tls12_resumed, tls13_full, tls13_resumed] = counted.completed;
    json!({
        "tls12_full": tls12_full,
        "tls12_resumed": tls12_resumed,
        "tls13_full": tls13_full,
        "tls13_resumed": tls13_resumed,
        "failed": counted.handshakes_failed,
        "groups": texts("group", causes::texts(|of| &of.groups)),
    })
}

fn texts(key: &str, counts: Vec<(&'static str, u64)>) -> Value {
    counts.into_iter().map(|(text, count)| json!({ key: text, "count": count })).collect()
}

fn count(list: &Value, is: impl Fn(&Value) -> bool) -> usize {
    list.as_array().map_or(0, |list| list.iter().filter(|one| is(one)).count())
}

/// Those that are down first.
fn listed(mut upstreams: Value) -> Value {
    if let Some(list) = upstreams.as_array_mut() {
        list.sort_by_key(|upstream| upstream["up"].as_bool());
        list.truncate(LISTED_MAX);
    }
    upstreams
}
