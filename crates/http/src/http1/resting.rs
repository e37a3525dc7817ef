//! A connection of HTTP/1.1 in the middle of an exchange that rests: it is parked with both
//! sockets, and the exchange is packed bytes. Before them stands how the client's side is framed.

use std::time::Instant;

use crate::exchange::end::ExchangeEnd;
use crate::exchange::rest::{ResumedExchange, resume};
use crate::exchange::resting::{Resting, RestingSocket};
use eyelet_downstream::client::io::ClientStream;
use eyelet_downstream::client::stream::Stream;
use eyelet_downstream::connection::resting::RestingExchange;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_engine::park;
use eyelet_http1::body::Encoder;
use eyelet_telemetry::upstream::CountedAt;

/// Bits of the first byte: the response is sent in chunks, and the connection ends behind it.
const CHUNKED: u8 = 1;
const CLOSES: u8 = 2;

/// Parks a connection whose exchange rests.
pub fn rest(client: ClientStream, mut served: ServedConnection, resting: Resting) {
    let (encoder, closes) = resting.client;
    let chunked = if encoder == Encoder::Chunked { CHUNKED } else { 0 };
    let mut form = vec![chunked | if closes { CLOSES } else { 0 }];
    let idle = resting.since.elapsed();
    let RestingSocket { socket, open } = resting.pack(&mut form);
    client.handle.set_connected(socket);
    client.handle.note_idle(idle);
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
    let since = Instant::now().checked_sub(client.handle.idle()).unwrap_or_else(Instant::now);
    let (Some(socket), Some((framed, exchange))) = (client.handle.take_upstream(), read(form))
    else {
        tracing::error!("internal error: an exchange at rest is none, and is closed");
        return (ExchangeEnd { client_lost: true, ..ExchangeEnd::default() }, true);
    };
    let mut stream = Stream::resumed(client, framed);
    let kept = RestingSocket { socket, open };
    let resumed = ResumedExchange { exchange, kept, name, since };
    let done = resume(served, &mut stream, resumed).await;
    let close = stream.as_http1().is_none_or(|one| one.close);
    (done, close)
}

/// True if these bytes are the exchange of a connection of HTTP/1.1.
pub fn is_exchange(form: &[u8]) -> bool {
    read(form).is_some()
}

fn read(form: &[u8]) -> Option<((Encoder, bool), RestingExchange)> {
    let (framed, exchange) = form.split_first()?;
    let encoder = if framed & CHUNKED == 0 { Encoder::Plain } else { Encoder::Chunked };
    let is_framed = framed & !(CHUNKED | CLOSES) == 0;
    let framed = (encoder, framed & CLOSES != 0);
    is_framed.then_some((framed, RestingExchange::unpack(exchange)?))
}
