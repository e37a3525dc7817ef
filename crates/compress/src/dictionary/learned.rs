//! Dictionaries that an edge has learned as a client of origins (RFC 9842 section 2.2): which one
//! to name in a request. A server may have one for each of its files, so look-ups are indexed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound::{Included, Unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use bytes::Bytes;

use super::use_as::UseAs;
use super::{DICTIONARY_BYTES_MAX, Hash};
use crate::coder::zstd::is_raw;

/// The rule and the origin whose responses may be dictionaries for each other.
pub type LearnedOrigin = (Box<str>, Box<str>);

/// A response before it is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDictionary {
    /// The rule and the origin that it is of.
    pub origin: LearnedOrigin,
    /// Its server's field `Use-As-Dictionary`.
    pub use_as: UseAs,
    /// The name of its file: a hash of the origin, the pattern and the destinations.
    pub file: Hash,
    /// The hash of `body`.
    pub hash: Hash,
    /// Decoded content.
    pub body: Bytes,
    /// It is used before this second since 1970.
    pub fresh_until: u64,
}

/// A change of a dictionary, for its file. Changes are in the order in which they were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearnedChange {
    /// The dictionary of this number is to be saved, if it is still there.
    Added(u64),
    /// The file of this name is to be removed.
    Dropped(Hash),
}

/// A response that is a dictionary.
#[derive(Debug)]
pub struct Learned {
    /// The hash of `body`.
    pub hash: Hash,
    /// Decoded content.
    pub body: Bytes,
    /// Its server's field `Use-As-Dictionary`.
    pub use_as: UseAs,
    /// It is used before this second since 1970 (section 2.2.1).
    pub fresh_until: u64,
    /// The name of its file.
    pub file: Hash,
    /// Its number: later ones are larger.
    seen: u64,
    /// True if its server has coded with another one.
    is_wrong: AtomicBool,
    /// The `fresh_until` of its file. 0: it has none.
    saved_until: AtomicU64,
    /// True if any of the store is wrong.
    any_wrong: Arc<AtomicBool>,
}

/// Dictionaries within a limit in bytes. The oldest go first.
#[derive(Debug, Default)]
pub struct LearnedStore {
    origins: HashMap<LearnedOrigin, Index>,
    /// The origin and the pattern of each, by its number.
    order: BTreeMap<u64, (LearnedOrigin, Box<str>)>,
    bytes: usize,
    bytes_max: usize,
    seen: u64,
    /// Changes that are not on disk yet. `None`: there is no disk.
    changes: Option<VecDeque<LearnedChange>>,
    any_wrong: Arc<AtomicBool>,
}

/// The dictionaries of an origin by the part of their patterns behind the last `*`. That part is
/// the end of each path that matches.
#[derive(Debug, Default)]
struct Index {
    /// Patterns without `*`, which are paths.
    exact: HashMap<Box<str>, Vec<Arc<Learned>>>,
    /// The others, by that part read backwards. So the parts that a path ends in are the keys that
    /// the path, read backwards, begins with.
    by_end: BTreeMap<Box<[u8]>, Vec<Arc<Learned>>>,
}

impl LearnedStore {
    /// An empty store of at most so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Says whether the store is saved on disk.
    pub fn save(&mut self, is_saved: bool) {
        self.changes = is_saved.then(VecDeque::new);
    }

    /// Bytes of bodies and what belongs to them.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The largest body that is stored: one must not displace everything else.
    pub fn body_bytes_max(&self) -> usize {
        (self.bytes_max / 4).min(DICTIONARY_BYTES_MAX)
    }

    /// The best dictionary for a path (section 2.2.3): one for this request destination before one
    /// for all, then the longest pattern, then the newest.
    pub fn find(
        &self,
        origin: &LearnedOrigin,
        path: &str,
        destination: Option<&str>,
        now: u64,
    ) -> Option<Arc<Learned>> {
        let index = self.origins.get(origin)?;
        let is_fit = |learned: &&Arc<Learned>| {
            !learned.is_wrong.load(Relaxed)
                && learned.fresh_until > now
                && learned.use_as.is_for(destination)
                && learned.use_as.pattern.matches(path)
        };
        let mut best: Option<&Arc<Learned>> = None;
        index.each_candidate(path, |candidates| {
            for learned in candidates.iter().filter(is_fit) {
                if best.is_none_or(|best| learned.rank() > best.rank()) {
                    best = Some(learned);
                }
            }
        });
        best.cloned()
    }

    /// Stores a response. It takes the place of the one with the same pattern and destinations.
    /// `false`: it is not a dictionary.
    pub fn learn(&mut self, lesson: NewDictionary, now: u64) -> bool {
        self.add(lesson, Some(now))
    }

    /// Stores a response that was read from its file. `false`: it is not a dictionary.
    pub fn restore(&mut self, lesson: NewDictionary) -> bool {
        self.add(lesson, None)
    }

    /// `now`: it is new. `None`: it was read from its file.
    fn add(&mut self, lesson: NewDictionary, now: Option<u64>) -> bool {
        let NewDictionary { origin, use_as, file, hash, body, fresh_until } = lesson;
        // Decoders would take a body with zstd's own header for more than raw content.
        if body.len() > self.body_bytes_max() || !is_raw(&body) {
            return false;
        }
        self.seen += 1;
        let pattern: Box<str> = use_as.pattern.as_str().into();
        let index = self.origins.entry(origin.clone()).or_default();
        let list = index.list(&pattern);
        let same = list.iter().find(|old| {
            old.use_as.pattern == use_as.pattern && old.use_as.destinations == use_as.destinations
        });
        let same = same.cloned();
        let same_body = same.as_ref().filter(|old| old.hash == hash);
        // The same bytes are still wrong.
        let is_wrong = same_body.is_some_and(|old| old.is_wrong());
        let same_file = same_body.filter(|old| old.use_as.id == use_as.id);
        let saved_until = same_file.map_or(0, |old| old.saved_until.load(Relaxed));
        let is_due =
            now.is_some_and(|now| !is_wrong && is_worth_saving(fresh_until, saved_until, now));
        let is_on_disk = is_due || now.is_none();
        let saved_until = if is_on_disk { fresh_until } else { saved_until };
        let learned = Learned {
            hash,
            body,
            use_as,
            fresh_until,
            file,
            seen: self.seen,
            is_wrong: AtomicBool::new(is_wrong),
            saved_until: AtomicU64::new(saved_until),
            any_wrong: self.any_wrong.clone(),
        };
        // Its file takes the place of the old one's.
        let replaced = same.map(|old| old.seen);
        let crowded = match replaced {
            None if list.len() >= SAME_END_MAX => list.iter().map(|old| old.seen).min(),
            _ => None,
        };
        self.bytes += learned.bytes();
        list.push(Arc::new(learned));
        self.order.insert(self.seen, (origin, pattern));
        if is_due {
            self.note(LearnedChange::Added(self.seen));
        }
        if let Some(replaced) = replaced {
            self.remove(replaced);
        }
        if let Some(crowded) = crowded {
            self.drop_file_of(crowded);
        }
        while self.bytes > self.bytes_max
            && let Some((oldest, _)) = self.order.first_key_value()
        {
            self.drop_file_of(*oldest);
        }
        true
    }

    /// Drops those that are not fresh any more: at most 256, and at most as many as the disk is to
    /// hear of. Returns whether those were all.
    pub fn drop_expired(&mut self, now: u64) -> bool {
        let waiting = self.changes.as_ref().map_or(0, VecDeque::len);
        let max = EXPIRED_MAX.min(CHANGES_MAX.saturating_sub(waiting));
        let expired = self.all().filter(|learned| learned.fresh_until <= now);
        let mut expired: Vec<u64> = expired.map(|learned| learned.seen).take(max + 1).collect();
        let is_all = expired.len() <= max;
        expired.truncate(max);
        expired.into_iter().for_each(|seen| self.drop_file_of(seen));
        is_all
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Learned>> {
        self.origins
            .values()
            .flat_map(|index| index.exact.values().chain(index.by_end.values()).flatten())
    }

    fn note(&mut self, change: LearnedChange) {
        if let Some(changes) = self.changes.as_mut().filter(|all| all.len() < CHANGES_MAX) {
            changes.push_back(change);
        }
    }

    /// True if something is not on disk yet.
    pub fn has_changes(&self) -> bool {
        self.changes.as_ref().is_some_and(|changes| !changes.is_empty())
    }

    /// The oldest change that is not on disk yet.
    pub fn next_change(&mut self) -> Option<LearnedChange> {
        if self.any_wrong.swap(false, Relaxed) {
            self.drop_wrong();
        }
        self.changes.as_mut()?.pop_front()
    }

    /// The dictionary of a number.
    pub fn numbered(&self, seen: u64) -> Option<(&LearnedOrigin, &Arc<Learned>)> {
        let (origin, pattern) = self.order.get(&seen)?;
        let index = self.origins.get(origin)?;
        let list = match end_of(pattern) {
            None => index.exact.get(pattern)?,
            Some(end) => index.by_end.get(&end)?,
        };
        Some((origin, list.iter().find(|learned| learned.seen == seen)?))
    }

    /// After a restart, one that is wrong would spoil a response once more.
    fn drop_wrong(&mut self) {
        let wrong = self.all().filter(|learned| learned.is_wrong.load(Relaxed));
        let with_files = wrong.filter(|learned| learned.saved_until.swap(0, Relaxed) > 0);
        let files: Vec<Hash> = with_files.map(|learned| learned.file).collect();
        files.into_iter().for_each(|file| self.note(LearnedChange::Dropped(file)));
    }

    fn drop_file_of(&mut self, seen: u64) {
        if let Some(gone) = self.remove(seen) {
            self.note(LearnedChange::Dropped(gone.file));
        }
    }

    fn remove(&mut self, seen: u64) -> Option<Arc<Learned>> {
        let (origin, pattern) = self.order.remove(&seen)?;
        let index = self.origins.get_mut(&origin)?;
        let list = index.list(&pattern);
        let at = list.iter().position(|learned| learned.seen == seen);
        let gone = at.map(|at| list.swap_remove(at));
        self.bytes -= gone.as_ref().map_or(0, |gone| gone.bytes());
        if list.is_empty() {
            index.drop_list(&pattern);
        }
        if index.exact.is_empty() && index.by_end.is_empty() {
            self.origins.remove(&origin);
        }
        gone
    }
}

/// True if a dictionary needs a new file. If there is one with the same content, the new one only
/// says for longer that it is fresh: a response that comes each second is not written each second.
fn is_worth_saving(fresh_until: u64, saved_until: u64, now: u64) -> bool {
    let left = fresh_until.saturating_sub(now);
    left >= SAVED_SECONDS_MIN && saved_until.saturating_sub(now) < left / 2
}

impl Index {
    /// Dictionaries whose patterns may match a path. Each step goes to the next shorter end, so
    /// there are few; [`STEPS_MAX`] bounds them.
    fn each_candidate<'a>(&'a self, path: &str, mut candidates: impl FnMut(&'a [Arc<Learned>])) {
        if let Some(list) = self.exact.get(path) {
            candidates(list);
        }
        let backwards: Vec<u8> = path.bytes().rev().collect();
        let mut bound = &backwards[..];
        for _ in 0..STEPS_MAX {
            let mut range = self.by_end.range::<[u8], _>((Unbounded, Included(bound)));
            let Some((end, list)) = range.next_back() else { return };
            let common = end.iter().zip(bound).take_while(|(a, b)| a == b).count();
            let shorter = if common == end.len() {
                candidates(list);
                end.len().checked_sub(1)
            } else {
                Some(common)
            };
            // Every other end of this path is a beginning of what is common.
            let Some(shorter) = shorter.and_then(|len| bound.get(..len)) else { return };
            bound = shorter;
        }
    }

    fn list(&mut self, pattern: &str) -> &mut Vec<Arc<Learned>> {
        match end_of(pattern) {
            None => self.exact.entry(pattern.into()).or_default(),
            Some(end) => self.by_end.entry(end).or_default(),
        }
    }

    fn drop_list(&mut self, pattern: &str) {
        match end_of(pattern) {
            None => _ = self.exact.remove(pattern),
            Some(end) => _ = self.by_end.remove(&end),
        }
    }
}

/// The part behind the last `*`, read backwards.
fn end_of(pattern: &str) -> Option<Box<[u8]>> {
    pattern.rsplit_once('*').map(|(_, end)| end.bytes().rev().collect())
}

impl Learned {
    /// Notes that its server has coded with another dictionary: it is not named again.
    pub fn distrust(&self) {
        self.is_wrong.store(true, Relaxed);
        self.any_wrong.store(true, Relaxed);
    }

    /// True if its server has coded with another dictionary.
    pub fn is_wrong(&self) -> bool {
        self.is_wrong.load(Relaxed)
    }

    /// Notes that it could not be saved. It is tried again when the response comes again.
    pub fn not_saved(&self) {
        self.saved_until.store(0, Relaxed);
    }

    fn bytes(&self) -> usize {
        let texts = self.use_as.id.len()
            + self
                .use_as
                .destinations
                .iter()
                .map(|one| one.len() + size_of::<Box<str>>())
                .sum::<usize>();
        self.body.len() + 3 * self.use_as.pattern.as_str().len() + texts + ENTRY_BYTES
    }

    fn rank(&self) -> (bool, usize, u64) {
        let use_as = &self.use_as;
        (!use_as.destinations.is_empty(), use_as.pattern.as_str().len(), self.seen)
    }
}

impl UseAs {
    /// A client that says no destination does not know them, so that they do not count (section
    /// 2.1.2).
    fn is_for(&self, destination: Option<&str>) -> bool {
        self.destinations.is_empty()
            || destination.is_none_or(|wanted| self.destinations.iter().any(|one| **one == *wanted))
    }
}

/// Most dictionaries of an origin whose patterns have the same text behind their last `*`: one file
/// name in many folders, or all bundles that end in `.js`. A look-up compares them all.
const SAME_END_MAX: usize = 256;
/// Most steps of a look-up.
const STEPS_MAX: usize = 64;
/// Most changes that wait for the disk: a tree of files that a client got at once. 40 bytes each.
/// Beyond that a dictionary is not saved, and a file that is not removed is read at the next start,
/// where the limit in bytes holds.
const CHANGES_MAX: usize = 16 << 10;
/// Most that are dropped at once because they have expired. Workers wait for the store meanwhile.
const EXPIRED_MAX: usize = 256;
/// A dictionary that is fresh for less than a minute is gone after most restarts.
const SAVED_SECONDS_MIN: u64 = 60;
/// Bytes of an entry beside its body and its texts, the maps' share included.
const ENTRY_BYTES: usize = 576;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::pattern::Pattern;
    use super::*;

    fn origin(rule: &str) -> LearnedOrigin {
        (rule.into(), "a.example".into())
    }

    fn learn(store: &mut LearnedStore, pattern: &str, dest: &[&str], n: u8, len: usize) {
        let use_as = UseAs {
            pattern: Pattern::new(pattern).unwrap(),
            destinations: dest.iter().map(|one| (*one).into()).collect(),
            id: "".into(),
        };
        let (hash, body) = (Hash([n; 32]), Bytes::from(vec![n; len]));
        store.learn(lesson(use_as, hash, body), 0);
    }

    fn lesson(use_as: UseAs, hash: Hash, body: Bytes) -> NewDictionary {
        NewDictionary {
            origin: origin("r"),
            use_as,
            file: Hash([0; 32]),
            hash,
            body,
            fresh_until: 100,
        }
    }

    fn found(store: &LearnedStore, path: &str, dest: Option<&str>, now: u64) -> Option<u8> {
        store.find(&origin("r"), path, dest, now).map(|learned| learned.hash.0[0])
    }

    #[test]
    fn the_best_match_is_that_of_the_rfc() {
        let mut store = LearnedStore::new(1 << 20);
        learn(&mut store, "/*", &[], 1, 10);
        learn(&mut store, "/app/*.js", &[], 2, 10);
        learn(&mut store, "/app/*", &[], 3, 10);
        learn(&mut store, "/app/main.js", &[], 4, 10);
        learn(&mut store, "/*", &["document"], 5, 10);
        for (path, dest, expected) in [
            ("/", None, Some(5)),
            ("/", Some("script"), Some(1)),
            ("/", Some("document"), Some(5)),
            ("/app/x.css", Some("style"), Some(3)),
            ("/app/x.js", Some("script"), Some(2)),
            ("/app/main.js", Some("script"), Some(4)),
            ("/app/main.js", Some("document"), Some(5)),
            ("/apps/main.js", Some("script"), Some(1)),
        ] {
            assert_eq!(found(&store, path, dest, 0), expected, "{path} {dest:?}");
        }
        assert_eq!(found(&store, "/app/main.js", None, 100), None, "none is fresh");
        assert!(store.find(&origin("other"), "/", None, 0).is_none(), "of another rule");
        let elsewhere = ("r".into(), "b.example".into());
        assert!(store.find(&elsewhere, "/", None, 0).is_none(), "of another origin");
        learn(&mut store, "/app/main.js", &[], 6, 10);
        assert_eq!(found(&store, "/app/main.js", Some("script"), 0), Some(6), "the newest");
        let newest = store.find(&origin("r"), "/app/main.js", Some("script"), 0).unwrap();
        newest.distrust();
        assert_eq!(
            found(&store, "/app/main.js", Some("script"), 0),
            Some(2),
            "it is not named again"
        );
        learn(&mut store, "/app/main.js", &[], 6, 10);
        let again = found(&store, "/app/main.js", Some("script"), 0);
        assert_eq!(again, Some(2), "nor after it has come without it");
        learn(&mut store, "/app/main.js", &[], 7, 10);
        assert_eq!(found(&store, "/app/main.js", Some("script"), 0), Some(7), "others are");
    }

    #[test]
    fn only_raw_content_is_learned() {
        let mut store = LearnedStore::new(1 << 20);
        let use_as =
            UseAs { pattern: Pattern::new("/*").unwrap(), destinations: Vec::new(), id: "".into() };
        let body = Bytes::from([&[0x37, 0xA4, 0x30, 0xEC][..], &[1; 200]].concat());
        assert!(!store.learn(lesson(use_as, Hash([1; 32]), body), 0));
        assert_eq!(found(&store, "/a", None, 0), None);
    }

    #[test]
    fn the_oldest_go_first_and_all_is_given_back() {
        let mut store = LearnedStore::new(10 * (1000 + ENTRY_BYTES));
        for n in 0..100 {
            learn(&mut store, &format!("/{n}/*.txt"), &[], n, 900);
            assert!(store.bytes() <= 10 * (1000 + ENTRY_BYTES));
        }
        assert_eq!(found(&store, "/99/a.txt", None, 0), Some(99));
        assert_eq!(found(&store, "/1/a.txt", None, 0), None);
        learn(&mut store, "/large", &[], 1, 9000);
        assert_eq!(found(&store, "/large", None, 0), None, "one body too large");
        while let Some((seen, _)) = store.order.first_key_value() {
            let seen = *seen;
            store.remove(seen);
        }
        assert_eq!((store.bytes(), store.origins.len()), (0, 0));
    }

    /// A change a file, in their order. The file of a dictionary is its pattern's.
    #[test]
    fn what_changes_says_what_is_on_disk() {
        use LearnedChange::{Added, Dropped};
        let of = |pattern: &str, n: u8, fresh_until: u64| {
            let pattern = Pattern::new(pattern).unwrap();
            let file = Hash([pattern.as_str().as_bytes()[1]; 32]);
            let use_as = UseAs { pattern, destinations: Vec::new(), id: "".into() };
            let body = Bytes::from(vec![n; 1000]);
            NewDictionary { file, fresh_until, ..lesson(use_as, Hash([n; 32]), body) }
        };
        let changes = |store: &mut LearnedStore| {
            std::iter::from_fn(|| store.next_change()).collect::<Vec<_>>()
        };
        let mut store = LearnedStore::new(10 * 1000);
        assert!(store.learn(of("/n*", 1, 1000), 0));
        assert_eq!(changes(&mut store), [], "there is no disk");
        store.save(true);
        let file = |name: u8| Hash([name; 32]);
        for (pattern, n, until, now, expected) in [
            ("/a*", 1, 1000, 0, &[Added(2)][..]),
            // The same: it is written again when its file is fresh for less than half as long.
            ("/a*", 1, 1100, 100, &[]),
            ("/a*", 1, 1600, 600, &[Added(4)]),
            ("/a*", 2, 1600, 600, &[Added(5)]),
            ("/s*", 3, 30, 0, &[]),
        ] {
            assert!(store.learn(of(pattern, n, until), now));
            assert_eq!(changes(&mut store), expected, "{pattern} {n} {now}");
        }
        let (whose, learned) = store.numbered(5).unwrap();
        assert_eq!((whose, learned.hash), (&origin("r"), Hash([2; 32])));
        assert!(store.numbered(4).is_none(), "another has its place");
        // A failed write is tried again.
        learned.not_saved();
        assert!(store.learn(of("/a*", 2, 1600), 600));
        assert_eq!(changes(&mut store), [Added(7)]);
        store.numbered(7).unwrap().1.distrust();
        assert_eq!(changes(&mut store), [Dropped(file(b'a'))]);
        assert!(store.learn(of("/a*", 2, 9999), 600));
        assert_eq!(changes(&mut store), [], "the same bytes are still wrong");
        assert!(store.restore(of("/b*", 5, 1000)));
        assert_eq!(changes(&mut store), [], "its file is there");
        for (at, name) in (b'c'..=b'g').enumerate() {
            store.learn(of(&format!("/{}*", char::from(name)), name, 1000), 0);
            let first = [b'n', b's', b'a', b'b'].get(at.wrapping_sub(2));
            let mut expected = vec![Added(10 + at as u64)];
            expected.extend(first.map(|name| Dropped(file(*name))));
            assert_eq!(changes(&mut store), expected, "{at}");
        }
    }

    #[test]
    fn what_has_expired_leaves_memory_and_disk() {
        let mut store = LearnedStore::new(1 << 20);
        store.save(true);
        for (pattern, n, fresh_until) in [("/a*", 1, 100), ("/b", 2, 200), ("/c*", 3, 300)] {
            let pattern = Pattern::new(pattern).unwrap();
            let use_as = UseAs { pattern, destinations: Vec::new(), id: "".into() };
            let body = Bytes::from(vec![n; 1000]);
            let lesson = lesson(use_as, Hash([n; 32]), body);
            store.learn(NewDictionary { file: Hash([n; 32]), fresh_until, ..lesson }, 0);
            assert_eq!(store.next_change(), Some(LearnedChange::Added(n.into())));
        }
        let bytes = store.bytes();
        store.drop_expired(99);
        assert_eq!((store.bytes(), store.next_change()), (bytes, None));
        store.drop_expired(200);
        assert_eq!(store.bytes(), 1000 + 3 * "/c*".len() + ENTRY_BYTES);
        let mut dropped = [store.next_change().unwrap(), store.next_change().unwrap()];
        dropped.sort_by_key(|change| format!("{change:?}"));
        assert_eq!(dropped, [1, 2].map(|n| LearnedChange::Dropped(Hash([n; 32]))));
        assert_eq!(store.next_change(), None);
        store.drop_expired(300);
        assert_eq!((store.bytes(), store.origins.len()), (0, 0));
    }

    /// Workers wait for the store while it drops some, and the disk hears of each.
    #[test]
    fn many_expired_ones_are_dropped_in_steps() {
        let mut store = LearnedStore::new(1 << 20);
        store.save(true);
        for n in 0..EXPIRED_MAX + 9 {
            let pattern = Pattern::new(&format!("/{n}")).unwrap();
            let use_as = UseAs { pattern, destinations: Vec::new(), id: "".into() };
            let hash = Hash([(n % 256) as u8; 32]);
            store.learn(lesson(use_as, hash, Bytes::from(vec![1; 10])), 0);
        }
        while store.next_change().is_some() {}
        let full = store.bytes();
        assert!(!store.drop_expired(100));
        assert!(store.bytes() > 0 && store.bytes() < full);
        assert!(store.drop_expired(100));
        assert_eq!(store.bytes(), 0);
        let dropped = std::iter::from_fn(|| store.next_change()).count();
        assert_eq!(dropped, EXPIRED_MAX + 9);
    }

    /// Patterns as Subversion has them: a dictionary for each file, at any revision.
    #[test]
    fn a_thousand_patterns_are_not_scanned() {
        let mut store = LearnedStore::new(64 << 20);
        for folder in 0..50 {
            for file in 0..100 {
                let n = (folder + file) as u8;
                let pattern = format!("/svn/!svn/rvr/*/trunk/d{folder}/f{file}.c");
                learn(&mut store, &pattern, &[], n, 200);
            }
        }
        for (folder, file) in [(0, 0), (49, 99), (7, 13)] {
            let path = format!("/svn/!svn/rvr/77/trunk/d{folder}/f{file}.c");
            assert_eq!(found(&store, &path, None, 0), Some((folder + file) as u8));
            let (mut lists, mut candidates) = (0, 0);
            store.origins[&origin("r")].each_candidate(&path, |list| {
                lists += 1;
                candidates += list.len();
            });
            assert_eq!((lists, candidates), (1, 1), "one is looked at");
        }
        assert_eq!(found(&store, "/svn/!svn/rvr/77/trunk/d7/f100.c", None, 0), None);
    }

    proptest::proptest! {
        /// The index finds whatever a scan of all patterns finds.
        #[test]
        fn no_match_is_missed(
            patterns in proptest::collection::vec("/[ab*]{0,5}", 1..30),
            path in "/[ab]{0,6}",
        ) {
            let mut store = LearnedStore::new(1 << 20);
            for (n, pattern) in (0..).zip(&patterns) {
                learn(&mut store, pattern, &[], n, 10);
            }
            let matches = |pattern: &str| Pattern::new(pattern).unwrap().matches(&path);
            let scan = (0_u8..).zip(&patterns).filter(|(_, pattern)| matches(pattern));
            let best = scan.max_by_key(|(n, pattern)| (pattern.len(), *n)).map(|(n, _)| n);
            assert_eq!(found(&store, &path, None, 0), best);
        }
    }
}
