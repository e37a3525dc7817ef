//! The last changes to a response's head before it is written to the client, with the time of day.

use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};

use eyelet_http1::fields;
use eyelet_http1::head::{FieldRole, FieldRoles};
use http::header::{self, HeaderValue};
use http::response;

/// Turns an upstream's response with such fields into the client's.
pub fn to_client(response: &mut response::Parts, roles: FieldRoles) {
    fields::to_client(response, roles);
    // A date that `Connection` names is gone now.
    let has_date = roles.has(FieldRole::Date) == Some(true) && !roles.may_have_hop_by_hop();
    if !has_date && !response.status.is_informational() {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use bytes::BytesMut;
    use eyelet_http1::head::{Scanner, take_response};
    use http::Method;

    use super::*;

    #[test]
    fn each_response_has_a_date() {
        for (fields, is_kept) in [
            ("date: d\r\n", true),
            ("date: d\r\nkeep-alive: timeout=5\r\n", true),
            ("date: d\r\nconnection: date\r\n", false),
            ("", false),
        ] {
            let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
            let mut head = BytesMut::from(head.as_bytes());
            let read = take_response(&mut head, 0, &mut Scanner::default(), &Method::GET);
            let mut response = read.unwrap().unwrap();
            to_client(&mut response.parts, response.roles);
            let dates: Vec<_> = response.parts.headers.get_all(header::DATE).iter().collect();
            assert_eq!((dates.len(), dates[0] == "d"), (1, is_kept), "{fields:?}");
        }
    }
}
