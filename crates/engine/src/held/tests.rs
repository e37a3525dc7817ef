//! Held connections in a worker: who wakes one, how it ends, and who goes first when memory is
//! short.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::time::Duration;

use eyelet_hold::{HoldDecision, Keep, QuestionFilter, Which, Who};
use eyelet_telemetry::held::{HeldBy, HeldVerdict};

use super::*;
use crate::park::tests::parked;
use crate::ready::CLIENT;
use crate::testing::{plain_program, worker};
use crate::worker::{Handle, Program, Task};
use eyelet_memory::budget::Counted;
use eyelet_relay::Relay;
use eyelet_table::Slot;
use eyelet_telemetry::info::{ConnectionInfo, Decided, End};

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

    fn held(&self, name: &str) -> (Key, OwnedFd) {
        let key = HoldKey { rule: "ask".into(), name: name.into(), port: 443, request: None };
        let who = Who { client: [127, 0, 0, 1].into(), program: None, file: None };
        let waiting = self.holds.ask(key, who, 500, 0).unwrap();
        let question = HeldState::Waits(waiting);
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
