//! For how long a response is fresh, by its own fields and our clock.

use std::time::SystemTime;

use http::header::{AGE, CACHE_CONTROL, EXPIRES, HeaderMap, HeaderValue};

use eyelet_compress::fields::number;

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// For how many seconds a shared cache may use a response, if it says so (RFC 9111 section 4.2.1).
/// There is no guess for one that does not.
pub(crate) fn fresh_seconds(headers: &HeaderMap) -> Option<u64> {
    let lines = headers.get_all(CACHE_CONTROL).iter().filter_map(|line| line.to_str().ok());
    let directives: Vec<(&str, &str)> = lines
        .flat_map(|line| line.split(','))
        .filter_map(|one| one.trim().split_once('='))
        .collect();
    let seconds = |name: &str| {
        let mut found = directives.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name));
        // RFC 9111 section 4.2.1: what cannot be read is stale.
        found.next().map(|(_, value)| number(value.trim_matches('"').as_bytes()).unwrap_or(0))
    };
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    // RFC 9111 section 5.1: the first member of a list counts. What cannot be read does not.
    let first =
        |age: &HeaderValue| number(age.as_bytes().split(|byte| *byte == b',').next()?.trim_ascii());
    let age = headers.get(AGE).and_then(first);
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
pub(crate) const LIFETIME_SECONDS_MAX: u64 = 366 * 24 * 3600;

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
            (&[("cache-control", "max-age=99999999999999999999")], Some(LIFETIME_SECONDS_MAX)),
            (&[("cache-control", "max-age=+60")], None),
            (&[("cache-control", "max-age=60"), ("age", "99999999999999999999")], None),
            (&[("cache-control", "max-age=60"), ("age", "50, 10")], Some(10)),
            (&[("cache-control", "max-age=60"), ("age", "x")], Some(60)),
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
