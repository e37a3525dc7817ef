//! Starting and draining an edge: sockets bound, workers started, the log written to its end.
//! It must not know what a worker does.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use eyelet_sys::socket::{self, Listen};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::LocalSet;

use crate::warm_up;
use crate::worker::{Edge, Worker};
use eyelet_config::{Access, Config, Limits, Listener, ListenerKind};
use eyelet_engine::accept::{BACKLOG, KEEPALIVE_IDLE, ListenerSocket};
use eyelet_engine::connection_table::Slot;
use eyelet_engine::event_loop::{LetGo, run};
use eyelet_engine::relay::PIPES_MAX;
use eyelet_engine::worker::{Process, Settings};
use eyelet_http::compress;
use eyelet_http::worker::SharedHttp;
use eyelet_memory::budget::Budget;
use eyelet_resolve::certificate::RootsError;
use eyelet_resolve::evidence::EvidenceStore;
use eyelet_resolve::loops::Loops;
use eyelet_resolve::names::SharedNames;
use eyelet_telemetry::counters::{self, Counters};
use eyelet_telemetry::log::{Log, Writer};
use eyelet_tls::client::ClientConfigs;
use eyelet_tls::server::{ServerConfigs, TlsError};

/// Descriptors that are not for connections: the program's own, the log, DNS, listeners, and the
/// pooled pipes and epolls of each worker.
const DESCRIPTORS_KEPT: usize = 64;
/// The same for each worker: two for each pipe, and some.
const DESCRIPTORS_A_WORKER: usize = 2 * PIPES_MAX + 32;

/// Why an edge could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listener's address cannot be had.
    #[error("cannot listen on {address}: {error}{}", hint(error))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The access log cannot be opened.
    #[error("cannot open the access log {path:?}: {error}")]
    Log {
        /// What `log.access` names.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// A terminate rule's files cannot be used.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// The roots for the certificates of destinations cannot be used.
    #[error("[evidence] ca: {0}")]
    Roots(#[from] RootsError),
    /// The store of dictionaries cannot be opened.
    #[error("cannot keep dictionaries: {0}")]
    Dictionaries(io::Error),
    /// A thread or its epoll could not be made.
    #[error("cannot start a worker: {0}")]
    Worker(io::Error),
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (a port below 1024 needs root, CAP_NET_BIND_SERVICE, or a lower \
             net.ipv4.ip_unprivileged_port_start; kind \"tproxy\" needs root or CAP_NET_ADMIN)"
        }
        io::ErrorKind::AddrInUse => " (another process holds it; `ss -ltnp` shows which)",
        io::ErrorKind::AddrNotAvailable => " (no interface of this host has it; `ip addr`)",
        _ => "",
    }
}

/// A running edge.
pub struct Running {
    addresses: Vec<SocketAddr>,
    drain: watch::Sender<bool>,
    workers: Vec<JoinHandle<()>>,
    compress: Arc<compress::SharedDictionaries>,
    writer: Writer,
    budget: Arc<Budget>,
}

/// Binds, then starts the workers.
///
/// # Errors
/// [`StartError`], in one line that says what to do. Nothing runs then.
pub fn start(config: Config) -> Result<Running, StartError> {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let count = config.workers.unwrap_or(available).max(1);
    let tls = ServerConfigs::new(&config)?;
    let upstream_tls = ClientConfigs::new(&config)?;
    let evidence = EvidenceStore::new(&config)?;
    let (addresses, sockets) = bind_all(&config, count)?;
    let names = config.listeners.iter().zip(&addresses).map(|(listener, address)| {
        listener.name.clone().unwrap_or_else(|| address.to_string()).into()
    });
    let path = match &config.log.access {
        Access::File(path) => path.display().to_string(),
        Access::Stdout => String::from("stdout"),
        Access::Off => String::from("off"),
    };
    // What reading the configuration left behind is not to be counted as held.
    eyelet_sys::memory::trim();
    let resident = eyelet_sys::memory::resident_bytes();
    let budget = Arc::new(Budget::new(config.limits.memory_max, resident));
    let writer = Writer::start(&config, names.collect(), &budget)
        .map_err(|error| StartError::Log { path, error })?;
    let compress =
        compress::SharedDictionaries::start(&config, &budget).map_err(StartError::Dictionaries)?;
    let shared =
        Shared { tls, upstream_tls, compress: compress.clone(), evidence, budget: budget.clone() };
    let edge = Arc::new(edge(config, shared, count, &addresses));
    let (drain, draining) = watch::channel(false);
    let mut running = Running { addresses, drain, workers: Vec::new(), compress, writer, budget };
    // Of memory and of the program, what only the start has needed until here. What comes now is
    // what connections need.
    eyelet_sys::memory::trim();
    eyelet_sys::memory::forget_code();
    if let Err(error) = running.work(&edge, sockets, &draining) {
        // Those that were made have little to do, if anything.
        running.drain();
        return Err(StartError::Worker(error));
    }
    eyelet_sys::memory::trim();
    for address in &running.addresses {
        tracing::info!("listening on {address}");
    }
    Ok(running)
}

/// A worker that has warmed up, and what runs it.
fn make(
    index: u16,
    edge: Arc<Edge>,
    log: Log,
    counters: Arc<Counters>,
) -> io::Result<(Worker, Runtime)> {
    let worker = Worker::new(index, edge, log, counters)?;
    warm_up::warm_up(&worker);
    eyelet_sys::memory::trim();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok((worker, runtime))
}

/// What was made ready for all workers.
struct Shared {
    tls: ServerConfigs,
    upstream_tls: ClientConfigs,
    compress: Arc<compress::SharedDictionaries>,
    evidence: EvidenceStore,
    budget: Arc<Budget>,
}

fn edge(config: Config, shared: Shared, workers: usize, addresses: &[SocketAddr]) -> Edge {
    let descriptors = eyelet_sys::process::raise_descriptor_limit();
    let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
    let kept =
        DESCRIPTORS_KEPT + workers * DESCRIPTORS_A_WORKER + EvidenceStore::descriptors_max(&config);
    let descriptors_max = descriptors.saturating_sub(kept).max(2);
    let by_memory = config.limits.memory_max / size_of::<Slot>();
    let connections_max = config.limits.connections_max.min(by_memory).min(descriptors_max);
    tracing::info!(
        "{workers} workers, at most {connections_max} connections \
         (connections_max {}, memory_max {by_memory}, descriptors {descriptors_max}; \
         a pair takes two)",
        config.limits.connections_max,
    );
    let limits = &config.limits;
    let settings = Settings {
        idle_timeout: limits.idle_timeout,
        shed_idle: limits.shed_idle,
        drain_timeout: limits.drain_timeout,
    };
    let process = Process {
        settings,
        open: AtomicUsize::new(0),
        budget: shared.budget.clone(),
        descriptors: AtomicUsize::new(0),
        connections_max,
        descriptors_max,
    };
    let config = Arc::new(config);
    let names = SharedNames {
        config: config.clone(),
        loops: Loops::new(&config.listeners, addresses),
        evidence: shared.evidence,
        budget: shared.budget.clone(),
    };
    let http = SharedHttp {
        config: config.clone(),
        upstream_tls: Arc::new(shared.upstream_tls),
        compress: shared.compress,
    };
    Edge {
        budget: shared.budget,
        process: Arc::new(process),
        names: Arc::new(names),
        config,
        tls: shared.tls,
        http: Arc::new(http),
    }
}

/// One that is missing is enough: its connections are gone, and so is its share of new ones.
fn has_died(workers: &[JoinHandle<()>]) -> bool {
    workers.iter().any(JoinHandle::is_finished)
}

type Bound = (Vec<SocketAddr>, Vec<Vec<ListenerSocket>>);

/// A socket of every listener for every worker.
fn bind_all(config: &Config, workers: usize) -> Result<Bound, StartError> {
    let Config { listeners, limits, .. } = config;
    let mut addresses = Vec::new();
    let mut sockets: Vec<Vec<ListenerSocket>> = (0..workers).map(|_| Vec::new()).collect();
    for (index, listener) in listeners.iter().enumerate() {
        let (address, bound) = bind(listener, limits, workers)
            .map_err(|error| StartError::Listen { address: listener.address, error })?;
        addresses.push(address);
        for (worker, socket) in sockets.iter_mut().zip(bound) {
            worker.push(ListenerSocket { listener: index as u16, socket, drops: 0 });
        }
    }
    Ok((addresses, sockets))
}

fn bind(
    listener: &Listener,
    limits: &Limits,
    workers: usize,
) -> io::Result<(SocketAddr, Vec<OwnedFd>)> {
    let transparent = listener.kind == ListenerKind::Tproxy;
    let defer = listener.defer_accept.then_some(limits.hello_timeout);
    let keepalive_idle = KEEPALIVE_IDLE;
    let how = |reuse_port| Listen { reuse_port, keepalive_idle, transparent, defer };
    let mut address = listener.address;
    if workers > 1 && !listener.reuse_port {
        // SO_REUSEPORT would share the port with any process of this user that says the same:
        // a first socket without it finds out whether it is taken.
        let probe = socket::bind(address, how(false))?;
        socket::listen(&probe, 1)?;
        address = socket::local_address(&probe)?;
    }
    let mut sockets = Vec::new();
    for _ in 0..workers {
        let bound = socket::bind(address, how(workers > 1 || listener.reuse_port))?;
        socket::listen(&bound, BACKLOG)?;
        address = socket::local_address(&bound)?;
        sockets.push(bound);
    }
    Ok((address, sockets))
}

impl Running {
    /// Starts a worker for each set of sockets, and waits until all have warmed up or one fails.
    fn work(
        &mut self,
        edge: &Arc<Edge>,
        sockets: Vec<Vec<ListenerSocket>>,
        draining: &watch::Receiver<bool>,
    ) -> io::Result<()> {
        let count = sockets.len();
        let (made, all_made) = sync_channel(count);
        for (index, sockets) in sockets.into_iter().enumerate() {
            let counters = counters::register();
            let log = self.writer.log(counters.clone());
            let (edge, draining, made) = (edge.clone(), draining.clone(), made.clone());
            let body = move || {
                let (result, worker) = match make(index as u16, edge, log, counters) {
                    Ok(worker) => (Ok(()), Some(worker)),
                    Err(error) => (Err(error), None),
                };
                // The start waits for all, and for no word of one that has met a fault of ours:
                // what runs must not keep the sender.
                let _ = made.send(result);
                drop(made);
                let Some((worker, runtime)) = worker else { return };
                let (tasks, worker) = (LocalSet::new(), Rc::new(worker));
                let engine = worker.engine().clone();
                engine.serve(&worker);
                let last = LetGo(engine.clone());
                let ended = tasks.block_on(&runtime, run(engine, sockets, draining));
                // What the connections' ends write goes through the program's worker.
                drop((tasks, last, worker));
                if let Err(error) = ended {
                    tracing::error!("worker {index} has ended: {error}");
                }
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

    /// The addresses listened on, in the order of the configuration; port 0 is resolved.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What is counted against `memory_max` now, by kind, in one line.
    pub fn accounts(&self) -> String {
        let resident = eyelet_sys::memory::resident_bytes();
        format!("memory: {resident} bytes resident; {}", self.budget)
    }

    /// Whether a worker has ended by itself, which only a failure makes it do.
    pub fn has_died(&self) -> bool {
        has_died(&self.workers)
    }

    /// Stops accepting, closes what is idle, and waits for the rest, `drain_timeout` at most. Then
    /// what was learnt and logged goes to disk.
    pub fn drain(self) {
        // Without a worker left there is nothing to drain.
        let _ = self.drain.send(true);
        for worker in self.workers {
            // A worker that panicked has said so.
            let _ = worker.join();
        }
        self.compress.finish();
        self.writer.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_worker_that_has_died_is_noticed() {
        let (lives, waits) = sync_channel::<()>(0);
        let alive = || {
            let (sender, receiver) = sync_channel::<()>(0);
            (sender, std::thread::spawn(move || _ = receiver.recv()))
        };
        let ((_one, first), (_two, second)) = (alive(), alive());
        let dead = std::thread::spawn(move || _ = waits.recv());
        let mut workers = vec![first, dead, second];
        assert!(!has_died(&workers));
        drop(lives);
        while !workers[1].is_finished() {
            std::thread::yield_now();
        }
        assert!(has_died(&workers));
        workers.remove(1);
        assert!(!has_died(&workers));
    }
}
