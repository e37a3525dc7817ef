//! Resolvers that are asked over TLS: a real unbound by DNS over TLS and over HTTPS, kept
//! connections, certificates for somebody else, and servers that answer nonsense.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;

use super::resolvers::{RESOLVER, ask, ask_quickly, sink};
use crate::support::edge::{LISTENER, eyelet};
use crate::support::pki::Kind;
use crate::support::upstream::vacant;
use crate::support::{Edge, Folder, Pki, Upstream, need, output, until};

/// The name in the resolver's certificate.
const NAME: &str = "dns.test";

/// A server of the package, by DNS over TLS and over HTTPS. It knows `*.up.test` only.
struct Unbound {
    child: Child,
    tls: SocketAddr,
    https: SocketAddr,
}

impl Unbound {
    fn start(folder: &Folder) -> Self {
        let [tls, https] = vacant();
        Self::at(folder, tls, https)
    }

    fn at(folder: &Folder, tls: SocketAddr, https: SocketAddr) -> Self {
        let path = folder.path().display();
        let file = folder.write(
            "unbound.conf",
            format!(
                "server:\n  interface: 127.0.0.1@{tls}\n  interface: 127.0.0.1@{https}\n  \
                 tls-port: {tls}\n  https-port: {https}\n  http-endpoint: \"/ask\"\n  \
                 tls-service-pem: \"{path}/dns.pem\"\n  tls-service-key: \"{path}/dns.key\"\n  \
                 use-syslog: no\n  verbosity: 1\n  chroot: \"\"\n  username: \"\"\n  \
                 directory: \"{path}\"\n  pidfile: \"{path}/unbound.pid\"\n  do-daemonize: no\n  \
                 local-zone: \"up.test.\" redirect\n  local-data: \"up.test. 60 A 127.0.0.1\"\n  \
                 local-zone: \".\" static\nremote-control:\n  control-enable: no\n",
                tls = tls.port(),
                https = https.port(),
            ),
        );
        let mut command = Command::new("unbound");
        command.args(["-d", "-c"]).arg(file).stdin(Stdio::null());
        let log = folder.path().join("unbound.log");
        let file = std::fs::File::create(&log).unwrap();
        let child = command.stdout(Stdio::null()).stderr(file).spawn().unwrap();
        let unbound = Self { child, tls, https };
        // It listens for seconds before it answers.
        let serves =
            || std::fs::read_to_string(&log).ok()?.contains("start of service").then_some(());
        until("unbound", serves);
        unbound
    }
}

impl Drop for Unbound {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pki() -> Pki {
    let pki = Pki::new();
    pki.server("dns", &[NAME], Kind::P256);
    pki
}

/// An edge that dials the name in the hello, with these resolvers.
fn edge(pki: &Pki, origin: SocketAddr, servers: &[String]) -> Edge {
    let text = format!(
        "workers = 1\n{LISTENER}[[rule]]\nname = \"by name\"\n\
         sni = [\"*.up.test\", \"nobody.test\"]\n\
         action = \"splice\"\nupstream = \"{{sni}}:{}\"\nupstream_allow = \"127.0.0.0/8\"\n\
         [limits]\nconnect_timeout = \"20s\"\n[dns]\nservers = {servers:?}\nca = \"ca.pem\"\n",
        origin.port()
    );
    Edge::start_whole(&pki.folder, &text, |_| ())
}

/// Carries bytes to a server, and counts connections.
fn counted(to: SocketAddr) -> Upstream {
    Upstream::serve(move |mut near| {
        let Ok(mut far) = TcpStream::connect(to) else { return };
        let (mut from, mut into) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut into);
            let _ = into.shutdown(std::net::Shutdown::Both);
        });
        let _ = std::io::copy(&mut far, &mut near);
        let _ = near.shutdown(std::net::Shutdown::Both);
    })
}

#[test]
fn names_are_looked_up_over_tls_and_over_https_on_kept_connections() {
    if !need("unbound") {
        return;
    }
    let (pki, origin) = (pki(), sink());
    let unbound = Unbound::start(&pki.folder);
    for (scheme, to, path) in [("tls", unbound.tls, ""), ("https", unbound.https, "/ask")] {
        let line = counted(to);
        let edge =
            edge(&pki, origin.address, &[format!("{scheme}://{}{path}#{NAME}", line.address)]);
        for number in 0..10 {
            let (ending, _) = ask(&edge, &format!("n{number}.up.test"));
            assert!(ending.starts_with("spliced"), "{scheme}: {ending}\n{}", edge.log());
        }
        let (ending, _) = ask(&edge, "nobody.test");
        assert!(ending.contains("the name has no address"), "{scheme}: {ending}");
        // Both families are asked at once, and then again on the same two.
        assert!(line.accepted() <= 3, "{scheme}: {} connections", line.accepted());
        // They end by themselves.
        let before = edge.sockets();
        until("idle connections to end", || (edge.sockets() + 2 <= before).then_some(()));
        assert!(ask(&edge, "late.up.test").0.starts_with("spliced"));
    }
}

#[test]
fn a_resolver_that_restarts_is_asked_on_new_connections() {
    if !need("unbound") {
        return;
    }
    let (pki, origin) = (pki(), sink());
    for scheme in ["tls", "https"] {
        let unbound = Unbound::start(&pki.folder);
        let (tls, https) = (unbound.tls, unbound.https);
        let server = match scheme {
            "tls" => format!("tls://{tls}#{NAME}"),
            _ => format!("https://{https}/ask#{NAME}"),
        };
        let edge = edge(&pki, origin.address, std::slice::from_ref(&server));
        assert!(ask(&edge, "one.up.test").0.starts_with("spliced"), "{server}");
        drop(unbound);
        let (ending, _) = ask(&edge, "two.up.test");
        assert!(ending.contains("cannot connect"), "{server}: {ending}");
        let _again = Unbound::at(&pki.folder, tls, https);
        assert!(ask(&edge, "three.up.test").0.starts_with("spliced"), "{server}");
    }
}

#[test]
fn a_resolver_must_have_the_certificate_that_is_named() {
    let (pki, origin) = (pki(), sink());
    let leaf = |names: &[&str]| pki.server("shown", names, Kind::P256);
    let stranger = Pki::new().server("dns", &[NAME], Kind::P256);
    let other = "not valid for name \"dns.test\"; it is for other.test";
    for (leaf, why) in [(leaf(&["other.test"]), other), (stranger, "BadSignature")] {
        let asked = Upstream::tls(leaf, |tls| _ = tls.read(&mut [0; 64]));
        let servers = [format!("tls://{}#{NAME}", asked.address)];
        let edge = edge(&pki, origin.address, &servers);
        let (ending, _) = ask(&edge, "a.up.test");
        let is_said = ending.contains("TLS: invalid peer certificate") && ending.contains(why);
        assert!(is_said && ending.contains(&servers[0]), "{ending}");
    }
}

#[test]
fn nonsense_is_no_answer_and_the_next_resolver_is_asked() {
    if !need("unbound") {
        return;
    }
    let (pki, origin) = (pki(), sink());
    let unbound = Unbound::start(&pki.folder);
    let next = format!("tls://{}#{NAME}", unbound.tls);
    let leaf = || pki.server("dns", &[NAME], Kind::P256);
    let says = |answer: &'static [u8]| {
        Upstream::tls(leaf(), move |tls| {
            let _ = tls.read(&mut [0; 512]);
            let _ = tls.write_all(answer).and_then(|()| tls.flush());
        })
    };
    let table: [(Upstream, &str, &str); 6] = [
        // A length without a message, a message that is cut, one with another id, a query.
        (says(b"\0\0"), "tls", "malformed"),
        (says(b"\xff\xff\x00"), "tls", "the connection ended"),
        (says(b"\0\x0c\0\x07\x81\x80\0\0\0\0\0\0\0\0"), "tls", "another question"),
        (says(b"\0\x0c\0\0\x01\0\0\0\0\0\0\0\0\0"), "tls", "malformed"),
        (says(b"HTTP/1.1 200 OK\r\n\r\n"), "https", "it does not speak HTTP/2"),
        (
            Upstream::tls_h2(leaf(), |tls| {
                let _ = tls.read(&mut [0; 512]);
                let _ = tls.write_all(b"HTTP/1.1 200 OK\r\n\r\n").and_then(|()| tls.flush());
            }),
            "https",
            "HTTP/2: ",
        ),
    ];
    for (server, scheme, why) in &table {
        let first = format!("{scheme}://{}#{NAME}", server.address);
        let alone = edge(&pki, origin.address, std::slice::from_ref(&first));
        let (ending, _) = ask(&alone, "a.up.test");
        assert!(ending.starts_with("failed") && ending.contains(why), "{why}: {ending}");
        let both = || edge(&pki, origin.address, &[first.clone(), next.clone()]);
        let ending = ask_quickly(RESOLVER, both, "a.up.test");
        assert!(ending.starts_with("spliced"), "{why}: {ending}");
    }
}

#[test]
fn check_says_what_a_resolver_over_tls_needs() {
    let folder = Folder::new();
    let check = |dns: &str| {
        let file = folder.write(
            "edge.toml",
            format!("{LISTENER}[[rule]]\nname = \"all\"\naction = \"refuse\"\n[dns]\n{dns}"),
        );
        output(eyelet(&folder).arg("check").arg(file))
    };
    let said = check("servers = [\"tls://dns.example\"]\n");
    assert!(
        !said.status.success() && said.text.contains("tls://192.0.2.1#dns.example"),
        "{said:?}"
    );
    let said = check("servers = [\"tls://192.0.2.1#dns.example\"]\nca = \"none.pem\"\n");
    assert!(!said.status.success() && said.text.contains("none.pem"), "{said:?}");
    let pki = Pki::new();
    let ca = pki.text("ca.pem");
    let said = check(&format!("servers = [\"tls://192.0.2.1#dns.example\"]\nca = \"{ca}\"\n"));
    assert!(said.status.success(), "{said:?}");
    let said = check(&format!("servers = [\"192.0.2.1\"]\nca = \"{ca}\"\n"));
    assert!(said.text.contains("no resolver of `servers` is asked over TLS"), "{said:?}");
    let both = "servers = [\"tls://192.0.2.1#dns.example\", \"192.0.2.1\"]\n";
    let said = check(&format!("{both}ca = \"{ca}\"\n"));
    assert!(said.status.success() && said.text.contains("names are sent in clear"), "{said:?}");
}
