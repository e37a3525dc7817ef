//! Flows leave one table and are found in another one as before.

use super::*;
use crate::moving::MovingFlow;

/// Takes all flows that can leave.
fn take_all(flows: &mut Flows<()>) -> Vec<MovingFlow<()>> {
    flows.keys().into_iter().filter_map(|key| flows.take(key)).collect()
}

#[test]
fn a_flow_is_found_in_the_other_table_by_address_and_id() {
    let ((mut old, old_budget), (mut new, budget)) = (flows(), flows());
    let (one, two) = (peer("198.51.100.7:50000"), peer("198.51.100.7:50001"));
    let key = answered(&mut old, one, SERVER, 5);
    old.note_client(key, 100, 1, 7);
    let (second, _) = old.add_address(key, two, 8, ()).unwrap();
    old.note_client(second, 10, 1, 9);
    // Of any of its addresses.
    let moving = old.take(key).unwrap();
    assert!(old.is_empty() && old.take(second).is_none());
    drop(old);
    assert_eq!(old_budget.used(), 0);
    assert_eq!((moving.addresses.len(), moving.moved.bytes_to_upstream), (2, 110));
    let keys = new.restore(moving).unwrap();
    new.restore_order();
    let short = Header::Short(b"servers1 and payload");
    assert_eq!(new.find(&one, &short), FoundFlow::Flow(keys[0]));
    assert_eq!(new.find(&two, &short), FoundFlow::Flow(keys[1]));
    assert_eq!(new.find(&peer("198.51.100.7:3"), &short), FoundFlow::Moved(keys[1]));
    // The first address was used last at 7, and ends first; the other one has all counts.
    assert_eq!(new.next_due(7 + IDLE_MS, IDLE_MS), Some((keys[0], Due::Idle)));
    let (_, goes_on) = new.remove(keys[0]).unwrap();
    assert_eq!(goes_on, Some(keys[1]));
    let moved = new.flow(keys[1]).unwrap().moved;
    assert_eq!((moved.bytes_to_upstream, moved.datagrams_to_upstream), (110, 2));
    assert_eq!((moved.bytes_to_client, moved.datagrams_to_client), (1200, 1));
    assert_eq!(new.remove(keys[1]).unwrap().1, None);
    assert!(new.is_empty());
    drop(new);
    assert_eq!(budget.used(), 0);
}

#[test]
fn what_waits_or_is_refused_stays() {
    let (mut flows, _) = flows();
    let waits = flows.begin(peer("198.51.100.7:1"), FIRST, 0, ()).unwrap();
    let refused = flows.begin(peer("198.51.100.7:2"), FIRST, 0, ()).unwrap();
    flows.refuse(refused, Box::default(), 0);
    assert!(take_all(&mut flows).is_empty());
    flows.remove(refused);
    flows.pass(waits, 3);
    let moving = take_all(&mut flows).pop().unwrap();
    assert!(!moving.addresses[0].is_answered);
    assert_eq!(flows.unanswered(), 0);
    // The server has as long to answer as before.
    flows.restore(moving).unwrap();
    assert_eq!(flows.next_due(2 + ANSWER_MS, IDLE_MS), None);
    assert!(matches!(flows.next_due(3 + ANSWER_MS, IDLE_MS), Some((_, Due::Unanswered))));
}

/// Flows of several workers come one after the other, and end in the order of their times.
#[test]
fn flows_of_several_tables_end_in_order() {
    let (mut new, _) = flows();
    for odd in [1, 0] {
        let (mut old, _) = flows();
        for n in 0..50_u64 {
            let at = peer(&format!("198.51.100.7:{}", 1000 + 2 * n + odd));
            answered(&mut old, at, &n.to_be_bytes(), 2 * n + odd);
        }
        for moving in take_all(&mut old) {
            new.restore(moving).unwrap();
        }
    }
    new.restore_order();
    for n in 0..100 {
        assert_eq!(new.next_due(IDLE_MS + n - 1, IDLE_MS), None, "{n}");
        let (key, due) = new.next_due(IDLE_MS + n, IDLE_MS).unwrap();
        assert_eq!(due, Due::Idle);
        assert_eq!(u64::from(new.flow(key).unwrap().peer.client().port()), 1000 + n);
        new.remove(key);
    }
    assert!(new.is_empty());
}

#[test]
fn what_no_table_has_is_refused_whole() {
    let taken = |count: u64| {
        let (mut old, _) = flows();
        let mut newest = answered(&mut old, peer("198.51.100.7:50000"), SERVER, 0);
        for n in 1..count {
            let other = peer(&format!("198.51.100.7:{}", 50_000 + n));
            newest = old.add_address(newest, other, n, ()).unwrap().0;
        }
        old.take(newest).unwrap()
    };
    let (mut new, _) = flows();
    let full = |new: &mut Flows<()>, moving| new.restore(moving).unwrap_err().0;
    // The fourth address is one too many: its table would have removed one.
    assert_eq!(full(&mut new, taken(ADDRESSES_MAX as u64 + 1)), Full::Address);
    let mut none = taken(1);
    none.addresses.clear();
    assert_eq!(full(&mut new, none), Full::Address);
    let mut twice = taken(2);
    twice.addresses[1].peer = twice.addresses[0].peer;
    assert_eq!(full(&mut new, twice), Full::Known);
    let mut unanswered = taken(2);
    unanswered.addresses[0].is_answered = false;
    assert_eq!(full(&mut new, unanswered), Full::Address);
    assert!(new.is_empty());
    new.restore(taken(1)).unwrap();
    assert_eq!(full(&mut new, taken(2)), Full::Known, "two flows with one address and id");
    assert_eq!(new.open(), 1);
}
