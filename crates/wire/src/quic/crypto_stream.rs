//! Puts the CRYPTO frames of a hello together, in any order and over any number of packets.

use super::fault::QuicFault;
use crate::fault::{Fault, Malformed};
use crate::handshake::{CLIENT_HELLO, message_bytes};
use crate::hello::{Peek, peek_message};
use alloc::vec::Vec;
use core::ops::Range;

/// Most separate pieces of a hello at one time. Chromium cuts its hello into about ten and shuffles
/// them; a hello of 16 KiB in 30 datagrams that arrive in any order has at most 15 gaps.
pub const PIECES_MAX: usize = 128;

/// The begin of a client's CRYPTO stream, as far as it has arrived. It keeps the bytes that it has
/// seen, so that a client cannot say two things about one: servers differ in which they take.
#[derive(Clone, Debug)]
pub struct CryptoStream {
    /// From offset 0 to the end of the last piece; zero in gaps.
    bytes: Vec<u8>,
    /// Pieces that have arrived, ascending, with gaps between.
    pieces: Vec<Range<usize>>,
    hello_bytes_max: usize,
}

impl CryptoStream {
    /// The stream of a hello of at most `hello_bytes_max` bytes, its header included.
    pub const fn new(hello_bytes_max: usize) -> Self {
        Self { bytes: Vec::new(), pieces: Vec::new(), hello_bytes_max }
    }

    /// Takes the bytes of a CRYPTO frame. After a fault the stream is as it was before.
    pub fn insert(&mut self, at: u64, bytes: &[u8]) -> Result<(), QuicFault> {
        let end = at.saturating_add(bytes.len() as u64);
        let new = match (usize::try_from(at), usize::try_from(end)) {
            (Ok(start), Ok(end)) if end <= self.hello_bytes_max => start..end,
            _ => return Err(QuicFault::CryptoTooFar { end }),
        };
        if new.is_empty() {
            return Ok(());
        }
        // The pieces that overlap the new one or touch it.
        let first = self.pieces.partition_point(|piece| piece.end < new.start);
        let behind = self.pieces.partition_point(|piece| piece.start <= new.end);
        let joined = self.pieces.get(first..behind).unwrap_or_default();
        if self.pieces.len() - joined.len() >= PIECES_MAX {
            return Err(QuicFault::TooManyPieces);
        }
        for piece in joined {
            let common = piece.start.max(new.start)..piece.end.min(new.end);
            if common.is_empty() {
                continue;
            }
            let told = bytes.get(common.start - new.start..common.end - new.start);
            if self.bytes.get(common) != told {
                return Err(QuicFault::Overlap { at: new.start as u32 });
            }
        }
        let start = joined.first().map_or(new.start, |piece| piece.start.min(new.start));
        let end = joined.last().map_or(new.end, |piece| piece.end.max(new.end));
        if self.bytes.len() < new.end {
            self.bytes.resize(new.end, 0);
        }
        if let Some(place) = self.bytes.get_mut(new) {
            place.copy_from_slice(bytes);
        }
        self.pieces.splice(first..behind, core::iter::once(start..end));
        Ok(())
    }

    /// The hello, if all of it has arrived. Never [`Peek::NotTls`].
    pub fn peek(&self) -> Peek<'_> {
        let whole = self.whole();
        match message_bytes(CLIENT_HELLO, self.hello_bytes_max, whole) {
            // A later piece may lie behind the hello's end. It is a fault at once.
            Ok(Some(len)) if self.bytes.len() > len => {
                Peek::Malformed(Malformed { at: len as u32, why: Fault::NotAligned })
            }
            _ => peek_message(whole, self.hello_bytes_max),
        }
    }

    /// Bytes of memory that it holds.
    pub const fn held_bytes(&self) -> usize {
        self.bytes.capacity() + self.pieces.capacity() * size_of::<Range<usize>>()
    }

    /// All that has arrived, if no byte before its end is missing.
    pub fn without_gap(&self) -> Option<&[u8]> {
        (self.whole().len() == self.bytes.len()).then_some(&self.bytes)
    }

    /// The bytes before the first gap.
    fn whole(&self) -> &[u8] {
        match self.pieces.first() {
            Some(first) if first.start == 0 => self.bytes.get(..first.end).unwrap_or_default(),
            _ => &[],
        }
    }
}
