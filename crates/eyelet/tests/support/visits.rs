//! Visits of clients that behave, again and again on a thread, while something else goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::SOON;

/// Least visits, where time allows so many: of fewer a share says little.
const VISITS_MIN: usize = 8;

/// The results of the visits.
#[derive(Debug, Default)]
pub struct Visited {
    pub came: usize,
    pub served: usize,
    /// For people: no test asserts a time.
    pub slowest_ms: u128,
}

impl Visited {
    /// Nearly all were served, whatever others do: of a hundred so many, or all but two of eight
    /// or more.
    #[track_caller]
    pub fn are_served(&self, percent: usize) {
        let is_all_but_two = self.came >= VISITS_MIN && self.came - self.served <= 2;
        let is_share = 100 * self.served >= percent * self.came;
        assert!(self.served > 0 && (is_all_but_two || is_share), "newcomers: {self:?}");
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
            let mut over = None;
            loop {
                let began = Instant::now();
                seen.came += 1;
                seen.served += usize::from(visit());
                seen.slowest_ms = seen.slowest_ms.max(began.elapsed().as_millis());
                if stopped.load(Ordering::Relaxed) {
                    // What else goes on may be over before this thread has run much.
                    let over = *over.get_or_insert_with(Instant::now);
                    if seen.came >= VISITS_MIN || over.elapsed() >= SOON {
                        return seen;
                    }
                }
                thread::sleep(pause);
            }
        });
        Self { stop, thread }
    }

    /// Ends the visits, once there were enough of them.
    pub fn finish(self) -> Visited {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("a client that behaves")
    }
}
