//! The ServerHello (RFC 8446 4.1.3, RFC 5246 7.4.1.3) at the start of a server's flight: what the
//! server chose.

use crate::cursor::Cursor;
use crate::fault::{Fault, Field, Malformed};
use crate::handshake::{MESSAGE_HEADER_LEN, Message, MessageReader, SERVER_HELLO};
use crate::hello::parts::{Few, Many, SUPPORTED_VERSIONS, extension_list, session_id};
use crate::record::{ALERT, CHANGE_CIPHER_SPEC, HANDSHAKE, RecordHeader, VERSION_MAJOR};

/// Longest ServerHello that is read, its four-byte header included. The longest legal one is a
/// HelloRetryRequest with a cookie of 2^16 - 1 bytes; real ones have less than 2 KiB.
pub const SERVER_HELLO_BYTES_MAX: usize = 1 << 16;

/// The `random` that makes a ServerHello a HelloRetryRequest: SHA-256 of "HelloRetryRequest"
/// (RFC 8446 4.1.3).
pub const HELLO_RETRY_REQUEST_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// The whole record that a server in compatibility mode may send before its second flight (RFC 8446
/// D.4). No other record of this type is legal before a ServerHello.
const COMPATIBILITY_RECORD: [u8; 6] = [CHANGE_CIPHER_SPEC, VERSION_MAJOR, 3, 0, 1, 1];

/// Reads a ServerHello from the bytes that a server has sent so far. It removes none.
#[derive(Clone, Debug)]
pub struct ServerHelloReader {
    message: MessageReader,
}

/// The answer of [`ServerHelloReader::feed`]. It depends on the bytes only, not on how they were
/// cut. Once it is not `NeedMore` it does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerPeek {
    /// Not complete before so many more bytes have arrived.
    NeedMore {
        /// Bytes, at least 1.
        at_least: usize,
    },
    /// The first byte, which begins no record that may answer a hello.
    NotTls(u8),
    /// The server sent an alert: it refuses, or only warns before its hello.
    Alert {
        /// Its code.
        description: u8,
        /// The end of its record in what was fed.
        raw_len: usize,
    },
    /// The server's choice.
    ServerHello(ServerHello),
    /// TLS, but no client should accept it.
    Malformed(Malformed),
}

/// The choice of a server. In a HelloRetryRequest: what it will choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerHello {
    /// The negotiated version: `supported_versions`, or without it `legacy_version`.
    pub version: u16,
    /// `legacy_version` as sent.
    pub legacy_version: u16,
    /// `random` as sent.
    pub random: [u8; 32],
    /// The cipher suite chosen.
    pub cipher_suite: u16,
    /// The TLS compression method chosen; 0 is "null", the only one in TLS 1.3.
    pub compression_method: u8,
    /// The end of the last record that holds the hello, in what was fed. The record may hold more
    /// messages, and may be incomplete.
    pub raw_len: usize,
}

impl ServerHello {
    /// True if this asks for a second ClientHello.
    pub fn is_hello_retry_request(&self) -> bool {
        self.random == HELLO_RETRY_REQUEST_RANDOM
    }
}

impl ServerHelloReader {
    /// A reader for one flight.
    pub const fn new() -> Self {
        Self { message: MessageReader::new(SERVER_HELLO, SERVER_HELLO_BYTES_MAX, false) }
    }

    /// Reads `raw`, which is everything received in this flight so far. Each call's `raw` must
    /// extend the last one's.
    pub fn feed(&mut self, raw: &[u8]) -> ServerPeek {
        let skipped = match compatibility_record(raw) {
            Ok(len) => len,
            Err(answer) => return answer,
        };
        let flight = raw.get(skipped..).unwrap_or_default();
        match flight.first() {
            Some(&ALERT) => return alert(flight, skipped),
            Some(&HANDSHAKE) | None => {}
            Some(&other) if skipped == 0 => return ServerPeek::NotTls(other),
            Some(_) => {}
        }
        match self.message.feed(flight) {
            Message::NeedMore { at_least } => ServerPeek::NeedMore { at_least },
            Message::Malformed(malformed) => ServerPeek::Malformed(malformed),
            Message::Whole { message, raw_len } => {
                let body = Cursor::new(&message, MESSAGE_HEADER_LEN);
                match server_hello(body, skipped + raw_len) {
                    Ok(hello) => ServerPeek::ServerHello(hello),
                    Err(malformed) => ServerPeek::Malformed(malformed),
                }
            }
        }
    }
}

impl Default for ServerHelloReader {
    fn default() -> Self {
        Self::new()
    }
}

/// Length of the compatibility record that `raw` starts with; 0 if there is none.
fn compatibility_record(raw: &[u8]) -> Result<usize, ServerPeek> {
    const LEN: usize = COMPATIBILITY_RECORD.len();
    if raw.starts_with(&COMPATIBILITY_RECORD) {
        return Ok(LEN);
    }
    match raw.first() {
        Some(&CHANGE_CIPHER_SPEC) if COMPATIBILITY_RECORD.starts_with(raw) => {
            Err(ServerPeek::NeedMore { at_least: LEN - raw.len() })
        }
        Some(&CHANGE_CIPHER_SPEC) => Err(ServerPeek::Malformed(Malformed {
            at: 0,
            why: Fault::RecordType(CHANGE_CIPHER_SPEC),
        })),
        _ => Ok(0),
    }
}

/// A plaintext alert: level and description (RFC 8446 6) alone in a record. `skipped` bytes came
/// before it.
fn alert(raw: &[u8], skipped: usize) -> ServerPeek {
    const ALERT_LEN: usize = 2;
    let malformed = |why| ServerPeek::Malformed(Malformed { at: 0, why });
    match RecordHeader::split(raw) {
        _ if raw.get(1).is_some_and(|&major| major != VERSION_MAJOR) => {
            malformed(Fault::RecordVersion(raw[1]))
        }
        Some((header, _)) if usize::from(header.len) > ALERT_LEN => {
            malformed(Fault::Trailing(Field::Alert))
        }
        Some((header, _)) if usize::from(header.len) < ALERT_LEN => {
            malformed(Fault::Truncated(Field::Alert))
        }
        Some((header, &[_, description, ..])) => {
            ServerPeek::Alert { description, raw_len: skipped + header.record_len() }
        }
        _ => ServerPeek::NeedMore { at_least: crate::record::HEADER_LEN + ALERT_LEN - raw.len() },
    }
}

fn server_hello(mut body: Cursor<'_>, raw_len: usize) -> Result<ServerHello, Malformed> {
    let legacy_version = body.u16(Field::LegacyVersion)?;
    let random = body.array(Field::Random)?;
    session_id(&mut body)?;
    let cipher_suite = body.u16(Field::CipherSuites)?;
    let compression_method = body.u8(Field::CompressionMethods)?;
    let version = selected_version(extension_list(body)?)?.unwrap_or(legacy_version);
    Ok(ServerHello { version, legacy_version, random, cipher_suite, compression_method, raw_len })
}

/// RFC 8446 4.2.1: `ProtocolVersion selected_version`.
fn selected_version(list: Cursor<'_>) -> Result<Option<u16>, Malformed> {
    let mut few = Few::new();
    match version_in(list, |extension_type| few.insert(extension_type))? {
        Some(version) => Ok(version),
        None => selected_among_many(list),
    }
}

/// Reads a list with too many types for the short list.
#[cold]
fn selected_among_many(list: Cursor<'_>) -> Result<Option<u16>, Malformed> {
    let mut many = Many::new();
    let found = version_in(list, |extension_type| Some(many.insert(extension_type)))?;
    Ok(found.flatten())
}

/// The version, if there is one. The outer `None`: `insert` had no room for another type.
fn version_in(
    mut list: Cursor<'_>,
    mut insert: impl FnMut(u16) -> Option<bool>,
) -> Result<Option<Option<u16>>, Malformed> {
    let mut version = None;
    while !list.is_empty() {
        let start = list;
        let extension_type = list.u16(Field::Extensions)?;
        let field = Field::Extension(extension_type);
        let mut body = list.vec16(field)?;
        match insert(extension_type) {
            None => return Ok(None),
            Some(false) => return Err(start.fault(Fault::DuplicateExtension(extension_type))),
            Some(true) => {}
        }
        if extension_type == SUPPORTED_VERSIONS {
            version = Some(body.u16(field)?);
            body.finish(field)?;
        }
    }
    Ok(Some(version))
}

#[cfg(test)]
mod tests;
