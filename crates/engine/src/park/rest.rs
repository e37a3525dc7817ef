//! The time that a parked connection may rest, and has rested. Both go along to another worker,
//! other settings or a task.

use std::time::Duration;

use eyelet_memory::slab::Key;
use eyelet_telemetry::info::Parked;

use crate::worker::{Handle, Settings, Worker};
use eyelet_relay::{Flow, Relay};
use eyelet_table::{ConnectionTable, SlotState};

/// A connection counts as settled once it has been parked for so long. Most connections of a busy
/// edge are over by then, and never pay for what only long ones need, such as keepalive.
pub(crate) const SETTLE: Duration = Duration::from_secs(2);

/// Time until an idle parked connection is due: to settle, or to be closed.
pub(crate) fn idle_for(worker: &Worker, relay: &mut Relay, settled: bool) -> Duration {
    wait_for((worker, &worker.settings.get()), relay, settled)
}

/// Returns that time by these settings.
pub(crate) fn wait_for(
    (worker, settings): (&Worker, &Settings),
    relay: &mut Relay,
    settled: bool,
) -> Duration {
    if let Relay::Held(held) = relay {
        return held.wait();
    }
    if let Some(resting) = relay.flow().resting() {
        // It never settles: each wake of it costs a task.
        let program = worker.program();
        return program
            .map_or(settings.body_timeout, |program| program.rest_wait(resting, settings));
    }
    let idle_timeout = idle_timeout(settings, relay.flow());
    if settled { idle_timeout } else { idle_timeout.min(SETTLE) }
}

/// Returns how long a parked connection on which nothing rests may move no byte.
pub(crate) fn idle_timeout(settings: &Settings, flow: &Flow) -> Duration {
    match flow.is_between_requests() {
        true => settings.state_idle_timeout,
        false => settings.idle_timeout,
    }
}

/// The tick since which a parked connection is idle.
pub(crate) fn idle_since(worker: &Worker, key: Key) -> Option<u32> {
    let mut table = worker.table.borrow_mut();
    let SlotState::Parked { info, relay } = &mut table.slot(key)?.state else { return None };
    let wait = idle_for(worker, relay, info.is_settled());
    let idle = table.since_due_in(key, wait);
    Some(table.tick_before(idle))
}

/// Returns the time for which a connection that is being parked may move no byte. The wait of one
/// that was parked before, and was not used since, does not begin again.
pub(crate) fn wait_of(
    active: &Handle,
    (info, relay): (&mut Parked, &mut Relay),
    table: &ConnectionTable,
) -> Duration {
    match active.idle_since.get().filter(|_| active.is_unused.get()) {
        None => idle_for(&active.worker, relay, false),
        Some(since) => {
            info.settle();
            idle_for(&active.worker, relay, true).saturating_sub(table.since_tick(since.get()))
        }
    }
}
