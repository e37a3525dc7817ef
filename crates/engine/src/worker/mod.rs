//! The state of a worker, its handle on a connection, and [`Program`], the trait through which the
//! event loop calls the program.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use eyelet_hold::{HoldKey, HoldPlace};
use eyelet_sys::waker;

use crate::departure::Departure;
use crate::links::{AttachedStreams, DetachedLink, DetachedLinks, Partners, StreamRef};
use crate::worker::flow_state::WorkerFlows;
use crate::worker::state::{Burst, EndingState, MovingState, SheddingState};
use eyelet_handover::guard::DatagramGuard;
use eyelet_memory::budget::Counted;
use eyelet_memory::packed::{PackedBytes, SharedPieces};
use eyelet_memory::slab::Key;
use eyelet_relay::held::HeldConnection;
use eyelet_relay::{Buffers, KeptExchanges, Relay};
use eyelet_table::clock::Clock;
use eyelet_table::run_queue::RunQueue;
use eyelet_table::{ConnectionTable, KeptStreams};
use eyelet_telemetry::counters::Counters;
use eyelet_telemetry::info::{ConnectionInfo, Decided, End, SharedInfo};
use eyelet_telemetry::labels::Labels;
use eyelet_telemetry::listing::ListedRequest;
use eyelet_telemetry::listing::streams::StreamCounts;

mod counting;
pub mod flow_state;
mod handle;
mod listed;
mod parked_waker;
mod registration;
pub mod source;
mod state;

pub use eyelet_workers::process::{
    ListenerSocket, Order, Orders, Process, Settings, Update, WorkerOrders,
};
pub use eyelet_workers::{inbox, rates};
pub use handle::WaitError;
pub use parked_waker::ParkedWaker;
pub use registration::Registration;

/// The tick at which a worker starts: eleven days. A connection of another process may have been
/// idle for longer than its worker has run; the tick at which it began to be is still above zero.
#[cfg(not(test))]
pub(crate) const FIRST_TICK: u32 = 11 * 24 * 3600 * 10;
/// Tests count from 0.
#[cfg(test)]
pub(crate) const FIRST_TICK: u32 = 0;
/// The time for which nothing moves in an exchange before it rests: longer than the pauses of a
/// response that is being made. To rest and to go on costs as much as a small request.
const REST_AFTER: Duration = Duration::from_secs(1);
/// [`REST_AFTER`] while memory is scarce: a round trip to most clients. The timer wheel adds up to
/// a step, so it is about a tenth of a second.
const REST_AFTER_SCARCE: Duration = Duration::from_millis(50);
/// Ticks (2 s) for which memory still counts as scarce once it was.
const SCARCE_TICKS: u32 = 20;
/// Bytes that one direction of a connection may move in one wake. Fewer in tests: a Unix socket's
/// buffer is smaller.
const SHARE_BYTES: usize = if cfg!(test) { 96 << 10 } else { eyelet_relay::SHARE_BYTES };

/// The program's work on a connection. It ends when the connection has ended or is parked.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The program: one value per worker. The event loop calls it, and it calls back through [`Handle`]
/// and [`Worker`].
pub trait Program {
    /// Names of listeners and rules in the configuration that decides new connections.
    fn labels(&self) -> Labels {
        Labels::default()
    }

    /// A connection was accepted.
    fn accepted(self: Rc<Self>, handle: Handle, info: ConnectionInfo) -> Task;

    /// A flow of QUIC has begun, or its server has asked its client to begin anew. Its datagrams
    /// wait until the task lets them pass, or refuses them: [`Handle::pass_flow`].
    fn flow_begun(self: Rc<Self>, handle: Handle, _info: ConnectionInfo, flow: Key) -> Task {
        handle.refuse_flow(flow, Vec::new());
        Box::pin(std::future::ready(()))
    }

    /// The guard of a flow that comes from another process. `None`: this program does not read it.
    fn import_guard(&self, _bytes: &[u8]) -> Option<Box<dyn DatagramGuard>> {
        None
    }

    /// A connection has come from another process, which dialled these sockets for it or for what
    /// rests on it. It may be on links, too.
    fn taken_over(
        &self,
        _info: &mut ConnectionInfo,
        _relay: &mut Relay,
        _upstreams: &[BorrowedFd<'_>],
    ) {
    }

    /// A parked connection's client has sent something, and the connection has no upstream yet; or
    /// its exchange rests no more: [`eyelet_relay::Flow::keep_exchange`]. `counted` is the memory
    /// that the connection holds or is about to hold.
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

    /// Bytes for the client of a parked connection before its close_notify: one record at most.
    /// Without any, an exchange that rests is cut, and the client gets no close_notify.
    fn last_bytes(&self, _kept: KeptExchanges<'_>) -> Vec<u8> {
        Vec::new()
    }

    /// Gives `send` the last bytes for the upstreams of what rests, by the places of their sockets:
    /// 0 is that of an exchange.
    fn close_upstreams(&self, _resting: KeptExchanges<'_>, _send: &mut dyn FnMut(usize, &[u8])) {}

    /// Ends what rests on a connection that ends while it is parked: writes the access line of each
    /// exchange. That of the connection follows.
    fn end_resting(&self, _info: ConnectionInfo, _resting: KeptExchanges<'_>, _end: &End) {}

    /// Returns how long what rests on a connection may be idle. The time counts from when the
    /// connection was parked, or since before then if its task has noted so: [`Handle::note_idle`].
    fn rest_wait(&self, _resting: KeptExchanges<'_>, settings: &Settings) -> Duration {
        settings.body_timeout
    }

    /// Bytes that an upstream of what rests takes at most once its exchange goes on.
    fn upstream_bytes(&self, _resting: KeptExchanges<'_>) -> usize {
        0
    }

    /// Counts the requests and streams that rest on a parked connection.
    fn resting_streams(&self, _resting: KeptExchanges<'_>) -> StreamCounts {
        StreamCounts::default()
    }

    /// The first of them, as a list of connections shows them.
    fn resting_requests(&self, _resting: KeptExchanges<'_>) -> Vec<ListedRequest> {
        Vec::new()
    }

    /// True if what rests of a connection of HTTP/1.1 ends with the rule that decided it, where
    /// `reload_ends_removed` says so: it has switched protocols.
    fn ends_with_rule(&self, _exchange: &[u8]) -> bool {
        false
    }

    /// Packs a state that comes from another process, of a connection with so many further sockets
    /// and so many streams on links. `None`: this program does not read it, or not of a connection
    /// that was decided so.
    fn pack_state(
        &self,
        _decided: &Decided,
        _state: &[u8],
        _streams: (usize, usize),
    ) -> Option<PackedBytes> {
        None
    }

    /// True if this program reads an exchange at rest that comes from another process, of a
    /// connection that was decided so. `is_shared`: it is on a link.
    fn reads_exchange(&self, _decided: &Decided, _exchange: &[u8], _is_shared: bool) -> bool {
        false
    }

    /// Adds the links of these streams, and the connections that have streams on those. Returns
    /// false if a link cannot move now.
    fn find_partners(&self, _kept: &KeptStreams, _found: &mut Partners) -> bool {
        false
    }

    /// Takes the links of a group, all of which can move, out of the worker. `kept` are the streams
    /// of each connection. `None`: a socket cannot be taken, and all links end.
    fn detach_links(&self, _kept: Vec<KeptStreams>) -> Option<DetachedLinks> {
        None
    }

    /// True if this program reads the links of a group from another process, and their streams
    /// belong to exchanges that rest on its connections.
    fn reads_links(
        &self,
        _links: &[DetachedLink],
        _connections: &[(KeptExchanges<'_>, &[StreamRef])],
    ) -> bool {
        false
    }

    /// Goes on with the links of a group. Returns what is kept of the streams of each connection.
    /// `None`: one of its links cannot go on.
    fn attach_links(
        &self,
        _links: Vec<DetachedLink>,
        _connections: &[(Key, Vec<StreamRef>)],
    ) -> Vec<AttachedStreams> {
        Vec::new()
    }

    /// Writes the access line of a request that ends while it is held.
    fn end_held(&self, _info: ConnectionInfo, _held: &HeldConnection, _end: &End) {}

    /// A place for a held connection that comes from another process, among those that wait on this
    /// question. `None`: it is to be decided anew.
    fn ask_again(&self, _info: &ConnectionInfo, _key: HoldKey, _bytes: usize) -> Option<HoldPlace> {
        None
    }

    /// Changes by the newest configuration, if it is newer than the one that is served.
    fn update(&self) -> Option<Update>;

    /// Serves by the configuration that [`Program::update`] gave.
    fn apply_update(&self);

    /// Says how the worker leaves after [`Order::HandOver`], once.
    fn departure(&self) -> Option<Departure> {
        None
    }

    /// True if anybody reads what [`Program::log`] writes.
    fn is_logging(&self) -> bool;

    /// Writes the access-log entry of a connection that has ended.
    fn log(&self, info: &ConnectionInfo, end: &End);

    /// Flushes buffered log entries. The wall clock is `ahead_ms` ahead of the steady clock that
    /// connections are timed by.
    fn flush_log(&self, ahead_ms: i64);

    /// A tick has passed (every [`eyelet_table::timer_wheel::TICK_MS`]).
    fn tick(&self);

    /// True if no body is being compressed, so that idle compressors may be freed.
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
    pub(crate) idle_since: Cell<Option<NonZeroU32>>,
    /// True if its task did nothing that counts as use.
    pub(crate) is_unused: Cell<bool>,
}

pub struct Worker {
    /// Its number, from 0.
    pub(crate) index: u16,
    /// State shared with the other workers.
    pub process: Arc<Process>,
    /// Limits from the configuration.
    pub(crate) settings: Cell<Settings>,
    /// Weak, because the program owns this worker.
    program: OnceCell<Weak<dyn Program>>,
    pub table: RefCell<ConnectionTable>,
    /// Buffers, lent while bytes are moved.
    pub buffers: RefCell<Buffers>,
    /// Texts that parked connections share.
    pub shared: RefCell<SharedInfo>,
    /// Pieces that their states share.
    pub pieces: Rc<SharedPieces>,
    pub counters: Arc<Counters>,
    /// The state of load shedding.
    pub(crate) shedding: SheddingState,
    /// Connections that are resumed without an event.
    pub(crate) run_queue: RunQueue,
    /// The count in the id of the next connection.
    next_id: Cell<u64>,
    /// The way in which its connections end, and why.
    pub(crate) ending: EndingState,
    /// The state of connections that move to another process, or come from one.
    pub(crate) moving: MovingState,
    /// Connections that came and went.
    pub(crate) burst: Cell<Burst>,
    /// Counting waker for futures stored in slots.
    pub(crate) counting_waker: Waker,
    pub clock: Clock,
    /// Flows of QUIC.
    pub(crate) flows: WorkerFlows,
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
        let table = RefCell::new(ConnectionTable::new(&process.budget, FIRST_TICK)?);
        let flows = WorkerFlows::new(&process.budget, &process.unanswered);
        process.workers.fetch_add(1, Relaxed);
        process.descriptors_max.store(settings.descriptors_max, Relaxed);
        Ok(Self {
            index,
            process,
            settings: Cell::new(settings),
            program: OnceCell::new(),
            table,
            buffers: RefCell::new(Buffers::new(SHARE_BYTES)),
            shared,
            pieces,
            counters,
            shedding: SheddingState::default(),
            run_queue: RunQueue::default(),
            next_id: Cell::new(1),
            ending: EndingState::default(),
            moving: MovingState::default(),
            burst: Cell::default(),
            counting_waker: waker::counting_waker(),
            clock: Clock::new(),
            flows,
        })
    }

    /// The number of the worker, from 0.
    pub fn index(&self) -> usize {
        usize::from(self.index)
    }

    /// Milliseconds since 1970 by the steady clock.
    pub fn now_unix_ms(&self) -> u64 {
        self.clock.steady_ms()
    }

    /// The time in nanoseconds.
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

    /// The limits of the configuration that it serves by.
    pub fn settings(&self) -> Settings {
        self.settings.get()
    }

    /// True if the access log is written at all.
    pub fn logs(&self) -> bool {
        self.program().is_some_and(|program| program.is_logging())
    }

    /// True if the worker drains.
    pub fn is_draining(&self) -> bool {
        self.ending.drain.get().is_some()
    }

    /// True if it has no connection, and none arrives.
    pub(crate) fn is_empty(&self) -> bool {
        self.moving.unplaced.get() == 0 && self.table.borrow().is_empty() && self.flows.is_idle()
    }

    /// True if its parked connections leave for another process.
    pub fn is_leaving(&self) -> bool {
        self.moving.is_leaving.get()
    }

    /// True if connections rest as soon as they can, to leave for another process. Once this worker
    /// has retired, they do so a second in ten, and rest as at other times in between.
    pub fn rests_at_once(&self) -> bool {
        self.is_leaving() && self.moving.is_awaited.get()
    }

    /// Returns how long nothing moves in an exchange before it rests. It holds buffers until then,
    /// so it does so sooner while more than half of the memory budget is used.
    pub fn rest_after(&self) -> Duration {
        let mut burst = self.burst.get();
        if self.process.budget.is_half_used() {
            // Resting gives memory back. A deadline that was set so still holds when it passes.
            burst.scarce_ticks = SCARCE_TICKS;
            self.burst.set(burst);
        }
        if burst.scarce_ticks > 0 { REST_AFTER_SCARCE } else { REST_AFTER }
    }

    /// True if a connection serves nothing new: it ends after what it serves now. An HTTP/1.1 one
    /// moves to the process that has replaced this one as soon as it rests.
    pub fn begins_nothing(&self, is_http2: bool) -> bool {
        self.is_draining() || self.is_retired() && (is_http2 || !self.is_leaving())
    }

    /// True if another process has replaced this one for good. What is left goes on until it ends.
    pub fn is_retired(&self) -> bool {
        self.ending.is_retired.get()
    }

    /// Ready when connections go on, or end, without an event.
    pub(crate) fn poll_later(&self, task: &Context<'_>) -> Poll<()> {
        if self.run_queue.has_more() || self.moving.is_searching.take() {
            return Poll::Ready(());
        }
        self.run_queue.register(task);
        Poll::Pending
    }

    /// True if the drain's time is over.
    pub fn is_cutting(&self) -> bool {
        self.ending.is_cutting.get()
    }

    /// True if a connection that cannot be parked should end as soon as it can: the worker drains,
    /// or hands its parked connections over.
    pub fn is_ending(&self) -> bool {
        self.is_draining() || self.is_leaving()
    }

    /// The info of a connection that was just accepted.
    pub(crate) fn info(&self, listener: u16, peer: SocketAddr) -> ConnectionInfo {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        self.counters.accepted.up();
        let id = u64::from(self.index) << 48 | id;
        let mut info = ConnectionInfo::new(id, self.now_unix_ns(), peer);
        info.decided.listener = listener;
        info
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
}

impl Handle {
    /// Makes a future the owner of a slot.
    pub fn new(worker: Rc<Worker>, key: Key) -> Self {
        Self::owner(worker, key, (false, None))
    }

    /// The handle of a connection that was parked, and idle since this tick.
    pub(crate) fn woken(worker: Rc<Worker>, key: Key, idle_since: Option<u32>) -> Self {
        Self::owner(worker, key, (false, idle_since))
    }

    fn owner(worker: Rc<Worker>, key: Key, (released, idle_since): (bool, Option<u32>)) -> Self {
        let (released, is_unused) = (Cell::new(released), Cell::new(false));
        let idle_since = Cell::new(idle_since.and_then(NonZeroU32::new));
        Self { worker, key, released, idle_since, is_unused }
    }

    /// Notes that its task has not used it: when it is parked, it counts as idle since before its
    /// task woke.
    pub fn stays_idle(&self) {
        self.is_unused.set(true);
    }

    /// The time that it had been idle when its task woke, and since then.
    pub fn idle(&self) -> Duration {
        let since = self.idle_since.get();
        since.map_or(Duration::ZERO, |tick| self.worker.table.borrow().since_tick(tick.get()))
    }

    /// Notes that it has been idle for so long: parked now, it goes on being idle.
    pub fn note_idle(&self, idle: Duration) {
        let since = self.worker.table.borrow().tick_before(idle);
        self.idle_since.set(NonZeroU32::new(since));
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
