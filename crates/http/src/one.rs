//! HTTP/1.1 on a terminated connection: one request after another, and back to the table when none
//! comes. It must not know how a request is served.

use std::future::poll_fn;
use std::time::Duration;

use http::Method;

use super::exchange::{Done, answer, exchange};
use super::fault::RequestFault;
use super::front::{Front, Record, Telling};
use super::head::{Length, Request, Scanner, take_request};
use super::io::{Client, Gone, READ_BYTES};
use super::stream::Stream;
use super::upgrade;
use eyelet_engine::connection_table::{LARGE_BYTES, Phase};
use eyelet_engine::handle::Stop;
use eyelet_engine::park;
use eyelet_engine::relay::Relay;
use eyelet_engine::shed::Serving;
use eyelet_memory::budget::HELLO_BYTES;
use eyelet_telemetry::info::{End, Outcome};
use eyelet_telemetry::reason::{Reason, Stage, When};

/// How long the task waits for the next request before the connection is parked. A page's next
/// request comes within a round trip or two; parking and waking cost about as much as a request's
/// AEAD.
const AWAKE: Duration = Duration::from_millis(200);
/// Where a connection is that has sent the beginning of a request.
const HEAD: When = When::During(Stage::RequestHead);

/// What comes next on a connection.
// To move the largest costs less than a box for each request.
#[allow(clippy::large_enum_variant)]
enum Next {
    Request(Request),
    /// Nothing, for now.
    Rest,
    /// What came is no request.
    Fault(RequestFault),
    /// Nothing more.
    End(Reason),
    /// The client is gone.
    Gone(Gone),
}

/// How a connection ends.
enum Last {
    /// close_notify, and what is unread is drained.
    Close,
    /// Without close_notify: what was sent is not whole.
    Cut,
}

/// Serves a connection until it is at rest, or has ended.
pub async fn serve(mut client: Client, mut front: Front, _serving: Serving) {
    let (reason, last) = loop {
        match next(&mut client, &front).await {
            Next::Request(request) => {
                if let Some(newer) = front.reloaded(|| client.handle.local_address()) {
                    front = newer;
                }
                let Step { close, done } = step(&mut client, &front, request).await;
                if let Some(upstream) = done.switched {
                    return upgrade::switch(client, front, upstream).await;
                }
                match (done.gone, close) {
                    (true, _) => break (Reason::Cut, Last::Cut),
                    (false, true) if front.worker.engine.is_draining() => {
                        break (Reason::Drained(None), Last::Close);
                    }
                    (false, true) if front.is_gone() => break (Reason::RuleGone, Last::Close),
                    (false, true) => break (Reason::ClosedAfterResponse, Last::Close),
                    (false, false) => {}
                }
            }
            Next::Rest => return rest(client, front),
            Next::Fault(fault) => {
                refuse(&mut client, &front, fault).await;
                break (fault.into(), Last::Close);
            }
            Next::End(reason) => break (reason, Last::Close),
            Next::Gone(gone) => break (gone.reason(), Last::Cut),
        }
    };
    end(client, front, reason, &last);
}

/// Ends a connection and writes its line.
fn end(mut client: Client, front: Front, reason: Reason, last: &Last) {
    let words = match last {
        Last::Close => client.goodbye(),
        Last::Cut => client.unsent(),
    };
    park::close_with(&client.handle, &words);
    let worker = front.worker.clone();
    worker.engine.emit(&front.end(), &End { outcome: Outcome::Terminated, reason });
}

/// Back to the table, with no upstream and no buffer.
fn rest(client: Client, mut front: Front) {
    let (handle, terminated) = client.into_parked(std::mem::take(&mut front.preface));
    let mut info = front.end();
    park::park(&handle, &mut info, Relay::Terminate(terminated));
}

async fn next(client: &mut Client, front: &Front) -> Next {
    let http = &front.worker.shared.config.http;
    if client.plain.is_empty() {
        if front.worker.engine.is_draining() {
            return Next::End(Reason::Drained(None));
        }
        client.handle.due_in(AWAKE);
        match poll_fn(|task| client.poll_fill(task, READ_BYTES)).await {
            Ok(0) if client.is_truncated() => {
                return Next::End(Reason::Truncated);
            }
            Ok(0) => return Next::End(Reason::ClientClosed(None)),
            Ok(_) => {}
            Err(Gone::Stop(Stop::Drained)) => return Next::End(Reason::Drained(None)),
            Err(Gone::Stop(Stop::Late)) => return Next::Rest,
            Err(gone) => return Next::Gone(gone),
        }
    }
    let (mut scanner, mut is_bounded) = (Scanner::default(), false);
    loop {
        match take_request(&mut client.plain, &mut scanner, http.head_bytes_max) {
            Ok(Some(request)) => {
                front.worker.engine.enters(client.handle.key(), Phase::Busy);
                if let Err(shed @ Stop::Shed) = client.handle.in_time() {
                    return Next::Gone(shed.into());
                }
                return Next::Request(request);
            }
            Ok(None) => {}
            Err(fault) => return Next::Fault(fault),
        }
        // Most heads are whole when they come, and their exchange has deadlines of its own.
        if !std::mem::replace(&mut is_bounded, true) {
            client.handle.due_in(http.head_timeout);
        }
        // Until its head is whole it is one of those that make room for others.
        let is_large = client.plain.len() > LARGE_BYTES;
        let phase = if is_large { Phase::Large } else { Phase::HalfOpen };
        front.worker.engine.enters(client.handle.key(), phase);
        if client.plain.len() > HELLO_BYTES && !front.worker.engine.relieve(client.plain.len()) {
            return Next::Gone(Gone::Stop(Stop::Shed));
        }
        match poll_fn(|task| client.poll_fill(task, READ_BYTES)).await {
            Ok(0) => return Next::End(Reason::ClientClosed(Some(HEAD))),
            Ok(_) => {}
            Err(Gone::Stop(Stop::Late)) => return Next::Fault(RequestFault::SlowHead),
            Err(gone) => return Next::Gone(gone),
        }
    }
}

struct Step {
    close: bool,
    done: Done,
}

async fn step(client: &mut Client, front: &Front, request: Request) -> Step {
    let Request { parts, length, keep_alive } = request;
    let close = !keep_alive || front.worker.engine.is_draining() || front.is_gone();
    let mut stream = Stream::one(client, length, parts.version, close);
    // Not boxed: it is larger than what the allocator has at hand, and a box a request costs more
    // than the memory while the connection is awake.
    let done = exchange(front, &mut stream, parts, length).await;
    let close = stream.as_one().is_none_or(|one| one.close);
    Step { close, done }
}

/// Answers what is no request.
async fn refuse(client: &mut Client, front: &Front, fault: RequestFault) {
    let mut stream = Stream::one(client, Length::Empty, http::Version::HTTP_11, true);
    let mut telling = Telling::new(front, Record::of(front, &Method::GET, ""), stream.sent());
    let record = &mut telling.record;
    record.told.method = "".into();
    record.failed = true;
    record.reason = fault.into();
    // A client that does not read its answer has no other.
    answer(front, &mut stream, fault.status(), &Method::GET, record).await;
    telling.end();
}
