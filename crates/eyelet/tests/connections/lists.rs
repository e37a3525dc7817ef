//! Lists of names and networks from files, in a running edge: what a reload reads again, and what
//! becomes of connections when a list is replaced.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use eyelet_config::Depth;

use crate::support::client::Offer;
use crate::support::edge::{self, LISTENER, connect};
use crate::support::web::get;
use crate::support::{
    Edge, End, Folder, Hello, Pki, SOON, Upstream, alert_of, ending, expect, output, until,
};

/// A connection that sent a hello with this name.
fn hello(to: SocketAddr, name: &str) -> TcpStream {
    let mut client = connect(to);
    client.write_all(&Hello::named(name).bytes()).unwrap();
    client
}

fn is_refused(to: SocketAddr, name: &str) {
    let (bytes, end) = ending(&mut hello(to, name), SOON);
    assert!(alert_of(&bytes).is_some(), "{name}: {end:?}");
    assert_ne!(end, End::Open);
}

/// A connection that the upstream echoes.
fn is_spliced(to: SocketAddr, name: &str) -> TcpStream {
    let mut client = hello(to, name);
    expect(&mut client, &Hello::named(name).bytes());
    client
}

#[test]
fn a_reload_reads_the_files_again() {
    let (folder, upstream) = (Folder::new(), Upstream::echo());
    let rule = format!(
        "[[rule]]\nsni = {{ file = \"allow.txt\" }}\nclient = {{ file = \"nets.txt\" }}\n\
         action = \"splice\"\nupstream = \"{}\"\n",
        upstream.address
    );
    folder.write("allow.txt", "host.test\n.squid.test\n");
    folder.write("nets.txt", "127.0.0.0/8 # loopback\n");
    let file = folder.write("edge.toml", format!("{LISTENER}{rule}"));
    let mut command = edge::eyelet(&folder);
    command.arg("serve").arg(&file);
    let running = Edge::spawn(command, 1);
    let to = running.address();
    let reload = || output(edge::eyelet(&folder).arg("reload").arg(&file));
    let mut held = is_spliced(to, "host.test");
    is_spliced(to, "squid.test");
    is_spliced(to, "below.squid.test");
    is_refused(to, "other.test");

    folder.write("allow.txt", "other.test\r\n");
    let said = reload();
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    is_spliced(to, "other.test");
    is_refused(to, "host.test");
    held.write_all(b"goes on").unwrap();
    expect(&mut held, b"goes on");

    folder.write("allow.txt", "host.test\nhost test\n");
    let said = reload();
    assert_eq!(said.status.code(), Some(2), "{}", said.text);
    assert!(said.text.contains("allow.txt:2:5: error: a line has one entry"), "{}", said.text);
    is_spliced(to, "other.test");

    folder.write("allow.txt", "other.test\n");
    folder.write("nets.txt", "192.0.2.0/24\n");
    let said = reload();
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    is_refused(to, "other.test");
    let said = output(edge::eyelet(&folder).arg("check").arg(&file));
    assert!(said.text.starts_with("allow.txt: 1 name\nnets.txt: 1 network\n"), "{}", said.text);
}

/// The next request of a kept connection is decided by the newest list.
#[test]
fn a_list_is_replaced_while_connections_are_kept() {
    let (pki, upstream) = (Pki::new(), Upstream::http());
    let rule = pki.terminate(&format!("http://{}", upstream.address), "");
    let rule = rule.replace("\"app.test\"", "{ file = \"allow.txt\" }");
    pki.folder.write("allow.txt", "app.test\n");
    let text = format!("workers = 2\n{LISTENER}{rule}[log]\naccess = \"off\"\n");
    let file = pki.folder.write("edge.toml", text);
    let loaded = eyelet_config::load(&file, Depth::Files).unwrap();
    let mut running = eyelet::serve::start(loaded.config).unwrap();
    let to = running.addresses()[0];
    let mut client = Offer::new(&pki).connect(to, "app.test");
    assert_eq!(get(&mut client, "/").status, 200);

    let config = running.config();
    let (id, _) = config.lists.iter().next().unwrap();
    pki.folder.write("allow.txt", "other.test\n");
    assert!(config.lists.renew(id, &config.policy).unwrap().is_new);
    is_refused(to, "app.test");
    running.decide_anew();
    until("both workers to serve", || running.tidy().then_some(()));
    assert_eq!(get(&mut client, "/").status, 421);

    pki.folder.write("allow.txt", "app.test\n*\n");
    assert!(config.lists.renew(id, &config.policy).is_err());
    is_refused(to, "app.test");
    pki.folder.write("allow.txt", "app.test\n");
    assert!(config.lists.renew(id, &config.policy).unwrap().is_new);
    let mut client = Offer::new(&pki).connect(to, "app.test");
    assert_eq!(get(&mut client, "/").status, 200);
    running.drain();
}
