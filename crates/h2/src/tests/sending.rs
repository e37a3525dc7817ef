//! Our messages: frames, windows, and the states in which they may be sent.

use super::*;
use crate::SendFault;
use crate::frame::setting;

const OK: Fields<'_> = &[(":status", "200"), ("server", "a")];

fn respond(talk: &mut Talk, stream: u32, is_last: bool) -> Result<(), SendFault> {
    talk.connection.respond(stream, OK.iter().map(field), is_last, &mut talk.out)
}

#[test]
fn a_response_goes_through_its_states() {
    let mut talk = Talk::server();
    talk.feed(&get(1));
    let early = HeaderField::new(b":status", b"103");
    let end = HeaderField::new(b"end", b"1");
    assert_eq!(talk.connection.data(1, 0, false), Err(SendFault::State));
    assert_eq!(talk.connection.trailers(1, [end], &mut talk.out), Err(SendFault::State));
    assert_eq!(talk.connection.inform(1, [early], &mut talk.out), Ok(()));
    assert_eq!(respond(&mut talk, 1, false), Ok(()));
    assert_eq!(respond(&mut talk, 1, false), Err(SendFault::State));
    let frame_head = FrameHead::new(3, kind::DATA, 0, 1).bytes();
    assert_eq!(talk.connection.data(1, 3, false), Ok(frame_head));
    assert_eq!(talk.connection.trailers(1, [end], &mut talk.out), Ok(()));
    assert_eq!(talk.take(), "GET 1 last; HEADERS 1 0x4 1; HEADERS 1 0x4 2; HEADERS 1 0x5 1");
    assert_eq!(talk.connection.streams(), 0);
    assert_eq!(talk.connection.data(1, 0, false), Err(SendFault::NoStream));
    assert_eq!(respond(&mut talk, 1, false), Err(SendFault::NoStream));
}

#[test]
fn windows_bound_what_is_sent() {
    let mut talk = Talk::server();
    talk.feed(&settings(&[(setting::INITIAL_WINDOW_SIZE, 10)]));
    talk.feed(&get(1));
    respond(&mut talk, 1, false).unwrap();
    talk.connection.set_wants_to_send(1, true);
    assert_eq!(talk.connection.next_to_send(), Some((1, 10)));
    assert_eq!(talk.connection.data(1, 11, false), Err(SendFault::Window));
    talk.connection.data(1, 10, false).unwrap();
    assert_eq!((talk.connection.room(1), talk.connection.next_to_send()), (0, None));
    // A smaller window makes it negative, and a larger one opens it.
    talk.feed(&settings(&[(setting::INITIAL_WINDOW_SIZE, 4)]));
    talk.feed(&window(1, 7));
    assert_eq!(talk.connection.room(1), 1);
    talk.feed(&settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 20)]));
    assert_eq!(talk.connection.room(1), crate::FRAME_BYTES_MAX);
    for _ in 0..3 {
        talk.connection.data(1, 16_384, false).unwrap();
    }
    assert_eq!(talk.connection.room(1), 16_383 - 10, "the connection's window");
    talk.connection.data(1, 16_373, false).unwrap();
    assert_eq!(talk.connection.next_to_send(), None);
    // The end needs no window.
    assert!(talk.connection.data(1, 0, true).is_ok());
    assert_eq!(talk.connection.streams(), 0);
}

#[test]
fn a_setting_that_opens_a_window_too_far_ends_the_connection() {
    let mut talk = Talk::server();
    talk.feed(&[get(1), window(1, 0x7fff_ffff - 65_535)].concat());
    talk.feed(&settings(&[(setting::INITIAL_WINDOW_SIZE, 65_536)]));
    assert_eq!(talk.fault, Some(ConnectionFault::WindowOverflow));
}

#[test]
fn a_long_head_takes_several_frames() {
    let mut talk = Talk::server();
    talk.feed(&get(1));
    talk.take();
    let long = "\u{1}".repeat(20_000);
    let fields = [(":status", "200"), ("a", &long), ("b", &long)];
    talk.connection.respond(1, fields.iter().map(field), true, &mut talk.out).unwrap();
    let (mut rest, mut block, mut heads) = (&talk.out[..], Vec::new(), Vec::new());
    while let Some(head) = FrameHead::read(rest) {
        let (payload, later) = rest[FRAME_HEAD_BYTES..].split_at(head.len);
        block.extend_from_slice(payload);
        heads.push((head.kind, head.flags, head.len));
        rest = later;
    }
    let mut decoder = HpackDecoder::new();
    let mut sizes = Vec::new();
    let used = decoder.decode(&block, |field| sizes.push(field.value.len())).unwrap();
    decoder.end(&block[used..]).unwrap();
    assert_eq!(sizes, [3, 20_000, 20_000]);
    assert_eq!(heads[..2], [(1, 1, 16_384), (9, 0, 16_384)]);
    assert_eq!((heads[2].0, heads[2].1, heads.len()), (9, 4, 3));
    talk.out.clear();
}

#[test]
fn a_table_that_the_peer_does_not_want_is_not_used() {
    let mut talk = Talk::server();
    talk.feed(&settings(&[(setting::HEADER_TABLE_SIZE, 0)]));
    for stream in [1, 3] {
        talk.feed(&get(stream));
        respond(&mut talk, stream, true).unwrap();
    }
    assert!(talk.take().ends_with("GET 3 last; HEADERS 3 0x5 2"));
}
