//! Serves the HTTP requests of a terminated connection and passes them to its upstream.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

mod exchange;
mod http1;
mod http2;
pub mod proxied;
#[cfg(any(test, feature = "testing"))]
pub mod sim;

pub use exchange::resting::shared::{attach_links, detach_links, find_partners};
pub use http1::{has_switched, is_exchange};
pub use http2::{RestingAt, answer_parked, count_streams, pack_state};

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use eyelet_engine::links::{DetachedLink, StreamRef};
use eyelet_engine::worker::{Handle, Settings};
use eyelet_memory::budget::{
    Budget, Counted, HTTP2_BYTES, UPSTREAM_BYTES, UPSTREAM_STREAM_BYTES, UPSTREAM_TLS_BYTES,
};
use eyelet_relay::held::HeldConnection;
use eyelet_relay::terminate::Terminated;
use eyelet_relay::{Flow, KeptExchanges};
use eyelet_telemetry::info::{ConnectionInfo, End};
use eyelet_telemetry::listing::ListedRequest;
use eyelet_telemetry::listing::streams::StreamCounts;
use eyelet_telemetry::reason::Reason;

use eyelet_downstream::client::io::OpenedClient;
use eyelet_downstream::connection::served_connection::given_verdict::GivenVerdict;
use eyelet_downstream::connection::served_connection::{ByteCounts, ClientInfo, ServedConnection};
use eyelet_downstream::connection::worker::Http;
use http2::Resumed;

/// Frees what no message has needed since the last call: it is of an earlier burst. Counts what
/// stays.
pub fn forget_unused(budget: &Arc<Budget>) {
    http2::end_unused_tasks();
    eyelet_http1::head::forget_unused(budget);
}

/// Returns how long what rests on a parked connection may be idle.
pub fn rest_wait(resting: KeptExchanges<'_>, settings: &Settings) -> Duration {
    let wait = match resting {
        KeptExchanges::Exchange(form) => http1::rest_wait(form, settings),
        KeptExchanges::Streams(state) => http2::rest_wait(state, settings),
    };
    // What cannot be read does not go on for longer than a body.
    wait.unwrap_or(settings.body_timeout)
}

/// Bytes for the client of a parked connection before its close_notify.
pub fn last_bytes(kept: KeptExchanges<'_>) -> Vec<u8> {
    match kept {
        KeptExchanges::Exchange(form) => http1::last_bytes(form),
        KeptExchanges::Streams(state) => http2::last_bytes(state),
    }
}

/// Gives the last bytes for the upstreams of what rests, by the places of their sockets.
pub fn close_upstreams(resting: KeptExchanges<'_>, send: &mut dyn FnMut(usize, &[u8])) {
    match resting {
        KeptExchanges::Exchange(form) => send(0, &http1::last_for_upstream(form)),
        KeptExchanges::Streams(state) => http2::close_upstreams(state, send),
    }
}

/// Bytes that an upstream of what rests on a parked connection takes at most once it goes on.
pub fn upstream_bytes(resting: KeptExchanges<'_>) -> usize {
    let (has_tls, has_shared) = match resting {
        KeptExchanges::Exchange(form) => (http1::has_tls(form), http1::is_shared(form)),
        KeptExchanges::Streams(state) => (http2::has_tls(state), http2::has_shared(state)),
    };
    let own = if has_tls { UPSTREAM_TLS_BYTES } else { UPSTREAM_BYTES };
    if has_shared { own.max(UPSTREAM_STREAM_BYTES) } else { own }
}

/// Writes the access lines of the resting exchanges of a parked connection that has ended.
pub fn end_resting(
    http: Rc<Http>,
    info: ConnectionInfo,
    resting: KeptExchanges<'_>,
    reason: &Reason,
) {
    let served = ServedConnection::ended(http, info);
    match resting {
        KeptExchanges::Exchange(form) => http1::end_resting(&served, form, reason),
        KeptExchanges::Streams(state) => http2::end_resting(&served, state, reason),
    }
}

/// Counts the requests and streams that rest on a parked connection.
pub fn resting_streams(resting: KeptExchanges<'_>) -> StreamCounts {
    match resting {
        KeptExchanges::Exchange(form) => {
            http1::resting_kind(form).map(StreamCounts::one).unwrap_or_default()
        }
        KeptExchanges::Streams(state) => http2::resting_streams(state),
    }
}

/// The first requests and streams that rest on a parked connection, as a list shows them.
pub fn resting_requests(resting: KeptExchanges<'_>) -> Vec<ListedRequest> {
    match resting {
        KeptExchanges::Exchange(form) => http1::resting_request(form).into_iter().collect(),
        KeptExchanges::Streams(state) => http2::resting_requests(state),
    }
}

/// True if the upstream connections of a group are read, and their streams are those of what rests
/// on its connections.
pub fn reads_links(
    budget: &Arc<Budget>,
    links: &[DetachedLink],
    connections: &[(KeptExchanges<'_>, &[StreamRef])],
) -> bool {
    let connections = connections.iter().map(|(kept, streams)| {
        let exchanges = match kept {
            KeptExchanges::Exchange(form) => http1::resting_exchange(form).into_iter().collect(),
            KeptExchanges::Streams(state) => http2::exchanges(state),
        };
        (exchanges, *streams)
    });
    exchange::resting::shared::reads_links(budget, links, &connections.collect::<Vec<_>>())
}

/// A parked connection that an event has woken.
pub struct WokenConnection {
    /// Its sockets.
    pub handle: Handle,
    pub info: ConnectionInfo,
    /// The memory that was counted for what it does first.
    pub counted: Counted,
}

/// Serves a connection whose client has sent its first bytes, until it is parked or has ended.
///
/// The future is boxed before anything waits. A task that kept its arguments, or both versions of
/// HTTP, would be twice as large.
pub fn serve(http: Rc<Http>, woken: WokenConnection, terminated: Terminated) -> Served {
    let WokenConnection { handle, info, counted } = woken;
    let opened = OpenedClient::new(handle, terminated);
    OpenedConnection { opened, info, counted, held: None }.serve(http)
}

/// Serves a connection like [`serve`], but of a client without TLS.
pub fn serve_cleartext(http: Rc<Http>, woken: WokenConnection, flow: Flow) -> Served {
    let WokenConnection { handle, info, counted } = woken;
    let opened = OpenedClient::cleartext(handle, flow);
    OpenedConnection { opened, info, counted, held: None }.serve(http)
}

/// Goes on with a connection whose request was held: it is read and decided again, and finds its
/// verdict.
///
/// # Errors
/// What is known of a connection that has no TLS: none is held so.
pub fn serve_held(
    http: Rc<Http>,
    woken: WokenConnection,
    mut held: HeldConnection,
) -> Result<Served, Box<ConnectionInfo>> {
    let waited_ms = u32::try_from(woken.handle.idle().as_millis()).unwrap_or(u32::MAX);
    let decision = held.decision();
    let is_decided = decision.is_some() || held.is_late();
    let key = held.key().filter(|_| is_decided).cloned();
    let given = key.map(|key| GivenVerdict { key, decision, waited_ms });
    let Some(terminated) = held.take_terminated() else {
        return Err(Box::new(woken.info));
    };
    let WokenConnection { handle, info, counted } = woken;
    let opened = OpenedClient::new(handle, terminated);
    let held = Some((given, held.bytes()));
    Ok(OpenedConnection { opened, info, counted, held }.serve(http))
}

/// Writes the access line of a request that has ended while it was held.
pub fn end_held(http: Rc<Http>, mut info: ConnectionInfo, held: &HeldConnection, end: &End) {
    // Its rule may be another one than its connection's.
    if let Some(key) = held.key() {
        exchange::resting::note_rule(&http, &mut info, &key.rule);
    }
    let served = ServedConnection::ended(http, info);
    http1::end_held(&served, held.bytes(), &end.reason);
}

/// The verdict on a request that was held, and the request as it came.
type HeldRequest<'a> = (Option<GivenVerdict>, &'a [u8]);

/// A woken connection whose client's first bytes can be read.
struct OpenedConnection<'a> {
    opened: OpenedClient,
    info: ConnectionInfo,
    counted: Counted,
    held: Option<HeldRequest<'a>>,
}

impl OpenedConnection<'_> {
    fn serve(self, http: Rc<Http>) -> Served {
        let Self { opened, mut info, mut counted, held } = self;
        let OpenedClient { mut client, preface, state, exchange } = opened;
        let http2 = info.decided.http2;
        // From here on the client stream counts the buffered bytes.
        counted.set(if http2 { HTTP2_BYTES } else { 0 });
        // The first bytes were counted as bytes to the upstream when they were opened.
        let first = client.plain.len() as u64;
        info.bytes_to_upstream = info.bytes_to_upstream.saturating_sub(first);
        let serving = http.engine.count_task(info.client.ip());
        let counts = ByteCounts::of(&client.bytes_to_client);
        let client_info =
            ClientInfo { info, preface, counts, handle: Rc::downgrade(&client.handle) };
        let rests = exchange.is_some() || state.as_ref().is_some_and(http2::has_streams);
        let served = match rests {
            true => ServedConnection::undecided(http, client_info),
            false => ServedConnection::new(http, client_info),
        };
        if let Some((given, request)) = held {
            client.give_back(request);
            given.into_iter().for_each(|given| served.give_verdict(given));
        }
        let live = (&served.counts.to_upstream, &client.bytes_to_client);
        client.handle.count_live(&served.info, live);
        if !http2 {
            return Box::pin(http1::serve(client, served, serving, exchange));
        }
        Box::pin(http2::serve(client, served, Resumed { state, counted, _task: serving }))
    }
}

/// A connection that is being served.
type Served = Pin<Box<dyn Future<Output = ()>>>;
