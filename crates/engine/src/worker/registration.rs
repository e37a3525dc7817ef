//! The registration of a socket that belongs to no single connection: an upstream's, which many
//! connections may share.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use crate::worker::Worker;
use eyelet_memory::slab::Key;
use eyelet_sys::memory::long_rc::LongRc;
use eyelet_table::SharedSocket;

/// The registration of one socket, as long as this lives.
pub struct Registration {
    /// The worker whose epoll it is.
    pub worker: Rc<Worker>,
    /// Readiness of the socket, and the task that waits for it.
    pub socket_state: LongRc<SharedSocket>,
    key: Key,
}

impl Registration {
    /// Registers a socket that does not block. It counts as writable until a write has failed.
    ///
    /// # Errors
    /// The kernel's: it takes no more descriptors to watch.
    pub fn new(worker: &Rc<Worker>, socket: impl AsFd) -> io::Result<Self> {
        let (key, socket_state) = worker.table.borrow_mut().register_shared(socket)?;
        Ok(Self { worker: worker.clone(), socket_state, key })
    }

    /// Ends the registration of a socket that stays open.
    ///
    /// # Errors
    /// The kernel's.
    pub fn end(self, socket: OwnedFd) -> io::Result<OwnedFd> {
        self.worker.table.borrow().epoll.remove(&socket)?;
        Ok(socket)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.worker.table.borrow_mut().unregister_shared(self.key);
    }
}
