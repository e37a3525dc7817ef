//! A worker leaves, as in an upgrade: what is parked goes to the worker of another process, as
//! bytes and sockets.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::stepper::Stepper;
use crate::departure::LeavingBatch;
use crate::moving::batch::{self, Detachment, RefusalReason, SearchResult};
use crate::moving::handover::Detached;
use crate::moving::parcel::Parcel;
use crate::moving::parts::{ConnectionBatch, GroupProgress, IncomingGroup, PartFault, parts};
use crate::moving::staying::Staying;
use crate::shedding::retired;
use crate::worker::Worker;

/// Longer than any search.
const SEARCH_TIME: Duration = Duration::from_secs(600);

/// The end of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    pub connections: usize,
    /// The ones with an exchange or streams that rest.
    pub with_exchange: usize,
    /// Those in groups that share upstream connections.
    pub in_groups: usize,
    /// Those in a group that came in parts.
    pub in_parts: usize,
    /// Connections that came back.
    pub back: usize,
    /// The reason why the first of them was refused.
    pub why: Option<RefusalReason>,
}

/// A batch as another process gets it. One that is a group in parts has come through them. `None`:
/// the first part has found no room for it.
pub fn arriving(batch: &LeavingBatch, to: &Worker) -> Option<ConnectionBatch> {
    let copies = |sockets: &[Arc<OwnedFd>]| {
        sockets.iter().map(|socket| socket.try_clone().unwrap()).collect::<Vec<_>>()
    };
    let Some(group) = batch.group else {
        return Some(ConnectionBatch::new(batch.states.clone(), copies(&batch.sockets)));
    };
    let mut parts = parts(group, batch);
    let mut incoming = match IncomingGroup::begin(&parts.next().unwrap().body, &[], &to.process) {
        Err(PartFault::NoRoom(_)) => return None,
        begun => begun.unwrap(),
    };
    for part in parts {
        match incoming.add(&part.body, copies(part.sockets)).unwrap() {
            GroupProgress::More(more) => incoming = more,
            GroupProgress::Whole(whole) => return Some(whole),
        }
    }
    panic!("the last part has the message");
}

impl Stepper {
    /// Its process is being replaced: what is active rests as soon as it can.
    pub fn leave(&self) {
        self.worker.moving.is_leaving.set(true);
        self.worker.moving.is_awaited.set(true);
        batch::wake_active(&self.worker);
    }

    /// Has active connections rest as at other times.
    pub fn settle(&self) {
        self.worker.moving.is_awaited.set(false);
    }

    /// Has connections that have not moved begin nothing new.
    pub fn retire(&self) {
        retired::begin(&self.worker);
    }

    /// Moves what is parked, as far as one batch of so many descriptors takes it, into the worker
    /// of another process. With `fails` that process dies before the commit, and all comes back.
    pub fn move_parked(&self, to: &Rc<Worker>, descriptors_max: usize, fails: bool) -> Moved {
        let (end, slots) = (Instant::now() + SEARCH_TIME, self.worker.table.borrow().slots());
        let staying = Staying::new();
        let found = batch::next(&self.worker, descriptors_max, slots, end, &staying);
        let SearchResult::Batch(Detachment { parcels, batch, .. }) = found else {
            return Moved::default();
        };
        let (arriving, is_in_parts) = (arriving(&batch, to), batch.group.is_some());
        drop(batch);
        let Some(arriving) = arriving else {
            let back = batch::put_back(&self.worker, parcels).concat().len();
            return Moved { back, why: Some(RefusalReason::NoRoom), ..Moved::default() };
        };
        let (read, taken) = batch::admit(to, arriving, true).unwrap();
        if fails {
            drop(taken);
            let back = batch::put_back(&self.worker, parcels).concat().len();
            return Moved { back, ..Moved::default() };
        }
        let has_exchange = |detached: &&Detached| match detached.exchange() {
            Some(_) => true,
            None => detached.further_count() + detached.streams.len() > 0,
        };
        let all = taken.iter().flat_map(Parcel::connections);
        let with_exchange = all.filter(has_exchange).count();
        let in_groups = taken.iter().filter(|parcel| matches!(parcel, Parcel::Group(_)));
        let in_groups = in_groups.map(|group| group.connections().len()).sum();
        let sent = parcels.into_iter().enumerate();
        let back: Vec<_> = sent.filter(|(nth, _)| read.refused.contains(nth)).collect();
        batch::put_back(to, taken);
        let back = batch::put_back(&self.worker, back.into_iter().map(|(_, one)| one));
        let back = back.concat().len();
        let (connections, why) = (read.taken, read.why);
        let in_parts = if is_in_parts { connections } else { 0 };
        Moved { connections, with_exchange, in_groups, in_parts, back, why }
    }
}
