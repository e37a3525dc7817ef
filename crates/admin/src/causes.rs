//! Metrics of causes: why connections were refused or failed, what evidence says, and what
//! compression did. The labels are words of the program.

use eyelet_telemetry::causes::texts;
use eyelet_telemetry::counters::CounterValues;

use crate::metrics::{MetricKind, Metrics, Number};

/// Writes what the workers have counted, added up.
pub(crate) fn write(metrics: &mut Metrics, counted: &CounterValues) {
    for (name, help, label, counts) in [
        (
            "connection_faults",
            "Connections that were refused or failed, by the reason.",
            "reason",
            texts(|of| &of.reasons),
        ),
        (
            "handshake_groups",
            "Handshakes with clients, by the group of the key exchange.",
            "group",
            texts(|of| &of.groups),
        ),
        (
            "uncoded_responses",
            "Responses that were not coded, by the cause.",
            "why",
            texts(|of| &of.not_coded),
        ),
    ] {
        let mut family = metrics.family(MetricKind::Counter, name, help);
        for (text, count) in counts {
            family.sample(&[(label, text)], count);
        }
    }
    let help = "Connections, by what evidence says about their name.";
    let mut evidence = metrics.family(MetricKind::Counter, "evidence_connections", help);
    evidence.sample(&[("verdict", "agrees")], counted.evidence_agrees);
    evidence.sample(&[("verdict", "disagrees")], counted.evidence_disagrees);
    evidence.sample(&[("verdict", "unknown")], counted.evidence_unknown);
    metrics.counter("requests", "Requests that are over.", counted.requests);
    let help = "Requests that failed, and whose client is not the cause.";
    metrics.counter("failed_requests", help, counted.requests_failed);
    metrics.counter("coded_responses", "Responses that were coded.", counted.coded);
    let help = "Bytes of the bodies of coded responses, on each side.";
    let mut bytes = metrics.family(MetricKind::Counter, "coded_bytes", help);
    bytes.sample(&[("side", "client")], counted.coded_bytes_sent);
    bytes.sample(&[("side", "upstream")], counted.coded_bytes_identity);
    let seconds = Number::Seconds(counted.coding_ns as f64 / 1e9);
    metrics.counter("coding_seconds", "Time that workers have spent in coders.", seconds);
}
