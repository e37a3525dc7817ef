//! A group of more sockets than one message carries moves as several messages, its parts, which are
//! committed as one. crates/handover/README.md describes them.
//!
//! The first part only says how many sockets come, so that there is room for all of them before the
//! first one is here. The others bring the sockets, and the last one the message of the group. So
//! an unfinished group is nothing but sockets that are counted.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use eyelet_memory::budget::{Account, Budget, Counted};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::departure::{BATCH_DESCRIPTORS_MAX, GROUP_DESCRIPTORS_MAX, LeavingBatch};
use crate::moving::handover::{VERSION_BYTES, VERSION_PART, take, to_bytes};
use crate::moving::room::Room;
use crate::worker::Process;

/// Parked connections that another process has sent.
pub struct ConnectionBatch {
    /// Their states, which are secret.
    pub states: Zeroizing<Vec<u8>>,
    /// Their sockets, in the order of the states.
    pub sockets: Vec<OwnedFd>,
    /// The room of a group that came in parts, until its worker counts it. All of the states is its
    /// message.
    pub group: Option<Room>,
    /// Its states in the budget, until its worker counts what it has read of them.
    pub counted: Option<Counted>,
}

impl ConnectionBatch {
    /// One message's.
    pub fn new(states: Zeroizing<Vec<u8>>, sockets: Vec<OwnedFd>) -> Self {
        Self { states, sockets, group: None, counted: None }
    }

    /// Has a budget count its states.
    pub fn count(&mut self, budget: &Arc<Budget>) {
        let bytes = self.states.len();
        self.counted.get_or_insert_with(|| Counted::of(budget, Account::Relayed, bytes));
    }
}

/// Version 8. Its types never change.
#[derive(Deserialize, Serialize)]
struct PartV8<'a> {
    /// The group's number: the id of its first connection.
    group: u64,
    /// The place of this part.
    part: u16,
    /// Sockets of the whole group.
    sockets: u16,
    /// The message of the group in the last part, and nothing in the others.
    message: &'a [u8],
}

/// A part of a group.
pub struct GroupPart<'a> {
    /// Its message, which is wiped when it is dropped.
    pub body: Zeroizing<Vec<u8>>,
    /// The sockets that go with it.
    pub sockets: &'a [Arc<OwnedFd>],
}

/// Each link of a group has an index.
const _: () = assert!(GROUP_DESCRIPTORS_MAX <= u16::MAX as usize);

/// The parts of a group with this number, in their order.
pub fn parts(group: u64, batch: &LeavingBatch) -> impl Iterator<Item = GroupPart<'_>> {
    let all = batch.sockets.len();
    let last = all.div_ceil(BATCH_DESCRIPTORS_MAX);
    let sockets = std::iter::once(&[][..]).chain(batch.sockets.chunks(BATCH_DESCRIPTORS_MAX));
    sockets.enumerate().map(move |(part, sockets)| {
        let message = if part == last { &batch.states[..] } else { &[] };
        let sockets_all = u16::try_from(all).unwrap_or(u16::MAX);
        let part = PartV8 { group, part: part as u16, sockets: sockets_all, message };
        GroupPart { body: to_bytes(VERSION_PART, &part), sockets }
    })
}

/// A message that is not the next part of a group, by its fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PartFault {
    /// It is no part, or another version's.
    #[error("a part of a group is malformed")]
    Malformed,
    /// Another part was due.
    #[error("part {got} of a group came, and part {due} was due")]
    Order {
        /// The place that was due.
        due: u16,
        /// The place of what came.
        got: u16,
    },
    /// It is a part of another group, or says another number of sockets.
    #[error("a part of another group came")]
    Group,
    /// No group has so many sockets.
    #[error("a group has {0} sockets")]
    Size(u16),
    /// It lacks sockets, or has too many.
    #[error("a part of a group has {due} sockets, and {got} came with it")]
    Sockets {
        /// Sockets of this part.
        due: usize,
        /// Sockets that came.
        got: usize,
    },
    /// The message of a group comes with its last part, and not before.
    #[error("the message of a group came with another part")]
    Message,
    /// The descriptors leave no room for it.
    #[error("there are too few descriptors for a group of {0} sockets")]
    NoRoom(u16),
}

/// A group of which parts are missing. Dropping it closes the sockets that have come.
pub struct IncomingGroup {
    group: u64,
    /// The part that is due.
    due: u16,
    /// Sockets of the whole group.
    all: u16,
    sockets: Vec<OwnedFd>,
    room: Room,
}

/// A group after one more part.
pub enum GroupProgress {
    /// Others must follow.
    More(IncomingGroup),
    /// It is whole.
    Whole(ConnectionBatch),
}

/// True if a message is the first part of a group.
pub fn is_first(bytes: &[u8]) -> bool {
    read(bytes).is_ok_and(|part| part.part == 0)
}

fn read(bytes: &[u8]) -> Result<PartV8<'_>, PartFault> {
    let (version, rest) = bytes.split_first_chunk::<VERSION_BYTES>().ok_or(PartFault::Malformed)?;
    if u16::from_be_bytes(*version) != VERSION_PART {
        return Err(PartFault::Malformed);
    }
    let (part, behind) = take(rest).map_err(|_| PartFault::Malformed)?;
    if behind.is_empty() { Ok(part) } else { Err(PartFault::Malformed) }
}

impl IncomingGroup {
    /// A group whose first part has come. It takes the room for all of its sockets in a process.
    ///
    /// # Errors
    /// [`PartFault`]. With [`PartFault::NoRoom`] it may be offered again.
    pub fn begin(
        bytes: &[u8],
        sockets: &[OwnedFd],
        process: &Arc<Process>,
    ) -> Result<Self, PartFault> {
        let PartV8 { group, part, sockets: all, message } = read(bytes)?;
        if part != 0 {
            return Err(PartFault::Order { due: 0, got: part });
        }
        if !(1..=GROUP_DESCRIPTORS_MAX).contains(&usize::from(all)) {
            return Err(PartFault::Size(all));
        }
        if !message.is_empty() {
            return Err(PartFault::Message);
        }
        if !sockets.is_empty() {
            return Err(PartFault::Sockets { due: 0, got: sockets.len() });
        }
        let descriptors = process.descriptors.load(Relaxed) + usize::from(all);
        if descriptors > process.descriptors_max.load(Relaxed) {
            return Err(PartFault::NoRoom(all));
        }
        let room = Room::take(process, 0, all.into());
        Ok(Self { group, due: 1, all, sockets: Vec::with_capacity(all.into()), room })
    }

    /// Adds the next part.
    ///
    /// # Errors
    /// [`PartFault`]. All of the group is given up then.
    pub fn add(mut self, bytes: &[u8], sockets: Vec<OwnedFd>) -> Result<GroupProgress, PartFault> {
        let PartV8 { group, part, sockets: all, message } = read(bytes)?;
        if (group, all) != (self.group, self.all) {
            return Err(PartFault::Group);
        }
        if part != self.due {
            return Err(PartFault::Order { due: self.due, got: part });
        }
        let left = usize::from(all) - self.sockets.len();
        let due = left.min(BATCH_DESCRIPTORS_MAX);
        if sockets.len() != due {
            return Err(PartFault::Sockets { due, got: sockets.len() });
        }
        if message.is_empty() == (due == left) {
            return Err(PartFault::Message);
        }
        self.sockets.extend(sockets);
        if due < left {
            self.due += 1;
            return Ok(GroupProgress::More(self));
        }
        let states = Zeroizing::new(message.to_vec());
        let whole = ConnectionBatch::new(states, self.sockets);
        Ok(GroupProgress::Whole(ConnectionBatch { group: Some(self.room), ..whole }))
    }
}

#[cfg(test)]
mod tests;
