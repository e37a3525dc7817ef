//! Names that are resolved to be dialled and to be checked: accepted names, records that count,
//! aliases, slow resolvers, crowds of names, and a greedy client. The resolvers are scripted.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::support::crowd::{From, permit};
use crate::support::dns::{ANY, Data, Dns, Says};
use crate::support::pki::Kind;
use crate::support::{Edge, Folder, Hello, Pki, SOON, Upstream, alert_of, ending, settled, until};

const HOME: &str = "127.0.0.1";

fn home() -> Says {
    Says::Addresses(vec![HOME.parse().unwrap()], 60)
}

/// Somebody who takes a hello, says nothing and closes.
fn sink() -> Upstream {
    Upstream::serve(|mut stream| {
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    })
}

/// An edge that dials the name in the hello.
fn by_name(folder: &Folder, dns: &Dns, origin: &Upstream, more: &str) -> Edge {
    let rules = format!(
        "workers = 1\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[rule]]\naction = \"splice\"\n\
         upstream = \"{{sni}}:{}\"\nupstream_allow = \"127.0.0.0/8\"\n[dns]\n\
         servers = \"{}\"\n{more}",
        origin.address.port(),
        dns.address
    );
    Edge::start_whole(folder, &rules, |_| ())
}

/// An edge that passes clients whose destination is an address of the name in their hello. A PROXY
/// header names the destination.
fn by_evidence(folder: &Folder, dns: &Dns, evidence: &str, more: &str) -> Edge {
    let rules = format!(
        "workers = 1\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
         proxy_protocol_from = \"127.0.0.1\"\n[[rule]]\nname = \"lies\"\n\
         sni_verified = false\nevidence = \"{evidence}\"\naction = \"refuse\"\n[[rule]]\n\
         action = \"splice\"\nupstream = \"destination\"\nupstream_allow = \"127.0.0.0/8\"\n\
         [dns]\nservers = \"{}\"\n{more}",
        dns.address
    );
    Edge::start_whole(folder, &rules, |_| ())
}

/// A client at an address that it says itself, on its way to `to`.
fn from(edge: &Edge, client: &str, to: SocketAddr) -> TcpStream {
    let mut stream = edge.connect();
    let port = stream.local_addr().unwrap().port();
    let header = format!("PROXY TCP4 {client} {} {port} {}\r\n", to.ip(), to.port());
    stream.write_all(header.as_bytes()).unwrap();
    stream
}

/// Returns the fate of a hello: its alert, and its access line.
fn ask(edge: &Edge, mut client: TcpStream, name: &str) -> (Option<u8>, Value) {
    client.write_all(&Hello::named(name).bytes()).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let (said, _) = ending(&mut client, SOON);
    let port = format!(":{}", client.local_addr().unwrap().port());
    let is_its =
        |line: &Value| line["client"].as_str().is_some_and(|client| client.ends_with(&port));
    (alert_of(&said), edge.line(name, is_its))
}

/// Every name that a hello may have is dialled as it stands, and so are those of a CONNECT and of
/// the configuration.
#[test]
fn names_are_dialled_as_they_stand() {
    let names =
        ["a_b.test", "my_bucket.s3.test", "x.y_z.test", "_a.test", "xn--a.test", "xn--0.test"];
    let dns = Dns::new(&[]);
    names.iter().for_each(|name| dns.says(name, home()));
    let (folder, origin) = (Folder::new(), sink());
    let edge = by_name(&folder, &dns, &origin, "");
    for name in names {
        let (alert, line) = ask(&edge, edge.connect(), name);
        assert_eq!((alert, &line["outcome"]), (None, &"spliced".into()), "{line}");
        assert_eq!(line["upstream"], origin.address.to_string(), "{line}");
    }
    let port = origin.address.port();
    let configured = format!(
        "[[rule]]\naction = \"splice\"\nupstream = \"a_b.test:{port}\"\n[dns]\nservers = \"{}\"\n",
        dns.address
    );
    let edge = Edge::start(&folder, &configured);
    assert_eq!(ask(&edge, edge.connect(), "other.test").1["outcome"], "spliced");
    let proxy = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nkind = \"connect\"\n[[rule]]\nsni = \"*.test\"\n\
         action = \"splice\"\nupstream = \"destination\"\nupstream_allow = \"127.0.0.0/8\"\n\
         [dns]\nservers = \"{}\"\n",
        dns.address
    );
    let edge = Edge::start_whole(&folder, &proxy, |_| ());
    for name in names {
        let mut client = edge.connect();
        let head = format!("CONNECT {name}:{port} HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n");
        client.write_all(head.as_bytes()).unwrap();
        let line = ask(&edge, client, name).1;
        assert_eq!(line["outcome"], "spliced", "{line}");
    }
}

/// The bytes that 5,000 names that were dialled may leave in memory: the cache's bound and what is
/// under way.
const GROWN_BYTES_MAX: u64 = 3 << 20;

/// The memory of names that were dialled has a bound, however many come.
#[test]
fn thousands_of_names_that_are_dialled_do_not_grow_the_edge() {
    let dns = Dns::new(&[(ANY, home())]);
    let (folder, origin) = (Folder::new(), sink());
    let edge = by_name(&folder, &dns, &origin, "[limits]\nmemory_max = \"16MiB\"\n");
    let flood = |from: usize, to: usize| {
        thread::scope(|scope| {
            for part in 0..8 {
                let edge = &edge;
                scope.spawn(move || {
                    for n in (from..to).filter(|n| n % 8 == part) {
                        let mut client = edge.connect();
                        let name = format!("name-of-a-usual-length-{n}.flood.test");
                        client.write_all(&Hello::named(name).bytes()).unwrap();
                        client.shutdown(std::net::Shutdown::Write).unwrap();
                        assert_eq!(ending(&mut client, SOON).0, b"");
                    }
                });
            }
        });
    };
    flood(0, 1_000);
    // A line that waits for its reader is memory too.
    until("a line for each name", || (edge.lines().len() >= 1_000).then_some(()));
    let before = edge.rss_bytes();
    flood(1_000, 6_000);
    edge.wait_memory(before, GROWN_BYTES_MAX);
    // One that was asked for lately is not asked for again.
    let again = "asked-twice.flood.test";
    for _ in 0..2 {
        ask(&edge, edge.connect(), again);
    }
    assert_eq!(dns.questions(again), 2, "one question a family");
    let mut not_spliced = edge.lines();
    not_spliced.retain(|line| line["outcome"] != "spliced");
    assert_eq!(not_spliced, Vec::<Value>::new());
}

fn address(ip: &str) -> Data {
    Data::Address(ip.parse().unwrap())
}

/// A chain of so many aliases, one an answer, to this host.
fn chain(dns: &Dns, start: &'static str, aliases: usize) {
    let mut name = start;
    for n in 1..=aliases {
        let next = format!("{n}.{start}").leak();
        dns.says(name, Says::Exactly(0, vec![(name, Data::Alias(next))]));
        name = next;
    }
    dns.says(name, home());
}

/// Each answer comes to one result: whether the name has this host's address, or why that is
/// unknown.
#[test]
fn only_the_addresses_at_the_end_of_the_aliases_count() {
    let dns = Dns::new(&[]);
    let (home, away) = (address(HOME), address("192.0.2.1"));
    let to = Data::Alias;
    let exactly = |name: &str, code: u8, records: Vec<(&'static str, Data)>| {
        dns.says(name, Says::Exactly(code, records));
    };
    exactly(
        "mixed.test",
        0,
        vec![
            ("end.test", home.clone()),
            ("middle.test", to("end.test")),
            ("mixed.test", to("middle.test")),
        ],
    );
    exactly("upper.test", 0, vec![("upper.test", to("END.Test")), ("eNd.test", home.clone())]);
    exactly("wrong.test", 0, vec![("stranger.test", home.clone())]);
    exactly("extra.test", 0, vec![("extra.test", away.clone()), ("stranger.test", home.clone())]);
    exactly("both.test", 0, vec![("both.test", to("gone.test")), ("both.test", home.clone())]);
    exactly("none.test", 3, vec![("none.test", home.clone())]);
    exactly("dead.test", 3, vec![("dead.test", to("end.test")), ("end.test", home.clone())]);
    exactly("self.test", 0, vec![("self.test", to("self.test"))]);
    exactly("loop.test", 0, vec![("loop.test", to("pool.test")), ("pool.test", to("loop.test"))]);
    exactly("ring.test", 0, vec![("ring.test", to("gnir.test"))]);
    exactly("gnir.test", 0, vec![("gnir.test", to("ring.test"))]);
    chain(&dns, "sixteen.test", 16);
    chain(&dns, "seventeen.test", 17);
    let (folder, origin) = (Folder::new(), sink());
    let checking = by_evidence(&folder, &dns, "dns", "[evidence]\ntimeout = \"5s\"\n");
    let dialling = by_name(&folder, &dns, &origin, "");
    const LOOPS: Option<bool> = None;
    for (name, agrees) in [
        ("mixed.test", Some(true)),
        ("upper.test", Some(true)),
        ("sixteen.test", Some(true)),
        ("wrong.test", Some(false)),
        ("extra.test", Some(false)),
        ("both.test", Some(false)),
        ("none.test", Some(false)),
        ("dead.test", Some(false)),
        ("self.test", LOOPS),
        ("loop.test", LOOPS),
        ("ring.test", LOOPS),
        ("seventeen.test", LOOPS),
    ] {
        let to = origin.address;
        let (_, line) = ask(&checking, from(&checking, "192.0.2.9", to), name);
        let evidence = &line["evidence"];
        assert_eq!(evidence["dns_agrees"], serde_json::json!(agrees), "{line}");
        let is_through = agrees == Some(true);
        assert_eq!(line["outcome"], if is_through { "spliced" } else { "refused" }, "{line}");
        let reason = line["reason"].as_str().unwrap();
        assert_eq!(reason.contains("more than 16 aliases"), agrees == LOOPS, "{line}");
        if name == "extra.test" {
            assert_eq!(evidence["dns"], serde_json::json!(["192.0.2.1"]), "{line}");
            continue;
        }
        let (_, line) = ask(&dialling, dialling.connect(), name);
        assert_eq!(line["outcome"], if is_through { "spliced" } else { "failed" }, "{line}");
        let reason = line["reason"].as_str().unwrap();
        assert_eq!(reason.contains("DNS: more than 16 aliases"), agrees == LOOPS, "{line}");
        assert_eq!(reason.contains("no address"), agrees == Some(false), "{line}");
    }
}

/// An answer within the timeout counts, whichever datagram it answers.
#[test]
fn a_resolver_has_all_the_time_that_there_is() {
    let late = |ms| Says::Late(Duration::from_millis(ms), vec![HOME.parse().unwrap()]);
    let dns = Dns::new(&[("late.test", late(2_000)), ("later.test", late(18_000))]);
    let (folder, origin) = (Folder::new(), sink());
    let edge = by_evidence(&folder, &dns, "dns", "[evidence]\ntimeout = \"8s\"\n");
    let client = || from(&edge, "192.0.2.9", origin.address);
    let (_, line) = ask(&edge, client(), "late.test");
    assert_eq!(line["outcome"], "spliced", "{line}");
    // Its answer would agree, and is not waited for.
    let (_, line) = ask(&edge, client(), "later.test");
    assert_eq!(line["evidence"]["dns_agrees"], Value::Null, "{line}");
    assert_eq!(line["outcome"], "refused", "{line}");
}

/// A datagram that is lost is sent again in time, also by who has heard much bad of a resolver.
#[test]
fn a_lost_question_is_asked_again() {
    let dns = Dns::new(&[]);
    let (folder, origin) = (Folder::new(), sink());
    let edge = by_evidence(&folder, &dns, "dns", "[evidence]\ntimeout = \"3s\"\n");
    let ask = |name: &str| ask(&edge, from(&edge, "192.0.2.9", origin.address), name).1;
    let mut names = 0..;
    until("an answer in time", || {
        for n in names.by_ref().take(40) {
            let line = ask(&format!("n{n}.nothing.test"));
            // No answer at all is one that this machine made late.
            assert_ne!(line["evidence"]["dns_agrees"], true, "{line}");
        }
        let lost = format!("lost{}.test", names.start);
        dns.says(&lost, Says::Again(vec![HOME.parse().unwrap()]));
        let line = ask(&lost);
        // Within the timeout it was sent again, and only the answer may have been too late.
        assert!(settled(|| dns.asked(&lost)) > 1, "{line}");
        (line["outcome"] == "spliced").then_some(())
    });
}

/// Connections that the greedy client opens before others come: more than there are permits of any
/// kind.
const GREEDY_FIRST: usize = 300;

/// Connections that it keeps open: those of longer than [`GREEDY_TIMEOUT`].
const HELD_MAX: usize = 400;

/// The time for which a question of it hangs, and that another client may take on a busy machine.
const GREEDY_TIMEOUT: &str = "timeout = \"6s\"\n";

/// One client that asks for hanging names as fast as it can, and others who come meanwhile.
fn honest_among_greedy(
    edge: &Edge,
    greedy: impl Fn(usize) -> (TcpStream, String) + Sync,
    honest: impl Fn(usize) -> (TcpStream, String),
    why: &str,
) {
    // Its descriptors are the test's too.
    let _permit = permit(HELD_MAX);
    let (greedy, opened) = (&greedy, &AtomicUsize::new(0));
    thread::scope(|scope| {
        // It ends with this one, which may fail.
        let (_going_on, ended) = mpsc::channel::<()>();
        scope.spawn(move || {
            let mut held = VecDeque::new();
            for n in 0.. {
                opened.store(n, Ordering::SeqCst);
                let (mut client, name) = greedy(n);
                let _ = client.write_all(&Hello::named(name).bytes());
                held.push_back(client);
                held.drain(..held.len().saturating_sub(HELD_MAX));
                let pause = Duration::from_millis(if n < GREEDY_FIRST { 8 } else { 25 });
                if ended.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                    break;
                }
            }
        });
        until("every permit would be taken", || {
            (opened.load(Ordering::SeqCst) >= GREEDY_FIRST).then_some(())
        });
        for n in 0..8 {
            let (client, name) = honest(n);
            let (_, line) = ask(edge, client, &name);
            assert_eq!(line["outcome"], "spliced", "{line}");
        }
        edge.line(why, |line| line["reason"].as_str().is_some_and(|reason| reason.contains(why)));
    });
}

fn silent_but_for_eight() -> Dns {
    let dns = Dns::new(&[(ANY, Says::Silence)]);
    (0..8).for_each(|n| dns.says(&format!("h{n}.honest.test"), home()));
    dns
}

#[test]
fn a_greedy_client_takes_no_questions_from_others() {
    let dns = silent_but_for_eight();
    let (folder, origin) = (Folder::new(), sink());
    let edge = by_evidence(&folder, &dns, "dns", &format!("[evidence]\n{GREEDY_TIMEOUT}"));
    honest_among_greedy(
        &edge,
        |n| (from(&edge, "192.0.2.66", origin.address), format!("g{n}.greedy.test")),
        |n| (from(&edge, "192.0.2.9", origin.address), format!("h{n}.honest.test")),
        "dns: 16 queries for this client are under way",
    );
}

#[test]
fn a_greedy_client_takes_no_side_handshakes_from_others() {
    let dns = Dns::new(&[]);
    let pki = Pki::new();
    let origin = Upstream::tls_echo(pki.server("origin", &["*.honest.test"], Kind::P256));
    let silent = Upstream::by_hand();
    let truth = format!("[evidence]\n{GREEDY_TIMEOUT}ca = \"{}\"\n", pki.text("ca.pem"));
    let edge = by_evidence(&pki.folder, &dns, "certificate", &truth);
    honest_among_greedy(
        &edge,
        |n| (from(&edge, "192.0.2.66", silent.address), format!("g{n}.greedy.test")),
        |n| (from(&edge, "192.0.2.9", origin.address), format!("h{n}.honest.test")),
        "certificate: 8 side handshakes for this client are under way",
    );
}

#[test]
fn a_greedy_client_takes_no_lookups_from_others() {
    let dns = silent_but_for_eight();
    let (folder, origin) = (Folder::new(), sink());
    let more = format!("[limits]\nconnect_{GREEDY_TIMEOUT}");
    let edge = by_name(&folder, &dns, &origin, &more);
    honest_among_greedy(
        &edge,
        |n| (edge.connect(), format!("g{n}.greedy.test")),
        |n| {
            // Another address of this host.
            let other = From::loopback(9 + u8::try_from(n).unwrap());
            (other.connect(edge.address()).unwrap(), format!("h{n}.honest.test"))
        },
        "DNS: 32 look-ups for this client are under way",
    );
}
