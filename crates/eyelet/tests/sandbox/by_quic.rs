//! QUIC in a sandbox: what is on the list is reached, and nothing else, as over TCP.

use std::process::Command;

use crate::ground::{Sandbox, is_possible, report};
use crate::support::pki::Kind;
use crate::support::program::quic_go;
use crate::support::{Folder, Pki, Talk, copy_program, need};

const HOSTS: [(&str, &str); 2] = [("app.test", "127.0.0.1"), ("other.test", "127.0.0.1")];
const BYTES: usize = 100_000;
/// `unrecognized_name` of TLS, as QUIC says it.
const UNRECOGNIZED_NAME: u64 = 0x0100 + 112;

/// A server of quic-go outside, and a folder with its client.
struct Scene {
    pki: Pki,
    _server: Talk,
    port: String,
}

impl Scene {
    fn new() -> Option<Self> {
        if !is_possible() {
            return None;
        }
        let program = quic_go()?;
        let pki = Pki::new();
        pki.server("app", &["app.test", "other.test"], Kind::P256);
        copy_program(program, &pki.folder.path().join("quic_go"));
        let mut command = Command::new(program);
        command.args(["serve", &pki.text("app.pem"), &pki.text("app.key")]);
        let mut server = Talk::start(&mut command);
        server.hear("\n");
        let port = server.said().trim().to_owned();
        Some(Self { pki, _server: server, port })
    }

    fn folder(&self) -> &Folder {
        &self.pki.folder
    }

    /// The command line that asks for this name.
    fn asks(&self, name: &str) -> String {
        format!("./quic_go ask {} {name} {BYTES} ca.pem", self.port)
    }
}

#[test]
fn a_listed_name_is_reached_by_quic() {
    let Some(scene) = Scene::new() else { return };
    let list = format!("app.test:{}\n", scene.port);
    let sandbox = Sandbox::new(scene.folder(), &HOSTS, &list).option("--report", "report.json");
    let script = format!("{}; {}", scene.asks("app.test"), scene.asks("other.test"));
    let said = sandbox.script(&script);
    let lines: Vec<serde_json::Value> =
        said.text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let [listed, other] = &lines[..] else { panic!("{}", said.text) };
    assert_eq!(listed["bytes"], BYTES, "{}", said.text);
    assert_eq!(other["code"].as_u64(), Some(UNRECOGNIZED_NAME), "{}", said.text);
    let report = report(scene.folder().path());
    assert_eq!(report["names"][0]["name"], "app.test", "{report}");
    assert!(report["bytes_received"].as_u64().unwrap() > BYTES as u64, "{report}");
    assert_eq!(report["refused"][0]["name"], "other.test", "{report}");
}

/// A rule that ends TLS has to see what passes: QUIC would pass it by. The kernel refuses it, and
/// clients go on by TCP.
#[test]
fn a_name_that_is_minted_for_has_no_quic() {
    if !is_possible() || !need("python3") {
        return;
    }
    const ASK: &str = "python3 -c 'import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(9)
s.connect((\"127.0.0.1\", 9443))
s.send(b\"x\")
s.recv(9)'";
    let folder = Folder::new();
    let profile = "[sandbox.one]\nallow = [\"app.test:9443\"]\n";
    let mints = "[[sandbox.one.rule]]\naction = \"terminate\"\ncertificate = \"mint\"\n";
    for (rule, failure) in [("", "timed out"), (mints, "ConnectionRefusedError")] {
        folder.write("edge.toml", format!("{profile}{rule}"));
        let sandbox = Sandbox::without_list(&folder, &HOSTS).option("--config", "edge.toml");
        let said = sandbox.option("--profile", "one").script(ASK);
        assert!(said.text.contains(failure), "{rule}: {}", said.text);
    }
}
