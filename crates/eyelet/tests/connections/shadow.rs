//! Rules in shadow: they are logged, and neither decide nor let anybody wait. This includes the
//! hello that only they need, and evidence.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::dns::{Dns, Says};
use crate::support::gate::{Gate, HOME, LIES_REFUSED, addresses, dns_table, sink};
use crate::support::upstream::nobody;
use crate::support::{Edge, End, Folder, Hello, SOON, Upstream, ending, expect, noise, until};

/// A rule in shadow that asks for the hello, above a list that does not.
const IN_SHADOW: &str =
    "[[rule]]\nname = \"trial\"\nshadow = true\nsni = \"*.evil.test\"\naction = \"refuse\"\n";

/// Connections go on as without the shadow rule: a server that speaks first is heard, and bytes
/// that are no readable hello are passed on.
#[test]
fn a_rule_in_shadow_asks_for_the_hello_and_gets_in_nobodys_way() {
    let folder = Folder::new();
    let by_hand = Upstream::by_hand();
    let blind = format!("[[rule]]\naction = \"splice\"\nupstream = \"{}\"\n", by_hand.address);
    // Who waited for a hello would wait for longer than this test does.
    let limits = "[limits]\nhello_timeout = \"5m\"\n";
    let edge = Edge::start(&folder, &format!("{IN_SHADOW}{blind}{limits}"));
    let mut client = edge.connect();
    let mut server = by_hand.take();
    server.write_all(b"SSH-2.0-server\r\n").unwrap();
    expect(&mut client, b"SSH-2.0-server\r\n");
    client.write_all(b"SSH-2.0-client\r\n").unwrap();
    expect(&mut server, b"SSH-2.0-client\r\n");
    let address = client.local_addr().unwrap();
    drop(client);
    // Else both ends could come before the edge looks, and it could see the server's first.
    assert_eq!(ending(&mut server, SOON), (vec![], End::Fin));
    drop(server);
    let line = edge.line_of(address);
    assert_eq!((&line["outcome"], &line["reason"]), (&"spliced".into(), &"client closed".into()));
    let half = Hello::named("a.evil.test").bytes()[..99].to_vec();
    for said in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"SSH-2.0-client\r\n".to_vec(),
        Hello::named("a.evil.test.").bytes(),
        Hello::named("a.evil.test").and_named("b.test").bytes(),
        [22, 3, 1, 0xff, 0xff].repeat(30_000),
        noise(20_000, 7),
        half,
    ] {
        let mut client = edge.connect();
        client.write_all(&said).unwrap();
        let mut server = by_hand.take();
        expect(&mut server, &said);
        client.write_all(b"more").unwrap();
        expect(&mut server, b"more");
        server.write_all(b"220 hello\r\n").unwrap();
        expect(&mut client, b"220 hello\r\n");
        let address = client.local_addr().unwrap();
        drop((client, server));
        let line = edge.line_of(address);
        assert_eq!(line["outcome"], "spliced", "{line}");
        assert_eq!(line["bytes_to_upstream"], said.len() + 4, "{line}");
        assert!(line["shadow"].is_null() && line["sni"].is_null(), "{line}");
    }
    // A client that is done before it has said anything is passed on too.
    let client = edge.connect();
    client.shutdown(Shutdown::Write).unwrap();
    let mut server = by_hand.take();
    assert_eq!(ending(&mut server, SOON), (vec![], End::Fin));
}

/// A hello that only the rule in shadow asks for is in the log, and nowhere else.
#[test]
fn a_hello_that_only_a_rule_in_shadow_asks_for_is_told_and_not_acted_on() {
    let folder = Folder::new();
    let by_hand = Upstream::by_hand();
    let blind = format!(
        "[[rule]]\nname = \"all\"\naction = \"splice\"\nupstream = \"{}\"\n\
         proxy_protocol = \"v2\"\n",
        by_hand.address
    );
    let edge = Edge::start(&folder, &format!("{IN_SHADOW}{blind}"));
    let told = json!([{"rule": "trial", "outcome": "refused"}]);
    for (name, told) in [("a.evil.test", told), ("good.test", Value::Null)] {
        let hello = Hello::named(name).bytes();
        let mut client = edge.connect();
        client.write_all(&hello[..9]).unwrap();
        thread::sleep(Duration::from_millis(10));
        client.write_all(&hello[9..]).unwrap();
        let mut server = by_hand.take();
        // 16 bytes and two IPv4 addresses with their ports: no name is in the PROXY header.
        let mut header = [0; 28];
        server.read_exact(&mut header).unwrap();
        assert_eq!(header[14..16], [0, 12]);
        expect(&mut server, &hello);
        // And the server, which is not watched, may say whatever it likes.
        server.write_all(b"220 no TLS\r\n").unwrap();
        expect(&mut client, b"220 no TLS\r\n");
        let address = client.local_addr().unwrap();
        drop((client, server));
        let line = edge.line_of(address);
        assert_eq!((&line["outcome"], &line["rule"]), (&"spliced".into(), &"all".into()), "{line}");
        assert_eq!((&line["shadow"], &line["sni"]), (&told, &name.into()), "{line}");
        assert!(line["tls_compression"].is_null(), "{line}");
    }
}

/// A CONNECT that the other rules decide without a hello is dialled before it is answered.
#[test]
fn a_rule_in_shadow_does_not_answer_a_connect() {
    let folder = Folder::new();
    let by_hand = Upstream::by_hand();
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"connect\"\n";
    let blind = "[[rule]]\naction = \"splice\"\nupstream = \"destination\"\n\
                 upstream_allow = \"127.0.0.0/8\"\n";
    let edge = Edge::start_whole(&folder, &format!("{listener}{IN_SHADOW}{blind}"), |_| ());
    let head = |to| format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").into_bytes();
    let mut client = edge.connect();
    client.write_all(&head(by_hand.address)).unwrap();
    let mut server = by_hand.take();
    server.write_all(b"SSH-2.0-server\r\n").unwrap();
    expect(&mut client, b"HTTP/1.1 200 Connection established\r\n\r\nSSH-2.0-server\r\n");
    let (_port, gone) = nobody();
    let mut client = edge.connect();
    client.write_all(&head(gone)).unwrap();
    assert!(ending(&mut client, SOON).0.starts_with(b"HTTP/1.1 502 "));
}

#[test]
fn a_rule_in_shadow_logs_and_does_nothing() {
    let dns =
        Dns::new(&[("lie.test", addresses(&["192.0.2.1"])), ("good.test", addresses(&[HOME]))]);
    let rules = LIES_REFUSED.replace("name = \"lies\"\n", "name = \"lies\"\nshadow = true\n");
    let gate = Gate::new(&(rules + &dns_table(&[&dns])));
    let origin = sink();
    // The first connection waits for nothing; what was asked for beside it is there for others.
    let evidence_of = |name: &str| {
        let first = gate.ask(name, origin.address).1;
        assert!(first["shadow"].is_null() && first["evidence"].is_null(), "{first}");
        until("evidence", || {
            let line = gate.ask(name, origin.address).1;
            let spliced = (&"spliced".into(), &"truths".into());
            assert_eq!((&line["outcome"], &line["rule"]), spliced, "{line}");
            (!line["evidence"].is_null()).then_some(line)
        })
    };
    let line = evidence_of("lie.test");
    let told = json!([{"rule": "lies", "outcome": "refused"}]);
    assert_eq!(line["shadow"], told, "{line}");
    assert_eq!(line["evidence"]["dns_agrees"], false, "{line}");
    let line = evidence_of("good.test");
    assert_eq!(line["shadow"], Value::Null, "{line}");
    assert_eq!(line["evidence"]["dns_agrees"], true, "{line}");
    assert_eq!((dns.questions("lie.test"), dns.questions("good.test")), (1, 1));
}

/// Nobody waits for what only a rule in shadow asks, and no other rule's reason speaks of it.
#[test]
fn a_rule_in_shadow_waits_for_no_evidence() {
    let dns = Dns::new(&[("mute.test", Says::Silence), ("evil.test", Says::Silence)]);
    let silent = Upstream::serve(|mut stream| {
        // Answers no handshake, and closes when the client does.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    for evidence in ["dns", "certificate"] {
        let rules = format!(
            "[[rule]]\nshadow = true\nsni_verified = false\nevidence = \"{evidence}\"\n\
             action = \"refuse\"\n\
             [[rule]]\nname = \"evil\"\nsni = \"evil.test\"\naction = \"refuse\"\n\
             [[rule]]\nname = \"rest\"\naction = \"splice\"\nupstream = \"destination\"\n\
             upstream_allow = \"127.0.0.0/8\"\n[evidence]\ntimeout = \"2m\"\n{}",
            dns_table(&[&dns])
        );
        let gate = Gate::new(&rules);
        for _ in 0..3 {
            let began = Instant::now();
            let line = gate.ask("mute.test", silent.address).1;
            assert_eq!(line["outcome"], "spliced", "{line}");
            let (_, evil) = gate.ask("evil.test", silent.address);
            assert_eq!(evil["reason"], "refused by name", "{evil}");
            assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
            for line in [line, evil] {
                assert!(line["shadow"].is_null() && line["evidence"].is_null(), "{line}");
            }
        }
    }
    // One flight a name, which sends its question once more when no answer comes.
    assert!(dns.questions("mute.test") <= 2 && dns.questions("evil.test") <= 2);
}

/// The facts that a rule that acts has asked for are there for one in shadow too, whatever came of
/// them.
#[test]
fn a_rule_in_shadow_uses_what_others_ask() {
    let dns = Dns::new(&[("failed.test", Says::ServFail), ("good.test", addresses(&[HOME]))]);
    let rules = format!(
        "[[rule]]\nname = \"first\"\nshadow = true\nsni_verified = true\nevidence = \"dns\"\n\
         action = \"refuse\"\n{LIES_REFUSED}{}",
        dns_table(&[&dns])
    );
    let gate = Gate::new(&rules);
    let origin = sink();
    let told = json!([{"rule": "first", "outcome": "refused"}]);
    let line = gate.ask("good.test", origin.address).1;
    assert_eq!((&line["rule"], &line["shadow"]), (&"truths".into(), &told), "{line}");
    // Unknown, it is refused by both.
    let line = gate.ask("failed.test", origin.address).1;
    assert_eq!((&line["rule"], &line["shadow"]), (&"lies".into(), &told), "{line}");
    let reason = line["reason"].as_str().unwrap();
    assert!(reason.starts_with("the name is not verified (unknown: dns: "), "{line}");
}
