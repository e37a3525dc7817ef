//! Groups that are too large to leave. Each search would walk through them again, from many of
//! their connections.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use eyelet_memory::slab::Key;
use foldhash::fast::RandomState;

/// Connections that are known for each slot of the table, about ten bytes each. If they are more,
/// most of them have ended, and all are forgotten.
const KEYS_PER_SLOT: usize = 2;
/// The time for which a group is not looked at again. It may be smaller by then.
const STAYS: Duration = Duration::from_secs(60);

/// Connections of groups that are too large.
#[derive(Default)]
pub struct LargeGroups {
    keys: HashSet<Key, RandomState>,
    /// The time at which all were forgotten last.
    since: Option<Instant>,
    /// True if it was said in the log that some stay.
    has_said: bool,
}

impl LargeGroups {
    /// Forgets all after a while, or if the table has so few slots that most have ended.
    pub fn forget_old(&mut self, now: Instant, slots: usize) {
        let is_old = self.since.is_none_or(|since| now.duration_since(since) >= STAYS);
        if is_old || self.keys.len() > KEYS_PER_SLOT * slots {
            (self.keys, self.since) = (HashSet::default(), Some(now));
        }
    }

    /// True if a connection is in such a group.
    pub fn has(&self, key: Key) -> bool {
        !self.keys.is_empty() && self.keys.contains(&key)
    }

    /// Adds connections of such a group, as far as they were found. Says once what stays.
    pub fn add(&mut self, keys: &[Key], why: impl FnOnce() -> String) {
        self.keys.extend(keys);
        if !std::mem::replace(&mut self.has_said, true) {
            tracing::warn!("connections that share upstream connections stay here: {}", why());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: u32) -> Key {
        Key { index, generation: 1 }
    }

    /// They are forgotten after a while, or once most of them have ended.
    #[test]
    fn large_groups_are_known_for_a_while() {
        const SLOTS: usize = 100;
        let (mut large, now) = (LargeGroups::default(), Instant::now());
        large.forget_old(now, SLOTS);
        large.add(&[key(1), key(2)], || String::from("it is a test"));
        large.forget_old(now, SLOTS);
        assert!(large.has(key(2)) && !large.has(key(3)));
        assert!(large.has_said);
        let many: Vec<Key> = (1..=(KEYS_PER_SLOT * SLOTS) as u32).map(key).collect();
        large.add(&many, || unreachable!("it is said once"));
        large.forget_old(now, SLOTS);
        assert!(large.has(key(2)));
        large.add(&[key(0)], || unreachable!("it is said once"));
        large.forget_old(now, SLOTS);
        assert!(!large.has(key(2)) && !large.has(key(0)));
        large.add(&[key(1)], || unreachable!("it is said once"));
        large.forget_old(now + STAYS, SLOTS);
        assert!(!large.has(key(1)));
    }
}
