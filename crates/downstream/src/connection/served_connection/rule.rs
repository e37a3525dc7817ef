//! The rule that serves the requests of a connection, and the terms that it has for them.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use eyelet_config::{Fields, Terminate};
use eyelet_policy::RuleId;
use eyelet_telemetry::info::{Decided, Outcome};
use eyelet_telemetry::reason::Reason;
use eyelet_upstream::Upstream;
use http::{HeaderMap, header};

use super::{ClientInfo, ServedConnection};
use crate::connection::intermediary::Intermediary;
use crate::connection::route::Route;
use crate::connection::worker::Http;

/// The rule of a connection, or of one request on it.
pub struct ServingRule {
    /// `None` if a reload removed it.
    pub(super) route: Option<Route>,
    /// The way in which its requests came here.
    pub intermediary: Intermediary,
    /// The rules in shadow that ask for its requests.
    pub(super) shadows: Rc<[RuleId]>,
    /// True if the configuration of this generation lacks the rule: each poll of a WebSocket asks.
    removed_by: Cell<(u64, bool)>,
}

impl ServingRule {
    /// A rule, by the way in which its requests came here.
    pub(super) fn new(route: Option<Route>, intermediary: Intermediary) -> Self {
        let shadows = route.as_ref().map(|route| route.shadows.clone()).unwrap_or_default();
        Self { route, intermediary, shadows, removed_by: Cell::default() }
    }

    /// The rule of a client that wakes, by this configuration. `local` is the address that it
    /// connected to.
    pub(super) fn of(
        http: &Http,
        client: &mut ClientInfo,
        local: impl FnOnce() -> Option<SocketAddr>,
    ) -> Self {
        let has_preface = !client.preface.is_empty();
        let route = Route::of(http, &mut client.info, has_preface, local);
        let intermediary = route.as_ref().map_or(Intermediary::Gateway, Route::intermediary);
        Self::new(route, intermediary)
    }

    /// The rule of a request on a connection of this rule. `None` refuses the request.
    pub(super) fn of_request(&self, route: Option<Route>) -> Self {
        let of = route.as_ref().or(self.route.as_ref()).map(Route::intermediary);
        let rule = Self::new(route, of.unwrap_or(Intermediary::Gateway));
        Self { shadows: self.shadows.clone(), ..rule }
    }

    /// The terms by which it serves requests.
    pub(super) fn requests(&self) -> Option<&Terminate> {
        self.route.as_ref().and_then(Route::requests)
    }

    /// Sets the fields that every response of the rule has: those of all rules, and its own. A
    /// stranger's response passes as it is.
    pub fn set_fields(&self, of_all: &Fields, headers: &mut HeaderMap) {
        if !self.intermediary.sets_fields() {
            return;
        }
        let rule = self.requests();
        let of_rule = rule.map_or(&[][..], |terminate| &terminate.headers);
        let no_hsts = rule.is_some_and(|terminate| terminate.no_hsts);
        for (name, value) in of_all {
            if !(no_hsts && *name == header::STRICT_TRANSPORT_SECURITY) {
                headers.insert(name, value.clone());
            }
        }
        for (name, value) in of_rule {
            headers.insert(name, value.clone());
        }
    }

    /// True if a response has no field but its own.
    pub fn sets_no_fields(&self, of_all: &Fields) -> bool {
        let Some(route) = &self.route else { return false };
        let has_none = || {
            let of_rule = route.requests().map_or(&[][..], |terminate| &terminate.headers);
            of_rule.is_empty() && of_all.is_empty()
        };
        !route.decodes_requests() && (!self.intermediary.sets_fields() || has_none())
    }
}

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
    pub fn find_route(&mut self, local: impl FnOnce() -> Option<SocketAddr>) {
        let rule = ServingRule::of(&self.http, &mut self.client_info(), local);
        self.rule = ServingRule { shadows: std::mem::take(&mut self.rule.shadows), ..rule };
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
