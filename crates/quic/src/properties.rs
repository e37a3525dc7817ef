//! The properties that tests and a fuzzer assert of any datagrams: nothing panics, bounds hold, one
//! hello comes.

use core::ops::Range;

use eyelet_wire::quic::{PIECES_MAX, QuicAnswer, QuicId, QuicVersion, packets, put_varint};

use crate::keys::initial_keys;
use crate::seal::seal;
use crate::{DATAGRAMS_MAX, InitialRead, InitialReader, refusal};

const HELLO_BYTES_MAX: usize = 16_384;
/// Both streams. A vector that grows has up to twice its length.
const STREAMS_BYTES_MAX: usize = 2 * 2 * (HELLO_BYTES_MAX + PIECES_MAX * size_of::<Range<usize>>());
/// Beside them the keys of two versions.
const HELD_BYTES_MAX: usize = STREAMS_BYTES_MAX + (4 << 10);
/// An answer is at most three times as long as the shortest first datagram (RFC 9000 section 8.1).
const ANSWER_BYTES_MAX: usize = 3 * 1_200;
const DCID: &[u8] = b"first-id";
const SERVER_ID: &[u8] = b"server-id";

/// A step of a client. In bytes: one that says which, then [`Step::read`].
enum Step {
    /// A datagram as it is.
    Sends(Vec<u8>),
    /// A packet that is sealed with the client's keys, so that a fuzzer gets behind them. It joins
    /// the next datagram.
    Seals(Vec<u8>),
    /// The server has answered.
    IsAnswered,
}

impl Step {
    /// Bits of the first byte: the kind, then whether a packet is of version 2, is addressed to
    /// the server's id, and is padded.
    const SEALS: u8 = 1;
    const ANSWERED: u8 = 2;
    const V2: u8 = 4;
    const TO_SERVER: u8 = 8;
    const PADDED: u8 = 16;

    /// Reads a step. `None`: the bytes are over.
    fn read(rest: &mut &[u8]) -> Option<Self> {
        let flags = *rest.split_off_first()?;
        if flags & Self::ANSWERED != 0 {
            return Some(Self::IsAnswered);
        }
        let number = match flags & Self::SEALS {
            0 => None,
            _ => Some(*rest.split_off_first()?),
        };
        let len = u16::from_be_bytes([*rest.split_off_first()?, *rest.split_off_first()?]);
        let len = usize::from(len).min(rest.len());
        let bytes = rest.split_off(..len)?.to_vec();
        Some(match number {
            None => Self::Sends(bytes),
            Some(number) => Self::Seals(sealed(flags, number, bytes).unwrap_or_default()),
        })
    }
}

/// An Initial packet with these frames. The upper half of `number` is in its reserved bits.
fn sealed(flags: u8, number: u8, mut frames: Vec<u8>) -> Option<Vec<u8>> {
    let version = match flags & Step::V2 {
        0 => QuicVersion::V1,
        _ => QuicVersion::V2,
    };
    let dcid = if flags & Step::TO_SERVER == 0 { DCID } else { SERVER_ID };
    if flags & Step::PADDED != 0 {
        frames.resize(frames.len().max(1_200), 0);
    }
    let mut packet = vec![0xc0 | version.initial_bits() | (number >> 4 & 0x0c)];
    packet.extend(version.number().to_be_bytes());
    for id in [dcid, b"scid"] {
        packet.push(id.len() as u8);
        packet.extend(id);
    }
    put_varint(0, &mut packet);
    put_varint((1 + frames.len() + 16) as u64, &mut packet);
    let number_at = packet.len();
    packet.push(number);
    let keys = initial_keys(version, &QuicId::new(DCID)?)?.remote;
    seal(&keys, packet, number_at, number.into(), frames)
}

/// Feeds a reader the datagrams that these bytes say. Returns the message of the hello, of which
/// there is one at most.
///
/// # Panics
/// A property does not hold.
pub fn datagrams_are_read(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let (mut reader, mut hello, mut pending) = (None, None::<Vec<u8>>, Vec::new());
    let mut incomplete = 0;
    while let Some(step) = Step::read(&mut bytes) {
        let datagram = match step {
            Step::Seals(packet) => {
                pending.extend(packet);
                continue;
            }
            Step::IsAnswered => {
                if let Some(reader) = &mut reader {
                    InitialReader::note_server_id(reader, SERVER_ID);
                }
                continue;
            }
            Step::Sends(bytes) => [std::mem::take(&mut pending), bytes].concat(),
        };
        let reader = match &mut reader {
            Some(reader) => reader,
            None => match InitialReader::new(&datagram, HELLO_BYTES_MAX) {
                Ok(new) => reader.insert(new),
                Err(fault) => {
                    assert!(!fault.to_string().is_empty());
                    continue;
                }
            },
        };
        match reader.feed(&datagram) {
            InitialRead::NeedMore => {
                assert!(hello.is_none(), "the hello was read");
                incomplete += 1;
                assert!(incomplete <= DATAGRAMS_MAX, "{incomplete} datagrams");
            }
            InitialRead::Hello(read) => {
                assert!(hello.is_none(), "a second hello");
                assert!(read.message().len() <= HELLO_BYTES_MAX);
                hello = Some(read.message().to_vec());
            }
            InitialRead::Known => assert!(hello.is_some(), "no hello was read"),
            InitialRead::Fault(fault) => {
                if let QuicAnswer::Close(code) = fault.answer() {
                    let ids = (reader.client_dcid(), QuicId::new(b"scid"));
                    let (dcid, Some(scid)) = ids else { continue };
                    let answer = refusal(reader.version(), dcid, &scid, code).unwrap_or_default();
                    assert!((1..=ANSWER_BYTES_MAX).contains(&answer.len()), "{code:#x}");
                    assert!(packets(&answer).all(|packet| packet.is_ok()), "{code:#x}");
                }
            }
        }
        assert!(reader.held_bytes() <= HELD_BYTES_MAX, "{} bytes", reader.held_bytes());
    }
    hello
}
