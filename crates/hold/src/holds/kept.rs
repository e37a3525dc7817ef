//! The verdicts that are remembered for a time. Where there is no room, the oldest one of the host
//! with the most is forgotten: a client that invents paths loses its own.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use crate::question::HoldKey;
use crate::verdict::{HoldDecision, KEPT_MAX};

/// At most [`KEPT_MAX`] verdicts.
#[derive(Debug, Default)]
pub(super) struct KeptVerdicts {
    by_key: HashMap<HoldKey, KeptVerdict>,
    /// The number of the last one.
    last: u64,
}

/// One of them.
#[derive(Debug)]
pub(super) struct KeptVerdict {
    pub(super) decision: HoldDecision,
    pub(super) until_unix_ms: u64,
    /// The host of the client that it was about first, if that is known.
    pub(super) host: Option<IpAddr>,
    /// Later ones have larger numbers.
    number: u64,
}

impl KeptVerdicts {
    /// The verdict on a question, if one holds.
    pub(super) fn remembered(&mut self, key: &HoldKey, now_unix_ms: u64) -> Option<HoldDecision> {
        // Most processes remember none.
        let kept = self.by_key.get(key)?;
        if kept.until_unix_ms > now_unix_ms {
            return Some(kept.decision);
        }
        self.by_key.remove(key);
        None
    }

    /// Remembers a verdict until then.
    pub(super) fn keep(
        &mut self,
        key: HoldKey,
        host: Option<IpAddr>,
        (decision, until_unix_ms): (HoldDecision, u64),
    ) {
        self.last += 1;
        let number = self.last;
        self.by_key.insert(key, KeptVerdict { decision, until_unix_ms, host, number });
    }

    /// True if one more has room.
    pub(super) fn has_room(&self) -> bool {
        self.by_key.len() < KEPT_MAX
    }

    /// Makes room for so many: those whose time is over go first.
    pub(super) fn make_room(&mut self, wanted: usize, now_unix_ms: u64) {
        self.by_key.retain(|_, kept| kept.until_unix_ms > now_unix_ms);
        let excess = (self.by_key.len() + wanted).saturating_sub(KEPT_MAX);
        if excess == 0 {
            return;
        }
        let mut by_host: HashMap<Option<IpAddr>, Vec<u64>> = HashMap::new();
        for kept in self.by_key.values() {
            by_host.entry(kept.host).or_default().push(kept.number);
        }
        // The oldest one last.
        by_host.values_mut().for_each(|own| own.sort_unstable_by(|one, other| other.cmp(one)));
        let forget = |_| by_host.values_mut().max_by_key(|own| own.len())?.pop();
        let forgotten: HashSet<u64> = (0..excess).filter_map(forget).collect();
        self.by_key.retain(|_, kept| !forgotten.contains(&kept.number));
    }

    /// Those that hold.
    pub(super) fn held(&self, now_unix_ms: u64) -> impl Iterator<Item = (&HoldKey, &KeptVerdict)> {
        self.by_key.iter().filter(move |(_, kept)| kept.until_unix_ms > now_unix_ms)
    }
}

#[cfg(test)]
mod tests {
    use eyelet_telemetry::held::{HeldBy, HeldVerdict};

    use super::*;

    const ALLOW: HoldDecision = HoldDecision { verdict: HeldVerdict::Allow, by: HeldBy::Webhook };

    #[test]
    fn who_has_the_most_loses_its_oldest() {
        let mut kept = KeptVerdicts::default();
        let key = |host: u8, n: usize| HoldKey {
            rule: "ask".into(),
            name: format!("{n}.{host}").into(),
            port: 443,
            request: None,
        };
        let keep = |kept: &mut KeptVerdicts, host: u8, n: usize, until: u64| {
            kept.make_room(1, 10);
            kept.keep(key(host, n), Some([10, 0, 0, host].into()), (ALLOW, until));
        };
        for n in 0..10 {
            keep(&mut kept, 1, n, 1_000);
        }
        for n in 0..KEPT_MAX {
            keep(&mut kept, 2, n, 1_000);
        }
        assert_eq!(kept.by_key.len(), KEPT_MAX);
        let mut is_kept = |host, n| kept.remembered(&key(host, n), 20).is_some();
        assert!((0..10).all(|n| is_kept(1, n)));
        assert!((0..10).all(|n| !is_kept(2, n)) && (10..KEPT_MAX).all(|n| is_kept(2, n)));
        // Whose time is over goes first.
        kept.make_room(KEPT_MAX, 1_000);
        assert_eq!((kept.by_key.len(), kept.held(0).count()), (0, 0));
    }
}
