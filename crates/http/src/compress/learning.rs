//! Dictionaries of an edge that is a client: which of its responses become one, and what a response
//! was coded with.

use std::sync::Arc;
use std::time::SystemTime;

use eyelet_compress::Coding;
use eyelet_compress::dictionary::learned::{Learned, LearnedOrigin};
use eyelet_compress::dictionary::use_as::{UseAs, may_learn};
use eyelet_memory::budget::{Account, Budget, Counted};
use http::header::{AGE, CACHE_CONTROL, EXPIRES, HeaderMap, HeaderValue};
use http::response;

use super::hash::hash;
use super::shared::SharedDictionaries;

/// Shortest dictionary in bytes: the coding's header alone has 40.
const BODY_BYTES_MIN: usize = 128;

/// The coding of a response, which is undone.
pub struct Undone {
    /// The coding.
    pub coding: Coding,
    /// Its dictionary, if it has one.
    pub dictionary: Option<Arc<Learned>>,
}

/// A response in transit that becomes a dictionary.
pub(super) struct Learning {
    origin: LearnedOrigin,
    use_as: UseAs,
    fresh_until: u64,
    body: Vec<u8>,
    bytes_max: usize,
    budget: Arc<Budget>,
    counted: Counted,
}

impl Learning {
    /// A response that says for which paths it is a dictionary. `None`: it says nothing, or it may
    /// not be kept.
    pub(super) fn new(
        shared: &SharedDictionaries,
        origin: &LearnedOrigin,
        has_credentials: bool,
        head: &response::Parts,
    ) -> Option<Self> {
        let use_as = UseAs::read(&head.headers)?;
        if !may_learn(has_credentials, head.status, &head.headers) {
            return None;
        }
        let fresh_until = now() + fresh_seconds(&head.headers)?;
        let (origin, budget) = (origin.clone(), shared.budget().clone());
        let counted = Counted::of(&budget, Account::Compression, 0);
        let (body, bytes_max) = (Vec::new(), shared.learned_bytes_max());
        Some(Self { origin, use_as, fresh_until, body, bytes_max, budget, counted })
    }

    /// Adds a piece. Returns `false` if the body is too long, or memory is short.
    pub(super) fn take(&mut self, piece: &[u8]) -> bool {
        if self.body.len() + piece.len() > self.bytes_max || self.budget.is_filling(piece.len()) {
            return false;
        }
        self.body.extend_from_slice(piece);
        self.counted.set(self.body.capacity());
        true
    }

    /// Keeps a body that is whole.
    pub(super) fn end(self, shared: &SharedDictionaries) {
        let Self { origin, use_as, fresh_until, mut body, .. } = self;
        if body.len() >= BODY_BYTES_MIN {
            body.shrink_to_fit();
            shared.learn(origin, use_as, (hash(&body), body.into()), fresh_until);
        }
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// For how many seconds a shared cache may use a response, if it says so (RFC 9111 section 4.2.1).
/// There is no guess for one that does not.
fn fresh_seconds(headers: &HeaderMap) -> Option<u64> {
    let lines = headers.get_all(CACHE_CONTROL).iter().filter_map(|line| line.to_str().ok());
    let directives: Vec<(&str, &str)> = lines
        .flat_map(|line| line.split(','))
        .filter_map(|one| one.trim().split_once('='))
        .collect();
    let seconds = |name: &str| {
        let mut found = directives.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.trim_matches('"').parse::<u64>().unwrap_or(0))
    };
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    let age = headers.get(AGE).and_then(text).and_then(|age| age.trim().parse::<u64>().ok());
    let lifetime = match seconds("s-maxage").or_else(|| seconds("max-age")) {
        Some(seconds) => seconds,
        None => {
            let expires = httpdate::parse_http_date(&headers.get(EXPIRES).and_then(text)?).ok()?;
            expires.duration_since(SystemTime::now()).ok()?.as_secs()
        }
    };
    let left = lifetime.min(LIFETIME_SECONDS_MAX).checked_sub(age.unwrap_or(0))?;
    (left > 0).then_some(left)
}

/// A year: nobody says more in earnest, and the sum with the time stays small.
const LIFETIME_SECONDS_MAX: u64 = 366 * 24 * 3600;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn freshness_is_what_the_response_says() {
        for (fields, seconds) in [
            (&[("cache-control", "max-age=60")][..], Some(60)),
            (&[("cache-control", "public, Max-Age=60, s-maxage=10")], Some(10)),
            (&[("cache-control", "max-age=60"), ("age", "50")], Some(10)),
            (&[("cache-control", "max-age=60"), ("age", "60")], None),
            (&[("cache-control", "max-age=0")], None),
            (&[("cache-control", "max-age=x")], None),
            (&[("cache-control", "public")], None),
            (&[("cache-control", "max-age=99999999999999")], Some(LIFETIME_SECONDS_MAX)),
            (&[("expires", "Mon, 01 Jan 2024 00:00:00 GMT")], None),
            (&[], None),
        ] {
            let fields = fields
                .iter()
                .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()));
            assert_eq!(fresh_seconds(&fields.collect()), seconds);
        }
    }
}
