//! HTTP/1.1 on a terminated connection: serves one request after another, and parks the connection
//! when no more arrive.

mod held;
mod resting;

pub use held::end_held;
pub use resting::{
    end_resting, has_switched, has_tls, is_exchange, is_shared, last_bytes, last_for_upstream,
    rest_wait, resting_exchange, resting_kind, resting_request,
};

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use self::held::park_held;
use crate::exchange::end::{ExchangeEnd, HeldRest};
use crate::exchange::serve::{RequestRefusal, exchange, refuse as refuse_request};
use crate::exchange::switched;
use eyelet_downstream::client::ahead::{AskedAhead, Pipeline};
use eyelet_downstream::client::io::{ClientLost, ClientStream, READ_BYTES};
use eyelet_downstream::client::stream::Stream;
use eyelet_downstream::connection::reason::request_reason;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_downstream::connection::worker::Http;
use eyelet_engine::park;
use eyelet_engine::shedding::CountedTask;
use eyelet_engine::table::{LARGE_BYTES, Phase};
use eyelet_engine::worker::WaitError;
use eyelet_http1::fault::RequestFault;
use eyelet_http1::head::{Length, Request, Scanner};
use eyelet_memory::budget::HELLO_BYTES;
use eyelet_memory::wiped::WipedBytes;
use eyelet_telemetry::info::End;
use eyelet_telemetry::reason::{Reason, Stage, When};

/// The stage of a connection that has sent part of a head.
const HEAD: When = When::During(Stage::RequestHead);

/// The next event of a connection.
pub enum NextRequest {
    /// A request, which was read.
    Request,
    /// No request for now.
    Rest,
    /// An invalid request.
    Fault(RequestFault),
    /// The connection ends.
    End(Reason),
    /// The connection to the client is lost.
    ClientLost(ClientLost),
}

/// The way in which a connection ends.
enum Last {
    /// By close_notify; unread bytes are drained.
    Close,
    /// Without close_notify: the last response is truncated.
    Cut,
}

/// Serves a connection until it is parked or has ended.
///
/// `exchange` is one that rested: it goes on first.
pub async fn serve(
    mut client: ClientStream,
    mut served: ServedConnection,
    _task: CountedTask,
    mut exchange: Option<WipedBytes>,
) {
    let (mut pipeline, mut request) = (Pipeline::default(), Request::empty());
    let (reason, last) = loop {
        if let Some(exchange) = exchange.take() {
            let exchange = match resting::read(&exchange) {
                Some((_, exchange)) if exchange.state.has_switched() => {
                    let idle = client.handle.idle();
                    let resumed = Box::pin(switched::resume(client, served, exchange, idle));
                    return resumed.await.map_or((), |rests| resting::rest_switched(*rests));
                }
                exchange => exchange,
            };
            let go_on = resting::go_on(&mut client, &mut served, exchange);
            let (mut done, close) = Box::pin(go_on).await;
            if let Some(resting) = done.resting.take() {
                return resting::rest(client, served, *resting);
            }
            served = served.decided();
            match (Step { close, done }).end(&served) {
                Some(end) => break end,
                None => continue,
            }
        }
        let (mut asked, wait) = (None, served.rule.intermediary.awake());
        let next = match pipeline.pop() {
            Some(waiting) => {
                (request, asked) = (waiting.request, waiting.asked);
                in_turn(&client)
            }
            None => next(&mut client, &served.http, wait, &mut request).await,
        };
        match next {
            NextRequest::Request => {
                if let Some(newer) = served.reloaded() {
                    (served, asked) = (newer, None);
                    pipeline.forget_asked();
                }
                pipeline.begin(&request);
                let ahead = Ahead { pipeline: &mut pipeline, asked };
                let mut step = step(&mut client, &served, &mut request, ahead).await;
                step.pass_rule(&mut served);
                if let Some(switched) = step.done.switched.take() {
                    let switched = switched::switch(client, served, switched).await;
                    return switched.map_or((), |rests| resting::rest_switched(*rests));
                }
                if step.done.waits() {
                    return leave(client, served, &request, step.done);
                }
                if let Some(end) = step.end(&served) {
                    break end;
                }
                request.give_back();
            }
            NextRequest::Rest => return rest(client, served),
            NextRequest::Fault(fault) => {
                refuse(&mut client, &served, fault).await;
                break (request_reason(fault), Last::Close);
            }
            NextRequest::End(reason) => break (reason, Last::Close),
            NextRequest::ClientLost(client_lost) => break (client_lost.reason(), Last::Cut),
        }
    };
    pipeline.end(&served, &reason);
    end(client, served, reason, &last);
}

/// Parks a connection whose exchange rests, or whose request is held.
fn leave(client: ClientStream, served: ServedConnection, request: &Request, done: ExchangeEnd) {
    match (done.resting, done.held) {
        (Some(resting), _) => resting::rest(client, served, *resting),
        (None, Some(held)) => {
            if let HeldRest::Connection(place) = *held {
                park_held(client, served, request, place);
            }
        }
        // It has neither, and ends here.
        (None, None) => {}
    }
}

/// The turn of a request that was read before has come.
fn in_turn(client: &ClientStream) -> NextRequest {
    match client.handle.in_time() {
        Err(shed @ WaitError::Shed) => NextRequest::ClientLost(shed.into()),
        _ => NextRequest::Request,
    }
}

/// Ends a connection and writes its line.
fn end(mut client: ClientStream, served: ServedConnection, reason: Reason, last: &Last) {
    let words = match last {
        Last::Close => client.close_notify(),
        Last::Cut => client.unsent(),
    };
    park::close_with(&client.handle, &words);
    let http = served.http.clone();
    let outcome = served.outcome();
    http.engine.emit(&served.end(), &End { outcome, reason });
}

/// Parks the connection, without an upstream or a buffer.
fn rest(client: ClientStream, mut served: ServedConnection) {
    let (handle, relay) = client.into_parked(std::mem::take(&mut served.preface), None);
    let mut info = served.end();
    park::park(&handle, &mut info, relay);
}

/// Waits for a request, for so long. It is read in the place of an earlier one.
pub async fn next(
    client: &mut ClientStream,
    http: &Http,
    wait: Duration,
    request: &mut Request,
) -> NextRequest {
    let (config, engine) = (&http.shared.config.http, &http.engine);
    if client.plain.is_empty() {
        if engine.is_draining() {
            return NextRequest::End(Reason::Drained(None));
        }
        client.handle.due_in(wait);
        let filled = poll_fn(|task| match client.poll_fill(task, READ_BYTES) {
            Poll::Pending if client.handle.is_to_end() => {
                Poll::Ready(Err(ClientLost::Wait(WaitError::Drained)))
            }
            // Only a parked connection can leave for another process.
            Poll::Pending if engine.is_leaving() => {
                Poll::Ready(Err(ClientLost::Wait(WaitError::Late)))
            }
            filled => filled,
        });
        match filled.await {
            Ok(0) if client.is_truncated() => {
                return NextRequest::End(Reason::Truncated);
            }
            Ok(0) => return NextRequest::End(Reason::ClientClosed(None)),
            Ok(_) => {}
            Err(ClientLost::Wait(WaitError::Drained)) => {
                return NextRequest::End(Reason::Drained(None));
            }
            Err(ClientLost::Wait(WaitError::Ended)) => return NextRequest::End(Reason::Ended),
            Err(ClientLost::Wait(WaitError::Late)) => return NextRequest::Rest,
            Err(client_lost) => return NextRequest::ClientLost(client_lost),
        }
    }
    let (mut scanner, mut is_bounded) = (Scanner::default(), false);
    loop {
        match request.take(&mut client.plain, &mut scanner, config.head_bytes_max) {
            Ok(true) => {
                engine.enters(client.handle.key(), Phase::Busy);
                if let Err(shed @ WaitError::Shed) = client.handle.in_time() {
                    return NextRequest::ClientLost(shed.into());
                }
                return NextRequest::Request;
            }
            Ok(false) => {}
            Err(fault) => return NextRequest::Fault(fault),
        }
        // Most heads arrive whole, and their exchange sets its own deadlines.
        if !std::mem::replace(&mut is_bounded, true) {
            client.handle.due_in(config.head_timeout);
        }
        // Until its head is complete the connection can be shed as half-open.
        let is_large = client.plain.len() > LARGE_BYTES;
        let phase = if is_large { Phase::Large } else { Phase::HalfOpen };
        engine.enters(client.handle.key(), phase);
        if client.plain.len() > HELLO_BYTES && !engine.relieve(client.plain.len()) {
            return NextRequest::ClientLost(ClientLost::Wait(WaitError::Shed));
        }
        match poll_fn(|task| client.poll_fill(task, READ_BYTES)).await {
            Ok(0) => return NextRequest::End(Reason::ClientClosed(Some(HEAD))),
            Ok(_) => {}
            Err(ClientLost::Wait(WaitError::Late)) => {
                return NextRequest::Fault(RequestFault::SlowHead);
            }
            Err(client_lost) => return NextRequest::ClientLost(client_lost),
        }
    }
}

/// Requests that the client has pipelined behind one, and what was asked of it before its turn.
struct Ahead<'a> {
    pipeline: &'a mut Pipeline,
    asked: Option<Box<AskedAhead>>,
}

struct Step {
    close: bool,
    done: ExchangeEnd,
}

impl Step {
    /// Has the connection go on by the rule of an exchange that is not over.
    fn pass_rule(&mut self, served: &mut ServedConnection) {
        if let Some(other) = self.done.by_rule.take()
            && (self.done.switched.is_some() || self.done.resting.is_some())
        {
            served.go_on_as(&other);
        }
    }

    /// Returns how the connection ends now, if it does.
    fn end(&self, served: &ServedConnection) -> Option<(Reason, Last)> {
        if self.done.client_lost {
            return Some((Reason::Cut, Last::Cut));
        }
        let why = || served.why_last().unwrap_or(Reason::ClosedAfterResponse);
        self.close.then(|| (why(), Last::Close))
    }
}

async fn step(
    client: &mut ClientStream,
    served: &ServedConnection,
    request: &mut Request,
    Ahead { pipeline, asked }: Ahead<'_>,
) -> Step {
    let Request { parts, length, keep_alive, roles, .. } = request;
    let length = *length;
    let close = !*keep_alive || served.is_last();
    let mut stream = Stream::one(client, length, parts.version, close);
    stream.note_roles(*roles);
    stream.has_asked(asked, (pipeline, served));
    // Not boxed: the box would exceed what the allocator caches, and allocating it for each request
    // costs more than the memory while the connection is awake.
    let done = exchange(served, &mut stream, parts, length).await;
    let close = stream.as_http1().is_none_or(|one| one.close);
    Step { close, done }
}

/// Answers an invalid request.
pub async fn refuse(client: &mut ClientStream, served: &ServedConnection, fault: RequestFault) {
    let mut stream = Stream::one(client, Length::Empty, http::Version::HTTP_11, true);
    let refusal = RequestRefusal { status: fault.status(), reason: request_reason(fault) };
    // The result is dropped: a client that does not read this gets no other answer.
    refuse_request(served, &mut stream, None, refusal).await;
}
