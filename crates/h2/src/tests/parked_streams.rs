//! Open streams of parked connections: their entries, what is answered on them, what is refused.

use std::iter::repeat;

use super::parked::check_go_away;
use super::*;
use crate::frame::setting;
use crate::stream::{Receiving, Sending};
use crate::{
    LastOfStream, NotAtRest, PARKED_FIXED_BYTES, PARKED_STREAM_BYTES, ParkedAnswer,
    ParkedConnection, ParkedFault, RequestKind, StreamEntryFault,
};

/// The index at which the first entry begins.
const ENTRIES: usize = PARKED_FIXED_BYTES + 2;
const CONNECT: Fields<'_> = &[
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "https"),
    (":authority", "a.example"),
    (":path", "/"),
];

/// Opens a stream whose response has begun, as a WebSocket's.
fn open(talk: &mut Talk, stream: u32) {
    talk.feed(&headers(stream, 0, CONNECT));
    let fields = [HeaderField::new(b":status", b"200")];
    talk.connection.respond(stream, fields, false, &mut talk.out).unwrap();
    talk.take();
}

/// A server's connection with these streams, all of WebSockets.
fn with_streams(streams: &[u32]) -> Talk {
    let mut talk = Talk::server();
    streams.iter().for_each(|stream| open(&mut talk, *stream));
    talk
}

fn parked(streams: &[u32]) -> ParkedConnection {
    with_streams(streams).connection.export().unwrap()
}

/// The connection as it comes back from its bytes.
fn back(connection: &H2Connection) -> H2Connection {
    let parked = connection.export().unwrap();
    let parked = ParkedConnection::from_bytes(parked.as_bytes()).unwrap();
    check_go_away(&parked);
    assert_eq!(parked.streams(), connection.streams());
    let back = H2Connection::import(&parked, 1000).unwrap();
    assert_eq!(back.export(), Ok(parked));
    back
}

#[test]
fn each_stream_takes_one_entry() {
    let bytes = |streams: &[u32]| parked(streams).as_bytes().len();
    let none = bytes(&[]);
    assert_eq!(parked(&[]).as_bytes()[0], 1, "as a program reads it that knows no streams");
    assert_eq!(parked(&[1]).as_bytes()[0], 2);
    assert_eq!(bytes(&[1]) - none, 2 + PARKED_STREAM_BYTES);
    assert_eq!(bytes(&[1, 3, 9]) - none, 2 + 3 * PARKED_STREAM_BYTES);
    assert_eq!(PARKED_STREAM_BYTES, 26);
}

/// Each state of a server's stream goes on as if it had never rested.
#[test]
fn a_servers_streams_go_on() {
    let mut talk = with_streams(&[1]);
    // An upload of ten bytes of which four came; a long poll; a response whose request is over.
    let length = [POST, &[("content-length", "10")]].concat();
    talk.feed(&[headers(3, 0, &length), data(3, b"abcd"), get(5), post(7)].concat());
    let fields = [HeaderField::new(b":status", b"200")];
    talk.connection.respond(7, fields, true, &mut talk.out).unwrap();
    talk.feed(&headers(9, 0, &[POST, &[("priority", "u=6, i")]].concat()));
    talk.take();
    let wanted = talk.connection.priority_of(9);
    talk.connection = back(&talk.connection);
    assert_eq!((wanted.urgency, talk.connection.priority_of(9)), (6, wanted));
    talk.feed(&[data(3, b"efgh"), last_data(3, b"ij"), data(1, b"ping")].concat());
    assert_eq!(talk.take(), "data 3 efghij.; data 1 ping");
    talk.connection = back(&talk.connection);
    talk.feed(&last_data(7, b"late"));
    assert_eq!(talk.take(), "data 7 late.");
    assert_eq!(talk.connection.streams(), 4, "the stream of both ends has ended");
    talk.connection.respond(5, fields, true, &mut talk.out).unwrap();
    let head = talk.connection.data(1, 4, false).unwrap();
    assert_eq!(head[..5], [0, 0, 4, kind::DATA, 0]);
    talk.feed(&data(5, b"x"));
    assert!(talk.fault == Some(ConnectionFault::StreamClosed), "{:?}", talk.fault);
}

/// The last data of a stream needs room in its own window and in the connection's.
#[test]
fn streams_end_where_they_rest_as_their_windows_allow() {
    let mut talk = with_streams(&[1, 3, 5, 7]);
    (0..4).for_each(|_| _ = talk.connection.data(3, 16_383, false).unwrap());
    talk.feed(&frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 4]));
    talk.take();
    let parked = talk.connection.export().unwrap();
    let mut lasts = [LastOfStream::Nothing].into_iter().chain(repeat(LastOfStream::Data(b"last")));
    let mut out = Vec::new();
    ParkedConnection::end_streams(parked.as_bytes(), || lasts.next().unwrap(), &mut out);
    // Of stream 3 three bytes may be sent, and of the connection seven.
    assert_eq!(out, last_data(5, b"last"));
}

/// A response stands alone where its text does not fit, and follows a changed size of the table.
/// One that has begun gets none.
#[test]
fn streams_are_answered_where_they_rest() {
    let mut talk = with_streams(&[1]);
    let changed = [(setting::HEADER_TABLE_SIZE, 64), (setting::INITIAL_WINDOW_SIZE, 10)];
    talk.feed(&[settings(&changed), get(3), post(5), get(7)].concat());
    talk.take();
    let parked = talk.connection.export().unwrap();
    let texts: [&[u8]; 4] = [b"too late", b"this fits", b"and this", b"this is long"];
    let mut lasts = texts.iter().map(|text| LastOfStream::Response { status: 503, text });
    ParkedConnection::end_streams(parked.as_bytes(), || lasts.next().unwrap(), &mut talk.out);
    ParkedConnection::go_away(parked.as_bytes(), &mut talk.out);
    // The first block says the size: 64, in five bits and eight.
    assert_eq!(talk.out[FRAME_HEAD_BYTES..][..2], [0x3f, 64 - 31]);
    let said = "HEADERS 3 0x4 2; frame 0x0; HEADERS 5 0x4 2; frame 0x0; RST_STREAM 5 NO_ERROR; \
                HEADERS 7 0x5 2; GOAWAY 7 NO_ERROR";
    assert_eq!(talk.take(), said);
}

#[test]
fn a_length_is_still_checked() {
    let mut talk = Talk::server();
    talk.feed(&[headers(1, 0, &[POST, &[("content-length", "5")]].concat())].concat());
    talk.feed(&data(1, b"abc"));
    talk.connection = back(&talk.connection);
    talk.take();
    talk.feed(&last_data(1, b"d"));
    assert!(talk.take().starts_with("RST_STREAM 1 PROTOCOL_ERROR; failed 1 Malformed(Length)"));
}

#[test]
fn a_clients_streams_go_on() {
    let mut talk = Talk::client();
    for kind in [RequestKind::Head, RequestKind::Connect, RequestKind::Other] {
        let fields = GET.iter().map(field);
        talk.connection.request(fields, kind, kind == RequestKind::Head, &mut talk.out).unwrap();
    }
    talk.take();
    talk.connection = back(&talk.connection);
    let length = &[(":status", "200"), ("content-length", "7")][..];
    // HEAD has no body, whatever its length. What follows a successful CONNECT has none either.
    talk.feed(&headers(1, flag::END_STREAM, length));
    talk.feed(&[headers(3, 0, &[(":status", "200")]), headers(5, 0, length)].concat());
    assert_eq!(talk.take(), "200 1 last; 200 3; 200 5");
    talk.connection = back(&talk.connection);
    talk.feed(&[data(3, b"any"), last_data(5, b"7 bytes")].concat());
    assert_eq!(talk.take(), "data 3 any; data 5 7 bytes.");
    // After GOAWAY the streams up to its last one go on.
    talk.feed(&frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]));
    talk.take();
    talk.connection = back(&talk.connection);
    assert_eq!((talk.connection.can_open(), talk.connection.streams()), (false, 1));
    talk.feed(&last_data(3, b"end"));
    assert_eq!(talk.take(), "data 3 end.");
}

/// Data that will not come any more leaves no window behind, so that its bytes count for nobody.
#[test]
fn the_window_of_an_ended_request_is_not_kept() {
    let mut talk = with_streams(&[]);
    talk.releases = false;
    talk.feed(&[post(1), last_data(1, b"abc")].concat());
    talk.connection.release(1, 3, &mut talk.out);
    let mut stays = back(&talk.connection);
    let (mut said, mut wanted) = (Vec::new(), Vec::new());
    for (connection, out) in [(&mut talk.connection, &mut said), (&mut stays, &mut wanted)] {
        connection.set_stream_window(1, 1000, out).unwrap();
        assert!(connection.receive(&settings_ack(), 1000, out).is_ok());
    }
    assert_eq!(said, wanted);
    assert_eq!(said.len(), FRAME_HEAD_BYTES + 6, "no window is opened: {said:?}");
}

#[test]
fn more_streams_than_the_form_has_do_not_rest() {
    let max = usize::from(crate::limits::PARKED_STREAMS_MAX);
    let mut talk = Talk::greeted(H2Limits::default(), false);
    let mut out = Vec::new();
    for count in 1..=max + 1 {
        let fields = GET.iter().map(field);
        talk.connection.request(fields, RequestKind::Other, true, &mut out).unwrap();
        let wanted = if count > max { Err(NotAtRest::Streams(count)) } else { Ok(()) };
        assert_eq!(talk.connection.rests(), wanted);
    }
}

/// An answer in place is the one that the connection would have given, and leaves its state.
#[test]
fn windows_are_opened_in_place() {
    let mut stays = with_streams(&[1, 3]).connection;
    let mut asleep = stays.export().unwrap();
    for bytes in [
        window(1, 5),
        window(3, 70_000),
        window(0, 9),
        settings(&[(setting::INITIAL_WINDOW_SIZE, 10)]),
        window(1, 2),
        settings(&[(setting::INITIAL_WINDOW_SIZE, 0), (setting::INITIAL_WINDOW_SIZE, 20)]),
        frame(kind::PRIORITY, 0, 3, &[0, 0, 0, 1, 5]),
        frame(kind::PING, 0, 0, b"12345678"),
    ] {
        let (mut out, mut wanted) = (Vec::new(), Vec::new());
        let answer = asleep.answer(&bytes, 1000, &mut out);
        assert_eq!(answer, ParkedAnswer::NeedMore { consumed: bytes.len(), at_least: 9 });
        let mut rest = &bytes[..];
        while let Ok(H2Received::Event { consumed, .. }) = stays.receive(rest, 1000, &mut wanted) {
            rest = &rest[consumed..];
        }
        assert_eq!((out, Ok(&asleep)), (wanted, stays.export().as_ref()));
    }
    let mut connection = H2Connection::import(&asleep, 1000).unwrap();
    assert_eq!([1, 3].map(|stream| connection.window(stream)), [5 + 2 + 20, 65_535 + 9]);
}

/// The entries lie before all that connections share, so that the part of a state that is not
/// shared is enough to answer on.
#[test]
fn the_numbers_and_the_entries_are_enough() {
    let mut talk = with_streams(&[1, 3]);
    let fields = [(":status", "200"), ("server", "nginx"), ("content-type", "text/html")];
    talk.feed(&get(5));
    let fields = fields.iter().map(field);
    talk.connection.respond(5, fields, true, &mut talk.out).unwrap();
    let mut whole = talk.connection.export().unwrap();
    let shared = whole.common_fields().first().unwrap().start;
    assert!(shared >= ENTRIES + 2 * PARKED_STREAM_BYTES);
    let mut first = ParkedConnection::new(whole.as_bytes()[..shared].into());
    for bytes in [window(3, 5), settings(&[(setting::INITIAL_WINDOW_SIZE, 70_000)])] {
        let (mut out, mut wanted) = (Vec::new(), Vec::new());
        let answer = whole.answer(&bytes, 1000, &mut wanted);
        assert_eq!((first.answer(&bytes, 1000, &mut out), &out), (answer, &wanted));
    }
    assert_eq!(first.as_bytes(), &whole.as_bytes()[..shared]);
    let (mut out, mut wanted) = (Vec::new(), Vec::new());
    ParkedConnection::go_away(first.as_bytes(), &mut out);
    ParkedConnection::go_away(whole.as_bytes(), &mut wanted);
    assert_eq!(out, wanted);
}

#[test]
fn what_a_stream_must_know_wakes_the_connection() {
    let fresh = || with_streams(&[1, 3]).connection;
    // Stream 3 has used up its window, or the connection's.
    let used = |all: usize| {
        let mut connection = fresh();
        let mut out = Vec::new();
        connection.receive(&window(3, 10_000), 1000, &mut out).unwrap();
        let mut left = all;
        while left > 0 {
            let len = connection.room(3).min(left);
            connection.data(3, len, false).unwrap();
            left -= len;
        }
        connection
    };
    let narrowed = || {
        let mut connection = used(0);
        let narrow = settings(&[(setting::INITIAL_WINDOW_SIZE, 0)]);
        assert!(connection.receive(&narrow, 1000, &mut Vec::new()).is_ok());
        connection
    };
    for (why, connection, bytes) in [
        ("data", fresh(), data(1, b"a")),
        ("the end", fresh(), last_data(3, b"")),
        ("trailers", fresh(), headers(1, flag::END_STREAM, &[("sum", "1")])),
        ("a request", fresh(), get(5)),
        ("RST_STREAM", fresh(), reset(3, ErrorCode::CANCEL)),
        ("GOAWAY", fresh(), frame(kind::GOAWAY, 0, 0, &[0; 8])),
        ("a window beyond 2^31-1", fresh(), window(1, 0x7fff_ffff)),
        ("no increment", fresh(), window(3, 0)),
        ("an idle stream", fresh(), window(5, 1)),
        ("a stream that depends on itself", fresh(), {
            frame(kind::PRIORITY, 0, 3, &[0, 0, 0, 3, 5])
        }),
        ("windows beyond 2^31-1", used(0), {
            settings(&[(setting::INITIAL_WINDOW_SIZE, 0x7fff_ffff)])
        }),
        ("the connection can send again", used(65_535), window(0, 1)),
        ("a stream can send again", narrowed(), window(1, 1)),
        ("all streams can send again", narrowed(), {
            settings(&[(setting::INITIAL_WINDOW_SIZE, 1)])
        }),
    ] {
        let before = connection.export().unwrap();
        let (mut asleep, mut out) = (before.clone(), Vec::new());
        let answer = asleep.answer(&bytes, 1000, &mut out);
        assert_eq!((answer, &out[..]), (ParkedAnswer::Wake { consumed: 0 }, &[][..]), "{why}");
        assert_eq!(asleep, before, "{why}");
    }
    // Where nothing could be sent before and after, nobody is woken.
    for (connection, bytes) in [
        (used(65_535), window(3, 1)),
        (used(65_535), settings(&[(setting::INITIAL_WINDOW_SIZE, 70_000)])),
        (narrowed(), window(0, 1)),
    ] {
        let mut asleep = connection.export().unwrap();
        let answer = asleep.answer(&bytes, 1000, &mut Vec::new());
        assert!(matches!(answer, ParkedAnswer::NeedMore { .. }), "{bytes:?}");
    }
}

/// The bytes of a parked connection with one change.
#[track_caller]
fn changed(whole: &[u8], at: usize, bytes: &[u8]) -> ParkedFault {
    let mut changed = whole.to_vec();
    changed[at..at + bytes.len()].copy_from_slice(bytes);
    ParkedConnection::from_bytes(&changed).unwrap_err()
}

#[test]
fn entries_that_no_connection_has_are_refused() {
    let state = parked(&[1, 3, 5]);
    let whole = state.as_bytes();
    let second = ENTRIES + PARKED_STREAM_BYTES;
    let fault = |index, fault| ParkedFault::Stream { index, fault };
    let id = |id: u32| changed(whole, second, &id.to_be_bytes());
    for wrong in [0, 1, 2, 4, 7, 0x8000_0003] {
        assert!(matches!(id(wrong), ParkedFault::Stream { fault: StreamEntryFault::Id, .. }));
    }
    assert_eq!(id(5), fault(2, StreamEntryFault::Id), "twice");
    let word = |at: usize, value: u32| changed(whole, second + at, &value.to_be_bytes());
    let window = fault(1, StreamEntryFault::Window);
    assert_eq!(word(4, 1 << 31), window, "2^31 bytes too many were sent");
    assert_eq!(word(8, 1 << 31), window);
    assert_eq!(word(8, 65_537), window, "more than its size may come");
    assert_eq!(word(12, 65_535), window);
    assert_eq!(word(12, 1 << 31), window, "beyond 2^31-1");
    let state = fault(1, StreamEntryFault::State);
    assert_eq!(word(20, 1), state, "a length that was not announced");
    // Sending is body and receiving a body without length, urgency 3, in turns.
    assert_eq!(whole[second + 24..second + 26], [1, 0x65]);
    for bits in [3_u8, 7 << 2 | 1, 6 << 2 | 1, 3 << 2 | 1] {
        assert_eq!(changed(whole, second + 25, &[bits]), state, "{bits:#b}");
    }
    assert_eq!(changed(whole, second + 24, &[0x05]), state, "an unknown bit");
    let both_ended = [&[0; 16][..], &[0, 2]].concat();
    assert_eq!(changed(whole, second + 8, &both_ended), state);
    assert_eq!(changed(whole, second + 25, &[1]), window, "a window for nothing");
    let count = |count: u16| changed(whole, PARKED_FIXED_BYTES, &count.to_be_bytes());
    assert_eq!(count(0), ParkedFault::Value);
    assert_eq!(count(101), ParkedFault::Value, "more than we allow");
    assert_eq!(count(100), ParkedFault::Length(whole.len()));
    assert_eq!(changed(whole, 1, &[0x0a]), fault(0, StreamEntryFault::Id), "after our GOAWAY");
    let last = fault(2, StreamEntryFault::Id);
    assert_eq!(changed(whole, 2, &[0, 0, 0, 3]), last, "above the last stream");
    for len in 0..whole.len() {
        assert!(ParkedConnection::from_bytes(&whole[..len]).is_err(), "{len} bytes");
    }
    assert_eq!(changed(whole, 0, &[3]), ParkedFault::Version(3));
}

/// A client has sent its request's head, and a server has got it.
#[test]
fn states_are_of_their_role() {
    let mut talk = Talk::client();
    let fields = GET.iter().map(field);
    talk.connection.request(fields, RequestKind::Other, false, &mut talk.out).unwrap();
    let client = talk.connection.export().unwrap();
    let state = ParkedFault::Stream { index: 0, fault: StreamEntryFault::State };
    assert_eq!(changed(client.as_bytes(), 1, &[0]), state);
    assert_eq!(changed(client.as_bytes(), ENTRIES + 25, &[5 << 2]), state);
    let mut talk = Talk::server();
    talk.feed(&get(1));
    let server = talk.connection.export().unwrap();
    let stream = H2Connection::import(&server, 1000).unwrap();
    let stream = stream.streams.iter().next().unwrap();
    assert_eq!((stream.sending, stream.receiving), (Sending::Head, Receiving::Ended));
    assert_eq!(changed(server.as_bytes(), 1, &[1]), state);
}
