//! Rules on requests for clients of a CONNECT proxy that mints: real clients by HTTP/1.1, HTTP/2,
//! gRPC and WebSocket. What a rule refuses reaches no origin, and the connection goes on.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;

use super::mint::{ALLOWED, CONNECT, EVIDENCE, MINT, Minting};
use crate::support::client::{Offer, handshake};
use crate::support::pki::Kind;
use crate::support::program::python_with;
use crate::support::streams::Streams;
use crate::support::web::{self, ask, get};
use crate::support::{Pki, Talk, Tls, Upstream, expect, need, output, two, until};

/// A refuse rule, and one that mints for what it reads.
const READS: &str = "method = \"GET\"\npath = \"/public/*\"\n";
const NO_ADMIN: &str = "[[rule]]\nname = \"no admin\"\naction = \"refuse\"\n\
    path = \"/public/admin*\"\nmessage = \"Ask the office.\"\n";

fn minting(origins: Pki, asks: &str) -> Minting {
    Minting::with(origins, &format!("{CONNECT}{NO_ADMIN}{MINT}{asks}{ALLOWED}{EVIDENCE}"))
}

fn program(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(file)
}

/// An origin of HTTP/2 that answers with the method and the path of a request.
fn two_origin(pki: &Pki) -> Upstream {
    let leaf = pki.server("two", &["app.test"], Kind::P256);
    two::app(100, Some(leaf), |(request, mut respond)| {
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            two::say(&mut respond, format!("{} {path}", request.method()));
        })
    })
}

/// A client's TLS through CONNECT.
fn through(at: &Minting, origin: SocketAddr) -> Tls {
    let mut client = at.edge.connect();
    write!(client, "CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\n\r\n").unwrap();
    expect(&mut client, b"HTTP/1.1 200 Connection established\r\n\r\n");
    handshake(Offer::new(&at.mint).config(), client, "app.test").unwrap()
}

/// Replaces a part of the configuration.
fn reload(at: &Minting, from: &str, to: &str) {
    let text = std::fs::read_to_string(at.file()).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(at.file(), text.replace(from, to)).unwrap();
    at.edge.signal(Signal::HUP);
    at.edge.wait_log("configuration 2 serves");
}

/// curl asks for what is read, for what is refused by its path, twice, and for what is read again.
fn asked_by_curl(version: &str, origin: impl FnOnce(&Pki) -> Upstream) {
    if !need("curl") {
        return;
    }
    let origins = Pki::new();
    let origin = origin(&origins);
    let at = minting(origins, READS);
    let mut curl = Command::new("curl");
    let paths = ["/public/one", "/public/admin/x", "/private", "/public/%61dmin", "/public/two"];
    for path in paths {
        if path != paths[0] {
            curl.arg("--next");
        }
        curl.args(["-sS", "--noproxy", "", "--proxy", &format!("http://{}", at.edge.address())]);
        curl.args(["--connect-to", &format!("::{}", origin.address), "--cacert"]);
        curl.arg(at.origins.text("mint.pem")).arg(version);
        if path == "/private" {
            // By HTTP/1.1 its body has no length.
            curl.args(["--header", "Transfer-Encoding: chunked", "--data", "some=bytes"]);
        }
        curl.args(["--write-out", "\n%{http_code} by %{http_version}, dialled %{num_connects}\n"]);
        curl.arg(format!("https://app.test{path}"));
    }
    let said = output(&mut curl).text;
    assert_eq!(said.matches("200 by").count(), 2, "{said}");
    assert_eq!(said.matches("403 by").count(), 3, "{said}");
    assert_eq!(said.matches("Rule: no admin").count(), 2, "{said}");
    assert_eq!(said.matches("Ask the office.").count(), 2, "{said}");
    assert_eq!(said.matches("no rule for this request").count(), 1, "{said}");
    let expected = if version == "--http2" { "by 2, dialled" } else { "by 1.1, dialled" };
    assert_eq!(said.matches(expected).count(), 5, "{said}");
    assert_eq!(said.matches("dialled 0").count(), 4, "one connection for all: {said}");
    for path in ["/public/admin", "/private", "/public/%61dmin"] {
        assert!(!said.contains(&format!("GET {path}")), "{path} reached the origin: {said}");
    }
}

#[test]
fn curl_goes_on_after_a_refusal_by_http1() {
    asked_by_curl("--http1.1", |pki| Upstream::https(pki.server("one", &["app.test"], Kind::P256)));
}

#[test]
fn curl_goes_on_after_a_refusal_by_http2() {
    asked_by_curl("--http2", two_origin);
}

fn streams(at: &Minting, origin: SocketAddr) -> Streams {
    Streams::new(at.edge.port(), Some(origin), &at.origins.text("mint.pem"))
}

#[test]
fn three_of_forty_streams_are_refused() {
    if !need("node") {
        return;
    }
    let origins = Pki::new();
    let origin = two_origin(&origins);
    let at = minting(origins, READS);
    let mut client = streams(&at, origin.address);
    // Twice: the connection goes on behind refusals.
    for round in 0..2 {
        let mut requests: Vec<_> =
            (0..40).map(|nth| ("GET", format!("/public/{round}/{nth}"))).collect();
        requests[7] = ("DELETE", "/public/7".into());
        requests[19] = ("GET", "/public/admin".into());
        requests[31] = ("GET", "/private".into());
        let answers = client.ask(&requests);
        assert_eq!(answers.len(), 40);
        for ((method, path), (status, body)) in requests.iter().zip(answers) {
            match (*method, &**path) {
                ("DELETE", _) | ("GET", "/private") => {
                    assert_eq!(status, 403, "{method} {path}: {body}");
                    assert!(body.contains("no rule for this request"), "{body}");
                }
                (_, "/public/admin") => {
                    assert!(status == 403 && body.contains("Rule: no admin"), "{status}: {body}");
                }
                _ => assert_eq!((status, body), (200, format!("GET {path}"))),
            }
        }
    }
    let requests = || at.edge.lines().into_iter().filter(|line| line["http"]["path"].is_string());
    until("the lines of all requests", || (requests().count() == 80).then_some(()));
    assert_eq!(requests().filter(|line| line["outcome"] == "refused").count(), 6);
    let ids: std::collections::BTreeSet<_> =
        requests().map(|line| line["id"].to_string()).collect();
    assert_eq!(ids.len(), 1, "one connection: {ids:?}");
}

#[test]
fn a_reload_decides_the_next_request_of_a_kept_connection() {
    let origins = Pki::new();
    let one = Upstream::https(origins.server("one", &["app.test"], Kind::P256));
    let two = two_origin(&origins);
    let at = minting(origins, READS);
    let mut kept = through(&at, one.address);
    let is_here = need("node");
    let mut two_client = is_here.then(|| streams(&at, two.address));
    let mut asked = |first: u16, second: u16| {
        for (path, status) in [("/public/a", first), ("/private", second)] {
            assert_eq!(get(&mut kept, path).status, status, "{path}");
            if let Some(client) = &mut two_client {
                let answers = client.ask(&[("GET", path.to_owned())]);
                assert_eq!(answers[0].0, u64::from(status), "{path}: {answers:?}");
            }
        }
    };
    asked(200, 403);
    reload(&at, "path = \"/public/*\"", "path = \"/private\"");
    asked(403, 200);
}

#[test]
fn grpc_calls_one_method_and_not_another() {
    let Some(python) = python_with("grpc") else { return };
    let origins = Pki::new();
    origins.server("grpc", &["app.test"], Kind::P256);
    let at = minting(origins, "method = \"POST\"\npath = \"/test.Things/Read\"\n");
    let mut calls = Command::new(python);
    calls.arg(program("grpc_proxied.py")).args([&at.edge.address().to_string(), "app.test"]);
    calls.args(["grpc.pem", "grpc.key", "mint.pem"].map(|file| at.origins.text(file)));
    let said = output(&mut calls).text;
    assert_eq!(said.matches("Read x\n").count(), 2, "{said}");
    assert!(said.contains("Delete PERMISSION_DENIED"), "{said}");
    assert_eq!(said.matches("served /test.Things/Read").count(), 2, "{said}");
    assert!(!said.contains("served /test.Things/Delete"), "{said}");
}

fn chat(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: app.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

#[test]
fn a_websocket_is_decided_by_its_path() {
    let origins = Pki::new();
    let origin = Upstream::tls(origins.server("ws", &["app.test"], Kind::P256), |tls| {
        let asked = web::head(tls);
        assert!(asked.starts_with("GET /public/chat "), "{asked}");
        tls.write_all(web::switched(&asked).as_bytes()).unwrap();
        tls.flush().unwrap();
        let mut frame = [0; 7];
        std::io::Read::read_exact(tls, &mut frame).unwrap();
        tls.write_all(b"\x81\x02ok").unwrap();
        tls.flush().unwrap();
        let _ = std::io::Read::read(tls, &mut frame);
    });
    let at = minting(origins, READS);
    let mut client = through(&at, origin.address);
    for path in ["/chat", "/public/admin/chat", "/public/../chat"] {
        let heard = ask(&mut client, &chat(path));
        assert_eq!(heard.status, 403, "{path}: {}", heard.text());
    }
    // The same connection may switch, where the rule reads.
    assert_eq!(ask(&mut client, &chat("/public/chat")).status, 101);
    client.write_all(b"\x81\x81\0\0\0\0a").unwrap();
    expect(&mut client, b"\x81\x02ok");
}

/// This origin knows no WebSockets in HTTP/2. The one that the rule takes fails there (502).
#[test]
fn a_websocket_in_http2_is_decided_as_a_get() {
    if !need("node") {
        return;
    }
    let origins = Pki::new();
    let origin = two_origin(&origins);
    let at = minting(origins, READS);
    let mut client = streams(&at, origin.address);
    for (path, status, part) in [
        ("/chat", 403, "no rule for this request"),
        ("/public/admin/chat", 403, "Rule: no admin"),
        ("/public/chat", 502, "does not speak the version of HTTP"),
    ] {
        let answers = client.ask(&[("CONNECT", path.to_owned())]);
        assert!(answers[0].0 == status && answers[0].1.contains(part), "{path}: {answers:?}");
    }
}

/// The stream of the client is a connection of HTTP/1.1 to the origin, which speaks both versions.
#[test]
fn a_websocket_in_http2_passes_where_its_rule_takes_it() {
    if !need("node") {
        return;
    }
    let origins = Pki::new();
    origins.server("ws", &["app.test"], Kind::P256);
    let mut origin = Command::new("node");
    origin.arg(program("websocket2_origin.js"));
    let mut origin = Talk::start(origin.args(["ws.pem", "ws.key"].map(|file| origins.text(file))));
    let port = origin.port();
    let at = minting(origins, READS);
    let begin = |path: &str| {
        let mut node = Command::new("node");
        node.arg(program("websocket2.js")).args([&at.edge.port().to_string(), "app.test"]);
        node.arg(at.origins.text("mint.pem")).args([path, &format!("127.0.0.1:{port}")]);
        Talk::start(&mut node)
    };
    for path in ["/chat", "/public/admin/chat"] {
        begin(path).hear("refused\n");
    }
    let mut client = begin("/public/chat");
    client.hear("open\n");
    for text in ["one\n", "two\n"] {
        client.say(text);
        client.hear(text);
    }
    drop(client);
    origin.hear("switched /public/chat\n");
    assert_eq!(origin.said().matches("switched").count(), 1, "{}", origin.said());
    let line = at.edge.line("the WebSocket", |line| line["http"]["path"] == "/public/chat");
    assert_eq!((&line["rule"], &line["http"]["status"]), (&"mint".into(), &200.into()), "{line}");
}
