//! A request that a hold rule takes: it waits until somebody decides. A connection of HTTP/1.1 is
//! parked meanwhile (`http1/held.rs`). A stream of HTTP/2 waits in its task, beside the others.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Instant;

use eyelet_downstream::client::io::ClientLost;
use eyelet_downstream::client::stream::Stream;
use eyelet_downstream::clock;
use eyelet_downstream::connection::log_entry::RequestLogEntry;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_downstream::connection::served_connection::given_verdict::GivenVerdict;
use eyelet_downstream::connection::served_connection::record::Record;
use eyelet_engine::worker::WaitError;
use eyelet_hold::{HoldKey, HoldPlace};
use eyelet_http1::head_bytes::request_bytes;
use eyelet_telemetry::reason::{HeldEnd, Reason, Shed};
use http::request;

/// The end of the wait of a request.
pub enum Waited {
    /// The wait ended with a verdict, or without one in time.
    Decided(GivenVerdict),
    /// Its connection is parked: it waits on.
    Rests(HoldPlace),
    /// There is nobody to answer, or no time to wait on.
    Over(Reason),
    /// It may not wait.
    Refused(HeldEnd),
}

/// Asks about a request that this connection serves, and waits for the verdict. `connection`
/// may have it already.
pub async fn wait_for_verdict(
    (connection, served): (&ServedConnection, &ServedConnection),
    stream: &mut Stream<'_>,
    request: &request::Parts,
    key: Option<HoldKey>,
) -> Waited {
    let Some(key) = key else { return Waited::Refused(HeldEnd::TooLong) };
    if let Some(given) = connection.take_verdict(&key) {
        return Waited::Decided(given);
    }
    match served.ask(key, request_bytes(&request.headers, &request.uri)) {
        Some(place) => wait(served, stream, request, place).await,
        None => Waited::Refused(HeldEnd::TooMany),
    }
}

/// Waits for a verdict.
async fn wait(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    request: &request::Parts,
    place: HoldPlace,
) -> Waited {
    if place.is_first() && place.decision().is_none() {
        tracing::warn!("{}", place.question().announcement());
    }
    if place.decision().is_none() && stream.may_be_held() {
        return Waited::Rests(place);
    }
    // Its line is written if the task is dropped.
    let mut entry = RequestLogEntry::new(served, Record::new(served, request), stream.sent());
    let (began, timeout) = (clock::now(), served.http.shared.config.hold.timeout);
    // Memory may be short before the time is over.
    let wait = served.progress_wait();
    stream.due_in(wait.min(timeout));
    let waited = poll_fn(|task| {
        if let Poll::Ready(decision) = place.poll_decision(task) {
            return Poll::Ready(Ok(Some(decision)));
        }
        if let Poll::Ready(gone) = stream.poll_closed(task) {
            return Poll::Ready(Err(gone.reason()));
        }
        if stream.poll_ends(task).is_ready() {
            return Poll::Ready(Err(Reason::Drained(None)));
        }
        while let Poll::Ready(late) = stream.poll_late(task) {
            let left = timeout.saturating_sub(clock::since(began));
            match late {
                WaitError::Late if left.is_zero() => return Poll::Ready(Ok(None)),
                WaitError::Late if served.http.engine.process.budget.is_filling(0) => {
                    return Poll::Ready(Err(Reason::Shed(Shed::Stream)));
                }
                WaitError::Late => stream.due_in(wait.min(left)),
                other => return Poll::Ready(Err(ClientLost::Wait(other).reason())),
            }
        }
        Poll::Pending
    });
    let waited = waited.await;
    entry.dismiss();
    match waited {
        Ok(decision) => {
            let key = place.question().key.clone();
            Waited::Decided(GivenVerdict { key, decision, waited_ms: since_ms(began) })
        }
        Err(reason) => Waited::Over(reason),
    }
}

fn since_ms(began: Instant) -> u32 {
    u32::try_from(clock::since(began).as_millis()).unwrap_or(u32::MAX)
}
