//! A counting waker: it wakes nothing, and counts how often it is used. A caller that polls a
//! future with it learns whether the future waits for anything besides the caller's own sockets.

use std::cell::Cell;
use std::ptr;
use std::task::{RawWaker, RawWakerVTable, Waker};

thread_local! {
    static USED: Cell<u64> = const { Cell::new(0) };
}

/// SAFETY for wakers made of it: no function reads the pointer, none panics, and any thread may
/// call them, as the contract of `RawWaker` requires.
static COUNTING_VTABLE: RawWakerVTable = RawWakerVTable::new(keep, wake, wake, forget);

fn keep(_: *const ()) -> RawWaker {
    wake(ptr::null());
    RawWaker::new(ptr::null(), &COUNTING_VTABLE)
}

/// A future that is woken during its own poll wants to be polled again, so this counts, too.
fn wake(_: *const ()) {
    USED.set(USED.get() + 1);
}

fn forget(_: *const ()) {}

/// A counting waker.
pub fn counting_waker() -> Waker {
    // SAFETY: see `COUNTING_VTABLE`.
    unsafe { Waker::new(ptr::null(), &COUNTING_VTABLE) }
}

/// Returns how often such a waker was cloned or woken on this thread.
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
