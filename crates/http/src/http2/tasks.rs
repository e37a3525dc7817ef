//! Tasks that serve streams, one after the other. A task that has served a stream waits for the
//! next stream of any connection of its worker: its memory is not made for each request.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use eyelet_engine::shedding::CountedTask;
use eyelet_memory::budget::Counted;

use super::serve_stream::{go_on, serve_stream};
use crate::exchange::rest::ResumedExchange;
use eyelet_downstream::client::head::AskedRequest;
use eyelet_downstream::client::http2::Http2Stream;
use eyelet_downstream::connection::served_connection::ServedConnection;
use eyelet_memory::spares::Spares;

/// Tasks of a worker that wait: as many as ten connections with all their streams need. More would
/// take more than 10 MiB.
const IDLE_MAX: usize = 1_000;
/// Bytes that a waiting task counts: its future, and the runtime's part.
const IDLE_TASK_BYTES: usize = 10 << 10;

/// The work to be done for a stream.
// A box for each request would cost more than the move.
#[allow(clippy::large_enum_variant)]
pub enum StreamWork {
    /// Its request is to be served.
    Request(AskedRequest),
    /// Its exchange rested, and is to go on.
    Rested(Box<ResumedExchange>),
}

/// A stream that is to be served.
pub struct StreamJob {
    /// Its connection.
    pub served: Rc<ServedConnection>,
    /// The work.
    pub work: StreamWork,
    /// Its side of the exchange.
    pub two: Http2Stream,
    /// Its memory.
    pub counted: Counted,
    /// Its share of what its source may have.
    pub serving: CountedTask,
}

/// The place in which a waiting task gets its next stream.
#[derive(Default)]
struct Seat {
    job: Cell<Option<StreamJob>>,
    task: Cell<Option<Waker>>,
    is_over: Cell<bool>,
}

/// A task that waits. Without a next stream it ends.
struct IdleTask(Weak<Seat>);

impl IdleTask {
    /// Has it serve a stream. Returns the stream if the task is gone with its worker.
    fn serve(self, job: StreamJob) -> Option<StreamJob> {
        let Some(seat) = self.0.upgrade() else { return Some(job) };
        seat.job.set(Some(job));
        None
    }
}

impl Drop for IdleTask {
    fn drop(&mut self) {
        if let Some(seat) = self.0.upgrade() {
            seat.is_over.set(true);
            if let Some(task) = seat.task.take() {
                task.wake();
            }
        }
    }
}

thread_local! {
    /// The waiting tasks of a worker.
    static IDLE: RefCell<Spares<IdleTask>> = const { RefCell::new(Spares::new()) };
}

/// Serves a stream: by a task that waits, or by a new one.
pub fn begin(job: StreamJob) {
    let left = match IDLE.with_borrow_mut(Spares::pop) {
        Some(waiting) => waiting.serve(job),
        None => Some(job),
    };
    if let Some(job) = left {
        tokio::task::spawn_local(serve_streams(job));
    }
}

/// Ends the tasks that no stream has needed since the last call.
pub fn end_unused_tasks() {
    let unused = IDLE.with_borrow_mut(Spares::take_unused);
    // Each wakes its task.
    drop(unused);
}

/// Serves one stream after the other.
async fn serve_streams(job: StreamJob) {
    let (seat, mut next) = (Rc::new(Seat::default()), Some(job));
    while let Some(StreamJob { served, work, two, mut counted, serving }) = next {
        let http = served.http.clone();
        match work {
            StreamWork::Request(mut asked) => serve_stream(&served, &mut asked, two).await,
            // Boxed, because few streams rest.
            StreamWork::Rested(resumed) => Box::pin(go_on(&served, *resumed, two)).await,
        }
        drop((served, serving));
        if http.engine.process.budget.is_tight(0) {
            return;
        }
        drop(http);
        counted.set(IDLE_TASK_BYTES);
        next = wait(&seat).await;
    }
}

/// Waits for the next stream. `None`: the task is not needed.
async fn wait(seat: &Rc<Seat>) -> Option<StreamJob> {
    let has_room = IDLE.with_borrow_mut(|idle| {
        let has_room = idle.count() < IDLE_MAX;
        if has_room {
            idle.push(IdleTask(Rc::downgrade(seat)));
        }
        has_room
    });
    if !has_room {
        return None;
    }
    seat.is_over.set(false);
    poll_fn(|task: &mut Context<'_>| {
        if seat.is_over.get() {
            return Poll::Ready(seat.job.take());
        }
        seat.task.set(Some(task.waker().clone()));
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use super::*;

    type Waiting = Pin<Box<dyn Future<Output = bool>>>;

    fn waits() -> (Rc<Seat>, Waiting) {
        let seat = Rc::new(Seat::default());
        let of = seat.clone();
        let mut task: Waiting = Box::pin(async move { wait(&of).await.is_some() });
        assert!(is_waiting(&mut task));
        (seat, task)
    }

    fn is_waiting(task: &mut Waiting) -> bool {
        task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Tasks that nobody has needed between two ticks end, and the others wait on.
    #[test]
    fn tasks_that_nobody_needs_end() {
        let mut tasks: Vec<_> = (0..3).map(|_| waits()).collect();
        end_unused_tasks();
        assert!(
            tasks.iter_mut().all(|(_, task)| is_waiting(task)),
            "they came since the last tick"
        );
        let taken = IDLE.with_borrow_mut(Spares::pop);
        end_unused_tasks();
        let waiting: Vec<bool> = tasks.iter_mut().map(|(_, task)| is_waiting(task)).collect();
        assert_eq!(waiting, [false, false, true], "one was taken");
        drop(taken);
        assert!(!is_waiting(&mut tasks[2].1));
        assert!(IDLE.with_borrow(|idle| idle.count() == 0));
    }

    /// A task that is gone with its worker is not waited for.
    #[test]
    fn a_task_that_is_gone_serves_nothing() {
        let (seat, task) = waits();
        drop((seat, task));
        let gone = IDLE.with_borrow_mut(Spares::pop);
        assert!(gone.is_some_and(|gone| gone.0.upgrade().is_none()));
    }
}
