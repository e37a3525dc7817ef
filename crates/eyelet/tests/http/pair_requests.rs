//! Bodies of requests that are coded between two edges, and bodies that clients have coded, which
//! an edge decodes. The application checks every byte.

use std::io::Write;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use rustix::process::Signal;
use serde_json::Value;

use crate::originate_coded::{Near, said};
use crate::support::edge::LISTENER;
use crate::support::pki::Kind;
use crate::support::program::{Said, Talk, output};
use crate::support::upstream::vacant;
use crate::support::web::{self, Web};
use crate::support::{Edge, Pki, Upstream, need, noise, until};

const APPLICATION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/uploads.py");
const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/upload.py");
const DECODES: &str = "decode_requests = true";
const CODES: &str = "code_requests = true";
const JSON: &str = "Content-Type: application/json";

/// An edge keeps an upstream connection without requests for longer than this.
const KEPT_MIN: Duration = Duration::from_secs(1);

/// An application in Python behind a far edge, and a near edge before it.
struct Pair {
    application: Talk,
    far: Edge,
    near: Edge,
    pki: Pki,
}

impl Pair {
    fn new(of_far: &str, of_near: &str) -> Option<Self> {
        if !need("python3") || !need("curl") {
            return None;
        }
        let pki = Pki::new();
        let (application, port) = application();
        pki.server("edge", &["app.test"], Kind::P256);
        let rule = pki.terminate(&format!("http://127.0.0.1:{port}"), of_far);
        let far = Edge::start_whole(&pki.folder, &format!("{LISTENER}{rule}"), |_| ());
        let near = near(&pki, far.port(), of_near);
        Some(Self { application, far, near, pki })
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        self.pki.folder.write(name, bytes).display().to_string()
    }

    /// curl as a client of the far edge.
    fn curl(&self, words: &[&str], path: &str) -> Said {
        let port = self.far.port();
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--cacert"]).arg(self.pki.file("ca.pem"));
        curl.args(["--resolve", &format!("app.test:{port}:127.0.0.1")]).args(words);
        output(curl.arg(format!("https://app.test:{port}{path}")))
    }

    fn bytes_sent(&self, path: &str) -> u64 {
        bytes_sent(&self.near, path)
    }
}

fn bytes_sent(near: &Edge, path: &str) -> u64 {
    let line = near.line(path, |line| line["http"]["path"] == path);
    line["bytes_to_upstream"].as_u64().unwrap()
}

/// Asks behind another response, and asserts that at most so many bytes of the body are sent. What
/// that response has said is known of one connection. Where that was not kept for long enough, it
/// asks again.
fn gets_coded(near: &Edge, client: &mut Client, words: &[&str], (body, most): (&[u8], usize)) {
    let [method, path, rest @ ..] = words else { panic!("{words:?}") };
    let mut tries = 0;
    until("a coded body", || {
        tries += 1;
        let path = format!("{path}/{tries}");
        let began = Instant::now();
        client.ask(&["GET", "/", "length", ""]);
        let (status, got) = client.ask(&[&[*method, &path], rest].concat());
        let is_kept = began.elapsed() < KEPT_MIN;
        assert_eq!(status, 200, "{path}: {got}");
        assert_whole(&got, body);
        let sent = bytes_sent(near, &path);
        let is_coded = sent < most as u64;
        assert!(is_coded || !is_kept, "{path}: {sent} of {}", body.len());
        is_coded.then_some(())
    });
}

fn application() -> (Talk, u16) {
    let application = Talk::start(Command::new("python3").arg("-u").arg(APPLICATION));
    let port = until("the application to listen", || {
        let said = application.said();
        said.split("listening on ").nth(1)?.split_once('.')?.0.parse().ok()
    });
    (application, port)
}

fn near(pki: &Pki, port: u16, keys: &str) -> Edge {
    let config = format!(
        "workers = 1\n[[listener]]\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n[[rule]]\n\
         name = \"out\"\naction = \"originate\"\nupstream = \"https://127.0.0.1:{port}\"\n\
         upstream_name = \"app.test\"\nupstream_ca = \"ca.pem\"\n{keys}\n"
    );
    Edge::start_whole(&pki.folder, &config, |_| ())
}

/// A client that keeps its connection.
struct Client {
    talk: Talk,
    heard: usize,
}

impl Client {
    fn new(near: &Edge) -> Self {
        let talk =
            Talk::start(Command::new("python3").args(["-u", CLIENT]).arg(near.port().to_string()));
        Self { talk, heard: 0 }
    }

    /// The next line that it prints.
    fn hear(&mut self) -> String {
        let line = until("the client's next line", || {
            let said = self.talk.said();
            let mut lines = said.split_inclusive('\n').skip(self.heard);
            lines.next().filter(|line| line.ends_with('\n')).map(str::to_owned)
        });
        self.heard += 1;
        line
    }

    fn ask(&mut self, words: &[&str]) -> (u16, Value) {
        self.talk.say(&format!("{}\n", words.join("\t")));
        answer(&self.hear())
    }
}

fn answer(line: &str) -> (u16, Value) {
    let mut parts = line.trim().splitn(3, '\t');
    let status = parts.next().unwrap().parse().unwrap_or_else(|_| panic!("{line}"));
    (status, serde_json::from_str(parts.nth(1).unwrap_or_default()).unwrap_or_default())
}

fn text(lines: usize) -> Vec<u8> {
    let line = |n: usize| format!("{{\"n\":{n},\"value\":{}}}\n", n.wrapping_mul(2_654_435_761));
    (0..lines).flat_map(|n| line(n).into_bytes()).collect()
}

fn assert_whole(got: &Value, body: &[u8]) {
    let digest = digest(&SHA256, body);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((&got["length"], &got["sha256"]), (&body.len().into(), &hex.into()), "{got}");
    assert_eq!(got["fields"]["content-encoding"], Value::Null, "{got}");
}

#[test]
fn bodies_travel_coded_where_the_far_edge_has_said_that_it_decodes() {
    for of_near in [CODES, "upstream_http2 = \"off\"\ncode_requests = true"] {
        let Some(pair) = Pair::new(DECODES, of_near) else { return };
        let body = text(9000);
        let file = pair.file("body", &body);
        let mut client = Client::new(&pair.near);
        // Nothing is known before the first response.
        let (status, got) = client.ask(&["POST", "/first", "length", &file, JSON]);
        assert_eq!(status, 200, "{got}");
        assert_whole(&got, &body);
        assert!(pair.bytes_sent("/first") >= body.len() as u64);
        for (path, method, framing, fields) in [
            ("/length", "POST", "length", &[JSON][..]),
            ("/chunks", "PUT", "chunks", &["Content-Type: text/xml; charset=utf-8"]),
            (
                "/report",
                "REPORT",
                "chunks",
                &["Content-Type: text/xml", "Authorization: Basic eA=="],
            ),
        ] {
            let words = [&[method, path, framing, &file], fields].concat();
            gets_coded(&pair.near, &mut client, &words, (&body, body.len() / 2));
        }
        // What may be attacked, what is bound to its bytes, and what is not worth it.
        let short = pair.file("short", &body[..1000]);
        for (path, framing, file, field) in [
            ("/browser", "length", &file, "User-Agent: Mozilla/5.0 (X11)"),
            ("/digest", "length", &file, "Content-Digest: sha-256=:eA==:"),
            ("/as-is", "chunks", &file, "Cache-Control: no-transform"),
            ("/short", "length", &short, "X-A: b"),
        ] {
            let (status, got) = client.ask(&["POST", path, framing, file, JSON, field]);
            assert_eq!(status, 200, "{path}: {got}");
            assert_whole(&got, &std::fs::read(file).unwrap());
            assert!(pair.bytes_sent(path) >= got["length"].as_u64().unwrap(), "{path}");
        }
        for kind in ["application/x-www-form-urlencoded", "image/png", "application/octet-stream"] {
            let path = format!("/{}", kind.len());
            let field = format!("Content-Type: {kind}");
            let (_, got) = client.ask(&["POST", &path, "length", &file, &field]);
            assert_whole(&got, &body);
            assert!(pair.bytes_sent(&path) >= body.len() as u64, "{kind}");
        }
        assert_eq!(pair.near.count(|line| line["outcome"] == "failed"), 0);
    }
}

/// A response speaks of its own resource. A gateway that routes by path may store what others get.
#[test]
fn an_edge_that_is_not_told_to_code_sends_plain_bodies() {
    let Some(pair) = Pair::new(DECODES, "") else { return };
    let body = text(3000);
    let file = pair.file("body", &body);
    let mut client = Client::new(&pair.near);
    client.ask(&["GET", "/", "length", ""]);
    let (status, got) = client.ask(&["POST", "/plain", "length", &file, JSON]);
    assert_eq!(status, 200, "{got}");
    assert_whole(&got, &body);
    assert!(pair.bytes_sent("/plain") >= body.len() as u64);
}

/// RFC 7694 section 3: a 415 with the field says that the coding was the reason.
#[test]
fn an_application_that_refuses_a_type_does_not_refuse_a_coding() {
    for of_near in [CODES, "upstream_http2 = \"off\"\ncode_requests = true"] {
        let Some(pair) = Pair::new(DECODES, of_near) else { return };
        let body = text(3000);
        let file = pair.file("body", &body);
        let mut client = Client::new(&pair.near);
        client.ask(&["GET", "/", "length", ""]);
        client.talk.say(&["POST", "/no-type", "length", &file, JSON].join("\t"));
        client.talk.say("\n");
        let line = client.hear();
        assert!(line.starts_with("415\tnothing\t"), "{line}");
        // The next response accepts codings again, and the near edge believes it.
        let words = ["POST", "/coded", "length", &file, JSON];
        gets_coded(&pair.near, &mut client, &words, (&body, body.len() / 2));
    }
}

/// A client may wait for an answer to what it has sent.
#[test]
fn a_coded_body_that_pauses_is_passed_on() {
    until("a coded body", || {
        let Some(mut pair) = Pair::new(DECODES, CODES) else { return Some(()) };
        let body = text(2000);
        let file = pair.file("body", &body);
        let mut client = Client::new(&pair.near);
        let began = Instant::now();
        client.ask(&["GET", "/", "length", ""]);
        client.talk.say(&["POST", "/slow", "slow", &file, JSON].join("\t"));
        client.talk.say("\n");
        assert_eq!(client.hear(), "half\n");
        let is_kept = began.elapsed() < KEPT_MIN;
        let half = body.len().div_ceil(10_000) / 2 * 10_000;
        pair.application.hear(&format!("/slow has {half}"));
        client.talk.say("go on\n");
        let (status, got) = answer(&client.hear());
        assert_eq!(status, 200);
        assert_whole(&got, &body);
        let is_coded = pair.bytes_sent("/slow") < body.len() as u64 / 2;
        assert!(is_coded || !is_kept);
        is_coded.then_some(())
    });
}

/// A body that compresses far better than the far edge believes arrives all the same.
#[test]
fn a_body_of_one_line_again_and_again_is_no_bomb() {
    let Some(pair) = Pair::new(DECODES, CODES) else { return };
    let body = b"the same line in each place of a log\n".repeat(700_000);
    let file = pair.file("body", &body);
    let mut client = Client::new(&pair.near);
    let words = ["POST", "/log", "length", &file, "Content-Type: text/plain"];
    gets_coded(&pair.near, &mut client, &words, (&body, body.len() / 4 * 3));
}

/// The server behind the far edge's address has changed, and the client has not.
#[test]
fn a_far_edge_without_the_feature_gets_plain_bodies() {
    if !need("python3") {
        return;
    }
    let pki = Pki::new();
    let (_application, port) = application();
    pki.server("edge", &["app.test"], Kind::P256);
    let [address] = vacant();
    let far = |keys: &str| {
        let rule = pki.terminate(&format!("http://127.0.0.1:{port}"), keys);
        let config = format!("[[listener]]\naddress = \"{address}\"\n{rule}");
        Edge::start_whole(&pki.folder, &config, |_| ())
    };
    let before = far(DECODES);
    let near = near(&pki, address.port(), CODES);
    let body = text(3000);
    let file = pki.folder.write("body", &body).display().to_string();
    let mut client = Client::new(&near);
    let words = ["POST", "/coded", "length", &file, JSON];
    gets_coded(&near, &mut client, &words, (&body, body.len() / 2));
    drop(before);
    let after = far("");
    let (status, got) = client.ask(&["POST", "/plain", "length", &file, JSON]);
    assert_eq!(status, 200, "{got} {}", after.log());
    assert_whole(&got, &body);
    let line = near.line("the request", |line| line["http"]["path"] == "/plain");
    assert!(line["bytes_to_upstream"].as_u64().unwrap() >= body.len() as u64, "{line}");
}

/// A reload ends no connection, and tells no client what has changed. The next response does.
#[test]
fn a_reload_that_ends_decoding_passes_one_coded_body_at_most() {
    until("a coded body behind the reload", || {
        let Some(pair) = Pair::new(DECODES, CODES) else { return Some(()) };
        let body = text(3000);
        let file = pair.file("body", &body);
        let mut client = Client::new(&pair.near);
        let began = Instant::now();
        let words = ["POST", "/decoded", "length", &file, JSON];
        gets_coded(&pair.near, &mut client, &words, (&body, body.len() / 2));
        let mut files =
            std::fs::read_dir(pair.pki.folder.path()).unwrap().map(|one| one.unwrap().path());
        let config = files.find(|file| {
            file.extension().is_some_and(|kind| kind == "toml")
                && std::fs::read_to_string(file).is_ok_and(|text| text.contains(DECODES))
        });
        let config = config.unwrap();
        let without = std::fs::read_to_string(&config).unwrap().replace(DECODES, "");
        std::fs::write(&config, without).unwrap();
        pair.far.signal(Signal::HUP);
        pair.far.wait_log("configuration 2 serves");
        // The near edge knows what the last response has said. The application is told the coding.
        let (_, got) = client.ask(&["POST", "/coded", "length", &file, JSON]);
        if got["fields"]["content-encoding"] != "zstd" {
            assert!(began.elapsed() >= KEPT_MIN, "{got}");
            return None;
        }
        assert!(got["length"].as_u64().unwrap() < body.len() as u64 / 2, "{got}");
        let (_, got) = client.ask(&["POST", "/plain", "length", &file, JSON]);
        assert_whole(&got, &body);
        assert!(pair.bytes_sent("/plain") >= body.len() as u64);
        Some(())
    });
}

/// A server that is no edge, and that does not keep to what it says.
#[test]
fn a_server_that_refuses_a_coded_body_gets_no_other() {
    for of_near in [CODES, "upstream_http2 = \"off\"\ncode_requests = true"] {
        until("a refusal and a request on one connection", || {
            // The far edge passes all as it comes.
            let Some(pair) = Pair::new("", of_near) else { return Some(()) };
            let body = text(3000);
            let file = pair.file("body", &body);
            let mut client = Client::new(&pair.near);
            let began = Instant::now();
            assert_eq!(client.ask(&["GET", "/strict", "length", ""]).0, 200);
            let refused = client.ask(&["POST", "/strict/coded", "length", &file, JSON]).0;
            // It says again that it accepts zstd, on the same connection.
            assert_eq!(client.ask(&["GET", "/strict", "length", ""]).0, 200);
            let (status, got) = client.ask(&["POST", "/strict/plain", "length", &file, JSON]);
            if (refused, status) != (415, 200) {
                assert!(began.elapsed() >= KEPT_MIN, "{refused}, then {status}: {got}");
                return None;
            }
            assert!(pair.bytes_sent("/strict/coded") < body.len() as u64 / 2);
            assert_whole(&got, &body);
            assert!(pair.bytes_sent("/strict/plain") >= body.len() as u64);
            Some(())
        });
    }
}

#[test]
fn a_client_is_told_that_its_body_was_refused() {
    if !need("python3") {
        return;
    }
    // It reads no body, so each request has a connection of its own unless it is a GET.
    let near = Near::new(CODES, |asked| {
        let accepts = "Accept-Encoding: zstd\r\n";
        match asked.contains("content-encoding: zstd") {
            true => format!(
                "HTTP/1.1 415 Unsupported Media Type\r\n{accepts}Content-Length: 0\r\n\
                 Connection: close\r\n\r\n"
            )
            .into_bytes(),
            false => said(accepts, b"{}"),
        }
    });
    let file = near.pki().folder.write("body", text(500)).display().to_string();
    let mut client = Client::new(&near.edge);
    assert_eq!(client.ask(&["GET", "/", "length", ""]).0, 200);
    assert_eq!(client.ask(&["POST", "/", "length", &file, JSON]).0, 415, "the client is told");
}

#[test]
fn bodies_that_clients_have_coded_are_decoded() {
    let Some(pair) = Pair::new(DECODES, "") else { return };
    let body = text(60_000);
    let file = pair.file("body", &body);
    // br's default, its highest quality, takes seconds of a processor for 2 MB.
    let coders = [("zstd", "zstd -q -f"), ("br", "brotli -q 5 -f"), ("gzip", "gzip -k -f")];
    for (coding, coder) in coders {
        let mut words = coder.split(' ');
        let program = words.next().unwrap();
        if !need(program) {
            continue;
        }
        let said = output(Command::new(program).args(words).arg(&file));
        assert!(said.status.success(), "{said:?}");
        let end = match coding {
            "zstd" => "zst",
            "gzip" => "gz",
            other => other,
        };
        let (data, field) = (format!("@{file}.{end}"), format!("Content-Encoding: {coding}"));
        for version in ["--http1.1", "--http2"] {
            let sent = ["--data-binary", &data, "-H", &field, "-H", JSON, version, "-D", "-"];
            let said = pair.curl(&sent, "/coded").text;
            assert!(
                said.to_lowercase().contains("\naccept-encoding: zstd, br, gzip\r\n"),
                "{said}"
            );
            let got = serde_json::from_str(said.split("\r\n\r\n").last().unwrap());
            assert_whole(&got.unwrap_or_else(|_| panic!("{version} {coding}: {said}")), &body);
            let sent =
                ["--data-binary", &data, "-H", &field, "-H", "Expect: 100-continue", version];
            let got = serde_json::from_str(&pair.curl(&sent, "/expect").text).unwrap();
            assert_whole(&got, &body);
            // Its digest covers the coded bytes, so it stays coded.
            let bound = [&sent[..], &["-H", "Content-Digest: sha-256=:eA==:"]].concat();
            let got: Value = serde_json::from_str(&pair.curl(&bound, "/bound").text).unwrap();
            assert_eq!(got["fields"]["content-encoding"], coding, "{got}");
            let length = std::fs::metadata(&data[1..]).unwrap().len();
            assert_eq!(got["length"], length, "{got}");
        }
    }
    let form = pair.curl(&["-F", &format!("a=@{file}"), "--http2"], "/form");
    let got: Value = serde_json::from_str(&form.text).unwrap();
    assert!(got["length"].as_u64() > Some(body.len() as u64), "{got}");
}

/// All of it is one block, which gives nothing until its last byte is there.
#[test]
fn a_coded_body_that_comes_slowly_is_not_cut() {
    let app = Upstream::serve(|mut stream| {
        web::head(&mut stream);
        let got = web::chunks(&mut stream);
        let said = format!("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{:09}", got.len());
        let _ = stream.write_all(said.as_bytes());
    });
    let web = Web::with(app, "decode_requests = true", "[http]\nbody_timeout = \"5s\"\n");
    let body = text(3000);
    let mut coded = vec![0; body.len()];
    let length = zstd_safe::compress(&mut coded[..], &body, 3).unwrap();
    let mut client = web.connect();
    let head = format!(
        "POST /slow HTTP/1.1\r\nHost: app.test\r\nContent-Encoding: zstd\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    client.write_all(head.as_bytes()).unwrap();
    // All take longer than the timeout, and each far less, also on a busy machine.
    for piece in coded[..length].chunks(length.div_ceil(12)) {
        client.write_all(piece).unwrap();
        client.flush().unwrap();
        thread::sleep(Duration::from_millis(500));
    }
    let heard = web::hear(&mut client, "POST");
    assert_eq!((heard.status, heard.text()), (200, format!("{:09}", body.len())));
}

#[test]
fn what_cannot_be_decoded_is_refused() {
    let Some(mut pair) = Pair::new(DECODES, "") else { return };
    if !need("zstd") {
        return;
    }
    let file = pair.file("body", &noise(300_000, 3));
    let zeros = pair.file("zeros", &vec![0; 64 << 20]);
    for file in [&file, &zeros] {
        assert!(output(Command::new("zstd").args(["-q", "-f", file])).status.success());
    }
    let whole = std::fs::read(format!("{file}.zst")).unwrap();
    let cut = pair.file("cut", &whole[..whole.len() - 9]);
    let mut broken = whole.clone();
    broken[4] ^= 0xFF;
    let broken = pair.file("broken", &broken);
    for version in ["--http1.1", "--http2"] {
        for (path, file, coding, status) in [
            ("/deflate", &file, "deflate", 415),
            ("/twice", &file, "gzip, zstd", 415),
            ("/cut", &cut, "zstd", 400),
            ("/broken", &broken, "zstd", 400),
            ("/not", &file, "br", 400),
            ("/bomb", &format!("{zeros}.zst"), "zstd", 413),
        ] {
            let (data, field) = (format!("@{file}"), format!("Content-Encoding: {coding}"));
            let sent = ["--data-binary", &data, "-H", &field, "-H", "Expect:", version, "-i"];
            let said = pair.curl(&sent, &format!("{path}{version}"));
            let line = format!(" {status} ");
            assert!(said.text.lines().next().unwrap().contains(&line), "{path}: {}", said.text);
            let accepts = said.text.to_lowercase().contains("\naccept-encoding: zstd, br, gzip");
            assert!(accepts, "{path}: {}", said.text);
        }
        pair.application.hear(&format!("/bomb{version} was cut after"));
        pair.application.hear(&format!("/cut{version} was cut after"));
        let reached = pair.application.said();
        let prefix = format!("/bomb{version} has ");
        let most =
            reached.lines().filter_map(|line| line.strip_prefix(&prefix)?.parse::<u64>().ok());
        assert!(most.max().unwrap() < 18 << 20, "{reached}");
    }
    let reached = pair.application.said();
    assert!(!reached.contains("/deflate") && !reached.contains("/twice"), "{reached}");
}

/// Such an edge behaves as before there was a key for it.
#[test]
fn an_edge_that_is_not_told_to_decode_passes_coded_bodies() {
    let Some(pair) = Pair::new("", "") else { return };
    let body = noise(5000, 5);
    let data = format!("@{}", pair.file("body", &body));
    for coding in ["zstd", "deflate"] {
        let field = format!("Content-Encoding: {coding}");
        let said = pair.curl(&["--data-binary", &data, "-H", &field, "-i"], "/").text;
        assert!(!said.to_lowercase().contains("accept-encoding:"), "{said}");
        let got: Value = serde_json::from_str(said.split("\r\n\r\n").last().unwrap()).unwrap();
        assert_eq!(
            (&got["length"], &got["fields"]["content-encoding"]),
            (&5000.into(), &coding.into())
        );
    }
}
