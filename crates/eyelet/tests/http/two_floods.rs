//! Floods and bombs by HTTP/2: they cost their own connection, no memory, and nobody else. The
//! client sends frames over TLS, and the upstream counts requests.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::client::Offer;
use crate::support::edge::LISTENER;
use crate::support::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS,
    frame, get, literal, next,
};
use crate::support::memory::{Watch, is_counted};
use crate::support::web;
use crate::support::{A_WHILE, Edge, Pki, SOON, Tls, Upstream, until};

/// What a connection that floods may grow the process by, in a build without optimization.
const GROWN_MAX: u64 = 6 << 20;
/// The code of a flood (RFC 9113 section 7).
const CALM: &str = "ENHANCE_YOUR_CALM";

struct Scene {
    edge: Edge,
    app: Upstream,
    pki: Pki,
    good: Tls,
    before: u64,
}

/// What is seen of the edge's memory during one flood.
struct Watched {
    watch: Watch,
    /// Length of the log before the flood.
    logged: usize,
}

impl Scene {
    fn new(whole: &str) -> Self {
        let pki = Pki::new();
        let app = Upstream::http();
        let rule = pki.terminate(&format!("http://{}", app.address), "");
        let config = format!("workers = 1\n{LISTENER}{whole}\n{rule}");
        let edge = Edge::start_whole(&pki.folder, &config, |_| ());
        let mut good = Offer::new(&pki).connect(edge.address(), "app.test");
        assert_eq!(web::get(&mut good, "/").status, 200);
        let before = edge.rss_bytes();
        Self { edge, app, pki, good, before }
    }

    fn connect(&self) -> Tls {
        let offer = Offer { alpn: &["h2"], ..Offer::new(&self.pki) };
        offer.connect(self.edge.address(), "app.test")
    }

    fn begin(&self) -> Tls {
        let mut client = self.connect();
        client.write_all(PREFACE).unwrap();
        client.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
        client
    }

    /// Says it again and again until the connection is ended; why it was.
    fn flood(&self, client: &mut Tls, mut words: impl FnMut(u32) -> Vec<u8>) -> String {
        let address = client.sock.local_addr().unwrap().to_string();
        let is_its = |line: &Value| line["client"] == address.as_str() && line["http"].is_null();
        client.sock.set_write_timeout(Some(A_WHILE)).unwrap();
        // Not in bytes: what comes while a connection lingers is read and dropped for a moment.
        let began = Instant::now();
        let mut number = 0;
        while self.edge.count(is_its) == 0 {
            assert!(began.elapsed() < SOON, "the flood goes on for ever");
            if client.write_all(&words(number)).is_err() {
                break;
            }
            number += 1;
        }
        let line = self.edge.line("the end of a flood", is_its);
        line["reason"].as_str().unwrap().to_owned()
    }

    fn watch(&self) -> Watched {
        Watched { logged: self.edge.log().len(), watch: Watch::start(self.edge.pid()) }
    }

    /// Others did not notice, what was held was counted, and no memory is held.
    fn is_well(&mut self, what: &str, watched: Watched) {
        assert_eq!(web::get(&mut self.good, "/").status, 200, "{what}");
        let base = watched.watch.base;
        let most = watched.watch.finish().anonymous;
        // The answer to the first SIGUSR1 may still be on its way.
        let log = until("the accounts", || {
            let log = self.edge.log().split_off(watched.logged);
            log.contains("bytes counted").then_some(log)
        });
        is_counted(what, &log, base, most);
        self.edge.wait_memory(self.before, GROWN_MAX);
    }
}

/// One field of almost the table's size, named thousands of times in a few bytes.
#[test]
fn a_bomb_of_fields_does_not_go_off() {
    let mut scene = Scene::new("");
    let watched = scene.watch();
    let mut client = scene.begin();
    let mut block = get("/bomb");
    block.extend(literal("x", &"y".repeat(3800)));
    block.extend(vec![0xbe; 12_000]);
    assert!(block.len() < 16_384, "one frame");
    let whole = END_HEADERS | END_STREAM;
    let why = scene.flood(&mut client, |number| {
        if number > 0 {
            // Later ones are bombs by the table alone: 99 kB out of 30 bytes.
            block = get("/bomb");
            block.extend([0xbe; 26]);
        }
        frame(HEADERS, whole, 2 * number + 1, &block)
    });
    assert!(why.contains(CALM), "{why}");
    scene.is_well("a bomb", watched);
    let refused = |line: &Value| line["http"]["path"] == "/bomb";
    let wrong = |line: &Value| refused(line) && line["http"]["status"].as_u64() == Some(200);
    assert_eq!(scene.edge.count(wrong), 0);
    assert!(scene.edge.count(refused) > 0);
}

#[test]
fn a_head_without_an_end_is_ended() {
    let mut scene = Scene::new("");
    let field = literal("x", &"y".repeat(16_000));
    for (what, piece) in [("long pieces", &field[..]), ("empty pieces", &[][..])] {
        let watched = scene.watch();
        let mut client = scene.begin();
        client.write_all(&frame(HEADERS, 0, 1, &get("/"))).unwrap();
        let why = scene.flood(&mut client, |_| frame(CONTINUATION, 0, 1, piece));
        assert!(why.contains(CALM), "{what}: {why}");
        scene.is_well(what, watched);
    }
}

/// CVE-2023-44487, as fast as the wire takes it.
#[test]
fn requests_that_are_reset_at_once_are_few() {
    let mut scene = Scene::new("");
    let watched = scene.watch();
    let mut client = scene.begin();
    let why = scene.flood(&mut client, |round| {
        let mut words = Vec::new();
        for number in 0..100 {
            let stream = 2 * (100 * round + number) + 1;
            words.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &get("/reset")));
            words.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
        }
        words
    });
    assert!(why.contains(CALM), "{why}");
    let told = scene.edge.count(|line| line["http"]["path"] == "/reset");
    assert!(told < 1000, "{told} requests were begun");
    assert!(scene.app.accepted() < 1000);
    scene.is_well("a flood of resets", watched);
}

/// The stream is broken by the client so that the edge resets it: as cheap, the other way.
#[test]
fn streams_that_make_us_reset_them_are_few() {
    let mut scene = Scene::new("");
    let watched = scene.watch();
    let mut client = scene.begin();
    let why = scene.flood(&mut client, |number| {
        let stream = 2 * number + 1;
        let mut words = frame(HEADERS, END_HEADERS, stream, &get("/broken"));
        // A window's increment of nothing is an error of the stream (RFC 9113 6.9).
        words.extend(frame(8, 0, stream, &[0; 4]));
        words
    });
    assert!(why.contains(CALM), "{why}");
    let told = scene.edge.count(|line| line["http"]["path"] == "/broken");
    assert!(told < 2000, "{told} requests were begun");
    scene.is_well("a flood of errors", watched);
}

/// A client that asks for answers and does not read them is not read any more, or ended.
#[test]
fn frames_that_ask_for_answers_hold_no_memory() {
    let mut scene = Scene::new("[http]\nhttp2_idle_timeout = \"2s\"\n");
    for (what, words) in [
        ("pings", frame(PING, 0, 0, &[7; 8]).repeat(500)),
        ("settings", frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]).repeat(500)),
    ] {
        let watched = scene.watch();
        let mut client = scene.begin();
        scene.flood(&mut client, |_| words.clone());
        scene.is_well(what, watched);
    }
    // And empty data, which asks for nothing.
    let watched = scene.watch();
    let mut client = scene.begin();
    client.write_all(&frame(HEADERS, END_HEADERS, 1, &get("/"))).unwrap();
    let why = scene.flood(&mut client, |_| frame(DATA, 0, 1, &[]).repeat(500));
    assert!(why.contains(CALM), "{why}");
    scene.is_well("empty data", watched);
}

/// Answers of ours wait for a window that never opens: no longer than others would.
#[test]
fn our_own_answers_do_not_wait_for_ever() {
    let mut scene = Scene::new("[http]\nbody_timeout = \"400ms\"\n");
    let watched = scene.watch();
    let mut client = scene.connect();
    let mut words = PREFACE.to_vec();
    // SETTINGS_INITIAL_WINDOW_SIZE of nothing.
    words.extend(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    let mut trace = literal(":method", "TRACE");
    trace.extend(&get("/own")[1..]);
    for number in 0..100 {
        let stream = 2 * number + 1;
        // Each puts its fields into the table anew: none is found by its index.
        words.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &trace));
    }
    client.write_all(&words).unwrap();
    client.sock.set_read_timeout(Some(SOON)).unwrap();
    let mut resets = 0;
    while resets < 100 {
        let frame = next(&mut client).expect("every stream is reset");
        assert_ne!(frame.kind, DATA, "{frame:?}");
        resets += usize::from(frame.kind == RST_STREAM);
    }
    let line = scene.edge.line("an answer", |line| line["http"]["path"] == "/own");
    assert_eq!((&line["http"]["status"], &line["reason"]), (&405.into(), &"body_timeout".into()));
    assert!(line["duration_ms"].as_u64() >= Some(400), "{line}");
    until("all their lines", || {
        (scene.edge.count(|line| line["http"]["path"] == "/own") == 100).then_some(())
    });
    scene.is_well("answers that nobody reads", watched);
}

#[test]
fn a_preface_that_does_not_come_is_told() {
    let scene = Scene::new("[http]\nhead_timeout = \"400ms\"\n");
    let mut late = scene.connect();
    late.write_all(&PREFACE[..10]).unwrap();
    let line = scene.edge.line_of(late.sock.local_addr().unwrap());
    assert_eq!(line["reason"], "head_timeout", "{line}");
    assert!(line["duration_ms"].as_u64() >= Some(400), "{line}");
    let mut other = scene.connect();
    other.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    let line = scene.edge.line_of(other.sock.local_addr().unwrap());
    assert!(line["reason"].as_str().unwrap().starts_with("client: "), "{line}");
    let scene = Scene::new("");
    let mut gone = scene.connect();
    gone.write_all(&PREFACE[..10]).unwrap();
    thread::sleep(Duration::from_millis(50));
    gone.conn.send_close_notify();
    gone.flush().unwrap();
    let line = scene.edge.line_of(gone.sock.local_addr().unwrap());
    assert!(line["reason"].as_str().unwrap().starts_with("client"), "{line}");
}

#[test]
fn a_drain_does_not_wait_for_a_preface() {
    let mut scene = Scene::new("[limits]\ndrain_timeout = \"1s\"\n");
    let mut begun = scene.connect();
    begun.write_all(&PREFACE[..10]).unwrap();
    thread::sleep(A_WHILE);
    scene.edge.signal(rustix::process::Signal::TERM);
    let line = scene.edge.line_of(begun.sock.local_addr().unwrap());
    assert_eq!(line["reason"], "drained", "{line}");
    assert!(scene.edge.wait_exit().success());
}
