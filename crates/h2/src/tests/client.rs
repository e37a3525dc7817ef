//! The client's side: requests, responses, and what only a server may say.

use super::*;
use crate::frame::setting;
use crate::{MalformedMessage, RequestKind, SendFault, StreamFault};

fn ask(talk: &mut Talk, kind: RequestKind, is_last: bool) -> Result<u32, SendFault> {
    talk.connection.request(GET.iter().map(field), kind, is_last, &mut talk.out)
}

/// A client with three open requests: 1 is whole, 3 is HEAD, 5 has a body.
fn asked() -> Talk {
    let mut talk = Talk::client();
    assert_eq!(ask(&mut talk, RequestKind::Other, true), Ok(1));
    assert_eq!(ask(&mut talk, RequestKind::Head, true), Ok(3));
    assert_eq!(ask(&mut talk, RequestKind::Other, false), Ok(5));
    assert_eq!(talk.take(), "HEADERS 1 0x5 4; HEADERS 3 0x5 4; HEADERS 5 0x4 4");
    talk
}

#[test]
fn responses_are_read() {
    let ok: Fields<'_> = &[(":status", "200")];
    let length: Fields<'_> = &[(":status", "200"), ("content-length", "3")];
    let early: Fields<'_> = &[(":status", "103")];
    let malformed = |stream, why: MalformedMessage| {
        let fault = StreamFault::Malformed(why);
        format!("RST_STREAM {stream} PROTOCOL_ERROR; failed {stream} {fault:?}")
    };
    for (why, frames, wanted) in [
        ("no body", vec![headers(1, 1, ok)], "200 1 last".to_owned()),
        ("a body", vec![headers(1, 0, length), last_data(1, b"abc")], "200 1; data 1 abc.".into()),
        ("interim", vec![headers(1, 0, early), headers(1, 1, ok)], "103 1; 200 1 last".into()),
        ("HEAD", vec![headers(3, 1, length)], "200 3 last".into()),
        (
            "304",
            vec![headers(1, 1, &[(":status", "304"), ("content-length", "9")])],
            "304 1 last".into(),
        ),
        (
            "trailers",
            vec![headers(1, 0, ok), headers(1, 1, &[("a", "b")])],
            "200 1; trailers 1 1".into(),
        ),
        (
            "the end before the request's",
            vec![headers(5, 1, ok), reset(5, ErrorCode::NO_ERROR)],
            "200 5 last; reset 5 NO_ERROR".into(),
        ),
        ("interim end", vec![headers(1, 1, early)], malformed(1, MalformedMessage::InterimEnd)),
        ("101", vec![headers(1, 0, &[(":status", "101")])], malformed(1, MalformedMessage::Status)),
        ("no status", vec![headers(1, 0, &[("a", "b")])], malformed(1, MalformedMessage::Pseudo)),
        ("data first", vec![data(1, b"a")], malformed(1, MalformedMessage::DataBeforeHead)),
        ("a short body", vec![headers(1, 0, length), last_data(1, b"ab")], {
            format!("200 1; {}", malformed(1, MalformedMessage::Length))
        }),
        ("data for HEAD", vec![headers(3, 0, length), data(3, b"ab")], {
            format!("200 3; {}", malformed(3, MalformedMessage::Length))
        }),
    ] {
        for piece in [usize::MAX, 1, 11] {
            let mut talk = asked();
            talk.piece = piece;
            talk.feed(&frames.concat());
            assert_eq!(talk.take(), wanted, "{why}");
        }
    }
}

#[test]
fn a_response_that_is_too_large_costs_its_stream() {
    let long = "x".repeat(600);
    for status in ["103", "200"] {
        let limits = H2Limits { head_bytes_max: 500, ..H2Limits::default() };
        let mut talk = Talk::greeted(limits, false);
        ask(&mut talk, RequestKind::Other, true).unwrap();
        ask(&mut talk, RequestKind::Other, true).unwrap();
        talk.take();
        // Also if the status itself is what does not fit.
        talk.feed(&headers(1, 0, &[(":status", status), ("a", &long)]));
        talk.feed(&headers(3, 0, &[(":status", &long)]));
        let failed =
            |stream| format!("RST_STREAM {stream} ENHANCE_YOUR_CALM; failed {stream} HeadTooLarge");
        assert_eq!(talk.take(), format!("{}; {}", failed(1), failed(3)));
    }
}

#[test]
fn the_answer_to_connect_begins_a_tunnel() {
    let fields = |status| [(":status", status), ("content-length", "3")];
    let fault = StreamFault::Malformed(MalformedMessage::Length);
    for (status, wanted) in [
        ("200", "200 1; data 1 abcdef".to_owned()),
        ("404", format!("404 1; RST_STREAM 1 PROTOCOL_ERROR; failed 1 {fault:?}")),
    ] {
        let mut talk = Talk::client();
        ask(&mut talk, RequestKind::Connect, false).unwrap();
        talk.take();
        talk.feed(&[headers(1, 0, &fields(status)), data(1, b"abcdef")].concat());
        assert_eq!(talk.take(), wanted);
    }
}

#[test]
fn what_only_clients_say_ends_the_connection() {
    for (why, bytes) in [
        ("a push", frame(kind::PUSH_PROMISE, 4, 1, &[0; 8])),
        ("a stream of the server's", headers(2, 1, &[(":status", "200")])),
        ("a stream that was not begun", headers(7, 1, &[(":status", "200")])),
        ("PRIORITY_UPDATE", frame(kind::PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 1])),
        ("push allowed", settings(&[(setting::ENABLE_PUSH, 1)])),
        ("CONNECT withdrawn", {
            let id = setting::ENABLE_CONNECT_PROTOCOL;
            [settings(&[(id, 1)]), settings(&[(id, 0)])].concat()
        }),
    ] {
        let mut talk = asked();
        talk.feed(&bytes);
        let said = talk.take();
        assert!(said.ends_with("GOAWAY 0 PROTOCOL_ERROR"), "{why}: {said}");
    }
}

#[test]
fn goaway_gives_unprocessed_requests_back() {
    let mut talk = asked();
    talk.feed(&frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]));
    assert_eq!((talk.take().as_str(), talk.connection.streams()), ("goaway 3 NO_ERROR", 2));
    assert_eq!(ask(&mut talk, RequestKind::Other, true), Err(SendFault::NoRoom));
    talk.feed(&frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]));
    talk.feed(&headers(1, 1, &[(":status", "200")]));
    assert_eq!(talk.take(), "goaway 1 NO_ERROR; 200 1 last");
    assert!(talk.connection.is_done());
}

#[test]
fn the_servers_limits_are_kept() {
    let mut talk = Talk::client();
    talk.feed(&settings(&[(setting::MAX_CONCURRENT_STREAMS, 1)]));
    assert_eq!(talk.connection.peer_settings().map(|peer| peer.streams_max), Some(1));
    assert_eq!(ask(&mut talk, RequestKind::Other, false), Ok(1));
    assert_eq!(ask(&mut talk, RequestKind::Other, false), Err(SendFault::NoRoom));
    talk.connection.reset(1, ErrorCode::CANCEL, &mut talk.out);
    assert_eq!(ask(&mut talk, RequestKind::Other, false), Ok(3));
    // The rest of a response that was reset is dropped, and opens the window again.
    talk.feed(&[headers(1, 0, &[(":status", "200")]), last_data(1, &[0; 9])].concat());
    assert_eq!((talk.fault, talk.connection.held()), (None, 0));
}

#[test]
fn a_server_that_answers_early_drops_no_stream() {
    let mut talk = Talk::client();
    for _ in 0..=crate::limits::DROPS_MAX {
        let stream = ask(&mut talk, RequestKind::Other, false).unwrap();
        let response = headers(stream, 1, &[(":status", "413")]);
        talk.feed(&[response, reset(stream, ErrorCode::NO_ERROR)].concat());
    }
    assert_eq!(talk.fault, None);
}
