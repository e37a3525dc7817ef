//! Clients that end their stream behind a whole request, with close_notify or by a bare FIN, get
//! their response. The tests play client and upstream byte by byte.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::process::{Command, Stdio};
use std::thread;

use crate::support::client::{Offer, TLS12, TLS13, close};
use crate::support::web::{Web, answer, head, hear};
use crate::support::{A_WHILE, Tls, Upstream, need};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// When a client ends its stream.
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

/// What is cut is no request.
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
