//! `eyelet probe` against real servers: openssl, Node, an edge, and servers that speak no TLS.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::thread;

use serde_json::Value;

use crate::support::hello::server_flight;
use crate::support::upstream::nobody;
use crate::support::{Edge, Pki, Said, Talk, Upstream, long_output, need, output, until};

/// A wait for a busy machine.
const LONG: [&str; 2] = ["--wait", "60"];

fn probe(target: SocketAddr, more: &[&str]) -> (Said, Value) {
    let said = long_output(
        Command::new(env!("CARGO_BIN_EXE_eyelet"))
            .args(["probe", &target.to_string(), "--name", "app.test", "--json"])
            .args(more),
    );
    let found = serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{}", said.text));
    (said, found)
}

/// The grade of a finding and what was seen.
fn finding<'a>(found: &'a Value, name: &str) -> (&'a str, &'a str) {
    let all = found["findings"].as_array().unwrap();
    let one = all.iter().find(|one| one["name"] == name);
    let one = one.unwrap_or_else(|| panic!("no {name} in {found:#}"));
    (one["grade"].as_str().unwrap(), one["seen"].as_str().unwrap())
}

#[test]
fn an_edge_is_probed() {
    let pki = Pki::new();
    let app = Upstream::echo();
    let rule = pki.terminate(&format!("tcp://{}", app.address), "");
    let edge = Edge::start(&pki.folder, &rule);
    let (said, found) = probe(edge.address(), &LONG);
    assert_eq!(said.status.code(), Some(0), "{found:#}");
    assert_eq!(finding(&found, "tls-1.3").0, "ok", "{found:#}");
    assert_eq!(finding(&found, "tls-1.2").0, "ok", "{found:#}");
    assert_eq!(finding(&found, "tls-1.1").0, "ok", "{found:#}");
    assert_eq!(finding(&found, "tls-compression").0, "ok", "{found:#}");
    assert_eq!(finding(&found, "renegotiation").0, "ok", "{found:#}");
    assert_eq!(finding(&found, "cut-records").0, "ok", "{found:#}");
    assert_eq!(finding(&found, "foreign-name"), ("ok", "alert unrecognized_name"), "{found:#}");
    assert!(finding(&found, "key-exchange").1.contains("X25519MLKEM768"), "{found:#}");
    assert!(finding(&found, "resumption-1.3").1.starts_with("yes"), "{found:#}");
    assert_eq!(finding(&found, "early-data").0, "ok", "{found:#}");
    // The upstream echoes: no answer of HTTP, so a half-close cannot lose one.
    assert_eq!(finding(&found, "half-close").0, "unknown", "{found:#}");
}

/// The process is found by its listening socket. Its memory has no expected grade: 60 connections
/// of 250 bytes are few, and an allocator may take a heap for each core meanwhile.
#[test]
fn the_memory_of_an_edge_is_measured() {
    let pki = Pki::new();
    let app = Upstream::echo();
    let rule = pki.terminate(&format!("http://{}", app.address), "");
    let edge = Edge::start(&pki.folder, &rule);
    let svg = pki.text("memory.svg");
    let old = "an older picture".repeat(10_000);
    std::fs::write(&svg, &old).unwrap();
    let flags = ["--wait", "60", "--memory", "--connections", "60", "--svg", &svg];
    let (said, found) = probe(edge.address(), &flags);
    assert_eq!(said.status.code(), Some(0), "{found:#}");
    assert_eq!(found["figures"]["connections"], 60.0, "{found:#}");
    assert!(found["figures"]["full_handshake_us"].as_f64().unwrap() > 0.0, "{found:#}");
    assert!(found["figures"]["resumed_handshake_us"].as_f64().unwrap() > 0.0, "{found:#}");
    for name in ["memory", "kernel-memory", "creep"] {
        assert!(!finding(&found, name).1.is_empty(), "{name}: {found:#}");
    }
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.contains("<polyline") && !picture.contains("older"), "{picture}");
}

/// Nobody listens there, so nothing is measured.
#[test]
fn a_picture_stays_where_there_is_no_new_one() {
    let folder = Pki::new();
    let (old, new) = (folder.text("old.svg"), folder.text("new.svg"));
    std::fs::write(&old, "an older picture").unwrap();
    let (_bound, address) = nobody();
    for svg in [&old, &new] {
        let (said, found) = probe(address, &["--memory", "--svg", svg]);
        assert_eq!(said.status.code(), Some(1), "{found:#}");
    }
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "an older picture");
    assert!(!std::path::Path::new(&new).exists());
}

/// A server that answers a hello with `answer` and ends, or with nothing and waits.
fn garbage(answer: Option<&'static [u8]>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                match answer {
                    Some(answer) => _ = stream.write_all(answer),
                    None => while matches!(stream.read(&mut [0; 4096]), Ok(1..)) {},
                }
            });
        }
    });
    address
}

/// An address gives hellos no name, and a server may refuse them for that: this says nothing of its
/// versions.
#[test]
fn a_server_that_wants_a_name_is_not_said_to_lack_a_version() {
    // The alert handshake_failure.
    let target = garbage(Some(&[21, 3, 3, 0, 2, 2, 40])).to_string();
    let command = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_eyelet"));
        output(command.args(["probe", &target, "--json"]).args(more).args(LONG))
    };
    let said: Value = serde_json::from_str(&command(&[]).text).unwrap();
    for version in ["tls-1.3", "tls-1.2"] {
        assert_eq!(finding(&said, version), ("unknown", "alert handshake_failure"), "{said:#}");
    }
    let advice = &said["findings"][0]["advice"];
    assert_eq!(
        advice, "the server may want a name: try --name, and a name that it has",
        "{said:#}"
    );
    let named: Value = serde_json::from_str(&command(&["--name", "app.test"]).text).unwrap();
    assert_eq!(finding(&named, "tls-1.2").0, "note", "{named:#}");
}

/// A server that answers a first read by `answer`, and waits for the end.
fn by_first_read(answer: fn(&[u8]) -> Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut first = [0; 4096];
                let more = stream.read(&mut first).unwrap_or(0);
                let _ = stream.write_all(&answer(&first[..more]));
                while matches!(stream.read(&mut first), Ok(1..)) {}
            });
        }
    });
    address
}

/// True if the first read has a whole hello in one record.
fn is_whole(first: &[u8]) -> bool {
    first.len() > 9
        && first.len() == 5 + usize::from(u16::from_be_bytes([first[3], first[4]]))
        && first.len() == 9 + usize::from(u16::from_be_bytes([first[7], first[8]]))
}

#[test]
fn a_cut_hello_is_blamed_only_if_a_whole_one_is_read() {
    let decode_error = |_: &[u8]| b"\x15\x03\x03\0\x02\x02\x32".to_vec();
    let strict: fn(&[u8]) -> Vec<u8> = |first| match is_whole(first) {
        true => server_flight(),
        false => b"\x15\x03\x03\0\x02\x02\x32".to_vec(),
    };
    for (answer, expected) in [(decode_error as fn(&[u8]) -> Vec<u8>, "unknown"), (strict, "bad")] {
        let (_, found) = probe(by_first_read(answer), &LONG);
        for name in ["cut-records", "cut-segments"] {
            assert_eq!(finding(&found, name).0, expected, "{found:#}");
        }
    }
}

#[test]
fn servers_without_tls_each_get_a_verdict() {
    let (_socket, unused) = nobody();
    for (address, why) in [
        (garbage(Some(b"HTTP/1.1 400 Bad Request\r\n\r\n")), "not TLS: \"HTTP/1.1 400"),
        (garbage(Some(b"\x16\x03\x03\xff\xff\x02")), "malformed TLS"),
        (garbage(Some(b"\x16\x03\x03\0\x40\x02\0\0\x3c\x03")), "closed the connection"),
        (garbage(Some(b"")), "closed the connection"),
        (garbage(None), "did not answer in time"),
        (unused, "failed"),
    ] {
        let is_silent = why == "did not answer in time";
        let (said, found) = probe(address, if is_silent { &["--wait", "1"] } else { &LONG });
        assert_eq!(said.status.code(), Some(1), "{found:#}");
        let (grade, seen) = finding(&found, "tls");
        assert!(grade == "bad" && seen.contains(why), "{why}: {found:#}");
    }
}

#[test]
fn a_wrong_target_is_a_mistake_of_use() {
    for target in ["www.example", "127.0.0.1:0", "127.0.0.1:70000", ":443:"] {
        let said = output(Command::new(env!("CARGO_BIN_EXE_eyelet")).args(["probe", target]));
        assert_eq!(said.status.code(), Some(2), "{target}: {}", said.text);
    }
}

/// The planted fault: a body of gzip bytes without a Content-Encoding, coded by gzip again; and the
/// query in a compressed answer.
const TWICE: &str = r#"
const fs = require("fs"), zlib = require("zlib"), https = require("https");
const [certificate, key] = process.argv.slice(1);
https.createServer({ cert: fs.readFileSync(certificate), key: fs.readFileSync(key) }, (q, a) => {
  const page = Buffer.from("a page ".repeat(200) + q.url);
  const body = q.url == "/twice" ? zlib.gzipSync(page) : page;
  if (!/gzip/.test(q.headers["accept-encoding"])) return a.end(body);
  a.writeHead(200, { "Content-Encoding": "gzip" });
  a.end(zlib.gzipSync(body));
}).listen(0, "127.0.0.1", function () { console.log("port " + this.address().port + ";"); });
"#;

/// A server of HTTP/2 that has nothing else. Its page is long enough to be coded.
const TWO: &str = r#"
const fs = require("fs"), zlib = require("zlib"), http2 = require("http2");
const [certificate, key] = process.argv.slice(1);
const files = { cert: fs.readFileSync(certificate), key: fs.readFileSync(key) };
const server = http2.createSecureServer(files, (q, a) => {
  const page = "a page ".repeat(30000);
  if (!/gzip/.test(q.headers["accept-encoding"])) return a.end(page);
  a.writeHead(200, { "content-encoding": "gzip", "vary": "accept-encoding" });
  a.end(zlib.gzipSync(page));
});
server.on("sessionError", () => {}).on("tlsClientError", () => {});
server.listen(0, "127.0.0.1", function () { console.log("port " + this.address().port + ";"); });
"#;

/// A server that counts whole pages on kept connections. A page is longer than what sockets hold
/// for a client that does not read.
const PAGES: &str = r#"
const fs = require("fs"), https = require("https");
const [certificate, key] = process.argv.slice(1);
const page = Buffer.alloc(7 << 20, "a");
let pages = 0;
https.createServer({ cert: fs.readFileSync(certificate), key: fs.readFileSync(key) }, (q, a) => {
  const counts = q.url == "/page" && q.headers.connection != "close";
  if (counts) a.on("finish", () => console.log("pages " + ++pages + "."));
  a.end(q.url == "/page" ? page : "short");
}).listen(0, "127.0.0.1", function () { console.log("port " + this.address().port + ";"); });
"#;

/// The planted faults: an error for gzip, no answer for zstd, and the query in an answer that is
/// compressed by br alone and sets a cookie.
const BROKEN: &str = r#"
const fs = require("fs"), zlib = require("zlib"), https = require("https");
const [certificate, key] = process.argv.slice(1);
https.createServer({ cert: fs.readFileSync(certificate), key: fs.readFileSync(key) }, (q, a) => {
  const page = Buffer.from("a page ".repeat(200) + q.url);
  const coding = q.headers["accept-encoding"];
  if (coding == "zstd") return q.socket.destroy();
  if (coding == "gzip") return a.writeHead(500).end();
  if (coding != "br") return a.end(page);
  const fields = { "Content-Encoding": "br", "Vary": "Accept-Encoding", "Set-Cookie": "a=b" };
  a.writeHead(200, fields).end(zlib.brotliCompressSync(page));
}).listen(0, "127.0.0.1", function () { console.log("port " + this.address().port + ";"); });
"#;

/// A script of Node with the test's certificate, and where it listens.
fn node(pki: &Pki, script: &str) -> (Talk, SocketAddr) {
    let (certificate, key) = (pki.file("edge.pem"), pki.file("edge.key"));
    listening(Command::new("node").args(["-e", script]).args([certificate, key]))
}

/// A server that says its port.
fn listening(command: &mut Command) -> (Talk, SocketAddr) {
    let mut server = Talk::start(command);
    server.hear(";");
    let port: u16 = server.said().split(['t', ';']).nth(1).unwrap().trim().parse().unwrap();
    (server, SocketAddr::from(([127, 0, 0, 1], port)))
}

#[test]
fn a_server_that_has_http2_alone_is_asked_by_it() {
    if !need("node") {
        return;
    }
    let (_node, address) = node(&Pki::new(), TWO);
    // Node sends its tickets with its first answer only: the time of a resumption waits in vain.
    let flags = ["--wait", "20", "--memory", "--get", "--connections", "60"];
    let (said, found) = probe(address, &flags);
    assert_eq!(said.status.code(), Some(0), "{found:#}");
    assert_eq!(finding(&found, "alpn"), ("ok", "chose h2"), "{found:#}");
    assert_eq!(finding(&found, "http"), ("ok", "200 with 210000 bytes, by HTTP/2 alone"));
    let (grade, codings) = finding(&found, "codings");
    assert!(grade == "ok" && codings.starts_with("gzip (210000 to "), "{found:#}");
    for name in ["vary", "coded-twice", "breach", "resumption-1.3", "resumption-1.2"] {
        assert_eq!(finding(&found, name).0, "ok", "{name}: {found:#}");
    }
    assert_eq!(finding(&found, "half-close").0, "unknown", "{found:#}");
    assert_eq!(found["figures"]["connections"], 60.0, "{found:#}");
}

#[test]
fn a_body_that_is_coded_twice_is_named() {
    if !need("node") {
        return;
    }
    let (_node, address) = node(&Pki::new(), TWICE);
    let (_, found) = probe(address, &["--wait", "60", "--path", "/twice"]);
    assert_eq!(finding(&found, "coded-twice").0, "bad", "{found:#}");
    let (_, found) = probe(address, &LONG);
    assert_eq!(finding(&found, "coded-twice").0, "ok", "{found:#}");
    assert_eq!(finding(&found, "vary").0, "bad", "{found:#}");
    // Nothing says that the server knows who asks.
    let (grade, seen) = finding(&found, "breach");
    assert_eq!((grade, seen.starts_with("compressed with the query")), ("note", true), "{found:#}");
}

/// A warm-up of one connection and two rounds of four. Each page is read to its end: a server that
/// still has some of it is not idle.
#[test]
fn each_connection_of_a_measurement_gets_the_path_that_is_asked_for() {
    if !need("node") {
        return;
    }
    let (mut node, address) = node(&Pki::new(), PAGES);
    let flags = ["--wait", "20", "--memory", "--get", "--path", "/page", "--connections", "4"];
    let (_, found) = probe(address, &flags);
    assert_eq!(found["figures"]["connections"], 4.0, "{found:#}");
    node.hear("pages 9.");
}

/// Runs a command in a terminal, and ends with its status.
const TERMINAL: &str = "import os, pty, sys\n\
                        sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";

/// The server's limit is for 20 connections: 100 descriptors are for other things, and a connection
/// may need two.
#[test]
fn who_measures_at_a_terminal_sees_what_goes_on() {
    if !need("python3") {
        return;
    }
    let pki = Pki::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/buffers.py");
    let mut server = Command::new("sh");
    server.args(["-c", "ulimit -n 240; exec python3 \"$@\"", "sh", script]);
    server.arg(pki.file("edge.pem")).arg(pki.file("edge.key")).arg("released");
    let (_server, address) = listening(&mut server);
    let mut command = Command::new("python3");
    command.args(["-c", TERMINAL, env!("CARGO_BIN_EXE_eyelet"), "probe", &address.to_string()]);
    let said = long_output(command.args(["--name", "app.test", "--wait", "60", "--memory"]));
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    let at = |text| said.text.find(text).unwrap_or_else(|| panic!("no {text:?}: {}", said.text));
    let places = [
        "ok      tls-1.3",
        "ok      http ",
        "eyelet: warm-up: 2 connections",
        "eyelet: round 1: 20 connections",
        "eyelet: round 2: 20 connections",
        "note    rounds           20 connections at most, by the descriptor limit of process",
    ];
    assert!(places.map(at).is_sorted(), "{}", said.text);
    assert_eq!(said.text.matches("tls-1.3").count(), 1, "{}", said.text);
}

#[test]
fn codings_that_fail_and_a_query_in_a_body_of_brotli_are_named() {
    if !need("node") {
        return;
    }
    let (_node, address) = node(&Pki::new(), BROKEN);
    let (_, found) = probe(address, &LONG);
    let (grade, seen) = finding(&found, "codings");
    assert_eq!(grade, "bad", "{found:#}");
    assert!(seen.starts_with("asked for gzip: 500 in place of 200, asked for zstd: "), "{seen}");
    assert!(seen.contains(", br (1401 to "), "{seen}");
    assert_eq!(finding(&found, "coded-twice").0, "unknown", "{found:#}");
    assert_eq!(finding(&found, "vary").0, "ok", "{found:#}");
    assert_eq!(finding(&found, "breach").0, "bad", "{found:#}");
}

#[test]
fn openssl_with_old_versions_is_named() {
    if !need("openssl") {
        return;
    }
    let pki = Pki::new();
    let (certificate, key) = (pki.file("edge.pem"), pki.file("edge.key"));
    let mut server = Command::new("openssl");
    server.args(["s_server", "-accept", "127.0.0.1:0", "-www", "-cipher", "DEFAULT:@SECLEVEL=0"]);
    server.arg("-cert").arg(certificate).arg("-key").arg(key);
    server.args(["-min_protocol", "TLSv1"]);
    let mut server = Talk::start(&mut server);
    server.hear("ACCEPT");
    let address = until("its port", || {
        let said = server.said();
        said.split_whitespace().find_map(|word| word.parse::<SocketAddr>().ok())
    });
    let (said, found) = probe(address, &LONG);
    assert_eq!(said.status.code(), Some(0), "{found:#}");
    assert_eq!(finding(&found, "tls-1.0").0, "bad", "{found:#}");
    // OpenSSL 3.5 chooses X25519MLKEM768, and earlier ones cannot.
    let (grade, seen) = finding(&found, "groups");
    let expected = if seen.contains("X25519MLKEM768") { "ok" } else { "note" };
    assert_eq!(grade, expected, "{found:#}");
    assert_eq!(finding(&found, "foreign-name").0, "note", "{found:#}");
}
