//! A client without TLS between two requests. Nothing of it is read here: its next byte wakes the
//! program. What it has not taken of the last response is sent.

use std::io;

use super::buffers::Buffers;
use super::flow::Flow;
use super::sockets::{Progress, Sockets};
use crate::ready::{CLIENT, READ};
use crate::socket;
use eyelet_telemetry::info::{End, Outcome};
use eyelet_telemetry::reason::Reason;

/// Sends what is held. Says whether the client has sent something, or has ended.
pub fn run(flow: &mut Flow, sockets: &mut Sockets<'_>, buffers: &mut Buffers) -> Progress {
    if let Err(failed) = sockets.flush(flow, CLIENT, buffers) {
        return Progress::Reset(originated(failed.reason()));
    }
    if !sockets.ready.any(CLIENT, READ) {
        return Progress::Rest;
    }
    match socket::peek(sockets.client, &mut [0]) {
        Ok(0) => Progress::Closed(originated(Reason::ClientClosed(None))),
        Ok(_) => Progress::Dial,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            sockets.ready.clear(CLIENT, READ);
            Progress::Rest
        }
        // The next wake looks again.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Progress::Again,
        Err(error) => Progress::Reset(originated(Reason::client_io(&error, None))),
    }
}

fn originated(reason: Reason) -> End {
    End { outcome: Outcome::Originated, reason }
}
