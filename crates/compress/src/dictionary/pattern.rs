//! The `match` of a dictionary: a path with `*`, the part of URL Pattern without regular
//! expressions. It has no origin, because a dictionary never leaves its own.

use std::fmt;

/// A path in which `*` stands for any characters, also `/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pattern(Box<str>);

/// Why a text is not a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternFault {
    /// It is relative: clients would resolve it against the dictionary's URL, but operators read it
    /// here.
    #[error("a pattern starts with \"/\", such as \"/assets/app.*.js\"")]
    Relative,
    /// A character with a meaning in URL Pattern: clients refuse groups (RFC 9842 section 2.1.1).
    #[error("{0:?} has a meaning in URL patterns that clients refuse; use \"*\" only")]
    Special(char),
    /// A character that cannot be in the header field.
    #[error("a pattern is printable ASCII; percent-encode the rest")]
    Unprintable,
    /// Longer than [`PATTERN_BYTES_MAX`].
    #[error("longer than {PATTERN_BYTES_MAX} bytes")]
    Long,
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(text: &str) -> Result<Self, PatternFault> {
        if !text.starts_with('/') {
            return Err(PatternFault::Relative);
        }
        if text.len() > PATTERN_BYTES_MAX {
            return Err(PatternFault::Long);
        }
        if let Some(found) = text.chars().find(|found| SPECIAL.contains(found)) {
            return Err(PatternFault::Special(found));
        }
        if text.bytes().any(|byte| !(0x21..0x7F).contains(&byte)) {
            return Err(PatternFault::Unprintable);
        }
        Ok(Self(text.into()))
    }

    /// The pattern as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a path, without its query, matches. Linear: each part between two `*` is searched
    /// for once, and its leftmost position leaves most to the rest.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        let mut parts = self.0.split('*');
        let Some(mut left) = parts.next().and_then(|first| path.strip_prefix(first)) else {
            return false;
        };
        let parts: Vec<&str> = parts.collect();
        let Some((last, middle)) = parts.split_last() else { return left.is_empty() };
        for part in middle {
            let Some((_, rest)) = left.split_once(part) else { return false };
            left = rest;
        }
        left.ends_with(last)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const SPECIAL: [char; 11] = ['(', ')', '{', '}', ':', '?', '+', '\\', '"', '#', '['];

/// Most bytes of a pattern: it is sent with every response that becomes a dictionary.
pub const PATTERN_BYTES_MAX: usize = 512;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn paths_as_a_table() {
        for (pattern, path, matches) in [
            ("/app.js", "/app.js", true),
            ("/app.js", "/app.js2", false),
            ("/assets/app.*.js", "/assets/app.1.js", true),
            ("/assets/app.*.js", "/assets/app..js", true),
            ("/assets/app.*.js", "/assets/app.js", false),
            ("/assets/app.*.js", "/assets/app.a/b.js", true),
            ("/assets/app.*.js", "/x/assets/app.1.js", false),
            ("/*", "/", true),
            ("/*/v*/x", "/a/v1/x", true),
            ("/*/v*/x", "/a/v1/x/v/x", true),
            ("/*/v*/x", "/a/w1/x", false),
            ("/a*a", "/a", false),
            ("/a**b", "/ab", true),
        ] {
            let read = Pattern::new(pattern).unwrap();
            assert_eq!(read.matches(path), matches, "{pattern} {path}");
        }
    }

    #[test]
    fn patterns_that_clients_refuse_are_refused() {
        for (text, fault) in [
            ("app.js", PatternFault::Relative),
            ("", PatternFault::Relative),
            ("/app.(\\d+).js", PatternFault::Special('(')),
            ("/:name.js", PatternFault::Special(':')),
            ("/a?", PatternFault::Special('?')),
            ("/a b", PatternFault::Unprintable),
            ("/\u{e9}", PatternFault::Unprintable),
        ] {
            assert_eq!(Pattern::new(text), Err(fault));
        }
    }
}
