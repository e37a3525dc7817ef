//! The matchers on who asks: the user of a proxy, the name in its client's certificate, and the
//! process at the other end of a Unix socket.

use std::fmt;

use eyelet_wire::local_peer::LocalPeer;

use crate::facts::Facts;
use crate::matcher::{Matcher, Outcome, SortedList, listed};

/// A pattern of those who may ask. Its variants belong to different matchers, all of which must
/// hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequesterPattern {
    /// `proxy_user = "*"`: any user of the listener.
    AnyUser,
    /// `proxy_user`: this user.
    User(Box<str>),
    /// `peer_uid`: processes of this user of the machine.
    Uid(u32),
    /// `client_cert`: clients whose certificate has this common name.
    Certificate(Box<str>),
    /// `peer_cgroup`: processes of this cgroup, and of those below it.
    Cgroup(Box<str>),
}

/// The patterns, in one allocation: most rules have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RequesterMatchers(SortedList<RequesterPattern>);

impl FromIterator<RequesterPattern> for RequesterMatchers {
    fn from_iter<I: IntoIterator<Item = RequesterPattern>>(patterns: I) -> Self {
        Self(patterns.into_iter().collect())
    }
}

impl RequesterPattern {
    const fn matcher(&self) -> Matcher {
        match self {
            Self::AnyUser | Self::User(_) => Matcher::ProxyUser,
            Self::Uid(_) => Matcher::PeerUid,
            Self::Certificate(_) => Matcher::ClientCert,
            Self::Cgroup(_) => Matcher::PeerCgroup,
        }
    }

    /// Says if it takes this client. `None`: that is not known of it.
    fn takes(&self, facts: &Facts<'_>) -> Option<bool> {
        Some(match self {
            Self::AnyUser => facts.requester.user.map(|_| true)?,
            Self::User(user) => facts.requester.user? == &**user,
            Self::Uid(uid) => LocalPeer::of(facts.client)?.uid == *uid,
            Self::Certificate(name) => facts.requester.client_cert? == &**name,
            Self::Cgroup(cgroup) => is_within(facts.requester.cgroup?, cgroup),
        })
    }

    /// True if it takes whatever `narrow` takes.
    fn covers(&self, narrow: &Self) -> bool {
        match (self, narrow) {
            (Self::AnyUser, Self::User(_)) => true,
            (Self::Cgroup(wide), Self::Cgroup(narrow)) => is_within(narrow, wide),
            _ => self == narrow,
        }
    }
}

/// True if a cgroup is `wide`, or below it.
fn is_within(cgroup: &str, wide: &str) -> bool {
    let below = cgroup.strip_prefix(wide.trim_end_matches('/'));
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

impl RequesterMatchers {
    #[inline]
    pub(crate) fn asks(&self, matcher: Matcher) -> bool {
        self.of(matcher).next().is_some()
    }

    /// Checks them. Who is not known fails closed.
    #[inline]
    pub(crate) fn check(&self, facts: &Facts<'_>, refuse: bool) -> Outcome {
        if self.0.is_empty() {
            return Outcome::Holds;
        }
        let fails = |matcher: &Matcher| {
            let mut patterns = self.of(*matcher).peekable();
            patterns.peek().is_some()
                && !patterns.any(|pattern| pattern.takes(facts).unwrap_or(refuse))
        };
        OF_REQUESTER.into_iter().find(fails).map_or(Outcome::Holds, Outcome::Fails)
    }

    /// True if these hold whenever those of `other` do.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        OF_REQUESTER.into_iter().all(|matcher| {
            let mut narrow = other.of(matcher);
            !self.asks(matcher)
                || other.asks(matcher)
                    && narrow.all(|narrow| self.of(matcher).any(|wide| wide.covers(narrow)))
        })
    }

    pub(crate) fn text(&self, matcher: Matcher) -> String {
        listed(self.of(matcher))
    }

    fn of(&self, matcher: Matcher) -> impl Iterator<Item = &RequesterPattern> {
        self.0.iter().filter(move |pattern| pattern.matcher() == matcher)
    }
}

/// Writes it as the configuration has it.
impl fmt::Display for RequesterPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnyUser => f.write_str("*"),
            Self::User(text) | Self::Certificate(text) | Self::Cgroup(text) => f.write_str(text),
            Self::Uid(uid) => uid.fmt(f),
        }
    }
}

/// The matchers on who asks, from cheap to expensive. What they need is known with the request.
pub(crate) const OF_REQUESTER: [Matcher; 4] =
    [Matcher::PeerUid, Matcher::PeerCgroup, Matcher::ClientCert, Matcher::ProxyUser];

#[cfg(test)]
mod tests {
    use super::*;

    fn cgroup(text: &str) -> RequesterPattern {
        RequesterPattern::Cgroup(text.into())
    }

    #[test]
    fn a_cgroup_is_matched_at_its_borders() {
        for (cgroup, wide, is) in [
            ("/a", "/a", true),
            ("/a/b", "/a", true),
            ("/ab", "/a", false),
            ("/a", "/a/b", false),
            ("/a", "/", true),
            ("/a/b", "/a/", true),
        ] {
            assert_eq!(is_within(cgroup, wide), is, "{cgroup} {wide}");
        }
    }

    #[test]
    fn wider_matchers_cover() {
        let user = |name: &str| RequesterPattern::User(name.into());
        for (wide, narrow, covers) in [
            (vec![], vec![user("a")], true),
            (vec![user("a")], vec![], false),
            (vec![RequesterPattern::AnyUser], vec![user("a"), user("b")], true),
            (vec![user("a")], vec![RequesterPattern::AnyUser], false),
            (vec![user("a"), user("b")], vec![user("b")], true),
            (vec![user("a")], vec![user("a"), RequesterPattern::Uid(1)], true),
            (vec![RequesterPattern::Uid(1)], vec![RequesterPattern::Uid(2)], false),
            (vec![cgroup("/a")], vec![cgroup("/a/b")], true),
            (vec![cgroup("/a/b")], vec![cgroup("/a")], false),
        ] {
            let [of_wide, of_narrow] = [&wide, &narrow].map(|all| all.iter().cloned().collect());
            let (of_wide, of_narrow): (RequesterMatchers, RequesterMatchers) = (of_wide, of_narrow);
            assert_eq!(of_wide.covers(&of_narrow), covers, "{wide:?} {narrow:?}");
        }
    }
}
