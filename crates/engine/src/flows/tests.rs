//! Flows that move from one worker to another, as between two processes, with real sockets.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use eyelet_flows::peer::Peer;
use eyelet_flows::table::{FLOWS_OF_ADDRESS_MAX, Flows};
use eyelet_flows::unanswered::UNANSWERED_MAX;
use eyelet_memory::budget::{Account, Budget, Counted};
use eyelet_memory::slab::Key;
use eyelet_relay::Relay;
use eyelet_sys::socket::datagram;
use eyelet_telemetry::info::{ConnectionInfo, Decided, End};
use eyelet_telemetry::reason::Reason;
use tokio::sync::{mpsc, watch};

use crate::departure::{BatchAnswer, Departure, Leaving, departures};
use crate::flows::moving::FLOWS_AT_ONCE;
use crate::iteration::run;
use crate::testing::stepper::{Stepper, check_worker};
use crate::testing::{SETTINGS, plain_program, worker, worker_with};
use crate::worker::flow_state::FlowPass;
use crate::worker::inbox::{FlowNews, Placed};
use crate::worker::{
    Handle, ListenerSocket, Order, Orders, Process, Program, Settings, Task, Worker, WorkerOrders,
};
use eyelet_handover::flows::FlowBatch;
use eyelet_handover::flows::{FlowImportError, VERSION_FLOWS, decode, via};
use eyelet_handover::guard::{DatagramGuard, GuardTurn};
use eyelet_handover::quic_move::{MovingGuard, QuicMove};

mod faults;
mod without_upstream;

/// Rounds of the runtime in which a worker does what it was told.
const ROUNDS: usize = 2_000;

/// Lets all flows pass to one server, with a guard that drops what begins with its byte.
struct Passing {
    server: SocketAddr,
    logged: RefCell<Vec<(u64, [u64; 2], String)>>,
    departure: RefCell<Option<Departure>>,
}

struct Dropping(u8);

/// The byte of a guard that refuses without a word.
const UNTOLD: u8 = 7;
/// The byte of a guard that nobody can read without a panic.
const PANICS: u8 = 8;
/// That of a hello whose other half comes in another datagram.
const IN_TWO: u8 = 9;
const REFUSAL: &[u8] = b"it has no upstream";

impl DatagramGuard for Dropping {
    fn read(&mut self, datagram: &[u8], _: Option<&[u8]>) -> GuardTurn {
        if datagram.last() == Some(&self.0) { GuardTurn::Drops } else { GuardTurn::Passes }
    }

    fn export(&self) -> Option<Vec<u8>> {
        (self.0 != 0).then(|| vec![self.0])
    }

    fn refusal(&self, _: &Reason) -> Vec<u8> {
        if self.0 == UNTOLD { Vec::new() } else { REFUSAL.to_vec() }
    }
}

impl Program for Passing {
    plain_program!();

    fn accepted(self: Rc<Self>, _: Handle, _: ConnectionInfo) -> Task {
        Box::pin(std::future::ready(()))
    }

    fn flow_begun(self: Rc<Self>, handle: Handle, mut info: ConnectionInfo, flow: Key) -> Task {
        let first = handle.waiting_datagram(flow, 0).unwrap();
        let last = first.bytes[first.bytes.len() - 1];
        info.decided.sni = Some("a.example".into());
        let pass = FlowPass {
            to: self.server,
            is_from_client: false,
            may_change_address: true,
            guard: Some(Box::new(Dropping(last))),
            seen: 1,
        };
        Box::pin(async move {
            while last == IN_TWO && handle.waiting_datagram(flow, 1).is_none() {
                handle.next_datagram(flow).await.unwrap();
            }
            handle.pass_flow(flow, info, pass).unwrap();
        })
    }

    fn departure(&self) -> Option<Departure> {
        self.departure.take()
    }

    fn import_guard(&self, bytes: &[u8]) -> Option<Box<dyn DatagramGuard>> {
        let [byte] = bytes else { return None };
        assert_ne!(*byte, PANICS);
        Some(Box::new(Dropping(*byte)))
    }

    fn woken(self: Rc<Self>, _: Handle, _: ConnectionInfo, _: Relay, _: Counted) -> Task {
        Box::pin(std::future::ready(()))
    }

    fn task_bytes(&self, _: &Decided) -> usize {
        0
    }

    fn is_logging(&self) -> bool {
        true
    }

    fn log(&self, info: &ConnectionInfo, end: &End) {
        let line = (info.bytes_to_upstream, info.datagrams, end.reason.to_string());
        self.logged.borrow_mut().push(line);
    }
}

/// A server, and a socket that clients ask.
struct Network {
    server: UdpSocket,
    listener: Arc<OwnedFd>,
    at: SocketAddr,
}

impl Network {
    fn new() -> Self {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        server.set_nonblocking(true).unwrap();
        let listener = datagram::bind_shared("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let at = eyelet_sys::socket::local_address(&listener).unwrap();
        Self { server, listener: Arc::new(listener), at }
    }

    fn serve(&self, worker: &Rc<Worker>) -> (Stepper, Rc<Passing>) {
        let server = self.server.local_addr().unwrap();
        let program =
            Rc::new(Passing { server, logged: RefCell::default(), departure: RefCell::default() });
        worker.serve(&program);
        worker.listen_datagrams(&[ListenerSocket::of_datagrams(0, self.listener.clone())]);
        (Stepper::new(worker.clone()), program)
    }

    fn client(&self) -> UdpSocket {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(self.at).unwrap();
        client.set_nonblocking(true).unwrap();
        client
    }

    /// A client whose first datagram ends in this byte.
    fn begin(&self, stepper: &mut Stepper, last: u8) -> UdpSocket {
        let client = self.client();
        client.send(&long(0, b"first-id", b"client", 1200, last)).unwrap();
        stepper.iterate();
        client
    }

    /// The next datagram at the server, and who has sent it.
    fn heard(&self) -> Option<(Vec<u8>, SocketAddr)> {
        let mut bytes = [0; 2048];
        let (len, from) = self.server.recv_from(&mut bytes).ok()?;
        Some((bytes[..len].to_vec(), from))
    }
}

/// A worker with one flow, of which the server has the first datagram.
struct Scene {
    network: Network,
    worker: Rc<Worker>,
    stepper: Stepper,
    program: Rc<Passing>,
    client: UdpSocket,
    /// The address that the server sees.
    edge: SocketAddr,
}

impl Scene {
    fn new() -> Self {
        let (network, worker) = (Network::new(), worker());
        let (mut stepper, program) = network.serve(&worker);
        let client = network.begin(&mut stepper, 1);
        let (_, edge) = network.heard().unwrap();
        Self { network, worker, stepper, program, client, edge }
    }
}

/// A long header of version 1 to this id, of this kind.
fn long(kind: u8, dcid: &[u8], scid: &[u8], len: usize, last: u8) -> Vec<u8> {
    let mut bytes = vec![0xc0 | kind << 4, 0, 0, 0, 1, dcid.len() as u8];
    bytes.extend(dcid);
    bytes.push(scid.len() as u8);
    bytes.extend(scid);
    if kind == 0 {
        bytes.push(0);
    }
    let rest = len - bytes.len() - 2;
    bytes.extend((rest as u16 | 0x4000).to_be_bytes());
    bytes.resize(len, 7);
    bytes[len - 1] = last;
    bytes
}

fn copies(batches: &[FlowBatch]) -> Vec<(Vec<u8>, Vec<OwnedFd>)> {
    let copy = |batch: &FlowBatch| {
        let sockets = batch.sockets.iter().map(|socket| socket.try_clone().unwrap());
        (batch.body.clone(), sockets.collect())
    };
    batches.iter().map(copy).collect()
}

/// Has all flows leave that are to, some at a time.
fn leave(worker: &Rc<Worker>, descriptors_max: usize) -> Vec<FlowBatch> {
    let mut all = Vec::new();
    loop {
        let (batches, are_last) = worker.leave_some_flows(descriptors_max);
        all.extend(batches);
        if are_last {
            return all;
        }
    }
}

fn arrive(worker: &Rc<Worker>, batches: Vec<(Vec<u8>, Vec<OwnedFd>)>) -> Vec<Placed> {
    let said = batches.into_iter().map(|(body, sockets)| {
        let (placed, said) = std::sync::mpsc::sync_channel(1);
        worker.take_flow_news(FlowNews::Message { body, sockets, placed });
        said.recv().unwrap().unwrap()
    });
    let said = said.collect();
    worker.take_flow_news(FlowNews::All);
    said
}

/// Ends all flows, and checks that nothing is left.
fn end(stepper: Stepper, worker: Rc<Worker>) {
    drop(stepper);
    worker.forget_given_flows();
    worker.end_all_flows();
    worker.leave_datagrams(&[], false);
    worker.tidy_datagram_sockets();
    check_worker(worker);
}

/// One flow that its server has answered and one that it has not move. What was sent meanwhile
/// waits in the queues, and nothing is lost. A third one ends, because its guard cannot move.
#[test]
fn flows_pass_in_the_next_process() {
    let network = Network::new();
    let (old, new) = (worker(), worker());
    let (mut stepper, program) = network.serve(&old);
    let [one, two, _three] = [1, 2, 0].map(|last| network.begin(&mut stepper, last));
    let firsts: Vec<_> = std::iter::from_fn(|| network.heard()).collect();
    assert_eq!(firsts.len(), 3);
    let (edge_one, edge_two) = (firsts[0].1, firsts[1].1);
    network.server.send_to(&long(0, b"client", b"server-1", 1200, 9), edge_one).unwrap();
    stepper.iterate();
    assert_eq!(one.recv(&mut [0; 2048]).unwrap(), 1200);

    let kept = [network.listener.clone()];
    let again = old.leave_datagrams(&kept, true);
    let batches = leave(&old, 100);
    let lines = program.logged.take();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!((batches.len(), batches[0].sockets.len(), batches[0].flows), (1, 2, 2));
    assert_eq!(old.process.descriptors.load(Relaxed), 0);
    // Both sides send while nobody reads.
    one.send(&long(2, b"server-1", b"client", 60, 3)).unwrap();
    network.server.send_to(&long(0, b"client", b"server-2", 1200, 9), edge_two).unwrap();
    stepper.iterate();
    assert!(network.heard().is_none() && two.recv(&mut [0; 2048]).is_err());

    new.process.inboxes.await_flows();
    let (mut after, program) = network.serve(&new);
    after.iterate();
    assert_eq!(program.logged.borrow().len(), 0, "it reads nothing before the flows have come");
    assert_eq!(arrive(&new, copies(&batches)), [Placed { served: 2, ended: 0 }]);
    new.process.inboxes.end_flows(Duration::ZERO);
    assert_eq!(new.process.open.load(Relaxed), 2);
    after.iterate();
    assert_eq!(network.heard().unwrap().1, edge_one, "by the same socket");
    assert_eq!(two.recv(&mut [0; 2048]).unwrap(), 1200);
    // Its guard goes on: it drops another hello, and passes what is none.
    two.send(&long(0, b"server-2", b"client", 1200, 2)).unwrap();
    two.send(&long(0, b"server-2", b"client", 1200, 5)).unwrap();
    // The first client has the handshake's keys. No hello of it passes any more.
    one.send(&long(0, b"server-1", b"client", 1200, 5)).unwrap();
    after.iterate();
    let (bytes, from) = network.heard().unwrap();
    assert_eq!((bytes[1199], from), (5, edge_two));
    assert!(network.heard().is_none());
    drop((kept, again));
    new.end_all_flows();
    let mut lines = program.logged.take();
    lines.sort();
    let sums: Vec<_> = lines.iter().map(|(bytes, datagrams, _)| (*bytes, *datagrams)).collect();
    assert_eq!(sums, [(1260, [2, 1]), (2400, [2, 1])], "counted over both processes");
    end(after, new);
    end(stepper, old);
}

/// The next process has died: the flows are served here again, from where they were.
#[test]
fn flows_come_back() {
    let Scene { network, worker: old, mut stepper, program, client, edge } = Scene::new();
    let again = old.leave_datagrams(from_ref(&network.listener), true);
    let batches = leave(&old, 100);
    network.server.send_to(&long(0, b"client", b"server-1", 1200, 9), edge).unwrap();
    drop(copies(&batches));
    drop(batches);
    old.listen_datagrams(&again);
    old.take_flows_back();
    stepper.iterate();
    assert_eq!(client.recv(&mut [0; 2048]).unwrap(), 1200);
    client.send(&long(2, b"server-1", b"client", 60, 3)).unwrap();
    stepper.iterate();
    assert_eq!(network.heard().unwrap().1, edge);
    assert!(program.logged.borrow().is_empty());
    drop(again);
    end(stepper, old);
}

/// A listener that the next process lacks: its flows go on here, and nothing new begins.
#[test]
fn flows_of_a_removed_listener_stay() {
    let Scene { network, worker: old, mut stepper, program, client, edge } = Scene::new();
    drop(old.leave_datagrams(&[], true));
    assert!(leave(&old, 100).is_empty());
    network.server.send_to(&long(0, b"client", b"server-1", 1200, 9), edge).unwrap();
    network.client().send(&long(0, b"first-id", b"client", 1200, 1)).unwrap();
    stepper.iterate();
    stepper.iterate();
    assert_eq!(client.recv(&mut [0; 2048]).unwrap(), 1200);
    assert!(network.heard().is_none(), "a stranger begins nothing");
    assert!(!old.is_empty() && program.logged.borrow().is_empty());
    end(stepper, old);
}

/// A reload has taken QUIC from a listener and another one has given it back. The first socket must
/// not stay open: the kernel would give it clients whom nobody hears.
#[test]
fn a_removed_socket_at_a_kept_address_closes() {
    let Scene { network, worker: old, stepper, program, client: _client, .. } = Scene::new();
    let kept = Arc::new(datagram::bind_shared(network.at, false).unwrap());
    old.listen_datagrams(&[ListenerSocket::of_datagrams(0, kept.clone())]);
    let Network { listener, .. } = network;
    let removed = Arc::downgrade(&listener);
    drop(listener);
    let again = old.leave_datagrams(from_ref(&kept), true);
    assert!(leave(&old, 100).is_empty() && removed.upgrade().is_none());
    assert_eq!((again.len(), program.logged.borrow().len()), (1, 1));
    drop(again);
    end(stepper, old);
}

#[test]
fn flows_without_room_end_with_their_lines() {
    const FLOWS: usize = 20;
    let network = Network::new();
    let (old, new) =
        (worker(), worker_with(Settings { connections_max: 15, ..SETTINGS }, 64 << 20));
    let (mut stepper, _program) = network.serve(&old);
    let _clients: Vec<_> = (0..FLOWS).map(|_| network.begin(&mut stepper, 1)).collect();
    let again = old.leave_datagrams(from_ref(&network.listener), true);
    let batches = leave(&old, 8);
    assert_eq!(batches.iter().map(|it| it.sockets.len()).collect::<Vec<_>>(), [8, 8, 4]);
    let (after, program) = network.serve(&new);
    let placed = arrive(&new, copies(&batches));
    assert_eq!(placed.iter().map(|it| it.served).sum::<usize>(), 15);
    assert_eq!(placed.iter().map(|it| it.ended).sum::<usize>(), 5);
    let lines = program.logged.take();
    assert!(lines.len() == 5 && lines.iter().all(|(bytes, ..)| *bytes == 1200), "{lines:?}");
    // All of them again: two flows with one address, and no room.
    let placed = arrive(&new, copies(&batches));
    assert_eq!(placed.iter().map(|it| it.served).sum::<usize>(), 0);
    drop(again);
    end(after, new);
    end(stepper, old);
}

#[test]
fn a_message_that_is_none_is_refused_whole() {
    let Scene { network, worker: old, stepper, program, client: _client, .. } = Scene::new();
    let again = old.leave_datagrams(from_ref(&network.listener), true);
    let batch = leave(&old, 100).pop().unwrap();
    let socket = || batch.sockets[0].try_clone().unwrap();
    let read = |body: &[u8], sockets: Vec<OwnedFd>| {
        decode(body, sockets, old.now_unix_ms(), |bytes| program.import_guard(bytes)).map(|read| {
            assert_eq!(read.flows.len() + read.unread, 1);
            read.fault
        })
    };
    let body = &batch.body;
    assert_eq!(read(body, vec![socket()]), Ok(None));
    assert!(via(body).is_ok());
    for end in 0..body.len() {
        assert!(read(&body[..end], vec![socket()]).is_err(), "{end}");
    }
    let cases = [
        ([&body[..], &[0]].concat(), vec![socket()], FlowImportError::Trailing(1)),
        (body.clone(), vec![], FlowImportError::Sockets { expected: 1, got: 0 }),
        (body.clone(), vec![socket(), socket()], FlowImportError::Sockets { expected: 1, got: 2 }),
        ([&[0, 12], &body[2..]].concat(), vec![socket()], FlowImportError::Version(12)),
    ];
    for (body, sockets, expected) in cases {
        assert_eq!(read(&body, sockets), Err(expected));
    }
    assert_eq!(&body[..2], VERSION_FLOWS.to_be_bytes());
    // What is wrong with one flow ends that one alone.
    let strange: [OwnedFd; 2] =
        [UdpSocket::bind("127.0.0.1:0").unwrap().into(), eyelet_sys::socket::pair().unwrap().0];
    for socket in strange {
        assert_eq!(read(body, vec![socket]), Ok(Some(FlowImportError::Socket)));
    }
    // An id that no version has, and a guard that the program does not know: it fails closed.
    let id_at = body.windows(8).position(|part| part == b"first-id").unwrap();
    let mut long_id = body[..id_at - 1].to_vec();
    long_id.push(21);
    long_id.extend([7; 21]);
    long_id.extend(&body[id_at + 8..]);
    assert_eq!(read(&long_id, vec![socket()]), Ok(Some(FlowImportError::Id)));
    let unknown = decode(body, vec![socket()], old.now_unix_ms(), |_| None).unwrap();
    let guard = &unknown.flows[0].flow.addresses[0].payload.guard;
    assert!(matches!(guard, MovingGuard::HelloIsOver));
    drop(again);
    end(stepper, old);
}

/// An upgrade must not keep a worker busy with all its flows at once, and the copies that it keeps
/// count.
#[test]
fn flows_leave_some_at_a_time_and_count() {
    let network = Network::new();
    let old = worker();
    let (mut stepper, program) = network.serve(&old);
    let clients: Vec<_> = (0..FLOWS_AT_ONCE + 2).map(|_| network.client()).collect();
    for client in &clients {
        client.send(&long(0, b"first-id", b"client", 1200, 1)).unwrap();
        stepper.iterate();
        // One network has no more unanswered ones.
        let (_, edge) = network.heard().unwrap();
        network.server.send_to(&long(0, b"client", b"server-1", 1200, 9), edge).unwrap();
        stepper.iterate();
    }
    let again = old.leave_datagrams(from_ref(&network.listener), true);
    let counted = || old.process.budget.used_by(Account::Flows);
    let (first, are_last) = old.leave_some_flows(100);
    let flows: Vec<_> = first.iter().map(|batch| batch.flows).collect();
    assert_eq!((flows.iter().sum(), are_last), (FLOWS_AT_ONCE, false));
    assert!(counted() > FLOWS_AT_ONCE * size_of::<QuicMove>());
    // The others are served as before.
    assert_eq!(old.flows.table.borrow().open(), 2);
    let (rest, are_last) = old.leave_some_flows(100);
    assert_eq!((rest[0].flows, are_last), (2, true));
    // Nobody has room for the first of both batches of the first part, and for the rest.
    drop((first, rest));
    let before = counted();
    old.end_refused_flows(&[2], &[0]);
    assert_eq!(program.logged.take().len(), 2);
    old.end_refused_flows(&flows, &[0]);
    assert_eq!(program.logged.take().len(), flows[0]);
    assert!(counted() < before);
    old.listen_datagrams(&again);
    old.take_flows_back();
    assert_eq!(old.flows.table.borrow().open(), FLOWS_AT_ONCE - flows[0]);
    drop(again);
    end(stepper, old);
}

/// The next process dies while flows leave and this one was told to end: it does.
#[test]
fn a_worker_that_is_to_drain_ends_if_the_next_process_dies_while_flows_leave() {
    let drain = |order: &watch::Sender<Orders>, _: &mpsc::Sender<BatchAnswer>| {
        order.send_modify(|orders| orders.add(Order::Drain));
    };
    let (has_ended, _, lines) = left_alone(None, drain);
    assert_eq!((has_ended, lines), (true, 1));
}

/// It serves flows again that an upgrade has given. It has none of those that were recorded: who
/// reads the recording serves them.
#[test]
fn recorded_flows_do_not_come_back() {
    for (active_max, open) in [(None, 1), (Some(Duration::from_secs(20)), 0)] {
        let commit = |_: &watch::Sender<Orders>, answers: &mpsc::Sender<BatchAnswer>| {
            answers.try_send(BatchAnswer::Committed { refused: Vec::new() }).unwrap();
        };
        let (_, open_again, lines) = left_alone(active_max, commit);
        assert_eq!((open_again, lines), (open, 0), "{active_max:?}");
    }
}

/// A worker leaves with one flow. The other process does this when it hears of it, and then dies.
/// Returns whether the worker has ended, its flows, and the lines of others.
fn left_alone(
    active_max: Option<Duration>,
    heard: impl FnOnce(&watch::Sender<Orders>, &mpsc::Sender<BatchAnswer>),
) -> (bool, usize, usize) {
    let Scene { network, worker: old, stepper, program, client: _client, .. } = Scene::new();
    drop(stepper);
    let kept: Arc<[_]> = Arc::new([network.listener.clone()]);
    let (mut departures, mut answers, leaving) = departures(1, &kept, 100, active_max);
    departures[0].moves_flows = true;
    *program.departure.borrow_mut() = departures.pop();
    let (order, orders) = watch::channel(Orders::default());
    let add = |added| order.send_modify(|orders| orders.add(added));
    add(Order::Serve);
    add(Order::HandOver);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let orders = WorkerOrders::new(orders);
        let running = tokio::task::spawn_local(run(old.clone(), Vec::new(), orders));
        // Orders and answers need no socket and no clock, so rounds are enough.
        let go_on = async |is_enough: &dyn Fn() -> bool| {
            for _ in 0..ROUNDS {
                if is_enough() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        };
        go_on(&|| matches!(leaving.try_recv(), Ok(Leaving::Flows { .. }))).await;
        heard(&order, &answers[0]);
        // The worker notes it.
        go_on(&|| false).await;
        answers.clear();
        go_on(&|| running.is_finished()).await;
        let open = old.flows.table.borrow().open();
        let seen = (running.is_finished(), open, program.logged.borrow().len());
        // What is left is not waited for.
        old.settings.set(Settings { drain_timeout: Duration::ZERO, ..SETTINGS });
        add(Order::Drain);
        running.await.unwrap().unwrap();
        seen
    })
}

/// At the bound of an address none ends for another flow while the servers of its own have not
/// answered, and none of somebody else. Then one of its own does, if there is room for the new one.
#[test]
fn one_of_its_own_ends_for_a_client_at_its_bound() {
    const FLOWS: usize = FLOWS_OF_ADDRESS_MAX;
    let settings = Settings { connections_max: FLOWS + 1, ..SETTINGS };
    let (network, worker) = (Network::new(), worker_with(settings, 64 << 20));
    let (mut stepper, program) = network.serve(&worker);
    let _other = network.begin(&mut stepper, 1);
    let client = network.client();
    for first_id in 0..=FLOWS as u64 {
        client.send(&long(0, &first_id.to_be_bytes(), b"client", 1200, 1)).unwrap();
        stepper.iterate();
    }
    let check = |not_begun, ended| {
        assert_eq!(worker.counters.flows_not_begun.value(), not_begun);
        let (open, lines) = (worker.flows.table.borrow().open(), program.logged.borrow().len());
        assert_eq!((open, lines), (FLOWS + 1, ended));
    };
    check(1, 0);
    let edges: Vec<_> = std::iter::from_fn(|| network.heard()).map(|(_, edge)| edge).collect();
    assert_eq!(edges.len(), 1 + FLOWS);
    for edge in edges {
        network.server.send_to(&long(0, b"client", b"server-1", 1200, 9), edge).unwrap();
        stepper.iterate();
    }
    worker.settings.set(SETTINGS);
    let next = long(0, &(FLOWS as u64).to_be_bytes(), b"client", 1200, 1);
    for (strangers, (not_begun, ended)) in [(UNANSWERED_MAX, (2, 0)), (0, (2, 1))] {
        let others = unanswered(&worker, network.at, strangers);
        client.send(&next).unwrap();
        stepper.iterate();
        check(not_begun, ended);
        drop(others);
    }
    assert!(network.heard().is_some(), "the last one has passed, too");
    end(stepper, worker);
}

/// Flows of another worker of the same process, that no server has answered.
fn unanswered(worker: &Worker, at: SocketAddr, count: usize) -> Flows<()> {
    let budget = Arc::new(Budget::new(64 << 20, 0));
    let mut others = Flows::new(&budget, &worker.process.unanswered);
    for n in 0..count as u32 {
        let from = Ipv4Addr::from(10 << 24 | n << 8);
        others.begin(Peer::new((from, 1).into(), at), b"first-id", 0, ()).unwrap();
    }
    others
}

/// Connections are at their limit. Those that no server has answered go first, whichever worker has
/// them: the only flow of the other worker goes on.
#[test]
fn unanswered_flows_of_another_worker_go_first() {
    shed_in_the_crowded_worker(false);
}

/// They were answered before that worker ends one: the worker with the newcomer gets the debt.
#[test]
fn a_debt_goes_on_to_the_worker_with_unanswered_flows() {
    shed_in_the_crowded_worker(true);
}

fn shed_in_the_crowded_worker(are_answered: bool) {
    let process = Arc::new(Process::new(Arc::new(Budget::new(64 << 20, 0))));
    let settings = Settings { connections_max: 4, ..SETTINGS };
    let of = |index| {
        let worker = Worker::new(index, settings, process.clone(), Arc::default()).unwrap();
        (Network::new(), Rc::new(worker))
    };
    let (crowded, calm) = (of(0), of(1));
    let mut inboxes = process.inboxes.open(2);
    let begin = |(network, _): &(Network, Rc<Worker>), stepper: &mut Stepper| {
        let client = network.client();
        client.send(&long(0, b"first-id", b"client", 1200, 1)).unwrap();
        stepper.iterate();
        client
    };
    let ((mut many, lines), (mut few, calm_lines)) =
        (crowded.0.serve(&crowded.1), calm.0.serve(&calm.1));
    let _strangers = [(); 3].map(|()| begin(&crowded, &mut many));
    let client = begin(&calm, &mut few);
    let (_, edge) = calm.0.heard().unwrap();
    calm.0.server.send_to(&long(0, b"client", b"server-1", 1200, 9), edge).unwrap();
    few.iterate();
    assert_eq!(client.recv(&mut [0; 2048]).unwrap(), 1200);
    assert_eq!((process.open.load(Relaxed), process.unanswered.all()), (4, 3));
    let _newcomer = begin(&calm, &mut few);
    assert!(calm.0.heard().is_some(), "it passes at once");
    assert!(calm_lines.logged.borrow().is_empty());
    while let Some((_, edge)) = crowded.0.heard().filter(|_| are_answered) {
        crowded.0.server.send_to(&long(0, b"client", b"server-1", 1200, 9), edge).unwrap();
        many.iterate();
    }
    let owed = inboxes.remove(0).shedding.take_owed();
    crowded.1.shed_flows(owed);
    assert_eq!(lines.logged.take().len(), usize::from(!are_answered));
    let owed_next = inboxes.remove(0).shedding.take_owed();
    assert_eq!((owed, owed_next), (1, usize::from(are_answered)));
    calm.1.shed_flows(owed_next);
    assert_eq!(calm_lines.logged.take().len(), owed_next);
    assert_eq!(process.open.load(Relaxed), 4);
    for (stepper, (_, worker)) in [(many, crowded), (few, calm)] {
        drop(stepper);
        worker.end_all_flows();
        worker.leave_datagrams(&[], false);
        worker.tidy_datagram_sockets();
    }
    assert_eq!((process.open.load(Relaxed), process.unanswered.all()), (0, 0));
}

/// A debt of a worker with too many unanswered flows: an answered one elsewhere does not pay it.
#[test]
fn an_answered_flow_stays_where_only_unanswered_ones_are_too_many() {
    let Scene { network, worker, mut stepper, program, client, edge } = Scene::new();
    network.server.send_to(&long(0, b"client", b"server-1", 1200, 9), edge).unwrap();
    stepper.iterate();
    assert_eq!(client.recv(&mut [0; 2048]).unwrap(), 1200);
    let others = unanswered(&worker, network.at, UNANSWERED_MAX + 1);
    assert!(worker.process.unanswered.all() > UNANSWERED_MAX);
    worker.shed_flows(1);
    assert!(program.logged.borrow().is_empty());
    drop(others);
    end(stepper, worker);
}
