//! The bounds of the known floods: each row has its bound, and the code that ends the connection.

use super::*;
use crate::frame::setting;
use crate::limits::{CONTINUATIONS_MAX, CONTROL_FRAMES_MAX, DROPS_MAX, SETTINGS_MAX};
use crate::{Flood, RequestKind};

/// A flood: its `nth` message, from 0 on.
struct Row {
    why: &'static str,
    begin: Vec<u8>,
    message: fn(u32) -> Vec<u8>,
    /// Messages that are accepted.
    bound: u32,
    flood: Flood,
}

fn row(why: &'static str, message: fn(u32) -> Vec<u8>, bound: u16, flood: Flood) -> Row {
    Row { why, begin: post(1), message, bound: bound.into(), flood }
}

/// A new stream for the `nth` message. Stream 1 is open.
fn nth_stream(nth: u32) -> u32 {
    3 + 2 * nth
}

/// Frames that move nothing. CVE-2019-9512, -9515, -9518, and relatives.
fn control_floods() -> Vec<Row> {
    let row = |why, message| row(why, message, CONTROL_FRAMES_MAX, Flood::Control);
    vec![
        row("PING", |_| frame(kind::PING, 0, 0, &[0; 8])),
        row("pongs that nobody asked for", |_| frame(kind::PING, 1, 0, &[0; 8])),
        row("SETTINGS", |_| settings(&[])),
        row("acknowledgements", |_| settings_ack()),
        row("PRIORITY", |_| frame(kind::PRIORITY, 0, 9, &[0; 5])),
        row("PRIORITY_UPDATE", |_| frame(kind::PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 9])),
        row("WINDOW_UPDATE of the connection", |_| window(0, 1)),
        row("WINDOW_UPDATE of a stream", |_| window(1, 1)),
        row("unknown frames", |_| frame(0x77, 0, 0, &[])),
        row("empty data", |_| data(1, b"")),
        row("data that is padding", |_| frame(kind::DATA, flag::PADDED, 1, &[3, 0, 0, 0])),
        Row {
            // A window by 0, for which we reset the stream.
            begin: [post(1), window(1, 0)].concat(),
            ..row("late data in small frames", |_| data(1, b"late").repeat(64))
        },
        row("GOAWAY", |_| frame(kind::GOAWAY, 0, 0, &[0; 8])),
        Row {
            begin: [post(1), reset(1, ErrorCode::NO_ERROR)].concat(),
            ..row("RST_STREAM of an ended stream", |_| reset(1, ErrorCode::CANCEL))
        },
        Row {
            begin: [post(1), reset(1, ErrorCode::NO_ERROR)].concat(),
            ..row("WINDOW_UPDATE of an ended stream", |_| window(1, 1))
        },
    ]
}

/// Streams that cost work and come to nothing: CVE-2023-44487 by the client's resets, and
/// CVE-2025-8671 by resets of ours that the client provokes.
fn stream_floods() -> Vec<Row> {
    let row = |why, message| row(why, message, DROPS_MAX, Flood::Drops);
    vec![
        row("rapid reset", |nth| {
            [get(nth_stream(nth)), reset(nth_stream(nth), ErrorCode::CANCEL)].concat()
        }),
        row("rapid reset that says no error", |nth| {
            [get(nth_stream(nth)), reset(nth_stream(nth), ErrorCode::NO_ERROR)].concat()
        }),
        row("malformed requests", |nth| headers(nth_stream(nth), 1, &[("a", "b")])),
        row("a head after the end", |nth| [get(nth_stream(nth)), get(nth_stream(nth))].concat()),
        row("data after the end", |nth| {
            [get(nth_stream(nth)), data(nth_stream(nth), b"a")].concat()
        }),
        row("no increment", |nth| [get(nth_stream(nth)), window(nth_stream(nth), 0)].concat()),
        row("a window too wide", |nth| {
            [get(nth_stream(nth)), window(nth_stream(nth), 0x7fff_ffff)].concat()
        }),
        row("a short PRIORITY", |nth| {
            [get(nth_stream(nth)), frame(kind::PRIORITY, 0, nth_stream(nth), &[])].concat()
        }),
        row("a stream that depends on itself", |nth| {
            let stream = nth_stream(nth);
            let priority = [&stream.to_be_bytes()[..], &[0]].concat();
            [get(stream), frame(kind::PRIORITY, 0, stream, &priority)].concat()
        }),
        row("a body that is too long", |nth| {
            let stream = nth_stream(nth);
            let fields = [POST, &[("content-length", "1")]].concat();
            [headers(stream, 0, &fields), data(stream, b"ab")].concat()
        }),
        Row {
            begin: (0..100).flat_map(|nth| get(2 * nth + 1)).collect(),
            ..row("streams beyond the limit", |nth| get(201 + 2 * nth))
        },
    ]
}

#[test]
fn each_flood_ends_at_its_bound() {
    for Row { why, begin, message, bound, flood } in
        control_floods().into_iter().chain(stream_floods())
    {
        let mut talk = Talk::server();
        // What the greeting and the beginning have counted.
        talk.feed(&begin);
        let counted = u32::from(match flood {
            Flood::Drops => talk.connection.drops.level,
            _ => talk.connection.control.level,
        });
        for nth in 0..bound - counted {
            talk.feed(&message(nth));
            assert_eq!(talk.fault, None, "{why}: {nth}");
        }
        talk.take();
        talk.feed(&message(bound - counted));
        assert_eq!(talk.fault, Some(ConnectionFault::Flood(flood)), "{why}");
        let said = talk.take();
        assert!(said.ends_with("ENHANCE_YOUR_CALM"), "{why}: {said}");
    }
}

#[test]
fn each_flood_is_a_trickle_that_time_bears() {
    for Row { why, begin, message, bound, flood } in
        control_floods().into_iter().chain(stream_floods())
    {
        let mut talk = Talk::server();
        talk.feed(&begin);
        for nth in 0..2 * bound {
            talk.now_ms += if flood == Flood::Drops { 1000 } else { 10 };
            talk.feed(&message(nth));
            assert_eq!(talk.fault, None, "{why}: {nth}");
        }
    }
}

/// A response that never becomes final is a flood, and one before each response is none.
#[test]
fn interim_responses_are_bounded() {
    let interim = |stream| headers(stream, 0, &[(":status", "103")]);
    let ask = |talk: &mut Talk| {
        let fields = GET.iter().map(field);
        talk.connection.request(fields, RequestKind::Other, true, &mut talk.out).unwrap()
    };
    let mut talk = Talk::client();
    ask(&mut talk);
    for nth in talk.connection.control.level..CONTROL_FRAMES_MAX {
        talk.feed(&interim(1));
        assert_eq!(talk.fault, None, "{nth}");
    }
    talk.feed(&interim(1));
    assert_eq!(talk.fault, Some(ConnectionFault::Flood(Flood::Control)));
    let mut talk = Talk::client();
    for _ in 0..2 * CONTROL_FRAMES_MAX {
        let stream = ask(&mut talk);
        talk.feed(&[interim(stream), headers(stream, 1, &[(":status", "204")])].concat());
        assert_eq!(talk.fault, None);
    }
}

/// The bytes that an honest client has sent before it reads our reset cost it nothing.
#[test]
fn a_body_on_its_way_is_free() {
    let mut talk = Talk::server();
    talk.feed(&post(1));
    talk.connection.reset(1, ErrorCode::NO_ERROR, &mut talk.out);
    let before = talk.connection.control.level;
    talk.feed(&data(1, &[b'x'; 16_384]).repeat(4));
    assert_eq!((talk.connection.control.level, talk.fault), (before, None));
}

#[test]
fn a_header_block_has_bounds() {
    let begun = frame(kind::HEADERS, 0, 1, &block(GET));
    for (why, piece, bound, flood) in [
        ("CONTINUATION", vec![], u32::from(CONTINUATIONS_MAX), Flood::Continuation),
        // Fields that are dropped: 4 times 64 KiB, and 16 KiB in each frame.
        ("bytes", vec![0x82; 16_384], 15, Flood::Block),
    ] {
        let mut talk = Talk::server();
        talk.feed(&begun);
        for _ in 0..bound {
            talk.feed(&frame(kind::CONTINUATION, 0, 1, &piece));
            assert_eq!(talk.fault, None, "{why}");
        }
        talk.feed(&frame(kind::CONTINUATION, 0, 1, &piece));
        assert_eq!(talk.fault, Some(ConnectionFault::Flood(flood)), "{why}");
        assert!(talk.take().ends_with("GOAWAY 0 ENHANCE_YOUR_CALM"));
    }
}

/// A block that is too long and broken, too, ends the connection for the same reason in every cut.
#[test]
fn a_header_block_is_counted_before_it_arrives() {
    for piece in [usize::MAX, 1, 100] {
        let limits = H2Limits { head_bytes_max: 500, ..H2Limits::default() };
        let mut talk = Talk::greeted(limits, true);
        talk.piece = piece;
        talk.feed(&frame(kind::HEADERS, 0, 1, &[0x80; 2001]));
        assert_eq!(talk.fault, Some(ConnectionFault::Flood(Flood::Block)));
    }
}

/// A field that is begun and never ended is kept up to the bound of a block.
#[test]
fn a_field_that_does_not_end_is_bounded() {
    let mut talk = Talk::server();
    talk.feed(&frame(kind::HEADERS, 0, 1, &[0x10, 0x01, b'a', 0x7f, 0xff, 0xff, 0xff, 0x7f]));
    while talk.fault.is_none() {
        talk.feed(&frame(kind::CONTINUATION, 0, 1, &[b'a'; 16_384]));
        let bound = 2 * (crate::limits::BLOCK_FACTOR + 1) * 65_536 + 2048;
        assert!(talk.connection.unfinished_bytes() <= bound);
        assert!(talk.fault.is_some() || talk.connection.unfinished_bytes() >= 16_384);
    }
    assert_eq!(talk.connection.unfinished_bytes(), 0);
    assert_eq!(talk.fault, Some(ConnectionFault::Flood(Flood::Block)));
}

/// One byte of a block becomes a field of 2 KiB. The fields beyond the limit are not kept, and the
/// connection goes on.
#[test]
fn an_hpack_bomb_is_dropped() {
    let mut talk = Talk::server();
    let value = [b'x'; 2000];
    let mut bomb = [block(GET), vec![0x40, 1, b'a', 0x7f]].concat();
    bomb.extend_from_slice(&[0xd1, 0x0e]);
    bomb.extend_from_slice(&value);
    bomb.resize(16_384, 0xbe);
    talk.feed(&frame(kind::HEADERS, 5, 1, &bomb));
    let said = talk.take();
    assert_eq!(said, "GET 1 last too large");
    talk.feed(&get(3));
    assert_eq!(talk.take(), "GET 3 last");
}

#[test]
fn settings_have_a_bound() {
    let values = [(setting::INITIAL_WINDOW_SIZE, 1); SETTINGS_MAX + 1];
    let mut talk = Talk::server();
    talk.feed(&settings(&values[..SETTINGS_MAX]));
    assert_eq!(talk.take(), "ACK; settings");
    talk.feed(&settings(&values));
    assert_eq!(talk.fault, Some(ConnectionFault::Flood(Flood::Settings)));
    assert_eq!(talk.take(), "GOAWAY 0 ENHANCE_YOUR_CALM");
}

/// A client that does not read the answers it asks for is not read any more.
#[test]
fn answers_wait_for_their_reader() {
    let mut connection = Talk::server().connection;
    let pings = frame(kind::PING, 0, 0, &[0; 8]).repeat(900);
    let mut out = vec![0; crate::OUTPUT_BYTES_MAX - 20];
    let received = connection.receive(&pings, 1000, &mut out);
    assert_eq!(received, Ok(H2Received::OutputFull { consumed: 2 * 17 }));
    let again = connection.receive(&pings[34..], 1000, &mut out);
    assert_eq!(again, Ok(H2Received::OutputFull { consumed: 0 }));
    assert!(out.len() < crate::OUTPUT_BYTES_MAX + 100);
}

/// CVE-2019-9511: a window that opens by one byte at a time makes a frame of each byte.
#[test]
fn a_window_that_dribbles_ends_the_connection() {
    let mut talk = Talk::server();
    talk.feed(&settings(&[(setting::INITIAL_WINDOW_SIZE, 0)]));
    talk.feed(&get(1));
    let status = HeaderField::new(b":status", b"200");
    talk.connection.respond(1, [status], false, &mut talk.out).unwrap();
    for _ in 0..=CONTROL_FRAMES_MAX {
        talk.feed(&window(1, 1));
        if talk.fault.is_none() {
            talk.connection.data(1, 1, false).unwrap();
        }
    }
    assert_eq!(talk.fault, Some(ConnectionFault::Flood(Flood::Control)));
}

/// httpx sends two WINDOW_UPDATE for each frame of data that it gets, also for short ones.
#[test]
fn a_reader_that_updates_each_window_lives() {
    let mut talk = Talk::server();
    talk.feed(&get(1));
    let status = HeaderField::new(b":status", b"200");
    talk.connection.respond(1, [status], false, &mut talk.out).unwrap();
    for _ in 0..3 * u32::from(CONTROL_FRAMES_MAX) {
        talk.connection.data(1, 50, false).unwrap();
        talk.feed(&[window(0, 50), window(1, 50)].concat());
        assert_eq!(talk.fault, None);
    }
}

/// Requests that the caller answers with 400 count as dropped, although they are answered.
#[test]
fn malformed_requests_of_the_caller_count() {
    let mut talk = Talk::server();
    for nth in 0..=u32::from(DROPS_MAX) {
        assert_eq!(talk.fault, None, "{nth}");
        talk.feed(&get(2 * nth + 1));
        let status = HeaderField::new(b":status", b"400");
        let stream = 2 * nth + 1;
        talk.fault = talk.connection.count_malformed(stream, &mut talk.out).err();
        let _ = talk.connection.respond(stream, [status], true, &mut talk.out);
        talk.answers();
    }
    assert_eq!(talk.fault, Some(ConnectionFault::Flood(Flood::Drops)));
    assert!(talk.take().ends_with("ENHANCE_YOUR_CALM"));
}

/// Whole exchanges pay for dropped ones, so that a browser's connection lives on.
#[test]
fn whole_exchanges_pay_for_drops() {
    let mut talk = Talk::server();
    for nth in 0..2 * u32::from(DROPS_MAX) {
        let stream = 1 + 4 * nth;
        talk.feed(&[get(stream), reset(stream, ErrorCode::CANCEL), get(stream + 2)].concat());
        let status = HeaderField::new(b":status", b"204");
        talk.connection.respond(stream + 2, [status], true, &mut talk.out).unwrap();
        talk.answers();
    }
    assert_eq!(talk.fault, None);
}

/// Far more resets than are remembered: frames of the oldest are still ignored.
#[test]
fn late_frames_of_streams_that_we_reset_are_ignored() {
    let mut talk = Talk::server();
    for nth in 0..300 {
        talk.feed(&post(1 + 2 * nth));
        talk.connection.reset(1 + 2 * nth, ErrorCode::NO_ERROR, &mut talk.out);
    }
    talk.take();
    for nth in 0..300 {
        talk.feed(&[data(1 + 2 * nth, b"late"), headers(1 + 2 * nth, 1, &[("a", "b")])].concat());
    }
    assert_eq!((talk.take().as_str(), talk.fault), ("", None));
}
