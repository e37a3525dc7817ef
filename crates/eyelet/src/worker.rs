//! What one worker of the program owns: the event loop's part, and what serves its connections.
//! It must not know how a connection is served.

use std::cell::RefCell;
use std::io;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use eyelet_config::Config;
use eyelet_engine::worker as engine;
use eyelet_memory::budget::Budget;
use eyelet_resolve::names::{Names, SharedNames};
use eyelet_telemetry::counters::Counters;
use eyelet_telemetry::log::Log;

use eyelet_http::worker::{Http, SharedHttp};
use eyelet_tls::server::ServerConfigs;

/// What all workers share.
pub struct Edge {
    /// The checked configuration.
    pub config: Arc<Config>,
    /// What looks names up and believes them.
    pub names: Arc<SharedNames>,
    /// TLS configurations by rule.
    pub tls: ServerConfigs,
    /// What HTTP shares.
    pub http: Arc<SharedHttp>,
    /// What connections hold in memory, in all workers.
    pub budget: Arc<Budget>,
    /// What the event loops share.
    pub process: Arc<engine::Process>,
}

/// One worker.
pub struct Worker {
    /// What all share.
    pub edge: Arc<Edge>,
    /// Its event loop.
    engine: Rc<engine::Worker>,
    /// Its part of what looks names up.
    pub names: Rc<Names>,
    /// Its part of HTTP.
    pub http: Rc<Http>,
    /// The access log.
    pub log: Rc<RefCell<Log>>,
}

impl Worker {
    /// A worker with nothing to do yet.
    pub fn new(index: u16, edge: Arc<Edge>, log: Log, counters: Arc<Counters>) -> io::Result<Self> {
        let engine = Rc::new(engine::Worker::new(index, edge.process.clone(), counters)?);
        let names = Rc::new(Names::new(edge.names.clone(), engine.clone()));
        let log = Rc::new(RefCell::new(log));
        let http =
            Rc::new(Http::new(edge.http.clone(), engine.clone(), names.clone(), log.clone()));
        Ok(Self { engine, edge, names, http, log })
    }

    /// Its event loop.
    pub fn engine(&self) -> &Rc<engine::Worker> {
        &self.engine
    }
}

/// Whatever the event loop offers, its program may ask of its worker.
impl Deref for Worker {
    type Target = Rc<engine::Worker>;

    fn deref(&self) -> &Rc<engine::Worker> {
        &self.engine
    }
}
