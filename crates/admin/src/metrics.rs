//! Metrics as text: Prometheus' format 0.0.4, or OpenMetrics 1.0.

use std::fmt::{self, Write};

use eyelet_telemetry::histogram::{BOUNDS_US, HistogramValues};

/// The beginning of all names.
const PREFIX: &str = "eyelet_";

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The format that a client's `Accept` fields ask for (RFC 9110 section 12.5.1). Prometheus,
    /// which everything reads, where they name neither.
    pub fn accepted<'a>(fields: impl Iterator<Item = &'a str>) -> Self {
        let (mut open, mut plain) = (0.0_f32, 0.0_f32);
        for range in fields.flat_map(|field| field.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or("");
            let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(1.0, |weight| {
                weight.parse::<f32>().ok().filter(|q| (0.0..=1.0).contains(q)).unwrap_or(0.0)
            });
            match kind.to_ascii_lowercase().as_str() {
                "application/openmetrics-text" => open = open.max(weight),
                "text/plain" | "text/*" | "*/*" => plain = plain.max(weight),
                _ => {}
            }
        }
        if open > 0.0 && open >= plain { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// The answer's Content-Type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows. Its samples end in `_total`.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Durations, counted in buckets.
    Histogram,
}

/// A sample's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole number, such as bytes.
    Whole(u64),
    Seconds(f64),
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<usize> for Number {
    fn from(number: usize) -> Self {
        Self::Whole(number as u64)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => number.fmt(f),
            Self::Seconds(seconds) => seconds.fmt(f),
        }
    }
}

/// Metrics that are being written.
pub struct Metrics {
    format: Format,
    text: String,
}

/// A metric whose samples are being written.
pub struct MetricFamily<'a> {
    metrics: &'a mut Metrics,
    name: &'static str,
    kind: MetricKind,
}

impl Metrics {
    /// None yet.
    pub fn new(format: Format) -> Self {
        Self { format, text: String::new() }
    }

    /// Begins a metric. `name` has neither the prefix nor `_total`; `help` is one line without a
    /// backslash. Each name occurs once.
    pub fn family(
        &mut self,
        kind: MetricKind,
        name: &'static str,
        help: &'static str,
    ) -> MetricFamily<'_> {
        let (suffix, kind_name) = match (kind, self.format) {
            (MetricKind::Counter, Format::Prometheus) => ("_total", "counter"),
            // OpenMetrics: the family's name has no suffix.
            (MetricKind::Counter, Format::OpenMetrics) => ("", "counter"),
            (MetricKind::Gauge, _) => ("", "gauge"),
            (MetricKind::Histogram, _) => ("", "histogram"),
        };
        // Writing into a string cannot fail.
        let _ = writeln!(self.text, "# HELP {PREFIX}{name}{suffix} {help}");
        let _ = writeln!(self.text, "# TYPE {PREFIX}{name}{suffix} {kind_name}");
        MetricFamily { metrics: self, name, kind }
    }

    /// A counter without labels.
    pub fn counter(&mut self, name: &'static str, help: &'static str, value: impl Into<Number>) {
        self.family(MetricKind::Counter, name, help).sample(&[], value);
    }

    /// A gauge without labels.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, value: impl Into<Number>) {
        self.family(MetricKind::Gauge, name, help).sample(&[], value);
    }

    pub(crate) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

impl MetricFamily<'_> {
    /// Writes a sample. The values of its labels come from the program or its configuration, never
    /// from a client: their number is bounded.
    pub fn sample(&mut self, labels: &[(&'static str, &str)], value: impl Into<Number>) {
        let suffix = if self.kind == MetricKind::Counter { "_total" } else { "" };
        self.write(suffix, labels, None, value.into());
    }

    /// Writes the samples of a histogram in seconds, with labels as above. A bucket counts what is
    /// in those below it, too.
    pub fn histogram(&mut self, labels: &[(&'static str, &str)], values: &HistogramValues) {
        let mut count = 0_u64;
        let bounds = BOUNDS_US.iter().map(|us| format!("{:?}", seconds(*us)));
        for (bound, bucket) in bounds.chain(["+Inf".into()]).zip(values.buckets) {
            count = count.wrapping_add(bucket);
            self.write("_bucket", labels, Some(&bound), count.into());
        }
        self.write("_sum", labels, None, Number::Seconds(seconds(values.sum_us)));
        self.write("_count", labels, None, count.into());
    }

    fn write(
        &mut self,
        suffix: &str,
        labels: &[(&'static str, &str)],
        bound: Option<&str>,
        value: Number,
    ) {
        let text = &mut self.metrics.text;
        let _ = write!(text, "{PREFIX}{}{suffix}", self.name);
        let mut before = '{';
        for (label, said) in labels.iter().copied().chain(bound.map(|bound| ("le", bound))) {
            let _ = write!(text, "{before}{label}=\"");
            escape(text, said);
            text.push('"');
            before = ',';
        }
        let end = if before == ',' { "}" } else { "" };
        let _ = writeln!(text, "{end} {value}");
    }
}

/// Both formats want durations in seconds.
fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

/// Both formats escape these three.
fn escape(text: &mut String, said: &str) {
    for char in said.chars() {
        match char {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_differ_as_their_specifications_say() {
        let write = |format| {
            let mut metrics = Metrics::new(format);
            metrics.counter("accepted", "Connections.", 7_u64);
            let mut family = metrics.family(MetricKind::Gauge, "memory_bytes", "Bytes.");
            family.sample(&[("kind", "a\"\\\nb"), ("of", "c")], 2_usize);
            metrics.gauge("start_time_seconds", "Start.", Number::Seconds(1.5));
            metrics.finish()
        };
        let gauges = "# HELP eyelet_memory_bytes Bytes.\n# TYPE eyelet_memory_bytes gauge\n\
            eyelet_memory_bytes{kind=\"a\\\"\\\\\\nb\",of=\"c\"} 2\n\
            # HELP eyelet_start_time_seconds Start.\n# TYPE eyelet_start_time_seconds gauge\n\
            eyelet_start_time_seconds 1.5\n";
        assert_eq!(
            write(Format::Prometheus),
            format!(
                "# HELP eyelet_accepted_total Connections.\n\
                 # TYPE eyelet_accepted_total counter\neyelet_accepted_total 7\n{gauges}"
            )
        );
        assert_eq!(
            write(Format::OpenMetrics),
            format!(
                "# HELP eyelet_accepted Connections.\n# TYPE eyelet_accepted counter\n\
                 eyelet_accepted_total 7\n{gauges}# EOF\n"
            )
        );
    }

    #[test]
    fn a_histogram_counts_on_from_bucket_to_bucket() {
        let mut values = HistogramValues { sum_us: 12_000_700, ..HistogramValues::default() };
        (values.buckets[0], values.buckets[2], values.buckets[16]) = (2, 3, 1);
        let mut metrics = Metrics::new(Format::OpenMetrics);
        let mut family = metrics.family(MetricKind::Histogram, "x_seconds", "Times.");
        family.histogram(&[], &values);
        family.histogram(&[("a", "b")], &HistogramValues::default());
        let text = metrics.finish();
        let begin = "# HELP eyelet_x_seconds Times.\n# TYPE eyelet_x_seconds histogram\n\
            eyelet_x_seconds_bucket{le=\"0.0001\"} 2\n\
            eyelet_x_seconds_bucket{le=\"0.00025\"} 2\n\
            eyelet_x_seconds_bucket{le=\"0.0005\"} 5\n";
        assert!(text.starts_with(begin), "{text}");
        let middle = "{le=\"10.0\"} 5\neyelet_x_seconds_bucket{le=\"+Inf\"} 6\n\
            eyelet_x_seconds_sum 12.0007\neyelet_x_seconds_count 6\n\
            eyelet_x_seconds_bucket{a=\"b\",le=\"0.0001\"} 0\n";
        assert!(text.contains(middle), "{text}");
    }

    #[test]
    fn the_accept_field_chooses() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,\
            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, format) in [
            (vec![], Format::Prometheus),
            (vec!["*/*"], Format::Prometheus),
            (vec!["text/plain"], Format::Prometheus),
            (vec![prometheus], Format::OpenMetrics),
            (vec!["text/plain;q=0.9, application/openmetrics-text; q=0.1"], Format::Prometheus),
            (vec!["application/openmetrics-text;q=0"], Format::Prometheus),
            (vec!["application/openmetrics-text;q=x"], Format::Prometheus),
            (vec!["text/html", "Application/OpenMetrics-Text"], Format::OpenMetrics),
        ] {
            assert_eq!(Format::accepted(accept.iter().copied()), format, "{accept:?}");
        }
    }
}
