//! What one worker of the program owns: the event loop's part, and what serves its connections.
//! It must not know how a connection is served.

use std::cell::RefCell;
use std::io;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use eyelet_config::Config;
use eyelet_engine::relay::Relay;
use eyelet_engine::worker as engine;
use eyelet_engine::worker::Handle;
use eyelet_engine::worker::{Program, Task};
use eyelet_memory::budget::{Budget, Counted};
use eyelet_resolve::names::{Names, SharedNames};
use eyelet_telemetry::counters::Counters;
use eyelet_telemetry::info::{End, Story};
use eyelet_telemetry::log::Log;

use crate::act::terminate;
use crate::active::Active;
use crate::connection::connection;
use eyelet_http::head;
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
    log: Rc<RefCell<Log>>,
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

impl Program for Worker {
    fn accepted(self: Rc<Self>, handle: Handle, info: Story) -> Task {
        Box::pin(connection(Active::new(self, handle), info))
    }

    fn woken(self: Rc<Self>, handle: Handle, info: Story, relay: Relay, counted: Counted) -> Task {
        Box::pin(terminate::dial_later(Active::new(self, handle), info, relay, counted))
    }

    fn is_logging(&self) -> bool {
        self.log.borrow().is_on()
    }

    fn log(&self, info: &Story, end: &End) {
        let measured = info.measured(self.now_unix_ms());
        let mut log = self.log.borrow_mut();
        log.line(&self.edge.config, &info.decided, &measured, end, None);
    }

    fn flush_log(&self, ahead_ms: i64) {
        let mut log = self.log.borrow_mut();
        log.follow(ahead_ms);
        log.flush();
    }

    fn tick(&self) {
        self.http.compressors.recount();
    }

    fn is_resting(&self) -> bool {
        self.http.compressors.is_idle()
    }

    fn release_caches(&self) {
        self.http.compressors.rest();
        head::forget_given_back();
    }

    fn close(&self) {
        self.http.pool.close();
    }
}
