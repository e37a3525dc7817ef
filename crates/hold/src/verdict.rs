//! Verdicts: for how long they hold, and why one cannot be given.

use std::fmt;

use eyelet_telemetry::held::{HeldBy, HeldVerdict};

/// Verdicts that are remembered at a time: about 1 MiB where they are about names, 20 MiB where
/// each has the longest path. Each was given by hand or by the webhook.
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

/// Nobody waits for a verdict: it was decided, its time was over, or its clients have gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NobodyWaits;

impl fmt::Display for NobodyWaits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody waits for this")
    }
}

impl std::error::Error for NobodyWaits {}
