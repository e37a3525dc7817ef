//! Foreign clients through both splice and terminate: openssl, curl, Go, Node, Python, httpx, Java.
//! A test whose program is missing is skipped, and says so.

use std::path::PathBuf;
use std::process::Command;

use crate::support;
use crate::support::pki::Kind;
use crate::support::program::python_with;
use crate::support::{Edge, Pki, Talk, Upstream, need, output};

/// An edge with both actions, each in front of an echo and of HTTP.
struct Scene {
    edge: Edge,
    pki: Pki,
    _upstreams: [Upstream; 4],
}

/// The names, by action and by what is behind.
const TERMINATED_ECHO: &str = "app.test";
const TERMINATED_HTTP: &str = "www.app.test";
const SPLICED_ECHO: &str = "echo.test";
const SPLICED_HTTP: &str = "web.test";

impl Scene {
    fn new() -> Self {
        let pki = Pki::new();
        pki.server("rsa", &support::pki::NAMES, Kind::Rsa);
        let echo = Upstream::echo();
        let http = Upstream::http();
        let tls = Upstream::tls_echo(pki.server("echo", &[SPLICED_ECHO], Kind::P256));
        let https = Upstream::https(pki.server("web", &[SPLICED_HTTP], Kind::Rsa));
        let files = "certificate = [\"edge.pem\", \"rsa.pem\"]\nkey = [\"edge.key\", \"rsa.key\"]";
        let rules = format!(
            r#"
            [[rule]]
            sni = "{TERMINATED_ECHO}"
            action = "terminate"
            {files}
            upstream = "tcp://{}"
            [[rule]]
            sni = "{TERMINATED_HTTP}"
            action = "terminate"
            {files}
            upstream = "http://{}"
            [[rule]]
            sni = "{SPLICED_ECHO}"
            action = "splice"
            upstream = "{}"
            [[rule]]
            sni = "{SPLICED_HTTP}"
            action = "splice"
            upstream = "{}"
            "#,
            echo.address, http.address, tls.address, https.address,
        );
        let edge = Edge::start(&pki.folder, &rules);
        Self { edge, pki, _upstreams: [echo, http, tls, https] }
    }

    fn s_client(&self, name: &str, options: &[&str]) -> Talk {
        Talk::start(&mut self.s_client_command(name, options))
    }

    fn s_client_command(&self, name: &str, options: &[&str]) -> Command {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", &self.edge.address().to_string()]);
        command.args(["-servername", name, "-CAfile", &self.pki.text("ca.pem")]);
        command.args(["-verify_return_error", "-verify_hostname", name]).args(options);
        command
    }

    /// Waits for the access line of that name with that outcome; all its figures must be there.
    fn expect_line(&self, name: &str, outcome: &str) {
        let line = self.edge.line(name, |line| line["sni"] == name);
        assert_eq!(line["outcome"], outcome, "{line}");
        assert!(line["bytes_to_upstream"].as_u64() > Some(0), "{line}");
        assert!(line["bytes_to_client"].as_u64() > Some(0), "{line}");
        assert!(line["ja4"].as_str().is_some_and(|ja4| ja4.starts_with('t')), "{line}");
    }
}

fn program(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// The work of a program, the name, and the part of the access line about it.
type Mode = (&'static str, &'static str, &'static str);

const MODES: [Mode; 4] = [
    ("echo", TERMINATED_ECHO, "terminated"),
    ("http", TERMINATED_HTTP, "terminated"),
    ("echo", SPLICED_ECHO, "spliced"),
    ("http", SPLICED_HTTP, "spliced"),
];
/// Forty requests with bodies, side by side on one connection.
const TWO: Mode = ("http2", TERMINATED_HTTP, "terminated");

/// Runs a program in each mode; each must say ok.
fn foreign(modes: &[Mode], command: impl Fn() -> Command) {
    let scene = Scene::new();
    for (mode, name, outcome) in modes {
        let mut command = command();
        let port = scene.edge.port().to_string();
        command.args([*mode, &port, *name, &scene.pki.text("ca.pem")]);
        let said = output(&mut command);
        assert!(said.status.success() && said.text.contains("ok TLS"), "{name}: {said:?}");
        scene.expect_line(name, outcome);
    }
}

#[test]
fn python() {
    if need("python3") {
        foreign(&MODES, || {
            let mut command = Command::new("python3");
            command.arg(program("client.py"));
            command
        });
    }
}

#[test]
fn httpx() {
    if let Some(python) = python_with("httpx, h2") {
        foreign(&[TWO], || {
            let mut command = Command::new(python);
            command.arg(program("client_httpx.py"));
            command
        });
    }
}

#[test]
fn node() {
    if need("node") {
        foreign(&[&MODES[..], &[TWO]].concat(), || {
            let mut command = Command::new("node");
            command.arg(program("client.js"));
            command
        });
    }
}

#[test]
fn java() {
    if need("java") && need("javac") {
        // Compiled once: from its source `java` would do it for each name.
        let built = support::Folder::new();
        let mut build = Command::new("javac");
        build.arg("-d").arg(built.path()).arg(program("Client.java"));
        let said = support::long_output(&mut build);
        assert!(said.status.success(), "{said:?}");
        foreign(&MODES, || {
            let mut command = Command::new("java");
            command.arg("-cp").arg(built.path()).arg("Client");
            command
        });
    }
}

#[test]
fn go() {
    if need("go") {
        // Compiled once, by a go that needs nothing but its own library.
        let built = support::Folder::new();
        let binary = built.path().join("client");
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&binary).arg(program("client.go"));
        build.env("GOFLAGS", "-mod=mod").env("GO111MODULE", "off");
        if std::env::var_os("HOME").is_none() {
            build.env("GOCACHE", built.path().join("cache"));
        }
        let said = support::long_output(&mut build);
        assert!(said.status.success(), "{said:?}");
        foreign(&[&MODES[..], &[TWO]].concat(), || Command::new(&binary));

        // The program connects twice, and says whether the second time was a resumption.
        let scene = Scene::new();
        let (port, ca) = (scene.edge.port().to_string(), scene.pki.text("ca.pem"));
        for name in [TERMINATED_ECHO, SPLICED_ECHO] {
            let said = output(Command::new(&binary).args(["echo", &port, name, &ca]));
            assert!(said.text.contains("resumed true"), "{name}: {said:?}");
        }
    }
}

#[test]
fn curl() {
    if !need("curl") {
        return;
    }
    let scene = Scene::new();
    let port = scene.edge.port();
    for (name, outcome) in [(TERMINATED_HTTP, "terminated"), (SPLICED_HTTP, "spliced")] {
        for version in ["--tls-max 1.2", "--tlsv1.3"] {
            let mut command = Command::new("curl");
            command.args(["-sS", "--cacert", &scene.pki.text("ca.pem"), "--resolve"]);
            command.arg(format!("{name}:{port}:127.0.0.1")).args(version.split(' '));
            // Two requests on one connection, the second with a body.
            command.arg(format!("https://{name}:{port}/first"));
            command.args(["--next", "-sS", "--cacert", &scene.pki.text("ca.pem"), "--resolve"]);
            command.arg(format!("{name}:{port}:127.0.0.1")).args(version.split(' '));
            command.args(["--data", "a body from curl"]);
            command.arg(format!("https://{name}:{port}/second"));
            let said = output(&mut command);
            assert!(said.status.success(), "{name} {version}: {said:?}");
            for part in ["GET /first", "POST /second", "a body from curl"] {
                assert!(said.text.contains(part), "{name} {version}: {said:?}");
            }
        }
        scene.expect_line(name, outcome);
    }
}

#[test]
fn openssl_with_each_suite() {
    if !need("openssl") {
        return;
    }
    let scene = Scene::new();
    let table: &[(&[&str], &str)] = &[
        (&["-tls1_3", "-ciphersuites"], "TLS_AES_128_GCM_SHA256"),
        (&["-tls1_3", "-ciphersuites"], "TLS_AES_256_GCM_SHA384"),
        (&["-tls1_3", "-ciphersuites"], "TLS_CHACHA20_POLY1305_SHA256"),
        (&["-tls1_2", "-cipher"], "ECDHE-ECDSA-AES128-GCM-SHA256"),
        (&["-tls1_2", "-cipher"], "ECDHE-ECDSA-AES256-GCM-SHA384"),
        (&["-tls1_2", "-cipher"], "ECDHE-ECDSA-CHACHA20-POLY1305"),
        (&["-tls1_2", "-cipher"], "ECDHE-RSA-AES128-GCM-SHA256"),
        (&["-tls1_2", "-cipher"], "ECDHE-RSA-AES256-GCM-SHA384"),
        (&["-tls1_2", "-cipher"], "ECDHE-RSA-CHACHA20-POLY1305"),
    ];
    for (options, suite) in table {
        // The origin of the splice has an ECDSA certificate alone.
        let spliced = (!suite.contains("RSA-") || suite.contains("ECDSA")).then_some(SPLICED_ECHO);
        for name in [Some(TERMINATED_ECHO), spliced].into_iter().flatten() {
            let mut talk = scene.s_client(name, &[*options, &[*suite]].concat());
            talk.say("hello through the edge\n");
            talk.hear("hello through the edge");
            talk.say("and again\n");
            talk.hear("and again");
            talk.hang_up();
            let said = talk.finish();
            assert!(said.status.success(), "{suite} {name}: {}", said.text);
            assert!(said.text.contains(&format!("Cipher is {suite}")), "{name}: {}", said.text);
        }
    }
}

#[test]
fn openssl_updates_keys() {
    if !need("openssl") {
        return;
    }
    let scene = Scene::new();
    for name in [TERMINATED_ECHO, SPLICED_ECHO] {
        let mut talk = scene.s_client(name, &["-tls1_3"]);
        talk.say("hello before\n");
        talk.hear("hello before");
        // 'k' tells of new keys, 'K' asks for the other side's too; each several times, for an
        // edge that counts wrong may get the first one right.
        for (round, letter) in ["k", "K", "K", "k", "K"].into_iter().enumerate() {
            talk.say(&format!("{letter}\n"));
            let text = format!("hello after {round}{letter}");
            // s_client takes a letter for a command only at the start of what it reads at once.
            support::until("s_client's word", || {
                (talk.said().matches("KEYUPDATE").count() == round + 1).then_some(())
            });
            talk.say(&format!("{text}\n"));
            talk.hear(&text);
        }
        talk.hang_up();
        let said = talk.finish();
        assert!(said.status.success(), "{name}: {}", said.text);
    }
}

#[test]
fn openssl_resumes() {
    if !need("openssl") {
        return;
    }
    let scene = Scene::new();
    for version in ["-tls1_2", "-tls1_3"] {
        let file = scene.pki.text(&format!("session{version}"));
        for (option, word) in [("-sess_out", "New, TLSv1"), ("-sess_in", "Reused, TLSv1")] {
            let mut talk = scene.s_client(TERMINATED_ECHO, &[version, option, &file]);
            talk.say("hello again\n");
            talk.hear("hello again");
            talk.hang_up();
            let said = talk.finish();
            assert!(said.status.success(), "{version} {option}: {}", said.text);
            assert!(said.text.contains(word), "{version} {option}: {}", said.text);
        }
    }
}

/// The first group's key share is of no use to the edge, which asks for another
/// (HelloRetryRequest, RFC 8446 section 4.1.4).
#[test]
fn openssl_is_asked_for_another_group() {
    if !need("openssl") {
        return;
    }
    let scene = Scene::new();
    for name in [TERMINATED_ECHO, SPLICED_ECHO] {
        let mut talk = scene.s_client(name, &["-tls1_3", "-msg", "-groups", "P-521:P-256"]);
        talk.say("hello\n");
        talk.hear("Server Temp Key: ECDH, prime256v1");
        talk.hang_up();
        let said = talk.finish();
        assert!(said.status.success(), "{}", said.text);
        assert_eq!(said.text.matches(", ClientHello").count(), 2, "{name}: {}", said.text);
    }
}

/// A rule with an ECDSA and an RSA certificate: the client's signature algorithms choose.
#[test]
fn openssl_gets_the_certificate_that_it_can_verify() {
    if !need("openssl") {
        return;
    }
    let scene = Scene::new();
    for version in ["-tls1_2", "-tls1_3"] {
        for (algorithms, word) in [
            ("ecdsa_secp256r1_sha256", "Peer signature type: ECDSA"),
            ("rsa_pss_rsae_sha256", "Peer signature type: RSA-PSS"),
            ("rsa_pss_rsae_sha256:ecdsa_secp256r1_sha256", "Peer signature type: "),
        ] {
            let mut talk = scene.s_client(TERMINATED_ECHO, &[version, "-sigalgs", algorithms]);
            talk.say("hello\n");
            talk.hear("hello");
            talk.hang_up();
            let said = talk.finish();
            assert!(said.text.contains(word), "{version} {algorithms}: {}", said.text);
        }
    }
    // Neither can be used: handshake_failure, and a line that says so.
    let mut talk = scene.s_client(TERMINATED_ECHO, &["-sigalgs", "ed25519"]);
    talk.hear("alert number 40");
    scene.edge.line("the last", |line| line["outcome"] == "failed");
}

#[test]
fn openssl_shows_its_certificate() {
    if !need("openssl") {
        return;
    }
    let pki = Pki::new();
    pki.client("alice");
    let echo = Upstream::echo();
    let rule = pki.terminate(&format!("tcp://{}", echo.address), "client_ca = \"ca.pem\"");
    let edge = Edge::start(&pki.folder, &rule);
    let scene = Scene { edge, pki, _upstreams: [echo, nothing(), nothing(), nothing()] };
    // Without a certificate: handshake_failure (RFC 5246 section 7.4.6), and certificate_required
    // (RFC 8446 section 4.4.2.4), which TLS 1.2 does not know.
    for (version, alert) in [("-tls1_2", 40), ("-tls1_3", 116)] {
        let (certificate, key) = (scene.pki.text("alice.pem"), scene.pki.text("alice.key"));
        let options = [version, "-cert", &certificate, "-key", &key];
        let mut talk = scene.s_client(TERMINATED_ECHO, &options);
        talk.say("hello from alice\n");
        talk.hear("hello from alice");
        talk.hang_up();
        assert!(talk.finish().status.success());

        let mut talk = scene.s_client(TERMINATED_ECHO, &[version]);
        talk.hear(&format!("alert number {alert}"));
    }
}

fn nothing() -> Upstream {
    Upstream::by_hand()
}

#[test]
fn openssl_may_not_renegotiate() {
    if !need("openssl") {
        return;
    }
    let scene = Scene::new();
    let mut talk = scene.s_client(TERMINATED_ECHO, &["-tls1_2"]);
    talk.say("hello once\n");
    talk.hear("hello once");
    talk.say("R\n");
    let said = talk.finish();
    // The no_renegotiation warning of RFC 5246 section 7.2.2, on which s_client gives up.
    assert!(said.text.contains("RENEGOTIATING"), "{}", said.text);
    assert!(said.text.contains("no renegotiation"), "{}", said.text);
    assert_eq!(scene.edge.only_line()["outcome"], "terminated");
}
