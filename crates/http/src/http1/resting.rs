//! A connection of HTTP/1.1 in the middle of an exchange that rests: it is parked with both
//! sockets, and the exchange is packed bytes. Before them stands the client's side.

use std::time::{Duration, Instant};

use crate::exchange::end::ExchangeEnd;
use crate::exchange::rest::{ResumedExchange, resume};
use crate::exchange::resting::{Resting, RestingSocket};
use eyelet_downstream::client::clock::ms;
use eyelet_downstream::client::io::ClientStream;
use eyelet_downstream::client::resting_client::{RestingClient, RestingClock};
use eyelet_downstream::client::stream::Stream;
use eyelet_downstream::connection::resting::RestingExchange;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_engine::park;
use eyelet_telemetry::upstream::CountedAt;

/// Parks a connection whose exchange rests.
pub fn rest(client: ClientStream, mut served: ServedConnection, resting: Resting) {
    let (mut rested, idle) = (resting.client, resting.since.elapsed());
    // The engine has one timeout for all exchanges, and this one may have another.
    let timeout = served.worker.shared.config.http.body_timeout;
    let mut noted = idle;
    if resting.idle_max != timeout {
        noted = timeout.saturating_sub(resting.idle_max.saturating_sub(idle));
        rested.clock = Some(RestingClock { idle_ms: ms(idle), noted_ms: ms(noted) });
    }
    let mut form = Vec::new();
    rested.pack(&mut form);
    let RestingSocket { socket, open } = resting.pack(&mut form);
    client.handle.set_connected(socket);
    client.handle.note_idle(noted);
    let preface = std::mem::take(&mut served.preface);
    let (handle, relay) = client.into_resting(preface, form.into_boxed_slice());
    let mut info = served.end();
    info.decided.counted_at = CountedAt::resting(open);
    park::park(&handle, &mut info, relay);
}

/// Goes on with the exchange of a connection that has woken. Returns its result, and whether the
/// connection ends behind it.
pub async fn go_on(
    client: &mut ClientStream,
    served: &mut ServedConnection,
    form: &[u8],
) -> (ExchangeEnd, bool) {
    let open = served.info.decided.counted_at.take().map(CountedAt::resumed).unwrap_or_default();
    let name = served.info.decided.upstream.as_ref();
    let name = name.map(|name| name.to_text()).unwrap_or_default().into();
    let (Some(socket), Some((rested, exchange))) = (client.handle.take_upstream(), read(form))
    else {
        return none();
    };
    let now = Instant::now();
    let since = now.checked_sub(idle(client, &rested)).unwrap_or(now);
    if !exchange.state.is_answered() {
        served.find_route(|| client.handle.local_address());
    }
    let Some(mut stream) = Stream::resumed(client, &rested) else { return none() };
    let kept = RestingSocket { socket, open };
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

/// How long nothing of an exchange has moved.
fn idle(client: &ClientStream, rested: &RestingClient) -> Duration {
    let counted = client.handle.idle();
    match rested.clock {
        None => counted,
        Some(RestingClock { idle_ms, noted_ms }) => {
            let slept = counted.saturating_sub(Duration::from_millis(noted_ms));
            slept.saturating_add(Duration::from_millis(idle_ms))
        }
    }
}

/// True if these bytes are the exchange of a connection of HTTP/1.1.
pub fn is_exchange(form: &[u8]) -> bool {
    read(form).is_some()
}

/// Reads the client's side and the exchange, which agree on the request's end.
fn read(form: &[u8]) -> Option<(RestingClient, RestingExchange)> {
    let (client, exchange) = RestingClient::unpack(form)?;
    let exchange = RestingExchange::unpack(exchange)?;
    let is_of_http1 = client.body.is_none() == exchange.state.is_request_done();
    is_of_http1.then_some((client, exchange))
}
