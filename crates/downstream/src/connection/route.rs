//! The rule that serves a connection's requests. After a reload the newest rules decide again, from
//! the facts kept of the hello.

use std::cell::{Cell, OnceCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use eyelet_balance::group::{Group, Member, Tried};
use eyelet_config::{
    Action, Hold, Host, HostPort, HttpAddress, HttpUpstream, Terminate, TerminateUpstream,
};
use eyelet_policy::{Decision, Fact, FactSet, FactSource, Facts, RequesterFacts, RuleId, Verdict};
use eyelet_resolve::evidence::Attempt;
use eyelet_resolve::names::Names;
use eyelet_resolve::{dialled, gather};
use eyelet_telemetry::held::HeldVerdict;
use eyelet_telemetry::info::{Alpn, ConnectionInfo, Decided, TlsCompression};
use eyelet_wire::connect::Target;
use eyelet_wire::hello::HelloFacts;
use eyelet_wire::ja4::Ja4;

use super::intermediary::Intermediary;
use super::worker::Http;
use eyelet_upstream::Upstream;
use eyelet_upstream::pool::Shelf;
use eyelet_upstream::request::UpstreamRequest;

/// The rule that serves a connection's requests.
pub struct Route {
    /// Its index.
    pub rule: u32,
    action: Arc<Action>,
    /// Connections to its upstream, or to the first of several, that are kept for its requests.
    pub shelf: Rc<Shelf>,
    /// Connections to the others, that are kept likewise.
    others: Box<[Rc<Shelf>]>,
    /// Load and health of its upstreams, where there is something to choose from.
    group: Option<Arc<Group>>,
    /// The client's destination, if that is the upstream.
    destination: Option<Box<HttpUpstream>>,
    /// The rule that decided the connection. `None`: another one than this, which is not known any
    /// more.
    of_connection: Option<u32>,
    /// The rules that decide its requests, ascending. Empty: its own rule takes all of them.
    pub by_request: Rc<[RuleId]>,
    /// The rules in shadow that ask for its requests, ascending.
    pub shadows: Rc<[RuleId]>,
}

/// One of a route's upstreams.
pub struct RouteTarget<'a> {
    /// The upstream to dial.
    pub to: &'a HttpUpstream,
    /// Connections that are kept.
    pub shelf: &'a Rc<Shelf>,
    /// Its load and health.
    pub balanced: Option<(&'a Arc<Group>, &'a Arc<Member>)>,
}

impl RouteTarget<'_> {
    /// A kept connection for a request, see [`Shelf::take`]. It is none to an address that has left
    /// the upstream's name.
    pub fn take(
        &self,
        http: &Http,
        upstream_request: &UpstreamRequest<'_>,
        idle: bool,
    ) -> Option<Upstream> {
        if let HttpAddress::Tcp(HostPort { host: Host::Name(name), .. }) = &self.to.address
            && self.to.chosen.is_none()
        {
            self.shelf.compare(|| dialled::usable(&http.dialler.names, name));
        }
        self.shelf.take(upstream_request, idle)
    }
}

/// Returns the client of a proxy, as rules see it.
pub fn requester_facts(decided: &Decided) -> RequesterFacts<'_> {
    let requester = decided.requester.as_deref();
    RequesterFacts {
        user: requester.and_then(|requester| requester.user.as_deref()),
        client_cert: requester.and_then(|requester| requester.certificate.as_deref()),
        cgroup: requester.and_then(|requester| requester.cgroup.as_deref()),
    }
}

impl Route {
    /// The rule of the worker's configuration that serves a connection. If another configuration
    /// decided it, `info` is updated to this one. `None`: this configuration would not serve it, or
    /// would require another handshake.
    pub fn of(
        http: &Http,
        info: &mut ConnectionInfo,
        has_preface: bool,
        local: impl FnOnce() -> Option<SocketAddr>,
    ) -> Option<Self> {
        let (address, local) = (OnceCell::new(), Cell::new(Some(local)));
        let local = || *address.get_or_init(|| local.take().and_then(|local| local()));
        let shared = &http.shared;
        let decided_by = info.decided.labels.generation();
        if decided_by == shared.generation {
            let mut route = Self::new(http, info, (info.decided.listener, info.decided.rule?))?;
            route.forget_connection(info);
            if !route.has_verdict(info, true) {
                return None;
            }
            route.find_request_rules(http, info, local)?;
            return Some(route);
        }
        let is_kept = decided_by >= shared.rules_since;
        let (listener, rule) = match is_kept {
            true => (info.decided.listener, info.decided.rule?),
            false => decide(http, info, local)?,
        };
        let mut route = Self::new(http, info, (listener, rule))?;
        if is_kept {
            route.forget_connection(info);
        }
        let decided = &info.decided;
        let was_by = decided.rule.map(|rule| decided.labels.rule(rule));
        let is_own = was_by == Some(http.labels.rule(rule));
        if !route.is_fit(http, info, has_preface) || !route.has_verdict(info, is_own) {
            return None;
        }
        info.decided.labels = http.labels.clone();
        info.decided.listener = listener;
        info.decided.rule = Some(rule);
        // These are rule indexes of the other configuration.
        info.decided.shadow.clear();
        route.find_request_rules(http, info, local)?;
        Some(route)
    }

    /// Forgets that its rule decided the connection if nobody was asked about that: the rule has
    /// taken a request of it.
    fn forget_connection(&mut self, info: &ConnectionInfo) {
        if self.holds_connections() && info.decided.held.is_none() {
            self.of_connection = None;
        }
    }

    /// The route of a request that another rule takes than the connection's. `None`: the rule
    /// serves no requests, or would require another handshake.
    pub fn of_request(
        &self,
        http: &Http,
        info: &ConnectionInfo,
        (rule, has_preface): (u32, bool),
    ) -> Option<Self> {
        let mut route = Self::new(http, info, (info.decided.listener, rule))?;
        (route.of_connection, route.by_request) = (self.of_connection, self.by_request.clone());
        let is_own = Some(rule) == self.of_connection;
        if !route.is_fit(http, info, has_preface) || !route.has_verdict(info, is_own) {
            return None;
        }
        if Arc::ptr_eq(&route.action, &self.action) {
            // A stranger may know the client by its connection.
            (route.shelf, route.others) = (self.shelf.clone(), self.others.clone());
        }
        Some(route)
    }

    /// Finds the rules that decide its requests. `None`: they cannot be known any more.
    fn find_request_rules(
        &mut self,
        http: &Http,
        info: &ConnectionInfo,
        local: impl FnOnce() -> Option<SocketAddr>,
    ) -> Option<()> {
        let policy = &http.shared.config.policy;
        if policy.asks_requests() {
            let mut kept = Kept::of(http, info, info.decided.listener, local)?;
            let found = policy.request_rules(RuleId(self.rule), &mut kept);
            (self.by_request, self.shadows) = (found.deciding.into(), found.shadows.into());
        }
        if self.of_connection.is_none() && self.by_request.is_empty() {
            // It takes all of them, and somebody is asked about each.
            self.by_request = Rc::new([RuleId(self.rule)]);
        }
        Some(())
    }

    /// True if the connection's handshake, or that it had none, meets the terms of the rule.
    fn is_fit(&self, http: &Http, info: &ConnectionInfo, has_preface: bool) -> bool {
        let Some(terminate) = self.requests() else { return false };
        let roots = http.shared.server_tls.client_roots(&http.shared.config.rules, self.rule);
        match (self.intermediary().serves_cleartext(), info.decided.tls_version) {
            (false, Some(_)) => is_fit(terminate, roots, info, has_preface),
            // There was no handshake, and none is wanted.
            (true, None) => true,
            _ => false,
        }
    }

    /// False for a hold rule on connections, unless it is the connection's own and the verdict on
    /// the connection allows it.
    fn has_verdict(&self, info: &ConnectionInfo, is_own: bool) -> bool {
        let is_allowed = || info.decided.held.is_some_and(|of| of.verdict == HeldVerdict::Allow);
        !self.is_held() || self.asks_about_requests() || is_own && is_allowed()
    }

    /// True if a verdict lets its connections pass, or its requests.
    pub fn is_held(&self) -> bool {
        self.action.hold().is_some()
    }

    /// True for a hold rule by which somebody is asked about whole connections that come to it.
    pub fn holds_connections(&self) -> bool {
        self.action.hold().is_some_and(|hold| !hold.of_requests)
    }

    /// True for a hold rule by which somebody is asked about each request: it asks for requests, or
    /// the connection came to another rule.
    pub fn asks_about_requests(&self) -> bool {
        let is_others = Some(self.rule) != self.of_connection;
        let is_asked = |hold: &Hold| hold.of_requests || is_others;
        self.action.hold().is_some_and(is_asked)
    }

    /// True if its upstream is the client's destination.
    pub fn leads_to_destination(&self) -> bool {
        self.destination.is_some()
    }

    /// Its action.
    pub fn action(&self) -> &Action {
        &self.action
    }

    fn new(http: &Http, info: &ConnectionInfo, (listener, rule): (u16, u32)) -> Option<Self> {
        let action = http.shared.config.rules.shared_action(rule)?;
        let terminate = action.requests()?;
        let TerminateUpstream::Http(upstream) = &terminate.upstream else { return None };
        let destination = match upstream.address {
            HttpAddress::Destination => {
                let decided = &info.decided;
                let named = (decided.destination?, decided.sni.as_deref());
                let listener = http.shared.config.listeners.get(usize::from(listener));
                let accepts = listener.is_none_or(|of| !of.proxy_protocol_from.is_empty());
                let is_chosen = decided.may_be_chosen(accepts);
                Some(Box::new(upstream.of_connection(named, is_chosen, decided.http2)?))
            }
            HttpAddress::Tcp(_) | HttpAddress::Unix(_) => None,
        };
        let roots = upstream.tls.as_ref().and_then(|tls| http.shared.upstream_tls.roots(tls));
        let shares = Intermediary::of(&action).shares_upstreams();
        let shelf = |upstream| match terminate.proxy_protocol {
            // A connection that came from this edge dials its own upstream connection, so that the
            // dial is checked for a loop: a shared one could lead to a listener of this edge.
            None if info.decided.is_handed => Rc::default(),
            None if !shares => Rc::default(),
            None => http.pool.shelf(upstream, roots.as_ref()),
            // The upstream was told the client's address, so only this client may use the
            // connection.
            Some(_) => Rc::default(),
        };
        let others = terminate.others.iter().filter_map(TerminateUpstream::as_http);
        let (shelf, others) = (shelf(upstream), others.map(shelf).collect());
        let group = http.dialler.names.shared.upstreams.of(rule).cloned();
        let (of_connection, by_request, shadows) = (Some(rule), Rc::default(), Rc::default());
        Some(Self {
            rule,
            action,
            shelf,
            others,
            group,
            destination,
            of_connection,
            by_request,
            shadows,
        })
    }

    /// The upstream for a request of this client that was at those of `tried`. `None`: it was at
    /// all.
    pub fn choose(
        &self,
        client: IpAddr,
        now_ms: impl FnOnce() -> u64,
        tried: Tried,
    ) -> Option<usize> {
        match &self.group {
            None => Some(0),
            Some(group) => group.choose(client, now_ms(), tried),
        }
    }

    /// True if it leads to the upstreams of another one, in their order.
    pub fn leads_as(&self, other: &Self) -> bool {
        let is_alike = |at| self.target(at).map(|it| it.to) == other.target(at).map(|it| it.to);
        self.upstreams() == other.upstreams() && (0..self.upstreams()).all(is_alike)
    }

    /// Returns how many upstreams there are.
    pub fn upstreams(&self) -> usize {
        1 + self.others.len()
    }

    /// An upstream by its index in the rule.
    pub fn target(&self, index: usize) -> Option<RouteTarget<'_>> {
        let terminate = self.requests()?;
        let (upstream, shelf) = match index.checked_sub(1) {
            None => (&terminate.upstream, &self.shelf),
            Some(other) => (terminate.others.get(other)?, self.others.get(other)?),
        };
        let group = self.group.as_ref();
        let balanced = group.and_then(|group| Some((group, group.members.get(index)?)));
        let to = match &self.destination {
            Some(destination) => destination,
            None => upstream.as_http()?,
        };
        Some(RouteTarget { to, shelf, balanced })
    }

    /// The index of the upstream without TLS that the rule calls by this address.
    pub fn plain_at(&self, address: &str) -> Option<usize> {
        let is_it = |to: &HttpUpstream| to.tls.is_none() && to.address.to_string() == address;
        (0..self.upstreams()).find(|index| self.target(*index).is_some_and(|it| is_it(it.to)))
    }

    /// The route of one request of a proxy's client.
    pub fn proxied(rule: u32, action: Arc<Action>, shelf: Rc<Shelf>) -> Self {
        Self {
            rule,
            action,
            shelf,
            others: Box::default(),
            group: None,
            destination: None,
            of_connection: Some(rule),
            by_request: Rc::default(),
            shadows: Rc::default(),
        }
    }

    /// True if bodies of requests are decoded for the application.
    pub fn decodes_requests(&self) -> bool {
        self.requests().is_some_and(|terminate| terminate.compression.decode_requests)
    }

    /// The part that the rule has this edge take.
    pub fn intermediary(&self) -> Intermediary {
        Intermediary::of(&self.action)
    }

    /// The terms by which the rule's action serves requests.
    pub fn requests(&self) -> Option<&Terminate> {
        self.action.requests()
    }

    /// Returns how long its requests are held while the upstream is down.
    pub fn wait(&self) -> Duration {
        self.requests().map_or(Duration::ZERO, |terminate| terminate.upstream_wait)
    }
}

/// True if the handshake meets the requirements of the rule.
fn is_fit(
    terminate: &Terminate,
    client_roots: u64,
    info: &ConnectionInfo,
    has_preface: bool,
) -> bool {
    let decided = &info.decided;
    (client_roots == 0 || client_roots == decided.client_roots)
        && decided.tls_version >= Some(terminate.tls_version_min.code())
        && selects(terminate, decided)
        // Only the handshake knew the certificate and the other facts of the PROXY header.
        && (!terminate.client_cert_header || decided.client_certificate.is_some())
        && terminate.proxy_protocol.is_some() == has_preface
}

/// True if the rule would have chosen the protocol that the connection speaks.
fn selects(terminate: &Terminate, decided: &Decided) -> bool {
    let lists = |wanted: &[u8]| terminate.alpn_select.iter().any(|name| name == wanted);
    // A client that offered no protocol speaks HTTP/1.1.
    let offered_none = decided.alpn_whole && decided.alpn.is_none();
    match decided.http2 {
        true => lists(b"h2"),
        false => offered_none || terminate.alpn_select.is_empty() || lists(b"http/1.1"),
    }
}

/// The rules' decision without the hello: the listener's index and the rule's. A fact that was not
/// kept is unknown and fails closed.
fn decide(
    http: &Http,
    info: &ConnectionInfo,
    local: impl FnOnce() -> Option<SocketAddr>,
) -> Option<(u16, u32)> {
    let (decided, policy) = (&info.decided, &http.shared.config.policy);
    let listener = http.labels.listener_called(decided.labels.listener(decided.listener))?;
    let mut kept = Kept::of(http, info, listener, local)?;
    match policy.decide_from(&mut kept) {
        Decision::Verdict(Verdict { rule, refuse: None }) => Some((listener, rule?.0)),
        Decision::Verdict(_) | Decision::Need(_) => None,
    }
}

/// The facts that were kept of a connection, and the evidence in memory.
struct Kept<'a, L> {
    names: &'a Names,
    info: &'a ConnectionInfo,
    listener: u16,
    hello: Option<HelloFacts<'a>>,
    connect: Option<Target>,
    destination: Option<SocketAddr>,
    /// The address that the client has connected to. `None`: it does not say the destination.
    local: Option<L>,
    dns_agrees: Option<bool>,
    shown: Option<Arc<Attempt>>,
    unknown: FactSet,
}

impl<'a, L: FnOnce() -> Option<SocketAddr>> Kept<'a, L> {
    /// Those of a connection. `None`: its hello is not known as it was, and the rules might take it
    /// for another one.
    fn of(http: &'a Http, info: &'a ConnectionInfo, listener: u16, local: L) -> Option<Self> {
        let decided = &info.decided;
        if decided.sni_malformed || (!decided.alpn_whole && http.shared.config.policy.asks_alpn()) {
            return None;
        }
        let hello = decided.tls_version.map(|version_max| HelloFacts {
            alpn: decided.alpn.as_ref().map_or(&[], Alpn::as_bytes),
            // The handshake chose the highest version of both sides, and this edge supports the
            // highest.
            version_max,
            ech: decided.ech,
            compression: !matches!(decided.tls_compression, None | Some(TlsCompression::None)),
            ..HelloFacts::named(decided.sni.as_deref())
        });
        let unknown = match hello {
            Some(_) => FactSet::EMPTY,
            // The client speaks no TLS.
            None => FactSet::EMPTY.with(Fact::Hello),
        };
        let connect = connect_target(decided);
        Some(Self {
            names: &http.dialler.names,
            info,
            listener,
            hello,
            destination: decided.destination,
            local: Some(local).filter(|_| connect.is_none()),
            connect,
            dns_agrees: None,
            shown: None,
            unknown,
        })
    }
}

impl<L: FnOnce() -> Option<SocketAddr>> FactSource for Kept<'_, L> {
    fn facts(&self) -> Facts<'_> {
        Facts {
            connect: self.connect.as_ref(),
            requester: requester_facts(&self.info.decided),
            destination: self.destination,
            hello: self.hello,
            ja4: self.info.decided.ja4.as_ref().map(Ja4::as_str),
            dns_agrees: self.dns_agrees,
            certificate: self.shown.as_deref().and_then(Attempt::certificate),
            unknown: self.unknown,
            ..Facts::new(self.listener, self.info.client.ip())
        }
    }

    fn fetch(&mut self, fact: Fact) -> bool {
        let decided = &self.info.decided;
        let name = decided.sni.as_deref();
        match (fact, self.destination) {
            (Fact::Destination, None) => {
                self.destination = self.local.take().and_then(|local| local());
            }
            (Fact::DnsEvidence, Some(to)) => {
                let known = name.and_then(|name| gather::known_by_dns(self.names, name, to.ip()));
                self.dns_agrees = known.and_then(|known| known.agrees);
            }
            (Fact::Certificate, Some(to)) => {
                let is_chosen = decided.is_chosen();
                self.shown = gather::known_by_certificate(self.names, to, name, is_chosen);
            }
            _ => {}
        }
        // Of a fact that is there this says nothing.
        self.unknown = self.unknown.with(fact);
        true
    }
}

/// The target of the connection's CONNECT.
pub fn connect_target(decided: &Decided) -> Option<Target> {
    decided.connect.as_deref().and_then(|text| Target::new(text.as_bytes()).ok())
}
