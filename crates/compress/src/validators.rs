//! Header fields that change with the coding: ETag and the conditions that name it, Vary, and
//! what no longer holds of coded bytes. Must not know why a response is coded.

use http::header::{
    ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH,
    IF_RANGE, IF_UNMODIFIED_SINCE, RANGE, VARY,
};
use http::{HeaderMap, HeaderValue};

use crate::accept::Coding;
use crate::fields::{DIGESTS, lists};

/// Makes the head of a response that of its coded form.
pub fn code(headers: &mut HeaderMap, coding: Coding) {
    // Ranges would be of the coded bytes, which are made anew each time.
    remove_in_order(headers, &[CONTENT_LENGTH, ACCEPT_RANGES]);
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    weaken(headers);
}

/// Removes fields and keeps the order of the others: the map itself fills a gap with its last one.
fn remove_in_order(headers: &mut HeaderMap, names: &[HeaderName]) {
    if !names.iter().any(|name| headers.contains_key(name)) {
        return;
    }
    let mut kept = HeaderMap::with_capacity(headers.len());
    let mut last = None;
    // A name comes with its first value only.
    for (name, value) in headers.drain() {
        last = name.or(last);
        if let Some(name) = &last
            && !names.contains(name)
        {
            kept.append(name, value);
        }
    }
    *headers = kept;
}

/// A coded body's trailers: a digest of the bytes as the upstream sent them would not verify
/// (RFC 9530 section 2, 3). `None` if no other field is left.
#[must_use]
pub fn without_digests(mut trailers: HeaderMap) -> Option<HeaderMap> {
    for name in &DIGESTS {
        trailers.remove(name);
    }
    (!trailers.is_empty()).then_some(trailers)
}

/// A strong tag becomes a weak one: the coded bytes differ from the upstream's, what they mean
/// does not (RFC 9110 section 8.8.1).
pub fn weaken(headers: &mut HeaderMap) {
    let Some(tag) = headers.get(ETAG) else { return };
    if !tag.as_bytes().starts_with(b"\"") {
        return;
    }
    let weak = [b"W/", tag.as_bytes()].concat();
    match HeaderValue::from_bytes(&weak) {
        Ok(weak) => _ = headers.insert(ETAG, weak),
        Err(_) => _ = headers.remove(ETAG),
    }
}

/// Gives the upstream its own tags back in If-None-Match and If-Match: a weak one that this edge
/// made of a strong one. `is_upstreams` knows the weak tags that the upstream itself sent, by
/// their bytes with `W/`. Says whether anything was changed.
pub fn restore(headers: &mut HeaderMap, is_upstreams: impl Fn(&[u8]) -> bool) -> bool {
    let mut changed = false;
    for name in [IF_NONE_MATCH, IF_MATCH] {
        let lines: Vec<HeaderValue> = headers.get_all(&name).iter().cloned().collect();
        if lines.is_empty() {
            continue;
        }
        let mut restored = Vec::with_capacity(lines.len());
        for line in &lines {
            restored.push(match restore_line(line.as_bytes(), &is_upstreams) {
                Some(line) => {
                    changed = true;
                    line
                }
                None => line.clone(),
            });
        }
        if changed {
            headers.remove(&name);
            for line in restored {
                headers.append(&name, line);
            }
        }
    }
    changed
}

/// `None` where nothing is to be changed, or where the list cannot be read: then it is the
/// upstream's to judge.
fn restore_line(line: &[u8], is_upstreams: impl Fn(&[u8]) -> bool) -> Option<HeaderValue> {
    let mut restored = Vec::with_capacity(line.len());
    let mut changed = false;
    let mut left = line;
    while !left.is_empty() {
        let blank = left.iter().take_while(|byte| b" \t,".contains(byte)).count();
        let (before, rest) = left.split_at(blank);
        restored.extend_from_slice(before);
        left = rest;
        if left.is_empty() {
            break;
        }
        let weak = left.starts_with(b"W/");
        let opaque = left.get(if weak { 2 } else { 0 }..)?;
        // An entity tag has no escapes: it ends at the next quotation mark.
        let inner = opaque.strip_prefix(b"\"")?;
        let close = inner.iter().position(|byte| *byte == b'"')?;
        let len = close + 2 + if weak { 2 } else { 0 };
        let (tag, rest) = left.split_at(len);
        if weak && !is_upstreams(tag) {
            changed = true;
            restored.extend_from_slice(tag.get(2..)?);
        } else {
            restored.extend_from_slice(tag);
        }
        left = rest;
    }
    changed.then(|| HeaderValue::from_bytes(&restored).ok()).flatten()
}

/// Takes the range from a request for the rest of what may have come coded: the upstream's ranges
/// are of the plain bytes. A date that both have is a weak validator (RFC 9110 section 8.8.1); it
/// holds in If-Range no more than a weak tag does (section 13.1.5), and without it the range is to
/// be ignored. So it is for conditions that would say the same in other words. `restored` is what
/// [`restore`] said. A range without a condition is its client's to compare.
pub fn whole(headers: &mut HeaderMap, restored: bool) {
    let holds = match headers.get(IF_RANGE) {
        Some(validator) => validator.as_bytes().starts_with(b"\""),
        None => !restored && !headers.contains_key(IF_UNMODIFIED_SINCE),
    };
    if !holds {
        headers.remove(RANGE);
        headers.remove(IF_RANGE);
    }
}

/// Adds field names to Vary, once each; `*` already says more.
pub fn vary(headers: &mut HeaderMap, names: &[HeaderName]) {
    for name in names {
        if !varies_by(headers, name.as_str()) && !varies_by(headers, "*") {
            headers.append(VARY, HeaderValue::from(name.clone()));
        }
    }
    // One line, as caches and tests like it best.
    let lines: Vec<&[u8]> = headers.get_all(VARY).iter().map(HeaderValue::as_bytes).collect();
    if lines.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b", "[..]))
    {
        headers.insert(VARY, joined);
    }
}

/// Whether Vary has this name, or `*` itself where that is asked for.
#[must_use]
pub fn varies_by(headers: &HeaderMap, name: &str) -> bool {
    lists(headers, &VARY, name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use http::header::ACCEPT_ENCODING;

    #[test]
    fn a_strong_tag_is_weakened_and_given_back() {
        for (tag, weak) in [
            ("\"a\"", "W/\"a\""),
            ("W/\"a\"", "W/\"a\""),
            ("unquoted", "unquoted"),
            ("\"\"", "W/\"\""),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ETAG, tag.parse().unwrap());
            weaken(&mut headers);
            assert_eq!(headers[ETAG], weak);
        }
        for (line, restored) in [
            ("W/\"a\"", "\"a\""),
            ("\"a\"", "\"a\""),
            ("W/\"a\", \"b\",W/\"c\"", "\"a\", \"b\",\"c\""),
            ("W/\"theirs\", W/\"a\"", "W/\"theirs\", \"a\""),
            ("*", "*"),
            ("W/\"a, W/\"b\"", "W/\"a, W/\"b\""),
            ("W/\"a,b\"", "\"a,b\""),
            ("W/a", "W/a"),
        ] {
            for name in [IF_NONE_MATCH, IF_MATCH] {
                let mut headers = HeaderMap::new();
                headers.insert(&name, line.parse().unwrap());
                restore(&mut headers, |tag| tag == b"W/\"theirs\"");
                assert_eq!(headers[&name], restored, "{line}");
            }
        }
    }

    #[test]
    fn a_coded_response_keeps_the_order_of_its_fields() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-type", "text/html"),
            ("content-length", "9"),
            ("set-cookie", "a"),
            ("accept-ranges", "bytes"),
            ("set-cookie", "b"),
            ("x", "y"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        code(&mut headers, Coding::Gzip);
        let lines: Vec<(&str, &[u8])> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        let expected: [(&str, &[u8]); 5] = [
            ("content-type", b"text/html"),
            ("set-cookie", b"a"),
            ("set-cookie", b"b"),
            ("x", b"y"),
            ("content-encoding", b"gzip"),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn digests_of_other_bytes_are_no_trailers() {
        let fields = |names: &[&'static str]| {
            let fields = names.iter().map(|name| (HeaderName::from_static(name), "x"));
            fields.map(|(name, value)| (name, value.parse().unwrap())).collect::<HeaderMap>()
        };
        let digests = ["content-digest", "content-md5", "digest", "repr-digest"];
        assert_eq!(without_digests(fields(&digests)), None);
        let more = fields(&[&digests[..], &["x-sum"]].concat());
        assert_eq!(without_digests(more), Some(fields(&["x-sum"])));
    }

    #[test]
    fn vary_is_merged() {
        for (lines, merged) in [
            (&[][..], "accept-encoding"),
            (&["Origin"], "Origin, accept-encoding"),
            (&["Accept-Encoding"], "Accept-Encoding"),
            (&["Origin, accept-ENCODING"], "Origin, accept-ENCODING"),
            (&["Origin", "Cookie"], "Origin, Cookie, accept-encoding"),
            (&["*"], "*"),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(VARY, line.parse().unwrap());
            }
            vary(&mut headers, &[ACCEPT_ENCODING]);
            assert_eq!(headers[VARY], merged);
            assert_eq!(headers.get_all(VARY).iter().count(), 1);
        }
    }
}
