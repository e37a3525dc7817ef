//! Counts how often each rule decided, when last, and the requests that it refused. Each worker
//! counts in cells of its own. A reload begins new cells; the sums go on by the rules' names.

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
    /// Requests that no rule took, by worker.
    unruled: Box<[Cell]>,
}

#[derive(Debug, Default)]
struct RuleCell {
    hits: Cell,
    last_unix_ns: Cell,
    refused_requests: Cell,
}

/// The count of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    /// Connections that it decided.
    pub hits: u64,
    /// The time at which it last did, in milliseconds since 1970; 0: never.
    pub last_unix_ms: u64,
    /// Requests that got 403 by it.
    pub refused_requests: u64,
}

impl RuleCount {
    fn add(&mut self, other: Self) {
        self.hits += other.hits;
        self.refused_requests += other.refused_requests;
        self.last_unix_ms = self.last_unix_ms.max(other.last_unix_ms);
    }
}

/// The cells that connections may still write to, and the sums of those that none does any more.
#[derive(Default)]
struct History {
    written: Vec<Arc<RuleHits>>,
    kept: HashMap<Box<str>, RuleCount>,
    /// Requests that no rule took.
    unruled: u64,
}

static HISTORY: Mutex<Option<History>> = Mutex::new(None);

impl RuleHits {
    /// Begins to count for these rules. Rules of equal names go on from where they were.
    pub fn begin(names: Arc<RuleNames>, workers: usize) -> Arc<Self> {
        let rules = names.iter().count();
        let of_worker = |_| (0..rules).map(|_| RuleCell::default()).collect();
        let cells = (0..workers).map(of_worker).collect();
        let unruled = (0..workers).map(|_| Cell::default()).collect();
        let hits = Arc::new(Self { names, cells, unruled });
        let mut history = HISTORY.lock();
        let history = history.get_or_insert_default();
        history.fold();
        history.written.push(hits.clone());
        // Rules that no configuration has any more are forgotten, so that reloads add nothing.
        let History { written, kept, .. } = history;
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

    /// A request of this worker got 403 by a rule. `None`: no rule took it.
    pub fn refuse_request(&self, worker: usize, rule: Option<u32>) {
        let cell = match rule {
            None => self.unruled.get(worker),
            Some(rule) => {
                let cell = self.cells.get(worker).and_then(|cells| cells.get(rule as usize));
                cell.map(|cell| &cell.refused_requests)
            }
        };
        cell.inspect(|cell| cell.up());
    }

    /// Rules that have decided something. Of many thousands most have not.
    fn each<'a>(&'a self, mut note: impl FnMut(&'a str, RuleCount)) {
        for (rule, name) in self.names.iter().enumerate() {
            let mut count = RuleCount::default();
            for cell in self.cells.iter().filter_map(|cells| cells.get(rule)) {
                let last_unix_ms = cell.last_unix_ns.value() / NS_PER_MS;
                let refused_requests = cell.refused_requests.value();
                count.add(RuleCount { hits: cell.hits.value(), last_unix_ms, refused_requests });
            }
            if count.hits > 0 || count.refused_requests > 0 {
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

    fn unruled(&self) -> u64 {
        self.unruled.iter().map(Cell::value).sum()
    }

    /// Requests that no rule took.
    pub fn unruled_requests() -> u64 {
        let mut history = HISTORY.lock();
        let history = history.get_or_insert_default();
        history.unruled + history.written.iter().map(|hits| hits.unruled()).sum::<u64>()
    }
}

impl History {
    /// Adds up cells that nobody writes to any more.
    fn fold(&mut self) {
        let Self { written, kept, unruled } = self;
        written.retain(|hits| {
            let is_written = Arc::strong_count(hits) > 1;
            if !is_written {
                hits.each(|name, count| kept.entry(name.into()).or_default().add(count));
                *unruled += hits.unruled();
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
        let count = |hits, last_unix_ms| RuleCount { hits, last_unix_ms, ..RuleCount::default() };
        assert_eq!(first.counts(), [count(2, 9), count(1, 3)]);
        first.refuse_request(1, Some(1));
        first.refuse_request(0, None);
        first.refuse_request(2, None);
        let refusing = RuleCount { refused_requests: 1, ..count(1, 3) };
        assert_eq!((first.counts()[1], RuleHits::unruled_requests()), (refusing, 1));
        let second = RuleHits::begin(names(&["c", "a"]), 2);
        second.hit(1, 1, 20 * NS_PER_MS);
        // A connection of the earlier configuration may be decided late.
        first.hit(1, 0, 15 * NS_PER_MS);
        assert_eq!(second.counts(), [count(0, 0), count(4, 20)]);
        drop(first);
        assert_eq!(second.counts(), [count(0, 0), count(4, 20)]);
        let third = RuleHits::begin(names(&["a", "b"]), 2);
        second.refuse_request(0, Some(1));
        drop(second);
        let refusing = [count(4, 20), count(1, 3)];
        let refusing = refusing.map(|count| RuleCount { refused_requests: 1, ..count });
        assert_eq!(third.counts(), refusing);
        assert_eq!(RuleHits::unruled_requests(), 1, "those of the first stay");
        // A rule that has decided nothing keeps no memory after a reload.
        let fourth = RuleHits::begin(names(&["a", "b", "idle"]), 2);
        drop(third);
        let fifth = RuleHits::begin(names(&["a", "b", "idle"]), 2);
        drop(fourth);
        assert_eq!(fifth.counts(), [refusing[0], refusing[1], count(0, 0)]);
        assert!(!HISTORY.lock().as_ref().unwrap().kept.contains_key("idle"));
    }
}
