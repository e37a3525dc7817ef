//! Name patterns of rules, and the index from a name to its rules.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use eyelet_wire::hello::{HostName, SniFault};
use thiserror::Error;

use crate::name_table::{Depths, NameTable, index_u32};

/// A pattern of `sni`, lower-cased. It displays as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NamePattern {
    /// `""`: a hello without a name.
    Absent,
    /// `bank.example`: this name.
    Exact(Box<str>),
    /// `*.bank.example`: one or more labels before the suffix. Stored without `*.`.
    Suffix(Box<str>),
}

/// The fault of a name pattern, and the expected form.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum NamePatternFault {
    /// No name, where a list must have one.
    #[error("there is no name")]
    Empty,
    /// An address. RFC 6066 section 3 forbids it, so no hello ever matches.
    #[error("a hello never asks for an IP address; use `destination` for addresses")]
    IpLiteral,
    /// A name that the hello reader calls malformed.
    #[error("a hello with such a name is malformed: {0}")]
    Name(SniFault),
    /// `.a.example`, which lists from files have for a name and all names below it.
    #[error(
        "a name has no dot before it; write the name, and \"*.\" and the name for those below it"
    )]
    LeadingDot,
    /// A URL, or a name with a port.
    #[error("expected a host name such as \"a.test\", without scheme, port and path")]
    Url,
    /// An internationalised name in its display form.
    #[error("the name is not ASCII; write it as hellos carry it, in its xn-- form")]
    NotAscii,
    /// `a.example.`: a second spelling.
    #[error("a name in a hello has no dot at its end; leave it out")]
    TrailingDot,
    /// `*`, which would match every name.
    #[error("\"*\" alone is not a pattern; leave `sni` out to match every name")]
    WildcardAlone,
    /// `a.*.b`, `*a.b`, `*.*.b`.
    #[error("\"*\" stands only as the whole first label, as in \"*.example.com\"")]
    WildcardInside,
    /// `*.` with nothing after it.
    #[error("nothing follows \"*.\"; expected a suffix, as in \"*.example.com\"")]
    WildcardOfNothing,
}

impl FromStr for NamePattern {
    type Err = NamePatternFault;

    fn from_str(text: &str) -> Result<Self, NamePatternFault> {
        if text.is_empty() {
            return Ok(Self::Absent);
        }
        match text {
            "*" => return Err(NamePatternFault::WildcardAlone),
            "*." => return Err(NamePatternFault::WildcardOfNothing),
            _ => {}
        }
        let (suffix, name) = match text.strip_prefix("*.") {
            Some(suffix) => (true, suffix),
            None => (false, text),
        };
        // The hello reader's spelling, so that a rule and a hello cannot differ in it.
        let read = HostName::new(name.as_bytes()).map_err(|fault| match fault {
            // Not behind `*.`.
            SniFault::EmptyLabel if !suffix && is_below(name) => NamePatternFault::LeadingDot,
            fault => fault_of(name, fault),
        });
        let name: Box<str> = read?.as_str().into();
        Ok(if suffix { Self::Suffix(name) } else { Self::Exact(name) })
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => Ok(()),
            Self::Exact(name) => f.write_str(name),
            Self::Suffix(suffix) => write!(f, "*.{suffix}"),
        }
    }
}

/// From a name to the rules that list it. A name costs its own bytes, 16 more, and 4 for each rule
/// that lists it. A table of separately allocated strings would cost 50 more.
#[derive(Debug, Default)]
pub(crate) struct NameIndex {
    /// The names as `key` spells them.
    names: NameTable,
    /// The end of each name's rules in `rules`. They begin where the previous name's end.
    rule_ends: Box<[u32]>,
    /// Rule ids, ascending for each name.
    rules: Box<[u32]>,
    /// The numbers of labels that suffixes have. They save look-ups at other depths.
    suffix_depths: Depths,
}

impl NameIndex {
    pub(crate) fn new<'a>(rules: impl Iterator<Item = (u32, &'a [NamePattern])>) -> Self {
        let mut pairs: Vec<(Cow<'a, str>, u32)> = Vec::new();
        let mut suffix_depths = Depths::default();
        for (rule, patterns) in rules {
            for pattern in patterns {
                if let NamePattern::Suffix(suffix) = pattern {
                    suffix_depths.add(suffix);
                }
                pairs.push((key(pattern), rule));
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        let mut names = NameTable::default();
        let mut rule_ends: Vec<u32> = Vec::new();
        for group in pairs.chunk_by(|a, b| a.0 == b.0) {
            names.insert(group.first().map_or("", |(name, _)| name));
            let before = rule_ends.last().copied().unwrap_or(0);
            rule_ends.push(before.saturating_add(index_u32(group.len())));
        }
        names.shrink();
        let rules = pairs.iter().map(|(_, rule)| *rule).collect();
        Self { names, rule_ends: rule_ends.into(), rules, suffix_depths }
    }

    /// The rules that list `name` or a suffix of it; `""` is the absent name.
    #[inline]
    pub(crate) fn find<'a>(&'a self, name: &str, found: &mut Found<'a>) {
        self.find_key(name, found);
        if !self.suffix_depths.is_empty() {
            self.find_suffixes(name, found);
        }
    }

    /// The rules that list every name that `pattern` matches.
    pub(crate) fn find_covering<'a>(&'a self, pattern: &NamePattern, found: &mut Found<'a>) {
        self.find_key(&key(pattern), found);
        if let NamePattern::Exact(name) | NamePattern::Suffix(name) = pattern {
            self.find_suffixes(name, found);
        }
    }

    fn find_suffixes<'a>(&'a self, name: &str, found: &mut Found<'a>) {
        for at in self.suffix_depths.dots(name) {
            self.find_key(name.get(at..).unwrap_or_default(), found);
        }
    }

    #[inline]
    fn find_key<'a>(&'a self, key: &str, found: &mut Found<'a>) {
        if let Some(number) = self.names.number(key) {
            found.push(self.rules_of(number));
        }
    }

    /// The patterns of `rule`, in no order. Walks the whole index: for explanations only.
    pub(crate) fn patterns_of(&self, rule: u32) -> impl Iterator<Item = NamePattern> + '_ {
        let numbers = 0..index_u32(self.names.len());
        let listed = numbers.filter(move |n| self.rules_of(*n).binary_search(&rule).is_ok());
        listed.map(|number| match self.names.name(number) {
            "" => NamePattern::Absent,
            name => match name.strip_prefix('.') {
                Some(suffix) => NamePattern::Suffix(suffix.into()),
                None => NamePattern::Exact(name.into()),
            },
        })
    }

    fn rules_of(&self, number: u32) -> &[u32] {
        let number = number as usize;
        let before = number.checked_sub(1).and_then(|before| self.rule_ends.get(before));
        let end = self.rule_ends.get(number).copied().unwrap_or_default();
        let start = before.copied().unwrap_or_default();
        self.rules.get(start as usize..end as usize).unwrap_or_default()
    }

    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.names.heap_bytes() + size_of_val(&*self.rule_ends) + size_of_val(&*self.rules)
    }
}

/// The key of a pattern in the index. A suffix has the dot before it, which no name begins with. So
/// the rest of a name after a label can be looked up as it is.
fn key(pattern: &NamePattern) -> Cow<'_, str> {
    match pattern {
        NamePattern::Absent => Cow::Borrowed(""),
        NamePattern::Exact(name) => Cow::Borrowed(name),
        NamePattern::Suffix(suffix) => Cow::Owned(format!(".{suffix}")),
    }
}

/// The lists of rule ids that were found for a name. Each is ascending; `Iterator` merges them.
pub(crate) struct Found<'a> {
    few: [&'a [u32]; FEW],
    few_len: usize,
    /// Further lists, for names whose suffixes are listed at many depths: at most 128, for a name
    /// of 127 labels. Allocated only if needed.
    more: Vec<&'a [u32]>,
    /// No rule below this is returned again, also if several lists contain it.
    next: u32,
}

impl<'a> Found<'a> {
    pub(crate) const fn new() -> Self {
        Self { few: [&[]; FEW], few_len: 0, more: Vec::new(), next: 0 }
    }

    pub(crate) fn push(&mut self, list: &'a [u32]) {
        if list.is_empty() {
            return;
        }
        match self.few.get_mut(self.few_len) {
            Some(free) => {
                *free = list;
                self.few_len += 1;
            }
            None => self.more.push(list),
        }
    }
}

impl Iterator for Found<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        // Nearly always one list has the name.
        if self.few_len == 1 {
            let [list, ..] = &mut self.few;
            let (first, rest) = list.split_first()?;
            *list = rest;
            return Some(*first);
        }
        let mut least: Option<u32> = None;
        for list in self.few.get_mut(..self.few_len)?.iter_mut().chain(&mut self.more) {
            // Lists are short, except for the one of rules without `sni`, which may skip far.
            if list.first().is_some_and(|first| *first < self.next) {
                *list = list.get(list.partition_point(|rule| *rule < self.next)..)?;
            }
            if let Some(first) = list.first() {
                least = Some(least.map_or(*first, |least| least.min(*first)));
            }
        }
        self.next = least?.saturating_add(1);
        least
    }
}

fn fault_of(name: &str, fault: SniFault) -> NamePatternFault {
    match fault {
        SniFault::IpLiteral => NamePatternFault::IpLiteral,
        _ if name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() => NamePatternFault::IpLiteral,
        _ if name.contains('*') => NamePatternFault::WildcardInside,
        SniFault::NonAscii => NamePatternFault::NotAscii,
        SniFault::TrailingDot => NamePatternFault::TrailingDot,
        SniFault::BadCharacter(b':' | b'/') => NamePatternFault::Url,
        other => NamePatternFault::Name(other),
    }
}

/// True if it is a name with a dot before it.
fn is_below(name: &str) -> bool {
    name.strip_prefix('.').is_some_and(|name| HostName::new(name.as_bytes()).is_ok())
}

/// Lists without allocation: the name itself, two suffixes, and the rules without `sni`.
const FEW: usize = 4;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn patterns_have_one_spelling() {
        use NamePatternFault as Fault;
        let exact = |name: &str| Ok(NamePattern::Exact(name.into()));
        let suffix = |name: &str| Ok(NamePattern::Suffix(name.into()));
        for (text, expected) in [
            ("", Ok(NamePattern::Absent)),
            ("App.Example", exact("app.example")),
            ("_dns.xn--bcher-kva.example", exact("_dns.xn--bcher-kva.example")),
            ("localhost", exact("localhost")),
            ("*.app.example", suffix("app.example")),
            ("*.Internal", suffix("internal")),
            ("*", Err(Fault::WildcardAlone)),
            ("*.", Err(Fault::WildcardOfNothing)),
            ("a.*.b", Err(Fault::WildcardInside)),
            ("*a.b", Err(Fault::WildcardInside)),
            ("*.*.b", Err(Fault::WildcardInside)),
            ("app.example.", Err(Fault::TrailingDot)),
            ("*.example.", Err(Fault::TrailingDot)),
            (".example", Err(Fault::LeadingDot)),
            ("..example", Err(Fault::Name(SniFault::EmptyLabel))),
            ("*..example", Err(Fault::Name(SniFault::EmptyLabel))),
            ("a b", Err(Fault::Name(SniFault::BadCharacter(b' ')))),
            ("bücher.example", Err(Fault::NotAscii)),
            ("10.0.0.1", Err(Fault::IpLiteral)),
            ("::1", Err(Fault::IpLiteral)),
            ("[::1]", Err(Fault::IpLiteral)),
            ("app.example:443", Err(Fault::Url)),
            ("https://a.test/", Err(Fault::Url)),
        ] {
            assert_eq!(text.parse(), expected, "{text}");
        }
        assert_eq!("a".repeat(254).parse::<NamePattern>(), Err(Fault::Name(SniFault::TooLong)));
    }

    #[test]
    fn a_name_costs_its_own_bytes_and_sixteen() {
        for names in [1, 10_000, 114_689_usize] {
            let text: Vec<String> = (0..names).map(|n| format!("host{n}.example")).collect();
            let rules: Vec<[NamePattern; 1]> =
                text.iter().map(|name| [NamePattern::Exact(name.as_str().into())]).collect();
            let index = NameIndex::new((0..).zip(rules.iter().map(|rule| &rule[..])));
            let own: usize = text.iter().map(String::len).sum();
            assert_eq!(index.heap_bytes(), own + names * (16 + 4));
            for (number, name) in text.iter().enumerate() {
                let mut found = Found::new();
                index.find(name, &mut found);
                assert_eq!(found.collect::<Vec<_>>(), [number as u32], "{name}");
            }
        }
    }

    #[test]
    fn found_lists_are_merged_in_order_and_once() {
        let mut found = Found::new();
        for list in [&[1, 4, 9][..], &[], &[0, 4, 5], &[9]] {
            found.push(list);
        }
        assert_eq!(found.collect::<Vec<_>>(), [0, 1, 4, 5, 9]);
    }

    #[test]
    fn the_longest_names_are_found() {
        let labels = |count: usize| vec!["a"; count].join(".");
        let longest = labels(127);
        let listed: Vec<[NamePattern; 1]> =
            (1..127).map(|count| [NamePattern::Suffix(labels(count).into())]).collect();
        let index = NameIndex::new((0..).zip(listed.iter().map(|rule| &rule[..])));
        let mut found = Found::new();
        index.find(&longest, &mut found);
        assert_eq!(found.count(), 126);
    }
}
