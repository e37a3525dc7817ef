//! Exchanges with an upstream that is asked by HTTP/2, such as gRPC, rest: their clients'
//! connections are parked, while the connection to the upstream, which they share, stays. Whatever
//! comes for one of them has its client's connection go on.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::resting::{ADMIN, admin, listed};
use crate::support::edge::LISTENER;
use crate::support::program::python_with;
use crate::support::two::{self, Asked, beside, get, hears, run};
use crate::support::web::{Web, chunks, head, switched};
use crate::support::{Edge, Pki, Talk, Upstream, expect, until};
use crate::two_resting::Scene;

pub const ON: &str = "upstream_http2 = \"on\"";
pub const EVENTS: &str = "/events";

/// Something that the upstream does with the streams of a path.
#[derive(Clone, Copy)]
pub enum Act {
    /// Says this, behind its head if that is not said.
    Say(&'static str),
    /// Ends them by trailers.
    End,
    Reset,
}

/// An upstream that does as it is told.
#[derive(Clone)]
pub struct App {
    acts: broadcast::Sender<(&'static str, Act)>,
    begun: Arc<AtomicUsize>,
    /// Reasons of the clients' resets.
    resets: Arc<Mutex<Vec<h2::Reason>>>,
}

impl App {
    pub fn new() -> Self {
        let (acts, _) = broadcast::channel(64);
        Self { acts, begun: Arc::default(), resets: Arc::default() }
    }

    pub fn act(&self, path: &'static str, act: Act) {
        assert!(self.acts.send((path, act)).is_ok(), "nobody waits for it");
    }

    /// Waits until so many requests have come.
    pub async fn begun(&self, count: usize) {
        let begun = self.begun.clone();
        let has_begun = move || (begun.load(Ordering::SeqCst) == count).then_some(());
        beside(move || until("the requests", has_begun)).await;
    }

    async fn reset(&self, count: usize) -> Vec<h2::Reason> {
        let resets = self.resets.clone();
        let are_reset = move || {
            let resets = resets.lock().unwrap().clone();
            (resets.len() == count).then_some(resets)
        };
        beside(move || until("the resets", are_reset)).await
    }

    /// Answers by the path: events begin at once, `/up` sends its request back, and others wait.
    pub async fn answer(self, (request, mut respond): Asked) {
        let (path, mut acts) = (request.uri().path().to_owned(), self.acts.subscribe());
        self.begun.fetch_add(1, Ordering::SeqCst);
        if path == "/up" {
            let mut receive = request.into_body();
            let mut send = respond.send_response(Response::new(()), false).unwrap();
            while let Some(Ok(piece)) = receive.data().await {
                let _ = receive.flow_control().release_capacity(piece.len());
                two::write(&mut send, piece).await.unwrap();
            }
            return drop(send.send_data(Bytes::new(), true));
        }
        let mut begun = None;
        if path.starts_with(EVENTS) {
            let mut send = respond.send_response(Response::new(()), false).unwrap();
            send.send_data("first".into(), false).unwrap();
            begun = Some(send);
        }
        loop {
            let act = match &mut begun {
                None => tokio::select! {
                    act = acts.recv() => act.unwrap(),
                    reset = poll_fn(|task| respond.poll_reset(task)) => return self.note(reset),
                },
                Some(send) => tokio::select! {
                    act = acts.recv() => act.unwrap(),
                    reset = poll_fn(|task| send.poll_reset(task)) => return self.note(reset),
                },
            };
            if act.0 != path {
                continue;
            }
            if matches!(act.1, Act::Reset) {
                match &mut begun {
                    None => respond.send_reset(h2::Reason::INTERNAL_ERROR),
                    Some(send) => send.send_reset(h2::Reason::INTERNAL_ERROR),
                }
                return;
            }
            let mut send = begun
                .take()
                .unwrap_or_else(|| respond.send_response(Response::new(()), false).unwrap());
            let Act::Say(text) = act.1 else {
                let trailers =
                    HeaderMap::from_iter([("x-sum".parse().unwrap(), "1".parse().unwrap())]);
                return send.send_trailers(trailers).unwrap();
            };
            send.send_data(text.into(), false).unwrap();
            begun = Some(send);
        }
    }

    fn note(&self, reset: Result<h2::Reason, h2::Error>) {
        self.resets.lock().unwrap().extend(reset.ok());
    }
}

/// An edge to such an upstream, with this in its configuration.
pub fn scene(more: &str) -> (Scene, App) {
    let app = App::new();
    let of = app.clone();
    let upstream = two::app(100, None, move |asked| Box::pin(of.clone().answer(asked)));
    let web = Web::with(upstream, ON, &format!("{ADMIN}{more}"));
    (Scene { web: Arc::new(web) }, app)
}

/// Events, a request that waits, and bytes both ways on one connection of a client: each wakes it.
#[test]
fn streams_of_a_shared_upstream_rest_and_go_on() {
    let (scene, app) = scene("");
    run(async {
        let mut two = scene.web.connect_two().await;
        let begin = |path, is_last| (Request::post(format!("https://app.test{path}")), is_last);
        let mut all = Vec::new();
        for (request, is_last) in [begin(EVENTS, true), begin("/poll", true), begin("/up", false)] {
            two.send = two.send.clone().ready().await.unwrap();
            all.push(two.send.send_request(request.body(()).unwrap(), is_last).unwrap());
        }
        let (up, mut send) = all.pop().unwrap();
        let (poll, _) = all.pop().unwrap();
        let mut events = all.pop().unwrap().0.await.unwrap().into_body();
        let mut up = up.await.unwrap().into_body();
        hears(&mut events, "first").await;
        app.begun(3).await;
        scene.rest(1).await;
        send.send_data("back".into(), false).unwrap();
        hears(&mut up, "back").await;
        for text in ["one", "two"] {
            scene.rest(1).await;
            app.act(EVENTS, Act::Say(text));
            hears(&mut events, text).await;
        }
        scene.rest(1).await;
        app.act("/poll", Act::Say("late"));
        let mut poll = poll.await.unwrap().into_body();
        hears(&mut poll, "late").await;
        scene.rest(1).await;
        app.act(EVENTS, Act::End);
        assert!(events.data().await.is_none());
        assert_eq!(events.trailers().await.unwrap().unwrap()["x-sum"], "1");
        scene.rest(1).await;
        app.act("/poll", Act::Reset);
        assert!(poll.data().await.unwrap().unwrap_err().is_reset());
        scene.rest(1).await;
        send.send_data("end".into(), true).unwrap();
        hears(&mut up, "end").await;
        assert!(up.data().await.is_none());
    });
    let events = scene.web.request_line(EVENTS);
    assert_eq!((&events["reason"], &events["bytes_to_client"]), (&"complete".into(), &11.into()));
    assert_eq!(events["upstream"], scene.web.app.address.to_string());
    let up = scene.web.request_line("/up");
    assert_eq!((&up["bytes_to_upstream"], &up["bytes_to_client"]), (&7.into(), &7.into()), "{up}");
    assert_eq!(scene.web.request_line("/poll")["outcome"], "failed");
    assert_eq!(scene.web.app.accepted(), 1, "they share a connection");
}

/// A client of HTTP/1.1, whose connection rests with one.
#[test]
fn a_client_of_http1_rests_on_a_shared_upstream() {
    let (scene, app) = scene("");
    let rest = || run(scene.rest(1));
    let mut client = scene.web.connect();
    client.write_all(b"GET /events HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    assert!(head(&mut client).contains("transfer-encoding: chunked"));
    expect(&mut client, b"5\r\nfirst\r\n");
    for text in ["one", "two"] {
        rest();
        app.act(EVENTS, Act::Say(text));
        expect(&mut client, format!("3\r\n{text}\r\n").as_bytes());
    }
    rest();
    app.act(EVENTS, Act::End);
    assert_eq!(chunks(&mut client), b"");
    client.write_all(b"GET /poll HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    run(app.begun(2));
    rest();
    app.act("/poll", Act::Say("late"));
    assert!(head(&mut client).starts_with("HTTP/1.1 200"));
    expect(&mut client, b"4\r\nlate\r\n");
    rest();
    drop(client);
    // A client that has ended its connection may still read: only its reset says otherwise.
    app.act("/poll", Act::Say("gone"));
    run(async { assert_eq!(app.reset(1).await, [h2::Reason::CANCEL]) });
    assert_eq!(scene.web.request_line(EVENTS)["reason"], "complete");
    assert_eq!(scene.web.request_line("/poll")["outcome"], "left");
}

/// The client's reset, its deadline and an operator end a stream at rest: the upstream hears it.
#[test]
fn an_end_at_rest_resets_the_stream_of_the_upstream() {
    let (scene, app) = scene("[limits]\nidle_timeout = \"6s\"\n");
    run(async {
        let mut two = scene.web.connect_two().await;
        let mut begun = Vec::new();
        for path in ["/events", "/events/late"] {
            two.send = two.send.clone().ready().await.unwrap();
            let (response, send) = two.send.send_request(get(path), true).unwrap();
            let mut receive = response.await.unwrap().into_body();
            hears(&mut receive, "first").await;
            begun.push((send, receive));
        }
        scene.rest(1).await;
        begun.remove(0).0.send_reset(h2::Reason::CANCEL);
        assert_eq!(app.reset(1).await, [h2::Reason::CANCEL]);
        scene.rest(1).await;
        let late = begun[0].1.data().await.unwrap().unwrap_err();
        assert_eq!(late.reason(), Some(h2::Reason::INTERNAL_ERROR), "{late}");
        app.reset(2).await;
        let (response, _send) = two.send.send_request(get("/events/ended"), true).unwrap();
        hears(&mut response.await.unwrap().into_body(), "first").await;
        scene.rest(1).await;
        let socket = scene.web.pki.folder.path().join("admin.sock");
        let id = listed(&socket).unwrap()[0]["id"].as_str().unwrap().to_owned();
        admin(&socket, &format!("DELETE /connections/{id}")).unwrap();
        assert_eq!(app.reset(3).await[2], h2::Reason::CANCEL);
    });
    assert_eq!(scene.web.request_line("/events")["outcome"], "left");
    assert_eq!(scene.web.request_line("/events/late")["reason"], "idle_timeout");
    let ended = scene.web.request_line("/events/ended");
    assert_eq!(ended["reason"], "ended by an operator");
    assert_eq!(ended["upstream"], scene.web.app.address.to_string());
}

/// A connection whose streams rest on a shared upstream, and one on a socket of its own.
#[test]
fn both_kinds_rest_on_one_connection() {
    let app = App::new();
    let (of, (give, take)) = (app.clone(), std::sync::mpsc::channel());
    let give = Mutex::new(give);
    let answer = move |asked| -> two::Answer { Box::pin(of.clone().answer(asked)) };
    // A WebSocket is asked for by HTTP/1.1.
    let upstream = Upstream::serve(move |stream| {
        let mut first = [0; 3];
        while stream.peek(&mut first).is_ok_and(|read| (1..first.len()).contains(&read)) {}
        match &first {
            b"PRI" => two::speak(stream, 100, None, &answer),
            _ => drop(give.lock().unwrap().send(stream)),
        }
    });
    let web = Web::with(upstream, ON, ADMIN);
    let scene = Scene { web: Arc::new(web) };
    run(async {
        let mut two = scene.web.connect_two().await;
        let (response, chat) = two.chat().await;
        let mut socket: TcpStream = beside(move || {
            let mut socket = take.recv().unwrap();
            let asked = head(&mut socket);
            socket.write_all(switched(&asked).as_bytes()).unwrap();
            socket
        })
        .await;
        let mut chat = (chat, response.await.unwrap().into_body());
        let (response, _) = two.send.send_request(get(EVENTS), true).unwrap();
        let mut events = response.await.unwrap().into_body();
        hears(&mut events, "first").await;
        for (text, frame) in [("one", "\u{1}\u{1}a"), ("two", "\u{1}\u{1}b")] {
            scene.rest(1).await;
            app.act(EVENTS, Act::Say(text));
            hears(&mut events, text).await;
            scene.rest(1).await;
            socket.write_all(frame.as_bytes()).unwrap();
            hears(&mut chat.1, frame).await;
        }
        scene.rest(1).await;
        two.driven.abort();
        // As by HTTP/1.1: only its reset says that it does not read.
        app.act(EVENTS, Act::Say("gone"));
        assert_eq!(app.reset(1).await, [h2::Reason::CANCEL]);
        beside(move || _ = socket.read_to_end(&mut Vec::new())).await;
    });
}

/// A service of grpcio, a client of grpcio, and the edge between them.
pub struct Grpc {
    pub service: Talk,
    pub client: Talk,
    pub scene: Scene,
}

impl Grpc {
    pub fn new(count: usize) -> Option<Self> {
        let python = python_with("grpc")?;
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs/grpc_rest.py");
        let service = Talk::start(Command::new(python).arg(&file).arg("serve"));
        let upstream = service.port();
        let pki = Pki::new();
        let rule = pki.terminate(&format!("http://127.0.0.1:{upstream}"), ON);
        let config = format!("workers = 1\n{LISTENER}{ADMIN}{rule}");
        let edge = Edge::start_whole(&pki.folder, &config, |_| ());
        let mut client = Command::new(python);
        client.arg(&file).args(["call", &edge.port().to_string(), "app.test"]);
        let mut client = Talk::start(client.args([&pki.text("ca.pem"), &count.to_string()]));
        client.hear("open\n");
        let scene = Scene { web: Arc::new(Web { edge, app: Upstream::by_hand(), pki }) };
        Some(Self { service, client, scene })
    }

    pub fn rest(&self) {
        run(self.scene.rest(1));
    }

    /// Checks that so many streams count as gRPC that rests, and nothing else counts.
    pub fn is_counted(&self, count: usize) {
        let listed = listed(&self.scene.web.pki.folder.path().join("admin.sock")).unwrap();
        assert_eq!(listed[0]["resting"], json!({ "grpc": count }));
        let kind = |state: &str, kind: &str| {
            self.scene.metric(&format!("eyelet_streams{{state=\"{state}\",kind=\"{kind}\"}}"))
        };
        let resting = ["grpc", "response", "waiting", "upload"].map(|it| kind("resting", it));
        assert_eq!((resting, kind("serving", "grpc")), ([count, 0, 0, 0], 0));
    }

    /// Ends all of its nine streams. So many of them are complete. Whoever has upgraded the edge
    /// ends the later processes before the scene: they have the pipes of the first one.
    pub fn end(mut self, complete: usize) -> Scene {
        self.service.say("end\n");
        self.client.say("over\n");
        self.client.hear("over done\n");
        self.client.hang_up();
        let said = self.client.finish();
        assert!(said.status.success(), "{said:?}");
        let lines = lines(&self.scene, 9);
        let found = lines.iter().filter(|line| line["reason"] == "complete").count();
        assert_eq!(found, complete, "{lines:#?}");
        self.scene
    }
}

/// The access lines of so many requests.
pub fn lines(scene: &Scene, count: usize) -> Vec<Value> {
    let is_request = |line: &Value| line["event"] == "request";
    until("all lines", || {
        let lines: Vec<_> = scene.web.edge.lines().into_iter().filter(is_request).collect();
        (lines.len() == count).then_some(lines)
    })
}

/// Server streams and a bidirectional one pause, and go on by either side, also behind GOAWAY.
#[test]
fn grpc_streams_rest_and_lose_nothing() {
    let Some(mut grpc) = Grpc::new(8) else { return };
    for text in ["one", "two"] {
        grpc.rest();
        grpc.is_counted(9);
        grpc.service.say(&format!("say {text}\n"));
        grpc.client.say(&format!("hear {text}\n"));
        grpc.client.hear("hear done\n");
        grpc.rest();
        grpc.client.say(&format!("chat {text}\n"));
        grpc.client.hear("chat done\n");
    }
    grpc.client.say("cancel\n");
    grpc.client.hear("cancel done\n");
    grpc.rest();
    grpc.service.say("goaway\n");
    grpc.service.hear("goaway done\n");
    grpc.service.say("say three\n");
    grpc.client.say("hear three\n");
    until("the last", || (grpc.client.said().matches("hear done").count() == 3).then_some(()));
    grpc.rest();
    drop(grpc.end(8));
}

/// A call counts as gRPC while its upstream has not even greeted.
#[test]
fn a_call_counts_as_grpc_before_its_upstream_takes_it() {
    let scene = Scene { web: Arc::new(Web::with(Upstream::by_hand(), ON, ADMIN)) };
    run(async {
        let mut two = scene.web.connect_two().await;
        two.send = two.send.clone().ready().await.unwrap();
        let call = Request::post("https://app.test/call").header("te", "trailers");
        let call = call.header("content-type", "application/grpc").body(()).unwrap();
        let _begun = two.send.send_request(call, false).unwrap();
        let scene = scene.clone();
        let name = "eyelet_streams{state=\"serving\",kind=\"grpc\"}";
        let counts = move || until("it counts", || (scene.metric(name) == 1).then_some(()));
        beside(counts).await;
    });
}

/// An upstream that dies ends all streams that rest on it.
#[test]
fn grpc_streams_at_rest_hear_of_an_upstream_that_dies() {
    let Some(mut grpc) = Grpc::new(4) else { return };
    grpc.rest();
    grpc.service.signal(Signal::KILL);
    grpc.client.say("lost\n");
    let said = grpc.client.finish();
    assert!(said.status.success(), "{said:?}");
    assert_eq!(said.text.matches("StatusCode.").count(), 5, "{said:?}");
    let lines = lines(&grpc.scene, 5);
    assert!(lines.iter().all(|line| line["outcome"] == "failed"), "{lines:#?}");
}

/// Bytes of streams at rest, with their clients' side and their part of the shared connection.
#[test]
fn a_grpc_stream_at_rest_is_small() {
    /// Streams of both, beside the bidirectional one.
    const COUNTS: [usize; 2] = [10, 60];
    /// A connection to the upstream and all else that is there once, and the few streams.
    const FEW_BYTES_MAX: usize = 40_000;
    let [Some(few), Some(many)] = COUNTS.map(Grpc::new) else { return };
    few.rest();
    many.rest();
    let bytes = |grpc: &Grpc| {
        let names = ["eyelet_parked_memory_bytes", "eyelet_memory_budget_used_bytes"];
        names.map(|name| grpc.scene.metric(name))
    };
    // Tasks that wait for a next stream count for a moment. Both have the stream towards the
    // upstream, of 384 bytes.
    let each = until("few bytes", || {
        let (few, many) = (bytes(&few), bytes(&many));
        let each = [0, 1].map(|nth| many[nth].saturating_sub(few[nth]) / (COUNTS[1] - COUNTS[0]));
        let is_small = few[1] <= FEW_BYTES_MAX && each[0] <= 800 && each[1] <= 1_200;
        println!("bytes of each stream: {each:?}; of the few: {few:?}");
        is_small.then_some(each)
    });
    assert!(each[0] > 0 && each[1] > 0, "{each:?}");
}
