//! Weak entity tags that upstreams sent themselves. They are returned unchanged, while tags that we
//! made weak become strong again.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The hashes of the last such tags.
#[derive(Default)]
pub struct WeakTags {
    known: HashSet<u64>,
    order: VecDeque<u64>,
}

impl WeakTags {
    /// Notes a tag, if it is weak.
    pub fn note(&mut self, rule: u32, tag: &[u8]) {
        // Most tags are strong, and a hash costs.
        if !tag.starts_with(b"W/") {
            return;
        }
        let hash = hash(rule, tag);
        if !self.known.insert(hash) {
            return;
        }
        self.order.push_back(hash);
        if self.order.len() > TAGS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// True if the upstream sent it.
    pub fn knows(&self, rule: u32, tag: &[u8]) -> bool {
        self.known.contains(&hash(rule, tag))
    }
}

fn hash(rule: u32, tag: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (rule, tag).hash(&mut hasher);
    hasher.finish()
}

/// Most tags: 128 KiB a worker. Forgetting one costs a full response from an upstream that compares
/// tags as texts, and nothing else: If-None-Match compares weakly (RFC 9110 section 13.1.2).
const TAGS_MAX: usize = 4096;
