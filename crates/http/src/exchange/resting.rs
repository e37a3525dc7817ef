//! The part that is left of an exchange that rests: its task ends, and whoever has the client's
//! connection keeps this.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::transfer::{Download, resumed_websocket};
use eyelet_downstream::client::resting_client::RestingClient;
use eyelet_downstream::client::resting_stream::{RestingStream, StreamUpstream};
use eyelet_downstream::connection::log_entry::RequestLogEntry;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_downstream::connection::worker::Http;
use eyelet_resting::{KeptConnection, RestingExchange, RestingFacts, RestingState};
use eyelet_telemetry::info::ConnectionInfo;
use eyelet_telemetry::reason::{Class, Reason};
use eyelet_telemetry::upstream::OpenExchange;
use eyelet_upstream::RestingUpstream;
use zeroize::Zeroizing;

/// The remainder of an exchange that rests.
pub struct Resting {
    /// The upstream, which it keeps open.
    pub(super) kept: KeptUpstream,
    /// The client's side by HTTP/1.1.
    pub client: RestingClient,
    /// The upstream's address.
    pub(super) name: Arc<str>,
    /// Since when nothing has moved.
    pub since: Instant,
    /// For how long that may be so.
    pub idle_max: Duration,
    pub(super) state: RestingState,
    /// The connection to the upstream.
    pub(super) connection: KeptConnection,
    /// The facts for the access line, once its entry has given them up.
    pub(super) facts: Option<RestingFacts>,
}

/// The upstream that an exchange that rests keeps open.
pub struct KeptUpstream {
    /// The upstream.
    pub upstream: RestingUpstream,
    /// The counters of the exchange until it ends.
    pub open: Vec<OpenExchange>,
}

/// The status that the client of a held request gets if its connection ends here before anybody has
/// decided.
pub const UNDECIDED_STATUS: u16 = 503;

/// The status that the client of a held request got whose connection has ended for this reason.
pub fn undecided_status(reason: &Reason) -> Option<u16> {
    let is_ours = matches!(reason.class(), Class::Drained | Class::Ended | Class::Shed)
        || *reason == Reason::RuleGone;
    is_ours.then_some(UNDECIDED_STATUS)
}

/// Writes the access line of an exchange that ends while it rests. `name` is its upstream's address
/// if that is not its connection's.
pub fn end_rested(served: &ServedConnection, form: &[u8], name: Option<&str>, reason: Reason) {
    let Some(RestingExchange { facts, state, connection }) = RestingExchange::unpack(form) else {
        return tracing::error!("internal error: an exchange at rest is none, and has no line");
    };
    if state.has_switched() {
        // Its line is written.
        return;
    }
    let by_hold = match &state {
        RestingState::Held(hold) => Some(by_hold(served, &hold.key.rule)),
        _ => None,
    };
    let served = by_hold.as_ref().unwrap_or(served);
    let mut entry = RequestLogEntry::resumed(served, facts, Rc::default());
    let record = &mut entry.record;
    if by_hold.is_some() {
        record.status = undecided_status(&reason);
    }
    (record.failed, record.reason) = (true, reason);
    let own = served.info.decided.upstream.as_ref().map(|name| name.to_text());
    let is_held = matches!(state, RestingState::Held(_));
    if let Some(name) = name.or(own.as_deref()).filter(|_| !is_held) {
        record.note_kept(&name.into(), connection.tls_info().cloned());
    }
    // It counts the body when it is dropped.
    match state {
        RestingState::PassesDown(_, download) => drop(Download::resumed(&entry.written, &download)),
        RestingState::WebSocket(websocket) => drop(resumed_websocket(&entry.written, &websocket)),
        RestingState::AwaitsHead(_) | RestingState::Held(_) | RestingState::Switched(_) => {}
    }
    entry.end();
}

/// The connection as the access line of a request names it that the rule of this name holds.
pub fn by_hold(served: &ServedConnection, rule: &str) -> ServedConnection {
    let mut info = served.info.copy();
    note_rule(&served.http, &mut info, rule);
    ServedConnection::ended(served.http.clone(), info)
}

/// Notes the rule of this name, unless a reload may have changed what the numbers of rules mean.
pub fn note_rule(http: &Http, info: &mut ConnectionInfo, rule: &str) {
    if info.decided.labels.generation() == http.shared.generation {
        let found = http.shared.config.rules.iter().position(|known| *known.name == *rule);
        let found = found.and_then(|rule| u32::try_from(rule).ok());
        info.decided.rule = found.or(info.decided.rule);
    }
}

impl Resting {
    /// Returns the form for a stream of HTTP/2.
    pub fn into_stream(self) -> RestingStream {
        let (name, since, idle_max) = (self.name.clone(), self.since, self.idle_max);
        let mut form = Zeroizing::new(Vec::new());
        let KeptUpstream { upstream, open } = self.pack(&mut form);
        let upstream = StreamUpstream::Kept(upstream);
        RestingStream { form, upstream, name, open, since, idle_max }
    }

    /// Appends the form of the exchange, which may hold secrets, to at most a few bytes that hold
    /// none. Returns what stays beside it.
    pub fn pack(self, out: &mut Vec<u8>) -> KeptUpstream {
        let Self { kept, state, facts, connection, .. } = self;
        // An entry gives its facts up whenever its exchange rests.
        if let Some(facts) = facts {
            RestingExchange { facts, state, connection }.pack(out);
        }
        kept
    }
}

pub mod shared;
