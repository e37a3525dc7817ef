//! Floods and accidents: many half hellos, resets in every phase, garbage. Nothing may leak, and
//! other clients notice nothing. /proc tells descriptors and memory.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use crate::support;
use crate::support::client::{Offer, echo};
use crate::support::crowd::permit;
use crate::support::edge::splice;
use crate::support::hello::server_flight;
use crate::support::{Edge, End, Hello, Pki, SOON, Tls, Upstream, ending, noise, until};

/// The descriptors that a test process has open beside its sockets.
const SPARE_DESCRIPTORS: u64 = 400;

/// The descriptors that the edge counts for a connection, and those for the clients beside a flood.
const CONNECTION_DESCRIPTORS: usize = 2;
const DESCRIPTORS_OF_OTHERS: usize = 100;

/// The bytes that may be left of a flood of 10,000 in memory: 800 for each, of which the slab's
/// entries and the kernel's idea of a page are most.
const KEPT_BYTES_MAX: u64 = 8 << 20;

/// Returns the number of connections that a test may hold that has the process's descriptors to
/// itself. The edge says how many it has for connections, and counts two for each, which it may
/// come to splice.
fn many(wanted: usize, edge: &Edge) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let here = limit.current.map_or(wanted as u64, |max| max.saturating_sub(SPARE_DESCRIPTORS));
    let log = edge.log();
    // Descriptors bound it, or are named behind the limit that does.
    let behind = |before| Some(log.split_once(before)?.1.split([' ', ',']).next()?.to_owned());
    let at_edge = behind("descriptors for ").or_else(|| behind(", at most "));
    let at_edge: usize = at_edge.expect("a line with the limits").parse().unwrap();
    let room = usize::try_from(here).unwrap().min(at_edge - DESCRIPTORS_OF_OTHERS);
    wanted.min(room / CONNECTION_DESCRIPTORS)
}

struct Scene {
    edge: Edge,
    pki: Pki,
    _echo: Upstream,
}

impl Scene {
    fn new(limits: &str) -> Self {
        let pki = Pki::new();
        let echo = Upstream::echo();
        let splice = splice(echo.address, "");
        let terminate = pki.terminate(&format!("tcp://{}", echo.address), "");
        let edge = Edge::start(&pki.folder, &format!("{splice}{terminate}{limits}"));
        Self { edge, pki, _echo: echo }
    }

    fn tls(&self) -> Tls {
        Offer::new(&self.pki).connect(self.edge.address(), "app.test")
    }

    /// TLS where a hello has little time: whom a slow machine made late comes again.
    fn tls_in_time(&self) -> Tls {
        let offer = Offer::new(&self.pki);
        until("a hello in time", || offer.try_connect(self.edge.address(), "app.test").ok())
    }
}

/// Echoes on one connection and on new ones again and again while something else goes on. Each must
/// come back in [`SOON`]. Gives the longest that it waited, for people.
fn undisturbed(scene: &Scene, until_done: &AtomicBool) -> Duration {
    let mut held = scene.tls();
    let mut longest = Duration::ZERO;
    while !until_done.load(Ordering::SeqCst) {
        let began = Instant::now();
        echo(&mut held, b"still here?");
        echo(&mut scene.tls(), b"and new ones?");
        longest = longest.max(began.elapsed());
        thread::sleep(Duration::from_millis(50));
    }
    longest
}

#[test]
fn ten_thousand_half_hellos_at_once() {
    let _permit = permit(10_000);
    // The queue of the kernel is shorter than this flood, and the clients are on the same
    // two cores: the timeout is long enough for all to be there at the same time.
    let scene = Scene::new("[limits]\nhello_timeout = \"15s\"\nhandshake_timeout = \"1m\"");
    echo(&mut scene.tls(), b"before the flood");
    until("the first line", || (!scene.edge.lines().is_empty()).then_some(()));
    let (descriptors, rss) = (scene.edge.descriptors_at_rest(), scene.edge.rss_bytes());
    let wanted = many(10_000, &scene.edge);
    let hello = Hello::named("host.test").bytes();
    let done = AtomicBool::new(false);
    let (held, longest) = thread::scope(|scope| {
        let watched = scope.spawn(|| undisturbed(&scene, &done));
        let mut held: Vec<TcpStream> = Vec::with_capacity(wanted);
        for i in 0..wanted {
            let mut client = scene.edge.connect();
            client.write_all(&hello[..1 + i % (hello.len() - 1)]).unwrap();
            held.push(client);
        }
        done.store(true, Ordering::SeqCst);
        (held, watched.join().unwrap())
    });
    let peak = scene.edge.rss_bytes().saturating_sub(rss);
    until("each half hello's line", || {
        let late = |line: &serde_json::Value| {
            line["reason"].as_str().is_some_and(|reason| reason.contains("hello_timeout"))
        };
        (scene.edge.count(late) >= wanted).then_some(())
    });
    let open = scene.edge.descriptors();
    drop(held);
    scene.edge.wait_descriptors(descriptors);
    eprintln!("{wanted}: {open} open late, {peak} bytes more, waited {longest:?}");
    scene.edge.wait_memory(rss, KEPT_BYTES_MAX);
    echo(&mut scene.tls(), b"all is well");
}

#[test]
fn a_reset_in_every_phase() {
    let scene = Scene::new("");
    drop(scene.tls());
    until("the first line", || (!scene.edge.lines().is_empty()).then_some(()));
    let descriptors = scene.edge.descriptors_at_rest();
    let hello = Hello::named("host.test").bytes();
    let mut clients = 0;
    for round in 0..30_usize {
        // Before a byte, in the hello, after it, with the upstream's answer unread.
        for length in [0, 1, 5, 40 + round, hello.len() - 1, hello.len()] {
            let mut client = scene.edge.connect();
            client.write_all(&hello[..length]).unwrap();
            support::reset(client);
            clients += 1;
        }
        let mut client = scene.edge.connect();
        client.write_all(&hello).unwrap();
        client.read_exact(&mut [0; 20]).unwrap();
        support::reset(client);

        // In the handshake: after the hello, after each part of what the server answers.
        for read_bytes in [0, 1, 100, 600] {
            let name = "app.test".try_into().unwrap();
            let config = Offer::new(&scene.pki).config();
            let mut session = rustls::ClientConnection::new(config, name).unwrap();
            let mut client = scene.edge.connect();
            session.write_tls(&mut client).unwrap();
            client.read_exact(&mut vec![0; read_bytes]).unwrap();
            support::reset(client);
            clients += 1;
        }
        // After the handshake, and in the middle of an echo.
        support::reset(scene.tls().sock);
        let mut tls = scene.tls();
        tls.write_all(&noise(100_000, 3)).unwrap();
        support::reset(tls.sock);
        clients += 3;
    }
    until("a line for each", || (scene.edge.lines().len() > clients).then_some(()));
    scene.edge.wait_descriptors(descriptors);
    for line in scene.edge.lines() {
        assert!(!line["reason"].as_str().unwrap().is_empty(), "{line}");
    }
    echo(&mut scene.tls(), b"all is well");
}

#[test]
fn a_reset_by_the_upstream_in_every_phase() {
    let pki = Pki::new();
    let count = AtomicU32::new(0);
    let upstream = Upstream::serve(move |mut stream| {
        let bytes = [0, 1, 400][count.fetch_add(1, Ordering::SeqCst) as usize % 3];
        let _ = stream.write_all(&noise(bytes, 3));
        support::reset(stream);
    });
    let splice = splice(upstream.address, "");
    let terminate = pki.terminate(&format!("tcp://{}", upstream.address), "");
    let edge = Edge::start(&pki.folder, &format!("{splice}{terminate}"));
    let descriptors = edge.descriptors_at_rest();
    for _ in 0..30 {
        let mut client = edge.connect();
        client.write_all(&Hello::named("host.test").bytes()).unwrap();
        assert_ne!(ending(&mut client, SOON).1, End::Open);
        if let Ok(mut tls) = Offer::new(&pki).try_connect(edge.address(), "app.test") {
            assert_ne!(ending(&mut tls.sock, SOON).1, End::Open);
        }
    }
    until("a line for each", || (edge.lines().len() >= 60).then_some(()));
    edge.wait_descriptors(descriptors);
}

/// Garbage behind a good hello is the upstream's to judge.
#[test]
fn a_good_hello_with_garbage_behind() {
    let pki = Pki::new();
    let upstream = Upstream::by_hand();
    let rule = splice(upstream.address, "");
    let edge = Edge::start(&pki.folder, &rule);
    for seed in 1..20 {
        let mut client = edge.connect();
        let bytes = [Hello::named("host.test").bytes(), noise(3000, seed)].concat();
        client.write_all(&bytes).unwrap();
        let mut upstream = upstream.take();
        let mut got = vec![0; bytes.len()];
        upstream.read_exact(&mut got).unwrap();
        assert!(got == bytes);
        upstream.write_all(&server_flight()).unwrap();
        drop(upstream);
        assert_eq!(ending(&mut client, SOON), (server_flight(), End::Fin));
    }
}

#[test]
fn random_bytes_of_every_beginning() {
    let scene = Scene::new("[limits]\nhello_timeout = \"500ms\"");
    drop(scene.tls_in_time());
    until("the first line", || (!scene.edge.lines().is_empty()).then_some(()));
    let descriptors = scene.edge.descriptors_at_rest();
    let beginnings: [&[u8]; 6] =
        [b"", &[0x16], &[0x16, 3, 1], &[0x16, 3, 1, 0, 200], &[0x16, 3, 1, 0, 200, 1, 0, 0], b"G"];
    let mut clients = 0;
    for beginning in beginnings {
        for seed in 1..60 {
            let mut client = scene.edge.connect();
            let _ = client.write_all(&[beginning, &noise(300, seed * 7919)].concat());
            let (_, end) = ending(&mut client, SOON);
            assert_ne!(end, End::Open);
            clients += 1;
        }
    }
    until("a line for each", || (scene.edge.lines().len() > clients).then_some(()));
    scene.edge.wait_descriptors(descriptors);
    echo(&mut scene.tls_in_time(), b"all is well");
}

/// Good and bad clients at once, a different mix each: the good ones get every byte.
#[test]
fn a_mix_of_everything() {
    let scene = Scene::new("");
    drop(scene.tls());
    until("the first line", || (!scene.edge.lines().is_empty()).then_some(()));
    // Bulk leaves pipes behind, in a pool.
    scene.edge.descriptors_at_rest();
    let sockets = scene.edge.sockets();
    let (threads, rounds) = (6_u64, 60_u64);
    thread::scope(|scope| {
        for thread in 0..threads {
            let scene = &scene;
            scope.spawn(move || {
                for round in 0..rounds {
                    any_client(scene, 1 + thread * 1000 + round);
                }
            });
        }
    });
    let clients = usize::try_from(threads * rounds).unwrap();
    until("a line for each", || (scene.edge.lines().len() > clients).then_some(()));
    scene.edge.wait_sockets(sockets);
    echo(&mut scene.tls(), b"all is well");
}

/// One client, by a number that says which and how much.
fn any_client(scene: &Scene, seed: u64) {
    let dice = noise(8, seed * 0x9e37_79b9);
    let bytes = noise(usize::from(u16::from_le_bytes([dice[0], dice[1]])) * 8, seed);
    match dice[2] % 8 {
        0 | 1 => echo_in_pieces(&mut scene.tls(), &bytes),
        2 | 3 => {
            let mut client = scene.edge.connect();
            let hello = Hello::named("host.test").bytes();
            client.write_all(&hello).unwrap();
            client.read_exact(&mut vec![0; hello.len()]).unwrap();
            echo_in_pieces(&mut client, &bytes);
        }
        4 => support::reset({
            let mut tls = scene.tls();
            let _ = tls.write(&bytes);
            tls.sock
        }),
        5 => {
            let mut client = scene.edge.connect();
            let hello = Hello::named("host.test").bytes();
            let _ = client.write_all(&[&hello[..], &bytes].concat());
            support::reset(client);
        }
        6 => {
            let mut client = scene.edge.connect();
            let _ = client.write_all(&Hello::named("nowhere.test").bytes());
            assert_eq!(ending(&mut client, SOON).0.len(), 7, "an alert record");
        }
        _ => {
            let mut client = scene.edge.connect();
            let _ = client.write_all(&bytes[..bytes.len().min(300)]);
        }
    }
}

fn echo_in_pieces(stream: &mut (impl Read + Write), bytes: &[u8]) {
    for piece in bytes.chunks(40_000) {
        echo(stream, piece);
    }
}

/// A burst and its end, again and again: memory must not climb from one to the next.
#[test]
fn memory_does_not_climb() {
    let scene = Scene::new("");
    let burst = || {
        let held: Vec<Tls> = (0..200).map(|_| scene.tls()).collect();
        for mut tls in held {
            echo(&mut tls, b"hello");
        }
    };
    burst();
    burst();
    let before = scene.edge.rss_bytes();
    for _ in 0..4 {
        burst();
    }
    scene.edge.wait_memory(before, 4 << 20);
}
