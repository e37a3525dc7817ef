//! A socket that belongs to no single connection.

use std::cell::Cell;
use std::task::{Context, Poll, Waker};

use eyelet_sys::epoll::ENDED;

use eyelet_relay::ready::{READ, WRITE};

/// Readiness of a socket that belongs to no slot, and the one task that waits for it.
pub struct SharedSocket {
    ready: Cell<u8>,
    waker: Cell<Option<Waker>>,
}

impl SharedSocket {
    /// A connected socket is writable; if it is not, the first write shows it.
    pub(crate) fn connected() -> Self {
        Self { ready: Cell::new(WRITE), waker: Cell::default() }
    }

    /// Notes an event. Returns the waker of the task that waits for it.
    pub(crate) fn note(&self, bits: u8) -> Option<Waker> {
        self.ready.update(|ready| ready | bits);
        self.waker.take()
    }

    /// Counts as readable until a read shows otherwise, although no event has said so yet.
    pub fn expect_read(&self) {
        self.ready.update(|ready| ready | READ);
    }

    /// True if any of the bits was reported and is not used up.
    pub fn is_ready(&self, bits: u8) -> bool {
        self.ready.get() & bits != 0
    }

    /// Waits for any of the bits.
    pub fn poll_ready(&self, task: &mut Context<'_>, bits: u8) -> Poll<()> {
        if self.is_ready(bits) {
            return Poll::Ready(());
        }
        let known = self.waker.take().filter(|known| known.will_wake(task.waker()));
        self.waker.set(known.or_else(|| Some(task.waker().clone())));
        Poll::Pending
    }

    /// Drops the waiting task's waker, which would keep the task alive.
    pub fn forget(&self) {
        self.waker.take();
    }

    /// Clears bits after a call that would have blocked.
    pub fn clear(&self, bits: u8) {
        self.ready.update(|ready| ready & !bits);
    }

    /// Notes that a read got less than it had room for. After the peer's end one more read is due.
    pub fn all_read(&self) {
        if !self.is_ready(ENDED) {
            self.clear(READ);
        }
    }
}
