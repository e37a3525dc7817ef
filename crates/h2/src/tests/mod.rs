//! Transcripts of connections: frames in, events and answers out, as texts that tables compare.
#![allow(clippy::unwrap_used, clippy::panic)]

mod client;
mod defaults;
mod floods;
mod parked;
mod parked_streams;
mod properties;
mod resting;
mod sending;
mod server;

use crate::frame::{self, FRAME_HEAD_BYTES, FrameHead, PREFACE, flag, kind};
use crate::hpack::{HeaderField, HpackDecoder, HpackEncoder};
use crate::{ConnectionFault, ErrorCode, H2Connection, H2Event, H2Limits, H2Received};

type Fields<'a> = &'a [(&'a str, &'a str)];

const GET: Fields<'_> =
    &[(":method", "GET"), (":scheme", "https"), (":authority", "a.example"), (":path", "/")];
const POST: Fields<'_> =
    &[(":method", "POST"), (":scheme", "https"), (":authority", "a.example"), (":path", "/")];

fn field<'a>((name, value): &'a (&str, &str)) -> HeaderField<'a> {
    HeaderField::new(name.as_bytes(), value.as_bytes())
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::write(kind, flags, stream, payload, &mut out);
    out
}

/// A header block without entries of the dynamic table, so that blocks may come in any order.
fn block(fields: Fields<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for pair in fields {
        let mut encoder = HpackEncoder::new();
        encoder.encode(HeaderField { sensitive: true, ..field(pair) }, &mut out);
    }
    out
}

fn headers(stream: u32, flags: u8, fields: Fields<'_>) -> Vec<u8> {
    frame(kind::HEADERS, flags | flag::END_HEADERS, stream, &block(fields))
}

/// A request without a body.
fn get(stream: u32) -> Vec<u8> {
    headers(stream, flag::END_STREAM, GET)
}

/// A request whose body follows.
fn post(stream: u32) -> Vec<u8> {
    headers(stream, 0, POST)
}

fn data(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(kind::DATA, 0, stream, bytes)
}

fn last_data(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(kind::DATA, flag::END_STREAM, stream, bytes)
}

fn reset(stream: u32, code: ErrorCode) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &code.0.to_be_bytes())
}

fn window(stream: u32, bytes: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let value = |(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(kind::SETTINGS, 0, 0, &values.iter().flat_map(value).collect::<Vec<_>>())
}

fn settings_ack() -> Vec<u8> {
    frame(kind::SETTINGS, flag::ACK, 0, &[])
}

/// Returns the first bytes of the peer.
fn greeting(of_client: bool) -> Vec<u8> {
    let preface = if of_client { &PREFACE[..] } else { &[] };
    [preface, &settings(&[]), &settings_ack()].concat()
}

/// A connection, and what is said on it.
struct Talk {
    connection: H2Connection,
    decoder: HpackDecoder,
    out: Vec<u8>,
    said: Vec<String>,
    fault: Option<ConnectionFault>,
    now_ms: u64,
    /// Most bytes of input at once.
    piece: usize,
    /// True if data is released as it comes.
    releases: bool,
}

impl Talk {
    fn begin(limits: H2Limits, is_server: bool) -> Self {
        let mut out = Vec::new();
        let connection = match is_server {
            true => H2Connection::server(limits, 1000, &mut out),
            false => H2Connection::client(limits, 1000, &mut out),
        };
        Self {
            connection,
            decoder: HpackDecoder::new(),
            out: Vec::new(),
            said: Vec::new(),
            fault: None,
            now_ms: 1000,
            piece: usize::MAX,
            releases: true,
        }
    }

    /// A connection of the server whose client has greeted.
    fn server() -> Self {
        let limits = H2Limits { connect_protocol: true, ..H2Limits::default() };
        Self::greeted(limits, true)
    }

    fn client() -> Self {
        Self::greeted(H2Limits::default(), false)
    }

    fn greeted(limits: H2Limits, is_server: bool) -> Self {
        let mut talk = Self::begin(limits, is_server);
        talk.feed(&greeting(is_server));
        talk.take();
        talk
    }

    /// Feeds bytes in pieces, as a socket would.
    fn feed(&mut self, bytes: &[u8]) {
        let (mut held, mut rest) = (Vec::new(), bytes);
        while self.fault.is_none() {
            let count = self.piece.min(rest.len());
            let (piece, later) = rest.split_at(count);
            held.extend_from_slice(piece);
            rest = later;
            self.receive(&mut held);
            if rest.is_empty() {
                break;
            }
        }
        assert!(self.fault.is_some() || held.len() < crate::INPUT_BYTES_MIN, "{}", held.len());
    }

    fn receive(&mut self, held: &mut Vec<u8>) {
        loop {
            let received = self.connection.receive(held, self.now_ms, &mut self.out);
            let (consumed, text, data) = match received {
                Ok(H2Received::Event { consumed, event }) => {
                    let data = match &event {
                        H2Event::Data { stream, data, .. } => (*stream, data.len() as u32),
                        _ => (0, 0),
                    };
                    (consumed, Some(say(&event)), data)
                }
                Ok(H2Received::NeedMore { consumed, at_least }) => {
                    assert!(held.len() - consumed < at_least, "asks for what is there");
                    (consumed, None, (0, 0))
                }
                Ok(H2Received::OutputFull { consumed }) => {
                    self.answers();
                    (consumed, Some(String::new()), (0, 0))
                }
                Err(fault) => {
                    self.fault = Some(fault);
                    self.answers();
                    return;
                }
            };
            held.drain(..consumed);
            self.answers();
            let Some(text) = text else { return };
            match self.said.last_mut() {
                // Parts of one body.
                Some(last) if text.starts_with("data ") && joins(last, &text) => {
                    last.push_str(text.rsplit(' ').next().unwrap());
                }
                _ if text.is_empty() => {}
                _ => self.said.push(text),
            }
            if self.releases && data.0 > 0 {
                self.connection.release(data.0, data.1, &mut self.out);
                self.answers();
            }
        }
    }

    /// Takes the answers out of the output, frame by frame.
    fn answers(&mut self) {
        let out = std::mem::take(&mut self.out);
        let mut rest = &out[..];
        while let Some(head) = FrameHead::read(rest) {
            let (payload, later) = rest[FRAME_HEAD_BYTES..].split_at(head.len);
            self.said.push(say_frame(&mut self.decoder, head, payload));
            rest = later;
        }
        assert!(rest.is_empty());
    }

    /// Returns the talk since the last call.
    fn take(&mut self) -> String {
        self.answers();
        std::mem::take(&mut self.said).join("; ")
    }
}

/// True if a part of a body continues the one before, which must be of the same stream.
fn joins(last: &str, text: &str) -> bool {
    let stream = |text: &str| text.rsplit_once(' ').map(|(begin, _)| begin.to_owned());
    last.starts_with("data ") && stream(last) == stream(text).map(|b| b.replace("last ", ""))
}

fn say(event: &H2Event<'_>) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match event {
        H2Event::Request { stream, head, is_last } => {
            let end = if *is_last { " last" } else { "" };
            let large = if head.is_too_large { " too large" } else { "" };
            format!("{} {stream}{end}{large}", text(head.method()))
        }
        H2Event::Response { stream, head, is_last } => {
            format!("{} {stream}{}", head.status, if *is_last { " last" } else { "" })
        }
        H2Event::Data { stream, data, is_last: false } => format!("data {stream} {}", text(data)),
        H2Event::Data { stream, data, .. } => format!("data {stream} {}.", text(data)),
        H2Event::Trailers { stream, fields } => {
            format!("trailers {stream} {}", fields.iter().count())
        }
        H2Event::Reset { stream, code } => format!("reset {stream} {code}"),
        H2Event::Failed { stream, fault } => format!("failed {stream} {fault:?}"),
        H2Event::GoAway { last, code } => format!("goaway {last} {code}"),
        H2Event::Pong(payload) => format!("pong {}", text(payload)),
        H2Event::Writable => "writable".to_owned(),
        H2Event::Settings => "settings".to_owned(),
        H2Event::SettingsAcknowledged => "acknowledged".to_owned(),
    }
}

fn say_frame(decoder: &mut HpackDecoder, head: FrameHead, payload: &[u8]) -> String {
    let word = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
    match head.kind {
        kind::RST_STREAM => format!("RST_STREAM {} {}", head.stream, ErrorCode(word(0))),
        kind::GOAWAY => format!("GOAWAY {} {}", word(0), ErrorCode(word(4))),
        kind::WINDOW_UPDATE => format!("WINDOW_UPDATE {} {}", head.stream, word(0)),
        kind::PING if head.flags == flag::ACK => "PONG".to_owned(),
        kind::PING => "PING".to_owned(),
        kind::SETTINGS if head.flags == flag::ACK => "ACK".to_owned(),
        kind::SETTINGS => "SETTINGS".to_owned(),
        kind::HEADERS => {
            let mut count = 0;
            let used = decoder.decode(payload, |_| count += 1).unwrap();
            decoder.end(&payload[used..]).unwrap();
            format!("HEADERS {} {:#x} {count}", head.stream, head.flags)
        }
        other => format!("frame {other:#x}"),
    }
}
