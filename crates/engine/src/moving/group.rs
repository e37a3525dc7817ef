//! A group: parked connections whose exchanges rest on the same upstream connections, and those. It
//! leaves its worker whole, or stays whole.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use eyelet_memory::budget::UPSTREAM_HTTP2_BYTES;
use eyelet_memory::slab::Key;
use eyelet_telemetry::reason::Reason;

use crate::departure::{BATCH_BYTES, BATCH_DESCRIPTORS_MAX};
use crate::links::{DetachedLink, DetachedLinks, Partners, StreamRef};
use crate::moving::handover::{
    self, Detached, ImportError, Members, Room, Stays, VERSION, decode_members, encode_members,
};
use crate::park;
use crate::table::SlotState;
use crate::worker::Worker;

/// A group outside of any worker. Dropping it closes its sockets.
pub struct DetachedGroup {
    /// Its connections.
    pub connections: Vec<Detached>,
    /// Its upstream connections.
    pub links: Vec<DetachedLink>,
    /// The room for them in the worker that is to place it, if that is settled.
    room: Option<Room>,
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

/// Takes a parked connection with streams on links out of its worker, with all connections that
/// have streams on those links, and so on, and the links. All of them have so many sockets at most.
///
/// # Errors
/// Why it stays. Nothing has changed for its peers then, and it may be tried again.
pub fn detach(worker: &Rc<Worker>, key: Key, sockets_max: usize) -> Result<DetachedGroup, Stays> {
    if worker.moving.reads_below.get().is_some_and(|below| VERSION >= below) {
        return Err(Stays::Version);
    }
    let found = find(worker, key)?;
    let mut sockets = found.links();
    for key in &found.keys {
        sockets += handover::sockets(worker, *key)?;
    }
    if sockets > BATCH_DESCRIPTORS_MAX {
        return Err(note_large(worker, sockets));
    }
    if sockets > sockets_max {
        return Err(Stays::Sockets(sockets));
    }
    let mut rests = Vec::with_capacity(found.keys.len());
    for key in &found.keys {
        rests.push(handover::prepare(worker, *key)?);
    }
    if held_bytes(worker, &found.keys) > BATCH_BYTES {
        return Err(Stays::Held);
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
/// that a search looks at a group once.
fn find(worker: &Worker, first: Key) -> Result<Partners, Stays> {
    let program = worker.program().ok_or(Stays::Shared)?;
    let mut table = worker.table.borrow_mut();
    let (mut found, mut at) = (Partners::of(first), 0);
    while let Some(key) = found.keys.get(at).copied() {
        let kept = table.kept_streams(key).ok_or(Stays::Shared)?;
        if !program.find_partners(kept, &mut found) || found.has_earlier() {
            return Err(Stays::Shared);
        }
        let sockets = found.keys.len() + found.links();
        if sockets > BATCH_DESCRIPTORS_MAX {
            return Err(note_large(worker, sockets));
        }
        at += 1;
    }
    Ok(found)
}

/// Says once that a group has more sockets than a message takes, or than the new process does.
fn note_large(worker: &Worker, sockets: usize) -> Stays {
    if !worker.moving.has_large_group.replace(true) {
        tracing::warn!(
            "connections that share upstream connections have more than {BATCH_DESCRIPTORS_MAX} \
             sockets together, which no message takes: they stay here"
        );
    }
    Stays::Sockets(sockets)
}

/// Bytes that these connections hold.
fn held_bytes(worker: &Worker, keys: &[Key]) -> usize {
    let mut table = worker.table.borrow_mut();
    let held = keys.iter().filter_map(|key| match &mut table.slot(*key)?.state {
        SlotState::Parked { relay, .. } => Some(relay.held_bytes()),
        _ => None,
    });
    held.sum()
}

/// Has the limits of a worker's process count a decoded group, or none of it. Returns whether there
/// is room for all of it.
pub fn reserve(worker: &Worker, group: &mut DetachedGroup) -> bool {
    if group.room.is_some() {
        return true;
    }
    let process = &worker.process;
    let is_each = group.connections.iter_mut().all(|one| handover::reserve(worker, one));
    let descriptors = process.descriptors.load(Relaxed) + group.links.len();
    let has_room = is_each
        && descriptors <= worker.settings.get().descriptors_max
        && !process.budget.is_over(group.links.len() * UPSTREAM_HTTP2_BYTES);
    match has_room {
        true => group.room = Some(Room::take(process, 0, group.links.len())),
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
            let mut table = worker.table.borrow_mut();
            table.take_streams(*key);
            table.give_streams(*key, count, kept);
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
