//! The part of a request's codings that rests while it waits for its response. What the rule says
//! is not in it: the newest configuration says it anew.

use eyelet_compress::AcceptedCodings;
use eyelet_compress::breach::Breach;
use eyelet_config::{CompressionMode, Terminate};

use super::compressors::Compressors;
use super::near::Near;
use super::request::{RequestCodings, Wanted};

/// Bits of the number that says what a client wants. The BREACH rule's verdict stands above them.
const NO_TRANSFORM: u8 = 1;
const TAGS_RESTORED: u8 = 2;
const BREACH_SHIFT: u8 = 2;
const BREACH_BITS: u8 = 3 << BREACH_SHIFT;
/// Eyelet asked for codings on its own behalf, and in the place of the client's.
const NEAR: u8 = 16;
const REPLACED: u8 = 32;
const ALL_BITS: u8 = NO_TRANSFORM | TAGS_RESTORED | BREACH_BITS | NEAR | REPLACED;

/// The facts about a request at rest that its response needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RestingCodings {
    accepted: AcceptedCodings,
    breach: Option<Breach>,
    no_transform: bool,
    tags_restored: bool,
    /// Eyelet asked for codings on its own behalf; with `true` in the place of the client's.
    near: Option<bool>,
}

/// Its form: the bits above, and [`AcceptedCodings::export`].
pub type RestingCodingsForm = (u8, Option<[u16; 7]>);

impl RestingCodings {
    pub fn export(&self) -> RestingCodingsForm {
        let breach = match self.breach {
            None => 0,
            Some(Breach::OtherOrigin) => 1,
            Some(Breach::ForeignReferer) => 2,
            Some(Breach::UnknownOrigin) => 3,
        };
        let bits = breach << BREACH_SHIFT
            | if self.no_transform { NO_TRANSFORM } else { 0 }
            | if self.tags_restored { TAGS_RESTORED } else { 0 }
            | if self.near.is_some() { NEAR } else { 0 }
            | if self.near == Some(true) { REPLACED } else { 0 };
        (bits, self.accepted.export())
    }

    /// Reads the form. `None`: a bit or a weight is none of these.
    pub fn import((bits, weights): RestingCodingsForm) -> Option<Self> {
        let is_replaced = bits & REPLACED != 0;
        let near = (bits & NEAR != 0).then_some(is_replaced);
        if bits & !ALL_BITS != 0 || is_replaced && near.is_none() {
            return None;
        }
        let breach = match (bits & BREACH_BITS) >> BREACH_SHIFT {
            0 => None,
            1 => Some(Breach::OtherOrigin),
            2 => Some(Breach::ForeignReferer),
            3 => Some(Breach::UnknownOrigin),
            _ => return None,
        };
        Some(Self {
            accepted: AcceptedCodings::import(weights)?,
            breach,
            no_transform: bits & NO_TRANSFORM != 0,
            tags_restored: bits & TAGS_RESTORED != 0,
            near,
        })
    }
}

impl RequestCodings {
    /// True if the request may rest: its response depends on no dictionary, which would keep much
    /// of its head.
    pub fn may_rest(&self) -> bool {
        self.near.as_ref().is_none_or(|near| near.may_rest())
            && self.wanted.as_ref().is_none_or(|wanted| wanted.dictionaries.is_none())
    }

    /// The part that rests. `None`: compression is off by rule.
    pub fn rest(&self) -> Option<RestingCodings> {
        if let Some(near) = &self.near {
            return Some(near.rest());
        }
        let Wanted { accepted, breach, no_transform, tags_restored, .. } = *self.wanted.as_ref()?;
        let near = None;
        Some(RestingCodings { accepted, breach, no_transform, tags_restored, near })
    }

    /// Those of a request whose rule has no compression.
    pub fn off(rule: u32) -> Self {
        Self { rule, near: None, wanted: None }
    }
}

impl Near {
    /// True if nothing of the request's head is needed any more: no dictionary was named.
    fn may_rest(&self) -> bool {
        self.dictionary.is_none()
    }

    fn rest(&self) -> RestingCodings {
        RestingCodings {
            accepted: self.accepted,
            breach: None,
            no_transform: false,
            tags_restored: self.tags_restored,
            near: Some(self.replaced.is_some()),
        }
    }

    /// Its response becomes no dictionary, and it is not made once more: that takes its head.
    fn resumed(resting: &RestingCodings) -> Option<Self> {
        let is_replaced = resting.near?;
        Some(Self {
            accepted: resting.accepted,
            replaced: is_replaced.then(Vec::new),
            tags_restored: resting.tags_restored,
            dictionary: None,
            can_repeat: false,
            origin: None,
            has_credentials: true,
        })
    }
}

impl Compressors {
    /// Returns what a response needs to know about a request that rested, by the rule that serves
    /// it now.
    pub fn resumed(
        &self,
        rule: u32,
        terminate: Option<&Terminate>,
        resting: &RestingCodings,
        is_head: bool,
    ) -> RequestCodings {
        if let Some(near) = Near::resumed(resting) {
            // The client may not read what Eyelet has asked for, whatever the rule says now.
            return RequestCodings { rule, near: Some(Box::new(near)), wanted: None };
        }
        let Some(terminate) = terminate else { return RequestCodings::off(rule) };
        let terms = &terminate.compression;
        if terms.mode != CompressionMode::On {
            return RequestCodings::off(rule);
        }
        let RestingCodings { accepted, breach, no_transform, tags_restored, .. } = *resting;
        let wanted = Wanted {
            rule,
            accepted,
            breach,
            no_transform,
            effort: terms.effort,
            event_streams: terms.event_streams,
            length_hiding: terms.length_hiding,
            is_head,
            tags_restored,
            dictionaries: None,
        };
        RequestCodings { rule, near: None, wanted: Some(wanted) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http::HeaderMap;
    use http::header::ACCEPT_ENCODING;

    use super::*;

    #[test]
    fn each_codings_are_the_same_behind_their_form() {
        for line in [None, Some(""), Some("gzip, br;q=0.5, zstd;q=0"), Some("*;q=1, identity;q=0")]
        {
            let mut headers = HeaderMap::new();
            line.map(|line| headers.insert(ACCEPT_ENCODING, line.parse().unwrap()));
            let accepted = AcceptedCodings::read(&headers);
            for breach in [None, Some(Breach::OtherOrigin), Some(Breach::UnknownOrigin)] {
                for near in [None, Some(false), Some(true)] {
                    let (no_transform, tags_restored) = (true, false);
                    let codings =
                        RestingCodings { accepted, breach, no_transform, tags_restored, near };
                    assert_eq!(RestingCodings::import(codings.export()), Some(codings), "{line:?}");
                }
            }
        }
    }

    #[test]
    fn what_no_client_accepts_is_not_read() {
        assert!(RestingCodings::import((64, None)).is_none(), "an unknown bit");
        assert!(RestingCodings::import((REPLACED, None)).is_none(), "nobody has replaced it");
        assert!(RestingCodings::import((0, Some([0, 0, 0, 0, 0, 0, 1_002]))).is_none());
        assert!(RestingCodings::import((0, Some([1_001; 7]))).is_some());
    }
}
