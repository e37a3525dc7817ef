//! Several applications behind one rule: how requests are shared, what happens when one of them
//! dies and comes back, checks, and the fields that every response gets.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::resting::{ADMIN, admin, listed};
use crate::support::client::Offer;
use crate::support::edge::LISTENER;
use crate::support::upstream::vacant;
use crate::support::web::{ask, get, head, hear};
use crate::support::{Edge, Folder, Pki, Talk, Tls, Upstream, need, until};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/answer.py");

/// Requests of the test in which an application dies.
const REQUESTS: usize = 1_000;
/// Two checks of two seconds, each with the pause of two seconds before it, and a little.
const CHECKS: Duration = Duration::from_millis(8_500);

/// An edge before a list of applications.
struct Balanced {
    edge: Edge,
    pki: Pki,
}

impl Balanced {
    fn new(upstreams: &[SocketAddr], rule: &str, whole: &str) -> Self {
        let pki = Pki::new();
        let list: Vec<String> =
            upstreams.iter().map(|address| format!("\"http://{address}\"")).collect();
        let text = pki.terminate("LIST", &format!("compress = \"off\"\n{rule}"));
        let text = text.replace("\"LIST\"", &format!("[{}]", list.join(", ")));
        let edge = Edge::start_whole(&pki.folder, &format!("{LISTENER}{whole}\n{text}"), |_| ());
        Self { edge, pki }
    }

    fn connect(&self) -> Tls {
        Offer::new(&self.pki).connect(self.edge.address(), "app.test")
    }
}

/// An application in Python.
fn start(address: SocketAddr, status: &Path) -> Talk {
    let mut command = Command::new("python3");
    command.arg(PROGRAM).arg(address.port().to_string()).arg(status);
    let mut talk = Talk::start(&mut command);
    talk.hear("listening");
    talk
}

/// The port of whoever answers.
fn answers(client: &mut Tls) -> String {
    let heard = get(client, "/");
    assert_eq!(heard.status, 200, "{heard:?}");
    heard.text().trim().to_owned()
}

#[test]
fn no_harmless_request_fails_when_one_of_two_dies_and_it_gets_its_share_again() {
    if !need("python3") {
        return;
    }
    let (folder, addresses) = (Folder::new(), vacant::<2>());
    let status = folder.write("status", "200");
    let mut programs = addresses.map(|address| Some(start(address, &status)));
    let web = Balanced::new(&addresses, "", "");
    let ports = addresses.map(|address| address.port().to_string());
    let mut client = web.connect();
    for port in &ports {
        until("an answer of each", || (answers(&mut client) == *port).then_some(()));
    }
    let done = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (mut client, done) = (web.connect(), done.clone());
            thread::spawn(move || {
                for _ in 0..REQUESTS / 4 {
                    answers(&mut client);
                    done.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    until("some answers", || (done.load(Ordering::SeqCst) > REQUESTS / 5).then_some(()));
    programs[0] = None;
    clients.into_iter().for_each(|client| client.join().expect("no request has failed"));
    assert_eq!(done.load(Ordering::SeqCst), REQUESTS);
    // A pause may be over at any time, and then one request tries it and goes to the other.
    web.edge.wait_log(&format!("upstream http://{} is down: ", addresses[0]));
    for _ in 0..20 {
        assert_eq!(answers(&mut client), ports[1]);
    }
    programs[0] = Some(start(addresses[0], &status));
    until("an answer of the one that is back", || (answers(&mut client) == ports[0]).then_some(()));
    web.edge.wait_log(&format!("upstream http://{} is up again after ", addresses[0]));
    assert_eq!(web.edge.log().matches("is down: ").count(), 1, "a line at each change");
}

/// An application that reads a request and closes, and how many requests it has read.
fn closing() -> (Upstream, Arc<AtomicUsize>) {
    let read = Arc::<AtomicUsize>::default();
    let count = read.clone();
    let upstream = Upstream::serve(move |mut stream| {
        if stream.peek(&mut [0]).is_ok_and(|read| read > 0) {
            head(&mut stream);
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (upstream, read)
}

/// A long poll may be the only request that an upstream gets.
#[test]
fn a_response_after_a_rest_brings_an_upstream_back() {
    let (app, [vacant]) = (Upstream::by_hand(), vacant::<1>());
    let web = Balanced::new(&[app.address, vacant], "", ADMIN);
    let socket = web.pki.folder.path().join("admin.sock");
    let request = b"GET /wait HTTP/1.1\r\nHost: app.test\r\n\r\n";
    let mut client = web.connect();
    client.write_all(request).unwrap();
    head(&mut app.take());
    assert_eq!(hear(&mut client, "GET").status, 502);
    drop(client);
    web.edge.wait_log(&format!("upstream http://{} is down: ", app.address));
    let mut client = web.connect();
    client.write_all(request).unwrap();
    let mut taken = app.take();
    head(&mut taken);
    let is_parked = |one: &Value| one["state"] == "parked" && !one["upstream"].is_null();
    until("the request to rest", || listed(&socket)?.iter().any(is_parked).then_some(()));
    taken.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").unwrap();
    assert_eq!(hear(&mut client, "GET").status, 200);
    web.edge.wait_log(&format!("upstream http://{} is up again after ", app.address));
}

#[test]
fn checks_are_no_connections_of_the_metrics() {
    let app = Upstream::by_hand();
    let web = Balanced::new(&[app.address], "upstream_check = \"/healthz\"", ADMIN);
    let socket = web.pki.folder.path().join("admin.sock");
    for _ in 0..2 {
        let mut check = app.take();
        assert!(head(&mut check).starts_with("GET /healthz "));
        check.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
    }
    let connects = || {
        let shown = admin(&socket, "GET /metrics")?;
        let (_, rest) = shown.split_once("\neyelet_upstream_connect_duration_seconds_count ")?;
        rest.lines().next()?.parse::<u32>().ok()
    };
    assert_eq!(connects(), Some(0));
    let mut client = web.connect();
    client.write_all(b"GET /one HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    until("the request beside checks", || {
        head(&mut app.take()).starts_with("GET /one ").then_some(())
    });
    until("its connection to count", || (connects() == Some(1)).then_some(()));
}

#[test]
fn only_a_harmless_request_without_a_response_goes_to_another_upstream() {
    let [one, other] = [closing(), closing()];
    let web = Balanced::new(&[one.0.address, other.0.address], "", "");
    let read = || one.1.load(Ordering::SeqCst) + other.1.load(Ordering::SeqCst);
    let mut client = web.connect();
    let post = "POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 2\r\n\r\nhi";
    assert_eq!(ask(&mut client, post).status, 502);
    assert_eq!(read(), 1, "a POST is sent once");
    assert_eq!(get(&mut client, "/").status, 502);
    let [one_read, other_read] = [&one.1, &other.1].map(|read| read.load(Ordering::SeqCst));
    assert_eq!(read(), 3, "a GET is sent to each");
    assert!(one_read > 0 && other_read > 0, "{one_read} and {other_read}");
    // All are down: they are tried, rather than to refuse.
    let before = read();
    assert_eq!(get(&mut client, "/").status, 502);
    assert_eq!(read(), before + 2);
    let good = Upstream::http();
    let web = Balanced::new(&[one.0.address, good.address], "", "");
    let mut client = web.connect();
    for _ in 0..30 {
        assert_eq!(get(&mut client, "/").status, 200);
    }
}

#[test]
fn a_check_takes_an_application_out_and_brings_it_back() {
    if !need("python3") {
        return;
    }
    let (folder, addresses) = (Folder::new(), vacant::<2>());
    let statuses = ["one", "other"].map(|name| folder.write(name, "200"));
    let _programs = [0, 1].map(|number| start(addresses[number], &statuses[number]));
    let web = Balanced::new(&addresses, "upstream_check = \"/healthz\"", "");
    let ports = addresses.map(|address| address.port().to_string());
    folder.write("one", "503");
    let name = format!("upstream http://{}", addresses[0]);
    web.edge.wait_log(&format!("{name} is down: its check answers 503"));
    let mut client = web.connect();
    for _ in 0..50 {
        assert_eq!(answers(&mut client), ports[1]);
    }
    folder.write("one", "302");
    web.edge.wait_log(&format!("{name} is up again after "));
    until("an answer of the one that is back", || (answers(&mut client) == ports[0]).then_some(()));
}

/// A check that finds no descriptor says nothing about the application.
#[test]
fn a_check_without_a_descriptor_takes_nobody_down() {
    for check in ["connect", "/healthz"] {
        let app = Upstream::http();
        let web = Balanced::new(&[app.address], &format!("upstream_check = \"{check}\""), "");
        until("a check", || (app.accepted() > 0).then_some(()));
        let before = web.edge.limit_descriptors(Some(1));
        // Two of them have failed by then, with the pause between them.
        thread::sleep(CHECKS);
        let accepted = app.accepted();
        web.edge.limit_descriptors(before);
        until("another check", || (app.accepted() > accepted).then_some(()));
        assert!(!web.edge.log().contains("is down"), "{check}: {}", web.edge.log());
        assert_eq!(get(&mut web.connect(), "/").status, 200);
    }
}

#[test]
fn responses_get_the_fields_of_the_configuration() {
    let app = Upstream::http();
    let rule = "headers = { X-Frame-Options = \"DENY\", Content-Type = \"text/x-own\" }\n\
                hsts = true";
    let whole = "[http]\nheaders = { X-Frame-Options = \"SAMEORIGIN\", Server = \"edge\" }";
    let web = Balanced::new(&[app.address], rule, whole);
    let mut client = web.connect();
    let heard = get(&mut client, "/");
    for (name, value) in [
        ("x-frame-options", "DENY"),
        ("content-type", "text/x-own"),
        ("server", "edge"),
        ("strict-transport-security", "max-age=31536000"),
    ] {
        assert_eq!(heard.field(name), Some(value), "{heard:?}");
    }
    assert_eq!(heard.head.matches("ontent-").count(), 2, "replaced, not added: {heard:?}");
    // Eyelet's own answers, too.
    client.write_all(b"TRACE / HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    let refused = head(&mut client);
    assert!(refused.contains("strict-transport-security: max-age=31536000\r\n"), "{refused}");
}

#[test]
fn a_rule_does_without_the_hsts_of_all_rules() {
    let app = Upstream::http();
    let whole = "[http]\nhsts = true\nheaders = { Server = \"edge\" }";
    let web = Balanced::new(&[app.address], "hsts = false", whole);
    let heard = get(&mut web.connect(), "/");
    assert_eq!(heard.field("server"), Some("edge"), "{heard:?}");
    assert_eq!(heard.field("strict-transport-security"), None, "{heard:?}");
}
