//! Typed reading of a TOML document. It reports every mistake and continues.

use std::collections::HashSet;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diagnostic::{Diagnostic, Severity, Source};
use crate::elsewhere;

/// The mistakes found so far.
pub(super) struct Report<'a> {
    source: Source<'a>,
    diagnostics: Vec<Diagnostic>,
    /// Mistakes in files that the configuration names.
    of_other_files: Vec<Diagnostic>,
    /// Parts of the text are not TOML: something that seems to be missing may be there.
    damaged: bool,
    errors: usize,
    warnings: usize,
}

impl<'a> Report<'a> {
    pub(super) fn new(file: &'a Path, text: &'a str) -> Self {
        let source = Source::new(file, text);
        Self {
            source,
            diagnostics: Vec::new(),
            of_other_files: Vec::new(),
            damaged: false,
            errors: 0,
            warnings: 0,
        }
    }

    pub(super) fn error(&mut self, at: usize, message: impl Into<String>) {
        self.push(Severity::Error, at, message.into());
    }

    pub(super) fn warning(&mut self, at: usize, message: impl Into<String>) {
        self.push(Severity::Warning, at, message.into());
    }

    pub(super) fn syntax_error(&mut self, at: usize, message: impl Into<String>) {
        self.damaged = true;
        self.error(at, message);
    }

    /// Reports something missing. Does nothing for a damaged text, which may contain it.
    pub(super) fn missing(&mut self, at: usize, message: impl Into<String>) {
        if !self.damaged {
            self.error(at, message);
        }
    }

    /// Returns the value, or reports the error at `at`.
    pub(super) fn keep<T, E: Display>(&mut self, at: usize, read: Result<T, E>) -> Option<T> {
        read.map_err(|why| self.error(at, why.to_string())).ok()
    }

    pub(super) fn line(&self, at: usize) -> usize {
        self.source.line(at)
    }

    /// Adds the mistakes in a file that the configuration names.
    pub(super) fn of_other_file(&mut self, found: Vec<Diagnostic>) {
        let errors = found.iter().filter(|found| found.severity == Severity::Error).count();
        self.errors += errors;
        self.warnings += found.len() - errors;
        self.of_other_files.extend(found);
    }

    /// All mistakes in the order of the text, then those in other files, and whether one is an
    /// error.
    pub(super) fn finish(mut self) -> (Vec<Diagnostic>, bool) {
        self.diagnostics.sort_by_key(|diagnostic| (diagnostic.line, diagnostic.column));
        let fatal = self.errors > 0;
        self.diagnostics.append(&mut self.of_other_files);
        let left_out = self.errors + self.warnings - self.diagnostics.len();
        if left_out > 0 {
            let severity = if fatal { Severity::Error } else { Severity::Warning };
            let message = format!("and {left_out} more");
            let mut more = self.source.diagnostic(severity, 0, message);
            more.line = 0;
            self.diagnostics.push(more);
        }
        (self.diagnostics, fatal)
    }

    /// Beyond the first ones, mistakes are only counted. Warnings never displace an error.
    fn push(&mut self, severity: Severity, at: usize, message: String) {
        let (number, max) = match severity {
            Severity::Error => (&mut self.errors, ERRORS_MAX),
            Severity::Warning => (&mut self.warnings, WARNINGS_MAX),
        };
        *number += 1;
        if *number <= max {
            self.diagnostics.push(self.source.diagnostic(severity, at, message));
        }
    }
}

/// A table of the document.
#[derive(Clone, Copy)]
pub(super) struct Section<'t, 'i> {
    /// As written: `[[rule]]`.
    pub(super) title: &'static str,
    pub(super) table: &'t DeTable<'i>,
    /// The offset of its header.
    pub(super) at: usize,
}

/// A string and its offset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text<'t> {
    pub(super) text: &'t str,
    pub(super) at: usize,
}

impl<'t, 'i> Section<'t, 'i> {
    /// Reports keys that are not in `known`.
    pub(super) fn check_keys(&self, report: &mut Report<'_>, known: &[&str]) {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if known.contains(&name) {
                continue;
            }
            let is_task = TASK_TITLES.contains(&self.title);
            if let Some(sentence) = elsewhere::sentence(name).filter(|_| is_task) {
                report.error(key.span().start, format!("unknown key `{name}`: {sentence}"));
                continue;
            }
            let title = self.title;
            let message = match nearest(name, known.iter().copied()) {
                Some(near) => format!("unknown key `{name}` in {title}; did you mean `{near}`?"),
                None if known.len() > KEYS_SHOWN_MAX => format!(
                    "unknown key `{name}` in {title}; docs/configuration.md lists the known ones"
                ),
                None => {
                    let known = known.join(", ");
                    format!("unknown key `{name}` in {title} (known keys: {known})")
                }
            };
            report.error(key.span().start, message);
        }
    }

    pub(super) fn value(&self, key: &str) -> Option<&'t Spanned<DeValue<'i>>> {
        self.table.get(key)
    }

    /// The offset of `key` itself.
    pub(super) fn key_at(&self, key: &str) -> Option<usize> {
        self.table.get_key_value(key).map(|(key, _)| key.span().start)
    }

    pub(super) fn text(&self, report: &mut Report<'_>, key: &str) -> Option<Text<'t>> {
        self.text_of(report, key, "a string")
    }

    /// A string in a format, such as a duration. `expected` names the format in messages.
    pub(super) fn text_of(
        &self,
        report: &mut Report<'_>,
        key: &str,
        expected: &str,
    ) -> Option<Text<'t>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some(Text { text, at: value.span().start }),
            other => wrong_type(report, key, value, other, expected),
        }
    }

    /// A string, or a list of strings that is not empty.
    pub(super) fn texts(&self, report: &mut Report<'_>, key: &str) -> Option<Vec<Text<'t>>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some(vec![Text { text, at: value.span().start }]),
            DeValue::Array(array) if array.is_empty() => {
                let message =
                    format!("`{key}` is an empty list; list something, or leave `{key}` out");
                report.error(value.span().start, message);
                None
            }
            // The valid strings are used, so that mistakes in them are found, too.
            DeValue::Array(array) => {
                Some(strings_of(report, key, array.iter())).filter(|texts| !texts.is_empty())
            }
            other => wrong_type(report, key, value, other, "a string or a list of strings"),
        }
    }

    /// A string or a table, or a list of these that is not empty: the strings, and the tables.
    pub(super) fn texts_and_tables(
        &self,
        report: &mut Report<'_>,
        key: &str,
        title: &'static str,
    ) -> (Vec<Text<'t>>, Vec<Section<'t, 'i>>) {
        let Some(value) = self.value(key) else { return (Vec::new(), Vec::new()) };
        let section = |table, at| Section { title, table, at };
        let array = match value.get_ref() {
            DeValue::Table(table) => return (Vec::new(), vec![section(table, value.span().start)]),
            DeValue::Array(array) => array,
            _ => return (self.texts(report, key).unwrap_or_default(), Vec::new()),
        };
        let tables = array.iter().filter_map(|item| match item.get_ref() {
            DeValue::Table(table) => Some(section(table, item.span().start)),
            _ => None,
        });
        let tables: Vec<Section<'t, 'i>> = tables.collect();
        if tables.is_empty() {
            return (self.texts(report, key).unwrap_or_default(), tables);
        }
        let others = array.iter().filter(|item| !matches!(item.get_ref(), DeValue::Table(_)));
        (strings_of(report, key, others), tables)
    }

    pub(super) fn flag(&self, report: &mut Report<'_>, key: &str) -> Option<bool> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Boolean(flag) => Some(*flag),
            other => wrong_type(report, key, value, other, "true or false"),
        }
    }

    /// A whole number within `range`; a message names the range.
    pub(super) fn number(
        &self,
        report: &mut Report<'_>,
        key: &str,
        range: RangeInclusive<usize>,
    ) -> Option<usize> {
        let value = self.value(key)?;
        let DeValue::Integer(number) = value.get_ref() else {
            return wrong_type(report, key, value, value.get_ref(), "a whole number");
        };
        let parsed = usize::from_str_radix(number.as_str(), number.radix()).ok();
        let within = parsed.filter(|number| range.contains(number));
        if within.is_none() {
            let (low, high) = (range.start(), range.end());
            let message = format!("`{key}` is {number}; expected {low} to {high}");
            report.error(value.span().start, message);
        }
        within
    }

    /// The tables of `key`, written `[[key]]`.
    pub(super) fn sections(
        &self,
        report: &mut Report<'_>,
        key: &str,
        title: &'static str,
    ) -> Vec<Section<'t, 'i>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let DeValue::Array(array) = value.get_ref() else {
            let kind = value.get_ref().type_str();
            let message = format!("`{key}` is a {kind} here; there may be several: write {title}");
            report.error(value.span().start, message);
            return Vec::new();
        };
        let mut sections = Vec::with_capacity(array.len());
        for item in array {
            match item.get_ref() {
                DeValue::Table(table) => {
                    sections.push(Section { title, table, at: item.span().start });
                }
                other => {
                    wrong_type::<()>(report, key, item, other, "a table");
                }
            }
        }
        sections
    }

    /// The table of `key`, written `[key]`.
    pub(super) fn section(
        &self,
        report: &mut Report<'_>,
        key: &str,
        title: &'static str,
    ) -> Option<Section<'t, 'i>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(Section { title, table, at: value.span().start }),
            DeValue::Array(_) => {
                let message = format!("there is one {title} only, in single brackets");
                report.error(value.span().start, message);
                None
            }
            other => wrong_type(report, key, value, other, "a table"),
        }
    }
}

/// The candidate with the fewest edits, if it is close enough to be a typing mistake.
pub(super) fn nearest<'c>(
    word: &str,
    candidates: impl Iterator<Item = &'c str>,
) -> Option<&'c str> {
    let word = word.get(..word.len().min(WORD_BYTES_MAX))?;
    let slips_max = (word.chars().count() / 3).clamp(1, 3);
    let by_distance = candidates.map(|candidate| (edits(word, candidate), candidate));
    let nearest = by_distance.min_by_key(|(edits, _)| *edits)?;
    (nearest.0 <= slips_max).then_some(nearest.1)
}

/// The first text that occurs twice.
pub(super) fn repeated<'t>(texts: &[Text<'t>]) -> Option<Text<'t>> {
    let mut seen = HashSet::new();
    texts.iter().copied().find(|text| !seen.insert(text.text))
}

/// The number of edits (insert, delete, replace) between two words, by the usual table with one
/// row.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, to) in row.iter_mut().skip(1).zip(&b) {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = *cell;
            left = replaced.min(left + 1).min(*cell + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

fn strings_of<'t, 'i: 't>(
    report: &mut Report<'_>,
    key: &str,
    items: impl Iterator<Item = &'t Spanned<DeValue<'i>>>,
) -> Vec<Text<'t>> {
    let mut texts = Vec::with_capacity(items.size_hint().0);
    for item in items {
        match item.get_ref() {
            DeValue::String(text) => texts.push(Text { text, at: item.span().start }),
            other => {
                wrong_type::<()>(report, key, item, other, "strings in the list");
            }
        }
    }
    texts
}

fn wrong_type<T>(
    report: &mut Report<'_>,
    key: &str,
    value: &Spanned<DeValue<'_>>,
    found: &DeValue<'_>,
    expected: &str,
) -> Option<T> {
    let kind = found.type_str();
    let article = if kind.starts_with(['a', 'i']) { "an" } else { "a" };
    let message = format!("`{key}` is {article} {kind}; expected {expected}");
    report.error(value.span().start, message);
    None
}

/// Most errors that are kept: nobody reads more, and a generated file may have millions.
const ERRORS_MAX: usize = 1_000;

/// Most warnings that are kept.
const WARNINGS_MAX: usize = 200;

/// Where people write what they know from other programs. In other tables a key such as `path` is
/// a mistake of another kind.
const TASK_TITLES: [&str; 4] = ["[[listener]]", "[[rule]]", "[http]", "the file"];
/// Most keys that a message lists. A rule knows sixty, and nobody finds one among them.
const KEYS_SHOWN_MAX: usize = 12;
/// Longest unknown key that is compared with the known ones, in bytes. All of those are shorter.
const WORD_BYTES_MAX: usize = 64;
