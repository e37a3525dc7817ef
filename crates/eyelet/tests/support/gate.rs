//! An edge whose clients say by a PROXY header where they wanted to go, and its configuration.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};

use serde_json::Value;

use super::dns::{Dns, Says};
use super::{Edge, Hello, Pki, SOON, Upstream, alert_of, ending};

/// An edge whose clients come with a PROXY header that says where they wanted to go.
pub struct Gate {
    pub edge: Edge,
    pub pki: Pki,
}

pub const HOME: &str = "127.0.0.1";

pub fn addresses(list: &[&str]) -> Says {
    Says::Addresses(list.iter().map(|ip| ip.parse().unwrap()).collect(), 60)
}

pub fn dns_table(servers: &[&Dns]) -> String {
    let list: Vec<String> = servers.iter().map(|dns| format!("\"{}\"", dns.address)).collect();
    format!("[dns]\nservers = [{}]\n", list.join(", "))
}

impl Gate {
    pub fn new(rules: &str) -> Self {
        let pki = Pki::new();
        let config = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n\
             proxy_protocol_from = \"127.0.0.1\"\n{rules}\n"
        );
        let config = config
            .replace("[evidence]\n", &format!("[evidence]\nca = \"{}\"\n", pki.text("ca.pem")));
        let edge = Edge::start_whole(&pki.folder, &config, |_| ());
        Self { edge, pki }
    }

    /// A client that was on its way to `destination`.
    pub fn towards(&self, destination: SocketAddr) -> TcpStream {
        let mut client = self.edge.connect();
        let (ip, to) = (client.local_addr().unwrap(), destination);
        let header = format!("PROXY TCP4 {} {} {} {}\r\n", ip.ip(), to.ip(), ip.port(), to.port());
        client.write_all(header.as_bytes()).unwrap();
        client
    }

    /// Returns the fate of a hello for `name` towards `destination`: its alert, or its access line.
    pub fn ask(&self, name: &str, destination: SocketAddr) -> (Option<u8>, Value) {
        let mut client = self.towards(destination);
        client.write_all(&Hello::named(name).bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let address = client.local_addr().unwrap();
        let (said, _) = ending(&mut client, SOON);
        (alert_of(&said), self.edge.line_of(address))
    }
}

/// Somebody who takes a hello, says nothing and closes.
pub fn sink() -> Upstream {
    Upstream::serve(|mut stream| {
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    })
}

/// The rules that refuse lies. What is to be answered has time for it on a busy machine.
pub const LIES_REFUSED: &str = "[[rule]]\nname = \"lies\"\nsni_verified = false\n\
    evidence = \"dns\"\naction = \"refuse\"\n\
    [[rule]]\nname = \"truths\"\naction = \"splice\"\nupstream = \"destination\"\n\
    upstream_allow = \"127.0.0.0/8\"\n[evidence]\ntimeout = \"20s\"\n";

/// `LIES_REFUSED` with a short wait: an answer does not come, and is waited for.
pub fn lies_refused_soon() -> String {
    LIES_REFUSED.replace("timeout = \"20s\"", "timeout = \"1s\"")
}
