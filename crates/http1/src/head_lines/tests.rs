//! Heads that pass as lines are written as their fields would be.
#![allow(clippy::unwrap_used)]

use bytes::BytesMut;
use proptest::prelude::*;

use super::*;
use crate::fields::to_client;
use crate::framing::write_fields;
use crate::head::{FieldRoles, Scanner, take_response};

/// The head as it is written by its fields, its length, whether the connection stays, and the rest.
fn by_fields(received: &[u8]) -> Option<(Vec<u8>, Length, bool, BytesMut)> {
    let mut rest = BytesMut::from(received);
    let response = take_response(&mut rest, 0, &mut Scanner::default(), &Method::GET).ok()??;
    let Response { mut parts, length, keep_alive, .. } = response;
    to_client(&mut parts, FieldRoles::UNKNOWN);
    let mut out = BytesMut::new();
    write_status_line(parts.status, &mut out);
    write_fields(&parts.headers, &mut out);
    out.extend_from_slice(b"\r\n");
    Some((out.to_vec(), length, keep_alive, rest))
}

fn by_lines(received: &[u8]) -> Option<(Vec<u8>, Length, bool, BytesMut)> {
    let mut rest = BytesMut::from(received);
    let lines = HeadLines::take(&mut rest)?;
    let read = lines.read().unwrap();
    assert_eq!((read.length, read.keep_alive), (Length::Known(lines.length), lines.keep_alive));
    let fields = read.parts.headers.iter();
    let mut fields: Vec<_> =
        fields.map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let mut of_lines: Vec<_> = lines.fields().collect();
    fields.sort_unstable();
    of_lines.sort_unstable();
    assert_eq!(of_lines, fields);
    let (length, keep_alive) = (Length::Known(lines.length), lines.keep_alive);
    Some((lines.into_head(b"").to_vec(), length, keep_alive, rest))
}

#[test]
fn a_body_that_is_taken_follows_the_head() {
    for added in ["", "connection: close\r\n"] {
        let mut received = BytesMut::from(&b"HTTP/1.1 200 OK\r\n"[..]);
        received.extend_from_slice(DATED.as_bytes());
        received.extend_from_slice(b"\r\nHello");
        let mut lines = HeadLines::take(&mut received).unwrap();
        lines.take_body(&mut received);
        assert!(received.is_empty(), "the upstream's connection has none of it");
        let fields = DATED.to_lowercase();
        let wanted = format!("HTTP/1.1 200 OK\r\n{fields}{added}\r\nHello");
        assert_eq!(lines.into_head(added.as_bytes()), wanted.as_bytes());
    }
}

const DATED: &str = "Date: d\r\nContent-Length: 5\r\n";

#[test]
fn common_heads_pass_as_lines() {
    for fields in [
        "",
        "Server: nginx\r\nConnection: keep-alive\r\nETag: \"a\"\r\nAccept-Ranges: bytes\r\n",
        "connection: close\r\nX-Request-Id: 7\r\nset-cookie: a=1\r\nSet-Cookie: b=2\r\n",
        "X-Empty: \r\nX-Text: \u{e9}\u{e8}\r\nCache-Control: private, max-age=0\r\n",
    ] {
        for status in ["200 OK", "404 Not Here", "500 Internal Server Error", "200 "] {
            let head = format!("HTTP/1.1 {status}\r\n{fields}{DATED}\r\nHello and more");
            let wanted = by_fields(head.as_bytes());
            assert!(wanted.is_some(), "{head:?}");
            assert_eq!(by_lines(head.as_bytes()), wanted, "{head:?}");
        }
    }
}

#[test]
fn other_heads_are_read_by_their_fields() {
    for head in [
        format!("HTTP/1.1 200 OK\r\n{DATED}"),
        format!("HTTP/1.0 200 OK\r\n{DATED}\r\n"),
        format!("HTTP/1.1 204 No Content\r\n{DATED}\r\n"),
        format!("HTTP/1.1 206 Partial Content\r\n{DATED}\r\n"),
        format!("HTTP/1.1 304 Not Modified\r\n{DATED}\r\n"),
        format!("HTTP/1.1 100 Continue\r\n{DATED}\r\n"),
        "HTTP/1.1 200 OK\r\nDate: d\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nDate: d\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nDate: d\r\nContent-Length: +5\r\n\r\n".to_owned(),
        format!("HTTP/1.1 200 OK\n{DATED}\r\n"),
        format!("HTTP/1.1 200 OK\r\nX: {}\r\n{DATED}\r\n", "y".repeat(HEAD_BYTES_MAX)),
    ] {
        assert_eq!(by_lines(head.as_bytes()), None, "{head:?}");
    }
    for line in [
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        "Keep-Alive: timeout=5",
        "TE: trailers",
        "Upgrade: h2c",
        "Proxy: a",
        "Connection: x-a",
        "Connection: close, x-a",
        "Content-Range: bytes 0-4/5",
        "Repr-Digest: a",
        "Date: e",
        "Host: a.test",
        "X-A: 1\r\nX-B: 2\r\nX-A: 3",
        "Set-Cookie: a=1\r\nX-B: 2\r\nSet-Cookie: b=2",
        "X-A:1",
        "X-A:  1",
        "X-A: 1 ",
        "X-A: \t1",
        "X-A: 1\t2",
        "X-A: 1\n",
        "X-A: 1\r",
        "X-A: \u{7f}",
        "X-A : 1",
        "X-A: 1\r\n folded",
        ": 1",
        "X(A: 1",
    ] {
        for lines in [format!("{DATED}{line}\r\n"), format!("{line}\r\n{DATED}")] {
            let head = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
            assert_eq!(by_lines(head.as_bytes()), None, "{head:?}");
        }
    }
}

#[test]
fn lines_tell_what_decides() {
    for before in ["", "Connection: keep-alive\r\n"] {
        for after in ["", "Connection: keep-alive\r\n"] {
            if !before.is_empty() && !after.is_empty() {
                continue;
            }
            let head = format!(
                "HTTP/1.1 404 Nothing\r\n{before}ETag: \"a\"\r\nContent-Type: text/html\r\n\
                 Cache-Control: a, No-Transform\r\n{after}{DATED}\r\n"
            );
            let mut received = BytesMut::from(head.as_bytes());
            let lines = HeadLines::take(&mut received).unwrap();
            assert_eq!(lines.etag(), Some(&b"\"a\""[..]));
            assert_eq!(lines.deciding().content_type, Some(&b"text/html"[..]));
            assert!(lines.deciding().no_transform && !lines.deciding().is_coded);
        }
    }
}

proptest! {
    /// Whatever lines come: those that pass are written as their fields would be.
    #[test]
    fn lines_pass_as_their_fields_would(
        status in "(200 OK|404 Not Found|20[0-9] x)",
        lines in prop::collection::vec(
            "(Server|eTaG|X-[a-c]|x-d|Vary|Set-Cookie|Connection|Content-Type)\
             : ?(keep-alive|close|[ -~\\t]{0,12}|[a-z\u{e9}]{1,9})",
            0..7,
        ),
        body in "[a-z]{0,6}",
    ) {
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        let head = format!("HTTP/1.1 {status}\r\n{lines}{DATED}\r\n{body}");
        if let Some(passed) = by_lines(head.as_bytes()) {
            prop_assert_eq!(Some(passed), by_fields(head.as_bytes()));
        }
    }
}
