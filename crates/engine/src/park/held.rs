//! What a parked connection is that is held until somebody decides, and how it finds its question
//! again.

use std::rc::Rc;

use eyelet_relay::Relay;
use eyelet_relay::held::{HeldConnection, HeldState};
use eyelet_telemetry::info::{AskedBy, ConnectionInfo};
use eyelet_wire::socks::Reply;

use crate::table::{ConnectionTable, Slot, SlotState};
use crate::worker::Worker;
use crate::worker::queues::ShedPosition;

/// The answer to a CONNECT that ends before anybody has decided.
const UNDECIDED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 45\r\nConnection: close\r\n\r\n\
    The connection was held, and nobody decided.\n";
const UNDECIDED_SOCKS: &[u8] = &Reply::Failure.answer();

/// The last bytes to a client that still waits for an answer, when its connection ends here.
pub(super) fn last_answer(held: &HeldConnection) -> Option<&'static [u8]> {
    held.owes_answer.map(|asked_by| match asked_by {
        AskedBy::Connect => UNDECIDED,
        AskedBy::Socks => UNDECIDED_SOCKS,
    })
}

/// True if it is held.
pub(crate) fn is_held(relay: &Relay) -> bool {
    matches!(relay, Relay::Held(_))
}

/// True if it is held no longer: it goes on in a task.
pub(super) fn is_over(relay: &Relay) -> bool {
    matches!(relay, Relay::Held(held) if held.is_over())
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;
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
        let key = HoldKey { rule: "ask".into(), name: "a.example".into(), port: 443 };
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
            close(&worker, slot, Reason::Shed(Shed::Idle));
            let mut said = Vec::new();
            UnixStream::from(client).read_to_end(&mut said).unwrap();
            assert_eq!(said, expected);
        }
        let (head, body) = UNDECIDED.split_at(UNDECIDED.len() - 45);
        assert!(head.ends_with(b"\r\n\r\n") && body.starts_with(b"The connection"));
    }
}
