//! The state of a worker, what workers share, and [`Program`], the trait through which the event
//! loop calls the program.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use eyelet_sys::{socket, waker};
use foldhash::fast::RandomState;

use crate::departure::Departure;
use crate::relay::{Buffers, Relay};
use crate::table::{ConnectionTable, Slot};
use crate::worker::clock::Clock;
use crate::worker::drain_pace::DrainPace;
use crate::worker::memory_wait::MemoryWait;
use crate::worker::queues::{Holders, IdlePosition, ShedQueue};
use crate::worker::source::{Source, Sources};
use eyelet_memory::budget::{Account, Budget, Counted};
use eyelet_memory::packed::{PackedBytes, SharedPieces};
use eyelet_memory::slab::Key;
use eyelet_telemetry::counters::Counters;
use eyelet_telemetry::info::{ConnectionInfo, Decided, End, Outcome, Parked, SharedInfo};
use eyelet_telemetry::labels::Labels;
use eyelet_telemetry::reason::{Class, Reason};

pub(crate) mod clock;
pub(crate) mod drain_pace;
mod handle;
pub(crate) mod memory_wait;
pub(crate) mod queues;
mod registration;
pub mod source;

pub use handle::WaitError;
pub use registration::Registration;

/// Connections that came and went since memory was last returned to the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Burst {
    /// Peak of open connections.
    pub(crate) peak: usize,
    /// Connections open at the last tick.
    pub(crate) open: usize,
    /// Ticks since that number changed.
    pub(crate) quiet: u32,
    /// All ticks.
    pub(crate) ticks: u32,
    /// Ticks since a compressor was last used.
    pub(crate) rested: u32,
    /// Whether there may be memory to return: handshakes leave some, also for connections that
    /// stay, and so do freed compressors.
    pub(crate) dirty: bool,
}

/// Limits that the configuration sets for the event loop. A reload may change them.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a connection may move no byte.
    pub idle_timeout: Duration,
    /// The same for one with a state of the program: [`crate::relay::Flow::keep_state`].
    pub state_idle_timeout: Duration,
    /// Whether idle connections are ended for new ones when memory is short.
    pub shed_idle: bool,
    /// How long a drain waits for busy connections.
    pub drain_timeout: Duration,
    /// Connections allowed at once: the least of configuration, memory and descriptors.
    pub connections_max: usize,
    /// Descriptors that connections may hold.
    pub descriptors_max: usize,
    /// Whether somebody may ask for a list of connections: [`crate::listing`].
    pub may_list: bool,
}

/// What the process wants of its workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Serve by the configuration that the process was started with.
    #[default]
    Serve,
    /// Serve by the newest one, which has this generation: [`Program::update`] gives it.
    Reload(u64),
    /// Accept nothing yet: the process that this one replaces still serves.
    Hold,
    /// Leave: the process that replaces this one accepts from now on and gets the connections.
    /// [`Program::departure`] says how.
    HandOver,
    /// End: accept no more, and let the connections end.
    Drain,
}

/// A listening socket of one worker.
pub struct ListenerSocket {
    /// Index of the listener in the configuration.
    pub listener: u16,
    /// The socket. The process has it too, for the next reload.
    pub socket: Arc<OwnedFd>,
    /// The kernel's count of dropped packets at the last look.
    drops: u32,
}

impl ListenerSocket {
    /// A listening socket. Another process may have had it before: what was dropped then is not
    /// counted again.
    pub fn new(listener: u16, socket: Arc<OwnedFd>) -> Self {
        let drops = socket::drops(&socket).unwrap_or(0);
        Self { listener, socket, drops }
    }

    /// Returns how many packets the kernel has dropped since the last look.
    pub(crate) fn take_drops(&mut self) -> u32 {
        let now = socket::drops(&self.socket).unwrap_or(self.drops);
        now.wrapping_sub(std::mem::replace(&mut self.drops, now))
    }
}

/// What a reload changes in the event loop.
pub struct Update {
    /// Its bounds.
    pub settings: Settings,
    /// Where it listens from now on, those before included that stay.
    pub sockets: Vec<ListenerSocket>,
}

/// State that the workers of a process share.
#[derive(Debug)]
pub struct Process {
    /// Connections open now, in all workers.
    pub open: AtomicUsize,
    /// Memory that connections hold, in all workers.
    pub budget: Arc<Budget>,
    /// Descriptors that connections hold now, in all workers.
    pub descriptors: AtomicUsize,
    /// How many workers there are.
    pub workers: AtomicUsize,
}

/// The program's work on a connection. It ends when the connection has ended or is parked.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The program: one value per worker. The event loop calls it, and it calls back through [`Handle`]
/// and [`Worker`].
pub trait Program {
    /// What the configuration that decides new connections calls its listeners and rules.
    fn labels(&self) -> Labels {
        Labels::default()
    }

    /// A connection was accepted.
    fn accepted(self: Rc<Self>, handle: Handle, info: ConnectionInfo) -> Task;

    /// A parked connection's client has sent something, and the connection has no upstream yet.
    /// `counted` is the memory that the connection holds or is about to hold.
    fn woken(
        self: Rc<Self>,
        handle: Handle,
        info: ConnectionInfo,
        relay: Relay,
        counted: Counted,
    ) -> Task;

    /// Bytes that the task of a woken connection will hold beside what every active connection
    /// is counted as; at most [`eyelet_memory::budget::TASK_BYTES_MAX`].
    fn task_bytes(&self, decided: &Decided) -> usize;

    /// Answers what the client of a parked connection has sent, if that needs no task. `state` is
    /// what the program keeps of it, up to the first shared piece. Appends to `out`. Returns how
    /// many bytes are answered; a task gets the others.
    fn answer(&self, _state: &mut [u8], _bytes: &[u8], _out: &mut Vec<u8>) -> usize {
        0
    }

    /// What the client of a parked connection gets before its close_notify: at most one record.
    /// `state` is what the program keeps of it, up to the first shared piece.
    fn last_bytes(&self, _state: &[u8]) -> Vec<u8> {
        Vec::new()
    }

    /// Packs a state that comes from another process. `None`: this program does not read it, or not
    /// of a connection that was decided so.
    fn pack_state(&self, _decided: &Decided, _state: &[u8]) -> Option<PackedBytes> {
        None
    }

    /// What the newest configuration changes, if it is newer than the one that is served.
    fn update(&self) -> Option<Update>;

    /// Serves by the configuration that [`Program::update`] gave.
    fn take_over(&self);

    /// How the worker leaves after [`Order::HandOver`], once.
    fn departure(&self) -> Option<Departure> {
        None
    }

    /// Whether anybody reads what [`Program::log`] writes.
    fn is_logging(&self) -> bool;

    /// Writes the access-log entry of a connection that has ended.
    fn log(&self, info: &ConnectionInfo, end: &End);

    /// Flushes buffered log entries. The wall clock is `ahead_ms` ahead of the steady clock that
    /// connections are timed by.
    fn flush_log(&self, ahead_ms: i64);

    /// A tick has passed (every [`crate::table::timer_wheel::TICK_MS`]).
    fn tick(&self);

    /// Whether no body is being compressed, so that idle compressors may be freed.
    fn is_resting(&self) -> bool;

    /// Frees what is kept for reuse: the allocator is about to return free memory.
    fn release_caches(&self);

    /// The worker ends.
    fn close(&self);
}

/// An active connection: its future owns it. Dropping the handle closes the connection.
pub struct Handle {
    /// The worker it lives on.
    pub worker: Rc<Worker>,
    pub(crate) key: Key,
    pub(crate) released: Cell<bool>,
    /// The tick since which it was idle when its task woke. The first tick of all counts as none,
    /// so that this takes four bytes of each task.
    pub(crate) idle_since: Option<NonZeroU32>,
    /// Whether its task did nothing that counts as use.
    pub(crate) is_unused: Cell<bool>,
}

/// One worker.
pub struct Worker {
    /// Which one, from 0.
    pub(crate) index: u16,
    /// State shared with the other workers.
    pub process: Arc<Process>,
    /// Limits from the configuration.
    pub(crate) settings: Cell<Settings>,
    /// Weak, because the program owns this worker.
    program: OnceCell<Weak<dyn Program>>,
    /// Its connections.
    pub table: RefCell<ConnectionTable>,
    /// Buffers, lent while bytes are moved.
    pub buffers: RefCell<Buffers>,
    /// Texts that parked connections share.
    pub shared: RefCell<SharedInfo>,
    /// Pieces that their states share.
    pub pieces: Rc<SharedPieces>,
    /// Its counters.
    pub counters: Arc<Counters>,
    /// Half-open connections that hold much, oldest first. Some positions are stale.
    pub(crate) large: ShedQueue,
    /// Half-open connections, oldest first. Some positions are stale.
    pub(crate) half_open: ShedQueue,
    /// HTTP/2 connections without a stream, longest idle first. Some positions are stale.
    pub(crate) unused: ShedQueue,
    /// Tasks that serve parked connections, by source.
    pub(crate) serving: RefCell<HashMap<Source, usize, RandomState>>,
    /// Tasks that wait for memory.
    pub(crate) waiting_for_memory: MemoryWait,
    /// Memory that parked connections hold, by source.
    pub(crate) sources: Sources,
    /// Parked connections that hold bytes for a peer, longest first. Some positions are stale.
    pub(crate) holders: RefCell<Holders>,
    /// Searches of the table for idle connections since the last tick.
    pub(crate) looks: Cell<u32>,
    /// Where that search goes on.
    pub(crate) idle_cursor: Cell<u32>,
    /// Where the search for connections to hand over goes on.
    pub(crate) leaving_cursor: Cell<u32>,
    /// Parked connections that may have more to move but found memory short. Tried again at each
    /// tick.
    pub(crate) later: RefCell<Vec<Key>>,
    /// Idle connections that the search found, the longest idle last.
    pub(crate) idle: RefCell<Vec<IdlePosition>>,
    /// Connections to resume in the next iteration without an event: those that used up their share
    /// of this one, and those that must end.
    pub(crate) again: RefCell<Vec<Key>>,
    /// Shed connections whose futures are still in their slots. They are resumed, and so freed,
    /// before the next connection runs: its need for memory must not shed others.
    pub(crate) ending: RefCell<Vec<Key>>,
    /// Starts an iteration for `again` or `ending`.
    loop_waker: Cell<Option<Waker>>,
    /// Connections whose future is stored in its slot and whose wait is over.
    pub(crate) to_resume: RefCell<Vec<Key>>,
    next_id: Cell<u64>,
    pub(crate) drain: Cell<Option<DrainPace>>,
    /// Connections that arrive from another process, which may have given them up, and have no slot
    /// yet.
    pub(crate) unplaced: Cell<usize>,
    /// Whether the search for what leaves goes on after an iteration.
    pub(crate) is_searching: Cell<bool>,
    /// Whether its connections leave for another process.
    pub(crate) leaving: Cell<bool>,
    /// Whether an operator has ever ended an active connection here.
    pub(crate) has_ended: Cell<bool>,
    /// Whether the drain's time is over.
    pub is_cutting: Cell<bool>,
    pub(crate) burst: Cell<Burst>,
    /// Counting waker for futures stored in slots.
    pub(crate) counting_waker: Waker,
    /// Its clocks.
    pub clock: Clock,
}

impl Process {
    /// No connection yet.
    pub const fn new(budget: Arc<Budget>) -> Self {
        let [open, descriptors, workers] = [const { AtomicUsize::new(0) }; 3];
        Self { open, budget, descriptors, workers }
    }
}

impl Worker {
    /// An idle worker. [`Worker::serve`] gives it its program.
    pub fn new(
        index: u16,
        settings: Settings,
        process: Arc<Process>,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let shared = RefCell::new(SharedInfo::new(&process.budget));
        let pieces = Rc::new(SharedPieces::new(&process.budget));
        let table = RefCell::new(ConnectionTable::new(&process.budget)?);
        process.workers.fetch_add(1, Relaxed);
        Ok(Self {
            index,
            process,
            settings: Cell::new(settings),
            program: OnceCell::new(),
            table,
            buffers: RefCell::default(),
            shared,
            pieces,
            counters,
            again: RefCell::default(),
            ending: RefCell::default(),
            loop_waker: Cell::default(),
            to_resume: RefCell::default(),
            later: RefCell::default(),
            sources: Sources::default(),
            holders: RefCell::default(),
            looks: Cell::default(),
            idle_cursor: Cell::default(),
            leaving_cursor: Cell::default(),
            idle: RefCell::default(),
            large: ShedQueue::default(),
            half_open: ShedQueue::default(),
            unused: ShedQueue::default(),
            serving: RefCell::default(),
            waiting_for_memory: MemoryWait::default(),
            next_id: Cell::new(1),
            drain: Cell::default(),
            unplaced: Cell::new(0),
            is_searching: Cell::new(false),
            leaving: Cell::new(false),
            has_ended: Cell::new(false),
            is_cutting: Cell::new(false),
            burst: Cell::default(),
            counting_waker: waker::counting_waker(),
            clock: Clock::new(),
        })
    }

    /// Which worker it is, from 0.
    pub fn index(&self) -> usize {
        usize::from(self.index)
    }

    /// Milliseconds since 1970 by the steady clock.
    pub fn now_unix_ms(&self) -> u64 {
        self.clock.steady_ms()
    }

    /// The same in nanoseconds.
    #[inline]
    pub fn now_unix_ns(&self) -> u64 {
        self.clock.steady_ns()
    }

    /// Sets the program, once.
    pub fn serve(&self, program: &Rc<impl Program + 'static>) {
        let program: Rc<dyn Program> = program.clone();
        // A second program would be a mistake of the caller; the first one stays.
        let _ = self.program.set(Rc::downgrade(&program));
    }

    pub(crate) fn program(&self) -> Option<Rc<dyn Program>> {
        self.program.get().and_then(Weak::upgrade)
    }

    /// Whether the access log is written at all.
    pub fn logs(&self) -> bool {
        self.program().is_some_and(|program| program.is_logging())
    }

    /// Logs the end of a connection and counts its outcome.
    pub fn emit(&self, info: &ConnectionInfo, end: &End) {
        self.count(end, info.bytes_to_client, info.bytes_to_upstream);
        if let Some(counted_at) = &info.decided.counted_at {
            counted_at.closed();
        }
        if let Some(program) = self.program() {
            program.log(info, end);
        }
    }

    /// The same for a parked connection.
    pub(crate) fn emit_parked(&self, info: &Parked, relay: &Relay, end: &End) {
        if self.logs() {
            let mut info = info.info(&self.shared.borrow());
            if let Relay::Splice(spliced) = relay {
                spliced.restore(&mut info.decided);
            }
            self.emit(&info, end);
        } else {
            self.count(end, info.bytes_to_client, info.bytes_to_upstream);
            let shared = self.shared.borrow();
            let counted_at = info.decided(&shared).and_then(|decided| decided.counted_at.as_ref());
            if let Some(counted_at) = counted_at {
                counted_at.closed();
            }
        }
        self.shared.borrow_mut().forget(info);
    }

    /// Counts an end that lack of memory caused.
    pub fn count_shed(&self, reason: &Reason) {
        if reason.class() == Class::Shed {
            self.counters.shed.up();
        }
    }

    fn count(&self, end: &End, to_client: u64, to_upstream: u64) {
        self.count_shed(&end.reason);
        self.counters.fault(end);
        self.counters.bytes_to_client.add(to_client);
        self.counters.bytes_to_upstream.add(to_upstream);
        if let Some(ended) = self.counters.ended.get(end.reason.class() as usize) {
            ended.up();
        }
        match end.outcome {
            Outcome::Failed => self.counters.failed.up(),
            Outcome::Left => self.counters.left.up(),
            Outcome::Originated => self.counters.originated.up(),
            Outcome::Redirected => self.counters.redirected.up(),
            Outcome::Refused => self.counters.refused.up(),
            Outcome::Spliced => self.counters.spliced.up(),
            Outcome::Terminated => self.counters.terminated.up(),
        }
    }

    /// Counts a slot as freed. Dropping it closes its sockets.
    pub(crate) fn closed(&self, slot: Option<Slot>) {
        if let Some(slot) = slot {
            self.uncount(&slot);
        }
    }

    /// Counts a slot as freed whose sockets may stay open.
    pub(crate) fn uncount(&self, slot: &Slot) {
        self.process.open.fetch_sub(1, Relaxed);
        self.process.budget.give(Account::Connections, slot.active_bytes());
        self.process.descriptors.fetch_sub(slot.descriptors(), Relaxed);
        self.counters.connections.down();
        self.count_state(&slot.state, eyelet_telemetry::cell::Cell::down);
    }

    /// Counts descriptors that connections took, or returned where `n` is negative. An active
    /// connection counts two from the start, because it may dial.
    pub(crate) fn uses_descriptors(&self, n: isize) {
        self.process.descriptors.fetch_add(n.cast_unsigned(), Relaxed);
    }

    /// Notes that the bytes in transit of one connection changed from `before` to `after`.
    pub(crate) fn keeps(&self, before: usize, after: usize) {
        self.holds(before, after);
        if after > before {
            self.process.budget.take(Account::Relayed, after - before);
        } else if before > after {
            self.process.budget.give(Account::Relayed, before - after);
        }
    }

    /// Notes that a parked connection's memory changed from `before` to `after` bytes.
    pub(crate) fn holds(&self, before: usize, after: usize) {
        let bytes = self.counters.parked_bytes.value().wrapping_add(after as u64);
        self.counters.parked_bytes.set(bytes.wrapping_sub(before as u64));
    }

    /// Whether the worker drains.
    pub fn is_draining(&self) -> bool {
        self.drain.get().is_some()
    }

    /// Whether it has no connection, and none arrives.
    pub(crate) fn is_empty(&self) -> bool {
        self.unplaced.get() == 0 && self.table.borrow().is_empty()
    }

    /// Whether its parked connections leave for another process.
    pub fn is_leaving(&self) -> bool {
        self.leaving.get()
    }

    /// Whether a connection that cannot be parked should end as soon as it can: the worker drains,
    /// or hands its parked connections over.
    pub fn is_ending(&self) -> bool {
        self.is_draining() || self.is_leaving()
    }

    /// The info of a connection that was just accepted.
    pub(crate) fn info(&self, listener: u16, peer: SocketAddr) -> ConnectionInfo {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        self.counters.accepted.up();
        ConnectionInfo {
            id: u64::from(self.index) << 48 | id,
            started_unix_ns: self.now_unix_ns(),
            client: peer,
            connect: None,
            owes_answer: false,
            is_decided: false,
            decided: Decided { listener, ..Decided::default() },
            bytes_to_upstream: 0,
            bytes_to_client: 0,
        }
    }

    /// The count in the id of the next connection.
    pub fn next_id(&self) -> u64 {
        self.next_id.get()
    }

    /// Counts on from `count`, so that no id of an earlier process is used again. A count that has
    /// passed that already stays.
    pub fn set_next_id(&self, count: u64) {
        self.next_id.update(|own| own.max(count));
    }

    /// Resumes a connection in the next iteration, which then starts without an event.
    pub(crate) fn go_on_later(&self, key: Key) {
        self.again.borrow_mut().push(key);
        self.wake_loop();
    }

    /// Has the event loop end a connection that was shed, before it resumes another.
    pub(crate) fn end_later(&self, key: Key) {
        self.ending.borrow_mut().push(key);
        self.wake_loop();
    }

    fn wake_loop(&self) {
        if let Some(waker) = self.loop_waker.take() {
            waker.wake();
        }
    }

    /// Ready when connections go on, or end, without an event.
    pub(crate) fn poll_later(&self, task: &mut Context<'_>) -> Poll<()> {
        let has_more = !self.again.borrow().is_empty() || !self.ending.borrow().is_empty();
        if has_more || self.is_searching.take() {
            return Poll::Ready(());
        }
        let known = self.loop_waker.take().filter(|known| known.will_wake(task.waker()));
        self.loop_waker.set(known.or_else(|| Some(task.waker().clone())));
        Poll::Pending
    }
}

impl Handle {
    /// Makes a future the owner of a slot.
    pub fn new(worker: Rc<Worker>, key: Key) -> Self {
        Self::owner(worker, key, (false, None))
    }

    /// The same for a connection that was parked, and idle since this tick.
    pub(crate) fn woken(worker: Rc<Worker>, key: Key, idle_since: Option<u32>) -> Self {
        Self::owner(worker, key, (false, idle_since))
    }

    fn owner(worker: Rc<Worker>, key: Key, (released, idle_since): (bool, Option<u32>)) -> Self {
        let (released, is_unused) = (Cell::new(released), Cell::new(false));
        let idle_since = idle_since.and_then(NonZeroU32::new);
        Self { worker, key, released, idle_since, is_unused }
    }

    /// Notes that its task did nothing that counts as use: when it is parked, it has been idle
    /// since before its task woke.
    pub fn stays_idle(&self) {
        self.is_unused.set(true);
    }

    /// Gives the slot back to the table: dropping this handle then closes nothing. A wake may make
    /// another task its owner before this one has ended.
    pub fn release(&self) {
        self.released.set(true);
    }

    /// A second handle, for a part of the same task. Dropping it closes nothing.
    #[must_use]
    pub fn lend(&self) -> Self {
        Self::owner(self.worker.clone(), self.key, (true, None))
    }

    /// The slot's key.
    pub fn key(&self) -> Key {
        self.key
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.released.get() {
            let removed = self.worker.table.borrow_mut().remove(self.key);
            self.worker.closed(removed);
        }
    }
}
