//! Clients of five libraries of QUIC through the edge, spliced and refused, where a part of the
//! first flight is lost, another one comes late, and one datagram of a hundred is lost later.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::quic_flows::{ACCESS_DENIED, BYTES, Relay, SERVER_AND_CLIENT, Weather, answer};
use crate::support::browser::{chromium, trust};
use crate::support::pki::Kind;
use crate::support::program::{need, python_with, quic_go};
use crate::support::{Edge, Folder, Pki, Talk, long_output, output};

/// ngtcp2's client asks for this name where it is to connect to loopback.
const NAMES: [&str; 2] = ["host.test", "localhost"];

/// A server of quic-go behind an edge.
struct Scene {
    program: &'static Path,
    pki: Pki,
    edge: Edge,
    _server: Talk,
    _folder: Folder,
}

impl Scene {
    fn new(server_arguments: &[&str], action: &str) -> Option<Self> {
        let program = quic_go()?;
        let pki = Pki::new();
        pki.server("origin", &NAMES, Kind::P256);
        let mut command = Command::new(program);
        command.args(["serve", &pki.text("origin.pem"), &pki.text("origin.key")]);
        let mut server = Talk::start(command.args(server_arguments));
        server.hear("\n");
        let port = server.said().trim().to_owned();
        let folder = Folder::new();
        let rule = match action {
            "splice" => format!("action = \"splice\"\nupstream = \"127.0.0.1:{port}\"\n"),
            action => format!("action = \"{action}\"\nalert = \"access_denied\"\n"),
        };
        let config = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\nquic = true\n\
             [[rule]]\nname = \"both\"\nsni = [\"host.test\", \"localhost\"]\n{rule}\
             [limits]\nquic_idle_timeout = \"1s\"\n"
        );
        let edge = Edge::start_whole(&folder, &config, |_| ());
        Some(Self { program, pki, edge, _server: server, _folder: folder })
    }

    fn splicing() -> Option<Self> {
        Self::new(&[], "splice")
    }

    fn refusing() -> Option<Self> {
        Self::new(&[], "refuse")
    }

    fn relay(&self) -> Relay {
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
    fn outcome(&self, name: &str) -> Value {
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
