//! What simulations and tests begin with, also those of other crates: a bare worker without a
//! program and without listeners, its steps, hellos, bytes that can be checked, and TLS ends.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

pub mod leaving;
pub mod stepper;
pub mod stream;
pub mod tls;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use eyelet_memory::budget::Budget;
use eyelet_wire::record::{HANDSHAKE, RecordHeader};
use eyelet_wire::version::TLS10;

use crate::worker::{Process, Settings, Worker};

/// Memory of its connections.
const MEMORY_BYTES: usize = 64 << 20;

/// Limits that no test reaches by accident. Those of what rests are the configuration's defaults,
/// which the tasks of its exchanges go by.
pub const SETTINGS: Settings = Settings {
    idle_timeout: Duration::from_secs(300),
    state_idle_timeout: Duration::from_secs(300),
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

/// The same with other limits.
pub fn worker_with(settings: Settings, memory_bytes: usize) -> Rc<Worker> {
    worker_in(settings, &Arc::new(Budget::new(memory_bytes, 0)))
}

/// A worker of a process of its own, which counts its memory here.
pub fn worker_in(settings: Settings, budget: &Arc<Budget>) -> Rc<Worker> {
    let process = Process::new(budget.clone());
    // Not the first worker, which returns the memory of code that is not needed any more.
    Rc::new(Worker::new(1, settings, Arc::new(process), Arc::default()).unwrap())
}

/// A ClientHello (RFC 8446 section 4.1.2) in one record, with no extension but `server_name`.
pub fn client_hello(name: Option<&str>) -> Vec<u8> {
    let sized = |items: &[u8]| [&(items.len() as u16).to_be_bytes(), items].concat();
    let sni = name.map(|name| {
        let host_name = [&[0][..], &sized(name.as_bytes())].concat();
        [&[0, 0][..], &sized(&sized(&host_name))].concat()
    });
    let before = [&[3, 3][..], &[0x5a; 32], &[32], &[0x5b; 32]].concat();
    let suites = sized(&[0x13, 0x01]);
    let body = [&before[..], &suites, &[1, 0], &sized(&sni.unwrap_or_default())].concat();
    let message = [&[1, 0][..], &sized(&body)].concat();
    let len = message.len() as u16;
    let header = RecordHeader { content_type: HANDSHAKE, version: TLS10, len };
    [&header.to_bytes()[..], &message].concat()
}
