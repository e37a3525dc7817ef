//! The hello reader: it tells TLS from other protocols, finds the message in its records, and
//! parses it.

use super::peek::Peek;
use super::spans::Parts;
use super::view::{Hello, Transport};
use super::{not_tls, parse};
use crate::fault::{Fault, Malformed};
use crate::handshake::{CLIENT_HELLO, MESSAGE_HEADER_LEN, Message, MessageReader, message_bytes};
use crate::record::HEADER_LEN;
use alloc::borrow::Cow;

/// Reads a ClientHello from the bytes received so far. It removes none: the upstream gets the bytes
/// that were read.
///
/// The reader keeps its progress, so that reads of one byte cost O(n) in all. It owns no buffer.
/// The hello may lie in any number of records of at most 2^14 bytes. If there are several, the
/// [`Hello`] holds a contiguous copy of at most `hello_bytes_max` bytes while it lives.
#[derive(Clone, Debug)]
pub struct HelloReader {
    message: MessageReader,
}

impl HelloReader {
    /// A reader for one connection.
    ///
    /// `hello_bytes_max` counts the handshake message with its four-byte header. It also bounds
    /// what must be buffered, see [`raw_bytes_max`].
    pub const fn new(hello_bytes_max: usize) -> Self {
        Self { message: MessageReader::new(CLIENT_HELLO, hello_bytes_max, true) }
    }

    /// Reads `raw`, which is everything received so far, from the first byte on. Each call's `raw`
    /// must extend the last one's.
    pub fn feed<'a>(&mut self, raw: &'a [u8]) -> Peek<'a> {
        if let Some(answer) = not_tls::classify(raw) {
            return answer;
        }
        match self.message.feed(raw) {
            Message::NeedMore { at_least } => Peek::NeedMore { at_least },
            Message::Malformed(malformed) => Peek::Malformed(malformed),
            Message::Whole { message, raw_len } => {
                // Filled in place: each move would cost a tenth of the reading.
                let mut parts = Parts::default();
                match parse::client_hello(&message, &mut parts) {
                    Ok(()) => Peek::Hello(Hello::new(message, Transport::Tcp, raw_len, parts)),
                    Err(malformed) => Peek::Malformed(malformed),
                }
            }
        }
    }
}

/// Reads a ClientHello without records, as QUIC carries it (RFC 9001 4). `stream` is the begin of
/// the CRYPTO stream, as far as it has no gap. Never [`Peek::NotTls`].
pub fn peek_message(stream: &[u8], hello_bytes_max: usize) -> Peek<'_> {
    let len = match message_bytes(CLIENT_HELLO, hello_bytes_max, stream) {
        Ok(len) => len.unwrap_or(MESSAGE_HEADER_LEN),
        Err(malformed) => return Peek::Malformed(malformed),
    };
    if stream.len() < len {
        return Peek::NeedMore { at_least: len - stream.len() };
    }
    if stream.len() > len {
        return Peek::Malformed(Malformed { at: len as u32, why: Fault::NotAligned });
    }
    let mut parts = Parts::default();
    match parse::client_hello(stream, &mut parts) {
        Ok(()) => Peek::Hello(Hello::new(Cow::Borrowed(stream), Transport::Quic, 0, parts)),
        Err(malformed) => Peek::Malformed(malformed),
    }
}

/// Most bytes that a hello of `hello_bytes_max` can take on the wire: with a record header for
/// every byte, 6 bytes a byte. A caller with a smaller buffer must refuse what does not fit.
pub const fn raw_bytes_max(hello_bytes_max: usize) -> usize {
    hello_bytes_max.saturating_mul(HEADER_LEN + 1)
}
