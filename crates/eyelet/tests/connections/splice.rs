//! Spliced connections: bytes and ends pass unchanged, names are resolved and checked. Both ends
//! are sockets of the tests.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};

use crate::support;
use crate::support::hello::server_flight;
use crate::support::upstream::{dns, nobody};
use crate::support::{
    A_WHILE, Edge, End, Folder, Hello, SOON, Upstream, alert_of, ending, expect, noise, records,
    settled, until,
};

fn rule(upstream: &str, more: &str) -> String {
    format!(
        "[[rule]]\nname = \"one\"\nsni = \"host.test\"\naction = \"splice\"\n\
         upstream = \"{upstream}\"\n{more}\n"
    )
}

/// An edge before an upstream that the test plays.
struct Pair {
    edge: Edge,
    upstream: Upstream,
    _folder: Folder,
}

impl Pair {
    fn new(more: &str) -> Self {
        let folder = Folder::new();
        let upstream = Upstream::by_hand();
        let edge = Edge::start(&folder, &rule(&upstream.address.to_string(), more));
        Self { edge, upstream, _folder: folder }
    }

    /// Client and upstream of one connection, after hello and answer.
    fn connected(&self) -> (TcpStream, TcpStream) {
        let mut client = self.edge.connect();
        let hello = Hello::named("host.test").bytes();
        client.write_all(&hello).unwrap();
        let mut upstream = self.upstream.take();
        expect(&mut upstream, &hello);
        upstream.write_all(&server_flight()).unwrap();
        expect(&mut client, &server_flight());
        (client, upstream)
    }
}

#[test]
fn the_upstream_gets_every_byte_as_it_was_sent() {
    let plain = Hello::named("host.test").message();
    let name_at = plain.windows(4).position(|four| four == b"host").unwrap();
    let big = Hello::named("host.test").padded_to(20_000).message();
    let early = [0x17, 3, 3, 0, 0x20].iter().copied().chain([0x44; 32]).collect::<Vec<u8>>();
    let key_shares = Hello::named("host.test").extension(0x6a6a, &[7; 1600]).message();
    // The limit is 64 KiB of records: four headers of five bytes.
    let largest = Hello::named("host.test").padded_to(65_536 - 20).message();
    let each: Vec<usize> = (1..plain.len()).collect();
    let table: Vec<(&str, Vec<u8>, usize)> = vec![
        ("one write", records(&plain, &[]), usize::MAX),
        ("1-byte writes", records(&plain, &[]), 1),
        (
            "as large as with post-quantum key shares, in two writes",
            records(&key_shares, &[]),
            1400,
        ),
        ("two records, cut before the name", records(&plain, &[60]), usize::MAX),
        ("two records, cut in the name", records(&plain, &[name_at + 3]), usize::MAX),
        ("two records in two writes", records(&plain, &[60]), 65),
        ("1-byte records", records(&plain, &each), usize::MAX),
        ("1-byte records, 1-byte writes", records(&plain, &each), 1),
        ("20 kB in two records", records(&big, &[]), 4096),
        ("64 KiB", records(&largest, &[]), 16 * 1024),
        ("upper case", Hello::named("HOST.Test").bytes(), usize::MAX),
        (
            "early data in the same write",
            [records(&plain, &[]), early.clone()].concat(),
            usize::MAX,
        ),
        ("early data in its own write", [records(&plain, &[]), early].concat(), plain.len() + 5),
        ("garbage behind", [records(&plain, &[]), noise(5000, 9)].concat(), usize::MAX),
    ];
    // A thousand writes may take their time.
    let pair = Pair::new("[limits]\nhello_timeout = \"60s\"");
    for (label, bytes, write_bytes) in table {
        let mut client = pair.edge.connect();
        for piece in bytes.chunks(write_bytes) {
            client.write_all(piece).unwrap();
            thread::yield_now();
        }
        let mut upstream = pair.upstream.take();
        expect(&mut upstream, &bytes);
        upstream.write_all(&server_flight()).unwrap();
        expect(&mut client, &server_flight());
        let address = client.local_addr().unwrap();
        drop(client);
        assert_eq!(ending(&mut upstream, SOON), (vec![], End::Fin), "{label}");
        drop(upstream);
        let line = pair.edge.line_of(address);
        assert_eq!(line["outcome"], "spliced", "{label}: {line}");
        assert_eq!(line["sni"], "host.test", "{label}: {line}");
        assert_eq!(line["rule"], "one", "{label}: {line}");
        assert_eq!(line["bytes_to_upstream"], bytes.len(), "{label}: {line}");
        assert_eq!(line["bytes_to_client"], server_flight().len(), "{label}: {line}");
    }
}

#[test]
fn a_half_closed_connection_stays_useful() {
    let pair = Pair::new("");
    let sent = noise(1 << 20, 5);

    let (mut client, mut upstream) = pair.connected();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(ending(&mut upstream, SOON), (vec![], End::Fin));
    thread::scope(|scope| {
        scope.spawn(|| {
            upstream.write_all(&sent).unwrap();
            upstream.shutdown(Shutdown::Write).unwrap();
        });
        assert!(ending(&mut client, SOON) == (sent.clone(), End::Fin), "client closed first");
    });

    let (mut client, mut upstream) = pair.connected();
    upstream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(ending(&mut client, SOON), (vec![], End::Fin));
    thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(&sent).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        assert!(ending(&mut upstream, SOON) == (sent.clone(), End::Fin), "upstream closed first");
    });
}

/// A client that has said all it has to say in its first segment, end included.
#[test]
fn an_end_right_behind_the_hello_is_passed_on() {
    let pair = Pair::new("");
    for _ in 0..10 {
        let mut client = pair.edge.connect();
        let hello = Hello::named("host.test").bytes();
        client.write_all(&hello).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut upstream = pair.upstream.take();
        assert_eq!(ending(&mut upstream, SOON), (hello, End::Fin));
        upstream.write_all(&server_flight()).unwrap();
        drop(upstream);
        assert_eq!(ending(&mut client, SOON), (server_flight(), End::Fin));
    }
}

#[test]
fn rules_may_be_about_a_listener() {
    let folder = Folder::new();
    let (one, two) = (Upstream::by_hand(), Upstream::by_hand());
    let config = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nname = \"one\"\n\
         [[listener]]\naddress = \"[::1]:0\"\nname = \"two\"\n\
         [[rule]]\nlistener = \"one\"\nsni = \"host.test\"\naction = \"splice\"\n\
         upstream = \"{}\"\n\
         [[rule]]\nlistener = \"two\"\naction = \"splice\"\nupstream = \"{}\"\n",
        one.address, two.address
    );
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: rules_may_be_about_a_listener: this host has no ::1");
        return;
    }
    let edge = Edge::start_whole(&folder, &config, |_| ());
    let mut client = support::edge::connect(edge.addresses()[0]);
    client.write_all(&Hello::named("host.test").bytes()).unwrap();
    one.take();
    // The second listener's rules ask nothing of a hello, so that it is blind.
    let client = support::edge::connect(edge.addresses()[1]);
    let from = client.local_addr().unwrap();
    two.take();
    drop(client);
    let line = edge.line_of(from);
    assert_eq!(line["listener"], "two", "{line}");
}

#[test]
fn a_reset_is_passed_on_as_a_reset() {
    let pair = Pair::new("");
    for client_resets in [true, false] {
        let (client, upstream) = pair.connected();
        let address = client.local_addr().unwrap();
        let (one, mut other) = if client_resets { (client, upstream) } else { (upstream, client) };
        support::reset(one);
        let (rest, end) = ending(&mut other, SOON);
        assert_eq!((rest.len(), end), (0, End::Rst), "client resets: {client_resets}");
        let line = pair.edge.line_of(address);
        assert_eq!(line["outcome"], "spliced", "{line}");
        let reason = line["reason"].as_str().unwrap();
        let who = if client_resets { "client" } else { "upstream" };
        assert!(reason.contains("reset") && reason.contains(who), "{line}");
    }
}

#[test]
fn an_upstream_that_refuses_is_an_alert_and_a_line() {
    let folder = Folder::new();
    let (_socket, address) = nobody();
    let edge = Edge::start(&folder, &rule(&address.to_string(), ""));
    let mut client = edge.connect();
    client.write_all(&Hello::named("host.test").bytes()).unwrap();
    let (bytes, end) = ending(&mut client, SOON);
    assert_eq!((alert_of(&bytes), end), (Some(80), End::Fin), "{bytes:?}");
    let line = edge.only_line();
    assert_eq!(line["outcome"], "failed", "{line}");
    assert_eq!(line["rule"], "one", "{line}");
    assert!(line["reason"].as_str().unwrap().contains("refused"), "{line}");
}

/// A listener whose queue is full: the kernel drops what comes, so that a dial hangs.
fn deaf() -> (rustix::fd::OwnedFd, std::net::SocketAddr, Vec<TcpStream>) {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    rustix::net::bind(&socket, &any).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let address = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
    let mut fill = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, A_WHILE) {
        fill.push(stream);
        assert!(fill.len() < 64, "the queue never fills");
    }
    (socket, address, fill)
}

#[test]
fn an_upstream_that_does_not_answer_is_given_up() {
    let folder = Folder::new();
    let (_socket, address, _fill) = deaf();
    let limits = "[limits]\nconnect_timeout = \"300ms\"";
    let edge = Edge::start(&folder, &rule(&address.to_string(), limits));
    let mut client = edge.connect();
    client.write_all(&Hello::named("host.test").bytes()).unwrap();
    let (bytes, end) = ending(&mut client, SOON);
    assert_eq!((alert_of(&bytes), end), (Some(80), End::Fin), "{bytes:?}");
    let line = edge.only_line();
    assert_eq!(line["outcome"], "failed", "{line}");
    assert!(line["duration_ms"].as_u64().unwrap() >= 250, "{line}");
}

#[test]
fn an_idle_pair_is_closed_in_time() {
    let pair = Pair::new("[limits]\nidle_timeout = \"2s\"");
    let mut client = pair.edge.connect();
    // Its server says nothing, so that it does not matter how late this test looks.
    client.write_all(&Hello::named("host.test").bytes()).unwrap();
    let mut upstream = pair.upstream.take();
    let (rest, end) = ending(&mut client, SOON);
    assert!(rest.is_empty() && end != End::Open, "{rest:?} {end:?}");
    assert!(ending(&mut upstream, SOON).1 != End::Open);
    let line = pair.edge.only_line();
    assert!(line["reason"].as_str().unwrap().contains("idle"), "{line}");
    assert!(line["duration_ms"].as_u64().unwrap() >= 2_000, "{line}");
}

#[test]
fn a_pair_that_moves_is_not_idle() {
    let pair = Pair::new("[limits]\nidle_timeout = \"3s\"");
    until("a pair that never rested for 2 s", || {
        let (mut client, mut upstream) = pair.connected();
        let mut moved = Instant::now();
        // Pacing: a byte each 500 ms, over twice the timeout, in one direction.
        for _ in 0..13 {
            thread::sleep(Duration::from_millis(500));
            let passed = client.write_all(b"x").and_then(|()| upstream.read_exact(&mut [0]));
            // A busy machine may have kept this test from its byte for too long.
            if moved.elapsed() > Duration::from_secs(2) {
                return None;
            }
            passed.unwrap();
            moved = Instant::now();
        }
        Some(())
    });
}

#[test]
fn much_goes_both_ways_at_once() {
    let pair = Pair::new("");
    let (mut client, mut upstream) = pair.connected();
    let (up, down) = (noise(32 << 20, 1), noise(32 << 20, 2));
    let (mut client_reads, mut upstream_reads) =
        (client.try_clone().unwrap(), upstream.try_clone().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(&up).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        scope.spawn(|| {
            upstream.write_all(&down).unwrap();
            upstream.shutdown(Shutdown::Write).unwrap();
        });
        scope.spawn(|| assert!(ending(&mut upstream_reads, SOON) == (up.clone(), End::Fin)));
        assert!(ending(&mut client_reads, SOON) == (down.clone(), End::Fin));
    });
}

#[test]
fn a_client_that_does_not_read_costs_no_memory() {
    let pair = Pair::new("");
    let (mut client, mut upstream) = pair.connected();
    let before = pair.edge.rss_bytes();
    let sent = noise(64 << 20, 3);
    thread::scope(|scope| {
        scope.spawn(|| {
            upstream.write_all(&sent).unwrap();
            upstream.shutdown(Shutdown::Write).unwrap();
        });
        thread::sleep(A_WHILE);
        let grown = pair.edge.rss_bytes().saturating_sub(before);
        assert!(grown < 4 << 20, "{grown} bytes more for a stalled connection");
        assert!(ending(&mut client, SOON) == (sent.clone(), End::Fin));
    });
}

#[test]
fn an_idle_pair_holds_two_descriptors_and_no_pipe() {
    let pair = Pair::new("");
    drop(pair.connected());
    until("the first to be gone", || (!pair.edge.lines().is_empty()).then_some(()));
    let before = pair.edge.descriptors_at_rest();
    let held: Vec<_> = (0..50).map(|_| pair.connected()).collect();
    pair.edge.wait_descriptors(before + 100);
    assert!(pair.edge.descriptors() >= before + 100);
    drop(held);
    pair.edge.wait_descriptors(before);
}

#[test]
fn a_blind_list_dials_at_once_and_passes_whatever_comes() {
    let folder = Folder::new();
    let by_hand = Upstream::by_hand();
    let blind = format!("[[rule]]\naction = \"splice\"\nupstream = \"{}\"", by_hand.address);
    let edge = Edge::start(&folder, &blind);
    let mut client = edge.connect();
    let address = client.local_addr().unwrap();
    let mut upstream = by_hand.take();
    upstream.write_all(b"220 I speak first\r\n").unwrap();
    expect(&mut client, b"220 I speak first\r\n");
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    expect(&mut upstream, b"GET / HTTP/1.1\r\n\r\n");
    drop((client, upstream));
    let line = edge.line_of(address);
    assert_eq!(line["outcome"], "spliced", "{line}");
    assert!(line["sni"].is_null() && line["ja4"].is_null(), "{line}");
}

/// `{sni}` with the system's own idea of localhost.
#[test]
fn the_name_localhost_opens_nothing_unless_allowed() {
    for (allow, allowed) in [("", false), ("upstream_allow = [\"127.0.0.0/8\", \"::1\"]", true)] {
        let folder = Folder::new();
        let echo = Upstream::echo();
        let rule = format!(
            "[[rule]]\nsni = \"localhost\"\naction = \"splice\"\n\
             upstream = \"{{sni}}:{}\"\n{allow}",
            echo.address.port()
        );
        let edge = Edge::start(&folder, &rule);
        let mut client = edge.connect();
        let hello = Hello::named("localhost").bytes();
        client.write_all(&hello).unwrap();
        if allowed {
            expect(&mut client, &hello);
        } else {
            refused_as_an_upstream(&mut client, &edge);
            assert_eq!(echo.accepted(), 0);
        }
    }
}

fn refused_as_an_upstream(client: &mut TcpStream, edge: &Edge) {
    let address = client.local_addr().unwrap();
    let (bytes, end) = ending(client, SOON);
    assert!(alert_of(&bytes).is_some() && end == End::Fin, "{bytes:?} {end:?}");
    let line = edge.line_of(address);
    assert!(line["outcome"] == "failed" || line["outcome"] == "refused", "{line}");
    assert!(!line["reason"].as_str().unwrap().is_empty(), "{line}");
    assert_eq!(line["bytes_to_upstream"], 0, "{line}");
}

#[test]
fn a_name_opens_no_way_to_addresses_that_are_not_public() {
    let folder = Folder::new();
    let echo = Upstream::echo();
    let dns = dns(&[
        ("metadata.test", &[[169, 254, 169, 254]]),
        ("loopback.test", &[[127, 0, 0, 1]]),
        ("private.test", &[[10, 1, 2, 3]]),
        ("unspecified.test", &[[0, 0, 0, 0]]),
        ("mixed.test", &[[169, 254, 169, 254], [127, 9, 9, 9]]),
        ("good.test", &[[127, 9, 9, 9]]),
    ]);
    let rules = format!(
        "[[rule]]\nsni = \"*.test\"\naction = \"splice\"\nupstream = \"{{sni}}:{}\"\n\
         upstream_allow = [\"127.9.9.9\"]\n[dns]\nservers = [\"{}\"]",
        echo.address.port(),
        dns.address
    );
    let edge = Edge::start(&folder, &rules);
    let names = ["metadata.test", "loopback.test", "private.test", "unspecified.test"];
    // One such address beside an allowed one is enough; a name that does not exist is no way.
    for name in names.into_iter().chain(["mixed.test", "no.test"]) {
        let mut client = edge.connect();
        client.write_all(&Hello::named(name).bytes()).unwrap();
        refused_as_an_upstream(&mut client, &edge);
    }
    assert_eq!(echo.accepted(), 0);

    // Allowed by the list: dialled, where nobody listens on that address.
    let mut client = edge.connect();
    client.write_all(&Hello::named("good.test").bytes()).unwrap();
    let address = client.local_addr().unwrap();
    ending(&mut client, SOON);
    let line = edge.line_of(address);
    assert!(line["reason"].as_str().unwrap().contains("Connection refused"), "{line}");
}

#[test]
fn each_address_of_a_name_is_tried() {
    let folder = Folder::new();
    let echo = Upstream::echo();
    // Nobody listens on the first two.
    let dns = dns(&[("many.test", &[[127, 9, 9, 8], [127, 9, 9, 9], [127, 0, 0, 1]])]);
    let rules = format!(
        "[[rule]]\nsni = \"many.test\"\naction = \"splice\"\nupstream = \"{{sni}}:{}\"\n\
         upstream_allow = [\"127.0.0.0/8\"]\n[dns]\nservers = [\"{}\"]",
        echo.address.port(),
        dns.address
    );
    let edge = Edge::start(&folder, &rules);
    let mut client = edge.connect();
    let hello = Hello::named("many.test").bytes();
    client.write_all(&hello).unwrap();
    expect(&mut client, &hello);
}

/// The kernel keeps the silent to itself, and Eyelet pays for none of them.
#[test]
fn with_deferred_accept_a_client_is_seen_when_it_speaks() {
    let folder = Folder::new();
    let upstream = Upstream::by_hand();
    let config = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\ndefer_accept = true\n{}\
         [limits]\nhello_timeout = \"15s\"\n",
        rule(&upstream.address.to_string(), "")
    );
    let edge = Edge::start_whole(&folder, &config, |_| ());
    let before = settled(|| edge.sockets());
    let silent: Vec<TcpStream> = (0..20).map(|_| edge.connect()).collect();
    let mut client = edge.connect();
    thread::sleep(A_WHILE);
    assert_eq!(edge.sockets(), before);
    let hello = Hello::named("host.test").bytes();
    client.write_all(&hello).unwrap();
    let mut server = upstream.take();
    expect(&mut server, &hello);
    server.write_all(&server_flight()).unwrap();
    expect(&mut client, &server_flight());
    drop((client, server));
    assert_eq!(edge.only_line()["outcome"], "spliced");
    // They are handed over after all when `hello_timeout` is over, or gone.
    drop(silent);
    edge.wait_sockets(before);
}

/// To an upstream that gave no cookie it is an ordinary connect, refusals included.
#[test]
fn fast_open_needs_nothing_of_the_upstream() {
    let pair = Pair::new("fast_open = true");
    for _ in 0..3 {
        pair.connected();
    }
    let folder = Folder::new();
    let (_port, nobody) = nobody();
    let edge = Edge::start(&folder, &rule(&nobody.to_string(), "fast_open = true"));
    let mut client = edge.connect();
    client.write_all(&Hello::named("host.test").bytes()).unwrap();
    refused_as_an_upstream(&mut client, &edge);
}
