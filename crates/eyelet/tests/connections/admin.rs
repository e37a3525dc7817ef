//! The admin server: what it answers, whom, and what becomes of it when the edge changes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::client::{Offer, echo};
use crate::support::edge::{self, LISTENER};
use crate::support::upstream::vacant;
use crate::support::{Edge, Folder, Hello, Pki, SOON, Upstream, need, output, settled, until};

const REFUSE: &str = "[[rule]]\nname = \"all\"\naction = \"refuse\"\n";
pub const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// An answer: its status, its head and its body.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// Sends a request that ends its connection, and reads the answer. `None`: no answer came.
pub fn exchange(mut stream: impl Read + Write, request: &str) -> Option<Answer> {
    // A server that has seen enough closes before it has read everything.
    let _ = stream.write_all(request.as_bytes());
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    let said = String::from_utf8(said).unwrap();
    let (head, body) = said.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let head = head.to_ascii_lowercase();
    let is_chunked = head.contains("transfer-encoding: chunked");
    let body = if is_chunked { dechunked(body) } else { body.to_owned() };
    Some(Answer { status, head, body })
}

/// The text of a body in chunks.
fn dechunked(mut body: &str) -> String {
    let mut text = String::new();
    loop {
        let at = body.find("\r\n").unwrap();
        let length = usize::from_str_radix(&body[..at], 16).unwrap();
        if length == 0 {
            return text;
        }
        text.push_str(&body[at + 2..at + 2 + length]);
        body = &body[at + 4 + length..];
    }
}

pub fn request(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n")
}

pub fn connect(socket: &Path) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.set_write_timeout(Some(SOON))?;
    Ok(stream)
}

pub fn ask_with(socket: &Path, path: &str, fields: &str) -> Answer {
    exchange(connect(socket).unwrap(), &request(path, fields)).unwrap()
}

pub fn get(socket: &Path, path: &str) -> Answer {
    ask_with(socket, path, "")
}

/// An edge with an admin socket in its folder.
pub fn start(folder: &Folder, more: &str, rules: &str) -> (Edge, PathBuf, PathBuf) {
    let config = format!("{}{more}{LISTENER}{rules}", "workers = 2\n");
    let file = folder.write("edge.toml", config);
    let mut command = edge::eyelet(folder);
    command.arg("serve").arg(&file);
    (Edge::spawn(command, 1), file, folder.path().join("admin.sock"))
}

pub const ADMIN: &str = "[admin]\naddress = \"unix:admin.sock\"\n";

#[test]
fn a_file_mode_or_a_token_decides_who_may_ask() {
    let folder = Folder::new();
    let (_edge, _, socket) = start(&folder, ADMIN, REFUSE);
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let healthy = get(&socket, "/healthz");
    assert_eq!((healthy.status, healthy.body.as_str()), (200, "ok\n"));
    assert!(healthy.head.contains("cache-control: no-store"), "{healthy:?}");
    assert_eq!(ask_with(&socket, "/healthz", "Origin: http://attacker.example\r\n").status, 403);
    assert_eq!(get(&socket, "/nothing").status, 404);
    let posted = request("/metrics", "").replace("GET", "POST");
    assert_eq!(exchange(connect(&socket).unwrap(), &posted).unwrap().status, 405);

    let other = Folder::new();
    other.write("token", TOKEN);
    let [port] = vacant().map(|address| address.port());
    let admin = format!("[admin]\naddress = \"127.0.0.1:{port}\"\ntoken_file = \"token\"\n");
    let (edge, _, _) = start(&other, &admin, REFUSE);
    let ask = |host: &str, fields: &str| {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let text = request("/healthz", fields).replace("Host: localhost", &format!("Host: {host}"));
        exchange(stream, &text).unwrap()
    };
    let host = format!("localhost:{port}");
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(ask(&host, &token).status, 200);
    assert_eq!(ask("attacker.example", &token).status, 421);
    let refused = ask(&host, "Authorization: Bearer 1123456789abcdef0123456789abcdef\r\n");
    assert_eq!(refused.status, 401);
    assert!(refused.head.contains("www-authenticate: bearer"), "{refused:?}");
    assert!(!edge.log().contains(TOKEN));
}

#[test]
fn a_draining_edge_is_healthy_and_not_ready() {
    let upstream = Upstream::echo();
    let folder = Folder::new();
    let more = format!("{ADMIN}[limits]\ndrain_timeout = \"2m\"\n");
    let rules = edge::splice(upstream.address, "");
    let (mut edge, _, socket) = start(&folder, &more, &rules);
    assert_eq!(get(&socket, "/readyz").status, 200);
    let mut held = edge.connect();
    // Half of a hello: the connection is busy until it ends.
    let hello = Hello::named("host.test").bytes();
    held.write_all(&hello).unwrap();
    crate::support::expect(&mut held, &hello);
    edge.signal(Signal::TERM);
    until("a draining edge", || (get(&socket, "/readyz").status == 503).then_some(()));
    assert_eq!(get(&socket, "/healthz").status, 200);
    assert_eq!(get(&socket, "/readyz").body, "draining\n");
    drop(held);
    assert!(edge.wait_exit().success());
    assert!(!socket.exists());
}

#[test]
fn a_reload_moves_the_socket_and_a_mistake_changes_nothing() {
    let folder = Folder::new();
    let (edge, file, socket) = start(&folder, ADMIN, REFUSE);
    let reload = |more: &str| {
        folder.write("edge.toml", format!("workers = 2\n{more}{LISTENER}{REFUSE}"));
        let mut command = edge::eyelet(&folder);
        output(command.arg("reload").arg(&file))
    };
    let moved = folder.path().join("moved.sock");
    let said = reload("[admin]\naddress = \"unix:moved.sock\"\nmode = \"0660\"\n");
    assert_eq!(said.status.code(), Some(0), "{}\n{}", said.text, edge.log());
    assert_eq!(get(&moved, "/healthz").status, 200);
    assert!(!socket.exists());
    let mode = std::fs::metadata(&moved).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    // A file that is no socket is not replaced.
    folder.write("file", "kept");
    let said = reload("[admin]\naddress = \"unix:file\"\n");
    assert_eq!(said.status.code(), Some(1), "{}", said.text);
    assert!(said.text.contains("there is a file that is no socket"), "{}", said.text);
    assert_eq!(std::fs::read_to_string(folder.path().join("file")).unwrap(), "kept");
    assert_eq!(get(&moved, "/healthz").status, 200);
    let said = reload("[admin]\naddress = \"unix:moved.sock\"\nmode = \"0600\"\n");
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    let mode = std::fs::metadata(&moved).unwrap().permissions().mode();
    assert_eq!((mode & 0o777, get(&moved, "/healthz").status), (0o600, 200));
    // Somebody has removed the socket, or put another one in its place.
    let again = || {
        let said = reload("[admin]\naddress = \"unix:moved.sock\"\nmode = \"0600\"\n");
        assert_eq!(said.status.code(), Some(0), "{}", said.text);
        assert_eq!(get(&moved, "/healthz").status, 200);
    };
    std::fs::remove_file(&moved).unwrap();
    again();
    std::fs::remove_file(&moved).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&moved).unwrap());
    // Another test's child has the listener until it becomes its program.
    until("nobody listens", || UnixStream::connect(&moved).is_err().then_some(()));
    again();
    assert_eq!(reload("").status.code(), Some(0));
    assert!(!moved.exists());
}

#[test]
fn hostile_clients_are_ended_and_bounded() {
    let folder = Folder::new();
    let (edge, _, socket) = start(&folder, ADMIN, REFUSE);
    // Threads that have just started may still open what they keep.
    assert_eq!(get(&socket, "/healthz").status, 200);
    let before = settled(|| edge.descriptors());
    // A head of 1 MB, and a body of 1 MB.
    let long = request("/healthz", &format!("X: {}\r\n", "a".repeat(1 << 20)));
    assert_eq!(exchange(connect(&socket).unwrap(), &long).unwrap().status, 431);
    let body = "b".repeat(1 << 20);
    let posted = request("/healthz", "Content-Length: 1048576\r\n") + &body;
    assert_eq!(exchange(connect(&socket).unwrap(), &posted).unwrap().status, 200);
    // As many as are served at a time say nothing and read nothing; others wait, then are served.
    let mut idle: Vec<UnixStream> = (0..100).map(|_| connect(&socket).unwrap()).collect();
    for stream in &mut idle {
        stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    }
    until("32 of them", || (edge.descriptors() >= before + 32).then_some(()));
    assert!(edge.descriptors() < before + 40, "{} of {before}", edge.descriptors());
    // The server itself ends those that it serves.
    let ended = idle[0].read_to_end(&mut Vec::new());
    assert!(ended.is_ok(), "{ended:?}");
    drop(idle);
    assert_eq!(get(&socket, "/healthz").status, 200);
    until("all closed", || (edge.descriptors() <= before).then_some(()));
}

/// The metrics, by their whole sample line without the value. Panics on anything that Prometheus'
/// text format or its conventions forbid.
pub fn metrics(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let mut kinds: BTreeMap<&str, &str> = BTreeMap::new();
    let (mut helped, mut family) = (None, "");
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert!(help.ends_with('.') && !help.contains('\\'), "{line}");
            helped = Some(name);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(helped.take(), Some(name), "{line}");
            assert!(kinds.insert(name, kind).is_none(), "twice: {line}");
            let is_plain =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            assert!(name.starts_with("eyelet_") && name.bytes().all(is_plain), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            for unit in ["_ms", "_kb", "_mb", "_minutes", "_kib"] {
                assert!(!name.contains(unit), "{line}");
            }
            family = name;
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let name = sample.split('{').next().unwrap();
            let suffix = name.strip_prefix(family).unwrap_or_else(|| panic!("{line}"));
            let is_histogram = kinds.get(family) == Some(&"histogram");
            let suffixes = if is_histogram { &["_bucket", "_sum", "_count"][..] } else { &[""] };
            assert!(suffixes.contains(&suffix), "{line}");
            if let Some((_, labels)) = sample.split_once('{') {
                labels.strip_suffix("\"}").unwrap_or_else(|| panic!("{line}"));
            }
            let value: f64 = value.parse().unwrap();
            assert!(value.is_finite() && value >= 0.0, "{line}");
            assert!(samples.insert(sample.to_owned(), value).is_none(), "twice: {line}");
        }
    }
    samples
}

#[test]
fn every_count_is_a_metric_and_every_document_has_its_keys() {
    let pki = Pki::new();
    let upstream = Upstream::echo();
    let refused = "[[rule]]\nname = \"no\\\"\"\nsni = \"no.test\"\naction = \"refuse\"\n";
    let spliced = edge::splice(upstream.address, "");
    let terminated = pki.terminate(&format!("tcp://{}", upstream.address), "");
    let more = format!("{ADMIN}[limits]\nmemory_max = \"64MiB\"\n");
    let (edge, _, socket) = start(&pki.folder, &more, &format!("{refused}{spliced}{terminated}"));
    let mut held = edge.connect();
    let hello = Hello::named("host.test").bytes();
    held.write_all(&hello).unwrap();
    crate::support::expect(&mut held, &hello);
    let mut tls = Offer::new(&pki).connect(edge.address(), "app.test");
    echo(&mut tls, b"hello");
    let mut client = edge.connect();
    client.write_all(&Hello::named("no.test").bytes()).unwrap();
    let _ = crate::support::ending(&mut client, SOON);

    let page = || metrics(&get(&socket, "/metrics").body);
    let shown = until("both parked", || {
        let shown = page();
        let is_there = shown["eyelet_connections{state=\"parked\"}"] == 2.0
            && shown["eyelet_connection_outcomes_total{outcome=\"refused\"}"] == 1.0;
        is_there.then_some(shown)
    });
    let status: Value = serde_json::from_str(&get(&socket, "/status").body).unwrap();
    let status = &status["limits"];
    let with_upstream = status["connections_with_upstream_max"].as_f64().unwrap();
    assert!(with_upstream > 100.0, "{status}");
    for (sample, value) in [
        ("eyelet_accepted_connections_total", 3.0),
        ("eyelet_handshakes_total{version=\"1.3\",resumed=\"false\"}", 1.0),
        ("eyelet_handshake_failures_total", 0.0),
        ("eyelet_connection_ends_total{class=\"refused\"}", 1.0),
        ("eyelet_configuration_generation", 1.0),
        ("eyelet_connections_max", status["connections_max"].as_f64().unwrap()),
        ("eyelet_connections_with_upstream_max", with_upstream),
        ("eyelet_rule_hits_total{rule=\"no\\\"\"}", 1.0),
        ("eyelet_rule_hits_total{rule=\"app\"}", 1.0),
    ] {
        assert_eq!(shown.get(sample), Some(&value), "{sample}");
    }
    assert!(shown["eyelet_certificate_soonest_expiry_timestamp_seconds"] > 1.6e9);
    assert!(shown["eyelet_ticket_key_period_start_timestamp_seconds"] > 1.6e9);
    assert!(!shown.contains_key("eyelet_last_reload_timestamp_seconds"));
    assert_eq!(shown["eyelet_ended_connection_bytes_total{to=\"client\"}"], 0.0);
    drop(tls);
    until("bytes of the one that ended", || {
        (page()["eyelet_ended_connection_bytes_total{to=\"client\"}"] == 5.0).then_some(())
    });
    let open = ask_with(&socket, "/metrics", "Accept: application/openmetrics-text\r\n");
    assert!(open.head.contains("content-type: application/openmetrics-text; version=1.0.0"));
    assert!(open.body.ends_with("# EOF\n"));
    promtool(&get(&socket, "/metrics").body);

    check_documents(&edge, &socket);
}

/// The answers to a live view do not grow with the configuration.
#[test]
fn the_busiest_rules_and_the_first_expiries_are_listed_alone() {
    let pki = Pki::new();
    pki.server_with("soon", &["soon.test"], |params| {
        params.not_after = (SystemTime::now() + Duration::from_secs(86_400)).into();
    });
    let refuse = |name: &str| {
        format!("[[rule]]\nname = \"{name}\"\nsni = \"{name}.test\"\naction = \"refuse\"\n")
    };
    let app = pki.terminate("http://127.0.0.1:9", "");
    let soon = app.replace("app", "soon").replace("edge.", "soon.");
    let rules = ["none", "two", "one"].map(refuse).concat() + &app + &soon;
    let (edge, _, socket) = start(&pki.folder, ADMIN, &rules);
    let refused = |name: &str| {
        let mut client = edge.connect();
        client.write_all(&Hello::named(name).bytes()).unwrap();
        let _ = crate::support::ending(&mut client, SOON);
    };
    ["two.test", "one.test", "two.test"].into_iter().for_each(refused);
    let document =
        |path: &str| -> Value { serde_json::from_str(&get(&socket, path).body).unwrap() };
    let busiest = document("/rules?sort=hits&limit=2");
    let named = |at: usize| (&busiest["rules"][at]["rule"], &busiest["rules"][at]["hits"]);
    assert_eq!((named(0), named(1)), ((&"two".into(), &2.into()), (&"one".into(), &1.into())));
    assert_eq!(busiest["rules"].as_array().unwrap().len(), 2);
    assert_eq!(document("/rules?sort=hits")["rules"].as_array().unwrap().len(), 5);
    // Hits of one millisecond are ordered by their number.
    until("the rule that was hit last", || {
        refused("none.test");
        let last = document("/rules?sort=last_hit&limit=1");
        let is_alone = last["rules"].as_array().unwrap().len() == 1;
        (is_alone && last["rules"][0]["rule"] == "none").then_some(())
    });
    let first = document("/certificates?sort=expiry&limit=1");
    assert_eq!(first["certificates"][0]["names"], serde_json::json!(["soon.test"]));
    assert_eq!((first["certificates"].as_array().unwrap().len(), &first["all"]), (1, &2.into()));
    let both = document("/certificates?sort=expiry");
    assert_eq!(both["certificates"][1], document("/certificates")["certificates"][0]);
    assert_eq!(get(&socket, "/rules?limit=2").status, 400);
}

/// Its certificates are signed anew in time: its own end is what an operator must know.
#[test]
fn the_local_authority_is_among_the_certificates() {
    let folder = Folder::new();
    let rules = "[[rule]]\naction = \"terminate\"\ncertificate = \"local\"\n\
                 upstream = \"http://127.0.0.1:9\"\n[local]\nfolder = \"ca\"\n";
    let (_edge, file, socket) = start(&folder, ADMIN, rules);
    let document =
        |path: &str| -> Value { serde_json::from_str(&get(&socket, path).body).unwrap() };
    let all = document("/certificates");
    let authority = &all["certificates"][0];
    let path = folder.path().join("ca/ca.pem");
    assert_eq!(authority["source"], "local", "{all}");
    assert_eq!(authority["from"], path.to_str().unwrap(), "{all}");
    assert_eq!(authority["names"], serde_json::json!([]), "{all}");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let end = authority["not_after_unix_seconds"].as_f64().unwrap();
    assert!(end > now + 9.0 * 365.0 * 86_400.0, "{all}");
    let first = document("/certificates?sort=expiry&limit=1");
    assert_eq!((&first["certificates"][0], &first["all"]), (authority, &1.into()));
    let shown = metrics(&get(&socket, "/metrics").body);
    assert_eq!(shown["eyelet_certificate_soonest_expiry_timestamp_seconds"], end);
    assert_eq!(shown["eyelet_unusable_certificates"], 0.0);
    let said = output(edge::eyelet(&folder).args(["top", "--once"]).arg(&file));
    assert!(said.text.contains("\nexpire next  "), "{}", said.text);
}

/// A name without a certificate yet, beside one with a certificate. A third one is chosen by a
/// client, so it does not count.
#[test]
fn a_certificate_that_cannot_be_used_is_counted() {
    let pki = Pki::new();
    let app = pki.terminate("http://127.0.0.1:9", "");
    // Nobody listens there.
    let acme = "[[rule]]\nsni = [\"new.test\", \"*.new.test\"]\nacme_on_demand = true\n\
                action = \"terminate\"\ncertificate = \"acme\"\n\
                upstream = \"http://127.0.0.1:9\"\n\
                [acme]\ndirectory = \"https://127.0.0.1:9/dir\"\nterms_agreed = true\n\
                ca = \"ca.pem\"\nfolder = \"acme\"\n";
    let (edge, _, socket) = start(&pki.folder, ADMIN, &(app + acme));
    let mut client = edge.connect();
    client.write_all(&Hello::named("asked.new.test").bytes()).unwrap();
    until("the name that was asked for", || {
        get(&socket, "/certificates").body.contains("asked.new.test").then_some(())
    });
    let shown = metrics(&get(&socket, "/metrics").body);
    assert_eq!(shown["eyelet_unusable_certificates"], 1.0);
    assert!(shown["eyelet_certificate_soonest_expiry_timestamp_seconds"] > 1.6e9);
    let all: Value = serde_json::from_str(&get(&socket, "/certificates?sort=expiry").body).unwrap();
    let [broken, sound, asked] = [0, 1, 2].map(|at| &all["certificates"][at]);
    assert!(broken["error"].is_string() && asked["error"].is_string(), "{all}");
    assert_eq!((&broken["from"], &asked["from"]), (&"new.test".into(), &"asked.new.test".into()));
    assert_eq!((&sound["names"][0], &all["all"]), (&"app.test".into(), &3.into()));
}

/// Checks each document after a connection of each rule.
fn check_documents(edge: &Edge, socket: &Path) {
    let document = |path: &str| -> Value { serde_json::from_str(&get(socket, path).body).unwrap() };
    let rules = document("/rules");
    assert_eq!(rules["rules"][0]["rule"], "no\"");
    assert_eq!(rules["rules"][0]["hits"], 1);
    assert!(rules["rules"][0]["last_hit_unix_seconds"].as_f64().unwrap() > 1.6e9);
    let memory = document("/memory");
    let kinds = memory["kinds"].as_object().unwrap();
    let sum: u64 = kinds.values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(memory["accounted_bytes"], sum);
    assert!(kinds["program"].as_u64().unwrap() > 0 && kinds.contains_key("allocator"));
    let certificates = document("/certificates");
    assert_eq!(certificates["certificates"][0]["names"][0], "app.test");
    let status = document("/status");
    assert_eq!((status["draining"].as_bool(), status["workers"].as_u64()), (Some(false), Some(2)));
    assert_eq!(status["listeners"][0], edge.address().to_string());
    for (path, shown) in [
        ("/rules", &rules),
        ("/memory", &memory),
        ("/certificates", &certificates),
        ("/status", &status),
    ] {
        assert_eq!(keys(&example(path)), keys(shown), "the example of {path} in docs/admin.md");
    }
}

/// Prometheus' own opinion, where it is installed.
fn promtool(text: &str) {
    if !need("promtool") {
        return;
    }
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let said = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success() && errors.is_empty(), "{errors}");
}

/// The example answer of a path in the documentation.
pub fn example(path: &str) -> Value {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/admin.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once(&format!("\n## `{path}`")).unwrap();
    let (_, text) = section.split_once("```json\n").unwrap();
    serde_json::from_str(text.split_once("```").unwrap().0).unwrap()
}

/// The keys at each level, by their path. Those of all members of a list count together.
pub fn keys(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![(String::new(), value)];
    while let Some((path, value)) = open.pop() {
        match value {
            Value::Object(map) => open.extend(map.iter().map(|(key, value)| {
                found.insert(format!("{path}.{key}"));
                (format!("{path}.{key}"), value)
            })),
            Value::Array(list) => {
                open.extend(list.iter().map(|value| (format!("{path}[]"), value)))
            }
            _ => {}
        }
    }
    found
}

#[test]
fn a_reload_keeps_the_hits_of_a_rule_and_counts_itself() {
    let folder = Folder::new();
    let (edge, file, socket) = start(&folder, ADMIN, REFUSE);
    let hit = || {
        let mut client = edge.connect();
        client.write_all(&Hello::named("no.test").bytes()).unwrap();
        let _ = crate::support::ending(&mut client, SOON);
    };
    let hits = || metrics(&get(&socket, "/metrics").body)["eyelet_rule_hits_total{rule=\"all\"}"];
    hit();
    until("a hit", || (hits() == 1.0).then_some(()));
    let new = "[[rule]]\nname = \"new\"\nsni = \"new.test\"\naction = \"refuse\"\n";
    for (text, code) in [(format!("{new}{REFUSE}"), 0), ("x".to_owned(), 2)] {
        folder.write("edge.toml", format!("workers = 2\n{ADMIN}{LISTENER}{text}"));
        let said = output(edge::eyelet(&folder).arg("reload").arg(&file));
        assert_eq!(said.status.code(), Some(code), "{}", said.text);
    }
    hit();
    until("the second", || (hits() == 2.0).then_some(()));
    // The answer of a reload comes before it is counted.
    until("the reloads", || {
        let shown = metrics(&get(&socket, "/metrics").body);
        let reloads = |result| shown[&format!("eyelet_reloads_total{{result=\"{result}\"}}")];
        let at = shown.get("eyelet_last_reload_timestamp_seconds");
        assert!(at.is_none_or(|at| *at > 1.6e9), "{at:?}");
        ((reloads("served"), reloads("failed")) == (1.0, 1.0) && at.is_some()).then_some(())
    });
    let rules: Value = serde_json::from_str(&get(&socket, "/rules").body).unwrap();
    assert_eq!(rules["rules"][0]["rule"], "new");
    assert_eq!(rules["rules"][0]["hits"], 0);
    assert!(rules["rules"][0]["last_hit_unix_seconds"].is_null());
}

#[test]
fn an_upgrade_binds_a_socket_and_a_port_anew() {
    for has_port in [false, true] {
        let folder = Folder::new();
        folder.write("token", TOKEN);
        let [port] = vacant().map(|address| address.port());
        let tcp = format!("[admin]\naddress = \"127.0.0.1:{port}\"\ntoken_file = \"token\"\n");
        let (edge, file, socket) = start(&folder, if has_port { &tcp } else { ADMIN }, REFUSE);
        // `None`: the port is free for a moment.
        let pid = || {
            let fields = format!("Authorization: Bearer {TOKEN}\r\n");
            let text = request("/status", &fields);
            let answer = if has_port {
                let host = format!("Host: localhost:{port}");
                let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
                exchange(stream, &text.replace("Host: localhost", &host))?
            } else {
                exchange(connect(&socket).unwrap(), &text)?
            };
            let status: Value = serde_json::from_str(&answer.body).unwrap();
            status["pid"].as_i64()
        };
        let before = until("the first process", pid);
        assert_eq!(before, i64::from(edge.pid().as_raw_nonzero().get()));
        let said = output(edge::eyelet(&folder).arg("upgrade").arg(&file));
        assert_eq!(said.status.code(), Some(0), "{}\n{}", said.text, edge.log());
        let after = until("the second process", || pid().filter(|pid| *pid != before));
        let after = rustix::process::Pid::from_raw(i32::try_from(after).unwrap()).unwrap();
        rustix::process::kill_process(after, Signal::TERM).unwrap();
    }
}
