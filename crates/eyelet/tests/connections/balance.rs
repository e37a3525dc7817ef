//! Spliced connections to one of several upstreams: by load, by the client's address, and over the
//! addresses of a name.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::admin::{ADMIN, get, metrics};
use crate::support::client::{Offer, echo};
use crate::support::dns::{Dns, Says};
use crate::support::edge::{LISTENER, eyelet};
use crate::support::upstream::{nobody, vacant};
use crate::support::{Edge, Folder, Hello, SOON, Upstream, expect, output, until};
use crate::upgrade::Scene;

/// A server that says one byte to each connection and keeps it until the client closes.
fn saying(address: SocketAddr, byte: u8) -> SocketAddr {
    let listener = TcpListener::bind(address).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let _ = stream.write_all(&[byte]);
                let mut piece = [0; 4096];
                while matches!(stream.read(&mut piece), Ok(1..)) {}
            });
        }
    });
    address
}

/// Loopback, this address of it, any port.
fn local(last: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, last], port))
}

fn rule(upstream: &str, more: &str) -> String {
    format!("[[rule]]\naction = \"splice\"\nupstream = {upstream}\n{more}\n")
}

/// Connects from this address: the open connection, and the byte that the upstream says.
fn connected(edge: &Edge, from: IpAddr) -> (TcpStream, u8) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
    socket.connect(&edge.address().into()).unwrap();
    let mut client = TcpStream::from(socket);
    client.set_read_timeout(Some(SOON)).unwrap();
    client.write_all(&Hello::named("host.test").bytes()).unwrap();
    let mut byte = [0];
    client.read_exact(&mut byte).unwrap();
    (client, byte[0])
}

const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[test]
fn open_connections_are_spread_and_a_dead_upstream_costs_nobody_his_connection() {
    let folder = Folder::new();
    let [one, other] = [b'1', b'2'].map(|byte| saying(local(1, 0), byte));
    let (_kept, dead) = nobody();
    let list = format!("[\"{one}\", \"{other}\", \"{dead}\"]");
    let edge = Edge::start(&folder, &rule(&list, ""));
    let open: Vec<_> = (0..40).map(|_| connected(&edge, HOME)).collect();
    let ones = open.iter().filter(|(_, byte)| *byte == b'1').count();
    // Of two the less loaded one is taken. With two that are up this is always the other one.
    assert!((15..=25).contains(&ones), "{ones} of 40");
    edge.wait_log(&format!("upstream {dead} is down: "));
    drop(open);
    let line = |line: &Value| line["upstream"] == one.to_string();
    until("lines of all", || (edge.lines().len() >= 40).then_some(()));
    assert_eq!(edge.count(line), ones);
    assert_eq!(edge.count(|line| line["outcome"] == "spliced"), 40, "{:?}", edge.lines());
    // What has ended counts no longer.
    let again: Vec<_> = (0..40).map(|_| connected(&edge, HOME)).collect();
    let ones = again.iter().filter(|(_, byte)| *byte == b'1').count();
    assert!((15..=25).contains(&ones), "{ones} of 40");
}

#[test]
fn a_client_stays_with_its_upstream_by_hash() {
    let folder = Folder::new();
    let list: Vec<String> =
        [b'1', b'2', b'3'].map(|byte| format!("\"{}\"", saying(local(1, 0), byte))).to_vec();
    let text = rule(&format!("[{}]", list.join(", ")), "upstream_hash = \"client\"");
    let edge = Edge::start(&folder, &text);
    let client = |last| IpAddr::from([127, 0, 1, last]);
    let before: Vec<u8> = (1..=20).map(|last| connected(&edge, client(last)).1).collect();
    let again: Vec<u8> = (1..=20).map(|last| connected(&edge, client(last)).1).collect();
    assert_eq!(before, again);
    let used: BTreeSet<u8> = before.into_iter().collect();
    assert!(used.len() > 1, "{used:?}");
}

#[test]
fn all_addresses_of_a_name_are_used_and_one_that_is_down_is_left_out() {
    let folder = Folder::new();
    // At several addresses at once: the kernel must not have given it away at one of them.
    let [port] = vacant().map(|address| address.port());
    let one = saying(local(2, port), b'1');
    let other = saying(local(3, one.port()), b'2');
    let found = [one.ip(), other.ip(), local(4, 0).ip()].to_vec();
    let dns = Dns::new(&[("app.test", Says::Addresses(found, 60))]);
    let text = rule(&format!("\"app.test:{}\"", one.port()), "");
    let text = format!("{text}[dns]\nservers = [\"{}\"]\n", dns.address);
    let edge = Edge::start(&folder, &text);
    let open: Vec<_> = (0..40).map(|_| connected(&edge, HOME)).collect();
    let ones = open.iter().filter(|(_, byte)| *byte == b'1').count();
    assert!((15..=25).contains(&ones), "{ones} of 40");
    let name = format!("app.test:{}", one.port());
    edge.wait_log(&format!("upstream {name} at {} is down: ", local(4, one.port())));
    assert!(!edge.log().contains(&format!("upstream {name} is down")), "{}", edge.log());
}

/// Also those that one dial would not come to.
#[test]
fn a_name_may_have_twenty_addresses() {
    const LAST: std::ops::Range<u8> = 10..30;
    let folder = Folder::new();
    let [port] = vacant().map(|address| address.port());
    for last in LAST {
        saying(local(last, port), last);
    }
    let found = LAST.map(|last| local(last, port).ip()).collect();
    let dns = Dns::new(&[("app.test", Says::Addresses(found, 60))]);
    let text = rule(&format!("\"app.test:{port}\""), "");
    let edge = Edge::start(&folder, &format!("{text}[dns]\nservers = [\"{}\"]\n", dns.address));
    let mut open = Vec::new();
    let mut seen = BTreeSet::new();
    until("a connection to each address", || {
        open.push(connected(&edge, HOME));
        seen.extend(open.last().map(|(_, byte)| *byte));
        (seen.len() == LAST.len()).then_some(())
    });
}

#[test]
fn a_reload_keeps_what_is_known_of_upstreams_that_stay() {
    let folder = Folder::new();
    let one = saying(local(1, 0), b'1');
    let (_kept, dead) = nobody();
    let list = format!("[\"{one}\", \"{dead}\"]");
    // Only the check brings it back, so that no pause ends meanwhile.
    let text = |name: &str| {
        let more = format!("upstream_check = \"connect\"\nname = \"{name}\"");
        format!("{LISTENER}{}", rule(&list, &more))
    };
    let file = folder.write("reloaded.toml", text("before"));
    let mut command = eyelet(&folder);
    command.arg("serve").arg(&file);
    let edge = Edge::spawn(command, 1);
    edge.wait_log(&format!("upstream {dead} is down: "));
    std::fs::write(&file, text("after")).unwrap();
    let said = output(eyelet(&folder).arg("reload").arg(&file));
    assert!(said.status.success(), "{said:?}");
    let open: Vec<_> = (0..20).map(|_| connected(&edge, HOME)).collect();
    assert!(open.iter().all(|(_, byte)| *byte == b'1'));
    assert_eq!(edge.log().matches("is down: ").count(), 1, "{}", edge.log());
}

/// The alert on local ports needs them, whoever chooses the address to dial from.
#[test]
fn ports_in_use_are_counted_without_source_addresses() {
    const OPEN: usize = 6;
    let folder = Folder::new();
    let upstreams = [b'1', b'2'].map(|byte| saying(local(1, 0), byte));
    let list = format!("[\"{}\", \"{}\"]", upstreams[0], upstreams[1]);
    let edge = Edge::start(&folder, &format!("{}{ADMIN}", rule(&list, "")));
    let open: Vec<_> = (0..OPEN).map(|_| connected(&edge, HOME)).collect();
    let used = || {
        let samples = metrics(&get(&folder.path().join("admin.sock"), "/metrics").body);
        assert!(samples["eyelet_local_ports"] > OPEN as f64);
        upstreams.map(|at| {
            samples[&format!("eyelet_source_ports_used{{upstream=\"{at}\",source=\"\"}}")] as usize
        })
    };
    let at = |wanted: u8| open.iter().filter(|(_, byte)| *byte == wanted).count();
    assert_eq!(used(), [at(b'1'), at(b'2')]);
    drop(open);
    until("no port in use", || (used() == [0, 0]).then_some(()));
}

/// Connections that are open at each upstream, as `/upstreams` says.
pub fn open_at(scene: &Scene, names: &[String; 2]) -> [f64; 2] {
    let text = get(&scene.pki.folder.path().join("admin.sock"), "/upstreams").body;
    let upstreams: Value = serde_json::from_str(&text).unwrap();
    let listed = upstreams["upstreams"].as_array().unwrap();
    names.each_ref().map(|name| {
        let of = listed.iter().filter(|one| one["upstream"] == name.as_str());
        of.map(|one| one["open"].as_f64().unwrap()).sum()
    })
}

/// Connections that are open at each upstream, as `/metrics` says.
fn gauges(scene: &Scene, names: &[String; 2]) -> [f64; 2] {
    let samples = metrics(&get(&scene.pki.folder.path().join("admin.sock"), "/metrics").body);
    names.each_ref().map(|name| {
        let gauge = format!("eyelet_upstream_connections{{upstream=\"{name}\"}}");
        *samples.get(&gauge).unwrap_or_else(|| panic!("no {gauge} in {samples:?}"))
    })
}

/// Otherwise a broker near its limit would look empty.
#[test]
fn an_upgrade_keeps_what_is_open_at_each_upstream() {
    const EACH: usize = 6;
    let upstreams = [(); 2].map(|()| Upstream::echo());
    let names = upstreams.each_ref().map(|upstream| upstream.address.to_string());
    let [one, other] = &names;
    let list = |scheme| format!("[\"{scheme}{one}\", \"{scheme}{other}\"]");
    let spliced = rule(&list(""), "name = \"many\"\nsni = \"many.test\"");
    let terminated = format!(
        "[[rule]]\nname = \"brokers\"\nsni = \"brokers.app.test\"\naction = \"terminate\"\n\
         certificate = \"edge.pem\"\nkey = \"edge.key\"\nupstream = {}\n",
        list("tcp://")
    );
    let more = format!("workers = 2\n{ADMIN}{spliced}{terminated}");
    let mut scene = Scene::with(&more);
    let hello = Hello::named("many.test").bytes();
    let mut spliced: Vec<TcpStream> = (0..EACH).map(|_| scene.edge.connect()).collect();
    for client in &mut spliced {
        client.write_all(&hello).unwrap();
        expect(client, &hello);
    }
    let offer = Offer::new(&scene.pki);
    let connect = |_| offer.connect(scene.address(), "brokers.app.test");
    let mut tls: Vec<_> = (0..EACH).map(connect).collect();
    tls.iter_mut().for_each(|client| echo(client, b"before"));
    let before = open_at(&scene, &names);
    assert_eq!(before.iter().sum::<f64>(), (2 * EACH) as f64);
    assert_eq!(gauges(&scene, &names), before);
    for extra in ["", "[[rule]]\nname = \"new\"\naction = \"refuse\"\nsni = \"new.test\"\n"] {
        // The second time each rule has another place.
        scene.write(&more.replacen("[[rule]]", &format!("{extra}[[rule]]"), 1));
        scene.upgrade_whole();
        tls.iter_mut().for_each(|client| echo(client, b"after"));
        assert_eq!([open_at(&scene, &names), gauges(&scene, &names)], [before; 2]);
    }
    drop(spliced);
    drop(tls);
    until("no open connection", || (open_at(&scene, &names) == [0.0; 2]).then_some(()));
    kill_process(*scene.later.last().unwrap(), Signal::TERM).unwrap();
    scene.edge.wait_log(&format!("0 accepted, {} taken over: ", 2 * EACH));
    let log = scene.edge.log();
    let handed_over = format!("{} accepted, {} handed over: ", 2 * EACH, 2 * EACH);
    assert!(log.contains(&handed_over), "{log}");
}
