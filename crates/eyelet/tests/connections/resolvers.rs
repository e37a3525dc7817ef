//! Several resolvers, those that fail or are silent, and names whose answers change while they are
//! dialled and while connections are kept.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::client::Offer;
use crate::support::dns::{Data, Dns, Says};
use crate::support::edge::LISTENER;
use crate::support::gate::dns_table;
use crate::support::pki::Kind;
use crate::support::two::{self, Two};
use crate::support::web::get;
use crate::support::{Edge, Folder, Hello, Pki, SOON, Upstream, ending, until};

pub const HOME: &str = "127.0.0.1";
/// Nobody listens there.
pub const AWAY: &str = "127.0.0.77";

pub fn ips(list: &[&str]) -> Vec<IpAddr> {
    list.iter().map(|ip| ip.parse().unwrap()).collect()
}

pub fn home() -> Says {
    Says::Addresses(ips(&[HOME]), 3_600)
}

/// Somebody who takes a hello, says nothing and closes.
pub fn sink() -> Upstream {
    Upstream::serve(|mut stream| {
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    })
}

/// An edge that dials the name in the hello, for a configured name a rule each.
pub fn by_name(folder: &Folder, servers: &[&Dns], origin: SocketAddr, names: &[String]) -> Edge {
    let rules = names.iter().map(|name| {
        format!(
            "[[rule]]\nsni = \"{name}\"\naction = \"splice\"\nupstream = \"{name}:{}\"\n",
            origin.port()
        )
    });
    let rules: String = rules.collect();
    let config = format!("workers = 1\n{LISTENER}{rules}{}", dns_table(servers));
    Edge::start_whole(folder, &config, |_| ())
}

/// The time that an edge gives a resolver, which it asks twice.
pub const RESOLVER: Duration = Duration::from_secs(5);
const TRIES: usize = 5;

/// Sends a hello. Returns what becomes of it, and how long that takes.
pub fn ask(edge: &Edge, name: &str) -> (String, Duration) {
    let (mut client, began) = (edge.connect(), Instant::now());
    client.write_all(&Hello::named(name).bytes()).unwrap();
    // It may be refused by now.
    let _ = client.shutdown(std::net::Shutdown::Write);
    let address = client.local_addr().unwrap();
    ending(&mut client, SOON);
    let took = began.elapsed();
    let line = edge.line_of(address);
    (format!("{} {}", line["outcome"].as_str().unwrap(), line["reason"].as_str().unwrap()), took)
}

/// Asks edges that remember nothing, until one answers in less than `limit`. A busy machine makes
/// some slow; a wait of the edge itself would be in each. Returns how that connection ends.
pub fn ask_quickly(limit: Duration, start: impl Fn() -> Edge, name: &str) -> String {
    let mut asked = (0..TRIES).map(|_| ask(&start(), name));
    let quick = asked.find(|(_, took)| *took < limit);
    quick.unwrap_or_else(|| panic!("{name}: each of {TRIES} took {limit:?} or more")).0
}

fn is_spliced(edge: &Edge, name: &str) -> bool {
    ask(edge, name).0.starts_with("spliced")
}

#[test]
fn the_first_resolver_in_order_that_answers_decides() {
    let (one, two) = (Dns::new(&[]), Dns::new(&[]));
    let late = Says::Late(Duration::from_millis(100), ips(&[HOME]));
    let exactly = |code| Says::Exactly(code, vec![]);
    let table = [
        ("servfail.test", Says::ServFail, home(), true),
        ("refused.test", exactly(5), home(), true),
        ("notimp.test", exactly(4), home(), true),
        ("formerr.test", exactly(1), home(), true),
        ("lame.test", Says::Lame, home(), true),
        ("referral.test", Says::Referral, home(), true),
        ("malformed.test", Says::Malformed, home(), true),
        ("silent.test", Says::Silence, home(), true),
        // A later one says something else, and sooner.
        ("internal.test", late, Says::NxDomain, true),
        ("healthy.test", home(), Says::ServFail, true),
        ("elsewhere.test", home(), Says::Addresses(ips(&[AWAY]), 60), true),
        ("gone.test", Says::NxDomain, home(), false),
        ("empty.test", exactly(0), home(), false),
        // Only what the second says is known.
        ("denied.test", Says::ServFail, Says::NxDomain, false),
        ("neither.test", Says::ServFail, exactly(5), false),
    ];
    let mut names = Vec::new();
    for (name, first, second, _) in &table {
        one.says(name, first.clone());
        two.says(name, second.clone());
        names.push((*name).to_owned());
    }
    let (folder, origin) = (Folder::new(), sink());
    let edge = by_name(&folder, &[&one, &two], origin.address, &names);
    for (name, .., expected) in &table {
        let (said, _) = ask(&edge, name);
        assert_eq!(said.starts_with("spliced"), *expected, "{name}: {said}");
        if !expected {
            let why = if *name == "neither.test" { "error response" } else { "no address" };
            assert!(said.contains(why), "{name}: {said}");
        }
    }
    let asked = |dns: &Dns| dns.asked("healthy.test");
    assert_eq!((asked(&one) > 0, asked(&two)), (true, 0));
}

#[test]
fn a_silent_resolver_is_not_waited_for_once_a_name() {
    let names: Vec<String> = (0..30).map(|n| format!("n{n}.test")).collect();
    let (one, two) = (Dns::new(&[]), Dns::new(&[]));
    for name in &names {
        one.says(name, Says::Silence);
        two.says(name, home());
    }
    let (folder, origin) = (Folder::new(), sink());
    let edge = by_name(&folder, &[&one, &two], origin.address, &names);
    let began = Instant::now();
    for name in &names {
        assert!(is_spliced(&edge, name));
    }
    // The first three names wait for it, and later it is asked by one question in five seconds.
    let waited = names.iter().filter(|name| one.asked(name) > 0).count();
    let probes = began.elapsed().as_secs() as usize / 5 + 1;
    assert!(waited <= 3 + probes, "{waited} of 30, {probes} probes");
    // It counts again as soon as it answers.
    one.says("n0.test", Says::NxDomain);
    one.says("back.test", home());
    two.says("back.test", Says::Addresses(ips(&[AWAY]), 0));
    let edge = by_name(&folder, &[&one, &two], origin.address, &["back.test".to_owned()]);
    assert!(is_spliced(&edge, "back.test"));
}

#[test]
fn a_resolver_that_misses_one_name_counts_for_others() {
    let elsewhere = || Says::Addresses(ips(&[AWAY]), 60);
    let one = Dns::new(&[("lost.test", Says::Silence), ("internal.test", home())]);
    let two = Dns::new(&[("lost.test", home()), ("internal.test", elsewhere())]);
    let (folder, origin) = (Folder::new(), sink());
    let names = ["lost.test".to_owned(), "internal.test".to_owned()];
    let edge = by_name(&folder, &[&one, &two], origin.address, &names);
    assert!(is_spliced(&edge, "lost.test"));
    assert!(is_spliced(&edge, "internal.test"), "what the first says counts");
}

#[test]
fn a_family_that_is_not_answered_is_not_waited_for() {
    let dns = Dns::new(&[
        ("four.test", Says::OneFamily(false, ips(&[HOME]))),
        ("six.test", Says::OneFamily(true, ips(&["::1"]))),
    ]);
    let folder = Folder::new();
    let origin = sink();
    let edge = |name: &str, to| by_name(&folder, &[&dns], to, &[name.to_owned()]);
    let said = ask_quickly(RESOLVER, || edge("four.test", origin.address), "four.test");
    assert!(said.starts_with("spliced"), "{said}");
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        eprintln!("skipped: a_family_that_is_not_answered_is_not_waited_for: no IPv6");
        return;
    };
    let to = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().for_each(drop));
    let said = ask_quickly(RESOLVER, || edge("six.test", to), "six.test");
    assert!(said.starts_with("spliced"), "{said}");
}

#[test]
fn a_late_family_joins_the_dial() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        eprintln!("skipped: a_late_family_joins_the_dial: no IPv6");
        return;
    };
    let to = listener.local_addr().unwrap();
    let late = Says::FamilyLate(true, Duration::from_millis(500), ips(&[AWAY, "::1"]));
    let dns = Dns::new(&[("late.test", late)]);
    let folder = Folder::new();
    let edge = by_name(&folder, &[&dns], to, &["late.test".to_owned()]);
    let taken = thread::spawn(move || (0..2).for_each(|_| drop(listener.accept())));
    // The IPv4 address refuses before the other is known.
    assert!(is_spliced(&edge, "late.test"));
    // Both are in the cache.
    assert!(is_spliced(&edge, "late.test"));
    assert_eq!(dns.questions("late.test"), 2, "one question a family");
    taken.join().unwrap();
}

#[test]
fn no_such_name_is_soon_asked_again() {
    let dns = Dns::new(&[("new.test", Says::Denied(3_600))]);
    let (folder, origin) = (Folder::new(), sink());
    let edge = by_name(&folder, &[&dns], origin.address, &["new.test".to_owned()]);
    assert!(ask(&edge, "new.test").0.contains("no address"));
    let asked = dns.questions("new.test");
    assert!(ask(&edge, "new.test").0.contains("no address"));
    assert_eq!(dns.questions("new.test"), asked, "it is remembered for some seconds");
    dns.says("new.test", home());
    until("another answer", || is_spliced(&edge, "new.test").then_some(()));
}

#[test]
fn a_name_whose_addresses_fail_is_asked_again() {
    let dns = Dns::new(&[("moved.test", Says::Addresses(ips(&[AWAY, "127.0.0.78"]), 3_600))]);
    dns.says("single.test", Says::Addresses(ips(&[AWAY]), 3_600));
    let (folder, origin) = (Folder::new(), sink());
    let names = ["moved.test".to_owned(), "single.test".to_owned()];
    let edge = by_name(&folder, &[&dns], origin.address, &names);
    for name in &names {
        assert!(ask(&edge, name).0.starts_with("failed"));
        dns.says(name, home());
        // One answer holds for a second, whatever fails.
        until("the new address", || is_spliced(&edge, name).then_some(()));
        assert!(is_spliced(&edge, name), "it is remembered");
    }
    // It is no more than one question a family each second.
    dns.says("down.test", Says::Addresses(ips(&[AWAY]), 3_600));
    let edge = by_name(&folder, &[&dns], origin.address, &["down.test".to_owned()]);
    let began = Instant::now();
    for _ in 0..50 {
        assert!(ask(&edge, "down.test").0.starts_with("failed"));
    }
    let most = 2 * (began.elapsed().as_secs() as usize + 2);
    assert!(dns.questions("down.test") <= most, "{} of {most}", dns.questions("down.test"));
}

#[test]
fn a_reload_forgets_addresses() {
    let origin = sink();
    let dns = Dns::new(&[("app.test", home())]);
    let folder = Folder::new();
    let edge = by_name(&folder, &[&dns], origin.address, &["app.test".to_owned()]);
    assert!(is_spliced(&edge, "app.test"));
    assert!(is_spliced(&edge, "app.test"));
    let asked = dns.questions("app.test");
    assert_eq!(asked, 2, "one question a family");
    edge.signal(Signal::HUP);
    until("a question after the reload", || {
        ask(&edge, "app.test");
        (dns.questions("app.test") > asked).then_some(())
    });
}

#[test]
fn edns_is_left_out_for_a_server_that_does_not_know_it() {
    let names: Vec<String> = (0..4).map(|n| format!("n{n}.test")).collect();
    let dns = Dns::new(&[]);
    names.iter().for_each(|name| dns.says(name, Says::NoEdns(ips(&[HOME]))));
    let (folder, origin) = (Folder::new(), sink());
    let edge = by_name(&folder, &[&dns], origin.address, &names);
    for name in &names {
        let (said, _) = ask(&edge, name);
        assert!(said.starts_with("spliced"), "{said}");
    }
    assert!(dns.questions("n0.test") > 2, "with and without");
    assert_eq!(dns.questions("n3.test"), 2, "it is remembered: one question a family");
    // FORMERR to both stays an error.
    dns.says("broken.test", Says::Exactly(1, vec![("broken.test", Data::Alias("x.test"))]));
    let edge = by_name(&folder, &[&dns], origin.address, &["broken.test".to_owned()]);
    assert!(ask(&edge, "broken.test").0.contains("error response"));
}

#[test]
fn a_dot_at_the_end_of_an_upstreams_name_is_no_part_of_it_elsewhere() {
    let pki = Pki::new();
    let leaf = pki.server("origin", &["dotted.test"], Kind::P256);
    let origin = Upstream::https(leaf);
    let dns = Dns::new(&[("dotted.test", home())]);
    let upstream = format!("https://dotted.test.:{}", origin.address.port());
    let rule = pki.terminate(&upstream, &format!("upstream_ca = \"{}\"", pki.text("ca.pem")));
    let config = format!("workers = 1\n{LISTENER}{}\n{rule}", dns_table(&[&dns]));
    let edge = Edge::start_whole(&pki.folder, &config, |_| ());
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    assert_eq!(get(&mut client, "/").status, 200);
}

/// An application at this address that answers each request on a connection with its tag.
fn app(ip: &str, port: u16, tag: u8) -> u16 {
    let listener = TcpListener::bind((ip, port)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let response = [&b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"[..], &[tag]].concat();
    let serve = move |stream: TcpStream| {
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        // A head without a body ends in an empty line.
        for _ in lines.map_while(Result::ok).filter(String::is_empty) {
            if (&stream).write_all(&response).is_err() {
                return;
            }
        }
    };
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, serve) = (stream.unwrap(), serve.clone());
            thread::spawn(move || serve(stream));
        }
    });
    port
}

#[test]
fn kept_connections_follow_a_name_under_constant_load() {
    let pki = Pki::new();
    let port = app(HOME, 0, b'1');
    app("127.0.0.2", port, b'2');
    let dns = Dns::new(&[("moving.test", Says::Addresses(ips(&[HOME]), 1))]);
    let rule = pki.terminate(&format!("http://moving.test:{port}"), "");
    let config = format!("workers = 1\n{LISTENER}{}\n{rule}", dns_table(&[&dns]));
    let edge = Edge::start_whole(&pki.folder, &config, |_| ());
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    let mut ask = || {
        let heard = get(&mut client, "/");
        assert_eq!(heard.status, 200, "{heard:?}");
        heard.body
    };
    assert_eq!(ask(), b"1");
    dns.says("moving.test", Says::Addresses(ips(&["127.0.0.2"]), 1));
    // No dial needs the name meanwhile, for the old address goes on answering.
    until("a request at the new address", || {
        let body = ask();
        thread::sleep(Duration::from_millis(20));
        (body == b"2").then_some(())
    });
}

/// The held request is on the old connection when that gets no more, and is answered there.
#[test]
fn an_http2_connection_to_an_address_that_has_left_gets_no_more_streams() {
    let pki = Pki::new();
    let held = Arc::new(AtomicBool::new(true));
    let released = held.clone();
    let app = two::app(100, None, move |(request, mut respond)| {
        let held = held.clone();
        Box::pin(async move {
            while request.uri().path() == "/held" && held.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            two::say(&mut respond, "here");
        })
    });
    let dns = Dns::new(&[("moving.test", Says::Addresses(ips(&[HOME]), 1))]);
    let upstream = format!("http://moving.test:{}", app.address.port());
    let rule = pki.terminate(&upstream, "upstream_http2 = \"on\"");
    let config = format!("workers = 1\n{LISTENER}{}\n{rule}", dns_table(&[&dns]));
    let edge = Edge::start_whole(&pki.folder, &config, |_| ());
    two::run(async {
        let mut client = Two::connect(&pki, edge.address()).await;
        let mut other = Two::connect(&pki, edge.address()).await;
        let held = tokio::spawn(async move { other.get("/held").await });
        assert_eq!(client.get("/").await.unwrap().0, 200);
        dns.says("moving.test", Says::Addresses(ips(&[AWAY]), 1));
        // Nobody is at the new address.
        while client.get("/").await.unwrap().0 == 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        released.store(false, Ordering::SeqCst);
        let (status, body) = held.await.unwrap().unwrap();
        assert_eq!((status, &body[..]), (200, &b"here"[..]));
    });
}
