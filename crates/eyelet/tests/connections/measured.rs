//! The metrics of real connections in each state, the times of their steps, and their readers: a
//! real Prometheus, its alerts, and a dashboard.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustls::ClientConnection;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::admin::{ADMIN, TOKEN, exchange, get, metrics, request, start};
use crate::support::client::Offer;
use crate::support::edge::{self, LISTENER};
use crate::support::upstream::{nobody, vacant};
use crate::support::web;
use crate::support::{Edge, Folder, Hello, Pki, Talk, Upstream, expect, need, output, until};

const STATES: [&str; 7] =
    ["peeking", "deciding", "handshaking", "dialling", "serving", "parked", "lingering"];

/// Histograms of times between iterations.
const ITERATION_TIMED: [&str; 2] =
    ["decision_duration_seconds", "upstream_connect_duration_seconds"];

fn page_of(socket: &Path) -> BTreeMap<String, f64> {
    metrics(&get(socket, "/metrics").body)
}

/// The gauges of [`STATES`], of which there are no others.
fn states(shown: &BTreeMap<String, f64>) -> [f64; 7] {
    let all = shown.keys().filter(|name| name.starts_with("eyelet_connections{"));
    assert_eq!(all.count(), STATES.len());
    STATES.map(|state| shown[&format!("eyelet_connections{{state=\"{state}\"}}")])
}

/// Returns the number of durations of a histogram. Its buckets grow, and the last one has all.
fn count(shown: &BTreeMap<String, f64>, name: &str, labels: &str) -> f64 {
    let bare = labels.trim_end_matches(',');
    let braced = if bare.is_empty() { String::new() } else { format!("{{{bare}}}") };
    let count = shown[&format!("eyelet_{name}_count{braced}")];
    assert_eq!(shown[&format!("eyelet_{name}_bucket{{{labels}le=\"+Inf\"}}")], count);
    // What begins and ends in one iteration of the event loop takes no time.
    let (sum, may_be_none) = (shown[&format!("eyelet_{name}_sum{braced}")], ITERATION_TIMED);
    assert!(sum > 0.0 || count == 0.0 || may_be_none.contains(&name), "{name}");
    assert!(sum == 0.0 || count > 0.0, "{name}");
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
    // It asks for the destination before the hello, and takes nobody.
    let elsewhere = "[[rule]]\ndestination = \"198.51.100.0/24:443\"\naction = \"refuse\"\n";
    let splice = edge::splice(echo.address, "");
    let slow =
        format!("[[rule]]\nsni = \"slow.test\"\naction = \"splice\"\nupstream = \"{full}\"\n");
    let refuse = "[[rule]]\nsni = \"no.test\"\naction = \"refuse\"\n";
    let lies = "[[rule]]\nsni = \"lie.test\"\nsni_verified = false\nevidence = \"dns\"\n\
        action = \"refuse\"\n";
    let http = pki.terminate(&format!("http://{}", held.address), "");
    format!(
        "workers = 2\n{limits}{ADMIN}{LISTENER}{told}{elsewhere}{splice}{slow}{refuse}{lies}{http}\
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
    until("one in each state, and two parked", || {
        let shown = page_of(&socket);
        let is_there = states(&shown) == [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 0.0];
        // An upstream may accept before the edge sees it.
        let connects = count(&shown, "upstream_connect_duration_seconds", "");
        (is_there && connects == 2.0).then_some(())
    });
    // Nothing moves any more. The first page may have a count of before its states.
    let shown = page_of(&socket);
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
    let unlisted = said(&edge, "nobody.test");
    until("a verdict without a rule", || {
        (count(&page_of(&socket), "decision_duration_seconds", "") == 6.0).then_some(())
    });
    drop(unlisted);
    // A refused client lingers for two seconds at most: a new one at each look.
    let mut refused = Vec::new();
    until("a lingering one", || {
        refused.push(said(&edge, "no.test"));
        (states(&page_of(&socket))[6] > 0.0).then_some(())
    });
    // A client that only closes may still read, so that its evidence is waited for.
    crate::support::reset(deciding);
    drop((listener, fillers));
    drop((peeking, dialling, handshaking, spliced, kept, served, waiting, refused));
    let shown = until("none in any state", || {
        let shown = page_of(&socket);
        (states(&shown) == [0.0; 7]).then_some(shown)
    });
    assert_eq!(count(&shown, "handshake_duration_seconds", full), 2.0);
    assert_eq!(count(&shown, "upstream_connect_duration_seconds", ""), 2.0);
}

#[test]
fn a_request_that_fails_is_counted_also_without_a_log() {
    let pki = Pki::new();
    let (_held, dead) = nobody();
    let rules = pki.terminate(&format!("http://{dead}"), "");
    let admin = format!("{ADMIN}[log]\naccess = \"off\"\n");
    let (edge, _, socket) = start(&pki.folder, &admin, &rules);
    let connect = || Offer::new(&pki).connect(edge.address(), "app.test");
    assert_eq!(web::get(&mut connect(), "/").status, 503);
    let asked = "GET / HTTP/1.1\r\nHost: app.test\r\nHost: app.test\r\n\r\n";
    assert_eq!(web::ask(&mut connect(), asked).status, 400);
    until("both requests", || {
        let shown = page_of(&socket);
        let counted = ["requests_total", "failed_requests_total"];
        let counted = counted.map(|name| shown[&format!("eyelet_{name}")]);
        (counted == [2.0, 1.0]).then_some(())
    });
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
    let kinds = shown.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let kinds: BTreeMap<&str, &str> = kinds.collect();
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
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
    // One whose samples come with the first event has a type already.
    for (name, labels) in documented.iter().filter(|(name, _)| kinds.contains_key(&***name)) {
        found.entry(name.clone()).or_insert_with(|| labels.clone());
    }
    assert_eq!(found, documented);
}

/// The names of our metrics in a text.
fn named_in(text: &str) -> BTreeSet<&str> {
    let is_of_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
    let words = text.split(|char| !is_of_name(char));
    words.filter(|word| word.starts_with("eyelet_")).collect()
}

/// Each name of a query is in the manual, which the test above compares with the edge.
fn check_names(text: &str, wanted: usize) {
    let documented = documented();
    let named = named_in(text);
    for name in &named {
        let base = name.strip_suffix("_bucket").or(name.strip_suffix("_count"));
        let is_there = |name: &str| documented.contains_key(name);
        assert!(is_there(name) || base.is_some_and(is_there), "no metric is called {name}");
    }
    assert!(named.len() >= wanted, "{named:?}");
}

/// Metrics that the dashboard has no place for: a time of one event, or a count of what went well.
const LEFT_OUT: [&str; 6] = [
    "eyelet_start_time_seconds",
    "eyelet_ticket_key_period_start_timestamp_seconds",
    "eyelet_last_reload_timestamp_seconds",
    "eyelet_sent_spans_total",
    "eyelet_lingering_processes",
    "eyelet_lost_threads",
];

#[test]
fn each_query_of_the_dashboard_and_of_the_alerts_names_a_metric() {
    let text = std::fs::read_to_string(file("packaging/grafana/eyelet.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let [x, y, wide, high] =
            ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        for x in x..x + wide {
            assert!(x < 24 && (y..y + high).all(|y| places.insert((y, x))), "{panel}");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(!panel["title"].as_str().unwrap().is_empty());
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            check_names(query, 1);
            assert!(query.contains("instance=~\"$instance\""), "{query}");
            assert_eq!(query.matches('(').count(), query.matches(')').count(), "{query}");
        }
    }
    check_names(&text, 20);
    // Those that say nothing over time are not on it.
    let is_shown = |name: &String| text.contains(&**name) || LEFT_OUT.contains(&&**name);
    let missing: Vec<String> = documented().into_keys().filter(|name| !is_shown(name)).collect();
    assert!(missing.is_empty(), "not on the dashboard: {missing:?}");
    check_names(&std::fs::read_to_string(file("packaging/prometheus/alerts.yml")).unwrap(), 5);
    if !need("promtool") {
        return;
    }
    let mut promtool = Command::new("promtool");
    let said =
        output(promtool.args(["check", "rules"]).arg(file("packaging/prometheus/alerts.yml")));
    assert!(said.status.success() && said.text.contains("SUCCESS"), "{}", said.text);
    // promtool parses every query of the dashboard, too, as rules.
    let mut rules = String::from("groups:\n- name: dashboard\n  rules:\n");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    for (number, target) in targets.enumerate() {
        let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
        let query = Value::from(query.replace("$instance", ".*"));
        rules += &format!("  - record: query:{number}\n    expr: {query}\n");
    }
    let folder = Folder::new();
    let rules = folder.write("dashboard.yml", rules);
    let said = output(Command::new("promtool").args(["check", "rules"]).arg(rules));
    assert!(said.status.success(), "{}", said.text);
}

/// The example's own configuration, with this edge's port and this folder's token.
#[test]
fn a_real_prometheus_scrapes_the_edge() {
    if !need("prometheus") {
        return;
    }
    let (folder, upstream) = (Folder::new(), Upstream::echo());
    folder.write("token", TOKEN);
    let [port, its] = vacant().map(|address| address.port());
    let admin = format!("[admin]\naddress = \"127.0.0.1:{port}\"\ntoken_file = \"token\"\n");
    let rules = edge::splice(upstream.address, "");
    let (edge, _, _) = start(&folder, &admin, &rules);
    let mut client = said(&edge, "host.test");
    expect(&mut client, &Hello::named("host.test").bytes());
    let example = std::fs::read_to_string(file("packaging/prometheus/prometheus.yml")).unwrap();
    let token = folder.path().join("token");
    let config = example
        .replace("127.0.0.1:9902", &format!("127.0.0.1:{port}"))
        .replace("/etc/prometheus/eyelet.token", token.to_str().unwrap())
        .replace(
            "/etc/prometheus/alerts.yml",
            file("packaging/prometheus/alerts.yml").to_str().unwrap(),
        )
        .replace("scrape_interval: 15s", "scrape_interval: 1s");
    assert!(config.contains(&format!(":{port}")) && config.contains("interval: 1s"), "{config}");
    let config = folder.write("prometheus.yml", config);
    let listen = format!("--web.listen-address=127.0.0.1:{its}");
    let mut prometheus = Command::new("prometheus");
    prometheus.arg(format!("--config.file={}", config.display())).arg(listen);
    prometheus.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
    let _prometheus = Talk::start(&mut prometheus);
    let ask = |query: &str| {
        let stream = TcpStream::connect(("127.0.0.1", its)).ok()?;
        let answer = exchange(stream, &request(&format!("/api/v1/query?query={query}"), ""))?;
        serde_json::from_str::<Value>(&answer.body).ok()
    };
    until("a parked connection, as Prometheus sees it", || {
        let said = ask("eyelet_connections%7Bstate=%22parked%22%7D")?;
        (said["data"]["result"][0]["value"][1] == "1").then_some(())
    });
    // A scrape may take too long on a busy machine: it has as long as the interval.
    until("a quantile", || {
        let said = ask("histogram_quantile(0.9,eyelet_decision_duration_seconds_bucket)")?;
        let quantile = said["data"]["result"][0]["value"][1].as_str()?.parse::<f64>().ok()?;
        (quantile > 0.0).then_some(())
    });
    until("a target that is up", || {
        (ask("up")?["data"]["result"][0]["value"][1] == "1").then_some(())
    });
}
