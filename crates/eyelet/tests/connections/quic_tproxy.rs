//! QUIC that the gateway's kernel leads to the edge (TPROXY): the edge knows where it was sent, and
//! the server sees the gateway's address or the client's.

use super::quic_flows::{BYTES, answer};
use crate::support::namespaces::{CLIENT, GATEWAY_OUT, Net, Place, SERVER, socket_address};
use crate::support::pki::Kind;
use crate::support::program::quic_go;
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
