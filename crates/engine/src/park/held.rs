//! A parked connection that is held until somebody decides, and the way back to its question.

use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use eyelet_hold::HoldPlace;
use eyelet_memory::slab::Key;
use eyelet_relay::held::{HeldConnection, HeldState};
use eyelet_relay::terminate::final_records;
use eyelet_relay::{Flow, Relay};
use eyelet_telemetry::info::{AskedBy, ConnectionInfo, End, Parked};
use eyelet_telemetry::listing::streams::StreamKind;
use eyelet_wire::socks::Reply;

use crate::socket;
use crate::worker::Worker;
use eyelet_table::queues::ShedPosition;
use eyelet_table::{ConnectionTable, Slot, SlotState};

/// Reads of what the client of a held connection has sent, at its end: 1 MiB or more.
const UNREAD_READS: usize = 16;

/// The answer to a CONNECT that ends before anybody has decided.
const UNDECIDED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 45\r\nConnection: close\r\n\r\n\
    The connection was held, and nobody decided.\n";
/// The answer to a request that ends so.
const UNDECIDED_REQUEST: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 42\r\nConnection: close\r\n\r\n\
    The request was held, and nobody decided.\n";
const UNDECIDED_SOCKS: &[u8] = &Reply::Failure.answer();

/// The last bytes to a client that still waits for an answer, when its connection ends here.
pub(super) fn last_answer(held: &mut HeldConnection) -> Option<Cow<'static, [u8]>> {
    if let Some(mut terminated) = held.take_terminated() {
        return Some(final_records(&mut terminated, UNDECIDED_REQUEST).into());
    }
    held.owes_answer.map(|asked_by| match asked_by {
        AskedBy::Connect => UNDECIDED.into(),
        AskedBy::Socks => UNDECIDED_SOCKS.into(),
    })
}

/// Reads and drops what a client has sent, so that the end of its connection does not overtake its
/// answer as a reset. Bounded: one who sends without end gets the reset.
pub(super) fn drop_unread(client: &OwnedFd, buffer: &mut [u8]) {
    for _ in 0..UNREAD_READS {
        if !matches!(socket::recv(client, buffer), Ok(1..)) {
            return;
        }
    }
}

/// Has the program write the access line of a request that ends while it is held.
pub(super) fn end_request(worker: &Worker, info: &Parked, held: &HeldConnection, end: &End) {
    if let (true, Some(program)) = (held.is_request(), worker.program()) {
        let info = info.info(&worker.shared.borrow());
        program.end_held(info, held, end);
    }
}

/// True if it is held.
pub(crate) fn is_held(relay: &Relay) -> bool {
    matches!(relay, Relay::Held(_))
}

/// True if it is held no longer: it goes on in a task.
pub(super) fn is_over(relay: &Relay) -> bool {
    matches!(relay, Relay::Held(held) if held.is_over())
}

/// True if nothing of a connection goes on before a verdict comes: it is held, or so are all of its
/// streams. It is ended for others as such a one.
pub(crate) fn waits_for_verdicts(worker: &Worker, relay: &Relay) -> bool {
    let has_streams = || relay.served_flow().is_some_and(Flow::has_streams);
    is_held(relay)
        || has_streams() && {
            let streams = worker.resting_streams(relay);
            let held = streams.of(StreamKind::Held);
            held > 0 && held == streams.all()
        }
}

/// True if one of these streams has something to do: it has its verdict, or has to ask anew.
pub(crate) fn are_over(streams: &[Option<HoldPlace>]) -> bool {
    streams.iter().any(|place| place.as_ref().is_none_or(|place| place.decision().is_some()))
}

/// True if something has come for what rests on a parked connection, or a held stream of it has
/// something to do.
pub(super) fn is_called(table: &ConnectionTable, key: Key) -> bool {
    are_over(table.holds(key)) || table.is_called(key)
}

/// Has the program find the question of a connection that comes from another process.
pub(super) fn ask_again(worker: &Rc<Worker>, info: &ConnectionInfo, relay: &mut Relay) {
    if let Relay::Held(held) = relay
        && held.is_over()
        && held.decision().is_none()
        && let Some(key) = held.key().cloned()
    {
        let program = worker.program();
        let question = program.and_then(|program| program.ask_again(info, key, held.bytes().len()));
        held.set_question(question.map_or(HeldState::Anew, HeldState::Waits));
    }
}

/// The held connection of a position, unless that is stale.
pub(crate) fn held_at<'a>(
    table: &'a mut ConnectionTable,
    at: &ShedPosition,
) -> Option<&'a mut HeldConnection> {
    match table.slot(at.key)? {
        Slot { position, state: SlotState::Parked { relay: Relay::Held(held), .. }, .. }
            if *position == at.position =>
        {
            Some(held)
        }
        _ => None,
    }
}

/// True if the connection of a position waits for verdicts, unless the position is stale.
pub(crate) fn waits_at(worker: &Worker, table: &mut ConnectionTable, at: &ShedPosition) -> bool {
    match table.slot(at.key) {
        Some(Slot { position, state: SlotState::Parked { relay, .. }, .. }) => {
            *position == at.position && waits_for_verdicts(worker, relay)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Duration;

    use eyelet_hold::{HoldKey, Holds, Who};
    use eyelet_telemetry::reason::{Reason, Shed};

    use super::*;
    use crate::park::close;
    use crate::park::tests::parked;
    use crate::testing::worker;

    #[test]
    fn a_client_that_waits_for_an_answer_gets_one_at_its_end() {
        let (rule, name) = ("ask".into(), "a.example".into());
        let key = HoldKey { rule, name, port: 443, request: None };
        let who = Who { client: [127, 0, 0, 1].into(), program: None, file: None };
        for (owes, expected) in [
            (Some(AskedBy::Connect), UNDECIDED),
            (Some(AskedBy::Socks), &[5, 1, 0, 1, 0, 0, 0, 0, 0, 0][..]),
            (None, b""),
        ] {
            let worker = worker();
            let wait = Duration::from_secs(60);
            let place = Arc::new(Holds::default()).ask(key.clone(), who.clone(), 0, 1).unwrap();
            let held = HeldConnection::new(Box::default(), owes, wait, HeldState::Waits(place));
            let (slot, client) = parked(&worker, Relay::Held(held));
            // Unread bytes cause no reset that overtakes the answer.
            if owes.is_some() {
                let mut sent = UnixStream::from(client.try_clone().unwrap());
                sent.write_all(&[b'x'; 3_000]).unwrap();
            }
            close(&worker, slot, Reason::Shed(Shed::Idle));
            let mut said = Vec::new();
            UnixStream::from(client).read_to_end(&mut said).unwrap();
            assert_eq!(said, expected);
        }
        for (answer, length) in [(UNDECIDED, 45), (UNDECIDED_REQUEST, 42)] {
            let (head, body) = answer.split_at(answer.len() - length);
            let field = format!("Content-Length: {length}\r\n");
            assert!(head.ends_with(b"\r\n\r\n") && body.starts_with(b"The "));
            assert!(std::str::from_utf8(head).unwrap().contains(&field));
        }
    }
}
