//! What the operator says to a running edge by signals.
//! It must not know what a drain does.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::serve::Running;

/// How often the workers are looked at.
const WATCH: Duration = Duration::from_millis(500);

/// Waits for SIGTERM or SIGINT. SIGHUP is noted; reload comes later.
///
/// # Errors
/// If signals cannot be had, or every worker has died.
pub async fn until_told_to_stop(running: &Running) -> io::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok("SIGTERM"),
            _ = interrupt.recv() => return Ok("SIGINT"),
            _ = hangup.recv() => {
                tracing::warn!("SIGHUP ignored: reload is not there yet, restart instead");
            }
            () = tokio::time::sleep(WATCH) => {
                if running.has_died() {
                    return Err(io::Error::other("every worker has ended"));
                }
            }
        }
    }
}
