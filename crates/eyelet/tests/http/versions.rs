//! Requests that origins read in different ways, sent by both versions of HTTP. Both refuse them
//! alike, and HTTP/2 ends only the stream.

use std::io::Write;

use crate::support;
use crate::support::client::Offer;
use crate::support::frames::{
    END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS, frame, literal,
    next, status,
};
use crate::support::web::{Web, ask, hear};
use crate::support::{Edge, Pki, Tls, Upstream};

/// The end of a request on a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ended {
    Status(u16),
    /// RST_STREAM.
    Stream,
    /// GOAWAY, or the end of the connection.
    Connection,
}

/// Asks for a path on a stream, with more fields.
fn ask_two(client: &mut Tls, stream: u32, path: &str, more: &[(&str, &str)]) -> Ended {
    let mut block = vec![0x82, 0x87];
    block.extend(literal(":path", path));
    block.extend(literal(":authority", "app.test"));
    block.extend(more.iter().flat_map(|(name, value)| literal(name, value)));
    send_two(client, stream, &block)
}

fn two(web: &Web) -> Tls {
    let offer = Offer { alpn: &["h2"], ..Offer::new(&web.pki) };
    let mut client = offer.connect(web.edge.address(), "app.test");
    client.write_all(PREFACE).unwrap();
    client.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
    client
}

fn send_two(client: &mut Tls, stream: u32, block: &[u8]) -> Ended {
    if client.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, stream, block)).is_err() {
        return Ended::Connection;
    }
    loop {
        match next(client) {
            None | Some(Frame { kind: GOAWAY, .. }) => return Ended::Connection,
            Some(Frame { kind: HEADERS, stream: of, payload, .. }) if of == stream => {
                let status = status(&payload).unwrap_or_else(|| panic!("{payload:02x?}"));
                return Ended::Status(status);
            }
            Some(Frame { kind: RST_STREAM, stream: of, .. }) if of == stream => {
                return Ended::Stream;
            }
            Some(_) => {}
        }
    }
}

type Fields = &'static [(&'static str, &'static str)];

/// A target and fields, and the answer to both versions of HTTP. HTTP/2 resets the stream for what
/// RFC 9113 itself calls malformed.
const TABLE: &[(&str, Fields, u16)] = &[
    ("/", &[("x", "y")], 200),
    ("/%C3%A9", &[], 200),
    ("/\u{e9}", &[], 400),
    ("/?q=\u{e9}", &[], 400),
    ("/", &[("x\"", "y")], 400),
    ("/", &[("\"", "y")], 400),
    ("/", &[("content_length", "5")], 400),
    ("/", &[("transfer_encoding", "chunked")], 400),
    ("/", &[("transfer_encoding", "identity")], 400),
    ("/", &[("content_lengths", "5")], 200),
    ("/", &[("x_y", "z")], 200),
    ("/", &[("proxy", "http://evil.example:8080")], 200),
];

#[test]
fn what_origins_read_in_different_ways_is_refused_by_both_versions() {
    let web = Web::new(Upstream::http());
    for (path, fields, expected) in TABLE {
        let lines: String = fields.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
        let request = format!("GET {path} HTTP/1.1\r\nHost: app.test\r\n{lines}\r\n");
        let heard = ask(&mut web.connect(), &request);
        assert_eq!(heard.status, *expected, "{path} {fields:?}: {heard:?}");
        let mut client = two(&web);
        let answer = ask_two(&mut client, 1, path, fields);
        let is_refused = *expected == 400 && answer == Ended::Stream;
        assert!(is_refused || answer == Ended::Status(*expected), "{path} {fields:?}: {answer:?}");
        assert_eq!(ask_two(&mut client, 3, "/", &[]), Ended::Status(200), "{path} {fields:?}");
    }
    // By HTTP/1.1 the upper case is the same name.
    for field in ["Content_Length: 5", "TRANSFER_ENCODING: chunked", "Content_length: 0"] {
        let request = format!("GET / HTTP/1.1\r\nHost: app.test\r\n{field}\r\n\r\n");
        assert_eq!(ask(&mut web.connect(), &request).status, 400, "{field}");
    }
}

#[test]
fn a_hundred_fields_are_taken_and_more_are_not() {
    let web = Web::new(Upstream::http());
    let numbered: Vec<String> = (0..101).map(|number| format!("x-{number}")).collect();
    // By HTTP/1.1 Host is one of them.
    for (count, expected) in [(99, 200), (100, 431)] {
        let lines: String = numbered[..count].iter().map(|name| format!("{name}: y\r\n")).collect();
        let request = format!("GET / HTTP/1.1\r\nHost: app.test\r\n{lines}\r\n");
        assert_eq!(ask(&mut web.connect(), &request).status, expected, "{count}");
    }
    let mut client = two(&web);
    let mut fields: Vec<(&str, &str)> = numbered.iter().map(|name| (name.as_str(), "y")).collect();
    assert_eq!(ask_two(&mut client, 1, "/", &fields), Ended::Status(431));
    fields.truncate(100);
    assert_eq!(ask_two(&mut client, 3, "/", &fields), Ended::Status(200));
    // Browsers send a field for each cookie (RFC 9113 8.2.3): one for us, as for the application.
    fields.truncate(99);
    fields.extend([("cookie", "a=b"); 120]);
    assert_eq!(ask_two(&mut client, 5, "/", &fields), Ended::Status(200));
    fields.push(("x-100", "y"));
    fields.push(("x-101", "y"));
    assert_eq!(ask_two(&mut two(&web), 1, "/", &fields), Ended::Status(431));
}

/// CGI makes `HTTP_PROXY` of it, and libraries ask that proxy (httpoxy).
#[test]
fn proxy_is_not_passed_on() {
    let (pki, app) = (Pki::new(), Upstream::by_hand());
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("http://{}", app.address), ""));
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    let request = "GET / HTTP/1.1\r\nHost: app.test\r\nProxy: http://evil.example\r\nX: y\r\n\r\n";
    client.write_all(request.as_bytes()).unwrap();
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let asked = support::web::answer(&mut app.take(), ok);
    assert!(!asked.to_ascii_lowercase().contains("proxy"), "{asked}");
    assert!(asked.contains("x: y\r\n"), "{asked}");
    assert_eq!(hear(&mut client, "GET").status, 200);
}

#[test]
fn an_authority_with_the_default_port_is_the_same() {
    let web = Web::new(Upstream::http());
    let mut client = two(&web);
    for (number, (authority, host, expected)) in [
        ("app.test", "app.test:443", 200),
        ("app.test:443", "app.test", 200),
        ("app.test:", "APP.test:443", 200),
        ("app.test:444", "app.test", 400),
        ("app.test", "b.test:443", 400),
    ]
    .into_iter()
    .enumerate()
    {
        let mut block = vec![0x82, 0x87, 0x84];
        block.extend(literal(":authority", authority));
        block.extend(literal("host", host));
        let stream = u32::try_from(number).unwrap() * 2 + 1;
        let answer = send_two(&mut client, stream, &block);
        assert_eq!(answer, Ended::Status(expected), "{authority} {host}");
    }
}

/// RFC 9113 8.1.1: a malformed request is an error of its stream.
#[test]
fn a_malformed_request_costs_its_stream() {
    let web = Web::new(Upstream::http());
    let get = [(":method", "GET"), (":scheme", "https"), (":path", "/")];
    let with = |more: &[(&'static str, &'static str)]| [&get[..], more].concat();
    let app = (":authority", "app.test");
    let of_streams = [
        (
            with(&[app, ("te", "trailers"), ("cookie", "a=b"), ("cookie", "c=d")]),
            Ended::Status(200),
        ),
        (with(&[app, ("host", "app.test")]), Ended::Status(200)),
        (with(&[("host", "app.test")]), Ended::Status(200)),
        (vec![get[0], (":scheme", "http"), get[2], app], Ended::Status(200)),
        (vec![get[0], (":scheme", "ftp"), get[2], app], Ended::Status(400)),
        (get.to_vec(), Ended::Status(400)),
        (with(&[app, ("host", "b.test")]), Ended::Status(400)),
        (with(&[(":authority", "u@app.test")]), Ended::Stream),
        (with(&[app, ("connection", "close")]), Ended::Stream),
        (with(&[app, ("content-length", "5")]), Ended::Stream),
        (with(&[app, ("x", "y\r\nz: a")]), Ended::Stream),
    ];
    let mut client = two(&web);
    for (number, (fields, expected)) in of_streams.iter().enumerate() {
        let stream = u32::try_from(number).unwrap() * 4 + 1;
        let block: Vec<u8> = fields.iter().flat_map(|(n, v)| literal(n, v)).collect();
        assert_eq!(send_two(&mut client, stream, &block), *expected, "{fields:?}");
        let next = ask_two(&mut client, stream + 2, "/", &[]);
        assert_eq!(next, Ended::Status(200), "behind {fields:?}");
    }
}
