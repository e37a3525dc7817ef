//! The decision on a CONNECT before its hello: whether every rule that might take it refuses, and
//! whether one might take it if the client named its user.

use eyelet_wire::connect::TargetHost;

use crate::facts::Facts;
use crate::lists::Lists;
use crate::matcher::{Matcher, Outcome};
use crate::name_table::index_u32;
use crate::names::Found;
use crate::refusal::Refusal;
use crate::requester::OF_REQUESTER;
use crate::rules::{RuleId, Rules, Verdict};

/// Most rules that [`Rules::might_take`] lists.
const MIGHT_TAKE_MAX: usize = 16;

impl Rules {
    /// The refusal of a CONNECT whose hello is still to come. `None`: a rule might take it, so the
    /// hello decides; or the target is an address, which is no name of a list.
    ///
    /// A client asks for the name by CONNECT that its hello will have. So a rule with `sni` might
    /// take the connection if it lists the target's name, or no name. A rule whose `connect` names
    /// targets expects other names in their hellos, so it might, too. All other matchers on the
    /// hello might hold.
    pub fn refuses_target(&self, facts: &Facts<'_>) -> Option<Verdict> {
        let TargetHost::Name(name) = facts.connect?.host else { return None };
        let lists = self.hold_lists();
        for (id, is_listing) in self.possible_and_listing(&name, &lists) {
            let Some((entry, conditions)) = self.rule(id) else { continue };
            // A refuse rule on requests refuses none yet.
            if entry.shadow || entry.refuse && entry.requests != 0 {
                continue;
            }
            let outcome = conditions.check_before_hello(facts, &lists, entry.refuse);
            match (outcome, entry.refuse) {
                (Outcome::Fails(_), _) => {}
                (_, false) => return None,
                // This rule certainly refuses. One that only might leaves it to those below.
                (Outcome::Holds, true) if is_listing && !conditions.ask_hello() => {
                    let refuse = Some(self.reason_by_target(id));
                    return Some(Verdict { rule: Some(RuleId(id)), refuse });
                }
                (Outcome::Holds | Outcome::Needs(_), true) => {}
            }
        }
        Some(Verdict { rule: None, refuse: Some(Refusal::NoRule) })
    }

    /// The rules that might take a CONNECT whose hello is still to come, if that has the name of
    /// the target. `None`: a rule expects other names in the hello, or there are more than
    /// `MIGHT_TAKE_MAX`; or the target is an address.
    pub fn might_take(&self, facts: &Facts<'_>) -> Option<Vec<RuleId>> {
        let TargetHost::Name(name) = facts.connect?.host else { return None };
        let lists = self.hold_lists();
        let mut rules = Vec::new();
        for (id, is_listing) in self.possible_and_listing(&name, &lists) {
            let Some((entry, conditions)) = self.rule(id) else { continue };
            let outcome = conditions.check_before_hello(facts, &lists, false);
            if entry.shadow || entry.refuse || matches!(outcome, Outcome::Fails(_)) {
                continue;
            }
            if !is_listing || rules.len() == MIGHT_TAKE_MAX {
                return None;
            }
            rules.push(RuleId(id));
        }
        (!rules.is_empty()).then_some(rules)
    }

    /// The rules of [`Rules::possible`]. True: its `sni` lists the name, or it has none.
    fn possible_and_listing(&self, name: &str, lists: &Lists) -> impl Iterator<Item = (u32, bool)> {
        let mut listing = Found::new();
        self.find_named(name, lists, &mut listing);
        listing.push(self.unnamed(false));
        let mut listing = listing.peekable();
        self.possible(name, lists).map(move |id| {
            while listing.next_if(|listed| *listed < id).is_some() {}
            (id, listing.peek() == Some(&id))
        })
    }

    /// The rules that might take a connection whose hello is still to come, for this target.
    fn possible(&self, name: &str, lists: &Lists) -> Found<'_> {
        let mut candidates = Found::new();
        self.find_named(name, lists, &mut candidates);
        self.find_named("", lists, &mut candidates);
        for ids in [self.unnamed(false), self.unnamed(true), &self.naming_targets] {
            candidates.push(ids);
        }
        candidates
    }

    /// The reason of a refusal for a client that may not have named its user: with one a rule might
    /// take it, or no longer refuse it.
    pub(crate) fn blame_user(&self, mut verdict: Verdict, facts: &Facts<'_>) -> Verdict {
        if verdict.refuse.is_some() && facts.requester.user.is_none() && self.waits_for_user(facts)
        {
            verdict.refuse = Some(Refusal::NoUser);
        }
        verdict
    }

    /// True if all matchers that come before the user hold, in a rule that asks for one. The name
    /// is that of the hello, else of the target. Any name may follow a target that is an address.
    fn waits_for_user(&self, facts: &Facts<'_>) -> bool {
        let Some(target) = facts.connect.filter(|_| self.asks_users) else { return false };
        let lists = self.hold_lists();
        let waits = |id: u32| {
            self.rule(id).is_some_and(|(entry, conditions)| {
                let outcome = conditions.check_before_hello(facts, &lists, false);
                !entry.shadow && outcome == Outcome::Fails(Matcher::ProxyUser)
            })
        };
        match (&facts.hello, &target.host) {
            (Some(hello), _) => self.candidates(hello.name, &lists).any(waits),
            (None, TargetHost::Name(name)) => self.possible(name, &lists).any(waits),
            (None, TargetHost::Ip(_)) => (0..index_u32(self.len())).any(waits),
        }
    }

    /// Returns the reason that a hello with the name would have.
    fn reason_by_target(&self, id: u32) -> Refusal {
        match self.rule(id) {
            Some((_, asked)) if OF_REQUESTER.into_iter().any(|of| asked.asks(of)) => {
                Refusal::ByRequester
            }
            Some((_, asked)) if asked.asks(Matcher::Client) || asked.asks(Matcher::Destination) => {
                Refusal::ByAddress
            }
            Some((_, asked)) if asked.asks(Matcher::Connect) => Refusal::ByConnect,
            Some((entry, _)) if entry.named => Refusal::ByName,
            _ => Refusal::NoRule,
        }
    }
}
