//! The matchers `method` and `path` of a rule.

use std::fmt;

use super::glob::PathGlob;
use super::request::{NormalPath, RequestFacts, RequestFault};
use crate::matcher::{Matcher, SortedList, listed};

/// A request that a rule takes. Its variants belong to different matchers, both of which must hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestPattern {
    /// `method`: requests with this method.
    Method(Box<str>),
    /// `path`: requests for these paths.
    Path(PathGlob),
}

/// The patterns, in one allocation: most rules have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RequestMatchers(SortedList<RequestPattern>);

impl FromIterator<RequestPattern> for RequestMatchers {
    fn from_iter<I: IntoIterator<Item = RequestPattern>>(patterns: I) -> Self {
        Self(patterns.into_iter().collect())
    }
}

/// The outcome of comparing a request with a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    Holds,
    Fails(Matcher),
    /// The rule asks for what could be read in different ways.
    Unclear(RequestFault),
}

/// The fault of a text that is no method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodFault {
    /// It is no token (RFC 9110 section 9.1), or too long.
    NoToken,
    /// It has lower-case letters: methods are case-sensitive, and all known ones have none.
    LowerCase,
}

impl fmt::Display for MethodFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoToken => "a method is one word, such as \"GET\"",
            Self::LowerCase => "methods are case-sensitive; write it in upper case",
        })
    }
}

impl RequestPattern {
    /// Reads a method.
    ///
    /// # Errors
    /// It is none.
    pub fn method(text: &str) -> Result<Self, MethodFault> {
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if text.is_empty() || text.len() > METHOD_BYTES_MAX || !text.bytes().all(is_token) {
            return Err(MethodFault::NoToken);
        }
        if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
            return Err(MethodFault::LowerCase);
        }
        Ok(Self::Method(text.into()))
    }
}

impl RequestMatchers {
    /// True if they take any request.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if they ask for the method. The list is sorted, so methods come first.
    #[inline]
    pub fn asks_method(&self) -> bool {
        matches!(self.0.first(), Some(RequestPattern::Method(_)))
    }

    /// True if they ask for the path.
    #[inline]
    pub fn asks_path(&self) -> bool {
        matches!(self.0.last(), Some(RequestPattern::Path(_)))
    }

    /// Compares a request with them. `normal` keeps the form of its path.
    #[inline]
    pub(crate) fn check<'a>(
        &self,
        request: &RequestFacts<'a>,
        normal: &mut NormalPath<'a>,
    ) -> RequestOutcome {
        if self.asks_method() {
            if request.has_override() {
                return RequestOutcome::Unclear(RequestFault::Override);
            }
            // No method of a rule has a lower-case letter.
            if !self.take_method(request.method) {
                let is_unclear = request.method.bytes().any(|byte| byte.is_ascii_lowercase());
                return match is_unclear {
                    true => RequestOutcome::Unclear(RequestFault::LowerCase),
                    false => RequestOutcome::Fails(Matcher::Method),
                };
            }
        }
        if !self.asks_path() {
            return RequestOutcome::Holds;
        }
        // Such a path is its own normal form.
        if self.paths().any(|glob| glob.is_text(request.path)) && !request.has_other_path() {
            return RequestOutcome::Holds;
        }
        match request.normal_path(normal) {
            Err(fault) => RequestOutcome::Unclear(fault),
            Ok(path) if self.take_path(path) => RequestOutcome::Holds,
            Ok(_) => RequestOutcome::Fails(Matcher::Path),
        }
    }

    /// True if a method is taken.
    #[inline]
    pub fn take_method(&self, method: &str) -> bool {
        !self.asks_method() || self.methods().any(|taken| taken == method)
    }

    /// True if a path in its normal form is taken.
    #[inline]
    pub fn take_path(&self, path: &str) -> bool {
        !self.asks_path() || self.paths().any(|glob| glob.matches(path))
    }

    fn methods(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|pattern| match pattern {
            RequestPattern::Method(method) => Some(&**method),
            RequestPattern::Path(_) => None,
        })
    }

    fn paths(&self) -> impl Iterator<Item = &PathGlob> {
        self.0.iter().filter_map(|pattern| match pattern {
            RequestPattern::Path(glob) => Some(glob),
            RequestPattern::Method(_) => None,
        })
    }

    /// True if these take whatever `narrow` takes.
    pub(crate) fn covers(&self, narrow: &Self) -> bool {
        let methods = !self.asks_method()
            || narrow.asks_method() && narrow.methods().all(|method| self.take_method(method));
        let is_covered = |glob: &PathGlob| self.paths().any(|wide| wide.covers(glob));
        let paths = !self.asks_path() || narrow.asks_path() && narrow.paths().all(is_covered);
        methods && paths
    }

    pub(crate) fn text(&self, matcher: Matcher) -> String {
        match matcher {
            Matcher::Method => listed(self.methods()),
            Matcher::Path => listed(self.paths()),
            _ => String::new(),
        }
    }
}

/// Longest method in a rule. Known ones have at most 17 bytes.
const METHOD_BYTES_MAX: usize = 32;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn matchers(methods: &[&str], paths: &[&str]) -> RequestMatchers {
        let methods = methods.iter().map(|method| RequestPattern::method(method).unwrap());
        let paths = paths.iter().map(|path| RequestPattern::Path(path.parse().unwrap()));
        methods.chain(paths).collect()
    }

    #[test]
    fn both_matchers_must_hold() {
        let both = matchers(&["GET", "HEAD"], &["/a/*", "/b"]);
        for (method, path, is) in [
            ("GET", "/a/x", true),
            ("HEAD", "/b", true),
            ("get", "/b", false),
            ("POST", "/b", false),
            ("GET", "/c", false),
        ] {
            assert_eq!(both.take_method(method) && both.take_path(path), is, "{method} {path}");
        }
    }

    #[test]
    fn wider_matchers_cover() {
        for (wide, narrow, covers) in [
            (matchers(&[], &[]), matchers(&["GET"], &["/a"]), true),
            (matchers(&["GET"], &[]), matchers(&[], &[]), false),
            (matchers(&["GET", "POST"], &["/a/*"]), matchers(&["GET"], &["/a/b"]), true),
            (matchers(&["GET"], &["/a/*"]), matchers(&["GET"], &[]), false),
            (matchers(&[], &["/a/*"]), matchers(&["GET"], &["/a/b", "/c"]), false),
        ] {
            assert_eq!(wide.covers(&narrow), covers, "{wide:?} {narrow:?}");
        }
    }

    #[test]
    fn a_method_is_an_upper_case_token() {
        for (text, fault) in [
            ("", MethodFault::NoToken),
            ("GET POST", MethodFault::NoToken),
            ("get", MethodFault::LowerCase),
            ("Get", MethodFault::LowerCase),
        ] {
            assert_eq!(RequestPattern::method(text), Err(fault), "{text}");
        }
        assert!(RequestPattern::method("M-SEARCH").is_ok());
    }
}
