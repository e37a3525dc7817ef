//! Compression with foreign clients: curl with each coding over HTTP/1.1 and HTTP/2, and a real
//! browser that comes back for the next version.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use aws_lc_rs::digest::{Digest, SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::support::browser::{self, Browser};
use crate::support::client::Offer;
use crate::support::edge::LISTENER;
use crate::support::upstream::vacant;
use crate::support::web::{Heard, ask, head};
use crate::support::{Edge, Pki, Upstream, need, noise, output, until};

/// A bundle of some size: most of it the same in each version.
fn bundle(version: u32) -> String {
    let mut text = format!("window.version = {version};\n");
    for n in 0..6_000_u32 {
        let number = n.wrapping_mul(2_654_435_761) >> 7;
        text += &format!("function f{n}(a) {{ return a * {number} + {}; }}\n", number % 97);
    }
    text + "fetch('/ran?' + window.version + f7(0));\n"
}

/// Versions from here on have six megabytes more.
const LARGE: u32 = 100;
/// And those from here on are seven bundles long.
const HEAVY: u32 = 200;

/// A small answer of its own, with much that all of them have.
fn record(path: &str) -> Vec<u8> {
    let n: u32 = path.trim_start_matches("/api/").parse().unwrap_or(0);
    let mut text = format!("{{\"self\":\"{path}\",\"fields\":{{");
    for field in 0..12_u32 {
        let value = (n * 31 + field).wrapping_mul(2_654_435_761) >> 9;
        text += &format!("\"the field that has the number {field}\":{{\"value\":{value}}},");
    }
    (text + "\"end\":null}}").into_bytes()
}

/// A page a version, its script, and what is no text.
fn application(mut stream: TcpStream) {
    loop {
        let mut byte = [0];
        let Ok(1) = stream.peek(&mut byte) else { return };
        let asked = head(&mut stream);
        let path = asked.split(' ').nth(1).unwrap_or("/").to_owned();
        let (kind, body) = match path.split_once("/assets/app.") {
            Some((_, rest)) => {
                let version = rest.trim_end_matches(".js").parse().unwrap_or(1);
                let mut body = bundle(version).into_bytes();
                if version >= HEAVY {
                    (0..6).for_each(|more| body.extend(bundle(version * 7 + more).bytes()));
                } else if version >= LARGE {
                    body.extend(noise(6 << 20, 5));
                }
                ("text/javascript", body)
            }
            None if path.starts_with("/api/") => ("application/json", record(&path)),
            None if path.starts_with("/noise") => ("application/octet-stream", noise(9_000, 3)),
            None => {
                let version = path.trim_start_matches('/');
                let script = format!("<script src=\"/assets/app.{version}.js\"></script>");
                let page = format!("<!doctype html><title>{version}</title>{script}");
                ("text/html", page.into_bytes())
            }
        };
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
             Cache-Control: public, max-age=600\r\nETag: \"{path}\"\r\n\r\n",
            body.len()
        );
        let written = stream.write_all(answer.as_bytes()).and_then(|()| stream.write_all(&body));
        if written.is_err() || asked.contains("HTTP/1.0") {
            return;
        }
    }
}

/// An edge at `port` of loopback, 0 for any, for localhost.
fn edge(pki: &Pki, app: &Upstream, port: u16) -> Edge {
    let config = format!(
        "workers = 1\n[[listener]]\naddress = \"127.0.0.1:{port}\"\n[[rule]]\nname = \"app\"\n\
         sni = \"localhost\"\naction = \"terminate\"\ncertificate = \"edge.pem\"\n\
         key = \"edge.key\"\nupstream = \"http://{}\"\ndictionary = \"/assets/app.*.js\"\n",
        app.address
    );
    Edge::start_whole(&pki.folder, &config, |_| ())
}

/// The configuration of one for app.test that keeps its dictionaries.
fn storing(pki: &Pki, app: &Upstream, more: &str) -> String {
    let rule = pki.terminate(&format!("http://{}", app.address), more);
    format!("workers = 1\n{LISTENER}{rule}[dictionary]\npath = \"store\"\n")
}

fn fetch(pki: &Pki, edge: &Edge, version: u32, fields: &str) -> Heard {
    let mut client = Offer::new(pki).connect(edge.address(), "app.test");
    let head = format!("GET /assets/app.{version}.js HTTP/1.1\r\nHost: app.test\r\n");
    ask(&mut client, &format!("{head}{fields}\r\n"))
}

/// Fields of a client that takes these codings, and has a dictionary.
fn taking(codings: &str, hash: &[u8]) -> String {
    let has = STANDARD.encode(hash);
    format!("Accept-Encoding: {codings}\r\nAvailable-Dictionary: :{has}:\r\n")
}

fn asked(edge: &Edge, path: &str) -> Value {
    edge.line(path, |line| line["http"]["path"].as_str().is_some_and(|p| p.starts_with(path)))
}

#[test]
fn curl_decodes_every_coding_over_both_https() {
    if !need("curl") {
        return;
    }
    let (pki, app) = (Pki::new(), Upstream::serve(application));
    let edge = edge(&pki, &app, 0);
    let url = format!("https://localhost:{}", edge.port());
    let known = output(Command::new("curl").arg("--version")).text;
    for version in ["--http1.1", "--http2"] {
        for coding in ["gzip", "br", "zstd"] {
            if !known.contains(if coding == "br" { "brotli" } else { coding.trim_matches('g') }) {
                continue;
            }
            let path = format!("/assets/app.1.js?{version}{coding}");
            let body = pki.file("body");
            let said = output(
                Command::new("curl")
                    .args(["-sS", "--compressed", version, "--cacert"])
                    .arg(pki.file("ca.pem"))
                    .args(["-H", &format!("Accept-Encoding: {coding}"), "-o"])
                    .arg(&body)
                    .arg(format!("{url}{path}")),
            );
            assert!(said.status.success(), "{}", said.text);
            assert!(std::fs::read(&body).unwrap() == bundle(1).into_bytes(), "{version} {coding}");
            let line = asked(&edge, &path);
            assert_eq!(line["coding"], coding, "{line}");
            assert_eq!(line["bytes_identity"], bundle(1).len(), "{line}");
            let sent = line["bytes_sent"].as_u64().unwrap();
            assert!(sent * 3 < bundle(1).len() as u64, "{line}");
            assert_eq!(line["why_not"], Value::Null, "{line}");
        }
    }
    let said = output(
        Command::new("curl")
            .args(["-sS", "--compressed", "-o", "/dev/null", "--cacert"])
            .arg(pki.file("ca.pem"))
            .arg(format!("{url}/noise")),
    );
    assert!(said.status.success(), "{}", said.text);
    assert_eq!(asked(&edge, "/noise")["why_not"], "looks compressed");
}

#[test]
fn a_trained_dictionary_reaches_clients_of_a_running_edge() {
    let (pki, app) = (Pki::new(), Upstream::serve(application));
    std::fs::create_dir(pki.file("store")).unwrap();
    let config = storing(&pki, &app, "");
    let edge = Edge::start_whole(&pki.folder, &config, |_| ());
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    let mut get = |path: &str, fields: &str| {
        ask(&mut client, &format!("GET {path} HTTP/1.1\r\nHost: app.test\r\n{fields}\r\n"))
    };
    for n in 0..200 {
        assert_eq!(get(&format!("/api/{n}"), "").field("link"), None);
    }
    asked(&edge, "/api/199");
    let log: String = edge.lines().iter().map(|line| format!("{line}\n")).collect();
    let said = output(
        Command::new(env!("CARGO_BIN_EXE_eyelet"))
            .args(["dictionary", "train"])
            .arg(pki.folder.write("train.toml", &config))
            .args(["--rule", "app", "--bytes-max", "4096", "--from"])
            .arg(pki.folder.write("access.log", log)),
    );
    assert!(said.status.success(), "{}", said.text);
    assert!(said.text.starts_with("200 samples of 200 paths"), "{}", said.text);

    let link = until("the offer", || {
        let link = get("/api/1", "Accept-Encoding: gzip\r\n").field("link").map(str::to_owned);
        link.or_else(|| {
            std::thread::sleep(Duration::from_millis(50));
            None
        })
    });
    let path = link.split(['<', '>']).nth(1).unwrap();
    let fetched = get(path, "");
    assert_eq!(fetched.field("use-as-dictionary"), Some("match=\"/api/*\""));
    let fields = taking("gzip, dcz", digest(&SHA256, &fetched.body).as_ref());
    let got = get("/api/9999", &fields);
    assert_eq!(got.field("content-encoding"), Some("dcz"));
    assert_eq!(got.field("vary"), Some("accept-encoding, available-dictionary"));
    let mut context = zstd_safe::DCtx::create();
    context.ref_prefix(&fetched.body).unwrap();
    let mut decoded = Vec::with_capacity(64 << 10);
    // The first 40 bytes are a frame that decoders skip.
    context.decompress(&mut decoded, &got.body[40..]).unwrap();
    assert!(decoded == record("/api/9999"));
    let plain = get("/api/9999", "Accept-Encoding: gzip\r\n").body.len();
    assert!(got.body.len() < plain, "{} of {plain}", got.body.len());
    let line = edge.line("/api/9999", |line| line["coding"] == "dcz");
    assert_eq!(line["bytes_sent"], got.body.len(), "{line}");

    // A dictionary that nobody has is as none, and a path that is none's is the upstream's.
    let nobodys = taking("gzip, dcz", &[0; 32]);
    assert_eq!(get("/api/9999", &nobodys).field("content-encoding"), Some("gzip"));
    let other = format!("{}{}", &path[..path.len() - 64], "0".repeat(64));
    assert_eq!(get(&other, "").field("use-as-dictionary"), None);
}

#[test]
fn what_was_seen_right_before_sigterm_is_there_after_a_restart() {
    let (pki, app) = (Pki::new(), Upstream::serve(application));
    let config = storing(&pki, &app, "dictionary = \"/assets/app.*.js\"");
    let mut one = Edge::start_whole(&pki.folder, &config, |_| ());
    // Deltas of large ones are in the making when it is told to end.
    for version in [LARGE, LARGE + 1, LARGE + 2, 1] {
        assert!(fetch(&pki, &one, version, "").field("use-as-dictionary").is_some());
    }
    one.signal(rustix::process::Signal::TERM);
    assert!(one.wait_exit().success());
    drop(one);

    let two = Edge::start_whole(&pki.folder, &config, |_| ());
    let fields = taking("gzip, dcz", digest(&SHA256, bundle(1).as_bytes()).as_ref());
    let got = fetch(&pki, &two, 2, &fields);
    assert_eq!(got.field("content-encoding"), Some("dcz"));
    assert!(got.body.len() < 1_000, "{}", got.body.len());
}

/// A dictionary that a client was told to use comes to disk without an order to end, however large
/// it is and whatever else there is to do.
#[test]
fn what_was_stored_before_sigkill_is_there_after_a_restart() {
    let (pki, app) = (Pki::new(), Upstream::serve(application));
    let config = storing(&pki, &app, "dictionary = \"/assets/app.*.js\"");
    let mut one = Edge::start_whole(&pki.folder, &config, |_| ());
    let versions = [HEAVY, HEAVY + 1, LARGE, LARGE + 1, HEAVY + 2];
    let mut hashes = Vec::<Digest>::new();
    for version in versions {
        if version == HEAVY + 2 {
            // Pacing: by now the smallest deltas are in the making, which takes seconds each.
            std::thread::sleep(Duration::from_secs(1));
        }
        let got = fetch(&pki, &one, version, "");
        assert!(got.field("use-as-dictionary").is_some());
        for hash in &hashes {
            fetch(&pki, &one, version, &taking("dcb", hash.as_ref()));
        }
        hashes.push(digest(&SHA256, &got.body));
    }
    let missing = || {
        let names = std::fs::read_dir(pki.file("store")).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string()).collect();
        versions.iter().zip(&hashes).find(|(_, hash)| {
            let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            !names.contains(&Ok(format!("{hex}.version")))
        })
    };
    until("all versions to be on disk", || missing().is_none().then_some(()));
    one.signal(rustix::process::Signal::KILL);
    one.wait_exit();
    drop(one);

    let two = Edge::start_whole(&pki.folder, &config, |_| ());
    assert!(missing().is_none(), "{missing:?}", missing = missing().map(|(version, _)| version));
    let fields = taking("gzip, dcz", hashes[2].as_ref());
    until("a delta of large versions", || {
        let got = fetch(&pki, &two, LARGE + 1, &fields);
        (got.field("content-encoding") == Some("dcz") && got.body.len() < 100_000).then_some(())
    });
}

#[test]
fn a_browser_gets_the_next_version_as_a_delta_also_after_a_restart() {
    if !need("chromium") || !need("certutil") {
        return;
    }
    let (pki, app) = (Pki::new(), Upstream::serve(application));
    browser::trust(&pki.folder, &pki.file("ca.pem"));
    // An origin has its port: the edge must come back at the same one.
    let [address] = vacant();
    let port = address.port();
    let visit = |edge: &Edge, version: u32| {
        let browser = Browser::open(&pki.folder, &format!("https://localhost:{port}/{version}"));
        let line = asked(edge, &format!("/assets/app.{version}.js"));
        // The script has run: what it computes with one of its functions comes back.
        asked(edge, &format!("/ran?{version}"));
        // Pacing: the browser writes what it keeps behind the page's back.
        std::thread::sleep(Duration::from_secs(1));
        browser.close();
        line
    };
    let one = edge(&pki, &app, port);
    let first = visit(&one, 1);
    assert_eq!(first["coding"], "br", "{first}");
    // It may have been ended before it had written the first version.
    let mut versions = 2..;
    let second = until("the browser to have a dictionary", || {
        let line = visit(&one, versions.next()?);
        (line["coding"] == "dcz").then_some(line)
    });
    assert!(second["bytes_sent"].as_u64().unwrap() < 1_000, "{second}");
    drop(one);

    let two = edge(&pki, &app, port);
    let third = visit(&two, versions.next().unwrap());
    assert_eq!(third["coding"], "dcz", "{third}");
    assert!(third["bytes_sent"].as_u64().unwrap() < 1_000, "{third}");
}
