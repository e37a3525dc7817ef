//! Limits the orders of names that clients asked for. Public servers limit an account's orders, and
//! the names of the configuration need some, too.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Such orders at once after a long quiet time, and in each [`PERIOD`] besides: in no three hours
/// more than 200. A public server permits 300, and the rest is for listed names and renewals.
const ORDERS_MAX: u32 = 100;
const PERIOD: Duration = Duration::from_hours(3);
/// The time until one more order is permitted: 108 s.
const STEP: Duration = Duration::from_secs(PERIOD.as_secs() / ORDERS_MAX as u64);

/// Permits orders. All clones count together.
#[derive(Clone)]
pub struct OrderPermit(Rc<RefCell<Rate>>);

/// A bucket that holds permits: a new one falls into it at each step.
struct Rate {
    left: u32,
    /// The time at which the last permit was added.
    since: Instant,
}

impl OrderPermit {
    /// A bucket that is full.
    pub fn new(now: Instant) -> Self {
        Self(Rc::new(RefCell::new(Rate { left: ORDERS_MAX, since: now })))
    }

    /// True if an order is permitted now.
    pub fn is_free(&self) -> bool {
        self.0.borrow_mut().at(Instant::now()) > 0
    }

    /// Permits one order, or does not.
    pub fn take(&self) -> bool {
        self.0.borrow_mut().take(Instant::now())
    }
}

impl Rate {
    /// The permits that are left at this time.
    fn at(&mut self, now: Instant) -> u32 {
        let steps = now.saturating_duration_since(self.since).as_secs() / STEP.as_secs();
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        if self.left.saturating_add(steps) >= ORDERS_MAX {
            (self.left, self.since) = (ORDERS_MAX, now);
        } else {
            self.left += steps;
            self.since += STEP * steps;
        }
        self.left
    }

    fn take(&mut self, now: Instant) -> bool {
        let is_free = self.at(now) > 0;
        self.left = self.left.saturating_sub(1);
        is_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_for_clients_leave_room_for_others() {
        let start = Instant::now();
        let mut rate = Rate { left: ORDERS_MAX, since: start };
        // A client asks each second. A public server permits 300 orders in three hours.
        let seconds = PERIOD.as_secs();
        let mut granted = |from: u64| {
            let asked =
                (from..from + seconds).filter(|n| rate.take(start + Duration::from_secs(*n)));
            asked.count()
        };
        assert!((195..=200).contains(&granted(0)));
        assert!((99..=101).contains(&granted(seconds)));
    }
}
