//! The clock of connections and exchanges: instants, and milliseconds as the state of HTTP/2 counts
//! them.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The time at which this process first served requests.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The time now.
pub fn now() -> Instant {
    #[cfg(feature = "testing")]
    if let Some(now_ms) = testing::stepped_ms() {
        return *BEGAN + Duration::from_millis(now_ms);
    }
    Instant::now()
}

/// The time that has passed since then.
pub fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// Milliseconds since this process first served requests.
pub fn now_ms() -> u64 {
    ms(since(*BEGAN))
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
