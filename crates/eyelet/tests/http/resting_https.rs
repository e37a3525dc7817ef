//! Responses and WebSockets of `https://` upstreams at rest: the parked connection has the record
//! layer's state of its upstream, and goes on with it, also in another process.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use h2::SendStream;
use rustix::process::Signal;
use rustls::ALL_VERSIONS;
use serde_json::Value;

use crate::originate::{Later, upgrade};
use crate::resting::{ADMIN, EVENTS};
use crate::support::client::{TLS12, TLS13, Versions};
use crate::support::edge;
use crate::support::pki::Kind;
use crate::support::two::{Two, beside, get, run};
use crate::support::upstream::{ServerTls, server_config};
use crate::support::web::{Web, chunks, head, line, switched};
use crate::support::{Pki, Tls, Upstream, expect, need, until};

pub const CHUNKED: &str = "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n";
const UNTIL_CLOSE: &str = "Content-Type: text/event-stream\r\nConnection: close\r\n";
const ASK: &[u8] = b"GET /events HTTP/1.1\r\nHost: app.test\r\n\r\n";
const CHAT: &[u8] = b"GET /chat HTTP/1.1\r\nHost: app.test\r\nConnection: Upgrade\r\n\
                      Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                      Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
/// Masked by zeros, and its echo.
pub const HELLO: [u8; 11] = *b"\x81\x85\0\0\0\0Hello";
pub const HELLO_BACK: [u8; 7] = *b"\x81\x05Hello";
pub const GOING_AWAY: [u8; 4] = [0x88, 2, 3, 0xe9];

/// An edge to an application by hand, behind TLS.
pub struct Scene {
    pub web: Web,
    pub config: Arc<rustls::ServerConfig>,
}

impl Scene {
    fn new(versions: Versions, more: &str) -> Self {
        let pki = Pki::new();
        let config = server_config(pki.server("app", &["127.0.0.1"], Kind::P256), versions);
        let whole = format!("{ADMIN}{more}");
        let web = Web::at(pki, "https", Upstream::by_hand(), "upstream_ca = \"ca.pem\"", &whole);
        Self { web, config }
    }

    /// The next connection of the application, whose head was read.
    pub fn take(&self) -> (ServerTls, String) {
        let session = rustls::ServerConnection::new(self.config.clone()).unwrap();
        let mut app = ServerTls::new(session, self.web.app.take());
        let asked = head(&mut app);
        (app, asked)
    }

    /// A response that has begun, by HTTP/1.1.
    fn begin(&self, fields: &str) -> (Tls, ServerTls) {
        let mut client = self.web.connect();
        client.write_all(ASK).unwrap();
        let (mut app, _) = self.take();
        says(&mut app, format!("HTTP/1.1 200 OK\r\n{fields}\r\n").as_bytes());
        assert!(head(&mut client).starts_with("HTTP/1.1 200 "));
        (client, app)
    }

    /// A WebSocket, by HTTP/1.1.
    fn chat(&self) -> (Tls, ServerTls) {
        let mut client = self.web.connect();
        client.write_all(CHAT).unwrap();
        let (mut app, asked) = self.take();
        says(&mut app, switched(&asked).as_bytes());
        assert!(head(&mut client).starts_with("HTTP/1.1 101 "));
        (client, app)
    }

    /// Waits until so many connections are parked, and no other is there.
    pub fn rest(&self, count: usize) {
        let socket = self.web.pki.folder.path().join("admin.sock");
        until("all to rest", || {
            let mut stream = UnixStream::connect(&socket).ok()?;
            stream.write_all(b"GET /connections HTTP/1.0\r\n\r\n").ok()?;
            let mut said = String::new();
            stream.read_to_string(&mut said).ok()?;
            let listed: Vec<Value> = serde_json::from_str(said.split_once("\r\n\r\n")?.1).ok()?;
            let is_parked = |one: &Value| one["state"] == "parked";
            (listed.len() == count && listed.iter().all(is_parked)).then_some(())
        });
    }

    pub fn metric(&self, name: &str) -> usize {
        let mut stream =
            UnixStream::connect(self.web.pki.folder.path().join("admin.sock")).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        let value = said.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        value.unwrap().parse().unwrap()
    }
}

/// A new process in place of the first, which then ends: all that it had has moved.
pub fn upgrade_whole(web: &mut Web) -> Later {
    let folder = std::fs::read_dir(web.pki.folder.path()).unwrap();
    let mut files = folder.map(|entry| entry.unwrap().path());
    let file = files.find(|path| path.extension().is_some_and(|end| end == "toml")).unwrap();
    let later = upgrade(edge::eyelet(&web.pki.folder).arg("upgrade").arg(file));
    assert!(web.edge.wait_exit_alone().success());
    later
}

pub fn says(app: &mut ServerTls, bytes: &[u8]) {
    app.write_all(bytes).unwrap();
    app.flush().unwrap();
}

pub fn chunk(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

/// An event after each rest, and a KeyUpdate that asks for ours while it rests.
#[test]
fn events_after_each_rest_arrive_once() {
    for versions in [TLS12, TLS13] {
        let scene = Scene::new(versions, "");
        let (mut client, mut app) = scene.begin(CHUNKED);
        for round in 0..3 {
            let event = chunk(&format!("data: {round}\n\n"));
            says(&mut app, &event);
            expect(&mut client, &event);
            scene.rest(1);
            if versions == TLS13 {
                app.conn.refresh_traffic_keys().unwrap();
                app.flush().unwrap();
            }
        }
        // A slot, a form, and what TLS takes of it.
        let bytes = scene.metric("eyelet_parked_memory_bytes");
        assert!(bytes <= 400 + 120, "its slot, and {} bytes beside it", bytes - 240);
        says(&mut app, b"0\r\n\r\n");
        assert_eq!(chunks(&mut client), b"");
        let said = scene.web.request_line("/events");
        assert_eq!((&said["reason"], &said["bytes_sent"]), (&"complete".into(), &27.into()));
        let version = if versions == TLS13 { "1.3" } else { "1.2" };
        assert_eq!(said["upstream_tls"]["version"], version, "{said}");
        // The client's connection serves on.
        client.write_all(b"GET /next HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        let (mut next, _) = scene.take();
        says(&mut next, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        head(&mut client);
        expect(&mut client, b"ok");
    }
}

/// A record that comes in two pieces, of which the first wakes the connection.
#[test]
fn half_a_record_at_rest_waits_for_the_other() {
    let scene = Scene::new(ALL_VERSIONS, "");
    let (mut client, mut app) = scene.begin(CHUNKED);
    scene.rest(1);
    let event = chunk("data: 1\n\n");
    let mut record = Vec::new();
    app.conn.writer().write_all(&event).unwrap();
    app.conn.write_tls(&mut record).unwrap();
    for piece in record.chunks(record.len() / 2 + 1) {
        app.sock.write_all(piece).unwrap();
        std::thread::sleep(crate::support::A_WHILE);
    }
    expect(&mut client, &event);
    scene.rest(1);
    says(&mut app, b"0\r\n\r\n");
    assert_eq!(chunks(&mut client), b"");
}

/// Only close_notify ends a body that its connection's end ends. A record that nobody has sealed
/// ends it at once, and the upstream is told by an alert.
#[test]
fn an_end_at_rest_is_whole_by_close_notify_only() {
    let closes = |app: &mut ServerTls| {
        app.conn.send_close_notify();
        app.flush().unwrap();
    };
    let ends = |app: &mut ServerTls| app.sock.shutdown(Shutdown::Write).unwrap();
    let lies = |app: &mut ServerTls| {
        app.sock.write_all(b"\x17\x03\x03\x00\x20").unwrap();
        app.sock.write_all(&[7; 32]).unwrap();
        let error = app.read(&mut [0]).unwrap_err().to_string();
        assert!(error.contains("BadRecordMac"), "{error}");
    };
    type End = fn(&mut ServerTls);
    let cases: [(&str, End, bool); 5] = [
        (UNTIL_CLOSE, closes, true),
        (UNTIL_CLOSE, ends, false),
        (UNTIL_CLOSE, lies, false),
        (CHUNKED, closes, false),
        (CHUNKED, lies, false),
    ];
    for (nth, (fields, end, is_whole)) in cases.into_iter().enumerate() {
        let scene = Scene::new(ALL_VERSIONS, "");
        let (mut client, mut app) = scene.begin(fields);
        scene.rest(1);
        end(&mut app);
        if is_whole {
            assert_eq!(chunks(&mut client), b"", "{nth}");
            let said = scene.web.request_line("/events");
            assert_eq!(said["reason"], "complete", "{said}");
        } else {
            let mut rest = Vec::new();
            let ended = client.read_to_end(&mut rest);
            let said = scene.web.request_line("/events");
            let is_cut = ended.is_err_and(|error| error.kind() == ErrorKind::UnexpectedEof);
            assert!(is_cut && rest.is_empty(), "{nth}: {rest:?}");
            assert_eq!(said["reason"], "upstream: closed before the response's end", "{said}");
        }
    }
}

/// Frames after each rest, both ways, also one that rests in its middle.
#[test]
fn a_websocket_rests_and_goes_on() {
    let scene = Scene::new(ALL_VERSIONS, "");
    let (mut client, mut app) = scene.chat();
    for _ in 0..2 {
        scene.rest(1);
        client.write_all(&HELLO[..4]).unwrap();
        expect(&mut app, &HELLO[..4]);
        scene.rest(1);
        client.write_all(&HELLO[4..]).unwrap();
        expect(&mut app, &HELLO[4..]);
        scene.rest(1);
        says(&mut app, &HELLO_BACK);
        expect(&mut client, &HELLO_BACK);
    }
    scene.rest(1);
    let bytes = scene.metric("eyelet_parked_memory_bytes");
    assert!(bytes <= 400 + 120, "its slot, and {} bytes beside it", bytes - 240);
    // The end of either stream ends that direction only.
    client.conn.send_close_notify();
    client.flush().unwrap();
    assert_eq!(app.read(&mut [0]).unwrap(), 0);
    says(&mut app, &HELLO_BACK);
    expect(&mut client, &HELLO_BACK);
    app.conn.send_close_notify();
    app.flush().unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    let said = scene.web.edge.line("the connection", |line| line["http"].is_null());
    assert_eq!(said["reason"], "client closed", "{said}");
}

/// Also the time at rest counts, and the time of several rests.
#[test]
fn a_websocket_at_rest_is_bounded_by_idle_timeout() {
    let more = "[limits]\nidle_timeout = \"4s\"\n[http]\nbody_timeout = \"2s\"\n";
    let scene = Scene::new(ALL_VERSIONS, more);
    let (mut client, mut app) = scene.chat();
    scene.rest(1);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    assert_eq!(app.read(&mut [0]).unwrap_or(0), 0);
    let said = scene.web.edge.line("the connection", |line| line["http"].is_null());
    assert_eq!(said["reason"], "idle_timeout", "{said}");
    let ms = said["duration_ms"].as_u64().unwrap();
    assert!((4_000..20_000).contains(&ms), "{ms}");
}

#[test]
fn a_reload_of_idle_timeout_reaches_a_websocket_at_rest() {
    let more = "[limits]\nidle_timeout = \"30m\"\n[http]\nbody_timeout = \"20m\"\n";
    let scene = Scene::new(ALL_VERSIONS, more);
    let (mut client, _app) = scene.chat();
    scene.rest(1);
    scene.web.reload("\"30m\"", "\"3s\"");
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    let said = scene.web.edge.line("the connection", |line| line["http"].is_null());
    assert_eq!(said["reason"], "idle_timeout", "{said}");
}

#[test]
fn a_drain_ends_a_websocket_at_rest_with_1001() {
    let mut scene = Scene::new(ALL_VERSIONS, "[limits]\ndrain_timeout = \"10m\"\n");
    let (mut client, mut app) = scene.chat();
    client.write_all(&HELLO).unwrap();
    expect(&mut app, &HELLO);
    scene.rest(1);
    scene.web.edge.signal(Signal::TERM);
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, GOING_AWAY);
    let mut close = [0; 8];
    app.read_exact(&mut close).unwrap();
    assert_eq!(close[..2], [0x88, 0x82]);
    drop(client);
    assert!(scene.web.edge.wait_exit().success());
}

/// A response and a WebSocket by HTTP/1.1, and both by HTTP/2, all on their way.
#[test]
fn all_move_at_an_upgrade() {
    for versions in [TLS12, TLS13] {
        let mut scene = Scene::new(versions, "");
        let (mut client, mut app) = scene.begin(CHUNKED);
        let (mut chat, mut of_chat) = scene.chat();
        says(&mut app, b"5\r\nab");
        expect(&mut client, b"2\r\nab\r\n");
        of_chat.write_all(&HELLO_BACK[..3]).unwrap();
        of_chat.flush().unwrap();
        expect(&mut chat, &HELLO_BACK[..3]);
        let _later = upgrade_whole(&mut scene.web);
        says(&mut app, b"cde\r\n");
        expect(&mut client, b"3\r\ncde\r\n");
        says(&mut of_chat, &HELLO_BACK[3..]);
        expect(&mut chat, &HELLO_BACK[3..]);
        chat.write_all(&HELLO).unwrap();
        expect(&mut of_chat, &HELLO);
        says(&mut app, b"0\r\n\r\n");
        assert_eq!(chunks(&mut client), b"");
        let said = scene.web.request_line("/events");
        assert_eq!(said["reason"], "complete", "{said}");
        assert!(!said["upstream_tls"]["cipher_suite"].is_null(), "{said}");
    }
}

/// A client's stream of HTTP/2 and its upstream.
struct Begun {
    send: SendStream<Bytes>,
    receive: h2::RecvStream,
    app: ServerTls,
}

impl Begun {
    async fn new(
        scene: &Arc<Scene>,
        (response, send): (h2::client::ResponseFuture, SendStream<Bytes>),
        said: impl FnOnce(&str) -> String,
    ) -> Self {
        let taken = scene.clone();
        let (mut app, asked) = beside(move || taken.take()).await;
        says(&mut app, said(&asked).as_bytes());
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        Self { send, receive: response.into_body(), app }
    }

    async fn heard(&mut self, bytes: &[u8]) {
        let mut heard = Vec::new();
        while heard.len() < bytes.len() {
            let piece = self.receive.data().await.unwrap().unwrap();
            self.receive.flow_control().release_capacity(piece.len()).unwrap();
            heard.extend_from_slice(&piece);
        }
        assert_eq!(heard, bytes);
    }
}

/// Each further upstream of a connection has a session of its own.
#[test]
fn streams_of_http2_rest_and_move() {
    run(async {
        let scene = Arc::new(Scene::new(ALL_VERSIONS, ""));
        let mut two = scene.web.connect_two().await;
        let mut chats = Vec::new();
        for _ in 0..2 {
            let begun = two.chat().await;
            chats.push(Begun::new(&scene, begun, switched).await);
        }
        let mut events = ask(&scene, &mut two).await;
        for _ in 0..2 {
            let rests = scene.clone();
            beside(move || rests.rest(1)).await;
            for chat in &mut chats {
                says(&mut chat.app, &HELLO_BACK);
                chat.heard(&HELLO_BACK).await;
                chat.send.send_data(Bytes::from_static(&HELLO), false).unwrap();
                let mut app = chat.app.sock.try_clone().unwrap();
                beside(move || until_readable(&mut app)).await;
                expect(&mut chat.app, &HELLO);
            }
            says(&mut events.app, &chunk("data: 1\n\n"));
            events.heard(b"data: 1\n\n").await;
        }
        let rests = scene.clone();
        beside(move || rests.rest(1)).await;
        let mut scene = Arc::into_inner(scene).unwrap();
        let (scene, later) = beside(move || {
            let later = upgrade_whole(&mut scene.web);
            (scene, later)
        })
        .await;
        for chat in &mut chats {
            chat.app.conn.refresh_traffic_keys().unwrap();
            says(&mut chat.app, &HELLO_BACK);
            chat.heard(&HELLO_BACK).await;
        }
        says(&mut events.app, b"0\r\n\r\n");
        while let Some(piece) = events.receive.data().await {
            assert_eq!(piece.unwrap(), "");
        }
        let (scene, said) = beside(move || {
            let said = scene.web.request_line("/events");
            (scene, said)
        })
        .await;
        assert_eq!(said["reason"], "complete", "{said}");
        // The later process holds the outputs of the first.
        drop(later);
        drop(scene);
    });
}

async fn ask(scene: &Arc<Scene>, two: &mut Two) -> Begun {
    two.send = two.send.clone().ready().await.unwrap();
    let begun = two.send.send_request(get("/events"), true).unwrap();
    Begun::new(scene, begun, |_| format!("HTTP/1.1 200 OK\r\n{CHUNKED}\r\n")).await
}

/// Waits on a thread, so that the client's connection goes on meanwhile.
fn until_readable(socket: &mut TcpStream) {
    until("the application to hear", || (socket.peek(&mut [0]).ok()? > 0).then_some(()));
}

/// curl and Python's TLS, over two rests, by both versions of HTTP.
#[test]
fn curl_hears_all_events_of_an_https_server() {
    if !need("curl") || !need("python3") {
        return;
    }
    let pki = Pki::new();
    pki.server("app", &["127.0.0.1"], Kind::P256);
    let mut python = Command::new("python3");
    python.args(["-c", EVENTS, &pki.text("app.pem"), &pki.text("app.key")]);
    let python = python.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut python = python.spawn().unwrap();
    let port = line(python.stdout.as_mut().unwrap());
    let mut app = Upstream::http();
    app.address.set_port(port.trim().parse().unwrap());
    let web = Web::at(pki, "https", app, "upstream_ca = \"ca.pem\"", ADMIN);
    for version in ["--http1.1", "--http2"] {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--no-buffer", version]);
        curl.args(["--cacert", &web.pki.text("ca.pem")]);
        curl.args(["--resolve", &format!("app.test:{}:127.0.0.1", web.edge.port())]);
        let said = curl.arg(format!("https://app.test:{}/events", web.edge.port()));
        let said = said.output().unwrap();
        let heard = String::from_utf8_lossy(&said.stdout);
        assert_eq!(heard, "data: 0\n\ndata: 1\n\ndata: 2\n\n", "{version}: {said:?}");
    }
    let _ = python.kill();
    let _ = python.wait();
}
