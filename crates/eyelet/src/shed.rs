//! Making room when memory is short, in a fixed order: half-open connections by age, then new
//! ones of sources that hold more than their share, then other new ones. Parked ones stay.
//! It must not know what bytes are counted as.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use crate::budget::{ACTIVE_BYTES, HANDSHAKE_BYTES};
use crate::lot::{Entry, Role};
use crate::slab::Key;
use crate::story::{End, Outcome};
use crate::worker::Worker;

/// What a new connection needs until its handshake ends.
const NEW_BYTES: usize = size_of::<Entry>() + ACTIVE_BYTES + HANDSHAKE_BYTES;
/// Half-open connections closed for one new one: more would let a flood of new ones close every
/// handshake that a slow but honest client is in.
const SHED_A_NEW_ONE: usize = 2;
/// How many times its fair part of the connections a source may have before it holds more than
/// its share.
const SHARE: usize = 2;
/// The queue of half-open connections is tidied beyond this many that are not half-open any more.
const STALE_MAX: usize = 1024;

impl Worker {
    /// Whether a new connection from `source` can be taken in, after room was made for it.
    pub fn make_room(&self, source: IpAddr) -> bool {
        if !self.edge.budget.is_over(NEW_BYTES) {
            return true;
        }
        for _ in 0..SHED_A_NEW_ONE {
            if !self.shed_oldest() {
                break;
            }
        }
        // What was shed gives its memory back when its task has run: until then one comes for one.
        !self.edge.budget.is_over(0) && !self.greedy.borrow().contains(&source)
    }

    /// Has the oldest half-open connection end. `false`: there is none.
    fn shed_oldest(&self) -> bool {
        let mut half_open = self.half_open.borrow_mut();
        while let Some(key) = half_open.pop_front() {
            let mut lot = self.lot.borrow_mut();
            let Some(Entry { role: Role::Active { waker, late, shed }, .. }) = lot.entry(key)
            else {
                continue;
            };
            (*late, *shed) = (true, true);
            let waker = waker.take();
            drop(lot);
            self.counters.shed.up();
            if let Some(waker) = waker {
                waker.wake();
            }
            return true;
        }
        false
    }

    /// Ends a new connection for which there is no room.
    pub(crate) fn shed_new(&self, listener: u16, client: OwnedFd, peer: SocketAddr) {
        let story = self.story(listener, peer);
        self.counters.shed.up();
        let reason = if self.greedy.borrow().contains(&peer.ip()) {
            "shed: memory_max, and this source holds more than its share"
        } else {
            "shed: memory_max"
        };
        self.tell(&story, &End { outcome: Outcome::Refused, reason: reason.into() });
        drop(client);
    }

    /// Finds the sources that hold more than their share, as long as memory is short: counted
    /// from the lot once a tick, so that nothing is kept for each connection in better times.
    pub(crate) fn weigh_sources(&self) {
        let mut greedy = self.greedy.borrow_mut();
        greedy.clear();
        self.tidy_half_open();
        if !self.edge.budget.is_over(NEW_BYTES) {
            return;
        }
        let mut lot = self.lot.borrow_mut();
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        let keys = lot.keys();
        let all = keys.len();
        for key in keys {
            if let Some(Entry { role: Role::Parked { story, .. }, .. }) = lot.entry(key) {
                *counts.entry(story.client_ip()).or_default() += 1;
            }
        }
        // One source alone has no share to exceed.
        if counts.len() > 1 {
            let share = SHARE * all / counts.len();
            greedy.extend(counts.into_iter().filter(|(_, n)| *n > share).map(|(ip, _)| ip));
        }
    }

    /// Drops keys of connections that are not half-open any more.
    fn tidy_half_open(&self) {
        let mut half_open = self.half_open.borrow_mut();
        if half_open.len() < STALE_MAX {
            return;
        }
        let mut lot = self.lot.borrow_mut();
        let is_active = |key: &Key| {
            lot.entry(*key).is_some_and(|entry| matches!(entry.role, Role::Active { .. }))
        };
        half_open.retain(is_active);
        half_open.shrink_to_fit();
    }
}
