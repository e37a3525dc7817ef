//! The counts of all workers, added up, as metrics.

use eyelet_telemetry::counters::CounterValues;
use eyelet_telemetry::listing::streams::StreamKind;
use eyelet_telemetry::reason::Class;

use crate::causes;
use crate::metrics::{MetricKind, Metrics};

/// Writes what the workers have counted, added up.
pub fn write(metrics: &mut Metrics, counted: &CounterValues) {
    write_connections(metrics, counted);
    write_streams(metrics, counted);
    write_process(metrics, counted);
    write_flows(metrics, counted);
    causes::write(metrics, counted);
}

fn write_connections(metrics: &mut Metrics, counted: &CounterValues) {
    metrics.counter("accepted_connections", "Connections accepted.", counted.accepted);
    let mut states =
        metrics.family(MetricKind::Gauge, "connections", "Connections open now, by state.");
    for (state, count) in counted.by_state() {
        states.sample(&[("state", state)], count);
    }
    let help = "User memory of all parked connections.";
    metrics.gauge("parked_memory_bytes", help, counted.parked_bytes);
    let help = "Connections that ended, by outcome.";
    let mut outcomes = metrics.family(MetricKind::Counter, "connection_outcomes", help);
    for (outcome, value) in [
        ("failed", counted.failed),
        ("left", counted.left),
        ("originated", counted.originated),
        ("redirected", counted.redirected),
        ("refused", counted.refused),
        ("spliced", counted.spliced),
        ("terminated", counted.terminated),
    ] {
        outcomes.sample(&[("outcome", outcome)], value);
    }
    let help = "Connections that ended, by the class of the reason.";
    let mut classes = metrics.family(MetricKind::Counter, "connection_ends", help);
    for (class, ended) in Class::ALL.iter().zip(counted.ended) {
        classes.sample(&[("class", class.name())], ended);
    }
    let help = "Bytes written to a side by connections that have ended.";
    let mut bytes = metrics.family(MetricKind::Counter, "ended_connection_bytes", help);
    bytes.sample(&[("to", "client")], counted.bytes_to_client);
    bytes.sample(&[("to", "upstream")], counted.bytes_to_upstream);
    let mut done = metrics.family(MetricKind::Counter, "handshakes", "Handshakes with clients.");
    let kinds = [("1.2", "false"), ("1.2", "true"), ("1.3", "false"), ("1.3", "true")]
        .map(|(version, resumed)| [("version", version), ("resumed", resumed)]);
    for (labels, value) in kinds.iter().zip(counted.completed) {
        done.sample(labels, value);
    }
    let help = "Time of handshakes that clients completed.";
    let mut times = metrics.family(MetricKind::Histogram, "handshake_duration_seconds", help);
    for (labels, values) in kinds.iter().zip(&counted.handshakes) {
        times.histogram(labels, values);
    }
    for (name, help, values) in [
        ("decision_duration_seconds", "Time from accept to the verdict.", &counted.decisions),
        ("evidence_duration_seconds", "Time to fetch a fact for the rules.", &counted.evidence),
        ("upstream_connect_duration_seconds", "Time to connect upstreams.", &counted.connects),
    ] {
        metrics.family(MetricKind::Histogram, name, help).histogram(&[], values);
    }
    let help = "Handshakes that failed, or that the client left.";
    metrics.counter("handshake_failures", help, counted.handshakes_failed);
    let help = "Connections ended or not accepted because memory was short.";
    metrics.counter("shed_connections", help, counted.shed);
}

fn write_streams(metrics: &mut Metrics, counted: &CounterValues) {
    let help = "Bytes of parked connections on which requests or streams rest.";
    metrics.gauge("resting_memory_bytes", help, counted.resting_bytes);
    let help = "Parked connections on which requests or streams rest.";
    metrics.gauge("resting_connections", help, counted.resting_connections);
    let help = "Requests and streams under way, by kind. They are served, or rest.";
    let mut streams = metrics.family(MetricKind::Gauge, "streams", help);
    let states = [("serving", counted.serving_streams), ("resting", counted.resting_streams)];
    for (state, counts) in states {
        for (kind, count) in StreamKind::ALL.iter().zip(counts) {
            streams.sample(&[("state", state), ("kind", kind.name())], count);
        }
    }
}

fn write_process(metrics: &mut Metrics, counted: &CounterValues) {
    for (name, help, value) in [
        ("accept_pauses", "Times that accepting paused.", counted.accept_pauses),
        (
            "kernel_dropped_connections",
            "Connections that a full queue dropped.",
            counted.listen_drops,
        ),
        ("lost_log_lines", "Access lines that nobody took in time.", counted.lines_lost),
        ("lost_spans", "Spans that the collector did not take.", counted.spans_lost),
        ("sent_spans", "Spans that the collector took.", counted.spans_sent),
        (
            "placeholder_refusals",
            "Requests with a placeholder where no secret may stand.",
            counted.placeholders_refused,
        ),
        ("secret_requests", "Requests that were given a secret.", counted.secrets_filled),
        ("secret_reflections", "Responses that showed a secret.", counted.secrets_reflected),
        ("source_replacements", "Files that changed and are used.", counted.sources_replaced),
        ("source_failures", "Files that changed and cannot be used.", counted.sources_refused),
        ("fleet_store_failures", "Failures of the fleet's store.", counted.store_failures),
        ("acme_certificates", "Certificates issued by ACME.", counted.acme_issued),
        ("acme_failures", "Orders by ACME that failed.", counted.acme_failures),
    ] {
        metrics.counter(name, help, value);
    }
}

fn write_flows(metrics: &mut Metrics, counted: &CounterValues) {
    metrics.gauge("quic_flows", "Flows of QUIC now, by clients' addresses.", counted.flows);
    for (name, help, value) in [
        ("begun_quic_flows", "Flows of QUIC that began.", counted.flows_begun),
        ("refused_quic_flows", "Flows of QUIC that were refused.", counted.flows_refused),
        ("unbegun_quic_flows", "Flows of QUIC without room.", counted.flows_not_begun),
        ("moved_quic_flows", "Clients of QUIC with another address.", counted.flow_moves),
        (
            "dropped_quic_datagrams",
            "Datagrams of no flow, or without room to wait.",
            counted.flow_datagrams_dropped,
        ),
    ] {
        metrics.counter(name, help, value);
    }
}
