//! Groups that are too large to leave. Each search would walk through them again, from many of
//! their connections.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use eyelet_memory::slab::Key;
use foldhash::fast::RandomState;

use crate::departure::GROUP_DESCRIPTORS_MAX;

/// Connections that are known at a time, about 200 KiB of keys: those of a few large groups. While
/// they are more, no group is looked for.
const KEYS_MAX: usize = 4 * GROUP_DESCRIPTORS_MAX;
/// The time for which a group is not looked at again. It may be smaller by then.
const STAYS: Duration = Duration::from_secs(60);

/// Connections of groups that are too large.
#[derive(Default)]
pub(crate) struct LargeGroups {
    keys: HashSet<Key, RandomState>,
    /// When all were forgotten last.
    since: Option<Instant>,
    /// True if it was said in the log that some stay.
    has_said: bool,
}

impl LargeGroups {
    /// Forgets all after a while. Returns whether a group may be looked for.
    pub fn may_look(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.duration_since(since) >= STAYS) {
            (self.keys, self.since) = (HashSet::default(), Some(now));
        }
        self.keys.len() < KEYS_MAX
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

    /// They are forgotten after a while, and bounded until then.
    #[test]
    fn large_groups_are_known_for_a_while() {
        let (mut large, now) = (LargeGroups::default(), Instant::now());
        assert!(large.may_look(now) && !large.has(key(1)));
        large.add(&[key(1), key(2)], || String::from("it is a test"));
        assert!(large.may_look(now) && large.has(key(2)) && !large.has(key(3)));
        assert!(large.has_said);
        let many: Vec<Key> = (0..KEYS_MAX as u32).map(key).collect();
        large.add(&many, || unreachable!("it is said once"));
        assert!(!large.may_look(now));
        assert!(large.may_look(now + STAYS) && !large.has(key(1)));
    }
}
