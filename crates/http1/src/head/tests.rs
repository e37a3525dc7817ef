//! Tables of heads: accepted ones, refused ones and why, however a head is cut into reads.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use eyelet_memory::budget::Budget;

use super::*;

mod strict;

fn whole(head: &str) -> Result<Request, RequestFault> {
    let mut buffer = BytesMut::from(head);
    take_request(&mut buffer, &mut Scanner::default(), 64 << 10).map(Option::unwrap)
}

fn fault(head: &str) -> Option<RequestFault> {
    whole(head).err()
}

fn get(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n\r\n")
}

#[test]
fn malformed_requests() {
    use RequestFault::*;
    for (head, expected) in [
        ("GET / HTTP/1.1\nHost: a.test\r\n\r\n", BareLf),
        ("GET / HTTP/1.1\r\nHost: a.test\nX: y\r\n\r\n", BareLf),
        ("GET / HTTP/1.1\r\nHost: a.test\r\n\n", BareLf),
        ("\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n", BareLf),
        ("\r\n\r\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n", Line),
        ("GET / HTTP/1.1\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: a.test\r\nHost: a.test\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: a.test/x\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: u@a.test\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: u:1@a.test\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: a.test:x\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: a.test:+80\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: a.test:65536\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: :80\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: [::1]:x\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: [::1]x\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: a.test, b.test\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: a test\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: a.test..\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: a..test:443\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: .a.test\r\n\r\n", Host),
        ("GET / HTTP/1.1\r\nHost: .\r\n\r\n", Host),
        ("GET http://a.test../ HTTP/1.1\r\nHost: a.test\r\n\r\n", Host),
        ("GET http://b@a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", Host),
        ("GET ftp://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", Target),
        ("GET a.test HTTP/1.1\r\nHost: a.test\r\n\r\n", Target),
        ("GET * HTTP/1.1\r\nHost: a.test\r\n\r\n", Target),
        ("GET /#x HTTP/1.1\r\nHost: a.test\r\n\r\n", Target),
        ("CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n", Connect),
        ("GET  / HTTP/1.1\r\nHost: a.test\r\n\r\n", Line),
        ("GET / HTTP/1.1 \r\nHost: a.test\r\n\r\n", Field),
        (" GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", Line),
        ("G@T / HTTP/1.1\r\nHost: a.test\r\n\r\n", Line),
        ("GET /\r\nHost: a.test\r\n\r\n", Line),
        ("GET / HTTP/2.0\r\nHost: a.test\r\n\r\n", Version),
        ("GET / HTTP/1.20\r\nHost: a.test\r\n\r\n", Line),
        ("GET / HTTP/0.9\r\nHost: a.test\r\n\r\n", Version),
        ("GET / http/1.1\r\nHost: a.test\r\n\r\n", Line),
        ("GET / HTTP/1.1\r\n Host: a.test\r\n\r\n", Field),
    ] {
        assert_eq!(fault(head), Some(expected), "{head:?}");
    }
}

#[test]
fn malformed_fields() {
    use RequestFault::*;
    for (fields, expected) in [
        ("X: a\r\n b", Field),
        ("X : a", Field),
        ("X\t: a", Field),
        (": a", Field),
        ("X", Field),
        ("X: a\0b", Field),
        ("X: a\rb", Field),
        ("X(y): a", Field),
        ("Content-Length: 1\r\nContent-Length: 2", Length),
        ("Content-Length: 1\r\nContent-Length: 1", Length),
        ("Content-Length: 1, 1", Length),
        ("Content-Length: +1", Length),
        ("Content-Length: -1", Length),
        ("Content-Length: 0x1", Length),
        ("Content-Length: 1 1", Length),
        ("Content-Length:", Length),
        ("Content-Length: 18446744073709551616", Length),
        ("Content-Length: 9223372036854775808", Length),
        ("Content-Length: 1\r\nTransfer-Encoding: chunked", Length),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", Length),
        ("Transfer-Encoding: chunked, chunked", Length),
        ("Transfer-Encoding: chunked, identity", Length),
        ("Transfer-Encoding: identity", Length),
        ("Transfer-Encoding: xchunked", Length),
        ("Transfer-Encoding: chunked;a=b", Length),
        ("Transfer-Encoding: \"chunked\"", Length),
        ("Transfer-Encoding: \x0bchunked", Field),
        ("Transfer-Encoding:", Length),
        ("Transfer-Encoding: gzip, chunked", Coding),
        ("Transfer-Encoding: x, identity, chunked", Coding),
        ("Transfer-Encoding: x, chunked, chunked", Length),
        ("Transfer-Encoding: , chunked", Length),
        ("Transfer-Encoding: chunked,", Length),
    ] {
        assert_eq!(fault(&get(fields)), Some(expected), "{fields:?}");
    }
    let old = "POST / HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(fault(old), Some(Length));
}

#[test]
fn limits_of_a_head() {
    let many = "X: y\r\n".repeat(FIELDS_MAX);
    assert_eq!(fault(&get(many.trim_end())), Some(RequestFault::TooMany));
    let long = format!("GET /{} HTTP/1.1\r\nHost: a.test\r\n\r\n", "x".repeat(TARGET_BYTES_MAX));
    assert_eq!(fault(&long), Some(RequestFault::TargetTooLong));
    let wide = get(&format!("X: {}", "y".repeat(64 << 10)));
    assert_eq!(fault(&wide), Some(RequestFault::TooLong));
    // Also before it is complete.
    let mut endless = BytesMut::from(&wide[..wide.len() - 4]);
    let taken = take_request(&mut endless, &mut Scanner::default(), 64 << 10);
    assert_eq!(taken.err(), Some(RequestFault::TooLong));
    let mut target = BytesMut::from(&long[..2048]);
    let taken = take_request(&mut target, &mut Scanner::default(), 1024);
    assert_eq!(taken.err(), Some(RequestFault::TargetTooLong));
    for begun in ["GET /\r\n", "GET / \r\n", "GET / HTTQ/1.1\r\n"] {
        let taken = take_request(&mut BytesMut::from(begun), &mut Scanner::default(), 1024);
        assert_eq!(taken.err(), Some(RequestFault::Line), "{begun:?}");
    }
    let mut tls = BytesMut::from(&b"\x16\x03\x01"[..]);
    let taken = take_request(&mut tls, &mut Scanner::default(), 64 << 10);
    assert_eq!(taken.err(), Some(RequestFault::Line));
}

#[test]
fn requests_and_their_meaning() {
    for (head, uri, length, keep_alive) in [
        ("GET /a?b HTTP/1.1\r\nHost: A.test:8443\r\n\r\n", "https://A.test:8443/a?b", None, true),
        ("\r\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n", "https://a.test/", None, true),
        ("GET / HTTP/1.1\r\nHost: a.test.:\r\n\r\n", "https://a.test.:/", None, true),
        ("GET / HTTP/1.1\r\nHost: [::1]:8443\r\n\r\n", "https://[::1]:8443/", None, true),
        ("GET https://b.test/x HTTP/1.1\r\nHost: a.test\r\n\r\n", "https://b.test/x", None, true),
        ("OPTIONS * HTTP/1.1\r\nHost: [::1]\r\n\r\n", "https://[::1]*", None, true),
        ("OPTIONS http://a.test HTTP/1.1\r\nHost: b\r\n\r\n", "http://a.test*", None, true),
        ("OPTIONS http://a.test/ HTTP/1.1\r\nHost: b\r\n\r\n", "http://a.test/", None, true),
        ("GET / HTTP/1.9\r\nHost: a\r\n\r\n", "https://a/", None, true),
        ("GET http://a?b HTTP/1.1\r\nHost: a\r\n\r\n", "http://a/?b", None, true),
        ("GET / HTTP/1.0\r\n\r\n", "/", None, false),
        ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "/", None, true),
        ("GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n", "https://a/", None, false),
        ("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\n", "https://a/", Some(7), true),
    ] {
        let request = whole(head).unwrap();
        let expected = length.map_or(Length::Empty, Length::Known);
        assert_eq!(request.parts.uri.to_string(), uri, "{head:?}");
        assert_eq!((request.length, request.keep_alive), (expected, keep_alive), "{head:?}");
    }
    let chunked = whole(&get("transfer-encoding: Chunked")).unwrap();
    assert_eq!(chunked.length, Length::Chunked);
}

#[test]
fn a_head_may_be_cut_anywhere() {
    let head = format!("\r\n{}", get("X: y"));
    let mut scanner = Scanner::default();
    let mut buffer = BytesMut::new();
    for (at, byte) in head.bytes().enumerate() {
        buffer.extend_from_slice(&[byte]);
        let taken = take_request(&mut buffer, &mut scanner, 1024).unwrap();
        assert_eq!(taken.is_some(), at + 1 == head.len(), "at {at}");
    }
    assert!(buffer.is_empty());
}

fn response(head: &str, method: &Method) -> Result<(Length, bool), ResponseFault> {
    let mut buffer = BytesMut::from(head);
    let taken = take_response(&mut buffer, 0, &mut Scanner::default(), method)?.unwrap();
    Ok((taken.length, taken.keep_alive))
}

#[test]
fn responses() {
    use ResponseFault as Fault;
    for (head, expected) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", Ok((Length::Known(3), true))),
        ("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", Ok((Length::Empty, true))),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Ok((Length::Chunked, true))),
        ("HTTP/1.1 200 OK\r\n\r\n", Ok((Length::UntilClose, false))),
        ("HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", Ok((Length::Known(3), false))),
        ("HTTP/1.1 204 No\r\nConnection: close\r\n\r\n", Ok((Length::Empty, false))),
        ("HTTP/1.1 304 No\r\nContent-Length: 9\r\n\r\n", Ok((Length::Empty, true))),
        ("HTTP/1.1 103 Early\r\n\r\n", Ok((Length::Empty, true))),
        ("HTTP/1.1 200 OK\nContent-Length: 3\r\n\r\n", Ok((Length::Known(3), true))),
        ("HTTP/1.1 200 OK\nContent-Length: 3\n\n", Ok((Length::Known(3), true))),
        ("HTTP/1.1 200\nContent-Length: 3\n\r\n", Ok((Length::Known(3), true))),
        ("HTTP/1.1 200 OK\nX: y\n z\n\n", Err(Fault::Field)),
        ("HTTP/1.1 200 OK\nX: y\rZ: 1\n\n", Err(Fault::Field)),
        ("\nHTTP/1.1 200 OK\n\n", Err(Fault::Line)),
        ("HTTP/1.1 2x0 OK\r\n\r\n", Err(Fault::Line)),
        ("\r\nHTTP/1.1 200 OK\r\n\r\n", Err(Fault::Line)),
        ("HTTP/1.1 200 OK\r\nContent-Length : 3\r\n\r\n", Ok((Length::Known(3), true))),
        ("HTTP/1.1 200 OK\r\nX\0: y\r\n\r\n", Err(Fault::Field)),
        ("HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n", Err(Fault::Field)),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            Err(Fault::Length),
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", Err(Fault::Length)),
        ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Err(Fault::Length)),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Err(Fault::Coding)),
        ("SSH-2.0-x\r\n\r\n", Err(Fault::Line)),
        ("HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n", Err(Fault::Length)),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2, 3\r\n\r\n", Err(Fault::Length)),
        ("HTTP/1.1 200 OK\r\nX: \0\r\n\r\n", Err(Fault::Field)),
        ("HTTP/1.1 200 OK\r\nX: y\rz\r\n\r\n", Err(Fault::Field)),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n", Err(Fault::Coding)),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", Err(Fault::Coding)),
        ("HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\n", Err(Fault::Line)),
        ("HTTP/1.1 99 OK\r\nContent-Length: 2\r\n\r\n", Err(Fault::Line)),
    ] {
        assert_eq!(response(head, &Method::GET), expected, "{head:?}");
    }
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
    assert_eq!(response(head, &Method::HEAD), Ok((Length::Empty, true)));
    let many = |count| format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(count));
    let fits = response(&many(RESPONSE_FIELDS_MAX), &Method::GET);
    assert_eq!(fits, Ok((Length::UntilClose, false)));
    let beyond = response(&many(RESPONSE_FIELDS_MAX + 1), &Method::GET);
    assert_eq!(beyond, Err(Fault::TooMany));
    // Bytes that are not HTTP are refused at once: more bytes would not help.
    let mut buffer = BytesMut::from(&b"220 mail"[..]);
    let taken = take_response(&mut buffer, 0, &mut Scanner::default(), &Method::GET);
    assert_eq!(taken.err(), Some(Fault::Line));
}

#[test]
fn forwarded_fields_keep_their_order() {
    let request = whole(&get("X-Two: 2\r\nConnection: keep-alive, TE\r\nTE: trailers\r\n\
         Content-Length: 0\r\nX-One: 1\r\nX-Two: 3"));
    let mut headers = request.unwrap().parts.headers;
    for name in ["connection", "te", "content-length"] {
        assert!(headers.remove(name).is_some(), "{name}");
    }
    let lines = |headers: &HeaderMap| {
        let lines =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        lines.collect::<Vec<_>>()
    };
    // Values of one name are together, at the place of the first.
    assert_eq!(lines(&headers), ["x-two: 2", "x-two: 3", "x-one: 1"]);
    let head = "HTTP/1.1 200 OK\r\nDate: d\r\nTransfer-Encoding: chunked\r\nServer: s\r\n\
         KEEP-ALIVE: timeout=5\r\nConnection: keep-alive\r\nX: y\r\n\r\n";
    let mut head = BytesMut::from(head);
    let response = take_response(&mut head, 0, &mut Scanner::default(), &Method::GET);
    let mut headers = response.unwrap().unwrap().parts.headers;
    for name in ["keep-alive", "transfer-encoding"] {
        assert!(headers.remove(name).is_some(), "{name}");
    }
    assert_eq!(lines(&headers), ["date: d", "server: s", "x: y"]);
}

/// A `Connection` field is noted and does not enter the map, unless it names other fields.
#[test]
fn connection_alone_is_noted() {
    for (version, lines, is_kept, enters) in [
        (1, "X: close", true, false),
        (1, "Connection: close", false, false),
        (1, "CONNECTION: Close", false, false),
        (1, "Connection: keep-alive", true, false),
        (0, "X: keep-alive", false, false),
        (0, "Connection: Keep-Alive", true, false),
        (0, "Connection: keep-alive\r\nConnection: close", false, false),
        (1, "Connection: close, x", false, true),
        (1, "Connection: keep-alive\r\nConnection: x, close", false, true),
        (1, "Connection: close\r\nConnection: x", false, true),
        (1, "Connection: x\r\nConnection: keep-alive", true, true),
        (0, "Connection: x, keep-alive", true, true),
        (1, "Connection:", true, true),
    ] {
        let head = format!("HTTP/1.{version} 200 OK\r\nContent-Length: 0\r\n{lines}\r\n\r\n");
        let mut head = BytesMut::from(&head[..]);
        let response = take_response(&mut head, 0, &mut Scanner::default(), &Method::GET);
        let response = response.unwrap().unwrap();
        assert_eq!(response.keep_alive, is_kept, "{version}: {lines}");
        assert_eq!(response.parts.headers.contains_key("connection"), enters, "{lines}");
    }
}

proptest::proptest! {
    /// Nothing panics, and a head means the same however it arrives.
    #[test]
    fn heads_of_any_bytes(
        line in "(GET|POST|OPTIONS|P T) (/|\\*|http://a/?|/\\?x) HTTP/1.[012]",
        fields in proptest::collection::vec("(Host|X|Content-Length| ): ?[a-z0-9,]{0,5}", 0..4),
        end in "(\r\n|\n|\r){0,3}",
    ) {
        let head = format!("{line}\r\nHost: a\r\n{}\r\n{end}", fields.join("\r\n"));
        crate::properties::head_is_stable(head.as_bytes());
    }

    #[test]
    fn responses_of_any_bytes(
        line in "HTTP/1.[01] [1-5][0-9][0-9] ?[a-z]{0,3}",
        fields in proptest::collection::vec(
            "(X|Content-Length ?|Transfer-Encoding): ?[0-9]{0,3}(chunked)?\r?\n",
            0..3,
        ),
        end in "(\r\n|\n|\r){0,3}",
    ) {
        let head = format!("{line}\n{}{end}", fields.concat());
        crate::properties::head_is_stable(head.as_bytes());
    }
}

/// The seeds of the fuzz target.
#[test]
fn the_seeds_are_stable() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/http_head");
    let seeds: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
    assert!(!seeds.is_empty());
    for seed in seeds {
        crate::properties::head_is_stable(&std::fs::read(seed.unwrap().path()).unwrap());
    }
}

/// A response's head that comes after interim ones shares no memory with them.
#[test]
fn a_head_after_interim_ones_is_alone() {
    let interim = format!("HTTP/1.1 103 Early\r\nLink: {}\r\n\r\n", "l".repeat(14 << 10));
    let last = format!("HTTP/1.1 204 No\r\nX: {}\r\n\r\n", "x".repeat(1_100));
    let mut buffer = BytesMut::from(&[interim, last].concat()[..]);
    let held = buffer.capacity();
    let memory = buffer.as_ptr_range();
    let mut take = || {
        let taken = take_response(&mut buffer, held, &mut Scanner::default(), &Method::GET);
        taken.unwrap().unwrap().parts
    };
    assert_eq!(take().status, 103);
    let last = take();
    assert_eq!(last.status, 204);
    assert!(!memory.contains(&last.headers["x"].as_bytes().as_ptr()));
}

/// The values of a request share the buffer, which counts until the last of them is gone.
#[test]
fn a_counted_request_is_read_where_it_is() {
    let budget = Arc::new(Budget::new(64 << 20, 0));
    let mut received = CountedBuffer::new(&budget);
    let head = get(&format!("X: {}", "x".repeat(10_000)));
    received.extend_from_slice(head.replace("HTTP/1.1", "HTTP/1.7").as_bytes());
    received.extend_from_slice(b"the next one");
    received.shrink_to_fit();
    let (memory, held) = (received.as_ptr_range(), budget.used());
    let request = counted_request(received, head.len()).unwrap();
    assert_eq!(request.parts.version, Version::HTTP_11);
    let value = request.parts.headers["x"].as_bytes();
    assert_eq!(value.len(), 10_000);
    assert!(memory.contains(&value.as_ptr()), "it was copied");
    assert_eq!(budget.used(), held);
    drop(request);
    assert_eq!(budget.used(), 0);
}

/// Nothing of an earlier request is in one that takes its place, even without its memory given
/// back.
#[test]
fn a_request_in_the_place_of_another_has_nothing_of_it() {
    let heads = [
        "POST /long?a=b HTTP/1.1\r\nHost: a.test\r\nCookie: a=1\r\nContent-Length: 5\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\nX-A: b\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: c.test\r\n\r\n",
    ];
    for gives_back in [false, true] {
        let mut request = Request::empty();
        for head in heads {
            let mut buffer = BytesMut::from(head);
            assert_eq!(request.take(&mut buffer, &mut Scanner::default(), 1024), Ok(true));
            let fresh = format!("{:?}", whole(head).unwrap());
            assert_eq!(format!("{request:?}"), fresh, "{head:?}");
            if gives_back {
                request.give_back();
                assert!(request.parts.headers.is_empty() && request.raw().is_empty());
            }
        }
    }
}
