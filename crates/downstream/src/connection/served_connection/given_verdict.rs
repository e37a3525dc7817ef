//! The verdict on a request that was held while its connection was parked.

use eyelet_hold::{HoldDecision, HoldKey};
use eyelet_telemetry::held::{HeldBy, HeldInfo, HeldVerdict};

/// A request that was held while its connection was parked: its question and its verdict.
pub struct GivenVerdict {
    /// The question.
    pub key: HoldKey,
    /// The verdict. `None`: nobody has decided in time.
    pub decision: Option<HoldDecision>,
    /// Milliseconds that it has waited.
    pub waited_ms: u32,
}

impl GivenVerdict {
    /// The facts for the access line.
    pub fn info(&self) -> HeldInfo {
        let undecided = HoldDecision { verdict: HeldVerdict::Refuse, by: HeldBy::Timeout };
        let HoldDecision { verdict, by } = self.decision.unwrap_or(undecided);
        HeldInfo { ms: self.waited_ms, verdict, by }
    }
}
