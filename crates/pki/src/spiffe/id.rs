//! SPIFFE ids, trust domains, and patterns of ids (SPIFFE-ID section 2). One spelling is accepted.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The scheme of SPIFFE ids.
const SCHEME: &str = "spiffe://";
/// Bytes of an id (SPIFFE-ID section 2.3).
const ID_BYTES_MAX: usize = 2048;
/// Bytes of a trust domain's name (SPIFFE-ID section 2.3).
const TRUST_DOMAIN_BYTES_MAX: usize = 255;

/// A SPIFFE id with a path, as in `spiffe://example.org/edge`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpiffeId {
    text: Box<str>,
    /// Bytes of its scheme and its trust domain.
    domain_end: usize,
}

/// The name of a trust domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrustDomain(Box<str>);

/// Ids that a rule takes: one, or all below a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SpiffePattern {
    /// This id.
    Exact(SpiffeId),
    /// Ids that begin so. It ends with a slash.
    Below {
        /// The beginning, with the scheme.
        prefix: Box<str>,
        /// The trust domain in it.
        domain: TrustDomain,
    },
}

/// The reason why a text is no SPIFFE id, or no pattern of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SpiffeIdFault {
    #[error("a SPIFFE id begins with spiffe://, as in \"spiffe://example.org/edge\"")]
    Scheme,
    #[error("a SPIFFE id has at most {ID_BYTES_MAX} bytes")]
    TooLong,
    #[error(
        "the name of a trust domain has 1 to {TRUST_DOMAIN_BYTES_MAX} lower-case letters, digits, \
         \".\", \"-\" and \"_\", without a port or a user"
    )]
    TrustDomain,
    #[error(
        "a trust domain alone is no workload; expected a path behind it, or \"/*\" for all of them"
    )]
    NoPath,
    #[error("a path has no empty part, and no slash at its end")]
    EmptyPart,
    #[error("a path has no \".\" and no \"..\": SPIFFE ids are compared as they are written")]
    DotPart,
    #[error("a path has letters, digits, \".\", \"-\" and \"_\" only; nothing is written as %XX")]
    Character,
    #[error("\"*\" stands at the end only, as in \"spiffe://example.org/path/*\"")]
    Star,
}

impl SpiffeId {
    /// The name of its trust domain.
    pub fn trust_domain(&self) -> TrustDomain {
        TrustDomain(self.text[SCHEME.len()..self.domain_end].into())
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for SpiffeId {
    type Err = SpiffeIdFault;

    fn from_str(text: &str) -> Result<Self, SpiffeIdFault> {
        let (domain, path) = split(text)?;
        let path = path.ok_or(SpiffeIdFault::NoPath)?;
        path.split('/').try_for_each(check_part)?;
        Ok(Self { text: text.into(), domain_end: SCHEME.len() + domain.len() })
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads a name, or the id of a trust domain: `spiffe://` and the name.
impl FromStr for TrustDomain {
    type Err = SpiffeIdFault;

    fn from_str(text: &str) -> Result<Self, SpiffeIdFault> {
        let name = text.strip_prefix(SCHEME).unwrap_or(text);
        check_domain(name)?;
        Ok(Self(name.into()))
    }
}

impl SpiffePattern {
    /// True if it stands for this id.
    pub fn takes(&self, id: &SpiffeId) -> bool {
        match self {
            Self::Exact(own) => own == id,
            Self::Below { prefix, .. } => id.text.starts_with(&**prefix),
        }
    }

    /// The trust domain of its ids.
    pub fn trust_domain(&self) -> TrustDomain {
        match self {
            Self::Exact(id) => id.trust_domain(),
            Self::Below { domain, .. } => domain.clone(),
        }
    }
}

impl fmt::Display for SpiffePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(id) => id.fmt(f),
            Self::Below { prefix, .. } => write!(f, "{prefix}*"),
        }
    }
}

impl FromStr for SpiffePattern {
    type Err = SpiffeIdFault;

    fn from_str(text: &str) -> Result<Self, SpiffeIdFault> {
        let Some(prefix) = text.strip_suffix("/*") else {
            return match text.contains('*') {
                true => Err(SpiffeIdFault::Star),
                false => text.parse().map(Self::Exact),
            };
        };
        if prefix.contains('*') {
            return Err(SpiffeIdFault::Star);
        }
        let (domain, path) = split(prefix)?;
        path.into_iter().flat_map(|path| path.split('/')).try_for_each(check_part)?;
        Ok(Self::Below { prefix: format!("{prefix}/").into(), domain: TrustDomain(domain.into()) })
    }
}

/// The trust domain of an id, and its path without the first slash.
fn split(text: &str) -> Result<(&str, Option<&str>), SpiffeIdFault> {
    if text.len() > ID_BYTES_MAX {
        return Err(SpiffeIdFault::TooLong);
    }
    let rest = text.strip_prefix(SCHEME).ok_or(SpiffeIdFault::Scheme)?;
    let (domain, path) = match rest.split_once('/') {
        Some((domain, path)) => (domain, Some(path)),
        None => (rest, None),
    };
    check_domain(domain)?;
    Ok((domain, path))
}

/// SPIFFE-ID section 2.1.
fn check_domain(name: &str) -> Result<(), SpiffeIdFault> {
    let is_known = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'_')
    };
    let fits = (1..=TRUST_DOMAIN_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_known);
    if fits { Ok(()) } else { Err(SpiffeIdFault::TrustDomain) }
}

/// SPIFFE-ID section 2.2.
fn check_part(part: &str) -> Result<(), SpiffeIdFault> {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    match part {
        "" => Err(SpiffeIdFault::EmptyPart),
        "." | ".." => Err(SpiffeIdFault::DotPart),
        part if part.bytes().all(is_known) => Ok(()),
        _ => Err(SpiffeIdFault::Character),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written_or_not_at_all() {
        for text in ["spiffe://example.org/edge", "spiffe://a_b-1/x/Y.z/.../0"] {
            let id: SpiffeId = text.parse().unwrap();
            assert_eq!(id.as_str(), text);
        }
        let id: SpiffeId = "spiffe://example.org/a/b".parse().unwrap();
        assert_eq!(id.trust_domain(), "example.org".parse().unwrap());
        assert_eq!(id.trust_domain(), "spiffe://example.org".parse().unwrap());
        let long = format!("spiffe://a/{}", "b".repeat(ID_BYTES_MAX));
        let domain = format!("spiffe://{}/b", "a".repeat(TRUST_DOMAIN_BYTES_MAX + 1));
        for (text, fault) in [
            ("", SpiffeIdFault::Scheme),
            ("https://example.org/a", SpiffeIdFault::Scheme),
            ("SPIFFE://example.org/a", SpiffeIdFault::Scheme),
            ("spiffe://", SpiffeIdFault::TrustDomain),
            ("spiffe:///a", SpiffeIdFault::TrustDomain),
            ("spiffe://Example.org/a", SpiffeIdFault::TrustDomain),
            ("spiffe://example.org:8443/a", SpiffeIdFault::TrustDomain),
            ("spiffe://user@example.org/a", SpiffeIdFault::TrustDomain),
            (&domain, SpiffeIdFault::TrustDomain),
            ("spiffe://example.org", SpiffeIdFault::NoPath),
            ("spiffe://example.org/", SpiffeIdFault::EmptyPart),
            ("spiffe://example.org/a/", SpiffeIdFault::EmptyPart),
            ("spiffe://example.org/a//b", SpiffeIdFault::EmptyPart),
            ("spiffe://example.org/a/../b", SpiffeIdFault::DotPart),
            ("spiffe://example.org/./b", SpiffeIdFault::DotPart),
            ("spiffe://example.org/a%2fb", SpiffeIdFault::Character),
            ("spiffe://example.org/a?b", SpiffeIdFault::Character),
            ("spiffe://example.org/ä", SpiffeIdFault::Character),
            (&long, SpiffeIdFault::TooLong),
        ] {
            assert_eq!(text.parse::<SpiffeId>(), Err(fault), "{text}");
        }
    }

    #[test]
    fn a_pattern_takes_one_id_or_those_below_a_path() {
        let takes = |pattern: &str, id: &str| {
            let pattern: SpiffePattern = pattern.parse().unwrap();
            pattern.takes(&id.parse().unwrap())
        };
        for (pattern, id, is_taken) in [
            ("spiffe://a.test/web", "spiffe://a.test/web", true),
            ("spiffe://a.test/web", "spiffe://a.test/web/1", false),
            ("spiffe://a.test/web", "spiffe://b.test/web", false),
            ("spiffe://a.test/web/*", "spiffe://a.test/web/1", true),
            ("spiffe://a.test/web/*", "spiffe://a.test/web/1/2", true),
            ("spiffe://a.test/web/*", "spiffe://a.test/web", false),
            ("spiffe://a.test/web/*", "spiffe://a.test/webmail", false),
            ("spiffe://a.test/*", "spiffe://a.test/x", true),
            ("spiffe://a.test/*", "spiffe://a.test.b.test/x", false),
        ] {
            assert_eq!(takes(pattern, id), is_taken, "{pattern} {id}");
        }
        for (text, fault) in [
            ("*", SpiffeIdFault::Star),
            ("spiffe://*/web", SpiffeIdFault::Star),
            ("spiffe://a.test/*/web", SpiffeIdFault::Star),
            ("spiffe://a.test/*/*", SpiffeIdFault::Star),
            ("spiffe://a.test/web*", SpiffeIdFault::Star),
            ("spiffe://a.test/../*", SpiffeIdFault::DotPart),
            ("spiffe://a.test/web//*", SpiffeIdFault::EmptyPart),
            ("spiffe:///*", SpiffeIdFault::TrustDomain),
            ("spiffe://a.test", SpiffeIdFault::NoPath),
        ] {
            assert_eq!(text.parse::<SpiffePattern>(), Err(fault), "{text}");
        }
    }
}
