//! Clients that pipeline requests to an originate rule with an HTTP/2 upstream: what is asked at
//! once, and that responses stay in order.

use std::io::Write;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use h2::Reason;
use tokio::sync::Barrier;

use crate::support::pki::Kind;
use crate::support::two::{self, Answer, Asked, say};
use crate::support::web::hear;
use crate::support::{Edge, Pki, Upstream};

/// An edge with an application for app.test that speaks HTTP/2.
struct Pipelined {
    edge: Edge,
    _app: Upstream,
    _pki: Pki,
}

impl Pipelined {
    fn new(answer: impl Fn(Asked) -> Answer + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1", answer)
    }

    /// Such an edge with an upstream that is given by this host.
    fn at(host: &str, answer: impl Fn(Asked) -> Answer + Send + Sync + 'static) -> Self {
        let pki = Pki::new();
        let app = two::app(100, Some(pki.server("app", &["app.test"], Kind::P256)), answer);
        let config = format!(
            "workers = 1\n[[listener]]\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n[[rule]]\n\
             action = \"originate\"\nupstream = \"https://{host}:{}\"\n\
             upstream_name = \"app.test\"\nupstream_ca = \"ca.pem\"\n",
            app.address.port()
        );
        let edge = Edge::start_whole(&pki.folder, &config, |_| ());
        Self { edge, _app: app, _pki: pki }
    }

    /// A client that has sent all of this in one write.
    fn say(&self, requests: &str) -> TcpStream {
        let mut client = self.edge.connect();
        client.write_all(requests.as_bytes()).unwrap();
        client
    }
}

fn request(method: &str, path: &str, rest: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{rest}\r\n")
}

fn get(path: &str) -> String {
    request("GET", path, "")
}

/// A body of its own for each path, which takes many frames.
fn body_of(path: &str) -> String {
    path.repeat(20_000)
}

/// None of eight is answered before all have come. The request before them dials.
#[test]
fn pipelined_gets_are_asked_at_once_and_answered_in_order() {
    // The load and the health of a name's addresses are known.
    for host in ["127.0.0.1", "localhost"] {
        are_asked_at_once(host);
    }
}

fn are_asked_at_once(host: &str) {
    let barrier = Arc::new(Barrier::new(8));
    let pipelined = Pipelined::at(host, move |(request, mut respond)| {
        let barrier = barrier.clone();
        Box::pin(async move {
            let path = request.uri().path();
            if path != "/first" {
                barrier.wait().await;
            }
            say(&mut respond, body_of(path));
        })
    });
    let paths: Vec<String> = (0..8).map(|n| format!("/{n}")).collect();
    let all: String = paths.iter().map(|path| get(path)).collect();
    let mut client = pipelined.say(&format!("{}{all}", get("/first")));
    for path in std::iter::once("/first").chain(paths.iter().map(String::as_str)) {
        let heard = hear(&mut client, "GET");
        assert_eq!(heard.status, 200, "{path}: {}", heard.head);
        assert!(heard.text() == body_of(path), "{path}: {} bytes", heard.body.len());
    }
    for path in &paths {
        let line = pipelined.edge.line(path, |line| line["http"]["path"] == **path);
        assert_eq!(line["reason"], "complete", "{line}");
    }
}

/// A POST is asked after all before it were answered, and before all behind it.
#[test]
fn a_pipelined_post_stays_in_its_place() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let pipelined = Pipelined::new(move |(request, mut respond)| {
        let noted = noted.clone();
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            noted.lock().unwrap().push(format!("asked {path}"));
            let body = two::read(&mut request.into_body()).await.unwrap();
            noted.lock().unwrap().push(format!("answered {path}"));
            say(&mut respond, format!("{path} {}", body.escape_ascii()));
        })
    });
    let post = request("POST", "/post", "Content-Length: 18\r\n");
    let head = request("HEAD", "/head", "");
    // The body looks like a request.
    let body = "GET /no HTTP/1.1\r\n";
    let all = [get("/first"), get("/a"), head, post + body, get("/b"), get("/c")].concat();
    let mut client = pipelined.say(&all);
    let expected = [
        ("GET", "/first "),
        ("GET", "/a "),
        ("HEAD", ""),
        ("POST", "/post GET /no HTTP/1.1\\r\\n"),
        ("GET", "/b "),
        ("GET", "/c "),
    ];
    for (method, text) in expected {
        let heard = hear(&mut client, method);
        assert_eq!((heard.status, heard.text().as_str()), (200, text), "{}", heard.head);
    }
    let seen = seen.lock().unwrap();
    let at = |line: &str| seen.iter().position(|seen| seen == line).unwrap();
    for before in ["answered /a", "answered /head"] {
        assert!(at(before) < at("asked /post"), "{before}: {seen:?}");
    }
    for behind in ["asked /b", "asked /c"] {
        assert!(at("answered /post") < at(behind), "{behind}: {seen:?}");
    }
    assert!(!seen.iter().any(|seen| seen == "asked /no"), "{seen:?}");
}

/// A stream that fails has its error in its place, and the others have their responses.
#[test]
fn a_pipelined_request_that_fails_keeps_its_place() {
    let pipelined = Pipelined::new(move |(request, mut respond)| {
        Box::pin(async move {
            match request.uri().path() {
                "/reset" => respond.send_reset(Reason::INTERNAL_ERROR),
                path => say(&mut respond, path.to_owned()),
            }
        })
    });
    let mut client = pipelined.say(&[get("/first"), get("/a"), get("/reset"), get("/b")].concat());
    for (status, text) in [(200, "/first"), (200, "/a"), (502, ""), (200, "/b")] {
        let heard = hear(&mut client, "GET");
        assert_eq!(heard.status, status, "{}", heard.head);
        assert!(heard.text().starts_with(text), "{}", heard.text());
    }
}

/// `Connection: close` ends what a client may ask: what it sent behind is not served.
#[test]
fn nothing_behind_a_close_is_asked() {
    let pipelined = Pipelined::new(move |(request, mut respond)| {
        Box::pin(async move { say(&mut respond, request.uri().path().to_owned()) })
    });
    let last = request("GET", "/last", "Connection: close\r\n");
    let mut client = pipelined.say(&[get("/first"), get("/a"), last, get("/no")].concat());
    for path in ["/first", "/a", "/last"] {
        assert_eq!(hear(&mut client, "GET").text(), path);
    }
    assert_eq!(crate::support::ending(&mut client, crate::support::SOON).0, b"");
    pipelined.edge.line_of(client.local_addr().unwrap());
    let lines = pipelined.edge.lines();
    assert!(lines.iter().all(|line| line["http"]["path"] != "/no"), "{lines:?}");
}
