//! The clock of HTTP/2 connections: milliseconds, as the protocol's state counts them.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Milliseconds since this process first served HTTP/2.
pub fn now_ms() -> u64 {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    ms(BEGAN.elapsed())
}

/// A duration in milliseconds.
pub fn ms(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}
