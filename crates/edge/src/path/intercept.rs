//! Intercepted connections: their original destination, and whether they would return to this
//! process.

use eyelet_sys::interfaces;

use crate::path::active::Active;
use crate::path::connect::{self, ProxyRequest};
use crate::path::plain_http;
use crate::path::refuse::{self, RefusalMessage};
use eyelet_config::{Action, HttpAddress, ListenerKind, SpliceUpstream};
use eyelet_memory::budget::CountedBuffer;
use eyelet_resolve::loops::HOPS_MAX;
use eyelet_telemetry::info::{End, Outcome};
use eyelet_telemetry::reason::{Loop, Reason};

/// Finds the original destination of an accepted connection, if its listener's kind gives one.
/// `raw` has the bytes read so far.
pub async fn arrive(connection: &mut Active<'_>, raw: &mut CountedBuffer) -> Result<(), End> {
    let listener = connection.listener();
    let destination = match listener.kind {
        ListenerKind::Direct | ListenerKind::HttpRedirect | ListenerKind::Plain => return Ok(()),
        ListenerKind::Connect => {
            return match connect::read_request(connection, raw).await? {
                ProxyRequest::Target => Ok(()),
                ProxyRequest::PlainHttp => Box::pin(plain_http::serve(connection, raw)).await,
            };
        }
        // The load balancer's PROXY header wins: the kernel knows only the balancer's destination.
        _ if connection.info.decided.destination.is_some() => return Ok(()),
        ListenerKind::Redirect => {
            connection.handle.original_destination(listener.address.inet().ip())
        }
        ListenerKind::Tproxy => connection.handle.local_address(),
    };
    connection.info.decided.destination = destination;
    let Some(destination) = destination else {
        return refused(connection, Loop::Dialled);
    };
    let loops = &connection.edge.snapshot.names.loops;
    if loops.listener_at(destination).is_some() {
        return refused(connection, Loop::ToListener);
    }
    if loops.is_ours(connection.info.client, destination, || connection.handle.is_connected()) {
        return refused(connection, Loop::Own);
    }
    Ok(())
}

/// Fails if this edge sent the hello itself and would send it on again. If the action leads
/// elsewhere, the connection counts as handed over by one of our listeners.
pub fn check_return(connection: &mut Active<'_>, hello: &[u8], action: &Action) -> Result<(), End> {
    let Some(hop_count) =
        connection.edge.snapshot.names.loops.hop_count(connection.info.client, hello)
    else {
        return Ok(());
    };
    connection.info.decided.hop_count = hop_count.saturating_add(1);
    connection.info.decided.is_handed |= interfaces::is_local(connection.info.client.ip());
    let follows_client = match action {
        Action::Splice(splice) => !matches!(splice.upstream, SpliceUpstream::HostPort(_)),
        Action::Terminate(terminate) => {
            let http = terminate.upstream.as_http();
            http.is_some_and(|http| http.address == HttpAddress::Destination)
        }
        Action::Originate(_) | Action::Refuse(_) => false,
    };
    match follows_client {
        _ if !connection.info.decided.is_handed && hop_count < HOPS_MAX => Ok(()),
        true => Err(looped(Loop::Returned)),
        false => Ok(()),
    }
}

/// A loop gets no alert: the peer is this edge, or has sent nothing yet.
fn refused(connection: &Active<'_>, how: Loop) -> Result<(), End> {
    refuse::refuse(connection, &RefusalMessage::Nothing, looped(how))
}

fn looped(how: Loop) -> End {
    End { outcome: Outcome::Refused, reason: Reason::Loop(how) }
}
