//! Ticket keys over periods, jumps of the clock and processes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Instant;

use super::*;
use crate::properties::bytes_are_keys_or_nothing;

const HOUR: u64 = 3600;
/// The first second of a period of an hour.
const BEGIN: u64 = 500_000 * HOUR;
const GROUP: &[u8] = b"a group";

/// A ring, and clocks that both move ahead.
struct Edge {
    keys: TicketKeys,
    begun: Instant,
}

impl Edge {
    fn new() -> Self {
        Self { keys: TicketKeys::new(Duration::from_secs(HOUR)), begun: Instant::now() }
    }

    /// Returns the time so many seconds after `BEGIN` by both clocks.
    fn at(&self, secs: u64) -> Now {
        Now { unix_secs: BEGIN + secs, steady: self.begun + Duration::from_secs(secs) }
    }

    /// Makes the key of the current period if it is missing, as the program's thread does.
    fn step(&self, origin: Origin, now: Now) {
        let start = self.keys.period_start(now);
        if !self.keys.has(start, origin) {
            let secret = TicketKeys::random_secret().unwrap();
            self.keys.insert(start, origin, &secret, now).unwrap();
        }
        self.keys.advance(now);
    }

    fn opens(&self, ticket: &[u8]) -> bool {
        self.keys.open(GROUP, ticket).as_deref() == Some(b"session")
    }

    fn seal(&self) -> Vec<u8> {
        self.keys.seal(GROUP, b"session").unwrap()
    }
}

#[test]
fn a_ticket_is_good_for_one_lifetime_at_least() {
    let edge = Edge::new();
    edge.step(Origin::Own, edge.at(0));
    let early = edge.seal();
    let late = edge.seal();
    assert_ne!(early, late, "each ticket has a nonce of its own");
    edge.step(Origin::Own, edge.at(HOUR));
    assert_ne!(edge.seal()[..NAME_BYTES], early[..NAME_BYTES], "another key seals");
    assert!(edge.opens(&early));
    edge.step(Origin::Own, edge.at(2 * HOUR - 1));
    assert!(edge.opens(&early));
    edge.step(Origin::Own, edge.at(2 * HOUR));
    assert!(!edge.opens(&early), "its key is wiped");
    assert_eq!(edge.keys.ring.read().keys.len(), 2);
    let last = edge.seal();
    edge.keys.clear();
    assert!(!edge.opens(&last));
    assert_eq!(edge.keys.seal(GROUP, b"session"), None);
}

#[test]
fn each_change_of_a_ticket_and_each_other_group_is_noticed() {
    let edge = Edge::new();
    assert_eq!(edge.keys.seal(GROUP, b"session"), None, "no key yet");
    edge.step(Origin::Own, edge.at(0));
    let ticket = edge.seal();
    assert!(edge.opens(&ticket));
    for other in [&b"another"[..], b"", b"a group."] {
        assert_eq!(edge.keys.open(other, &ticket), None);
    }
    for at in 0..ticket.len() {
        let mut tampered = ticket.clone();
        tampered[at] ^= 1;
        assert!(!edge.opens(&tampered), "byte {at}");
        assert!(!edge.opens(&ticket[..at]), "cut at {at}");
    }
    assert!(!edge.opens(&[&ticket[..], &[0]].concat()));
    let another = Edge::new();
    another.step(Origin::Own, another.at(0));
    assert!(!another.opens(&ticket), "the keys of another process");
}

#[test]
fn a_jump_of_the_clock_costs_no_key() {
    let edge = Edge::new();
    edge.step(Origin::Own, edge.at(0));
    let ticket = edge.seal();
    for jump in [BEGIN + 10_000 * HOUR, 0, BEGIN - 5 * HOUR] {
        edge.step(Origin::Own, Now { unix_secs: jump, ..edge.at(60) });
        assert!(edge.keys.open(GROUP, &edge.seal()).is_some());
        assert!(edge.opens(&ticket), "at {jump}");
    }
    edge.step(Origin::Own, edge.at(120));
    assert_eq!(edge.seal()[..NAME_BYTES], ticket[..NAME_BYTES]);
    // Many jumps do not fill the memory.
    for jump in 0..1000 {
        edge.step(Origin::Own, Now { unix_secs: jump * HOUR, ..edge.at(180) });
    }
    assert!(edge.keys.ring.read().keys.len() <= KEYS_MAX);
    edge.step(Origin::Own, edge.at(240));
    assert!(edge.keys.open(GROUP, &edge.seal()).is_some());
}

#[test]
fn the_last_key_of_a_fleet_goes_on_while_its_store_is_down() {
    let edge = Edge::new();
    edge.keys.configure(Duration::from_secs(HOUR), Origin::Fleet);
    edge.step(Origin::Own, edge.at(0));
    let own = edge.seal();
    edge.step(Origin::Fleet, edge.at(1));
    let first = edge.seal();
    assert_ne!(first[..NAME_BYTES], own[..NAME_BYTES], "the fleet's key seals");
    assert!(edge.opens(&own), "what was sealed before is good");
    edge.step(Origin::Fleet, edge.at(HOUR));
    let second = edge.seal();
    edge.keys.advance(edge.at(50 * HOUR));
    assert_eq!(edge.seal()[..NAME_BYTES], second[..NAME_BYTES]);
    assert!(edge.opens(&second) && !edge.opens(&first) && !edge.opens(&own));
    edge.step(Origin::Fleet, edge.at(51 * HOUR));
    assert_ne!(edge.seal()[..NAME_BYTES], second[..NAME_BYTES]);
    edge.step(Origin::Fleet, edge.at(52 * HOUR - 1));
    assert!(edge.opens(&second), "it sealed until an hour ago");
    edge.step(Origin::Fleet, edge.at(52 * HOUR));
    assert!(!edge.opens(&second));
    // Without the fleet the own keys seal again, and those of the fleet open.
    edge.keys.configure(Duration::from_secs(HOUR), Origin::Own);
    let shared = edge.seal();
    edge.step(Origin::Own, edge.at(52 * HOUR + 1));
    assert_ne!(edge.seal()[..NAME_BYTES], shared[..NAME_BYTES]);
    assert!(edge.opens(&shared));
}

#[test]
fn another_fleet_has_other_keys() {
    let edge = Edge::new();
    edge.keys.configure(Duration::from_secs(HOUR), Origin::Fleet);
    let (secret, other) = ([1; SECRET_BYTES], [2; SECRET_BYTES]);
    edge.keys.insert(BEGIN, Origin::Fleet, &secret, edge.at(0)).unwrap();
    let first = edge.seal();
    edge.keys.leave_fleet();
    assert!(!edge.keys.has(BEGIN, Origin::Fleet) && edge.opens(&first));
    edge.keys.insert(BEGIN, Origin::Fleet, &other, edge.at(1)).unwrap();
    assert_ne!(edge.seal()[..NAME_BYTES], first[..NAME_BYTES]);
    assert!(edge.opens(&first));
    // The first fleet again.
    edge.keys.leave_fleet();
    edge.keys.insert(BEGIN, Origin::Fleet, &secret, edge.at(2)).unwrap();
    assert_eq!(edge.seal()[..NAME_BYTES], first[..NAME_BYTES]);
    assert_eq!(edge.keys.ring.read().keys.len(), 2);
}

#[test]
fn keys_go_to_another_process() {
    let (old, new) = (Edge::new(), Edge::new());
    old.step(Origin::Own, old.at(0));
    let early = old.seal();
    old.step(Origin::Own, old.at(HOUR));
    let late = old.seal();
    let exported = old.keys.export();
    new.step(Origin::Own, new.at(HOUR));
    let own = new.seal();
    new.keys.import(&exported, new.at(HOUR)).unwrap();
    assert!([&early, &late, &own].into_iter().all(|ticket| new.opens(ticket)));
    assert!(old.opens(&new.seal()) || new.seal()[..NAME_BYTES] == own[..NAME_BYTES]);
    // Twice is as good as once.
    new.keys.import(&exported, new.at(HOUR)).unwrap();
    assert_eq!(new.keys.ring.read().keys.len(), 3);
    for cut in 1..exported.len() {
        let expected =
            if (cut - 1) % EXPORTED_BYTES == 0 { Ok(()) } else { Err(TicketKeysError::Malformed) };
        assert_eq!(new.keys.import(&exported[..cut], new.at(HOUR)), expected, "{cut}");
    }
    assert_eq!(new.keys.import(&[], new.at(HOUR)), Err(TicketKeysError::Malformed));
    assert_eq!(new.keys.import(&[2], new.at(HOUR)), Err(TicketKeysError::Version(2)));
    let many = [&[1][..], &exported[1..].repeat(KEYS_MAX)].concat();
    assert_eq!(new.keys.import(&many, new.at(HOUR)), Err(TicketKeysError::Malformed));
    for bytes in [&exported[..], &exported[1..], &many, b"", &[1; 46], &[0; 400]] {
        bytes_are_keys_or_nothing(bytes);
    }
    let mut no_period = exported.to_vec();
    no_period[9..13].fill(0);
    assert_eq!(new.keys.import(&no_period, new.at(HOUR)), Err(TicketKeysError::Malformed));
    assert_eq!(format!("{:?}", new.keys), "TicketKeys");
}

#[test]
fn the_key_that_the_store_has_now_seals() {
    let edge = Edge::new();
    edge.keys.configure(Duration::from_secs(HOUR), Origin::Fleet);
    edge.step(Origin::Fleet, edge.at(0));
    let (before, held) = (edge.seal(), edge.keys.secret(BEGIN, Origin::Fleet).unwrap());
    let other = TicketKeys::random_secret().unwrap();
    edge.keys.insert(BEGIN, Origin::Fleet, &other, edge.at(1)).unwrap();
    assert_eq!(edge.keys.secret(BEGIN, Origin::Fleet), Some(other));
    assert_ne!(edge.seal()[..NAME_BYTES], before[..NAME_BYTES], "the other one seals");
    assert!(edge.opens(&before));
    // And back again.
    edge.keys.insert(BEGIN, Origin::Fleet, &held, edge.at(2)).unwrap();
    assert_eq!(edge.seal()[..NAME_BYTES], before[..NAME_BYTES]);
}
