//! The decision on each request of a connection. The rules that may decide them are found once a
//! connection; a request is then compared with the matchers `method` and `path` of those.

use crate::conditions::Conditions;
use crate::explain::Miss;
use crate::facts::Facts;
use crate::lists::Lists;
use crate::matcher::Outcome;
use crate::names::Found;
use crate::refusal::Refusal;
use crate::requests::{NormalPath, RequestFacts, RequestOutcome};
use crate::rules::{Decision, Entry, RuleId, Rules, Verdict};
use crate::source::FactSource;

/// The rules that see the requests of a connection, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestRules {
    /// Those that decide them. Empty: the connection's own rule takes them all.
    pub deciding: Box<[RuleId]>,
    /// Those in shadow that ask for them.
    pub shadows: Box<[RuleId]>,
}

impl Rules {
    /// The rules that see the requests of a connection which came to `rule`: those whose matchers
    /// on the connection hold, until one takes every request.
    ///
    /// `rule` holds, and so do those with equal matchers on the connection. For the others facts
    /// are fetched, as for a decision.
    pub fn request_rules(&self, rule: RuleId, source: &mut impl FactSource) -> RequestRules {
        if !self.asks_requests {
            return RequestRules::default();
        }
        let lists = self.hold_lists();
        let decided = self.rule(rule.0).map(|(entry, _)| entry);
        let (mut found, mut shadows) = (Vec::new(), Vec::new());
        let candidates = match source.facts().hello {
            Some(hello) => self.candidates(hello.name, &lists),
            None => self.without_hello(),
        };
        for id in candidates {
            let Some((entry, conditions)) = self.rule(id) else { continue };
            if entry.shadow && entry.requests == 0 {
                // It was looked at when the connection was decided.
                continue;
            }
            let is_alike = decided.is_some_and(|decided| decided.conditions == entry.conditions);
            let holds = id == rule.0
                || is_alike
                || self.holds_on_connection((entry, conditions), source, &lists);
            if !holds {
                continue;
            }
            if entry.shadow {
                shadows.push(RuleId(id));
                continue;
            }
            found.push(RuleId(id));
            if entry.requests == 0 {
                break;
            }
        }
        let takes_all = decided.is_some_and(|decided| decided.requests == 0);
        let deciding = if *found == [rule] && takes_all { Box::default() } else { found.into() };
        RequestRules { deciding, shadows: shadows.into() }
    }

    /// The rules of `shadows` before `decided_by` that take a request, and whether they would
    /// have refused it.
    pub fn shadows_by_request<'a>(
        &'a self,
        shadows: &'a [RuleId],
        decided_by: Option<RuleId>,
        request: &'a RequestFacts<'_>,
    ) -> impl Iterator<Item = (RuleId, bool)> + 'a {
        let is_before = move |id: &&RuleId| decided_by.is_none_or(|by| **id < by);
        let mut normal = None;
        shadows.iter().take_while(is_before).filter_map(move |id| {
            let (entry, _) = self.rule(id.0)?;
            match self.check_request(entry, request, &mut normal) {
                RequestOutcome::Fails(_) => None,
                RequestOutcome::Unclear(_) => Some((*id, true)),
                RequestOutcome::Holds => Some((*id, entry.refuse)),
            }
        })
    }

    /// Rules without `sni`: no other one takes a client without TLS.
    fn without_hello(&self) -> Found<'_> {
        let mut found = Found::new();
        found.push(self.unnamed(false));
        found
    }

    /// True if a rule's matchers on the connection hold. A fact that cannot be had fails closed.
    fn holds_on_connection(
        &self,
        (entry, conditions): (Entry, &Conditions),
        source: &mut impl FactSource,
        lists: &Lists,
    ) -> bool {
        // Each fact is fetched once; then it is there, or unknown.
        for _ in 0..FETCHES_MAX {
            let facts = source.facts();
            let outcome = match &facts.hello {
                Some(hello) => entry.check(conditions, hello, &facts, lists),
                None if entry.asks_hello && !entry.refuse => return false,
                None => conditions.check_before_hello(&facts, lists, entry.refuse),
            };
            match outcome {
                Outcome::Holds => return true,
                Outcome::Fails(_) => return false,
                Outcome::Needs(fact) if source.fetch(fact) => {}
                Outcome::Needs(_) => return entry.refuse,
            }
        }
        entry.refuse
    }

    /// True if a connection for the name `other` would have the same rules as one for `own`, up to
    /// `last`. `""` is no name.
    pub fn are_alike(&self, own: &str, other: &str, last: RuleId) -> bool {
        let lists = self.hold_lists();
        let [mut own, mut other] = [own, other].map(|name| {
            let mut found = Found::new();
            self.find_named(name, &lists, &mut found);
            found.push(self.unnamed(false));
            found.take_while(|id| *id <= last.0)
        });
        own.by_ref().eq(other.by_ref())
    }

    /// Decides a request by the rules that [`Rules::request_rules`] has found. The first that takes
    /// it decides.
    pub fn decide_request(&self, rules: &[RuleId], request: &RequestFacts<'_>) -> Verdict {
        let mut normal = None;
        for id in rules {
            let Some((entry, _)) = self.rule(id.0) else { continue };
            let refuse = match self.check_request(entry, request, &mut normal) {
                RequestOutcome::Fails(_) => continue,
                RequestOutcome::Unclear(fault) => Some(fault.into()),
                RequestOutcome::Holds if entry.refuse => Some(match entry.requests {
                    0 => Refusal::NoRequestRule,
                    _ => Refusal::ByRequest,
                }),
                // A connection that was opened is not spliced any more.
                RequestOutcome::Holds if !entry.serves_requests => break,
                RequestOutcome::Holds => None,
            };
            return Verdict { rule: Some(*id), refuse };
        }
        Verdict { rule: None, refuse: Some(Refusal::NoRequestRule) }
    }

    /// The rules of `rules` before the deciding one, each with the matcher that fails.
    pub fn request_misses<'a>(
        &'a self,
        rules: &'a [RuleId],
        request: &'a RequestFacts<'_>,
    ) -> impl Iterator<Item = Miss> + 'a {
        let mut normal = None;
        rules.iter().map_while(move |rule| {
            let (entry, _) = self.rule(rule.0)?;
            match self.check_request(entry, request, &mut normal) {
                RequestOutcome::Fails(matcher) => Some(Miss { rule: *rule, matcher }),
                RequestOutcome::Holds | RequestOutcome::Unclear(_) => None,
            }
        })
    }

    /// Compares a request with a rule's matchers.
    #[inline]
    fn check_request<'a>(
        &self,
        entry: Entry,
        request: &RequestFacts<'a>,
        normal: &mut NormalPath<'a>,
    ) -> RequestOutcome {
        match entry.requests {
            0 => RequestOutcome::Holds,
            index => {
                let asked = self.requests.get(index as usize);
                asked.map_or(RequestOutcome::Holds, |asked| asked.check(request, normal))
            }
        }
    }

    /// The refusal of a connection whose rule reads no requests, while an earlier refuse rule asks
    /// for one: what it asks for stays unknown, and fails closed.
    pub(crate) fn refuses_unread(
        &self,
        rule: u32,
        facts: &Facts<'_>,
        lists: &Lists,
    ) -> Option<Decision> {
        let passed = self.passed.get(..self.passed.partition_point(|id| *id < rule))?;
        // Lists without such rules do no work here.
        passed.first()?;
        let mut by_name = facts.hello.map(|hello| self.candidates(hello.name, lists).peekable());
        for id in passed {
            let (entry, conditions) = self.rule(*id)?;
            let is_named = by_name.as_mut().is_none_or(|by_name| {
                while by_name.next_if(|candidate| candidate < id).is_some() {}
                by_name.peek() == Some(id)
            });
            let outcome = match &facts.hello {
                Some(_) if !is_named => continue,
                Some(hello) => entry.check(conditions, hello, facts, lists),
                None => conditions.check_before_hello(facts, lists, true),
            };
            match outcome {
                Outcome::Fails(_) => {}
                Outcome::Needs(fact) => return Some(Decision::Need(fact)),
                Outcome::Holds if facts.hello.is_none() && entry.asks_hello => {
                    return Some(Decision::Need(crate::facts::Fact::Hello));
                }
                Outcome::Holds => {
                    let (rule, refuse) = (Some(RuleId(*id)), Some(Refusal::RequestUnread));
                    return Some(Decision::Verdict(Verdict { rule, refuse }));
                }
            }
        }
        None
    }

    /// True if any rule asks for the method or the path of requests.
    pub const fn asks_requests(&self) -> bool {
        self.asks_requests
    }
}

/// Most facts that one rule has fetched: more than there are.
const FETCHES_MAX: usize = 8;
