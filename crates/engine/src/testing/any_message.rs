//! Messages of other processes, whatever their bytes. Asserts: no panic; what is read is written
//! and read again as the same; and a worker that gets it has nothing left when it is gone.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;

use eyelet_memory::budget::Account;
use eyelet_record::{EXPORT_BYTES, Session};
use eyelet_sys::socket::datagram;

use super::flows::come_and_go;
use super::worker;
use crate::departure::BATCH_DESCRIPTORS_MAX;
use crate::moving::group::SocketRoom;
use crate::moving::parcel::Parcel;
use crate::moving::parts::{GroupProgress, IncomingGroup};

/// Messages that are read. The input changes their bytes.
const STORED: [&str; 11] = [
    include_str!("../../../handover/src/v1/spliced.hex"),
    include_str!("../../../handover/src/v1/inspected.hex"),
    include_str!("../../../handover/src/v1/tls13.hex"),
    include_str!("../../../handover/src/v1/tls12.hex"),
    include_str!("../../../handover/src/v1/websocket.hex"),
    include_str!("../../../handover/src/v4/cleartext.hex"),
    include_str!("../../../handover/src/v5/agreed.hex"),
    include_str!("../../../handover/src/v6/resting.hex"),
    include_str!("../../../handover/src/v7/group.hex"),
    include_str!("../../../handover/src/v9/held.hex"),
    include_str!("../../../handover/src/v12/known.hex"),
];

/// Stored flows of QUIC, and how many sockets they have.
pub const FLOWS: &str = include_str!("../../../handover/src/v11/flows.hex");
pub const FLOWS_SOCKETS: u8 = 2;

/// The first byte says what the others are: a session, a message, parts of a group, each behind its
/// length in two bytes and the number of its sockets in one, flows of QUIC behind the number of
/// their sockets, or changes of the stored flows, or of another stored message.
/// A change is a position of two bytes, and a byte to put there.
pub fn any_message(input: &[u8]) {
    let Some((&choice, rest)) = input.split_first() else { return };
    match choice {
        0 => session(rest),
        1 => message(rest),
        2 => _ = group_in_parts(rest),
        3 => _ = rest.split_first().map(|(&count, body)| flows(count, body)),
        4 => {
            let bytes = changed(from_hex(FLOWS), rest);
            flows(FLOWS_SOCKETS, &bytes);
        }
        choice => {
            message(&changed(stored(usize::from(choice) % STORED.len()), rest));
        }
    }
}

/// A message with these changes.
fn changed(mut bytes: Vec<u8>, changes: &[u8]) -> Vec<u8> {
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_be_bytes([change[0], change[1]]));
        let len = bytes.len();
        bytes[at % len] = change[2];
    }
    // What is left over of the input makes it shorter.
    bytes.truncate(bytes.len() - changes.len() % 3);
    bytes
}

/// The bytes of a stored message.
pub fn stored(index: usize) -> Vec<u8> {
    from_hex(STORED[index])
}

/// The bytes of hex digits.
pub fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn session(bytes: &[u8]) {
    let Ok(session) = Session::import(bytes) else { return };
    let mut again = [0; EXPORT_BYTES];
    session.export(&mut again);
    assert!(again == bytes, "a session has one form");
}

fn message(bytes: &[u8]) {
    // A connection has one socket or two, or further ones where it has a state; a group has more.
    for count in [1, 2, 4] {
        let Some((edge, _peers)) = sockets(count) else { return };
        parcel(bytes, edge);
    }
}

/// A message with these sockets. Returns true if it is read.
fn parcel(bytes: &[u8], edge: Vec<OwnedFd>) -> bool {
    let count = edge.len();
    let Ok(parcel) = Parcel::decode(bytes, edge) else { return false };
    let written = parcel.encode();
    let Some((edge, _peers)) = sockets(count) else { return true };
    let Ok(again) = Parcel::decode(&written, edge) else {
        panic!("what is written is not read");
    };
    assert!(again.encode() == written, "a written message is written again as the same");
    drop(again);
    serve(parcel);
    true
}

/// Any messages as the parts of a group. What of it has come is counted, and nothing is left of it.
/// Returns how many groups were whole and read.
pub fn group_in_parts(mut bytes: &[u8]) -> usize {
    let worker = worker();
    let mut incoming: Option<IncomingGroup> = None;
    let mut groups = 0;
    while let [l0, l1, count, rest @ ..] = bytes {
        let len = usize::from(u16::from_be_bytes([*l0, *l1]));
        let (part, behind) = rest.split_at(rest.len().min(len));
        bytes = behind;
        // One of the stored groups' is enough: more cost time.
        let Some((edge, _peers)) = sockets(usize::from(*count) % 8) else { break };
        incoming = match incoming.take() {
            None => IncomingGroup::begin(part, &edge, &worker.process).ok(),
            Some(it) => match it.add(part, edge) {
                Ok(GroupProgress::More(more)) => Some(more),
                Ok(GroupProgress::Whole(whole)) => {
                    groups += usize::from(parcel(&whole.states, whole.sockets));
                    None
                }
                Err(_) => None,
            },
        };
        let is_counted = worker.process.descriptors.load(Relaxed) > 0;
        assert_eq!(is_counted, incoming.is_some());
    }
    groups
}

/// A message of flows with so many sockets: it is read or not. Those that are served leave again,
/// and nothing is left of them. Returns how many were.
pub fn flows(count: u8, body: &[u8]) -> usize {
    let worker = worker();
    let discard = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
    let socket = |_| datagram::connect(discard, None).ok();
    let Some(sockets) = (0..count % 8).map(socket).collect() else { return 0 };
    let placed = come_and_go(&worker, body, sockets);
    assert_eq!(worker.process.open.load(Relaxed), 0);
    assert_eq!(worker.process.descriptors.load(Relaxed), 0);
    assert_eq!(worker.process.unanswered.all(), 0);
    assert!(worker.shared.borrow().is_empty());
    placed.map_or(0, |placed| placed.served)
}

fn sockets(count: usize) -> Option<(Vec<OwnedFd>, Vec<OwnedFd>)> {
    let pairs: Result<Vec<_>, _> = (0..count).map(|_| eyelet_sys::socket::pair()).collect();
    Some(pairs.ok()?.into_iter().unzip())
}

/// Parks it in a worker, which sends what it holds. Then it leaves again, and is ended.
fn serve(parcel: Parcel) {
    let worker = worker();
    if parcel.attach(&worker).is_err() {
        return;
    }
    let keys = || worker.table.borrow().keys();
    for key in keys() {
        if let Ok(parcel) =
            Parcel::detach(&worker, key, SocketRoom::of(&worker, BATCH_DESCRIPTORS_MAX, 0))
        {
            parcel.close(&worker);
        }
    }
    // A client that may still send lingers.
    keys().into_iter().for_each(|key| worker.late(key));
    assert!(worker.table.borrow().is_empty());
    assert_eq!(worker.process.open.load(Relaxed), 0);
    assert_eq!(worker.process.descriptors.load(Relaxed), 0);
    assert_eq!(worker.process.budget.used_by(Account::Relayed), 0);
    assert!(worker.shared.borrow().is_empty());
}
