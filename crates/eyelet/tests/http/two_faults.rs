//! Faults of HTTP/2 clients: those of a stream end the stream, those of the connection end the
//! connection, with the code of the RFC. h2spec judges the whole.

use std::io::Write;
use std::process::Command;

use crate::support::client::Offer;
use crate::support::edge::LISTENER;
use crate::support::frames::{
    END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS, frame, get,
    literal, next, status,
};
use crate::support::program::{need, output};
use crate::support::web::Web;
use crate::support::{Edge, Pki, SOON, Tls, Upstream};

/// Codes of RFC 9113 section 7.
const PROTOCOL_ERROR: u32 = 1;
const COMPRESSION_ERROR: u32 = 9;

fn connect(web: &Web) -> Tls {
    let offer = Offer { alpn: &["h2"], ..Offer::new(&web.pki) };
    let mut client = offer.connect(web.edge.address(), "app.test");
    client.sock.set_read_timeout(Some(SOON)).unwrap();
    client.write_all(PREFACE).unwrap();
    client.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
    client
}

/// The next frame of one of these types.
fn wait_for(client: &mut Tls, kinds: &[u8]) -> Frame {
    loop {
        let frame = next(client).expect("the connection goes on");
        if kinds.contains(&frame.kind) {
            return frame;
        }
    }
}

fn word(payload: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(payload[at..at + 4].try_into().unwrap())
}

/// The state of the table is lost, so no later head could be read (RFC 9113 section 4.3).
#[test]
fn a_block_that_cannot_be_decoded_ends_the_connection() {
    let web = Web::new(Upstream::http());
    for block in [&[0x80][..], &[0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], &[0x82, 0x3f, 0xe1, 0x7f]] {
        let mut client = connect(&web);
        let request = frame(HEADERS, END_HEADERS | END_STREAM, 1, block);
        client.write_all(&request).unwrap();
        let ended = wait_for(&mut client, &[GOAWAY, HEADERS, RST_STREAM]);
        assert_eq!((ended.kind, word(&ended.payload, 4)), (GOAWAY, COMPRESSION_ERROR), "{ended:?}");
        let line = web.edge.line_of(client.sock.local_addr().unwrap());
        assert_eq!(line["reason"], "client: HTTP/2: COMPRESSION_ERROR detected", "{line}");
    }
}

/// A fragment is no part of a target, and pseudo-headers are no trailers: the stream is reset, and
/// the next one is served.
#[test]
fn a_malformed_request_ends_alone() {
    let web = Web::new(Upstream::http());
    let mut client = connect(&web);
    let method = [literal(":method", "GET"), literal(":scheme", "https")].concat();
    let to =
        |path| [&method[..], &literal(":path", path), &literal(":authority", "app.test")].concat();
    let quote = [to("/quote"), literal("x\"", "1")].concat();
    let whole = END_HEADERS | END_STREAM;
    let says = [
        frame(HEADERS, whole, 1, &to("/a#b")),
        frame(HEADERS, whole, 3, &to("/\u{e9}")),
        frame(HEADERS, whole, 5, &quote),
        frame(HEADERS, END_HEADERS, 7, &get("/trailers")),
        frame(HEADERS, whole, 7, &literal(":path", "/other")),
        frame(HEADERS, whole, 9, &get("/next")),
    ];
    client.write_all(&says.concat()).unwrap();
    let mut resets = Vec::new();
    loop {
        let frame = wait_for(&mut client, &[RST_STREAM, HEADERS, GOAWAY]);
        match frame.kind {
            RST_STREAM => resets.push((frame.stream, word(&frame.payload, 0))),
            HEADERS => {
                assert_eq!((frame.stream, status(&frame.payload)), (9, Some(200)));
                break;
            }
            _ => panic!("{frame:?}"),
        }
    }
    assert_eq!(resets, [1, 3, 5, 7].map(|stream| (stream, PROTOCOL_ERROR)));
    web.request_line("/next");
    // They were no requests.
    let is_malformed = |line: &serde_json::Value| {
        line["http"]["path"].as_str().is_some_and(|path| !["/trailers", "/next"].contains(&path))
    };
    assert_eq!(web.edge.count(is_malformed), 0, "{:?}", web.edge.lines());
}

/// All of h2spec, strict, against the program in front of an application.
#[test]
fn h2spec_is_satisfied() {
    if !need("h2spec") {
        return;
    }
    let pki = Pki::new();
    let app = Upstream::http();
    let rule = pki.terminate(&format!("http://{}", app.address), "");
    let rule = rule.replace("sni = \"app.test\"\n", "");
    let edge = Edge::start_whole(&pki.folder, &format!("workers = 1\n{LISTENER}{rule}"), |_| ());
    let port = edge.address().port().to_string();
    let args = ["-t", "-k", "-h", "localhost", "-p", &port, "-S", "-o", "20"];
    let said = output(Command::new("h2spec").args(args));
    let failed: Vec<&str> =
        said.text.lines().map(str::trim).filter(|line| line.starts_with('\u{d7}')).collect();
    assert!(failed.is_empty(), "{}", said.text);
    assert!(said.text.contains("146 tests, 146 passed, 0 skipped"), "{}", said.text);
}
