//! Weak entity tags that upstreams sent themselves: they are given back as they are, while those
//! that were made weak here become strong again. It must not know who asks.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The last ones, by their hash.
#[derive(Default)]
pub struct WeakTags {
    known: HashSet<u64>,
    order: VecDeque<u64>,
}

impl WeakTags {
    /// Notes a tag, if it is a weak one.
    pub fn note(&mut self, rule: u32, tag: &[u8]) {
        let hash = hash(rule, tag);
        if !tag.starts_with(b"W/") || !self.known.insert(hash) {
            return;
        }
        self.order.push_back(hash);
        if self.order.len() > TAGS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// Whether the upstream sent it.
    pub fn knows(&self, rule: u32, tag: &[u8]) -> bool {
        self.known.contains(&hash(rule, tag))
    }
}

fn hash(rule: u32, tag: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (rule, tag).hash(&mut hasher);
    hasher.finish()
}

/// 128 KiB a worker. One that is forgotten costs a full response to an upstream that compares
/// tags as texts, nothing else: If-None-Match compares weakly (RFC 9110 section 13.1.2).
const TAGS_MAX: usize = 4096;
