//! A connection of HTTP/1.1 in the middle of an exchange that rests: it is parked with both
//! sockets, and the exchange is packed bytes. Before them stands the client's side.

use std::time::Duration;

use crate::exchange::end::ExchangeEnd;
use crate::exchange::rest::{ResumedExchange, resume};
use crate::exchange::resting::shared::{give_shared, take_shared};
use crate::exchange::resting::{KeptUpstream, Resting, end_rested};
use crate::exchange::switched::SwitchedAtRest;
use eyelet_downstream::client::io::ClientStream;
use eyelet_downstream::client::resting_client::RestingClient;
use eyelet_downstream::client::stream::Stream;
use eyelet_downstream::clock;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_engine::park;
use eyelet_engine::worker::Settings;
use eyelet_resting::kind::{kind_of, listed};
use eyelet_resting::timeout::RestTimeout;
use eyelet_resting::{KeptConnection, RestingExchange, RestingState, end};
use eyelet_telemetry::listing::ListedRequest;
use eyelet_telemetry::listing::streams::StreamKind;
use eyelet_telemetry::reason::Reason;
use eyelet_telemetry::upstream::CountedAt;
use eyelet_upstream::RestingUpstream;
use eyelet_wire::websocket::CLOSE_TO_CLIENT;
use zeroize::Zeroizing;

/// Parks a connection whose exchange rests.
pub fn rest(client: ClientStream, mut served: ServedConnection, resting: Resting) {
    let (mut form, idle) = (Zeroizing::new(Vec::new()), clock::since(resting.since));
    resting.client.pack(&mut form);
    let KeptUpstream { upstream, open } = resting.pack(&mut form);
    served.info.decided.counted_at = CountedAt::resting(open);
    LeftExchange { upstream, idle, form }.park(client, served);
}

/// Parks a connection that has switched protocols.
pub fn rest_switched(resting: SwitchedAtRest) {
    let SwitchedAtRest { client, served, socket, exchange, since } = resting;
    let (mut form, idle) = (Zeroizing::new(Vec::new()), clock::since(since));
    RestingClient::default().pack(&mut form);
    exchange.pack(&mut form);
    LeftExchange { upstream: RestingUpstream::Socket(socket), idle, form }.park(client, served);
}

/// An exchange that its task leaves to its connection.
struct LeftExchange {
    upstream: RestingUpstream,
    /// The time for which nothing has moved.
    idle: Duration,
    /// Its packed form, behind the client's side.
    form: Zeroizing<Vec<u8>>,
}

impl LeftExchange {
    /// Parks its connection.
    fn park(self, client: ClientStream, mut served: ServedConnection) {
        match self.upstream {
            RestingUpstream::Socket(socket) => client.handle.set_connected(socket),
            RestingUpstream::Shared(two) => give_shared(&client.handle, vec![*two]),
        }
        client.handle.note_idle(self.idle);
        let preface = std::mem::take(&mut served.preface);
        let (handle, relay) = client.into_resting(preface, &self.form);
        let mut info = served.end();
        park::park(&handle, &mut info, relay);
    }
}

/// Goes on with the exchange of a connection that has woken. Returns its result, and whether the
/// connection ends behind it.
pub async fn go_on(
    client: &mut ClientStream,
    served: &mut ServedConnection,
    exchange: Option<(RestingClient, RestingExchange)>,
) -> (ExchangeEnd, bool) {
    let open = served.info.decided.counted_at.take().map(CountedAt::resumed).unwrap_or_default();
    let name = served.info.decided.upstream.as_ref();
    let name = name.map(|name| name.to_text()).unwrap_or_default().into();
    let shared = take_shared(&client.handle).pop().map(Box::new).map(RestingUpstream::Shared);
    let own = || client.handle.take_upstream().map(RestingUpstream::Socket);
    let (Some(upstream), Some((rested, exchange))) = (shared.or_else(own), exchange) else {
        return none();
    };
    let now = clock::now();
    let since = now.checked_sub(client.handle.idle()).unwrap_or(now);
    if !exchange.state.is_answered() {
        served.find_route();
    }
    let Some(mut stream) = Stream::resumed(client, &rested) else { return none() };
    let kept = KeptUpstream { upstream, open };
    let resumed = ResumedExchange { exchange, kept, name, since };
    let done = resume(served, &mut stream, resumed).await;
    let close = stream.as_http1().is_none_or(|one| one.close);
    (done, close)
}

/// Ends a connection whose exchange cannot be read.
fn none() -> (ExchangeEnd, bool) {
    tracing::error!("internal error: an exchange at rest is none, and is closed");
    (ExchangeEnd { client_lost: true, ..ExchangeEnd::default() }, true)
}

/// Bytes for the client of a connection whose exchange ends where it rests: a close frame of a
/// WebSocket. Nothing ends a response that is cut.
pub fn last_bytes(form: &[u8]) -> Vec<u8> {
    let exchange = RestingClient::unpack(form).filter(|(_, form)| end::takes_close_frame(form));
    exchange.map(|_| CLOSE_TO_CLIENT.to_vec()).unwrap_or_default()
}

/// The last bytes for the upstream of such an exchange.
pub fn last_for_upstream(form: &[u8]) -> Vec<u8> {
    let exchange = RestingClient::unpack(form);
    exchange.map(|(_, form)| end::last_for_upstream(form)).unwrap_or_default()
}

/// True if TLS goes to the upstream of an exchange.
pub fn has_tls(form: &[u8]) -> bool {
    RestingClient::unpack(form).is_some_and(|(_, exchange)| eyelet_resting::has_tls(exchange))
}

/// True if an exchange is on a stream of an upstream connection that others share.
pub fn is_shared(form: &[u8]) -> bool {
    let exchange = RestingClient::unpack(form);
    exchange.is_some_and(|(_, exchange)| RestingExchange::is_shared(exchange))
}

/// Returns how long nothing of an exchange may move. `None`: it is none.
pub fn rest_wait(form: &[u8], settings: &Settings) -> Option<Duration> {
    let (_, exchange) = RestingClient::unpack(form)?;
    Some(RestTimeout::of(exchange)?.by(settings))
}

/// Writes the access line of an exchange whose connection has ended while it was parked.
pub fn end_resting(served: &ServedConnection, form: &[u8], reason: &Reason) {
    let exchange = RestingClient::unpack(form).map_or(&[][..], |(_, exchange)| exchange);
    end_rested(served, exchange, None, reason.clone());
}

/// True if these bytes are what rests of a connection that has switched protocols.
pub fn has_switched(form: &[u8]) -> bool {
    read(form).is_some_and(|(_, exchange)| exchange.state.has_switched())
}

/// The kind of the exchange in these bytes.
pub fn resting_kind(form: &[u8]) -> Option<StreamKind> {
    kind_of(RestingClient::unpack(form)?.1)
}

/// The exchange in these bytes, as a list shows it.
pub fn resting_request(form: &[u8]) -> Option<ListedRequest> {
    listed(RestingClient::unpack(form)?.1, None)
}

/// True if these bytes are the exchange of a connection of HTTP/1.1, with an upstream socket or on
/// an upstream connection that others share.
pub fn is_exchange(form: &[u8], is_shared: bool) -> bool {
    resting_exchange(form).is_some_and(|exchange| {
        matches!(exchange.connection, KeptConnection::Shared(_)) == is_shared
    })
}

/// Reads the exchange.
pub fn resting_exchange(form: &[u8]) -> Option<RestingExchange> {
    read(form).map(|(_, exchange)| exchange)
}

/// Reads the client's side and the exchange, which agree on the request's end. A WebSocket has
/// switched protocols.
pub fn read(form: &[u8]) -> Option<(RestingClient, RestingExchange)> {
    let (client, exchange) = RestingClient::unpack(form)?;
    let exchange = RestingExchange::unpack(exchange)?;
    let is_of_http1 = client.body.is_none() == exchange.state.is_request_done()
        && !matches!(exchange.state, RestingState::WebSocket(_) | RestingState::Held(_));
    is_of_http1.then_some((client, exchange))
}
