//! Many names: what each costs in memory, and that a broken certificate harms its name alone.

use std::fmt::Write;

use rustls::client::Resumption;

use crate::support::client::{Offer, alert_in};
use crate::support::crowd::{From, quick};
use crate::support::memory::Memory;
use crate::support::pki::Kind;
use crate::support::{Edge, Pki, until};

const RULES: usize = 10_000;

/// Of names with certificates of their own: a third of them is loaded between two looks.
const OWN: usize = 2_100;

/// So many that a broken one does not stop the start.
const MANY: usize = 70;

fn rule(name: &str, files: &str) -> String {
    format!(
        "[[rule]]\nsni = \"{name}\"\naction = \"terminate\"\ncertificate = \"{files}.pem\"\n\
         key = \"{files}.key\"\nupstream = \"http://127.0.0.1:9\"\n"
    )
}

fn anonymous(edge: &Edge) -> u64 {
    Memory::at_rest(edge.pid()).anonymous
}

#[test]
fn a_name_that_shares_its_certificate_costs_at_most_a_hundred_bytes() {
    let pki = Pki::new();
    let one = anonymous(&Edge::start(&pki.folder, &rule("app.test", "edge")));
    let rules: String = (0..RULES).map(|n| rule(&format!("n{n}.app.test"), "edge")).collect();
    let many = Edge::start(&pki.folder, &rules);
    let each = anonymous(&many).saturating_sub(one) / RULES as u64;
    eprintln!("a rule with a shared certificate: {each} anonymous bytes");
    assert!(each <= 100, "{each}");
    let mut list = String::new();
    (0..RULES).for_each(|n| write!(list, "n{n}.app.test\", \"").unwrap());
    let listed =
        Edge::start(&pki.folder, &rule("", "edge").replace("\"\"", &format!("[\"{list}\"]")));
    let each = anonymous(&listed).saturating_sub(one) / RULES as u64;
    eprintln!("a name in a list: {each} anonymous bytes");
    assert!(each <= 60, "{each}");
}

#[test]
fn a_name_with_its_own_certificate_costs_a_kilobyte_and_less_for_its_key_while_in_use() {
    let pki = Pki::new();
    let one = anonymous(&Edge::start(&pki.folder, &rule("app.test", "edge")));
    let mut rules = String::new();
    for n in 0..OWN {
        let file = format!("n{n}");
        let name = format!("{file}.test");
        pki.server(&file, &[&name], Kind::P256);
        rules += &rule(&name, &file);
    }
    let edge = Edge::start(&pki.folder, &rules);
    let written = anonymous(&edge).saturating_sub(one) / OWN as u64;
    let config = quick(Resumption::disabled());
    let shake = |n| From::loopback(1).tls(edge.address(), &config, &format!("n{n}.test")).unwrap();
    let looks = [0, 1, 2].map(|third| {
        (third * OWN / 3..(third + 1) * OWN / 3).for_each(|n| drop(shake(n)));
        anonymous(&edge)
    });
    // What handshakes leave in the heap differs from third to third; what certificates cost comes
    // with each.
    let more = looks.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).min().unwrap();
    let loaded = more / (OWN as u64 / 3);
    eprintln!("a rule with its certificate: {written} anonymous bytes; its key, in use: {loaded}");
    // About 1,000 and 700. The threads that read certificates leave up to 1 MiB in their heaps,
    // however many they read: 500 bytes for each of these.
    assert!(written <= 1700 && loaded <= 1024, "{written} + {loaded}");
}

#[test]
fn a_broken_certificate_harms_its_name_alone_until_it_is_mended() {
    let pki = Pki::new();
    let mut rules = String::new();
    for n in 0..MANY {
        let file = format!("n{n}");
        pki.server(&file, &[&format!("{file}.test")], Kind::P256);
        rules += &rule(&format!("{file}.test"), &file);
    }
    // n1 has the key of another, n2 none that can be read, and n3 goes when the edge has started.
    // No handshake reads a file.
    let good = std::fs::read(pki.file("n1.key")).unwrap();
    std::fs::copy(pki.file("n0.key"), pki.file("n1.key")).unwrap();
    pki.folder.write("n2.key", "-----BEGIN PRIVATE KEY-----\n?\n-----END PRIVATE KEY-----\n");
    let edge = Edge::start(&pki.folder, &rules);
    std::fs::remove_file(pki.file("n3.pem")).unwrap();
    let offer = Offer::new(&pki);
    for (name, why) in
        [("n1.test", "n1.key does not fit the certificate in"), ("n2.test", "n2.key: broken PEM")]
    {
        let error = offer.try_connect(edge.address(), name).unwrap_err();
        assert_eq!(alert_in(&error), Some(80), "{name}: {error}");
        let line = edge.line(name, |line| line["sni"] == name);
        assert_eq!(line["outcome"], "failed", "{line}");
        assert!(line["reason"].as_str().unwrap().contains(why), "{line}");
        edge.wait_log(why);
        offer.connect(edge.address(), "n0.test");
    }
    offer.connect(edge.address(), "n3.test");
    pki.folder.write("n1.key", good);
    until("the mended pair", || offer.try_connect(edge.address(), "n1.test").ok());
    edge.wait_log("n3.pem: No such file or directory");
    offer.connect(edge.address(), "n3.test");
}

#[test]
fn what_signed_a_certificate_is_shown_with_it() {
    let pki = Pki::new();
    let ca = std::fs::read_to_string(pki.file("ca.pem")).unwrap();
    let mut rules = String::new();
    for file in ["one", "two"] {
        pki.server(file, &[&format!("{file}.test")], Kind::P256);
        let leaf = std::fs::read_to_string(pki.file(&format!("{file}.pem"))).unwrap();
        pki.folder.write(&format!("{file}.pem"), leaf + &ca);
        rules += &rule(&format!("{file}.test"), file);
    }
    let edge = Edge::start(&pki.folder, &(rules + &rule("app.test", "edge")));
    for (name, length) in [("one.test", 2), ("two.test", 2), ("app.test", 1), ("one.test", 2)] {
        let tls = Offer::new(&pki).connect(edge.address(), name);
        assert_eq!(tls.conn.peer_certificates().unwrap().len(), length, "{name}");
    }
}
