//! Keeps the queues of load shedding short: stale positions are dropped.

use std::rc::Rc;

use crate::park;
use crate::worker::Worker;
use eyelet_table::queues::{STALE_MAX, ShedPosition, ShedQueue};
use eyelet_table::{ConnectionTable, Phase, Slot, SlotState};

impl Worker {
    /// The work of each tick. Its cost does not grow with the number of connections.
    pub fn tidy_queues(self: &Rc<Self>) {
        self.tidy(&self.shedding.large, Phase::Large);
        self.tidy(&self.shedding.half_open, Phase::HalfOpen);
        self.tidy(&self.shedding.unused, Phase::Idle);
        self.tidy_held(STALE_MAX);
        self.shedding.idle_searches.set(0);
        self.give_up_slow();
        // While the first one holds its bytes, those behind it are not looked at. Most of them may
        // be stale.
        let mut holders = self.shedding.holders.borrow_mut();
        holders.tidy(|holder| park::holds_since(self, holder.key).is_some());
    }

    /// Tidies a queue when it has doubled, so that each position is looked at twice at most.
    fn tidy(&self, queue: &ShedQueue, of: Phase) {
        if queue.positions.borrow().len() >= STALE_MAX.max(2 * queue.kept.get()) {
            self.drop_stale(queue, of);
        }
    }

    /// Drops the stale positions of held connections once there are twice as many as were left, and
    /// so many at least.
    fn tidy_held(&self, least: usize) {
        let queue = &self.shedding.held;
        let mut positions = queue.positions.borrow_mut();
        if positions.len() >= least.max(2 * queue.kept.get()) {
            let mut table = self.table.borrow_mut();
            positions.retain(|at| park::held::waits_at(self, &mut table, at));
            queue.kept.set(positions.len());
            let kept = positions.len();
            positions.shrink_to(2 * kept);
        }
    }

    /// Frees the memory of short queues that a burst has left: what it had to hold lies amid the
    /// memory of its handshakes, and would keep those pages. Long queues are tidied at each tick.
    pub(crate) fn release_queues(&self) {
        let queues = [
            (&self.shedding.large, Phase::Large),
            (&self.shedding.half_open, Phase::HalfOpen),
            (&self.shedding.unused, Phase::Idle),
        ];
        for (queue, of) in queues {
            if queue.positions.borrow().len() < STALE_MAX {
                self.drop_stale(queue, of);
                queue.positions.borrow_mut().shrink_to_fit();
            }
        }
        self.tidy_held(1);
        self.run_queue.ready.borrow_mut().shrink_to_fit();
    }

    /// Drops stale positions: of connections that ended or moved on, and all but the newest of
    /// each.
    fn drop_stale(&self, queue: &ShedQueue, of: Phase) {
        let (mut positions, mut table) = (queue.positions.borrow_mut(), self.table.borrow_mut());
        positions.retain(|at| is_queued(&mut table, at, of));
        // The memory of a flood's queue is not kept for ever.
        let kept = positions.len();
        queue.kept.set(kept);
        positions.shrink_to(2 * kept);
    }
}

/// True if a position is its connection's newest one, and the connection is still as far.
pub(super) fn is_queued(table: &mut ConnectionTable, at: &ShedPosition, of: Phase) -> bool {
    match table.slot(at.key) {
        Some(slot) if slot.position != at.position => false,
        Some(Slot { state: SlotState::Active { phase, .. }, .. }) => *phase == of,
        Some(slot) => of == Phase::HalfOpen && park::waits(slot),
        None => false,
    }
}
