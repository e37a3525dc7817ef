//! The last changes to a response's head before it is written to the client, with the time of day.

use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};

use eyelet_http1::fields;
use http::header::{self, HeaderValue};
use http::response;

/// Turns an upstream's response into the client's.
pub fn to_client(response: &mut response::Parts) {
    fields::to_client(response);
    if !response.status.is_informational() {
        stamp(response);
    }
}

/// Adds a missing Date to a response (RFC 9110 6.6.1).
pub fn stamp(response: &mut response::Parts) {
    let headers = &mut response.headers;
    if !headers.contains_key(header::DATE)
        && let Some(now) = date()
    {
        headers.insert(header::DATE, now);
    }
}

/// The current time as a field's value.
fn date() -> Option<HeaderValue> {
    thread_local! {
        /// Written once a second: formatting costs as much as all other fields of a small response.
        static LAST: RefCell<Option<(u64, HeaderValue)>> = const { RefCell::new(None) };
    }
    let now = SystemTime::now();
    let second = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
    LAST.with_borrow_mut(|last| {
        if let Some((of, value)) = last
            && *of == second
        {
            return Some(value.clone());
        }
        let value = HeaderValue::from_str(&httpdate::fmt_http_date(now)).ok()?;
        *last = Some((second, value.clone()));
        Some(value)
    })
}
