//! A reading position in a handshake message that lies in one piece.

use crate::fault::{Fault, Field, Malformed};

/// A range of the message that is read from its front.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    /// The rest of the range.
    left: &'a [u8],
    /// Offset in the message at which the range ends.
    end: usize,
}

/// A range of a message as offsets. 32 bits are enough: the longest message has 2^24 bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Span {
    start: u32,
    end: u32,
}

type Read<T> = Result<T, Malformed>;

// All is inlined: a `Read` returned through memory costs more than the rest of a step, and a hello
// takes some hundred steps.

impl<'a> Cursor<'a> {
    /// The message from byte `start` on.
    pub(crate) fn new(message: &'a [u8], start: usize) -> Self {
        Self { left: message.get(start..).unwrap_or_default(), end: message.len() }
    }

    /// The bytes left.
    pub(crate) const fn left(&self) -> &'a [u8] {
        self.left
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// The offsets of the bytes left.
    #[inline(always)]
    pub(crate) const fn span(&self) -> Span {
        Span { start: self.at() as u32, end: self.end as u32 }
    }

    /// A fault at the next byte.
    pub(crate) const fn fault(&self, why: Fault) -> Malformed {
        Malformed { at: self.at() as u32, why }
    }

    #[inline(always)]
    pub(crate) fn u8(&mut self, field: Field) -> Read<u8> {
        self.array(field).map(|[byte]| byte)
    }

    #[inline(always)]
    pub(crate) fn u16(&mut self, field: Field) -> Read<u16> {
        self.array(field).map(u16::from_be_bytes)
    }

    /// The next `N` bytes, copied.
    #[inline(always)]
    pub(crate) fn array<const N: usize>(&mut self, field: Field) -> Read<[u8; N]> {
        match self.left.split_first_chunk() {
            Some((array, rest)) => {
                self.left = rest;
                Ok(*array)
            }
            None => Err(self.fault(Fault::Truncated(field))),
        }
    }

    /// The next `len` bytes as a range of their own.
    #[inline(always)]
    pub(crate) fn take(&mut self, len: usize, field: Field) -> Read<Self> {
        match self.left.split_at_checked(len) {
            Some((taken, rest)) => {
                self.left = rest;
                Ok(Self { left: taken, end: self.at() })
            }
            None => Err(self.fault(Fault::Truncated(field))),
        }
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
    #[inline(always)]
    pub(crate) const fn finish(self, field: Field) -> Read<()> {
        if self.is_empty() { Ok(()) } else { Err(self.fault(Fault::Trailing(field))) }
    }

    /// Refuses a list of two-byte items with half an item at its end.
    #[inline(always)]
    pub(crate) const fn whole_u16s(self, field: Field) -> Read<Self> {
        if self.left.len().is_multiple_of(2) {
            Ok(self)
        } else {
            Err(Malformed { at: self.end as u32 - 1, why: Fault::Truncated(field) })
        }
    }

    /// Offset of the next byte in the message.
    #[inline(always)]
    const fn at(&self) -> usize {
        self.end - self.left.len()
    }
}

impl Span {
    /// The span's bytes in `message`.
    pub(crate) fn of(self, message: &[u8]) -> &[u8] {
        message.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// A cursor over the span's bytes.
    pub(crate) fn cursor(self, message: &[u8]) -> Cursor<'_> {
        Cursor { left: self.of(message), end: self.end as usize }
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.start == self.end
    }
}
