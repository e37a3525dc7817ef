//! Metrics as text: Prometheus' format 0.0.4, or OpenMetrics 1.0.

use std::fmt::{self, Write};

/// What all names begin with.
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

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows. Its samples end in `_total`.
    Counter,
    /// A number that goes up and down.
    Gauge,
}

/// A sample's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole number, such as bytes.
    Whole(u64),
    /// Seconds.
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
        let text = &mut self.metrics.text;
        let suffix = if self.kind == MetricKind::Counter { "_total" } else { "" };
        let _ = write!(text, "{PREFIX}{}{suffix}", self.name);
        for (index, (label, said)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let _ = write!(text, "{before}{label}=\"");
            escape(text, said);
            text.push('"');
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(text, "{end} {}", value.into());
    }
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
