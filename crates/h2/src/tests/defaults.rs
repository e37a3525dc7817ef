//! Tests that a client may do all that HTTP/2 allows without our SETTINGS until it has seen them
//! (RFC 9113 6.5.3), though our limits are lower.

use super::*;
use crate::Flood;
use crate::frame::setting;
use crate::limits::{DROPS_MAX, EARLY_REFUSALS_MAX};

/// A server's connection whose client has sent SETTINGS, and has not seen ours.
fn unacknowledged(limits: H2Limits) -> Talk {
    let mut talk = Talk::begin(limits, true);
    talk.feed(&[&PREFACE[..], &settings(&[])].concat());
    talk.take();
    talk
}

/// Our first SETTINGS, by identifier.
fn announced() -> Vec<(u16, u32)> {
    let mut out = Vec::new();
    H2Connection::server(H2Limits::default(), 0, &mut out);
    let head = FrameHead::read(&out).unwrap();
    let payload = &out[FRAME_HEAD_BYTES..][..head.len];
    payload.chunks(6).map(|value| crate::settings::read(value).unwrap()).collect()
}

/// Many clients never change the size of their encoder's table, such as Go's until 2022.
#[test]
fn a_client_keeps_the_table_that_http2_begins_with() {
    let size = announced().into_iter().find(|(id, _)| *id == setting::HEADER_TABLE_SIZE);
    assert!(size.is_none_or(|(_, bytes)| bytes >= 4096), "{size:?}");
    let mut talk = Talk::server();
    // A GET that inserts nothing.
    let request = [&[0x82, 0x87, 0x84, 0x01, 9][..], b"a.example"].concat();
    // Entries of 128 bytes each: 32 of them fill the table.
    let insert = |nth: u8| {
        let mut literal = vec![0x40, 4, b'n', b'a', b'm', b'e', 92];
        literal.extend_from_slice(&[nth; 92]);
        literal
    };
    for (stream, entries) in [(1, 0..16), (3, 16..32)] {
        let fields: Vec<u8> = entries.flat_map(|nth| insert(b'A' + nth)).collect();
        talk.feed(&frame(kind::HEADERS, 5, stream, &[request.clone(), fields].concat()));
    }
    assert_eq!((talk.fault, talk.take().as_str()), (None, "GET 1 last; GET 3 last"));
    // The oldest entry, 61 static and 31 newer ones before it.
    let oldest = frame(kind::HEADERS, 5, 5, &[request, vec![0x80 | 93]].concat());
    talk.feed(&oldest);
    assert_eq!((talk.fault, talk.take().as_str()), (None, "GET 5 last"));
}

/// They are refused, and do not count as a flood: there is no limit before ours is known.
#[test]
fn streams_beyond_our_limit_are_refused_alone() {
    let mut talk = unacknowledged(H2Limits::default());
    let served = 100;
    let early = u32::from(EARLY_REFUSALS_MAX);
    assert!(early > 1_000);
    for nth in 0..served + early {
        talk.feed(&get(2 * nth + 1));
    }
    let said = talk.take();
    assert_eq!((talk.fault, talk.connection.streams()), (None, 100));
    assert_eq!(said.matches("REFUSED_STREAM").count(), early as usize);
    // Later ones do, whether the client acknowledges our SETTINGS or not.
    let mut acknowledges = unacknowledged(H2Limits::default());
    acknowledges.feed(&settings_ack());
    for (mut talk, begun) in [(talk, served + early), (acknowledges, 0)] {
        let served = served - talk.connection.streams() as u32;
        for nth in begun..begun + served + u32::from(DROPS_MAX) {
            talk.feed(&get(2 * nth + 1));
            assert_eq!(talk.fault, None, "{nth}");
        }
        talk.feed(&get(2 * (begun + served + u32::from(DROPS_MAX)) + 1));
        assert_eq!(talk.fault, Some(ConnectionFault::Flood(Flood::Drops)));
    }
}

#[test]
fn a_stream_has_the_window_that_http2_begins_with() {
    let mut talk = unacknowledged(H2Limits { stream_window: 100, ..H2Limits::default() });
    talk.releases = false;
    talk.feed(&post(1));
    for bytes in [16_384, 16_384, 16_384, 16_383] {
        talk.feed(&data(1, &vec![b'x'; bytes]));
    }
    assert_eq!((talk.fault, talk.connection.streams()), (None, 1));
    talk.feed(&settings_ack());
    assert_eq!(talk.connection.streams(), 1);
    talk.feed(&data(1, b"x"));
    assert!(talk.take().ends_with("failed 1 Window"));
}
