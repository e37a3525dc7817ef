//! DNS over HTTPS (RFC 8484) as an HTTP/2 client: one GET at a time on a connection.

use std::io;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use eyelet_h2::hpack::HeaderField;
use eyelet_h2::{ConnectionFault, H2Connection, H2Event, H2Limits, H2Received, RequestKind};
use eyelet_tls::client;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A message of DNS has no more bytes.
const ANSWER_BYTES_MAX: usize = 65_535;
/// Bytes read at once: more than any frame needs to be read on.
const READ_BYTES: usize = 16 << 10;
/// Bytes of an answer's head: a few short fields.
const HEAD_BYTES_MAX: u32 = 16 << 10;
const CONTENT_TYPE: &[u8] = b"application/dns-message";

/// The HTTP/2 of one connection.
pub struct Http2 {
    connection: H2Connection,
    /// Bytes that are not read, and not sent.
    input: Vec<u8>,
    output: Vec<u8>,
    began: Instant,
    /// The server takes no more requests here.
    is_leaving: bool,
}

/// The fault of a server that gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpFault {
    #[error("the connection ended: {}", client::describe_stream(.0))]
    Ended(#[from] io::Error),
    #[error("HTTP/2: {0}")]
    Connection(ConnectionFault),
    #[error("HTTP/2: the request was refused")]
    Refused,
    #[error("HTTP status {0}")]
    Status(u16),
    #[error("the answer is not application/dns-message")]
    Type,
    #[error("the answer has more than {ANSWER_BYTES_MAX} bytes")]
    TooLong,
}

impl Http2 {
    /// A connection that has said nothing.
    pub fn begin() -> Self {
        let limits = H2Limits {
            streams_max: 0,
            connection_window: 64 << 10,
            head_bytes_max: HEAD_BYTES_MAX,
            ..H2Limits::default()
        };
        let mut output = Vec::new();
        let connection = H2Connection::client(limits, 0, &mut output);
        Self { connection, input: Vec::new(), output, began: Instant::now(), is_leaving: false }
    }

    /// True if it takes another request.
    pub fn can_ask(&self) -> bool {
        !self.is_leaving && self.connection.can_open()
    }

    /// Asks by a GET, and returns the body of the answer.
    ///
    /// # Errors
    /// Why there is none. The connection is then at its end.
    pub async fn get(
        &mut self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        authority: &str,
        path: &str,
        message: &[u8],
    ) -> Result<Vec<u8>, HttpFault> {
        let path = format!("{path}?dns={}", URL_SAFE_NO_PAD.encode(message));
        let fields = [
            (&b":method"[..], &b"GET"[..]),
            (b":scheme", b"https"),
            (b":authority", authority.as_bytes()),
            (b":path", path.as_bytes()),
            (b"accept", CONTENT_TYPE),
        ];
        let fields = fields.map(|(name, value)| HeaderField::new(name, value));
        let asked = self.connection.request(fields, RequestKind::Other, true, &mut self.output);
        let asked = asked.map_err(|_| HttpFault::Refused)?;
        let mut body = Vec::new();
        loop {
            let is_whole = self.read(asked, &mut body)?;
            stream.write_all(&self.output).await?;
            stream.flush().await?;
            self.output.clear();
            if is_whole {
                return Ok(body);
            }
            let mut piece = [0; READ_BYTES];
            let bytes = stream.read(&mut piece).await?;
            if bytes == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            self.input.extend_from_slice(piece.get(..bytes).unwrap_or_default());
        }
    }

    /// Reads what has arrived. Returns whether the answer is whole.
    fn read(&mut self, asked: u32, body: &mut Vec<u8>) -> Result<bool, HttpFault> {
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut is_whole = false;
        while !is_whole {
            let received = self.connection.receive(&self.input, now_ms, &mut self.output);
            let received = received.map_err(HttpFault::Connection)?;
            let (consumed, event) = match received {
                H2Received::Event { consumed, event } => (consumed, event),
                H2Received::NeedMore { consumed, .. } | H2Received::OutputFull { consumed } => {
                    self.input.drain(..consumed);
                    break;
                }
            };
            let mut released = None;
            match event {
                H2Event::Response { stream, head, is_last } if stream == asked => {
                    if head.status >= 200 {
                        check(head.status, head.fields.value(b"content-type"))?;
                    }
                    is_whole = is_last;
                }
                H2Event::Data { stream, data, is_last } => {
                    released = Some((stream, u32::try_from(data.len()).unwrap_or(u32::MAX)));
                    if stream == asked {
                        if body.len() + data.len() > ANSWER_BYTES_MAX {
                            return Err(HttpFault::TooLong);
                        }
                        body.extend_from_slice(data);
                        is_whole = is_last;
                    }
                }
                H2Event::Trailers { stream, .. } if stream == asked => is_whole = true,
                H2Event::Reset { stream, .. } | H2Event::Failed { stream, .. }
                    if stream == asked =>
                {
                    return Err(HttpFault::Refused);
                }
                H2Event::GoAway { last, .. } => {
                    self.is_leaving = true;
                    if last < asked {
                        return Err(HttpFault::Refused);
                    }
                }
                _ => {}
            }
            self.input.drain(..consumed);
            if let Some((stream, bytes)) = released {
                self.connection.release(stream, bytes, &mut self.output);
            }
        }
        Ok(is_whole)
    }
}

/// An answer of DNS, whatever it says, has status 200 (RFC 8484 section 4.2.1).
fn check(status: u16, content_type: Option<&[u8]>) -> Result<(), HttpFault> {
    if status != 200 {
        return Err(HttpFault::Status(status));
    }
    let kind = content_type.unwrap_or_default();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    match kind.trim_ascii().eq_ignore_ascii_case(CONTENT_TYPE) {
        true => Ok(()),
        false => Err(HttpFault::Type),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A server that answers each request by `answers` on one connection.
    async fn serve(
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        answers: &'static [(&'static str, &'static str, usize)],
    ) {
        let (mut output, mut input) = (Vec::new(), Vec::new());
        let mut server = H2Connection::server(H2Limits::default(), 0, &mut output);
        let mut answers = answers.iter();
        loop {
            let mut is_all = false;
            while !is_all {
                let (consumed, asked) = match server.receive(&input, 0, &mut output).unwrap() {
                    H2Received::Event {
                        consumed,
                        event: H2Event::Request { stream, head, .. },
                    } => {
                        assert!(head.path().unwrap().starts_with(b"/dns-query?dns=AAA"));
                        (consumed, Some(stream))
                    }
                    H2Received::Event { consumed, .. } => (consumed, None),
                    H2Received::NeedMore { consumed, .. } | H2Received::OutputFull { consumed } => {
                        is_all = true;
                        (consumed, None)
                    }
                };
                input.drain(..consumed);
                let Some(stream) = asked else { continue };
                let (status, kind, bytes) = answers.next().unwrap();
                let fields = [(":status", *status), ("content-type", *kind)]
                    .map(|(name, value)| HeaderField::new(name.as_bytes(), value.as_bytes()));
                server.respond(stream, fields, *bytes == 0, &mut output).unwrap();
                let mut left = *bytes;
                while left > 0 {
                    let piece = left.min(server.room(stream)).min(16 << 10);
                    if piece == 0 {
                        break;
                    }
                    left -= piece;
                    output.extend(server.data(stream, piece, left == 0).unwrap());
                    output.extend(vec![7; piece]);
                }
            }
            stream.write_all(&output).await.unwrap();
            output.clear();
            let mut piece = [0; 4096];
            match stream.read(&mut piece).await {
                Ok(bytes @ 1..) => input.extend(&piece[..bytes]),
                _ => return,
            }
        }
    }

    #[tokio::test]
    async fn answers_are_read_one_after_the_other() {
        const KIND: &str = "application/dns-message";
        let (mut near, far) = tokio::io::duplex(4 << 10);
        tokio::spawn(serve(
            far,
            &[
                ("200", KIND, 40),
                ("200", "Application/DNS-Message; charset=x", 60_000),
                ("503", KIND, 9),
            ],
        ));
        let mut http = Http2::begin();
        let message = [0; 12];
        let mut next = async || http.get(&mut near, "dns.example", "/dns-query", &message).await;
        for bytes in [40, 60_000] {
            let body = next().await.unwrap();
            assert_eq!((body.len(), body.iter().all(|byte| *byte == 7)), (bytes, true));
        }
        let unavailable = next().await;
        assert!(matches!(unavailable, Err(HttpFault::Status(503))), "{unavailable:?}");
    }

    #[tokio::test]
    async fn what_is_no_http2_is_an_error() {
        let (mut near, mut far) = tokio::io::duplex(4 << 10);
        tokio::spawn(async move {
            far.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        });
        let refused = Http2::begin().get(&mut near, "dns.example", "/dns-query", &[0; 12]).await;
        assert!(matches!(refused, Err(HttpFault::Connection(_))), "{refused:?}");
    }

    #[test]
    fn only_answers_of_dns_count() {
        assert!(check(200, Some(b"application/dns-message")).is_ok());
        assert!(matches!(check(200, None), Err(HttpFault::Type)));
        assert!(matches!(check(200, Some(b"text/html")), Err(HttpFault::Type)));
        assert!(matches!(check(301, Some(CONTENT_TYPE)), Err(HttpFault::Status(301))));
    }
}
