//! Starts, reloads and drains an edge: binds its sockets, and runs its workers and its access log.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use tokio::runtime::Runtime;
use tokio::sync::mpsc::{self, channel};
use tokio::sync::watch;
use tokio::task::LocalSet;

use crate::admin::AdminKeeper;
use crate::held::webhook::WebhookKeeper;
use crate::life::Life;
use crate::lost_threads::{LostThreadLog, lost};
use crate::predecessors::Predecessors;
use crate::ticket_keeper::TicketKeeper;
use crate::warm_up;
use eyelet_acme::{Acme, AcmeKeeper};
use eyelet_admin::{AdminError, Start};
use eyelet_config::{Access, Config, UnchangedPairs, WatchedFile};
use eyelet_edge::path::program::Service;
use eyelet_edge::snapshot::edge::Edge;
use eyelet_edge::snapshot::listen::{
    Bound, ListenError, bind_all, follow_limits, follow_modes, listen_all, own_files, rebound,
};
use eyelet_edge::snapshot::published::{Published, sockets};
use eyelet_edge::snapshot::{self, PreparedSnapshot, Snapshot, SnapshotError};
use eyelet_engine::departure::Departure;
use eyelet_engine::flows;
use eyelet_engine::held::follow;
use eyelet_engine::iteration::{DropFutures, run};
use eyelet_engine::listing::{self, Connections, Queries};
use eyelet_engine::moving::batch::{self, Arrival, Arrivals};
use eyelet_engine::worker::inbox::Inbox;
use eyelet_engine::worker::{ListenerSocket, Order, Orders, WorkerOrders};
use eyelet_hold::Holds;
use eyelet_memory::budget::Budget;
use eyelet_resolve::dns::txt;
use eyelet_sources::{ChangedSources, Served, SourceWatcher};
use eyelet_spiffe::SpiffeKeeper;
use eyelet_telemetry::counters::{self, Counters};
use eyelet_telemetry::log::{Log, Writer};
use eyelet_tls::tickets::TicketKeys;

/// The reason why an edge could not start, or could not take a new configuration.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listener's address cannot be bound.
    #[error("{0}")]
    Listen(#[from] ListenError),
    /// The access log cannot be opened.
    #[error("cannot open the access log {path:?}: {error}; `access` in [log] names another file")]
    Log {
        /// The path that `log.access` names.
        path: String,
        /// The reason.
        error: io::Error,
    },
    /// A listener would have to bind its own address again.
    #[error(
        "the listener on {0}: `reuse_port`, `defer_accept` and kind \"tproxy\" need a restart to \
         change"
    )]
    Rebound(SocketAddr),
    /// A file that the configuration names cannot be used.
    #[error("{0}")]
    Snapshot(#[from] SnapshotError),
    /// The thread that makes ticket keys could not be started, or there is no randomness.
    #[error("cannot make ticket keys: {0}")]
    Tickets(io::Error),
    /// The thread that orders certificates could not be started.
    #[error("cannot order certificates: {0}")]
    Acme(io::Error),
    /// The admin server cannot be started.
    #[error("{0}")]
    Admin(#[from] AdminError),
    /// A thread or its epoll could not be created.
    #[error("cannot start a worker: {0}")]
    Worker(io::Error),
}

/// A running edge.
pub struct Running {
    pub(crate) published: Arc<Published>,
    orders: watch::Sender<Orders>,
    workers: Vec<JoinHandle<()>>,
    writer: Writer,
    /// The log of the earlier configuration, while a worker writes to it.
    earlier_writer: Option<Writer>,
    /// Earlier configurations. They are freed here, because that takes time and workers have none.
    earlier: Vec<Arc<Snapshot>>,
    /// The generation that all workers must serve before what the earlier one left is freed.
    untidy: Option<u64>,
    budget: Arc<Budget>,
    /// The place where connections of an earlier process arrive: a queue for each worker, and its
    /// counters.
    arrivals: Vec<(mpsc::Sender<Arrival>, Arc<Counters>)>,
    ticket_keeper: TicketKeeper,
    acme_keeper: AcmeKeeper,
    spiffe_keeper: SpiffeKeeper,
    /// Answers questions about this process.
    pub admin: AdminKeeper,
    /// The processes before this one that linger.
    pub predecessors: Arc<Predecessors>,
    /// `None`: the system lets no thread watch files.
    sources: Option<SourceWatcher>,
    changed: watch::Sender<ChangedSources>,
    lost_threads: LostThreadLog,
    webhook: WebhookKeeper,
}

/// Reads the files of a new configuration. It needs nothing of [`Running`], so it may run on
/// another thread.
pub struct Preparation {
    earlier: Arc<Snapshot>,
    known: Arc<[Bound]>,
    ticket_keys: Arc<TicketKeys>,
}

/// A configuration whose files were read, for [`Running::reload`].
pub struct PreparedReload {
    prepared: PreparedSnapshot,
    unchanged: Vec<&'static str>,
}

impl Preparation {
    /// The configuration that is served.
    pub fn served(&self) -> &Config {
        &self.earlier.config
    }

    /// Its certificates whose files have not changed since they were read.
    pub fn unchanged(&self) -> UnchangedPairs {
        self.earlier.tls.unchanged(&self.earlier.config)
    }

    /// Prepares `config`.
    ///
    /// # Errors
    /// [`StartError`], if it cannot follow the earlier configuration, or a file is at fault.
    pub fn run(self, mut config: Config) -> Result<PreparedReload, StartError> {
        let unchanged = config.keep_until_upgrade(&self.earlier.config);
        if let Some(address) = rebound(&config, &self.known) {
            return Err(StartError::Rebound(address));
        }
        let prepared = PreparedSnapshot::new(config, &self.ticket_keys, Some(&self.earlier))?;
        Ok(PreparedReload { prepared, unchanged })
    }
}

/// The changes by a reload.
#[derive(Debug)]
pub struct Reloaded {
    /// The number of the new configuration.
    pub generation: u64,
    /// Keys that a reload cannot change and that keep their values.
    pub unchanged: Vec<&'static str>,
}

/// Binds, then starts the workers.
///
/// # Errors
/// [`StartError`], a line that says what to do. Nothing runs then.
pub fn start(config: Config) -> Result<Running, StartError> {
    start_after(config, &[], Order::Serve)
}

/// Starts with listeners that are bound already. With [`Order::Hold`] nothing is accepted before
/// [`Running::serve`].
///
/// # Errors
/// [`StartError`]. Nothing runs then.
pub fn start_after(config: Config, earlier: &[Bound], order: Order) -> Result<Running, StartError> {
    begin(config, earlier, order, Life::Months)
}

/// Starts an edge for a command, with listeners that are bound already.
///
/// # Errors
/// [`StartError`]. Nothing runs then.
pub fn start_for_command(config: Config, sockets: &[Bound]) -> Result<Running, StartError> {
    begin(config, sockets, Order::Serve, Life::Command)
}

fn begin(
    config: Config,
    earlier: &[Bound],
    order: Order,
    life: Life,
) -> Result<Running, StartError> {
    if let Some(address) = rebound(&config, earlier) {
        return Err(StartError::Rebound(address));
    }
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let count = config.workers.unwrap_or(available).max(1);
    let ticket_keeper = TicketKeeper::start(&config).map_err(StartError::Tickets)?;
    let mut acme_keeper = AcmeKeeper::new(txt::look_up).map_err(StartError::Acme)?;
    let prepared = PreparedSnapshot::new(config, &ticket_keeper.keys, None)?;
    let config = prepared.config();
    let listeners = bind_all(config, count, earlier)?;
    if order != Order::Hold {
        listen_all(&listeners)?;
        follow_modes(&listeners, config)?;
        own_files(&listeners);
    }
    let addresses = addresses(&listeners);
    // Frees what reading the configuration left, so that it does not count as held.
    life.trim();
    let resident = eyelet_sys::memory::resident_bytes();
    let budget = Arc::new(Budget::new(config.limits.memory_max, resident));
    let writer = Writer::start(config, &budget).map_err(|error| log_error(config, error))?;
    let snapshot = Arc::new(prepared.first(count, &addresses, (&budget, &acme_keeper.table))?);
    acme_keeper.configure(&snapshot.config).map_err(StartError::Acme)?;
    let mut spiffe_keeper = SpiffeKeeper::default();
    spiffe_keeper.configure(&snapshot.config, snapshot.tls.workload());
    let published = Arc::new(Published::new(snapshot, listeners, writer.lines(), count));
    let (connections, queries) = Connections::new(count);
    let predecessors = Predecessors::new(published.snapshot().holds.clone());
    let admin = AdminKeeper::new(&published, &ticket_keeper.keys, connections, &predecessors);
    let orders = watch::Sender::<Orders>::default();
    let mut running = Running {
        published,
        orders,
        workers: Vec::new(),
        writer,
        earlier_writer: None,
        earlier: Vec::new(),
        untidy: None,
        budget,
        arrivals: Vec::new(),
        ticket_keeper,
        acme_keeper,
        spiffe_keeper,
        admin,
        predecessors,
        sources: None,
        changed: watch::Sender::default(),
        lost_threads: LostThreadLog::default(),
        webhook: WebhookKeeper::default(),
    };
    match running.begin(queries, order, life) {
        Ok(()) => Ok(running),
        Err(error) => {
            // The workers that were made have little or nothing to finish.
            running.drain();
            Err(error)
        }
    }
}

fn addresses(listeners: &[Bound]) -> Vec<SocketAddr> {
    listeners.iter().filter(|it| !it.reads_datagrams()).map(|it| it.address.inet()).collect()
}

fn log_error(config: &Config, error: io::Error) -> StartError {
    let path = match &config.log.access {
        Access::File(path) => path.display().to_string(),
        Access::Stdout => String::from("stdout"),
        Access::Off => String::from("off"),
    };
    StartError::Log { path, error }
}

/// A warmed-up worker and its runtime.
fn make(
    index: u16,
    snapshot: Arc<Snapshot>,
    log: Log,
    counters: Arc<Counters>,
) -> io::Result<(Edge, Runtime)> {
    let worker = Edge::new(index, snapshot, log, counters)?;
    warm_up::warm_up(&worker);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok((worker, runtime))
}

impl Running {
    /// Starts the workers, and what waits for them.
    fn begin(&mut self, queries: Vec<Queries>, order: Order, life: Life) -> Result<(), StartError> {
        // Returns memory and program pages that only the start needed. From here on connections
        // need the memory.
        life.trim();
        life.forget_code();
        self.order(order);
        self.work(queries, life).map_err(StartError::Worker)?;
        life.trim();
        self.watch_sources();
        let snapshot = self.published.snapshot();
        self.webhook.configure(&snapshot.config.hold, &snapshot.holds);
        if order != Order::Hold {
            self.admin.open(Start::Alone)?;
        }
        for bound in self.listeners().iter() {
            tracing::info!("listening on {}{}", bound.address, bound.protocol());
        }
        Ok(())
    }

    /// Starts the workers. Waits until all have warmed up, or one fails.
    fn work(&mut self, queries: Vec<Queries>, life: Life) -> io::Result<()> {
        let count = queries.len();
        let (made, all_made) = sync_channel(count);
        let inboxes = self.published.snapshot().process.inboxes.open(count);
        for (index, queries) in queries.into_iter().zip(inboxes).enumerate() {
            let counters = counters::register();
            let log = self.writer.log(counters.clone());
            let (sender, arrivals) = channel(ARRIVALS_MAX);
            self.arrivals.push((sender, counters.clone()));
            let orders = WorkerOrders::new(self.orders.subscribe());
            let (published, made) = (self.published.clone(), made.clone());
            let body = move || {
                let sockets = sockets(&published.listeners(), index, count);
                let (result, worker) = match make(index as u16, published.snapshot(), log, counters)
                {
                    Ok(worker) => (Ok(()), Some(worker)),
                    Err(error) => (Err(error), None),
                };
                life.trim();
                // The start waits until all senders are dropped. A worker that hit an internal
                // error sends nothing, so a running worker must drop its sender.
                let _ = made.send(result);
                drop(made);
                let Some((worker, runtime)) = worker else { return };
                serve(index, (worker, arrivals, queries), &runtime, published, sockets, orders);
            };
            let thread = std::thread::Builder::new().name(format!("worker-{index}"));
            self.workers.push(thread.spawn(body)?);
        }
        drop(made);
        let made = all_made.iter().take(count).collect::<io::Result<Vec<()>>>()?;
        if made.len() < count {
            return Err(io::Error::other("internal error"));
        }
        Ok(())
    }

    /// Adds an order to the workers.
    fn order(&self, order: Order) {
        self.orders.send_modify(|orders| orders.add(order));
    }

    /// Makes the workers serve by another configuration, each from its next iteration on: see
    /// [`Running::is_served`].
    ///
    /// # Errors
    /// [`StartError`]. Nothing has changed then.
    pub fn reload(&mut self, prepared: PreparedReload) -> Result<Reloaded, StartError> {
        let PreparedReload { prepared, unchanged } = prepared;
        let (earlier, count) = (self.published.snapshot(), self.workers.len());
        let known = self.published.listeners();
        let config = prepared.config();
        let listeners = bind_all(config, count, &known)?;
        listen_all(&listeners)?;
        let writer = self.writer.reopen(config).map_err(|error| log_error(config, error))?;
        let addresses = addresses(&listeners);
        let limits = config.limits.clone();
        let snapshot = Arc::new(prepared.next(count, &addresses, &earlier)?);
        self.admin.configure(snapshot.config.admin.as_ref())?;
        follow_limits(&listeners, &limits);
        if let Err(error) = follow_modes(&listeners, &snapshot.config) {
            tracing::error!("a Unix socket keeps its earlier mode: {error}; reload again");
        }
        for bound in listeners.iter().filter(|bound| !known.contains(bound)) {
            tracing::info!("listening on {}{}", bound.address, bound.protocol());
        }
        for bound in known.iter().filter(|bound| !listeners.contains(bound)) {
            tracing::info!("stopped listening on {}{}", bound.address, bound.protocol());
        }
        if let Some(writer) = writer {
            self.earlier_writer = Some(std::mem::replace(&mut self.writer, writer));
        }
        self.ticket_keeper.configure(&snapshot.config);
        if let Err(error) = self.acme_keeper.configure(&snapshot.config) {
            tracing::error!("{}", StartError::Acme(error));
        }
        self.spiffe_keeper.configure(&snapshot.config, snapshot.tls.workload());
        self.webhook.configure(&snapshot.config.hold, &snapshot.holds);
        let generation = snapshot.generation;
        self.published.publish(snapshot, listeners, self.writer.lines());
        self.earlier.push(earlier);
        self.untidy = Some(generation);
        self.watch_sources();
        self.order(Order::Reload(generation));
        Ok(Reloaded { generation, unchanged })
    }

    /// Accepts connections from now on, whose numbers begin at `first_id`.
    ///
    /// # Errors
    /// If a socket cannot listen. Nothing is accepted then.
    pub fn serve(&self, first_id: u64) -> Result<(), ListenError> {
        let listeners = self.published.listeners();
        listen_all(&listeners)?;
        follow_modes(&listeners, &self.published.snapshot().config)?;
        self.published.set_first_id(first_id);
        self.open_admin();
        self.order(Order::Serve);
        Ok(())
    }

    /// Opens the admin socket that another process has, or had. Without it this one serves all the
    /// same.
    pub fn open_admin(&self) {
        if let Err(error) = self.admin.open(Start::InPlaceOfAnother) {
            tracing::error!("{error}");
        }
    }

    /// Lets the workers leave for the process that replaces this one.
    pub fn hand_over(&self, departures: Vec<Departure>) {
        self.published.depart(departures);
        self.order(Order::HandOver);
    }

    /// Gives up what the process that replaces this one has now, because it serves for good: the
    /// listening sockets, certificates, tickets and files. What could not move goes on here.
    pub fn settle(&mut self) {
        let compress = self.published.snapshot().http.compress.clone();
        self.published.let_listeners_go(|_| false);
        self.ticket_keeper.stop();
        // This releases the folder for certificates. One without names has no thread.
        match AcmeKeeper::new(txt::look_up) {
            Ok(idle) => self.acme_keeper = idle,
            Err(error) => tracing::error!("{}", StartError::Acme(error)),
        }
        // Nothing that serves here follows files or the Workload API any more.
        self.spiffe_keeper = SpiffeKeeper::default();
        self.sources = None;
        // Waits for what is being written.
        let finished =
            std::thread::Builder::new().name("finish".into()).spawn(move || compress.finish());
        if let Err(error) = finished {
            tracing::error!("the last dictionaries may be lost: no thread saves them: {error}");
        }
        self.order(Order::Settled);
    }

    /// Writes to the access log's new file if the present one was renamed: nobody reloads a process
    /// that was replaced.
    pub fn follow_log(&mut self) {
        if !self.writer.was_renamed() {
            return;
        }
        match Writer::start(&self.config(), &self.budget) {
            Ok(writer) => {
                self.earlier_writer = Some(std::mem::replace(&mut self.writer, writer));
                self.decide_anew(true, false);
            }
            Err(error) => tracing::error!("{}", log_error(&self.config(), error)),
        }
    }

    /// The number of the first connection of a process that replaces this one: greater than that of
    /// each connection here.
    pub fn next_first_id(&self) -> u64 {
        self.published.first_id() + counters::snapshot().accepted + ACCEPTED_MEANWHILE
    }

    /// Returns the places where connections of an earlier process arrive.
    pub fn arrivals(&self) -> Arrivals {
        let process = self.published.snapshot().process.clone();
        Arrivals { workers: self.arrivals.clone(), process }
    }

    /// The bound listeners, in the order of the configuration.
    pub fn listeners(&self) -> Arc<[Bound]> {
        self.published.listeners()
    }

    /// The certificates from an ACME server, and the account there.
    pub fn acme(&self) -> Arc<Acme> {
        self.acme_keeper.table.clone()
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Watches the files of the newest configuration.
    fn watch_sources(&mut self) {
        let snapshot = self.published.snapshot();
        let (config, tls) = (snapshot.config.clone(), snapshot.tls.clone());
        let upstream_tls = snapshot.http.upstream_tls.clone();
        let evidence_roots = snapshot.names.evidence.roots().cloned();
        let secrets = snapshot.http.secrets.clone();
        let served = Served { config, tls, upstream_tls, evidence_roots, secrets };
        if let Some(sources) = &self.sources {
            return sources.serve(served);
        }
        // The access log ends with the last `Published`: the thread must not be who holds it.
        let (changed, published) = (self.changed.clone(), Arc::downgrade(&self.published));
        let note = move |mut new: ChangedSources| {
            let Some(published) = published.upgrade() else { return };
            let snapshot = published.snapshot();
            new.dns = new.dns && snapshot.names.system.renew(&snapshot.config.dns);
            changed.send_modify(|known| *known = known.with(new));
        };
        let sources = SourceWatcher::start(served, note);
        let sources = sources.inspect_err(|error| {
            tracing::error!("files are not watched: {error}; a reload reads them again");
        });
        self.sources = sources.ok();
    }

    /// Returns what has changed in watched files, until [`Running::take_changed`] takes it.
    pub fn changed(&self) -> watch::Receiver<ChangedSources> {
        self.changed.subscribe()
    }

    /// Has the next request of each HTTP connection decided again if a list or the system's
    /// resolvers have changed. Returns whether the configuration file differs from what serves.
    pub fn take_changed(&mut self) -> bool {
        let mut changed = ChangedSources::default();
        self.changed.send_if_modified(|known| {
            changed = std::mem::take(known);
            // Nobody needs to hear of it again.
            false
        });
        if changed.dns {
            tracing::info!("the system's resolvers or hosts have changed and are read again");
        }
        let verdicts_hold = !(changed.lists || changed.dns || changed.evidence_roots);
        if !verdicts_hold || changed.upstream_roots {
            self.decide_anew(verdicts_hold, changed.dns);
        }
        // A reload since then may have read it.
        let differs = |file: &WatchedFile| changed.configuration.is_some_and(|n| n != file.digest);
        self.config().watch.as_ref().is_some_and(differs)
    }

    /// Has the next request of each HTTP connection find its upstream again, after something that
    /// the newest configuration was made from was replaced. Unless `verdicts_hold`, the rules also
    /// decide it again. With `new_dns` the addresses of names are forgotten.
    fn decide_anew(&mut self, verdicts_hold: bool, new_dns: bool) {
        let earlier = self.published.snapshot();
        let snapshot = Arc::new(earlier.decided_anew(verdicts_hold, new_dns));
        let generation = snapshot.generation;
        self.published.publish(snapshot, self.published.listeners(), self.writer.lines());
        self.earlier.push(earlier);
        self.untidy = Some(generation);
        self.order(Order::Reload(generation));
    }

    /// The held connections and their questions.
    pub fn holds(&self) -> Arc<Holds> {
        self.published.snapshot().holds.clone()
    }

    /// The newest configuration.
    pub fn config(&self) -> Arc<Config> {
        self.published.snapshot().config.clone()
    }

    /// Returns what a thread needs to prepare a reload.
    pub fn preparation(&self) -> Preparation {
        Preparation {
            earlier: self.published.snapshot(),
            known: self.published.listeners(),
            ticket_keys: self.ticket_keeper.keys.clone(),
        }
    }

    /// Frees what earlier configurations left. Returns whether all workers serve by the newest.
    pub fn tidy(&mut self) -> bool {
        let count = self.earlier.len();
        self.earlier.retain(|earlier| !earlier.is_unused());
        let mut is_freed = self.earlier.len() < count;
        if let Some(generation) = self.untidy {
            if !self.published.is_served(generation) {
                return false;
            }
            self.untidy = None;
            is_freed = true;
            if let Some(writer) = self.earlier_writer.take() {
                writer.finish();
            }
        }
        if is_freed {
            eyelet_sys::memory::trim();
        }
        true
    }

    /// True if all workers serve by this configuration or a newer one.
    pub fn is_served(&self, generation: u64) -> bool {
        self.published.is_served(generation)
    }

    /// The keys of session tickets, which outlive reloads.
    pub fn ticket_keys(&self) -> &Arc<TicketKeys> {
        &self.ticket_keeper.keys
    }

    /// The listening addresses, as configured; port 0 is resolved, Unix sockets have stand-ins.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        addresses(&self.published.listeners())
    }

    /// Descriptors that connections may hold.
    pub fn descriptors_max(&self) -> usize {
        self.published.snapshot().settings.descriptors_max
    }

    /// The memory now counted against `memory_max`, by kind, in one line.
    pub fn accounts(&self) -> String {
        let (rss, budget) = (eyelet_sys::memory::resident_bytes(), &self.budget);
        let (alive, newest) = (snapshot::alive(), self.published.snapshot().generation);
        format!(
            "memory: {rss} bytes resident; {budget}; configurations: {alive} held, {newest} read"
        )
    }

    /// The thread that a failure has ended, if any. One worker suffices: its share is lost.
    pub fn died(&self) -> Option<&'static str> {
        let mut writers = std::iter::once(&self.writer).chain(&self.earlier_writer);
        let threads = [
            ("a worker", self.workers.iter().any(JoinHandle::is_finished)),
            ("the thread `access-log`", writers.any(Writer::has_died)),
            ("the thread `tickets`", self.ticket_keeper.has_died()),
            ("the thread `acme`", self.acme_keeper.has_died()),
            ("the thread `spiffe`", self.spiffe_keeper.has_died()),
            ("the thread `sources`", self.sources.as_ref().is_some_and(SourceWatcher::has_died)),
        ];
        threads.into_iter().find(|(_, has_died)| *has_died).map(|(name, _)| name)
    }

    /// Logs the threads that have ended by themselves, and that no connection needs.
    pub fn log_lost_threads(&mut self) {
        self.lost_threads.note(lost(&self.published.snapshot().http));
    }

    /// Stops accepting, closes idle connections, and waits for the rest, for `drain_timeout` at
    /// most. Then it writes dictionaries to disk, sends recorded traces, and writes the last lines.
    pub fn drain(self) {
        // A process that replaces this one gets the lock of the folder for certificates now.
        drop(self.acme_keeper);
        self.admin.note_draining();
        self.orders.send_modify(|orders| orders.add(Order::Drain));
        // Nobody accepts there. But by the number of UDP sockets the kernel chooses one for a flow.
        self.published.let_listeners_go(Bound::reads_datagrams);
        for worker in self.workers {
            // A worker that panicked has logged it.
            let _ = worker.join();
        }
        self.predecessors.stop();
        self.published.snapshot().http.clone().compress.finish();
        // Also those of earlier configurations.
        eyelet_trace::live::finish();
        // The log ends when nobody can write to it any more, and this is one who hands it on.
        drop(self.published);
        self.writer.finish();
    }
}

/// Batches that wait in a worker's queue. The process that sends them waits for each answer.
const ARRIVALS_MAX: usize = 1;
/// Connections that a process may accept between the message with the first number of its successor
/// and its last accept: far more than in the seconds that this takes.
const ACCEPTED_MEANWHILE: u64 = 1 << 24;

/// The life of a worker's thread.
fn serve(
    index: usize,
    (worker, arrivals, (queries, inbox)): (Edge, mpsc::Receiver<Arrival>, (Queries, Inbox)),
    runtime: &Runtime,
    published: Arc<Published>,
    sockets: Vec<ListenerSocket>,
    mut orders: WorkerOrders,
) {
    let engine = worker.engine.clone();
    let generation = worker.snapshot.generation;
    let service = Rc::new(Service::new(index, worker, published.clone()));
    let tasks = LocalSet::new();
    engine.serve(&service);
    let last = DropFutures(engine.clone());
    let life = async {
        // A process that ends before it has served must not touch the other process's queues.
        if orders.next().await == Order::Drain {
            return Ok(());
        }
        engine.set_next_id(published.first_id());
        tokio::task::spawn_local(batch::arrive(engine.clone(), arrivals));
        tokio::task::spawn_local(listing::answer(engine.clone(), queries));
        tokio::task::spawn_local(flows::receive(engine.clone(), inbox));
        tokio::task::spawn_local(follow(engine.clone(), published.snapshot().holds.clone()));
        published.note_served(index, generation);
        run(engine, sockets, orders).await
    };
    let ended = tasks.block_on(runtime, life);
    // Connections that end here write through the service, so it is dropped last.
    drop((tasks, last, service));
    if let Err(error) = ended {
        tracing::error!("worker {index} has ended: {error}");
    }
}
