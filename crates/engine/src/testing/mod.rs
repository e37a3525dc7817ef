//! The scene of simulations and tests, also of those of other crates: a bare worker without a
//! program and without listeners, its steps, bytes that can be checked, and TLS ends.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

pub mod any_message;
pub mod flows;
pub mod leaving;
pub mod stepper;
pub mod stream;
pub mod tls;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use eyelet_memory::budget::Budget;

use crate::worker::{Process, Settings, Worker};

/// The methods of a program of tests that has no configuration, no clock and no caches.
#[cfg(test)]
macro_rules! plain_program {
    () => {
        fn update(&self) -> Option<crate::worker::Update> {
            None
        }

        fn is_resting(&self) -> bool {
            true
        }

        fn apply_update(&self) {}
        fn flush_log(&self, _: i64) {}
        fn tick(&self) {}
        fn release_caches(&self) {}
        fn close(&self) {}
    };
}
#[cfg(test)]
pub(crate) use plain_program;

/// Memory of its connections.
const MEMORY_BYTES: usize = 64 << 20;

/// Limits that no test reaches by accident. Those of what rests are the configuration's defaults,
/// which the tasks of its exchanges go by.
pub const SETTINGS: Settings = Settings {
    idle_timeout: Duration::from_secs(300),
    state_idle_timeout: Duration::from_secs(300),
    quic_idle_timeout: Duration::from_secs(60),
    body_timeout: Duration::from_secs(60),
    upstream_timeout: Duration::from_secs(60),
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

/// Returns a worker with other limits.
pub fn worker_with(settings: Settings, memory_bytes: usize) -> Rc<Worker> {
    worker_in(settings, &Arc::new(Budget::new(memory_bytes, 0)))
}

/// A worker of a process of its own, which counts its memory here.
pub fn worker_in(settings: Settings, budget: &Arc<Budget>) -> Rc<Worker> {
    let process = Process::new(budget.clone());
    // Not the first worker, which returns the memory of code that is not needed any more.
    Rc::new(Worker::new(1, settings, Arc::new(process), Arc::default()).unwrap())
}
