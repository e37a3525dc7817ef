//! Messages that are, or are not, the next part of a group.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::testing::worker;

/// Sockets of the group: three parts have them.
const ALL: usize = 2 * BATCH_DESCRIPTORS_MAX + 1;
const GROUP: u64 = 7;
const MESSAGE: &[u8] = b"its message";
/// A change of a part and its sockets, and what is said of it.
type Case = (&'static str, Change, PartFault);
type Change = fn(&mut PartV8<'static>, &mut usize);

/// The part at a place, and the number of its sockets.
fn part(part: u16) -> (PartV8<'static>, usize) {
    let sockets = [0, BATCH_DESCRIPTORS_MAX, BATCH_DESCRIPTORS_MAX, 1][usize::from(part)];
    let message = if part == 3 { MESSAGE } else { &[] };
    (PartV8 { group: GROUP, part, sockets: ALL as u16, message }, sockets)
}

fn sockets(count: usize) -> Vec<OwnedFd> {
    let (one, _) = eyelet_sys::socket::pair().unwrap();
    (0..count).map(|_| one.try_clone().unwrap()).collect()
}

/// A process with room for so many sockets.
fn room_for(sockets: usize) -> Arc<Process> {
    let process = worker().process.clone();
    process.descriptors_max.store(sockets, Relaxed);
    process
}

fn take_in(
    before: Option<IncomingGroup>,
    (part, count): &(PartV8<'static>, usize),
    room: &Arc<Process>,
) -> Result<GroupProgress, PartFault> {
    let bytes = to_bytes(VERSION_PART, part);
    match before {
        None => IncomingGroup::begin(&bytes, &sockets(*count), room).map(GroupProgress::More),
        Some(it) => it.add(&bytes, sockets(*count)),
    }
}

/// Returns a group of which so many parts have come, as they should.
fn begun(count: u16, room: &Arc<Process>) -> Option<IncomingGroup> {
    let mut incoming = None;
    for at in 0..count {
        match take_in(incoming.take(), &part(at), room) {
            Ok(GroupProgress::More(more)) => incoming = Some(more),
            Ok(GroupProgress::Whole(_)) | Err(_) => panic!("it is not whole"),
        }
    }
    incoming
}

#[test]
fn parts_are_what_is_read() {
    let room = room_for(ALL);
    let sockets: Vec<_> = sockets(ALL).into_iter().map(Arc::new).collect();
    let states = Zeroizing::new(MESSAGE.to_vec());
    let batch = LeavingBatch { states, sockets, group: Some(GROUP) };
    let written: Vec<_> = parts(GROUP, &batch).collect();
    for (at, written) in written.iter().enumerate() {
        let (part, count) = part(at as u16);
        assert_eq!(*written.body, *to_bytes(VERSION_PART, &part), "{at}");
        assert_eq!((written.sockets.len(), is_first(&written.body)), (count, at == 0));
    }
    let Ok(GroupProgress::Whole(whole)) = take_in(begun(3, &room), &part(3), &room) else {
        panic!("it is whole")
    };
    assert_eq!((&whole.states[..], whole.sockets.len()), (MESSAGE, ALL));
    assert_eq!(room.descriptors.load(Relaxed), ALL, "they count until a worker has them");
    drop(whole);
    assert_eq!(room.descriptors.load(Relaxed), 0);
}

/// Version 8 as it is written for ever.
#[test]
fn a_stored_part_is_read_for_ever() {
    let bytes = [0, 8, 7, 3, 0xfb, 0x03, 11, b'i', b't', b's', b' '];
    let whole = [&bytes[..], b"message"].concat();
    assert_eq!(*to_bytes(VERSION_PART, &part(3).0), whole);
    for len in 0..whole.len() {
        assert_eq!(read(&whole[..len]).err(), Some(PartFault::Malformed), "{len}");
    }
    assert_eq!(read(&[&whole[..], &[0]].concat()).err(), Some(PartFault::Malformed));
}

#[test]
fn a_message_that_is_not_the_next_part_ends_the_group() {
    const FEW: usize = BATCH_DESCRIPTORS_MAX - 1;
    let due = BATCH_DESCRIPTORS_MAX;
    let most = GROUP_DESCRIPTORS_MAX as u16 + 1;
    // By how many parts have come, and which one comes then.
    let cases: [(u16, u16, Case); 14] = [
        (0, 1, ("no first part", |_, _| (), PartFault::Order { due: 0, got: 1 })),
        (0, 0, ("no sockets", |it, _| it.sockets = 0, PartFault::Size(0))),
        (
            0,
            0,
            (
                "too many",
                |it, _| it.sockets = GROUP_DESCRIPTORS_MAX as u16 + 1,
                PartFault::Size(most),
            ),
        ),
        (0, 0, ("an early message", |it, _| it.message = MESSAGE, PartFault::Message)),
        (0, 0, ("an early socket", |_, count| *count = 1, PartFault::Sockets { due: 0, got: 1 })),
        (1, 0, ("a first part again", |_, _| (), PartFault::Order { due: 1, got: 0 })),
        (1, 2, ("a missing part", |_, _| (), PartFault::Order { due: 1, got: 2 })),
        (2, 1, ("a repeated part", |_, _| (), PartFault::Order { due: 2, got: 1 })),
        (2, 3, ("the last part before another", |_, _| (), PartFault::Order { due: 2, got: 3 })),
        (1, 1, ("another group", |it, _| it.group = 8, PartFault::Group)),
        (1, 1, ("another size", |it, _| it.sockets -= 1, PartFault::Group)),
        (1, 1, ("lost sockets", |_, count| *count = FEW, PartFault::Sockets { due, got: FEW })),
        (2, 2, ("a message too early", |it, _| it.message = MESSAGE, PartFault::Message)),
        (3, 3, ("no message", |it, _| it.message = &[], PartFault::Message)),
    ];
    for (come, next, (case, change, fault)) in cases {
        let room = room_for(ALL);
        let mut next = part(next);
        change(&mut next.0, &mut next.1);
        let got = take_in(begun(come, &room), &next, &room).err();
        assert_eq!(got, Some(fault), "{case}");
        assert_eq!(room.descriptors.load(Relaxed), 0, "{case}: nothing of it is counted");
    }
}

#[test]
fn a_group_without_room_is_refused_before_its_sockets_come() {
    let room = room_for(ALL - 1);
    assert_eq!(take_in(None, &part(0), &room).err(), Some(PartFault::NoRoom(ALL as u16)));
    room.descriptors_max.store(ALL, Relaxed);
    let first = take_in(None, &part(0), &room).unwrap();
    let second = take_in(None, &part(0), &room).err();
    assert_eq!(second, Some(PartFault::NoRoom(ALL as u16)), "one that is not whole is counted");
    drop(first);
}
