//! A connection that has switched protocols (RFC 9110 7.8). It becomes a pair in the connection
//! table, or a task that copies if the upstream speaks TLS.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use eyelet_wire::websocket::{CLOSE_TO_CLIENT, close_to_server};
use http::HeaderValue;

use eyelet_downstream::client::io::{ClientLost, ClientStream, send_all};
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_engine::park;
use eyelet_engine::relay::{Relay, WebSocketFrames};
use eyelet_engine::worker::WaitError;
use eyelet_http1::boundary::Boundary;
use eyelet_http1::write_queue::WriteQueue;
use eyelet_memory::budget::PIECE_BYTES_MIN;
use eyelet_telemetry::info::End;
use eyelet_telemetry::reason::{Limit, Reason};
use eyelet_telemetry::upstream::{CountedAt, UpstreamCounters};
use eyelet_upstream::http1::Http1Connection;

/// The upstream of a connection that has switched protocols.
pub struct Switched {
    upstream: Box<Http1Connection>,
    is_websocket: bool,
    /// Where the connection counts until it ends.
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

/// Continues a connection after its 101.
pub async fn switch(mut client: ClientStream, mut served: ServedConnection, switched: Switched) {
    let Switched { mut upstream, is_websocket, counted_at } = switched;
    served.info.decided.counted_at = counted_at;
    let new = || if is_websocket { Boundary::of_frames() } else { Boundary::Unknown };
    let (mut up, mut down) = (Way::new(new()), Way::new(new()));
    up.boundary.read(&client.plain);
    down.push(upstream.received.split());
    let worker = served.worker.clone();
    client.handle.due_in(worker.shared.config.limits.idle_timeout);
    let passed = send_all(&mut client, &mut down.queue).await;
    let ended = match passed {
        Err(client_lost) => client_lost.reason(),
        Ok(()) if upstream.is_plain() => match pair(&client, *upstream) {
            Ok(()) => {
                served.counts.to_upstream.update(|bytes| bytes + client.plain.len() as u64);
                let frames = up.boundary.frames().zip(down.boundary.frames());
                let frames = frames.map(|(up, down)| WebSocketFrames { up, down });
                let Some((handle, terminated)) = client.into_pair(frames) else { return };
                let mut info = served.end();
                return park::park(&handle, &mut info, Relay::Terminate(terminated));
            }
            Err(error) => Reason::upstream_io(&error),
        },
        Ok(()) => {
            up.queue.push(client.plain.split());
            copy(&mut client, &served, upstream, Ways { up, down }).await
        }
    };
    let words = client.close_notify();
    park::close_with(&client.handle, &words);
    let end = End { outcome: served.outcome(), reason: ended };
    worker.engine.emit(&served.end(), &end);
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
}

/// Copies both directions until both have ended, one fails, or we end them. Returns the reason.
async fn copy(
    client: &mut ClientStream,
    served: &ServedConnection,
    mut upstream: Box<Http1Connection>,
    ways: Ways,
) -> Reason {
    let Ways { mut up, mut down } = ways;
    let idle_timeout = served.worker.shared.config.limits.idle_timeout;
    let mut leaving = None;
    poll_fn(|task| {
        loop {
            let before = (up.moved, down.moved);
            let upward = poll_up(task, client, &mut upstream, &mut up);
            let downward = poll_down(task, client, &mut upstream, &mut down);
            served.counts.to_upstream.update(|bytes| bytes + up.moved - before.0);
            if before != (up.moved, down.moved) {
                client.handle.due_in(idle_timeout);
            }
            match (upward, downward) {
                (Poll::Ready(Err(reason)), _) | (_, Poll::Ready(Err(reason))) => {
                    return Poll::Ready(reason);
                }
                (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => {
                    return Poll::Ready(leaving.take().unwrap_or(Reason::ClientClosed(None)));
                }
                _ => {}
            }
            if leaving.is_some() {
                break;
            }
            leaving = why_leave(client, served).filter(|_| leave(&mut up, &mut down));
            if leaving.is_none() {
                break;
            }
            // Sends the close frames.
        }
        match client.handle.poll_ready(task, &[], 0) {
            Poll::Ready(Err(WaitError::Drained)) => Poll::Ready(Reason::Drained(None)),
            Poll::Ready(Err(WaitError::Ended)) => Poll::Ready(Reason::Ended),
            Poll::Ready(_) => Poll::Ready(Reason::Timeout(Limit::Idle, None)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Why a connection is to end, although nobody has ended it.
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

    /// Says if it has ended, or may end here.
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
