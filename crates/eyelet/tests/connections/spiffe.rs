//! Certificates, keys and bundles of the SPIFFE Workload API: rotated, taken back, expired, broken;
//! and clients and upstreams that are verified by their SPIFFE ids. The agent is a gRPC server of
//! Python, the clients are openssl's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose as Purpose, IsCa, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::admin::get;
use crate::support::pki::Leaf;
use crate::support::program::python_with;
use crate::support::{Edge, Pki, Said, Talk, Upstream, need, output, until};

/// The trust domain of the edge, and another one.
const ID: &str = "spiffe://one.test/edge";
const NOT_SENT: &str = "no certificate: the SPIFFE Workload API has sent none";
const EXPIRED: &str = "no certificate: that of the SPIFFE Workload API has expired";

/// Two trust domains, and an agent at a socket in the folder of the first.
struct World {
    python: &'static str,
    one: Pki,
    two: Pki,
    upstream: Upstream,
    agent: Option<Talk>,
}

impl World {
    fn new() -> Option<Self> {
        let python = python_with("grpc, google.protobuf")?;
        let (one, two) = (Pki::new(), Pki::new());
        for pki in [&one, &two] {
            let authority = CertificateDer::from_pem_file(pki.file("ca.pem")).unwrap();
            pki.folder.write("ca.der", &authority);
        }
        let world = Self { python, one, two, upstream: Upstream::echo(), agent: None };
        svid(&world.one, "a", ID, |_| ());
        svid(&world.one, "b", ID, |_| ());
        need("openssl").then_some(world)
    }

    fn socket(&self) -> PathBuf {
        self.one.file("agent.sock")
    }

    /// Starts the agent, which says this first.
    fn start(&mut self, first: &Value) {
        let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs/workload.py");
        let mut command = Command::new(self.python);
        command.arg(program).arg(self.socket()).current_dir(self.one.folder.path());
        let mut agent = Talk::start(&mut command);
        agent.say(&format!("{first}\n"));
        agent.hear("ready");
        self.agent = Some(agent);
    }

    fn stop(&mut self) {
        self.agent = None;
        // gRPC leaves it.
        let _ = std::fs::remove_file(self.socket());
    }

    fn say(&mut self, message: &Value) {
        self.agent.as_mut().unwrap().say(&format!("{message}\n"));
    }

    /// A message with this file's certificate, and the bundle of the other trust domain.
    fn message(&self, file: &str) -> Value {
        json!({
            "svids": [{
                "id": ID,
                "chain": [format!("{file}.der")],
                "key": format!("{file}.key.der"),
                "bundle": ["ca.der"],
            }],
            "federated": { "spiffe://two.test": [self.two.file("ca.der")] },
        })
    }

    /// An edge with a rule for app.test that has these keys, and an admin socket.
    fn edge(&self, rule: &str) -> Edge {
        let config = format!(
            "[spiffe]\nsocket = \"agent.sock\"\n[admin]\naddress = \"unix:admin.sock\"\n\
             [[listener]]\naddress = \"127.0.0.1:0\"\n\
             [[rule]]\nname = \"app\"\nsni = \"app.test\"\naction = \"terminate\"\n\
             upstream = \"tcp://{}\"\n{rule}\n",
            self.upstream.address
        );
        Edge::start_whole(&self.one.folder, &config, |_| ())
    }

    fn readiness(&self) -> (u16, String) {
        let answer = get(&self.one.file("admin.sock"), "/readyz");
        (answer.status, answer.body)
    }

    /// Returns the output of a client of openssl with these options.
    fn ask(&self, edge: &Edge, options: &[&str]) -> Said {
        let mut command = s_client(edge);
        command.args(["-CAfile", &self.one.text("ca.pem"), "-verify_return_error"]).args(options);
        output(&mut command)
    }

    /// Waits until a client is shown the certificate of this file.
    fn wait_for(&self, edge: &Edge, file: &str) {
        let pem = std::fs::read_to_string(self.one.file(&format!("{file}.pem"))).unwrap();
        let pem = pem.replace('\r', "");
        until(&format!("the certificate {file}"), || {
            let said = self.ask(edge, &[]);
            (said.status.success() && said.text.contains(pem.trim())).then_some(())
        });
    }

    /// Waits until a client is refused for this reason.
    fn wait_refused(&self, edge: &Edge, reason: &str) {
        until(reason, || {
            let said = self.ask(edge, &[]);
            assert!(!said.text.contains("BEGIN CERTIFICATE") || said.status.success());
            (edge.count(|line| line["reason"] == reason) > 0).then_some(said)
        });
    }
}

fn s_client(edge: &Edge) -> Command {
    let mut command = Command::new("openssl");
    let address = edge.address().to_string();
    command.args(["s_client", "-connect", &address, "-servername", "app.test"]);
    command
}

/// The certificate of a workload, also in DER.
fn svid(pki: &Pki, file: &str, id: &str, change: impl FnOnce(&mut CertificateParams)) -> Leaf {
    let leaf = pki.server_with(file, &[], |params| {
        params.subject_alt_names = vec![SanType::URI(id.try_into().unwrap())];
        params.extended_key_usages = vec![Purpose::ServerAuth, Purpose::ClientAuth];
        change(params);
    });
    pki.folder.write(&format!("{file}.der"), &leaf.certificate);
    pki.folder.write(&format!("{file}.key.der"), leaf.key.secret_der());
    leaf
}

fn in_secs(secs: u64) -> SystemTime {
    SystemTime::now() + Duration::from_secs(secs)
}

/// The options for a client that shows the certificate of this file.
fn shows(pki: &Pki, file: &str) -> [String; 4] {
    [
        "-cert".into(),
        pki.text(&format!("{file}.pem")),
        "-key".into(),
        pki.text(&format!("{file}.key")),
    ]
}

#[test]
fn certificates_rotate_without_a_reload() {
    let Some(mut world) = World::new() else { return };
    let edge = world.edge("certificate = \"spiffe\"");
    edge.wait_log("agent.sock: cannot connect: No such file or directory");
    let why = "the SPIFFE Workload API has sent no certificate\n";
    assert_eq!(world.readiness(), (503, why.to_owned()));
    let said = world.ask(&edge, &[]);
    assert!(said.text.contains("alert handshake failure"), "{said:?}");
    let line = edge.line("a client without a certificate", |line| line["sni"] == "app.test");
    assert_eq!((&line["reason"], &line["outcome"]), (&json!(NOT_SENT), &json!("failed")), "{line}");
    assert_eq!(line["rule"], "app");
    world.start(&world.message("a"));
    world.wait_for(&edge, "a");
    assert_eq!(world.readiness(), (200, "ok\n".to_owned()));
    // One that is open stays so.
    let mut open = Talk::start(&mut s_client(&edge));
    open.hear("Verify return code");
    // In many frames.
    let mut message = world.message("b");
    message["pad"] = json!(3 << 20);
    world.say(&message);
    world.wait_for(&edge, "b");
    open.say("still here\n");
    open.hear("still here\n");
    // Without the agent what came last serves on.
    world.stop();
    edge.wait_log("what came before serves until it expires");
    world.wait_for(&edge, "b");
    svid(&world.one, "c", ID, |_| ());
    world.start(&world.message("c"));
    world.wait_for(&edge, "c");
    let listed = get(&world.one.file("admin.sock"), "/certificates").body;
    assert!(listed.contains(&format!("\"{ID}\"")) && listed.contains("\"spiffe\""), "{listed}");
    drop(open);
}

#[test]
fn an_expired_certificate_and_one_that_is_taken_back_are_not_shown() {
    let Some(mut world) = World::new() else { return };
    svid(&world.one, "short", ID, |params| params.not_after = in_secs(15).into());
    world.start(&world.message("short"));
    let edge = world.edge("certificate = \"spiffe\"");
    assert_eq!(world.readiness(), (200, "ok\n".to_owned()));
    until("its end", || (world.readiness().0 == 503).then_some(()));
    let why = "the certificate of the SPIFFE Workload API has expired\n";
    assert_eq!(world.readiness().1, why);
    world.wait_refused(&edge, EXPIRED);
    world.say(&world.message("a"));
    world.wait_for(&edge, "a");
    world.say(&json!({ "deny": "no identity issued" }));
    edge.wait_log("the agent has no identity for this process, \"no identity issued\"");
    world.wait_refused(&edge, NOT_SENT);
    assert_eq!(world.readiness().0, 503);
    world.say(&world.message("b"));
    world.wait_for(&edge, "b");
}

#[test]
fn a_message_that_cannot_be_used_changes_nothing() {
    let Some(mut world) = World::new() else { return };
    world.start(&world.message("a"));
    let edge = world.edge("certificate = \"spiffe\"");
    world.wait_for(&edge, "a");
    let change = |change: &dyn Fn(&mut Value)| {
        let mut message = world.message("b");
        change(&mut message);
        message
    };
    let other = json!("spiffe://one.test/other");
    let messages = [
        (json!({ "raw": "garbage" }), "no Protocol Buffers"),
        (json!({}), "it has no svids"),
        (change(&|message| message["pad"] = json!(5_000_000)), "at most 4194304 are read"),
        (change(&|message| message["svids"][0]["key"] = json!("a.key.der")), "does not fit"),
        (change(&|message| message["svids"][0]["key"] = json!("b.der")), "not a key that can sign"),
        (change(&|message| message["svids"][0]["bundle"] = json!([])), "it has no bundle"),
        (change(&|message| message["svids"][0]["bundle"] = json!(["a.key"])), "not in DER"),
        (change(&|message| message["svids"][0]["id"] = other.clone()), "says that it is"),
        (change(&|message| message["svids"][0]["id"] = json!("a")), "begins with spiffe://"),
    ];
    for (message, fault) in messages {
        world.say(&message);
        edge.wait_log(fault);
        world.wait_for(&edge, "a");
        // The next call waits for no longer than after one failure.
        world.say(&world.message("b"));
        world.wait_for(&edge, "b");
        world.say(&world.message("a"));
        world.wait_for(&edge, "a");
    }
}

#[test]
fn clients_are_taken_by_their_ids() {
    let Some(mut world) = World::new() else { return };
    world.start(&world.message("a"));
    let ids = "client_spiffe = [\"spiffe://one.test/web/*\", \"spiffe://two.test/db\"]";
    let edge = world.edge(&format!("certificate = \"spiffe\"\n{ids}"));
    // The edge itself has no certificate to show to itself.
    assert!(!edge.log().contains("warm-up"), "{}", edge.log());
    let (one, two) = (&world.one, &world.two);
    let web = "spiffe://one.test/web/1";
    svid(one, "web", web, |_| ());
    svid(two, "db", "spiffe://two.test/db", |_| ());
    svid(one, "path", "spiffe://one.test/webmail", |_| ());
    svid(two, "three", "spiffe://three.test/web/1", |_| ());
    svid(one, "stolen", "spiffe://two.test/db", |_| ());
    svid(one, "old", web, |params| params.not_after = SystemTime::UNIX_EPOCH.into());
    svid(one, "two_uris", web, |params| {
        params.subject_alt_names.push(SanType::URI("spiffe://one.test/x".try_into().unwrap()));
    });
    svid(one, "no_uri", web, |params| params.subject_alt_names.clear());
    svid(one, "authority", web, |params| {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages.push(rcgen::KeyUsagePurpose::KeyCertSign);
    });
    svid(one, "relative", "spiffe://one.test/web/../x", |_| ());
    for (pki, file, id) in [(one, "web", web), (two, "db", "spiffe://two.test/db")] {
        let said = world.ask(&edge, &shows(pki, file).each_ref().map(String::as_str));
        assert!(said.status.success(), "{file}: {said:?}");
        let line = edge.line(file, |line| line["identity"]["client_cert"] == id);
        assert_eq!(line["outcome"], "terminated", "{line}");
    }
    for (pki, file, why) in [
        (one, "path", "the rule does not take spiffe://one.test/webmail"),
        (two, "three", "there is no bundle of the trust domain three.test"),
        (one, "stolen", "BadSignature"),
        (one, "old", "xpired"),
        (one, "two_uris", "it has 2 URIs"),
        (one, "no_uri", "it has 0 URIs"),
        (one, "authority", "an authority's own"),
        (one, "relative", "a path has no \".\""),
    ] {
        let [cert, certificate, key, file_of_key] = &shows(pki, file);
        // In TLS 1.3 the client is done before the edge has verified it.
        let said = world.ask(&edge, &["-tls1_2", cert, certificate, key, file_of_key]);
        assert!(said.text.contains("alert"), "{file}: {said:?}");
        let line = edge.line(file, |line| line["reason"].as_str().unwrap().contains(why));
        assert_eq!(
            (&line["outcome"], &line["identity"]),
            (&json!("failed"), &Value::Null),
            "{line}"
        );
    }
    let said = world.ask(&edge, &["-tls1_2"]);
    assert!(said.text.contains("alert handshake failure"), "{said:?}");
}

/// Neither a new handshake nor a ticket outlives the bundle that vouched for it.
#[test]
fn a_bundle_that_is_taken_back_vouches_for_nobody() {
    let Some(mut world) = World::new() else { return };
    world.start(&world.message("a"));
    let edge = world.edge("certificate = \"spiffe\"\nclient_spiffe = \"spiffe://two.test/*\"");
    svid(&world.two, "db", "spiffe://two.test/db", |_| ());
    let session = world.one.text("session.pem");
    let certificate = shows(&world.two, "db");
    let with = |more: [&'static str; 2], session: &str| {
        let mut options = certificate.each_ref().map(|text| text.as_str().to_owned()).to_vec();
        options.extend(more.map(ToOwned::to_owned));
        options.push(session.to_owned());
        options
    };
    let ask = |options: &[String]| {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        world.ask(&edge, &options)
    };
    let first = ask(&with(["-tls1_2", "-sess_out"], &session));
    assert!(first.status.success() && first.text.contains("New, TLSv1.2"), "{first:?}");
    let resumed = ask(&with(["-tls1_2", "-sess_in"], &session));
    assert!(resumed.text.contains("Reused, TLSv1.2"), "{resumed:?}");
    let mut message = world.message("a");
    message["federated"] = json!({});
    let agent = world.agent.as_mut().unwrap();
    agent.say(&format!("{message}\n"));
    agent.hear("sent");
    edge.wait_log("bundles of 1 trust domain");
    let why = "there is no bundle of the trust domain two.test";
    for more in [["-tls1_2", "-sess_in"], ["-tls1_2", "-sess_out"]] {
        let before = edge.count(|line| line["outcome"] == "failed");
        let said = world.ask(&edge, &with(more, &session).iter().map(|s| &**s).collect::<Vec<_>>());
        assert!(said.text.contains("alert"), "{said:?}");
        until(why, || (edge.count(|line| line["outcome"] == "failed") > before).then_some(()));
    }
    assert_eq!(edge.count(|line| line["reason"].as_str().unwrap().contains(why)), 2);
}

/// An upstream sees the certificate of this workload, and shows one with an id that the rule takes.
#[test]
fn upstreams_are_verified_by_their_ids() {
    let Some(mut world) = World::new() else { return };
    world.start(&world.message("a"));
    svid(&world.two, "db", "spiffe://two.test/db", |_| ());
    svid(&world.two, "other", "spiffe://two.test/other", |_| ());
    for (file, status) in [("db", "200"), ("other", "503")] {
        let [port] = crate::support::upstream::vacant();
        let mut server = Command::new("openssl");
        server.args(["s_server", "-www", "-accept", &port.to_string(), "-Verify", "1"]);
        server.args(["-verify_return_error", "-CAfile", &world.one.text("ca.pem")]);
        server.args(shows(&world.two, file));
        let mut server = Talk::start(&mut server);
        server.hear("ACCEPT");
        let config = format!(
            "[spiffe]\nsocket = \"agent.sock\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
             [[rule]]\nsni = \"app.test\"\naction = \"terminate\"\ncertificate = \"spiffe\"\n\
             upstream = \"https://{port}\"\nupstream_certificate = \"spiffe\"\n\
             upstream_spiffe = \"spiffe://two.test/db\"\n"
        );
        let edge = Edge::start_whole(&world.one.folder, &config, |_| ());
        let mut client = Talk::start(&mut s_client(&edge));
        client.say("GET / HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\r\n");
        client.hear(&format!("HTTP/1.1 {status}"));
        let asked =
            edge.line(file, |line| line["http"]["status"] == status.parse::<u16>().unwrap());
        match file {
            "db" => client.hear("Client certificate"),
            _ => assert!(
                asked["reason"].as_str().unwrap().contains("does not take spiffe://two.test/other"),
                "{asked}"
            ),
        }
    }
}

#[test]
fn check_says_what_is_wrong() {
    let pki = Pki::new();
    let rule = |keys: &str| {
        format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[[rule]]\naction = \"terminate\"\n\
             upstream = \"tcp://127.0.0.1:1\"\n{keys}\n"
        )
    };
    let socket = "[spiffe]\nsocket = \"agent.sock\"\n";
    let check = |config: &str, variable: Option<&str>| {
        let file = pki.folder.write("check.toml", config);
        let mut command = crate::support::edge::eyelet(&pki.folder);
        command.arg("check").arg(file).env_remove("SPIFFE_ENDPOINT_SOCKET");
        command.envs(variable.map(|value| ("SPIFFE_ENDPOINT_SOCKET", value)));
        output(&mut command)
    };
    let spiffe = rule("certificate = \"spiffe\"");
    let with = |keys: &str| socket.to_owned() + &rule(&format!("certificate = \"spiffe\"\n{keys}"));
    for (config, variable, says) in [
        (spiffe.clone(), None, "or set SPIFFE_ENDPOINT_SOCKET"),
        (spiffe.clone(), Some("tcp://127.0.0.1:1"), "Eyelet asks at a Unix socket only"),
        (spiffe.clone(), Some("agent.sock"), "expected \"unix:///run/spire/agent.sock\""),
        (with("key = \"a.key\""), None, "leave `key` out"),
        (with("client_spiffe = \"one.test/x\""), None, "begins with spiffe://"),
        (with("client_spiffe = \"spiffe://one.test\""), None, "or \"/*\" for all of them"),
        (with("client_spiffe = \"spiffe://one.test/../x\""), None, "a path has no \".\" and no"),
        (with("client_spiffe = \"spiffe://*/x\""), None, "\"*\" stands at the end only"),
        (with("client_spiffe = []"), None, "is an empty list"),
        (
            with("client_spiffe = \"spiffe://one.test/x\"\nclient_ca = \"ca.pem\""),
            None,
            "leave one of them out",
        ),
        (
            with("client_spiffe = \"spiffe://one.test/x\"\nclient_crl = \"ca.crl\""),
            None,
            "the lists are of authorities: `client_ca` names",
        ),
        (
            socket.to_owned()
                + &rule("certificate = \"mint\"\nupstream_spiffe = \"spiffe://one.test/x\"")
                    .replace("tcp://", "https://"),
            None,
            "leave `upstream_spiffe` out",
        ),
        (
            with("upstream_spiffe = \"spiffe://one.test/x\""),
            None,
            "this is for upstreams with HTTP",
        ),
    ] {
        let said = check(&config, variable);
        assert!(!said.status.success() && said.text.contains(says), "{says}: {said:?}");
    }
    let absent = pki.file("agent.sock");
    let url = format!("unix://{}", absent.display());
    for (config, variable, warns) in [
        (with(""), None, true),
        (spiffe.clone(), Some(&*url), false),
        (with("client_spiffe = [\"spiffe://one.test/x\", \"spiffe://one.test/y/*\"]"), None, true),
    ] {
        let said = check(&config, variable);
        assert!(said.status.success(), "{said:?}");
        assert_eq!(said.text.contains("agent.sock is not there"), warns, "{said:?}");
    }
    assert!(!Path::new(&absent).exists());
}
