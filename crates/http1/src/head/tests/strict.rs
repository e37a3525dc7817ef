//! Tables of requests that two readers could read in two ways, and the status that refuses them. A
//! request that is read leaves the next one whole.

use super::*;
use crate::body::{BadFraming, Decoder, Piece};

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
    ("Host: app.test\r\nTransfer_Encoding: chunked", "", 400),
    ("Host: app.test\r\nContent_Length: 5", "", 400),
    ("Host: app.test\r\ncontent_LENGTH: 0", "", 400),
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
    ("Host: app.test\r\nTransfer-Encoding: chunked", "5;x=\"y\" ; z\r\nhello\r\n0\r\n\r\n", 200),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "5;\r\nhello\r\n0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "5;bad=[x\r\nhello\r\n0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "5;x=\"\r\nhello\r\n0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "5;\nx\r\nhello\r\n0\r\n\r\n", 400),
    (
        "Host: app.test\r\nTransfer-Encoding: chunked",
        "100000000000000005\r\nhello\r\n0\r\n\r\n",
        400,
    ),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "FFFFFFFFFFFFFFFF\r\nhello\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "8000000000000000\r\nhello\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "5;x\ry\r\nhello\r\n0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "0\r\nX: y\r\n z\r\n\r\n", 400),
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

/// The status of a fault in the head or the body; 200, if only `left` is left.
fn status(request: &str, left: &str) -> u16 {
    let mut buffer = BytesMut::from(request);
    let head = match take_request(&mut buffer, &mut Scanner::default(), 64 << 10) {
        Ok(head) => head.unwrap(),
        Err(fault) => return fault.status().as_u16(),
    };
    let mut body = Decoder::new(head.length);
    while !body.is_done() {
        match body.next(&mut buffer) {
            Ok(Some(Piece::Data(_) | Piece::End(_))) => {}
            Ok(None) => panic!("{request:?} has no end"),
            Err(BadFraming) => return RequestFault::Chunk.status().as_u16(),
        }
    }
    assert_eq!(buffer, left, "{request:?}");
    200
}

#[test]
fn what_could_be_read_in_two_ways_is_nobodys_request() {
    for (fields, body, expected) in TABLE {
        // What follows would be another's request if the first were read otherwise.
        let request = format!("POST /first HTTP/1.1\r\n{fields}\r\n\r\n{body}{SMUGGLED}");
        assert_eq!(status(&request, SMUGGLED), *expected, "{fields:?} {body:?}");
    }
}

#[test]
fn request_lines_that_are_none() {
    for (line, expected) in [
        ("GET / HTTP/1.1\nHost: app.test\r\n\r\n", 400),
        ("GET  / HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET / HTTP/1.1 \r\nHost: app.test\r\n\r\n", 400),
        ("GET\t/ HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET / HTTP/2.0\r\nHost: app.test\r\n\r\n", 505),
        ("GET / HTTP/3\r\nHost: app.test\r\n\r\n", 400),
        ("GET /\r\n\r\n", 400),
        ("GET / HTTP/0.9\r\nHost: app.test\r\n\r\n", 505),
        ("GET / HTTP/1.10\r\nHost: app.test\r\n\r\n", 400),
        ("GET / http/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET /a b HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET /\x01 HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET /\u{e9} HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET http://app.test/\u{e9} HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET /\x7f HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET /\0 HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET /\r/ HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("G\0T / HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET * HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET app.test HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET ftp://app.test/ HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET http://u@app.test/ HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET http:// HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET http://app.test/ HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n Host: app.test\r\n\r\n", 400),
        (" GET / HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("GET http://app.test/#x HTTP/1.1\r\nHost: app.test\r\n\r\n", 400),
        ("CONNECT app.test:443 HTTP/1.1\r\nHost: app.test\r\n\r\n", 405),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("\x16\x03\x01\x02\x00\x01\x00", 400),
    ] {
        assert_eq!(status(line, ""), expected, "{line:?}");
    }
}
