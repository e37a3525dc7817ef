//! Flows of QUIC over upgrades and reloads: a download of a real client in the middle, and many
//! idle flows of recorded hellos.

use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::admin::{ADMIN, get};
use crate::listed::{end, list};
use crate::quic_flows::{ACCESS_DENIED, BYTES, SERVER_AND_CLIENT, answer};
use crate::support::edge;
use crate::support::pki::Kind;
use crate::support::program::{Said, python_with};
use crate::support::{Edge, Folder, Pki, Talk, output, until};
use crate::upgrade::pid_in;

/// Datagrams of the edge that a relay passes at a time.
const PIECE: usize = 150;
/// Idle flows. `EYELET_HELD` asks for more.
const HELD: usize = 200;
const RELOADS: u64 = 10;
/// A client's first datagram, recorded.
const RECORDED: &str = include_str!("../../../quic/src/tests/bytes/aioquic.hex");
/// A later datagram of a client: a packet with a short header.
pub const LATER: &[u8] = b"\x40 and nothing that anybody but the server could read";

/// An edge that is upgraded again and again.
struct Scene {
    file: PathBuf,
    folder: Folder,
    edge: Edge,
    later: Vec<Pid>,
}

/// The later processes are not the test's own children.
impl Drop for Scene {
    fn drop(&mut self) {
        self.edge.kill();
        for pid in &self.later {
            let _ = rustix::process::kill_process(*pid, Signal::KILL);
        }
    }
}

impl Scene {
    fn new(config: &str) -> Self {
        let folder = Folder::new();
        let file = folder.write("edge.toml", edge::with_long_deadlines(config));
        let mut command = edge::eyelet(&folder);
        command.arg("serve").arg(&file);
        let edge = Edge::spawn(command, 1);
        Self { file, folder, edge, later: Vec::new() }
    }

    fn write(&self, config: &str) {
        std::fs::write(&self.file, edge::with_long_deadlines(config)).unwrap();
    }

    fn run(&self, command: &str) -> Said {
        let said = output(edge::eyelet(&self.folder).arg(command).arg(&self.file));
        assert_eq!(said.status.code(), Some(0), "{said:?}");
        said
    }

    fn upgrade(&mut self) {
        let said = self.run("upgrade");
        self.later.push(pid_in(&said));
    }
}

fn config(server: u16, workers: usize, idle: &str) -> String {
    format!(
        "workers = {workers}\n[[listener]]\naddress = \"127.0.0.1:0\"\nquic = true\n\
         [[rule]]\nname = \"host\"\nsni = \"host.test\"\naction = \"splice\"\n\
         upstream = \"127.0.0.1:{server}\"\n\
         [[rule]]\nname = \"bad\"\nsni = \"bad.test\"\naction = \"refuse\"\n\
         alert = \"access_denied\"\n\
         [limits]\nquic_idle_timeout = \"{idle}\"\n"
    )
}

/// Between a client and the edge: it passes so many datagrams of the edge as it is told.
struct Gate {
    port: u16,
    passed: Arc<AtomicUsize>,
    allowed: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Gate {
    fn new(edge: SocketAddr) -> Self {
        let [front, back] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        back.connect(edge).unwrap();
        let port = front.local_addr().unwrap().port();
        let (passed, is_over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let allowed = Arc::new(AtomicUsize::new(PIECE));
        let thread = {
            let (passed, allowed, is_over) = (passed.clone(), allowed.clone(), is_over.clone());
            thread::spawn(move || {
                let (mut bytes, mut client) = ([0; 2048], None);
                for socket in [&front, &back] {
                    socket.set_nonblocking(true).unwrap();
                }
                while !is_over.load(Ordering::Relaxed) {
                    let mut had = false;
                    if let Ok((len, from)) = front.recv_from(&mut bytes) {
                        client = Some(from);
                        // While no process reads, the datagram waits in its queue.
                        back.send(&bytes[..len]).unwrap();
                        had = true;
                    }
                    let may_pass = passed.load(Ordering::Relaxed) < allowed.load(Ordering::Relaxed);
                    if may_pass && let Ok(len) = back.recv(&mut bytes) {
                        front.send_to(&bytes[..len], client.unwrap()).unwrap();
                        passed.fetch_add(1, Ordering::Relaxed);
                        had = true;
                    }
                    if !had {
                        thread::sleep(Duration::from_micros(200));
                    }
                }
            })
        };
        Self { port, passed, allowed, is_over, thread: Some(thread) }
    }

    /// Waits until it has passed all that it may.
    fn wait(&self) {
        let allowed = self.allowed.load(Ordering::Relaxed);
        until("a part of the download", || {
            (self.passed.load(Ordering::Relaxed) >= allowed).then_some(())
        });
    }

    fn pass(&self, more: usize) {
        self.allowed.fetch_add(more, Ordering::Relaxed);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// The edge is upgraded twice, to fewer workers and to more, and reloaded in between. The download
/// goes on, with one access line of all of it. New flows are served, and refused names refused.
#[test]
fn a_download_goes_on_over_two_upgrades_and_a_reload() {
    let Some(python) = python_with("aioquic") else { return };
    let pki = Pki::new();
    pki.server("origin", &["host.test"], Kind::P256);
    let mut command = Command::new(python);
    command.arg(SERVER_AND_CLIENT).arg("serve");
    command.args([pki.text("origin.pem"), pki.text("origin.key")]);
    let mut server = Talk::start(&mut command);
    server.hear("\n");
    let server_port = server.said().trim().parse().unwrap();
    let mut scene = Scene::new(&config(server_port, 2, "60s"));
    let client = |port: u16, name: &str| {
        let mut command = Command::new(python);
        command.arg(SERVER_AND_CLIENT).args(["ask", &port.to_string(), name]);
        command.arg(BYTES.to_string()).arg(pki.text("ca.pem"));
        Talk::start(&mut command)
    };
    let gate = Gate::new(scene.edge.address());
    let download = client(gate.port, "host.test");
    for (workers, reload) in [(1, true), (3, false)] {
        gate.wait();
        scene.write(&config(server_port, workers, "60s"));
        scene.upgrade();
        if reload {
            scene.run("reload");
        }
        gate.pass(PIECE);
    }
    gate.wait();
    let port = scene.edge.port();
    assert_eq!(answer(client(port, "host.test"))["bytes"], BYTES, "a new flow is served");
    assert_eq!(answer(client(port, "bad.test"))["code"].as_u64(), Some(ACCESS_DENIED));
    assert!(scene.edge.lines().iter().all(|line| line["sni"] == "bad.test"));
    gate.pass(usize::MAX / 2);
    assert_eq!(answer(download)["bytes"], BYTES);
    // They end soon now.
    scene.write(&config(server_port, 3, "1s"));
    scene.run("reload");
    let is_download = |line: &Value| line["sni"] == "host.test";
    until("both lines", || (scene.edge.count(is_download) == 2).then_some(()));
    for line in scene.edge.lines().iter().filter(|line| is_download(line)) {
        assert_eq!(
            (&line["outcome"], &line["rule"]),
            (&"spliced".into(), &"host".into()),
            "{line}"
        );
        let datagrams = line["datagrams_to_client"].as_u64().unwrap();
        assert!(line["bytes_to_client"].as_u64().unwrap() > BYTES as u64, "{line}");
        assert!(datagrams > BYTES as u64 / 1500, "all processes: {line}");
    }
    assert!(scene.edge.log().contains("flows of QUIC are taken over"), "{}", scene.edge.log());
}

/// A server that sends back what comes.
pub fn echo() -> (u16, Arc<AtomicBool>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let is_over = Arc::<AtomicBool>::default();
    let ends = is_over.clone();
    thread::spawn(move || {
        let mut bytes = [0; 2048];
        while !ends.load(Ordering::Relaxed) {
            if let Ok((len, from)) = socket.recv_from(&mut bytes) {
                socket.send_to(&bytes[..len], from).unwrap();
            }
        }
    });
    (port, is_over)
}

pub fn asks(client: &UdpSocket, what: &[u8]) -> bool {
    let mut bytes = [0; 2048];
    // The kernel drops datagrams where the machine is busy: a client sends again.
    (0..5).any(|_| {
        client.send(what).unwrap();
        client.recv(&mut bytes).is_ok_and(|len| len == what.len())
    })
}

/// The recorded first datagram.
pub fn recorded() -> Vec<u8> {
    let digits = RECORDED.lines().skip(1).take_while(|line| !line.starts_with('#'));
    let digits: String = digits.collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// A later datagram, to the id that the server has shown: the client's own, because it sends back
/// what comes.
fn later(first: &[u8]) -> Vec<u8> {
    let dcid_bytes = usize::from(first[5]);
    let (len, rest) = first[6 + dcid_bytes..].split_first().unwrap();
    [&LATER[..1], &rest[..usize::from(*len)], &LATER[1..]].concat()
}

/// Each flow keeps its upstream's socket: the server has as many clients as there are flows.
#[test]
fn idle_flows_are_held_over_reloads_and_upgrades() {
    let held = std::env::var("EYELET_HELD").map_or(HELD, |count| count.parse().unwrap());
    let (server, is_over) = echo();
    let config = |number: u64| {
        format!(
            "workers = 2\n[[listener]]\naddress = \"127.0.0.1:0\"\nquic = true\n\
             [[rule]]\nname = \"number {number}\"\naction = \"splice\"\n\
             upstream = \"127.0.0.1:{server}\"\n{ADMIN}[limits]\nquic_idle_timeout = \"10m\"\n"
        )
    };
    let mut scene = Scene::new(&config(0));
    let first = recorded();
    let later = later(&first);
    let clients: Vec<UdpSocket> = (0..held)
        .map(|_| {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.connect(scene.edge.address()).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            assert!(asks(&client, &first), "a flow begins");
            assert!(asks(&client, &later));
            client
        })
        .collect();
    let before = scene.edge.rss_bytes();
    for number in 1..=RELOADS {
        scene.write(&config(number));
        scene.run("reload");
        if number == RELOADS / 2 || number == RELOADS {
            scene.upgrade();
        }
    }
    let lost = clients.iter().filter(|client| !asks(client, &later)).count();
    assert_eq!(lost, 0, "of {held}");
    let socket = scene.folder.path().join("admin.sock");
    let listed = list(&socket, "");
    assert_eq!(listed.len(), held);
    for flow in &listed {
        assert_eq!((&flow["kind"], &flow["state"]), (&"quic".into(), &"parked".into()), "{flow}");
        assert_eq!(flow["upstream"], format!("127.0.0.1:{server}"), "{flow}");
        assert_eq!(flow["rule"], "number 0", "as it was when they were decided: {flow}");
        // A hello and at least 3 packets behind it.
        let packets = first.len() + 2 * later.len();
        assert!(flow["bytes_to_upstream"].as_u64().unwrap() >= packets as u64, "{flow}");
    }
    let memory: Value = serde_json::from_str(&get(&socket, "/memory").body).unwrap();
    assert_eq!(memory["flows"]["flows"], held, "{memory}");
    assert_eq!(memory["flows"]["bytes"], memory["kinds"]["flows"], "{memory}");
    assert!(memory["flows"]["bytes"].as_u64().unwrap() > 200 * held as u64, "{memory}");
    let one = listed[0]["id"].as_str().unwrap();
    assert_eq!(end(&socket, &format!("/{one}")), 1);
    let line = scene.edge.line("the ended flow", |line| line["id"] == one);
    assert_eq!(
        (&line["reason"], &line["transport"]),
        (&"ended by an operator".into(), &"quic".into())
    );
    assert_eq!(list(&socket, "").len(), held - 1);
    assert_eq!(scene.edge.lines().len(), 1, "{:#?}", scene.edge.lines());
    println!("{held} flows, {RELOADS} reloads, 2 upgrades: {lost} lost; {before} bytes before");
    is_over.store(true, Ordering::Relaxed);
}
