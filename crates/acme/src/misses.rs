//! Questions about challenges that the store of the fleet had no answer to, so that a flood of them
//! does not ask it each time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::store::Kind;

/// The time for which a miss is remembered. An edge that publishes an answer tells the ACME server
/// only after this time: then no edge remembers that there was none.
pub const KEPT: Duration = Duration::from_secs(1);
/// Misses that are remembered at once: of names or tokens with less than 256 bytes each.
const MISSES_MAX: usize = 1024;

/// The misses of the last moment.
#[derive(Default)]
pub struct Misses(HashMap<(Kind, Box<str>), Instant>);

impl Misses {
    /// True if there was no answer a moment ago.
    pub fn has(&self, kind: Kind, id: &str, now: Instant) -> bool {
        let since = self.0.get(&(kind, id.into()));
        since.is_some_and(|since| now.saturating_duration_since(*since) < KEPT)
    }

    /// Notes that there is no answer. With no room the next question asks the store.
    pub fn note(&mut self, kind: Kind, id: Box<str>, now: Instant) {
        if self.0.len() >= MISSES_MAX {
            self.0.retain(|_, since| now.saturating_duration_since(*since) < KEPT);
        }
        if self.0.len() < MISSES_MAX {
            self.0.insert((kind, id), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_few_and_short() {
        let (mut misses, now) = (Misses::default(), Instant::now());
        misses.note(Kind::Http, "a".into(), now);
        assert!(misses.has(Kind::Http, "a", now));
        assert!(!misses.has(Kind::TlsAlpn, "a", now));
        assert!(!misses.has(Kind::Http, "b", now));
        assert!(!misses.has(Kind::Http, "a", now + KEPT), "forgotten");
        for n in 0..2 * MISSES_MAX {
            misses.note(Kind::Http, n.to_string().into(), now);
        }
        assert_eq!(misses.0.len(), MISSES_MAX);
        misses.note(Kind::Http, "later".into(), now + KEPT);
        assert_eq!(misses.0.len(), 1, "old ones make room");
    }
}
