//! Every form of Accept-Encoding with every kind of response, over HTTP/1.1 and HTTP/2. Responses
//! are decoded and compared with what the upstream sent and with the access lines. A reader of
//! Accept-Encoding that stands here says what a client accepts.

mod kinds;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use kinds::{Coded, Framing, Kind, kinds};
use serde_json::Value;

use crate::support::client::{Offer, Tls};
use crate::support::crowd::many;
use crate::support::web::{ask, head, hear};
use crate::support::{Edge, Pki, Upstream, until};

/// Lines of Accept-Encoding.
const ACCEPTS: &[&[&str]] = &[
    &[],
    &[""],
    &["identity"],
    &["gzip"],
    &["x-gzip"],
    &["br"],
    &["zstd"],
    &["gzip, deflate, br, zstd"],
    &["gzip, deflate, br, zstd, dcb, dcz"],
    &["gzip, deflate, br"],
    &["gzip", "br"],
    &["GZIP ;q=0.3"],
    &["gzip;q=1.0, zstd;q=0.5, br;q=0"],
    &["gzip;q=0.001, br;q=0.002"],
    &["gzip;q=0, br;q=0, zstd;q=0"],
    &["br;q=1.0, gzip;q=0.8, *;q=0.1"],
    &["*"],
    &["*;q=0"],
    &["gzip, *;q=0"],
    &["*, zstd;q=0"],
    &["identity;q=0"],
    &["identity;q=0, gzip"],
    &["identity;q=0, *;q=0.1"],
    &["identity, gzip;q=0.5"],
    &["identity;q=0.5, gzip;q=0.5"],
    &["deflate"],
    &["foo, compress;q=0.9"],
    &["dcz, dcb"],
    &["gzip;q=banana"],
    &["gzip;q=1.001"],
    &["gzip;q=0.1234, br"],
    &[",,gzip,,"],
    &["gzip, gzip;q=0"],
];

/// Lines that are tried where [`ACCEPTS`] are not: both versions and all terms share what reads a
/// line and what chooses by it.
const FEW_ACCEPTS: &[&[&str]] = &[
    &[],
    &["gzip"],
    &["br"],
    &["zstd"],
    &["gzip, deflate, br, zstd"],
    &["gzip", "br"],
    &["identity;q=0"],
];

type Fields = &'static [(&'static str, &'static str)];

/// The clients that ask, and why the response is kept as it is, if it is.
const ASKERS: &[(Fields, Option<&str>)] = &[
    (&[("sec-fetch-site", "cross-site")], None),
    (&[("origin", "https://evil.test")], None),
    (&[("cache-control", "max-age=0, no-transform")], Some("no-transform")),
    (&[("cookie", "s=1")], None),
    (&[("cookie", "s=1"), ("user-agent", "Mozilla/5.0")], Some("breach: unknown origin")),
    (&[("cookie", ""), ("sec-fetch-site", "cross-site")], None),
    (&[("authorization", "Bearer t"), ("sec-fetch-site", "same-site")], None),
    (&[("cookie", "s=1"), ("sec-fetch-site", "same-origin")], None),
    (&[("cookie", "s=1"), ("sec-fetch-site", "none")], None),
    (&[("cookie", "s=1"), ("sec-fetch-site", "same-site")], Some("breach: other origin")),
    (&[("cookie", "s=1"), ("sec-fetch-site", "cross-site")], Some("breach: other origin")),
    (&[("cookie", "s=1"), ("sec-fetch-site", "elsewhere")], Some("breach: other origin")),
    (&[("cookie", "s=1"), ("origin", "https://app.test")], None),
    (&[("cookie", "s=1"), ("origin", "https://evil.test")], Some("breach: foreign referer")),
    (&[("cookie", "s=1"), ("origin", "null")], Some("breach: foreign referer")),
    (&[("cookie", "s=1"), ("referer", "https://app.test/page")], None),
    (&[("cookie", "s=1"), ("referer", "https://app.test.evil/")], Some("breach: foreign referer")),
    (&[("authorization", "Basic eA==")], None),
    (
        &[("authorization", "Basic eA=="), ("sec-fetch-site", "cross-site")],
        Some("breach: other origin"),
    ),
];

/// Answers `/INDEX` with that kind of response, and conditions by its own tag.
fn application(mut stream: TcpStream, kinds: &[Kind]) {
    loop {
        let mut byte = [0];
        let Ok(1) = stream.peek(&mut byte) else { return };
        let asked = head(&mut stream);
        let target = asked.split(' ').nth(1).unwrap();
        let index: usize = target[1..].split('?').next().unwrap().parse().unwrap();
        let kind = &kinds[index];
        let condition = |name: &str| {
            asked.lines().find_map(|line| {
                let (found, value) = line.split_once(": ")?;
                found.eq_ignore_ascii_case(name).then(|| value.to_owned())
            })
        };
        let tag = kind.field("etag").unwrap_or_default();
        let seen = condition("accept-encoding").unwrap_or_default();
        let short = if condition("if-none-match").is_some_and(|known| known == tag) {
            Some("304 Not Modified")
        } else if condition("if-match").is_some_and(|known| known != tag) {
            Some("412 Precondition Failed")
        } else {
            None
        };
        let answer = match short {
            Some(status) => {
                let length = if status.starts_with("412") { "Content-Length: 0\r\n" } else { "" };
                format!("HTTP/1.1 {status}\r\nETag: {tag}\r\n{length}\r\n").into_bytes()
            }
            None => kind.written(&seen, asked.starts_with("HEAD ")),
        };
        if stream.write_all(&answer).is_err() || kind.framing == Framing::Close {
            return;
        }
    }
}

/// A response as a client has it.
struct Got {
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
}

impl Got {
    fn field(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// A request and what it should lead to.
#[derive(Clone)]
struct Case {
    kind: usize,
    head: bool,
    accept: &'static [&'static str],
    asker: Fields,
    kept: Option<&'static str>,
    /// Its path, which no other case has.
    path: String,
}

impl Case {
    fn told(&self, kinds: &[Kind]) -> String {
        let method = if self.head { "HEAD" } else { "GET" };
        let (name, accept, asker) = (kinds[self.kind].name, self.accept, self.asker);
        format!("{method} {name} to {accept:?} of {asker:?}, {}", self.path)
    }
}

fn cases(kinds: &[Kind], version: &str, accepts: &[&'static [&'static str]]) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |kind, head, accept, asker, kept| {
        let path = format!("/{kind}?{version}{}", cases.len());
        cases.push(Case { kind, head, accept, asker, kept, path });
    };
    for (kind, of) in kinds.iter().enumerate() {
        for accept in accepts {
            add(kind, false, accept, &[], None);
            if of.framing == Framing::Length {
                add(kind, true, accept, &[], None);
            }
        }
        if of.is_plain {
            for (asker, kept) in ASKERS {
                for accept in [&["gzip, deflate, br, zstd"][..], &["gzip"], &[]] {
                    add(kind, false, accept, asker, *kept);
                }
            }
        }
    }
    cases
}

/// The codings that a client likes best and more than identity, by RFC 9110 section 12.5.3.
fn liked(accept: &[&str]) -> Vec<&'static str> {
    let mut weights: HashMap<String, u32> = HashMap::new();
    for element in accept.iter().flat_map(|line| line.split(',')) {
        let (name, parameter) = element.split_once(';').unwrap_or((element, "q=1"));
        let weight = parameter.trim().to_ascii_lowercase();
        let Some(weight) = weight.strip_prefix("q=") else { continue };
        let (whole, decimals) = weight.split_once('.').unwrap_or((weight, ""));
        let digits = decimals.len() <= 3 && decimals.chars().all(|c| c.is_ascii_digit());
        let Ok(thousandths) = format!("{whole}{decimals:0<3}").parse::<u32>() else { continue };
        if !digits || whole.len() != 1 || thousandths > 1000 {
            continue;
        }
        let name = name.trim().to_ascii_lowercase().replace("x-gzip", "gzip");
        let known = weights.entry(name).or_insert(thousandths);
        *known = thousandths.min(*known);
    }
    let weight = |name: &str| weights.get(name).or(weights.get("*")).copied().unwrap_or(0);
    let best = ["zstd", "br", "gzip"].map(weight).into_iter().max().unwrap();
    if best == 0 || best < weight("identity") {
        return Vec::new();
    }
    ["zstd", "br", "gzip"].into_iter().filter(|name| weight(name) == best).collect()
}

fn decode(coding: &str, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match coding {
        "gzip" => {
            let mut decoder = flate2::read::GzDecoder::new(body);
            decoder.read_to_end(&mut out).unwrap();
            assert!(decoder.into_inner().is_empty(), "one member and nothing behind it");
        }
        "br" => _ = brotli::Decompressor::new(body, 4096).read_to_end(&mut out).unwrap(),
        "zstd" => {
            out.reserve(4 << 20);
            zstd_safe::decompress(&mut out, body).unwrap();
        }
        other => panic!("{other}"),
    }
    out
}

/// Predicts the fate of a response; HEAD has no first bytes to tell it by where the type says
/// nothing.
fn coded(case: &Case, kind: &Kind) -> Coded {
    let by_bytes = kind.field("content-type").is_none_or(|kind| kind.ends_with("octet-stream"));
    if case.head && by_bytes { Coded::Either } else { kind.coded }
}

/// One response against what the upstream sent.
fn check(case: &Case, kinds: &[Kind], got: &Got) {
    let (kind, told) = (&kinds[case.kind], case.told(kinds));
    let may = coded(case, kind);
    assert_eq!(got.status, kind.status, "{told}");
    let (coding, theirs) = (got.field("content-encoding"), kind.field("content-encoding"));
    let is_coded = coding != theirs;
    let wanted = if case.kept.is_some() { Vec::new() } else { liked(case.accept) };
    if is_coded {
        assert!(may != Coded::Never, "{told}: coded");
        assert!(theirs.is_none() && wanted.contains(&coding.unwrap()), "{told}: {coding:?}");
        assert_eq!(got.field("content-length"), None, "{told}");
        assert_eq!(got.field("accept-ranges"), None, "{told}");
        if !case.head {
            assert!(decode(coding.unwrap(), &got.body) == kind.body, "{told}: another body");
        }
    } else {
        assert!(may != Coded::Always || wanted.is_empty(), "{told}: not coded");
        assert_eq!(got.field("accept-ranges"), kind.field("accept-ranges"), "{told}");
        if !case.head {
            assert!(got.body == kind.body, "{told}: another body");
        }
        if let Some(length) = got.field("content-length") {
            assert_eq!(length, kind.body.len().to_string(), "{told}");
        }
    }
    assert!(!case.head || got.body.is_empty(), "{told}: a body");
    let tag = match kind.field("etag") {
        Some(tag) if is_coded && tag.starts_with('"') => Some(format!("W/{tag}")),
        tag => tag.map(str::to_owned),
    };
    assert_eq!(got.field("etag"), tag.as_deref(), "{told}");
    varies(kind, may, got, &told);
    for name in ["set-cookie", "cache-control", "content-type", "content-digest", "last-modified"] {
        assert_eq!(got.field(name), kind.field(name), "{told}");
    }
    // A client that is under the rule must not get coded bytes from the upstream either.
    if case.kept.is_some_and(|why| why.starts_with("breach")) {
        assert_eq!(got.field("x-seen"), Some("identity"), "{told}");
    }
}

fn varies(kind: &Kind, may: Coded, got: &Got, told: &str) {
    assert!(got.headers.get_all("vary").iter().count() <= 1, "{told}: one line");
    let names = |text: &str| {
        text.split(',').map(|name| name.trim().to_ascii_lowercase()).collect::<Vec<_>>()
    };
    let (varies, theirs) = (names(got.field("vary").unwrap_or_default()), kind.varies());
    for name in &theirs {
        assert!(varies.contains(name), "{told}: {varies:?}");
    }
    let by_coding = varies.iter().any(|name| name == "accept-encoding" || name == "*");
    // Whoever asks: a cache must not hand one client's coding to another.
    assert!(may != Coded::Always || by_coding, "{told}: {varies:?}");
    if may == Coded::Never {
        let by_theirs = theirs.iter().any(|name| name == "accept-encoding" || name == "*");
        // A part has the Vary of its whole (RFC 9110 15.3.7).
        assert_eq!(by_coding, by_theirs || kind.status == 206, "{told}");
    }
    let twice = varies.iter().filter(|name| *name == "accept-encoding").count() > 1;
    assert!(!twice, "{told}: {varies:?}");
}

/// The access line of a response against what its client saw.
fn check_line(case: &Case, kinds: &[Kind], got: &Got, line: &Value) {
    let (kind, told) = (&kinds[case.kind], case.told(kinds));
    let is_coded = got.field("content-encoding") != kind.field("content-encoding");
    let head = case.head || [204, 304].contains(&kind.status);
    if is_coded && !head {
        assert_eq!(line["coding"], got.field("content-encoding").unwrap(), "{told}: {line}");
        assert_eq!(line["bytes_identity"], kind.body.len(), "{told}: {line}");
        assert_eq!(line["bytes_sent"], got.body.len(), "{told}: {line}");
        assert_eq!(line["why_not"], Value::Null, "{told}: {line}");
        return;
    }
    assert_eq!(line["coding"], Value::Null, "{told}: {line}");
    let why = line["why_not"].as_str().unwrap_or_else(|| panic!("{told}: no reason in {line}"));
    let wanted = liked(case.accept);
    let expected = match (head, kind.coded) {
        (true, _) => "no content",
        (_, Coded::Always) if case.kept.is_some() => case.kept.unwrap(),
        (_, Coded::Always) if wanted.is_empty() => "not accepted",
        _ => kind.why_not,
    };
    // Where the head alone does not decide, the reason may be the client's too.
    let either = kind.coded == Coded::Either && ["not accepted", kind.why_not].contains(&why);
    assert!(why == expected || either, "{told}: {why}, not {expected}");
}

/// Every line of the log, by path.
fn lines(edge: &Edge, count: usize) -> HashMap<String, Value> {
    until("the access lines", || {
        let lines = edge.lines();
        let lines: HashMap<String, Value> = lines
            .into_iter()
            .filter_map(|line| Some((line["http"]["path"].as_str()?.to_owned(), line)))
            .collect();
        (lines.len() >= count).then_some(lines)
    })
}

struct Web {
    edge: Edge,
    pki: Pki,
    kinds: &'static [Kind],
    _app: Upstream,
}

impl Web {
    fn new(terms: &str) -> Self {
        let kinds: &'static [Kind] = Vec::leak(kinds());
        let app = Upstream::serve(move |stream| application(stream, kinds));
        let pki = Pki::new();
        let rule = pki.terminate(&format!("http://{}", app.address), terms);
        let edge = Edge::start(&pki.folder, &rule);
        Self { edge, pki, kinds, _app: app }
    }

    fn one(&self) -> One<'_> {
        One { web: self, tls: None }
    }

    fn check_all(&self, cases: &[Case], got: &[Got]) {
        let lines = lines(&self.edge, cases.len());
        let mut coded = 0;
        for (case, got) in cases.iter().zip(got) {
            check(case, self.kinds, got);
            check_line(case, self.kinds, got, &lines[&case.path]);
            coded += usize::from(got.field("x-seen").is_some() && !got.body.is_empty());
        }
        let least = self.kinds.len() * FEW_ACCEPTS.len();
        assert!(cases.len() > least && coded > least / 3, "{coded} of {}", cases.len());
    }
}

/// HTTP/1.1, on one connection as long as it lasts.
struct One<'a> {
    web: &'a Web,
    tls: Option<Tls>,
}

impl One<'_> {
    fn ask(&mut self, method: &str, path: &str, fields: &[(&str, &str)]) -> Got {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: app.test\r\n");
        for (name, value) in fields {
            request += &format!("{name}: {value}\r\n");
        }
        let web = self.web;
        let open = || Offer::new(&web.pki).connect(web.edge.address(), "app.test");
        let tls = self.tls.get_or_insert_with(open);
        tls.write_all(format!("{request}\r\n").as_bytes()).unwrap();
        let mut heard = hear(tls, method);
        while heard.status < 200 {
            heard = hear(tls, method);
        }
        let mut headers = HeaderMap::new();
        for (name, value) in heard.head.lines().skip(1).filter_map(|line| line.split_once(": ")) {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        if heard.field("connection") == Some("close") {
            self.tls = None;
        }
        Got { status: heard.status, headers, body: heard.body, trailers: None }
    }
}

fn fields(case: &Case) -> Vec<(&'static str, &'static str)> {
    let accept = case.accept.iter().map(|line| ("accept-encoding", *line));
    accept.chain(case.asker.iter().copied()).collect()
}

#[test]
fn every_client_and_every_response_over_http_1() {
    let all = [("", ACCEPTS), ("offload = true\ncompress_effort = \"even\"\n", FEW_ACCEPTS)];
    many(all.len(), |nth| {
        let (terms, accepts) = all[nth];
        let web = Web::new(terms);
        let (mut one, cases) = (web.one(), cases(web.kinds, "one", accepts));
        let got: Vec<Got> = cases
            .iter()
            .map(|case| one.ask(if case.head { "HEAD" } else { "GET" }, &case.path, &fields(case)))
            .collect();
        web.check_all(&cases, &got);
        for got in got.iter().filter(|_| terms.contains("offload")) {
            assert!(got.field("x-seen").is_none_or(|seen| seen == "identity"));
        }
    });
}

#[test]
fn every_client_and_every_response_over_http_2() {
    let web = Web::new("");
    let cases = cases(web.kinds, "two", FEW_ACCEPTS);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let got: Vec<Got> = runtime.block_on(two(&web, &cases));
    web.check_all(&cases, &got);
    for (case, got) in cases.iter().zip(&got) {
        let sum = got.trailers.as_ref().and_then(|trailers| trailers.get("x-sum"));
        let trailed = web.kinds[case.kind].framing == Framing::Trailers && !case.head;
        assert_eq!(sum.is_some(), trailed, "{}", case.told(web.kinds));
    }
}

/// All cases on one connection, one after another.
async fn two(web: &Web, cases: &[Case]) -> Vec<Got> {
    let config = Offer { alpn: &["h2"], ..Offer::new(&web.pki) }.config();
    let socket = tokio::net::TcpStream::connect(web.edge.address()).await.unwrap();
    let name = "app.test".try_into().unwrap();
    let tls = tokio_rustls::TlsConnector::from(config).connect(name, socket).await.unwrap();
    let (mut send, connection) = h2::client::handshake(tls).await.unwrap();
    let driven = tokio::spawn(connection);
    let mut all = Vec::new();
    for case in cases {
        let mut request = Request::new(());
        *request.method_mut() = if case.head { Method::HEAD } else { Method::GET };
        *request.uri_mut() = format!("https://app.test{}", case.path).parse().unwrap();
        for (name, value) in fields(case) {
            let name: HeaderName = name.parse().unwrap();
            request.headers_mut().append(name, HeaderValue::from_static(value));
        }
        send = send.ready().await.unwrap();
        let (response, _) = send.send_request(request, true).unwrap();
        let (head, mut receive) = response.await.unwrap().into_parts();
        let mut body = Vec::new();
        while let Some(piece) = receive.data().await {
            let piece = piece.unwrap();
            receive.flow_control().release_capacity(piece.len()).unwrap();
            body.extend_from_slice(&piece);
        }
        let trailers = receive.trailers().await.unwrap();
        all.push(Got { status: head.status.as_u16(), headers: head.headers, body, trailers });
    }
    drop(send);
    driven.abort();
    all
}

#[test]
fn tags_come_back_to_the_upstream_as_its_own() {
    let web = Web::new("");
    let mut one = web.one();
    for (index, kind) in web.kinds.iter().enumerate() {
        let Some(theirs) = kind.field("etag") else { continue };
        for accept in ["gzip", "br", "zstd", "identity"] {
            let got = one.ask("GET", &format!("/{index}"), &[("accept-encoding", accept)]);
            let tag = got.field("etag").unwrap().to_owned();
            let asked = |name| [("accept-encoding", accept), (name, &*tag)];
            let fresh = one.ask("GET", &format!("/{index}"), &asked("if-none-match"));
            assert_eq!(fresh.status, 304, "{} {accept}: {tag} of {theirs}", kind.name);
            assert_eq!(fresh.field("etag"), Some(&*tag), "{} {accept}", kind.name);
            let same = one.ask("GET", &format!("/{index}"), &asked("if-match"));
            assert_eq!(same.status, kind.status, "{} {accept}: {tag} of {theirs}", kind.name);
            assert_eq!(same.field("etag"), Some(&*tag), "{} {accept}", kind.name);
            let other = one.ask("GET", &format!("/{index}"), &[("if-match", "\"other\"")]);
            assert_eq!(other.status, 412, "{}", kind.name);
        }
    }
}

/// Gives what is asked for, as a server does whose page has not changed.
fn page(mut stream: TcpStream) {
    while stream.peek(&mut [0]).is_ok_and(|more| more > 0) {
        let asked = head(&mut stream).to_ascii_lowercase();
        let (status, from) = match asked.contains("\r\nrange: bytes=100-\r\n") {
            true => ("206 Partial Content\r\nContent-Range: bytes 100-17999/18000", 100),
            false => ("200 OK", 0),
        };
        let part = &PAGE.repeat(1_000)[from..];
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/html\r\nLast-Modified: {DATE}\r\n\
             Content-Length: {}\r\n\r\n{part}",
            part.len()
        );
        stream.write_all(answer.as_bytes()).unwrap();
    }
}
const PAGE: &str = "<p>a page of text\n";
const DATE: &str = "Mon, 01 Jan 2024 00:00:00 GMT";

/// A client that has the beginning of coded bytes never gets the rest of plain ones.
#[test]
fn a_part_is_of_the_bytes_that_its_client_has() {
    let (pki, app) = (Pki::new(), Upstream::serve(page));
    for terms in ["", "compress = \"off\"\n"] {
        let edge =
            Edge::start(&pki.folder, &pki.terminate(&format!("http://{}", app.address), terms));
        let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
        for (accepted, condition, is_whole) in [
            ("gzip", format!("If-Range: {DATE}\r\n"), true),
            ("gzip", "If-Range: W/\"a\"\r\n".to_owned(), true),
            ("gzip", format!("If-Unmodified-Since: {DATE}\r\n"), true),
            ("gzip", "If-Match: W/\"a\"\r\n".to_owned(), true),
            ("gzip", "If-Range: \"a\"\r\n".to_owned(), false),
            ("gzip", String::new(), false),
            ("identity, gzip;q=0.5", format!("If-Range: {DATE}\r\n"), false),
            ("identity", format!("If-Range: {DATE}\r\n"), false),
        ] {
            let request = format!(
                "GET / HTTP/1.1\r\nHost: app.test\r\nAccept-Encoding: {accepted}\r\n\
                 Range: bytes=100-\r\n{condition}\r\n"
            );
            let got = ask(&mut client, &request);
            let whole = PAGE.repeat(1_000).into_bytes();
            if is_whole && terms.is_empty() {
                assert_eq!((got.status, got.field("content-encoding")), (200, Some("gzip")));
                assert!(decode("gzip", &got.body) == whole, "{condition}");
            } else {
                assert_eq!((got.status, got.field("content-encoding")), (206, None), "{condition}");
                assert!(got.body == whole[100..], "{condition}");
            }
        }
    }
}
