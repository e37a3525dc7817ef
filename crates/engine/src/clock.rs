//! Time in milliseconds since 1970, by two clocks. Durations and ages use a steady one that nobody
//! can set. People's output and the validity of certificates use the wall clock.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The clocks of one worker.
pub struct Clock {
    began: Instant,
    began_unix_ms: u64,
    /// The time that was read last.
    last: Cell<Instant>,
    /// Wall clock minus steady clock.
    ahead_ms: Cell<i64>,
}

impl Clock {
    /// Both clocks start in agreement.
    pub fn new() -> Self {
        let (began_unix_ms, began) = (unix_ms(SystemTime::now()), Instant::now());
        Self { began, began_unix_ms, last: Cell::new(began), ahead_ms: Cell::new(0) }
    }

    /// Time since the clock was created.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Milliseconds since 1970, as if the wall clock had not been set since the start.
    pub fn steady_ms(&self) -> u64 {
        self.began_unix_ms + self.now().duration_since(self.began).as_millis() as u64
    }

    /// Reads the steady clock.
    pub fn now(&self) -> Instant {
        let now = Instant::now();
        self.last.set(now);
        now
    }

    /// The time that was read last: now, for who knows that it was read in this poll.
    pub fn last(&self) -> Instant {
        self.last.get()
    }

    /// Reads the wall clock. Returns how many milliseconds it is ahead of the steady one.
    pub fn look(&self) -> i64 {
        self.set(unix_ms(SystemTime::now()), self.steady_ms())
    }

    fn set(&self, wall_ms: u64, steady_ms: u64) -> i64 {
        let ahead_ms = wall_ms.cast_signed().wrapping_sub(steady_ms.cast_signed());
        self.ahead_ms.set(ahead_ms);
        ahead_ms
    }

    /// The wall clock's time at a time of the steady clock, by the last [`Clock::look`].
    pub fn wall_ms(&self, steady_ms: u64) -> u64 {
        steady_ms.saturating_add_signed(self.ahead_ms.get())
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// Zero before 1970.
fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_is_followed_both_ways_and_ages_are_not() {
        let clock = Clock::new();
        let steady = clock.steady_ms();
        for (wall, ahead) in [(steady + 3_600_000, 3_600_000), (steady - 5_000, -5_000)] {
            assert_eq!(clock.set(wall, steady), ahead);
            assert_eq!(clock.wall_ms(steady), wall);
            assert!(
                clock.steady_ms().abs_diff(steady) < 600_000,
                "setting the wall clock changes no duration"
            );
        }
    }
}
