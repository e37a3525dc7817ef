//! The dictionary store: the last versions of each family, and the deltas between versions, within
//! one limit in bytes. It may hold one family a file, so each lookup is by a hash, not a scan.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use super::Hash;
use super::pattern::Pattern;
use crate::accept::Coding;

/// Responses that may be dictionaries for each other: of one rule, one origin, one pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Family {
    /// The rule's name, which is the same after a restart.
    pub rule: Box<str>,
    /// The authority of the request, in lower case: dictionaries never leave their origin.
    pub origin: Box<str>,
    /// The `match` that clients are told.
    pub pattern: Pattern,
    /// True if these are versions of one file, by `{file}` in the rule's pattern.
    pub is_file: bool,
}

impl Family {
    const fn versions_max(&self) -> usize {
        if self.is_file { FILE_VERSIONS_MAX } else { FAMILY_VERSIONS_MAX }
    }
}

/// A stored response.
#[derive(Debug, PartialEq, Eq)]
pub struct StoredVersion {
    /// The hash of `body`.
    pub hash: Hash,
    /// The responses in which it was seen, at least one. The last one is the newest.
    pub sightings: Vec<Sighting>,
    /// Decoded content.
    pub body: Bytes,
}

/// A response in which it was seen: files of several families may have the same bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The family.
    pub family: Family,
    /// The path at which the family last had it.
    pub path: Box<str>,
    /// Sequence number of that time.
    pub seen: u64,
}

impl StoredVersion {
    /// Returns the sighting in this family.
    pub fn sighting(&self, family: &Family) -> Option<&Sighting> {
        self.sightings.iter().find(|sighting| sighting.family == *family)
    }

    /// Sequence number of the last time that it was seen anywhere.
    pub fn seen(&self) -> u64 {
        self.sightings.iter().map(|sighting| sighting.seen).max().unwrap_or_default()
    }
}

/// Names a delta: from a version that a client has to one that it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// The dictionary.
    pub from: Hash,
    /// The body.
    pub to: Hash,
    /// dcz or dcb.
    pub coding: Coding,
}

impl Step {
    /// True if the body is the dictionary itself.
    pub fn is_unchanged(self) -> bool {
        self.from == self.to
    }
}

/// A finished coded body, with the header of its coding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The bytes to send.
    pub coded: Bytes,
    /// The coder's own level.
    pub level: u8,
}

/// Versions and deltas within a limit in bytes.
#[derive(Debug)]
pub struct Store {
    versions: HashMap<Hash, Arc<StoredVersion>>,
    /// The versions of each family, in no order.
    families: HashMap<Family, Vec<Hash>>,
    /// All versions by when they were last seen, the oldest first.
    by_age: BTreeSet<(u64, Hash)>,
    /// Only between versions that have a family in common.
    deltas: HashMap<Step, Delta>,
    bytes: usize,
    bytes_max: usize,
    seen: u64,
}

/// The effect of a change on the copy on disk.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// The version that is new.
    pub added: Option<Hash>,
    /// Versions that are gone.
    pub versions_dropped: Vec<Hash>,
    /// Deltas that are gone.
    pub deltas_dropped: Vec<Step>,
}

impl Store {
    /// An empty store of at most `bytes_max` bytes of bodies and deltas.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            versions: HashMap::new(),
            families: HashMap::new(),
            by_age: BTreeSet::new(),
            deltas: HashMap::new(),
            bytes: 0,
            bytes_max,
            seen: 0,
        }
    }

    /// Bytes of bodies and deltas.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A version of this family. A hash of another family counts as unknown.
    pub fn version(&self, family: &Family, hash: Hash) -> Option<Arc<StoredVersion>> {
        self.versions.get(&hash).filter(|version| version.sighting(family).is_some()).cloned()
    }

    /// A version of any family, to be served itself.
    pub fn any_version(&self, hash: Hash) -> Option<Arc<StoredVersion>> {
        self.versions.get(&hash).cloned()
    }

    /// The version that was last seen at a path.
    pub fn last_at(&self, family: &Family, path: &str) -> Option<Arc<StoredVersion>> {
        let is_at = |version: &&Arc<StoredVersion>| {
            version.sighting(family).is_some_and(|sighting| *sighting.path == *path)
        };
        self.of(family).filter(is_at).max_by_key(|version| seen_by(version, family)).cloned()
    }

    /// The last versions of a family, newest first.
    pub fn family(&self, family: &Family) -> Vec<Arc<StoredVersion>> {
        let mut found: Vec<_> = self.of(family).cloned().collect();
        found.sort_by_key(|version| std::cmp::Reverse(seen_by(version, family)));
        found
    }

    fn of(&self, family: &Family) -> impl Iterator<Item = &Arc<StoredVersion>> {
        let hashes = self.families.get(family).map(Vec::as_slice).unwrap_or_default();
        hashes.iter().filter_map(|hash| self.versions.get(hash))
    }

    /// A finished delta.
    pub fn delta(&self, step: Step) -> Option<&Delta> {
        self.deltas.get(&step)
    }

    /// Stores a version, and drops the oldest ones beyond the limits.
    pub fn note_seen(&mut self, family: Family, path: &str, hash: Hash, body: Bytes) -> Changed {
        self.seen += 1;
        let mut changed = Changed::default();
        let known = self.versions.get(&hash);
        let (mut sightings, body) = match known {
            Some(known) if known.sighting(&family).is_some_and(|at| *at.path == *path) => {
                return changed;
            }
            // The same bytes elsewhere: memory has them once.
            Some(known) => (known.sightings.clone(), known.body.clone()),
            // A single body must not displace everything else.
            None if body.len() > self.bytes_max / 4 => return changed,
            None => (Vec::new(), body),
        };
        sightings.retain(|sighting| sighting.family != family);
        if sightings.len() >= SIGHTINGS_MAX {
            self.leave(&sightings.remove(0).family, hash, &mut changed);
        }
        sightings.push(Sighting { family, path: path.into(), seen: self.seen });
        self.insert(StoredVersion { hash, sightings, body });
        changed.added = Some(hash);
        self.shrink(hash, &mut changed);
        changed
    }

    /// Restores a version from disk, in any order. Limits apply as in [`Store::note_seen`].
    pub fn restore(&mut self, version: StoredVersion) -> Changed {
        let mut changed = Changed::default();
        let hash = version.hash;
        if version.body.len() > self.bytes_max / 4 || !has_sightings(&version) {
            changed.versions_dropped.push(hash);
            return changed;
        }
        self.seen = self.seen.max(version.seen());
        self.insert(version);
        self.shrink(hash, &mut changed);
        changed
    }

    /// Stores a delta, if both of its versions are still here and there is room.
    pub fn keep(&mut self, step: Step, delta: Delta) -> bool {
        let old = self.deltas.get(&step).map_or(0, |old| old.coded.len());
        if !self.has(step) || self.bytes - old + delta.coded.len() > self.bytes_max {
            return false;
        }
        self.bytes = self.bytes - old + delta.coded.len();
        self.deltas.insert(step, delta);
        true
    }

    fn has(&self, step: Step) -> bool {
        let (from, to) = (self.versions.get(&step.from), self.versions.get(&step.to));
        from.zip(to).is_some_and(|(from, to)| {
            from.sightings.iter().any(|sighting| to.sighting(&sighting.family).is_some())
        })
    }

    fn insert(&mut self, version: StoredVersion) {
        let hash = version.hash;
        self.take_out(hash);
        self.bytes += version.body.len();
        self.by_age.insert((version.seen(), hash));
        for sighting in &version.sightings {
            self.families.entry(sighting.family.clone()).or_default().push(hash);
        }
        self.versions.insert(hash, Arc::new(version));
    }

    /// Takes a version out of the tables. Its deltas stay.
    fn take_out(&mut self, hash: Hash) -> Option<Arc<StoredVersion>> {
        let version = self.versions.remove(&hash)?;
        self.bytes -= version.body.len();
        self.by_age.remove(&(version.seen(), hash));
        for sighting in &version.sightings {
            if let Some(hashes) = self.families.get_mut(&sighting.family) {
                hashes.retain(|other| *other != hash);
                if hashes.is_empty() {
                    self.families.remove(&sighting.family);
                }
            }
        }
        Some(version)
    }

    /// Drops the oldest first: of the families of `newest` beyond their limits, then of all.
    fn shrink(&mut self, newest: Hash, changed: &mut Changed) {
        let sightings = self.versions.get(&newest).map(|version| version.sightings.clone());
        for family in sightings.into_iter().flatten().map(|sighting| sighting.family) {
            for old in self.family(&family).iter().skip(family.versions_max()) {
                self.leave(&family, old.hash, changed);
            }
        }
        while self.bytes > self.bytes_max {
            let Some((_, oldest)) = self.by_age.first().copied() else { break };
            let Some(version) = self.versions.get(&oldest).cloned() else { break };
            for sighting in &version.sightings {
                self.leave(&sighting.family, oldest, changed);
            }
        }
    }

    /// Takes a version out of a family, and out of the store if it was the last one.
    fn leave(&mut self, family: &Family, hash: Hash, changed: &mut Changed) {
        for other in self.families.get(family).cloned().unwrap_or_default() {
            for coding in [Coding::Dcz, Coding::Dcb] {
                self.remove_delta(Step { from: hash, to: other, coding }, changed);
                self.remove_delta(Step { from: other, to: hash, coding }, changed);
            }
        }
        let Some(version) = self.take_out(hash) else { return };
        let mut sightings = version.sightings.clone();
        sightings.retain(|sighting| sighting.family != *family);
        match sightings.is_empty() {
            true => changed.versions_dropped.push(hash),
            false => self.insert(StoredVersion { hash, sightings, body: version.body.clone() }),
        }
    }

    fn remove_delta(&mut self, step: Step, changed: &mut Changed) {
        if let Some(delta) = self.deltas.remove(&step) {
            self.bytes -= delta.coded.len();
            changed.deltas_dropped.push(step);
        }
    }
}

/// True if a version from disk was seen somewhere, and once in each family.
fn has_sightings(version: &StoredVersion) -> bool {
    let sightings = &version.sightings;
    let is_once = sightings.iter().all(|sighting| {
        sightings.iter().filter(|other| other.family == sighting.family).count() == 1
    });
    (1..=SIGHTINGS_MAX).contains(&sightings.len()) && is_once
}

fn seen_by(version: &StoredVersion, family: &Family) -> u64 {
    version.sighting(family).map_or(0, |sighting| sighting.seen)
}

/// Most versions of one family: returning clients have one of the last few, and each costs a delta.
pub const FAMILY_VERSIONS_MAX: usize = 8;
/// Most versions of one file: there may be thousands of files, and a client that returns has the
/// last version of most of them.
pub const FILE_VERSIONS_MAX: usize = 2;
/// Most families that have the same bytes, such as a file on the branches of a repository. Beyond
/// that the family that has had them longest loses them.
pub const SIGHTINGS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn family(pattern: &str) -> Family {
        let pattern = Pattern::new(pattern).unwrap();
        Family { rule: "app".into(), origin: "a.example".into(), pattern, is_file: false }
    }

    fn note_seen(store: &mut Store, pattern: &str, n: u8, len: usize) -> Changed {
        let path = format!("/{n}");
        store.note_seen(family(pattern), &path, Hash([n; 32]), Bytes::from(vec![n; len]))
    }

    #[test]
    fn the_oldest_go_first_and_their_deltas_with_them() {
        let mut store = Store::new(1000);
        for n in 1..=4 {
            assert_eq!(note_seen(&mut store, "/*", n, 240).added, Some(Hash([n; 32])));
        }
        let step = Step { from: Hash([1; 32]), to: Hash([2; 32]), coding: Coding::Dcz };
        let delta = Delta { coded: Bytes::from_static(b"delta"), level: 11 };
        assert!(store.keep(step, delta.clone()));
        assert_eq!(store.delta(step), Some(&delta));
        let changed = note_seen(&mut store, "/*", 5, 200);
        assert_eq!(changed.versions_dropped, [Hash([1; 32])]);
        assert_eq!(changed.deltas_dropped, [step]);
        assert_eq!(store.bytes(), 3 * 240 + 200);
        assert!(!store.keep(step, delta));
        assert_eq!(note_seen(&mut store, "/*", 6, 251), Changed::default(), "one body too large");
    }

    #[test]
    fn a_family_keeps_its_last_versions_only() {
        let mut store = Store::new(1 << 20);
        for n in 0..20 {
            note_seen(&mut store, "/*", n, 10);
        }
        note_seen(&mut store, "/other/*", 100, 10);
        let kept: Vec<u8> = store.family(&family("/*")).iter().map(|v| v.hash.0[0]).collect();
        assert_eq!(kept, [19, 18, 17, 16, 15, 14, 13, 12]);
        assert_eq!(store.bytes(), 90);
    }

    #[test]
    fn a_hash_of_another_family_is_unknown() {
        let mut store = Store::new(1 << 20);
        note_seen(&mut store, "/a/*", 1, 10);
        assert!(store.version(&family("/a/*"), Hash([1; 32])).is_some());
        assert!(store.version(&family("/b/*"), Hash([1; 32])).is_none());
        let elsewhere = Family { origin: "b.example".into(), ..family("/a/*") };
        assert!(store.version(&elsewhere, Hash([1; 32])).is_none());
        assert_eq!(note_seen(&mut store, "/a/*", 1, 10), Changed::default(), "seen before");
    }

    #[test]
    fn a_file_keeps_two_versions_and_shares_its_bytes() {
        let mut store = Store::new(1 << 20);
        let file = |path: &str| Family { is_file: true, ..family(path) };
        let body = |n: u8| Bytes::from(vec![n; 100]);
        let see = |store: &mut Store, path: &str, n: u8| {
            store.note_seen(file(path), path, Hash([n; 32]), body(n))
        };
        see(&mut store, "/trunk/a", 1);
        see(&mut store, "/branch/a", 1);
        assert_eq!(store.bytes(), 100, "memory has them once");
        for path in ["/trunk/a", "/branch/a"] {
            assert!(store.version(&file(path), Hash([1; 32])).is_some(), "{path}");
            assert!(store.last_at(&file(path), path).is_some(), "{path}");
        }
        see(&mut store, "/trunk/a", 2);
        let step = Step { from: Hash([1; 32]), to: Hash([2; 32]), coding: Coding::Dcz };
        assert!(store.keep(step, Delta { coded: Bytes::from_static(b"delta"), level: 11 }));
        let changed = see(&mut store, "/trunk/a", 3);
        assert_eq!(changed.deltas_dropped, [step], "the trunk forgets its third");
        assert_eq!(changed.versions_dropped, [], "the branch still has it");
        assert!(store.version(&file("/trunk/a"), Hash([1; 32])).is_none());
        assert!(store.version(&file("/branch/a"), Hash([1; 32])).is_some());
        assert_eq!(store.bytes(), 300);
    }

    #[test]
    fn the_same_bytes_have_a_limited_number_of_families() {
        let mut store = Store::new(1 << 20);
        for n in 0..40 {
            note_seen(&mut store, &format!("/{n}/*"), 1, 10);
        }
        let version = store.any_version(Hash([1; 32])).unwrap();
        assert_eq!(version.sightings.len(), SIGHTINGS_MAX);
        assert!(version.sighting(&family("/39/*")).is_some());
        assert!(version.sighting(&family("/0/*")).is_none());
        assert_eq!((store.families.len(), store.by_age.len()), (SIGHTINGS_MAX, 1));
    }

    #[test]
    fn thousands_of_files_come_and_go() {
        let mut store = Store::new(100 * 1000);
        for n in 0..5_000_u32 {
            let mut hash = [0; 32];
            hash[..4].copy_from_slice(&n.to_le_bytes());
            let path = format!("/{n}");
            let file = Family { is_file: true, ..family(&path) };
            store.note_seen(file, &path, Hash(hash), Bytes::from(vec![0; 100]));
        }
        assert_eq!(store.bytes(), 100 * 1000);
        let tables = (store.versions.len(), store.families.len(), store.by_age.len());
        assert_eq!(tables, (1000, 1000, 1000), "nothing is left of those that are gone");
        let last = Family { is_file: true, ..family("/4999") };
        assert!(store.last_at(&last, "/4999").is_some());
    }

    #[test]
    fn restored_versions_keep_to_the_limits() {
        let mut store = Store::new(100);
        let mut restore = |n: u8, length: usize| {
            let (hash, body) = (Hash([n; 32]), Bytes::from(vec![n; length]));
            let (family, path) = (family(&format!("/{n}")), "/".into());
            let sightings = vec![Sighting { family, path, seen: u64::from(n) }];
            let gone = store.restore(StoredVersion { hash, sightings, body }).versions_dropped;
            assert!(store.bytes() <= 100, "{} bytes", store.bytes());
            gone
        };
        for n in [3, 1, 5, 4] {
            assert_eq!(restore(n, 25), []);
        }
        assert_eq!(restore(2, 20), [Hash([1; 32])], "the oldest goes");
        assert_eq!(restore(9, 26), [Hash([9; 32])], "one body too large");
        assert_eq!(note_seen(&mut store, "/*", 6, 5).added, Some(Hash([6; 32])));
        let seen = store.any_version(Hash([6; 32])).map(|version| version.seen());
        assert_eq!(seen, Some(6), "later than all that was restored");
    }
}
