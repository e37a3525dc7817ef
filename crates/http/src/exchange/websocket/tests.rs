//! The upstream's 101, as a client of a WebSocket has to check it.
#![allow(clippy::unwrap_used)]

use super::*;

/// The example of RFC 6455 section 1.3.
const SAMPLE: (&str, &str) = ("dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");

fn map(lines: &str) -> HeaderMap {
    let lines = lines.lines().filter_map(|line| line.split_once(": "));
    lines
        .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()))
        .collect()
}

fn checked(offered: &str, said: &str) -> Result<(), ResponseFault> {
    let asked = map(&format!("Sec-WebSocket-Key: {}\n{offered}", SAMPLE.0));
    let (mut head, ()) = http::Response::new(()).into_parts();
    head.headers = map(said);
    check(&asked, &head)
}

#[test]
fn the_key_is_proved() {
    assert_eq!(accept_of(SAMPLE.0.as_bytes()), SAMPLE.1);
    let accept = format!("Sec-WebSocket-Accept: {}", SAMPLE.1);
    for (accepts, expected) in [
        (accept.clone(), Ok(())),
        (String::new(), Err(ResponseFault::Accept)),
        ("Sec-WebSocket-Accept: x".to_owned(), Err(ResponseFault::Accept)),
        (accept.to_lowercase(), Err(ResponseFault::Accept)),
        (format!("{accept}, x"), Err(ResponseFault::Accept)),
        (format!("{accept}\n{accept}"), Err(ResponseFault::Accept)),
    ] {
        assert_eq!(checked("", &format!("Connection: Upgrade\n{accepts}")), expected, "{accepts}");
    }
    for (connection, expected) in [
        ("Connection: keep-alive, UPGRADE", Ok(())),
        ("Connection: keep-alive\nConnection: upgrade", Ok(())),
        ("Connection: keep-alive", Err(ResponseFault::NoUpgrade)),
        ("Connection: upgraded", Err(ResponseFault::NoUpgrade)),
        ("", Err(ResponseFault::NoUpgrade)),
    ] {
        assert_eq!(checked("", &format!("{accept}\n{connection}")), expected, "{connection}");
    }
}

#[test]
fn only_what_was_offered_is_chosen() {
    let whole = format!("Connection: Upgrade\nSec-WebSocket-Accept: {}", SAMPLE.1);
    let (one, more) = ("Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions");
    for (offered, said, is_fine) in [
        (format!("{one}: chat, super"), format!("{one}: super"), true),
        (format!("{one}: chat\n{one}: super"), format!("{one}: super"), true),
        (format!("{one}: chat, super"), String::new(), true),
        (format!("{one}: chat, super"), format!("{one}: Super"), false),
        (format!("{one}: chat, super"), format!("{one}: chat, super"), false),
        (format!("{one}: chat, super"), format!("{one}: chat\n{one}: super"), false),
        (format!("{one}: chat, super"), format!("{one}: mqtt"), false),
        (String::new(), format!("{one}: chat"), false),
        (format!("{more}: a; b, c"), format!("{more}: A"), true),
        (format!("{more}: a; b, c"), format!("{more}: c; d=\"1\", a"), true),
        (format!("{more}: a\n{more}: c"), format!("{more}: a\n{more}: c"), true),
        (format!("{more}: a; b, c"), format!("{more}: b"), false),
        (format!("{more}: a"), format!("{more}: a, x"), false),
        (format!("{more}: a"), format!("{more}: a\n{more}: x"), false),
        (String::new(), format!("{more}: permessage-deflate"), false),
    ] {
        let expected = if is_fine { Ok(()) } else { Err(ResponseFault::Unoffered) };
        let label = format!("{offered:?}: {said:?}");
        assert_eq!(checked(&offered, &format!("{whole}\n{said}")), expected, "{label}");
    }
}

/// It is a final response by HTTP/2.
#[test]
fn a_101_becomes_a_200_with_a_date() {
    let (mut head, ()) = http::Response::builder().status(101).body(()).unwrap().into_parts();
    head.headers = map("Connection: x\nUpgrade: y\nSec-WebSocket-Accept: z\nX-Own: 1");
    to_ok(&mut head);
    assert_eq!(head.status, 200);
    let names: Vec<_> = head.headers.keys().map(HeaderName::as_str).collect();
    assert_eq!(names, ["x-own", "date"]);
}
