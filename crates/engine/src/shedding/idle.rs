//! Finds and ends the parked connections that are idle longest.

use std::cmp::Reverse;
use std::rc::Rc;

use crate::park;
use crate::worker::Worker;
use eyelet_memory::slab::Key;
use eyelet_table::queues::{IdleKind, IdlePosition};
use eyelet_table::{Slot, SlotState};

/// Most connections that one search for the longest idle ones looks at. It costs as much as a
/// hundred small requests.
const IDLE_LOOKS: u32 = 1024;
/// Most such searches in a tick of 100 ms. Where few connections may end, a worker finds those of
/// 16,384 slots in a tick.
const LOOKS_A_TICK: u32 = 16;

impl Worker {
    /// Ends the parked connection that is idle longest: with a state of the program, which is
    /// HTTP/2, or of any kind if `any` is set. The connection of `spared` is not ended.
    pub(super) fn shed_idle(self: &Rc<Self>, spared: Option<Key>, any: bool) -> bool {
        let may_end = |idle: &mut IdlePosition| any || idle.kind < IdleKind::Plain;
        while !self.shedding.idle.borrow_mut().last_mut().is_some_and(may_end) {
            if self.shedding.idle_searches.get() == LOOKS_A_TICK {
                return false;
            }
            self.shedding.idle_searches.update(|looks| looks + 1);
            self.look_for_idle();
        }
        loop {
            let Some(idle) = self.shedding.idle.borrow_mut().pop_if(may_end) else { return false };
            let IdlePosition { key, due, kind } = idle;
            // A deadline that moved means that it was not idle.
            let is_idle = spared != Some(key) && self.table.borrow_mut().due(key) == due;
            if is_idle && park::shed(self, key, kind) {
                return true;
            }
        }
    }

    /// Finds the longest idle ones among the next [`IDLE_LOOKS`] connections.
    fn look_for_idle(&self) {
        let mut idle = self.shedding.idle.borrow_mut();
        let mut table = self.table.borrow_mut();
        let kind = IdleKind::Plain;
        let keys = table.next_keys(&self.shedding.idle_cursor, IDLE_LOOKS);
        // Those of an earlier search that nobody could use.
        idle.clear();
        idle.extend(keys.map(|key| IdlePosition { key, due: 0, kind }));
        idle.retain_mut(|position| {
            position.due = table.due(position.key);
            let Some(Slot { state: SlotState::Parked { info, relay }, .. }) =
                table.slot(position.key)
            else {
                return false;
            };
            position.kind = match (relay.flow().is_between_requests(), info.is_settled()) {
                (true, true) => IdleKind::StateSettled,
                (true, false) => IdleKind::StateNew,
                (false, true) => IdleKind::Plain,
                (false, false) => return false,
            };
            relay.flow().is_quiet() && !park::held::waits_for_verdicts(self, relay)
        });
        // The nearest deadline is the longest idleness. It is sorted last, because `pop_if` takes
        // the last.
        idle.sort_unstable_by_key(|position| Reverse((position.kind, position.due)));
    }
}
