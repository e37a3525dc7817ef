//! Tests of the table, also in random runs: what is found, what ends and what is counted.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;

use eyelet_memory::budget::Budget;
use eyelet_memory::slab::Key;

use crate::id::Header;
use crate::peer::Peer;
use crate::table::{
    ADDRESSES_MAX, ANSWER_MS, Due, FLOWS_OF_ADDRESS_MAX, Flows, FoundFlow, Full, REFUSED_MAX,
    REFUSED_MS, State, UNDECIDED_MS,
};
use crate::unanswered::{UNANSWERED_MAX, UNANSWERED_OF_NETWORK_MAX, UnansweredFlows};
use crate::waiting::{WAITING_BYTES_MAX, WAITING_MAX};

mod moving;
mod random;

const FIRST: &[u8] = b"client's first";
const SERVER: &[u8] = b"servers1";
const IDLE_MS: u64 = 30_000;

fn flows() -> (Flows<()>, Arc<Budget>) {
    let budget = Arc::new(Budget::new(64 << 20, 0));
    (Flows::new(&budget, &Arc::new(UnansweredFlows::new(&budget))), budget)
}

fn peer(client: &str) -> Peer {
    Peer::new(client.parse().unwrap(), "192.0.2.1:443".parse().unwrap())
}

fn first(dcid: &[u8]) -> Header<'_> {
    Header::Long { dcid, begins: true, datagram_bytes: 1200 }
}

/// A flow that its server has answered.
fn answered(flows: &mut Flows<()>, peer: Peer, server: &[u8], now: u64) -> Key {
    let key = flows.begin(peer, FIRST, now, ()).unwrap();
    flows.pass(key, now);
    flows.note_server_id(key, server);
    flows.note_server(key, 1200, 1, now);
    key
}

#[test]
fn a_peer_is_both_addresses() {
    for (client, local) in [
        ("198.51.100.7:50000", "192.0.2.1:443"),
        ("[2001:db8::1]:50000", "[2001:db8::2]:443"),
        ("[fe80::1%3]:1", "[fe80::2]:443"),
    ] {
        let (client, local): (SocketAddr, SocketAddr) =
            (client.parse().unwrap(), local.parse().unwrap());
        let peer = Peer::new(client, local);
        assert_eq!((peer.client(), peer.local()), (client, local));
    }
    let network = |client| peer(client).network();
    assert_eq!(network("198.51.100.7:1"), network("198.51.100.200:2"));
    assert_ne!(network("198.51.100.7:1"), network("198.51.101.7:1"));
    assert_eq!(network("[2001:db8::1]:1"), network("[2001:db8::2:0:0:1]:1"));
    assert_ne!(network("[2001:db8::1]:1"), network("[2001:db8:0:1::1]:1"));
}

#[test]
fn long_headers_are_found_by_ids_and_short_ones_by_address() {
    let (mut flows, _) = flows();
    let one = peer("198.51.100.7:50000");
    assert_eq!(flows.find(&one, &first(FIRST)), FoundFlow::New);
    assert_eq!(flows.find(&one, &Header::Short(SERVER)), FoundFlow::Unknown);
    let key = answered(&mut flows, one, SERVER, 0);
    for header in [first(FIRST), first(SERVER), Header::Short(b"servers1 and payload")] {
        assert_eq!(flows.find(&one, &header), FoundFlow::Flow(key), "{header:?}");
    }
    // An id that the server has issued since.
    assert_eq!(flows.find(&one, &Header::Short(b"issued later")), FoundFlow::Flow(key));
    let handshake = Header::Long { dcid: b"another id", begins: false, datagram_bytes: 60 };
    assert_eq!(flows.find(&one, &handshake), FoundFlow::Flow(key));
    // An Initial packet that a server must not take is no packet of the older flow either.
    let short = Header::Long { dcid: b"another id", begins: true, datagram_bytes: 1199 };
    assert_eq!(flows.find(&one, &short), FoundFlow::Unknown);
    // Another connection at the same socket of the client.
    assert_eq!(flows.find(&one, &first(b"another id")), FoundFlow::New);
    let other = flows.begin(one, b"another id", 1, ()).unwrap();
    flows.pass(other, 1);
    flows.note_server_id(other, b"servers2");
    flows.note_server(other, 1, 1, 1);
    assert_eq!(flows.find(&one, &Header::Short(b"servers2...")), FoundFlow::Flow(other));
    assert_eq!(flows.find(&one, &Header::Short(b"servers1...")), FoundFlow::Flow(key));
}

/// Nothing says which flow an id is of that a server has issued later. Its packets go to the flow
/// that was used last, and no flow is found by it elsewhere.
#[test]
fn ids_that_were_issued_later_teach_nothing() {
    let (mut flows, _) = flows();
    let (one, elsewhere) = (peer("198.51.100.7:50000"), peer("203.0.113.9:4433"));
    let begun = |flows: &mut Flows<()>, first: &[u8], server: &[u8]| {
        let key = flows.begin(one, first, 0, ()).unwrap();
        flows.pass(key, 0);
        flows.note_server_id(key, server);
        flows.note_server(key, 1200, 1, 0);
        flows.flow(key).unwrap().note_named(&Header::Short(server));
        key
    };
    let [a, b] = [(FIRST, SERVER), (b"another id", b"servers2")]
        .map(|(first, server)| begun(&mut flows, first, server));
    let later = Header::Short(b"issued later");
    for (key, now) in [(a, 1), (b, 2), (a, 3)] {
        flows.note_client(key, 1, 1, now);
        // A stranger who sends in the client's name has a newer one.
        let stranger = flows.begin(one, b"a stranger's", now + 1, ()).unwrap();
        assert_eq!(flows.find(&one, &later), FoundFlow::Flow(key));
        flows.flow(key).unwrap().note_named(&later);
        assert_eq!(flows.find(&elsewhere, &later), FoundFlow::Unknown);
        flows.remove(stranger);
    }
    for (key, id) in [(a, SERVER), (b, b"servers2")] {
        assert_eq!(flows.find(&elsewhere, &Header::Short(id)), FoundFlow::Moved(key));
    }
}

#[test]
fn ids_of_wrong_lengths_begin_no_flow() {
    let (mut flows, _) = flows();
    let one = peer("198.51.100.7:50000");
    for (dcid, found) in [
        (&[7; 7][..], FoundFlow::Unknown),
        (&[7; 8], FoundFlow::New),
        (&[7; 20], FoundFlow::New),
        (&[7; 21], FoundFlow::Unknown),
        (&[7; 255], FoundFlow::Unknown),
        (&[], FoundFlow::Unknown),
    ] {
        assert_eq!(flows.find(&one, &first(dcid)), found, "{}", dcid.len());
    }
    assert_eq!(flows.begin(one, &[7; 21], 0, ()), Err(Full::BadId));
    // A datagram that is too short to begin one, or a packet of another kind.
    let short = Header::Long { dcid: FIRST, begins: true, datagram_bytes: 1199 };
    assert_eq!(flows.find(&one, &short), FoundFlow::Unknown);
    let handshake = Header::Long { dcid: FIRST, begins: false, datagram_bytes: 1200 };
    assert_eq!(flows.find(&one, &handshake), FoundFlow::Unknown);
}

#[test]
fn a_client_that_moves_is_followed_by_the_servers_id() {
    let (mut flows, _) = flows();
    let (old, new) = (peer("198.51.100.7:50000"), peer("198.51.100.7:50001"));
    let key = answered(&mut flows, old, SERVER, 0);
    flows.note_client(key, 100, 1, 0);
    let header = Header::Short(b"servers1 and payload");
    assert_eq!(flows.find(&new, &header), FoundFlow::Moved(key));
    let (moved, least) = flows.add_address(key, new, 1, ()).unwrap();
    assert_eq!(least, None);
    assert_eq!(flows.find(&new, &header), FoundFlow::Flow(moved));
    assert_eq!(flows.find(&old, &header), FoundFlow::Flow(key), "the old address still works");
    // From a third address it is the newest that moves.
    let third = peer("198.51.100.7:50002");
    // But a packet that may have a hello begins a flow, which is decided.
    assert_eq!(flows.find(&third, &first(SERVER)), FoundFlow::New);
    let short = Header::Long { dcid: SERVER, begins: true, datagram_bytes: 60 };
    assert_eq!(flows.find(&third, &short), FoundFlow::Unknown);
    assert_eq!(flows.find(&third, &header), FoundFlow::Moved(moved));
    flows.note_client(moved, 10, 2, 2);
    let (_, goes_on) = flows.remove(key).unwrap();
    assert_eq!(goes_on, Some(moved));
    let sums = flows.flow(moved).unwrap().moved;
    assert_eq!((sums.bytes_to_upstream, sums.datagrams_to_upstream), (110, 3));
    assert_eq!((sums.bytes_to_client, sums.datagrams_to_client), (1200, 1));
    let (_, goes_on) = flows.remove(moved).unwrap();
    assert_eq!(goes_on, None);
    assert_eq!(flows.find(&third, &header), FoundFlow::Unknown);
    assert!(flows.is_empty());
}

/// The newest address ends first, for example because it was a stranger's.
#[test]
fn a_flow_is_found_at_an_older_address_again() {
    let (mut flows, _) = flows();
    let (old, new) = (peer("198.51.100.7:50000"), peer("203.0.113.1:1"));
    let key = answered(&mut flows, old, SERVER, 0);
    let (moved, _) = flows.add_address(key, new, 1, ()).unwrap();
    assert_eq!(flows.remove(moved).unwrap().1, Some(key));
    let third = peer("198.51.100.7:50002");
    assert_eq!(flows.find(&third, &Header::Short(SERVER)), FoundFlow::Moved(key));
}

#[test]
fn a_flow_has_few_addresses_and_loses_the_one_that_is_least_used() {
    let (mut flows, _) = flows();
    let key = answered(&mut flows, peer("198.51.100.7:50000"), SERVER, 0);
    let mut newest = key;
    for n in 1..ADDRESSES_MAX as u64 {
        let stranger = peer(&format!("203.0.113.1:{n}"));
        let (moved, least) = flows.add_address(newest, stranger, n, ()).unwrap();
        assert_eq!(least, None);
        newest = moved;
    }
    // The client goes on at its address, so that a stranger's goes.
    flows.note_client(key, 1, 1, 50);
    let (_, least) = flows.add_address(newest, peer("203.0.113.1:99"), 60, ()).unwrap();
    let least = least.unwrap();
    assert_ne!(least, key);
    assert_eq!(flows.flow(least).unwrap().peer, peer("203.0.113.1:1"));
}

#[test]
fn of_two_flows_with_one_id_the_first_is_followed() {
    let (mut flows, _) = flows();
    let one = answered(&mut flows, peer("198.51.100.7:50000"), SERVER, 0);
    let other = answered(&mut flows, peer("203.0.113.9:50000"), SERVER, 0);
    let third = peer("203.0.113.10:50000");
    assert_eq!(flows.find(&third, &Header::Short(SERVER)), FoundFlow::Moved(one));
    let at_its_address = flows.find(&peer("203.0.113.9:50000"), &Header::Short(SERVER));
    assert_eq!(at_its_address, FoundFlow::Flow(other));
    flows.remove(other);
    assert_eq!(flows.find(&third, &Header::Short(SERVER)), FoundFlow::Moved(one));
    flows.remove(one);
    assert_eq!(flows.find(&third, &Header::Short(SERVER)), FoundFlow::Unknown);
    // Too short an id is not followed: a stranger's packet may begin with it.
    answered(&mut flows, peer("198.51.100.7:50000"), b"abc", 0);
    assert_eq!(flows.find(&third, &Header::Short(b"abcdefgh")), FoundFlow::Unknown);
}

/// After a Retry the client addresses the id that the Retry has given (RFC 9000 section 17.2.5).
#[test]
fn a_retry_gives_another_id() {
    let (mut flows, _) = flows();
    let one = peer("198.51.100.7:50000");
    let key = answered(&mut flows, one, b"of the retry", 0);
    assert_eq!(flows.find(&one, &first(b"of the retry")), FoundFlow::Flow(key));
    flows.note_server_id(key, SERVER);
    assert_eq!(flows.find(&one, &first(SERVER)), FoundFlow::Flow(key));
    let other = peer("198.51.100.8:50000");
    assert_eq!(flows.find(&other, &Header::Short(b"of the retry")), FoundFlow::Unknown);
    assert_eq!(flows.find(&other, &Header::Short(SERVER)), FoundFlow::Moved(key));
}

/// A flow with a Retry or a Version Negotiation is decided anew, before it is answered.
#[test]
fn a_flow_may_be_decided_anew_until_it_is_answered() {
    let (mut flows, _) = flows();
    let key = flows.begin(peer("198.51.100.7:1"), FIRST, 0, ()).unwrap();
    assert!(!flows.reopen(key, 1), "it is not decided yet");
    flows.pass(key, 1);
    flows.note_unanswering(key, 100, 1);
    flows.note_server_id(key, b"of the retry");
    assert_eq!(flows.unanswered(), 1);
    assert!(flows.reopen(key, 2));
    assert!(flows.hold(key, &[0; 1200], 0));
    assert_eq!(flows.pass(key, 3).datagrams().len(), 1);
    flows.note_server(key, 100, 1, 4);
    assert!(!flows.reopen(key, 5));
    assert_eq!((flows.unanswered(), flows.open()), (0, 1));
    assert_eq!(flows.flow(key).unwrap().moved.bytes_to_client, 200);
}

#[test]
fn a_flow_ends_when_nobody_answers_or_nothing_passes() {
    let (mut flows, _) = flows();
    let silent = flows.begin(peer("198.51.100.7:1"), FIRST, 0, ()).unwrap();
    flows.pass(silent, 0);
    let waits = flows.begin(peer("198.51.100.7:2"), FIRST, 0, ()).unwrap();
    let idle = answered(&mut flows, peer("198.51.100.7:3"), SERVER, 100);
    assert_eq!(flows.next_due(ANSWER_MS - 1, IDLE_MS), None);
    assert_eq!(flows.next_due(ANSWER_MS, IDLE_MS), Some((silent, Due::Unanswered)));
    flows.remove(silent);
    assert_eq!(flows.next_due(ANSWER_MS, IDLE_MS), None, "who decides it has a deadline");
    assert_eq!(flows.next_due(UNDECIDED_MS - 1, 2 * UNDECIDED_MS), None);
    let lost = flows.next_due(UNDECIDED_MS, 2 * UNDECIDED_MS);
    assert_eq!(lost, Some((waits, Due::Unanswered)));
    flows.remove(waits);
    flows.note_client(idle, 1, 1, 200);
    assert_eq!(flows.next_due(IDLE_MS + 199, IDLE_MS), None);
    assert_eq!(flows.next_due(IDLE_MS + 200, IDLE_MS), Some((idle, Due::Idle)));
}

#[test]
fn unanswered_flows_go_first_and_then_the_longest_idle() {
    let (mut flows, _) = flows();
    let one = answered(&mut flows, peer("198.51.100.7:1"), b"one.", 0);
    let two = answered(&mut flows, peer("198.51.100.7:2"), b"two.", 1);
    let old = flows.begin(peer("198.51.100.7:3"), FIRST, 2, ()).unwrap();
    let new = flows.begin(peer("198.51.100.7:4"), FIRST, 3, ()).unwrap();
    flows.note_client(one, 1, 1, 4);
    let mut order = Vec::new();
    while let Some(key) = flows.next_to_shed() {
        flows.remove(key);
        order.push(key);
    }
    assert_eq!(order, [old, new, two, one]);
}

/// The bounds are those of all tables of a process.
#[test]
fn flows_without_an_answer_are_bounded() {
    let budget = Arc::new(Budget::new(64 << 20, 0));
    let all = Arc::new(UnansweredFlows::new(&budget));
    let mut tables = [(); 2].map(|()| Flows::<()>::new(&budget, &all));
    let mut begin = |n: usize, peer| tables[n % 2].begin(peer, FIRST, 0, ());
    let one_network = |n: u16| peer(&format!("198.51.100.{}:{}", n % 200, 1000 + n));
    for n in 0..UNANSWERED_OF_NETWORK_MAX {
        begin(n.into(), one_network(n)).unwrap();
    }
    for n in [0, 1] {
        assert_eq!(begin(n, one_network(300)), Err(Full::Network));
    }
    for n in usize::from(UNANSWERED_OF_NETWORK_MAX)..UNANSWERED_MAX {
        assert!(!all.is_full());
        let ip = [10, (n >> 8) as u8, n as u8, 1];
        begin(n, Peer::new((ip, 1).into(), ([192, 0, 2, 1], 443).into())).unwrap();
    }
    assert!(all.is_full());
    let [mut one, other] = tables;
    // An answer gives its network the room back, and so does the end of a worker.
    let answered = one.next_to_shed().unwrap();
    one.pass(answered, 2);
    one.note_server(answered, 1, 1, 2);
    assert_eq!((all.all(), one.idle_since_ms()), (UNANSWERED_MAX - 1, Some(2)));
    one.begin(one_network(300), FIRST, 0, ()).unwrap();
    drop(other);
    assert_eq!(all.all(), UNANSWERED_MAX / 2);
    for key in one.keys() {
        one.remove(key);
    }
    assert!(one.is_empty() && one.open() == 0 && all.all() == 0);
    drop(one);
    assert_eq!(budget.used(), 0);
}

#[test]
fn an_address_has_few_flows() {
    let (mut flows, _) = flows();
    for n in 0..FLOWS_OF_ADDRESS_MAX {
        flows.begin(peer("198.51.100.7:1"), &[n as u8; 8], 0, ()).unwrap();
    }
    let one = peer("198.51.100.7:1");
    assert_eq!(flows.begin(one, &[99; 8], 0, ()), Err(Full::Address));
    assert_eq!(flows.check_new(&one), Err(Full::Address), "they wait for their servers");
    assert_eq!(flows.check_new(&peer("198.51.100.7:2")), Ok(None));
}

/// Of one address those go first that are refused, then those whose client is not proven to be
/// there, then the longest unused; but none of these while one waits for its server.
#[test]
fn of_one_address_strangers_go_first() {
    let (mut flows, _) = flows();
    let one = peer("198.51.100.7:1");
    let begun = |flows: &mut Flows<()>, id: u8, now| {
        let key = flows.begin(one, &[id; 8], now, ()).unwrap();
        flows.pass(key, now);
        flows.note_server_id(key, &[100 + id; 8]);
        flows.note_server(key, 1, 1, now);
        key
    };
    let proven: Vec<_> = (0..FLOWS_OF_ADDRESS_MAX as u8)
        .map(|id| {
            let key = begun(&mut flows, id, 10 + u64::from(id));
            flows.flow(key).unwrap().note_named(&Header::Short(&[100 + id; 8]));
            key
        })
        .collect();
    let in_place_of = |flows: &mut Flows<()>, key| {
        assert_eq!(flows.check_new(&one), Ok(Some(key)));
        flows.remove(key);
        assert_eq!(flows.check_new(&one), Ok(None));
    };
    in_place_of(&mut flows, proven[0]);
    let waits = flows.begin(one, &[200; 8], 0, ()).unwrap();
    assert_eq!(flows.check_new(&one), Err(Full::Address));
    flows.remove(proven[1]);
    let stranger = begun(&mut flows, 101, 200);
    in_place_of(&mut flows, stranger);
    let refused = flows.begin(one, &[201; 8], 300, ()).unwrap();
    flows.refuse(refused, Box::default(), 300);
    in_place_of(&mut flows, refused);
    flows.begin(one, &[202; 8], 0, ()).unwrap();
    assert_eq!(flows.check_new(&one), Err(Full::Address));
    flows.remove(waits);
    let last = begun(&mut flows, 102, 400);
    in_place_of(&mut flows, last);
}

#[test]
fn datagrams_wait_bounded_and_counted() {
    let (mut flows, budget) = flows();
    let key = flows.begin(peer("198.51.100.7:1"), FIRST, 0, ()).unwrap();
    let before = budget.used();
    let held = (0..2 * WAITING_MAX).filter(|_| flows.hold(key, &[0; 1200], 1)).count();
    assert_eq!(held, WAITING_MAX);
    assert!(budget.used() >= before + WAITING_MAX * 1200);
    let other = flows.begin(peer("198.51.100.7:2"), FIRST, 0, ()).unwrap();
    let held = (0..WAITING_MAX).filter(|_| flows.hold(other, &[0; 9000], 0)).count();
    assert_eq!(held, WAITING_BYTES_MAX / 9000);
    let waiting = flows.pass(key, 1).into_datagrams();
    assert_eq!((waiting.len(), waiting[0].bytes.len(), waiting[0].ecn), (WAITING_MAX, 1200, 1));
    assert!(!flows.hold(key, b"later", 0), "it passes");
    flows.drop_held(other, 1);
    assert!(flows.hold(other, &[1; 9000], 0), "there is room again");
    flows.drop_held(other, 99);
    flows.remove(other);
    assert!(budget.used() < before + WAITING_MAX * 1200);
}

/// RFC 9000 section 8.1: at most three times what came.
#[test]
fn a_refusal_is_repeated_within_three_times_of_what_came() {
    let (mut flows, _) = flows();
    let one = peer("198.51.100.7:1");
    let key = flows.begin(one, FIRST, 0, ()).unwrap();
    flows.hold(key, &[0; 1200], 0);
    let (may_send, full) = flows.refuse(key, vec![1; 1200].into(), 10);
    assert!(may_send && full.is_none());
    assert_eq!(flows.find(&one, &first(FIRST)), FoundFlow::Flow(key), "it is remembered");
    let flow = flows.flow(key).unwrap();
    assert!(flow.take_answer(0) && flow.take_answer(0), "3600 of 3600");
    assert!(!flow.take_answer(0) && !flow.take_answer(399) && flow.take_answer(1));
    assert_eq!(flows.open(), 0);
    assert_eq!(flows.next_due(10 + REFUSED_MS, IDLE_MS), Some((key, Due::Forgotten)));
    flows.remove(key);
    // A silent refusal, and one whose answer is longer than what may be sent.
    let silent = flows.begin(one, FIRST, 0, ()).unwrap();
    flows.hold(silent, &[0; 1200], 0);
    assert_eq!(flows.refuse(silent, Box::default(), 0), (false, None));
    assert!(!flows.flow(silent).unwrap().take_answer(1200));
}

/// A server has asked its client to begin anew, and so has sent something.
#[test]
fn a_refusal_counts_what_its_client_has_got_before() {
    for is_undecided in [false, true] {
        let (mut flows, _) = flows();
        let key = flows.begin(peer("198.51.100.7:1"), FIRST, 0, ()).unwrap();
        flows.pass(key, 0);
        flows.note_client(key, 1200, 1, 0);
        flows.note_unanswering(key, 3000, 1);
        if is_undecided {
            assert!(flows.reopen(key, 0) && flows.hold(key, &[0; 199], 0));
        } else {
            flows.note_client(key, 199, 1, 0);
        }
        assert_eq!(flows.refuse(key, vec![1; 1200].into(), 0), (false, None), "4200 of 4197");
        let flow = flows.flow(key).unwrap();
        assert!(flow.take_answer(1) && !flow.take_answer(1));
    }
}

#[test]
fn few_refused_flows_are_remembered() {
    let (mut flows, _) = flows();
    let mut first = None;
    for n in 0..=REFUSED_MAX {
        let ip = [10, (n >> 8) as u8, n as u8, 1];
        let peer = Peer::new((ip, 1).into(), ([192, 0, 2, 1], 443).into());
        let key = flows.begin(peer, FIRST, 0, ()).unwrap();
        first = first.or(Some(key));
        let (_, forgotten) = flows.refuse(key, Box::default(), 0);
        assert_eq!(forgotten, first.filter(|_| n == REFUSED_MAX));
    }
    assert_eq!((flows.open(), flows.unanswered()), (0, 0));
}

/// Beside its socket in the kernel and what the engine keeps (at most 152 bytes).
#[test]
fn an_idle_flow_is_small() {
    const PAYLOAD_BYTES: usize = 152;
    const COUNT: usize = 10_000;
    let budget = Arc::new(Budget::new(1 << 30, 0));
    let mut flows =
        Flows::<[u64; PAYLOAD_BYTES / 8]>::new(&budget, &Arc::new(UnansweredFlows::new(&budget)));
    for n in 0..COUNT {
        let ip = [10, (n >> 8) as u8, n as u8, 1];
        let peer = Peer::new((ip, 1).into(), ([192, 0, 2, 1], 443).into());
        let key = flows.begin(peer, FIRST, 0, [0; _]).unwrap();
        flows.hold(key, &[0; 1200], 0);
        flows.pass(key, 0);
        flows.note_server_id(key, &n.to_be_bytes());
        flows.note_server(key, 1, 1, 0);
    }
    let each = budget.used() / COUNT;
    assert!(each <= 400, "{each}");
}

#[test]
fn what_passes_is_counted_each_way() {
    let (mut flows, _) = flows();
    let key = answered(&mut flows, peer("198.51.100.7:1"), SERVER, 0);
    flows.note_client(key, 3_000, 3, 1);
    let flow = flows.flow(key).unwrap();
    let moved = flow.moved;
    assert_eq!((moved.bytes_to_upstream, moved.datagrams_to_upstream), (3_000, 3));
    assert_eq!((moved.bytes_to_client, moved.datagrams_to_client), (1_200, 1));
    assert!(matches!(flow.state, State::Passing { is_answered: true }));
    assert_eq!(flow.idle_ms(5), 4);
}
