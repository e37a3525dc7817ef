//! Certificates that Eyelet shows to upstreams: to real servers that ask, and after a renewal.

use std::io::Write;
use std::process::Command;
use std::sync::Arc;

use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::support::pki::{Kind, Leaf};
use crate::support::upstream::ServerTls;
use crate::support::web::{Heard, hear};
use crate::support::{Edge, Pki, Talk, Upstream, need, output, until};

const PLAIN: &str = "[[listener]]\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n";
const SHOWN: &str = "upstream_certificate = \"client.pem\"\nupstream_key = \"client.key\"\n";

fn start(pki: &Pki, address: &str, keys: &str) -> Edge {
    let rule = format!(
        "[[rule]]\nname = \"out\"\naction = \"originate\"\nupstream = \"https://{address}\"\n\
         upstream_name = \"app.test\"\nupstream_ca = \"ca.pem\"\n{keys}"
    );
    Edge::start_whole(&pki.folder, &format!("workers = 1\n{PLAIN}{rule}"), |_| ())
}

fn ask(edge: &Edge) -> Heard {
    let mut client = edge.connect();
    client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    hear(&mut client, "GET")
}

/// Answers each request with the bytes of the certificate that its connection has shown.
fn asking(pki: &Pki, leaf: Leaf, protocols: &[&[u8]]) -> Upstream {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_file(pki.folder.path().join("ca.pem")).unwrap();
    roots.add(ca).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(vec![leaf.certificate], leaf.key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let config = Arc::new(config);
    Upstream::serve(move |stream| {
        let mut tls = ServerTls::new(ServerConnection::new(config.clone()).unwrap(), stream);
        while tls.conn.is_handshaking() {
            if tls.conn.complete_io(&mut tls.sock).is_err() {
                return;
            }
        }
        let _ = crate::support::web::head(&mut tls);
        let shown = tls.conn.peer_certificates().unwrap()[0].to_vec();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", shown.len());
        let _ = tls.write_all(&[head.as_bytes(), &shown].concat());
        tls.conn.send_close_notify();
        let _ = tls.flush();
    })
}

#[test]
fn an_upstream_that_asks_is_shown_the_certificate_of_the_rule() {
    let pki = Pki::new();
    let app = asking(&pki, pki.server("app", &["app.test"], Kind::P256), &[]);
    let first = pki.client("client");
    let edge = start(&pki, &app.address.to_string(), SHOWN);
    assert_eq!(ask(&edge).body, first.certificate.to_vec());
    let second = pki.client("client");
    until("the new certificate to be shown", || {
        (ask(&edge).body == second.certificate.to_vec()).then_some(())
    });
    // A key that does not fit changes nothing.
    pki.folder.write("client.key", std::fs::read(pki.folder.path().join("edge.key")).unwrap());
    edge.wait_log("does not fit the certificate");
    assert_eq!(ask(&edge).body, second.certificate.to_vec());
}

/// By TLS 1.3 the alert comes after the handshake (RFC 8446 section 4.4.2.4): in the place of a
/// response, or of the SETTINGS of HTTP/2.
#[test]
fn an_upstream_that_is_shown_none_or_another_serves_nothing_and_says_why() {
    let pki = Pki::new();
    // One of another authority.
    let stranger = Pki::new();
    stranger.client("client");
    for file in ["client.pem", "client.key"] {
        let bytes = std::fs::read(stranger.folder.path().join(file)).unwrap();
        pki.folder.write(file, bytes);
    }
    for protocols in [&[][..], &[&b"h2"[..]]] {
        let app = asking(&pki, pki.server("app", &["app.test"], Kind::P256), protocols);
        // The authority has the same name, and another key.
        for (keys, alert) in [("", "certificate_required"), (SHOWN, "decrypt_error")] {
            let edge = start(&pki, &app.address.to_string(), keys);
            let heard = ask(&edge);
            assert_eq!(heard.status, 502, "{heard:?}");
            let line = edge.line("the request", |line| line["http"]["status"] == 502);
            let reason = line["reason"].as_str().unwrap();
            assert!(reason.contains("upstream") && reason.contains(alert), "{line}");
        }
    }
}

/// OpenSSL's server, by both versions of TLS.
#[test]
fn openssl_verifies_the_certificate() {
    if !need("openssl") {
        return;
    }
    for version in ["-tls1_2", "-tls1_3"] {
        let pki = Pki::new();
        pki.server("app", &["app.test"], Kind::P256);
        pki.client("client");
        let mut server = Command::new("openssl");
        server.current_dir(pki.folder.path());
        server.args(["s_server", "-accept", "127.0.0.1:0", "-www", version, "-Verify", "1"]);
        server.args(["-verify_return_error", "-CAfile", "ca.pem"]);
        server.args(["-cert", "app.pem", "-key", "app.key"]);
        let talk = Talk::start(&mut server);
        let address = until("openssl to listen", || {
            let said = talk.said();
            let (_, rest) = said.split_once("ACCEPT ")?;
            Some(rest.split_once('\n')?.0.trim().to_owned())
        });
        let edge = start(&pki, &address, SHOWN);
        let heard = ask(&edge);
        assert_eq!(heard.status, 200, "{version}: {heard:?}\n{}", talk.said());
        assert!(heard.text().contains("Client certificate"), "{version}: {}", heard.text());
        let none = start(&pki, &address, "");
        assert_eq!(ask(&none).status, 502, "{version}: {}", talk.said());
        let alert = if version == "-tls1_2" { "handshake_failure" } else { "certificate_required" };
        let line = none.line("the request", |line| !line["http"].is_null());
        assert_eq!(line["reason"], format!("upstream sent alert {alert}"), "{version}: {line}");
    }
}

#[test]
fn a_key_that_does_not_fit_is_a_mistake() {
    let pki = Pki::new();
    pki.client("client");
    let config = |key: &str| {
        format!(
            "{PLAIN}[[rule]]\naction = \"originate\"\nupstream = \"https://a.example:443\"\n\
             upstream_certificate = \"client.pem\"\nupstream_key = \"{key}\"\n"
        )
    };
    for (key, is_good) in [("client.key", true), ("edge.key", false)] {
        let file = pki.folder.write("checked.toml", config(key));
        let said = output(crate::support::edge::eyelet(&pki.folder).arg("check").arg(file));
        assert_eq!(said.status.success(), is_good, "{}", said.text);
        assert_eq!(said.text.contains("does not fit the certificate"), !is_good, "{}", said.text);
    }
}
