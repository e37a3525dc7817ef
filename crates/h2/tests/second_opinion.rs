//! `shiguredo_http2` as a second opinion: two servers read the same bytes, and must see the same
//! messages, resets and errors. Random frames, valid and not, on a few streams.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fmt::Write;

use eyelet_h2::{
    ErrorCode, FRAME_HEAD_BYTES, H2Connection, H2Event, H2Limits, H2Received, PREFACE,
};
use proptest::collection::vec;
use proptest::prelude::*;
use shiguredo_http2::{Connection, Event, HeaderField, HpackEncoder, Limits, StreamId};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
/// Flags: the end of a stream or an acknowledgement, the end of a head, padding, a priority.
const END: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;
/// Bytes of the dynamic table that a decoder has until its SETTINGS say otherwise.
const TABLE_BYTES: usize = 4096;

/// Fields of heads: whole requests, trailers, and malformed ones.
const HEADS: [&[(&str, &str)]; 12] = [
    &[GET, HTTPS, HOST, PATH],
    &[GET, HTTPS, HOST, PATH, ("accept", "*/*"), ("cookie", "a=b; c=d")],
    &[POST, HTTPS, HOST, PATH, ("x-a", "1"), ("x-long", "a value that the Huffman code shortens")],
    &[POST, HTTPS, HOST, PATH, ("content-length", "5")],
    &[("sum", "1"), ("x-b", "two")],
    &[],
    &[GET, HTTPS, HOST],
    &[GET, GET, HTTPS, HOST, PATH],
    &[HTTPS, HOST, PATH],
    &[GET, HTTPS, HOST, PATH, ("connection", "close")],
    &[GET, HTTPS, HOST, PATH, ("te", "gzip")],
    &[GET, HTTPS, HOST, ("accept", "*/*"), PATH],
];
const GET: (&str, &str) = (":method", "GET");
const POST: (&str, &str) = (":method", "POST");
const HTTPS: (&str, &str) = (":scheme", "https");
const HOST: (&str, &str) = (":authority", "a.example");
const PATH: (&str, &str) = (":path", "/a?b");

/// The act of a client.
#[derive(Clone, Debug)]
enum Act {
    Head {
        stream: u32,
        nth: usize,
        ends: bool,
        pads: bool,
        depends: bool,
        cut: bool,
    },
    Data {
        stream: u32,
        len: usize,
        ends: bool,
        pads: bool,
    },
    Settings(Vec<(u16, u32)>),
    /// Any other frame: type, flags, stream, payload.
    Frame(u8, u8, u32, Vec<u8>),
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn flag(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

fn stream() -> impl Strategy<Value = u32> {
    prop_oneof![8 => prop::sample::select(vec![1_u32, 3, 5]), 1 => 0_u32..9]
}

fn act() -> impl Strategy<Value = Act> {
    let head = (stream(), prop_oneof![4 => 0_usize..4, 1 => 0..HEADS.len()], any::<[bool; 2]>());
    let rarely = prop::bool::weighted(0.1);
    let head = (head, rarely, rarely).prop_map(|((stream, nth, [ends, cut]), pads, depends)| {
        Act::Head { stream, nth, ends, pads, depends, cut }
    });
    let data = (stream(), 0_usize..9, any::<bool>(), rarely)
        .prop_map(|(stream, len, ends, pads)| Act::Data { stream, len, ends, pads });
    let value = (0_u16..9, prop_oneof![0_u32..3, Just(20_000), Just(0x7fff_ffff), any::<u32>()]);
    let word = |bytes: u32| bytes.to_be_bytes().to_vec();
    let other = prop_oneof![
        // RST_STREAM, WINDOW_UPDATE, PING, PRIORITY.
        (Just(3), Just(0), stream(), Just(word(8))),
        (Just(8), Just(0), stream(), prop_oneof![0_u32..3, Just(0x7fff_ffff)].prop_map(word)),
        (Just(6), Just(0), 0_u32..1, Just(vec![7; 8])),
        (Just(2), Just(0), stream(), Just(vec![0, 0, 0, 0, 9])),
        // A short PRIORITY is an error of its stream, and one that has ended is not reset again.
        (
            any::<u8>().prop_filter("no PRIORITY", |kind| *kind != 2),
            any::<u8>(),
            stream(),
            vec(any::<u8>(), 0..9)
        ),
    ];
    prop_oneof![
        6 => head,
        4 => data,
        1 => vec(value, 0..3).prop_map(Act::Settings),
        2 => other.prop_map(|(kind, flags, to, payload)| Act::Frame(kind, flags, to, payload)),
    ]
}

impl Act {
    fn write(&self, encoder: &mut HpackEncoder, out: &mut Vec<u8>) {
        match self {
            Self::Head { stream, nth, ends, pads, depends, cut } => {
                let field = |(name, value): &(&str, &str)| HeaderField::new(name, value).unwrap();
                let fields: Vec<HeaderField> = HEADS[*nth].iter().map(field).collect();
                let mut block = Vec::new();
                encoder.encode(&mut block, &fields);
                let (begin, end) = block.split_at(if *cut { block.len() / 2 } else { block.len() });
                let mut payload = Vec::new();
                payload.extend(pads.then_some(2));
                payload.extend(depends.then_some([0, 0, 0, 9, 9]).into_iter().flatten());
                payload.extend_from_slice(begin);
                payload.extend(pads.then_some([0; 2]).into_iter().flatten());
                let flags = flag(*ends, END)
                    | flag(!cut, END_HEADERS)
                    | flag(*pads, PADDED)
                    | flag(*depends, PRIORITY);
                out.extend(frame(HEADERS, flags, *stream, &payload));
                if *cut {
                    out.extend(frame(CONTINUATION, END_HEADERS, *stream, end));
                }
            }
            Self::Data { stream, len, ends, pads } => {
                let payload = [&[3][..], &vec![b'd'; *len], &[0; 3]].concat();
                let payload = if *pads { &payload[..] } else { &payload[1..=*len] };
                let flags = flag(*ends, END) | flag(*pads, PADDED);
                out.extend(frame(DATA, flags, *stream, payload));
            }
            Self::Settings(values) => {
                let pair = |(id, value): &(u16, u32)| {
                    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
                };
                let payload: Vec<u8> = values.iter().flat_map(pair).collect();
                out.extend(frame(SETTINGS, 0, 0, &payload));
            }
            Self::Frame(kind, flags, stream, payload) => {
                out.extend(frame(*kind, *flags, *stream, payload));
            }
        }
    }
}

/// The observations of a server: a line for each stream, and the code that ended the connection.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    streams: BTreeMap<u32, String>,
    over: Option<u32>,
}

impl Seen {
    fn head(&mut self, stream: u32, mut fields: Vec<(Vec<u8>, Vec<u8>)>, ends: bool) {
        // Pseudo-fields come first; their order means nothing.
        let pseudo = fields.iter().take_while(|field| field.0.starts_with(b":")).count();
        fields[..pseudo].sort();
        let line = self.streams.entry(stream).or_default();
        for (name, value) in fields {
            write!(line, "{}={};", name.escape_ascii(), value.escape_ascii()).unwrap();
        }
        self.end(stream, ends);
    }

    fn data(&mut self, stream: u32, data: &[u8], ends: bool) {
        self.streams.entry(stream).or_default().push_str(&String::from_utf8_lossy(data));
        self.end(stream, ends);
    }

    fn end(&mut self, stream: u32, ends: bool) {
        self.streams.entry(stream).or_default().push_str(if ends { "." } else { "" });
    }

    fn reset(&mut self, stream: u32, code: u32) {
        write!(self.streams.entry(stream).or_default(), "!{code}").unwrap();
    }
}

fn ours(bytes: &[u8]) -> Seen {
    let (mut seen, mut out, mut rest) = (Seen::default(), Vec::new(), bytes);
    let limits = H2Limits { connect_protocol: true, ..H2Limits::default() };
    let mut connection = H2Connection::server(limits, 0, &mut out);
    loop {
        out.clear();
        let (consumed, event) = match connection.receive(rest, 0, &mut out) {
            Ok(H2Received::Event { consumed, event }) => (consumed, event),
            Ok(H2Received::NeedMore { .. }) => return seen,
            Ok(H2Received::OutputFull { .. }) => continue,
            Err(fault) => {
                seen.over = Some(fault.code().0);
                return seen;
            }
        };
        rest = &rest[consumed..];
        let pair = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
        match event {
            H2Event::Request { stream, head, is_last } => {
                let pseudo = [
                    (":method", Some(head.method())),
                    (":scheme", head.scheme()),
                    (":authority", head.authority()),
                    (":path", head.path()),
                ];
                let pseudo = pseudo
                    .iter()
                    .filter_map(|(name, value)| value.map(|value| pair(name.as_bytes(), value)));
                let fields = head.fields.iter().map(|field| pair(field.name, field.value));
                seen.head(stream, pseudo.chain(fields).collect(), is_last);
            }
            H2Event::Data { stream, data, is_last } => seen.data(stream, data, is_last),
            H2Event::Trailers { stream, fields } => {
                let fields = fields.iter().map(|field| pair(field.name, field.value));
                seen.head(stream, fields.collect(), true);
            }
            H2Event::Reset { stream, code: ErrorCode(code) } => seen.reset(stream, code),
            H2Event::Failed { stream, fault } => seen.reset(stream, fault.code().0),
            _ => {}
        }
    }
}

fn theirs(bytes: &[u8]) -> Seen {
    let mut seen = Seen::default();
    let mut connection = Connection::server(Limits::default());
    connection.initiate().unwrap();
    let done = connection.feed(bytes).and_then(|_| connection.process());
    let number = |stream: StreamId| stream.as_u32();
    while let Some(event) = connection.poll_event() {
        match event {
            Event::HeadersReceived { stream_id, headers, end_stream, .. } => {
                let pair = |field: &HeaderField| (field.name().to_vec(), field.value().to_vec());
                seen.head(number(stream_id), headers.iter().map(pair).collect(), end_stream);
            }
            Event::DataReceived { stream_id, data, end_stream } => {
                seen.data(number(stream_id), &data, end_stream);
            }
            Event::TrailersReceived { stream_id, trailers } => {
                let pair = |field: &HeaderField| (field.name().to_vec(), field.value().to_vec());
                seen.head(number(stream_id), trailers.iter().map(pair).collect(), true);
            }
            Event::StreamReset { stream_id, error_code, .. } => {
                seen.reset(number(stream_id), error_code.as_u32());
            }
            Event::ConnectionError { error_code, .. } => seen.over = Some(error_code.as_u32()),
            _ => {}
        }
    }
    if let Err(error) = done {
        seen.over = seen.over.or(Some(error.error_code().map_or(u32::MAX, |code| code.as_u32())));
    }
    seen
}

/// True if both saw the same, but for these differences:
///
/// - The other library remembers which streams have ended. We know only the highest identifier, so
///   a frame on a lower one is STREAM_CLOSED for us (RFC 9113 section 5.1), and PROTOCOL_ERROR or
///   nothing for it.
/// - It says PROTOCOL_ERROR for a head behind the end of a message, and we STREAM_CLOSED, as
///   section 5.1 does.
/// - A frame with two faults ends the connection by the code of either.
/// - It does not compare Content-Length with a body that trailers end (section 8.1.1).
fn agree(ours: &Seen, theirs: &Seen) -> bool {
    let same = |line: &str| {
        let line = line.replace(STREAM_CLOSED, PROTOCOL_ERROR);
        let Some(at) = line.find(LENGTH) else { return line };
        // Whatever trailers are behind the body.
        let body = line[at + LENGTH.len()..].bytes().take_while(|byte| *byte == b'd').count();
        line[..at + LENGTH.len() + body].to_owned()
    };
    if ours.over != Some(ErrorCode::STREAM_CLOSED.0) {
        let lines = |seen: &Seen| -> Vec<_> {
            seen.streams.iter().map(|(stream, line)| (*stream, same(line))).collect()
        };
        // Codes of a fault of the frame and of its length.
        let code = |seen: &Seen| match seen.over {
            Some(code) if code == ErrorCode::FRAME_SIZE_ERROR.0 => {
                Some(ErrorCode::PROTOCOL_ERROR.0)
            }
            code => code,
        };
        return code(ours) == code(theirs) && lines(ours) == lines(theirs);
    }
    ours.streams.iter().all(|(stream, line)| {
        theirs.streams.get(stream).is_some_and(|theirs| same(theirs).starts_with(&same(line)))
    })
}

/// A field and resets, as [`Seen`] writes them.
const LENGTH: &str = "content-length=5;";
const STREAM_CLOSED: &str = "!5";
const PROTOCOL_ERROR: &str = "!1";

proptest! {
    #[test]
    fn the_same_frames_say_the_same_to_both(acts in vec(act(), 1..12)) {
        let mut bytes = PREFACE.to_vec();
        bytes.extend(frame(SETTINGS, 0, 0, &[]));
        bytes.extend(frame(SETTINGS, END, 0, &[]));
        let mut encoder = HpackEncoder::new(TABLE_BYTES);
        for act in &acts {
            act.write(&mut encoder, &mut bytes);
        }
        prop_assert!(bytes.len() > FRAME_HEAD_BYTES);
        let (ours, theirs) = (ours(&bytes), theirs(&bytes));
        prop_assert!(agree(&ours, &theirs), "{:?}\n{:?}", ours, theirs);
    }
}
