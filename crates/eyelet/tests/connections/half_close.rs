//! Clients that end their stream behind a whole request, with close_notify or by a bare FIN, get
//! their response, by HTTP/1.1 and HTTP/2. The tests play client and upstream byte by byte.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::process::{Command, Stdio};
use std::thread;

use crate::support::client::{Offer, TLS12, TLS13, Versions, close, reset};
use crate::support::crowd::From;
use crate::support::frames::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS, frame, get,
    literal, next, status,
};
use crate::support::web::{Web, answer, head, hear};
use crate::support::{A_WHILE, Tls, Upstream, need};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The moment at which a client ends its stream.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    BehindTheRequest,
    BehindTheRequestAfterRest,
    BeforeTheAnswer,
}

fn end(client: &mut Tls, says_goodbye: bool) {
    if says_goodbye {
        client.conn.send_close_notify();
        client.flush().unwrap();
    }
    client.sock.shutdown(Shutdown::Write).unwrap();
}

/// RFC 9112 section 9.8: its request is whole, and it can still read.
#[test]
fn a_client_that_ends_its_stream_behind_a_request_is_answered() {
    let web = Web::new(Upstream::by_hand());
    for versions in [TLS12, TLS13] {
        for says_goodbye in [false, true] {
            for when in
                [When::BehindTheRequest, When::BehindTheRequestAfterRest, When::BeforeTheAnswer]
            {
                let offer = Offer { versions, ..Offer::new(&web.pki) };
                answered(
                    &web,
                    &mut offer.connect(web.edge.address(), "app.test"),
                    says_goodbye,
                    when,
                );
            }
        }
    }
}

fn answered(web: &Web, client: &mut Tls, says_goodbye: bool, when: When) {
    let path = format!("/{}", client.sock.local_addr().unwrap().port());
    let what = format!("{when:?}, close_notify: {says_goodbye}");
    if when == When::BehindTheRequestAfterRest {
        thread::sleep(A_WHILE);
    }
    let fields = "Host: app.test\r\nContent-Length: 2";
    write!(client, "POST {path} HTTP/1.1\r\n{fields}\r\n\r\nhi").unwrap();
    if when != When::BeforeTheAnswer {
        end(client, says_goodbye);
    }
    let mut app = web.app.take();
    head(&mut app);
    app.read_exact(&mut [0; 2]).unwrap();
    if when == When::BeforeTheAnswer {
        end(client, says_goodbye);
    }
    // The edge may see the end of the client before the application has answered.
    thread::sleep(A_WHILE);
    app.write_all(OK.as_bytes()).unwrap();
    // The next POST must not go there.
    close(app);
    assert_eq!(hear(client, "POST").text(), "ok", "{what}");
    // With close_notify: an end without it would be an error here.
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "{what}");
    let line = web.request_line(&path);
    assert_eq!((&line["outcome"], &line["http"]["status"]), (&"terminated".into(), &200.into()));
}

/// A cut body makes no request.
#[test]
fn a_body_that_is_cut_is_no_request() {
    let web = Web::new(Upstream::by_hand());
    let mut client = Offer::new(&web.pki).connect(web.edge.address(), "app.test");
    let fields = "Host: app.test\r\nContent-Length: 3";
    write!(client, "POST /cut HTTP/1.1\r\n{fields}\r\n\r\nhi").unwrap();
    client.sock.shutdown(Shutdown::Write).unwrap();
    let line = web.request_line("/cut");
    assert_eq!(line["outcome"], "left", "{line}");
}

/// ncat ends its stream when its standard input has ended.
#[test]
fn ncat_is_answered() {
    if !need("ncat") {
        return;
    }
    let web = Web::new(Upstream::by_hand());
    let mut ncat = Command::new("ncat")
        .args(["--ssl", "--ssl-servername", "app.test", "127.0.0.1"])
        .arg(web.edge.port().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = ncat.stdin.take().unwrap();
    input.write_all(b"GET /ncat HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    drop(input);
    let mut app = web.app.take();
    thread::sleep(A_WHILE);
    answer(&mut app, OK);
    let line = web.request_line("/ncat");
    assert_eq!((&line["outcome"], &line["http"]["status"]), (&"terminated".into(), &200.into()));
    let output = ncat.wait_with_output().unwrap();
    assert!(output.stdout.ends_with(b"\r\n\r\nok"), "{}", output.stdout.escape_ascii());
}

fn connect_two(web: &Web, versions: Versions, settings: &[u8]) -> Tls {
    let offer = Offer { versions, alpn: &["h2"], ..Offer::new(&web.pki) };
    let mut client = offer.connect(web.edge.address(), "app.test");
    client.write_all(PREFACE).unwrap();
    client.write_all(&frame(SETTINGS, 0, 0, settings)).unwrap();
    client
}

/// A POST whose body has so many bytes, of which two come. `is_last`: the stream ends there.
fn post(stream: u32, path: &str, length: usize, is_last: bool) -> Vec<u8> {
    let mut block = vec![0x83, 0x87];
    block.extend(literal(":path", path));
    block.extend(literal(":authority", "app.test"));
    block.extend(literal("content-length", &length.to_string()));
    let flags = if is_last { END_STREAM } else { 0 };
    [frame(HEADERS, END_HEADERS, stream, &block), frame(DATA, flags, stream, b"hi")].concat()
}

/// Reads a stream: returns the status, the bytes of its body, and the frame that ended it.
fn hear_two(client: &mut Tls, stream: u32) -> (Option<u16>, Vec<u8>, u8) {
    let (mut said, mut body) = (None, Vec::new());
    loop {
        let frame = next(client).expect("the connection goes on");
        if frame.stream != stream {
            continue;
        }
        match frame.kind {
            HEADERS => said = status(&frame.payload),
            DATA => body.extend(&frame.payload),
            RST_STREAM => return (said, body, RST_STREAM),
            _ => {}
        }
        if frame.flags & END_STREAM != 0 && matches!(frame.kind, HEADERS | DATA) {
            return (said, body, frame.kind);
        }
    }
}

/// By HTTP/2 as by HTTP/1.1: streams whose requests are whole are answered, and then the connection
/// ends.
#[test]
fn a_client_of_http2_that_ends_its_stream_behind_a_request_is_answered() {
    let web = Web::new(Upstream::by_hand());
    for versions in [TLS12, TLS13] {
        for (says_goodbye, ends) in [(true, false), (true, true), (false, true)] {
            for when in [When::BehindTheRequest, When::BeforeTheAnswer] {
                let mut client = connect_two(&web, versions, &[]);
                let end = |client: &mut Tls| {
                    if says_goodbye {
                        client.conn.send_close_notify();
                        client.flush().unwrap();
                    }
                    if ends {
                        client.sock.shutdown(Shutdown::Write).unwrap();
                    }
                };
                let path = format!("/{}", client.sock.local_addr().unwrap().port());
                client.write_all(&post(1, &path, 2, true)).unwrap();
                if when == When::BehindTheRequest {
                    end(&mut client);
                }
                let mut app = web.app.take();
                head(&mut app);
                app.read_exact(&mut [0; 2]).unwrap();
                if when == When::BeforeTheAnswer {
                    end(&mut client);
                }
                thread::sleep(A_WHILE);
                app.write_all(OK.as_bytes()).unwrap();
                close(app);
                let what = format!("{when:?}, close_notify: {says_goodbye}, FIN: {ends}");
                let heard = hear_two(&mut client, 1);
                assert_eq!(heard, (Some(200), b"ok".to_vec(), DATA), "{what}");
                while next(&mut client).is_some() {}
                // With close_notify: an end without it would be an error here.
                assert_eq!(client.read(&mut [0]).unwrap(), 0, "{what}");
                let line = web.request_line(&path);
                assert_eq!(line["outcome"], "terminated", "{what}: {line}");
                let address = client.sock.local_addr().unwrap().to_string();
                let is_end =
                    |line: &serde_json::Value| line["event"] == "end" && line["client"] == address;
                let line = web.edge.line("the connection", is_end);
                let reason = match says_goodbye {
                    true => "client closed",
                    false => "client closed without close_notify",
                };
                assert_eq!(line["reason"], reason, "{what}: {line}");
            }
        }
    }
}

/// A request whose body is cut is none, and harms no other.
#[test]
fn a_body_that_is_cut_by_http2_is_no_request() {
    let web = Web::new(Upstream::by_hand());
    let mut client = connect_two(&web, TLS13, &[]);
    let says =
        [frame(HEADERS, END_HEADERS | END_STREAM, 1, &get("/whole")), post(3, "/cut", 3, false)];
    client.write_all(&says.concat()).unwrap();
    let (mut whole, mut cut) = (web.app.take(), web.app.take());
    let heads = [head(&mut whole), head(&mut cut)];
    if heads[0].starts_with("POST ") {
        std::mem::swap(&mut whole, &mut cut);
    }
    client.conn.send_close_notify();
    client.flush().unwrap();
    assert_eq!(hear_two(&mut client, 3).0, Some(400));
    // It was begun, and has no end.
    let mut rest = Vec::new();
    let _ = cut.read_to_end(&mut rest);
    assert!(rest.len() <= 2, "{rest:?}");
    whole.write_all(OK.as_bytes()).unwrap();
    assert_eq!(hear_two(&mut client, 1), (Some(200), b"ok".to_vec(), DATA));
    while next(&mut client).is_some() {}
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    let line = web.request_line("/cut");
    assert_eq!(
        (&line["outcome"], &line["http"]["status"]),
        (&"left".into(), &400.into()),
        "{line}"
    );
}

/// No WINDOW_UPDATE can come any more, so a response that waits for one ends, and the log says why.
#[test]
fn a_response_that_waits_for_a_window_ends() {
    let web = Web::new(Upstream::by_hand());
    let fixed = format!("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", "x".repeat(100));
    let chunked = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n{}\r\n0\r\n\r\n",
        "x".repeat(100)
    );
    let fits = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789";
    for (path, said, ended_by) in
        [("/fixed", &*fixed, RST_STREAM), ("/chunked", &chunked, RST_STREAM), ("/fits", fits, DATA)]
    {
        // SETTINGS_INITIAL_WINDOW_SIZE: 10 bytes.
        let mut client = connect_two(&web, TLS13, &[0, 4, 0, 0, 0, 10]);
        client.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &get(path))).unwrap();
        let mut app = web.app.take();
        head(&mut app);
        client.conn.send_close_notify();
        client.flush().unwrap();
        thread::sleep(A_WHILE);
        app.write_all(said.as_bytes()).unwrap();
        let (said, body, by) = hear_two(&mut client, 1);
        assert_eq!((said, body.len(), by), (Some(200), 10, ended_by), "{path}");
        while next(&mut client).is_some() {}
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "{path}");
        let line = web.request_line(path);
        let reason = match by {
            DATA => "complete",
            _ => "client closed during a response that waits for WINDOW_UPDATE",
        };
        assert_eq!(line["reason"], reason, "{line}");
    }
}

/// A part of the response waits in the edge, because the socket has no room for it. A client may
/// also say by GOAWAY that nothing follows (RFC 9113 section 6.8).
#[test]
fn a_client_of_http2_that_reads_late_gets_all_bytes_behind_its_end() {
    /// More than the sockets of a client with small segments take, and less than the window.
    const BYTES: usize = 60_000;
    let web = Web::new(Upstream::by_hand());
    let config = Offer { alpn: &["h2"], ..Offer::new(&web.pki) }.config();
    for says_goaway in [false, true] {
        let from = From::loopback(1).small();
        let mut client = from.tls(web.edge.address(), &config, "app.test").unwrap();
        let ask = frame(HEADERS, END_HEADERS | END_STREAM, 1, &get("/late"));
        let mut says = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &ask].concat();
        if says_goaway {
            says.extend(frame(GOAWAY, 0, 0, &[0; 8]));
        }
        client.write_all(&says).unwrap();
        if !says_goaway {
            end(&mut client, true);
        }
        let mut app = web.app.take();
        head(&mut app);
        write!(app, "HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n").unwrap();
        app.write_all(&[b'x'; BYTES]).unwrap();
        // The response ends for the edge, long before its client reads.
        thread::sleep(3 * A_WHILE);
        let (said, body, by) = hear_two(&mut client, 1);
        assert_eq!((said, body.len(), by), (Some(200), BYTES, DATA), "GOAWAY: {says_goaway}");
        while next(&mut client).is_some() {}
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "GOAWAY: {says_goaway}");
    }
}

/// A client that is gone altogether lets its upstream go.
#[test]
fn a_client_of_http2_that_is_gone_behind_its_end_is_not_answered() {
    let web = Web::new(Upstream::by_hand());
    let mut client = connect_two(&web, TLS13, &[]);
    client.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &get("/gone"))).unwrap();
    let mut app = web.app.take();
    head(&mut app);
    client.conn.send_close_notify();
    client.flush().unwrap();
    thread::sleep(A_WHILE);
    reset(client.sock);
    assert_eq!(app.read(&mut [0]).unwrap(), 0);
    let line = web.request_line("/gone");
    assert_eq!(line["outcome"], "left", "{line}");
}
