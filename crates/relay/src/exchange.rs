//! A connection whose exchange rests, with TLS to its client or without. Nothing of it is read
//! here: the next byte of either side, or its end, has the program go on. What the client has not
//! taken is sent before.

use std::io;

use super::buffers::Buffers;
use super::flow::Flow;
use super::sockets::{Progress, Sockets};
use crate::ready::{CLIENT, READ, UPSTREAM};
use crate::socket;

/// Sends what is held. Says whether the program is to go on with the exchange.
pub fn run(flow: &mut Flow, sockets: &mut Sockets<'_>, buffers: &mut Buffers) -> Progress {
    match sockets.flush(flow, CLIENT, buffers) {
        Ok(true) => {}
        // The program would only wait for that, too.
        Ok(false) => return Progress::Rest,
        // The program's own write finds it.
        Err(_) => return Progress::Dial,
    }
    for side in [UPSTREAM, CLIENT] {
        if !sockets.ready.any(side, READ) {
            continue;
        }
        let Some(socket) = sockets.socket(side) else { continue };
        match socket::is_readable(socket) {
            Ok(false) => sockets.ready.clear(side, READ),
            // The program's own read finds an end, or an error.
            Ok(true) | Err(_) => return Progress::Dial,
        }
    }
    Progress::Rest
}

/// True if the client of a connection with streams has ended its own, or has failed.
pub fn has_client_ended(sockets: &Sockets<'_>) -> bool {
    sockets.ready.any(CLIENT, READ)
        && match socket::peek(sockets.client, &mut [0]) {
            Ok(read) => read == 0,
            Err(error) => {
                !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
            }
        }
}
