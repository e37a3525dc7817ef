//! The effort of compression: as high as possible while the worker keeps most of its time.

use std::cell::Cell;
use std::time::{Duration, Instant};

use eyelet_compress::Effort;

/// The share of a worker's time that compressing takes, measured over a quarter of a second.
pub struct Pace {
    since: Cell<Instant>,
    busy: Cell<Duration>,
    /// Since the worker began.
    total: Cell<Duration>,
    effort: Cell<Effort>,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            since: Cell::new(Instant::now()),
            busy: Cell::default(),
            total: Cell::default(),
            effort: Cell::new(Effort::Small),
        }
    }
}

impl Pace {
    /// The effort for the next body.
    pub fn effort(&self) -> Effort {
        let now = Instant::now();
        let elapsed = now.duration_since(self.since.get());
        if elapsed >= WINDOW {
            let busy = self.busy.replace(Duration::ZERO);
            self.since.set(now);
            let effort = if busy * BUSY_DIVISOR > elapsed { Effort::Even } else { Effort::Small };
            self.effort.set(effort);
        }
        self.effort.get()
    }

    /// Runs a coder's work and counts its time.
    pub fn spend<T>(&self, work: impl FnOnce() -> T) -> T {
        let from = Instant::now();
        let done = work();
        let spent = from.elapsed();
        self.busy.update(|busy| busy + spent);
        self.total.update(|total| total + spent);
        done
    }

    /// The time of all coders' work since the worker began.
    pub fn total(&self) -> Duration {
        self.total.get()
    }
}

const WINDOW: Duration = Duration::from_millis(250);
/// More than a quarter counts as busy: more effort would delay the worker's other connections.
const BUSY_DIVISOR: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_worker_tries_less() {
        let pace = Pace::default();
        assert_eq!(pace.effort(), Effort::Small);
        pace.busy.set(WINDOW);
        pace.since.set(Instant::now() - WINDOW);
        assert_eq!(pace.effort(), Effort::Even);
        pace.since.set(Instant::now() - WINDOW);
        assert_eq!(pace.effort(), Effort::Small);
    }
}
