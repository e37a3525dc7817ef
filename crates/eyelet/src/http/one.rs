//! HTTP/1.1 on a terminated connection: one request after another, and back to the lot when none
//! comes. It must not know how a request is served.

use std::borrow::Cow;
use std::future::poll_fn;
use std::time::Duration;

use http::Method;

use super::exchange::{Done, answer, exchange};
use super::fault::RequestFault;
use super::front::{Front, Record, Telling};
use super::head::{Length, Request, Scanner, take_request};
use super::io::{Client, Gone, Queue, READ_BYTES};
use super::stream::Stream;
use super::upgrade;
use crate::active::Stop;
use eyelet_engine::lot::{LARGE_BYTES, Phase};
use eyelet_engine::park;
use eyelet_engine::relay::Relay;
use eyelet_engine::shed::Serving;
use eyelet_memory::budget::HELLO_BYTES;
use eyelet_telemetry::info::{End, Outcome};

/// How long the task waits for the next request before the connection is parked. A page's next
/// request comes within a round trip or two; parking and waking cost about as much as a request's
/// AEAD.
const AWAKE: Duration = Duration::from_millis(200);

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
    End(Cow<'static, str>),
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
pub async fn serve(mut client: Client, front: Front, _serving: Serving) {
    let (reason, last) = loop {
        match next(&mut client, &front).await {
            Next::Request(request) => {
                let Step { close, done } = step(&mut client, &front, request).await;
                if let Some(upstream) = done.switched {
                    return upgrade::switch(client, front, upstream).await;
                }
                match (done.gone, close) {
                    (true, _) => break ("the last exchange was cut".into(), Last::Cut),
                    (false, true) if front.worker.is_draining() => {
                        break ("drained".into(), Last::Close);
                    }
                    (false, true) => break ("closed after a response".into(), Last::Close),
                    (false, false) => {}
                }
            }
            Next::Rest => return rest(client, front),
            Next::Fault(fault) => {
                refuse(&mut client, &front, fault).await;
                break (format!("request: {fault}").into(), Last::Close);
            }
            Next::End(reason) => break (reason, Last::Close),
            Next::Gone(gone) => break (gone.reason().into(), Last::Cut),
        }
    };
    end(client, front, reason, &last);
}

/// Ends a connection and writes its line.
fn end(mut client: Client, front: Front, reason: Cow<'static, str>, last: &Last) {
    let words = match last {
        Last::Close => client.goodbye(),
        Last::Cut => client.unsent(),
    };
    park::last_words(&client.active, &words);
    let worker = front.worker.clone();
    worker.tell(&front.end(), &End { outcome: Outcome::Terminated, reason });
}

/// Back to the lot, with no upstream and no buffer.
fn rest(client: Client, mut front: Front) {
    let (active, terminated) = client.into_parked(std::mem::take(&mut front.preface));
    let mut story = front.end();
    park::park(&active, &mut story, Relay::Terminate(terminated));
}

async fn next(client: &mut Client, front: &Front) -> Next {
    let http = &front.worker.edge.config.http;
    if client.plain.is_empty() {
        if front.worker.is_draining() {
            return Next::End("drained".into());
        }
        client.active.due_in(AWAKE);
        match poll_fn(|task| client.poll_fill(task, READ_BYTES)).await {
            Ok(0) if client.is_truncated() => {
                return Next::End("client closed without close_notify".into());
            }
            Ok(0) => return Next::End("client closed".into()),
            Ok(_) => {}
            Err(Gone::Stop(Stop::Drained)) => return Next::End("drained".into()),
            Err(Gone::Stop(Stop::Late)) => return Next::Rest,
            Err(gone) => return Next::Gone(gone),
        }
    }
    let (mut scanner, mut is_bounded) = (Scanner::default(), false);
    loop {
        match take_request(&mut client.plain, &mut scanner, http.head_bytes_max) {
            Ok(Some(request)) => {
                front.worker.enters(client.active.key(), Phase::Busy);
                if let Err(shed @ Stop::Shed) = client.active.in_time() {
                    return Next::Gone(shed.into());
                }
                return Next::Request(request);
            }
            Ok(None) => {}
            Err(fault) => return Next::Fault(fault),
        }
        // Most heads are whole when they come, and their exchange has deadlines of its own.
        if !std::mem::replace(&mut is_bounded, true) {
            client.active.due_in(http.head_timeout);
        }
        // Until its head is whole it is one of those that make room for others.
        let is_large = client.plain.len() > LARGE_BYTES;
        let phase = if is_large { Phase::Large } else { Phase::HalfOpen };
        front.worker.enters(client.active.key(), phase);
        if client.plain.len() > HELLO_BYTES && !front.worker.relieve(client.plain.len()) {
            return Next::Gone(Gone::Stop(Stop::Shed));
        }
        match poll_fn(|task| client.poll_fill(task, READ_BYTES)).await {
            Ok(0) => return Next::End("client closed in a request's head".into()),
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
    let close = !keep_alive || front.worker.is_draining();
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
    record.reason = format!("request: {fault}").into();
    // A client that does not read its answer has no other.
    answer(front, &mut stream, fault.status(), &Method::GET, record).await;
    telling.end();
}

/// Writes all of a queue; whether the client took it.
pub async fn send_all(client: &mut Client, queue: &mut Queue) -> Result<(), Gone> {
    poll_fn(|task| client.poll_send(task, queue)).await
}
