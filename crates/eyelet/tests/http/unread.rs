//! Requests that an upstream has certainly not processed: their streams are beyond the last one of
//! GOAWAY, or refused. They are sent again with what was taken of their bodies, or their clients
//! learn that they may send them again (RFC 9113 section 8.7).

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request};

use crate::support::client::Offer;
use crate::support::edge::LISTENER;
use crate::support::frames::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame,
    next,
};
use crate::support::two::{self, Two, run};
use crate::support::web::{Web, ask, chunks, get, head, hear};
use crate::support::{Edge, Pki, Upstream};

const RULE: &str = "upstream_http2 = \"on\"\ncompress = \"off\"";
/// `:status: 200` in the static table.
const OK: &[u8] = &[0x88];
const REFUSED_STREAM: u32 = 7;
/// More than Eyelet keeps of a body.
const LONG_BYTES: usize = 200 << 10;

/// The refusal by which an upstream says that it has not processed a stream.
type Refusal = fn(u32) -> Vec<u8>;

fn goaway(_: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[0; 8])
}

fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &REFUSED_STREAM.to_be_bytes())
}

/// A head with nothing but this status.
fn interim(stream: u32, status: &str) -> Vec<u8> {
    let block = [&[0x08, 3], status.as_bytes()].concat();
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// The next request that is read to its end: its stream, its body, and whether it had trailers.
fn next_request(socket: &mut impl Read) -> Option<(u32, Vec<u8>, bool)> {
    let (mut body, mut heads) = (Vec::new(), 0);
    loop {
        let frame = next(socket)?;
        match frame.kind {
            HEADERS => heads += 1,
            DATA => body.extend(&frame.payload),
            _ => continue,
        }
        if frame.flags & END_STREAM > 0 {
            return Some((frame.stream, body, heads > 1));
        }
    }
}

/// Bodies that were read, and whether each had trailers.
type Seen = Arc<Mutex<Vec<(Vec<u8>, bool)>>>;

/// An application that reads each request and refuses as many as there are refusals. It answers
/// the others. SETTINGS let a client send [`LONG_BYTES`].
fn refusing(refusals: Vec<Refusal>) -> (Upstream, Seen) {
    let (asked, seen) = (AtomicUsize::new(0), Seen::default());
    let noted = seen.clone();
    let app = Upstream::serve(move |mut socket| {
        socket.read_exact(&mut [0; 24]).unwrap();
        let window = [&[0, 4][..], &(1_u32 << 20).to_be_bytes()].concat();
        let opens = frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 20).to_be_bytes());
        socket.write_all(&[frame(SETTINGS, 0, 0, &window), opens].concat()).unwrap();
        while let Some((stream, body, has_trailers)) = next_request(&mut socket) {
            noted.lock().unwrap().push((body, has_trailers));
            let answer = match refusals.get(asked.fetch_add(1, Ordering::SeqCst)) {
                Some(refusal) => refusal(stream),
                None => frame(HEADERS, END_HEADERS | END_STREAM, stream, OK),
            };
            if socket.write_all(&answer).is_err() {
                return;
            }
        }
    });
    (app, seen)
}

/// A body in which each byte has its place.
fn text(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

/// The way in which a client sends a body.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Length,
    Chunked,
    Two,
    /// In pieces, with trailers.
    TwoStreamed,
}

/// Sends a body. Returns the status, or the code of RST_STREAM.
fn post(web: &Web, way: Way, body: &[u8]) -> Result<u16, h2::Reason> {
    if let Way::Length | Way::Chunked = way {
        let mut client = web.connect();
        let line = "POST / HTTP/1.1\r\nHost: app.test\r\n";
        let (framing, sent) = match way {
            Way::Length => (format!("Content-Length: {}", body.len()), body.to_vec()),
            _ => {
                let size = format!("{:x}\r\n", body.len());
                let end = b"\r\n0\r\nx-sum: 1\r\n\r\n";
                ("Transfer-Encoding: chunked".to_owned(), [size.as_bytes(), body, end].concat())
            }
        };
        client.write_all(format!("{line}{framing}\r\n\r\n").as_bytes()).unwrap();
        // A refusal may come first.
        let _ = client.write_all(&sent);
        return Ok(hear(&mut client, "POST").status);
    }
    let (mut status, body) = (Ok(0), body.to_vec());
    run(async {
        let mut client = web.connect_two().await;
        client.send = client.send.clone().ready().await.unwrap();
        let request = Request::post("https://app.test/");
        let request = match way {
            Way::Two => request.header("content-length", body.len()),
            _ => request,
        };
        let request = request.body(()).unwrap();
        let (response, mut send) = client.send.send_request(request, false).unwrap();
        let pieces = if way == Way::Two { 1 } else { 3 };
        for piece in body.chunks(body.len().div_ceil(pieces)) {
            // The stream may be refused meanwhile.
            let _ = two::write(&mut send, Bytes::copy_from_slice(piece)).await;
        }
        let _ = match way {
            Way::Two => send.send_data(Bytes::new(), true),
            _ => send.send_trailers(HeaderMap::from_iter([(
                http::HeaderName::from_static("x-sum"),
                http::HeaderValue::from_static("1"),
            )])),
        };
        status = match response.await {
            Ok(response) => Ok(response.status().as_u16()),
            Err(error) => Err(error.reason().unwrap()),
        };
    });
    status
}

const WAYS: [Way; 4] = [Way::Length, Way::Chunked, Way::Two, Way::TwoStreamed];

#[test]
fn a_body_that_was_not_processed_is_sent_again() {
    for way in WAYS {
        for bytes in [1, 20, 20_000, 65_000] {
            // Three tries.
            let (app, seen) = refusing(vec![goaway, reset]);
            let web = Web::with(app, RULE, "");
            assert_eq!(post(&web, way, &text(bytes)), Ok(200), "{way:?} {bytes}");
            let has_trailers = matches!(way, Way::Chunked | Way::TwoStreamed);
            let seen = seen.lock().unwrap();
            let is_same = |(body, trailers): &(Vec<u8>, bool)| {
                *body == text(bytes) && *trailers == has_trailers
            };
            assert_eq!(seen.len(), 3, "{way:?} {bytes}");
            assert!(seen.iter().all(is_same), "{way:?} {bytes}: another request");
            assert_eq!(web.app.accepted(), 2, "behind GOAWAY");
        }
    }
}

/// Nobody has kept all of it, so a client of HTTP/2 is told that it may send it again.
#[test]
fn a_longer_body_is_given_back() {
    for way in WAYS {
        for refusal in [goaway as Refusal, reset] {
            let (app, seen) = refusing(vec![refusal]);
            let web = Web::with(app, RULE, "");
            let expected = match way {
                Way::Length | Way::Chunked => Ok(503),
                Way::Two | Way::TwoStreamed => Err(h2::Reason::REFUSED_STREAM),
            };
            assert_eq!(post(&web, way, &text(LONG_BYTES)), expected, "{way:?}");
            assert_eq!(seen.lock().unwrap().len(), 1, "{way:?}");
            let line = web.request_line("/");
            assert_eq!(line["reason"], "upstream: the request was not taken", "{line}");
            assert_eq!(line["outcome"], "failed", "{line}");
            // The upstream and the connection serve the next one.
            assert_eq!(get(&mut web.connect(), "/next").status, 200);
        }
    }
}

/// An upstream that refuses all gets three tries, and no client is told to try again.
#[test]
fn an_upstream_that_refuses_all_is_asked_three_times() {
    for (way, status) in [(Way::Length, 503), (Way::Two, 503)] {
        let (app, seen) = refusing(vec![reset; 9]);
        let web = Web::with(app, RULE, "");
        assert_eq!(post(&web, way, &text(9)), Ok(status), "{way:?}");
        assert_eq!(seen.lock().unwrap().len(), 3, "{way:?}");
    }
}

/// A 100 only asks for the body. Any other interim response says that the request is processed.
#[test]
fn what_was_begun_is_not_sent_again() {
    let asks = |stream| [interim(stream, "100"), reset(stream)].concat();
    let begins = |stream| [interim(stream, "103"), reset(stream)].concat();
    for (refusal, tries, status) in [(asks as Refusal, 2, 200), (begins, 1, 503)] {
        let (app, seen) = refusing(vec![refusal]);
        let web = Web::with(app, RULE, "");
        let mut client = web.connect();
        client
            .write_all(b"POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 2\r\n\r\nhi")
            .unwrap();
        assert_eq!(head(&mut client).as_bytes()[9], b'1', "an interim response");
        assert_eq!(hear(&mut client, "POST").status, status);
        assert_eq!(seen.lock().unwrap().len(), tries);
    }
}

/// An application that wants HTTP/1.1 (RFC 9113 section 7), and says so once it has read all.
/// Returns what it has read by HTTP/1.1.
fn wanting_one() -> (Upstream, Arc<Mutex<Vec<u8>>>) {
    const HTTP_1_1_REQUIRED: u32 = 13;
    let seen = Arc::<Mutex<Vec<u8>>>::default();
    let noted = seen.clone();
    let app = Upstream::serve(move |mut socket| {
        let mut first = [0; 3];
        socket.read_exact(&mut first).unwrap();
        if &first == b"PRI" {
            socket.read_exact(&mut [0; 21]).unwrap();
            socket.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
            let (stream, ..) = next_request(&mut socket).unwrap();
            let code = HTTP_1_1_REQUIRED.to_be_bytes();
            socket.write_all(&frame(RST_STREAM, 0, stream, &code)).unwrap();
            while next(&mut socket).is_some() {}
            return;
        }
        let head = head(&mut socket).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let body = match length {
            Some(length) => {
                let mut body = vec![0; length.parse().unwrap()];
                socket.read_exact(&mut body).unwrap();
                body
            }
            None => chunks(&mut socket),
        };
        *noted.lock().unwrap() = body;
        socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        let _ = socket.read(&mut [0]);
    });
    (app, seen)
}

/// The rest of the body comes behind what is sent again.
#[test]
fn a_body_goes_by_http_1_where_that_is_wanted() {
    for way in WAYS {
        for bytes in [1, 20_000, 65_000] {
            let (app, seen) = wanting_one();
            let web = Web::with(app, RULE, "");
            assert_eq!(post(&web, way, &text(bytes)), Ok(200), "{way:?} {bytes}");
            assert!(*seen.lock().unwrap() == text(bytes), "{way:?} {bytes}: another body");
        }
    }
}

/// A coded body is decoded again from its beginning.
#[test]
fn a_body_that_is_decoded_is_sent_again() {
    let (app, seen) = refusing(vec![goaway, reset]);
    let web = Web::with(app, "upstream_http2 = \"on\"\ndecode_requests = true", "");
    let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    coder.write_all(&text(LONG_BYTES)).unwrap();
    let coded = coder.finish().unwrap();
    let mut client = web.connect();
    let head = "POST / HTTP/1.1\r\nHost: app.test\r\nContent-Encoding: gzip\r\n";
    client.write_all(format!("{head}Content-Length: {}\r\n\r\n", coded.len()).as_bytes()).unwrap();
    client.write_all(&coded).unwrap();
    assert_eq!(hear(&mut client, "POST").status, 200);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|(body, _)| *body == text(LONG_BYTES)), "another body");
}

/// A connection on which GOAWAY comes together with the first SETTINGS, and that stays open.
fn leaving(socket: &mut (impl Read + Write)) {
    socket.read_exact(&mut [0; 24]).unwrap();
    let says = [frame(SETTINGS, 0, 0, &[]), goaway(0)].concat();
    socket.write_all(&says).unwrap();
    while next(socket).is_some() {}
}

/// An application that takes no stream on its first connections.
fn leaving_first(connections: usize) -> Upstream {
    let begun = AtomicUsize::new(0);
    Upstream::serve(move |mut socket| {
        if begun.fetch_add(1, Ordering::SeqCst) < connections {
            return leaving(&mut socket);
        }
        socket.read_exact(&mut [0; 24]).unwrap();
        socket.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
        while let Some((stream, _, _)) = next_request(&mut socket) {
            socket.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, stream, OK)).unwrap();
        }
    })
}

/// Nothing was sent on it, so that no method matters.
#[test]
fn a_connection_that_takes_no_stream_is_followed_by_another() {
    let post = "POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 2\r\n\r\nhi";
    for (connections, status, accepted) in [(1, 200, 2), (2, 200, 3), (9, 503, 3)] {
        let web = Web::with(leaving_first(connections), RULE, "");
        let mut client = web.connect();
        assert_eq!(ask(&mut client, post).status, status, "{connections}");
        assert_eq!(web.app.accepted(), accepted);
        if status == 503 {
            let line = web.request_line("/");
            assert_eq!(line["reason"], "upstream: the request was not taken", "{line}");
        }
    }
}

#[test]
fn an_upstream_that_takes_no_stream_leaves_its_requests_to_the_others() {
    let (leaving, other) = (leaving_first(usize::MAX), leaving_first(0));
    let pki = Pki::new();
    let list = format!("\", \"http://{}", other.address);
    let rule = pki.terminate(&format!("http://{}{list}", leaving.address), RULE);
    let line = rule.lines().find(|line| line.starts_with("upstream = ")).unwrap();
    let value = line.strip_prefix("upstream = ").unwrap();
    let rule = rule.replace(line, &format!("upstream = [{value}]"));
    let edge = Edge::start_whole(&pki.folder, &format!("workers = 1\n{LISTENER}{rule}"), |_| ());
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    for _ in 0..4 {
        assert_eq!(get(&mut client, "/").status, 200);
    }
    assert!(leaving.accepted() > 0, "it was tried");
    run(async {
        let mut client = Two::connect(&pki, edge.address()).await;
        assert_eq!(client.get("/").await.unwrap().0, 200);
    });
}
