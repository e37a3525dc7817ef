//! Minted certificates where something is wrong: with the origin's certificate, with the origin,
//! with the authority. A client sees the fault that the origin has, and no origin that cannot be
//! verified gets a byte of a request.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;

use rcgen::{
    BasicConstraints, CertificateParams, GeneralSubtree, IsCa, KeyPair, KeyUsagePurpose,
    NameConstraints, date_time_ymd,
};
use rustls_pki_types::PrivatePkcs8KeyDer;
use serde_json::Value;

use crate::support::client::{Offer, alert_in, echo, handshake};
use crate::support::edge::{eyelet, write};
use crate::support::pki::{Kind, Leaf};
use crate::support::upstream::server_config;
use crate::support::web::{get, hear};
use crate::support::{Edge, Hello, Pki, Talk, Upstream, need, output, until};

use super::mint::{ALLOWED, CONNECT, DIRECTED, EVIDENCE, MINT, Minting};

fn self_signed() -> Leaf {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["app.test".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().der().clone();
    Leaf { certificate, key: PrivatePkcs8KeyDer::from(key.serialize_der()).into() }
}

#[test]
fn a_client_sees_the_fault_of_the_origins_certificate() {
    if !need("curl") {
        return;
    }
    let (origins, strangers) = (Pki::new(), Pki::new());
    let names = &["app.test"];
    let expired = origins.server_with("old", names, |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    });
    let early = origins.server_with("new", names, |params| {
        params.not_before = date_time_ymd(2090, 1, 1);
        params.not_after = date_time_ymd(2091, 1, 1);
    });
    let faults = [
        (expired, "certificate has expired", "expired"),
        (early, "not yet valid", "not valid yet"),
        (origins.server("wrong", &["b.test"], Kind::P256), "no alternative certificate", "name"),
        (self_signed(), "unable to get local issuer", "issuer"),
        (strangers.server("s", names, Kind::Rsa), "unable to get local issuer", "issuer"),
    ];
    let at = Minting::new(origins);
    for (leaf, seen, what) in faults {
        let origin = Upstream::https(leaf);
        let said = at.curl(origin.address, "app.test", &[]);
        assert!(!said.status.success() && said.text.contains(seen), "{what}: {}", said.text);
        assert_eq!(origin.accepted(), 1, "{what}: asked for its certificate");
        // Whoever goes on all the same gets no further than to Eyelet.
        let more = ["--insecure", "--write-out", "%{http_code}", "--http1.1"];
        let said = at.curl(origin.address, "app.test", &more);
        assert!(said.text.ends_with("503"), "{what}: {}", said.text);
        assert!(!said.text.contains("GET /curl"), "{what}: {}", said.text);
        // It is no page of the origin, and says so.
        for part in ["from the gateway that inspects", "certificate may not", "Connection: 0-"] {
            assert!(said.text.contains(part), "{what}: {}", said.text);
        }
        assert!(!said.text.contains("application"), "{what}: {}", said.text);
        let address = origin.address.to_string();
        let line = at
            .edge
            .line(what, |line| line["upstream"] == address && line["http"]["path"] == "/curl");
        assert!(line["reason"].as_str().unwrap().starts_with("upstream: TLS: "), "{line}");
    }
}

/// The origin chooses how long the fault would be: rustls lists all names.
#[test]
fn many_names_are_cut_in_the_log() {
    if !need("curl") {
        return;
    }
    let origins = Pki::new();
    let names: Vec<String> = (0..900).map(|n| format!("name{n}.other.test")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let origin = Upstream::https(origins.server("many", &names, Kind::P256));
    let at = Minting::new(origins);
    let said = at.curl(origin.address, "app.test", &["--insecure", "--http1.1"]);
    assert!(said.text.starts_with("503"), "{}", said.text);
    let line = at.edge.line("the request", |line| line["http"]["path"] == "/curl");
    let texts = [&line["reason"], &line["evidence"]["certificate"]["fault"]];
    for text in texts.map(|text| text.as_str().unwrap()) {
        assert!(text.contains("not valid for name \"app.test\"") && text.ends_with('…'), "{text}");
    }
    assert!(line.to_string().len() < 8 << 10, "{line}");
}

/// OpenSSL takes no server by a key that may sign lists of certificates alone. rustls does.
#[test]
fn a_client_sees_what_the_origins_key_is_for() {
    if !need("curl") {
        return;
    }
    let origins = Pki::new();
    let origin = Upstream::https(origins.server_with("lists", &["app.test"], |params| {
        params.key_usages = vec![KeyUsagePurpose::CrlSign];
    }));
    let at = Minting::new(origins);
    let said = at.curl(origin.address, "app.test", &[]);
    assert!(said.text.contains("unsuitable certificate purpose"), "{}", said.text);
}

#[test]
fn an_origin_that_says_no_tls_or_nothing() {
    let garbage = Upstream::serve(|mut stream| _ = stream.write_all(b"SSH-2.0-x\r\n\0\0\0\0\0"));
    // handshake_failure, in a record.
    let old = Upstream::serve(|mut stream| _ = stream.write_all(b"\x15\x03\x03\0\x02\x02\x28"));
    let silent = Upstream::by_hand();
    // Only who is silent is not waited for.
    for (origin, timeout, why) in [
        (&garbage, "20s", "the server speaks no TLS"),
        (&old, "20s", "the server sent alert handshake_failure"),
        (&silent, "1s", "no handshake in time"),
    ] {
        let evidence = EVIDENCE.replace("20s", timeout);
        let at = Minting::with(Pki::new(), &format!("{DIRECTED}{MINT}{ALLOWED}{evidence}"));
        let failed = at.towards(origin.address, &Offer::new(&at.mint)).unwrap_err();
        assert_eq!(alert_in(&failed), Some(80), "internal_error: {failed}");
        let destination = origin.address.to_string();
        let line = at.edge.line("the failure", |line| line["destination"] == destination);
        let reason = line["reason"].as_str().unwrap();
        assert!(reason.starts_with("upstream: TLS: ") && reason.contains(why), "{line}");
        assert_eq!(line["outcome"], "failed", "{line}");
    }
}

/// One client asks more unknown origins than it may. Those that are not asked are not blamed.
#[test]
fn an_origin_that_is_not_asked_is_not_at_fault() {
    let silent = Upstream::by_hand();
    let evidence = EVIDENCE.replace("20s", "5s");
    let at = Minting::with(Pki::new(), &format!("{DIRECTED}{MINT}{ALLOWED}{evidence}"));
    // 8 are asked, and 8 after 5 seconds. The others give up then.
    let clients: Vec<TcpStream> = (0..32)
        .map(|n| {
            let mut client = at.directed(silent.address);
            client.write_all(&Hello::named(format!("n{n}.test")).bytes()).unwrap();
            client
        })
        .collect();
    let why = "evidence: 8 side handshakes for this client are under way";
    let line = at.edge.line(why, |line| line["reason"] == why);
    assert_eq!(line["outcome"], "failed", "{line}");
    drop(clients);
}

/// An origin whose certificate is remembered fails the requests, and not the handshake.
#[test]
fn an_origin_that_speaks_no_tls_later() {
    let origins = Pki::new();
    let origin = Upstream::by_hand();
    let leaf = origins.server("a", &["app.test"], Kind::P256);
    let at = Minting::with(origins, &format!("{DIRECTED}{MINT}{ALLOWED}{EVIDENCE}"));
    let shown = thread::scope(|scope| {
        let served = scope.spawn(|| serve_tls(origin.take(), leaf));
        let client = at.towards(origin.address, &Offer::new(&at.mint));
        served.join().unwrap();
        client
    });
    let mut client = shown.unwrap();
    thread::scope(|scope| {
        scope.spawn(|| _ = origin.take().write_all(b"SSH-2.0-x\r\n"));
        let page = get(&mut client, "/later");
        assert_eq!(page.status, 502);
        assert!(page.text().contains("from the gateway that inspects"), "{}", page.text());
    });
    let line = at.edge.line("the request", |line| line["http"]["path"] == "/later");
    assert_eq!(line["reason"], "upstream: TLS: the server speaks no TLS", "{line}");
}

/// One handshake as a server.
fn serve_tls(mut stream: TcpStream, leaf: Leaf) {
    let config = server_config(leaf, rustls::ALL_VERSIONS);
    let mut tls = rustls::ServerConnection::new(config).unwrap();
    // The edge has seen enough before the end.
    let _ = tls.complete_io(&mut stream);
}

/// The roots for the upstream decide, and not those for evidence.
#[test]
fn an_origin_is_judged_by_the_roots_that_verify_it() {
    let (origins, others) = (Pki::new(), Pki::new());
    others.write_authority(&origins.folder, "others");
    let origin = Upstream::https(origins.server("a", &["app.test"], Kind::P256));
    let evidence = EVIDENCE.replace("ca.pem", "others.pem");
    let at = Minting::with(origins, &format!("{DIRECTED}{MINT}{ALLOWED}{evidence}"));
    for _ in 0..2 {
        drop(at.towards(origin.address, &Offer::new(&at.mint)).unwrap());
    }
    // So the log does not blame the origin for the client's end.
    let line = at.edge.line("a connection", |line| line["outcome"] == "terminated");
    let shown = &line["evidence"]["certificate"];
    assert_eq!((&shown["valid"], &shown["fault"]), (&true.into(), &Value::Null), "{line}");
    let rule = MINT.replace("ca.pem", "others.pem");
    let origins = Pki::new();
    others.write_authority(&origins.folder, "others");
    let at = Minting::with(origins, &format!("{DIRECTED}{rule}{ALLOWED}{EVIDENCE}"));
    assert!(at.towards(origin.address, &Offer::new(&at.mint)).is_err());
    let line = at.edge.line("the refusal", |line| line["event"] == "end");
    assert_eq!(line["evidence"]["certificate"]["valid"], false, "{line}");
}

/// An authority's certificate that is for `app.test` itself.
fn own_authority(key: &KeyPair, serial: u64, permitted: Option<&str>) -> rcgen::Certificate {
    let mut params = CertificateParams::new(vec!["app.test".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.serial_number = Some(serial.into());
    params.name_constraints = permitted.map(|name| NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName(name.to_owned())],
        excluded_subtrees: Vec::new(),
    });
    params.self_signed(key).unwrap()
}

/// A development server shows a certificate that is its own authority's.
#[test]
fn an_origin_whose_certificate_is_in_upstream_ca_is_minted_for() {
    let key = KeyPair::generate().unwrap();
    let [own, alike] = [1, 2].map(|serial| own_authority(&key, serial, None));
    let [root, made] = [1, 2].map(|serial| own_authority(&key, serial, Some("inside.test")));
    for (what, shown, of_file, is_system, is_taken) in [
        ("its own", &own, &own, false, true),
        ("one of the same key", &alike, &own, false, false),
        ("a root with constraints", &root, &root, false, false),
        ("one of its key", &made, &root, false, false),
        ("a root of the system", &own, &own, true, false),
    ] {
        let certificate = shown.der().clone();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let origin = Upstream::https(Leaf { certificate, key });
        let (origins, mint) = (Pki::new(), Pki::new());
        mint.write_authority(&origins.folder, "mint");
        origins.folder.write("own.pem", of_file.pem());
        let rule = MINT.replace(
            "upstream_ca = \"ca.pem\"",
            match is_system {
                true => "",
                false => "upstream_ca = \"own.pem\"",
            },
        );
        let config = format!("workers = 1\n{DIRECTED}{rule}{ALLOWED}{EVIDENCE}");
        let edge = Edge::start_whole(&origins.folder, &config, |command| {
            if is_system {
                command.env("SSL_CERT_FILE", origins.text("own.pem"));
            }
        });
        let at = Minting { edge, origins, mint };
        let client = at.towards(origin.address, &Offer::new(&at.mint));
        assert_eq!(client.is_ok(), is_taken, "{what}: {:?}", client.err());
        if let Ok(mut client) = client {
            let text = get(&mut client, "/").text();
            assert!(text.contains("GET / HTTP/1.1"), "{what}: {text}");
        }
        let line = at.edge.line("a connection", |line| !line["evidence"].is_null());
        assert_eq!(line["evidence"]["certificate"]["valid"], is_taken, "{what}: {line}");
    }
}

/// A client that may not reach the inside does not reach it by Eyelet's own TLS, whatever other
/// rules allow.
#[test]
fn a_clients_choice_is_guarded() {
    let other = format!(
        "[[rule]]\nsni = \"other.test\"\naction = \"splice\"\nupstream = \"destination\"\n{ALLOWED}"
    );
    for other in ["", &other] {
        let origins = Pki::new();
        let inside = Upstream::https(origins.server("a", &["app.test"], Kind::P256));
        let at = Minting::with(origins, &format!("{CONNECT}{other}{MINT}{EVIDENCE}"));
        let mut client = at.edge.connect();
        let to = inside.address;
        let connect = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n");
        client.write_all(connect.as_bytes()).unwrap();
        let said = crate::support::web::head(&mut client);
        assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
        let offer = Offer::new(&at.mint);
        assert!(handshake(offer.config(), client, "app.test").is_err());
        let line = at.edge.line("the refusal", |line| line["connect"] == to.to_string());
        let reason = line["reason"].as_str().unwrap();
        assert!(reason.contains("upstream_allow does not list"), "{line}");
        assert_eq!(inside.accepted(), 0);
    }
}

/// Eyelet cannot sign for the client. Where a rule splices such an origin, the client signs.
#[test]
fn an_origin_that_asks_for_a_certificate_is_spliced_by_rule() {
    if !need("openssl") {
        return;
    }
    for version in ["-tls1_2", "-tls1_3"] {
        let origins = Pki::new();
        origins.server("web", &["app.test", "own.test"], Kind::P256);
        let own = origins.client("own");
        let [address] = crate::support::upstream::vacant();
        let mut server = Command::new("openssl");
        server.current_dir(origins.folder.path());
        server.args(["s_server", "-quiet", "-www", version, "-accept", &address.to_string()]);
        server.args(["-cert", "web.pem", "-key", "web.key", "-Verify", "1", "-CAfile", "ca.pem"]);
        let _server = Talk::start(&mut server);
        until("the server", || TcpStream::connect(address).ok());
        let splice =
            "[[rule]]\nsni = \"own.test\"\naction = \"splice\"\nupstream = \"destination\"\n";
        let at = Minting::with(
            origins,
            &format!("{DIRECTED}{splice}{ALLOWED}{MINT}{ALLOWED}{EVIDENCE}"),
        );
        let offer = Offer { certificate: Some(&own), ..Offer::new(&at.origins) };
        let mut client = handshake(offer.config(), at.directed(address), "own.test").unwrap();
        assert_eq!(get(&mut client, "/").status, 200, "{version}");
        // The server takes one after the other.
        drop(client);
        let mut client = at.towards(address, &Offer::new(&at.mint)).unwrap();
        // By TLS 1.3 it refuses behind the handshake.
        let status = get(&mut client, "/minted").status;
        assert_eq!(status, 502, "{version}");
        let line = at.edge.line("the request", |line| line["http"]["path"] == "/minted");
        let reason = line["reason"].as_str().unwrap();
        assert!(reason.starts_with("upstream sent alert "), "{version}: {line}");
    }
}

/// A bump is for HTTP. Other protocols pass where a rule above it splices them.
#[test]
fn other_protocols_are_spliced_by_rule() {
    let origins = Pki::new();
    let mail = Upstream::tls_echo(origins.server("a", &["app.test"], Kind::P256));
    let splice = "[[rule]]\nalpn = \"imap\"\naction = \"splice\"\nupstream = \"destination\"\n";
    let at =
        Minting::with(origins, &format!("{DIRECTED}{splice}{ALLOWED}{MINT}{ALLOWED}{EVIDENCE}"));
    let offer = Offer { alpn: &["imap"], ..Offer::new(&at.origins) };
    echo(&mut at.towards(mail.address, &offer).unwrap(), b"a1 NOOP\r\n");
    let offer = Offer { alpn: &["pop3"], ..Offer::new(&at.mint) };
    let failed = at.towards(mail.address, &offer).unwrap_err();
    assert_eq!(alert_in(&failed), Some(120), "no_application_protocol: {failed}");
    let mut client = at.towards(mail.address, &Offer::new(&at.mint)).unwrap();
    client.write_all(b"a1 NOOP\r\n\r\n").unwrap();
    assert_eq!(hear(&mut client, "GET").status, 400);
}

#[test]
fn an_expired_authority_harms_its_own_rule_alone() {
    let origins = Pki::new();
    let origin = Upstream::https(origins.server("a", &["app.test", "own.test"], Kind::P256));
    let own = "[[rule]]\nsni = \"own.test\"\naction = \"splice\"\nupstream = \"destination\"\n";
    let mint = MINT.replace("mint.pem", "old.pem").replace("mint.key", "old.key");
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = date_time_ymd(2020, 1, 1);
    let key = KeyPair::generate().unwrap();
    origins.folder.write("old.pem", params.self_signed(&key).unwrap().pem());
    origins.folder.write("old.key", key.serialize_pem());
    let at = Minting::with(origins, &format!("{DIRECTED}{own}{ALLOWED}{mint}{ALLOWED}{EVIDENCE}"));
    assert!(at.towards(origin.address, &Offer::new(&at.mint)).is_err());
    let line = at.edge.line("the refusal", |line| line["rule"] == "mint");
    let reason = line["reason"].as_str().unwrap();
    assert!(reason.contains("old.pem: the authority expired on "), "{line}");
    let config = Offer::new(&at.origins).config();
    handshake(config, at.directed(origin.address), "own.test").unwrap();
}

#[test]
fn a_new_pair_replaces_the_authority_only_if_it_is_one() {
    let (origins, open, next) = (Pki::new(), Pki::new(), Pki::new());
    let origin = Upstream::https(origins.server("a", &["app.test"], Kind::P256));
    origins.server("leaf", &["app.test"], Kind::P256);
    open.write_authority(&origins.folder, "open");
    let readable = PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(origins.file("open.key"), readable).unwrap();
    let at = Minting::with(origins, &format!("{DIRECTED}{MINT}{ALLOWED}{EVIDENCE}"));
    let faults = [("open", "by its owner only"), ("leaf", "not the certificate of an authority")];
    for (name, fault) in faults {
        for part in ["pem", "key"] {
            let (from, to) = (format!("{name}.{part}"), format!("mint.{part}"));
            std::fs::rename(at.origins.file(&from), at.origins.file(&to)).unwrap();
        }
        at.edge.wait_log(fault);
        at.towards(origin.address, &Offer::new(&at.mint)).unwrap();
    }
    next.write_authority(&at.origins.folder, "mint");
    until("the next one", || at.towards(origin.address, &Offer::new(&next)).ok());
}

#[test]
fn serve_and_check_say_what_is_wrong_with_the_authority() {
    let (pki, mint) = (Pki::new(), Pki::new());
    mint.write_authority(&pki.folder, "mint");
    let config = format!("{CONNECT}{MINT}{ALLOWED}");
    let says = |verb: &str| {
        let file = write(&pki.folder, &config);
        output(eyelet(&pki.folder).arg(verb).arg(file))
    };
    assert!(says("check").status.success());
    let key = pki.file("mint.key");
    let mode = |mode| std::fs::set_permissions(&key, PermissionsExt::from_mode(mode)).unwrap();
    mode(0o644);
    for verb in ["check", "serve"] {
        let said = says(verb);
        assert!(said.text.contains("by its owner only (mode 644): chmod go="), "{}", said.text);
        assert_eq!(said.status.code(), Some(2), "{}", said.text);
    }
    mode(0o600);
    // The pair of a server signs nothing.
    for part in ["pem", "key"] {
        std::fs::copy(pki.file(&format!("edge.{part}")), pki.file(&format!("mint.{part}")))
            .unwrap();
    }
    for verb in ["check", "serve"] {
        let said = says(verb);
        assert!(said.text.contains("not the certificate of an authority"), "{}", said.text);
    }
    std::fs::remove_file(&key).unwrap();
    assert!(says("serve").text.contains("cannot read"));
}
