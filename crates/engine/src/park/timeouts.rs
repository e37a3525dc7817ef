//! A reload that changes how long a connection may move no byte: the deadlines of parked
//! connections follow. The drain computes from a deadline how long a connection has been idle.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use crate::park::rest::wait_for;
use crate::worker::{Settings, Worker};
use eyelet_table::SlotState;

/// Takes the limits of a new configuration.
pub fn take_settings(worker: &Rc<Worker>, settings: Settings) {
    let before = worker.settings.replace(settings);
    worker.process.descriptors_max.store(settings.descriptors_max, Relaxed);
    let timeouts = |settings: &Settings| {
        let resting = [settings.body_timeout, settings.upstream_timeout];
        (settings.idle_timeout, settings.state_idle_timeout, resting)
    };
    if timeouts(&before) == timeouts(&settings) {
        return;
    }
    // All at once: a deadline does not say by which timeout it was set.
    let mut table = worker.table.borrow_mut();
    for key in table.keys() {
        let Some(SlotState::Parked { info, relay }) = table.slot(key).map(|slot| &mut slot.state)
        else {
            continue;
        };
        let is_settled = info.is_settled();
        let [due, wait] =
            [&before, &settings].map(|settings| wait_for((worker, settings), relay, is_settled));
        let idle = table.since_due_in(key, due);
        table.due_in(key, eyelet_handover::left(wait, idle, key));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;
    use crate::park::rest::idle_for;
    use crate::park::tests::terminated;
    use crate::testing::worker;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Returns the idle time of a settled connection (10 s after its last byte), and the time until
    /// its deadline. The timeout was changed in between.
    fn idle(before: Duration, after: Duration) -> [Duration; 2] {
        let worker = worker();
        let with = |idle_timeout| Settings { idle_timeout, ..worker.settings.get() };
        take_settings(&worker, with(before));
        terminated(&worker);
        let key = worker.table.borrow().keys()[0];
        for now in [50, 150] {
            loop {
                let due = worker.table.borrow_mut().next_due(now);
                let Some(key) = due else { break };
                worker.late(key);
            }
            if now == 50 {
                worker.table.borrow_mut().due_in(key, before);
            }
        }
        take_settings(&worker, with(after));
        let mut table = worker.table.borrow_mut();
        let Some(SlotState::Parked { relay, .. }) = table.slot(key).map(|slot| &mut slot.state)
        else {
            panic!("it is parked");
        };
        let wait = idle_for(&worker, relay, true);
        [table.since_due_in(key, wait), table.due_left(key)]
    }

    #[test]
    fn a_changed_timeout_changes_no_idle_time() {
        for (before, after) in [(5, 5), (5, 1), (1, 5)] {
            let [idle, left] = idle(MINUTE * before, MINUTE * after);
            assert!((9_500..=10_000).contains(&idle.as_millis()), "{before} {after}: {idle:?}");
            let due = idle + left;
            assert_eq!(due, MINUTE * after, "{before} {after}");
        }
    }

    #[test]
    fn connections_that_are_overdue_end_soon_and_are_idle() {
        let [idle, left] = idle(MINUTE, Duration::from_secs(4));
        assert!(left <= Duration::from_secs(2) + Duration::from_millis(200), "{left:?}");
        assert!(idle >= Duration::from_secs(1), "{idle:?}");
    }
}
