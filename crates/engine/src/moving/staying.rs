//! Connections that the other process has refused. Each is offered again once it has moved a byte,
//! or after a while.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use eyelet_memory::slab::Key;

use crate::table::ConnectionTable;

/// Connections of a worker that the other process may refuse at a time, about 100 KiB of keys. It
/// is full then, or reads little of what this one writes, so nothing more is offered for now.
const STAYING_MAX: usize = 4096;
/// The time between two looks: those that have ended, or have moved a byte, are then forgotten. A
/// busy connection is not offered at each tick, because it waits for each answer.
const LOOK: Duration = Duration::from_secs(5);
/// The time for which one that moves no byte is not offered again. The other process may have had
/// no room, or may have been about to be replaced itself.
const STAYS: Duration = Duration::from_secs(60);

/// The refused connections.
pub struct Staying {
    /// The tick at which each was due when it was placed here again. A byte that moves changes it.
    due: HashMap<Key, u32>,
    /// When those that had changed were forgotten last, and when all were.
    looked: Instant,
    since: Instant,
}

impl Staying {
    /// None, from now on.
    pub fn new() -> Self {
        let now = Instant::now();
        Self { due: HashMap::new(), looked: now, since: now }
    }

    /// True if a connection is refused.
    pub fn has(&self, key: Key) -> bool {
        self.due.contains_key(&key)
    }

    /// Adds connections, which are parked here again.
    pub fn add(&mut self, table: &mut ConnectionTable, keys: Vec<Key>) {
        self.due.extend(keys.into_iter().map(|key| (key, table.due(key))));
    }

    /// Forgets those that have ended or moved a byte, and after a while all of them. Returns
    /// whether there is room for others.
    pub fn has_room(&mut self, table: &mut ConnectionTable, now: Instant) -> bool {
        if now.duration_since(self.since) >= STAYS {
            *self = Self { due: HashMap::new(), looked: now, since: now };
        } else if now.duration_since(self.looked) >= LOOK {
            self.looked = now;
            // None is due at tick 0, as one that has ended is.
            self.due.retain(|key, due| table.due(*key) == *due);
        }
        self.due.len() < STAYING_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::park::tests::terminated;
    use crate::testing::worker;

    /// Those that have ended or changed leave room for others.
    #[test]
    fn those_that_have_ended_or_changed_are_forgotten() {
        let worker = worker();
        let keys: Vec<Key> = (0..STAYING_MAX).map(|_| terminated(&worker)).collect();
        let mut table = worker.table.borrow_mut();
        let mut staying = Staying::new();
        let now = staying.since;
        staying.add(&mut table, keys.clone());
        assert!(!staying.has_room(&mut table, now));
        let [ended, moved, stays] = [keys[0], keys[1], keys[2]];
        table.remove(ended);
        table.due_in(moved, Duration::from_secs(1_000));
        assert!(!staying.has_room(&mut table, now), "it is not offered at each tick");
        assert!(staying.has_room(&mut table, now + LOOK));
        assert!(staying.has(stays) && !staying.has(moved) && !staying.has(ended));
    }

    /// One that rests is offered again after a while.
    #[test]
    fn one_that_rests_is_offered_again_after_a_while() {
        let worker = worker();
        let key = terminated(&worker);
        let mut table = worker.table.borrow_mut();
        let mut staying = Staying::new();
        staying.add(&mut table, vec![key]);
        for (wait, has) in [(Duration::ZERO, true), (LOOK, true), (STAYS, false)] {
            let now = staying.since + wait;
            assert!(staying.has_room(&mut table, now));
            assert_eq!(staying.has(key), has, "{wait:?}");
        }
    }
}
