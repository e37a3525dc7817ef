//! Streaming decoders: pieces of a coded body in, plain bytes out, a bounded step at a time, so
//! that few coded bytes never become many in memory.

mod br;
mod gzip;
mod step;
mod zstd;

pub use step::{DecodingFault, STEP_BYTES_MAX};

use crate::accept::Coding;
use crate::dictionary::{Hash, header};

/// About the most bytes of memory that a decoder without a dictionary takes: brotli's window of 16
/// MiB, which is the largest of RFC 7932, and its tables.
pub const DECODER_BYTES_MAX: usize = 20 << 20;

/// A decoder of one body.
pub struct ContentDecoder {
    work: Work,
    /// The bytes that must come before the coded bytes: magic bytes and the dictionary's hash (RFC
    /// 9842 sections 4 and 5). They are checked as they come.
    awaited: Vec<u8>,
    /// Bytes of it that came.
    met: usize,
    /// True if any byte came.
    began: bool,
    /// The bytes by which it may grow in a step.
    room_bytes: usize,
}

enum Work {
    Zstd(zstd::Unzstd),
    /// Boxed: its tables are in place.
    Br(Box<br::Unbr>),
    Gzip(gzip::Gunzip),
}

impl ContentDecoder {
    /// A decoder for a coding without a dictionary. `None`: the coding has one, or memory is short.
    pub fn new(coding: Coding) -> Option<Self> {
        let work = match coding {
            Coding::Zstd => Work::Zstd(zstd::Unzstd::new()?),
            Coding::Br => Work::Br(Box::new(br::Unbr::new())),
            Coding::Gzip => Work::Gzip(gzip::Gunzip::new()),
            Coding::Dcz | Coding::Dcb => return None,
        };
        Some(Self { work, awaited: Vec::new(), met: 0, began: false, room_bytes: usize::MAX })
    }

    /// A decoder for a coding with a dictionary, which it copies. `None`: the coding has none, the
    /// dictionary is not raw content, or memory is short.
    pub fn with_dictionary(coding: Coding, hash: Hash, dictionary: &[u8]) -> Option<Self> {
        let work = match coding {
            Coding::Dcz => Work::Zstd(zstd::Unzstd::with_dictionary(dictionary)?),
            Coding::Dcb => Work::Br(Box::new(br::Unbr::with_dictionary(dictionary)?)),
            Coding::Zstd | Coding::Br | Coding::Gzip => return None,
        };
        let mut awaited = Vec::new();
        header(coding, hash, &mut awaited);
        Some(Self { work, awaited, met: 0, began: false, room_bytes: usize::MAX })
    }

    /// A window that takes more than this is refused before it is allocated. Without a call there
    /// is no limit.
    pub fn limit_growth(&mut self, room_bytes: usize) {
        self.room_bytes = room_bytes;
    }

    /// Takes bytes from the front of `input` and appends at most [`STEP_BYTES_MAX`] to `out`. If
    /// it appends nothing, it has taken all of `input` and needs more.
    ///
    /// # Errors
    /// The body is not of this coding, or there is no room for its window.
    pub fn step(&mut self, input: &mut &[u8], out: &mut Vec<u8>) -> Result<(), DecodingFault> {
        self.began |= !input.is_empty();
        self.meet(input)?;
        if self.met < self.awaited.len() {
            return Ok(());
        }
        let (left, filled) = (input.len(), out.len());
        loop {
            let before = input.len();
            match &mut self.work {
                Work::Zstd(zstd) => zstd.step(input, out, self.room_bytes)?,
                Work::Br(br) => br.step(input, out, self.room_bytes)?,
                Work::Gzip(gzip) => gzip.step(input, out)?,
            }
            if out.len() > filled || input.is_empty() {
                return Ok(());
            }
            // A step that does nothing would be repeated for ever.
            if input.len() == before {
                return Err(DecodingFault::Malformed);
            }
            debug_assert!(input.len() < left, "each step takes bytes");
        }
    }

    /// Takes what must come before the coded bytes.
    fn meet(&mut self, input: &mut &[u8]) -> Result<(), DecodingFault> {
        while let Some(wanted) = self.awaited.get(self.met)
            && let Some((first, rest)) = input.split_first()
        {
            if first != wanted {
                let is_hash = self.awaited.len() - self.met <= size_of::<Hash>();
                return Err(match is_hash {
                    true => DecodingFault::Dictionary,
                    false => DecodingFault::Malformed,
                });
            }
            *input = rest;
            self.met += 1;
        }
        Ok(())
    }

    /// Checks that the body may end here. A body without any byte is one: some servers label it.
    ///
    /// # Errors
    /// It was cut short.
    pub fn end(&self) -> Result<(), DecodingFault> {
        let is_whole = match &self.work {
            Work::Zstd(zstd) => zstd.is_between_frames(),
            Work::Br(br) => br.is_done(),
            Work::Gzip(gzip) => gzip.is_between_members(),
        };
        let is_met = self.met == self.awaited.len();
        if is_whole && is_met || !self.began { Ok(()) } else { Err(DecodingFault::Cut) }
    }

    /// Bytes of memory that it holds now.
    pub fn bytes(&self) -> usize {
        match &self.work {
            Work::Zstd(zstd) => zstd.bytes(),
            Work::Br(br) => br.bytes(),
            Work::Gzip(_) => gzip::BYTES,
        }
    }
}

/// True if the first bytes of a body say that it is coded with another dictionary. They may be too
/// few to tell.
pub fn is_of_other(coding: Coding, hash: Hash, first: &[u8]) -> bool {
    let mut awaited = Vec::new();
    header(coding, hash, &mut awaited);
    first.get(..awaited.len()).is_some_and(|first| first != awaited)
}

#[cfg(test)]
mod tests;
