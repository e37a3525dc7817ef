//! HTTP/2 on a terminated connection: one task for the connection, and one for each stream.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use http::header;
use http::uri::{Authority, Scheme};
use http::{Request, Uri, request};

use super::exchange::{answer, exchange};
use super::fault::RequestFault;
use super::fields;
use super::head::{Length, NoLength, TARGET_BYTES_MAX, content_length, read_authority};
use super::io::{ClientLost, ClientStream};
use super::load::Load;
use super::reason::http2;
use super::room;
use super::served_connection::{Record, RequestLogEntry, ServedConnection};
use super::stream::{SEND_BYTES_MAX, Stream};
use super::websocket;
use eyelet_engine::connection_table::Phase;
use eyelet_engine::handle::WaitError;
use eyelet_engine::park;
use eyelet_engine::shed::Serving;
use eyelet_engine::worker::Handle;
use eyelet_memory::budget::{Counted, HELLO_BYTES, STREAM_BYTES};
use eyelet_telemetry::info::{End, Outcome};
use eyelet_telemetry::reason::{Limit, Peer, Reason, Shed, StreamFlood};

/// Concurrent streams: the least that RFC 9113 6.5.2 recommends.
const STREAMS_MAX: u32 = 100;
/// Bytes that the client may send ahead on one stream, and on all streams together.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
/// Streams that the client reset before they were served. More are the rapid-reset flood
/// (CVE-2023-44487), and the connection ends. The library's own limit counts unaccepted streams,
/// but each is accepted before the next is read.
const RESETS_PENDING_MAX: usize = 20;
/// Streams that we reset for the client's errors, over the connection's life.
const ERRORS_MAX: usize = 256;
/// Malformed streams and streams without a whole response, beyond the completed ones. A browser
/// that leaves pages drops a hundred at a time; a flood goes on.
const DROPS_MAX: u32 = 500;
/// The port of an authority without one (RFC 9110 4.2.2).
const HTTPS_PORT: u16 = 443;
/// How long the rest of a request's body is discarded after the answer, and how long without a byte
/// of it. On a slow line a client needs that long to notice the answer. The stream's memory is held
/// meanwhile.
const REST_WAIT: Duration = Duration::from_secs(30);
const REST_SILENCE: Duration = Duration::from_secs(5);
/// How long an idle connection may take to end after GOAWAY.
const GOAWAY_WAIT: Duration = Duration::from_secs(2);

/// Serves a connection to its end.
pub async fn serve(
    mut client: ClientStream,
    served: ServedConnection,
    counted: Counted,
    _serving: Serving,
) {
    let handle = client.handle.clone();
    let mut served = Rc::new(served);
    served.worker.engine.enters(handle.key(), Phase::HalfOpen);
    let http = &served.worker.shared.config.http;
    let load = Load::new(counted, http.head_bytes_max);
    client.load = Some(load.clone());
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(u32::try_from(http.head_bytes_max).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BYTES_MAX)
        .enable_connect_protocol()
        .max_local_error_reset_streams(Some(ERRORS_MAX));
    handle.due_in(http.head_timeout);
    // Boxed, and one after the other, so that the task does not hold a connection twice.
    let mut handshake = Box::pin(builder.handshake::<_, Bytes>(client));
    let shaken = poll_fn(|task| match handshake.as_mut().poll(task) {
        Poll::Ready(shaken) => Poll::Ready(Some(Ok(shaken.map(Box::new)))),
        Poll::Pending => {
            handle.poll_ready(task, &[], 0).map(|wait_error| wait_error.err().map(Err))
        }
    });
    let shaken = shaken.await;
    drop(handshake);
    let reason = match shaken {
        None | Some(Err(WaitError::Late)) => Reason::Timeout(Limit::Head, None),
        Some(Err(wait_error)) => ClientLost::Wait(wait_error).reason(),
        Some(Ok(Err(error))) => http2(Peer::Client, &error),
        Some(Ok(Ok(connection))) => run(connection, &handle, &mut served, &load).await,
    };
    load.closes();
    // The last sealed bytes are sent by now, or the client does not read.
    park::close_with(&handle, &[]);
    let info = served.info_now();
    let end = End { outcome: Outcome::Terminated, reason };
    served.worker.engine.emit(&info, &end);
}

/// A stream that its client has begun.
type AcceptedStream = (Request<h2::RecvStream>, SendResponse<Bytes>);

/// An event that wakes a connection.
enum Event {
    Stream(Box<AcceptedStream>),
    Failed(h2::Error),
    Late,
    /// Other connections need its memory.
    Shed,
    Closed,
}

impl Event {
    fn of(accepted: Option<Result<AcceptedStream, h2::Error>>) -> Self {
        match accepted {
            None => Self::Closed,
            Some(Ok(asked)) => Self::Stream(Box::new(asked)),
            Some(Err(error)) => Self::Failed(error),
        }
    }
}

async fn run(
    mut connection: Box<Connection<ClientStream, Bytes>>,
    handle: &Handle,
    served: &mut Rc<ServedConnection>,
    load: &Rc<Load>,
) -> Reason {
    let idle = served.worker.shared.config.http.http2_idle_timeout;
    // One reference for the connection, and one for each served stream. The value counts dropped
    // streams.
    let alive = Rc::new(Cell::new(0));
    let (mut going_away, mut is_ending) = (None, false);
    let (mut was_busy, mut has_served) = (true, false);
    loop {
        let event = poll_fn(|task| {
            let accepted = poll_accept(&mut connection, load, task);
            if accepted.is_pending() {
                load.settles();
            }
            let busy = Rc::strong_count(&alive) > 1;
            if going_away.is_none()
                && let Some(why) = served.why_away()
            {
                going_away = Some(why);
                connection.graceful_shutdown();
                task.waker().wake_by_ref();
            }
            if busy != was_busy {
                was_busy = busy;
                // The connection is half-open until its first stream.
                if !busy && has_served {
                    served.worker.engine.enters(handle.key(), Phase::Idle);
                }
                handle.due_in(if going_away.is_some() { GOAWAY_WAIT } else { idle });
            }
            if !is_ending && let Some(why) = too_many(load, alive.get()) {
                (going_away, is_ending) = (Some(Reason::StreamFlood(why)), true);
                connection.abrupt_shutdown(h2::Reason::ENHANCE_YOUR_CALM);
                task.waker().wake_by_ref();
            }
            match accepted {
                Poll::Ready(accepted) => Poll::Ready(Event::of(accepted)),
                Poll::Pending => poll_stop(task, handle, served, load, busy),
            }
        });
        match event.await {
            Event::Stream(stream) => {
                has_served = true;
                follow(served, handle);
                if !begin(served, handle, *stream, &alive, load) {
                    return send_away(connection, served, load).await;
                }
            }
            Event::Failed(error) => {
                return going_away.unwrap_or_else(|| http2(Peer::Client, &error));
            }
            Event::Closed => return going_away.unwrap_or(Reason::ClientClosed(None)),
            Event::Shed => return send_away(connection, served, load).await,
            // Each stream has its own deadline.
            Event::Late if Rc::strong_count(&alive) > 1 => handle.due_in(idle),
            Event::Late => {
                if let Some(reason) = going_away {
                    return reason;
                }
                going_away = Some(Reason::Timeout(Limit::Http2Idle, None));
                connection.graceful_shutdown();
                handle.due_in(GOAWAY_WAIT);
            }
        }
    }
}

/// Makes the newest configuration serve new streams.
fn follow(served: &mut Rc<ServedConnection>, handle: &Handle) {
    if let Some(newer) = served.reloaded(|| handle.local_address()) {
        *served = Rc::new(newer);
    }
}

/// Why a connection ends because its client drops streams, if it does.
fn too_many(load: &Load, drops: u32) -> Option<StreamFlood> {
    if load.resets() > RESETS_PENDING_MAX {
        return Some(StreamFlood::Reset);
    }
    (drops > DROPS_MAX).then_some(StreamFlood::Dropped)
}

/// The next stream that its client begins. The library gets one head at a time.
fn poll_accept(
    connection: &mut Connection<ClientStream, Bytes>,
    load: &Load,
    task: &mut Context<'_>,
) -> Poll<Option<Result<AcceptedStream, h2::Error>>> {
    loop {
        let accepted = connection.poll_accept(task);
        // A head need not be a new stream: it may be trailers, or refused by the library.
        if !load.reads_on() || accepted.is_ready() {
            return accepted;
        }
    }
}

/// Events that end a connection, other than those of its client.
fn poll_stop(
    task: &mut Context<'_>,
    handle: &Handle,
    served: &ServedConnection,
    load: &Load,
    busy: bool,
) -> Poll<Event> {
    if handle.is_to_end() {
        load.end_streams();
    }
    // As in HTTP/1.1: if a partial head has no room, this connection is shed, or others are.
    if !busy && load.unseen() > HELLO_BYTES && !served.worker.engine.relieve(0) {
        return Poll::Ready(Event::Shed);
    }
    handle.poll_ready(task, &[], 0).map(|wait_error| match wait_error {
        Err(WaitError::Shed) => Event::Shed,
        _ => Event::Late,
    })
}

/// Ends a connection by GOAWAY, so that its client knows that none of its requests was lost.
async fn send_away(
    mut connection: Box<Connection<ClientStream, Bytes>>,
    served: &ServedConnection,
    load: &Load,
) -> Reason {
    // Otherwise GOAWAY would list streams as processed that have only arrived.
    for _ in 0..STREAMS_MAX {
        match poll_fn(|task| Poll::Ready(poll_accept(&mut connection, load, task))).await {
            Poll::Ready(Some(Ok(stream))) => refuse(served, stream),
            Poll::Pending => break,
            Poll::Ready(_) => return ClientLost::Wait(WaitError::Shed).reason(),
        }
    }
    connection.abrupt_shutdown(h2::Reason::NO_ERROR);
    poll_fn(|task| Poll::Ready(connection.poll_closed(task).is_ready())).await;
    ClientLost::Wait(WaitError::Shed).reason()
}

/// Serves a stream if there is room for it. Returns `false` if the connection is shed.
fn begin(
    served: &Rc<ServedConnection>,
    handle: &Handle,
    asked: AcceptedStream,
    alive: &Rc<Cell<u32>>,
    load: &Rc<Load>,
) -> bool {
    load.sees_head();
    if let Err(WaitError::Shed) = handle.in_time() {
        // The stream came in the same iteration, after the connection was shed.
        refuse(served, asked);
        return false;
    }
    let (worker, source) = (&served.worker, served.info.client.ip());
    let long = room::beyond_stream(&asked.0);
    let bytes = STREAM_BYTES + long;
    let has_room = worker.engine.make_room_to_wake(handle.key(), source, bytes)
        // The last eighth of the budget is for new connections and for short requests.
        && (long == 0 || !worker.engine.process.budget.is_tight(bytes));
    if !has_room {
        // The connection can still be shed. Before its first stream it is half-open, so it is shed
        // before later ones that shake hands.
        refuse(served, asked);
        return true;
    }
    worker.engine.enters(handle.key(), Phase::Busy);
    let (request, respond) = asked;
    let (parts, receive) = request.into_parts();
    let length = length(&parts, &receive);
    // Counted before the next stream is read, which is before this stream's task runs.
    let counted = Counted::new(&worker.engine.process.budget, bytes);
    let stream = Stream::two(receive, respond, load.clone());
    let share = (counted, worker.engine.serves(source));
    let (served, alive) = (served.clone(), alive.clone());
    tokio::task::spawn_local(async move {
        one_stream(served, parts, length, stream, alive).await;
        drop(share);
    });
    true
}

/// Refuses an unprocessed stream, so that its client may retry (RFC 9113 8.7).
fn refuse(served: &ServedConnection, (request, mut respond): AcceptedStream) {
    respond.send_reset(h2::Reason::REFUSED_STREAM);
    let mut record = Record::new(served, &request.into_parts().0);
    record.failed = true;
    record.reason = Reason::Shed(Shed::Stream);
    served.emit(&record);
}

async fn one_stream(
    served: Rc<ServedConnection>,
    mut parts: request::Parts,
    length: Length,
    mut stream: Stream<'static>,
    drops: Rc<Cell<u32>>,
) {
    let is_websocket = websocket::is_asked(&parts);
    if !stream.runs() {
        let mut record = Record::new(&served, &parts);
        record.failed = true;
        record.reason = Reason::StreamReset;
        served.emit(&record);
        return drops.set(drops.get() + 1);
    }
    // WebSocket messages are no body of the request.
    let length = if is_websocket { Length::Empty } else { length };
    let (client_lost, is_whole) = match target(&mut parts) {
        Ok(()) => {
            let client_lost =
                Box::pin(exchange(&served, &mut stream, parts, length)).await.client_lost;
            (client_lost, !client_lost)
        }
        // Counts like a reset, as it is as cheap for its sender.
        Err(fault) => (!refuse_malformed(&served, &mut stream, &parts, fault).await, false),
    };
    let before = drops.get();
    drops.set(if is_whole { before.saturating_sub(1) } else { before + 1 });
    if !client_lost && !is_websocket {
        drop_rest(&served, &mut stream).await;
    }
}

/// Answers a malformed request. Returns whether the client took the answer.
async fn refuse_malformed(
    served: &ServedConnection,
    stream: &mut Stream<'_>,
    parts: &request::Parts,
    fault: RequestFault,
) -> bool {
    let mut log_entry = RequestLogEntry::new(served, Record::new(served, parts), stream.sent());
    let record = &mut log_entry.record;
    record.failed = true;
    record.reason = fault.into();
    let taken = answer(served, stream, fault.status(), &parts.method, record).await;
    log_entry.end();
    taken
}

/// Reads and discards the rest of a request's body after its response has ended. Dropping the
/// stream would reset it (NO_ERROR), and clients then lose the answer.
async fn drop_rest(served: &ServedConnection, stream: &mut Stream<'_>) {
    if stream.is_request_done() {
        return;
    }
    stream.refuse_rest();
    let began = Instant::now();
    let (mut moved, mut before) = (began, stream.dropped());
    let progress_wait = served.progress_wait().min(REST_SILENCE);
    stream.due_in(progress_wait);
    poll_fn(|task| {
        // Scarce memory is for requests without an answer yet.
        if stream.poll_rest(task).is_ready() || served.worker.engine.process.budget.is_tight(0) {
            return Poll::Ready(());
        }
        if stream.dropped() != before {
            (moved, before) = (Instant::now(), stream.dropped());
        }
        while stream.poll_late(task).is_ready() {
            let over = began.elapsed() >= REST_WAIT || moved.elapsed() >= REST_SILENCE;
            if over || served.gives_up(moved).is_some() {
                return Poll::Ready(());
            }
            stream.due_in(progress_wait);
        }
        Poll::Pending
    })
    .await;
}

fn length(parts: &request::Parts, receive: &h2::RecvStream) -> Length {
    if receive.is_end_stream() {
        return Length::Empty;
    }
    // The library checks the data against it, and has refused invalid numbers.
    let known = parts.headers.get(header::CONTENT_LENGTH);
    let known = known.and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    known.map_or(Length::Chunked, Length::Known)
}

/// Checks a request's head and adds the authority to its URI, from Host if there is no :authority.
/// If both exist they must agree (RFC 9113 8.3.1).
fn target(parts: &mut request::Parts) -> Result<(), RequestFault> {
    if parts.method == http::Method::CONNECT && !websocket::is_asked(parts) {
        return Err(RequestFault::Connect);
    }
    fields::check_two(&parts.headers)?;
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (host, None) => host.map(|host| read_authority(host.as_bytes())).transpose()?,
        _ => return Err(RequestFault::Host),
    };
    let given = parts.uri.authority().map(|given| read_authority(given.as_str().as_bytes()));
    let authority = match (given.transpose()?, host) {
        (Some(given), Some(host)) if !is_same(&given, &host) => return Err(RequestFault::Host),
        (Some(authority), _) | (None, Some(authority)) => authority,
        (None, None) => return Err(RequestFault::Host),
    };
    // `http::Uri` shows an absent :path as `/`, even without an :authority.
    if parts.uri.authority().is_none() && parts.uri.clone().into_parts().path_and_query.is_none() {
        return Err(RequestFault::Target);
    }
    // The path becomes part of an HTTP/1.1 request line, where another form would mean another
    // target.
    let path = parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let whole_server = path == "*" && parts.method == http::Method::OPTIONS;
    let known = |scheme: &Scheme| *scheme == Scheme::HTTPS || *scheme == Scheme::HTTP;
    if !(path.starts_with('/') || whole_server)
        || !path.is_ascii()
        || !parts.uri.scheme().is_none_or(known)
    {
        return Err(RequestFault::Target);
    }
    if path.len() > TARGET_BYTES_MAX {
        return Err(RequestFault::TargetTooLong);
    }
    content_length(&parts.headers).map_err(|NoLength| RequestFault::Length)?;
    let mut uri = std::mem::take(&mut parts.uri).into_parts();
    (uri.scheme, uri.authority) = (Some(Scheme::HTTPS), Some(authority));
    uri.path_and_query.get_or_insert(http::uri::PathAndQuery::from_static("/"));
    parts.uri = Uri::from_parts(uri).map_err(|_| RequestFault::Target)?;
    Ok(())
}

/// Whether two authorities are equal: every client here uses https (RFC 9110 4.2.2).
fn is_same(one: &Authority, other: &Authority) -> bool {
    let port = |authority: &Authority| authority.port_u16().unwrap_or(HTTPS_PORT);
    one.host().eq_ignore_ascii_case(other.host()) && port(one) == port(other)
}
