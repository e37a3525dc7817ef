//! Keys that change with the time: one for each period of so many seconds, counted from 1970, so
//! that all edges change them at the same time.

use std::time::Duration;

use zeroize::Zeroizing;

use crate::{Fleet, FleetError};

pub const KEY_BYTES: usize = 32;

/// The periods of a kind of key, at a time.
#[derive(Clone, Copy, Debug)]
pub struct Periods {
    /// Seconds of a period.
    pub period_secs: u64,
    /// Seconds since 1970.
    pub now_secs: u64,
    /// The longest pause of an edge between two attempts to reach the store.
    pub pause_max: Duration,
}

impl Periods {
    /// Returns the beginnings of the periods whose keys an edge needs, each with whether it makes
    /// the key if nobody else has. The current one comes first: an edge with another secret fails
    /// there, and writes nothing. `is_first`: the edge has no key of the fleet.
    ///
    /// While an older key goes on after an outage, no key is made for the current period: some
    /// edges would seal with it before the others have it. A key is made so long before its period
    /// that all edges have asked for it until then.
    pub fn wanted(&self, is_first: bool) -> [(u64, bool); 4] {
        let period = self.period_secs.max(1);
        let start = self.now_secs - self.now_secs % period;
        // An attempt that fails takes time too, so a pause counts twice.
        let soon = self.now_secs + (2 * self.pause_max).as_secs() + 1;
        let ahead = soon - soon % period + period;
        let next = start + period;
        [
            (start, is_first),
            (next, is_first || ahead == next),
            (ahead, true),
            (start.saturating_sub(period), false),
        ]
    }

    /// Returns the time for which the store keeps the key of a period: it opens for one period
    /// after its own, and one more is for clocks that differ.
    fn lifetime(&self, start: u64) -> Duration {
        let end = start + 3 * self.period_secs;
        Duration::from_secs(end.saturating_sub(self.now_secs))
    }
}

impl Fleet {
    /// The key of the period that begins at `start`. If the store has no key, it gets that of this
    /// edge. So a store that lost its data is filled again, and an edge that starts then has the
    /// keys of the others. If there is none either, and `is_made`, a key is made. The key that is
    /// returned may be another one than `held`.
    pub fn period_key(
        &mut self,
        kind: &str,
        periods: &Periods,
        (start, is_made): (u64, bool),
        held: Option<&[u8; KEY_BYTES]>,
    ) -> Result<Option<Zeroizing<[u8; KEY_BYTES]>>, FleetError> {
        let name = format!("{kind}-{}-{start}", periods.period_secs);
        let mut value = self.get(&name)?;
        if value.is_none() && (is_made || held.is_some()) {
            let mut key = Zeroizing::new([0; KEY_BYTES]);
            match held {
                Some(held) => key.copy_from_slice(held),
                None => aws_lc_rs::rand::fill(&mut *key).map_err(|_| FleetError::Library)?,
            }
            value = Some(self.put_if_absent(&name, &*key, periods.lifetime(start))?);
        }
        let Some(value) = value else { return Ok(None) };
        match value.as_slice().try_into() {
            Ok(key) => Ok(Some(Zeroizing::new(key))),
            Err(_) => Err(FleetError::Foreign(name)),
        }
    }
}
