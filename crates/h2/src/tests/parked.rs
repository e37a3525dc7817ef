//! Parked connections as bytes: how many, what comes back, and what is answered on them.

use proptest::prelude::*;

use super::*;
use crate::frame::setting;
use crate::limits::CONTROL_FRAMES_MAX;
use crate::{
    INPUT_BYTES_MIN, NotAtRest, PARKED_FIXED_BYTES, ParkedAnswer, ParkedConnection, ParkedFault,
    RequestKind,
};

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digit).collect()
}

/// Header blocks of requests, as clients send them.
fn requests(client: &str) -> Vec<Vec<u8>> {
    let lines = include_str!("../../testdata/browser.txt").lines();
    lines.filter_map(|line| Some(bytes(line.strip_prefix(client)?.trim()))).collect()
}

/// Returns the fields that servers answer to `nth` requests of a browser.
fn response(nth: usize) -> Vec<(&'static str, String)> {
    let kinds = ["text/html; charset=utf-8", "text/css", "text/javascript", "image/webp"];
    vec![
        (":status", "200".into()),
        ("content-type", kinds[nth % 4].into()),
        ("content-length", (nth * 977).to_string()),
        ("cache-control", if nth == 0 { "no-cache" } else { "public, max-age=31536000" }.into()),
        ("etag", format!("\"{:x}\"", nth * 0x9e37_79b9)),
        ("date", format!("Mon, 02 Nov 2026 10:00:{nth:02} GMT")),
        ("server", "nginx".into()),
        ("vary", "accept-encoding".into()),
        ("strict-transport-security", "max-age=63072000; includeSubDomains".into()),
        ("x-content-type-options", "nosniff".into()),
    ]
}

/// A connection after these requests, each answered.
fn served(blocks: &[Vec<u8>]) -> Talk {
    let mut talk = Talk::server();
    for (nth, block) in blocks.iter().enumerate() {
        let stream = 2 * nth as u32 + 1;
        talk.feed(&frame(kind::HEADERS, 5, stream, block));
        assert_eq!(talk.fault, None);
        let fields = response(nth);
        let fields =
            fields.iter().map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
        talk.connection.respond(stream, fields, false, &mut talk.out).unwrap();
        talk.connection.data(stream, 977, true).unwrap();
        talk.answers();
    }
    talk.take();
    talk
}

#[test]
fn a_parked_connection_is_small() {
    for (client, count, bytes_max) in [("curl", 1, 600), ("chromium", 20, 2048)] {
        let blocks = requests(client);
        assert_eq!(blocks.len(), count);
        let parked = served(&blocks).connection.export().unwrap();
        let held = size_of::<ParkedConnection>() + parked.as_bytes().len();
        println!("{client}: {held} bytes, tables included");
        assert!(held <= bytes_max, "{client}: {held} bytes");
    }
    println!("active: {} bytes, and what it points to", size_of::<H2Connection>());
    assert!(size_of::<H2Connection>() <= 544);
}

/// GOAWAY is written from the numbers alone, and is that of the whole connection.
pub(super) fn check_go_away(parked: &ParkedConnection) {
    let (mut written, mut expected) = (Vec::new(), Vec::new());
    ParkedConnection::go_away(parked.as_bytes(), &mut written);
    let mut connection = H2Connection::import(parked, 0).unwrap();
    connection.close(ErrorCode::NO_ERROR, &mut expected);
    assert_eq!(written, expected);
    ParkedConnection::go_away(&parked.as_bytes()[1..], &mut written);
    assert_eq!(written, expected, "bytes that are none write nothing");
}

#[test]
fn a_connection_comes_back_as_it_was() {
    let blocks = requests("chromium");
    let mut stays = served(&blocks[..10]);
    let mut moves = served(&blocks[..10]);
    for (nth, block) in blocks.iter().enumerate().skip(10) {
        let parked = moves.connection.export().unwrap();
        let parked = ParkedConnection::from_bytes(parked.as_bytes()).unwrap();
        moves.connection = H2Connection::import(&parked, moves.now_ms).unwrap();
        check_go_away(&parked);
        assert_eq!(moves.connection.export(), Ok(parked));
        let said = [&mut stays, &mut moves].map(|talk| {
            let stream = 2 * nth as u32 + 1;
            talk.feed(&frame(kind::HEADERS, 5, stream, block));
            let fields = response(nth);
            let fields = fields
                .iter()
                .map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
            let mut out = Vec::new();
            talk.connection.respond(stream, fields, true, &mut out).unwrap();
            (talk.take(), out)
        });
        assert_eq!(said[0], said[1]);
    }
}

#[test]
fn a_clients_connection_comes_back_too() {
    let mut talk = Talk::client();
    for stream in [1, 3, 5] {
        let fields = GET.iter().map(field);
        let asked = talk.connection.request(fields, RequestKind::Other, true, &mut talk.out);
        assert_eq!(asked, Ok(stream));
        talk.feed(&headers(stream, flag::END_STREAM, &[(":status", "204")]));
        assert_eq!(talk.take(), format!("HEADERS {stream} 0x5 4; 204 {stream} last"));
        let parked = talk.connection.export().unwrap();
        assert_eq!(parked.last_stream(), stream);
        talk.connection = H2Connection::import(&parked, talk.now_ms).unwrap();
        check_go_away(&parked);
    }
    talk.feed(&frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 5, 0, 0, 0, 0]));
    let parked = talk.connection.export().unwrap();
    assert!(!H2Connection::import(&parked, talk.now_ms).unwrap().can_open());
}

#[test]
fn only_a_connection_at_rest_is_exported() {
    let mut talk = Talk::begin(H2Limits::default(), true);
    let why = |talk: &Talk| talk.connection.export().unwrap_err();
    assert_eq!(why(&talk), NotAtRest::NotGreeted);
    talk.feed(&[&PREFACE[..], &settings(&[])].concat());
    assert_eq!(why(&talk), NotAtRest::SettingsPending);
    talk.feed(&settings_ack());
    assert!(talk.connection.can_park());
    talk.feed(&post(1));
    assert!(talk.connection.export().is_ok() && !talk.connection.can_park(), "a stream");
    talk.releases = false;
    talk.feed(&data(1, b"abc"));
    assert_eq!(why(&talk), NotAtRest::Held { stream: 0, bytes: 3 });
    talk.connection.release_connection(3, &mut talk.out);
    assert_eq!(why(&talk), NotAtRest::Held { stream: 1, bytes: 3 });
    talk.connection.release(1, 3, &mut talk.out);
    talk.connection.set_wants_to_send(1, true);
    assert_eq!(why(&talk), NotAtRest::Queued { stream: 1 });
    talk.connection.reset(1, ErrorCode::CANCEL, &mut talk.out);
    let parked = talk.connection.export().unwrap();
    // Late frames of the stream that we reset are ignored after the import, too.
    talk.connection = H2Connection::import(&parked, 0).unwrap();
    talk.take();
    talk.feed(&data(1, b"late"));
    assert_eq!(talk.take(), "");
    talk.feed(&frame(kind::DATA, 0, 1, b"abc")[..10]);
    talk.feed(b"");
    assert_eq!(why(&talk), NotAtRest::Frame);
    talk.feed(b"bc");
    let begun = headers(5, 0, POST);
    talk.feed(&frame(kind::HEADERS, 0, 5, &begun[FRAME_HEAD_BYTES..]));
    assert_eq!(why(&talk), NotAtRest::HeadBlock);
    talk.feed(&frame(kind::CONTINUATION, flag::END_HEADERS | flag::END_STREAM, 5, &[]));
    talk.connection.reset(5, ErrorCode::CANCEL, &mut talk.out);
    talk.connection.shutdown(1000, &mut talk.out);
    assert_eq!(why(&talk), NotAtRest::ShutdownPending);
    talk.feed(&frame(kind::PING, flag::ACK, 0, b"shutdown"));
    let parked = talk.connection.export().unwrap();
    talk.connection = H2Connection::import(&parked, 0).unwrap();
    talk.take();
    talk.feed(&get(7));
    assert_eq!((talk.take().as_str(), talk.connection.is_done()), ("", true));
    talk.feed(&frame(kind::GOAWAY, 0, 0, &[0; 7]));
    assert_eq!(why(&talk), NotAtRest::Closed);
}

/// An answer in place is the one that the connection would have given, in every cut, and leaves the
/// same state.
#[test]
fn small_frames_are_answered_in_place() {
    let frames = [
        frame(kind::PING, 0, 0, b"12345678"),
        window(0, 1000),
        window(1, 5),
        frame(kind::PRIORITY, 0, 9, &[0, 0, 0, 1, 5]),
        settings(&[(setting::INITIAL_WINDOW_SIZE, 70_000), (setting::MAX_CONCURRENT_STREAMS, 5)]),
        settings(&[(setting::HEADER_TABLE_SIZE, 4096), (setting::ENABLE_CONNECT_PROTOCOL, 1)]),
        settings_ack(),
        frame(kind::PING, 0, 0, b"abcdefgh"),
    ];
    let all = frames.concat();
    for piece in 1..all.len() {
        let mut parked = served(&requests("curl")).connection.export().unwrap();
        let mut talk = served(&requests("curl"));
        let (mut out, mut held) = (Vec::new(), Vec::new());
        for piece in all.chunks(piece) {
            held.extend_from_slice(piece);
            let ParkedAnswer::NeedMore { consumed, at_least } =
                parked.answer(&held, 1000, &mut out)
            else {
                panic!("not answered");
            };
            held.drain(..consumed);
            assert!(held.len() < at_least && at_least <= INPUT_BYTES_MIN);
        }
        let mut wanted = Vec::new();
        let mut rest = &all[..];
        while let Ok(H2Received::Event { consumed, .. }) =
            talk.connection.receive(rest, 1000, &mut wanted)
        {
            rest = &rest[consumed..];
        }
        assert_eq!(out, wanted, "in pieces of {piece}");
        assert_eq!(talk.connection.export(), Ok(parked));
    }
}

#[test]
fn what_needs_the_connection_wakes_it() {
    for (why, bytes) in [
        ("a request", get(3)),
        ("the beginning of a request", get(3)[..9].to_vec()),
        ("a table size", settings(&[(setting::HEADER_TABLE_SIZE, 100)])),
        ("a setting that is not allowed", settings(&[(setting::ENABLE_PUSH, 2)])),
        ("many settings", settings(&[(0x99, 1); 12])),
        ("GOAWAY", frame(kind::GOAWAY, 0, 0, &[0; 8])),
        ("a pong", frame(kind::PING, flag::ACK, 0, b"12345678")),
        ("a short PING", frame(kind::PING, 0, 0, &[0; 7])),
        ("no increment", window(0, 0)),
        ("a window too wide", window(0, 0x7fff_ffff)),
        ("a window of an idle stream", window(3, 1)),
        ("a window of an even stream", window(2, 1)),
        ("a circle", frame(kind::PRIORITY, 0, 9, &[0, 0, 0, 9, 5])),
        ("RST_STREAM", reset(1, ErrorCode::CANCEL)),
        ("PRIORITY_UPDATE", frame(kind::PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 3])),
        ("an unknown frame", frame(0x77, 0, 0, &[])),
    ] {
        let mut parked = served(&requests("curl")).connection.export().unwrap();
        let ping = frame(kind::PING, 0, 0, &[0; 8]);
        let mut out = Vec::new();
        let answer = parked.answer(&[ping.clone(), bytes].concat(), 1000, &mut out);
        let pong = frame(kind::PING, flag::ACK, 0, &[0; 8]);
        assert_eq!((answer, out), (ParkedAnswer::Wake { consumed: ping.len() }, pong), "{why}");
    }
}

#[test]
fn a_flood_wakes_the_connection_which_ends_it() {
    let mut parked = served(&requests("curl")).connection.export().unwrap();
    let ping = frame(kind::PING, 0, 0, &[0; 8]);
    let mut out = Vec::new();
    let mut answered = 0;
    while let ParkedAnswer::NeedMore { .. } = parked.answer(&ping, 1000, &mut out) {
        answered += 1;
    }
    assert!((990..=CONTROL_FRAMES_MAX).contains(&answered), "{answered}");
    let mut connection = H2Connection::import(&parked, 1000).unwrap();
    out.clear();
    let received = connection.receive(&ping, 1000, &mut out);
    assert_eq!(received, Err(ConnectionFault::Flood(crate::Flood::Control)));
    // A trickle never does.
    let mut parked = served(&requests("curl")).connection.export().unwrap();
    for nth in 0..5_000 {
        let answer = parked.answer(&ping, 1000 + 10 * nth, &mut Vec::new());
        assert_eq!(answer, ParkedAnswer::NeedMore { consumed: ping.len(), at_least: 9 });
    }
    // Answers that nobody reads are not piled up.
    let mut out = vec![0; crate::OUTPUT_BYTES_MAX];
    let answer = parked.answer(&ping, 100_000, &mut out);
    assert_eq!(answer, ParkedAnswer::OutputFull { consumed: 0 });
}

#[test]
fn other_bytes_are_refused() {
    let parked = served(&requests("curl")).connection.export().unwrap();
    let whole = parked.as_bytes();
    let changed = |at: usize, byte: u8| {
        let mut bytes = whole.to_vec();
        bytes[at] = byte;
        ParkedConnection::from_bytes(&bytes).map(|_| ())
    };
    assert_eq!(changed(0, 9), Err(ParkedFault::Version(9)));
    assert_eq!(changed(1, 0x80), Err(ParkedFault::Value));
    assert_eq!(changed(2, 0x80), Err(ParkedFault::Value), "a stream of 32 bits");
    assert_eq!(changed(5, 2), Err(ParkedFault::Value), "a stream of the server's");
    assert_eq!(changed(50, 0x80), Err(ParkedFault::Value), "a window below zero");
    assert_eq!(changed(54, 0x80), Err(ParkedFault::Value), "the other window below zero");
    assert_eq!(changed(54, 0x7f), Err(ParkedFault::Value), "more than the window");
    assert_eq!(changed(43, 0), Err(ParkedFault::Value), "a window below the first");
    assert_eq!(changed(PARKED_FIXED_BYTES - 2, 0xff), Err(ParkedFault::Table));
    for len in 0..whole.len() {
        assert!(ParkedConnection::from_bytes(&whole[..len]).is_err(), "{len} bytes");
    }
}

/// A clock that another process was ahead of drains the buckets from now on.
#[test]
fn a_time_to_come_is_now() {
    let mut bytes = served(&requests("curl")).connection.export().unwrap().as_bytes().to_vec();
    bytes[58] = 1;
    bytes[66] = 1;
    let parked = ParkedConnection::from_bytes(&bytes).unwrap();
    let connection = H2Connection::import(&parked, 1000).unwrap();
    assert_eq!((connection.control.at_ms, connection.drops.at_ms), (1000, 1000));
}

proptest! {
    /// Any change of the bytes is refused, or gives a connection that exports and goes on.
    #[test]
    fn any_change_is_refused_or_consistent(
        changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = served(&requests("curl")).connection.export().unwrap().as_bytes().to_vec();
        for (at, byte) in changes {
            let len = bytes.len();
            bytes[usize::from(at) % len] = byte;
        }
        if let Ok(parked) = ParkedConnection::from_bytes(&bytes) {
            let mut connection = H2Connection::import(&parked, 1000).unwrap();
            let again = connection.export().unwrap();
            prop_assert_eq!(H2Connection::import(&again, 1000).unwrap().export(), Ok(again));
            let mut out = Vec::new();
            let _ = connection.receive(&[get(99), window(0, 1)].concat(), 2000, &mut out);
        }
    }
}

/// A program with smaller tables may have exported it. The connection itself grows the table.
#[test]
fn settings_wake_a_connection_whose_table_is_smaller_than_ours() {
    let parked = served(&[]).connection.export().unwrap();
    // The encoder's size and its smallest, behind the decoder's size and limit.
    let at = PARKED_FIXED_BYTES - 4 * 2;
    let mut bytes = parked.as_bytes().to_vec();
    bytes[at..at + 4].copy_from_slice(&[0, 4, 0, 4]);
    let input = frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]);
    let answered = |bytes: &[u8]| {
        ParkedConnection::from_bytes(bytes).unwrap().answer(&input, 0, &mut Vec::new())
    };
    assert_eq!(answered(&bytes), ParkedAnswer::Wake { consumed: 0 });
    assert!(matches!(
        answered(parked.as_bytes()),
        ParkedAnswer::NeedMore { consumed, .. } if consumed == input.len()
    ));
}
