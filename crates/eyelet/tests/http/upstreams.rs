//! HTTP/2 to applications: streams on shared connections, how they end, and which requests are sent
//! again. The upstreams are the h2 crate, frames by hand, and servers of Go and Node.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use tokio::sync::Semaphore;

use crate::support;
use crate::support::client::Offer;
use crate::support::edge::LISTENER;
use crate::support::frames::{GOAWAY, HEADERS, SETTINGS, frame, next};
use crate::support::pki::Kind;
use crate::support::two::{self, Asked, Two, body, get, run, say};
use crate::support::web::{Web, ask, hear, rest};
use crate::support::{
    A_WHILE, Edge, Pki, Talk, Tls, Upstream, long_output, need, noise, settled, until,
};

const ON: &str = "upstream_http2 = \"on\"";

/// The application is spoken to by prior knowledge.
fn web_with(app: Upstream, more: &str, whole: &str) -> Web {
    Web::with(app, &format!("{ON}\n{more}"), whole)
}

/// Answers with the request as it came, its body and trailers too.
async fn mirror((request, mut respond): Asked) {
    let (parts, mut receive) = request.into_parts();
    let mut text = format!("{} {} {:?}\n", parts.method, parts.uri, parts.version);
    for (name, value) in &parts.headers {
        text += &format!("{name}: {}\n", value.to_str().unwrap());
    }
    let Ok(body) = two::read(&mut receive).await else { return };
    text += &format!("\n{}", String::from_utf8_lossy(&body));
    if let Ok(Some(trailers)) = receive.trailers().await {
        text += &format!("\n{trailers:?}");
    }
    say(&mut respond, text);
}

#[test]
fn requests_share_a_connection_that_the_upstream_chose() {
    let pki = Pki::new();
    let leaf = pki.server("app", &["127.0.0.1"], Kind::P256);
    let app = two::app(100, Some(leaf), |asked| Box::pin(mirror(asked)));
    let web = Web::at(pki, "https", app, "upstream_ca = \"ca.pem\"", "");
    run(async {
        let mut client = web.connect_two().await;
        // The first ones find no connection, and still dial only one.
        for answer in client.all((0..50).map(|number| format!("/{number}")).collect()).await {
            assert_eq!(answer.unwrap().0, 200);
        }
        let mut other = web.connect_two().await;
        let request = Request::get("https://app.test/x?y=z").header("te", "trailers");
        let request = request.header("cookie", "a=b").header("cookie", "c=d");
        let (status, text) = other.ask(request.body(()).unwrap()).await.unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        assert_eq!(status, 200);
        assert!(text.starts_with("GET https://app.test/x?y=z HTTP/2.0\n"), "{text}");
        for line in [
            "via: 2.0 eyelet\n",
            "x-forwarded-for: 127.0.0.1\n",
            "x-forwarded-proto: https\n",
            "te: trailers\n",
            "cookie: a=b; c=d\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    });
    let mut one = web.connect();
    let post = "POST /p HTTP/1.1\r\nHost: app.test\r\nTransfer-Encoding: chunked\r\n\
                Connection: x-mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nTE: gzip\r\n\r\n\
                5\r\nhello\r\n0\r\nX-Sum: 7\r\nX-Forwarded-For: liar\r\n\r\n";
    let heard = ask(&mut one, post);
    let text = heard.text();
    assert!(text.starts_with("POST https://app.test/p HTTP/2.0\n"), "{text}");
    assert!(text.contains("\n\nhello\n{\"x-sum\": \"7\"}"), "{text}");
    for name in ["transfer-encoding", "connection", "x-mine", "keep-alive", "\nte:", "liar"] {
        assert!(!text.contains(name), "{text}");
    }
    let heard = ask(&mut one, "OPTIONS * HTTP/1.1\r\nHost: app.test\r\n\r\n");
    assert!(heard.text().starts_with("OPTIONS https://app.test* HTTP/2.0\n"), "{heard:?}");
    let line = web.edge.line("a request", |line| line["http"]["path"] == "/p");
    assert_eq!(line["http"]["status"], 200, "{line}");
    assert_eq!(line["upstream"], web.app.address.to_string(), "{line}");
    assert_eq!(web.app.accepted(), 1, "one connection for all");
}

#[test]
fn an_upstream_may_choose_http_1() {
    let pki = Pki::new();
    let leaf = pki.server("app", &["127.0.0.1"], Kind::P256);
    let app = Upstream::https(leaf);
    let web = Web::at(pki, "https", app, "upstream_ca = \"ca.pem\"", "");
    let mut client = web.connect();
    for _ in 0..3 {
        assert_eq!(support::web::get(&mut client, "/").status, 200);
    }
    assert_eq!(web.app.accepted(), 1);
    run(async {
        let mut client = web.connect_two().await;
        for answer in client.all(vec!["/".to_owned(); 30]).await {
            assert_eq!(answer.unwrap().0, 200);
        }
    });
    // Where it must not choose.
    let pki = Pki::new();
    let leaf = pki.server("app", &["127.0.0.1"], Kind::P256);
    let more = format!("upstream_ca = \"ca.pem\"\n{ON}");
    let web = Web::at(pki, "https", Upstream::https(leaf), &more, "");
    assert_eq!(support::web::get(&mut web.connect(), "/").status, 503);
    let line = web.edge.line("a request", |line| line["http"]["path"] == "/");
    assert!(line["reason"].as_str().unwrap().contains("h2 was not chosen"), "{line}");
    let web = web_with(Upstream::http(), "", "");
    assert_eq!(support::web::get(&mut web.connect(), "/").status, 502);
    let line = web.edge.line("a request", |line| line["http"]["path"] == "/");
    assert!(line["reason"].as_str().unwrap().contains("HTTP/2: "), "{line}");
}

#[test]
fn bodies_trailers_and_interim_responses_go_both_ways() {
    let app = two::app(100, None, |(request, mut respond)| {
        Box::pin(async move {
            let hints = Response::builder().status(103).header("link", "</a>").body(()).unwrap();
            respond.send_informational(hints).unwrap();
            let mut receive = request.into_body();
            let mut send = respond.send_response(Response::new(()), false).unwrap();
            // Each piece is answered at once.
            while let Some(Ok(piece)) = receive.data().await {
                let _ = receive.flow_control().release_capacity(piece.len());
                send.send_data(piece, false).unwrap();
            }
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            trailers.insert("content-length", "9".parse().unwrap());
            send.send_trailers(trailers).unwrap();
        })
    });
    let web = web_with(app, "", "");
    run(async {
        let mut client = web.connect_two().await;
        let post = Request::post("https://app.test/").body(()).unwrap();
        let (mut response, mut send) = client.send.send_request(post, false).unwrap();
        let hints = std::future::poll_fn(|task| response.poll_informational(task)).await;
        assert_eq!(hints.unwrap().unwrap().status(), 103);
        let mut receive = response.await.unwrap().into_body();
        for piece in ["one", "two"] {
            send.send_data(piece.into(), false).unwrap();
            assert_eq!(receive.data().await.unwrap().unwrap(), piece, "at once");
        }
        send.send_data(Bytes::new(), true).unwrap();
        while let Some(piece) = receive.data().await {
            assert_eq!(piece.unwrap(), "");
        }
        let trailers = receive.trailers().await.unwrap().unwrap();
        assert_eq!(trailers["grpc-status"], "0");
        assert!(!trailers.contains_key("content-length"), "{trailers:?}");
    });
    let mut one = web.connect();
    let post = "POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 2\r\n\r\nhi";
    one.write_all(post.as_bytes()).unwrap();
    assert!(support::web::head(&mut one).starts_with("HTTP/1.1 103 "));
    let head = support::web::head(&mut one);
    assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
    let whole = b"2\r\nhi\r\n0\r\ngrpc-status: 0\r\n\r\n";
    let mut end = [0; 28];
    one.read_exact(&mut end).unwrap();
    assert_eq!(&end, whole);
}

#[test]
fn who_does_not_read_stops_nobody_else() {
    let bytes = Bytes::from(noise(16 << 20, 5));
    let sent = bytes.clone();
    let app = two::app(100, None, move |(request, mut respond)| {
        let sent = sent.clone();
        Box::pin(async move {
            match request.uri().path() {
                "/upload" => std::future::pending().await,
                "/large" => {}
                _ => return say(&mut respond, "ok"),
            }
            let mut send = respond.send_response(Response::new(()), false).unwrap();
            let _ = two::write(&mut send, sent).await;
            let _ = send.send_data(Bytes::new(), true);
        })
    });
    let web = web_with(app, "compress = \"off\"", "");
    let before = web.edge.rss_bytes();
    let mut stalled: Vec<Tls> = (0..30)
        .map(|_| {
            let mut client = web.connect();
            client.write_all(b"GET /large HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
            client
        })
        .collect();
    let mut upload = web.connect();
    let length = 8 << 20;
    let put = format!("PUT /upload HTTP/1.1\r\nHost: app.test\r\nContent-Length: {length}\r\n\r\n");
    upload.write_all(put.as_bytes()).unwrap();
    let socket = upload.sock.try_clone().unwrap();
    let written = Arc::new(AtomicUsize::new(0));
    let count = written.clone();
    let writing = thread::spawn(move || {
        noise(length, 9).chunks(16 << 10).try_for_each(|piece| {
            upload.write_all(piece)?;
            count.fetch_add(piece.len(), Ordering::SeqCst);
            std::io::Result::Ok(())
        })
    });
    until("something of the upload", || (written.load(Ordering::SeqCst) > 0).then_some(()));
    let taken = settled(|| written.load(Ordering::SeqCst));
    assert!(taken < length, "8 MiB went into an upstream that does not read");
    let grown = web.edge.rss_bytes().saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes more with stalled clients");
    socket.shutdown(std::net::Shutdown::Both).unwrap();
    writing.join().unwrap().expect_err("the socket is closed");
    assert_eq!(support::web::get(&mut web.connect(), "/").text(), "ok");
    let heard = hear(&mut stalled[7], "GET");
    assert!(heard.body == bytes, "other bytes came");
    assert_eq!(web.app.accepted(), 1);
}

#[test]
fn an_upstream_that_takes_few_streams_gets_few() {
    let here = Arc::new(AtomicUsize::new(0));
    let count = here.clone();
    let app = two::app(3, None, move |(_, mut respond)| {
        let count = count.clone();
        Box::pin(async move {
            count.fetch_add(1, Ordering::SeqCst);
            // Until all are here at once, each has a stream of its own.
            while count.load(Ordering::SeqCst) < 12 {
                tokio::time::sleep(A_WHILE / 30).await;
            }
            say(&mut respond, "ok");
        })
    });
    let web = web_with(app, "", "");
    run(async {
        let mut client = web.connect_two().await;
        for answer in client.all(vec!["/".to_owned(); 12]).await {
            assert_eq!(answer.unwrap(), (200, "ok".into()));
        }
    });
    assert_eq!(web.app.accepted(), 4, "three streams each");
    assert_eq!(here.load(Ordering::SeqCst), 12);
}

#[test]
fn what_was_refused_is_asked_again() {
    let seen = Arc::<Mutex<HashMap<String, usize>>>::default();
    let noted = seen.clone();
    let app = two::app(100, None, move |(request, mut respond)| {
        let path = request.uri().path().to_owned();
        let times = {
            let mut noted = noted.lock().unwrap();
            let times = noted.entry(path.clone()).or_default();
            *times += 1;
            *times
        };
        Box::pin(async move {
            match (path.as_str(), times) {
                ("/never", _) | ("/once", 1) => respond.send_reset(h2::Reason::REFUSED_STREAM),
                ("/broken", _) => respond.send_reset(h2::Reason::INTERNAL_ERROR),
                _ => say(&mut respond, "ok"),
            }
        })
    });
    let web = web_with(app, "", "");
    let mut client = web.connect();
    // Certainly not processed, so it does not matter what it does.
    let post =
        |path: &str| format!("POST {path} HTTP/1.1\r\nHost: app.test\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(ask(&mut client, &post("/once")).text(), "ok");
    assert_eq!(ask(&mut client, &post("/never")).status, 503);
    assert_eq!(ask(&mut client, &post("/broken")).status, 502);
    assert_eq!(support::web::get(&mut client, "/broken").status, 502);
    let seen = seen.lock().unwrap().clone();
    assert_eq!((seen["/once"], seen["/never"], seen["/broken"]), (2, 3, 2), "{seen:?}");
    let line = web.edge.line("a request", |line| line["http"]["path"] == "/never");
    assert_eq!(line["reason"], "upstream: the request was not taken", "{line}");
    assert_eq!(web.app.accepted(), 1, "nothing was wrong with the connection");
}

/// Reads frames up to the next HEADERS; its stream.
fn next_request(stream: &mut TcpStream) -> Option<u32> {
    loop {
        let frame = next(stream)?;
        if frame.kind == HEADERS {
            return Some(frame.stream);
        }
    }
}

fn begin(stream: &mut TcpStream) {
    stream.read_exact(&mut [0; 24]).unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
}

/// `:status: 200` alone, the end of the stream.
fn ok(stream: &mut TcpStream, id: u32) {
    stream.write_all(&frame(HEADERS, 5, id, &[0x88])).unwrap();
}

#[test]
fn what_goaway_leaves_out_is_asked_elsewhere() {
    let web = web_with(Upstream::by_hand(), "", "");
    thread::scope(|scope| {
        let app = scope.spawn(|| {
            let mut one = web.app.take();
            begin(&mut one);
            let first = next_request(&mut one).unwrap();
            ok(&mut one, first);
            let second = next_request(&mut one).unwrap();
            // Nothing behind the first was looked at; the connection stays open.
            let last = [first.to_be_bytes(), [0; 4]].concat();
            one.write_all(&frame(GOAWAY, 0, 0, &last)).unwrap();
            let mut two = web.app.take();
            begin(&mut two);
            let again = next_request(&mut two).unwrap();
            ok(&mut two, again);
            // Dies behind a request of which it may have seen something.
            let lost = next_request(&mut two).unwrap();
            drop(two);
            let mut three = web.app.take();
            begin(&mut three);
            let kept = next_request(&mut three).unwrap();
            ok(&mut three, kept);
            next_request(&mut three).unwrap();
            drop(three);
            (second, again, lost, kept)
        });
        let mut client = web.connect();
        let post = "POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(ask(&mut client, post).status, 200);
        assert_eq!(ask(&mut client, post).status, 200, "behind GOAWAY");
        assert_eq!(support::web::get(&mut client, "/").status, 200, "a GET is asked again");
        assert_eq!(ask(&mut client, post).status, 502, "a POST is not");
        assert_eq!(app.join().unwrap(), (3, 1, 3, 1));
    });
    assert_eq!(web.app.accepted(), 3);
}

#[test]
fn an_upstream_that_dies_in_a_body_is_seen() {
    // A permit for each head that a client has read.
    let read = Arc::new(Semaphore::new(0));
    let is_read = read.clone();
    let app = two::app(100, None, move |(request, mut respond)| {
        let is_read = is_read.clone();
        Box::pin(async move {
            let head = match request.uri().path() {
                "/known" => Response::builder().header("content-length", 9),
                _ => Response::builder(),
            };
            let mut send = respond.send_response(head.body(()).unwrap(), false).unwrap();
            send.send_data("hello".into(), false).unwrap();
            is_read.acquire().await.unwrap().forget();
            match request.uri().path() {
                // As good an end as any, said too early.
                "/known" => send.send_data(Bytes::new(), true).unwrap(),
                "/cancel" => send.send_reset(h2::Reason::CANCEL),
                "/no-error" => send.send_reset(h2::Reason::NO_ERROR),
                _ => send.send_reset(h2::Reason::INTERNAL_ERROR),
            }
        })
    });
    let web = web_with(app, "", "");
    for path in ["/known", "/cancel", "/no-error", "/reset"] {
        let mut client = web.connect();
        client
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: app.test\r\n\r\n").as_bytes())
            .unwrap();
        support::web::head(&mut client);
        read.add_permits(1);
        let error = client.read_to_end(&mut Vec::new()).expect_err("a cut that can be seen");
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{path}");
        run(async {
            let mut client = web.connect_two().await;
            client.send = client.send.clone().ready().await.unwrap();
            let (response, _) = client.send.send_request(get(path), true).unwrap();
            let response = response.await.unwrap();
            read.add_permits(1);
            assert!(body(response).await.unwrap_err().is_reset(), "{path}");
        });
        let line = web.edge.line(path, |line| line["http"]["path"] == path);
        assert_eq!(line["outcome"], "failed", "{line}");
    }
    // With the whole connection.
    let web = web_with(Upstream::by_hand(), "", "");
    let mut client = web.connect();
    client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    let mut app = web.app.take();
    begin(&mut app);
    let id = next_request(&mut app).unwrap();
    app.write_all(&frame(HEADERS, 4, id, &[0x88])).unwrap();
    support::web::head(&mut client);
    drop(app);
    client.read_to_end(&mut Vec::new()).expect_err("a cut that can be seen");
}

/// An early answer that does not read the request is whole.
#[test]
fn an_answer_may_come_before_the_requests_end() {
    let app = two::app(100, None, |(request, mut respond)| {
        Box::pin(async move {
            let head = Response::builder().status(413).body(()).unwrap();
            let mut send = respond.send_response(head, false).unwrap();
            send.send_data("too much".into(), true).unwrap();
            // RFC 9113 8.1. The library would drop with it what it has not sent yet.
            tokio::time::sleep(A_WHILE / 3).await;
            respond.send_reset(h2::Reason::NO_ERROR);
            drop(request);
        })
    });
    let web = web_with(app, "", "");
    let mut client = web.connect();
    let put = "PUT / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 100000\r\n\r\n";
    client.write_all(put.as_bytes()).unwrap();
    client.write_all(&[b'x'; 70_000]).unwrap();
    let heard = hear(&mut client, "PUT");
    assert_eq!((heard.status, heard.text().as_str()), (413, "too much"));
    assert_eq!(heard.field("connection"), Some("close"), "{heard:?}");
    assert_eq!(rest(&mut client), b"");
}

#[test]
fn told_connections_are_one_clients_own() {
    let web = web_with(Upstream::by_hand(), "proxy_protocol = \"v2\"", "");
    let serve = |mut app: TcpStream| {
        let mut signature = [0; 16];
        app.read_exact(&mut signature).unwrap();
        assert_eq!(&signature[..4], b"\r\n\r\n");
        let length = usize::from(signature[14]) << 8 | usize::from(signature[15]);
        app.read_exact(&mut vec![0; length]).unwrap();
        begin(&mut app);
        let mut streams = 0;
        while let Some(id) = next_request(&mut app) {
            ok(&mut app, id);
            streams += 1;
        }
        streams
    };
    let streams = thread::scope(|scope| {
        let apps = scope.spawn(|| {
            thread::scope(|scope| {
                let apps: Vec<_> = (0..2)
                    .map(|_| {
                        let app = web.app.take();
                        scope.spawn(|| serve(app))
                    })
                    .collect();
                apps.into_iter().map(|app| app.join().unwrap()).collect::<Vec<u32>>()
            })
        });
        run(async {
            let (mut one, mut two) = (web.connect_two().await, web.connect_two().await);
            for client in [&mut one, &mut two] {
                for answer in client.all(vec!["/".to_owned(); 10]).await {
                    assert_eq!(answer.unwrap().0, 200);
                }
            }
        });
        apps.join().unwrap()
    });
    assert_eq!(streams, [10, 10], "each on its own, and let go with its client");
}

#[test]
fn clients_that_leave_do_not_ruin_a_shared_connection() {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    let app = two::app(100, None, move |(request, mut respond)| {
        count.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            match request.uri().path() {
                "/slow" => std::future::pending().await,
                _ => say(&mut respond, "ok"),
            }
        })
    });
    let web = web_with(app, "", "");
    run(async {
        for _ in 0..3 {
            let mut client = web.connect_two().await;
            for _ in 0..60 {
                client.send = client.send.clone().ready().await.unwrap();
                let (response, mut send) = client.send.send_request(get("/slow"), false).unwrap();
                let before = seen.load(Ordering::SeqCst);
                while seen.load(Ordering::SeqCst) == before {
                    tokio::time::sleep(A_WHILE / 300).await;
                }
                send.send_reset(h2::Reason::CANCEL);
                drop(response);
            }
            assert_eq!(client.get("/").await.unwrap().0, 200);
        }
    });
    assert_eq!(web.app.accepted(), 2, "a hundred resets, and it gets no more streams");
}

const GO: &str = r#"
package main

import (
	"bufio"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

func main() {
	http.HandleFunc("/sum", func(w http.ResponseWriter, r *http.Request) {
		hash := sha256.New()
		length, _ := io.Copy(hash, r.Body)
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprintf(w, "%s %s %d %x %s", r.Proto, r.Host, length, hash.Sum(nil), r.Trailer.Get("X-Up"))
		w.Header().Set("X-Sum", "done")
	})
	http.HandleFunc("/abort", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "begun")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	http.HandleFunc("/chat", func(w http.ResponseWriter, r *http.Request) {
		hijacker, ok := w.(http.Hijacker)
		if !ok {
			http.Error(w, r.Proto, 500)
			return
		}
		conn, rw, _ := hijacker.Hijack()
		rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n")
		rw.WriteString("Upgrade: " + r.Header.Get("Upgrade") + "\r\n")
		key := r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
		hash := sha1.Sum([]byte(key))
		accept := base64.StdEncoding.EncodeToString(hash[:])
		rw.WriteString("Sec-WebSocket-Accept: " + accept + "\r\n\r\n")
		rw.Flush()
		line, _ := bufio.NewReader(rw).ReadString('\n')
		rw.WriteString(line)
		rw.Flush()
		conn.Close()
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println("port", listener.Addr().(*net.TCPAddr).Port)
	panic(http.ServeTLS(listener, nil, os.Args[1], os.Args[2]))
}
"#;

fn edge_before(pki: &Pki, port: u16) -> Edge {
    let rule = pki.terminate(&format!("https://127.0.0.1:{port}"), "upstream_ca = \"ca.pem\"");
    Edge::start_whole(&pki.folder, &format!("workers = 1\n{LISTENER}{rule}"), |_| ())
}

#[test]
fn gos_server() {
    if !need("go") {
        return;
    }
    let pki = Pki::new();
    pki.server("app", &["127.0.0.1"], Kind::P256);
    let source = pki.folder.write("app.go", GO);
    // The compiler may take its time.
    let binary = pki.file("app-server");
    let said = long_output(Command::new("go").args(["build", "-o"]).arg(&binary).arg(source));
    assert!(said.status.success(), "{said:?}");
    let mut command = Command::new(binary);
    let program = Talk::start(command.args([pki.text("app.pem"), pki.text("app.key")]));
    let edge = edge_before(&pki, program.port());
    let sent = noise(3 << 20, 17);
    run(async {
        let mut client = Two::connect(&pki, edge.address()).await;
        let post = Request::post("https://app.test/sum").header("trailer", "x-up");
        let (response, mut send) = client.send.send_request(post.body(()).unwrap(), false).unwrap();
        two::write(&mut send, sent.clone().into()).await.unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-up", "up".parse().unwrap());
        send.send_trailers(trailers).unwrap();
        let mut receive = response.await.unwrap().into_body();
        let text = String::from_utf8(two::read(&mut receive).await.unwrap().to_vec()).unwrap();
        assert!(text.starts_with("HTTP/2.0 app.test 3145728 "), "{text}");
        assert!(text.ends_with(" up"), "{text}");
        assert_eq!(receive.trailers().await.unwrap().unwrap()["x-sum"], "done");
        for answer in client.all(vec!["/sum".to_owned(); 99]).await {
            assert!(answer.unwrap().1.starts_with(b"HTTP/2.0 app.test 0 "));
        }
        // Cut, or told instead where the cut came before anything was passed on.
        let aborted = client.get("/abort").await;
        assert!(!matches!(aborted, Ok((200, _))), "{aborted:?}");
        // A WebSocket by HTTP/2 is asked for by HTTP/1.1.
        let mut chat = Request::connect("https://app.test/chat").body(()).unwrap();
        chat.extensions_mut().insert(h2::ext::Protocol::from_static("websocket"));
        let (response, mut send) = client.send.send_request(chat, false).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        send.send_data("hello\n".into(), false).unwrap();
        assert_eq!(body(response).await.unwrap(), "hello\n");
    });
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    let ask =
        "GET /chat HTTP/1.1\r\nHost: app.test\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n";
    client.write_all(ask.as_bytes()).unwrap();
    assert!(support::web::head(&mut client).starts_with("HTTP/1.1 101 "));
    client.write_all(b"hello\n").unwrap();
    let mut word = [0; 6];
    client.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"hello\n", "an upgrade goes by HTTP/1.1");
}

const NODE: &str = r#"
const fs = require('node:fs');
const [certificate, key] = process.argv.slice(2).map((name) => fs.readFileSync(name));
const http2 = require('node:http2');
const options =
  { cert: certificate, key, allowHTTP1: true, settings: { maxConcurrentStreams: 5 } };
const server = http2.createSecureServer(options);
server.on('request', (request, response) => {
  if (request.httpVersion === '1.1') response.end(`${request.method} by HTTP/1.1`);
});
server.on('stream', (stream, headers) => {
  if (headers[':path'] === '/old') {
    return stream.close(http2.constants.NGHTTP2_HTTP_1_1_REQUIRED);
  }
  let length = 0;
  stream.on('data', (piece) => { length += piece.length; });
  stream.on('end', () => {
    stream.respond({ ':status': 200, 'content-type': 'text/plain' });
    setTimeout(() => stream.end(`${headers[':scheme']} ${headers[':path']} ${length}`), 20);
  });
});
server.listen(0, '127.0.0.1', () => console.log(`port ${server.address().port}`));
"#;

#[test]
fn nodes_server() {
    if !need("node") {
        return;
    }
    let pki = Pki::new();
    pki.server("app", &["127.0.0.1"], Kind::P256);
    let source = pki.folder.write("app.js", NODE);
    let mut command = Command::new("node");
    command.arg(source).args([pki.text("app.pem"), pki.text("app.key")]);
    let program = Talk::start(&mut command);
    let edge = edge_before(&pki, program.port());
    run(async {
        let mut client = Two::connect(&pki, edge.address()).await;
        for (number, answer) in
            client.all((0..40).map(|n| format!("/{n}")).collect()).await.into_iter().enumerate()
        {
            assert_eq!(answer.unwrap(), (200, format!("https /{number} 0").into()));
        }
        let put = Request::put("https://app.test/put").body(()).unwrap();
        let (response, mut send) = client.send.send_request(put, false).unwrap();
        two::write(&mut send, noise(1 << 20, 3).into()).await.unwrap();
        send.send_data(Bytes::new(), true).unwrap();
        assert_eq!(body(response.await.unwrap()).await.unwrap(), "https /put 1048576");
        let post = Request::post("https://app.test/old").body(()).unwrap();
        assert_eq!(client.ask(post).await.unwrap(), (200, "POST by HTTP/1.1".into()));
    });
}
