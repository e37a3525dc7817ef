//! The `match` of a dictionary: a path with `*`, the part of URL Pattern without regular
//! expressions. It has no origin, because a dictionary never leaves its own. Also the patterns of a
//! rule, in which `{file}` stands for what tells one file from another.

use std::fmt;

/// A path in which `*` stands for any characters, also `/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pattern(Box<str>);

/// The reason why a text is not a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternFault {
    /// It is relative: clients would resolve it against the dictionary's URL, but operators read it
    /// here.
    #[error("a pattern starts with \"/\", such as \"/assets/app.*.js\"")]
    Relative,
    /// A character with a meaning in URL Pattern: clients refuse groups (RFC 9842 section 2.1.1).
    #[error(
        "{0:?} has a meaning in URL patterns that clients refuse; use \"*\" and \"{{file}}\" only"
    )]
    Special(char),
    /// A character that cannot be in the header field.
    #[error("a pattern is printable ASCII; percent-encode the rest")]
    Unprintable,
    /// Nothing says where one ends and the next begins: one of them would always be empty.
    #[error("\"*\" and {{file}} need text between them")]
    Adjacent,
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
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if a path, without its query, matches.
    pub fn matches(&self, path: &str) -> bool {
        self.parts(path).is_some()
    }

    /// Returns the text for each `*` in a path that matches. Linear: each part between two `*` is
    /// searched for once, and its leftmost position leaves most to the rest.
    fn parts<'a>(&self, path: &'a str) -> Option<Vec<&'a str>> {
        let mut literals = self.0.split('*');
        let mut left = path.strip_prefix(literals.next()?)?;
        let literals: Vec<&str> = literals.collect();
        let Some((last, middle)) = literals.split_last() else {
            return left.is_empty().then(Vec::new);
        };
        let mut wild = Vec::with_capacity(literals.len());
        for literal in middle {
            let (before, rest) = left.split_once(literal)?;
            wild.push(before);
            left = rest;
        }
        wild.push(left.strip_suffix(last)?);
        Some(wild)
    }
}

/// A rule's pattern: `*` is what differs between versions of a file, `{file}` is what differs
/// between files. Without `{file}` all paths that match are versions of one file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FilePattern {
    /// The pattern with `*` instead of `{file}`.
    all: Pattern,
    /// Says if each `*` of `all` stands for `{file}`.
    is_file: Box<[bool]>,
}

impl FilePattern {
    /// Reads a rule's pattern.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(text: &str) -> Result<Self, PatternFault> {
        let all = Pattern::new(&text.replace(FILE, "*"))?;
        if all.0.contains("**") {
            return Err(PatternFault::Adjacent);
        }
        let (mut is_file, mut left) = (Vec::new(), text);
        while let Some(at) = left.find(['*', '{']) {
            let rest = left.get(at..).unwrap_or_default();
            is_file.push(rest.starts_with(FILE));
            left = rest.strip_prefix(FILE).or_else(|| rest.get(1..)).unwrap_or_default();
        }
        Ok(Self { all, is_file: is_file.into() })
    }

    /// True if the pattern has `{file}`.
    pub fn is_per_file(&self) -> bool {
        self.is_file.contains(&true)
    }

    /// True if no other file has the `match` of this path: no character of its file became `*`.
    pub fn is_exact(&self, path: &str) -> bool {
        let wild = self.all.parts(path).unwrap_or_default();
        let mut files = wild.iter().zip(&self.is_file).filter(|(_, is_file)| **is_file);
        files.all(|(file, _)| !file.contains('*') && !file.contains(SPECIAL))
    }

    /// The `match` of the file at a path, without its query. `None` if the path is not one of
    /// these, or its `match` is too long.
    ///
    /// A character of the path with a meaning in URL Pattern becomes `*`. So `/c++/a.h` and
    /// `/c--/a.h` are two files, and `/a+b` and `/a:b` count as one.
    pub fn of(&self, path: &str) -> Option<Pattern> {
        if !self.is_per_file() {
            return self.all.matches(path).then(|| self.all.clone());
        }
        let wild = self.all.parts(path)?;
        let mut found = String::new();
        for (at, literal) in self.all.0.split('*').enumerate() {
            if let Some(before) = at.checked_sub(1) {
                match self.is_file.get(before) {
                    Some(true) => found.extend(wild.get(before)?.chars().map(plain)),
                    _ => found.push('*'),
                }
            }
            found.push_str(literal);
        }
        // URL Pattern takes a second `*` for a modifier of the first.
        while found.contains("**") {
            found = found.replace("**", "*");
        }
        Pattern::new(&found).ok()
    }
}

fn plain(found: char) -> char {
    if SPECIAL.contains(&found) { '*' } else { found }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// In a rule's pattern: what tells one file from another.
const FILE: &str = "{file}";

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
    fn a_file_has_a_match_of_its_own() {
        let svn = "/svn/!svn/rvr/*/{file}";
        for (pattern, path, found) in [
            (svn, "/svn/!svn/rvr/7/trunk/a.c", Some("/svn/!svn/rvr/*/trunk/a.c")),
            (svn, "/svn/!svn/rvr/8/trunk/a.c", Some("/svn/!svn/rvr/*/trunk/a.c")),
            (svn, "/svn/!svn/rvr/8/c++/a(1).h", Some("/svn/!svn/rvr/*/c*/a*1*.h")),
            (svn, "/svn/!svn/rvr/8", None),
            (svn, "/svn/trunk/a.c", None),
            ("/{file}.*.js", "/assets/app.1.js", Some("/assets/app.*.js")),
            ("/{file}/rvr/*/{file}", "/a/rvr/7/b", Some("/a/rvr/*/b")),
            ("/assets/*.js", "/assets/a.js", Some("/assets/*.js")),
            ("/a.js", "/a.js", Some("/a.js")),
        ] {
            let of = FilePattern::new(pattern).unwrap().of(path);
            assert_eq!(of.as_ref().map(Pattern::as_str), found, "{pattern} {path}");
            assert!(of.is_none_or(|of| of.matches(path)), "{pattern} {path}");
        }
        let long = format!("/svn/!svn/rvr/7/{}", "a".repeat(PATTERN_BYTES_MAX));
        assert_eq!(FilePattern::new(svn).unwrap().of(&long), None);
        for wrong in ["/{files}", "/{file", "/file}", "{file}", "/{}"] {
            assert!(FilePattern::new(wrong).is_err(), "{wrong}");
        }
        for wrong in ["/{file}*", "/*{file}", "/{file}{file}", "/a**"] {
            assert_eq!(FilePattern::new(wrong), Err(PatternFault::Adjacent), "{wrong}");
        }
        for (path, is_exact) in [
            ("/svn/!svn/rvr/8/trunk/a.c", true),
            ("/svn/!svn/rvr/8/c++/a.h", false),
            ("/svn/!svn/rvr/8/c:+/a.h", false),
            ("/svn/!svn/rvr/8/c*/a.h", false),
        ] {
            assert_eq!(FilePattern::new(svn).unwrap().is_exact(path), is_exact, "{path}");
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
