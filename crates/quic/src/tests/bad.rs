//! Datagrams that clients should not send, and hellos of unusual form.

use eyelet_wire::hello::{Fault, Malformed};
use eyelet_wire::quic::{QuicAnswer, QuicFault, QuicVersion};

use super::made::{Made, USUAL, crypto, hello_message, long_hello};
use super::{HELLO_BYTES_MAX, name, read_first};
use crate::{DATAGRAMS_MAX, InitialRead, InitialReader};

fn begin(datagram: &[u8]) -> Result<InitialReader, QuicFault> {
    InitialReader::new(datagram, HELLO_BYTES_MAX)
}

fn fault(read: InitialRead) -> QuicFault {
    match read {
        InitialRead::Fault(fault) => fault,
        other => panic!("{other:?}"),
    }
}

/// A reader that has half the hello.
fn half_read(message: &[u8]) -> InitialReader {
    let (reader, read) = read_first(&USUAL.datagram(&crypto(0, &message[..100])));
    assert!(matches!(read, InitialRead::NeedMore), "{read:?}");
    reader
}

#[test]
fn what_begins_no_connection() {
    let whole = USUAL.datagram(&crypto(0, &hello_message()));
    let with = |at: usize, byte: u8| {
        let mut other = whole.clone();
        other[at] = byte;
        begin(&other).err()
    };
    assert_eq!(begin(&[]).err(), Some(QuicFault::TruncatedPacket));
    assert_eq!(begin(&whole[..1199]).err(), Some(QuicFault::TruncatedPacket));
    assert_eq!(with(5, 21), Some(QuicFault::ConnectionIdTooLong(21)));
    assert_eq!(with(1, 0x1a), Some(QuicFault::OtherVersion(0x1a00_0001)));
    assert_eq!(with(4, 0), Some(QuicFault::NotInitial), "Version Negotiation");
    for first in [0xe0, 0xf0, 0x40] {
        assert_eq!(with(0, first), Some(QuicFault::NotInitial), "{first:#x}");
    }
    assert_eq!(with(0, 0xd0), None, "0-RTT");
}

#[test]
fn datagrams_that_are_dropped_change_nothing() {
    let message = hello_message();
    let rest = crypto(100, &message[100..]);
    let mut forged = USUAL.datagram(&rest);
    forged[700] ^= 1;
    let other_id = Made { dcid: b"other-id", ..USUAL }.datagram(&rest);
    let other_version = Made { version: QuicVersion::V2, ..USUAL }.datagram(&rest);
    let mut unknown = other_version.clone();
    unknown[1] = 9;
    let mut long_id = other_id.clone();
    long_id[5] = 200;
    let two = [Made { len: 700, ..USUAL }.datagram(&rest), other_id.clone()].concat();
    for (datagram, expected) in [
        (forged, QuicFault::NotAuthentic),
        (other_id, QuicFault::IdChanged),
        (other_version, QuicFault::VersionChanged),
        (unknown, QuicFault::VersionChanged),
        (long_id, QuicFault::ConnectionIdTooLong(200)),
        (Made { len: 1199, ..USUAL }.datagram(&rest), QuicFault::ShortDatagram { len: 1199 }),
        (two, QuicFault::MixedIds),
        (USUAL.datagram(&[0x1c, 0x0b, 0, 0]), QuicFault::Closed { code: 11 }),
    ] {
        let mut reader = half_read(&message);
        let found = fault(reader.feed(&datagram));
        assert_eq!((found, found.answer()), (expected, QuicAnswer::Drop));
        let read = reader.feed(&Made { number: 1, ..USUAL }.datagram(&rest));
        let InitialRead::Hello(hello) = read else { panic!("after {expected}: {read:?}") };
        assert_eq!(name(&hello), "example.com");
    }
}

#[test]
fn faults_that_end_the_connection() {
    let message = hello_message();
    let mut other = message.clone();
    other[60] ^= 1;
    let next = Made { number: 1, ..USUAL };
    let behind = Malformed { at: message.len() as u32, why: Fault::NotAligned };
    let is_server = Malformed { at: 0, why: Fault::MessageType(2) };
    for (datagram, expected, code) in [
        (next.datagram(&[0x08, 0, 1, 2]), QuicFault::FrameType(0x08), 0x0a),
        (next.datagram(&[0x1e]), QuicFault::FrameType(0x1e), 0x0a),
        (next.datagram(&[6, 0, 0x7f, 0xff]), QuicFault::FrameForm(6), 0x07),
        (Made { bits: 0x08, ..next }.datagram(&[1]), QuicFault::ReservedBits, 0x0a),
        (next.datagram(&crypto(50, &other[50..200])), QuicFault::Overlap { at: 50 }, 0x0a),
        (next.datagram(&crypto(20_000, b"x")), QuicFault::CryptoTooFar { end: 20_001 }, 0x0d),
        (next.datagram(&crypto(message.len(), b"x")), QuicFault::Hello(behind), 0x010a),
    ] {
        let mut reader = half_read(&message);
        let found = fault(reader.feed(&datagram));
        assert_eq!((found, found.answer()), (expected, QuicAnswer::Close(code)));
    }
    // Also after the hello: the server may have lost what was read.
    let (mut reader, _) = read_first(&USUAL.datagram(&crypto(0, &message)));
    let second = fault(reader.feed(&next.datagram(&crypto(0, &other))));
    assert_eq!(second, QuicFault::Overlap { at: 0 });
    let (_, read) = read_first(&USUAL.datagram(&crypto(0, &[2, 0, 0, 1])));
    assert_eq!(fault(read), QuicFault::Hello(is_server));
    // Padding is a frame, so a payload without any has no byte.
    let empty = [Made { len: 36 + 21, ..USUAL }.datagram(&[]), vec![0; 1200]].concat();
    let read = read_first(&empty).1;
    assert!(matches!(read, InitialRead::NeedMore), "only padding: {read:?}");
}

#[test]
fn early_data_may_come_first() {
    let message = hello_message();
    let mut zero_rtt = vec![0xd0, 0, 0, 0, 1, 8];
    zero_rtt.extend(super::made::DCID);
    zero_rtt.extend([0, 0x44, 0]);
    zero_rtt.resize(zero_rtt.len() + 0x400, 7);
    let (mut reader, read) = read_first(&zero_rtt);
    assert!(matches!(read, InitialRead::NeedMore), "{read:?}");
    let whole = [USUAL.datagram(&crypto(0, &message)), zero_rtt].concat();
    assert!(matches!(reader.feed(&whole), InitialRead::Hello(_)));
}

#[test]
fn a_hello_of_16_kib_in_30_datagrams() {
    let message = long_hello(HELLO_BYTES_MAX);
    let part = message.len().div_ceil(30);
    let parts: Vec<_> = message.chunks(part).enumerate().collect();
    assert_eq!(parts.len(), 30);
    // Every other one first.
    let order = parts.iter().step_by(2).chain(parts.iter().skip(1).step_by(2));
    let mut reader = None;
    let mut reads = Vec::new();
    for (number, (at, bytes)) in order.enumerate() {
        let made = Made { number: number as u64, ..USUAL };
        let datagram = made.datagram(&crypto(at * part, bytes));
        let reader = reader.get_or_insert_with(|| begin(&datagram).unwrap());
        reads.push(reader.feed(&datagram));
    }
    let last = reads.pop().unwrap();
    assert!(reads.iter().all(|read| matches!(read, InitialRead::NeedMore)));
    let InitialRead::Hello(hello) = last else { panic!("{last:?}") };
    assert_eq!((name(&hello).as_str(), hello.message()), ("example.com", &*message));
    assert!(reader.unwrap().held_bytes() < 3 * HELLO_BYTES_MAX);

    let long = long_hello(HELLO_BYTES_MAX + 1);
    let (_, read) = read_first(&USUAL.datagram(&crypto(0, &long[..1000])));
    let message_bytes = HELLO_BYTES_MAX as u32 + 1;
    let expected = Malformed { at: 1, why: Fault::TooLong { message_bytes } };
    assert_eq!(fault(read), QuicFault::Hello(expected));
}

#[test]
fn datagrams_are_bounded() {
    let ping = |number| Made { number, number_len: 2, ..USUAL }.datagram(&[1]);
    let mut reader = begin(&ping(0)).unwrap();
    for number in 0..DATAGRAMS_MAX {
        assert!(matches!(reader.feed(&ping(number.into())), InitialRead::NeedMore));
    }
    let found = fault(reader.feed(&ping(1000)));
    assert_eq!((found, found.answer()), (QuicFault::TooManyDatagrams, QuicAnswer::Close(2)));
}
