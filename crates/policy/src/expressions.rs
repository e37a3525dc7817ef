//! Regular expressions on names. They are compiled when a configuration or a file is read. A search
//! takes time linear in the name, whatever a client sends.

use std::fmt;

use regex::bytes::{RegexSet, RegexSetBuilder};
use thiserror::Error;

/// Regular expressions of one list. A name matches if any of them is found in it.
///
/// Each thread that searches borrows a cache of states from the library. It waits for no other
/// thread: if it cannot take one at once, it makes one.
#[derive(Clone, Debug, Default)]
pub struct NameExpressions {
    set: RegexSet,
}

/// The fault of a regular expression.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExpressionFault {
    /// None, where there must be one.
    #[error("there is no regular expression")]
    Empty,
    /// Longer than `EXPRESSION_BYTES_MAX`.
    #[error("a regular expression has at most {EXPRESSION_BYTES_MAX} bytes")]
    TooLong,
    /// More than [`EXPRESSIONS_MAX`].
    #[error("a list has at most {EXPRESSIONS_MAX} regular expressions; list names instead")]
    TooMany,
    /// Compiled, they are larger than `COMPILED_BYTES_MAX`.
    #[error("the compiled list has more than {} KiB; list names instead", COMPILED_BYTES_MAX >> 10)]
    TooLarge,
    /// The library cannot read it.
    #[error("{0}")]
    Syntax(Box<str>),
}

impl NameExpressions {
    /// Compiles them.
    ///
    /// # Errors
    /// What is wrong with one of them, or with all together.
    pub fn new<'a>(
        expressions: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, ExpressionFault> {
        let expressions: Vec<&str> = expressions.into_iter().collect();
        if expressions.len() > EXPRESSIONS_MAX {
            return Err(ExpressionFault::TooMany);
        }
        if expressions.iter().any(|expression| expression.is_empty()) {
            return Err(ExpressionFault::Empty);
        }
        if expressions.iter().any(|expression| expression.len() > EXPRESSION_BYTES_MAX) {
            return Err(ExpressionFault::TooLong);
        }
        // Names are ASCII and in lower case here (RFC 6066 section 3), so Unicode's tables are no
        // use, and an expression may be written in any case.
        let mut builder = RegexSetBuilder::new(expressions);
        builder.unicode(false).case_insensitive(true);
        builder.size_limit(COMPILED_BYTES_MAX).dfa_size_limit(CACHE_BYTES_MAX);
        match builder.build() {
            Ok(set) => Ok(Self { set }),
            Err(regex::Error::CompiledTooBig(_)) => Err(ExpressionFault::TooLarge),
            Err(error) => Err(ExpressionFault::Syntax(reason(&error).into())),
        }
    }

    /// The number of expressions.
    pub fn len(&self) -> usize {
        self.set.len()
    }

    /// True if there is none. Then no name matches.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// True if one is found in `name`, which is lower-case. An absent name, `""`, matches none.
    #[inline]
    pub fn contains(&self, name: &str) -> bool {
        !name.is_empty() && self.set.is_match(name.as_bytes())
    }

    /// The first that is found in `name`.
    pub fn find(&self, name: &str) -> Option<&str> {
        let first = self.set.matches(name.as_bytes()).iter().next();
        let found = first.filter(|_| !name.is_empty())?;
        self.set.patterns().get(found).map(String::as_str)
    }
}

/// Writes them as in the configuration, cut to a few.
impl fmt::Display for NameExpressions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::matcher::listed(self.set.patterns().iter()))
    }
}

/// The last line of the library's message. Those before it repeat the expression.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

/// Most bytes of one regular expression: no name has more than 253, so longer ones are mistakes.
const EXPRESSION_BYTES_MAX: usize = 1024;

/// Most regular expressions of a list. More are names in most cases, for which there is an index.
pub const EXPRESSIONS_MAX: usize = 512;

/// Most lists of regular expressions. Their caches may take 0.75 MiB a list and worker.
pub const EXPRESSION_LISTS_MAX: usize = 32;

/// Most bytes of a compiled list. It bounds the time of a search too, which is at most proportional
/// to this and to the name's length. 1 MiB took 47 ms for a name of 252 bytes. 150 expressions such
/// as `(^|\.)host1\.example$` fit.
const COMPILED_BYTES_MAX: usize = 256 << 10;

/// Most bytes of states that a worker's cache has for a list. All states of most lists that fit in
/// [`COMPILED_BYTES_MAX`] fit here, so a search takes about 70 ns, and one that meets a new state
/// some microseconds.
const CACHE_BYTES_MAX: usize = 512 << 10;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn an_expression_is_found_anywhere_unless_it_is_anchored() {
        let list = [r"(^|\.)evil\.example$", "^ads[0-9]+-", "Tracker", r"^a\.b$"];
        let list = NameExpressions::new(list).unwrap();
        for (name, found) in [
            ("evil.example", Some(r"(^|\.)evil\.example$")),
            ("www.evil.example", Some(r"(^|\.)evil\.example$")),
            ("notevil.example", None),
            ("evil.example.net", None),
            ("evilxexample", None),
            ("ads17-eu.example", Some("^ads[0-9]+-")),
            ("xads17-eu.example", None),
            ("my-tracker.example", Some("Tracker")),
            ("a.b", Some(r"^a\.b$")),
            ("", None),
        ] {
            assert_eq!(list.find(name), found, "{name}");
            assert_eq!(list.contains(name), found.is_some(), "{name}");
        }
    }

    /// A hello without a name is not one with a short name.
    #[test]
    fn an_absent_name_matches_nothing() {
        let list = NameExpressions::new([".*", "^$", "x*"]).unwrap();
        assert!(!list.contains(""));
        assert_eq!(list.find(""), None);
        assert!(list.contains("a"));
        assert!(!NameExpressions::default().contains("a"));
    }

    #[test]
    fn each_mistake() {
        let fault = |text: &str| NameExpressions::new([text]).unwrap_err();
        assert_eq!(fault(""), ExpressionFault::Empty);
        assert_eq!(fault(&"a".repeat(EXPRESSION_BYTES_MAX + 1)), ExpressionFault::TooLong);
        assert_eq!(fault("((a{100}){100}){100}"), ExpressionFault::TooLarge);
        for (text, why) in [
            ("(a", "unclosed group"),
            ("a{2,1}", "invalid repetition count range, the start must be <= the end"),
            (r"(a)\1", "backreferences are not supported"),
            ("(?=a)", "look-around, including look-ahead and look-behind, is not supported"),
        ] {
            assert_eq!(fault(text), ExpressionFault::Syntax(why.into()), "{text}");
        }
    }

    /// An expression's own words about case do not matter, in whatever form it has them.
    #[test]
    fn case_does_not_matter() {
        for text in ["^ADS", "^[A-Z]ds", r"^\x41ds", "^[[:upper:]]ds"] {
            assert!(NameExpressions::new([text]).unwrap().contains("ads.example"), "{text}");
        }
    }

    fn hosts(number: usize) -> Vec<String> {
        (0..number).map(|n| format!(r"(^|\.)host{n}x\.example$")).collect()
    }

    #[test]
    fn a_list_is_bounded_by_number_and_by_size() {
        let compile = |texts: &[String]| NameExpressions::new(texts.iter().map(String::as_str));
        let texts = hosts(150);
        let list = compile(&texts).unwrap();
        assert_eq!(list.find("a.host149x.example"), Some(texts[149].as_str()));
        assert!(!list.contains(&"host149".repeat(36)));
        assert_eq!(compile(&hosts(EXPRESSIONS_MAX)).unwrap_err(), ExpressionFault::TooLarge);
        assert_eq!(compile(&hosts(10_000)).unwrap_err(), ExpressionFault::TooMany);
        let short: Vec<String> = (0..EXPRESSIONS_MAX).map(|n| n.to_string()).collect();
        assert_eq!(compile(&short).unwrap().len(), EXPRESSIONS_MAX);
    }

    /// A search that went back would take 2^253 steps for each.
    #[test]
    fn nested_repetitions_are_searched_once() {
        for text in ["(a+)+$", "^(a|aa)+$", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$", "(.*)*x"] {
            let list = NameExpressions::new([text]).unwrap();
            assert!(!list.contains(&("a".repeat(252) + "!")), "{text}");
        }
    }
}
