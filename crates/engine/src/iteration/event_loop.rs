//! The event loop of a worker. An iteration takes events, wakes or resumes their connections, and
//! accepts new ones. A tick handles deadlines, the log and returned memory.

use std::future::{pending, poll_fn, ready};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use eyelet_memory::budget::{ACTIVE_BYTES, Account};
use eyelet_memory::slab::Key;
use eyelet_sys::epoll::Events;
use eyelet_sys::waker;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, watch};
use tokio::time::{Interval, MissedTickBehavior};

use crate::departure::{BatchAnswer, Departure};
use crate::iteration::accept::{ACCEPTS, Accepted, Accepting, LAST_ACCEPT_TIME};
use crate::moving::batch::{self, PLACED_AT_ONCE};
use crate::moving::handover::Detached;
use crate::moving::search::Search;
use crate::park;
use crate::park::timeouts;
use crate::ready::{CLIENT, Token};
use crate::shedding::drain;
use crate::table::timer_wheel::TICK_MS;
use crate::table::{SlotState, Waiting, Waits};
use crate::worker::drain_pace;
use crate::worker::queues;
use crate::worker::{Handle, ListenerSocket, Order, Program, Update, Worker};

/// Events taken in one iteration, so that a tick is never far away.
const EVENTS: usize = 512;
/// If one iteration accepts this many connections, most of their hellos have arrived when the
/// connections begin.
const CROWD: usize = 4;
/// Tasks that tokio runs between two looks at its events (the default of its `event_interval`).
const TASKS: usize = 61;
/// Events whose tasks can all run twice, to read and to write, within [`TASKS`].
const FEW: usize = TASKS / 2;
/// Looks of the runtime at its events after which the next iteration begins anyway.
const RETURNS: usize = 2;
/// Connections that the end of a drain cuts before the tasks of others run.
const CUTS: usize = 256;
/// Rounds of that. The second one ends what another process gave up just before the first: it is
/// placed as soon as tasks run.
const CUT_ROUNDS: usize = 2;
/// Most polls that the tasks of a cut connection need to end: its task, the tasks of its requests,
/// and the HTTP library's between them, each once or twice.
const LAST_POLLS: usize = 8;
/// Yields to the runtime for that where there are few connections.
const LAST_ITERATIONS: usize = 8;
/// A burst of fewer connections leaves too little memory to be worth returning while others come
/// and go.
const BURST: usize = 1000;
/// Ticks (1 s) after which a number that did not change counts as settled.
const QUIET_TICKS: u32 = 10;
/// Ticks (1 s) between two reads of the kernel's drop counts: a system call for each listener.
const DROPS_TICKS: u32 = 10;

impl Worker {
    /// Creates a connection's slot and starts its future, or sheds the connection if there is no
    /// room.
    fn begin(self: &Rc<Self>, accepted: Accepted, is_early: bool) {
        let Accepted { listener, client, peer } = accepted;
        if !self.make_room(peer.ip()) {
            self.process.open.fetch_sub(1, Relaxed);
            self.uses_descriptors(-2);
            return self.shed_new(listener, client, peer);
        }
        let program = self.program();
        let mut info = self.info(listener, peer);
        info.decided.labels = program.as_ref().map(|it| it.labels()).unwrap_or_default();
        let key = {
            let mut table = self.table.borrow_mut();
            let key = table.insert(client, is_early);
            if let Some(slot) = table.slot(key) {
                queues::queue(&self.half_open, key, &mut slot.position);
                self.see_accepted(&mut slot.state, &info);
            }
            key
        };
        self.process.budget.take(Account::Connections, ACTIVE_BYTES);
        self.counters.connections.up();
        let handle = Handle::new(self.clone(), key);
        let Some(program) = program else { return };
        self.guarded(key, || self.advance(key, program.accepted(handle, info)));
    }

    /// Polls a connection's future. If it waits only for its own sockets and its deadline, it is
    /// stored in its slot. Otherwise it becomes a task, which polls it again.
    fn advance(&self, key: Key, mut future: Waiting) {
        let used = waker::used();
        if future.as_mut().poll(&mut Context::from_waker(&self.counting_waker)).is_ready() {
            return;
        }
        let mut table = self.table.borrow_mut();
        match table.slot(key).map(|slot| &mut slot.state) {
            Some(SlotState::Active { waits, .. }) if waker::used() == used => {
                *waits = Waits::Here(future);
            }
            _ => drop(tokio::task::spawn_local(future)),
        }
    }

    /// Dispatches one epoll event.
    fn dispatch(self: &Rc<Self>, key: Key) {
        let mut table = self.table.borrow_mut();
        let Some(slot) = table.slot(key) else { return };
        match &mut slot.state {
            // Handshakes run after everything that only moves bytes.
            SlotState::Active { waits: Waits::Here(_), .. } => {
                self.to_resume.borrow_mut().push(key)
            }
            SlotState::Active { waits, .. } => drop(waits.over()),
            SlotState::Parked { .. } | SlotState::Lingering => {
                drop(table);
                park::wake(self, key);
            }
        }
    }

    /// Resumes a connection: its future, its task, or its relay if it is parked.
    fn go_on(self: &Rc<Self>, key: Key) {
        let mut table = self.table.borrow_mut();
        let Some(slot) = table.slot(key) else { return };
        if let SlotState::Active { waits, .. } = &mut slot.state {
            let future = waits.over();
            drop(table);
            future.into_iter().for_each(|future| self.advance(key, future));
        } else {
            drop(table);
            park::wake(self, key);
        }
    }

    /// The deadline of a connection has passed, or it must end for another reason.
    pub fn late(self: &Rc<Self>, key: Key) {
        let mut table = self.table.borrow_mut();
        let Some(slot) = table.slot(key) else { return };
        match &mut slot.state {
            SlotState::Active { waits, is_late, .. } => {
                *is_late = true;
                let future = waits.over();
                drop(table);
                future.into_iter().for_each(|future| self.advance(key, future));
            }
            SlotState::Parked { .. } | SlotState::Lingering => {
                drop(table);
                park::late(self, key);
            }
        }
    }

    /// One iteration: the sockets that are ready, then the connections that used up their share of
    /// the last one. Returns whether more is waiting.
    pub(crate) fn iteration(
        self: &Rc<Self>,
        events: &mut Events,
        accepting: &mut Accepting,
    ) -> io::Result<bool> {
        self.clock.begin_iteration();
        let more = self.iterate(events, accepting);
        self.clock.end_iteration();
        more
    }

    fn iterate(
        self: &Rc<Self>,
        events: &mut Events,
        accepting: &mut Accepting,
    ) -> io::Result<bool> {
        let mut left = self.look(events, accepting, 1)?;
        if left {
            // A listener that is ready again has more connections than predicted.
            left = self.look(events, accepting, 2)?;
        }
        // Connections that a task has shed.
        self.end_shed();
        let again = std::mem::take(&mut *self.again.borrow_mut());
        let more = left || !again.is_empty();
        for key in again {
            self.guarded(key, || self.go_on(key));
        }
        Ok(more)
    }

    /// Handles the sockets that are ready now. Returns whether more may be ready. From each
    /// listener it accepts up to `times` as many connections as last time.
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
        // Writes to one kind of peer are done together, so that each peer process wakes once: first
        // what upstreams sent goes to clients, then what clients sent goes to upstreams.
        for of_client in [false, true] {
            for event in events.iter() {
                if let Token::Connection(key, side) = Token::decode(event.token)
                    && (side == CLIENT) == of_client
                {
                    self.guarded(key, || self.dispatch(key));
                }
            }
        }
        // Requests above are read before the responses here: these sockets are shared upstreams.
        for event in events.iter() {
            if let Token::Shared(key) = Token::decode(event.token) {
                let waiting = self.table.borrow_mut().note_shared(key, event.ready);
                waiting.into_iter().for_each(Waker::wake);
            }
        }
        let mut keys = std::mem::take(&mut *self.to_resume.borrow_mut());
        for key in keys.drain(..) {
            self.guarded(key, || self.go_on(key));
        }
        *self.to_resume.borrow_mut() = keys;
        // Accepted first and begun last: a new connection's handshake does not delay the others.
        self.begin_all(accepting);
        Ok(left)
    }

    /// Begins the connections that were accepted.
    pub fn begin_all(self: &Rc<Self>, accepting: &mut Accepting) {
        // In a crowd most hellos have arrived by now.
        let is_crowd = accepting.waiting.len() >= CROWD;
        for accepted in accepting.waiting.drain(..) {
            self.begin(accepted, is_crowd);
        }
    }

    /// Runs `wake` for a connection, then ends the connections that it has shed.
    pub(crate) fn guarded(self: &Rc<Self>, key: Key, wake: impl FnOnce()) {
        self.caught(key, wake);
        self.end_shed();
    }

    /// A panic ends the connection that caused it, not its neighbours. (In a task, tokio catches
    /// it.)
    fn caught(self: &Rc<Self>, key: Key, wake: impl FnOnce()) {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(wake)).is_err() {
            tracing::error!("internal error: one connection is closed");
            park::abandon(self, key);
        }
    }

    /// Resumes the futures of connections that were shed. They end and free their memory. Each wake
    /// calls this, and mostly none were shed.
    #[inline]
    fn end_shed(self: &Rc<Self>) {
        if !self.ending.borrow().is_empty() {
            self.end_all_shed();
        }
    }

    #[cold]
    fn end_all_shed(self: &Rc<Self>) {
        loop {
            let shed = self.ending.borrow_mut().pop();
            let Some(key) = shed else { break };
            self.caught(key, || self.go_on(key));
        }
    }

    /// Handles one tick. The worker's clock has run for `elapsed`.
    pub(crate) fn tick(self: &Rc<Self>, accepting: &mut Accepting, elapsed: Duration) {
        let now = (elapsed.as_millis() as u64 / TICK_MS) as u32;
        loop {
            let due = self.table.borrow_mut().next_due(now);
            let Some(key) = due else { break };
            self.guarded(key, || self.late(key));
        }
        let mut later = std::mem::take(&mut *self.later.borrow_mut());
        // Each edge of a waiting connection has added it once more.
        later.sort_unstable_by_key(|key| (key.index, key.generation));
        later.dedup();
        for key in later {
            self.guarded(key, || park::wake(self, key));
        }
        self.waiting_for_memory.wake_all();
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
            self.give_memory_back(&*program, accepting);
        }
        if self.is_draining() {
            drain::tick(self);
        }
    }

    /// Returns free memory to the kernel once a burst of connections is over: when half of the peak
    /// are gone, or when nothing came or went for [`QUIET_TICKS`]. While memory is short it does so
    /// every [`QUIET_TICKS`]. Compressors that were idle for so long are freed.
    fn give_memory_back(&self, program: &dyn Program, accepting: &mut Accepting) {
        let open = self.process.open.load(Relaxed);
        let mut burst = self.burst.get();
        burst.quiet = if open == burst.open { burst.quiet.saturating_add(1) } else { 0 };
        burst.dirty |= open != burst.open;
        burst.open = open;
        burst.peak = burst.peak.max(open);
        burst.rested = if program.is_resting() { burst.rested.saturating_add(1) } else { 0 };
        if burst.rested >= QUIET_TICKS {
            // This does not depend on connections. The next trim returns what it frees.
            program.release_caches();
            (burst.rested, burst.dirty) = (0, true);
        }
        let halved = burst.peak >= BURST && open <= burst.peak / 2;
        let settled = burst.dirty && burst.quiet >= QUIET_TICKS;
        burst.ticks = burst.ticks.wrapping_add(1);
        let short = burst.ticks.is_multiple_of(QUIET_TICKS) && self.process.budget.is_filling(0);
        if halved || settled || short {
            program.release_caches();
            self.release_queues();
            accepting.waiting.shrink_to_fit();
            eyelet_sys::memory::trim();
            if settled && self.index == 0 {
                eyelet_sys::memory::forget_code();
            }
            (burst.peak, burst.dirty) = (open, false);
        }
        self.burst.set(burst);
    }
}

impl Waits {
    /// Has the future of a connection look whether it must end.
    pub(crate) fn look(&self, worker: &Worker, key: Key) {
        match self {
            Self::No => {}
            Self::Here(_) => worker.go_on_later(key),
            Self::Task(waker) => waker.wake_by_ref(),
        }
    }
}

impl Worker {
    /// Has the program take over the newest configuration, and listens where it says. Connections
    /// that are queued at a removed listener begin under the configuration that still has it.
    fn reload(self: &Rc<Self>, accepting: &mut Accepting, end: Instant) {
        let Some(program) = self.program() else { return };
        let Some(Update { settings, sockets }) = program.update() else { return };
        self.unlisten(accepting, &sockets, end);
        program.take_over();
        timeouts::take_settings(self, settings);
        self.relisten(accepting, sockets);
    }
}

/// Drops the futures stored in the table when a worker ends, however it ends. Each future holds the
/// worker, and the worker holds it: without this their sockets would stay open.
pub struct LetGo(pub Rc<Worker>);

impl Drop for LetGo {
    fn drop(&mut self) {
        let keys = self.0.table.borrow().keys();
        for key in keys {
            let future = match self.0.table.borrow_mut().slot(key).map(|slot| &mut slot.state) {
                Some(SlotState::Active { waits, .. }) => waits.over(),
                _ => None,
            };
            drop(future);
        }
        // Futures that were cut have logged when they were dropped.
        if let Some(program) = self.0.program() {
            program.flush_log(self.0.clock.look());
        }
    }
}

/// Lets the ready tasks run first. All that arrived in one iteration is then read before anything
/// is written: the kernel's code and the sockets stay in the cache, and a reader wakes once for
/// many writes. This saves a fifth of a small request's cycles.
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

/// Lets the tasks that an iteration woke run, and those that they deferred: otherwise new input
/// would be read between two halves of a batch of writes. Bounded, because parked connections wait.
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

/// Ends whatever is left when the drain's time is over, a piece at a time. Tasks that were cut log
/// when they run once more, and the runtime runs [`TASKS`] of them per yield.
async fn cut_all(worker: &Rc<Worker>) {
    worker.is_cutting.set(true);
    for _ in 0..CUT_ROUNDS {
        let keys = worker.table.borrow().keys();
        for keys in keys.chunks(CUTS) {
            drain::cut(worker, keys);
            tokio::task::yield_now().await;
        }
        for _ in 0..LAST_ITERATIONS + keys.len() * LAST_POLLS / TASKS {
            if worker.is_empty() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Registers the table's epoll with the runtime.
fn register_epoll(worker: &Worker) -> io::Result<AsyncFd<OwnedFd>> {
    let descriptor = worker.table.borrow().epoll.as_fd().try_clone_to_owned()?;
    // Deprecated for types that do not own their descriptor; an OwnedFd does. What replaces it is
    // unsafe, for which this crate has no room.
    #[allow(deprecated)]
    AsyncFd::with_interest(descriptor, tokio::io::Interest::READABLE)
}

/// Why the event loop goes on.
enum Wake<'a, T> {
    Tick,
    Events(AsyncFdReadyGuard<'a, OwnedFd>),
    /// Connections go on, or end, without an event.
    Later,
    Order(T),
}

/// What a worker that leaves is told.
enum Told {
    /// The answer to its batch. `None`: the other process is dead.
    Answer(Option<BatchAnswer>),
    Order(Order),
}

/// What a worker's iterations use.
struct Iterations {
    worker: Rc<Worker>,
    accepting: Accepting,
    readiness: AsyncFd<OwnedFd>,
    events: Events,
    ticks: Interval,
}

impl Iterations {
    fn new(worker: Rc<Worker>, sockets: Vec<ListenerSocket>) -> io::Result<Self> {
        let accepting = Accepting::new(sockets);
        worker.listen(&accepting)?;
        let readiness = register_epoll(&worker)?;
        let events = Events::with_capacity(EVENTS);
        let mut ticks = tokio::time::interval(Duration::from_millis(TICK_MS));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Ok(Self { worker, accepting, readiness, events, ticks })
    }

    /// One iteration, unless `order` is ready: its output.
    async fn next<T>(
        &mut self,
        mut order: Pin<&mut impl Future<Output = T>>,
    ) -> io::Result<Option<T>> {
        let Self { worker, accepting, readiness, events, ticks } = self;
        // By hand: it is polled twice an iteration, and a future for each wait would be made and
        // dropped each time, which takes the locks of their lists.
        let wake = poll_fn(|task| {
            if ticks.poll_tick(task).is_ready() {
                // Also here, because a worker that always has events never comes to the end.
                if let Poll::Ready(order) = order.as_mut().poll(task) {
                    return Poll::Ready(Ok(Wake::Order(order)));
                }
                return Poll::Ready(Ok(Wake::Tick));
            }
            if let Poll::Ready(ready) = readiness.poll_read_ready(task) {
                return Poll::Ready(ready.map(Wake::Events));
            }
            if worker.poll_later(task).is_ready() {
                return Poll::Ready(Ok(Wake::Later));
            }
            order.as_mut().poll(task).map(|order| Ok(Wake::Order(order)))
        });
        match wake.await? {
            Wake::Tick => worker.tick(accepting, worker.clock.elapsed()),
            Wake::Events(mut ready) => {
                let more = worker.iteration(events, accepting)?;
                if !more {
                    ready.clear_ready();
                }
                // A small iteration needs no wait: all that it woke runs before the runtime looks
                // for events.
                if more || events.len() > FEW {
                    until_written().await;
                }
            }
            Wake::Later => _ = worker.iteration(events, accepting)?,
            Wake::Order(order) => return Ok(Some(order)),
        }
        Ok(None)
    }

    /// Iterations until an order comes.
    async fn until<T>(&mut self, order: impl Future<Output = T>) -> io::Result<T> {
        let mut order = pin!(order);
        loop {
            if let Some(order) = self.next(order.as_mut()).await? {
                return Ok(order);
            }
        }
    }

    /// Leaves: the other process accepts, and gets what is parked and what is parked later. Returns
    /// whether this worker serves on because the other process has died. If not, what is left
    /// drains: it cannot leave, or an order came.
    async fn hand_over(&mut self, orders: &mut watch::Receiver<Order>) -> io::Result<bool> {
        let worker = self.worker.clone();
        let departure = worker.program().and_then(|program| program.departure());
        let Some(departure) = departure else { return Ok(false) };
        let Departure { kept, batches, descriptors_max, mut answers, active_max } = departure;
        let now = Instant::now();
        let drain_timeout = worker.settings.get().drain_timeout;
        let end = now + drain_timeout.min(active_max);
        // If `active_max` is over before that, what is left is cut together.
        let last_part = now + drain_timeout - drain_pace::last_part(drain_timeout);
        let sockets = worker.leave(&mut self.accepting, &kept, now + LAST_ACCEPT_TIME);
        worker.leaving.set(true);
        batch::wake_active(&worker);
        let mut search = Search::new(batches, descriptors_max);
        let (mut waiting, mut must_drain) = (Vec::new(), false);
        loop {
            if waiting.is_empty() && !must_drain {
                waiting = search.next(&worker);
            }
            if waiting.is_empty() {
                // The others may still need this worker: the process serves on if the new one dies.
                if search.has_passed() && worker.is_empty() {
                    search.leave();
                }
                if !worker.is_draining() && Instant::now() >= last_part {
                    drain::begin_last(&worker);
                }
                if Instant::now() >= end {
                    cut_all(&worker).await;
                    must_drain = true;
                }
                if must_drain {
                    search.leave();
                    return Ok(false);
                }
            }
            match self.told(&mut answers, orders).await? {
                None => {}
                Some(Told::Order(order)) => must_drain |= order == Order::Drain,
                Some(Told::Answer(Some(BatchAnswer::Committed { refused }))) => {
                    let sent = std::mem::take(&mut waiting).into_iter().enumerate();
                    let back = sent.filter(|(index, _)| refused.binary_search(index).is_ok());
                    let back = back.map(|(_, connection)| connection).collect();
                    search.keep(self.put_back(back).await?);
                }
                Some(Told::Answer(Some(BatchAnswer::Refused))) => {
                    self.put_back(std::mem::take(&mut waiting)).await?;
                    // Those that are left end here, at the latest when the time is over.
                    search.stop();
                }
                Some(Told::Answer(Some(BatchAnswer::Over))) => return Ok(false),
                Some(Told::Answer(None)) => {
                    self.put_back(waiting).await?;
                    if must_drain {
                        return Ok(false);
                    }
                    worker.leaving.set(false);
                    worker.drain.set(None);
                    worker.come_back(&mut self.accepting, sockets);
                    return Ok(true);
                }
            }
        }
    }

    /// Places connections that have not left, a few in each iteration. Returns their keys.
    async fn put_back(&mut self, connections: Vec<Detached>) -> io::Result<Vec<Key>> {
        let (mut connections, mut keys) = (connections.into_iter(), Vec::new());
        while connections.len() > 0 {
            keys.extend(batch::put_back(&self.worker, connections.by_ref().take(PLACED_AT_ONCE)));
            self.next(pin!(ready(()))).await?;
        }
        Ok(keys)
    }

    /// The answer to a batch, or an order. `None`: neither, after an iteration.
    async fn told(
        &mut self,
        answers: &mut mpsc::Receiver<BatchAnswer>,
        orders: &mut watch::Receiver<Order>,
    ) -> io::Result<Option<Told>> {
        if self.worker.is_searching.get() {
            others_first().await;
        }
        // A worker that always has events polls what follows only at a tick.
        match answers.try_recv() {
            Err(TryRecvError::Empty) => {}
            answer => return Ok(Some(Told::Answer(answer.ok()))),
        }
        let told = pin!(async {
            tokio::select! {
                answer = answers.recv() => Told::Answer(answer),
                // Without a sender the process is going.
                changed = orders.changed() => Told::Order(match changed {
                    Ok(()) => *orders.borrow_and_update(),
                    Err(_) => Order::Drain,
                }),
            }
        });
        self.next(told).await
    }

    /// Accepts what is queued, then ends one connection after another. At the end of the drain's
    /// time it cuts the rest.
    async fn drain(mut self) -> io::Result<()> {
        let now = Instant::now();
        let end = now + self.worker.settings.get().drain_timeout;
        self.worker.accept_last(&mut self.accepting, now + LAST_ACCEPT_TIME);
        drain::begin(&self.worker);
        let mut nothing = pin!(pending::<()>());
        while !self.worker.is_empty() {
            if Instant::now() >= end {
                cut_all(&self.worker).await;
                break;
            }
            self.next(nothing.as_mut()).await?;
        }
        Ok(())
    }
}

/// Runs a worker until it has drained.
pub async fn run(
    worker: Rc<Worker>,
    sockets: Vec<ListenerSocket>,
    mut orders: watch::Receiver<Order>,
) -> io::Result<()> {
    let mut iterations = Iterations::new(worker.clone(), sockets)?;
    // The sender is gone only when the process is going.
    while iterations.until(orders.changed()).await?.is_ok() {
        let order = *orders.borrow_and_update();
        let goes_on = match order {
            Order::Drain => false,
            Order::HandOver => iterations.hand_over(&mut orders).await?,
            Order::Hold | Order::Serve | Order::Reload(_) => true,
        };
        if !goes_on {
            break;
        }
        worker.reload(&mut iterations.accepting, Instant::now() + LAST_ACCEPT_TIME);
    }
    iterations.drain().await?;
    if let Some(program) = worker.program() {
        program.flush_log(worker.clock.look());
        program.close();
    }
    Ok(())
}
