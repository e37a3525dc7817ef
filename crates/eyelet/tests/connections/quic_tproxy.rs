//! QUIC that the gateway's kernel leads to the edge. By TPROXY the edge knows where it was sent,
//! and the server sees the gateway's address or the client's; names are checked as over TCP. By
//! REDIRECT the name alone leads on.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::quic_flows::{ACCESS_DENIED, BYTES, answer};
use crate::support::dns::Dns;
use crate::support::gate::addresses;
use crate::support::namespaces::{CLIENT, GATEWAY_OUT, Net, Place, SERVER, socket_address};
use crate::support::pki::Kind;
use crate::support::program::quic_go;
use crate::support::upstream::server_config;
use crate::support::{Folder, Pki, Talk};

const NFT: &str = r#"
table inet eyelet {
  chain prerouting {
    type filter hook prerouting priority mangle
    meta l4proto udp socket transparent 1 meta mark set 1 accept
    iifname "lan0" udp dport 443 meta mark set 1 tproxy to :443
  }
}
"#;

/// The kernel tells the address of a datagram, so the listener has the port that clients ask for.
const CONFIG: &str = r#"
[[listener]]
address = "0.0.0.0:443"
kind = "tproxy"
quic = true
[[listener]]
address = "[::]:443"
kind = "tproxy"
quic = true
[limits]
quic_idle_timeout = "1s"
[[rule]]
name = "named"
sni = "host.test"
action = "splice"
upstream = "destination"
"#;

#[test]
fn tproxy_leads_quic_to_its_destination_from_either_source() {
    let Some(program) = quic_go() else { return };
    let Some(net) = Net::new() else { return };
    net.nft(NFT);
    net.route_marked();
    let pki = Pki::new();
    pki.server("origin", &["host.test"], Kind::P256);
    let program = program.to_str().unwrap();
    for (more, seen) in [("", GATEWAY_OUT), ("source = \"client\"\n", CLIENT)] {
        let folder = Folder::new();
        let edge = net.edge(&folder, &format!("{CONFIG}{more}"));
        for (server, seen) in SERVER.iter().zip(seen) {
            let to = socket_address(server, 443).to_string();
            let mut command = net.command(Place::Server, program);
            command.args(["serve", &pki.text("origin.pem"), &pki.text("origin.key")]);
            let mut origin = Talk::start(command.arg(format!("at={to}")));
            origin.hear("443\n");
            let mut command = net.command(Place::Client, program);
            command.args(["ask", &to, "host.test", &BYTES.to_string(), &pki.text("ca.pem")]);
            let said = answer(Talk::start(&mut command));
            assert_eq!(said["bytes"], BYTES, "{to}: {said}");
            let line = edge.line(&to, |line| line["destination"] == to.as_str());
            assert_eq!((&line["outcome"], &line["upstream"]), (&"spliced".into(), &to.into()));
            let from = format!("from {}", socket_address(seen, 0));
            origin.hear(from.trim_end_matches('0'));
            origin.hang_up();
        }
    }
}

/// The server's TLS over TCP at the same address, for side handshakes. Returns how many it has had.
fn serve_tls(net: &Net, pki: &Pki) -> Arc<AtomicUsize> {
    let leaf = pki.server("origin", &["host.test"], Kind::P256);
    let config = server_config(leaf, rustls::ALL_VERSIONS);
    let count = Arc::<AtomicUsize>::default();
    let (listener, counted) =
        (net.listen(Place::Server, socket_address(SERVER[0], 443)), count.clone());
    // It ends with the test's process.
    std::thread::spawn(move || {
        loop {
            let (stream, _) = listener.accept();
            counted.fetch_add(1, Ordering::Relaxed);
            let session = rustls::ServerConnection::new(config.clone()).unwrap();
            let _ = rustls::StreamOwned::new(session, stream).read(&mut [0; 16]);
        }
    });
    count
}

/// By DNS, and by a handshake over TCP with the server that the client is on its way to.
#[test]
fn names_are_verified_for_quic() {
    let Some(program) = quic_go() else { return };
    let Some(net) = Net::new() else { return };
    net.nft(NFT);
    net.route_marked();
    let pki = Pki::new();
    let handshakes = serve_tls(&net, &pki);
    let dns = net.at(Place::Gateway, || {
        Dns::new(&[("host.test", addresses(&[SERVER[0]])), ("lie.test", addresses(&["192.0.2.1"]))])
    });
    let program = program.to_str().unwrap();
    let to = socket_address(SERVER[0], 443).to_string();
    let mut command = net.command(Place::Server, program);
    command.args(["serve", &pki.text("origin.pem"), &pki.text("origin.key")]);
    let mut origin = Talk::start(command.arg(format!("at={to}")));
    origin.hear("443\n");
    for evidence in ["dns", "certificate"] {
        let folder = Folder::new();
        let config = format!(
            "[[listener]]\naddress = \"0.0.0.0:443\"\nkind = \"tproxy\"\nquic = true\n\
             [[rule]]\nname = \"true\"\nsni_verified = true\nevidence = \"{evidence}\"\n\
             action = \"splice\"\nupstream = \"destination\"\n\
             [[rule]]\nname = \"lie\"\naction = \"refuse\"\nalert = \"access_denied\"\n\
             [evidence]\ntimeout = \"2s\"\nca = \"{}\"\n[dns]\nservers = \"{}\"\n\
             [limits]\nquic_idle_timeout = \"1s\"\n",
            pki.text("ca.pem"),
            dns.address
        );
        let edge = net.edge(&folder, &config);
        for (name, key, said) in
            [("host.test", "bytes", BYTES as u64), ("lie.test", "code", ACCESS_DENIED)]
        {
            let mut command = net.command(Place::Client, program);
            command.args(["ask", &to, name, &BYTES.to_string(), &pki.text("ca.pem")]);
            let answer = answer(Talk::start(&mut command));
            assert_eq!(answer[key], said, "{evidence}: {name}: {answer}");
            let line = edge.line(name, |line| line["sni"] == name);
            let rule = if key == "bytes" { "true" } else { "lie" };
            assert_eq!((&line["rule"], &line["transport"]), (&rule.into(), &"quic".into()));
            let shown = &line["evidence"];
            let is_true = match evidence {
                "dns" => &shown["dns_agrees"],
                _ => &shown["certificate"]["valid"],
            };
            assert_eq!(*is_true, key == "bytes", "{line}");
        }
    }
    assert_eq!(handshakes.load(Ordering::Relaxed), 2, "one a name, for the certificate alone");
    origin.hang_up();
}

const REDIRECT_NFT: &str = r#"
table inet eyelet {
  chain prerouting {
    type nat hook prerouting priority dstnat
    iifname "lan0" udp dport 443 redirect to :8444
  }
  chain input {
    type filter hook input priority filter
    udp dport 8444 ct status dnat accept
    meta l4proto { tcp, udp } th dport 8444 drop
  }
}
"#;

/// The kernel leads the answers back, as if the server had sent them.
#[test]
fn redirect_leads_quic_to_the_server_of_its_name() {
    let Some(program) = quic_go() else { return };
    let Some(net) = Net::new() else { return };
    net.nft(REDIRECT_NFT);
    let pki = Pki::new();
    pki.server("origin", &["host.test"], Kind::P256);
    let program = program.to_str().unwrap();
    let folder = Folder::new();
    let to = socket_address(SERVER[0], 443).to_string();
    let config = format!(
        "[[listener]]\naddress = \"0.0.0.0:8444\"\nquic = true\n\
         [[rule]]\nname = \"named\"\nsni = \"host.test\"\naction = \"splice\"\n\
         upstream = \"{to}\"\n[[rule]]\naction = \"refuse\"\nalert = \"access_denied\"\n"
    );
    let edge = net.edge(&folder, &config);
    let mut command = net.command(Place::Server, program);
    command.args(["serve", &pki.text("origin.pem"), &pki.text("origin.key")]);
    let mut origin = Talk::start(command.arg(format!("at={to}")));
    origin.hear("443\n");
    for (name, key, said) in
        [("host.test", "bytes", BYTES as u64), ("other.test", "code", ACCESS_DENIED)]
    {
        let mut command = net.command(Place::Client, program);
        command.args(["ask", &to, name, &BYTES.to_string(), &pki.text("ca.pem")]);
        let answer = answer(Talk::start(&mut command));
        assert_eq!(answer[key], said, "{name}: {answer}");
    }
    let from = format!("from {}", socket_address(GATEWAY_OUT[0], 0));
    origin.hear(from.trim_end_matches('0'));
    assert_eq!(edge.line("refused", |line| line["outcome"] == "refused")["sni"], "other.test");
    origin.hang_up();
}
