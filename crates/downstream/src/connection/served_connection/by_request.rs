//! The rule of each request. Mostly that of its connection takes it; another one may.

use std::rc::Rc;

use eyelet_config::Action;
use eyelet_policy::{Refusal, RequestFacts, RuleId, Verdict};
use eyelet_telemetry::info::{ConnectionInfo, Outcome};
use eyelet_telemetry::reason::Reason;
use http::{HeaderMap, HeaderName, Method, StatusCode, request};

use super::held_request::HeldRuling;
use super::refused_request::RefusedRequest;
use super::rule::ServingRule;
use super::{ClientInfo, OwnRequests, ServedConnection, ServedRequests};
use crate::connection::intermediary::{Intermediary, outcome_of};
use crate::connection::route::Route;
use crate::connection::worker::Http;
use eyelet_resting::ruling::Shadows;

/// Facts about a request beside its head.
#[derive(Clone, Copy)]
pub struct RequestTraits<'a> {
    /// It asks for a WebSocket. Its CONNECT is asked as GET.
    pub is_websocket: bool,
    /// It may have fields whose names are not common.
    pub may_have_others: bool,
    /// The rule by which it was held in an earlier task of its stream. It has counted there.
    pub held_by: Option<&'a str>,
}

/// The ruling on a request.
pub enum RequestRuling {
    /// The rule of its connection takes it.
    Own,
    /// Another rule takes it, and this serves it.
    Other(Rc<ServedConnection>),
    /// A hold rule takes it, and somebody is asked.
    Held(Box<HeldRuling>),
    /// It is refused, and this answers it.
    Refused(Box<ServedConnection>, Reason),
}

/// The newest configuration's answer about a request that waits for its upstream.
pub enum NewerRoute {
    /// It waits on by its own route: there was no reload, or it may go only where it was to go.
    Same,
    /// It goes on by this route.
    Other(Rc<Http>, Route),
    /// It ends for this reason: no rule takes it any more, or one refuses it. That one's
    /// configuration answers it then.
    Refused(Option<Box<ServedConnection>>, Reason),
}

impl ServedConnection {
    /// Decides a request, if rules ask for requests.
    #[inline]
    pub fn rule_on(&self, request: &request::Parts, traits: RequestTraits) -> RequestRuling {
        match (&self.rule.route, &self.requests) {
            (Some(route), ServedRequests::OfConnection(own)) if !route.by_request.is_empty() => {
                self.decide_request((route, own), request, traits)
            }
            _ => RequestRuling::Own,
        }
    }

    fn decide_request(
        &self,
        (route, own): (&Route, &OwnRequests),
        request: &request::Parts,
        traits: RequestTraits<'_>,
    ) -> RequestRuling {
        // A verdict is for this request alone. A later one must not have it.
        let given = own.verdict.take();
        let held_by = given.as_ref().map(|given| &*given.key.rule).or(traits.held_by);
        let (rule, reason) = match verdict_on(&self.http, route, request, traits) {
            Verdict { rule: Some(RuleId(rule)), refuse: None } => {
                let by = if rule == route.rule {
                    None
                } else {
                    self.count_decision(rule, held_by);
                    self.serve_rule(route, own, rule)
                };
                let ruled = by.as_deref().unwrap_or(self);
                let asks = ruled.asks_about_requests();
                let key = || ruled.question(request, asked_method(request, traits.is_websocket));
                let key = asks.then(key);
                match (by, key) {
                    (None, _) if rule != route.rule => (Some(rule), OTHER_HANDSHAKE),
                    (by, Some(key)) => {
                        let given = given.filter(|given| key.as_ref() == Some(&given.key));
                        return RequestRuling::Held(Box::new(HeldRuling { by, key, given }));
                    }
                    (None, None) => return RequestRuling::Own,
                    (Some(other), None) => return RequestRuling::Other(other),
                }
            }
            Verdict { rule, refuse } => {
                let rule = rule.map(|rule| rule.0);
                if let Some(rule) = rule.filter(|rule| *rule != route.rule) {
                    self.count_decision(rule, held_by);
                }
                (rule, refuse.map_or(OTHER_HANDSHAKE, refused))
            }
        };
        let mut refused = self.on_connection(self.rule.of_request(None));
        refused.info.decided.rule = rule;
        RequestRuling::Refused(Box::new(refused), reason)
    }

    /// Counts a request at its rule, unless that has held it before.
    fn count_decision(&self, rule: u32, held_by: Option<&str>) {
        let rules = &self.http.shared.config.rules;
        let name = usize::try_from(rule).ok().and_then(|rule| rules.get(rule)).map(|it| it.name);
        if name.is_none() || name != held_by {
            self.http.count_decision(rule);
        }
    }

    /// Counts a request that is refused and gets this status, at its rule.
    pub fn count_refused(&self, status: StatusCode) {
        if status == StatusCode::FORBIDDEN {
            self.http.count_refused_request(self.info.decided.rule);
        }
    }

    /// Decides a request that waits for its upstream, or was held, by the newest configuration. A
    /// secret in it is for the upstreams that it was given for.
    pub fn newer_route(&self, request: &request::Parts, carries_secret: bool) -> NewerRoute {
        // The task of a proxy's client decides its requests, and what it decided them by.
        let is_proxied = matches!(self.rule.intermediary, Intermediary::Proxy { .. });
        let Some(http) = self.http.newer().filter(|_| !is_proxied) else {
            return NewerRoute::Same;
        };
        let (mut info, has_preface) = (self.info.copy(), !self.preface.is_empty());
        let Some(mut route) = Route::of(&http, &mut info, has_preface, || self.local()) else {
            return GONE;
        };
        if !route.by_request.is_empty() {
            // The CONNECT of a WebSocket is the only one that comes here.
            let is_websocket = request.method == Method::CONNECT;
            let traits = RequestTraits { is_websocket, may_have_others: true, held_by: None };
            match verdict_on(&http, &route, request, traits) {
                Verdict { rule: Some(RuleId(rule)), refuse: None } if rule == route.rule => {}
                Verdict { rule, refuse } => {
                    let rule = rule.map(|rule| rule.0);
                    let other = rule.filter(|_| refuse.is_none());
                    let other =
                        other.and_then(|it| route.of_request(&http, &info, (it, has_preface)));
                    let Some(other) = other else {
                        info.decided.rule = rule;
                        let by = self.refuses(http, info, route);
                        let reason = refuse.map_or(OTHER_HANDSHAKE, refused);
                        return NewerRoute::Refused(Some(Box::new(by)), reason);
                    };
                    route = other;
                }
            }
        }
        let leads_as_before = self.route().is_ok_and(|own| own.leads_as(&route));
        if carries_secret && !leads_as_before {
            return GONE;
        }
        if route.asks_about_requests() {
            // Somebody has let it pass by this rule, or nobody was asked.
            let is_its = self.rule_name() == Some(http.labels.rule(route.rule));
            return match is_its && leads_as_before && self.asks_about_requests() {
                true => NewerRoute::Same,
                false => GONE,
            };
        }
        // A request whose URLs were translated names the upstream that it was translated for.
        match route.intermediary().authority() == self.rule.intermediary.authority() {
            true => NewerRoute::Other(http, route),
            false => NewerRoute::Same,
        }
    }

    /// Answers a request that a newer configuration refuses. `route` is its connection's by that.
    fn refuses(&self, http: Rc<Http>, info: ConnectionInfo, route: Route) -> Self {
        let intermediary = route.intermediary();
        let rule = ServingRule::new(Some(route), intermediary).of_request(None);
        self.on_connection_by(http, ClientInfo { info, ..self.client_info() }, rule)
    }

    fn rule_name(&self) -> Option<&str> {
        let decided = &self.info.decided;
        decided.rule.map(|rule| decided.labels.rule(rule))
    }

    /// Serves the requests of another rule.
    fn serve_rule(&self, route: &Route, own: &OwnRequests, rule: u32) -> Option<Rc<Self>> {
        let is_its = |served: &&Rc<Self>| served.route().is_ok_and(|route| route.rule == rule);
        if let Some(known) = own.by_rule.borrow().iter().find(is_its) {
            return Some(known.clone());
        }
        let has_preface = !self.preface.is_empty();
        let other = route.of_request(&self.http, &self.info, (rule, has_preface))?;
        let mut served = self.on_connection(self.rule.of_request(Some(other)));
        served.info.decided.rule = Some(rule);
        let served = Rc::new(served);
        own.by_rule.borrow_mut().push(served.clone());
        Some(served)
    }

    /// Serves what follows by the rule of one request, whose exchange rests or has switched
    /// protocols.
    pub fn go_on_as(&mut self, other: &Self) {
        self.info.decided.rule = other.info.decided.rule;
        self.note_upstream_of(other);
    }

    /// Notes the address that was dialled for requests of another rule.
    pub fn note_upstream_of(&self, other: &Self) {
        if let Some(name) = &*other.upstream.borrow() {
            self.note_upstream(name);
        }
    }

    /// True if exchanges may rest. A stream that rests is its connection's, and so is its rule. A
    /// connection whose exchange rests goes on by the rule of it, and the verdict on a connection
    /// is for its own rule.
    pub fn may_rest(&self, is_multiplexed: bool) -> bool {
        let holds_connections = || self.route().is_ok_and(Route::holds_connections);
        let has_verdict = self.info.decided.held.is_some();
        match self.requests {
            ServedRequests::OfConnection(_) => true,
            ServedRequests::OfRule => !(is_multiplexed || has_verdict && holds_connections()),
        }
    }

    /// The rules in shadow before the deciding one that take a request of this connection, and what
    /// they would have done. A WebSocket's CONNECT is asked as GET.
    pub(super) fn shadows_on(&self, request: &request::Parts) -> Option<Shadows> {
        if self.rule.shadows.is_empty() {
            return None;
        }
        let is_websocket = request.method == Method::CONNECT;
        let config = &self.http.shared.config;
        let decided_by = self.info.decided.rule.map(RuleId);
        let traits = RequestTraits { is_websocket, may_have_others: true, held_by: None };
        let take = with_facts(request, traits, |facts| {
            let take = config.policy.shadows_by_request(&self.rule.shadows, decided_by, facts);
            take.filter_map(|(rule, is_refused)| {
                let rule = config.rules.get(usize::try_from(rule.0).ok()?)?;
                let would = if is_refused { Outcome::Refused } else { outcome_of(rule.action) };
                Some((rule.name.into(), would))
            })
            .collect::<Shadows>()
        });
        (!take.is_empty()).then_some(take)
    }

    /// The refusal of a request, for its client.
    pub(super) fn refused_request(&self, reason: &Reason) -> RefusedRequest<'_> {
        let decided = &self.info.decided;
        let action = decided.rule.and_then(|rule| {
            self.http.shared.config.rules.get(usize::try_from(rule).ok()?).map(|rule| rule.action)
        });
        let message = match action {
            Some(Action::Refuse(refuse)) => refuse.message.as_deref(),
            _ => None,
        };
        let rule = decided.rule.map(|rule| decided.labels.rule(rule));
        RefusedRequest { rule, message, reason: reason.to_string(), id: self.info.id }
    }
}

fn refused(why: Refusal) -> Reason {
    Reason::RefusedRequest(why.text())
}

/// The verdict of the route's rules on a request.
#[inline]
fn verdict_on(
    http: &Http,
    route: &Route,
    request: &request::Parts,
    traits: RequestTraits<'_>,
) -> Verdict {
    let policy = &http.shared.config.policy;
    with_facts(request, traits, |facts| policy.decide_request(&route.by_request, facts))
}

#[inline]
fn with_facts<T>(
    request: &request::Parts,
    RequestTraits { is_websocket, may_have_others, .. }: RequestTraits<'_>,
    done: impl FnOnce(&RequestFacts<'_>) -> T,
) -> T {
    let has = |names: &[&str]| has_any(&request.headers, names);
    let (has_method, has_path) = (|| has(&METHOD_FIELDS), || has(&PATH_FIELDS));
    let others: (&dyn Fn() -> bool, &dyn Fn() -> bool) = (&has_method, &has_path);
    // No name of these is a common one.
    let others = may_have_others.then_some(others);
    let method = asked_method(request, is_websocket);
    done(&RequestFacts { method, path: request.uri.path(), others })
}

/// The method that rules see. A WebSocket's CONNECT is asked as GET.
fn asked_method(request: &request::Parts, is_websocket: bool) -> &str {
    let method = if is_websocket { &Method::GET } else { &request.method };
    method.as_str()
}

/// The newest rules do not take its connection, or ask somebody about it, or lead its secret
/// elsewhere.
const GONE: NewerRoute = NewerRoute::Refused(None, Reason::RuleGone);

/// A rule that would have required another handshake, or serves no requests.
const OTHER_HANDSHAKE: Reason =
    Reason::RefusedRequest("its rule does not fit the connection's handshake");

/// True if one of these fields is there. Some frameworks read `_` in a name as `-`.
fn has_any(headers: &HeaderMap, names: &[&str]) -> bool {
    let is = |name: &HeaderName, wanted: &str| {
        let read = name.as_str().bytes().map(|byte| if byte == b'_' { b'-' } else { byte });
        read.eq(wanted.bytes())
    };
    headers.keys().any(|name| names.iter().any(|wanted| is(name, wanted)))
}

/// Fields whose method some frameworks take in place of the request's. One in a query or a body
/// (`_method`) is not looked for.
const METHOD_FIELDS: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
/// Fields whose path some frameworks take in place of the request's.
const PATH_FIELDS: [&str; 2] = ["x-original-url", "x-rewrite-url"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_however_it_is_written() {
        for (name, method, path) in [
            ("X-HTTP-Method-Override", true, false),
            ("X_HTTP_Method_Override", true, false),
            ("x-http_method", true, false),
            ("X-Original-URL", false, true),
            ("X_Rewrite-URL", false, true),
            ("X-HTTP-Methods", false, false),
            ("Original-URL", false, false),
        ] {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            let headers =
                HeaderMap::from_iter([(name.clone(), http::HeaderValue::from_static("x"))]);
            let found = (has_any(&headers, &METHOD_FIELDS), has_any(&headers, &PATH_FIELDS));
            assert_eq!(found, (method, path), "{name}");
        }
    }
}
