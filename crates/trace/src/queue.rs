//! Exchanges on their way from the workers to the thread that sends them. It is bounded, and
//! workers never wait for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use eyelet_memory::budget::{Account, Budget, Counted, CountedBuffer};
use eyelet_telemetry::counters::Counters;
use parking_lot::{Condvar, Mutex};

use crate::span::ExchangeSpans;

/// Exchanges that wait. Each has at most about 2 KiB, so that all have at most 4 MiB.
pub const QUEUE_MAX: usize = 2_048;
/// Their part of `memory_max`. A collector that does not keep up leaves the rest to connections.
const QUEUE_PART: usize = 16;
/// Exchanges of a batch: about half a megabyte as JSON. Collectors take at least 4 MB.
pub const BATCH_MAX: usize = 256;
/// The time for which an exchange waits for others, so that an edge with few requests sends few
/// batches.
pub const BATCH_WAIT: Duration = Duration::from_secs(1);

/// The queue. Its lock is held for a push or for a batch to be taken out, and never over I/O.
pub struct SpanQueue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// All queues count into the same cells, which have one writer at a time.
    counters: Arc<Mutex<Arc<Counters>>>,
    /// Bytes of the exchanges that wait. Further ones are lost.
    bytes_max: usize,
    budget: Arc<Budget>,
}

/// Exchanges to send together. Their memory counts until it is dropped.
pub struct SpanBatch {
    pub exchanges: Vec<ExchangeSpans>,
    _counted: Counted,
}

struct Waiting {
    exchanges: Vec<ExchangeSpans>,
    /// Bytes behind them.
    text_bytes: usize,
    counted: Counted,
    /// Spans that are being sent.
    in_hand: u64,
    /// Nothing more comes.
    is_closed: bool,
    /// The thread has ended.
    is_over: bool,
    /// True if the log says that spans are lost.
    is_reported: bool,
}

impl Waiting {
    /// Bytes of memory of the exchanges that wait.
    fn bytes(&self) -> usize {
        self.exchanges.capacity() * size_of::<ExchangeSpans>() + self.text_bytes
    }

    /// Those bytes with one more. A list that is full doubles.
    fn bytes_with(&self, more: &ExchangeSpans) -> usize {
        let capacity = self.exchanges.capacity();
        let growth = if self.exchanges.len() == capacity { capacity } else { 0 };
        self.bytes() + growth * size_of::<ExchangeSpans>() + more.text_bytes()
    }

    /// Takes the first exchanges, at most `count`.
    fn take(&mut self, count: usize) -> Vec<ExchangeSpans> {
        // The last ones go with the memory that others have needed.
        let taken = match self.exchanges.len() > count {
            true => self.exchanges.drain(..count).collect(),
            false => std::mem::take(&mut self.exchanges),
        };
        self.text_bytes -= texts(&taken);
        self.counted.set(self.bytes());
        taken
    }
}

impl SpanQueue {
    /// An empty queue of a process that may use `memory_max` bytes.
    pub fn new(
        counters: Arc<Mutex<Arc<Counters>>>,
        budget: Arc<Budget>,
        memory_max: usize,
    ) -> Self {
        let waiting = Waiting {
            exchanges: Vec::new(),
            text_bytes: 0,
            counted: Counted::of(&budget, Account::Log, 0),
            in_hand: 0,
            is_closed: false,
            is_over: false,
            is_reported: false,
        };
        let bytes_max = memory_max / QUEUE_PART;
        let (waiting, changed) = (Mutex::new(waiting), Condvar::new());
        Self { waiting, changed, counters, bytes_max, budget }
    }

    /// Adds an exchange, or counts it as lost. The thread is woken for the first one and for a
    /// whole batch only: waking costs a system call.
    pub fn push(&self, exchange: ExchangeSpans) {
        let mut waiting = self.waiting.lock();
        let is_full =
            waiting.exchanges.len() >= QUEUE_MAX || waiting.bytes_with(&exchange) > self.bytes_max;
        if is_full || waiting.is_closed {
            let is_closed = waiting.is_closed;
            drop(waiting);
            self.count(0, exchange.count());
            if !is_closed {
                self.report("it does not keep up");
            }
            return;
        }
        waiting.text_bytes += exchange.text_bytes();
        waiting.exchanges.push(exchange);
        let bytes = waiting.bytes();
        waiting.counted.set(bytes);
        let is_awaited = matches!(waiting.exchanges.len(), 1 | BATCH_MAX);
        drop(waiting);
        if is_awaited {
            self.changed.notify_all();
        }
    }

    /// Says that spans are lost: once, until the collector has caught up. One that is down must not
    /// fill the log.
    pub fn report(&self, why: &str) {
        if !std::mem::replace(&mut self.waiting.lock().is_reported, true) {
            tracing::warn!("the collector of traces: {why}; spans are lost");
        }
    }

    /// Says that nothing is lost any more, if that was said and the collector has caught up.
    pub fn note_taken(&self) {
        let mut waiting = self.waiting.lock();
        let has_caught_up = waiting.exchanges.len() < BATCH_MAX;
        if has_caught_up && std::mem::take(&mut waiting.is_reported) {
            drop(waiting);
            tracing::info!("the collector of traces takes spans again");
        }
    }

    /// True if the next batch is whole already.
    pub fn has_batch(&self) -> bool {
        self.waiting.lock().exchanges.len() >= BATCH_MAX
    }

    /// The next batch. `None`: the queue is closed and empty.
    pub fn next(&self) -> Option<SpanBatch> {
        let mut waiting = self.waiting.lock();
        while waiting.exchanges.is_empty() {
            if waiting.is_closed {
                return None;
            }
            self.changed.wait(&mut waiting);
        }
        let end = Instant::now() + BATCH_WAIT;
        while waiting.exchanges.len() < BATCH_MAX && !waiting.is_closed {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.changed.wait_for(&mut waiting, left);
        }
        let exchanges = waiting.take(BATCH_MAX);
        waiting.in_hand = spans(&exchanges);
        let bytes = exchanges.capacity() * size_of::<ExchangeSpans>() + texts(&exchanges);
        Some(SpanBatch { exchanges, _counted: Counted::of(&self.budget, Account::Log, bytes) })
    }

    /// A batch as it is sent. It counts until its last clone is dropped.
    pub fn count_body(&self, body: Vec<u8>) -> Bytes {
        let mut counted = CountedBuffer::of(&self.budget, Account::Log);
        counted.edit(|empty| *empty = body);
        counted.into_bytes()
    }

    /// Counts what became of the batch that was taken last.
    pub fn settle(&self, refused: u64) {
        let mut waiting = self.waiting.lock();
        let all = std::mem::take(&mut waiting.in_hand);
        drop(waiting);
        let refused = refused.min(all);
        self.count(all - refused, refused);
    }

    fn count(&self, sent: u64, lost: u64) {
        let counters = self.counters.lock();
        counters.spans_sent.add(sent);
        counters.spans_lost.add(lost);
    }

    /// Waits before the batch is sent again. Returns whether it may be: not once the queue is
    /// closed.
    pub fn rest(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        let mut waiting = self.waiting.lock();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if waiting.is_closed || left.is_zero() {
                return !waiting.is_closed;
            }
            self.changed.wait_for(&mut waiting, left);
        }
    }

    /// Takes nothing more. What waits is still sent.
    pub fn close(&self) {
        self.waiting.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Says that the thread has ended. What it leaves is lost.
    pub fn end(&self) {
        self.lose_rest();
        self.waiting.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Takes nothing more. Drops what waits, and counts it and what is being sent as lost. Returns
    /// the number of spans.
    fn lose_rest(&self) -> u64 {
        let mut waiting = self.waiting.lock();
        waiting.is_closed = true;
        let lost = std::mem::take(&mut waiting.in_hand) + spans(&waiting.exchanges);
        drop(waiting.take(usize::MAX));
        drop(waiting);
        self.count(0, lost);
        lost
    }

    /// True if the thread has ended.
    pub fn is_over(&self) -> bool {
        self.waiting.lock().is_over
    }

    /// Waits for the end of the thread, at most so long. Returns the spans that are lost otherwise,
    /// and counts them.
    pub fn finish(&self, time: Duration) -> u64 {
        let end = Instant::now() + time;
        let mut waiting = self.waiting.lock();
        while !waiting.is_over {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(waiting);
                return self.lose_rest();
            }
            self.changed.wait_for(&mut waiting, left);
        }
        0
    }
}

fn spans(exchanges: &[ExchangeSpans]) -> u64 {
    exchanges.iter().map(ExchangeSpans::count).sum()
}

/// Bytes behind these exchanges.
fn texts(exchanges: &[ExchangeSpans]) -> usize {
    exchanges.iter().map(ExchangeSpans::text_bytes).sum()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use eyelet_telemetry::info::Outcome;

    use super::*;
    use crate::exporter::EndsQueue;

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
            is_quic: false,
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
        let counters = queue.counters.lock();
        (counters.spans_sent.value(), counters.spans_lost.value())
    }

    fn filled(count: usize) -> SpanQueue {
        let queue = empty(1 << 30);
        (0..count).for_each(|_| queue.push(exchange()));
        queue
    }

    fn empty(memory_max: usize) -> SpanQueue {
        let budget = Arc::new(Budget::new(memory_max, 0));
        SpanQueue::new(Arc::default(), budget, memory_max)
    }

    fn with_path(length: usize) -> ExchangeSpans {
        ExchangeSpans { path: "p".repeat(length).into(), ..exchange() }
    }

    /// Long paths take a small queue's bytes before its places.
    #[test]
    fn what_waits_takes_its_part_of_the_memory_at_most() {
        const MEMORY_MAX: usize = 16 << 20;
        for length in [500, 650, 1024] {
            let (queue, mut pushed) = (empty(MEMORY_MAX), 0);
            while counted(&queue).1 == 0 {
                queue.push(with_path(length));
                pushed += 1;
                assert!(queue.budget.used() >= length * (pushed - 1), "{length}: {pushed}");
                assert!(queue.budget.used() <= MEMORY_MAX / QUEUE_PART, "{length}: {pushed}");
            }
            assert!((BATCH_MAX + 1..QUEUE_MAX).contains(&pushed), "{length}: {pushed}");
            assert!(queue.next().is_some());
            queue.push(with_path(length));
            assert_eq!(counted(&queue).1, 1, "there is room again");
        }
    }

    #[test]
    fn a_batch_counts_until_it_is_sent() {
        let queue = empty(64 << 20);
        (0..BATCH_MAX + 1).for_each(|_| queue.push(with_path(100)));
        let before = queue.budget.used();
        let batch = queue.next();
        assert!(queue.budget.used() >= before);
        let body = queue.count_body(vec![0; 5_000]);
        assert!(queue.budget.used() >= before + 5_000);
        drop((batch, queue.next()));
        assert_eq!(queue.budget.used(), 5_000, "an empty queue holds nothing");
        drop(body.slice(..1));
        assert_eq!(queue.budget.used(), 5_000);
        drop(body);
        assert_eq!(queue.budget.used(), 0);
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let queue = filled(QUEUE_MAX + 3);
        assert_eq!(counted(&queue), (0, 3));
        assert_eq!(queue.next().map(|batch| batch.exchanges.len()), Some(BATCH_MAX));
        queue.settle(5);
        assert_eq!(counted(&queue), (BATCH_MAX as u64 - 5, 8));
        // There is room again.
        queue.push(exchange());
        assert_eq!(counted(&queue).1, 8);
    }

    #[test]
    fn the_log_says_once_that_spans_are_lost() {
        let queue = filled(QUEUE_MAX);
        assert!(!queue.waiting.lock().is_reported);
        queue.push(exchange());
        assert!(queue.waiting.lock().is_reported);
        // It takes a batch, and others wait.
        while queue.has_batch() {
            queue.note_taken();
            assert!(queue.waiting.lock().is_reported);
            assert!(queue.next().is_some());
        }
        queue.note_taken();
        assert!(!queue.waiting.lock().is_reported);
    }

    #[test]
    fn a_closed_queue_gives_what_it_has_and_waits_for_nothing() {
        let queue = filled(BATCH_MAX + 1);
        queue.close();
        queue.push(exchange());
        assert_eq!(counted(&queue), (0, 1));
        assert!(!queue.rest(Duration::from_hours(1)));
        for expected in [Some(BATCH_MAX), Some(1), None] {
            assert_eq!(queue.next().map(|batch| batch.exchanges.len()), expected);
            queue.settle(0);
        }
        queue.end();
        assert_eq!(queue.finish(Duration::from_hours(1)), 0);
        assert_eq!(counted(&queue), (BATCH_MAX as u64 + 1, 1));
    }

    #[test]
    fn what_a_thread_leaves_is_lost() {
        let queue = Arc::new(filled(BATCH_MAX + 2));
        let ends = EndsQueue(queue.clone());
        drop(queue.next());
        drop(ends);
        assert_eq!(counted(&queue), (0, BATCH_MAX as u64 + 2), "a batch in hand, and two");
        assert_eq!(queue.budget.used(), 0);
        queue.push(exchange());
        assert_eq!(counted(&queue), (0, BATCH_MAX as u64 + 3), "nothing more is taken");
        assert_eq!(queue.finish(Duration::from_hours(1)), 0, "nothing is counted twice");
        assert_eq!(counted(&queue), (0, BATCH_MAX as u64 + 3));
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
