//! Names that are checked before they are believed: by DNS, by the destination's certificate; and
//! resolvers and destinations that lie, hang or say too much. The resolvers are scripted.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::support;
use crate::support::client::{Offer, TLS12, TLS13, Versions, echo, handshake};
use crate::support::dns::{Dns, Says};
use crate::support::gate::{
    Gate, HOME, LIES_REFUSED, addresses, dns_table, lies_refused_soon, sink,
};
use crate::support::pki::Kind;
use crate::support::upstream::server_config;
use crate::support::{Edge, Folder, Hello, Pki, SOON, Upstream, alert_of, ending};

const ACCESS_DENIED: u8 = 49;

#[test]
fn a_destination_that_is_not_the_names_is_refused() {
    let dns = Dns::new(&[
        ("good.test", addresses(&["192.0.2.1", HOME])),
        ("alias.test", Says::Alias("alias2.test")),
        ("alias2.test", Says::Alias("good.test")),
        ("lie.test", addresses(&["192.0.2.1", "192.0.2.2"])),
        ("none.test", addresses(&[])),
        ("six.test", addresses(&["2001:db8::1"])),
    ]);
    let gate = Gate::new(&(LIES_REFUSED.to_owned() + &dns_table(&[&dns])));
    let origin = sink();
    for (name, agrees) in [
        ("good.test", true),
        ("GOOD.test", true),
        ("alias.test", true),
        ("lie.test", false),
        ("none.test", false),
        ("six.test", false),
        ("nobody.test", false),
    ] {
        let (alert, line) = gate.ask(name, origin.address);
        assert_eq!(alert, (!agrees).then_some(ACCESS_DENIED), "{name}: {line}");
        assert_eq!(line["outcome"], if agrees { "spliced" } else { "refused" }, "{line}");
        assert_eq!(line["rule"], if agrees { "truths" } else { "lies" }, "{line}");
        let evidence = &line["evidence"];
        assert_eq!(evidence["dns_agrees"], agrees, "{line}");
        assert_eq!(evidence["unknown"], serde_json::json!([]), "{line}");
        assert!(evidence["age_ms"].as_u64().is_some_and(|age| age < 20_000), "{line}");
        if !agrees {
            assert_eq!(line["reason"], "the name is not verified", "{line}");
        }
    }
    let line = gate.ask("lie.test", origin.address).1;
    assert_eq!(line["evidence"]["dns"], serde_json::json!(["192.0.2.1", "192.0.2.2"]), "{line}");
    assert_eq!(dns.questions("lie.test"), 1, "remembered");
    assert_eq!(dns.questions("good.test"), 1, "remembered whatever its spelling");
    // A hello without a name has none that is true, and asks nobody.
    let mut nameless = gate.towards(origin.address);
    nameless.write_all(&Hello::nameless().bytes()).unwrap();
    assert_eq!(alert_of(&ending(&mut nameless, SOON).0), Some(ACCESS_DENIED));
}

#[test]
fn every_resolver_is_asked_and_one_that_knows_is_enough() {
    let one =
        Dns::new(&[("cdn.test", addresses(&["192.0.2.1"])), ("both.test", addresses(&[HOME]))]);
    let two = Dns::new(&[("cdn.test", addresses(&[HOME])), ("both.test", Says::Silence)]);
    one.says("dead.test", addresses(&["192.0.2.1"]));
    two.says("dead.test", Says::Silence);
    one.says("failed.test", Says::NxDomain);
    two.says("failed.test", Says::ServFail);
    let gate = Gate::new(&(LIES_REFUSED.to_owned() + &dns_table(&[&one, &two])));
    let origin = sink();
    assert_eq!(gate.ask("cdn.test", origin.address).1["outcome"], "spliced");
    assert_eq!((one.questions("cdn.test"), two.questions("cdn.test")), (1, 1));
    // Nobody waits for the silent one when the other has said enough: this would be too long.
    let patient = LIES_REFUSED.replace("timeout = \"20s\"", "timeout = \"600s\"");
    let gate = Gate::new(&(patient + &dns_table(&[&one, &two])));
    assert_eq!(gate.ask("both.test", origin.address).1["outcome"], "spliced");
    // What one has not said may be what counts: that fails closed, and the line says why.
    let gate = Gate::new(&(lies_refused_soon() + &dns_table(&[&one, &two])));
    for name in ["dead.test", "failed.test"] {
        let (alert, line) = gate.ask(name, origin.address);
        assert_eq!(alert, Some(ACCESS_DENIED), "{line}");
        assert_eq!(line["evidence"]["dns_agrees"], Value::Null, "{line}");
        let reason = line["reason"].as_str().unwrap();
        assert!(reason.starts_with("the name is not verified (unknown: dns: "), "{line}");
    }
}

#[test]
fn what_a_name_resolved_to_lately_still_counts() {
    let dns = Dns::new(&[("moving.test", Says::Addresses(vec![HOME.parse().unwrap()], 1))]);
    // The second and third hello come within it, also on a busy machine.
    let gate = Gate::new(&format!("{LIES_REFUSED}history = \"20s\"\n{}", dns_table(&[&dns])));
    let (home, away) = (sink(), SocketAddr::from(([127, 0, 0, 2], 9)));
    assert_eq!(gate.ask("moving.test", home.address).1["outcome"], "spliced");
    dns.says("moving.test", Says::Addresses(vec!["127.0.0.2".parse().unwrap()], 1));
    thread::sleep(Duration::from_millis(1200));
    // The TTL is over: an address that is not known is asked for, and found.
    let line = gate.ask("moving.test", away).1;
    assert_eq!(line["evidence"]["dns_agrees"], true, "{line}");
    let line = gate.ask("moving.test", home.address).1;
    assert_eq!(line["outcome"], "spliced", "within the history: {line}");
    support::until("the end of the history", || {
        thread::sleep(Duration::from_millis(100));
        (gate.ask("moving.test", home.address).1["outcome"] == "refused").then_some(())
    });
}

#[test]
fn one_question_however_many_wait_for_it() {
    let late = Says::Late(Duration::from_secs(1), vec![HOME.parse().unwrap()]);
    let dns = Dns::new(&[("late.test", late)]);
    // A question is asked once more after half of the timeout.
    let patient = LIES_REFUSED.replace("timeout = \"20s\"", "timeout = \"60s\"");
    let gate = Gate::new(&(patient + &dns_table(&[&dns])));
    let origin = sink();
    thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| {
                assert_eq!(gate.ask("late.test", origin.address).1["outcome"], "spliced");
            });
        }
    });
    // The library sends its datagram again after a third of a second.
    assert_eq!(dns.questions("late.test"), 1);
}

/// Nobody is dialled for a client that is gone; one that has only sent its FIN may still listen.
#[test]
fn a_client_that_resets_while_evidence_is_gathered_is_not_dialled_for() {
    let answer = Arc::new(Mutex::new(()));
    let held = answer.lock().unwrap();
    let late = Says::Held(answer.clone(), vec![HOME.parse().unwrap()]);
    let dns = Dns::new(&[("late.test", late)]);
    let gate = Gate::new(&(LIES_REFUSED.to_owned() + &dns_table(&[&dns])));
    let origin = sink();
    let mut client = gate.towards(origin.address);
    client.write_all(&Hello::named("late.test").bytes()).unwrap();
    let address = client.local_addr().unwrap();
    support::until("the question", || (dns.asked("late.test") > 0).then_some(()));
    support::reset(client);
    let line = gate.edge.line_of(address);
    assert_eq!(line["outcome"], "left", "{line}");
    assert_eq!(line["reason"], "client reset during the evidence", "{line}");
    drop(held);
    assert_eq!(gate.ask("late.test", origin.address).1["outcome"], "spliced");
    assert_eq!(origin.accepted(), 1);
}

#[test]
fn resolvers_that_say_too_much_or_nothing() {
    let many: Vec<IpAddr> = (0..500_u32)
        .map(|n| IpAddr::from(u32::to_be_bytes(0x0a00_0000 + n)))
        .chain([HOME.parse().unwrap()])
        .collect();
    let dns = Dns::new(&[("many.test", Says::Addresses(many, 60)), ("mute.test", Says::Silence)]);
    dns.says("loop.test", Says::NxDomain);
    let gate = Gate::new(&(LIES_REFUSED.to_owned() + &dns_table(&[&dns])));
    let origin = sink();
    let line = gate.ask("many.test", origin.address).1;
    assert_eq!(line["outcome"], "spliced", "{line}");
    assert_eq!(line["evidence"]["dns"].as_array().unwrap().len(), 8, "{line}");
    let gate = Gate::new(&(lies_refused_soon() + &dns_table(&[&dns])));
    let (alert, line) = gate.ask("mute.test", origin.address);
    assert_eq!(alert, Some(ACCESS_DENIED));
    assert!(line["evidence"]["unknown"][0].as_str().unwrap().starts_with("dns: "), "{line}");
}

/// Rules that refuse by name wait for no evidence; nor does one whose cheaper matchers fail.
#[test]
fn a_rule_by_name_waits_for_nobody() {
    let dns = Dns::new(&[("evil.test", Says::Silence), ("free.test", Says::Silence)]);
    let rules = format!(
        "[[rule]]\nname = \"evil\"\nsni = \"evil.test\"\naction = \"refuse\"\n\
         [[rule]]\nsni = \"*.checked.test\"\nsni_verified = false\nevidence = \"dns\"\n\
         action = \"refuse\"\n\
         [[rule]]\nname = \"rest\"\naction = \"splice\"\nupstream = \"destination\"\n\
         upstream_allow = \"127.0.0.0/8\"\n{}",
        dns_table(&[&dns])
    );
    let gate = Gate::new(&rules);
    let origin = sink();
    assert_eq!(gate.ask("evil.test", origin.address).1["rule"], "evil");
    let line = gate.ask("free.test", origin.address).1;
    assert_eq!((&line["rule"], &line["evidence"]), (&"rest".into(), &Value::Null), "{line}");
    assert_eq!((dns.asked("evil.test"), dns.asked("free.test")), (0, 0));
}

const BY_CERTIFICATE: &str = "[[rule]]\nname = \"true\"\nsni_verified = true\n\
    evidence = \"certificate\"\naction = \"splice\"\nupstream = \"destination\"\n\
    upstream_allow = \"127.0.0.0/8\"\n\
    [[rule]]\nname = \"lie\"\ncertificate_valid = false\naction = \"refuse\"\n\
    [evidence]\ntimeout = \"20s\"\n";

fn versioned_echo(pki: &Pki, names: &[&str], versions: Versions) -> Upstream {
    slow_echo(pki, names, versions, Duration::ZERO)
}

/// An echo server that begins so late.
fn slow_echo(pki: &Pki, names: &[&str], versions: Versions, wait: Duration) -> Upstream {
    let config = server_config(pki.server("origin", names, Kind::P256), versions);
    Upstream::serve(move |stream| {
        use std::io::Read;
        thread::sleep(wait);
        let session = rustls::ServerConnection::new(config.clone()).unwrap();
        let mut tls = rustls::StreamOwned::new(session, stream);
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = tls.read(&mut piece) {
            if tls.write_all(&piece[..length]).and_then(|()| tls.flush()).is_err() {
                return;
            }
        }
    })
}

#[test]
fn a_certificate_speaks_for_a_name_in_every_version() {
    let gate = Gate::new(BY_CERTIFICATE);
    for versions in [TLS12, TLS13] {
        let origin = versioned_echo(&gate.pki, &["good.test", "*.wild.test"], versions);
        for name in ["good.test", "a.wild.test"] {
            let client = gate.towards(origin.address);
            let mut tls = handshake(Offer::new(&gate.pki).config(), client, name).unwrap();
            echo(&mut tls, b"through");
            let address = tls.sock.local_addr().unwrap();
            drop(tls);
            let line = gate.edge.line_of(address);
            assert_eq!(line["rule"], "true", "{line}");
            let shown = &line["evidence"]["certificate"];
            assert_eq!(shown["valid"], true, "{line}");
            assert_eq!(shown["names"], serde_json::json!(["good.test", "*.wild.test"]), "{line}");
            assert!(shown["issuer"].as_str().unwrap().contains("Eyelet test authority"), "{line}");
        }
        // One side handshake and one connection a name.
        let (alert, line) = gate.ask("other.test", origin.address);
        assert_eq!((alert, &line["rule"]), (Some(ACCESS_DENIED), &"lie".into()), "{line}");
        assert_eq!(line["reason"], "refused by certificate", "{line}");
        assert_eq!(line["evidence"]["certificate"]["valid"], false, "{line}");
        gate.ask("other.test", origin.address);
        gate.ask("good.test", origin.address);
        assert_eq!(origin.accepted(), 3 + 3, "side handshakes and connections");
    }
}

/// A server that wants a client certificate refuses who has none. In TLS 1.2 that is before the
/// handshake is done, but after its own certificate. One that shows another's says no as well.
#[test]
fn a_server_that_wants_a_certificate_has_shown_its_own() {
    let gate = Gate::new(BY_CERTIFICATE);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let own = gate.pki.server("origin", &["good.test"], Kind::P256);
    let stolen = gate.pki.server("stolen", &["good.test"], Kind::P256);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(own.certificate.clone()).unwrap();
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots),
        provider.clone(),
    );
    let verifier = verifier.build().unwrap();
    for versions in [TLS12, TLS13] {
        for (leaf, rule) in [(&own, "true"), (&stolen, "lie")] {
            let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&own.key).unwrap();
            let shown = rustls::sign::CertifiedKey::new(vec![leaf.certificate.clone()], key);
            let config = rustls::ServerConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(versions)
                .unwrap()
                .with_client_cert_verifier(verifier.clone())
                .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(shown)));
            let config = Arc::new(config);
            let origin = Upstream::serve(move |stream| {
                let session = rustls::ServerConnection::new(config.clone()).unwrap();
                let mut tls = rustls::StreamOwned::new(session, stream);
                let _ = std::io::Read::read(&mut tls, &mut [0; 16]);
            });
            let line = gate.ask("good.test", origin.address).1;
            assert_eq!(line["rule"], rule, "{line}");
            let is_shown = !line["evidence"]["certificate"].is_null();
            assert_eq!(is_shown, rule == "true", "{line}");
        }
    }
}

/// The judgements of the old roots, for an hour or for a minute, are asked for again.
#[test]
fn new_roots_judge_anew_without_a_reload() {
    let gate = Gate::new(BY_CERTIFICATE);
    let origin = versioned_echo(&gate.pki, &["good.test"], rustls::ALL_VERSIONS);
    let rule = || gate.ask("good.test", origin.address).1["rule"].clone();
    let until_rule = |name: &str| {
        support::until(name, || {
            thread::sleep(Duration::from_millis(20));
            (rule() == name).then_some(())
        });
    };
    let own = std::fs::read_to_string(gate.pki.file("ca.pem")).unwrap();
    let other = std::fs::read_to_string(Pki::new().file("ca.pem")).unwrap();
    assert_eq!(rule(), "true");
    gate.pki.folder.write("ca.pem", "no certificate");
    gate.edge.wait_log("[evidence] ca: ");
    assert_eq!(rule(), "true", "a broken file changes nothing");
    gate.pki.folder.write("ca.pem", &other);
    until_rule("lie");
    gate.edge.wait_log("ca.pem: its new contents are in use");
    gate.pki.folder.write("ca.pem", other + &own);
    until_rule("true");
    assert_eq!(gate.edge.log().matches("stays in use").count(), 1, "{}", gate.edge.log());
}

#[test]
fn names_and_issuers_of_certificates() {
    let rules = "[[rule]]\nname = \"bank\"\ncertificate_names = \"*.bank.test\"\n\
        certificate_issuer = \"Eyelet test authority\"\naction = \"splice\"\n\
        upstream = \"destination\"\nupstream_allow = \"127.0.0.0/8\"\n\
        [evidence]\ntimeout = \"20s\"\n";
    let gate = Gate::new(rules);
    let bank = versioned_echo(&gate.pki, &["www.bank.test"], rustls::ALL_VERSIONS);
    let stranger = Pki::new();
    let forged = versioned_echo(&stranger, &["www.bank.test"], rustls::ALL_VERSIONS);
    assert_eq!(gate.ask("whatever.test", bank.address).1["rule"], "bank");
    let line = gate.ask("www.bank.test", forged.address).1;
    assert_eq!(line["outcome"], "refused", "a name in a certificate of his own: {line}");
    let fault = line["evidence"]["certificate"]["fault"].as_str().unwrap();
    // Its authority has the same name and another key.
    assert!(fault.contains("BadSignature"), "{line}");
    // Without a name the certificate is asked for without one.
    let mut nameless = gate.towards(bank.address);
    nameless.write_all(&Hello::nameless().bytes()).unwrap();
    let address = nameless.local_addr().unwrap();
    nameless.shutdown(std::net::Shutdown::Write).unwrap();
    ending(&mut nameless, SOON);
    assert_eq!(gate.edge.line_of(address)["rule"], "bank");
}

#[test]
fn destinations_that_give_no_certificate() {
    let gate = Gate::new(BY_CERTIFICATE);
    let impatient = Gate::new(&BY_CERTIFICATE.replace("\"20s\"", "\"700ms\""));
    let silent = Upstream::serve(|stream| {
        thread::sleep(SOON);
        drop(stream);
    });
    let closing = Upstream::serve(drop);
    let talking = Upstream::serve(|mut stream| {
        let _ = stream.write_all(b"220 mail.test ESMTP\r\n");
        thread::sleep(SOON);
    });
    let endless = Upstream::serve(|mut stream| {
        // Records of handshake type without end, each an empty-bodied message of unknown type.
        let record = [&[22, 3, 3, 0x40, 0][..], &[0; 1 << 14]].concat();
        while stream.write_all(&record).is_ok() {}
    });
    let huge = Upstream::serve(|mut stream| {
        let _ = stream.write_all(&server_hello_and_chain(200_000));
        thread::sleep(SOON);
    });
    let (_port, nobody) = support::upstream::nobody();
    let own = gate.edge.address();
    const LATE: &str = "certificate: no handshake in time";
    for (gate, destination, why) in [
        (&impatient, silent.address, LATE),
        // By FIN, or by RST where the hello was unread.
        (&gate, closing.address, "certificate: "),
        (&gate, talking.address, "certificate: "),
        (&gate, endless.address, "certificate: "),
        (&gate, huge.address, "certificate: "),
        (&gate, nobody, "certificate: Connection refused"),
        (&gate, own, "certificate: the destination is this edge"),
    ] {
        let (alert, line) = gate.ask("good.test", destination);
        assert_eq!((alert, &line["rule"]), (Some(ACCESS_DENIED), &"lie".into()), "{line}");
        let unknown = line["evidence"]["unknown"][0].as_str().unwrap();
        assert!(unknown.starts_with(why) && (unknown == LATE) == (why == LATE), "{line}");
        assert!(line["reason"].as_str().unwrap().contains(unknown), "{line}");
    }
    assert!(gate.edge.rss_bytes() < 200 << 20);
}

/// That this process has no descriptor says nothing about the destination, and is not remembered.
#[test]
fn a_lack_of_descriptors_is_no_fault_of_the_destination() {
    let gate = Gate::new(BY_CERTIFICATE);
    let origin = versioned_echo(&gate.pki, &["good.test"], rustls::ALL_VERSIONS);
    let before = gate.edge.descriptors_at_rest();
    let mut client = gate.towards(origin.address);
    support::until("the client's descriptor", || (gate.edge.descriptors() > before).then_some(()));
    let limit = gate.edge.limit_descriptors(Some(1));
    client.write_all(&Hello::named("good.test").bytes()).unwrap();
    assert_eq!(alert_of(&ending(&mut client, SOON).0), Some(ACCESS_DENIED));
    let line = gate.edge.line_of(client.local_addr().unwrap());
    let unknown = line["evidence"]["unknown"][0].as_str().unwrap();
    assert!(unknown.starts_with("certificate: Too many open files"), "{line}");
    gate.edge.limit_descriptors(limit);
    let line = gate.ask("good.test", origin.address).1;
    assert_eq!(line["outcome"], "spliced", "{line}");
}

/// More clients than may ask at once ask a destination that is silent. Who waits behind them too
/// long does not know the certificate, but nobody else may hear that its origin failed. Who waits
/// less has the whole time for the handshake.
#[test]
fn a_wait_for_other_handshakes_is_no_fault_of_the_destination() {
    let gate = in_order(&BY_CERTIFICATE.replace("\"20s\"", "\"10s\"\nca = \"ca.pem\""));
    let silent = Upstream::by_hand();
    let wait = Duration::from_secs(1);
    let origin = slow_echo(&gate.pki, &["good.test"], rustls::ALL_VERSIONS, wait);
    // 64 run, 64 begin after 10 seconds, and 64 give up.
    let crowd = crowd(&gate, (24, 8), silent.address);
    support::until("the handshakes that run", || (silent.accepted() >= 64).then_some(()));
    let unknown = serde_json::json!(["certificate: 64 side handshakes are under way"]);
    // The one that asks later shares the wait of the other, and then waits once more for itself.
    let lines = thread::scope(|scope| {
        let ask = || gate.ask("good.test", origin.address).1;
        let both = [scope.spawn(ask), scope.spawn(ask)];
        both.map(|asked| asked.join().unwrap())
    });
    let [one, other] = lines;
    let (first, second) = if one["rule"] == "lie" { (one, other) } else { (other, one) };
    assert_eq!((&first["rule"], &first["evidence"]["unknown"]), (&"lie".into(), &unknown));
    assert_eq!((&second["rule"], &second["outcome"]), (&"true".into(), &"spliced".into()));
    assert_eq!(origin.accepted(), 1 + 1, "the handshake and the connection of one of them");
    drop(crowd);
}

/// A name is not at fault: who has waited for other questions has the whole time for the answer.
#[test]
fn a_wait_for_other_questions_is_no_fault_of_the_name() {
    let late = Says::Late(Duration::from_secs(1), vec![HOME.parse().unwrap()]);
    let dns = Dns::new(&[("good.test", late)]);
    let silent: Vec<String> = (0..8 * 16).map(|n| format!("n{n}.test")).collect();
    silent.iter().for_each(|name| dns.says(name, Says::Silence));
    let rules = LIES_REFUSED.replace("\"20s\"", "\"4s\"");
    let gate = in_order(&(rules + &dns_table(&[&dns])));
    let origin = sink();
    let crowd = crowd(&gate, (8, 16), origin.address);
    let asked = || silent.iter().all(|name| dns.asked(name) > 0);
    support::until("the questions that run", || asked().then_some(()));
    let (_, line) = gate.ask("good.test", origin.address);
    assert_eq!(line["outcome"], "spliced", "{line}");
    drop(crowd);
}

/// More questions than may be asked at once are silent. Who waits behind them too long does not
/// know the name. The one that asks later shares the wait of the other, and then waits once more
/// for itself.
#[test]
fn a_shared_wait_for_other_questions_is_not_the_only_one() {
    let unknown = serde_json::json!(["dns: 128 queries are under way"]);
    // On a machine that stands still both may ask too late, and wait less.
    support::until("one that is unknown, and one that waited once more", || {
        let [one, other] = two_behind_others();
        eprintln!("{one}\n{other}");
        let (first, second) = if one["rule"] == "lies" { (one, other) } else { (other, one) };
        let is_first_unknown = first["rule"] == "lies" && first["evidence"]["unknown"] == unknown;
        let is_second_known = second["rule"] == "truths" && second["outcome"] == "spliced";
        (is_first_unknown && is_second_known).then_some(())
    });
}

/// The lines of two clients with one name, who ask while more questions wait than may be asked.
fn two_behind_others() -> [Value; 2] {
    let dns = Dns::new(&[("good.test", addresses(&[HOME]))]);
    let silent: Vec<String> = (0..24 * 16).map(|n| format!("n{n}.test")).collect();
    silent.iter().for_each(|name| dns.says(name, Says::Silence));
    let rules = LIES_REFUSED.replace("\"20s\"", "\"6s\"");
    let gate = in_order(&(rules + &dns_table(&[&dns])));
    let origin = sink();
    // 128 run, 128 begin after 6 seconds, and 128 give up.
    let crowd = crowd(&gate, (24, 16), origin.address);
    // In the middle of that: a question is asked once more after half of the time.
    let is_half_over = || silent.iter().any(|name| dns.questions(name) > 1);
    support::until("half of the time", || is_half_over().then_some(()));
    let lines = thread::scope(|scope| {
        let ask = || gate.ask("good.test", origin.address).1;
        let both = [scope.spawn(ask), scope.spawn(ask)];
        both.map(|asked| asked.join().unwrap())
    });
    drop(crowd);
    lines
}

/// An edge that takes the clients in their order: it has one worker.
fn in_order(rules: &str) -> Gate {
    let pki = Pki::new();
    let listener = "address = \"127.0.0.1:0\"\nproxy_protocol_from = \"127.0.0.1\"";
    let config = format!("workers = 1\n[[listener]]\n{listener}\n{rules}\n");
    let edge = Edge::start_whole(&pki.folder, &config, |_| ());
    Gate { edge, pki }
}

/// So many clients, each with so many hellos for names of their own.
fn crowd(gate: &Gate, (clients, hellos): (usize, usize), to: SocketAddr) -> Vec<TcpStream> {
    let connect = |n: usize| {
        let mut client = gate.edge.connect();
        let (ip, port) = (to.ip(), to.port());
        let header = format!("PROXY TCP4 10.0.0.{} {ip} 1024 {port}\r\n", n / hellos);
        client.write_all(header.as_bytes()).unwrap();
        client.write_all(&Hello::named(format!("n{n}.test")).bytes()).unwrap();
        client
    };
    (0..clients * hellos).map(connect).collect()
}

/// A TLS 1.2 ServerHello, and a Certificate message of so many bytes.
fn server_hello_and_chain(bytes: usize) -> Vec<u8> {
    let body = [&[3, 3][..], &[9; 32], &[0, 0xc0, 0x2b, 0]].concat();
    let hello = [&[2, 0, 0, u8::try_from(body.len()).unwrap()][..], &body].concat();
    let length = u32::try_from(bytes).unwrap();
    let chain = [&[11][..], &length.to_be_bytes()[1..], &vec![0; bytes]].concat();
    let mut flight = support::records(&hello, &[]);
    flight.extend(support::records(&chain, &[]));
    flight
}

/// A flood of names: the tables and the flights are bounded, and what does not fit is refused.
#[test]
fn ten_thousand_names_do_not_grow_the_edge() {
    let dns = Dns::new(&[]);
    let limits = "[limits]\nmemory_max = \"16MiB\"\n";
    let gate = Gate::new(&format!("{}{limits}{}", lies_refused_soon(), dns_table(&[&dns])));
    let origin = sink();
    let flood = |from: usize, to: usize| {
        thread::scope(|scope| {
            for part in 0..8 {
                let (gate, origin) = (&gate, &origin);
                scope.spawn(move || {
                    for n in (from..to).filter(|n| n % 8 == part) {
                        let mut client = gate.towards(origin.address);
                        let hello = Hello::named(format!("name{n}.flood.test"));
                        client.write_all(&hello.bytes()).unwrap();
                        assert_eq!(alert_of(&ending(&mut client, SOON).0), Some(ACCESS_DENIED));
                    }
                });
            }
        });
    };
    flood(0, 4_000);
    let before = gate.edge.rss_bytes();
    flood(4_000, 10_000);
    gate.edge.wait_memory(before, 8 << 20);
}

#[test]
fn evidence_without_a_destination_is_a_mistake() {
    let folder = Folder::new();
    let config = "[[listener]]\naddress = \"127.0.0.1:1\"\n[[rule]]\nsni_verified = true\n\
        evidence = \"dns\"\naction = \"refuse\"\n";
    let file = folder.write("edge.toml", config);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_eyelet"));
    let said = support::output(command.arg("check").arg(file));
    assert_eq!(said.status.code(), Some(2), "{}", said.text);
    assert!(
        said.text.contains(":4:1: error: `sni_verified` asks about the destination"),
        "{}",
        said.text
    );
}
