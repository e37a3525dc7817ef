//! A new program in place of a running edge: what moves, what goes on, what a failure changes. It
//! is what an operator does, and what clients see.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use rustls::HandshakeKind;

use crate::support::client::{Offer, TLS12, TLS13, Versions, echo, handshake};
use crate::support::edge::{self, LISTENER};
use crate::support::program::{Said, Talk, need};
use crate::support::two::{self, Two};
use crate::support::web::{get, head};
use crate::support::{Edge, Folder, Hello, Pki, Tls, Upstream, output, until};

/// An edge with one file, which is upgraded again and again.
pub struct Scene {
    pub pki: Pki,
    pub file: PathBuf,
    tcp: Upstream,
    pub http: Upstream,
    /// The first process. It gives its outputs to each process that follows.
    pub edge: Edge,
    /// The processes that have served after it.
    pub later: Vec<Pid>,
}

/// The later processes are not the test's own children. The oldest one ends first: it would serve
/// on if the one that replaces it ended.
impl Drop for Scene {
    fn drop(&mut self) {
        self.edge.kill();
        for pid in &self.later {
            let _ = rustix::process::kill_process(*pid, Signal::KILL);
        }
    }
}

impl Scene {
    pub fn new() -> Self {
        Self::with("workers = 2\n")
    }

    pub fn with(more: &str) -> Self {
        Self::to(Upstream::http(), more)
    }

    pub fn to(http: Upstream, more: &str) -> Self {
        Self::started(http, more, edge::eyelet)
    }

    /// With so few descriptors for each process.
    pub fn limited(descriptors: usize, more: &str) -> Self {
        Self::started(Upstream::http(), more, |folder| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"")]);
            command.arg(env!("CARGO_BIN_EXE_eyelet")).env("XDG_RUNTIME_DIR", folder.path());
            command
        })
    }

    fn started(http: Upstream, more: &str, program: impl FnOnce(&Folder) -> Command) -> Self {
        Self::changed(http, program, |pki, tcp, http| rules(pki, tcp, http, more))
    }

    /// One whose clients name their user to a proxy, which all rules ask for.
    pub fn of_users(user: &str, write_users: impl FnOnce(&Folder)) -> Self {
        Self::changed(Upstream::http(), edge::eyelet, |pki, tcp, http| {
            write_users(&pki.folder);
            let users = format!("{LISTENER}kind = \"connect\"\nusers = \"users.txt\"\n");
            let text = rules(pki, tcp, http, "workers = 2\n").replace(LISTENER, &users);
            text.replace("\nsni = ", &format!("\nproxy_user = \"{user}\"\nsni = "))
        })
    }

    fn changed(
        http: Upstream,
        program: impl FnOnce(&Folder) -> Command,
        text: impl FnOnce(&Pki, SocketAddr, SocketAddr) -> String,
    ) -> Self {
        let pki = Pki::new();
        let tcp = Upstream::echo();
        let text = text(&pki, tcp.address, http.address);
        let file = pki.folder.write("edge.toml", text);
        let mut command = program(&pki.folder);
        command.arg("serve").arg(&file);
        let edge = Edge::spawn(command, 1);
        Self { pki, file, tcp, http, edge, later: Vec::new() }
    }

    pub fn write(&self, more: &str) {
        let text = rules(&self.pki, self.tcp.address, self.http.address, more);
        self.pki.folder.write("edge.toml", text);
    }

    pub fn command(&self, command: &str) -> Command {
        let mut program = edge::eyelet(&self.pki.folder);
        program.arg(command).arg(&self.file);
        program
    }

    /// `eyelet upgrade`, which must work. Returns how many connections moved.
    pub fn upgrade(&mut self) -> usize {
        self.upgrade_by(&[])
    }

    /// Upgrades, and waits until the earlier process ends: all that it had has moved. A connection
    /// that was asked a moment ago may move a little later than others, and is not among those that
    /// are counted.
    pub fn upgrade_whole(&mut self) {
        let earlier = self.later.last().copied();
        self.upgrade();
        match earlier {
            None => assert!(self.edge.wait_exit_alone().success()),
            Some(earlier) => until("the earlier process to end", || {
                rustix::process::test_kill_process(earlier).is_err().then_some(())
            }),
        }
    }

    /// Upgrades with these arguments more.
    pub fn upgrade_by(&mut self, more: &[&str]) -> usize {
        let said = until("the earlier process to leave", || {
            let said = output(self.command("upgrade").args(more));
            (!said.text.contains("still hands over")).then_some(said)
        });
        assert_eq!(said.status.code(), Some(0), "{}\n{}", said.text, self.edge.log());
        self.later.push(pid_in(&said));
        let (_, rest) = said.text.split_once("after the start; ").unwrap();
        rest.split(' ').next().unwrap().parse().unwrap()
    }

    /// `eyelet upgrade`, which must fail.
    pub fn fails(&self, more: &[&str]) -> Said {
        let said = output(self.command("upgrade").args(more));
        assert_ne!(said.status.code(), Some(0), "{}\n{}", said.text, self.edge.log());
        said
    }

    pub fn address(&self) -> SocketAddr {
        self.edge.address()
    }

    pub fn tcp(&self, versions: Versions) -> Tls {
        let offer = Offer { versions, ..Offer::new(&self.pki) };
        offer.connect(self.address(), "tcp.app.test")
    }

    pub fn http(&self) -> Tls {
        Offer::new(&self.pki).connect(self.address(), "app.test")
    }

    pub fn spliced(&self) -> TcpStream {
        let mut spliced = self.edge.connect();
        let hello = Hello::named("host.test").bytes();
        spliced.write_all(&hello).unwrap();
        crate::support::expect(&mut spliced, &hello);
        spliced
    }

    pub fn sockets(&self) -> usize {
        let folder = self.pki.folder.path().join("eyelet");
        let names = std::fs::read_dir(folder).unwrap();
        names.filter(|name| name.as_ref().unwrap().path().extension().is_some()).count()
    }
}

/// Sends and reads the same.
pub fn expect_echo(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    crate::support::expect(stream, bytes);
}

/// The new process, as `eyelet upgrade` names it.
pub fn pid_in(said: &Said) -> Pid {
    let (_, rest) = said.text.split_once(": process ").unwrap();
    Pid::from_raw(rest.split(' ').next().unwrap().parse().unwrap()).unwrap()
}

fn rules(pki: &Pki, tcp: SocketAddr, http: SocketAddr, more: &str) -> String {
    let spliced = format!(
        "[[rule]]\nname = \"spliced\"\nsni = \"host.test\"\naction = \"splice\"\n\
         upstream = \"{tcp}\"\n"
    );
    let tcp = pki.terminate(&format!("tcp://{tcp}"), "");
    let tcp = tcp.replace("\"app\"", "\"tcp\"").replace("app.test", "tcp.app.test");
    let http = pki.terminate(&format!("http://{http}"), "");
    format!("{more}\n{LISTENER}{spliced}{tcp}{http}")
}

#[test]
fn every_kind_of_connection_goes_on_in_the_new_process_twice() {
    let mut scene = Scene::new();
    let mut tcp = [TLS13, TLS12].map(|versions| scene.tcp(versions));
    let (mut http, mut spliced) = (scene.http(), scene.spliced());
    tcp.iter_mut().for_each(|tls| echo(tls, b"before"));
    assert_eq!(get(&mut http, "/before").status, 200);
    for round in 0..2 {
        let moved = scene.upgrade();
        // The edge serves the last request of a client for a moment before it parks the connection.
        assert!((3..=4).contains(&moved), "{moved}\n{}", scene.edge.log());
        let text = format!("after {round}");
        tcp.iter_mut().for_each(|tls| echo(tls, text.as_bytes()));
        expect_echo(&mut spliced, text.as_bytes());
        assert_eq!(get(&mut http, "/after").status, 200);
        // New connections are the new process's. This one is gone before the next upgrade.
        let mut new = scene.tcp(TLS13);
        echo(&mut new, b"new");
        let address = new.sock.local_addr().unwrap();
        drop(new);
        scene.edge.line_of(address);
        until("one control socket", || (scene.sockets() == 1).then_some(()));
    }
    assert!(scene.edge.wait_exit_alone().success());
    // The lines come from whichever process has the connection at its end.
    let clients = [spliced.local_addr(), http.sock.local_addr(), tcp[1].sock.local_addr()];
    drop((spliced, http, tcp));
    for (client, rule) in clients.into_iter().zip(["spliced", "app", "tcp"]) {
        let client = client.unwrap().to_string();
        let line = scene
            .edge
            .line(&client, |line| line["client"] == client.as_str() && line["http"].is_null());
        assert_eq!(line["rule"], rule, "{line}");
        assert_eq!(line["listener"], scene.address().to_string(), "{line}");
    }
}

/// A client that sends pieces without repetition, each as soon as the one before is back, and
/// checks each byte. Returns how many bytes came back until `stop`.
fn run_through(mut stream: impl Read + Write, seed: u64, stop: &AtomicBool) -> usize {
    let mut moved = 0;
    let mut round = seed;
    while !stop.load(Ordering::Relaxed) {
        // Some pieces are larger than the pipe that they go through.
        let length = 1 + (round as usize * 7919) % 150_000;
        let piece = crate::support::noise(length, round);
        let mut back = vec![0; length];
        // The socket's buffers take this much while nobody reads.
        for (piece, back) in piece.chunks(60_000).zip(back.chunks_mut(60_000)) {
            stream.write_all(piece).unwrap();
            stream.flush().unwrap();
            stream.read_exact(back).unwrap();
        }
        assert!(back == piece, "client {seed}: other bytes than were sent");
        moved += length;
        round += 1000;
    }
    moved
}

#[test]
fn no_byte_is_lost_while_traffic_goes_on() {
    let mut scene = Scene::new();
    let stop = AtomicBool::new(false);
    let spliced: Vec<TcpStream> = (0..4).map(|_| scene.spliced()).collect();
    let tls: Vec<Tls> = [TLS13, TLS12, TLS13, TLS12].map(|versions| scene.tcp(versions)).into();
    thread::scope(|scope| {
        let (mut clients, stop) = (Vec::new(), &stop);
        for (seed, stream) in spliced.into_iter().enumerate() {
            clients.push(scope.spawn(move || run_through(stream, 1 + seed as u64, stop)));
        }
        for (seed, stream) in tls.into_iter().enumerate() {
            clients.push(scope.spawn(move || run_through(stream, 11 + seed as u64, stop)));
        }
        let moved: Vec<usize> = (0..2).map(|_| scene.upgrade()).collect();
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
        assert!(moved.iter().all(|moved| *moved >= 1), "{moved:?}");
    });
}

#[test]
fn openssl_talks_on_after_two_upgrades() {
    if !need("openssl") {
        return;
    }
    let mut scene = Scene::new();
    for version in ["-tls1_3", "-tls1_2"] {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", &scene.address().to_string(), version]);
        command.args(["-servername", "tcp.app.test", "-CAfile", &scene.pki.text("ca.pem")]);
        command.arg("-verify_return_error");
        let mut talk = Talk::start(&mut command);
        talk.say("hello before\n");
        talk.hear("hello before");
        for text in ["after the first", "after the second"] {
            assert_eq!(scene.upgrade(), 1);
            talk.say(&format!("{text}\n"));
            talk.hear(text);
        }
        talk.hang_up();
        let said = talk.finish();
        assert!(said.status.success(), "{version}: {}", said.text);
        // It must not move at the next upgrade.
        let of_version = format!("1.{}", &version[6..]);
        scene.edge.line(version, |line| line["tls_version"] == of_version.as_str());
    }
}

#[test]
fn keys_are_updated_before_and_after() {
    let mut scene = Scene::new();
    let mut client = scene.tcp(TLS13);
    for round in 0..3 {
        client.conn.refresh_traffic_keys().unwrap();
        echo(&mut client, b"updated");
        client.conn.refresh_traffic_keys().unwrap();
        echo(&mut client, &crate::support::noise(40_000, round));
        if round < 2 {
            scene.upgrade();
        }
    }
}

/// An exchange ends where it began. Its connection then moves, and is not closed.
#[test]
fn a_slow_response_moves_with_its_connection() {
    let app = Upstream::by_hand();
    let mut scene = Scene::to(app, "workers = 1\n");
    let mut client = scene.http();
    client.write_all(b"GET /slow HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    client.flush().unwrap();
    let mut slow = scene.http.take();
    head(&mut slow);
    slow.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf").unwrap();
    assert!(head(&mut client).starts_with("HTTP/1.1 200"));
    crate::support::expect(&mut client, b"half");
    assert_eq!(scene.upgrade(), 1, "its response pauses");
    slow.write_all(b"over").unwrap();
    crate::support::expect(&mut client, b"over");
    assert!(scene.edge.wait_exit_alone().success());
    thread::scope(|scope| {
        let next = scope.spawn(|| get(&mut client, "/next"));
        // The new process has no connection to the upstream yet.
        let mut app = scene.http.take();
        let asked = head(&mut app);
        assert!(asked.starts_with("GET /next"), "{asked}");
        app.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        assert_eq!(next.join().unwrap().text(), "ok");
    });
    // The upgrade after it moves the connection again.
    scene.upgrade();
}

/// It rests for moments only, in a task that waits for its next request.
#[test]
fn a_connection_that_is_asked_all_the_time_moves() {
    let mut scene = Scene::new();
    let mut client = scene.http();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(get(&mut client, "/").status, 200);
                thread::sleep(Duration::from_millis(20));
            }
        });
        scene.upgrade();
        // It ends when nothing is left, long before its `drain_timeout`.
        assert!(scene.edge.wait_exit_alone().success());
        is_over.store(true, Ordering::Relaxed);
        asking.join().unwrap();
    });
    assert_eq!(get(&mut client, "/").status, 200);
}

/// A rule that asks for a certificate serves who has shown one to the process before.
#[test]
fn a_client_that_was_verified_is_served_on() {
    let mut scene = Scene::new();
    let mut client = certified(&mut scene, "client_ca = \"ca.pem\"\n");
    scene.upgrade_whole();
    assert_eq!(get(&mut client, "/").status, 200);
}

/// A client with a certificate that has asked once, by a rule with these keys more.
fn certified(scene: &mut Scene, keys: &str) -> Tls {
    let text = std::fs::read_to_string(&scene.file).unwrap();
    // The last rule is that of HTTP.
    scene.pki.folder.write("edge.toml", text + keys);
    let said = output(&mut scene.command("reload"));
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    let leaf = scene.pki.client("client");
    let offer = Offer { certificate: Some(&leaf), alpn: &["http/1.1"], ..Offer::new(&scene.pki) };
    let mut client = offer.connect(scene.address(), "app.test");
    assert_eq!(get(&mut client, "/").status, 200);
    client
}

/// Each request says the certificate, whichever process serves it: by HTTP/1.1 of openssl, and by
/// HTTP/2.
#[test]
fn a_clients_certificate_goes_along_twice() {
    if !need("openssl") {
        return;
    }
    let mut scene = Scene::new();
    drop(certified(&mut scene, "client_ca = \"ca.pem\"\nclient_cert_header = true\n"));
    let pem = std::fs::read_to_string(scene.pki.file("client.pem")).unwrap();
    let der: String = pem.lines().filter(|line| !line.starts_with("--")).collect();
    let field = format!("client-cert: :{der}:\r\n");
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &scene.address().to_string(), "-quiet"]);
    command.args(["-servername", "app.test", "-CAfile", &scene.pki.text("ca.pem")]);
    command.args(["-cert", &scene.pki.text("client.pem")]);
    command.args(["-key", &scene.pki.text("client.key")]);
    let mut one = Talk::start(&mut command);
    let leaf = scene.pki.client("other");
    two::run(async {
        let other = std::fs::read_to_string(scene.pki.file("other.pem")).unwrap();
        let other: String = other.lines().filter(|line| !line.starts_with("--")).collect();
        let offer = Offer { certificate: Some(&leaf), alpn: &["h2"], ..Offer::new(&scene.pki) };
        let mut two = Two::offering(&offer, scene.address()).await;
        for round in 0..3 {
            one.say(&format!("GET /{round} HTTP/1.1\r\nHost: app.test\r\n\r\n"));
            one.hear(&format!("GET /{round} HTTP/1.1"));
            until("the certificate", || {
                (one.said().matches(&field).count() == 1 + round).then_some(())
            });
            let (status, asked) = two.get("/").await.unwrap();
            let asked = String::from_utf8(asked.into()).unwrap();
            assert_eq!(status, 200);
            assert!(asked.contains(&format!("client-cert: :{other}:\r\n")), "{asked}");
            if round < 2 {
                scene.upgrade_whole();
            }
        }
    });
}

#[test]
fn a_websocket_goes_on() {
    let app = Upstream::serve(|mut stream| {
        head(&mut stream);
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                      Upgrade: websocket\r\n\
                      Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        stream.write_all(switch.as_bytes()).unwrap();
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut piece) {
            stream.write_all(&piece[..length]).unwrap();
        }
    });
    let mut scene = Scene::to(app, "workers = 2\n");
    let mut client = scene.http();
    let request = "GET /chat HTTP/1.1\r\nHost: app.test\r\nConnection: Upgrade\r\n\
                   Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    client.write_all(request.as_bytes()).unwrap();
    client.flush().unwrap();
    assert!(head(&mut client).starts_with("HTTP/1.1 101"));
    for round in 0..3 {
        // A text frame, masked by zeros (RFC 6455 section 5.2). The echo ignores what it carries.
        let frame = [0x81, 0x82, 0, 0, 0, 0, b'a' + round, b'b'];
        echo(&mut client, &frame);
        if round < 2 {
            assert_eq!(scene.upgrade(), 1);
        }
    }
}

/// Clients come all the time. Each one is served, by one process or the other.
#[test]
fn accepting_never_pauses() {
    let mut scene = Scene::new();
    let stop = AtomicBool::new(false);
    let served = AtomicUsize::new(0);
    let address = scene.address();
    let hello = Hello::named("host.test").bytes();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let mut stream = edge::connect(address);
                    stream.write_all(&hello).unwrap();
                    crate::support::expect(&mut stream, &hello);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..2 {
            let before = served.load(Ordering::Relaxed);
            until("clients", || (served.load(Ordering::Relaxed) > before + 20).then_some(()));
            scene.upgrade();
            let after = served.load(Ordering::Relaxed);
            until("clients", || (served.load(Ordering::Relaxed) > after + 20).then_some(()));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// The number of workers and the listeners may differ. No socket is left without a worker.
#[test]
fn the_new_process_reads_the_file_anew() {
    let mut scene = Scene::with("workers = 1\n");
    let kept = scene.address();
    for workers in [3, 1, 2] {
        let mut held = scene.spliced();
        let second = "[[listener]]\naddress = \"127.0.0.1:0\"\n";
        // Port 0 twice: the first one is the listener that stays.
        scene.write(&format!("workers = {workers}\n"));
        let text = std::fs::read_to_string(&scene.file).unwrap();
        scene
            .pki
            .folder
            .write("edge.toml", text.replacen(LISTENER, &format!("{LISTENER}{second}"), 1));
        let listening = scene.edge.log().matches("listening on").count();
        scene.upgrade();
        let added = until("the second listener", || {
            let log = scene.edge.log();
            let lines = log.lines().filter_map(|line| line.split_once("listening on "));
            lines.skip(listening).map(|(_, at)| at.trim().parse().unwrap()).nth(1)
        });
        let hello = Hello::named("host.test").bytes();
        for address in [kept, added].repeat(8) {
            let mut stream = edge::connect(address);
            stream.write_all(&hello).unwrap();
            crate::support::expect(&mut stream, &hello);
        }
        expect_echo(&mut held, b"held");
        // Now the second listener goes.
        scene.write(&format!("workers = {workers}\n"));
        scene.upgrade();
        until("the removed listener to close", || TcpStream::connect(added).is_err().then_some(()));
        expect_echo(&mut held, b"held");
    }
}

#[test]
fn sessions_are_resumed_in_the_new_process() {
    let mut scene = Scene::new();
    for versions in [TLS13, TLS12] {
        let config = Offer { versions, ..Offer::new(&scene.pki) }.config();
        let kind = |scene: &Scene| {
            let socket = edge::connect(scene.address());
            let mut tls = handshake(config.clone(), socket, "tcp.app.test").unwrap();
            // TLS 1.3 tickets come after the handshake.
            echo(&mut tls, b"ticket");
            tls.conn.handshake_kind()
        };
        assert_eq!(kind(&scene), Some(HandshakeKind::Full));
        scene.upgrade();
        assert_eq!(kind(&scene), Some(HandshakeKind::Resumed));
    }
}

/// HTTP/2 moves when it has no stream, with the tables of fields of both directions: the h2 crate
/// would read other fields by any other table, or end the connection. The old process ends long
/// before the drain's time is over, so nothing was left there.
#[test]
fn http2_goes_on_in_the_new_process_twice() {
    let mut scene = Scene::with("workers = 1\n[limits]\ndrain_timeout = \"10m\"\n");
    two::run(async {
        let mut client = Two::connect(&scene.pki, scene.address()).await;
        for round in 0..3 {
            // The second one takes fields from the tables that the first one has filled.
            for _ in 0..2 {
                let path = format!("/round/{round}");
                let (status, body) = client.get(&path).await.unwrap();
                assert_eq!(status, 200);
                let asked = format!("GET {path} HTTP/1.1\r\nhost: app.test\r\n");
                assert!(body.starts_with(asked.as_bytes()), "{body:?}");
            }
            if round < 2 {
                scene.upgrade_whole();
            }
        }
        drop(client.send);
        assert!(client.driven.await.unwrap().is_ok());
    });
}
