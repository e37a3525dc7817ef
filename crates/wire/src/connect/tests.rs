//! CONNECT requests as clients send them, each fault, and cuts that do not change the answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::testing::properties::connect_is_stable;
use proptest::prelude::*;
use std::format;
use std::string::{String, ToString};
use std::vec;

fn read_all(head: impl AsRef<[u8]>) -> ConnectPeek {
    ConnectReader::new().feed(head.as_ref())
}

fn fault_of(head: impl AsRef<[u8]>) -> ConnectFault {
    match read_all(&head) {
        ConnectPeek::Malformed(fault) => fault,
        other => panic!("{}: {other:?}", head.as_ref().escape_ascii()),
    }
}

/// An HTTP/1.1 request to this target with these fields.
fn to(target: &str, fields: &str) -> String {
    format!("CONNECT {target} HTTP/1.1\r\n{fields}\r\n")
}

#[test]
fn requests_as_clients_send_them() {
    let cases = [
        // curl, Go, Chrome, Python 3.8, Java, and one without any field.
        (to("a.test:443", "Host: a.test:443\r\nUser-Agent: curl/8\r\n"), "a.test:443"),
        (
            to(
                "a.test:443",
                "Host: a.test:443\r\n\
             Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic eDp5\r\n",
            ),
            "a.test:443",
        ),
        ("CONNECT a.test:443 HTTP/1.0\r\n\r\n".into(), "a.test:443"),
        (to("a.test:443", "User-Agent: Java/17\r\nHost: a.test\r\n"), "a.test:443"),
        ("CONNECT a.test:8443 HTTP/1.0\r\nhost:a.test:8443\r\n\r\n".into(), "a.test:8443"),
        (to("A.Test:443", "HOST:\t a.tEST:443 \t\r\n"), "a.test:443"),
        (to("192.0.2.7:22", "Host: 192.0.2.7:22\r\n"), "192.0.2.7:22"),
        (to("[2001:DB8::0:7]:443", "Host: [2001:db8::7]:443\r\n"), "[2001:db8::7]:443"),
        (to("[2001:db8::7]:443", "Host: [2001:db8::7]\r\n"), "[2001:db8::7]:443"),
        (to("[::ffff:192.0.2.7]:443", "Host: 192.0.2.7:443\r\n"), "192.0.2.7:443"),
        (
            to("under_score.test:65535", "Host: under_score.test:65535\r\nX: \u{e9}\r\n"),
            "under_score.test:65535",
        ),
        // Node names the proxy, unless it is told otherwise.
        (to("a.test:443", "Host: localhost:3128\r\n"), "a.test:443"),
        (to("a.test:8443", "Host: [::1]\r\n"), "a.test:8443"),
        (to("a.test:1", "Host: a.test:1\r\nEmpty:\r\n"), "a.test:1"),
        (to("0x7f.0xtest:1", "Host: 0x7f.0xtest:1\r\n"), "0x7f.0xtest:1"),
    ];
    for (head, expected) in cases {
        let raw = [head.as_bytes(), b"\x16\x03\x01\r\n\r\n"].concat();
        let ConnectPeek::Connect(connect) = read_all(&raw) else {
            panic!("{head}: {:?}", read_all(&raw));
        };
        assert_eq!((connect.len, connect.target.to_string().as_str()), (head.len(), expected));
        connect_is_stable(&raw);
    }
}

#[test]
fn the_authorization_is_found() {
    for (field, value) in [
        ("", None),
        ("Proxy-Authorization: Basic eDp5\r\n", Some("Basic eDp5")),
        ("PROXY-authorization:\t Basic eDp5\r\nX: y\r\n", Some("Basic eDp5")),
        ("Proxy-Authorization:\r\n", Some("")),
        ("Authorization: Basic eDp5\r\n", None),
    ] {
        let head = to("a.test:443", &format!("Host: a.test:443\r\n{field}"));
        let ConnectPeek::Connect(connect) = read_all(&head) else { panic!("{head}") };
        let found = connect.authorization.map(|(start, end)| &head[start..end]);
        assert_eq!(found, value, "{field}");
    }
}

#[test]
fn targets_have_one_spelling() {
    let cases = [
        ("a.test", ConnectFault::Target),
        ("a.test:", ConnectFault::Port),
        (":443", ConnectFault::Target),
        ("a.test:0", ConnectFault::Port),
        ("a.test:0443", ConnectFault::Port),
        ("a.test:+443", ConnectFault::Port),
        ("a.test:65536", ConnectFault::Port),
        ("a.test:443/", ConnectFault::Port),
        ("a.test:443:443", ConnectFault::Target),
        ("user@a.test:443", ConnectFault::Target),
        ("https://a.test:443", ConnectFault::Target),
        ("/a.test:443", ConnectFault::Target),
        ("2001:db8::7:443", ConnectFault::Target),
        ("[2001:db8::7%eth0]:443", ConnectFault::Target),
        ("[fe80::1%25eth0]:443", ConnectFault::Target),
        ("[a.test]:443", ConnectFault::Target),
        ("[192.0.2.7]:443", ConnectFault::Target),
        ("[2001:db8::7:443", ConnectFault::Target),
        ("127.1:443", ConnectFault::Host(SniFault::NumericTopLabel)),
        ("2130706433:443", ConnectFault::Host(SniFault::NumericTopLabel)),
        ("0177.0.0.1:443", ConnectFault::Host(SniFault::NumericTopLabel)),
        ("09.a.09:443", ConnectFault::Host(SniFault::NumericTopLabel)),
        ("0x7f000001:443", ConnectFault::Host(SniFault::NumericTopLabel)),
        ("127.0.0.0X1f:443", ConnectFault::Host(SniFault::NumericTopLabel)),
        ("a.0x:443", ConnectFault::Host(SniFault::NumericTopLabel)),
        ("a.test.:443", ConnectFault::Host(SniFault::TrailingDot)),
        ("a..test:443", ConnectFault::Host(SniFault::EmptyLabel)),
        ("*.test:443", ConnectFault::Host(SniFault::BadCharacter(b'*'))),
        ("a%2etest:443", ConnectFault::Host(SniFault::BadCharacter(b'%'))),
        ("\u{e4}.test:443", ConnectFault::Host(SniFault::NonAscii)),
    ];
    for (target, fault) in cases {
        assert_eq!(fault_of(to(target, &format!("Host: {target}\r\n"))), fault, "{target}");
        assert_eq!(fault_of(format!("CONNECT {target} HTTP/1.0\r\n\r\n")), fault, "{target}");
    }
}

#[test]
fn requests_that_two_readers_could_read_differently() {
    let host = "Host: a.test:443\r\n";
    let with = |fields: &str| to("a.test:443", &format!("{host}{fields}"));
    let cases = [
        (to("a.test:443", "Host:\r\n"), ConnectFault::HostMalformed),
        (to("a.test:443", "Host: b c\r\n"), ConnectFault::HostMalformed),
        (to("a.test:443", "Host: me@a.test\r\n"), ConnectFault::HostMalformed),
        (to("a.test:443", "Host: a.test:443, b.test:443\r\n"), ConnectFault::HostMalformed),
        ("CONNECT a.test:443 HTTP/1.0\r\nHost: b:0\r\n\r\n".into(), ConnectFault::HostMalformed),
        (to("a.test:443", ""), ConnectFault::HostMissing),
        (to("a.test:443", "X-Host: a.test:443\r\n"), ConnectFault::HostMissing),
        (with(host), ConnectFault::HostTwice),
        (with("hOST: a.test\r\n"), ConnectFault::HostTwice),
        (with("Host : b.test\r\n"), ConnectFault::FieldName),
        (with(": x\r\n"), ConnectFault::FieldName),
        (with("no colon\r\n"), ConnectFault::FieldName),
        (with("X(y): z\r\n"), ConnectFault::FieldName),
        (with(" folded\r\n"), ConnectFault::Folded),
        (with("\tHost: b.test\r\n"), ConnectFault::Folded),
        (to("a.test:443", " Host: a.test:443\r\n"), ConnectFault::Folded),
        (
            with("Proxy-Authorization: Basic eDp5\r\nproxy-authorization: Basic eDp6\r\n"),
            ConnectFault::AuthorizationTwice,
        ),
        (with("Content-Length: 0\r\n"), ConnectFault::Content),
        (with("content-length: 5\r\n"), ConnectFault::Content),
        (with("Transfer-Encoding: chunked\r\n"), ConnectFault::Content),
        (with("X: a\nHost: b\r\n"), ConnectFault::BareLf),
        ("CONNECT a.test:443 HTTP/1.1\nHost: a.test:443\n\n".into(), ConnectFault::BareLf),
        (with("X: a\rHost: b\r\n"), ConnectFault::BareCr),
        (with("X: a\r\r\n"), ConnectFault::BareCr),
        (with("X: \0\r\n"), ConnectFault::Control(0)),
        (with("X: \u{7f}\r\n"), ConnectFault::Control(0x7f)),
        (with("X: \u{1b}[2J\r\n"), ConnectFault::Control(0x1b)),
        ("CONNECT a.test:443\r\n\r\n".into(), ConnectFault::RequestLine),
        ("CONNECT  a.test:443 HTTP/1.1\r\n\r\n".into(), ConnectFault::RequestLine),
        ("CONNECT a.test:443 HTTP/1.1 \r\n\r\n".into(), ConnectFault::RequestLine),
        ("CONNECT a.test:443\tHTTP/1.1\r\n\r\n".into(), ConnectFault::RequestLine),
        ("CONNECT a.test:443 HTTP/2.0\r\n\r\n".into(), ConnectFault::Version),
        ("CONNECT a.test:443 http/1.1\r\n\r\n".into(), ConnectFault::Version),
        ("CONNECT a.test:443 HTTP/1.10\r\n\r\n".into(), ConnectFault::Version),
    ];
    for (head, fault) in cases {
        assert_eq!(fault_of(&head), fault, "{}", head.escape_debug());
        connect_is_stable(head.as_bytes());
    }
}

#[test]
fn other_methods_and_other_protocols() {
    for head in ["GET / HTTP/1.1\r\n", "POST https://a.test/ HTTP/1.1\r\n", "connect a:1 HTTP/1.1"]
    {
        assert_eq!(read_all(head), ConnectPeek::OtherMethod, "{head}");
    }
    for head in ["GET http://a.test/ HTTP/1.1\r\n", "POST HTTP://", "connect Http://a HTTP/1.1"] {
        assert_eq!(read_all(head), ConnectPeek::PlainHttp, "{head}");
        connect_is_stable(head.as_bytes());
    }
    for head in ["GET ", "GET h", "GET hTTp:/"] {
        assert_eq!(read_all(head), ConnectPeek::NeedMore, "{head}");
    }
    // CONNECTX is another method, also while only CONNECT of it has arrived.
    assert_eq!(read_all("CONNECTX a"), ConnectPeek::OtherMethod);
    assert_eq!(read_all("CONNECT"), ConnectPeek::NeedMore);
    assert_eq!(read_all(""), ConnectPeek::NeedMore);
    assert_eq!(read_all("SSH-2.0-x\r\n"), ConnectPeek::NotHttp);
    for head in [&b"\x16\x03\x01"[..], b"\r\n", b" GET", b"\x05\x01\x00", b"GET\t/", &[b'A'; 25]] {
        assert_eq!(read_all(head), ConnectPeek::NotHttp, "{}", head.escape_ascii());
    }
    // Found by fuzzing: a method that is too long, together with what follows it.
    let long = [&[b'A'; METHOD_BYTES_MAX][..], b" a.test "].concat();
    assert_eq!(read_all(&long), ConnectPeek::NotHttp);
    connect_is_stable(&long);
    connect_is_stable(&long[1..]);
}

#[test]
fn the_head_is_bounded() {
    let filled = |bytes: usize| {
        let empty = to("a.test:443", "Host: a.test:443\r\nX: \r\n").len();
        to("a.test:443", &format!("Host: a.test:443\r\nX: {}\r\n", "x".repeat(bytes - empty)))
    };
    let ConnectPeek::Connect(connect) = read_all(filled(CONNECT_HEAD_BYTES_MAX)) else { panic!() };
    assert_eq!(connect.len, CONNECT_HEAD_BYTES_MAX);
    assert_eq!(fault_of(filled(CONNECT_HEAD_BYTES_MAX + 1)), ConnectFault::TooLong);
    let endless = vec![b'x'; CONNECT_HEAD_BYTES_MAX];
    assert_eq!(fault_of([METHOD, &endless].concat()), ConnectFault::TooLong);
}

proptest! {
    #[test]
    fn cuts_do_not_matter(tail in "[A-Za-z0-9.:\\[\\] \t\r\n]{0,80}") {
        connect_is_stable(format!("CONNECT {tail}").as_bytes());
        connect_is_stable(to("a.test:443", &format!("Host: a.test:443\r\n{tail}")).as_bytes());
    }

    #[test]
    fn any_bytes_have_an_answer(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
        connect_is_stable(&raw);
    }
}
