//! `/memory` in each state of load: its kinds sum up to the process's anonymous memory, each load
//! appears in its own kind, and hardly any byte is in none.

use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::ClientConfig;
use rustls::client::Resumption;
use serde_json::Value;

use super::admin::{ADMIN, get, metrics};
use crate::support::client;
use crate::support::crowd::{self, From, Manner, Multitude};
use crate::support::edge::{self, LISTENER};
use crate::support::frames::{END_STREAM, HEADERS, PREFACE, SETTINGS, frame, next};
use crate::support::memory::Memory;
use crate::support::pki::Kind;
use crate::support::web::{self, head};
use crate::support::{Edge, Hello, Pki, Tls, Upstream, expect, settled, until};

/// The number of each kind: spliced, TLS in front of TCP, and kept ones of HTTP/1.1.
const PARKED: usize = 670;
/// Connections whose hello is unfinished. Each reserves memory that it does not hold.
const HALF_OPEN: usize = 500;
/// Idle connections of HTTP/2.
const IDLE_HTTP2: usize = 2_000;
/// Requests that wait for an answer: half by HTTP/1.1 with a part of a body, half by HTTP/2.
const ASKING: usize = 400;
/// Responses that are half sent.
const CODED: usize = 30;
/// Names for which a certificate is made.
const MINTED: usize = 500;
/// Certificates from files.
const CERTIFICATES: usize = 1_500;
/// The bytes that each takes with its key, its rule, and the heap that reading it leaves.
const CERTIFICATE_BYTES: std::ops::RangeInclusive<u64> = 700..=2_000;
/// Heap that the handshakes of a crowd leave free, in bytes: 1.8 to 4.4 MB measured. With 2 KiB a
/// connection more that are of no kind, 2,000 connections are beyond it.
const LEFT_FREE: u64 = 6 << 20;

/// An edge that is asked for its memory.
struct Accounts {
    edge: Edge,
    pki: Pki,
    socket: PathBuf,
}

impl Accounts {
    fn new(pki: Pki, rules: &str) -> Self {
        let config = format!("workers = 2\n{LISTENER}{ADMIN}{rules}");
        let edge = Edge::start_whole(&pki.folder, &config, |_| ());
        let socket = pki.folder.path().join("admin.sock");
        Self { edge, pki, socket }
    }

    /// The kinds, once their sum is within 5 % of what the kernel counts, and that stands still.
    fn check(&self, what: &str) -> Kinds {
        settled(|| Memory::of(self.edge.pid()).anonymous >> 20);
        // Both move while they are read.
        until(what, || {
            let memory: Value = serde_json::from_str(&get(&self.socket, "/memory").body).unwrap();
            let sum = memory["accounted_bytes"].as_u64().unwrap();
            let anonymous = Memory::of(self.edge.pid()).anonymous;
            eprintln!("{what}: {sum} bytes in all kinds, {anonymous} anonymous: {memory}");
            let is_near = sum.abs_diff(anonymous) <= anonymous / 20;
            is_near.then(|| Kinds(memory["kinds"].clone()))
        })
    }

    /// Waits until so many connections are in a state.
    fn wait(&self, state: &str, count: usize) {
        until(&format!("{count} {state}"), || {
            let shown = metrics(&get(&self.socket, "/metrics").body);
            let seen = shown[&format!("eyelet_connections{{state=\"{state}\"}}")];
            (seen == count as f64).then_some(())
        });
    }
}

/// `kinds` of the document.
struct Kinds(Value);

impl Kinds {
    fn of(&self, kind: &str) -> u64 {
        self.0[kind].as_u64().unwrap()
    }

    /// Returns the bytes that belong to no connection. The allocator's part is remembered for a
    /// minute, so that only the sum is of now.
    fn unnamed(&self) -> u64 {
        self.of("program") + self.of("allocator")
    }

    fn sum(&self) -> u64 {
        self.0.as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum()
    }

    /// A load is named: besides `left_free`, at most 5 % of what it takes is not.
    #[track_caller]
    fn names_all_since(&self, before: &Self, left_free: u64) {
        let (unnamed, known) = (self.unnamed(), before.unnamed());
        let most = self.sum().saturating_sub(before.sum()) / 20 + left_free;
        eprintln!("unnamed: {known} before, {unnamed} after, {most} more at most");
        assert!(unnamed <= known + most, "{known} bytes without a name, then {unnamed}");
    }
}

fn http2() -> Arc<ClientConfig> {
    let mut config = ClientConfig::clone(&crowd::quick(Resumption::disabled()));
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

/// A GET of `/` at app.test by HPACK's static table.
const GET: &[u8] = b"\x82\x87\x84\x41\x08app.test";

/// A client of HTTP/2 that has acknowledged the edge's SETTINGS, and asked.
fn asking_two(from: From, edge: &Edge, config: &Arc<ClientConfig>) -> Tls {
    let mut tls = from.tls(edge.address(), config, "app.test").unwrap();
    let mut says = PREFACE.to_vec();
    says.extend(frame(SETTINGS, 0, 0, &[]));
    says.extend(frame(SETTINGS, 1, 0, &[]));
    says.extend(frame(HEADERS, END_STREAM | 4, 1, GET));
    tls.write_all(&says).unwrap();
    tls
}

#[test]
fn the_kinds_of_memory_sum_up_to_the_process() {
    let _permit = crowd::permit(2 * (3 * PARKED + HALF_OPEN));
    let pki = Pki::new();
    let (echo, page) = (Multitude::start(Manner::Echo), Multitude::start(Manner::Page));
    pki.server("pair", &["pair.test"], Kind::P256);
    let rules = edge::splice(echo.address, "")
        + &pki.terminate(&format!("http://{}", page.address), "")
        + "[[rule]]\nsni = \"pair.test\"\naction = \"terminate\"\ncertificate = \"pair.pem\"\n"
        + &format!("key = \"pair.key\"\nupstream = \"tcp://{}\"\n", echo.address);
    let accounts = Accounts::new(pki, &rules);
    let before = accounts.check("at the start");
    let (to, hello) = (accounts.edge.address(), Hello::named("host.test").bytes());
    let tls = crowd::quick(Resumption::disabled());
    let spliced = crowd::many(PARKED, |_| {
        let mut client = From::loopback(1).connect(to).unwrap();
        client.write_all(&hello).unwrap();
        expect(&mut client, &hello);
        client
    });
    let shaken = crowd::many(2 * PARKED, |n| {
        let name = ["pair.test", "app.test"][n % 2];
        let mut client = From::loopback(2).tls(to, &tls, name).unwrap();
        if n % 2 == 0 {
            client::echo(&mut client, b"hello");
        } else {
            assert_eq!(web::get(&mut client, "/").status, 200);
        }
        client
    });
    accounts.wait("parked", 3 * PARKED);
    let parked = accounts.check("parked");
    assert!(parked.of("connections") >= 240 * 3 * PARKED as u64);
    parked.names_all_since(&before, LEFT_FREE);
    let half_open = crowd::many(HALF_OPEN, |_| {
        let mut client = From::loopback(3).connect(to).unwrap();
        client.write_all(&hello[..9]).unwrap();
        client
    });
    accounts.wait("peeking", HALF_OPEN);
    accounts.check("half-open, too").names_all_since(&before, LEFT_FREE);
    drop((spliced, shaken, half_open));
}

#[test]
fn idle_connections_of_http2_are_accounted() {
    let _permit = crowd::permit(2 * IDLE_HTTP2);
    let (pki, page) = (Pki::new(), Multitude::start(Manner::Page));
    let rule = pki.terminate(&format!("http://{}", page.address), "");
    let accounts = Accounts::new(pki, &rule);
    let before = accounts.check("at the start");
    let config = http2();
    let clients = crowd::many(IDLE_HTTP2, |n| {
        let from = From::loopback(1 + (n % 4) as u8);
        let mut tls = asking_two(from, &accounts.edge, &config);
        while next(&mut tls).expect("a response").flags & END_STREAM == 0 {}
        tls
    });
    accounts.wait("parked", IDLE_HTTP2);
    let after = accounts.check("2,000 idle connections of HTTP/2");
    // Each is a slot, and its state as bytes.
    assert!(after.of("connections") >= 240 * IDLE_HTTP2 as u64);
    assert!(after.of("relayed") >= 90 * IDLE_HTTP2 as u64);
    after.names_all_since(&before, LEFT_FREE);
    drop(clients);
}

#[test]
fn exchanges_under_way_are_accounted() {
    let _permit = crowd::permit(2 * ASKING);
    // It takes no byte of any request.
    let (pki, silent) = (Pki::new(), Multitude::start(Manner::Stalled));
    let rule = pki.terminate(&format!("http://{}", silent.address), "");
    let accounts = Accounts::new(pki, &rule);
    let before = accounts.check("at the start");
    let (one, two) = (crowd::quick(Resumption::disabled()), http2());
    let clients = crowd::many(ASKING, |n| {
        if n % 2 == 0 {
            let mut tls = asking_two(From::loopback(1), &accounts.edge, &two);
            // In the middle of a frame, of an unknown kind, a connection does not rest.
            tls.write_all(&frame(0xfe, 0, 0, &[0; 100])[..50]).unwrap();
            return tls;
        }
        let mut tls = From::loopback(2).tls(accounts.edge.address(), &one, "app.test").unwrap();
        let post =
            b"POST / HTTP/1.1\r\nHost: app.test\r\nTransfer-Encoding: chunked\r\n\r\n4000\r\n";
        tls.write_all(post).unwrap();
        tls.write_all(&[b'a'; 16 << 10]).unwrap();
        // In the middle of a chunk's first line an upload does not rest.
        tls.write_all(b"\r\n1").unwrap();
        tls
    });
    accounts.wait("serving", ASKING);
    let after = accounts.check("400 exchanges under way");
    // Half of them have sent a part of a body that nobody takes.
    assert!(after.of("http") >= (ASKING / 2 * (16 << 10)) as u64);
    after.names_all_since(&before, 0);
    drop(clients);
}

/// The script of a version: most of it is the same in each.
fn script(version: usize) -> String {
    let mut text = format!("window.version = {version};\n");
    for n in 0..4_000_u32 {
        let number = n.wrapping_mul(2_654_435_761) >> 7;
        text += &format!("function f{n}(a) {{ return a * {number} + {}; }}\n", number % 97);
    }
    text
}

/// Answers with the script of a version. Of those from the second on it sends a half, until it may
/// go on.
fn scripts(mut stream: TcpStream, goes_on: &AtomicBool) {
    loop {
        if !matches!(stream.peek(&mut [0]), Ok(1)) {
            return;
        }
        let asked = head(&mut stream);
        let version = asked.split(['.', ' ']).find_map(|part| part.parse().ok()).unwrap();
        let body = script(version).into_bytes();
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/javascript\r\nContent-Length: {}\r\n\
             Cache-Control: public, max-age=600\r\n\r\n",
            body.len()
        );
        let (first, rest) = body.split_at(body.len() / 2);
        let first = [answer.as_bytes(), first].concat();
        if stream.write_all(&first).is_err() {
            return;
        }
        if version > 1 {
            until("the order to go on", || goes_on.load(SeqCst).then_some(()));
        }
        if stream.write_all(rest).is_err() {
            return;
        }
    }
}

#[test]
fn responses_by_dictionaries_are_accounted() {
    let goes_on = Arc::new(AtomicBool::new(false));
    let told = goes_on.clone();
    let (pki, app) = (Pki::new(), Upstream::serve(move |stream| scripts(stream, &told)));
    let rule = pki.terminate(&format!("http://{}", app.address), "dictionary = \"/app.*.js\"");
    let accounts = Accounts::new(pki, &(rule + "[dictionary]\npath = \"store\"\n"));
    let tls = crowd::quick(Resumption::disabled());
    let connect = || From::loopback(1).tls(accounts.edge.address(), &tls, "app.test").unwrap();
    assert_eq!(web::get(&mut connect(), "/app.1.js").text(), script(1));
    until("the version in the store", || {
        let names = std::fs::read_dir(accounts.pki.file("store")).ok()?;
        let mut names = names.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.any(|name| name.ends_with(".version")).then_some(())
    });
    let has = STANDARD.encode(digest(&SHA256, script(1).as_bytes()));
    // What handshakes leave free is more than 5 % of the coders.
    let mut clients = crowd::many(CODED, |n| (2 + n, connect()));
    accounts.wait("parked", CODED);
    let before = accounts.check("30 connections without a request");
    crowd::each(&mut clients, |(version, client)| {
        let get = format!(
            "GET /app.{version}.js HTTP/1.1\r\nHost: app.test\r\nAccept-Encoding: dcz\r\n\
             Available-Dictionary: :{has}:\r\n\r\n"
        );
        client.write_all(get.as_bytes()).unwrap();
        let begun = head(client);
        assert!(begun.contains("content-encoding: dcz\r\n"), "{begun}");
    });
    accounts.wait("serving", CODED);
    let after = accounts.check("30 responses by a dictionary");
    // Each has a coder with a window, and they share the dictionary.
    assert!(after.of("compression") >= (script(1).len() + CODED * (64 << 10)) as u64);
    after.names_all_since(&before, 0);
    goes_on.store(true, SeqCst);
    crowd::each(&mut clients, |(_, client)| assert!(!web::chunks(client).is_empty()));
}

#[test]
fn minted_certificates_are_accounted() {
    let _permit = crowd::permit(2 * MINTED);
    let (pki, mint) = (Pki::new(), Pki::new());
    mint.write_authority(&pki.folder, "mint");
    let origin = Upstream::https(pki.server("origin", &["127.0.0.1", "*.app.test"], Kind::P256));
    let rule = format!(
        "[[rule]]\naction = \"terminate\"\ncertificate = \"mint\"\nmint_ca = \"mint.pem\"\n\
         mint_key = \"mint.key\"\nupstream = \"https://{}\"\nupstream_ca = \"ca.pem\"\n\
         [evidence]\nca = \"ca.pem\"\n",
        origin.address
    );
    let accounts = Accounts::new(pki, &rule);
    let before = accounts.check("at the start");
    let tls = crowd::quick(Resumption::disabled());
    let clients = crowd::many(MINTED, |n| {
        let name = format!("n{n}.app.test");
        From::loopback(1).tls(accounts.edge.address(), &tls, &name).unwrap()
    });
    accounts.wait("parked", MINTED);
    let after = accounts.check("500 names with minted certificates");
    assert!(after.of("connections") >= 240 * MINTED as u64);
    after.names_all_since(&before, LEFT_FREE);
    drop(clients);
}

#[test]
fn certificates_from_files_are_accounted() {
    let with = |count: usize| {
        let (pki, mut rules) = (Pki::new(), String::new());
        for n in 0..count {
            let name = format!("n{n}.test");
            pki.server(&name, &[&name], Kind::P256);
            rules += &format!(
                "[[rule]]\nsni = \"{name}\"\naction = \"terminate\"\ncertificate = \"{name}.pem\"\n\
                 key = \"{name}.key\"\nupstream = \"http://127.0.0.1:9\"\n"
            );
        }
        Accounts::new(pki, &rules).check(&format!("{count} certificates"))
    };
    // They are the program's own memory.
    let (one, all) = (with(1), with(CERTIFICATES));
    let each = all.unnamed().saturating_sub(one.unnamed()) / (CERTIFICATES as u64 - 1);
    assert!(CERTIFICATE_BYTES.contains(&each), "{each} bytes a certificate");
}
