//! gzip (RFC 1952) by zlib-rs. A context is reset between bodies.

use flate2::{Compress, Compression, FlushCompress, Status};

use super::step::{CodingError, CodingStep, Effort, ROOM_BYTES};

/// A context, new or used before.
pub struct Gzip {
    context: Compress,
    effort: Effort,
}

impl Gzip {
    /// Allocates all of a context's memory: see [`Gzip::BYTES`].
    pub fn new(effort: Effort) -> Self {
        let context = Compress::new_gzip(Compression::new(level(effort)), WINDOW_BITS);
        Self { context, effort }
    }

    /// Prepares for the next body.
    #[must_use]
    pub fn begin(self, effort: Effort) -> Self {
        if self.effort != effort {
            return Self::new(effort);
        }
        let mut again = self;
        again.context.reset();
        again
    }

    /// Bytes of memory of a context, measured.
    pub const BYTES: usize = 371 << 10;

    /// Codes a piece, and appends what comes out.
    ///
    /// # Errors
    /// [`CodingError`].
    pub fn step(
        &mut self,
        piece: &[u8],
        out: &mut Vec<u8>,
        step: CodingStep,
    ) -> Result<(), CodingError> {
        let flush = match step {
            CodingStep::More => FlushCompress::None,
            CodingStep::Flush => FlushCompress::Sync,
            CodingStep::Finish => FlushCompress::Finish,
        };
        let mut left = piece;
        loop {
            out.reserve(ROOM_BYTES);
            let before = self.context.total_in();
            let status = self.context.compress_vec(left, out, flush).map_err(|_| BROKEN)?;
            let taken = usize::try_from(self.context.total_in() - before).unwrap_or(left.len());
            left = left.get(taken..).unwrap_or_default();
            let full = out.len() == out.capacity();
            match status {
                Status::StreamEnd => return Ok(()),
                Status::Ok | Status::BufError if left.is_empty() && !full => match step {
                    CodingStep::Finish => {}
                    CodingStep::More | CodingStep::Flush => return Ok(()),
                },
                Status::Ok => {}
                Status::BufError if full => {}
                Status::BufError => return Err(BROKEN),
            }
        }
    }
}

const fn level(effort: Effort) -> u32 {
    match effort {
        Effort::Fast => 3,
        Effort::Even | Effort::Small => 6,
    }
}

const BROKEN: CodingError = CodingError { coder: "gzip", why: "the stream is in an invalid state" };

/// 32 KiB, the most that DEFLATE has.
const WINDOW_BITS: u8 = 15;
