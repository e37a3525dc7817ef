//! The part of a request's codings that rests while it waits for its response. What the rule says
//! is not in it: the newest configuration says it anew.

use eyelet_compress::AcceptedCodings;
use eyelet_compress::breach::Breach;
use eyelet_config::{CompressionMode, Terminate};

use super::compressors::Compressors;
use super::request::{RequestCodings, Wanted};

/// Bits of the number that says what a client wants. The BREACH rule's verdict stands above them.
const NO_TRANSFORM: u8 = 1;
const TAGS_RESTORED: u8 = 2;
const BREACH_SHIFT: u8 = 2;

/// The facts about a request at rest that its response needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RestingCodings {
    accepted: AcceptedCodings,
    breach: Option<Breach>,
    no_transform: bool,
    tags_restored: bool,
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
            | if self.tags_restored { TAGS_RESTORED } else { 0 };
        (bits, self.accepted.export())
    }

    /// Reads the form. `None`: a bit or a weight is none of these.
    pub fn import((bits, weights): RestingCodingsForm) -> Option<Self> {
        let breach = match bits >> BREACH_SHIFT {
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
        })
    }
}

impl RequestCodings {
    /// True if the request may rest: its response depends on no dictionary, and on nothing that
    /// Eyelet asked for on its own behalf. Both would keep much of its head.
    pub fn may_rest(&self) -> bool {
        self.near.is_none()
            && self.wanted.as_ref().is_none_or(|wanted| wanted.dictionaries.is_none())
    }

    /// The part that rests. `None`: compression is off by rule.
    pub fn rest(&self) -> Option<RestingCodings> {
        let Wanted { accepted, breach, no_transform, tags_restored, .. } = *self.wanted.as_ref()?;
        Some(RestingCodings { accepted, breach, no_transform, tags_restored })
    }

    /// Those of a request whose rule has no compression.
    pub fn off(rule: u32) -> Self {
        Self { rule, near: None, wanted: None }
    }
}

impl Compressors {
    /// Returns what a response needs to know about a request that rested, by the rule that serves
    /// it now.
    pub fn resumed(
        &self,
        rule: u32,
        terminate: &Terminate,
        resting: &RestingCodings,
        is_head: bool,
    ) -> RequestCodings {
        let terms = &terminate.compression;
        if terms.mode != CompressionMode::On {
            return RequestCodings::off(rule);
        }
        let RestingCodings { accepted, breach, no_transform, tags_restored } = *resting;
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
                let codings =
                    RestingCodings { accepted, breach, no_transform: true, tags_restored: false };
                assert_eq!(RestingCodings::import(codings.export()), Some(codings), "{line:?}");
            }
        }
    }

    #[test]
    fn what_no_client_accepts_is_not_read() {
        assert!(RestingCodings::import((4 << BREACH_SHIFT, None)).is_none());
        assert!(RestingCodings::import((0, Some([0, 0, 0, 0, 0, 0, 1_002]))).is_none());
        assert!(RestingCodings::import((0, Some([1_001; 7]))).is_some());
    }
}
