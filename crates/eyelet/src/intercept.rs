//! Connections that were meant for somebody else: where to, and whether they would come back to
//! this very process. It must not know what a rule makes of a destination.

use std::net::SocketAddr;

use eyelet_sys::interfaces;

use crate::action::refuse::{self, Answer};
use crate::active::Active;
use crate::connect;
use eyelet_config::{Action, Listener, ListenerKind, SpliceUpstream};
use eyelet_memory::budget::CountedBuffer;
use eyelet_resolve::loops::TURNS_MAX;
use eyelet_telemetry::info::{ConnectionInfo, End, Outcome};
use eyelet_telemetry::reason::{Loop, Reason};

/// Finds out where an accepted connection was meant to go, where its listener's kind tells.
/// `raw` is what was read so far.
pub async fn arrive(
    active: &Active,
    info: &mut ConnectionInfo,
    raw: &mut CountedBuffer,
) -> Result<(), End> {
    let listener = listener_of(active, info);
    let destination = match listener.kind {
        ListenerKind::Direct | ListenerKind::HttpRedirect => return Ok(()),
        ListenerKind::Connect => return connect::read_head(active, info, raw).await,
        // A load balancer in front knows better than the kernel, which sees the balancer's.
        _ if info.decided.destination.is_some() => return Ok(()),
        ListenerKind::Redirect => active.original_destination(listener.address.ip()),
        ListenerKind::Tproxy => active.local_address(),
    };
    info.decided.destination = destination;
    let Some(destination) = destination else {
        return refused(active, Loop::Dialled);
    };
    let loops = &active.worker.snapshot.names.loops;
    if loops.listener_at(destination).is_some() {
        return refused(active, Loop::ToListener);
    }
    if loops.is_ours(info.client, destination, || active.is_connected()) {
        return refused(active, Loop::Own);
    }
    Ok(())
}

/// The listener that accepted a connection.
pub fn listener_of<'a>(active: &'a Active, info: &ConnectionInfo) -> &'a Listener {
    &active.worker.snapshot.config.listeners[usize::from(info.decided.listener)]
}

/// Fails where dialling `address` would come to a listener of this edge. What the administrator
/// wrote may lead from one listener to another, once; what a client says may not. Whether it does.
pub fn check_loop(
    active: &Active,
    info: &ConnectionInfo,
    address: SocketAddr,
    configured: bool,
) -> Result<bool, End> {
    let Some(listener) = active.worker.snapshot.names.loops.listener_at(address) else {
        return Ok(false);
    };
    let is_itself = !configured || listener == usize::from(info.decided.listener);
    if !is_itself && !info.decided.is_handed {
        return Ok(true);
    }
    let how = if is_itself { Loop::Listener } else { Loop::Handed };
    Err(looped(how(Box::new(address))))
}

/// Fails where a hello is one that this edge sent where a client wanted to go, and that would be
/// sent so again. If it goes elsewhere it counts as one that a listener of ours handed over.
pub fn check_return(
    active: &Active,
    info: &mut ConnectionInfo,
    hello: &[u8],
    action: &Action,
) -> Result<(), End> {
    let Some(turns) = active.worker.snapshot.names.loops.turns(info.client, hello) else {
        return Ok(());
    };
    info.decided.turns = turns.saturating_add(1);
    info.decided.is_handed |= interfaces::is_local(info.client.ip());
    match action {
        _ if !info.decided.is_handed && turns < TURNS_MAX => Ok(()),
        Action::Splice(splice) if !matches!(splice.upstream, SpliceUpstream::HostPort(_)) => {
            Err(looped(Loop::Returned))
        }
        _ => Ok(()),
    }
}

/// Whoever loops is not told so in TLS: it is us, or has sent nothing yet.
fn refused(active: &Active, how: Loop) -> Result<(), End> {
    refuse::refuse(active, &Answer::Nothing, looped(how))
}

fn looped(how: Loop) -> End {
    End { outcome: Outcome::Refused, reason: Reason::Loop(how) }
}
