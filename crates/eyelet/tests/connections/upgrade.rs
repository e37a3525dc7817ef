//! A new program in place of a running edge: what moves, what goes on, what a failure changes. It
//! is what an operator does, and what clients see.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::support::client::{Offer, TLS12, TLS13, Versions, echo};
use crate::support::edge::{self, LISTENER};
use crate::support::program::Said;
use crate::support::web::{ask, get, head};
use crate::support::{Edge, End, Hello, Pki, SOON, Talk, Tls, Upstream, ending, output, until};

/// An edge with one file, which is upgraded again and again.
struct Scene {
    pki: Pki,
    file: PathBuf,
    tcp: Upstream,
    http: Upstream,
    /// The first process. It gives its outputs to each process that follows.
    edge: Edge,
    /// The process that serves.
    pid: Pid,
}

/// The new processes are not the test's own children.
impl Drop for Scene {
    fn drop(&mut self) {
        if self.pid != self.edge.pid() {
            let _ = rustix::process::kill_process(self.pid, Signal::KILL);
        }
    }
}

impl Scene {
    fn new() -> Self {
        Self::with("workers = 2\n")
    }

    fn with(more: &str) -> Self {
        let pki = Pki::new();
        let (tcp, http) = (Upstream::echo(), Upstream::http());
        let text = rules(&pki, tcp.address, http.address, more);
        let file = pki.folder.write("edge.toml", text);
        let mut command = edge::eyelet(&pki.folder);
        command.arg("serve").arg(&file);
        let edge = Edge::spawn(command, 1);
        let pid = edge.pid();
        Self { pki, file, tcp, http, edge, pid }
    }

    fn write(&self, more: &str) {
        let text = rules(&self.pki, self.tcp.address, self.http.address, more);
        self.pki.folder.write("edge.toml", text);
    }

    fn command(&self, command: &str) -> Command {
        let mut program = edge::eyelet(&self.pki.folder);
        program.arg(command).arg(&self.file);
        program
    }

    /// `eyelet upgrade`, which must work. Returns how many connections moved.
    fn upgrade(&mut self) -> usize {
        let said = until("the earlier process to leave", || {
            let said = output(&mut self.command("upgrade"));
            (!said.text.contains("still hands over")).then_some(said)
        });
        assert_eq!(said.status.code(), Some(0), "{}\n{}", said.text, self.edge.log());
        self.pid = pid_in(&said);
        let (_, rest) = said.text.split_once("after the start; ").unwrap();
        rest.split(' ').next().unwrap().parse().unwrap()
    }

    /// `eyelet upgrade`, which must fail.
    fn fails(&self, more: &[&str]) -> Said {
        let said = output(self.command("upgrade").args(more));
        assert_ne!(said.status.code(), Some(0), "{}\n{}", said.text, self.edge.log());
        said
    }

    fn address(&self) -> SocketAddr {
        self.edge.address()
    }

    fn tcp(&self, versions: Versions) -> Tls {
        let offer = Offer { versions, ..Offer::new(&self.pki) };
        offer.connect(self.address(), "tcp.app.test")
    }

    fn http(&self) -> Tls {
        Offer::new(&self.pki).connect(self.address(), "app.test")
    }

    fn spliced(&self) -> TcpStream {
        let mut spliced = self.edge.connect();
        let hello = Hello::named("host.test").bytes();
        spliced.write_all(&hello).unwrap();
        crate::support::expect(&mut spliced, &hello);
        spliced
    }

    fn sockets(&self) -> usize {
        let folder = self.pki.folder.path().join("eyelet");
        let names = std::fs::read_dir(folder).unwrap();
        names.filter(|name| name.as_ref().unwrap().path().extension().is_some()).count()
    }
}

fn pid_in(said: &Said) -> Pid {
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
    let first = scene.pid;
    for round in 0..2 {
        let moved = scene.upgrade();
        // The edge serves the last request of a client for a moment before it parks the connection.
        assert!((3..=4).contains(&moved), "{moved}\n{}", scene.edge.log());
        let text = format!("after {round}");
        tcp.iter_mut().for_each(|tls| echo(tls, text.as_bytes()));
        spliced.write_all(text.as_bytes()).unwrap();
        crate::support::expect(&mut spliced, text.as_bytes());
        assert_eq!(get(&mut http, "/after").status, 200);
        // New connections are the new process's.
        echo(&mut scene.tcp(TLS13), b"new");
        until("one control socket", || (scene.sockets() == 1).then_some(()));
    }
    assert_ne!(scene.pid, first);
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
