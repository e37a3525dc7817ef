//! Upgrades with thousands of connections. `EYELET_HELD=10000 cargo test --release -p eyelet --test
//! load upgrades -- --nocapture` prints the figures of the documentation.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustls::client::Resumption;

use crate::support::client::{TLS13, echo};
use crate::support::crowd::{From, each, light, many, permit};
use crate::support::edge::{self, LISTENER};
use crate::support::web::{get, head};
use crate::support::{Edge, Hello, Pki, Tls, Upstream, noise, output, until};

/// Clients of HTTP that are at rest, unless the environment names another number.
const HELD: usize = 600;
/// Of so many clients at rest, one more has a spliced pair under traffic, and one in fifty more has
/// a WebSocket.
const PER_PAIR: usize = 10;
const PER_SOCKET: usize = 50;
/// Threads that move bytes through spliced pairs.
const MOVERS: usize = 2;

const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                      Upgrade: websocket\r\n\
                      Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
const CHAT: &str = "GET /chat HTTP/1.1\r\nHost: app.test\r\nConnection: Upgrade\r\n\
                    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// Connections of one address would take ports that a minute ago were those of other tests.
fn from(n: usize) -> From {
    From::loopback(1 + (n % 8) as u8)
}

/// Serves pages, and WebSockets as an echo.
fn application() -> Upstream {
    Upstream::serve(|mut stream| {
        let mut byte = [0];
        while let Ok(1) = stream.peek(&mut byte) {
            if head(&mut stream).starts_with("GET /chat") {
                let _ = stream.write_all(SWITCH.as_bytes());
                let mut piece = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut piece) {
                    let _ = stream.write_all(&piece[..length]);
                }
                return;
            }
            let page = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            if stream.write_all(page.as_bytes()).is_err() {
                return;
            }
        }
    })
}

fn spliced(address: SocketAddr, n: usize) -> TcpStream {
    let mut stream = from(n).connect(address).unwrap();
    let hello = Hello::named("host.test").bytes();
    stream.write_all(&hello).unwrap();
    crate::support::expect(&mut stream, &hello);
    stream
}

fn socket(tls: Tls) -> Tls {
    let mut tls = tls;
    tls.write_all(CHAT.as_bytes()).unwrap();
    tls.flush().unwrap();
    assert!(head(&mut tls).starts_with("HTTP/1.1 101"));
    tls
}

/// Moves pieces through the pairs, one after the other, and checks each byte. Returns the number.
fn run_through(pairs: &mut [TcpStream], stop: &AtomicBool) -> usize {
    let mut moved = 0;
    while !stop.load(Ordering::Relaxed) {
        for (n, pair) in pairs.iter_mut().enumerate() {
            let piece = noise(1 + (moved + n * 131) % 9_000, (moved + n) as u64);
            pair.write_all(&piece).unwrap();
            crate::support::expect(pair, &piece);
            moved += piece.len();
        }
    }
    moved
}

/// Connects again and again. Returns the longest time until a new connection was served.
fn probe(address: SocketAddr, stop: &AtomicBool, count: &AtomicUsize) -> Duration {
    let hello = Hello::named("host.test").bytes();
    let mut longest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let mut stream = edge::connect(address);
        stream.write_all(&hello).unwrap();
        crate::support::expect(&mut stream, &hello);
        longest = longest.max(began.elapsed());
        count.fetch_add(1, Ordering::Relaxed);
    }
    longest
}

/// Runs a probe of accepting while `act` runs.
fn probed<T>(address: SocketAddr, act: impl FnOnce() -> T) -> (T, Duration, usize) {
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (acted, longest) = thread::scope(|scope| {
        let prober = scope.spawn(|| probe(address, &stop, &count));
        let acted = act();
        stop.store(true, Ordering::Relaxed);
        (acted, prober.join().unwrap())
    });
    (acted, longest, count.into_inner())
}

#[test]
fn nothing_is_lost_by_two_upgrades() {
    let held = std::env::var("EYELET_HELD").map_or(HELD, |held| held.parse().unwrap());
    let (pairs, sockets) = (held / PER_PAIR, held / PER_SOCKET);
    let _permit = permit(held + 2 * pairs + 2 * sockets);
    let (pki, tcp, http) = (Pki::new(), Upstream::echo(), application());
    let rules = format!(
        "{}{}",
        edge::splice(tcp.address, ""),
        pki.terminate(&format!("http://{}", http.address), "")
    );
    let limits = "[limits]\nhandshake_timeout = \"1m\"\nhello_timeout = \"1m\"\n";
    let config = format!("workers = 2\n{LISTENER}{rules}{limits}");
    let file = edge::write(&pki.folder, &config);
    let mut command = edge::eyelet(&pki.folder);
    command.arg("serve").arg(&file);
    let edge = Edge::spawn(command, 1);
    let (address, config) = (edge.address(), light(TLS13, Resumption::disabled()));
    let connect = |n| from(n).tls(address, &config, "app.test").unwrap();
    let mut clients = many(held, |n| {
        let mut tls = connect(n);
        assert_eq!(get(&mut tls, "/").status, 200);
        tls
    });
    let mut chats: Vec<Tls> = many(sockets, |n| socket(connect(n)));
    let mut moving = many(pairs, |n| spliced(address, n));
    let ((), usual, served) = probed(address, || thread::sleep(Duration::from_secs(1)));
    println!("no upgrade: longest wait of {served} new connections {usual:?}");
    let stop = AtomicBool::new(false);
    let mut last = None;
    let moved: usize = thread::scope(|scope| {
        let part = moving.len().div_ceil(MOVERS);
        let parts = moving.chunks_mut(part);
        let movers: Vec<_> = parts.map(|part| scope.spawn(|| run_through(part, &stop))).collect();
        for round in 0..2 {
            let refresh = |tls: &mut Tls| tls.conn.refresh_traffic_keys().unwrap();
            clients.iter_mut().chain(&mut chats).for_each(refresh);
            let mut upgrade = edge::eyelet(&pki.folder);
            upgrade.arg("upgrade").arg(&file);
            let (said, longest, served) = probed(address, || {
                until("the upgrade", || {
                    let said = output(&mut upgrade);
                    (!said.text.contains("still hands over")).then_some(said)
                })
            });
            assert!(said.status.success(), "{}\n{}", said.text, edge.log());
            println!("round {round}: longest wait of {served} new connections {longest:?}");
            println!("{}", said.text.trim_end());
            let (_, rest) = said.text.split_once(": process ").unwrap();
            last = Pid::from_raw(rest.split(' ').next().unwrap().parse().unwrap());
            clients.iter_mut().chain(&mut chats).for_each(refresh);
            each(&mut clients, |tls| assert_eq!(get(tls, "/").text(), "ok"));
            each(&mut chats, |tls| echo(tls, b"\x81\x82\0\0\0\0ab"));
        }
        stop.store(true, Ordering::Relaxed);
        movers.into_iter().map(|mover| mover.join().unwrap()).sum()
    });
    println!(
        "{held} at rest, {sockets} WebSockets, {pairs} pairs that moved {moved} bytes: 0 lost"
    );
    edge.signal(Signal::CONT);
    kill_process(last.unwrap(), Signal::KILL).unwrap();
}
