//! The question about a request that came to a hold rule.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use eyelet_config::Action;
use eyelet_hold::{HoldKey, HoldPlace, RequestKey, Who};
use eyelet_telemetry::info::ConnectionInfo;
use eyelet_wire::connect::TargetHost;
use http::request;

use super::ServedConnection;
use super::given_verdict::GivenVerdict;
use crate::connection::route::{Route, connect_target};

/// The port of `https`, for requests whose authority has none.
const HTTPS: u16 = 443;

/// A request that a hold rule takes.
pub struct HeldRuling {
    /// The server of the request, if another rule than its connection's takes it.
    pub by: Option<Rc<ServedConnection>>,
    /// The question about it. `None`: its path is too long for that.
    pub key: Option<HoldKey>,
    /// The verdict on it, if it was held while its connection was parked.
    pub given: Option<Box<GivenVerdict>>,
}

/// The first client of a question.
pub fn who(info: &ConnectionInfo, action: &Action) -> Who {
    let known = info.decided.requester.as_deref();
    let program = known.and_then(|known| known.cgroup.clone().or_else(|| known.user.clone()));
    let file = action.hold().and_then(|hold| hold.file.as_deref()).map(Arc::from);
    Who { client: info.client.ip().to_canonical(), program, file }
}

impl ServedConnection {
    /// True if its rule has somebody asked about each request.
    pub(super) fn asks_about_requests(&self) -> bool {
        self.rule.route.as_ref().is_some_and(Route::asks_about_requests)
    }

    /// Returns the question about a request that its rule takes. `None`: its path is too long for
    /// that.
    pub(super) fn question(&self, request: &request::Parts, method: &str) -> Option<HoldKey> {
        let decided = &self.info.decided;
        let rule = decided.rule.map(|rule| decided.labels.rule(rule)).unwrap_or_default();
        let (name, port) = self.asked_target(request);
        let request = Some(Box::new(RequestKey::new(method, request.uri.path())?));
        Some(HoldKey { rule: rule.into(), name, port, request })
    }

    /// Returns the target of the request: the destination that is dialled, or the name that TLS was
    /// for.
    fn asked_target(&self, request: &request::Parts) -> (Box<str>, u16) {
        let decided = &self.info.decided;
        let ip_text = |ip: IpAddr| ip.to_canonical().to_string().into();
        if self.rule.route.as_ref().is_some_and(Route::leads_to_destination) {
            if let Some(target) = connect_target(decided) {
                let host = match target.host {
                    TargetHost::Name(name) => name.as_str().into(),
                    TargetHost::Ip(ip) => ip_text(ip),
                };
                return (host, target.port);
            }
            if let (None, Some(to)) = (&decided.sni, decided.destination) {
                return (ip_text(to.ip()), to.port());
            }
        }
        let host = || request.uri.host().unwrap_or_default().to_ascii_lowercase().into();
        let dialled = decided.destination.map(|to| to.port());
        let port = dialled.or_else(|| request.uri.port_u16()).unwrap_or(HTTPS);
        (decided.sni.clone().unwrap_or_else(host), port)
    }

    /// Asks about a request of so many bytes. `None`: too many are held.
    pub fn ask(&self, key: HoldKey, bytes: usize) -> Option<HoldPlace> {
        let action = self.rule.route.as_ref()?.action();
        let now_unix_ms = self.http.engine.now_unix_ms();
        self.http.shared.holds.ask(key, who(&self.info, action), bytes, now_unix_ms)
    }

    /// Has the next request be the one that was held.
    pub fn give_verdict(&self, given: GivenVerdict) {
        if let Some(own) = self.requests.of_connection() {
            own.verdict.set(Some(Box::new(given)));
        }
    }
}
