//! Counts how often each of a few constant texts occurred. One thread counts, and others read.

use std::sync::OnceLock;

use crate::cell::Cell;

/// Texts that are counted one by one. Reasons are the most: about 27 kinds of faults, 11 limits, 16
/// refusals, 16 other fixed texts and 7 classes.
const TEXTS_MAX: usize = 96;
/// Stands for all further texts.
const OTHERS: &str = "others";

/// The counts, in the order in which their texts occurred first.
#[derive(Debug, Default)]
pub struct TextCounts {
    /// Allocated at the first text: a process at rest has none.
    entries: OnceLock<Box<[Entry; TEXTS_MAX]>>,
    others: Cell,
}

#[derive(Debug, Default)]
struct Entry {
    text: OnceLock<&'static str>,
    count: Cell,
}

impl TextCounts {
    /// Counts a text. Only one thread may call this.
    pub fn up(&self, text: &'static str) {
        let of_text = |entry: &&Entry| *entry.text.get_or_init(|| text) == text;
        let entries =
            self.entries.get_or_init(|| Box::new(std::array::from_fn(|_| Entry::default())));
        entries.iter().find(of_text).map_or(&self.others, |entry| &entry.count).up();
    }

    /// Calls `note` with each text and its count.
    pub fn each(&self, mut note: impl FnMut(&'static str, u64)) {
        for entry in self.entries.get().into_iter().flat_map(|entries| entries.iter()) {
            let Some(text) = entry.text.get() else { break };
            note(text, entry.count.value());
        }
        if self.others.value() > 0 {
            note(OTHERS, self.others.value());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_counted_and_bounded() {
        let counts = TextCounts::default();
        for text in ["a", "b", "a"] {
            counts.up(text);
        }
        for _ in 0..TEXTS_MAX {
            counts.up(Box::leak(format!("{:?}", std::time::Instant::now()).into_boxed_str()));
        }
        let mut seen = Vec::new();
        counts.each(|text, count| seen.push((text, count)));
        assert_eq!(seen[..2], [("a", 2), ("b", 1)]);
        assert_eq!((seen.len(), seen.last()), (TEXTS_MAX + 1, Some(&("others", 2))));
    }
}
