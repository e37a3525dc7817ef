//! A worker: one thread, one lot, one turn after another: events, deadlines, log.
//! It must not know how bytes are moved or what a rule says.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use eyelet_sys::epoll::Events;
use eyelet_sys::waker;
use foldhash::fast::RandomState;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, watch};

use crate::accept::{ACCEPTS, Accepted, Accepting, ListenerSocket};
use crate::clock::Clock;
use crate::handle::Handle;
use crate::lot::{CLIENT, Entry, Lot, Role, Token, Waiting, Waits};
use crate::park;
use crate::program::Program;
use crate::relay::{Buffers, Relay};
use crate::shed::{self, Holder, Queue};
use crate::source::{Source, Sources};
use crate::wheel::TICK_MS;
use eyelet_memory::budget::{ACTIVE_BYTES, Account, Budget};
use eyelet_memory::slab::Key;
use eyelet_telemetry::counters::Counters;
use eyelet_telemetry::info::{Decided, End, Outcome, Parked, Shared, Story};

/// Events taken in one turn before deadlines and the log have their turn.
const EVENTS: usize = 512;
/// Connections that came in one turn, of which most have sent their hello when they are begun.
const CROWD: usize = 4;
/// Tasks that the runtime runs until it looks for events.
const TASKS: usize = 61;
/// Events whose tasks run twice, to read and to write, until then.
const FEW: usize = TASKS / 2;
/// How often the runtime may look until the next turn begins anyway.
const RETURNS: usize = 2;
/// Turns that tasks have to tell of their end when the drain is over.
const LAST_TURNS: usize = 8;
/// Connections that make a burst worth returning the memory of while others come and go.
const BURST: usize = 1000;
/// A second without a connection more or less.
const QUIET_TICKS: u32 = 10;
/// A second between two looks at what the kernel has dropped: a system call for each listener.
const DROPS_TICKS: u32 = 10;

/// What came and went since memory was last given back.
#[derive(Clone, Copy, Debug, Default)]
struct Burst {
    /// The most connections that were open.
    peak: usize,
    /// Those open at the last tick.
    open: usize,
    /// Ticks since that number changed.
    quiet: u32,
    /// All ticks.
    ticks: u32,
    /// Ticks that compressors have rested for.
    rested: u32,
    /// Whether anything changed at all: handshakes leave memory behind, connections that stay
    /// or not, and so do compressors that were given up.
    dirty: bool,
}

/// What the event loop is told of its bounds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a connection may be without a byte.
    pub idle_timeout: Duration,
    /// Whether idle connections are ended for new ones when memory is short.
    pub shed_idle: bool,
    /// What a drain leaves to busy connections.
    pub drain_timeout: Duration,
}

/// What the workers of a process share.
#[derive(Debug)]
pub struct Process {
    /// Its bounds.
    pub settings: Settings,
    /// Connections open now, in all workers.
    pub open: AtomicUsize,
    /// What connections hold in memory, in all workers.
    pub budget: Arc<Budget>,
    /// Descriptors that connections hold now, in all workers.
    pub descriptors: AtomicUsize,
    /// Connections allowed at once: the least of configuration and memory.
    pub connections_max: usize,
    /// Descriptors that connections may hold.
    pub descriptors_max: usize,
}

/// One worker.
pub struct Worker {
    /// Which one, from 0.
    pub index: u16,
    /// What all share.
    pub process: Arc<Process>,
    /// What it serves; not owned, because the program owns this worker.
    program: OnceCell<Weak<dyn Program>>,
    /// Its connections.
    pub lot: RefCell<Lot>,
    /// Its buffers, lent while bytes are moved.
    pub buffers: RefCell<Buffers>,
    /// What its parked connections share.
    pub shared: RefCell<Shared>,
    /// Its numbers.
    pub counters: Arc<Counters>,
    /// Active connections, oldest first, and some that are not active any more.
    pub half_open: Queue,
    /// HTTP/2 connections without a stream, longest first, and some that have one again.
    pub unused: Queue,
    /// Tasks that serve parked connections, by source.
    pub serving: RefCell<HashMap<Source, usize, RandomState>>,
    /// Tasks that wait for memory.
    pub thirsty: RefCell<Vec<Waker>>,
    /// What parked connections hold, by source.
    pub sources: Sources,
    /// Parked connections that hold bytes for a peer, longest first, and some that do not any more.
    pub holders: RefCell<VecDeque<Holder>>,
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
    /// share of this one, and stories that must end.
    again: RefCell<Vec<Key>>,
    /// Has that turn come.
    has_again: Notify,
    /// Stories that lie in their entries and whose wait is over.
    stories: RefCell<Vec<Key>>,
    next_id: Cell<u64>,
    draining: Cell<bool>,
    /// The drain's time is over.
    pub is_cutting: Cell<bool>,
    burst: Cell<Burst>,
    /// What stories are polled with that may wait in their entries.
    pub nobody: Waker,
    /// Its clocks.
    pub clock: Clock,
}

impl Worker {
    /// A worker with nothing to do yet. [`Worker::serve`] gives it its program.
    pub fn new(index: u16, process: Arc<Process>, counters: Arc<Counters>) -> io::Result<Self> {
        let shared = RefCell::new(Shared::new(&process.budget));
        Ok(Self {
            index,
            process,
            program: OnceCell::new(),
            lot: RefCell::new(Lot::new()?),
            buffers: RefCell::default(),
            shared,
            counters,
            again: RefCell::default(),
            has_again: Notify::new(),
            stories: RefCell::default(),
            later: RefCell::default(),
            sources: Sources::default(),
            holders: RefCell::default(),
            has_looked: Cell::default(),
            idle_cursor: Cell::default(),
            drain_cursor: Cell::default(),
            idle: RefCell::default(),
            half_open: Queue::default(),
            unused: Queue::default(),
            serving: RefCell::default(),
            thirsty: RefCell::default(),
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
    pub fn tell(&self, story: &Story, end: &End) {
        self.count(end);
        if let Some(program) = self.program() {
            program.log(story, end);
        }
    }

    /// The same for a parked one.
    pub fn tell_parked(&self, story: &Parked, relay: &Relay, end: &End) {
        if self.logs() {
            let mut story = story.told(&self.shared.borrow());
            if let Relay::Splice(spliced) = relay {
                spliced.tell(&mut story.decided);
            }
            self.tell(&story, end);
        } else {
            self.count(end);
        }
        self.shared.borrow_mut().forget(story);
    }

    /// Counts what ended for want of memory.
    pub fn count_shed(&self, reason: &str) {
        if reason.starts_with(SHED) {
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
            let bytes = size_of::<Entry>() + entry.active_bytes();
            self.process.budget.give(Account::Connections, bytes);
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

    /// Begins the story of a connection, if there is room for it.
    fn begin(self: &Rc<Self>, accepted: Accepted, is_early: bool) {
        let Accepted { listener, client, peer } = accepted;
        if !self.make_room(peer.ip()) {
            self.process.open.fetch_sub(1, Relaxed);
            self.uses_descriptors(-2);
            return self.shed_new(listener, client, peer);
        }
        let story = self.story(listener, peer);
        let key = {
            let mut lot = self.lot.borrow_mut();
            let key = lot.insert(client, is_early);
            if let Some(entry) = lot.entry(key) {
                shed::queue(&self.half_open, key, &mut entry.place);
            }
            key
        };
        self.process.budget.take(Account::Connections, size_of::<Entry>() + ACTIVE_BYTES);
        self.counters.connections.up();
        let handle = Handle::new(self.clone(), key);
        let Some(program) = self.program() else { return };
        self.guarded(key, || self.advance(key, program.accepted(handle, story)));
    }

    /// Goes on with a connection's story until it must wait. Where that is for its own sockets and
    /// its deadline alone it waits in its entry, and else as a task, which polls it anew.
    fn advance(&self, key: Key, mut story: Waiting) {
        let used = waker::used();
        if story.as_mut().poll(&mut Context::from_waker(&self.nobody)).is_ready() {
            return;
        }
        let mut lot = self.lot.borrow_mut();
        match lot.entry(key).map(|entry| &mut entry.role) {
            Some(Role::Active { waits, .. }) if waker::used() == used => {
                *waits = Waits::Here(story);
            }
            _ => drop(tokio::task::spawn_local(story)),
        }
    }

    /// The story of a connection that was accepted.
    pub fn story(&self, listener: u16, peer: SocketAddr) -> Story {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        self.counters.accepted.up();
        Story {
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

    /// Has a connection taken care of of which an event told.
    fn told(self: &Rc<Self>, key: Key) {
        let mut lot = self.lot.borrow_mut();
        let Some(entry) = lot.entry(key) else { return };
        match &mut entry.role {
            // Handshakes are made behind what only moves bytes.
            Role::Active { waits: Waits::Here(_), .. } => self.stories.borrow_mut().push(key),
            Role::Active { waits, .. } => drop(waits.over()),
            Role::Parked { .. } | Role::Lingering => {
                drop(lot);
                park::wake(self, key);
            }
        }
    }

    /// Goes on with a connection, whoever does it.
    fn go_on(self: &Rc<Self>, key: Key) {
        let mut lot = self.lot.borrow_mut();
        let Some(entry) = lot.entry(key) else { return };
        if let Role::Active { waits, .. } = &mut entry.role {
            let story = waits.over();
            drop(lot);
            story.into_iter().for_each(|story| self.advance(key, story));
        } else {
            drop(lot);
            park::wake(self, key);
        }
    }

    /// Has a connection go on in the next turn, which then comes without an event.
    pub fn go_on_later(&self, key: Key) {
        self.again.borrow_mut().push(key);
        self.has_again.notify_one();
    }

    /// The deadline of a connection has passed, or it must end for another reason.
    pub fn late(self: &Rc<Self>, key: Key) {
        let mut lot = self.lot.borrow_mut();
        let Some(entry) = lot.entry(key) else { return };
        match &mut entry.role {
            Role::Active { waits, late, .. } => {
                *late = true;
                let story = waits.over();
                drop(lot);
                story.into_iter().for_each(|story| self.advance(key, story));
            }
            Role::Parked { .. } | Role::Lingering => {
                drop(lot);
                park::late(self, key);
            }
        }
    }

    /// One turn: what is ready, and then what used up its share last time; whether there is more.
    fn turn(self: &Rc<Self>, events: &mut Events, accepting: &mut Accepting) -> io::Result<bool> {
        let mut left = self.look(events, accepting, 1)?;
        if left {
            // If a listener is told of again more wait than was guessed.
            left = self.look(events, accepting, 2)?;
        }
        let again = std::mem::take(&mut *self.again.borrow_mut());
        let more = left || !again.is_empty();
        for key in again {
            self.guarded(key, || self.go_on(key));
        }
        Ok(more)
    }

    /// What is ready now; whether more may be. Of what waits `times` as many are taken in as last.
    fn look(
        self: &Rc<Self>,
        events: &mut Events,
        accepting: &mut Accepting,
        times: usize,
    ) -> io::Result<bool> {
        self.lot.borrow().epoll.poll(events)?;
        let mut left = events.is_full();
        for event in events.iter() {
            if let Token::Listener(index) = Token::decode(event.token)
                && !accepting.paused
            {
                accepting.guess = (times * accepting.guess).min(ACCEPTS);
                left |= self.accept(accepting, index);
            }
        }
        for event in events.iter() {
            if let Token::Connection(key, side) = Token::decode(event.token) {
                self.lot.borrow_mut().note(key, side, event.ready);
            }
        }
        // What is written to one kind of peer is written together, so that each is woken once:
        // what upstreams have said goes to clients, and then what clients have said to upstreams.
        for of_client in [false, true] {
            for event in events.iter() {
                if let Token::Connection(key, side) = Token::decode(event.token)
                    && (side == CLIENT) == of_client
                {
                    self.guarded(key, || self.told(key));
                }
            }
        }
        // Requests are read before what upstreams have answered to others.
        for event in events.iter() {
            if let Token::Watched(key) = Token::decode(event.token) {
                let waiting = self.lot.borrow_mut().note_watched(key, event.ready);
                waiting.into_iter().for_each(Waker::wake);
            }
        }
        let mut stories = std::mem::take(&mut *self.stories.borrow_mut());
        for key in stories.drain(..) {
            self.guarded(key, || self.go_on(key));
        }
        *self.stories.borrow_mut() = stories;
        // Taken in first and begun last: those that were here already have not waited for their
        // handshakes.
        self.begin_all(accepting);
        Ok(left)
    }

    /// Begins what was taken in.
    pub fn begin_all(self: &Rc<Self>, accepting: &mut Accepting) {
        // Of a crowd most hellos have come by now.
        let is_crowd = accepting.waiting.len() >= CROWD;
        for accepted in accepting.waiting.drain(..) {
            self.begin(accepted, is_crowd);
        }
    }

    /// A fault of ours costs the connection that met it, not its neighbours. (What a task does from
    /// its first wait on is caught by tokio.)
    fn guarded(self: &Rc<Self>, key: Key, wake: impl FnOnce()) {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(wake)).is_err() {
            tracing::error!("a connection met a fault of ours and is closed");
            park::abandon(self, key);
        }
    }

    fn tick(self: &Rc<Self>, accepting: &mut Accepting) {
        let now = (self.clock.elapsed().as_millis() as u64 / TICK_MS) as u32;
        loop {
            let due = self.lot.borrow_mut().next_due(now);
            let Some(key) = due else { break };
            self.guarded(key, || self.late(key));
        }
        let mut later = std::mem::take(&mut *self.later.borrow_mut());
        // Each edge of a connection that waits has put it there once more.
        later.sort_unstable_by_key(|key| (key.index, key.generation));
        later.dedup();
        for key in later {
            self.guarded(key, || park::wake(self, key));
        }
        for task in std::mem::take(&mut *self.thirsty.borrow_mut()) {
            task.wake();
        }
        let program = self.program();
        if let Some(program) = &program {
            program.tick();
        }
        self.tidy_queues();
        self.resume(accepting);
        if self.burst.get().ticks.is_multiple_of(DROPS_TICKS) {
            self.count_drops(accepting);
        }
        if let Some(program) = program {
            program.flush_log(self.clock.look());
            self.give_memory_back(&*program);
        }
        if self.is_draining() {
            park::drain_idle(self);
        }
    }

    /// Has the allocator return what a burst of connections left, once it is over: when half of
    /// the most that were open are gone, or when nothing has come or gone for [`QUIET_TICKS`];
    /// and every so often while memory is short. Compressors that rest for so long are given up.
    fn give_memory_back(&self, program: &dyn Program) {
        let open = self.process.open.load(Relaxed);
        let mut burst = self.burst.get();
        burst.quiet = if open == burst.open { burst.quiet.saturating_add(1) } else { 0 };
        burst.dirty |= open != burst.open;
        burst.open = open;
        burst.peak = burst.peak.max(open);
        burst.rested = if program.is_resting() { burst.rested.saturating_add(1) } else { 0 };
        if burst.rested >= QUIET_TICKS {
            // However many connections come, go or stay. What that frees goes with the next trim.
            program.release_caches();
            (burst.rested, burst.dirty) = (0, true);
        }
        let halved = burst.peak >= BURST && open <= burst.peak / 2;
        let settled = burst.dirty && burst.quiet >= QUIET_TICKS;
        burst.ticks = burst.ticks.wrapping_add(1);
        let short = burst.ticks.is_multiple_of(QUIET_TICKS) && self.process.budget.is_filling(0);
        if halved || settled || short {
            program.release_caches();
            eyelet_sys::memory::trim();
            if settled && self.index == 0 {
                eyelet_sys::memory::forget_code();
            }
            (burst.peak, burst.dirty) = (open, false);
        }
        self.burst.set(burst);
    }
}

/// Lets go of the stories that wait in the lot when a worker ends, however it does: each holds the
/// worker that holds it, and their sockets would stay open.
pub struct LetGo(pub Rc<Worker>);

impl Drop for LetGo {
    fn drop(&mut self) {
        let keys = self.0.lot.borrow().keys();
        for key in keys {
            let story = match self.0.lot.borrow_mut().entry(key).map(|entry| &mut entry.role) {
                Some(Role::Active { waits, .. }) => waits.over(),
                _ => None,
            };
            drop(story);
        }
        // What was cut short has told its line when it was dropped.
        if let Some(program) = self.0.program() {
            program.flush_log(self.0.clock.look());
        }
    }
}

/// Lets the tasks run that are ready. What came in one turn is read first and written then: the
/// kernel's code and the sockets stay in the cache, and a reader is woken once for many writes.
/// A fifth of a small request's cycles.
pub async fn others_first() {
    let mut had = false;
    poll_fn(|task| {
        if std::mem::replace(&mut had, true) {
            return Poll::Ready(());
        }
        task.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Lets the tasks run that a turn has woken, and what they put off too: what comes meanwhile would
/// be read between two halves of what is written. But not for ever: parked connections wait.
async fn until_written() {
    let mut behind_all = tokio::task::spawn_local(others_first());
    let mut returns = 0;
    poll_fn(|task| {
        returns += 1;
        if returns > RETURNS {
            Poll::Ready(())
        } else {
            Pin::new(&mut behind_all).poll(task).map(drop)
        }
    })
    .await;
}

/// How the reasons of those begin that ended because memory was short.
const SHED: &str = "shed:";

/// Runs a worker until it is told to drain and has done so.
pub async fn run(
    worker: Rc<Worker>,
    sockets: Vec<ListenerSocket>,
    mut drain: watch::Receiver<bool>,
) -> io::Result<()> {
    worker.listen(&sockets)?;
    let mut accepting = Accepting::new(sockets);
    let descriptor = {
        use std::os::fd::AsFd;
        worker.lot.borrow().epoll.as_fd().try_clone_to_owned()?
    };
    // Deprecated for types that do not own their descriptor; an OwnedFd does. What replaces it is
    // unsafe, for which this crate has no room.
    #[allow(deprecated)]
    let watched = AsyncFd::with_interest(descriptor, tokio::io::Interest::READABLE)?;
    let mut events = Events::with_capacity(EVENTS);
    let mut ticks = tokio::time::interval(Duration::from_millis(TICK_MS));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut end = None;
    loop {
        tokio::select! {
            biased;
            _ = ticks.tick() => worker.tick(&mut accepting),
            ready = watched.readable() => {
                let mut ready = ready?;
                let more = worker.turn(&mut events, &mut accepting)?;
                if !more {
                    ready.clear_ready();
                }
                // Otherwise all that was woken runs before the runtime looks for events.
                if more || events.len() > FEW {
                    until_written().await;
                }
            }
            () = worker.has_again.notified() => {
                worker.turn(&mut events, &mut accepting)?;
            }
            changed = drain.changed(), if end.is_none() => {
                // The sender is gone only when the process is going.
                let _ = changed;
                worker.accept_last(&mut accepting);
                worker.draining.set(true);
                end = Some(Instant::now() + worker.process.settings.drain_timeout);
                park::drain_idle(&worker);
            }
        }
        if let Some(end) = end {
            if worker.lot.borrow().is_empty() {
                break;
            }
            if Instant::now() >= end {
                worker.is_cutting.set(true);
                park::cut_all(&worker);
                // Tasks that were cut tell their end when they run once more.
                for _ in 0..LAST_TURNS {
                    tokio::task::yield_now().await;
                }
                break;
            }
        }
    }
    if let Some(program) = worker.program() {
        program.flush_log(worker.clock.look());
        program.close();
    }
    Ok(())
}
