//! The lists from files in the matchers `client`, `connect` and `destination` of a rule.

use std::net::{IpAddr, SocketAddr};

use eyelet_wire::connect::{Target, TargetHost};

use crate::facts::Facts;
use crate::lists::{ListId, ListedBy, Lists};
use crate::matcher::{Matcher, SortedList};

/// The lists, in one allocation: most rules have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FromFiles(SortedList<FromFile>);

/// One list. Its entries are meant with `port`; `None` is any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct FromFile {
    matcher: Matcher,
    list: ListId,
    port: Option<u16>,
}

/// Each list with its matcher, which is `Client`, `Connect` or `Destination`, and with the port
/// that a target or a destination must have; `None` is any.
impl FromIterator<(Matcher, ListId, Option<u16>)> for FromFiles {
    fn from_iter<I: IntoIterator<Item = (Matcher, ListId, Option<u16>)>>(lists: I) -> Self {
        let lists = lists.into_iter();
        Self(lists.map(|(matcher, list, port)| FromFile { matcher, list, port }).collect())
    }
}

impl FromFiles {
    /// True if `matcher` has a list.
    #[inline]
    pub(crate) fn asks(&self, matcher: Matcher) -> bool {
        self.0.iter().any(|file| file.matcher == matcher)
    }

    #[inline]
    pub(crate) fn has_client(&self, client: IpAddr, lists: &Lists) -> bool {
        self.of(Matcher::Client).any(|file| lists.has_address(file.list, client))
    }

    pub(crate) fn has_target(&self, target: &Target, lists: &Lists) -> bool {
        let TargetHost::Name(name) = &target.host else { return false };
        self.with_port(Matcher::Connect, target.port).any(|list| lists.has_name(list, name))
    }

    pub(crate) fn has_destination(&self, to: SocketAddr, lists: &Lists) -> bool {
        let mut with_port = self.with_port(Matcher::Destination, to.port());
        with_port.any(|list| lists.has_address(list, to.ip()))
    }

    /// The entry by which `matcher` holds, if it holds by one.
    pub(crate) fn listed_by(
        &self,
        matcher: Matcher,
        facts: &Facts<'_>,
        lists: &Lists,
    ) -> Option<ListedBy> {
        match (matcher, facts.connect, facts.destination) {
            (Matcher::Client, ..) => {
                self.of(matcher).find_map(|file| lists.find_address(file.list, facts.client))
            }
            (Matcher::Connect, Some(Target { host: TargetHost::Name(name), port }), _) => {
                self.with_port(matcher, *port).find_map(|list| lists.find_name(list, name))
            }
            (Matcher::Destination, _, Some(to)) => {
                let mut with_port = self.with_port(matcher, to.port());
                with_port.find_map(|list| lists.find_address(list, to.ip()))
            }
            _ => None,
        }
    }

    /// True if `other` has each list of `matcher` among these, or with a port for which `has_all`
    /// says that everything matches.
    pub(crate) fn covers(
        &self,
        matcher: Matcher,
        other: &Self,
        has_all: impl Fn(Option<u16>) -> bool,
    ) -> bool {
        let is_here = |file: &FromFile| {
            let mut same = self.of(matcher).filter(|ours| ours.list == file.list);
            same.any(|ours| ours.port.is_none() || ours.port == file.port)
        };
        other.of(matcher).all(|file| is_here(file) || has_all(file.port))
    }

    /// The lists of `matcher`, for explanations.
    pub(crate) fn texts(&self, matcher: Matcher, lists: &Lists) -> Vec<String> {
        let texts = self.of(matcher).map(|file| match file.port {
            Some(port) => format!("{} with port {port}", lists.text(file.list)),
            None => lists.text(file.list),
        });
        texts.collect()
    }

    /// The files of `connect` in which a refused client's target would help it: those for its port,
    /// as they are, and after them those that have its host at another port, with that.
    pub(crate) fn files_without<'a>(
        &'a self,
        target: &'a Target,
        lists: &'a Lists,
    ) -> impl Iterator<Item = (String, Option<u16>)> + 'a {
        self.of(Matcher::Connect).filter_map(move |from| {
            let file = lists.file(from.list).unwrap_or("a regular expression").to_owned();
            match (from.port.filter(|port| *port != target.port), &target.host) {
                (None, _) => Some((file, None)),
                (port, TargetHost::Name(name)) if lists.has_name(from.list, name) => {
                    Some((file, port))
                }
                _ => None,
            }
        })
    }

    /// A copy without the lists of `matcher`.
    pub(crate) fn without(&self, matcher: Matcher) -> Self {
        Self(self.0.iter().filter(|file| file.matcher != matcher).copied().collect())
    }

    fn of(&self, matcher: Matcher) -> impl Iterator<Item = &FromFile> {
        self.0.iter().filter(move |file| file.matcher == matcher)
    }

    fn with_port(&self, matcher: Matcher, port: u16) -> impl Iterator<Item = ListId> + '_ {
        let fits = self.of(matcher).filter(move |file| file.port.is_none_or(|of| of == port));
        fits.map(|file| file.list)
    }
}
