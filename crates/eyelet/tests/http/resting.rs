//! Responses without an end, by HTTP/1.1: while nothing of one moves, its connection is parked with
//! its upstream's. Bytes of either side have it go on, as if it had never rested.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::client::reset;
use crate::support::program::need;
use crate::support::web::{Web, chunks, get, head, line};
use crate::support::{Tls, Upstream, expect, until};

const CHUNKED: &str = "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n";
const LENGTH: &str = "Content-Length: 12\r\n";
pub const ADMIN: &str = "[admin]\naddress = \"unix:admin.sock\"\n";

/// A connection whose response has begun, and both its peers.
struct Begun {
    web: Web,
    client: Tls,
    app: TcpStream,
}

impl Begun {
    fn new(fields: &str, more: &str) -> Self {
        let web = Web::with(Upstream::by_hand(), "", &format!("{ADMIN}{more}"));
        let mut client = web.connect();
        client.write_all(b"GET /events?a=1 HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        let mut app = web.app.take();
        head(&mut app);
        app.write_all(format!("HTTP/1.1 200 OK\r\n{fields}\r\n").as_bytes()).unwrap();
        let said = head(&mut client);
        assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
        Self { web, client, app }
    }

    /// Waits until the connection is parked with its upstream.
    fn rests(&self) -> Value {
        rests(&self.web)
    }

    fn access_line(&self) -> Value {
        self.web.request_line("/events?a=1")
    }
}

/// Waits until the only connection is parked with its upstream.
pub fn rests(web: &Web) -> Value {
    let socket = web.pki.folder.path().join("admin.sock");
    until("the exchange to rest", || {
        let one = listed(&socket)?.into_iter().next()?;
        (one["state"] == "parked" && !one["upstream"].is_null()).then_some(one)
    })
}

/// Returns the answer of `[admin]`.
pub fn admin(socket: &Path, ask: &str) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.write_all(format!("{ask} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
    let mut said = String::new();
    stream.read_to_string(&mut said).ok()?;
    Some(said.split_once("\r\n\r\n")?.1.to_owned())
}

/// All connections, as `[admin]` lists them.
pub fn listed(socket: &Path) -> Option<Vec<Value>> {
    serde_json::from_str(&admin(socket, "GET /connections")?).ok()
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

#[test]
fn events_after_each_rest_arrive_once_and_the_connection_goes_on() {
    let Begun { web, mut client, mut app } = Begun::new(CHUNKED, "");
    let begun = Begun { client: web.connect(), app: app.try_clone().unwrap(), web };
    for round in 0..3 {
        let event = chunk(&format!("data: {round}\n\n"));
        app.write_all(event.as_bytes()).unwrap();
        expect(&mut client, event.as_bytes());
        begun.rests();
    }
    // A chunk that is cut within its first line, within its data, and before its end.
    for piece in ["b\r", "\ndata: ", "cut\n\n", "\r\n"] {
        app.write_all(piece.as_bytes()).unwrap();
        if piece.starts_with('\r') {
            continue;
        }
        begun.rests();
    }
    app.write_all(b"0\r\nX-Sum: 1\r\n\r\n").unwrap();
    let rest = chunks(&mut client);
    assert_eq!(String::from_utf8_lossy(&rest), "data: cut\n\n");
    let said = begun.access_line();
    assert_eq!((&said["reason"], &said["outcome"]), (&"complete".into(), &"terminated".into()));
    assert_eq!(said["http"]["status"], 200, "{said}");
    assert_eq!(said["upstream"], begun.web.app.address.to_string(), "{said}");
    assert_eq!((&said["bytes_identity"], &said["bytes_sent"]), (&38.into(), &38.into()), "{said}");
    assert!(said["duration_ms"].as_u64().unwrap() >= 3_000, "{said}");
    assert!(said["bytes_to_client"].as_u64().unwrap() > 38, "{said}");
    // The client's connection serves the next request, by another one of the upstream.
    client.write_all(b"GET /next HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    let mut next = begun.web.app.take();
    head(&mut next);
    next.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    assert!(head(&mut client).starts_with("HTTP/1.1 200 "));
    expect(&mut client, b"ok");
    assert_eq!(begun.web.request_line("/next")["http"]["status"], 200);
}

/// Shown as what it is, with what it costs, and ended by whoever may.
#[test]
fn a_response_at_rest_is_listed_and_can_be_ended() {
    let mut begun = Begun::new(CHUNKED, "");
    begun.app.write_all(chunk("data: 1\n\n").as_bytes()).unwrap();
    expect(&mut begun.client, chunk("data: 1\n\n").as_bytes());
    let one = begun.rests();
    assert_eq!((&one["kind"], &one["sni"]), (&"http1".into(), &"app.test".into()), "{one}");
    let socket = begun.web.pki.folder.path().join("admin.sock");
    let metrics = admin(&socket, "GET /metrics").unwrap();
    let parked = metrics.lines().find_map(|line| line.strip_prefix("eyelet_parked_memory_bytes "));
    let bytes: usize = parked.unwrap().parse().unwrap();
    assert!(bytes <= 400, "its slot, and {} bytes beside it", bytes - 240);
    assert_eq!(one["resting"], json!({"event_stream": 1}), "{one}");
    let (first, upstream) = (&one["requests"][0], &one["upstream"]);
    assert_eq!((&first["method"], &first["upstream"]), (&"GET".into(), &Value::Null), "{one}");
    assert!(first["path"].as_str().is_some_and(|path| path.starts_with('/')), "{one}");
    assert_eq!(*upstream, begun.web.app.address.to_string(), "{one}");
    assert!(metrics.contains("\neyelet_streams{state=\"resting\",kind=\"event_stream\"} 1\n"));
    let memory: Value = serde_json::from_str(&admin(&socket, "GET /memory").unwrap()).unwrap();
    let streams = json!({"event_stream": 1});
    assert_eq!(memory["resting"], json!({"bytes": bytes, "connections": 1, "streams": streams}));
    admin(&socket, &format!("DELETE /connections/{}", one["id"].as_str().unwrap())).unwrap();
    // Between two events the stream ends properly.
    assert_eq!(chunks(&mut begun.client), b"");
    assert_eq!(begun.access_line()["http"]["status"], 200);
}

#[test]
fn an_upstream_that_cuts_a_response_at_rest_cuts_it_for_the_client() {
    let ends: [fn(TcpStream); 2] = [drop, reset];
    for (fields, end) in [CHUNKED, LENGTH].into_iter().flat_map(|of| ends.map(|end| (of, end))) {
        let mut begun = Begun::new(fields, "");
        begun.rests();
        end(std::mem::replace(&mut begun.app, begun.web.edge.connect()));
        let mut rest = Vec::new();
        let ended = begun.client.read_to_end(&mut rest);
        let is_cut = ended.is_err_and(|error| error.kind() == ErrorKind::UnexpectedEof);
        assert!(is_cut && !rest.ends_with(b"0\r\n\r\n"), "{fields}: {rest:?}");
        let said = begun.access_line();
        assert_eq!(said["outcome"], "failed", "{said}");
        let reason = "upstream: closed before the response's end";
        assert_eq!(said["reason"], reason, "{said}");
    }
}

#[test]
fn a_client_that_leaves_a_response_at_rest_is_noticed() {
    let begun = Begun::new(CHUNKED, "");
    begun.rests();
    let Begun { web, client, mut app } = begun;
    reset(client.sock);
    assert_eq!(app.read(&mut [0]).unwrap(), 0, "the upstream is told");
    let said = web.request_line("/events?a=1");
    assert_eq!(said["outcome"], "left", "{said}");
}

/// Also the time at rest counts. An event stream that says nothing is no body that stalls.
#[test]
fn a_response_at_rest_is_bounded_by_its_timeout() {
    let rows = [
        (LENGTH, "body_timeout", "[http]\nbody_timeout = \"4s\"\n"),
        (
            CHUNKED,
            "idle_timeout",
            "[limits]\nidle_timeout = \"4s\"\n[http]\nbody_timeout = \"1s\"\n",
        ),
    ];
    for (fields, reason, timeouts) in rows {
        let mut begun = Begun::new(fields, timeouts);
        begun.rests();
        let mut rest = Vec::new();
        assert!(begun.client.read_to_end(&mut rest).is_err() && rest.is_empty());
        let said = begun.access_line();
        assert_eq!(said["reason"], reason, "{said}");
        let ms = said["duration_ms"].as_u64().unwrap();
        assert!((4_000..20_000).contains(&ms), "{ms}");
    }
}

#[test]
fn a_reload_keeps_a_response_at_rest_and_its_rule_in_the_access_line() {
    let mut begun = Begun::new(CHUNKED, "");
    begun.rests();
    let folder = std::fs::read_dir(begun.web.pki.folder.path()).unwrap();
    let mut files = folder.map(|entry| entry.unwrap().path());
    let file = files.find(|path| path.extension().is_some_and(|end| end == "toml")).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("name = \"app\"", "name = \"renamed\"")).unwrap();
    begun.web.edge.signal(Signal::HUP);
    begun.web.edge.wait_log("configuration 2 serves");
    let event = chunk("data: 1\n\n");
    begun.app.write_all(event.as_bytes()).unwrap();
    expect(&mut begun.client, event.as_bytes());
    begun.rests();
    begun.app.write_all(b"0\r\n\r\n").unwrap();
    expect(&mut begun.client, b"0\r\n\r\n");
    let said = begun.access_line();
    assert_eq!((&said["rule"], &said["reason"]), (&"app".into(), &"complete".into()), "{said}");
    let mut client = begun.client;
    client.write_all(b"GET /next HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    let mut next = begun.web.app.take();
    head(&mut next);
    next.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    head(&mut client);
    assert_eq!(begun.web.request_line("/next")["rule"], "renamed");
}

/// A drain ends an event stream between two events, also one that rests.
#[test]
fn a_drain_ends_a_stream_at_rest_between_two_events() {
    let mut begun = Begun::new(CHUNKED, "[limits]\ndrain_timeout = \"30s\"\n");
    begun.app.write_all(chunk("data: 1\n\n").as_bytes()).unwrap();
    expect(&mut begun.client, chunk("data: 1\n\n").as_bytes());
    begun.rests();
    begun.web.edge.signal(Signal::TERM);
    assert_eq!(chunks(&mut begun.client), b"");
    assert!(begun.web.edge.wait_exit_alone().success());
    assert_eq!(begun.access_line()["http"]["status"], 200);
}

/// An upstream that pauses between three events: by TLS, if it is given a certificate and its key.
pub const EVENTS: &str = r#"
import http.server, ssl, sys, time
class Events(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for n in range(3):
            event = b"data: %d\n\n" % n
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            time.sleep(2.5 if n < 2 else 0)
        self.wfile.write(b"0\r\n\r\n")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Events)
if sys.argv[1:]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1], sys.argv[2])
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
"#;

/// curl and Python, over two rests.
#[test]
fn curl_hears_all_events_of_a_server_that_rests() {
    if !need("curl") || !need("python3") {
        return;
    }
    let mut python = Command::new("python3");
    let python = python.args(["-c", EVENTS]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut python = python.spawn().unwrap();
    let port = line(python.stdout.as_mut().unwrap());
    let mut app = Upstream::http();
    app.address.set_port(port.trim().parse().unwrap());
    let web = Web::with(app, "", ADMIN);
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--no-buffer", "--http1.1"]);
    curl.args(["--cacert", &web.pki.text("ca.pem")]);
    curl.args(["--resolve", &format!("app.test:{}:127.0.0.1", web.edge.port())]);
    let url = |path| format!("https://app.test:{}/{path}", web.edge.port());
    let said = curl.args([url("first"), url("second")]).output().unwrap();
    let _ = python.kill();
    let _ = python.wait();
    let heard = String::from_utf8_lossy(&said.stdout).into_owned();
    let events = "data: 0\n\ndata: 1\n\ndata: 2\n\n".repeat(2);
    assert_eq!(heard, events, "{}", String::from_utf8_lossy(&said.stderr));
    for path in ["/first", "/second"] {
        let said = web.request_line(path);
        assert_eq!(said["reason"], "complete", "{said}");
    }
    assert_eq!(get(&mut web.connect(), "/none").status, 503, "the server is gone");
}
