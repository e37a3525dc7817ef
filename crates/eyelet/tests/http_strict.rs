//! Requests that two readers could read in two ways: refused, answered, and never seen upstream.
//! Must not know the engine; the client says bytes, the upstream listens.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use support::client::Offer;
use support::web::{get, hear, rest};
use support::{Edge, Pki, Upstream};

/// What reached the application, byte for byte.
type Seen = Arc<Mutex<Vec<u8>>>;

/// An application that notes what it gets and answers each head and each end of a body.
fn listener() -> (Upstream, Seen) {
    let seen = Seen::default();
    let noted = seen.clone();
    let app = Upstream::serve(move |mut stream: TcpStream| {
        let mut piece = [0; 4096];
        let mut open = Vec::new();
        while let Ok(length @ 1..) = stream.read(&mut piece) {
            noted.lock().unwrap().extend_from_slice(&piece[..length]);
            open.extend_from_slice(&piece[..length]);
            if let Some(end) = open.windows(4).position(|four| four == b"\r\n\r\n") {
                open.drain(..end + 4);
                let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                if stream.write_all(ok).is_err() {
                    return;
                }
            }
        }
    });
    (app, seen)
}

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: app.test\r\n\r\n";

/// Heads (behind `POST / HTTP/1.1`), what follows them, and the answer.
const TABLE: &[(&str, &str, u16)] = &[
    // Lengths.
    ("Host: app.test\r\nContent-Length: 5\r\nContent-Length: 0", "hello", 400),
    ("Host: app.test\r\nContent-Length: 0\r\nContent-Length: 0", "", 400),
    ("Host: app.test\r\nContent-Length: 0, 0", "", 400),
    ("Host: app.test\r\nContent-Length: +0", "", 400),
    ("Host: app.test\r\nContent-Length: -1", "", 400),
    ("Host: app.test\r\nContent-Length: 0x5", "hello", 400),
    ("Host: app.test\r\nContent-Length: 5 ", "hello", 200),
    ("Host: app.test\r\nContent-Length: 5;", "hello", 400),
    ("Host: app.test\r\nContent-Length:", "", 400),
    ("Host: app.test\r\nContent-Length: 99999999999999999999", "", 400),
    ("Host: app.test\r\nContent-Length : 5", "hello", 400),
    ("Host: app.test\r\nContent-Length\t: 5", "hello", 400),
    ("Host: app.test\r\n Content-Length: 5", "hello", 400),
    ("Host: app.test\r\nX: y\r\n Content-Length: 5", "hello", 400),
    ("Host: app.test\r\nX: y\nContent-Length: 5", "hello", 400),
    ("Host: app.test\r\nX: y\rContent-Length: 5", "hello", 400),
    // Codings.
    ("Host: app.test\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", "0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 5", "0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x", "0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked", "0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked, chunked", "0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked, identity", "0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: identity", "", 400),
    ("Host: app.test\r\nTransfer-Encoding: xchunked", "0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked;q=1", "0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: \"chunked\"", "0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: 'chunked'", "0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding:\x0bchunked", "0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding : chunked", "0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding\r\n : chunked", "0\r\n\r\n", 400),
    ("Host: app.test\r\nX: \r\n Transfer-Encoding: chunked", "0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer_Encoding: chunked", "", 200),
    ("Host: app.test\r\nTransfer-Encoding:\tchunked", "0\r\n\r\n", 200),
    ("Host: app.test\r\ntRANSFER-eNCODING: CHUNKED", "0\r\n\r\n", 200),
    ("Host: app.test\r\nTransfer-Encoding: gzip, chunked", "0\r\n\r\n", 501),
    // Chunks.
    ("Host: app.test\r\nTransfer-Encoding: chunked", "0\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "0x0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "-0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "5\r\nhello0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "5\r\nhello\n0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "5 \r\nhello\r\n0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "5;\nx\r\nhello\r\n0\r\n\r\n", 400),
    (
        "Host: app.test\r\nTransfer-Encoding: chunked",
        "100000000000000005\r\nhello\r\n0\r\n\r\n",
        400,
    ),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "0\r\nX : y\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "0\r\n\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "\r\n0\r\n\r\n", 400),
    // Hosts and fields.
    ("X: y", "", 400),
    ("Host: app.test\r\nHost: app.test", "", 400),
    ("Host: app.test\r\nHost: b.test", "", 400),
    ("Host: app.test, b.test", "", 400),
    ("Host: app.test@b.test", "", 400),
    ("Host: app.test/", "", 400),
    ("Host: app.test\r\nX\0Y: z", "", 400),
    ("Host: app.test\r\nX: \0", "", 400),
    ("Host: app.test\r\n: z", "", 400),
    ("Host: app.test\r\nno colon", "", 400),
];

#[test]
fn what_could_be_read_in_two_ways_is_nobodys_request() {
    let pki = Pki::new();
    let (app, seen) = listener();
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("http://{}", app.address), ""));
    for (fields, body, status) in TABLE {
        seen.lock().unwrap().clear();
        let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
        // What follows would be another's request if the first were read otherwise.
        let request = format!("POST /first HTTP/1.1\r\n{fields}\r\n\r\n{body}{SMUGGLED}");
        client.write_all(request.as_bytes()).unwrap();
        let heard = hear(&mut client, "POST");
        assert_eq!(heard.status, *status, "{fields:?} {body:?}: {heard:?}");
        if *status == 200 {
            assert_eq!(hear(&mut client, "GET").status, 200, "{fields:?} {body:?}");
            continue;
        }
        assert_eq!(heard.field("connection"), Some("close"), "{fields:?}: {heard:?}");
        assert_eq!(rest(&mut client), b"", "{fields:?} {body:?}: the connection ends");
        let seen = String::from_utf8_lossy(&seen.lock().unwrap()).into_owned();
        assert!(!seen.contains("smuggled"), "{fields:?} {body:?}: {seen:?}");
    }
}

#[test]
fn request_lines_that_are_none() {
    let pki = Pki::new();
    let (app, seen) = listener();
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("http://{}", app.address), ""));
    for (line, status) in [
        ("GET / HTTP/1.1\nHost: app.test\r\n\r\n", 400),
        ("GET  / HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET / HTTP/1.1 \r\nHost: app.test\r\n\r\n", 400),
        ("GET\t/ HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET / HTTP/2.0\r\nHost: app.test\r\n\r\n", 505),
        ("GET / HTTP/3\r\nHost: app.test\r\n\r\n", 400),
        ("GET /\r\n\r\n", 400),
        ("GET http://app.test/#x HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET http://b.test/ HTTP/1.1\r\nHost: app.test\r\n\r\n", 421),
        ("CONNECT app.test:443 HTTP/1.1\r\nHost: app.test\r\n\r\n", 405),
        ("TRACE / HTTP/1.1\r\nHost: app.test\r\n\r\n", 405),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("\x16\x03\x01\x02\x00\x01\x00", 400),
    ] {
        let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
        client.write_all(line.as_bytes()).unwrap();
        let heard = hear(&mut client, "GET");
        assert_eq!(heard.status, status, "{line:?}: {heard:?}");
    }
    assert_eq!(seen.lock().unwrap().len(), 0);
}

#[test]
fn heads_have_limits_and_deadlines() {
    let pki = Pki::new();
    let (app, _) = listener();
    let rule = pki.terminate(&format!("http://{}", app.address), "");
    let http = "[http]\nhead_timeout = \"300ms\"\nbody_timeout = \"300ms\"\n\
                head_bytes_max = \"8KiB\"\n";
    let edge = Edge::start(&pki.folder, &format!("{http}{rule}"));
    let connect = || Offer::new(&pki).connect(edge.address(), "app.test");
    let long = "x".repeat(9000);
    let fields = "X: y\r\n".repeat(101);
    for (request, status) in [
        (format!("GET / HTTP/1.1\r\nHost: app.test\r\nX: {long}\r\n\r\n"), 431),
        (format!("GET / HTTP/1.1\r\nHost: app.test\r\n{fields}\r\n"), 431),
        ("GET / HTTP/1.1\r\nHost: app.te".to_owned(), 408),
        ("POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 9\r\n\r\nhel".to_owned(), 408),
    ] {
        let mut client = connect();
        client.write_all(request.as_bytes()).unwrap();
        let heard = hear(&mut client, "GET");
        // The application may answer before the body has come.
        let answered = heard.status == 200 && status == 408 && request.starts_with("POST");
        assert!(heard.status == status || answered, "{request:.60}: {heard:?}");
        assert_eq!(heard.field("connection"), Some("close"));
        assert_eq!(rest(&mut client), b"");
    }
    // Others are not disturbed.
    assert_eq!(get(&mut connect(), "/").status, 200);
}

/// What an upstream says that could be read in two ways is no answer, and poisons no other.
#[test]
fn responses_are_read_as_strictly() {
    let pki = Pki::new();
    let app = Upstream::by_hand();
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("http://{}", app.address), ""));
    for response in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nX: y\r\n z\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
        client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        support::web::answer(&mut app.take(), response);
        assert_eq!(hear(&mut client, "GET").status, 502, "{response:?}");
    }
    // More than was asked for: the answer is good, the connection is not kept.
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    for _ in 0..2 {
        client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        let two = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".repeat(2);
        let mut app = app.take();
        support::web::answer(&mut app, &two);
        assert_eq!(hear(&mut client, "GET").text(), "ok");
    }
}
