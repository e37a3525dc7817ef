//! The server's side: each section of RFC 9113 as a table of frames and what they cause.

use proptest::prelude::*;

use super::*;
use crate::frame::setting;
use crate::{MalformedMessage, StreamFault};

/// Feeds frames to a fresh server in pieces of every size.
fn check(why: &str, frames: &[Vec<u8>], wanted: &str) {
    let bytes = frames.concat();
    for piece in [usize::MAX, 1, 2, 5, 9, 10, 13] {
        let mut talk = Talk::server();
        talk.piece = piece;
        talk.feed(&bytes);
        assert_eq!(talk.take(), wanted, "{why}, in pieces of {piece}");
    }
}

#[test]
fn messages_are_read() {
    let padded = |stream, flags, payload: &[u8]| {
        let padded = [&[3][..], payload, &[0; 3]].concat();
        frame(kind::DATA, flags | flag::PADDED, stream, &padded)
    };
    let block = block(POST);
    let (begin, end) = block.split_at(block.len() / 2);
    let websocket = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", "a.example"),
        (":path", "/chat"),
    ];
    check("a WebSocket", &[headers(1, 0, &websocket), data(1, b"ab")], "CONNECT 1; data 1 ab");
    check("a request", &[get(1), get(3)], "GET 1 last; GET 3 last");
    check("a body", &[post(1), data(1, b"ab"), last_data(1, b"c")], "POST 1; data 1 abc.");
    check("an empty end", &[post(1), data(1, b"ab"), last_data(1, b"")], "POST 1; data 1 ab.");
    check("padding", &[post(1), padded(1, 0, b"ab"), padded(1, 1, b"c")], "POST 1; data 1 abc.");
    check(
        "trailers",
        &[post(1), data(1, b"ab"), headers(1, flag::END_STREAM, &[("a", "b")])],
        "POST 1; data 1 ab; trailers 1 1",
    );
    check(
        "continuation, padding and a priority",
        &[
            frame(
                kind::HEADERS,
                flag::PADDED | flag::PRIORITY,
                1,
                &[&[2, 0, 0, 0, 0, 9][..], begin, &[0; 2]].concat(),
            ),
            frame(kind::CONTINUATION, 0, 1, &[]),
            frame(kind::CONTINUATION, flag::END_HEADERS, 1, end),
        ],
        "POST 1",
    );
    check("unknown frames", &[frame(0x77, 9, 5, b"abcdef"), get(1)], "GET 1 last");
    check("an unknown setting", &[settings(&[(0x99, 7)])], "ACK; settings");
    check("PING", &[frame(kind::PING, 0, 0, b"12345678")], "PONG");
    check("a pong", &[frame(kind::PING, flag::ACK, 0, b"12345678")], "pong 12345678");
    check("a reset", &[post(1), reset(1, ErrorCode::CANCEL)], "POST 1; reset 1 CANCEL");
    check("windows", &[post(1), window(0, 1), window(1, 1)], "POST 1; writable; writable");
    check("GOAWAY", &[frame(kind::GOAWAY, 0, 0, b"\0\0\0\x01\0\0\0\0text")], "goaway 1 NO_ERROR");
    check("PRIORITY", &[frame(kind::PRIORITY, 0, 9, &[0, 0, 0, 1, 5])], "");
}

/// Nothing of a head is left in the next one that takes its memory, and much memory is not kept.
#[test]
fn a_head_that_is_given_back_leaves_nothing() {
    let mut talk = Talk::server();
    let read =
        |talk: &mut Talk, bytes: &[u8]| match talk.connection.receive(bytes, 1000, &mut Vec::new())
        {
            Ok(H2Received::Event { event: H2Event::Request { head, .. }, .. }) => head,
            other => panic!("{other:?}"),
        };
    let long = [POST, &[("content-length", "3"), ("priority", "u=1"), ("a", "b")]].concat();
    let many: Vec<_> = (0..100).map(|_| ("a", "b")).collect();
    let fresh = *read(&mut Talk::server(), &get(1));
    for (stream, before) in [(1, long), (5, [GET, &many].concat())] {
        let head = read(&mut talk, &headers(stream, 0, &before));
        assert!(head.fields.iter().count() > 0);
        talk.connection.give_back(head);
        let kept = talk.connection.spare_head.as_ref().map(|head| head.fields.fields.capacity());
        assert_eq!(kept.is_some(), before.len() < 20);
        assert_eq!(*read(&mut talk, &get(stream + 2)), fresh);
    }
}

#[test]
fn malformed_messages_cost_their_stream() {
    let wrong = |fields: Fields<'_>| headers(1, flag::END_STREAM, &[GET, fields].concat());
    let failed = |malformed: MalformedMessage| {
        let fault = StreamFault::Malformed(malformed);
        format!("RST_STREAM 1 PROTOCOL_ERROR; failed 1 {fault:?}; GET 3 last")
    };
    for (fields, malformed) in [
        (&[("A", "b")][..], MalformedMessage::Name),
        (&[("a", "b\r")], MalformedMessage::Value),
        (&[("connection", "close")], MalformedMessage::ConnectionField),
        (&[(":path", "/")], MalformedMessage::Pseudo),
        (&[("content-length", "1")], MalformedMessage::Length),
    ] {
        check("a field", &[wrong(fields), get(3)], &failed(malformed));
    }
    let with_length = || headers(1, 0, &[POST, &[("content-length", "3")]].concat());
    for (rest, malformed, before) in [
        (last_data(1, b"ab"), MalformedMessage::Length, ""),
        (data(1, b"abcd"), MalformedMessage::Length, ""),
        (headers(1, flag::END_STREAM, &[("a", "b")]), MalformedMessage::Length, ""),
        (headers(1, 0, &[("a", "b")]), MalformedMessage::TrailersWithoutEnd, ""),
        (headers(1, flag::END_STREAM, &[(":path", "/")]), MalformedMessage::Pseudo, ""),
    ] {
        let wanted = format!("POST 1; {before}{}", failed(malformed));
        check("a body", &[with_length(), rest, get(3)], &wanted);
    }
    check("a length", &[with_length(), last_data(1, b"abc")], "POST 1; data 1 abc.");
}

#[test]
fn errors_of_a_stream_leave_the_connection() {
    let priority = |payload: &[u8]| frame(kind::PRIORITY, 0, 1, payload);
    let depends = [&[0, 0, 0, 1, 0][..], &block(GET)].concat();
    for (why, frames, fault) in [
        ("data after the end", vec![get(1), data(1, b"a")], StreamFault::Closed),
        ("a head after the end", vec![get(1), get(1)], StreamFault::Closed),
        ("no increment", vec![get(1), window(1, 0)], StreamFault::WindowUpdateZero),
        ("too wide", vec![get(1), window(1, 0x7fff_ffff)], StreamFault::WindowOverflow),
        ("a short PRIORITY", vec![get(1), priority(&[0; 4])], StreamFault::FrameLength),
        ("a circle", vec![get(1), priority(&[0, 0, 0, 1, 0])], StreamFault::SelfDependency),
    ] {
        let wanted =
            format!("GET 1 last; RST_STREAM 1 {}; failed 1 {fault:?}; GET 3 last", fault.code());
        check(why, &[frames.concat(), get(3)], &wanted);
    }
    let fault = StreamFault::SelfDependency;
    check(
        "a head that depends on itself",
        &[frame(kind::HEADERS, flag::PRIORITY | flag::END_HEADERS | flag::END_STREAM, 1, &depends)],
        &format!("RST_STREAM 1 PROTOCOL_ERROR; failed 1 {fault:?}"),
    );
}

/// An end of a connection: the reason, the frames, and the text of GOAWAY.
type Ending = (&'static str, Vec<Vec<u8>>, &'static str);

fn errors_of_messages() -> Vec<Ending> {
    let long = vec![0; crate::FRAME_BYTES_MAX + 1];
    let begun = |flags| frame(kind::HEADERS, flags, 1, &block(GET));
    vec![
        ("a long frame", vec![data(1, &long)], "0 FRAME_SIZE_ERROR"),
        ("a long unknown frame", vec![frame(0x77, 0, 0, &long)], "0 FRAME_SIZE_ERROR"),
        ("DATA on 0", vec![data(0, b"a")], "0 PROTOCOL_ERROR"),
        ("DATA on an idle stream", vec![data(1, b"a")], "0 PROTOCOL_ERROR"),
        ("a window of an even stream", vec![get(3), window(2, 1)], "3 PROTOCOL_ERROR"),
        (
            "a reset of an even stream",
            vec![get(3), reset(2, ErrorCode::CANCEL)],
            "3 PROTOCOL_ERROR",
        ),
        ("DATA on an even stream", vec![get(3), data(2, b"a")], "3 PROTOCOL_ERROR"),
        ("padding", vec![post(1), frame(kind::DATA, flag::PADDED, 1, &[2, 0])], "1 PROTOCOL_ERROR"),
        (
            "no padding",
            vec![post(1), frame(kind::DATA, flag::PADDED, 1, &[])],
            "1 FRAME_SIZE_ERROR",
        ),
        ("HEADERS on 0", vec![get(0)], "0 PROTOCOL_ERROR"),
        ("HEADERS on 2", vec![get(2)], "0 PROTOCOL_ERROR"),
        ("HEADERS below the last", vec![get(5), get(3)], "5 STREAM_CLOSED"),
        ("HEADERS padding", vec![frame(kind::HEADERS, flag::PADDED, 1, &[1])], "0 PROTOCOL_ERROR"),
        (
            "HEADERS priority",
            vec![frame(kind::HEADERS, flag::PRIORITY, 1, &[1])],
            "0 FRAME_SIZE_ERROR",
        ),
        (
            "HEADERS padding after a priority",
            vec![frame(kind::HEADERS, flag::PADDED | flag::PRIORITY, 1, &[1, 0, 0, 0, 0, 0])],
            "0 PROTOCOL_ERROR",
        ),
        ("no CONTINUATION", vec![begun(0), data(1, b"a")], "0 PROTOCOL_ERROR"),
        (
            "another stream's",
            vec![begun(0), frame(kind::CONTINUATION, 4, 3, &[])],
            "0 PROTOCOL_ERROR",
        ),
        ("CONTINUATION", vec![frame(kind::CONTINUATION, 4, 1, &[])], "0 PROTOCOL_ERROR"),
        ("HPACK", vec![frame(kind::HEADERS, 4, 1, &[0x80])], "0 COMPRESSION_ERROR"),
        ("half a field", vec![frame(kind::HEADERS, 4, 1, &[0x41])], "0 COMPRESSION_ERROR"),
    ]
}

fn errors_of_control_frames() -> Vec<Ending> {
    vec![
        ("PUSH_PROMISE", vec![frame(kind::PUSH_PROMISE, 4, 1, &[0; 8])], "0 PROTOCOL_ERROR"),
        ("PRIORITY on 0", vec![frame(kind::PRIORITY, 0, 0, &[0; 5])], "0 PROTOCOL_ERROR"),
        ("an idle circle", vec![frame(kind::PRIORITY, 0, 3, &[0, 0, 0, 3, 0])], "0 PROTOCOL_ERROR"),
        ("RST_STREAM on 0", vec![reset(0, ErrorCode::CANCEL)], "0 PROTOCOL_ERROR"),
        ("RST_STREAM, idle", vec![reset(1, ErrorCode::CANCEL)], "0 PROTOCOL_ERROR"),
        (
            "RST_STREAM of 3",
            vec![get(1), frame(kind::RST_STREAM, 0, 1, &[0; 3])],
            "1 FRAME_SIZE_ERROR",
        ),
        ("SETTINGS on 1", vec![frame(kind::SETTINGS, 0, 1, &[])], "0 PROTOCOL_ERROR"),
        ("SETTINGS of 5", vec![frame(kind::SETTINGS, 0, 0, &[0; 5])], "0 FRAME_SIZE_ERROR"),
        ("an ACK of 6", vec![frame(kind::SETTINGS, 1, 0, &[0; 6])], "0 FRAME_SIZE_ERROR"),
        ("push", vec![settings(&[(setting::ENABLE_PUSH, 2)])], "0 PROTOCOL_ERROR"),
        (
            "a window",
            vec![settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 31)])],
            "0 FLOW_CONTROL_ERROR",
        ),
        ("a small frame", vec![settings(&[(setting::MAX_FRAME_SIZE, 16_383)])], "0 PROTOCOL_ERROR"),
        (
            "a large frame",
            vec![settings(&[(setting::MAX_FRAME_SIZE, 1 << 24)])],
            "0 PROTOCOL_ERROR",
        ),
        ("CONNECT", vec![settings(&[(setting::ENABLE_CONNECT_PROTOCOL, 2)])], "0 PROTOCOL_ERROR"),
        ("PING on 1", vec![frame(kind::PING, 0, 1, &[0; 8])], "0 PROTOCOL_ERROR"),
        ("PING of 7", vec![frame(kind::PING, 0, 0, &[0; 7])], "0 FRAME_SIZE_ERROR"),
        ("GOAWAY on 1", vec![frame(kind::GOAWAY, 0, 1, &[0; 8])], "0 PROTOCOL_ERROR"),
        ("GOAWAY of 7", vec![frame(kind::GOAWAY, 0, 0, &[0; 7])], "0 FRAME_SIZE_ERROR"),
        ("no increment", vec![window(0, 0)], "0 PROTOCOL_ERROR"),
        ("too wide", vec![window(0, 0x7fff_ffff)], "0 FLOW_CONTROL_ERROR"),
        ("WINDOW_UPDATE, idle", vec![window(1, 1)], "0 PROTOCOL_ERROR"),
        (
            "WINDOW_UPDATE of 3",
            vec![frame(kind::WINDOW_UPDATE, 0, 0, &[0; 3])],
            "0 FRAME_SIZE_ERROR",
        ),
        (
            "PRIORITY_UPDATE on 1",
            vec![frame(kind::PRIORITY_UPDATE, 0, 1, &[0; 4])],
            "0 PROTOCOL_ERROR",
        ),
        (
            "PRIORITY_UPDATE of 0",
            vec![frame(kind::PRIORITY_UPDATE, 0, 0, &[0; 4])],
            "0 PROTOCOL_ERROR",
        ),
        (
            "PRIORITY_UPDATE of 3",
            vec![frame(kind::PRIORITY_UPDATE, 0, 0, &[0; 3])],
            "0 FRAME_SIZE_ERROR",
        ),
    ]
}

#[test]
fn errors_of_the_connection_end_it() {
    for (why, frames, code) in errors_of_messages().into_iter().chain(errors_of_control_frames()) {
        let bytes = frames.concat();
        for piece in [usize::MAX, 1, 7] {
            let mut talk = Talk::server();
            talk.piece = piece;
            talk.feed(&bytes);
            let said = talk.take();
            assert!(said.ends_with(&format!("GOAWAY {code}")), "{why}: {said}");
            let after = talk.connection.receive(b"", 0, &mut talk.out);
            assert_eq!((after, &talk.out[..]), (Err(ConnectionFault::Closed), &[][..]), "{why}");
        }
    }
}

#[test]
fn the_preface_comes_first() {
    for (bytes, wanted) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "GOAWAY 0 PROTOCOL_ERROR"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX".to_vec(), "GOAWAY 0 PROTOCOL_ERROR"),
        ([&PREFACE[..], &get(1)].concat(), "GOAWAY 0 PROTOCOL_ERROR"),
        ([&PREFACE[..], &settings_ack()].concat(), "GOAWAY 0 PROTOCOL_ERROR"),
        ([&PREFACE[..], &settings(&[]), &get(1)].concat(), "ACK; settings; GET 1 last"),
    ] {
        for piece in [usize::MAX, 1, 23] {
            let mut talk = Talk::begin(H2Limits::default(), true);
            talk.piece = piece;
            talk.feed(&bytes);
            assert_eq!(talk.take(), wanted);
        }
    }
}

#[test]
fn windows_bound_what_arrives() {
    let mut talk = Talk::server();
    talk.releases = false;
    let part = vec![b'x'; 16_384];
    talk.feed(&post(1));
    (0..4).for_each(|_| talk.feed(&data(1, &part)));
    talk.take();
    talk.feed(&data(1, b"x"));
    let fault = StreamFault::Window;
    assert_eq!(talk.take(), format!("RST_STREAM 1 FLOW_CONTROL_ERROR; failed 1 {fault:?}"));
    assert_eq!(talk.connection.held(), 65_536, "also of a stream that has ended");
    talk.connection.release(1, 65_536, &mut talk.out);
    assert_eq!((talk.take().as_str(), talk.connection.held()), ("", 0));
    // 16 streams fill the window of the connection.
    let mut talk = Talk::server();
    talk.releases = false;
    for stream in (1..33).step_by(2) {
        talk.feed(&[post(stream), [data(stream, &part), data(stream, &part)].concat()].concat());
        talk.feed(&[data(stream, &part), data(stream, &part)].concat());
    }
    assert_eq!(talk.fault, None);
    talk.feed(&[post(33), data(33, b"x")].concat());
    assert_eq!(talk.fault, Some(ConnectionFault::Window));
}

#[test]
fn released_data_opens_the_windows_again() {
    let mut talk = Talk::server();
    let part = vec![b'x'; 16_384];
    talk.feed(&post(1));
    let updates = |said: &str| said.matches("WINDOW_UPDATE 1 32768").count();
    (0..100).for_each(|_| talk.feed(&data(1, &part)));
    assert_eq!((updates(&talk.take()), talk.fault), (50, None));
    // Padding and dropped data open them too.
    let padded = [&[255][..], &[0; 255]].concat();
    (0..200).for_each(|_| talk.feed(&frame(kind::DATA, flag::PADDED, 1, &padded)));
    talk.connection.reset(1, ErrorCode::CANCEL, &mut talk.out);
    (0..200).for_each(|_| talk.feed(&data(1, &part)));
    assert_eq!((talk.fault, talk.connection.held()), (None, 0));
}

#[test]
fn another_window_holds_once_it_is_acknowledged() {
    let mut talk = Talk::server();
    talk.releases = false;
    talk.feed(&[post(1), data(1, &[0; 1000])].concat());
    talk.connection.set_stream_window(500, talk.now_ms, &mut talk.out).unwrap();
    let again = talk.connection.set_stream_window(500, talk.now_ms, &mut talk.out);
    assert_eq!(again, Err(crate::SendFault::SettingsPending));
    talk.feed(&data(1, &[0; 1000]));
    talk.take();
    talk.feed(&settings_ack());
    assert_eq!(talk.take(), "acknowledged");
    // The stream's window is below zero. It opens once the bytes are released.
    talk.connection.release(1, 2000, &mut talk.out);
    assert_eq!(talk.take(), "WINDOW_UPDATE 1 2000");
    talk.feed(&[data(1, &[0; 500]), get(3)].concat());
    assert_eq!(talk.fault, None);
    talk.feed(&data(1, &[0; 1]));
    assert!(talk.take().contains("RST_STREAM 1 FLOW_CONTROL_ERROR"));
}

/// Before that the peer would add the difference to our first window to the wider one.
#[test]
fn a_window_is_widened_once_our_settings_are_acknowledged() {
    let mut talk = Talk::begin(H2Limits::default(), true);
    talk.feed(&[PREFACE.to_vec(), settings(&[]), post(1)].concat());
    talk.take();
    talk.connection.widen(1, 256 << 10);
    talk.connection.release(1, 0, &mut talk.out);
    assert_eq!(talk.take(), "");
    talk.feed(&settings_ack());
    assert_eq!(talk.take(), "acknowledged");
    talk.connection.widen(1, 256 << 10);
    talk.connection.release(1, 0, &mut talk.out);
    assert_eq!(talk.take(), format!("WINDOW_UPDATE 1 {}", 192 << 10));
}

#[test]
fn streams_beyond_the_limit_are_refused() {
    let mut talk = Talk::server();
    (0..101).for_each(|nth| talk.feed(&get(2 * nth + 1)));
    let said = talk.take();
    assert!(said.ends_with("RST_STREAM 201 REFUSED_STREAM; failed 201 TooMany"), "{said}");
    assert_eq!(talk.connection.streams(), 100);
}

#[test]
fn a_head_that_is_too_large_leaves_the_connection() {
    let limits = H2Limits { head_bytes_max: 2000, ..H2Limits::default() };
    let mut talk = Talk::greeted(limits, true);
    let long = "x".repeat(1500);
    let mut encoder = HpackEncoder::new();
    let mut large = Vec::new();
    let fields = [GET, &[("a", &long), ("b", &long), ("inserted", "value")]].concat();
    encoder.begin(&mut large);
    fields.iter().for_each(|pair| encoder.encode(field(pair), &mut large));
    talk.feed(&frame(kind::HEADERS, 5, 1, &large));
    assert_eq!(talk.take(), "GET 1 last too large");
    let status = HeaderField::new(b":status", b"431");
    talk.connection.respond(1, [status], true, &mut talk.out).unwrap();
    assert_eq!((talk.take().as_str(), talk.connection.streams()), ("HEADERS 1 0x5 1", 0));
    // The table has the dropped field, and the next block refers to it.
    let mut next = Vec::new();
    let fields = [GET, &[("inserted", "value")]].concat();
    fields.iter().for_each(|pair| encoder.encode(field(pair), &mut next));
    assert!(next.len() <= 6, "{next:?}");
    talk.feed(&frame(kind::HEADERS, 5, 3, &next));
    assert_eq!(talk.take(), "GET 3 last");
}

#[test]
fn priorities_are_followed() {
    let mut talk = Talk::server();
    let update = |id: u32, value: &[u8]| {
        frame(kind::PRIORITY_UPDATE, 0, 0, &[&id.to_be_bytes()[..], value].concat())
    };
    let with = |stream, value| headers(stream, 1, &[GET, &[("priority", value)]].concat());
    talk.feed(&[update(3, b"u=1"), update(3, b"u=2"), with(1, "u=5, i"), with(3, "u=7")].concat());
    talk.feed(&[get(5), update(5, b"u=0"), update(1, &[b'x'; 100]), with(7, "u=5, i")].concat());
    assert_eq!(talk.fault, None);
    let urgency = [1, 3, 5, 7].map(|stream| talk.connection.priority_of(stream).urgency);
    assert_eq!(urgency, [5, 2, 0, 5]);
    for stream in [1, 3, 5, 7] {
        let status = HeaderField::new(b":status", b"200");
        talk.connection.respond(stream, [status], false, &mut talk.out).unwrap();
        talk.connection.set_wants_to_send(stream, true);
    }
    let mut order = Vec::new();
    for _ in 0..8 {
        let (stream, room) = talk.connection.next_to_send().unwrap();
        assert!(room >= 4000);
        talk.connection
            .data(stream, 4000, order.len() % 2 == 1 && stream < 7 && stream > 1)
            .unwrap();
        order.push(stream);
    }
    // The urgent ones to their ends, and the incremental ones in turns.
    assert_eq!(order, [5, 5, 3, 3, 7, 1, 7, 1]);
}

/// Requests that name no priority take turns. One that names one is sent to its end first.
#[test]
fn requests_without_a_priority_take_turns() {
    let mut talk = Talk::server();
    let named = headers(5, 1, &[GET, &[("priority", "u=3")]].concat());
    talk.feed(&[get(1), get(3), named].concat());
    for stream in [1, 3, 5] {
        let status = HeaderField::new(b":status", b"200");
        talk.connection.respond(stream, [status], false, &mut talk.out).unwrap();
        talk.connection.set_wants_to_send(stream, true);
    }
    let mut order = Vec::new();
    for round in 0..6 {
        let (stream, _) = talk.connection.next_to_send().unwrap();
        talk.connection.data(stream, 4000, round == 1).unwrap();
        order.push(stream);
    }
    assert_eq!(order, [5, 5, 1, 3, 1, 3]);
}

#[test]
fn an_end_in_two_steps_loses_no_request() {
    let mut talk = Talk::server();
    talk.feed(&get(1));
    talk.connection.shutdown(2000, &mut talk.out);
    assert_eq!(talk.take(), "GET 1 last; GOAWAY 2147483647 NO_ERROR; PING");
    talk.feed(&get(3));
    talk.feed(&frame(kind::PING, flag::ACK, 0, b"shutdown"));
    assert_eq!(talk.take(), "GET 3 last; GOAWAY 3 NO_ERROR");
    // Later requests are decoded, for the table, and ignored, with their data.
    talk.feed(&[post(5), data(5, b"abc"), window(5, 1)].concat());
    talk.feed(&[reset(5, ErrorCode::CANCEL), reset(3, ErrorCode::CANCEL)].concat());
    assert_eq!((talk.take().as_str(), talk.connection.is_done()), ("reset 3 CANCEL", false));
    let status = HeaderField::new(b":status", b"200");
    talk.connection.respond(1, [status], true, &mut talk.out).unwrap();
    assert!(talk.connection.is_done());
}

/// A head that is half read when we say the last stream is of a later one.
#[test]
fn a_head_that_is_half_read_at_the_end_is_ignored() {
    let block = block(GET);
    let (begin, end) = block.split_at(block.len() / 2);
    for depends_on_itself in [false, true] {
        let mut talk = Talk::server();
        talk.feed(&get(1));
        match depends_on_itself {
            false => talk.feed(&frame(kind::HEADERS, flag::END_STREAM, 3, begin)),
            true => {
                let begin = [&[0, 0, 0, 3, 0][..], begin].concat();
                talk.feed(&frame(kind::HEADERS, flag::END_STREAM | flag::PRIORITY, 3, &begin));
            }
        }
        talk.connection.shutdown(2000, &mut talk.out);
        talk.connection.expire(3000, &mut talk.out).unwrap();
        assert!(talk.take().ends_with("GOAWAY 1 NO_ERROR"));
        talk.feed(&frame(kind::CONTINUATION, flag::END_HEADERS, 3, end));
        talk.feed(&reset(3, ErrorCode::CANCEL));
        assert_eq!((talk.take().as_str(), talk.connection.streams(), talk.fault), ("", 1, None));
    }
}

/// The caller may reset a stream between the pieces of its trailers.
#[test]
fn trailers_of_a_stream_that_we_reset_are_ignored() {
    for fields in [&[("a", "b")][..], &[("A", "b")]] {
        let block = block(fields);
        let (begin, end) = block.split_at(2);
        let mut talk = Talk::server();
        talk.feed(&[post(1), frame(kind::HEADERS, flag::END_STREAM, 1, begin)].concat());
        talk.connection.reset(1, ErrorCode::CANCEL, &mut talk.out);
        talk.feed(&frame(kind::CONTINUATION, flag::END_HEADERS, 1, end));
        assert_eq!(talk.take(), "POST 1; RST_STREAM 1 CANCEL");
        assert_eq!(talk.connection.drops.level, 0);
    }
}

#[test]
fn trailers_that_are_too_large_cost_their_stream() {
    let limits = H2Limits { head_bytes_max: 2000, ..H2Limits::default() };
    let mut talk = Talk::greeted(limits, true);
    let long = "x".repeat(2000);
    let trailers = headers(1, flag::END_STREAM, &[("a", &long), ("grpc-status", "0")]);
    talk.feed(&[post(1), trailers, get(3)].concat());
    let wanted = "POST 1; RST_STREAM 1 ENHANCE_YOUR_CALM; failed 1 HeadTooLarge; GET 3 last";
    assert_eq!(talk.take(), wanted);
}

#[test]
fn a_tunnel_has_no_length() {
    let connect = [(":method", "CONNECT"), (":authority", "a.example:443")];
    let connect = [&connect[..], &[("content-length", "1")]].concat();
    check("CONNECT", &[headers(1, 0, &connect), data(1, b"abc")], "CONNECT 1; data 1 abc");
}

/// Padding alone uses a stream's window, and the caller never sees it.
#[test]
fn padding_opens_its_window_again() {
    let mut talk = Talk::server();
    talk.feed(&post(1));
    let padded = frame(kind::DATA, flag::PADDED, 1, &[&[255][..], &[0; 255]].concat());
    (0..300).for_each(|_| talk.feed(&padded));
    talk.feed(&last_data(1, b"abc"));
    assert_eq!(talk.take(), "POST 1; WINDOW_UPDATE 1 32768; WINDOW_UPDATE 1 32768; data 1 abc.");
}

#[test]
fn what_is_due_is_done() {
    let mut talk = Talk::begin(H2Limits::default(), true);
    assert_eq!(talk.connection.due_ms(), Some(11_000));
    assert_eq!(talk.connection.expire(10_999, &mut talk.out), Ok(()));
    let late = talk.connection.expire(11_000, &mut talk.out);
    assert_eq!(late, Err(ConnectionFault::SettingsTimeout));
    assert_eq!(talk.take(), "GOAWAY 0 SETTINGS_TIMEOUT");
    assert_eq!(talk.connection.due_ms(), None);
    let mut talk = Talk::server();
    assert_eq!(talk.connection.due_ms(), None);
    talk.connection.shutdown(2000, &mut talk.out);
    assert_eq!(talk.connection.due_ms(), Some(3000));
    talk.connection.expire(3000, &mut talk.out).unwrap();
    assert_eq!(talk.take(), "GOAWAY 2147483647 NO_ERROR; PING; GOAWAY 0 NO_ERROR");
    assert!(talk.connection.is_done());
}

proptest! {
    /// Any frames in any cut: the same events, the same answers, and no more than a small rest.
    #[test]
    fn any_frames_in_any_cut(
        frames in proptest::collection::vec(
            (
                prop_oneof![0_u8..11, Just(16), any::<u8>()],
                any::<u8>(),
                0_u32..6,
                prop_oneof![
                    proptest::collection::vec(any::<u8>(), 0..30),
                    Just(block(GET)),
                    Just(vec![0; 4]),
                    Just(vec![0; 8]),
                ],
            ),
            0..12,
        ),
        piece in 1_usize..30,
    ) {
        let bytes: Vec<u8> = frames
            .iter()
            .flat_map(|(kind, flags, stream, payload)| frame(*kind, *flags, *stream, payload))
            .collect();
        let said = [usize::MAX, piece].map(|piece| {
            let mut talk = Talk::server();
            talk.piece = piece;
            talk.feed(&bytes);
            (talk.take(), talk.fault)
        });
        prop_assert_eq!(&said[0], &said[1]);
    }
}
