//! Floods and bombs by HTTP/2: they cost their own connection, no memory, and nobody else. The
//! clients send frames over TLS, and the upstream counts requests.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use serde_json::Value;

use crate::support::client::{Offer, TLS13};
use crate::support::crowd::{From, light, sized};
use crate::support::edge::LISTENER;
use crate::support::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS,
    frame, get, literal, next,
};
use crate::support::memory::{Watch, is_counted, mib};
use crate::support::web::{self, Web};
use crate::support::{A_WHILE, Edge, Pki, SOON, Tls, Upstream, Visits, settled, until};

/// The bytes by which a connection that floods may grow the process, in a build without
/// optimization.
const GROWN_MAX: u64 = 6 << 20;
/// `memory_max` where a test sets no limits of its own, and what the process may have at its peak.
const MEMORY_MAX: u64 = 64 << 20;
const RESIDENT_MAX: u64 = MEMORY_MAX / 10 * 11;
/// Of a hundred newcomers so many are served at the least.
const NEWCOMERS_PERCENT: usize = 95;
/// The code of a flood (RFC 9113 section 7).
const CALM: &str = "ENHANCE_YOUR_CALM";

struct Scene {
    edge: Edge,
    app: Upstream,
    pki: Pki,
    good: Tls,
    before: u64,
}

/// The observations of the edge during one flood: its memory, and whether newcomers are served.
struct Watched {
    watch: Watch,
    newcomers: Visits,
    /// Length of the log before the flood.
    logged: usize,
}

impl Scene {
    fn new(whole: &str) -> Self {
        let pki = Pki::new();
        let app = Upstream::http();
        let rule = pki.terminate(&format!("http://{}", app.address), "");
        let limits = format!("[limits]\nmemory_max = {MEMORY_MAX}\n");
        let limits = if whole.contains("[limits]") { "" } else { &limits };
        let config = format!("workers = 1\n{LISTENER}{whole}\n{rule}{limits}");
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

    /// So many clients begin with these words and say others again and again, all at once, until
    /// the connection of each is ended; why they were.
    fn flood(&self, first: &[u8], words: impl Fn(u32) -> Vec<u8> + Sync) -> String {
        let (words, whys) = (&words, Mutex::new(BTreeSet::new()));
        thread::scope(|scope| {
            for _ in 0..sized(1) {
                scope.spawn(|| {
                    let why = self.flood_one(first, words);
                    whys.lock().unwrap().extend(why);
                });
            }
        });
        Vec::from_iter(whys.into_inner().unwrap()).join(", ")
    }

    fn flood_one(&self, first: &[u8], words: &impl Fn(u32) -> Vec<u8>) -> Option<String> {
        let mut client = self.begin();
        let address = client.sock.local_addr().unwrap().to_string();
        let is_its = |line: &Value| line["client"] == address.as_str() && line["http"].is_null();
        client.sock.set_write_timeout(Some(A_WHILE)).unwrap();
        // Not in bytes: what comes while a connection lingers is read and dropped for a moment.
        let (began, mut says) = (Instant::now(), first.to_vec());
        'flood: for number in 0.. {
            let mut rest = &says[..];
            while !rest.is_empty() {
                assert!(began.elapsed() < SOON, "the flood goes on for ever");
                match client.write(rest) {
                    Ok(taken) => rest = &rest[taken..],
                    // It is not read, or not yet: this machine may be slow.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        if self.edge.count(is_its) > 0 {
                            break 'flood;
                        }
                    }
                    Err(_) => break 'flood,
                }
            }
            says = words(number);
        }
        if sized(1) == 1 {
            return Some(reason(&self.edge.line("the end of a flood", is_its)));
        }
        // Many have more lines than the log's queue may hold, so the last one may be lost.
        settled(|| self.edge.count(|line| line["client"] == address.as_str()));
        self.edge.lines().iter().find(|line| is_its(line)).map(reason)
    }

    fn watch(&self) -> Watched {
        let (address, config) = (self.edge.address(), light(TLS13, Resumption::disabled()));
        let newcomers = Visits::start(Duration::from_millis(100), move || {
            From::loopback(1).tls(address, &config, "app.test").is_ok_and(is_served)
        });
        let logged = self.edge.log().len();
        Watched { watch: Watch::start(self.edge.pid()), newcomers, logged }
    }

    /// Others did not notice, what was held was counted, and no memory is held.
    fn is_well(&mut self, what: &str, watched: Watched) {
        assert_eq!(web::get(&mut self.good, "/").status, 200, "{what}");
        let newcomers = watched.newcomers.finish();
        let base = watched.watch.base;
        let memory = watched.watch.finish();
        let peak = memory.resident_peak;
        eprintln!("{what}: at most {:.1} MiB resident, {newcomers:?}", mib(peak));
        assert!(peak <= RESIDENT_MAX, "{what}: {:.1} MiB", mib(peak));
        newcomers.are_served(NEWCOMERS_PERCENT);
        // The answer to the first SIGUSR1 may still be on its way.
        let log = until("the accounts", || {
            let log = self.edge.log().split_off(watched.logged);
            log.contains("bytes counted").then_some(log)
        });
        is_counted(what, &log, base, memory.anonymous);
        self.edge.wait_memory(self.before, GROWN_MAX);
    }
}

fn is_served(mut client: Tls) -> bool {
    let asks = b"GET / HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\r\n";
    let mut heard = Vec::new();
    let answered = client.write_all(asks).and_then(|()| client.read_to_end(&mut heard));
    answered.is_ok() && heard.starts_with(b"HTTP/1.1 200 ")
}

fn reason(line: &Value) -> String {
    line["reason"].as_str().unwrap().to_owned()
}

/// All of them say that they were floods.
#[track_caller]
fn are_calmed(whys: &str) {
    assert!(whys.split(", ").all(|why| why.contains(CALM)), "{whys}");
}

/// One field of almost the table's size, named thousands of times in a few bytes.
#[test]
fn a_bomb_of_fields_does_not_go_off() {
    let mut scene = Scene::new("");
    let watched = scene.watch();
    let first = [get("/bomb"), literal("x", &"y".repeat(3800)), vec![0xbe; 12_000]].concat();
    assert!(first.len() < 16_384, "one frame");
    // Later ones are bombs by the table alone: 99 kB out of 30 bytes.
    let later = [get("/bomb"), vec![0xbe; 26]].concat();
    let whole = END_HEADERS | END_STREAM;
    are_calmed(&scene.flood(&frame(HEADERS, whole, 1, &first), |number| {
        frame(HEADERS, whole, 2 * number + 3, &later)
    }));
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
        let head = frame(HEADERS, 0, 1, &get("/"));
        are_calmed(&scene.flood(&head, |_| frame(CONTINUATION, 0, 1, piece)));
        scene.is_well(what, watched);
    }
}

/// CVE-2023-44487, as fast as the wire takes it.
#[test]
fn requests_that_are_reset_at_once_are_few() {
    let mut scene = Scene::new("");
    let watched = scene.watch();
    are_calmed(&scene.flood(&[], |round| {
        let mut words = Vec::new();
        for number in 0..100 {
            let stream = 2 * (100 * round + number) + 1;
            words.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &get("/reset")));
            words.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
        }
        words
    }));
    let told = scene.edge.count(|line| line["http"]["path"] == "/reset");
    assert!(told < sized(1000), "{told} requests were begun");
    assert!(scene.app.accepted() < sized(1000));
    scene.is_well("a flood of resets", watched);
}

/// The stream is broken by the client so that the edge resets it: as cheap, the other way.
#[test]
fn streams_that_make_us_reset_them_are_few() {
    let mut scene = Scene::new("");
    let watched = scene.watch();
    are_calmed(&scene.flood(&[], |number| {
        let stream = 2 * number + 1;
        let mut words = frame(HEADERS, END_HEADERS, stream, &get("/broken"));
        // A window's increment of nothing is an error of the stream (RFC 9113 6.9).
        words.extend(frame(8, 0, stream, &[0; 4]));
        words
    }));
    let told = scene.edge.count(|line| line["http"]["path"] == "/broken");
    assert!(told < sized(2000), "{told} requests were begun");
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
        scene.flood(&[], |_| words.clone());
        scene.is_well(what, watched);
    }
    // And empty data, which asks for nothing.
    let watched = scene.watch();
    let head = frame(HEADERS, END_HEADERS, 1, &get("/"));
    are_calmed(&scene.flood(&head, |_| frame(DATA, 0, 1, &[]).repeat(500)));
    scene.is_well("empty data", watched);
}

/// Answers of ours wait for a window that never opens: no longer than others would.
#[test]
fn our_own_answers_do_not_wait_for_ever() {
    let mut scene = Scene::new("[http]\nbody_timeout = \"400ms\"\n");
    let watched = scene.watch();
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
    let ask = || {
        let mut client = scene.connect();
        client.write_all(&words).unwrap();
        client.sock.set_read_timeout(Some(SOON)).unwrap();
        let mut resets = 0;
        while resets < 100 {
            let frame = next(&mut client).expect("every stream is reset");
            assert_ne!(frame.kind, DATA, "{frame:?}");
            resets += usize::from(frame.kind == RST_STREAM);
        }
    };
    thread::scope(|scope| (0..sized(1)).for_each(|_| _ = scope.spawn(ask)));
    // Of many clients some streams are refused, because memory is short.
    let is_answer = |line: &Value| line["http"]["path"] == "/own" && line["http"]["status"] == 405;
    let line = scene.edge.line("an answer", is_answer);
    assert_eq!(line["reason"], "body_timeout", "{line}");
    assert!(line["duration_ms"].as_u64() >= Some(400), "{line}");
    until("all their lines", || {
        let lines = scene.edge.count(|line| line["http"]["path"] == "/own");
        (lines == sized(100)).then_some(())
    });
    scene.is_well("answers that nobody reads", watched);
}

#[test]
fn a_preface_that_does_not_come_is_told() {
    // No scene, whose first request would have as little time.
    let web = Web::with(Upstream::http(), "", "[http]\nhead_timeout = \"400ms\"\n");
    let offer = Offer { alpn: &["h2"], ..Offer::new(&web.pki) };
    let mut late = offer.connect(web.edge.address(), "app.test");
    // On a slow machine not even these come in time.
    let _ = late.write_all(&PREFACE[..10]);
    let line = web.edge.line_of(late.sock.local_addr().unwrap());
    assert_eq!(line["reason"], "head_timeout", "{line}");
    assert!(line["duration_ms"].as_u64() >= Some(400), "{line}");
    let scene = Scene::new("");
    let mut other = scene.connect();
    other.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    let line = scene.edge.line_of(other.sock.local_addr().unwrap());
    assert!(line["reason"].as_str().unwrap().starts_with("client: "), "{line}");
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
