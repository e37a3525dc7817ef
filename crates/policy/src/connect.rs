//! Patterns of `host:port` for a rule's `connect`, and sets of them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use eyelet_wire::connect::{Target, TargetHost};
use thiserror::Error;

use crate::matcher::SortedList;
use crate::names::{NamePattern, NamePatternFault};

/// A pattern of `connect`. It displays as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConnectPattern {
    host: HostPattern,
    /// `None` is any.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum HostPattern {
    /// `*`: any name and any address.
    Any,
    Exact(Box<str>),
    /// Stored without `*.`.
    Suffix(Box<str>),
    Ip(IpAddr),
}

/// The fault of such a pattern, and the expected form.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectPatternFault {
    /// No host.
    #[error("there is no host; expected it as in \"*.example.com:443\", or \"*:443\" for any")]
    HostMissing,
    /// A host that no CONNECT request can name.
    #[error("{0}")]
    Host(NamePatternFault),
    /// Brackets around something other than an IPv6 address.
    #[error("an IPv6 address stands in brackets, as in \"[2001:db8::7]:443\"")]
    Ipv6,
    /// Neither a number of 1 to 65535 nor `*`.
    #[error("the port is neither 1 to 65535 nor \"*\"")]
    Port,
    /// No port. It could mean any port or 443, and we do not guess.
    #[error("there is no port; expected it as in \"*.example.com:443\", or \":*\" for any")]
    PortMissing,
}

impl FromStr for ConnectPattern {
    type Err = ConnectPatternFault;

    fn from_str(text: &str) -> Result<Self, ConnectPatternFault> {
        let in_brackets = text.strip_prefix('[').map(|rest| rest.split_once(']'));
        let (host, port) = match in_brackets {
            Some(Some((address, rest))) => (HostPattern::ipv6(address)?, rest.strip_prefix(':')),
            Some(None) => return Err(ConnectPatternFault::Ipv6),
            None if text.matches(':').count() > 1 => return Err(ConnectPatternFault::Ipv6),
            None => match text.split_once(':') {
                Some((host, port)) => (HostPattern::named(host)?, Some(port)),
                None => (HostPattern::named(text)?, None),
            },
        };
        let port = match port.ok_or(ConnectPatternFault::PortMissing)? {
            "*" => None,
            digits if digits.bytes().all(|b| b.is_ascii_digit()) => {
                let port = digits.parse().ok().filter(|port| *port != 0);
                Some(port.ok_or(ConnectPatternFault::Port)?)
            }
            _ => return Err(ConnectPatternFault::Port),
        };
        Ok(Self { host, port })
    }
}

impl HostPattern {
    fn ipv6(address: &str) -> Result<Self, ConnectPatternFault> {
        let address = address.parse::<Ipv6Addr>().map_err(|_| ConnectPatternFault::Ipv6)?;
        Ok(Self::Ip(IpAddr::V6(address).to_canonical()))
    }

    fn named(host: &str) -> Result<Self, ConnectPatternFault> {
        if host == "*" {
            return Ok(Self::Any);
        }
        if let Ok(address) = host.parse() {
            return Ok(Self::Ip(IpAddr::V4(address)));
        }
        match host.parse().map_err(ConnectPatternFault::Host)? {
            NamePattern::Absent => Err(ConnectPatternFault::HostMissing),
            NamePattern::Exact(name) => Ok(Self::Exact(name)),
            NamePattern::Suffix(suffix) => Ok(Self::Suffix(suffix)),
        }
    }
}

impl fmt::Display for ConnectPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            HostPattern::Any => f.write_str("*"),
            HostPattern::Exact(name) => f.write_str(name),
            HostPattern::Suffix(suffix) => write!(f, "*.{suffix}"),
            HostPattern::Ip(IpAddr::V4(address)) => write!(f, "{address}"),
            HostPattern::Ip(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => f.write_str(":*"),
        }
    }
}

/// A set of `host:port`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConnectSet {
    any: SortedList<(Any, Option<u16>)>,
    exact: SortedList<(Box<str>, Option<u16>)>,
    suffixes: SortedList<(Box<str>, Option<u16>)>,
    ips: SortedList<(IpAddr, Option<u16>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Any;

impl FromIterator<ConnectPattern> for ConnectSet {
    fn from_iter<I: IntoIterator<Item = ConnectPattern>>(patterns: I) -> Self {
        let (mut any, mut exact) = (Vec::new(), Vec::new());
        let (mut suffixes, mut ips) = (Vec::new(), Vec::new());
        for ConnectPattern { host, port } in patterns {
            match host {
                HostPattern::Any => any.push((Any, port)),
                HostPattern::Exact(name) => exact.push((name, port)),
                HostPattern::Suffix(suffix) => suffixes.push((suffix, port)),
                HostPattern::Ip(address) => ips.push((address, port)),
            }
        }
        Self {
            any: any.into_iter().collect(),
            exact: exact.into_iter().collect(),
            suffixes: suffixes.into_iter().collect(),
            ips: ips.into_iter().collect(),
        }
    }
}

impl ConnectSet {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { any, exact, suffixes, ips } = self;
        any.is_empty() && exact.is_empty() && suffixes.is_empty() && ips.is_empty()
    }

    /// True if it has a host other than `*`.
    pub(crate) fn has_hosts(&self) -> bool {
        !(self.exact.is_empty() && self.suffixes.is_empty() && self.ips.is_empty())
    }

    /// Takes time logarithmic in the number of patterns, for each label of a name.
    pub(crate) fn contains(&self, target: &Target) -> bool {
        let port = Some(target.port);
        match &target.host {
            TargetHost::Name(name) => self.has_name(name, port),
            TargetHost::Ip(address) => self.has_any(port) || has(&self.ips, address, port),
        }
    }

    pub(crate) fn covers(&self, other: &Self) -> bool {
        other.any.iter().all(|(_, port)| self.has_any(*port))
            && other.exact.iter().all(|(name, port)| self.has_name(name, *port))
            && other.suffixes.iter().all(|(suffix, port)| {
                has(&self.suffixes, &**suffix, *port)
                    || self.has_parent(suffix, *port)
                    || self.has_any(*port)
            })
            && other.ips.iter().all(|(ip, port)| has(&self.ips, ip, *port) || self.has_any(*port))
    }

    pub(crate) fn patterns(&self) -> impl Iterator<Item = ConnectPattern> + '_ {
        let exact = self.exact.iter().map(|(name, port)| (HostPattern::Exact(name.clone()), port));
        let suffixes = self.suffixes.iter();
        let suffixes = suffixes.map(|(name, port)| (HostPattern::Suffix(name.clone()), port));
        let ips = self.ips.iter().map(|(ip, port)| (HostPattern::Ip(*ip), port));
        let any = self.any.iter().map(|(_, port)| (HostPattern::Any, port));
        let all = exact.chain(suffixes).chain(ips).chain(any);
        all.map(|(host, port)| ConnectPattern { host, port: *port })
    }

    fn has_name(&self, name: &str, port: Option<u16>) -> bool {
        self.has_any(port) || has(&self.exact, name, port) || self.has_parent(name, port)
    }

    /// True if a suffix with fewer labels than `name` matches it.
    fn has_parent(&self, name: &str, port: Option<u16>) -> bool {
        let mut dots = name.match_indices('.').map(|(at, _)| at + 1);
        dots.any(|at| name.get(at..).is_some_and(|parent| has(&self.suffixes, parent, port)))
    }

    /// True if it has `*` with this port, or with any.
    pub(crate) fn has_any(&self, port: Option<u16>) -> bool {
        has(&self.any, &Any, port)
    }
}

/// True if a sorted list has `key` with this port, or with any. `None` as `port` is any port, which
/// only an entry for any port covers.
fn has<K, Q>(list: &[(K, Option<u16>)], key: &Q, port: Option<u16>) -> bool
where
    K: std::borrow::Borrow<Q>,
    Q: Ord + ?Sized,
{
    let start = list.partition_point(|(listed, _)| listed.borrow() < key);
    let same = list.iter().skip(start).take_while(|(listed, _)| listed.borrow() == key);
    same.into_iter().any(|(_, listed)| listed.is_none() || *listed == port)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use eyelet_wire::connect::{ConnectPeek, ConnectReader};

    use super::*;

    fn set(patterns: &[&str]) -> ConnectSet {
        patterns.iter().map(|pattern| pattern.parse::<ConnectPattern>().unwrap()).collect()
    }

    fn target(text: &str) -> Target {
        let head = format!("CONNECT {text} HTTP/1.0\r\n\r\n");
        match ConnectReader::new().feed(head.as_bytes()) {
            ConnectPeek::Connect(connect) => connect.target,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_set_contains_what_its_patterns_match() {
        let all = ["a.test:443", "a.test:22", "*.b.test:443", "*.c.test:*", "10.0.0.7:*"];
        let all = set(&[&all[..], &["[2001:db8::7]:443", "*:8443"]].concat());
        for (text, listed) in [
            ("a.test:443", true),
            ("A.Test:22", true),
            ("a.test:80", false),
            ("x.a.test:443", false),
            ("b.test:443", false),
            ("x.b.test:443", true),
            ("x.y.b.test:443", true),
            ("x.b.test:80", false),
            ("xb.test:443", false),
            ("x.c.test:1", true),
            ("10.0.0.7:9", true),
            ("[::ffff:10.0.0.7]:9", true),
            ("10.0.0.8:9", false),
            ("[2001:db8:0::7]:443", true),
            ("[2001:db8::7]:80", false),
            ("10.0.0.8:8443", true),
            ("x.test:8443", true),
        ] {
            assert_eq!(all.contains(&target(text)), listed, "{text}");
        }
        let texts: Vec<String> = all.patterns().map(|pattern| pattern.to_string()).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        assert_eq!(set(&texts), all, "{texts:?}");
    }

    #[test]
    fn a_set_covers_what_is_narrower() {
        for (wide, narrow, covers) in [
            (&["*:*"][..], &["a.test:1", "*.b.test:2", "10.0.0.1:3", "*:4"][..], true),
            (&["*:443"], &["a.test:443", "*.b.test:443", "[::1]:443"], true),
            (&["*:443"], &["a.test:*"], false),
            (&["*.test:*"], &["a.test:1", "*.b.test:*", "*.test:9"], true),
            (&["*.b.test:*"], &["*.test:*"], false),
            (&["*.b.test:*"], &["b.test:1"], false),
            (&["a.test:1", "a.test:2"], &["a.test:2"], true),
            (&["10.0.0.1:*"], &["10.0.0.1:5"], true),
            (&["10.0.0.1:*"], &["a.test:5"], false),
        ] {
            assert_eq!(set(wide).covers(&set(narrow)), covers, "{wide:?} {narrow:?}");
        }
    }

    #[test]
    fn each_fault_by_its_name() {
        for (text, fault) in [
            ("a.test", ConnectPatternFault::PortMissing),
            ("*", ConnectPatternFault::PortMissing),
            ("[::1]", ConnectPatternFault::PortMissing),
            ("a.test:0", ConnectPatternFault::Port),
            ("a.test:https", ConnectPatternFault::Port),
            ("a.test:", ConnectPatternFault::Port),
            (":443", ConnectPatternFault::HostMissing),
            ("::1:443", ConnectPatternFault::Ipv6),
            ("[::1:443", ConnectPatternFault::Ipv6),
            ("[a.test]:443", ConnectPatternFault::Ipv6),
            ("a.*.test:1", ConnectPatternFault::Host(NamePatternFault::WildcardInside)),
            ("a.test.:1", ConnectPatternFault::Host(NamePatternFault::TrailingDot)),
        ] {
            assert_eq!(text.parse::<ConnectPattern>(), Err(fault), "{text}");
        }
    }
}
