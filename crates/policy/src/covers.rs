//! Finds rules that can never match, because earlier rules take all their connections.

use std::collections::HashMap;

use eyelet_wire::connect::{Target, TargetHost};
use eyelet_wire::hello::HostName;

use crate::conditions::{Conditions, Cover};
use crate::lists::{ListId, ListedBy, Lists};
use crate::matcher::Matcher;
use crate::names::{Found, NamePattern};
use crate::nets::{AddressSet, NetSet};
use crate::rules::{Rule, RuleId, Rules};

/// A rule that can never match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The rule.
    pub rule: RuleId,
    /// The earlier rules that take its connections; ascending, at least one.
    pub by: Vec<RuleId>,
}

/// A name of a rule that can match by other names only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostName {
    /// The rule.
    pub rule: RuleId,
    /// The name.
    pub name: NamePattern,
    /// The earlier rules that take its connections; at least one.
    pub by: Vec<RuleId>,
}

/// The result of an analysis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Ascending by rule.
    pub covered: Vec<Covered>,
    /// By rule, and then in the order of its names. None is of a covered rule.
    pub lost: Vec<LostName>,
    /// The first rule that was not analysed, or whose names were not all, if the list takes too
    /// many comparisons: see `COMPARISONS_MAX`.
    pub stopped_at: Option<RuleId>,
}

/// A name of a rule that reads requests, which an earlier rule passes on unread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The rule that reads requests.
    pub rule: RuleId,
    /// The earlier one.
    pub by: RuleId,
    /// The name, as the later rule has it.
    pub name: NamePattern,
    /// The entry by which the earlier rule takes it.
    pub listed_by: ListedBy,
}

impl Rules {
    /// Finds rules that read requests of a name, and do not get them: a file gives the name to an
    /// earlier rule that reads none. [`coverage`](Self::coverage) does not look into files, because
    /// they may change. Returns one name for a rule, and takes port 443 for a CONNECT.
    pub fn unread(&self, rules: &[Rule]) -> Vec<Unread> {
        let lists = self.lists();
        let passes = |rule: &Rule| !(rule.refuse || rule.shadow || rule.serves_requests);
        let passing = (0..).map(RuleId).zip(rules);
        let passing = passing.filter(|(_, rule)| passes(rule) && !rule.sni_lists.is_empty());
        let passing: Vec<_> = passing.collect();
        let (mut comparisons, mut found) = (0, Vec::new());
        for (id, rule) in (0..).map(RuleId).zip(rules) {
            if rule.shadow || !rule.serves_requests && rule.requests.is_empty() {
                continue;
            }
            let names = rule.sni.iter().filter_map(|name| Some((name, said(name)?)));
            let mut unread = names.filter_map(|(name, said)| {
                let mut earlier = passing.iter().take_while(|(by, _)| *by < id);
                let (by, listed_by) = earlier.find_map(|(by, passing)| {
                    comparisons += 1;
                    let mut files = passing.sni_lists.iter();
                    let listed_by = files.find_map(|list| lists.find_name(*list, &said))?;
                    takes(&passing.conditions, &rule.conditions, said, &lists)
                        .then_some((*by, listed_by))
                })?;
                Some(Unread { rule: id, by, name: name.clone(), listed_by })
            });
            found.extend(unread.next());
            if comparisons > COMPARISONS_MAX {
                break;
            }
        }
        found
    }
}

/// A name of a pattern, as a hello says it.
fn said(pattern: &NamePattern) -> Option<HostName> {
    match pattern {
        NamePattern::Absent => None,
        NamePattern::Exact(name) => HostName::new(name.as_bytes()).ok(),
        NamePattern::Suffix(suffix) => HostName::new(format!("any.{suffix}").as_bytes()).ok(),
    }
}

/// True if `wide` hold for all connections to a name at port 443 for which `narrow` do, which hold
/// for some.
fn takes(wide: &Conditions, narrow: &Conditions, name: HostName, lists: &Lists) -> bool {
    let target = Target { host: TargetHost::Name(name), port: 443 };
    let connects = |of: &Conditions| {
        let is_listed = of.connect.contains(&target) || of.from_files.has_target(&target, lists);
        !of.asks(Matcher::Connect) || is_listed
    };
    let from_files = wide.from_files.without(Matcher::Connect);
    let rest = Conditions { connect: Default::default(), from_files, ..wide.clone() };
    connects(wide) && connects(narrow) && rest.cover(narrow) == Cover::Whole
}

impl Rules {
    /// Finds rules of the list `rules` that can never match. `self` must be the index of that list.
    ///
    /// A rule is covered if earlier rules list each of its names, or list none, and each of their
    /// other matchers is absent or covers the rule's. It is also covered if several earlier rules
    /// do so except for their clients, and together list all its clients; or the same with
    /// destinations. Names are looked up in the index, so a list of 100,000 names takes about
    /// 100,000 look-ups. Names that the same rules have are compared once. These are not found: a
    /// rule covered by rules with names together with rules without, or by rules that divide two
    /// matchers among them.
    pub fn coverage(&self, rules: &[Rule]) -> Coverage {
        self.coverage_within(rules, COMPARISONS_MAX).0
    }

    /// Returns also the number of comparisons. After `max` of them nothing is begun.
    fn coverage_within(&self, rules: &[Rule], max: usize) -> (Coverage, usize) {
        let mut search = Search { rules: self, comparisons: 0, max, unnamed: HashMap::new() };
        let mut coverage = Coverage::default();
        for (id, rule) in (0..).zip(rules.get(..self.len()).unwrap_or(rules)) {
            let covering = match search.is_over() {
                true => Covering::Stopped,
                false => search.covering(id, rule, &mut coverage.lost),
            };
            match covering {
                Covering::By(by) => coverage.covered.push(Covered { rule: RuleId(id), by }),
                Covering::No => {}
                Covering::Stopped => {
                    coverage.stopped_at = Some(RuleId(id));
                    break;
                }
            }
        }
        (coverage, search.comparisons)
    }
}

struct Search<'a> {
    rules: &'a Rules,
    /// Those of two rules' matchers. Many networks count for more.
    comparisons: usize,
    max: usize,
    /// By the indexes of the matchers and whether the rule refuses: rules that share these are
    /// compared with the rules without names only once.
    unnamed: HashMap<(u32, u32, bool), Unnamed>,
}

/// The extent to which rules without names cover some conditions.
struct Unnamed {
    /// The number of those rules that were compared.
    compared: usize,
    together: Together,
    by: Option<Vec<RuleId>>,
}

/// Rules that cover another except for one matcher on addresses, and the addresses that they leave.
struct Together {
    clients: NetSet,
    clients_by: Vec<RuleId>,
    destinations: AddressSet,
    destinations_by: Vec<RuleId>,
}

/// The rules that cover a rule.
enum Covering {
    By(Vec<RuleId>),
    No,
    /// None do, or that was not looked for; and some of its names were not looked at.
    Stopped,
}

/// The rules that cover one, by the earlier rules that have its name.
type ByEarlier = HashMap<Vec<u32>, Option<Vec<RuleId>>>;

impl Search<'_> {
    const fn is_over(&self) -> bool {
        self.comparisons > self.max
    }

    /// The rules that cover a rule. If it is not covered, adds those of its names that are.
    fn covering(&mut self, id: u32, rule: &Rule, lost: &mut Vec<LostName>) -> Covering {
        if let Some(by) = self.covering_unnamed(id) {
            return Covering::By(by);
        }
        if !rule.is_named() {
            return Covering::No;
        }
        let (mut known, before, mut is_covered) = (ByEarlier::new(), lost.len(), true);
        for name in &rule.sni {
            // A rule that is covered is an error, so a rule that was begun is judged.
            if self.is_over() && !is_covered {
                return Covering::Stopped;
            }
            match self.covering_name(id, name, &mut known) {
                Some(by) => lost.push(LostName { rule: RuleId(id), name: name.clone(), by }),
                None => is_covered = false,
            }
        }
        if !is_covered {
            return Covering::No;
        }
        let mut by = Vec::new();
        for list in &rule.sni_lists {
            match self.covering_list(id, *list, &mut known) {
                Some(of_list) => by.extend(of_list),
                None => return Covering::No,
            }
        }
        by.extend(lost.drain(before..).flat_map(|name| name.by));
        by.sort_unstable();
        by.dedup();
        Covering::By(by)
    }

    /// The first earlier rules that list `pattern`, or one that covers it, and that cover the
    /// rule's other matchers.
    fn covering_name(
        &mut self,
        id: u32,
        pattern: &NamePattern,
        known: &mut ByEarlier,
    ) -> Option<Vec<RuleId>> {
        let mut found = Found::new();
        self.rules.names.find_covering(pattern, &mut found);
        self.first_covering(id, found, known)
    }

    /// The first earlier rules that name the same file. What the file has is not looked at: it may
    /// change.
    fn covering_list(
        &mut self,
        id: u32,
        list: ListId,
        known: &mut ByEarlier,
    ) -> Option<Vec<RuleId>> {
        self.first_covering(id, self.rules.rules_by_list(list).iter().copied(), known)
    }

    fn first_covering(
        &mut self,
        id: u32,
        candidates: impl Iterator<Item = u32>,
        known: &mut ByEarlier,
    ) -> Option<Vec<RuleId>> {
        let earlier: Vec<u32> = candidates.take_while(|candidate| *candidate < id).collect();
        if earlier.is_empty() {
            return None;
        }
        self.comparisons += 1 + earlier.len() / LISTED_PER_COMPARISON;
        if let Some(by) = known.get(&earlier) {
            return by.clone();
        }
        let mut together = Together::of(self.rules.rule(id)?.1);
        let by = earlier.iter().find_map(|candidate| {
            self.comparisons += together.comparisons();
            together.add(self.rules, *candidate, id)
        });
        if known.len() < KNOWN_MAX {
            known.insert(earlier, by.clone());
        }
        by
    }

    fn covering_unnamed(&mut self, id: u32) -> Option<Vec<RuleId>> {
        let (entry, conditions) = self.rules.rule(id)?;
        let unnamed = self.rules.unnamed(conditions.asks(Matcher::SniMalformed));
        let key = (entry.conditions, entry.requests, entry.refuse);
        let known = self.unnamed.entry(key).or_insert_with(|| Unnamed {
            compared: 0,
            together: Together::of(conditions),
            by: None,
        });
        if known.by.is_none() {
            let rest = unnamed.get(known.compared..)?;
            for candidate in rest.iter().take_while(|candidate| **candidate < id) {
                known.compared += 1;
                self.comparisons += known.together.comparisons();
                known.by = known.together.add(self.rules, *candidate, id);
                if known.by.is_some() {
                    break;
                }
            }
        }
        known.by.clone()
    }
}

impl Together {
    fn of(narrow: &Conditions) -> Self {
        Self {
            clients: narrow.clients_at_most().cloned().unwrap_or_else(NetSet::all),
            clients_by: Vec::new(),
            destinations: narrow.destinations_at_most(),
            destinations_by: Vec::new(),
        }
    }

    /// The comparisons that a rule more is worth.
    fn comparisons(&self) -> usize {
        1 + (self.clients.len() + self.destinations.len()) / NETWORKS_PER_COMPARISON
    }

    /// Adds `wide`. Returns the rules that together cover `narrow`, if they do.
    fn add(&mut self, rules: &Rules, wide: u32, narrow: u32) -> Option<Vec<RuleId>> {
        let (_, conditions) = rules.rule(wide)?;
        match covers(rules, wide, narrow) {
            Cover::Whole => return Some(vec![RuleId(wide)]),
            Cover::AllBut(Matcher::Client) => {
                let left = self.clients.without(conditions.clients_at_least()?);
                if left != self.clients {
                    self.clients_by.push(RuleId(wide));
                    self.clients = left;
                }
            }
            Cover::AllBut(_) => {
                let left = self.destinations.without(conditions.destinations_at_least());
                if left != self.destinations {
                    self.destinations_by.push(RuleId(wide));
                    self.destinations = left;
                }
            }
            Cover::No => {}
        }
        match (self.clients.is_empty(), self.destinations.is_empty()) {
            (true, _) => Some(self.clients_by.clone()),
            // An empty set matches every destination, also an unknown one.
            (_, true) if !self.destinations_by.is_empty() => Some(self.destinations_by.clone()),
            _ => None,
        }
    }
}

fn covers(rules: &Rules, wide: u32, narrow: u32) -> Cover {
    let (Some((by, wide)), Some((of, narrow))) = (rules.rule(wide), rules.rule(narrow)) else {
        return Cover::No;
    };
    // An unknown fact matches a refuse rule and no other, so such a connection passes the wider
    // rule.
    let passes_by =
        of.refuse && !by.refuse && MAY_BE_UNKNOWN.iter().any(|matcher| wide.asks(*matcher));
    // Each request of a connection is decided.
    let [by_requests, of_requests] =
        [by, of].map(|entry| rules.requests.get(entry.requests as usize));
    let takes_requests = by_requests.zip(of_requests).is_some_and(|(by, of)| by.covers(of));
    if passes_by || by.shadow || !takes_requests { Cover::No } else { wide.cover(narrow) }
}

/// Matchers on facts that may be unknown or unverified.
const MAY_BE_UNKNOWN: [Matcher; 10] = [
    Matcher::PeerUid,
    Matcher::PeerCgroup,
    Matcher::ClientCert,
    Matcher::ProxyUser,
    Matcher::Destination,
    Matcher::Ja4,
    Matcher::SniVerified,
    Matcher::CertificateValid,
    Matcher::CertificateNames,
    Matcher::CertificateIssuer,
];

/// Most comparisons of two rules' matchers: 20 million take less than a second. Lists of names need
/// one or two per name. Only thousands of rules that share a name, or have none, come near the
/// limit.
pub const COMPARISONS_MAX: usize = 20_000_000;
/// Networks of a rule that take about as long as all its other matchers.
const NETWORKS_PER_COMPARISON: usize = 4;
/// Rules in the list of a name that are read in the time of a comparison.
const LISTED_PER_COMPARISON: usize = 8;
/// Most combinations of earlier rules whose result is kept for the names of a rule.
const KNOWN_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: usize = 100_000;
    const NETWORKS: u32 = 10_000;

    fn names(at: &str) -> Vec<NamePattern> {
        (0..NAMES).map(|n| NamePattern::Exact(format!("n{n}.{at}").into())).collect()
    }

    /// Every other network of 24 bits, of so many.
    fn clients(networks: std::ops::Range<u32>) -> Conditions {
        let net = |n: u32| ipnet::Ipv4Net::new_assert((n << 9).into(), 24);
        let client = networks.map(|n| net(n).into()).collect();
        Conditions { client, ..Conditions::default() }
    }

    fn rule(sni: Vec<NamePattern>, conditions: Conditions) -> Rule {
        Rule { sni, conditions, ..Rule::default() }
    }

    /// The numbers of covered rules, lost names and comparisons.
    fn counted(rules: &[Rule]) -> (usize, usize, usize) {
        let (coverage, comparisons) = Rules::new(rules).coverage_within(rules, COMPARISONS_MAX);
        assert_eq!(coverage.stopped_at, None);
        (coverage.covered.len(), coverage.lost.len(), comparisons)
    }

    #[test]
    fn names_do_not_multiply_the_networks() {
        let whole = NETWORKS as usize / NETWORKS_PER_COMPARISON;
        let half = NETWORKS / 2;
        let of = |networks| rule(names("a"), clients(networks));
        // No earlier rule has them.
        let others = vec![rule(names("b"), clients(0..NETWORKS)), of(0..NETWORKS)];
        assert_eq!(counted(&others), (0, 0, 0));
        for (earlier, covered) in [
            (vec![of(0..NETWORKS)], 1),
            (vec![of(0..half), of(half..NETWORKS)], 1),
            (vec![of(0..half), of(half + 1..NETWORKS)], 0),
        ] {
            let expected = NAMES * earlier.len() + earlier.len() * earlier.len() * whole;
            let rules: Vec<Rule> = earlier.into_iter().chain([of(0..NETWORKS)]).collect();
            let (found, lost, comparisons) = counted(&rules);
            assert_eq!((found, lost), (covered, 0));
            assert!((NAMES..=expected + NAMES).contains(&comparisons), "{comparisons} {expected}");
        }
    }

    #[test]
    fn names_count_against_the_limit() {
        // Each name is its own combination of rules, so none is known.
        let mut rules: Vec<Rule> = (0..1000)
            .map(|n| rule(vec![NamePattern::Exact(format!("n{n}.a").into())], clients(0..1)))
            .collect();
        let last = |sni| rule(sni, clients(0..NETWORKS));
        let (own, absent) = (names("a"), NamePattern::Absent);
        rules.push(last(
            [absent.clone()].into_iter().chain(own.iter().take(1000).cloned()).collect(),
        ));
        rules.push(last(vec![absent]));
        let index = Rules::new(&rules);
        let each = 2 + NETWORKS as usize / NETWORKS_PER_COMPARISON;
        let (coverage, comparisons) = index.coverage_within(&rules, 10 * each);
        // The rule is not covered by its first name, and stops at the limit.
        assert_eq!(coverage.stopped_at, Some(RuleId(1000)));
        assert!((10 * each..=12 * each).contains(&comparisons), "{comparisons}");
        let (coverage, comparisons) = index.coverage_within(&rules, COMPARISONS_MAX);
        assert_eq!(coverage.stopped_at, None);
        assert!(comparisons >= 1000 * each, "{comparisons}");
        // Names that are covered are looked at up to the first one that is not.
        let covering = |names| rule(names, Conditions::default());
        let some = |to| own.iter().take(to).cloned().collect::<Vec<_>>();
        let rules = [covering(some(50)), covering(some(50)), covering(some(80))];
        let index = Rules::new(&rules);
        let (coverage, _) = index.coverage_within(&rules, 20);
        assert_eq!((coverage.covered.len(), coverage.stopped_at), (1, Some(RuleId(2))));
    }
}
