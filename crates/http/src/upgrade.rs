//! A connection that has switched protocols (RFC 9110 7.8). It becomes a pair in the connection
//! table, or a task that copies if the upstream speaks TLS.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use super::io::{ClientLost, ClientStream, WriteQueue, send_all};
use super::served_connection::ServedConnection;
use super::upstream::one::Http1Connection;
use eyelet_engine::park;
use eyelet_engine::relay::Relay;
use eyelet_memory::budget::PIECE_BYTES_MIN;
use eyelet_telemetry::info::{End, Outcome};
use eyelet_telemetry::reason::{Limit, Reason};

/// Continues a connection after its 101.
pub async fn switch(
    mut client: ClientStream,
    served: ServedConnection,
    mut upstream: Box<Http1Connection>,
) {
    let mut queue = WriteQueue::default();
    queue.push(upstream.received.split());
    let worker = served.worker.clone();
    client.handle.due_in(worker.shared.config.limits.idle_timeout);
    let passed = send_all(&mut client, &mut queue).await;
    let ended = match passed {
        Err(client_lost) => client_lost.reason(),
        Ok(()) if upstream.is_plain() => match pair(&client, *upstream) {
            Ok(()) => {
                served.bytes_to_upstream.update(|bytes| bytes + client.plain.len() as u64);
                let (handle, terminated) = client.into_pair();
                let mut info = served.end();
                return park::park(&handle, &mut info, Relay::Terminate(terminated));
            }
            Err(error) => Reason::upstream_io(&error),
        },
        Ok(()) => copy(&mut client, &served, upstream).await,
    };
    let words = client.close_notify();
    park::close_with(&client.handle, &words);
    let end = End { outcome: Outcome::Terminated, reason: ended };
    worker.engine.emit(&served.end(), &end);
}

fn pair(client: &ClientStream, upstream: Http1Connection) -> std::io::Result<()> {
    let Some(socket) = upstream.into_socket() else { return Ok(()) };
    let socket = socket?;
    client.handle.set_connected(socket);
    Ok(())
}

/// Copies both directions until both have ended or one fails. Returns the reason.
async fn copy(
    client: &mut ClientStream,
    served: &ServedConnection,
    mut upstream: Box<Http1Connection>,
) -> Reason {
    let idle_timeout = served.worker.shared.config.limits.idle_timeout;
    let (mut up, mut down) = (Way::default(), Way::default());
    poll_fn(|task| {
        let before = (up.moved, down.moved);
        let upward = poll_up(task, client, &mut upstream, &mut up);
        let downward = poll_down(task, client, &mut upstream, &mut down);
        served.bytes_to_upstream.update(|bytes| bytes + up.moved - before.0);
        if before != (up.moved, down.moved) {
            client.handle.due_in(idle_timeout);
        }
        match (upward, downward) {
            (Poll::Ready(Err(reason)), _) | (_, Poll::Ready(Err(reason))) => Poll::Ready(reason),
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Reason::ClientClosed(None)),
            _ => match client.handle.poll_ready(task, &[], 0) {
                Poll::Ready(_) => Poll::Ready(Reason::Timeout(Limit::Idle, None)),
                Poll::Pending => Poll::Pending,
            },
        }
    })
    .await
}

#[derive(Default)]
struct Way {
    queue: WriteQueue,
    ended: bool,
    shut_down: bool,
    moved: u64,
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
                Err(ClientLost::Wait(eyelet_engine::handle::WaitError::Late)) => {
                    return Poll::Pending;
                }
                Err(client_lost) => return Poll::Ready(Err(client_lost.reason())),
            }
        }
        way.queue.push(client.plain.split());
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
                // close_notify ends that direction only.
                client.seal_alert(eyelet_record::alert::CLOSE_NOTIFY);
                way.ended = true;
            }
            Ok(read) => way.moved += read as u64,
            Err(error) => return Poll::Ready(Err(Reason::upstream_io(&error))),
        }
        way.queue.push(upstream.received.split());
    }
}
