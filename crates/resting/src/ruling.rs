//! The decisions about an exchange at rest that its access line needs: those of shadow rules, and
//! that of the person who let it pass. crates/handover/README.md describes the form.

use eyelet_telemetry::held::{HeldBy, HeldInfo, HeldVerdict};
use eyelet_telemetry::info::Outcome;
use serde::{Deserialize, Serialize};

/// Most bytes of the names of rules in shadow that rest with one exchange. Further ones are left
/// out.
const NAMES_BYTES_MAX: usize = 1 << 10;

/// The names of rules in shadow that take a request, and what they would have done.
pub type Shadows = Box<[(Box<str>, Outcome)]>;

/// The decisions about an exchange.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RestingRuling {
    /// The verdict on it, if it was held.
    pub held: Option<HeldInfo>,
    /// The rules in shadow that take it, if any do.
    pub shadow: Option<Shadows>,
}

/// The form, in which words stand as in the access log.
#[derive(Deserialize, Serialize)]
pub struct RulingV1<'a> {
    /// Milliseconds, the verdict and who gave it.
    #[serde(borrow)]
    held: Option<(u32, &'a str, &'a str)>,
    #[serde(borrow)]
    shadow: Vec<(&'a str, &'a str)>,
}

impl RestingRuling {
    /// The decisions, if there are any. Boxed: few exchanges have some.
    pub fn of(held: Option<HeldInfo>, shadow: Option<&[(Box<str>, Outcome)]>) -> Option<Box<Self>> {
        let mut left = NAMES_BYTES_MAX;
        let shadow = shadow.map(|shadow| {
            let fits = |(name, _): &&(Box<str>, Outcome)| {
                let rest = left.checked_sub(name.len());
                rest.inspect(|rest| left = *rest).is_some()
            };
            shadow.iter().take_while(fits).cloned().collect::<Shadows>()
        });
        let shadow = shadow.filter(|shadow| !shadow.is_empty());
        (held.is_some() || shadow.is_some()).then(|| Box::new(Self { held, shadow }))
    }

    /// The form.
    pub fn export(&self) -> RulingV1<'_> {
        let shadow = self.shadow.iter().flatten();
        RulingV1 {
            held: self.held.map(|held| (held.ms, held.verdict.name(), held.by.name())),
            shadow: shadow.map(|(name, would)| (&**name, would.name())).collect(),
        }
    }
}

impl RulingV1<'_> {
    /// The decisions. `None`: no exchange has so many. A word of another release is left out.
    pub fn ruling(self) -> Option<Box<RestingRuling>> {
        let names = self.shadow.iter().map(|(name, _)| name.len()).sum::<usize>();
        if names > NAMES_BYTES_MAX {
            return None;
        }
        let held = self.held.and_then(|(ms, verdict, by)| {
            let verdict = HeldVerdict::ALL.iter().find(|known| known.name() == verdict)?;
            let by = HeldBy::ALL.iter().find(|known| known.name() == by)?;
            Some(HeldInfo { ms, verdict: *verdict, by: *by })
        });
        let known = |(name, word): &(&str, &str)| {
            let would = WOULD.iter().find(|would| would.name() == *word)?;
            Some(((*name).into(), *would))
        };
        let shadow = self.shadow.iter().filter_map(known).collect::<Shadows>();
        let shadow = Some(shadow).filter(|shadow| !shadow.is_empty());
        Some(Box::new(RestingRuling { held, shadow }))
    }
}

/// The outcomes that a rule in shadow may have.
const WOULD: [Outcome; 4] =
    [Outcome::Originated, Outcome::Refused, Outcome::Spliced, Outcome::Terminated];
