//! `eyelet run --share`: a client as a phone is, that knows only an address, downloads the
//! certificate from the page, compares its fingerprint, and trusts it.

use std::process::Command;

use rustix::process::Signal;

use crate::run::program;
use crate::run_shared::{Network, application};
use crate::support::{Said, Talk, need, output};

/// An address of the machine in its network, which the default route has.
const OWN: &str = "192.168.1.5";

fn network() -> Option<Network> {
    let network = Network::new()?;
    if !need("openssl") {
        return None;
    }
    let script = format!("ip addr add {OWN}/32 dev lo && ip route add default dev lo src {OWN}");
    let mut command = Command::new("nsenter");
    command.arg(network.path()).args(["sh", "-c", &script]);
    let made = output(&mut command);
    assert!(made.status.success(), "{}", made.text);
    Some(network)
}

fn curl(network: &Network, words: &[&str]) -> Said {
    output(network.inside("curl").args(["-sS", "--max-time", "50"]).args(words))
}

fn shared(network: &Network, where_to: &str) -> Talk {
    let words = format!("run --share {where_to} -- node {} port", program("app.js"));
    let mut talk = Talk::start(&mut network.eyelet(&words));
    talk.hear("the command listens on");
    talk
}

#[test]
fn a_phone_trusts_what_the_page_gives_it() {
    let Some(network) = network() else { return };
    // Not without being asked.
    let alone = network.run("", "shop");
    let refused = curl(&network, &["-k", &format!("https://{OWN}:8443/")]);
    assert!(!refused.status.success(), "{}", refused.text);
    drop(alone);
    for where_to in ["lan", OWN] {
        let run = shared(&network, where_to);
        let said = run.said();
        let after = |text: &str| {
            let (_, rest) = said.split_once(text).unwrap_or_else(|| panic!("no {text}: {said}"));
            rest.lines().next().unwrap().to_owned()
        };
        let url = after("eyelet: shared with this network: ");
        assert!(url.starts_with(&format!("https://{OWN}:")), "{url}");
        assert!(said.lines().filter(|line| line.contains('█')).count() > 10, "no code: {said}");
        let page = after("gets ca.pem from ");
        // This user may not have port 80.
        assert!(page.starts_with(&format!("http://{OWN}:")) && !page.ends_with(":8080/"), "{page}");
        let html = curl(&network, &[&page]).text;
        let fingerprint = after("the SHA-256 fingerprint of that: ");
        assert!(html.contains(&fingerprint) && html.contains(&url), "{html}");
        let file = network.folder.path().join("downloaded.pem");
        let file = file.to_str().unwrap();
        curl(&network, &["-o", file, &format!("{page}ca.pem")]);
        let mut openssl = network.inside("openssl");
        let shown =
            output(openssl.args(["x509", "-noout", "-fingerprint", "-sha256", "-in", file]));
        assert!(shown.text.trim_end().ends_with(&fingerprint), "{}", shown.text);
        let answer = curl(&network, &["--cacert", file, &url]);
        assert!(answer.text.starts_with(&application(&run)), "{}", answer.text);
        // No key, and nothing that is not HTTP, ends it.
        for bad in ["ca.key", "../key.pem"] {
            let answer = curl(
                &network,
                &["--path-as-is", "-w", "%{http_code}", "-o", "/dev/null"]
                    .into_iter()
                    .chain([&*format!("{page}{bad}")])
                    .collect::<Vec<_>>(),
            );
            assert_eq!(answer.text, "404", "{bad}");
        }
        let long = format!("X-Long: {}", "a".repeat(9000));
        let refused = curl(&network, &["-H", &long, &page]);
        assert!(!refused.status.success(), "{}", refused.text);
        assert!(curl(&network, &[&page]).status.success());
        run.signal(Signal::TERM);
        run.finish();
        for address in [&url, &page] {
            assert!(!curl(&network, &["-k", address]).status.success(), "{address} is still there");
        }
    }
}

#[test]
fn only_a_private_address_of_this_machine_is_shared() {
    let Some(network) = network() else { return };
    for (where_to, code, expected) in [
        ("here", 2, "expected lan, or an address of this machine"),
        ("127.0.0.1", 2, "127.0.0.1 is this machine alone: say lan, or"),
        ("192.0.2.7", 2, "is no address of a private network"),
        ("192.168.77.77", 2, "192.168.77.77 is not an address of this machine; `ip -4 addr` "),
        ("lan --tcp", 2, "cannot be used with"),
    ] {
        let said = output(&mut network.eyelet(&format!("run --share {where_to} -- sleep 600")));
        assert_eq!(said.status.code(), Some(code), "{where_to}: {}", said.text);
        assert!(said.text.contains(expected), "{where_to}: {}", said.text);
    }
}
