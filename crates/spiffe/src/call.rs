//! One call of `FetchX509SVID` over HTTP/2 at a Unix socket. The answer is a stream of messages
//! that ends when either side goes.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use eyelet_h2::hpack::HeaderField;
use eyelet_h2::{H2Connection, H2Event, H2Limits, H2Received, HeaderFields, RequestKind};
use zeroize::{Zeroize, Zeroizing};

use crate::fault::CallFault;
use crate::grpc::{HEAD_BYTES, Messages};

/// Bytes that are read at a time.
const READ_BYTES: usize = 16 << 10;
/// The time for the first message, and for each other one from its first byte to its last. An agent
/// sends the first "as soon as possible, without delay" (section 4.3).
const MESSAGE_WAIT: Duration = Duration::from_secs(10);
/// The time that a write may take: all that is written is less than a socket's buffer.
const WRITE_WAIT: Duration = Duration::from_secs(5);
/// Bytes of the agent's words that are shown.
const WORDS_BYTES_MAX: usize = 200;

/// A call that has begun.
pub struct Call {
    socket: UnixStream,
    connection: H2Connection,
    began: Instant,
    /// Read, and not taken yet: the first `filled` bytes. The others are wiped.
    input: Zeroizing<Vec<u8>>,
    filled: usize,
    out: Vec<u8>,
    answer: Answer,
    /// The time at which the message that is waited for, or has begun, must be whole.
    due: Option<Instant>,
}

/// The answer, as far as it has come.
struct Answer {
    stream: u32,
    has_head: bool,
    messages: Messages,
}

/// The change that an event has made.
#[derive(Default)]
struct Noted {
    /// Bytes of data that were taken.
    data_bytes: usize,
    has_message: bool,
}

impl Call {
    /// Sends the request: an empty message.
    ///
    /// # Errors
    /// The socket's.
    pub fn begin(socket: UnixStream) -> Result<Self, CallFault> {
        socket.set_write_timeout(Some(WRITE_WAIT)).map_err(CallFault::Io)?;
        let mut out = Vec::new();
        let mut connection = H2Connection::client(H2Limits::default(), 0, &mut out);
        let fields = FIELDS.map(|(name, value)| HeaderField::new(name, value));
        let internal = |error: &dyn std::fmt::Debug| CallFault::Http2(format!("{error:?}"));
        let asked = connection.request(fields, RequestKind::Other, false, &mut out);
        let stream = asked.map_err(|fault| internal(&fault))?;
        let head = connection.data(stream, HEAD_BYTES, true).map_err(|fault| internal(&fault))?;
        out.extend_from_slice(&head);
        out.extend_from_slice(&[0; HEAD_BYTES]);
        let began = Instant::now();
        let answer = Answer { stream, has_head: false, messages: Messages::default() };
        let (input, filled) = (Zeroizing::new(vec![0; READ_BYTES]), 0);
        let due = Some(began + MESSAGE_WAIT);
        Ok(Self { socket, connection, began, input, filled, out, answer, due })
    }

    /// Runs until the call ends, and gives each message to `take`. Returns why it has ended.
    pub fn run(mut self, mut take: impl FnMut(&[u8]) -> Result<(), CallFault>) -> CallFault {
        loop {
            if let Err(fault) = self.step(&mut take) {
                return fault;
            }
        }
    }

    /// Takes one event, or reads.
    fn step(
        &mut self,
        take: &mut impl FnMut(&[u8]) -> Result<(), CallFault>,
    ) -> Result<(), CallFault> {
        self.flush()?;
        let now_ms = self.began.elapsed().as_millis() as u64;
        let input = &self.input[..self.filled];
        let received = self.connection.receive(input, now_ms, &mut self.out);
        match received.map_err(|fault| CallFault::Http2(fault.to_string()))? {
            H2Received::Event { consumed, event } => {
                let noted = self.answer.note(event, take)?;
                self.consume(consumed);
                self.set_due(&noted);
                if noted.data_bytes > 0 {
                    let bytes = noted.data_bytes as u32;
                    self.connection.release(self.answer.stream, bytes, &mut self.out);
                }
                Ok(())
            }
            H2Received::OutputFull { consumed } => {
                self.consume(consumed);
                Ok(())
            }
            H2Received::NeedMore { consumed, .. } => {
                self.consume(consumed);
                self.flush()?;
                self.read()
            }
        }
    }

    fn set_due(&mut self, noted: &Noted) {
        let within = self.answer.messages.is_within();
        if noted.has_message || (within && self.due.is_none()) {
            self.due = within.then(|| Instant::now() + MESSAGE_WAIT);
        }
    }

    fn flush(&mut self) -> Result<(), CallFault> {
        self.socket.write_all(&self.out).map_err(CallFault::Io)?;
        self.out.clear();
        Ok(())
    }

    fn read(&mut self) -> Result<(), CallFault> {
        let wait = self.due.map(|due| due.saturating_duration_since(Instant::now()));
        if wait.is_some_and(|wait| wait.is_zero()) {
            return Err(CallFault::Late(MESSAGE_WAIT));
        }
        self.socket.set_read_timeout(wait).map_err(CallFault::Io)?;
        match self.socket.read(&mut self.input[self.filled..]) {
            Ok(0) => Err(CallFault::Closed),
            Ok(more) => {
                self.filled += more;
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => Ok(()),
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(CallFault::Late(MESSAGE_WAIT)),
                ErrorKind::ConnectionReset => Err(CallFault::Closed),
                _ => Err(CallFault::Io(error)),
            },
        }
    }

    /// Moves the rest to the front, and wipes what was behind it.
    fn consume(&mut self, consumed: usize) {
        self.input.copy_within(consumed..self.filled, 0);
        let rest = self.filled - consumed;
        self.input[rest..self.filled].zeroize();
        self.filled = rest;
    }
}

impl Answer {
    fn note(
        &mut self,
        event: H2Event<'_>,
        take: &mut impl FnMut(&[u8]) -> Result<(), CallFault>,
    ) -> Result<Noted, CallFault> {
        match event {
            H2Event::Response { head, is_last, .. } if head.status >= 200 => {
                self.note_head(head.status, &head.fields, is_last)?;
            }
            H2Event::Data { data, is_last, .. } => {
                let mut has_message = false;
                self.messages.push(data, |message| {
                    has_message = true;
                    take(message)
                })?;
                if is_last {
                    // A call ends by trailers.
                    return Err(CallFault::Closed);
                }
                return Ok(Noted { data_bytes: data.len(), has_message });
            }
            H2Event::Trailers { fields, .. } => return Err(ended(&fields)),
            H2Event::Reset { code, .. } => return Err(CallFault::Reset(code)),
            H2Event::Failed { fault, .. } => return Err(CallFault::Http2(format!("{fault:?}"))),
            H2Event::GoAway { last, code } if last < self.stream => {
                return Err(CallFault::Reset(code));
            }
            _ => {}
        }
        Ok(Noted::default())
    }

    fn note_head(
        &mut self,
        status: u16,
        fields: &HeaderFields,
        is_last: bool,
    ) -> Result<(), CallFault> {
        self.has_head = true;
        let kind = fields.value(b"content-type").unwrap_or_default();
        let is_grpc = kind.starts_with(b"application/grpc");
        match (status, is_grpc, is_last) {
            (200, true, true) => Err(ended(fields)),
            (200, true, false) => Ok(()),
            (200, false, _) => Err(CallFault::NotGrpc),
            (other, ..) => Err(CallFault::Status(other)),
        }
    }
}

/// The end of a call, by its trailers. A code that is missing or no number is `Unknown`.
fn ended(fields: &HeaderFields) -> CallFault {
    const UNKNOWN: u32 = 2;
    let text = |name: &[u8]| fields.value(name).and_then(|value| std::str::from_utf8(value).ok());
    let code = text(b"grpc-status").and_then(|code| code.parse().ok()).unwrap_or(UNKNOWN);
    let words = text(b"grpc-message").unwrap_or_default();
    let message = words.chars().take(WORDS_BYTES_MAX).collect();
    CallFault::Ended { code, message }
}

/// The request. Without the last field an agent must refuse it (SPIFFE Workload Endpoint, section
/// 5): a request that somebody else has us send could not have it.
const FIELDS: [(&[u8], &[u8]); 7] = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"localhost"),
    (b":path", b"/SpiffeWorkloadAPI/FetchX509SVID"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
    (b"workload.spiffe.io", b"true"),
];
