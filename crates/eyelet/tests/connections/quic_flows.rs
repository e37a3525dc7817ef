//! Flows of QUIC through the edge: real clients and servers, and a relay between client and edge
//! that moves, loses and swaps datagrams.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::edge;
use crate::support::pki::Kind;
use crate::support::program::python_with;
use crate::support::{A_WHILE, Edge, Folder, Pki, Talk, until};

pub const SERVER_AND_CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/quic.py");
pub const BYTES: usize = 1 << 20;
/// At least so many datagrams are repeated.
const REPEATS: usize = 300;
/// `internal_error` and `access_denied` as transport errors (RFC 9001 section 4.8).
const INTERNAL_ERROR: u64 = 0x0100 + 80;
pub const ACCESS_DENIED: u64 = 0x0100 + 49;

/// A server of aioquic behind an edge.
pub struct Scene {
    python: &'static str,
    pki: Pki,
    server: Talk,
    /// The server's port.
    pub server_port: u16,
    pub edge: Edge,
    folder: Folder,
}

/// The edge's configuration, in its folder.
const FILE: &str = "edge.toml";

impl Scene {
    /// `None`: no Python has aioquic.
    pub fn new(server_arguments: &[&str], more: &str) -> Option<Self> {
        let python = python_with("aioquic")?;
        let pki = Pki::new();
        pki.server("origin", &["host.test"], Kind::P256);
        let mut command = Command::new(python);
        command.arg(SERVER_AND_CLIENT).arg("serve");
        command.args([pki.text("origin.pem"), pki.text("origin.key")]).args(server_arguments);
        let mut server = Talk::start(&mut command);
        server.hear("\n");
        let server_port = server.said().trim().parse().unwrap();
        let folder = Folder::new();
        let config = edge::with_long_deadlines(&config(server_port, more));
        let mut command = edge::eyelet(&folder);
        command.arg("serve").arg(folder.write(FILE, &config));
        let edge = Edge::spawn(command, config.matches("[[listener]]").count());
        Some(Self { python, pki, server, server_port, edge, folder })
    }

    /// Has the edge serve another configuration, its nth one.
    pub fn reload(&self, nth: usize, server_port: u16, more: &str) {
        self.folder.write(FILE, edge::with_long_deadlines(&config(server_port, more)));
        self.edge.signal(Signal::HUP);
        self.edge.wait_log(&format!("configuration {nth} serves"));
    }

    pub fn client(&self, port: u16, name: &str) -> Talk {
        let mut command = Command::new(self.python);
        command.arg(SERVER_AND_CLIENT).args(["ask", &port.to_string(), name]);
        command.arg(BYTES.to_string()).arg(self.pki.text("ca.pem"));
        Talk::start(&mut command)
    }

    /// Returns the words of a client that asks at this port.
    pub fn ask(&self, port: u16, name: &str) -> Value {
        answer(self.client(port, name))
    }

    /// The access line of the only flow to this name.
    pub fn line(&self, name: &str) -> Value {
        self.edge.line(name, |line| line["sni"] == name)
    }
}

fn config(server: u16, more: &str) -> String {
    let idle = if more.contains("quic_idle") { "" } else { "quic_idle_timeout = \"1s\"\n" };
    // Each worker ends flows of its own alone where connections are at their limit.
    let workers = if more.contains("connections_max") { "workers = 1\n" } else { "" };
    format!(
        "{workers}[[listener]]\naddress = \"127.0.0.1:0\"\nquic = true\n\
         [[rule]]\nname = \"host\"\nsni = \"host.test\"\naction = \"splice\"\n\
         upstream = \"127.0.0.1:{server}\"\n\
         [[rule]]\nname = \"bad\"\nsni = \"bad.test\"\naction = \"refuse\"\n\
         alert = \"access_denied\"\n\
         [limits]\n{idle}{more}"
    )
}

/// Returns the words of a client at its end.
pub fn answer(client: Talk) -> Value {
    let said = client.finish();
    let line = said.text.lines().find(|line| line.starts_with('{'));
    serde_json::from_str(line.unwrap_or_else(|| panic!("{}", said.text))).unwrap()
}

/// The faults of a relay for the datagrams between a client and the edge.
#[derive(Clone, Copy, Default)]
pub struct Weather {
    /// It has another port behind each so many datagrams of the edge.
    pub moves_each: Option<usize>,
    /// Its own address behind a move, and the edge's, if they are others then.
    pub moves_to: Option<(IpAddr, SocketAddr)>,
    /// The first of the client's datagrams is lost, and the next two change places.
    pub is_rough: bool,
    /// Each so many datagrams one is lost, both ways.
    pub loses_each: Option<usize>,
    /// It stops behind so many datagrams of the edge, until it is told to go on.
    pub stops_at: Option<usize>,
    /// After the handshake the client's first datagram, with its hello, comes again and again.
    pub repeats_first: bool,
}

impl Weather {
    /// The first flight is lost and reordered, and 1 % of all.
    pub const ROUGH: Self = Self {
        moves_each: None,
        moves_to: None,
        is_rough: true,
        loses_each: Some(100),
        stops_at: None,
        repeats_first: false,
    };
}

pub struct Relay {
    pub port: u16,
    pub moves: Arc<AtomicUsize>,
    has_stopped: Arc<AtomicBool>,
    goes_on: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    pub fn start(edge: SocketAddr, weather: Weather) -> Self {
        let front = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = front.local_addr().unwrap().port();
        let [has_stopped, goes_on, is_over] = [(); 3].map(|()| Arc::<AtomicBool>::default());
        let moves = Arc::<AtomicUsize>::default();
        let thread = {
            let (moves, is_over) = (moves.clone(), is_over.clone());
            let (has_stopped, goes_on) = (has_stopped.clone(), goes_on.clone());
            thread::spawn(move || {
                let mut way = Way::new(front, edge, weather, moves);
                while !is_over.load(Ordering::Relaxed) {
                    let stops = weather.stops_at.is_some_and(|at| way.from_edge >= at);
                    has_stopped.fetch_or(stops, Ordering::Relaxed);
                    if stops && !goes_on.load(Ordering::Relaxed) {
                        thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                    if !way.pass() {
                        thread::sleep(Duration::from_micros(200));
                    }
                }
            })
        };
        Self { port, moves, has_stopped, goes_on, is_over, thread: Some(thread) }
    }

    /// Waits until it has stopped.
    pub fn wait_stop(&self) {
        until("a relay that stops", || self.has_stopped.load(Ordering::Relaxed).then_some(()));
    }

    pub fn go_on(&self) {
        self.goes_on.store(true, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Both sockets of a relay.
struct Way {
    front: UdpSocket,
    /// Not connected: the edge may answer from another address than the asked one.
    back: UdpSocket,
    edge: SocketAddr,
    client: Option<SocketAddr>,
    weather: Weather,
    from_client: usize,
    from_edge: usize,
    late: Option<Vec<u8>>,
    first: Vec<u8>,
    /// It moves with the client's next datagram. Were it to move at once, a client that waits could
    /// not be found by anybody.
    moves_next: bool,
    moves: Arc<AtomicUsize>,
}

impl Way {
    fn new(front: UdpSocket, edge: SocketAddr, weather: Weather, moves: Arc<AtomicUsize>) -> Self {
        front.set_nonblocking(true).unwrap();
        let (from_client, from_edge, client, late) = (0, 0, None, None);
        let back = back(edge.ip());
        let (first, moves_next) = (Vec::new(), false);
        Self {
            front,
            back,
            edge,
            client,
            weather,
            from_client,
            from_edge,
            late,
            first,
            moves_next,
            moves,
        }
    }

    /// Passes what is there. Returns whether anything was.
    fn pass(&mut self) -> bool {
        let mut bytes = [0; 2048];
        let mut had = false;
        if let Ok((len, client)) = self.front.recv_from(&mut bytes) {
            self.client = Some(client);
            self.from_client += 1;
            if std::mem::take(&mut self.moves_next) {
                let (from, to) = self.weather.moves_to.unwrap_or((self.edge.ip(), self.edge));
                (self.back, self.edge) = (back(from), to);
                self.moves.fetch_add(1, Ordering::Relaxed);
            }
            if self.first.is_empty() {
                self.first = bytes[..len].to_vec();
            }
            match self.from_client {
                1 if self.weather.is_rough => {}
                2 if self.weather.is_rough => self.late = Some(bytes[..len].to_vec()),
                nth if self.is_lost(nth) => {}
                _ => {
                    let _ = self.back.send_to(&bytes[..len], self.edge);
                    self.late.take().into_iter().for_each(|late| {
                        let _ = self.back.send_to(&late, self.edge);
                    });
                }
            }
            had = true;
        }
        if let Ok(len) = self.back.recv(&mut bytes) {
            self.from_edge += 1;
            if self.weather.repeats_first && self.from_edge > BYTES / 1500 - REPEATS {
                let _ = self.back.send_to(&self.first, self.edge);
            }
            if !self.is_lost(self.from_edge) {
                let _ = self.front.send_to(&bytes[..len], self.client.unwrap());
            }
            let each = self.weather.moves_each;
            self.moves_next |= each.is_some_and(|each| self.from_edge.is_multiple_of(each));
            had = true;
        }
        had
    }

    fn is_lost(&self, nth: usize) -> bool {
        self.weather.loses_each.is_some_and(|each| nth.is_multiple_of(each))
    }
}

fn back(from: IpAddr) -> UdpSocket {
    let back = UdpSocket::bind((from, 0)).unwrap();
    back.set_nonblocking(true).unwrap();
    back
}

#[test]
fn a_download_passes_with_its_name_in_the_log() {
    let Some(scene) = Scene::new(&[], "") else { return };
    let said = scene.ask(scene.edge.port(), "host.test");
    assert_eq!(said["bytes"], BYTES, "{said}");
    let line = scene.line("host.test");
    for (field, expected) in [
        ("outcome", "spliced"),
        ("rule", "host"),
        ("transport", "quic"),
        ("event", "end"),
        ("listener", line["listener"].as_str().unwrap()),
    ] {
        assert_eq!(line[field], expected, "{field}: {line}");
    }
    assert!(line["bytes_to_client"].as_u64().unwrap() > BYTES as u64, "{line}");
    assert!(line["datagrams_to_client"].as_u64().unwrap() > BYTES as u64 / 1500, "{line}");
    assert!(line["bytes_to_upstream"].as_u64().unwrap() >= 1200, "{line}");
    assert!(line["datagrams_to_upstream"].as_u64().unwrap() >= 2, "{line}");
    assert!(line["ja4"].as_str().is_none_or(|ja4| ja4.starts_with('q')), "{line}");
    assert_eq!(scene.edge.lines().len(), 1);
}

/// The server has the client begin anew: its second hello is decided again, and comes from the same
/// socket, to which the server's token is bound.
#[test]
fn a_server_that_sends_retry_gets_its_client() {
    let Some(scene) = Scene::new(&["retry"], "") else { return };
    let said = scene.ask(scene.edge.port(), "host.test");
    assert_eq!(said["bytes"], BYTES, "{said}");
    assert_eq!(scene.line("host.test")["outcome"], "spliced");
    assert_eq!(scene.edge.lines().len(), 1, "{:#?}", scene.edge.lines());
}

#[test]
fn a_refused_name_fails_at_once_with_the_alert() {
    let Some(scene) = Scene::new(&[], "") else { return };
    let said = scene.ask(scene.edge.port(), "bad.test");
    assert_eq!((said["code"].as_u64(), said["bytes"].as_u64()), (Some(ACCESS_DENIED), Some(0)));
    let line = scene.line("bad.test");
    assert_eq!((&line["outcome"], &line["rule"]), (&"refused".into(), &"bad".into()), "{line}");
    assert_eq!(line["transport"], "quic", "{line}");
    // Of some that a busy machine makes slow, one is quick.
    until("a quick refusal", || {
        let lines = scene.edge.lines();
        let is_quick = lines.iter().any(|line| line["duration_ms"].as_u64().unwrap() < 3_000);
        is_quick.then_some(()).or_else(|| {
            scene.ask(scene.edge.port(), "bad.test");
            None
        })
    });
}

/// The client's port changes several times, so that other workers get its datagrams, too.
#[test]
fn a_client_that_moves_keeps_its_download() {
    let Some(scene) = Scene::new(&[], "") else { return };
    let weather = Weather { moves_each: Some(150), ..Weather::default() };
    let relay = Relay::start(scene.edge.address(), weather);
    let said = scene.ask(relay.port, "host.test");
    assert_eq!(said["bytes"], BYTES, "{said}");
    assert!(relay.moves.load(Ordering::Relaxed) >= 3);
    let line = scene.line("host.test");
    assert_eq!(line["outcome"], "spliced", "{line}");
    assert!(line["bytes_to_client"].as_u64().unwrap() > BYTES as u64, "all addresses: {line}");
    thread::sleep(A_WHILE);
    assert_eq!(scene.edge.lines().len(), 1, "{:#?}", scene.edge.lines());
}

#[test]
fn a_first_flight_that_is_lost_and_reordered_is_read() {
    let Some(scene) = Scene::new(&[], "") else { return };
    let weather = Weather { is_rough: true, ..Weather::default() };
    let relay = Relay::start(scene.edge.address(), weather);
    let said = scene.ask(relay.port, "host.test");
    assert_eq!(said["bytes"], BYTES, "{said}");
    assert_eq!(scene.line("host.test")["outcome"], "spliced");
}

/// Once the client has the handshake's keys, nothing of it passes that may have a hello:
/// that could be another one, behind the end of the first connection.
#[test]
fn no_hello_passes_after_the_handshake() {
    let Some(scene) = Scene::new(&[], "") else { return };
    let relay =
        Relay::start(scene.edge.address(), Weather { repeats_first: true, ..Weather::default() });
    let said = scene.ask(relay.port, "host.test");
    assert_eq!(said["bytes"], BYTES, "{said}");
    let line = scene.line("host.test");
    assert_eq!(line["outcome"], "spliced", "{line}");
    // Beside them the client sends acknowledgements of a few bytes.
    let passed = line["bytes_to_upstream"].as_u64().unwrap();
    assert!(passed < (REPEATS * 1200 / 2) as u64, "{line}");
    assert_eq!(scene.edge.lines().len(), 1, "{:#?}", scene.edge.lines());
}

#[test]
fn a_flow_outlives_a_reload() {
    let Some(scene) = Scene::new(&[], "") else { return };
    let weather = Weather { stops_at: Some(100), ..Weather::default() };
    let relay = Relay::start(scene.edge.address(), weather);
    let client = scene.client(relay.port, "host.test");
    relay.wait_stop();
    scene.reload(2, 9, "");
    relay.go_on();
    assert_eq!(answer(client)["bytes"], BYTES);
    assert_eq!(scene.line("host.test")["outcome"], "spliced");
}

/// The kernel says that nobody listens there, and the flow ends by that. Its client hears it at
/// once, and one whose server is silent when its time is over: neither asks until it gives up.
#[test]
fn a_client_whose_upstream_is_gone_or_silent_is_told() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let rule = format!(
        "[[rule]]\nsni = \"silent.test\"\naction = \"splice\"\nupstream = \"{}\"\n",
        silent.local_addr().unwrap()
    );
    let Some(mut scene) = Scene::new(&[], &rule) else { return };
    scene.server.hang_up();
    scene.server.signal(Signal::KILL);
    for (name, why) in [("host.test", "refused"), ("silent.test", "connect_timeout")] {
        let said = scene.ask(scene.edge.port(), name);
        assert_eq!(said["code"], INTERNAL_ERROR, "{name}: {said}");
        let line = scene.line(name);
        assert_eq!(line["outcome"], "failed", "{line}");
        assert!(line["reason"].as_str().unwrap().contains(why), "{line}");
    }
    assert_eq!(scene.edge.lines().len(), 2, "{:#?}", scene.edge.lines());
}

/// `alert = "none"`: not a byte comes back.
#[test]
fn a_client_may_be_refused_without_a_word() {
    let rule = "[[rule]]\nname = \"hush\"\nsni = \"hush.test\"\naction = \"refuse\"\n\
                alert = \"none\"\n";
    let Some(scene) = Scene::new(&[], rule) else { return };
    let first = first_datagram(&scene, "hush.test");
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.send_to(&first, scene.edge.address()).unwrap();
    let line = scene.line("hush.test");
    assert_eq!((&line["outcome"], &line["rule"]), (&"refused".into(), &"hush".into()), "{line}");
    client.set_read_timeout(Some(A_WHILE)).unwrap();
    client.recv(&mut [0; 2048]).unwrap_err();
}

/// A datagram that begins no flow gets no answer, and makes no line.
#[test]
fn datagrams_of_no_flow_are_dropped() {
    let folder = Folder::new();
    let edge = Edge::start_whole(&folder, &config(9, ""), |_| ());
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(edge.address()).unwrap();
    let long = |version: u32, id_len: u8| {
        let mut bytes = vec![0xc0];
        bytes.extend(version.to_be_bytes());
        bytes.push(id_len);
        bytes.resize(1200, 7);
        bytes
    };
    for datagram in [
        vec![0x40; 40],
        vec![0; 1],
        vec![],
        // An id of 21 bytes, and an Initial packet in a datagram of 1,199 bytes.
        long(1, 21),
        long(1, 8)[..1199].to_vec(),
        long(1, 8)[..9].to_vec(),
    ] {
        client.send(&datagram).unwrap();
    }
    client.set_read_timeout(Some(A_WHILE)).unwrap();
    client.recv(&mut [0; 2048]).unwrap_err();
    assert!(edge.lines().is_empty(), "{:#?}", edge.lines());
}

/// First datagrams of strangers, each from another address, fill the table: their hello is allowed,
/// and their server never answers. The oldest go, so that newcomers are served.
#[test]
fn a_flood_of_first_datagrams_leaves_newcomers_their_room() {
    const NEWCOMERS: usize = 5;
    /// The budget, and what is not counted (see [`crates/memory/README.md`]), in a build without
    /// optimization.
    const RESIDENT_MAX: u64 = 110 << 20;
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let more = format!(
        "memory_max = \"64MiB\"\n\
         [[rule]]\nname = \"flood\"\nsni = \"flood.test\"\naction = \"splice\"\n\
         upstream = \"{}\"\n",
        silent.local_addr().unwrap()
    );
    let Some(scene) = Scene::new(&[], &more) else { return };
    let first = first_datagram(&scene, "flood.test");
    let (edge, is_over) = (scene.edge.address(), AtomicBool::new(false));
    let sent = AtomicUsize::new(0);
    let served = thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0..250 * 250 * 100_u32).cycle() {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                // Each network in turn.
                let [a, b, c] = [n / 62_500 + 1, n / 250 % 250 + 1, n % 250 + 1].map(|n| n as u8);
                let stranger = UdpSocket::bind(SocketAddr::from(([127, c, b, a], 0))).unwrap();
                let _ = stranger.send_to(&first, edge);
                if sent.fetch_add(1, Ordering::Relaxed).is_multiple_of(10) {
                    thread::sleep(Duration::from_millis(5));
                }
            }
        });
        until("a table that is full", || (sent.load(Ordering::Relaxed) > 10_000).then_some(()));
        // The kernel drops datagrams where the machine is busy: a client tries again, as users do.
        let is_served = || scene.ask(scene.edge.port(), "host.test")["bytes"] == BYTES;
        let served = (0..NEWCOMERS).filter(|_| (0..3).any(|_| is_served())).count();
        is_over.store(true, Ordering::Relaxed);
        served
    });
    assert_eq!(served, NEWCOMERS);
    let resident = scene.edge.rss_bytes();
    eprintln!("{} datagrams, {resident} bytes resident", sent.load(Ordering::Relaxed));
    assert!(resident <= RESIDENT_MAX, "{resident}");
}

/// The first datagram of a client that asks for this name.
pub fn first_datagram(scene: &Scene, name: &str) -> Vec<u8> {
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = scene.client(nobody.local_addr().unwrap().port(), name);
    let mut bytes = [0; 2048];
    let len = nobody.recv(&mut bytes).unwrap();
    client.signal(Signal::KILL);
    drop(client);
    bytes[..len].to_vec()
}
