//! A new configuration in a running edge: what goes on, what is decided anew, what a mistake
//! changes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::client::{Offer, TLS13, echo};
use crate::support::crowd::permit;
use crate::support::edge::{self, LISTENER};
use crate::support::pki::Kind;
use crate::support::program::{Said, Talk, skip};
use crate::support::two::{self, Two};
use crate::support::web::{ask, get};
use crate::support::{Edge, End, Hello, Pki, SOON, Tls, Upstream, alert_of, ending, output, until};

/// An edge with one file, which tests write again.
struct Scene {
    pki: Pki,
    file: PathBuf,
    edge: Edge,
    tcp: Upstream,
    one: Upstream,
    other: Upstream,
}

/// The kinds of connections that are held over a reload.
struct Held {
    spliced: TcpStream,
    tcp: Tls,
    http: Tls,
}

impl Scene {
    fn new() -> Self {
        Self::with("")
    }

    fn with(more: &str) -> Self {
        let pki = Pki::new();
        pki.server("other", &["app.test"], Kind::P384);
        let (tcp, one, other) = (Upstream::echo(), named("one"), named("other"));
        let file = pki.folder.write("edge.toml", rules(&pki, tcp.address, &one, "http", more));
        let mut command = edge::eyelet(&pki.folder);
        command.arg("serve").arg(&file);
        let edge = Edge::spawn(command, 1);
        Self { pki, file, edge, tcp, one, other }
    }

    /// Writes the file again: rules for that upstream, with `more`.
    fn write(&self, to: &Upstream, name: &str, more: &str) {
        self.write_text(&rules(&self.pki, self.tcp.address, to, name, more));
    }

    fn write_text(&self, text: &str) {
        self.pki.folder.write("edge.toml", text);
    }

    /// `eyelet reload`.
    fn reload(&self) -> Said {
        output(self.command().arg("reload").arg(&self.file))
    }

    fn reload_well(&self) {
        let said = self.reload();
        assert_eq!(said.status.code(), Some(0), "{}\n{}", said.text, self.edge.log());
    }

    fn command(&self) -> Command {
        edge::eyelet(&self.pki.folder)
    }

    fn hold(&self) -> Held {
        let mut spliced = self.edge.connect();
        let hello = Hello::named("host.test").bytes();
        spliced.write_all(&hello).unwrap();
        crate::support::expect(&mut spliced, &hello);
        let mut tcp = Offer::new(&self.pki).connect(self.edge.address(), "tcp.app.test");
        echo(&mut tcp, b"before");
        let mut http = self.connect();
        assert_eq!(get(&mut http, "/before").text(), "one");
        Held { spliced, tcp, http }
    }

    fn connect(&self) -> Tls {
        Offer::new(&self.pki).connect(self.edge.address(), "app.test")
    }

    /// Snapshots that are held, and how many configurations were read.
    fn configurations(&self) -> (usize, usize) {
        let before = self.edge.log().matches("bytes resident").count();
        self.edge.signal(Signal::USR1);
        until("the accounts", || {
            let log = self.edge.log();
            let line = log.lines().filter(|line| line.contains("bytes resident")).nth(before)?;
            let (_, rest) = line.split_once("configurations: ")?;
            let (held, rest) = rest.split_once(" held, ")?;
            let (read, _) = rest.split_once(" read")?;
            Some((held.parse().ok()?, read.parse().ok()?))
        })
    }
}

/// Answers every request with this.
fn named(text: &'static str) -> Upstream {
    Upstream::serve(move |mut stream| {
        let mut byte = [0];
        while let Ok(1) = stream.peek(&mut byte) {
            crate::support::web::head(&mut stream);
            let length = text.len();
            let said = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{text}");
            if stream.write_all(said.as_bytes()).is_err() {
                return;
            }
        }
    })
}

fn rules(pki: &Pki, tcp: SocketAddr, http: &Upstream, name: &str, more: &str) -> String {
    let spliced = format!(
        "[[rule]]\nname = \"spliced\"\nsni = \"host.test\"\naction = \"splice\"\n\
         upstream = \"{tcp}\"\n"
    );
    let tcp = pki.terminate(&format!("tcp://{tcp}"), "");
    let tcp = tcp.replace("\"app\"", "\"tcp\"").replace("app.test", "tcp.app.test");
    let http = pki.terminate(&format!("http://{}", http.address), "");
    let http = http.replace("name = \"app\"", &format!("name = \"{name}\""));
    format!("workers = 2\n{more}\n{LISTENER}{spliced}{tcp}{http}")
}

fn line_of(edge: &Edge, path: &str) -> Value {
    edge.line(path, |line| line["http"]["path"] == path)
}

#[test]
fn nothing_is_lost_and_the_next_request_meets_the_new_rule() {
    let scene = Scene::new();
    let mut held = scene.hold();
    scene.write(&scene.other, "renamed", "");
    scene.reload_well();
    // Parked ones, and one that the edge was just serving.
    assert_eq!(get(&mut held.http, "/after").text(), "other");
    held.spliced.write_all(b"after").unwrap();
    crate::support::expect(&mut held.spliced, b"after");
    echo(&mut held.tcp, b"after");
    assert_eq!(line_of(&scene.edge, "/before")["rule"], "http");
    assert_eq!(line_of(&scene.edge, "/after")["rule"], "renamed");
    // What was decided before is told by the names of then; HTTP by those of now.
    let clients =
        [held.spliced.local_addr(), held.tcp.sock.local_addr(), held.http.sock.local_addr()];
    let clients = clients.map(Result::unwrap);
    drop(held);
    for (client, rule) in clients.into_iter().zip(["spliced", "tcp", "renamed"]) {
        let client = client.to_string();
        let line = scene
            .edge
            .line(&client, |line| line["client"] == client.as_str() && line["http"].is_null());
        assert_eq!(line["rule"], rule, "{line}");
        assert_eq!(line["listener"], scene.edge.address().to_string(), "{line}");
    }
    until("the first configuration to go", || (scene.configurations() == (1, 2)).then_some(()));
}

/// The rules stand in another order, so that a number would lead to another rule.
#[test]
fn a_connection_is_known_by_its_rule_and_not_by_its_place() {
    let scene = Scene::new();
    let mut held = scene.hold();
    let first = "[[rule]]\nname = \"first\"\nsni = \"first.test\"\naction = \"refuse\"\n";
    let text = rules(&scene.pki, scene.tcp.address, &scene.other, "http", "");
    scene.write_text(&text.replacen("[[rule]]", &format!("{first}[[rule]]"), 1));
    scene.reload_well();
    assert_eq!(get(&mut held.http, "/after").text(), "other");
    let client = held.tcp.sock.local_addr().unwrap();
    drop(held);
    assert_eq!(scene.edge.line_of(client)["rule"], "tcp");
}

#[test]
fn http2_is_decided_anew_for_each_stream() {
    let scene = Scene::new();
    let (address, pki) = (scene.edge.address(), &scene.pki);
    let rule = |to: &Upstream| {
        let text = rules(pki, scene.tcp.address, to, "http", "");
        format!("{text}alpn = [\"h2\", \"http/1.1\"]\n")
    };
    scene.write_text(&rule(&scene.one));
    scene.reload_well();
    two::run(async {
        let mut client = Two::connect(pki, address).await;
        assert_eq!(client.get("/one").await.unwrap().1, "one");
        scene.write_text(&rule(&scene.other));
        scene.reload_well();
        assert_eq!(client.get("/other").await.unwrap().1, "other");
        // Then no rule is left for it: its client is told to connect anew.
        let refused = rule(&scene.other).replace("\"app.test\"", "\"gone.test\"");
        scene.write_text(&refused);
        scene.reload_well();
        assert_eq!(client.get("/gone").await.unwrap().0, 421);
        client.driven.await.unwrap().unwrap();
    });
    let gone = "no rule serves this connection since a reload";
    scene.edge.line("its end", |line| line["http"].is_null() && line["reason"] == gone);
}

#[test]
fn a_connection_without_a_rule_is_answered_421_and_closed() {
    let scene = Scene::new();
    let mut held = scene.hold();
    let text = rules(&scene.pki, scene.tcp.address, &scene.one, "http", "");
    scene.write_text(&text.replace("\"app.test\"", "\"gone.test\""));
    scene.reload_well();
    let heard = get(&mut held.http, "/gone");
    assert_eq!((heard.status, heard.field("connection")), (421, Some("close")));
    assert_eq!(held.http.read(&mut [0]).unwrap(), 0, "close_notify");
    echo(&mut held.tcp, b"goes on");
    // A rule that asks for a certificate is not met by a connection that showed none.
    scene.write(&scene.one, "http", "");
    scene.reload_well();
    let mut client = scene.connect();
    assert_eq!(get(&mut client, "/").status, 200);
    scene.write_text(&format!(
        "{}client_ca = \"ca.pem\"\n",
        rules(&scene.pki, scene.tcp.address, &scene.one, "http", "")
    ));
    scene.reload_well();
    assert_eq!(get(&mut client, "/").status, 421);
}

/// A hello that is only partly known could be taken for another one: the kept connection gets 421
/// where a new one is refused.
#[test]
fn what_was_not_kept_of_a_hello_does_not_help_its_client() {
    const REFUSE: &str = "[[rule]]\nalpn = [\"http/1.1\"]\naction = \"refuse\"\n";
    let long = "x".repeat(250);
    let scene = Scene::new();
    let offer = Offer { alpn: &[&long, "http/1.1"], ..Offer::new(&scene.pki) };
    let mut client = offer.connect(scene.edge.address(), "app.test");
    assert_eq!(get(&mut client, "/").status, 200);
    scene.write(&scene.one, "http", REFUSE);
    scene.reload_well();
    assert_eq!(get(&mut client, "/").status, 421);
}

/// Rules may ask for it again, so it is kept whether it is logged or not.
#[test]
fn alpn_is_kept_without_an_access_log() {
    const OFF: &str = "[log]\naccess = \"off\"\n";
    for (refused, status) in [("h2", 200), ("http/1.1", 421)] {
        let scene = Scene::with(OFF);
        let offer = Offer { alpn: &["http/1.1"], ..Offer::new(&scene.pki) };
        let mut client = offer.connect(scene.edge.address(), "app.test");
        assert_eq!(get(&mut client, "/").status, 200);
        let refuse = format!("{OFF}[[rule]]\nalpn = [\"{refused}\"]\naction = \"refuse\"\n");
        let app = rules(&scene.pki, scene.tcp.address, &scene.one, "http", &refuse);
        scene.write_text(&format!("{app}alpn = [\"acme\", \"http/1.1\"]\n"));
        scene.reload_well();
        assert_eq!(get(&mut client, "/").status, status, "{refused}");
    }
}

/// A malformed name keeps a connection from rules that ask for no name, as a new connection.
#[test]
fn a_malformed_name_is_not_taken_for_none() {
    let scene = Scene::new();
    let with = |matcher: &str| {
        let all = scene.pki.terminate(&format!("http://{}", scene.one.address), "");
        all.replace("sni = \"app.test\"\n", matcher).replace("name = \"app\"", "name = \"all\"")
    };
    scene.write(&scene.one, "http", &with("sni_malformed = true\n"));
    scene.reload_well();
    let mut client = Talk::start(
        Command::new("openssl")
            .args(["s_client", "-quiet", "-servername", "127.0.0.1", "-connect"])
            .arg(scene.edge.address().to_string()),
    );
    let answers = |client: &Talk, count: usize| {
        let said = client.said();
        assert!(!said.contains("200 OK"), "{said}");
        (said.matches("HTTP/1.1 421").count() == count).then_some(())
    };
    // A name leads to no rule for malformed ones.
    client.say("GET / HTTP/1.1\r\nHost: app.test\r\n\r\n");
    until("the first answer", || answers(&client, 1));
    scene.write_text(&format!("workers = 2\n{LISTENER}{}", with("")));
    scene.reload_well();
    client.say("GET / HTTP/1.1\r\nHost: app.test\r\n\r\n");
    until("the second answer", || answers(&client, 2));
}

/// A worker that always has bytes to move hears of a reload as any other.
#[test]
fn a_busy_worker_hears_of_a_reload() {
    let scene = Scene::new();
    let sink = Upstream::serve(|mut stream| {
        let mut bytes = [0; 1 << 16];
        while stream.read(&mut bytes).is_ok_and(|read| read > 0) {}
    });
    let text = rules(&scene.pki, sink.address, &scene.one, "http", "");
    scene.write_text(&text.replace("workers = 2", "workers = 1"));
    scene.reload_well();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..8 {
            let mut client = scene.edge.connect();
            let stop = &stop;
            scope.spawn(move || {
                let _ = client.write_all(&Hello::named("host.test").bytes());
                let bytes = [0; 1 << 18];
                while !stop.load(Ordering::Relaxed) && client.write_all(&bytes).is_ok() {}
            });
        }
        for _ in 0..3 {
            let said = scene.reload();
            if said.status.code() != Some(0) {
                stop.store(true, Ordering::Relaxed);
            }
            assert_eq!(said.status.code(), Some(0), "{}", said.text);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_removed_rule_may_end_its_connections_at_once() {
    let scene = Scene::new();
    let mut held = scene.hold();
    let text =
        rules(&scene.pki, scene.tcp.address, &scene.one, "http", "reload_ends_removed = true");
    scene.write_text(&text.replace("name = \"spliced\"", "name = \"anew\""));
    scene.reload_well();
    let (_, end) = ending(&mut held.spliced, SOON);
    assert_ne!(end, End::Open);
    echo(&mut held.tcp, b"goes on");
    assert_eq!(get(&mut held.http, "/").text(), "one");
    let line = scene.edge.line_of(held.spliced.local_addr().unwrap());
    assert_eq!(line["rule"], "spliced");
    assert_eq!(line["reason"], "no rule serves this connection since a reload");
}

#[test]
fn the_next_handshake_gets_the_new_certificate_and_tickets_stay() {
    let scene = Scene::new();
    let config = Offer { versions: TLS13, ..Offer::new(&scene.pki) }.config();
    let connect = || {
        let socket = edge::connect(scene.edge.address());
        crate::support::client::handshake(config.clone(), socket, "app.test").unwrap()
    };
    let mut before = connect();
    assert_eq!(get(&mut before, "/").status, 200);
    let leaf = |tls: &Tls| tls.conn.peer_certificates().unwrap()[0].to_vec();
    let first = leaf(&before);
    let text = rules(&scene.pki, scene.tcp.address, &scene.one, "http", "");
    scene.write_text(&text.replace("edge.pem", "other.pem").replace("edge.key", "other.key"));
    scene.reload_well();
    assert_ne!(leaf(&scene.connect()), first);
    assert_eq!(get(&mut before, "/").status, 200);
    // A ticket is bound to the path of the certificate.
    let mut other = connect();
    assert_eq!(get(&mut other, "/").status, 200);
    assert_eq!(other.conn.handshake_kind(), Some(rustls::HandshakeKind::Full));
    // The same file with another certificate in it. The edge watches it and may
    // serve it before it is told to, so what it served before is asked for first.
    let second = leaf(&scene.connect());
    scene.pki.server("other", &["app.test"], Kind::P256);
    scene.reload_well();
    assert_ne!(leaf(&scene.connect()), second);
    let resumed = connect();
    assert_eq!(resumed.conn.handshake_kind(), Some(rustls::HandshakeKind::Resumed));
}

#[test]
fn a_mistake_changes_nothing() {
    let scene = Scene::new();
    let mut held = scene.hold();
    scene.write_text("[[listener]]\naddress = \"nowhere\"\n");
    let said = scene.reload();
    assert_eq!(said.status.code(), Some(2));
    assert!(said.text.contains("edge.toml:2:11: error"), "{}", said.text);
    scene.edge.signal(Signal::HUP);
    scene.edge.wait_log("reload: nothing has changed");
    // A certificate that cannot be read is found before anything is served by it.
    let text = rules(&scene.pki, scene.tcp.address, &scene.other, "http", "");
    scene.pki.folder.write("broken.pem", "no certificate");
    scene.write_text(&text.replace("edge.pem", "broken.pem"));
    assert_eq!(scene.reload().status.code(), Some(2));
    // A port that is taken is no mistake of the file.
    let taken = format!("{text}[[listener]]\naddress = \"{}\"\n", scene.tcp.address);
    scene.write_text(&taken);
    let said = scene.reload();
    assert_eq!(said.status.code(), Some(1));
    assert!(said.text.contains("cannot listen on"), "{}", said.text);
    assert_eq!(get(&mut held.http, "/").text(), "one");
    assert_eq!(scene.configurations(), (1, 1));
    // What a reload does not change is named, and the rest is served.
    scene.write_text(&text.replace("workers = 2", "workers = 1"));
    let said = scene.reload();
    assert_eq!(said.status.code(), Some(0));
    let limits = ". A connection with an upstream takes two descriptors";
    assert_eq!(scene.edge.log().matches(limits).count(), 1, "they are as they were");
    scene.write_text(&format!("{text}[limits]\nconnections_max = 10\n"));
    scene.reload_well();
    scene.edge.wait_log("at most 10 connections: connections_max; descriptors for ");
    assert_eq!(scene.edge.log().matches(limits).count(), 2, "{}", scene.edge.log());
    scene.write_text(&text.replace("workers = 2", "workers = 1"));
    scene.reload_well();
    let file = scene.file.display();
    let advice = format!("`workers` stays as it was: `eyelet upgrade {file}` changes it");
    assert!(said.text.contains(&advice), "{}", said.text);
    let said = output(scene.command().arg("check").arg(&scene.file));
    let advice = format!("a reload does not change workers: `eyelet upgrade {file}` does");
    assert!(said.text.contains(&advice), "{}", said.text);
    assert_eq!(get(&mut held.http, "/").text(), "other");
}

#[test]
fn listeners_come_and_go() {
    let scene = Scene::new();
    let mut held = scene.hold();
    let text = rules(&scene.pki, scene.tcp.address, &scene.one, "http", "");
    let named = "[[listener]]\nname = \"second\"\naddress = \"127.0.0.2:0\"\n";
    // In front, so that the first one has another place than before.
    scene.write_text(&text.replacen("[[listener]]", &format!("{named}[[listener]]"), 1));
    scene.reload_well();
    let second: SocketAddr = until("the new listener", || {
        let log = scene.edge.log();
        let (_, rest) = log.split_once("listening on 127.0.0.2:")?;
        let (port, _) = rest.split_once('\n')?;
        Some(SocketAddr::from(([127, 0, 0, 2], port.trim().parse().ok()?)))
    });
    let mut other = Offer::new(&scene.pki).connect(second, "app.test");
    assert_eq!(get(&mut other, "/second").text(), "one");
    assert_eq!(line_of(&scene.edge, "/second")["listener"], "second");
    assert_eq!(get(&mut held.http, "/first").text(), "one");
    let first = scene.edge.address().to_string();
    assert_eq!(line_of(&scene.edge, "/first")["listener"], first.as_str());
    // It goes again. Its connections stay.
    scene.write_text(&text);
    scene.reload_well();
    assert!(TcpStream::connect(second).is_err(), "nobody listens any more");
    echo(&mut held.tcp, b"goes on");
    assert_eq!(get(&mut other, "/gone").status, 421, "no rule knows its listener");
    assert_eq!(get(&mut scene.connect(), "/still").text(), "one");
}

#[test]
fn a_process_is_found_by_its_file() {
    let scene = Scene::new();
    // By another path to the same file.
    let link = scene.pki.folder.path().join("link.toml");
    std::os::unix::fs::symlink(&scene.file, &link).unwrap();
    let said = output(scene.command().arg("reload").arg(&link));
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    let lonely = scene.pki.folder.write("lonely.toml", "");
    let served = format!("{}, process {}", scene.file.display(), scene.edge.pid().as_raw_nonzero());
    for wrong in [lonely, scene.pki.folder.path().join("none.toml")] {
        let said = output(scene.command().arg("reload").arg(&wrong));
        assert_eq!(said.status.code(), Some(1));
        assert!(said.text.contains(&format!(" (served: {served})")), "{}", said.text);
        let is_said = said.text.contains("no process of this user serves");
        assert_eq!(is_said, wrong.exists(), "{}", said.text);
    }
    let listed = output(scene.command().arg("list")).text;
    assert!(listed.contains(&format!("edges: {served}\n")), "{listed}");
    let mut second = scene.command();
    second.arg("serve").arg(&scene.file);
    let second = Edge::spawn(second, 1);
    let said = until("both control sockets", || {
        let said = scene.reload();
        (said.status.code() != Some(0)).then_some(said)
    });
    assert_eq!(said.status.code(), Some(1));
    assert!(said.text.contains("more than one process"), "{}", said.text);
    // One that was killed counts no more. Files of others stay.
    let foreign = scene.pki.folder.write("eyelet/app.prod.sock", "");
    drop(second);
    scene.reload_well();
    let mut third = scene.command();
    third.arg("serve").arg(&scene.file);
    drop(Edge::spawn(third, 1));
    assert!(foreign.exists());
}

/// A folder of a release, or of a mounted secret, is a link that is switched.
#[test]
fn a_process_is_found_after_a_link_on_the_way_is_switched() {
    let scene = Scene::new();
    let folder = scene.pki.folder.path();
    let text = rules(&scene.pki, scene.tcp.address, &scene.one, "http", "");
    for release in ["one", "two"] {
        std::fs::create_dir(folder.join(release)).unwrap();
        scene
            .pki
            .folder
            .write(&format!("{release}/edge.toml"), text.replace("\"edge.", "\"../edge."));
    }
    let current = folder.join("current");
    std::os::unix::fs::symlink("one", &current).unwrap();
    let file = current.join("edge.toml");
    let mut command = scene.command();
    command.arg("serve").arg(&file);
    let _edge = Edge::spawn(command, 1);
    std::fs::remove_file(&current).unwrap();
    std::os::unix::fs::symlink("two", &current).unwrap();
    let said = output(scene.command().arg("reload").arg(&file));
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
}

/// Root may; any other user may not, even if he finds the socket.
#[test]
fn a_foreign_user_is_not_heard() {
    if !rustix::process::geteuid().is_root() {
        return skip("needs root");
    }
    let scene = Scene::new();
    scene.reload_well();
    let folder = scene.pki.folder.path();
    let open = |path: &std::path::Path, mode| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(folder, 0o755);
    open(&folder.join("eyelet"), 0o755);
    let said = reload_as_nobody(&scene);
    assert_eq!(said.status.code(), Some(1), "{}", said.text);
    let sockets = std::fs::read_dir(folder.join("eyelet")).unwrap();
    sockets.for_each(|socket| open(&socket.unwrap().path(), 0o777));
    let said = reload_as_nobody(&scene);
    assert_eq!(said.status.code(), Some(1), "{}", said.text);
    scene.edge.wait_log("is not allowed");
    assert_eq!(scene.configurations().1, 2);
}

fn reload_as_nobody(scene: &Scene) -> Said {
    use std::os::unix::process::CommandExt;
    // A copy that this user may execute.
    let program = scene.pki.folder.path().join("program");
    crate::support::copy_program(env!("CARGO_BIN_EXE_eyelet").as_ref(), &program);
    let mut command = Command::new(program);
    command.env("XDG_RUNTIME_DIR", scene.pki.folder.path()).arg("reload").arg(&scene.file);
    output(command.uid(65_534))
}

#[test]
fn a_log_that_was_renamed_is_opened_anew() {
    let scene = Scene::with("[log]\naccess = \"access.log\"\n");
    let (log, old) = (scene.pki.file("access.log"), scene.pki.file("access.log.1"));
    assert_eq!(get(&mut scene.connect(), "/before").status, 200);
    let has = |file: &std::path::Path, text: &str| {
        std::fs::read_to_string(file).is_ok_and(|lines| lines.contains(text))
    };
    until("the first line", || has(&log, "/before").then_some(()));
    std::fs::rename(&log, &old).unwrap();
    scene.edge.signal(Signal::HUP);
    scene.edge.wait_log("configuration 2 serves");
    assert_eq!(get(&mut scene.connect(), "/after").status, 200);
    until("the second line", || has(&log, "/after").then_some(()));
    assert!(!has(&old, "/after"));
}

/// Connections that were made under other roots are not used for new requests.
#[test]
fn an_upstream_is_verified_by_the_new_roots() {
    let scene = Scene::new();
    let app = Upstream::https(scene.pki.server("up", &["127.0.0.1"], Kind::P256));
    let folder = &scene.pki.folder;
    folder.write("roots.pem", std::fs::read(scene.pki.file("ca.pem")).unwrap());
    let more = "upstream_ca = \"roots.pem\"\n";
    let rule = scene.pki.terminate(&format!("https://{}", app.address), more);
    scene.write_text(&format!("workers = 2\n{LISTENER}{rule}"));
    scene.reload_well();
    let mut client = scene.connect();
    assert_eq!(get(&mut client, "/").status, 200);
    scene.reload_well();
    assert_eq!(get(&mut client, "/").status, 200);
    assert_eq!(app.accepted(), 1, "the same roots, the same connection");
    folder.write("roots.pem", std::fs::read(Pki::new().file("ca.pem")).unwrap());
    scene.reload_well();
    assert_eq!(get(&mut client, "/").status, 503);
}

/// Reloads while requests come on kept and on new connections: none fails, and nothing is left.
#[test]
fn many_reloads_under_load_leave_nothing_behind() {
    let _permit = permit(400);
    let reloads = std::env::var("EYELET_RELOADS").map_or(200, |n| n.parse().unwrap());
    let scene = Scene::new();
    let mut held = scene.hold();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|n| {
                let (scene, done) = (&scene, &done);
                scope.spawn(move || {
                    let mut kept = scene.connect();
                    let mut requests = 0;
                    while !done.load(Ordering::Relaxed) {
                        assert_eq!(get(&mut kept, "/kept").status, 200);
                        if n == 0 {
                            let mut new = scene.connect();
                            let asked =
                                ask(&mut new, "GET /new HTTP/1.1\r\nHost: app.test\r\n\r\n");
                            assert_eq!(asked.status, 200);
                        }
                        requests += 1;
                    }
                    requests
                })
            })
            .collect();
        let mut reload = |number: usize| {
            let (to, name) = match number % 2 {
                0 => (&scene.one, "http"),
                _ => (&scene.other, "other"),
            };
            scene.write(to, name, "");
            scene.edge.signal(Signal::HUP);
            let served = format!("configuration {} serves", number + 2);
            scene.edge.wait_log(&served);
            // The upstream waits for a minute and no longer.
            if number.is_multiple_of(50) {
                echo(&mut held.tcp, b"still there");
            }
        };
        // What the first ones take is kept for the next.
        let warm = reloads / 4;
        (0..warm).for_each(&mut reload);
        let before = scene.edge.rss_bytes();
        (warm..reloads).for_each(reload);
        done.store(true, Ordering::Relaxed);
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
        scene.edge.wait_memory(before, GROWN_BYTES_MAX);
    });
    echo(&mut held.tcp, b"to the end");
    get(&mut held.http, "/last");
    drop(held);
    until("old configurations to go", || {
        (scene.configurations() == (1, reloads + 1)).then_some(())
    });
    assert!(scene.edge.lines().iter().all(|line| line["http"]["status"].as_u64() != Some(421)));
}

/// The bytes that many reloads may leave, beside what the load itself moves to and fro.
const GROWN_BYTES_MAX: u64 = 2 << 20;

#[test]
fn a_refusal_by_new_rules_is_heard_at_once() {
    let scene = Scene::new();
    let text = rules(&scene.pki, scene.tcp.address, &scene.one, "http", "");
    let refuse = "[[rule]]\nname = \"no\"\nsni = \"host.test\"\naction = \"refuse\"\n";
    scene.write_text(&text.replacen("[[rule]]", &format!("{refuse}[[rule]]"), 1).replacen(
        "[[rule]]\nname = \"spliced\"\nsni = \"host.test\"",
        "[[rule]]\nname = \"spliced\"\nsni = \"rest.test\"",
        1,
    ));
    scene.reload_well();
    let mut client = scene.edge.connect();
    client.write_all(&Hello::named("host.test").bytes()).unwrap();
    assert!(alert_of(&ending(&mut client, SOON).0).is_some());
}
