//! Finds rules that can never match, because earlier rules take all that they would.
//! An analysis of the list as written; knows nothing of connections.

use std::collections::HashMap;

use crate::conditions::Matcher;
use crate::names::{Found, NamePattern};
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
    /// other matchers is absent or as wide. Names are looked up in the index, so a list of
    /// 100,000 names is analysed in about 100,000 look-ups. What only several matchers of several
    /// rules cover together is not found.
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
    /// By index of conditions, for refuse rules apart: the first rule without names that covers
    /// them, if any, and how many were compared. Rules that share conditions compare only once.
    unnamed: HashMap<(u32, bool), (Option<u32>, usize)>,
}

impl Search<'_> {
    fn covering(&mut self, id: u32, sni: &[NamePattern]) -> Option<Vec<RuleId>> {
        if let Some(by) = self.covering_unnamed(id) {
            return Some(vec![RuleId(by)]);
        }
        if sni.is_empty() {
            return None;
        }
        let mut by = Vec::new();
        for pattern in sni {
            by.push(RuleId(self.covering_name(id, pattern)?));
        }
        by.sort_unstable();
        by.dedup();
        Some(by)
    }

    /// The first earlier rule that lists `pattern`, or what covers it, and is as wide otherwise.
    fn covering_name(&mut self, id: u32, pattern: &NamePattern) -> Option<u32> {
        let mut found = Found::new();
        self.rules.names().find_covering(pattern, &mut found);
        let mut earlier = found.take_while(|candidate| *candidate < id);
        earlier.find(|candidate| {
            self.comparisons += 1;
            covers(self.rules, *candidate, id)
        })
    }

    fn covering_unnamed(&mut self, id: u32) -> Option<u32> {
        let (entry, conditions) = self.rules.rule(id)?;
        let unnamed = self.rules.unnamed(conditions.asks(Matcher::SniMalformed));
        let (by, compared) = self.unnamed.entry((entry.conditions(), entry.refuse())).or_default();
        if by.is_none() {
            let rest = unnamed.get(*compared..)?;
            let earlier = rest.iter().take_while(|candidate| **candidate < id);
            for candidate in earlier {
                *compared += 1;
                self.comparisons += 1;
                if covers(self.rules, *candidate, id) {
                    *by = Some(*candidate);
                    break;
                }
            }
        }
        *by
    }
}

fn covers(rules: &Rules, wide: u32, narrow: u32) -> bool {
    let (Some((by, wide)), Some((of, narrow))) = (rules.rule(wide), rules.rule(narrow)) else {
        return false;
    };
    // What cannot be had matches a refuse rule and no other, so it passes by the wider one.
    let passes_by =
        of.refuse() && !by.refuse() && MAY_BE_UNKNOWN.iter().any(|matcher| wide.asks(*matcher));
    !passes_by && !by.shadow() && wide.cover(narrow)
}

/// Matchers on facts that may not be had, or not be believed.
const MAY_BE_UNKNOWN: [Matcher; 6] = [
    Matcher::Destination,
    Matcher::Ja4,
    Matcher::NameIsTrue,
    Matcher::CertificateValid,
    Matcher::CertificateNames,
    Matcher::CertificateIssuer,
];

/// Comparisons of two rules' matchers: 20 million take less than a second. Lists of names need
/// one or two a rule; only thousands of rules that share a name, or have none, come near.
pub const COMPARISONS_MAX: usize = 20_000_000;
