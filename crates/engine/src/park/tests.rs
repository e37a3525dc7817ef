//! Tests of parking, and parked connections for those of others.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::ready::SIDES;
use crate::testing::{plain_program, worker};
use crate::worker::{Program, Task};
use eyelet_hold::HeldStreams;
use eyelet_memory::packed::PackedBytes;
use eyelet_record::{Keys, Role as End13, Session, Suite};
use eyelet_relay::splice::Spliced;
use eyelet_relay::terminate::Terminated;
use eyelet_relay::{Flow, KeptExchanges};
use eyelet_telemetry::info::{Decided, Parked};
use eyelet_telemetry::listing::streams::{StreamCounts, StreamKind};
use eyelet_telemetry::reason::Shed;

mod further;
mod shared;

/// A program with a fault in its log, or in its answers.
pub(crate) struct Faulty {
    pub is_logging: bool,
}

/// Streams that it says of each exchange at rest.
pub(crate) const EACH_STREAMS: u32 = 100;

impl Program for Faulty {
    plain_program!();

    fn accepted(self: Rc<Self>, _: Handle, _: ConnectionInfo) -> Task {
        Box::pin(std::future::ready(()))
    }

    fn woken(self: Rc<Self>, _: Handle, _: ConnectionInfo, _: Relay, _: Counted) -> Task {
        Box::pin(std::future::ready(()))
    }

    fn task_bytes(&self, _: &Decided) -> usize {
        0
    }

    fn resting_streams(&self, _: KeptExchanges<'_>) -> StreamCounts {
        let mut streams = StreamCounts::default();
        streams.add(StreamKind::Events, EACH_STREAMS);
        streams
    }

    fn is_logging(&self) -> bool {
        self.is_logging
    }

    fn answer(&self, _: &mut [u8], _: &[u8], _: &mut Vec<u8>) -> usize {
        panic!("a fault of the test");
    }

    fn log(&self, _: &ConnectionInfo, _: &End) {
        panic!("a fault of the test");
    }
}

/// Parks a terminated connection that has no upstream yet.
pub(crate) fn terminated(worker: &Rc<Worker>) -> Key {
    let secrets = ([1; 32], [2; 32]);
    let suite = Suite::Aes128Gcm;
    let session = Session::tls13(End13::Server, suite, &secrets.0, &secrets.1, 0, 0).unwrap();
    let flow = Flow::default();
    parked(worker, Relay::Terminate(Terminated { session, flow })).0
}

/// A parked connection with an exchange that rests.
pub(crate) fn with_exchange(worker: &Rc<Worker>) -> (Key, OwnedFd) {
    let suite = Suite::Aes128Gcm;
    let session = Session::tls13(End13::Server, suite, &[1; 32], &[2; 32], 0, 0).unwrap();
    let mut flow = Flow::default();
    flow.keep_exchange(&[7; 70]);
    parked(worker, Relay::Terminate(Terminated { session, flow }))
}

/// A parked connection with a state of the program.
pub(crate) fn with_state(worker: &Rc<Worker>, state: &[u8]) -> Key {
    with_state_and_client(worker, PackedBytes::own(state)).0
}

/// Makes that one. Returns its client, too.
fn with_state_and_client(worker: &Rc<Worker>, state: PackedBytes) -> (Key, OwnedFd) {
    let secrets = ([1; 32], [2; 32]);
    let suite = Suite::Aes128Gcm;
    let session = Session::tls13(End13::Server, suite, &secrets.0, &secrets.1, 0, 0).unwrap();
    let mut flow = Flow::default();
    flow.keep_state(state);
    parked(worker, Relay::Terminate(Terminated { session, flow }))
}

/// Parks a connection. Returns its client, too.
pub(crate) fn parked(worker: &Rc<Worker>, relay: Relay) -> (Key, OwnedFd) {
    parked_with(worker, relay, Vec::new())
}

/// A parked connection with held streams.
pub(crate) fn parked_with(worker: &Rc<Worker>, relay: Relay, holds: HeldStreams) -> (Key, OwnedFd) {
    let info = worker.info(0, ([127, 0, 0, 1], 5000).into());
    parked_as(worker, info, (relay, holds))
}

fn parked_as(
    worker: &Rc<Worker>,
    mut info: ConnectionInfo,
    (relay, holds): (Relay, HeldStreams),
) -> (Key, OwnedFd) {
    let (client, peer) = eyelet_sys::socket::pair().unwrap();
    let key = worker.table.borrow_mut().insert(client, false);
    worker.process.open.fetch_add(1, Relaxed);
    worker.uses_descriptors(2);
    worker.process.budget.take(Account::Connections, ACTIVE_BYTES);
    worker.counters.connections.up();
    let handle = Handle::new(worker.clone(), key);
    handle.give_holds(holds);
    park(&handle, &mut info, relay);
    (key, peer)
}

/// Bytes that its client has just sent make no reset that overtakes its last bytes.
#[test]
fn a_client_with_a_state_reads_its_last_bytes_when_it_is_shed() {
    let worker = worker();
    let (key, client) = with_state_and_client(&worker, PackedBytes::own(&[7; 90]));
    let mut client = UnixStream::from(client);
    client.write_all(&[b'x'; 3_000]).unwrap();
    close(&worker, key, Reason::Shed(Shed::Idle));
    let mut said = Vec::new();
    client.read_to_end(&mut said).unwrap();
    assert!(!said.is_empty(), "close_notify");
}

/// Two connections of one source have the same fields. Whichever of them stays pays for a part.
#[test]
fn fields_that_nobody_else_has_are_charged_to_their_source() {
    let worker = worker();
    let (own, other) = ([127, 0, 0, 1].into(), [192, 0, 2, 1].into());
    let bytes: Vec<u8> = (0..8_u16 << 10).map(|at| (at >> 6) as u8).collect();
    let places: Vec<_> = (0..32).map(|nth| nth * 256..nth * 256 + 256).collect();
    let weight = bytes.len() / 256;
    (0..weight / 6).for_each(|_| worker.shedding.sources.add(other, 0));
    let keys = [(); 2].map(|()| {
        let state = PackedBytes::pack(&bytes, &places, &worker.pieces);
        let (key, _client) = with_state_and_client(&worker, state);
        assert!(worker.shedding.sources.is_over_share(own));
        key
    });
    (0..weight).for_each(|_| worker.shedding.sources.add(other, 0));
    assert!(!worker.shedding.sources.is_over_share(own), "less than twice their bytes");
    (0..weight).for_each(|_| worker.shedding.sources.remove(other, 0));
    abandon(&worker, keys[0]);
    assert!(worker.shedding.sources.is_over_share(own), "the first one has gone");
    abandon(&worker, keys[1]);
    (0..weight / 6).for_each(|_| worker.shedding.sources.remove(other, 0));
    assert!(worker.shedding.sources.is_empty() && worker.pieces.is_empty());
}

/// They count from when they are parked until they wake or end.
#[test]
fn what_rests_is_counted_by_kind() {
    let worker = worker();
    let program = Rc::new(Faulty { is_logging: false });
    worker.serve(&program);
    let counted = || {
        let counters = &worker.counters;
        let streams = counters.resting_streams[StreamKind::Events as usize].value();
        let bytes = counters.resting_bytes.value();
        assert_eq!(bytes, counters.parked_bytes.value());
        (streams, counters.resting_connections.value(), bytes > 0)
    };
    let keys = [(); 3].map(|()| with_exchange(&worker).0);
    assert_eq!(counted(), (300, 3, true));
    abandon(&worker, keys[0]);
    assert_eq!(counted(), (200, 2, true));
    let (_, woken) = unpark(&worker, keys[1], SlotState::Lingering).unwrap();
    drop(woken);
    assert_eq!(counted(), (100, 1, true));
    abandon(&worker, keys[2]);
    assert_eq!(counted(), (0, 0, false));
}

/// Each connection of one source has a client's certificate of its own.
#[test]
fn facts_that_nobody_else_has_are_charged_to_their_source() {
    const EACH_BYTES: usize = 8 << 10;
    let worker = worker();
    let (own, other) = ([127, 0, 0, 1].into(), [192, 0, 2, 1].into());
    let weight = 2 * EACH_BYTES / 256;
    (0..weight / 3).for_each(|_| worker.shedding.sources.add(other, 0));
    let keys = [1, 2].map(|nth| {
        let mut info = worker.info(0, ([127, 0, 0, 1], 5000).into());
        let leaf = vec![nth; EACH_BYTES].into_boxed_slice();
        info.decided.client_certificate = Some(Arc::new(leaf));
        let spliced = Spliced::new(Flow::default(), &mut Decided::default());
        parked_as(&worker, info, (Relay::Splice(spliced), Vec::new())).0
    });
    assert!(worker.shedding.sources.is_over_share(own));
    abandon(&worker, keys[0]);
    abandon(&worker, keys[1]);
    assert!(!worker.shedding.sources.is_over_share(own));
    (0..weight / 3).for_each(|_| worker.shedding.sources.remove(other, 0));
    assert!(worker.shedding.sources.is_empty());
}

#[test]
fn a_wake_that_fails_gives_back_what_it_took() {
    let worker = worker();
    let key = terminated(&worker);
    let parked = worker.process.budget.used_by(Account::Connections);
    // It has no program: the task cannot be made.
    dial(&worker, key);
    assert!(worker.table.borrow().is_empty());
    assert_eq!(worker.process.open.load(Relaxed), 0);
    assert_eq!(worker.process.descriptors.load(Relaxed), 0);
    assert!(worker.process.budget.used_by(Account::Connections) <= parked);
}

/// The bytes of a client are held by then, and the end of its connection gives them back.
#[test]
fn a_fault_of_an_answer_leaves_nothing_counted() {
    let worker = worker();
    let program = Rc::new(Faulty { is_logging: false });
    worker.serve(&program);
    let (key, client) = with_state_and_client(&worker, PackedBytes::own(&[7; 90]));
    assert!(worker.process.budget.used_by(Account::Relayed) > 90);
    let mut tls =
        Session::tls13(End13::Client, Suite::Aes128Gcm, &[1; 32], &[2; 32], 0, 0).unwrap();
    let text = [b'x'; 40];
    let mut record = vec![0; tls.record_len(text.len())];
    record[tls.prefix_len()..][..text.len()].copy_from_slice(&text);
    tls.seal(&mut Keys::new(), &mut record, text.len()).unwrap();
    eyelet_sys::socket::send(&client, &record).unwrap();
    worker.table.borrow_mut().slot(key).unwrap().ready.add(CLIENT, READ);
    worker.guarded(key, || wake(&worker, key));
    assert!(worker.table.borrow().is_empty());
    assert_eq!(worker.process.budget.used_by(Account::Relayed), 0);
    assert_eq!(worker.counters.parked_bytes.value(), 0);
}

#[test]
fn a_fault_at_the_end_of_a_drain_costs_one_connection() {
    let worker = worker();
    let program = Rc::new(Faulty { is_logging: true });
    worker.serve(&program);
    for _ in 0..3 {
        terminated(&worker);
    }
    let keys = worker.table.borrow().keys();
    assert_eq!(keys.len(), 3);
    crate::shedding::drain::cut(&worker, &keys);
    assert!(worker.table.borrow().is_empty(), "all were cut, and none was forgotten");
    assert_eq!(worker.process.open.load(Relaxed), 0);
    assert_eq!(worker.process.descriptors.load(Relaxed), 0);
}

#[test]
fn connections_of_a_removed_rule_end_in_parts() {
    let worker = worker();
    for _ in 0..3 * END_SLOTS_MIN {
        terminated(&worker);
    }
    let cursor = Cell::new(0);
    for left in [2, 1, 0] {
        let is_over = end_where(&worker, &cursor, &Reason::RuleGone, |_, _| true);
        assert_eq!(is_over, left == 0);
        assert_eq!(worker.table.borrow().keys().len() as u32, left * END_SLOTS_MIN);
    }
}

/// The cost of an idle connection in this process: its slot, and four bytes for the slot's
/// generation. The slot holds two descriptors (4 + 4), readiness of eight sides (4), links of the
/// timer wheel (16), the info (64) and the relay. The relay holds secrets and sequence numbers of
/// both directions (2 x (48 + 8)) with 16 bytes of state, a pointer to bytes in transit (8) and the
/// states of both directions (8).
#[test]
fn a_slot_is_small() {
    assert_eq!(size_of::<Parked>(), 64);
    assert_eq!(size_of::<Terminated>(), 144);
    assert_eq!(size_of::<Slot>(), 240);
}

/// A program that notes each connection that goes on, and ends it.
#[derive(Default)]
struct Resuming {
    /// Each wake: if it had its upstream's socket, and how long it had been idle.
    resumed: std::cell::RefCell<Vec<(bool, Duration)>>,
}

impl Program for Resuming {
    plain_program!();

    fn accepted(self: Rc<Self>, _: Handle, _: ConnectionInfo) -> Task {
        Box::pin(std::future::ready(()))
    }

    fn woken(self: Rc<Self>, handle: Handle, info: ConnectionInfo, _: Relay, _: Counted) -> Task {
        let has_upstream = handle.take_upstream().is_some();
        self.resumed.borrow_mut().push((has_upstream, handle.idle()));
        handle.worker.emit(&info, &End::failed(Reason::RuleGone));
        Box::pin(std::future::ready(()))
    }

    fn task_bytes(&self, _: &Decided) -> usize {
        0
    }

    fn is_logging(&self) -> bool {
        false
    }

    fn log(&self, _: &ConnectionInfo, _: &End) {}
}

/// Parks a connection whose exchange rests, and has been idle for so long. Returns the peers.
fn resting(worker: &Rc<Worker>, idle: Duration) -> (Key, OwnedFd, OwnedFd) {
    let suite = Suite::Aes128Gcm;
    let session = Session::tls13(End13::Server, suite, &[1; 32], &[2; 32], 0, 0).unwrap();
    let (client, client_peer) = eyelet_sys::socket::pair().unwrap();
    let (upstream, upstream_peer) = eyelet_sys::socket::pair().unwrap();
    let key = worker.table.borrow_mut().insert(client, true);
    worker.table.borrow_mut().set_connected(key, upstream);
    worker.process.open.fetch_add(1, Relaxed);
    worker.uses_descriptors(2);
    worker.process.budget.take(Account::Connections, ACTIVE_BYTES);
    worker.counters.connections.up();
    let mut info = worker.info(0, ([127, 0, 0, 1], 5000).into());
    let mut flow = Flow::default();
    flow.keep_exchange(&[7; 60]);
    let handle = Handle::new(worker.clone(), key);
    handle.note_idle(idle);
    park(&handle, &mut info, Relay::Terminate(Terminated { session, flow }));
    (key, client_peer, upstream_peer)
}

/// An exchange at rest goes on with its sockets, and none of its idle time is forgotten.
#[test]
fn an_exchange_at_rest_goes_on_by_either_side_at_its_deadline_and_to_end() {
    let seconds = Duration::from_secs;
    type Wakes = fn(&Rc<Worker>, (Key, &OwnedFd, &OwnedFd));
    let events: [Wakes; 8] = [
        |worker, (key, client, _)| {
            eyelet_sys::socket::send(client, b"a byte").unwrap();
            worker.table.borrow_mut().note(key, CLIENT, READ);
            wake(worker, key);
        },
        |worker, (key, _, upstream)| {
            eyelet_sys::socket::send(upstream, b"a byte").unwrap();
            worker.table.borrow_mut().note(key, UPSTREAM, READ);
            wake(worker, key);
        },
        |worker, (key, _, upstream)| {
            socket::shutdown_write(upstream).unwrap();
            worker.table.borrow_mut().note(key, UPSTREAM, READ | ENDED);
            wake(worker, key);
        },
        |worker, (key, ..)| late(worker, key),
        |worker, (key, ..)| close(worker, key, Reason::Drained(None)),
        |worker, (key, ..)| close(worker, key, Reason::Ended),
        |worker, (key, ..)| crate::shedding::drain::cut(worker, &[key]),
        |worker, (key, ..)| close(worker, key, Reason::Shed(Shed::Idle)),
    ];
    // The last one leaves no room for a task.
    const IN_PLACE: usize = 7;
    for (nth, event) in events.into_iter().enumerate() {
        let (worker, program) = (worker(), Rc::new(Resuming::default()));
        worker.serve(&program);
        assert_eq!(worker.table.borrow_mut().next_due(100), None);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let (key, client, upstream) = resting(&worker, seconds(7));
            // An event that says nothing, as one whose bytes were read already.
            worker.table.borrow_mut().note(key, UPSTREAM, READ);
            wake(&worker, key);
            let removed = end_where(&worker, &Cell::new(0), &Reason::RuleGone, |_, _| true);
            assert!(removed && program.resumed.borrow().is_empty(), "{nth}");
            assert_eq!(worker.process.descriptors.load(Relaxed), 2);
            let left = worker.table.borrow_mut().due_left(key);
            assert!((seconds(53)..seconds(54)).contains(&left), "{nth}: {left:?}");
            event(&worker, (key, &client, &upstream));
            tokio::task::yield_now().await;
        });
        let resumed = program.resumed.borrow();
        match resumed[..] {
            // Rounded to ticks.
            [(true, idle)] if nth < IN_PLACE => {
                assert!((6_900..=7_000).contains(&idle.as_millis()), "{nth}: {idle:?}");
            }
            [] if nth >= IN_PLACE => {}
            _ => panic!("{nth}: {resumed:?}"),
        }
        assert!(worker.table.borrow().is_empty(), "{nth}");
        assert_eq!(worker.process.open.load(Relaxed), 0, "{nth}");
        assert_eq!(worker.process.descriptors.load(Relaxed), 0, "{nth}");
        assert_eq!(worker.process.budget.used_by(Account::Relayed), 0, "{nth}");
        assert_eq!(worker.counters.parked.value(), 0, "{nth}");
        assert!(worker.shedding.sources.is_empty() && worker.shared.borrow().is_empty());
    }
}

/// The task of a connection takes the socket of one stream. The others stay watched at their
/// places.
#[test]
fn a_socket_is_taken_from_its_place_and_put_back() {
    let worker = worker();
    let pair = || eyelet_sys::socket::pair().unwrap();
    let key = worker.table.borrow_mut().insert(pair().0, false);
    let handle = Handle::new(worker.clone(), key);
    worker.uses_descriptors(2);
    worker.process.open.fetch_add(1, Relaxed);
    worker.process.budget.take(Account::Connections, ACTIVE_BYTES);
    worker.counters.connections.up();
    handle.give_sockets((0..3).map(|_| pair().0).collect()).unwrap();
    worker.table.borrow_mut().register(key).unwrap();
    let taken = handle.take_socket(1).unwrap();
    assert!(handle.take_socket(1).is_none() && handle.take_socket(3).is_none());
    assert_eq!(worker.process.descriptors.load(Relaxed), 4);
    for side in [SIDES + 1, SIDES + 2] {
        worker.table.borrow_mut().note(key, side, READ);
    }
    assert_eq!(handle.ready_sockets(), [2], "an event of one that is gone is for nobody");
    assert!(handle.put_socket(0, pair().0).is_err() && handle.put_socket(3, pair().0).is_err());
    handle.put_socket(1, taken).unwrap();
    worker.table.borrow_mut().register(key).unwrap();
    assert_eq!((handle.ready_sockets(), handle.socket_places()), (vec![2], 3));
    handle.take_socket(0).unwrap();
    drop(handle);
    assert_eq!(worker.process.descriptors.load(Relaxed), 0, "two at their places");
}
