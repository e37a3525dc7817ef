//! Room in a process for what is about to be placed there.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::worker::Process;

/// A share of the limits of a process, before a connection has its slot or a link its task.
pub struct Room {
    process: Arc<Process>,
    connections: usize,
    descriptors: usize,
}

impl Room {
    pub(crate) fn take(process: &Arc<Process>, connections: usize, descriptors: usize) -> Self {
        process.open.fetch_add(connections, Relaxed);
        process.descriptors.fetch_add(descriptors, Relaxed);
        Self { process: process.clone(), connections, descriptors }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.process.open.fetch_sub(self.connections, Relaxed);
        self.process.descriptors.fetch_sub(self.descriptors, Relaxed);
    }
}
