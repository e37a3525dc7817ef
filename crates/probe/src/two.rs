//! A GET by HTTP/2, for servers that speak nothing else.

use std::io::{self, ErrorKind, Read, Write};
use std::time::Instant;

use eyelet_h2::hpack::HeaderField;
use eyelet_h2::{ErrorCode, H2Connection, H2Event, H2Limits, H2Received, RequestKind};

use crate::response::{BODY_BYTES_MAX, ProbeResponse};

/// Bytes that are read at a time.
const READ_BYTES: usize = 16 << 10;

/// Asks for a path on a fresh connection, and reads the answer.
///
/// # Errors
/// The stream's; `InvalidData` if the server breaks the protocol or ends the request.
pub fn get(
    stream: &mut (impl Read + Write),
    (authority, path): (&str, &str),
    coding: &str,
) -> io::Result<ProbeResponse> {
    let mut exchange = Exchange::new(stream);
    let fields = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", authority),
        (":path", path),
        ("user-agent", "eyelet-probe"),
        ("accept-encoding", coding),
    ];
    let fields = fields.map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
    let Exchange { connection, out, .. } = &mut exchange;
    let asked = connection.request(fields, RequestKind::Other, true, out).map_err(invalid)?;
    let mut answer = Answer { stream: asked, response: ProbeResponse::default(), going: None };
    loop {
        let noted = exchange.next(|event| answer.note(event));
        let (is_whole, data_bytes) = match (noted, answer.going) {
            (Err(error), Some(code)) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(invalid(format!("it ended the connection: {code}")));
            }
            (noted, _) => noted??,
        };
        if is_whole {
            return Ok(answer.response);
        }
        exchange.connection.release(answer.stream, data_bytes, &mut exchange.out);
    }
}

/// Begins a connection, which is idle then: both ends have the other's settings.
///
/// # Errors
/// The stream's; `InvalidData` if the server breaks the protocol.
pub fn begin(stream: &mut (impl Read + Write)) -> io::Result<()> {
    let mut exchange = Exchange::new(stream);
    let (mut has_settings, mut is_acknowledged) = (false, false);
    while !(has_settings && is_acknowledged) {
        exchange.next(|event| match event {
            H2Event::Settings => has_settings = true,
            H2Event::SettingsAcknowledged => is_acknowledged = true,
            _ => {}
        })?;
    }
    exchange.flush()
}

/// A fresh connection, and what was read of it.
struct Exchange<'s, S> {
    stream: &'s mut S,
    connection: H2Connection,
    began: Instant,
    input: Vec<u8>,
    /// The bytes of `input` that are taken.
    taken: usize,
    out: Vec<u8>,
    buffer: Vec<u8>,
}

impl<'s, S: Read + Write> Exchange<'s, S> {
    fn new(stream: &'s mut S) -> Self {
        let mut out = Vec::new();
        let connection = H2Connection::client(H2Limits::default(), 0, &mut out);
        let (input, buffer) = (Vec::new(), vec![0; READ_BYTES]);
        Self { stream, connection, began: Instant::now(), input, taken: 0, out, buffer }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Sends what is to be sent, and reads until something happens.
    fn next<T>(&mut self, note: impl FnOnce(H2Event<'_>) -> T) -> io::Result<T> {
        loop {
            self.flush()?;
            let rest = self.input.get(self.taken..).unwrap_or_default();
            let now_ms = self.began.elapsed().as_millis() as u64;
            match self.connection.receive(rest, now_ms, &mut self.out).map_err(invalid)? {
                H2Received::Event { consumed, event } => {
                    self.taken += consumed;
                    return Ok(note(event));
                }
                H2Received::OutputFull { consumed } => self.taken += consumed,
                H2Received::NeedMore { consumed, .. } => {
                    self.input.drain(..self.taken + consumed);
                    self.taken = 0;
                    self.flush()?;
                    match self.stream.read(&mut self.buffer)? {
                        0 => return Err(ErrorKind::UnexpectedEof.into()),
                        more => self.input.extend(self.buffer.iter().take(more)),
                    }
                }
            }
        }
    }
}

/// The answer, as far as it is here.
struct Answer {
    stream: u32,
    response: ProbeResponse,
    /// The reason why the server takes no more requests, if so: it may close before it answers this
    /// one.
    going: Option<ErrorCode>,
}

impl Answer {
    /// Returns whether the answer ends here, and the bytes of data that were taken.
    fn note(&mut self, event: H2Event<'_>) -> io::Result<(bool, u32)> {
        let response = &mut self.response;
        match event {
            H2Event::Response { head, is_last, .. } if head.status >= 200 => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let fields = head.fields.iter();
                response.fields = fields.map(|one| (text(one.name), text(one.value))).collect();
                response.status = head.status;
                Ok((is_last, 0))
            }
            H2Event::Data { data, is_last, .. } => {
                let room = (BODY_BYTES_MAX as usize).saturating_sub(response.body.len());
                response.is_cut = data.len() > room;
                response.body.extend_from_slice(data.get(..room).unwrap_or(data));
                // A frame has at most 16 KiB.
                Ok((is_last || response.is_cut, data.len() as u32))
            }
            H2Event::Trailers { .. } => Ok((true, 0)),
            H2Event::Reset { code, .. } => Err(invalid(format!("it reset the request: {code}"))),
            H2Event::Failed { fault, .. } => Err(invalid(format!("{fault:?}"))),
            H2Event::GoAway { last, code } if last < self.stream => {
                Err(invalid(format!("it did not take the request: {code}")))
            }
            H2Event::GoAway { code, .. } => {
                self.going = Some(code);
                Ok((false, 0))
            }
            _ => Ok((false, 0)),
        }
    }
}

fn invalid(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Act = fn(&mut H2Connection, u32, &mut Vec<u8>);

    /// A server in memory, which does `act` for a request. A read without anything to read ends.
    struct Server {
        connection: H2Connection,
        input: Vec<u8>,
        out: Vec<u8>,
        act: Act,
        /// Bytes of a long body that are not sent yet.
        long: usize,
        asked: u32,
        /// All that was written to it.
        heard: Vec<u8>,
    }

    impl Server {
        fn new(act: Act, long: usize) -> Self {
            let mut out = Vec::new();
            let connection = H2Connection::server(H2Limits::default(), 0, &mut out);
            let (input, heard) = (Vec::new(), Vec::new());
            Self { connection, input, out, act, long, asked: 0, heard }
        }

        /// Sends as much of the long body as the windows allow.
        fn send_long(&mut self) {
            while self.long > 0 && self.connection.room(self.asked) > 0 {
                let len = self.connection.room(self.asked).min(self.long);
                self.long -= len;
                let head = self.connection.data(self.asked, len, self.long == 0).unwrap();
                self.out.extend(head);
                self.out.resize(self.out.len() + len, b'a');
            }
        }
    }

    impl Write for Server {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.input.extend_from_slice(bytes);
            self.heard.extend_from_slice(bytes);
            loop {
                match self.connection.receive(&self.input, 0, &mut self.out) {
                    Ok(H2Received::Event { consumed, event }) => {
                        if let H2Event::Request { stream, .. } = event {
                            self.asked = stream;
                            (self.act)(&mut self.connection, stream, &mut self.out);
                        }
                        self.input.drain(..consumed);
                    }
                    Ok(H2Received::NeedMore { consumed, .. }) => {
                        self.input.drain(..consumed);
                        self.send_long();
                        return Ok(bytes.len());
                    }
                    other => panic!("{other:?}"),
                }
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for Server {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            // Frames come apart.
            let piece = if self.out.len() > READ_BYTES { READ_BYTES - 1 } else { 7 };
            let more = self.out.len().min(buffer.len()).min(piece);
            buffer[..more].copy_from_slice(&self.out[..more]);
            self.out.drain(..more);
            Ok(more)
        }
    }

    fn response_of(act: Act, long: usize) -> Result<ProbeResponse, String> {
        let answer = get(&mut Server::new(act, long), ("a.test", "/"), "gzip");
        answer.map_err(|error| error.to_string())
    }

    fn asked(act: Act) -> Result<(u16, Vec<u8>), String> {
        response_of(act, 0).map(|found| (found.status, found.body))
    }

    fn head(connection: &mut H2Connection, stream: u32, out: &mut Vec<u8>, is_last: bool) {
        let fields = [(":status", "200"), ("vary", "accept-encoding")]
            .map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
        connection.respond(stream, fields, is_last, out).unwrap();
    }

    fn part(
        connection: &mut H2Connection,
        stream: u32,
        out: &mut Vec<u8>,
        (text, is_last): (&str, bool),
    ) {
        out.extend(connection.data(stream, text.len(), is_last).unwrap());
        out.extend_from_slice(text.as_bytes());
    }

    /// GOAWAY with ENHANCE_YOUR_CALM (RFC 9113 section 6.8).
    fn go_away(last: u8, out: &mut Vec<u8>) {
        out.extend_from_slice(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, last, 0, 0, 0, 0xb]);
    }

    #[test]
    fn an_answer_is_read_to_its_end() {
        let whole: Act = |connection, stream, out| {
            head(connection, stream, out, false);
            part(connection, stream, out, ("a pa", false));
            part(connection, stream, out, ("ge", true));
        };
        let after_early_hints: Act = |connection, stream, out| {
            let hints = [HeaderField::new(b":status", b"103"), HeaderField::new(b"link", b"</a>")];
            connection.inform(stream, hints, out).unwrap();
            head(connection, stream, out, false);
            part(connection, stream, out, ("a page", true));
        };
        let with_trailers: Act = |connection, stream, out| {
            head(connection, stream, out, false);
            part(connection, stream, out, ("a page", false));
            connection.trailers(stream, [HeaderField::new(b"etag", b"a")], out).unwrap();
        };
        let while_it_goes: Act = |connection, stream, out| {
            go_away(1, out);
            head(connection, stream, out, false);
            part(connection, stream, out, ("a page", true));
        };
        for act in [whole, after_early_hints, with_trailers, while_it_goes] {
            assert_eq!(asked(act), Ok((200, b"a page".to_vec())));
        }
        let empty = asked(|connection, stream, out| head(connection, stream, out, true));
        assert_eq!(empty, Ok((200, Vec::new())));
    }

    #[test]
    fn a_body_may_be_larger_than_a_window_and_is_cut_at_the_limit() {
        let begun: Act = |connection, stream, out| head(connection, stream, out, false);
        let most = BODY_BYTES_MAX as usize;
        for (bytes, kept, is_cut) in [(3 << 20, 3 << 20, false), (most + 100_000, most, true)] {
            let found = response_of(begun, bytes).unwrap();
            assert_eq!((found.body.len(), found.is_cut), (kept, is_cut));
        }
    }

    #[test]
    fn what_is_no_answer_has_a_reason() {
        for (act, why) in [
            (
                (|connection, stream, out| connection.reset(stream, ErrorCode::CANCEL, out)) as Act,
                "it reset the request: CANCEL",
            ),
            (
                |connection, stream, out| head(connection, stream, out, false),
                "unexpected end of file",
            ),
            (
                |connection, stream, out| {
                    head(connection, stream, out, false);
                    part(connection, stream, out, ("a pa", false));
                },
                "unexpected end of file",
            ),
            (|_, _, out| go_away(0, out), "it did not take the request: ENHANCE_YOUR_CALM"),
            (|_, _, out| go_away(1, out), "it ended the connection: ENHANCE_YOUR_CALM"),
            (|_, _, out| out.extend_from_slice(&[0xff; 9]), "frame"),
        ] {
            let said = asked(act).unwrap_err();
            assert!(said.contains(why), "{why}: {said}");
        }
    }

    #[test]
    fn a_connection_begins_without_a_request() {
        let mut server = Server::new(|_, _, _| panic!("a request"), 0);
        begin(&mut server).unwrap();
        assert!(server.heard.starts_with(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
        assert!(server.connection.peer_settings().is_some());
        // The acknowledgement of its settings is out, too.
        assert!(server.heard.windows(9).any(|frame| frame == [0, 0, 0, 4, 1, 0, 0, 0, 0]));
    }
}
