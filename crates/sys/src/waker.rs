//! A waker that wakes nobody and counts how often it is used: whoever polls with it learns whether
//! something else than what it watches itself is waited for. It must not know what is polled.

use std::cell::Cell;
use std::ptr;
use std::task::{RawWaker, RawWakerVTable, Waker};

thread_local! {
    static USED: Cell<u64> = const { Cell::new(0) };
}

/// SAFETY of what is made of it: no function looks at the pointer, each is free of panics and may
/// be called by any thread, as the contract of `RawWaker` asks.
static COUNTING_VTABLE: RawWakerVTable = RawWakerVTable::new(keep, wake, wake, forget);

fn keep(_: *const ()) -> RawWaker {
    wake(ptr::null());
    RawWaker::new(ptr::null(), &COUNTING_VTABLE)
}

/// Also one that is woken at once, in the midst of its poll, wants to be polled again.
fn wake(_: *const ()) {
    USED.set(USED.get() + 1);
}

fn forget(_: *const ()) {}

/// The waker.
pub fn counting_waker() -> Waker {
    // SAFETY: see `COUNTING_VTABLE`.
    unsafe { Waker::new(ptr::null(), &COUNTING_VTABLE) }
}

/// How often such a waker was cloned or woken on this thread.
pub fn used() -> u64 {
    USED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_counts_and_wakes_nobody() {
        let waker = counting_waker();
        let before = used();
        let clone = waker.clone();
        assert!(clone.will_wake(&waker) && used() == before + 1);
        waker.wake_by_ref();
        assert_eq!(used(), before + 2);
        drop(clone);
        assert_eq!(used(), before + 2);
    }
}
