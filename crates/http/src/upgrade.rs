//! A connection that has switched protocols (RFC 9110 7.8). It becomes a pair in the connection
//! table, or a task that copies if the upstream speaks TLS.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use super::front::Front;
use super::io::{Client, Gone, Queue, send_all};
use super::upstream::one::Connection;
use eyelet_engine::park;
use eyelet_engine::relay::Relay;
use eyelet_memory::budget::PIECE_BYTES_MIN;
use eyelet_telemetry::info::{End, Outcome};
use eyelet_telemetry::reason::{Limit, Reason};

/// Continues a connection after its 101.
pub async fn switch(mut client: Client, front: Front, mut upstream: Box<Connection>) {
    let mut queue = Queue::default();
    queue.push(upstream.received.split());
    let worker = front.worker.clone();
    client.handle.due_in(worker.shared.config.limits.idle_timeout);
    let passed = send_all(&mut client, &mut queue).await;
    let ended = match passed {
        Err(gone) => gone.reason(),
        Ok(()) if upstream.is_plain() => match pair(&client, *upstream) {
            Ok(()) => {
                front.bytes_to_upstream.update(|bytes| bytes + client.plain.len() as u64);
                let (handle, terminated) = client.into_pair();
                let mut info = front.end();
                return park::park(&handle, &mut info, Relay::Terminate(terminated));
            }
            Err(error) => Reason::upstream_io(&error),
        },
        Ok(()) => copy(&mut client, &front, upstream).await,
    };
    let words = client.goodbye();
    park::close_with(&client.handle, &words);
    let end = End { outcome: Outcome::Terminated, reason: ended };
    worker.engine.emit(&front.end(), &end);
}

fn pair(client: &Client, upstream: Connection) -> std::io::Result<()> {
    let Some(socket) = upstream.into_socket() else { return Ok(()) };
    let socket = socket?;
    client.handle.set_connected(socket);
    Ok(())
}

/// Copies both directions until both have ended or one fails. Returns the reason.
async fn copy(client: &mut Client, front: &Front, mut upstream: Box<Connection>) -> Reason {
    let idle_timeout = front.worker.shared.config.limits.idle_timeout;
    let (mut up, mut down) = (Way::default(), Way::default());
    poll_fn(|task| {
        let before = (up.moved, down.moved);
        let upward = poll_up(task, client, &mut upstream, &mut up);
        let downward = poll_down(task, client, &mut upstream, &mut down);
        front.bytes_to_upstream.update(|bytes| bytes + up.moved - before.0);
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
    queue: Queue,
    ended: bool,
    told: bool,
    moved: u64,
}

fn poll_up(
    task: &mut Context<'_>,
    client: &mut Client,
    upstream: &mut Connection,
    way: &mut Way,
) -> Poll<Result<(), Reason>> {
    loop {
        let before = way.queue.len();
        let sent = upstream.poll_send(task, &mut way.queue);
        way.moved += (before - way.queue.len()) as u64;
        ready!(sent).map_err(|error| Reason::upstream_io(&error))?;
        if way.ended {
            if !way.told {
                let shut = ready!(upstream.poll_shutdown(task));
                shut.map_err(|error| Reason::upstream_io(&error))?;
                way.told = true;
            }
            return Poll::Ready(Ok(()));
        }
        if client.plain.is_empty() {
            match ready!(client.poll_fill(task, PIECE_BYTES_MIN)) {
                Ok(0) => way.ended = true,
                Ok(_) => {}
                Err(Gone::Stop(eyelet_engine::handle::Stop::Late)) => return Poll::Pending,
                Err(gone) => return Poll::Ready(Err(gone.reason())),
            }
        }
        way.queue.push(client.plain.split());
    }
}

fn poll_down(
    task: &mut Context<'_>,
    client: &mut Client,
    upstream: &mut Connection,
    way: &mut Way,
) -> Poll<Result<(), Reason>> {
    loop {
        let sent = client.poll_send(task, &mut way.queue);
        ready!(sent).map_err(|gone| gone.reason())?;
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
