//! Hellos in Initial packets: the RFCs' examples, cuts and orders of all kinds, bad input, and the
//! refusal as a client reads it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bad;
mod clients;
mod export;
mod made;
mod orders;
mod refused;
mod second;
mod vectors;

use eyelet_wire::hello::{Hello, Sni};

use crate::{InitialRead, InitialReader};

/// The limit of the configuration's default.
const HELLO_BYTES_MAX: usize = 16_384;

/// The name in a hello.
fn name(hello: &Hello<'_>) -> String {
    match hello.sni() {
        Sni::Name(name) => name.to_string(),
        other => panic!("{other:?}"),
    }
}

/// A reader that has read this datagram, and what it said.
fn read_first(datagram: &[u8]) -> (InitialReader, InitialRead) {
    let mut reader = InitialReader::new(datagram, HELLO_BYTES_MAX).unwrap();
    let read = reader.feed(datagram);
    (reader, read)
}

/// The parts of a file of hex digits, each after a line that says what it is.
fn hex_parts(text: &str) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for line in text.lines() {
        if line.starts_with('#') {
            parts.push(Vec::new());
            continue;
        }
        let digits = line.as_bytes().chunks(2);
        let bytes = digits.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16));
        parts.last_mut().unwrap().extend(bytes.map(Result::unwrap));
    }
    parts
}
