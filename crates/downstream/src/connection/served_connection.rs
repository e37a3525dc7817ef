//! The state that all requests of a connection share, in either version of HTTP: its info, its
//! rule, its counts, and its access lines.

mod authority;
pub mod by_request;
pub mod given_verdict;
pub mod held_request;
mod identity;
pub mod record;
mod refused_request;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode, header, request, response};

use self::given_verdict::GivenVerdict;
use self::identity::ClientIdentity;
use super::decoding::ClientDecoders;
use super::inspected::Unanswered;
use super::intermediary::Intermediary;
use super::originate;
use super::page::{page, secret_page};
use super::refusal::ProxyRefusal;
use super::route::Route;
use super::worker::Http;
use crate::clock;
use eyelet_http1::fields::{self, Requester};
use eyelet_http1::head::Length;
use eyelet_policy::RuleId;
use eyelet_resting::timeout::RestTimeout;
use eyelet_telemetry::info::{ConnectionInfo, Decided, End, Outcome, UpstreamName};
use eyelet_telemetry::reason::{Class, Reason, Shed};
use eyelet_upstream::Upstream;

/// The time for which an exchange may hold memory that other connections need while its bodies do
/// not move.
const STALLED: Duration = Duration::from_secs(3);

/// Bytes of a connection since it woke, which are counted as they move.
#[derive(Clone, Default)]
pub struct ByteCounts {
    /// Written to upstreams.
    pub to_upstream: Rc<Cell<u64>>,
    /// Written to the client.
    pub to_client: Rc<Cell<u64>>,
}

impl ByteCounts {
    /// Those of a client whose bytes are counted here.
    pub fn of(to_client: &Rc<Cell<u64>>) -> Self {
        Self { to_upstream: Rc::default(), to_client: to_client.clone() }
    }
}

/// Facts of a client when its connection wakes.
pub struct ClientInfo {
    pub info: ConnectionInfo,
    /// The PROXY header that a new upstream connection gets first; empty if none.
    pub preface: Vec<u8>,
    pub counts: ByteCounts,
}

/// A connection that serves requests.
pub struct ServedConnection {
    pub http: Rc<Http>,
    /// Its info as it was when it woke.
    pub info: ConnectionInfo,
    /// The PROXY header that a new upstream connection gets first; empty if none.
    pub preface: Vec<u8>,
    /// The rule that serves its requests; `None` if a reload removed it.
    route: Option<Route>,
    /// Counts of its bytes since it woke.
    pub counts: ByteCounts,
    /// The memory that the decoders of its bodies hold.
    pub decoders: ClientDecoders,
    /// Its info is written, or was passed on.
    is_over: Cell<bool>,
    upstream: RefCell<Option<Arc<str>>>,
    /// True if the configuration of this generation lacks the rule: each poll of a WebSocket asks.
    removed_by: Cell<(u64, bool)>,
    /// The description of the client that upstreams get.
    identity: ClientIdentity,
    /// The way in which its requests came here.
    pub intermediary: Intermediary,
    /// The servers of requests that other rules take, one for each rule, in the order of first use.
    by_rule: RefCell<Vec<Rc<Self>>>,
    /// The rules in shadow that ask for its requests.
    shadows: Rc<[RuleId]>,
    /// True if it serves the requests of one rule, on another one's connection.
    is_of_request: bool,
    /// The verdict on its next request, if that was held while it was parked. Boxed: few are.
    verdict: Cell<Option<Box<GivenVerdict>>>,
}

impl ServedConnection {
    /// A connection that wakes. `local` is the address that the client connected to.
    pub fn new(
        http: Rc<Http>,
        mut client: ClientInfo,
        local: impl FnOnce() -> Option<SocketAddr>,
    ) -> Self {
        let has_preface = !client.preface.is_empty();
        let route = Route::of(&http, &mut client.info, has_preface, local);
        let intermediary = route.as_ref().map_or(Intermediary::Gateway, Route::intermediary);
        Self::of(http, client, route, intermediary)
    }

    /// A connection that wakes in the middle of an exchange. What the exchange was decided by stays
    /// until it has ended; [`ServedConnection::decided`] then decides the next request.
    pub fn undecided(http: Rc<Http>, client: ClientInfo) -> Self {
        Self::of(http, client, None, Intermediary::Gateway)
    }

    /// A connection that has ended while exchanges of it rested. Its line is written by who has
    /// ended it.
    pub fn ended(http: Rc<Http>, info: ConnectionInfo) -> Self {
        let (preface, counts) = (Vec::new(), ByteCounts::default());
        let client = ClientInfo { info, preface, counts };
        let served = Self::of(http, client, None, Intermediary::Gateway);
        served.is_over.set(true);
        served
    }

    /// One request of a proxy's client. Its connection writes its own line.
    pub fn proxied(http: Rc<Http>, client: ClientInfo, route: Option<Route>) -> Self {
        let served = Self::of(http, client, route, Intermediary::Proxy { message: None });
        served.is_over.set(true);
        served
    }

    /// Finds the rule of the newest configuration for exchanges that rested before their responses.
    /// Their access lines name the one that decided them.
    pub fn find_route(&mut self, local: impl FnOnce() -> Option<SocketAddr>) {
        let (mut info, has_preface) = (self.info.copy(), !self.preface.is_empty());
        self.route = Route::of(&self.http, &mut info, has_preface, local);
        self.intermediary = self.route.as_ref().map_or(Intermediary::Gateway, Route::intermediary);
    }

    fn of(
        http: Rc<Http>,
        client: ClientInfo,
        route: Option<Route>,
        intermediary: Intermediary,
    ) -> Self {
        let ClientInfo { info, preface, counts } = client;
        let shadows = route.as_ref().map(|route| route.shadows.clone()).unwrap_or_default();
        Self {
            http,
            info,
            preface,
            route,
            counts,
            decoders: ClientDecoders::default(),
            is_over: Cell::new(false),
            identity: ClientIdentity::default(),
            upstream: RefCell::default(),
            removed_by: Cell::default(),
            intermediary,
            by_rule: RefCell::default(),
            shadows,
            is_of_request: false,
            verdict: Cell::default(),
        }
    }

    /// Returns the connection under the newest configuration, for new requests, if there was a
    /// reload. The old value then serves only the requests that it has.
    pub fn reloaded(&self, local: impl FnOnce() -> Option<SocketAddr>) -> Option<Self> {
        Some(self.under(self.http.newer()?, local))
    }

    /// Decides the connection by the newest configuration.
    pub fn decided(&self, local: impl FnOnce() -> Option<SocketAddr>) -> Self {
        self.under(self.http.newer().unwrap_or_else(|| self.http.clone()), local)
    }

    fn under(&self, http: Rc<Http>, local: impl FnOnce() -> Option<SocketAddr>) -> Self {
        let info = self.info.copy();
        let (preface, counts) = (self.preface.clone(), self.counts.clone());
        let mut next = Self::new(http, ClientInfo { info, preface, counts }, local);
        (next.upstream, next.decoders) = (self.upstream.clone(), self.decoders.clone());
        self.is_over.set(true);
        next
    }

    /// The rule that serves its requests.
    ///
    /// # Errors
    /// If a reload removed it.
    pub fn route(&self) -> Result<&Route, Reason> {
        // Not `ok_or`: it would make and drop a reason for each request.
        match &self.route {
            Some(route) => Ok(route),
            None => Err(Reason::RuleGone),
        }
    }

    /// The outcome of the connection where nothing is wrong.
    pub fn outcome(&self) -> Outcome {
        self.intermediary.outcome(&self.info.decided)
    }

    /// True if a reload removed its rule. The connection ends after the next response.
    pub fn is_gone(&self) -> bool {
        self.route.is_none()
    }

    /// True if the connection takes no request after the present ones.
    pub fn is_last(&self) -> bool {
        self.is_gone() || self.http.engine.begins_nothing(self.info.decided.http2)
    }

    /// Returns the reason why the connection takes no request after the present ones, if it does
    /// not: HTTP/1.1 then says `Connection: close`, and HTTP/2 sends GOAWAY.
    pub fn why_last(&self) -> Option<Reason> {
        if self.http.engine.begins_nothing(self.info.decided.http2) {
            return Some(Reason::Drained(None));
        }
        self.is_gone().then_some(Reason::RuleGone)
    }

    /// True if the newest configuration lacks this connection's rule, and ends its connections.
    pub fn is_removed(&self) -> bool {
        // One that rested may have woken in a worker that is newer than its rule.
        let newest = self.http.newer().unwrap_or_else(|| self.http.clone());
        let Decided { rule: Some(rule), labels, .. } = &self.info.decided else { return false };
        let (generation, is_removed) = self.removed_by.get();
        if generation == newest.shared.generation {
            return is_removed;
        }
        let config = &newest.shared.config;
        let name = labels.rule(*rule);
        let is_removed =
            config.reload_ends_removed && config.rules.iter().all(|rule| rule.name != name);
        self.removed_by.set((newest.shared.generation, is_removed));
        is_removed
    }

    /// Keeps a connection of a response that has ended, to the upstream with this index.
    pub fn keep(&self, upstream: Upstream, index: usize) {
        if let Some(target) = self.route.as_ref().and_then(|route| route.target(index))
            && !self.http.engine.process.budget.is_tight(0)
        {
            target.shelf.keep(upstream);
        }
    }

    /// Sets the fields that every response of the rule has. A stranger's response passes as it is.
    pub fn set_fields(&self, headers: &mut http::HeaderMap) {
        if !self.intermediary.sets_fields() {
            return;
        }
        let rule = self.route.as_ref().and_then(Route::requests);
        let of_rule = rule.map_or(&[][..], |terminate| &terminate.headers);
        let no_hsts = rule.is_some_and(|terminate| terminate.no_hsts);
        for (name, value) in &self.http.shared.config.http.headers {
            if !(no_hsts && *name == header::STRICT_TRANSPORT_SECURITY) {
                headers.insert(name, value.clone());
            }
        }
        for (name, value) in of_rule {
            headers.insert(name, value.clone());
        }
    }

    /// True if a response has no field but its own.
    pub fn sets_no_fields(&self) -> bool {
        let Some(route) = &self.route else { return false };
        let has_none = || {
            let of_rule = route.requests().map_or(&[][..], |terminate| &terminate.headers);
            of_rule.is_empty() && self.http.shared.config.http.headers.is_empty()
        };
        !route.decodes_requests() && (!self.intermediary.sets_fields() || has_none())
    }

    /// Returns how long an exchange waits for a byte of a body before it is checked.
    pub fn progress_wait(&self) -> Duration {
        self.http.shared.config.http.body_timeout.min(STALLED)
    }

    /// Returns how long nothing of an exchange may move.
    pub fn idle_max(&self, timeout: RestTimeout) -> Duration {
        let config = &self.http.shared.config;
        match timeout {
            RestTimeout::Body => config.http.body_timeout,
            RestTimeout::Upstream => config.http.upstream_timeout,
            RestTimeout::Hold(wait) => wait,
            RestTimeout::Idle => config.limits.idle_timeout,
        }
    }

    /// The reason to give up an exchange of which nothing has moved since then, if there is one.
    pub fn gives_up(&self, moved: Instant, timeout: RestTimeout) -> Option<Reason> {
        if clock::since(moved) >= self.idle_max(timeout) || self.http.engine.is_cutting() {
            return Some(Reason::Timeout(timeout.limit(), None));
        }
        self.http.engine.process.budget.is_filling(0).then_some(Reason::Shed(Shed::Stalled))
    }

    /// Notes the dialled address.
    pub fn note_upstream(&self, name: &Arc<str>) {
        let mut upstream = self.upstream.borrow_mut();
        if upstream.as_ref().is_none_or(|known| !Arc::ptr_eq(known, name)) {
            *upstream = Some(name.clone());
        }
    }

    /// The description of the client for an upstream, for requests to this authority.
    pub fn identify_requester(
        &self,
        host: &str,
        request: &mut request::Parts,
    ) -> fields::ForwardedFields {
        if !self.intermediary.tells_upstream() {
            // It is not told the client's address.
            return fields::via_alone(request.version);
        }
        self.identity.identify(host, request, self.trusts_client(), |version| {
            Requester::new(self.info.client.ip(), host, version, self.client_certificate())
        })
    }

    /// True if this request or one before it has said who the client is for all that follow on a
    /// connection to the upstream, as with NTLM and Negotiate (RFC 4559 section 6).
    pub fn is_tied(&self, headers: &http::HeaderMap) -> bool {
        self.identity.is_tied(headers)
    }

    /// The client's certificate in DER, if the rule tells the upstream.
    fn client_certificate(&self) -> Option<&[u8]> {
        let rule = self.route.as_ref().and_then(Route::requests);
        let is_told = rule.is_some_and(|terminate| terminate.client_cert_header);
        self.info.decided.client_certificate.as_deref().filter(|_| is_told).map(|leaf| &**leaf)
    }

    /// True if it is right to believe the client's fields on earlier hops.
    pub fn trusts_client(&self) -> bool {
        let trusted = &self.http.shared.config.http.trusted_proxies;
        trusted.iter().any(|net| net.contains(&self.info.client.ip()))
    }

    /// The page for a request that has no response of an upstream.
    pub fn page(
        &self,
        status: StatusCode,
        method: &Method,
        reason: &Reason,
    ) -> (response::Parts, Length, Bytes) {
        if matches!(reason, Reason::Held(_) | Reason::RefusedRequest(_)) {
            return self.refused_request(reason).page(status, method);
        }
        let is_proxy = matches!(self.intermediary, Intermediary::Proxy { .. });
        if !is_proxy && matches!(reason, Reason::Placeholder(_) | Reason::Reflected(_)) {
            return secret_page(status, method, reason);
        }
        if let Some(rule) = self.intermediary.originate() {
            return originate::page(rule, (status, method), reason);
        }
        match &self.intermediary {
            Intermediary::Gateway | Intermediary::Originator(_) => page(status, method),
            Intermediary::Interceptor(by) => {
                Unanswered { by: *by, reason, id: self.info.id }.page(status, method)
            }
            Intermediary::Proxy { message } => {
                let outcome = end_of_failure(reason.clone()).outcome;
                let message = message.as_deref();
                ProxyRefusal::new(&self.info, outcome, reason, message).page(status, method)
            }
        }
    }

    /// The info with the counts since it woke, for the next owner or the access line.
    pub fn end(mut self) -> ConnectionInfo {
        self.take_info()
    }

    fn take_info(&mut self) -> ConnectionInfo {
        self.is_over.set(true);
        let mut info = self.info.take();
        info.bytes_to_upstream += self.counts.to_upstream.get();
        info.bytes_to_client += self.counts.to_client.get();
        if let Some(name) = self.upstream.take() {
            info.decided.upstream = Some(UpstreamName::of(&name));
        }
        info
    }

    /// The info with the counts while requests may still be in progress.
    pub fn info_now(&self) -> ConnectionInfo {
        self.is_over.set(true);
        let mut info = ConnectionInfo {
            id: self.info.id,
            started_unix_ns: self.info.started_unix_ns,
            client: self.info.client,
            connect: None,
            owes_answer: None,
            is_decided: true,
            decided: self.info.decided.clone(),
            bytes_to_upstream: self.info.bytes_to_upstream + self.counts.to_upstream.get(),
            bytes_to_client: self.info.bytes_to_client + self.counts.to_client.get(),
            is_quic: false,
            datagrams: [0; 2],
        };
        if let Some(name) = &*self.upstream.borrow() {
            info.decided.upstream = Some(UpstreamName::of(name));
        }
        info
    }
}

/// A proxy has refused a request, or has failed to pass it on.
fn end_of_failure(reason: Reason) -> End {
    match reason.class() {
        Class::Refused => End { outcome: Outcome::Refused, reason },
        _ => End::failed(reason),
    }
}

/// The reason of a task that is dropped while it works.
pub(super) const DROPPED: Reason = Reason::Drained(None);

/// A task that is dropped at the end of the drain still writes its line. A task that panicked does
/// not: if the panic came from writing the line, a second one would abort the process.
impl Drop for ServedConnection {
    fn drop(&mut self) {
        if !self.is_over.get() && !std::thread::panicking() {
            let end = End { outcome: self.outcome(), reason: DROPPED };
            let info = self.take_info();
            self.http.engine.emit(&info, &end);
        }
    }
}
