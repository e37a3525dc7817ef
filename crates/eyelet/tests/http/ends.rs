//! Ends that are kind: what clients and upstreams see when the edge drains, or when a reload ends
//! connections. Must not know how the edge finds the place to end at.

use std::io::{ErrorKind, Read, Write};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use rustix::process::Signal;

use super::two_parked::last_streams;
use crate::support::client::Offer;
use crate::support::frames::{
    END_HEADERS, END_STREAM, Frame, HEADERS, PREFACE, SETTINGS, frame, next,
};
use crate::support::pki::Kind;
use crate::support::two::run;
use crate::support::web::{Web, get, head, hear, switched};
use crate::support::{A_WHILE, Pki, SOON, Talk, Tls, Upstream, long_output, need, until};

/// Longer than a test waits: what ends has not waited for the end of the drain.
const LONG: &str = "[limits]\ndrain_timeout = \"10m\"\n";
/// The application answers as a WebSocket's.
const WEBSOCKET: &str = "websocket";
const EVENTS: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                      Transfer-Encoding: chunked\r\n\r\n";
const CHAT: &[u8] = b"GET /chat HTTP/1.1\r\nHost: app.test\r\nConnection: Upgrade\r\n\
                      Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                      Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
/// Close frames (RFC 6455 5.5.1): going away.
const GOING_AWAY: [u8; 4] = [0x88, 2, 0x03, 0xe9];
/// A frame of a client: "Hello", masked (RFC 6455 5.7).
const HELLO: [u8; 11] = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
/// That frame of a server.
const HELLO_BACK: [u8; 7] = [0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];

/// An edge before an application that sends `first` after the head of a request, then what the test
/// says, and passes on what it hears.
struct Script {
    web: Web,
    says: Sender<Vec<u8>>,
    hears: Receiver<Vec<u8>>,
}

/// The application's play with a connection.
struct Play {
    first: &'static str,
    said: Mutex<Receiver<Vec<u8>>>,
    heard: Mutex<Sender<Vec<u8>>>,
}

impl Play {
    /// `poll` sets how long a read may take.
    fn run<S: Read + Write>(&self, stream: &mut S, poll: impl Fn(&S, Option<Duration>)) {
        let asked = head(stream);
        let first = match self.first {
            WEBSOCKET => switched(&asked),
            first => first.to_owned(),
        };
        stream.write_all(first.as_bytes()).and_then(|()| stream.flush()).unwrap();
        poll(stream, Some(Duration::from_millis(10)));
        let mut piece = [0; 4096];
        loop {
            while let Ok(text) = self.said.lock().unwrap().try_recv() {
                let _ = stream.write_all(&text).and_then(|()| stream.flush());
            }
            match stream.read(&mut piece) {
                Ok(length @ 1..) => _ = self.heard.lock().unwrap().send(piece[..length].to_vec()),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Ok(0) | Err(_) => return,
            }
        }
    }
}

impl Script {
    fn new(scheme: &str, first: &'static str, whole: &str) -> Self {
        let (says, said) = channel::<Vec<u8>>();
        let (heard, hears) = channel();
        let play = Play { first, said: Mutex::new(said), heard: Mutex::new(heard) };
        let pki = Pki::new();
        let is_tls = scheme == "https";
        let app = match is_tls {
            true => {
                let leaf = pki.server("app", &["127.0.0.1"], Kind::P256);
                Upstream::tls(leaf, move |tls| {
                    play.run(tls, |tls, wait| tls.sock.set_read_timeout(wait).unwrap());
                })
            }
            false => Upstream::serve(move |mut stream| {
                play.run(&mut stream, |stream, wait| stream.set_read_timeout(wait).unwrap());
            }),
        };
        let ca = if is_tls { "upstream_ca = \"ca.pem\"" } else { "" };
        let web = Web::at(pki, scheme, app, ca, whole);
        Self { web, says, hears }
    }

    fn say(&self, text: impl Into<Vec<u8>>) {
        self.says.send(text.into()).unwrap();
    }

    /// Waits until the application has heard so many bytes.
    fn heard(&self, count: usize) -> Vec<u8> {
        let mut heard = Vec::new();
        while heard.len() < count {
            heard.extend(self.hears.recv_timeout(SOON).expect("the application hears more"));
        }
        heard
    }

    /// A WebSocket over HTTP/1.1.
    fn chat(&self) -> Tls {
        let mut client = self.web.connect();
        client.write_all(CHAT).unwrap();
        assert_eq!(hear(&mut client, "GET").status, 101);
        client
    }

    fn drain(&self) {
        self.web.edge.signal(Signal::TERM);
        self.web.edge.wait_log("draining");
    }
}

/// Reads to the end of a client's TLS stream, which must be a close_notify.
fn to_the_end(client: &mut Tls) -> Vec<u8> {
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    rest
}

/// The close frame in what an application has heard, with its mask taken off.
fn unmasked(heard: &[u8]) -> Vec<u8> {
    let [0x88, 0x82, a, b, c, d, one, two] = heard else { panic!("no close frame: {heard:?}") };
    assert_ne!([*a, *b, *c, *d], [0; 4], "a random mask");
    vec![0x88, 2, one ^ a, two ^ b]
}

/// Both sides get a close frame, through a plain upstream as a pair of the connection table, and
/// through TLS by a task, or at rest.
#[test]
fn a_drain_ends_a_websocket_with_1001() {
    for scheme in ["http", "https"] {
        let mut script = Script::new(scheme, WEBSOCKET, LONG);
        let mut client = script.chat();
        client.write_all(&HELLO).unwrap();
        assert_eq!(script.heard(HELLO.len()), HELLO);
        script.say(HELLO_BACK);
        let mut back = [0; HELLO_BACK.len()];
        client.read_exact(&mut back).unwrap();
        // A server that speaks last, and a client that does.
        client.write_all(&HELLO).unwrap();
        assert_eq!(script.heard(HELLO.len()), HELLO);
        script.drain();
        assert_eq!(to_the_end(&mut client), GOING_AWAY, "{scheme}");
        assert_eq!(unmasked(&script.heard(8)), GOING_AWAY, "{scheme}");
        client.sock.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(script.web.edge.wait_exit().success());
        let line = script.web.edge.line("the connection", |line| line["http"].is_null());
        assert_eq!(line["reason"], "drained", "{line}");
    }
}

/// A close frame within another frame would be taken for its payload.
#[test]
fn a_websocket_in_the_middle_of_a_frame_is_not_ended_before_its_end() {
    for scheme in ["http", "https"] {
        for from_client in [true, false] {
            let mut script = Script::new(scheme, WEBSOCKET, LONG);
            let mut client = script.chat();
            let cut = 4;
            match from_client {
                true => {
                    client.write_all(&HELLO[..cut]).unwrap();
                    assert_eq!(script.heard(cut), HELLO[..cut]);
                }
                false => {
                    script.say(&HELLO_BACK[..cut]);
                    client.read_exact(&mut [0; 4]).unwrap();
                }
            }
            script.drain();
            // Longer than what counts as idle.
            client.sock.set_read_timeout(Some(3 * A_WHILE)).unwrap();
            assert!(client.read(&mut [0]).is_err(), "{scheme}: nothing comes");
            client.sock.set_read_timeout(Some(SOON)).unwrap();
            let mut expected = GOING_AWAY.to_vec();
            match from_client {
                true => client.write_all(&HELLO[cut..]).unwrap(),
                false => {
                    script.say(&HELLO_BACK[cut..]);
                    expected.splice(..0, HELLO_BACK[cut..].to_vec());
                }
            }
            assert_eq!(to_the_end(&mut client), expected, "{scheme} {from_client}");
            let rest = if from_client { HELLO.len() - cut } else { 0 };
            let heard = script.heard(rest + 8);
            assert_eq!(heard[..rest], HELLO[HELLO.len() - rest..]);
            assert_eq!(unmasked(&heard[rest..]), GOING_AWAY, "{scheme}");
            drop(client);
            assert!(script.web.edge.wait_exit().success());
        }
    }
}

/// A reload that ends the connections of removed rules ends a WebSocket in the same way.
#[test]
fn a_websocket_without_a_rule_ends_with_1001() {
    for scheme in ["http", "https"] {
        let script = Script::new(scheme, WEBSOCKET, LONG);
        let mut client = script.chat();
        let folder = std::fs::read_dir(script.web.pki.folder.path()).unwrap();
        let mut files = folder.map(|entry| entry.unwrap().path());
        let file = files.find(|path| path.extension().is_some_and(|end| end == "toml")).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text.replace("name = \"app\"", "name = \"anew\"");
        std::fs::write(&file, format!("reload_ends_removed = true\n{text}")).unwrap();
        script.web.edge.signal(Signal::HUP);
        assert_eq!(to_the_end(&mut client), GOING_AWAY, "{scheme}");
        assert_eq!(unmasked(&script.heard(8)), GOING_AWAY, "{scheme}");
        drop(client);
        let line = script.web.edge.line("the connection", |line| line["http"].is_null());
        assert_eq!(line["reason"], "no rule serves this connection since a reload", "{line}");
    }
}

/// Answers a WebSocket's handshake, then the frame "Hello", and reads to the end.
fn greet(stream: &mut (impl Read + Write)) -> Vec<u8> {
    let asked = head(stream);
    stream.write_all(switched(&asked).as_bytes()).unwrap();
    stream.write_all(&HELLO_BACK).unwrap();
    stream.flush().unwrap();
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    heard
}

/// The WebSocket of Java's own library.
#[test]
fn a_websocket_of_java_hears_1001() {
    if !need("java") || !need("javac") {
        return;
    }
    let (hears, heard) = channel();
    let hears = Mutex::new(hears);
    let app = Upstream::serve(move |mut stream| {
        hears.lock().unwrap().send(greet(&mut stream)).unwrap();
    });
    let mut web = Web::with(app, "", LONG);
    let folder = web.pki.folder.path().to_owned();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/Chat.java");
    let said = long_output(Command::new("javac").arg("-d").arg(&folder).arg(source));
    assert!(said.status.success(), "{said:?}");
    let hosts = web.pki.folder.write("hosts", "127.0.0.1 app.test\n");
    let mut java = Command::new("java");
    java.arg(format!("-Djdk.net.hosts.file={}", hosts.display())).arg("-cp").arg(&folder);
    java.args(["Chat", &web.edge.port().to_string(), &web.pki.text("ca.pem")]);
    let mut java = Talk::start(&mut java);
    java.hear("open");
    java.hear("text Hello");
    web.edge.signal(Signal::TERM);
    let said = java.finish();
    assert!(said.text.contains("closed 1001"), "{said:?}");
    let heard = heard.recv_timeout(SOON).unwrap();
    assert_eq!(unmasked(&heard[heard.len() - 8..]), GOING_AWAY);
    assert!(web.edge.wait_exit().success());
}

/// A side that has sent a close frame gets none, and the closing handshake goes on.
#[test]
fn a_closing_handshake_is_left_alone() {
    let mut script = Script::new("http", WEBSOCKET, LONG);
    let mut client = script.chat();
    let close = [0x88, 0x82, 1, 2, 3, 4, 0x03 ^ 1, 0xe8 ^ 2];
    client.write_all(&close).unwrap();
    assert_eq!(script.heard(8), close);
    script.drain();
    client.sock.set_read_timeout(Some(3 * A_WHILE)).unwrap();
    assert!(client.read(&mut [0]).is_err(), "nothing comes");
    client.sock.set_read_timeout(Some(SOON)).unwrap();
    script.say([0x88, 2, 0x03, 0xe8]);
    let mut answer = [0; 4];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [0x88, 2, 0x03, 0xe8]);
    client.conn.send_close_notify();
    client.flush().unwrap();
    drop(client);
    assert!(script.web.edge.wait_exit().success());
    assert!(script.hears.try_iter().next().is_none(), "the application heard one close frame");
}

/// RFC 8441: the stream ends, and so does its connection.
#[test]
fn a_drain_ends_a_websocket_over_http2_with_1001() {
    let mut script = Script::new("http", WEBSOCKET, LONG);
    run(async {
        let mut two = script.web.connect_two().await;
        while !two.send.is_extended_connect_protocol_enabled() {
            tokio::time::sleep(SOON / 1000).await;
        }
        let mut ask = Request::connect("https://app.test/chat").body(()).unwrap();
        ask.extensions_mut().insert(h2::ext::Protocol::from_static("websocket"));
        let (response, mut send) = two.send.send_request(ask, false).unwrap();
        let mut receive = response.await.unwrap().into_body();
        send.send_data(Bytes::copy_from_slice(&HELLO), false).unwrap();
        // What blocks here would stop the client.
        let mut at_app = Vec::new();
        while at_app.len() < HELLO.len() {
            tokio::time::sleep(SOON / 1000).await;
            at_app.extend(script.hears.try_iter().flatten());
        }
        assert_eq!(at_app, HELLO);
        script.web.edge.signal(Signal::TERM);
        let mut heard = Vec::new();
        while let Some(piece) = receive.data().await {
            heard.extend(piece.unwrap());
        }
        assert_eq!(heard, GOING_AWAY);
        // The edge may have reset it with NO_ERROR, after the whole response (RFC 9113 8.1).
        let _ = send.send_data(Bytes::new(), true);
        drop((send, receive, two.send));
        assert!(two.driven.await.unwrap().is_ok(), "by GOAWAY");
    });
    assert_eq!(unmasked(&script.heard(8)), GOING_AWAY);
    assert!(script.web.edge.wait_exit().success());
}

/// An event stream that is cut gives its client half an event, or an error: curl says 18.
#[test]
fn an_event_stream_ends_between_two_events() {
    if !need("curl") {
        return;
    }
    for version in ["--http1.1", "--http2"] {
        let mut script = Script::new("http", EVENTS, LONG);
        let mut curl = Command::new("curl");
        curl.args(["-sSN", version, "--cacert"]).arg(script.web.pki.file("ca.pem"));
        let port = script.web.edge.port();
        curl.args(["--resolve", &format!("app.test:{port}:127.0.0.1")]);
        let mut curl = Talk::start(curl.arg(format!("https://app.test:{port}/events")));
        script.say("9\r\ndata: 1\n\n\r\n");
        curl.hear("data: 1\n\n");
        script.say("6\r\ndata: \r\n");
        curl.hear("data: 1\n\ndata: ");
        script.drain();
        std::thread::sleep(3 * A_WHILE);
        script.say("3\r\n2\n\n\r\n");
        let said = curl.finish();
        assert!(said.status.success(), "{version}: {said:?}");
        assert_eq!(said.text, "data: 1\n\ndata: 2\n\n", "{version}");
        assert!(script.web.edge.wait_exit().success());
    }
}

/// Python keeps its connection, and is told with the next response that it goes.
#[test]
fn a_response_that_is_due_says_that_the_connection_closes() {
    if !need("python3") {
        return;
    }
    const CLIENT: &str = "import http.client, socket, ssl, sys\n\
        tls = ssl.create_default_context(cafile=sys.argv[2])\n\
        raw = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n\
        c = http.client.HTTPSConnection('app.test', context=tls)\n\
        c.sock = tls.wrap_socket(raw, server_hostname='app.test')\n\
        for path in ('/first', '/second'):\n\
        \x20   c.request('GET', path)\n\
        \x20   r = c.getresponse()\n\
        \x20   print(r.status, r.getheader('connection'), r.read(), r.will_close, flush=True)\n";
    let (says, said) = channel::<()>();
    let (asks, asked) = channel::<()>();
    let (said, asks) = (Arc::new(Mutex::new(said)), Mutex::new(asks));
    let app = Upstream::serve(move |mut stream| {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        while head(&mut stream).starts_with("GET /first ") {
            stream.write_all(answer).unwrap();
        }
        asks.lock().unwrap().send(()).unwrap();
        said.lock().unwrap().recv().unwrap();
        stream.write_all(answer).unwrap();
    });
    let mut web = Web::with(app, "", LONG);
    let mut python = Command::new("python3");
    python.args(["-c", CLIENT, &web.edge.port().to_string(), &web.pki.text("ca.pem")]);
    let mut python = Talk::start(&mut python);
    python.hear("200 None b'ok' False");
    let mut idle = web.connect();
    until("the first line", || {
        (web.edge.count(|line| line["http"]["path"] == "/first") == 1).then_some(())
    });
    asked.recv_timeout(SOON).expect("the second request is with the application");
    web.edge.signal(Signal::TERM);
    // The only worker has begun to drain.
    to_the_end(&mut idle);
    says.send(()).unwrap();
    let said = python.finish();
    assert!(said.text.contains("200 close b'ok' True"), "{said:?}");
    assert!(web.edge.wait_exit().success());
}

/// RFC 9113 6.8: first a GOAWAY with the greatest stream, then, a round trip later, one with the
/// last stream that is served.
#[test]
fn http2_is_sent_away_in_two_steps() {
    let mut web = Web::with(Upstream::http(), "", LONG);
    let offer = Offer { alpn: &["h2"], ..Offer::new(&web.pki) };
    let mut client = offer.connect(web.edge.address(), "app.test");
    client.write_all(PREFACE).unwrap();
    client.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
    // GET, https, / of the static table, and a literal :authority.
    let block = [&[0x82, 0x87, 0x84, 0x41, 8][..], b"app.test"].concat();
    client.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)).unwrap();
    loop {
        let Frame { stream, flags, .. } = next(&mut client).expect("a response");
        if stream == 1 && flags & END_STREAM != 0 {
            break;
        }
    }
    web.edge.signal(Signal::TERM);
    assert_eq!(last_streams(&mut client), [(1 << 31) - 1, 1]);
    drop(client);
    assert!(web.edge.wait_exit().success());
}

/// The ends of many idle connections lie far apart. They would all come back at once.
#[test]
fn the_ends_of_idle_connections_are_spread() {
    const CLIENTS: usize = 400;
    let mut web = Web::with(Upstream::http(), "", "[limits]\ndrain_timeout = \"8s\"\n");
    let held: Vec<Tls> = (0..CLIENTS)
        .map(|_| {
            let mut client = web.connect();
            assert_eq!(get(&mut client, "/").status, 200);
            client
        })
        .collect();
    web.edge.signal(Signal::TERM);
    assert!(web.edge.wait_exit().success());
    let lines = web.edge.lines();
    let ends: Vec<u64> = lines.iter().filter(|line| line["http"].is_null()).map(end_ms).collect();
    assert_eq!(ends.len(), CLIENTS);
    // 100 a second, at least: four seconds, of the six in which idle connections end.
    let (first, last) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
    assert!(last - first >= 2_000, "within {} ms", last - first);
    for mut client in held {
        assert_eq!(to_the_end(&mut client), b"", "by close_notify");
    }
}

/// Returns the time at which the connection of a line ended, in milliseconds of its day.
fn end_ms(line: &serde_json::Value) -> u64 {
    let time = line["time"].as_str().unwrap();
    let part = |range: std::ops::Range<usize>| time[range].parse::<u64>().unwrap();
    let began = ((part(11..13) * 60 + part(14..16)) * 60 + part(17..19)) * 1000 + part(20..23);
    began + line["duration_ms"].as_u64().unwrap()
}
