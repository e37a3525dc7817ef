//! Connections that wait, in every state: none may use processor time. A mistake about readiness is
//! a busy loop, and shows only there.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::support::client::Offer;
use crate::support::edge::splice;
use crate::support::hello::server_flight;
use crate::support::{A_WHILE, Edge, Hello, Pki, SOON, Tls, Upstream, noise};

/// The time of one observation.
const WATCH: Duration = Duration::from_millis(800);
/// Hundredths of a second that ticks, the log and a loaded machine may take of that; one loop
/// takes 80.
const TICKS_MAX: u64 = 10;

struct Scene {
    edge: Edge,
    pki: Pki,
    upstream: Upstream,
}

impl Scene {
    fn new(scheme: &str, more: &str) -> Self {
        let pki = Pki::new();
        let upstream = Upstream::by_hand();
        let splice = splice(upstream.address, "");
        let terminate = pki.terminate(&format!("{scheme}://{}", upstream.address), "");
        let edge = Edge::start(&pki.folder, &format!("{splice}{terminate}{more}"));
        Self { edge, pki, upstream }
    }

    fn spliced(&self) -> (TcpStream, TcpStream) {
        let mut client = self.edge.connect();
        let hello = Hello::named("host.test").bytes();
        client.write_all(&hello).unwrap();
        let mut upstream = self.upstream.take();
        upstream.read_exact(&mut vec![0; hello.len()]).unwrap();
        upstream.write_all(&server_flight()).unwrap();
        client.read_exact(&mut vec![0; server_flight().len()]).unwrap();
        (client, upstream)
    }

    fn terminated(&self) -> (Tls, TcpStream) {
        let client = Offer::new(&self.pki).connect(self.edge.address(), "app.test");
        (client, self.upstream.take())
    }

    /// Waits until all that can move has moved: until it is seen at rest once. What loops never is.
    fn is_at_rest(&self, label: &str) {
        let began = Instant::now();
        loop {
            std::thread::sleep(A_WHILE);
            let before = self.edge.cpu_ticks();
            std::thread::sleep(WATCH);
            let used = self.edge.cpu_ticks() - before;
            if used <= TICKS_MAX {
                return;
            }
            let late = began.elapsed() > SOON;
            assert!(!late, "{label}: {used}0 ms of processor time in {WATCH:?} of rest");
        }
    }
}

/// Writes until nothing more is taken, or next to nothing: a full socket takes a few bytes each
/// time that its window is probed.
fn stuff(stream: &mut impl Write) {
    let piece = noise(1 << 14, 7);
    let began = Instant::now();
    while began.elapsed() < 4 * A_WHILE && stream.write_all(&piece).is_ok() {}
}

#[test]
fn before_a_hello() {
    let scene = Scene::new("tcp", "");
    let hello = Hello::named("host.test").bytes();
    let silent = scene.edge.connect();
    let mut half = scene.edge.connect();
    half.write_all(&hello[..70]).unwrap();
    scene.is_at_rest("no hello, and half of one");
    drop((silent, half));
}

#[test]
fn spliced_and_half_closed() {
    let scene = Scene::new("tcp", "");
    let idle = scene.spliced();
    let (client, upstream) = scene.spliced();
    client.shutdown(Shutdown::Write).unwrap();
    let (other_client, other_upstream) = scene.spliced();
    other_upstream.shutdown(Shutdown::Write).unwrap();
    scene.is_at_rest("spliced: idle, and half-closed from each side");
    drop((idle, client, upstream, other_client, other_upstream));
}

#[test]
fn spliced_and_nobody_reads() {
    let scene = Scene::new("tcp", "");
    let (client, mut upstream) = scene.spliced();
    upstream.set_write_timeout(Some(A_WHILE)).unwrap();
    stuff(&mut upstream);
    let (mut other_client, other_upstream) = scene.spliced();
    other_client.set_write_timeout(Some(A_WHILE)).unwrap();
    stuff(&mut other_client);
    other_client.shutdown(Shutdown::Write).unwrap();
    scene.is_at_rest("spliced: a client and an upstream that do not read");
    drop((client, upstream, other_client, other_upstream));
}

#[test]
fn terminated_and_half_closed() {
    let scene = Scene::new("tcp", "");
    let idle = scene.terminated();
    let (mut client, upstream) = scene.terminated();
    client.conn.send_close_notify();
    client.flush().unwrap();
    let (ended_client, ended_upstream) = scene.terminated();
    ended_client.sock.shutdown(Shutdown::Write).unwrap();
    let (other_client, other_upstream) = scene.terminated();
    other_upstream.shutdown(Shutdown::Write).unwrap();
    scene.is_at_rest("terminated: idle, close_notify, FIN alone, upstream's FIN");
    drop((idle, client, upstream, ended_client, ended_upstream, other_client, other_upstream));
}

#[test]
fn terminated_and_nobody_reads() {
    let scene = Scene::new("tcp", "");
    let (client, mut upstream) = scene.terminated();
    upstream.set_write_timeout(Some(A_WHILE)).unwrap();
    stuff(&mut upstream);
    let (mut other_client, other_upstream) = scene.terminated();
    // What the socket does not take rustls keeps, up to its own limit.
    other_client.sock.set_nonblocking(true).unwrap();
    stuff(&mut other_client);
    scene.is_at_rest("terminated: a client and an upstream that do not read");
    drop((client, upstream, other_client, other_upstream));
}

#[test]
fn half_a_record_and_an_upstream_that_is_not_dialled() {
    let scene = Scene::new("http", "");
    let offer = Offer::new(&scene.pki);
    let quiet = offer.connect(scene.edge.address(), "app.test");
    let mut half = offer.connect(scene.edge.address(), "app.test");
    half.sock.write_all(&[0x17, 3, 3, 0x10, 0, 1, 2, 3]).unwrap();
    scene.is_at_rest("terminated: not dialled, and half a record");
    drop((quiet, half));
}

#[test]
fn at_the_limit() {
    let scene = Scene::new("tcp", "[limits]\nconnections_max = 2");
    let held: Vec<TcpStream> = (0..40).map(|_| scene.edge.connect()).collect();
    scene.edge.wait_log("accepting pauses");
    scene.is_at_rest("accepting pauses at the limit");
    drop(held);
}

#[test]
fn refused_and_still_there() {
    let scene = Scene::new("tcp", "");
    let mut held = Vec::new();
    for _ in 0..20 {
        let mut client = scene.edge.connect();
        client.write_all(&Hello::named("nowhere.test").bytes()).unwrap();
        held.push(client);
    }
    scene.is_at_rest("refused clients that do not close");
}
