//! Batches of access lines on their way from the workers to the one thread that writes them:
//! bounded, and never waited for by a worker. It must not know what a line is.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use eyelet_memory::budget::CountedBuffer;

/// Batches in the queue; a worker hands over a small one ten times a second at most.
const QUEUE_BATCHES_MAX: usize = 4096;

/// The end that is filled. The queue ends when the last one is gone.
pub struct Fill(Arc<Queue>);

/// The end that is emptied.
#[derive(Clone)]
pub struct Drain(Arc<Queue>);

/// Whole lines.
pub struct Batch {
    /// The lines as text.
    pub text: CountedBuffer,
    /// How many there are.
    pub lines: u64,
}

struct Queue {
    /// Bytes of memory of lines that may wait for a slow reader. What comes beyond is counted and
    /// lost, because a stalled log must not stall connections.
    bytes_max: usize,
    waiting: Mutex<Waiting>,
    /// Something is waiting, or nothing will be any more.
    changed: Condvar,
}

struct Waiting {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// Lines of these batches and of the one that is being written.
    lines: u64,
    /// Those of them that are in the batch that is being written.
    lines_in_hand: u64,
    fills: usize,
    /// Nobody is to be woken who is awake: that is a system call.
    is_drain_asleep: bool,
}

/// A queue with nothing in it, for at most so many bytes.
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
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever is woken wants the lock at once: it must be free by then, or it is spun for.
    fn unlock_and_wake(&self, mut waiting: MutexGuard<'_, Waiting>) {
        let is_drain_asleep = std::mem::take(&mut waiting.is_drain_asleep);
        drop(waiting);
        if is_drain_asleep {
            self.changed.notify_one();
        }
    }
}

impl Fill {
    /// Whether there was room for the batch.
    pub fn push(&self, batch: Batch) -> bool {
        let mut waiting = self.0.lock();
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

    /// The other end.
    pub fn drain(&self) -> Drain {
        Drain(self.0.clone())
    }
}

impl Clone for Fill {
    fn clone(&self) -> Self {
        self.0.lock().fills += 1;
        Self(self.0.clone())
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.fills -= 1;
        self.0.unlock_and_wake(waiting);
    }
}

impl Drain {
    /// Lines that are not written: those that wait, and those of the batch that was taken last.
    pub fn unwritten_lines(&self) -> u64 {
        self.0.lock().lines
    }
}

/// Waits for the next batch; none when the queue has ended and is empty. The batch before it counts
/// as written.
impl Iterator for Drain {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let mut waiting = self.0.lock();
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
            waiting = self.0.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
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
        // It may be asleep by now, or not: either must do.
        std::thread::park_timeout(std::time::Duration::from_millis(20));
        assert!(other.push(batch(vec![4])));
        drop(other);
        let seen = reader.join().ok();
        let all = [Some(vec![1]), Some(vec![2, 3]), Some(vec![4]), None];
        assert_eq!((seen, budget.used()), (Some((all, 0)), 0));
    }

    #[test]
    fn what_is_beyond_the_bounds_is_told_and_room_comes_back() {
        let (fill, mut drain) = queue(QUEUE_BYTES_MAX);
        let (budget, batch) = batches();
        assert!(fill.push(batch(vec![0; QUEUE_BYTES_MAX])));
        assert!(!fill.push(batch(vec![0])));
        assert_eq!(drain.next().map(|batch| batch.text.len()), Some(QUEUE_BYTES_MAX));
        assert!((0..QUEUE_BATCHES_MAX).all(|_| fill.push(batch(vec![0]))));
        assert!(!fill.push(batch(vec![0])));
        assert!(drain.next().is_some() && fill.push(batch(vec![0])));
        assert_eq!(budget.used(), QUEUE_BATCHES_MAX);
        // The batch that was taken last is not written before the next one is asked for.
        assert_eq!(drain.unwritten_lines(), 2 * (QUEUE_BATCHES_MAX as u64 + 1));
    }
}
