//! Groups of more sockets than a message carries, and those that no messages carry.

use std::sync::mpsc::sync_channel;

use super::*;
use crate::moving::parts::{GroupProgress, IncomingGroup, PartFault, parts};
use crate::moving::search::Search;
use crate::park::timeouts::take_settings;
use crate::testing::leaving::arriving;

/// Connections that share a link: with its socket they need three messages.
const MANY: usize = 2 * BATCH_DESCRIPTORS_MAX + 30;
/// The first part, which only says what comes, and the three.
const PARTS: usize = 4;

fn large(worker: &Rc<Worker>, count: usize) -> (Rc<Link>, Vec<(Key, OwnedFd)>) {
    let link = new_link(0, eyelet_sys::socket::pair().unwrap().0);
    let connections = (0..count).map(|_| park_on(worker, &[&link])).collect();
    (link, connections)
}

fn roomy() -> (Rc<Worker>, Rc<Linking>) {
    let serving = serving();
    let mut settings = serving.0.settings.get();
    (settings.connections_max, settings.descriptors_max) = (10_000, 10_000);
    take_settings(&serving.0, settings);
    serving
}

/// It has a batch of its own.
#[test]
fn a_group_of_several_parts_moves_whole() {
    let ((old, _old), (new, program)) = (roomy(), roomy());
    let small = park_on(&old, &[&new_link(9, eyelet_sys::socket::pair().unwrap().0)]);
    let (_link, connections) = large(&old, MANY);
    let alone = found(&old).unwrap();
    assert_eq!((alone.batch.sockets.len(), alone.batch.group), (2, None));
    let detachment = found(&old).unwrap();
    assert!(found(&old).is_none(), "nothing else is there");
    assert_eq!(detachment.batch.sockets.len(), MANY + 1);
    let group = detachment.batch.group.unwrap();
    assert_eq!(parts(group, &detachment.batch).count(), PARTS);
    let arriving = arriving(&detachment.batch, &new).unwrap();
    assert_eq!(batch::count(&arriving), 1);
    let (read, taken) = batch::admit(&new, arriving, true).unwrap();
    assert_eq!((read.taken, &read.refused[..]), (MANY, &[][..]));
    check_room(&new, MANY, MANY + 1);
    let message = detachment.batch.states.len();
    let (descriptors, bytes) = program.2.get();
    assert!(descriptors == MANY + 1 && bytes >= message, "it counts while it is read: {bytes}");
    let held = new.process.budget.used_by(Account::Relayed);
    assert!(held < message, "its message is gone: {held} of {message}");
    drop(detachment);
    let keys = batch::put_back(&new, taken).concat();
    check_counts(&new, MANY, MANY);
    assert!(keys.iter().all(|key| new.table.borrow().shared_count(*key) == 1));
    drop((small, connections));
}

/// Nothing is left of it in the new process, and all of it comes back.
#[test]
fn a_group_comes_back_whole_if_the_other_side_dies_at_any_part() {
    let (old, _old) = roomy();
    let (_link, connections) = large(&old, MANY);
    for come in 0..=PARTS + 1 {
        let (new, _new) = roomy();
        let Detachment { parcels, batch, .. } = found(&old).unwrap();
        let mut all = parts(batch.group.unwrap(), &batch);
        let mut incoming = None;
        for (nth, part) in all.by_ref().take(come).enumerate() {
            let sockets: Vec<OwnedFd> =
                part.sockets.iter().map(|socket| socket.try_clone().unwrap()).collect();
            let progress = match incoming.take() {
                None => IncomingGroup::begin(&part.body, &sockets, &new.process)
                    .map(GroupProgress::More),
                Some(it) => IncomingGroup::add(it, &part.body, sockets),
            };
            match progress.unwrap() {
                GroupProgress::More(more) => incoming = Some(more),
                GroupProgress::Whole(whole) => {
                    assert_eq!(nth, PARTS - 1);
                    // Read, and given up before the commit.
                    drop(batch::admit(&new, whole, true).unwrap());
                }
            }
            assert_eq!(new.process.descriptors.load(Relaxed) > 0, incoming.is_some());
        }
        assert!(new.table.borrow().is_empty(), "nothing is placed");
        drop((incoming, all));
        check_room(&new, 0, 0);
        assert_eq!(new.process.budget.used_by(Account::Relayed), 0);
        drop(batch);
        assert_eq!(batch::put_back(&old, parcels).concat().len(), MANY, "{come} parts");
        check_counts(&old, MANY, MANY);
    }
    drop(connections);
}

/// A group without room comes back whole: before its sockets are sent, or behind all of them.
#[test]
fn a_group_of_several_parts_without_room_comes_back_whole() {
    let (old, _old) = roomy();
    let (_link, connections) = large(&old, MANY);
    for case in ["descriptors", "connections", "memory"] {
        let (new, _new) = roomy();
        let mut settings = new.settings.get();
        match case {
            "descriptors" => settings.descriptors_max = MANY,
            "connections" => settings.connections_max = MANY - 1,
            _ => new.process.budget.take(Account::Relayed, (64 << 20) - MANY * 300 - 10_000),
        }
        take_settings(&new, settings);
        let Detachment { parcels, batch, .. } = found(&old).unwrap();
        if case == "descriptors" {
            let first = parts(batch.group.unwrap(), &batch).next().unwrap();
            let refused = IncomingGroup::begin(&first.body, &[], &new.process).err();
            assert_eq!(refused, Some(PartFault::NoRoom(MANY as u16 + 1)));
        } else {
            let arriving = arriving(&batch, &new).unwrap();
            let (read, taken) = batch::admit(&new, arriving, true).unwrap();
            let why = Some(RefusalReason::NoRoom);
            assert_eq!((&read.refused[..], read.why), (&[0][..], why), "{case}");
            assert!(taken.is_empty());
        }
        check_room(&new, 0, 0);
        drop(batch);
        assert_eq!(batch::put_back(&old, parcels).concat().len(), MANY, "{case}");
        check_counts(&old, MANY, MANY);
    }
    drop(connections);
}

/// A process that knows no parts gets what one message carries, and the other groups stay.
#[test]
fn a_large_group_stays_where_parts_are_not_read_and_is_walked_once() {
    let (old, program) = roomy();
    old.moving.reads_below.set(Some(VERSION_PART));
    let (link, mut connections) = large(&old, BATCH_DESCRIPTORS_MAX);
    assert!(found(&old).is_none());
    check_counts(&old, BATCH_DESCRIPTORS_MAX, BATCH_DESCRIPTORS_MAX);
    let looks = program.1.get();
    assert!(looks <= 2, "{looks}");
    // Those that it has not found yet are known by the first that it meets again.
    connections.push(park_on(&old, &[&link]));
    assert!(found(&old).is_none());
    assert!(program.1.get() <= looks + 1, "no search walks through it again");
    // Smaller, and looked at again.
    for _ in 0..2 {
        let (key, _client) = connections.pop().unwrap();
        park::abandon(&old, key);
        link.keys.borrow_mut().retain(|known| *known != key);
    }
    *old.moving.large.borrow_mut() = Default::default();
    let detachment = found(&old).unwrap();
    assert_eq!(detachment.batch.sockets.len(), BATCH_DESCRIPTORS_MAX);
    assert_eq!(detachment.batch.group, None);
}

/// States are counted as they are written, not as they are kept: pieces that connections share are
/// in each message. It is not offered each minute, to be refused.
#[test]
fn a_group_whose_states_no_message_takes_stays() {
    const STATE_BYTES: usize = 32 << 10;
    let (old, _old) = roomy();
    let link = new_link(0, eyelet_sys::socket::pair().unwrap().0);
    let most = MESSAGE_BYTES_MAX / (STATE_BYTES + INFO_BYTES);
    let mut connections: Vec<_> =
        (0..=most).map(|_| park_with(&old, &[&link], &[7; STATE_BYTES])).collect();
    assert!(found(&old).is_none());
    check_counts(&old, most + 1, most + 1);
    for _ in 0..2 {
        let (key, _client) = connections.pop().unwrap();
        park::abandon(&old, key);
        link.keys.borrow_mut().retain(|known| *known != key);
    }
    *old.moving.large.borrow_mut() = Default::default();
    let detachment = found(&old).unwrap();
    assert!(detachment.batch.states.len() <= MESSAGE_BYTES_MAX);
    assert!(detachment.batch.states.len() > MESSAGE_BYTES_MAX / 10 * 9, "it is near the bound");
}

/// The lengths of names are known when it is written. It comes back, and others leave.
#[test]
fn a_group_whose_names_no_message_takes_stays() {
    let (old, program) = roomy();
    let (link, name) = (new_link(0, eyelet_sys::socket::pair().unwrap().0), "n".repeat(60 << 10));
    let most = MESSAGE_BYTES_MAX / name.len();
    let connections: Vec<_> =
        (0..=most).map(|_| park_named(&old, &[&link], &[7; 9], Some(&name))).collect();
    let alone = park_on(&old, &[&new_link(9, eyelet_sys::socket::pair().unwrap().0)]);
    let detachment = found(&old).unwrap();
    assert_eq!(detachment.batch.sockets.len(), 2, "the other one leaves");
    check_counts(&old, most + 1, most + 1);
    let looks = program.1.get();
    assert!(found(&old).is_none());
    assert_eq!(program.1.get(), looks, "it is not written again");
    drop((connections, alone));
}

/// The process that did not read them has died: the next one may.
#[test]
fn a_group_that_was_too_large_is_offered_to_the_next_process() {
    let (old, _old) = roomy();
    let (_link, connections) = large(&old, BATCH_DESCRIPTORS_MAX);
    old.moving.reads_below.set(Some(VERSION_PART));
    assert!(found(&old).is_none());
    old.moving.reads_below.set(None);
    assert!(found(&old).is_none(), "it is known for a while");
    let _search = Search::new(&old, sync_channel(1).0, BATCH_DESCRIPTORS_MAX);
    assert_eq!(found(&old).unwrap().batch.sockets.len(), BATCH_DESCRIPTORS_MAX + 1);
    drop(connections);
}

/// Links count from the answer on, not from when they are placed.
#[test]
fn links_of_a_group_that_arrives_reserve_their_memory() {
    let ((old, _old), (new, _new)) = (serving(), serving());
    let (links, connections) = chain(&old);
    let detachment = found(&old).unwrap();
    let budget = &new.process.budget;
    let (read, taken) = batch::admit(&new, received(&detachment), true).unwrap();
    assert_eq!(read.taken, 3);
    assert!(budget.used_by(Account::Relayed) >= links.len() * LINK_BYTES, "{budget}");
    drop(detachment);
    batch::put_back(&new, taken);
    assert!(budget.used_by(Account::Relayed) < LINK_BYTES, "{budget}");
    drop(connections);
}
