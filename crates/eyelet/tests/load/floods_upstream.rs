//! Floods that come from upstreams, to clients that do not read: interim heads, heads out of the
//! table, bodies that are large only when they are decoded.

use std::io::Write;

use crate::support::Edge;
use crate::support::crowd::{From, Manner, many, permit, sized};

use super::floods_http::{PAUSE, Scene, gets};

/// Interim responses without end (RFC 9110 15.2).
const HINTS: Manner = Manner::Download {
    head: "",
    piece: b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n",
};
/// The bytes to which a body is decoded.
const DECODED_BYTES: usize = 64 << 20;

#[test]
fn interim_heads_without_end() {
    let _permit = permit(sized(2 * 200));
    let scene = Scene::strict(HINTS);
    let says = b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n";
    let flood = || scene.open(&scene.one, sized(200), says);
    drop(scene.withstands("interim heads", flood));
}

#[test]
fn interim_heads_without_end_by_http2() {
    let _permit = permit(sized(30 * (1 + 100)));
    let scene = Scene::strict(HINTS);
    let flood = || scene.open_at(PAUSE, &scene.two, sized(30), &gets(100));
    drop(scene.withstands("interim heads by h2", flood));
}

/// An upstream connection's 27 bytes are 58 kB for the client's connection.
#[test]
fn heads_out_of_the_upstreams_table() {
    let _permit = permit(sized(30 * (1 + 100)));
    let scene = Scene::leading(Manner::Page, Manner::Heads, |pki, upstream| {
        pki.terminate(&format!("http://{upstream}"), "upstream_http2 = \"on\"")
    });
    let flood = || scene.open_at(PAUSE, &scene.two, sized(30), &gets(100));
    drop(scene.withstands("heads out of the upstream's table", flood));
}

/// With the largest window that there is: 16 MiB.
#[test]
fn bombs_of_br_that_are_decoded() {
    let mut body = Vec::new();
    let mut coder = brotli::CompressorWriter::new(&mut body, 4096, 1, 24);
    coder.write_all(&vec![b'a'; DECODED_BYTES]).unwrap();
    drop(coder);
    decoded("br", &body);
}

/// With the largest window that a decoder must take: 8 MiB (RFC 9659).
#[test]
fn bombs_of_zstd_that_are_decoded() {
    let mut coder = zstd_safe::CCtx::create();
    coder.set_parameter(zstd_safe::CParameter::WindowLog(23)).unwrap();
    let mut body = vec![0; 1 << 20];
    let mut out = zstd_safe::OutBuffer::around(&mut body[..]);
    let piece = vec![b'a'; DECODED_BYTES];
    let mut input = zstd_safe::InBuffer::around(&piece);
    while input.pos < piece.len() {
        coder.compress_stream(&mut out, &mut input).unwrap();
    }
    while coder.end_stream(&mut out).unwrap() > 0 {}
    let length = out.pos();
    decoded("zstd", &body[..length]);
}

/// Clients without TLS that accept no coding, of an edge that decodes what another one passes on.
fn decoded(coding: &str, body: &[u8]) {
    let _permit = permit(sized(2 * 100));
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: {coding}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let answer = Manner::Say([head.as_bytes(), body].concat().leak());
    let mut far = None;
    let scene = Scene::leading(Manner::Page, answer, |pki, upstream| {
        let rule = pki.terminate(&format!("http://{upstream}"), "compress = \"off\"");
        let edge = far.insert(Edge::start(&pki.folder, &rule));
        format!(
            "[[listener]]\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n[[rule]]\n\
             action = \"originate\"\nupstream = \"https://{}\"\nupstream_name = \"app.test\"\n\
             upstream_ca = \"ca.pem\"\n",
            edge.address()
        )
    })
    .strictly();
    let flood = || {
        let clients = many(sized(100), |n| {
            let source = From::loopback(2 + u8::try_from(n % 8).unwrap()).small();
            let mut client = source.connect(scene.edge.addresses()[1]).ok()?;
            client.write_all(b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").ok()?;
            Some(client)
        });
        clients.into_iter().flatten().collect::<Vec<_>>()
    };
    drop(scene.withstands(&format!("bombs of {coding}"), flood));
}
