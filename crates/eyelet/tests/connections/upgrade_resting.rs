//! Exchanges at rest at an upgrade: they move to the new process at whatever byte they are.

use std::io::{Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};

use super::upgrade::Scene;
use crate::support::client::TLS13;
use crate::support::client::echo;
use crate::support::two::{Two, get, hears, run};
use crate::support::web::{chunks, head, hear, switched};
use crate::support::{SOON, Tls, Upstream, expect, noise, until};

const HELD: &str = "workers = 1\n[limits]\ndrain_timeout = \"10m\"\n";

/// A response that has begun: its client, and its upstream.
fn begin(scene: &Scene, fields: &str) -> (Tls, TcpStream) {
    let mut client = scene.http();
    client.write_all(b"GET /events HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    let mut app = scene.http.take();
    head(&mut app);
    app.write_all(format!("HTTP/1.1 200 OK\r\n{fields}\r\n").as_bytes()).unwrap();
    assert!(head(&mut client).starts_with("HTTP/1.1 200 "));
    (client, app)
}

/// An event stream, a download in the middle of its body, and one that its end ends.
#[test]
fn responses_move_at_every_upgrade_and_lose_nothing() {
    let mut scene = Scene::to(Upstream::by_hand(), HELD);
    let (mut events, mut of_events) = begin(&scene, "Transfer-Encoding: chunked\r\n");
    let (mut download, mut of_download) = begin(&scene, "Content-Length: 15\r\n");
    let (mut endless, mut of_endless) = begin(&scene, "Connection: close\r\n");
    for round in 0..3 {
        // It rests within a chunk and behind one, whatever the client has seen of it.
        for (piece, heard) in [("5\r\nab", "2\r\nab\r\n"), ("cde\r\n", "3\r\ncde\r\n")] {
            of_events.write_all(piece.as_bytes()).unwrap();
            expect(&mut events, heard.as_bytes());
        }
        of_download.write_all(b"12345").unwrap();
        expect(&mut download, b"12345");
        of_endless.write_all(b"more").unwrap();
        expect(&mut endless, b"4\r\nmore\r\n");
        if round < 2 {
            scene.upgrade_whole();
        }
    }
    of_events.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(chunks(&mut events), b"");
    drop(of_endless);
    assert_eq!(chunks(&mut endless), b"");
    let lines = |path: &str, what: &str| {
        let of_path = |line: &serde_json::Value| line["http"]["path"] == path;
        scene.edge.line(what, |line| of_path(line) && line["reason"] == "complete")
    };
    let said = lines("/events", "a response");
    assert_eq!(said["http"]["status"], 200, "{said}");
    assert_eq!(said["rule"], "app", "{said}");
    // The client's connection serves on.
    for client in [&mut events, &mut download] {
        client.write_all(b"GET /next HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        let mut app = scene.http.take();
        head(&mut app);
        app.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        head(client);
        expect(client, b"ok");
    }
    lines("/next", "the next request");
}

/// All others move to a process that does not read the newest messages; a response stays.
#[test]
fn a_response_stays_where_the_new_process_does_not_read_it() {
    if !crate::support::program::need("python3") {
        return;
    }
    let mut scene = Scene::to(Upstream::by_hand(), HELD);
    let (mut events, mut app) = begin(&scene, "Transfer-Encoding: chunked\r\n");
    let mut tcp = scene.tcp(TLS13);
    echo(&mut tcp, b"before");
    assert_eq!(super::upgrade_formats::upgrade_to(&mut scene, "before6"), 1, "the other one");
    scene.edge.wait_log("does not read version 6 of connections");
    echo(&mut tcp, b"after");
    app.write_all(b"1\r\na\r\n0\r\n\r\n").unwrap();
    assert_eq!(chunks(&mut events), b"a");
    // The connection is at rest then, and moves: the old process has nothing left.
    assert!(scene.edge.wait_exit_alone().success(), "{}", scene.edge.log());
    echo(&mut tcp, b"still");
}

/// The bytes that the client has not taken go along, and the rest of the upstream's follow them.
#[test]
fn a_download_moves_while_its_client_is_slow() {
    const BODY_BYTES: usize = 24 << 20;
    const PART_BYTES: usize = 4 << 20;
    let app = Upstream::serve(|mut stream| {
        head(&mut stream);
        let said = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY_BYTES}\r\n\r\n");
        let sent = stream.write_all(said.as_bytes());
        let _ = sent.and_then(|()| stream.write_all(&noise(BODY_BYTES, 7)));
        // The edge closes first.
        let _ = stream.read(&mut [0]);
    });
    let mut scene = Scene::to(app, HELD);
    let mut client = scene.http();
    client.write_all(b"GET /download HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    head(&mut client);
    let (mut got, mut part) = (Vec::new(), vec![0; PART_BYTES]);
    for _ in 0..3 {
        client.read_exact(&mut part).unwrap();
        got.extend_from_slice(&part);
        scene.upgrade_whole();
    }
    part.resize(BODY_BYTES - got.len(), 0);
    client.read_exact(&mut part).unwrap();
    got.extend_from_slice(&part);
    assert!(got == noise(BODY_BYTES, 7), "a byte is wrong");
    let is_complete = |line: &serde_json::Value| line["reason"] == "complete";
    let said = scene.edge.line("the download", is_complete);
    assert_eq!(said["bytes_sent"], BODY_BYTES, "{said}");
}

/// A stream by HTTP/2 that has begun, and its upstream.
async fn begin_two(
    scene: &Scene,
    (response, send): (ResponseFuture, SendStream<Bytes>),
    said: impl FnOnce(&str) -> String + Send + 'static,
) -> (RecvStream, SendStream<Bytes>, TcpStream) {
    // What the edge asks comes without the client.
    tokio::time::sleep(SOON / 600).await;
    let mut app = scene.http.take();
    let asked = head(&mut app);
    app.write_all(said(&asked).as_bytes()).unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    (response.into_body(), send, app)
}

/// WebSockets and event streams of one HTTP/2 connection move with it, and lose nothing.
#[test]
fn streams_by_http2_move_at_every_upgrade() {
    const EVENTS: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut scene = Scene::to(Upstream::by_hand(), HELD);
    run(async {
        let mut two = Two::connect(&scene.pki, scene.address()).await;
        let begun = two.chat().await;
        let (mut chat, mut send, mut of_chat) = begin_two(&scene, begun, switched).await;
        two.send = two.send.clone().ready().await.unwrap();
        let begun = two.send.send_request(get("/events"), true).unwrap();
        let (mut events, _, mut of_events) = begin_two(&scene, begun, |_| EVENTS.to_owned()).await;
        for round in 0..3 {
            // A half frame and a half chunk.
            of_chat.write_all(b"\x01\x05ab").unwrap();
            hears(&mut chat, "\u{1}\u{5}ab").await;
            for (piece, text) in [("5\r\nab", "ab"), ("cde\r\n", "cde")] {
                of_events.write_all(piece.as_bytes()).unwrap();
                hears(&mut events, text).await;
            }
            // Its answer goes by the connection's task.
            tokio::time::sleep(SOON / 300).await;
            if round < 2 {
                scene.upgrade_whole();
            }
            send.send_data("from the client".into(), false).unwrap();
            tokio::time::sleep(SOON / 300).await;
            expect(&mut of_chat, b"from the client");
        }
        of_events.write_all(b"0\r\n\r\n").unwrap();
        while let Some(piece) = events.data().await {
            assert_eq!(piece.unwrap(), "");
        }
    });
    // The first process says what it has given away: each stream, and not their connection.
    scene.edge.wait_log(", or those after it: 1 response, 1 WebSocket");
    let said = scene.edge.line("the event stream", |line| line["http"]["path"] == "/events");
    assert_eq!((&said["reason"], &said["rule"]), (&"complete".into(), &"app".into()), "{said}");
    assert_eq!(said["bytes_to_client"], 15, "{said}");
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// A request, up to where it waits.
fn ask(scene: &Scene, method: &str, fields: &str) -> (Tls, TcpStream) {
    let mut client = scene.http();
    let request = format!("{method} /wait HTTP/1.1\r\nHost: app.test\r\n{fields}\r\n");
    client.write_all(request.as_bytes()).unwrap();
    let mut app = scene.http.take();
    head(&mut app);
    (client, app)
}

/// Long polls, and uploads in the middle of their bodies, before and behind the head of the
/// response.
#[test]
fn requests_that_wait_move_at_every_upgrade_and_lose_nothing() {
    const PART_BYTES: usize = 100_000;
    let body = noise(3 * PART_BYTES, 11);
    let mut scene = Scene::to(Upstream::by_hand(), HELD);
    let (mut poll, mut of_poll) = ask(&scene, "GET", "");
    let (mut head_poll, mut of_head_poll) = ask(&scene, "HEAD", "");
    let (mut upload, mut of_upload) = ask(&scene, "PUT", "Content-Length: 300000\r\n");
    let (mut early, mut of_early) = ask(&scene, "POST", "Content-Length: 300000\r\n");
    of_early.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe").unwrap();
    head(&mut early);
    expect(&mut early, b"he");
    let (mut chunked, mut of_chunked) = ask(&scene, "POST", "Transfer-Encoding: chunked\r\n");
    for (round, part) in body.chunks(PART_BYTES).enumerate() {
        for (client, app) in [(&mut upload, &mut of_upload), (&mut early, &mut of_early)] {
            let mut heard = vec![0; PART_BYTES];
            client.write_all(part).unwrap();
            app.read_exact(&mut heard).unwrap();
            assert!(heard == part, "a byte is wrong");
        }
        // It rests within a chunk.
        chunked.write_all(b"5\r\nab").unwrap();
        expect(&mut of_chunked, b"2\r\nab\r\n");
        if round < 2 {
            scene.upgrade_whole();
        }
        chunked.write_all(b"cde\r\n").unwrap();
        expect(&mut of_chunked, b"3\r\ncde\r\n");
    }
    scene.edge.wait_log(", or those after it: 1 response, 2 uploads, 2 requests that wait");
    chunked.write_all(b"0\r\n\r\n").unwrap();
    expect(&mut of_chunked, b"0\r\n\r\n");
    of_head_poll.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").unwrap();
    assert_eq!(hear(&mut head_poll, "HEAD").status, 200);
    for (client, app) in
        [(&mut poll, &mut of_poll), (&mut upload, &mut of_upload), (&mut chunked, &mut of_chunked)]
    {
        app.write_all(OK).unwrap();
        assert_eq!(hear(client, "GET").body, b"hello");
    }
    of_early.write_all(b"llo").unwrap();
    expect(&mut early, b"llo");
    // The clients' connections serve on, but for the one whose response came before its body: its
    // next request might not follow that. Each line is written once, and the rule is known.
    for client in [&mut poll, &mut head_poll, &mut upload, &mut chunked] {
        client.write_all(b"GET /next HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        let mut app = scene.http.take();
        head(&mut app);
        app.write_all(OK).unwrap();
        assert_eq!(hear(client, "GET").body, b"hello");
    }
    let is_line = |line: &serde_json::Value| {
        line["http"]["path"] == "/wait" && line["reason"] == "complete" && line["rule"] == "app"
    };
    until("all lines", || (scene.edge.count(is_line) == 5).then_some(()));
}

/// The deadline moves along, whatever the timeout of bodies is.
#[test]
fn a_long_poll_that_has_moved_is_bounded_by_upstream_timeout() {
    let timeouts = "[http]\nupstream_timeout = \"12s\"\nbody_timeout = \"5s\"\n";
    let mut scene = Scene::to(Upstream::by_hand(), &format!("{HELD}{timeouts}"));
    let (mut poll, _app) = ask(&scene, "GET", "");
    scene.upgrade();
    assert_eq!(hear(&mut poll, "GET").status, 504);
    let said = scene.edge.line("the deadline", |line| line["http"]["status"] == 504);
    let ms = said["duration_ms"].as_u64().unwrap();
    assert!((12_000..60_000).contains(&ms), "{said}");
}
