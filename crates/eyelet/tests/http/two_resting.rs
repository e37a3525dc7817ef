//! Streams without an end, by HTTP/2: once nothing of any stream moves, the connection is parked
//! with the upstreams of all. Bytes of any side have it go on, as if it had never rested.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::resting::{ADMIN, admin, listed};
use crate::resting_https::upgrade_whole;
use crate::support::client::Offer;
use crate::support::program::need;
use crate::support::two::{Two, beside, get, run};
use crate::support::web::{Web, head, line, switched};
use crate::support::{A_WHILE, Upstream, expect, until};

const EVENTS: &str = "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n";

/// An edge to an application by hand.
#[derive(Clone)]
pub struct Scene {
    pub web: Arc<Web>,
}

/// A stream of a client, and its upstream.
pub struct Begun {
    pub send: SendStream<Bytes>,
    pub receive: RecvStream,
    pub app: TcpStream,
}

impl Scene {
    pub fn new(more: &str) -> Self {
        let web = Web::with(Upstream::by_hand(), "", &format!("{ADMIN}{more}"));
        Self { web: Arc::new(web) }
    }

    /// Begins a WebSocket.
    pub async fn chat(&self, two: &mut Two) -> Begun {
        let begun = two.chat().await;
        self.begin(begun, switched).await
    }

    /// Begins a response with these fields.
    async fn ask(&self, two: &mut Two, fields: &'static str) -> Begun {
        let said = move |_: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        two.send = two.send.clone().ready().await.unwrap();
        let begun = two.send.send_request(get("/events"), true).unwrap();
        self.begin(begun, said).await
    }

    async fn begin(
        &self,
        (response, send): (ResponseFuture, SendStream<Bytes>),
        said: impl FnOnce(&str) -> String,
    ) -> Begun {
        let web = self.web.clone();
        let take = move || {
            let mut app = web.app.take();
            let asked = head(&mut app);
            (app, asked)
        };
        let (mut app, asked) = beside(take).await;
        app.write_all(said(&asked).as_bytes()).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        Begun { send, receive: response.into_body(), app }
    }

    /// Waits until so many connections are parked, and no other is there.
    pub async fn rest(&self, count: usize) {
        let socket = self.web.pki.folder.path().join("admin.sock");
        let parked = move || {
            until("all to rest", || {
                let listed = listed(&socket)?;
                let is_parked = |one: &Value| one["state"] == "parked";
                (listed.len() == count && listed.iter().all(is_parked)).then_some(())
            });
        };
        beside(parked).await;
    }

    /// The value of a metric.
    pub fn metric(&self, name: &str) -> usize {
        let socket = self.web.pki.folder.path().join("admin.sock");
        let all = admin(&socket, "GET /metrics").unwrap();
        let value = all.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        value.unwrap().parse().unwrap()
    }
}

impl Begun {
    /// The upstream says something, which the client hears.
    async fn hear(&mut self, text: &str) {
        self.app.write_all(text.as_bytes()).unwrap();
        self.heard(text).await;
    }

    async fn heard(&mut self, text: &str) {
        let mut heard = Vec::new();
        while heard.len() < text.len() {
            let piece = self.receive.data().await.unwrap().unwrap();
            self.receive.flow_control().release_capacity(piece.len()).unwrap();
            heard.extend_from_slice(&piece);
        }
        assert_eq!(String::from_utf8_lossy(&heard), text);
    }

    /// The response ends properly, and nothing comes before.
    async fn ended(&mut self) {
        while let Some(piece) = self.receive.data().await {
            assert_eq!(piece.unwrap(), "");
        }
    }

    /// An event, in a chunk.
    async fn event(&mut self, text: &str) {
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        self.app.write_all(chunk.as_bytes()).unwrap();
        self.heard(text).await;
    }

    /// The client says something, which the upstream hears.
    async fn say(&mut self, text: &'static str) {
        self.send.send_data(text.into(), false).unwrap();
        let mut app = self.app.try_clone().unwrap();
        beside(move || expect(&mut app, text.as_bytes())).await;
    }
}

/// Of either kind, on one connection: bytes both ways, a part of a frame, a new request, and the
/// end of each by either side.
#[test]
fn streams_of_all_kinds_rest_and_go_on() {
    let scene = Scene::new("");
    run(async {
        let mut two = scene.web.connect_two().await;
        let mut chat = scene.chat(&mut two).await;
        chat.hear("first").await;
        scene.rest(1).await;
        chat.hear("a frame's part \u{1}\u{5}").await;
        scene.rest(1).await;
        chat.say("ping").await;
        let mut events = scene.ask(&mut two, EVENTS).await;
        let mut download = scene.ask(&mut two, "Content-Length: 12\r\n").await;
        download.hear("hello ").await;
        for round in 0..2 {
            scene.rest(1).await;
            events.event(&format!("data: {round}\n\n")).await;
            chat.say("again").await;
        }
        scene.rest(1).await;
        let one = listed(&scene.web.pki.folder.path().join("admin.sock")).unwrap().remove(0);
        assert_eq!(one["resting"], json!({"event_stream": 1, "response": 1, "websocket": 1}));
        let kinds = |nth: usize| one["requests"][nth]["kind"].clone();
        assert_eq!([0, 1, 2].map(kinds), ["websocket", "event_stream", "response"], "{one}");
        let first = &one["requests"][0];
        assert_eq!(first["path"], "/chat", "{one}");
        assert_eq!(one["upstream"], scene.web.app.address.to_string(), "{one}");
        assert!((0..3).all(|nth| one["requests"][nth]["upstream"].is_null()), "{one}");
        assert_eq!(scene.metric("eyelet_resting_connections"), 1);
        let kinds = |state: &str| {
            ["event_stream", "response", "websocket"].map(|kind| {
                scene.metric(&format!("eyelet_streams{{state=\"{state}\",kind=\"{kind}\"}}"))
            })
        };
        assert_eq!((kinds("resting"), kinds("serving")), ([1; 3], [0; 3]));
        download.hear("rested").await;
        download.ended().await;
        scene.rest(1).await;
        events.app.write_all(b"0\r\n\r\n").unwrap();
        events.ended().await;
        scene.rest(1).await;
        chat.send.send_data("bye".into(), true).unwrap();
        assert_eq!(rest_heard(&chat.app).await, "bye");
        chat.app.shutdown(Shutdown::Write).unwrap();
        chat.ended().await;
    });
    let said = scene.web.request_line("/chat");
    assert_eq!(said["reason"], "switched protocols", "{said}");
    assert_eq!(said["upstream"], scene.web.app.address.to_string(), "{said}");
    assert_eq!(said["bytes_to_client"], 5 + 17, "{said}");
    let is_event = |line: &Value| line["http"]["path"] == "/events" && line["reason"] == "complete";
    until("both lines", || (scene.web.edge.count(is_event) == 2).then_some(()));
}

/// The client of a WebSocket has ended its side, and its upstream goes on: it rests, and moves.
#[test]
fn a_websocket_whose_client_has_ended_rests_and_moves() {
    let mut scene = Scene::new("");
    let mut later = None;
    run(async {
        let mut two = scene.web.connect_two().await;
        let mut chat = scene.chat(&mut two).await;
        chat.hear("first").await;
        chat.send.send_data("bye".into(), true).unwrap();
        assert_eq!(rest_heard(&chat.app).await, "bye");
        for text in ["one", "two"] {
            scene.rest(1).await;
            let name = "eyelet_streams{state=\"resting\",kind=\"websocket\"}";
            assert_eq!(scene.metric(name), 1);
            chat.hear(text).await;
            if later.is_none() {
                scene.rest(1).await;
                later = Some(upgrade_whole(Arc::get_mut(&mut scene.web).unwrap()));
            }
        }
        chat.app.shutdown(Shutdown::Write).unwrap();
        chat.ended().await;
    });
    let said = scene.web.request_line("/chat");
    assert_eq!(
        (&said["reason"], &said["bytes_to_client"]),
        (&"switched protocols".into(), &11.into())
    );
    drop(later);
}

/// The upstream of a WebSocket has ended its side, and its client goes on: it rests, and moves. The
/// end is reported each time that the socket is registered, and wakes no stream.
#[test]
fn a_websocket_whose_upstream_has_ended_rests_and_moves() {
    let mut scene = Scene::new("");
    let mut later = None;
    run(async {
        let mut two = scene.web.connect_two().await;
        let (mut chat, mut events) =
            (scene.chat(&mut two).await, scene.ask(&mut two, EVENTS).await);
        chat.hear("first").await;
        chat.app.shutdown(Shutdown::Write).unwrap();
        chat.ended().await;
        for (text, event) in [("one", "data: 1\n\n"), ("two", "data: 2\n\n")] {
            scene.rest(1).await;
            let name = "eyelet_streams{state=\"resting\",kind=\"websocket\"}";
            assert_eq!(scene.metric(name), 1);
            if later.is_none() {
                later = Some(upgrade_whole(Arc::get_mut(&mut scene.web).unwrap()));
                scene.rest(1).await;
            }
            chat.send.send_data(text.into(), false).unwrap();
            assert_eq!(read_exactly(&chat.app, text.len()).await, text);
            scene.rest(1).await;
            events.event(event).await;
        }
        chat.send.send_data("bye".into(), true).unwrap();
        assert_eq!(rest_heard(&chat.app).await, "bye");
    });
    let said = scene.web.request_line("/chat");
    assert_eq!(
        (&said["reason"], &said["bytes_to_client"]),
        (&"switched protocols".into(), &5.into())
    );
    drop(later);
}

/// The client's reset, the upstream's, and the end of the client's connection.
#[test]
fn an_end_of_either_side_is_passed_on_from_rest() {
    let scene = Scene::new("");
    run(async {
        let mut two = scene.web.connect_two().await;
        let (mut one, mut other) = (scene.chat(&mut two).await, scene.ask(&mut two, EVENTS).await);
        let mut third = scene.ask(&mut two, EVENTS).await;
        scene.rest(1).await;
        one.send.send_reset(h2::Reason::CANCEL);
        assert_eq!(gone(one.app).await, 0);
        scene.rest(1).await;
        drop(other.app);
        let cut = other.receive.data().await.unwrap().unwrap_err();
        assert_eq!(cut.reason(), Some(h2::Reason::INTERNAL_ERROR), "{cut}");
        scene.rest(1).await;
        third.event("data: still\n\n").await;
        scene.rest(1).await;
        two.driven.abort();
        // A client that has ended its connection may still read: only its reset says otherwise.
        third.app.write_all(b"1\r\na\r\n").unwrap();
        assert_eq!(gone(third.app).await, 0);
    });
    let is_line = |line: &Value| line["http"]["status"] == 200;
    until("all lines", || (scene.web.edge.count(is_line) == 3).then_some(()));
}

/// Returns what an application hears until its client has ended.
async fn rest_heard(app: &TcpStream) -> String {
    let mut app = app.try_clone().unwrap();
    let heard = beside(move || {
        let mut heard = String::new();
        app.read_to_string(&mut heard).map(|_| heard)
    });
    heard.await.unwrap()
}

/// Returns the next bytes that an application hears.
async fn read_exactly(app: &TcpStream, len: usize) -> String {
    let mut app = app.try_clone().unwrap();
    let heard = beside(move || {
        let mut heard = vec![0; len];
        app.read_exact(&mut heard).map(|()| String::from_utf8(heard).unwrap())
    });
    heard.await.unwrap()
}

/// Returns the number of bytes that the upstream reads when its client is gone.
async fn gone(mut app: TcpStream) -> usize {
    beside(move || app.read(&mut [0; 64]).unwrap_or(0)).await
}

/// Its frames are answered where they are, and no stream's time begins anew by them.
#[test]
fn pings_do_not_wake_it_and_a_stream_is_bounded_by_its_own_time() {
    let scene = Scene::new("[limits]\nidle_timeout = \"6s\"\n[http]\nbody_timeout = \"1s\"\n");
    run(async {
        let config = Offer { alpn: &["h2"], ..Offer::new(&scene.web.pki) }.config();
        let socket = tokio::net::TcpStream::connect(scene.web.edge.address()).await.unwrap();
        let name = "app.test".try_into().unwrap();
        let tls = tokio_rustls::TlsConnector::from(config).connect(name, socket).await.unwrap();
        let (send, mut connection) = h2::client::handshake(tls).await.unwrap();
        let mut pings = connection.ping_pong().unwrap();
        let mut two = Two { send, driven: tokio::spawn(connection) };
        let mut events = scene.ask(&mut two, EVENTS).await;
        events.event("data: 1\n\n").await;
        scene.rest(1).await;
        let ping = tokio::spawn(async move {
            while pings.ping(h2::Ping::opaque()).await.is_ok() {
                tokio::time::sleep(A_WHILE).await;
            }
        });
        let cut = events.receive.data().await.unwrap().unwrap_err();
        assert_eq!(cut.reason(), Some(h2::Reason::INTERNAL_ERROR), "{cut}");
        ping.abort();
    });
    let said = scene.web.request_line("/events");
    assert_eq!(said["reason"], "idle_timeout", "{said}");
}

/// The deadline of each stream follows a reload, although the connection has one for all.
#[test]
fn a_reload_of_body_timeout_reaches_streams_at_rest() {
    let scene = Scene::new("[http]\nbody_timeout = \"30m\"\n");
    run(async {
        let mut two = scene.web.connect_two().await;
        let mut chat = scene.chat(&mut two).await;
        let mut file = scene.ask(&mut two, "Content-Length: 12\r\n").await;
        scene.rest(1).await;
        scene.web.reload("\"30m\"", "\"3s\"");
        let cut = file.receive.data().await.unwrap().unwrap_err();
        assert_eq!(cut.reason(), Some(h2::Reason::INTERNAL_ERROR), "{cut}");
        scene.rest(1).await;
        chat.hear("\u{1}\u{1}a").await;
    });
    assert_eq!(scene.web.request_line("/events")["reason"], "body_timeout");
}

/// A reload that keeps the rule changes nothing. One that removes it ends a WebSocket by close
/// frames, and an event stream goes on to its end.
#[test]
fn a_reload_finds_streams_at_rest() {
    let scene = Scene::new("");
    let pki = &scene.web.pki;
    let mut files = std::fs::read_dir(pki.folder.path()).unwrap().map(|file| file.unwrap().path());
    let path = files.find(|path| path.extension().is_some_and(|end| end == "toml")).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let reload = |text: &str, said: &str| {
        std::fs::write(&path, text).unwrap();
        scene.web.edge.signal(Signal::HUP);
        scene.web.edge.wait_log(said);
    };
    run(async {
        let mut two = scene.web.connect_two().await;
        let mut chat = scene.chat(&mut two).await;
        let mut events = scene.ask(&mut two, EVENTS).await;
        events.event("data: 1\n\n").await;
        scene.rest(1).await;
        reload(
            &text.replace("[admin]", "[http]\nbody_timeout = \"50s\"\n[admin]"),
            "configuration 2 serves",
        );
        chat.hear("\u{1}\u{1}a").await;
        events.event("data: 2\n\n").await;
        scene.rest(1).await;
        let removed = text.replace("name = \"app\"", "name = \"other\"");
        reload(&format!("reload_ends_removed = true\n{removed}"), "configuration 3 serves");
        let close = chat.receive.data().await.unwrap().unwrap();
        assert_eq!(close[..], [0x88, 2, 3, 0xe9]);
        events.event("data: 3\n\n").await;
        events.app.write_all(b"0\r\n\r\n").unwrap();
        events.ended().await;
    });
}

/// A drain ends a WebSocket by close frames and an event stream between two events.
#[test]
fn a_drain_ends_streams_at_rest_properly() {
    let scene = Scene::new("[limits]\ndrain_timeout = \"12s\"\n");
    run(async {
        let mut two = scene.web.connect_two().await;
        let mut chat = scene.chat(&mut two).await;
        let mut events = scene.ask(&mut two, EVENTS).await;
        events.event("data: 1\n\n").await;
        scene.rest(1).await;
        scene.web.edge.signal(Signal::TERM);
        // Between two events.
        events.ended().await;
        let close = chat.receive.data().await.unwrap().unwrap();
        assert_eq!(close[..], [0x88, 2, 3, 0xe9]);
    });
    let mut web = Arc::into_inner(scene.web).unwrap();
    assert!(web.edge.wait_exit_alone().success());
    let is_line = |line: &Value| line["http"]["status"] == 200;
    assert_eq!(web.edge.count(is_line), 2);
}

/// An operator ends the connection where it rests: each request has its line, and no upstream is
/// left waiting.
#[test]
fn an_operator_ends_streams_at_rest() {
    let scene = Scene::new("");
    let socket = scene.web.pki.folder.path().join("admin.sock");
    run(async {
        let mut two = scene.web.connect_two().await;
        let mut chat = scene.chat(&mut two).await;
        let mut events = scene.ask(&mut two, EVENTS).await;
        events.event("data: 1\n\n").await;
        scene.rest(1).await;
        let id = listed(&socket).unwrap()[0]["id"].as_str().unwrap().to_owned();
        admin(&socket, &format!("DELETE /connections/{id}")).unwrap();
        // The WebSocket ends properly on both sides.
        let close = chat.receive.data().await.unwrap().unwrap();
        assert_eq!(close[..], [0x88, 2, 3, 0xe9]);
        // The connection's end may come before the client has seen that of the stream.
        assert!(chat.receive.data().await.is_none_or(|piece| piece.is_err()));
        let close = beside(move || {
            let mut close = Vec::new();
            chat.app.read_to_end(&mut close).map(|_| close)
        });
        let close = close.await.unwrap();
        assert_eq!((close.len(), &close[..2]), (8, &[0x88, 0x82][..]));
        assert_eq!(gone(events.app).await, 0);
        assert!(events.receive.data().await.is_none_or(|piece| piece.is_err()));
    });
    for (path, bytes) in [("/chat", 0), ("/events", 9)] {
        let said = scene.web.request_line(path);
        assert_eq!(said["reason"], "ended by an operator", "{said}");
        assert_eq!((&said["outcome"], &said["http"]["status"]), (&"failed".into(), &200.into()));
        assert_eq!(said["bytes_to_client"], bytes, "{said}");
        assert_eq!(said["upstream"], scene.web.app.address.to_string(), "{said}");
    }
    let is_end = |line: &Value| line["event"] != "request" && line["outcome"] == "terminated";
    until("the connection's line", || (scene.web.edge.count(is_end) == 1).then_some(()));
}

/// An event has the task of its stream go on. Each other stream rests on beside it, and hears its
/// own events.
#[test]
fn an_event_wakes_one_of_many_streams() {
    const STREAMS: usize = 100;
    /// Fewer than ten streams with a task count. All of them would count over 3 MiB.
    const BYTES_MAX: u64 = 320 << 10;
    let scene = Scene::new("");
    let socket = scene.web.pki.folder.path().join("admin.sock");
    let counted = || {
        let said: Value = serde_json::from_str(&admin(&socket, "GET /memory").unwrap()).unwrap();
        said["budget"]["connections_bytes"].as_u64().unwrap()
    };
    run(async {
        let mut two = scene.web.connect_two().await;
        let mut all = Vec::new();
        for _ in 0..STREAMS {
            all.push(scene.ask(&mut two, EVENTS).await);
        }
        scene.rest(1).await;
        // Tasks that no stream needs any more end.
        until("the tasks to end", || (counted() < BYTES_MAX).then_some(()));
        for nth in [7, 7, 99] {
            all[nth].event("data: alone\n\n").await;
            assert_eq!(listed(&socket).unwrap()[0]["state"], "serving", "it is awake for a while");
            let bytes = counted();
            assert!(bytes < BYTES_MAX, "{bytes} bytes for one stream of {STREAMS}");
        }
        // Also where others are awake, and behind that.
        for round in 0..2 {
            for stream in &mut all {
                stream.event(&format!("data: {round}\n\n")).await;
            }
            scene.rest(1).await;
        }
        // One that ends, and one that begins, change the places of the others.
        all[50].app.write_all(b"0\r\n\r\n").unwrap();
        all.remove(50).ended().await;
        scene.rest(1).await;
        all.push(scene.ask(&mut two, EVENTS).await);
        scene.rest(1).await;
        for stream in &mut all {
            stream.event("data: last\n\n").await;
        }
    });
}

/// Bytes of what is parked, beside those of an idle connection. The first stream of a connection
/// has its tables beside it.
#[test]
fn a_stream_at_rest_is_small() {
    let scene = Scene::new("");
    run(async {
        let mut two = scene.web.connect_two().await;
        let mut all = vec![scene.chat(&mut two).await];
        all[0].hear("first").await;
        scene.rest(1).await;
        let first = scene.metric("eyelet_parked_memory_bytes");
        for _ in 0..9 {
            all.push(scene.chat(&mut two).await);
        }
        scene.rest(1).await;
        let ten = scene.metric("eyelet_parked_memory_bytes");
        assert!(first <= 900, "{first} bytes with one stream");
        assert!(ten - first <= 9 * 300, "{} bytes for nine more", ten - first);
        println!("one stream: {first}; each further one: {}", (ten - first) / 9);
        assert_eq!(listed(&scene.web.pki.folder.path().join("admin.sock")).unwrap().len(), 1);
        for (nth, stream) in all.iter_mut().enumerate() {
            stream.hear(&format!("to {nth}")).await;
        }
    });
}

/// Node, over two rests.
#[test]
fn node_hears_all_of_a_websocket_that_rests() {
    if !need("node") {
        return;
    }
    let scene = Scene::new("");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/websocket2.js");
    let mut node = Command::new("node");
    node.args([script, &scene.web.edge.port().to_string(), "app.test"]);
    node.arg(scene.web.pki.text("ca.pem")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut node = node.spawn().unwrap();
    let (mut say, mut hear) = (node.stdin.take().unwrap(), node.stdout.take().unwrap());
    let mut app = scene.web.app.take();
    let asked = head(&mut app);
    app.write_all(switched(&asked).as_bytes()).unwrap();
    assert_eq!(line(&mut hear).trim(), "open");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for text in ["one", "two"] {
        runtime.block_on(scene.rest(1));
        app.write_all(&[&[0x81, 3], text.as_bytes()].concat()).unwrap();
        assert_eq!(line(&mut hear).trim(), text);
        runtime.block_on(scene.rest(1));
        say.write_all(format!("{text}\n").as_bytes()).unwrap();
        expect(&mut app, &[&[0x81, 0x83, 0, 0, 0, 0], text.as_bytes()].concat());
    }
    let _ = node.kill();
    let _ = node.wait();
    drop(app);
    let said = scene.web.request_line("/chat");
    assert_eq!(said["bytes_to_client"], 10, "{said}");
}
