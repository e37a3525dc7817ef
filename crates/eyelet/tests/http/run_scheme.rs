//! Applications that speak TLS where http:// was meant, or the other way round.

use std::io::{Read, Write};
use std::process::Command;

use crate::run::{Run, program, vacant_port};
use crate::run_shared::Network;
use crate::support::{Pki, Talk, Upstream, need};

/// The application is there, so nothing is held. A request that was held got a 503.
#[test]
fn the_wrong_scheme_is_said_at_once() {
    if !need("openssl") || !need("curl") {
        return;
    }
    let plain = Upstream::serve(|mut stream| {
        // As a server of HTTP that reads nonsense.
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    });
    let silent = Upstream::http();
    let (pki, port) = (Pki::new(), vacant_port());
    let mut server = Command::new("openssl");
    let address = format!("127.0.0.1:{port}");
    server.args(["s_server", "-accept", &address, "-cert", &pki.text("edge.pem")]);
    server.args(["-key", &pki.text("edge.key"), "-www"]);
    let mut server = Talk::start(&mut server);
    server.hear("ACCEPT");
    let (plain, silent) = (plain.address, silent.address);
    let mut run = Run::proxy(&[
        &format!("app.test={address}"),
        &format!("a.app.test=https://{plain}"),
        &format!("b.app.test=https://{silent}"),
    ]);
    run.talk.hear(&format!("a.app.test: {plain} speaks no TLS; write a.app.test=http://{plain}"));
    run.talk.hear(&format!("b.app.test: {silent} speaks no TLS; write b.app.test=http://{silent}"));
    for host in ["a.app.test", "app.test"] {
        let said = run.curl(host, &["/"]);
        assert!(said.ends_with(" 502\n"), "{said}");
    }
    run.talk.hear(&format!("app.test: {address} speaks TLS; write app.test=https://{address}"));
}

/// A command of `eyelet run`, at an edge of its own and at the shared one.
#[test]
fn a_command_that_speaks_tls_itself_is_said() {
    if !need("node") || !need("curl") {
        return;
    }
    let pki = Pki::new();
    let child = ["node", &program("echo_tls.js"), &pki.text("edge.pem"), &pki.text("edge.key")];
    let mut run = Run::start(&[], &child);
    run.listens(1);
    let said = run.curl("app.test", &["/"]);
    assert!(said.ends_with(" 502\n"), "{said}");
    run.talk.hear("app.test: the command speaks TLS itself at 127.0.0.1:");
    drop(run);
    let Some(network) = Network::new() else { return };
    let words = format!("run --name a.localhost -- {}", child.join(" "));
    let mut run = Talk::start(&mut network.eyelet(&words));
    run.hear("the command listens on");
    network.get("https://a.localhost:8443/");
    run.hear("serve it with `eyelet proxy a.localhost=https://localhost:PORT`, with its own port");
}

/// Only an application whose own requests fail is asked if it speaks TLS: it may log that.
#[test]
fn the_failed_requests_of_one_application_have_no_other_asked() {
    if !need("curl") {
        return;
    }
    let good = Upstream::http();
    let bad = Upstream::serve(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"no HTTP at all\r\n\r\n");
    });
    let (good, bad) = (good, bad.address);
    let mut run =
        Run::proxy(&[&format!("app.test={}", good.address), &format!("a.app.test={bad}")]);
    let said = run.curl("a.app.test", &["/x?y=1", "/x?y=2"]);
    assert_eq!(said.matches(" 502\n").count(), 2, "{said}");
    run.talk.hear("eyelet: a.app.test: GET /x: 502: ");
    let said = run.curl("app.test", &["/"]);
    assert!(said.ends_with(" 200\n"), "{said}");
    // The other one is asked within a second of its failure, and this one would be, too.
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(good.accepted(), 1, "{}", run.talk.said());
    assert!(!run.talk.said().contains("eyelet: app.test: "), "{}", run.talk.said());
}
