//! Fetches the facts of one connection as the rules ask for them, and turns the verdict into a
//! refusal or an action.

use std::net::SocketAddr;
use std::sync::Arc;

use eyelet_policy::{Decision, Fact, FactSet, FactSource, Facts, Refusal, Verdict};
use eyelet_wire::hello::{Hello, HelloFacts, Transport};
use eyelet_wire::ja4::Ja4;

use crate::path::active::Active;
use crate::path::connect;
use crate::path::fingerprint;
use crate::path::peek;
use crate::path::refuse::{self, RefusalMessage};
use eyelet_downstream::connection::route::requester_facts;
use eyelet_resolve::dial;
use eyelet_resolve::evidence::{Attempt, ByDns, Lack, Purpose};
use eyelet_resolve::gather;
use eyelet_telemetry::evidence::Evidence;
use eyelet_telemetry::info::End;
use eyelet_telemetry::listing::State;
use eyelet_telemetry::reason::{LacksFacts, Reason, Stage};

/// A connection whose rule is sought, and the facts that were fetched, beside those in the info.
pub struct KnownFacts<'a> {
    pub connection: Active<'a>,
    unknown: FactSet,
    /// The reason why the destination is unknown, if it was asked for.
    no_destination: Option<Reason>,
    dns_agrees: Option<bool>,
    shown: Option<Arc<Attempt>>,
    /// True if a URL gives the name, as if a hello had it.
    is_of_url: bool,
}

/// A connection as a source of facts: what it has, and what is in memory.
struct Source<'a, 'c> {
    known: &'a mut KnownFacts<'c>,
    hello: Option<&'a Hello<'a>>,
}

impl FactSource for Source<'_, '_> {
    fn facts(&self) -> Facts<'_> {
        self.known.facts(self.hello)
    }

    fn fetch(&mut self, fact: Fact) -> bool {
        match (fact, self.hello) {
            (Fact::Destination, _) => self.known.recall_destination(),
            (Fact::Ja4, Some(hello)) => {
                self.known.connection.info.decided.ja4 = Some(fingerprint::ja4(hello));
                true
            }
            _ => self.known.recall(fact),
        }
    }
}

impl<'c> KnownFacts<'c> {
    /// Nothing is known yet.
    pub fn none(connection: &'c mut Active<'_>) -> Self {
        let (unknown, no_destination, dns_agrees, shown) = (FactSet::EMPTY, None, None, None);
        let connection = connection.reborrow();
        Self { connection, unknown, no_destination, dns_agrees, shown, is_of_url: false }
    }

    /// Nothing is known yet. A client without TLS sends no hello.
    pub fn of(connection: &'c mut Active<'_>) -> Self {
        let mut known = Self::none(connection);
        if known.connection.is_plain() {
            known.unknown = FactSet::EMPTY.with(Fact::Hello);
        }
        known
    }

    /// Nothing is known. No hello can be read.
    pub fn without_hello(connection: &'c mut Active<'_>) -> Self {
        Self { unknown: FactSet::EMPTY.with(Fact::Hello), ..Self::none(connection) }
    }

    /// Nothing is known but the name in the info, which a URL gives.
    pub fn of_url(connection: &'c mut Active<'_>) -> Self {
        Self { is_of_url: true, ..Self::none(connection) }
    }

    /// The facts known so far, for the rules.
    pub fn facts<'a>(&'a self, hello: Option<&'a Hello<'a>>) -> Facts<'a> {
        let info = &*self.connection.info;
        let of_url = || self.is_of_url.then(|| HelloFacts::named(info.decided.sni.as_deref()));
        Facts {
            connect: info.connect.as_deref(),
            requester: requester_facts(&info.decided),
            destination: info.decided.destination,
            hello: hello.map(HelloFacts::from).or_else(of_url),
            ja4: info.decided.ja4.as_ref().map(Ja4::as_str),
            dns_agrees: self.dns_agrees,
            certificate: self.shown.as_deref().and_then(Attempt::certificate),
            unknown: self.unknown,
            transport: if info.is_quic { Transport::Quic } else { Transport::Tcp },
            ..Facts::new(info.decided.listener, info.client.ip())
        }
    }

    /// Asks the rules with what is known and in memory: the verdict, or the fact to wait for.
    pub fn ask(&mut self, hello: Option<&Hello<'_>>) -> Decision {
        let policy = &self.connection.edge.snapshot.config.policy;
        policy.decide_from(&mut Source { known: self, hello })
    }

    /// Asks the rules without a hello, and waits for the facts that they need. `None`: they need
    /// the hello.
    pub async fn ask_without_hello(&mut self) -> Result<Option<Verdict>, End> {
        loop {
            match self.ask(None) {
                Decision::Verdict(verdict) => return Ok(Some(verdict)),
                Decision::Need(Fact::Hello) => return Ok(None),
                Decision::Need(fact) => {
                    Box::pin(self.wait_for(fact)).await?;
                    self.connection.note_state(State::Peeking);
                }
            }
        }
    }

    /// Fetches a fact while the client is there. One that cannot be had is unknown, and fails
    /// closed.
    pub async fn wait_for(&mut self, fact: Fact) -> Result<(), End> {
        self.connection.note_state(State::Deciding);
        let stage = match fact {
            Fact::Destination => Stage::Destination,
            _ => Stage::Evidence,
        };
        let Active { edge, handle, .. } = self.connection;
        peek::while_there(edge, handle, self.fetch(fact), stage).await
    }

    async fn fetch(&mut self, fact: Fact) {
        let had = match fact {
            Fact::Destination => return self.find_destination().await,
            Fact::DnsEvidence => self.fetch_dns().await,
            Fact::Certificate => self.fetch_certificate().await,
            _ => false,
        };
        if !had {
            self.unknown = self.unknown.with(fact);
        }
    }

    async fn find_destination(&mut self) {
        if self.recall_destination() {
            return;
        }
        let Some(host_port) = connect::host_port(self.connection.info) else { return };
        let edge = &self.connection.edge;
        self.connection.handle.due_in(edge.snapshot.config.limits.connect_timeout);
        let found = dial::destination(&edge.names, self.connection.info, &host_port).await;
        self.take_destination(found);
    }

    /// Takes the destination from the socket, where nothing must be awaited: without a CONNECT
    /// request. Returns whether that is so.
    fn recall_destination(&mut self) -> bool {
        if connect::host_port(self.connection.info).is_some() {
            return false;
        }
        let found = self.connection.handle.local_address().ok_or(Reason::ClientReset(None));
        self.take_destination(found);
        true
    }

    fn take_destination(&mut self, found: Result<SocketAddr, Reason>) {
        match found {
            Ok(destination) => self.connection.info.decided.destination = Some(destination),
            Err(why) => {
                self.no_destination = Some(why);
                self.unknown = self.unknown.with(Fact::Destination);
            }
        }
    }

    /// Turns a verdict into a rule's index or a refusal, and notes it in the info.
    pub fn settle(&mut self, verdict: Verdict) -> Result<u32, (RefusalMessage, End)> {
        let act = self.rule_on(verdict);
        let edge = &self.connection.edge;
        if let Some(evidence) = &self.connection.info.decided.evidence {
            edge.engine.counters.name_evidence(evidence);
        }
        if let Some(hits) = &edge.snapshot.hits {
            let now_ns = edge.engine.now_unix_ns();
            if let Some(rule) = self.connection.info.decided.rule {
                hits.hit(edge.engine.index(), rule, now_ns);
            }
            if !std::mem::replace(&mut self.connection.info.is_decided, true) {
                let took_ns = now_ns.saturating_sub(self.connection.info.started_unix_ns);
                edge.engine.counters.decisions.observe_ns(took_ns);
            }
        }
        self.blame(act)
    }

    /// Adds the facts that could not be had to the reason of a refusal.
    fn blame<T>(
        &mut self,
        act: Result<T, (RefusalMessage, End)>,
    ) -> Result<T, (RefusalMessage, End)> {
        let unknown =
            self.connection.info.decided.evidence.as_ref().map_or(&[][..], Evidence::unknown);
        act.map_err(|(answer, mut end)| {
            let no_destination = self.no_destination.take();
            if no_destination.is_some() || !unknown.is_empty() {
                let (refusal, unknown) = (end.reason, unknown.into());
                let lacks = LacksFacts { refusal, no_destination, unknown };
                end.reason = Reason::LacksFacts(Box::new(lacks));
            }
            (answer, end)
        })
    }

    /// Takes evidence for or against the hello's name from memory. Returns whether memory had it.
    /// It mostly does: earlier connections had the same name and address.
    pub fn recall(&mut self, fact: Fact) -> bool {
        let (names, decided) = (&self.connection.edge.names, &self.connection.info.decided);
        let Some(to) = decided.destination else { return false };
        let had = match (fact, decided.sni.as_deref()) {
            (Fact::DnsEvidence, Some(name)) => {
                gather::known_by_dns(names, name, to.ip()).map(|found| self.take_dns(&found))
            }
            (Fact::Certificate, name) => {
                gather::known_by_certificate(names, to, name, decided.is_chosen())
                    .map(|attempt| self.take_certificate(attempt))
            }
            _ => None,
        };
        // Memory also holds that evidence cannot be had.
        if had == Some(false) {
            self.unknown = self.unknown.with(fact);
        }
        had.is_some()
    }

    async fn fetch_dns(&mut self) -> bool {
        self.fetch_destination().await;
        let decided = &self.connection.info.decided;
        let (Some(to), Some(name)) = (decided.destination, decided.sni.as_deref()) else {
            self.evidence().note_unknown("dns: there is no destination");
            return false;
        };
        // Boxed: few connections wait here, and the room would be in every connection's task.
        let (names, client) = (&self.connection.edge.names, self.connection.info.client.ip());
        let found = Box::pin(gather::by_dns(names, client, name, to.ip())).await;
        self.take_dns(&found)
    }

    fn take_dns(&mut self, found: &ByDns) -> bool {
        self.dns_agrees = found.agrees;
        let (answer, fault) = (found.logged.clone(), found.fault.as_deref());
        self.evidence().note_dns(answer, found.agrees, fault);
        found.agrees.is_some()
    }

    async fn fetch_certificate(&mut self) -> bool {
        self.fetch_destination().await;
        let Some(to) = self.connection.info.decided.destination else {
            self.evidence().note_unknown("certificate: there is no destination");
            return false;
        };
        let name = self.connection.info.decided.sni.clone();
        let (names, client) = (&self.connection.edge.names, self.connection.info.client.ip());
        let (to, is_chosen) = ((to, name.as_deref()), self.connection.info.decided.is_chosen());
        let attempt = gather::by_certificate(names, client, to, is_chosen, Purpose::Rules);
        let attempt = Box::pin(attempt).await;
        self.take_certificate(attempt)
    }

    /// Fetches the certificate that an address shows for a name, to make one after it. If the
    /// client chose the address, it may be one that must not be asked.
    pub async fn fetch_certificate_to_mint(
        &mut self,
        to: SocketAddr,
        name: Option<&str>,
        is_chosen: bool,
    ) {
        let (names, client) = (&self.connection.edge.names, self.connection.info.client.ip());
        // It does not count against the client, as for rules.
        self.give_time();
        let attempt = gather::by_certificate(names, client, (to, name), is_chosen, Purpose::Mint);
        let attempt = Box::pin(attempt).await;
        self.take_certificate(attempt);
    }

    /// The certificate that was fetched last, or why there is none.
    pub fn shown(&self) -> Option<Arc<Attempt>> {
        self.shown.clone()
    }

    /// Fetches the destination, if it is not known. Fetching evidence has its own timeout, which
    /// does not count against the client.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub async fn fetch_origin(&mut self) -> Result<SocketAddr, Reason> {
        self.fetch_destination().await;
        let why = || self.no_destination.clone().unwrap_or(Reason::NoDestination);
        self.connection.info.decided.destination.ok_or_else(why)
    }

    fn take_certificate(&mut self, attempt: Arc<Attempt>) -> bool {
        let shown = attempt.shown.as_ref().map(|shown| shown.logged.clone());
        self.evidence().note_certificate(shown.map_err(Lack::text));
        let had = attempt.certificate().is_some();
        self.shown = Some(attempt);
        had
    }

    /// Evidence concerns the address that the client meant. Fetching it has its own timeout, which
    /// does not count against the client.
    async fn fetch_destination(&mut self) {
        if self.connection.info.decided.destination.is_none() {
            self.connection.note_state(State::Deciding);
            self.find_destination().await;
        }
        self.give_time();
    }

    /// Gives the connection the time that fetching evidence may take.
    fn give_time(&self) {
        let timeout = self.connection.edge.snapshot.config.evidence.timeout;
        self.connection.handle.due_in(EVIDENCE_TIMEOUTS * timeout);
    }

    fn evidence(&mut self) -> &mut Evidence {
        self.connection.info.decided.evidence.get_or_insert_default()
    }

    fn rule_on(&mut self, verdict: Verdict) -> Result<u32, (RefusalMessage, End)> {
        let decided = &mut self.connection.info.decided;
        decided.rule = verdict.rule.map(|rule| rule.0);
        match (verdict.rule, verdict.refuse) {
            (Some(rule), None) => Ok(rule.0),
            (None, None) => Err(refuse::by_rule(None, Refusal::Unlisted, decided.tls_version)),
            (rule, Some(refusal)) => {
                let rules = &self.connection.edge.snapshot.config.rules;
                let action = rule.map(|rule| rules.at(rule.0).action);
                Err(refuse::by_rule(action, refusal, decided.tls_version))
            }
        }
    }
}

/// The connection's deadline, in multiples of the evidence's own timeout. Evidence may wait once
/// with another client that is refused, once for the client's share, once for a permit, and once
/// for its answer. The fifth is there so that the connection's deadline does not end it first.
const EVIDENCE_TIMEOUTS: u32 = 5;
