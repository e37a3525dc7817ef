//! One stream of an HTTP/2 connection from its request to the end of its response: the task that
//! serves it.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use crate::exchange::end::HeldRest;
use crate::exchange::rest::{ResumedExchange, resume};
use crate::exchange::resting::by_hold;
use crate::exchange::serve::{RequestRefusal, exchange, refuse};
use eyelet_downstream::client::head::{AskedRequest, asks_for_websocket};
use eyelet_downstream::client::http2::Http2Stream;
use eyelet_downstream::client::resting_stream::RestingStream;
use eyelet_downstream::client::stream::Stream;
use eyelet_downstream::clock;
use eyelet_downstream::connection::reason::request_reason;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_downstream::connection::served_connection::record::Record;
use eyelet_resting::RestingState;
use eyelet_resting::timeout::RestTimeout;

/// The time for which the rest of a request's body is discarded after the answer, and the one for
/// which no byte of it may come. On a slow line a client needs that long to notice the answer. The
/// stream's memory is held meanwhile.
const REST_WAIT: Duration = Duration::from_secs(30);
const REST_SILENCE: Duration = Duration::from_secs(5);

/// Serves a request, or refuses it if it is malformed.
pub async fn serve_stream(served: &ServedConnection, asked: &mut AskedRequest, two: Http2Stream) {
    let AskedRequest { parts, length, fault } = asked;
    if let Some(reason) = two.runs() {
        let mut record = Record::new(served, parts);
        record.began_before(two.waited_ms());
        record.failed = true;
        record.reason = reason;
        let by_hold = two.held_by().map(|rule| by_hold(served, rule));
        return by_hold.as_ref().unwrap_or(served).emit(&record);
    }
    let is_websocket = asks_for_websocket(parts);
    if fault.is_some() {
        // Counts like a reset, as it is as cheap for its sender.
        two.count_malformed();
    }
    let mut stream = Stream::Http2(two);
    let client_lost = match fault {
        None => {
            let end = exchange(served, &mut stream, parts, *length).await;
            match (end.resting, end.held.map(|held| *held)) {
                (Some(resting), _) => return leave(stream, resting.into_stream()),
                (None, Some(HeldRest::Stream(resting))) => return leave(stream, resting),
                (None, None | Some(HeldRest::Connection(_))) => {}
            }
            end.client_lost
        }
        Some(fault) => {
            let refusal = RequestRefusal { status: fault.status(), reason: request_reason(*fault) };
            !Box::pin(refuse(served, &mut stream, Some(parts), refusal)).await
        }
    };
    if !client_lost && !is_websocket {
        drop_rest(served, &mut stream).await;
    }
}

/// Goes on with an exchange that rested.
pub async fn go_on(served: &ServedConnection, resumed: ResumedExchange, two: Http2Stream) {
    let is_websocket = matches!(resumed.exchange.state, RestingState::WebSocket(_));
    let mut stream = Stream::Http2(two);
    let end = resume(served, &mut stream, resumed).await;
    if let Some(resting) = end.resting {
        return leave(stream, resting.into_stream());
    }
    if !end.client_lost && !is_websocket {
        drop_rest(served, &mut stream).await;
    }
}

/// Leaves what rests of an exchange with its connection.
fn leave(stream: Stream<'_>, resting: RestingStream) {
    if let Stream::Http2(two) = stream {
        two.leave(resting);
    }
}

/// Reads and discards the rest of a request's body after its response has ended. Dropping the
/// stream would reset it (NO_ERROR), and clients then lose the answer.
async fn drop_rest(served: &ServedConnection, stream: &mut Stream<'_>) {
    if stream.is_request_done() {
        return;
    }
    stream.refuse_rest();
    let began = clock::now();
    let (mut moved, mut before) = (began, stream.dropped());
    let progress_wait = served.progress_wait().min(REST_SILENCE);
    stream.due_in(progress_wait);
    poll_fn(|task| {
        // Scarce memory is for requests without an answer yet.
        if stream.poll_rest(task).is_ready() || served.http.engine.process.budget.is_tight(0) {
            return Poll::Ready(());
        }
        if stream.dropped() != before {
            (moved, before) = (clock::now(), stream.dropped());
        }
        while stream.poll_late(task).is_ready() {
            let over = clock::since(began) >= REST_WAIT || clock::since(moved) >= REST_SILENCE;
            if over || served.gives_up(moved, RestTimeout::Body).is_some() {
                return Poll::Ready(());
            }
            stream.due_in(progress_wait);
        }
        Poll::Pending
    })
    .await;
}
