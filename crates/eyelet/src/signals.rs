//! What the operator says to a running edge by signals, and what the edge says unasked.
//! It must not know what a drain does.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::control::{Control, ReloadRequest};
use crate::reload::{ReloadOutcome, reload};
use crate::serve::Running;
use eyelet_telemetry::counters;

/// How often the workers and their counts are looked at.
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
    pub async fn until_second_signal(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Waits for SIGTERM or SIGINT, or the end of a worker, and says which. SIGHUP and the control
    /// socket have `file` read again. SIGUSR1 is answered by what is counted against `memory_max`.
    pub async fn until_stop(
        &mut self,
        running: &mut Running,
        file: &Path,
        mut control: Option<Control>,
    ) -> StopCause {
        let mut drops = 0;
        let mut watch = tokio::time::interval(WATCH);
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return StopCause::Signal("SIGTERM"),
                _ = self.interrupt.recv() => return StopCause::Signal("SIGINT"),
                _ = self.hangup.recv() => {
                    log(&reload(running, file).await);
                }
                Some(request) = next(&mut control) => {
                    let outcome = reload(running, file).await;
                    log(&outcome);
                    request.answer(&outcome).await;
                }
                _ = self.accounts.recv() => tracing::info!("{}", running.accounts()),
                _ = watch.tick() => {
                    log_drops(&mut drops);
                    if running.has_died() {
                        return StopCause::Died;
                    }
                }
            }
        }
    }
}

/// Why a running edge stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// By this signal.
    Signal(&'static str),
    /// A worker has ended, and the process must be started anew.
    Died,
}

/// The next request at the control socket, if there is one.
async fn next(control: &mut Option<Control>) -> Option<ReloadRequest> {
    match control {
        Some(control) => control.next().await,
        None => std::future::pending().await,
    }
}

fn log(outcome: &ReloadOutcome) {
    for line in outcome.text.lines() {
        match outcome.code {
            0 => tracing::info!("reload: {line}"),
            _ => tracing::error!("reload: {line}"),
        }
    }
    if outcome.code > 0 {
        tracing::error!("reload: nothing has changed");
    }
}

/// Says how many connections the kernel has dropped since `known`.
fn log_drops(known: &mut u64) {
    let drops = counters::snapshot().listen_drops;
    let new = drops - std::mem::replace(known, drops);
    if new > 0 {
        tracing::warn!(
            "the kernel dropped {new} connections ({drops} since the start): a listen queue was \
             full (net.core.somaxconn, or accepting paused)"
        );
    }
}
