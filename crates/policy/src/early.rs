//! The decision on a CONNECT before its hello: whether every rule that might take it refuses.

use eyelet_wire::connect::TargetHost;

use crate::facts::Facts;
use crate::matcher::{Matcher, Outcome};
use crate::names::Found;
use crate::refusal::Refusal;
use crate::rules::{RuleId, Rules, Verdict};

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
        let mut listing = Found::new();
        self.find_named(&name, &lists, &mut listing);
        listing.push(self.unnamed(false));
        let mut listing = listing.peekable();
        let mut candidates = Found::new();
        self.find_named(&name, &lists, &mut candidates);
        self.find_named("", &lists, &mut candidates);
        for ids in [self.unnamed(false), self.unnamed(true), &self.naming_targets] {
            candidates.push(ids);
        }
        for id in candidates {
            while listing.next_if(|listed| *listed < id).is_some() {}
            let is_listing = listing.peek() == Some(&id);
            let Some((entry, conditions)) = self.rule(id) else { continue };
            if entry.shadow {
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

    /// As with a hello that has the name.
    fn reason_by_target(&self, id: u32) -> Refusal {
        match self.rule(id) {
            Some((_, asked)) if asked.asks(Matcher::Client) || asked.asks(Matcher::Destination) => {
                Refusal::ByAddress
            }
            Some((_, asked)) if asked.asks(Matcher::Connect) => Refusal::ByConnect,
            Some((entry, _)) if entry.named => Refusal::ByName,
            _ => Refusal::NoRule,
        }
    }
}
