//! One run: connections arrive, peers act, the clock moves, memory gets short, and at the end
//! nothing is left over.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use eyelet_memory::budget::Account;
use fastrand::Rng;

use super::handing_over::{self, HandedOver};
use super::peer::Peer;
use super::program::{Connection, LogEntry, Plan, REFUSAL, Simulated};
use super::verdict;
use super::verdict::Weather;
use crate::held;
use crate::ready::{CLIENT, UPSTREAM};
use crate::testing::stepper::{Stepper, check_budget, check_worker};
use crate::testing::stream::Stream;
use crate::testing::{SETTINGS, tls, worker_with};
use crate::worker::Settings;
use eyelet_relay::testing::client_hello;
use eyelet_table::timer_wheel::TICK_MS;

const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The budget gets 5/8 of this: enough for reads of full size until memory is short.
const MEMORY_BYTES: usize = 64 << 20;
/// Hosts that the clients are on.
const SOURCES: u8 = 4;
const CONNECTIONS_MAX: usize = 6;
const ACTIONS_MAX: usize = 120;
/// Most bytes that a peer sends at once when it sends bulk: enough for several pipes.
const BULK_BYTES_MAX: usize = 1 << 20;
/// Polls of each task between two iterations of the event loop.
const POLLS: usize = 6;
/// Rounds in which peers read; after them they must have read all that was written.
const SETTLE_ROUNDS: usize = 20;
/// Rounds in which all peers write and read; after them all connections must have ended.
const ROUNDS_MAX: usize = 300;

/// The events of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    ends: BTreeMap<String, usize>,
    key_updates: usize,
    pipes: usize,
    handed_over: HandedOver,
    log: Vec<LogEntry>,
}

/// The events of all runs.
#[derive(Default)]
pub struct Seen {
    ends: BTreeMap<String, usize>,
    bytes: usize,
    key_updates: usize,
    pipes: usize,
    handed_over: HandedOver,
}

impl Seen {
    pub fn add(&mut self, report: &Report) {
        for (end, count) in &report.ends {
            *self.ends.entry(end.clone()).or_default() += count;
        }
        let bytes = report.log.iter().map(|entry| entry.bytes_to_client + entry.bytes_to_upstream);
        self.bytes += bytes.sum::<usize>();
        self.key_updates += report.key_updates;
        self.pipes += report.pipes;
        self.handed_over.add(&report.handed_over);
    }

    /// Panics if no run reached one of the relay's ends of a connection.
    pub fn check_coverage(&self) {
        for end in verdict::ENDS {
            assert!(self.ends.keys().any(|seen| seen.starts_with(end)), "no run has {end:?}");
        }
        assert!(self.key_updates > 0 && self.pipes > 0);
        self.handed_over.check_coverage();
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, ", self.bytes)?;
        write!(f, "{} key updates, {} loans of pipes", self.key_updates, self.pipes)?;
        write!(f, ", {:?}", self.handed_over)?;
        self.ends.iter().try_for_each(|(end, count)| write!(f, "\n{count:>8} {end}"))
    }
}

/// Runs a seed. Panics if something is lost.
pub fn run(seed: u64) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    let mut simulation = Simulation::new(seed);
    let report = tasks.block_on(&runtime, simulation.run());
    assert_eq!(simulation.program.holds.held(), (0, 0), "a place among the held ones stays");
    let workers = simulation.workers.map(Stepper::into_worker);
    drop(tasks);
    for worker in workers {
        let budget = worker.process.budget.clone();
        check_worker(worker);
        check_budget(&budget);
    }
    report
}

struct Simulation {
    rng: Rng,
    weather: Weather,
    /// Those of two processes. The first one accepts, and they hand connections to each other.
    workers: [Stepper; 2],
    program: Rc<Simulated>,
    /// Bytes that the simulation holds in each process, so that memory is short.
    held: usize,
    report: Report,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let weather = Weather {
            resets: rng.u8(..3) == 0,
            faults: rng.u8(..3) == 0,
            short_memory: rng.u8(..3) == 0,
            long_pauses: rng.u8(..4) == 0,
            drains: rng.u8(..6) == 0,
            stalls: rng.u8(..5) == 0,
            bulk: rng.u8(..4) == 0,
            hands_over: rng.bool(),
        };
        let limits = Settings { idle_timeout: IDLE_TIMEOUT, shed_idle: rng.bool(), ..SETTINGS };
        let program = Rc::new(Simulated {
            holds: Arc::default(),
            rng: RefCell::new(rng.fork()),
            connections: RefCell::default(),
        });
        let workers = [0; 2].map(|_| {
            let worker = worker_with(limits, MEMORY_BYTES);
            worker.serve(&program);
            Stepper::new(worker)
        });
        Self { rng, weather, workers, program, held: 0, report: Report::default() }
    }

    async fn run(&mut self) -> Report {
        let connections = self.rng.usize(1..=CONNECTIONS_MAX);
        for _ in 0..self.rng.usize(1..=connections) {
            self.open();
        }
        for _ in 0..self.rng.usize(ACTIONS_MAX / 4..ACTIONS_MAX) {
            match self.rng.u8(..100) {
                0..=3 if self.program.connections.borrow().len() < connections => self.open(),
                4..=7 => self.pass_time(),
                8..=11 => self.press(),
                12..=35 => self.step().await,
                36..=41 if self.weather.hands_over => self.hand_over(),
                42..=44 => self.decide_one(),
                _ => self.act(),
            }
        }
        self.settle().await;
        self.finish().await;
        self.conclude();
        std::mem::take(&mut self.report)
    }

    /// One iteration of the event loop, and all tasks that it has woken.
    async fn step(&mut self) {
        for stepper in &mut self.workers {
            stepper.iterate();
            for _ in 0..POLLS {
                tokio::task::yield_now().await;
            }
            self.report.pipes += stepper.worker.buffers.borrow().pipes_lent();
        }
    }

    /// Somebody decides about a connection, if it is held.
    fn decide_one(&mut self) {
        let count = self.program.connections.borrow().len();
        let index = self.rng.usize(..count);
        self.program.decide(index);
        self.wake_decided();
    }

    fn decide_all(&mut self) {
        let count = self.program.connections.borrow().len();
        (0..count).for_each(|index| self.program.decide(index));
        self.wake_decided();
    }

    fn wake_decided(&self) {
        self.workers.iter().for_each(|stepper| held::wake_decided(&stepper.worker));
    }

    /// Parked connections leave one process for the other.
    fn hand_over(&mut self) {
        let from = self.rng.usize(..2);
        let [old, new] = [from, 1 - from].map(|index| &self.workers[index].worker);
        let keys = old.table.borrow().keys();
        for key in keys {
            if self.rng.bool() {
                handing_over::hand_over(old, new, key, &mut self.rng, &mut self.report.handed_over);
            }
        }
    }

    fn tick(&mut self, ticks: u64) {
        for stepper in &mut self.workers {
            stepper.tick(ticks);
        }
    }

    fn pass_time(&mut self) {
        let ticks = if self.weather.long_pauses && self.rng.u8(..8) == 0 {
            self.rng.u64(..2_000)
        } else {
            self.rng.u64(1..20)
        };
        self.tick(ticks);
    }

    /// Makes memory short, a little or much, or gives it back.
    fn press(&mut self) {
        if !self.weather.short_memory {
            return;
        }
        let eighth = MEMORY_BYTES / 8 * 5 / 8;
        let held = match self.rng.u8(..5) {
            0 => 0,
            1 => eighth * 6,
            2 => eighth * 7 - self.rng.usize(..2 << 20),
            3 => eighth * 7,
            _ => eighth * 8,
        };
        self.hold(held);
    }

    fn hold(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.held, bytes);
        for Stepper { worker, .. } in &self.workers {
            worker.process.budget.give(Account::Http, before);
            worker.process.budget.take(Account::Http, bytes);
        }
    }

    /// A client connects.
    fn open(&mut self) {
        let (connection, client) = self.plan();
        let mut connections = self.program.connections.borrow_mut();
        let source = [192, 0, 2, 1 + self.rng.u8(..SOURCES)];
        let peer = SocketAddr::from((source, connections.len() as u16));
        connections.push(connection);
        drop(connections);
        let [first, _] = &mut self.workers;
        first.open(client, peer);
    }

    fn plan(&mut self) -> (Connection, std::os::fd::OwnedFd) {
        let rng = &mut self.rng;
        let mut stream = || Stream { flights: Vec::new(), offset: rng.usize(..60_000) };
        let [mut up, mut down] = [stream(), stream()];
        let mut client_tls = None;
        let mut heard_up = up.clone();
        let mut preface_bytes = 0;
        let plan = match rng.u8(..20) {
            0 => Plan::Refuse,
            1..=2 => Plan::Hold { allow: rng.u8(..4) > 0 },
            3..=6 => Plan::Splice { inspect: None },
            7..=9 => {
                up.flights = flight(rng, true);
                down.flights = flight(rng, false);
                heard_up = up.clone();
                Plan::Splice { inspect: Some(rng.bool()) }
            }
            _ => {
                let (session, client) = tls::pair(rng);
                client_tls = Some(client);
                let preface: Vec<u8> = match rng.bool() {
                    true => (0..rng.usize(1..100)).map(|_| rng.u8(..)).collect(),
                    false => Vec::new(),
                };
                heard_up = up.behind(preface.clone());
                preface_bytes = preface.len();
                Plan::Terminate { session: Some(Box::new(session)), late: rng.bool(), preface }
            }
        };
        let is_held = matches!(plan, Plan::Hold { .. });
        let may_peek = !matches!(plan, Plan::Splice { inspect: Some(_) });
        let peeks = is_held || may_peek && rng.u8(..4) > 0;
        let (mut client, socket) = Peer::new("client", up, down.clone());
        client.tls = client_tls;
        let mut connection = Connection {
            plan,
            preface_bytes,
            peeks,
            streams: (down, heard_up),
            client,
            upstream: None,
            is_reachable: !self.weather.faults || rng.u8(..8) > 0,
            log: Vec::new(),
            is_stalled: self.weather.stalls && rng.bool(),
            waits: *rng.choice(&[None, Some(CLIENT), Some(UPSTREAM)]).unwrap(),
        };
        if connection.expects_refusal() {
            connection.client.expected.flights = REFUSAL.to_vec();
        }
        (connection, socket)
    }

    /// A peer does one thing.
    fn act(&mut self) {
        let Self { rng, weather, program, report, .. } = self;
        let connections = &mut *program.connections.borrow_mut();
        let connection = rng.choice(connections).unwrap();
        let is_client = rng.bool();
        let peer = match (&mut connection.upstream, is_client) {
            (Some(upstream), false) => upstream,
            _ => &mut connection.client,
        };
        match rng.u8(..40) {
            0..=1 if weather.bulk && peer.said < BULK_BYTES_MAX => {
                peer.say(rng.usize(100_000..300_000), rng);
                peer.write(usize::MAX);
            }
            0..=9 => peer.say(amount(rng, weather.bulk), rng),
            10..=21 => peer.write(amount(rng, weather.bulk)),
            22..=34 => {
                let room = rng.bool().then(|| 1 + amount(rng, false));
                peer.read(amount(rng, weather.bulk), room);
            }
            35 => peer.finish(false),
            36 if rng.bool() => peer.close_notify(),
            36 if rng.bool() => peer.finish(true),
            36 => {
                peer.update_keys();
                report.key_updates += 1;
            }
            37 if weather.resets => peer.leave(rng.bool()),
            38 if weather.faults => match rng.u8(..3) {
                0 => peer.truncate(),
                1 => peer.garble(rng),
                _ => peer.alert(*rng.choice(&[20, 42, 90, 255]).unwrap()),
            },
            _ => {}
        }
    }

    /// Memory is free again, and peers that read get all that was written although nothing more is
    /// written.
    async fn settle(&mut self) {
        self.hold(0);
        for _ in 0..SETTLE_ROUNDS {
            self.decide_all();
            for connection in &mut *self.program.connections.borrow_mut() {
                if !connection.is_stalled {
                    connection.peers().for_each(|peer| peer.read(usize::MAX, None));
                }
            }
            self.step().await;
            self.tick(1);
        }
        for (index, connection) in self.program.connections.borrow_mut().iter_mut().enumerate() {
            connection.peers().for_each(|peer| peer.read(usize::MAX, None));
            verdict::check_settled(index, connection);
        }
    }

    /// All peers send what they have left, read all, and end their streams, except for stalled
    /// ones. Then every connection must end without a deadline.
    async fn finish(&mut self) {
        if self.weather.drains {
            self.workers.iter().for_each(Stepper::drain);
        }
        for round in 0.. {
            self.decide_all();
            let mut left = 0;
            for connection in &mut *self.program.connections.borrow_mut() {
                if connection.is_stalled || !connection.log.is_empty() {
                    continue;
                }
                left += 1;
                connection.finish();
                for peer in connection.peers() {
                    peer.write(usize::MAX);
                    peer.read(usize::MAX, None);
                }
            }
            if left == 0 {
                break;
            }
            assert!(round < ROUNDS_MAX, "{left} connections do not end: {}", self.unended());
            self.step().await;
            self.tick(1);
        }
        self.give_up().await;
    }

    /// The remaining connections end by deadlines, or are cut at the end of a drain.
    async fn give_up(&mut self) {
        if self.weather.drains && self.rng.bool() {
            self.workers.iter().for_each(Stepper::cut);
        }
        // A deadline may be set a second time, when a connection has settled.
        for _ in 0..8 {
            self.decide_all();
            self.step().await;
            self.tick((IDLE_TIMEOUT.as_millis() as u64 / TICK_MS) / 2);
        }
        self.step().await;
    }

    fn unended(&self) -> String {
        let connections = self.program.connections.borrow();
        let unended = connections.iter().enumerate().filter(|(_, one)| one.log.is_empty());
        unended.map(|(index, one)| format!("{index}: {one:?}\n")).collect()
    }

    /// The peers read what is left, and each connection is judged.
    fn conclude(&mut self) {
        for (index, connection) in self.program.connections.borrow_mut().iter_mut().enumerate() {
            for peer in connection.peers() {
                peer.read(usize::MAX, None);
            }
            verdict::check(index, connection, &self.weather);
            let entry = connection.log[0].clone();
            *self.report.ends.entry(entry.reason.to_string()).or_default() += 1;
            self.report.log.push(entry);
        }
    }
}

/// Returns the bytes to send, write or read at once: often one byte, at times more than a buffer.
fn amount(rng: &mut Rng, bulk: bool) -> usize {
    match rng.u8(..10) {
        0..=2 => 1,
        3..=6 => rng.usize(1..200),
        7..=8 => rng.usize(1..20_000),
        _ if bulk => rng.usize(1..200_000),
        _ => rng.usize(1..4_000),
    }
}

/// Returns the first bytes of a peer to an edge that inspects it.
fn flight(rng: &mut Rng, client: bool) -> Vec<u8> {
    let alert = [21, 3, 3, 0, 2, 1, 112];
    match (rng.u8(..5), client) {
        (0, _) => Vec::new(),
        (1, _) => alert.to_vec(),
        (2, true) => [&[20, 3, 3, 0, 1, 1][..], &client_hello(None)].concat(),
        (3, true) => client_hello(Some("other.example")),
        // It has the name of the first: none.
        (_, true) => client_hello(None),
        (2, false) => server_hello(1, false),
        (3, false) => [server_hello(0, true), server_hello(0, false)].concat(),
        (_, false) => [&alert[..], &server_hello(0, false)].concat(),
    }
}

fn server_hello(compression: u8, retry: bool) -> Vec<u8> {
    let random =
        if retry { eyelet_wire::server_hello::HELLO_RETRY_REQUEST_RANDOM } else { [9; 32] };
    let versions: &[u8] = if retry { &[0, 6, 0, 43, 0, 2, 3, 4] } else { &[] };
    let body = [&[3, 3][..], &random, &[0, 0xc0, 0x2f, compression], versions].concat();
    let message = [&[2, 0, 0, body.len() as u8][..], &body].concat();
    [&[22, 3, 3, 0, message.len() as u8][..], &message].concat()
}
