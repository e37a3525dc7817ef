//! The clock of HTTP/2 connections: milliseconds, as the protocol's state counts them.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Milliseconds since this process first served HTTP/2.
pub fn now_ms() -> u64 {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    #[cfg(feature = "testing")]
    if let Some(now_ms) = testing::stepped_ms() {
        return now_ms;
    }
    ms(BEGAN.elapsed())
}

/// A duration in milliseconds.
pub fn ms(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

/// A clock that a simulation moves.
#[cfg(feature = "testing")]
pub mod testing {
    use std::cell::Cell;

    thread_local! {
        static NOW_MS: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Sets the time of this thread, which stands still from now on.
    pub fn set_ms(now_ms: u64) {
        NOW_MS.set(Some(now_ms));
    }

    pub(super) fn stepped_ms() -> Option<u64> {
        NOW_MS.get()
    }
}
