//! Tables of messages as a gateway says them further (RFC 9110 7.6, RFC 9112 3.2).

use super::*;
use crate::head::{Scanner, take_request, take_response};

/// The line, the fields besides Host, what the upstream gets, and what it must not get.
const SAID: &[(&str, &str, &str, &str)] = &[
    ("GET / HTTP/1.1", "", "via: 1.1 eyelet\r\n", "x-mine"),
    ("\r\nGET / HTTP/1.1", "", "GET / HTTP/1.1\r\n", "\r\n\r\nGET"),
    ("GET / HTTP/1.2", "", "GET / HTTP/1.1\r\n", "1.2"),
    ("get / HTTP/1.1", "", "get / HTTP/1.1\r\n", "GET"),
    ("FROB / HTTP/1.1", "", "FROB / HTTP/1.1\r\n", "GET"),
    (
        "GET https://APP.test/x?y HTTP/1.1",
        "",
        "GET /x?y HTTP/1.1\r\nhost: APP.test\r\n",
        "app.test",
    ),
    ("OPTIONS * HTTP/1.1", "", "OPTIONS * HTTP/1.1\r\n", "OPTIONS /"),
    ("OPTIONS http://app.test HTTP/1.1", "", "OPTIONS * HTTP/1.1\r\n", "OPTIONS /"),
    ("OPTIONS / HTTP/1.1", "Max-Forwards: 5\r\n", "max-forwards: 4\r\n", "5"),
    ("OPTIONS / HTTP/1.1", "Max-Forwards: 007\r\n", "max-forwards: 6\r\n", "max-forwards: 0"),
    (
        "OPTIONS / HTTP/1.1",
        "Max-Forwards: 4294967296\r\n",
        "max-forwards: 4294967295\r\n",
        "96\r\n",
    ),
    (
        "OPTIONS / HTTP/1.1",
        "Max-Forwards: 99999999999999999999999\r\n",
        "max-forwards: 18446744073709551614\r\n",
        "9999",
    ),
    // No number, so nobody counts it.
    ("OPTIONS / HTTP/1.1", "Max-Forwards: +5\r\n", "max-forwards: +5\r\n", "4\r\n"),
    ("OPTIONS / HTTP/1.1", "Max-Forwards: 5, 3\r\n", "max-forwards: 5, 3\r\n", "max-forwards: 4"),
    ("GET / HTTP/1.1", "Max-Forwards: 5\r\n", "max-forwards: 5\r\n", "4\r\n"),
    ("GET / HTTP/1.1", "Connection: X-Mine, close\r\nX-Mine: 1\r\n", "via: ", "x-mine"),
    ("GET / HTTP/1.1", "TE: trailers\r\nConnection: TE\r\n", "via: ", "\r\nte:"),
    ("GET / HTTP/1.1", "Upgrade: websocket\r\n", "via: ", "upgrade"),
    ("GET / HTTP/1.1", "Upgrade: h2c\r\nConnection: Upgrade\r\n", "via: ", "upgrade"),
    ("GET / HTTP/1.1", "Keep-Alive: 5\r\n", "via: ", "keep-alive"),
    ("GET / HTTP/1.1", "HTTP2-Settings: AAMAAABk\r\n", "via: ", "settings"),
    ("GET / HTTP/1.1", "Proxy-Connection: x\r\n", "via: ", "proxy"),
    ("GET / HTTP/1.1", "Proxy: http://evil.example\r\n", "via: ", "proxy"),
    ("POST / HTTP/1.1", "", "content-length: 0\r\n", "transfer-encoding"),
    ("POST / HTTP/1.1", "Content-Length: 00\r\n", "content-length: 0\r\n", "00"),
    (
        "PUT / HTTP/1.1",
        "Connection: Content-Length\r\nContent-Length: 0\r\n",
        "length: 0\r\n",
        "conn",
    ),
    (
        "PUT / HTTP/1.0",
        "Content-Length: 0\r\nExpect: 100-continue\r\n",
        "via: 1.0 eyelet\r\n",
        "expect",
    ),
    ("GET / HTTP/1.1", "X: caf\u{e9}\tx\r\n", "x: caf\u{e9}\tx\r\n", "?"),
    ("GET / HTTP/1.1", "X:\t y \t\r\n", "x: y\r\n", "y "),
    ("GET / HTTP/1.1", "Forwarded: for=liar\r\n", "forwarded: for=127.0.0.1;", "liar"),
    ("GET / HTTP/1.1", "X_Forwarded_For: liar\r\n", "x-forwarded-for: 127.0.0.1\r\n", "liar"),
    ("GET / HTTP/1.1", "Connection: x-forwarded-for\r\n", "x-forwarded-for: 127.0.0.1\r\n", "conn"),
];

#[test]
fn requests_go_on_as_a_gateway_says_them() {
    for (line, fields, told, untold) in SAID {
        let head = format!("{line}\r\nHost: app.test\r\n{fields}\r\n");
        let request = take_request(&mut BytesMut::from(&head[..]), &mut Scanner::default(), 1024);
        let request = request.unwrap().unwrap();
        let mut parts = request.parts.clone();
        assert!(!ends_here(&mut parts), "{head:?}");
        let switch = upgrade(&parts, request.length);
        to_upstream(&mut parts, request.length, switch, request.roles);
        let host = parts.uri.authority().unwrap().as_str().to_owned();
        let requester = Requester::new([127, 0, 0, 1].into(), &host, parts.version, None);
        let forwarded = requester.identify(&mut parts.headers, false);
        let said = write_request(&parts, &host, &forwarded, false);
        let said = std::str::from_utf8(&said).unwrap();
        assert!(said.contains(told), "{head:?}: {said:?}");
        assert!(!said.contains(untold), "{head:?}: {said:?}");
    }
}

/// The head, what the client gets, and what it must not get.
const ANSWERED: &[(&str, &str, &str)] = &[
    ("200 OK\r\nContent-Length: 2\r\nX : y\r\n\r\n", "x: y\r\n", "x :"),
    ("200 OK\r\nContent-Length: 2\r\nConnection: content-length\r\n\r\n", "length: 2", "conn"),
    ("200 OK\r\nContent-Length: 2\r\nKeep-Alive: 5\r\n\r\n", "", "keep-alive"),
    ("200 OK\r\nContent-Length: 2\r\nUpgrade: h2c\r\n\r\n", "", "upgrade"),
    ("204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", "", "transfer-encoding"),
    (
        "426 No\r\nUpgrade: x/2\r\nConnection: upgrade\r\nContent-Length: 0\r\n\r\n",
        "upgrade: x/2\r\n",
        "close",
    ),
    ("200 OK\r\nContent-Length: 0\r\nA: b\r\nA: c\r\n\r\n", "a: b\r\na: c\r\n", "b, c"),
];

#[test]
fn responses_go_on_as_a_gateway_says_them() {
    for (said, told, untold) in ANSWERED {
        let mut head = BytesMut::from(&format!("HTTP/1.1 {said}")[..]);
        let response = take_response(&mut head, 0, &mut Scanner::default(), &Method::GET);
        let mut response = response.unwrap().unwrap();
        to_client(&mut response.parts, response.roles);
        let mut out = BytesMut::new();
        write_fields(&response.parts.headers, &mut out);
        let out = std::str::from_utf8(&out).unwrap();
        assert!(out.contains(told), "{said:?}: {out:?}");
        assert!(!out.contains(untold), "{said:?}: {out:?}");
    }
}
