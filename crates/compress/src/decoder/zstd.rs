//! zstd (RFC 8878): one frame or several, plain or with raw content as the dictionary.

use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

use super::step::{DecodingFault, STEP_BYTES_MAX};
use crate::coder::zstd::is_raw;

/// 8 MiB, the most that the content coding allows (RFC 9659 section 3).
const WINDOW_LOG_MAX: u32 = 23;
/// 32 MiB: 1.25 times the largest dictionary, as a power of two.
const WINDOW_LOG_DCZ_MAX: u32 = 25;

pub(super) struct Unzstd {
    context: DCtx<'static>,
    is_between: bool,
    /// Whether the last step did nothing, so that another needs input.
    is_idle: bool,
}

impl Unzstd {
    pub(super) fn new() -> Option<Self> {
        let mut context = DCtx::try_create()?;
        context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).ok()?;
        Some(Self { context, is_between: true, is_idle: true })
    }

    /// With raw content (RFC 9842 section 5).
    pub(super) fn with_dictionary(dictionary: &[u8]) -> Option<Self> {
        let mut unzstd = Self::new()?;
        // Else the library would read tables out of it.
        if !is_raw(dictionary) {
            return None;
        }
        // A window of 8 MiB, or of 1.25 times the dictionary if that is more.
        let reach = dictionary.len() + dictionary.len() / 4;
        let log = usize::BITS - reach.saturating_sub(1).leading_zeros();
        let log = log.clamp(WINDOW_LOG_MAX, WINDOW_LOG_DCZ_MAX);
        unzstd.context.set_parameter(DParameter::WindowLogMax(log)).ok()?;
        unzstd.context.load_dictionary(dictionary).ok()?;
        Some(unzstd)
    }

    pub(super) fn step(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), DecodingFault> {
        // The library counts calls that do nothing, and the 16th in a row is an error.
        if input.is_empty() && (self.is_between || self.is_idle) {
            return Ok(());
        }
        let mut room = [0; STEP_BYTES_MAX];
        let mut output = OutBuffer::around(&mut room[..]);
        let mut source = InBuffer::around(input);
        let wants = self.context.decompress_stream(&mut output, &mut source);
        // 0: the frame is complete, and all of it is put out.
        self.is_between = wants.map_err(|_| DecodingFault::Malformed)? == 0;
        let taken = source.pos();
        self.is_idle = taken == 0 && output.as_slice().is_empty();
        out.extend_from_slice(output.as_slice());
        *input = input.get(taken..).unwrap_or_default();
        Ok(())
    }

    pub(super) fn is_between_frames(&self) -> bool {
        self.is_between
    }

    pub(super) fn bytes(&self) -> usize {
        self.context.sizeof()
    }
}
