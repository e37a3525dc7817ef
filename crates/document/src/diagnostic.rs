//! A mistake in a configuration file: its line, what is wrong, and what was expected.

use std::fmt;
use std::path::{Path, PathBuf};

/// Says if a configuration with this mistake is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It is refused.
    Error,
    /// It runs, but perhaps not as meant.
    Warning,
}

/// One mistake. Displays as `file:line:column: error: message`, the line itself and a caret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The configuration file, as it was named.
    pub file: PathBuf,
    /// From 1; 0 if the mistake concerns the whole file.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The beginning of the line: at most 160 characters.
    pub source: String,
    /// The mistake, and what was expected.
    pub message: String,
    /// Says if it is fatal.
    pub severity: Severity,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        if self.line == 0 {
            return write!(f, "{file}: {}: {}", self.severity, self.message);
        }
        let (line, column) = (self.line, self.column);
        writeln!(f, "{file}:{line}:{column}: {}: {}", self.severity, self.message)?;
        let gutter = line.to_string();
        writeln!(f, " {gutter} | {}", &self.source)?;
        write!(f, " {:width$} | {}^", "", caret_indent(&self.source, column), width = gutter.len())
    }
}

impl std::error::Error for Diagnostic {}

impl Diagnostic {
    /// An error that concerns a whole file.
    pub fn of_file(file: &Path, message: String) -> Self {
        let (file, severity) = (file.to_owned(), Severity::Error);
        Self { file, line: 0, column: 0, source: String::new(), message, severity }
    }
}

/// A fault of a file that a configuration names.
pub enum FileFault {
    /// The file as a whole cannot be used.
    File(String),
    /// Its text has mistakes.
    Text(Vec<Diagnostic>),
}

/// A text with the offsets of its lines, so that each of 10,000 mistakes costs one binary search.
#[derive(Debug)]
pub struct SourceText<'a> {
    file: &'a Path,
    text: &'a str,
    /// Ascending byte offsets; the first is 0.
    line_starts: Vec<usize>,
}

impl<'a> SourceText<'a> {
    pub fn new(file: &'a Path, text: &'a str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let line_starts = std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect();
        Self { file, text, line_starts }
    }

    pub fn file(&self) -> &'a Path {
        self.file
    }

    pub fn text(&self) -> &'a str {
        self.text
    }

    /// The number of the line that contains an offset, from 1.
    pub fn line(&self, at: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= at)
    }

    pub fn diagnostic(&self, severity: Severity, at: usize, message: String) -> Diagnostic {
        let at = floor_char_boundary(self.text, at);
        let line = self.line(at);
        let start = self.line_starts.get(line - 1).copied().unwrap_or(0);
        let source = excerpt(self.text.get(start..).unwrap_or(""));
        let column = self.text.get(start..at).map_or(0, |before| before.chars().count()) + 1;
        Diagnostic { file: self.file.to_owned(), line, column, source, message, severity }
    }
}

/// The mistakes in one text. Beyond the first ones, mistakes are only counted: nobody reads more,
/// and a generated file may have millions. Warnings never displace an error.
#[derive(Debug)]
pub struct Mistakes {
    kept: Vec<(Severity, usize, String)>,
    /// Most errors that are kept.
    errors_max: usize,
    /// Most warnings that are kept.
    warnings_max: usize,
    pub errors: usize,
    pub warnings: usize,
}

impl Mistakes {
    pub fn new(errors_max: usize, warnings_max: usize) -> Self {
        Self { kept: Vec::new(), errors_max, warnings_max, errors: 0, warnings: 0 }
    }

    /// Keeps a mistake. A value that is read for two purposes is wrong once.
    pub fn push(&mut self, severity: Severity, at: usize, message: String) {
        let mistake = (severity, at, message);
        if self.kept.contains(&mistake) {
            return;
        }
        let (number, max) = match severity {
            Severity::Error => (&mut self.errors, self.errors_max),
            Severity::Warning => (&mut self.warnings, self.warnings_max),
        };
        *number += 1;
        if *number <= max {
            self.kept.push(mistake);
        }
    }

    /// Takes those that were kept, in the order of the text, and the number of the others.
    pub fn all(mut self, source: &SourceText<'_>) -> Vec<Diagnostic> {
        let mut found = self.kept(source);
        found.extend(self.more(source.file, found.len()));
        found
    }

    /// Takes those that were kept, in the order of the text.
    pub fn kept(&mut self, source: &SourceText<'_>) -> Vec<Diagnostic> {
        self.kept.sort_by_key(|(_, at, _)| *at);
        let kept = self.kept.drain(..);
        kept.map(|(severity, at, message)| source.diagnostic(severity, at, message)).collect()
    }

    /// Counts those beyond the ones that are `shown`.
    pub fn more(&self, file: &Path, shown: usize) -> Option<Diagnostic> {
        let left_out = self.errors + self.warnings - shown;
        let severity = if self.errors > 0 { Severity::Error } else { Severity::Warning };
        let message = format!("and {left_out} more");
        let more = Diagnostic { severity, ..Diagnostic::of_file(file, message) };
        (left_out > 0).then_some(more)
    }
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// The beginning of the first line. A key pasted by mistake should not fill the terminal, and a
/// thousand mistakes in one line of megabytes must not copy it a thousand times.
fn excerpt(text: &str) -> String {
    // Two more, so that CR LF at the end is included.
    let near = text.char_indices().nth(EXCERPT_CHARS_MAX + 2).and_then(|(end, _)| text.get(..end));
    let line = near.unwrap_or(text).lines().next().unwrap_or("");
    line.chars().take(EXCERPT_CHARS_MAX).collect()
}

/// Spaces up to the column. Tabs of the line are kept, so that the caret is below its place.
fn caret_indent(source: &str, column: usize) -> String {
    let before = source.chars().take(column.saturating_sub(1).min(EXCERPT_CHARS_MAX));
    before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect()
}

/// Characters of a line that are shown.
const EXCERPT_CHARS_MAX: usize = 160;
