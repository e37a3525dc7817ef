//! Why the rules before the deciding one did not match. It reads the same matchers as the decision.

use crate::facts::Facts;
use crate::matcher::{Matcher, Outcome, listed};
use crate::names::NamePattern;
use crate::rules::{Decision, RuleId, Rules};

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
        let end = match self.decide(facts) {
            Decision::Verdict(verdict) => verdict.rule.map(|rule| rule.0),
            Decision::Need(_) => None,
        };
        let end = end.unwrap_or(u32::try_from(self.len()).unwrap_or(u32::MAX));
        // Candidates are ascending like the rules, so one pass over both is enough.
        let mut candidates = facts.hello.map(|hello| self.candidates(hello.sni()).peekable());
        let first_peek = self.first_peek(facts);
        (0..end).filter_map(move |rule| {
            let by_name = candidates.as_mut().is_some_and(|candidates| {
                while candidates.next_if(|candidate| *candidate < rule).is_some() {}
                candidates.peek() == Some(&rule)
            });
            // A shadow rule may ask for a hello that the others were decided without.
            let asks_hello = self.rule(rule).is_some_and(|(entry, _)| entry.asks_hello());
            let by_name = by_name || (rule < first_peek && !asks_hello);
            let matcher = self.failed(rule, by_name, facts)?;
            Some(Miss { rule: RuleId(rule), matcher })
        })
    }

    /// The values of `matcher` in `rule`, as in the configuration, cut to a few. Empty if the rule
    /// does not have it. Slow: names are searched for in the whole index.
    pub fn matcher_text(&self, rule: RuleId, matcher: Matcher) -> String {
        let Some((entry, conditions)) = self.rule(rule.0) else { return String::new() };
        match matcher {
            Matcher::Sni if entry.named() => {
                let mut names: Vec<NamePattern> = self.names().patterns_of(rule.0).collect();
                names.sort_unstable();
                listed(names.iter())
            }
            _ if conditions.asks(matcher) => conditions.text(matcher),
            _ => String::new(),
        }
    }

    /// The listeners of `rule`, by index, ascending. Empty: all.
    pub fn listeners_of(&self, rule: RuleId) -> &[u16] {
        self.rule(rule.0).map_or(&[], |(_, conditions)| conditions.listener_list())
    }

    fn failed(&self, rule: u32, by_name: bool, facts: &Facts<'_>) -> Option<Matcher> {
        let (entry, conditions) = self.rule(rule)?;
        if let Outcome::Fails(matcher) = conditions.check_before_hello(facts, entry.refuse()) {
            return Some(matcher);
        }
        let hello = facts.hello?;
        if !by_name {
            // A rule without `sni` fails to be a candidate only because the name is, or is not,
            // malformed.
            return Some(if entry.named() { Matcher::Sni } else { Matcher::SniMalformed });
        }
        match conditions.check_hello(hello, facts, entry.refuse()) {
            Outcome::Fails(matcher) => Some(matcher),
            Outcome::Holds | Outcome::Needs(_) => None,
        }
    }
}
