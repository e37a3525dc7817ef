//! The task that waits for something of a connection or of a stream, and is woken.

use std::task::{Context, Waker};

/// The task that is woken next, if one waits.
#[derive(Default)]
pub struct WaitingTask(Option<Waker>);

impl WaitingTask {
    /// Notes the task that waits.
    pub fn waits(&mut self, task: &Context<'_>) {
        if !self.0.as_ref().is_some_and(|known| known.will_wake(task.waker())) {
            self.0 = Some(task.waker().clone());
        }
    }

    /// Has the task run again if it waits. It does not wait any more.
    pub fn wake(&mut self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }

    /// Forgets the task, which has ended.
    pub fn forget(&mut self) {
        self.0 = None;
    }
}
