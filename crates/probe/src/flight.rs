//! A server's first answer to a hello of ours: what it chose, its alert, or what else came.

use std::io::{self, ErrorKind, Read, Write};
use std::thread;
use std::time::Duration;

use eyelet_wire::alert::AlertDescription;
use eyelet_wire::record::RecordHeader;
use eyelet_wire::server_hello::{ServerHello, ServerHelloReader, ServerPeek};

use crate::hello::ClientHello;
use crate::target::ProbeTarget;

/// Most bytes of an answer that are read: a ServerHello has less than 2 KiB.
const ANSWER_BYTES_MAX: usize = 1 << 17;
/// A record of a hello that is not cut.
pub const WHOLE: usize = 1 << 14;

/// Between two segments of a hello that is cut: they arrive apart on a path that is less uneven.
const SEGMENT_PAUSE: Duration = Duration::from_millis(20);

/// The reply of a server.
#[derive(Clone, Debug)]
pub enum ServerReply {
    /// It chose. The extensions are by number.
    Hello(ServerHello, Vec<(u16, Vec<u8>)>),
    Alert(u8),
    /// Bytes that are not TLS; the first ones.
    NotTls(Vec<u8>),
    /// TLS that no client should accept, and why.
    Malformed(String),
    /// It closed the connection without an answer.
    Closed,
    /// It never answered.
    Silent,
    /// The socket failed.
    Failed(ErrorKind),
}

impl ServerReply {
    /// Returns the reply as a person reads it.
    pub fn text(&self) -> String {
        match self {
            Self::Hello(hello, _) => format!("it chose version {:#06x}", hello.version),
            Self::Alert(code) => match AlertDescription::from_code(*code) {
                Some(alert) => format!("alert {alert}"),
                None => format!("alert {code}"),
            },
            Self::NotTls(first) => format!("not TLS: \"{}\"", first.escape_ascii()),
            Self::Malformed(why) => format!("malformed TLS: {why}"),
            Self::Closed => "it closed the connection without an answer".into(),
            Self::Silent => "it did not answer in time".into(),
            Self::Failed(kind) => format!("the connection failed: {kind}"),
        }
    }

    /// True if a TLS server gave it.
    pub const fn is_tls(&self) -> bool {
        matches!(self, Self::Hello(..) | Self::Alert(_))
    }
}

/// Sends a hello in records of at most `piece` bytes, and in segments of at most `segment` bytes
/// where it is given, and reads the answer.
pub fn ask(
    target: &ProbeTarget,
    hello: &ClientHello<'_>,
    piece: usize,
    segment: usize,
) -> ServerReply {
    match exchange(target, hello, piece, segment) {
        Ok(answer) => answer,
        Err(error) => match error.kind() {
            ErrorKind::TimedOut => ServerReply::Silent,
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => ServerReply::Closed,
            kind => ServerReply::Failed(kind),
        },
    }
}

fn exchange(
    target: &ProbeTarget,
    hello: &ClientHello<'_>,
    piece: usize,
    segment: usize,
) -> io::Result<ServerReply> {
    let mut stream = target.connect()?;
    // Nagle's algorithm is off, so each write is a segment.
    for (at, part) in hello.records(piece).chunks(segment).enumerate() {
        if at > 0 {
            thread::sleep(SEGMENT_PAUSE);
        }
        stream.write_all(part)?;
    }
    let (mut raw, mut reader) = (Vec::new(), ServerHelloReader::new());
    let mut buffer = [0; 4096];
    loop {
        match reader.feed(&raw) {
            ServerPeek::ServerHello(hello) => {
                return Ok(ServerReply::Hello(hello, extensions(&raw)));
            }
            // The alert unrecognized_name may be a warning before the hello (RFC 6066 section 3).
            ServerPeek::Alert { raw_len, .. } if raw.get(5) == Some(&1) => {
                raw.drain(..raw_len);
                reader = ServerHelloReader::new();
                continue;
            }
            ServerPeek::Alert { description, .. } => return Ok(ServerReply::Alert(description)),
            ServerPeek::NotTls(_) => {
                raw.truncate(40);
                return Ok(ServerReply::NotTls(raw));
            }
            ServerPeek::Malformed(why) => return Ok(ServerReply::Malformed(why.to_string())),
            ServerPeek::NeedMore { .. } => {}
        }
        match stream.read(&mut buffer)? {
            0 => return Ok(ServerReply::Closed),
            _ if raw.len() > ANSWER_BYTES_MAX => {
                return Ok(ServerReply::Malformed("too long".into()));
            }
            more => raw.extend_from_slice(&buffer[..more]),
        }
    }
}

/// The extensions of the ServerHello at the start of a flight that the strict reader has accepted.
fn extensions(mut raw: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut stream = Vec::new();
    while let Some((header, rest)) = RecordHeader::split(raw) {
        let (payload, later) = rest.split_at(rest.len().min(usize::from(header.len)));
        if header.content_type == eyelet_wire::record::HANDSHAKE {
            stream.extend_from_slice(payload);
        }
        raw = later;
    }
    walk(&stream).unwrap_or_default()
}

/// Walks one ServerHello: message header 4, version 2, random 32, session id, suite 2, method 1.
fn walk(stream: &[u8]) -> Option<Vec<(u16, Vec<u8>)>> {
    let end = 4 + usize::from(u16::from_be_bytes([*stream.get(2)?, *stream.get(3)?]));
    let body = stream.get(..end)?;
    let session = usize::from(*body.get(38)?);
    let mut list = body.get(39 + session + 3 + 2..).unwrap_or_default();
    let mut found = Vec::new();
    while let [a, b, c, d, rest @ ..] = list {
        let (value, later) = rest.split_at_checked(usize::from(u16::from_be_bytes([*c, *d])))?;
        found.push((u16::from_be_bytes([*a, *b]), value.to_vec()));
        list = later;
    }
    Some(found)
}
