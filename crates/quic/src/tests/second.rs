//! The datagrams of a client after its server's answer: to the server's id, and a second hello.

use eyelet_wire::quic::{QuicFault, QuicVersion};

use super::made::{Made, USUAL, crypto, hello_message};
use super::read_first;
use crate::{InitialRead, InitialReader};

const SERVER: &[u8] = b"server-id";

fn answered(message: &[u8]) -> InitialReader {
    let (mut reader, read) = read_first(&USUAL.datagram(&crypto(0, message)));
    assert!(matches!(read, InitialRead::Hello(_)), "{read:?}");
    reader.note_server_id(SERVER);
    reader
}

fn next(number: u64, frames: &[u8]) -> Vec<u8> {
    Made { dcid: SERVER, number, ..USUAL }.datagram(frames)
}

#[test]
fn the_servers_id_is_accepted_once_it_is_known() {
    let message = hello_message();
    let (mut unanswered, _) = read_first(&USUAL.datagram(&crypto(0, &message)));
    let read = unanswered.feed(&next(1, &[1]));
    assert!(matches!(read, InitialRead::Fault(QuicFault::IdChanged)), "{read:?}");
    let mut reader = answered(&message);
    for (number, frames) in [(1, vec![1]), (2, crypto(0, &message)), (3, vec![0x1c, 11, 0, 0])] {
        let read = reader.feed(&next(number, &frames));
        assert!(matches!(read, InitialRead::Known), "{number}: {read:?}");
    }
    let mut other = message;
    other[60] ^= 1;
    let read = reader.feed(&next(4, &crypto(0, &other)));
    assert!(matches!(read, InitialRead::Fault(QuicFault::Overlap { .. })), "{read:?}");
    let read = reader.feed(&Made { dcid: b"another-id", ..USUAL }.datagram(&[1]));
    assert!(matches!(read, InitialRead::Fault(QuicFault::IdChanged)), "{read:?}");
}

#[test]
fn a_second_hello_passes_only_with_the_first_ones_name() {
    let message = hello_message();
    let name_at = message.windows(11).position(|part| part == b"example.com");
    let mut other = message.clone();
    other[name_at.expect("a name")] = b'f';
    let second = |hello: &[u8]| [&message, hello].concat();
    for (hello, passes) in [(&message, true), (&other, false)] {
        let both = second(hello);
        let (cut, end) = (message.len() + 100, both.len());
        let mut reader = answered(&message);
        let read = reader.feed(&next(1, &crypto(cut, &both[cut..end])));
        assert!(matches!(read, InitialRead::Known), "{read:?}");
        // The end of the first one is in it, too.
        let read = reader.feed(&next(2, &crypto(200, &both[200..cut])));
        match passes {
            true => assert!(matches!(read, InitialRead::Known), "{read:?}"),
            false => {
                assert!(matches!(read, InitialRead::Fault(QuicFault::OtherName)), "{read:?}");
            }
        }
        let third = reader.feed(&next(3, &crypto(end, &message)));
        assert!(matches!(third, InitialRead::Fault(QuicFault::Hello(_))), "{third:?}");
    }
    // Before the server has answered there is none.
    let (mut early, _) = read_first(&USUAL.datagram(&crypto(0, &message)));
    let read = early.feed(&Made { number: 1, ..USUAL }.datagram(&crypto(message.len(), &message)));
    assert!(matches!(read, InitialRead::Fault(QuicFault::Hello(_))), "{read:?}");
}

/// Compatible version negotiation (RFC 9368): the server answers in the other version, and the
/// client goes on in that one, with one stream and keys from its first id.
#[test]
fn the_server_may_choose_the_other_version() {
    let message = hello_message();
    for (first, chosen) in [(QuicVersion::V1, QuicVersion::V2), (QuicVersion::V2, QuicVersion::V1)]
    {
        let usual = Made { version: first, ..USUAL };
        let chosen = Made { version: chosen, ..USUAL };
        let (mut reader, read) = read_first(&usual.datagram(&crypto(0, &message)));
        assert!(matches!(read, InitialRead::Hello(_)), "{read:?}");
        let before = reader.held_bytes();
        let early = reader.feed(&Made { number: 1, ..chosen }.datagram(&[1]));
        assert!(matches!(early, InitialRead::Fault(QuicFault::VersionChanged)), "{early:?}");
        reader.note_server_id(SERVER);
        let next = |number, frames: &[u8]| Made { dcid: SERVER, number, ..chosen }.datagram(frames);
        for (number, frames) in [(1, vec![1]), (2, crypto(0, &message))] {
            let read = reader.feed(&next(number, &frames));
            assert!(matches!(read, InitialRead::Known), "{number}: {read:?}");
        }
        assert!(reader.held_bytes() > before, "its keys count");
        let mut other = message.clone();
        other[60] ^= 1;
        let read = reader.feed(&next(3, &crypto(0, &other)));
        assert!(matches!(read, InitialRead::Fault(QuicFault::Overlap { .. })), "{read:?}");
        // What was sent before the answer may still be on its way.
        let read = reader.feed(&Made { number: 1, ..usual }.datagram(&crypto(0, &message)));
        assert!(matches!(read, InitialRead::Known), "{read:?}");
    }
}
