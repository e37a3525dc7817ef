//! Frames of HTTP/2 by hand (RFC 9113 section 4.1), also those that no library would send. Nothing
//! is checked.

use std::io::Read;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// The first bytes of a client.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut out = length[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// A frame as it came.
#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// The next frame; `None` at the end.
pub fn next(from: &mut impl Read) -> Option<Frame> {
    let mut head = [0; 9];
    from.read_exact(&mut head).ok()?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    from.read_exact(&mut payload).ok()?;
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    Some(Frame { kind: head[3], flags: head[4], stream, payload })
}

/// The status that a response's header block begins with, as the edge writes it.
pub fn status(block: &[u8]) -> Option<u16> {
    match without_sizes(block) {
        // Indexed fields of the static table (RFC 7541 A).
        [0x88, ..] => Some(200),
        [0x8c, ..] => Some(400),
        // A literal.
        [0x48, 0x03, b'4', b'3', b'1', ..] => Some(431),
        _ => None,
    }
}

/// A header block behind what it says of the table's size (RFC 7541 6.3).
fn without_sizes(mut block: &[u8]) -> &[u8] {
    while let [first @ 0x20..=0x3f, rest @ ..] = block {
        let more = rest.iter().take_while(|byte| **byte >= 0x80).count() + 1;
        block = if *first == 0x3f { &rest[more..] } else { rest };
    }
    block
}

/// A literal field of RFC 7541 6.2.1, put into the dynamic table, without Huffman coding.
pub fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut out = vec![0x40];
    for text in [name, value] {
        integer(&mut out, text.len());
        out.extend(text.as_bytes());
    }
    out
}

/// RFC 7541 5.1 with a prefix of seven bits.
fn integer(out: &mut Vec<u8>, value: usize) {
    if value < 127 {
        return out.push(u8::try_from(value).unwrap());
    }
    out.push(127);
    let mut rest = value - 127;
    while rest >= 128 {
        out.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    out.push(u8::try_from(rest).unwrap());
}

/// GET https://app.test with a path.
pub fn get(path: &str) -> Vec<u8> {
    // :method GET and :scheme https are in the static table.
    let mut block = vec![0x82, 0x87];
    block.extend(literal(":path", path));
    block.extend(literal(":authority", "app.test"));
    block
}
