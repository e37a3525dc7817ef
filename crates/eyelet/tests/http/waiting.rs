//! Requests that rest before their responses, by HTTP/1.1: long polls, and uploads that pause.
//! Bytes of either side have them go on, as if they had never rested.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use super::resting::{ADMIN, admin, listed, rests};
use crate::support::client::reset;
use crate::support::program::need;
use crate::support::web::{Web, head, hear, line};
use crate::support::{Tls, Upstream, expect, noise, until};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const POLL: &str = "GET /wait HTTP/1.1\r\nHost: app.test\r\n\r\n";

/// A connection whose request is at its upstream, and both its peers.
struct Asked {
    web: Web,
    client: Tls,
    app: TcpStream,
}

impl Asked {
    fn new(request: &str, more: &str) -> Self {
        let web = Web::with(Upstream::by_hand(), "", &format!("{ADMIN}{more}"));
        let mut client = web.connect();
        client.write_all(request.as_bytes()).unwrap();
        let mut app = web.app.take();
        head(&mut app);
        Self { web, client, app }
    }

    /// Waits until the connection is parked with its upstream.
    fn rests(&self) -> Value {
        rests(&self.web)
    }

    fn access_line(&self) -> Value {
        self.web.request_line("/wait")
    }

    /// The connection serves another request, by the same connection of the upstream.
    fn goes_on(&mut self) {
        self.client.write_all(b"GET /next HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        self.is_served();
    }

    /// Its connection serves a next request, by another connection to the upstream.
    fn goes_on_anew(&mut self) {
        self.client.write_all(b"GET /next HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        self.app = self.web.app.take();
        self.is_served();
    }

    fn is_served(&mut self) {
        assert!(head(&mut self.app).starts_with("GET /next "));
        self.app.write_all(OK).unwrap();
        assert_eq!(hear(&mut self.client, "GET").body, b"hello");
        assert_eq!(self.web.request_line("/next")["http"]["status"], 200);
    }
}

#[test]
fn a_long_poll_rests_and_is_answered() {
    let mut asked = Asked::new(POLL, "");
    asked.rests();
    let socket = asked.web.pki.folder.path().join("admin.sock");
    let metrics = admin(&socket, "GET /metrics").unwrap();
    let parked = metrics.lines().find_map(|line| line.strip_prefix("eyelet_parked_memory_bytes "));
    let bytes: usize = parked.unwrap().parse().unwrap();
    assert!(bytes <= 600, "its slot, and {} bytes beside it", bytes - 240);
    asked.app.write_all(OK).unwrap();
    assert_eq!(hear(&mut asked.client, "GET").body, b"hello");
    let said = asked.access_line();
    assert_eq!((&said["reason"], &said["http"]["status"]), (&"complete".into(), &200.into()));
    assert_eq!((&said["bytes_identity"], &said["bytes_sent"]), (&5.into(), &5.into()), "{said}");
    assert_eq!(said["upstream"], asked.web.app.address.to_string(), "{said}");
    // The time at rest counts, in steps of the timer wheel.
    assert!(said["http"]["upstream_ms"].as_u64().unwrap() >= 800, "{said}");
    asked.goes_on();
}

/// `upstream_ms` of its line is not rounded to ticks of the timer wheel, and is as long as
/// the wait.
#[test]
fn the_time_of_a_slow_upstream_counts_while_it_rests() {
    if !need("curl") {
        return;
    }
    for (version, pause) in [("--http1.1", 1_500), ("--http2", 1_500), ("--http1.1", 2_300)] {
        let web = Web::with(Upstream::by_hand(), "", "");
        let url = format!("https://app.test:{}/slow", web.edge.port());
        let resolve = format!("app.test:{}:127.0.0.1", web.edge.port());
        let mut curl = Command::new("curl")
            .args(["-sSk", version, "--resolve", &resolve, &url])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut app = web.app.take();
        head(&mut app);
        let got = std::time::Instant::now();
        std::thread::sleep(std::time::Duration::from_millis(pause));
        let least = got.elapsed().as_millis() as u64;
        app.write_all(OK).unwrap();
        assert!(curl.wait().unwrap().success());
        let said = web.request_line("/slow");
        let upstream_ms = said["http"]["upstream_ms"].as_u64().unwrap();
        let whole_ms = said["duration_ms"].as_u64().unwrap();
        // Two clocks are cut to whole milliseconds, and the head was sent before it was read.
        assert!(least - 100 <= upstream_ms && upstream_ms <= whole_ms, "{version} {least}: {said}");
    }
}

/// A kept connection that its upstream closes without a response may have been at its end, as
/// before a rest.
#[test]
fn a_request_at_rest_is_sent_again_where_a_kept_connection_ends() {
    let request = POLL.replace("\r\n\r\n", "\r\nX-Own: field\r\n\r\n");
    let mut asked = Asked::new(&request.replace("/wait", "/first"), "");
    asked.app.write_all(OK).unwrap();
    hear(&mut asked.client, "GET");
    asked.client.write_all(request.as_bytes()).unwrap();
    let sent = head(&mut asked.app);
    asked.rests();
    asked.app = {
        drop(asked.app);
        asked.web.app.take()
    };
    assert_eq!(head(&mut asked.app), sent);
    asked.app.write_all(OK).unwrap();
    assert_eq!(hear(&mut asked.client, "GET").body, b"hello");
    assert_eq!(asked.access_line()["http"]["status"], 200);
}

/// It is decided before it is sent again: a reload may have refused it.
#[test]
fn a_request_at_rest_that_the_rules_refuse_meanwhile_is_not_sent_again() {
    for (refused, status) in [("/wait", 502), ("/elsewhere", 200)] {
        let mut asked = Asked::new(&POLL.replace("/wait", "/first"), "");
        asked.app.write_all(OK).unwrap();
        hear(&mut asked.client, "GET");
        asked.client.write_all(POLL.as_bytes()).unwrap();
        head(&mut asked.app);
        asked.rests();
        let rule = format!("[[rule]]\naction = \"refuse\"\npath = \"{refused}\"\n");
        asked.web.reload("[[rule]]", &format!("{rule}[[rule]]"));
        asked.app.shutdown(std::net::Shutdown::Both).unwrap();
        if status == 200 {
            let mut again = asked.web.app.take();
            assert!(head(&mut again).starts_with("GET /wait "));
            again.write_all(OK).unwrap();
        }
        assert_eq!(hear(&mut asked.client, "GET").status, status);
        assert_eq!(asked.web.app.accepted(), if status == 200 { 2 } else { 1 });
    }
}

/// A request rests with all that the framing and the fields of its response depend on.
#[test]
fn a_response_after_a_rest_is_that_of_its_request() {
    let request = POLL.replace("GET", "HEAD");
    let mut asked = Asked::new(&request, "");
    asked.rests();
    asked.app.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").unwrap();
    assert_eq!(hear(&mut asked.client, "HEAD").body, b"");
    asked.goes_on();
    // HTTP/1.0 knows no chunks.
    let mut asked = Asked::new("GET /wait HTTP/1.0\r\nHost: app.test\r\n\r\n", "");
    asked.rests();
    asked.app.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n").unwrap();
    let said = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    asked.app.write_all(said).unwrap();
    let mut whole = String::new();
    asked.client.read_to_string(&mut whole).unwrap();
    assert!(whole.starts_with("HTTP/1.1 200 ") && whole.ends_with("\r\n\r\nabc"), "{whole}");
    // A coding that the client accepts.
    let coded = POLL.replace("\r\n\r\n", "\r\nAccept-Encoding: gzip\r\n\r\n");
    let mut asked = Asked::new(&coded, "[http]\nheaders = { \"X-Edge\" = \"yes\" }\n");
    asked.rests();
    let text = "text to be coded ".repeat(200);
    let length = text.len();
    let fields = format!("Content-Type: text/plain\r\nContent-Length: {length}\r\n");
    asked.app.write_all(format!("HTTP/1.1 200 OK\r\n{fields}\r\n{text}").as_bytes()).unwrap();
    let heard = hear(&mut asked.client, "GET");
    assert_eq!(heard.field("content-encoding"), Some("gzip"));
    assert_eq!(heard.field("x-edge"), Some("yes"));
    assert_eq!(asked.access_line()["coding"], "gzip");
}

/// The time at rest counts.
#[test]
fn a_long_poll_at_rest_is_bounded_by_upstream_timeout() {
    let mut asked = Asked::new(POLL, "[http]\nupstream_timeout = \"4s\"\n");
    asked.rests();
    assert_eq!(hear(&mut asked.client, "GET").status, 504);
    assert_eq!(asked.app.read(&mut [0]).unwrap(), 0, "the upstream is told");
    let said = asked.access_line();
    assert_eq!(said["reason"], "upstream: upstream_timeout", "{said}");
    let ms = said["duration_ms"].as_u64().unwrap();
    assert!((4_000..20_000).contains(&ms), "{ms}");
    asked.goes_on_anew();
}

/// Its own deadline has it wake, and a shorter timeout of other exchanges does not.
#[test]
fn a_long_poll_at_rest_wakes_only_to_end() {
    let timeouts = "[http]\nbody_timeout = \"1s\"\nupstream_timeout = \"7s\"\n";
    let mut asked = Asked::new(POLL, timeouts);
    asked.rests();
    let socket = asked.web.pki.folder.path().join("admin.sock");
    let (mut wakes, mut was_parked) = (0, true);
    until("its end", || {
        let is_parked = listed(&socket)?.pop()?["state"] == "parked";
        wakes += usize::from(was_parked && !is_parked);
        was_parked = is_parked;
        (asked.web.edge.count(|line| line["http"]["path"] == "/wait") == 1).then_some(())
    });
    assert!(wakes <= 1, "{wakes} wakes");
    assert!(asked.access_line()["duration_ms"].as_u64().unwrap() >= 7_000);
    assert_eq!(hear(&mut asked.client, "GET").status, 504);
    asked.goes_on_anew();
}

#[test]
fn an_end_of_either_side_is_passed_on_before_a_response() {
    let asked = Asked::new(POLL, "");
    asked.rests();
    let Asked { web, client, mut app } = asked;
    reset(client.sock);
    assert_eq!(app.read(&mut [0]).unwrap(), 0, "the upstream is told");
    let said = web.request_line("/wait");
    assert_eq!(said["outcome"], "left", "{said}");
    let ends: [fn(TcpStream); 2] = [drop, reset];
    for end in ends {
        let mut asked = Asked::new(POLL, "");
        asked.rests();
        end(std::mem::replace(&mut asked.app, asked.web.edge.connect()));
        assert_eq!(hear(&mut asked.client, "GET").status, 502);
        let said = asked.access_line();
        assert_eq!(said["reason"], "upstream: closed before it answered", "{said}");
        asked.goes_on_anew();
    }
}

/// A response after a reload has the fields of the new configuration, and the access line the rule
/// that decided its request. A drain waits for it.
#[test]
fn a_reload_and_a_drain_find_a_request_at_rest() {
    let mut asked = Asked::new(POLL, "[limits]\ndrain_timeout = \"30s\"\n");
    asked.rests();
    let folder = std::fs::read_dir(asked.web.pki.folder.path()).unwrap();
    let mut files = folder.map(|entry| entry.unwrap().path());
    let file = files.find(|path| path.extension().is_some_and(|end| end == "toml")).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("name = \"app\"", "name = \"renamed\"");
    std::fs::write(&file, format!("{text}[http]\nheaders = {{ \"X-Edge\" = \"new\" }}\n")).unwrap();
    asked.web.edge.signal(Signal::HUP);
    asked.web.edge.wait_log("configuration 2 serves");
    asked.app.write_all(OK).unwrap();
    let heard = hear(&mut asked.client, "GET");
    assert_eq!((heard.status, heard.field("x-edge")), (200, Some("new")));
    let said = asked.access_line();
    assert_eq!((&said["rule"], &said["reason"]), (&"app".into(), &"complete".into()), "{said}");
    asked.client.write_all(b"GET /last HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    let mut app = asked.web.app.take();
    head(&mut app);
    asked.rests();
    asked.web.edge.signal(Signal::TERM);
    asked.web.edge.wait_log("draining");
    app.write_all(OK).unwrap();
    assert_eq!(hear(&mut asked.client, "GET").body, b"hello");
    assert!(asked.web.edge.wait_exit_alone().success());
    assert_eq!(asked.web.request_line("/last")["rule"], "renamed");
}

/// The parts of an upload, each behind a rest.
#[test]
fn an_upload_that_pauses_rests_and_goes_on() {
    let body = noise(300_000, 5);
    let parts = [&body[..1], &body[1..200_000], &body[200_000..]];
    for (fields, is_chunked, is_early) in [
        ("Transfer-Encoding: chunked\r\n", true, false),
        ("Content-Length: 300000\r\n", false, true),
    ] {
        let asked = format!("POST /wait HTTP/1.1\r\nHost: app.test\r\n{fields}\r\n");
        let mut asked = Asked::new(&asked, "");
        if is_early {
            asked.app.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe").unwrap();
            head(&mut asked.client);
            expect(&mut asked.client, b"he");
        }
        for part in parts {
            asked.rests();
            let framed = match is_chunked {
                // It rests within a chunk, too.
                true => [format!("{:x}\r\n", part.len()).as_bytes(), part].concat(),
                false => part.to_vec(),
            };
            let mut app = asked.app.try_clone().unwrap();
            std::thread::scope(|scope| {
                let len = part.len();
                let heard = scope.spawn(move || match is_chunked {
                    false => {
                        let mut heard = vec![0; len];
                        app.read_exact(&mut heard).map(|()| heard).unwrap()
                    }
                    true => pieces(&mut app, len),
                });
                asked.client.write_all(&framed).unwrap();
                assert!(heard.join().unwrap() == part, "{fields}: a byte is wrong");
            });
            if is_chunked {
                asked.rests();
                asked.client.write_all(b"\r\n").unwrap();
            }
        }
        if is_chunked {
            asked.client.write_all(b"0\r\n\r\n").unwrap();
            expect(&mut asked.app, b"0\r\n\r\n");
        }
        match is_early {
            true => asked.app.write_all(b"llo").unwrap(),
            false => asked.app.write_all(OK).unwrap(),
        }
        match is_early {
            true => expect(&mut asked.client, b"llo"),
            false => assert_eq!(hear(&mut asked.client, "POST").body, b"hello"),
        }
        let said = asked.access_line();
        assert_eq!(said["reason"], "complete", "{said}");
        assert!(said["bytes_to_upstream"].as_u64().unwrap() > 300_000, "{said}");
    }
}

/// So many bytes of a body in chunks.
fn pieces(stream: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut heard = Vec::new();
    while heard.len() < len {
        let size = usize::from_str_radix(line(stream).trim_end(), 16).unwrap();
        let at = heard.len();
        heard.resize(at + size, 0);
        stream.read_exact(&mut heard[at..]).unwrap();
        expect(stream, b"\r\n");
    }
    heard
}

/// A client that waits to be asked for its body, and one that never sends it.
#[test]
fn a_request_rests_before_its_body() {
    let request = "POST /wait HTTP/1.1\r\nHost: app.test\r\nContent-Length: 5\r\n\
                   Expect: 100-continue\r\n\r\n";
    let mut asked = Asked::new(request, "");
    asked.rests();
    asked.app.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
    assert!(head(&mut asked.client).starts_with("HTTP/1.1 100 "));
    asked.rests();
    asked.client.write_all(b"hello").unwrap();
    expect(&mut asked.app, b"hello");
    asked.rests();
    asked.app.write_all(OK).unwrap();
    assert_eq!(hear(&mut asked.client, "POST").body, b"hello");
    asked.goes_on();
    let mut asked = Asked::new(request, "[http]\nbody_timeout = \"4s\"\n");
    asked.rests();
    assert_eq!(hear(&mut asked.client, "POST").status, 408);
    let said = asked.access_line();
    assert_eq!(said["reason"], "request: body_timeout", "{said}");
    let ms = said["duration_ms"].as_u64().unwrap();
    assert!((4_000..20_000).contains(&ms), "{ms}");
}

const LONG_POLLS: &str = r#"
import hashlib, http.server, time
class Polls(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def do_GET(self):
        time.sleep(2.5)
        self.answer(self.path.encode())
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(2.5)
        self.answer(hashlib.sha256(body).hexdigest().encode())
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Polls)
print(server.server_port, flush=True)
server.serve_forever()
"#;

/// curl and Python: two long polls and a slow upload, by one connection.
#[test]
fn curl_waits_for_a_server_that_rests() {
    if !need("curl") || !need("python3") || !need("sha256sum") {
        return;
    }
    let mut python = Command::new("python3");
    let python = python.args(["-c", LONG_POLLS]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut python = python.spawn().unwrap();
    let port = line(python.stdout.as_mut().unwrap());
    let mut app = Upstream::http();
    app.address.set_port(port.trim().parse().unwrap());
    let web = Web::with(app, "", ADMIN);
    let file = web.pki.folder.path().join("body");
    std::fs::write(&file, noise(600_000, 3)).unwrap();
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--http1.1", "--cacert", &web.pki.text("ca.pem")]);
    curl.args(["--resolve", &format!("app.test:{}:127.0.0.1", web.edge.port())]);
    let url = |path| format!("https://app.test:{}/{path}", web.edge.port());
    curl.args([url("first"), url("second"), "--next".into(), "--silent".into()]);
    curl.args(["--http1.1", "--cacert", &web.pki.text("ca.pem"), "--limit-rate", "200k"]);
    curl.args(["--data-binary", &format!("@{}", file.display()), &url("upload")]);
    let said = curl.output().unwrap();
    let sum = Command::new("sha256sum").arg(&file).output().unwrap();
    let _ = python.kill();
    let _ = python.wait();
    let sum = String::from_utf8(sum.stdout).unwrap();
    let expected = format!("/first/second{}", sum.split(' ').next().unwrap());
    let heard = String::from_utf8_lossy(&said.stdout).into_owned();
    assert_eq!(heard, expected, "{}", String::from_utf8_lossy(&said.stderr));
    for path in ["/first", "/second", "/upload"] {
        let said = web.request_line(path);
        assert_eq!(said["reason"], "complete", "{said}");
    }
}
