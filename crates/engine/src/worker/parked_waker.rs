//! Wakes a parked connection when something comes for one of its streams that has no own socket.

use std::rc::{Rc, Weak};

use eyelet_memory::slab::Key;

use crate::worker::{Handle, Worker};

/// Wakes one connection, once. Another one that has its slot by then is left alone: its key is
/// another. A worker that has ended is not kept by it.
#[derive(Debug)]
pub struct ParkedWaker {
    worker: Weak<Worker>,
    key: Key,
}

impl ParkedWaker {
    /// A waker for the connection with this key, which is parked.
    pub fn new(worker: &Rc<Worker>, key: Key) -> Self {
        Self { worker: Rc::downgrade(worker), key }
    }

    /// The key of the connection.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Has the program go on with the connection in the next iteration, if it is parked with shared
    /// streams then.
    pub fn wake(self) {
        // Nothing of the table is touched: its streams are dropped while it is borrowed.
        if let Some(worker) = self.worker.upgrade() {
            worker.run_queue.push_called(self.key);
        }
    }
}

impl Handle {
    /// Returns a waker for the connection. It acts once the connection is parked.
    pub fn parked_waker(&self) -> ParkedWaker {
        ParkedWaker::new(&self.worker, self.key)
    }
}
