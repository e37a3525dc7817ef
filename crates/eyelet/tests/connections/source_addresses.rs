//! Upstreams that are dialled from addresses of this host, in a network namespace where one address
//! has 1,000 local ports. Needs root, and says so where it is not.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};

use serde_json::Value;

use crate::admin::{ADMIN, get, metrics};
use crate::support::client::{Offer, handshake, reset};
use crate::support::hello::server_flight;
use crate::support::namespaces::{GATEWAY, Origin, SERVER, socket_address};
use crate::support::web::head;
use crate::support::{Folder, Hello, Net, Pki, Place, expect, output, until};

const PORTS: usize = 1_000;
const SOURCES: [&str; 2] = ["10.78.0.8", "10.78.0.9"];
/// No address of the gateway.
const FOREIGN: &str = "10.78.0.77";

/// A network whose gateway has these addresses, and few ports.
fn network() -> Option<Net> {
    let net = Net::new()?;
    let [one, other] = SOURCES;
    net.script(
        Place::Gateway,
        &format!(
            "sysctl -qw net.ipv4.ip_local_port_range=\"30000 30999\"
             ip addr add {one}/24 dev wan0
             ip addr add {other}/24 dev wan0"
        ),
    );
    Some(net)
}

fn config(keys: &str, more: &str) -> String {
    let upstream = socket_address(SERVER[0], 443);
    format!(
        "workers = 2\n{ADMIN}[[listener]]\naddress = \"{}:8443\"\n[[rule]]\nsni = \"host.test\"\n\
         action = \"splice\"\nupstream = \"{upstream}\"\n{keys}\n{more}",
        GATEWAY[0]
    )
}

/// A client that has said its hello.
fn ask(net: &Net) -> TcpStream {
    let mut client = net.connect(Place::Client, socket_address(GATEWAY[0], 8443));
    client.write_all(&Hello::named("host.test").bytes()).unwrap();
    client
}

/// A connection through the edge, and where it came from.
fn passes(net: &Net, origin: &Origin) -> (TcpStream, TcpStream, IpAddr) {
    let mut client = ask(net);
    let (mut server, from) = origin.take();
    expect(&mut server, &Hello::named("host.test").bytes());
    server.write_all(&server_flight()).unwrap();
    expect(&mut client, &server_flight());
    (client, server, from.ip())
}

fn metric(folder: &Folder, name: &str) -> f64 {
    let text = get(&folder.path().join("admin.sock"), "/metrics").body;
    let name = format!("eyelet_{name}");
    *metrics(&text).get(&name).unwrap_or_else(|| panic!("no {name} in\n{text}"))
}

fn check(net: &Net, folder: &Folder, config: &str) -> String {
    let file = folder.write("checked.toml", config);
    let mut command = net.command(Place::Gateway, env!("CARGO_BIN_EXE_eyelet"));
    output(command.arg("check").arg(file)).text
}

#[test]
fn two_addresses_hold_two_thousand_connections_to_one_upstream() {
    let Some(net) = network() else { return };
    let (folder, upstream) = (Folder::new(), socket_address(SERVER[0], 443));
    let origin = net.listen(Place::Server, upstream);
    let keys = "source_addresses = [\"10.78.0.8\", \"10.78.0.9\"]";
    let more = "[limits]\nconnections_max = 2001\n";
    let said = check(&net, &folder, &config(keys, more));
    assert!(said.contains("has 2000 local ports for connections to 198.51.100.10:443"), "{said}");
    assert!(said.contains("ok, 1 listener, 1 rule, 1 warning\n"), "{said}");

    let edge = net.edge(&folder, &config(keys, ""));
    let mut from: HashMap<IpAddr, usize> = HashMap::new();
    let mut open = Vec::new();
    for count in 1..=2 * PORTS {
        let (client, server, ip) = passes(&net, &origin);
        *from.entry(ip).or_default() += 1;
        open.push((client, server));
        let spread = SOURCES.map(|ip| from.get(&ip.parse().unwrap()).copied().unwrap_or(0));
        assert!(spread[0].abs_diff(spread[1]) <= 1, "{spread:?} after {count}");
        if count == 1_500 {
            assert!(!edge.log().contains("run short"), "three quarters are no shortage");
        }
    }
    assert_eq!(metric(&folder, "local_ports"), PORTS as f64);
    for ip in SOURCES {
        edge.wait_log(&format!("local ports run short: 800 of 1000 are in use from {ip}"));
        let name = format!("source_ports_used{{upstream=\"{upstream}\",source=\"{ip}\"}}");
        assert_eq!(metric(&folder, &name), PORTS as f64);
        assert_eq!(metric(&folder, &format!("source_up{{source=\"{ip}\"}}")), 1.0);
    }
    let document = get(&folder.path().join("admin.sock"), "/upstreams").body;
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["sources"][1]["ports_used"], PORTS, "{document}");

    let refused = ask(&net);
    let line = edge.line_of(refused.local_addr().unwrap());
    let reason = "no local port: all are in use to 198.51.100.10:443 from 10.78.0.8, 10.78.0.9; \
                  add one to `source_addresses`";
    assert_eq!((&line["outcome"], &line["reason"]), (&"failed".into(), &reason.into()), "{line}");

    // A reset leaves no TIME_WAIT: the port is free at once.
    let (client, server) = open.pop().unwrap();
    reset(server);
    edge.line_of(client.local_addr().unwrap());
    let _again = passes(&net, &origin);
    drop(open);
    let name = format!("source_ports_used{{upstream=\"{upstream}\",source=\"10.78.0.8\"}}");
    until("the counts to go down", || (metric(&folder, &name) <= 1.0).then_some(()));
    drop(ask(&net));
    edge.wait_log("of 1000 are in use\n");
}

/// Whoever ends a connection first keeps its port for a minute, unless the kernel may use it again.
#[test]
fn ports_in_time_wait_are_said_and_used_again_where_that_is_allowed() {
    let Some(net) = network() else { return };
    let (few, upstream) = (4, socket_address(SERVER[0], 443));
    net.script(Place::Gateway, "sysctl -qw net.ipv4.ip_local_port_range=\"30000 30003\"");
    let origin = net.listen(Place::Server, upstream);
    for (keys, others) in
        [("", " or"), ("source_addresses = \"10.78.0.8\"", ", 4 of 4 by other programs or")]
    {
        net.script(Place::Gateway, "sysctl -qw net.ipv4.tcp_tw_reuse=2");
        let folder = Folder::new();
        let edge = net.edge(&folder, &config(keys, ""));
        for _ in 0..few {
            let (client, mut server, _) = passes(&net, &origin);
            let from = client.local_addr().unwrap();
            drop(client);
            assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
            drop(server);
            edge.line_of(from);
        }
        let refused = ask(&net);
        let line = edge.line_of(refused.local_addr().unwrap());
        let reason = format!(
            "no local port: all are in use to {upstream}{others} in TIME_WAIT, which \
             net.ipv4.tcp_tw_reuse=1 cuts to a second; `source_addresses` gives it more"
        );
        assert_eq!(line["reason"], reason, "{line}");
        net.script(Place::Gateway, "sysctl -qw net.ipv4.tcp_tw_reuse=1");
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        let _again = passes(&net, &origin);
    }
}

#[test]
fn an_address_that_is_not_there_is_named_and_the_other_serves() {
    let Some(net) = network() else { return };
    let (folder, upstream) = (Folder::new(), socket_address(SERVER[0], 443));
    let origin = net.listen(Place::Server, upstream);
    let keys = format!("source_addresses = [\"{FOREIGN}\", \"{}\"]", SOURCES[0]);
    let said = check(&net, &folder, &config(&keys, ""));
    assert!(said.contains("10.78.0.77 is no address of this host"), "{said}");
    let edge = net.edge(&folder, &config(&keys, ""));
    let held: Vec<_> = (0..3).map(|_| passes(&net, &origin)).collect();
    assert!(held.iter().all(|(_, _, ip)| ip.to_string() == SOURCES[0]));
    let warning = "source_addresses: 10.78.0.77 cannot be dialled from: Cannot assign";
    edge.wait_log(warning);
    assert_eq!(edge.log().matches(warning).count(), 1, "{}", edge.log());
    assert_eq!(metric(&folder, "source_up{source=\"10.78.0.77\"}"), 0.0);
    assert_eq!(metric(&folder, "source_up{source=\"10.78.0.8\"}"), 1.0);

    // It comes, and is the least used.
    net.script(Place::Gateway, &format!("ip addr add {FOREIGN}/24 dev wan0"));
    net.script(Place::Gateway, &format!("ip addr del {}/24 dev wan0", SOURCES[0]));
    let (_, _, ip) = passes(&net, &origin);
    assert_eq!(ip.to_string(), FOREIGN);
    edge.wait_log("source_addresses: 10.78.0.77 can be dialled from again");

    // None is left.
    net.script(Place::Gateway, &format!("ip addr del {FOREIGN}/24 dev wan0"));
    let refused = ask(&net);
    let line = edge.line_of(refused.local_addr().unwrap());
    let reason = line["reason"].as_str().unwrap();
    assert!(reason.starts_with("no local port: source_addresses: 10.78.0."), "{line}");
}

/// A port of the usable address may be free later, so that is the reason. The ports of the other
/// one are nobody's.
#[test]
fn a_short_address_beside_one_that_is_not_there_is_the_reason() {
    let Some(net) = network() else { return };
    net.script(Place::Gateway, "sysctl -qw net.ipv4.ip_local_port_range=\"30000 30003\"");
    let (folder, upstream) = (Folder::new(), socket_address(SERVER[0], 443));
    let origin = net.listen(Place::Server, upstream);
    let keys = format!("source_addresses = [\"{FOREIGN}\", \"{}\"]", SOURCES[0]);
    let edge = net.edge(&folder, &config(&keys, ""));
    let _open: Vec<_> = (0..4).map(|_| passes(&net, &origin)).collect();
    for _ in 0..2 {
        let refused = ask(&net);
        let line = edge.line_of(refused.local_addr().unwrap());
        let reason = "no local port: all are in use to 198.51.100.10:443 from 10.78.0.8; add \
                      one to `source_addresses`";
        assert_eq!((&line["outcome"], &line["reason"]), (&"failed".into(), &reason.into()));
    }
}

/// Kept connections of HTTP upstreams, and checks, are dialled from them, too.
#[test]
fn requests_and_checks_come_from_the_addresses() {
    let Some(net) = network() else { return };
    let (pki, upstream) = (Pki::new(), socket_address(SERVER[0], 80));
    let origin = net.listen(Place::Server, upstream);
    let keys = format!("upstream_check = \"connect\"\nsource_addresses = \"{}\"", SOURCES[1]);
    let rule = pki.terminate(&format!("http://{upstream}"), &keys);
    let listener = format!("[[listener]]\naddress = \"{}:8443\"\n", GATEWAY[0]);
    let _edge = net.edge(&pki.folder, &format!("workers = 1\n{ADMIN}{listener}{rule}"));
    let (check, from) = origin.take();
    assert_eq!(from.ip().to_string(), SOURCES[1], "a check");
    drop(check);
    let socket = net.connect(Place::Client, socket_address(GATEWAY[0], 8443));
    let mut client = handshake(Offer::new(&pki).config(), socket, "app.test").unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    let answers = || {
        let (mut server, from) = origin.take();
        let mut head = [0; 14];
        // A check sends nothing.
        if server.read_exact(&mut head).is_err() {
            return None;
        }
        assert_eq!((&head, from.ip().to_string()), (b"GET / HTTP/1.1", SOURCES[1].to_owned()));
        server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        Some(server)
    };
    let server = until("the request at the server", answers);
    let name = format!("source_ports_used{{upstream=\"{upstream}\",source=\"{}\"}}", SOURCES[1]);
    until("the kept connection to count", || (metric(&pki.folder, &name) >= 1.0).then_some(()));
    drop((client, server));
    until("it to count no more", || (metric(&pki.folder, &name) < 1.0).then_some(()));
}

/// Sixteen requests come at once, and the host has eight ports for their upstream: those that find
/// none wait for the connections of the others.
#[test]
fn requests_wait_for_a_local_port() {
    let Some(net) = network() else { return };
    net.script(Place::Gateway, "sysctl -qw net.ipv4.ip_local_port_range=\"30000 30007\"");
    let (pki, upstream) = (Pki::new(), socket_address(SERVER[0], 80));
    let origin = net.listen(Place::Server, upstream);
    let rule = pki.terminate(&format!("http://{upstream}"), "");
    let listener = format!("[[listener]]\naddress = \"{}:8443\"\n", GATEWAY[0]);
    let limits = "[limits]\nconnect_timeout = \"1m\"\n";
    let edge = net.edge(&pki.folder, &format!("workers = 1\n{limits}{listener}{rule}"));
    let ask = || {
        let socket = net.connect(Place::Client, socket_address(GATEWAY[0], 8443));
        let mut client = handshake(Offer::new(&pki).config(), socket, "app.test").unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        client
    };
    let mut clients: Vec<_> = (0..16).map(|_| ask()).collect();
    let mut servers: Vec<_> = (0..8).map(|_| origin.take().0).collect();
    let serve = |server: &mut TcpStream| {
        let head = head(server);
        assert!(head.starts_with("GET / HTTP/1.1"), "{head}");
        server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    };
    // Each connection that has answered is the next one's.
    for _ in 0..2 {
        servers.iter_mut().for_each(serve);
    }
    for client in &mut clients {
        let mut line = [0; 15];
        client.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"HTTP/1.1 200 OK");
    }
    assert!(!edge.log().contains("panicked"), "{}", edge.log());
}

/// Without `source_addresses`, a connection that finds no port says what there is for it.
#[test]
fn a_connection_without_a_port_says_what_to_do() {
    let Some(net) = network() else { return };
    net.script(Place::Gateway, "sysctl -qw net.ipv4.ip_local_port_range=\"30000 30019\"");
    let (folder, upstream) = (Folder::new(), socket_address(SERVER[0], 443));
    let origin = net.listen(Place::Server, upstream);
    let edge = net.edge(&folder, &config("", ""));
    let _open: Vec<_> = (0..20).map(|_| passes(&net, &origin)).collect();
    for _ in 0..3 {
        let refused = ask(&net);
        let line = edge.line_of(refused.local_addr().unwrap());
        let reason = "no local port: all are in use to 198.51.100.10:443 or in TIME_WAIT, which \
                      net.ipv4.tcp_tw_reuse=1 cuts to a second; `source_addresses` gives it more";
        assert_eq!((&line["outcome"], &line["reason"]), (&"failed".into(), &reason.into()));
    }
    let said = "no local port: all are in use to 198.51.100.10:443 or in TIME_WAIT, which ";
    assert_eq!(edge.log().matches(said).count(), 1, "said once:\n{}", edge.log());
}
