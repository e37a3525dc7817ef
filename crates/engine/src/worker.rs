//! A worker: one thread, one table, one turn after another: events, deadlines, log.
//! It must not know how bytes are moved or what a rule says.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;
use std::time::Duration;

use eyelet_sys::waker;
use foldhash::fast::RandomState;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::connection_table::{ConnectionTable, Entry};
use crate::queues::{Holders, Queue};
use crate::relay::{Buffers, Relay};
use crate::source::{Source, Sources};
use eyelet_memory::budget::{Account, Budget, Counted};
use eyelet_memory::slab::Key;
use eyelet_telemetry::counters::Counters;
use eyelet_telemetry::info::{ConnectionInfo, Decided, End, Outcome, Parked, Shared};
use eyelet_telemetry::reason::{Class, Reason};

/// What came and went since memory was last given back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Burst {
    /// The most connections that were open.
    pub(crate) peak: usize,
    /// Those open at the last tick.
    pub(crate) open: usize,
    /// Ticks since that number changed.
    pub(crate) quiet: u32,
    /// All ticks.
    pub(crate) ticks: u32,
    /// Ticks that compressors have rested for.
    pub(crate) rested: u32,
    /// Whether anything changed at all: handshakes leave memory behind, connections that stay
    /// or not, and so do compressors that were given up.
    pub(crate) dirty: bool,
}

/// The bounds of the event loop. A reload may change them.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a connection may be without a byte.
    pub idle_timeout: Duration,
    /// Whether idle connections are ended for new ones when memory is short.
    pub shed_idle: bool,
    /// What a drain leaves to busy connections.
    pub drain_timeout: Duration,
    /// Connections allowed at once: the least of configuration and memory.
    pub connections_max: usize,
    /// Descriptors that connections may hold.
    pub descriptors_max: usize,
}

/// What the process wants of its workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Serve by the configuration that the process was started with.
    #[default]
    Serve,
    /// Serve by the newest one, which has this generation: [`Program::update`] gives it.
    Reload(u64),
    /// End: accept no more, and let the connections end.
    Drain,
}

/// A listening socket of one worker.
pub struct ListenerSocket {
    /// Index of the listener in the configuration.
    pub listener: u16,
    /// The socket. The process has it too, for the next reload.
    pub socket: Arc<OwnedFd>,
    /// The kernel's count of dropped connections at the last look.
    pub drops: u32,
}

/// What a reload changes in the event loop.
pub struct Update {
    /// Its bounds.
    pub settings: Settings,
    /// Where it listens from now on, those before included that stay.
    pub sockets: Vec<ListenerSocket>,
}

/// What the workers of a process share.
#[derive(Debug)]
pub struct Process {
    /// Connections open now, in all workers.
    pub open: AtomicUsize,
    /// What connections hold in memory, in all workers.
    pub budget: Arc<Budget>,
    /// Descriptors that connections hold now, in all workers.
    pub descriptors: AtomicUsize,
}

/// What the program does with a connection, as a future that ends when the connection has ended or
/// is parked.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A program, one value a worker. The event loop calls it; it calls the event loop through
/// [`Handle`] and [`crate::worker::Worker`].
pub trait Program {
    /// A connection was accepted.
    fn accepted(self: Rc<Self>, handle: Handle, info: ConnectionInfo) -> Task;

    /// A parked connection's client has sent something, and moving bytes is not enough: the
    /// connection has no upstream yet. `counted` is what it holds and is about to hold.
    fn woken(
        self: Rc<Self>,
        handle: Handle,
        info: ConnectionInfo,
        relay: Relay,
        counted: Counted,
    ) -> Task;

    /// What the newest configuration changes, if it is newer than the one that is served.
    fn update(&self) -> Option<Update>;

    /// Serves by the configuration that [`Program::update`] gave.
    fn take_over(&self);

    /// Whether anybody reads what [`Program::log`] writes.
    fn is_logging(&self) -> bool;

    /// Writes the access-log entry of a connection that has ended.
    fn log(&self, info: &ConnectionInfo, end: &End);

    /// Hands buffered log entries over. The wall clock is `ahead_ms` ahead of the clock that
    /// connections are measured by.
    fn flush_log(&self, ahead_ms: i64);

    /// A tick has passed: [`crate::timer_wheel::TICK_MS`].
    fn tick(&self);

    /// Whether nothing is coded now, so that what coders hold may be given up.
    fn is_resting(&self) -> bool;

    /// Gives up what is held for reuse: the allocator is about to return free memory.
    fn release_caches(&self);

    /// The worker ends.
    fn close(&self);
}

/// A connection whose bytes its future moves. Dropping it closes the connection.
pub struct Handle {
    /// The worker it lives on.
    pub worker: Rc<Worker>,
    pub(crate) key: Key,
    pub(crate) released: Cell<bool>,
}

/// One worker.
pub struct Worker {
    /// Which one, from 0.
    pub index: u16,
    /// What all share.
    pub process: Arc<Process>,
    /// Its bounds.
    pub(crate) settings: Cell<Settings>,
    /// What it serves; not owned, because the program owns this worker.
    program: OnceCell<Weak<dyn Program>>,
    /// Its connections.
    pub table: RefCell<ConnectionTable>,
    /// Its buffers, lent while bytes are moved.
    pub buffers: RefCell<Buffers>,
    /// What its parked connections share.
    pub shared: RefCell<Shared>,
    /// Its numbers.
    pub counters: Arc<Counters>,
    /// Half-open connections that hold much, oldest first, and some that do not any more.
    pub large: Queue,
    /// Active connections, oldest first, and some that are not active any more.
    pub half_open: Queue,
    /// HTTP/2 connections without a stream, longest first, and some that have one again.
    pub unused: Queue,
    /// Tasks that serve parked connections, by source.
    pub serving: RefCell<HashMap<Source, usize, RandomState>>,
    /// Tasks that wait for memory.
    pub waiting_for_memory: RefCell<Vec<Waker>>,
    /// What parked connections hold, by source.
    pub sources: Sources,
    /// Parked connections that hold bytes for a peer, longest first, and some that do not any more.
    pub holders: RefCell<Holders>,
    /// Whether idle connections were looked for since the last tick.
    pub has_looked: Cell<bool>,
    /// Where they are looked for next.
    pub idle_cursor: Cell<u32>,
    /// Where connections are looked for next that are idle while the process drains.
    pub drain_cursor: Cell<u32>,
    /// Parked connections that may have more to move, and memory was short.
    pub later: RefCell<Vec<Key>>,
    /// Idle connections with their deadlines, those that are idle for longest last, where they
    /// were looked for.
    pub idle: RefCell<Vec<(u32, Key)>>,
    /// Connections that go on in the next turn without an event: parked ones that used up their
    /// share of this one, and connections that must end.
    pub(crate) again: RefCell<Vec<Key>>,
    /// Connections that were shed, whose futures are in their slots and free what they hold when
    /// they are resumed: before the next connection is, so that its need does not shed others.
    pub(crate) ending: RefCell<Vec<Key>>,
    /// Has that turn come.
    pub(crate) has_again: Notify,
    /// Connections whose future lies in their entry, and whose wait is over.
    pub(crate) to_resume: RefCell<Vec<Key>>,
    next_id: Cell<u64>,
    pub(crate) draining: Cell<bool>,
    /// The drain's time is over.
    pub is_cutting: Cell<bool>,
    pub(crate) burst: Cell<Burst>,
    /// What futures are polled with that may wait in their entries.
    pub nobody: Waker,
    /// Its clocks.
    pub clock: Clock,
}

impl Worker {
    /// A worker with nothing to do yet. [`Worker::serve`] gives it its program.
    pub fn new(
        index: u16,
        settings: Settings,
        process: Arc<Process>,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let shared = RefCell::new(Shared::new(&process.budget));
        let table = RefCell::new(ConnectionTable::new(&process.budget)?);
        Ok(Self {
            index,
            process,
            settings: Cell::new(settings),
            program: OnceCell::new(),
            table,
            buffers: RefCell::default(),
            shared,
            counters,
            again: RefCell::default(),
            ending: RefCell::default(),
            has_again: Notify::new(),
            to_resume: RefCell::default(),
            later: RefCell::default(),
            sources: Sources::default(),
            holders: RefCell::default(),
            has_looked: Cell::default(),
            idle_cursor: Cell::default(),
            drain_cursor: Cell::default(),
            idle: RefCell::default(),
            large: Queue::default(),
            half_open: Queue::default(),
            unused: Queue::default(),
            serving: RefCell::default(),
            waiting_for_memory: RefCell::default(),
            next_id: Cell::new(1),
            draining: Cell::new(false),
            is_cutting: Cell::new(false),
            burst: Cell::default(),
            nobody: waker::nobody(),
            clock: Clock::new(),
        })
    }

    /// Milliseconds since 1970 by the steady clock.
    pub fn now_unix_ms(&self) -> u64 {
        self.clock.steady_ms()
    }

    /// Hands the worker to its program, once.
    pub fn serve(&self, program: &Rc<impl Program + 'static>) {
        let program: Rc<dyn Program> = program.clone();
        // A second program would be a fault of the caller's; the first one stays.
        let _ = self.program.set(Rc::downgrade(&program));
    }

    pub(crate) fn program(&self) -> Option<Rc<dyn Program>> {
        self.program.get().and_then(Weak::upgrade)
    }

    /// Whether anybody reads the access log.
    pub fn logs(&self) -> bool {
        self.program().is_some_and(|program| program.is_logging())
    }

    /// Writes the access line of a connection and counts its outcome.
    pub fn emit(&self, info: &ConnectionInfo, end: &End) {
        self.count(end);
        if let Some(program) = self.program() {
            program.log(info, end);
        }
    }

    /// The same for a parked one.
    pub fn emit_parked(&self, info: &Parked, relay: &Relay, end: &End) {
        if self.logs() {
            let mut info = info.told(&self.shared.borrow());
            if let Relay::Splice(spliced) = relay {
                spliced.restore(&mut info.decided);
            }
            self.emit(&info, end);
        } else {
            self.count(end);
        }
        self.shared.borrow_mut().forget(info);
    }

    /// Counts what ended for want of memory.
    pub fn count_shed(&self, reason: &Reason) {
        if reason.class() == Class::Shed {
            self.counters.shed.up();
        }
    }

    fn count(&self, end: &End) {
        self.count_shed(&end.reason);
        match end.outcome {
            Outcome::Failed => self.counters.failed.up(),
            Outcome::Redirected => self.counters.redirected.up(),
            Outcome::Refused => self.counters.refused.up(),
            Outcome::Spliced => self.counters.spliced.up(),
            Outcome::Terminated => self.counters.terminated.up(),
        }
    }

    /// Counts an entry out; dropping it closes its sockets.
    pub fn closed(&self, entry: Option<Entry>) {
        if let Some(entry) = entry {
            self.process.open.fetch_sub(1, Relaxed);
            self.process.budget.give(Account::Connections, entry.active_bytes());
            self.process.descriptors.fetch_sub(entry.descriptors(), Relaxed);
            self.counters.connections.down();
        }
    }

    /// Counts descriptors that connections took, or gave back where `n` is negative. An active
    /// connection counts two from the start: it may dial.
    pub fn uses_descriptors(&self, n: isize) {
        self.process.descriptors.fetch_add(n.cast_unsigned(), Relaxed);
    }

    /// Notes that bytes on their way went from `before` to `after` for one connection.
    pub fn keeps(&self, before: usize, after: usize) {
        self.holds(before, after);
        if after > before {
            self.process.budget.take(Account::Relayed, after - before);
        } else if before > after {
            self.process.budget.give(Account::Relayed, before - after);
        }
    }

    /// Notes that what a parked connection holds went from `before` to `after` bytes.
    pub fn holds(&self, before: usize, after: usize) {
        let bytes = self.counters.parked_bytes.value().wrapping_add(after as u64);
        self.counters.parked_bytes.set(bytes.wrapping_sub(before as u64));
    }

    /// Whether the worker is on its way out.
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// The info of a connection that was accepted.
    pub fn info(&self, listener: u16, peer: SocketAddr) -> ConnectionInfo {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        self.counters.accepted.up();
        ConnectionInfo {
            id: u64::from(self.index) << 48 | id,
            started_unix_ms: self.now_unix_ms(),
            client: peer,
            connect: None,
            owes_answer: false,
            decided: Decided { listener, ..Decided::default() },
            bytes_to_upstream: 0,
            bytes_to_client: 0,
        }
    }

    /// Has a connection go on in the next turn, which then comes without an event.
    pub fn go_on_later(&self, key: Key) {
        self.again.borrow_mut().push(key);
        self.has_again.notify_one();
    }
}

impl Handle {
    /// Makes a task the owner of an entry.
    pub fn new(worker: Rc<Worker>, key: Key) -> Self {
        Self { worker, key, released: Cell::new(false) }
    }

    /// Gives the entry up to the table: dropping this closes nothing any more. A wake may make
    /// another task its owner before this one has ended.
    pub fn release(&self) {
        self.released.set(true);
    }

    /// The entry's key.
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
