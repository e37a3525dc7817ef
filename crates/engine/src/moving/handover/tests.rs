//! A connection leaves one worker and is parked in another, as it would in two processes.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use eyelet_handover::CERTIFICATE_BYTES_MAX;
use eyelet_record::{Keys, Role, Session, Suite};
use eyelet_sys::epoll::Events;

use super::*;
use crate::departure::BATCH_DESCRIPTORS_MAX;
use crate::iteration::accept::Accepting;
use crate::testing::worker;
use crate::worker::Handle;
use eyelet_memory::budget::ACTIVE_BYTES;
use eyelet_memory::packed::PackedBytes;
use eyelet_relay::export::STATE_BYTES_MAX;
use eyelet_relay::splice::Spliced;
use eyelet_relay::terminate::Terminated;
use eyelet_relay::{Flow, Relay};
use eyelet_telemetry::info::{ConnectionInfo, NS_PER_MS};

/// The edge's sockets of a connection, and its two peers.
fn sockets() -> ((OwnedFd, OwnedFd), UnixStream, UnixStream) {
    let pair = || {
        let (edge, peer) = eyelet_sys::socket::pair().unwrap();
        let peer = UnixStream::from(peer);
        peer.set_nonblocking(false).unwrap();
        (edge, peer)
    };
    let ((client, far_client), (upstream, far_upstream)) = (pair(), pair());
    ((client, upstream), far_client, far_upstream)
}

fn park_one(
    worker: &Rc<Worker>,
    (client, upstream): (OwnedFd, Option<OwnedFd>),
    relay: impl FnOnce(&mut ConnectionInfo) -> Relay,
) -> Key {
    let key = worker.table.borrow_mut().insert(client, false);
    worker.process.open.fetch_add(1, Relaxed);
    worker.uses_descriptors(2);
    worker.process.budget.take(Account::Connections, ACTIVE_BYTES);
    worker.counters.connections.up();
    if let Some(upstream) = upstream {
        worker.table.borrow_mut().set_connected(key, upstream);
    }
    let mut info = worker.info(0, ([192, 0, 2, 7], 5000).into());
    info.decided.sni = Some("a.example".into());
    let relay = relay(&mut info);
    park::park(&Handle::new(worker.clone(), key), &mut info, relay);
    key
}

fn spliced(info: &mut ConnectionInfo) -> Relay {
    Relay::Splice(Spliced::new(Flow::default(), &mut info.decided))
}

fn iterate(worker: &Rc<Worker>) {
    let mut accepting = Accepting::new(Vec::new());
    let mut events = Events::with_capacity(16);
    for _ in 0..4 {
        worker.iteration(&mut events, &mut accepting).unwrap();
    }
}

/// The sockets of a message as the other process receives them.
fn received(detached: &Detached) -> Vec<OwnedFd> {
    detached.sockets().map(|socket| socket.try_clone_to_owned().unwrap()).collect()
}

fn hand_over(from: &Rc<Worker>, to: &Rc<Worker>, key: Key) {
    let detached = detach(from, key, BATCH_DESCRIPTORS_MAX).unwrap();
    let (bytes, sockets) = (detached.encode(), received(&detached));
    drop(detached);
    attach(to, Detached::decode(&bytes, sockets).unwrap()).unwrap();
}

#[track_caller]
fn check_empty(worker: &Worker) {
    assert!(worker.table.borrow().is_empty());
    assert_eq!(worker.process.open.load(Relaxed), 0);
    assert_eq!(worker.process.descriptors.load(Relaxed), 0);
    assert_eq!(worker.counters.connections.value(), 0);
    assert_eq!(worker.counters.parked.value(), 0);
    assert_eq!(worker.counters.parked_bytes.value(), 0);
    assert_eq!(worker.process.budget.used_by(Account::Relayed), 0);
    assert!(worker.shared.borrow().is_empty() && worker.shedding.sources.is_empty());
}

#[test]
fn a_spliced_pair_goes_on_in_another_worker() {
    let (old, new) = (worker(), worker());
    let ((client, upstream), mut far_client, mut far_upstream) = sockets();
    let key = park_one(&old, (client, Some(upstream)), spliced);
    far_client.write_all(b"before ").unwrap();
    iterate(&old);
    // Not read by the old worker: the new one's registration reports it.
    far_client.write_all(b"unread").unwrap();
    hand_over(&old, &new, key);
    check_empty(&old);
    far_upstream.write_all(b"answer").unwrap();
    iterate(&old);
    iterate(&new);
    let mut heard = [0; 13];
    far_upstream.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"before unread");
    let mut heard = [0; 6];
    far_client.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"answer");
    drop(far_client);
    drop(far_upstream);
    iterate(&new);
    check_empty(&new);
}

#[test]
fn a_terminated_connection_goes_on_in_another_worker() {
    let (old, new) = (worker(), worker());
    let ((client, upstream), mut far_client, mut far_upstream) = sockets();
    let session = |role| Session::tls13(role, Suite::Aes128Gcm, &[1; 32], &[2; 32], 0, 0).unwrap();
    let mut tls = session(Role::Client);
    let mut seal = |text: &[u8]| {
        let mut record = vec![0; tls.record_len(text.len())];
        record[tls.prefix_len()..][..text.len()].copy_from_slice(text);
        tls.seal(&mut Keys::new(), &mut record, text.len()).unwrap();
        record
    };
    let (one, two) = (seal(b"one "), seal(b"two"));
    let terminated = |_: &mut ConnectionInfo| {
        let session = session(Role::Server);
        Relay::Terminate(Terminated { session, flow: Flow::default() })
    };
    let key = park_one(&old, (client, Some(upstream)), terminated);
    far_client.write_all(&one).unwrap();
    far_client.write_all(&two[..9]).unwrap();
    iterate(&old);
    hand_over(&old, &new, key);
    check_empty(&old);
    far_client.write_all(&two[9..]).unwrap();
    iterate(&old);
    iterate(&new);
    let mut heard = [0; 7];
    far_upstream.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"one two");
    drop(far_client);
    drop(far_upstream);
    iterate(&new);
    check_empty(&new);
}

/// Epoll registrations belong to the open socket, which lives on in the other process: without an
/// end of the registration its events would wake the old process for ever.
#[test]
fn the_old_worker_gets_no_event_of_a_connection_that_left() {
    let old = worker();
    let ((client, upstream), mut far_client, mut far_upstream) = sockets();
    let key = park_one(&old, (client, Some(upstream)), spliced);
    iterate(&old);
    let detached = detach(&old, key, BATCH_DESCRIPTORS_MAX).unwrap();
    let _copies = received(&detached);
    drop(detached);
    far_client.write_all(b"x").unwrap();
    far_upstream.write_all(b"y").unwrap();
    let mut events = Events::with_capacity(16);
    old.table.borrow().epoll.poll(&mut events).unwrap();
    assert!(events.is_empty());
}

#[test]
fn only_a_parked_connection_leaves() {
    let old = worker();
    let ((client, upstream), far_client, _far_upstream) = sockets();
    let active = old.table.borrow_mut().insert(client, false);
    assert!(detach(&old, active, BATCH_DESCRIPTORS_MAX).is_err(), "it is active");
    let (lingering, _far) = eyelet_sys::socket::pair().unwrap();
    let lingering = park_one(&old, (lingering, Some(upstream)), spliced);
    old.table.borrow_mut().slot(lingering).unwrap().state = SlotState::Lingering;
    assert!(detach(&old, lingering, BATCH_DESCRIPTORS_MAX).is_err(), "it lingers");
    let gone = Key { index: 77, generation: 1 };
    assert!(detach(&old, gone, BATCH_DESCRIPTORS_MAX).is_err());
    drop(far_client);
}

#[test]
fn a_process_without_room_refuses_and_the_old_one_takes_it_back() {
    for settings in [(0, 1_000), (1_000, 1)] {
        let (old, full) = (worker(), worker());
        let ((client, upstream), mut far_client, mut far_upstream) = sockets();
        let key = park_one(&old, (client, Some(upstream)), spliced);
        let detached = detach(&old, key, BATCH_DESCRIPTORS_MAX).unwrap();
        let imported = Detached::decode(&detached.encode(), received(&detached)).unwrap();
        let mut limits = full.settings.get();
        (limits.connections_max, limits.descriptors_max) = settings;
        full.settings.set(limits);
        let refused = attach(&full, imported).unwrap_err();
        check_empty(&full);
        drop(refused);
        // The old one has come to its limit meanwhile, and takes it nevertheless.
        old.settings.set(limits);
        attach(&old, detached).unwrap();
        far_client.write_all(b"still here").unwrap();
        iterate(&old);
        let mut heard = [0; 10];
        far_upstream.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"still here");
        drop((far_client, far_upstream));
        iterate(&old);
        check_empty(&old);
    }
    let (old, full) = (worker(), worker());
    let ((client, upstream), far_client, _far_upstream) = sockets();
    let key = park_one(&old, (client, Some(upstream)), spliced);
    let detached = detach(&old, key, BATCH_DESCRIPTORS_MAX).unwrap();
    full.process.budget.take(Account::Http, 64 << 20);
    let imported = Detached::decode(&detached.encode(), received(&detached)).unwrap();
    attach(&full, imported).unwrap_err();
    full.process.budget.give(Account::Http, 64 << 20);
    check_empty(&full);
    drop(far_client);
}

/// Held bytes count from the slot to the next slot, also in between.
#[test]
fn held_bytes_count_while_they_are_outside_of_a_worker() {
    let old = worker();
    let ((client, upstream), far_client, _far_upstream) = sockets();
    let held = |info: &mut ConnectionInfo| {
        let mut relay = spliced(info);
        relay.flow().hold_partial(&[0; 5_000]);
        relay
    };
    let key = park_one(&old, (client, Some(upstream)), held);
    let relayed = || old.process.budget.used_by(Account::Relayed);
    let before = relayed();
    assert!(before >= 5_000);
    let detached = detach(&old, key, BATCH_DESCRIPTORS_MAX).unwrap();
    assert_eq!(relayed(), before);
    assert_eq!(old.process.open.load(Relaxed), 0);
    attach(&old, detached).unwrap();
    assert_eq!(relayed(), before);
    let key = old.table.borrow().keys()[0];
    drop(detach(&old, key, BATCH_DESCRIPTORS_MAX));
    check_empty(&old);
    drop(far_client);
}

/// Its id, its age and the rest of its idle time.
#[test]
fn id_and_times_go_along() {
    let (old, new) = (worker(), worker());
    let ((client, upstream), far_client, _far_upstream) = sockets();
    let key = park_one(&old, (client, Some(upstream)), spliced);
    // Settled after two seconds, and idle for another 98 of 300.
    for seconds in [3, 100] {
        let mut accepting = Accepting::new(Vec::new());
        old.tick(&mut accepting, Duration::from_secs(seconds));
    }
    let mut detached = detach(&old, key, BATCH_DESCRIPTORS_MAX).unwrap();
    let left = detached.rest.idle_left;
    assert!(detached.rest.is_settled && left.as_secs().abs_diff(200) < 5, "{left:?}");
    detached.info.started_unix_ns -= 7_000 * NS_PER_MS;
    let id = detached.id();
    let imported = Detached::decode(&detached.encode(), received(&detached)).unwrap();
    drop(detached);
    attach(&new, imported).unwrap();
    let key = new.table.borrow().keys()[0];
    let imported = detach(&new, key, BATCH_DESCRIPTORS_MAX).unwrap();
    assert_eq!(imported.id(), id);
    let age = new.now_unix_ms() - imported.info.started_unix_ms();
    assert!((7_000..600_000).contains(&age), "{age}");
    assert!(
        imported.rest.is_settled && imported.rest.idle_left <= left + Duration::from_millis(200)
    );
    // A shorter timeout of the new process's configuration counts.
    let mut settings = new.settings.get();
    settings.idle_timeout = Duration::from_secs(30);
    new.settings.set(settings);
    attach(&new, imported).unwrap();
    let key = new.table.borrow().keys()[0];
    let left = detach(&new, key, BATCH_DESCRIPTORS_MAX).unwrap().rest.idle_left;
    assert!(left <= Duration::from_secs(31), "{left:?}");
    drop(far_client);
}

#[test]
fn ids_go_on_where_the_other_process_was() {
    let worker = worker();
    let id = |worker: &Worker| worker.info(0, ([192, 0, 2, 7], 1).into()).id & ((1 << 48) - 1);
    assert_eq!((worker.next_id(), id(&worker)), (1, 1));
    worker.set_next_id(4_000);
    assert_eq!(id(&worker), 4_000);
    worker.set_next_id(17);
    assert_eq!(id(&worker), 4_001, "never back");
}

/// The upstream does not read for now, so some bytes are held in memory or in a pipe. Nothing more
/// comes from the client: only the attach itself can learn that the upstream is full.
#[test]
fn held_bytes_are_sent_once_the_peer_reads_again() {
    for piece in [1_000, 200_000] {
        let (old, new) = (worker(), worker());
        let ((client, upstream), mut far_client, mut far_upstream) = sockets();
        far_client.set_nonblocking(true).unwrap();
        far_upstream.set_nonblocking(true).unwrap();
        let key = park_one(&old, (client, Some(upstream)), spliced);
        let sent: Vec<u8> = (0..2_000_000_u32).map(|n| (n / 7) as u8).collect();
        let mut written = 0;
        let is_full = |old: &Worker| {
            let mut table = old.table.borrow_mut();
            let SlotState::Parked { relay, .. } = &mut table.slot(key).unwrap().state else {
                return false;
            };
            !relay.flow().is_quiet()
        };
        while !is_full(&old) {
            let end = (written + piece).min(sent.len());
            written += far_client.write(&sent[written..end]).unwrap();
            iterate(&old);
            assert!(written < sent.len(), "the upstream's socket takes it all");
        }
        hand_over(&old, &new, key);
        check_empty(&old);
        let mut heard = Vec::new();
        while heard.len() < written {
            let mut bytes = [0; 4096];
            match far_upstream.read(&mut bytes) {
                Ok(read) => heard.extend_from_slice(&bytes[..read]),
                Err(_) => {
                    let before = heard.len();
                    iterate(&new);
                    let read = far_upstream.read(&mut bytes).unwrap();
                    heard.extend_from_slice(&bytes[..read]);
                    assert!(heard.len() > before);
                }
            }
        }
        assert!(heard == sent[..written]);
        drop((far_client, far_upstream));
        iterate(&new);
        check_empty(&new);
    }
}

/// The program's state goes along, and is counted where the connection is.
#[test]
fn a_connection_with_a_state_leaves_with_it() {
    const STATE_BYTES: usize = 300;
    let (old, new) = (worker(), worker());
    let key = park::tests::with_state(&old, &[7; STATE_BYTES]);
    assert!(old.process.budget.used_by(Account::Relayed) >= STATE_BYTES);
    hand_over(&old, &new, key);
    assert_eq!(old.counters.parked.value(), 0);
    assert_eq!(old.process.budget.used_by(Account::Relayed), 0);
    assert!(new.process.budget.used_by(Account::Relayed) >= STATE_BYTES);
    let keys = new.table.borrow().keys();
    let moved = detach(&new, keys[0], BATCH_DESCRIPTORS_MAX).unwrap();
    assert_eq!(moved.state().map(PackedBytes::whole), Some(vec![7; STATE_BYTES]));
}

/// A state that the importer would not read does not leave.
#[test]
fn a_state_that_is_too_long_stays() {
    let old = worker();
    for (length, leaves) in [(STATE_BYTES_MAX, true), (STATE_BYTES_MAX + 1, false)] {
        let key = park::tests::with_state(&old, &vec![7; length]);
        assert_eq!(detach(&old, key, BATCH_DESCRIPTORS_MAX).is_ok(), leaves);
    }
}

/// It counts from the slot to the next slot. One that the importer would not read stays.
#[test]
fn a_clients_certificate_goes_along() {
    for (bytes, leaves) in [(CERTIFICATE_BYTES_MAX, true), (CERTIFICATE_BYTES_MAX + 1, false)] {
        let (old, new) = (worker(), worker());
        let ((client, _), far_client, _far_upstream) = sockets();
        let key = park_one(&old, (client, None), |info| {
            info.decided.client_roots = 1;
            info.decided.client_certificate = Some(Arc::new(vec![7; bytes].into()));
            let session = Session::tls13(Role::Server, Suite::Aes128Gcm, &[1; 32], &[2; 32], 0, 0);
            Relay::Terminate(Terminated { session: session.unwrap(), flow: Flow::default() })
        });
        let Ok(detached) = detach(&old, key, BATCH_DESCRIPTORS_MAX) else {
            assert!(!leaves);
            continue;
        };
        assert!(leaves && old.process.budget.used_by(Account::Relayed) >= bytes);
        let mut imported = Detached::decode(&detached.encode(), received(&detached)).unwrap();
        drop(detached);
        assert_eq!(old.process.budget.used_by(Account::Relayed), 0);
        assert!(reserve(&new, &mut imported));
        assert!(new.process.budget.used_by(Account::Relayed) >= bytes);
        attach(&new, imported).unwrap();
        assert_eq!(new.process.budget.used_by(Account::Relayed), 0, "its slot counts it");
        let keys = new.table.borrow().keys();
        let detached = detach(&new, keys[0], BATCH_DESCRIPTORS_MAX).unwrap();
        let leaf = detached.info.decided.client_certificate.clone().unwrap();
        assert!(leaf.len() == bytes && leaf.iter().all(|byte| *byte == 7));
        drop(far_client);
    }
}

/// A process with another `idle_timeout` counts on from the same moment, as after a reload.
#[test]
fn idle_time_goes_on_where_the_timeout_is_another() {
    for minutes in [1, 4, 5, 60] {
        let (old, new) = (worker(), worker());
        let ((client, upstream), far_client, _far_upstream) = sockets();
        let key = park_one(&old, (client, Some(upstream)), spliced);
        for seconds in [3, 100] {
            let mut accepting = Accepting::new(Vec::new());
            old.tick(&mut accepting, Duration::from_secs(seconds));
        }
        let idle_timeout = Duration::from_secs(60 * minutes);
        let mut settings = new.settings.get();
        settings.idle_timeout = idle_timeout;
        new.settings.set(settings);
        hand_over(&old, &new, key);
        let key = new.table.borrow().keys()[0];
        let rest = detach(&new, key, BATCH_DESCRIPTORS_MAX).unwrap().rest;
        // It has been idle for 100 seconds. One that is overdue ends soon.
        let idle = Duration::from_secs(100).min(idle_timeout);
        let off = rest.idle.unwrap().abs_diff(idle);
        assert!(off < Duration::from_secs(2), "{minutes} minutes: {rest:?}");
        let off = (rest.idle.unwrap() + rest.idle_left).abs_diff(idle_timeout);
        assert!(off < Duration::from_secs(1), "{minutes} minutes: {rest:?}");
        drop(far_client);
    }
}

/// A client without TLS costs its slot and nothing else, here and in the process that it moves to,
/// and its end needs no task.
#[test]
fn a_client_in_the_clear_rests_in_its_slot_and_moves() {
    let worker = worker();
    let ((client, _), far_client, _far_upstream) = sockets();
    let key = park_one(&worker, (client, None), |_| Relay::Cleartext(Flow::default()));
    assert_eq!(worker.process.budget.used_by(Account::Relayed), 0, "no byte beside the slot");
    let detached = detach(&worker, key, BATCH_DESCRIPTORS_MAX).unwrap();
    assert!(worker.table.borrow().is_empty());
    let sockets = detached.sockets().map(|socket| socket.try_clone_to_owned().unwrap()).collect();
    let moved = Detached::decode(&detached.encode(), sockets).unwrap();
    drop(detached);
    attach(&worker, moved).unwrap().unwrap();
    assert_eq!(worker.process.budget.used_by(Account::Relayed), 0, "nor has it now");
    assert_eq!(worker.counters.parked.value(), 1);
    drop(far_client);
    for _ in 0..10 {
        iterate(&worker);
    }
    assert!(worker.table.borrow().is_empty(), "it was seen to end");
    assert_eq!(worker.counters.originated.value(), 1);
    assert_eq!(worker.counters.parked.value(), 0);
}

/// A pair with TLS towards its upstream costs its slot and nothing else, here and in the process
/// that it moves to.
#[test]
fn a_pair_with_tls_towards_its_upstream_rests_in_its_slot_and_moves() {
    let (old, new) = (worker(), worker());
    let ((client, upstream), mut far_client, mut far_upstream) = sockets();
    let session = || Session::tls13(Role::Client, Suite::Aes128Gcm, &[1; 32], &[2; 32], 0, 0);
    let key = park_one(&old, (client, Some(upstream)), |_| {
        Relay::Terminate(Terminated { session: session().unwrap(), flow: Flow::default() })
    });
    assert_eq!(old.process.budget.used_by(Account::Relayed), 0, "no byte beside the slot");
    assert_eq!(size_of::<Slot>(), 240);
    far_client.write_all(b"one").unwrap();
    iterate(&old);
    hand_over(&old, &new, key);
    check_empty(&old);
    assert_eq!(new.process.budget.used_by(Account::Relayed), 0, "nor has it now");
    far_client.write_all(b"two").unwrap();
    iterate(&new);
    // Each is a record by the next number of the one session.
    let (mut tls, mut keys) = (session().unwrap(), Keys::new());
    for text in [b"one", b"two"] {
        let mut record = vec![0; tls.record_len(text.len())];
        record[tls.prefix_len()..][..text.len()].copy_from_slice(text);
        let sealed = tls.seal(&mut keys, &mut record, text.len()).unwrap();
        let mut heard = vec![0; sealed];
        far_upstream.read_exact(&mut heard).unwrap();
        assert_eq!(heard, record[..sealed]);
    }
    drop((far_client, far_upstream));
    iterate(&new);
    check_empty(&new);
}
