//! Packets, frames and the CRYPTO stream: what is read, and what is refused.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::fault::{Fault, Field, Malformed};
use crate::hello::{Peek, Transport};
use crate::testing::{Spec, browser};

/// A packet with a long header: the part before its type's own fields.
fn long(first: u8, version: u32, dcid: &[u8], scid: &[u8]) -> Vec<u8> {
    let mut packet = vec![first];
    packet.extend(version.to_be_bytes());
    for id in [dcid, scid] {
        packet.push(id.len() as u8);
        packet.extend(id);
    }
    packet
}

/// An Initial packet of v1 with this token and `len` bytes of payload.
fn initial(dcid: &[u8], token: &[u8], len: usize) -> Vec<u8> {
    let mut packet = long(0xc0, 1, dcid, b"scid");
    put_varint(token.len() as u64, &mut packet);
    packet.extend(token);
    put_varint(len as u64, &mut packet);
    packet.extend(vec![7; len]);
    packet
}

fn kinds(datagram: &[u8]) -> Vec<Result<LongKind<'_>, QuicFault>> {
    let long = packets(datagram).filter_map(|read| match read.map(|packet| packet.header) {
        Ok(QuicHeader::Long(header)) => Some(Ok(header.kind)),
        Ok(QuicHeader::Short { .. }) => None,
        Err(fault) => Some(Err(fault)),
    });
    long.collect()
}

/// The examples of RFC 9000 A.1.
#[test]
fn integers_are_those_of_the_rfc() {
    let examples: [(&[u8], u64); 5] = [
        (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c], 151_288_809_941_952_652),
        (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
        (&[0x7b, 0xbd], 15_293),
        (&[0x25], 37),
        (&[0x40, 0x25], 37),
    ];
    for (bytes, value) in examples {
        let mut left = bytes;
        assert_eq!(take_varint(&mut left), Some(value));
        assert!(left.is_empty());
        for cut in 0..bytes.len() {
            let mut left = &bytes[..cut];
            assert_eq!(take_varint(&mut left), None);
            assert_eq!(left.len(), cut, "nothing is taken");
        }
    }
}

#[test]
fn coalesced_packets_are_walked() {
    let mut datagram = initial(b"dcid", b"token", 30);
    let length = datagram.len();
    let mut zero_rtt = long(0xd0, 1, b"dcid", b"scid");
    put_varint(20, &mut zero_rtt);
    zero_rtt.extend([9; 20]);
    datagram.extend(&zero_rtt);
    let mut handshake = long(0xe0, 1, b"dcid", b"scid");
    put_varint(0, &mut handshake);
    datagram.extend(&handshake);
    // Padding as some clients write it, behind the packets.
    datagram.extend([0; 40]);

    let read: Vec<_> = packets(&datagram).map(Result::unwrap).collect();
    assert_eq!(read.len(), 4);
    assert_eq!(
        kinds(&datagram),
        [Ok(LongKind::Initial { token: b"token" }), Ok(LongKind::ZeroRtt), Ok(LongKind::Handshake)]
    );
    assert_eq!(read[0].bytes, &datagram[..length]);
    assert_eq!(&read[0].bytes[read[0].number_at..], [7; 30]);
    assert_eq!(read[3].header, QuicHeader::Short { id_and_rest: &[0; 39] });
}

#[test]
fn each_version_has_its_own_types() {
    let check = |first: u8, version: u32, expected: LongKind<'_>| {
        let mut packet = long(first, version, b"d", b"s");
        packet.extend([0, 0]);
        assert_eq!(kinds(&packet), [Ok(expected)], "{first:#x} of {version:#x}");
    };
    let initial = LongKind::Initial { token: &[] };
    let v1 = [initial, LongKind::ZeroRtt, LongKind::Handshake, LongKind::Retry];
    for (bits, expected) in v1.into_iter().enumerate() {
        check(0xc0 | (bits as u8) << 4, 1, expected);
        // RFC 9369 3.2: each is one further, and Retry is 0.
        let v2 = ((bits as u8 + 1) & 3) << 4;
        check(0xc0 | v2, 0x6b33_43cf, expected);
    }
    check(0xc0, 0, LongKind::VersionNegotiation);
    check(0xc0, 0x1a2a_3a4a, LongKind::OtherVersion);
}

#[test]
fn bad_packets_are_faults() {
    let whole = initial(b"destination", b"", 30);
    for cut in 1..whole.len() {
        assert_eq!(kinds(&whole[..cut]), [Err(QuicFault::TruncatedPacket)], "{cut}");
    }
    assert_eq!(packets(&[]).count(), 0);

    let long_id = initial(&[1; 21], b"", 30);
    assert_eq!(kinds(&long_id), [Err(QuicFault::ConnectionIdTooLong(21))]);
    // Another version may have longer ones (RFC 8999 5.1).
    let other = long(0xc0, 0x1a2a_3a4a, &[1; 255], &[2; 255]);
    assert_eq!(kinds(&other), [Ok(LongKind::OtherVersion)]);

    let mixed = [initial(b"one", b"", 9), initial(b"two", b"", 9)].concat();
    assert_eq!(kinds(&mixed)[1], Err(QuicFault::MixedIds));

    let many = initial(b"one", b"", 1).repeat(PACKETS_MAX + 1);
    assert_eq!(kinds(&many).len(), PACKETS_MAX + 1);
    assert_eq!(kinds(&many).last(), Some(&Err(QuicFault::TooManyPackets)));
}

#[test]
fn frames_of_initial_packets_are_read() {
    let payload = [
        &[1, 0, 0, 0][..],
        &[2, 0x0a, 0x05, 1, 2, 1, 3],    // packets 8 to 10, and 2 to 5
        &[3, 0, 0, 0, 0, 0, 1, 0x40, 2], // packet 0, with counts
        &[6, 4, 3, b'a', b'b', b'c'],
        &[6, 0, 0],
        &[0x1c, 0x41, 0x70, 6, 2, b'n', b'o'],
    ]
    .concat();
    let frames: Result<Vec<_>, _> = InitialFrames::new(&payload).unwrap().collect();
    assert_eq!(
        frames.unwrap(),
        [
            InitialFrame::Ping,
            InitialFrame::Padding,
            InitialFrame::Ack,
            InitialFrame::Ack,
            InitialFrame::Crypto { at: 4, bytes: b"abc" },
            InitialFrame::Crypto { at: 0, bytes: b"" },
            InitialFrame::Close { code: 0x170 },
        ]
    );
}

#[test]
fn bad_frames_are_faults() {
    let fault = |payload: &[u8]| {
        InitialFrames::new(payload).and_then(|mut all| all.try_for_each(|frame| frame.map(|_| ())))
    };
    assert_eq!(fault(&[]), Err(QuicFault::NoFrame));
    // STREAM, NEW_TOKEN, HANDSHAKE_DONE, CONNECTION_CLOSE of an application, and CRYPTO spelled
    // with two bytes.
    for frame_type in [0x08, 0x07, 0x1e, 0x1d, 0x40] {
        assert_eq!(fault(&[frame_type, 6, 0, 0, 0]), Err(QuicFault::FrameType(frame_type)));
    }
    for payload in [
        &[6][..],
        &[6, 0],
        &[6, 0, 2, b'a'],
        &[6, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[2, 1, 0, 0, 2],       // a range below packet 0
        &[2, 9, 0, 1, 1, 7, 0], // a gap below packet 0
        &[2, 9, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0],
        &[3, 0, 0, 0, 0, 1, 1],
        &[0x1c, 0, 0, 1],
    ] {
        assert_eq!(fault(payload), Err(QuicFault::FrameForm(payload[0])), "{payload:?}");
    }
}

#[test]
fn a_hello_in_a_stream_is_that_of_records() {
    let message = browser().message();
    let mut stream = CryptoStream::new(message.len());
    stream.insert(0, &message).unwrap();
    let Peek::Hello(hello) = stream.peek() else { panic!("{:?}", stream.peek()) };
    assert_eq!((hello.message(), hello.raw_len()), (&*message, 0));
    assert_eq!(hello.transport(), Transport::Quic);
    let owned = hello.into_owned();
    drop(stream);
    assert_eq!(owned.message(), message);
}

#[test]
fn faults_of_a_stream() {
    let message = Spec::default().message();
    let max = message.len() + 10;
    let faulty = |pieces: &[(u64, &[u8])]| {
        let mut stream = CryptoStream::new(max);
        pieces.iter().try_for_each(|(at, piece)| stream.insert(*at, piece))?;
        match stream.peek() {
            Peek::Malformed(malformed) => Err(QuicFault::Hello(malformed)),
            Peek::Hello(_) => Ok(true),
            _ => Ok(false),
        }
    };
    let len = message.len() as u64;
    assert_eq!(faulty(&[(0, &message)]), Ok(true));
    assert_eq!(faulty(&[(0, &message), (0, &message)]), Ok(true), "said again");
    assert_eq!(faulty(&[(1, &message[1..])]), Ok(false), "a gap at its front");
    let mut other = message.clone();
    other[40] ^= 1;
    assert_eq!(faulty(&[(0, &message), (0, &other)]), Err(QuicFault::Overlap { at: 0 }));
    assert_eq!(
        faulty(&[(30, &message[30..60]), (20, &other[20..41])]),
        Err(QuicFault::Overlap { at: 20 })
    );
    let behind = QuicFault::Hello(Malformed { at: len as u32, why: Fault::NotAligned });
    assert_eq!(faulty(&[(0, &message), (len, b"x")]), Err(behind));
    assert_eq!(faulty(&[(len + 3, b"x"), (0, &message[..9])]), Err(behind), "over a gap");
    for (at, end) in [(max as u64, max as u64 + 1), (u64::MAX, u64::MAX)] {
        assert_eq!(faulty(&[(at, b"x")]), Err(QuicFault::CryptoTooFar { end }));
    }
    let other_type = Malformed { at: 0, why: Fault::MessageType(2) };
    assert_eq!(faulty(&[(0, &[2])]), Err(QuicFault::Hello(other_type)));
    let too_long = Malformed { at: 1, why: Fault::TooLong { message_bytes: 0x1_0004 } };
    assert_eq!(faulty(&[(0, &[1, 1, 0, 0])]), Err(QuicFault::Hello(too_long)));
    let mut cut = message[..60].to_vec();
    cut[1..4].copy_from_slice(&[0, 0, 56]);
    let Err(QuicFault::Hello(Malformed { why: Fault::Truncated(field), .. })) =
        faulty(&[(0, &cut)])
    else {
        panic!("it is cut");
    };
    assert_eq!(field, Field::SessionId);
}

#[test]
fn pieces_are_bounded() {
    let mut stream = CryptoStream::new(16_384);
    for piece in 0..PIECES_MAX as u64 {
        stream.insert(1 + 2 * piece, b"x").unwrap();
    }
    assert_eq!(stream.insert(1000, b"x"), Err(QuicFault::TooManyPieces));
    // One that closes a gap makes room.
    stream.insert(2, b"y").unwrap();
    stream.insert(1000, b"x").unwrap();
    assert!(stream.held_bytes() < 16_384 + 8192);
}

proptest! {
    /// A hello in pieces of all sizes, in any order, some of them twice.
    #[test]
    fn order_and_cuts_do_not_matter(
        cuts in proptest::collection::vec((0usize..600, 1usize..200), 0..40),
        order in any::<u64>(),
    ) {
        let message = browser().message();
        let whole = (0..message.len()).step_by(50).map(|at| (at, 50));
        let mut pieces: Vec<_> = cuts.into_iter().chain(whole).collect();
        // A seeded order: each piece goes where the seed says.
        let mut state = order | 1;
        for at in (1..pieces.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            pieces.swap(at, (state >> 33) as usize % (at + 1));
        }
        let mut stream = CryptoStream::new(16_384);
        let mut seen = vec![false; message.len()];
        for (at, len) in pieces {
            let range = at.min(message.len())..(at + len).min(message.len());
            stream.insert(range.start as u64, &message[range.clone()]).unwrap();
            seen[range].fill(true);
            let is_whole = seen.iter().all(|seen| *seen);
            match stream.peek() {
                Peek::Hello(hello) => prop_assert!(is_whole && hello.message() == message),
                Peek::NeedMore { at_least } => prop_assert!(!is_whole && at_least > 0),
                other => prop_assert!(false, "{other:?}"),
            }
        }
        let is_hello = matches!(stream.peek(), Peek::Hello(_));
        prop_assert!(is_hello);
    }

    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let walked: usize = packets(&bytes).flatten().map(|packet| packet.bytes.len()).sum();
        prop_assert!(walked <= bytes.len());
        if let Ok(frames) = InitialFrames::new(&bytes) {
            prop_assert!(frames.count() <= bytes.len());
        }
    }
}
