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
    /// The first rule that was not analysed, if the list takes too many comparisons: see
    /// `COMPARISONS_MAX`.
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
    /// 100,000 look-ups. These are not found: a rule covered by rules with names together with
    /// rules without, or by rules that divide two matchers among them.
    pub fn coverage(&self, rules: &[Rule]) -> Coverage {
        let mut search = Search { rules: self, comparisons: 0, unnamed: HashMap::new() };
        let mut coverage = Coverage::default();
        for (id, rule) in (0..).zip(rules.get(..self.len()).unwrap_or(rules)) {
            if search.comparisons > COMPARISONS_MAX {
                coverage.stopped_at = Some(RuleId(id));
                break;
            }
            if let Some(by) = search.covering(id, rule, &mut coverage.lost) {
                coverage.covered.push(Covered { rule: RuleId(id), by });
            }
        }
        coverage
    }
}

struct Search<'a> {
    rules: &'a Rules,
    comparisons: usize,
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

impl Search<'_> {
    /// The rules that cover a rule. If it is not covered, adds those of its names that are.
    fn covering(&mut self, id: u32, rule: &Rule, lost: &mut Vec<LostName>) -> Option<Vec<RuleId>> {
        if let Some(by) = self.covering_unnamed(id) {
            return Some(by);
        }
        if !rule.is_named() {
            return None;
        }
        let before = lost.len();
        for name in &rule.sni {
            let by = self.covering_name(id, name);
            lost.extend(by.map(|by| LostName { rule: RuleId(id), name: name.clone(), by }));
        }
        if lost.len() - before < rule.sni.len() {
            return None;
        }
        let mut by = Vec::new();
        for list in &rule.sni_lists {
            by.extend(self.covering_list(id, *list)?);
        }
        by.extend(lost.drain(before..).flat_map(|name| name.by));
        by.sort_unstable();
        by.dedup();
        Some(by)
    }

    /// The first earlier rules that list `pattern`, or one that covers it, and that cover the
    /// rule's other matchers.
    fn covering_name(&mut self, id: u32, pattern: &NamePattern) -> Option<Vec<RuleId>> {
        let mut found = Found::new();
        self.rules.names.find_covering(pattern, &mut found);
        self.first_covering(id, found)
    }

    /// The first earlier rules that name the same file. What the file has is not looked at: it may
    /// change.
    fn covering_list(&mut self, id: u32, list: ListId) -> Option<Vec<RuleId>> {
        self.first_covering(id, self.rules.rules_by_list(list).iter().copied())
    }

    fn first_covering(
        &mut self,
        id: u32,
        candidates: impl Iterator<Item = u32>,
    ) -> Option<Vec<RuleId>> {
        let mut together = Together::of(self.rules.rule(id)?.1);
        let mut earlier = candidates.take_while(|candidate| *candidate < id);
        earlier.find_map(|candidate| {
            self.comparisons += 1;
            together.add(self.rules, candidate, id)
        })
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
                self.comparisons += 1;
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
/// one or two per rule. Only thousands of rules that share a name, or have none, come near the
/// limit.
pub const COMPARISONS_MAX: usize = 20_000_000;
