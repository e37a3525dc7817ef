//! Finds the reasons why the rules before the deciding one did not match. It reads the same
//! matchers as the decision.

use crate::facts::Facts;
use crate::lists::{ListedBy, Lists};
use crate::matcher::{Matcher, Outcome, joined, listed};
use crate::names::NamePattern;
use crate::rules::{Decision, RuleId, Rules};

/// Most rules that a refused client's target is looked for in: it is done for each such client.
const MISSES_MAX: usize = 16;
/// Most files that one line names.
const FILES_MAX: usize = 3;

/// A rule that did not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The rule.
    pub rule: RuleId,
    /// The first of its matchers that failed.
    pub matcher: Matcher,
}

impl Rules {
    /// The rules before the deciding one, each with its first matcher that failed, in order. Lazy,
    /// because there may be 100,000. If a fact is still needed, those that are known to fail.
    pub fn misses<'a>(&'a self, facts: &'a Facts<'a>) -> impl Iterator<Item = Miss> + 'a {
        let lists = self.hold_lists();
        let end = match self.decide_by(facts, &lists) {
            Decision::Verdict(verdict) => verdict.rule.map(|rule| rule.0),
            Decision::Need(_) => None,
        };
        let end = end.unwrap_or(u32::try_from(self.len()).unwrap_or(u32::MAX));
        // Candidates are ascending like the rules, so one pass over both is enough.
        let candidates = facts.hello.map(|hello| self.candidates(hello.name, &lists).peekable());
        let mut candidates = candidates;
        let first_peek = self.first_peek(facts, &lists);
        (0..end).filter_map(move |rule| {
            let by_name = candidates.as_mut().is_some_and(|candidates| {
                while candidates.next_if(|candidate| *candidate < rule).is_some() {}
                candidates.peek() == Some(&rule)
            });
            // A shadow rule may ask for a hello that the others were decided without.
            let asks_hello = self.rule(rule).is_some_and(|(entry, _)| entry.asks_hello);
            let by_name = by_name || (rule < first_peek && !asks_hello);
            let matcher = self.failed(rule, by_name, facts, &lists)?;
            Some(Miss { rule: RuleId(rule), matcher })
        })
    }

    /// Says in which lists the target of a CONNECT is missing, such as "not in allow.txt", for the
    /// client. `None`: a rule failed by another matcher than these of addresses, or there are many
    /// rules.
    pub fn lacks_target(&self, facts: &Facts<'_>) -> Option<String> {
        let lists = self.hold_lists();
        let (mut files, mut is_missed, mut has_others) = (Vec::new(), false, false);
        for (count, miss) in self.misses(facts).enumerate() {
            match miss.matcher {
                _ if count >= MISSES_MAX => return None,
                Matcher::Listener | Matcher::Client => {}
                Matcher::Connect => {
                    let (_, conditions) = self.rule(miss.rule.0)?;
                    is_missed = true;
                    has_others |= !conditions.connect.is_empty();
                    files.extend(conditions.from_files.files_without(facts.connect?, &lists));
                }
                _ => return None,
            }
        }
        // Where a list is for the port, one that has the name at another port would not help.
        if files.iter().any(|(_, other): &(String, _)| other.is_none()) {
            files.retain(|(_, other)| other.is_none());
        }
        files.sort_unstable();
        files.dedup();
        let files: Vec<String> = files
            .into_iter()
            .map(|(file, other)| match other {
                None => file,
                Some(port) => format!("{file} (for port {port})"),
            })
            .collect();
        match files.len() {
            1..=FILES_MAX if !has_others => Some(format!("not in {}", files.join(", "))),
            _ if !is_missed => None,
            _ => Some("not in `connect` of any rule".to_owned()),
        }
    }

    /// True if a rule lists the name of the hello, and failed by the client's address.
    pub fn has_name_for_others(&self, facts: &Facts<'_>) -> bool {
        let lists = self.hold_lists();
        let Some(hello) = facts.hello else { return false };
        self.candidates(hello.name, &lists).any(|rule| {
            let is_named = self.rule(rule).is_some_and(|(entry, _)| entry.named);
            is_named && self.failed(rule, true, facts, &lists) == Some(Matcher::Client)
        })
    }

    /// The values of `matcher` in `rule`, as in the configuration, cut to a few. Empty if the rule
    /// does not have it. Slow: names are searched for in the whole index.
    pub fn matcher_text(&self, rule: RuleId, matcher: Matcher) -> String {
        let Some((entry, conditions)) = self.rule(rule.0) else { return String::new() };
        let lists = self.hold_lists();
        match matcher {
            Matcher::Sni if entry.named => {
                let mut names: Vec<NamePattern> = self.names.patterns_of(rule.0).collect();
                names.sort_unstable();
                let files = self.lists_of(rule.0).map(|id| lists.text(id));
                joined(listed(names.iter()), files.collect())
            }
            _ if conditions.asks(matcher) => conditions.text(matcher, &lists),
            Matcher::Method | Matcher::Path => {
                let asked = self.requests.get(entry.requests as usize);
                asked.map_or_else(String::new, |asked| asked.text(matcher))
            }
            _ => String::new(),
        }
    }

    /// The entries of files by which the matchers of `rule` hold.
    pub fn listed_by(&self, rule: RuleId, facts: &Facts<'_>) -> Vec<(Matcher, ListedBy)> {
        let Some((_, conditions)) = self.rule(rule.0) else { return Vec::new() };
        let lists = self.hold_lists();
        let name = facts.hello.and_then(|hello| hello.host_name());
        let by_name =
            name.and_then(|name| self.lists_of(rule.0).find_map(|id| lists.find_name(id, name)));
        let others = [Matcher::Client, Matcher::Connect, Matcher::Destination];
        let others = others.into_iter().filter_map(|matcher| {
            Some((matcher, conditions.from_files.listed_by(matcher, facts, &lists)?))
        });
        others.chain(by_name.map(|by| (Matcher::Sni, by))).collect()
    }

    /// The listeners of `rule`, by index, ascending. Empty: all.
    pub fn listeners_of(&self, rule: RuleId) -> &[u16] {
        self.rule(rule.0).map_or(&[], |(_, conditions)| &conditions.listeners)
    }

    fn failed(
        &self,
        rule: u32,
        by_name: bool,
        facts: &Facts<'_>,
        lists: &Lists,
    ) -> Option<Matcher> {
        let (entry, conditions) = self.rule(rule)?;
        let before_hello = conditions.check_before_hello(facts, lists, entry.refuse);
        if let Outcome::Fails(matcher) = before_hello {
            return Some(matcher);
        }
        let hello = facts.hello.as_ref()?;
        if !by_name {
            // A rule without `sni` fails to be a candidate only because the name is, or is not,
            // malformed.
            return Some(if entry.named { Matcher::Sni } else { Matcher::SniMalformed });
        }
        match conditions.check_hello(hello, facts, entry.refuse) {
            Outcome::Fails(matcher) => Some(matcher),
            Outcome::Holds | Outcome::Needs(_) => None,
        }
    }
}
