//! Names of which one family's addresses come late: a dial waits for them where they may help, and
//! no longer than it may.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use crate::gateway::fast_opened;
use crate::resolvers::{AWAY, ask, ask_quickly, by_name, home, ips, sink};
use crate::support::dns::{Dns, Says};
use crate::support::edge::LISTENER;
use crate::support::gate::dns_table;
use crate::support::hello::server_flight;
use crate::support::namespaces::{GATEWAY, SERVER, socket_address};
use crate::support::{Edge, Folder, Hello, Net, Place, expect, until};

/// Later than an answer is on a busy machine, sooner than the other family stops waiting.
const LATE: Duration = Duration::from_millis(2_500);

/// A DNS server at the gateway: there it has an end, too.
struct DnsThere<'a>(&'a Net, Option<Dns>);

impl<'a> DnsThere<'a> {
    fn new(net: &'a Net, script: &[(&str, Says)]) -> Self {
        Self(net, Some(net.at(Place::Gateway, || Dns::new(script))))
    }

    fn table(&self) -> String {
        dns_table(&[self.1.as_ref().unwrap()])
    }
}

impl Drop for DnsThere<'_> {
    fn drop(&mut self) {
        let dns = self.1.take();
        self.0.at(Place::Gateway, || drop(dns));
    }
}

/// The listener of an edge at the gateway.
fn there() -> SocketAddr {
    socket_address(GATEWAY[0], 8443)
}

#[test]
fn a_dial_that_waits_for_a_family_has_its_deadline() {
    let dns = Dns::new(&[("half.test", Says::OneFamily(false, ips(&[AWAY])))]);
    let config = format!(
        "workers = 1\n{LISTENER}[[rule]]\nsni = \"half.test\"\naction = \"splice\"\n\
         upstream = \"half.test:9\"\n[limits]\nconnect_timeout = \"1s\"\n{}",
        dns_table(&[&dns])
    );
    let folder = Folder::new();
    let edge = Edge::start_whole(&folder, &config, |_| ());
    // The only address refuses at once. The other family has twice the time of one dial.
    let (said, _) = ask(&edge, "half.test");
    assert_eq!(said, "failed upstream: connect_timeout");
}

#[test]
fn a_dial_that_may_try_no_more_addresses_waits_for_none() {
    let many: Vec<String> = (100..120).map(|last| format!("127.0.0.{last}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let dns = Dns::new(&[("many.test", Says::OneFamily(false, ips(&many)))]);
    // The origin has none of these addresses.
    let (folder, origin) = (Folder::new(), sink());
    let edge = || by_name(&folder, &[&dns], origin.address, &["many.test".to_owned()]);
    // The other family would be waited for three seconds.
    let said = ask_quickly(LATE, edge, "many.test");
    assert!(said.contains("Connection refused"), "{said}");
}

/// Each of several upstreams has a third of `connect_timeout`, for DNS, too.
#[test]
fn a_name_that_is_not_answered_leaves_time_for_the_other_upstreams() {
    let dns = Dns::new(&[("silent.test", Says::Silence), ("home.test", home())]);
    let (folder, origin) = (Folder::new(), sink());
    let config = format!(
        "workers = 1\n{LISTENER}[[rule]]\nsni = \"app.test\"\naction = \"splice\"\n\
         upstream = [\"silent.test:9\", \"home.test:{}\"]\n[limits]\nconnect_timeout = \"3s\"\n{}",
        origin.address.port(),
        dns_table(&[&dns])
    );
    let edge = Edge::start_whole(&folder, &config, |_| ());
    // Either may be chosen first.
    until("the silent name", || {
        let (said, _) = ask(&edge, "app.test");
        assert!(said.starts_with("spliced"), "{said}");
        (dns.asked("silent.test") > 0).then_some(())
    });
}

#[test]
fn the_only_address_so_far_has_no_fast_open() {
    let Some(net) = Net::new() else { return };
    net.script(Place::Server, "sysctl -qw net.ipv4.tcp_fastopen=1027");
    net.script(Place::Gateway, "sysctl -qw net.ipv4.tcp_fastopen=1");
    let late = || Says::FamilyLate(true, LATE, ips(&[SERVER[0]]));
    let whole = || Says::Addresses(ips(&[SERVER[0]]), 60);
    let names = ["a.test", "b.test", "c.test", "d.test", "e.test"];
    let script: Vec<(&str, Says)> =
        names.map(|name| (name, if name < "d" { late() } else { whole() })).into();
    let dns = DnsThere::new(&net, &script);
    let rules = names.map(|name| {
        format!(
            "[[rule]]\nsni = \"{name}\"\naction = \"splice\"\nupstream = \"{name}:443\"\n\
             fast_open = true\n"
        )
    });
    let config = format!(
        "workers = 1\n[[listener]]\naddress = \"{}\"\n{}{}",
        there(),
        rules.concat(),
        dns.table()
    );
    let folder = Folder::new();
    let _edge = net.edge(&folder, &config);
    let origin = net.listen(Place::Server, socket_address(SERVER[0], 443));
    for name in names {
        // The first that may use it asks for the cookie.
        let expected = u64::from(name == "e.test");
        let mut client = net.connect(Place::Client, there());
        let hello = Hello::named(name).bytes();
        client.write_all(&hello).unwrap();
        let (mut server, _) = origin.take();
        expect(&mut server, &hello);
        assert_eq!(fast_opened(&net), expected, "{name}");
    }
}

#[test]
fn a_connect_waits_for_the_family_that_this_host_has_a_route_to() {
    /// The gateway has no route to it.
    const UNREACHABLE: &str = "2001:db9::10";
    let Some(net) = Net::new() else { return };
    let late = Says::FamilyLate(false, LATE, ips(&[UNREACHABLE, SERVER[0]]));
    let dns = DnsThere::new(&net, &[("app.test", late)]);
    let config = format!(
        "workers = 1\n[[listener]]\naddress = \"{}\"\nkind = \"connect\"\n\
         [[rule]]\nname = \"there\"\ndestination = \"198.51.100.0/24\"\naction = \"splice\"\n\
         upstream = \"destination\"\nupstream_allow = \"198.51.100.0/24\"\n{}",
        there(),
        dns.table()
    );
    let folder = Folder::new();
    let edge = net.edge(&folder, &config);
    let to = socket_address(SERVER[0], 443);
    let origin = net.listen(Place::Server, to);
    let mut client = net.connect(Place::Client, there());
    client.write_all(b"CONNECT app.test:443 HTTP/1.1\r\nHost: app.test:443\r\n\r\n").unwrap();
    expect(&mut client, b"HTTP/1.1 200 Connection established\r\n\r\n");
    client.write_all(&Hello::named("app.test").bytes()).unwrap();
    let (mut server, _) = origin.take();
    expect(&mut server, &Hello::named("app.test").bytes());
    server.write_all(&server_flight()).unwrap();
    expect(&mut client, &server_flight());
    let own = client.local_addr().unwrap();
    drop((client, server));
    let line = edge.line_of(own);
    assert_eq!(line["destination"], to.to_string(), "{line}");
    assert_eq!(line["upstream"], to.to_string(), "{line}");
}
