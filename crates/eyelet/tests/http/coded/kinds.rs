//! The kinds of response that an upstream may give, and how each must reach the client.

use std::io::Read;

/// The end of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length,
    /// Pieces of so many bytes.
    Chunked(usize),
    /// Chunks, and a trailer behind them.
    Trailers,
    /// The connection's end.
    Close,
}

/// Tells if a client that takes a coding gets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coded {
    Always,
    Never,
    /// It depends on how much of the body came with the head.
    Either,
}

/// A response.
pub struct Kind {
    pub name: &'static str,
    pub status: u16,
    pub fields: Vec<(&'static str, &'static str)>,
    pub body: Vec<u8>,
    pub framing: Framing,
    pub coded: Coded,
    /// Of the access line, where the response itself is the reason.
    pub why_not: &'static str,
    /// One to try all askers with.
    pub is_plain: bool,
}

impl Kind {
    fn new(name: &'static str, fields: &[(&'static str, &'static str)], body: Vec<u8>) -> Self {
        let (fields, framing, coded) = (fields.to_vec(), Framing::Length, Coded::Always);
        let (why_not, is_plain) = ("", false);
        Self { name, status: 200, fields, body, framing, coded, why_not, is_plain }
    }

    fn framed(self, framing: Framing) -> Self {
        Self { framing, ..self }
    }

    fn plain(self) -> Self {
        Self { is_plain: true, ..self }
    }

    fn with(mut self, fields: &[(&'static str, &'static str)]) -> Self {
        self.fields.extend_from_slice(fields);
        self
    }

    fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    fn never(self, why_not: &'static str) -> Self {
        Self { coded: Coded::Never, why_not, ..self }
    }

    fn either(self, why_not: &'static str) -> Self {
        Self { coded: Coded::Either, why_not, ..self }
    }

    /// A field's value, the first of that name.
    pub fn field(&self, name: &str) -> Option<&'static str> {
        self.fields.iter().find(|(found, _)| *found == name).map(|(_, value)| *value)
    }

    /// The names in Vary.
    pub fn varies(&self) -> Vec<String> {
        let lines = self.fields.iter().filter(|(name, _)| *name == "vary");
        lines.flat_map(|(_, l)| l.split(',')).map(|n| n.trim().to_ascii_lowercase()).collect()
    }

    /// Returns the response as it goes over the wire; `seen` is the request's Accept-Encoding.
    pub fn written(&self, seen: &str, head: bool) -> Vec<u8> {
        let mut out = format!("HTTP/1.1 {} It\r\nX-Seen: {seen}\r\n", self.status);
        if self.name == "after an interim response" {
            out.insert_str(0, "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n");
        }
        for (name, value) in &self.fields {
            out += &format!("{name}: {value}\r\n");
        }
        let bodiless = [204, 304].contains(&self.status);
        match self.framing {
            Framing::Length if bodiless => {}
            Framing::Length => out += &format!("content-length: {}\r\n", self.body.len()),
            Framing::Chunked(_) => out += "transfer-encoding: chunked\r\n",
            Framing::Trailers => out += "transfer-encoding: chunked\r\ntrailer: x-sum\r\n",
            Framing::Close => out += "connection: close\r\n",
        }
        let mut out = (out + "\r\n").into_bytes();
        if head || bodiless {
            return out;
        }
        let piece = match self.framing {
            Framing::Length | Framing::Close => {
                out.extend_from_slice(&self.body);
                return out;
            }
            Framing::Chunked(piece) => piece,
            Framing::Trailers => 4_000,
        };
        for chunk in self.body.chunks(piece) {
            out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            out.extend_from_slice(chunk);
            out.extend_from_slice(b"\r\n");
        }
        let trailer = if self.framing == Framing::Trailers { "x-sum: 7\r\n" } else { "" };
        out.extend_from_slice(format!("0\r\n{trailer}\r\n").as_bytes());
        out
    }
}

/// All of them.
pub fn kinds() -> Vec<Kind> {
    let mut kinds = compressible();
    kinds.extend(fields());
    kinds.extend(never());
    kinds
}

fn compressible() -> Vec<Kind> {
    let html = |name, length| Kind::new(name, &[HTML], text(length, 1));
    vec![
        html("html", 20_000).plain(),
        html("in chunks", 20_000).framed(Framing::Chunked(3_000)).plain(),
        html("with trailers", 20_000).framed(Framing::Trailers),
        html("until the connection's end", 20_000).framed(Framing::Close),
        html("long", 300_000),
        html("long, in chunks", 300_000).framed(Framing::Chunked(10_000)),
        html("long, until the connection's end", 300_000).framed(Framing::Close),
        html("not found", 3_000).status(404),
        html("failed", 3_000).status(500),
        html("of 512 bytes", 512),
        html("after an interim response", 2_000),
        Kind::new("json", &[("content-type", "application/json")], text(5_000, 2)),
        Kind::new("problem", &[("content-type", "application/problem+json")], text(900, 3)),
        Kind::new("svg", &[("content-type", "image/svg+xml")], text(5_000, 4)),
        Kind::new("wasm", &[("content-type", "application/wasm")], text(5_000, 4)),
        Kind::new("type in capitals", &[("content-type", "TEXT/HTML;charset=X")], text(900, 3)),
        Kind::new("no type, text", &[], text(5_000, 5)),
        Kind::new("octets that are text", &[OCTETS], text(5_000, 6)),
    ]
}

fn fields() -> Vec<Kind> {
    let html = |name| Kind::new(name, &[HTML], text(5_000, 7));
    vec![
        html("strong tag").with(&[("etag", "\"a\"")]).plain(),
        html("weak tag").with(&[("etag", "W/\"theirs\"")]),
        html("empty tag").with(&[("etag", "\"\"")]),
        html("tag with a comma").with(&[("etag", "\"a,b\"")]),
        html("vary by origin").with(&[("vary", "Origin")]),
        html("vary by coding").with(&[("vary", "Accept-Encoding")]),
        html("vary twice").with(&[("vary", "Origin"), ("vary", "Cookie, accept-encoding")]),
        html("vary by anything").with(&[("vary", "*")]),
        html("ranges offered").with(&[("accept-ranges", "bytes")]),
        html("sets a cookie").with(&[("set-cookie", "a=b; Secure")]),
        html("private").with(&[("cache-control", "private, max-age=5")]),
        html("dated").with(&[("last-modified", "Mon, 01 Jan 2024 00:00:00 GMT")]),
    ]
}

fn never() -> Vec<Kind> {
    let html = |name| Kind::new(name, &[HTML], text(5_000, 8));
    let of = |name, kind| Kind::new(name, &[("content-type", kind)], text(5_000, 9));
    let coded = |name, coding| {
        Kind::new(name, &[HTML, ("content-encoding", coding)], zipped()).never("already coded")
    };
    vec![
        coded("zipped", "gzip").with(&[("etag", "\"z\"")]),
        coded("zipped, in chunks", "gzip").framed(Framing::Chunked(100)),
        coded("called identity", "identity"),
        coded("called something", "something"),
        html("a part").status(206).with(&[("content-range", "bytes 0-4999/9000")]).never("range"),
        html("no part").status(416).with(&[("content-range", "bytes */9000")]).never("range"),
        html("not to be changed")
            .with(&[("cache-control", "public, No-Transform"), ("etag", "\"n\"")])
            .never("no-transform"),
        html("with a digest").with(&[("content-digest", "sha-256=:AAAA:")]).never("digest"),
        html("with an old digest").with(&[("content-md5", "AAAA")]).never("digest"),
        of("events", "text/event-stream").never("event stream"),
        of("events in chunks", "text/event-stream")
            .framed(Framing::Chunked(50))
            .never("event stream"),
        of("grpc", "application/grpc+proto").never("grpc"),
        of("picture", "image/png").never("type is compressed"),
        of("font", "font/woff2").never("type is compressed"),
        of("archive", "application/zip").never("type is compressed"),
        Kind::new("of 511 bytes", &[HTML, ("etag", "\"s\"")], text(511, 1)).never("short"),
        Kind::new("empty", &[HTML], Vec::new()).never("no content"),
        Kind::new("empty, in chunks", &[HTML], Vec::new())
            .framed(Framing::Chunked(1))
            .either("no content"),
        Kind::new("short, in chunks", &[HTML], text(300, 1))
            .framed(Framing::Chunked(300))
            .either("short"),
        Kind::new("octets that are zipped", &[OCTETS], zipped()).never("looks compressed"),
        Kind::new("octets that are noise", &[OCTETS], crate::support::noise(9_000, 3))
            .never("looks compressed"),
        Kind::new("no content", &[("etag", "\"e\"")], Vec::new()).status(204).never("no content"),
    ]
}

const HTML: (&str, &str) = ("content-type", "text/html; charset=utf-8");
const OCTETS: (&str, &str) = ("content-type", "application/octet-stream");

/// Text that compresses about as text does.
fn text(length: usize, seed: u32) -> Vec<u8> {
    let (mut body, mut n) = (Vec::with_capacity(length + 64), seed);
    while body.len() < length {
        n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        body.extend_from_slice(format!("<p id=a{}>line {}</p>\n", n >> 20, n >> 26).as_bytes());
    }
    body.truncate(length);
    body
}

fn zipped() -> Vec<u8> {
    let (text, mut out) = (text(9_000, 10), Vec::new());
    let level = flate2::Compression::default();
    flate2::read::GzEncoder::new(&text[..], level).read_to_end(&mut out).unwrap();
    out
}
