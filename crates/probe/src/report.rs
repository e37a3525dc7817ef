//! Findings: what was seen, whether it is well, and what to do about it; as lines and as JSON.

use std::fmt;
use std::io::{self, Write};

use serde_json::{Value, json};

/// The grade of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// It is as it should be.
    Good,
    /// A fact, or a choice that costs something.
    Note,
    /// To be changed.
    Bad,
    /// Could not be found out.
    Unknown,
}

impl Grade {
    const fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Note => "note",
            Self::Bad => "bad",
            Self::Unknown => "unknown",
        }
    }
}

/// One verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The subject, such as `tls-1.3`. It is stable, for programs.
    pub name: &'static str,
    /// The grade.
    pub grade: Grade,
    /// The observation.
    pub seen: String,
    /// The advice.
    pub advice: Option<&'static str>,
}

/// The findings in order, with the figures that programs read.
#[derive(Debug, Default)]
pub struct ProbeReport {
    findings: Vec<Finding>,
    /// Findings that have their lines.
    written: usize,
    figures: Vec<(&'static str, f64)>,
}

impl ProbeReport {
    /// Adds a verdict without advice.
    pub fn add(&mut self, name: &'static str, grade: Grade, seen: impl Into<String>) {
        self.findings.push(Finding { name, grade, seen: seen.into(), advice: None });
    }

    /// Adds a verdict with advice.
    pub fn advise(
        &mut self,
        name: &'static str,
        grade: Grade,
        seen: impl Into<String>,
        advice: &'static str,
    ) {
        self.findings.push(Finding { name, grade, seen: seen.into(), advice: Some(advice) });
    }

    /// Adds what was not found out, and why.
    pub fn unknown(&mut self, name: &'static str, why: impl fmt::Display) {
        self.add(name, Grade::Unknown, why.to_string());
    }

    /// Adds a figure for `--json`.
    pub fn figure(&mut self, name: &'static str, value: f64) {
        self.figures.push((name, value));
    }

    /// Writes a line for each finding since the last call, with its advice below.
    ///
    /// # Errors
    /// The output's.
    pub fn write_lines(&mut self, out: &mut impl Write) -> io::Result<()> {
        for finding in self.findings.iter().skip(self.written) {
            let Finding { name, grade, seen, advice } = finding;
            writeln!(out, "{:<8}{name:<16} {}", grade.name(), printable(seen))?;
            if let Some(advice) = advice {
                writeln!(out, "{:24} -> {advice}", "")?;
            }
        }
        self.written = self.findings.len();
        out.flush()
    }

    /// The findings and figures as one object.
    pub fn to_json(&self, target: &str) -> Value {
        let findings: Vec<Value> = self.findings.iter().map(to_json).collect();
        let figures: serde_json::Map<_, _> =
            self.figures.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        json!({ "target": target, "findings": findings, "figures": figures })
    }
}

fn to_json(finding: &Finding) -> Value {
    let Finding { name, grade, seen, advice } = finding;
    json!({ "name": name, "grade": grade.name(), "seen": seen, "advice": advice })
}

/// A server's text may hold bytes that a terminal obeys.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_finding_and_no_control_characters() {
        let mut report = ProbeReport::default();
        report.advise("alpn", Grade::Bad, "h2\x1b[2J", "offer http/1.1");
        let mut lines = Vec::new();
        report.write_lines(&mut lines).unwrap();
        let lines = String::from_utf8(lines).unwrap();
        assert!(lines.starts_with("bad     alpn             h2?[2J\n"), "{lines}");
        assert!(lines.contains("-> offer http/1.1"), "{lines}");
        report.add("half-close", Grade::Good, "later");
        let mut later = Vec::new();
        report.write_lines(&mut later).unwrap();
        assert_eq!(later, b"ok      half-close       later\n");
        assert_eq!(report.to_json("x")["findings"][0]["grade"], "bad");
    }
}
