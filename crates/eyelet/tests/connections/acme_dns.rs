//! Wildcards from a real ACME server: validated by a DNS record that stays (DNS-PERSIST-01), or by
//! one that the operator's command makes (DNS-01). And servers that are none.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use crate::acme::{HANDSHAKE_FAILURE, World, open, serial};
use crate::support::client::alert_in;
use crate::support::dns::{ANY, Dns, Says};
use crate::support::pki::Kind;
use crate::support::{Edge, Pki, Said, Upstream, edge, need, output, until};

const RULE: &str = "sni = \"*.app.test\"";
const RECORD: &str = "_validation-persist.app.test";
const CHALLENGE: &str = "_acme-challenge.app.test";

/// A world whose CA has a name in DNS records. `None`, and says so, without a CA.
fn world() -> Option<World> {
    let names = "\"caaIdentities\": [\"pebble.test\", \"old.pebble.test\"],";
    need("pebble").then(|| World::with(names))
}

/// The end of a configuration: the folder, more keys of [acme], and the tests' DNS server.
fn ends(world: &World, more: &str) -> String {
    format!("folder = \"acme\"\n{more}\n[dns]\nservers = \"{}\"\n", world.dns.address)
}

fn check(world: &World, config: &str) -> Said {
    let file = edge::write(&world.pki.folder, config);
    output(edge::eyelet(&world.pki.folder).arg("check").arg(file))
}

/// The records that the edge of this file prints.
fn record(world: &World, file: &Path) -> Said {
    output(edge::eyelet(&world.pki.folder).args(["acme", "record"]).arg(file))
}

/// A configuration of a wildcard by the persistent record, which this DNS server is asked for.
fn edge_asking(world: &World, dns: &str) -> (Edge, PathBuf) {
    world.edge_with_file(world.tls, RULE, &format!("folder = \"acme\"\n[dns]\nservers = {dns}\n"))
}

#[test]
fn a_wildcard_is_issued_once_its_persistent_record_is_there() {
    let Some(world) = world() else { return };
    // The first resolver sees an inner zone without the record.
    let inside = Dns::new(&[(ANY, Says::NxDomain)]);
    let servers = format!("[\"{}\", \"{}\"]", inside.address, world.dns.address);
    let said = check(&world, &world.config(world.tls, RULE, &ends(&world, "")));
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    assert!(said.text.contains(": *.app.test by the challenge DNS-PERSIST-01, with a"), "{said:?}");
    let (edge, file) = edge_asking(&world, &servers);
    edge.wait_log("*.app.test: the DNS record for DNS-PERSIST-01 does not let it order: it is");
    let account = world.account()["id"].as_str().unwrap().to_owned();
    let value = format!("pebble.test; accounturi={account}; policy=wildcard");
    let line = format!("{RECORD}. 3600 IN TXT \"{value}\"");
    let log = edge.log();
    assert!(log.contains(&format!("it is missing: make the DNS record `{line}`")), "{log}");
    let said = record(&world, &file);
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    assert!(said.text.contains(&format!("{line} ; it is missing\n")), "{said:?}");
    assert_eq!(world.pebble.ordered(), 0, "the server was not asked in vain");
    let roots = world.pebble.roots(&world.pki);
    let error = open(&roots, world.tls, "one.app.test").unwrap_err();
    assert_eq!(alert_in(&error), Some(HANDSHAKE_FAILURE));

    // A record of another CA, and one for another account, do not help.
    let other = format!("pebble.test; accounturi={account}0; policy=wildcard");
    world.dns.says(RECORD, Says::Texts(vec!["ca.test; policy=wildcard".into(), other]));
    let told = || {
        let said = record(&world, &file);
        said.text.contains("; it is for another account").then_some(())
    };
    until("the other account's record", told);
    let texts = vec!["ca.test; policy=wildcard".into(), value];
    world.dns.says(RECORD, Says::Texts(texts));
    world.wait(world.tls, "one.app.test");
    world.wait(world.tls, "two.app.test");
    world.pebble.has_issued(1);
    assert_eq!(world.pebble.ordered(), 1, "{}", world.pebble.log());
    let said = record(&world, &file);
    assert!(said.text.contains("; it is there\n"), "{said:?}");
    assert!(inside.asked(RECORD) > 0, "the first resolver was asked");
    // One label only.
    let error = open(&roots, world.tls, "deep.one.app.test").unwrap_err();
    assert_eq!(alert_in(&error), Some(HANDSHAKE_FAILURE));
    edge.line("the deep name", |line| {
        line["reason"] == "no certificate: a wildcard's covers one label only"
    });
    drop(edge);
    let (edge, _) = edge_asking(&world, &servers);
    world.wait(world.tls, "three.app.test");
    world.pebble.has_issued(1);
    drop(edge);
}

/// The CA decides about a renewal, not a resolver that sees another zone than the CA does.
#[test]
fn a_renewal_goes_on_where_no_resolver_shows_the_record() {
    let Some(world) = world() else { return };
    let (edge, _) = edge_asking(&world, &format!("\"{}\"", world.dns.address));
    edge.wait_log("it is missing: make the DNS record");
    let account = world.account()["id"].as_str().unwrap().to_owned();
    let value = format!("pebble.test; accounturi={account}; policy=wildcard");
    world.dns.says(RECORD, Says::Texts(vec![value]));
    let first = serial(&world.wait(world.tls, "one.app.test"));
    let stored = until("the file", || world.stored_alone());
    drop(edge);
    let at = stored.find("-----BEGIN CERTIFICATE").unwrap();
    world.pebble.renew(&world.pki, &stored[at..]);
    let inside = Dns::new(&[(ANY, Says::NxDomain)]);
    let (edge, _) = edge_asking(&world, &format!("\"{}\"", inside.address));
    edge.wait_log("it is missing; it is renewed anyway");
    until("another certificate", || {
        (serial(&world.wait(world.tls, "one.app.test")) != first).then_some(())
    });
    world.pebble.has_issued(2);
    assert!(inside.asked(RECORD) > 0, "it was looked for");
    drop(edge);
}

#[test]
fn no_record_is_printed_where_none_is_needed() {
    let Some(world) = world() else { return };
    let more = ends(&world, "");
    let (edge, file) = world.edge_with_file(world.tls, "sni = \"app.test\"", &more);
    let said = record(&world, &file);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    assert!(said.text.contains("no rule orders a wildcard: no DNS record is needed"), "{said:?}");
    drop(edge);
    let said = record(&world, &file);
    assert!(said.text.contains("no process of this user serves"), "{said:?}");
}

/// The hook writes what it is told into files, which the DNS server of this test then says.
#[test]
fn a_hook_makes_and_removes_the_record_of_an_order() {
    let Some(world) = world() else { return };
    let script = "#!/bin/sh\n\
         echo \"$1 $EYELET_ACME_ACTION $EYELET_ACME_NAME $EYELET_ACME_VALUE\" >>said\n\
         test \"$EYELET_ACME_ACTION\" = unset || while ! test -e served; do sleep 0.1; done\n";
    let hook = world.pki.folder.write_program("hook", script);
    let more = format!("dns_hook = [\"{}\", \"zone-1\"]", hook.display());
    let config = world.config(world.tls, RULE, &ends(&world, &more));
    let said = check(&world, &config);
    let expected = format!("*.app.test by the challenge DNS-01: {} makes", hook.display());
    assert!(said.status.success() && said.text.contains(&expected), "{said:?}");
    let edge = Edge::start_whole(&world.pki.folder, &config, |command| {
        command.current_dir(world.pki.folder.path());
    });
    let said = world.pki.file("said");
    let line = until("the hook", || {
        std::fs::read_to_string(&said).ok().filter(|text| text.ends_with('\n'))
    });
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[..3], ["zone-1", "set", CHALLENGE], "{line}");
    world.dns.says(CHALLENGE, Says::Texts(vec![words[3].to_owned()]));
    world.pki.folder.write("served", "");
    world.wait(world.tls, "one.app.test");
    let removed = format!("zone-1 unset {CHALLENGE} {}\n", words[3]);
    until("the removal", || {
        std::fs::read_to_string(&said).unwrap().ends_with(&removed).then_some(())
    });
    world.pebble.has_issued(1);
    drop(edge);
}

#[test]
fn a_hook_that_fails_is_logged_with_its_output() {
    let Some(world) = world() else { return };
    let hook = world.pki.folder.write_program("hook", "#!/bin/sh\necho no token >&2\nexit 7\n");
    let more = format!("dns_hook = \"{}\"", hook.display());
    let edge = world.start(&world.config(world.tls, RULE, &ends(&world, &more)));
    edge.wait_log("hook (set) has failed: exit status: 7: no token: mend the command `dns_hook`");
    assert_eq!(world.pebble.issued(), 0);
    drop(edge);
}

/// One has the certificate of another server, and one speaks no TLS.
#[test]
fn what_is_no_acme_server_is_said_in_words() {
    let pki = Pki::new();
    let leaf = pki.server("other", &["other.test"], Kind::P256);
    let other = Upstream::tls(leaf, |tls| _ = tls.read(&mut [0; 64]));
    let plain = Upstream::serve(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    });
    for (address, said) in [
        (
            other.address,
            "not valid for name \"127.0.0.1\"; it is for other.test: set `ca` in [acme]",
        ),
        (plain.address, "the ACME server cannot be used: the server speaks no TLS: see that"),
    ] {
        let config = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n\
             [[rule]]\nsni = \"a.test\"\naction = \"terminate\"\ncertificate = \"acme\"\n\
             upstream = \"tcp://127.0.0.1:1\"\n\
             [acme]\ndirectory = \"https://{address}/dir\"\nterms_agreed = true\n\
             folder = \"acme\"\nca = \"ca.pem\"\n"
        );
        let edge = Edge::start_whole(&pki.folder, &config, |_| ());
        edge.wait_log(said);
    }
}
