//! A response's head as lines: one that is passed on as it came takes no map of its fields. Its
//! lines are in the form in which heads are written, but for the case of their names.

use std::ops::Range;

use bytes::{Buf, BytesMut};
use eyelet_compress::eligible::DecidingFields;
use eyelet_compress::fields::has_element;
use http::{Method, StatusCode, response};

use super::fault::ResponseFault;
use super::framing::{is_hop_by_hop, write_status_line};
use super::head::{Length, RESPONSE_FIELDS_MAX, Response, has_no_body, read_length, read_response};
use super::lines::{FieldRole, all, is_token, take_known};
use super::spare_heads::{give_back, spare_head};

/// Bytes of a head that is kept as lines. The count of its connection includes them.
const HEAD_BYTES_MAX: usize = 4 << 10;
/// Bytes that are added: a field, and the empty line.
const ADDED_BYTES: usize = 32;

/// A response's head.
#[derive(Debug)]
pub enum ReceivedHead {
    /// By its fields. Boxed: heads are moved a few times, and most are lines.
    Fields(Box<Response>),
    /// By its lines.
    Lines(HeadLines),
}

impl ReceivedHead {
    /// The status.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Fields(response) => response.parts.status,
            Self::Lines(lines) => lines.status,
        }
    }

    /// The length of its body.
    pub fn length(&self) -> Length {
        match self {
            Self::Fields(response) => response.length,
            Self::Lines(lines) => Length::Known(lines.length),
        }
    }

    /// The response by its fields.
    ///
    /// # Errors
    /// Lines that were read before are no head.
    pub fn into_response(self) -> Result<Response, ResponseFault> {
        match self {
            Self::Fields(response) => Ok(*response),
            Self::Lines(lines) => lines.read(),
        }
    }

    /// The status and the fields.
    ///
    /// # Errors
    /// Lines that were read before are no head.
    pub fn into_parts(self) -> Result<response::Parts, ResponseFault> {
        self.into_response().map(|response| response.parts)
    }
}

/// The head of a response with a body of known length, and with a Date. It has no field that is
/// for the next hop only. A name that comes again follows itself, as those of cookies do.
#[derive(Debug)]
pub struct HeadLines {
    /// Its first line and those of its fields.
    text: BytesMut,
    status: StatusCode,
    length: u64,
    /// True if the upstream keeps its connection open after it.
    pub keep_alive: bool,
    /// True if it has a Content-Encoding.
    is_coded: bool,
    content_type: Place,
    cache_control: Place,
    etag: Place,
    /// All of its body, if that is written together with it.
    body: BytesMut,
}

/// A value's place in the text. An empty one is not there. [`HEAD_BYTES_MAX`] bounds it.
type Place = Range<u16>;

/// The values of fields that decide, as places in what was received.
#[derive(Clone, Debug, Default)]
struct Found {
    content_type: Range<usize>,
    cache_control: Range<usize>,
    etag: Range<usize>,
    is_coded: bool,
}

impl HeadLines {
    /// Takes a head of a response off the front of what was received. `None`: nothing was taken. It
    /// is not complete, or must be read by its fields.
    pub fn take(received: &mut BytesMut) -> Option<Self> {
        let (status, begin) = read_status(received)?;
        let mut reading = Reading::default();
        let end = reading.read(received, begin)?;
        let Reading { found, cut, closes, length, has_date, .. } = reading;
        let length = length.filter(|length| *length > 0 && has_date)?;
        let mut text = spare_head();
        text.reserve(end + ADDED_BYTES);
        write_status_line(status, &mut text);
        let written = text.len();
        let moved = |at: usize| {
            let before = if at < cut.end { 0 } else { cut.len() };
            (at - before - begin + written) as u16
        };
        let place = |found: Range<usize>| match found.is_empty() {
            true => 0..0,
            false => moved(found.start)..moved(found.end),
        };
        let Found { content_type, cache_control, etag, is_coded } = found;
        let (content_type, cache_control) = (place(content_type), place(cache_control));
        let etag = place(etag);
        // The empty line is written behind what is added.
        let lines = begin..end - 2;
        if cut.is_empty() {
            text.extend_from_slice(&received[lines]);
        } else {
            text.extend_from_slice(&received[lines.start..cut.start]);
            text.extend_from_slice(&received[cut.end..lines.end]);
        }
        received.advance(end);
        Some(Self {
            text,
            status,
            length,
            keep_alive: !closes,
            is_coded,
            content_type,
            cache_control,
            etag,
            body: BytesMut::new(),
        })
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Bytes of the body.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The fields that decide if the response is coded.
    pub fn deciding(&self) -> DecidingFields<'_> {
        let content_type = self.value(&self.content_type);
        let cache_control = self.value(&self.cache_control).unwrap_or_default();
        DecidingFields {
            is_coded: self.is_coded,
            no_transform: !cache_control.is_empty() && has_element(cache_control, "no-transform"),
            content_type,
            content_types: usize::from(content_type.is_some()),
            ..DecidingFields::default()
        }
    }

    /// The value of its ETag.
    pub fn etag(&self) -> Option<&[u8]> {
        self.value(&self.etag)
    }

    fn value(&self, place: &Place) -> Option<&[u8]> {
        let value = self.text.get(usize::from(place.start)..usize::from(place.end));
        value.filter(|value| !value.is_empty())
    }

    /// Its names, in lower case, and its values.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let (text, mut from) = (&self.text[..], 0);
        let lines = memchr::memchr_iter(b'\n', text).map(move |end| {
            let line = &text[from..end];
            from = end + 1;
            line
        });
        lines.skip(1).filter_map(|line| {
            let (name, value) = line.split_at_checked(memchr::memchr(b':', line)?)?;
            // What was read as a name is a token.
            let value = value.strip_prefix(b": ")?.strip_suffix(b"\r")?;
            Some((std::str::from_utf8(name).ok()?, value))
        })
    }

    /// Reads the fields.
    ///
    /// # Errors
    /// The lines are no head.
    pub fn read(&self) -> Result<Response, ResponseFault> {
        let mut text = self.text.clone();
        text.extend_from_slice(b"\r\n");
        let lines = memchr::memchr_iter(b'\n', &text).count();
        let response = read_response(text.freeze(), lines, &Method::GET)?;
        Ok(Response { keep_alive: self.keep_alive, ..response })
    }

    /// Takes all of its body, which is then written together with it.
    pub fn take_body(&mut self, received: &mut BytesMut) {
        self.body = std::mem::take(received);
    }

    /// The head as it is written, with a line that is added, and the body that it has taken.
    pub fn into_head(self, added: &[u8]) -> BytesMut {
        let Self { mut text, body, .. } = self;
        text.extend_from_slice(added);
        text.extend_from_slice(b"\r\n");
        if !body.is_empty() {
            text.extend_from_slice(&body);
            give_back(body);
        }
        text
    }
}

/// A first line: the status, and where the next line begins. It is one of HTTP/1.1, and of a
/// response whose length its fields tell.
fn read_status(received: &[u8]) -> Option<(StatusCode, usize)> {
    const OK: &[u8] = b"HTTP/1.1 200 OK\r\n";
    if received.starts_with(OK) {
        return Some((StatusCode::OK, OK.len()));
    }
    if !received.starts_with(b"HTTP/1.1 ") {
        return None;
    }
    let end = value_end(received)?;
    let begin = end.checked_add(2).filter(|begin| received.get(end..*begin) == Some(b"\r\n"))?;
    let mut parsed = httparse::Response::new(&mut []);
    parsed.parse(&received[..begin]).ok()?;
    let status = StatusCode::from_u16(parsed.code?).ok()?;
    let is_partial = status == StatusCode::PARTIAL_CONTENT;
    let is_special = is_partial || status == StatusCode::UPGRADE_REQUIRED || has_no_body(status);
    (!is_special).then_some((status, begin))
}

/// A reader of lines, and the facts that it has found.
#[derive(Default)]
struct Reading {
    found: Found,
    /// The common names that were read, the last of them, and a filter of the others.
    known: u64,
    last: usize,
    others: u64,
    count: usize,
    /// The line that is not passed on: `Connection`.
    cut: Range<usize>,
    closes: bool,
    length: Option<u64>,
    has_date: bool,
}

impl Reading {
    /// Reads lines, and turns their names into lower case. Returns the place behind the empty one.
    /// `None`: there is none yet, or the head must be read by its fields.
    fn read(&mut self, head: &mut [u8], begin: usize) -> Option<usize> {
        let mut at = begin;
        while self.count <= RESPONSE_FIELDS_MAX && at <= HEAD_BYTES_MAX {
            if let b"\r\n" = head.get(at..at + 2)? {
                return Some(at + 2);
            }
            at += self.read_line(head.get_mut(at..)?, at)?;
            self.count += 1;
        }
        None
    }

    /// Reads the line at this place of the head. Returns its length.
    fn read_line(&mut self, line: &mut [u8], at: usize) -> Option<usize> {
        let (name, role) = match take_known(line) {
            Some((index, known)) => {
                self.note_known(index, known.role)?;
                (known.len, known.role)
            }
            None => (self.read_name(line)?, FieldRole::Other),
        };
        let rest = line.get(name..)?.strip_prefix(b": ")?;
        let len = value_end(rest)?;
        let (value, rest) = rest.split_at_checked(len)?;
        // White space around a value would be dropped. It has no other than spaces.
        let is_trimmed = value.first() != Some(&b' ') && value.last() != Some(&b' ');
        if !is_trimmed || !rest.starts_with(b"\r\n") {
            return None;
        }
        let from = at + name + 2;
        let (to, end) = (from + len, from + len + 2);
        match role {
            FieldRole::Common | FieldRole::Cookie | FieldRole::Other => {}
            FieldRole::Date => self.has_date = true,
            FieldRole::ContentType => self.found.content_type = from..to,
            FieldRole::CacheControl => self.found.cache_control = from..to,
            FieldRole::Etag => self.found.etag = from..to,
            FieldRole::ContentEncoding => self.found.is_coded = true,
            FieldRole::ContentLength => self.length = Some(read_length(value).ok()?),
            FieldRole::Connection => {
                self.closes = value.eq_ignore_ascii_case(b"close");
                if !self.closes && !value.eq_ignore_ascii_case(b"keep-alive") {
                    return None;
                }
                self.cut = at..end;
            }
            FieldRole::Host | FieldRole::HopByHop => return None,
        }
        Some(end - at)
    }

    /// Notes a common name. `None`: it was there. The map puts all values of a name together, so
    /// only values in a row, as of cookies, stay where they are.
    fn note_known(&mut self, index: usize, role: FieldRole) -> Option<()> {
        let bit = 1 << index;
        if self.known & bit == 0 {
            (self.known, self.last) = (self.known | bit, index);
            return Some(());
        }
        (self.last == index && role == FieldRole::Common).then_some(())
    }

    /// Reads another name. `None`: its field decides, is for the next hop, or may have been there.
    fn read_name(&mut self, line: &mut [u8]) -> Option<usize> {
        let len = line.iter().position(|byte| !is_token(byte)).filter(|len| *len > 0)?;
        let name = &mut line[..len];
        name.make_ascii_lowercase();
        if is_hop_by_hop(name) || is_deciding(name) {
            return None;
        }
        let mix = |sum: usize, byte: &u8| sum.wrapping_mul(31) ^ usize::from(*byte);
        let bit = 1 << (name.iter().fold(len, mix) % 64);
        if self.others & bit != 0 {
            return None;
        }
        (self.others, self.last) = (self.others | bit, usize::MAX);
        Some(len)
    }
}

/// True for a field that decides if a response may change, and is not common.
fn is_deciding(name: &[u8]) -> bool {
    matches!(
        name,
        b"content-range" | b"content-digest" | b"content-md5" | b"digest" | b"repr-digest"
    )
}

/// The end of a value: the first byte that it cannot have. A tab is one, too: it is rare.
fn value_end(text: &[u8]) -> Option<usize> {
    let (words, rest) = text.as_chunks();
    for (at, word) in words.iter().enumerate() {
        if let Some(found) = first_control(u64::from_le_bytes(*word)) {
            return Some(8 * at + found);
        }
    }
    let found = rest.iter().position(|byte| matches!(byte, 0..=0x1f | 0x7f))?;
    Some(8 * words.len() + found)
}

/// The place of the first control character.
#[inline]
fn first_control(word: u64) -> Option<usize> {
    let below = word.wrapping_sub(all(0x20));
    let del = (word ^ all(0x7f)).wrapping_sub(all(1));
    // Above one, a borrow may make others look like it. The first of them is one. Bytes that have
    // the highest bit are none.
    let found = (below | del) & !word & all(0x80);
    (found != 0).then(|| found.trailing_zeros() as usize / 8)
}

#[cfg(test)]
mod tests;
