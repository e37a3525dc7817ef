//! The HTTP state of the process and of each worker: upstreams, compressors, the access log.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use eyelet_config::Config;
use eyelet_engine::worker::Worker;
use eyelet_hold::Holds;
use eyelet_recoding::{Compressors, DictionaryRules, SharedDictionaries};
use eyelet_resolve::names::Names;
use eyelet_secrets::Secrets;
use eyelet_telemetry::info::{Decided, End, Measured};
use eyelet_telemetry::labels::Labels;
use eyelet_telemetry::log::Log;
use eyelet_telemetry::request::RequestInfo;
use eyelet_telemetry::rule_hits::RuleHits;
use eyelet_tls::client::ClientConfigs;
use eyelet_tls::server::ServerConfigs;
use eyelet_trace::tracer::Tracer;

use eyelet_upstream::dial::Dialler;
use eyelet_upstream::pool::UpstreamPool;

/// The part that all workers share under one configuration.
#[derive(Clone)]
pub struct SharedHttp {
    /// The generation of the configuration; each is larger than the one before.
    pub generation: u64,
    /// The first generation with the same rules and listeners. Verdicts since then stay valid, and
    /// so do their rule indexes.
    pub rules_since: u64,
    /// The checked configuration.
    pub config: Arc<Config>,
    /// TLS configurations for https:// upstreams.
    pub upstream_tls: Arc<ClientConfigs>,
    /// TLS configurations for clients.
    pub server_tls: Arc<ServerConfigs>,
    pub compress: Arc<SharedDictionaries>,
    /// The rules that may have dictionaries.
    pub rule_names: Arc<DictionaryRules>,
    pub trace: Option<Arc<Tracer>>,
    /// Secrets that clients have placeholders of, if there are any.
    pub secrets: Option<Arc<Secrets>>,
    /// Requests and connections that are held, and the verdicts.
    pub holds: Arc<Holds>,
    /// Counts the decisions of each rule, if somebody asks for them.
    pub hits: Option<Arc<RuleHits>>,
}

/// The HTTP state of one worker under one configuration.
pub struct Http {
    /// The part that all workers share.
    pub shared: Arc<SharedHttp>,
    /// The names of rules and listeners for access lines.
    pub labels: Labels,
    /// Its event loop.
    pub engine: Rc<Worker>,
    /// Dials upstreams.
    pub dialler: Rc<Dialler>,
    /// Idle connections to upstreams.
    pub pool: Rc<UpstreamPool>,
    pub compressors: Compressors,
    log: Rc<RefCell<Log>>,
    current: Rc<CurrentHttp>,
}

/// The configuration that serves the next request of every connection.
#[derive(Default)]
pub struct CurrentHttp {
    generation: Cell<u64>,
    http: RefCell<Weak<Http>>,
}

impl CurrentHttp {
    /// The state under that configuration, while the worker serves.
    pub fn http(&self) -> Option<Rc<Http>> {
        self.http.borrow().upgrade()
    }
}

/// One configuration, as a worker has it.
pub struct WorkerConfiguration {
    /// The part that all workers share.
    pub shared: Arc<SharedHttp>,
    /// The names of rules and listeners for access lines.
    pub labels: Labels,
    /// Resolves the names of upstreams.
    pub names: Rc<Names>,
}

impl WorkerConfiguration {
    fn dialler(&self, engine: &Rc<Worker>) -> Rc<Dialler> {
        Rc::new(Dialler {
            engine: engine.clone(),
            names: self.names.clone(),
            tls: self.shared.upstream_tls.clone(),
            connect_timeout: self.shared.config.limits.connect_timeout,
        })
    }
}

impl Http {
    /// The state of a worker without upstream connections.
    pub fn new(
        configuration: WorkerConfiguration,
        engine: Rc<Worker>,
        log: Rc<RefCell<Log>>,
    ) -> Rc<Self> {
        let dialler = configuration.dialler(&engine);
        let WorkerConfiguration { shared, labels, .. } = configuration;
        let compressors =
            Compressors::new(&shared.config, &shared.compress, &engine.process.budget);
        let (pool, current) = (Rc::default(), Rc::default());
        Self { shared, labels, engine, dialler, pool, compressors, log, current }.publish()
    }

    /// Returns the worker under another configuration, which serves new requests from now on.
    pub fn reload(&self, configuration: WorkerConfiguration) -> Rc<Self> {
        self.pool.forget_unused();
        let dialler = configuration.dialler(&self.engine);
        let WorkerConfiguration { shared, labels, .. } = configuration;
        let http = Self {
            labels,
            engine: self.engine.clone(),
            dialler,
            pool: self.pool.clone(),
            compressors: self.compressors.reloaded(shared.rule_names.clone()),
            log: self.log.clone(),
            current: self.current.clone(),
            shared,
        };
        http.publish()
    }

    /// Counts a request at a rule that has not decided its connection.
    pub fn count_decision(&self, rule: u32) {
        if let Some(hits) = &self.shared.hits {
            hits.hit(self.engine.index(), rule, self.engine.now_unix_ns());
        }
    }

    /// Counts a request that got 403 by a rule, or because no rule took it.
    pub fn count_refused_request(&self, rule: Option<u32>) {
        if let Some(hits) = &self.shared.hits {
            hits.refuse_request(self.engine.index(), rule);
        }
    }

    fn publish(self) -> Rc<Self> {
        let http = Rc::new(self);
        http.current.generation.set(http.shared.generation);
        *http.current.http.borrow_mut() = Rc::downgrade(&http);
        http
    }

    /// Returns the cell of the newest configuration.
    pub fn current(&self) -> Rc<CurrentHttp> {
        self.current.clone()
    }

    /// The state under the newest configuration, if that is not this one.
    pub fn newer(&self) -> Option<Rc<Self>> {
        if self.current.generation.get() == self.shared.generation {
            return None;
        }
        self.current.http.borrow().upgrade()
    }

    /// True if there is an access log.
    pub fn is_logging(&self) -> bool {
        self.log.borrow().is_on()
    }

    /// Writes the access line of a request on a connection that stays open.
    pub fn emit_request(
        &self,
        decided: &Decided,
        measured: &Measured,
        end: &End,
        request: &RequestInfo<'_>,
    ) {
        let mut log = self.log.borrow_mut();
        log.line(decided, measured, end, Some(request));
    }
}
