//! The bytes of both ends of a WebSocket (RFC 6455): a handshake, and binary frames.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Bytes before the payload of a frame: at most so many.
pub const HEAD_BYTES_MAX: usize = 8;
/// Most bytes of a frame's payload.
pub const PAYLOAD_BYTES_MAX: usize = u16::MAX as usize;
/// The fields with which an HTTP/1.1 client asks. Any key will do.
pub const ASKS: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                        Sec-WebSocket-Key: c2ltdWxhdG9yIG9mIEhUVFA=\r\n";

/// The fields with which an upstream answers that key.
pub fn answers(key: &str) -> String {
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let accept = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()));
    format!("Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n")
}

/// A frame with this payload. The mask of a client's is zero, and changes nothing.
pub fn frame(payload: &[u8], is_masked: bool) -> Vec<u8> {
    let mask = if is_masked { 0x80 } else { 0 };
    let mut frame = vec![0x82];
    match payload.len() {
        len @ ..126 => frame.push(mask | len as u8),
        len => {
            frame.push(mask | 126);
            frame.extend_from_slice(&(len as u16).to_be_bytes());
        }
    }
    frame.resize(frame.len() + if is_masked { 4 } else { 0 }, 0);
    frame.extend_from_slice(payload);
    frame
}

/// Returns the bytes of a frame's head, those of its payload, and whether it closes.
pub fn read_head(input: &[u8]) -> Option<(usize, usize, bool)> {
    let [first, second, behind @ ..] = input else { return None };
    let mask_bytes = if second & 0x80 == 0 { 0 } else { 4 };
    let (head, len) = match second & 0x7f {
        127 => panic!("a frame that nobody has said"),
        126 => (4, usize::from(u16::from_be_bytes(*behind.first_chunk()?))),
        len => (2, usize::from(len)),
    };
    (input.len() >= head + mask_bytes).then_some((head + mask_bytes, len, first & 0xf == 8))
}
