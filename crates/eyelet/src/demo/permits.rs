//! Accepts connections up to a limit, for both servers of the demo.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long to wait after accept fails: descriptors become free when a connection closes, and
/// retrying at once would burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A limit on connections at a time. Later ones wait in the kernel's queue.
#[derive(Debug)]
pub struct ConnectionPermits {
    free: Arc<Semaphore>,
}

impl ConnectionPermits {
    /// At most `connections_max` connections at a time.
    #[must_use]
    pub fn new(connections_max: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(connections_max)) }
    }

    /// Waits for a permit, then for a connection. Dropping the permit frees it.
    pub async fn accept(
        &self,
        listener: &TcpListener,
    ) -> (TcpStream, Option<OwnedSemaphorePermit>) {
        // The semaphore is never closed, so this always returns a permit.
        let permit = Arc::clone(&self.free).acquire_owned().await.ok();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return (stream, permit),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}
