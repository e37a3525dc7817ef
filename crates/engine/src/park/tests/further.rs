//! Parked connections with further upstream sockets: what wakes them, how they move and end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use eyelet_sys::epoll::Events;
use eyelet_sys::memory::blocks::long_any;
use eyelet_telemetry::info::Outcome;
use fastrand::Rng;

use super::*;
use crate::departure::BATCH_DESCRIPTORS_MAX;
use crate::iteration::accept::Accepting;
use crate::moving::batch::{self, Detachment, SearchResult};
use crate::moving::handover::{Detached, ImportError, Stays, attach, detach};
use crate::moving::staying::Staying;
use crate::ready::FURTHER_MAX;
use crate::testing::{SETTINGS, plain_program, worker_with};
use crate::worker::WaitError;
use eyelet_relay::KeptExchanges;
use eyelet_table::further::further_bytes;
use eyelet_table::timer_wheel::TICK_MS;

/// The events that the programs of all workers have heard.
#[derive(Default)]
pub(super) struct Heard {
    /// By connection and stream.
    streams: RefCell<BTreeMap<(u8, u8), Vec<u8>>>,
    ended: RefCell<Vec<(u8, u8)>>,
    clients: RefCell<BTreeMap<u8, Vec<u8>>>,
    pub(super) wakes: Cell<usize>,
    /// Streams that have ended while their connection was parked.
    rested: Cell<usize>,
    pub(super) logged: Cell<usize>,
}

/// A program that reads what the sockets of a connection say and parks it again. Its state is the
/// number of the connection and those of its streams, in the order of their sockets.
struct Streams(Rc<Heard>);

impl Streams {
    fn serve(&self, handle: &Handle, mut info: ConnectionInfo, relay: Relay) {
        let Relay::Terminate(Terminated { session, flow }) = relay else { panic!("no other") };
        let has_left = {
            let mut table = handle.worker.table.borrow_mut();
            let client = table.slot(handle.key()).map(|slot| socket::peek(&slot.client, &mut [0]));
            matches!(client, Some(Ok(0)))
        };
        self.0.wakes.update(|wakes| wakes + 1);
        let is_over = matches!(handle.in_time(), Err(WaitError::Shed | WaitError::Ended));
        if has_left || is_over {
            let reason = Reason::Internal("a test");
            return handle.worker.emit(&info, &End { outcome: Outcome::Terminated, reason });
        }
        let rest = flow.into_rest();
        let state = rest.state.unwrap().whole();
        let (connection, streams) = state.split_first().unwrap();
        let mut clients = self.0.clients.borrow_mut();
        clients.entry(*connection).or_default().extend_from_slice(&rest.to_upstream);
        let (mut left, mut sockets) = (vec![*connection], Vec::new());
        drop(handle.take_streams());
        let taken = handle.take_sockets();
        assert_eq!(taken.len(), streams.len(), "each stream has its socket");
        for (stream, further) in streams.iter().zip(taken) {
            let mut socket = UnixStream::from(further.socket.unwrap());
            let (mut bytes, name) = (Vec::new(), (*connection, *stream));
            let is_over = further.ready != 0 && socket.read_to_end(&mut bytes).is_ok();
            self.0.streams.borrow_mut().entry(name).or_default().extend_from_slice(&bytes);
            if is_over {
                self.0.ended.borrow_mut().push(name);
            } else {
                left.push(*stream);
                sockets.push(socket.into());
            }
        }
        let mut flow = Flow::default();
        flow.hold_partial(&rest.partial);
        flow.keep_state(PackedBytes::own(&left));
        handle.give_sockets(sockets).unwrap();
        park(handle, &mut info, Relay::Terminate(Terminated { session, flow }));
    }
}

impl Program for Streams {
    plain_program!();

    fn accepted(self: Rc<Self>, _: Handle, _: ConnectionInfo) -> Task {
        Box::pin(std::future::ready(()))
    }

    fn woken(
        self: Rc<Self>,
        handle: Handle,
        info: ConnectionInfo,
        relay: Relay,
        counted: Counted,
    ) -> Task {
        Box::pin(async move {
            let _counted = counted;
            self.serve(&handle, info, relay);
        })
    }

    fn task_bytes(&self, _: &Decided) -> usize {
        100
    }

    fn end_resting(&self, _: ConnectionInfo, resting: KeptExchanges<'_>, _: &End) {
        let KeptExchanges::Streams(state) = resting else { panic!("it has streams") };
        self.0.rested.update(|rested| rested + state.whole_len() - 1);
    }

    fn pack_state(&self, _: &Decided, state: &[u8], _: (usize, usize)) -> Option<PackedBytes> {
        Some(PackedBytes::own(state))
    }

    fn is_logging(&self) -> bool {
        true
    }

    fn log(&self, _: &ConnectionInfo, _: &End) {
        self.0.logged.update(|logged| logged + 1);
    }
}

/// The peers of a connection.
pub(super) struct Peers {
    pub(super) client: Option<UnixStream>,
    tls: Session,
    /// `None`: it was closed.
    streams: Vec<Option<UnixStream>>,
}

impl Peers {
    /// The client says something.
    fn say(&mut self, text: &[u8]) {
        let mut record = vec![0; self.tls.record_len(text.len())];
        record[self.tls.prefix_len()..][..text.len()].copy_from_slice(text);
        self.tls.seal(&mut Keys::new(), &mut record, text.len()).unwrap();
        self.client.as_mut().unwrap().write_all(&record).unwrap();
    }

    /// An upstream says something.
    fn hear(&mut self, nth: usize, text: &[u8]) {
        self.streams[nth].as_mut().unwrap().write_all(text).unwrap();
    }
}

pub(super) fn tls(role: End13) -> Session {
    Session::tls13(role, Suite::Aes128Gcm, &[1; 32], &[2; 32], 0, 0).unwrap()
}

/// A connection that is about to be parked, and its client.
pub(super) fn accepted(worker: &Rc<Worker>) -> (Handle, OwnedFd) {
    let (client, peer) = eyelet_sys::socket::pair().unwrap();
    let key = worker.table.borrow_mut().insert(client, false);
    worker.process.open.fetch_add(1, Relaxed);
    worker.uses_descriptors(2);
    worker.process.budget.take(Account::Connections, ACTIVE_BYTES);
    worker.counters.connections.up();
    (Handle::new(worker.clone(), key), peer)
}

/// Parks a connection with this number and so many further sockets.
pub(super) fn park_streams(worker: &Rc<Worker>, connection: u8, count: u8) -> (Key, Peers) {
    let (handle, peer) = accepted(worker);
    let key = handle.key();
    let pair = |_| eyelet_sys::socket::pair().unwrap();
    let (sockets, streams): (_, Vec<OwnedFd>) = (0..count).map(pair).unzip();
    handle.give_sockets(sockets).unwrap();
    let mut info = worker.info(0, ([192, 0, 2, connection], 5000).into());
    let mut flow = Flow::default();
    flow.keep_state(PackedBytes::own(
        &(connection..=connection).chain(0..count).collect::<Vec<_>>(),
    ));
    park(&handle, &mut info, Relay::Terminate(Terminated { session: tls(End13::Server), flow }));
    let streams = streams.into_iter().map(|stream| Some(UnixStream::from(stream))).collect();
    (key, Peers { client: Some(peer.into()), tls: tls(End13::Client), streams })
}

/// Iterations and ticks of these workers, until nothing moves any more.
pub(super) fn drive(workers: &[&Rc<Worker>]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let (mut accepting, mut events) = (Accepting::new(Vec::new()), Events::with_capacity(16));
        for worker in workers.iter().cycle().take(4 * workers.len()) {
            worker.iteration(&mut events, &mut accepting).unwrap();
            let tick = worker.table.borrow().now() + 1;
            worker.tick(&mut accepting, Duration::from_millis(u64::from(tick) * TICK_MS));
            for _ in 0..32 {
                tokio::task::yield_now().await;
            }
        }
    });
}

pub(super) fn serving(heard: &Rc<Heard>) -> (Rc<Worker>, Rc<impl Program>) {
    let (worker, program) = (worker(), Rc::new(Streams(heard.clone())));
    worker.serve(&program);
    (worker, program)
}

#[track_caller]
pub(super) fn check_empty(worker: &Worker) {
    assert!(worker.table.borrow().is_empty());
    assert_eq!(worker.process.open.load(Relaxed), 0);
    assert_eq!(worker.process.descriptors.load(Relaxed), 0);
    assert_eq!(worker.counters.parked_bytes.value(), 0);
    assert_eq!(worker.process.budget.used_by(Account::Relayed), 0);
    assert!(worker.shared.borrow().is_empty() && worker.shedding.sources.is_empty());
}

/// True if a peer sees the end of its stream, by a FIN or a reset.
fn is_closed(peer: &mut UnixStream) -> bool {
    peer.set_nonblocking(true).unwrap();
    match peer.read(&mut [0; 4096]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

#[test]
fn a_further_socket_is_small() {
    assert_eq!(further_bytes(0), 0);
    assert!(further_bytes(1) <= 80 && further_bytes(101) - further_bytes(1) == 100 * 8);
    let worker = worker();
    let used = || worker.process.budget.used_by(Account::Connections);
    terminated(&worker);
    let before = used();
    let (key, _peers) = park_streams(&worker, 1, 3);
    let slot = size_of::<Slot>() + size_of::<u32>();
    assert_eq!(used() - before, slot + further_bytes(3));
    assert_eq!(worker.process.descriptors.load(Relaxed), 1 + 1 + 3);
    abandon(&worker, key);
    assert_eq!(worker.process.descriptors.load(Relaxed), 1);
    assert_eq!(used() - before, slot, "what a slab keeps for the next");
}

#[test]
fn a_byte_on_any_socket_wakes_the_connection() {
    let heard = Rc::new(Heard::default());
    let (worker, _program) = serving(&heard);
    let (key, mut peers) = park_streams(&worker, 1, 3);
    drive(&[&worker]);
    assert_eq!(heard.wakes.get(), 0, "nothing has come");
    for (nth, text) in [(1, "one"), (0, "zero"), (2, "two"), (1, "again")] {
        peers.hear(nth, text.as_bytes());
        drive(&[&worker]);
    }
    peers.say(b"hello");
    drive(&[&worker]);
    assert_eq!(heard.wakes.get(), 5);
    let text = |nth| String::from_utf8(heard.streams.borrow()[&(1, nth)].clone()).unwrap();
    assert_eq!([0, 1, 2].map(text), ["zero", "oneagain", "two"]);
    assert_eq!(heard.clients.borrow()[&1], b"hello");
    // One stream ends; the others are told apart from then on, too.
    peers.streams[0] = None;
    drive(&[&worker]);
    assert_eq!(*heard.ended.borrow(), [(1, 0)]);
    assert_eq!(worker.process.descriptors.load(Relaxed), 1 + 2);
    peers.hear(2, b"!");
    drive(&[&worker]);
    assert_eq!(text(2), "two!");
    assert!(worker.table.borrow_mut().slot(key).is_some());
    peers.client = None;
    drive(&[&worker]);
    check_empty(&worker);
    assert!(peers.streams.iter_mut().flatten().all(is_closed));
    assert_eq!(heard.logged.get(), 1);
}

/// An event that was reported before its sockets were taken is for nobody.
#[test]
fn an_old_event_changes_nothing() {
    let worker = worker();
    let (key, _peers) = park_streams(&worker, 1, 2);
    let mut table = worker.table.borrow_mut();
    assert_eq!(table.take_further(key).len(), 2);
    table.note(key, SIDES + 1, READ);
    table.note(key, SIDES + 200, READ);
    assert!(table.further_ready(key).next().is_none());
    assert!(!table.slot(key).unwrap().ready.readable());
    // Nor does a handle of an earlier connection in the same slot.
    let old = table.remove(key).unwrap();
    let new = table.insert(old.slot.client, false);
    let socket = || vec![eyelet_sys::socket::pair().unwrap().0];
    table.give_further(new, socket()).unwrap();
    assert_eq!((new.index, table.take_further(key).len()), (key.index, 0));
    assert_eq!(table.give_further(key, socket()).map_err(|own| own.len()), Err(1));
    assert!(table.take_further_at(key, 0).is_none() && table.further_count(key) == 0);
    assert!(table.put_further_at(key, 0, socket().remove(0)).is_err());
    assert!(table.give_streams(key, 1, long_any(7_u8)).is_some(), "they come back");
    assert!(table.give_streams(new, 1, long_any(8_u8)).is_none());
    assert!(!table.call(key) && !table.is_called(key) && table.take_streams(key).is_none());
    assert!(table.call(new) && table.is_called(new));
    assert_eq!(table.take_further(new).len(), 1);
}

#[test]
fn each_end_closes_all_of_them() {
    type Act = fn(&Rc<Worker>, Key);
    let acts: [(&str, Act); 4] = [
        ("abandoned", abandon),
        ("ended", |worker, key| close(worker, key, Reason::Ended)),
        ("shed", |worker, key| assert!(shed(worker, key, IdleKind::Plain))),
        ("unregistered", |worker, key| give_up(worker, key, Reason::Internal("a test"))),
    ];
    for (why, act) in acts {
        let heard = Rc::new(Heard::default());
        let (worker, _program) = serving(&heard);
        let mut settings = worker.settings.get();
        settings.idle_timeout = SETTLE;
        worker.settings.set(settings);
        let (key, mut peers) = park_streams(&worker, 1, 4);
        within(|| act(&worker, key));
        assert_eq!((heard.wakes.get(), heard.rested.get()), (0, 4), "{why}");
        assert!(peers.streams.iter_mut().flatten().all(is_closed), "{why}");
        // A client that answers lingers.
        if worker.table.borrow_mut().slot(key).is_some() {
            assert_eq!(worker.process.descriptors.load(Relaxed), 1, "{why}");
            late(&worker, key);
        }
        check_empty(&worker);
        assert_eq!(heard.logged.get(), 1, "{why}");
    }
}

/// Its client breaks the protocol of TLS, or says that it has failed.
#[test]
fn a_record_that_ends_it_ends_its_streams() {
    type Say = fn(&mut Session) -> Vec<u8>;
    const INTERNAL_ERROR: u8 = 80;
    let says: [Say; 2] = [
        |_| vec![0x17, 3, 3, 0, 24].into_iter().chain([7; 24]).collect(),
        |tls| tls.alert(&mut Keys::new(), INTERNAL_ERROR).to_vec(),
    ];
    for say in says {
        let heard = Rc::new(Heard::default());
        let (worker, _program) = serving(&heard);
        let (_key, mut peers) = park_streams(&worker, 1, 3);
        let said = say(&mut peers.tls);
        peers.client.as_mut().unwrap().write_all(&said).unwrap();
        drive(&[&worker]);
        assert_eq!((heard.wakes.get(), heard.rested.get(), heard.logged.get()), (0, 3, 1));
        assert!(peers.streams.iter_mut().flatten().all(is_closed));
    }
}

/// An end frees what a connection has where memory is short, and takes nothing for it.
#[test]
fn an_end_takes_no_memory() {
    type Act = fn(&Rc<Worker>, Key);
    const BYTES: usize = 8 << 20;
    let acts: [(&str, Act); 6] = [
        ("shed", |worker, key| assert!(shed(worker, key, IdleKind::Plain))),
        ("slow", give_up_slow),
        ("operator", |worker, key| close(worker, key, Reason::Ended)),
        ("drained", |worker, key| close(worker, key, Reason::Drained(None))),
        ("cut", |worker, key| {
            worker.ending.is_cutting.set(true);
            crate::shedding::drain::cut(worker, &[key]);
        }),
        ("removed", |worker, _| {
            assert!(end_where(worker, &Cell::new(0), &Reason::RuleGone, |_, _| true));
        }),
    ];
    for (why, act) in acts {
        let heard = Rc::new(Heard::default());
        let worker = worker_with(SETTINGS, BYTES);
        let program = Rc::new(Streams(heard.clone()));
        worker.serve(&program);
        let (key, _peers) = park_streams(&worker, 1, 100);
        let budget = &worker.process.budget;
        // A cut needs no memory, whatever there is.
        if why != "cut" {
            budget.take(Account::Http, BYTES - budget.used() - (BYTES >> 5));
        }
        let before = budget.used();
        within(|| {
            act(&worker, key);
            assert!(budget.used() < before, "{why}");
        });
        assert_eq!((heard.wakes.get(), heard.rested.get()), (0, 100), "{why}");
        assert_eq!(heard.logged.get(), 1, "{why}");
        assert!(budget.used() < before, "{why}");
    }
}

/// Its deadline waits until there is room for the tasks that know what it means.
#[test]
fn a_deadline_waits_for_memory() {
    const BYTES: usize = 8 << 20;
    let heard = Rc::new(Heard::default());
    let worker = worker_with(SETTINGS, BYTES);
    let program = Rc::new(Streams(heard.clone()));
    worker.serve(&program);
    let (key, _peers) = park_streams(&worker, 1, 100);
    let taken = BYTES - (BYTES >> 5) - worker.process.budget.used();
    worker.process.budget.take(Account::Http, taken);
    within(|| late(&worker, key));
    assert_eq!(heard.wakes.get(), 0);
    worker.process.budget.give(Account::Http, taken);
    drive(&[&worker]);
    assert_eq!(heard.wakes.get(), 1);
}

/// The program knows since when nothing has moved, and goes on with that.
#[test]
fn its_deadline_wakes_it() {
    let heard = Rc::new(Heard::default());
    let (worker, _program) = serving(&heard);
    let (key, _peers) = park_streams(&worker, 1, 2);
    within(|| late(&worker, key));
    assert_eq!(heard.wakes.get(), 1);
    assert!(worker.table.borrow_mut().slot(key).is_some());
}

/// The end of its client wakes it, too, however it comes.
#[test]
fn its_clients_end_wakes_it() {
    for says in [true, false] {
        let heard = Rc::new(Heard::default());
        let (worker, _program) = serving(&heard);
        let (_key, mut peers) = park_streams(&worker, 1, 2);
        drive(&[&worker]);
        let alert = peers.tls.alert(&mut Keys::new(), CLOSE_NOTIFY);
        if says {
            peers.client.as_mut().unwrap().write_all(&alert).unwrap();
        }
        peers.client = None;
        drive(&[&worker]);
        assert!(heard.wakes.get() > 0, "{says}");
    }
}

/// Runs an act that begins tasks in a runtime.
pub(super) fn within(act: impl FnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        act();
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    });
}

/// It serves streams: it is no idle HTTP/2 connection, and a part of a frame is no part of a
/// request that waits.
#[test]
fn a_connection_with_streams_is_being_served() {
    let worker = worker();
    let mut settings = worker.settings.get();
    settings.state_idle_timeout = SETTLE;
    worker.settings.set(settings);
    let (key, _peers) = park_streams(&worker, 1, 1);
    assert!(!shed(&worker, key, IdleKind::StateSettled));
    let mut table = worker.table.borrow_mut();
    let SlotState::Parked { relay, .. } = &mut table.slot(key).unwrap().state else { panic!() };
    assert!(relay.is_pair(), "a drain begins with others");
    relay.flow().hold_partial(b"a part");
    assert!(!relay.flow().begins_to_wait());
    relay.flow().set_has_streams(false);
    assert!(relay.flow().begins_to_wait());
}

#[test]
fn what_no_connection_may_have_goes_back() {
    let worker = worker();
    let pair = || eyelet_sys::socket::pair().unwrap();
    let key = worker.table.borrow_mut().insert(pair().0, false);
    let handle = Handle::new(worker.clone(), key);
    worker.uses_descriptors(2);
    let many: Vec<OwnedFd> = (0..=FURTHER_MAX).map(|_| pair().0).collect();
    let many = handle.give_sockets(many).unwrap_err();
    assert_eq!(many.len(), FURTHER_MAX + 1);
    handle.give_sockets(vec![pair().0]).unwrap();
    assert_eq!(handle.give_sockets(vec![pair().0]).unwrap_err().len(), 1, "twice");
    assert_eq!(worker.process.descriptors.load(Relaxed), 3);
    assert_eq!(handle.take_sockets().len(), 1);
    handle.set_connected(pair().0);
    assert_eq!(handle.give_sockets(vec![pair().0]).unwrap_err().len(), 1, "it has an upstream");
    drop(many);
}

/// While memory is short the bytes stay in the socket. Nothing is lost by that.
#[test]
fn without_memory_the_socket_waits() {
    const BYTES: usize = 8 << 20;
    let heard = Rc::new(Heard::default());
    let worker = worker_with(SETTINGS, BYTES);
    let program = Rc::new(Streams(heard.clone()));
    worker.serve(&program);
    let (_key, mut peers) = park_streams(&worker, 1, 2);
    let taken = BYTES - (BYTES >> 5);
    worker.process.budget.take(Account::Http, taken);
    peers.hear(1, b"late");
    drive(&[&worker]);
    assert_eq!(heard.wakes.get(), 0);
    worker.process.budget.give(Account::Http, taken);
    drive(&[&worker]);
    assert_eq!(heard.streams.borrow()[&(1, 1)], b"late");
}

/// The connection in another worker, as it comes there.
fn moved(old: &Rc<Worker>, key: Key) -> Detached {
    let detached = detach(old, key, BATCH_DESCRIPTORS_MAX).unwrap();
    let (bytes, sockets) = (detached.encode(), copies(&detached));
    drop(detached);
    Detached::decode(&bytes, sockets).unwrap()
}

fn copies(detached: &Detached) -> Vec<OwnedFd> {
    detached.sockets().map(|socket| socket.try_clone_to_owned().unwrap()).collect()
}

#[test]
fn its_sockets_go_along() {
    let heard = Rc::new(Heard::default());
    let ((old, _program), (new, _programs)) = (serving(&heard), serving(&heard));
    let (key, mut peers) = park_streams(&old, 7, 3);
    // Not read by the old worker: the new one's registration reports it.
    peers.hear(2, b"before ");
    let detached = moved(&old, key);
    check_empty(&old);
    peers.hear(0, b"between");
    let key = attach(&new, detached).unwrap().unwrap();
    assert_eq!(new.process.descriptors.load(Relaxed), 1 + 3);
    peers.hear(2, b"after");
    let mut events = Events::with_capacity(16);
    old.table.borrow().epoll.poll(&mut events).unwrap();
    assert!(events.is_empty(), "a registration stayed behind");
    drive(&[&old, &new]);
    assert_eq!(heard.streams.borrow()[&(7, 2)], b"before after");
    assert_eq!(heard.streams.borrow()[&(7, 0)], b"between");
    peers.say(b"client");
    drive(&[&old, &new]);
    assert_eq!(heard.clients.borrow()[&7], b"client");
    assert!(new.table.borrow_mut().slot(key).is_some());
    peers.client = None;
    drive(&[&old, &new]);
    check_empty(&new);
}

/// A batch takes as many sockets as it has left; the next one begins with what did not fit.
#[test]
fn a_batch_has_no_more_sockets_than_it_may() {
    let old = worker();
    let keys = [0, 4, 5, 1].map(|count| park_streams(&old, 1, count).0);
    let far = Instant::now() + Duration::from_secs(600);
    let mut batches = Vec::new();
    let nobody = Staying::new();
    while let SearchResult::Batch(found) = batch::next(&old, 5, u32::MAX, far, &nobody) {
        let Detachment { parcels, .. } = found;
        batches.push(parcels.iter().map(|one| one.sockets().count()).collect::<Vec<_>>());
    }
    assert_eq!(batches, [vec![1], vec![5], vec![2]]);
    // The one with six is too large for any.
    assert_eq!(detach(&old, keys[2], 5).err(), Some(Stays::Sockets(6)));
    assert!(detach(&old, keys[2], 6).is_ok());
    check_empty(&old);
}

#[test]
fn sockets_that_a_message_cannot_have_are_refused() {
    let old = worker();
    let (key, _peers) = park_streams(&old, 1, 2);
    let with_state = detach(&old, key, BATCH_DESCRIPTORS_MAX).unwrap();
    let key = terminated(&old);
    let without = detach(&old, key, BATCH_DESCRIPTORS_MAX).unwrap();
    let decode = |detached: &Detached, count: usize| {
        let pairs = (0..count).map(|_| eyelet_sys::socket::pair().unwrap().0).collect();
        Detached::decode(&detached.encode(), pairs).map(|one| one.sockets().count())
    };
    assert_eq!(decode(&with_state, 0), Err(ImportError::Sockets { expected: 1, got: 0 }));
    assert_eq!(decode(&with_state, 1 + FURTHER_MAX), Ok(1 + FURTHER_MAX));
    let got = 2 + FURTHER_MAX;
    assert_eq!(decode(&with_state, got), Err(ImportError::Sockets { expected: 1, got }));
    assert_eq!(decode(&without, 2), Err(ImportError::Sockets { expected: 1, got: 2 }));
}

/// Random runs with several connections that move between two workers at any time, or come back,
/// and memory that is short at times. What upstreams and clients say is heard once, in order, by
/// whoever has the connection. Each ends by its client, or by a drain.
#[test]
fn nothing_is_lost_however_they_move() {
    for seed in 0..60 {
        println!("seed {seed}");
        run(seed);
    }
}

fn run(seed: u64) {
    let (mut rng, heard) = (Rng::with_seed(seed), Rc::new(Heard::default()));
    let ((one, _one), (two, _two)) = (serving(&heard), serving(&heard));
    let workers = [&one, &two];
    let mut all: Vec<Peers> = (0..4).map(|nth| park_streams(&one, nth, rng.u8(1..6)).1).collect();
    let (mut said, mut asked) =
        (BTreeMap::<(u8, u8), Vec<u8>>::new(), [(); 4].map(|()| Vec::new()));
    let mut short = [false; 2];
    for _ in 0..80 {
        let nth = rng.usize(..4);
        let peers = &mut all[nth];
        let open: Vec<usize> =
            (0..peers.streams.len()).filter(|at| peers.streams[*at].is_some()).collect();
        let text = vec![rng.u8(..); rng.usize(1..50)];
        match (rng.u8(..10), rng.choice(&open)) {
            (0..4, Some(&stream)) => {
                peers.hear(stream, &text);
                said.entry((nth as u8, stream as u8)).or_default().extend_from_slice(&text);
            }
            // Without any it would be idle, and end where memory is short.
            (4, Some(&stream)) if open.len() > 1 => peers.streams[stream] = None,
            (5, _) => {
                peers.say(&text);
                asked[nth].extend_from_slice(&text);
            }
            (6, _) => {
                let nth = rng.usize(..2);
                set_short(workers[nth], &mut short[nth]);
            }
            (7, _) => hand_over(workers[rng.usize(..2)], workers[rng.usize(..2)], &mut rng),
            _ => drive(&workers),
        }
    }
    for (worker, short) in workers.iter().zip(&mut short).filter(|(_, short)| **short) {
        set_short(worker, short);
    }
    drive(&workers);
    let mut streams = heard.streams.borrow().clone();
    streams.retain(|_, bytes| !bytes.is_empty());
    assert_eq!(streams, said);
    for (nth, asked) in asked.iter().enumerate().filter(|(_, asked)| !asked.is_empty()) {
        assert_eq!(&heard.clients.borrow()[&(nth as u8)], asked);
    }
    let open: usize = all.iter().map(|peers| peers.streams.iter().flatten().count()).sum();
    let descriptors = workers.map(|worker| worker.process.descriptors.load(Relaxed));
    assert_eq!(descriptors.iter().sum::<usize>(), open + all.len());
    if rng.bool() {
        for worker in workers {
            let keys = worker.table.borrow().keys();
            within(|| crate::shedding::drain::cut(worker, &keys));
        }
    }
    all.iter_mut().for_each(|peers| peers.client = None);
    drive(&workers);
    assert!(all.iter_mut().flat_map(|peers| peers.streams.iter_mut().flatten()).all(is_closed));
    workers.into_iter().for_each(|worker| check_empty(worker));
    assert_eq!(heard.logged.get(), 4);
}

/// Others hold nearly all memory, or give it back.
fn set_short(worker: &Worker, is_short: &mut bool) {
    const BYTES: usize = 56 << 20;
    let budget = &worker.process.budget;
    match std::mem::replace(is_short, !*is_short) {
        true => budget.give(Account::Http, BYTES),
        false => budget.take(Account::Http, BYTES),
    }
}

/// All connections of a worker leave. Each arrives in the other, or comes back.
fn hand_over(old: &Rc<Worker>, new: &Rc<Worker>, rng: &mut Rng) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let keys = old.table.borrow().keys();
        for key in keys {
            let Ok(detached) = detach(old, key, BATCH_DESCRIPTORS_MAX) else { continue };
            let (bytes, sockets) = (detached.encode(), copies(&detached));
            if rng.bool() {
                drop(sockets);
                attach(old, detached).unwrap();
            } else {
                let imported = Detached::decode(&bytes, sockets).unwrap();
                if let Err(refused) = attach(new, imported) {
                    // The other has no memory for it.
                    drop(refused);
                    attach(old, detached).unwrap();
                }
            }
        }
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    });
}
