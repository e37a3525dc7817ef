//! Reading what comes before a decision: the PROXY header of trusted sources, and the hello.
//! It must not know what is decided by it.

use std::borrow::Cow;

use aws_lc_rs::digest;
use eyelet_wire::hello::{Hello, HelloReader, Peek, Sni};
use eyelet_wire::ja4::Ja4;
use eyelet_wire::proxy::{self, Command, ProxyPeek};

use crate::active::{Active, Stop, client_failure};
use crate::story::{End, Story, TlsCompression};

/// Bytes asked for at once: a hello is one or two segments, an early upload need not be read.
const READ_BYTES: usize = 16 << 10;

/// Protocols of one hello that the access line keeps.
const ALPN_LOGGED_MAX: usize = 16;

/// Reads the PROXY header where the client is a source that must send one; what came behind it.
pub async fn proxy_header(active: &Active, story: &mut Story) -> Result<Vec<u8>, End> {
    let mut raw = Vec::new();
    let listener = &active.worker.edge.config.listeners[usize::from(story.decided.listener)];
    let client = story.client.ip();
    if !listener.proxy_protocol_from.iter().any(|net| net.contains(&client)) {
        return Ok(raw);
    }
    loop {
        match proxy::read(&raw) {
            ProxyPeek::NeedMore { .. } => {
                more(active, &mut raw, "the PROXY header").await?;
            }
            ProxyPeek::NotProxy => return Err(End::failed("no PROXY header")),
            ProxyPeek::Malformed(fault) => {
                return Err(End::failed(format!("malformed PROXY header: {fault}")));
            }
            ProxyPeek::Header(header) => {
                if let Command::Proxy { client, destination } = header.command {
                    story.client = client;
                    story.decided.destination = Some(destination);
                }
                raw.drain(..header.len);
                return Ok(raw);
            }
        }
    }
}

/// Reads until the hello is complete, or can be told not to become one.
pub async fn hello(
    active: &Active,
    reader: &mut HelloReader,
    raw: &mut Vec<u8>,
) -> Result<(), End> {
    while let Peek::NeedMore { .. } = reader.feed(raw) {
        more(active, raw, "the hello").await?;
    }
    Ok(())
}

/// Reads more of what comes first; `of` what, as the access line has it.
pub async fn more(active: &Active, raw: &mut Vec<u8>, of: &str) -> Result<(), End> {
    let how_far = |raw: &[u8]| if raw.is_empty() { "before" } else { "in the middle of" };
    match active.recv(raw, READ_BYTES).await {
        Ok(0) => Err(End::failed(format!("client closed {} {of}", how_far(raw)))),
        Ok(_) => Ok(()),
        Err(Stop::Late) => Err(End::failed(format!("hello_timeout {} {of}", how_far(raw)))),
        Err(Stop::Drained) => Err(End::failed(format!("drained {} {of}", how_far(raw)))),
        Err(Stop::Io(error)) => Err(End::failed(client_failure(&error, of))),
    }
}

/// What the access line keeps of a hello.
pub fn tell(story: &mut Story, hello: &Hello<'_>) {
    if let Sni::Name(name) = hello.sni() {
        story.decided.sni = Some(name.as_str().into());
    }
    story.decided.tls_version = Some(hello.version_max());
    story.decided.tls_compression = Some(match hello.offers_compression() {
        true => TlsCompression::Offered,
        false => TlsCompression::None,
    });
    let alpn: Box<[Cow<'static, str>]> = hello
        .alpn()
        .take(ALPN_LOGGED_MAX)
        .map(|name| match name.as_ref() {
            b"h2" => "h2".into(),
            b"http/1.1" => "http/1.1".into(),
            other => String::from_utf8_lossy(other).into_owned().into(),
        })
        .collect();
    story.decided.alpn = (!alpn.is_empty()).then_some(alpn);
}

/// The fingerprint of a hello.
pub fn ja4(hello: &Hello<'_>) -> Ja4 {
    eyelet_wire::ja4::ja4(hello, |bytes| {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
        hash
    })
}
