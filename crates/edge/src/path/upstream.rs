//! Dials the upstream of a connection, and notes its address in the info.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Instant;

use eyelet_balance::group::{Group, Tried};
use eyelet_config::TerminateUpstream;
use eyelet_engine::ready::Side;
use eyelet_resolve::connect::{Balanced, Connected, DialOptions};
use eyelet_resolve::dial::{self, DialTarget, Undialled, may_dial_another};
use eyelet_resolve::share::share;
use eyelet_telemetry::info::{ConnectionInfo, End, UpstreamName};
use eyelet_telemetry::listing::State;
use eyelet_telemetry::reason::Reason;
use eyelet_telemetry::upstream::{CountedAt, OpenExchange};

use crate::path::active::Active;

pub mod moved;

/// Dials, and makes the connected socket the connection's upstream. Returns how many of the first
/// bytes were written. The info names the dialled address even after a failure. Of several
/// upstreams another one is dialled until one answers.
// An `async fn` would keep its arguments twice and make every task that much larger.
#[allow(clippy::manual_async_fn)]
pub fn dial(
    connection: &mut Active<'_>,
    target: &DialTarget<'_>,
    options: &DialOptions<'_>,
) -> impl Future<Output = Result<usize, End>> {
    async move {
        let snapshot = &connection.edge.snapshot;
        let is_configured = matches!(target, DialTarget::Configured(_) | DialTarget::Unix(_));
        // One of a group has its own time limit.
        if options.balanced.is_none() {
            let rule = connection.info.decided.rule.filter(|_| is_configured);
            if let Some(group) = rule.and_then(|rule| snapshot.names.upstreams.of(rule)) {
                return Box::pin(dial_any(connection, group, options)).await;
            }
            connection.handle.due_in(snapshot.config.limits.connect_timeout);
        }
        if let Some(upstream) = target.upstream() {
            connection.info.decided.upstream = Some(upstream);
        }
        let mut waited = false;
        let dialled = {
            let (names, handle) = (&connection.edge.names, connection.handle);
            let mut dialling = pin!(dial::dial(names, handle, connection.info, target, options));
            poll_fn(|task| {
                let polled = dialling.as_mut().poll(task);
                // A list shows the dial once it waits. Before that nobody can ask.
                if polled.is_pending() && !std::mem::replace(&mut waited, true) {
                    connection.note_state(State::Dialling);
                }
                polled
            })
            .await
        };
        connected(connection, dialled, waited)
    }
}

/// Makes the connected socket of a dial the connection's upstream.
fn connected(
    connection: &mut Active<'_>,
    dialled: Result<Connected<Side>, Undialled>,
    waited: bool,
) -> Result<usize, End> {
    let Connected { address, socket, registration, sent, source } = match dialled {
        Ok(connected) => connected,
        Err(undialled) => {
            note(connection.info, undialled.address);
            return Err(undialled.end);
        }
    };
    match waited {
        true => connection.handle.connected(),
        false => connection.handle.connected_at_once(),
    }
    match registration {
        None => connection.handle.set_connected(socket),
        Some(side) => connection
            .handle
            .set_upstream(socket, side)
            .map_err(|error| End::failed(Reason::Unregistered((&error).into())))?,
    }
    note(connection.info, address);
    connection.info.decided.counted_at = CountedAt::resting(source.into_iter().collect());
    Ok(sent)
}

/// Dials the upstreams of a group, each once, until one answers or `connect_timeout` has passed.
async fn dial_any(
    connection: &mut Active<'_>,
    group: &Group,
    options: &DialOptions<'_>,
) -> Result<usize, End> {
    let limit = connection.edge.snapshot.config.limits.connect_timeout;
    let (began, client) = (Instant::now(), connection.info.client.ip());
    let mut tried = Tried::default();
    let mut last = End::failed(Reason::NoAddress);
    loop {
        let now_ms = connection.edge.engine.now_unix_ms();
        let passed = began.elapsed();
        let next = group.choose(client, now_ms, tried).filter(|_| passed < limit);
        let Some((index, member)) = next.and_then(|next| Some((next, group.members.get(next)?)))
        else {
            return Err(last);
        };
        tried.add(index);
        let target = match &member.upstream {
            TerminateUpstream::Tcp(to) => DialTarget::Configured(to),
            TerminateUpstream::Tls(upstream) => DialTarget::Configured(&upstream.address),
            TerminateUpstream::Unix(path) => DialTarget::Unix(path),
            TerminateUpstream::Http(_) => {
                return Err(End::failed(Reason::Internal("dialled HTTP without a request")));
            }
        };
        let share = share(limit, passed, tried.count() == group.members.len());
        let balanced = Balanced { group, member, now_ms };
        let sources = member.sources.some();
        let options = DialOptions { balanced: Some(&balanced), sources, ..*options };
        connection.handle.due_in(share.wait);
        last = match dial(connection, &target, &options).await {
            Ok(sent) => {
                member.health.answered(connection.edge.engine.now_unix_ms());
                let address = match &connection.info.decided.upstream {
                    Some(UpstreamName::Address(address)) => Some(*address),
                    _ => None,
                };
                let counted_at = &mut connection.info.decided.counted_at;
                let open = member.counters(address).iter().map(OpenExchange::new).collect();
                *counted_at = CountedAt::joined(counted_at.take(), open);
                return Ok(sent);
            }
            Err(end) if !may_dial_another(&end.reason) => return Err(end),
            Err(end) => end,
        };
        if share.says_down(&last.reason) {
            member.health.failed(connection.edge.engine.now_unix_ms(), &last.reason);
        }
    }
}

fn note(info: &mut ConnectionInfo, address: Option<SocketAddr>) {
    if let Some(address) = address {
        info.decided.upstream = Some(UpstreamName::Address(address));
    }
}
