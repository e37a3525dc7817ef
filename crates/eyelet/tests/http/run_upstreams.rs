//! Applications of `eyelet proxy` with a development certificate, and those that listen elsewhere
//! than was said; servers of openssl and python.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::run_shared::Network;
use crate::support::{Talk, need, output, until};

/// A server with this certificate of the network's folder, and its port.
fn server(network: &Network, name: &str, port: u16) -> Talk {
    let file = |end| network.folder.path().join(format!("{name}.{end}"));
    let mut command = network.inside("openssl");
    command.args(["s_server", "-accept", &format!("127.0.0.1:{port}"), "-www", "-cert"]);
    let mut talk = Talk::start(command.arg(file("pem")).arg("-key").arg(file("key")));
    talk.hear("ACCEPT");
    talk
}

/// Has openssl make a certificate of its own for `localhost`.
fn self_signed(network: &Network, name: &str, constraints: &str) {
    let mut command: Command = network.inside("openssl");
    command.args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3".split(' '));
    command.args(["-subj", &format!("/CN={name}"), "-addext", "subjectAltName=DNS:localhost"]);
    command.args(["-addext", &format!("basicConstraints=critical,{constraints}"), "-out"]);
    command.arg(network.folder.path().join(format!("{name}.pem"))).arg("-keyout");
    let said = output(command.arg(network.folder.path().join(format!("{name}.key"))));
    assert!(said.status.success(), "{}", said.text);
}

fn proxy(network: &Network, words: &str) -> Talk {
    let mut talk = Talk::start(network.eyelet(&format!("proxy {words}")).env("CAROOT", "/absent"));
    talk.hear("until then");
    talk
}

/// The page of a server of openssl.
const PAGE: &str = "s_server -accept";

fn get(network: &Network, name: &str) -> String {
    network.get(&format!("https://{name}.localhost:8443/")).text
}

/// `eyelet cert` without an option, as a web developer has it.
#[test]
fn an_application_with_the_users_own_certificate_is_trusted() {
    let Some(network) = Network::new() else { return };
    if !need("openssl") {
        return;
    }
    let folder = network.folder.path();
    let mut command = network.inside(env!("CARGO_BIN_EXE_eyelet"));
    command.args(["cert", "localhost", "--folder"]).arg(folder.join("authority"));
    let said = output(command.arg("--out").arg(folder));
    assert!(said.status.success(), "{}", said.text);
    let _server = server(&network, "localhost", 5001);
    let mut run = proxy(&network, "one=https://localhost:5001 two=https://127.0.0.1:5001");
    assert!(get(&network, "one").contains(PAGE), "{}", run.said());
    assert!(get(&network, "two").contains("503 "), "{}", run.said());
    run.hear("two.localhost: GET /: 503: upstream: TLS: invalid peer certificate: not valid for ");
    run.hear("it is for localhost; write that name in place of the address, as https://NAME:PORT");
}

/// mkcert keeps its authority's certificate in $CAROOT.
#[test]
fn an_application_with_mkcerts_certificate_is_trusted() {
    let Some(network) = Network::new() else { return };
    if !need("openssl") {
        return;
    }
    self_signed(&network, "mkcert", "CA:TRUE");
    let root = network.folder.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let certificate = network.folder.path().join("mkcert.pem");
    std::fs::copy(certificate, root.join("rootCA.pem")).unwrap();
    let _server = server(&network, "mkcert", 5001);
    let words = "proxy one=https://localhost:5001";
    let mut run = Talk::start(network.eyelet(words).env("CAROOT", &root));
    run.hear("until then");
    assert!(get(&network, "one").contains(PAGE), "{}", run.said());
}

/// One that signs itself is refused at once, and the line says what accepts it.
#[test]
fn a_certificate_that_nobody_here_signed_is_said_at_once_and_can_be_given() {
    let Some(network) = Network::new() else { return };
    if !need("openssl") {
        return;
    }
    self_signed(&network, "own", "CA:TRUE");
    self_signed(&network, "leaf", "CA:FALSE");
    let (_own, _leaf) = (server(&network, "own", 5001), server(&network, "leaf", 5002));
    let mut run = proxy(&network, "own=https://localhost:5001 leaf=https://localhost:5002");
    let began = Instant::now();
    for name in ["own", "leaf"] {
        let page = network.get(&format!("https://{name}.localhost:8443/")).text;
        let text = "503 Service Unavailable\n\nThe certificate of the application behind this \
            address is not trusted.\n";
        assert_eq!(page, text, "{}", run.said());
        run.hear(&format!("eyelet: {name}.localhost: GET /: 503: upstream: TLS: invalid peer"));
    }
    run.hear("; --upstream-ca FILE names its authority, or its own certificate");
    // It was not held.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    run.signal(Signal::TERM);
    run.finish();
    let file = |name| network.folder.path().join(format!("{name}.pem")).display().to_string();
    // The other one's, and another name, are refused.
    for (given, host, port, expected) in [
        ("own", "localhost", 5001, PAGE),
        ("leaf", "localhost", 5002, PAGE),
        ("leaf", "localhost", 5001, "503 "),
        ("own", "localhost", 5002, "503 "),
        ("own", "127.0.0.1", 5001, "503 "),
    ] {
        let words = format!("--upstream-ca {} app=https://{host}:{port}", file(given));
        let run = proxy(&network, &words);
        let said = get(&network, "app");
        assert!(said.contains(expected), "{words}: {said} {}", run.said());
        run.signal(Signal::TERM);
        run.finish();
    }
}

#[test]
fn an_application_at_the_other_loopback_is_found() {
    let Some(network) = Network::new() else { return };
    let script = "import socket, sys\nfor host, family in (('::1', 10), ('127.0.0.1', 2)):\n  \
        s = socket.socket(family); s.bind((host, 0)); s.listen()\n  \
        print('at', s.getsockname()[1], flush=True)\n  globals()[host] = s\n\
        sys.stdin.read()";
    let mut server = Talk::start(network.inside("python3").args(["-c", script]));
    server.hear("at ");
    let ports: Vec<String> = until("both ports", || {
        let said = server.said();
        let ports = said.lines().filter_map(|line| line.strip_prefix("at "));
        Some(ports.map(ToOwned::to_owned).collect::<Vec<_>>()).filter(|ports| ports.len() == 2)
    });
    let (six, four) = (&ports[0], &ports[1]);
    let mut run = proxy(&network, &format!("a=127.0.0.1:{six} b=http://[::1]:{four}"));
    run.hear(&format!("a.localhost: it listens at [::1]:{six}: write a.localhost=[::1]:{six}\n"));
    let other = format!("127.0.0.1:{four}");
    run.hear(&format!("b.localhost: it listens at {other}: write b.localhost=http://{other}\n"));
}

/// A line about the upstream of one project is not printed by the others.
#[test]
fn what_is_logged_of_an_upstream_is_for_its_project() {
    let Some(network) = Network::new() else { return };
    let other = network.run("--name other ", "other");
    let mut run = proxy(&network, "--hold 1s one=http://localhost:5001");
    network.get("https://one.localhost:8443/");
    run.hear("eyelet: upstream http://localhost:5001 is down: ");
    assert!(!other.said().contains("is down"), "{}", other.said());
}
