//! A parked connection leaves its worker as a value, becomes bytes and sockets for another process,
//! and is parked again there.
//!
//! A connection has one reader and one writer at any time: two would seal different records with
//! one nonce. So [`detach`] takes it out of its worker whole, and the caller sees to it that only
//! one of its copies is attached: the one in the other process, or the one that never left.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use eyelet_memory::budget::{Account, Counted};
use eyelet_memory::slab::Key;

use crate::connection_table::{Slot, SlotState};
use crate::park;
use crate::relay::Relay;
use crate::worker::Worker;

mod detached;
mod format;

pub use detached::Detached;
pub use format::{ImportError, MESSAGE_BYTES_MAX};

use detached::{Clock, IMPORT_UNIX_MS};

/// Slots that one search for parked connections looks at, so that a worker with few of them among
/// many busy ones serves the others meanwhile.
const LOOKS_MAX: u32 = 4096;

/// Takes a parked connection out of its worker, which does not touch its sockets any more: they are
/// registered nowhere, and nothing of it is counted except the bytes that it holds.
///
/// `None` if it is active, lingers or has ended; if it is about to be ended because its first
/// flight is refused; or if the kernel does not give back what is in its pipe. It is then as it
/// was, and may be tried again.
pub fn detach(worker: &Rc<Worker>, key: Key) -> Option<Detached> {
    let (is_settled, idle_left) = prepare(worker, key)?;
    let (info, mut relay) = park::unpark(worker, key, SlotState::Lingering)?;
    let slot = worker.table.borrow_mut().remove_open(key)?;
    worker.uncount(&slot);
    let Slot { client, upstream, .. } = slot;
    let budget = &worker.process.budget;
    let counted = Some(Counted::of(budget, Account::Relayed, relay.held_bytes()));
    let clock = Clock::Worker { left_unix_ms: worker.now_unix_ms() };
    Some(Detached { client, upstream, info, relay, is_settled, idle_left, clock, counted })
}

/// Brings all that a parked connection holds into memory. Returns whether it is settled, and how
/// long it may still be idle. `None` if it cannot leave.
fn prepare(worker: &Rc<Worker>, key: Key) -> Option<(bool, Duration)> {
    let mut table = worker.table.borrow_mut();
    let idle_left = table.due_left(key);
    let SlotState::Parked { info, relay } = &mut table.slot(key)?.state else { return None };
    let held = relay.held_bytes();
    let drained = relay.flow().drain_pipes(&mut worker.buffers.borrow_mut());
    let holds = relay.held_bytes();
    if holds != held {
        worker.keeps(held, holds);
        worker.sources.update(info.client_ip(), held, holds);
    }
    (drained.is_ok() && relay.flow().may_leave()).then_some((info.is_settled(), idle_left))
}

/// Parks a connection in a worker: of the process that it was handed over to, or in the one that it
/// left where the handover failed. What it holds is tried at once. It must be called in the
/// worker's own `LocalSet`, because that may begin a task.
///
/// # Errors
/// The connection, where there is no room: at `connections_max`, out of descriptors or memory, or
/// because the kernel registers no more sockets. One that was not decoded comes back to where it
/// was counted a moment ago, and is only refused in the last case.
pub fn attach(worker: &Rc<Worker>, detached: Detached) -> Result<(), Detached> {
    if detached.clock == Clock::Import && !has_room(worker, &detached) {
        return Err(detached);
    }
    let Detached { client, upstream, mut info, relay, is_settled, idle_left, clock, counted } =
        detached;
    if clock == Clock::Import {
        info.follow_clock(IMPORT_UNIX_MS, worker.now_unix_ms());
    }
    drop(counted);
    let key = park::place(worker, (client, upstream), info, relay, (is_settled, idle_left));
    let registered = worker.table.borrow_mut().register(key);
    match registered {
        Ok(()) => {
            worker.guarded(key, || park::wake(worker, key));
            Ok(())
        }
        // It was parked a line ago and nothing has moved, so it can leave again.
        Err(error) => match detach(worker, key) {
            Some(detached) => {
                tracing::warn!("a connection cannot be registered: {error}");
                Err(detached)
            }
            None => Ok(()),
        },
    }
}

/// Whether the limits and the budget leave room for it.
fn has_room(worker: &Worker, detached: &Detached) -> bool {
    let settings = worker.settings.get();
    let process = &worker.process;
    let descriptors = detached.sockets().count();
    let held = match &detached.relay {
        Relay::Splice(spliced) => spliced.flow.held_bytes() + spliced.name_bytes(),
        Relay::Terminate(terminated) => terminated.flow.held_bytes(),
    };
    let bytes = worker.table.borrow().next_entry_bytes() + held;
    process.open.load(Relaxed) < settings.connections_max
        && process.descriptors.load(Relaxed) + descriptors <= settings.descriptors_max
        && !process.budget.is_over(bytes)
}

/// The parked connections after `cursor`, in the table's order, at most `count` of them. The
/// search goes on there the next time, and begins anew behind the table's end. It may find none
/// although there are some, because it looks at some thousand slots at most.
pub fn next_parked(worker: &Worker, cursor: &Cell<u32>, count: usize) -> Vec<Key> {
    let mut table = worker.table.borrow_mut();
    let mut keys = Vec::new();
    for _ in 0..table.slots().min(LOOKS_MAX) {
        if keys.len() == count {
            break;
        }
        let Some(key) = table.next_keys(cursor, 1).next() else { continue };
        if table.slot(key).is_some_and(|slot| matches!(slot.state, SlotState::Parked { .. })) {
            keys.push(key);
        }
    }
    keys
}

#[cfg(test)]
mod tests;
