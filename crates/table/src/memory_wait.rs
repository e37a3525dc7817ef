//! Tasks that wait for memory until the next tick. A task may ask many times before that, and is
//! listed about once.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::task::Waker;

use foldhash::fast::RandomState;

/// Wakers that are listed before repeated ones are looked for. While memory is short, most ticks
/// have fewer.
const LISTED_MIN: usize = 64;

/// The list. It has at most twice as many wakers as tasks have waited since the last tick, those
/// included that have ended since then, or `LISTED_MIN`. A waker takes 16 bytes, and the least of
/// these tasks counts 8 KiB in the budget while it lives.
#[derive(Default)]
pub struct MemoryWait {
    tasks: RefCell<Vec<Waker>>,
    /// The number of them when repeated ones were last removed.
    distinct: Cell<usize>,
}

impl MemoryWait {
    /// Adds a task. It is woken in the order of the first call.
    pub fn add(&self, task: &Waker) {
        let tasks = &mut *self.tasks.borrow_mut();
        if tasks.last().is_some_and(|last| last.will_wake(task)) {
            return;
        }
        if tasks.len() >= LISTED_MIN.max(2 * self.distinct.get()) {
            let mut seen = HashSet::with_capacity_and_hasher(tasks.len(), RandomState::default());
            tasks.retain(|task| seen.insert(task.data()));
            self.distinct.set(tasks.len());
        }
        tasks.push(task.clone());
    }

    /// Wakes them all.
    pub fn wake_all(&self) {
        self.distinct.set(0);
        let tasks = self.tasks.take();
        tasks.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    use super::*;

    /// A task that counts its wakes and notes their order.
    struct Task {
        id: usize,
        wakes: AtomicUsize,
        order: Arc<Mutex<Vec<usize>>>,
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.wakes.fetch_add(1, Relaxed);
            self.order.lock().unwrap_or_else(|e| e.into_inner()).push(self.id);
        }
    }

    /// However often tasks ask in turns, the list is bounded by their number, each of them is
    /// woken, and first woken is who asked first.
    #[test]
    fn the_list_is_bounded_by_its_tasks() {
        for count in [1, 2, 63, 64, 65, 500] {
            let order = Arc::new(Mutex::new(Vec::new()));
            let task = |id| Arc::new(Task { id, wakes: AtomicUsize::new(0), order: order.clone() });
            let tasks: Vec<Arc<Task>> = (0..count).map(task).collect();
            let wakers: Vec<Waker> = tasks.iter().cloned().map(Waker::from).collect();
            let list = MemoryWait::default();
            for _ in 0..2 {
                for _ in 0..50 {
                    wakers.iter().for_each(|task| list.add(task));
                }
                let listed = list.tasks.borrow().len();
                assert!(listed <= LISTED_MIN.max(2 * count), "{listed} of {count}");
                list.wake_all();
                assert!(list.tasks.borrow().is_empty());
            }
            let woken = |task: &Arc<Task>| task.wakes.load(Relaxed) >= 2;
            assert!(tasks.iter().all(woken), "{count}: each of them, both times");
            let order = order.lock().unwrap_or_else(|e| e.into_inner());
            assert!((0..count).eq(order.iter().copied().take(count)), "{count}: in their order");
        }
    }
}
