//! What HTTP owns of a process, and of each of its workers: upstreams, compressors, the log.
//! It must not know a connection.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use eyelet_config::Config;
use eyelet_engine::worker::Worker;
use eyelet_resolve::names::Names;
use eyelet_telemetry::info::{Decided, End, Measured};
use eyelet_telemetry::labels::Labels;
use eyelet_telemetry::log::Log;
use eyelet_telemetry::request::RequestInfo;
use eyelet_tls::client::ClientConfigs;
use eyelet_tls::server::ServerConfigs;

use crate::compress::{self, Compressors};
use crate::pool::UpstreamPool;
use crate::upstream::dial::Dialler;

/// What all workers share under one configuration.
pub struct SharedHttp {
    /// Which configuration it is: larger than those before it.
    pub generation: u64,
    /// The first configuration that had the same rules and listeners. A verdict of any since then
    /// holds, and so does the index of its rule.
    pub rules_since: u64,
    /// The checked configuration.
    pub config: Arc<Config>,
    /// TLS configurations for https:// upstreams.
    pub upstream_tls: Arc<ClientConfigs>,
    /// TLS configurations for clients.
    pub server_tls: Arc<ServerConfigs>,
    /// Dictionaries.
    pub compress: Arc<compress::SharedDictionaries>,
    /// The rules that they may be of.
    pub rule_names: Arc<compress::DictionaryRules>,
}

/// What one worker has of its own, and one configuration that it serves by.
pub struct Http {
    /// What all workers share.
    pub shared: Arc<SharedHttp>,
    /// What access lines call rules and listeners.
    pub labels: Labels,
    /// Its event loop.
    pub engine: Rc<Worker>,
    /// What dials upstreams.
    pub dialler: Dialler,
    /// Idle connections to upstreams.
    pub pool: Rc<UpstreamPool>,
    /// Its compressors.
    pub compressors: Compressors,
    log: Rc<RefCell<Log>>,
    newest: Rc<Newest>,
}

/// The configuration by which the next request of every connection is served.
#[derive(Default)]
struct Newest {
    generation: Cell<u64>,
    http: RefCell<Weak<Http>>,
}

impl Http {
    /// Nobody is dialled yet.
    pub fn new(
        shared: Arc<SharedHttp>,
        labels: Labels,
        engine: Rc<Worker>,
        names: Rc<Names>,
        log: Rc<RefCell<Log>>,
    ) -> Rc<Self> {
        let compressors =
            Compressors::new(&shared.config, &shared.compress, &engine.process.budget);
        let dialler = Dialler {
            engine: engine.clone(),
            names,
            tls: shared.upstream_tls.clone(),
            connect_timeout: shared.config.limits.connect_timeout,
        };
        let (pool, newest) = (Rc::default(), Rc::default());
        Self { shared, labels, engine, dialler, pool, compressors, log, newest }.publish()
    }

    /// The same under another configuration, by which new requests are served from now on.
    pub fn reload(&self, shared: Arc<SharedHttp>, labels: Labels, names: Rc<Names>) -> Rc<Self> {
        let dialler = Dialler {
            engine: self.engine.clone(),
            names,
            tls: shared.upstream_tls.clone(),
            connect_timeout: shared.config.limits.connect_timeout,
        };
        self.pool.forget_unused();
        let http = Self {
            labels,
            engine: self.engine.clone(),
            dialler,
            pool: self.pool.clone(),
            compressors: self.compressors.reloaded(shared.rule_names.clone()),
            log: self.log.clone(),
            newest: self.newest.clone(),
            shared,
        };
        http.publish()
    }

    fn publish(self) -> Rc<Self> {
        let http = Rc::new(self);
        http.newest.generation.set(http.shared.generation);
        *http.newest.http.borrow_mut() = Rc::downgrade(&http);
        http
    }

    /// What serves by the newest configuration, if that is not this.
    pub fn newer(&self) -> Option<Rc<Self>> {
        if self.newest.generation.get() == self.shared.generation {
            return None;
        }
        self.newest.http.borrow().upgrade()
    }

    /// Whether anybody reads the access log.
    pub fn is_logging(&self) -> bool {
        self.log.borrow().is_on()
    }

    /// Writes the access line of a request on a connection that goes on.
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
