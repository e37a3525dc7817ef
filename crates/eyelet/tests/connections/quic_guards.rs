//! Guards of flows of QUIC: hellos of another connection, moves to places with other rules, forged
//! datagrams and ICMP messages, strangers in a full table, reloads that take a listener away.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::thread;

use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use rustix::process::Signal;

use super::quic_flows::{ACCESS_DENIED, BYTES, Relay, Scene, Weather, answer, first_datagram};
use crate::support::program::skip;
use crate::support::upstream::vacant;
use crate::support::{A_WHILE, until};

/// Datagrams of a download before something happens to it.
const SOME: usize = 150;

fn another_listener(address: SocketAddr) -> String {
    format!("[[listener]]\naddress = \"{address}\"\nquic = true\n")
}

/// Asks by a relay that moves, waits until it has, and returns the bytes that its flow passed to
/// the client.
fn passed_to_a_client_that_moves(scene: &Scene, weather: Weather) -> u64 {
    let relay = Relay::start(scene.edge.address(), weather);
    let client = scene.client(relay.port, "host.test");
    // The flow ends by its idle timeout, whether the client has all or gets nothing more.
    let line = scene.line("host.test");
    assert!(relay.moves.load(Ordering::Relaxed) > 0);
    client.signal(Signal::KILL);
    line["bytes_to_client"].as_u64().unwrap()
}

/// Both connections come from one address, as from a browser that keeps its socket.
#[test]
fn two_connections_of_one_address_are_decided_each() {
    let Some(scene) = Scene::new(&[], "") else { return };
    let relay = Relay::start(scene.edge.address(), Weather::default());
    assert_eq!(scene.ask(relay.port, "host.test")["bytes"], BYTES);
    let said = scene.ask(relay.port, "bad.test");
    assert_eq!(said["code"], ACCESS_DENIED, "{said}");
    let lines = [scene.line("host.test"), scene.line("bad.test")];
    assert_eq!(lines.each_ref().map(|line| &line["outcome"]), ["spliced", "refused"]);
    assert_eq!(lines[0]["client"], lines[1]["client"]);
    assert_eq!(lines[1]["datagrams_to_upstream"], 0, "{}", lines[1]);
}

/// Rules may ask for the listener.
#[test]
fn a_client_moves_within_its_listener_only() {
    let [other] = vacant();
    let Some(scene) = Scene::new(&[], &another_listener(other)) else { return };
    let moves_to = Some((Ipv4Addr::LOCALHOST.into(), other));
    let weather = Weather { moves_each: Some(SOME), moves_to, ..Weather::default() };
    let passed = passed_to_a_client_that_moves(&scene, weather);
    assert!(passed < BYTES as u64, "{passed}");
}

#[test]
fn a_client_moves_within_its_address_where_rules_ask_for_it() {
    const ASKS: &str =
        "[[rule]]\nname = \"inside\"\nclient = \"10.0.0.0/8\"\naction = \"refuse\"\n";
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let home = IpAddr::V4(Ipv4Addr::LOCALHOST);
    for (more, from, passes) in [("", OTHER, true), (ASKS, home, true), (ASKS, OTHER, false)] {
        let Some(scene) = Scene::new(&[], more) else { return };
        let moves_to = Some((from, scene.edge.address()));
        let weather = Weather { moves_each: Some(SOME), moves_to, ..Weather::default() };
        let passed = passed_to_a_client_that_moves(&scene, weather);
        assert_eq!(passed >= BYTES as u64, passes, "to {from}, {more:?}: {passed}");
    }
}

/// A raw socket. `None`: that needs root.
fn raw(protocol: rustix::net::Protocol) -> Option<OwnedFd> {
    let made = socket(AddressFamily::INET, SocketType::RAW, Some(protocol));
    if made.is_err() {
        skip("forged packets need root");
    }
    made.ok()
}

fn send_raw(from: &OwnedFd, bytes: &[u8], to: SocketAddrV4) {
    assert_eq!(sendto(from, bytes, SendFlags::empty(), &to), Ok(bytes.len()));
}

/// Nobody has port 0. An answer to it would fail, and turn off GSO for all others.
#[test]
fn a_datagram_from_port_0_begins_nothing() {
    let Some(raw) = raw(ipproto::UDP) else { return };
    let Some(scene) = Scene::new(&[], "") else { return };
    let SocketAddr::V4(edge) = scene.edge.address() else { panic!("{}", scene.edge.address()) };
    let first = first_datagram(&scene, "bad.test");
    // Without a checksum (RFC 768).
    let numbers = [0, edge.port(), 8 + first.len() as u16, 0];
    let header: Vec<u8> = numbers.into_iter().flat_map(u16::to_be_bytes).collect();
    send_raw(&raw, &[&header[..], &first].concat(), edge);
    assert_eq!(scene.ask(scene.edge.port(), "host.test")["bytes"], BYTES);
    scene.line("host.test");
    assert_eq!(scene.edge.lines().len(), 1, "{:#?}", scene.edge.lines());
    // From another port it does.
    let numbers = [9, edge.port(), 8 + first.len() as u16, 0];
    let header: Vec<u8> = numbers.into_iter().flat_map(u16::to_be_bytes).collect();
    send_raw(&raw, &[&header[..], &first].concat(), edge);
    assert_eq!(scene.line("bad.test")["client"], "127.0.0.1:9");
}

/// An ICMP message about a datagram of the edge to the server, as a router sends it.
fn icmp(kind: [u8; 2], mtu: u16, from: u16, to: u16) -> Vec<u8> {
    const LOCALHOST: [u8; 4] = [127, 0, 0, 1];
    let mut message = [&kind[..], &[0; 4], &mtu.to_be_bytes()].concat();
    // The IPv4 header, without options, of 1,228 bytes of UDP; then the head of UDP's.
    message.extend([0x45, 0, 4, 0xcc, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    message.extend([LOCALHOST, LOCALHOST].as_flattened());
    message.extend([from, to, 1208, 0].into_iter().flat_map(u16::to_be_bytes));
    let words = message.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let sum: u32 = words.sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

/// The local port of the edge's connected socket to this port.
fn port_of_upstream(scene: &Scene) -> u16 {
    let table = format!("/proc/{}/net/udp", scene.edge.pid().as_raw_nonzero());
    let to = format!("0100007F:{:04X}", scene.server_port);
    // The kernel leaves a socket out while others come and go.
    until("the edge's socket", || {
        let table = std::fs::read_to_string(&table).unwrap();
        let line = table.lines().find(|line| line.split_whitespace().nth(2) == Some(&to))?;
        let from = line.split_whitespace().nth(1).unwrap();
        Some(u16::from_str_radix(from.split_once(':').unwrap().1, 16).unwrap())
    })
}

/// A router on the way says that a datagram was too long, which the client finds out by itself.
/// That nobody listens there ends a flow, from the same router.
#[test]
fn a_datagram_that_is_too_long_for_the_way_ends_no_flow() {
    const TOO_LONG: [u8; 2] = [3, 4];
    const PORT_UNREACHABLE: [u8; 2] = [3, 3];
    /// That of no route of loopback, so that others keep theirs.
    const MTU: u16 = u16::MAX;
    let Some(raw) = raw(ipproto::ICMP) else { return };
    for (kind, ends) in [(TOO_LONG, false), (PORT_UNREACHABLE, true)] {
        let Some(scene) = Scene::new(&[], "") else { return };
        let weather = Weather { stops_at: Some(SOME), ..Weather::default() };
        let relay = Relay::start(scene.edge.address(), weather);
        let client = scene.client(relay.port, "host.test");
        relay.wait_stop();
        let message = icmp(kind, MTU, port_of_upstream(&scene), scene.server_port);
        send_raw(&raw, &message, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
        if ends {
            let line = scene.line("host.test");
            assert!(line["reason"].as_str().unwrap().contains("refused"), "{line}");
            client.signal(Signal::KILL);
            continue;
        }
        relay.go_on();
        assert_eq!(answer(client)["bytes"], BYTES);
        assert_eq!(scene.line("host.test")["outcome"], "spliced");
    }
}

/// First datagrams from made-up addresses, while there is room for few connections: they end each
/// other, and no download that has begun.
#[test]
fn strangers_end_each_other_where_connections_are_at_their_limit() {
    const STRANGERS: u8 = 200;
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let more = format!(
        "connections_max = 8\nquic_idle_timeout = \"30s\"\n\
         [[rule]]\nsni = \"flood.test\"\naction = \"splice\"\nupstream = \"{}\"\n",
        silent.local_addr().unwrap()
    );
    let Some(scene) = Scene::new(&[], &more) else { return };
    let first = first_datagram(&scene, "flood.test");
    let weather = Weather { stops_at: Some(SOME), ..Weather::default() };
    let downloads = [(); 3].map(|()| {
        let relay = Relay::start(scene.edge.address(), weather);
        let client = scene.client(relay.port, "host.test");
        relay.wait_stop();
        (relay, client)
    });
    for n in 0..STRANGERS {
        let stranger = UdpSocket::bind((Ipv4Addr::new(127, 7, n, 1), 0)).unwrap();
        stranger.send_to(&first, scene.edge.address()).unwrap();
        thread::sleep(A_WHILE / 100);
    }
    // Those that are still there wait for an answer, which takes three seconds.
    let is_stranger = |line: &serde_json::Value| line["sni"] == "flood.test";
    let ended = || scene.edge.count(is_stranger);
    until("strangers that end", || (ended() >= usize::from(STRANGERS) / 2).then_some(()));
    let ended = scene.edge.lines().into_iter().find(|line| line["sni"] == "host.test");
    assert_eq!(ended, None, "a download has ended");
    for (relay, client) in downloads {
        relay.go_on();
        assert_eq!(answer(client)["bytes"], BYTES);
    }
}

/// A listener goes and comes again by reloads. Its flow outlives both, new clients come when it is
/// there, and only then.
#[test]
fn a_listener_goes_and_comes_again() {
    let [address] = vacant();
    let there = another_listener(address);
    let Some(scene) = Scene::new(&[], &format!("quic_idle_timeout = \"30s\"\n{there}")) else {
        return;
    };
    let weather = Weather { stops_at: Some(SOME), ..Weather::default() };
    let relay = Relay::start(address, weather);
    let client = scene.client(relay.port, "host.test");
    relay.wait_stop();
    scene.reload(2, scene.server_port, "quic_idle_timeout = \"30s\"\n");
    scene.edge.wait_log(&format!("stopped listening on {address} for QUIC"));
    let first = first_datagram(&scene, "bad.test");
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(&first, address).unwrap();
    stranger.set_read_timeout(Some(A_WHILE)).unwrap();
    stranger.recv(&mut [0; 2048]).unwrap_err();
    scene.reload(3, scene.server_port, &format!("quic_idle_timeout = \"30s\"\n{there}"));
    // Its client waits for 30 seconds at most.
    relay.go_on();
    assert_eq!(answer(client)["bytes"], BYTES);
    // Each worker has a socket there: clients of several ports reach both, and the first ones, too,
    // which the flow keeps while it is idle.
    for _ in 0..4 {
        assert_eq!(scene.ask(address.port(), "host.test")["bytes"], BYTES);
        assert_eq!(scene.ask(address.port(), "bad.test")["code"], ACCESS_DENIED);
    }
    assert_eq!(scene.edge.count(|line| line["sni"] == "bad.test"), 4);
}
