//! The processes that this one and those before it have replaced, and that linger: they serve what
//! could not move. The newest process has a channel to each. Over it come connections that have
//! come to rest, and a predecessor is told to drain where too many linger.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use eyelet_edge::snapshot::listen::{Bound, own_files};
use eyelet_edge::snapshot::published::worker_of_flows;
use eyelet_engine::moving::batch::{Arrivals, BatchRead, Delivered, RefusalReason, count, deliver};
use eyelet_engine::moving::parts::{ConnectionBatch, GroupProgress, IncomingGroup, PartFault};
use eyelet_engine::worker::inbox::Placed;
use eyelet_handover::flows;
use eyelet_hold::Holds;
use eyelet_sys::channel::{Channel, Received};
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use crate::handover::{
    HandoverError, HandoverReceived, HandoverVerdict, LingeringProcess, MESSAGE_TIMEOUT, Message,
    kind, read, receive, signal, tell,
};
use crate::held;

/// Most processes that linger, beside the one that serves. Each may hold its own `memory_max`. The
/// oldest one beyond them drains.
pub const LINGERING_MAX: usize = 8;
/// The time for which an upgrade waits for the threads of predecessors to finish their messages.
/// One that stands still then is passed on later.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The time that an upgrade waits for the end of the one before.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// The time between two looks at that.
const PAUSE_STEP: Duration = Duration::from_millis(2);

/// The processes that linger.
#[derive(Default)]
pub struct Predecessors {
    /// The oldest first.
    known: Mutex<Vec<Known>>,
    /// The process that started this one may take its connections back.
    is_unsettled: AtomicBool,
    /// The workers leave, so what arrives in them could be lost.
    is_leaving: AtomicBool,
    /// Batches on their way to a worker.
    deliveries: AtomicUsize,
    /// The service ends, and all predecessors with it.
    must_drain: AtomicBool,
    /// The held connections and requests, for verdicts of the process that started this one.
    holds: Arc<Holds>,
}

/// A channel to a predecessor, which nobody reads now.
pub struct PredecessorLink {
    /// The process at the other end.
    pub predecessor: LingeringProcess,
    pub channel: Channel,
}

/// A predecessor, and the thread that takes its connections over.
struct Known {
    predecessor: LingeringProcess,
    /// A byte has the thread tell the predecessor to drain. The end has it stop: `None`.
    orders: Option<PipeWriter>,
    thread: JoinHandle<Option<Channel>>,
}

impl Predecessors {
    /// Those of a process that holds these.
    pub fn new(holds: Arc<Holds>) -> Arc<Self> {
        Arc::new(Self { holds, ..Self::default() })
    }

    /// Waits until the process that started this one has settled. Its word may be on its way when
    /// the next upgrade is asked for. Returns whether it has.
    pub async fn settled(&self) -> bool {
        let end = Instant::now() + SETTLE_TIMEOUT;
        while self.is_unsettled.load(Relaxed) && Instant::now() < end {
            tokio::time::sleep(PAUSE_STEP).await;
        }
        !self.is_unsettled.load(Relaxed)
    }

    /// Takes over what the process that started this one sends, on a thread of its own. It has this
    /// process's `listeners` until it has settled.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn follow(
        self: &Arc<Self>,
        link: PredecessorLink,
        workers: Arrivals,
        listeners: Arc<[Bound]>,
    ) -> io::Result<()> {
        self.is_unsettled.store(true, Relaxed);
        let started = self.add(link, workers, Some(listeners));
        started.inspect_err(|_| self.is_unsettled.store(false, Relaxed))
    }

    /// Goes on with predecessors that were paused.
    pub fn resume(self: &Arc<Self>, links: Vec<PredecessorLink>, workers: &Arrivals) {
        for link in links {
            if let Err(error) = self.add(link, workers.clone(), None) {
                tracing::error!("a process that lingers is left alone: {error}");
            }
        }
    }

    fn add(
        self: &Arc<Self>,
        link: PredecessorLink,
        workers: Arrivals,
        listeners: Option<Arc<[Bound]>>,
    ) -> io::Result<()> {
        let PredecessorLink { predecessor, channel } = link;
        let (ordered, orders) = io::pipe()?;
        let (predecessors, pid, is_passed_on) =
            (self.clone(), predecessor.pid, listeners.is_none());
        let (taken, flows) = (0, 0);
        let taking =
            Taking { channel, pid, ordered, workers, listeners, predecessors, taken, flows };
        // Locked first: the thread may add those that its predecessor knows.
        let mut known = self.known.lock();
        let thread = thread::Builder::new().name("takeover".into()).spawn(|| taking.run())?;
        // Who is not settled yet is the youngest, and names those that are older than itself.
        let younger = usize::from(is_passed_on && self.is_unsettled.load(Relaxed)).min(known.len());
        let at = known.len() - younger;
        let mut new = Known { predecessor, orders: Some(orders), thread };
        if self.must_drain.load(Relaxed) {
            new.tell_to_drain();
        }
        known.insert(at, new);
        Ok(())
    }

    /// Takes no more connections, because the workers are about to leave: a predecessor keeps what
    /// it offers. What is on its way to a worker arrives before this returns, in
    /// [`MESSAGE_TIMEOUT`] at most.
    pub fn hold(&self) {
        self.is_leaving.store(true, SeqCst);
        wait_until(MESSAGE_TIMEOUT, || self.deliveries.load(SeqCst) == 0);
    }

    /// Takes connections again.
    pub fn release(&self) {
        self.is_leaving.store(false, SeqCst);
    }

    /// Stops the threads between two messages. Returns the channels of the predecessors that live,
    /// except for those whose threads have not stopped in time: see [`Predecessors::take_stopped`].
    pub fn pause(&self) -> Vec<PredecessorLink> {
        self.stop();
        let links = self.take_stopped();
        for still in self.known.lock().iter() {
            tracing::warn!("{} stands still and is passed on later", named(still.predecessor.pid));
        }
        links
    }

    /// Stops the threads between two messages, because the process is about to end. Each passes the
    /// order to drain on before: the predecessors of one that has nothing to drain would miss it.
    pub fn stop(&self) {
        // All are told before one is waited for.
        self.known.lock().iter_mut().for_each(|known| known.orders = None);
        wait_until(PAUSE_TIMEOUT, || {
            self.known.lock().iter().all(|known| known.thread.is_finished())
        });
    }

    /// Waits until the threads that were told to have stopped, for a message that stands still at
    /// most, and takes their channels.
    pub fn take_last(&self) -> Vec<PredecessorLink> {
        let has_ended = |known: &Known| known.orders.is_some() || known.thread.is_finished();
        wait_until(MESSAGE_TIMEOUT, || self.known.lock().iter().all(has_ended));
        self.take_stopped()
    }

    /// Takes the channels of the predecessors whose threads have stopped.
    pub fn take_stopped(&self) -> Vec<PredecessorLink> {
        let has_stopped = |known: &mut Known| known.orders.is_none() && known.thread.is_finished();
        let mut known = self.known.lock();
        let stopped = known.extract_if(.., has_stopped);
        let links = stopped.filter_map(|Known { predecessor, thread, .. }| {
            let channel = thread.join().ok().flatten()?;
            Some(PredecessorLink { predecessor, channel })
        });
        links.collect()
    }

    /// Tells a predecessor whose channel nobody reads to drain, if the service ends.
    ///
    /// # Errors
    /// It has ended.
    pub fn tell(&self, link: &mut PredecessorLink) -> Result<(), HandoverError> {
        let PredecessorLink { predecessor: LingeringProcess { pid, is_told }, channel } = link;
        if pid.is_none() || *is_told || !self.must_drain.load(Relaxed) {
            return Ok(());
        }
        *is_told = true;
        signal(channel, kind::DRAIN)
    }

    /// Has a worker read a batch, unless the workers leave.
    fn deliver(&self, workers: &Arrivals, batch: ConnectionBatch) -> io::Result<Delivered> {
        // Counted before the look, so that one of both sees the other.
        self.deliveries.fetch_add(1, SeqCst);
        let delivered = if self.is_leaving.load(SeqCst) {
            let refused = (0..count(&batch)).collect();
            let read = BatchRead { taken: 0, refused, why: Some(RefusalReason::Leaving) };
            Ok(Ok((read, oneshot::channel().0)))
        } else {
            deliver(workers, batch, true, MESSAGE_TIMEOUT)
        };
        self.deliveries.fetch_sub(1, SeqCst);
        delivered
    }

    /// Has the oldest ones drain beyond [`LINGERING_MAX`].
    pub fn keep_bound(&self) {
        let mut known = self.known.lock();
        known.retain(|known| !known.thread.is_finished());
        let over = known.iter().filter(|known| known.may_be_told()).count();
        let over = over.saturating_sub(LINGERING_MAX);
        for oldest in known.iter_mut().filter(|known| known.may_be_told()).take(over) {
            let name = named(oldest.predecessor.pid);
            tracing::warn!("more than {LINGERING_MAX} processes linger: {name} drains");
            oldest.tell_to_drain();
        }
    }

    /// Has all of them drain, because the service ends.
    pub fn drain(&self) {
        let mut known = self.known.lock();
        self.must_drain.store(true, Relaxed);
        known.iter_mut().for_each(Known::tell_to_drain);
    }

    /// The known process ids of living predecessors. The oldest one is the first.
    pub fn pids(&self) -> Vec<Option<u32>> {
        let known = self.known.lock();
        let living = known.iter().filter(|known| !known.thread.is_finished());
        living.map(|known| known.predecessor.pid).collect()
    }
}

impl Known {
    fn may_be_told(&self) -> bool {
        self.predecessor.pid.is_some() && !self.predecessor.is_told
    }

    fn tell_to_drain(&mut self) {
        if self.may_be_told()
            && let Some(orders) = &mut self.orders
        {
            self.predecessor.is_told = true;
            // If this fails the thread has ended, and so has the predecessor.
            let _ = orders.write_all(&[0]);
        }
    }
}

/// Waits until something is done, for so long at most.
fn wait_until(limit: Duration, is_done: impl Fn() -> bool) {
    let end = Instant::now() + limit;
    while !is_done() && Instant::now() < end {
        thread::park_timeout(PAUSE_STEP);
    }
}

fn named(pid: Option<u32>) -> String {
    pid.map_or_else(|| String::from("an earlier process"), |pid| format!("process {pid}"))
}

/// The thread that takes over what one predecessor sends.
struct Taking {
    channel: Channel,
    pid: Option<u32>,
    ordered: PipeReader,
    workers: Arrivals,
    /// Those of this process, until its upgrade has settled. The other process may end this one
    /// before, and serve on at the same files.
    listeners: Option<Arc<[Bound]>>,
    predecessors: Arc<Predecessors>,
    /// Connections since the upgrade has settled, or before.
    taken: usize,
    /// Flows of QUIC.
    flows: usize,
}

impl Taking {
    /// Returns the channel if it was told to stop.
    fn run(mut self) -> Option<Channel> {
        let over = self.take_over();
        // Whatever has come of them: nobody else reads datagrams any more.
        self.workers.process.inboxes.end_flows(MESSAGE_TIMEOUT);
        let (name, is_settled) = (named(self.pid), self.listeners.is_none());
        match over {
            Ok(false) => return Some(self.channel),
            Ok(true) if !is_settled => self.settle(),
            Err(error) if !(is_settled && error.is_closed()) => {
                tracing::error!("stopped after {} connections: {error}", self.taken);
                if self.pid.is_some() && self.predecessors.must_drain.load(Relaxed) {
                    // The order may not have been read. Whoever has ended does not hear it.
                    let _ = signal(&mut self.channel, kind::DRAIN);
                }
                if error.is_closed() {
                    self.settle();
                } else if !is_settled {
                    self.predecessors.is_unsettled.store(false, Relaxed);
                }
            }
            // One that was killed says nothing.
            Ok(true) | Err(_) => {
                tracing::info!("{name} has ended: {} more connections came from it", self.taken);
            }
        }
        None
    }

    /// The upgrade cannot fail any more.
    fn settle(&mut self) {
        let Some(listeners) = self.listeners.take() else { return };
        // A worker that has died says nothing of its flows.
        self.workers.process.inboxes.end_flows(MESSAGE_TIMEOUT);
        own_files(&listeners);
        self.predecessors.is_unsettled.store(false, Relaxed);
        tracing::info!("{} connections are taken over", std::mem::take(&mut self.taken));
        if self.flows > 0 {
            tracing::info!("{} flows of QUIC are taken over", self.flows);
        }
    }

    /// Receives batch after batch. Returns whether the predecessor has sent all, and not an order
    /// to stop come. There is no limit for the wait between them: a predecessor lives as long as
    /// its connections, and its end closes the channel.
    fn take_over(&mut self) -> Result<bool, HandoverError> {
        while let Some((received, body)) = self.next()? {
            match received.kind {
                kind::END => return Ok(true),
                kind::PREDECESSOR => self.add_predecessor(received, &body)?,
                kind::SETTLED => self.settle(),
                kind::BATCH => {
                    let sockets = received.descriptors;
                    self.taken += self.receive_batch(ConnectionBatch::new(body, sockets))?;
                }
                kind::VERDICTS => {
                    let verdicts: Vec<HandoverVerdict> = read(&received, kind::VERDICTS, &body)?;
                    let verdicts = verdicts.into_iter().filter_map(HandoverVerdict::handed);
                    self.predecessors.holds.take_over(verdicts.collect(), held::now_unix_ms());
                }
                kind::FLOWS => self.receive_flows(received.descriptors, body.to_vec())?,
                kind::FLOWS_END => self.workers.process.inboxes.end_flows(MESSAGE_TIMEOUT),
                kind::PART => self.taken += self.receive_group(&received, &body)?,
                other => return Err(HandoverError::Kind(other)),
            }
        }
        Ok(false)
    }

    /// The next message. `None`: the order to stop.
    fn next(&mut self) -> Result<Option<Message>, HandoverError> {
        while !self.channel.wait_beside(&self.ordered)? {
            match self.ordered.read(&mut [0])? {
                0 => return Ok(None),
                _ => signal(&mut self.channel, kind::DRAIN)?,
            }
        }
        receive(&mut self.channel, Some(MESSAGE_TIMEOUT)).map(Some)
    }

    fn add_predecessor(
        &self,
        mut received: Received,
        body: &Zeroizing<Vec<u8>>,
    ) -> Result<(), HandoverError> {
        let predecessor: LingeringProcess = read(&received, kind::PREDECESSOR, body)?;
        let why = || String::from("it lacks the channel");
        let socket: OwnedFd = received
            .descriptors
            .pop()
            .ok_or_else(|| HandoverError::Content { kind: kind::PREDECESSOR, why: why() })?;
        let link = PredecessorLink { predecessor, channel: Channel::over(socket)? };
        self.predecessors.resume(vec![link], &self.workers);
        Ok(())
    }

    /// Has the worker that reads their listening socket serve flows of QUIC. A message that cannot
    /// be read ends the upgrade, and the other process serves on.
    fn receive_flows(&mut self, sockets: Vec<OwnedFd>, body: Vec<u8>) -> Result<(), HandoverError> {
        let fault = |why: String| HandoverError::Content { kind: kind::FLOWS, why };
        let listeners = self.listeners.as_ref().ok_or(HandoverError::Kind(kind::FLOWS))?;
        let inboxes = &self.workers.process.inboxes;
        let via = flows::via(&body).map_err(|error| fault(error.to_string()))?;
        let worker = worker_of_flows(listeners, via, inboxes.workers());
        // Without one that reads their socket, any ends them, with their lines.
        let placed =
            inboxes.deliver_flows(worker.unwrap_or(0), (body, sockets), MESSAGE_TIMEOUT)?;
        let Placed { served, ended } = placed.map_err(fault)?;
        if ended > 0 {
            tracing::error!(
                "{ended} flows of QUIC end: there is no room for them, or they cannot be read"
            );
        }
        self.flows += served;
        Ok(())
    }

    /// Receives the parts of a group whose first one has come. An order to stop waits for the last.
    /// Returns how many connections are taken over.
    fn receive_group(&mut self, received: &Received, body: &[u8]) -> Result<usize, HandoverError> {
        let fault = |fault: PartFault| {
            Err(HandoverError::Content { kind: kind::PART, why: fault.to_string() })
        };
        let process = &self.workers.process;
        let mut group = match IncomingGroup::begin(body, &received.descriptors, process) {
            Ok(group) => group,
            Err(why @ PartFault::NoRoom(_)) => {
                let why = Some(why.to_string());
                self.answer(&HandoverReceived { refused: vec![0], why })?;
                return Ok(0);
            }
            Err(why) => return fault(why),
        };
        tell(&mut self.channel, kind::RECEIVED, &HandoverReceived::default())?;
        loop {
            let (received, body) = receive(&mut self.channel, Some(MESSAGE_TIMEOUT))?;
            if received.kind != kind::PART {
                return Err(HandoverError::Kind(received.kind));
            }
            group = match group.add(&body, received.descriptors) {
                Ok(GroupProgress::More(more)) => more,
                Ok(GroupProgress::Whole(batch)) => return self.receive_batch(batch),
                Err(why) => return fault(why),
            };
        }
    }

    /// Returns how many connections are taken over.
    fn receive_batch(&mut self, batch: ConnectionBatch) -> Result<usize, HandoverError> {
        let (batch, commit) = match self.predecessors.deliver(&self.workers, batch)? {
            Ok(delivered) => delivered,
            Err(why) => {
                tracing::error!("{why}");
                self.channel.send(kind::REFUSED, why.as_bytes(), &[], MESSAGE_TIMEOUT)?;
                return Ok(0);
            }
        };
        let why = batch.why.map(|why| why.to_string());
        self.answer(&HandoverReceived { refused: batch.refused, why })?;
        // A worker that has ended has closed them.
        let _ = commit.send(());
        Ok(batch.taken)
    }

    /// Says what is taken, and waits for the commit.
    fn answer(&mut self, taken: &HandoverReceived) -> Result<(), HandoverError> {
        // No time limit: the other process commits, or ends this one, or is dead.
        let told = tell(&mut self.channel, kind::RECEIVED, taken);
        match told.and_then(|()| receive(&mut self.channel, None)) {
            Ok((received, _)) if received.kind == kind::COMMIT => Ok(()),
            Ok((received, _)) => Err(HandoverError::Kind(received.kind)),
            // It closes the channel only after it has ended this process, or if it touches the
            // connections never again. So nobody else has them.
            Err(error) if error.is_closed() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
