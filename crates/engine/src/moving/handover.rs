//! A parked connection leaves its worker as a value, becomes bytes and sockets for another process,
//! and is parked again there.
//!
//! A connection has one reader and one writer at any time: two would seal different records with
//! one nonce. So [`detach`] takes it out of its worker whole, and the caller sees to it that only
//! one of its copies is attached: the one in the other process, or the one that never left.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use eyelet_handover::{DetachedClock, IMPORT_UNIX_MS, IdleState, has_place_for, own};
use eyelet_memory::budget::{Account, Counted};
use eyelet_memory::slab::Key;
use eyelet_relay::Relay;
use eyelet_relay::held::{self, HeldConnection};
use eyelet_telemetry::reason::{Reason, Shed};
use thiserror::Error;

use crate::moving::room::Room;
use crate::park::place::Placed;
use crate::park::{self, rest};
use crate::worker::Worker;
use eyelet_table::further::further_bytes;
use eyelet_table::held_places::held_bytes;
use eyelet_table::shared_streams::shared_bytes;
use eyelet_table::{KeptStreams, Removed, Slot, SlotState};

pub use eyelet_handover::{
    ImportError, MESSAGE_BYTES_MAX, VERSION, VERSION_GROUP, VERSION_HELD, VERSION_HELD_REQUEST,
    VERSION_PART, VERSION_RESTING, VERSION_USUAL, VERSIONS_READ,
};
pub(crate) use eyelet_handover::{
    VERSION_BYTES, decode_members, encode_members, is_group, take, to_bytes,
};

/// A connection outside of any worker, perhaps with room in one.
pub type Detached = eyelet_handover::MovedConnection<Room>;
/// The connections of a group, and its links.
pub type Members = eyelet_handover::GroupMembers<Room>;

/// Takes a parked connection with at most so many sockets out of its worker. The sockets are then
/// registered nowhere, and only the bytes that it holds are still counted.
///
/// # Errors
/// Why it stays. Nothing has changed for its peers then, and it may be tried again.
pub fn detach(worker: &Rc<Worker>, key: Key, sockets_max: usize) -> Result<Detached, Stays> {
    if worker.table.borrow().shared_count(key) > 0 {
        return Err(Stays::Shared);
    }
    let sockets = sockets(worker, key)?;
    if sockets > sockets_max {
        return Err(Stays::Sockets(sockets));
    }
    let rest = prepare(worker, key)?;
    take_out(worker, key, rest).map(|(detached, _)| detached).ok_or(Stays::NotParked)
}

/// Takes a connection that is prepared out of its worker, and its streams on links beside it.
pub(crate) fn take_out(
    worker: &Rc<Worker>,
    key: Key,
    rest: IdleState,
) -> Option<(Detached, Option<KeptStreams>)> {
    let (info, relay) = park::unpark(worker, key, SlotState::Lingering)?;
    let removed = worker.table.borrow_mut().remove_open(key)?;
    worker.uncount(&removed);
    worker.counters.handed_over.up();
    let Removed { slot: Slot { client, upstream, .. }, further, streams, holds } = removed;
    let further = further.into_iter().filter_map(|further| further.socket).map(Arc::new).collect();
    let mut detached = Detached {
        client: Arc::new(client),
        upstream: upstream.map(Arc::new),
        further,
        streams: Vec::new(),
        holds,
        info,
        relay,
        rest,
        clock: DetachedClock::Worker { left_unix_ms: worker.now_unix_ms() },
        counted: None,
        room: None,
    };
    count(worker, &mut detached);
    Some((detached, streams))
}

/// The reason why a connection does not leave its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Stays {
    /// It is active, lingers or has ended.
    #[error("it is not parked")]
    NotParked,
    /// It is in a group that no message takes.
    #[error("its group is too large")]
    Large,
    /// It holds more than a message takes, or it is about to end because its first flight is
    /// refused.
    #[error("no message takes what it holds")]
    Held,
    /// It shares an upstream connection, and leaves only with all that do, once all of them rest.
    #[error("it shares an upstream connection")]
    Shared,
    /// The other process does not read its version.
    #[error("the other process does not read it")]
    Version,
    /// The kernel does not give back what is in its pipe.
    #[error("its pipe cannot be read")]
    Pipe,
    /// It has so many sockets, more than may leave at once.
    #[error("it has {0} sockets")]
    Sockets(usize),
}

/// Has the budget of a worker's process count what a connection holds outside of its slot.
fn count(worker: &Worker, detached: &mut Detached) {
    let held = detached.held_bytes();
    detached.counted = Some(Counted::of(&worker.process.budget, Account::Relayed, held));
}

/// The number of sockets of a parked connection.
///
/// # Errors
/// It is not parked.
pub(crate) fn sockets(worker: &Worker, key: Key) -> Result<usize, Stays> {
    let mut table = worker.table.borrow_mut();
    let further = table.further_count(key);
    match table.slot(key) {
        Some(Slot { state: SlotState::Parked { .. }, upstream, .. }) => {
            Ok(1 + usize::from(upstream.is_some()) + further)
        }
        _ => Err(Stays::NotParked),
    }
}

/// Brings all that a parked connection holds into memory.
///
/// # Errors
/// Why it stays.
pub(crate) fn prepare(worker: &Rc<Worker>, key: Key) -> Result<IdleState, Stays> {
    let mut table = worker.table.borrow_mut();
    let (idle_left, beside) = (table.due_left(key), table.stream_bytes(key));
    let slot = table.slot(key).ok_or(Stays::NotParked)?;
    let SlotState::Parked { info, relay } = &mut slot.state else { return Err(Stays::NotParked) };
    // Looked at first: after "passed" each search meets these connections again.
    let is_known =
        info.decided(&worker.shared.borrow()).is_some_and(|decided| decided.requester.is_some());
    let version = Detached::version(relay, is_known);
    if worker.moving.reads_below.get().is_some_and(|below| version >= below) {
        return Err(Stays::Version);
    }
    if info.decided(&worker.shared.borrow()).is_some_and(|it| !has_place_for(it)) {
        return Err(Stays::Held);
    }
    // Its task, which is about to begin, has its verdict; or the other process takes fewer bytes.
    let stays = |held: &HeldConnection| held.is_over() || held.bytes().len() > held::HELD_BYTES_MAX;
    if matches!(relay, Relay::Held(held) if stays(held)) {
        return Err(Stays::Held);
    }
    let held = relay.held_bytes();
    let drained = relay.flow().drain_pipes(&mut worker.buffers.borrow_mut());
    worker.recount(info, relay, held, beside);
    let is_settled = info.is_settled();
    let wait = rest::idle_for(worker, relay, is_settled);
    drained.map_err(|_| Stays::Pipe)?;
    if !relay.flow().may_leave() {
        return Err(Stays::Held);
    }
    let idle = Some(table.since_due_in(key, wait));
    Ok(IdleState { is_settled, idle_left, idle })
}

/// Parks a connection in a worker: of the process that it was handed over to, or in the one that it
/// left where the handover failed. What it holds is tried at once. It must be called in the
/// worker's own `LocalSet`, because that may begin a task. Returns its key, unless it ended because
/// its sockets could not be used.
///
/// # Errors
/// The connection, where `connections_max`, the descriptors or the memory leave no room for it. One
/// that was not decoded, or that [`reserve`] has counted, is never refused.
#[allow(clippy::result_large_err)] // a box for each would cost more than the move
pub fn attach(worker: &Rc<Worker>, mut detached: Detached) -> Result<Option<Key>, Detached> {
    if detached.clock == DetachedClock::Import && !reserve(worker, &mut detached) {
        return Err(detached);
    }
    let key = place(worker, detached);
    if let Some(key) = key {
        park::register(worker, key);
        worker.guarded(key, || park::wake(worker, key));
    }
    Ok(key)
}

/// Has the limits of a worker's process count a decoded connection before it is attached, which is
/// then not refused. Returns whether there is room for it. Dropping it ends the reservation.
pub fn reserve(worker: &Worker, detached: &mut Detached) -> bool {
    if detached.room.is_none() {
        if !has_room(worker, detached) {
            return false;
        }
        let process = &worker.process;
        detached.room = Some(Room::take(process, 1, detached.sockets().count()));
        count(worker, detached);
    }
    true
}

/// Ends a connection that was refused: with its access line, and close_notify where TLS ends here.
pub fn close(worker: &Rc<Worker>, detached: Detached) {
    if let Some(key) = place(worker, detached) {
        worker.guarded(key, || park::close(worker, key, Reason::Shed(Shed::New)));
    }
}

/// Puts a connection into a slot, with a place for its streams on links. `None`: its sockets are
/// lost, because somebody else has them and no descriptor is free.
pub(crate) fn place(worker: &Rc<Worker>, detached: Detached) -> Option<Key> {
    let Detached { client, upstream, further, mut info, mut relay, .. } = detached;
    let Detached { clock, counted, room, rest, streams, mut holds, .. } = detached;
    if holds.is_empty() {
        // Those of another process have no places here.
        holds.resize_with(worker.held_on(&relay) as usize, || None);
    }
    let shared = u32::try_from(streams.len()).unwrap_or(u32::MAX);
    let owned = || {
        let further = further.into_iter().map(own).collect::<io::Result<_>>()?;
        let (client, upstream) = (own(client)?, upstream.map(own).transpose()?);
        Ok::<_, io::Error>(Placed { client, upstream, further, shared, holds })
    };
    let Ok(placed) = owned() else {
        tracing::error!("internal error: one connection is closed");
        return None;
    };
    match clock {
        DetachedClock::Import => {
            worker.counters.taken_over.up();
            info.follow_clock(IMPORT_UNIX_MS, worker.now_unix_ms());
            if let Some(program) = worker.program() {
                let upstreams = placed.upstream.iter().chain(&placed.further).map(AsFd::as_fd);
                program.taken_over(&mut info, &mut relay, &upstreams.collect::<Vec<_>>());
            }
        }
        // It has come back to the process that it was to leave.
        DetachedClock::Worker { .. } => worker.counters.handed_over.down(),
    }
    // From here on the slot counts it.
    drop(counted);
    let key = park::place::place(worker, placed, info, relay, rest);
    drop(room);
    Some(key)
}

/// True if the limits and the budget leave room for it.
fn has_room(worker: &Worker, detached: &mut Detached) -> bool {
    let settings = worker.settings.get();
    let process = &worker.process;
    let descriptors = detached.sockets().count();
    let holds = held_bytes(worker.held_on(&detached.relay) as usize);
    let streams = shared_bytes(detached.streams.len());
    let beside = further_bytes(detached.further.len()) + streams + holds;
    let bytes = worker.table.borrow().next_entry_bytes() + beside + detached.held_bytes();
    process.open.load(Relaxed) < settings.connections_max
        && process.descriptors.load(Relaxed) + descriptors <= settings.descriptors_max
        && !process.budget.is_over(bytes)
}

#[cfg(test)]
mod tests;
