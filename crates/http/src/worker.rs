//! What HTTP owns of a process, and of each of its workers: upstreams, compressors, the log.
//! It must not know a connection.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use eyelet_config::Config;
use eyelet_engine::worker::Worker;
use eyelet_resolve::names::Names;
use eyelet_telemetry::info::{Decided, End, Measured};
use eyelet_telemetry::log::Log;
use eyelet_telemetry::request::RequestInfo;
use eyelet_tls::client::ClientConfigs;

use crate::compress::{self, Compressors};
use crate::pool::UpstreamPool;
use crate::upstream::dial::Dialler;

/// What all workers share.
pub struct SharedHttp {
    /// The checked configuration.
    pub config: Arc<Config>,
    /// TLS configurations for https:// upstreams.
    pub upstream_tls: Arc<ClientConfigs>,
    /// Dictionaries.
    pub compress: Arc<compress::SharedDictionaries>,
}

/// What one worker has of its own.
pub struct Http {
    /// What all workers share.
    pub shared: Arc<SharedHttp>,
    /// Its event loop.
    pub engine: Rc<Worker>,
    /// What dials upstreams.
    pub dialler: Dialler,
    /// Idle connections to upstreams.
    pub pool: Rc<UpstreamPool>,
    /// Its compressors.
    pub compressors: Compressors,
    log: Rc<RefCell<Log>>,
}

impl Http {
    /// Nobody is dialled yet.
    pub fn new(
        shared: Arc<SharedHttp>,
        engine: Rc<Worker>,
        names: Rc<Names>,
        log: Rc<RefCell<Log>>,
    ) -> Self {
        let compressors =
            Compressors::new(&shared.config, &shared.compress, &engine.process.budget);
        let dialler = Dialler {
            engine: engine.clone(),
            names,
            tls: shared.upstream_tls.clone(),
            connect_timeout: shared.config.limits.connect_timeout,
        };
        Self { shared, engine, dialler, pool: Rc::default(), compressors, log }
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
        log.line(&self.shared.config, decided, measured, end, Some(request));
    }
}
