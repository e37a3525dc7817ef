//! One configuration and everything that was made from it. A snapshot never changes: a reload makes
//! another. It is freed with the last connection that it serves.

pub mod check;
pub mod edge;
pub mod limits;
pub mod listen;
pub mod published;
pub mod sources;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use eyelet_acme::Acme;
use eyelet_balance::table::Table;
use eyelet_config::{Config, ListenAddress, Listener};
use eyelet_downstream::connection::worker::SharedHttp;
use eyelet_engine::departure::BATCH_DESCRIPTORS_MAX;
use eyelet_engine::moving::batch::CONNECTION_DESCRIPTORS;
use eyelet_engine::worker::{Process, Settings};
use eyelet_hold::Holds;
use eyelet_memory::budget::Budget;
use eyelet_recoding::SharedDictionaries;
use eyelet_relay::PIPES_MAX;
use eyelet_resolve::evidence::{AuthoritiesError, EvidenceStore};
use eyelet_resolve::loops::Loops;
use eyelet_resolve::names::SharedNames;
use eyelet_resolve::system::SystemDns;
use eyelet_secrets::Secrets;
use eyelet_sources::secrets;
use eyelet_sys::interfaces::local_ports;
use eyelet_telemetry::labels::Labels;
use eyelet_telemetry::rule_hits::RuleHits;
use eyelet_tls::client::ClientConfigs;
use eyelet_tls::server::{ServerConfigs, TlsError};
use eyelet_tls::tickets::TicketKeys;
use eyelet_trace::tracer::{PreparedTracer, TraceError};

use crate::snapshot::check::counted;
use crate::snapshot::limits::ConnectionLimits;
use crate::snapshot::listen::https_port;

/// Descriptors of the process itself: outputs, log, signals, the control socket and its clients,
/// inotify, files that are being read, and the channel and the pipes of an upgrade.
const DESCRIPTORS_KEPT: usize = 64;
/// The descriptors of the admin server, if there is one: its connections, its socket and its
/// runtime.
const DESCRIPTORS_OF_ADMIN: usize = eyelet_admin::CONNECTIONS_MAX + 8;
/// The descriptors of each worker: two for each pipe, and a few more for its epolls.
const DESCRIPTORS_A_WORKER: usize = 2 * PIPES_MAX + 32;
/// One such part of all descriptors is for connections that arrive from an earlier process: those
/// of a batch are open before they are counted.
const BATCH_PARTS: usize = 16;

/// The reason why a configuration cannot become a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A file of a terminate rule cannot be used.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// The roots for the certificates of destinations or resolvers cannot be used.
    #[error("{0}")]
    Trust(#[from] AuthoritiesError),
    /// The store of dictionaries cannot be opened.
    #[error("cannot keep dictionaries: {0}")]
    Dictionaries(io::Error),
    /// A secret cannot be read.
    #[error("[[secret]] {0}")]
    Secret(String),
    /// Traces cannot be sent.
    #[error("{0}")]
    Trace(#[from] TraceError),
}

/// Everything that workers share under one configuration.
#[derive(Clone)]
pub struct Snapshot {
    /// The number of this configuration in the process, from 1.
    pub generation: u64,
    /// The checked configuration.
    pub config: Arc<Config>,
    /// The listeners' names. One without a name has its bound address.
    listeners: Arc<[Box<str>]>,
    /// Certificates that an ACME server issues.
    pub acme: Arc<Acme>,
    /// The port that `http_redirect` listeners send clients to.
    pub https_port: u16,
    /// DNS and evidence for names.
    pub names: Arc<SharedNames>,
    /// TLS configurations by rule.
    pub tls: Arc<ServerConfigs>,
    /// The state that HTTP connections share.
    pub http: Arc<SharedHttp>,
    /// The memory that connections hold, in all workers.
    pub budget: Arc<Budget>,
    /// The state that the event loops share.
    pub process: Arc<Process>,
    /// Connections that are held, and the verdicts.
    pub holds: Arc<Holds>,
    /// The limits of the event loops.
    pub settings: Settings,
    /// The number of connections that they allow.
    bounds: ConnectionLimits,
    /// The number of decisions by each rule, if somebody may ask.
    pub hits: Option<Arc<RuleHits>>,
    _alive: Alive,
}

/// The files of a configuration. Nothing serves by it yet.
pub struct PreparedSnapshot {
    config: Config,
    tls: ServerConfigs,
    upstream_tls: ClientConfigs,
    evidence: EvidenceStore,
    trace: Option<PreparedTracer>,
    secrets: Option<Arc<Secrets>>,
}

/// The values that outlive a configuration.
type Kept = (Arc<Process>, Arc<SharedDictionaries>, Arc<Acme>, Arc<Holds>);

impl PreparedSnapshot {
    /// Reads the files that a configuration names. What has not changed since `earlier` is reused:
    /// evidence, root sets, the thread that sends traces.
    ///
    /// # Errors
    /// [`SnapshotError`], which says which file.
    pub fn new(
        config: Config,
        ticket_keys: &Arc<TicketKeys>,
        earlier: Option<&Snapshot>,
    ) -> Result<Self, SnapshotError> {
        let served = earlier.map(|earlier| (&*earlier.tls, &earlier.config.rules));
        let tls = ServerConfigs::new(&config, ticket_keys, served)?;
        let known = earlier.map(|earlier| &*earlier.http.upstream_tls);
        let upstream_tls = ClientConfigs::new(&config, tls.workload(), known)?;
        let evidence = match earlier {
            Some(earlier) => earlier.names.evidence.reloaded(&config)?,
            None => EvidenceStore::new(&config)?,
        };
        let tracer = earlier.and_then(|earlier| earlier.http.trace.as_ref());
        let trace = PreparedTracer::new(config.trace.as_ref(), tracer)?;
        let known = earlier.and_then(|earlier| earlier.http.secrets.as_deref());
        let secrets = secrets::load(&config.secrets, known).map_err(SnapshotError::Secret)?;
        Ok(Self { config, tls, upstream_tls, evidence, trace, secrets })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The first snapshot of a process with this many workers. `addresses` are the listeners' bound
    /// addresses.
    ///
    /// # Errors
    /// If dictionaries cannot be kept, or traces cannot be sent.
    pub fn first(
        self,
        workers: usize,
        addresses: &[SocketAddr],
        (budget, acme): (&Arc<Budget>, &Arc<Acme>),
    ) -> Result<Snapshot, SnapshotError> {
        let compress = SharedDictionaries::start(&self.config, budget);
        let process = Arc::new(Process::new(budget.clone()));
        let compress = compress.map_err(SnapshotError::Dictionaries)?;
        let kept = (process, compress, acme.clone(), Arc::default());
        self.finish(workers, addresses, kept, None)
    }

    /// The snapshot after `earlier`.
    ///
    /// # Errors
    /// If dictionaries cannot be kept, or traces cannot be sent.
    pub fn next(
        self,
        workers: usize,
        addresses: &[SocketAddr],
        earlier: &Snapshot,
    ) -> Result<Snapshot, SnapshotError> {
        let compress = earlier.http.compress.clone();
        compress.keep(&self.config).map_err(SnapshotError::Dictionaries)?;
        let holds = earlier.holds.clone();
        let kept = (earlier.process.clone(), compress, earlier.acme.clone(), holds);
        self.finish(workers, addresses, kept, Some(earlier))
    }

    fn finish(
        mut self,
        workers: usize,
        addresses: &[SocketAddr],
        (process, compress, acme, holds): Kept,
        earlier: Option<&Snapshot>,
    ) -> Result<Snapshot, SnapshotError> {
        let (budget, memory_max) = (process.budget.clone(), self.config.limits.memory_max);
        let trace = self.trace.map(|trace| trace.start(&budget, memory_max)).transpose()?;
        if let Some(earlier) = earlier {
            self.config.rules.share_names(&earlier.config.rules);
        }
        let (settings, bounds) = settings(&self.config, workers, (&budget, earlier));
        let config = Arc::new(self.config);
        let listeners = called(&config.listeners, addresses);
        let generation = earlier.map_or(1, |earlier| earlier.generation + 1);
        let same = earlier.filter(|earlier| {
            let verdicts = |snapshot: &Config| snapshot.policy.fingerprint();
            let evidence = |snapshot: &Config| (snapshot.dns.clone(), snapshot.evidence.clone());
            earlier.listeners == listeners
                && verdicts(&earlier.config) == verdicts(&config)
                && evidence(&earlier.config) == evidence(&config)
        });
        let loops = earlier.map(|earlier| &earlier.names.loops);
        let names = SharedNames {
            config: config.clone(),
            loops: Loops::new(&config.listeners, addresses, loops),
            evidence: self.evidence,
            upstreams: Arc::new(Table::new(
                &config,
                local_ports().unwrap_or(usize::from(u16::MAX)),
                earlier.map(|earlier| &*earlier.names.upstreams),
            )),
            budget: budget.clone(),
            system: SystemDns::new(&config.dns),
        };
        let tls = Arc::new(self.tls);
        let begin = || RuleHits::begin(config.rules.shared_names(), workers);
        let hits = config.admin.is_some().then(begin);
        let http = SharedHttp {
            generation,
            rules_since: same.map_or(generation, |same| same.http.rules_since),
            config: config.clone(),
            upstream_tls: Arc::new(self.upstream_tls),
            server_tls: tls.clone(),
            rule_names: compress.rule_names(&config),
            compress,
            trace,
            secrets: self.secrets,
            holds: holds.clone(),
            hits: hits.clone(),
        };
        Ok(Snapshot {
            hits,
            generation,
            https_port: https_port(&config.listeners, addresses),
            config,
            listeners,
            acme,
            names: Arc::new(names),
            tls,
            http: Arc::new(http),
            budget,
            process,
            holds,
            settings,
            bounds,
            _alive: Alive::new(),
        })
    }
}

impl Snapshot {
    /// Returns the configuration as the next generation, for when a source of it was replaced.
    /// Unless `verdicts_hold`, those of earlier generations no longer hold for the next request of
    /// a connection. With `new_dns` the addresses of names are forgotten. No file is read.
    pub fn decided_anew(&self, verdicts_hold: bool, new_dns: bool) -> Self {
        let generation = self.generation + 1;
        let mut names = SharedNames::clone(&self.names);
        if new_dns {
            names.evidence = names.evidence.by_newest_resolvers(&self.config);
        }
        match names.evidence.by_newest_roots(&self.config) {
            Ok(evidence) => names.evidence = evidence,
            Err(error) => tracing::error!("[evidence] ca: {error}; the old roots stay in use"),
        }
        let http = SharedHttp {
            generation,
            rules_since: if verdicts_hold { self.http.rules_since } else { generation },
            ..SharedHttp::clone(&self.http)
        };
        Self {
            generation,
            // Of its own: who holds the names of one snapshot keeps no other.
            names: Arc::new(names),
            http: Arc::new(http),
            ..self.clone()
        }
    }

    /// True if no worker and no connection holds it, or a part of it: the caller has the last
    /// reference.
    pub fn is_unused(self: &Arc<Self>) -> bool {
        [Arc::strong_count(self), Arc::strong_count(&self.http), Arc::strong_count(&self.names)]
            == [1; 3]
    }

    /// The names of rules and listeners for access lines, one set for each worker.
    pub fn labels(&self) -> Labels {
        Labels::new(self.generation, self.listeners.clone(), self.config.rules.shared_names())
    }
}

fn called(listeners: &[Listener], addresses: &[SocketAddr]) -> Arc<[Box<str>]> {
    let names = listeners.iter().zip(addresses).map(|(listener, address)| {
        let shown = || match &listener.address {
            ListenAddress::Inet(_) => address.to_string(),
            path @ ListenAddress::Unix(_) => path.to_string(),
        };
        listener.name.clone().unwrap_or_else(shown).into()
    });
    names.collect()
}

/// The limits of the event loops, from the configuration and the machine. Says how many connections
/// there may be, unless it was said for `earlier`.
fn settings(
    config: &Config,
    workers: usize,
    (budget, earlier): (&Budget, Option<&Snapshot>),
) -> (Settings, ConnectionLimits) {
    let kept = DESCRIPTORS_KEPT
        + config.admin.as_ref().map_or(0, |_| DESCRIPTORS_OF_ADMIN)
        + batch_descriptors()
        + workers * (DESCRIPTORS_A_WORKER + config.listeners.len())
        + EvidenceStore::descriptors_max(config);
    let descriptor_limit = descriptor_limit();
    let descriptors_max = descriptor_limit.saturating_sub(kept).max(2);
    let limits = &config.limits;
    let bounds = ConnectionLimits::new(limits, budget, (descriptors_max, descriptor_limit));
    let workers = counted(workers, "worker");
    match bounds.is_short() {
        _ if earlier.is_some_and(|earlier| earlier.bounds == bounds) => {}
        true => tracing::warn!("{workers}, {bounds}"),
        false => tracing::info!("{workers}, {bounds}"),
    }
    let settings = Settings {
        idle_timeout: limits.idle_timeout,
        state_idle_timeout: config.http.http2_idle_timeout,
        quic_idle_timeout: config.limits.quic_idle_timeout,
        body_timeout: config.http.body_timeout,
        upstream_timeout: config.http.upstream_timeout,
        shed_idle: limits.shed_idle,
        drain_timeout: limits.drain_timeout,
        connections_max: bounds.connections_max(),
        descriptors_max,
        may_list: config.admin.is_some(),
    };
    (settings, bounds)
}

fn descriptor_limit() -> usize {
    usize::try_from(eyelet_sys::process::raise_descriptor_limit()).unwrap_or(usize::MAX)
}

/// Descriptors that are kept free for a batch of connections from an earlier process.
pub fn batch_descriptors() -> usize {
    (descriptor_limit() / BATCH_PARTS).clamp(CONNECTION_DESCRIPTORS, BATCH_DESCRIPTORS_MAX)
}

/// Snapshots that are not freed yet.
static ALIVE: AtomicUsize = AtomicUsize::new(0);

/// Counts the snapshots that exist: the newest, and those that still serve connections.
pub fn alive() -> usize {
    ALIVE.load(Relaxed)
}

/// Counts its snapshot while it lives.
struct Alive;

impl Alive {
    fn new() -> Self {
        ALIVE.fetch_add(1, Relaxed);
        Self
    }
}

impl Clone for Alive {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Relaxed);
    }
}
