//! The outcomes of shadow rules. They are computed after the decision. Only `look` waits for them.

use std::net::SocketAddr;
use std::time::Duration;

use eyelet_policy::{Decision, Fact, FactSource, Facts};
use eyelet_wire::hello::{Hello, HelloReader, Peek};
use futures_util::FutureExt;
use tokio::time::Instant;

use crate::path::active::Active;
use crate::path::fact_source::KnownFacts;
use crate::path::fingerprint;
use crate::path::peek;
use eyelet_downstream::connection::intermediary::outcome_of;
use eyelet_memory::budget::CountedBuffer;
use eyelet_resolve::evidence::Purpose;
use eyelet_resolve::gather;
use eyelet_telemetry::info::{End, Outcome};

/// The time that a client may take to send its hello if only shadow rules ask for it. A TLS client
/// sends it right after TCP's handshake, so it is mostly here already. A client that waits for the
/// server to speak first waits this much longer.
const HELLO_WAIT: Duration = Duration::from_millis(100);

/// Reads the hello of a connection that was decided without it, if shadow rules ask for it.
/// Whatever the client sends, the connection continues, and `peeked` has all bytes read.
pub async fn look(known: &mut KnownFacts<'_>, peeked: &mut CountedBuffer) -> Result<(), End> {
    if !note(known, None) {
        return Ok(());
    }
    let until = Instant::now() + HELLO_WAIT;
    let mut reader = HelloReader::new(known.connection.edge.snapshot.config.limits.hello_bytes_max);
    loop {
        match reader.feed(peeked) {
            // Before the 200 to a CONNECT only bytes that came with its head are here.
            Peek::NeedMore { .. } if known.connection.info.owes_answer.is_none() => {}
            Peek::Hello(hello) => {
                peek::note_hello(&mut known.connection, &hello);
                // The decision did not use the hello, so the server is not held to it either.
                known.connection.info.decided.tls_compression = None;
                note(known, Some(&hello));
                return Ok(());
            }
            _ => return Ok(()),
        }
        if !peek::glance(&known.connection, peeked, until).await? {
            return Ok(());
        }
    }
}

/// Notes the shadow rules' outcomes from known facts and remembered evidence. Returns whether the
/// hello would say more. Evidence that is missing is gathered for later connections.
pub fn note(known: &mut KnownFacts<'_>, hello: Option<&Hello<'_>>) -> bool {
    let config = &known.connection.edge.snapshot.config;
    if !config.policy.has_shadows() {
        return false;
    }
    let destination = known.connection.info.decided.destination;
    let mut source = Remembered { known, hello, destination };
    let asked = config.policy.fetch_for_shadows(&mut source);
    let facts = source.facts();
    let outcomes = config.policy.shadowed(&facts).filter_map(|(rule, comes_to)| {
        let Decision::Verdict(verdict) = comes_to else { return None };
        let outcome = match config.rules.at(rule.0).action {
            _ if verdict.refuse.is_some() => Outcome::Refused,
            action => outcome_of(action),
        };
        Some((rule.0, outcome))
    });
    let outcomes = outcomes.collect();
    known.connection.info.decided.shadow = outcomes;
    asked.contains(Fact::Hello)
}

/// A connection as a source of facts for shadow rules: it waits for nothing.
struct Remembered<'a, 'c> {
    known: &'a mut KnownFacts<'c>,
    hello: Option<&'a Hello<'a>>,
    /// Not stored in the info: what only shadow rules asked for must not become the dialled
    /// address.
    destination: Option<SocketAddr>,
}

impl FactSource for Remembered<'_, '_> {
    fn facts(&self) -> Facts<'_> {
        Facts { destination: self.destination, ..self.known.facts(self.hello) }
    }

    fn fetch(&mut self, fact: Fact) -> bool {
        match (fact, self.hello) {
            // A CONNECT's name is not resolved here: that would wait, and fix where the connection
            // leads.
            (Fact::Destination, _) if self.known.connection.info.connect.is_none() => {
                self.destination = self.known.connection.handle.local_address();
            }
            (Fact::Ja4, Some(hello)) => {
                self.known.connection.info.decided.ja4 = Some(fingerprint::ja4(hello));
            }
            _ if self.known.recall(fact) => {}
            _ => gather(self.known, fact),
        }
        true
    }
}

/// Begins to gather evidence, unless a query for it is running. The first poll starts the query,
/// which then runs without a waiting caller, within the limits of all queries. If there is no room,
/// no caller waits for it.
fn gather(known: &KnownFacts<'_>, fact: Fact) {
    let Active { edge, info, .. } = &known.connection;
    let (names, client) = (&edge.names, info.client.ip());
    match (fact, info.decided.destination, info.decided.sni.as_deref()) {
        (Fact::DnsEvidence, Some(to), Some(name)) => {
            let _begun = gather::by_dns(names, client, name, to.ip()).now_or_never();
        }
        (Fact::Certificate, Some(to), name) => {
            let is_chosen = info.decided.is_chosen();
            let asked =
                gather::by_certificate(names, client, (to, name), is_chosen, Purpose::Rules);
            let _begun = asked.now_or_never();
        }
        _ => {}
    }
}
