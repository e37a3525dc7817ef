//! Finds rules that can never match, because earlier rules take all that they would.
//! An analysis of the list as written; knows nothing of connections.

use std::collections::HashMap;

use crate::conditions::{Conditions, Cover};
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

/// What an analysis found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Ascending by rule.
    pub covered: Vec<Covered>,
    /// The first rule that was not looked at, where the list is too tangled to look at all of it:
    /// see `COMPARISONS_MAX`.
    pub stopped_at: Option<RuleId>,
}

impl Rules {
    /// Rules of the list `rules`, of which this is the index, that can never match.
    ///
    /// A rule is covered where earlier rules list each of its names, or none, and each of their
    /// other matchers is absent or as wide; or where several are but for their clients, and take
    /// its clients together, or its destinations likewise. Names are looked up in the index, so a
    /// list of 100,000 names is analysed in about 100,000 look-ups. What is not found: several
    /// rules of which some have names and some have none, or that share out two matchers.
    pub fn coverage(&self, rules: &[Rule]) -> Coverage {
        let mut search = Search { rules: self, comparisons: 0, unnamed: HashMap::new() };
        let mut coverage = Coverage::default();
        for (id, rule) in (0..).zip(rules.get(..self.len()).unwrap_or(rules)) {
            if search.comparisons > COMPARISONS_MAX {
                coverage.stopped_at = Some(RuleId(id));
                break;
            }
            if let Some(by) = search.covering(id, &rule.sni) {
                coverage.covered.push(Covered { rule: RuleId(id), by });
            }
        }
        coverage
    }
}

struct Search<'a> {
    rules: &'a Rules,
    comparisons: usize,
    /// By index of conditions, for refuse rules apart: rules that share conditions compare with
    /// those without names only once.
    unnamed: HashMap<(u32, bool), Unnamed>,
}

/// How far rules without names cover some conditions.
struct Unnamed {
    /// So many were compared.
    compared: usize,
    together: Together,
    by: Option<Vec<RuleId>>,
}

/// Rules that are as wide as another but for one matcher on addresses, and what they leave of it.
struct Together {
    clients: NetSet,
    clients_by: Vec<RuleId>,
    destinations: AddressSet,
    destinations_by: Vec<RuleId>,
}

impl Search<'_> {
    fn covering(&mut self, id: u32, sni: &[NamePattern]) -> Option<Vec<RuleId>> {
        if let Some(by) = self.covering_unnamed(id) {
            return Some(by);
        }
        if sni.is_empty() {
            return None;
        }
        let mut by = Vec::new();
        for pattern in sni {
            by.extend(self.covering_name(id, pattern)?);
        }
        by.sort_unstable();
        by.dedup();
        Some(by)
    }

    /// The first earlier rules that list `pattern`, or what covers it, and are as wide otherwise.
    fn covering_name(&mut self, id: u32, pattern: &NamePattern) -> Option<Vec<RuleId>> {
        let mut found = Found::new();
        self.rules.names().find_covering(pattern, &mut found);
        let mut together = Together::of(self.rules.rule(id)?.1);
        let mut earlier = found.take_while(|candidate| *candidate < id);
        earlier.find_map(|candidate| {
            self.comparisons += 1;
            together.add(self.rules, candidate, id)
        })
    }

    fn covering_unnamed(&mut self, id: u32) -> Option<Vec<RuleId>> {
        let (entry, conditions) = self.rules.rule(id)?;
        let unnamed = self.rules.unnamed(conditions.asks(Matcher::SniMalformed));
        let key = (entry.conditions(), entry.refuse());
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
            clients: narrow.clients().cloned().unwrap_or_else(NetSet::all),
            clients_by: Vec::new(),
            destinations: narrow.destinations().clone(),
            destinations_by: Vec::new(),
        }
    }

    /// The rules that cover `narrow`, if they do with `wide`.
    fn add(&mut self, rules: &Rules, wide: u32, narrow: u32) -> Option<Vec<RuleId>> {
        let (_, conditions) = rules.rule(wide)?;
        match covers(rules, wide, narrow) {
            Cover::Whole => return Some(vec![RuleId(wide)]),
            Cover::AllBut(Matcher::Client) => {
                let left = self.clients.without(conditions.clients()?);
                if left != self.clients {
                    self.clients_by.push(RuleId(wide));
                    self.clients = left;
                }
            }
            Cover::AllBut(_) => {
                let left = self.destinations.without(conditions.destinations());
                if left != self.destinations {
                    self.destinations_by.push(RuleId(wide));
                    self.destinations = left;
                }
            }
            Cover::No => {}
        }
        match (self.clients.is_empty(), self.destinations.is_empty()) {
            (true, _) => Some(self.clients_by.clone()),
            // Empty from the start is every destination, and those that cannot be had.
            (_, true) if !self.destinations_by.is_empty() => Some(self.destinations_by.clone()),
            _ => None,
        }
    }
}

fn covers(rules: &Rules, wide: u32, narrow: u32) -> Cover {
    let (Some((by, wide)), Some((of, narrow))) = (rules.rule(wide), rules.rule(narrow)) else {
        return Cover::No;
    };
    // What cannot be had matches a refuse rule and no other, so it passes by the wider one.
    let passes_by =
        of.refuse() && !by.refuse() && MAY_BE_UNKNOWN.iter().any(|matcher| wide.asks(*matcher));
    if passes_by || by.shadow() { Cover::No } else { wide.cover(narrow) }
}

/// Matchers on facts that may not be had, or not be believed.
const MAY_BE_UNKNOWN: [Matcher; 6] = [
    Matcher::Destination,
    Matcher::Ja4,
    Matcher::SniVerified,
    Matcher::CertificateValid,
    Matcher::CertificateNames,
    Matcher::CertificateIssuer,
];

/// Comparisons of two rules' matchers: 20 million take less than a second. Lists of names need
/// one or two a rule; only thousands of rules that share a name, or have none, come near.
pub const COMPARISONS_MAX: usize = 20_000_000;
