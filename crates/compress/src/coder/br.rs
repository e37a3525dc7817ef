//! brotli (RFC 7932), plain or with a raw dictionary (shared brotli). The library cannot reset an
//! encoder: each body gets a new one, in memory that is reused. The caller writes the dcb header.

mod memory;

use brotli::enc::BrotliEncoderParams;
use brotli::enc::encode::{
    BrotliEncoderOperation, BrotliEncoderParameter, BrotliEncoderStateStruct,
};

use super::step::{CodingError, CodingStep, Effort};
use memory::Alloc;
pub use memory::BrMemory;

/// An encoder, for one body.
pub struct Br {
    state: BrotliEncoderStateStruct<Alloc>,
    memory: BrMemory,
}

impl Br {
    /// Takes a few kilobytes until the first byte. If `length` is known, the tables fit it.
    pub fn new(effort: Effort, length: Option<u64>, memory: BrMemory) -> Self {
        let state = state(quality(effort, length), window_log(length), length, &memory);
        Self { state, memory }
    }

    /// The memory, for the next encoder.
    pub fn into_memory(self) -> BrMemory {
        let Self { state, memory } = self;
        drop(state);
        memory
    }

    /// An encoder with a raw dictionary. `quality` is brotli's own, 2 to 11.
    pub fn with_dictionary(quality: u32, dictionary: &[u8], length: Option<u64>) -> Self {
        // The dictionary precedes the body in the window.
        let reach = length.map(|length| length + dictionary.len() as u64);
        let window_log =
            reach.map_or(WINDOW_LOG_MAX, wanted_log).clamp(WINDOW_LOG_MIN, WINDOW_LOG_MAX);
        let memory = BrMemory::default();
        let mut state = state(quality, window_log, length, &memory);
        state.set_custom_dictionary(dictionary.len(), dictionary);
        Self { state, memory }
    }

    /// Most bytes of memory that one encoder takes, measured.
    pub fn bytes(effort: Effort, length: Option<u64>) -> usize {
        let tables = match effort {
            Effort::Fast | Effort::Even => 300 << 10,
            Effort::Small => 850 << 10,
        };
        tables + (4 << window_log(length))
    }

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
        let operation = match step {
            CodingStep::More => BrotliEncoderOperation::BROTLI_OPERATION_PROCESS,
            CodingStep::Flush => BrotliEncoderOperation::BROTLI_OPERATION_FLUSH,
            CodingStep::Finish => BrotliEncoderOperation::BROTLI_OPERATION_FINISH,
        };
        let (mut left, mut at) = (piece.len(), 0);
        loop {
            // No output buffer is passed: the output is taken from the encoder's own buffer below.
            let went = self.state.compress_stream(
                operation,
                &mut left,
                piece,
                &mut at,
                &mut 0,
                &mut [],
                &mut 0,
                &mut None,
                &mut |_, _, _, _| (),
            );
            if !went {
                return Err(BROKEN);
            }
            let mut taken = 0;
            // `given` extends to the end of the buffer; its first `taken` bytes are output.
            let given = self.state.take_output(&mut taken);
            out.extend_from_slice(given.get(..taken).unwrap_or_default());
            let done = match step {
                CodingStep::More | CodingStep::Flush => left == 0 && !self.state.has_more_output(),
                CodingStep::Finish => self.state.is_finished(),
            };
            if done && taken == 0 {
                return Ok(());
            }
        }
    }
}

fn state(
    quality: u32,
    window_log: u32,
    length: Option<u64>,
    memory: &BrMemory,
) -> BrotliEncoderStateStruct<Alloc> {
    let mut state = BrotliEncoderStateStruct::new(memory.allocator());
    state.params = BrotliEncoderParams::default();
    state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_QUALITY, quality);
    state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_LGWIN, window_log);
    let hint = length.and_then(|length| u32::try_from(length).ok()).unwrap_or(0);
    state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_SIZE_HINT, hint);
    state
}

fn quality(effort: Effort, length: Option<u64>) -> u32 {
    match effort {
        Effort::Fast | Effort::Even => 4,
        Effort::Small if length.is_some_and(|length| length <= LENGTH_SMALL_MAX) => 5,
        Effort::Small => 6,
    }
}

fn window_log(length: Option<u64>) -> u32 {
    length.map_or(WINDOW_LOG, |length| wanted_log(length).clamp(WINDOW_LOG_MIN, WINDOW_LOG))
}

/// The window for `length` bytes; brotli's window is 2^n - 16.
fn wanted_log(length: u64) -> u32 {
    u64::BITS - (length + 15).leading_zeros()
}

const BROKEN: CodingError = CodingError { coder: "br", why: "the stream is in an invalid state" };

/// Bytes. For longer bodies quality 5 is used: 6 saves only 0.2 % more, with tables twice as large
/// to clear.
const LENGTH_SMALL_MAX: u64 = 16 << 10;
/// 1 MiB: long bodies get a tenth smaller than with 2^18, and memory is taken only as a body grows.
/// More is not worth it.
const WINDOW_LOG: u32 = 20;
/// Below 2^17, qualities from 5 up use a match finder that takes five times as long.
const WINDOW_LOG_MIN: u32 = 17;

/// 16 MiB, the most that RFC 9842 section 4 allows.
const WINDOW_LOG_MAX: u32 = 24;
