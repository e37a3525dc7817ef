//! The search of a worker that leaves: it takes parked connections out, batch by batch, and says
//! how far it is.

use std::rc::Rc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use eyelet_memory::slab::Key;

use crate::departure::{BATCH_DESCRIPTORS_MAX, Leaving};
use crate::moving::batch::{self, CONNECTION_DESCRIPTORS, Detachment, SearchResult};
use crate::moving::parcel::Parcel;
use crate::moving::staying::Staying;
use crate::worker::Worker;
use eyelet_table::timer_wheel::TICK_MS;

/// The search for parked connections that leave.
pub struct Search {
    /// The time to search next.
    at: Instant,
    batches: SyncSender<Leaving>,
    /// Most descriptors of a batch.
    descriptors_max: usize,
    /// Connections that the other process has refused.
    staying: Staying,
    /// Slots that it has looked at in vain since it began anew.
    looked: u32,
    /// The slots whose connections were told to rest. `None`: all were.
    roused: Option<u32>,
    /// The time at which the last of them were told so, or at which the search began.
    roused_at: Instant,
    state: Searching,
}

/// The stage of a search.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Searching {
    /// It has found nothing more so many times. The first time does not count: tasks that wait for
    /// a request were woken, and park their connections before the second.
    Empty(u32),
    /// All that was parked has left. It goes on for what is parked later.
    ParkedMoved,
    /// The other process takes no more.
    Stopped,
    /// The other side knows that this worker has nothing left.
    Left,
}

/// After so long a batch takes no more connections, because the worker's others wait meanwhile: a
/// tenth of the pause that an upgrade may cost them.
const BATCH_TIME: Duration = Duration::from_millis(5);
/// Active connections that are told to rest at a time: those of a batch. The others are served as
/// before. Each byte of one that rests wakes it, so all of them together would keep the worker busy
/// until the last one has moved.
const ROUSED_MAX: usize = BATCH_DESCRIPTORS_MAX / CONNECTION_DESCRIPTORS;
/// A retired worker tells its active connections to rest once in so long. Who always moves bytes
/// would otherwise stay in this process, and end with it.
const ROUSED_AGAIN: Duration = Duration::from_secs(10);
/// The time for which connections then rest as soon as they can.
const AWAITED: Duration = Duration::from_secs(1);
/// Slots that are looked at for them at once.
const ROUSED_SLOTS: u32 = 4096;
/// Searches that found nothing, after which all that was parked has left.
const EMPTY_SEARCHES: u32 = 2;
/// Slots that a search looks at once all has left: what is parked later may wait for a few seconds,
/// and connections that cannot leave may fill the table.
const LATE_SLOTS_MAX: u32 = 4096;

impl Search {
    /// A search that begins now. Groups that were too large for an earlier process are looked at
    /// again: that process has died.
    pub fn new(worker: &Worker, batches: SyncSender<Leaving>, descriptors_max: usize) -> Self {
        worker.moving.large.take();
        let descriptors_max = descriptors_max.clamp(CONNECTION_DESCRIPTORS, BATCH_DESCRIPTORS_MAX);
        let (at, state, staying) = (Instant::now(), Searching::Empty(0), Staying::new());
        let (roused, roused_at) = (Some(0), at);
        Self { at, batches, descriptors_max, staying, looked: 0, roused, roused_at, state }
    }

    /// True if there may be active connections that were not told to rest.
    pub fn is_rousing(&self) -> bool {
        self.roused.is_some() && !self.is_over()
    }

    /// Has the active connections of a retired worker rest once in a while, and for a short time.
    pub fn rouse_again(&mut self, worker: &Worker) {
        if self.is_rousing() || self.is_over() {
            return;
        }
        let since = self.roused_at.elapsed();
        if since >= ROUSED_AGAIN {
            self.roused = Some(0);
        } else if since >= AWAITED {
            worker.moving.is_awaited.set(false);
        }
    }

    /// Wakes the next active connections, which find out that they are to rest. Returns whether
    /// there are others.
    pub fn rouse(&mut self, worker: &Rc<Worker>) -> bool {
        let Some(begin) = self.roused else { return false };
        let slots = worker.table.borrow().slots();
        let end = slots.min(begin.saturating_add(ROUSED_SLOTS));
        let (mut next, mut count) = (begin, 0);
        while next < end && count < ROUSED_MAX {
            let key = worker.table.borrow().key_at(next);
            count += usize::from(key.is_some_and(|key| batch::wake_one(worker, key)));
            next += 1;
        }
        self.roused = Some(next).filter(|next| *next < slots);
        if self.roused.is_none() {
            // Some could not rest when it was their turn.
            batch::wake_active(worker);
            // The last ones have as long as the first ones.
            self.roused_at = Instant::now();
        }
        self.roused.is_some()
    }

    /// Sends the next batch. Returns what is in it, which waits for the answer. A search that
    /// finds nothing is repeated at the next tick. One whose time is over goes on after an
    /// iteration.
    pub fn next(&mut self, worker: &Rc<Worker>) -> Vec<Parcel> {
        let now = Instant::now();
        if self.is_over() || now < self.at {
            return Vec::new();
        }
        if !self.staying.has_room(&mut worker.table.borrow_mut(), now) {
            self.at = now + Duration::from_millis(TICK_MS);
            self.note_parked_moved();
            return Vec::new();
        }
        let slots = worker.table.borrow().slots();
        let slots_max = if self.has_moved_parked() { LATE_SLOTS_MAX } else { slots };
        let slots_left = slots_max.saturating_sub(self.looked);
        let end = now + BATCH_TIME;
        match batch::next(worker, self.descriptors_max, slots_left, end, &self.staying) {
            SearchResult::Batch(Detachment { parcels, counts, batch }) => {
                self.looked = 0;
                let worker = worker.index.into();
                self.say(Leaving::Batch { worker, parcels: counts, batch });
                return parcels;
            }
            SearchResult::NotThrough(looked) => {
                self.looked += looked;
                worker.moving.is_searching.set(true);
                return Vec::new();
            }
            SearchResult::Nothing => self.looked = 0,
        }
        if self.is_rousing() {
            worker.moving.is_searching.set(true);
            return Vec::new();
        }
        self.at = Instant::now() + Duration::from_millis(TICK_MS);
        if let Searching::Empty(times) = self.state {
            self.state = Searching::Empty(times + 1);
            if times + 1 == EMPTY_SEARCHES {
                self.note_parked_moved();
            }
        }
        Vec::new()
    }

    /// True if all that was parked has left, or stays.
    pub fn has_moved_parked(&self) -> bool {
        !matches!(self.state, Searching::Empty(_))
    }

    /// Notes that all that was parked has left, or stays for now. The search goes on.
    fn note_parked_moved(&mut self) {
        if !self.has_moved_parked() {
            self.end_for_parked(Searching::ParkedMoved);
        }
    }

    /// Notes that all that was parked has left, or stays.
    fn end_for_parked(&mut self, state: Searching) {
        if !self.has_moved_parked() {
            self.say(Leaving::ParkedMoved);
        }
        self.state = state;
    }

    /// Notes that the other process has refused these connections and groups, which are parked here
    /// again.
    pub fn keep(&mut self, worker: &Worker, parcels: Vec<Vec<Key>>) {
        self.staying.add(&mut worker.table.borrow_mut(), parcels);
    }

    /// The other process takes no more.
    pub fn stop(&mut self) {
        self.end_for_parked(Searching::Stopped);
    }

    fn is_over(&self) -> bool {
        matches!(self.state, Searching::Stopped | Searching::Left)
    }

    /// True if the other process takes no more.
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, Searching::Stopped)
    }

    /// This worker has nothing left, or drains what it has.
    pub fn leave(&mut self) {
        if self.state != Searching::Left {
            self.end_for_parked(Searching::Left);
            self.say(Leaving::Left);
        }
    }

    fn say(&self, leaving: Leaving) {
        // The queue has room for what each worker sends. A failure shows as the end of the answers.
        let _ = self.batches.try_send(leaving);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::sync::mpsc::sync_channel;
    use std::task::{Wake, Waker};

    use super::*;
    use crate::moving::staying::STAYING_MAX;
    use crate::park::tests::terminated;
    use crate::testing::worker;
    use eyelet_table::{Slot, SlotState, Waits};

    #[derive(Default)]
    struct Told(AtomicUsize);

    impl Wake for Told {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// Those of a batch at a time, and at the end all that have not come to rest.
    #[test]
    fn active_connections_are_told_to_rest_a_batch_at_a_time() {
        const FEW: usize = 10;
        const ALL: usize = 2 * ROUSED_MAX + FEW;
        let (worker, told) = (worker(), Arc::<Told>::default());
        for _ in 0..ALL {
            terminated(&worker);
            let mut table = worker.table.borrow_mut();
            let key = table.insert(eyelet_sys::socket::pair().unwrap().0, false);
            if let Some(Slot { state: SlotState::Active { waits, .. }, .. }) = table.slot(key) {
                *waits = Waits::Task(Waker::from(told.clone()));
            }
        }
        let mut search = Search::new(&worker, sync_channel(1).0, BATCH_DESCRIPTORS_MAX);
        for (has_others, all_told) in [(true, ROUSED_MAX), (true, 2 * ROUSED_MAX), (false, 2 * ALL)]
        {
            assert!(search.is_rousing());
            assert_eq!(search.rouse(&worker), has_others);
            assert_eq!(told.0.load(Relaxed), all_told);
        }
        assert!(!search.is_rousing() && !search.rouse(&worker));
        assert_eq!(told.0.load(Relaxed), 2 * ALL);
    }

    /// A connection that always moves bytes gets a second in ten to move, as long as it lingers.
    #[test]
    fn a_retired_worker_has_active_connections_rest_again() {
        let worker = worker();
        let mut search = Search::new(&worker, sync_channel(1).0, BATCH_DESCRIPTORS_MAX);
        worker.moving.is_awaited.set(true);
        while search.rouse(&worker) {}
        search.rouse_again(&worker);
        assert!(worker.moving.is_awaited.get(), "they have just been told");
        search.roused_at -= AWAITED;
        search.rouse_again(&worker);
        assert!(!worker.moving.is_awaited.get() && !search.is_rousing());
        search.roused_at -= ROUSED_AGAIN;
        search.rouse_again(&worker);
        assert!(search.is_rousing());
        worker.moving.is_awaited.set(true);
        // To tell all of them may take long.
        search.roused_at -= AWAITED;
        while search.rouse(&worker) {}
        search.rouse_again(&worker);
        assert!(!search.is_rousing());
        assert!(worker.moving.is_awaited.get(), "the time of the last ones has just begun");
    }

    /// Refused connections fill what is remembered of them. Active ones are told to rest still.
    #[test]
    fn active_connections_are_told_to_rest_while_refused_ones_stay() {
        let worker = worker();
        let mut search = Search::new(&worker, sync_channel(1).0, BATCH_DESCRIPTORS_MAX);
        let keys: Vec<Key> = (0..STAYING_MAX).map(|_| terminated(&worker)).collect();
        search.keep(&worker, keys.into_iter().map(|key| vec![key]).collect());
        assert!(search.next(&worker).is_empty());
        assert!(search.has_moved_parked() && search.is_rousing());
        search.stop();
        assert!(!search.is_rousing());
    }
}
