//! The operator's signals to a running edge, and the warnings that the edge logs by itself.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::check::MISTAKES;
use crate::control::{Control, ReloadRequest};
use crate::reload::{ReloadOutcome, reload};
use crate::serve::Running;
use eyelet_telemetry::counters;

/// How often the workers and their counts are checked.
const WATCH: Duration = Duration::from_secs(1);

/// Handlers for the signals. They are installed first, so that no signal meets the default action,
/// which ends the process.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    accounts: Signal,
}

impl Signals {
    /// Installs the handlers. Call it within a tokio runtime.
    ///
    /// # Errors
    /// If the system cannot install a handler.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            accounts: signal(SignalKind::user_defined1())?,
        })
    }

    /// Waits for SIGTERM or SIGINT, and returns which.
    pub async fn until_terminated(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Reloads, unless a signal comes first that ends the process.
    async fn reload(
        &mut self,
        running: &mut Running,
        file: &Path,
    ) -> Result<ReloadOutcome, StopCause> {
        tokio::select! {
            outcome = reload(running, file) => Ok(outcome),
            signal = self.until_terminated() => Err(StopCause::Signal(signal)),
        }
    }

    /// Waits for SIGTERM, SIGINT or the end of a worker, and returns which. SIGHUP and the control
    /// socket reload `file`. SIGUSR1 logs what is counted against `memory_max`.
    pub async fn until_stop(
        &mut self,
        running: &mut Running,
        file: &Path,
        mut control: Option<Control>,
    ) -> StopCause {
        let mut drops = 0;
        let mut watch = tokio::time::interval(WATCH);
        let mut changed = running.changed();
        let mut known = None;
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return StopCause::Signal("SIGTERM"),
                _ = self.interrupt.recv() => return StopCause::Signal("SIGINT"),
                _ = self.hangup.recv() => {
                    match self.reload(running, file).await {
                        Ok(outcome) => log(&outcome),
                        Err(stop) => return stop,
                    }
                }
                Ok(()) = changed.changed() => {
                    if !running.take_changed() {
                        continue;
                    }
                    let outcome = match self.reload(running, file).await {
                        Ok(outcome) => outcome,
                        Err(stop) => return stop,
                    };
                    // A file with mistakes is tried again each minute.
                    if known.as_ref() != Some(&outcome) {
                        log(&outcome);
                    }
                    known = (outcome.code != 0).then_some(outcome);
                }
                Some(request) = next(&mut control) => match self.reload(running, file).await {
                    Ok(outcome) => {
                        log(&outcome);
                        request.answer(&outcome).await;
                    }
                    Err(stop) => return stop,
                },
                _ = self.accounts.recv() => tracing::info!("{}", running.accounts()),
                _ = watch.tick() => {
                    log_drops(&mut drops);
                    running.tidy();
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
    /// This signal arrived.
    Signal(&'static str),
    /// A worker has ended, so the process must be restarted.
    Died,
}

/// The next request at the control socket, if the socket is open.
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
    if outcome.code == MISTAKES {
        tracing::error!("reload: nothing has changed");
    }
}

/// Logs how many connections the kernel has dropped since `known`.
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
