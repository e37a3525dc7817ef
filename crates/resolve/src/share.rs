//! The time for a dial of one of several upstreams, and the meaning of its failure.

use std::time::Duration;

use eyelet_telemetry::reason::{Limit, Reason};

use crate::dial::is_upstream_down;

/// A dial that is not the last one has this part of `connect_timeout`: an upstream that does not
/// answer leaves time for two others.
const DIALS_IN_TIME: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DialTime {
    /// The time that it may take.
    pub wait: Duration,
    /// The dials before it left less than its part.
    is_short: bool,
}

/// The time of a dial when `passed` of the `limit` for all dials has passed. The last dial has what
/// is left.
pub fn share(limit: Duration, passed: Duration, is_last: bool) -> DialTime {
    let (left, part) = (limit.saturating_sub(passed), limit / DIALS_IN_TIME);
    DialTime { wait: if is_last { left } else { left.min(part) }, is_short: left < part }
}

impl DialTime {
    /// True if this end of a dial shows that the upstream is down. One that had little time and was
    /// too slow does not.
    pub fn says_down(self, reason: &Reason) -> bool {
        let is_late = matches!(reason, Reason::Timeout(Limit::Connect, _));
        is_upstream_down(reason) && !(is_late && self.is_short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_dials_together_have_the_limit() {
        let seconds = Duration::from_secs;
        for (passed, is_last, wait, is_short) in [
            (0, false, 3, false),
            (0, true, 9, false),
            (3, true, 6, false),
            (6, false, 3, false),
            (7, false, 2, true),
            (7, true, 2, true),
            (9, true, 0, true),
            (99, true, 0, true),
        ] {
            let expected = DialTime { wait: seconds(wait), is_short };
            assert_eq!(share(seconds(9), seconds(passed), is_last), expected, "{passed} {is_last}");
        }
    }

    #[test]
    fn a_dial_without_its_part_of_the_time_says_nothing() {
        let late = Reason::Timeout(Limit::Connect, None);
        let [whole, short] =
            [0, 8].map(|passed| share(Duration::from_secs(9), Duration::from_secs(passed), true));
        assert!(whole.says_down(&late));
        assert!(!short.says_down(&late));
        assert!(short.says_down(&Reason::NoAddress));
    }
}
