//! Dials the upstream of a connection, and notes its address in the info.

use std::net::SocketAddr;

use eyelet_resolve::connect::{Connected, DialOptions};
use eyelet_resolve::dial::{self, DialTarget};
use eyelet_telemetry::info::{ConnectionInfo, End, UpstreamName};
use eyelet_telemetry::reason::Reason;

use crate::connection_handle::ConnectionHandle;

/// Dials, and makes the connected socket the connection's upstream. Returns how many of the first
/// bytes were written. The info names the dialled address even after a failure.
pub async fn dial(
    connection: &ConnectionHandle,
    info: &mut ConnectionInfo,
    target: &DialTarget<'_>,
    options: &DialOptions<'_>,
) -> Result<usize, End> {
    connection.handle.due_in(connection.worker.snapshot.config.limits.connect_timeout);
    if let Some(upstream) = target.upstream() {
        info.decided.upstream = Some(upstream);
    }
    let dialled =
        dial::dial(&connection.worker.names, &connection.handle, info, target, options).await;
    let Connected { address, socket, registration, sent } = match dialled {
        Ok(connected) => connected,
        Err(undialled) => {
            note(info, undialled.address);
            return Err(undialled.end);
        }
    };
    match registration {
        None => connection.handle.set_connected(socket),
        Some(side) => connection
            .handle
            .set_upstream(socket, side)
            .map_err(|error| End::failed(Reason::Unregistered((&error).into())))?,
    }
    note(info, address);
    Ok(sent)
}

fn note(info: &mut ConnectionInfo, address: Option<SocketAddr>) {
    if let Some(address) = address {
        info.decided.upstream = Some(UpstreamName::Address(address));
    }
}
