//! The dictionary store: the last versions of each family, trained dictionaries, and the deltas
//! between versions, within one limit in bytes.

use std::collections::HashMap;
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
    /// The pattern that the rule gives.
    pub pattern: Pattern,
}

/// A stored response.
#[derive(Debug, PartialEq, Eq)]
pub struct StoredVersion {
    /// The hash of `body`.
    pub hash: Hash,
    /// Its family.
    pub family: Family,
    /// The path at which it was last seen.
    pub path: Box<str>,
    /// Decoded content.
    pub body: Bytes,
    /// Sequence number of the last time it was seen.
    pub seen: u64,
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
    deltas: HashMap<Step, Delta>,
    bytes: usize,
    bytes_max: usize,
    seen: u64,
}

/// What a change means for the copy on disk.
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
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        let (versions, deltas) = (HashMap::new(), HashMap::new());
        Self { versions, deltas, bytes: 0, bytes_max, seen: 0 }
    }

    /// Bytes of bodies and deltas.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A version of this family. A hash of another family counts as unknown.
    #[must_use]
    pub fn version(&self, family: &Family, hash: Hash) -> Option<Arc<StoredVersion>> {
        self.versions.get(&hash).filter(|version| version.family == *family).cloned()
    }

    /// A version of any family, to be served itself.
    #[must_use]
    pub fn any_version(&self, hash: Hash) -> Option<Arc<StoredVersion>> {
        self.versions.get(&hash).cloned()
    }

    /// The version that was last seen at a path.
    #[must_use]
    pub fn last_at(&self, family: &Family, path: &str) -> Option<Arc<StoredVersion>> {
        let of_path =
            |version: &&Arc<StoredVersion>| version.family == *family && *version.path == *path;
        self.versions.values().filter(of_path).max_by_key(|version| version.seen).cloned()
    }

    /// The last versions of a family, newest first.
    #[must_use]
    pub fn family(&self, family: &Family) -> Vec<Arc<StoredVersion>> {
        let of_it = |version: &&Arc<StoredVersion>| version.family == *family;
        let mut found: Vec<_> = self.versions.values().filter(of_it).cloned().collect();
        found.sort_by_key(|version| std::cmp::Reverse(version.seen));
        found
    }

    /// A finished delta.
    #[must_use]
    pub fn delta(&self, step: Step) -> Option<&Delta> {
        self.deltas.get(&step)
    }

    /// Stores a version, and drops the oldest ones beyond the limits.
    pub fn see(&mut self, family: Family, path: &str, hash: Hash, body: Bytes) -> Changed {
        self.seen += 1;
        let mut changed = Changed::default();
        if let Some(known) = self.versions.get(&hash) {
            // The same bytes elsewhere: they now belong to the family that showed them last.
            if known.family == family && *known.path == *path {
                return changed;
            }
        } else if body.len() > self.bytes_max / 4 {
            // A single body must not displace everything else.
            return changed;
        }
        let version = StoredVersion { hash, family, path: path.into(), body, seen: self.seen };
        self.insert(version);
        changed.added = Some(hash);
        self.shrink(hash, &mut changed);
        changed
    }

    /// Restores a version from disk, in any order. Limits apply as in [`Store::see`].
    pub fn restore(&mut self, version: StoredVersion) -> Changed {
        let mut changed = Changed::default();
        if version.body.len() > self.bytes_max / 4 {
            changed.versions_dropped.push(version.hash);
            return changed;
        }
        self.seen = self.seen.max(version.seen);
        self.insert(version);
        if self.bytes > self.bytes_max {
            changed = self.settle();
        }
        changed
    }

    /// Drops what exceeds the limits, after all versions were restored.
    pub fn settle(&mut self) -> Changed {
        let mut changed = Changed::default();
        if let Some(newest) = self.versions.values().max_by_key(|v| v.seen).map(|v| v.hash) {
            self.shrink(newest, &mut changed);
        }
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
        self.versions.contains_key(&step.from) && self.versions.contains_key(&step.to)
    }

    fn insert(&mut self, version: StoredVersion) {
        self.bytes += version.body.len();
        if let Some(old) = self.versions.insert(version.hash, Arc::new(version)) {
            self.bytes -= old.body.len();
        }
    }

    /// Drops the oldest first: of the family of `newest` beyond [`FAMILY_VERSIONS_MAX`], then of
    /// all.
    fn shrink(&mut self, newest: Hash, changed: &mut Changed) {
        let mut families: HashMap<&Family, Vec<(u64, Hash)>> = HashMap::new();
        for version in self.versions.values() {
            families.entry(&version.family).or_default().push((version.seen, version.hash));
        }
        let mut excess = Vec::new();
        for found in families.values_mut() {
            found.sort_unstable_by(|a, b| b.cmp(a));
            excess.extend(found.iter().skip(FAMILY_VERSIONS_MAX).map(|(_, hash)| *hash));
        }
        for hash in excess {
            self.remove(hash, changed);
        }
        while self.bytes > self.bytes_max {
            let others = self.versions.values().filter(|version| version.hash != newest);
            let Some(oldest) = others.min_by_key(|version| version.seen) else { break };
            let hash = oldest.hash;
            self.remove(hash, changed);
        }
    }

    fn remove(&mut self, hash: Hash, changed: &mut Changed) {
        let Some(version) = self.versions.remove(&hash) else { return };
        self.bytes -= version.body.len();
        changed.versions_dropped.push(hash);
        let steps: Vec<Step> =
            self.deltas.keys().copied().filter(|s| s.from == hash || s.to == hash).collect();
        for step in steps {
            self.remove_delta(step, changed);
        }
    }

    fn remove_delta(&mut self, step: Step, changed: &mut Changed) {
        if let Some(delta) = self.deltas.remove(&step) {
            self.bytes -= delta.coded.len();
            changed.deltas_dropped.push(step);
        }
    }
}

/// Most versions of one family: returning clients have one of the last few, and each costs a delta.
pub const FAMILY_VERSIONS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn family(pattern: &str) -> Family {
        let pattern = Pattern::new(pattern).unwrap();
        Family { rule: "app".into(), origin: "a.example".into(), pattern }
    }

    fn see(store: &mut Store, pattern: &str, n: u8, len: usize) -> Changed {
        let path = format!("/{n}");
        store.see(family(pattern), &path, Hash([n; 32]), Bytes::from(vec![n; len]))
    }

    #[test]
    fn the_oldest_go_first_and_their_deltas_with_them() {
        let mut store = Store::new(1000);
        for n in 1..=4 {
            assert_eq!(see(&mut store, "/*", n, 240).added, Some(Hash([n; 32])));
        }
        let step = Step { from: Hash([1; 32]), to: Hash([2; 32]), coding: Coding::Dcz };
        let delta = Delta { coded: Bytes::from_static(b"delta"), level: 11 };
        assert!(store.keep(step, delta.clone()));
        assert_eq!(store.delta(step), Some(&delta));
        let changed = see(&mut store, "/*", 5, 200);
        assert_eq!(changed.versions_dropped, [Hash([1; 32])]);
        assert_eq!(changed.deltas_dropped, [step]);
        assert_eq!(store.bytes(), 3 * 240 + 200);
        assert!(!store.keep(step, delta));
        assert_eq!(see(&mut store, "/*", 6, 251), Changed::default(), "one body too large");
    }

    #[test]
    fn a_family_keeps_its_last_versions_only() {
        let mut store = Store::new(1 << 20);
        for n in 0..20 {
            see(&mut store, "/*", n, 10);
        }
        see(&mut store, "/other/*", 100, 10);
        let kept: Vec<u8> = store.family(&family("/*")).iter().map(|v| v.hash.0[0]).collect();
        assert_eq!(kept, [19, 18, 17, 16, 15, 14, 13, 12]);
        assert_eq!(store.bytes(), 90);
    }

    #[test]
    fn a_hash_of_another_family_is_unknown() {
        let mut store = Store::new(1 << 20);
        see(&mut store, "/a/*", 1, 10);
        assert!(store.version(&family("/a/*"), Hash([1; 32])).is_some());
        assert!(store.version(&family("/b/*"), Hash([1; 32])).is_none());
        let elsewhere = Family { origin: "b.example".into(), ..family("/a/*") };
        assert!(store.version(&elsewhere, Hash([1; 32])).is_none());
        assert_eq!(see(&mut store, "/a/*", 1, 10), Changed::default(), "seen before");
    }

    #[test]
    fn restored_versions_keep_to_the_limits() {
        let mut store = Store::new(100);
        let mut restore = |n: u8, length: usize| {
            let (hash, body) = (Hash([n; 32]), Bytes::from(vec![n; length]));
            let (family, path) = (family(&format!("/{n}")), "/".into());
            let gone = store
                .restore(StoredVersion { hash, family, path, body, seen: u64::from(n) })
                .versions_dropped;
            assert!(store.bytes() <= 100, "{} bytes", store.bytes());
            gone
        };
        for n in [3, 1, 5, 4] {
            assert_eq!(restore(n, 25), []);
        }
        assert_eq!(restore(2, 20), [Hash([1; 32])], "the oldest goes");
        assert_eq!(restore(9, 26), [Hash([9; 32])], "one body too large");
        assert_eq!(store.settle(), Changed::default(), "no family has too many");
        assert_eq!(see(&mut store, "/*", 6, 5).added, Some(Hash([6; 32])));
        let seen = store.any_version(Hash([6; 32])).map(|version| version.seen);
        assert_eq!(seen, Some(6), "later than all that was restored");
    }
}
