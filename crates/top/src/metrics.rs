//! Reads the text of `/metrics`: samples of Prometheus' format 0.0.4.

use std::collections::BTreeMap;

/// Samples by name.
#[derive(Clone, Debug, Default)]
pub struct MetricsText {
    samples: BTreeMap<String, Vec<MetricSample>>,
}

/// A number, and what it is of.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSample {
    /// The values of its labels, in their order.
    pub labels: Vec<String>,
    /// The number.
    pub value: f64,
}

impl MetricSample {
    /// The value of its first label. Most metrics have one at most.
    pub fn label(&self) -> &str {
        self.labels.first().map_or("", String::as_str)
    }
}

impl MetricsText {
    /// Reads what it understands: a newer edge may say more.
    pub fn parse(text: &str) -> Self {
        let mut samples: BTreeMap<String, Vec<MetricSample>> = BTreeMap::new();
        for (name, sample) in text.lines().filter_map(sample) {
            samples.entry(name.to_owned()).or_default().push(sample);
        }
        Self { samples }
    }

    /// The samples of a metric, without `eyelet_`.
    pub fn all(&self, name: &str) -> &[MetricSample] {
        self.samples.get(name).map_or(&[], Vec::as_slice)
    }

    /// The sum of a metric over its labels.
    pub fn sum(&self, name: &str) -> f64 {
        self.all(name).iter().map(|sample| sample.value).sum()
    }

    /// The sum of the samples whose first labels are these.
    pub fn of(&self, name: &str, labels: &[&str]) -> f64 {
        let begins = |sample: &&MetricSample| {
            let found = sample.labels.iter().take(labels.len());
            found.eq(labels.iter().copied())
        };
        self.all(name).iter().filter(begins).map(|sample| sample.value).sum()
    }
}

/// A line such as `eyelet_x{state="parked"} 3`: its name, the values of its labels, and 3.
fn sample(line: &str) -> Option<(&str, MetricSample)> {
    let line = line.strip_prefix("eyelet_")?;
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if rest.starts_with('{') {
        while !rest.starts_with('}') {
            let (label, behind) = quoted(rest.split_once('"')?.1)?;
            labels.push(label);
            rest = behind;
        }
        rest = rest.strip_prefix('}')?;
    }
    Some((name, MetricSample { labels, value: rest.trim().parse().ok()? }))
}

/// A label's value up to its quote, and what stands behind that.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return text.get(at + 1..).map(|behind| (value, behind)),
            '\\' => value.push(match letters.next()?.1 {
                'n' => '\n',
                escaped => escaped,
            }),
            letter => value.push(letter),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_and_the_rest_is_left() {
        let text = "# HELP eyelet_x What.\neyelet_x{state=\"parked\"} 3\n\
                    eyelet_x{state=\"a b\"} 4\n\
                    eyelet_y 1.5e3\neyelet_z{rule=\"a \\\"}\\\\ 7\",b=\"c\"} 2\nprocess_z 9\n\
                    eyelet_broken{a=\"\neyelet_nan x\n# EOF\n";
        let metrics = MetricsText::parse(text);
        assert_eq!(metrics.sum("x"), 7.0);
        assert_eq!(metrics.of("x", &["parked"]), 3.0);
        assert_eq!(metrics.sum("y"), 1500.0);
        let labels = ["a \"}\\ 7", "c"].map(String::from).to_vec();
        assert_eq!(metrics.all("z"), [MetricSample { labels, value: 2.0 }]);
        assert_eq!(metrics.all("z")[0].label(), "a \"}\\ 7");
        assert_eq!(["c", "d"].map(|b| metrics.of("z", &["a \"}\\ 7", b])), [2.0, 0.0]);
        assert_eq!((metrics.of("z", &["c"]), metrics.of("z", &[])), (0.0, 2.0));
        assert!(metrics.all("broken").is_empty() && metrics.all("nan").is_empty());
    }
}
