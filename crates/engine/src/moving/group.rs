//! A group: parked connections whose exchanges rest on the same upstream connections, and those. It
//! leaves its worker whole, or stays whole.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use eyelet_memory::budget::{Account, Counted, UPSTREAM_HTTP2_BYTES, UPSTREAM_TLS_BYTES};
use eyelet_memory::slab::Key;
use eyelet_telemetry::reason::Reason;

use crate::departure::GROUP_DESCRIPTORS_MAX;
use crate::links::{DetachedLink, DetachedLinks, Partners, StreamRef};
use crate::moving::handover::{
    self, Detached, ImportError, MESSAGE_BYTES_MAX, Members, Stays, VERSION_GROUP, VERSION_PART,
    decode_members, encode_members,
};
use crate::moving::room::Room;
use crate::park;
use crate::worker::Worker;
use eyelet_relay::export::STATE_BYTES_MAX;
use eyelet_table::SlotState;

/// Bytes of memory that a link counts in its worker, if it is by TLS.
const LINK_BYTES: usize = UPSTREAM_HTTP2_BYTES + UPSTREAM_TLS_BYTES;

/// A group outside of any worker. Dropping it closes its sockets.
pub struct DetachedGroup {
    /// Its connections.
    pub connections: Vec<Detached>,
    /// Its upstream connections.
    pub links: Vec<DetachedLink>,
    /// The room for them in the worker that is to place it, if that is settled.
    room: Option<(Room, Counted)>,
}

impl From<Members> for DetachedGroup {
    fn from((connections, links): Members) -> Self {
        Self { connections, links, room: None }
    }
}

impl DetachedGroup {
    /// Its message.
    pub fn encode(&self) -> zeroize::Zeroizing<Vec<u8>> {
        encode_members(&self.connections, &self.links)
    }

    /// The group of a message and its sockets.
    ///
    /// # Errors
    /// [`ImportError`]. The sockets are then closed.
    pub fn decode(bytes: &[u8], sockets: Vec<std::os::fd::OwnedFd>) -> Result<Self, ImportError> {
        decode_members(bytes, sockets).map(Self::from)
    }

    /// Checks that the program reads its links.
    ///
    /// # Errors
    /// It does not, or their streams are not those of the connections.
    pub fn check_links(&self, worker: &Worker) -> Result<(), ImportError> {
        let kept = self.connections.iter().map(|one| Some((one.kept()?, &one.streams[..])));
        let kept: Option<Vec<_>> = kept.collect();
        let is_read = kept.zip(worker.program());
        let is_read =
            is_read.is_some_and(|(kept, program)| program.reads_links(&self.links, &kept));
        is_read.then_some(()).ok_or(ImportError::Link)
    }
}

/// Sockets that a connection or a group may have to be in a batch.
#[derive(Clone, Copy)]
pub struct SocketRoom {
    /// A connection.
    pub one: usize,
    /// A group.
    pub group: usize,
    /// A group, were the batch empty. One with more stays.
    pub group_max: usize,
}

impl SocketRoom {
    /// The room in a batch of so many, of which so many are taken. A group that is alone may have
    /// more: it leaves in parts, if the other process reads those.
    pub fn of(worker: &Worker, descriptors_max: usize, taken: usize) -> Self {
        let left = descriptors_max.saturating_sub(taken);
        let reads_parts = worker.moving.reads_below.get().is_none_or(|below| VERSION_PART < below);
        let group_max = if reads_parts { GROUP_DESCRIPTORS_MAX } else { descriptors_max };
        Self { one: left, group: if taken == 0 { group_max } else { left }, group_max }
    }
}

/// Takes a parked connection with streams on links out of its worker, with all connections that
/// have streams on those links, and so on, and the links.
///
/// # Errors
/// Why it stays. Nothing has changed for its peers then, and it may be tried again.
pub fn detach(worker: &Rc<Worker>, key: Key, room: SocketRoom) -> Result<DetachedGroup, Stays> {
    if worker.moving.reads_below.get().is_some_and(|below| VERSION_GROUP >= below) {
        return Err(Stays::Version);
    }
    let found = find(worker, key, room)?;
    let mut sockets = found.links();
    for key in &found.keys {
        sockets += handover::sockets(worker, *key)?;
    }
    has_room_for(worker, &found, sockets, room)?;
    if message_bytes(worker, &found) > MESSAGE_BYTES_MAX {
        return Err(note_large(worker, &found, || String::from("no message takes their states")));
    }
    let mut rests = Vec::with_capacity(found.keys.len());
    for key in &found.keys {
        rests.push(handover::prepare(worker, *key)?);
    }
    let (count, taken) = (found.keys.len(), found.keys.iter().zip(rests));
    let taken = taken.filter_map(|(key, rest)| handover::take_out(worker, *key, rest));
    let (connections, kept): (Vec<_>, Vec<_>) = taken.unzip();
    let links =
        worker.program().and_then(|it| it.detach_links(kept.into_iter().flatten().collect()));
    match links {
        Some(DetachedLinks { links, streams })
            if connections.len() == count && streams.len() == count =>
        {
            let mut group = DetachedGroup::from((connections, links));
            for (connection, streams) in group.connections.iter_mut().zip(streams) {
                connection.streams = streams;
            }
            Ok(group)
        }
        _ => {
            tracing::error!("internal error: a shared upstream connection is lost");
            connections.into_iter().for_each(|connection| handover::close(worker, connection));
            Err(Stays::NotParked)
        }
    }
}

/// The connections of a group and its links. Only its connection with the first slot begins it, so
/// that a search looks at a group once, and at a large one once in a while.
fn find(worker: &Worker, first: Key, room: SocketRoom) -> Result<Partners, Stays> {
    let program = worker.program().ok_or(Stays::Shared)?;
    let slots = worker.table.borrow().slots();
    worker.moving.large.borrow_mut().forget_old(Instant::now(), slots as usize);
    let (mut found, mut at) = (Partners::of(first), 0);
    while let Some(key) = found.keys.get(at).copied() {
        let mut large = worker.moving.large.borrow_mut();
        if large.has(key) {
            large.add(&found.keys, String::new);
            return Err(Stays::Large);
        }
        drop(large);
        let table = worker.table.borrow();
        let kept = table.kept_streams(key).ok_or(Stays::Shared)?;
        if !program.find_partners(kept, &mut found) || found.has_earlier() {
            return Err(Stays::Shared);
        }
        has_room_for(worker, &found, found.keys.len() + found.links(), room)?;
        at += 1;
    }
    Ok(found)
}

/// Checks that so many sockets of a group may leave, as far as it was found.
fn has_room_for(
    worker: &Worker,
    found: &Partners,
    sockets: usize,
    room: SocketRoom,
) -> Result<(), Stays> {
    if sockets > room.group_max {
        let max = room.group_max;
        return Err(note_large(worker, found, || format!("together they have over {max} sockets")));
    }
    if sockets <= room.group { Ok(()) } else { Err(Stays::Sockets(sockets)) }
}

/// Notes that a group stays: a search does not walk through it again for a while.
fn note_large(worker: &Worker, found: &Partners, why: impl FnOnce() -> String) -> Stays {
    worker.moving.large.borrow_mut().add(&found.keys, why);
    Stays::Large
}

/// Bytes of a connection's message beside what it holds, a state and a certificate: names, numbers
/// and the session, which are a few hundred.
const INFO_BYTES: usize = 1 << 10;

/// More bytes than the message of a group has, unless its names are unusually long: states are
/// counted as they are written.
fn message_bytes(worker: &Worker, found: &Partners) -> usize {
    let mut table = worker.table.borrow_mut();
    let held = found.keys.iter().filter_map(|key| match &mut table.slot(*key)?.state {
        SlotState::Parked { info, relay } => {
            let certificate = info.decided(&worker.shared.borrow()).map_or(0, |decided| {
                decided.client_certificate.as_ref().map_or(0, |leaf| leaf.len())
            });
            let held = relay.held_bytes();
            let flow = relay.flow();
            let state = flow.state();
            let packed = state.map_or(0, |_| flow.program_bytes());
            let state = state.map_or(0, |state| state.whole_len());
            Some(INFO_BYTES + held.saturating_sub(packed) + state + certificate)
        }
        _ => None,
    });
    held.sum::<usize>() + found.links() * STATE_BYTES_MAX
}

/// Has the limits of a worker's process count a decoded group, or none of it. Returns whether there
/// is room for all of it.
pub fn reserve(worker: &Worker, group: &mut DetachedGroup) -> bool {
    if group.room.is_some() {
        return true;
    }
    let process = &worker.process;
    let bytes = group.links.len() * LINK_BYTES;
    let is_each = group.connections.iter_mut().all(|one| handover::reserve(worker, one));
    let descriptors = process.descriptors.load(Relaxed) + group.links.len();
    let has_room = is_each
        && descriptors <= worker.settings.get().descriptors_max
        && !process.budget.is_over(bytes);
    match has_room {
        true => {
            let counted = Counted::of(&process.budget, Account::Relayed, bytes);
            group.room = Some((Room::take(process, 0, group.links.len()), counted));
        }
        false => group.connections.iter_mut().for_each(Detached::give_room),
    }
    has_room
}

/// Parks a group in a worker, in its own `LocalSet`. Returns the keys of its connections.
///
/// # Errors
/// The group, where there is no room for all of it.
#[allow(clippy::result_large_err)] // as in handover.rs
pub fn attach(worker: &Rc<Worker>, mut group: DetachedGroup) -> Result<Vec<Key>, DetachedGroup> {
    let is_imported = group.connections.iter().any(Detached::is_imported);
    if is_imported && !reserve(worker, &mut group) {
        return Err(group);
    }
    let DetachedGroup { connections, links, room } = group;
    let placed = place(worker, connections);
    let kept = worker.program().map(|program| program.attach_links(links, &placed));
    drop(room);
    let mut kept = kept.unwrap_or_default().into_iter();
    for (key, streams) in &placed {
        let count = u32::try_from(streams.len()).unwrap_or(u32::MAX);
        if let Some(kept) = kept.next().flatten() {
            let over = worker.table.borrow_mut().give_streams(*key, count, kept);
            drop(over);
        } else {
            let reason = Reason::Internal("an upstream connection that cannot go on");
            worker.guarded(*key, || park::close(worker, *key, reason));
        }
    }
    let keys: Vec<Key> = placed.into_iter().map(|(key, _)| key).collect();
    for key in &keys {
        park::register(worker, *key);
        worker.guarded(*key, || park::wake(worker, *key));
    }
    Ok(keys)
}

/// Ends a group that was refused.
pub fn close(worker: &Rc<Worker>, group: DetachedGroup) {
    group.connections.into_iter().for_each(|connection| handover::close(worker, connection));
}

/// Puts connections into slots.
fn place(worker: &Rc<Worker>, connections: Vec<Detached>) -> Vec<(Key, Vec<StreamRef>)> {
    let placed = connections.into_iter().filter_map(|connection| {
        let streams = connection.streams.clone();
        Some((handover::place(worker, connection)?, streams))
    });
    placed.collect()
}

#[cfg(test)]
mod tests;
