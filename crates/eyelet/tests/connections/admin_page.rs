//! The admin server's page in Chromium, and the documents that it lives on.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::admin::{ADMIN, TOKEN, ask_with, connect, example, exchange, get, keys, request, start};
use crate::support::client::{Offer, Tls};
use crate::support::upstream::{nobody, vacant};
use crate::support::{
    Edge, Folder, Hello, Pki, SOON, Upstream, edge, ending, expect, need, output, until, web,
};

/// Bytes of the page on the wire.
const PAGE_BYTES_MAX: u64 = 60_000;
/// Pixels of the page at 360 pixels, with 50 certificates that need a look: tables scroll within.
const HEIGHT_MAX: u64 = 10_000;
/// A rule as in the README: its authority is among the certificates.
const LOCAL: &str = "[[rule]]\nsni = \"own.test\"\naction = \"terminate\"\n\
                     certificate = \"local\"\nupstream = \"http://127.0.0.1:9\"\n\
                     [local]\nfolder = \"ca\"\n";
/// Readers of `/events` at a time.
const READERS_MAX: usize = 8;

/// A reader of `/events`, behind its head.
struct Events(BufReader<UnixStream>);

impl Events {
    /// `Err`: the whole answer, which has another status.
    fn open(socket: &Path) -> Result<Self, String> {
        let mut stream = connect(socket).unwrap();
        stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut events = Self(BufReader::new(stream));
        let head = events.lines_to("");
        let kind = "content-type: text/event-stream";
        match head.starts_with("HTTP/1.1 200") && head.to_ascii_lowercase().contains(kind) {
            true => Ok(events),
            false => Err(head),
        }
    }

    fn lines_to(&mut self, last: &str) -> String {
        let mut said = String::new();
        loop {
            let mut line = String::new();
            let length = self.0.read_line(&mut line).unwrap();
            if length == 0 || line.trim_end() == last {
                return said;
            }
            said += &line;
        }
    }

    /// The next document. `None`: the stream has ended.
    fn next(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(serde_json::from_str(data).unwrap());
            }
        }
    }
}

/// An edge with a parked connection that is spliced, one that is terminated for one of two
/// upstreams, and one that was refused. The clients are open as long as this is.
pub struct Busy {
    edge: Edge,
    _held: (TcpStream, Tls, [Upstream; 2], rustix::fd::OwnedFd),
}

pub fn busy(pki: &Pki, admin: &str) -> Busy {
    let (echo, app) = (Upstream::echo(), Upstream::http());
    let (dead_socket, dead) = nobody();
    let list = format!("[\"http://{}\", \"http://{dead}\"]", app.address);
    let check = "upstream_check = \"connect\"";
    let rules = format!(
        "[[rule]]\nname = \"no\"\nsni = \"no.test\"\naction = \"refuse\"\n{}{}",
        edge::splice(echo.address, "name = \"host\""),
        pki.terminate("LIST", check).replace("\"LIST\"", &list)
    );
    let (edge, _, _) = start(&pki.folder, admin, &rules);
    let mut spliced = edge.connect();
    let hello = Hello::named("host.test").bytes();
    spliced.write_all(&hello).unwrap();
    expect(&mut spliced, &hello);
    let mut tls = Offer::new(pki).connect(edge.address(), "app.test");
    assert_eq!(web::get(&mut tls, "/short").status, 200);
    // The response has the request in it.
    let fields = format!("Accept-Encoding: gzip\r\nX-Long: {}\r\n", "a long text ".repeat(300));
    let long = format!("GET /long HTTP/1.1\r\nHost: app.test\r\n{fields}\r\n");
    assert_eq!(web::ask(&mut tls, &long).field("content-encoding"), Some("gzip"));
    refuse(&edge, "no.test");
    Busy { edge, _held: (spliced, tls, [echo, app], dead_socket) }
}

fn refuse(edge: &Edge, name: &str) {
    let mut client = edge.connect();
    client.write_all(&Hello::named(name).bytes()).unwrap();
    let _ = ending(&mut client, SOON);
}

#[test]
fn the_page_works_in_chromium() {
    if !(need("chromium") && need("python3")) {
        return;
    }
    let pki = Pki::new();
    pki.folder.write("token", TOKEN);
    let [port] = vacant().map(|address| address.port());
    let admin = format!("[admin]\naddress = \"127.0.0.1:{port}\"\ntoken_file = \"token\"\n");
    let busy = busy(&pki, &format!("{admin}{LOCAL}"));
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/admin_page.py");
    let url = format!("http://localhost:{port}/");
    let mut command = Command::new("python3");
    command.args([program, &url]).arg(pki.folder.path());
    command.args([TOKEN, &busy.edge.port().to_string(), "2"]);
    // Whoever wants the pictures of the documentation names their folder.
    command.args(std::env::var_os("EYELET_SHOTS"));
    let said = output(&mut command);
    let shown: Value = serde_json::from_str(said.text.trim()).expect(&said.text);
    let text = |part: &str| shown[part].as_str().unwrap_or_else(|| panic!("{part}: {shown}"));
    assert_eq!((text("parked"), text("failed")), ("2", "0"), "{shown}");
    assert!(["1", "2"].contains(&text("refused")), "{shown}");
    assert!(text("reasons").contains("refused by name"), "{shown}");
    for rule in ["no", "host", "app"] {
        assert!(text("rules").contains(rule), "no {rule} in {shown}");
    }
    assert!(text("problems").contains("1 of 2 upstreams is down"), "{shown}");
    assert!(text("compression").contains("bytes saved"), "{shown}");
    assert!(text("certificates").contains("the local authority"), "{shown}");
    assert!(text("kinds").contains("program") && text("edge").contains("pid"), "{shown}");
    assert!(text("handshakes").contains("X25519MLKEM768"), "{shown}");
    assert!(text("connections").contains("host.test"), "{shown}");
    assert!(text("apart").contains("spliced") || text("apart").contains("http1"), "{shown}");
    assert_eq!(
        (text("focus"), &shown["reached"], &shown["headers"]),
        ("apart", &true.into(), &true.into())
    );
    assert!(shown["first_figure_ms"].as_u64().is_some_and(|ms| ms > 0), "{shown}");
    let wire_bytes = shown["wire_bytes"].as_u64().unwrap();
    assert!((1_000..PAGE_BYTES_MAX).contains(&wire_bytes), "{shown}");
    assert_eq!((&shown["overflow_wide"], &shown["overflow_narrow"]), (&0.into(), &0.into()));
    assert_eq!(shown["crowded_overflow"], 0, "{shown}");
    assert!(shown["crowded_height"].as_u64().is_some_and(|height| height < HEIGHT_MAX), "{shown}");
    assert!(shown["crowded_problems"].as_u64().is_some_and(|count| count < 15), "{shown}");
    for said in
        ["At least 22 more certificates cannot", "At least 22 more certificates have expired"]
    {
        assert!(text("crowded_said").contains(said), "{shown}");
    }
    assert_eq!(
        shown["spans"],
        serde_json::json!(["30 s", "minute", "minute", "60 min"]),
        "{shown}"
    );
    // What is read each minute does not grow with the configuration, and is nobody else's.
    let fetched: Vec<&str> =
        shown["fetched"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    let is_bounded = |one: &&str| one.ends_with("/certificates?sort=expiry&limit=50");
    assert!(fetched.iter().any(is_bounded), "{shown}");
    assert!(fetched.iter().all(|one| one.starts_with(&url) || one.starts_with("data:")), "{shown}");
    assert_eq!(shown["errors"], serde_json::json!([]), "{shown}");
    eprintln!("first figure: {} ms, {wire_bytes} bytes", shown["first_figure_ms"]);
    // The page is everybody's, and what it shows is not.
    let ask = |path: &str| {
        let host = format!("Host: localhost:{port}");
        let text = request(path, "").replace("Host: localhost", &host);
        exchange(TcpStream::connect(("127.0.0.1", port)).unwrap(), &text).unwrap().status
    };
    assert_eq!(["/", "/events", "/history", "/upstreams"].map(ask), [200, 401, 401, 401]);
}

#[test]
fn events_have_what_the_documentation_says_and_the_newest_lines() {
    let pki = Pki::new();
    let busy = busy(&pki, ADMIN);
    let socket = pki.folder.path().join("admin.sock");
    let mut events = Events::open(&socket).unwrap();
    let first = until("all counted", || {
        let tick = events.next().unwrap();
        // The refused one is gone: what is asked for later must say the same.
        let is_counted = tick["status"]["connections"]["parked"] == 2
            && tick["status"]["connections"]["open"] == 2
            && tick["counts"]["refused"] == 1
            && tick["upstreams"]["down"] == 1;
        is_counted.then_some(tick)
    });
    // Parts that have a section of their own are shown there only.
    let mut shown = example("/events");
    shown["status"] = example("/status");
    shown["memory"] = example("/memory");
    shown["upstreams"]["listed"] = example("/upstreams")["upstreams"].take();
    assert_eq!(keys(&shown), keys(&first), "the example in docs/admin.md");
    let history: Value = serde_json::from_str(&get(&socket, "/history").body).unwrap();
    assert_eq!(keys(&example("/history")), keys(&history), "the example in docs/admin.md");
    let upstreams: Value = serde_json::from_str(&get(&socket, "/upstreams").body).unwrap();
    let mut shown = example("/upstreams");
    // This edge dials from no address of its own.
    shown["sources"] = upstreams["sources"].clone();
    assert_eq!(keys(&shown), keys(&upstreams), "the example in docs/admin.md");
    let coded = &first["compression"];
    assert_eq!((&coded["responses"], &coded["left_alone"][0]["count"]), (&1.into(), &1.into()));
    assert!(coded["bytes_sent"].as_u64() < coded["bytes_identity"].as_u64(), "{coded}");
    let reason = &first["reasons"][0];
    assert_eq!((&reason["reason"], &reason["count"]), (&"refused by name".into(), &1.into()));
    assert_eq!(first["handshakes"]["groups"][0]["count"], 1);
    let status: Value = serde_json::from_str(&get(&socket, "/status").body).unwrap();
    assert_eq!(status["connections"], first["status"]["connections"]);
    // Whoever reads sees new lines.
    refuse(&busy.edge, "nobody.test");
    let line = until("the line", || {
        let tick = events.next().unwrap();
        let lines = tick["log"]["lines"].as_array().unwrap().clone();
        lines.into_iter().find(|line| line.as_str().unwrap().contains("nobody.test"))
    });
    let line: Value = serde_json::from_str(line.as_str().unwrap()).unwrap();
    assert_eq!(line["reason"], "no rule for this name");
}

#[test]
fn readers_are_bounded_and_a_reload_ends_them() {
    let folder = Folder::new();
    let rules = "[[rule]]\nname = \"all\"\naction = \"refuse\"\n";
    let (_edge, file, socket) = start(&folder, ADMIN, rules);
    let mut readers: Vec<Events> =
        (0..READERS_MAX).map(|_| Events::open(&socket).unwrap()).collect();
    for reader in &mut readers {
        assert!(reader.next().is_some());
    }
    let refused = Events::open(&socket).err().unwrap();
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    // Scrapers have their places.
    assert_eq!(get(&socket, "/metrics").status, 200);
    readers.pop();
    readers.push(until("a place", || Events::open(&socket).ok()));
    let said = output(edge::eyelet(&folder).arg("reload").arg(&file));
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    for reader in &mut readers {
        until("the end", || reader.next().is_none().then_some(()));
    }
    assert!(Events::open(&socket).unwrap().next().is_some());
}

#[test]
fn ssh_may_lead_a_browser_to_the_socket_and_no_other_page_may_ask() {
    let folder = Folder::new();
    let (_edge, _, socket) =
        start(&folder, ADMIN, "[[rule]]\nname = \"all\"\naction = \"refuse\"\n");
    let page = ask_with(&socket, "/", "Sec-Fetch-Site: none\r\n");
    assert!(page.head.contains("content-security-policy: default-src 'none';"), "{}", page.head);
    assert!(page.status == 200 && page.body.starts_with("<!doctype html>"));
    let ask = |host: &str, fields: &str| {
        let text = request("/status", fields).replace("Host: localhost", &format!("Host: {host}"));
        exchange(connect(&socket).unwrap(), &text).unwrap().status
    };
    assert_eq!(ask("localhost:9000", "Sec-Fetch-Site: same-origin\r\n"), 200);
    assert_eq!(ask("127.0.0.1:9000", ""), 200);
    assert_eq!(ask("attacker.example:9000", "Sec-Fetch-Site: same-origin\r\n"), 421);
    assert_eq!(ask("localhost:9000", "Sec-Fetch-Site: cross-site\r\n"), 403);
    assert_eq!(ask_with(&socket, "/", "Sec-Fetch-Site: cross-site\r\n").status, 200);
}
