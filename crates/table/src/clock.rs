//! Time since 1970 in milliseconds, and in nanoseconds by the steady one of two clocks. Durations
//! and ages use that one, which nobody can set. People's output and the validity of certificates
//! use the wall clock, in milliseconds.

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use eyelet_sys::time::boot_ns;
use eyelet_telemetry::info::NS_PER_MS;

/// The clocks of one worker.
pub struct Clock {
    /// The time since boot at which it was created, in nanoseconds.
    began_ns: u64,
    began_unix_ns: u64,
    /// The time that was read last, in nanoseconds since `began`: 584 years fit.
    last_ns: Cell<u64>,
    iteration: Cell<Iteration>,
    /// Wall clock minus steady clock.
    ahead_ms: Cell<i64>,
}

/// The state of an iteration of the event loop, which needs the time once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Iteration {
    /// It is in none: each caller reads the clock.
    None,
    /// Nobody has read the clock in it yet.
    Unread,
    /// The time that was read last is its time.
    Read,
}

impl Clock {
    /// Both clocks start in agreement.
    pub fn new() -> Self {
        let (began_unix_ns, began_ns) = (unix_ns(SystemTime::now()), boot_ns());
        let iteration = Cell::new(Iteration::None);
        Self { began_ns, began_unix_ns, last_ns: Cell::new(0), iteration, ahead_ms: Cell::new(0) }
    }

    /// Time since the clock was created.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(boot_ns() - self.began_ns)
    }

    /// Milliseconds since 1970, as if the wall clock had not been set since the start. By the time
    /// of the iteration.
    pub fn steady_ms(&self) -> u64 {
        self.steady_ns() / NS_PER_MS
    }

    /// [`Self::steady_ms`] in nanoseconds: they fit until 2554.
    #[inline]
    pub fn steady_ns(&self) -> u64 {
        self.began_unix_ns + self.iteration_ns()
    }

    /// Reads the steady clock: nanoseconds since the clock was created.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        let now_ns = boot_ns() - self.began_ns;
        self.last_ns.set(now_ns);
        if self.iteration.get() == Iteration::Unread {
            self.iteration.set(Iteration::Read);
        }
        now_ns
    }

    /// Nanoseconds on the steady clock, with one time for an iteration of the event loop.
    #[inline]
    pub fn iteration_ns(&self) -> u64 {
        match self.iteration.get() {
            Iteration::Read => self.last_ns.get(),
            Iteration::None | Iteration::Unread => self.now_ns(),
        }
    }

    /// The time that was read last: now, for who knows that it was read in this poll.
    pub fn last_ns(&self) -> u64 {
        self.last_ns.get()
    }

    /// An iteration begins, and has a time of its own.
    pub fn begin_iteration(&self) {
        self.iteration.set(Iteration::Unread);
    }

    /// It is over: tasks run, each for as long as it likes.
    pub fn end_iteration(&self) {
        self.iteration.set(Iteration::None);
    }

    /// Reads the wall clock. Returns how many milliseconds it is ahead of the steady one.
    pub fn look(&self) -> i64 {
        self.set(unix_ns(SystemTime::now()) / NS_PER_MS, self.steady_ms())
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
fn unix_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iteration_has_one_time_and_what_follows_reads_the_clock() {
        let clock = Clock::new();
        let later = |than: u64| loop {
            let now_ns = clock.now_ns();
            if now_ns > than {
                break now_ns;
            }
        };
        clock.begin_iteration();
        let first = clock.iteration_ns();
        while clock.elapsed().as_nanos() as u64 <= first {}
        assert_eq!((clock.iteration_ns(), clock.last_ns()), (first, first));
        // Who needs the time itself has it, and from then on so has everybody.
        let second = later(first);
        assert_eq!(clock.iteration_ns(), second);
        clock.end_iteration();
        while clock.iteration_ns() <= second {}
        clock.begin_iteration();
        let third = later(second);
        assert_eq!(clock.iteration_ns(), third);
    }

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
