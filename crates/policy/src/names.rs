//! Name patterns of rules, and the index that finds the rules of a name.
//! Knows nothing of a rule's other matchers.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use eyelet_wire::hello::{HostName, SniFault};
use thiserror::Error;

/// What a rule's `sni` may list. Lower-cased; displays as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NamePattern {
    /// `""`: a hello without a name.
    Absent,
    /// `bank.example`: this name.
    Exact(Box<str>),
    /// `*.bank.example`: one or more labels before the suffix, which is held without `*.`.
    Suffix(Box<str>),
}

/// What is wrong with a name pattern, and what is expected instead.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum NamePatternFault {
    /// An address: RFC 6066 section 3 forbids it, so no hello ever matches.
    #[error("a hello never asks for an IP address; use `destination` for addresses")]
    IpLiteral,
    /// A name that no hello can carry, by the check that the hello reader makes.
    #[error("no hello is read with such a name: {0}")]
    Name(SniFault),
    /// An internationalised name in its display form.
    #[error("the name is not ASCII; write it as hellos carry it, in its xn-- form")]
    NotAscii,
    /// `a.example.`: one spelling too many.
    #[error("a name in a hello has no dot at its end; leave it out")]
    TrailingDot,
    /// `*`, which would be every name.
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
        // As the hello reader spells it, so that a rule and a hello cannot differ by spelling.
        let name: Box<str> =
            HostName::new(name.as_bytes()).map_err(|fault| fault_of(name, fault))?.as_str().into();
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

/// From name to the rules that list it. A name costs its own bytes, the 24-byte bucket below
/// and its control byte at a load between 7/16 and 7/8, and 4 bytes for each rule that lists it.
#[derive(Debug, Default)]
pub(crate) struct NameIndex {
    /// The key of `NamePattern::Absent` is `""`.
    exact: HashMap<Box<str>, Slot>,
    suffixes: HashMap<Box<str>, Slot>,
    /// Rule ids, ascending within each slot.
    rules: Box<[u32]>,
    /// Bit n: some suffix has n labels. Saves the lookups of depths that no rule lists.
    suffix_depths: u128,
}

/// A part of `NameIndex::rules`. Its `Default` is the empty part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot {
    start: u32,
    len: u32,
}

impl NameIndex {
    pub(crate) fn new<'a>(rules: impl Iterator<Item = (u32, &'a [NamePattern])>) -> Self {
        let mut pairs: Vec<(&NamePattern, u32)> = Vec::new();
        for (rule, patterns) in rules {
            pairs.extend(patterns.iter().map(|pattern| (pattern, rule)));
        }
        pairs.sort_unstable();
        pairs.dedup();
        let mut index = Self::default();
        let suffixes = pairs.iter().filter(|(name, _)| matches!(name, NamePattern::Suffix(_)));
        let suffixes = suffixes.count();
        // A bound, not the number: names listed by several rules are counted several times.
        index.suffixes.reserve(suffixes);
        index.exact.reserve(pairs.len() - suffixes);
        let mut start = 0_u32;
        for group in pairs.chunk_by(|a, b| a.0 == b.0) {
            let len = u32::try_from(group.len()).unwrap_or(u32::MAX);
            if let Some((pattern, _)) = group.first() {
                index.insert(pattern, Slot { start, len });
            }
            start = start.saturating_add(len);
        }
        index.rules = pairs.iter().map(|(_, rule)| *rule).collect();
        index.exact.shrink_to_fit();
        index.suffixes.shrink_to_fit();
        index
    }

    fn insert(&mut self, pattern: &NamePattern, slot: Slot) {
        match pattern {
            NamePattern::Absent => self.exact.insert(Box::default(), slot),
            NamePattern::Exact(name) => self.exact.insert(name.clone(), slot),
            NamePattern::Suffix(suffix) => {
                // A name has at most 127 labels, a suffix of one at most 126.
                self.suffix_depths |= 1_u128.checked_shl(labels(suffix)).unwrap_or(0);
                self.suffixes.insert(suffix.clone(), slot)
            }
        };
    }

    /// The rules that list `name` or a suffix of it; `""` is the absent name.
    pub(crate) fn find<'a>(&'a self, name: &str, found: &mut Found<'a>) {
        if let Some(slot) = self.exact.get(name) {
            found.push(self.part(*slot));
        }
        self.find_suffixes(name, found);
    }

    /// The rules that list every name that `pattern` stands for.
    pub(crate) fn find_covering<'a>(&'a self, pattern: &NamePattern, found: &mut Found<'a>) {
        match pattern {
            NamePattern::Absent => self.find("", found),
            NamePattern::Exact(name) => self.find(name, found),
            NamePattern::Suffix(suffix) => {
                if let Some(slot) = self.suffixes.get(suffix) {
                    found.push(self.part(*slot));
                }
                self.find_suffixes(suffix, found);
            }
        }
    }

    fn find_suffixes<'a>(&'a self, name: &str, found: &mut Found<'a>) {
        if self.suffix_depths == 0 {
            return;
        }
        let mut depth = labels(name);
        for (at, _) in name.match_indices('.') {
            depth -= 1;
            if self.suffix_depths & 1_u128.checked_shl(depth).unwrap_or(0) == 0 {
                continue;
            }
            if let Some(slot) = name.get(at + 1..).and_then(|suffix| self.suffixes.get(suffix)) {
                found.push(self.part(*slot));
            }
        }
    }

    /// The patterns that `rule` lists, in no order. Walks the whole index: for explanations only.
    pub(crate) fn patterns_of(&self, rule: u32) -> impl Iterator<Item = NamePattern> + '_ {
        let lists = move |slot: &Slot| self.part(*slot).binary_search(&rule).is_ok();
        let exact = self.exact.iter().filter(move |(_, slot)| lists(slot));
        let suffixes = self.suffixes.iter().filter(move |(_, slot)| lists(slot));
        let exact = exact.map(|(name, _)| match &**name {
            "" => NamePattern::Absent,
            _ => NamePattern::Exact(name.clone()),
        });
        exact.chain(suffixes.map(|(suffix, _)| NamePattern::Suffix(suffix.clone())))
    }

    fn part(&self, slot: Slot) -> &[u32] {
        let (start, len) = (slot.start as usize, slot.len as usize);
        self.rules.get(start..start + len).unwrap_or(&[])
    }

    /// Bytes on the heap beyond the names' own bytes: hash buckets with their control bytes (a
    /// table is at most 7/8 full, its size a power of two), rule ids, an allocation a name.
    #[cfg(test)]
    pub(crate) fn overhead_bytes(&self) -> usize {
        let bucket = size_of::<(Box<str>, Slot)>() + 1;
        let buckets = |capacity: usize| (capacity * 8).div_ceil(7).next_power_of_two();
        let tables = buckets(self.exact.capacity()) + buckets(self.suffixes.capacity());
        let names = self.exact.len() + self.suffixes.len();
        tables * bucket + self.rules.len() * 4 + names * ALLOCATION_OVERHEAD_BYTES
    }
}

/// The slots that a name found: lists of rule ids, each ascending, merged by `Iterator`.
pub(crate) struct Found<'a> {
    few: [&'a [u32]; FEW],
    len: usize,
    /// Those for which there is no room in `few`; a name has at most 126 suffixes.
    more: Vec<&'a [u32]>,
    /// No rule below this is given: each rule comes once, although several lists name it.
    next: u32,
}

impl<'a> Found<'a> {
    pub(crate) const fn new() -> Self {
        Self { few: [&[]; FEW], len: 0, more: Vec::new(), next: 0 }
    }

    pub(crate) fn push(&mut self, list: &'a [u32]) {
        if let Some(free) = self.few.get_mut(self.len) {
            *free = list;
            self.len += 1;
        } else {
            self.more.push(list);
        }
    }
}

impl Iterator for Found<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let mut least: Option<u32> = None;
        for list in self.few.get_mut(..self.len)?.iter_mut().chain(&mut self.more) {
            // Lists are short, but the one of rules without `sni` may be long and skipped far into.
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
        other => NamePatternFault::Name(other),
    }
}

/// Labels of a name that is not empty; 253 bytes hold at most 127.
fn labels(name: &str) -> u32 {
    name.bytes().fold(1, |labels, byte| labels + u32::from(byte == b'.'))
}

/// Slots that are found without an allocation: the name, the rules that list none, and suffixes.
const FEW: usize = 4;

/// What malloc adds to a name: an 8-byte header, and 8 bytes on average to the next 16.
#[cfg(test)]
const ALLOCATION_OVERHEAD_BYTES: usize = 16;

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
            (".example", Err(Fault::Name(SniFault::EmptyLabel))),
            ("*..example", Err(Fault::Name(SniFault::EmptyLabel))),
            ("a b", Err(Fault::Name(SniFault::BadCharacter(b' ')))),
            ("bücher.example", Err(Fault::NotAscii)),
            ("10.0.0.1", Err(Fault::IpLiteral)),
            ("::1", Err(Fault::IpLiteral)),
            ("[::1]", Err(Fault::IpLiteral)),
            ("app.example:443", Err(Fault::Name(SniFault::BadCharacter(b':')))),
        ] {
            assert_eq!(text.parse(), expected, "{text}");
        }
        assert_eq!("a".repeat(254).parse::<NamePattern>(), Err(Fault::Name(SniFault::TooLong)));
    }

    #[test]
    fn a_name_costs_less_than_a_hundred_bytes() {
        // Just above 7/8 of 2^17 buckets is the worst number: the table is half empty.
        for names in [100_000_u32, 114_689] {
            let rules: Vec<[NamePattern; 1]> = (0..names)
                .map(|n| [NamePattern::Exact(format!("host{n}.example").into())])
                .collect();
            let index = NameIndex::new((0..).zip(rules.iter().map(|rule| &rule[..])));
            let each = index.overhead_bytes() / names as usize;
            assert!(each <= 80, "{names} names cost {each} bytes each");
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
