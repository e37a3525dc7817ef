//! Minted certificates: real clients that trust the authority of the rule alone, real origins that
//! they mean. What is not minted is spliced by the same list of rules.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use rcgen::date_time_ymd;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::client::{Offer, TLS12, handshake};
use crate::support::edge::eyelet;
use crate::support::namespaces::{SERVER, socket_address};
use crate::support::pki::Kind;
use crate::support::web::{self, get, hear};
use crate::support::{
    Edge, Net, Pki, Place, Said, Talk, Tls, Upstream, expect, need, output, two, until,
};

/// A rule that mints for whatever the client wants.
pub const MINT: &str = "[[rule]]\nname = \"mint\"\naction = \"terminate\"\n\
    certificate = \"mint\"\nmint_ca = \"mint.pem\"\nmint_key = \"mint.key\"\n\
    upstream = \"destination\"\nupstream_ca = \"ca.pem\"\n";
/// Internal networks for clients that choose their destinations freely.
pub const ALLOWED: &str = "upstream_allow = \"127.0.0.0/8\"\n";
/// Origins have time on a busy machine.
pub const EVIDENCE: &str = "[evidence]\nca = \"ca.pem\"\ntimeout = \"20s\"\n";
pub const CONNECT: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"connect\"\n";
/// Clients say by a PROXY header where they wanted to go, as the kernel does of redirected ones.
pub const DIRECTED: &str =
    "[[listener]]\naddress = \"127.0.0.1:0\"\nproxy_protocol_from = \"127.0.0.1\"\n";

/// An edge that mints, the authority of its origins, and the one that its clients trust.
pub struct Minting {
    pub edge: Edge,
    pub origins: Pki,
    pub mint: Pki,
}

impl Minting {
    /// For clients of CONNECT.
    pub fn new(origins: Pki) -> Self {
        Self::with(origins, &format!("{CONNECT}{MINT}{ALLOWED}{EVIDENCE}"))
    }

    pub fn with(origins: Pki, config: &str) -> Self {
        let mint = Pki::new();
        mint.write_authority(&origins.folder, "mint");
        let config = format!("workers = 1\n{config}");
        let edge = Edge::start_whole(&origins.folder, &config, |_| ());
        Self { edge, origins, mint }
    }

    /// For directed clients of one origin, which says which of its connections has the request.
    fn counting() -> (Self, Upstream) {
        let origins = Pki::new();
        let origin = Upstream::counting(origins.server("a", &["app.test"], Kind::P256));
        (Self::with(origins, &format!("{DIRECTED}{MINT}{ALLOWED}{EVIDENCE}")), origin)
    }

    /// A client at rest behind its first response, which is returned, too.
    fn rested(&self, origin: &Upstream) -> (Tls, String) {
        let mut client = self.towards(origin.address, &Offer::new(&self.mint)).unwrap();
        let before = self.edge.sockets();
        let first = get(&mut client, "/").text();
        // The connection to the origin ends when the client's is parked.
        self.edge.wait_sockets(before);
        (client, first)
    }

    /// The edge's configuration.
    pub fn file(&self) -> PathBuf {
        let files = std::fs::read_dir(self.origins.folder.path()).unwrap();
        let mut files = files.map(|entry| entry.unwrap().path());
        files.find(|path| path.extension().is_some_and(|end| end == "toml")).unwrap()
    }

    /// curl through CONNECT to an origin, with the mint's authority as its only root.
    pub fn curl(&self, origin: SocketAddr, name: &str, more: &[&str]) -> Said {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--noproxy", "", "--proxy", &format!("http://{}", self.edge.address())]);
        curl.args(["--connect-to", &format!("::{origin}"), "--cacert"]);
        curl.arg(self.origins.text("mint.pem")).args(more).arg(format!("https://{name}/curl"));
        output(&mut curl)
    }

    /// A client that was on its way to an origin, after its handshake.
    pub fn towards(&self, origin: SocketAddr, offer: &Offer<'_>) -> std::io::Result<Tls> {
        handshake(offer.config(), self.directed(origin), "app.test")
    }

    /// Such a client before its handshake.
    pub fn directed(&self, origin: SocketAddr) -> TcpStream {
        let mut client = self.edge.connect();
        let from = client.local_addr().unwrap().port();
        let header = format!("PROXY TCP4 127.0.0.1 {} {from} {}\r\n", origin.ip(), origin.port());
        client.write_all(header.as_bytes()).unwrap();
        client
    }

    pub fn is_answered(&self, origin: SocketAddr, name: &str, more: &[&str]) {
        let said = self.curl(origin, name, more);
        assert!(said.status.success() && said.text.contains("GET /curl HTTP/1.1"), "{}", said.text);
    }
}

#[test]
fn a_client_sees_the_origins_names_and_key_by_the_mints_authority() {
    if !need("curl") {
        return;
    }
    let origins = Pki::new();
    let ecdsa = Upstream::https(origins.server("a", &["app.test", "127.0.0.1"], Kind::P256));
    let rsa = Upstream::https(origins.server("r", &["*.app.test"], Kind::Rsa));
    let at = Minting::new(origins);
    at.is_answered(ecdsa.address, "app.test", &["--http1.1"]);
    at.is_answered(ecdsa.address, "app.test", &["--http2"]);
    at.is_answered(rsa.address, "x.app.test", &["--tls-max", "1.2"]);
    let refused = at.curl(rsa.address, "app.test", &[]);
    assert!(refused.text.contains("no alternative certificate subject name"), "{}", refused.text);
    // The origin hears nothing of the client but its request.
    let said = at.curl(ecdsa.address, "app.test", &[]).text.to_ascii_lowercase();
    assert!(said.contains("host: app.test") && !said.contains("forwarded"), "{said}");
    // To itself it is still the origin that it was.
    let own = at.curl(ecdsa.address, "app.test", &["--cacert", &at.origins.text("ca.pem")]);
    assert!(!own.status.success(), "{}", own.text);
    let line = at.edge.line("the pinned client", |line| {
        line["reason"].as_str().is_some_and(|reason| reason.contains("minted certificate"))
    });
    let reason = "handshake: client refused the minted certificate: unknown_ca";
    assert_eq!((&line["reason"], &line["rule"]), (&reason.into(), &"mint".into()), "{line}");
    let line = at.edge.line("a request", |line| line["http"]["path"] == "/curl");
    assert_eq!(line["upstream"], ecdsa.address.to_string(), "{line}");
    // The client's TLS and the origin's.
    assert_eq!(line["tls_version"], "1.3", "{line}");
    assert_eq!(line["upstream_tls"]["version"], "1.3", "{line}");
    assert!(line["upstream_tls"]["cipher_suite"].is_string(), "{line}");
    let line = at.edge.line("a connection", |line| line["outcome"] == "terminated");
    let evidence = &line["evidence"]["certificate"];
    assert!(evidence["issuer"].as_str().unwrap().contains("Eyelet test authority"), "{line}");
    assert!(evidence["names"].to_string().contains("app.test"), "{line}");
}

#[test]
fn the_recipe_of_the_manual_finds_what_pins() {
    if !need("curl") || !need("jq") {
        return;
    }
    let origins = Pki::new();
    let names = ["app.test", "pinned.test", "other.test"];
    let origin = Upstream::https(origins.server("a", &names, Kind::P256));
    // A private authority signs the origin. The roots for evidence do not know it.
    Pki::new().write_authority(&origins.folder, "others");
    let evidence = EVIDENCE.replace("ca.pem", "others.pem");
    let at = Minting::with(origins, &format!("{CONNECT}{MINT}{ALLOWED}{evidence}"));
    let own = at.origins.text("ca.pem");
    for name in ["pinned.test", "other.test", "pinned.test"] {
        let pinned = at.curl(origin.address, name, &["--cacert", &own]);
        assert!(!pinned.status.success(), "{}", pinned.text);
    }
    at.is_answered(origin.address, "app.test", &[]);
    // This client is right, and does not pin.
    let expired = Upstream::https(at.origins.server_with("old", &["old.test"], |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    }));
    assert!(!at.curl(expired.address, "old.test", &[]).status.success());
    // Of four refusals, and of the connection and the request that went well.
    until("all lines", || (at.edge.lines().len() >= 6).then_some(()));
    let lines: String = at.edge.lines().iter().map(|line| format!("{line}\n")).collect();
    at.origins.folder.write("access.log", lines);
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/bump.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let section = manual.split("\n### Find what pins\n").nth(1).unwrap();
    let recipe = section.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let mut shell = Command::new("sh");
    let said = output(shell.args(["-ec", recipe]).current_dir(at.origins.folder.path()));
    let counts: Vec<_> = said.text.split_whitespace().collect();
    assert_eq!(counts, ["1", "pinned.test", "1", "other.test"], "{}", said.text);
}

#[test]
fn one_list_splices_some_origins_and_mints_for_the_others() {
    if !need("curl") {
        return;
    }
    let origins = Pki::new();
    let bank = Upstream::https(origins.server("b", &["bank.test"], Kind::P256));
    let other = Upstream::https(origins.server("o", &["app.test"], Kind::P256));
    let splice = "[[rule]]\nname = \"banks\"\ncertificate_names = \"bank.test\"\n\
                  certificate_valid = true\naction = \"splice\"\nupstream = \"destination\"\n";
    let at =
        Minting::with(origins, &format!("{CONNECT}{splice}{ALLOWED}{MINT}{ALLOWED}{EVIDENCE}"));
    let own = at.origins.text("ca.pem");
    at.is_answered(bank.address, "bank.test", &["--cacert", &own]);
    at.is_answered(other.address, "app.test", &[]);
    let line = at.edge.line("the bank", |line| line["rule"] == "banks");
    assert_eq!(line["outcome"], "spliced", "{line}");
    // The origin was asked once for the rules and for the mint, and once for the request.
    assert_eq!(other.accepted(), 2);
    at.is_answered(other.address, "app.test", &[]);
    assert_eq!(other.accepted(), 3, "its certificate is remembered");
}

#[test]
fn no_two_clients_share_a_connection_to_an_origin() {
    let (at, origin) = Minting::counting();
    let offer = Offer::new(&at.mint);
    let [mut one, mut other] = [(); 2].map(|()| at.towards(origin.address, &offer).unwrap());
    let (first, second) = (get(&mut one, "/").text(), get(&mut other, "/").text());
    assert_ne!(first, second);
    let mut seen = [first, second];
    for _ in 0..4 {
        for (client, others) in [(&mut one, 1), (&mut other, 0)] {
            let said = get(client, "/").text();
            assert_ne!(said, seen[others], "the other client's connection");
            // A client that has rested has another connection.
            seen[1 - others] = said;
        }
    }
}

#[test]
fn a_connection_rests_without_its_origin_and_asks_again() {
    let (at, origin) = Minting::counting();
    let (mut client, first) = at.rested(&origin);
    assert_ne!(get(&mut client, "/again").text(), first);
}

#[test]
fn a_reload_and_another_authority_find_the_same_origin() {
    let (at, origin) = Minting::counting();
    let folder = &at.origins.folder;
    let mut client = at.towards(origin.address, &Offer::new(&at.mint)).unwrap();
    get(&mut client, "/");
    let file = at.file();
    let text = std::fs::read_to_string(&file).unwrap();
    let first = "[[rule]]\nsni = \"other.test\"\naction = \"refuse\"\n";
    std::fs::write(&file, text.replacen("[[rule]]", &format!("{first}[[rule]]"), 1)).unwrap();
    at.edge.signal(Signal::HUP);
    at.edge.wait_log("configuration 2 serves");
    let said = get(&mut client, "/again");
    assert_eq!(said.status, 200, "{}", said.head);

    let other = Pki::new();
    other.write_authority(folder, "mint");
    until("the other authority", || at.towards(origin.address, &Offer::new(&other)).ok());
    // The first client's connection is as it was.
    assert_eq!(get(&mut client, "/still").status, 200);
}

/// The process after an upgrade is no child of the test.
struct Successor(Pid);

impl Drop for Successor {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

#[test]
fn a_connection_at_rest_passes_an_upgrade() {
    let (at, origin) = Minting::counting();
    let (mut client, _) = at.rested(&origin);
    let said = output(eyelet(&at.origins.folder).arg("upgrade").arg(at.file()));
    let pid = said.text.split(": process ").nth(1).and_then(|rest| rest.split(' ').next());
    let pid = pid.and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    let successor = Successor(pid.unwrap_or_else(|| panic!("{}", said.text)));
    assert!(said.text.contains("; 1 connections were handed over"), "{}", said.text);
    // The new process finds the rule, the origin and its certificate.
    assert_eq!(get(&mut client, "/again").status, 200);
    // It has other keys, and the same authority.
    at.towards(origin.address, &Offer::new(&at.mint)).unwrap();
    // A PROXY header may have named the origin, which is inside: the new rule does not allow that.
    let text = std::fs::read_to_string(at.file()).unwrap();
    std::fs::write(at.file(), text.replace(ALLOWED, "")).unwrap();
    kill_process(successor.0, Signal::HUP).unwrap();
    at.edge.wait_log("configuration 2 serves");
    assert_eq!(get(&mut client, "/inside").status, 502);
    let line = at.edge.line("a request", |line| line["http"]["path"] == "/inside");
    assert!(line["reason"].as_str().unwrap().contains("upstream_allow does not list"), "{line}");
}

#[test]
fn protocols_agree_on_both_sides() {
    let origins = Pki::new();
    let leaf = origins.server("a", &["app.test"], Kind::P256);
    let origin = two::app(100, Some(leaf), |(request, mut respond)| {
        Box::pin(async move { two::say(&mut respond, format!("{:?}", request.version())) })
    });
    let ws = Upstream::tls(origins.server("w", &["app.test"], Kind::P256), |tls| {
        let asked = web::head(tls).to_ascii_lowercase();
        assert!(asked.contains("upgrade: websocket"), "{asked}");
        let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                        Upgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n";
        tls.write_all(switched.as_bytes()).unwrap();
        tls.flush().unwrap();
        let mut frame = [0; 7];
        tls.read_exact(&mut frame).unwrap();
        tls.write_all(b"\x81\x02ok").unwrap();
        tls.flush().unwrap();
        let _ = tls.read(&mut frame);
    });
    let at = Minting::with(origins, &format!("{DIRECTED}{MINT}{ALLOWED}{EVIDENCE}"));
    let config = Offer { alpn: &["h2"], ..Offer::new(&at.mint) }.config();
    let socket = at.directed(origin.address);
    socket.set_nonblocking(true).unwrap();
    two::run(async {
        let socket = tokio::net::TcpStream::from_std(socket).unwrap();
        let name = "app.test".try_into().unwrap();
        let tls = tokio_rustls::TlsConnector::from(config).connect(name, socket).await.unwrap();
        let (send, connection) = h2::client::handshake(tls).await.unwrap();
        let mut client = two::Two { send, driven: tokio::spawn(connection) };
        let (status, text) = client.get("/").await.unwrap();
        assert_eq!((status, &*text), (200, &b"HTTP/2.0"[..]));
    });
    let offer = Offer { alpn: &["http/1.1"], versions: TLS12, ..Offer::new(&at.mint) };
    let mut client = at.towards(ws.address, &offer).unwrap();
    let chat = "GET /chat HTTP/1.1\r\nHost: app.test\r\nConnection: Upgrade\r\n\
                Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n";
    client.write_all(chat.as_bytes()).unwrap();
    assert_eq!(hear(&mut client, "GET").status, 101);
    client.write_all(b"\x81\x81\0\0\0\0a").unwrap();
    expect(&mut client, b"\x81\x02ok");
}

#[test]
fn an_origin_by_name() {
    let origins = Pki::new();
    let origin = Upstream::https(origins.server("a", &["127.0.0.1", "app.test"], Kind::P256));
    let rule = MINT.replace("destination", &format!("https://{}", origin.address));
    let plain = "[[listener]]\naddress = \"127.0.0.1:0\"\n";
    let at = Minting::with(origins, &format!("{plain}{rule}{EVIDENCE}"));
    let mut client = Offer::new(&at.mint).connect(at.edge.address(), "app.test");
    assert!(get(&mut client, "/named").text().contains("GET /named HTTP/1.1"));
}

/// A rule that leads to this inspector. It passes on what an origin says, and no field of a rule.
fn inspecting(inspector: &Upstream) -> String {
    let rule = MINT.replace("destination", &format!("http://{}", inspector.address));
    rule.replace("upstream_ca = \"ca.pem\"\n", "headers = { X-Own = \"1\" }\n")
}

/// An inspector dials by itself, so nobody may name an origin inside for it.
#[test]
fn an_inspector_gets_no_destination_inside() {
    let (origins, inspector) = (Pki::new(), Upstream::http());
    let origin = Upstream::https(origins.server("a", &["app.test"], Kind::P256));
    let at = Minting::with(origins, &format!("{DIRECTED}{}{EVIDENCE}", inspecting(&inspector)));
    at.towards(origin.address, &Offer::new(&at.mint)).unwrap_err();
    let line = at.edge.line("the refusal", |line| line["event"] == "end");
    assert!(line["reason"].as_str().unwrap().contains("upstream_allow does not list"), "{line}");
    assert_eq!((origin.accepted(), inspector.accepted()), (0, 0));
}

#[test]
fn an_inspector_in_the_clear() {
    if !need("openssl") {
        return;
    }
    let Some(net) = Net::new() else { return };
    net.nft(REDIRECTED);
    let (origins, mint) = (Pki::new(), Pki::new());
    origins.server("web", &["app.test"], Kind::P256);
    mint.write_authority(&origins.folder, "mint");
    let inspector = net.at(Place::Gateway, Upstream::http);
    let listener = "[[listener]]\naddress = \"0.0.0.0:8443\"\nkind = \"redirect\"\n";
    let rule = inspecting(&inspector);
    let _edge = net.edge(&origins.folder, &format!("{listener}{rule}{EVIDENCE}"));
    let address = socket_address(SERVER[0], 443);
    let _server = serve_web(&net, &origins, address);
    let client = net.connect(Place::Client, address);
    let mut client = handshake(Offer::new(&mint).config(), client, "app.test").unwrap();
    let heard = get(&mut client, "/seen");
    // The inspector passes on what a stranger has said.
    assert!(!heard.head.to_ascii_lowercase().contains("x-own"), "{}", heard.head);
    let said = heard.text().to_ascii_lowercase();
    assert!(said.contains("get /seen") && said.contains("x-forwarded-proto: https"), "{said}");
    assert_eq!(inspector.accepted(), 1);
    // An inspector would go on to wherever a request says.
    client.write_all(b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n").unwrap();
    assert_eq!(hear(&mut client, "GET").status, 421);
}

#[test]
fn a_real_server_of_openssl_is_minted_for() {
    if !need("openssl") || !need("curl") {
        return;
    }
    let origins = Pki::new();
    origins.server("web", &["app.test"], Kind::Rsa);
    let [address] = crate::support::upstream::vacant();
    let mut server = Command::new("openssl");
    server.args(["s_server", "-quiet", "-www", "-tls1_2", "-accept", &address.to_string()]);
    server.args(["-cert", &origins.text("web.pem"), "-key", &origins.text("web.key")]);
    let _server = Talk::start(&mut server);
    until("the server", || TcpStream::connect(address).ok());
    let at = Minting::new(origins);
    let said = at.curl(address, "app.test", &["--http1.1"]);
    assert!(said.status.success() && said.text.contains("s_server"), "{}", said.text);
}

const REDIRECTED: &str = "table inet eyelet {
      chain prerouting {
        type nat hook prerouting priority dstnat
        iifname \"lan0\" tcp dport 443 redirect to :8443
      }
    }";

/// A server of openssl in the network, with the certificate `web.pem`.
fn serve_web(net: &Net, origins: &Pki, address: SocketAddr) -> Talk {
    let mut serve = net.command(Place::Server, "openssl");
    serve.args(["s_server", "-quiet", "-www", "-accept", &address.to_string()]);
    serve.args(["-cert", &origins.text("web.pem"), "-key", &origins.text("web.key")]);
    let server = Talk::start(&mut serve);
    until("the server", || net.at(Place::Server, || TcpStream::connect(address).ok()));
    server
}

/// For real: netfilter redirects a client that knows nothing of Eyelet, and the origin is
/// elsewhere.
#[test]
fn a_redirected_client_is_minted_for() {
    if !need("openssl") || !need("curl") {
        return;
    }
    let Some(net) = Net::new() else { return };
    net.nft(REDIRECTED);
    let (origins, mint) = (Pki::new(), Pki::new());
    origins.server("web", &["app.test"], Kind::P256);
    mint.write_authority(&origins.folder, "mint");
    let listeners = ["0.0.0.0", "[::]"]
        .map(|ip| format!("[[listener]]\naddress = \"{ip}:8443\"\nkind = \"redirect\"\n"));
    let edge = net.edge(&origins.folder, &format!("{}{MINT}{EVIDENCE}", listeners.concat()));
    for server in SERVER {
        let address = socket_address(server, 443);
        let _server = serve_web(&net, &origins, address);
        let mut curl = net.command(Place::Client, "curl");
        let resolve = format!("app.test:443:{}", server);
        curl.args(["-sS", "--http1.1", "--resolve", &resolve, "--cacert"]);
        let said = output(curl.arg(origins.text("mint.pem")).arg("https://app.test/"));
        assert!(said.status.success() && said.text.contains("s_server"), "{}", said.text);
        let line = edge.line("a request", |line| line["upstream"] == address.to_string());
        assert_eq!(line["rule"], "mint", "{line}");
    }
}
