//! Bodies of HTTP/1.1 messages (RFC 9112 section 7). The decoder finds their pieces and their end,
//! strictly. The encoder frames them again.

use std::num::NonZeroU64;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::framing::{is_trailer, write_fields};
use super::head::{Length, Scanner, is_token, split_to};
use super::write_queue::WriteQueue;

/// Bytes of a chunk's first line: 16 hexadecimal digits and the extensions in use.
const CHUNK_LINE_BYTES_MAX: usize = 256;
/// Bytes of chunk extensions in one body. Extensions are dropped, so a long stream of them is an
/// attack.
const EXTENSION_BYTES_MAX: usize = 16 << 10;
/// Bytes of trailers, and the number of fields.
const TRAILER_BYTES_MAX: usize = 8 << 10;
const TRAILER_FIELDS_MAX: usize = 32;
/// Hexadecimal digits of a chunk's size: more do not fit 64 bits.
const SIZE_DIGITS_MAX: usize = 16;

/// A piece of a body.
#[derive(Debug, PartialEq)]
pub enum Piece {
    /// Some bytes; never empty.
    Data(Bytes),
    /// The end, with trailers if there are any.
    End(Option<HeaderMap>),
}

/// The framing is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadFraming;

#[derive(Debug)]
enum State {
    Left(u64),
    UntilClose,
    Size,
    Chunk(u64),
    ChunkEnd,
    Trailers(Scanner),
    Done,
}

/// The place of a decoder in its body, for a body that rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecoderPlace {
    /// So many bytes of a body with Content-Length are left.
    Left(u64),
    /// In a body that the end of the connection ends.
    UntilClose,
    /// Before a chunk's first line.
    Size,
    /// So many bytes of a chunk are left.
    Chunk(u64),
    /// Before the line end behind a chunk.
    ChunkEnd,
    /// Before the trailers.
    Trailers,
}

impl DecoderPlace {
    /// True in a body whose end is not known, where nothing that has begun is owed.
    pub fn is_open_ended(self) -> bool {
        matches!(self, Self::UntilClose | Self::Size)
    }
}

/// Decodes a body.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    extension_bytes: usize,
}

impl Decoder {
    /// A decoder at the body's first byte.
    pub fn new(length: Length) -> Self {
        let state = match length {
            Length::Empty | Length::Known(0) => State::Done,
            Length::Known(left) => State::Left(left),
            Length::Chunked => State::Size,
            Length::UntilClose => State::UntilClose,
        };
        Self { state, extension_bytes: 0 }
    }

    /// Returns its place, and the bytes of chunk extensions so far. What it has not taken belongs
    /// to it. `None`: the body has ended.
    pub fn place(&self) -> Option<(DecoderPlace, usize)> {
        let place = match self.state {
            State::Left(left) => DecoderPlace::Left(left),
            State::UntilClose => DecoderPlace::UntilClose,
            State::Size => DecoderPlace::Size,
            State::Chunk(left) => DecoderPlace::Chunk(left),
            State::ChunkEnd => DecoderPlace::ChunkEnd,
            // They are read anew: their bytes were not taken.
            State::Trailers(_) => DecoderPlace::Trailers,
            State::Done => return None,
        };
        Some((place, self.extension_bytes))
    }

    /// A decoder at this place. `None`: no decoder gets there.
    pub fn at(place: DecoderPlace, extension_bytes: usize) -> Option<Self> {
        let state = match place {
            // As [`Decoder::size`] checks.
            DecoderPlace::Left(left) | DecoderPlace::Chunk(left)
                if i64::try_from(left).is_err() =>
            {
                return None;
            }
            DecoderPlace::Left(left) => State::Left(left),
            DecoderPlace::UntilClose => State::UntilClose,
            DecoderPlace::Size => State::Size,
            DecoderPlace::Chunk(left) => State::Chunk(left),
            DecoderPlace::ChunkEnd => State::ChunkEnd,
            DecoderPlace::Trailers => State::Trailers(Scanner::default()),
        };
        (extension_bytes <= EXTENSION_BYTES_MAX).then_some(Self { state, extension_bytes })
    }

    /// True if the decoder has returned the end.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Bytes that are left of a body with Content-Length. `None` at its end, and for other bodies.
    pub fn left(&self) -> Option<NonZeroU64> {
        match self.state {
            State::Left(left) => NonZeroU64::new(left),
            _ => None,
        }
    }

    /// True if nothing of such a body is left but its end, which takes no byte.
    pub fn is_at_end(&self) -> bool {
        matches!(self.state, State::Left(0))
    }

    /// Skips bytes of such a body that were passed on without [`Decoder::next`].
    pub fn skip(&mut self, bytes: usize) {
        if let State::Left(left) = &mut self.state {
            *left = left.saturating_sub(bytes as u64);
        }
    }

    /// The next piece; `None` if it needs more bytes.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Piece>, BadFraming> {
        loop {
            match &mut self.state {
                State::Left(0) => {
                    self.state = State::Done;
                    return Ok(Some(Piece::End(None)));
                }
                State::Left(left) => return Ok(take(buffer, left).map(Piece::Data)),
                State::UntilClose if buffer.is_empty() => return Ok(None),
                State::UntilClose => return Ok(Some(Piece::Data(buffer.split().freeze()))),
                State::Size => match self.size(buffer)? {
                    None => return Ok(None),
                    Some(0) => self.state = State::Trailers(Scanner::default()),
                    Some(size) => self.state = State::Chunk(size),
                },
                State::Chunk(0) => self.state = State::ChunkEnd,
                State::Chunk(left) => return Ok(take(buffer, left).map(Piece::Data)),
                State::ChunkEnd => match buffer.get(..2) {
                    Some(b"\r\n") => {
                        buffer.advance(2);
                        self.state = State::Size;
                    }
                    None if buffer.is_empty() || buffer[0] == b'\r' => return Ok(None),
                    _ => return Err(BadFraming),
                },
                State::Trailers(_) => return self.trailers(buffer),
                State::Done => return Ok(Some(Piece::End(None))),
            }
        }
    }

    /// Handles the end of the stream: it ends the body, or truncates it.
    pub fn ended(&mut self) -> Result<(), BadFraming> {
        match self.state {
            State::UntilClose | State::Done => {
                self.state = State::Done;
                Ok(())
            }
            _ => Err(BadFraming),
        }
    }

    /// `chunk-size [ chunk-ext ] CRLF`, without white space after the size: readers differ on it.
    fn size(&mut self, buffer: &mut BytesMut) -> Result<Option<u64>, BadFraming> {
        let Some(lf) = buffer.iter().position(|byte| *byte == b'\n') else {
            let hopeless = buffer.first().is_some_and(|byte| !byte.is_ascii_hexdigit());
            // The longest line may have come with its CR.
            return if hopeless || buffer.len() > CHUNK_LINE_BYTES_MAX + 1 {
                Err(BadFraming)
            } else {
                Ok(None)
            };
        };
        let line = buffer[..lf].strip_suffix(b"\r").ok_or(BadFraming)?;
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let (size, extension) = line.split_at(digits);
        self.extension_bytes += extension.len();
        if !(1..=SIZE_DIGITS_MAX).contains(&digits)
            || !are_extensions(extension)
            || line.len() > CHUNK_LINE_BYTES_MAX
            || self.extension_bytes > EXTENSION_BYTES_MAX
        {
            return Err(BadFraming);
        }
        let size = std::str::from_utf8(size).map_err(|_| BadFraming)?;
        let size = u64::from_str_radix(size, 16).map_err(|_| BadFraming)?;
        // As with Content-Length: other readers use signed numbers.
        i64::try_from(size).map_err(|_| BadFraming)?;
        buffer.advance(lf + 1);
        Ok(Some(size))
    }

    fn trailers(&mut self, buffer: &mut BytesMut) -> Result<Option<Piece>, BadFraming> {
        if buffer.starts_with(b"\r\n") {
            buffer.advance(2);
            self.state = State::Done;
            return Ok(Some(Piece::End(None)));
        }
        let State::Trailers(scanner) = &mut self.state else { return Err(BadFraming) };
        if b"\r\n".starts_with(buffer) {
            return Ok(None);
        }
        let end = scanner.end(buffer).map_err(|_| BadFraming)?;
        if end.unwrap_or(buffer.len()) > TRAILER_BYTES_MAX {
            return Err(BadFraming);
        }
        let Some(end) = end else { return Ok(None) };
        let head = buffer.split_to(end).freeze();
        let mut fields = [httparse::EMPTY_HEADER; TRAILER_FIELDS_MAX];
        let parsed = httparse::parse_headers(&head, &mut fields).map_err(|_| BadFraming)?;
        let httparse::Status::Complete((len, fields)) = parsed else { return Err(BadFraming) };
        if len != head.len() {
            return Err(BadFraming);
        }
        let mut trailers = HeaderMap::new();
        for field in fields {
            let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| BadFraming)?;
            let value = HeaderValue::from_maybe_shared(head.slice_ref(field.value));
            if is_trailer(&name) {
                trailers.append(name, value.map_err(|_| BadFraming)?);
            }
        }
        self.state = State::Done;
        Ok(Some(Piece::End((!trailers.is_empty()).then_some(trailers))))
    }
}

/// `*( ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )`, with BWS before each `;` but the
/// first (RFC 9112 7.1.1).
fn are_extensions(mut rest: &[u8]) -> bool {
    while let Some(behind) = rest.strip_prefix(b";") {
        let Some(behind) = behind_token(skip_blanks(behind)) else { return false };
        rest = match skip_blanks(behind).strip_prefix(b"=").map(skip_blanks) {
            None => behind,
            Some(value) => match behind_token(value).or_else(|| behind_quoted(value)) {
                Some(behind) => behind,
                None => return false,
            },
        };
        let next = skip_blanks(rest);
        rest = if next.is_empty() { rest } else { next };
    }
    rest.is_empty()
}

fn skip_blanks(bytes: &[u8]) -> &[u8] {
    let blanks = bytes.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    &bytes[blanks..]
}

/// The bytes after a leading token, if there is one.
fn behind_token(bytes: &[u8]) -> Option<&[u8]> {
    let len = bytes.iter().take_while(|byte| is_token(byte)).count();
    (len > 0).then(|| &bytes[len..])
}

/// The bytes after a leading quoted string (RFC 9110 5.6.4), if there is one.
fn behind_quoted(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = bytes.strip_prefix(b"\"")?;
    loop {
        rest = match rest {
            [b'"', behind @ ..] => return Some(behind),
            [b'\\', b'\t' | b' '..=b'~' | 0x80.., behind @ ..] => behind,
            [b'\t' | b' '..=b'[' | b']'..=b'~' | 0x80.., behind @ ..] => behind,
            _ => return None,
        };
    }
}

fn take(buffer: &mut BytesMut, left: &mut u64) -> Option<Bytes> {
    if buffer.is_empty() {
        return None;
    }
    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
    *left -= len as u64;
    Some(split_to(buffer, len).freeze())
}

/// The trailers without fields that may not be trailers; `None` if no field is left.
pub fn keep_trailers(trailers: HeaderMap) -> Option<HeaderMap> {
    let mut kept = HeaderMap::new();
    for (name, value) in &trailers {
        if kept.len() < TRAILER_FIELDS_MAX && is_trailer(name) {
            kept.append(name.clone(), value.clone());
        }
    }
    (!kept.is_empty()).then_some(kept)
}

/// Frames a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoder {
    /// Unchanged: the length is known, or the end of the connection ends the body.
    Plain,
    /// In chunks.
    Chunked,
}

impl Encoder {
    /// Queues a piece.
    pub fn push(self, piece: Bytes, queue: &mut WriteQueue) {
        if piece.is_empty() {
            return;
        }
        match self {
            Self::Plain => queue.push(piece),
            Self::Chunked => {
                queue.push(format!("{:x}\r\n", piece.len()).into_bytes());
                queue.push(piece);
                queue.push(&b"\r\n"[..]);
            }
        }
    }

    /// Queues the end.
    pub fn finish(self, trailers: Option<&HeaderMap>, queue: &mut WriteQueue) {
        if self == Self::Plain {
            return;
        }
        let mut end = BytesMut::from(&b"0\r\n"[..]);
        if let Some(trailers) = trailers {
            write_fields(trailers, &mut end);
        }
        end.extend_from_slice(b"\r\n");
        queue.push(end);
    }
}

#[cfg(test)]
mod tests;
