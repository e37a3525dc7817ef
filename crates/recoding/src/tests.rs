//! Every Accept-Encoding with every kind of response, decoded and compared; dictionaries from the
//! first response to a returning client. No sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use eyelet_compress::dictionary::pattern::{FilePattern, Pattern};
use http::header::HeaderMap;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};

use super::compressors::*;
use super::*;
use eyelet_config::{Compression, Config, Terminate};
use eyelet_memory::budget::Budget;

mod dictionaries;
mod near;
mod table;

/// One worker's compressors and a rule.
struct Edge {
    compressors: Compressors,
    terminate: Terminate,
}

/// The client's response.
struct Got {
    headers: HeaderMap,
    body: Vec<u8>,
    coding_info: CodingInfo,
    /// The request's fields as the upstream saw them.
    asked: HeaderMap,
}

impl Edge {
    fn new(terms: &str, folder: &Path) -> Self {
        Self::with_budget(terms, folder, 64 << 20)
    }

    fn with_budget(terms: &str, folder: &Path, budget: usize) -> Self {
        let config = config(terms, folder);
        let memory = Arc::new(Budget::new(1 << 30, 0));
        let shared = SharedDictionaries::start(&config, &memory).unwrap();
        let names = shared.rule_names(&config);
        let compressors = Compressors::with_budget(budget, &shared, names, &memory);
        let eyelet_config::Action::Terminate(terminate) = config.rules.at(0).action else {
            panic!("a terminate rule")
        };
        Self { compressors, terminate: terminate.clone() }
    }

    /// A whole exchange. The upstream sends `pieces` with a short pause after each.
    fn exchange(&self, request: Fields<'_>, response: &Answer<'_>) -> Got {
        let mut head = request_head("GET", "/page", request);
        let path = request.iter().find(|(name, _)| *name == ":path").map(|(_, path)| *path);
        let method = request.iter().find(|(name, _)| *name == ":method").map(|(_, m)| *m);
        if path.is_some() || method.is_some() {
            head = request_head(method.unwrap_or("GET"), path.unwrap_or("/page"), request);
        }
        let is_head = head.method == Method::HEAD;
        let asked = self.compressors.request(0, &self.terminate, "app.example", &mut head);
        let mut parts = response.head();
        let bodiless = is_head || is_bodiless(parts.status);
        let body = (!bodiless).then_some(BodyInfo {
            length: response.known.then(|| response.length()),
            complete: response.pieces.len() < 2,
        });
        let first = response.pieces.first().copied().unwrap_or_default();
        let first = if bodiless { &[][..] } else { first };
        let mut coder = self.compressors.response(&asked, &mut parts, body, first);
        let mut out = Vec::new();
        if bodiless {
            return Got {
                headers: parts.headers,
                body: out,
                coding_info: coder.coding_info(),
                asked: head.headers,
            };
        }
        for piece in response.pieces {
            if coder.is_identity() {
                out.extend_from_slice(piece);
                if coder.inspects() {
                    coder.inspect(piece);
                }
            } else {
                coder.push(piece, &mut out).unwrap();
                if coder.pause().is_some_and(|pause| pause.of < Duration::from_millis(10)) {
                    coder.flush(&mut out).unwrap();
                }
            }
        }
        if coder.is_identity() {
            coder.inspect_end();
        } else {
            coder.finish(&mut out).unwrap();
        }
        Got {
            headers: parts.headers,
            body: out,
            coding_info: coder.coding_info(),
            asked: head.headers,
        }
    }
}

type Fields<'a> = &'a [(&'a str, &'a str)];

/// An upstream's response.
struct Answer<'a> {
    status: u16,
    fields: Fields<'a>,
    pieces: &'a [&'a [u8]],
    known: bool,
}

impl Answer<'_> {
    fn length(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }

    fn head(&self) -> http::response::Parts {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap();
        for (name, value) in self.fields {
            let name: http::HeaderName = name.parse().unwrap();
            response.headers_mut().append(name, value.parse().unwrap());
        }
        if self.known {
            response.headers_mut().insert("content-length", self.length().into());
        }
        response.into_parts().0
    }
}

fn request_head(method: &str, path: &str, fields: Fields<'_>) -> Parts {
    let uri = format!("https://app.example{path}");
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in fields.iter().filter(|(name, _)| !name.starts_with(':')) {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn config(terms: &str, folder: &Path) -> Config {
    let identity = rcgen::generate_simple_self_signed(["app.example".to_owned()]).unwrap();
    std::fs::write(folder.join("app.pem"), identity.cert.pem()).unwrap();
    std::fs::write(folder.join("app.key"), identity.signing_key.serialize_pem()).unwrap();
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[[rule]]\nname = \"app\"\nsni = \"app.example\"\n\
         action = \"terminate\"\ncertificate = \"app.pem\"\nkey = \"app.key\"\n\
         upstream = \"http://127.0.0.1:9\"\n{terms}\n"
    );
    std::fs::write(folder.join("edge.toml"), text).unwrap();
    eyelet_config::load(&folder.join("edge.toml"), eyelet_config::Depth::Files).unwrap().config
}

/// Text that compresses about as well as real text.
fn text(len: usize, seed: u32) -> Vec<u8> {
    let mut body = Vec::with_capacity(len + 64);
    let mut n = seed;
    while body.len() < len {
        n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let line = format!("function f{}(a,b){{return a*{}+b.x{}}}\n", n >> 16, n >> 24, n & 255);
        body.extend_from_slice(line.as_bytes());
    }
    body.truncate(len);
    body
}

fn noise(len: usize) -> Vec<u8> {
    let mut body = vec![0; len];
    aws_lc_rs::rand::fill(&mut body).unwrap();
    body
}

/// Decodes as a client does, by the field alone.
fn decode(headers: &HeaderMap, body: &[u8], dictionary: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let Some(coding) = headers.get("content-encoding") else { return body.to_vec() };
    match coding.as_bytes() {
        b"gzip" => _ = flate2::read::GzDecoder::new(body).read_to_end(&mut out).unwrap(),
        b"br" => _ = brotli::Decompressor::new(body, 4096).read_to_end(&mut out).unwrap(),
        b"zstd" => out = unzstd(body, &[]),
        b"dcz" => {
            let (head, frame) = body.split_at(40);
            let hash = crate::dictionaries::hash::hash(dictionary);
            let wanted = [&[0x5E, 0x2A, 0x4D, 0x18, 0x20, 0, 0, 0][..], &hash.0].concat();
            assert_eq!(head, wanted);
            out = unzstd(frame, dictionary);
        }
        b"dcb" => {
            let (head, stream) = body.split_at(36);
            let hash = crate::dictionaries::hash::hash(dictionary);
            assert_eq!(head, [&[0xFF, 0x44, 0x43, 0x42][..], &hash.0].concat());
            let mut decoder = brotli::Decompressor::new_with_custom_dict(
                stream,
                4096,
                dictionary.to_vec().into(),
            );
            decoder.read_to_end(&mut out).unwrap();
        }
        other => panic!("{other:?}"),
    }
    out
}

fn unzstd(frame: &[u8], dictionary: &[u8]) -> Vec<u8> {
    let mut context = zstd_safe::DCtx::create();
    context.set_parameter(zstd_safe::DParameter::WindowLogMax(27)).unwrap();
    context.ref_prefix(dictionary).unwrap();
    let mut out = Vec::with_capacity(32 << 20);
    let mut input = zstd_safe::InBuffer::around(frame);
    let mut output = zstd_safe::OutBuffer::around(&mut out);
    let mut left = 1;
    while input.pos() < frame.len() {
        left = context.decompress_stream(&mut output, &mut input).unwrap();
    }
    assert_eq!(left, 0, "the frame ends");
    out
}
