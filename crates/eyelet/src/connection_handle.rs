//! An active connection: the event loop's handle on it, and the worker that serves it.

use std::rc::Rc;

pub use eyelet_engine::handle::WaitError;
use eyelet_engine::worker::Handle;

use crate::worker::Worker;

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
}
