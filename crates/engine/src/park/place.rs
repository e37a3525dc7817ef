//! Parks a connection that was parked elsewhere: in another worker, or in another process.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use eyelet_handover::IdleState;
use eyelet_hold::HeldStreams;
use eyelet_memory::slab::Key;
use eyelet_relay::Relay;
use eyelet_sys::memory::blocks::long_any;
use eyelet_table::further::further_bytes;
use eyelet_table::held_places::held_bytes;
use eyelet_table::shared_streams::shared_bytes;
use eyelet_table::{SlotState, queues};
use eyelet_telemetry::info::ConnectionInfo;

use super::held;
use super::rest::idle_for;
use crate::worker::Worker;

/// The sockets of a connection that was parked elsewhere, and its streams that have none.
pub(crate) struct Placed {
    pub(crate) client: OwnedFd,
    pub(crate) upstream: Option<OwnedFd>,
    pub(crate) further: Vec<OwnedFd>,
    /// The number of its shared streams.
    pub(crate) shared: u32,
    /// The places of its held streams.
    pub(crate) holds: HeldStreams,
}

/// Parks a connection that was parked elsewhere. The caller registers and wakes it, and puts its
/// shared streams in their place.
pub(crate) fn place(
    worker: &Rc<Worker>,
    Placed { client, upstream, further, shared, holds }: Placed,
    info: ConnectionInfo,
    mut relay: Relay,
    rest: IdleState,
) -> Key {
    held::ask_again(worker, &info, &mut relay);
    let streams_bytes = shared_bytes(shared as usize) + held_bytes(holds.len());
    let beside = further_bytes(further.len()) + streams_bytes;
    relay.flow().set_has_streams(beside > 0);
    let is_held = held::waits_for_verdicts(worker, &relay);
    let mut info = info.park(&mut worker.shared.borrow_mut());
    if rest.is_settled {
        info.settle();
    }
    worker.process.open.fetch_add(1, Relaxed);
    worker.uses_descriptors(1 + isize::from(upstream.is_some()) + further.len().cast_signed());
    worker.counters.connections.up();
    worker.count_parked(&info, &mut relay, beside);
    let mut table = worker.table.borrow_mut();
    let wait = idle_for(worker, &mut relay, rest.is_settled);
    let state = SlotState::Parked { info, relay };
    let key = table.insert_parked(client, (upstream, further), state);
    if let Some(slot) = table.slot(key).filter(|_| is_held) {
        queues::queue(&worker.shedding.held, key, &mut slot.position);
    }
    if shared > 0 {
        let _ = table.give_streams(key, shared, long_any(()));
    }
    table.give_holds(key, holds);
    table.due_in(key, rest.left(wait, key));
    key
}
