//! Paces a drain: the number of connections that end in each tick. Its clients come back somewhere
//! else, so the ends are spread over `drain_timeout`.

use std::time::Duration;

use crate::timer_wheel::TICK_MS;

/// A worker ends at least so many idle connections a second, so that an edge with few of them stops
/// fast. Fewer clients than these do not hurt anybody when they come back.
const ENDS_PER_SECOND_MIN: u32 = 100;
pub const ENDS_PER_TICK_MIN: u32 = ENDS_PER_SECOND_MIN * TICK_MS as u32 / 1000;
/// The last part of the drain is a quarter of it, in which spliced pairs end too, but at most this
/// long: a pair may be in use, and its operator has given it the time.
const LAST_PART: u32 = 4;
const LAST_TICKS_MAX: u32 = (Duration::from_secs(30).as_millis() / TICK_MS as u128) as u32;
/// Ticks (1 s) until the connections that may end are counted again after there were none. A count
/// visits the whole table.
pub const COUNT_TICKS: u32 = 10;

/// A drain under way. Times are ticks of the worker's timer wheel.
#[derive(Clone, Copy, Debug)]
pub struct DrainPace {
    /// The tick at which the present part ends.
    end: u32,
    /// Ticks of the last part, until it begins.
    last: Option<u32>,
    /// The next slot to be visited.
    pub cursor: u32,
    /// Connections that were to end in this round through the table, and have not been visited.
    pub left: u32,
    /// The tick at which they are counted next, if none is left.
    pub count_at: u32,
}

/// The length in ticks of a drain, and of its last part.
fn ticks(length: Duration) -> (u32, u32) {
    let ticks = u32::try_from(length.as_millis() / u128::from(TICK_MS)).unwrap_or(u32::MAX / 2);
    (ticks, (ticks / LAST_PART).min(LAST_TICKS_MAX))
}

impl DrainPace {
    /// A drain of this length that begins now.
    pub fn new(now: u32, length: Duration) -> Self {
        let (ticks, last) = ticks(length);
        let end = now.saturating_add(ticks - last);
        Self { end, last: Some(last), cursor: 0, left: 0, count_at: 0 }
    }

    /// Begins the last part when its time has come.
    pub fn follow(&mut self, now: u32) {
        if now >= self.end
            && let Some(last) = self.last.take()
        {
            // Pairs count from now on, so the round begins anew.
            (self.end, self.left, self.count_at) = (now.saturating_add(last), 0, 0);
        }
    }

    /// True if pairs end, too.
    pub fn is_last_part(&self) -> bool {
        self.last.is_none()
    }

    /// Returns the number of connections that this tick may end.
    pub fn ends(&self, now: u32) -> u32 {
        let ticks = self.end.saturating_sub(now).max(1);
        let least = if self.is_last_part() { 1 } else { ENDS_PER_TICK_MIN };
        self.left.div_ceil(ticks).max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_of_a_long_drain_is_short() {
        let mut drain = DrainPace::new(0, Duration::from_hours(24));
        assert_eq!(drain.end, 24 * 36_000 - LAST_TICKS_MAX);
        drain.follow(drain.end);
        assert_eq!((drain.end, drain.is_last_part()), (24 * 36_000, true));
        // Nothing is left to divide by.
        let mut none = DrainPace::new(7, Duration::ZERO);
        none.follow(7);
        assert_eq!((none.end, none.ends(7)), (7, 1));
    }
}
