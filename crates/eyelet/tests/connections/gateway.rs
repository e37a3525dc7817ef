//! Intercepted connections for real: netfilter redirects them or delivers them by TPROXY, over
//! IPv4 and IPv6, and they go where they were meant to. Needs root, and says so where it is not.

use std::io::Write;
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::ops::Range;
use std::process::Command;
use std::time::Instant;

use super::asks::write_users;
use crate::support::edge::connect;
use crate::support::hello::server_flight;
use crate::support::namespaces::{CLIENT, GATEWAY, GATEWAY_OUT, SERVER, socket_address};
use crate::support::pki::Kind;
use crate::support::upstream::{dns, vacant};
use crate::support::{
    A_WHILE, Edge, End, Folder, Hello, Net, Pki, Place, SOON, Upstream, alert_of, ending, expect,
    output, reset, until,
};

const REDIRECT: &str = r#"
[[listener]]
address = "0.0.0.0:8443"
kind = "redirect"
[[listener]]
address = "[::]:8443"
kind = "redirect"
"#;

const REDIRECT_NFT: &str = r#"
table inet eyelet {
  chain prerouting {
    type nat hook prerouting priority dstnat
    iifname "lan0" tcp dport 443 redirect to :8443
  }
}
"#;

const TPROXY: &str = r#"
[[listener]]
address = "0.0.0.0:8443"
kind = "tproxy"
[[listener]]
address = "[::]:8443"
kind = "tproxy"
"#;

const TPROXY_NFT: &str = r#"
table inet eyelet {
  chain prerouting {
    type filter hook prerouting priority mangle
    meta l4proto tcp socket transparent 1 meta mark set 1 accept
    iifname "lan0" tcp dport 443 meta mark set 1 tproxy to :8443
  }
}
"#;

const TO_DESTINATION: &str = r#"
[[rule]]
name = "named"
sni = "host.test"
action = "splice"
upstream = "destination"
"#;

/// One connection from the client to the server's port 443, there and back; the address that
/// the server sees.
fn passes(net: &Net, edge: &Edge, family: usize) -> String {
    let destination = socket_address(SERVER[family], 443);
    let origin = net.listen(Place::Server, destination);
    let mut client = net.connect(Place::Client, destination);
    let hello = Hello::named("host.test").bytes();
    client.write_all(&hello).unwrap();
    let (mut server, from) = origin.take();
    expect(&mut server, &hello);
    server.write_all(&server_flight()).unwrap();
    expect(&mut client, &server_flight());
    let own = client.local_addr().unwrap();
    drop(client);
    assert_eq!(ending(&mut server, SOON), (vec![], End::Fin));
    drop(server);
    let line = edge.line_of(own);
    assert_eq!(line["outcome"], "spliced", "{line}");
    assert_eq!(line["destination"], destination.to_string(), "{line}");
    assert_eq!(line["upstream"], destination.to_string(), "{line}");
    from.ip().to_string()
}

#[test]
fn redirected_connections_go_where_they_were_meant_to() {
    let Some(net) = Net::new() else { return };
    net.nft(REDIRECT_NFT);
    let folder = Folder::new();
    let edge = net.edge(&folder, &format!("{REDIRECT}{TO_DESTINATION}"));
    for (family, gateway) in GATEWAY_OUT.iter().enumerate() {
        assert_eq!(passes(&net, &edge, family), *gateway);
    }
}

#[test]
fn a_rule_can_tell_redirected_connections_by_their_destination() {
    let Some(net) = Net::new() else { return };
    net.nft(REDIRECT_NFT);
    let folder = Folder::new();
    let refuse = "[[rule]]\nname = \"not there\"\ndestination = [\"198.51.100.0/24:443\", \
                  \"[2001:db8::/32]:443\"]\naction = \"refuse\"\n";
    let edge = net.edge(&folder, &format!("{REDIRECT}{refuse}{TO_DESTINATION}"));
    for server in SERVER {
        let mut client = net.connect(Place::Client, socket_address(server, 443));
        // By destination alone, before a hello is read.
        let (got, end) = ending(&mut client, SOON);
        assert_eq!((alert_of(&got), end), (Some(49), End::Fin), "access_denied");
        let line = edge.line_of(client.local_addr().unwrap());
        assert_eq!(line["rule"], "not there", "{line}");
        assert_eq!(line["destination"], socket_address(server, 443).to_string(), "{line}");
    }
}

#[test]
fn tproxy_keeps_the_destination_and_either_source() {
    let Some(net) = Net::new() else { return };
    net.nft(TPROXY_NFT);
    net.route_marked();
    let folder = Folder::new();
    let edge = net.edge(&folder, &format!("{TPROXY}{TO_DESTINATION}"));
    for (family, gateway) in GATEWAY_OUT.iter().enumerate() {
        assert_eq!(passes(&net, &edge, family), *gateway);
    }
    drop(edge);
    let edge = net.edge(&folder, &format!("{TPROXY}{TO_DESTINATION}source = \"client\"\n"));
    for (family, client) in CLIENT.iter().enumerate() {
        assert_eq!(passes(&net, &edge, family), *client);
    }
}

/// An upstream of one family, a client of the other.
#[test]
fn a_client_of_another_family_cannot_be_the_source() {
    let Some(net) = Net::new() else { return };
    net.nft(TPROXY_NFT);
    net.route_marked();
    let folder = Folder::new();
    let rule = format!(
        "[[rule]]\naction = \"splice\"\nsource = \"client\"\nupstream = \"[{}]:443\"\n",
        SERVER[1]
    );
    let edge = net.edge(&folder, &format!("{TPROXY}{rule}"));
    let mut client = net.connect(Place::Client, socket_address(SERVER[0], 443));
    assert_eq!(ending(&mut client, SOON), (vec![], End::Fin));
    let line = edge.line_of(client.local_addr().unwrap());
    assert_eq!(line["outcome"], "failed", "{line}");
    assert_eq!(line["reason"], "upstream: it is not of the client's address family");
}

#[test]
fn dialling_an_intercepting_listener_itself_is_a_loop() {
    let Some(net) = Net::new() else { return };
    let folder = Folder::new();
    for listeners in [REDIRECT, TPROXY] {
        let edge = net.edge(&folder, &format!("{listeners}{TO_DESTINATION}"));
        for gateway in GATEWAY {
            let mut client = net.connect(Place::Client, socket_address(gateway, 8443));
            let _ = client.write_all(&Hello::named("host.test").bytes());
            assert_eq!(ending(&mut client, SOON).0, b"");
            let line = edge.line_of(client.local_addr().unwrap());
            assert_eq!(line["outcome"], "refused", "{line}");
            assert!(line["reason"].as_str().unwrap().starts_with("loop: "), "{line}");
        }
        assert_eq!(edge.lines().len(), 2, "nothing was dialled: {:#?}", edge.lines());
    }
}

/// Netfilter that also redirects what the gateway itself sends: the usual mistake.
#[test]
fn a_gateway_that_redirects_itself_notices() {
    let Some(net) = Net::new() else { return };
    net.nft(REDIRECT_NFT);
    net.nft(
        "table inet own {
           chain output {
             type nat hook output priority -100
             tcp dport 443 redirect to :8443
           }
         }",
    );
    let folder = Folder::new();
    let edge = net.edge(&folder, &format!("{REDIRECT}{TO_DESTINATION}"));
    for server in SERVER {
        let mut client = net.connect(Place::Client, socket_address(server, 443));
        client.write_all(&Hello::named("host.test").bytes()).unwrap();
        assert_eq!(ending(&mut client, SOON).0, b"");
        let looped = edge.line("the loop", |line| {
            let reason = line["reason"].as_str().unwrap();
            let destination = socket_address(server, 443).to_string();
            reason.starts_with("loop: this edge") && line["destination"] == destination
        });
        assert_eq!(looped["outcome"], "refused", "{looped}");
        let own = client.local_addr().unwrap();
        drop(client);
        edge.line_of(own);
    }
    // Each race of a dial and its own arrival, on two threads, costs one turn more.
    let lines = edge.lines().len();
    assert!((4..16).contains(&lines), "{lines} connections of two clients");
}

/// Two listeners, each the upstream of the other: needs no network at all.
#[test]
fn two_listeners_that_lead_to_each_other_notice() {
    let folder = Folder::new();
    let [one, other] = vacant();
    let listener = |name: &str, address: SocketAddr| {
        format!("[[listener]]\nname = \"{name}\"\naddress = \"{address}\"\n")
    };
    let rule = |name: &str, keys: &str, address: SocketAddr| {
        format!(
            "[[rule]]\nlistener = \"{name}\"\n{keys}action = \"splice\"\n\
             upstream = \"{address}\"\n"
        )
    };
    // By name, and blind.
    for keys in ["sni = \"host.test\"\n", ""] {
        let listeners = listener("one", one) + &listener("other", other);
        let rules = rule("one", keys, other) + &rule("other", keys, one);
        let limits = "[limits]\nconnections_max = 500\n";
        let edge = Edge::start_whole(&folder, &format!("{listeners}{rules}{limits}"), |_| ());
        let mut client = connect(one);
        client.write_all(&Hello::named("host.test").bytes()).unwrap();
        let (got, _) = ending(&mut client, SOON);
        assert_eq!(alert_of(&got), (!keys.is_empty()).then_some(49), "access_denied");
        let looped = edge.line("the loop", |line| line["outcome"] == "refused");
        let reason = looped["reason"].as_str().unwrap();
        assert!(reason.ends_with("is a listener of this edge, and it came from this edge"));
        let own = client.local_addr().unwrap();
        drop(client);
        edge.line_of(own);
        assert!((2..16).contains(&edge.lines().len()), "{:#?}", edge.lines());
    }
}

/// A client that has reset its connection ends it in the whole loop: each dial is closed before its
/// other end is accepted.
#[test]
fn a_loop_ends_with_its_client() {
    let folder = Folder::new();
    let [one, other] = vacant();
    let mut config = String::from("workers = 1\n");
    for (name, address, upstream) in [("one", one, other), ("other", other, one)] {
        config += &format!(
            "[[listener]]\nname = \"{name}\"\naddress = \"{address}\"\n\
             [[rule]]\nlistener = \"{name}\"\naction = \"splice\"\nupstream = \"{upstream}\"\n"
        );
    }
    let edge = Edge::start_whole(&folder, &config, |_| ());
    for _ in 0..50 {
        let client = connect(one);
        let own = client.local_addr().unwrap();
        reset(client);
        edge.line_of(own);
    }
    let mut before = 0;
    until("an end of the loop", || {
        std::thread::sleep(A_WHILE);
        let lines = edge.lines().len();
        (std::mem::replace(&mut before, lines) == lines).then_some(())
    });
}

/// From one listener to another, by a rule of each.
#[test]
fn one_listener_may_lead_to_another() {
    let folder = Folder::new();
    let [one, other] = vacant();
    let origin = Upstream::by_hand();
    let config = format!(
        "[[listener]]\nname = \"one\"\naddress = \"{one}\"\n\
         [[listener]]\nname = \"other\"\naddress = \"{other}\"\n\
         proxy_protocol_from = \"127.0.0.0/8\"\n\
         [[rule]]\nlistener = \"one\"\naction = \"splice\"\nupstream = \"{other}\"\n\
         proxy_protocol = \"v2\"\n\
         [[rule]]\nlistener = \"other\"\naction = \"splice\"\nupstream = \"{}\"\n",
        origin.address
    );
    let edge = Edge::start_whole(&folder, &config, |_| ());
    for _ in 0..20 {
        let mut client = connect(one);
        client.write_all(b"hello").unwrap();
        expect(&mut origin.take(), b"hello");
        drop(client);
    }
    assert_eq!(edge.count(|line| line["outcome"] == "refused"), 0, "{:#?}", edge.lines());
}

/// A socket bound to `from`, which may have been used just now, and connected to `to`.
fn connect_again(from: SocketAddr, to: SocketAddr) -> Option<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
    let family = if to.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket(family, SocketType::STREAM, None).ok()?;
    sockopt::set_socket_reuseaddr(&socket, true).ok()?;
    bind(&socket, &from).ok()?;
    connect(&socket, &to).ok()?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(SOON)).ok()?;
    Some(stream)
}

/// Two sockets of one host never have the same two ends at once: who comes from a port of ours when
/// our socket is closed is a client.
#[test]
fn a_client_with_a_port_that_was_ours_is_served() {
    let folder = Folder::new();
    let [one, mut other, third] = vacant();
    // The connections that others have closed in the last minute may hold most ports of 127.0.0.1
    // (TIME-WAIT). There are few of ::1.
    if std::net::UdpSocket::bind("[::1]:0").is_ok() {
        other.set_ip(Ipv6Addr::LOCALHOST.into());
    }
    let origin = Upstream::by_hand();
    // One worker: a dial and its own arrival do not race.
    let mut config = String::from("workers = 1\n");
    for (name, address, upstream) in
        [("one", one, other), ("other", other, third), ("third", third, origin.address)]
    {
        config += &format!(
            "[[listener]]\nname = \"{name}\"\naddress = \"{address}\"\n\
             [[rule]]\nlistener = \"{name}\"\naction = \"splice\"\nupstream = \"{upstream}\"\n"
        );
    }
    let edge = Edge::start_whole(&folder, &config, |_| ());
    // By the first listener it is one listener too many.
    let mut loops = 0;
    let mut port_of_ours = || -> SocketAddr {
        let mut client = connect(one);
        client.write_all(b"hello").unwrap();
        assert_eq!(ending(&mut client, SOON).0, b"");
        let own = client.local_addr().unwrap();
        drop(client);
        edge.line_of(own);
        loops += 1;
        let looped = until("the loop's line", || {
            let lines = edge.lines();
            lines.into_iter().filter(|line| line["outcome"] == "refused").nth(loops - 1)
        });
        looped["client"].as_str().unwrap().parse().unwrap()
    };
    // The same port, the same listener. That the old connection is forgotten may take a moment,
    // and a socket of another test may have the port for longer.
    let mut client = until("a port that was ours", || {
        let port = port_of_ours();
        let began = Instant::now();
        while began.elapsed() < A_WHILE {
            if let Some(client) = connect_again(port, other) {
                return Some(client);
            }
            std::thread::sleep(A_WHILE / 30);
        }
        None
    });
    client.write_all(b"hello").unwrap();
    let mut origin = origin.take();
    expect(&mut origin, b"hello");
    origin.write_all(b"answer").unwrap();
    expect(&mut client, b"answer");
}

/// A gateway that dials names, on a listener that does not know what netfilter has redirected.
const BY_NAME: &str = r#"
[[listener]]
address = "0.0.0.0:8443"
[[rule]]
action = "splice"
upstream = "{sni}:443"
upstream_allow = "198.51.100.0/24"
[limits]
connections_max = 500
"#;

/// A name that leads to `ip`, asked for by three clients: each loop is cut after so many turns.
fn loops_by_name(net: &Net, ip: [u8; 4], turns: Range<usize>) {
    let folder = Folder::new();
    let server = net.at(Place::Gateway, || dns(&[("host.test", &[ip])]));
    let config = format!("{BY_NAME}[dns]\nservers = \"{}\"\n", server.address);
    let edge = net.edge(&folder, &config);
    for turn in 1..=3 {
        let mut client = net.connect(Place::Client, socket_address(GATEWAY[0], 8443));
        client.write_all(&Hello::named("host.test").bytes()).unwrap();
        assert_eq!(alert_of(&ending(&mut client, SOON).0), Some(49), "access_denied");
        let own = client.local_addr().unwrap();
        drop(client);
        edge.line_of(own);
        let cut = |line: &serde_json::Value| {
            line["reason"] == "loop: this edge sent this hello itself, and it came back"
        };
        until("the loop to be cut", || (edge.count(cut) == turn).then_some(()));
        // The client's own connection, and what came of it.
        let lines = turn * (1 + turns.start)..turn * (1 + turns.end);
        until("all lines", || lines.contains(&edge.lines().len()).then_some(()));
    }
}

#[test]
fn a_direct_listener_that_netfilter_redirects_to_notices() {
    let Some(net) = Net::new() else { return };
    net.nft(
        "table ip own {
           chain output {
             type nat hook output priority -100
             tcp dport 443 redirect to :8443
           }
         }",
    );
    loops_by_name(&net, [198, 51, 100, 10], 1..2);
}

/// The router has this edge's public address, sends what is for it here, and puts its own address
/// in the place of whoever is here too: hairpin NAT. It may be chance once, and is cut later.
#[test]
fn a_hairpin_is_cut() {
    let Some(net) = Net::new() else { return };
    net.script(
        Place::Server,
        "sysctl -qw net.ipv4.ip_forward=1
         nft add table ip hair
         nft \"add chain ip hair in { type nat hook prerouting priority -100; }\"
         nft add rule ip hair in ip daddr 198.51.100.99 tcp dport 443 dnat to 10.78.0.1:8443
         nft \"add chain ip hair out { type nat hook postrouting priority 100; }\"
         nft add rule ip hair out ip daddr 10.78.0.1 tcp dport 8443 masquerade",
    );
    loops_by_name(&net, [198, 51, 100, 99], 33..40);
}

/// The blocks of the manual paste, as a firewall and as a configuration.
#[test]
fn the_manual_can_be_pasted() {
    let Some(net) = Net::new() else { return };
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/gateway.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    // The files that its configurations name.
    let pki = Pki::new();
    let folder = &pki.folder;
    pki.server("proxy", &["proxy.example"], Kind::P256);
    pki.write_authority(folder, "clients");
    write_users(folder, &[("alice", "one"), ("release-bot", "two")]);
    let mut pasted = 0;
    for block in manual.split("\n```").skip(1).step_by(2) {
        let (language, text) = block.split_once('\n').unwrap();
        match language {
            "nft" => {
                net.nft(text);
                net.nft("flush ruleset");
            }
            "toml" => {
                let file = folder.write("pasted.toml", text);
                let mut check = Command::new(env!("CARGO_BIN_EXE_eyelet"));
                let said = output(check.arg("check").arg(file));
                assert!(said.status.success(), "{}\n{text}", said.text);
            }
            _ if text.contains("fwmark") => net.script(Place::Gateway, text),
            _ => continue,
        }
        pasted += 1;
    }
    assert_eq!(pasted, 12, "blocks of the manual");
    assert!(manual.contains(REDIRECT_NFT.lines().nth(4).unwrap()));
    assert!(manual.contains(TPROXY_NFT.trim()));
}

/// Another protocol, in which the server speaks first, passes a list of rules without names; a rule
/// in shadow with a name changes nothing of it.
#[test]
fn a_blind_rule_passes_other_protocols() {
    let Some(net) = Net::new() else { return };
    net.nft(&REDIRECT_NFT.replace("443 redirect", "{ 443, 25 } redirect"));
    let folder = Folder::new();
    let blind = "[[rule]]\nname = \"mail\"\ndestination = \"*:25\"\naction = \"splice\"\n\
                 upstream = \"destination\"\n";
    let shadow = "[[rule]]\nshadow = true\nsni = \"evil.test\"\naction = \"refuse\"\n";
    for above in ["", shadow] {
        let edge = net.edge(&folder, &format!("{REDIRECT}{above}{blind}{TO_DESTINATION}"));
        for server in SERVER {
            let destination = socket_address(server, 25);
            let origin = net.listen(Place::Server, destination);
            let mut client = net.connect(Place::Client, destination);
            let (mut mail, _) = origin.take();
            mail.write_all(b"220 mail.test\r\n").unwrap();
            expect(&mut client, b"220 mail.test\r\n");
            drop((client, mail));
            assert!(origin.is_left_alone(A_WHILE));
        }
        let line = edge.line("mail", |line| line["rule"] == "mail");
        assert_eq!(line["sni"], serde_json::Value::Null, "{line}");
    }
}

/// Connections that the gateway has opened with bytes in the SYN.
pub fn fast_opened(net: &Net) -> u64 {
    let statistics = net
        .at(Place::Gateway, || std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap());
    let mut lines = statistics.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut found = names.split(' ').zip(values.split(' '));
    found.find(|(name, _)| *name == "TCPFastOpenActive").unwrap().1.parse().unwrap()
}

#[test]
fn by_fast_open_the_hello_goes_with_the_syn() {
    let Some(net) = Net::new() else { return };
    net.nft(REDIRECT_NFT);
    // Any listener takes bytes in a SYN that has its cookie.
    net.script(Place::Server, "sysctl -qw net.ipv4.tcp_fastopen=1027");
    net.script(Place::Gateway, "sysctl -qw net.ipv4.tcp_fastopen=1");
    let folder = Folder::new();
    let config = format!("{REDIRECT}{TO_DESTINATION}fast_open = true\n");
    let edge = net.edge(&folder, &config);
    for _ in 0..3 {
        passes(&net, &edge, 0);
    }
    assert_eq!(fast_opened(&net), 2, "the first has asked for the cookie");
    // A server that is gone is found out only when the hello is on its way.
    let gone = socket_address(SERVER[0], 443);
    // Another test's child has the listener until it becomes its program.
    let refuses = || net.at(Place::Gateway, || TcpStream::connect(gone).is_err().then_some(()));
    until("nobody listens", refuses);
    let mut client = net.connect(Place::Client, gone);
    client.write_all(&Hello::named("host.test").bytes()).unwrap();
    assert_eq!(ending(&mut client, SOON), (vec![], End::Rst));
    let line = edge.line_of(client.local_addr().unwrap());
    assert_eq!(line["reason"], "upstream: Connection refused (os error 111)", "{line}");
}
