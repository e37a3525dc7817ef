//! Connections that are resumed without an event of their own.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

use eyelet_memory::slab::Key;

use crate::Waits;

/// The connections, by when they are resumed.
#[derive(Default)]
pub struct RunQueue {
    /// In this iteration, behind all that only moves bytes: their futures are in their slots, and
    /// their wait is over.
    pub ready: RefCell<Vec<Key>>,
    /// Shed connections whose futures are still in their slots. They are resumed, and so freed,
    /// before the next connection runs: its need for memory must not shed others.
    pub shed: RefCell<Vec<Key>>,
    /// In the next iteration: those that used up their share of this one, and those that must end.
    pub next_iteration: RefCell<Vec<Key>>,
    /// In the next iteration: parked connections that wake because something has come for a shared
    /// stream. Each stream adds its connection once.
    pub called: RefCell<Vec<Key>>,
    /// The queue for the next tick: parked connections that may have more to move but found memory
    /// short.
    pub next_tick: RefCell<Vec<Key>>,
    /// Starts an iteration for `next_iteration`, `called` or `shed`.
    loop_waker: Cell<Option<Waker>>,
}

impl RunQueue {
    /// Resumes a connection in the next iteration, which then starts without an event.
    pub fn push_next_iteration(&self, key: Key) {
        self.next_iteration.borrow_mut().push(key);
        self.wake_loop();
    }

    /// Has a parked connection go on in the next iteration, which then starts without an event.
    pub fn push_called(&self, key: Key) {
        self.called.borrow_mut().push(key);
        self.wake_loop();
    }

    /// Has the event loop end a connection that was shed, before it resumes another.
    pub fn push_shed(&self, key: Key) {
        self.shed.borrow_mut().push(key);
        self.wake_loop();
    }

    /// Resumes a parked connection at the next tick.
    pub fn push_next_tick(&self, key: Key) {
        self.next_tick.borrow_mut().push(key);
    }

    fn wake_loop(&self) {
        if let Some(waker) = self.loop_waker.take() {
            waker.wake();
        }
    }

    /// True if connections go on, or end, without an event.
    pub fn has_more(&self) -> bool {
        let queues = [&self.next_iteration, &self.called, &self.shed];
        queues.iter().any(|queue| !queue.borrow().is_empty())
    }

    /// Has what is pushed from now on wake the event loop.
    pub fn register(&self, task: &Context<'_>) {
        let known = self.loop_waker.take().filter(|known| known.will_wake(task.waker()));
        self.loop_waker.set(known.or_else(|| Some(task.waker().clone())));
    }

    /// Has the future of a connection look whether it must end.
    pub fn wake(&self, waits: &Waits, key: Key) {
        match waits {
            Waits::No => {}
            Waits::Here(_) => self.push_next_iteration(key),
            Waits::Task(waker) => waker.wake_by_ref(),
        }
    }
}
