//! Dictionaries that an edge has learned as a client of origins (RFC 9842 section 2.2): which one
//! to name in a request. A server may have one for each of its files, so look-ups are indexed.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Included, Unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;

use super::use_as::UseAs;
use super::{DICTIONARY_BYTES_MAX, Hash};
use crate::coder::zstd::is_raw;

/// Whose responses may be dictionaries for each other: of one rule and one origin.
pub type LearnedOrigin = (Box<str>, Box<str>);

/// A response that is a dictionary.
#[derive(Debug)]
pub struct Learned {
    /// The hash of `body`.
    pub hash: Hash,
    /// Decoded content.
    pub body: Bytes,
    /// What its server said.
    pub use_as: UseAs,
    /// It is used before this second since 1970 (section 2.2.1).
    pub fresh_until: u64,
    /// Its number: later ones are larger.
    seen: u64,
    /// Whether its server has coded with another one.
    is_wrong: AtomicBool,
}

/// Dictionaries within a limit in bytes. The oldest go first.
#[derive(Debug, Default)]
pub struct LearnedStore {
    origins: HashMap<LearnedOrigin, Index>,
    /// Where each is, by its number.
    order: BTreeMap<u64, (LearnedOrigin, Box<str>)>,
    bytes: usize,
    bytes_max: usize,
    seen: u64,
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
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Bytes of bodies and what belongs to them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The largest body that is stored: one must not displace everything else.
    #[must_use]
    pub fn body_bytes_max(&self) -> usize {
        (self.bytes_max / 4).min(DICTIONARY_BYTES_MAX)
    }

    /// The best dictionary for a path (section 2.2.3): one for this request destination before one
    /// for all, then the longest pattern, then the newest.
    #[must_use]
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
    pub fn learn(
        &mut self,
        origin: LearnedOrigin,
        use_as: UseAs,
        (hash, body): (Hash, Bytes),
        fresh_until: u64,
    ) {
        // Decoders would take a body with zstd's own header for more than raw content.
        if body.len() > self.body_bytes_max() || !is_raw(&body) {
            return;
        }
        self.seen += 1;
        let pattern: Box<str> = use_as.pattern.as_str().into();
        let index = self.origins.entry(origin.clone()).or_default();
        let list = index.list(&pattern);
        let same = list.iter().find(|old| {
            old.use_as.pattern == use_as.pattern && old.use_as.destinations == use_as.destinations
        });
        let gone = match same {
            Some(old) => Some(old.seen),
            None if list.len() >= SAME_END_MAX => list.iter().map(|old| old.seen).min(),
            None => None,
        };
        // The same bytes are still wrong.
        let is_wrong = same.is_some_and(|old| old.hash == hash && old.is_wrong.load(Relaxed));
        let (seen, is_wrong) = (self.seen, AtomicBool::new(is_wrong));
        let learned = Arc::new(Learned { hash, body, use_as, fresh_until, seen, is_wrong });
        self.bytes += learned.bytes();
        list.push(learned);
        self.order.insert(self.seen, (origin, pattern));
        if let Some(gone) = gone {
            self.remove(gone);
        }
        while self.bytes > self.bytes_max
            && let Some((oldest, _)) = self.order.first_key_value()
        {
            self.remove(*oldest);
        }
    }

    fn remove(&mut self, seen: u64) {
        let Some((origin, pattern)) = self.order.remove(&seen) else { return };
        let Some(index) = self.origins.get_mut(&origin) else { return };
        let list = index.list(&pattern);
        if let Some(at) = list.iter().position(|learned| learned.seen == seen) {
            self.bytes -= list.swap_remove(at).bytes();
        }
        if list.is_empty() {
            index.drop_list(&pattern);
        }
        if index.exact.is_empty() && index.by_end.is_empty() {
            self.origins.remove(&origin);
        }
    }
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
/// Bytes of an entry beside its body and its texts, the maps' share included.
const ENTRY_BYTES: usize = 512;

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
        store.learn(origin("r"), use_as, (Hash([n; 32]), Bytes::from(vec![n; len])), 100);
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
        store.learn(origin("r"), use_as, (Hash([1; 32]), body), 100);
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

    /// As Subversion has them: a dictionary for each file, at any revision.
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
