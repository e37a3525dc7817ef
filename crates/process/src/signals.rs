//! The operator's signals to a running edge, and the warnings that the edge logs by itself.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::control::{AcmeRequest, Control, ControlCommand, ControlRequest, answer_held};
use crate::diagnostics::{self, Diagnostics};
use crate::reload::{ReloadOutcome, reload};
use crate::serve::Running;
use crate::upgrade::{Departures, Upgrade, UpgradeEvent};
use eyelet_config::Config;
use eyelet_edge::snapshot::check::MISTAKES;
use eyelet_sys::{child, service};
use eyelet_telemetry::counters;

/// The process that the kernel starts first, in a container too.
const FIRST_PROCESS: u32 = 1;
/// The time between two checks of the workers and their counts.
const WATCH: Duration = Duration::from_secs(1);

/// Handlers for the signals. They are installed first, so that no signal meets the default action,
/// which ends the process.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    accounts: Signal,
    /// SIGQUIT and SIGUSR2, if there is an application that gets them.
    passed: Option<[Signal; 2]>,
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
            passed: None,
        })
    }

    /// Installs the handlers of a process with an application, which gets SIGQUIT and SIGUSR2, too.
    ///
    /// # Errors
    /// If the system cannot install a handler.
    pub fn with_application() -> io::Result<Self> {
        let passed = [signal(SignalKind::quit())?, signal(SignalKind::user_defined2())?];
        Ok(Self { passed: Some(passed), ..Self::new()? })
    }

    /// Waits for SIGTERM or SIGINT, and returns which.
    pub async fn until_terminated(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Waits for any of the signals.
    pub async fn next(&mut self) -> child::Signal {
        tokio::select! {
            _ = self.terminate.recv() => child::Signal::TERM,
            _ = self.interrupt.recv() => child::Signal::INT,
            _ = self.hangup.recv() => child::Signal::HUP,
            _ = self.accounts.recv() => child::Signal::USR1,
            signal = next_passed(&mut self.passed) => signal,
        }
    }

    /// Reloads, unless a signal comes first that ends the process.
    async fn reload(&mut self, edge: &mut Operated<'_>) -> Result<ReloadOutcome, StopCause> {
        tokio::select! {
            outcome = edge.reload() => Ok(outcome),
            signal = self.until_terminated() => Err(StopCause::Signal(signal)),
        }
    }

    /// Waits for SIGTERM, SIGINT, the end of a worker or the end of an upgrade, and returns which.
    /// SIGHUP and the control socket reload the file; the socket also begins an upgrade. SIGUSR1
    /// logs what is counted against `memory_max`.
    pub async fn until_stop(&mut self, edge: &mut Operated<'_>) -> StopCause {
        let mut drops = 0;
        let mut watch = tokio::time::interval(WATCH);
        let mut changed = edge.running.changed();
        let mut known = None;
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return StopCause::Signal("SIGTERM"),
                _ = self.interrupt.recv() => return StopCause::Signal("SIGINT"),
                _ = self.hangup.recv() => match self.reload(edge).await {
                    Ok(outcome) => log("reload", &outcome),
                    Err(stop) => return stop,
                },
                // Reloads are refused then.
                Ok(()) = changed.changed(), if edge.upgrade.is_none() => {
                    if !edge.running.take_changed() {
                        continue;
                    }
                    let outcome = match self.reload(edge).await {
                        Ok(outcome) => outcome,
                        Err(stop) => return stop,
                    };
                    // A file with mistakes is tried again each minute.
                    if known.as_ref() != Some(&outcome) {
                        log("reload", &outcome);
                    }
                    known = (outcome.code != 0).then_some(outcome);
                }
                Some(request) = next(&mut edge.control) => match &request.command {
                    ControlCommand::Reload => match self.reload(edge).await {
                        Ok(outcome) => {
                            log("reload", &outcome);
                            request.answer(&outcome).await;
                        }
                        Err(stop) => return stop,
                    },
                    ControlCommand::Upgrade(program) => {
                        let program = program.clone().unwrap_or_else(|| edge.program.clone());
                        edge.begin_upgrade(request, program).await;
                    }
                    ControlCommand::Acme(asked) => edge.ask_acme(*asked, request),
                    _ => edge.answer(request).await,
                },
                event = next_event(&mut edge.upgrade) => {
                    if let Some(stop) = edge.upgraded(event).await {
                        return stop;
                    }
                }
                _ = self.accounts.recv() => tracing::info!("{}", edge.running.accounts()),
                _ = watch.tick() => {
                    log_drops(&mut drops);
                    edge.running.tidy();
                    // The process that replaces this one may have the socket already.
                    if edge.upgrade.is_none() {
                        edge.running.admin.tend();
                    }
                    if edge.is_leaving() {
                        // Its threads and workers end one after the other.
                        edge.running.follow_log();
                        continue;
                    }
                    edge.running.log_lost_threads();
                    edge.running.predecessors.keep_bound();
                    if let Some(thread) = edge.died() {
                        return StopCause::Died(thread);
                    }
                }
            }
        }
    }
}

/// A running edge, and what its operator does with it.
pub struct Operated<'a> {
    /// The edge.
    pub running: &'a mut Running,
    /// Writes what is logged of it.
    pub diagnostics: &'a Diagnostics,
    /// Its configuration.
    pub file: &'a Path,
    /// Its control socket, if it could be opened.
    pub control: Option<Control>,
    /// The program that an upgrade starts if it names none.
    pub program: PathBuf,
    /// Explains a connection, from the flags of `eyelet explain`.
    pub explain: fn(&[String], &Config) -> ReloadOutcome,
    /// The upgrade that is under way.
    pub upgrade: Option<Attended>,
}

/// An upgrade that is under way.
pub struct Attended {
    upgrade: Upgrade,
    /// The request that asked for it, until the answer.
    request: Option<ControlRequest>,
    is_leaving: bool,
}

impl Operated<'_> {
    /// The thread that has ended by itself, if there is one.
    fn died(&self) -> Option<&'static str> {
        let own = self.diagnostics.has_died().then_some(diagnostics::THREAD);
        own.or_else(|| self.running.died())
    }

    /// True if another process has replaced this one, which only ends its connections.
    pub fn is_leaving(&self) -> bool {
        self.upgrade.as_ref().is_some_and(|upgrade| upgrade.is_leaving)
    }

    async fn reload(&mut self) -> ReloadOutcome {
        match self.upgrade {
            Some(_) if self.is_leaving() => {
                ReloadOutcome::failed("another process has replaced this one: nothing has changed")
            }
            Some(_) => ReloadOutcome::failed("an upgrade is under way: nothing has changed"),
            None => {
                service::reloading();
                let outcome = reload(self.running, self.file).await;
                service::ready();
                self.running.admin.note_reload(outcome.code == 0);
                outcome
            }
        }
    }

    /// Has the account at the ACME server get another key, or DNS records looked up. That takes
    /// minutes where orders are under way, so nothing waits for it.
    fn ask_acme(&self, asked: AcmeRequest, request: ControlRequest) {
        let acme = self.running.acme();
        tokio::spawn(async move {
            let outcome = match asked {
                AcmeRequest::ChangeKey => {
                    let outcome = changed_key(acme.change_key().await);
                    log("acme rollover", &outcome);
                    outcome
                }
                AcmeRequest::Records => match acme.records().await {
                    Ok(text) if text.is_empty() => {
                        ReloadOutcome::failed("no rule orders a wildcard: no DNS record is needed")
                    }
                    Ok(text) => ReloadOutcome { code: 0, text },
                    Err(why) => ReloadOutcome::failed(format_args!("[acme] no record: {why}")),
                },
            };
            request.answer(&outcome).await;
        });
    }

    /// Answers a question that changes nothing of the edge itself.
    async fn answer(&self, request: ControlRequest) {
        let outcome = match &request.command {
            ControlCommand::Held(command) => answer_held(&self.running.holds(), command.as_ref()),
            ControlCommand::Explain(words) => (self.explain)(words, &self.running.config()),
            ControlCommand::File => match std::path::absolute(self.file) {
                Ok(path) => ReloadOutcome { code: 0, text: format!("{}\n", path.display()) },
                Err(error) => ReloadOutcome::failed(error),
            },
            _ => return,
        };
        request.answer(&outcome).await;
    }

    async fn begin_upgrade(&mut self, request: ControlRequest, program: PathBuf) {
        let refused = if std::process::id() == FIRST_PROCESS {
            ReloadOutcome::failed(
                "process 1 cannot be replaced, because all others end with it: run eyelet under an \
                 init",
            )
        } else if self.upgrade.is_some() {
            ReloadOutcome::failed("an upgrade is under way")
        } else if !self.running.predecessors.settled().await {
            ReloadOutcome::failed("the process before this one still hands over connections")
        } else {
            tracing::info!("upgrade: starting {program:?}");
            match Upgrade::begin(self.running, self.file, program) {
                Ok(upgrade) => {
                    let request = Some(request);
                    self.upgrade = Some(Attended { upgrade, request, is_leaving: false });
                    return;
                }
                Err(error) => ReloadOutcome::failed(error),
            }
        };
        log("upgrade", &refused);
        request.answer(&refused).await;
    }

    /// Goes on with an upgrade. Returns why this process ends, if it does.
    async fn upgraded(&mut self, event: UpgradeEvent) -> Option<StopCause> {
        let attended = self.upgrade.as_mut()?;
        let outcome = match event {
            UpgradeEvent::Serving(Departures { pid, departures }) => {
                tracing::info!("upgrade: process {pid} accepts connections");
                attended.is_leaving = true;
                // From now on the manager's signals go to the process that accepts.
                service::main_process(pid);
                // The new process has one of its own.
                self.control = None;
                self.running.admin.close();
                self.running.hand_over(departures);
                return None;
            }
            UpgradeEvent::Over => return Some(StopCause::HandedOver),
            UpgradeEvent::Drain => return Some(StopCause::Successor),
            UpgradeEvent::ParkedMoved(report) => {
                self.running.settle();
                report.outcome(self.file, &self.running.admin.staying().await)
            }
            UpgradeEvent::Failed(error) => error.outcome(),
        };
        log("upgrade", &outcome);
        if let Some(request) = attended.request.take() {
            request.answer(&outcome).await;
        }
        if outcome.code != 0 {
            if self.is_leaving() {
                self.running.open_admin();
                service::main_process(std::process::id());
            }
            self.upgrade = None;
            if self.control.is_none() {
                let control = Control::open(self.file).inspect_err(|error| {
                    tracing::warn!("no control socket: {error}; only SIGHUP reloads");
                });
                self.control = control.ok();
            }
        }
        None
    }
}

/// The reason why a running edge stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// This signal arrived.
    Signal(&'static str),
    /// Another process has replaced this one.
    HandedOver,
    /// The process that has replaced this one says so.
    Successor,
    /// This thread has ended, so the process must be restarted.
    Died(&'static str),
}

impl StopCause {
    /// True if a service manager that keeps descriptors gets the connections. SIGINT ends them.
    pub fn is_for_the_next_process(self) -> bool {
        self == Self::Signal("SIGTERM")
    }
}

/// The next signal that the application gets, if there is one.
async fn next_passed(passed: &mut Option<[Signal; 2]>) -> child::Signal {
    let Some([quit, user]) = passed else { return std::future::pending().await };
    tokio::select! {
        _ = quit.recv() => child::Signal::QUIT,
        _ = user.recv() => child::Signal::USR2,
    }
}

/// The next request at the control socket, if the socket is open.
async fn next(control: &mut Option<Control>) -> Option<ControlRequest> {
    match control {
        Some(control) => control.next().await,
        None => std::future::pending().await,
    }
}

/// The next event of the upgrade that is under way.
async fn next_event(upgrade: &mut Option<Attended>) -> UpgradeEvent {
    match upgrade {
        Some(attended) => attended.upgrade.next().await,
        None => std::future::pending().await,
    }
}

fn changed_key(changed: Result<String, String>) -> ReloadOutcome {
    match changed {
        Ok(account) => {
            ReloadOutcome { code: 0, text: format!("the account {account} has a new key\n") }
        }
        Err(why) => ReloadOutcome::failed(format_args!("[acme] no new key: {why}")),
    }
}

fn log(what: &str, outcome: &ReloadOutcome) {
    for line in outcome.text.lines() {
        match outcome.code {
            0 => tracing::info!("{what}: {line}"),
            _ => tracing::error!("{what}: {line}"),
        }
    }
    if outcome.code == MISTAKES {
        tracing::error!("{what}: nothing has changed");
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
