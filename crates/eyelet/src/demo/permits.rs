//! Accepting with a bound, for both of the demo's servers.
//! Must not know what a connection is for.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long to wait when accept fails: out of descriptors is over when somebody closes one,
/// and trying again at once would burn a core meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// So many connections at a time; the next wait in the kernel's queue.
#[derive(Debug)]
pub struct ConnectionPermits {
    free: Arc<Semaphore>,
}

impl ConnectionPermits {
    /// At most `connections_max` at a time.
    #[must_use]
    pub fn new(connections_max: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(connections_max)) }
    }

    /// Waits for a turn and then for a connection. The turn ends when the permit is dropped.
    pub async fn accept(
        &self,
        listener: &TcpListener,
    ) -> (TcpStream, Option<OwnedSemaphorePermit>) {
        // The semaphore is never closed, so there is always a permit in the end.
        let permit = Arc::clone(&self.free).acquire_owned().await.ok();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return (stream, permit),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}
