//! The documented unit under a real systemd: a restart, a reload, an upgrade and a stop, with
//! connections that are held meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use tokio::runtime::Runtime;

use crate::support::client::{Offer, TLS12, TLS13, echo};
use crate::support::edge::{self, LISTENER};
use crate::support::pki::Kind;
use crate::support::systemd::Systemd;
use crate::support::two::Two;
use crate::support::upstream::vacant;
use crate::support::web::get;
use crate::support::{Hello, Pki, Tls, Upstream, until};
use crate::upgrade::expect_echo;

const UNIT: &str = include_str!("../../../../packaging/eyelet.service");
const POSTINST: &str = include_str!("../../../../packaging/debian/postinst");
const SYSUSERS: &str = include_str!("../../../../packaging/eyelet.sysusers");

/// The unit, and what its clients and upstreams need.
struct Scene {
    systemd: Systemd,
    pki: Pki,
    address: SocketAddr,
    plain: SocketAddr,
    _upstreams: [Upstream; 3],
}

/// A client without TLS, and an upstream with it.
const ORIGINATE: &str = "[[listener]]\nname = \"plain\"\nkind = \"plain\"\n\
                         address = \"127.0.0.1:0\"\n\
                         [[rule]]\nname = \"out\"\nlistener = \"plain\"\n\
                         action = \"originate\"\nupstream_name = \"app.test\"\n\
                         upstream_ca = \"ca.pem\"\n";

impl Scene {
    /// The unit with this configuration before the rules.
    fn start(listener: &str, unit: &str, more: &[(&str, &str)]) -> Option<Self> {
        let (pki, tcp, http) = (Pki::new(), Upstream::echo(), Upstream::http());
        let spliced = edge::splice(tcp.address, "");
        let rule = pki.terminate(&format!("tcp://{}", tcp.address), "");
        let rule = rule.replace("\"app\"", "\"tcp\"").replace("app.test", "tcp.app.test");
        let rules = pki.terminate(&format!("http://{}", http.address), "");
        let tls = Upstream::tls12_echo(pki.server("other", &["app.test"], Kind::P256));
        let out = format!("{ORIGINATE}upstream = \"tls://{}\"\n", tls.address);
        let text = format!("workers = 2\n{listener}{spliced}{rule}{rules}{out}");
        pki.folder.write("edge.toml", text);
        let units = [&[("eyelet.service", unit)], more].concat();
        let systemd = Systemd::start(&pki.folder, &units)?;
        for (socket, _) in more {
            systemd.does(&["start", socket]);
        }
        systemd.does(&["start", "eyelet.service"]);
        let [address, plain] = until("the addresses", || {
            let log = systemd.log();
            let mut lines = log.split("listening on ").skip(1);
            let mut next = || lines.next()?.split_whitespace().next()?.parse().ok();
            Some([next()?, next()?])
        });
        Some(Self { systemd, pki, address, plain, _upstreams: [tcp, http, tls] })
    }

    fn tls(&self, name: &str) -> Tls {
        Offer::new(&self.pki).connect(self.address, name)
    }

    fn spliced(&self) -> TcpStream {
        let mut spliced = edge::connect(self.address);
        let hello = Hello::named("host.test").bytes();
        spliced.write_all(&hello).unwrap();
        crate::support::expect(&mut spliced, &hello);
        spliced
    }

    fn main_process(&self) -> String {
        self.systemd.property("MainPID")
    }

    /// Waits until a text came so often in the log.
    fn wait_log(&self, text: &str, times: usize) {
        until(text, || (self.systemd.log().matches(text).count() >= times).then_some(()));
    }
}

/// A client that was connected before goes on: all kinds of connections that are parked.
struct Held {
    tcp: Vec<Tls>,
    http: Tls,
    spliced: TcpStream,
    originated: TcpStream,
    two: Two,
    /// Runs the client of HTTP/2 while that asks.
    runtime: Runtime,
}

impl Held {
    fn new(scene: &Scene) -> Self {
        Self::with(scene, 20)
    }

    fn with(scene: &Scene, tcp: usize) -> Self {
        let offer = |versions| Offer { versions, ..Offer::new(&scene.pki) };
        let tls = |versions| offer(versions).connect(scene.address, "tcp.app.test");
        let tcp = (0..tcp).map(|n| tls(if n % 2 == 0 { TLS13 } else { TLS12 })).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let two = runtime.block_on(Two::connect(&scene.pki, scene.address));
        let (http, spliced) = (scene.tls("app.test"), scene.spliced());
        let originated = edge::connect(scene.plain);
        let mut held = Self { tcp, http, spliced, originated, two, runtime };
        held.goes_on("begin");
        held
    }

    fn goes_on(&mut self, text: &str) {
        // First, for the client of HTTP/2 runs only while it asks: until then it acknowledges no
        // SETTINGS, and hundreds of echoes may take longer than the edge waits for that.
        // The tables of fields are those of before: the path is another one each time.
        let path = format!("/{}", text.replace(' ', "-"));
        let (status, body) = self.runtime.block_on(self.two.get(&path)).unwrap();
        assert_eq!(status, 200);
        assert!(body.starts_with(format!("GET {path} HTTP/1.1\r\n").as_bytes()), "{body:?}");
        for tls in &mut self.tcp {
            echo(tls, text.as_bytes());
        }
        assert_eq!(get(&mut self.http, "/").status, 200);
        for stream in [&mut self.spliced, &mut self.originated] {
            expect_echo(stream, text.as_bytes());
        }
    }
}

#[test]
fn a_restart_a_reload_and_an_upgrade_of_the_unit_keep_every_connection() {
    let Some(scene) = Scene::start(LISTENER, UNIT, &[]) else { return };
    let mut held = Held::new(&scene);
    let first = scene.main_process();
    for round in 1..=2 {
        scene.systemd.does(&["restart", "eyelet.service"]);
        scene.wait_log("connections are back", round);
        held.goes_on("after a restart");
    }
    let second = scene.main_process();
    assert_ne!(first, second);
    scene.systemd.does(&["reload", "eyelet.service"]);
    held.goes_on("after a reload");
    let said = scene.systemd.run(&["eyelet", "upgrade", "/etc/eyelet/edge.toml"]);
    assert!(said.status.success(), "{}", said.text);
    held.goes_on("after an upgrade");
    assert_ne!(second, scene.main_process());
    // The process that systemd has not started is restarted like others.
    scene.systemd.does(&["restart", "eyelet.service"]);
    held.goes_on("after all");
    assert_eq!(scene.systemd.property("NFileDescriptorStore"), "0", "nothing stands twice");
    assert_eq!(scene.systemd.property("NRestarts"), "0");
    // New clients are served, at the same port, and those of before resume their sessions.
    echo(&mut scene.tls("tcp.app.test"), b"new");
    scene.wait_log("24 connections are back", 3);
    let log = scene.systemd.log();
    assert_eq!(log.matches("24 connections are back").count(), 3, "{log}");
    assert!(!log.contains("ERROR"), "{log}");
}

/// dpkg has replaced the program and runs postinst. With a mistake in the file, dpkg goes on, and
/// the old program serves.
#[test]
fn an_upgrade_of_the_package_keeps_every_connection() {
    let unit = UNIT.replace("=eyelet ", "=/usr/bin/eyelet ");
    let Some(scene) = Scene::start(LISTENER, &unit, &[]) else { return };
    let mut held = Held::new(&scene);
    scene.pki.folder.write("postinst", POSTINST);
    scene.pki.folder.write("eyelet.sysusers", SYSUSERS);
    let place =
        "mkdir /run/sysusers.d && cp /etc/eyelet/eyelet.sysusers /run/sysusers.d/eyelet.conf";
    let placed = scene.systemd.run(&["sh", "-c", place]);
    assert!(placed.status.success(), "{}", placed.text);
    let configure = || {
        let said = scene.systemd.run(&["sh", "/etc/eyelet/postinst", "configure", "0.1.0"]);
        assert!(said.status.success(), "{}", said.text);
        said.text
    };
    let first = scene.main_process();
    configure();
    let second = scene.main_process();
    assert_ne!(first, second, "the new program serves");
    held.goes_on("after an upgrade of the package");
    let file = scene.pki.file("edge.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{good}[log]\nacess = \"off\"\n")).unwrap();
    let said = configure();
    assert!(said.contains("acess") && said.contains("still has the old program"), "{said}");
    assert_eq!(second, scene.main_process());
    held.goes_on("after one that failed");
}

/// The connections stay with systemd while the new process cannot start.
#[test]
fn connections_outlive_starts_that_fail() {
    let unit = UNIT.replace("[Service]", "StartLimitIntervalSec=0\n[Service]");
    let listener = LISTENER.replace("[[listener]]", "[[listener]]\nname = \"web\"");
    let Some(scene) = Scene::start(&listener, &unit, &[]) else { return };
    let mut held = Held::new(&scene);
    let file = scene.pki.file("edge.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    // The first mistake is found before the listening sockets are read, the second one after that.
    for (round, mistake) in
        ["[log]\nacess = \"off\"\n", "[log]\naccess = \"/nowhere/log\"\n"].into_iter().enumerate()
    {
        write(&format!("{good}{mistake}"));
        assert!(!scene.systemd.systemctl(&["restart", "eyelet.service"]).status.success());
        write(&good);
        scene.wait_log("connections are back", 1 + round);
        held.goes_on("after starts that failed");
    }
}

/// A port of systemd's: its queue is nobody's to lose, and the sockets come with every start.
#[test]
fn a_socket_unit_and_a_restart_go_together() {
    let [address] = vacant();
    let socket = format!("[Socket]\nListenStream={address}\nFileDescriptorName=web\n");
    let listener = format!("[[listener]]\naddress = \"{address}\"\n");
    let more = [("eyelet.socket", socket.as_str())];
    let Some(scene) = Scene::start(&listener, UNIT, &more) else { return };
    let mut held = Held::new(&scene);
    for round in 1..=2 {
        scene.systemd.does(&["restart", "eyelet.service"]);
        scene.wait_log("24 connections are back", round);
        held.goes_on("after a restart");
        echo(&mut scene.tls("tcp.app.test"), b"new");
    }
    let log = scene.systemd.log();
    assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
}

/// Connections that do not fit into the store end properly, and so does everything where `kill -s
/// INT` says that nothing is to be kept.
#[test]
fn connections_end_properly_where_they_cannot_or_must_not_stay() {
    let unit = UNIT.replace("=256", "=2");
    let Some(scene) = Scene::start(LISTENER, &unit, &[]) else { return };
    let mut held = Held::new(&scene);
    scene.systemd.does(&["restart", "eyelet.service"]);
    for tls in &mut held.tcp {
        assert_eq!(tls.read(&mut [0]).unwrap(), 0, "close_notify");
    }
    scene.wait_log("FileDescriptorStoreMax=2 is too small", 1);
    // The listening sockets fit.
    let mut held = Held::new(&scene);
    scene.systemd.does(&["kill", "--signal=INT", "eyelet.service"]);
    for tls in &mut held.tcp {
        assert_eq!(tls.read(&mut [0]).unwrap(), 0, "close_notify");
    }
    scene.wait_log("SIGINT: draining", 1);
    until("the end", || (scene.systemd.property("ActiveState") == "inactive").then_some(()));
    assert_eq!(scene.systemd.property("Result"), "success");
}

/// At a restart nobody is left who could serve what the new process does not take.
#[test]
fn what_a_smaller_process_has_no_room_for_ends_properly() {
    let Some(scene) = Scene::start(LISTENER, UNIT, &[]) else { return };
    let mut held = Held::new(&scene);
    let file = scene.pki.file("edge.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{good}[limits]\nconnections_max = 12\n")).unwrap();
    scene.systemd.does(&["restart", "eyelet.service"]);
    let said = "12 of 24 connections are back: 12 have ended here, and the service manager lost 0";
    scene.wait_log(said, 1);
    // The other four are not of TCP in TLS.
    until("their ends", || {
        let mut ended = 0;
        for tls in &mut held.tcp {
            tls.sock.set_nonblocking(true).unwrap();
            match tls.read(&mut [0]) {
                Ok(read) => ended += u32::from(read == 0), // close_notify
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        (8..=12).contains(&ended).then_some(())
    });
}

/// systemd closes what nobody will take over. Nobody can say close_notify then.
#[test]
fn a_stop_closes_what_was_kept() {
    let Some(scene) = Scene::start(LISTENER, UNIT, &[]) else { return };
    let mut held = Held::new(&scene);
    scene.systemd.does(&["stop", "eyelet.service"]);
    for tls in &mut held.tcp {
        let error = tls.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
    assert_eq!(scene.systemd.property("NFileDescriptorStore"), "0");
    scene.wait_log("the service manager keeps 24 connections", 1);
}

/// `EYELET_HELD` connections in a restart, and how long it takes.
#[test]
fn a_restart_with_many_connections_is_short() {
    let held = std::env::var("EYELET_HELD").ok().and_then(|held| held.parse().ok());
    let Some(scene) = Scene::start(LISTENER, UNIT, &[]) else { return };
    let mut held = Held::with(&scene, held.unwrap_or(300));
    let began = Instant::now();
    scene.systemd.does(&["restart", "eyelet.service"]);
    let took = began.elapsed();
    println!("{} connections, restarted in {} ms", held.tcp.len() + 4, took.as_millis());
    held.goes_on("after a restart");
    scene.wait_log(&format!("{} connections are back", held.tcp.len() + 4), 1);
}
