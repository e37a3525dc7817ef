//! The edge as one worker has it under one configuration. A reload makes another value for the same
//! event loop.

use std::cell::RefCell;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use eyelet_engine::worker as engine;
use eyelet_engine::worker::rates::HandshakeRates;
use eyelet_resolve::names::Names;
use eyelet_telemetry::counters::Counters;
use eyelet_telemetry::labels::Labels;
use eyelet_telemetry::log::Log;

use crate::snapshot::Snapshot;
use eyelet_downstream::connection::worker::{Http, WorkerConfiguration};

/// The edge of a worker under one configuration. An active connection holds it; a parked one does
/// not.
pub struct Edge {
    /// The configuration.
    pub snapshot: Arc<Snapshot>,
    /// The worker's event loop.
    pub engine: Rc<engine::Worker>,
    /// Its DNS and evidence.
    pub names: Rc<Names>,
    pub http: Rc<Http>,
    /// The access log.
    pub log: Rc<RefCell<Log>>,
    /// The one that decides from now on. All of one event loop share it.
    successor: Rc<RefCell<Weak<Self>>>,
}

impl Edge {
    /// An edge without connections.
    pub fn new(
        index: u16,
        snapshot: Arc<Snapshot>,
        log: Log,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let (settings, process) = (snapshot.settings, snapshot.process.clone());
        let engine = Rc::new(engine::Worker::new(index, settings, process, counters)?);
        let names = Rc::new(Names::new(snapshot.names.clone(), engine.clone()));
        let log = Rc::new(RefCell::new(log));
        let http = Http::new(configuration(&snapshot, &names), engine.clone(), log.clone());
        Ok(Self { snapshot, engine, names, http, log, successor: Rc::default() })
    }

    /// The edge under a new configuration.
    #[must_use]
    pub fn reloaded(&self, snapshot: Arc<Snapshot>) -> Self {
        let names = Rc::new(self.names.reloaded(snapshot.names.clone()));
        let http = self.http.reload(configuration(&snapshot, &names));
        let (engine, log) = (self.engine.clone(), self.log.clone());
        Self { snapshot, engine, names, http, log, successor: self.successor.clone() }
    }

    /// Makes this the one that decides from now on.
    #[must_use]
    pub fn publish(self) -> Rc<Self> {
        let edge = Rc::new(self);
        *edge.successor.borrow_mut() = Rc::downgrade(&edge);
        edge
    }

    /// The edge under the newest configuration, if that is not this one.
    pub fn newer(&self) -> Option<Rc<Self>> {
        let successor = self.successor.borrow().upgrade();
        successor.filter(|successor| successor.snapshot.generation != self.snapshot.generation)
    }

    /// Handshakes a second.
    pub fn rates(&self) -> HandshakeRates {
        let limits = &self.snapshot.config.limits;
        HandshakeRates {
            process: limits.handshakes_per_second,
            source: limits.source_handshakes_per_second,
        }
    }

    /// The names of its rules and listeners for access lines.
    pub fn labels(&self) -> &Labels {
        &self.http.labels
    }
}

fn configuration(snapshot: &Snapshot, names: &Rc<Names>) -> WorkerConfiguration {
    WorkerConfiguration {
        shared: snapshot.http.clone(),
        labels: snapshot.labels(),
        names: names.clone(),
    }
}
