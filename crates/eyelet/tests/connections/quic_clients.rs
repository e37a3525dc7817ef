//! Clients of libraries of QUIC through the edge, spliced and refused, where a part of the first
//! flight is lost, another one comes late, and one datagram of a hundred is lost later. quinn's is
//! in `quic_one_socket.rs`.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::quic_flows::{ACCESS_DENIED, BYTES, Relay, SERVER_AND_CLIENT, Weather, answer};
use crate::support::browser::{chromium, trust};
use crate::support::pki::Kind;
use crate::support::program::{need, python_with, quic_go};
use crate::support::{Edge, Folder, Pki, Talk, long_output, output};

/// ngtcp2's client asks for this name where it is to connect to loopback.
pub const NAMES: [&str; 2] = ["host.test", "localhost"];

/// A server of quic-go behind an edge.
pub struct Scene {
    program: &'static Path,
    pub pki: Pki,
    pub edge: Edge,
    _server: Talk,
    _folder: Folder,
}

/// A server of quic-go, and its port.
fn server(program: &Path, pki: &Pki, arguments: &[&str]) -> (Talk, String) {
    let mut command = Command::new(program);
    command.args(["serve", &pki.text("origin.pem"), &pki.text("origin.key")]);
    let mut server = Talk::start(command.args(arguments));
    server.hear("\n");
    let port = server.said().trim().to_owned();
    (server, port)
}

impl Scene {
    fn new(server_arguments: &[&str], action: &str) -> Option<Self> {
        Self::with_idle(server_arguments, action, "1s")
    }

    pub fn with_idle(server_arguments: &[&str], action: &str, idle: &str) -> Option<Self> {
        let program = quic_go()?;
        let pki = Pki::new();
        pki.server("origin", &NAMES, Kind::P256);
        let (server, port) = server(program, &pki, server_arguments);
        let folder = Folder::new();
        let rule = match action {
            "splice" => format!("action = \"splice\"\nupstream = \"127.0.0.1:{port}\"\n"),
            action => format!("action = \"{action}\"\nalert = \"access_denied\"\n"),
        };
        let config = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\nquic = true\n\
             [[rule]]\nname = \"both\"\nsni = [\"host.test\", \"localhost\"]\n{rule}\
             [limits]\nquic_idle_timeout = \"{idle}\"\n"
        );
        let edge = Edge::start_whole(&folder, &config, |_| ());
        Some(Self { program, pki, edge, _server: server, _folder: folder })
    }

    pub fn splicing() -> Option<Self> {
        Self::new(&[], "splice")
    }

    pub fn refusing() -> Option<Self> {
        Self::new(&[], "refuse")
    }

    pub fn relay(&self) -> Relay {
        Relay::start(self.edge.address(), Weather::ROUGH)
    }

    /// Returns the words of a client whose command line is that of `programs`.
    fn ask(&self, command: &mut Command, port: u16) -> Value {
        command.args(["ask", &port.to_string(), NAMES[0], &BYTES.to_string()]);
        answer(Talk::start(command.arg(self.pki.text("ca.pem"))))
    }

    fn quic_go(&self, port: u16) -> Value {
        self.ask(&mut Command::new(self.program), port)
    }

    /// The outcome of the only flow, which has this name.
    pub fn outcome(&self, name: &str) -> Value {
        let line = self.edge.line(name, |line| line["sni"] == name);
        assert_eq!((&line["transport"], &line["rule"]), (&"quic".into(), &"both".into()), "{line}");
        assert_eq!(self.edge.lines().len(), 1, "{:#?}", self.edge.lines());
        line["outcome"].clone()
    }
}

#[test]
fn aioquic() {
    let Some(python) = python_with("aioquic") else { return };
    let client = || {
        let mut command = Command::new(python);
        command.arg(SERVER_AND_CLIENT);
        command
    };
    let Some(scene) = Scene::splicing() else { return };
    let said = scene.ask(&mut client(), scene.relay().port);
    assert_eq!(said["bytes"], BYTES, "{said}");
    assert_eq!(scene.outcome(NAMES[0]), "spliced");
    let Some(scene) = Scene::refusing() else { return };
    let said = scene.ask(&mut client(), scene.relay().port);
    assert_eq!(said["code"], ACCESS_DENIED, "{said}");
    assert_eq!(scene.outcome(NAMES[0]), "refused");
}

/// Its hello has a post-quantum key share, and takes two datagrams.
#[test]
fn quic_go_with_a_post_quantum_hello() {
    let Some(scene) = Scene::splicing() else { return };
    let said = scene.quic_go(scene.relay().port);
    assert_eq!((&said["bytes"], &said["group"]), (&BYTES.into(), &"X25519MLKEM768".into()));
    assert_eq!(scene.outcome(NAMES[0]), "spliced");
    let Some(scene) = Scene::refusing() else { return };
    let said = scene.quic_go(scene.relay().port);
    assert_eq!(said["code"], ACCESS_DENIED, "{said}");
    assert_eq!(scene.outcome(NAMES[0]), "refused");
}

/// HelloRetryRequest (RFC 8446 section 4.1.4): the client's second hello passes, too.
#[test]
fn a_server_that_asks_for_a_second_hello_gets_it() {
    let Some(scene) = Scene::new(&["p384"], "splice") else { return };
    for port in [scene.edge.port(), scene.relay().port] {
        let said = scene.quic_go(port);
        assert_eq!((&said["bytes"], &said["retried"]), (&BYTES.into(), &true.into()), "{said}");
        assert_eq!(said["group"], "CurveP384");
    }
}

/// The client of ngtcp2's examples, which Debian packages.
#[test]
fn ngtcp2() {
    const CLIENT: &str = "gtlsclient";
    if !need(CLIENT) {
        return;
    }
    let ask = |scene: &Scene| {
        let relay = scene.relay();
        let mut command = Command::new(CLIENT);
        command.args(["--exit-on-all-streams-close", "--no-quic-dump", "127.0.0.1"]);
        command.arg(relay.port.to_string());
        output(command.arg("https://localhost/")).text
    };
    let Some(scene) = Scene::splicing() else { return };
    let said = ask(&scene);
    assert!(said.contains("[:status: 200]"), "{said}");
    assert_eq!(scene.outcome(NAMES[1]), "spliced");
    let Some(scene) = Scene::refusing() else { return };
    let said = ask(&scene);
    let code = format!("CRYPTO_ERROR({ACCESS_DENIED:#x})");
    assert!(said.lines().any(|line| line.contains(" rx ") && line.contains(&code)), "{said}");
    assert_eq!(scene.outcome(NAMES[1]), "refused");
}

#[test]
fn chromium_by_http3() {
    if !(need("chromium") && need("certutil")) {
        return;
    }
    let ask = |scene: &Scene, relay: &Relay| {
        let home = Folder::new();
        trust(&home, &scene.pki.file("ca.pem"));
        let at = format!("{}:{}", NAMES[0], relay.port);
        let forced = format!("--origin-to-force-quic-on={at}");
        let mapped = format!("--host-resolver-rules=MAP {} 127.0.0.1", NAMES[0]);
        let url = format!("https://{at}/");
        long_output(&mut chromium(&home, &[&forced, &mapped, "--dump-dom", &url])).text
    };
    let Some(scene) = Scene::splicing() else { return };
    let said = ask(&scene, &scene.relay());
    assert!(said.contains(" by HTTP/3.0</p>"), "{said}");
    let Some(scene) = Scene::refusing() else { return };
    let said = ask(&scene, &scene.relay());
    assert!(said.contains("ERR_QUIC_PROTOCOL_ERROR"), "{said}");
    let line = scene.edge.line("of Chromium", |line| line["sni"] == NAMES[0]);
    assert_eq!(line["outcome"], "refused", "{line}");
}

/// Compatible version negotiation (RFC 9368): the client begins in one version, and its server goes
/// on in the other one. A server that knows its own alone has the client begin anew, and is decided
/// anew.
#[test]
fn a_server_chooses_the_other_version() {
    let Some(python) = python_with("aioquic") else { return };
    let pki = Pki::new();
    pki.server("origin", &NAMES, Kind::P256);
    let (v1, v2) = ("1,2", "2,1");
    for (first, client, server, chosen) in
        [(1, v2, v2, 2), (2, v1, v1, 1), (2, v2, v2, 2), (2, v2, "1", 1), (1, v1, "2", 2)]
    {
        let mut command = Command::new(python);
        command.args([
            SERVER_AND_CLIENT,
            "serve",
            &pki.text("origin.pem"),
            &pki.text("origin.key"),
        ]);
        let mut server_talk = Talk::start(command.arg(format!("versions={server}")));
        server_talk.hear("\n");
        let folder = Folder::new();
        let config = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\nquic = true\n\
             [[rule]]\nsni = \"host.test\"\naction = \"splice\"\nupstream = \"127.0.0.1:{}\"\n",
            server_talk.said().trim()
        );
        let edge = Edge::start_whole(&folder, &config, |_| ());
        let relay = Relay::start(edge.address(), Weather::ROUGH);
        let mut command = Command::new(python);
        command.args([SERVER_AND_CLIENT, "ask", &relay.port.to_string(), NAMES[0]]);
        command.args([BYTES.to_string(), pki.text("ca.pem"), format!("versions={client}")]);
        let said = answer(Talk::start(command.arg(format!("first={first}"))));
        let case = format!("{first} of {client} to {server}: {said}");
        assert_eq!((&said["bytes"], &said["version"]), (&BYTES.into(), &chosen.into()), "{case}");
    }
}
