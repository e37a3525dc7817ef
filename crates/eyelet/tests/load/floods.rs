//! Floods against `limits.memory_max`: the process stays below it, logs whom it shed, and serves
//! those who behave. Memory is what the kernel reports.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustls::ClientConfig;
use rustls::client::Resumption;

use crate::support;
use crate::support::client::{echo, handshake};
use crate::support::crowd::{From, Manner, Multitude, each, many, permit, quick, sized, stuff};
use crate::support::edge::LISTENER;
use crate::support::memory::{Memory, Watch, is_counted, mib, stays_in_budget};
use crate::support::{Edge, Hello, Pki, SOON, Tls, Visited, Visits, until};

/// `memory_max` in all of these.
const MEMORY_MAX: u64 = 64 << 20;
/// Parked clients from before the flood.
const LONG_STANDING: usize = 50;
/// Nearly `hello_bytes_max`.
const HELLO_BYTES: usize = 60 << 10;
/// Those who read a little come in waves of so many.
const WAVES: usize = 4;
const WAVE: usize = 700;
/// Idle connections, more than the least budget has room for.
const IDLE_MAX: usize = 6_000;
/// So many come before it is looked again whether all fit.
const IDLE_STEP: usize = 250;
/// One may be refused because others are served just then. So many are because idle ones stay.
const REFUSED_MIN: usize = 100;
/// The access log writes so many lines at once, at the most.
const BATCH: usize = 100;
/// Of a hundred newcomers so many are served at the least.
const NEWCOMERS_PERCENT: usize = 95;
/// The addresses that flood: 127.0.0.2 to 127.0.0.9.
const SOURCES: usize = 8;

/// An edge with a name for those who behave, and two that lead to a flood's upstream.
struct Scene {
    _pki: Pki,
    _echo: Multitude,
    _flooded: Multitude,
    _deaf: Multitude,
    edge: Edge,
    config: Arc<ClientConfig>,
}

impl Scene {
    fn new(manner: Manner) -> Self {
        Self::on("", manner, "64MiB")
    }

    /// With a line about workers, or one for each processor.
    fn on(workers: &str, manner: Manner, memory_max: &str) -> Self {
        let pki = Pki::new();
        let (calm, flooded) = (Multitude::start(Manner::Echo), Multitude::start(manner));
        let terminate = |name: &str, upstream: &Multitude| {
            let rule = pki.terminate(&format!("tcp://{}", upstream.address), "");
            rule.replace("app.test", name).replace("\"app\"", &format!("\"{name}\""))
        };
        let deaf = Multitude::start(Manner::Deaf);
        let rules = format!(
            "{LISTENER}kind = \"http_redirect\"\n{LISTENER}proxy_protocol_from = \"127.0.0.1\"\n\
             {}{}{}[[rule]]\nsni = \"deaf.test\"\n\
             action = \"splice\"\nupstream = \"{}\"\n[[rule]]\nsni = \"host.test\"\n\
             action = \"splice\"\nupstream = \"{}\"\n\
             [limits]\nmemory_max = \"{memory_max}\"\n",
            terminate("calm.app.test", &calm),
            terminate("app.test", &flooded),
            // The header that is to come is held until the upstream is dialled.
            terminate("*.idle.app.test", &flooded)
                .replace("tcp://", "http://")
                .replace("action", "proxy_protocol = \"v2\"\naction"),
            deaf.address,
            flooded.address,
        );
        let config = format!("{workers}{LISTENER}{rules}");
        let edge = Edge::start_whole(&pki.folder, &config, |_| ());
        let config = quick(Resumption::disabled());
        let scene = Self { _pki: pki, _echo: calm, _flooded: flooded, _deaf: deaf, edge, config };
        echo(&mut scene.calm(From::loopback(1)).unwrap(), b"before the flood");
        scene
    }

    fn calm(&self, from: From) -> std::io::Result<Tls> {
        from.tls(self.edge.address(), &self.config, "calm.app.test")
    }

    /// Runs a flood and holds what it opened: memory stays below the bound, whoever was there
    /// before is served all the time, and so are newcomers.
    fn withstands<T: Send>(&self, label: &str, flood: impl FnOnce() -> T) -> T {
        let mut long_standing = many(LONG_STANDING, |_| self.calm(From::loopback(1)).unwrap());
        for client in &mut long_standing {
            echo(client, b"here before the flood");
        }
        let mut steady = self.calm(From::loopback(1)).unwrap();
        let steady = Visits::start(Duration::from_millis(100), move || {
            echo(&mut steady, b"well-behaved");
            true
        });
        let (address, config) = (self.edge.address(), self.config.clone());
        let newcomers = Visits::start(Duration::from_millis(200), move || {
            From::loopback(1).tls(address, &config, "calm.app.test").is_ok_and(is_served)
        });
        let watch = Watch::start(self.edge.pid());
        let base = watch.base;
        let held = flood();
        // The flood stands for a while: settling and trimming happen under it.
        thread::sleep(Duration::from_secs(3));
        let most = watch.finish();
        let rounds = steady.finish().served;
        let newcomers = newcomers.finish();
        for client in &mut long_standing {
            echo(client, b"and still here");
        }
        let Memory { resident, resident_peak, anonymous } = most;
        eprintln!(
            "{label}: at most {:.1} MiB resident (peak {:.1}), {:.1} anonymous; {rounds} echoes, \
             {newcomers:?}, {} shed",
            mib(resident),
            mib(resident_peak),
            mib(anonymous),
            self.shed()
        );
        is_counted(label, &self.edge.log(), base, anonymous);
        assert!(
            resident_peak < MEMORY_MAX && anonymous < MEMORY_MAX,
            "{label}: {:.1} MiB resident, {:.1} MiB anonymous, of {:.0} MiB",
            mib(resident_peak),
            mib(anonymous),
            mib(MEMORY_MAX)
        );
        newcomers.are_served(NEWCOMERS_PERCENT);
        held
    }

    /// Access lines of those that were shed.
    fn shed(&self) -> usize {
        self.edge.count(|line| line["reason"].as_str().is_some_and(|r| r.starts_with("shed")))
    }

    /// Each connection has its line in the end, or counts as one that lost it. Each that was shed
    /// says so.
    fn accounts(mut self) {
        self.edge.signal(Signal::TERM);
        let began = Instant::now();
        while self.edge.is_running() {
            assert!(began.elapsed() < SOON, "the edge does not end");
            thread::sleep(Duration::from_millis(10));
        }
        self.edge.wait_log(" accepted:");
        let log = self.edge.log();
        let said = |what| said(&log, what);
        let (accepted, shed) = (said(" accepted:"), said(" shed;"));
        // A reader that is slower than the drain costs lines, and the edge says how many.
        let lost = said(" access lines lost");
        let lines = || self.edge.count(|_| true) + lost;
        until("the last access line", || (lines() >= accepted).then_some(()));
        // Of the batch that was being written then, lines count as lost that are read here.
        let most = accepted + lost.min(BATCH);
        assert!((accepted..=most).contains(&lines()), "{} of {accepted} lines", lines());
        let logged = self.shed();
        assert!((logged..=logged + lost).contains(&shed), "{logged} of {shed} shed, {lost} lost");
    }
}

/// A number of "17 accepted: ..., 4 failed, 9 shed; ...", the last word of the process.
fn said(log: &str, what: &str) -> usize {
    let (before, _) = log.rsplit_once(what).unwrap_or_else(|| panic!("no {what}: {log}"));
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

/// It waits as long as a socket of a [`From`] does: a machine that is busy makes all of it slow.
fn is_served(mut client: Tls) -> bool {
    let mut back = [0; 5];
    client.write_all(b"hello").and_then(|()| client.read_exact(&mut back)).is_ok()
}

fn source(n: usize) -> From {
    From::loopback(2 + u8::try_from(n % SOURCES).unwrap()).small()
}

impl Scene {
    /// Opens connections that send this and no more; whether each was answered.
    fn half_open(&self, count: usize, bytes: &[u8], answer: usize) -> Vec<(TcpStream, bool)> {
        self.half_open_at(0, count, bytes, answer)
    }

    /// Opens them at another listener.
    fn half_open_at(
        &self,
        listener: usize,
        count: usize,
        bytes: &[u8],
        answer: usize,
    ) -> Vec<(TcpStream, bool)> {
        let begin = |n: usize| -> Option<(TcpStream, bool)> {
            let mut client = source(n).connect(self.edge.addresses()[listener]).ok()?;
            // One that was shed already may not take it all.
            let sent = client.write_all(bytes).is_ok();
            let answered = sent && client.read_exact(&mut vec![0; answer]).is_ok();
            Some((client, answered))
        };
        many(count, begin).into_iter().flatten().collect()
    }
}

/// A TLS record as long as may be (RFC 8446 5.1), without its last 100 bytes.
fn begun_record() -> Vec<u8> {
    let mut record = vec![0x17, 3, 3, 0x40, 0x11];
    record.extend(support::noise(16_301, 3));
    record
}

/// 8,000 complete hellos whose senders read the flight and never answer it.
#[test]
fn half_open_handshakes() {
    let _permit = permit(sized(8_000));
    let scene = Scene::new(Manner::Stalled);
    let hello = Hello::named("app.test").bytes();
    let flood = || scene.half_open(sized(8_000), &hello, 6);
    let held = scene.withstands("half-open handshakes", flood);
    let answered = held.iter().filter(|(_, answered)| *answered).count();
    assert!(answered > 5_300, "only {answered} of 8000 hellos were answered");
    assert!(scene.shed() > 2_600, "only {} were shed", scene.shed());
    drop(held);
    scene.accounts();
}

/// 5,000 that begin a second flight as long as a TLS record and do not end it.
#[test]
fn half_open_handshakes_with_a_record_begun() {
    let _permit = permit(sized(5_000));
    let scene = Scene::new(Manner::Stalled);
    let mut bytes = Hello::named("app.test").bytes();
    bytes.extend(begun_record());
    let flood = || scene.half_open(sized(5_000), &bytes, 6);
    let held = scene.withstands("half-open with a record begun", flood);
    drop(held);
    scene.accounts();
}

/// 5,000 hellos as long as may be, without their last byte.
#[test]
fn hellos_without_an_end() {
    let _permit = permit(sized(5_000));
    let scene = Scene::new(Manner::Stalled);
    let mut hello = Hello::named("app.test").padded_to(HELLO_BYTES).bytes();
    hello.pop();
    let flood = || scene.half_open(sized(5_000), &hello, 0);
    let held = scene.withstands("hellos without an end", flood);
    drop(held);
    scene.accounts();
}

/// 1,000 heads of requests as long as may be, without their end, at a listener that redirects.
#[test]
fn heads_without_an_end_where_all_are_redirected() {
    let _permit = permit(sized(1_500));
    let scene = Scene::new(Manner::Stalled);
    let mut head = b"GET / HTTP/1.1\r\nHost: app.test\r\nX: ".to_vec();
    head.resize(HELLO_BYTES, b'x');
    let flood = || scene.half_open_at(1, sized(1_500), &head, 0);
    drop(scene.withstands("half heads to redirect", flood));
    scene.accounts();
}

/// 1,500 hellos as long as may be for an upstream that does not answer its SYN.
#[test]
fn long_hellos_for_an_upstream_that_does_not_answer() {
    let _permit = permit(sized(1_500));
    let scene = Scene::new(Manner::Stalled);
    let hello = Hello::named("deaf.test").padded_to(HELLO_BYTES).bytes();
    let flood = || scene.half_open(sized(1_500), &hello, 0);
    let held = scene.withstands("long hellos, no answer to the SYN", flood);
    drop(held);
    scene.accounts();
}

/// 1,500 hellos as long as may be whose senders read the flight and never answer it.
#[test]
fn long_hellos_and_then_silence() {
    let _permit = permit(sized(1_500));
    let scene = Scene::new(Manner::Stalled);
    let hello = Hello::named("app.test").padded_to(HELLO_BYTES).bytes();
    let flood = || scene.half_open(sized(1_500), &hello, 6);
    let held = scene.withstands("long hellos, then silence", flood);
    drop(held);
    scene.accounts();
}

/// 3,000 that are spliced and parked, each with a list of protocols of its own: what the access
/// line keeps of it is little, and it is counted.
#[test]
fn protocols_that_are_a_connections_own() {
    let _permit = permit(sized(6_000));
    let scene = Scene::new(Manner::Echo);
    let begin = |n: usize| {
        // 16 names of 255 bytes that are no UTF-8, and no two connections with the same.
        let mut list = Vec::new();
        for name in 0..16_u8 {
            let mut bytes = [0x80 | name; 255];
            bytes[..8].copy_from_slice(&n.to_le_bytes());
            list.push(255);
            list.extend(bytes);
        }
        let length = u16::try_from(list.len()).unwrap().to_be_bytes();
        let hello = Hello::named("host.test").extension(16, &[&length, &list[..]].concat()).bytes();
        let mut client = source(n).connect(scene.edge.address()).ok()?;
        client.write_all(&hello).ok()?;
        client.read_exact(&mut vec![0; hello.len()]).ok()?;
        Some(client)
    };
    let flood = || many(sized(3_000), begin).into_iter().flatten().collect::<Vec<_>>();
    let held = scene.withstands("protocols of their own", flood);
    assert!(60 * held.len() > 59 * sized(3_000), "only {} are parked", held.len());
    drop(held);
    scene.accounts();
}

/// 4,000 that were terminated and parked long ago, and begin a TLS record all at once.
#[test]
fn parked_clients_that_begin_a_record() {
    let _permit = permit(sized(8_000));
    let scene = Scene::new(Manner::Stalled);
    let begin = |n| source(n).tls(scene.edge.address(), &scene.config, "app.test").unwrap();
    let flood = || {
        let mut held = many(sized(4_000), begin);
        let bytes = begun_record();
        each(&mut held, |client| client.sock.write_all(&bytes).unwrap());
        held
    };
    let held = scene.withstands("parked clients that begin a record", flood);
    drop(held);
    scene.accounts();
}

/// 5,000 terminated clients that read nothing of what comes without end.
#[test]
fn clients_that_never_read() {
    let _permit = permit(sized(10_000));
    let scene = Scene::new(Manner::Endless);
    let begin = |n| source(n).tls(scene.edge.address(), &scene.config, "app.test").ok();
    let held = scene.withstands("clients that never read", || many(sized(5_000), begin));
    eprintln!("{} of 5000 got in", held.iter().flatten().count());
    drop(held);
    scene.accounts();
}

/// Reads a little of each connection every 200 ms, until dropped.
struct Sipping {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Sipping {
    fn start(clients: Vec<TcpStream>) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut clients = clients;
            while !stopped.load(Ordering::Relaxed) {
                for client in &mut clients {
                    let _ = client.read(&mut [0; 64]);
                }
                thread::sleep(Duration::from_millis(200));
            }
        });
        Self { stop, threads: vec![thread] }
    }
}

impl Drop for Sipping {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Scene {
    /// A flood of clients that read a little of what comes without end, in waves. Those of whom
    /// too much is held for too long are given up.
    fn withstands_sippers(self, label: &str, begin: impl Fn(usize) -> Option<TcpStream> + Sync) {
        let flood = || {
            let mut sipping = Vec::new();
            for _ in 0..WAVES {
                let clients: Vec<_> = many(WAVE, &begin).into_iter().flatten().collect();
                sipping.push(Sipping::start(clients));
                thread::sleep(Duration::from_millis(1_500));
            }
            sipping
        };
        let held = self.withstands(label, flood);
        let is_slow = "shed: memory_max, and what was sent was not taken";
        let given_up = self.edge.count(|line| line["reason"] == is_slow);
        assert!(given_up > 0, "{label}: none of the slow is given up");
        drop(held);
        self.accounts();
    }
}

/// 2,800 terminated clients that read a little of what comes without end.
#[test]
fn clients_that_read_a_little() {
    let _permit = permit(2 * WAVES * WAVE);
    let scene = Scene::new(Manner::Endless);
    let (address, config) = (scene.edge.address(), scene.config.clone());
    scene.withstands_sippers("clients that read a little", move |n| {
        let client = source(n).tls(address, &config, "app.test").ok()?;
        client.sock.set_nonblocking(true).unwrap();
        Some(client.sock)
    });
}

/// Such clients without TLS of the edge's.
#[test]
fn spliced_clients_that_read_a_little() {
    let _permit = permit(2 * WAVES * WAVE);
    let scene = Scene::new(Manner::Endless);
    let (address, hello) = (scene.edge.address(), Hello::named("host.test").bytes());
    scene.withstands_sippers("spliced clients that read a little", move |n| {
        let mut client = source(n).connect(address).ok()?;
        client.write_all(&hello).ok()?;
        client.set_nonblocking(true).unwrap();
        Some(client)
    });
}

/// 2,000 terminated clients that send to an upstream that never reads.
#[test]
fn uploads_to_a_stalled_upstream() {
    let _permit = permit(sized(4_000));
    let scene = Scene::new(Manner::Stalled);
    let begin = |n| {
        let client = source(n).tls(scene.edge.address(), &scene.config, "app.test").ok()?;
        client.sock.set_nonblocking(true).unwrap();
        Some(client)
    };
    let flood = || {
        let mut held: Vec<Tls> = many(sized(2_000), begin).into_iter().flatten().collect();
        // As on a busy machine, records have come by the time at which the edge runs.
        for signal in [Signal::STOP, Signal::CONT] {
            scene.edge.signal(signal);
            stuff(&mut held, &support::noise(16 << 10, 5));
        }
        held
    };
    drop(scene.withstands("terminated uploads", flood));
    stays_in_budget(&scene.edge.log());
    scene.accounts();
}

/// Such uploads without TLS of the edge's.
#[test]
fn spliced_uploads_to_a_stalled_upstream() {
    let _permit = permit(sized(4_000));
    let scene = Scene::new(Manner::Stalled);
    let hello = Hello::named("host.test").bytes();
    let begin = |n| {
        let mut client = source(n).connect(scene.edge.address()).ok()?;
        client.write_all(&hello).ok()?;
        client.set_nonblocking(true).unwrap();
        Some(client)
    };
    let flood = || {
        let mut held: Vec<TcpStream> = many(sized(2_000), begin).into_iter().flatten().collect();
        stuff(&mut held, &support::noise(64 << 10, 6));
        held
    };
    drop(scene.withstands("spliced uploads", flood));
    scene.accounts();
}

fn is_idle(line: &serde_json::Value) -> bool {
    line["reason"] == "shed: memory_max, idle for longest"
}

/// A name of an idle connection. Each has its own, and a long one: names are kept, and equal ones
/// once, so that fewer connections fill a budget.
fn own_name(n: usize) -> String {
    let label = "n".repeat(63);
    format!("{n:08}.{label}.{label}.{label}.idle.app.test")
}

/// Opens connections until those that are there end for them, as `is_full` tells.
fn fill(is_full: impl Fn() -> bool, begin: impl Fn(usize) -> Option<Tls> + Sync) -> Vec<Tls> {
    let (mut held, mut came) = (Vec::new(), 0);
    while !is_full() {
        assert!(came < IDLE_MAX, "{} of {came} connections fit", held.len());
        held.extend(many(IDLE_STEP, |n| begin(came + n)).into_iter().flatten());
        came += IDLE_STEP;
        // The budget may be full before the first of them counts as idle.
        thread::sleep(Duration::from_millis(if held.len() < came { 500 } else { 0 }));
    }
    eprintln!("{} of {came} idle connections fit", held.len());
    held
}

/// Fills a budget until idle ones end, and then newcomers come after `wait`, who are served.
fn outgrow(scene: &Scene, wait: Duration, begin: impl Fn(usize) -> Option<Tls> + Sync) -> Vec<Tls> {
    let held = fill(|| scene.edge.count(is_idle) > 0, begin);
    thread::sleep(wait);
    let mut newcomers = Visited { came: 20, ..Visited::default() };
    for n in 0..newcomers.came {
        let client = scene.calm(From::loopback(10 + n as u8));
        newcomers.served += usize::from(client.is_ok_and(is_served));
    }
    newcomers.are_served(NEWCOMERS_PERCENT);
    held
}

/// With `shed_idle` those that are idle for longest make room for new ones, and no others.
#[test]
fn idle_connections_make_room_where_they_may() {
    let _permit = permit(IDLE_MAX);
    let scene = Scene::on("", Manner::Stalled, "16MiB\"\nshed_idle = true\n#");
    let begin = |n| source(n).tls(scene.edge.address(), &scene.config, &own_name(n)).ok();
    // All settle, so there are idle connections to end for each newcomer.
    let held = outgrow(&scene, Duration::from_millis(2_500), begin);
    let was_settled = |line: &serde_json::Value| line["duration_ms"].as_u64().unwrap() >= 2_000;
    assert_eq!(scene.edge.count(|line| is_idle(line) && !was_settled(line)), 0);
    drop(held);
    scene.accounts();
}

/// Parked HTTP/2 connections make room also without `shed_idle`, and no others do.
#[test]
fn parked_http2_connections_make_room() {
    let _permit = permit(IDLE_MAX);
    let scene = Scene::on("", Manner::Stalled, "16MiB");
    let mut stays = scene.calm(From::loopback(1)).unwrap();
    let mut config = ClientConfig::clone(&scene.config);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let config = Arc::new(config);
    // Two fields of 1,900 bytes stay in the table. Each connection has its own: equal ones are kept
    // once. The request has no path.
    let mut says = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    says.extend(b"\0\0\0\x04\x01\0\0\0\0\0\x0e\xe6\x01\x05\0\0\0\x01\x82\x87");
    let field =
        |name, own: &[u8]| [&[0x40, 1, name, 0x7f, 0xed, 0x0d][..], &[name; 1_892], own].concat();
    let held = outgrow(&scene, Duration::ZERO, |n| {
        let mut tls = source(n).tls(scene.edge.address(), &config, &own_name(n)).ok()?;
        let own = format!("{n:08}").into_bytes();
        let says = [&says[..], &field(b'x', &own), &field(b'y', &own)].concat();
        tls.write_all(&says).is_ok().then_some(tls)
    });
    echo(&mut stays, b"not HTTP/2");
    drop(held);
    scene.accounts();
}

/// Nobody reads the access log: lines wait in a 16th of `memory_max`, and are lost beyond it.
#[test]
fn an_access_log_that_nobody_reads() {
    let _permit = permit(4_000);
    let folder = support::Folder::new();
    let config = format!("{LISTENER}[limits]\nmemory_max = \"16MiB\"\n");
    let (mut unread, stdout) = std::io::pipe().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_eyelet"));
    command.arg("serve").arg(support::edge::write(&folder, &config));
    let mut edge = Edge::spawn_to(command, 1, stdout.into());
    let watch = Watch::start(edge.pid());
    let base = watch.base;
    // Refused by no rule. A line has about 2 KiB: 6 MiB in all.
    let protocols = [&[1, 0, 255][..], &[0x80; 255]].concat();
    let hello = Hello::named(["n"; 60].join(".")).extension(16, &protocols).bytes();
    many(4_000, |n| {
        let mut client = source(n).connect(edge.address()).unwrap();
        client.write_all(&hello).unwrap();
        let _ = client.read(&mut [0; 16]);
    });
    until("what is counted for the log", || {
        edge.signal(Signal::USR1);
        thread::sleep(Duration::from_millis(20));
        let log = edge.log();
        let (_, counted) = log.rsplit_once(" log ")?;
        let counted: usize = counted.split(',').next()?.parse().ok()?;
        // A 16th, and a batch of each worker and of the writer.
        let workers = thread::available_parallelism().unwrap().get();
        assert!(counted <= (1 << 20) + (workers + 1) * (20 << 10), "{counted} bytes of lines wait");
        (counted > 900 << 10).then_some(())
    });
    let most = watch.finish();
    is_counted("unread access log", &edge.log(), base, most.anonymous);
    edge.signal(Signal::TERM);
    edge.wait_exit();
    until("the word on lost lines", || edge.log().contains("access lines lost").then_some(()));
    let log = edge.log();
    let said = |what| said(&log, what);
    // What the pipe took is read here. The reader gets a part of the batch that was being written.
    let mut text = String::new();
    unread.read_to_string(&mut text).unwrap();
    let (whole, accepted) = (text.matches('\n').count(), said(" accepted:"));
    let lost = said(" access lines lost");
    assert!(lost + whole >= accepted, "{lost} lost and {whole} written of {accepted} lines");
    assert!(lost + whole <= accepted + BATCH, "{lost} lost, {whole} written of {accepted} lines");
}

/// The way in which a client reaches the edge.
#[derive(Clone, Copy)]
enum Way {
    Directly,
    /// Behind a proxy that names each client in a PROXY header, as a load balancer does.
    Proxied,
}

impl Scene {
    /// A client whose source is 127.0.0.n, or 192.0.2.n behind a proxy.
    fn client(&self, way: Way, n: u8, name: &str) -> std::io::Result<Tls> {
        match way {
            Way::Directly => From::loopback(n).tls(self.edge.address(), &self.config, name),
            Way::Proxied => {
                let mut socket = From::loopback(1).connect(self.edge.addresses()[2])?;
                let header = format!("PROXY TCP4 192.0.2.{n} 192.0.2.200 5000 443\r\n");
                socket.write_all(header.as_bytes())?;
                handshake(self.config.clone(), socket, name)
            }
        }
    }

    /// So many greedy sources fill the budget with connections that stay, beside `before` clients
    /// of others: their own new ones are shed, and newcomers of others are served.
    fn outlasts(self, way: Way, greedy: u8, before: usize) {
        const OTHERS: u8 = 100;
        let _before =
            many(before, |n| self.client(way, OTHERS + n as u8, "calm.app.test").unwrap());
        let from = |n: usize| 2 + u8::try_from(n % usize::from(greedy)).unwrap();
        let begin = |n| self.client(way, from(n), &own_name(n)).ok();
        let is_told = |line: &serde_json::Value| {
            line["reason"] == "shed: memory_max, and this source holds more than its share"
        };
        // A source that is alone, or one among many alike, has no share to exceed.
        let is_refused = |line: &serde_json::Value| {
            is_told(line) || (greedy > 1 || before == 0) && line["reason"] == "shed: memory_max"
        };
        let held = fill(|| self.edge.count(is_refused) >= REFUSED_MIN, begin);
        let (count, mut served) = (20, 0);
        for n in 0..count {
            let client = self.client(way, OTHERS + n % 5, "calm.app.test");
            served += u8::from(client.is_ok_and(is_served));
            let _ = self.client(way, 2 + n % greedy, "calm.app.test");
        }
        assert_eq!(served, count, "others are served");
        let net = match way {
            Way::Directly => "127.0.0",
            Way::Proxied => "192.0.2",
        };
        let is_greedy = |line: &serde_json::Value| {
            let client = line["client"].as_str().unwrap();
            (2..2 + greedy).any(|n| client.starts_with(&format!("{net}.{n}:")))
        };
        let is_shed =
            |line: &serde_json::Value| line["reason"].as_str().unwrap().starts_with("shed: ");
        assert_eq!(self.edge.count(|line| is_shed(line) && !is_greedy(line)), 0, "nobody else is");
        drop(held);
        self.accounts();
    }
}

/// With the least budget there is, idle connections alone fill it.
fn least(workers: usize) -> Scene {
    Scene::on(&format!("workers = {workers}\n"), Manner::Stalled, "16MiB")
}

#[test]
fn a_greedy_source_is_shed_before_others() {
    let _permit = permit(IDLE_MAX);
    least(2).outlasts(Way::Directly, 1, 10);
}

/// A source that is alone has no share to exceed, and leaves the last eighth all the same. The
/// kernel spreads its connections over all workers.
#[test]
fn a_greedy_source_alone_is_shed_before_others() {
    let _permit = permit(IDLE_MAX);
    least(8).outlasts(Way::Directly, 1, 0);
}

/// Many sources that are alike exceed no share either.
#[test]
fn greedy_sources_that_are_alike_are_shed_before_others() {
    let _permit = permit(IDLE_MAX);
    least(1).outlasts(Way::Directly, 12, 10);
}

/// Its connection is accepted before anybody knows whose it is.
#[test]
fn a_greedy_client_of_a_proxy_is_shed_before_others() {
    let _permit = permit(IDLE_MAX);
    least(2).outlasts(Way::Proxied, 1, 10);
}
