//! One run: clients connect and ask, upstreams answer, the clock moves, memory gets short, the
//! configuration changes, and at the end nothing is left over.

use std::net::SocketAddr;
use std::sync::Arc;

use eyelet_downstream::clock::testing::set_ms;
use eyelet_engine::departure::BATCH_DESCRIPTORS_MAX;
use eyelet_engine::moving::batch::CONNECTION_DESCRIPTORS;
use eyelet_engine::table::timer_wheel::TICK_MS;
use eyelet_engine::testing::stepper::check_budget;
use eyelet_engine::testing::tls;
use eyelet_memory::budget::{Account, Budget};
use eyelet_sys::socket;
use fastrand::Rng;

use super::backend::Backend;
use super::client::Client;
use super::edge::{Accepted, HOSTS, Setup};
use super::events::Events;
use super::http1_client::Http1Client;
use super::http2_client::Http2Client;
use super::peer::Peer;
use super::plan::Weather;
use super::process::Process;
use super::request::{Heard, Request};
use super::scenario::{Scenario, Step, UpgradeAct, UpstreamAct};
use super::verdict::{self, Line};

/// The budget gets 5/8 of this.
const MEMORY_BYTES: usize = 64 << 20;
const REQUESTS_MAX: usize = 12;
/// Most processes at a time.
const PROCESSES_MAX: usize = 3;
/// So often a process dies before it has taken what was sent to it.
const FAILS_ONE_IN: u8 = 16;
/// Most polls of each task between two iterations of the event loop.
const POLLS_MAX: usize = 8;
/// Rounds in which all peers write and read; after them all must be answered that can be.
const ROUNDS_MAX: usize = 400;
/// Ticks that pass every deadline.
const LONG_TICKS: u64 = 4_000;

/// A report of what happened in a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub events: Events,
    pub heard: Vec<Heard>,
    lines: Vec<Line>,
}

/// Runs a scenario in a thread of its own: what a worker keeps for its next connections is of a
/// thread. An error is the panic.
pub fn run_alone(scenario: &Scenario, setup: &Setup) -> std::thread::Result<Report> {
    std::thread::scope(|scope| scope.spawn(|| run(scenario, setup)).join())
}

/// Runs a scenario. Panics if something is lost.
fn run(scenario: &Scenario, setup: &Setup) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    let mut simulation = Simulation::new(scenario, setup);
    let report = tasks.block_on(&runtime, simulation.run(&scenario.steps));
    drop(tasks);
    check_budget(&simulation.budget);
    report
}

struct Simulation<'a> {
    setup: &'a Setup,
    rng: Rng,
    weather: Weather,
    /// Of all processes.
    budget: Arc<Budget>,
    /// The last one accepts, and gets what the others have. At the end there is none.
    processes: Vec<Process>,
    /// The access lines of processes that have ended.
    lines: String,
    backend: Backend,
    clients: Vec<Client>,
    requests: Vec<Request>,
    /// An earlier process ends HTTP/2 connections, and HTTP/1.1 after a response.
    has_retired: bool,
    now_ms: u64,
    /// Bytes that the simulation holds, so that memory is short.
    held: usize,
    report: Report,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &Scenario, setup: &'a Setup) -> Self {
        set_ms(0);
        let budget = Arc::new(Budget::new(MEMORY_BYTES, 0));
        Self {
            setup,
            rng: Rng::with_seed(scenario.seed),
            weather: scenario.weather,
            processes: vec![Process::new(setup, &budget, false)],
            budget,
            lines: String::new(),
            backend: Backend::new(setup.sockets().each_ref().map(|path| &**path)),
            clients: Vec::new(),
            requests: Vec::new(),
            has_retired: false,
            now_ms: 0,
            held: 0,
            report: Report::default(),
        }
    }

    async fn run(&mut self, steps: &[Step]) -> Report {
        for step in steps {
            self.take(*step).await;
        }
        self.finish().await;
        self.end().await;
        self.conclude();
        std::mem::take(&mut self.report)
    }

    /// Does nothing that the weather does not allow, or that nobody can do now.
    async fn take(&mut self, step: Step) {
        match step {
            Step::Open { http2, host } if self.clients.len() < self.weather.connections => {
                self.open(http2, usize::from(host) % HOSTS.len());
            }
            Step::Open { .. } => {}
            Step::Tick(ticks) => self.tick(ticks),
            Step::Press { eighths, but } if self.weather.short_memory => {
                self.report.events.note("short memory");
                self.hold((MEMORY_BYTES / 8 * 5 / 8 * eighths).saturating_sub(but));
            }
            Step::Reload { removes } if self.weather.reloads => self.reload(removes),
            Step::Press { .. } | Step::Reload { .. } => {}
            Step::Iterate { polls } => self.iterate(polls).await,
            Step::Upgrade(act) if self.weather.upgrades => self.upgrade(act).await,
            Step::Upgrade(_) => {}
            Step::Upstream { act: UpstreamAct::Close, .. } if !self.weather.idle_closes => {}
            Step::Upstream { connection, act, bytes } => {
                let Self { backend, requests, report, rng, .. } = self;
                backend.act((connection, act, bytes), requests, &mut report.events, rng);
            }
            Step::Begin { client, .. }
            | Step::Say { client, .. }
            | Step::Write { client, .. }
            | Step::Read { client, .. }
            | Step::Abort { client, .. }
            | Step::Ping { client } => {
                let clients = self.clients.len();
                if clients > 0 {
                    self.act(usize::from(client) % clients, step);
                }
            }
        }
    }

    /// A client does one thing.
    fn act(&mut self, index: usize, step: Step) {
        let Self { rng, weather, requests, report, clients, .. } = self;
        let client = &mut clients[index];
        match step {
            Step::Begin { plan, .. }
                if client.can_begin(&plan) && requests.len() < REQUESTS_MAX =>
            {
                let mut request = Request::new(requests.len(), index, plan);
                client.begin(&mut request, rng);
                requests.push(request);
            }
            Step::Say { bytes, insists, .. } => client.say(bytes, insists, requests, rng),
            Step::Write { bytes, .. } => client.write(bytes),
            Step::Read { bytes, .. } => client.read(bytes, weather.aborts, requests, rng),
            Step::Abort { how, .. } if weather.aborts => {
                client.abort(how, requests, &mut report.events, rng);
            }
            Step::Ping { .. } => client.ping(&mut report.events, rng),
            _ => {}
        }
    }

    /// One iteration of each event loop, and the tasks that it has woken. What is parked then
    /// moves.
    async fn iterate(&mut self, polls: usize) {
        for process in &mut self.processes {
            process.stepper.iterate();
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
        }
        let Some((newest, earlier)) = self.processes.split_last() else { return };
        for process in earlier {
            let (fails, is_tight) = (self.rng.u8(..FAILS_ONE_IN) == 0, self.rng.bool());
            let descriptors = if is_tight { CONNECTION_DESCRIPTORS } else { BATCH_DESCRIPTORS_MAX };
            process.move_to(newest, descriptors, fails, &mut self.report.events);
        }
    }

    async fn upgrade(&mut self, act: UpgradeAct) {
        let events = &mut self.report.events;
        let Some((newest, earlier)) = self.processes.split_last_mut() else { return };
        match act {
            UpgradeAct::Begin if earlier.len() + 1 < PROCESSES_MAX => {
                events.note("an upgrade");
                let new = Process::new(self.setup, &self.budget, newest.edge.has_removed.get());
                newest.stepper.leave();
                self.processes.push(new);
            }
            // The oldest one has to be over.
            UpgradeAct::Begin if earlier[0].is_empty() => {
                self.lines += &self.processes.remove(0).end(events).await;
            }
            UpgradeAct::Begin => {}
            UpgradeAct::Settle => earlier.iter_mut().for_each(Process::settle),
            UpgradeAct::Retire => {
                self.has_retired |= !earlier.is_empty();
                earlier.iter().for_each(|process| process.retire(events));
            }
        }
    }

    async fn step(&mut self) {
        let polls = self.rng.usize(1..=POLLS_MAX);
        self.iterate(polls).await;
    }

    fn tick(&mut self, ticks: u64) {
        self.now_ms += ticks * TICK_MS;
        set_ms(self.now_ms);
        for process in &mut self.processes {
            process.stepper.tick(ticks);
        }
    }

    /// A client connects.
    fn open(&mut self, http2: bool, rule: usize) {
        let Some(Process { edge, stepper, .. }) = self.processes.last_mut() else { return };
        if edge.has_removed.get() {
            // Without its rule the connection would not come so far.
            edge.reload(self.setup, false);
        }
        let (session, client) = tls::pair(&mut self.rng);
        let (edge_side, peer_side) = socket::pair().expect("descriptors for a socket pair");
        let port = self.clients.len() as u16;
        let accepted = Accepted { session: Box::new(session), http2, rule };
        edge.accepted.borrow_mut().insert(port, accepted);
        let peer = Peer::new(peer_side, Some(client));
        self.clients.push(match http2 {
            false => Client::Http1(Box::new(Http1Client::new(peer, HOSTS[rule]))),
            true => Client::Http2(Box::new(Http2Client::new(
                peer,
                HOSTS[rule],
                self.weather.bulk,
                &mut self.rng,
            ))),
        });
        stepper.open(edge_side, SocketAddr::from(([192, 0, 2, 1], port)));
    }

    fn hold(&mut self, bytes: usize) {
        self.budget.give(Account::Http, std::mem::replace(&mut self.held, bytes));
        self.budget.take(Account::Http, bytes);
    }

    fn reload(&mut self, removes: bool) {
        let removes = removes && self.weather.removes;
        self.report.events.note(if removes { "a reload without the rule" } else { "a reload" });
        if let Some(process) = self.processes.last() {
            process.edge.reload(self.setup, removes);
        }
    }

    /// Memory is free again, all peers send what they have left and read all. Then every request
    /// must be answered unless its upstream never does, and every other connection must end.
    async fn finish(&mut self) {
        self.hold(0);
        if self.weather.drains {
            self.report.events.note("a drain");
            self.processes.iter().for_each(|process| process.stepper.drain());
        }
        for _ in 0..ROUNDS_MAX {
            let Self { clients, requests, backend, report, rng, .. } = self;
            for client in clients.iter_mut() {
                client.finish(requests, rng);
            }
            backend.finish(requests, &mut report.events, rng);
            if clients.iter().all(|client| client.peer().is_over()) {
                break;
            }
            self.step().await;
            self.tick(1);
        }
        for (index, client) in self.clients.iter().enumerate() {
            let own: Vec<_> =
                self.requests.iter().filter(|request| request.connection == index).collect();
            let is_excused = own.iter().any(|request| request.stalls());
            let peer = client.peer();
            assert!(peer.is_over() || is_excused, "does not end: {peer:?}: {own:#?}");
        }
    }

    /// Ends what is left by deadlines, or cuts it. Clients close their sockets.
    async fn end(&mut self) {
        if self.rng.bool() {
            self.processes.iter().for_each(|process| process.stepper.drain());
            self.step().await;
            self.processes.iter().for_each(|process| process.stepper.cut());
        }
        for _ in 0..8 {
            let Self { clients, requests, backend, report, rng, .. } = self;
            for client in clients.iter_mut() {
                client.finish(requests, rng);
            }
            backend.finish(requests, &mut report.events, rng);
            self.step().await;
            self.tick(LONG_TICKS / 8);
        }
        for client in &mut self.clients {
            client.finish(&mut self.requests, &mut self.rng);
            client.close();
        }
        for _ in 0..8 {
            self.step().await;
            self.tick(LONG_TICKS / 8);
        }
        for process in std::mem::take(&mut self.processes) {
            self.lines += &process.end(&mut self.report.events).await;
        }
    }

    /// Each request is judged.
    fn conclude(&mut self) {
        let Self { clients, requests, weather, report, lines, has_retired, .. } = self;
        report.lines = lines.lines().map(Line::read).collect();
        // Two streams that end at once write theirs in any order: a part of what wakes their tasks
        // is tokio's own clock.
        report.lines.sort_by_key(|line| (line.connection, line.request));
        let is_fair = weather.is_fair() && !*has_retired;
        verdict::check_lines(clients.len(), requests, &report.lines);
        for request in &*requests {
            verdict::check(request, is_fair, requests, &report.lines);
            let is_http2 = clients[request.connection].is_http2();
            verdict::note(request, is_http2, weather, &mut report.events);
            report.heard.push(request.response.clone());
        }
        for line in &report.lines {
            report.events.note(&format!("line: {}: {}", line.outcome, line.reason));
        }
    }
}
