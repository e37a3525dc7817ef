//! Takes batches of parked connections out of a worker, and places them into one of another
//! process.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use eyelet_memory::slab::Key;
use eyelet_sys::channel::BODY_BYTES_MAX;
use eyelet_telemetry::counters::Counters;
use thiserror::Error;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use crate::departure::{BATCH_BYTES, BATCH_DESCRIPTORS_MAX, LeavingBatch, ParcelCounts};
use crate::moving::group::{DetachedGroup, SocketRoom};
use crate::moving::handover::{Detached, ImportError, MESSAGE_BYTES_MAX, Stays};
use crate::moving::parcel::Parcel;
use crate::moving::parts::ConnectionBatch;
use crate::moving::staying::Staying;
use crate::ready::FURTHER_MAX;
use crate::worker::{Process, Worker};
use eyelet_table::{Slot, SlotState};

/// Descriptors of a connection without further sockets: the client's and the upstream's. The
/// smallest batch has so many.
pub const CONNECTION_DESCRIPTORS: usize = 2;
/// Connections that are placed in one iteration, in a fraction of a millisecond.
pub(crate) const PLACED_AT_ONCE: usize = 32;
/// Slots that a search looks at between two looks at the clock, while it has found nothing. So many
/// cost more than the clock, and little of a batch's time.
const CLOCK_SLOTS: u32 = 1024;
/// Before each state: its length in 4 bytes and the number of its sockets in 1, in big-endian
/// order.
const PREFIX_BYTES: usize = 5;

/// The last connection of a batch may be as large as one can be.
const _: () = assert!(BATCH_BYTES + PREFIX_BYTES + MESSAGE_BYTES_MAX <= BODY_BYTES_MAX);

/// The largest connection, with all its further sockets, fits a batch.
const _: () = assert!(FURTHER_MAX < BATCH_DESCRIPTORS_MAX);

/// Detached connections and their encoded form.
pub struct Detachment {
    /// The connections and groups.
    pub parcels: Vec<Parcel>,
    /// The counts of each.
    pub counts: Vec<ParcelCounts>,
    /// Their form for the other process.
    pub batch: LeavingBatch,
}

/// The result of a search for connections that leave.
pub enum SearchResult {
    /// Connections, which are detached now.
    Batch(Detachment),
    /// None in so many slots, and its time is over. It is to go on behind them.
    NotThrough(u32),
    /// None.
    Nothing,
}

/// A batch that arrives in a worker of the new process.
pub struct Arrival {
    /// The connections.
    pub batch: ConnectionBatch,
    /// True if the other process serves on what the worker does not take. Otherwise it ends here.
    pub may_go_back: bool,
    /// Gets what the worker takes of it, or the reason if it takes nothing.
    pub read: SyncSender<Result<BatchRead, String>>,
    /// Says that the other process has given the connections up. They must not be touched before.
    pub committed: oneshot::Receiver<()>,
}

/// The places where connections of an earlier process arrive.
#[derive(Clone)]
pub struct Arrivals {
    /// For each worker a queue and its counters.
    pub workers: Vec<(Sender<Arrival>, Arc<Counters>)>,
    /// The process, which counts what is on its way to them.
    pub process: Arc<Process>,
}

/// The part of a batch that a worker takes, and what has it serve that. Otherwise why it takes
/// nothing.
pub type Delivered = Result<(BatchRead, oneshot::Sender<()>), String>;

/// The part of a batch that a worker takes. The rest does not live on here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchRead {
    /// The number of connections that it takes.
    pub taken: usize,
    /// The indexes of the connections and groups that it does not take, in ascending order.
    pub refused: Vec<usize>,
    /// The reason why it does not take the first of them.
    pub why: Option<RefusalReason>,
}

/// The reason why a worker does not take a connection of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RefusalReason {
    /// Its state is not what this program reads.
    #[error("its state cannot be read: {0}")]
    Import(#[from] ImportError),
    /// The workers of this process leave.
    #[error("the process that would take it is being replaced")]
    Leaving,
    /// `connections_max`, the descriptors or the memory leave no room for it.
    #[error("there is no room for it: connections_max, descriptors or memory_max are used up")]
    NoRoom,
}

/// A batch's lengths do not match its bytes or its sockets, so none of it can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a batch of connections has wrong lengths")]
pub struct BatchError;

/// Detaches the next parked connections of a worker, with so many descriptors at most, and looks at
/// so many slots at most. Behind `end` it takes no more than one. Those in `staying` stay.
pub fn next(
    worker: &Rc<Worker>,
    descriptors_max: usize,
    slots_max: u32,
    end: Instant,
    staying: &Staying,
) -> SearchResult {
    let mut taken = Taken::default();
    // Otherwise the table, which may be large, would be searched in vain.
    let slots = if worker.counters.parked.value() == 0 { 0 } else { worker.table.borrow().slots() };
    for looked in 0..slots.min(slots_max) {
        let has_one = !taken.parcels.is_empty();
        let may_be_late = has_one || looked % CLOCK_SLOTS == CLOCK_SLOTS - 1;
        match may_be_late && Instant::now() >= end {
            true if has_one => break,
            true => return SearchResult::NotThrough(looked),
            false if taken.is_full(descriptors_max) => break,
            false => {}
        }
        let key = worker.table.borrow().next_keys(&worker.moving.cursor, 1).next();
        let Some(key) = key.filter(|key| !staying.has(*key)) else { continue };
        let room = SocketRoom::of(worker, descriptors_max, taken.sockets.len());
        match Parcel::detach(worker, key, room) {
            Ok(parcel) => {
                let state = parcel.encode();
                if state.len() > MESSAGE_BYTES_MAX {
                    keep_large(worker, parcel);
                } else {
                    taken.counts.push(parcel.counts(worker));
                    taken.add(parcel, state);
                }
            }
            // The next batch begins with it. A group of more than that has one of its own.
            Err(Stays::Sockets(sockets)) if has_one && sockets <= room.group_max => {
                worker.moving.cursor.set(key.index);
                break;
            }
            Err(_) => {}
        }
    }
    if taken.parcels.is_empty() {
        SearchResult::Nothing
    } else {
        SearchResult::Batch(taken.finish(descriptors_max))
    }
}

/// Places detached connections and groups into a worker. Returns the keys of the connections of
/// each. Those that have no room there end.
pub fn put_back(worker: &Rc<Worker>, parcels: impl IntoIterator<Item = Parcel>) -> Vec<Vec<Key>> {
    let mut placed = Vec::new();
    for parcel in parcels {
        match parcel.attach(worker) {
            Ok(keys) => placed.push(keys),
            Err(parcel) => parcel.close(worker),
        }
    }
    placed
}

/// Parks a group again that no message takes: the lengths of its names are not known before it is
/// written.
fn keep_large(worker: &Rc<Worker>, parcel: Parcel) {
    let keys = put_back(worker, [parcel]).concat();
    let why = || String::from("no message takes their states and names");
    worker.moving.large.borrow_mut().add(&keys, why);
}

/// Resumes all active connections once: those of HTTP/2 that have no stream park themselves then.
pub fn wake_active(worker: &Rc<Worker>) {
    let keys = worker.table.borrow().keys();
    for key in keys {
        wake_one(worker, key);
    }
}

/// Resumes a connection if it is active. Returns whether it is.
pub fn wake_one(worker: &Worker, key: Key) -> bool {
    let mut table = worker.table.borrow_mut();
    let Some(Slot { state: SlotState::Active { waits, .. }, .. }) = table.slot(key) else {
        return false;
    };
    worker.run_queue.wake(waits, key);
    true
}

/// Counts the connections and groups of a batch, as far as its lengths match its bytes.
pub fn count(batch: &ConnectionBatch) -> usize {
    if batch.group.is_some() {
        return 1;
    }
    let (mut count, mut rest) = (0, &batch.states[..]);
    while let Some(([l0, l1, l2, l3, _], behind)) = rest.split_first_chunk::<PREFIX_BYTES>() {
        let length = u32::from_be_bytes([*l0, *l1, *l2, *l3]) as usize;
        let Some((_, behind)) = behind.split_at_checked(length) else { break };
        (count, rest) = (count + 1, behind);
    }
    count
}

/// Has the worker with the fewest connections read a batch, within this time. `may_go_back` is that
/// of an [`Arrival`].
///
/// # Errors
/// If no worker is left, or it is too slow.
pub fn deliver(
    arrivals: &Arrivals,
    mut batch: ConnectionBatch,
    may_go_back: bool,
    within: Duration,
) -> io::Result<Delivered> {
    let mut workers: Vec<_> = arrivals.workers.iter().collect();
    workers.sort_by_key(|(_, counters)| counters.connections.value());
    let (read, is_read) = sync_channel(1);
    let (commit, committed) = oneshot::channel();
    batch.count(&arrivals.process.budget);
    let mut unsent = Some(Arrival { batch, may_go_back, read, committed });
    let mut error = ErrorKind::BrokenPipe;
    for (worker, _) in workers {
        let Some(arrival) = unsent.take() else { break };
        unsent = match worker.try_send(arrival) {
            Ok(()) => None,
            Err(TrySendError::Closed(arrival)) => Some(arrival),
            Err(TrySendError::Full(arrival)) => {
                // It was too slow before.
                error = ErrorKind::TimedOut;
                Some(arrival)
            }
        };
    }
    if unsent.is_some() {
        return Err(error.into());
    }
    match is_read.recv_timeout(within) {
        Ok(read) => Ok(read.map(|batch_read| (batch_read, commit))),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            Err(ErrorKind::TimedOut.into())
        }
    }
}

/// Places the batches that arrive into a worker, until their queue ends.
pub async fn arrive(worker: Rc<Worker>, mut arrivals: Receiver<Arrival>) {
    while let Some(arrival) = arrivals.recv().await {
        let Arrival { batch, may_go_back, read, committed } = arrival;
        let (said, parcels) = match admit(&worker, batch, may_go_back) {
            Ok((batch_read, parcels)) => (Ok(batch_read), parcels),
            Err(error) => (Err(error.to_string()), Vec::new()),
        };
        // Counted before the commit, which may come while the worker ends.
        worker.moving.unplaced.set(parcels.len());
        // The other end of this queue is the thread that waits for it, or it is gone.
        let is_heard = read.try_send(said).is_ok();
        if is_heard && committed.await.is_ok() {
            place(&worker, parcels).await;
        }
        worker.moving.unplaced.set(0);
    }
}

/// Places the connections of a batch a few at a time: others, and new ones, do not wait until all
/// of them have a slot, are registered and have been tried. A worker that ends gets all the rest at
/// once, so that it ends them properly.
async fn place(worker: &Rc<Worker>, parcels: Vec<Parcel>) {
    let mut parcels = parcels.into_iter();
    while parcels.len() > 0 {
        let ends = worker.is_draining() || worker.is_cutting();
        let count = if ends { usize::MAX } else { PLACED_AT_ONCE };
        put_back(worker, parcels.by_ref().take(count));
        worker.moving.unplaced.set(parcels.len());
        tokio::task::yield_now().await;
    }
}

/// Connections for one batch.
#[derive(Default)]
struct Taken {
    parcels: Vec<Parcel>,
    counts: Vec<ParcelCounts>,
    states: Vec<Zeroizing<Vec<u8>>>,
    state_bytes: usize,
    sockets: Vec<Arc<OwnedFd>>,
}

impl Taken {
    fn is_full(&self, descriptors_max: usize) -> bool {
        self.sockets.len() + CONNECTION_DESCRIPTORS > descriptors_max
            || self.state_bytes >= BATCH_BYTES
    }

    fn add(&mut self, parcel: Parcel, state: Zeroizing<Vec<u8>>) {
        self.state_bytes += PREFIX_BYTES + state.len();
        let mut prefix = Zeroizing::new((state.len() as u32).to_be_bytes().to_vec());
        prefix.push(parcel.shared_sockets().count() as u8);
        self.states.extend([prefix, state]);
        self.sockets.extend(parcel.shared_sockets().cloned());
        self.parcels.push(parcel);
    }

    fn finish(self, descriptors_max: usize) -> Detachment {
        // A group that leaves in parts is alone, so its message has no prefix.
        let is_in_parts = self.sockets.len() > descriptors_max;
        let first = self.parcels.first().and_then(|parcel| parcel.connections().first());
        let group = first.filter(|_| is_in_parts).map(Detached::id);
        // Allocated once, so that no copy of a secret is left behind.
        let mut states = Zeroizing::new(Vec::with_capacity(self.state_bytes));
        for state in self.states.iter().skip(is_in_parts.into()) {
            states.extend_from_slice(state);
        }
        let batch = LeavingBatch { states, sockets: self.sockets, group };
        Detachment { parcels: self.parcels, counts: self.counts, batch }
    }
}

/// Decides which connections and groups of a batch a worker takes, and reserves the room for them.
/// If the others may go back, they are dropped before this returns, because the other process uses
/// them again after the answer. If not, those that have no room are returned too: [`put_back`] ends
/// them properly.
///
/// # Errors
/// [`BatchError`]. All are dropped then.
pub fn admit(
    worker: &Worker,
    mut batch: ConnectionBatch,
    may_go_back: bool,
) -> Result<(BatchRead, Vec<Parcel>), BatchError> {
    batch.count(&worker.process.budget);
    let mut message = Some((batch.group.take(), batch.counted.take()));
    let is_group = message.as_ref().is_some_and(|(group, _)| group.is_some());
    let decoded = if is_group { vec![decode_group(batch)] } else { decode(batch)? };
    let mut batch_read = BatchRead::default();
    let mut parcels = Vec::new();
    for (index, decoded) in decoded.into_iter().enumerate() {
        let decoded = decoded.and_then(|parcel| pack(worker, parcel));
        if is_group {
            // It counts itself from here on. The others of a batch are still on their way.
            drop(message.take());
        }
        let taken = decoded.map_err(RefusalReason::from).and_then(|mut parcel| {
            let (has_room, count) = (parcel.reserve(worker), parcel.connections().len());
            if has_room || !may_go_back {
                parcels.push(parcel);
            }
            has_room.then_some(count).ok_or(RefusalReason::NoRoom)
        });
        match taken {
            Ok(count) => batch_read.taken += count,
            Err(why) => {
                batch_read.refused.push(index);
                batch_read.why.get_or_insert(why);
            }
        }
    }
    Ok((batch_read, parcels))
}

/// Has the program pack the states of a connection, or of a group, and read its links.
fn pack(worker: &Worker, parcel: Parcel) -> Result<Parcel, ImportError> {
    match parcel {
        Parcel::One(one) => pack_state(worker, one).map(Parcel::One),
        Parcel::Group(mut group) => {
            let packed = group.connections.into_iter().map(|one| pack_state(worker, one));
            group.connections = packed.collect::<Result<_, _>>()?;
            group.check_links(worker)?;
            Ok(Parcel::Group(group))
        }
    }
}

/// Has the program pack the state, which is whole as it was read. Only the program can tell whether
/// it reads it, or an exchange at rest.
fn pack_state(worker: &Worker, mut detached: Detached) -> Result<Detached, ImportError> {
    if let Some(exchange) = detached.exchange() {
        let decided = &detached.info.decided;
        let program = worker.program();
        let is_shared = !detached.streams.is_empty();
        let is_read =
            program.is_some_and(|program| program.reads_exchange(decided, exchange, is_shared));
        return is_read.then_some(detached).ok_or(ImportError::Exchange);
    }
    let Some(state) = detached.state() else { return Ok(detached) };
    let streams = (detached.further_count(), detached.streams.len());
    let decided = &detached.info.decided;
    let packed =
        worker.program().and_then(|program| program.pack_state(decided, state.first(), streams));
    detached.keep_state(packed.ok_or(ImportError::State)?)?;
    Ok(detached)
}

/// Reads a group that came in parts.
fn decode_group(batch: ConnectionBatch) -> Result<Parcel, ImportError> {
    DetachedGroup::decode(&batch.states, batch.sockets).map(Parcel::Group)
}

/// Reads all connections and groups of a batch.
fn decode(batch: ConnectionBatch) -> Result<Vec<Result<Parcel, ImportError>>, BatchError> {
    let mut parcels = Vec::with_capacity(batch.sockets.len());
    let (mut rest, mut sockets) = (&batch.states[..], batch.sockets.into_iter());
    while let Some((prefix, behind)) = rest.split_first_chunk::<PREFIX_BYTES>() {
        let [l0, l1, l2, l3, count] = *prefix;
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        let (state, behind) = behind.split_at_checked(length).ok_or(BatchError)?;
        let own: Vec<OwnedFd> = sockets.by_ref().take(count.into()).collect();
        if own.len() != usize::from(count) {
            return Err(BatchError);
        }
        parcels.push(Parcel::decode(state, own));
        rest = behind;
    }
    let is_whole = rest.is_empty() && sockets.next().is_none();
    if is_whole { Ok(parcels) } else { Err(BatchError) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::iteration::run;
    use crate::park::tests::{parked, terminated, with_state};
    use crate::testing::worker;
    use crate::worker::{Order, Orders, WorkerOrders};
    use eyelet_record::{Role, Session, Suite};
    use eyelet_relay::terminate::Terminated;
    use eyelet_relay::{Flow, Relay};
    use tokio::sync::mpsc::channel;

    /// A batch with these bytes and so many sockets.
    fn error_of(states: &[u8], sockets: usize) -> Option<BatchError> {
        let socket = || eyelet_sys::socket::pair().ok().map(|(socket, _)| socket);
        let sockets = std::iter::repeat_with(socket).take(sockets).flatten().collect();
        let states = Zeroizing::new(states.to_vec());
        decode(ConnectionBatch::new(states, sockets)).err()
    }

    #[test]
    fn a_batch_has_what_its_lengths_say() {
        assert_eq!(error_of(&[], 0), None);
        for (states, sockets) in [
            // A prefix that is cut, a state that is cut, sockets that are missing or left over.
            (&[0, 0, 0, 1][..], 0),
            (&[0, 0, 0, 2, 0, 7], 0),
            (&[0xff, 0xff, 0xff, 0xff, 0, 7], 0),
            (&[0, 0, 0, 1, 2, 7], 1),
            (&[], 1),
        ] {
            assert_eq!(error_of(states, sockets), Some(BatchError), "{states:?}");
        }
    }

    /// Parks so many connections, and takes them out again as a batch.
    fn detached(worker: &Rc<Worker>, count: usize, descriptors_max: usize) -> Detachment {
        (0..count).for_each(|_| _ = terminated(worker));
        found(next(worker, descriptors_max, u32::MAX, far(), &Staying::new()))
    }

    fn found(found: SearchResult) -> Detachment {
        let SearchResult::Batch(detachment) = found else { panic!("nothing can leave") };
        detachment
    }

    /// Parks a connection, and returns its client.
    fn with_client(worker: &Rc<Worker>) -> OwnedFd {
        let session = Session::tls13(Role::Server, Suite::Aes128Gcm, &[1; 32], &[2; 32], 0, 0);
        let (session, flow) = (session.unwrap(), Flow::default());
        parked(worker, Relay::Terminate(Terminated { session, flow })).1
    }

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(600)
    }

    /// The batch as the other process receives it.
    fn received(batch: &LeavingBatch) -> ConnectionBatch {
        let sockets = batch.sockets.iter().map(|socket| socket.try_clone().unwrap()).collect();
        ConnectionBatch::new(batch.states.clone(), sockets)
    }

    #[test]
    fn one_connection_that_cannot_be_read_does_not_keep_the_others() {
        let (old, new) = (worker(), worker());
        let Detachment { parcels, batch, .. } = detached(&old, 3, 100);
        let mut batch = received(&batch);
        // The version of the second state.
        let length = u32::from_be_bytes(batch.states[..4].try_into().unwrap()) as usize;
        batch.states[2 * PREFIX_BYTES + length] = 0x70;
        let second = batch.sockets[1].as_raw_fd();
        let (batch_read, taken) = admit(&new, batch, true).unwrap();
        assert_eq!((batch_read.taken, &batch_read.refused[..]), (2, &[1][..]));
        let why = batch_read.why.unwrap();
        assert!(matches!(why, RefusalReason::Import(ImportError::Version(_))), "{why}");
        // One owner: it is closed here before the other process hears of it.
        assert!(!taken.iter().any(|one| one.sockets().any(|own| own.as_raw_fd() == second)));
        assert_eq!(new.process.open.load(Relaxed), 2, "they are reserved");
        put_back(&new, taken);
        let stays = parcels.into_iter().nth(1);
        assert_eq!((put_back(&old, stays).len(), old.process.open.load(Relaxed)), (1, 1));
        assert_eq!(new.process.open.load(Relaxed), 2);
        assert_eq!(new.process.descriptors.load(Relaxed), 2);
    }

    /// This worker has no program, so nobody can read the state.
    #[test]
    fn a_state_that_the_program_does_not_read_stays() {
        let (old, new) = (worker(), worker());
        with_state(&old, &[7; 90]);
        let Detachment { parcels, batch, .. } = detached(&old, 1, 100);
        let (batch_read, taken) = admit(&new, received(&batch), true).unwrap();
        assert_eq!((batch_read.taken, &batch_read.refused[..]), (1, &[0][..]));
        assert_eq!(batch_read.why, Some(RefusalReason::Import(ImportError::State)));
        drop(batch);
        assert_eq!((taken.len(), put_back(&old, parcels).len()), (1, 2));
    }

    #[test]
    fn those_without_room_stay_and_the_room_of_the_others_is_kept() {
        let (old, new) = (worker(), worker());
        let mut limits = new.settings.get();
        limits.connections_max = 2;
        new.settings.set(limits);
        let Detachment { batch, .. } = detached(&old, 3, 100);
        let (batch_read, taken) = admit(&new, received(&batch), true).unwrap();
        assert_eq!((batch_read.taken, batch_read.refused), (2, vec![2]));
        assert_eq!(batch_read.why, Some(RefusalReason::NoRoom));
        // The other process has died before it committed them.
        drop(taken);
        assert_eq!(new.process.open.load(Relaxed), 0);
        assert_eq!(new.process.descriptors.load(Relaxed), 0);
    }

    #[test]
    fn those_without_room_end_properly_if_they_cannot_go_back() {
        let (old, new) = (worker(), worker());
        let mut limits = new.settings.get();
        limits.connections_max = 1;
        new.settings.set(limits);
        let Detachment { batch, .. } = detached(&old, 3, 100);
        let mut batch = received(&batch);
        // The version of the first state.
        batch.states[PREFIX_BYTES] = 0x70;
        let (batch_read, parcels) = admit(&new, batch, false).unwrap();
        assert_eq!((batch_read.taken, batch_read.refused), (1, vec![0, 2]));
        assert_eq!(parcels.len(), 2, "the last one is ended where it can say so");
        assert_eq!(put_back(&new, parcels).len(), 1);
        assert_eq!(new.process.open.load(Relaxed), 1);
        assert_eq!(new.table.borrow().keys().len(), 1);
    }

    #[test]
    fn a_batch_is_as_small_as_the_other_process_asks() {
        let old = worker();
        let Detachment { parcels, batch, .. } = detached(&old, 9, 5);
        assert_eq!((parcels.len(), batch.sockets.len()), (4, 4));
        // Each has one descriptor here, and none is duplicated.
        let shared = parcels.iter().zip(&batch.sockets);
        assert!(shared.into_iter().all(|(one, socket)| {
            one.sockets().all(|own| own.as_raw_fd() == socket.as_raw_fd())
        }));
        drop(batch);
        let mut staying = Staying::new();
        let back = put_back(&old, parcels);
        assert_eq!(back.concat().len(), 4);
        staying.add(&mut old.table.borrow_mut(), back);
        let rest = found(next(&old, 100, u32::MAX, far(), &staying));
        assert_eq!(rest.parcels.len(), 5, "those that stay are not taken again");
        assert!(matches!(next(&old, 100, u32::MAX, far(), &staying), SearchResult::Nothing));
    }

    #[test]
    fn a_batch_ends_with_its_time_and_has_one_connection_at_least() {
        let old = worker();
        (0..9).for_each(|_| _ = terminated(&old));
        let now = Instant::now();
        let detachment = found(next(&old, 100, u32::MAX, now, &Staying::new()));
        assert_eq!((detachment.parcels.len(), detachment.batch.sockets.len()), (1, 1));
        assert_eq!(old.counters.parked.value(), 8);
    }

    /// A large table in which nothing can leave is searched in parts, each of them once.
    #[test]
    fn a_search_in_vain_ends_with_its_time_and_goes_on() {
        let old = worker();
        (0..3 * CLOCK_SLOTS).for_each(|_| _ = terminated(&old));
        let (mut staying, keys) = (Staying::new(), old.table.borrow().keys());
        staying.add(&mut old.table.borrow_mut(), vec![keys]);
        let (mut left, mut parts) = (old.table.borrow().slots(), 0);
        while let SearchResult::NotThrough(looked) = next(&old, 100, left, Instant::now(), &staying)
        {
            assert!((1..CLOCK_SLOTS).contains(&looked), "{looked}");
            left -= looked;
            parts += 1;
        }
        assert!(parts >= 3 && left < CLOCK_SLOTS, "{parts} parts, and {left} slots");
    }

    /// A worker that is told to end at once, when the other process has just given its connections
    /// up, ends each of them by a close_notify.
    #[test]
    fn what_was_committed_ends_properly_if_the_worker_ends_then() {
        const MANY: usize = 4 * PLACED_AT_ONCE;
        for placed in [0, PLACED_AT_ONCE] {
            let (old, new) = (worker(), worker());
            let mut settings = new.settings.get();
            settings.drain_timeout = Duration::ZERO;
            new.settings.set(settings);
            let clients: Vec<OwnedFd> = (0..MANY).map(|_| with_client(&old)).collect();
            let left = found(next(&old, usize::MAX, u32::MAX, far(), &Staying::new()));
            let ((arrivals, queue), (read, is_read)) = (channel(1), sync_channel(1));
            let (commit, committed) = oneshot::channel();
            let batch = received(&left.batch);
            drop(left);
            let arrival = Arrival { batch, may_go_back: true, read, committed };
            assert!(arrivals.try_send(arrival).is_ok());
            let (order, orders) = tokio::sync::watch::channel(Orders::default());
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let ran = tokio::task::LocalSet::new().block_on(&runtime, async {
                tokio::task::spawn_local(arrive(new.clone(), queue));
                let mut commit = Some(commit);
                while new.counters.parked.value() < placed as u64 || commit.is_some() {
                    if let Ok(said) = is_read.try_recv() {
                        assert_eq!(said.unwrap().taken, MANY);
                        commit.take().unwrap().send(()).unwrap();
                    }
                    if placed > 0 || commit.is_some() {
                        tokio::task::yield_now().await;
                    }
                }
                order.send_modify(|orders| orders.add(Order::Drain));
                run(new.clone(), Vec::new(), WorkerOrders::new(orders)).await
            });
            ran.unwrap();
            assert_eq!(new.process.open.load(Relaxed), 0, "{placed}");
            for client in clients {
                let mut client = std::os::unix::net::UnixStream::from(client);
                let mut said = Vec::new();
                client.read_to_end(&mut said).unwrap();
                assert!(!said.is_empty(), "{placed}: it ended without a close_notify");
            }
        }
    }

    /// Between two parts of a batch the worker does what else there is to do.
    #[test]
    fn a_batch_that_arrives_lets_others_run() {
        let (old, new) = (worker(), worker());
        let Detachment { parcels, batch, .. } = detached(&old, 3 * PLACED_AT_ONCE, usize::MAX);
        let (batch_read, taken) = admit(&new, received(&batch), true).unwrap();
        assert_eq!(batch_read.taken, 3 * PLACED_AT_ONCE);
        drop((parcels, batch));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let seen = tokio::task::LocalSet::new().block_on(&runtime, async {
            let placing = tokio::task::spawn_local({
                let new = new.clone();
                async move { place(&new, taken).await }
            });
            let mut seen = Vec::new();
            while !placing.is_finished() {
                seen.push(new.counters.parked.value() as usize);
                tokio::task::yield_now().await;
            }
            seen
        });
        assert!(seen.iter().any(|placed| (1..=PLACED_AT_ONCE).contains(placed)), "{seen:?}");
        assert_eq!(new.counters.parked.value() as usize, 3 * PLACED_AT_ONCE);
    }
}
