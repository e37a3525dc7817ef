//! Making room when memory is short, in a fixed order: half-open connections that hold much, by
//! age, then the other half-open ones by age, HTTP/2 ones without a stream by idleness, then new
//! ones of sources that hold more than their share, then other new ones. Parked ones that hold
//! nothing stay, but for `shed_idle`; those that hold bytes for a slow peer end after a while.
//! It must not know what bytes are counted as.

use std::collections::hash_map::Entry as Served;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Context;

use crate::connection_table::{Entry, Phase, Role, Waits};
use crate::park;
use crate::queues::{Holder, Place, Queue, STALE_MAX, queue};
use crate::source::Source;
use crate::timer_wheel::TICK_MS;
use crate::worker::Worker;
use eyelet_memory::budget::{ACTIVE_BYTES, Account};
use eyelet_memory::slab::Key;
use eyelet_telemetry::info::{End, Outcome};
use eyelet_telemetry::reason::{Reason, Shed};

/// What a new connection needs until its handshake ends.
const NEW_BYTES: usize = size_of::<Entry>() + ACTIVE_BYTES;
/// Connections that are ended to make room for one new one: one is enough unless others took
/// memory meanwhile.
const SHED_A_NEW_ONE: usize = 4;
/// The same for idle connections where `shed_idle` is set. Each holds a slot and a few bytes at
/// least, so this many make room for [`NEW_BYTES`].
const SHED_IDLE_A_NEW_ONE: usize = NEW_BYTES / size_of::<Entry>();
/// Connections looked at in a tick for those that are idle for longest: all of them where there
/// are fewer. As much work as a hundred small requests.
const IDLE_LOOKS: u32 = 1024;
/// How long a peer may leave bytes in our memory while memory is short: as long as a body of HTTP
/// may rest then.
const STALLED_TICKS: u32 = (3_000 / TICK_MS) as u32;
/// At most this many holders, or this part of the queue if that is more, are looked at in a tick.
const HOLDERS_LOOKS: usize = 64;
const HOLDERS_PART: usize = 4;
/// Never more than this many, so that a tick stays short: a look is a cache miss or two.
const HOLDERS_LOOKS_MAX: usize = 4096;
/// Tasks that serve a source while memory is short, so that those who hold little are served.
const FEW: usize = 4;
impl Worker {
    /// Whether a new connection from `source` can be taken in, after room was made for it.
    pub fn make_room(self: &Rc<Self>, source: IpAddr) -> bool {
        let budget = &self.process.budget;
        if !budget.is_tight(NEW_BYTES) {
            return true;
        }
        // The last eighth is for those who have little.
        let much = self.sources.is_over_share(source) || !self.is_served_in_few(source);
        let is_full = || {
            // An idle connection that is ended makes room by its place in the table.
            let new_bytes = ACTIVE_BYTES + self.table.borrow().next_entry_bytes();
            if much { budget.is_tight(new_bytes) } else { budget.is_over(new_bytes) }
        };
        for _ in 0..SHED_A_NEW_ONE {
            if !is_full() || !self.shed_oldest(None) {
                break;
            }
        }
        for _ in 0..SHED_IDLE_A_NEW_ONE {
            if !is_full() || !self.shed_idle() {
                break;
            }
        }
        !is_full()
    }

    /// Whether a stream of `source` can have a task that serves it, or a connection can wake, which
    /// is not ended for its own sake. The last quarter is for those who have few, and for what the
    /// others have begun.
    pub fn make_room_to_wake(self: &Rc<Self>, key: Key, source: IpAddr, bytes: usize) -> bool {
        let budget = &self.process.budget;
        if !budget.is_filling(bytes) {
            return true;
        }
        // Nobody else is ended for those who have many already.
        let few = self.is_served_in_few(source);
        for _ in 0..SHED_A_NEW_ONE {
            if !few || !budget.is_over(bytes) || !self.shed_oldest(Some(key)) {
                break;
            }
        }
        few && !budget.is_over(bytes)
    }

    fn is_served_in_few(&self, source: IpAddr) -> bool {
        self.serving.borrow().get(&Source::of(source)).copied().unwrap_or(0) < FEW
    }

    /// Notes that a task serves `source`, until what is given is dropped.
    pub fn serves(self: &Rc<Self>, source: IpAddr) -> Serving {
        let source = Source::of(source);
        *self.serving.borrow_mut().entry(source).or_default() += 1;
        Serving { worker: self.clone(), source }
    }

    /// Has a task that waits for memory look again in the next tick.
    pub fn wants_memory(&self, task: &Context<'_>) {
        let mut waiting_for_memory = self.waiting_for_memory.borrow_mut();
        if !waiting_for_memory.last().is_some_and(|last| last.will_wake(task.waker())) {
            waiting_for_memory.push(task.waker().clone());
        }
    }

    /// Notes how far an active connection is.
    pub fn enters(&self, key: Key, to: Phase) {
        let mut table = self.table.borrow_mut();
        let Some(Entry { role: Role::Active { phase, .. }, place, .. }) = table.entry(key) else {
            return;
        };
        if std::mem::replace(phase, to) == to {
            return;
        }
        match to {
            Phase::HalfOpen => queue(&self.half_open, key, place),
            Phase::Large => queue(&self.large, key, place),
            Phase::Idle => queue(&self.unused, key, place),
            Phase::Busy => {}
        }
    }

    /// Ends half-open connections until `bytes` more fit, as few as for a new one; whether they do.
    pub fn relieve(self: &Rc<Self>, bytes: usize) -> bool {
        for _ in 0..SHED_A_NEW_ONE {
            if !self.process.budget.is_over(bytes) || !self.shed_oldest(None) {
                break;
            }
        }
        !self.process.budget.is_over(bytes)
    }

    /// Ends the connection that is idle for longest, where the operator allows that.
    fn shed_idle(self: &Rc<Self>) -> bool {
        if !self.settings.get().shed_idle {
            return false;
        }
        if self.idle.borrow().is_empty() && !self.has_looked.replace(true) {
            self.look_for_idle();
        }
        loop {
            let Some((due, key)) = self.idle.borrow_mut().pop() else { return false };
            // Whose deadline has moved was not idle meanwhile.
            if self.table.borrow_mut().due(key) == due && park::shed(self, key) {
                return true;
            }
        }
    }

    /// Finds those that are idle for longest among the next [`IDLE_LOOKS`] connections.
    fn look_for_idle(&self) {
        let mut idle = self.idle.borrow_mut();
        let mut table = self.table.borrow_mut();
        let places = table.next_keys(&self.idle_cursor, IDLE_LOOKS).map(|key| (0, key));
        idle.extend(places);
        idle.retain_mut(|(due, key)| {
            *due = table.due(*key);
            match table.entry(*key) {
                Some(Entry { role: Role::Parked { info, relay }, .. }) => {
                    info.is_settled() && relay.flow().is_quiet()
                }
                _ => false,
            }
        });
        // The nearest deadline is the longest idleness; it comes last, to be taken first.
        idle.sort_unstable_by_key(|(due, _)| std::cmp::Reverse(*due));
    }

    /// Queues a parked connection that begins to hold bytes for a peer.
    pub fn queue_holder(&self, key: Key, since: u32) {
        self.holders.borrow_mut().places.push_back(Holder { key, since });
    }

    /// Ends connections whose peer leaves bytes in our memory for [`STALLED_TICKS`] while memory
    /// is short, the slowest first. A peer that takes a little is as slow as one that takes
    /// nothing: what counts is when all of a piece was taken.
    fn give_up_slow(self: &Rc<Self>) {
        let now = self.table.borrow().now();
        let looks = self.holders.borrow().places.len() / HOLDERS_PART;
        for _ in 0..looks.clamp(HOLDERS_LOOKS, HOLDERS_LOOKS_MAX) {
            let Some(first) = self.holders.borrow_mut().places.pop_front() else { break };
            match park::holds_since(self, first.key) {
                None => {}
                Some(since) if since > first.since => self.queue_holder(first.key, since),
                // All others hold theirs for as long at most.
                Some(since) => {
                    let is_slow = now.saturating_sub(since) >= STALLED_TICKS;
                    if !is_slow || !self.process.budget.is_filling(0) {
                        self.holders.borrow_mut().places.push_front(first);
                        break;
                    }
                    park::give_up_slow(self, first.key);
                }
            }
        }
    }

    /// Has the oldest half-open connection end, or one that waits to be served as long and holds
    /// what came already; else the HTTP/2 one that is without a stream for longest. `false`: there
    /// is none.
    ///
    /// Those that hold much go first: by age alone a flood of long hellos without an end would
    /// make the whole queue of its own, faster than a newcomer's handshake, and end the newcomer.
    fn shed_oldest(self: &Rc<Self>, spared: Option<Key>) -> bool {
        self.shed_first(&self.large, Phase::Large, spared)
            || self.shed_first(&self.half_open, Phase::HalfOpen, spared)
            || self.shed_first(&self.unused, Phase::Idle, spared)
    }

    fn shed_first(self: &Rc<Self>, queue: &Queue, of: Phase, spared: Option<Key>) -> bool {
        let mut kept = None;
        let is_shed = loop {
            let Some(first) = queue.places.borrow_mut().pop_front() else { break false };
            let key = first.key;
            if !self.counts(first) {
                continue;
            }
            if spared == Some(key) {
                kept = Some(first);
            } else if self.shed_active(key, of)
                || of == Phase::HalfOpen && park::shed_waiting(self, key)
            {
                break true;
            }
        };
        if let Some(first) = kept {
            queue.places.borrow_mut().push_front(first);
        }
        is_shed
    }

    /// Whether the connection is there and has no newer place.
    fn counts(&self, of: Place) -> bool {
        self.table.borrow_mut().entry(of.key).is_some_and(|entry| entry.place == of.place)
    }

    fn shed_active(&self, key: Key, of: Phase) -> bool {
        let mut table = self.table.borrow_mut();
        let Some(Entry { role: Role::Active { waits, late, shed, phase }, .. }) = table.entry(key)
        else {
            return false;
        };
        if *shed || *phase != of {
            return false;
        }
        // This counts as free from now on, and what it has received once its future is resumed.
        (*late, *shed) = (true, true);
        self.process.budget.give(Account::Connections, ACTIVE_BYTES);
        match waits {
            Waits::No => {}
            // Not at once: this may be asked for while another's future runs.
            Waits::Here(_) => {
                self.ending.borrow_mut().push(key);
                self.has_again.notify_one();
            }
            Waits::Task(waker) => waker.wake_by_ref(),
        }
        true
    }

    /// Ends a new connection for which there is no room.
    pub fn shed_new(&self, listener: u16, client: OwnedFd, peer: SocketAddr) {
        let info = self.info(listener, peer);
        let reason = if self.sources.is_over_share(peer.ip()) { Shed::Greedy } else { Shed::New };
        self.emit(&info, &End { outcome: Outcome::Refused, reason: Reason::Shed(reason) });
        drop(client);
    }

    /// What is to be done in each tick, whose cost does not grow with the number of connections.
    pub fn tidy_queues(self: &Rc<Self>) {
        self.tidy(&self.large, Phase::Large);
        self.tidy(&self.half_open, Phase::HalfOpen);
        self.tidy(&self.unused, Phase::Idle);
        self.has_looked.set(false);
        self.give_up_slow();
        // While the first one holds its bytes, those behind it are not looked at: most of them may
        // hold nothing any more, or have ended.
        let mut holders = self.holders.borrow_mut();
        holders.tidy(|holder| park::holds_since(self, holder.key).is_some());
    }

    /// Drops the places of connections that are not there any more, or further, and of each that
    /// came back all but the newest.
    fn tidy(&self, queue: &Queue, of: Phase) {
        let (mut places, kept) = (queue.places.borrow_mut(), &queue.kept);
        // Not before it has doubled: then each place is looked at twice at most.
        if places.len() < STALE_MAX.max(2 * kept.get()) {
            return;
        }
        let mut table = self.table.borrow_mut();
        places.retain(|at| match table.entry(at.key) {
            Some(entry) if entry.place != at.place => false,
            Some(Entry { role: Role::Active { phase, .. }, .. }) => *phase == of,
            Some(entry) => of == Phase::HalfOpen && park::waits(entry),
            None => false,
        });
        // A flood's queue is not kept for life.
        kept.set(places.len());
        places.shrink_to(2 * kept.get());
    }
}

/// A task that serves a source is counted as long as this lives.
pub struct Serving {
    worker: Rc<Worker>,
    source: Source,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut serving = self.worker.serving.borrow_mut();
        if let Served::Occupied(mut tasks) = serving.entry(self.source) {
            *tasks.get_mut() -= 1;
            if *tasks.get() == 0 {
                tasks.remove();
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use eyelet_memory::budget::{Budget, Counted, CountedBuffer};
    use eyelet_telemetry::info::Decided;

    use super::*;
    use crate::connection_table::LARGE_BYTES;
    use crate::queues::STALE_MAX;
    use crate::ready::CLIENT;
    use crate::relay::splice::Spliced;
    use crate::relay::{Flow, Relay};
    use crate::worker::{Process, Settings};

    /// A worker without a program.
    pub fn worker() -> Rc<Worker> {
        let settings = Settings {
            idle_timeout: Duration::from_secs(300),
            shed_idle: false,
            drain_timeout: Duration::from_secs(1),
            connections_max: 1_000,
            descriptors_max: 1_000,
        };
        let process = Process {
            open: AtomicUsize::new(0),
            budget: Arc::new(Budget::new(64 << 20, 0)),
            descriptors: AtomicUsize::new(0),
        };
        Rc::new(Worker::new(0, settings, Arc::new(process), Arc::default()).unwrap())
    }

    /// A parked connection whose client does not take a byte.
    fn park_holder(worker: &Worker, client: OwnedFd) -> Key {
        let peer = SocketAddr::from(([127, 0, 0, 1], 9));
        let info = worker.info(0, peer).park(&mut worker.shared.borrow_mut());
        let mut flow = Flow::default();
        flow.hold(CLIENT, b"a byte");
        let mut table = worker.table.borrow_mut();
        let since = flow.note_holding(table.now()).unwrap();
        assert!(flow.begins_to_hold());
        let key = table.insert(client, false);
        let relay = Relay::Splice(Spliced::new(flow, &mut Decided::default()));
        table.entry(key).unwrap().role = Role::Parked { info, relay };
        worker.queue_holder(key, since);
        key
    }

    /// A half-open connection whose future holds so many counted bytes.
    fn half_open(worker: &Rc<Worker>, bytes: usize) -> Key {
        let mut held = CountedBuffer::of(&worker.process.budget, Account::Received);
        held.edit(|buffer| buffer.reserve_exact(bytes));
        let client = OwnedFd::from(UnixStream::pair().unwrap().0);
        let mut table = worker.table.borrow_mut();
        let key = table.insert(client, false);
        let entry = table.entry(key).unwrap();
        queue(&worker.half_open, key, &mut entry.place);
        if let Role::Active { waits, .. } = &mut entry.role {
            *waits = Waits::Here(Box::pin(async move { drop(held) }));
        }
        worker.process.budget.take(Account::Connections, ACTIVE_BYTES);
        key
    }

    fn is_shed(worker: &Worker, key: Key) -> bool {
        let mut table = worker.table.borrow_mut();
        matches!(table.entry(key).unwrap().role, Role::Active { shed: true, .. })
    }

    #[test]
    fn who_holds_much_makes_room_before_who_is_older() {
        let worker = worker();
        let [oldest, large, newest] = [1, LARGE_BYTES, 1].map(|bytes| half_open(&worker, bytes));
        worker.enters(large, Phase::Large);
        for expected in [large, oldest, newest] {
            assert!(!is_shed(&worker, expected));
            assert!(worker.shed_oldest(None));
            assert!(is_shed(&worker, expected));
        }
        assert!(!worker.shed_oldest(None), "nobody is left");
    }

    /// Whoever is resumed next finds the memory of those that were shed, and need shed no others.
    #[test]
    fn what_was_shed_is_freed_before_another_connection_goes_on() {
        const MANY: usize = 64;
        const STEPS: usize = 8;
        const STEP: usize = ACTIVE_BYTES;
        let worker = worker();
        let budget = worker.process.budget.clone();
        // One of them holds more than all steps ask for.
        let all: Vec<Key> = (0..MANY).map(|_| half_open(&worker, 2 * STEPS * STEP)).collect();
        let asks = half_open(&worker, 1);
        let (mut counted, mut bytes) = (Counted::new(&budget, 0), 0);
        while !budget.is_over(STEP) {
            bytes += STEP;
            counted.set(bytes);
        }
        for _ in 0..STEPS {
            worker.guarded(asks, || assert!(worker.relieve(STEP)));
            bytes += STEP;
            counted.set(bytes);
        }
        let shed = all.iter().filter(|key| is_shed(&worker, **key)).count();
        assert_eq!(shed, 1, "for {STEPS} steps");
    }

    /// Memory is not short, so the first holder stays where it is, and all others behind it.
    #[test]
    fn the_queue_of_holders_is_as_long_as_there_are_holders() {
        let worker = worker();
        let client = || OwnedFd::from(UnixStream::pair().unwrap().0);
        let stays = park_holder(&worker, client());
        for _ in 0..4 * STALE_MAX {
            let key = park_holder(&worker, client());
            drop(worker.table.borrow_mut().remove(key));
            worker.tidy_queues();
            let length = worker.holders.borrow().places.len();
            assert!(length <= STALE_MAX, "{length} positions for one holder");
        }
        let holders = worker.holders.borrow();
        assert_eq!(holders.places.front().map(|first| first.key), Some(stays));
        assert!(holders.places.capacity() <= 4 * STALE_MAX);
    }
}
