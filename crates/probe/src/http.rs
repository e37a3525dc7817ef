//! What the server does with a GET: content codings, bodies that are coded twice, `Vary`,
//! dictionaries, and answers from which BREACH reads secrets.

use std::io::{self, ErrorKind, Read, Write};

use rustls::SupportedProtocolVersion;

use crate::report::{Grade, ProbeReport};
use crate::session;
use crate::target::ProbeTarget;

/// Most bytes of an answer's head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most bytes of a body, as sent and as decoded.
const BODY_BYTES_MAX: u64 = 8 << 20;
/// Most fields of a head.
const FIELDS_MAX: usize = 128;
/// A query that no page has by itself.
const CANARY: &str = "eyelet7canary7probe";

/// An answer: its status, its fields with lower-case names, its body without chunks.
#[derive(Debug, Default)]
struct Response {
    status: u16,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Response {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }
}

/// Asks for a path with each coding, one connection each.
pub fn look(
    target: &ProbeTarget,
    version: &'static SupportedProtocolVersion,
    path: &str,
    report: &mut ProbeReport,
) {
    let plain = match get(target, version, path, "identity") {
        Ok(plain) => plain,
        Err(error) => return report.unknown("http", error),
    };
    report.add("http", Grade::Good, format!("{} with {} bytes", plain.status, plain.body.len()));
    let mut given = Vec::new();
    let mut twice = None;
    let mut coded_once = None;
    for coding in ["gzip", "br", "zstd"] {
        let Ok(response) = get(target, version, path, coding) else { continue };
        if response.field("content-encoding") != Some(coding) {
            continue;
        }
        let sent = response.body.len();
        let decoded = decode(coding, &response.body).unwrap_or_default();
        given.push(format!("{coding} ({} to {sent} bytes)", decoded.len()));
        if let Some(inner) = coded(&decoded) {
            twice = Some(format!("{coding} around a body that is {inner} already"));
        }
        coded_once = Some(response);
    }
    if let Some(inner) = plain.field("content-encoding").is_none().then(|| coded(&plain.body)) {
        codings(report, &given, inner.is_some() || plain.body.len() < SMALL_BYTES);
    }
    match twice {
        Some(seen) => report.advise("coded-twice", Grade::Bad, seen, ADVICE_TWICE),
        None => report.add("coded-twice", Grade::Good, "no"),
    }
    if let Some(response) = coded_once {
        vary(report, &response);
        breach(target, version, path, &response, report);
    }
    match plain.field("use-as-dictionary") {
        Some(value) => report.add("dictionary", Grade::Good, format!("Use-As-Dictionary: {value}")),
        None => report.add("dictionary", Grade::Note, "none offered (RFC 9842)"),
    }
}

fn codings(report: &mut ProbeReport, given: &[String], is_right: bool) {
    match given {
        [] if is_right => report.add("codings", Grade::Good, "none, which fits this body"),
        [] => report.advise("codings", Grade::Note, "none of gzip, br, zstd", ADVICE_CODINGS),
        given => report.add("codings", Grade::Good, given.join(", ")),
    }
}

fn vary(report: &mut ProbeReport, response: &Response) {
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

/// A compressed answer with a secret and with text of the attacker's (breachattack.com).
fn breach(
    target: &ProbeTarget,
    version: &'static SupportedProtocolVersion,
    path: &str,
    response: &Response,
    report: &mut ProbeReport,
) {
    let mark = if path.contains('?') { '&' } else { '?' };
    let reflecting = get(target, version, &format!("{path}{mark}q={CANARY}"), "gzip");
    let reflected = reflecting.is_ok_and(|response| {
        let coding = response.field("content-encoding").unwrap_or_default();
        let decoded = decode(coding, &response.body).unwrap_or_default();
        coding == "gzip" && decoded.windows(CANARY.len()).any(|part| part == CANARY.as_bytes())
    });
    let cookie = response.field("set-cookie").is_some();
    match (reflected, cookie) {
        (true, _) => {
            report.advise("breach", Grade::Bad, "compressed with the query", ADVICE_BREACH)
        }
        (_, true) => {
            report.advise("breach", Grade::Note, "compressed, sets a cookie", ADVICE_BREACH)
        }
        _ => report.add("breach", Grade::Good, "no query and no cookie in compressed answers"),
    }
}

fn get(
    target: &ProbeTarget,
    version: &'static SupportedProtocolVersion,
    path: &str,
    coding: &str,
) -> io::Result<Response> {
    let mut tls = session::open(target, &session::config(version, false, &["http/1.1"])?)?;
    let host = &target.name;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: eyelet-probe\r\n\
         Accept-Encoding: {coding}\r\nConnection: close\r\n\r\n"
    );
    tls.write_all(request.as_bytes())?;
    read(&mut tls)
}

/// Reads a head, and a body to the end of the connection or of what the head announces.
fn read(stream: &mut impl Read) -> io::Result<Response> {
    let mut raw = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut head = httparse::Response::new(&mut fields);
        let parsed = head.parse(&raw).map_err(|error| invalid(&error.to_string()))?;
        if let httparse::Status::Complete(length) = parsed {
            let status = head.code.unwrap_or_default();
            let fields = head.headers.iter().map(|field| {
                let value = String::from_utf8_lossy(field.value).trim().to_owned();
                (field.name.to_ascii_lowercase(), value)
            });
            let mut response = Response { status, fields: fields.collect(), body: Vec::new() };
            response.body = body(&response, raw.split_off(length), stream)?;
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

fn body(response: &Response, mut raw: Vec<u8>, stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let length = response.field("content-length").and_then(|text| text.parse::<u64>().ok());
    let left = length.unwrap_or(BODY_BYTES_MAX).min(BODY_BYTES_MAX);
    let chunked = response.field("transfer-encoding").is_some();
    let mut buffer = [0; 4096];
    let is_whole = |raw: &[u8]| chunked && raw.ends_with(b"0\r\n\r\n") && dechunk(raw).is_some();
    while (raw.len() as u64) < left && !is_whole(&raw) {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(more) => raw.extend_from_slice(&buffer[..more]),
            // Many servers end without close_notify.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
    }
    if chunked { dechunk(&raw).ok_or_else(|| invalid("broken chunks")) } else { Ok(raw) }
}

fn dechunk(mut raw: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let (after, size) = match httparse::parse_chunk_size(raw).ok()? {
            httparse::Status::Complete(found) => found,
            httparse::Status::Partial => return None,
        };
        let size = usize::try_from(size).ok()?;
        if size == 0 {
            return Some(body);
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
        "zstd" => {
            out.reserve(BODY_BYTES_MAX as usize);
            return zstd_safe::decompress(&mut out, body).ok().map(|_| out);
        }
        _ => return None,
    };
    taken.ok().map(|_| out)
}

/// What a body is that compression cannot make smaller, by its first bytes.
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
        let raw = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc";
        assert_eq!(read(&mut &raw[..]).unwrap().body[..2], *b"ab");
        assert!(read(&mut &b"\x15\x03\x03garbage\r\n"[..]).is_err());
        assert_eq!(coded(b"\x1f\x8b\x08\0"), Some("gzip"));
    }
}
