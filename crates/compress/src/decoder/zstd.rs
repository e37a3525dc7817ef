//! zstd (RFC 8878): one frame or several, plain or with raw content as the dictionary.

use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

use super::step::{DecodingFault, STEP_BYTES_MAX};
use crate::coder::zstd::is_raw;

/// 8 MiB, the most that the content coding allows (RFC 9659 section 3).
const WINDOW_LOG_MAX: u32 = 23;
/// The bytes that the library allocates beside a window: three blocks of 128 KiB and a few bytes
/// (measured).
const BESIDE_WINDOW_BYTES: usize = (3 << 17) + (1 << 10);
/// RFC 8878 section 3.1.1.
const MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// 32 MiB: 1.25 times the largest dictionary, as a power of two.
const WINDOW_LOG_DCZ_MAX: u32 = 25;

pub(super) struct Unzstd {
    context: DCtx<'static>,
    /// Bytes that it holds without a window.
    base_bytes: usize,
    window_log_max: u32,
    is_between: bool,
    /// True if the last step did nothing, so that another needs input.
    is_idle: bool,
}

impl Unzstd {
    pub(super) fn new() -> Option<Self> {
        let mut context = DCtx::try_create()?;
        context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).ok()?;
        let (base_bytes, window_log_max) = (context.sizeof(), WINDOW_LOG_MAX);
        Some(Self { context, base_bytes, window_log_max, is_between: true, is_idle: true })
    }

    /// A decoder with raw content (RFC 9842 section 5).
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
        (unzstd.base_bytes, unzstd.window_log_max) = (unzstd.context.sizeof(), log);
        Some(unzstd)
    }

    /// Takes at most one frame. A window that needs more than `room_bytes` is not allocated.
    pub(super) fn step(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
        room_bytes: usize,
    ) -> Result<(), DecodingFault> {
        // The library counts calls that do nothing, and the 16th in a row is an error.
        if input.is_empty() && (self.is_between || self.is_idle) {
            return Ok(());
        }
        if self.is_between && self.growth_bytes(input) > room_bytes {
            return Err(DecodingFault::NoRoom);
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

    /// Returns the upper bound of further memory for a frame that begins so.
    fn growth_bytes(&self, input: &[u8]) -> usize {
        let window_max = 1 << self.window_log_max;
        let window = match window_bytes(input) {
            Some(0) => return 0,
            // The library refuses a larger one before it allocates.
            Some(window) if window > window_max => return 0,
            Some(window) => window,
            None => window_max,
        };
        (self.base_bytes + window + BESIDE_WINDOW_BYTES).saturating_sub(self.bytes())
    }

    pub(super) fn is_between_frames(&self) -> bool {
        self.is_between
    }

    pub(super) fn bytes(&self) -> usize {
        self.context.sizeof()
    }
}

/// Reads the window size from a frame's first bytes (RFC 8878 sections 3.1.1.1 and 3.1.2); 0 if
/// they begin no frame with a window. `None`: more bytes are needed to tell.
fn window_bytes(input: &[u8]) -> Option<usize> {
    let (magic, header) = input.split_at_checked(MAGIC.len())?;
    if magic != MAGIC {
        return Some(0);
    }
    let (descriptor, fields) = header.split_first()?;
    let is_single_segment = descriptor & 0x20 != 0;
    if !is_single_segment {
        let field = fields.first()?;
        let base = 1 << (10 + u32::from(field >> 3));
        return Some(base + base / 8 * usize::from(field & 7));
    }
    // The content is the window. Its length is behind the dictionary's id.
    let id_bytes = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let (length_bytes, add) = [(1, 0), (2, 256), (4, 0), (8, 0)][usize::from(descriptor >> 6)];
    let length = fields.get(id_bytes..id_bytes + length_bytes)?;
    let length = length.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    Some(usize::try_from(length).unwrap_or(usize::MAX).saturating_add(add))
}
