//! The messages between workers and the thread that speaks to the other process, while connections
//! move from one process to another.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use eyelet_handover::flows::FlowBatch;
use eyelet_sys::channel::DESCRIPTORS_MAX;
use eyelet_telemetry::listing::streams::StreamCounts;
use tokio::sync::mpsc::{self, channel};
use zeroize::Zeroizing;

/// Descriptors of one batch: those of one message.
pub const BATCH_DESCRIPTORS_MAX: usize = DESCRIPTORS_MAX;
/// A batch with more bytes of state than this takes no more connections. An idle connection has
/// some hundred bytes, one with a slow peer some hundred KiB.
pub const BATCH_BYTES: usize = 4 << 20;
/// Messages that carry the sockets of one group at most. Its states are one message of 16 MiB,
/// which is 4 KiB for each of so many sockets. All of it leaves, and is placed, in one piece, and a
/// larger one would keep its worker from others for longer.
pub const GROUP_PARTS_MAX: usize = 16;
/// Descriptors of one group.
pub const GROUP_DESCRIPTORS_MAX: usize = GROUP_PARTS_MAX * BATCH_DESCRIPTORS_MAX;
/// Upper bound of a worker's messages in the queue: one batch, or some of its flows of QUIC, and
/// two notes, that all has passed and that it has left.
const LEAVING_MAX: usize = 3;

/// Parked connections on their way to another process.
pub struct LeavingBatch {
    /// Their states, which are secret.
    pub states: Zeroizing<Vec<u8>>,
    /// Their sockets, in the order of the states. The worker has them too: duplicates would need
    /// free descriptors, and an upgrade must work where none is left.
    pub sockets: Vec<Arc<OwnedFd>>,
    /// The number of a group that one message does not carry: the id of its first connection. It is
    /// alone, and its message is all of the states.
    pub group: Option<u64>,
}

/// Counts of a parcel, which moves as one: a connection, or a group of some.
#[derive(Clone, Copy, Debug, Default)]
pub struct ParcelCounts {
    /// Its connections.
    pub connections: usize,
    /// The requests and streams that rest on them.
    pub streams: StreamCounts,
}

/// A message of a worker of the earlier process.
pub enum Leaving {
    /// The worker with this index reads no datagrams of clients any more, and gives some flows of
    /// which the other process reads the sockets. It keeps copies, and waits for the
    /// [`BatchAnswer`]. This comes first, where [`Departure::moves_flows`], and the last one says
    /// so.
    Flows {
        /// The worker.
        worker: usize,
        /// The flows.
        batches: Vec<FlowBatch>,
        /// True if no more follow.
        are_last: bool,
    },
    /// The worker with this index has detached these connections. It keeps a copy, which nobody
    /// touches, and waits for the [`BatchAnswer`].
    Batch {
        /// The worker.
        worker: usize,
        /// The counts of each connection or group.
        parcels: Vec<ParcelCounts>,
        /// The connections.
        batch: LeavingBatch,
    },
    /// Everything that was parked has left, or the other process takes no more. What is still
    /// active follows when it is parked.
    ParkedMoved,
    /// This worker has no connection left, or drains what it has. It waits for
    /// [`BatchAnswer::Over`], unless it drains.
    Left,
}

/// The fate of a worker's batch, or of some of its flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchAnswer {
    /// The other process owns the connections and groups, except for those with these indexes,
    /// which it has dropped. This process never touches the others again. Of flows these are the
    /// indexes of batches.
    Committed {
        /// In ascending order.
        refused: Vec<usize>,
    },
    /// The other process takes none of them, and no others.
    Refused,
    /// All workers have left: the worker ends.
    Over,
}

/// The means by which a worker leaves: it gets them with
/// [`Order::HandOver`](crate::process::Order::HandOver).
pub struct Departure {
    /// The listening sockets that the other process accepts from now.
    pub kept: Arc<[Arc<OwnedFd>]>,
    /// The queue of its batches. It has one on the way at most.
    pub batches: SyncSender<Leaving>,
    /// Most descriptors of a batch: as many as the other process keeps free for one.
    pub descriptors_max: usize,
    /// The other process reads messages of versions below this one. `None`: of all.
    pub reads_below: Option<u16>,
    /// The other process takes flows of QUIC, and reads no datagram before it has them. Otherwise
    /// they end here.
    pub moves_flows: bool,
    /// Their answers. The end of this queue means that the other process is dead: the worker takes
    /// its batch back and serves on.
    pub answers: mpsc::Receiver<BatchAnswer>,
    /// The time that active connections may take, at most `drain_timeout`. `None`: as long as they
    /// need.
    pub active_max: Option<Duration>,
}

/// The departure of each worker, the queues of their answers, and the queue on which they are
/// heard.
pub type Departing = (Vec<Departure>, Vec<mpsc::Sender<BatchAnswer>>, Receiver<Leaving>);

/// Has so many workers leave: see [`Departure`].
pub fn departures(
    workers: usize,
    kept: &Arc<[Arc<OwnedFd>]>,
    descriptors_max: usize,
    active_max: Option<Duration>,
) -> Departing {
    let (batches, leaving) = sync_channel(LEAVING_MAX * workers);
    let each = (0..workers).map(|_| {
        let (answer, answers) = channel(1);
        let (kept, batches) = (kept.clone(), batches.clone());
        let departure = Departure {
            kept,
            batches,
            descriptors_max,
            reads_below: None,
            moves_flows: false,
            answers,
            active_max,
        };
        (departure, answer)
    });
    let (departures, answers) = each.unzip();
    (departures, answers, leaving)
}

/// The things that [`collect`] keeps.
pub enum Kept<'a> {
    /// A batch of connections.
    Connections(&'a LeavingBatch),
    /// A batch of flows of QUIC.
    Flows(&'a FlowBatch),
    /// No flows follow.
    FlowsEnd,
}

/// The result of [`collect`].
#[derive(Debug)]
pub struct Collected {
    /// The number of connections that were kept.
    pub kept: usize,
    /// The number of flows of QUIC that were kept.
    pub flows: usize,
    /// True if there was no room for others.
    pub is_full: bool,
    /// The reason why it stopped before all workers had left.
    pub stopped: Option<CollectError>,
}

/// The reason why not all connections could be collected.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// One batch cannot be kept.
    #[error("{0}")]
    Keep(io::Error),
    /// The time is over.
    #[error("workers are too slow to give them up")]
    Slow,
}

impl Collected {
    fn stopped_by(self, error: CollectError) -> Self {
        Self { stopped: Some(error), ..self }
    }
}

/// Has all workers give up what they have, until they have left. `keep` gets each batch, and hears
/// of the end of all flows; it returns whether it has room for it. Otherwise all of the batch go
/// back to their worker, and end there.
/// After an error of `keep`, or at `end`, workers take back what was not answered.
pub fn collect(
    departures: (Vec<mpsc::Sender<BatchAnswer>>, Receiver<Leaving>),
    end: Instant,
    mut keep: impl FnMut(Kept<'_>) -> io::Result<bool>,
) -> Collected {
    let (answers, leaving) = departures;
    let mut collected = Collected { kept: 0, flows: 0, is_full: false, stopped: None };
    let (mut active, mut with_flows) = (answers.len(), answers.len());
    let tell = |worker: usize, answer: BatchAnswer| {
        if let Some(worker) = answers.get(worker) {
            // The worker waits for it, or it has ended.
            let _ = worker.try_send(answer);
        }
    };
    while active > 0 {
        match leaving.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Leaving::Batch { worker, parcels, batch }) => {
                let has_room = match keep(Kept::Connections(&batch)) {
                    Ok(has_room) => has_room,
                    Err(error) => return collected.stopped_by(CollectError::Keep(error)),
                };
                // The worker uses the sockets of those that go back.
                drop(batch);
                if has_room {
                    collected.kept +=
                        parcels.iter().map(|parcel| parcel.connections).sum::<usize>();
                } else {
                    collected.is_full = true;
                }
                let refused = (0..if has_room { 0 } else { parcels.len() }).collect();
                tell(worker, BatchAnswer::Committed { refused });
            }
            Ok(Leaving::Flows { worker, batches, are_last }) => {
                with_flows = with_flows.saturating_sub(usize::from(are_last));
                match keep_flows(&mut keep, &batches, with_flows == 0) {
                    Ok((flows, refused)) => {
                        collected.flows += flows;
                        collected.is_full |= !refused.is_empty();
                        tell(worker, BatchAnswer::Committed { refused });
                    }
                    Err(error) => return collected.stopped_by(CollectError::Keep(error)),
                }
            }
            Ok(Leaving::ParkedMoved) => {}
            Ok(Leaving::Left) => active -= 1,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => return collected.stopped_by(CollectError::Slow),
        }
    }
    for worker in &answers {
        // One that drains does not wait for it.
        let _ = worker.try_send(BatchAnswer::Over);
    }
    collected
}

/// Keeps flows. Returns how many, and the indexes of the batches without room.
fn keep_flows(
    keep: &mut impl FnMut(Kept<'_>) -> io::Result<bool>,
    batches: &[FlowBatch],
    are_all: bool,
) -> io::Result<(usize, Vec<usize>)> {
    let (mut flows, mut refused) = (0, Vec::new());
    for (index, batch) in batches.iter().enumerate() {
        match keep(Kept::Flows(batch))? {
            true => flows += batch.flows,
            false => refused.push(index),
        }
    }
    if are_all {
        // Without room for it the end of all says the same.
        keep(Kept::FlowsEnd)?;
    }
    Ok((flows, refused))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn batch(worker: usize, connections: usize) -> (Leaving, Arc<OwnedFd>) {
        let socket = Arc::new(eyelet_sys::socket::pair().unwrap().0);
        let sockets = vec![socket.clone()];
        let batch = LeavingBatch { states: Zeroizing::default(), sockets, group: None };
        let parcels = vec![ParcelCounts { connections: 1, ..Default::default() }; connections];
        (Leaving::Batch { worker, parcels, batch }, socket)
    }

    #[test]
    fn what_has_no_room_goes_back_whole() {
        let none: Arc<[Arc<OwnedFd>]> = Arc::new([]);
        let (mut workers, answers, leaving) = departures(2, &none, 100, None);
        let ((first, kept), (second, back)) = (batch(0, 3), batch(1, 2));
        for leaving in [first, second, Leaving::ParkedMoved, Leaving::Left, Leaving::Left] {
            workers[0].batches.try_send(leaving).unwrap();
        }
        let mut room = [true, false].into_iter();
        let end = Instant::now() + Duration::from_secs(20);
        let collected = collect((answers, leaving), end, |_| Ok(room.next().unwrap()));
        assert_eq!((collected.kept, collected.is_full), (3, true));
        assert!(collected.stopped.is_none());
        let told: Vec<_> =
            workers.iter_mut().map(|worker| worker.answers.try_recv().unwrap()).collect();
        let refused = [vec![], vec![0, 1]].map(|refused| BatchAnswer::Committed { refused });
        assert_eq!(told, refused);
        // Only the worker has the sockets by the time of its answer.
        assert_eq!([Arc::strong_count(&kept), Arc::strong_count(&back)], [1; 2]);
    }

    #[test]
    fn what_was_kept_before_an_error_stays_kept_and_the_rest_goes_back() {
        let none: Arc<[Arc<OwnedFd>]> = Arc::new([]);
        let soon = Duration::from_secs(20);
        for (within, fails) in [(soon, true), (Duration::ZERO, false)] {
            let (mut workers, answers, leaving) = departures(2, &none, 100, None);
            let ((first, _kept), (second, back)) = (batch(0, 3), batch(1, 2));
            workers[0].batches.try_send(first).unwrap();
            if fails {
                workers[0].batches.try_send(second).unwrap();
            } else {
                drop(second);
            }
            let mut results = [Ok(true), Err(io::ErrorKind::Other.into())].into_iter();
            let end = Instant::now() + within;
            let collected = collect((answers, leaving), end, |_| results.next().unwrap());
            assert_eq!((collected.kept, collected.is_full), (3, false));
            assert_eq!(matches!(collected.stopped, Some(CollectError::Keep(_))), fails);
            let refused = vec![];
            let told = workers[0].answers.try_recv().unwrap();
            assert_eq!(told, BatchAnswer::Committed { refused });
            let over = Err(mpsc::error::TryRecvError::Disconnected);
            assert_eq!(workers[1].answers.try_recv(), over, "it takes its batch back");
            assert_eq!(Arc::strong_count(&back), 1);
        }
    }
}
