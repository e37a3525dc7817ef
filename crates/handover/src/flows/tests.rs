//! The stored message of flows, which an upgrade from any release that wrote it needs to be read.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::format::tests::from_hex;
use eyelet_telemetry::reason::Reason;

use crate::guard::GuardTurn;

struct Stored(Vec<u8>);

impl DatagramGuard for Stored {
    fn read(&mut self, _: &[u8], _: Option<&[u8]>) -> GuardTurn {
        GuardTurn::Drops
    }

    fn export(&self) -> Option<Vec<u8>> {
        Some(self.0.clone())
    }

    fn refusal(&self, _: &Reason) -> Vec<u8> {
        Vec::new()
    }
}

fn sockets() -> Vec<OwnedFd> {
    let to = SocketAddr::from(([127, 0, 0, 1], 9));
    (0..2).map(|_| datagram::connect(to, None).unwrap()).collect()
}

#[test]
fn a_stored_message_is_read() {
    const NOW_MS: u64 = 1_800_000_000_000;
    let body = from_hex(include_str!("../v11/flows.hex"));
    let import =
        |form: &[u8]| -> Option<Box<dyn DatagramGuard>> { Some(Box::new(Stored(form.to_vec()))) };
    let read = decode(&body, sockets(), NOW_MS, import).unwrap();
    assert_eq!((read.flows.len(), read.unread, read.fault), (2, 0, None));
    let first = &read.flows[0];
    assert_eq!(first.info.decided.sni.as_deref(), Some("a.example"));
    assert_eq!(first.flow.first_id.as_bytes(), b"first-id");
    assert_eq!(first.flow.server_id.as_ref().map(FlowId::as_bytes), Some(&b"server-1"[..]));
    assert_eq!(
        (first.flow.moved.bytes_to_upstream, first.flow.moved.bytes_to_client),
        (1200, 1200)
    );
    assert!(first.flow.addresses[0].is_answered && !read.flows[1].flow.addresses[0].is_answered);
    let MovingGuard::Reads(_, form) = &read.flows[1].flow.addresses[0].payload.guard else {
        unreachable!("its guard reads on")
    };
    assert_eq!(form, &[2]);
    assert!(encode(&read.flows, NOW_MS).unwrap().body == body, "it is written as it was");
}

/// A fault in the first flow leaves the second one its own socket.
#[test]
fn a_faulty_flow_ends_alone() {
    let mut body = from_hex(include_str!("../v11/flows.hex"));
    let at = body.windows(8).position(|part| part == b"first-id").unwrap();
    body.splice(at - 1..at + 8, [&[21][..], &[7; 21]].concat());
    let own = sockets();
    let second = datagram::cookie(&own[1]).unwrap();
    let read = decode(&body, own, 0, |_| None).unwrap();
    assert_eq!((read.flows.len(), read.unread, read.fault), (1, 1, Some(FlowImportError::Id)));
    let payload = &read.flows[0].flow.addresses[0].payload;
    assert_eq!(datagram::cookie(&payload.socket).unwrap(), second);
    assert!(matches!(payload.guard, MovingGuard::HelloIsOver));
}
