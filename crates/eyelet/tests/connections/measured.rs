//! What the metrics say of real connections in each state, and how long their steps took.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustls::ClientConnection;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::admin::{ADMIN, TOKEN, exchange, get, metrics, request, start};
use crate::support::client::Offer;
use crate::support::edge::{self, LISTENER};
use crate::support::{Edge, Folder, Hello, Pki, Talk, Upstream, expect, need, output, until};

const STATES: [&str; 7] =
    ["peeking", "deciding", "handshaking", "dialling", "serving", "parked", "lingering"];

fn page(socket: &Path) -> BTreeMap<String, f64> {
    metrics(&get(socket, "/metrics").body)
}

/// The gauges of [`STATES`], of which there are no others.
fn states(shown: &BTreeMap<String, f64>) -> [f64; 7] {
    let all = shown.keys().filter(|name| name.starts_with("eyelet_connections{"));
    assert_eq!(all.count(), STATES.len());
    STATES.map(|state| shown[&format!("eyelet_connections{{state=\"{state}\"}}")])
}

/// How many durations a histogram has. Its buckets grow, and the last one has all.
fn count(shown: &BTreeMap<String, f64>, name: &str, labels: &str) -> f64 {
    let bare = labels.trim_end_matches(',');
    let braced = if bare.is_empty() { String::new() } else { format!("{{{bare}}}") };
    let count = shown[&format!("eyelet_{name}_count{braced}")];
    assert_eq!(shown[&format!("eyelet_{name}_bucket{{{labels}le=\"+Inf\"}}")], count);
    assert_eq!(shown[&format!("eyelet_{name}_sum{braced}")] > 0.0, count > 0.0);
    let prefix = format!("eyelet_{name}_bucket{{{labels}le=");
    let buckets = shown.iter().filter(|(sample, _)| sample.starts_with(&prefix));
    assert_eq!(buckets.count(), 17, "{name}");
    count
}

/// A listener whose queue is full: the kernel drops each SYN, so that a dial waits.
fn full() -> (Socket, [Socket; 3], SocketAddr) {
    let new = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let listener = new();
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let fillers = [new(), new(), new()];
    for filler in &fillers {
        filler.set_nonblocking(true).unwrap();
        // It is under way.
        let _ = filler.connect(&address);
    }
    (listener, fillers, address.as_socket().unwrap())
}

/// A name server that never answers holds one connection where it asks for evidence.
fn config(
    pki: &Pki,
    silent: &UdpSocket,
    full: SocketAddr,
    held: &Upstream,
    echo: &Upstream,
) -> String {
    let silent = silent.local_addr().unwrap();
    // Only who says where it was going can be asked for evidence.
    let told = "[[listener]]\naddress = \"127.0.0.1:0\"\nproxy_protocol_from = \"127.0.0.1\"\n";
    let limits = "[limits]\nhello_timeout = \"2m\"\nhandshake_timeout = \"2m\"\n\
        connect_timeout = \"2m\"\n";
    let splice = edge::splice(echo.address, "");
    let slow =
        format!("[[rule]]\nsni = \"slow.test\"\naction = \"splice\"\nupstream = \"{full}\"\n");
    let refuse = "[[rule]]\nsni = \"no.test\"\naction = \"refuse\"\n";
    let lies = "[[rule]]\nsni = \"lie.test\"\nsni_verified = false\nevidence = \"dns\"\n\
        action = \"refuse\"\n";
    let http = pki.terminate(&format!("http://{}", held.address), "");
    format!(
        "workers = 2\n{limits}{ADMIN}{LISTENER}{told}{splice}{slow}{refuse}{lies}{http}\
         [dns]\nservers = \"{silent}\"\n[evidence]\ntimeout = \"1m\"\n"
    )
}

/// Sends the first flight only.
fn half_shaken(pki: &Pki, edge: &Edge) -> TcpStream {
    let name = "app.test".try_into().unwrap();
    let mut tls = ClientConnection::new(Offer::new(pki).config(), name).unwrap();
    let mut socket = edge.connect();
    tls.write_tls(&mut socket).unwrap();
    socket
}

fn said(edge: &Edge, name: &str) -> TcpStream {
    let mut client = edge.connect();
    client.write_all(&Hello::named(name).bytes()).unwrap();
    client
}

#[test]
fn each_state_is_counted_and_each_step_is_timed() {
    let pki = Pki::new();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (held, upstream) = (Upstream::by_hand(), Upstream::echo());
    let (listener, fillers, address) = full();
    let config = config(&pki, &silent, address, &held, &upstream);
    let edge = Edge::start_whole(&pki.folder, &config, |_| ());
    let socket = pki.folder.path().join("admin.sock");
    let peeking = edge.connect();
    let dialling = said(&edge, "slow.test");
    let handshaking = half_shaken(&pki, &edge);
    let mut spliced = said(&edge, "host.test");
    let hello = Hello::named("host.test").bytes();
    expect(&mut spliced, &hello);
    let kept = Offer::new(&pki).connect(edge.address(), "app.test");
    let mut served = Offer::new(&pki).connect(edge.address(), "app.test");
    served.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    let waiting = held.take();
    let mut deciding = edge::connect(edge.addresses()[1]);
    deciding.write_all(b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 443\r\n").unwrap();
    deciding.write_all(&Hello::named("lie.test").bytes()).unwrap();
    let shown = until("one in each state, and two parked", || {
        let shown = page(&socket);
        (states(&shown) == [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 0.0]).then_some(shown)
    });
    let status: Value = serde_json::from_str(&get(&socket, "/status").body).unwrap();
    assert_eq!(status["connections"]["open"], 7);
    let full = "version=\"1.3\",resumed=\"false\",";
    for (name, labels, expected) in [
        // All but the one that has sent nothing and the one whose evidence is missing.
        ("decision_duration_seconds", "", 5.0),
        ("evidence_duration_seconds", "", 0.0),
        ("handshake_duration_seconds", full, 2.0),
        ("handshake_duration_seconds", "version=\"1.2\",resumed=\"true\",", 0.0),
        ("upstream_connect_duration_seconds", "", 2.0),
    ] {
        assert_eq!(count(&shown, name, labels), expected, "{name} {labels}");
    }
    // A refused client lingers for two seconds at most: a new one at each look.
    let mut refused = Vec::new();
    until("a lingering one", || {
        refused.push(said(&edge, "no.test"));
        (states(&page(&socket))[6] > 0.0).then_some(())
    });
    // A client that only closes may still read, so that its evidence is waited for.
    crate::support::reset(deciding);
    drop((listener, fillers));
    drop((peeking, dialling, handshaking, spliced, kept, served, waiting, refused));
    let shown = until("none in any state", || {
        let shown = page(&socket);
        (states(&shown) == [0.0; 7]).then_some(shown)
    });
    assert_eq!(count(&shown, "handshake_duration_seconds", full), 2.0);
    assert_eq!(count(&shown, "upstream_connect_duration_seconds", ""), 2.0);
}

/// The first column of the table of metrics: a name, and its labels.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let text = std::fs::read_to_string(file("docs/admin.md")).unwrap();
    let (_, section) = text.split_once("\n## `/metrics`").unwrap();
    let table = section.split_once("\n## ").unwrap().0;
    let columns = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let named = columns.flat_map(|column| column.split("`, `"));
    let named = named.map(|name| name.trim_end_matches('`').trim_end_matches('}'));
    named
        .map(|name| {
            let (name, labels) = name.split_once('{').unwrap_or((name, ""));
            let labels = labels.split(',').filter(|label| !label.is_empty());
            (format!("eyelet_{name}"), labels.map(str::to_owned).collect())
        })
        .collect()
}

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[test]
fn the_manual_has_every_metric_with_its_labels() {
    let pki = Pki::new();
    let checked = pki.terminate("http://127.0.0.1:9", "upstream_check = \"/\"");
    let (_edge, file, socket) = start(&pki.folder, ADMIN, &checked);
    let said = output(edge::eyelet(&pki.folder).arg("reload").arg(&file));
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    let documented = documented();
    let shown = until("the reload's time", || {
        let text = get(&socket, "/metrics").body;
        text.contains("\neyelet_last_reload_timestamp_seconds ").then_some(text)
    });
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let kinds = shown.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let kinds: BTreeMap<&str, &str> = kinds.collect();
    for line in shown.lines().filter(|line| !line.starts_with('#')) {
        let sample = line.rsplit_once(' ').unwrap().0;
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let suffixes = ["_bucket", "_sum", "_count"].into_iter();
        let base = suffixes.filter_map(|suffix| name.strip_suffix(suffix)).next();
        let base = base.filter(|base| kinds.get(base) == Some(&"histogram")).unwrap_or(name);
        let labels = labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty());
        let labels = labels.map(|label| label.split_once('=').unwrap().0.to_owned());
        found.entry(base.to_owned()).or_default().extend(labels.filter(|label| label != "le"));
    }
    assert_eq!(found, documented);
}
