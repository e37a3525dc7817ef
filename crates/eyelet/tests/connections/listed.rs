//! The list of connections: complete, filtered, sorted, read slowly or not at all, and the requests
//! that end some.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustls::client::Resumption;
use serde_json::Value;

use super::admin::ADMIN;
use crate::support::client::{TLS13, Tls};
use crate::support::crowd::{self, From, Manner, Multitude};
use crate::support::edge::{self, LISTENER};
use crate::support::two;
use crate::support::web::{Web, get};
use crate::support::{Edge, Folder, Hello, Pki, SOON, expect, need, output, until};

/// Spliced connections, kept ones of HTTP/1.1, and half-open ones: 2,000 in all.
const SPLICED: usize = 1_900;
const KEPT: usize = 30;
const HALF_OPEN: usize = 70;
const ALL: usize = SPLICED + KEPT + HALF_OPEN;
/// A list of all is then larger than what lies between the worker and a client that does not read.
const NAME_BYTES: usize = 300;

/// Asks with HTTP/1.0, whose answers end with the connection. Gives the status and the body.
fn ask(socket: &Path, method: &str, path: &str) -> (u16, String) {
    let mut said = String::new();
    begin(socket, method, path).read_to_string(&mut said).unwrap();
    answer_of(&said)
}

fn answer_of(said: &str) -> (u16, String) {
    let (head, body) = said.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn begin(socket: &Path, method: &str, path: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(format!("{method} {path} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
    stream
}

pub fn list(socket: &Path, query: &str) -> Vec<Value> {
    let (status, body) = ask(socket, "GET", &format!("/connections{query}"));
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// Returns the number of connections that it says it ends.
pub fn end(socket: &Path, of: &str) -> u64 {
    let (status, body) = ask(socket, "DELETE", &format!("/connections{of}"));
    assert_eq!(status, 200, "{body}");
    serde_json::from_str::<Value>(&body).unwrap()["ended"].as_u64().unwrap()
}

fn ids(listed: &[Value]) -> HashSet<&str> {
    let ids: HashSet<&str> = listed.iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), listed.len(), "a connection is listed twice");
    ids
}

struct Crowd {
    edge: Edge,
    socket: PathBuf,
    spliced: Vec<TcpStream>,
    kept: Vec<Tls>,
    half_open: Vec<TcpStream>,
    upstreams: [Multitude; 2],
    _pki: Pki,
}

impl Crowd {
    fn start() -> Self {
        let (pki, echo, page) =
            (Pki::new(), Multitude::start(Manner::Echo), Multitude::start(Manner::Page));
        let name = format!("name = \"{}\"", "n".repeat(NAME_BYTES));
        let rules = edge::splice(echo.address, &name)
            + &pki.terminate(&format!("http://{}", page.address), "");
        // Those that are half-open stay so until the end of the test.
        let limits = "[limits]\nhello_timeout = \"10m\"\n";
        let config = format!("workers = 2\n{LISTENER}{ADMIN}{limits}{rules}");
        let edge = Edge::start_whole(&pki.folder, &config, |_| ());
        let socket = pki.folder.path().join("admin.sock");
        let (to, hello) = (edge.address(), Hello::named("host.test").bytes());
        let spliced = crowd::many(SPLICED, |_| {
            let mut client = From::loopback(1).connect(to).unwrap();
            client.write_all(&hello).unwrap();
            expect(&mut client, &hello);
            client
        });
        let config = crowd::light(TLS13, Resumption::disabled());
        let kept = crowd::many(KEPT, |_| {
            let mut client = From::loopback(5).tls(to, &config, "app.test").unwrap();
            assert_eq!(get(&mut client, "/").status, 200);
            client
        });
        let half_open = crowd::many(HALF_OPEN, |_| {
            let mut client = From::loopback(6).connect(to).unwrap();
            client.write_all(&hello[..9]).unwrap();
            client
        });
        Self { edge, socket, spliced, kept, half_open, upstreams: [echo, page], _pki: pki }
    }

    /// Waits until a list with this query has so many connections.
    fn until(&self, query: &str, count: usize) -> Vec<Value> {
        until(query, || Some(list(&self.socket, query)).filter(|listed| listed.len() == count))
    }
}

#[test]
fn two_thousand_connections_are_listed_and_ended() {
    let _permit = crowd::permit(3 * ALL);
    let mut crowd = Crowd::start();
    let socket = crowd.socket.clone();
    crowd.until("?state=parked", SPLICED + KEPT);
    let all = crowd.until("", ALL);
    ids(&all);
    let spliced = all.iter().find(|one| one["kind"] == "spliced").unwrap();
    let bytes = Hello::named("host.test").bytes().len();
    for (key, expected) in [
        ("state", Value::from("parked")),
        ("sni", "host.test".into()),
        ("rule", "n".repeat(NAME_BYTES).into()),
        ("bytes_to_upstream", bytes.into()),
        ("bytes_to_client", bytes.into()),
        ("upstream", crowd.upstreams[0].address.to_string().into()),
        ("listener", crowd.edge.address().to_string().into()),
    ] {
        assert_eq!(spliced[key], expected, "{key}: {spliced}");
    }
    for (query, count) in [
        ("?state=peeking", HALF_OPEN),
        ("?client=127.0.0.5", KEPT),
        ("?client=127.0.0.4/30", KEPT + HALF_OPEN),
        ("?sni=APP.test", KEPT),
        ("?rule=app", KEPT),
        ("?rule=nobody", 0),
        ("?age_min=1h", 0),
        ("?bytes_min=1", SPLICED + KEPT),
        ("?limit=7", 7),
        ("?sort=age&limit=1000", 1000),
        ("?sort=bytes", 100),
    ] {
        assert_eq!(ids(&list(&socket, query)).len(), count, "{query}");
    }
    let oldest = list(&socket, "?sort=age&limit=3");
    let ages: Vec<u64> = oldest.iter().map(|one| one["age_ms"].as_u64().unwrap()).collect();
    assert!(ages.is_sorted_by(|one, other| one >= other), "{ages:?}");
    for path in ["?limit=many", "?sort=name", "?age_min=old", "?what=1", "?sort=age&limit=1001"] {
        assert_eq!(ask(&socket, "GET", &format!("/connections{path}")).0, 400, "{path}");
    }
    // A list that is read while connections end: whole, and each of them once.
    let mut slow = begin(&socket, "GET", "/connections");
    let mut said = vec![0; 1_000];
    slow.read_exact(&mut said).unwrap();
    let first = &all.iter().find(|one| one["kind"] == "http1").unwrap()["id"];
    assert_eq!(end(&socket, &format!("/{}", first.as_str().unwrap())), 1);
    assert_eq!(ask(&socket, "DELETE", "/connections").0, 400);
    assert_eq!(ask(&socket, "DELETE", &format!("/connections/{}", "9-9")).0, 404);
    drop(crowd.spliced.split_off(SPLICED / 2));
    crowd.until("?sni=host.test", SPLICED / 2);
    slow.read_to_end(&mut said).unwrap();
    let (_, body) = answer_of(&String::from_utf8(said).unwrap());
    let listed: Vec<Value> = serde_json::from_str(&body).unwrap();
    assert!((SPLICED / 2..=ALL).contains(&ids(&listed).len()));
    assert_eq!(ask(&socket, "DELETE", "/connections?state=parked&sort=age").0, 400);
    assert_eq!(end(&socket, "?client=127.0.0.5&state=parked&limit=3"), 3);
    assert_eq!(end(&socket, "?client=127.0.0.5&state=parked"), KEPT as u64 - 4);
    for mut client in crowd.kept {
        // Anything but a close_notify would be an error.
        assert_eq!(client.read_to_end(&mut Vec::new()).unwrap(), 0);
    }
    assert_eq!(end(&socket, "?state=peeking"), HALF_OPEN as u64);
    drop(crowd.half_open);
    let is_ended = |line: &Value| line["reason"] == "ended by an operator";
    let ended = || crowd.edge.count(is_ended);
    until("the lines", || (ended() == KEPT + HALF_OPEN).then_some(()));
    assert!(list(&socket, "?state=peeking").is_empty());
}

/// Each holds one of few places until the server gives it up.
#[test]
fn who_reads_no_list_keeps_others_from_none() {
    let _permit = crowd::permit(3 * ALL);
    let mut crowd = Crowd::start();
    crowd.until("", ALL);
    let socket = &crowd.socket;
    let mut unread = Vec::new();
    until("a list too many", || {
        let mut stream = begin(socket, "GET", "/connections");
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        unread.push(stream);
        (status == *b"HTTP/1.0 503").then_some(())
    });
    assert_eq!(unread.len(), 5);
    // Others are served meanwhile.
    for client in &mut crowd.spliced[..100] {
        client.write_all(b"ping").unwrap();
        expect(client, b"ping");
    }
    let body = until("a place for a list", || {
        let (status, body) = ask(socket, "GET", "/connections");
        (status == 200).then_some(body)
    });
    assert_eq!(serde_json::from_str::<Vec<Value>>(&body).unwrap().len(), ALL);
}

#[test]
fn what_is_being_served_is_ended_too() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\n\r\n";
    let app = Multitude::start(Manner::Download { head, piece: &[7; 1024] });
    let pki = Pki::new();
    let rule = pki.terminate(&format!("http://{}", app.address), "");
    let edge =
        Edge::start_whole(&pki.folder, &format!("workers = 1\n{LISTENER}{ADMIN}{rule}"), |_| ());
    let socket = pki.folder.path().join("admin.sock");
    let config = crowd::light(TLS13, Resumption::disabled());
    let mut client = From::loopback(1).tls(edge.address(), &config, "app.test").unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    client.read_exact(&mut [0; 4096]).unwrap();
    let listed = list(&socket, "");
    assert_eq!((listed.len(), &listed[0]["state"]), (1, &Value::from("serving")));
    assert_eq!((&listed[0]["kind"], &listed[0]["sni"]), (&"http1".into(), &"app.test".into()));
    // It goes on, and its bytes are counted as they are sent.
    let to_client = listed[0]["bytes_to_client"].as_u64().unwrap();
    assert!(to_client >= 4096 && listed[0]["bytes_to_upstream"].as_u64() > Some(0), "{listed:?}");
    client.read_exact(&mut [0; 4096]).unwrap();
    let more = format!("?bytes_min={}", to_client + 1024);
    until("more bytes", || (list(&socket, &more).len() == 1).then_some(()));
    assert_eq!(end(&socket, "?sni=app.test"), 1);
    // Its body has no length: it must not seem complete.
    assert!(client.read_to_end(&mut Vec::new()).is_err());
    let line = edge.line("the end", |line| line["event"] == "end");
    let ends = ["ended by an operator", "the last exchange was cut"];
    assert!(ends.contains(&line["reason"].as_str().unwrap()), "{line}");
    let request = edge.line("the request", |line| line["event"] == "request");
    assert_eq!(request["reason"], "ended by an operator", "{request}");
}

/// Bytes without TLS that ends here are counted as they pass, too.
#[test]
fn bytes_of_spliced_connections_and_of_plain_http_are_listed_while_they_pass() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: video/mp4\r\n\r\n";
    let app = Multitude::start(Manner::Download { head, piece: &[7; 1024] });
    let (echo, folder) = (Multitude::start(Manner::Echo), Folder::new());
    let proxy = format!("{LISTENER}kind = \"connect\"\nname = \"c\"\n");
    let plain = "[[rule]]\nname = \"plain\"\nlistener = \"c\"\nplain_http = true\n\
                 action = \"splice\"\nupstream = \"destination\"\n\
                 upstream_allow = \"127.0.0.0/8\"\n";
    let rules = format!("{plain}{}", edge::splice(echo.address, ""));
    let config = format!("workers = 1\n{LISTENER}{proxy}{ADMIN}{rules}");
    let edge = Edge::start_whole(&folder, &config, |_| ());
    let socket = folder.path().join("admin.sock");
    let moved = |one: &Value| {
        one["bytes_to_client"].as_u64().unwrap() + one["bytes_to_upstream"].as_u64().unwrap()
    };
    let hello = Hello::named("host.test").bytes();
    let mut spliced = edge.connect();
    for _ in 0..2 {
        spliced.write_all(&hello).unwrap();
        expect(&mut spliced, &hello);
    }
    let both = 4 * hello.len() as u64;
    let listed = until("all bytes", || list(&socket, &format!("?bytes_min={both}")).pop());
    assert_eq!((moved(&listed), &listed["sni"]), (both, &"host.test".into()));
    let mut plain = edge::connect(edge.addresses()[1]);
    let url = format!("GET http://{}/ HTTP/1.1\r\nHost: {}\r\n\r\n", app.address, app.address);
    plain.write_all(url.as_bytes()).unwrap();
    let mut than = 0;
    for _ in 0..3 {
        let query = format!("?state=serving&rule=plain&bytes_min={}", than + 1);
        let listed = until("more bytes", || {
            plain.read_exact(&mut [0; 64 << 10]).unwrap();
            list(&socket, &query).pop()
        });
        than = moved(&listed);
    }
    assert!(than >= 3 * (64 << 10), "{than}");
}

/// RFC 9113 section 6.8: GOAWAY says that no request was lost.
#[test]
fn a_connection_of_http2_is_ended_by_goaway() {
    let web = Web::with(crate::support::Upstream::http(), "", ADMIN);
    let socket = web.pki.folder.path().join("admin.sock");
    two::run(async {
        let mut client = web.connect_two().await;
        client.get("/").await.unwrap();
        // It is parked a moment after its last stream, so either state is right.
        let listed = list(&socket, "");
        assert_eq!((listed.len(), &listed[0]["kind"]), (1, &Value::from("http2")));
        let id = listed[0]["id"].as_str().unwrap();
        assert_eq!(end(&socket, &format!("/{id}")), 1);
        web.edge.line("the end", |line| line["reason"] == "ended by an operator");
        assert!(client.get("/").await.unwrap_err().is_go_away());
    });
}

/// The answers as people read them.
#[test]
fn curl_and_python_read_a_list() {
    if !need("curl") || !need("python3") {
        return;
    }
    let upstream = crate::support::Upstream::echo();
    let folder = Folder::new();
    let rule = edge::splice(upstream.address, "");
    let edge = Edge::start(&folder, &format!("{ADMIN}{rule}"));
    let hello = Hello::named("host.test").bytes();
    let mut client = edge.connect();
    client.write_all(&hello).unwrap();
    expect(&mut client, &hello);
    let count = "import json, sys; print([c['sni'] for c in json.load(sys.stdin)])";
    let socket = folder.path().join("admin.sock");
    let curl = format!("curl -sS --fail --unix-socket {}", socket.display());
    let shell = |script: &str| output(Command::new("sh").args(["-ec", script])).text;
    let said = shell(&format!("{curl} http://localhost/connections | python3 -c \"{count}\""));
    assert_eq!(said, "['host.test']\n");
    let said = shell(&format!("{curl} -X DELETE 'http://localhost/connections?sni=host.test'"));
    assert_eq!(said, "{\"ended\":1}\n");
    let line = edge.only_line();
    assert_eq!(
        (&line["reason"], &line["outcome"]),
        (&"ended by an operator".into(), &"spliced".into())
    );
}
