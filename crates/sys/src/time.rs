//! Clocks that nobody sets. The steady one is one number: `Instant` would be taken apart and put
//! together again at each read, which takes most of the instructions of a read.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since about the boot, without the time in suspend (CLOCK_MONOTONIC): 584 years fit.
/// It never goes back.
#[inline]
pub fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is negative on this clock.
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// The time since the boot, also that in suspend (CLOCK_BOOTTIME). It never goes back.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    // Neither is negative on this clock.
    Duration::from_secs(now.tv_sec.cast_unsigned())
        + Duration::from_nanos(now.tv_nsec.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_goes_on_and_never_back() {
        let in_suspend = || since_boot().as_nanos().try_into().unwrap_or(u64::MAX);
        for read in [boot_ns, in_suspend] {
            let first = read();
            let mut last = first;
            while last == first {
                let now = read();
                assert!(now >= last);
                last = now;
            }
        }
        // They part only while the machine sleeps.
        let before = boot_ns();
        assert!(in_suspend() >= before);
    }
}
