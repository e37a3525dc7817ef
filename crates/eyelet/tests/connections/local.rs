//! `certificate = "local"`, `eyelet trust` and `eyelet cert`, with curl, openssl and Chromium.
//! Must not know how certificates are signed.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;

use crate::support::client::{alert_of, ending, handshake};
use crate::support::edge::{self, LISTENER, eyelet};
use crate::support::{Edge, Folder, Hello, SOON, Upstream, need, output, until};

const UNRECOGNIZED_NAME: u8 = 112;

/// A command in this folder.
fn command(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = eyelet(folder);
    command.current_dir(folder.path()).env("HOME", folder.path()).args(arguments);
    command
}

/// A rule with a certificate of the authority in the folder `ca`.
fn rule(matchers: &str, upstream: &Upstream) -> String {
    format!(
        "[[rule]]\n{matchers}\naction = \"terminate\"\ncertificate = \"local\"\n\
         upstream = \"http://{}\"\n",
        upstream.address
    )
}

/// An edge with these rules, and the path of its authority.
fn start(folder: &Folder, rules: &str) -> (Edge, PathBuf) {
    let text = format!("{LISTENER}{rules}\n[local]\nfolder = \"ca\"\n");
    (Edge::start_whole(folder, &text, |_| ()), folder.path().join("ca/ca.pem"))
}

/// Returns curl's answer to a URL without its port.
fn curl(edge: &Edge, ca: &PathBuf, host: &str) -> String {
    let (port, mut curl) = (edge.port(), Command::new("curl"));
    curl.args(["-sS", "--max-time", "60", "--cacert"]).arg(ca);
    curl.args(["--resolve", &format!("{host}:{port}:127.0.0.1")]);
    output(curl.arg(format!("https://{host}:{port}/"))).text
}

/// The certificate that a rustls client gets, which trusts this authority alone.
fn shown(edge: &Edge, ca: &PathBuf, name: &str) -> CertificateDer<'static> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let config =
        ClientConfig::builder_with_provider(rustls::crypto::aws_lc_rs::default_provider().into());
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    let client = handshake(config, edge::connect(edge.address()), name).unwrap();
    client.conn.peer_certificates().unwrap()[0].clone().into_owned()
}

#[test]
fn curl_accepts_each_name_that_a_rule_lists_and_no_other_is_signed() {
    if !need("curl") {
        return;
    }
    let (folder, upstream) = (Folder::new(), Upstream::http());
    let listed = rule("sni = [\"app.test\", \"*.dev.localhost\"]", &upstream);
    let (edge, ca) = start(&folder, &(listed + &rule("", &upstream)));
    edge.wait_log(&format!("local certificates are signed by {}", ca.display()));
    // No name is asked for with an address.
    for host in ["app.test", "a.dev.localhost", "a.b.dev.localhost", "localhost", "127.0.0.1"] {
        let said = curl(&edge, &ca, host);
        assert!(!said.contains("curl:"), "{host}: {said}");
        edge.line(host, |line| {
            let name = (host != "127.0.0.1").then_some(host);
            line["outcome"] == "terminated" && line["sni"] == json!(name)
        });
    }
    // It came for a rule that takes every name, and is signed for none of them.
    let mut stranger = edge.connect();
    std::io::Write::write_all(&mut stranger, &Hello::named("bank.example").bytes()).unwrap();
    assert_eq!(alert_of(&ending(&mut stranger, SOON).0), Some(UNRECOGNIZED_NAME));
    let line = edge.line("the stranger", |line| line["sni"] == "bank.example");
    assert_eq!(
        (&line["outcome"], &line["reason"]),
        (&json!("refused"), &json!("no rule for this name"))
    );
    // A certificate is signed once.
    assert_eq!(shown(&edge, &ca, "app.test"), shown(&edge, &ca, "app.test"));
    assert_ne!(shown(&edge, &ca, "app.test"), shown(&edge, &ca, "localhost"));
}

#[test]
fn another_authority_serves_without_a_restart() {
    let (folder, upstream) = (Folder::new(), Upstream::http());
    let (edge, ca) = start(&folder, &rule("sni = \"app.test\"", &upstream));
    edge.wait_log(&format!("`eyelet trust --folder {}`", folder.path().join("ca").display()));
    let before = fs::read(&ca).unwrap();
    let first = shown(&edge, &ca, "app.test");
    // While there is none, the last one goes on.
    fs::remove_file(folder.path().join("ca/ca.key")).unwrap();
    edge.wait_log("what was read before stays in use");
    assert_eq!(shown(&edge, &ca, "app.test"), first);
    let made = output(&mut command(&folder, &["cert", "x.test", "--folder", "ca"]));
    assert!(made.status.success(), "{}", made.text);
    assert_ne!(fs::read(&ca).unwrap(), before);
    edge.wait_log("its new contents are in use");
    assert_ne!(shown(&edge, &ca, "app.test"), first);
}

#[test]
fn two_that_start_at_once_have_one_authority() {
    let (folder, upstream) = (Folder::new(), Upstream::http());
    let rules = rule("sni = \"app.test\"", &upstream);
    std::thread::scope(|scope| {
        let edges = [(); 2].map(|()| scope.spawn(|| start(&folder, &rules)));
        for edge in edges {
            let (edge, ca) = edge.join().unwrap();
            shown(&edge, &ca, "app.test");
        }
    });
}

#[test]
fn an_authority_that_cannot_be_used_ends_the_start_and_says_what_to_do() {
    let (folder, upstream) = (Folder::new(), Upstream::http());
    let rules = rule("sni = \"app.test\"", &upstream);
    drop(start(&folder, &rules));
    let key = folder.path().join("ca/ca.key");
    let serve = |place: &str| {
        let text = format!("{LISTENER}{rules}\n[local]\nfolder = \"{place}\"\n");
        let file = folder.write("broken.toml", text);
        let said = output(eyelet(&folder).arg("serve").arg(file));
        assert_eq!(said.status.code(), Some(1), "{}", said.text);
        said.text
    };
    fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    assert!(serve("ca").contains("others may read ca.key (mode 644); chmod 600 it"));
    fs::write(&key, "text").unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    assert!(serve("ca").contains("is damaged"), "{}", serve("ca"));
    // Nobody can write there, not even root.
    assert!(serve("/proc/ca").contains("cannot be used"), "{}", serve("/proc/ca"));
    // An authority of long ago.
    let old = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let certificate = params.self_signed(&old).unwrap();
    fs::write(&key, old.serialize_pem() + &certificate.pem()).unwrap();
    let said = serve("ca");
    assert!(said.contains("expired on 2021-01-01T00:00:00Z"), "{said}");
    assert!(said.contains("eyelet trust --remove"), "{said}");
}

#[test]
fn openssl_verifies_what_cert_writes_and_another_program_can_serve_it() {
    if !need("openssl") {
        return;
    }
    let folder = Folder::new();
    let names = ["api.test", "*.api.test", "127.0.0.1", "::1"];
    let options = ["cert", "--folder", "ca", "--days", "7", "--out", "."];
    let said = output(command(&folder, &options).args(names));
    assert!(said.status.success(), "{}", said.text);
    let verify = |more: [&str; 2]| {
        let mut openssl = Command::new("openssl");
        openssl.args(["verify", "-purpose", "sslserver", "-CAfile", "ca/ca.pem"]).args(more);
        output(openssl.arg("api.test.pem").current_dir(folder.path())).text
    };
    for more in [
        ["-verify_hostname", "api.test"],
        ["-verify_hostname", "x.api.test"],
        ["-verify_ip", "127.0.0.1"],
        ["-verify_ip", "::1"],
    ] {
        assert!(verify(more).contains(": OK"), "{}", verify(more));
    }
    assert!(verify(["-verify_hostname", "other.test"]).contains("mismatch"));
    let mode = fs::metadata(folder.path().join("api.test.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The same files serve as those of a rule.
    let rule = "[[rule]]\nsni = \"api.test\"\naction = \"terminate\"\n\
                certificate = \"api.test.pem\"\nkey = \"api.test.key\"\nupstream = \"tcp://a:1\"\n";
    let file = folder.write("edge.toml", format!("{LISTENER}{rule}"));
    let said = output(eyelet(&folder).arg("check").arg(file));
    assert!(said.status.success(), "{}", said.text);
    let refused = output(&mut command(&folder, &["cert", "bank.com", "--folder", "ca"]));
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.text.contains("may not sign bank.com"), "{}", refused.text);
    let permitted = ["trust", "--folder", "wide", "--permit", "bank.com"];
    assert!(output(&mut command(&folder, &permitted)).text.contains("lan, bank.com"));
    let permitted = ["trust", "--folder", "ca", "--permit", "bank.com"];
    assert!(
        output(&mut command(&folder, &permitted)).text.contains("To make another one that may")
    );
}

/// Ends with the test.
struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

fn browse(folder: &Folder, url: &str, profile: &str) -> Browser {
    let mut chromium = Command::new("chromium");
    chromium.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
    chromium.args(["--disable-background-networking", "--disable-component-update"]);
    chromium.arg(format!("--user-data-dir={}", folder.path().join(profile).display()));
    chromium.arg(url).env("HOME", folder.path());
    let quiet = || Stdio::null();
    Browser(chromium.stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn().unwrap())
}

#[test]
fn chromium_trusts_what_trust_installs_until_it_is_removed() {
    if !(need("chromium") && need("certutil")) {
        return;
    }
    let (folder, upstream) = (Folder::new(), Upstream::http());
    let (edge, _) = start(&folder, &rule("sni = \"*.localhost\"", &upstream));
    let url = format!("https://app.localhost:{}/", edge.port());
    let trust = |what: &[&str]| {
        output(command(&folder, &["trust", "--user", "--folder", "ca"]).args(what)).text
    };
    assert!(trust(&[]).contains("may sign localhost, test"), "{}", trust(&[]));
    let is_refused = |line: &serde_json::Value| {
        line["reason"].as_str().is_some_and(|reason| reason.contains("CertificateUnknown"))
    };
    let browser = browse(&folder, &url, "before");
    edge.line("an alert of Chromium's", is_refused);
    drop(browser);
    let said = trust(&["--install"]);
    assert!(said.contains("now trusted by    Chromium"), "{said}");
    assert!(
        said.contains("undo all of this: eyelet trust --remove --folder ca --user\n"),
        "{said}"
    );
    let browser = browse(&folder, &url, "trusting");
    edge.line("Chromium's request", |line| line["http"]["path"] == "/");
    drop(browser);
    assert!(trust(&["--remove"]).contains("removed from      Chromium"));
    let refusals = edge.count(is_refused);
    let _browser = browse(&folder, &url, "after");
    until("another alert", || (edge.count(is_refused) > refusals).then_some(()));
}
