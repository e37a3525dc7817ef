//! "Why was this refused?" asked at the command line: with the line of the log, and with evidence
//! that `explain` gathers itself, from real resolvers and a real TLS server.

use std::io::Write;

use crate::support::edge::eyelet;
use crate::support::pki::Kind;
use crate::support::upstream::dns;
use crate::support::{Edge, End, Folder, Pki, SOON, Upstream, ending, output};

const PROXY: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"connect\"\n";

/// Returns the output of `explain`.
fn explained(folder: &Folder, args: &[&str]) -> String {
    let said =
        output(eyelet(folder).arg("explain").arg(folder.path().join("edge.toml")).args(args));
    assert!(said.status.success(), "{}", said.text);
    said.text
}

#[test]
fn evidence_is_gathered_now() {
    let pki = Pki::new();
    let web = Upstream::https(pki.server("web", &["web.test"], Kind::P256));
    let port = web.address.port();
    let server = dns(&[
        ("web.test", &[[127, 0, 0, 1]]),
        ("front.test", &[[127, 0, 0, 1]]),
        ("lie.test", &[[127, 0, 0, 9]]),
    ]);
    let rules = format!(
        "[[rule]]\nname = \"true\"\nsni_verified = true\nevidence = [\"dns\", \"certificate\"]\n\
         action = \"splice\"\nupstream = \"destination\"\nupstream_allow = \"127.0.0.0/8\"\n\
         [[rule]]\nname = \"lies\"\nsni_verified = false\nevidence = [\"dns\", \"certificate\"]\n\
         action = \"refuse\"\n[dns]\nservers = \"{}\"\n[evidence]\nca = \"{}\"\n",
        server.address,
        pki.text("ca.pem")
    );
    pki.folder.write("edge.toml", format!("{PROXY}{rules}"));
    let target = format!("web.test:{port}");
    let typed = explained(&pki.folder, &["--connect", &target]);
    assert!(typed.contains("rule:    rule 2 \"lies\""), "nothing is known: {typed}");
    let asked = explained(&pki.folder, &["--connect", &target, "--ask"]);
    assert!(asked.starts_with("found:   web.test has 127.0.0.1\n"), "{asked}");
    assert!(asked.contains("shows a certificate: valid for the name\n"), "{asked}");
    assert!(asked.contains("rule:    rule 1 \"true\"\n"), "{asked}");
    assert!(asked.contains("it speaks for the name\n"), "{asked}");
    let front = format!("front.test:{port}");
    let lie = explained(&pki.folder, &["--connect", &front, "--sni", "lie.test", "--ask"]);
    assert!(lie.contains("rule:    rule 2 \"lies\"\n"), "{lie}");
    assert!(lie.contains("it speaks against the name\n"), "{lie}");
}

/// A list that a write has broken is asked of the edge, which goes on with the one before.
#[test]
fn a_broken_list_is_explained_by_the_edge() {
    let folder = Folder::new();
    let rule = "[[rule]]\nname = \"listed\"\nconnect = { file = \"allow.txt\", port = 443 }\n\
                action = \"splice\"\nupstream = \"{sni}:443\"\n";
    folder.write("edge.toml", format!("{PROXY}{rule}"));
    folder.write("allow.txt", "packages.test\n");
    let file = folder.path().join("edge.toml");
    let ask = |target: &str| {
        output(eyelet(&folder).arg("explain").arg(&file).args(["--connect", target]))
    };
    let mut serve = eyelet(&folder);
    serve.arg("serve").arg(&file);
    let edge = Edge::spawn(serve, 1);
    folder.write("allow.txt", "bad*.test\n");
    edge.wait_log("stays in use");
    let listed = ask("packages.test:443");
    assert_eq!(listed.status.code(), Some(2), "the file has mistakes: {}", listed.text);
    assert!(listed.text.contains("allow.txt:1:1: error: \"bad*.test\""), "{}", listed.text);
    let says =
        "decides by the configuration and lists that it read before:\nrule:    rule 1 \"listed\"\n";
    assert!(listed.text.contains(says), "{}", listed.text);
    let other = ask("other.test:443");
    assert!(other.text.contains("rule:    none matches\n"), "{}", other.text);
    // The new file has a mistake of its own: it says nothing of what serves.
    folder.write("edge.toml", format!("{PROXY}{rule}color = 1\n"));
    let own = ask("packages.test:443");
    assert_eq!(own.status.code(), Some(2), "{}", own.text);
    assert!(!own.text.contains("rule:"), "{}", own.text);
    folder.write("edge.toml", format!("{PROXY}{rule}"));
    drop(edge);
    let alone = ask("packages.test:443");
    assert_eq!(alone.status.code(), Some(2), "{}", alone.text);
    assert!(alone.text.contains("but no process of this user serves"), "{}", alone.text);
}

#[test]
fn a_refused_clients_line_is_explained() {
    let folder = Folder::new();
    let rules = "[[rule]]\nname = \"web\"\nconnect = \"*:443\"\nsni = \"host.test\"\n\
                 action = \"splice\"\nupstream = \"{sni}:443\"\n\
                 [[rule]]\nname = \"rest\"\naction = \"refuse\"\n";
    let config = format!("{}name = \"proxy\"\n{rules}", PROXY);
    let edge = Edge::start_whole(&folder, &config, |_| ());
    folder.write("edge.toml", &config);
    let mut client = edge.connect();
    client.write_all(b"CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n").unwrap();
    assert_eq!(ending(&mut client, SOON).1, End::Fin);
    let line = edge.line_of(client.local_addr().unwrap());
    let said = explained(&folder, &["--log-line", &line.to_string()]);
    let logged = format!(
        "logged:  {} refused by rest: no rule for this name\nrule:    rule 2 \"rest\"\n",
        line["time"].as_str().unwrap()
    );
    assert!(said.starts_with(&logged), "{said}");
    assert!(said.contains("rule 1 \"web\": sni = \"host.test\" does not hold for \"other.test\""));
}
