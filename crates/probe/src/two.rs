//! A GET by HTTP/2, for servers that speak nothing else.

use std::io::{self, ErrorKind, Read, Write};
use std::time::Instant;

use eyelet_h2::hpack::HeaderField;
use eyelet_h2::{H2Connection, H2Event, H2Limits, H2Received, RequestKind};

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
    let began = Instant::now();
    let (mut input, mut out, mut buffer) = (Vec::new(), Vec::new(), vec![0; READ_BYTES]);
    let mut connection = H2Connection::client(H2Limits::default(), 0, &mut out);
    let fields = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", authority),
        (":path", path),
        ("user-agent", "eyelet-probe"),
        ("accept-encoding", coding),
    ];
    let fields = fields.map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
    let asked = connection.request(fields, RequestKind::Other, true, &mut out);
    let mut answer = Answer { stream: asked.map_err(invalid)?, response: ProbeResponse::default() };
    let mut taken = 0;
    loop {
        stream.write_all(&out)?;
        out.clear();
        let rest = input.get(taken..).unwrap_or_default();
        let now_ms = began.elapsed().as_millis() as u64;
        match connection.receive(rest, now_ms, &mut out).map_err(invalid)? {
            H2Received::Event { consumed, event } => {
                taken += consumed;
                let (is_whole, data_bytes) = answer.note(event)?;
                if is_whole {
                    return Ok(answer.response);
                }
                connection.release(answer.stream, data_bytes, &mut out);
            }
            H2Received::OutputFull { consumed } => taken += consumed,
            H2Received::NeedMore { consumed, .. } => {
                input.drain(..taken + consumed);
                taken = 0;
                stream.write_all(&out)?;
                out.clear();
                match stream.read(&mut buffer)? {
                    0 => return Err(ErrorKind::UnexpectedEof.into()),
                    more => input.extend_from_slice(&buffer[..more]),
                }
            }
        }
    }
}

/// The answer, as far as it is here.
struct Answer {
    stream: u32,
    response: ProbeResponse,
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
            _ => Ok((false, 0)),
        }
    }
}

fn invalid(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.to_string())
}

#[cfg(test)]
mod tests {
    use eyelet_h2::ErrorCode;

    use super::*;

    type Act = fn(&mut H2Connection, u32, &mut Vec<u8>);

    /// A server in memory, which does `act` for a request. A read without anything to read ends.
    struct Server {
        connection: H2Connection,
        input: Vec<u8>,
        out: Vec<u8>,
        act: Act,
    }

    impl Write for Server {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.input.extend_from_slice(bytes);
            loop {
                match self.connection.receive(&self.input, 0, &mut self.out) {
                    Ok(H2Received::Event { consumed, event }) => {
                        if let H2Event::Request { stream, .. } = event {
                            (self.act)(&mut self.connection, stream, &mut self.out);
                        }
                        self.input.drain(..consumed);
                    }
                    Ok(H2Received::NeedMore { consumed, .. }) => {
                        self.input.drain(..consumed);
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
            let more = self.out.len().min(buffer.len()).min(7);
            buffer[..more].copy_from_slice(&self.out[..more]);
            self.out.drain(..more);
            Ok(more)
        }
    }

    fn asked(act: Act) -> Result<(u16, Vec<u8>), String> {
        let mut out = Vec::new();
        let connection = H2Connection::server(H2Limits::default(), 0, &mut out);
        let mut server = Server { connection, input: Vec::new(), out, act };
        let answer = get(&mut server, ("a.test", "/"), "gzip");
        answer.map(|found| (found.status, found.body)).map_err(|error| error.to_string())
    }

    fn head(connection: &mut H2Connection, stream: u32, out: &mut Vec<u8>, is_last: bool) {
        let fields = [(":status", "200"), ("vary", "accept-encoding")]
            .map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
        connection.respond(stream, fields, is_last, out).unwrap();
    }

    #[test]
    fn an_answer_is_read_and_what_is_none_has_a_reason() {
        let whole = asked(|connection, stream, out| {
            head(connection, stream, out, false);
            for (part, is_last) in [("a pa", false), ("ge", true)] {
                out.extend(connection.data(stream, part.len(), is_last).unwrap());
                out.extend_from_slice(part.as_bytes());
            }
        });
        assert_eq!(whole, Ok((200, b"a page".to_vec())));
        let empty = asked(|connection, stream, out| head(connection, stream, out, true));
        assert_eq!(empty, Ok((200, Vec::new())));
        for (act, why) in [
            (
                (|connection, stream, out| connection.reset(stream, ErrorCode::CANCEL, out)) as Act,
                "it reset the request: CANCEL",
            ),
            (
                |connection, stream, out| head(connection, stream, out, false),
                "unexpected end of file",
            ),
            (|_, _, out| out.extend_from_slice(&[0xff; 9]), "frame"),
        ] {
            let said = asked(act).unwrap_err();
            assert!(said.contains(why), "{why}: {said}");
        }
    }
}
