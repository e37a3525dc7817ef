//! The edge of a run: a worker, its HTTP, and the program that the event loop calls. A connection
//! begins behind its handshake, whose secrets both ends know.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use eyelet_balance::table::Table;
use eyelet_config::{Config, Depth};
use eyelet_downstream::connection::worker::{Http, SharedHttp, WorkerConfiguration};
use eyelet_engine::links::{AttachedStreams, DetachedLink, DetachedLinks, Partners, StreamRef};
use eyelet_engine::park;
use eyelet_engine::table::KeptStreams;
use eyelet_engine::worker::{Handle, Program, Settings, Task, Update, Worker};
use eyelet_memory::budget::{Budget, Counted, HTTP2_BYTES};
use eyelet_memory::packed::PackedBytes;
use eyelet_memory::slab::Key;
use eyelet_recoding::SharedDictionaries;
use eyelet_record::Session;
use eyelet_relay::terminate::Terminated;
use eyelet_relay::{Flow, KeptExchanges, Relay};
use eyelet_resolve::evidence::EvidenceStore;
use eyelet_resolve::loops::Loops;
use eyelet_resolve::names::{Names, SharedNames};
use eyelet_resolve::system::SystemDns;
use eyelet_telemetry::info::{Alpn, ConnectionInfo, Decided, End};
use eyelet_telemetry::labels::Labels;
use eyelet_telemetry::log::Log;
use eyelet_tls::client::ClientConfigs;
use eyelet_tls::server::ServerConfigs;
use eyelet_tls::tickets::TicketKeys;
use tempfile::TempDir;

use crate::WokenConnection;

/// The names that clients ask for. The upstream of the second speaks HTTP/2, and the others
/// HTTP/1.1. The edge codes the responses of the third.
pub const HOSTS: [&str; 3] = ["one.example", "two.example", "coded.example"];
/// TLS 1.3.
const TLS13: u16 = 0x0304;

/// The part that all runs of a test share: a folder, and configurations with and without the rule.
pub struct Setup {
    folder: TempDir,
    /// With the rule, and without it.
    configs: [Arc<Config>; 2],
    names: [SharedNames; 2],
    upstream_tls: Arc<ClientConfigs>,
    server_tls: Arc<ServerConfigs>,
}

impl Setup {
    #[allow(clippy::new_without_default)] // it writes files
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Nothing reads them: there is no handshake.
        for name in ["certificate.pem", "key.pem"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let config = |hosts: &[&str]| {
            let listener = "[[listener]]\nname = \"https\"\naddress = \"127.0.0.1:0\"\n";
            let rule = |host: &&str| {
                let compress = match *host == HOSTS[2] {
                    true => "breach_rule = \"off\"\n",
                    false => "compress = \"off\"\n",
                };
                let (http2, path) =
                    (if *host == HOSTS[1] { "on" } else { "off" }, folder.path().join(host));
                format!(
                    "[[rule]]\nname = \"{host}\"\nsni = [\"{host}\"]\naction = \"terminate\"\n\
                     certificate = [\"certificate.pem\"]\nkey = [\"key.pem\"]\n\
                     upstream = \"http+unix:{}\"\nupstream_http2 = \"{http2}\"\n\
                     {compress}",
                    path.display()
                )
            };
            let rules: String = hosts.iter().map(rule).collect();
            let text = format!("{listener}[log]\naccess = \"off\"\n{rules}");
            let file = folder.path().join("edge.toml");
            match eyelet_config::parse(&file, &text, Depth::Files, SystemTime::UNIX_EPOCH) {
                Ok(loaded) => Arc::new(loaded.config),
                Err(mistakes) => panic!("{mistakes:?}"),
            }
        };
        let configs = [config(&HOSTS), config(&["other.example"])];
        let text = "[[listener]]\naddress = \"127.0.0.1:0\"\n";
        let none = eyelet_config::parse(
            &folder.path().join("none.toml"),
            text,
            Depth::Files,
            SystemTime::UNIX_EPOCH,
        );
        let keys = Arc::new(TicketKeys::new(configs[0].tickets.lifetime));
        let server_tls = Arc::new(ServerConfigs::new(&none.unwrap().config, &keys, None).unwrap());
        let upstream_tls =
            Arc::new(ClientConfigs::new(&configs[0], &Arc::default(), None).unwrap());
        let names = configs.each_ref().map(names);
        Self { folder, configs, names, upstream_tls, server_tls }
    }

    /// Returns the paths at which the upstreams listen.
    pub fn sockets(&self) -> [PathBuf; 3] {
        HOSTS.map(|host| self.folder.path().join(host))
    }

    /// Returns what a worker serves by, with names by its memory.
    fn shared(
        &self,
        generation: u64,
        removes: bool,
        (compress, engine): (&Arc<SharedDictionaries>, &Rc<Worker>),
    ) -> WorkerConfiguration {
        let config = &self.configs[usize::from(removes)];
        let budget = engine.process.budget.clone();
        let names = SharedNames { budget, ..self.names[usize::from(removes)].clone() };
        let shared = SharedHttp {
            generation,
            rules_since: generation,
            config: config.clone(),
            upstream_tls: self.upstream_tls.clone(),
            server_tls: self.server_tls.clone(),
            rule_names: compress.rule_names(config),
            secrets: None,
            compress: compress.clone(),
            trace: None,
            holds: Arc::default(),
            hits: None,
        };
        let listeners = Arc::new(["https".into()]);
        let labels = Labels::new(generation, listeners, config.rules.shared_names());
        let names = Rc::new(Names::new(Arc::new(names), engine.clone()));
        WorkerConfiguration { shared: Arc::new(shared), labels, names }
    }
}

/// A connection whose handshake is done.
pub struct Accepted {
    pub session: Box<Session>,
    pub http2: bool,
    /// The index of the rule, and of its host.
    pub rule: usize,
}

pub struct Edge {
    pub http: RefCell<Rc<Http>>,
    log: Rc<RefCell<Log>>,
    compress: Arc<SharedDictionaries>,
    /// By the client's port.
    pub accepted: RefCell<HashMap<u16, Accepted>>,
    /// The newest configuration has no rule for its clients.
    pub has_removed: Cell<bool>,
    /// Connections that have woken.
    pub woken: Cell<usize>,
    /// Those of them with an exchange or streams that rested.
    pub rested: Cell<usize>,
    /// Those of them whose upstreams are asked by HTTP/2.
    pub rested_shared: Cell<usize>,
}

impl Edge {
    pub fn new(setup: &Setup, engine: &Rc<Worker>, log: Log, has_removed: bool) -> Rc<Self> {
        let budget = &engine.process.budget;
        let compress = SharedDictionaries::start(&setup.configs[0], budget).unwrap();
        let configuration = setup.shared(1, has_removed, (&compress, engine));
        let log = Rc::new(RefCell::new(log));
        let http = Http::new(configuration, engine.clone(), log.clone());
        Rc::new(Self {
            http: RefCell::new(http),
            log,
            compress,
            accepted: RefCell::default(),
            has_removed: Cell::new(has_removed),
            woken: Cell::default(),
            rested: Cell::default(),
            rested_shared: Cell::default(),
        })
    }

    /// Serves by another configuration from now on.
    pub fn reload(&self, setup: &Setup, removes: bool) {
        let http = self.http.borrow().clone();
        self.has_removed.set(removes);
        let generation = http.shared.generation + 1;
        let configuration = setup.shared(generation, removes, (&self.compress, &http.engine));
        *self.http.borrow_mut() = http.reload(configuration);
    }

    fn begin(&self, handle: &Handle, mut info: ConnectionInfo) {
        let accepted = self.accepted.borrow_mut().remove(&info.client.port());
        let Accepted { session, http2, rule } = accepted.expect("a session for each connection");
        let protocol: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
        info.is_decided = true;
        info.decided = Decided {
            sni: Some(HOSTS[rule].into()),
            alpn: Alpn::new([protocol].iter()),
            alpn_whole: true,
            tls_version: Some(TLS13),
            http2,
            rule: Some(rule as u32),
            ..info.decided
        };
        let terminated = Terminated { session: *session, flow: Flow::default() };
        park::park(handle, &mut info, Relay::Terminate(terminated));
    }
}

fn names(config: &Arc<Config>) -> SharedNames {
    SharedNames {
        config: config.clone(),
        loops: Loops::new(&config.listeners, &[], None),
        evidence: EvidenceStore::new(config).unwrap(),
        upstreams: Arc::new(Table::new(config, 1, None)),
        // Each run has its own.
        budget: Arc::new(Budget::new(0, 0)),
        system: SystemDns::new(&config.dns),
    }
}

impl Program for Edge {
    fn labels(&self) -> Labels {
        self.http.borrow().labels.clone()
    }

    fn accepted(self: Rc<Self>, handle: Handle, info: ConnectionInfo) -> Task {
        Box::pin(async move { self.begin(&handle, info) })
    }

    fn woken(
        self: Rc<Self>,
        handle: Handle,
        info: ConnectionInfo,
        relay: Relay,
        counted: Counted,
    ) -> Task {
        self.woken.update(|woken| woken + 1);
        let is_shared = info.decided.sni.as_deref() == Some(HOSTS[1]) && relay.has_exchange();
        self.rested.update(|rested| rested + usize::from(relay.has_exchange()));
        self.rested_shared.update(|rested| rested + usize::from(is_shared));
        let Relay::Terminate(terminated) = relay else { panic!("the simulator has none") };
        let http = self.http.borrow().clone();
        crate::serve(http, WokenConnection { handle, info, counted }, terminated)
    }

    fn answer(&self, state: &mut [u8], bytes: &[u8], out: &mut Vec<u8>) -> usize {
        crate::answer_parked(state, bytes, out)
    }

    fn last_bytes(&self, kept: KeptExchanges<'_>) -> Vec<u8> {
        crate::last_bytes(kept)
    }

    fn close_upstreams(&self, resting: KeptExchanges<'_>, send: &mut dyn FnMut(usize, &[u8])) {
        crate::close_upstreams(resting, send);
    }

    fn rest_wait(&self, resting: KeptExchanges<'_>, settings: &Settings) -> Duration {
        crate::rest_wait(resting, settings)
    }

    fn upstream_bytes(&self, resting: KeptExchanges<'_>) -> usize {
        crate::upstream_bytes(resting)
    }

    fn end_resting(&self, info: ConnectionInfo, resting: KeptExchanges<'_>, end: &End) {
        crate::end_resting(self.http.borrow().clone(), info, resting, &end.reason);
    }

    fn pack_state(
        &self,
        decided: &Decided,
        state: &[u8],
        streams: (usize, usize),
    ) -> Option<PackedBytes> {
        let pieces = &self.http.borrow().engine.pieces;
        decided.http2.then(|| crate::pack_state(state, streams, pieces)).flatten()
    }

    fn reads_exchange(&self, decided: &Decided, exchange: &[u8], is_shared: bool) -> bool {
        !decided.http2 && crate::is_exchange(exchange, is_shared)
    }

    fn find_partners(&self, kept: &KeptStreams, found: &mut Partners) -> bool {
        crate::find_partners(kept, found)
    }

    fn detach_links(&self, kept: Vec<KeptStreams>) -> Option<DetachedLinks> {
        crate::detach_links(kept)
    }

    fn reads_links(
        &self,
        links: &[DetachedLink],
        connections: &[(KeptExchanges<'_>, &[StreamRef])],
    ) -> bool {
        let budget = &self.http.borrow().engine.process.budget;
        crate::reads_links(budget, links, connections)
    }

    fn attach_links(
        &self,
        links: Vec<DetachedLink>,
        connections: &[(Key, Vec<StreamRef>)],
    ) -> Vec<AttachedStreams> {
        let engine = self.http.borrow().engine.clone();
        crate::attach_links(&engine, links, connections)
    }

    fn ends_with_rule(&self, exchange: &[u8]) -> bool {
        crate::has_switched(exchange)
    }

    fn task_bytes(&self, decided: &Decided) -> usize {
        if decided.http2 { HTTP2_BYTES } else { 0 }
    }

    fn update(&self) -> Option<Update> {
        None
    }

    fn apply_update(&self) {}

    fn is_logging(&self) -> bool {
        true
    }

    fn log(&self, info: &ConnectionInfo, end: &End) {
        let measured = info.measured(self.http.borrow().engine.now_unix_ms());
        self.log.borrow_mut().line(&info.decided, &measured, end, None);
    }

    fn flush_log(&self, _: i64) {
        self.log.borrow_mut().flush();
    }

    fn tick(&self) {
        let http = self.http.borrow();
        http.compressors.recount();
        let budget = http.engine.process.budget.clone();
        drop(http);
        crate::forget_unused(&budget);
    }

    fn is_resting(&self) -> bool {
        self.http.borrow().compressors.is_idle()
    }

    fn release_caches(&self) {
        self.http.borrow().compressors.rest();
    }

    fn close(&self) {
        self.http.borrow().pool.close();
    }
}
