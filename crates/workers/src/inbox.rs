//! The inboxes of workers: datagrams that another one has received, because the kernel chooses a
//! socket by the client's address, and a client may have moved; and flows of an earlier process.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use eyelet_flows::peer::Peer;
use tokio::sync::Notify;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Datagrams that wait for a worker: what a client sends at once after it has moved, 16 times. More
/// are dropped, as by a full queue of a router.
const INBOX_MAX: usize = 256;

/// Longest datagram that is handed on: what a network takes whole. So an inbox has 384 KB at most.
const HANDED_BYTES_MAX: usize = 1_500;

/// A datagram, and who sent it to whom.
#[derive(Debug)]
pub struct HandedDatagram {
    pub peer: Peer,
    /// The listener that it came to.
    pub listener: u16,
    pub bytes: Box<[u8]>,
    pub ecn: u8,
}

/// Messages about flows that wait for a worker. The process that sends them waits for each answer.
const FLOW_MESSAGES_MAX: usize = 1;
/// The time for which workers wait for the end of flows whose first ones have come: longer than the
/// process before may take to send a message. Before the first ones that process may still finish
/// connections, and as its end closes the channel there is no limit.
const FLOWS_AWAITED: Duration = Duration::from_secs(25);
/// The time between two looks for room in a worker's queue.
const ROOM_STEP: Duration = Duration::from_millis(1);

/// Flows that a worker may still have to end for others' new ones. So many connections may be open
/// beyond their limit for a moment; beyond that each worker ends its own.
const OWED_MAX: usize = 64;
/// A worker with so many more unanswered flows than another one ends one for it. Workers with about
/// as many need not ask each other.
const UNANSWERED_MARGIN: usize = 16;
/// A worker whose longest idle flow was idle for so much longer ends it for another one, in
/// milliseconds.
const IDLE_MARGIN_MS: u64 = 1_000;

/// The flows of a worker that end first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstToShed {
    /// Those that no server has answered.
    pub unanswered: usize,
    /// The time since when the longest idle other one is idle, in milliseconds; the greatest number
    /// if there is none.
    pub idle_since_ms: u64,
}

/// The flows that a worker has to end for others, and those that it has.
#[derive(Debug)]
pub struct SheddingFlows {
    owed: AtomicUsize,
    asked: Notify,
    /// [`FirstToShed`], as the worker has last said it.
    unanswered: AtomicUsize,
    idle_since_ms: AtomicU64,
}

impl Default for SheddingFlows {
    fn default() -> Self {
        let [owed, unanswered] = [const { AtomicUsize::new(0) }; 2];
        let idle_since_ms = AtomicU64::new(u64::MAX);
        Self { owed, asked: Notify::new(), unanswered, idle_since_ms }
    }
}

impl SheddingFlows {
    /// Waits until flows are to be ended.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }

    /// The number of flows to end.
    pub fn take_owed(&self) -> usize {
        self.owed.swap(0, Relaxed)
    }

    fn first(&self) -> FirstToShed {
        let unanswered = self.unanswered.load(Relaxed).saturating_sub(self.owed.load(Relaxed));
        FirstToShed { unanswered, idle_since_ms: self.idle_since_ms.load(Relaxed) }
    }
}

impl FirstToShed {
    /// True if one of these flows ends before all of another worker's.
    fn goes_before(&self, other: &Self) -> bool {
        match (self.unanswered, other.unanswered) {
            (0, 0) => self.idle_since_ms.saturating_add(IDLE_MARGIN_MS) < other.idle_since_ms,
            (0, _) => false,
            (_, 0) => true,
            (own, others) => own > others + UNANSWERED_MARGIN,
        }
    }
}

/// News of an earlier process's flows.
pub enum FlowNews {
    /// A message with some of them, and their sockets. The answer says how many are served, and how
    /// many have ended because they have no room here or cannot be read, or why the message cannot
    /// be read.
    Message { body: Vec<u8>, sockets: Vec<OwnedFd>, placed: SyncSender<Result<Placed, String>> },
    /// All have come: listening sockets are read from now on.
    All,
}

/// The end of the flows of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    pub served: usize,
    pub ended: usize,
}

/// The places where things arrive for a worker. All of them share the bytes of a datagram, and a
/// channel holds room for 32 of its values from the start: they are small.
pub struct Inbox {
    pub datagrams: Receiver<Arc<HandedDatagram>>,
    pub flows: Receiver<FlowNews>,
    pub shedding: Arc<SheddingFlows>,
}

/// The ways to all workers of a process.
#[derive(Debug, Default)]
pub struct Inboxes {
    workers: OnceLock<Vec<Ways>>,
    /// True while the flows of an earlier process are still to come: see
    /// [`FlowNews::All`].
    awaits_flows: AtomicBool,
    /// The time of the first of them.
    first_flows: OnceLock<Instant>,
}

/// The ways to one worker.
#[derive(Debug)]
struct Ways {
    datagrams: Sender<Arc<HandedDatagram>>,
    flows: Sender<FlowNews>,
    shedding: Arc<SheddingFlows>,
}

impl Inboxes {
    /// Makes the inboxes of so many workers, once.
    pub fn open(&self, workers: usize) -> Vec<Inbox> {
        let each = |_| {
            let (datagrams, received) = channel(INBOX_MAX);
            let (flows, arrived) = channel(FLOW_MESSAGES_MAX);
            let shedding = Arc::<SheddingFlows>::default();
            let ways = Ways { datagrams, flows, shedding: shedding.clone() };
            (ways, Inbox { datagrams: received, flows: arrived, shedding })
        };
        let (ways, inboxes) = (0..workers).map(each).unzip();
        // A second call would be a mistake of the caller; the first workers keep theirs.
        let _ = self.workers.set(ways);
        inboxes
    }

    /// Gives a datagram to the other workers. Returns whether one has room for it.
    pub fn hand_on(&self, from: u16, (peer, listener): (Peer, u16), bytes: &[u8], ecn: u8) -> bool {
        let workers = self.workers.get().filter(|_| bytes.len() <= HANDED_BYTES_MAX);
        let Some(workers) = workers else { return false };
        let datagram = Arc::new(HandedDatagram { peer, listener, bytes: bytes.into(), ecn });
        let others = workers.iter().enumerate().filter(|(index, _)| *index != usize::from(from));
        others.fold(false, |had, (_, ways)| had | ways.datagrams.try_send(datagram.clone()).is_ok())
    }

    /// Says which flows of a worker end first.
    pub fn note_first_to_shed(&self, worker: u16, first: FirstToShed) {
        let ways = self.workers.get().and_then(|workers| workers.get(usize::from(worker)));
        let Some(Ways { shedding, .. }) = ways else { return };
        shedding.unanswered.store(first.unanswered, Relaxed);
        shedding.idle_since_ms.store(first.idle_since_ms, Relaxed);
    }

    /// Has another worker end a flow soon, if it has one that ends before this worker's `first`.
    /// Returns whether it will.
    pub fn shed_elsewhere(&self, worker: u16, first: FirstToShed) -> bool {
        let workers = self.workers.get().into_iter().flatten().enumerate();
        let others = workers.filter(|(index, _)| *index != usize::from(worker));
        let mut chosen = (first, None);
        for (_, Ways { shedding, .. }) in others {
            let other = shedding.first();
            let is_next = match chosen {
                (_, None) => other.goes_before(&first),
                (best, Some(_)) => {
                    other.unanswered > best.unanswered
                        || other.unanswered == best.unanswered
                            && other.idle_since_ms < best.idle_since_ms
                }
            };
            if is_next && shedding.owed.load(Relaxed) < OWED_MAX {
                chosen = (other, Some(shedding));
            }
        }
        let Some(shedding) = chosen.1 else { return false };
        shedding.owed.fetch_add(1, Relaxed);
        shedding.asked.notify_one();
        true
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.workers.get().map_or(0, Vec::len)
    }

    /// Has workers that begin to listen read nothing before [`Inboxes::end_flows`].
    pub fn await_flows(&self) {
        self.awaits_flows.store(true, Relaxed);
    }

    /// True between [`Inboxes::await_flows`] and [`Inboxes::end_flows`], unless that is overdue.
    pub fn awaits_flows(&self) -> bool {
        self.has_open_flows()
            && self.first_flows.get().is_none_or(|first| first.elapsed() < FLOWS_AWAITED)
    }

    /// True between [`Inboxes::await_flows`] and [`Inboxes::end_flows`], also if that is overdue.
    pub fn has_open_flows(&self) -> bool {
        self.awaits_flows.load(Relaxed)
    }

    /// Has a worker serve the flows of a message, within this time. Returns what became of them, or
    /// why the message cannot be read.
    ///
    /// # Errors
    /// The worker has ended, or is too slow.
    pub fn deliver_flows(
        &self,
        worker: usize,
        (body, sockets): (Vec<u8>, Vec<OwnedFd>),
        within: Duration,
    ) -> io::Result<Result<Placed, String>> {
        self.first_flows.get_or_init(Instant::now);
        let (placed, said) = sync_channel(1);
        self.send(worker, FlowNews::Message { body, sockets, placed }, within)?;
        said.recv_timeout(within).map_err(|error| match error {
            RecvTimeoutError::Timeout => io::ErrorKind::TimedOut.into(),
            RecvTimeoutError::Disconnected => io::ErrorKind::BrokenPipe.into(),
        })
    }

    /// Ends the wait for flows of an earlier process: all workers read their listening sockets. One
    /// that does not listen yet reads them after `within`.
    pub fn end_flows(&self, within: Duration) {
        if !self.awaits_flows.swap(false, Relaxed) {
            return;
        }
        for worker in 0..self.workers() {
            // One that is too slow sees by itself that it need not wait.
            let _ = self.send(worker, FlowNews::All, within);
        }
    }

    fn send(&self, worker: usize, mut news: FlowNews, within: Duration) -> io::Result<()> {
        let ways = self.workers.get().and_then(|workers| workers.get(worker));
        let ways = ways.ok_or(io::ErrorKind::NotFound)?;
        let end = Instant::now() + within;
        loop {
            news = match ways.flows.try_send(news) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Closed(_)) => return Err(io::ErrorKind::BrokenPipe.into()),
                Err(TrySendError::Full(_)) if Instant::now() >= end => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(TrySendError::Full(news)) => news,
            };
            std::thread::park_timeout(ROOM_STEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_is_bounded_in_datagrams_and_bytes() {
        let inboxes = Inboxes::default();
        let mut receivers = inboxes.open(2);
        let peer = Peer::new(([192, 0, 2, 1], 1).into(), ([192, 0, 2, 2], 443).into());
        let hand_on = |len| inboxes.hand_on(0, (peer, 0), &vec![0x40; len], 0);
        assert!(!hand_on(HANDED_BYTES_MAX + 1));
        let taken = (0..2 * INBOX_MAX).filter(|_| hand_on(HANDED_BYTES_MAX)).count();
        assert_eq!(taken, INBOX_MAX);
        let mut bytes = 0;
        while let Ok(handed) = receivers[1].datagrams.try_recv() {
            bytes += handed.bytes.len();
        }
        assert_eq!(bytes, INBOX_MAX * HANDED_BYTES_MAX);
        assert!(receivers[0].datagrams.try_recv().is_err(), "who has received it keeps it");
    }
}
