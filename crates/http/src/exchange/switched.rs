//! A connection that has switched protocols (RFC 9110 7.8). It becomes a pair in the connection
//! table. If the upstream speaks TLS, a task copies, and the connection rests while nothing moves.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use eyelet_wire::websocket::{CLOSE_TO_CLIENT, close_to_server};
use http::HeaderValue;

use eyelet_downstream::client::io::{ClientLost, ClientStream, send_all};
use eyelet_downstream::clock;
use eyelet_downstream::connection::log_entry::serving_stream::ServingStream;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_engine::park;
use eyelet_engine::worker::WaitError;
use eyelet_http1::boundary::Boundary;
use eyelet_http1::write_queue::WriteQueue;
use eyelet_memory::budget::PIECE_BYTES_MIN;
use eyelet_relay::{Relay, WebSocketFrames};
use eyelet_resting::{KeptConnection, RestingExchange, RestingFacts, RestingState};
use eyelet_telemetry::info::End;
use eyelet_telemetry::listing::streams::StreamKind;
use eyelet_telemetry::reason::{Limit, Reason};
use eyelet_telemetry::upstream::{CountedAt, UpstreamCounters};
use eyelet_upstream::http1::{Http1Connection, RestingConnection};
use eyelet_upstream::socket::tls::RestingTls;

/// The upstream of a connection that has switched protocols.
pub struct Switched {
    upstream: Box<Http1Connection>,
    is_websocket: bool,
    /// The counters of the connection until it ends.
    counted_at: Option<CountedAt>,
}

impl Switched {
    /// After a 101 to this protocol.
    pub fn new(upstream: Box<Http1Connection>, protocol: &HeaderValue) -> Self {
        let is_websocket = protocol.as_bytes().trim_ascii().eq_ignore_ascii_case(b"websocket");
        Self { upstream, is_websocket, counted_at: None }
    }

    /// Counts the connection at one of several upstreams. The upstream's own exchange ends.
    pub fn count_at(&mut self, counters: &Arc<UpstreamCounters>) {
        self.counted_at = Some(CountedAt::opened([counters.clone()]));
    }
}

/// A connection that rests after its 101.
pub struct SwitchedAtRest {
    pub client: ClientStream,
    pub served: ServedConnection,
    /// The upstream's socket, which is registered nowhere.
    pub socket: OwnedFd,
    pub exchange: RestingExchange,
    /// Since when nothing has moved.
    pub since: Instant,
}

/// Continues a connection after its 101, until it is parked, has ended, or rests.
pub async fn switch(
    mut client: ClientStream,
    mut served: ServedConnection,
    switched: Switched,
) -> Option<Box<SwitchedAtRest>> {
    let Switched { mut upstream, is_websocket, counted_at } = switched;
    served.info.decided.counted_at = CountedAt::joined(counted_at, upstream.take_open());
    let new = || if is_websocket { Boundary::of_frames() } else { Boundary::Unknown };
    let (mut up, mut down) = (Way::new(new()), Way::new(new()));
    up.boundary.read(&client.plain);
    down.push(upstream.received.split());
    client.handle.due_in(served.http.shared.config.limits.idle_timeout);
    let passed = send_all(&mut client, &mut down.queue).await;
    let ended = match passed {
        Err(client_lost) => client_lost.reason(),
        Ok(()) if upstream.is_plain() => match pair(&client, *upstream) {
            Ok(()) => {
                served.counts.to_upstream.update(|bytes| bytes + client.plain.len() as u64);
                let frames = up.boundary.frames().zip(down.boundary.frames());
                let frames = frames.map(|(up, down)| WebSocketFrames { up, down });
                let (handle, terminated) = client.into_pair(frames)?;
                let mut info = served.end();
                park::park(&handle, &mut info, Relay::Terminate(terminated));
                return None;
            }
            Err(error) => Reason::upstream_io(&error),
        },
        Ok(()) => {
            up.queue.push(client.plain.split());
            let ways = Ways { up, down, since: clock::now() };
            // Boxed, as few connections come here and all tasks of HTTP/1.1 would pay for it.
            return Box::pin(go_on(client, served, upstream, ways)).await;
        }
    };
    end(client, served, ended);
    None
}

/// Continues a connection that rested, and was idle for so long.
pub async fn resume(
    client: ClientStream,
    served: ServedConnection,
    RestingExchange { state, connection, .. }: RestingExchange,
    idle: Duration,
) -> Option<Box<SwitchedAtRest>> {
    let frames = match state {
        RestingState::Switched(frames) => frames,
        RestingState::AwaitsHead(..)
        | RestingState::Held(_)
        | RestingState::PassesDown(..)
        | RestingState::WebSocket(_) => None,
    };
    let since = clock::now().checked_sub(idle).unwrap_or_else(clock::now);
    let Some(socket) = client.handle.take_upstream() else {
        end(client, served, Reason::Internal("a switched connection without an upstream"));
        return None;
    };
    let name = served.info.decided.upstream.as_ref();
    let name = name.map(|name| name.to_text()).unwrap_or_default().into();
    let tls = match connection {
        KeptConnection::Own(tls) => tls,
        KeptConnection::Shared(_) => None,
    };
    let (received, open) = (BytesMut::new(), Vec::new());
    let kept = RestingConnection { socket, tls, name, received, open };
    match Http1Connection::resumed(&served.http.engine, kept) {
        Ok(upstream) => {
            let way = |nth: usize| {
                Way::new(frames.map_or(Boundary::Unknown, |frames| Boundary::Frames(frames[nth])))
            };
            let ways = Ways { up: way(0), down: way(1), since };
            go_on(client, served, Box::new(upstream), ways).await
        }
        Err(error) => {
            end(client, served, Reason::upstream_io(&error));
            None
        }
    }
}

/// Copies until the connection has ended, or rests.
async fn go_on(
    mut client: ClientStream,
    served: ServedConnection,
    mut upstream: Box<Http1Connection>,
    mut ways: Ways,
) -> Option<Box<SwitchedAtRest>> {
    let is_websocket = matches!(ways.up.boundary, Boundary::Frames(_));
    let kind = if is_websocket { StreamKind::WebSocket } else { StreamKind::Switched };
    let copied = {
        let _counted = ServingStream::new(&served.http.engine.counters, kind);
        copy(&mut client, &served, &mut upstream, &mut ways).await
    };
    let ended = match copied {
        Copied::Ended(reason) => reason,
        Copied::Rests => match upstream.into_resting() {
            Ok(resting) => return Some(Box::new(rest(client, served, resting, &ways))),
            Err(error) => Reason::upstream_io(&error),
        },
    };
    end(client, served, ended);
    None
}

fn rest(
    client: ClientStream,
    served: ServedConnection,
    RestingConnection { socket, tls, .. }: RestingConnection,
    Ways { up, down, since }: &Ways,
) -> SwitchedAtRest {
    let frames = up.boundary.frames().zip(down.boundary.frames()).map(|(up, down)| [up, down]);
    // Its access line has no more to say of the upstream.
    let tls = tls.map(|tls| RestingTls { info: None, ..tls });
    let (facts, state) = (RestingFacts::default(), RestingState::Switched(frames));
    let exchange = RestingExchange { facts, state, connection: KeptConnection::Own(tls) };
    SwitchedAtRest { client, served, socket, exchange, since: *since }
}

/// Ends a connection and writes its line.
fn end(mut client: ClientStream, served: ServedConnection, reason: Reason) {
    let words = client.close_notify();
    park::close_with(&client.handle, &words);
    let http = served.http.clone();
    let end = End { outcome: served.outcome(), reason };
    http.engine.emit(&served.end(), &end);
}

fn pair(client: &ClientStream, upstream: Http1Connection) -> std::io::Result<()> {
    let Some(socket) = upstream.into_socket() else { return Ok(()) };
    let socket = socket?;
    client.handle.set_connected(socket);
    Ok(())
}

/// Both ways of a connection that is copied.
struct Ways {
    up: Way,
    down: Way,
    /// Since when nothing has moved.
    since: Instant,
}

/// The reason why the task of a connection that is copied is done.
enum Copied {
    /// Nothing moves: it rests.
    Rests,
    /// It has ended.
    Ended(Reason),
}

/// Copies both directions until both have ended, one fails, we end them, or nothing moves.
async fn copy(
    client: &mut ClientStream,
    served: &ServedConnection,
    upstream: &mut Http1Connection,
    ways: &mut Ways,
) -> Copied {
    let idle_timeout = served.http.shared.config.limits.idle_timeout;
    let mut leaving = None;
    let left = |since: Instant| idle_timeout.saturating_sub(clock::since(since));
    client.handle.due_in(served.http.engine.rest_after().min(left(ways.since)));
    poll_fn(|task| {
        loop {
            let Ways { up, down, since } = &mut *ways;
            let before = (up.moved, down.moved);
            let upward = poll_up(task, client, upstream, up);
            let downward = poll_down(task, client, upstream, down);
            served.counts.to_upstream.update(|bytes| bytes + up.moved - before.0);
            if before != (up.moved, down.moved) {
                *since = clock::now();
                client.handle.due_in(served.http.engine.rest_after().min(idle_timeout));
            }
            match (upward, downward) {
                (Poll::Ready(Err(reason)), _) | (_, Poll::Ready(Err(reason))) => {
                    return Poll::Ready(Copied::Ended(reason));
                }
                (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => {
                    let reason = leaving.take().unwrap_or(Reason::ClientClosed(None));
                    return Poll::Ready(Copied::Ended(reason));
                }
                _ => {}
            }
            if leaving.is_some() {
                break;
            }
            leaving = why_leave(client, served).filter(|_| leave(up, down));
            if leaving.is_none() {
                break;
            }
            // Sends the close frames.
        }
        let may_rest = leaving.is_none() && may_rest(client, served, upstream, ways);
        // One that leaves for another process rests at once.
        if may_rest && served.http.engine.rests_at_once() {
            return Poll::Ready(Copied::Rests);
        }
        let ended = match ready!(client.handle.poll_ready(task, &[], 0)) {
            Err(WaitError::Drained) => Reason::Drained(None),
            Err(WaitError::Ended) => Reason::Ended,
            Err(WaitError::Late) if !left(ways.since).is_zero() => {
                if may_rest && clock::since(ways.since) >= served.http.engine.rest_after() {
                    return Poll::Ready(Copied::Rests);
                }
                // What keeps it awake, such as a slow reader, may be over later.
                client.handle.due_in(left(ways.since).min(served.progress_wait()));
                task.waker().wake_by_ref();
                return Poll::Pending;
            }
            _ => Reason::Timeout(Limit::Idle, None),
        };
        Poll::Ready(Copied::Ended(ended))
    })
    .await
}

/// True if both directions are open, and all that has come is passed on.
fn may_rest(
    client: &ClientStream,
    served: &ServedConnection,
    upstream: &Http1Connection,
    Ways { up, down, .. }: &Ways,
) -> bool {
    let is_idle = |way: &Way| !way.ended && way.queue.is_empty();
    is_idle(up)
        && is_idle(down)
        && upstream.received.is_empty()
        && upstream.may_rest(false)
        && client.is_at_rest()
        && client.may_rest()
        && !served.http.engine.is_draining()
}

/// Returns the reason why a connection is to end, although nobody has ended it.
fn why_leave(client: &ClientStream, served: &ServedConnection) -> Option<Reason> {
    let why_end = client.handle.why_end();
    why_end.or_else(|| served.is_removed().then_some(Reason::RuleGone))
}

/// Ends the open directions of a WebSocket by close frames if each is between two frames. Returns
/// whether it did.
fn leave(up: &mut Way, down: &mut Way) -> bool {
    if !up.may_end() || !down.may_end() {
        return false;
    }
    let Some(mask) = eyelet_sys::process::random() else { return false };
    if !std::mem::replace(&mut up.ended, true) {
        up.queue.push(close_to_server(mask).to_vec());
    }
    if !std::mem::replace(&mut down.ended, true) {
        down.queue.push(&CLOSE_TO_CLIENT[..]);
    }
    true
}

/// One direction.
struct Way {
    queue: WriteQueue,
    boundary: Boundary,
    ended: bool,
    shut_down: bool,
    moved: u64,
}

impl Way {
    fn new(boundary: Boundary) -> Self {
        Self { queue: WriteQueue::default(), boundary, ended: false, shut_down: false, moved: 0 }
    }

    /// True if it has ended, or may end here.
    fn may_end(&self) -> bool {
        self.ended || self.boundary.is_between_frames()
    }

    fn push(&mut self, bytes: BytesMut) {
        self.boundary.read(&bytes);
        self.queue.push(bytes);
    }
}

fn poll_up(
    task: &mut Context<'_>,
    client: &mut ClientStream,
    upstream: &mut Http1Connection,
    way: &mut Way,
) -> Poll<Result<(), Reason>> {
    loop {
        let before = way.queue.len();
        let sent = upstream.poll_send(task, &mut way.queue);
        way.moved += (before - way.queue.len()) as u64;
        ready!(sent).map_err(|error| Reason::upstream_io(&error))?;
        if way.ended {
            if !way.shut_down {
                let shut = ready!(upstream.poll_shutdown(task));
                shut.map_err(|error| Reason::upstream_io(&error))?;
                way.shut_down = true;
            }
            return Poll::Ready(Ok(()));
        }
        if client.plain.is_empty() {
            match ready!(client.poll_fill(task, PIECE_BYTES_MIN)) {
                Ok(0) => way.ended = true,
                Ok(_) => {}
                Err(ClientLost::Wait(WaitError::Late | WaitError::Drained | WaitError::Ended)) => {
                    return Poll::Pending;
                }
                Err(client_lost) => return Poll::Ready(Err(client_lost.reason())),
            }
        }
        way.push(client.plain.split());
    }
}

fn poll_down(
    task: &mut Context<'_>,
    client: &mut ClientStream,
    upstream: &mut Http1Connection,
    way: &mut Way,
) -> Poll<Result<(), Reason>> {
    loop {
        let sent = client.poll_send(task, &mut way.queue);
        ready!(sent).map_err(|client_lost| client_lost.reason())?;
        if way.ended {
            return Poll::Ready(Ok(()));
        }
        match ready!(upstream.poll_fill(task)) {
            Ok(0) => {
                // Either ends that direction only.
                match client.has_tls() {
                    true => client.seal_alert(eyelet_record::alert::CLOSE_NOTIFY),
                    // All before it is sent. A client that is gone is noticed by the next read.
                    false => _ = client.handle.end_client(),
                }
                way.ended = true;
            }
            Ok(read) => way.moved += read as u64,
            Err(error) => return Poll::Ready(Err(Reason::upstream_io(&error))),
        }
        way.push(upstream.received.split());
    }
}
