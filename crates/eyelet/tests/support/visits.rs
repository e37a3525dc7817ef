//! Visits of clients that behave, again and again on a thread, while something else goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What became of the visits.
#[derive(Debug, Default)]
pub struct Visited {
    pub came: usize,
    pub served: usize,
    /// For people: no test asserts a time.
    pub slowest_ms: u128,
}

impl Visited {
    /// Nearly all were served, whatever others do: of a hundred so many, or all but two, where few
    /// came in all.
    #[track_caller]
    pub fn are_served(&self, percent: usize) {
        let missed = self.came - self.served;
        assert!(missed <= 2 || 100 * self.served >= percent * self.came, "newcomers: {self:?}");
    }
}

/// A client that comes again and again, with a pause behind each visit.
pub struct Visits {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Visited>,
}

impl Visits {
    /// `visit` says whether it was served.
    pub fn start(pause: Duration, mut visit: impl FnMut() -> bool + Send + 'static) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut seen = Visited::default();
            // One at least: what else goes on may be over before this thread runs.
            loop {
                let began = Instant::now();
                seen.came += 1;
                seen.served += usize::from(visit());
                seen.slowest_ms = seen.slowest_ms.max(began.elapsed().as_millis());
                if stopped.load(Ordering::Relaxed) {
                    return seen;
                }
                thread::sleep(pause);
            }
        });
        Self { stop, thread }
    }

    pub fn finish(self) -> Visited {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("a client that behaves")
    }
}
