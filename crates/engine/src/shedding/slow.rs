//! Ends connections whose peer leaves bytes in our memory while memory is short.

use std::rc::Rc;

use crate::park;
use crate::worker::Worker;
use eyelet_memory::slab::Key;
use eyelet_table::queues::Holder;
use eyelet_table::timer_wheel::TICK_MS;

/// The time that a peer may leave bytes in our memory while memory is short: as long as an HTTP
/// body may stall then.
const STALLED_TICKS: u32 = (3_000 / TICK_MS) as u32;
/// Holders looked at per tick: this many, or this part of the queue if that is more.
const HOLDERS_LOOKS: usize = 64;
const HOLDERS_PART: usize = 4;
/// Upper bound of that, so that a tick stays short: each costs a cache miss or two.
const HOLDERS_LOOKS_MAX: usize = 4096;

impl Worker {
    /// Queues a parked connection that starts to hold bytes for a peer.
    pub fn queue_holder(&self, key: Key, since: u32) {
        self.shedding.holders.borrow_mut().positions.push_back(Holder { key, since });
    }

    /// While memory is short, ends connections whose peer left bytes in our memory for
    /// [`STALLED_TICKS`], the slowest first. A peer that takes a little counts as slow, too: the
    /// time starts anew only when it has taken all.
    pub(super) fn give_up_slow(self: &Rc<Self>) {
        let now = self.table.borrow().now();
        let looks = self.shedding.holders.borrow().positions.len() / HOLDERS_PART;
        for _ in 0..looks.clamp(HOLDERS_LOOKS, HOLDERS_LOOKS_MAX) {
            let Some(first) = self.shedding.holders.borrow_mut().positions.pop_front() else {
                break;
            };
            match park::holds_since(self, first.key) {
                None => {}
                Some(since) if since > first.since => self.queue_holder(first.key, since),
                // All others in the queue have held theirs for a shorter time.
                Some(since) => {
                    let is_slow = now.saturating_sub(since) >= STALLED_TICKS;
                    if !is_slow || !self.process.budget.is_filling(0) {
                        self.shedding.holders.borrow_mut().positions.push_front(first);
                        break;
                    }
                    park::give_up_slow(self, first.key);
                }
            }
        }
    }
}
