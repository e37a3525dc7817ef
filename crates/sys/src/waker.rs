//! A waker that wakes nobody and counts how often it is kept: whoever polls with it learns whether
//! something else than what it watches itself is waited for. It must not know what is polled.

use std::cell::Cell;
use std::ptr;
use std::task::{RawWaker, RawWakerVTable, Waker};

thread_local! {
    static KEPT: Cell<u64> = const { Cell::new(0) };
}

/// SAFETY of what is made of it: no function looks at the pointer, each is free of panics and may
/// be called by any thread, as the contract of `RawWaker` asks.
static NOBODY: RawWakerVTable = RawWakerVTable::new(keep, ignore, ignore, ignore);

fn keep(_: *const ()) -> RawWaker {
    KEPT.set(KEPT.get() + 1);
    RawWaker::new(ptr::null(), &NOBODY)
}

fn ignore(_: *const ()) {}

/// The waker.
pub fn nobody() -> Waker {
    // SAFETY: see `NOBODY`.
    unsafe { Waker::new(ptr::null(), &NOBODY) }
}

/// How often such a waker was cloned on this thread.
pub fn kept() -> u64 {
    KEPT.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_counts_and_wakes_nobody() {
        let waker = nobody();
        let before = kept();
        waker.wake_by_ref();
        assert_eq!(kept(), before);
        let clone = waker.clone();
        assert!(clone.will_wake(&waker) && kept() == before + 1);
        clone.wake();
        assert_eq!(kept(), before + 1);
    }
}
