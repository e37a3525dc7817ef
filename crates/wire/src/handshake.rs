//! Finds the first handshake message of a flight in the bytes received so far: record headers,
//! message header, limits.

use crate::fault::{Fault, Malformed};
use crate::record::{HANDSHAKE, HEADER_LEN, PLAINTEXT_BYTES_MAX, RecordHeader, VERSION_MAJOR};
use alloc::borrow::Cow;
use alloc::vec::Vec;

/// `HandshakeType.client_hello`.
pub(crate) const CLIENT_HELLO: u8 = 1;
/// `HandshakeType.server_hello`, also of a HelloRetryRequest.
pub(crate) const SERVER_HELLO: u8 = 2;

/// Bytes of a handshake message's header: type (1), length (3).
pub(crate) const MESSAGE_HEADER_LEN: usize = 4;

/// Progress over the records of one message. Each record header is read once however the bytes
/// arrive, except that of a record that is incomplete.
#[derive(Clone, Debug)]
pub(crate) struct MessageReader {
    message_type: u8,
    message_bytes_max: usize,
    /// True if the message must end with its last record (a ClientHello); else others may follow in
    /// it (a server's flight).
    aligned: bool,
    /// Bytes of `raw` in complete records.
    raw_walked: usize,
    /// Handshake bytes in those records.
    stream_walked: usize,
    /// The part of the message header that those records hold.
    header: [u8; MESSAGE_HEADER_LEN],
}

/// The answer of [`MessageReader::feed`].
pub(crate) enum Message<'a> {
    /// The message is not complete before `raw` has grown by so many bytes.
    NeedMore {
        at_least: usize,
    },
    /// The message with its header, copied if it lies in several records, and the length of the
    /// records that hold it. If it need not be aligned, the end of the last record may not have
    /// been received yet.
    Whole {
        message: Cow<'a, [u8]>,
        raw_len: usize,
    },
    Malformed(Malformed),
}

impl MessageReader {
    pub(crate) const fn new(message_type: u8, message_bytes_max: usize, aligned: bool) -> Self {
        Self {
            message_type,
            message_bytes_max,
            aligned,
            raw_walked: 0,
            stream_walked: 0,
            header: [0; MESSAGE_HEADER_LEN],
        }
    }

    /// `raw` starts with the flight's first record. Each call's `raw` must extend the last one's.
    ///
    /// Faults are looked for in stream order, each as soon as its bytes have arrived. So the answer
    /// does not depend on how the bytes were cut.
    #[inline(always)]
    pub(crate) fn feed<'a>(&mut self, raw: &'a [u8]) -> Message<'a> {
        match self.walk(raw) {
            Ok(answer) => answer,
            Err(malformed) => Message::Malformed(malformed),
        }
    }

    #[inline(always)]
    fn walk<'a>(&mut self, raw: &'a [u8]) -> Result<Message<'a>, Malformed> {
        loop {
            let unread = raw.get(self.raw_walked..).unwrap_or_default();
            let Some((header, rest)) = self.record_header(unread)? else {
                let least = self.message_bytes(&[])?.unwrap_or(MESSAGE_HEADER_LEN);
                let at_least = raw_bytes_min(least - self.stream_walked) - unread.len();
                return Ok(Message::NeedMore { at_least });
            };
            let len = usize::from(header.len);
            let payload = rest.get(..len).unwrap_or(rest);
            let stream_end = self.stream_walked + len;

            let message_bytes = self.message_bytes(payload)?;
            let least = message_bytes.unwrap_or(MESSAGE_HEADER_LEN);
            if least <= stream_end {
                if self.aligned && message_bytes.is_some_and(|bytes| bytes < stream_end) {
                    return Err(Malformed { at: least as u32, why: Fault::NotAligned });
                }
                let raw_len = self.raw_walked + header.record_len();
                let part = least - self.stream_walked;
                return Ok(match payload.get(..part) {
                    Some(message) if self.stream_walked == 0 => {
                        Message::Whole { message: Cow::Borrowed(message), raw_len }
                    }
                    Some(_) => Message::Whole { message: Cow::Owned(joined(raw, least)), raw_len },
                    None => Message::NeedMore { at_least: part - payload.len() },
                });
            }
            if payload.len() < len {
                let at_least = len - payload.len() + raw_bytes_min(least - stream_end);
                return Ok(Message::NeedMore { at_least });
            }
            self.keep_header(payload);
            self.raw_walked += header.record_len();
            self.stream_walked = stream_end;
        }
    }

    /// The header of the record that `unread` starts with, and what was received after it. `None`
    /// while the header is incomplete. A fault is reported by its first byte.
    fn record_header<'a>(
        &self,
        unread: &'a [u8],
    ) -> Result<Option<(RecordHeader, &'a [u8])>, Malformed> {
        let fault = |why| Err(Malformed { at: self.stream_walked as u32, why });
        match *unread {
            [content_type, ..] if content_type != HANDSHAKE => {
                return fault(Fault::RecordType(content_type));
            }
            [_, major, ..] if major != VERSION_MAJOR => {
                return fault(Fault::RecordVersion(major));
            }
            _ => {}
        }
        let Some((header, rest)) = RecordHeader::split(unread) else { return Ok(None) };
        match usize::from(header.len) {
            0 => fault(Fault::EmptyRecord),
            len if len > PLAINTEXT_BYTES_MAX => fault(Fault::RecordOverflow { len: header.len }),
            _ => Ok(Some((header, rest))),
        }
    }

    /// Length of the message, header included, once its header has arrived. What has arrived of it
    /// is checked in any case. `payload` follows the complete records.
    fn message_bytes(&self, payload: &[u8]) -> Result<Option<usize>, Malformed> {
        let mut header = self.header;
        let have = put(&mut header, self.stream_walked, payload);
        if have > 0 && header[0] != self.message_type {
            return Err(Malformed { at: 0, why: Fault::MessageType(header[0]) });
        }
        if have < MESSAGE_HEADER_LEN {
            return Ok(None);
        }
        let [_, high, middle, low] = header.map(usize::from);
        let message_bytes = MESSAGE_HEADER_LEN + (high << 16 | middle << 8 | low);
        if message_bytes > self.message_bytes_max {
            return Err(Malformed {
                at: 1,
                why: Fault::TooLong { message_bytes: message_bytes as u32 },
            });
        }
        Ok(Some(message_bytes))
    }

    fn keep_header(&mut self, payload: &[u8]) {
        put(&mut self.header, self.stream_walked, payload);
    }
}

/// Length of the message that `stream` begins with, once its header is there: a message without
/// records. What is there of the header is checked in any case.
pub(crate) fn message_bytes(
    message_type: u8,
    message_bytes_max: usize,
    stream: &[u8],
) -> Result<Option<usize>, Malformed> {
    MessageReader::new(message_type, message_bytes_max, true).message_bytes(stream)
}

/// Copies `payload` to offset `at` of the message header, as far as it fits. Returns how much of
/// the header is there.
fn put(header: &mut [u8; MESSAGE_HEADER_LEN], at: usize, payload: &[u8]) -> usize {
    let room = header.get_mut(at..).unwrap_or_default();
    let len = payload.len().min(room.len());
    room[..len].copy_from_slice(&payload[..len]);
    at.min(MESSAGE_HEADER_LEN) + len
}

/// The first `len` bytes of these records' payloads.
#[cold]
fn joined(mut records: &[u8], len: usize) -> Vec<u8> {
    let mut stream = Vec::with_capacity(len);
    while stream.len() < len
        && let Some((header, rest)) = RecordHeader::split(records)
    {
        // The last record of a server's flight may hold more than the hello, and may be incomplete.
        let (payload, later) = rest.split_at(rest.len().min(usize::from(header.len)));
        stream.extend_from_slice(&payload[..payload.len().min(len - stream.len())]);
        records = later;
    }
    stream
}

/// Fewest bytes on the wire that carry `stream` handshake bytes, from the start of a record.
const fn raw_bytes_min(stream: usize) -> usize {
    stream + stream.div_ceil(PLAINTEXT_BYTES_MAX) * HEADER_LEN
}
