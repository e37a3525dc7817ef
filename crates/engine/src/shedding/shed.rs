//! Load shedding: it ends connections when memory is short. The order is fixed. The order:
//! half-open connections that hold much, the oldest first; the other half-open ones, the oldest
//! first; HTTP/2 ones without a stream that have a task, the longest idle first; held ones, the
//! oldest first; parked HTTP/2 ones; new ones of sources over their share; other new ones. For a
//! new one of a source that has much, small half-open ones end only where their source is crowded,
//! and held ones stay; the others end as for all. Other parked connections that hold nothing stay,
//! unless `shed_idle` is set. Those that hold bytes for a slow peer end after three seconds.

use std::collections::hash_map::Entry as Tasks;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Context;

use crate::held;
use crate::park;
use crate::shedding::tidy::is_queued;
use crate::worker::Worker;
use crate::worker::source::{self, Source};
use eyelet_memory::budget::{ACTIVE_BYTES, Account};
use eyelet_memory::slab::Key;
use eyelet_sys::socket;
use eyelet_table::queues::{ShedPosition, ShedQueue, queue};
use eyelet_table::{ConnectionTable, EndCause, Phase, Slot, SlotState, Waits};
use eyelet_telemetry::info::{End, Outcome};
use eyelet_telemetry::reason::{Reason, Shed};

/// Bytes that a new connection needs until its handshake ends.
const NEW_BYTES: usize = size_of::<Slot>() + ACTIVE_BYTES;
/// Most connections that are ended for one new one. One is enough unless others took memory
/// meanwhile.
const SHED_A_NEW_ONE: usize = 4;
/// Most parked connections that are ended for a new one. Each frees at least a slot, so this many
/// make room for [`NEW_BYTES`].
const SHED_IDLE_A_NEW_ONE: usize = NEW_BYTES / size_of::<Slot>();
/// Most parked connections that are ended for a task or a stream. Each frees a slot and a state,
/// 330 bytes at least, so this many make room for a stream of 16 KiB.
const SHED_PARKED_MAX: usize = 50;
/// A source with fewer tasks than this still gets new ones while memory is short.
const FEW: usize = 4;
/// Positions that a search for crowded half-open connections looks at. Each costs a system call,
/// and in a flood of half-open connections the oldest ones have their sources in common.
const CROWDED_LOOKS: usize = 32;

impl Worker {
    /// Makes room for a new connection from `source`. Returns whether there is room. A source that
    /// has much ends no handshake of one that has little: see `Worker::shed_oldest`.
    pub fn make_room(self: &Rc<Self>, source: IpAddr) -> bool {
        let budget = &self.process.budget;
        if !budget.is_tight(NEW_BYTES) {
            return true;
        }
        // The last eighth of the budget is for sources that have little.
        let much = self.has_much(source);
        let is_full = || {
            // A slot that shedding freed needs no new memory.
            let new_bytes = ACTIVE_BYTES + self.table.borrow().next_entry_bytes();
            if much { budget.is_tight(new_bytes) } else { budget.is_over(new_bytes) }
        };
        for _ in 0..SHED_A_NEW_ONE {
            if !is_full() || !self.shed_oldest(None, much) {
                break;
            }
        }
        for _ in 0..SHED_IDLE_A_NEW_ONE {
            if !is_full() || !self.shed_idle(None, self.settings.get().shed_idle) {
                break;
            }
        }
        !is_full()
    }

    /// Makes room for a task that serves `source`: for a new stream, or for a parked connection
    /// that wakes. The connection of `key` is never shed for its own sake. The last quarter of the
    /// budget is for sources that have few tasks, and for work that others have begun.
    pub fn make_room_to_wake(self: &Rc<Self>, key: Key, source: IpAddr, bytes: usize) -> bool {
        self.make_room_to_serve(Some(key), source, bytes)
    }

    /// Makes room for more that a task of `source` needs, under the same terms.
    pub fn make_room_to_grow(self: &Rc<Self>, source: IpAddr, bytes: usize) -> bool {
        self.make_room_to_serve(None, source, bytes)
    }

    fn make_room_to_serve(
        self: &Rc<Self>,
        spared: Option<Key>,
        source: IpAddr,
        bytes: usize,
    ) -> bool {
        let budget = &self.process.budget;
        if !budget.is_filling(bytes) {
            return true;
        }
        // A source that has many tasks already sheds nobody.
        let few = self.is_served_in_few(source);
        for _ in 0..SHED_A_NEW_ONE {
            if !few || !budget.is_over(bytes) || !self.shed_oldest(spared, false) {
                break;
            }
        }
        for _ in 0..SHED_PARKED_MAX {
            if !few || !budget.is_over(bytes) || !self.shed_idle(spared, false) {
                break;
            }
        }
        few && !budget.is_over(bytes)
    }

    /// Checks whether a connection may stay whose source is known only now, by a PROXY header.
    /// Until then it counted as one of the proxy, which holds nothing. Nobody else ends for it.
    ///
    /// # Errors
    /// The reason to end it: only the last eighth of the budget is left, and its source has much.
    pub fn check_source(&self, source: IpAddr) -> Result<(), Reason> {
        let is_refused = self.process.budget.is_tight(0) && self.has_much(source);
        if is_refused { Err(self.why_shed(source)) } else { Ok(()) }
    }

    /// True if the source may not use the last eighth of the budget. The kernel spreads its
    /// connections over all workers, so each looks at its own part.
    fn has_much(&self, source: IpAddr) -> bool {
        let workers = self.process.workers.load(Relaxed).max(1);
        self.shedding.sources.has_much(source, self.process.budget.bytes_max() / workers)
            || !self.is_served_in_few(source)
    }

    fn why_shed(&self, source: IpAddr) -> Reason {
        let is_over = self.shedding.sources.is_over_share(source);
        Reason::Shed(if is_over { Shed::Excess } else { Shed::New })
    }

    fn is_served_in_few(&self, source: IpAddr) -> bool {
        self.is_served_in_few_of(Source::of(source))
    }

    fn is_served_in_few_of(&self, source: Source) -> bool {
        self.shedding.tasks.borrow().get(&source).copied().unwrap_or(0) < FEW
    }

    /// Counts a task that serves `source`, until the returned value is dropped.
    pub fn count_task(self: &Rc<Self>, source: IpAddr) -> CountedTask {
        let source = Source::of(source);
        *self.shedding.tasks.borrow_mut().entry(source).or_default() += 1;
        CountedTask { worker: self.clone(), source }
    }

    /// Wakes a task that waits for memory at the next tick.
    pub fn wants_memory(&self, task: &Context<'_>) {
        self.shedding.memory_wait.add(task.waker());
    }

    /// Notes how far an active connection is, and queues it accordingly.
    pub fn enters(&self, key: Key, to: Phase) {
        let mut table = self.table.borrow_mut();
        let Some(Slot { state: SlotState::Active { phase, .. }, position, .. }) = table.slot(key)
        else {
            return;
        };
        if std::mem::replace(phase, to) == to {
            return;
        }
        match to {
            Phase::HalfOpen => queue(&self.shedding.half_open, key, position),
            Phase::Large => queue(&self.shedding.large, key, position),
            Phase::Idle => queue(&self.shedding.unused, key, position),
            Phase::Busy => {}
        }
    }

    /// Ends half-open connections, and HTTP/2 ones without a stream, until `bytes` more fit: at
    /// most as many as for a task. Returns whether they fit.
    pub fn relieve(self: &Rc<Self>, bytes: usize) -> bool {
        for _ in 0..SHED_A_NEW_ONE {
            if !self.process.budget.is_over(bytes) || !self.shed_oldest(None, false) {
                break;
            }
        }
        for _ in 0..SHED_PARKED_MAX {
            if !self.process.budget.is_over(bytes) || !self.shed_idle(None, false) {
                break;
            }
        }
        !self.process.budget.is_over(bytes)
    }

    /// Ends the oldest half-open connection. One that waits to be served with what it received
    /// counts as half-open, too. If there is none, ends the HTTP/2 connection that has a task and
    /// is without a stream longest, or else the one that is held longest. Returns `false` if there
    /// is none of them.
    ///
    /// Connections that hold much go first. By age alone, a flood of endless long hellos would fill
    /// the queue faster than a newcomer's handshake takes, and the newcomer would be the oldest.
    /// `crowded`: of the other half-open ones only those that [`Worker::shed_crowded`] finds.
    fn shed_oldest(self: &Rc<Self>, spared: Option<Key>, crowded: bool) -> bool {
        let shed_half_open = || match crowded {
            true => self.shed_crowded(),
            false => self.shed_first(&self.shedding.half_open, Phase::HalfOpen, spared),
        };
        self.shed_first(&self.shedding.large, Phase::Large, spared)
            || shed_half_open()
            || self.shed_first(&self.shedding.unused, Phase::Idle, spared)
            || !crowded && held::shed_oldest(self, spared)
    }

    /// Ends the oldest half-open connection of a source that is served in many tasks, or that has
    /// several of the oldest ones. In a flood that is past its handshakes, newcomers of others are
    /// the oldest.
    fn shed_crowded(self: &Rc<Self>) -> bool {
        let oldest: Vec<(Key, Option<Source>)> = {
            let mut positions = self.shedding.half_open.positions.borrow_mut();
            let mut table = self.table.borrow_mut();
            let mut counts = |at: &ShedPosition| is_queued(&mut table, at, Phase::HalfOpen);
            while positions.pop_front_if(|first| !counts(first)).is_some() {}
            let looks = positions.iter().take(CROWDED_LOOKS).filter(|at| counts(at));
            let keys: Vec<Key> = looks.map(|at| at.key).collect();
            keys.into_iter().map(|key| (key, source_of(&mut table, key))).collect()
        };
        let is_crowded = |source: Source| {
            let alike = oldest.iter().filter(|(_, other)| *other == Some(source));
            alike.count() > 1 || !self.is_served_in_few_of(source)
        };
        oldest.iter().any(|(key, source)| {
            source.is_none_or(is_crowded)
                && (self.shed_active(*key, Phase::HalfOpen) || park::shed_waiting(self, *key))
        })
    }

    fn shed_first(self: &Rc<Self>, queue: &ShedQueue, of: Phase, spared: Option<Key>) -> bool {
        let mut kept = None;
        let is_shed = loop {
            let Some(first) = queue.positions.borrow_mut().pop_front() else { break false };
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
            queue.positions.borrow_mut().push_front(first);
        }
        is_shed
    }

    /// True if a position is its connection's newest one.
    fn counts(&self, of: ShedPosition) -> bool {
        self.table.borrow_mut().slot(of.key).is_some_and(|slot| slot.position == of.position)
    }

    fn shed_active(&self, key: Key, of: Phase) -> bool {
        let mut table = self.table.borrow_mut();
        let Some(Slot { state: SlotState::Active { waits, end, phase, .. }, .. }) = table.slot(key)
        else {
            return false;
        };
        if *end == Some(EndCause::Shed) || *phase != of {
            return false;
        }
        // These bytes count as free now; received bytes do when the future has been resumed.
        *end = Some(EndCause::Shed);
        self.process.budget.give(Account::Connections, ACTIVE_BYTES);
        match waits {
            Waits::No => {}
            // Not at once: another connection's future may be running now.
            Waits::Here(_) => {
                self.run_queue.push_shed(key);
            }
            Waits::Task(waker) => waker.wake_by_ref(),
        }
        true
    }

    /// Ends the future of a connection whose flow is gone, whatever it waits for.
    pub(crate) fn shed_deciding(&self, key: Key) {
        for phase in [Phase::HalfOpen, Phase::Large, Phase::Busy] {
            if self.shed_active(key, phase) {
                break;
            }
        }
    }

    /// Ends a new connection that there is no room for.
    pub fn shed_new(&self, listener: u16, client: OwnedFd, peer: SocketAddr) {
        let info = self.info(listener, peer);
        let reason = self.why_shed(peer.ip());
        self.emit(&info, &End { outcome: Outcome::Refused, reason });
        drop(client);
    }
}

/// Returns the source of a connection. `None`: its socket does not say so any more.
fn source_of(table: &mut ConnectionTable, key: Key) -> Option<Source> {
    let peer = table.slot(key).and_then(|slot| socket::peer(&slot.client))?;
    Some(Source::of(source::address(peer).ip()))
}

/// Counts a task that serves a source as long as this value lives.
pub struct CountedTask {
    worker: Rc<Worker>,
    source: Source,
}

impl Drop for CountedTask {
    fn drop(&mut self) {
        let mut counts = self.worker.shedding.tasks.borrow_mut();
        if let Tasks::Occupied(mut tasks) = counts.entry(self.source) {
            *tasks.get_mut() -= 1;
            if *tasks.get() == 0 {
                tasks.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use eyelet_memory::budget::{Counted, CountedBuffer};
    use eyelet_telemetry::info::Decided;

    use super::*;
    use crate::ready::CLIENT;
    use crate::testing::worker;
    use eyelet_relay::splice::Spliced;
    use eyelet_relay::{Flow, Relay};
    use eyelet_table::LARGE_BYTES;
    use eyelet_table::queues::STALE_MAX;

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
        table.slot(key).unwrap().state = SlotState::Parked { info, relay };
        worker.queue_holder(key, since);
        key
    }

    /// A half-open connection whose future holds so many counted bytes.
    fn half_open(worker: &Rc<Worker>, bytes: usize) -> Key {
        half_open_of(worker, bytes, UnixStream::pair().unwrap().0.into())
    }

    fn half_open_of(worker: &Rc<Worker>, bytes: usize, client: OwnedFd) -> Key {
        let mut held = CountedBuffer::of(&worker.process.budget, Account::Received);
        held.edit(|buffer| buffer.reserve_exact(bytes));
        let mut table = worker.table.borrow_mut();
        let key = table.insert(client, false);
        let slot = table.slot(key).unwrap();
        queue(&worker.shedding.half_open, key, &mut slot.position);
        if let SlotState::Active { waits, .. } = &mut slot.state {
            *waits = Waits::Here(Box::pin(async move { drop(held) }));
        }
        worker.process.budget.take(Account::Connections, ACTIVE_BYTES);
        key
    }

    fn is_shed(worker: &Worker, key: Key) -> bool {
        let mut table = worker.table.borrow_mut();
        matches!(
            table.slot(key).unwrap().state,
            SlotState::Active { end: Some(EndCause::Shed), .. }
        )
    }

    #[test]
    fn who_holds_much_is_shed_before_who_is_older() {
        let worker = worker();
        let [oldest, large, newest] = [1, LARGE_BYTES, 1].map(|bytes| half_open(&worker, bytes));
        worker.enters(large, Phase::Large);
        for expected in [large, oldest, newest] {
            assert!(!is_shed(&worker, expected));
            assert!(worker.shed_oldest(None, false));
            assert!(is_shed(&worker, expected));
        }
        assert!(!worker.shed_oldest(None, false), "none is left");
    }

    /// A socket whose peer is on 127.0.0.n, and that peer.
    fn connected_to(n: u8) -> (OwnedFd, OwnedFd) {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, n], 0))).unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (socket.into(), listener.accept().unwrap().0.into())
    }

    /// Between seven and eight eighths of the budget a source with many tasks makes room among its
    /// own new connections, and among those of sources that have several.
    #[test]
    fn a_source_with_much_takes_no_place_from_one_with_little() {
        let worker = worker();
        let budget = worker.process.budget.clone();
        let [much, crowd, calm] = [2_u8, 3, 4].map(|n| IpAddr::from([127, 0, 0, n]));
        let mut peers = Vec::new();
        let [newcomer, first, second, own] = [4, 3, 3, 2].map(|n| {
            let (socket, peer) = connected_to(n);
            peers.push(peer);
            half_open_of(&worker, 1, socket)
        });
        let _serving: Vec<CountedTask> = (0..FEW).map(|_| worker.count_task(much)).collect();
        for (expected, others) in [(first, &[newcomer, second, own][..]), (second, &[newcomer])] {
            assert!(worker.shed_oldest(None, true));
            assert!(is_shed(&worker, expected));
            assert!(others.iter().all(|key| !is_shed(&worker, *key)));
        }
        let (mut counted, mut bytes) = (Counted::new(&budget, 0), 0);
        let mut fill = |is_full: &dyn Fn() -> bool| {
            while !is_full() {
                bytes += ACTIVE_BYTES / 4;
                counted.set(bytes);
            }
        };
        fill(&|| budget.is_tight(NEW_BYTES));
        assert!(worker.make_room(much) && is_shed(&worker, own) && !is_shed(&worker, newcomer));
        fill(&|| budget.is_tight(NEW_BYTES));
        assert!(!worker.make_room(much) && !is_shed(&worker, newcomer), "nobody else is shed");
        assert!(worker.make_room(calm) && worker.make_room(crowd), "the last eighth is theirs");
        fill(&|| budget.is_over(0));
        worker.make_room(crowd);
        assert!(is_shed(&worker, newcomer), "the oldest goes once the last eighth is full");
    }

    /// A source is a user of this machine, too. One such newcomer is not a crowd.
    #[test]
    fn a_client_of_a_unix_socket_is_no_crowd_by_itself() {
        let worker = worker();
        let mut peers = Vec::new();
        let local = half_open(&worker, 1);
        let [first, second] = [3, 3].map(|n| {
            let (socket, peer) = connected_to(n);
            peers.push(peer);
            half_open_of(&worker, 1, socket)
        });
        for expected in [first, second] {
            assert!(worker.shed_oldest(None, true) && is_shed(&worker, expected));
            assert!(!is_shed(&worker, local));
        }
        assert!(!worker.shed_oldest(None, true), "nobody else is in a crowd");
        let other = half_open(&worker, 1);
        assert!(worker.shed_oldest(None, true) && is_shed(&worker, local), "one user's are alike");
        assert!(!is_shed(&worker, other));
    }

    /// The next connection finds the memory of those that were shed free, and sheds no others.
    #[test]
    fn what_was_shed_is_freed_before_another_connection_runs() {
        const MANY: usize = 64;
        const STEPS: usize = 8;
        const STEP: usize = ACTIVE_BYTES;
        let worker = worker();
        let budget = worker.process.budget.clone();
        // Each of them holds more than all steps ask for.
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

    /// Without `shed_idle` only those with a state of the program end, and never for themselves.
    #[test]
    fn parked_connections_with_a_state_make_room() {
        let worker = worker();
        let plain = park::tests::terminated(&worker);
        let [first, second] = [1, 2].map(|_| park::tests::with_state(&worker, &[7; 300]));
        let is_open = |key| worker.table.borrow_mut().slot(key).is_some();
        assert!(!worker.shed_idle(Some(first), false) || is_open(first));
        assert!(is_open(first) && !is_open(second));
        worker.shedding.idle_searches.set(0);
        let mut counted = Counted::new(&worker.process.budget, 0);
        let mut bytes = 0;
        while !worker.process.budget.is_over(0) {
            bytes += 64;
            counted.set(bytes);
        }
        assert!(worker.relieve(64));
        assert!(!is_open(first), "it makes room for whoever asks");
        worker.shedding.idle_searches.set(0);
        assert!(!worker.shed_idle(None, false));
        assert!(is_open(plain));
    }

    /// Memory is not short, so the first holder stays in the queue, and all others behind it.
    #[test]
    fn the_queue_of_holders_is_as_long_as_there_are_holders() {
        let worker = worker();
        let client = || OwnedFd::from(UnixStream::pair().unwrap().0);
        let stays = park_holder(&worker, client());
        for _ in 0..4 * STALE_MAX {
            let key = park_holder(&worker, client());
            drop(worker.table.borrow_mut().remove(key));
            worker.tidy_queues();
            let length = worker.shedding.holders.borrow().positions.len();
            assert!(length <= STALE_MAX, "{length} positions for one holder");
        }
        let holders = worker.shedding.holders.borrow();
        assert_eq!(holders.positions.front().map(|first| first.key), Some(stays));
        assert!(holders.positions.capacity() <= 4 * STALE_MAX);
    }
}
