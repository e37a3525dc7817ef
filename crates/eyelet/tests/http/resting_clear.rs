//! Responses and WebSockets of clients without TLS at rest, for which Eyelet begins TLS: they are
//! parked as those of other clients, and go on in another process, too.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use rustls::ALL_VERSIONS;

use crate::resting::ADMIN;
use crate::resting_https::{
    CHUNKED, GOING_AWAY, HELLO, HELLO_BACK, Scene, chunk, says, upgrade_whole,
};
use crate::support::pki::Kind;
use crate::support::upstream::{ServerTls, server_config};
use crate::support::web::{Web, chunks, head, hear, switched};
use crate::support::{Edge, Pki, Upstream, expect, until};

/// An edge whose plain port leads to an application by hand, behind TLS.
fn scene() -> Scene {
    let (pki, app) = (Pki::new(), Upstream::by_hand());
    let config = server_config(pki.server("app", &["app.test"], Kind::P256), ALL_VERSIONS);
    let whole = format!(
        "workers = 1\n{ADMIN}[[listener]]\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n\
         [[rule]]\naction = \"originate\"\nupstream = \"https://{}\"\n\
         upstream_name = \"app.test\"\nupstream_ca = \"ca.pem\"\n",
        app.address
    );
    let edge = Edge::start_whole(&pki.folder, &whole, |_| ());
    Scene { web: Web { edge, app, pki }, config }
}

/// A response that has begun, or a WebSocket.
fn begin(scene: &Scene, path: &str, more: &str) -> (TcpStream, ServerTls, String) {
    let mut client = scene.web.edge.connect();
    let host = format!("Host: 127.0.0.1:{}", scene.web.edge.port());
    client.write_all(format!("GET {path} HTTP/1.1\r\n{host}\r\n{more}\r\n").as_bytes()).unwrap();
    let (mut app, asked) = scene.take();
    let said = match more {
        "" => format!("HTTP/1.1 200 OK\r\n{CHUNKED}\r\n"),
        _ => switched(&asked),
    };
    says(&mut app, said.as_bytes());
    let heard = head(&mut client);
    (client, app, heard)
}

fn chat(scene: &Scene) -> (TcpStream, ServerTls) {
    let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                  Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let (client, app, heard) = begin(scene, "/chat", fields);
    assert!(heard.starts_with("HTTP/1.1 101 "), "{heard}");
    (client, app)
}

/// Events and a WebSocket, before an upgrade and behind it.
#[test]
fn those_of_clients_without_tls_rest_and_move() {
    let mut scene = scene();
    let (mut events, mut source, heard) = begin(&scene, "/events", "");
    assert!(heard.starts_with("HTTP/1.1 200 "), "{heard}");
    let (mut client, mut app) = chat(&scene);
    let mut later = None;
    for round in 0..3 {
        let event = chunk(&format!("data: {round}\n\n"));
        says(&mut source, &event);
        expect(&mut events, &event);
        client.write_all(&HELLO).unwrap();
        expect(&mut app, &HELLO);
        says(&mut app, &HELLO_BACK);
        expect(&mut client, &HELLO_BACK);
        scene.rest(2);
        for kind in ["event_stream", "websocket"] {
            let name = format!("eyelet_streams{{state=\"resting\",kind=\"{kind}\"}}");
            assert_eq!(scene.metric(&name), 1, "{kind}");
        }
        let bytes = scene.metric("eyelet_parked_memory_bytes");
        assert!(bytes <= 2 * (400 + 120), "{bytes} bytes of two");
        if round == 1 {
            later = Some(upgrade_whole(&mut scene.web));
        }
    }
    says(&mut source, b"0\r\n\r\n");
    assert_eq!(chunks(&mut events), b"");
    let said = scene.web.request_line("/events");
    assert_eq!((&said["reason"], &said["bytes_sent"]), (&"complete".into(), &27.into()), "{said}");
    // The client's connection serves on.
    let host = format!("Host: 127.0.0.1:{}", scene.web.edge.port());
    events.write_all(format!("GET /next HTTP/1.1\r\n{host}\r\n\r\n").as_bytes()).unwrap();
    let (mut next, _) = scene.take();
    says(&mut next, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    head(&mut events);
    expect(&mut events, b"ok");
    app.conn.send_close_notify();
    app.flush().unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "the upstream's end is a FIN");
    client.shutdown(Shutdown::Write).unwrap();
    let is_end =
        |line: &serde_json::Value| line["outcome"] == "originated" && line["event"] != "request";
    until("the line of the WebSocket", || (scene.web.edge.count(is_end) >= 1).then_some(()));
    drop(later);
}

/// `hello` in gzip.
const HELLO_GZIP: [u8; 25] = *b"\x1f\x8b\x08\0\0\0\0\0\x02\x03\xcb\x48\xcd\xc9\xc9\x07\0\
                               \x86\xa6\x10\x36\x05\0\0\0";

/// A request whose head its upstream has.
fn ask(scene: &Scene, request: &str) -> (TcpStream, ServerTls, String) {
    let mut client = scene.web.edge.connect();
    let host = format!("Host: localhost:{}", scene.web.edge.port());
    client.write_all(request.replace("HOST", &host).as_bytes()).unwrap();
    let (app, asked) = scene.take();
    (client, app, asked)
}

/// A request that waits, and an upload that pauses, before their responses. These are then
/// translated and decoded as ever.
#[test]
fn requests_of_clients_without_tls_rest_and_move_before_their_responses() {
    let mut scene = scene();
    let (mut poll, mut of_poll, asked) = ask(&scene, "GET /wait HTTP/1.1\r\nHOST\r\n\r\n");
    let upload = "PUT /file HTTP/1.1\r\nHOST\r\nContent-Length: 10\r\n\r\nhell";
    let (mut upload, mut of_upload, _) = ask(&scene, upload);
    expect(&mut of_upload, b"hell");
    scene.rest(2);
    for kind in ["waiting", "upload"] {
        let name = format!("eyelet_streams{{state=\"resting\",kind=\"{kind}\"}}");
        assert_eq!(scene.metric(&name), 1, "{kind}");
    }
    let bytes = scene.metric("eyelet_parked_memory_bytes");
    assert!(bytes <= 2 * (600 + 120), "{bytes} bytes of two");
    let later = upgrade_whole(&mut scene.web);
    upload.write_all(b"o file").unwrap();
    expect(&mut of_upload, b"o file");
    let host = asked.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let there = format!("Location: https://{host}/there\r\n");
    let coded = format!("Content-Encoding: gzip\r\nContent-Length: {}\r\n", HELLO_GZIP.len());
    for app in [&mut of_poll, &mut of_upload] {
        let said = format!("HTTP/1.1 201 Created\r\n{there}{coded}\r\n");
        says(app, &[said.as_bytes(), &HELLO_GZIP].concat());
    }
    for (client, path) in [(&mut poll, "/wait"), (&mut upload, "/file")] {
        let heard = hear(client, "GET");
        let url = format!("http://localhost:{}/there", scene.web.edge.port());
        assert_eq!(heard.field("location"), Some(&*url), "{path}");
        assert_eq!((heard.field("content-encoding"), &*heard.body), (None, &b"hello"[..]));
        let said = scene.web.request_line(path);
        assert_eq!((&said["reason"], &said["http"]["status"]), (&"complete".into(), &201.into()));
    }
    drop(later);
}

/// Its upstream closes the kept connection without a response.
#[test]
fn a_request_without_tls_is_sent_again_after_it_has_moved() {
    const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let mut scene = scene();
    let (mut client, mut app, _) = ask(&scene, "GET /first HTTP/1.1\r\nHOST\r\n\r\n");
    says(&mut app, OK);
    assert_eq!(hear(&mut client, "GET").body, b"ok");
    let host = format!("Host: localhost:{}", scene.web.edge.port());
    client.write_all(format!("GET /wait HTTP/1.1\r\n{host}\r\n\r\n").as_bytes()).unwrap();
    let asked = head(&mut app);
    let later = upgrade_whole(&mut scene.web);
    app.conn.send_close_notify();
    app.flush().unwrap();
    drop(app);
    let (mut app, again) = scene.take();
    assert_eq!(again, asked);
    says(&mut app, OK);
    assert_eq!(hear(&mut client, "GET").body, b"ok");
    assert_eq!(scene.web.request_line("/wait")["reason"], "complete");
    drop(later);
}

/// An operator ends both where they rest: the WebSocket by close frames, the response between two
/// events.
#[test]
fn those_of_clients_without_tls_end_where_they_rest() {
    let scene = scene();
    let (mut events, mut source, _) = begin(&scene, "/events", "");
    let (mut client, mut app) = chat(&scene);
    scene.rest(2);
    let socket = scene.web.pki.folder.path().join("admin.sock");
    for one in crate::resting::listed(&socket).unwrap() {
        let id = one["id"].as_str().unwrap();
        assert_eq!(one["kind"], "cleartext", "{one}");
        crate::resting::admin(&socket, &format!("DELETE /connections/{id}")).unwrap();
    }
    expect(&mut client, &GOING_AWAY);
    let mut close = [0; 8];
    app.read_exact(&mut close).unwrap();
    assert_eq!(close[..2], [0x88, 0x82]);
    drop(app);
    // Between two events.
    assert_eq!(chunks(&mut events), b"");
    let _ = source.read(&mut [0]);
    assert_eq!(scene.web.request_line("/events")["reason"], "complete");
    let is_end = |line: &serde_json::Value| line["reason"] == "ended by an operator";
    until("both lines", || (scene.web.edge.count(is_end) == 2).then_some(()));
}
