//! The earlier process of an upgrade: starts the new program, hands over the listening sockets, and
//! then the connections that the workers detach.
//!
//! A connection has one owner at any time, because two would use the same AEAD nonces. The batch
//! that is on its way belongs to nobody until it is committed. If the new process fails before
//! that, it is killed first, and only then the workers take the batch back. When everything that
//! was parked has moved, the upgrade is over: the new process lives on its own, and this one
//! lingers with what cannot move.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use eyelet_engine::departure::{
    BatchAnswer, Departing, Departure, Leaving, ParcelCounts, departures,
};
use eyelet_engine::moving::handover::{
    VERSION, VERSION_GROUP, VERSION_HELD, VERSION_HELD_REQUEST, VERSION_PART, VERSION_RESTING,
    VERSION_USUAL,
};
use eyelet_handover::flows::VERSION_FLOWS;
use eyelet_hold::Holds;
use eyelet_sys::channel::Channel;
use eyelet_telemetry::listing::streams::StreamCounts;
use tokio::sync::mpsc::{self, channel};
use zeroize::Zeroizing;

use crate::handover::{
    Failed, HandoverError, HandoverReady, MESSAGE_TIMEOUT, OwnState, Serve, expect, hand_state,
    kind, read, receive, signal, tell, tell_verdicts,
};
use crate::held::now_unix_ms;
use crate::predecessors::Predecessors;
use crate::reload::{ReloadOutcome, SERVED_TIMEOUT};
use crate::serve::Running;
use eyelet_edge::snapshot::listen::Bound;

mod successor;
use successor::Successor;

/// The time that the new process may take to read its files, to bind and to warm up.
const START_TIMEOUT: Duration = Duration::from_secs(100);
/// The time between two looks of a waiting thread, which sees whether the new process lives, and
/// whether the upgrade is off.
const STEP: Duration = Duration::from_millis(50);
/// The time that an upgrade that is off may take to kill the new process, and the one between two
/// looks at this. It is seen at the next [`STEP`].
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
const KILL_STEP: Duration = Duration::from_millis(5);
/// Events that wait for the main thread. It takes each at once.
const EVENTS_MAX: usize = 4;

/// The reason why an upgrade has failed.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// The new program cannot be started.
    #[error("cannot start {program:?}: {error}")]
    Start {
        /// Its path.
        program: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The new program has ended without a word.
    #[error("{} ended before it served (is it Eyelet?)", .0.display())]
    Ended(PathBuf),
    /// The new process says why it cannot serve.
    #[error("{}", .0.text.trim_end())]
    Failed(Failed),
    /// The new process did something else.
    #[error("the new process: {0}")]
    Handover(#[from] HandoverError),
    /// The new process is not the one that was started, so nothing could end it for certain.
    #[error("the program must be exec'ed by its wrapper: a child of it wants to serve")]
    Wrapped,
    /// The new process was too slow.
    #[error("the new process does not serve after {} s", START_TIMEOUT.as_secs())]
    Slow,
    /// This process drains.
    #[error("this process ends")]
    Over,
}

/// The events of an upgrade that the main thread hears.
pub enum UpgradeEvent {
    /// The new process accepts: the workers may leave.
    Serving(Departures),
    /// Everything that was parked has left. This process accepts never again, and serves the rest
    /// until it ends.
    ParkedMoved(UpgradeReport),
    /// The process that serves has this one drain.
    Drain,
    /// All workers have left. This process has nothing more to do.
    Over,
    /// This process serves on.
    Failed(UpgradeError),
}

/// The new process accepts.
pub struct Departures {
    /// Its process id.
    pub pid: u32,
    /// The way in which each worker leaves.
    pub departures: Vec<Departure>,
}

/// The result when everything that was parked has left.
pub struct UpgradeReport {
    /// The new process.
    pub pid: u32,
    /// The connections that it has got.
    pub moved: Moved,
    /// The time that this took from its start, and from its first accept.
    pub took: [Duration; 2],
    /// Its warnings about the file.
    pub warnings: String,
}

/// Connections that have moved to the new process.
#[derive(Clone, Default)]
pub struct Moved {
    connections: usize,
    /// The requests and streams that rested on them.
    streams: StreamCounts,
}

impl Moved {
    /// Adds the connections of a batch, except for those at `refused`.
    fn add(&mut self, batch: &[ParcelCounts], refused: &[usize]) {
        let taken = batch.iter().enumerate().filter(|(at, _)| !refused.contains(at));
        for (_, ParcelCounts { connections, streams }) in taken {
            self.connections += connections;
            self.streams.add_all(streams);
        }
    }

    /// The streams, behind what is said of the connections.
    fn kinds(&self) -> String {
        if self.streams.all() == 0 { String::new() } else { format!(": {}", self.streams) }
    }
}

impl UpgradeReport {
    /// The answer for who asked. `stays` says in a line what this process goes on with.
    pub fn outcome(&self, file: &Path, stays: &str) -> ReloadOutcome {
        let Self { pid, moved, took: [all, moving], warnings } = self;
        let text = format!(
            "{warnings}{}: process {pid} serves, {} ms after the start; {} \
             connections were handed over in {} ms{}\n{stays}",
            file.display(),
            (*all - *moving).as_millis(),
            moved.connections,
            moving.as_millis(),
            moved.kinds(),
        );
        ReloadOutcome { code: 0, text }
    }
}

impl UpgradeError {
    /// The answer for who asked.
    pub fn outcome(&self) -> ReloadOutcome {
        match self {
            // The text is of mistakes in the file, or says why the new process cannot serve.
            Self::Failed(Failed { code: 1, text }) => {
                let text = format!("{}; the old process serves on\n", text.trim_end());
                ReloadOutcome { code: 1, text }
            }
            Self::Failed(Failed { code, text }) => {
                ReloadOutcome { code: *code, text: text.clone() }
            }
            error => ReloadOutcome::failed(format_args!("{error}; the old process serves on")),
        }
    }
}

/// An upgrade that is under way. Dropping it ends it, unless connections have begun to move.
pub struct Upgrade {
    events: mpsc::Receiver<UpgradeEvent>,
    is_off: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
    /// The new process accepts.
    is_serving: bool,
}

/// The facts that the thread of an upgrade knows of this process.
struct Plan {
    program: PathBuf,
    file: PathBuf,
    listeners: Arc<[Bound]>,
    workers: usize,
    first_id: u64,
    tickets: Zeroizing<Vec<u8>>,
    upstreams: BTreeMap<String, Vec<SocketAddr>>,
    predecessors: Arc<Predecessors>,
    holds: Arc<Holds>,
    is_off: Arc<AtomicBool>,
}

/// Predecessors that keep what they offer, because the workers leave. Unless that is for good, they
/// are heard again when this is dropped.
struct Held<'a> {
    predecessors: &'a Predecessors,
    is_for_good: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.is_for_good {
            self.predecessors.release();
        }
    }
}

/// The program to start if none is named: the one that runs, by the path as it was called. A new
/// version at this path, or behind a link in it, is thus found. Call it at the start, because the
/// kernel's own answer changes when the file is replaced.
pub fn own_program() -> PathBuf {
    let running = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"));
    let is_running = |path: &PathBuf| {
        path.canonicalize().is_ok_and(|path| running.canonicalize().is_ok_and(|own| own == path))
    };
    let called = PathBuf::from(std::env::args_os().next().unwrap_or_default());
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&folders).filter(|_| called.components().count() == 1);
    let mut candidates = folders.map(|folder| folder.join(&called)).chain([called.clone()]);
    let found = candidates.find(is_running).unwrap_or(running);
    std::path::absolute(&found).unwrap_or(found)
}

impl Upgrade {
    /// Starts `program` on a thread of its own, to serve `file` in place of this process.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn begin(running: &Running, file: &Path, program: PathBuf) -> io::Result<Self> {
        let (events, heard) = channel(EVENTS_MAX);
        let is_off = Arc::<AtomicBool>::default();
        let plan = Plan {
            program,
            file: file.to_owned(),
            listeners: running.listeners(),
            workers: running.workers(),
            first_id: running.next_first_id(),
            tickets: running.ticket_keys().export(),
            upstreams: running.published.snapshot().names.upstreams.known_addresses(),
            predecessors: running.predecessors.clone(),
            holds: running.holds(),
            is_off: is_off.clone(),
        };
        let body = move || {
            let event = match plan.hand_over(&events) {
                Ok(lingering) => {
                    // It has the listening sockets.
                    drop(plan);
                    lingering.finish(&events);
                    UpgradeEvent::Over
                }
                Err(error) => {
                    plan.holds.end_handover();
                    plan.listeners.iter().for_each(Bound::put_file_back);
                    UpgradeEvent::Failed(error)
                }
            };
            // The main thread has left: this process drains.
            let _ = events.blocking_send(event);
        };
        let thread = thread::Builder::new().name("handover".into()).spawn(body)?;
        Ok(Self { events: heard, is_off, thread, is_serving: false })
    }

    /// The next event.
    pub async fn next(&mut self) -> UpgradeEvent {
        let event = self.events.recv().await;
        self.is_serving |= matches!(event, Some(UpgradeEvent::Serving(_)));
        event.unwrap_or(UpgradeEvent::Failed(UpgradeError::Over))
    }
}

impl Drop for Upgrade {
    fn drop(&mut self) {
        self.is_off.store(true, Relaxed);
        // A process that hangs must not outlive this one.
        let end = Instant::now() + KILL_TIMEOUT;
        while !self.is_serving && !self.thread.is_finished() && Instant::now() < end {
            thread::park_timeout(KILL_STEP);
        }
    }
}

impl Plan {
    fn hand_over(&self, events: &mpsc::Sender<UpgradeEvent>) -> Result<Lingering, UpgradeError> {
        let began = Instant::now();
        // Dropped after `successor`: the end of the answers lets workers take connections back, so
        // the new process must be dead by then.
        let mut workers;
        let mut successor = self.start()?;
        let ready = self.introduce(&mut successor, START_TIMEOUT)?;
        successor.reads_connections = ready.formats.contains(&VERSION_USUAL);
        tell(&mut successor.channel, kind::SERVE, &Serve { first_id: self.first_id })?;
        expect(&mut successor.channel, kind::SERVING, SERVED_TIMEOUT + MESSAGE_TIMEOUT)?;
        let (pid, served) = (successor.child.id(), Instant::now());
        self.holds.begin_handover();
        self.tell_verdicts(&mut successor, &ready)?;
        // What they send would arrive in workers that have left.
        let mut held = Held { predecessors: &self.predecessors, is_for_good: false };
        held.predecessors.hold();
        let (departures, answers, leaving) = self.departures(&ready);
        let (parking, active, flows) = (self.workers, self.workers, self.workers);
        let moved = Moved::default();
        workers = LeavingWorkers { answers, leaving, flows, parking, active, moved };
        self.left(&ready).for_each(Bound::put_file_aside);
        if events.blocking_send(UpgradeEvent::Serving(Departures { pid, departures })).is_err() {
            return Err(UpgradeError::Over);
        }
        while workers.parking > 0 {
            if !workers.hear(&mut successor)? {
                successor.must_live()?;
            }
        }
        let took = [began.elapsed(), served.elapsed()];
        self.left(&ready).for_each(Bound::remove_file);
        self.kept(&ready).for_each(Bound::leave_file);
        held.is_for_good = true;
        // Some were given while those who wait moved.
        if let Err(error) = self.tell_verdicts(&mut successor, &ready) {
            tracing::warn!("verdicts of the last moment must be given again: {error}");
        }
        self.holds.end_handover();
        successor.settle(&ready, &self.predecessors);
        let (moved, warnings) = (workers.moved.clone(), ready.warnings);
        // The main thread drains, and hears no more, if this fails.
        let _ = events.blocking_send(UpgradeEvent::ParkedMoved(UpgradeReport {
            pid,
            moved,
            took,
            warnings,
        }));
        let predecessors = self.predecessors.clone();
        Ok(Lingering { successor, workers, predecessors })
    }

    /// Sends the verdicts that are remembered, and those that were given meanwhile.
    fn tell_verdicts(
        &self,
        successor: &mut Successor,
        ready: &HandoverReady,
    ) -> Result<(), UpgradeError> {
        let verdicts = self.holds.handed(now_unix_ms());
        if ready.reads_verdicts {
            return Ok(tell_verdicts(&mut successor.channel, verdicts)?);
        }
        if !verdicts.is_empty() {
            let lost = verdicts.len();
            tracing::warn!("the new process reads no verdicts: {lost} must be given again");
        }
        Ok(())
    }

    /// The listeners that the new process accepts from.
    fn kept<'a>(&'a self, ready: &'a HandoverReady) -> impl Iterator<Item = &'a Bound> {
        ready.kept.iter().filter_map(|index| self.listeners.get(*index))
    }

    /// The listeners that nobody accepts from any more.
    fn left<'a>(&'a self, ready: &'a HandoverReady) -> impl Iterator<Item = &'a Bound> {
        let all = self.listeners.iter().enumerate();
        all.filter(|(index, _)| !ready.kept.contains(index)).map(|(_, bound)| bound)
    }

    fn departures(&self, ready: &HandoverReady) -> Departing {
        let kept = self.kept(ready).flat_map(Bound::distinct).cloned().collect();
        let mut departing = departures(self.workers, &kept, ready.batch_descriptors, None);
        let unread = [
            (VERSION_RESTING, "exchanges at rest"),
            (VERSION_GROUP, "exchanges at rest that share upstream connections"),
            (VERSION_PART, "more such exchanges together than one message carries"),
            (VERSION_HELD, "connections that are held"),
            (VERSION_HELD_REQUEST, "connections with requests that are held"),
            (VERSION, "connections of clients that a proxy knows"),
        ];
        let unread = unread.into_iter().find(|(version, _)| !ready.formats.contains(version));
        if let Some((version, what)) = unread {
            tracing::warn!(
                "the new process does not read version {version} of connections: {what} stay here \
                 until they end"
            );
            departing.0.iter_mut().for_each(|departure| departure.reads_below = Some(version));
        }
        let moves_flows = ready.formats.contains(&VERSION_FLOWS);
        if !moves_flows && self.listeners.iter().any(Bound::reads_datagrams) {
            // It reads their sockets already.
            tracing::warn!("the new process does not take flows of QUIC over: they end here");
        }
        departing.0.iter_mut().for_each(|departure| departure.moves_flows = moves_flows);
        departing
    }

    fn start(&self) -> Result<Successor, UpgradeError> {
        let failed = |error| UpgradeError::Start { program: self.program.clone(), error };
        let (channel, theirs) = Channel::pair().map_err(failed)?;
        let mut command = Command::new(&self.program);
        command.arg("serve").arg(&self.file).arg("--handover").stdin(Stdio::from(theirs));
        let child = command.spawn().map_err(failed)?;
        // The command also holds the other end, so the end of the new process would go unnoticed.
        drop(command);
        Ok(Successor::new(child, channel))
    }

    /// Sends the state of this process and waits until the new process can serve.
    fn introduce(
        &self,
        successor: &mut Successor,
        within: Duration,
    ) -> Result<HandoverReady, UpgradeError> {
        self.try_introduce(successor, within).map_err(|error| match error {
            UpgradeError::Handover(error) if error.is_closed() => {
                UpgradeError::Ended(self.program.clone())
            }
            error => error,
        })
    }

    fn try_introduce(
        &self,
        successor: &mut Successor,
        within: Duration,
    ) -> Result<HandoverReady, UpgradeError> {
        let end = Instant::now() + within;
        let channel = &mut successor.channel;
        let Self { tickets, upstreams, .. } = self;
        let own = OwnState { tickets, hands_flows: true, upstreams };
        hand_state(&self.listeners, own, |kind, body, sockets| {
            channel.send(kind, body, sockets, MESSAGE_TIMEOUT)
        })?;
        signal(channel, kind::BEGIN)?;
        loop {
            if self.is_off.load(Relaxed) {
                return Err(UpgradeError::Over);
            }
            if Instant::now() >= end {
                return Err(UpgradeError::Slow);
            }
            match receive(&mut successor.channel, Some(STEP)) {
                Ok((received, body)) if received.kind == kind::FAILED => {
                    return Err(UpgradeError::Failed(read(&received, kind::FAILED, &body)?));
                }
                Ok((received, body)) => {
                    let ready: HandoverReady = read(&received, kind::READY, &body)?;
                    let is_other = ready.pid.is_some_and(|pid| pid != successor.child.id());
                    return if is_other { Err(UpgradeError::Wrapped) } else { Ok(ready) };
                }
                Err(HandoverError::Channel(error)) if error.kind() == ErrorKind::TimedOut => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Workers that leave.
struct LeavingWorkers {
    answers: Vec<mpsc::Sender<BatchAnswer>>,
    leaving: Receiver<Leaving>,
    /// Those that still have flows of QUIC.
    flows: usize,
    /// Those with something parked, and those with anything.
    parking: usize,
    active: usize,
    /// Connections that have moved.
    moved: Moved,
}

impl LeavingWorkers {
    /// Waits for what a worker says, and has the new process take its connections. Returns whether
    /// one has said something.
    fn hear(&mut self, successor: &mut Successor) -> Result<bool, HandoverError> {
        match self.leaving.recv_timeout(STEP) {
            Ok(Leaving::Batch { worker, parcels, batch }) => {
                let (answer, end) = successor.move_batch(batch);
                if let Some(BatchAnswer::Committed { refused }) = &answer {
                    self.moved.add(&parcels, refused);
                }
                if let (Some(answer), Some(worker)) = (answer, self.answers.get(worker)) {
                    // The worker waits for it, or it has ended.
                    let _ = worker.try_send(answer);
                }
                end?;
            }
            Ok(Leaving::Flows { worker, batches, are_last }) => {
                self.flows = self.flows.saturating_sub(usize::from(are_last));
                successor.give_flows(batches, are_last && self.flows == 0)?;
                if let Some(worker) = self.answers.get(worker) {
                    // The worker waits for it, or it has ended.
                    let _ = worker.try_send(BatchAnswer::Committed { refused: Vec::new() });
                }
            }
            Ok(Leaving::ParkedMoved) => self.parking = self.parking.saturating_sub(1),
            Ok(Leaving::Left) => self.active = self.active.saturating_sub(1),
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => (self.parking, self.active) = (0, 0),
        }
        Ok(true)
    }
}

/// Describes what this process still serves after an upgrade.
struct Lingering {
    successor: Successor,
    workers: LeavingWorkers,
    /// Those that stood still when the others were passed on.
    predecessors: Arc<Predecessors>,
}

impl Lingering {
    /// Moves what comes to rest, until the workers have nothing left.
    fn finish(self, events: &mpsc::Sender<UpgradeEvent>) {
        let Self { mut successor, mut workers, predecessors } = self;
        while workers.active > 0 {
            successor.pass_on(&predecessors, predecessors.take_stopped());
            match workers.hear(&mut successor) {
                Ok(true) => {}
                Ok(false) if successor.says_drain() => {
                    // The main thread may drain already.
                    let _ = events.blocking_send(UpgradeEvent::Drain);
                }
                Ok(false) => {}
                // Its answer was COMMIT: the connections are the other process's.
                Err(error) => successor.give_up(&error),
            }
        }
        successor.pass_on(&predecessors, predecessors.take_last());
        for worker in &workers.answers {
            // One that drains does not wait for it.
            let _ = worker.try_send(BatchAnswer::Over);
        }
        let (Moved { connections, .. }, pid) = (&workers.moved, successor.child.id());
        let kinds = workers.moved.kinds();
        tracing::info!(
            "{connections} connections are handed over to process {pid}, or those after it{kinds}"
        );
        // They notice the end of this process, too.
        let _ = signal(&mut successor.channel, kind::END);
    }
}

#[cfg(test)]
mod tests;
