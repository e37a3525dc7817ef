//! The event loop of a worker: one thread, one iteration after another: events, deadlines, ticks.
//! It must not know how bytes are moved or what the program does.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use eyelet_memory::budget::{ACTIVE_BYTES, Account};
use eyelet_memory::slab::Key;
use eyelet_sys::epoll::Events;
use eyelet_sys::waker;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::accept::{ACCEPTS, Accepted, Accepting, LAST_ACCEPT_TIME};
use crate::connection_table::{Role, Waiting, Waits};
use crate::park;
use crate::queues;
use crate::ready::{CLIENT, Token};
use crate::timer_wheel::TICK_MS;
use crate::worker::{Handle, ListenerSocket, Order, Program, Update, Worker};

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
/// How often a connection's tasks are polled, at most, to come to their end when they are cut:
/// the task, its requests' tasks, and the library between them, each once or twice.
const LAST_POLLS: usize = 8;
/// Turns of the runtime for that where there are few connections.
const LAST_TURNS: usize = 8;
/// Connections that make a burst worth returning the memory of while others come and go.
const BURST: usize = 1000;
/// A second without a connection more or less.
const QUIET_TICKS: u32 = 10;
/// A second between two looks at what the kernel has dropped: a system call for each listener.
const DROPS_TICKS: u32 = 10;

impl Worker {
    /// Begins the future of a connection, if there is room for it.
    fn begin(self: &Rc<Self>, accepted: Accepted, is_early: bool) {
        let Accepted { listener, client, peer } = accepted;
        if !self.make_room(peer.ip()) {
            self.process.open.fetch_sub(1, Relaxed);
            self.uses_descriptors(-2);
            return self.shed_new(listener, client, peer);
        }
        let info = self.info(listener, peer);
        let key = {
            let mut table = self.table.borrow_mut();
            let key = table.insert(client, is_early);
            if let Some(entry) = table.entry(key) {
                queues::queue(&self.half_open, key, &mut entry.place);
            }
            key
        };
        self.process.budget.take(Account::Connections, ACTIVE_BYTES);
        self.counters.connections.up();
        let handle = Handle::new(self.clone(), key);
        let Some(program) = self.program() else { return };
        self.guarded(key, || self.advance(key, program.accepted(handle, info)));
    }

    /// Resumes a connection's future until it must wait. Where that is for its own sockets and
    /// its deadline alone it waits in its entry, and else as a task, which polls it anew.
    fn advance(&self, key: Key, mut future: Waiting) {
        let used = waker::used();
        if future.as_mut().poll(&mut Context::from_waker(&self.nobody)).is_ready() {
            return;
        }
        let mut table = self.table.borrow_mut();
        match table.entry(key).map(|entry| &mut entry.role) {
            Some(Role::Active { waits, .. }) if waker::used() == used => {
                *waits = Waits::Here(future);
            }
            _ => drop(tokio::task::spawn_local(future)),
        }
    }

    /// Has a connection taken care of of which an event told.
    fn told(self: &Rc<Self>, key: Key) {
        let mut table = self.table.borrow_mut();
        let Some(entry) = table.entry(key) else { return };
        match &mut entry.role {
            // Handshakes are made behind what only moves bytes.
            Role::Active { waits: Waits::Here(_), .. } => self.to_resume.borrow_mut().push(key),
            Role::Active { waits, .. } => drop(waits.over()),
            Role::Parked { .. } | Role::Lingering => {
                drop(table);
                park::wake(self, key);
            }
        }
    }

    /// Goes on with a connection, whoever does it.
    fn go_on(self: &Rc<Self>, key: Key) {
        let mut table = self.table.borrow_mut();
        let Some(entry) = table.entry(key) else { return };
        if let Role::Active { waits, .. } = &mut entry.role {
            let info = waits.over();
            drop(table);
            info.into_iter().for_each(|info| self.advance(key, info));
        } else {
            drop(table);
            park::wake(self, key);
        }
    }

    /// The deadline of a connection has passed, or it must end for another reason.
    pub fn late(self: &Rc<Self>, key: Key) {
        let mut table = self.table.borrow_mut();
        let Some(entry) = table.entry(key) else { return };
        match &mut entry.role {
            Role::Active { waits, late, .. } => {
                *late = true;
                let info = waits.over();
                drop(table);
                info.into_iter().for_each(|info| self.advance(key, info));
            }
            Role::Parked { .. } | Role::Lingering => {
                drop(table);
                park::late(self, key);
            }
        }
    }

    /// One turn: what is ready, and then what used up its share last time; whether there is more.
    pub(crate) fn turn(
        self: &Rc<Self>,
        events: &mut Events,
        accepting: &mut Accepting,
    ) -> io::Result<bool> {
        let mut left = self.look(events, accepting, 1)?;
        if left {
            // If a listener is told of again more wait than was guessed.
            left = self.look(events, accepting, 2)?;
        }
        // Those that a task has shed.
        self.end_shed();
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
        self.table.borrow().epoll.poll(events)?;
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
                self.table.borrow_mut().note(key, side, event.ready);
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
                let waiting = self.table.borrow_mut().note_watched(key, event.ready);
                waiting.into_iter().for_each(Waker::wake);
            }
        }
        let mut keys = std::mem::take(&mut *self.to_resume.borrow_mut());
        for key in keys.drain(..) {
            self.guarded(key, || self.go_on(key));
        }
        *self.to_resume.borrow_mut() = keys;
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

    /// Resumes a connection, and then those that it has shed.
    pub(crate) fn guarded(self: &Rc<Self>, key: Key, wake: impl FnOnce()) {
        self.caught(key, wake);
        self.end_shed();
    }

    /// A fault of ours costs the connection that met it, not its neighbours. (What a task does from
    /// its first wait on is caught by tokio.)
    fn caught(self: &Rc<Self>, key: Key, wake: impl FnOnce()) {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(wake)).is_err() {
            tracing::error!("internal error: one connection is closed");
            park::abandon(self, key);
        }
    }

    /// Resumes the futures of connections that were shed, which end and free their memory.
    fn end_shed(self: &Rc<Self>) {
        loop {
            let shed = self.ending.borrow_mut().pop();
            let Some(key) = shed else { break };
            self.caught(key, || self.go_on(key));
        }
    }

    /// A tick has passed. The worker's clock has run for `elapsed`.
    pub(crate) fn tick(self: &Rc<Self>, accepting: &mut Accepting, elapsed: Duration) {
        let now = (elapsed.as_millis() as u64 / TICK_MS) as u32;
        loop {
            let due = self.table.borrow_mut().next_due(now);
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
        for task in std::mem::take(&mut *self.waiting_for_memory.borrow_mut()) {
            task.wake();
        }
        let program = self.program();
        if let Some(program) = &program {
            program.tick();
        }
        self.process.budget.note_peak();
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

impl Worker {
    /// Has the program take over the newest configuration, and listens where that says. What was
    /// queued at a listener that goes is begun by the configuration that still has it.
    fn reload(self: &Rc<Self>, accepting: &mut Accepting, end: Instant) {
        let Some(program) = self.program() else { return };
        let Some(Update { settings, sockets }) = program.update() else { return };
        self.unlisten(accepting, &sockets, end);
        program.take_over();
        self.settings.set(settings);
        self.relisten(accepting, sockets);
    }
}

/// Drops the futures that wait in the table when a worker ends, however it does: each holds the
/// worker that holds it, and their sockets would stay open.
pub struct LetGo(pub Rc<Worker>);

impl Drop for LetGo {
    fn drop(&mut self) {
        let keys = self.0.table.borrow().keys();
        for key in keys {
            let info = match self.0.table.borrow_mut().entry(key).map(|entry| &mut entry.role) {
                Some(Role::Active { waits, .. }) => waits.over(),
                _ => None,
            };
            drop(info);
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

/// Ends whatever is left when the drain's time is over. Tasks that were cut write their access
/// lines when they run once more, and the runtime runs [`TASKS`] of them in a turn.
async fn cut_all(worker: &Rc<Worker>) {
    worker.is_cutting.set(true);
    let cut = park::cut_all(worker);
    for _ in 0..LAST_TURNS + cut * LAST_POLLS / TASKS {
        if worker.table.borrow().is_empty() {
            break;
        }
        tokio::task::yield_now().await;
    }
}

/// Runs a worker until it is told to drain and has done so.
pub async fn run(
    worker: Rc<Worker>,
    sockets: Vec<ListenerSocket>,
    mut orders: watch::Receiver<Order>,
) -> io::Result<()> {
    let mut accepting = Accepting::new(sockets);
    worker.listen(&accepting)?;
    let descriptor = {
        use std::os::fd::AsFd;
        worker.table.borrow().epoll.as_fd().try_clone_to_owned()?
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
            _ = ticks.tick() => worker.tick(&mut accepting, worker.clock.elapsed()),
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
            changed = orders.changed(), if end.is_none() => {
                let order = *orders.borrow_and_update();
                let now = Instant::now();
                match order {
                    Order::Serve | Order::Reload(_) if changed.is_ok() => {
                        worker.reload(&mut accepting, now + LAST_ACCEPT_TIME);
                    }
                    // The sender is gone only when the process is going.
                    Order::Serve | Order::Reload(_) | Order::Drain => {
                        end = Some(now + worker.settings.get().drain_timeout);
                        worker.accept_last(&mut accepting, now + LAST_ACCEPT_TIME);
                        worker.draining.set(true);
                        park::drain_idle(&worker);
                    }
                }
            }
        }
        if let Some(end) = end {
            if worker.table.borrow().is_empty() {
                break;
            }
            if Instant::now() >= end {
                cut_all(&worker).await;
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
