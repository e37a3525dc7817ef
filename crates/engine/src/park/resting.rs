//! Exchanges that rest on parked connections. To end one where it is needs no memory; to go on
//! needs some.

use std::os::fd::AsFd;

use eyelet_memory::slab::Key;

use crate::ready::{CLIENT, READ};
use crate::socket;
use crate::worker::Worker;
use eyelet_memory::budget::{ACTIVE_BYTES, STREAM_BYTES, TASK_BYTES_MAX};
use eyelet_relay::{Flow, Relay};
use eyelet_table::{ConnectionTable, EndCause, SlotState};
use eyelet_telemetry::info::{End, Parked};
use eyelet_telemetry::reason::Reason;

/// Bytes of a stream that rests on beside served ones: its state, and its parked exchange. The
/// connection counts them as they are.
const RESTING_STREAM_BYTES: usize = 1 << 10;

/// The streams of a connection that rest with upstreams beside it: further sockets, and streams of
/// upstream connections that others share.
#[derive(Clone, Copy)]
pub(super) struct Streams {
    /// Those that may need a task once the connection wakes.
    going: usize,
    /// Those that rest on beside it.
    resting: usize,
}

/// The streams of a connection as it wakes. If upstreams alone have woken it, only theirs go on.
/// Its client may have said something to all, and a deadline or an end may be that of all.
pub(super) fn streams(table: &mut ConnectionTable, key: Key) -> Streams {
    let (all, called) = (table.further_count(key), table.further_ready(key).count());
    let is_by_client = table.slot(key).is_some_and(|slot| slot.ready.any(CLIENT, READ));
    let is_called = table.is_called(key);
    let going = if !is_called || is_by_client { all } else { called };
    // Shared ones have no place where they could rest on.
    Streams { going: going + table.shared_count(key), resting: all - going }
}

impl Streams {
    /// Bytes that what rests takes once it goes on, beside the task of its connection.
    pub(super) fn bytes(self, worker: &Worker, flow: &Flow) -> usize {
        let Some(resting) = flow.resting() else { return 0 };
        let upstream = worker.program().map_or(0, |program| program.upstream_bytes(resting));
        let Self { going, resting } = self;
        going * STREAM_BYTES + going.max(1) * upstream + resting * RESTING_STREAM_BYTES
    }
}

/// Bytes that the tasks of a parked connection take once it wakes, at most.
pub(super) fn wake_bytes(worker: &Worker, key: Key) -> usize {
    let table = &mut *worker.table.borrow_mut();
    let streams = streams(table, key);
    let resting = match table.slot(key).map(|slot| &mut slot.state) {
        Some(SlotState::Parked { relay, .. }) => streams.bytes(worker, relay.flow()),
        _ => 0,
    };
    ACTIVE_BYTES + TASK_BYTES_MAX + resting
}

/// True if there is room for the tasks of a parked connection. Nobody else ends for them.
pub(super) fn has_room_to_wake(worker: &Worker, key: Key) -> bool {
    !worker.process.budget.is_filling(wake_bytes(worker, key))
}

/// Returns why exchanges that rest end in their tasks, if they do: a drain gives a response time,
/// and an event stream by HTTP/1.1 ends between two events. There must be time and room for that.
pub(super) fn goes_on_until(worker: &Worker, key: Key, reason: &Reason) -> Option<EndCause> {
    let has_streams = match worker.table.borrow_mut().slot(key).map(|slot| &mut slot.state) {
        Some(SlotState::Parked { relay, .. }) if relay.has_exchange() => relay.flow().has_streams(),
        _ => return None,
    };
    let cause = match reason {
        Reason::Drained(_) => EndCause::Drained,
        // GOAWAY ends all streams.
        Reason::Ended if !has_streams => EndCause::Ended,
        _ => return None,
    };
    (!worker.is_cutting() && has_room_to_wake(worker, key)).then_some(cause)
}

/// Has the program write the access lines of the resting exchanges of a connection that ends.
pub(super) fn end_resting(worker: &Worker, info: &Parked, relay: &Relay, end: &End) {
    let resting = relay.served_flow().and_then(Flow::resting);
    if let (Some(resting), Some(program)) = (resting, worker.program()) {
        let info = info.info(&worker.shared.borrow());
        program.end_resting(info, resting, end);
    }
}

/// The program's last bytes for the client of a parked connection.
pub(super) fn last_bytes(worker: &Worker, flow: &Flow) -> Vec<u8> {
    let kept = flow.kept_by_program().zip(worker.program());
    kept.map(|(kept, program)| program.last_bytes(kept)).unwrap_or_default()
}

/// Sends the program's last bytes to a client without TLS. Returns whether there are any. Behind
/// bytes that it has not taken there are none.
pub(super) fn end_in_clear(worker: &Worker, flow: &Flow, client: &impl AsFd) -> bool {
    let bytes = if flow.is_quiet() { last_bytes(worker, flow) } else { Vec::new() };
    if !bytes.is_empty() {
        // If its receive window is full, the client sees only the FIN.
        let _ = socket::send(client, &bytes);
    }
    !bytes.is_empty()
}

/// Its last bytes for the upstreams of what rests, by their places.
pub(super) fn for_upstreams(worker: &Worker, flow: &Flow) -> Vec<(usize, Vec<u8>)> {
    let mut all = Vec::new();
    if let Some((resting, program)) = flow.resting().zip(worker.program()) {
        program.close_upstreams(resting, &mut |nth, bytes| {
            if !bytes.is_empty() {
                all.push((nth, bytes.to_vec()));
            }
        });
    }
    all
}
