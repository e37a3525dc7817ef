//! Any bytes of a peer: no panic, the same result in every cut, and bounds.

use crate::hpack::{HeaderField, HpackDecoder, HpackEncoder, HpackFault};
use crate::{
    ConnectionFault, ErrorCode, H2Connection, H2Event, H2Limits, H2Received, INPUT_BYTES_MIN,
    LastOfStream, OUTPUT_BYTES_MAX, PREFACE, ParkedAnswer, ParkedConnection, RequestKind,
};

/// Most bytes that one call appends beyond the bound of the output.
const ANSWER_BYTES_MAX: usize = 8 << 10;
/// The bit of the first byte that says that the caller does other things.
const ACTS: u8 = 4;
/// SETTINGS without a value, and their acknowledgement.
const GREETING: &[u8; 18] = b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0";

/// The results of a connection with some bytes.
type Done = (Vec<u8>, Result<(), ConnectionFault>, usize, u32);

/// A peer sends any bytes. The first byte says to whom, and whether the caller does other things
/// in between. The second says how they are cut.
pub fn any_frames(data: &[u8]) {
    let Some((&[kind, cut], bytes)) = data.split_first_chunk::<2>() else { return };
    let pieces = feed(kind, bytes, 1 + usize::from(cut));
    if kind & ACTS == 0 {
        assert_eq!(feed(kind, bytes, usize::MAX), pieces);
    }
}

/// Acts as a caller may at any time. A connection that has ended in order stays so.
fn act(connection: &mut H2Connection, nth: usize, out: &mut Vec<u8>) {
    let was_done = connection.is_done();
    match nth % 5 {
        0 => connection.reset(1 + 2 * (nth as u32 / 5 % 3), ErrorCode::CANCEL, out),
        1 => {
            let _ = connection.set_stream_window(100 * nth as u32, 0, out);
        }
        2 => connection.shutdown(0, out),
        3 => connection.expire(2_000, out).unwrap(),
        _ => {}
    }
    assert!(connection.is_done() || !was_done);
}

fn feed(kind: u8, bytes: &[u8], cut: usize) -> Done {
    let limits = H2Limits {
        head_bytes_max: 500,
        streams_max: 5,
        connect_protocol: true,
        ..H2Limits::default()
    };
    let mut out = Vec::new();
    let is_server = kind & 1 == 0;
    let (mut connection, mut held) = if is_server {
        (H2Connection::server(limits, 0, &mut out), PREFACE.to_vec())
    } else {
        let mut connection = H2Connection::client(limits, 0, &mut out);
        for kind in [RequestKind::Head, RequestKind::Other] {
            let fields = [HeaderField::new(b":method", b"GET"), HeaderField::new(b":path", b"/")];
            connection.request(fields, kind, kind == RequestKind::Head, &mut out).unwrap();
        }
        (connection, Vec::new())
    };
    if kind & 2 == 0 {
        held.extend_from_slice(GREETING);
    }
    let (mut done, mut peer_leaves) = (Ok(()), false);
    let mut all = std::mem::take(&mut out);
    let pieces = [&held[..]].into_iter().chain(bytes.chunks(cut.min(bytes.len().max(1))));
    let mut held = Vec::new();
    for (nth, piece) in pieces.enumerate() {
        held.extend_from_slice(piece);
        if kind & ACTS != 0 {
            act(&mut connection, nth + usize::from(kind >> 3), &mut out);
        }
        let was_done = connection.is_done();
        while done.is_ok() {
            let received = connection.receive(&held, 0, &mut out);
            assert!(out.len() < OUTPUT_BYTES_MAX + ANSWER_BYTES_MAX);
            let (consumed, is_more) = match received {
                Ok(H2Received::Event { consumed, event }) => {
                    peer_leaves |= matches!(event, H2Event::GoAway { .. });
                    let taken = taken(&event);
                    react(&mut connection, taken, &mut out);
                    (consumed, true)
                }
                Ok(H2Received::OutputFull { consumed }) => (consumed, true),
                Ok(H2Received::NeedMore { consumed, at_least }) => {
                    assert!(held.len() - consumed < at_least && at_least <= INPUT_BYTES_MIN);
                    (consumed, false)
                }
                Err(fault) => {
                    done = Err(fault);
                    (0, false)
                }
            };
            held.drain(..consumed);
            all.append(&mut out);
            if !is_more {
                break;
            }
        }
        assert!(connection.is_done() || !was_done || peer_leaves, "a stream after the last");
    }
    assert!(done.is_err() == connection.is_closed());
    (all, done, connection.streams(), connection.held())
}

/// The stream of an event whose message has begun, and of data its bytes.
fn taken(event: &H2Event<'_>) -> (Option<u32>, Option<(u32, u32)>) {
    match event {
        H2Event::Request { stream, .. } => (Some(*stream), None),
        H2Event::Data { stream, data, .. } => (None, Some((*stream, data.len() as u32))),
        _ => (None, None),
    }
}

fn react(
    connection: &mut H2Connection,
    (begun, data): (Option<u32>, Option<(u32, u32)>),
    out: &mut Vec<u8>,
) {
    if let Some(stream) = begun {
        let status = HeaderField::new(b":status", b"200");
        connection.respond(stream, [status], stream % 4 == 1, out).unwrap();
    }
    // Half of the streams hold what arrives.
    if let Some((stream, bytes)) = data.filter(|(stream, _)| stream % 4 == 1) {
        connection.release(stream, bytes, out);
    }
}

type Fields = Vec<(Vec<u8>, Vec<u8>, bool)>;

fn decode(decoder: &mut HpackDecoder, block: &[u8], cut: usize) -> Result<Fields, HpackFault> {
    let (mut fields, mut held) = (Vec::new(), Vec::new());
    for piece in block.chunks(cut) {
        held.extend_from_slice(piece);
        let used = decoder.decode(&held, |field| {
            fields.push((field.name.to_vec(), field.value.to_vec(), field.sensitive));
        })?;
        held.drain(..used);
    }
    decoder.end(&held)?;
    Ok(fields)
}

/// Header blocks, whose lengths are single bytes before them. The first byte says how they are cut.
pub fn any_blocks(data: &[u8]) {
    let Some((cut, mut rest)) = data.split_first() else { return };
    let (mut whole, mut pieces) = (HpackDecoder::new(), HpackDecoder::new());
    let (mut encoder, mut again) = (HpackEncoder::new(), HpackDecoder::new());
    while let Some((len, bytes)) = rest.split_first() {
        let (block, later) = bytes.split_at(bytes.len().min(usize::from(*len)));
        rest = later;
        let fields = decode(&mut whole, block, usize::MAX);
        assert_eq!(fields, decode(&mut pieces, block, 1 + usize::from(*cut)));
        let Ok(fields) = fields else { return };
        let mut table = Vec::new();
        whole.export(&mut table);
        whole = HpackDecoder::import(whole.table_size(), whole.limit(), &table).unwrap();
        let mut encoded = Vec::new();
        encoder.begin(&mut encoded);
        for (name, value, sensitive) in &fields {
            encoder.encode(HeaderField { name, value, sensitive: *sensitive }, &mut encoded);
        }
        let texts = |fields: &Fields| -> Vec<_> {
            fields.iter().map(|(name, value, _)| (name.clone(), value.clone())).collect()
        };
        assert_eq!(texts(&decode(&mut again, &encoded, usize::MAX).unwrap()), texts(&fields));
    }
}

/// An exported connection, with its length in two bytes before it, and frames for it.
pub fn any_parked(data: &[u8]) {
    let Some((&len, rest)) = data.split_first_chunk::<2>() else { return };
    let (bytes, frames) = rest.split_at(rest.len().min(usize::from(u16::from_be_bytes(len))));
    let Ok(mut parked) = ParkedConnection::from_bytes(bytes) else { return };
    let again = H2Connection::import(&parked, 0).unwrap().export().unwrap();
    let twice = H2Connection::import(&again, 0).unwrap().export().unwrap();
    assert_eq!(again, twice);
    parked = again;
    check_last_frames(&parked);
    // What is answered on the bytes is what the connection answers.
    let mut connection = H2Connection::import(&parked, 0).unwrap();
    let (mut out, mut wanted) = (Vec::new(), Vec::new());
    let consumed = match parked.answer(frames, 0, &mut out) {
        ParkedAnswer::NeedMore { consumed, .. }
        | ParkedAnswer::OutputFull { consumed }
        | ParkedAnswer::Wake { consumed } => consumed,
    };
    let mut answered = &frames[..consumed];
    while !answered.is_empty() {
        let used = match connection.receive(answered, 0, &mut wanted).unwrap() {
            H2Received::Event { consumed, .. } | H2Received::NeedMore { consumed, .. } => consumed,
            H2Received::OutputFull { .. } => return,
        };
        answered = &answered[used..];
    }
    let same = connection.receive(&[], 0, &mut wanted);
    assert!(matches!(
        same,
        Ok(H2Received::NeedMore { consumed: 0, .. } | H2Received::Event { .. })
    ));
    assert_eq!((out, Ok(parked)), (wanted, connection.export()));
}

/// The last frames of its streams are whole, and a client of the connection reads them.
fn check_last_frames(parked: &ParkedConnection) {
    let (mut out, mut streams) = (Vec::new(), 0);
    let last = || {
        streams += 1;
        LastOfStream::Response { status: 503, text: b"late" }
    };
    ParkedConnection::end_streams(parked.as_bytes(), last, &mut out);
    assert_eq!(streams, parked.streams());
    let (mut rest, mut decoder) = (&out[..], HpackDecoder::new());
    while let Some(([a, b, c, kind, ..], behind)) = rest.split_first_chunk::<9>() {
        let (payload, later) = behind.split_at(u32::from_be_bytes([0, *a, *b, *c]) as usize);
        if *kind == 1 {
            let used = decoder.decode(payload, |_| ()).unwrap();
            decoder.end(&payload[used..]).unwrap();
        }
        rest = later;
    }
    assert!(rest.is_empty());
}
