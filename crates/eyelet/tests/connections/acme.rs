//! Certificates from a real ACME server: issued, stored, renewed, shared; and what clients get
//! while there is none.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rustls::ClientConfig;
use serde_json::Value;

use crate::support::client::{Tls, alert_in, echo, handshake};
use crate::support::clock;
use crate::support::dns::Says;
use crate::support::edge::{self, connect};
use crate::support::pebble::Pebble;
use crate::support::upstream::vacant;
use crate::support::web::{self, ask};
use crate::support::{A_WHILE, Dns, Edge, Pki, Said, Upstream, need, output, settled, until};

/// RFC 8446 section 6.2.
pub const HANDSHAKE_FAILURE: u8 = 40;

/// An ACME server, and the names and ports that it validates.
pub struct World {
    pub pki: Pki,
    pub pebble: Pebble,
    upstream: Upstream,
    pub tls: SocketAddr,
    http: SocketAddr,
    pub dns: Dns,
}

impl World {
    fn new() -> Self {
        Self::with("")
    }

    /// With more keys in Pebble's configuration.
    pub fn with(more: &str) -> Self {
        let pki = Pki::new();
        let here = || Says::Addresses(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)], 1);
        let dns = Dns::new(&[("*", here())]);
        let [tls, http] = vacant();
        let pebble = Pebble::start(&pki, &dns, (tls, http), more);
        Self { pki, pebble, upstream: Upstream::echo(), tls, http, dns }
    }

    /// A configuration whose rule has these keys. `tls` is its listener.
    pub fn config(&self, tls: SocketAddr, rule: &str, more: &str) -> String {
        format!(
            "[[listener]]\naddress = \"{tls}\"\n\
             [[rule]]\nname = \"app\"\naction = \"terminate\"\ncertificate = \"acme\"\n\
             upstream = \"tcp://{}\"\n{rule}\n\
             [acme]\ndirectory = \"https://{}/dir\"\nterms_agreed = true\nca = \"ca.pem\"\n\
             contact = \"mailto:ops@app.example\"\n{more}\n",
            self.upstream.address, self.pebble.address,
        )
    }

    pub fn start(&self, config: &str) -> Edge {
        Edge::start_whole(&self.pki.folder, config, |_| ())
    }

    /// An edge that orders app.test by TLS-ALPN-01 into a folder.
    fn edge(&self) -> Edge {
        self.start(&self.config(self.tls, "sni = \"app.test\"", "folder = \"acme\""))
    }

    /// An edge that orders these names into a folder, and its file.
    pub fn edge_with_file(&self, tls: SocketAddr, rule: &str, more: &str) -> (Edge, PathBuf) {
        let file = edge::write(&self.pki.folder, &self.config(tls, rule, more));
        let mut command = edge::eyelet(&self.pki.folder);
        command.arg("serve").arg(&file);
        (Edge::spawn(command, 1), file)
    }

    /// Has the account of the edge with this file get another key.
    fn change_key(&self, file: &Path) -> Said {
        output(edge::eyelet(&self.pki.folder).args(["acme", "rollover"]).arg(file))
    }

    /// A file in the folder of the server.
    fn path(&self, name: &str) -> PathBuf {
        let server = std::fs::read_dir(self.pki.file("acme")).unwrap().next().unwrap();
        server.unwrap().path().join(name)
    }

    /// The account as it is stored.
    pub fn account(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.path("account.json")).unwrap()).unwrap()
    }

    /// The stored chain and key of a name.
    pub fn stored(&self, name: &str) -> Option<String> {
        let servers = std::fs::read_dir(self.pki.file("acme")).ok()?;
        let mut files = servers.map(|server| server.unwrap().path().join(format!("{name}.pem")));
        std::fs::read_to_string(files.find(|file| file.exists())?).ok()
    }

    /// The stored chain and key of the only name: a wildcard's file has a name of its own.
    pub fn stored_alone(&self) -> Option<String> {
        let servers = std::fs::read_dir(self.pki.file("acme")).ok()?;
        let mut files =
            servers.flat_map(|server| std::fs::read_dir(server.unwrap().path()).unwrap());
        let is_pem = |path: &PathBuf| path.extension().is_some_and(|end| end == "pem");
        std::fs::read_to_string(files.find_map(|file| Some(file.unwrap().path()).filter(is_pem))?)
            .ok()
    }

    /// Waits until a client that trusts the server's root gets through with this name.
    pub fn wait(&self, edge: SocketAddr, name: &str) -> Tls {
        let config = self.pebble.roots(&self.pki);
        let mut tls = until("a certificate", || {
            // An order takes a second: there is no hurry.
            open(&config, edge, name).inspect_err(|_| std::thread::sleep(A_WHILE)).ok()
        });
        echo(&mut tls, b"hello");
        tls
    }
}

pub fn open(config: &Arc<ClientConfig>, edge: SocketAddr, name: &str) -> std::io::Result<Tls> {
    handshake(config.clone(), connect(edge), name)
}

pub fn serial(tls: &Tls) -> Vec<u8> {
    tls.conn.peer_certificates().unwrap()[0].to_vec()
}

#[test]
fn a_name_is_issued_by_tls_alpn_and_kept_over_a_restart() {
    if !need("pebble") {
        return;
    }
    let world = World::new();
    let edge = world.edge();
    let first = serial(&world.wait(world.tls, "app.test"));
    edge.wait_log("app.test: the certificate is issued");
    let line =
        edge.line("the validation", |line| line["reason"] == "an ACME server validated the name");
    assert_eq!((&line["outcome"], &line["sni"]), (&"terminated".into(), &"app.test".into()));
    drop(edge);
    let edge = world.edge();
    assert_eq!(serial(&world.wait(world.tls, "app.test")), first, "it was stored");
    world.pebble.has_issued(1);
    assert!(world.stored("app.test").unwrap().contains("PRIVATE KEY"));
    drop(edge);
}

/// The example as it is, with ports, an ACME server and an application of this machine.
#[test]
fn the_example_for_one_server_serves_its_names() {
    if !need("pebble") {
        return;
    }
    let world = World::new();
    let app = Upstream::http();
    let mut text = include_str!("../../../../examples/acme.toml").to_owned();
    for (shown, here) in [
        ("\"0.0.0.0:443\"", format!("\"{}\"", world.tls)),
        ("\"0.0.0.0:80\"", format!("\"{}\"", world.http)),
        ("127.0.0.1:3000", app.address.to_string()),
        ("letsencrypt-staging", format!("https://{}/dir", world.pebble.address)),
        ("[acme]\n", "[acme]\nca = \"ca.pem\"\nfolder = \"acme\"\n".to_owned()),
    ] {
        assert!(text.contains(shown), "{shown}");
        text = text.replace(shown, &here);
    }
    let edge = world.start(&text);
    let roots = world.pebble.roots(&world.pki);
    for name in ["app.example", "www.app.example"] {
        let mut client = until("a certificate", || {
            open(&roots, world.tls, name).inspect_err(|_| std::thread::sleep(A_WHILE)).ok()
        });
        let heard = ask(&mut client, &format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n"));
        assert_eq!(heard.status, 200, "{}", heard.head);
        assert!(heard.field("strict-transport-security").is_some(), "{}", heard.head);
    }
    let mut client = connect(world.http);
    let host = format!("app.example:{}", world.http.port());
    write!(client, "GET /a HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let answer = web::head(&mut client).to_lowercase();
    let there = format!("location: https://app.example:{}/a\r\n", world.tls.port());
    assert!(answer.contains(&there), "{answer}");
    drop(edge);
}

#[test]
fn http_answers_where_tls_alpn_cannot() {
    if !need("pebble") {
        return;
    }
    let world = World::new();
    // The server connects to another port for TLS-ALPN-01, where nobody listens.
    let [elsewhere] = vacant();
    let redirect =
        format!("[[listener]]\naddress = \"{}\"\nkind = \"http_redirect\"\n", world.http);
    let config = world.config(elsewhere, "sni = \"app.test\"", "folder = \"acme\"");
    let edge = world.start(&format!("{redirect}{config}"));
    world.wait(elsewhere, "app.test");
    edge.wait_log("the other challenge is tried");
    edge.line("the validation", |line| {
        line["reason"] == "an ACME server validated the name" && line["sni"].is_null()
    });
    // A token that nobody ordered is redirected like any other path, to the port of TLS.
    let mut client = connect(world.http);
    let path = "/.well-known/acme-challenge/unknown";
    write!(client, "GET {path} HTTP/1.1\r\nHost: app.test:{}\r\n\r\n", world.http.port()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    let location = format!("location: https://app.test:{}{path}\r\n", elsewhere.port());
    assert!(answer.to_lowercase().contains(&location), "{answer}");
}

#[test]
fn a_certificate_is_renewed_when_the_server_says_so() {
    if !need("pebble") {
        return;
    }
    let world = World::new();
    let edge = world.edge();
    let first = serial(&world.wait(world.tls, "app.test"));
    let stored = until("the file", || world.stored("app.test"));
    drop(edge);
    let at = stored.find("-----BEGIN CERTIFICATE").unwrap();
    world.pebble.renew(&world.pki, &stored[at..]);
    let edge = world.edge();
    until("another certificate", || {
        (serial(&world.wait(world.tls, "app.test")) != first).then_some(())
    });
    world.pebble.has_issued(2);
    drop(edge);
}

#[test]
fn a_certificate_is_renewed_once_a_server_that_was_down_is_back() {
    if !need("pebble") {
        return;
    }
    let mut world = World::with(
        "\"profiles\": {\"default\": {\"description\": \"short\", \"validityPeriod\": 40}},",
    );
    world.pebble.stop();
    // Down at the start: there is nothing for this name, and all others are served.
    let rule = world.pki.terminate(&format!("tcp://{}", world.upstream.address), "");
    let config = world.config(world.tls, "sni = \"short.test\"", "folder = \"acme\"");
    let edge = world.start(&config.replacen("[[rule]]", &format!("{rule}[[rule]]"), 1));
    edge.wait_log("short.test: the ACME server cannot be used");
    let other = crate::support::client::Offer::new(&world.pki);
    echo(&mut other.connect(world.tls, "app.test"), b"hello");
    let error = other.try_connect(world.tls, "short.test").unwrap_err();
    assert_eq!(alert_in(&error), Some(HANDSHAKE_FAILURE));
    let line = edge.line("the refusal", |line| line["sni"] == "short.test");
    assert_eq!(line["reason"], "no certificate: the last order failed");
    world.pebble.run();
    let first = serial(&world.wait(world.tls, "short.test"));
    let roots = world.pebble.roots(&world.pki);
    // Down when the renewal is due.
    world.pebble.stop();
    edge.wait_log("stays in use");
    assert_eq!(serial(&open(&roots, world.tls, "short.test").unwrap()), first);
    // Back, and it does not know the account any more.
    world.pebble.run();
    until("another certificate", || {
        (serial(&world.wait(world.tls, "short.test")) != first).then_some(())
    });
    let log = edge.log();
    let failures = log.matches("short.test: the ACME server cannot be used").count();
    assert!(failures <= 2, "each outage is logged once:\n{log}");
}

/// The certificate is valid for clients, whose clocks are right.
#[test]
fn a_clock_that_is_wrong_by_a_day_is_said_and_the_certificate_serves() {
    let Some(library) = clock::library() else { return };
    if !need("pebble") {
        return;
    }
    for (by, said) in [("-1d", "hours behind the server's"), ("+1d", "hours ahead of the server's")]
    {
        let world = World::new();
        let config = world.config(world.tls, "sni = \"app.test\"", "folder = \"acme\"");
        let edge = Edge::start_whole(&world.pki.folder, &config, |command| {
            clock::shift(command, &library, by);
        });
        world.wait(world.tls, "app.test");
        edge.wait_log("[acme] the clock of this machine is 2");
        edge.wait_log(said);
        edge.wait_log("set the clock");
    }
}

/// To a clock that is ahead by a certificate's whole life, each new one is over. The server's clock
/// decides, also after a restart. Each order takes a second: while three names are ordered one
/// after the other, no other name is ordered again.
#[test]
fn a_clock_that_is_ahead_by_a_life_causes_one_order_a_name() {
    let Some(library) = clock::library() else { return };
    if !need("pebble") {
        return;
    }
    let world = World::with(
        "\"profiles\": {\"default\": {\"description\": \"day\", \"validityPeriod\": 86400}},",
    );
    let names = "sni = [\"app.test\", \"*.app.test\"]\nacme_on_demand = true";
    let config = world.config(world.tls, names, "folder = \"acme\"");
    let start = || {
        Edge::start_whole(&world.pki.folder, &config, |command| {
            clock::shift(command, &library, "+2d");
        })
    };
    let edge = start();
    for name in ["app.test", "one.app.test", "two.app.test", "three.app.test"] {
        world.wait(world.tls, name);
        edge.wait_log(&format!("{name}: the certificate is issued for 23 hours"));
    }
    world.pebble.has_issued(4);
    assert_eq!(world.pebble.ordered(), 4, "{}", edge.log());
    drop(edge);
    let edge = start();
    for name in ["app.test", "one.app.test", "two.app.test", "three.app.test", "four.app.test"] {
        world.wait(world.tls, name);
    }
    edge.wait_log("four.app.test: the certificate is issued for 23 hours");
    world.pebble.has_issued(5);
    assert_eq!(world.pebble.ordered(), 5, "{}", edge.log());
}

/// To a clock that is behind, a certificate looks young. It is renewed in time all the same, also
/// after a restart, and where somebody sets the clock back after the server was last asked.
#[test]
fn a_clock_that_is_behind_or_set_back_renews_in_time() {
    let Some(library) = clock::library() else { return };
    if !need("pebble") {
        return;
    }
    let world = World::with(
        "\"profiles\": {\"default\": {\"description\": \"short\", \"validityPeriod\": 40}},",
    );
    let config = world.config(world.tls, "sni = \"app.test\"", "folder = \"acme\"");
    let set = |by: &str| {
        let file = world.pki.file("clock");
        // The running edge reads it at any time.
        std::fs::rename(world.pki.folder.write("clock.new", by), &file).unwrap();
        file
    };
    let file = set("+0d");
    let start = || {
        Edge::start_whole(&world.pki.folder, &config, |command| {
            clock::follow(command, &library, &file);
        })
    };
    let asked = || world.pebble.log().matches("/renewalInfo/").count();
    let asks_again = |known| {
        until("the question when to renew", || (asked() > known).then_some(()));
    };
    let edge = start();
    world.wait(world.tls, "app.test");
    asks_again(0);
    drop(edge);
    // The server names a random time, which may be now: an order that has begun when the clock is
    // set back hears the server's date again.
    let (_edge, held) = until("an edge that waits while its clock is set back", || {
        set("-1d");
        let (known, ordered) = (asked(), world.pebble.ordered());
        let edge = start();
        edge.wait_log("[acme] the clock of this machine is 2");
        asks_again(known);
        let held = serial(&world.wait(world.tls, "app.test"));
        set("-3d");
        if settled(|| world.pebble.ordered()) == ordered {
            return Some((edge, held));
        }
        edge.wait_log("the certificate is issued");
        None
    });
    until("another certificate", || {
        (serial(&world.wait(world.tls, "app.test")) != held).then_some(())
    });
}

#[test]
fn a_refused_name_harms_no_other() {
    if !need("pebble") {
        return;
    }
    let world = World::new();
    let names = "sni = [\"app.test\", \"blocked.test\"]";
    let edge = world.start(&world.config(world.tls, names, "folder = \"acme\""));
    world.wait(world.tls, "app.test");
    edge.wait_log("blocked.test: the ACME server refuses");
    edge.wait_log("remove it from the rule");
    let roots = world.pebble.roots(&world.pki);
    let error = open(&roots, world.tls, "blocked.test").unwrap_err();
    assert_eq!(alert_in(&error), Some(HANDSHAKE_FAILURE));
}

#[test]
fn an_account_belongs_to_an_external_one() {
    if !need("pebble") {
        return;
    }
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let world = World::with(&format!(
        "\"externalAccountBindingRequired\": true, \
         \"externalAccountMACKeys\": {{\"kid-1\": \"{key}\"}},"
    ));
    world.pki.folder.write("eab.key", format!("{key}\n"));
    let without = world.config(world.tls, "sni = \"app.test\"", "folder = \"other\"");
    let edge = world.start(&without);
    edge.wait_log("set `external_account_id` and `external_account_key_file` in [acme]");
    drop(edge);
    let more = "folder = \"acme\"\nexternal_account_id = \"kid-1\"\n\
        external_account_key_file = \"eab.key\"";
    let (edge, file) = world.edge_with_file(world.tls, "sni = \"app.test\"", more);
    world.wait(world.tls, "app.test");
    let said = world.change_key(&file);
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    drop(edge);
}

/// The key that the server knows is seen by what it does: it signs nothing for another one.
#[test]
fn an_account_gets_another_key_whenever_the_edge_dies() {
    if !need("pebble") {
        return;
    }
    let world = World::new();
    let edge = || world.edge_with_file(world.tls, "sni = \"app.test\"", "folder = \"acme\"");
    let key = |account: &Value| account["key_pkcs8"].as_str().unwrap().to_owned();
    // Orders again, so that the account is used.
    let order = |running: Edge, issued: usize| {
        drop(running);
        std::fs::remove_file(world.path("app.test.pem")).unwrap();
        let (running, _) = edge();
        world.wait(world.tls, "app.test");
        world.pebble.has_issued(issued);
        assert!(!running.log().contains("a new account"), "{}", running.log());
        running
    };
    let (running, file) = edge();
    world.wait(world.tls, "app.test");
    let first = world.account();
    let said = world.change_key(&file);
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    let second = world.account();
    let id = second["id"].as_str().unwrap();
    assert_eq!(said.text, format!("the account {id} has a new key\n"));
    assert_eq!(first["id"], second["id"]);
    assert_ne!(key(&first), key(&second));
    let next = world.path("account.next-key");
    assert!(!next.exists());
    let running = order(running, 2);

    // It died after the server had taken the key.
    std::fs::write(world.path("account.json"), first.to_string()).unwrap();
    let der = BASE64_URL_SAFE_NO_PAD.decode(key(&second)).unwrap();
    write_private(&next, &der);
    let running = order(running, 3);
    assert_eq!(key(&world.account()), key(&second), "the one that the server knows");
    assert!(!next.exists());

    // It died before the server was told.
    let third = rcgen::KeyPair::generate().unwrap().serialize_der();
    write_private(&next, &third);
    let running = order(running, 4);
    assert_eq!(key(&world.account()), BASE64_URL_SAFE_NO_PAD.encode(&third));
    assert!(!next.exists());
    drop(running);

    // The keys before it are of no use any more. The server knows neither the key that is stored
    // nor the next one. What it knows a minute later nobody can say, so both stay.
    write_private(&next, &rcgen::KeyPair::generate().unwrap().serialize_der());
    std::fs::write(world.path("account.json"), second.to_string()).unwrap();
    std::fs::remove_file(world.path("app.test.pem")).unwrap();
    let (running, _) = edge();
    running.wait_log("app.test: the ACME server refuses");
    assert!(running.log().contains("key is not finished: the ACME server refuses"));
    assert!(next.exists());
    let (other, file) = world.edge_with_file(world.http, "sni = \"app.test\"", "folder = \"acme\"");
    let said = world.change_key(&file);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    assert!(said.text.contains("another process orders certificates"), "{said:?}");
    drop((running, other));
}

#[test]
fn another_key_needs_a_running_edge_and_a_server() {
    if !need("pebble") {
        return;
    }
    let mut world = World::new();
    let (edge, file) = world.edge_with_file(world.tls, "sni = \"app.test\"", "folder = \"acme\"");
    world.wait(world.tls, "app.test");
    let before = world.account();
    world.pebble.stop();
    let said = world.change_key(&file);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    assert!(said.text.contains("[acme] no new key: the ACME server cannot be used"), "{said:?}");
    assert_eq!(world.account(), before);
    drop(edge);
    // Which key the server knows cannot be asked, so nothing is ordered with either.
    std::fs::remove_file(world.path("app.test.pem")).unwrap();
    let (edge, _) = world.edge_with_file(world.tls, "sni = \"app.test\"", "folder = \"acme\"");
    edge.wait_log("app.test: a change of the account's key is not finished: the ACME server");
    assert!(world.path("account.next-key").exists());
    drop(edge);
    let said = world.change_key(&file);
    assert!(
        said.status.code() == Some(1) && said.text.contains("no process of this user serves"),
        "{said:?}"
    );
}

/// The other edge has the account in memory, with the earlier key.
#[test]
fn the_edges_of_a_fleet_follow_to_another_key() {
    if !need("pebble") {
        return;
    }
    let world = World::new();
    world.pki.folder.write("fleet.secret", "c2VjcmV0IG9mIGEgZmxlZXQgaW4gYSB0ZXN0Li4uLi4=");
    let fleet = "[fleet]\nstore = \"file:fleet\"\nsecret_file = \"fleet.secret\"";
    let rule = "sni = \"*.app.test\"\nacme_on_demand = true";
    let [elsewhere] = vacant();
    let other = world.start(&world.config(world.tls, rule, fleet));
    world.wait(world.tls, "one.app.test");
    let (one, file) = world.edge_with_file(elsewhere, rule, fleet);
    let said = world.change_key(&file);
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    world.wait(world.tls, "two.app.test");
    world.wait(elsewhere, "three.app.test");
    world.pebble.has_issued(3);
    let log = other.log() + &one.log();
    assert_eq!(log.matches("a new account").count(), 1, "{log}");
}

/// A file that only this user may read.
fn write_private(path: &Path, content: &[u8]) {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.unwrap().write_all(content).unwrap();
}

#[test]
fn a_silent_server_delays_nobody_else() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let pki = Pki::new();
    let upstream = Upstream::echo();
    let rule = pki.terminate(&format!("tcp://{}", upstream.address), "");
    let config = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n{rule}\
         [[rule]]\nsni = \"slow.test\"\naction = \"terminate\"\ncertificate = \"acme\"\n\
         upstream = \"tcp://{}\"\n\
         [acme]\ndirectory = \"https://{}/dir\"\nterms_agreed = true\nfolder = \"acme\"\n\
         ca = \"ca.pem\"\n",
        upstream.address,
        silent.local_addr().unwrap(),
    );
    let edge = Edge::start_whole(&pki.folder, &config, |_| ());
    let client = crate::support::client::Offer::new(&pki);
    echo(&mut client.connect(edge.address(), "app.test"), b"hello");
    let error = client.try_connect(edge.address(), "slow.test").unwrap_err();
    assert_eq!(alert_in(&error), Some(HANDSHAKE_FAILURE));
    let line = edge.line("the refusal", |line| line["sni"] == "slow.test");
    assert_eq!(line["reason"], "no certificate: it is ordered, and not issued yet");
    edge.wait_log("no answer within 30 s");
}

#[test]
fn a_name_is_ordered_when_a_client_asks_for_it() {
    if !need("pebble") {
        return;
    }
    let world = World::new();
    let rule = "sni = \"*.app.test\"\nacme_on_demand = true";
    let edge = world.start(&world.config(world.tls, rule, "folder = \"acme\""));
    let roots = world.pebble.roots(&world.pki);
    let first = open(&roots, world.tls, "one.app.test").unwrap();
    let again = open(&roots, world.tls, "one.app.test").unwrap();
    assert_eq!(serial(&first), serial(&again));
    world.pebble.has_issued(1);
    drop(edge);
    let edge = world.start(&world.config(world.tls, rule, "folder = \"acme\""));
    assert_eq!(serial(&open(&roots, world.tls, "one.app.test").unwrap()), serial(&first));
    // It was stored.
    world.pebble.has_issued(1);
    drop(edge);
}

#[test]
fn two_edges_with_one_store_order_a_name_once() {
    if !need("pebble") {
        return;
    }
    let world = World::new();
    world.pki.folder.write("fleet.secret", "c2VjcmV0IG9mIGEgZmxlZXQgaW4gYSB0ZXN0Li4uLi4=");
    let fleet = "[fleet]\nstore = \"file:fleet\"\nsecret_file = \"fleet.secret\"";
    let [elsewhere, third] = vacant();
    // The server connects to this edge, which orders nothing by itself.
    let rule = "sni = \"*.app.test\"\nacme_on_demand = true";
    let reached = world.start(&world.config(world.tls, rule, fleet));
    let listed = "sni = \"one.app.test\"";
    let one = world.start(&world.config(elsewhere, listed, fleet));
    let other = world.start(&world.config(third, listed, fleet));
    let first = serial(&world.wait(elsewhere, "one.app.test"));
    assert_eq!(serial(&world.wait(third, "one.app.test")), first);
    assert_eq!(serial(&world.wait(world.tls, "one.app.test")), first);
    world.pebble.has_issued(1);
    assert_eq!(world.pebble.ordered(), 1, "{}", world.pebble.log());
    reached.line("the validation", |line| line["reason"] == "an ACME server validated the name");
    drop((one, other));
}

#[test]
fn a_validation_of_a_spliced_name_passes_through() {
    if !need("pebble") {
        return;
    }
    let world = World::new();
    let rule = edge::splice(world.upstream.address, "");
    let config = world.config(world.tls, "sni = \"app.test\"", "folder = \"acme\"");
    let edge = world.start(&config.replacen("[[rule]]", &format!("{rule}[[rule]]"), 1));
    // RFC 7301 section 3.1: a list with this protocol alone.
    let list = [&[0, 11, 10][..], b"acme-tls/1"].concat();
    let hello = crate::support::Hello::named("host.test").extension(16, &list).bytes();
    let mut client = connect(world.tls);
    client.write_all(&hello).unwrap();
    crate::support::expect(&mut client, &hello);
    drop(client);
    edge.line("the splice", |line| line["sni"] == "host.test" && line["outcome"] == "spliced");
}

#[test]
fn another_client_answers_challenges_behind_the_redirect() {
    let upstream = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let pki = Pki::new();
    let config = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"http_redirect\"\n\
         acme_upstream = \"{}\"\n[[rule]]\naction = \"refuse\"\n",
        upstream.local_addr().unwrap(),
    );
    let edge = Edge::start_whole(&pki.folder, &config, |_| ());
    let ask = |path: &str| {
        let mut client = connect(edge.address());
        write!(client, "GET {path} HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        client
    };
    let read = |mut client: std::net::TcpStream| {
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    };
    let path = "/.well-known/acme-challenge/token";
    let client = ask(path);
    let (mut asked, _) = upstream.accept().unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nHost: app.test\r\nConnection: close\r\n\r\n");
    crate::support::expect(&mut asked, request.as_bytes());
    let answer = "HTTP/1.0 200 OK\r\n\r\ntoken.thumbprint";
    asked.write_all(answer.as_bytes()).unwrap();
    drop(asked);
    assert_eq!(read(client), answer);
    let validated = "an ACME server validated the name";
    edge.line("the answer", |line| line["reason"] == validated);
    let client = ask(path);
    let (mut asked, _) = upstream.accept().unwrap();
    crate::support::expect(&mut asked, request.as_bytes());
    let unknown = "HTTP/1.0 404 Not Found\r\n\r\n";
    asked.write_all(unknown.as_bytes()).unwrap();
    drop(asked);
    assert_eq!(read(client), unknown);
    edge.line("no answer", |line| line["reason"] == "closed after a response");
    // Any other path, and one whose upstream says nothing, is redirected.
    let answer = read(ask("/.well-known/other"));
    assert!(answer.contains("https://app.test/.well-known/other\r\n"), "{answer}");
    edge.line("another path", |line| line["reason"] == "http_redirect");
    let is_redirected = |answer: &str| {
        assert!(answer.contains(&format!("https://app.test{path}\r\n")), "{answer}");
    };
    let redirected = |reason: &str| {
        edge.line(reason, |line| line["outcome"] == "redirected" && line["reason"] == reason)
    };
    let client = ask(path);
    let (mut asked, _) = upstream.accept().unwrap();
    crate::support::expect(&mut asked, request.as_bytes());
    drop(asked);
    is_redirected(&read(client));
    redirected("acme_upstream: no response of HTTP/1");
    // Another test's child may have a copy of it until it becomes its program.
    rustix::net::shutdown(&upstream, rustix::net::Shutdown::Both).unwrap();
    is_redirected(&read(ask(path)));
    redirected("acme_upstream: Connection refused (os error 111)");
}
