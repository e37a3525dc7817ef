//! Deadlines of a worker's connections: one coarse timer wheel whose links are inside the slots. It
//! reads no clock.

use eyelet_memory::slab::Slab;

/// One step of the wheel. Deadlines are up to this much late, never early.
pub const TICK_MS: u64 = 100;
const _: () = assert!(TICK_MS == 100);

/// Buckets: 51.2 s ahead. A later deadline waits in the last bucket and is linked again when that
/// comes up. For an hour's idle timeout these are 70 moves of three words.
const BUCKETS: usize = 512;

/// No slot.
const NONE: u32 = u32::MAX;

/// Not in the wheel.
const UNLINKED: u16 = u16::MAX;

/// A slot's links in the wheel.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    previous: u32,
    next: u32,
    /// The tick at which the slot is due. It may be moved later without linking again.
    pub deadline: u32,
    bucket: u16,
}

impl Default for Links {
    fn default() -> Self {
        Self { previous: NONE, next: NONE, deadline: 0, bucket: UNLINKED }
    }
}

/// A value that can be in the wheel.
pub trait Linked {
    /// Its links.
    fn links(&mut self) -> &mut Links;
}

/// The timer wheel. Ticks count from the worker's start: 13 years fit.
pub struct TimerWheel {
    heads: Box<[u32; BUCKETS]>,
    /// The tick whose bucket is being emptied.
    at: u32,
    /// The current tick. `at <= now`; they differ while overdue slots are being returned.
    now: u32,
}

impl Default for TimerWheel {
    /// An empty wheel at tick 0.
    fn default() -> Self {
        Self::starting_at(0)
    }
}

impl TimerWheel {
    /// An empty wheel at this tick.
    pub fn starting_at(tick: u32) -> Self {
        Self { heads: Box::new([NONE; BUCKETS]), at: tick, now: tick }
    }

    /// The current tick.
    pub fn now(&self) -> u32 {
        self.now
    }

    /// Makes the slot due at `deadline`. If it is linked into an earlier bucket this is a single
    /// store: it is linked again when that comes up.
    pub fn set<T: Linked>(&mut self, entries: &mut Slab<T>, index: u32, deadline: u32) {
        let Some(entry) = entries.at(index) else { return };
        let links = entry.links();
        links.deadline = deadline;
        let bucket = usize::from(links.bucket);
        if links.bucket == UNLINKED || deadline < self.tick_of(bucket) {
            self.unlink(entries, index);
            self.link(entries, index);
        }
    }

    /// The next tick at which this bucket comes up.
    fn tick_of(&self, bucket: usize) -> u32 {
        let ahead = (bucket + BUCKETS - self.at as usize % BUCKETS) % BUCKETS;
        self.at.saturating_add(ahead as u32)
    }

    /// Unlinks the slot. Must be called before it is removed from the slab.
    pub fn unlink<T: Linked>(&mut self, entries: &mut Slab<T>, index: u32) {
        let Some(entry) = entries.at(index) else { return };
        let Links { previous, next, bucket, deadline } = *entry.links();
        if bucket == UNLINKED {
            return;
        }
        *entry.links() = Links { deadline, ..Links::default() };
        match entries.at(previous) {
            Some(before) => before.links().next = next,
            None => self.heads[usize::from(bucket)] = next,
        }
        if let Some(after) = entries.at(next) {
            after.links().previous = previous;
        }
    }

    fn link<T: Linked>(&mut self, entries: &mut Slab<T>, index: u32) {
        let Some(entry) = entries.at(index) else { return };
        let ahead = entry.links().deadline.saturating_sub(self.at).clamp(1, BUCKETS as u32 - 1);
        let bucket = (self.at + ahead) as usize % BUCKETS;
        let head = self.heads[bucket];
        let links = entry.links();
        links.previous = NONE;
        links.next = head;
        links.bucket = bucket as u16;
        if let Some(after) = entries.at(head) {
            after.links().previous = index;
        }
        self.heads[bucket] = index;
    }

    /// Advances to tick `now` and unlinks the next slot that is due; `None` when none is left. It
    /// returns one at a time because a list would be scattered over a heap that was just trimmed.
    /// Deadlines set between two calls count from `now`.
    pub fn next_due<T: Linked>(&mut self, entries: &mut Slab<T>, now: u32) -> Option<u32> {
        self.now = self.now.max(now);
        loop {
            // Nothing is linked into this tick's bucket, so it becomes empty.
            let index = self.heads[self.at as usize % BUCKETS];
            let Some(entry) = entries.at(index) else {
                if self.at >= self.now {
                    return None;
                }
                self.at += 1;
                continue;
            };
            let deadline = entry.links().deadline;
            self.unlink(entries, index);
            if deadline <= self.at {
                return Some(index);
            }
            self.link(entries, index);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::iter::from_fn;

    use super::*;

    struct Entry(Links);
    impl Linked for Entry {
        fn links(&mut self) -> &mut Links {
            &mut self.0
        }
    }

    /// Every slot comes out at its deadline, not before, however often it was moved.
    #[test]
    fn due_at_the_deadline_and_not_before() {
        let (mut entries, mut wheel) = (Slab::default(), TimerWheel::default());
        let deadlines = [1, 2, 2, 511, 512, 513, 5000, 36_000];
        for deadline in deadlines {
            let key = entries.insert(Entry(Links::default()));
            wheel.set(&mut entries, key.index, 40_000);
            wheel.set(&mut entries, key.index, deadline);
        }
        let mut seen = Vec::new();
        for now in 1..=36_000 {
            while let Some(index) = wheel.next_due(&mut entries, now) {
                seen.push((now, deadlines[index as usize]));
            }
        }
        assert_eq!(seen.len(), deadlines.len());
        assert!(seen.iter().all(|(at, deadline)| at == deadline), "{seen:?}");
    }

    /// A deadline set for a slot that was overdue is not in the past as well.
    #[test]
    fn a_deadline_set_after_a_stall_counts_from_its_end() {
        for stall in [40, 511, 512, 2_000] {
            let (mut entries, mut wheel) = (Slab::default(), TimerWheel::default());
            let key = entries.insert(Entry(Links::default()));
            wheel.set(&mut entries, key.index, 3);
            assert_eq!(wheel.next_due(&mut entries, stall), Some(key.index));
            assert_eq!(wheel.now(), stall);
            let deadline = wheel.now() + 20;
            wheel.set(&mut entries, key.index, deadline);
            assert_eq!(wheel.next_due(&mut entries, stall), None);
            assert_eq!(wheel.next_due(&mut entries, deadline - 1), None);
            assert_eq!(wheel.next_due(&mut entries, deadline), Some(key.index));
        }
    }

    #[test]
    fn unlinking_in_the_middle_leaves_the_others() {
        let (mut entries, mut wheel) = (Slab::default(), TimerWheel::default());
        let keys: Vec<_> = (0..5).map(|_| entries.insert(Entry(Links::default()))).collect();
        for key in &keys {
            wheel.set(&mut entries, key.index, 7);
        }
        for key in [keys[2], keys[4], keys[0]] {
            wheel.unlink(&mut entries, key.index);
            entries.remove(key).unwrap();
        }
        let mut due: Vec<_> = from_fn(|| wheel.next_due(&mut entries, 7)).collect();
        due.sort_unstable();
        assert_eq!(due, [1, 3]);
    }

    #[test]
    fn a_later_deadline_costs_no_move_and_is_kept() {
        let (mut entries, mut wheel) = (Slab::default(), TimerWheel::default());
        let key = entries.insert(Entry(Links::default()));
        wheel.set(&mut entries, key.index, 5);
        wheel.set(&mut entries, key.index, 50);
        assert_eq!(wheel.next_due(&mut entries, 49), None);
        assert_eq!(wheel.next_due(&mut entries, 50), Some(key.index));
        assert_eq!(wheel.next_due(&mut entries, 50), None);
    }
}
