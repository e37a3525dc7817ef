//! The access line of a request, and the counts of its bodies.

use std::cell::Cell;
use std::rc::Rc;

use super::served_connection::record::Record;
use super::served_connection::{DROPPED, ServedConnection};
use super::worker::Http;
use eyelet_resting::RestingFacts;
use eyelet_telemetry::listing::streams::StreamKind;
use eyelet_telemetry::request::Coded;
use serving_stream::ServingStream;

pub mod serving_stream;

/// The access line of a request. Dropping it writes it, so a drain loses none.
pub struct RequestLogEntry<'a> {
    served: &'a ServedConnection,
    /// The contents of the line.
    pub record: Record,
    /// The counter of bytes that the client was sent, and its value when the request began.
    sent: Rc<Cell<u64>>,
    sent_before: u64,
    /// The counts of its bodies.
    pub written: Written<'a>,
    state: EntryState,
}

/// The stage of the exchange of an access line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryState {
    /// It goes on. Where its task is dropped, it is cut.
    Open,
    /// It has ended.
    Ended,
    /// It rests: its line is written later.
    Rests,
}

/// Bytes written to upstreams for one request, and those of its response's body. The former are
/// also added to the connection's count at each write, so a task that is dropped early has counted
/// all of them.
pub struct Written<'a> {
    served: &'a ServedConnection,
    bytes: Cell<u64>,
    coded: Cell<Coded>,
    /// Counts the exchange while its task serves it.
    pub stream: ServingStream<'a>,
}

impl Written<'_> {
    /// The HTTP state of its worker.
    pub fn http(&self) -> &Rc<Http> {
        &self.served.http
    }

    /// Adds bytes that a socket has taken.
    pub fn add(&self, bytes: usize) {
        self.bytes.update(|written| written + bytes as u64);
        self.served.counts.to_upstream.update(|written| written + bytes as u64);
    }

    /// Notes how the response's body was coded, as far as it got.
    pub fn note_coded(&self, coded: Coded) {
        self.served.http.engine.counters.response(&coded);
        self.coded.set(coded);
    }
}

impl<'a> RequestLogEntry<'a> {
    /// The entry of a request that begins. `sent` counts the bytes to its client.
    pub fn new(served: &'a ServedConnection, record: Record, sent: Rc<Cell<u64>>) -> Self {
        let sent_before = sent.get();
        let stream = ServingStream::new(&served.http.engine.counters, StreamKind::Waiting);
        let written = Written { served, bytes: Cell::new(0), coded: Cell::default(), stream };
        Self { served, record, sent, sent_before, written, state: EntryState::Open }
    }

    /// The entry of an exchange that rested.
    pub fn resumed(served: &'a ServedConnection, facts: RestingFacts, sent: Rc<Cell<u64>>) -> Self {
        let (to_upstream, to_client) = (facts.bytes_to_upstream, facts.bytes_to_client);
        let is_grpc = facts.is_grpc;
        let mut entry = Self::new(served, Record::resumed(served, facts), sent);
        if is_grpc {
            entry.written.stream.becomes(StreamKind::Grpc);
        }
        entry.written.bytes.set(to_upstream);
        // The counter of the connection has begun anew.
        entry.sent_before = entry.sent_before.wrapping_sub(to_client);
        entry
    }

    /// The exchange rests: it has no line yet.
    pub fn rest(&mut self) -> RestingFacts {
        self.state = EntryState::Rests;
        self.count();
        let is_grpc = self.written.stream.is_grpc();
        RestingFacts { is_grpc, ..self.record.rest(self.served) }
    }

    fn count(&mut self) {
        self.record.bytes_to_client = self.sent.get().wrapping_sub(self.sent_before);
        self.record.bytes_to_upstream = self.written.bytes.get();
    }

    /// Another entry of the same request writes its line.
    pub fn dismiss(&mut self) {
        self.state = EntryState::Rests;
    }

    /// Ends the request: its line is written where the entry is dropped.
    pub fn end(&mut self) {
        self.state = EntryState::Ended;
    }
}

/// Writes the line, however the request has ended, unless its exchange rests.
impl Drop for RequestLogEntry<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() || self.state == EntryState::Rests {
            return;
        }
        if self.state == EntryState::Open {
            self.record.failed = true;
            self.record.reason = DROPPED;
        }
        self.count();
        self.record.coded = self.written.coded.get();
        self.record.answered_by(self.served).emit(&self.record);
    }
}
