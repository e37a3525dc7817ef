//! Traces: what upstreams are told, what the access log says, and what a collector of OpenTelemetry
//! gets. No collector costs a client its answer.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use serde_json::Value;

use crate::resting_https::upgrade_whole;
use crate::support::pki::Kind;
use crate::support::program::python_with;
use crate::support::two::{Two, run};
use crate::support::upstream::nobody;
use crate::support::web::{Web, ask, chunks, get, head};
use crate::support::{Edge, Folder, Pki, Talk, Upstream, need, output, until};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

/// A collector that answers each request so, and what it was sent.
struct Collector {
    upstream: Upstream,
    bodies: Arc<Mutex<Vec<(String, String)>>>,
}

impl Collector {
    fn new() -> Self {
        Self::answering(&["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"])
    }

    /// The answers one after the other, and the last one ever after.
    fn answering(answers: &'static [&'static str]) -> Self {
        let bodies = Arc::<Mutex<Vec<_>>>::default();
        let seen = bodies.clone();
        let upstream = Upstream::serve(move |stream| collect(stream, &seen, answers));
        Self { upstream, bodies }
    }

    fn settings(&self, more: &str) -> String {
        let address = self.upstream.address;
        format!("[trace]\nendpoint = \"http://{address}/v1/traces\"\n{more}\n")
    }

    fn heads(&self) -> Vec<String> {
        self.bodies.lock().unwrap().iter().map(|(head, _)| head.clone()).collect()
    }

    /// All spans until now.
    fn spans(&self) -> Vec<Value> {
        let bodies = self.bodies.lock().unwrap();
        bodies.iter().flat_map(|(_, body)| spans_of(body)).collect()
    }

    /// Waits for so many spans.
    fn wait(&self, count: usize) -> Vec<Value> {
        until(&format!("{count} spans"), || {
            let spans = self.spans();
            (spans.len() >= count).then_some(spans)
        })
    }
}

fn spans_of(body: &str) -> Vec<Value> {
    let body: Value = serde_json::from_str(body).unwrap();
    body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone()
}

fn collect(mut stream: impl Read + Write, seen: &Mutex<Vec<(String, String)>>, answers: &[&str]) {
    let head = head(&mut stream);
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    let body = String::from_utf8(body).unwrap();
    let answer = {
        let mut seen = seen.lock().unwrap();
        seen.push((head, body));
        answers[(seen.len() - 1).min(answers.len() - 1)]
    };
    stream.write_all(answer.as_bytes()).unwrap();
    let _ = stream.flush();
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a str {
    let all = span["attributes"].as_array().unwrap();
    let found = all.iter().find(|attribute| attribute["key"] == key);
    let found = found.unwrap_or_else(|| panic!("no {key} in {span:#}"));
    found["value"].as_object().unwrap().values().next().unwrap().as_str().unwrap()
}

/// The value of a field in a request's head, as [`Upstream::http`] sends it back.
fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut values = head.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let value = values.next();
    assert_eq!(values.next(), None, "{name} twice: {head}");
    value
}

/// Trace, span and flags.
fn parts(traceparent: &str) -> [&str; 3] {
    let parts: Vec<&str> = traceparent.split('-').collect();
    let [version, trace, span, flags] = parts[..] else { panic!("{traceparent}") };
    assert_eq!((version, trace.len(), span.len()), ("00", 32, 16), "{traceparent}");
    [trace, span, flags]
}

/// Both versions of HTTP, from a client that is not ours.
#[test]
fn nodes_trace_goes_on_at_the_upstream() {
    if !need("node") {
        return;
    }
    let web = Web::with(Upstream::http(), "", "[trace]\nsample = 0\n");
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs/trace.js");
    let mut node = Command::new("node");
    node.arg(script).arg(web.edge.port().to_string()).arg(web.pki.text("ca.pem"));
    let said = output(node.arg(traceparent("01")));
    assert!(said.status.success(), "{said:?}");
    let (one, two) = said.text.split_at(said.text.find("GET /two").expect("both answers"));
    for (path, head, state) in [("/one", one, "vendor=1,other=2"), ("/two", two, "vendor=3")] {
        let [trace, span, flags] = parts(field(head, "traceparent").unwrap());
        // There is no collector: Eyelet decides nothing.
        assert_eq!((trace, flags), (TRACE, "01"), "{head}");
        assert_eq!(field(head, "tracestate"), Some(state), "{head}");
        let line = web.request_line(path);
        assert_eq!(line["trace_id"], TRACE);
        assert_eq!(line["span_id"], span);
        assert_ne!(span, PARENT);
    }
}

#[test]
fn a_trace_begins_here_without_a_valid_parent() {
    let web = Web::with(Upstream::http(), "", "[trace]\nsample = 1\n");
    let mut client = web.connect();
    let valid = traceparent("01");
    let mut seen = Vec::new();
    for (case, fields) in [
        ("none", String::new()),
        ("upper-case", format!("traceparent: {}\r\n", valid.to_uppercase())),
        ("too long", format!("traceparent: {valid}-more\r\n")),
        ("zeros", format!("traceparent: 00-{}-{PARENT}-01\r\n", "0".repeat(32))),
        ("version ff", format!("traceparent: ff{}\r\n", &valid[2..])),
        ("twice", format!("traceparent: {valid}\r\ntraceparent: {valid}\r\n")),
        ("empty", "traceparent:\r\n".to_owned()),
    ] {
        let fields = format!("{fields}tracestate: a=1\r\n");
        let asked = format!("GET /{case} HTTP/1.1\r\nHost: app.test\r\n{fields}\r\n");
        let head = ask(&mut client, &asked.replace("/version ff", "/v").replace("/too long", "/l"));
        let text = head.text();
        let [trace, _, flags] = parts(field(&text, "traceparent").expect(case)).map(str::to_owned);
        assert_eq!((flags.as_str(), field(&text, "tracestate")), ("01", None), "{case}");
        assert_ne!(trace, TRACE, "{case}");
        seen.push(trace);
    }
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), count, "each has a trace of its own");
    // A higher version is read as far as it is known.
    let asked =
        format!("GET /cc HTTP/1.1\r\nHost: app.test\r\ntraceparent: cc{}-x\r\n\r\n", &valid[2..]);
    let text = ask(&mut client, &asked).text();
    assert_eq!(parts(field(&text, "traceparent").unwrap())[0], TRACE);
}

/// Without the table nothing is read or written.
#[test]
fn fields_pass_untouched_where_nothing_is_traced() {
    let web = Web::new(Upstream::http());
    let fields = "traceparent: no such thing\r\ntracestate: a=1\r\n";
    let asked = format!("GET /a HTTP/1.1\r\nHost: app.test\r\n{fields}\r\n");
    let text = ask(&mut web.connect(), &asked).text();
    assert_eq!(field(&text, "traceparent"), Some("no such thing"));
    assert_eq!(field(&text, "tracestate"), Some("a=1"));
    assert!(web.request_line("/a")["trace_id"].is_null());
}

/// The flag of a stranger could have all of its requests recorded.
#[test]
fn only_a_trusted_client_says_what_is_recorded() {
    let collector = Collector::new();
    for (trusted, sample, flags, expected) in [
        ("", 0, "01", "00"),
        ("", 1, "00", "01"),
        ("[http]\ntrusted_proxies = [\"127.0.0.1\"]\n", 0, "01", "01"),
        ("[http]\ntrusted_proxies = [\"127.0.0.1\"]\n", 1, "00", "00"),
    ] {
        let whole = format!("{}{trusted}", collector.settings(&format!("sample = {sample}")));
        let web = Web::with(Upstream::http(), "", &whole);
        let asked = "GET / HTTP/1.1\r\nHost: app.test\r\ntraceparent: ";
        let text =
            ask(&mut web.connect(), &format!("{asked}{}\r\n\r\n", traceparent(flags))).text();
        let told = parts(field(&text, "traceparent").unwrap());
        assert_eq!((told[0], told[2]), (TRACE, expected), "{whole}");
    }
}

#[test]
fn a_collector_gets_both_spans_of_each_exchange() {
    let collector = Collector::new();
    let settings = collector.settings("sample = 1.0\nservice_name = \"edge of tests\"");
    let web = Web::with(Upstream::http(), "", &settings);
    let asked = format!(
        "GET /path?secret=query HTTP/1.1\r\nHost: app.test\r\ntraceparent: {}\r\n\r\n",
        traceparent("00")
    );
    let text = ask(&mut web.connect(), &asked).text();
    let told = parts(field(&text, "traceparent").unwrap()).map(str::to_owned);
    let spans = collector.wait(2);
    let [server, client] = &spans[..] else { panic!("{spans:#?}") };
    assert_eq!((&server["kind"], &client["kind"]), (&2.into(), &3.into()));
    assert_eq!((&server["traceId"], &server["parentSpanId"]), (&TRACE.into(), &PARENT.into()));
    assert_eq!((&client["traceId"], &client["parentSpanId"]), (&TRACE.into(), &server["spanId"]));
    // The upstream's parent is the request to it.
    assert_eq!(told, [TRACE, client["spanId"].as_str().unwrap(), "01"]);
    let line = web.request_line("/path?secret=query");
    assert_eq!((&line["trace_id"], &line["span_id"]), (&server["traceId"], &server["spanId"]));
    for (key, expected) in [
        ("http.request.method", "GET"),
        ("url.path", "/path"),
        ("url.scheme", "https"),
        ("network.protocol.version", "1.1"),
        ("client.address", "127.0.0.1"),
        ("server.address", "app.test"),
        ("http.response.status_code", "200"),
        ("eyelet.rule", "app"),
        ("eyelet.outcome", "terminated"),
        ("eyelet.connection", line["id"].as_str().unwrap()),
    ] {
        assert_eq!(attribute(server, key), expected, "{key}");
    }
    assert_eq!(attribute(client, "server.port"), web.app.address.port().to_string());
    assert!(collector.heads()[0].starts_with("POST /v1/traces HTTP/1.1\r\n"));
    assert!(!collector.bodies.lock().unwrap()[0].1.contains("secret"), "the query stays here");
    let Some(python) = python_with("google.protobuf, opentelemetry.proto.trace.v1.trace_pb2")
    else {
        return;
    };
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs/otlp.py");
    let mut reader = Talk::start(Command::new(python).arg(script));
    reader.say(&collector.bodies.lock().unwrap()[0].1);
    reader.hang_up();
    let said = reader.finish();
    assert!(said.status.success(), "{said:?}");
    assert!(said.text.contains("service edge of tests"), "{said:?}");
    let own = server["spanId"].as_str().unwrap();
    assert!(
        said.text.contains(&format!("SPAN_KIND_SERVER {TRACE} {own} {PARENT} GET")),
        "{said:?}"
    );
    assert!(said.text.contains("\"http.response.status_code\": 200"), "{said:?}");
}

#[test]
fn an_exchange_that_fails_says_why() {
    let collector = Collector::new();
    let (_kept, nowhere) = nobody();
    let pki = Pki::new();
    let rule = pki.terminate(&format!("http://{nowhere}"), "");
    let whole = format!("{}{rule}", collector.settings("sample = 1"));
    let edge = Edge::start(&pki.folder, &whole);
    run(async {
        let mut client = Two::connect(&pki, edge.address()).await;
        assert_eq!(client.get("/gone").await.unwrap().0, 503);
    });
    let spans = collector.wait(2);
    assert_eq!(attribute(&spans[0], "network.protocol.version"), "2");
    assert_eq!(attribute(&spans[0], "http.response.status_code"), "503");
    for span in &spans {
        assert_eq!(attribute(span, "error.type"), "unreachable");
        assert_eq!(span["status"]["code"], 2);
    }
}

/// A method of the client's own is as short as by HTTP/1.1: the queue of spans holds it.
#[test]
fn a_long_method_is_refused_by_http_2() {
    let web = Web::with(Upstream::http(), "", "");
    run(async {
        let mut client = Two::connect(&web.pki, web.edge.address()).await;
        for (method, status) in
            [("X".repeat(32), 200), ("X".repeat(33), 400), ("X".repeat(9_000), 400)]
        {
            let asked = http::Request::builder().method(method.as_str());
            let asked = asked.uri("https://app.test/method").body(()).unwrap();
            assert_eq!(client.ask(asked).await.unwrap().0, status, "{}", method.len());
        }
    });
}

/// Twenty requests whose collector is down, silent, or talks nonsense: each has its answer, and the
/// process ends when it is told to.
#[test]
fn a_collector_that_fails_costs_no_request() {
    let silent = Upstream::by_hand();
    let garbage = Upstream::serve(|mut stream: TcpStream| {
        let _ = stream.write_all(b"\x16\x03\x01 no HTTP at all \r\n\r\n");
    });
    let refusing = Collector::answering(&["HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n"]);
    let (_kept, nowhere) = nobody();
    for address in [nowhere, silent.address, garbage.address, refusing.upstream.address] {
        let settings = format!("[trace]\nsample = 1\nendpoint = \"http://{address}/v1/traces\"\n");
        let mut web = Web::with(Upstream::http(), "", &settings);
        let mut client = web.connect();
        for _ in 0..20 {
            assert_eq!(get(&mut client, "/").status, 200, "{address}");
        }
        drop(client);
        web.edge.signal(Signal::TERM);
        assert!(web.edge.wait_exit().success(), "{address}");
        let log = web.edge.log();
        assert!(log.contains("spans are lost"), "{address}: {log}");
    }
}

/// Spans that wait for it take a sixteenth of `memory_max`, and the batch in hand takes less. They
/// count, so that connections take less meanwhile.
#[test]
fn what_waits_for_a_stalled_collector_is_bounded_and_counted() {
    const PART: usize = 1 << 20;
    let stalled = Upstream::by_hand();
    // Access lines that wait for their reader would be counted with the spans.
    let settings = format!(
        "[trace]\nsample = 1\nendpoint = \"http://{}/v1/traces\"\n\
         [log]\naccess = \"off\"\n[limits]\nmemory_max = \"16MiB\"\n",
        stalled.address
    );
    let web = Web::with(Upstream::http(), "compress = \"off\"", &settings);
    let mut client = web.connect();
    let path = format!("/{}", "p".repeat(1_000));
    // Twice as many as have room.
    for _ in 0..2 * PART / path.len() {
        assert_eq!(get(&mut client, &path).status, 200);
    }
    web.edge.wait_log("spans are lost");
    web.edge.signal(Signal::USR1);
    let counted = until("the accounts", || {
        let log = web.edge.log();
        let (_, log) = log.split_once(", log ")?;
        log.split(',').next()?.parse::<usize>().ok()
    });
    assert!((PART / 2..2 * PART).contains(&counted), "{counted}");
}

#[test]
fn what_a_collector_wants_later_comes_again() {
    let collector = Collector::answering(&[
        "HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 429 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ]);
    let web = Web::with(Upstream::http(), "", &collector.settings("sample = 1"));
    assert_eq!(get(&mut web.connect(), "/").status, 200);
    collector.wait(6);
    let bodies = collector.bodies.lock().unwrap();
    assert!(bodies.iter().all(|(_, body)| *body == bodies[0].1), "the same batch each time");
}

#[test]
fn the_end_of_the_process_sends_what_waits() {
    let collector = Collector::new();
    let mut web = Web::with(Upstream::http(), "", &collector.settings("sample = 1"));
    for _ in 0..3 {
        assert_eq!(get(&mut web.connect(), "/").status, 200);
    }
    web.edge.signal(Signal::TERM);
    assert!(web.edge.wait_exit().success());
    // A machine may be too slow for the time that the end has.
    let sent = collector.spans().len();
    assert!(sent == 6 || web.edge.log().contains("spans are lost"), "{sent}: {}", web.edge.log());
}

#[test]
fn a_token_goes_to_an_https_collector_only() {
    let pki = Pki::new();
    let seen = Arc::<Mutex<Vec<(String, String)>>>::default();
    let to = seen.clone();
    let leaf = pki.server("collector", &["collector.test", "127.0.0.1"], Kind::P256);
    let collector = Upstream::tls(leaf, move |tls| {
        collect(tls, &to, &["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"]);
    });
    let file =
        pki.folder.write("fields", "Authorization: Bearer s3cr3t-of-tests\nX-Tenant: edge\n");
    std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let settings = format!(
        "[trace]\nsample = 1\nendpoint = \"https://127.0.0.1:{}/v1/traces\"\nca = \"ca.pem\"\n\
         headers_file = \"fields\"\n",
        collector.address.port()
    );
    let web = Web::at(pki, "http", Upstream::http(), "", &settings);
    assert_eq!(get(&mut web.connect(), "/").status, 200);
    let head = until("a batch", || seen.lock().unwrap().first().map(|(head, _)| head.clone()));
    assert_eq!(field(&head, "authorization"), Some("Bearer s3cr3t-of-tests"));
    assert_eq!(field(&head, "x-tenant"), Some("edge"));
    assert!(!web.edge.log().contains("s3cr3t"), "{}", web.edge.log());
}

#[test]
fn a_reload_changes_the_collector() {
    let (first, second) = (Collector::new(), Collector::new());
    let web = Web::with(Upstream::http(), "", &first.settings("sample = 1"));
    assert_eq!(get(&mut web.connect(), "/first").status, 200);
    first.wait(2);
    let [before, after] = [&first, &second].map(|one| one.upstream.address.to_string());
    reload(&web, &before, &after);
    assert_eq!(get(&mut web.connect(), "/second").status, 200);
    let spans = second.wait(2);
    assert_eq!(attribute(&spans[0], "url.path"), "/second");
    assert_eq!(first.spans().len(), 2);
}

/// Replaces a text of the configuration, and has the edge read it.
fn reload(web: &Web, before: &str, after: &str) {
    let mut files =
        std::fs::read_dir(web.pki.folder.path()).unwrap().map(|one| one.unwrap().path());
    let file = files.find(|file| file.extension().is_some_and(|kind| kind == "toml")).unwrap();
    let text = std::fs::read_to_string(&file).unwrap().replace(before, after);
    std::fs::write(&file, text).unwrap();
    web.edge.signal(Signal::HUP);
    web.edge.wait_log("configuration 2 serves");
}

/// The file has the same name, and other certificates.
#[test]
fn a_reload_reads_the_collectors_authorities_again() {
    let pki = Pki::new();
    let seen = Arc::<Mutex<Vec<(String, String)>>>::default();
    let to = seen.clone();
    let leaf = pki.server("collector", &["collector.test", "127.0.0.1"], Kind::P256);
    let collector = Upstream::tls(leaf, move |tls| {
        collect(tls, &to, &["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"]);
    });
    let ca = pki.file("collectors.pem");
    std::fs::copy(Pki::new().file("ca.pem"), &ca).unwrap();
    let settings = format!(
        "[trace]\nsample = 1\nendpoint = \"https://127.0.0.1:{}/v1/traces\"\n\
         ca = \"collectors.pem\"\n",
        collector.address.port()
    );
    let web = Web::at(pki, "http", Upstream::http(), "", &settings);
    std::fs::copy(web.pki.file("ca.pem"), &ca).unwrap();
    reload(&web, "sample = 1", "sample = 1");
    assert_eq!(get(&mut web.connect(), "/").status, 200);
    until("a batch", || seen.lock().unwrap().first().map(|_| ()));
}

/// They went to a collector that the configuration does not name any more.
#[test]
fn the_end_of_the_process_says_what_an_earlier_configuration_loses() {
    let silent = Upstream::by_hand();
    let settings =
        format!("[trace]\nsample = 1\nendpoint = \"http://{}/v1/traces\"\n", silent.address);
    let mut web = Web::with(Upstream::http(), "", &settings);
    assert_eq!(get(&mut web.connect(), "/").status, 200);
    reload(&web, &settings, "");
    web.edge.signal(Signal::TERM);
    assert!(web.edge.wait_exit().success());
    assert!(web.edge.log().contains("spans are lost"), "{}", web.edge.log());
}

/// Its span ends in the process in which the exchange does, once, and counts from its beginning.
#[test]
fn a_span_rests_with_its_exchange_and_moves() {
    let collector = Collector::new();
    let mut web = Web::with(Upstream::by_hand(), "", &collector.settings("sample = 1"));
    let mut client = web.connect();
    client.write_all(b"GET /events HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
    let mut app = web.app.take();
    head(&mut app);
    app.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    head(&mut client);
    let _later = upgrade_whole(&mut web);
    app.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(chunks(&mut client), b"");
    let said = web.request_line("/events");
    assert_eq!(said["reason"], "complete", "{said}");
    let spans = collector.wait(2);
    let of_client = spans.iter().find(|span| span["spanId"] == said["span_id"]).unwrap();
    assert_eq!(of_client["traceId"], said["trace_id"], "{of_client:#}");
    assert_eq!(attribute(of_client, "url.path"), "/events");
    let nanos = |key: &str| of_client[key].as_str().unwrap().parse::<u64>().unwrap();
    let ms = (nanos("endTimeUnixNano") - nanos("startTimeUnixNano")) / 1_000_000;
    let told = said["duration_ms"].as_u64().unwrap();
    assert!(ms.abs_diff(told) <= 1_000, "{ms} ms, and the access line says {told}");
    let asked = spans.iter().find(|span| span["parentSpanId"] == said["span_id"]).unwrap();
    assert_eq!(attribute(asked, "http.response.status_code"), "200", "{asked:#}");
    assert_eq!(collector.spans().len(), 2);
}

/// A refused flow of QUIC has a span, with the name that it asked for.
#[test]
fn a_refused_flow_of_quic_is_traced() {
    let collector = Collector::new();
    let config = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nquic = true\n\
         [[rule]]\nname = \"no\"\nsni = \"aioquic.example\"\naction = \"refuse\"\n{}",
        collector.settings("sample = 1.0")
    );
    let folder = Folder::new();
    let edge = Edge::start_whole(&folder, &config, |_| ());
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.send_to(&recorded(), edge.address()).unwrap();
    let span = collector.wait(1).remove(0);
    assert_eq!(span["name"], "QUIC", "{span:#}");
    for (key, value) in [
        ("network.transport", "quic"),
        ("server.address", "aioquic.example"),
        ("eyelet.outcome", "refused"),
        ("eyelet.rule", "no"),
    ] {
        assert_eq!(attribute(&span, key), value, "{span:#}");
    }
}

/// The recorded first datagram of a client.
fn recorded() -> Vec<u8> {
    let text = include_str!("../../../quic/src/tests/bytes/aioquic.hex");
    let digits = text.lines().skip(1).take_while(|line| !line.starts_with('#'));
    let digits: String = digits.collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}
