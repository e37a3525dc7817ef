//! The queue of log batches from the workers to the thread that writes them. It is bounded, and
//! workers never wait for it.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use eyelet_memory::budget::CountedBuffer;

/// Most batches in the queue. A worker pushes a small one at most ten times a second.
const QUEUE_BATCHES_MAX: usize = 4096;

/// The sending end. The queue ends when the last one is dropped.
pub struct Fill(Arc<Queue>);

/// The receiving end.
#[derive(Clone)]
pub struct Drain(Arc<Queue>);

/// A batch of complete lines.
pub struct Batch {
    /// The lines as text.
    pub text: CountedBuffer,
    /// The number of lines.
    pub lines: u64,
}

struct Queue {
    /// Most bytes of lines that wait for a slow reader. Further lines are counted and lost, because
    /// a stalled log must not stall connections.
    bytes_max: usize,
    waiting: Mutex<Waiting>,
    /// Signals a new batch, or the end of the queue.
    changed: Condvar,
}

struct Waiting {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// Lines in these batches and in the one that is being written.
    lines: u64,
    /// Lines in the batch that is being written.
    lines_in_hand: u64,
    fills: usize,
    /// True if the receiver sleeps: waking costs a system call, so it is done only then.
    is_drain_asleep: bool,
}

/// An empty queue for at most `bytes_max` bytes.
pub fn queue(bytes_max: usize) -> (Fill, Drain) {
    let waiting = Waiting {
        batches: VecDeque::new(),
        bytes: 0,
        lines: 0,
        lines_in_hand: 0,
        fills: 1,
        is_drain_asleep: false,
    };
    let waiting = Mutex::new(waiting);
    let queue = Arc::new(Queue { bytes_max, waiting, changed: Condvar::new() });
    (Fill(queue.clone()), Drain(queue))
}

impl Queue {
    /// The woken thread needs the lock at once, so it is released first.
    fn unlock_and_wake(&self, mut waiting: MutexGuard<'_, Waiting>) {
        let is_drain_asleep = std::mem::take(&mut waiting.is_drain_asleep);
        drop(waiting);
        if is_drain_asleep {
            self.changed.notify_one();
        }
    }
}

impl Fill {
    /// Adds a batch. Returns whether there was room.
    pub fn push(&self, batch: Batch) -> bool {
        let mut waiting = self.0.waiting.lock();
        if waiting.bytes + batch.text.capacity() > self.0.bytes_max
            || waiting.batches.len() >= QUEUE_BATCHES_MAX
        {
            return false;
        }
        waiting.bytes += batch.text.capacity();
        waiting.lines += batch.lines;
        waiting.batches.push_back(batch);
        self.0.unlock_and_wake(waiting);
        true
    }

    /// The receiving end.
    pub fn drain(&self) -> Drain {
        Drain(self.0.clone())
    }
}

impl Clone for Fill {
    fn clone(&self) -> Self {
        self.0.waiting.lock().fills += 1;
        Self(self.0.clone())
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock();
        waiting.fills -= 1;
        self.0.unlock_and_wake(waiting);
    }
}

impl Drain {
    /// Lines that are not written: waiting ones, and those of the batch that was taken last.
    pub fn unwritten_lines(&self) -> u64 {
        self.0.waiting.lock().lines
    }
}

/// Waits for the next batch. `None` when the queue has ended and is empty. The batch before counts
/// as written.
impl Iterator for Drain {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let mut waiting = self.0.waiting.lock();
        waiting.lines -= std::mem::take(&mut waiting.lines_in_hand);
        loop {
            if let Some(batch) = waiting.batches.pop_front() {
                waiting.bytes -= batch.text.capacity();
                waiting.lines_in_hand = batch.lines;
                return Some(batch);
            }
            if waiting.fills == 0 {
                return None;
            }
            waiting.is_drain_asleep = true;
            self.0.changed.wait(&mut waiting);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyelet_memory::budget::{Account, Budget};

    const QUEUE_BYTES_MAX: usize = 1 << 20;

    /// Makes batches of two lines.
    fn batches() -> (Arc<Budget>, impl Fn(Vec<u8>) -> Batch) {
        let budget = Arc::new(Budget::new(64 << 20, 0));
        let of = budget.clone();
        (budget, move |bytes| {
            let mut text = CountedBuffer::of(&of, Account::Log);
            text.edit(|empty| *empty = bytes);
            Batch { text, lines: 2 }
        })
    }

    #[test]
    fn batches_come_in_order_and_the_queue_ends_with_its_last_filler() {
        let (fill, mut drain) = queue(QUEUE_BYTES_MAX);
        let (budget, batch) = batches();
        let other = fill.clone();
        assert!(fill.push(batch(vec![1])) && other.push(batch(vec![2, 3])));
        assert_eq!((drain.unwritten_lines(), budget.used()), (4, 3));
        drop(fill);
        let reader = std::thread::spawn(move || {
            let mut next = || drain.next().map(|batch| batch.text.to_vec());
            let seen = [next(), next(), next(), next()];
            (seen, drain.unwritten_lines())
        });
        // It may be asleep by now or not: both must work.
        std::thread::park_timeout(std::time::Duration::from_millis(20));
        assert!(other.push(batch(vec![4])));
        drop(other);
        let seen = reader.join().ok();
        let all = [Some(vec![1]), Some(vec![2, 3]), Some(vec![4]), None];
        assert_eq!((seen, budget.used()), (Some((all, 0)), 0));
    }

    #[test]
    fn batches_beyond_the_limits_are_refused_until_there_is_room() {
        let (fill, mut drain) = queue(QUEUE_BYTES_MAX);
        let (budget, batch) = batches();
        assert!(fill.push(batch(vec![0; QUEUE_BYTES_MAX])));
        assert!(!fill.push(batch(vec![0])));
        assert_eq!(drain.next().map(|batch| batch.text.len()), Some(QUEUE_BYTES_MAX));
        assert!((0..QUEUE_BATCHES_MAX).all(|_| fill.push(batch(vec![0]))));
        assert!(!fill.push(batch(vec![0])));
        assert!(drain.next().is_some() && fill.push(batch(vec![0])));
        assert_eq!(budget.used(), QUEUE_BATCHES_MAX);
        // The batch that was taken last counts as unwritten until the next one is asked for.
        assert_eq!(drain.unwritten_lines(), 2 * (QUEUE_BATCHES_MAX as u64 + 1));
    }
}
