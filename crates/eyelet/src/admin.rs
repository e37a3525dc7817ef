//! What the admin server answers: it reads what workers and sources count, on its own thread.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use eyelet_admin::metrics::{MetricKind, Metrics};
use eyelet_admin::{AdminError, AdminServer, Answers, Document, Start};
use eyelet_config::AdminSettings;
use eyelet_engine::listing::Connections;
use eyelet_telemetry::counters;
use eyelet_telemetry::listing::{Filter, Slice};
use serde_json::Value;
use tokio::sync::mpsc::Receiver;

use crate::published::Published;
use crate::snapshot::Snapshot;

/// The admin server of an edge, if its configuration has one.
pub struct AdminKeeper {
    server: Mutex<Option<AdminServer>>,
    answers: Arc<EdgeAnswers>,
}

impl AdminKeeper {
    /// Not open yet.
    pub fn new(published: &Arc<Published>, connections: Connections) -> Self {
        let answers = EdgeAnswers {
            // The access log ends with the last `Published`: the thread must not be who holds it.
            published: Arc::downgrade(published),
            is_draining: AtomicBool::new(false),
            connections,
        };
        Self { server: Mutex::default(), answers: Arc::new(answers) }
    }

    /// Begins to answer, as the newest configuration says.
    ///
    /// # Errors
    /// [`AdminError`].
    pub fn open(&self, start: Start) -> Result<(), AdminError> {
        let snapshot = self.answers.snapshot();
        let settings = snapshot.as_ref().and_then(|snapshot| snapshot.config.admin.as_ref());
        let answers = self.answers.clone();
        let server = settings.map(|settings| AdminServer::start(settings, answers, start));
        *self.server() = server.transpose()?;
        Ok(())
    }

    /// Goes on by a new configuration.
    ///
    /// # Errors
    /// [`AdminError`]. Nothing has changed then.
    pub fn configure(&self, settings: Option<&AdminSettings>) -> Result<(), AdminError> {
        let mut server = self.server();
        let kept = match (&mut *server, settings) {
            (Some(server), Some(settings)) => server.keeps(settings)?,
            (None, None) => true,
            _ => false,
        };
        if !kept {
            let answers = self.answers.clone();
            let start = |settings| AdminServer::start(settings, answers, Start::Alone);
            *server = settings.map(start).transpose()?;
        }
        Ok(())
    }

    /// Answers nothing any more.
    pub fn close(&self) {
        *self.server() = None;
    }

    /// From now on the process is not ready for new connections.
    pub fn note_draining(&self) {
        self.answers.is_draining.store(true, Relaxed);
    }

    fn server(&self) -> MutexGuard<'_, Option<AdminServer>> {
        // A poisoned lock still holds a whole value.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the server asks.
struct EdgeAnswers {
    published: Weak<Published>,
    is_draining: AtomicBool,
    connections: Connections,
}

impl EdgeAnswers {
    fn snapshot(&self) -> Option<Arc<Snapshot>> {
        Some(self.published.upgrade()?.snapshot())
    }
}

impl Answers for EdgeAnswers {
    fn is_ready(&self) -> bool {
        !self.is_draining.load(Relaxed)
    }

    fn metrics(&self, metrics: &mut Metrics) {
        let counted = counters::snapshot();
        metrics.counter("accepted_connections", "Connections accepted.", counted.accepted);
        let help = "Connections open now, by state.";
        let mut family = metrics.family(MetricKind::Gauge, "connections", help);
        family.sample(&[("state", "parked")], counted.parked);
        family.sample(&[("state", "active")], counted.connections.saturating_sub(counted.parked));
    }

    fn connections(&self, filter: Filter, ends: bool) -> Option<Receiver<Slice>> {
        self.connections.ask(filter, ends)
    }

    fn document(&self, _document: Document) -> Option<Value> {
        self.snapshot().map(|_| Value::Null)
    }
}
