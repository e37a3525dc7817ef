//! The loop of a decision: ask the rules, have the fact that they need fetched, ask again.

use crate::facts::{Fact, FactSet, Facts};
use crate::rules::{Decision, Rules};

/// The facts of one connection, wherever they come from.
pub trait FactSource {
    /// The facts known so far.
    fn facts(&self) -> Facts<'_>;

    /// Adds a fact, or adds it to those that are unknown. Returns `false` if neither can be said
    /// without a wait.
    fn fetch(&mut self, fact: Fact) -> bool;
}

impl Rules {
    /// Decides by the facts of a source: the verdict, or the fact that must be waited for. A
    /// CONNECT that every rule refuses is refused before its hello is read.
    pub fn decide_from(&self, source: &mut impl FactSource) -> Decision {
        let mut search = self.search();
        loop {
            let facts = source.facts();
            let fact = match search.decide(&facts) {
                Decision::Need(fact) => fact,
                Decision::Verdict(verdict) => {
                    return Decision::Verdict(self.blame_user(verdict, &facts));
                }
            };
            if fact == Fact::Hello
                && let Some(verdict) = self.refuses_target(&facts)
            {
                return Decision::Verdict(self.blame_user(verdict, &facts));
            }
            if !source.fetch(fact) {
                return Decision::Need(fact);
            }
        }
    }

    /// Fetches the facts that shadow rules need, each once. Returns those. [`Rules::shadowed`] then
    /// says what the rules come to.
    pub fn fetch_for_shadows(&self, source: &mut impl FactSource) -> FactSet {
        let mut fetched = FactSet::EMPTY;
        loop {
            let facts = source.facts();
            let needed = self.shadowed(&facts).find_map(|(_, comes_to)| match comes_to {
                Decision::Need(fact) if !fetched.contains(fact) => Some(fact),
                Decision::Need(_) | Decision::Verdict(_) => None,
            });
            let Some(fact) = needed else { return fetched };
            fetched = fetched.with(fact);
            source.fetch(fact);
        }
    }
}
