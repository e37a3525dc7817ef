//! Held connections in a worker: who wakes one, how it ends, and who goes first when memory is
//! short.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::time::Duration;

use eyelet_hold::{HoldDecision, Keep, QuestionFilter, Which, Who};
use eyelet_telemetry::held::{HeldBy, HeldVerdict};

use super::*;
use crate::park::tests::{parked, parked_with};
use crate::ready::{CLIENT, READ};
use crate::testing::{plain_program, worker};
use crate::worker::{Handle, Program, Task};
use eyelet_memory::budget::{Account, Counted};
use eyelet_memory::packed::PackedBytes;
use eyelet_record::{Role as End13, Session, Suite};
use eyelet_relay::terminate::Terminated;
use eyelet_relay::{Flow, KeptExchanges, Relay};
use eyelet_table::Slot;
use eyelet_table::held_places::held_bytes;
use eyelet_telemetry::info::{ConnectionInfo, Decided, End};
use eyelet_telemetry::listing::streams::{StreamCounts, StreamKind};

const WAIT: Duration = Duration::from_secs(60);
const ALLOW: HoldDecision = HoldDecision { verdict: HeldVerdict::Allow, by: HeldBy::Page };

/// Notes which connections are woken and logged.
#[derive(Default)]
struct Noting {
    woken: RefCell<Vec<(u64, Option<HoldDecision>, bool)>>,
    logged: RefCell<Vec<(u64, String)>>,
}

impl Program for Rc<Noting> {
    plain_program!();

    fn accepted(self: Rc<Self>, _: Handle, _: ConnectionInfo) -> Task {
        Box::pin(std::future::ready(()))
    }

    fn woken(self: Rc<Self>, _: Handle, info: ConnectionInfo, relay: Relay, _: Counted) -> Task {
        let Relay::Held(held) = relay else { panic!("it is held") };
        self.woken.borrow_mut().push((number(info.id), held.decision(), held.is_late()));
        Box::pin(std::future::ready(()))
    }

    fn task_bytes(&self, _: &Decided) -> usize {
        0
    }

    /// A state is the numbers of held streams and of responses.
    fn resting_streams(&self, resting: KeptExchanges<'_>) -> StreamCounts {
        let KeptExchanges::Streams(state) = resting else { panic!("it has streams") };
        let (mut counts, numbers) = (StreamCounts::default(), state.whole());
        counts.add(StreamKind::Held, numbers[0].into());
        counts.add(StreamKind::Response, numbers[1].into());
        counts
    }

    fn is_logging(&self) -> bool {
        true
    }

    fn log(&self, info: &ConnectionInfo, end: &End) {
        self.logged.borrow_mut().push((number(info.id), end.reason.to_string()));
    }
}

/// Ids begin with the worker's number.
fn number(id: u64) -> u64 {
    id & 0xffff
}

struct Scene {
    worker: Rc<Worker>,
    /// The worker does not own it.
    _program: Rc<dyn std::any::Any>,
    noted: Rc<Noting>,
    holds: Arc<Holds>,
}

impl Scene {
    fn new() -> Self {
        let (worker, noted) = (worker(), Rc::<Noting>::default());
        let program = Rc::new(noted.clone());
        worker.serve(&program);
        Self { worker, _program: program, noted, holds: Arc::default() }
    }

    fn place(&self, name: &str) -> HoldPlace {
        let key = HoldKey { rule: "ask".into(), name: name.into(), port: 443, request: None };
        let who = Who { client: [127, 0, 0, 1].into(), program: None, file: None };
        self.holds.ask(key, who, 500, 0).unwrap()
    }

    /// A connection of HTTP/2 with so many held streams, and so many responses that rest.
    fn with_streams(&self, held: u8, responses: u8) -> (Key, OwnedFd) {
        let session = Session::tls13(End13::Server, Suite::Aes128Gcm, &[1; 32], &[2; 32], 0, 0);
        let mut flow = Flow::default();
        flow.keep_state(PackedBytes::own(&[held, responses]));
        let holds = (0..held).map(|_| Some(self.place("a"))).collect();
        let relay = Relay::Terminate(Terminated { session: session.unwrap(), flow });
        parked_with(&self.worker, relay, holds)
    }

    fn held(&self, name: &str) -> (Key, OwnedFd) {
        let question = HeldState::Waits(self.place(name));
        let held = HeldConnection::new(vec![22; 500].into(), None, WAIT, question);
        parked(&self.worker, Relay::Held(held))
    }

    /// Moves the clock to this tick.
    fn at(&self, now: u32) {
        loop {
            let due = self.worker.table.borrow_mut().next_due(now);
            let Some(key) = due else { break };
            self.worker.late(key);
        }
    }

    fn with_tasks(&self, test: impl FnOnce()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime, async {
            test();
            tokio::task::yield_now().await;
        });
    }
}

#[test]
fn a_verdict_wakes_who_waits_for_it_and_nobody_else() {
    let scene = Scene::new();
    let clients: Vec<_> = ["a", "b", "a"].map(|name| scene.held(name)).into_iter().collect();
    let held = scene.worker.counters.parked_bytes.value() as usize;
    assert_eq!(held, 3 * (size_of::<Slot>() + 500), "each counts its hello");
    scene.with_tasks(|| {
        wake_decided(&scene.worker);
        assert!(scene.noted.woken.borrow().is_empty());
        scene
            .holds
            .decide(Which::Like(QuestionFilter::named("a", None)), ALLOW, Keep::Once, 0)
            .unwrap();
        wake_decided(&scene.worker);
        let woken = scene.noted.woken.borrow();
        let ids: Vec<u64> = woken.iter().map(|(id, ..)| *id).collect();
        assert_eq!(ids, [1, 3]);
        assert!(woken.iter().all(|(_, verdict, late)| *verdict == Some(ALLOW) && !late));
    });
    assert_eq!(scene.holds.held(), (1, 500));
    drop(clients);
}

#[test]
fn time_and_a_reload_wake_it_without_a_verdict() {
    let scene = Scene::new();
    let _clients = [scene.held("a"), scene.held("b")];
    scene.with_tasks(|| {
        decide_anew(&scene.worker, |key| *key.name == *"b");
        assert_eq!(*scene.noted.woken.borrow(), [(2, None, false)]);
        scene.at(590);
        assert_eq!(scene.noted.woken.borrow().len(), 1, "a second before its time");
        scene.at(605);
        assert_eq!(scene.noted.woken.borrow()[1..], [(1, None, true)]);
    });
    assert_eq!(scene.holds.held(), (0, 0));
}

#[test]
fn a_client_that_leaves_ends_it_and_what_it_sends_meanwhile_does_not() {
    let scene = Scene::new();
    let (key, client) = scene.held("a");
    let mut client = std::os::unix::net::UnixStream::from(client);
    std::io::Write::write_all(&mut client, b"early data").unwrap();
    let mut events = eyelet_sys::epoll::Events::with_capacity(8);
    let mut look = || {
        scene.worker.table.borrow().epoll.poll(&mut events).unwrap();
        for event in events.iter() {
            scene.worker.table.borrow_mut().note(key, CLIENT, event.ready);
            wake(&scene.worker, key);
        }
    };
    look();
    assert!(scene.noted.logged.borrow().is_empty());
    client.shutdown(std::net::Shutdown::Write).unwrap();
    look();
    let left = (1, String::from("client closed during the wait for a verdict"));
    assert_eq!(*scene.noted.logged.borrow(), [left]);
    assert_eq!(scene.holds.held(), (0, 0));
}

#[test]
fn the_oldest_one_ends_when_memory_is_short() {
    let scene = Scene::new();
    let _clients: Vec<_> = (0..3).map(|_| scene.held("a")).collect();
    assert!(shed_oldest(&scene.worker, None));
    let logged = scene.noted.logged.borrow()[0].clone();
    assert_eq!(logged, (1, "shed: memory_max, during the wait for a verdict".into()));
    let spared = scene.worker.table.borrow().keys()[0];
    assert!(shed_oldest(&scene.worker, Some(spared)));
    assert!(!shed_oldest(&scene.worker, Some(spared)));
    assert_eq!(scene.holds.held().0, 1);
}

/// A connection of which all streams wait goes by its age, as one that waits itself, also with a
/// part of a record. One with a response that rests stays. The places of the streams are counted.
#[test]
fn a_connection_whose_streams_all_wait_ends_when_memory_is_short() {
    let scene = Scene::new();
    let used = || scene.worker.process.budget.used_by(Account::Connections);
    let before = used();
    let bytes = || scene.worker.counters.parked_bytes.value() as usize;
    let mixed = scene.with_streams(1, 1);
    let of_one = bytes();
    let waits = scene.with_streams(2, 0);
    assert_eq!(bytes() - of_one, of_one + held_bytes(2) - held_bytes(1));
    let later = scene.held("b");
    let places = held_bytes(1) + held_bytes(2);
    assert!(used() >= before + places + 3 * size_of::<Slot>());
    let mut client = std::os::unix::net::UnixStream::from(waits.1);
    std::io::Write::write_all(&mut client, &[23, 3, 3]).unwrap();
    scene.worker.table.borrow_mut().note(waits.0, CLIENT, READ);
    wake(&scene.worker, waits.0);
    for left in [2, 1] {
        assert!(shed_oldest(&scene.worker, None));
        assert_eq!(scene.holds.held().0, left);
    }
    assert!(!shed_oldest(&scene.worker, None), "a response goes on beside the last one");
    assert_eq!(scene.worker.table.borrow().keys(), [mixed.0]);
    let logged = scene.noted.logged.borrow();
    assert!(logged.iter().map(|(id, _)| *id).eq([2, 3]), "{logged:?}");
    drop((client, later));
}
