//! The outcomes of shadow rules. They are computed after the decision. Only `look` waits for them.

use std::net::SocketAddr;
use std::time::Duration;

use eyelet_policy::{Decision, Fact, FactSource, Facts};
use eyelet_wire::hello::{Hello, HelloReader, Peek};
use futures_util::FutureExt;
use tokio::time::Instant;

use crate::path::connection_handle::ConnectionHandle;
use crate::path::fact_source::KnownFacts;
use crate::path::fingerprint;
use crate::path::peek;
use eyelet_config::Action;
use eyelet_memory::budget::CountedBuffer;
use eyelet_resolve::evidence::Purpose;
use eyelet_resolve::gather;
use eyelet_telemetry::info::{ConnectionInfo, End, Outcome};

/// How long a client may take to send its hello if only shadow rules ask for it. A TLS client sends
/// it right after TCP's handshake, so it is mostly here already. A client that waits for the server
/// to speak first waits this much longer.
const HELLO_WAIT: Duration = Duration::from_millis(100);

/// Reads the hello of a connection that was decided without it, if shadow rules ask for it.
/// Whatever the client sends, the connection continues, and `peeked` has all bytes read.
pub async fn look(
    connection: &ConnectionHandle,
    info: &mut ConnectionInfo,
    known: &mut KnownFacts,
    peeked: &mut CountedBuffer,
) -> Result<(), End> {
    if !note(connection, info, known, None) {
        return Ok(());
    }
    let snapshot = &connection.worker.snapshot;
    let until = Instant::now() + HELLO_WAIT;
    let mut reader = HelloReader::new(snapshot.config.limits.hello_bytes_max);
    loop {
        match reader.feed(peeked) {
            // Before the 200 to a CONNECT only bytes that came with its head are here.
            Peek::NeedMore { .. } if !info.owes_answer => {}
            Peek::Hello(hello) => {
                peek::note_hello(connection, info, &hello);
                // The decision did not use the hello, so the server is not held to it either.
                info.decided.tls_compression = None;
                note(connection, info, known, Some(&hello));
                return Ok(());
            }
            _ => return Ok(()),
        }
        if !peek::glance(connection, peeked, until).await? {
            return Ok(());
        }
    }
}

/// Notes the shadow rules' outcomes from known facts and remembered evidence. Returns whether the
/// hello would say more. Evidence that is missing is gathered for later connections.
pub fn note(
    connection: &ConnectionHandle,
    info: &mut ConnectionInfo,
    known: &mut KnownFacts,
    hello: Option<&Hello<'_>>,
) -> bool {
    let config = &connection.worker.snapshot.config;
    if !config.policy.has_shadows() {
        return false;
    }
    let destination = info.decided.destination;
    let mut source = Remembered { connection, info, known, hello, destination };
    let asked = config.policy.fetch_for_shadows(&mut source);
    let facts = source.facts();
    let outcomes = config.policy.shadowed(&facts).filter_map(|(rule, comes_to)| {
        let Decision::Verdict(verdict) = comes_to else { return None };
        let outcome = match config.rules.at(rule.0).action {
            _ if verdict.refuse.is_some() => Outcome::Refused,
            Action::Originate(_) => Outcome::Originated,
            Action::Splice(_) => Outcome::Spliced,
            Action::Terminate(_) => Outcome::Terminated,
            Action::Refuse(_) => Outcome::Refused,
        };
        Some((rule.0, outcome))
    });
    let outcomes = outcomes.collect();
    info.decided.shadow = outcomes;
    asked.contains(Fact::Hello)
}

/// A connection as a source of facts for shadow rules: it waits for nothing.
struct Remembered<'a> {
    connection: &'a ConnectionHandle,
    info: &'a mut ConnectionInfo,
    known: &'a mut KnownFacts,
    hello: Option<&'a Hello<'a>>,
    /// Not stored in the info: what only shadow rules asked for must not become the dialled
    /// address.
    destination: Option<SocketAddr>,
}

impl FactSource for Remembered<'_> {
    fn facts(&self) -> Facts<'_> {
        Facts { destination: self.destination, ..self.known.facts(self.info, self.hello) }
    }

    fn fetch(&mut self, fact: Fact) -> bool {
        match (fact, self.hello) {
            // A CONNECT's name is not resolved here: that would wait, and fix where the connection
            // leads.
            (Fact::Destination, _) if self.info.connect.is_none() => {
                self.destination = self.connection.handle.local_address();
            }
            (Fact::Ja4, Some(hello)) => self.info.decided.ja4 = Some(fingerprint::ja4(hello)),
            _ if self.known.recall(self.connection, self.info, fact) => {}
            _ => gather(self.connection, self.info, fact),
        }
        true
    }
}

/// Begins to gather evidence, unless a query for it is running. The first poll starts the query,
/// which then runs without a waiting caller, within the limits of all queries. If there is no room,
/// no caller waits for it.
fn gather(connection: &ConnectionHandle, info: &ConnectionInfo, fact: Fact) {
    let (names, client) = (&connection.worker.names, info.client.ip());
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
