//! Session tickets: what they are bound to, and what a reload leaves of them.
//! Must not know the engine; the clients are rustls and openssl.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::HandshakeKind::{self, Full, Resumed};

use crate::support::client::{Offer, TLS12, TLS13, Versions, echo, handshake};
use crate::support::edge::{self, eyelet};
use crate::support::pki::Kind;
use crate::support::{Edge, Pki, Talk, Upstream, need, output, until};

const VERSIONS: [Versions; 2] = [TLS13, TLS12];

/// Edges whose file is changed under them.
struct Scene {
    edge: Edge,
    upstream: Upstream,
    pki: Pki,
    file: std::path::PathBuf,
}

impl Scene {
    /// A listener for each of these additions to a terminate rule.
    fn new(rules: &[&str]) -> Self {
        let (pki, upstream) = (Pki::new(), Upstream::echo());
        pki.server("other", &["app.test"], Kind::P256);
        let ca = std::fs::read(pki.file("ca.pem")).unwrap();
        pki.folder.write("same.pem", ca);
        let file = pki.folder.write("edge.toml", text(&pki, &upstream, rules));
        let mut command = eyelet(&pki.folder);
        command.arg("serve").arg(&file);
        let edge = Edge::spawn(command, rules.len());
        Self { edge, upstream, pki, file }
    }

    fn reload(&self, rules: &[&str]) {
        self.pki.folder.write("edge.toml", text(&self.pki, &self.upstream, rules));
        let said = output(eyelet(&self.pki.folder).arg("reload").arg(&self.file));
        assert!(said.status.success(), "{}", said.text);
    }

    /// The kind of handshake, if the client saw its end, and whether the client is let in.
    fn try_connect(&self, config: &Arc<ClientConfig>) -> (Option<HandshakeKind>, bool) {
        let socket = self.edge.connect();
        let Ok(mut client) = handshake(config.clone(), socket, "app.test") else {
            return (None, false);
        };
        // With TLS 1.3 the client learns only with the first bytes whether it is let in.
        let is_let_in = client.write_all(b"x").is_ok() && client.read_exact(&mut [0]).is_ok();
        (client.conn.handshake_kind(), is_let_in)
    }

    fn connect(&self, config: &Arc<ClientConfig>, listener: usize) -> HandshakeKind {
        kind(config, self.edge.addresses()[listener])
    }
}

/// A handshake and an echo, behind which the ticket has come.
fn kind(config: &Arc<ClientConfig>, address: SocketAddr) -> HandshakeKind {
    let mut client = handshake(config.clone(), edge::connect(address), "app.test").unwrap();
    echo(&mut client, b"hello");
    client.conn.handshake_kind().unwrap()
}

fn text(pki: &Pki, upstream: &Upstream, rules: &[&str]) -> String {
    let mut text = String::from("[limits]\nhello_timeout = \"1m\"\nhandshake_timeout = \"1m\"\n");
    for (number, rule) in rules.iter().enumerate() {
        let listener = format!("listener = \"{number}\"");
        let upstream = format!("tcp://{}", upstream.address);
        text += &format!("[[listener]]\nname = \"{number}\"\naddress = \"127.0.0.1:0\"\n");
        let mut rule_text = pki.terminate(&upstream, &listener);
        rule_text = rule_text.replace("name = \"app\"", &format!("name = \"{number}\""));
        match rule.strip_prefix("other") {
            Some(more) => text += &(rule_text.replace("edge.", "other.") + more),
            None => text += &(rule_text + rule),
        }
        text.push('\n');
    }
    text
}

/// A ticket is a proof of what was checked in the full handshake. It must not pass for another
/// check.
#[test]
fn a_ticket_is_for_one_client_ca_and_one_set_of_certificates() {
    const RULES: [&str; 5] = [
        "",
        "other",
        "client_ca = \"ca.pem\"",
        "client_ca = \"same.pem\"",
        "alpn_select = [\"h2\"]\ntls_version_min = \"1.2\"",
    ];
    let scene = Scene::new(&RULES);
    let leaf = scene.pki.client("client");
    for versions in VERSIONS {
        for from in 0..RULES.len() {
            for to in 0..RULES.len() {
                let offer = Offer { versions, certificate: Some(&leaf), ..Offer::new(&scene.pki) };
                let config = offer.config();
                assert_eq!(scene.connect(&config, from), Full);
                // The first and the last rule differ in neither.
                let is_same = from == to || [from, to] == [0, 4] || [from, to] == [4, 0];
                let expected = if is_same { Resumed } else { Full };
                assert_eq!(scene.connect(&config, to), expected, "from {from} to {to}");
            }
        }
    }
}

#[test]
fn tickets_outlive_reloads_that_change_other_keys() {
    let scene = Scene::new(&[""]);
    for versions in VERSIONS {
        let config = Offer { versions, ..Offer::new(&scene.pki) }.config();
        scene.reload(&["alpn_select = [\"http/1.1\"]"]);
        assert_eq!(scene.connect(&config, 0), Full);
        scene.reload(&["alpn_select = [\"h2\"]"]);
        assert_eq!(scene.connect(&config, 0), Resumed);
        scene.reload(&["tls_version_min = \"1.2\""]);
        assert_eq!(scene.connect(&config, 0), Resumed);
        // A renewed certificate in the same file.
        scene.pki.server("edge", &["app.test"], Kind::P256);
        scene.reload(&[""]);
        assert_eq!(scene.connect(&config, 0), Resumed);
        scene.reload(&["\n[tickets]\nlifetime = \"1h\""]);
        assert_eq!(scene.connect(&config, 0), Resumed);
    }
}

#[test]
fn without_tickets_each_handshake_is_a_full_one() {
    let scene = Scene::new(&["\n[tickets]\nenabled = false"]);
    for versions in VERSIONS {
        let config = Offer { versions, ..Offer::new(&scene.pki) }.config();
        assert_eq!(scene.connect(&config, 0), Full);
        assert_eq!(scene.connect(&config, 0), Full);
        scene.reload(&[""]);
        // A thread makes the first key.
        until("a ticket", || (scene.connect(&config, 0) == Resumed).then_some(()));
        scene.reload(&["\n[tickets]\nenabled = false"]);
        assert_eq!(scene.connect(&config, 0), Full);
    }
}

/// rustls believes the certificate in a ticket. Whoever was let in yesterday must not come in today
/// if today's `client_ca` does not vouch for it.
#[test]
fn the_client_certificate_of_a_ticket_is_checked_again() {
    let scene = Scene::new(&["client_ca = \"same.pem\""]);
    let leaf = scene.pki.client("client");
    for versions in VERSIONS {
        let config =
            Offer { versions, certificate: Some(&leaf), ..Offer::new(&scene.pki) }.config();
        let ca = std::fs::read(scene.pki.file("ca.pem")).unwrap();
        assert_eq!(scene.connect(&config, 0), Full);
        assert_eq!(scene.connect(&config, 0), Resumed);
        let stranger = Pki::new();
        let others = std::fs::read(stranger.file("ca.pem")).unwrap();
        scene.pki.folder.write("same.pem", others);
        scene.reload(&["client_ca = \"same.pem\""]);
        let (kind, is_let_in) = scene.try_connect(&config);
        assert_ne!(kind, Some(Resumed));
        assert!(!is_let_in);
        scene.pki.folder.write("same.pem", ca);
        scene.reload(&["client_ca = \"same.pem\""]);
        assert!([Full, Resumed].contains(&scene.connect(&config, 0)));
        assert_eq!(scene.connect(&config, 0), Resumed);
    }
}

#[test]
fn an_expired_client_certificate_does_not_resume() {
    let scene = Scene::new(&["client_ca = \"ca.pem\""]);
    for versions in VERSIONS {
        // A slow machine may need longer to resume once.
        let has_resumed = [4, 12, 36].into_iter().any(|seconds| {
            let leaf = scene.pki.client_for("client", Duration::from_secs(seconds));
            let offer = Offer { versions, certificate: Some(&leaf), ..Offer::new(&scene.pki) };
            let (config, mut kinds) = (offer.config(), Vec::new());
            until("the certificate to expire", || {
                let (kind, is_let_in) = scene.try_connect(&config);
                kinds.push(kind);
                (!is_let_in).then_some(())
            });
            assert_ne!(kinds.last(), Some(&Some(Resumed)), "{kinds:?}");
            kinds.contains(&Some(Resumed))
        });
        assert!(has_resumed);
    }
}

/// A ticket that was tampered with, and one of a server with other keys: a full handshake.
#[test]
fn a_bad_ticket_is_no_error() {
    if !(need("openssl") && need("python3")) {
        return;
    }
    /// Flips a bit in the ticket of a session, which DER has as [10].
    const TAMPER: &str = "import base64, sys\n\
        text = open(sys.argv[1]).read().splitlines()\n\
        der = bytearray(base64.b64decode(''.join(text[1:-1])))\n\
        def element(at):\n \
            first = der[at + 1]\n \
            begin = at + 2 + (first - 128 if first > 127 else 0)\n \
            length = int.from_bytes(der[at + 2:begin], 'big') if first > 127 else first\n \
            return begin, begin + length\n\
        at = element(0)[0]\n\
        while der[at] != 0xaa: at = element(at)[1]\n\
        ticket = element(element(at)[0])[0]\n\
        der[ticket + int(sys.argv[2])] ^= 1\n\
        body = base64.encodebytes(bytes(der)).decode()\n\
        open(sys.argv[1], 'w').write(text[0] + '\\n' + body + text[-1] + '\\n')\n";
    let scene = Scene::new(&[""]);
    let file = scene.pki.text("session.pem");
    let say = |version: &str, option: &str, word: &str| {
        let mut command = std::process::Command::new("openssl");
        let address = scene.edge.address().to_string();
        command.args(["s_client", "-connect", &address, "-servername", "app.test", version]);
        let mut talk = Talk::start(command.args([option, &file]));
        talk.say("hello again\n");
        talk.hear("hello again");
        talk.hang_up();
        let said = talk.finish();
        assert!(said.text.contains(word), "{version} {option}: {}", said.text);
    };
    for version in ["-tls1_2", "-tls1_3"] {
        // Its name, its nonce and the sealed session.
        for at in ["0", "20", "60"] {
            say(version, "-sess_out", "New, TLSv1");
            say(version, "-sess_in", "Reused, TLSv1");
            say(version, "-sess_out", "New, TLSv1");
            let said =
                output(std::process::Command::new("python3").args(["-c", TAMPER, &file, at]));
            assert!(said.status.success(), "{}", said.text);
            say(version, "-sess_in", "New, TLSv1");
        }
    }
}
