//! The rule that serves the requests of a connection, and the terms that it has for them.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use eyelet_config::{Fields, Terminate};
use eyelet_policy::RuleId;
use eyelet_telemetry::info::ConnectionInfo;
use http::{HeaderMap, header};

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
    pub(super) removed_by: Cell<(u64, bool)>,
}

impl ServingRule {
    /// A rule, by the way in which its requests came here.
    pub(super) fn new(route: Option<Route>, intermediary: Intermediary) -> Self {
        let shadows = route.as_ref().map(|route| route.shadows.clone()).unwrap_or_default();
        Self { route, intermediary, shadows, removed_by: Cell::default() }
    }

    /// The rule of a client that wakes, by this configuration, to which `info` is updated. `local`
    /// is the address that it connected to.
    pub(super) fn of(
        http: &Http,
        info: &mut ConnectionInfo,
        has_preface: bool,
        local: impl FnOnce() -> Option<SocketAddr>,
    ) -> Self {
        let route = Route::of(http, info, has_preface, local);
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
