//! Counts what happened, so that a test can tell that everything did.

use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events(BTreeMap<String, usize>);

impl Events {
    pub fn note(&mut self, event: &str) {
        self.add_many(event, 1);
    }

    pub fn add_many(&mut self, event: &str, count: usize) {
        *self.0.entry(event.to_owned()).or_default() += count;
    }

    /// The number of times that an event happened.
    pub fn count(&self, event: &str) -> usize {
        self.0.get(event).copied().unwrap_or(0)
    }

    pub fn add(&mut self, other: &Self) {
        for (event, count) in &other.0 {
            self.add_many(event, *count);
        }
    }

    /// Panics if one of these never happened.
    pub fn check(&self, wanted: &[&str]) {
        let missing: Vec<_> = wanted.iter().filter(|event| !self.0.contains_key(**event)).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}

impl fmt::Display for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(event, count)| write!(f, "\n{count:>8} {event}"))
    }
}
