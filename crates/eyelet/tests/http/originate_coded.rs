//! Codings that Eyelet asks an upstream for on its own behalf, and undoes for clients that do not
//! accept them.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;

use serde_json::Value;

use crate::support::client::{End, ending};
use crate::support::pki::Kind;
use crate::support::program::output;
use crate::support::upstream::ServerTls;
use crate::support::web::{Heard, head, hear};
use crate::support::{Edge, Pki, SOON, Upstream, need};

/// An edge whose only rule leads to an upstream for app.test.
pub struct Near {
    pub edge: Edge,
    _app: Upstream,
    pki: Pki,
}

impl Near {
    /// Each request is answered with what `answer` makes of its head.
    pub fn new(keys: &str, answer: fn(&str) -> Vec<u8>) -> Self {
        let pki = Pki::new();
        let leaf = pki.server("app", &["app.test"], Kind::P256);
        let app = Upstream::tls(leaf, move |tls| serve(tls, answer));
        let config = format!(
            "workers = 1\n[[listener]]\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n[[rule]]\n\
             name = \"out\"\naction = \"originate\"\nupstream = \"https://{}\"\n\
             upstream_name = \"app.test\"\nupstream_ca = \"ca.pem\"\n{keys}\n",
            app.address
        );
        let edge = Edge::start_whole(&pki.folder, &config, |_| ());
        Self { edge, _app: app, pki }
    }

    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    pub fn ask(&self, client: &mut TcpStream, method: &str, path: &str, fields: &str) -> Heard {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        client.write_all(request.as_bytes()).unwrap();
        hear(client, method)
    }

    pub fn get(&self, path: &str, fields: &str) -> Heard {
        self.ask(&mut self.edge.connect(), "GET", path, fields)
    }

    fn line(&self, path: &str) -> Value {
        self.edge.line(path, |line| line["http"]["path"] == path)
    }
}

fn serve(tls: &mut ServerTls, answer: fn(&str) -> Vec<u8>) {
    loop {
        let mut byte = [0];
        match std::io::Read::read(tls, &mut byte) {
            Ok(1) => {}
            _ => return,
        }
        let asked = String::from_utf8(byte.to_vec()).unwrap() + &head(tls);
        let answer = answer(&asked);
        if tls.write_all(&answer).and_then(|()| tls.flush()).is_err() {
            return;
        }
    }
}

pub fn field<'a>(asked: &'a str, name: &str) -> Option<&'a str> {
    asked.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn text() -> Vec<u8> {
    (0..9000_u32).flat_map(|n| format!("{} lines\n", n.wrapping_mul(40_503)).into_bytes()).collect()
}

fn coded(coding: &str, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match coding {
        "gzip" => {
            let mut coder = flate2::write::GzEncoder::new(&mut out, flate2::Compression::default());
            coder.write_all(body).unwrap();
            coder.finish().unwrap();
        }
        "br" => {
            let mut coder = brotli::CompressorWriter::new(&mut out, 4096, 4, 20);
            coder.write_all(body).unwrap();
            drop(coder);
        }
        "zstd" => {
            out.reserve(zstd_safe::compress_bound(body.len()));
            zstd_safe::compress(&mut out, body, 3).unwrap();
        }
        other => panic!("{other}"),
    }
    out
}

pub fn said(fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
    [head.into_bytes(), body.to_vec()].concat()
}

/// Answers `/CODING` in that coding, if it is asked for.
fn by_path(asked: &str) -> Vec<u8> {
    let coding = asked.split(' ').nth(1).unwrap().split(['/', '?']).nth(1).unwrap().to_owned();
    let accepted = field(asked, "accept-encoding").unwrap_or_default();
    let fields = format!(
        "Content-Type: text/plain\r\nETag: \"a\"\r\nAccept-Ranges: bytes\r\nX-Seen: {accepted}\r\n\
         X-Condition: {}\r\n",
        field(asked, "if-none-match").unwrap_or_default()
    );
    match accepted.split(", ").any(|name| name == coding) {
        false => said(&fields, &text()),
        true => {
            let body = coded(&coding, &text());
            let fields = format!(
                "{fields}Content-Encoding: {coding}\r\nContent-Digest: sha-256=:x:\r\n\
                 Repr-Digest: sha-256=:y:\r\n"
            );
            let mut said = said(&fields, &body);
            if asked.starts_with("HEAD") {
                said.truncate(said.len() - body.len());
            }
            said
        }
    }
}

#[test]
fn a_client_gets_what_it_accepts() {
    let near = Near::new("", by_path);
    for coding in ["zstd", "br", "gzip"] {
        for accepts in ["", "Accept-Encoding: deflate, svndiff1;q=0.9\r\n"] {
            let path = format!("/{coding}?{}", accepts.len());
            let mut client = near.edge.connect();
            for method in ["GET", "HEAD"] {
                let heard = near.ask(&mut client, method, &path, accepts);
                assert_eq!(heard.status, 200, "{heard:?}");
                for gone in [
                    "content-encoding",
                    "content-length",
                    "accept-ranges",
                    "content-digest",
                    "repr-digest",
                ] {
                    assert_eq!(heard.field(gone), None, "{method} {path}: {}", heard.head);
                }
                assert_eq!(heard.field("etag"), Some("W/\"a\""));
                assert_eq!(heard.field("vary"), Some("accept-encoding"));
                assert!(method == "HEAD" || heard.body == text(), "{path}");
                let others = if accepts.is_empty() { "" } else { ", deflate, svndiff1;q=0.9" };
                let asked = format!("zstd, br, gzip{others}");
                assert_eq!(heard.field("x-seen"), Some(&*asked));
            }
            let line = near.edge.line(&path, |line| {
                line["http"]["path"] == *path && line["http"]["method"] == "GET"
            });
            assert_eq!(line["why_not"], format!("decoded from {coding}"), "{line}");
            assert_eq!(line["bytes_sent"], text().len(), "{line}");
        }
        // What it accepts passes as it came.
        let heard = near.get(&format!("/{coding}?same"), &format!("Accept-Encoding: {coding}\r\n"));
        assert_eq!(heard.field("content-encoding"), Some(coding), "{}", heard.head);
        assert_eq!(heard.field("etag"), Some("\"a\""));
        assert_eq!(heard.field("content-digest"), Some("sha-256=:x:"));
        assert!(heard.body == coded(coding, &text()));
        assert_eq!(near.line(&format!("/{coding}?same"))["why_not"], "already coded");
    }
    let heard = near.get("/zstd?tag", "If-None-Match: W/\"a\"\r\n");
    assert_eq!(heard.field("x-condition"), Some("\"a\""), "the upstream knows its own tag");
    for own in ["Range: bytes=0-9\r\n", "Cache-Control: no-transform\r\n"] {
        let heard = near.get("/zstd?own", own);
        assert_eq!(heard.field("x-seen"), Some(""), "{own}");
        assert!(heard.body == text() && heard.field("accept-ranges").is_some());
    }
    let breach = "Cookie: a=b\r\nUser-Agent: Mozilla/5.0\r\n";
    assert_eq!(near.get("/zstd?breach", breach).field("x-seen"), Some("identity"));
}

#[test]
fn none_and_off_ask_for_nothing() {
    for (mode, asked) in [("none", "identity"), ("off", "")] {
        let near = Near::new(&format!("compress = \"{mode}\""), by_path);
        let heard = near.get("/zstd", "");
        assert_eq!(heard.field("x-seen"), Some(asked));
        assert!(heard.body == text());
    }
}

#[test]
fn a_response_that_must_not_be_transformed_is_asked_for_as_the_client_did() {
    let near = Near::new("", |asked| {
        let accepted = field(asked, "accept-encoding").unwrap_or_default();
        let fields = format!("Cache-Control: no-transform\r\nX-Seen: {accepted}\r\n");
        match accepted.contains("zstd") {
            true => said(&format!("{fields}Content-Encoding: zstd\r\n"), &coded("zstd", &text())),
            false => said(&fields, &text()),
        }
    });
    let heard = near.get("/", "Accept-Encoding: gzip\r\n");
    assert_eq!(heard.field("x-seen"), Some("gzip"), "{}", heard.head);
    assert!(heard.body == text());
    let heard = near.get("/", "Accept-Encoding: gzip, zstd\r\n");
    assert_eq!(heard.field("content-encoding"), Some("zstd"));
    // Made twice it would do something twice, or with the rights of nobody.
    for (method, fields) in [
        ("DELETE", ""),
        ("PUT", "Content-Length: 0\r\n"),
        ("POST", "Content-Length: 0\r\n"),
        ("GET", "Authorization: Negotiate x\r\n"),
    ] {
        let heard = near.ask(&mut near.edge.connect(), method, "/", fields);
        assert_eq!(heard.field("x-seen"), Some("zstd, br, gzip"), "{method}: {}", heard.head);
        assert_eq!(heard.field("content-encoding"), None, "{method}");
        assert!(heard.body == text(), "{method}");
    }
}

/// The client must not take a part for the whole.
#[test]
fn a_broken_coding_ends_the_connection_without_a_last_chunk() {
    let near = Near::new("", |asked| {
        let coding = asked.split('/').nth(1).unwrap();
        let mut body = coded(coding, &text());
        let middle = body.len() / 2;
        match asked.contains("/cut") {
            true => body.truncate(middle),
            false => body[middle..].fill(0xFF),
        }
        said(&format!("Content-Encoding: {coding}\r\n"), &body)
    });
    for coding in ["zstd", "gzip"] {
        for (how, why) in [("cut", "content coding cut short"), ("bad", "malformed content coding")]
        {
            let mut client = near.edge.connect();
            let path = format!("/{coding}/{how}");
            let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            client.write_all(request.as_bytes()).unwrap();
            let (heard, end) = ending(&mut client, SOON);
            assert!(heard.starts_with(b"HTTP/1.1 200 OK\r\n"), "{path}");
            assert!(!heard.ends_with(b"\r\n0\r\n\r\n"), "{path}: a last chunk");
            assert_ne!(end, End::Open, "{path}");
            let line = near.line(&path);
            let reason = line["reason"].as_str().unwrap();
            assert!(reason.contains(why), "{path}: {line}");
        }
    }
}

/// A client that does not read holds up the decoder, and memory stays small.
#[test]
fn a_bomb_waits_for_its_client() {
    let near = Near::new("", |_| {
        let body = coded("gzip", &vec![b'a'; 100 << 20]);
        said("Content-Encoding: gzip\r\n", &body)
    });
    let mut client = near.edge.connect();
    client.write_all(b"GET /bomb HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut first = [0; 20_000];
    std::io::Read::read_exact(&mut client, &mut first).unwrap();
    let memory = near.edge.rss_bytes();
    assert!(memory < 60 << 20, "{memory} bytes");
    drop(client);
    assert_ne!(near.line("/bomb")["reason"], "complete");
}

#[test]
fn curl_gets_a_page_of_nginx_with_gzip() {
    if !need("curl") || !need("nginx") {
        return;
    }
    let pki = Pki::new();
    pki.server("app", &["app.test"], Kind::P256);
    let folder = pki.folder.path().display().to_string();
    let [address] = crate::support::upstream::vacant();
    std::fs::write(pki.file("page.txt"), text()).unwrap();
    let config = format!(
        "daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;\n\
         events {{}}\nhttp {{ access_log off; gzip on; gzip_proxied any; gzip_types text/plain; \
         default_type text/plain;\nclient_body_temp_path {folder}/a; proxy_temp_path {folder}/b; \
         fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;\n\
         server {{ listen {address} ssl; ssl_certificate {folder}/app.pem; \
         ssl_certificate_key {folder}/app.key; root {folder}; }} }}\n"
    );
    let file = pki.folder.write("nginx.conf", config);
    let _nginx = crate::support::Talk::start(Command::new("nginx").arg("-c").arg(file));
    crate::support::until("nginx to listen", || TcpStream::connect(address).ok());
    let config = format!(
        "[[listener]]\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n[[rule]]\n\
         action = \"originate\"\nupstream = \"https://{address}\"\nupstream_name = \"app.test\"\n\
         upstream_ca = \"ca.pem\"\n"
    );
    let edge = Edge::start_whole(&pki.folder, &config, |_| ());
    let url = format!("http://localhost:{}/page.txt", edge.port());
    let said = output(Command::new("curl").args(["-sS", "--noproxy", "*", &url]));
    assert!(said.text.as_bytes() == text(), "{} bytes", said.text.len());
    let line = edge.line("the page", |line| line["http"]["path"] == "/page.txt");
    assert_eq!(line["why_not"], "decoded from gzip", "{line}");
    let said = output(Command::new("curl").args(["-sS", "--compressed", "--noproxy", "*", &url]));
    assert!(said.text.as_bytes() == text(), "{} bytes", said.text.len());
}
