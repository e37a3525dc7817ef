//! A worker whose process was replaced by another one: what cannot move goes on until it ends by
//! itself, and nothing keeps it for longer.

use std::rc::Rc;
use std::time::Duration;

use crate::moving::batch;
use crate::park;
use crate::park::rest;
use crate::worker::Worker;
use eyelet_memory::slab::Key;
use eyelet_table::{Slot, SlotState};
use eyelet_telemetry::reason::Reason;

/// Slots that are visited at a tick. A visit costs a cache miss: together less than a millisecond.
const TICK_SLOTS: usize = 4096;
/// The time that an HTTP connection may rest here between two requests. By then the search, at
/// 4,096 slots a tick, has offered 200,000 connections to the new process: one that still rests
/// cannot move.
const REST: Duration = Duration::from_secs(5);

/// Has HTTP/2 clients begin no more streams here.
pub fn begin(worker: &Rc<Worker>) {
    worker.ending.is_retired.set(true);
    worker.moving.is_awaited.set(false);
    // They send GOAWAY when they are resumed.
    batch::wake_active(worker);
}

/// Ends HTTP connections that rest between two requests and have not moved.
pub fn tick(worker: &Rc<Worker>) {
    let cursor = &worker.ending.retired_cursor;
    for _ in 0..TICK_SLOTS {
        let key = worker.table.borrow().next_keys(cursor, 1).next();
        if let Some(key) = key.filter(|key| is_resting(worker, *key)) {
            worker.guarded(key, || park::close(worker, key, Reason::Drained(None)));
        }
        if cursor.get() == 0 {
            break;
        }
    }
}

/// True if it is parked without an upstream for so long. One with an upstream, such as a pair, is
/// in use until its peers or `idle_timeout` end it.
fn is_resting(worker: &Rc<Worker>, key: Key) -> bool {
    let mut table = worker.table.borrow_mut();
    let Some(Slot { upstream: None, state, .. }) = table.slot(key) else { return false };
    let SlotState::Parked { info, relay } = state else { return false };
    // A held one goes on once it is decided, or when its time is over.
    if relay.is_pair()
        || park::held::is_held(relay)
        || relay.has_exchange()
        || !relay.flow().is_quiet()
    {
        return false;
    }
    let wait = rest::idle_for(worker, relay, info.is_settled());
    table.since_due_in(key, wait) >= REST
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::park::tests::{parked, terminated};
    use crate::testing::worker;
    use eyelet_relay::Flow;
    use eyelet_relay::Relay;
    use eyelet_relay::splice::Spliced;
    use eyelet_table::timer_wheel::TICK_MS;
    use eyelet_telemetry::info::Decided;

    #[test]
    fn what_rests_ends_after_a_while_and_a_pair_goes_on() {
        let worker = worker();
        let at_rest = terminated(&worker);
        let pair = Spliced::new(Flow::default(), &mut Decided::default());
        parked(&worker, Relay::Splice(pair));
        begin(&worker);
        let mut ticks = 0;
        while worker.table.borrow_mut().slot(at_rest).is_some() {
            ticks += 1;
            let due = worker.table.borrow_mut().next_due(ticks);
            if let Some(key) = due {
                worker.late(key);
            }
            tick(&worker);
            assert!(u64::from(ticks) * TICK_MS < 60_000, "it rests on");
        }
        assert!(u64::from(ticks) * TICK_MS >= REST.as_millis() as u64, "{ticks} ticks");
        assert_eq!(worker.table.borrow().keys().len(), 1, "the pair goes on");
    }
}
