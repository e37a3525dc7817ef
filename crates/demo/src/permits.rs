//! Accepts connections up to a limit, for the demo's servers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The pause after accept fails: descriptors become free when a connection closes, and retrying at
/// once would burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A limit on connections at a time. Later ones wait in the kernel's queue.
#[derive(Debug)]
pub(crate) struct ConnectionPermits {
    free: Arc<Semaphore>,
}

impl ConnectionPermits {
    /// Permits at most `connections_max` connections at a time.
    pub(crate) fn new(connections_max: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(connections_max)) }
    }

    /// Waits for a permit, then for a connection. Dropping the permit frees it.
    pub(crate) async fn accept<T>(
        &self,
        accept: impl AsyncFn() -> io::Result<T>,
    ) -> (T, Option<OwnedSemaphorePermit>) {
        // The semaphore is never closed, so this always returns a permit.
        let permit = Arc::clone(&self.free).acquire_owned().await.ok();
        loop {
            match accept().await {
                Ok(connection) => return (connection, permit),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}
