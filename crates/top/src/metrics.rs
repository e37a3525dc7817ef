//! Reads the text of `/metrics`: samples of Prometheus' format 0.0.4.

use std::collections::BTreeMap;

/// Samples by name, each with the value of its first label.
#[derive(Clone, Debug, Default)]
pub struct MetricsText {
    samples: BTreeMap<String, Vec<(String, f64)>>,
}

impl MetricsText {
    /// Reads what it understands: a newer edge may say more.
    pub fn parse(text: &str) -> Self {
        let mut samples: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
        for (name, label, value) in text.lines().filter_map(sample) {
            samples.entry(name.to_owned()).or_default().push((label, value));
        }
        Self { samples }
    }

    /// The samples of a metric, without `eyelet_`.
    pub fn all(&self, name: &str) -> &[(String, f64)] {
        self.samples.get(name).map_or(&[], Vec::as_slice)
    }

    /// The sum of a metric over its labels.
    pub fn sum(&self, name: &str) -> f64 {
        self.all(name).iter().map(|(_, value)| value).sum()
    }

    /// The sample with this label.
    pub fn one(&self, name: &str, label: &str) -> f64 {
        let same = self.all(name).iter().filter(|(found, _)| found == label);
        same.map(|(_, value)| value).sum()
    }
}

/// A line such as `eyelet_x{state="parked"} 3`: its name, the value of its first label, and 3.
fn sample(line: &str) -> Option<(&str, String, f64)> {
    let line = line.strip_prefix("eyelet_")?;
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (label, value) = match rest.strip_prefix('{') {
        Some(labels) => {
            let (label, behind) = quoted(labels.split_once('"')?.1)?;
            (label, behind.rsplit_once(' ')?.1)
        }
        None => (String::new(), rest),
    };
    Some((name, label, value.trim().parse().ok()?))
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
        assert_eq!(metrics.one("x", "parked"), 3.0);
        assert_eq!(metrics.sum("y"), 1500.0);
        assert_eq!(metrics.all("z"), [("a \"}\\ 7".to_owned(), 2.0)]);
        assert!(metrics.all("broken").is_empty() && metrics.all("nan").is_empty());
    }
}
