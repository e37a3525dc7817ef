//! Our end of a connection in tests: it echoes messages, or sends its own and keeps the answers.
#![allow(dead_code, missing_docs, clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;

use eyelet_h2::hpack::HeaderField;
use eyelet_h2::{ErrorCode, FRAME_HEAD_BYTES, H2Connection, H2Event, H2Limits, H2Received};

/// Windows that one body takes.
const WINDOWS_MAX: usize = 100;

/// A small generator of random numbers (xorshift64*).
pub struct Random(pub u64);

impl Random {
    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    /// A body whose length is at or beside an edge, or anywhere, but not far above the window: each
    /// window costs a turn.
    pub fn body(&mut self, limits: &H2Limits) -> Vec<u8> {
        let edges = [0, 1, 100, 16_383, 16_384, 16_385, 65_535, 65_536];
        let len = match self.below(3) {
            0 => edges[self.below(edges.len())],
            1 => self.below(1_000),
            _ => self.below(200_000),
        };
        let len = len.min(limits.stream_window as usize * WINDOWS_MAX);
        let first = self.below(256) as u8;
        (0..len).map(|at| first.wrapping_add((at % 251) as u8)).collect()
    }

    /// Limits of a connection.
    pub fn limits(&mut self) -> H2Limits {
        H2Limits {
            streams_max: 1 + self.below(50) as u32,
            stream_window: [1, 100, 16_384, 65_535, 1 << 20][self.below(5)],
            connection_window: [65_535, 100_000, 1 << 20][self.below(3)],
            ..H2Limits::default()
        }
    }
}

/// Our end of a pipe: a message that comes in, and one that goes out, for each stream.
pub struct End {
    pub connection: H2Connection,
    pub out: Vec<u8>,
    pub input: Vec<u8>,
    pub streams: BTreeMap<u32, Exchange>,
    /// True if it answers each message with the same body and trailers.
    pub echoes: bool,
    /// True if a fault of the peer fails the test.
    pub is_strict: bool,
    pub random: Random,
}

#[derive(Default)]
pub struct Exchange {
    /// The bytes that are still to be sent.
    pub queue: Vec<u8>,
    pub is_queued: bool,
    pub has_trailers: bool,
    pub received: Vec<u8>,
    pub is_received: bool,
}

impl End {
    /// Reads what has arrived. Returns whether the output must be written before the rest is read.
    pub fn step(&mut self) -> bool {
        let mut input = std::mem::take(&mut self.input);
        let (mut at, mut is_full) = (0, false);
        loop {
            let received = match self.connection.receive(&input[at..], 0, &mut self.out) {
                Err(fault) if self.is_strict => panic!("{fault:?}"),
                // GOAWAY is in the output.
                Err(_) => return false,
                Ok(received) => received,
            };
            let (consumed, released) = match received {
                H2Received::Event { consumed, event } => (consumed, Some(self.take(&event))),
                H2Received::NeedMore { consumed, .. } => (consumed, None),
                // Bodies wait there, too. The next call is made when they are written.
                H2Received::OutputFull { consumed } => {
                    is_full = true;
                    (consumed, None)
                }
            };
            at += consumed;
            let Some((stream, bytes, is_begun)) = released else { break };
            if is_begun && self.echoes {
                let status = HeaderField::new(b":status", b"200");
                let early = HeaderField::new(b":status", b"103");
                let field = HeaderField::new(b"content-type", b"text/plain");
                self.connection.inform(stream, [early], &mut self.out).unwrap();
                self.connection.respond(stream, [status, field], false, &mut self.out).unwrap();
            }
            self.connection.release(stream, bytes, &mut self.out);
        }
        input.drain(..at);
        self.input = input;
        self.send();
        is_full
    }

    /// Sends what the windows allow.
    pub fn send(&mut self) {
        for (stream, exchange) in &self.streams {
            self.connection.set_wants_to_send(*stream, !exchange.queue.is_empty());
        }
        while let Some((stream, room)) = self.connection.next_to_send() {
            let exchange = self.streams.get_mut(&stream).unwrap();
            let len = room.min(exchange.queue.len()).min(1 + self.random.below(20_000));
            let is_last = exchange.is_queued && len == exchange.queue.len();
            let ends = is_last && !exchange.has_trailers;
            let head: [u8; FRAME_HEAD_BYTES] = self.connection.data(stream, len, ends).unwrap();
            self.out.extend_from_slice(&head);
            self.out.extend(exchange.queue.drain(..len));
            exchange.is_queued &= !ends;
            self.connection.set_wants_to_send(stream, !exchange.queue.is_empty());
        }
        for (stream, exchange) in &mut self.streams {
            if !exchange.is_queued || !exchange.queue.is_empty() {
                continue;
            }
            exchange.is_queued = false;
            if exchange.has_trailers {
                let field = HeaderField::new(b"sum", b"1");
                self.connection.trailers(*stream, [field], &mut self.out).unwrap();
            } else {
                let head = self.connection.data(*stream, 0, true).unwrap();
                self.out.extend_from_slice(&head);
            }
        }
    }
}

impl End {
    /// A server that echoes.
    pub fn echo(connection: H2Connection, out: Vec<u8>, random: Random) -> Self {
        let (input, streams) = (Vec::new(), BTreeMap::new());
        Self { connection, out, input, streams, echoes: true, is_strict: true, random }
    }

    /// Takes an event. Returns its stream, the bytes to release, and whether the message has begun.
    fn take(&mut self, event: &H2Event<'_>) -> (u32, u32, bool) {
        let (stream, bytes, begins, ends) = match event {
            H2Event::Request { stream, is_last, .. } => (*stream, &[][..], true, *is_last),
            H2Event::Response { stream, is_last, head } => {
                (*stream, &[][..], head.status >= 200, *is_last)
            }
            H2Event::Data { stream, data, is_last } => (*stream, *data, false, *is_last),
            H2Event::Trailers { stream, .. } => {
                self.streams.get_mut(stream).unwrap().has_trailers |= self.echoes;
                (*stream, &[][..], false, true)
            }
            H2Event::Reset { stream, code: ErrorCode::NO_ERROR } => (*stream, &[][..], false, true),
            H2Event::Reset { stream, .. } | H2Event::Failed { stream, .. } => {
                assert!(!self.is_strict, "{event:?}");
                self.streams.remove(stream);
                return (0, 0, false);
            }
            _ => return (0, 0, false),
        };
        let exchange = self.streams.entry(stream).or_default();
        if self.echoes {
            let is_empty = begins && ends;
            exchange.queue.extend_from_slice(if is_empty { b"no body" } else { bytes });
            exchange.is_queued |= ends;
        } else {
            exchange.received.extend_from_slice(bytes);
            exchange.is_received |= ends;
        }
        (stream, bytes.len() as u32, begins)
    }
}
