//! Globs over the normal form of a path. `*` stands for any characters, slashes too.

use std::fmt;
use std::str::FromStr;

use super::path::{PathFault, normalize_text};

/// A pattern of paths, in their normal form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathGlob(Box<str>);

/// The fault of a text that is no glob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GlobFault {
    /// It begins with neither `/` nor `*`.
    Begin,
    /// It has a fault that no path may have either, so it would never match.
    Path(PathFault),
    /// It has a query or a fragment, which a path does not.
    Query,
    /// It has more than 1,024 bytes.
    TooLong,
}

impl fmt::Display for GlobFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin => f.write_str("a path begins with \"/\", and a glob with \"/\" or \"*\""),
            Self::Path(PathFault::DotSegment) => {
                f.write_str("no request with a segment \".\" or \"..\" passes, so it never matches")
            }
            Self::Path(fault) => write!(f, "no such request passes ({fault}), so it never matches"),
            Self::Query => f.write_str("a path has no query and no fragment; leave them out"),
            Self::TooLong => write!(f, "a glob has at most {GLOB_BYTES_MAX} bytes"),
        }
    }
}

impl FromStr for PathGlob {
    type Err = GlobFault;

    /// Reads a glob as a configuration has it. Characters that a path encodes may stand as they
    /// are.
    fn from_str(text: &str) -> Result<Self, GlobFault> {
        if !text.starts_with(['/', '*']) {
            return Err(GlobFault::Begin);
        }
        if text.len() > GLOB_BYTES_MAX {
            return Err(GlobFault::TooLong);
        }
        if text.contains(['?', '#']) {
            return Err(GlobFault::Query);
        }
        let mut encoded = String::with_capacity(text.len());
        for char in text.chars() {
            match char {
                '!'..='~' if !matches!(char, '"' | '<' | '>' | '^' | '`' | '{' | '|' | '}') => {
                    encoded.push(char);
                }
                other => {
                    let bytes = other.encode_utf8(&mut [0; 4]).bytes().collect::<Vec<_>>();
                    encoded.extend(bytes.iter().map(|byte| format!("%{byte:02X}")));
                }
            }
        }
        let normal = normalize_text(&encoded).map_err(GlobFault::Path)?;
        let mut glob = normal.into_owned();
        while glob.contains("**") {
            glob = glob.replace("**", "*");
        }
        Ok(Self(glob.into()))
    }
}

impl PathGlob {
    /// True if a path is its text, which matches: stars stand for themselves then. The text is a
    /// normal form. `OPTIONS *` has no path.
    pub(super) fn is_text(&self, path: &str) -> bool {
        path.starts_with('/') && *self.0 == *path
    }

    /// True if it matches a path in its normal form.
    pub fn matches(&self, path: &str) -> bool {
        if self.is_text(path) {
            return true;
        }
        // By bytes, because a search for a `char` costs more than all of a short path.
        let Some(star) = self.0.bytes().position(|byte| byte == b'*') else { return false };
        let (first, behind) = (&self.0[..star], &self.0[star + 1..]);
        let Some(mut rest) = path.strip_prefix(first) else { return false };
        // As most globs with a star: a search for more pieces costs more than all of this.
        if behind.is_empty() {
            return true;
        }
        let mut pieces = behind.split('*');
        let last = pieces.next_back().unwrap_or_default();
        // The leftmost place of each piece leaves most to those behind it.
        for piece in pieces {
            let Some(at) = rest.find(piece) else { return false };
            rest = &rest[at + piece.len()..];
        }
        rest.ends_with(last)
    }

    /// True if it matches whatever `narrow` matches. Any text that stands for a star of `narrow`
    /// stands within one of these.
    pub(super) fn covers(&self, narrow: &Self) -> bool {
        self.matches(&narrow.0)
    }
}

/// Writes the normal form.
impl fmt::Display for PathGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Longest glob, in bytes.
pub(crate) const GLOB_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::requests::path::normalize_path;

    #[test]
    fn a_star_stands_for_anything() {
        for (glob, path, matches) in [
            ("/a", "/a", true),
            ("/a", "/a/", false),
            ("/a", "/A", false),
            ("/public/*", "/public/", true),
            ("/public/*", "/public/a/b", true),
            ("/public/*", "/public", false),
            ("/public/**", "/public/a/b", true),
            ("*", "/", true),
            ("*.git/info/refs", "/org/repo.git/info/refs", true),
            ("/org/*/git-upload-pack", "/org/repo/git-upload-pack", true),
            ("/org/*/git-upload-pack", "/org/repo/git-receive-pack", false),
            ("/org/*/x*z", "/org/a/x/z", true),
            ("/a*a", "/a", false),
            ("/a*a", "/aa", true),
            ("/*ab*ab", "/ab", false),
            ("/*ab*ab", "/abxab", true),
            ("/a b/\u{e9}", "/a%20b/%C3%A9", true),
            ("/%40scope/*", "/@scope/x", true),
        ] {
            let read: PathGlob = glob.parse().unwrap();
            assert_eq!(read.matches(path), matches, "{glob} {path}");
        }
    }

    #[test]
    fn a_glob_that_never_matches_is_none() {
        for (glob, fault) in [
            ("", GlobFault::Begin),
            ("public", GlobFault::Begin),
            ("/a/../b", GlobFault::Path(PathFault::DotSegment)),
            ("/a//b", GlobFault::Path(PathFault::EmptySegment)),
            ("/a%2fb", GlobFault::Path(PathFault::EncodedSlash)),
            ("/a;b", GlobFault::Path(PathFault::Parameter)),
            ("/a?b", GlobFault::Query),
            ("/a#b", GlobFault::Query),
        ] {
            assert_eq!(glob.parse::<PathGlob>(), Err(fault), "{glob}");
        }
        assert_eq!("/a".repeat(600).parse::<PathGlob>(), Err(GlobFault::TooLong));
    }

    #[test]
    fn the_text_of_a_glob_is_a_normal_form() {
        for (glob, path) in [
            ("/a", Some("/a")),
            ("/a*", Some("/a*")),
            ("/a**b", Some("/a*b")),
            ("/%25**41", Some("/%25*41")),
            ("/%61 b/\u{e9}%2f*", None),
            ("/%61 b/\u{e9}", Some("/a%20b/%C3%A9")),
            ("*", None),
            ("*/a", None),
        ] {
            let read = glob.parse::<PathGlob>().ok();
            let normal = read.as_ref().and_then(|glob| normalize_path(&glob.0).ok());
            assert_eq!(normal.as_deref(), path, "{glob}");
            let is_text = |text: &str| read.as_ref().is_some_and(|read| read.is_text(text));
            assert_eq!(is_text(path.unwrap_or(glob)), path.is_some(), "{glob}");
        }
    }

    #[test]
    fn a_wider_glob_covers() {
        for (wide, narrow, covers) in [
            ("*", "/a", true),
            ("/a/*", "/a/b", true),
            ("/a/*", "/a/b*c", true),
            ("/a/b", "/a/*", false),
            ("/a*z", "/a*", false),
            ("/a*z", "/a*yz", true),
        ] {
            let [one, other]: [PathGlob; 2] = [wide, narrow].map(|glob| glob.parse().unwrap());
            assert_eq!(one.covers(&other), covers, "{wide} {narrow}");
        }
    }
}
