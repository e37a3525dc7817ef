//! Verdicts: for how long, and why one cannot be given.

use std::fmt;

use eyelet_telemetry::held::{HeldBy, HeldVerdict};

/// Verdicts that are remembered at a time: about 1 MiB. Each was given by hand or by the webhook.
pub const KEPT_MAX: usize = 10_000;

/// A verdict, and who gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldDecision {
    pub verdict: HeldVerdict,
    pub by: HeldBy,
}

/// The time for which a verdict holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// For those who wait now.
    Once,
    /// The verdict is also for those who come within so many milliseconds.
    For(u64),
}

/// The reason for which a verdict cannot be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecideFault {
    /// Nobody waits for it: it was decided, its time was over, or its clients have gone.
    Gone,
    /// [`KEPT_MAX`] verdicts are remembered.
    Full,
}

impl fmt::Display for DecideFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("nobody waits for this any more"),
            Self::Full => write!(f, "{KEPT_MAX} verdicts are remembered already"),
        }
    }
}

impl std::error::Error for DecideFault {}
