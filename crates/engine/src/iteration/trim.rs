//! Returns free memory to the kernel once a burst of connections is over, or while memory is short.

use std::sync::atomic::Ordering::Relaxed;

use crate::iteration::accept::Accepting;
use crate::worker::{Program, Worker};

/// A burst of fewer connections leaves too little memory to be worth returning while others come
/// and go.
const BURST: usize = 1000;
/// Fewer bytes that were given back are not worth it, either.
const GIVEN_BACK_BYTES: usize = 256 << 10;
/// Ticks (1 s) after which a number that did not change counts as settled.
const QUIET_TICKS: u32 = 10;

impl Worker {
    /// Returns free memory to the kernel once a burst of connections is over: when half of the peak
    /// are gone, or when nothing came or went for [`QUIET_TICKS`]. Their tasks may end later, as
    /// waiting requests come to rest. So it does this again when they have given back a third of
    /// the used memory. While memory is short it does so every [`QUIET_TICKS`]. Compressors that
    /// were idle for so long are freed.
    pub(super) fn give_memory_back(&self, program: &dyn Program, accepting: &mut Accepting) {
        let open = self.process.open.load(Relaxed);
        let mut burst = self.burst.get();
        burst.scarce_ticks = burst.scarce_ticks.saturating_sub(1);
        burst.quiet = if open == burst.open { burst.quiet.saturating_add(1) } else { 0 };
        burst.dirty |= open != burst.open;
        burst.open = open;
        burst.peak = burst.peak.max(open);
        let used = self.process.budget.used();
        burst.peak_bytes = burst.peak_bytes.max(used);
        let given_back = burst.peak_bytes - used;
        let is_much = given_back >= GIVEN_BACK_BYTES.max(used / 2);
        burst.given_back = if is_much { burst.given_back.saturating_add(1) } else { 0 };
        burst.rested = if program.is_resting() { burst.rested.saturating_add(1) } else { 0 };
        if burst.rested >= QUIET_TICKS {
            // This does not depend on connections. The next trim returns what it frees.
            program.release_caches();
            (burst.rested, burst.dirty) = (0, true);
        }
        let halved = burst.peak >= BURST && open <= burst.peak / 2;
        let settled = burst.dirty && burst.quiet >= QUIET_TICKS;
        burst.ticks = burst.ticks.wrapping_add(1);
        let is_back = burst.given_back >= QUIET_TICKS;
        let short = burst.ticks.is_multiple_of(QUIET_TICKS) && self.process.budget.is_filling(0);
        if halved || settled || is_back || short {
            program.release_caches();
            self.release_queues();
            accepting.waiting.shrink_to_fit();
            eyelet_sys::memory::trim();
            if settled && self.index == 0 {
                eyelet_sys::memory::forget_code();
            }
            (burst.peak, burst.dirty) = (open, false);
            (burst.peak_bytes, burst.given_back) = (used, 0);
        }
        self.burst.set(burst);
    }
}
