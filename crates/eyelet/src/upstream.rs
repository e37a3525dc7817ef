//! Dials the upstream of a connection, and notes in its info who was dialled. It must not know
//! how an upstream is dialled.

use std::net::SocketAddr;

use eyelet_resolve::connect::{Connected, Options};
use eyelet_resolve::dial::{self, Target};
use eyelet_telemetry::info::{ConnectionInfo, End, Upstream};
use eyelet_telemetry::reason::Reason;

use crate::active::Active;

/// Dials and makes the connected socket the connection's upstream; how many of the first bytes
/// were written. The info names who was dialled, also when nobody answered.
pub async fn dial(
    active: &Active,
    info: &mut ConnectionInfo,
    target: &Target<'_>,
    options: &Options<'_>,
) -> Result<usize, End> {
    active.due_in(active.worker.edge.config.limits.connect_timeout);
    if let Some(upstream) = target.upstream() {
        info.decided.upstream = Some(upstream);
    }
    let dialled = dial::dial(&active.worker.names, &active.handle, info, target, options).await;
    let Connected { address, socket, registration, sent } = match dialled {
        Ok(connected) => connected,
        Err(undialled) => {
            note(info, undialled.address);
            return Err(undialled.end);
        }
    };
    match registration {
        None => active.set_connected(socket),
        Some(side) => active
            .set_upstream(socket, side)
            .map_err(|error| End::failed(Reason::Unwatched((&error).into())))?,
    }
    note(info, address);
    Ok(sent)
}

fn note(info: &mut ConnectionInfo, address: Option<SocketAddr>) {
    if let Some(address) = address {
        info.decided.upstream = Some(Upstream::Address(address));
    }
}
