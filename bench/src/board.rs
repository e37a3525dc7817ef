//! Samples by server and round: medians, the ratio to the best, a table, and JSON.

use serde_json::{Value, json};

/// One measurement of one server: a figure for each column, and the errors.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Figures by column key.
    pub figures: Vec<(&'static str, f64)>,
    /// Connections or requests that failed.
    pub errors: u64,
    /// The text of the first failure.
    pub first_error: Option<String>,
}

/// A column of the table. Figures without a column appear in the JSON only.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Key of the figure in a sample.
    pub key: &'static str,
    /// Heading, with the unit.
    pub heading: &'static str,
    /// Digits after the point.
    pub decimals: usize,
}

/// The samples of one scenario, in the order in which servers first appeared.
#[derive(Debug)]
pub struct Board {
    title: String,
    columns: Vec<Column>,
    rows: Vec<(String, Vec<Sample>)>,
}

impl Board {
    /// An empty board. The ratio to the best is of the first column, where less is better.
    pub fn new(title: impl Into<String>, columns: &[Column]) -> Self {
        Self { title: title.into(), columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds one sample of a server.
    pub fn add(&mut self, server: &str, sample: Sample) {
        match self.rows.iter_mut().find(|(name, _)| name == server) {
            Some((_, samples)) => samples.push(sample),
            None => self.rows.push((server.to_owned(), vec![sample])),
        }
    }

    /// The subject of the board.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// A server's figures of one key, by round.
    pub fn figures(&self, server: &str, key: &str) -> Vec<f64> {
        let row = self.rows.iter().find(|(name, _)| name == server);
        let samples = row.map_or(&[][..], |(_, samples)| samples);
        samples.iter().filter_map(|sample| figure(sample, key)).collect()
    }

    /// The table: one row a server. It has medians, and the range if there were several rounds.
    pub fn table(&self) -> String {
        let mut heads = vec!["server".to_owned()];
        heads.extend(self.columns.iter().map(|column| column.heading.to_owned()));
        heads.extend(["x best".to_owned(), "errors".to_owned()]);
        let mut lines = vec![heads];
        for ((server, samples), ratio) in self.rows.iter().zip(self.ratios()) {
            let mut line = vec![server.clone()];
            line.extend(self.columns.iter().map(|column| cell(samples, column)));
            line.push(ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")));
            let errors: u64 = samples.iter().map(|sample| sample.errors).sum();
            let why = samples.iter().find_map(|sample| sample.first_error.as_deref());
            line.push(why.map_or(errors.to_string(), |why| format!("{errors} ({why})")));
            lines.push(line);
        }
        format!("\n{}\n\n{}", self.title, aligned(&lines))
    }

    /// All results as JSON, samples included.
    pub fn json(&self) -> Value {
        let rows = self.rows.iter().zip(self.ratios()).map(|((server, samples), ratio)| {
            let samples: Vec<Value> = samples.iter().map(sample_json).collect();
            json!({ "server": server, "ratio_to_best": ratio, "samples": samples })
        });
        let by = self.columns.first().map(|first| first.key);
        json!({ "title": self.title, "ratio_of": by, "rows": rows.collect::<Vec<_>>() })
    }

    /// Each row's level over the lowest level of a row without errors. On a shared machine the
    /// speed changes by up to half from round to round. So each round is first divided by its own
    /// mean over the rows without errors.
    fn ratios(&self) -> Vec<Option<f64>> {
        let Some(key) = self.columns.first().map(|first| first.key) else { return Vec::new() };
        let rows: Vec<Vec<f64>> =
            self.rows.iter().map(|(server, _)| self.figures(server, key)).collect();
        let errors = |samples: &[Sample]| samples.iter().any(|sample| sample.errors > 0);
        let sound: Vec<bool> = self.rows.iter().map(|(_, samples)| !errors(samples)).collect();
        let yardsticks = || rows.iter().zip(&sound).filter(|(_, sound)| **sound).map(|(r, _)| r);
        let rounds = rows.iter().map(Vec::len).min().unwrap_or(0);
        let mean = |round: usize| {
            let sum: f64 = yardsticks().map(|row| row[round]).sum();
            sum / yardsticks().count().max(1) as f64
        };
        let means: Vec<f64> = (0..rounds).map(mean).collect();
        let level = |row: &Vec<f64>| {
            let parts: Vec<f64> = row.iter().zip(&means).map(|(own, mean)| own / mean).collect();
            median(&parts)
        };
        let least =
            yardsticks().filter_map(level).filter(|part| *part > 0.0).min_by(f64::total_cmp);
        rows.iter().map(|row| level(row).zip(least).map(|(own, least)| own / least)).collect()
    }
}

fn figure(sample: &Sample, key: &str) -> Option<f64> {
    sample.figures.iter().find(|(name, _)| *name == key).map(|(_, figure)| *figure)
}

fn sample_json(sample: &Sample) -> Value {
    let mut value = json!({ "errors": sample.errors, "first_error": sample.first_error });
    for (key, figure) in &sample.figures {
        value[*key] = json!(figure);
    }
    value
}

fn cell(samples: &[Sample], column: &Column) -> String {
    let figures: Vec<f64> = samples.iter().filter_map(|s| figure(s, column.key)).collect();
    let decimals = column.decimals;
    match (median(&figures), range(&figures)) {
        (Some(middle), Some((least, most))) if figures.len() > 1 => {
            format!("{middle:.decimals$} ({least:.decimals$}-{most:.decimals$})")
        }
        (Some(middle), _) => format!("{middle:.decimals$}"),
        _ => "-".to_owned(),
    }
}

/// The median; for an even number of figures, the mean of the middle two.
pub fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    let lower = sorted.get((sorted.len() - 1) / 2)?;
    Some((lower + upper) / 2.0)
}

/// The least and the greatest figure.
pub fn range(figures: &[f64]) -> Option<(f64, f64)> {
    let least = figures.iter().copied().min_by(f64::total_cmp)?;
    let most = figures.iter().copied().max_by(f64::total_cmp)?;
    Some((least, most))
}

/// The q-quantile of sorted figures; 0 if there are none.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (last as f64 * q).round() as usize;
    sorted.get(at.min(last)).copied().unwrap_or(0.0)
}

/// Pads columns to their widest cell. The first is left-aligned, the others right-aligned.
fn aligned(lines: &[Vec<String>]) -> String {
    let count = lines.first().map_or(0, Vec::len);
    let width = |at: usize| lines.iter().map(|line| line[at].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for line in lines {
        for (at, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            match at {
                0 => text += &format!("{cell:<width$}"),
                // The text of an error may be long, and no column follows it.
                _ if at + 1 == count => text += &format!("  {cell}"),
                _ => text += &format!("  {cell:>width$}"),
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(figure: f64, errors: u64) -> Sample {
        Sample { figures: vec![("cpu", figure)], errors, first_error: None }
    }

    #[test]
    fn medians_ranges_and_quantiles() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(range(&[3.0, 1.0, 2.0]), Some((1.0, 3.0)));
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.5), 2.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.99), 3.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    #[test]
    fn the_ratio_is_to_the_best_server_that_made_no_error() {
        let column = Column { key: "cpu", heading: "CPU-us", decimals: 1 };
        let mut board = Board::new("title", &[column]);
        for figure in [100.0, 120.0, 110.0] {
            board.add("good", sample(figure, 0));
            board.add("worse", sample(figure * 2.0, 0));
            board.add("broken", sample(1.0, 7));
        }
        let table = board.table();
        assert!(table.contains("110.0 (100.0-120.0)"), "{table}");
        assert!(table.lines().any(|l| l.starts_with("worse") && l.contains("2.00")), "{table}");
        let ratio = board.json()["rows"][1]["ratio_to_best"].as_f64().unwrap();
        assert!((ratio - 2.0).abs() < 1e-9, "{ratio}");
        assert_eq!(board.json()["rows"][2]["samples"][0]["errors"], 7);
    }

    #[test]
    fn a_machine_that_changes_its_speed_between_rounds_does_not_change_the_ratio() {
        let column = Column { key: "cpu", heading: "CPU-us", decimals: 1 };
        let mut board = Board::new("title", &[column]);
        for (first, second) in [(25.0, 27.5), (50.0, 55.0), (25.0, 27.5), (26.0, 57.2)] {
            board.add("first", sample(first, 0));
            board.add("second", sample(second, 0));
        }
        let ratio = board.ratios()[1].unwrap();
        assert!((ratio - 1.1).abs() < 0.01, "{ratio}");
    }
}
