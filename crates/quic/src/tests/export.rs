//! A reader goes to another process, and reads there what it would have read here.

use eyelet_wire::quic::QuicFault;

use super::made::{Made, USUAL, crypto, hello_message};
use super::read_first;
use crate::{InitialRead, InitialReader};

const SERVER: &[u8] = b"server-id";
const HELLO_BYTES_MAX: usize = 16 << 10;

fn moved(reader: &InitialReader) -> InitialReader {
    let bytes = reader.export().unwrap();
    let moved = InitialReader::import(&bytes, HELLO_BYTES_MAX).unwrap();
    assert_eq!(moved.export().unwrap(), bytes);
    moved
}

fn next(number: u64, frames: &[u8]) -> Vec<u8> {
    Made { dcid: SERVER, number, ..USUAL }.datagram(frames)
}

#[test]
fn another_hello_is_dropped_in_the_other_process_too() {
    let message = hello_message();
    let (reader, read) = read_first(&USUAL.datagram(&crypto(0, &message)));
    assert!(matches!(read, InitialRead::Hello(_)), "{read:?}");
    let mut reader = moved(&reader);
    let again = reader.feed(&USUAL.datagram(&crypto(0, &message)));
    assert!(matches!(again, InitialRead::Known), "{again:?}");
    let early = reader.feed(&next(1, &[1]));
    assert!(matches!(early, InitialRead::Fault(QuicFault::IdChanged)), "{early:?}");
    reader.note_server_id(SERVER);
    let mut reader = moved(&reader);
    let mut other = message.clone();
    other[60] ^= 1;
    let read = reader.feed(&next(2, &crypto(0, &other)));
    assert!(matches!(read, InitialRead::Fault(QuicFault::Overlap { .. })), "{read:?}");
    // A second hello with the same name passes, and one with another one does not.
    let at = message.windows(11).position(|part| part == b"example.com").unwrap();
    let mut named = message.clone();
    named[at] = b'f';
    let cut = message.len() + 100;
    let both = |second: &[u8]| [&message, second].concat();
    let rest = crypto(cut, &both(&named)[cut..]);
    assert!(matches!(
        reader.feed(&next(3, &crypto(message.len(), &named[..100]))),
        InitialRead::Known
    ));
    assert!(reader.export().is_none(), "one half of a second hello is not checked");
    let read = reader.feed(&next(4, &rest));
    assert!(matches!(read, InitialRead::Fault(QuicFault::OtherName)), "{read:?}");
    let mut reader = moved(&{
        let (mut reader, _) = read_first(&USUAL.datagram(&crypto(0, &message)));
        reader.note_server_id(SERVER);
        reader.feed(&next(1, &crypto(message.len(), &message)));
        reader
    });
    let read = reader.feed(&next(2, &crypto(message.len(), &named)));
    assert!(matches!(read, InitialRead::Fault(QuicFault::Overlap { .. })), "{read:?}");
}

#[test]
fn a_hello_that_has_come_in_part_does_not_move() {
    let (reader, read) = read_first(&USUAL.datagram(&crypto(0, &hello_message()[..100])));
    assert!(matches!(read, InitialRead::NeedMore), "{read:?}");
    assert!(reader.export().is_none());
}

/// An upgrade from any release that wrote the stored bytes needs them to be read.
#[test]
fn a_stored_reader_is_read() {
    let digits: String = include_str!("reader.hex").split_whitespace().collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    let stored: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
    let mut reader = InitialReader::import(&stored, HELLO_BYTES_MAX).unwrap();
    assert!(reader.export().unwrap() == stored, "it is written as it was");
    // Its hello is behind the version, the two ids, a number and its own length.
    let hello = &stored[4 + 1 + USUAL.dcid.len() + 1 + SERVER.len() + 8 + 4..];
    let read = reader.feed(&next(1, &crypto(0, hello)));
    assert!(matches!(read, InitialRead::Known), "{read:?}");
    let mut other = hello.to_vec();
    other[60] ^= 1;
    let read = reader.feed(&next(2, &crypto(0, &other)));
    assert!(matches!(read, InitialRead::Fault(QuicFault::Overlap { .. })), "{read:?}");
}

#[test]
fn bytes_of_no_reader_are_refused() {
    let (mut reader, _) = read_first(&USUAL.datagram(&crypto(0, &hello_message())));
    reader.note_server_id(SERVER);
    let whole = reader.export().unwrap();
    let import = |bytes: &[u8]| InitialReader::import(bytes, HELLO_BYTES_MAX);
    for end in 0..whole.len() {
        assert!(import(&whole[..end]).is_none(), "{end}");
    }
    assert!(import(&[&whole[..], &[0]].concat()).is_none());
    assert!(InitialReader::import(&whole, hello_message().len() - 1).is_none());
    // An unknown version, ids of 21 bytes, a number of 63 bits, a length behind the end.
    let dcid = usize::from(whole[4]);
    let server = 5 + dcid;
    let number = server + 1 + SERVER.len();
    for (at, byte) in [(0, 9), (4, 21), (server, 21), (number, 0x40), (number + 8, 1)] {
        let mut changed = whole.clone();
        changed[at] = byte;
        assert!(import(&changed).is_none(), "{at}");
    }
}
