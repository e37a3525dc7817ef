//! The server's ways with a GET: content codings, bodies that are coded twice, `Vary`,
//! dictionaries, and answers from which BREACH reads secrets.

use std::io::{self, ErrorKind, Read, Write};

use crate::report::{Grade, ProbeReport};
use crate::response::{BODY_BYTES_MAX, HEAD_BYTES_MAX, ProbeResponse};
use crate::session::{self, SpokenVersions};
use crate::target::ProbeTarget;
use crate::two;

/// Most fields of a head.
const FIELDS_MAX: usize = 128;
/// Statuses of heads before the answer, such as 103 (Early Hints).
const INTERIM: std::ops::Range<u16> = 100..200;
/// Statuses of answers without a body (RFC 9112 section 6.3).
const WITHOUT_BODY: [u16; 2] = [204, 304];
/// A query that no page has by itself.
const CANARY: &str = "eyelet7canary7probe";

/// Asks for a path with each coding, one connection each.
pub fn look(target: &ProbeTarget, spoken: SpokenVersions, path: &str, report: &mut ProbeReport) {
    let plain = match get(target, spoken, path, "identity") {
        Ok(plain) => plain,
        Err(error) => return report.unknown("http", error),
    };
    let by = if spoken.is_two_only { ", by HTTP/2 alone" } else { "" };
    let more = if plain.is_cut { "more than " } else { "" };
    let seen = format!("{} with {more}{} bytes{by}", plain.status, plain.body.len());
    match plain.status {
        ..400 => report.add("http", Grade::Good, seen),
        _ => report.advise("http", Grade::Note, seen, ADVICE_PATH),
    }
    let mut found = Found::default();
    for coding in ["gzip", "br", "zstd"] {
        found.take(coding, plain.status, get(target, spoken, path, coding));
    }
    found.codings(report, &plain);
    found.bodies(report);
    if let Some((coding, response)) = found.coded {
        vary(report, &response);
        let mark = if path.contains('?') { '&' } else { '?' };
        let asked = get(target, spoken, &format!("{path}{mark}q={CANARY}"), coding);
        breach(reflects(asked), &response, report);
    }
    match plain.field("use-as-dictionary") {
        Some(value) => report.add("dictionary", Grade::Good, format!("Use-As-Dictionary: {value}")),
        None => report.add("dictionary", Grade::Note, "none offered (RFC 9842)"),
    }
}

/// The marks of the answers with a coding.
#[derive(Default)]
struct Found {
    /// Codings, each with what it saved.
    given: Vec<String>,
    /// The reason why a request for a coding has no answer like the plain one.
    failed: Vec<String>,
    /// Codings whose bodies cannot be decoded.
    broken: Vec<&'static str>,
    /// Codings whose bodies are longer than what is read.
    cut: Vec<&'static str>,
    /// The two codings, one around the other.
    twice: Option<String>,
    /// The last answer with a coding, and the one that was asked for.
    coded: Option<(&'static str, ProbeResponse)>,
}

impl Found {
    /// Looks at the answer to a request for one coding. The plain answer had this status.
    fn take(&mut self, coding: &'static str, status: u16, answer: io::Result<ProbeResponse>) {
        let response = match answer {
            Ok(response) if response.status == status => response,
            Ok(other) => {
                let why = format!("asked for {coding}: {} in place of {status}", other.status);
                return self.failed.push(why);
            }
            Err(error) => return self.failed.push(format!("asked for {coding}: {error}")),
        };
        let codings = response.codings();
        if codings.len() > 1 {
            self.twice = Some(format!("Content-Encoding: {}", codings.join(", ")));
            self.coded = Some((coding, response));
            return;
        }
        if codings.first().is_none_or(|one| one != coding) {
            return;
        }
        match decode(coding, &response.body) {
            Some(decoded) => {
                let sent = response.body.len();
                self.given.push(format!("{coding} ({} to {sent} bytes)", decoded.len()));
                if let Some(inner) = coded(&decoded) {
                    self.twice = Some(format!("{coding} around a body that is {inner} already"));
                }
            }
            None if response.is_cut => self.cut.push(coding),
            None => self.broken.push(coding),
        }
        self.coded = Some((coding, response));
    }

    fn codings(&self, report: &mut ProbeReport, plain: &ProbeResponse) {
        if !self.failed.is_empty() {
            let seen = [&*self.failed, &*self.given].concat().join(", ");
            return report.advise("codings", Grade::Bad, seen, ADVICE_FAILED);
        }
        let is_right = coded(&plain.body).is_some() || plain.body.len() < SMALL_BYTES;
        match &*self.given {
            _ if !plain.codings().is_empty() => {}
            _ if self.coded.is_some() && self.given.is_empty() => {}
            [] if is_right => report.add("codings", Grade::Good, "none, which fits this body"),
            [] => report.advise("codings", Grade::Note, "none of gzip, br, zstd", ADVICE_CODINGS),
            given => report.add("codings", Grade::Good, given.join(", ")),
        }
    }

    fn bodies(&self, report: &mut ProbeReport) {
        if !self.broken.is_empty() {
            let seen = format!("cannot be decoded: {}", self.broken.join(", "));
            report.advise("decoding", Grade::Bad, seen, ADVICE_DECODING);
        } else if !self.cut.is_empty() {
            report.unknown("decoding", format!("more than 8 MiB: {}", self.cut.join(", ")));
        }
        let is_read = self.broken.is_empty() && self.cut.is_empty();
        match &self.twice {
            Some(seen) => report.advise("coded-twice", Grade::Bad, seen, ADVICE_TWICE),
            None if !self.failed.is_empty() => {
                report.unknown("coded-twice", "not every coding got an answer");
            }
            None if is_read => report.add("coded-twice", Grade::Good, "no"),
            None => report.unknown("coded-twice", "not every body could be decoded"),
        }
    }
}

fn vary(report: &mut ProbeReport, response: &ProbeResponse) {
    let values = response.fields.iter().filter(|(name, _)| name == "vary");
    let names: Vec<String> = values
        .flat_map(|(_, value)| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    match names.iter().any(|name| name == "accept-encoding" || name == "*") {
        true => report.add("vary", Grade::Good, "names Accept-Encoding"),
        false => report.advise("vary", Grade::Bad, "no Accept-Encoding", ADVICE_VARY),
    }
}

/// Tells if a coded answer has the query in it, or why that cannot be told.
fn reflects(answer: io::Result<ProbeResponse>) -> Result<bool, String> {
    let response = answer.map_err(|error| format!("asked with a query: {error}"))?;
    let codings = response.codings();
    if codings.is_empty() {
        return Err(format!("asked with a query: {}, not coded", response.status));
    }
    let decoded =
        codings.iter().rev().try_fold(response.body, |body, coding| decode(coding, &body));
    let decoded = decoded.ok_or("asked with a query: a body that cannot be decoded")?;
    Ok(decoded.windows(CANARY.len()).any(|part| part == CANARY.as_bytes()))
}

/// A compressed answer with a secret and with text of the attacker's (breachattack.com).
fn breach(reflects: Result<bool, String>, response: &ProbeResponse, report: &mut ProbeReport) {
    let cookie = response.field("set-cookie").is_some();
    match reflects {
        Ok(true) if may_have_secret(response) => {
            let seen = "compressed with the query, and cookies or a login are in play";
            report.advise("breach", Grade::Bad, seen, ADVICE_BREACH);
        }
        Ok(true) => {
            let seen = "compressed with the query; no cookie and no login is seen";
            report.advise("breach", Grade::Note, seen, ADVICE_BREACH);
        }
        _ if cookie => {
            report.advise("breach", Grade::Note, "compressed, sets a cookie", ADVICE_BREACH);
        }
        Ok(false) => {
            report.add("breach", Grade::Good, "no query and no cookie in compressed answers");
        }
        Err(why) => report.unknown("breach", why),
    }
}

/// True if an answer may have a secret in it: by a cookie or a login it knows who asks.
fn may_have_secret(response: &ProbeResponse) -> bool {
    let varies = |(name, value): &(String, String)| {
        let mut names = value.split(',').map(str::trim);
        let is_secret = |field: &str| ["cookie", "authorization"].contains(&field);
        name == "vary" && names.any(|field| is_secret(&field.to_ascii_lowercase()))
    };
    let is_private = |(name, value): &(String, String)| {
        name == "cache-control" && value.to_ascii_lowercase().contains("private")
    };
    response.field("set-cookie").is_some()
        || response.field("www-authenticate").is_some()
        || response.fields.iter().any(|field| varies(field) || is_private(field))
}

/// The use of the connection after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnceAnswered {
    /// It ends. The answer may end by that.
    Close,
    Idle,
}

fn get(
    target: &ProbeTarget,
    spoken: SpokenVersions,
    path: &str,
    coding: &str,
) -> io::Result<ProbeResponse> {
    let config = session::config(spoken.version, false, &spoken.alpn())?;
    let mut tls = session::open(target, &config)?;
    ask(&mut tls, (&target.authority(), path), coding, spoken, OnceAnswered::Close)
}

/// Asks for a path on a fresh connection, and reads the answer.
///
/// # Errors
/// The stream's; `InvalidData` if the answer is no HTTP or ends too early.
pub fn ask(
    stream: &mut (impl Read + Write),
    (host, path): (&str, &str),
    coding: &str,
    spoken: SpokenVersions,
    after: OnceAnswered,
) -> io::Result<ProbeResponse> {
    if spoken.is_two_only {
        return two::get(stream, (host, path), coding);
    }
    let end = if after == OnceAnswered::Close { "Connection: close\r\n" } else { "" };
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: eyelet-probe\r\n\
         Accept-Encoding: {coding}\r\n{end}\r\n"
    );
    stream.write_all(request.as_bytes())?;
    read(stream)
}

/// Reads a head, and a body to the end of the connection or of what the head announces.
fn read(stream: &mut impl Read) -> io::Result<ProbeResponse> {
    let mut raw = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut head = httparse::Response::new(&mut fields);
        let parsed = head.parse(&raw).map_err(|error| invalid(&error.to_string()))?;
        if let httparse::Status::Complete(length) = parsed {
            let status = head.code.unwrap_or_default();
            if INTERIM.contains(&status) {
                raw.drain(..length);
                continue;
            }
            let fields = head.headers.iter().map(|field| {
                let value = String::from_utf8_lossy(field.value).trim().to_owned();
                (field.name.to_ascii_lowercase(), value)
            });
            let mut response =
                ProbeResponse { status, fields: fields.collect(), body: Vec::new(), is_cut: false };
            let (body, is_cut) = body(&response, raw.split_off(length), stream)?;
            (response.body, response.is_cut) = (body, is_cut);
            return Ok(response);
        }
        if raw.len() > HEAD_BYTES_MAX {
            return Err(invalid("a head of more than 64 KiB"));
        }
        match stream.read(&mut buffer)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            more => raw.extend_from_slice(&buffer[..more]),
        }
    }
}

/// The body, and whether it is cut because it is longer than [`BODY_BYTES_MAX`].
fn body(
    response: &ProbeResponse,
    mut raw: Vec<u8>,
    stream: &mut impl Read,
) -> io::Result<(Vec<u8>, bool)> {
    if WITHOUT_BODY.contains(&response.status) {
        return Ok((Vec::new(), false));
    }
    let length = response.field("content-length").and_then(|text| text.parse::<u64>().ok());
    let left = length.unwrap_or(BODY_BYTES_MAX).min(BODY_BYTES_MAX);
    let chunked = response.field("transfer-encoding").is_some();
    let mut buffer = [0; 4096];
    // Trailers end by an empty line, too.
    let is_whole = |raw: &[u8]| {
        chunked && raw.ends_with(b"\r\n\r\n") && dechunk(raw, &mut Vec::new()).is_some()
    };
    while (raw.len() as u64) < left && !is_whole(&raw) {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(more) => raw.extend_from_slice(&buffer[..more]),
            // Many servers end without close_notify.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
    }
    let is_full = raw.len() as u64 >= BODY_BYTES_MAX;
    if !chunked {
        if (raw.len() as u64) < length.unwrap_or(0).min(BODY_BYTES_MAX) {
            let announced = length.unwrap_or_default();
            return Err(invalid(&format!(
                "the body ends after {} of {announced} bytes",
                raw.len()
            )));
        }
        let is_cut = is_full && length.is_none_or(|length| length > BODY_BYTES_MAX);
        return Ok((raw, is_cut));
    }
    let mut whole = Vec::new();
    match dechunk(&raw, &mut whole) {
        Some(()) => Ok((whole, false)),
        None if is_full => Ok((whole, true)),
        None => Err(invalid("a chunk is broken, or the last one is missing")),
    }
}

/// Takes chunks apart. `None` if the last one is missing or one is broken.
fn dechunk(mut raw: &[u8], body: &mut Vec<u8>) -> Option<()> {
    loop {
        let (after, size) = match httparse::parse_chunk_size(raw).ok()? {
            httparse::Status::Complete(found) => found,
            httparse::Status::Partial => return None,
        };
        let size = usize::try_from(size).ok()?;
        if size == 0 {
            return Some(());
        }
        body.extend_from_slice(raw.get(after..)?.get(..size)?);
        raw = raw.get(after + size + 2..)?;
    }
}

/// Decodes at most [`BODY_BYTES_MAX`]; `None` if the bytes are not this coding.
fn decode(coding: &str, body: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let taken = match coding {
        "gzip" => flate2::read::GzDecoder::new(body).take(BODY_BYTES_MAX).read_to_end(&mut out),
        "br" => brotli::Decompressor::new(body, 4096).take(BODY_BYTES_MAX).read_to_end(&mut out),
        "zstd" => return unzstd(body),
        _ => return None,
    };
    taken.ok().map(|_| out)
}

/// Decodes as [`decode`], for zstd.
fn unzstd(body: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(BODY_BYTES_MAX as usize);
    let mut context = zstd_safe::DCtx::try_create()?;
    let mut input = zstd_safe::InBuffer::around(body);
    let (mut taken, mut filled) = (usize::MAX, usize::MAX);
    let mut output = zstd_safe::OutBuffer::around(&mut out);
    // A call that neither reads nor writes needs bytes that are missing.
    while (taken, filled) != (input.pos(), output.pos()) {
        (taken, filled) = (input.pos(), output.pos());
        let left = context.decompress_stream(&mut output, &mut input).ok()?;
        let is_end = left == 0 && input.pos() == body.len();
        if is_end || output.pos() == output.capacity() {
            return Some(out);
        }
    }
    None
}

/// Returns the kind of a body that compression cannot make smaller, by its first bytes.
fn coded(body: &[u8]) -> Option<&'static str> {
    let known: [(&[u8], &str); 6] = [
        (b"\x1f\x8b\x08", "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\x89PNG", "PNG"),
        (b"\xff\xd8\xff", "JPEG"),
        (b"PK\x03\x04", "ZIP"),
        (b"wOF2", "WOFF2"),
    ];
    known.iter().find(|(magic, _)| body.starts_with(magic)).map(|(_, name)| *name)
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

/// Below this a coding saves less than a packet.
const SMALL_BYTES: usize = 256;

const ADVICE_PATH: &str = "the findings below are of this answer; --path names a page";
const ADVICE_DECODING: &str = "no client can read it: send what Content-Encoding says";
const ADVICE_FAILED: &str = "clients ask for all of them: answer as without, coded or not";
const ADVICE_CODINGS: &str = "compress text: nginx: gzip on; Eyelet: compress = true";
const ADVICE_TWICE: &str = "leave bodies alone that have a Content-Encoding or are compressed";
const ADVICE_VARY: &str = "send Vary: Accept-Encoding, or caches mix codings; nginx: gzip_vary on";
const ADVICE_BREACH: &str = "do not compress answers with secrets that reflect a request (BREACH)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_and_ends() {
        let raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        assert_eq!(read(&mut &raw[..]).unwrap().body, b"abc");
        let raw = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 204 No\r\n\r\n";
        let response = read(&mut &raw[..]).unwrap();
        assert_eq!((response.status, response.fields.len(), response.body.len()), (204, 0, 0));
        let cut = read(&mut &b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"[..]).unwrap_err();
        assert_eq!(cut.to_string(), "the body ends after 3 of 5 bytes");
        let raw = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc";
        assert_eq!(read(&mut &raw[..]).unwrap().body[..2], *b"ab");
        assert!(read(&mut &b"\x15\x03\x03garbage\r\n"[..]).is_err());
        assert_eq!(coded(b"\x1f\x8b\x08\0"), Some("gzip"));
    }

    /// A connection that never ends: a read beyond the answer is an error.
    struct Open<'a>(&'a [u8], Vec<u8>);

    impl Read for Open<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(ErrorKind::TimedOut.into()),
                more => Ok(more),
            }
        }
    }

    impl Write for Open<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_answer_is_read_to_its_end_on_a_connection_that_stays() {
        let long = vec![b'a'; 100_000];
        let sized = [&b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"[..], &long].concat();
        let head = &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n186a0\r\n"[..];
        let chunked = [head, &long, b"\r\n0\r\n\r\n"].concat();
        let trailed = [head, &long, b"\r\n0\r\nServer-Timing: a\r\n\r\n"].concat();
        let none = b"HTTP/1.1 204 No Content\r\n\r\n".to_vec();
        let spoken = SpokenVersions { version: &rustls::version::TLS13, is_two_only: false };
        for (raw, length) in [(sized, 100_000), (chunked, 100_000), (trailed, 100_000), (none, 0)] {
            let mut stream = Open(&raw, Vec::new());
            let asked = ("a.test", "/page");
            let answer = ask(&mut stream, asked, "identity", spoken, OnceAnswered::Idle).unwrap();
            assert_eq!((answer.body.len(), stream.0.len()), (length, 0));
            let request = String::from_utf8(stream.1).unwrap();
            assert!(request.starts_with("GET /page HTTP/1.1\r\nHost: a.test\r\n"), "{request}");
            assert!(!request.contains("close"), "{request}");
        }
    }

    fn gzip(body: &[u8]) -> Vec<u8> {
        let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        coder.write_all(body).unwrap();
        coder.finish().unwrap()
    }

    fn zstd(body: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(zstd_safe::compress_bound(body.len()));
        zstd_safe::compress(&mut out, body, 1).unwrap();
        out
    }

    #[test]
    fn long_bodies_are_decoded_up_to_the_limit() {
        let long = vec![b'a'; BODY_BYTES_MAX as usize + 100_000];
        assert_eq!(decode("zstd", &zstd(&long)).unwrap(), &long[..BODY_BYTES_MAX as usize]);
        assert_eq!(decode("gzip", &gzip(&long)).unwrap(), &long[..BODY_BYTES_MAX as usize]);
        assert_eq!(decode("zstd", &zstd(b"short")).unwrap(), b"short");
        assert_eq!(decode("zstd", &zstd(b"a short one")[..9]), None);
        assert_eq!(decode("zstd", b"no zstd"), None);
    }

    #[test]
    fn a_chunked_body_beyond_the_limit_is_cut() {
        let mut raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for _ in 0..=BODY_BYTES_MAX >> 16 {
            raw.extend_from_slice(b"10000\r\n");
            raw.extend(vec![b'a'; 1 << 16]);
            raw.extend_from_slice(b"\r\n");
        }
        let response = read(&mut &raw[..]).unwrap();
        assert!(response.is_cut && !response.body.is_empty());
    }

    #[test]
    fn bodies_get_their_verdicts() {
        let page = b"a page ".repeat(100);
        for (field, body, is_cut, name, grade) in [
            ("gzip", gzip(&page), false, "coded-twice", "ok"),
            ("gzip", gzip(&gzip(&page)), false, "coded-twice", "bad"),
            ("gzip, gzip", gzip(&gzip(&page)), false, "coded-twice", "bad"),
            ("gzip", page.clone(), false, "decoding", "bad"),
            ("gzip", page.clone(), true, "decoding", "unknown"),
            ("gzip", page.clone(), true, "coded-twice", "unknown"),
        ] {
            let fields = vec![("content-encoding".to_owned(), field.to_owned())];
            let mut found = Found::default();
            found.take("gzip", 200, Ok(ProbeResponse { status: 200, fields, body, is_cut }));
            let mut report = ProbeReport::default();
            found.bodies(&mut report);
            assert_eq!(finding(&report, name).0, grade, "{field}");
        }
    }

    /// The grade of a finding and what was seen.
    fn finding(report: &ProbeReport, name: &str) -> (String, String) {
        let json = report.to_json("a.test:443");
        let all = json["findings"].as_array().unwrap();
        let one = all.iter().find(|one| one["name"] == name).unwrap();
        (one["grade"].as_str().unwrap().into(), one["seen"].as_str().unwrap().into())
    }

    fn answer(status: u16, coding: &str, body: Vec<u8>) -> ProbeResponse {
        let fields = vec![("content-encoding".to_owned(), coding.to_owned())];
        ProbeResponse { status, fields, body, is_cut: false }
    }

    #[test]
    fn a_query_is_found_in_an_answer_of_any_coding() {
        let with = [&b"a page "[..], CANARY.as_bytes()].concat();
        let without = b"a page ";
        for (asked, grade) in [
            (Ok(answer(200, "gzip", gzip(&with))), "bad"),
            (Ok(answer(404, "zstd", zstd(&with))), "bad"),
            (Ok(answer(200, "gzip, zstd", zstd(&gzip(&with)))), "bad"),
            (Ok(answer(200, "zstd", zstd(without))), "ok"),
            (Ok(answer(200, "zstd", with.clone())), "unknown"),
            (Ok(answer(200, "", with.clone())), "unknown"),
            (Err(ErrorKind::TimedOut.into()), "unknown"),
        ] {
            let mut report = ProbeReport::default();
            let seen = format!("{asked:?}");
            breach(reflects(asked), &having("vary", "Accept-Encoding, Cookie"), &mut report);
            assert_eq!(finding(&report, "breach").0, grade, "{seen}");
        }
    }

    /// An answer with this field.
    fn having(name: &str, value: &str) -> ProbeResponse {
        let fields = vec![(name.to_owned(), value.to_owned())];
        ProbeResponse { status: 200, fields, body: Vec::new(), is_cut: false }
    }

    #[test]
    fn an_answer_without_secrets_may_have_the_query() {
        for (name, value, grade) in [
            ("set-cookie", "a=b", "bad"),
            ("vary", "authorization", "bad"),
            ("www-authenticate", "Basic", "bad"),
            ("cache-control", "max-age=9, private", "bad"),
            ("vary", "Accept-Encoding", "note"),
            ("cache-control", "public", "note"),
        ] {
            let mut report = ProbeReport::default();
            breach(Ok(true), &having(name, value), &mut report);
            assert_eq!(finding(&report, "breach").0, grade, "{name}: {value}");
        }
    }

    #[test]
    fn a_coding_that_breaks_the_answer_is_named() {
        let page = b"a page ".repeat(100);
        let plain = answer(200, "", page.clone());
        for (br, expected) in [
            (Err(ErrorKind::UnexpectedEof.into()), "asked for br: unexpected end of file"),
            (Ok(answer(502, "", Vec::new())), "asked for br: 502 in place of 200"),
            (Ok(answer(500, "br", page.clone())), "asked for br: 500 in place of 200"),
        ] {
            let mut found = Found::default();
            found.take("gzip", 200, Ok(answer(200, "gzip", gzip(&page))));
            found.take("br", 200, br);
            let mut report = ProbeReport::default();
            found.codings(&mut report, &plain);
            found.bodies(&mut report);
            let (grade, seen) = finding(&report, "codings");
            assert_eq!((&*grade, seen.contains(expected)), ("bad", true), "{seen}");
            assert!(seen.contains("gzip (700 to "), "{seen}");
            assert_eq!(finding(&report, "coded-twice").0, "unknown", "{expected}");
        }
    }
}
