//! Finds an upstream connection for a request: a kept one, or a new one. Holds the request while
//! the upstream accepts no connection.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use eyelet_telemetry::reason::Reason;
use eyelet_tls::client::Spoken;

use super::exchange_error::ExchangeError;
use super::failure::Failure;
use super::pool::{HeldRequest, Shelf};
use super::route::Route;
use super::served_connection::{Record, ServedConnection};
use super::stream::Stream;
use super::upstream::Upstream;
use super::upstream::dial::{self, DialFailure, Dialled, spoken};
use super::upstream::request::{NoAnswer, UpstreamRequest};
use super::worker::Http;

/// A route has an HTTP upstream. Other connections are not served here.
const NO_UPSTREAM: Reason = Reason::Internal("no HTTP upstream");

/// Which connection a request may have.
#[derive(Clone, Copy)]
pub struct Want {
    /// Whether a kept connection of HTTP/1.1 will do.
    pub idle: bool,
    /// Whether it may be held for `upstream_wait`.
    pub hold: bool,
}

/// An upstream connection for the request: a kept one, one that another request dials, or a new
/// one.
pub async fn find(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    upstream_request: &UpstreamRequest<'_>,
    want: Want,
    record: &mut Record,
) -> Result<Upstream, Failure> {
    // A reload while the request is held may have changed the upstream.
    let mut newer: Option<(_, Route)> = None;
    let (mut in_vain, mut began) = (None, None);
    let mut held: Option<HeldRequest> = None;
    loop {
        let (worker, route) = match &newer {
            Some((worker, route)) => (worker, route),
            None => (&served.worker, served.route().map_err(Failure::Answer)?),
        };
        let to = route.upstream().ok_or(Failure::Answer(NO_UPSTREAM))?;
        let (shelf, spoken) = (&route.shelf, spoken(to, upstream_request.by_one));
        let in_vain = *in_vain.get_or_insert_with(|| shelf.in_vain());
        if let Some(kept) = shelf.take(upstream_request, want.idle) {
            wake(shelf, held.as_ref());
            return Ok(kept);
        }
        // One deadline for other requests' dials and for its own.
        let give_up_at = *began.get_or_insert_with(Instant::now) + route.wait();
        if spoken != Spoken::One && shelf.is_dialled(in_vain) {
            // A dial has its own timeouts.
            stream.due_in(served.worker.shared.config.limits.connect_timeout + route.wait());
            Box::pin(while_here(stream, shelf.settled())).await?;
            continue;
        }
        let dialled = Box::pin(reach(served, stream, (worker, route), spoken)).await?;
        if dialled.is_ok() {
            wake(shelf, held.as_ref());
        }
        let failure = match dialled {
            Ok(Dialled::One(mut connection)) => {
                // The connection's own route keeps connections to its own upstream only.
                connection.is_single_use = newer.is_some();
                return Ok(Upstream::One(connection));
            }
            Ok(Dialled::Two(connection)) => {
                let asked = connection.ask(upstream_request).map(Box::new).map(Upstream::Two);
                return asked.ok_or_else(|| NoAnswer::Unread.into());
            }
            Err(failure) => failure,
        };
        let is_loop = matches!(failure.reason, Reason::Loop(_));
        let is_late = Instant::now() >= give_up_at || worker.engine.is_draining();
        if held.is_none() && want.hold && !is_loop && !is_late {
            held = shelf.hold();
        }
        let Some(held) = held.as_mut().filter(|_| !is_loop && !is_late) else {
            record.upstream = Some(failure.name.clone());
            served.note_upstream(&failure.name);
            return Err(Failure::Answer(failure.reason));
        };
        Box::pin(while_here(stream, held.wait(give_up_at))).await?;
        newer = served.newer_route().or(newer);
    }
}

/// The upstream accepts connections: wakes the requests that are held for it. After a reload a held
/// request may have its connection from another shelf than those that wait with it.
fn wake(shelf: &Shelf, held: Option<&HeldRequest>) {
    shelf.wake();
    if let Some(held) = held {
        held.wake();
    }
}

/// Waits for a future, while the client is connected.
async fn while_here<T>(
    stream: &mut Stream<'_>,
    wanted: impl Future<Output = T>,
) -> Result<T, ExchangeError> {
    let mut wanted = pin!(wanted);
    poll_fn(|task| match wanted.as_mut().poll(task) {
        Poll::Ready(done) => Poll::Ready(Ok(done)),
        Poll::Pending => stream.poll_closed(task).map(Err),
    })
    .await
}

/// Dials, while the client is connected.
async fn reach(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    (worker, route): (&Http, &Route),
    spoken: Spoken,
) -> Result<Result<Dialled, DialFailure>, Failure> {
    let to = route.upstream().ok_or(Failure::Answer(NO_UPSTREAM))?;
    // The dial has its own timeouts.
    stream.due_in(served.worker.shared.config.limits.connect_timeout + route.wait());
    let dialling = (spoken != Spoken::One).then(|| route.shelf.dials());
    let begins = (spoken, &*served.preface);
    let dialled = dial::dial(&worker.dialler, to, begins, &served.info);
    let dialled = while_here(stream, dialled).await?;
    if let Some(dialling) = dialling {
        dialling.over(dialled.as_ref().ok());
    }
    Ok(dialled)
}
