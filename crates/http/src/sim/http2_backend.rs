//! The scripted upstream that speaks HTTP/2 by prior knowledge, as the plan of each request says.

use std::collections::BTreeMap;

use eyelet_h2::hpack::HeaderField;
use eyelet_h2::{ErrorCode, H2Connection, H2Event, H2Limits, H2Received};
use fastrand::Rng;

use super::events::Events;
use super::peer::{Leave, Peer};
use super::plan::{Answer, Body, Fault, When};
use super::request::{Attempt, Request, index_of};

pub struct Http2Backend {
    pub peer: Peer,
    connection: H2Connection,
    input: Vec<u8>,
    /// Frames that are not in the outbox yet.
    frames: Vec<u8>,
    streams: BTreeMap<u32, Current>,
    /// Bytes of bodies that are not released.
    held: Vec<(u32, u32)>,
}

/// A request that is not answered in full.
#[derive(Clone, Copy)]
struct Current {
    request: usize,
    is_read: bool,
    /// Interim heads that are still to be said.
    interim: u8,
    has_head: bool,
    /// Its upstream says nothing more.
    is_over: bool,
}

/// The contents of an event, without its loan.
enum Heard {
    Begin { stream: u32, method: Vec<u8>, path: String, is_last: bool },
    Data { stream: u32, data: Vec<u8>, is_last: bool },
    End { stream: u32 },
    Gone { stream: u32 },
    Other,
}

impl Heard {
    fn of(event: &H2Event<'_>) -> Self {
        match event {
            H2Event::Request { stream, head, is_last } => Self::Begin {
                stream: *stream,
                method: head.method().to_vec(),
                path: String::from_utf8_lossy(head.path().unwrap_or_default()).into(),
                is_last: *is_last,
            },
            H2Event::Data { stream, data, is_last } => {
                Self::Data { stream: *stream, data: data.to_vec(), is_last: *is_last }
            }
            H2Event::Trailers { stream, .. } => Self::End { stream: *stream },
            H2Event::Reset { stream, .. } => Self::Gone { stream: *stream },
            H2Event::Failed { stream, fault } => panic!("stream {stream}: {fault:?}"),
            _ => Self::Other,
        }
    }
}

impl Http2Backend {
    pub fn new(peer: Peer, rng: &mut Rng) -> Self {
        let mut frames = Vec::new();
        let limits = H2Limits {
            streams_max: rng.u32(1..8),
            stream_window: *rng.choice(&[3_000, 16_384, 65_535]).unwrap(),
            ..H2Limits::default()
        };
        let connection = H2Connection::server(limits, 0, &mut frames);
        let (input, streams, held) = (Vec::new(), BTreeMap::new(), Vec::new());
        let mut backend = Self { peer, connection, input, frames, streams, held };
        backend.flush(rng);
        backend
    }

    fn flush(&mut self, rng: &mut Rng) {
        let frames = std::mem::take(&mut self.frames);
        self.peer.say(&frames, rng);
    }

    pub fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// Says that it takes no more streams, and closes.
    pub fn close(&mut self, rng: &mut Rng) {
        self.connection.close(ErrorCode::NO_ERROR, &mut self.frames);
        self.flush(rng);
        self.peer.leave(Leave::Orderly);
    }

    pub fn read(&mut self, max: usize, requests: &mut [Request], rng: &mut Rng) {
        let bytes = self.peer.read(max, false);
        self.input.extend_from_slice(&bytes);
        while !self.connection.is_closed() {
            let received = self.connection.receive(&self.input, 0, &mut self.frames);
            let (consumed, heard) = match received {
                Ok(H2Received::Event { consumed, event }) => (consumed, Some(Heard::of(&event))),
                Ok(H2Received::OutputFull { consumed }) => (consumed, Some(Heard::Other)),
                Ok(H2Received::NeedMore { consumed, .. }) => (consumed, None),
                Err(fault) => panic!("the edge breaks the protocol: {fault:?}"),
            };
            self.input.drain(..consumed);
            self.flush(rng);
            let Some(heard) = heard else { break };
            self.take(heard, requests);
        }
        if rng.bool() || max == usize::MAX {
            for (stream, bytes) in std::mem::take(&mut self.held) {
                self.connection.release(stream, bytes, &mut self.frames);
            }
            self.flush(rng);
        }
    }

    fn take(&mut self, heard: Heard, requests: &mut [Request]) {
        match heard {
            Heard::Begin { stream, method, path, is_last } => {
                let request = &mut requests[index_of(&path)];
                assert!(request.is_begun, "a request that nobody has made: {path}");
                assert_eq!(method, request.plan.method.as_bytes());
                let is_done = |attempt: &Attempt| !attempt.is_refused;
                let is_again = request.attempts.iter().any(is_done);
                assert!(!is_again || request.plan.is_harmless_twice(), "twice: {request:?}");
                request.attempts.push(Attempt::default());
                let current = Current {
                    request: request.index,
                    is_read: false,
                    interim: request.plan.answer.interim,
                    has_head: false,
                    is_over: false,
                };
                self.streams.insert(stream, current);
                self.end(stream, is_last, requests);
            }
            Heard::Data { stream, data, is_last } => {
                self.held.push((stream, data.len() as u32));
                if let Some(current) = self.streams.get(&stream) {
                    requests[current.request].arrive(&data);
                }
                self.end(stream, is_last, requests);
            }
            Heard::End { stream } => self.end(stream, true, requests),
            Heard::Gone { stream } => drop(self.streams.remove(&stream)),
            Heard::Other => {}
        }
    }

    fn end(&mut self, stream: u32, is_last: bool, requests: &mut [Request]) {
        if let Some(current) = self.streams.get_mut(&stream).filter(|_| is_last) {
            current.is_read = true;
            requests[current.request].arrive_end();
        }
    }

    /// Says the next part of an answer, with at most `max` bytes of its body. Returns whether there
    /// was one.
    pub fn answer(
        &mut self,
        max: usize,
        requests: &mut [Request],
        events: &mut Events,
        rng: &mut Rng,
    ) -> bool {
        let is_due = |current: &Current| {
            let when = requests[current.request].plan.answer.when;
            !current.is_over && (current.is_read || when == When::Early)
        };
        let due: Vec<u32> =
            self.streams.iter().filter(|(_, one)| is_due(one)).map(|(id, _)| *id).collect();
        let Some(stream) = rng.choice(due).filter(|_| !self.connection.is_closed()) else {
            return false;
        };
        let Some(mut current) = self.streams.remove(&stream) else { return false };
        let request = &mut requests[current.request];
        let is_said = self.say(stream, &mut current, (request, max), events);
        if !current.is_over || matches!(request.plan.answer.fault, Fault::Silent | Fault::Stall(_))
        {
            self.streams.insert(stream, current);
        }
        self.flush(rng);
        is_said
    }

    fn say(
        &mut self,
        stream: u32,
        current: &mut Current,
        (request, max): (&mut Request, usize),
        events: &mut Events,
    ) -> bool {
        let answer = request.plan.answer;
        let index = request.index.to_string();
        let of = HeaderField::new(b"x-id", index.as_bytes());
        if current.interim > 0 {
            events.note("an interim response");
            current.interim -= 1;
            request.attempt().interim += 1;
            let fields = [HeaderField::new(b":status", b"103"), of];
            self.connection.inform(stream, fields, &mut self.frames).unwrap();
            return true;
        }
        if !current.has_head {
            return self.say_head(stream, current, (request, &answer), events);
        }
        let room = self.connection.room(stream).min(max);
        let bytes = request.answer(room);
        if !bytes.is_empty() {
            let head = self.connection.data(stream, bytes.len(), false).unwrap();
            self.frames.extend_from_slice(&head);
            self.frames.extend_from_slice(&bytes);
            return true;
        }
        let said = request.attempt().said;
        match answer.fault {
            Fault::Cut(at) | Fault::Reset(at) if said == at => {
                events.note("an upstream resets a stream in the middle of a body");
                self.connection.reset(stream, ErrorCode::INTERNAL_ERROR, &mut self.frames);
                current.is_over = true;
            }
            Fault::Stall(at) if said == at => {
                events.note("an upstream stalls in the middle of a body");
                current.is_over = true;
            }
            _ if said == request.plan.answer_len() => {
                if answer.has_trailers {
                    let fields = [HeaderField::new(b"x-sum", b"1")];
                    self.connection.trailers(stream, fields, &mut self.frames).unwrap();
                } else {
                    let head = self.connection.data(stream, 0, true).unwrap();
                    self.frames.extend_from_slice(&head);
                }
                self.answered(stream, current, request);
            }
            // Its window is closed.
            _ => return false,
        }
        true
    }

    /// Says the head of an answer, or what a faulty upstream says instead.
    fn say_head(
        &mut self,
        stream: u32,
        current: &mut Current,
        (request, answer): (&mut Request, &Answer),
        events: &mut Events,
    ) -> bool {
        let code = match answer.fault {
            Fault::Silent => {
                events.note("an upstream never answers");
                current.is_over = true;
                return false;
            }
            Fault::Malformed(kind) if kind < 2 => Some(ErrorCode::REFUSED_STREAM),
            Fault::Malformed(_) | Fault::CutHead(_) => Some(ErrorCode::INTERNAL_ERROR),
            _ => None,
        };
        if let Some(code) = code {
            let is_refused = code == ErrorCode::REFUSED_STREAM;
            events.note(if is_refused { "a refused stream" } else { "a reset before the head" });
            request.attempt().is_refused = is_refused;
            self.connection.reset(stream, code, &mut self.frames);
            current.is_over = true;
            return true;
        }
        let (status, index) = (answer.status.to_string(), request.index.to_string());
        let len = answer.body.len().to_string();
        let mut fields = vec![
            HeaderField::new(b":status", status.as_bytes()),
            HeaderField::new(b"x-id", index.as_bytes()),
        ];
        if matches!(answer.body, Body::Sized(_)) {
            fields.push(HeaderField::new(b"content-length", len.as_bytes()));
        }
        let is_last = request.plan.method == "HEAD" || answer.body == Body::None;
        self.connection.respond(stream, fields, is_last, &mut self.frames).unwrap();
        request.attempt().has_head = true;
        current.has_head = true;
        if is_last {
            self.answered(stream, current, request);
        }
        true
    }

    /// Nothing more is to be said. What the request has left is not wanted.
    fn answered(&mut self, stream: u32, current: &mut Current, request: &mut Request) {
        request.attempt().is_answered = true;
        if !current.is_read {
            self.connection.reset(stream, ErrorCode::NO_ERROR, &mut self.frames);
        }
        current.is_over = true;
    }
}
