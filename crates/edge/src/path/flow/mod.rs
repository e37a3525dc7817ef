//! The path of a flow of QUIC: read the hello, decide, and let its datagrams pass or refuse it.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::time::Duration;

use eyelet_balance::group::Tried;
use eyelet_config::{Action, DialSource, ListenerKind, Splice, TerminateUpstream};
use eyelet_engine::worker::Handle;
use eyelet_engine::worker::flow_state::FlowPass;
use eyelet_memory::slab::Key;
use eyelet_policy::Decision;
use eyelet_resolve::dial::{self, DialTarget};
use eyelet_telemetry::info::{ConnectionInfo, End, Outcome, UpstreamName};
use eyelet_telemetry::listing::State;
use eyelet_telemetry::reason::{Loop, Reason};
use eyelet_wire::hello::Hello;
use futures_util::FutureExt;

use crate::path::action::splice;
use crate::path::active::Active;
use crate::path::connection::emit_decision;
use crate::path::fact_source::KnownFacts;
use crate::path::flow::reading::{FlowHello, FlowReading, RefusedFlow};
use crate::path::peek;
use crate::path::shadow;
use crate::snapshot::edge::Edge;

mod reading;
mod traced;

pub use reading::import_guard;

/// The time in which a client sends its whole hello. It has sent the first part, and it repeats
/// what is lost after a second at most.
const HELLO_TIMEOUT: Duration = Duration::from_secs(3);

/// Decides a flow. Then its datagrams pass, or this function refuses it and logs its end.
pub async fn flow(edge: Rc<Edge>, handle: Handle, mut info: Box<ConnectionInfo>, flow: Key) {
    let connection = &mut Active { edge: &edge, handle: &handle, info: &mut info };
    let mut reading = FlowReading::new(flow);
    let served = AssertUnwindSafe(serve(connection, &mut reading)).catch_unwind().await;
    // An internal error ends this flow only.
    let panicked = |_| Err(End::failed(Reason::Internal("a panic")).into());
    if let Err(RefusedFlow { message, end }) = served.unwrap_or_else(panicked) {
        handle.refuse_flow(flow, reading.refusal(&message, &end));
        traced::refusal(&edge, &info, &end);
        edge.engine.emit(&info, &end);
    }
}

async fn serve(connection: &mut Active<'_>, reading: &mut FlowReading) -> Result<(), RefusedFlow> {
    let limits = &connection.edge.snapshot.config.limits;
    connection.handle.due_in(limits.hello_timeout.min(HELLO_TIMEOUT));
    check_destination(connection)?;
    let read = Box::pin(reading.hello(connection.handle, limits.hello_bytes_max)).await?;
    let rule = match &read {
        FlowHello::Hello(hello) => {
            peek::note_hello(connection, hello);
            let known = KnownFacts::none(connection);
            Box::pin(decide(known, Some(hello))).await?
        }
        FlowHello::OtherVersion => {
            let known = KnownFacts::without_hello(connection);
            Box::pin(decide(known, None)).await?
        }
    };
    drop(read);
    let action = connection.edge.snapshot.config.rules.at(rule).action;
    emit_decision(connection, action);
    match action {
        Action::Splice(_) if action.hold().is_some() => {
            // Its client would wait for seconds only. RefusedFlow, it may come back by TCP.
            Err(refused(Reason::Refused("hold")))
        }
        Action::Splice(rule) => pass(connection, rule, reading).await,
        // `decide` returns a refusal for a refuse rule. The others end TLS, which is TCP's.
        Action::Terminate(_) | Action::Originate(_) | Action::Refuse(_) => {
            Err(refused(Reason::Refused("transport")))
        }
    }
}

fn refused(reason: Reason) -> RefusedFlow {
    End { outcome: Outcome::Refused, reason }.into()
}

/// Fails where an intercepted client was led to this process itself.
fn check_destination(connection: &Active<'_>) -> Result<(), RefusedFlow> {
    let loops = &connection.edge.snapshot.names.loops;
    let destination = connection.info.decided.destination;
    let is_tproxy = connection.listener().kind == ListenerKind::Tproxy;
    match destination.filter(|_| is_tproxy).and_then(|to| loops.listener_at(to)) {
        Some(_) => Err(refused(Reason::Loop(Loop::ToListener))),
        None => Ok(()),
    }
}

/// Asks the rules, and fetches each fact that they need, until there is a verdict.
async fn decide(mut known: KnownFacts<'_>, hello: Option<&Hello<'_>>) -> Result<u32, RefusedFlow> {
    loop {
        match known.ask(hello) {
            Decision::Need(fact) => known.wait_for(fact).await?,
            Decision::Verdict(verdict) => {
                let settled = known.settle(verdict);
                shadow::note(&mut known, hello);
                return settled.map_err(|(message, end)| RefusedFlow { message, end });
            }
        }
    }
}

/// Lets the datagrams pass to the rule's upstream.
async fn pass(
    connection: &mut Active<'_>,
    rule: &Splice,
    reading: &mut FlowReading,
) -> Result<(), RefusedFlow> {
    if rule.proxy_protocol.is_some() {
        // It stands before a stream.
        return Err(refused(Reason::Refused("proxy_protocol")));
    }
    let to = Box::pin(upstream(connection, rule)).await?;
    connection.info.decided.upstream = Some(UpstreamName::Address(to));
    let source = match rule.source {
        DialSource::Host => None,
        DialSource::Client => Some(connection.info.client.ip()),
    };
    if source.is_some_and(|source| source.is_ipv4() != to.is_ipv4()) {
        return Err(End::failed(Reason::MixedFamilies).into());
    }
    let budget = &connection.edge.snapshot.budget;
    let (guard, seen) = reading.guard(budget);
    let info = connection.info.copy();
    // A rule that asks for the address would have to be asked again, with the hello.
    let may_change_address = !connection.edge.snapshot.config.policy.asks_clients;
    let is_from_client = source.is_some();
    let pass = FlowPass { to, is_from_client, may_change_address, guard, seen };
    connection
        .handle
        .pass_flow(reading.flow, info, pass)
        .map_err(|error| End::failed(Reason::upstream_io(&error)).into())
}

/// The address of the rule's upstream.
async fn upstream(connection: &mut Active<'_>, rule: &Splice) -> Result<SocketAddr, RefusedFlow> {
    let snapshot = &connection.edge.snapshot;
    connection.handle.due_in(snapshot.config.limits.connect_timeout);
    let target = splice::target(connection.info, rule);
    let target = target.ok_or_else(|| RefusedFlow::from(End::failed(Reason::NoDestination)))?;
    let is_configured = matches!(target, DialTarget::Configured(_));
    let decided = connection.info.decided.rule.filter(|_| is_configured);
    let group = decided.and_then(|rule| snapshot.names.upstreams.of(rule));
    let chosen = group.and_then(|group| {
        // Nothing is dialled, so no answer says that one is down. TCP finds that out.
        let now_ms = connection.edge.engine.now_unix_ms();
        let client = connection.info.client.ip();
        let nth = group.choose(client, now_ms, Tried::default())?;
        match &group.members.get(nth)?.upstream {
            TerminateUpstream::Tcp(to) => Some(to),
            _ => None,
        }
    });
    let target = chosen.map_or(target, DialTarget::Configured);
    connection.info.decided.upstream = target.upstream();
    connection.note_state(State::Dialling);
    let (names, handle) = (&connection.edge.names, connection.handle);
    let found = dial::for_datagrams(names, handle, connection.info, &target).await;
    found.map_err(|undialled| undialled.end.into())
}
