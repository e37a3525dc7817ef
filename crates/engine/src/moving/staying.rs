//! Connections and groups that the other process has refused. Each is offered again once it has
//! moved a byte, or after a while.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use eyelet_memory::slab::Key;

use eyelet_table::ConnectionTable;

/// Connections and groups of a worker that the other process may refuse at a time. It is full then,
/// or reads little of what this one writes, so nothing more is offered for now. A connection takes
/// about 24 bytes here, however large its group is, and is known once.
pub(super) const STAYING_MAX: usize = 4096;
/// The time between two looks: those that have ended, or have moved a byte, are then forgotten. A
/// busy connection is not offered at each tick, because it waits for each answer.
const LOOK: Duration = Duration::from_secs(5);
/// The time for which one that moves no byte is not offered again. The other process may have had
/// no room, or may have been about to be replaced itself.
const STAYS: Duration = Duration::from_secs(60);

/// The refused connections.
pub struct Staying {
    known: HashMap<Key, Known>,
    /// The first ones among them: one for each connection alone, and one for each group.
    firsts: usize,
    /// The time at which those that had changed were forgotten last, and when all were.
    looked: Instant,
    since: Instant,
}

/// A refused connection.
struct Known {
    /// The tick at which it was due when it was placed here again. A byte that moves changes it.
    due: u32,
    /// True if it is alone, or the first one of its group.
    is_first: bool,
}

impl Staying {
    /// None, from now on.
    pub fn new() -> Self {
        let now = Instant::now();
        Self { known: HashMap::new(), firsts: 0, looked: now, since: now }
    }

    /// True if a connection is refused.
    pub fn has(&self, key: Key) -> bool {
        self.known.contains_key(&key)
    }

    /// Adds connections and groups, which are parked here again.
    pub fn add(&mut self, table: &mut ConnectionTable, parcels: Vec<Vec<Key>>) {
        for keys in parcels {
            for (nth, key) in keys.into_iter().enumerate() {
                let (due, is_first) = (table.due(key), nth == 0);
                self.firsts += usize::from(is_first);
                let earlier = self.known.insert(key, Known { due, is_first });
                self.firsts -= usize::from(earlier.is_some_and(|earlier| earlier.is_first));
            }
        }
    }

    /// Forgets those that have ended or moved a byte, and after a while all of them. Returns
    /// whether there is room for others.
    pub fn has_room(&mut self, table: &mut ConnectionTable, now: Instant) -> bool {
        if now.duration_since(self.since) >= STAYS {
            *self = Self { known: HashMap::new(), firsts: 0, looked: now, since: now };
        } else if now.duration_since(self.looked) >= LOOK {
            self.looked = now;
            // None is due at tick 0, as one that has ended is.
            self.known.retain(|key, known| table.due(*key) == known.due);
            self.firsts = self.known.values().filter(|known| known.is_first).count();
        }
        self.firsts < STAYING_MAX
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
        staying.add(&mut table, keys.iter().map(|key| vec![*key]).collect());
        assert!(!staying.has_room(&mut table, now));
        let [ended, moved, stays] = [keys[0], keys[1], keys[2]];
        table.remove(ended);
        table.due_in(moved, Duration::from_secs(1_000));
        assert!(!staying.has_room(&mut table, now), "it is not offered at each tick");
        assert!(staying.has_room(&mut table, now + LOOK));
        assert!(staying.has(stays) && !staying.has(moved) && !staying.has(ended));
    }

    /// A large group takes one place, so that the others are still offered.
    #[test]
    fn a_group_takes_one_place() {
        let worker = worker();
        let keys: Vec<Key> = (0..=STAYING_MAX).map(|_| terminated(&worker)).collect();
        let mut table = worker.table.borrow_mut();
        let mut staying = Staying::new();
        let now = staying.since;
        staying.add(&mut table, vec![keys.clone()]);
        assert!(staying.has_room(&mut table, now) && keys.iter().all(|key| staying.has(*key)));
        // Offered again without its first connection, and refused again.
        staying.add(&mut table, vec![keys[1..].to_vec()]);
        assert_eq!(staying.firsts, 2);
        table.remove(keys[1]);
        assert!(staying.has_room(&mut table, now + LOOK));
        assert_eq!((staying.firsts, staying.known.len()), (1, STAYING_MAX));
        // Each connection of it is refused alone.
        staying.add(&mut table, keys.iter().map(|key| vec![*key]).collect());
        assert_eq!(staying.firsts, keys.len());
        assert!(!staying.has_room(&mut table, now + LOOK));
    }

    /// One that rests is offered again after a while.
    #[test]
    fn one_that_rests_is_offered_again_after_a_while() {
        let worker = worker();
        let key = terminated(&worker);
        let mut table = worker.table.borrow_mut();
        let mut staying = Staying::new();
        staying.add(&mut table, vec![vec![key]]);
        for (wait, has) in [(Duration::ZERO, true), (LOOK, true), (STAYS, false)] {
            let now = staying.since + wait;
            assert!(staying.has_room(&mut table, now));
            assert_eq!(staying.has(key), has, "{wait:?}");
        }
    }
}
