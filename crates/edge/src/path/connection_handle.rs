//! An active connection: the event loop's handle on it, and the worker that serves it.

use std::rc::Rc;

use eyelet_config::ListenerKind;
use eyelet_engine::worker::Handle;
pub use eyelet_engine::worker::WaitError;
use eyelet_telemetry::info::ConnectionInfo;

use crate::snapshot::worker::Worker;

/// A connection whose bytes its future moves. Dropping the handle closes it.
pub struct ConnectionHandle {
    /// The worker it lives on.
    pub worker: Rc<Worker>,
    /// Its handle in the event loop.
    pub handle: Handle,
}

impl ConnectionHandle {
    /// The connection of this handle.
    pub fn new(worker: Rc<Worker>, handle: Handle) -> Self {
        Self { worker, handle }
    }

    /// Whether the client came without TLS. Asked where it is needed: kept over the waits of a
    /// connection it would make each task larger.
    pub fn is_plain(&self, info: &ConnectionInfo) -> bool {
        let listeners = &self.worker.snapshot.config.listeners;
        listeners[usize::from(info.decided.listener)].kind == ListenerKind::Plain
    }

    /// Whether an alert means something to the client: it speaks TLS, and waits for nothing else.
    pub fn takes_alert(&self, info: &ConnectionInfo) -> bool {
        !info.owes_answer && !self.is_plain(info)
    }
}
