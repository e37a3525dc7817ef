//! HTTP/1.1 in front of an application: kept connections, bodies both ways, upgrades, failures. The
//! tests play client and upstream byte by byte.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::client::Offer;
use crate::support::pki::Kind;
use crate::support::web::{Web, answer, ask, chunks, get, head, hear, rest};
use crate::support::{A_WHILE, Edge, Pki, Tls, Upstream, noise, settled, until};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn upstream_connections_are_kept_and_shared() {
    let web = Web::new(Upstream::by_hand());
    let mut one = web.connect();
    let asked = thread::scope(|scope| {
        let app = scope.spawn(|| {
            let mut app = web.app.take();
            // Longer than the edge keeps it by itself: this machine may be slow.
            let kept = OK.replacen("\r\n", "\r\nKeep-Alive: timeout=60\r\n", 1);
            let asked = answer(&mut app, &kept);
            for _ in 0..3 {
                answer(&mut app, &kept);
            }
            asked
        });
        assert_eq!(get(&mut one, "/1").text(), "ok");
        assert_eq!(get(&mut one, "/2").text(), "ok");
        let mut two = web.connect();
        assert_eq!(get(&mut two, "/3").text(), "ok");
        // Behind this the connection is parked.
        thread::sleep(A_WHILE);
        assert_eq!(get(&mut one, "/4").text(), "ok");
        app.join().unwrap()
    });
    assert_eq!(web.app.accepted(), 1);
    assert!(asked.starts_with("GET /1 HTTP/1.1\r\nhost: app.test\r\n"), "{asked}");
    assert!(asked.contains("x-forwarded-for: 127.0.0.1\r\n"), "{asked}");
    let line = web.request_line("/3");
    assert_eq!(line["http"]["status"], 200, "{line}");
    assert_eq!(line["http"]["method"], "GET", "{line}");
    assert!(line["http"]["upstream_ms"].is_u64(), "{line}");
    assert!(line["upstream_tls"].is_null(), "the upstream has no TLS: {line}");
}

#[test]
fn a_dead_kept_connection_is_no_answer() {
    let web = Web::new(Upstream::by_hand());
    let mut client = web.connect();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut app = web.app.take();
            answer(&mut app, OK);
            // It goes while it waits in the pool.
            head(&mut app);
            drop(app);
            answer(&mut web.app.take(), OK);
            let mut app = web.app.take();
            // Young or not, it may be asked what must not be sent twice.
            let stays = "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=120\r\nContent-Length: 2\r\n\r\nok";
            answer(&mut app, stays);
            head(&mut app);
        });
        assert_eq!(get(&mut client, "/1").status, 200);
        assert_eq!(get(&mut client, "/2").status, 200, "a GET is asked again");
        // The second answer's connection was closed behind it, and noticed in time.
        thread::sleep(A_WHILE);
        assert_eq!(get(&mut client, "/3").status, 200);
        // A POST goes only on a connection that has rested, while so few do.
        thread::sleep(A_WHILE);
        let post = "POST /4 HTTP/1.1\r\nHost: app.test\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(ask(&mut client, post).status, 502, "a POST is not");
    });
}

#[test]
fn bodies_go_both_ways_as_they_come() {
    let web = Web::new(Upstream::by_hand());
    let mut client = web.connect();
    let head_of = "POST / HTTP/1.1\r\nHost: app.test\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.write_all(head_of.as_bytes()).unwrap();
    client.write_all(b"5;x=y\r\nhello\r\n").unwrap();
    let mut app = web.app.take();
    assert!(head(&mut app).contains("transfer-encoding: chunked\r\n"));
    let mut piece = [0; 10];
    app.read_exact(&mut piece).unwrap();
    assert_eq!(&piece, b"5\r\nhello\r\n");
    // The answer begins before the request has ended, and each piece comes at once.
    app.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n").unwrap();
    let begun = head(&mut client);
    assert!(begun.contains("transfer-encoding: chunked\r\n"), "{begun}");
    let mut chunk = [0; 8];
    client.read_exact(&mut chunk).unwrap();
    assert_eq!(&chunk, b"3\r\none\r\n");
    client.write_all(b"2\r\n, \r\n0\r\nX-Sum: 7\r\n\r\n").unwrap();
    assert_eq!(chunks(&mut app), b", ");
    app.write_all(b"0\r\nX-Sum: 3\r\n\r\n").unwrap();
    let mut end = [0; 15];
    client.read_exact(&mut end).unwrap();
    assert_eq!(&end, b"0\r\nx-sum: 3\r\n\r\n");
}

#[test]
fn continue_is_the_upstreams_to_say() {
    let web = Web::new(Upstream::by_hand());
    let mut client = web.connect();
    let post = "POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 2\r\n\
                Expect: 100-continue\r\n\r\n";
    client.write_all(post.as_bytes()).unwrap();
    let mut app = web.app.take();
    assert!(head(&mut app).contains("expect: 100-continue\r\n"));
    app.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
    assert_eq!(head(&mut client), "HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(b"hi").unwrap();
    let mut body = [0; 2];
    app.read_exact(&mut body).unwrap();
    app.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n").unwrap();
    assert_eq!(head(&mut client), "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n");
    app.write_all(OK.as_bytes()).unwrap();
    assert_eq!(hear(&mut client, "POST").text(), "ok");
}

#[test]
fn large_bodies_cost_little_memory() {
    let web = Web::with(Upstream::by_hand(), "compress = \"off\"", "");
    let sent = noise(32 << 20, 31);
    let mut client = web.connect();
    // The program's own pages come in first: they are resident too.
    let put = "PUT / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 2\r\n\r\nhi";
    client.write_all(put.as_bytes()).unwrap();
    answer(&mut web.app.take(), &OK.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"));
    assert_eq!(hear(&mut client, "PUT").text(), "ok");
    let before = web.edge.rss_bytes();
    let grown = |what: &str| {
        thread::sleep(A_WHILE);
        let grown = web.edge.rss_bytes().saturating_sub(before);
        assert!(grown < 6 << 20, "{grown} bytes more with a stalled {what}");
    };
    let mut app = thread::scope(|scope| {
        scope.spawn(|| {
            let length = sent.len();
            let put =
                format!("PUT / HTTP/1.1\r\nHost: app.test\r\nContent-Length: {length}\r\n\r\n");
            client.write_all(put.as_bytes()).unwrap();
            client.write_all(&sent).unwrap();
        });
        let mut app = web.app.take();
        head(&mut app);
        grown("upload");
        let mut got = vec![0; sent.len()];
        app.read_exact(&mut got).unwrap();
        assert!(got == sent, "other bytes came up");
        app
    });
    thread::scope(|scope| {
        scope.spawn(|| {
            let length = sent.len();
            write!(app, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").unwrap();
            app.write_all(&sent).unwrap();
        });
        grown("download");
        assert!(hear(&mut client, "PUT").body == sent, "other bytes came down");
    });
}

#[test]
fn responses_without_a_body() {
    let web = Web::new(Upstream::by_hand());
    let mut client = web.connect();
    for (method, said, status, length) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", 200, Some("9")),
        ("GET", "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 204, None),
        ("GET", "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n", 304, None),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, Some("0")),
    ] {
        client
            .write_all(format!("{method} / HTTP/1.1\r\nHost: app.test\r\n\r\n").as_bytes())
            .unwrap();
        let mut app = web.app.take();
        answer(&mut app, said);
        drop(app);
        let heard = hear(&mut client, method);
        assert_eq!((heard.status, heard.field("content-length")), (status, length), "{heard:?}");
        assert!(heard.field("date").is_some(), "{heard:?}");
    }
}

#[test]
fn a_response_until_close_is_whole_or_cut() {
    let web = Web::new(Upstream::by_hand());
    for version in ["1.1", "1.0"] {
        let mut client = web.connect();
        let get = format!("GET / HTTP/{version}\r\nHost: app.test\r\n\r\n");
        client.write_all(get.as_bytes()).unwrap();
        let mut app = web.app.take();
        answer(&mut app, "HTTP/1.0 200 OK\r\n\r\nhello");
        drop(app);
        let heard = hear(&mut client, "GET");
        assert_eq!(heard.text(), "hello");
        assert_eq!(heard.field("transfer-encoding").is_some(), version == "1.1", "{heard:?}");
    }
    for (begun, cut) in [
        ("Content-Length: 9\r\n\r\nhello", ""),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", ""),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "x"),
    ] {
        let mut client = web.connect();
        client.write_all(b"GET /cut HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        let mut app = web.app.take();
        answer(&mut app, &format!("HTTP/1.1 200 OK\r\n{begun}"));
        head(&mut client);
        app.write_all(cut.as_bytes()).unwrap();
        drop(app);
        let error = client.read_to_end(&mut Vec::new()).expect_err("a cut that can be seen");
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{begun:?}");
    }
    assert_eq!(web.request_line("/cut")["outcome"], "failed");
}

#[test]
fn an_upgrade_becomes_a_pair_in_the_lot() {
    let web = Web::new(Upstream::by_hand());
    let mut client = web.connect();
    let ask = "GET /chat HTTP/1.1\r\nHost: app.test\r\nConnection: Upgrade\r\n\
               Upgrade: websocket\r\n\r\n";
    client.write_all(ask.as_bytes()).unwrap();
    let mut app = web.app.take();
    let asked = head(&mut app);
    assert!(asked.contains("connection: upgrade\r\nupgrade: websocket\r\n"), "{asked}");
    let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                    Upgrade: websocket\r\n\r\nwelcome";
    app.write_all(switched.as_bytes()).unwrap();
    assert!(head(&mut client).starts_with("HTTP/1.1 101 "));
    let mut word = [0; 7];
    client.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"welcome");
    for round in 0..3 {
        client.write_all(b"ping").unwrap();
        let mut ping = [0; 4];
        app.read_exact(&mut ping).unwrap();
        app.write_all(b"pong").unwrap();
        client.read_exact(&mut ping).unwrap();
        assert_eq!(&ping, b"pong", "round {round}");
    }
    client.conn.send_close_notify();
    client.flush().unwrap();
    assert_eq!(app.read(&mut word).unwrap(), 0);
    // Nobody asked for this one.
    let mut client = web.connect();
    client.write_all(b"GET /x HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    answer(&mut web.app.take(), switched);
    assert_eq!(hear(&mut client, "GET").status, 502);
}

#[test]
fn failures_of_the_upstream_are_told() {
    let web = Web::new(Upstream::by_hand());
    let mut client = web.connect();
    for (path, said) in [("/garbage", "220 smtp\r\n"), ("/nothing", ""), ("/bad", "HTTP/1.1 2\n")] {
        client
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: app.test\r\n\r\n").as_bytes())
            .unwrap();
        answer(&mut web.app.take(), said);
        let heard = hear(&mut client, "GET");
        assert_eq!(heard.status, 502, "{heard:?}");
        assert!(heard.text().contains("application"), "{heard:?}");
        let line = web.request_line(path);
        assert_eq!(line["http"]["status"], 502, "{line}");
        assert!(line["reason"].as_str().unwrap().starts_with("upstream: "), "{line}");
    }
    // The others are answered in time, however slow this machine is.
    let limits = "[http]\nupstream_timeout = \"200ms\"\n";
    let web = Web::with(Upstream::by_hand(), "", limits);
    let mut client = web.connect();
    client.write_all(b"GET /slow HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    let _app = web.app.take();
    assert_eq!(hear(&mut client, "GET").status, 504);
    assert_eq!(web.request_line("/slow")["reason"], "upstream: upstream_timeout");
}

/// An upstream that does not take the request is at fault, and not the client: whether bytes wait
/// in Eyelet, or the last of them fit in the upstream's socket.
#[test]
fn an_upstream_that_does_not_take_the_body_is_at_fault() {
    let noise = noise(32 << 20, 5);
    for bytes in [512 << 10, noise.len()] {
        let web = Web::with(Upstream::by_hand(), "", "[http]\nbody_timeout = \"2s\"\n");
        let mut client = web.connect();
        client.sock.set_write_timeout(Some(A_WHILE)).unwrap();
        let put = "PUT /stalled HTTP/1.1\r\nHost: app.test\r\nContent-Length: 99999999\r\n\r\n";
        // The kernel takes more than the upstream's socket at once: it does not matter whether this
        // thread stands still then.
        client.conn.set_buffer_limit(None);
        client.conn.writer().write_all(&[put.as_bytes(), &noise[..bytes]].concat()).unwrap();
        until("the end of the request", || {
            let _ = client.conn.write_tls(&mut client.sock);
            web.edge.count(|line| line["http"]["path"] == "/stalled").checked_sub(1)
        });
        let line = web.request_line("/stalled");
        assert_eq!(line["http"]["status"], 504, "{bytes}: {line}");
        assert_eq!(line["reason"], "upstream: body_timeout", "{bytes}: {line}");
    }
}

#[test]
fn an_upstream_that_is_not_there_is_told_or_waited_for() {
    let pki = Pki::new();
    let (_socket, address) = support::upstream::nobody();
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("http://{address}"), ""));
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    assert_eq!(get(&mut client, "/").status, 503);
    let line = edge.line("the request", |line| line["http"]["status"] == 503);
    assert!(line["reason"].as_str().unwrap().contains("refused"), "{line}");

    let path = pki.text("late.sock");
    let rule = pki.terminate(&format!("http+unix:{path}"), "upstream_wait = \"20s\"");
    let edge = Edge::start(&pki.folder, &rule);
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    thread::sleep(A_WHILE);
    let listener = UnixListener::bind(&path).unwrap();
    let (mut app, _) = listener.accept().unwrap();
    head(&mut app);
    app.write_all(OK.as_bytes()).unwrap();
    assert_eq!(hear(&mut client, "GET").text(), "ok");
}

#[test]
fn a_client_that_leaves_takes_its_request_along() {
    let web = Web::new(Upstream::by_hand());
    for polite in [false, true] {
        let mut client = web.connect();
        client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        let mut app = web.app.take();
        head(&mut app);
        if polite {
            // RFC 8446 6.1: one direction alone; the answer is still read.
            client.conn.send_close_notify();
            client.flush().unwrap();
            app.write_all(OK.as_bytes()).unwrap();
            assert_eq!(hear(&mut client, "GET").text(), "ok");
            assert_eq!(rest(&mut client), b"");
        } else {
            drop(client);
            assert_eq!(app.read(&mut [0]).unwrap_or(0), 0, "the upstream is let go");
        }
    }
}

#[test]
fn hosts_lead_to_their_rule() {
    let pki = Pki::new();
    let app = Upstream::http();
    let rule = |sni: &str| {
        let rule = pki.terminate(&format!("http://{}", app.address), "");
        rule.replace("sni = \"app.test\"", sni).replace("name = \"app\"\n", "")
    };
    let rules = rule("sni = [\"app.test\", \"*.app.test\"]") + &rule("sni = \"b.test\"");
    let edge = Edge::start(&pki.folder, &rules);
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    for (host, status) in [
        ("app.test", 200),
        ("APP.test:8443", 200),
        ("x.app.test", 200),
        ("b.test", 421),
        ("nobody.test", 421),
        ("127.0.0.1", 421),
        ("[::1]:443", 421),
        ("app.test", 200),
    ] {
        let heard = ask(&mut client, &format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(heard.status, status, "{host}: {heard:?}");
    }
    let line = edge.line("another rule's", |line| line["http"]["status"] == 421);
    assert_eq!(line["outcome"], "refused", "{line}");
}

#[test]
fn https_upstreams_are_verified() {
    let pki = Pki::new();
    let leaf = pki.server("app", &["app.internal", "127.0.0.1"], Kind::P256);
    let strangers = Pki::new();
    strangers.folder.write("x", "");
    let app = Upstream::https(leaf);
    std::fs::copy(strangers.file("ca.pem"), pki.folder.path().join("other.pem")).unwrap();
    for (more, status) in [
        ("upstream_ca = \"ca.pem\"", 200),
        ("upstream_ca = \"ca.pem\"\nupstream_name = \"app.internal\"", 200),
        ("upstream_ca = \"ca.pem\"\nupstream_name = \"else.internal\"", 503),
        ("upstream_ca = \"other.pem\"", 503),
    ] {
        let rule = pki.terminate(&format!("https://{}", app.address), more);
        let edge = Edge::start(&pki.folder, &rule);
        let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
        for _ in 0..2 {
            assert_eq!(get(&mut client, "/").status, status, "{more}: {}", edge.log());
        }
        if status == 503 {
            let line = edge.line("the request", |line| line["http"]["status"] == 503);
            assert!(line["reason"].as_str().unwrap().contains("TLS"), "{line}");
        }
    }
    assert_eq!(app.accepted(), 6, "one kept connection where it was good");
}

#[test]
fn told_upstreams_are_one_clients_own() {
    let web = Web::with(Upstream::by_hand(), "proxy_protocol = \"v2\"", "");
    let (mut one, mut two) = (web.connect(), web.connect());
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2 {
                let mut app = web.app.take();
                let mut signature = [0; 16];
                app.read_exact(&mut signature).unwrap();
                assert_eq!(&signature[..4], b"\r\n\r\n");
                let length = usize::from(signature[14]) << 8 | usize::from(signature[15]);
                app.read_exact(&mut vec![0; length]).unwrap();
                answer(&mut app, OK);
                thread::spawn(move || _ = app.read(&mut [0]));
            }
        });
        assert_eq!(get(&mut one, "/").status, 200);
        assert_eq!(get(&mut two, "/").status, 200);
    });
    assert_eq!(web.app.accepted(), 2);
}

/// Whoever reads it does so before TLS begins, as with any other connection.
#[test]
fn the_proxy_header_goes_before_tls() {
    let pki = Pki::new();
    let app = Upstream::by_hand();
    let more = "upstream_ca = \"ca.pem\"\nproxy_protocol = \"v2\"";
    let rule = pki.terminate(&format!("https://{}", app.address), more);
    let edge = Edge::start(&pki.folder, &rule);
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    let mut app = app.take();
    let mut header = [0; 16];
    app.read_exact(&mut header).unwrap();
    assert_eq!(&header[..4], b"\r\n\r\n");
    let length = usize::from(header[14]) << 8 | usize::from(header[15]);
    app.read_exact(&mut vec![0; length]).unwrap();
    let mut hello = [0; 3];
    app.read_exact(&mut hello).unwrap();
    assert_eq!(hello, [22, 3, 1], "a hello");
}

#[test]
fn port_80_leads_to_https() {
    let pki = Pki::new();
    let config = "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"http_redirect\"\n";
    let edge = Edge::start_whole(&pki.folder, config, |_| ());
    for (request, status, location) in [
        ("GET /a?b HTTP/1.1\r\nHost: a.test:80\r\n\r\n", 301, Some("https://a.test/a?b")),
        ("POST / HTTP/1.1\r\nHost: a.test\r\n\r\n", 308, Some("https://a.test/")),
        ("GET / HTTP/1.1\r\n\r\n", 400, None),
        ("GET / HTTP/1.0\r\n\r\n", 400, None),
        ("\x16\x03\x01\x02\x00", 400, None),
    ] {
        let mut client: TcpStream = edge.connect();
        client.write_all(request.as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let heard = hear(&mut client, "GET");
        assert_eq!((heard.status, heard.field("location")), (status, location), "{heard:?}");
        assert_eq!(heard.field("connection"), Some("close"));
    }
    edge.line("a redirect", |line| line["outcome"] == "redirected");
}

#[test]
fn a_client_that_stops_reading_is_cut() {
    let app = Upstream::serve(|mut stream| {
        answer(&mut stream, "HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n");
        let _ = stream.write_all(&vec![7; 64 << 20]);
    });
    let web = Web::with(app, "", "[http]\nbody_timeout = \"2s\"\n");
    let mut stalled = web.connect();
    stalled.write_all(b"GET /stalled HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    let line = web.request_line("/stalled");
    assert_eq!(line["outcome"], "failed", "{line}");
    assert!(line["duration_ms"].as_u64() >= Some(2_000), "{line}");
    assert!(line["bytes_sent"].as_u64() < Some(64 << 20), "{line}");
    // One that reads, however slowly, is not: its pauses are longer than that in all.
    let mut tries = 0;
    let path = until("one without a long pause", || {
        tries += 1;
        reads_slowly(&web, format!("/slow/{tries}"))
    });
    assert_eq!(web.request_line(&path)["outcome"], "terminated");
}

/// Reads 64 MiB with eight pauses. `None`: this machine has made one of them longer than a second.
fn reads_slowly(web: &Web, path: String) -> Option<String> {
    let mut slow = web.connect();
    let mut moved = Instant::now();
    slow.write_all(format!("GET {path} HTTP/1.1\r\nHost: app.test\r\n\r\n").as_bytes()).unwrap();
    head(&mut slow);
    let mut piece = vec![0; 1 << 20];
    for number in 0..64 {
        let read = slow.read_exact(&mut piece);
        if number % 8 == 0 {
            thread::sleep(A_WHILE);
        }
        if moved.elapsed() > Duration::from_secs(1) {
            return None;
        }
        read.unwrap();
        moved = Instant::now();
    }
    Some(path)
}

/// While there is memory enough a reader has `body_timeout`, however often it is looked at.
#[test]
fn a_client_that_pauses_is_not_cut() {
    let app = Upstream::serve(|mut stream| {
        answer(&mut stream, "HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n");
        let _ = stream.write_all(&vec![7; 64 << 20]);
    });
    let web = Web::new(app);
    let mut paused = web.connect();
    paused.write_all(b"GET /paused HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    head(&mut paused);
    thread::sleep(Duration::from_secs(4));
    let mut whole = vec![0; 64 << 20];
    paused.read_exact(&mut whole).unwrap();
    assert_eq!(web.request_line("/paused")["outcome"], "terminated");
}

/// A drain waits for what was begun, also where its body pauses.
#[test]
fn a_response_that_pauses_while_draining_is_not_cut() {
    let app = Upstream::serve(|mut stream| {
        answer(&mut stream, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst");
        // Longer than an exchange looks away, shorter than the drain.
        thread::sleep(Duration::from_millis(3600));
        let _ = stream.write_all(b"later");
    });
    let web = Web::with(app, "", "[limits]\ndrain_timeout = \"60s\"\n");
    let mut client = web.connect();
    client.write_all(b"GET /paused HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    head(&mut client);
    web.edge.signal(rustix::process::Signal::TERM);
    let mut whole = [0; 10];
    client.read_exact(&mut whole).unwrap();
    assert_eq!(&whole, b"firstlater");
}

#[test]
fn keys_are_updated_between_requests() {
    let web = Web::new(Upstream::http());
    let mut client = web.connect();
    for round in 0..10 {
        client.conn.refresh_traffic_keys().unwrap();
        assert_eq!(get(&mut client, "/").status, 200, "round {round}");
        if round % 3 == 0 {
            // At rest too.
            client.conn.refresh_traffic_keys().unwrap();
            client.flush().unwrap();
            thread::sleep(A_WHILE);
        }
    }
}

#[test]
fn an_upgrade_behind_tls_is_copied() {
    let pki = Pki::new();
    let leaf = pki.server("app", &["127.0.0.1"], Kind::P256);
    let app = Upstream::tls(leaf, |app| {
        head(app);
        let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                        Upgrade: echo\r\n\r\nhi";
        app.write_all(switched.as_bytes()).unwrap();
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = app.read(&mut piece) {
            app.write_all(&piece[..length]).unwrap();
        }
    });
    let rule = pki.terminate(&format!("https://{}", app.address), "upstream_ca = \"ca.pem\"");
    let edge = Edge::start(&pki.folder, &rule);
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    let ask = "GET /e HTTP/1.1\r\nHost: app.test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    client.write_all(ask.as_bytes()).unwrap();
    assert!(head(&mut client).starts_with("HTTP/1.1 101 "));
    let mut word = [0; 2];
    client.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"hi");
    for length in [1, 1000, 100_000] {
        support::client::echo(&mut client, &noise(length, 3));
    }
    client.conn.send_close_notify();
    client.flush().unwrap();
    assert_eq!(rest(&mut client), b"");
    let line = edge.line("the connection", |line| line["http"].is_null());
    assert_eq!(line["reason"], "client closed", "{line}");
}

/// At rest nothing is held for a client but its socket.
#[test]
fn an_idle_connection_holds_no_upstream() {
    let web = Web::new(Upstream::http());
    // Workers open their sockets when they begin.
    let rest = settled(|| web.edge.sockets());
    let mut clients: Vec<Tls> = (0..20).map(|_| web.connect()).collect();
    for client in &mut clients {
        assert_eq!(get(client, "/").status, 200);
    }
    // Kept connections are let go after four seconds.
    until("the pool to empty", || (web.edge.sockets() == rest + 20).then_some(()));
    for client in &mut clients {
        assert_eq!(get(client, "/").status, 200);
    }
}
