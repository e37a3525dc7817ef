//! A connection of HTTP/1.1 whose request is held: it is parked with the request as it came. Once
//! there is a verdict, or the time is over, the request is read and decided again.

use crate::exchange::resting::undecided_status;
use eyelet_downstream::client::io::ClientStream;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_downstream::connection::served_connection::record::Record;
use eyelet_engine::park;
use eyelet_hold::HoldPlace;
use eyelet_http1::head::{Request, Scanner, take_request};
use eyelet_relay::Relay;
use eyelet_relay::held::{HeldConnection, HeldState};
use eyelet_telemetry::info::End;
use eyelet_telemetry::reason::Reason;

/// Parks a connection whose request is held, with what came behind its head.
pub fn park_held(
    mut client: ClientStream,
    mut served: ServedConnection,
    request: &Request,
    place: HoldPlace,
) {
    let bytes = [request.raw(), &client.plain].concat().into_boxed_slice();
    client.plain.clear();
    let wait = served.http.shared.config.hold.timeout;
    let held = HeldConnection::new(bytes, None, wait, HeldState::Waits(place));
    let preface = std::mem::take(&mut served.preface);
    let (http, outcome) = (served.http.clone(), served.outcome());
    let (handle, relay) = client.into_parked(preface, None);
    let mut info = served.end();
    match relay {
        Relay::Terminate(terminated) => {
            park::park(&handle, &mut info, Relay::Held(held.of_request(terminated)));
        }
        // A hold rule ends TLS.
        Relay::Cleartext(_) | Relay::Held(_) | Relay::Splice(_) => {
            park::close_with(&handle, &[]);
            let reason = Reason::Internal("a request that is held has no TLS");
            http.engine.emit(&info, &End { outcome, reason });
        }
    }
}

/// Writes the access line of a request whose connection has ended while it was held. `head` begins
/// with its head, which was read before.
pub fn end_held(served: &ServedConnection, head: &[u8], reason: &Reason) {
    let head_bytes_max = head.len();
    let request = take_request(&mut head.into(), &mut Scanner::default(), head_bytes_max);
    let mut record = match &request {
        Ok(Some(request)) => Record::new(served, &request.parts),
        _ => Record::unread(served),
    };
    (record.failed, record.reason, record.status) =
        (true, reason.clone(), undecided_status(reason));
    served.emit(&record);
}
