//! Verdicts that pass from a process to the one that takes over: those that are remembered, and
//! those that were given while connections moved.

use super::{Holds, Kept};
use crate::question::HoldKey;
use crate::verdict::{HoldDecision, KEPT_MAX};

/// A verdict of another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedVerdict {
    pub key: HoldKey,
    pub decision: HoldDecision,
    /// Milliseconds for which it still holds. 0: it is for those who wait.
    pub left_ms: u64,
}

impl Holds {
    /// Connections begin to move: from now on each verdict is noted, because who waits for it may
    /// be on the way.
    pub fn begin_handover(&self) {
        self.state.lock().given = Some(Vec::new());
    }

    /// They stay, or all have moved.
    pub fn end_handover(&self) {
        self.state.lock().given = None;
    }

    /// The verdicts that are remembered, and those that were noted.
    pub fn handed(&self, now_unix_ms: u64) -> Vec<HandedVerdict> {
        let state = self.state.lock();
        let left = |kept: &Kept| kept.until_unix_ms.saturating_sub(now_unix_ms);
        let kept = state.kept.iter().map(|(key, kept)| HandedVerdict {
            key: key.clone(),
            decision: kept.decision,
            left_ms: left(kept),
        });
        let given = state.given.iter().flatten().map(|(key, decision)| HandedVerdict {
            key: key.clone(),
            decision: *decision,
            left_ms: 0,
        });
        given.chain(kept.filter(|kept| kept.left_ms > 0)).collect()
    }

    /// Goes on with the verdicts of another process: for those who wait, and those who come.
    pub fn take_over(&self, verdicts: Vec<HandedVerdict>, now_unix_ms: u64) {
        let mut state = self.state.lock();
        let mut found = Vec::new();
        for HandedVerdict { key, decision, left_ms } in verdicts {
            if let Some(question) = state.open.get(&key).cloned() {
                found.push((question, decision));
            }
            // A verdict of this process is younger.
            let is_known = state.remembered(&key, now_unix_ms).is_some();
            if left_ms > 0 && !is_known && state.kept.len() < KEPT_MAX {
                let until_unix_ms = now_unix_ms.saturating_add(left_ms);
                state.kept.insert(key, Kept { decision, until_unix_ms });
            }
        }
        let mut wakers = Vec::new();
        for (question, decision) in found {
            state.settle(&question, decision, &mut wakers);
        }
        self.wake(state, wakers);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use eyelet_telemetry::held::{HeldBy, HeldVerdict};

    use super::*;
    use crate::filter::{QuestionFilter, Which};
    use crate::question::Who;
    use crate::verdict::Keep;

    const ALLOW: HoldDecision = HoldDecision { verdict: HeldVerdict::Allow, by: HeldBy::Page };

    fn ask(holds: &Arc<Holds>, name: &str) -> super::super::HoldPlace {
        let key = HoldKey { rule: "ask".into(), name: name.into(), port: 443, request: None };
        let who = Who { client: [127, 0, 0, 1].into(), program: None, file: None };
        holds.ask(key, who, 1, 100).unwrap()
    }

    #[test]
    fn verdicts_pass_to_the_process_that_takes_over() {
        let (old, new) = (Arc::new(Holds::default()), Arc::new(Holds::default()));
        let decide = |name, keep| {
            old.decide(Which::Like(QuestionFilter::named(name, None)), ALLOW, keep, 100).unwrap();
        };
        let places = ["hour", "before", "window", "over"].map(|name| ask(&old, name));
        decide("hour", Keep::For(1_000));
        decide("over", Keep::For(10));
        decide("before", Keep::Once);
        old.begin_handover();
        decide("window", Keep::Once);
        // One that moved before the verdict, and one that has the verdict of an hour.
        let (moved, asks) = (ask(&new, "window"), ask(&new, "hour"));
        let handed = old.handed(200);
        assert_eq!(handed.len(), 2, "{handed:?}");
        new.take_over(handed, 200);
        assert_eq!((moved.decision(), asks.decision()), (Some(ALLOW), Some(ALLOW)));
        assert_eq!(ask(&new, "hour").decision(), Some(ALLOW));
        // Those of before were for who waited.
        let again = ["window", "before", "over"].map(|name| ask(&new, name));
        assert!(again.iter().all(|place| place.decision().is_none()));
        assert_eq!(new.open().len(), 3);
        old.end_handover();
        assert_eq!(old.handed(200).len(), 1);
        drop(places);
    }
}
