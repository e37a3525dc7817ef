//! Typed reading of a TOML document. It reports every mistake and continues.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diagnostic::{Diagnostic, Mistakes, Severity, SourceText};
use crate::elsewhere;

/// The text of a document, and the mistakes found in it so far.
pub struct Report<'a> {
    source: SourceText<'a>,
    found: RefCell<Found>,
}

struct Found {
    mistakes: Mistakes,
    /// Mistakes in files that the configuration names.
    of_other_files: Vec<Diagnostic>,
    /// Each unknown key that was taken for another: the place of its table, itself, and the other.
    meant: Vec<(usize, String, String)>,
    /// The places of tables with unknown keys.
    misread: HashSet<usize>,
    /// The places where the text is not TOML: something that seems to be missing may be there, and
    /// a value there has a mistake already.
    damage: HashSet<usize>,
}

impl<'a> Report<'a> {
    pub fn new(file: &'a Path, text: &'a str) -> Self {
        let mistakes = Mistakes::new(ERRORS_MAX, WARNINGS_MAX);
        let (of_other_files, meant) = (Vec::new(), Vec::new());
        let misread = HashSet::new();
        let found = Found { mistakes, of_other_files, meant, misread, damage: HashSet::new() };
        Self { source: SourceText::new(file, text), found: RefCell::new(found) }
    }

    /// Parses the text, and reports what is not TOML.
    pub fn parse(&self) -> Spanned<DeTable<'a>> {
        let (table, faults) = DeTable::parse_recoverable(self.source.text());
        for fault in faults {
            let at = fault.span().map_or(self.source.text().len(), |span| span.start);
            self.push(Severity::Error, at, format!("not TOML: {}", fault.message()));
            self.found.borrow_mut().damage.insert(at);
        }
        table
    }

    /// The whole document.
    pub fn document<'t>(&'t self, table: &'t Spanned<DeTable<'t>>) -> Section<'t> {
        Section { title: "the file", table: table.get_ref(), at: self.place(0) }
    }

    pub fn place(&self, at: usize) -> Place<'_> {
        Place { report: self, at }
    }

    /// Adds the mistakes in a file that the configuration names.
    pub fn of_other_file(&self, mistakes: Vec<Diagnostic>) {
        let errors = mistakes.iter().filter(|found| found.severity == Severity::Error).count();
        let found = &mut *self.found.borrow_mut();
        found.mistakes.errors += errors;
        found.mistakes.warnings += mistakes.len() - errors;
        found.of_other_files.extend(mistakes);
    }

    /// All mistakes in the order of the text, then those in other files, and whether one is an
    /// error.
    pub fn finish(self) -> (Vec<Diagnostic>, bool) {
        let Found { mut mistakes, mut of_other_files, .. } = self.found.into_inner();
        let mut diagnostics = mistakes.kept(&self.source);
        diagnostics.append(&mut of_other_files);
        diagnostics.extend(mistakes.more(self.source.file(), diagnostics.len()));
        (diagnostics, mistakes.errors > 0)
    }

    fn push(&self, severity: Severity, at: usize, message: String) {
        let mut found = self.found.borrow_mut();
        if !found.damage.contains(&at) {
            found.mistakes.push(severity, at, message);
        }
    }
}

/// A place in the document. Mistakes there go to its report.
#[derive(Clone, Copy)]
pub struct Place<'t> {
    pub report: &'t Report<'t>,
    /// The offset.
    at: usize,
}

impl Place<'_> {
    pub fn error(self, message: impl Into<String>) {
        self.report.push(Severity::Error, self.at, message.into());
    }

    pub fn warning(self, message: impl Into<String>) {
        self.report.push(Severity::Warning, self.at, message.into());
    }

    /// Reports something missing. Does nothing for a damaged text, which may contain it.
    pub fn missing(self, message: impl Into<String>) {
        if self.report.found.borrow().damage.is_empty() {
            self.error(message);
        }
    }

    /// Returns the value, or reports the error here.
    pub fn keep<T, E: Display>(self, read: Result<T, E>) -> Option<T> {
        read.map_err(|why| self.error(why.to_string())).ok()
    }

    pub fn line(self) -> usize {
        self.report.source.line(self.at)
    }
}

/// A table of the document.
#[derive(Clone, Copy)]
pub struct Section<'t> {
    /// Its title as written: `[[rule]]`.
    pub title: &'static str,
    pub table: &'t DeTable<'t>,
    /// The place of its header.
    pub at: Place<'t>,
}

/// A string and its place.
#[derive(Clone, Copy)]
pub struct Text<'t> {
    pub text: &'t str,
    pub at: Place<'t>,
}

impl<'t> Text<'t> {
    /// Reads the text, or reports the error.
    pub fn parse<T, E: Display>(self, read: impl FnOnce(&'t str) -> Result<T, E>) -> Option<T> {
        self.at.keep(read(self.text))
    }
}

impl<'t> Section<'t> {
    /// Reports keys that are not in `known`.
    pub fn check_keys(&self, known: &[&str]) {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if known.contains(&name) {
                continue;
            }
            let at = self.place(key);
            self.at.report.found.borrow_mut().misread.insert(self.at.at);
            let sentence = elsewhere::sentence(self.title, name);
            let near = match sentence {
                // It begins with the key that does the task here.
                Some(sentence) => sentence.split(['`', ' ']).nth(1),
                None => nearest(name, known.iter().copied()),
            };
            if let Some(near) = near {
                let meant = (self.at.at, name.to_owned(), near.to_owned());
                self.at.report.found.borrow_mut().meant.push(meant);
            }
            if let Some(sentence) = sentence {
                at.error(format!("unknown key `{name}`: {sentence}"));
                continue;
            }
            let title = self.title;
            at.error(match near {
                Some(near) => format!("unknown key `{name}` in {title}; did you mean `{near}`?"),
                None if known.len() > KEYS_SHOWN_MAX => format!(
                    "unknown key `{name}` in {title}; docs/configuration.md lists the known ones"
                ),
                None => {
                    let known = known.join(", ");
                    format!("unknown key `{name}` in {title} (known keys: {known})")
                }
            });
        }
    }

    /// True if an unknown key was taken for a slip of `key`. Then that is the mistake, and not that
    /// `key` is missing.
    fn has_mistyped(&self, key: &str) -> bool {
        self.mistyped(key).is_some()
    }

    /// The value of an unknown key that was taken for a slip of `key`.
    fn mistyped(&self, key: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        let found = self.at.report.found.borrow();
        let mut meant = found.meant.iter();
        let (_, name, _) = meant.find(|(at, _, meant)| *at == self.at.at && meant == key)?;
        self.table.get(name.as_str())
    }

    /// True if it has an unknown key: then what the table says is not what somebody meant.
    pub fn is_misread(&self) -> bool {
        self.at.report.found.borrow().misread.contains(&self.at.at)
    }

    /// Reports that something is missing which one of `keys` would say. Does nothing if an unknown
    /// key was taken for a slip of one: that is the mistake.
    pub fn missing(&self, keys: &[&str], message: impl Into<String>) {
        if !keys.iter().any(|key| self.has_mistyped(key)) {
            self.at.missing(message);
        }
    }

    /// True if `key` is certainly missing: no slip stands for it, and the text is whole TOML.
    pub fn lacks(&self, key: &str) -> bool {
        let is_damaged = !self.at.report.found.borrow().damage.is_empty();
        self.value(key).is_none() && !is_damaged && !self.has_mistyped(key)
    }

    pub fn value(&self, key: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.table.get(key)
    }

    /// The place of a key or value of this table.
    pub fn place<T>(&self, part: &Spanned<T>) -> Place<'t> {
        self.at.report.place(part.span().start)
    }

    /// The place of `key` itself.
    pub fn key_at(&self, key: &str) -> Option<Place<'t>> {
        self.table.get_key_value(key).map(|(key, _)| self.place(key))
    }

    /// The place of the value of `key`, or of the header if there is none.
    pub fn value_at(&self, key: &str) -> Place<'t> {
        self.value(key).map_or(self.at, |value| self.place(value))
    }

    pub fn text(&self, key: &str) -> Option<Text<'t>> {
        self.text_of(key, "a string")
    }

    /// A string in a format, such as a duration. `expected` names the format in messages.
    pub fn text_of(&self, key: &str, expected: &str) -> Option<Text<'t>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some(Text { text, at: self.place(value) }),
            _ => self.wrong_type(key, value, expected),
        }
    }

    /// Reads the string of `key`, or reports the error.
    pub fn parsed<T, E: Display>(
        &self,
        key: &str,
        read: impl FnOnce(&'t str) -> Result<T, E>,
    ) -> Option<T> {
        self.text(key)?.parse(read)
    }

    /// Looks the string of `key` up in `words`. `is_not` says what another word is not.
    pub fn word<T: Copy>(&self, key: &str, is_not: &str, words: &[(&str, T)]) -> Option<T> {
        self.value(key)?;
        let quoted: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let expected = listed(&quoted, "or");
        let text = self.text_of(key, &expected)?;
        let found = words.iter().find(|(word, _)| *word == text.text);
        if found.is_none() {
            text.at.error(format!("\"{}\"{is_not} expected {expected}", text.text));
        }
        found.map(|(_, value)| *value)
    }

    /// The string of a key that must be there. `without` is the mistake if it is not.
    pub fn required(&self, key: &str, without: impl Into<String>) -> Option<Text<'t>> {
        if self.value(key).is_none() {
            self.missing(&[key], without);
        }
        self.text(key)
    }

    /// The strings of two keys that belong together.
    pub fn both(&self, one: &str, other: &str) -> Option<(Text<'t>, Text<'t>)> {
        match (self.text(one), self.text(other)) {
            (Some(one), Some(other)) => return Some((one, other)),
            (Some(alone), None) | (None, Some(alone)) => {
                alone.at.error(format!("`{one}` and `{other}` belong together"));
            }
            (None, None) => {}
        }
        None
    }

    /// Finds those of `keys` that the table has, and their places.
    pub fn present<'k>(&self, keys: &'k [&'k str]) -> impl Iterator<Item = (&'k str, Place<'t>)> {
        keys.iter().filter_map(|key| Some((*key, self.key_at(key)?)))
    }

    /// Reads each string of `key`, and reports the errors.
    pub fn each_parsed<T, E: Display>(
        &self,
        key: &str,
        read: impl Fn(&'t str) -> Result<T, E>,
    ) -> Vec<T> {
        let texts = self.texts(key).unwrap_or_default();
        texts.into_iter().filter_map(|text| text.parse(&read)).collect()
    }

    /// A string, or a list of strings that is not empty.
    pub fn texts(&self, key: &str) -> Option<Vec<Text<'t>>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some(vec![Text { text, at: self.place(value) }]),
            DeValue::Array(array) if array.is_empty() => {
                let message =
                    format!("`{key}` is an empty list; list something, or leave `{key}` out");
                self.place(value).error(message);
                None
            }
            // The valid strings are used, so that mistakes in them are found, too.
            DeValue::Array(array) => {
                Some(self.strings_of(key, array.iter())).filter(|texts| !texts.is_empty())
            }
            _ => self.wrong_type(key, value, "a string or a list of strings"),
        }
    }

    /// A string or a table, or a list of these that is not empty: the strings, and the tables.
    pub fn texts_and_tables(&self, key: &str, title: &'static str) -> (Vec<Text<'t>>, Vec<Self>) {
        let items = match self.value(key).map(|value| (value, value.get_ref())) {
            Some((value, DeValue::Table(_))) => std::slice::from_ref(value),
            Some((_, DeValue::Array(array))) => array,
            _ => return (self.texts(key).unwrap_or_default(), Vec::new()),
        };
        let tables = items.iter().filter_map(|item| match item.get_ref() {
            DeValue::Table(table) => Some(Section { title, table, at: self.place(item) }),
            _ => None,
        });
        let tables: Vec<Self> = tables.collect();
        if tables.is_empty() {
            return (self.texts(key).unwrap_or_default(), tables);
        }
        let others = items.iter().filter(|item| !matches!(item.get_ref(), DeValue::Table(_)));
        (self.strings_of(key, others), tables)
    }

    pub fn flag(&self, key: &str) -> Option<bool> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Boolean(flag) => Some(*flag),
            _ => self.wrong_type(key, value, "true or false"),
        }
    }

    /// A whole number within `range`; a message names the range.
    pub fn number(&self, key: &str, range: RangeInclusive<usize>) -> Option<usize> {
        let value = self.value(key)?;
        let DeValue::Integer(number) = value.get_ref() else {
            return self.wrong_type(key, value, "a whole number");
        };
        let parsed = usize::from_str_radix(number.as_str(), number.radix()).ok();
        let within = parsed.filter(|number| range.contains(number));
        if within.is_none() {
            let (low, high) = (range.start(), range.end());
            self.place(value).error(format!("`{key}` is {number}; expected {low} to {high}"));
        }
        within
    }

    /// A whole number of 32 bits, or a list of them that is not empty.
    pub fn numbers(&self, key: &str) -> Vec<u32> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let items = match value.get_ref() {
            DeValue::Array(array) if !array.is_empty() => array,
            _ => std::slice::from_ref(value),
        };
        let numbers = items.iter().filter_map(|item| {
            let number = match item.get_ref() {
                DeValue::Integer(number) => {
                    u32::from_str_radix(number.as_str(), number.radix()).ok()
                }
                _ => None,
            };
            if number.is_none() {
                let message = format!("`{key}` takes whole numbers from 0 to {}", u32::MAX);
                self.place(item).error(message);
            }
            number
        });
        numbers.collect()
    }

    /// The tables of `key`, written `[[key]]`. Those of a slip are read as well, and one in single
    /// brackets, so that mistakes in them are found, too.
    pub fn sections(&self, key: &str, title: &'static str) -> Vec<Self> {
        let value = self.value(key).or_else(|| self.mistyped(key));
        let Some(value) = value else { return Vec::new() };
        let DeValue::Array(array) = value.get_ref() else {
            let kind = value.get_ref().type_str();
            let message = format!("`{key}` is a {kind} here; there may be several: write {title}");
            self.place(value).error(message);
            // A table of tables gives names to what has none here.
            let table = value
                .get_ref()
                .as_table()
                .filter(|table| table.values().any(|value| !value.get_ref().is_table()));
            let at = self.place(value);
            return table.map(|table| Section { title, table, at }).into_iter().collect();
        };
        let sections = array.iter().filter_map(|item| match item.get_ref() {
            DeValue::Table(table) => Some(Section { title, table, at: self.place(item) }),
            _ => self.wrong_type(key, item, "a table"),
        });
        sections.collect()
    }

    /// The table of `key`, written `[key]`.
    pub fn section(&self, key: &str, title: &'static str) -> Option<Self> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(Section { title, table, at: self.place(value) }),
            DeValue::Array(_) => {
                let message = format!("there is one {title} only, in single brackets");
                self.place(value).error(message);
                None
            }
            _ => self.wrong_type(key, value, "a table"),
        }
    }

    /// The table of `key`, whose keys are `known`.
    pub fn known(&self, key: &str, title: &'static str, known: &[&str]) -> Option<Self> {
        let section = self.section(key, title)?;
        section.check_keys(known);
        Some(section)
    }

    fn strings_of(
        &self,
        key: &str,
        items: impl Iterator<Item = &'t Spanned<DeValue<'t>>>,
    ) -> Vec<Text<'t>> {
        let texts = items.filter_map(|item| match item.get_ref() {
            DeValue::String(text) => Some(Text { text, at: self.place(item) }),
            _ => self.wrong_type(key, item, "strings in the list"),
        });
        texts.collect()
    }

    fn wrong_type<T>(&self, key: &str, value: &Spanned<DeValue<'_>>, expected: &str) -> Option<T> {
        let kind = value.get_ref().type_str();
        let article = if kind.starts_with(['a', 'i']) { "an" } else { "a" };
        self.place(value).error(format!("`{key}` is {article} {kind}; expected {expected}"));
        None
    }
}

/// The candidate with the fewest edits, if it is close enough to be a typing mistake.
pub fn nearest<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let word = word.get(..word.len().min(WORD_BYTES_MAX))?;
    let slips_max = (word.chars().count() / 3).clamp(1, 3);
    let by_distance =
        candidates.map(|candidate| (strsim::osa_distance(word, candidate), candidate));
    let nearest = by_distance.min_by_key(|(edits, _)| *edits)?;
    (nearest.0 <= slips_max).then_some(nearest.1)
}

/// The first text that occurs twice.
pub fn repeated<'t>(texts: &[Text<'t>]) -> Option<Text<'t>> {
    let mut seen = HashSet::new();
    texts.iter().copied().find(|text| !seen.insert(text.text))
}

/// `a`, `a and b`, or `a, b and c`, with another word for `and`.
pub fn listed<T: AsRef<str>>(items: &[T], and: &str) -> String {
    let items: Vec<&str> = items.iter().map(AsRef::as_ref).collect();
    match items[..] {
        [] => String::new(),
        [one] => one.to_owned(),
        [ref before @ .., last] => format!("{} {and} {last}", before.join(", ")),
    }
}

/// Most errors that are kept.
const ERRORS_MAX: usize = 1_000;

/// Most warnings that are kept.
const WARNINGS_MAX: usize = 200;

/// Most keys that a message lists. A rule knows sixty, and nobody finds one among them.
const KEYS_SHOWN_MAX: usize = 12;
/// Longest unknown key that is compared with the known ones, in bytes. All of those are shorter.
const WORD_BYTES_MAX: usize = 64;
