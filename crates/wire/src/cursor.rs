//! A reading position in the handshake stream that steps over record borders by itself, so that
//! a hello needs no copy whether it came in one record or in a thousand. It must not know what
//! it reads, and trusts that `handshake` has seen every record header that it steps over.

use crate::fault::{Fault, Field, Malformed};
use crate::handshake::MESSAGE_HEADER_LEN;
use crate::record::RecordHeader;

/// A range of the handshake stream, read from its front.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    /// What is left of the record under the cursor; may reach over `end`.
    here: &'a [u8],
    /// The records after it, with their headers.
    later: &'a [u8],
    /// Offset of the next byte in the handshake stream.
    at: usize,
    /// Offset at which this range ends.
    end: usize,
}

type Read<T> = Result<T, Malformed>;

// What a hello takes most often is inlined: a `Read` that goes by memory costs more than all the
// rest of a step, and a hello has some hundred of them.

impl<'a> Cursor<'a> {
    /// The body of the message that `records` starts with, which is `message_bytes` long.
    pub(crate) fn body(records: &'a [u8], message_bytes: usize) -> Self {
        let mut message = Self { here: &[], later: records, at: 0, end: message_bytes };
        message.skip(MESSAGE_HEADER_LEN);
        message
    }

    /// Bytes left.
    pub(crate) const fn left(&self) -> usize {
        self.end - self.at
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.at == self.end
    }

    /// A fault at the next byte.
    pub(crate) const fn fault(&self, why: Fault) -> Malformed {
        Malformed { at: self.at, why }
    }

    #[inline(always)]
    pub(crate) fn u8(&mut self, field: Field) -> Read<u8> {
        self.byte().ok_or(self.fault(Fault::Truncated(field)))
    }

    #[inline(always)]
    pub(crate) fn u16(&mut self, field: Field) -> Read<u16> {
        // Both bytes in this record, as nearly always: the step that a hello takes most often.
        if self.left() >= 2
            && let &[high, low, ref rest @ ..] = self.here
        {
            self.here = rest;
            self.at += 2;
            return Ok(u16::from_be_bytes([high, low]));
        }
        self.array(field).map(u16::from_be_bytes)
    }

    /// The next `N` bytes, copied.
    pub(crate) fn array<const N: usize>(&mut self, field: Field) -> Read<[u8; N]> {
        let mut bytes = [0; N];
        let taken = self.take(N, field)?;
        taken.copy_to(&mut bytes);
        Ok(bytes)
    }

    /// The next `len` bytes as a range of their own.
    #[inline(always)]
    pub(crate) fn take(&mut self, len: usize, field: Field) -> Read<Self> {
        if len > self.left() {
            return Err(self.fault(Fault::Truncated(field)));
        }
        let taken = Self { end: self.at + len, ..*self };
        self.skip(len);
        Ok(taken)
    }

    /// A vector with a one-byte length (RFC 8446 3.4).
    #[inline(always)]
    pub(crate) fn vec8(&mut self, field: Field) -> Read<Self> {
        let len = self.u8(field)?;
        self.take(usize::from(len), field)
    }

    /// A vector with a two-byte length (RFC 8446 3.4).
    #[inline(always)]
    pub(crate) fn vec16(&mut self, field: Field) -> Read<Self> {
        let len = self.u16(field)?;
        self.take(usize::from(len), field)
    }

    /// A vector with a one-byte length and at least one byte.
    #[inline(always)]
    pub(crate) fn vec8_filled(&mut self, field: Field) -> Read<Self> {
        self.vec8(field)?.filled(field)
    }

    /// A vector with a two-byte length and at least one byte.
    #[inline(always)]
    pub(crate) fn vec16_filled(&mut self, field: Field) -> Read<Self> {
        self.vec16(field)?.filled(field)
    }

    #[inline(always)]
    fn filled(self, field: Field) -> Read<Self> {
        if self.is_empty() { Err(self.fault(Fault::Empty(field))) } else { Ok(self) }
    }

    /// Refuses bytes that are left over.
    pub(crate) const fn finish(self, field: Field) -> Read<()> {
        if self.is_empty() { Ok(()) } else { Err(self.fault(Fault::Trailing(field))) }
    }

    /// Refuses a list of two-byte items with half an item at its end.
    pub(crate) const fn whole_u16s(self, field: Field) -> Read<Self> {
        if self.left().is_multiple_of(2) {
            Ok(self)
        } else {
            Err(Malformed { at: self.end - 1, why: Fault::Truncated(field) })
        }
    }

    /// Copies the front of the range to `out`, as many bytes as both have.
    pub(crate) fn copy_to(mut self, mut out: &mut [u8]) {
        while !out.is_empty() && !self.is_empty() {
            let run = self.run(out.len());
            if run.is_empty() {
                return;
            }
            let (front, rest) = out.split_at_mut(run.len());
            front.copy_from_slice(run);
            out = rest;
            self.skip(run.len());
        }
    }

    #[inline(always)]
    fn byte(&mut self) -> Option<u8> {
        if self.is_empty() {
            return None;
        }
        if self.here.is_empty() {
            self.settle();
        }
        let (&byte, rest) = self.here.split_first()?;
        self.here = rest;
        self.at += 1;
        Some(byte)
    }

    /// The bytes that follow in the current record, at most `len` of them and within the range.
    fn run(&mut self, len: usize) -> &'a [u8] {
        self.settle();
        let len = len.min(self.left()).min(self.here.len());
        &self.here[..len]
    }

    /// Goes on by `len` bytes, which must be in the range.
    #[inline(always)]
    fn skip(&mut self, len: usize) {
        // Within this record, as nearly always.
        match self.here.get(len..) {
            Some(rest) => (self.here, self.at) = (rest, self.at + len),
            None => self.skip_far(len),
        }
    }

    #[cold]
    fn skip_far(&mut self, len: usize) {
        let mut left = len;
        while left > 0 {
            let run = self.run(left);
            if run.is_empty() {
                // Only if `records` ended early, which `handshake` rules out: an empty range
                // is then the harmless answer.
                self.at = self.end;
                return;
            }
            left -= run.len();
            self.here = &self.here[run.len()..];
            self.at += run.len();
        }
    }

    /// Steps into the next record when this one is read to its end.
    fn settle(&mut self) {
        if !self.here.is_empty() {
            return;
        }
        let Some((header, rest)) = RecordHeader::split(self.later) else { return };
        // The last record of a server's flight may hold more than the hello, and not be here yet.
        let len = rest.len().min(usize::from(header.len));
        (self.here, self.later) = rest.split_at(len);
    }
}

/// The two-byte values of a list, in order.
#[derive(Clone)]
pub(crate) struct U16s<'a>(pub(crate) Option<Cursor<'a>>);

impl Iterator for U16s<'_> {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        let list = self.0.as_mut()?;
        Some(u16::from_be_bytes([list.byte()?, list.byte()?]))
    }
}

/// The one-byte values of a list, in order.
#[derive(Clone)]
pub(crate) struct U8s<'a>(pub(crate) Cursor<'a>);

impl Iterator for U8s<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        self.0.byte()
    }
}
