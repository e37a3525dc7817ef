//! Clients change to ids that their servers have issued in secret.

use super::*;

const NAMED: [&[u8]; 3] = [b"server-1", b"server-2", b"server-3"];
const LATER: [&[u8]; 3] = [b"later--1", b"later--2", b"later--3"];

/// Flows of one address whose clients have named their servers' ids, the last one last.
fn several(count: usize) -> (Flows<()>, Peer, Vec<Key>) {
    let (mut flows, _) = flows();
    let one = peer("198.51.100.7:50000");
    let keys = NAMED.iter().take(count).enumerate().map(|(nth, id)| {
        let key = flows.begin(one, &[nth as u8; 8], 0, ()).unwrap();
        flows.pass(key, 0);
        flows.note_server_id(key, id);
        flows.note_server(key, 1200, 1, 0);
        flows.note_named(key, &Header::Short(id), 1 + nth as u64);
        key
    });
    let keys = keys.collect();
    (flows, one, keys)
}

/// The flow of a client's short packet to this id.
fn sends(flows: &mut Flows<()>, one: &Peer, id: &[u8], now: u64) -> Key {
    let packet = [id, b" and payload"].concat();
    let header = Header::Short(&packet);
    let FoundFlow::Flow(key) = flows.find(one, &header) else { panic!("it has none") };
    flows.note_named(key, &header, now);
    key
}

#[test]
fn a_client_is_followed_by_the_id_that_it_uses() {
    let (mut flows, one, keys) = several(1);
    let elsewhere = peer("203.0.113.9:4433");
    for (id, former) in [(LATER[0], NAMED[0]), (LATER[1], LATER[0])] {
        assert_eq!(flows.find(&elsewhere, &Header::Short(id)), FoundFlow::Unknown);
        assert_eq!(sends(&mut flows, &one, id, 10), keys[0]);
        assert_eq!(flows.find(&elsewhere, &Header::Short(id)), FoundFlow::Moved(keys[0]));
        assert_eq!(flows.find(&elsewhere, &Header::Short(former)), FoundFlow::Unknown);
        // A packet that was late names the former one.
        assert_eq!(flows.find(&one, &Header::Short(former)), FoundFlow::Flow(keys[0]));
    }
    let (moved, _) = flows.add_address(keys[0], elsewhere, 11, ()).unwrap();
    assert_eq!(sends(&mut flows, &elsewhere, LATER[1], 12), moved);
    let moving = flows.take(moved).unwrap();
    assert_eq!(moving.server_id.unwrap().as_bytes(), LATER[1]);
    let keys = flows.restore(moving).unwrap();
    let third = peer("203.0.113.9:4434");
    assert_eq!(flows.find(&third, &Header::Short(LATER[1])), FoundFlow::Moved(keys[1]));
}

/// A stranger who sends in a client's name before it has named its server's id teaches nothing.
#[test]
fn nothing_is_learned_of_a_client_that_is_not_proven() {
    let (mut flows, _) = flows();
    let one = peer("198.51.100.7:50000");
    let key = answered(&mut flows, one, SERVER, 0);
    assert_eq!(sends(&mut flows, &one, b"anything", 1), key);
    assert_eq!(flows.find(&peer("203.0.113.9:1"), &Header::Short(b"anything")), FoundFlow::Unknown);
    assert_eq!(flows.find(&peer("203.0.113.9:1"), &Header::Short(SERVER)), FoundFlow::Moved(key));
}

/// One of several flows changes its id while all are in use: after one packet of each other at most
/// its packets go its way, and those of the others theirs.
#[test]
fn of_several_flows_the_one_that_has_changed_its_id_is_found() {
    for changed in 0..3 {
        let (mut flows, one, keys) = several(3);
        let mut present = NAMED;
        present[changed] = LATER[changed];
        for round in 1..=4 {
            let now = 10 * round;
            for nth in 0..3 {
                let found = sends(&mut flows, &one, present[nth], now + nth as u64);
                let is_learned = round > 2 || nth != changed;
                assert!(!is_learned || found == keys[nth], "{changed} {round} {nth}");
            }
        }
        let elsewhere = peer("203.0.113.9:4433");
        for (id, key) in present.iter().zip(&keys) {
            assert_eq!(flows.find(&elsewhere, &Header::Short(id)), FoundFlow::Moved(*key));
        }
    }
}

/// A connection that was closed lingers. Its id is not given up for another one's new id.
#[test]
fn the_flow_that_was_in_use_last_has_changed_its_id() {
    let (mut flows, one, keys) = several(2);
    for now in 100..110 {
        assert_eq!(sends(&mut flows, &one, NAMED[0], now), keys[0]);
    }
    for now in 110..120 {
        assert_eq!(sends(&mut flows, &one, LATER[0], now), keys[0]);
    }
    assert_eq!(sends(&mut flows, &one, NAMED[1], 120), keys[1]);
    assert_eq!(sends(&mut flows, &one, LATER[0], 121), keys[0]);
}
