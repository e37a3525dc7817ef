//! The event loop of a worker: iterations, ticks and orders until it has drained.

use std::future::{pending, poll_fn};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use eyelet_sys::epoll::Events;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::time::{Interval, MissedTickBehavior};

use crate::iteration::accept::{Accepting, LAST_ACCEPT_TIME};
use crate::shedding::drain;
use crate::worker::{ListenerSocket, Order, Worker, WorkerOrders};
use eyelet_table::SlotState;
use eyelet_table::timer_wheel::TICK_MS;

/// Events taken in one iteration, so that a tick is never far away.
const EVENTS: usize = 512;
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

/// Drops the futures stored in the table when a worker ends, however it ends. Each future holds the
/// worker, and the worker holds it: without this their sockets would stay open.
pub struct DropFutures(pub Rc<Worker>);

impl Drop for DropFutures {
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
pub(super) async fn until_written() {
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
pub(super) async fn cut_all(worker: &Rc<Worker>) {
    worker.ending.is_cutting.set(true);
    for _ in 0..CUT_ROUNDS {
        let keys = worker.table.borrow().keys();
        for keys in keys.chunks(CUTS) {
            drain::cut(worker, keys);
            tokio::task::yield_now().await;
        }
        worker.end_all_flows();
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

/// The reason why the event loop goes on.
enum Wake<'a, T> {
    Tick,
    Events(AsyncFdReadyGuard<'a, OwnedFd>),
    /// Connections go on, or end, without an event.
    Later,
    Order(T),
}

/// The tools of a worker's iterations.
pub(super) struct Iterations {
    pub(super) worker: Rc<Worker>,
    pub(super) accepting: Accepting,
    readiness: AsyncFd<OwnedFd>,
    events: Events,
    ticks: Interval,
}

impl Iterations {
    fn new(worker: Rc<Worker>, sockets: Vec<ListenerSocket>) -> io::Result<Self> {
        let (datagram_sockets, sockets): (Vec<_>, Vec<_>) =
            sockets.into_iter().partition(|socket| socket.is_datagrams);
        let accepting = Accepting::new(sockets);
        worker.listen(&accepting)?;
        worker.listen_datagrams(&datagram_sockets);
        let readiness = register_epoll(&worker)?;
        let events = Events::with_capacity(EVENTS);
        let mut ticks = tokio::time::interval(Duration::from_millis(TICK_MS));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Ok(Self { worker, accepting, readiness, events, ticks })
    }

    /// One iteration, unless `order` is ready: its output.
    pub(super) async fn next<T>(
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
    mut orders: WorkerOrders,
) -> io::Result<()> {
    let mut iterations = Iterations::new(worker.clone(), sockets)?;
    loop {
        let goes_on = match iterations.until(orders.next()).await? {
            Order::Drain => false,
            Order::HandOver => iterations.hand_over(&mut orders).await?,
            Order::Hold | Order::Serve | Order::Reload(_) | Order::Settled => true,
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
