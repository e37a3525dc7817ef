//! Making room when memory is short, in a fixed order: half-open connections by age, then new
//! ones of sources that hold more than their share, then other new ones. Parked ones stay, but
//! for `shed_idle`.
//! It must not know what bytes are counted as.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::budget::ACTIVE_BYTES;
use crate::lot::{Entry, Role};
use crate::park;
use crate::slab::Key;
use crate::story::{End, Outcome};
use crate::worker::Worker;

/// What a new connection needs until its handshake ends.
const NEW_BYTES: usize = size_of::<Entry>() + ACTIVE_BYTES;
/// Connections that are ended to make room for one new one: one is enough unless others took
/// memory meanwhile.
const SHED_A_NEW_ONE: usize = 4;
/// Idle connections looked up for shedding at a time.
const IDLE_MAX: usize = 1024;
/// A source holds more than its share when it has more than this many times what the others have
/// on average.
const SHARE: usize = 2;
/// The queue of half-open connections is tidied beyond this many that are not half-open any more.
const STALE_MAX: usize = 1024;

impl Worker {
    /// Whether a new connection from `source` can be taken in, after room was made for it.
    pub fn make_room(self: &Rc<Self>, source: IpAddr) -> bool {
        let budget = &self.edge.budget;
        if budget.is_tight(NEW_BYTES) && !self.is_weighed.replace(true) {
            // At once, and then once a tick: a burst is over before the next one.
            self.weigh_sources();
        }
        let greedy = self.greedy.borrow().contains(&source);
        let is_full = || {
            if greedy { budget.is_tight(NEW_BYTES) } else { budget.is_over(NEW_BYTES) }
        };
        for _ in 0..SHED_A_NEW_ONE {
            if !is_full() || !(self.shed_oldest() || self.shed_idle()) {
                break;
            }
        }
        !is_full()
    }

    /// Ends half-open connections until `bytes` more fit; whether they do.
    pub fn relieve(&self, bytes: usize) -> bool {
        while self.edge.budget.is_over(bytes) && self.shed_oldest() {}
        !self.edge.budget.is_over(bytes)
    }

    /// Ends the connection that is idle for longest, where the operator allows that.
    fn shed_idle(self: &Rc<Self>) -> bool {
        while let Some(key) = self.idle.borrow_mut().pop() {
            if park::shed(self, key) {
                return true;
            }
        }
        false
    }

    /// Has the oldest half-open connection end. `false`: there is none.
    fn shed_oldest(&self) -> bool {
        let mut half_open = self.half_open.borrow_mut();
        while let Some(key) = half_open.pop_front() {
            let mut lot = self.lot.borrow_mut();
            let Some(Entry { role: Role::Active { waker, late, shed, half_open: true }, .. }) =
                lot.entry(key)
            else {
                continue;
            };
            if *shed {
                continue;
            }
            // Its memory counts as free from now on: its task ends in the next turn.
            (*late, *shed) = (true, true);
            let waker = waker.take();
            self.edge.budget.give(ACTIVE_BYTES);
            drop(lot);
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
        self.idle.borrow_mut().clear();
        if !self.edge.budget.is_tight(NEW_BYTES) {
            return;
        }
        let mut lot = self.lot.borrow_mut();
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        let mut idle = Vec::new();
        for key in lot.keys() {
            let since = lot.due(key);
            if let Some(Entry { role: Role::Parked { story, relay }, .. }) = lot.entry(key) {
                *counts.entry(story.client_ip()).or_default() += 1;
                if self.edge.config.limits.shed_idle
                    && story.is_settled()
                    && relay.flow().is_quiet()
                {
                    idle.push((since, key));
                }
            }
        }
        // The nearest deadline is the longest idleness; it comes last, to be taken first.
        idle.sort_unstable_by_key(|(due, _)| std::cmp::Reverse(*due));
        let skip = idle.len().saturating_sub(IDLE_MAX);
        self.idle.borrow_mut().extend(idle.into_iter().skip(skip).map(|(_, key)| key));
        let (all, sources) = (counts.values().sum::<usize>(), counts.len());
        // One source alone has no share to exceed.
        let is_greedy = |n: usize| sources > 1 && n > SHARE * (all - n) / (sources - 1);
        greedy.extend(counts.into_iter().filter(|(_, n)| is_greedy(*n)).map(|(ip, _)| ip));
    }

    /// Drops keys of connections that are not half-open any more.
    fn tidy_half_open(&self) {
        let mut half_open = self.half_open.borrow_mut();
        if half_open.len() < STALE_MAX {
            return;
        }
        let mut lot = self.lot.borrow_mut();
        let is_active = |key: &Key| {
            lot.entry(*key)
                .is_some_and(|entry| matches!(entry.role, Role::Active { half_open: true, .. }))
        };
        half_open.retain(is_active);
        half_open.shrink_to_fit();
    }
}
