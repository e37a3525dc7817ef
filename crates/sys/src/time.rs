//! The steady clock as one number. `Instant` would be taken apart and put together again at each
//! read, which takes most of the instructions of a read.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since about the boot, without the time in suspend (CLOCK_MONOTONIC): 584 years fit.
/// It never goes back.
#[inline]
pub fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is negative on this clock.
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_on_and_never_back() {
        let first = boot_ns();
        let mut last = first;
        while last == first {
            let now = boot_ns();
            assert!(now >= last);
            last = now;
        }
    }
}
