//! The queues of all configurations whose threads still send, and the counters that they share. The
//! end of the process waits for them together.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use eyelet_memory::budget::Budget;
use eyelet_telemetry::counters::{self, Counters};

use crate::queue::SpanQueue;

/// The time for which the end of the process waits for all collectors.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

static LIVE: Mutex<Live> = Mutex::new(Live { counters: None, queues: Vec::new() });

struct Live {
    /// Registered cells stay until the end of the process, so that all queues have the same. Cells
    /// have one writer at a time: the lock.
    counters: Option<Arc<Mutex<Arc<Counters>>>>,
    /// The queues of all configurations that still have something to send.
    queues: Vec<Weak<SpanQueue>>,
}

/// A queue that the end of the process waits for.
pub fn queue(budget: Arc<Budget>, memory_max: usize) -> Arc<SpanQueue> {
    let mut live = LIVE.lock();
    let made = || Arc::new(Mutex::new(counters::register()));
    let counters = live.counters.get_or_insert_with(made).clone();
    let queue = Arc::new(SpanQueue::new(counters, budget, memory_max));
    live.queues.retain(|queue| queue.strong_count() > 0);
    live.queues.push(Arc::downgrade(&queue));
    queue
}

/// Waits until what was recorded under any configuration is sent, for `FINISH_TIMEOUT` at most.
pub fn finish() {
    let queues: Vec<_> = LIVE.lock().queues.iter().filter_map(Weak::upgrade).collect();
    for queue in &queues {
        queue.close();
    }
    let end = Instant::now() + FINISH_TIMEOUT;
    let left = || end.saturating_duration_since(Instant::now());
    let lost: u64 = queues.iter().map(|queue| queue.finish(left())).sum();
    if lost > 0 {
        tracing::warn!("the collector of traces is slow or down: {lost} spans are lost");
    }
}
