//! The totals since the start, a line for each thing that the page has a table for.

use crate::figures::Figures;
use crate::metrics::MetricSample;
use crate::text::{bytes, count, rate};

/// Lines with their labels, the most telling first. Nothing is said of what there was none of.
pub fn lines(figures: &Figures) -> Vec<(&'static str, String)> {
    let lines = [
        ("faults", counted(figures, "connection_faults_total")),
        ("requests", requests(figures)),
        ("handshakes", handshakes(figures)),
        ("evidence", counted(figures, "evidence_connections_total")),
        ("compression", compression(figures)),
    ];
    let some = lines.into_iter().filter(|(_, parts)| !parts.is_empty());
    some.map(|(label, parts)| (label, parts.join("  "))).collect()
}

/// The samples of a counter by their first label, the largest first, each with its rate.
pub fn counted(figures: &Figures, metric: &str) -> Vec<String> {
    let grows = |label: &str| figures.rate_of(metric, label);
    let all = largest_first(figures, metric).into_iter();
    all.map(|one| format!("{} {}", one.label(), with_rate(one.value, grows(one.label())))).collect()
}

/// The samples of a metric that are not 0, the largest first.
pub fn largest_first<'a>(figures: &'a Figures, metric: &str) -> Vec<&'a MetricSample> {
    let mut some: Vec<&MetricSample> =
        figures.metrics.all(metric).iter().filter(|one| one.value > 0.0).collect();
    some.sort_by(|one, other| other.value.total_cmp(&one.value));
    some
}

fn with_rate(value: f64, each_second: Option<f64>) -> String {
    match each_second {
        Some(each) if each > 0.0 => format!("{} +{}/s", count(value), rate(each)),
        _ => count(value),
    }
}

fn requests(figures: &Figures) -> Vec<String> {
    let [all, failed] = ["requests_total", "failed_requests_total"]
        .map(|metric| with_rate(figures.metrics.sum(metric), figures.rate(metric)));
    match figures.metrics.sum("requests_total") {
        0.0 => Vec::new(),
        _ => vec![format!("{all}, {failed} failed")],
    }
}

/// By version and resumption, then by the group of the key exchange.
fn handshakes(figures: &Figures) -> Vec<String> {
    let metrics = &figures.metrics;
    let mut parts = Vec::new();
    for version in ["1.3", "1.2"] {
        let of = |labels: &[&str]| metrics.of("handshakes_total", labels);
        let (all, resumed) = (of(&[version]), of(&[version, "true"]));
        if all > 0.0 {
            parts.push(format!("TLS {version}: {}, {} resumed", count(all), count(resumed)));
        }
    }
    let failed = metrics.sum("handshake_failures_total");
    if failed > 0.0 {
        parts.push(format!("failed {}", count(failed)));
    }
    let groups = largest_first(figures, "handshake_groups_total");
    parts.extend(groups.iter().map(|one| format!("{} {}", one.label(), count(one.value))));
    parts
}

/// Lists what coders saved and cost, then why other responses were left alone.
fn compression(figures: &Figures) -> Vec<String> {
    let metrics = &figures.metrics;
    let mut parts = Vec::new();
    let coded = metrics.sum("coded_responses_total");
    if coded > 0.0 {
        let [from, to] =
            ["upstream", "client"].map(|side| metrics.of("coded_bytes_total", &[side]));
        let saved = if from > 0.0 { 100.0 * (from - to) / from } else { 0.0 };
        parts.push(format!("coded {}", count(coded)));
        parts.push(format!("saved {} ({saved:.0} %)", bytes(from - to)));
        parts.push(format!("in {:.1} s", metrics.sum("coding_seconds_total")));
    }
    let others = largest_first(figures, "uncoded_responses_total").into_iter();
    parts.extend(others.map(|one| format!("{} {}", one.label(), count(one.value))));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::sample;
    use crate::metrics::MetricsText;

    #[test]
    fn each_thing_has_a_line_the_largest_first() {
        let mut figures = sample();
        figures.metrics = MetricsText::parse(
            "eyelet_connection_faults_total{reason=\"no rule for this name\"} 3\n\
             eyelet_connection_faults_total{reason=\"refused by name\"} 7\n\
             eyelet_requests_total 1234\neyelet_failed_requests_total 2\n\
             eyelet_handshakes_total{version=\"1.2\",resumed=\"false\"} 2\n\
             eyelet_handshakes_total{version=\"1.2\",resumed=\"true\"} 0\n\
             eyelet_handshakes_total{version=\"1.3\",resumed=\"false\"} 86\n\
             eyelet_handshakes_total{version=\"1.3\",resumed=\"true\"} 12\n\
             eyelet_handshake_failures_total 4\n\
             eyelet_handshake_groups_total{group=\"X25519\"} 10\n\
             eyelet_handshake_groups_total{group=\"X25519MLKEM768\"} 90\n\
             eyelet_evidence_connections_total{verdict=\"agrees\"} 5\n\
             eyelet_evidence_connections_total{verdict=\"disagrees\"} 0\n\
             eyelet_evidence_connections_total{verdict=\"unknown\"} 6\n\
             eyelet_coded_responses_total 120\neyelet_coding_seconds_total 0.12\n\
             eyelet_coded_bytes_total{side=\"client\"} 25600\n\
             eyelet_coded_bytes_total{side=\"upstream\"} 102400\n\
             eyelet_uncoded_responses_total{why=\"short\"} 8\n",
        );
        let expected = [
            ("faults", "refused by name 7 +0.7/s  no rule for this name 3 +0.3/s"),
            ("requests", "1,234 +123/s, 2 +0.2/s failed"),
            (
                "handshakes",
                "TLS 1.3: 98, 12 resumed  TLS 1.2: 2, 0 resumed  failed 4  X25519MLKEM768 90  \
                 X25519 10",
            ),
            ("evidence", "unknown 6 +0.6/s  agrees 5 +0.5/s"),
            ("compression", "coded 120  saved 75 KiB (75 %)  in 0.1 s  short 8"),
        ];
        assert_eq!(lines(&figures), expected.map(|(label, text)| (label, text.to_owned())));
    }

    #[test]
    fn nothing_is_said_of_what_there_was_none_of() {
        let mut figures = sample();
        figures.metrics = MetricsText::parse(
            "eyelet_requests_total 0\neyelet_failed_requests_total 0\n\
             eyelet_evidence_connections_total{verdict=\"agrees\"} 0\n\
             eyelet_coded_responses_total 0\neyelet_handshake_failures_total 0\n",
        );
        assert!(lines(&figures).is_empty(), "{:?}", lines(&figures));
    }
}
