//! Datagrams that a client could send, made with its keys.

use eyelet_wire::quic::{QuicId, QuicVersion, put_varint};

use super::{hex_parts, read_first};
use crate::InitialRead;
use crate::keys::initial_keys;
use crate::seal::seal;

pub(super) const DCID: &[u8] = b"first-id";

/// The message of the hello in RFC 9001.
pub(super) fn hello_message() -> Vec<u8> {
    let packet = hex_parts(include_str!("bytes/rfc9001.hex")).remove(0);
    match read_first(&packet).1 {
        InitialRead::Hello(hello) => hello.message().to_vec(),
        other => panic!("{other:?}"),
    }
}

/// The hello with a padding extension (RFC 7685), so that it has `len` bytes.
pub(super) fn long_hello(len: usize) -> Vec<u8> {
    let mut message = hello_message();
    let padding = len - message.len() - 4;
    // Header 4, version 2, random 32, no session id 1, two suites 6, compression 2.
    let list_at = 47;
    let list = u16::from_be_bytes(message[list_at..list_at + 2].try_into().unwrap());
    assert_eq!(list_at + 2 + usize::from(list), message.len());
    message.extend([0, 21]);
    message.extend((padding as u16).to_be_bytes());
    message.resize(len, 0);
    message[1..4].copy_from_slice(&((len - 4) as u32).to_be_bytes()[1..]);
    let list = list + 4 + padding as u16;
    message[list_at..list_at + 2].copy_from_slice(&list.to_be_bytes());
    message
}

pub(super) fn crypto(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![6];
    put_varint(at as u64, &mut frame);
    put_varint(bytes.len() as u64, &mut frame);
    frame.extend(bytes);
    frame
}

/// The parts of a datagram that a client chooses.
#[derive(Clone, Copy)]
pub(super) struct Made<'a> {
    pub(super) version: QuicVersion,
    pub(super) dcid: &'a [u8],
    /// Bits of the first byte that are set beside those of the form.
    pub(super) bits: u8,
    pub(super) number: u64,
    pub(super) number_len: usize,
    /// Bytes of the datagram, by padding.
    pub(super) len: usize,
}

pub(super) const USUAL: Made<'static> =
    Made { version: QuicVersion::V1, dcid: DCID, bits: 0, number: 0, number_len: 1, len: 1200 };

impl Made<'_> {
    /// An Initial packet with these frames, and padding.
    pub(super) fn datagram(self, frames: &[u8]) -> Vec<u8> {
        let Self { version, dcid, bits, number, number_len, len } = self;
        let keys = initial_keys(version, &QuicId::new(DCID).unwrap()).unwrap();
        let mut packet = vec![0xc0 | version.initial_bits() | bits | (number_len as u8 - 1)];
        packet.extend(version.number().to_be_bytes());
        for id in [dcid, b"scid"] {
            packet.push(id.len() as u8);
            packet.extend(id);
        }
        packet.push(0);
        // A length of two bytes.
        let rest = len - packet.len() - 2;
        packet.extend((rest as u16 | 0x4000).to_be_bytes());
        let number_at = packet.len();
        packet.extend(&number.to_be_bytes()[8 - number_len..]);
        let mut payload = frames.to_vec();
        payload.resize(rest - number_len - 16, 0);
        assert!(payload.len() >= frames.len(), "the frames fit");
        seal(&keys.remote, packet, number_at, number, payload).unwrap()
    }
}
