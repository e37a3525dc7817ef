//! The few frames of HTTP/2 that an idle client needs, written apart from the crate under test:
//! its opening, a GET, and the frames of the answer (RFC 9113).

use std::io;

use crate::client;
use crate::lab::host_name;

/// The first bytes of a connection: the preface and SETTINGS that leave every default.
pub fn opening() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    push(&mut bytes, SETTINGS, 0, 0, &[]);
    bytes
}

/// A GET for `/` on this stream. Its fields are in no table, except the static one.
pub fn request(stream: u32) -> Vec<u8> {
    let host = host_name(0);
    // `:method: GET`, `:scheme: https`, `:path: /`, and `:authority` as a literal (RFC 7541).
    let mut block = vec![0x82, 0x87, 0x84, 0x01, host.len() as u8];
    block.extend_from_slice(host.as_bytes());
    let mut bytes = Vec::new();
    push(&mut bytes, HEADERS, END_HEADERS | END_STREAM, stream, &block);
    bytes
}

/// An answer as it comes.
#[derive(Default)]
pub struct ReplyFrames {
    /// Bytes of a frame that is not whole.
    unread: Vec<u8>,
    is_ok: bool,
    body: Vec<u8>,
    is_whole: bool,
}

impl ReplyFrames {
    /// Takes bytes of the connection. Returns the acknowledgements that they ask for.
    ///
    /// # Errors
    /// The server ends the connection or the stream.
    pub fn take(&mut self, bytes: &[u8], stream: u32) -> io::Result<Vec<u8>> {
        self.unread.extend_from_slice(bytes);
        let mut replies = Vec::new();
        while let Some(header) = self.unread.first_chunk::<HEADER_BYTES>() {
            let [a, b, c, kind, flags, id @ ..] = *header;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let Some(payload) = self.unread.get(HEADER_BYTES..HEADER_BYTES + length) else { break };
            let is_ours = u32::from_be_bytes(id) == stream;
            match kind {
                HEADERS if is_ours => self.is_ok |= says_ok(payload),
                DATA if is_ours => self.body.extend_from_slice(payload),
                SETTINGS if flags & ACK == 0 => push(&mut replies, SETTINGS, ACK, 0, &[]),
                PING if flags & ACK == 0 => push(&mut replies, PING, ACK, 0, payload),
                GOAWAY | RST_STREAM => return Err(io::ErrorKind::ConnectionAborted.into()),
                _ => {}
            }
            self.is_whole |= is_ours && matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0;
            self.unread.drain(..HEADER_BYTES + length);
        }
        Ok(replies)
    }

    /// True if the answer has ended.
    ///
    /// # Errors
    /// It is not the backend's.
    pub fn is_whole(&self) -> io::Result<bool> {
        let is_right = self.is_ok && self.body == client::SMALL_BODY;
        match self.is_whole && !is_right {
            true => Err(io::Error::other("another answer than the backend's")),
            false => Ok(self.is_whole),
        }
    }
}

/// True if `:status: 200` of the static table stands first, or behind a new size of the table
/// (RFC 7541 section 6.3).
fn says_ok(block: &[u8]) -> bool {
    match block {
        [0x88, ..] => true,
        [0x3f, size @ ..] => {
            let more = size.iter().take_while(|byte| **byte & 0x80 != 0).count();
            size.get(more + 1) == Some(&0x88)
        }
        [0x20..0x3f, field, ..] => *field == 0x88,
        _ => false,
    }
}

fn push(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
}

const HEADER_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
