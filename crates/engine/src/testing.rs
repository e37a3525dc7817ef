//! A bare worker for tests: without a program and without listeners.
#![allow(clippy::unwrap_used)]

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use eyelet_memory::budget::Budget;

use crate::worker::{Process, Settings, Worker};

/// Memory of its connections.
const MEMORY_BYTES: usize = 64 << 20;

/// Limits that no test reaches by accident.
pub const SETTINGS: Settings = Settings {
    idle_timeout: Duration::from_secs(300),
    state_idle_timeout: Duration::from_secs(300),
    shed_idle: false,
    drain_timeout: Duration::from_secs(1),
    connections_max: 1_000,
    descriptors_max: 1_000,
    may_list: true,
};

/// A worker without a program.
pub fn worker() -> Rc<Worker> {
    worker_with(SETTINGS, MEMORY_BYTES)
}

/// The same with other limits.
pub fn worker_with(settings: Settings, memory_bytes: usize) -> Rc<Worker> {
    let process = Process::new(Arc::new(Budget::new(memory_bytes, 0)));
    // Not the first worker, which returns the memory of code that is not needed any more.
    Rc::new(Worker::new(1, settings, Arc::new(process), Arc::default()).unwrap())
}
