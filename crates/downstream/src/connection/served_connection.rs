//! What all requests of a connection share, in either version of HTTP: its info, its rule, its
//! counts, and its access lines.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use eyelet_policy::{Facts, RuleId};
use http::uri::{Authority, PathAndQuery};
use http::{Method, StatusCode, header, request, response};

use super::decoding::ClientDecoders;
use super::inspected::{Respondent, Unanswered};
use super::intermediary::Intermediary;
use super::originate;
use super::page::page;
use super::refusal::ProxyRefusal;
use super::resting::RestingFacts;
use super::route::{Route, connect_target};
use super::trace::{EndedExchange, ExchangeTrace};
use super::worker::Http;
use eyelet_http1::fields::{self, Requester};
use eyelet_http1::head::{Length, split_port};
use eyelet_telemetry::info::{ConnectionInfo, Decided, End, Measured, Outcome, UpstreamName};
use eyelet_telemetry::reason::{Class, Limit, Reason, Shed};
use eyelet_telemetry::request::{Coded, RequestInfo};
use eyelet_telemetry::upstream_tls::UpstreamTlsInfo;
use eyelet_upstream::Upstream;
use eyelet_wire::connect::Target;

/// Paths are cut in the log, so that people can read the lines.
const PATH_CHARS_MAX: usize = 2048;

/// How long an exchange may hold memory that other connections need while its bodies do not move.
const STALLED: Duration = Duration::from_secs(3);
/// Longest authority whose requester is kept for the next request: a host name and a port. A longer
/// one would outlive the count of its head.
const HOST_BYTES_KEPT: usize = 260;

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
    pub worker: Rc<Http>,
    /// Its info as it was when it woke.
    pub info: ConnectionInfo,
    /// The PROXY header that a new upstream connection gets first; empty if none.
    pub preface: Vec<u8>,
    /// The rule that serves its requests; `None` if a reload removed it.
    route: Option<Route>,
    /// Counts of its bytes since it woke.
    pub counts: ByteCounts,
    /// What the decoders of its bodies hold.
    pub decoders: ClientDecoders,
    /// Its info is written, or was passed on.
    is_over: Cell<bool>,
    upstream: RefCell<Option<Arc<str>>>,
    /// The requester of the last request, and mostly of the next one.
    requester: RefCell<Option<Requester>>,
    /// Whether the configuration of this generation lacks the rule: each poll of a WebSocket asks.
    removed_by: Cell<(u64, bool)>,
    /// Whether a request has said who the client is for the whole connection to the upstream.
    is_tied: Cell<bool>,
    /// How its requests came here.
    pub intermediary: Intermediary,
}

impl ServedConnection {
    /// A connection that wakes. `local` is the address that the client connected to.
    pub fn new(
        worker: Rc<Http>,
        mut client: ClientInfo,
        local: impl FnOnce() -> Option<SocketAddr>,
    ) -> Self {
        let has_preface = !client.preface.is_empty();
        let route = Route::of(&worker, &mut client.info, has_preface, local);
        let intermediary = route.as_ref().map_or(Intermediary::Gateway, Route::intermediary);
        Self::of(worker, client, route, intermediary)
    }

    /// A connection that wakes in the middle of an exchange. What the exchange was decided by stays
    /// until it has ended; [`ServedConnection::decided`] then decides the next request.
    pub fn undecided(worker: Rc<Http>, client: ClientInfo) -> Self {
        Self::of(worker, client, None, Intermediary::Gateway)
    }

    /// One request of a proxy's client. Its connection writes its own line.
    pub fn proxied(worker: Rc<Http>, client: ClientInfo, route: Option<Route>) -> Self {
        let served = Self::of(worker, client, route, Intermediary::Proxy { message: None });
        served.is_over.set(true);
        served
    }

    fn of(
        worker: Rc<Http>,
        client: ClientInfo,
        route: Option<Route>,
        intermediary: Intermediary,
    ) -> Self {
        let ClientInfo { info, preface, counts } = client;
        Self {
            worker,
            info,
            preface,
            route,
            counts,
            decoders: ClientDecoders::default(),
            is_over: Cell::new(false),
            is_tied: Cell::new(false),
            upstream: RefCell::default(),
            requester: RefCell::default(),
            removed_by: Cell::default(),
            intermediary,
        }
    }

    /// The same connection under the newest configuration, for new requests, if there was a reload.
    /// The old value then serves only the requests that it has.
    pub fn reloaded(&self, local: impl FnOnce() -> Option<SocketAddr>) -> Option<Self> {
        Some(self.under(self.worker.newer()?, local))
    }

    /// Decides the connection by the newest configuration.
    pub fn decided(&self, local: impl FnOnce() -> Option<SocketAddr>) -> Self {
        self.under(self.worker.newer().unwrap_or_else(|| self.worker.clone()), local)
    }

    fn under(&self, worker: Rc<Http>, local: impl FnOnce() -> Option<SocketAddr>) -> Self {
        let info = self.info.copy();
        let (preface, counts) = (self.preface.clone(), self.counts.clone());
        let mut next = Self::new(worker, ClientInfo { info, preface, counts }, local);
        (next.upstream, next.decoders) = (self.upstream.clone(), self.decoders.clone());
        self.is_over.set(true);
        next
    }

    /// The rule that serves its requests.
    ///
    /// # Errors
    /// If a reload removed it.
    pub fn route(&self) -> Result<&Route, Reason> {
        self.route.as_ref().ok_or(Reason::RuleGone)
    }

    /// The rule that serves its requests under the newest configuration, if there was a reload and
    /// it has one that requests of this one may have.
    pub fn newer_route(&self) -> Option<(Rc<Http>, Route)> {
        let worker = self.worker.newer()?;
        let mut info = self.info.copy();
        let route = Route::of(&worker, &mut info, !self.preface.is_empty(), || None)?;
        // A request whose URLs were translated names the upstream that it was translated for.
        let is_same = route.intermediary().authority() == self.intermediary.authority();
        is_same.then_some((worker, route))
    }

    /// How the connection ends where nothing is wrong.
    pub fn outcome(&self) -> Outcome {
        self.intermediary.outcome(&self.info.decided)
    }

    /// Whether this request or one before it has said who the client is for all that follow on a
    /// connection to the upstream, as with NTLM and Negotiate (RFC 4559 section 6).
    pub fn is_tied(&self, headers: &http::HeaderMap) -> bool {
        let ties = |value: &http::HeaderValue| {
            let scheme = value.as_bytes().split(|byte| *byte == b' ').next().unwrap_or_default();
            [&b"ntlm"[..], b"negotiate"].iter().any(|name| scheme.eq_ignore_ascii_case(name))
        };
        let is_tied = self.is_tied.get() || headers.get_all(header::AUTHORIZATION).iter().any(ties);
        self.is_tied.set(is_tied);
        is_tied
    }

    /// Whether a reload removed its rule. The connection ends after the next response.
    pub fn is_gone(&self) -> bool {
        self.route.is_none()
    }

    /// Why the connection takes no request after the present ones, if it does not: HTTP/1.1 then
    /// says `Connection: close`, and HTTP/2 sends GOAWAY.
    pub fn why_last(&self) -> Option<Reason> {
        if self.worker.engine.begins_nothing(self.info.decided.http2) {
            return Some(Reason::Drained(None));
        }
        self.is_gone().then_some(Reason::RuleGone)
    }

    /// Whether the newest configuration lacks this connection's rule, and ends its connections.
    pub fn is_removed(&self) -> bool {
        // One that rested may have woken in a worker that is newer than its rule.
        let newest = self.worker.newer().unwrap_or_else(|| self.worker.clone());
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
            && !self.worker.engine.process.budget.is_tight(0)
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
        for (name, value) in &self.worker.shared.config.http.headers {
            if !(no_hsts && *name == header::STRICT_TRANSPORT_SECURITY) {
                headers.insert(name, value.clone());
            }
        }
        for (name, value) in of_rule {
            headers.insert(name, value.clone());
        }
    }

    /// How long an exchange waits for a byte of a body before it is checked.
    pub fn progress_wait(&self) -> Duration {
        self.worker.shared.config.http.body_timeout.min(STALLED)
    }

    /// The reason to give up an exchange whose bodies have not moved since then, if there is one.
    pub fn gives_up(&self, moved: Instant) -> Option<Reason> {
        if moved.elapsed() >= self.worker.shared.config.http.body_timeout
            || self.worker.engine.is_cutting()
        {
            return Some(Reason::Timeout(Limit::Body, None));
        }
        self.worker.engine.process.budget.is_filling(0).then_some(Reason::Shed(Shed::Stalled))
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
        let mut last = self.requester.borrow_mut();
        let known = last.take().filter(|requester| requester.asks_for(host, request.version));
        let client = self.info.client.ip();
        let requester = known.unwrap_or_else(|| {
            Requester::new(client, host, request.version, self.client_certificate())
        });
        let forwarded = requester.identify(&mut request.headers, self.trusts_client());
        if host.len() <= HOST_BYTES_KEPT {
            *last = Some(requester);
        }
        forwarded
    }

    /// The client's certificate in DER, if the rule tells the upstream.
    fn client_certificate(&self) -> Option<&[u8]> {
        let rule = self.route.as_ref().and_then(Route::requests);
        let is_told = rule.is_some_and(|terminate| terminate.client_cert_header);
        self.info.decided.client_certificate.as_deref().filter(|_| is_told).map(|leaf| &**leaf)
    }

    /// Whether to believe the client's fields on earlier hops.
    pub fn trusts_client(&self) -> bool {
        let trusted = &self.worker.shared.config.http.trusted_proxies;
        trusted.iter().any(|net| net.contains(&self.info.client.ip()))
    }

    /// Whether a request for this host belongs on this connection: a new connection for the host
    /// would match the same rule (RFC 9110 7.4).
    pub fn serves(&self, authority: &Authority) -> bool {
        let Some(route) = &self.route else { return false };
        if let Some(rule) = self.intermediary.originate() {
            return originate::is_own(rule, authority);
        }
        match self.intermediary {
            // The rules were asked about this very host.
            Intermediary::Proxy { .. } => return true,
            Intermediary::Interceptor(Respondent::Inspector) => {
                return is_decided(&self.info.decided, authority);
            }
            _ => {}
        }
        let (host, _) = split_port(authority.as_str());
        let host = host.strip_suffix('.').unwrap_or(host);
        let sni = self.info.decided.sni.as_deref();
        let is_name = is_name(host);
        if is_name && sni.is_some_and(|sni| sni.eq_ignore_ascii_case(host)) {
            return true;
        }
        let bare = || host.trim_start_matches('[').trim_end_matches(']');
        // Clients send no SNI for an address (RFC 6066 section 3).
        let is_address = !is_name && bare().parse::<IpAddr>().is_ok();
        let name = if is_address { String::new() } else { host.to_ascii_lowercase() };
        if sni == Some(&*name) {
            return true;
        }
        let serves = |connect: Option<&Target>| {
            let facts = Facts {
                connect,
                destination: self.info.decided.destination,
                ..Facts::new(self.info.decided.listener, self.info.client.ip())
            };
            self.worker.shared.config.policy.serves(RuleId(route.rule), &name, &facts)
        };
        let Some(target) = connect_target(&self.info.decided) else { return serves(None) };
        // By the CONNECT that was made, and by the one that a client would make for this host.
        let own = Target::new(format!("{host}:{}", target.port).as_bytes());
        serves(Some(&target)) && own.is_ok_and(|own| serves(Some(&own)))
    }

    /// The page for a request that has no response of an upstream.
    pub fn page(
        &self,
        status: StatusCode,
        method: &Method,
        reason: &Reason,
    ) -> (response::Parts, Length, Bytes) {
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

    /// The same while requests may still be in progress.
    pub fn info_now(&self) -> ConnectionInfo {
        self.is_over.set(true);
        let mut info = ConnectionInfo {
            id: self.info.id,
            started_unix_ns: self.info.started_unix_ns,
            client: self.info.client,
            connect: None,
            owes_answer: false,
            is_decided: true,
            decided: self.info.decided.clone(),
            bytes_to_upstream: self.info.bytes_to_upstream + self.counts.to_upstream.get(),
            bytes_to_client: self.info.bytes_to_client + self.counts.to_client.get(),
        };
        if let Some(name) = &*self.upstream.borrow() {
            info.decided.upstream = Some(UpstreamName::of(name));
        }
        info
    }

    /// Writes the access line of a request, if there is a log.
    pub fn emit(&self, record: &Record) {
        self.worker.engine.count_shed(&record.reason);
        self.worker.engine.counters.request(!record.failed, &record.reason);
        if let Some(trace) = record.trace.as_ref().filter(|trace| trace.is_recorded()) {
            trace.end(&EndedExchange {
                info: &self.info,
                end: &self.end_of(record),
                failed: record.failed,
                status: record.status,
                upstream: record.upstream.as_ref(),
            });
        }
        // A request that began while the log was off has no time.
        if !self.worker.is_logging() || record.started_unix_ms == 0 {
            return;
        }
        let now = self.worker.engine.now_unix_ms();
        let measured = Measured {
            id: self.info.id,
            started_unix_ms: record.started_unix_ms,
            duration_ms: now.saturating_sub(record.started_unix_ms),
            client: self.info.client,
            bytes_to_upstream: record.bytes_to_upstream,
            bytes_to_client: record.bytes_to_client,
        };
        let end = self.end_of(record);
        self.worker.emit_request(&self.info.decided, &measured, &end, &record.info());
    }

    /// How a request ended.
    fn end_of(&self, record: &Record) -> End {
        let reason = record.reason.clone();
        match (record.failed, &self.intermediary) {
            (true, Intermediary::Proxy { .. }) => end_of_failure(reason),
            (true, _) => End::failed(reason),
            (false, _) => End { outcome: self.outcome(), reason },
        }
    }

    /// Tells the upstream of the trace, unless it is a stranger.
    pub fn pass_trace(&self, request: &mut request::Parts, record: &mut Record) {
        if let Some(trace) = &mut record.trace {
            trace.ask(self.intermediary.tells_upstream().then_some(&mut request.headers));
        }
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
            self.worker.engine.emit(&info, &end);
        }
    }
}

/// Whether this is the very host that the rules were asked about: the name in the hello, or without
/// one the destination. An inspector would go wherever else a request says.
fn is_decided(decided: &Decided, authority: &Authority) -> bool {
    let to = decided.destination;
    // The default port is not written.
    if authority.port_u16().is_some_and(|port| to.is_none_or(|to| to.port() != port)) {
        return false;
    }
    let host = authority.host();
    let host = host.strip_suffix('.').unwrap_or(host);
    if let Some(sni) = decided.sni.as_deref() {
        return sni.eq_ignore_ascii_case(host);
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return to.is_some_and(|to| to.ip().to_canonical() == ip.to_canonical());
    }
    let target = decided.connect.as_deref().and_then(|target| target.rsplit_once(':'));
    target.is_some_and(|(name, _)| name.eq_ignore_ascii_case(host))
}

/// Whether a host is certainly a name: addresses end in a digit or a bracket.
fn is_name(host: &str) -> bool {
    host.ends_with(|last: char| last.is_ascii_alphabetic())
}

/// The facts of one request for its access line.
pub struct Record {
    /// Its start, in milliseconds since 1970.
    started_unix_ms: u64,
    method: Option<Method>,
    path: Option<PathAndQuery>,
    /// The status that the client got; none if it got none.
    pub status: Option<u16>,
    /// Milliseconds from the request's last byte to the response's head. If the upstream answered
    /// earlier, they count from the request's head.
    upstream_ms: Option<u64>,
    pub(super) coded: Coded,
    /// Why the exchange ended.
    pub reason: Reason,
    /// The client did not get a whole response of the upstream.
    pub failed: bool,
    /// The upstream that was asked.
    upstream: Option<Arc<str>>,
    upstream_tls: Option<Arc<UpstreamTlsInfo>>,
    pub(super) bytes_to_upstream: u64,
    pub(super) bytes_to_client: u64,
    /// Boxed: few exchanges are traced, and all pay for the size.
    trace: Option<Box<ExchangeTrace>>,
}

impl Record {
    /// The record of a request that begins.
    pub fn new(served: &ServedConnection, request: &request::Parts) -> Self {
        let path = request.uri.path_and_query().cloned();
        let trace =
            served.worker.shared.trace.as_ref().map(|tracer| {
                Box::new(ExchangeTrace::begin(tracer, request, served.trusts_client()))
            });
        Self { method: Some(request.method.clone()), path, trace, ..Self::unread(served) }
    }

    /// The record of an exchange that rested.
    pub fn resumed(served: &ServedConnection, facts: RestingFacts) -> Self {
        let accepted_unix_ms = served.info.started_unix_ms();
        let began = facts.began_ms.map(|ms| accepted_unix_ms.saturating_add(ms));
        let upstream = served.info.decided.upstream.as_ref().map(|name| name.to_text().into());
        Self {
            started_unix_ms: began.unwrap_or(0),
            method: facts.method,
            path: facts.path,
            status: facts.status,
            upstream_ms: facts.upstream_ms,
            upstream,
            ..Self::unread(served)
        }
    }

    /// True if the facts of the exchange may rest: a trace has more.
    pub fn may_rest(&self) -> bool {
        self.trace.is_none()
    }

    /// The facts of an exchange that rests. The upstream is its connection's.
    pub(super) fn rest(&self, served: &ServedConnection) -> RestingFacts {
        let accepted_unix_ms = served.info.started_unix_ms();
        let began = Some(self.started_unix_ms).filter(|unix_ms| *unix_ms > 0);
        let shown = self.path.as_ref().map(|path| cut(path.as_str()));
        RestingFacts {
            began_ms: began.map(|unix_ms| unix_ms.saturating_sub(accepted_unix_ms)),
            method: self.method.clone(),
            path: shown.and_then(|path| path.try_into().ok()),
            status: self.status,
            upstream_ms: self.upstream_ms,
            bytes_to_upstream: self.bytes_to_upstream,
            bytes_to_client: self.bytes_to_client,
        }
    }

    /// Notes the upstream that is sent the request.
    pub fn note_sent(&mut self, upstream: &Upstream) {
        self.upstream = Some(upstream.name().clone());
        self.upstream_tls = upstream.tls().cloned();
        if let Some(trace) = &mut self.trace {
            trace.note_sent();
        }
    }

    /// Notes an upstream to which there is no connection, or one that rested.
    pub fn note_unreached(&mut self, name: &Arc<str>) {
        self.upstream = Some(name.clone());
        self.upstream_tls = None;
    }

    /// Notes the head of the upstream's response, and the milliseconds until it came.
    pub fn note_answered(&mut self, status: StatusCode, ms: Option<u64>) {
        self.upstream_ms = ms;
        if let Some(trace) = &mut self.trace {
            trace.note_answered(status.as_u16());
        }
    }

    /// The record of a request that could not be read.
    pub fn unread(served: &ServedConnection) -> Self {
        let logs = served.worker.is_logging();
        Self {
            // Without a log the time is not needed.
            started_unix_ms: if logs { served.worker.engine.now_unix_ms() } else { 0 },
            method: None,
            path: None,
            status: None,
            upstream_ms: None,
            coded: Coded::default(),
            reason: Reason::Complete,
            failed: false,
            upstream: None,
            upstream_tls: None,
            bytes_to_upstream: 0,
            bytes_to_client: 0,
            trace: None,
        }
    }

    fn info(&self) -> RequestInfo<'_> {
        RequestInfo {
            method: self.method.as_ref().map_or("", Method::as_str),
            path: cut(self.path.as_ref().map_or("", PathAndQuery::as_str)),
            status: self.status,
            upstream_ms: self.upstream_ms,
            upstream: self.upstream.as_deref(),
            upstream_tls: self.upstream_tls.as_deref(),
            coded: self.coded,
            trace: self.trace.as_ref().map(|trace| trace.ids()),
        }
    }
}

/// The path, cut to the length for the log.
fn cut(path: &str) -> &str {
    if path.len() <= PATH_CHARS_MAX {
        return path;
    }
    path.char_indices().nth(PATH_CHARS_MAX).map_or(path, |(end, _)| &path[..end])
}

#[cfg(test)]
mod tests;
