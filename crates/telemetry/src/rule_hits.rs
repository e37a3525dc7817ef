//! Counts how often each rule decided, and when last. Each worker counts in cells of its own. A
//! reload begins new cells; the sums go on by the rules' names.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use eyelet_config::RuleNames;

use crate::cell::Cell;
use crate::info::NS_PER_MS;

/// The cells of one set of rules.
#[derive(Debug)]
pub struct RuleHits {
    names: Arc<RuleNames>,
    /// By worker, then by rule.
    cells: Box<[Box<[RuleCell]>]>,
}

#[derive(Debug, Default)]
struct RuleCell {
    hits: Cell,
    last_unix_ns: Cell,
}

/// The count of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    /// Connections that it decided.
    pub hits: u64,
    /// The time at which it last did, in milliseconds since 1970; 0: never.
    pub last_unix_ms: u64,
}

impl RuleCount {
    fn add(&mut self, other: Self) {
        self.hits += other.hits;
        self.last_unix_ms = self.last_unix_ms.max(other.last_unix_ms);
    }
}

/// The cells that connections may still write to, and the sums of those that none does any more.
#[derive(Default)]
struct History {
    written: Vec<Arc<RuleHits>>,
    kept: HashMap<Box<str>, RuleCount>,
}

static HISTORY: Mutex<Option<History>> = Mutex::new(None);

impl RuleHits {
    /// Begins to count for these rules. Rules of equal names go on from where they were.
    pub fn begin(names: Arc<RuleNames>, workers: usize) -> Arc<Self> {
        let rules = names.iter().count();
        let of_worker = |_| (0..rules).map(|_| RuleCell::default()).collect();
        let hits = Arc::new(Self { names, cells: (0..workers).map(of_worker).collect() });
        let mut history = HISTORY.lock();
        let history = history.get_or_insert_default();
        history.fold();
        history.written.push(hits.clone());
        // Rules that no configuration has any more are forgotten, so that reloads add nothing.
        let History { written, kept } = history;
        let named: std::collections::HashSet<&str> =
            written.iter().flat_map(|hits| hits.names.iter()).collect();
        kept.retain(|name, _| named.contains(&**name));
        hits
    }

    /// A rule has decided a connection of this worker.
    #[inline]
    pub fn hit(&self, worker: usize, rule: u32, now_unix_ns: u64) {
        let cell = self.cells.get(worker).and_then(|cells| cells.get(rule as usize));
        if let Some(cell) = cell {
            cell.hits.up();
            cell.last_unix_ns.set(now_unix_ns);
        }
    }

    /// Rules that have decided something. Of many thousands most have not.
    fn each<'a>(&'a self, mut note: impl FnMut(&'a str, RuleCount)) {
        for (rule, name) in self.names.iter().enumerate() {
            let mut count = RuleCount::default();
            for cell in self.cells.iter().filter_map(|cells| cells.get(rule)) {
                let last_unix_ms = cell.last_unix_ns.value() / NS_PER_MS;
                count.add(RuleCount { hits: cell.hits.value(), last_unix_ms });
            }
            if count.hits > 0 {
                note(name, count);
            }
        }
    }

    /// The sum for each rule, in order. Rules of one name have one sum.
    pub fn counts(&self) -> Vec<RuleCount> {
        let mut history = HISTORY.lock();
        let history = history.get_or_insert_default();
        history.fold();
        let kept = history.kept.iter().map(|(name, count)| (&**name, *count));
        let mut sums: HashMap<&str, RuleCount> = kept.collect();
        for hits in &history.written {
            hits.each(|name, count| sums.entry(name).or_default().add(count));
        }
        self.names.iter().map(|name| sums.get(name).copied().unwrap_or_default()).collect()
    }
}

impl History {
    /// Adds up cells that nobody writes to any more.
    fn fold(&mut self) {
        let Self { written, kept } = self;
        written.retain(|hits| {
            let is_written = Arc::strong_count(hits) > 1;
            if !is_written {
                hits.each(|name, count| kept.entry(name.into()).or_default().add(count));
            }
            is_written
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;
    use std::time::SystemTime;

    use eyelet_config::Depth;

    use super::*;

    fn names(names: &[&str]) -> Arc<RuleNames> {
        let mut text = String::from("[[listener]]\naddress = \"127.0.0.1:0\"\n");
        for name in names {
            text += &format!(
                "[[rule]]\nname = \"{name}\"\nsni = \"{name}.example\"\naction = \"refuse\"\n"
            );
        }
        let path = Path::new("test.toml");
        let loaded = eyelet_config::parse(path, &text, Depth::Files, SystemTime::UNIX_EPOCH);
        loaded.unwrap().config.rules.shared_names()
    }

    #[test]
    fn a_reload_goes_on_counting_by_name() {
        let first = RuleHits::begin(names(&["a", "b"]), 2);
        first.hit(0, 0, 5 * NS_PER_MS);
        first.hit(1, 0, 9 * NS_PER_MS);
        first.hit(0, 1, 3 * NS_PER_MS);
        first.hit(2, 0, NS_PER_MS);
        first.hit(0, 2, NS_PER_MS);
        let count = |hits, last_unix_ms| RuleCount { hits, last_unix_ms };
        assert_eq!(first.counts(), [count(2, 9), count(1, 3)]);
        let second = RuleHits::begin(names(&["c", "a"]), 2);
        second.hit(1, 1, 20 * NS_PER_MS);
        // A connection of the earlier configuration may be decided late.
        first.hit(1, 0, 15 * NS_PER_MS);
        assert_eq!(second.counts(), [count(0, 0), count(4, 20)]);
        drop(first);
        assert_eq!(second.counts(), [count(0, 0), count(4, 20)]);
        let third = RuleHits::begin(names(&["a", "b"]), 2);
        drop(second);
        assert_eq!(third.counts()[0], count(4, 20));
        // A rule that has decided nothing keeps no memory after a reload.
        let fourth = RuleHits::begin(names(&["a", "b", "idle"]), 2);
        drop(third);
        let fifth = RuleHits::begin(names(&["a", "b", "idle"]), 2);
        drop(fourth);
        assert_eq!(fifth.counts(), [count(4, 20), count(1, 3), count(0, 0)]);
        assert!(!HISTORY.lock().as_ref().unwrap().kept.contains_key("idle"));
    }
}
