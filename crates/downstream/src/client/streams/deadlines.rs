//! Deadlines of streams. The connection's own deadline stands for all of them, so a stream needs no
//! timer. It may pass for nobody: a deadline that moves back leaves it where it is.

use std::task::{Context, Poll};

use eyelet_h2::ConnectionFault;
use eyelet_multiplex::StreamRole;

use super::Streams;

impl Streams {
    // The tasks of streams.

    /// Sets the deadline of a stream, also after an earlier one has passed.
    pub fn due_at(&self, id: u32, due_ms: u64) {
        let state = &mut *self.state.borrow_mut();
        let Some(stream) = state.mux.find(id) else { return };
        (stream.due_ms, stream.is_late) = (due_ms, false);
        if due_ms < state.due_ms {
            state.due_ms = due_ms;
            // It waits for a later time.
            state.mux.driver.wake();
        }
    }

    /// Waits for the deadline of a stream.
    pub fn poll_late(&self, id: u32, task: &Context<'_>) -> Poll<()> {
        let state = &mut *self.state.borrow_mut();
        let Some(stream) = state.mux.find(id) else { return Poll::Pending };
        if stream.is_late {
            return Poll::Ready(());
        }
        stream.waits(task);
        Poll::Pending
    }

    // The connection's task.

    /// Returns the time at which [`Streams::expire`] may have something to do.
    pub fn due_ms(&self) -> u64 {
        let state = self.state.borrow();
        let of_h2 = state.mux.h2.due_ms().filter(|_| !state.has_client_ended);
        of_h2.map_or(state.due_ms, |due_ms| due_ms.min(state.due_ms))
    }

    /// Does what is due.
    pub fn expire(&self, now_ms: u64) -> Result<(), ConnectionFault> {
        let state = &mut *self.state.borrow_mut();
        state.due_ms = u64::MAX;
        for stream in state.mux.streams.iter_mut().filter(|stream| !stream.is_late) {
            if stream.due_ms <= now_ms {
                stream.is_late = true;
                stream.wake();
            } else {
                state.due_ms = state.due_ms.min(stream.due_ms);
            }
        }
        if state.has_client_ended {
            // It acknowledges nothing any more, neither SETTINGS nor the PING of a GOAWAY.
            return Ok(());
        }
        state.mux.h2.expire(now_ms, state.mux.out.frames())
    }
}
