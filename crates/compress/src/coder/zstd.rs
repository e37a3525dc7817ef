//! zstd (RFC 8878): plain, with a raw prefix, or with a prepared dictionary. A context is reset
//! between bodies. The caller writes the dcz header.

use std::borrow::Cow;

use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective, Strategy};

use super::step::{CodingError, CodingStep, Effort, ROOM_BYTES};

/// A context, new or used before.
pub struct Zstd {
    context: CCtx<'static>,
}

impl Zstd {
    /// Takes a few kilobytes until the first byte. `None` if memory is short.
    pub fn new() -> Option<Self> {
        Some(Self { context: CCtx::try_create()? })
    }

    /// Prepares for the next body. If `length` is known, the tables fit it, and the frame's header
    /// contains it.
    ///
    /// # Errors
    /// The library's; the context must then be dropped.
    pub fn begin(&mut self, effort: Effort, length: Option<u64>) -> Result<(), CodingError> {
        self.rest()?;
        for parameter in parameters(effort, length) {
            self.context.set_parameter(parameter).map_err(said)?;
        }
        self.context.set_pledged_src_size(length).map_err(said)?;
        Ok(())
    }

    /// Begins as [`Zstd::begin`], with a dictionary that is copied and prepared for this body
    /// alone, whose length is unknown. Raw content only, see [`is_raw`].
    ///
    /// # Errors
    /// The library's; the context must then be dropped.
    pub fn begin_with(&mut self, effort: Effort, dictionary: &[u8]) -> Result<(), CodingError> {
        if !is_raw(dictionary) {
            return Err(CodingError { coder: "zstd", why: "a dictionary with tables is not raw" });
        }
        self.begin(effort, None)?;
        // Else the library sizes the tables by its own level, twice: for the body and for the
        // dictionary. They would take up to 23 MB.
        let log = table_log(effort, dictionary.len());
        let chain_log = if effort == Effort::Fast { log - 1 } else { log };
        for parameter in [CParameter::HashLog(log), CParameter::ChainLog(chain_log)] {
            self.context.set_parameter(parameter).map_err(said)?;
        }
        self.context.load_dictionary(dictionary).map_err(said)?;
        Ok(())
    }

    /// Drops the dictionary and an unfinished body; the tables stay.
    ///
    /// # Errors
    /// The library's; the context must then be dropped.
    pub fn rest(&mut self) -> Result<(), CodingError> {
        self.context.reset(ResetDirective::SessionAndParameters).map_err(said)?;
        Ok(())
    }

    /// Bytes of memory that the context holds now.
    pub fn bytes(&self) -> usize {
        self.context.sizeof()
    }

    /// Most bytes of memory that a context takes for such a body, measured.
    pub fn bytes_of(effort: Effort, length: Option<u64>) -> usize {
        // Input and output buffers, and tables with some bytes for each byte of the window.
        let log = match (effort, length) {
            (Effort::Fast | Effort::Even, None) => 17,
            (Effort::Small, None) => 18,
            (_, Some(length)) => (u64::BITS - length.leading_zeros()).clamp(14, WINDOW_LOG_KNOWN),
        };
        let factor = match effort {
            Effort::Fast => 6,
            Effort::Even | Effort::Small => 12,
        };
        (600 << 10) + (factor << log)
    }

    /// Bytes of memory that a context takes with a dictionary of this length, measured: it has the
    /// dictionary's copy and tables, and its own tables.
    pub fn bytes_with(effort: Effort, dictionary: usize) -> usize {
        let bytes_an_entry = if effort == Effort::Fast { 12 } else { 10 };
        let tables = bytes_an_entry << table_log(effort, dictionary);
        BASE_BYTES + (1 << window_log(effort)) + tables + dictionary
    }

    pub(crate) fn step(
        &mut self,
        piece: &[u8],
        out: &mut Vec<u8>,
        step: CodingStep,
    ) -> Result<(), CodingError> {
        let directive = match step {
            CodingStep::More => ZSTD_EndDirective::ZSTD_e_continue,
            CodingStep::Flush => ZSTD_EndDirective::ZSTD_e_flush,
            CodingStep::Finish => ZSTD_EndDirective::ZSTD_e_end,
        };
        let mut input = InBuffer::around(piece);
        loop {
            out.reserve(ROOM_BYTES);
            let filled = out.len();
            let mut output = OutBuffer::around_pos(out, filled);
            let left =
                self.context.compress_stream2(&mut output, &mut input, directive).map_err(said)?;
            let all_in = input.pos() == piece.len();
            if all_in && (left == 0 || step == CodingStep::More) {
                return Ok(());
            }
        }
    }
}

/// Codes `body` in one frame, with `prefix` as raw history of this frame alone. `level` is zstd's
/// own, 1 to 19. If both lie in one buffer, the body is copied first: the library takes input that
/// overlaps its history for a reused buffer, and drops the history.
///
/// # Errors
/// The library's.
pub fn delta(prefix: &[u8], body: &[u8], level: i32) -> Result<Vec<u8>, CodingError> {
    let mut context = CCtx::try_create().ok_or(NO_MEMORY)?;
    let window_log = delta_window_log(prefix.len(), body.len());
    let set = |context: &mut CCtx<'_>, parameter| {
        context.set_parameter(parameter).map(|_| ()).map_err(said)
    };
    set(&mut context, CParameter::CompressionLevel(level))?;
    set(&mut context, CParameter::WindowLog(window_log))?;
    if level < OPTIMAL_LEVEL_MIN {
        // The hash tables of low levels cover only the window's newest part and lose most of a
        // large prefix. A larger table finds more of it than long-distance matching.
        set(&mut context, CParameter::HashLog(window_log.min(HASH_LOG_MAX)))?;
    }
    context.ref_prefix(prefix).map_err(said)?;
    let mut out = Vec::with_capacity(zstd_safe::compress_bound(body.len()));
    let body = if overlap(prefix, body) { Cow::Owned(body.to_vec()) } else { Cow::Borrowed(body) };
    context.compress2(&mut out, &body[..]).map_err(said)?;
    Ok(out)
}

fn overlap(a: &[u8], b: &[u8]) -> bool {
    let (a, b) = (a.as_ptr_range(), b.as_ptr_range());
    a.start < b.end && b.start < a.end
}

/// A dictionary prepared once for one effort, shared by all streams that use it.
pub struct Prepared {
    dictionary: zstd_safe::CDict<'static>,
}

impl Prepared {
    /// `None` if the dictionary is not raw, or memory is short.
    pub fn new(dictionary: &[u8], effort: Effort) -> Option<Self> {
        if !is_raw(dictionary) {
            return None;
        }
        let dictionary = zstd_safe::CDict::try_create(dictionary, level(effort))?;
        Some(Self { dictionary })
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.dictionary.sizeof()
    }
}

impl Zstd {
    /// Codes `body` in one frame, with a prepared dictionary.
    ///
    /// # Errors
    /// The library's; the context must then be dropped.
    pub fn whole(
        &mut self,
        prepared: &Prepared,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), CodingError> {
        self.rest()?;
        let mut whole = Vec::with_capacity(zstd_safe::compress_bound(body.len()));
        let dictionary = &prepared.dictionary;
        self.context.compress_using_cdict(&mut whole, body, dictionary).map_err(said)?;
        out.extend_from_slice(&whole);
        Ok(())
    }
}

/// True if the library takes these bytes as plain content. A dictionary that begins with zstd's
/// magic number is parsed as one with tables, which RFC 9842 section 5 does not allow.
pub fn is_raw(dictionary: &[u8]) -> bool {
    !dictionary.starts_with(&DICTIONARY_MAGIC)
}

fn parameters(effort: Effort, length: Option<u64>) -> Vec<CParameter> {
    let is_small = length.is_some_and(|length| length <= LENGTH_SMALL_MAX);
    let level = if effort == Effort::Even && is_small { LEVEL_SMALL } else { level(effort) };
    let mut parameters = vec![CParameter::CompressionLevel(level)];
    let window_log = window_log(effort);
    if effort == Effort::Even && !is_small {
        // Level 6's tables with a search between those of 5 and 6. On a source tree this gives 1.5
        // % fewer bytes than zlib's 6. Level 5 gives up to 4 % more in files of middle length, and
        // level 6 takes a third longer. Long bodies gain from their window anyway, so they are
        // searched less.
        let is_long = length.is_some_and(|length| length > LENGTH_MIDDLE_MAX);
        parameters.push(CParameter::Strategy(Strategy::ZSTD_greedy));
        parameters.push(CParameter::MinMatch(5));
        parameters.push(CParameter::SearchLog(if is_long { 4 } else { 5 }));
    }
    match length {
        // The tables for a body that just fills the window.
        None => {
            parameters.push(CParameter::SrcSizeHint(1 << window_log));
            parameters.push(CParameter::WindowLog(window_log));
        }
        Some(length) if length > 1 << WINDOW_LOG_KNOWN => {
            parameters.push(CParameter::WindowLog(WINDOW_LOG_KNOWN));
        }
        Some(_) => {}
    }
    parameters
}

/// The window of a body of unknown length.
const fn window_log(effort: Effort) -> u32 {
    match effort {
        Effort::Fast | Effort::Even => 17,
        Effort::Small => 18,
    }
}

/// Entries of the tables of a body with a dictionary: half as many as the longer of window and
/// dictionary has bytes.
fn table_log(effort: Effort, dictionary: usize) -> u32 {
    let log = usize::BITS - dictionary.saturating_sub(1).leading_zeros();
    log.max(window_log(effort)).saturating_sub(1).min(TABLE_LOG_MAX)
}

const fn level(effort: Effort) -> i32 {
    match effort {
        Effort::Fast => 3,
        Effort::Even => 6,
        Effort::Small => 9,
    }
}

/// The window must reach from the end of the body to the start of the prefix, within what RFC 9842
/// section 5 lets a client expect: 8 MiB, or 1.25 times the dictionary, up to 128 MiB.
fn delta_window_log(prefix: usize, body: usize) -> u32 {
    let reach = (prefix + body).max(1 << 10);
    let allowed = (prefix + prefix / 4).clamp(8 << 20, 128 << 20);
    let wanted = usize::BITS - (reach - 1).leading_zeros();
    wanted.min(allowed.ilog2())
}

fn said(code: usize) -> CodingError {
    CodingError { coder: "zstd", why: zstd_safe::get_error_name(code) }
}

/// Bytes. Shorter bodies use level 5, whose lazy search saves 2 % more than greedy.
const LENGTH_SMALL_MAX: u64 = 16 << 10;
const LEVEL_SMALL: i32 = 5;
/// Bytes: zlib's window of 32 KiB covers a good part of such a body.
const LENGTH_MIDDLE_MAX: u64 = 128 << 10;

const NO_MEMORY: CodingError = CodingError { coder: "zstd", why: "no memory" };

/// RFC 8878 section 5: 0xEC30A437, little-endian.
const DICTIONARY_MAGIC: [u8; 4] = [0x37, 0xA4, 0x30, 0xEC];

/// From this level on zstd's parsers are optimal, with tables that are large enough.
const OPTIMAL_LEVEL_MIN: i32 = 13;
/// 4 million entries: 16 MiB while a delta is made.
const HASH_LOG_MAX: u32 = 22;

/// 256 Ki entries, 3 MiB: as many positions as a dictionary of 512 KiB is searched by. On 60 source
/// files with a dictionary of 1 MiB this gives up to 3.5 % more bytes than tables without a limit.
const TABLE_LOG_MAX: u32 = 18;
/// The bytes that a context with a dictionary takes beside its window, tables and the dictionary,
/// measured.
const BASE_BYTES: usize = 810_000;

/// 1 MiB, for bodies that are known to be longer.
const WINDOW_LOG_KNOWN: u32 = 20;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_delta_of_parts_of_one_buffer_uses_its_history() {
        let mut n = 7_u32;
        let noise = || {
            n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (n >> 24) as u8
        };
        let buffer: Vec<u8> = std::iter::repeat_with(noise).take(64 << 10).collect();
        let half = buffer.len() / 2;
        for (prefix, body) in [
            (&buffer[..], &buffer[..]),
            (&buffer[..], &buffer[half..]),
            (&buffer[..], &buffer[..half]),
            (&buffer[..half + 9], &buffer[half - 9..half + 9]),
        ] {
            for level in [3, 11, 19] {
                let coded = delta(prefix, body, level).unwrap();
                assert!(coded.len() < 100, "{} bytes at level {level}", coded.len());
                let mut context = zstd_safe::DCtx::create();
                context.ref_prefix(prefix).unwrap();
                let mut decoded = Vec::with_capacity(buffer.len());
                context.decompress(&mut decoded, &coded).unwrap();
                assert!(decoded == body);
            }
        }
    }
}
