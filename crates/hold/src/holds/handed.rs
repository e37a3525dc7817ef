//! Verdicts that pass to the process that takes over: remembered ones, and those that were given
//! while connections moved.

use std::net::IpAddr;

use super::Holds;
use crate::question::HoldKey;
use crate::verdict::HoldDecision;

/// A verdict of another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedVerdict {
    pub key: HoldKey,
    pub decision: HoldDecision,
    /// The host of the client that it was about first. Earlier programs do not say it.
    pub host: Option<IpAddr>,
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
        let given = state.given.iter().flatten().map(|(key, decision)| HandedVerdict {
            key: key.clone(),
            decision: *decision,
            host: None,
            left_ms: 0,
        });
        let kept = state.kept.held(now_unix_ms).map(|(key, kept)| HandedVerdict {
            key: key.clone(),
            decision: kept.decision,
            host: kept.host,
            left_ms: kept.until_unix_ms - now_unix_ms,
        });
        given.chain(kept).collect()
    }

    /// Takes over the verdicts of another process. They are for those who waited there; one that
    /// holds for a time is also for all who wait here or come later.
    pub fn take_over(&self, verdicts: Vec<HandedVerdict>, now_unix_ms: u64) {
        let mut state = self.state.lock();
        let (last, mut wakers) = (state.last_place, Vec::new());
        for HandedVerdict { key, decision, host, left_ms } in verdicts {
            let asked = state.open.get(&key).cloned();
            match asked {
                Some(question) if left_ms > 0 => {
                    state.settle(&question, decision, &mut wakers);
                }
                // Who has asked here first is not one of those who waited.
                Some(question) => {
                    let _ = question.earlier.set((last, decision));
                    wakers.extend(question.tasks.lock().drain().map(|(_, task)| task));
                }
                None => {}
            }
            // A verdict of this process is younger.
            let is_known = state.kept.remembered(&key, now_unix_ms).is_some();
            if left_ms > 0 && !is_known && state.kept.has_room() {
                let until_unix_ms = now_unix_ms.saturating_add(left_ms);
                state.kept.keep(key, host, (decision, until_unix_ms));
            }
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
        // One that moved before the verdict, one that came after it, and one of the hour.
        let (moved, came) = (ask(&new, "window").moved(), ask(&new, "window"));
        let asks = ask(&new, "hour");
        let handed = old.handed(200);
        assert_eq!(handed.len(), 2, "{handed:?}");
        new.take_over(handed, 200);
        assert_eq!((moved.decision(), asks.decision()), (Some(ALLOW), Some(ALLOW)));
        assert_eq!(came.decision(), None, "it asked after the verdict was given");
        // One that moves later waits: the verdict was given before it asked.
        let later = ask(&new, "window").moved();
        drop(moved);
        assert_eq!((later.decision(), new.open().len()), (None, 1));
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
