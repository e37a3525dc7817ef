//! A drain: the process is to end, and so are its connections. `drain_pace.rs` says how many at a
//! time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::park;
use crate::park::rest;
use crate::worker::Worker;
use eyelet_memory::slab::Key;
use eyelet_table::drain_pace::{COUNT_TICKS, DrainPace};
use eyelet_table::{EndCause, Slot, SlotState};
use eyelet_telemetry::reason::Reason;

/// A connection that moved nothing for so long counts as idle.
const IDLE: Duration = Duration::from_millis(500);
/// Ticks in which the whole table can be visited (500 ms). A visit costs a cache miss, and busy
/// connections are served meanwhile.
const ROUND_TICKS_MIN: u32 = 5;
/// A drain's step with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// It is not to be ended now, or has ended.
    Not,
    /// It moves bytes, so it is visited again.
    Later,
    /// It ends.
    Now,
}

/// Begins to end the connections of a worker.
pub fn begin(worker: &Rc<Worker>) {
    let now = worker.table.borrow().now();
    worker.ending.drain.set(Some(DrainPace::new(now, worker.settings.get().drain_timeout)));
    tick(worker);
}

/// Ends the connections whose turn it is.
pub fn tick(worker: &Rc<Worker>) {
    let Some(mut drain) = worker.ending.drain.get() else { return };
    let now = worker.table.borrow().now();
    drain.follow(now);
    let slots = worker.table.borrow().slots();
    if drain.left == 0 && now >= drain.count_at {
        drain.left = count(worker, drain.is_last_part());
        if drain.left == 0 {
            drain.count_at = now.saturating_add(COUNT_TICKS);
        }
    }
    if drain.left == 0 {
        return worker.ending.drain.set(Some(drain));
    }
    let (mut ends, cursor) = (drain.ends(now), Cell::new(drain.cursor));
    for _ in 0..slots.div_ceil(ROUND_TICKS_MIN) {
        if ends == 0 {
            break;
        }
        let key = worker.table.borrow().next_keys(&cursor, 1).next();
        if let Some(key) = key {
            let mut turn = Turn::Not;
            // A fault costs one connection, not the drain.
            worker.guarded(key, || turn = visit(worker, key, drain.is_last_part()));
            drain.left = drain.left.saturating_sub(u32::from(turn != Turn::Not));
            ends -= u32::from(turn == Turn::Now);
        }
        if cursor.get() == 0 {
            // The round is over. Those that moved bytes have another turn in the next.
            drain.left = 0;
            break;
        }
    }
    drain.cursor = cursor.get();
    worker.ending.drain.set(Some(drain));
}

/// The connections that are to end in a round.
fn count(worker: &Rc<Worker>, pairs: bool) -> u32 {
    let mut table = worker.table.borrow_mut();
    let keys = table.keys();
    let ends = |slot: &mut Slot| match &mut slot.state {
        SlotState::Active { end, .. } => end.is_none(),
        SlotState::Parked { relay, .. } => pairs || !relay.is_pair(),
        SlotState::Lingering => false,
    };
    let counted = keys.into_iter().filter(|key| table.slot(*key).is_some_and(ends)).count();
    u32::try_from(counted).unwrap_or(u32::MAX)
}

/// Ends a connection if it is idle. An active one is told so, and ends after its exchange.
fn visit(worker: &Rc<Worker>, key: Key, pairs: bool) -> Turn {
    let mut table = worker.table.borrow_mut();
    let (info, relay) = match table.slot(key).map(|slot| &mut slot.state) {
        Some(SlotState::Parked { info, relay }) => (info, relay),
        Some(SlotState::Active { waits, end, .. }) => {
            let turn = if end.is_some() { Turn::Not } else { Turn::Now };
            *end = end.or(Some(EndCause::Drained));
            worker.run_queue.wake(waits, key);
            return turn;
        }
        Some(SlotState::Lingering) | None => return Turn::Not,
    };
    if relay.has_exchange() {
        // Its task is told so, as that of any other exchange.
        drop(table);
        park::close(worker, key, Reason::Drained(None));
        return Turn::Now;
    }
    let wait = rest::idle_for(worker, relay, info.is_settled());
    // Nobody can know what it is about to send, so it has most of the time to end by itself.
    if relay.is_pair() && !pairs {
        return Turn::Not;
    }
    let flow = relay.flow();
    let (may_end, must_rest) = match flow.is_websocket() {
        // A close frame ends it properly, however busy it is.
        true => (flow.is_between_frames(), !pairs),
        // An upstream that has an open request may answer until the last part.
        false => (pairs || !flow.is_asked(), true),
    };
    let is_quiet = flow.is_quiet();
    if !may_end || !is_quiet || must_rest && table.since_due_in(key, wait) < IDLE {
        return Turn::Later;
    }
    drop(table);
    park::close(worker, key, Reason::Drained(None));
    Turn::Now
}

/// Ends a piece of the connections that are left when the drain's time is over: at once, or in
/// their tasks.
pub fn cut(worker: &Rc<Worker>, keys: &[Key]) {
    for key in keys {
        worker.guarded(*key, || {
            park::close(worker, *key, Reason::Drained(None));
            worker.late(*key);
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::park::tests::{parked, terminated};
    use crate::testing::worker;
    use eyelet_relay::splice::Spliced;
    use eyelet_relay::{Flow, Relay};
    use eyelet_table::drain_pace::ENDS_PER_TICK_MIN;
    use eyelet_telemetry::info::Decided;

    /// Moves the clock to this tick.
    fn at(worker: &Rc<Worker>, now: u32) {
        loop {
            let due = worker.table.borrow_mut().next_due(now);
            let Some(key) = due else { break };
            worker.late(key);
        }
    }

    fn open(worker: &Worker) -> u32 {
        worker.table.borrow().keys().len() as u32
    }

    /// A worker whose connections have been idle for longer than a drain cares about, and which
    /// then drains.
    fn draining(length: Duration, make: impl Fn(&Rc<Worker>)) -> Rc<Worker> {
        let worker = worker();
        let mut settings = worker.settings.get();
        settings.drain_timeout = length;
        worker.settings.set(settings);
        make(&worker);
        at(&worker, BEGIN);
        begin(&worker);
        worker
    }

    const BEGIN: u32 = 100;

    /// Counts the connections that each of so many ticks ends.
    fn ends(worker: &Rc<Worker>, ticks: u32) -> Vec<u32> {
        let each = (1..=ticks).map(|n| {
            let before = open(worker);
            at(worker, BEGIN + n);
            tick(worker);
            before - open(worker)
        });
        each.collect()
    }

    #[test]
    fn many_idle_connections_end_evenly_over_three_quarters_of_the_time() {
        const MANY: u32 = 3_000;
        let worker = draining(Duration::from_secs(10), |worker| {
            (0..MANY).for_each(|_| _ = terminated(worker));
        });
        let first = MANY - open(&worker);
        let ends = ends(&worker, 75);
        let most = ends.iter().max().copied().unwrap();
        assert!((MANY / 75..=MANY / 75 + 10).contains(&most), "{first} {ends:?}");
        let half: u32 = ends.iter().take(37).sum();
        assert!((MANY * 2 / 5..=MANY * 3 / 5).contains(&half), "{half}: {ends:?}");
        assert_eq!(open(&worker), 0, "{ends:?}");
    }

    /// The table may be large, and most of it pairs that stay until the last part.
    #[test]
    fn nothing_to_end_is_not_counted_at_each_tick() {
        let worker = draining(Duration::from_hours(1), |worker| {
            let relay = Spliced::new(Flow::default(), &mut Decided::default());
            parked(worker, Relay::Splice(relay));
        });
        // It is idle for long enough when it is counted.
        terminated(&worker);
        let ends = ends(&worker, COUNT_TICKS + 2);
        assert_eq!(ends[..COUNT_TICKS as usize - 1].iter().sum::<u32>(), 0, "{ends:?}");
        assert_eq!(ends.iter().sum::<u32>(), 1, "{ends:?}");
    }

    #[test]
    fn few_idle_connections_do_not_wait() {
        let worker = draining(Duration::from_hours(1), |worker| {
            (0..30).for_each(|_| _ = terminated(worker));
        });
        let ends = ends(&worker, 10);
        assert!(ends.iter().all(|ended| *ended <= ENDS_PER_TICK_MIN), "{ends:?}");
        assert_eq!(open(&worker), 0, "{ends:?}");
    }

    #[test]
    fn spliced_pairs_end_in_the_last_part() {
        const PAIRS: u32 = 250;
        let worker = draining(Duration::from_secs(10), |worker| {
            for _ in 0..PAIRS {
                let relay = Spliced::new(Flow::default(), &mut Decided::default());
                parked(worker, Relay::Splice(relay));
            }
        });
        let ends = ends(&worker, 100);
        assert_eq!(ends[..74].iter().sum::<u32>(), 0, "{ends:?}");
        assert!(ends.iter().all(|ended| *ended <= PAIRS / 25 + 1), "{ends:?}");
        assert_eq!(open(&worker), 0, "{ends:?}");
    }
}
