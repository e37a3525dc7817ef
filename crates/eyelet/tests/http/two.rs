//! HTTP/2 in front of an application: streams, how they end, floods, and the end of the connection.
//! The client is the h2 crate, and the tests play the upstream byte by byte.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::Request;

use crate::support;
use crate::support::client::Offer;
use crate::support::frames::{END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame};
use crate::support::two::{Two, body, get, run};
use crate::support::web::{Web, answer, chunks, head, switched};
use crate::support::{A_WHILE, SOON, Upstream};

#[test]
fn streams_are_served_side_by_side() {
    let web = Web::new(Upstream::http());
    run(async {
        let mut two = web.connect_two().await;
        let mut waiting = Vec::new();
        for number in 0..50 {
            let (response, _) = two.send.send_request(get(&format!("/{number}")), true).unwrap();
            waiting.push((number, response));
            two.send = two.send.clone().ready().await.unwrap();
        }
        for (number, response) in waiting {
            let response = response.await.unwrap();
            assert_eq!(response.status(), 200);
            let text = String::from_utf8(body(response).await.unwrap().to_vec()).unwrap();
            assert!(
                text.starts_with(&format!("GET /{number} HTTP/1.1\r\nhost: app.test")),
                "{text}"
            );
            assert!(text.contains("via: 2.0 eyelet\r\n"), "{text}");
        }
    });
    let line = web.edge.line("a stream", |line| line["http"]["path"] == "/49");
    assert_eq!(line["http"]["status"], 200, "{line}");
}

#[test]
fn bodies_and_trailers_go_both_ways() {
    let web = Web::new(Upstream::by_hand());
    thread::scope(|scope| {
        let app = scope.spawn(|| {
            let mut app = web.app.take();
            assert!(head(&mut app).contains("transfer-encoding: chunked\r\n"));
            assert_eq!(chunks(&mut app), b"hello");
            app.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
            app.write_all(b"3\r\none\r\n").unwrap();
            app
        });
        run(async {
            let mut two = web.connect_two().await;
            let post = Request::post("https://app.test/").body(()).unwrap();
            let (response, mut send) = two.send.send_request(post, false).unwrap();
            send.send_data("hello".into(), false).unwrap();
            let mut trailers = http::HeaderMap::new();
            trailers.insert("x-sum", "7".parse().unwrap());
            send.send_trailers(trailers).unwrap();
            let mut receive = response.await.unwrap().into_body();
            assert_eq!(receive.data().await.unwrap().unwrap(), "one", "at once");
            let mut app: TcpStream = app.join().unwrap();
            app.write_all(b"0\r\nX-Sum: 3\r\n\r\n").unwrap();
            assert!(receive.data().await.is_none());
            assert_eq!(receive.trailers().await.unwrap().unwrap()["x-sum"], "3");
        });
    });
}

/// RFC 9530: they are of the bytes as the application sent them.
#[test]
fn digests_do_not_follow_a_coded_body() {
    let web = Web::new(Upstream::serve(|mut stream| {
        while stream.peek(&mut [0]).is_ok_and(|more| more > 0) {
            head(&mut stream);
            let text = "<p>a page of text".repeat(200);
            let response = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\
                     Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{text}\r\n0\r\n\
                     Repr-Digest: sha-256=:x:\r\nContent-MD5: x\r\nX-Sum: 7\r\n\r\n",
                text.len()
            );
            stream.write_all(response.as_bytes()).unwrap();
        }
    }));
    run(async {
        let mut two = web.connect_two().await;
        for (accepted, expected) in
            [("gzip", &["x-sum"][..]), ("identity", &["content-md5", "repr-digest", "x-sum"])]
        {
            let request = Request::get("https://app.test/").header("accept-encoding", accepted);
            let (response, _) = two.send.send_request(request.body(()).unwrap(), true).unwrap();
            let response = response.await.unwrap();
            let is_coded = response.headers().contains_key("content-encoding");
            assert_eq!(is_coded, accepted == "gzip", "{response:?}");
            let mut receive = response.into_body();
            support::two::read(&mut receive).await.unwrap();
            let trailers = receive.trailers().await.unwrap().unwrap();
            let mut names: Vec<&str> = trailers.keys().map(|name| name.as_str()).collect();
            names.sort_unstable();
            assert_eq!(names, expected, "{accepted}");
            two.send = two.send.clone().ready().await.unwrap();
        }
    });
}

/// A response that ends after so many bytes by a close, or by a line that is no chunk. All of it
/// leaves in one segment with the FIN if it fits in one: the cut is known at the first read.
fn say_and_cut(mut stream: TcpStream) {
    let head = head(&mut stream);
    let mut path = head.split(' ').nth(1).unwrap().split('/').skip(1);
    let size: usize = path.next().unwrap().parse().unwrap();
    let last = if path.next() == Some("malformed") { "zz\r\n" } else { "" };
    let type_and_framing = "Content-Type: text/html\r\nTransfer-Encoding: chunked";
    let body = format!("{size:x}\r\n{}\r\n{last}", "x".repeat(size));
    socket2::SockRef::from(&stream).set_tcp_cork(true).unwrap();
    let _ = write!(stream, "HTTP/1.1 200 OK\r\n{type_and_framing}\r\n\r\n{body}");
}

/// Fewer bytes than are waited for to choose a coding by, and more.
const CUT_AFTER: [usize; 3] = [5, 3_000, 8_000];

/// A cut is one for the client too, behind what came before it.
#[test]
fn what_came_before_a_cut_is_passed_on() {
    let web = Web::new(Upstream::serve(say_and_cut));
    let cases =
        CUT_AFTER.map(|size| ["cut", "malformed"].map(|how| (size, format!("/{size}/{how}"))));
    run(async {
        let mut two = web.connect_two().await;
        for (size, path) in cases.iter().flatten().cycle().take(30) {
            for accepted in ["identity", "gzip"] {
                two.send = two.send.clone().ready().await.unwrap();
                let mut request = get(path);
                request.headers_mut().insert("accept-encoding", accepted.parse().unwrap());
                let (response, _) = two.send.send_request(request, true).unwrap();
                let response = response.await.unwrap();
                assert_eq!(response.status(), 200, "{path}");
                let is_coded = response.headers().contains_key("content-encoding");
                assert_eq!(is_coded, accepted == "gzip", "{path}: {response:?}");
                let mut receive = response.into_body();
                let mut heard = Vec::new();
                let error = loop {
                    match receive.data().await {
                        Some(Ok(data)) => heard.extend_from_slice(&data),
                        Some(Err(error)) => break error,
                        None => panic!("{path}: whole"),
                    }
                };
                let coded = heard.len();
                if is_coded {
                    let coded = std::mem::take(&mut heard);
                    let _ = flate2::read::GzDecoder::new(&coded[..]).read_to_end(&mut heard);
                }
                assert_eq!(heard.len(), *size, "{path}, {accepted}: {coded} bytes");
                assert!(error.is_reset(), "{path}: {error:?}");
            }
        }
    });
    for (size, path) in cases.iter().flatten().cycle().take(30) {
        let mut client = web.connect();
        write!(client, "GET {path} HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        let mut came = Vec::new();
        client.read_to_end(&mut came).expect_err("a cut that can be seen");
        let came = String::from_utf8(came).unwrap();
        let (head, body) = came.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
        assert_eq!(body.matches('x').count(), *size, "{path}");
    }
}

/// The access line says that the client left, not which of our frames came too late for it.
#[test]
fn a_client_that_leaves_is_told_as_such() {
    let web = Web::new(Upstream::http());
    let offer = Offer { alpn: &["h2"], ..Offer::new(&web.pki) };
    let mut whole = PREFACE.to_vec();
    whole.extend(frame(SETTINGS, 0, 0, &[]));
    for number in 0..LEAVERS {
        let mut client = offer.connect(web.edge.address(), "app.test");
        let asked = support::frames::get("/leaves");
        let request = frame(HEADERS, END_HEADERS | END_STREAM, 1, &asked);
        client.write_all(&[&whole[..], &request].concat()).unwrap();
        if number % 2 == 0 {
            client.conn.send_close_notify();
            let _ = client.flush();
        }
        drop(client);
    }
    // A reset may overtake a request, which then has no line.
    let connection = |line: &serde_json::Value| line["http"].is_null();
    support::until("a line for each connection", || {
        (web.edge.count(connection) == LEAVERS).then_some(())
    });
    for line in web.edge.lines() {
        assert!(!line["reason"].as_str().unwrap().contains("INTERNAL_ERROR"), "{line}");
    }
}

/// Clients that leave: most of them while their answer is on its way.
const LEAVERS: usize = 200;

/// HTTP/2 ends a request with its head; by HTTP/1.1 a POST says that it has no body.
#[test]
fn a_post_without_a_body_has_a_length() {
    let web = Web::new(Upstream::http());
    run(async {
        let mut client = Two::connect(&web.pki, web.edge.address()).await;
        let post = Request::post("https://app.test/").body(()).unwrap();
        let (_, text) = client.ask(post).await.unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        assert!(text.contains("\r\ncontent-length: 0\r\n"), "{text}");
        let (_, text) = client.get("/").await.unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        assert!(!text.contains("content-length"), "{text}");
    });
}

#[test]
fn a_large_body_waits_for_its_window() {
    let web = Web::new(Upstream::serve(|mut stream| {
        answer(&mut stream, "HTTP/1.1 200 OK\r\nContent-Length: 16777216\r\n\r\n");
        let _ = stream.write_all(&vec![7; 16 << 20]);
    }));
    run(async {
        let mut two = web.connect_two().await;
        let before = web.edge.rss_bytes();
        let (response, _) = two.send.send_request(get("/"), true).unwrap();
        let response = response.await.unwrap();
        tokio::time::sleep(A_WHILE).await;
        let grown = web.edge.rss_bytes().saturating_sub(before);
        assert!(grown < 6 << 20, "{grown} bytes more for a stalled stream");
        assert_eq!(body(response).await.unwrap().len(), 16 << 20);
    });
}

#[test]
fn what_fails_fails_alone() {
    let web = Web::new(Upstream::serve(|mut stream| {
        let asked = head(&mut stream);
        let said = match asked.split(' ').nth(1) {
            Some("/cut") => "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel",
            Some("/bad") => "what?\r\n\r\n",
            _ => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        };
        let _ = stream.write_all(said.as_bytes());
        thread::sleep(A_WHILE / 3);
    }));
    run(async {
        let mut two = web.connect_two().await;
        assert!(two.get("/cut").await.unwrap_err().is_reset());
        assert_eq!(two.get("/bad").await.unwrap().0, 502);
        assert_eq!(two.get("/ok").await.unwrap(), (200, "ok".into()));
        let misdirected = Request::get("https://b.test/").body(()).unwrap();
        assert_eq!(two.ask(misdirected).await.unwrap().0, 421);
        let long = Request::get("https://app.test/").header("x", "y".repeat(100_000));
        assert_eq!(two.ask(long.body(()).unwrap()).await.unwrap().0, 431);
        let two_hosts = Request::get("https://app.test/").header("host", "b.test");
        assert_eq!(two.ask(two_hosts.body(()).unwrap()).await.unwrap().0, 400);
        let connect = Request::connect("app.test:443").body(()).unwrap();
        assert_eq!(two.ask(connect).await.unwrap().0, 405);
        assert_eq!(two.get("/ok").await.unwrap(), (200, "ok".into()));
    });
}

/// RFC 8441.
#[test]
fn a_websocket_is_a_stream_of_its_connection() {
    let web = Web::new(Upstream::serve(|mut stream| {
        let asked = head(&mut stream);
        assert!(asked.starts_with("GET /chat HTTP/1.1\r\n"), "{asked}");
        let lower = asked.to_ascii_lowercase();
        assert!(lower.contains("upgrade: websocket\r\n"), "{asked}");
        assert!(lower.contains("sec-websocket-key: "), "{asked}");
        stream.write_all((switched(&asked) + "welcome").as_bytes()).unwrap();
        let mut ping = [0; 4];
        while stream.read_exact(&mut ping).is_ok() {
            stream.write_all(b"pong").unwrap();
        }
    }));
    run(async {
        let mut two = web.connect_two().await;
        let mut looks = 0;
        while !two.send.is_extended_connect_protocol_enabled() {
            assert!(looks < 1000, "its SETTINGS do not say so");
            looks += 1;
            tokio::time::sleep(SOON / 1000).await;
        }
        let mut ask = Request::connect("https://app.test/chat").body(()).unwrap();
        ask.extensions_mut().insert(h2::ext::Protocol::from_static("websocket"));
        let (response, mut send) = two.send.send_request(ask, false).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(response.headers().get("upgrade").is_none());
        let mut receive = response.into_body();
        assert_eq!(receive.data().await.unwrap().unwrap(), "welcome");
        for _ in 0..3 {
            send.send_data("ping".into(), false).unwrap();
            assert_eq!(receive.data().await.unwrap().unwrap(), "pong");
        }
        send.send_data(Bytes::new(), true).unwrap();
        while let Some(piece) = receive.data().await {
            assert_eq!(piece.unwrap(), "");
        }
    });
}

#[test]
fn a_stream_that_is_reset_lets_its_upstream_go() {
    let web = Web::new(Upstream::by_hand());
    run(async {
        let mut two = web.connect_two().await;
        let (response, mut send) = two.send.send_request(get("/"), false).unwrap();
        let pause = || tokio::time::sleep(SOON / 1000);
        while web.app.accepted() == 0 {
            pause().await;
        }
        let mut app = web.app.take();
        head(&mut app);
        send.send_reset(h2::Reason::CANCEL);
        drop(response);
        app.set_nonblocking(true).unwrap();
        let mut ended = app.read(&mut [0; 64]);
        for _ in 0..1000 {
            if ended.is_ok() {
                break;
            }
            pause().await;
            ended = app.read(&mut [0; 64]);
        }
        assert!(matches!(ended, Ok(0)), "{ended:?}");
    });
}

#[test]
fn an_idle_connection_is_sent_away() {
    let web = Web::with(Upstream::http(), "", "[http]\nhttp2_idle_timeout = \"500ms\"\n");
    run(async {
        // Who asks for the first time too late, because this machine is slow, comes again.
        let came = std::time::Instant::now();
        let (two, began) = loop {
            assert!(came.elapsed() < SOON, "no request in time");
            let connecting = std::time::Instant::now();
            let mut two = web.connect_two().await;
            // Before the answer: the edge counts from when it has sent it.
            let began = std::time::Instant::now();
            match two.get("/").await {
                Ok((status, _)) => {
                    assert_eq!(status, 200);
                    break (two, began);
                }
                Err(late) => {
                    assert!(late.is_go_away() || late.is_io(), "{late}");
                    assert!(
                        connecting.elapsed() >= Duration::from_millis(400),
                        "too early: {late}"
                    );
                }
            }
        };
        let ended = two.driven.await.unwrap();
        assert!(ended.is_ok(), "{ended:?}");
        assert!(began.elapsed() >= Duration::from_millis(400));
    });
    web.edge.line("the connection", |line| line["reason"] == "http2_idle_timeout");
}

#[test]
fn a_drain_lets_streams_end() {
    let mut web = Web::new(Upstream::serve(|mut stream| {
        head(&mut stream);
        thread::sleep(A_WHILE * 2);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    }));
    run(async {
        let mut two = web.connect_two().await;
        let (response, _) = two.send.send_request(get("/"), true).unwrap();
        while web.app.accepted() == 0 {
            tokio::time::sleep(SOON / 1000).await;
        }
        web.edge.signal(rustix::process::Signal::TERM);
        let response = response.await.unwrap();
        assert_eq!(body(response).await.unwrap(), "ok");
        assert!(two.driven.await.unwrap().is_ok());
    });
    assert!(web.edge.wait_exit().success());
}
