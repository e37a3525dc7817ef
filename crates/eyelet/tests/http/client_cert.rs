//! `client_cert_header`: what an application learns of its clients' certificates (RFC 9440).

use std::io::Write;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::HandshakeKind::{Full, Resumed};

use crate::support::client::{Offer, TLS12, TLS13, handshake};
use crate::support::edge::{LISTENER, eyelet};
use crate::support::web::{Web, ask, get, head};
use crate::support::{Edge, Pki, Talk, Upstream, need, output};

const TOLD: &str = "client_ca = \"ca.pem\"\nclient_cert_header = true\n";
/// A client's own word.
const LIE: &str = "GET / HTTP/1.1\r\nHost: app.test\r\nClient-Cert: :MIIB:\r\n\
                   Client-Cert-Chain: :MIIB:\r\n\r\n";

/// An application that answers with the certificates that it was told, or with "none".
fn app() -> Upstream {
    Upstream::serve(|mut stream| {
        while stream.peek(&mut [0]).is_ok_and(|length| length > 0) {
            let head = head(&mut stream);
            let said = |name| head.lines().filter_map(move |line| line.strip_prefix(name));
            let told: Vec<&str> =
                said("client-cert: ").chain(said("client-cert-chain: ")).collect();
            let told = if told.is_empty() { "none".to_owned() } else { told.join(" and ") };
            let length = told.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{told}");
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    })
}

/// The certificate as RFC 9440 section 2.1 wants it.
fn field(pki: &Pki, file: &str) -> String {
    let pem = std::fs::read_to_string(pki.file(file)).unwrap();
    let text: String = pem.lines().filter(|line| !line.starts_with("--")).collect();
    format!(":{text}:")
}

/// The connection is parked between its handshake and its first request.
#[test]
fn each_request_says_the_certificate_also_after_a_resumption() {
    let web = Web::with(app(), TOLD, "[http]\ntrusted_proxies = [\"127.0.0.0/8\"]\n");
    let leaf = web.pki.client("client");
    let told = field(&web.pki, "client.pem");
    assert!(STANDARD.decode(told.trim_matches(':')).is_ok_and(|der| der == *leaf.certificate));
    for versions in [TLS13, TLS12] {
        let config = Offer { versions, certificate: Some(&leaf), ..Offer::new(&web.pki) }.config();
        for kind in [Full, Resumed] {
            let mut client = handshake(config.clone(), web.edge.connect(), "app.test").unwrap();
            assert_eq!(get(&mut client, "/").text(), told);
            assert_eq!(client.conn.handshake_kind(), Some(kind));
            assert_eq!(ask(&mut client, LIE).text(), told, "a trusted proxy's word is replaced");
        }
    }
}

#[test]
fn curl_shows_a_certificate_by_both_versions_of_http() {
    if !need("curl") {
        return;
    }
    let web = Web::with(app(), TOLD, "");
    web.pki.client("client");
    let port = web.edge.port();
    for version in ["--http1.1", "--http2"] {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", version, "--cacert", &web.pki.text("ca.pem")]);
        curl.args(["--cert", &web.pki.text("client.pem"), "--key", &web.pki.text("client.key")]);
        curl.arg("--connect-to").arg(format!("app.test:443:127.0.0.1:{port}"));
        let said = output(curl.arg("https://app.test/"));
        assert_eq!(said.text, field(&web.pki, "client.pem"), "{version}");
    }
}

/// Only the handshake knew the certificate, and without the key nobody keeps it.
#[test]
fn a_reload_that_turns_it_on_needs_new_connections() {
    let (pki, app) = (Pki::new(), app());
    let text =
        |more: &str| LISTENER.to_owned() + &pki.terminate(&format!("http://{}", app.address), more);
    let file = pki.folder.write("edge.toml", text("client_ca = \"ca.pem\"\n"));
    let mut command = eyelet(&pki.folder);
    command.arg("serve").arg(&file);
    let edge = Edge::spawn(command, 1);
    let leaf = pki.client("client");
    let offer = Offer { certificate: Some(&leaf), alpn: &["http/1.1"], ..Offer::new(&pki) };
    let mut held = offer.connect(edge.address(), "app.test");
    assert_eq!(ask(&mut held, LIE).text(), "none");
    let reload = |more: &str| {
        pki.folder.write("edge.toml", text(more));
        let said = output(eyelet(&pki.folder).arg("reload").arg(&file));
        assert_eq!(said.status.code(), Some(0), "{}", said.text);
    };
    reload(TOLD);
    assert_eq!(get(&mut held, "/").status, 421);
    let mut told = offer.connect(edge.address(), "app.test");
    assert_eq!(get(&mut told, "/").text(), field(&pki, "client.pem"));
    reload("client_ca = \"ca.pem\"\n");
    assert_eq!(get(&mut told, "/").text(), "none");
}

#[test]
fn the_application_behind_eyelet_proxy_is_told() {
    let (pki, app) = (Pki::new(), app());
    let leaf = pki.client("client");
    let mut command = eyelet(&pki.folder);
    command.args(["proxy", "--listen", "127.0.0.1:0", "--client-ca", &pki.text("ca.pem")]);
    command.args(["--certificate", &pki.text("edge.pem"), "--key", &pki.text("edge.key")]);
    let mut talk = Talk::start(command.arg(format!("app.test={}", app.address)));
    talk.hear("certificate: ");
    let said = talk.said();
    let url = said.lines().find_map(|line| line.strip_prefix("eyelet: serving ")).unwrap();
    let port: u16 = url.trim_end_matches('/').rsplit_once(':').unwrap().1.parse().unwrap();
    let offer = Offer { certificate: Some(&leaf), ..Offer::new(&pki) };
    let mut client = offer.connect(([127, 0, 0, 1], port).into(), "app.test");
    assert_eq!(get(&mut client, "/").text(), field(&pki, "client.pem"));
}
