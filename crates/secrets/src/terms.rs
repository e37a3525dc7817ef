//! The placeholder of a secret, and the requests in which its value may stand.

use std::fmt;
use std::str::FromStr;

use eyelet_policy::NamePattern;
use http::Method;
use http::header::HeaderName;

/// Fewest bytes of a placeholder: no other text has it by chance.
const PLACEHOLDER_BYTES_MIN: usize = 16;
/// Most bytes of a placeholder. It is also the name of a variable.
const PLACEHOLDER_BYTES_MAX: usize = 128;

/// A text that stands for a secret. It is itself no secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placeholder(Box<str>);

/// The reason why a text is no placeholder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceholderFault {
    /// It has another byte than a letter, a digit, `_` or `-`.
    #[error("a placeholder has letters, digits, \"_\" and \"-\" only")]
    Byte,
    /// It is too short or too long.
    #[error("a placeholder has {PLACEHOLDER_BYTES_MIN} to {PLACEHOLDER_BYTES_MAX} bytes")]
    Length,
}

impl Placeholder {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Placeholder {
    type Err = PlaceholderFault;

    fn from_str(text: &str) -> Result<Self, PlaceholderFault> {
        if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)) {
            return Err(PlaceholderFault::Byte);
        }
        match (PLACEHOLDER_BYTES_MIN..=PLACEHOLDER_BYTES_MAX).contains(&text.len()) {
            true => Ok(Self(text.into())),
            false => Err(PlaceholderFault::Length),
        }
    }
}

impl fmt::Display for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The requests in which a secret may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretTerms {
    /// The text that stands for it.
    pub placeholder: Placeholder,
    /// The names of servers that may get it.
    pub names: Vec<NamePattern>,
    /// The methods of requests. Empty: any.
    pub methods: Vec<Method>,
    /// The fields of requests.
    pub headers: Vec<HeaderName>,
}

impl SecretTerms {
    /// True if a server of this name may get it. Case does not matter.
    pub fn has_name(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        self.names.iter().any(|pattern| match pattern {
            NamePattern::Absent => false,
            NamePattern::Exact(exact) => **exact == *name,
            NamePattern::Suffix(suffix) => {
                name.strip_suffix(&**suffix).is_some_and(|below| below.ends_with('.'))
            }
        })
    }

    /// True if a request of this method may carry it. An extended CONNECT (RFC 8441) is the GET of
    /// HTTP/2 for a WebSocket.
    pub fn has_method(&self, method: &Method) -> bool {
        let method = if *method == Method::CONNECT { &Method::GET } else { method };
        self.methods.is_empty() || self.methods.contains(method)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn placeholders_are_long_and_plain() {
        for (text, expected) in [
            ("EYELET_SECRET_GITHUB", Ok(())),
            ("abcdefghijklm-12", Ok(())),
            ("EYELET_SECRET_X", Err(PlaceholderFault::Length)),
            ("", Err(PlaceholderFault::Length)),
            ("EYELET SECRET GITHUB", Err(PlaceholderFault::Byte)),
            ("EYELET_SECRET_GITHUB:", Err(PlaceholderFault::Byte)),
            ("EYELET_SECRET_GÎTHUB", Err(PlaceholderFault::Byte)),
        ] {
            assert_eq!(text.parse::<Placeholder>().map(|_| ()), expected, "{text}");
        }
        let long = "A".repeat(PLACEHOLDER_BYTES_MAX + 1);
        assert_eq!(long.parse::<Placeholder>(), Err(PlaceholderFault::Length));
    }

    #[test]
    fn names_and_methods_are_compared_whole() {
        let mut terms = SecretTerms {
            placeholder: "EYELET_SECRET_GITHUB".parse().unwrap(),
            names: ["api.a.example", "*.b.example"].map(|name| name.parse().unwrap()).into(),
            methods: Vec::new(),
            headers: Vec::new(),
        };
        for (name, is_in) in [
            ("api.a.example", true),
            ("API.a.Example.", true),
            ("c.b.example", true),
            ("d.c.b.example", true),
            ("b.example", false),
            ("xb.example", false),
            ("a.example", false),
            ("api.a.example.evil.example", false),
            ("xapi.a.example", false),
            ("192.0.2.1", false),
            ("", false),
        ] {
            assert_eq!(terms.has_name(name), is_in, "{name}");
        }
        assert!(terms.has_method(&Method::DELETE));
        terms.methods = vec![Method::GET];
        assert!(terms.has_method(&Method::GET) && terms.has_method(&Method::CONNECT));
        assert!(!terms.has_method(&Method::POST) && !terms.has_method(&Method::HEAD));
    }
}
