//! Certificates that shrink are compressed in the handshake (RFC 8879), for clients that take it:
//! rustls by either coding, and Chromium.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::compress::{CertDecompressor, DecompressionFailed};
use rustls::{CertificateCompressionAlgorithm, ClientConfig, ClientConnection, StreamOwned};
use serde_json::Value;

use crate::support::browser::{Browser, trust};
use crate::support::client::{Offer, echo};
use crate::support::edge::connect;
use crate::support::pki::Kind;
use crate::support::{Edge, Pki, Upstream, need};

/// A client's decoder.
#[derive(Debug)]
enum Decoder {
    Brotli,
    Zlib,
}

impl CertDecompressor for Decoder {
    fn decompress(&self, input: &[u8], output: &mut [u8]) -> Result<(), DecompressionFailed> {
        let mut decoded = Vec::new();
        let read = match self {
            Self::Brotli => brotli::Decompressor::new(input, 4096).read_to_end(&mut decoded),
            Self::Zlib => flate2::read::ZlibDecoder::new(input).read_to_end(&mut decoded),
        };
        if read.is_err() || decoded.len() != output.len() {
            return Err(DecompressionFailed);
        }
        output.copy_from_slice(&decoded);
        Ok(())
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        match self {
            Self::Brotli => CertificateCompressionAlgorithm::Brotli,
            Self::Zlib => CertificateCompressionAlgorithm::Zlib,
        }
    }
}

/// A socket that counts what it reads.
struct Counted(TcpStream, usize);

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.0.read(buffer)?;
        self.1 += length;
        Ok(length)
    }
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// A client that takes certificates in these codings, and resumes no session.
fn client(pki: &Pki, decoders: &[&'static dyn CertDecompressor]) -> Arc<ClientConfig> {
    let mut config = (*Offer::new(pki).config()).clone();
    config.resumption = Resumption::disabled();
    config.cert_decompressors = decoders.to_vec();
    Arc::new(config)
}

/// Bytes that the edge sends until the client's handshake is done. Then it echoes.
fn bytes_sent(edge: &Edge, config: &Arc<ClientConfig>) -> usize {
    let mut tls = ClientConnection::new(config.clone(), "app.test".try_into().unwrap()).unwrap();
    let mut socket = Counted(connect(edge.address()), 0);
    while tls.is_handshaking() {
        tls.complete_io(&mut socket).unwrap();
    }
    let bytes = socket.1;
    echo(&mut StreamOwned::new(tls, socket), b"hello");
    bytes
}

/// An edge whose file has the leaf and its authority.
fn edge_with_chain(pki: &Pki, upstream: &str, kind: Kind) -> Edge {
    pki.server("edge", &["app.test"], kind);
    let chain = [pki.file("edge.pem"), pki.file("ca.pem")].map(|file| fs::read(file).unwrap());
    pki.folder.write("edge.pem", chain.concat());
    Edge::start(&pki.folder, &pki.terminate(upstream, ""))
}

#[test]
fn a_chain_that_shrinks_is_compressed_for_clients_that_take_it() {
    let (pki, upstream) = (Pki::new(), Upstream::echo());
    let edge = edge_with_chain(&pki, &format!("tcp://{}", upstream.address), Kind::P256);
    let plain = client(&pki, &[]);
    let whole = bytes_sent(&edge, &plain);
    for decoders in [
        &[&Decoder::Brotli as &dyn CertDecompressor][..],
        &[&Decoder::Zlib],
        &[&Decoder::Zlib, &Decoder::Brotli],
    ] {
        let config = client(&pki, decoders);
        let [first, again] = [(); 2].map(|()| bytes_sent(&edge, &config));
        // A signature by ECDSA is up to two bytes shorter.
        assert!(first + 100 < whole && first.abs_diff(again) <= 2, "{decoders:?} {first} {whole}");
    }
    assert!(bytes_sent(&edge, &plain).abs_diff(whole) <= 2);
}

/// The key and the signature are most of it.
#[test]
fn a_chain_that_does_not_shrink_is_sent_as_it_is() {
    let (pki, upstream) = (Pki::new(), Upstream::echo());
    pki.server("edge", &["app.test"], Kind::MlDsa65);
    let rule = pki.terminate(&format!("tcp://{}", upstream.address), "");
    let edge = Edge::start(&pki.folder, &rule);
    let whole = bytes_sent(&edge, &client(&pki, &[]));
    let both = client(&pki, &[&Decoder::Brotli, &Decoder::Zlib]);
    for _ in 0..2 {
        assert!(bytes_sent(&edge, &both).abs_diff(whole) <= 2);
    }
}

#[test]
fn chromium_reads_a_compressed_certificate() {
    /// RFC 8879 section 4.
    const COMPRESSED_CERTIFICATE: u64 = 25;
    if !(need("chromium") && need("certutil")) {
        return;
    }
    let (pki, upstream) = (Pki::new(), Upstream::http());
    let edge = edge_with_chain(&pki, &format!("http://{}", upstream.address), Kind::P256);
    trust(&pki.folder, &pki.file("ca.pem"));
    let log = pki.file("net.json");
    let url = format!("https://app.test:{}/", edge.port());
    let (rules, log_to) = (
        "--host-resolver-rules=MAP app.test 127.0.0.1",
        format!("--log-net-log={}", log.display()),
    );
    let browser = Browser::open_with(&pki.folder, &[rules, &log_to, &url]);
    edge.line("Chromium's request", |line| line["http"]["path"] == "/");
    browser.close();
    // Chromium writes an event a line, and may be too slow to end the list before it is killed.
    let text = fs::read_to_string(log).unwrap();
    let begun = text.trim_end().trim_end_matches(',');
    let log: Value = serde_json::from_str(&text)
        .or_else(|_| serde_json::from_str(&format!("{begun}]}}")))
        .unwrap();
    let received = &log["constants"]["logEventTypes"]["SSL_HANDSHAKE_MESSAGE_RECEIVED"];
    let events = log["events"].as_array().unwrap();
    let messages = events.iter().filter(|event| event["type"] == *received);
    let types: Vec<&Value> = messages.map(|event| &event["params"]["type"]).collect();
    assert!(types.contains(&&COMPRESSED_CERTIFICATE.into()), "{types:?}");
}
