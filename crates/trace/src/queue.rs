//! Exchanges on their way from the workers to the thread that sends them. It is bounded, and
//! workers never wait for it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use eyelet_telemetry::counters::Counters;

use crate::span::ExchangeSpans;

/// Exchanges that wait. Each has at most about 2 KiB, so that all have at most 4 MiB.
pub const QUEUE_MAX: usize = 2_048;
/// Exchanges of a batch: about half a megabyte as JSON. Collectors take at least 4 MB.
pub const BATCH_MAX: usize = 256;
/// How long an exchange waits for others, so that an edge with few requests sends few batches.
pub const BATCH_WAIT: Duration = Duration::from_secs(1);

/// The queue. Its lock is held for a push or for a batch to be taken out, and never over I/O.
pub struct SpanQueue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// All queues count into the same cells, which have one writer at a time.
    counters: Arc<Mutex<Arc<Counters>>>,
}

struct Waiting {
    exchanges: Vec<ExchangeSpans>,
    /// Spans that are being sent.
    in_hand: u64,
    /// Nothing more comes.
    is_closed: bool,
    /// The thread has ended.
    is_over: bool,
    /// Whether the log says that spans are lost.
    is_reported: bool,
}

impl SpanQueue {
    /// An empty queue.
    pub fn new(counters: Arc<Mutex<Arc<Counters>>>) -> Self {
        let waiting = Waiting {
            exchanges: Vec::new(),
            in_hand: 0,
            is_closed: false,
            is_over: false,
            is_reported: false,
        };
        Self { waiting: Mutex::new(waiting), changed: Condvar::new(), counters }
    }

    /// Adds an exchange, or counts it as lost. The thread is woken for the first one and for a
    /// whole batch only: waking costs a system call.
    pub fn push(&self, exchange: ExchangeSpans) {
        let mut waiting = self.lock();
        if waiting.exchanges.len() >= QUEUE_MAX || waiting.is_closed {
            let is_closed = waiting.is_closed;
            drop(waiting);
            self.count(0, exchange.count());
            if !is_closed {
                self.report("it does not keep up");
            }
            return;
        }
        waiting.exchanges.push(exchange);
        let is_awaited = matches!(waiting.exchanges.len(), 1 | BATCH_MAX);
        drop(waiting);
        if is_awaited {
            self.changed.notify_all();
        }
    }

    /// Says that spans are lost: once, until the collector has caught up. One that is down must not
    /// fill the log.
    pub fn report(&self, why: &str) {
        if !std::mem::replace(&mut self.lock().is_reported, true) {
            tracing::warn!("the collector of traces: {why}; spans are lost");
        }
    }

    /// Says that nothing is lost any more, if that was said and the collector has caught up.
    pub fn note_taken(&self) {
        let mut waiting = self.lock();
        let has_caught_up = waiting.exchanges.len() < BATCH_MAX;
        if has_caught_up && std::mem::take(&mut waiting.is_reported) {
            drop(waiting);
            tracing::info!("the collector of traces takes spans again");
        }
    }

    /// Whether the next batch is whole already.
    pub fn has_batch(&self) -> bool {
        self.lock().exchanges.len() >= BATCH_MAX
    }

    /// The next batch. `None`: the queue is closed and empty.
    pub fn next(&self) -> Option<Vec<ExchangeSpans>> {
        let mut waiting = self.lock();
        while waiting.exchanges.is_empty() {
            if waiting.is_closed {
                return None;
            }
            let waited = self.changed.wait(waiting);
            waiting = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let end = Instant::now() + BATCH_WAIT;
        while waiting.exchanges.len() < BATCH_MAX && !waiting.is_closed {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            waiting = self.wait(waiting, left);
        }
        let count = waiting.exchanges.len().min(BATCH_MAX);
        let batch: Vec<_> = waiting.exchanges.drain(..count).collect();
        waiting.in_hand = spans(&batch);
        Some(batch)
    }

    /// Counts what became of the batch that was taken last.
    pub fn settle(&self, refused: u64) {
        let mut waiting = self.lock();
        let all = std::mem::take(&mut waiting.in_hand);
        drop(waiting);
        let refused = refused.min(all);
        self.count(all - refused, refused);
    }

    fn count(&self, sent: u64, lost: u64) {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.spans_sent.add(sent);
        counters.spans_lost.add(lost);
    }

    /// Waits before the batch is sent again. Returns whether it may be: not once the queue is
    /// closed.
    pub fn rest(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        let mut waiting = self.lock();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if waiting.is_closed || left.is_zero() {
                return !waiting.is_closed;
            }
            waiting = self.wait(waiting, left);
        }
    }

    /// Takes nothing more. What waits is still sent.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Says that the thread has ended.
    pub fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Waits for the end of the thread, at most so long. Returns the spans that are lost otherwise,
    /// and counts them.
    pub fn finish(&self, time: Duration) -> u64 {
        let end = Instant::now() + time;
        let mut waiting = self.lock();
        while !waiting.is_over {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let lost = waiting.in_hand + spans(&waiting.exchanges);
                waiting.in_hand = 0;
                waiting.exchanges.clear();
                drop(waiting);
                self.count(0, lost);
                return lost;
            }
            waiting = self.wait(waiting, left);
        }
        0
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A poisoned lock still holds whole exchanges.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        waiting: MutexGuard<'a, Waiting>,
        time: Duration,
    ) -> MutexGuard<'a, Waiting> {
        let waited = self.changed.wait_timeout(waiting, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

fn spans(exchanges: &[ExchangeSpans]) -> u64 {
    exchanges.iter().map(ExchangeSpans::count).sum()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use eyelet_telemetry::info::Outcome;

    use super::*;

    fn exchange() -> ExchangeSpans {
        ExchangeSpans {
            trace_id: [1; 16],
            span_id: [1; 8],
            parent: None,
            began: SystemTime::UNIX_EPOCH,
            duration: Duration::ZERO,
            method: "GET".into(),
            path: "/".into(),
            host: None,
            is_tls: true,
            version: "2",
            client: ([192, 0, 2, 1], 1).into(),
            status: None,
            outcome: Outcome::Terminated,
            reason: "complete",
            failure: None,
            rule: None,
            connection: 1,
            upstream: None,
        }
    }

    fn counted(queue: &SpanQueue) -> (u64, u64) {
        let counters = queue.counters.lock().unwrap_or_else(PoisonError::into_inner);
        (counters.spans_sent.value(), counters.spans_lost.value())
    }

    fn filled(count: usize) -> SpanQueue {
        let queue = SpanQueue::new(Arc::default());
        (0..count).for_each(|_| queue.push(exchange()));
        queue
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let queue = filled(QUEUE_MAX + 3);
        assert_eq!(counted(&queue), (0, 3));
        assert_eq!(queue.next().map(|batch| batch.len()), Some(BATCH_MAX));
        queue.settle(5);
        assert_eq!(counted(&queue), (BATCH_MAX as u64 - 5, 8));
        // There is room again.
        queue.push(exchange());
        assert_eq!(counted(&queue).1, 8);
    }

    #[test]
    fn the_log_says_once_that_spans_are_lost() {
        let queue = filled(QUEUE_MAX);
        assert!(!queue.lock().is_reported);
        queue.push(exchange());
        assert!(queue.lock().is_reported);
        // It takes a batch, and others wait.
        while queue.has_batch() {
            queue.note_taken();
            assert!(queue.lock().is_reported);
            assert!(queue.next().is_some());
        }
        queue.note_taken();
        assert!(!queue.lock().is_reported);
    }

    #[test]
    fn a_closed_queue_gives_what_it_has_and_waits_for_nothing() {
        let queue = filled(BATCH_MAX + 1);
        queue.close();
        queue.push(exchange());
        assert_eq!(counted(&queue), (0, 1));
        assert!(!queue.rest(Duration::from_hours(1)));
        for expected in [Some(BATCH_MAX), Some(1), None] {
            assert_eq!(queue.next().map(|batch| batch.len()), expected);
            queue.settle(0);
        }
        queue.end();
        assert_eq!(queue.finish(Duration::from_hours(1)), 0);
        assert_eq!(counted(&queue), (BATCH_MAX as u64 + 1, 1));
    }

    #[test]
    fn what_is_not_sent_in_time_is_lost() {
        let queue = filled(BATCH_MAX + 2);
        assert!(queue.next().is_some());
        queue.close();
        assert_eq!(queue.finish(Duration::ZERO), BATCH_MAX as u64 + 2);
        assert_eq!(counted(&queue), (0, BATCH_MAX as u64 + 2));
        // The thread comes too late.
        queue.settle(0);
        assert_eq!(counted(&queue), (0, BATCH_MAX as u64 + 2));
    }
}
