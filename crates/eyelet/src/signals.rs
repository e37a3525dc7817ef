//! What the operator says to a running edge by signals, and what the edge says unasked.
//! It must not know what a drain does.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::counters;
use crate::overflows::Overflows;
use crate::serve::Running;

/// How often the workers and the kernel's counts are looked at.
const WATCH: Duration = Duration::from_secs(1);

/// The signals that are listened to. Made before anything else, so that none meets the default
/// action, which is to end the process.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    accounts: Signal,
}

impl Signals {
    /// Takes the signals over. Within a tokio runtime.
    ///
    /// # Errors
    /// If the system has no more handlers to give.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            accounts: signal(SignalKind::user_defined1())?,
        })
    }

    /// Waits for one more SIGTERM or SIGINT: the operator will not wait for the drain.
    pub async fn until_told_again(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Waits for SIGTERM or SIGINT, and says which. SIGHUP is noted; reload comes later.
    /// SIGUSR1 is answered by what is counted against `memory_max`.
    ///
    /// # Errors
    /// If every worker has died.
    pub async fn until_told_to_stop(&mut self, running: &Running) -> io::Result<&'static str> {
        let mut overflows = Overflows::new();
        let mut watch = tokio::time::interval(WATCH);
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return Ok("SIGTERM"),
                _ = self.interrupt.recv() => return Ok("SIGINT"),
                _ = self.hangup.recv() => {
                    tracing::warn!("SIGHUP ignored: reload is not there yet, restart instead");
                }
                _ = self.accounts.recv() => tracing::info!("{}", running.accounts()),
                _ = watch.tick() => {
                    overflows.look();
                    counters::set_listen_overflows(overflows.seen());
                    if running.has_died() {
                        return Err(io::Error::other("every worker has ended"));
                    }
                }
            }
        }
    }
}
