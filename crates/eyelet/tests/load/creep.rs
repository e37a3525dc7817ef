//! Memory does not creep: thousands of short connections, again and again, leave nothing behind.
//! Memory is what the kernel reports as anonymous: it pages code out and in as it likes.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::{ClientConfig, HandshakeKind};

use crate::support::crowd::{From, Manner, Multitude, each, many, permit, quick};
use crate::support::memory::{Memory, mib};
use crate::support::{Edge, Pki, Tls, until};

/// Short connections in a run. The measurement that this follows takes 20,000 (`ab -c500 -n20000`),
/// too many for a test without optimisation. A leak grows with fewer, too.
const CONNECTIONS: usize = 2_500;
/// Of them open at once.
const AT_ONCE: usize = 500;
/// For so many tickets of each name rustls' store of tickets makes room.
const TICKETS_A_NAME: usize = 8;
/// Different names in the last run.
const NAMES: usize = 1_000;
/// The bytes that the second run may leave more than the first.
const CREEP_BYTES_MAX: u64 = 512 << 10;
/// The bytes that may be left of everything some seconds after the last close.
const LEFT_BYTES_MAX: u64 = 2 << 20;

struct Scene {
    _upstream: Multitude,
    edge: Edge,
}

impl Scene {
    fn new(scheme: &str) -> Self {
        let pki = Pki::new();
        let upstream = Multitude::start(Manner::Answer);
        let rule = pki.terminate(&format!("{scheme}://{}", upstream.address), "");
        let rule = rule.replace("\"app.test\"", "[\"app.test\", \"*.app.test\"]");
        let edge = Edge::start(&pki.folder, &format!("{rule}[log]\naccess = \"off\"\n"));
        Self { _upstream: upstream, edge }
    }

    /// So many short connections, each with a request and its answer; how many were resumed.
    fn run(&self, config: &Arc<ClientConfig>, name: impl Fn(usize) -> String + Sync) -> usize {
        let address = self.edge.address();
        let mut resumed = 0;
        for batch in 0..CONNECTIONS / AT_ONCE {
            let open = |n: usize| {
                let name = name(batch * AT_ONCE + n);
                From::loopback(1).tls(address, config, &name).unwrap()
            };
            // All of a batch are open before the first of them asks.
            let mut clients = many(AT_ONCE, open);
            each(&mut clients, ask);
            let kinds = clients.iter().map(|client| client.conn.handshake_kind());
            resumed += kinds.filter(|kind| *kind == Some(HandshakeKind::Resumed)).count();
        }
        resumed
    }

    fn memory(&self, label: &str) -> Memory {
        let memory = Memory::of(self.edge.pid());
        eprintln!(
            "{label}: {:.2} MiB resident, {:.2} anonymous",
            mib(memory.resident),
            mib(memory.anonymous)
        );
        memory
    }
}

fn ask(client: &mut Tls) {
    client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(b"yes"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn runs_of_short_connections_leave_nothing() {
    leave_nothing("tcp");
}

#[test]
fn runs_of_single_requests_leave_nothing() {
    leave_nothing("http");
}

fn leave_nothing(scheme: &str) {
    let _permit = permit(2 * AT_ONCE);
    let scene = Scene::new(scheme);
    let full = quick(Resumption::disabled());
    let tickets = quick(Resumption::in_memory_sessions(TICKETS_A_NAME * AT_ONCE));
    let app = |_| String::from("app.test");
    // The program's own pages and tables: what a first connection needs is no creep.
    drop(many(4, |_| {
        ask(&mut From::loopback(1).tls(scene.edge.address(), &full, "app.test").unwrap())
    }));
    let start = Memory::at_rest(scene.edge.pid());
    scene.memory("at the start");

    scene.run(&full, app);
    let first = scene.memory("after the first run");
    scene.run(&full, app);
    let second = scene.memory("after the second run");
    // A ticket is used once (RFC 8446 C.4): each place of a batch has a name, and so one ready.
    let resumed = scene.run(&tickets, |n| format!("t{}.app.test", n % AT_ONCE));
    let third = scene.memory("after a run with tickets");
    assert!(resumed > CONNECTIONS / 2, "only {resumed} of {CONNECTIONS} were resumed");
    // What is kept of a name is the handshake's, whatever the upstream speaks.
    if scheme == "tcp" {
        scene.run(&full, |n| format!("n{}.app.test", n % NAMES));
        scene.memory("after a run with names");
    }

    // A run that happens to have more open at once leaves more, once; what creeps does each time.
    let growth = |from: &Memory, to: &Memory| to.anonymous.saturating_sub(from.anonymous);
    let more = growth(&first, &second).min(growth(&second, &third));
    assert!(more <= CREEP_BYTES_MAX, "each run left {more} bytes more than the one before");
    // Buffers and heaps are given back at deadlines, some seconds after the last close.
    until("memory to be given back", || {
        let left = Memory::of(scene.edge.pid()).anonymous.saturating_sub(start.anonymous);
        (left <= LEFT_BYTES_MAX).then_some(())
    });
    scene.memory("at the end");
}
