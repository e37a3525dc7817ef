//! A connection goes on while its rule does: the rule after a reload, and in a drain.

use eyelet_telemetry::info::{Decided, Outcome};
use eyelet_telemetry::reason::Reason;
use eyelet_upstream::Upstream;

use super::ServedConnection;
use super::rule::ServingRule;
use crate::connection::route::Route;

impl ServedConnection {
    /// The rule that serves its requests.
    ///
    /// # Errors
    /// If a reload removed it.
    pub fn route(&self) -> Result<&Route, Reason> {
        // Not `ok_or`: it would make and drop a reason for each request.
        match &self.rule.route {
            Some(route) => Ok(route),
            None => Err(Reason::RuleGone),
        }
    }

    /// The outcome of the connection where nothing is wrong.
    pub fn outcome(&self) -> Outcome {
        self.rule.intermediary.outcome(&self.info.decided)
    }

    /// Finds the rule of the newest configuration for exchanges that rested before their responses.
    /// Their access lines name the one that decided them.
    pub fn find_route(&mut self) {
        let (mut info, has_preface) = (self.info.copy(), !self.preface.is_empty());
        let rule = ServingRule::of(&self.http, &mut info, has_preface, || self.local());
        self.rule = ServingRule { shadows: std::mem::take(&mut self.rule.shadows), ..rule };
    }

    /// True if the connection takes no request after the present ones.
    pub fn is_last(&self) -> bool {
        self.rule.route.is_none() || self.http.engine.begins_nothing(self.info.decided.http2)
    }

    /// Returns the reason why the connection takes no request after the present ones, if it does
    /// not: HTTP/1.1 then says `Connection: close`, and HTTP/2 sends GOAWAY.
    pub fn why_last(&self) -> Option<Reason> {
        if self.http.engine.begins_nothing(self.info.decided.http2) {
            return Some(Reason::Drained(None));
        }
        // A reload removed its rule.
        self.rule.route.is_none().then_some(Reason::RuleGone)
    }

    /// True if the newest configuration lacks this connection's rule, and ends its connections.
    pub fn is_removed(&self) -> bool {
        // One that rested may have woken in a worker that is newer than its rule.
        let newest = self.http.newer().unwrap_or_else(|| self.http.clone());
        let Decided { rule: Some(rule), labels, .. } = &self.info.decided else { return false };
        let (generation, is_removed) = self.rule.removed_by.get();
        if generation == newest.shared.generation {
            return is_removed;
        }
        let config = &newest.shared.config;
        let name = labels.rule(*rule);
        let is_removed =
            config.reload_ends_removed && config.rules.iter().all(|rule| rule.name != name);
        self.rule.removed_by.set((newest.shared.generation, is_removed));
        is_removed
    }

    /// Keeps a connection of a response that has ended, to the upstream with this index.
    pub fn keep(&self, upstream: Upstream, index: usize) {
        if let Some(target) = self.rule.route.as_ref().and_then(|route| route.target(index))
            && !self.http.engine.process.budget.is_tight(0)
        {
            target.shelf.keep(upstream);
        }
    }
}
