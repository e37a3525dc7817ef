//! Requests that two readers could read in two ways: they are refused with a status, and the
//! upstream never sees them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use crate::support;
use crate::support::client::Offer;
use crate::support::web::{get, hear, rest};
use crate::support::{Edge, Pki, Upstream, until};

/// The bytes that reached the application.
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

/// Heads (behind `POST / HTTP/1.1`), what follows them, and the answer: one row for each way in
/// which a request is read or refused. The others are at `head` of `http1`.
const TABLE: &[(&str, &str, u16)] = &[
    ("Host: app.test\r\nContent-Length: 5\r\nContent-Length: 0", "hello", 400),
    ("Host: app.test\r\nTransfer-Encoding: gzip, chunked", "0\r\n\r\n", 501),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "5\r\nhello0\r\n\r\n", 400),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "5;x=\"y\" ; z\r\nhello\r\n0\r\n\r\n", 200),
    ("Host: app.test\r\nTransfer-Encoding: chunked", "0\r\nX : y\r\n\r\n", 400),
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
        ("GET / HTTP/2.0\r\nHost: app.test\r\n\r\n", 505),
        ("GET http://b.test/ HTTP/1.1\r\nHost: app.test\r\n\r\n", 421),
        ("CONNECT app.test:443 HTTP/1.1\r\nHost: app.test\r\n\r\n", 405),
        ("TRACE / HTTP/1.1\r\nHost: app.test\r\n\r\n", 405),
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
    let start = |http: &str| Edge::start(&pki.folder, &format!("[http]\n{http}{rule}"));
    let short = start("head_bytes_max = \"8KiB\"\n");
    let hasty = start("head_timeout = \"300ms\"\nbody_timeout = \"300ms\"\n");
    let connect = |edge: &Edge| Offer::new(&pki).connect(edge.address(), "app.test");
    let long = "x".repeat(9000);
    let post = "POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 9\r\n\r\nhel";
    for (edge, request, status) in [
        (&short, format!("GET / HTTP/1.1\r\nHost: app.test\r\nX: {long}\r\n\r\n"), 431),
        (&short, format!("GET /{long} HTTP/1.1\r\nHost: app.test\r\n\r\n"), 414),
        (&hasty, "GET / HTTP/1.1\r\nHost: app.te".to_owned(), 408),
        (&hasty, post.to_owned(), 408),
    ] {
        let mut client = connect(edge);
        client.write_all(request.as_bytes()).unwrap();
        let heard = hear(&mut client, "GET");
        // The application may answer before the body has come.
        let answered = heard.status == 200 && status == 408 && request.starts_with("POST");
        assert!(heard.status == status || answered, "{request:.60}: {heard:?}");
        assert_eq!(heard.field("connection"), Some("close"));
        assert_eq!(rest(&mut client), b"");
    }
    // Others are not disturbed.
    assert_eq!(get(&mut connect(&short), "/").status, 200);
    until("a request in time", || {
        // Whom a slow machine made late hears a 408, or cannot even write.
        let mut client = connect(&hasty);
        let sent = client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n");
        (sent.is_ok() && hear(&mut client, "GET").status == 200).then_some(())
    });
}

/// A response that could be read in two ways is no answer, and poisons no other.
#[test]
fn responses_are_read_as_strictly() {
    let pki = Pki::new();
    let app = Upstream::by_hand();
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("http://{}", app.address), ""));
    for response in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
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

/// Requests and a gateway's duty with them (RFC 9110 7.6, RFC 9112 3.2): the line, the fields
/// besides Host, what the application gets, and what it must not get. One row for each part that
/// has a hand in it; the others are at `fields` of `http1`.
const SAID: &[(&str, &str, &str, &str)] = &[
    ("GET / HTTP/1.1", "", "via: 1.1 eyelet\r\n", "x-mine"),
    (
        "GET https://APP.test/x?y HTTP/1.1",
        "",
        "GET /x?y HTTP/1.1\r\nhost: APP.test\r\n",
        "app.test",
    ),
    ("OPTIONS * HTTP/1.1", "", "OPTIONS * HTTP/1.1\r\n", "OPTIONS /"),
    ("OPTIONS / HTTP/1.1", "Max-Forwards: 5\r\n", "max-forwards: 4\r\n", "5"),
    ("GET / HTTP/1.1", "Connection: X-Mine, close\r\nX-Mine: 1\r\n", "via: ", "x-mine"),
    ("POST / HTTP/1.1", "", "content-length: 0\r\n", "transfer-encoding"),
    ("GET / HTTP/1.1", "Forwarded: for=liar\r\n", "forwarded: for=127.0.0.1;", "liar"),
];

#[test]
fn requests_go_on_as_a_gateway_says_them() {
    let pki = Pki::new();
    let app = Upstream::http();
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("http://{}", app.address), ""));
    for (line, fields, told, untold) in SAID {
        let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
        let request = format!("{line}\r\nHost: app.test\r\n{fields}\r\n");
        client.write_all(request.as_bytes()).unwrap();
        let heard = hear(&mut client, "GET");
        assert_eq!(heard.status, 200, "{request:?}: {heard:?}");
        let seen = heard.text();
        assert!(seen.contains(told), "{request:?}: {seen:?}");
        assert!(!seen.contains(untold), "{request:?}: {seen:?}");
    }
    // As far as it may go.
    let before = app.accepted();
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    let last = "OPTIONS / HTTP/1.1\r\nHost: app.test\r\nMax-Forwards: 0\r\n\r\n";
    let heard = support::web::ask(&mut client, last);
    assert_eq!((heard.status, heard.text().as_str()), (200, ""), "{heard:?}");
    assert!(heard.field("allow").is_some(), "{heard:?}");
    assert_eq!(app.accepted(), before);
}

/// HTTP/1.0 (RFC 9112 C.2): kept only where the client asks for it, and never chunked.
#[test]
fn old_clients_are_answered_as_they_understand() {
    let pki = Pki::new();
    let app = Upstream::serve(|mut stream| {
        while let Ok(1..) = stream.peek(&mut [0]) {
            let chunked = "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\
                           Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
            let known = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            let asked = support::web::head(&mut stream);
            let said = if asked.contains("/chunked") { chunked } else { known };
            if stream.write_all(said.as_bytes()).is_err() {
                return;
            }
        }
    });
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("http://{}", app.address), ""));
    for (path, fields, kept) in [
        ("/known", "Connection: keep-alive\r\n", true),
        ("/known", "", false),
        ("/known", "Connection: keep-alive, close\r\n", false),
        ("/chunked", "Connection: keep-alive\r\n", false),
    ] {
        let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
        let get = format!("GET {path} HTTP/1.0\r\n{fields}\r\n");
        let heard = support::web::ask(&mut client, &get);
        assert_eq!((heard.status, heard.text().as_str()), (200, "ok"), "{get:?}");
        let connection = if kept { "keep-alive" } else { "close" };
        assert_eq!(heard.field("connection"), Some(connection), "{get:?}: {heard:?}");
        assert!(heard.field("transfer-encoding").is_none(), "{heard:?}");
        if kept {
            assert_eq!(support::web::ask(&mut client, &get).text(), "ok");
        } else if path == "/known" {
            assert_eq!(rest(&mut client), b"");
        }
    }
}

/// Responses and a gateway's duty with them: the method, what the application says, what the client
/// gets, and what it must not get. Those whose fields alone change are at `fields` of `http1`.
const ANSWERED: &[(&str, &str, u16, &str, &str)] = &[
    (
        "GET",
        "200 OK\r\nContent-Length: 2\r\nConnection: x-mine\r\nX-Mine: 1\r\n\r\nok",
        200,
        "date",
        "mine",
    ),
    ("GET", "200 OK\r\nContent-Length: 2\r\nDate: then\r\n\r\nok", 200, "date: then\r\n", "gmt"),
    ("GET", "204 No Content\r\nContent-Length: 3\r\n\r\nabc", 204, "date: ", "content-length"),
    ("GET", "304 Not Modified\r\nContent-Length: 3\r\n\r\n", 304, "content-length: 3\r\n", "close"),
    ("HEAD", "200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, "content-length: 3\r\n", "close"),
    ("HEAD", "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200, "date: ", "close"),
    ("GET", "100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 100, "", "date"),
    ("GET", "299 \r\nContent-Length: 2\r\n\r\nok", 299, "date: ", "close"),
];

#[test]
fn responses_go_on_as_a_gateway_says_them() {
    let pki = Pki::new();
    let app = Upstream::by_hand();
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("http://{}", app.address), ""));
    for (method, said, status, told, untold) in ANSWERED {
        let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
        let ask = format!("{method} / HTTP/1.1\r\nHost: app.test\r\n\r\n");
        client.write_all(ask.as_bytes()).unwrap();
        support::web::answer(&mut app.take(), &format!("HTTP/1.1 {said}"));
        let heard = hear(&mut client, method);
        assert_eq!(heard.status, *status, "{said:?}");
        let body = said.ends_with("ok") && *method == "GET";
        assert_eq!(heard.text(), if body { "ok" } else { "" }, "{said:?}");
        assert!(heard.head.contains(told), "{said:?}: {heard:?}");
        assert!(!heard.head.to_lowercase().contains(untold), "{said:?}: {heard:?}");
    }
}

/// Applications end lines in LF alone and send many fields, and the proxies that they ran behind
/// let them. Clients get CRLF, and the fields in their order.
#[test]
fn heads_of_careless_applications_are_read() {
    let pki = Pki::new();
    let app = Upstream::by_hand();
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("http://{}", app.address), ""));
    let many: String = (0..200).map(|n| format!("Set-Cookie: c{n}=1\r\n")).collect();
    for (said, fields) in [
        ("200 OK\nServer: s\nContent-Length: 2\n\nok".to_owned(), "server: s\r\n"),
        ("200 OK\nServer: s\nContent-Length: 2\n\r\nok".to_owned(), "server: s\r\n"),
        (format!("200 OK\r\n{many}Content-Length: 2\r\n\r\nok"), "set-cookie: c199=1\r\n"),
        (
            "200 OK\r\nDate: d\r\nConnection: keep-alive\r\nServer: s\r\nKeep-Alive: timeout=5\r\n\
             Content-Length: 2\r\nX: y\r\n\r\nok"
                .to_owned(),
            "\r\ndate: d\r\nserver: s\r\ncontent-length: 2\r\nx: y\r\n",
        ),
    ] {
        let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
        client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        support::web::answer(&mut app.take(), &format!("HTTP/1.1 {said}"));
        let heard = hear(&mut client, "GET");
        assert_eq!((heard.status, &heard.text()[..]), (200, "ok"), "{said:.60}");
        assert!(heard.head.contains(fields), "{said:.60}: {}", heard.head);
    }
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    let ask = "GET / HTTP/1.1\r\nX-Two: 2\r\nConnection: X-Mine\r\nHost: app.test\r\nX-One: 1\r\n\
               TE: trailers\r\nAccept: */*\r\n\r\n";
    client.write_all(ask.as_bytes()).unwrap();
    let asked = support::web::answer(&mut app.take(), "HTTP/1.1 204 No\r\n\r\n");
    assert!(asked.contains("\r\nx-two: 2\r\nx-one: 1\r\naccept: */*\r\n"), "{asked}");
}

/// A later minor version is the known one (RFC 9110 2.5), also on a kept connection.
#[test]
fn a_response_of_a_later_version_is_read() {
    let pki = Pki::new();
    let app = Upstream::by_hand();
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("http://{}", app.address), ""));
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    let said = "HTTP/1.2 200 OK\r\nContent-Length: 2\r\n\r\nok";
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut app = app.take();
            support::web::answer(&mut app, said);
            support::web::answer(&mut app, said);
        });
        for _ in 0..2 {
            let heard = get(&mut client, "/");
            assert!(heard.head.starts_with("HTTP/1.1 200 "), "{heard:?}");
            assert_eq!(heard.text(), "ok");
        }
    });
}

/// Trailers that frame, route, condition or name somebody are nobody's (RFC 9110 6.5.1).
#[test]
fn trailers_say_nothing_that_a_head_must_say() {
    const FORBIDDEN: &[&str] = &["Age", "Content-Length", "Host", "TE", "X_Real_IP"];
    let pki = Pki::new();
    let app = Upstream::by_hand();
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("http://{}", app.address), ""));
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    let body = format!("0\r\n{}: liar\r\nX-Sum: 7\r\n\r\n", FORBIDDEN.join(": liar\r\n"));
    let post = "POST / HTTP/1.1\r\nHost: app.test\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.write_all(format!("{post}{body}").as_bytes()).unwrap();
    let mut app = app.take();
    support::web::head(&mut app);
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        app.read_exact(&mut byte).unwrap();
        seen.extend(byte);
    }
    assert_eq!(String::from_utf8(seen).unwrap(), "0\r\nx-sum: 7\r\n\r\n");
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    app.write_all(format!("{head}{body}").as_bytes()).unwrap();
    support::web::head(&mut client);
    let mut end = [0; 15];
    client.read_exact(&mut end).unwrap();
    assert_eq!(&end, b"0\r\nx-sum: 7\r\n\r\n");
}

#[test]
fn responses_that_are_none() {
    let pki = Pki::new();
    let app = Upstream::by_hand();
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("http://{}", app.address), ""));
    let switch = "Connection: upgrade\r\nUpgrade: websocket\r\n";
    let long = format!("200 OK\r\nX: {}\r\n", "y".repeat(70_000));
    for (fields, said) in [
        // For another protocol than the one that was asked for, or for none.
        (switch, "101 Switching Protocols\r\nUpgrade: other\r\n"),
        ("", "101 Switching Protocols\r\nUpgrade: websocket\r\n"),
        // Beyond the limits of a head.
        ("", &long),
    ] {
        let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
        let ask = format!("GET / HTTP/1.1\r\nHost: app.test\r\n{fields}\r\n");
        client.write_all(ask.as_bytes()).unwrap();
        support::web::answer(&mut app.take(), &format!("HTTP/1.1 {said}\r\n"));
        assert_eq!(hear(&mut client, "GET").status, 502, "{said:.60}");
    }
}

/// Some are passed on, and a stream of them is no response.
#[test]
fn interim_responses_come_to_an_end() {
    let pki = Pki::new();
    let app = Upstream::by_hand();
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("http://{}", app.address), ""));
    for (count, status) in [(100, 200), (101, 502)] {
        let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
        client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        let said = "HTTP/1.1 102 Processing\r\n\r\n".repeat(count);
        let said = format!("{said}HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        let mut app = app.take();
        support::web::answer(&mut app, &said);
        let mut passed = 0;
        let last = loop {
            let heard = hear(&mut client, "GET");
            if heard.status != 102 {
                break heard.status;
            }
            passed += 1;
        };
        // One that is too many is not passed on.
        assert_eq!((passed, last), (100, status), "{count}");
    }
}

#[test]
fn many_requests_at_once_are_answered_in_order() {
    let pki = Pki::new();
    let app = Upstream::http();
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("http://{}", app.address), ""));
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    let mut all = String::new();
    for number in 0..500 {
        all += &format!("GET /{number} HTTP/1.1\r\nHost: app.test\r\n\r\n");
    }
    client.write_all(all.as_bytes()).unwrap();
    for number in 0..500 {
        let heard = hear(&mut client, "GET");
        assert!(heard.text().starts_with(&format!("GET /{number} ")), "{heard:?}");
    }
}
