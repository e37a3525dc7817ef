//! A flush of the upstream is a flush to the client: bytes are sent on when no more come, coded or
//! not, of known length or not. The upstream makes the pauses.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::support;
use crate::support::client::{Offer, Tls};
use crate::support::frames::{
    DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, WINDOW_UPDATE, frame, get, next,
};
use crate::support::web::{answer, ask, head, line};
use crate::support::{A_WHILE, Edge, Pki, Talk, Upstream, need, noise, until};

/// The beginning of a body, and its end; some 40 KiB in all.
fn halves(seed: usize) -> [String; 2] {
    let lines = |from: usize, to: usize| {
        let line = |n: usize| format!("line {n} says {}\n", (n * seed).wrapping_mul(2_654_435_761));
        (from..to).map(line).collect()
    };
    [lines(0, 30), lines(30, 1500)]
}

/// Decodes the beginning of a coded body.
fn decoded(coding: &str, coded: &[u8], dictionary: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    // A body that is not whole ends in an error; what came before it is what counts.
    match coding {
        "" => out = coded.to_vec(),
        "gzip" => _ = flate2::read::GzDecoder::new(coded).read_to_end(&mut out),
        "br" => _ = brotli::Decompressor::new(coded, 4096).read_to_end(&mut out),
        _ => {
            let frame = if coding == "dcz" { coded.get(40..).unwrap_or_default() } else { coded };
            let mut context = zstd_safe::DCtx::create();
            context.ref_prefix(dictionary).unwrap();
            out.reserve(1 << 20);
            let mut input = zstd_safe::InBuffer::around(frame);
            let mut output = zstd_safe::OutBuffer::around(&mut out);
            context.decompress_stream(&mut output, &mut input).unwrap();
        }
    }
    out
}

/// Reads a body until it decodes to `wanted`; `None` is one that has come to its end.
fn until_decoded(
    client: &mut Tls,
    is_chunked: bool,
    coding: &str,
    coded: &mut Vec<u8>,
    wanted: &str,
) -> Option<()> {
    let before = halves(1).concat();
    while decoded(coding, coded, before.as_bytes()) != wanted.as_bytes() {
        if !is_chunked {
            let mut piece = [0; 4096];
            let read = client.read(&mut piece).expect("a pause is flushed");
            coded.extend_from_slice(&piece[..read]);
            continue;
        }
        let size = usize::from_str_radix(line(client).trim(), 16).unwrap();
        let at = coded.len();
        coded.resize(at + size, 0);
        client.read_exact(&mut coded[at..]).expect("a pause is flushed");
        line(client);
        if size == 0 {
            return None;
        }
    }
    Some(())
}

struct Scene {
    pki: Pki,
    app: Upstream,
    edge: Edge,
}

impl Scene {
    fn new(more: &str) -> Self {
        let (pki, app) = (Pki::new(), Upstream::by_hand());
        let rule = pki.terminate(&format!("http://{}", app.address), more);
        let edge = Edge::start(&pki.folder, &format!("[dictionary]\npath = \"store\"\n{rule}"));
        Self { pki, app, edge }
    }

    fn connect(&self) -> Tls {
        Offer::new(&self.pki).connect(self.edge.address(), "app.test")
    }

    /// A client that takes this coding, and its upstream, which has answered with a head.
    fn begin(&self, accepted: &str, framing: &str) -> (Tls, TcpStream) {
        let mut client = self.connect();
        let get = format!(
            "GET / HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\
             Accept-Encoding: {accepted}\r\n\r\n"
        );
        client.write_all(get.as_bytes()).unwrap();
        let mut app = self.app.take();
        let said = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{framing}\r\n");
        answer(&mut app, &said);
        (client, app)
    }
}

#[test]
fn a_pause_of_the_upstream_is_one_for_the_client() {
    let scene = Scene::new("");
    let [first, rest] = halves(2);
    let whole = format!("{first}{rest}");
    for is_known in [true, false] {
        for accepted in ["", "gzip", "br", "zstd"] {
            let length = format!("Content-Length: {}\r\n", whole.len());
            let framing = if is_known { &length } else { "" };
            let (mut client, mut app) = scene.begin(accepted, framing);
            // The head alone, then a part of the body, then the rest.
            let begun = head(&mut client);
            assert_eq!(begun.contains("content-encoding"), !accepted.is_empty(), "{begun}");
            let is_chunked = begun.contains("transfer-encoding: chunked");
            let mut coded = Vec::new();
            for (piece, wanted) in [(&first, &first), (&rest, &whole)] {
                app.write_all(piece.as_bytes()).unwrap();
                until_decoded(&mut client, is_chunked, accepted, &mut coded, wanted);
            }
            drop(app);
        }
    }
}

/// Also where the body was to be coded as a whole.
#[test]
fn a_delta_does_not_wait_for_a_pause_to_end() {
    let scene = Scene::new("dictionary = \"/app.*.js\"");
    let before = halves(1).concat();
    let say = |app: &mut TcpStream, length: usize| {
        let said = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/javascript\r\nContent-Length: {length}\r\n\
             Cache-Control: max-age=600\r\n\r\n"
        );
        app.write_all(said.as_bytes()).unwrap();
    };
    let mut client = scene.connect();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut app = scene.app.take();
            head(&mut app);
            say(&mut app, before.len());
            app.write_all(before.as_bytes()).unwrap();
        });
        let get = "GET /app.1.js HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\r\n";
        assert_eq!(ask(&mut client, get).text(), before);
    });
    until("the version in the store", || {
        let names = std::fs::read_dir(scene.pki.file("store")).ok()?;
        let is_one = |name: &str| name.ends_with(".version");
        names.flatten().find(|entry| entry.file_name().to_str().is_some_and(is_one))
    });
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, before.as_bytes());
    let get = format!(
        "GET /app.2.js HTTP/1.1\r\nHost: app.test\r\nAccept-Encoding: dcz\r\n\
         Available-Dictionary: :{}:\r\n\r\n",
        STANDARD.encode(hash)
    );
    let [first, rest] = halves(3);
    let mut client = scene.connect();
    client.write_all(get.as_bytes()).unwrap();
    let mut app = scene.app.take();
    head(&mut app);
    say(&mut app, first.len() + rest.len());
    app.write_all(first.as_bytes()).unwrap();
    let begun = head(&mut client);
    assert!(begun.contains("content-encoding: dcz\r\n"), "{begun}");
    let mut coded = Vec::new();
    until_decoded(&mut client, true, "dcz", &mut coded, &first).unwrap();
    app.write_all(rest.as_bytes()).unwrap();
    until_decoded(&mut client, true, "dcz", &mut coded, &format!("{first}{rest}"));
}

/// Between events that leave no time for a pause.
const APART: Duration = Duration::from_micros(500);

/// Events that may be said until a client has heard the 100th. A coder that is not flushed holds
/// 128 KiB of them, which are 6,000.
const EVENTS_MAX: usize = 5_000;

/// On a busy machine the edge or the client may stand still while the upstream goes on.
const TRIES_MAX: usize = 3;

/// Nor for one that never comes.
#[test]
fn an_upstream_that_never_pauses_is_passed_on() {
    let scene = Scene::new("");
    for accepted in ["gzip", "br", "zstd"] {
        // Not by the clock: what is slow here is slow for the upstream too.
        let mut tries = (0..TRIES_MAX).map(|_| events_until_heard(&scene, accepted));
        assert!(
            tries.any(|told| told < EVENTS_MAX),
            "{accepted}: {EVENTS_MAX} events were said when the 100th was heard"
        );
    }
}

/// Returns the number of events that an upstream without a pause has said when its client hears the
/// 100th.
fn events_until_heard(scene: &Scene, accepted: &str) -> usize {
    let (mut client, mut app) = scene.begin(accepted, "");
    let begun = head(&mut client);
    assert!(begun.contains("content-encoding"), "{begun}");
    // Until the client has left; without a limit the coder would say nothing for seconds.
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    let telling = thread::spawn(move || {
        for n in 0.. {
            count.store(n, Ordering::SeqCst);
            if app.write_all(format!("data: event {n}\n\n").as_bytes()).is_err() {
                return;
            }
            // Not by spinning: who uses up his time on a core is made to pause.
            thread::sleep(APART);
        }
    });
    let mut coded = Vec::new();
    while !decoded(accepted, &coded, b"").windows(9).any(|said| said == b"event 100") {
        let size = usize::from_str_radix(line(&mut client).trim(), 16).unwrap();
        let at = coded.len();
        coded.resize(at + size + 2, 0);
        client.read_exact(&mut coded[at..]).unwrap();
        coded.truncate(at + size);
    }
    let told = told.load(Ordering::SeqCst);
    drop(client);
    telling.join().unwrap();
    told
}

/// An upstream that writes as fast as it can has no pause, however small its pieces are.
#[test]
fn small_pieces_compress_as_well_as_large_ones() {
    let scene = Scene::new("");
    let body = halves(5).concat();
    for accepted in ["gzip", "br", "zstd"] {
        let coded_bytes = |piece_bytes: usize| {
            let (mut client, mut app) = scene.begin(accepted, "");
            for piece in body.as_bytes().chunks(piece_bytes) {
                app.write_all(piece).unwrap();
            }
            drop(app);
            let heard = support::web::hear(&mut client, "GET");
            assert_eq!(heard.field("content-encoding"), Some(accepted));
            assert!(decoded(accepted, &heard.body, b"") == body.as_bytes(), "other bytes came");
            heard.body.len()
        };
        let at_once = coded_bytes(body.len());
        // On a busy machine the upstream is made to pause, and what is flushed then is longer.
        until("pieces without a pause", || {
            let percent = coded_bytes(700) * 100 / at_once;
            eprintln!("{accepted}: {percent} percent of what is sent at once");
            (percent <= 115).then_some(())
        });
    }
}

/// A byte taken by the client is no reason to read a byte of its response.
#[test]
fn a_response_is_not_read_byte_by_byte() {
    if !need("strace") {
        return;
    }
    let scene = Scene::new("compress = \"off\"");
    let offer = Offer { alpn: &["h2"], ..Offer::new(&scene.pki) };
    let mut client = offer.connect(scene.edge.address(), "app.test");
    let begin = [PREFACE.to_vec(), frame(SETTINGS, 0, 0, &[])].concat();
    client.write_all(&begin).unwrap();
    client.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &get("/"))).unwrap();
    let mut app = scene.app.take();
    let said = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000000\r\n\r\n";
    answer(&mut app, said);
    let sent = thread::spawn(move || app.write_all(&noise(1_000_000, 3)).map(|()| app));
    let mut taken = 0;
    let mut take = |client: &mut Tls, wanted: usize| {
        taken += wanted;
        while taken > 0 {
            let frame = next(client).unwrap();
            taken -= if frame.kind == DATA { frame.payload.len() } else { 0 };
        }
    };
    // The window that a client has from the start; then 200 bytes, each by itself.
    take(&mut client, 65_535);
    thread::sleep(A_WHILE);
    let log = scene.pki.file("trace");
    let mut strace = std::process::Command::new("strace");
    strace.args(["-f", "-e", "trace=recvfrom", "-o", log.to_str().unwrap(), "-p"]);
    let mut trace = Talk::start(strace.arg(scene.edge.pid().as_raw_nonzero().to_string()));
    trace.hear("attached");
    for _ in 0..200 {
        let update = [0, 1].map(|id| frame(WINDOW_UPDATE, 0, id, &1_u32.to_be_bytes())).concat();
        client.write_all(&update).unwrap();
        take(&mut client, 1);
    }
    trace.signal(rustix::process::Signal::INT);
    trace.finish();
    let log = std::fs::read_to_string(log).unwrap();
    let small = log.lines().filter(|line| line.contains(", 1, ") && line.ends_with("= 1")).count();
    assert!(log.lines().count() > 100, "{log}");
    assert!(small < 10, "{small} reads of a byte");
    drop((client, scene));
    let _ = sent.join();
}
