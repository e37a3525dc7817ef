//! The time for which a connection that moves has been at rest, and may still be.

use std::time::Duration;

use eyelet_memory::slab::Key;

/// Connections that have been idle for longer than a shorter `idle_timeout` end over this time:
/// otherwise all would end in one iteration, and come back at once.
const OVERDUE_SPREAD: Duration = Duration::from_secs(10);
/// Steps of that time.
const SPREAD_STEPS: u32 = 64;

/// The clocks that go along with a connection that leaves its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleState {
    /// See [`eyelet_telemetry::info::Parked::is_settled`].
    pub is_settled: bool,
    /// The time for which it may still move no byte, by the settings of the worker that it left.
    pub idle_left: Duration,
    /// The time for which it has moved no byte. Messages of versions 1 and 2 do not say it.
    pub idle: Option<Duration>,
}

impl IdleState {
    /// Returns the time for which it may still move no byte where the whole time is `wait`.
    pub fn left(&self, wait: Duration, key: Key) -> Duration {
        self.idle.map_or(self.idle_left.min(wait), |idle| left(wait, idle, key))
    }
}

/// Returns the time for which a connection may still be idle that has been idle for so long.
pub fn left(wait: Duration, idle: Duration, key: Key) -> Duration {
    if idle < wait {
        return wait - idle;
    }
    // At most half of the wait, so that the connection still counts as idle.
    OVERDUE_SPREAD.min(wait / 2) * (key.index % SPREAD_STEPS) / SPREAD_STEPS
}
