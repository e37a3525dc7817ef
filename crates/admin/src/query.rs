//! Verdicts as a query gives them, and what is wrong with one, as a text for whoever asked.

use std::borrow::Cow;
use std::time::Duration;

use eyelet_telemetry::held::HeldVerdict;

/// The longest time for which a verdict holds: a month. For longer there is a list.
const FOR_MAX: Duration = Duration::from_hours(31 * 24);

/// A line of text.
pub(crate) type QueryFault = Cow<'static, str>;

/// Nothing is left out silently: a mistyped key would list, or end, more than was meant.
pub(crate) fn unknown_key(key: &str, known: &str) -> QueryFault {
    format!("{key:?} is not a key; expected {known}\n").into()
}

/// One of two values would be left out.
pub(crate) fn repeated_key(key: &str) -> QueryFault {
    format!("{key:?} occurs twice\n").into()
}

/// A verdict that somebody gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerdictAsked {
    pub verdict: HeldVerdict,
    pub keep: KeepAsked,
}

/// The time for which it is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAsked {
    /// For those who wait now.
    Once,
    /// The verdict is also for those who come within this time.
    For(Duration),
    /// The name is written to the list of the rule.
    Always,
}

impl KeepAsked {
    /// The time in a text such as `1h`.
    ///
    /// # Errors
    /// What was expected.
    pub fn of(time: &str) -> Result<Self, &'static str> {
        let time = humantime::parse_duration(time).ok();
        time.and_then(Self::lasting).ok_or("expected a time from 1s to 31days, such as 1h")
    }

    /// A verdict for this time. `None`: it is too short or too long.
    pub fn lasting(time: Duration) -> Option<Self> {
        (Duration::from_secs(1)..=FOR_MAX).contains(&time).then_some(Self::For(time))
    }
}
