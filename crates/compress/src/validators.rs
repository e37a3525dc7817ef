//! Header fields that change with the coding: ETag and the conditions that name it, Vary, and
//! fields that do not apply to coded bytes.

use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, ETAG, HeaderName, IF_MATCH,
    IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE, VARY,
};
use http::{HeaderMap, HeaderValue};

use crate::accept::Coding;
use crate::fields::{DIGESTS, lists};

/// Turns a response's head into that of its coded form.
pub fn code(headers: &mut HeaderMap, coding: Coding) {
    // Ranges would count coded bytes, which differ each time.
    remove_in_order(headers, &[CONTENT_LENGTH, ACCEPT_RANGES]);
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    weaken(headers);
}

/// Turns a response's head into that of its decoded form. A digest is one of the coded bytes (RFC
/// 9530 sections 2 and 3), so it goes with them.
pub fn decode(headers: &mut HeaderMap) {
    remove_in_order(headers, &[CONTENT_ENCODING, CONTENT_LENGTH, ACCEPT_RANGES]);
    remove_in_order(headers, &DIGESTS);
    weaken(headers);
    vary(headers, &[ACCEPT_ENCODING]);
}

/// Removes fields and keeps the order of the others: the map's own removal moves its last field
/// into the gap.
fn remove_in_order(headers: &mut HeaderMap, names: &[HeaderName]) {
    if !names.iter().any(|name| headers.contains_key(name)) {
        return;
    }
    let mut kept = HeaderMap::with_capacity(headers.len());
    let mut last = None;
    // The map returns a name with its first value only.
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

/// A coded body's trailers, without digests of the upstream's bytes, which would not verify (RFC
/// 9530 section 2, 3). `None` if no other field is left.
pub fn without_digests(mut trailers: HeaderMap) -> Option<HeaderMap> {
    for name in &DIGESTS {
        trailers.remove(name);
    }
    (!trailers.is_empty()).then_some(trailers)
}

/// Turns a strong tag into a weak one: the coded bytes differ from the upstream's, their meaning
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

/// Restores the upstream's tags in If-None-Match and If-Match: weak ones that we made of strong
/// ones become strong. `is_upstreams` recognizes weak tags that the upstream itself sent, by their
/// bytes with `W/`. Returns whether anything was changed.
pub fn restore(headers: &mut HeaderMap, is_upstreams: impl Fn(&[u8]) -> bool) -> bool {
    // Most requests have no conditions, and looking each up would hash each.
    if !headers.keys().any(|name| *name == IF_NONE_MATCH || *name == IF_MATCH) {
        return false;
    }
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

/// `None` if nothing changes, or if the list cannot be parsed: then the upstream judges it.
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

/// Removes the range from a request whose conditions may be about a coded response: the upstream's
/// ranges count plain bytes. `restored` is the result of [`restore`].
///
/// The range stays if If-Range has a strong tag. It goes if If-Range has a weak tag (RFC 9110
/// section 13.1.5) or a date. The coded and the plain response have the same date, so a date is a
/// weak validator (section 8.8.1). It also goes if other conditions say the same. A range without a
/// condition stays: its client compares the response itself.
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

/// Adds field names to Vary, once each; `*` already includes all.
pub fn vary(headers: &mut HeaderMap, names: &[HeaderName]) {
    if let [name] = names
        && !headers.contains_key(VARY)
    {
        headers.insert(VARY, HeaderValue::from(name.clone()));
        return;
    }
    for name in names {
        if !varies_by(headers, name.as_str()) && !varies_by(headers, "*") {
            headers.append(VARY, HeaderValue::from(name.clone()));
        }
    }
    // One line, which caches handle best.
    let lines: Vec<&[u8]> = headers.get_all(VARY).iter().map(HeaderValue::as_bytes).collect();
    if lines.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b", "[..]))
    {
        headers.insert(VARY, joined);
    }
}

/// True if Vary contains this name, or `*` if that is given.
pub fn varies_by(headers: &HeaderMap, name: &str) -> bool {
    lists(headers, &VARY, name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

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
    fn a_decoded_response_has_no_field_of_the_coded_bytes() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-type", "text/html"),
            ("content-encoding", "zstd"),
            ("content-length", "9"),
            ("accept-ranges", "bytes"),
            ("repr-digest", "sha-256=:x:"),
            ("etag", "\"a\""),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        decode(&mut headers);
        let lines: Vec<(&str, &[u8])> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        let expected: [(&str, &[u8]); 3] =
            [("content-type", b"text/html"), ("etag", b"W/\"a\""), ("vary", b"accept-encoding")];
        assert_eq!(lines, expected);
    }

    #[test]
    fn digests_of_the_upstreams_bytes_are_removed() {
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
