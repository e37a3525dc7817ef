//! The part that is left of an exchange that rests: its task ends, and whoever has the client's
//! connection keeps this.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::transfer::{Download, resumed_websocket};
use eyelet_downstream::client::resting_client::RestingClient;
use eyelet_downstream::client::resting_stream::RestingStream;
use eyelet_downstream::connection::log_entry::RequestLogEntry;
use eyelet_downstream::connection::resting::{RestingExchange, RestingFacts, RestingState};
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_telemetry::reason::Reason;
use eyelet_telemetry::upstream::OpenExchange;
use eyelet_upstream::socket::tls::RestingTls;
use zeroize::Zeroizing;

/// The remainder of an exchange that rests.
pub struct Resting {
    pub(super) socket: OwnedFd,
    /// Where the exchange counts until it ends.
    pub(super) open: Vec<OpenExchange>,
    /// The client's side by HTTP/1.1.
    pub client: RestingClient,
    /// The upstream's address.
    pub(super) name: Arc<str>,
    /// Since when nothing has moved.
    pub since: Instant,
    /// For how long that may be so.
    pub idle_max: Duration,
    pub(super) state: RestingState,
    /// TLS to the upstream.
    pub(super) tls: Option<RestingTls>,
    /// The facts for the access line, once its entry has given them up.
    pub(super) facts: Option<RestingFacts>,
}

/// The upstream that an exchange that rests keeps open.
pub struct RestingSocket {
    /// The upstream's socket, which is registered nowhere.
    pub socket: OwnedFd,
    /// Where the exchange counts until it ends.
    pub open: Vec<OpenExchange>,
}

/// Writes the access line of an exchange that ends while it rests. `name` is its upstream's address
/// if that is not its connection's.
pub fn end_rested(served: &ServedConnection, form: &[u8], name: Option<&str>, reason: Reason) {
    let Some(RestingExchange { facts, state, tls }) = RestingExchange::unpack(form) else {
        return tracing::error!("internal error: an exchange at rest is none, and has no line");
    };
    if state.has_switched() {
        // Its line is written.
        return;
    }
    let mut entry = RequestLogEntry::resumed(served, facts, Rc::default());
    let record = &mut entry.record;
    (record.failed, record.reason) = (true, reason);
    let own = served.info.decided.upstream.as_ref().map(|name| name.to_text());
    if let Some(name) = name.or(own.as_deref()) {
        record.note_kept(&name.into(), tls.and_then(|tls| tls.info));
    }
    // It counts the body when it is dropped.
    match state {
        RestingState::PassesDown(_, download) => drop(Download::resumed(&entry.written, &download)),
        RestingState::WebSocket(websocket) => drop(resumed_websocket(&entry.written, &websocket)),
        RestingState::AwaitsHead(_) | RestingState::Switched(_) => {}
    }
    entry.end();
}

impl Resting {
    /// Returns the form for a stream of HTTP/2.
    pub fn into_stream(self) -> RestingStream {
        let (name, since, idle_max) = (self.name.clone(), self.since, self.idle_max);
        let mut form = Zeroizing::new(Vec::new());
        let RestingSocket { socket, open } = self.pack(&mut form);
        RestingStream { form, socket: Some(socket), name, open, since, idle_max }
    }

    /// Appends the form of the exchange, which may hold secrets, to at most a few bytes that hold
    /// none. Returns what stays beside it.
    pub fn pack(self, out: &mut Vec<u8>) -> RestingSocket {
        let Self { socket, open, state, facts, tls, .. } = self;
        // An entry gives its facts up whenever its exchange rests.
        if let Some(facts) = facts {
            RestingExchange { facts, state, tls }.pack(out);
        }
        RestingSocket { socket, open }
    }
}
